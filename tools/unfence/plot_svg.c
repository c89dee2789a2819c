/* plot_svg.c - a plot as one SVG file: no script, no font of its own, no outside reference. */
#include "options.h"
#include "plot.h"
#include <math.h>

enum { WIDTH = 860, PANEL = 380, LEFT = 70, TOP = 56, RIGHT = 190, BOTTOM = 56, HEAD = 34 };

/* Told apart by colour and, where two of them lie on one another, by dashes. */
static const struct {
    const char *colour, *dashes;
} styles[PLOT_LINES] = {
    {"#7f7f7f", ""},    {"#111111", "2 3"}, {"#d62728", ""},    {"#ff7f0e", ""},    {"#8c564b", "6 3"}, {"#9467bd", ""},
    {"#bcbd22", ""},    {"#e377c2", ""},    {"#17becf", "6 3"}, {"#1f77b4", ""},    {"#2ca02c", ""},    {"#004d40", "8 3 2 3"},
    {"#aec7e8", "4 4"}, {"#ffbb78", "4 4"}, {"#98df8a", "4 4"}, {"#c5b0d5", "4 4"},
};

static void text(FILE *out, double x, double y, const char *anchor, const char *extra, const char *words)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, extra);
    for (; *words; words++) {
        if (*words == '<')
            fputs("&lt;", out);
        else if (*words == '&')
            fputs("&amp;", out);
        else
            fputc(*words, out);
    }
    fputs("</text>\n", out);
}

static double x_of(const plot_panel *p, size_t i)
{
    double first = log2((double)p->sizes[0]), last = log2((double)p->sizes[p->n_points - 1]);
    double part = last > first ? (log2((double)p->sizes[i]) - first) / (last - first) : 0.5;
    return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double top_of(const plot_panel *p)
{
    double top = 1;
    for (size_t l = 0; l < p->n_lines; l++)
        for (size_t i = 0; i < p->n_points; i++)
            top = !isnan(p->values[l][i]) && p->values[l][i] > top ? p->values[l][i] : top;
    return ceil(top * 10) / 10;
}

static double y_of(double value, double top, double at)
{
    return at + PANEL - BOTTOM - value / top * (PANEL - TOP - BOTTOM);
}

static void axes(FILE *out, const plot *all, const plot_panel *p, double top, double at)
{
    char words[64], bytes[24];
    for (int tenth = 0; tenth <= (int)lround(top * 10); tenth += 2) {
        double y = y_of(tenth / 10.0, top, at);
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", LEFT, WIDTH - RIGHT, y, y);
        snprintf(words, sizeof words, "%.1f", tenth / 10.0);
        text(out, LEFT - 8, y + 4, "end", "", words);
    }
    for (size_t i = 0; i < p->n_points; i++)
        text(out, x_of(p, i), at + PANEL - BOTTOM + 18, "middle", "", tool_format_bytes(p->sizes[i], bytes));
    text(out, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, at + PANEL - 14, "middle", "", all->x);
    double middle = at + TOP + (PANEL - TOP - BOTTOM) / 2.0;
    char turned[64];
    snprintf(turned, sizeof turned, " transform=\"rotate(-90 18 %.1f)\"", middle);
    text(out, 18, middle, "middle", turned, all->y);
    fprintf(out, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#333333\"/>\n", LEFT, at + TOP,
            WIDTH - LEFT - RIGHT, PANEL - TOP - BOTTOM);
}

static void line(FILE *out, const plot_panel *p, size_t l, double top, double at)
{
    char points[PLOT_POINTS * 20] = "";
    size_t used = 0;
    for (size_t i = 0; i < p->n_points; i++) {
        if (isnan(p->values[l][i]))
            continue;
        double x = x_of(p, i), y = y_of(p->values[l][i], top, at);
        used += (size_t)snprintf(points + used, sizeof points - used, "%.1f,%.1f ", x, y);
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x, y, styles[l].colour);
    }
    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" points=\"%s\"/>\n",
            styles[l].colour, styles[l].dashes, points);
    double y = at + TOP + 10 + 18 * (double)l;
    fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
            WIDTH - RIGHT + 14, WIDTH - RIGHT + 44, y, y, styles[l].colour, styles[l].dashes);
    text(out, WIDTH - RIGHT + 50, y + 4, "start", "", p->names[l]);
}

int plot_svg(FILE *out, const plot *all)
{
    int height = HEAD + PANEL * (int)all->n_panels;
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        WIDTH, height, WIDTH, height);
    text(out, LEFT, 24, "start", " font-size=\"16\"", all->title);
    for (size_t i = 0; i < all->n_panels; i++) {
        const plot_panel *p = &all->panels[i];
        double at = HEAD + PANEL * (double)i, top = top_of(p);
        char heading[256];
        snprintf(heading, sizeof heading, "%s (%s)", p->title, all->label);
        text(out, LEFT, at + TOP - 14, "start", " font-weight=\"bold\"", heading);
        axes(out, all, p, top, at);
        for (size_t l = 0; l < p->n_lines; l++)
            line(out, p, l, top, at);
    }
    fputs("</svg>\n", out);
    return fflush(out) != 0 || ferror(out) ? -1 : 0;
}
