/* report.h - what every benchmark of the project reports: rows of one shape, as JSON for machines or a table for people.
 *
 * The JSON is {"version":1, "result":"measured", "host":{...}, "rows":[...]} and, from `unfence bench targets`, "targets":[...]. Its schema is in
 * docs/benchmarks.md and checked by tests/multi/tool_json.c. Plain data: rows live in memory shared by the PEs of a run. */
#ifndef UNFENCE_TOOL_REPORT_H
#define UNFENCE_TOOL_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum report_metric {
    REPORT_LATENCY,
    REPORT_BANDWIDTH,
    REPORT_RATE,
    REPORT_RATIO, /* to `against`, measured in the same run in alternating slices */
    REPORT_COUNT, /* work requests a put, bytes allocated, ... */
} report_metric;

typedef struct report_row {
    char bench[16], fabric[24], policy[16];
    uint64_t bytes;
    uint32_t inflight, peers;
    report_metric metric;
    char unit[24];
    char against[16]; /* "" unless metric is REPORT_RATIO */
    double p50, p99, p999, min, max;
    uint64_t n; /* samples behind the percentiles */
} report_row;

/* A line of the project's Speed section, judged. */
typedef struct report_target {
    const char *line;
    double measured, bound;
    const char *unit;
    bool at_most;       /* met if measured <= bound, else if measured >= bound */
    bool measured_here; /* false: this machine or build cannot measure it */
} report_target;

bool report_target_met(const report_target *target);
const char *report_metric_name(report_metric metric);
/* `result`: "measured", or "model" where no hardware was. 0, or -1 if writing failed or memory ran out. */
int report_json(FILE *out, const char *result, const report_row *rows, size_t n, const report_target *targets, size_t n_targets);
void report_table(FILE *out, const report_row *rows, size_t n);
void report_target_table(FILE *out, const report_target *targets, size_t n);

#endif
