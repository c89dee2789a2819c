/* bench_atomic.c - `unfence bench atomic`: fetch-add latency and the rate of adds that fetch nothing, PE 0 on a word of PE 1.
 *
 * Checked: each fetched value is the one before plus one, and the word ends at the number of adds. */
#include "bench_floor.h"
#include <string.h>

typedef struct atomic_lane {
    uf_ctx *ctx;
    uint64_t *word, *done; /* symmetric */
    uint64_t window, added, slice;
} atomic_lane;

/* PE 1 waits inside the library for the end of a slice, as a PE that has nothing else to do would. */
static int await_end(bench_pe *b, atomic_lane *lane)
{
    int rc = uf_wait(b->world, lane->done, UF_GE, ++lane->slice, BENCH_WAIT_NS);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_wait for the end of a slice");
}

static int tell_end(bench_pe *b, atomic_lane *lane)
{
    int rc = uf_signal(lane->ctx, lane->done, UF_SIGNAL_SET, ++lane->slice, 1, UF_WEAK);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_signal");
}

static int fetch_add_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    atomic_lane *lane = arg;
    if (b->pe > 0)
        return b->pe == 1 ? await_end(b, lane) : 0;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t old;
        int rc = uf_atomic_fetch_add64(lane->ctx, lane->word, 1, &old, 1);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_atomic");
        if (old != lane->added++)
            return bench_fail(b, "fetch-add gave %llu where %llu was added so far", (unsigned long long)old,
                              (unsigned long long)lane->added - 1);
        bench_meter_step(meter);
    }
    return tell_end(b, lane);
}

static int add_window(bench_pe *b, atomic_lane *lane)
{
    for (uint64_t i = 0; i < lane->window; i++) {
        int rc = uf_atomic_nbi(lane->ctx, UF_ATOMIC_ADD, 8, lane->word, 1, 0, NULL, 1, 0);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_atomic_nbi");
    }
    lane->added += lane->window;
    int rc = uf_quiet(lane->ctx);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_quiet");
}

static int add_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    atomic_lane *lane = arg;
    if (b->pe > 0) {
        lane->added += iterations * lane->window;
        return b->pe == 1 ? await_end(b, lane) : 0;
    }
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (add_window(b, lane) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return tell_end(b, lane);
}

static int add_verify(bench_pe *b, void *arg)
{
    atomic_lane *lane = arg;
    uint64_t got = uf_signal_fetch(lane->word);
    if (b->pe == 1 && got != lane->added)
        return bench_fail(b, "the word holds %llu after %llu adds and a quiet", (unsigned long long)got,
                          (unsigned long long)lane->added);
    return 0;
}

static int add_row(bench_pe *b, bench_lane *lane, report_metric metric, uint64_t inflight)
{
    report_row row = {.bytes = 8, .inflight = (uint32_t)inflight, .peers = (uint32_t)b->n_pes - 1, .metric = metric};
    snprintf(row.bench, sizeof row.bench, "atomic");
    snprintf(row.fabric, sizeof row.fabric, "%s", b->fabric);
    snprintf(row.policy, sizeof row.policy, "%s", lane->name);
    snprintf(row.unit, sizeof row.unit, metric == REPORT_LATENCY ? "us" : "1/s");
    for (size_t i = 0; i < lane->samples.n; i++) {
        double step = lane->samples.values[i];
        lane->samples.values[i] = metric == REPORT_LATENCY ? step / 1e3 : step > 0 ? (double)inflight * 1e9 / step : 0;
    }
    stats_summarize(&lane->samples, &row);
    return bench_row_add(b, &row);
}

int bench_atomic_main(bench_pe *b)
{
    uint64_t *words, rounds;
    if (b->n_pes < 2)
        return bench_fail(b, "atomic needs at least one peer");
    if (b->pe == 0)
        atomic_store(&b->shared->total, 1000);
    if (bench_world_open(b, 0) != 0)
        return -1;
    int rc = uf_signal_alloc(b->world, 4, UF_SIGNAL_MIXED, &words);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_signal_alloc");
    uf_ctx *ctx = uf_ctx_default(b->world);
    atomic_lane fetch = {.ctx = ctx, .word = &words[0], .done = &words[1], .window = 1};
    atomic_lane add = {.ctx = ctx, .word = &words[2], .done = &words[3], .window = b->options->window};
    bench_lane lanes[] = {{.name = "fetch-add", .slice = fetch_add_slice, .arg = &fetch},
                          {.name = "add", .slice = add_slice, .verify = add_verify, .arg = &add}};
    rc = bench_interleave(b, lanes, 2, &rounds);
    if (rc == 0)
        rc = add_row(b, &lanes[0], REPORT_LATENCY, 1);
    if (rc == 0)
        rc = add_row(b, &lanes[1], REPORT_RATE, add.window);
    bench_lanes_free(lanes, 2);
    return rc;
}
