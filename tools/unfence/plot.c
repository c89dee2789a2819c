/* plot.c - a plot for a terminal: a letter for each line, the highest value first where two meet. */
#include "plot.h"
#include "options.h"
#include <math.h>
#include <string.h>

enum { ROWS = 21, COLUMN = 9 };

static void draw_panel(const plot_panel *p, char cells[ROWS][PLOT_POINTS * COLUMN + 1])
{
    memset(cells, ' ', ROWS * (PLOT_POINTS * COLUMN + 1));
    for (size_t l = 0; l < p->n_lines; l++) {
        for (size_t i = 0; i < p->n_points; i++) {
            double value = p->values[l][i];
            if (isnan(value))
                continue;
            long row = lround((1 - (value > 1 ? 1 : value)) * (ROWS - 1));
            char *cell = &cells[row][i * COLUMN];
            /* Side by side where several share a place; the last place of a column parts it from the next. */
            for (int at = 0; at < COLUMN - 1; at++) {
                if (cell[at] == ' ') {
                    cell[at] = (char)('a' + l);
                    break;
                }
            }
        }
    }
}

void plot_terminal(FILE *out, const plot *all)
{
    char cells[ROWS][PLOT_POINTS * COLUMN + 1], bytes[24];
    for (size_t n = 0; n < all->n_panels; n++) {
        const plot_panel *p = &all->panels[n];
        draw_panel(p, cells);
        fprintf(out, "\n%s: %s against %s (%s)\n", p->title, all->y, all->x, all->label);
        for (int row = 0; row < ROWS; row++)
            fprintf(out, "%5.2f |%.*s\n", 1 - (double)row / (ROWS - 1), (int)(p->n_points * COLUMN), cells[row]);
        fprintf(out, "      +");
        for (size_t i = 0; i < p->n_points; i++)
            fprintf(out, "%.*s", COLUMN, "-----------");
        fprintf(out, "\n       ");
        for (size_t i = 0; i < p->n_points; i++)
            fprintf(out, "%-*s", COLUMN, tool_format_bytes(p->sizes[i], bytes));
        fprintf(out, "\n");
        for (size_t l = 0; l < p->n_lines; l++)
            fprintf(out, "  %c %-15s%s", (char)('a' + l), p->names[l], l % 4 == 3 ? "\n" : "");
        fprintf(out, "\n");
    }
}
