/* bench_interleave.c - runs lanes in short alternating slices and compares them slice by slice: see bench.h.
 *
 * Every PE runs the same loop; PE 0 alone measures and decides how many steps a slice has, and tells the others through the shared
 * mapping between two barriers. Latency samples are taken in slices of their own, since reading the clock at each step
 * would be part of what is compared. */
#include "bench.h"
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX    (1u << 16)
#define SAMPLE_EVERY   8 /* rounds; the first one always, so that the shortest run has samples */
#define ROUNDS_MIN     5
#define ITERATIONS_MAX 100000u
#define CALIBRATION    0.25 /* of a slice's time: long enough to predict it */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One slice: with `samples` every step is one of them, else *ns is the median of the slice's parts. */
static int run_slice(bench_pe *b, bench_lane *lane, stats *samples, double *ns)
{
    uint64_t part = lane->iterations / BENCH_PARTS;
    bench_meter meter = {.measures = b->pe == 0,
                         .every = samples || part == 0 ? 1 : part,
                         .divide = lane->divide > 0 ? lane->divide : 1,
                         .samples = samples};
    if (bench_sync(b) != 0 || lane->slice(b, lane->arg, lane->iterations, &meter) != 0)
        return -1;
    if (meter.n_parts > 0) {
        qsort(meter.parts, meter.n_parts, sizeof *meter.parts, by_value);
        *ns = meter.parts[meter.n_parts / 2];
    }
    return lane->verify ? lane->verify(b, lane->arg) : 0;
}

/* PE 0's number to everybody: written before the barrier, read after it. */
static int agree(bench_pe *b, uint64_t mine, uint64_t *agreed)
{
    if (b->pe == 0)
        b->shared->iterations = mine;
    if (bench_sync(b) != 0)
        return -1;
    *agreed = b->shared->iterations;
    return bench_sync(b);
}

static double step_ns(const bench_lane *lane, double ns)
{
    return ns * (lane->divide > 0 ? lane->divide : 1);
}

/* Doubles the steps of a slice until it lasts a good part of `slice_ns`, twice in a row: the first slice of all may have waited for
 * connections, pages and cold caches. *ns is what a step then takes. */
static int calibrate(bench_pe *b, bench_lane *lane, double slice_ns, double *ns)
{
    uint64_t next = 1, before = 0;
    while (next != 0) {
        double measured = 0;
        if (agree(b, next, &lane->iterations) != 0 || run_slice(b, lane, NULL, &measured) != 0)
            return -1;
        *ns = step_ns(lane, measured);
        bool enough = *ns * (double)lane->iterations >= slice_ns * CALIBRATION || lane->iterations >= ITERATIONS_MAX;
        uint64_t wanted = !enough ? lane->iterations * 2 : before == lane->iterations ? 0 : lane->iterations;
        before = lane->iterations;
        if (agree(b, wanted, &next) != 0)
            return -1;
    }
    double fit = *ns > 0 ? slice_ns / *ns : ITERATIONS_MAX;
    uint64_t mine = fit < 1 ? 1 : fit > ITERATIONS_MAX ? ITERATIONS_MAX : (uint64_t)fit;
    return agree(b, mine, &lane->iterations);
}

static int plan_by_time(bench_pe *b, bench_lane *lanes, size_t n, uint64_t *rounds)
{
    double each = b->options->seconds * 1e9 / BENCH_ROUNDS, whole = 0;
    for (size_t i = 0; i < n; i++) {
        double ns;
        if (calibrate(b, &lanes[i], each, &ns) != 0)
            return -1;
        whole += ns * (double)lanes[i].iterations;
    }
    /* Where one step is longer than a slice should be, there are fewer rounds, not a longer run. */
    double fit = whole > 0 ? b->options->seconds * 1e9 * (double)n / whole : BENCH_ROUNDS;
    uint64_t mine = fit > BENCH_ROUNDS ? BENCH_ROUNDS : fit < ROUNDS_MIN ? ROUNDS_MIN : (uint64_t)fit;
    return agree(b, mine, rounds);
}

static void plan_by_count(bench_pe *b, bench_lane *lanes, size_t n, uint64_t *rounds)
{
    uint64_t wanted = b->options->iterations;
    *rounds = wanted < BENCH_ROUNDS ? wanted : BENCH_ROUNDS;
    for (size_t i = 0; i < n; i++)
        lanes[i].iterations = wanted / *rounds;
}

static int create_samples(bench_pe *b, bench_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        lanes[i].per_slice = calloc(BENCH_ROUNDS, sizeof *lanes[i].per_slice);
        if (!lanes[i].per_slice || stats_create(&lanes[i].samples, SAMPLES_MAX) != 0)
            return bench_fail(b, "no memory for %u samples", SAMPLES_MAX);
    }
    return 0;
}

int bench_interleave(bench_pe *b, bench_lane *lanes, size_t n, uint64_t *rounds)
{
    uint64_t before = atomic_load(&b->shared->done);
    if (create_samples(b, lanes, n) != 0)
        return -1;
    if (b->options->iterations > 0)
        plan_by_count(b, lanes, n, rounds);
    else if (plan_by_time(b, lanes, n, rounds) != 0)
        return -1;
    for (uint64_t round = 0; round < *rounds; round++) {
        for (size_t i = 0; i < n; i++) {
            /* Each round starts with another lane, so that none always follows the same one. */
            bench_lane *lane = &lanes[(i + round) % n];
            double ignored;
            if (run_slice(b, lane, NULL, &lane->per_slice[round]) != 0)
                return -1;
            if (round % SAMPLE_EVERY == 0 && run_slice(b, lane, &lane->samples, &ignored) != 0)
                return -1;
        }
        if (b->pe == 0)
            atomic_store(&b->shared->done, before + 1000 * (round + 1) / *rounds);
    }
    return bench_sync(b);
}

void bench_lanes_free(bench_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(lanes[i].per_slice);
        stats_destroy(&lanes[i].samples);
        lanes[i].per_slice = NULL;
    }
}

int bench_ratio(const bench_lane *a, const bench_lane *b, uint64_t rounds, bool inverse, report_row *row)
{
    stats ratios;
    if (stats_create(&ratios, BENCH_ROUNDS) != 0)
        return -1;
    for (uint64_t round = 0; round < rounds; round++) {
        double mine = a->per_slice[round], other = b->per_slice[round];
        if (mine > 0 && other > 0)
            stats_add(&ratios, inverse ? other / mine : mine / other);
    }
    stats_summarize(&ratios, row);
    stats_destroy(&ratios);
    return 0;
}
