/* bench_ordering.h - what the two files of `unfence bench ordering` share: a sweep's points, and what each scheme did there. */
#ifndef UNFENCE_TOOL_BENCH_ORDERING_H
#define UNFENCE_TOOL_BENCH_ORDERING_H

#include "options.h"
#include "ordering.h"
#include "report.h"

#define ORDERING_LABEL "model result"

typedef struct ordering_sweep {
    const char *model, *plot;
    tool_numbers sizes, inflight, peers, rtt;
    tool_names policies;
    uint64_t puts, batch, seed;
    uint64_t post_ns, cqe_ns;
    bool json;
} ordering_sweep;

enum { ORDERING_SCHEMES = 16 };

/* One point of the sweep, all schemes; results[0] is the unsignalled. */
typedef struct ordering_point {
    ordering_options options;
    size_t n;
    const ordering_scheme *schemes[ORDERING_SCHEMES];
    ordering_result results[ORDERING_SCHEMES];
} ordering_point;

/* Of a sorted list, nearest rank. */
double ordering_percentile(const ordering_result *result, double part);
double ordering_share(const ordering_point *point, size_t i);
/* "8 KiB, 64 in flight, 1 peer, round trip 20 us" */
void ordering_point_name(const ordering_point *point, bool with_size, char *text, size_t bytes);

void ordering_table_head(FILE *out, const ordering_sweep *sweep);
void ordering_table_point(FILE *out, const ordering_point *point);

/* Rows of a point; memory grows. 0, or -1 without memory. */
typedef struct ordering_rows {
    report_row *rows;
    size_t n, room;
} ordering_rows;
int ordering_rows_add(ordering_rows *rows, const ordering_sweep *sweep, const ordering_point *point);

#endif
