/* progress.h - a progress bar on standard error, and only when that is a terminal. */
#ifndef UNFENCE_TOOL_PROGRESS_H
#define UNFENCE_TOOL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool shown; /* standard error is a terminal */
    int last;   /* permille drawn last, so that an unchanged bar is not written again */
} progress;

void progress_start(progress *bar);
/* `done` of `total` steps; `label` says what is being measured. */
void progress_show(progress *bar, uint64_t done, uint64_t total, const char *label);
/* Clears the line, so that what is printed next starts on a clean one. */
void progress_end(progress *bar);

#endif
