/* plot.h - lines over sizes, as an SVG file for a page and as characters for a terminal.
 *
 * Plain data: a plot is some panels, a panel some lines that share the sizes of its horizontal axis (logarithmic); the vertical axis goes from 0 to
 * at least 1. NAN is a missing value. Nothing here knows what is plotted. */
#ifndef UNFENCE_TOOL_PLOT_H
#define UNFENCE_TOOL_PLOT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { PLOT_LINES = 16, PLOT_POINTS = 32 };

typedef struct plot_panel {
    char title[128];
    size_t n_points, n_lines;
    uint64_t sizes[PLOT_POINTS]; /* bytes, ascending */
    const char *names[PLOT_LINES];
    double values[PLOT_LINES][PLOT_POINTS];
} plot_panel;

typedef struct plot {
    const char *title, *label; /* label: what kind of result it is; on each panel */
    const char *x, *y;         /* names of the axes */
    size_t n_panels;
    const plot_panel *panels;
} plot;

/* 0, or -1 if writing failed. */
int plot_svg(FILE *out, const plot *p);
void plot_terminal(FILE *out, const plot *p);

#endif
