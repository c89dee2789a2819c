/* progress.c - see progress.h. */
#include "progress.h"
#include <stdio.h>
#include <unistd.h>

#define BAR_WIDTH 32

void progress_start(progress *bar)
{
    bar->shown = isatty(STDERR_FILENO) == 1;
    bar->last = -1;
}

void progress_show(progress *bar, uint64_t done, uint64_t total, const char *label)
{
    int permille = total == 0 ? 0 : (int)(done * 1000 / total);
    if (!bar->shown || permille == bar->last)
        return;
    bar->last = permille > 1000 ? 1000 : permille;
    char line[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++)
        line[i] = i * 1000 < bar->last * BAR_WIDTH ? '#' : '.';
    line[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3d%% %s", line, bar->last / 10, label);
    fflush(stderr);
}

void progress_end(progress *bar)
{
    if (bar->shown && bar->last >= 0)
        fprintf(stderr, "\r\033[K");
}
