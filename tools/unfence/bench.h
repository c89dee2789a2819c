/* bench.h - the frame of all benchmarks: PEs of one run on this host, compared things measured in alternating slices.
 *
 * `unfence bench` forks the PEs itself (bench_run.c). They share one mapping that has nothing to do with the library: a barrier, the rows,
 * the first error, and the cache lines of the floor. A benchmark is a set of LANES, each a way to do the same work: ours, the
 * unsignalled one, the bare hardware. bench_interleave runs short slices of them in turn, A B C A B C ..., so that whatever else this
 * machine does hits all of them, and a ratio is the median of the ratios of neighbouring slices. Nothing measured in different
 * runs is ever divided.
 *
 * Every lane checks the data it moved. A wrong byte ends the run with an error: a benchmark of wrong results measures nothing. */
#ifndef UNFENCE_TOOL_BENCH_H
#define UNFENCE_TOOL_BENCH_H

#include "base/clock.h"
#include "options.h"
#include "report.h"
#include "stats.h"
#include "unfence/unfence.h"
#include <stdatomic.h>
#include <stdbool.h>

#define BENCH_MAX_PES      64
#define BENCH_MAX_ROWS     1024
#define BENCH_EXCHANGE     512
#define BENCH_ERROR        1024
#define BENCH_WAIT_NS      (60 * 1000000000ull) /* for waits on a peer: a run that is stuck says so instead of staying */
#define BENCH_WINDOW_BYTES (16ull << 20)
#define BENCH_LINE         64 /* bytes of a cache line on every machine we build for */

typedef struct bench_options {
    tool_names fabrics, policies;
    tool_numbers sizes, peers;
    uint64_t window, iterations;
    double seconds;
    bool json, no_pin;
    uint64_t tokens, hidden, top_k, experts; /* ep */
    const char *dtype;
} bench_options;

/* What the floor's ping-pong uses: a line each way for the payload and one for the flag, far enough apart for any prefetcher. */
typedef struct bench_floor_lines {
    _Alignas(256) unsigned char payload[2][8][BENCH_LINE];
    struct {
        _Alignas(256) _Atomic uint64_t value;
    } flag[2];
} bench_floor_lines;

/* Shared by the PEs of one run and the process that forked them. */
typedef struct bench_shared {
    _Alignas(256) _Atomic uint32_t arrived;
    _Alignas(256) _Atomic uint32_t generation;
    _Alignas(256) _Atomic int failed; /* 0, or 1 + the PE that failed first */
    int code;                         /* of that failure: a UF_E*, 0 if it was no call of the library */
    char error[BENCH_ERROR];
    _Atomic uint64_t done, total; /* thousandths of the comparisons to make, for the progress bar */
    uint64_t iterations;          /* PE 0's choice for the next slice; read after a barrier */
    struct {
        _Alignas(BENCH_LINE) _Atomic uint64_t step;
        double figure;
    } each[BENCH_MAX_PES]; /* what a PE tells the others */
    size_t n_rows;
    report_row rows[BENCH_MAX_ROWS];
    unsigned char exchange[BENCH_MAX_PES][BENCH_EXCHANGE];
    bench_floor_lines lines;
} bench_shared;

/* One PE of a run, in its own process. */
typedef struct bench_pe {
    int pe, n_pes;
    bool alone;         /* every PE has a core of its own: spinning hurts nobody */
    const char *fabric; /* "local", "ofi:tcp", ... */
    char root[32];      /* rendezvous of the world */
    const bench_options *options;
    bench_shared *shared;
    uf_world *world; /* NULL until bench_world_open */
} bench_pe;

