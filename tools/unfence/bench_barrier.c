/* bench_barrier.c - `unfence bench barrier`: how long uf_barrier and uf_sync take with n PEs.
 *
 * Checked: each PE writes the number of its step to shared memory before it enters, and looks at a neighbour's after it left,
 * at every sixteenth step, so that looking does not become part of what is measured. */
#include "bench.h"

#define LOOK_EVERY 16

typedef struct barrier_lane {
    int (*call)(uf_team *team);
    uint64_t step;
} barrier_lane;

static int check_neighbour(bench_pe *b, uint64_t step)
{
    int neighbour = (b->pe + 1) % b->n_pes;
    uint64_t theirs = atomic_load_explicit(&b->shared->each[neighbour].step, memory_order_acquire);
    if (theirs < step)
        return bench_fail(b, "left barrier %llu while PE %d was still before it, at %llu", (unsigned long long)step, neighbour,
                          (unsigned long long)theirs);
    return 0;
}

static int barrier_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    barrier_lane *lane = arg;
    uf_team *team = uf_team_world(b->world);
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        bool look = i % LOOK_EVERY == 0;
        if (look)
            atomic_store_explicit(&b->shared->each[b->pe].step, ++lane->step, memory_order_release);
        int rc = lane->call(team);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "the barrier");
        if (look && check_neighbour(b, lane->step) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

/* The steps of the two lanes share one word a PE: it starts again before each slice of the other. */
static int barrier_verify(bench_pe *b, void *arg)
{
    barrier_lane *lane = arg;
    lane->step = 0;
    if (bench_sync(b) != 0)
        return -1;
    atomic_store(&b->shared->each[b->pe].step, 0);
    return 0;
}

int bench_barrier_main(bench_pe *b)
{
    uint64_t rounds;
    if (b->pe == 0)
        atomic_store(&b->shared->total, 1000);
    if (bench_world_open(b, 0) != 0)
        return -1;
    barrier_lane barrier = {.call = uf_barrier}, sync = {.call = uf_sync};
    bench_lane lanes[] = {{.name = "barrier", .slice = barrier_slice, .verify = barrier_verify, .arg = &barrier},
                          {.name = "sync", .slice = barrier_slice, .verify = barrier_verify, .arg = &sync}};
    int rc = bench_interleave(b, lanes, 2, &rounds);
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        report_row row = {.inflight = 1, .peers = (uint32_t)b->n_pes - 1, .metric = REPORT_LATENCY};
        snprintf(row.bench, sizeof row.bench, "barrier");
        snprintf(row.fabric, sizeof row.fabric, "%s", b->fabric);
        snprintf(row.policy, sizeof row.policy, "%s", lanes[i].name);
        snprintf(row.unit, sizeof row.unit, "us");
        for (size_t k = 0; k < lanes[i].samples.n; k++)
            lanes[i].samples.values[k] /= 1e3;
        stats_summarize(&lanes[i].samples, &row);
        rc = bench_row_add(b, &row);
    }
    bench_lanes_free(lanes, 2);
    return rc;
}
