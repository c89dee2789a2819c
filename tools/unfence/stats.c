/* stats.c - see stats.h. Percentiles are nearest-rank: a value that was measured, never one between two. */
#include "stats.h"
#include <stdlib.h>
#include <string.h>

int stats_create(stats *s, size_t capacity)
{
    memset(s, 0, sizeof *s);
    s->values = malloc(capacity * sizeof *s->values);
    if (!s->values)
        return -1;
    s->capacity = capacity;
    s->random = 0x9e3779b97f4a7c15u;
    return 0;
}

void stats_destroy(stats *s)
{
    free(s->values);
    memset(s, 0, sizeof *s);
}

void stats_add(stats *s, double value)
{
    s->seen++;
    if (s->n < s->capacity) {
        s->values[s->n++] = value;
        return;
    }
    /* Reservoir sampling: each sample offered so far is kept with the same probability, however long the run. */
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    uint64_t at = s->random % s->seen;
    if (at < s->capacity)
        s->values[at] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const stats *s, double q)
{
    size_t rank = (size_t)(q * (double)s->n + 0.999999);
    return s->values[rank == 0 ? 0 : (rank > s->n ? s->n : rank) - 1];
}

void stats_summarize(stats *s, report_row *row)
{
    row->n = s->seen;
    row->p50 = row->p99 = row->p999 = row->min = row->max = 0;
    if (s->n == 0)
        return;
    qsort(s->values, s->n, sizeof *s->values, by_value);
    row->p50 = quantile(s, 0.5);
    row->p99 = quantile(s, 0.99);
    row->p999 = quantile(s, 0.999);
    row->min = s->values[0];
    row->max = s->values[s->n - 1];
}