/* Each function below returns 0, or -1 after bench_fail has stored the reason. */
int bench_fail(bench_pe *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For library calls: stores "what: message of the library". */
int bench_fail_library(bench_pe *b, int code, const char *what);
/* Waits for all PEs through shared memory, not through the library under test. */
int bench_sync(bench_pe *b);
/* The same, calling progress(arg) while it waits: for lanes whose network moves only when it is polled. */
int bench_sync_polling(bench_pe *b, int (*progress)(void *arg), void *arg);
/* One look of a wait loop: pauses, yields after many rounds; -1 if another PE failed or the run is stuck since `start`. */
int bench_relax(bench_pe *b, uint64_t round, uint64_t start);
/* Opens the world on b->fabric with room for `heap_bytes`, and checks that the fabric is the one asked for. */
int bench_world_open(bench_pe *b, uint64_t heap_bytes);
/* PE 0 adds a row; the others do nothing. bytes, inflight and metric are set by the caller, percentiles by stats_summarize. */
int bench_row_add(bench_pe *b, const report_row *row);

/* Operations of `bytes` in a step of a stream: --window, or fewer where that is more than BENCH_WINDOW_BYTES, since long steps meet more
 * disturbance. The one answer for ours and for what it is compared with: a ratio takes them to do the same work. */
uint64_t bench_window(const bench_options *options, uint64_t bytes);

/* Payload: the bulk is a function of (slot, position), the first and last words carry the number of the message. */
void bench_pattern_fill(void *buffer, uint64_t bytes, uint64_t slot);
void bench_stamp(void *buffer, uint64_t bytes, uint64_t number);
bool bench_stamp_is(const void *buffer, uint64_t bytes, uint64_t number);
/* Checks the bulk; the error names slot and offset. */
int bench_pattern_check(bench_pe *b, const void *buffer, uint64_t bytes, uint64_t slot, uint64_t number);

/* Takes the time of steps. While things are compared, the clock is read some times a slice, not at each step, and the slice's
 * figure is the median of these parts: a process that is descheduled in one of them does not move it. For percentiles every step
 * is a sample. PE 0 alone measures; on the other PEs all calls are free of effect. */
#define BENCH_PARTS 16
typedef struct bench_meter {
    bool measures;
    uint64_t every, steps, last; /* a part is `every` steps */
    double divide;               /* a step counts for so many: 2 for a round trip of which one way is wanted */
    stats *samples;              /* NULL: to parts */
    double parts[BENCH_PARTS];
    size_t n_parts;
} bench_meter;

static inline void bench_meter_start(bench_meter *m)
{
    m->last = m->measures ? uf_clock_ns() : 0;
}

/* After each step. */
static inline void bench_meter_step(bench_meter *m)
{
    if (!m->measures || ++m->steps < m->every)
        return;
    uint64_t now = uf_clock_ns();
    double ns = (double)(now - m->last) / (double)m->every / m->divide;
    if (m->samples)
        stats_add(m->samples, ns);
    else if (m->n_parts < BENCH_PARTS)
        m->parts[m->n_parts++] = ns;
    m->last = now;
    m->steps = 0;
}

/* A way to do the work. `slice` runs on all PEs at once and does `iterations` steps between bench_meter_start and the last
 * bench_meter_step. `verify` runs after each slice, untimed. */
typedef struct bench_lane {
    const char *name;
    int (*slice)(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter);
    int (*verify)(bench_pe *b, void *arg); /* may be NULL */
    void *arg;
    double divide;       /* of the meter; 0 means 1 */
    uint64_t iterations; /* of one slice: found by bench_interleave */
    double *per_slice;   /* ns of a step, for each round */
    stats samples;       /* ns of every step of some rounds */
} bench_lane;

#define BENCH_ROUNDS 200 /* slices of some milliseconds: most are over before this machine's scheduler looks */

/* Runs all lanes in turn for about options->seconds each; afterwards samples and per_slice[0..*rounds) are there on PE 0. */
int bench_interleave(bench_pe *b, bench_lane *lanes, size_t n, uint64_t *rounds);
void bench_lanes_free(bench_lane *lanes, size_t n);
/* Median and spread of a.per_slice / b.per_slice; `inverse` for throughputs, where more is better. */
int bench_ratio(const bench_lane *a, const bench_lane *b, uint64_t rounds, bool inverse, report_row *row);

/* A benchmark as the command sees it. */
typedef struct bench_case {
    const char *name, *text;
    const char *options;    /* names of the options it takes, each followed by a space */
    bool per_fabric;        /* run once for each fabric asked for; else once */
    uint64_t default_peers; /* PEs of a run are one more */
    int (*main)(bench_pe *b);
} bench_case;

/* Runs `c` on all fabrics and numbers of peers that the options name; rows are appended. Returns TOOL_EXIT_*. A fabric that was not
 * asked for by name and is not here is skipped with a line on standard error. */
typedef struct bench_results {
    report_row *rows;
    size_t n, capacity;
} bench_results;
int bench_run(const bench_case *c, const bench_options *options, bool fabrics_given, bench_results *results);

int bench_put_signal_main(bench_pe *b);
int bench_atomic_main(bench_pe *b);
int bench_barrier_main(bench_pe *b);
int bench_floor_main(bench_pe *b);
int bench_ep_main(bench_pe *b);
int bench_order_main(bench_pe *b);
int bench_ring_main(bench_pe *b);

/* NULL if there is no benchmark of that name. */
const bench_case *bench_case_find(const char *name);
void bench_options_default(bench_options *options);

int bench_command(int argc, char **argv);
/* `unfence bench ordering`: see bench_ordering.c. Takes the arguments after its name; returns TOOL_EXIT_*. */
int bench_ordering(int argc, char **argv);
/* `unfence bench ring-model`: see bench_ring_model.c. Alike. */
int bench_ring_model(int argc, char **argv);
/* `unfence bench targets`: see bench_targets.c. Returns TOOL_EXIT_*. */
int bench_targets(const bench_options *options);

#endif
