/* stats.h - samples of a measurement and their percentiles. Memory is set aside before measuring: adding one never allocates. */
#ifndef UNFENCE_TOOL_STATS_H
#define UNFENCE_TOOL_STATS_H

#include "report.h"
#include <stddef.h>
#include <stdint.h>

typedef struct stats {
    double *values;
    size_t capacity, n;
    uint64_t seen; /* samples offered; beyond capacity a uniform choice of them is kept */
    uint64_t random;
} stats;

/* 0, or -1 without memory. */
int stats_create(stats *s, size_t capacity);
void stats_destroy(stats *s);
void stats_add(stats *s, double value);
/* Sorts the samples and writes p50 .. n of the row. With no sample all are 0. */
void stats_summarize(stats *s, report_row *row);

#endif
