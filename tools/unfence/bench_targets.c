/* bench_targets.c - `unfence bench targets`: every speed that this project set itself, measured once here and judged.
 *
 * The exit code says whether measuring worked, never whether a target was met: no test of this project is timed, since a machine
 * that is busy with something else would then make correct code fail. */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct target_line {
    const char *line;
    const char *bench, *fabric, *policy;
    uint64_t bytes;    /* ANY: whatever it was run with */
    uint32_t inflight; /* 1: the ping-pong; else the window of the stream */
    report_metric metric;
    const char *against, *unit; /* NULL: any */
    double bound;
    bool at_most;
} target_line;

#define ANY    UINT64_MAX
#define WINDOW 64

static const target_line lines[] = {
    {"local: put_signal 8 B one way to a two-cache-line ping-pong", "put-signal", "local", "weak", 8, 1, REPORT_RATIO, "floor",
     "x", 1.25, true},
    {"local: 1 MiB put to memcpy between the same buffers", "put-signal", "local", "unsignalled", 1u << 20, 16, REPORT_RATIO,
     "memcpy", "x", 0.9, false},
    {"ofi tcp: put_signal 8 B ping-pong to fi_writedata", "put-signal", "ofi:tcp", "weak", 8, 1, REPORT_RATIO, "floor", "x", 1.15,
     true},
    {"ofi tcp: put_signal 1 KiB ping-pong to fi_writedata", "put-signal", "ofi:tcp", "weak", 1024, 1, REPORT_RATIO, "floor", "x",
     1.15, true},
    {"ofi shm: put_signal 8 B ping-pong to fi_writedata", "put-signal", "ofi:shm", "weak", 8, 1, REPORT_RATIO, "floor", "x", 1.15,
     true},
    {"ofi shm: put_signal 1 KiB ping-pong to fi_writedata", "put-signal", "ofi:shm", "weak", 1024, 1, REPORT_RATIO, "floor", "x",
     1.15, true},
    {"ofi tcp: 1 KiB signalled to unsignalled, window 64", "put-signal", "ofi:tcp", "weak", 1024, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi tcp: 8 KiB signalled to unsignalled, window 64", "put-signal", "ofi:tcp", "weak", 8192, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi tcp: 64 KiB signalled to unsignalled, window 64", "put-signal", "ofi:tcp", "weak", 65536, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi shm: 1 KiB signalled to unsignalled, window 64", "put-signal", "ofi:shm", "weak", 1024, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi shm: 8 KiB signalled to unsignalled, window 64", "put-signal", "ofi:shm", "weak", 8192, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi shm: 64 KiB signalled to unsignalled, window 64", "put-signal", "ofi:shm", "weak", 65536, WINDOW, REPORT_RATIO,
     "unsignalled", "x", 0.95, false},
    {"ofi tcp: data work requests a weak signalled put", "put-signal", "ofi:tcp", "weak", 1024, WINDOW, REPORT_COUNT, NULL,
     "data WRs/put", 1.0, true},
    {"ofi tcp: control work requests a weak signalled put", "put-signal", "ofi:tcp", "weak", 1024, WINDOW, REPORT_COUNT, NULL,
     "control WRs/put", 1.0 / 64, true},
    {"ofi shm: data work requests a weak signalled put", "put-signal", "ofi:shm", "weak", 1024, WINDOW, REPORT_COUNT, NULL,
     "data WRs/put", 1.0, true},
    {"ofi shm: control work requests a weak signalled put", "put-signal", "ofi:shm", "weak", 1024, WINDOW, REPORT_COUNT, NULL,
     "control WRs/put", 1.0 / 64, true},
    {"order protocol alone: signals released a second on one core", "order", "none", "weak", ANY, WINDOW, REPORT_RATE, NULL,
     "1/s", 20e6, false},
    {"order protocol alone: bytes allocated after creation", "order", "none", "weak", ANY, WINDOW, REPORT_COUNT, NULL,
     "bytes allocated", 0, true},
    {"ep: dispatch+combine, 4096 x 2048 bf16, top-8 of 128, 4 PEs, local, to memcpy by all", "ep", "local", "both", ANY, 1,
     REPORT_RATIO, "floor", "x", 0.5, false},
};
#define N_LINES (sizeof lines / sizeof *lines)

static bool row_is(const report_row *row, const target_line *line)
{
    return strcmp(row->bench, line->bench) == 0 && strcmp(row->fabric, line->fabric) == 0 &&
           strcmp(row->policy, line->policy) == 0 && (line->bytes == ANY || row->bytes == line->bytes) &&
           row->inflight == line->inflight && row->metric == line->metric &&
           (!line->against || strcmp(row->against, line->against) == 0) && (!line->unit || strcmp(row->unit, line->unit) == 0);
}

static void judge(const bench_results *results, report_target *targets)
{
    for (size_t i = 0; i < N_LINES; i++) {
        targets[i] =
            (report_target){.line = lines[i].line, .bound = lines[i].bound, .at_most = lines[i].at_most, .unit = lines[i].unit};
        for (size_t k = 0; k < results->n; k++) {
            if (row_is(&results->rows[k], &lines[i])) {
                targets[i].measured = results->rows[k].p50;
                targets[i].measured_here = true;
            }
        }
    }
}

static void set_sizes(bench_options *options, const uint64_t *sizes, size_t n)
{
    options->sizes.n = n;
    memcpy(options->sizes.values, sizes, n * sizeof *sizes);
}

static void set_fabric(bench_options *options, const char *name)
{
    options->fabrics.n = 1;
    snprintf(options->fabrics.text[0], sizeof options->fabrics.text[0], "%s", name);
}

/* Runs what the lines above need, and nothing else. A fabric that is not here leaves its lines unmeasured, and so does one that fails;
 * the others are measured all the same. */
static int measure(const bench_options *given, bench_results *results)
{
    bench_options options = *given;
    int rc = TOOL_EXIT_OK;
    options.policies.n = 1;
    snprintf(options.policies.text[0], sizeof options.policies.text[0], "weak");
    set_fabric(&options, "local");
    set_sizes(&options, (const uint64_t[]){8, 1u << 20}, 2);
    if (bench_run(bench_case_find("put-signal"), &options, false, results) != TOOL_EXIT_OK)
        rc = TOOL_EXIT_FAILED;
    set_sizes(&options, (const uint64_t[]){8, 1024, 8192, 65536}, 4);
    static const char *const networks[] = {"ofi:tcp", "ofi:shm"};
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        set_fabric(&options, networks[i]);
        if (bench_run(bench_case_find("put-signal"), &options, false, results) != TOOL_EXIT_OK)
            rc = TOOL_EXIT_FAILED;
    }
    if (bench_run(bench_case_find("order"), &options, false, results) != TOOL_EXIT_OK)
        rc = TOOL_EXIT_FAILED;
    set_fabric(&options, "local");
    if (bench_run(bench_case_find("ep"), &options, false, results) != TOOL_EXIT_OK)
        rc = TOOL_EXIT_FAILED;
    return rc;
}

int bench_targets(const bench_options *options)
{
    bench_results results = {0};
    report_target targets[N_LINES];
    int rc = measure(options, &results);
    judge(&results, targets);
    if (!options->json)
        report_target_table(stdout, targets, N_LINES);
    else if (report_json(stdout, "measured", results.rows, results.n, targets, N_LINES) != 0)
        rc = TOOL_EXIT_FAILED;
    free(results.rows);
    return rc;
}
