/* bench_floor_none.c - stands in for bench_floor_ofi.c in builds without libfabric: says so, measures nothing. */
#include "bench_floor.h"

int bench_floor_ofi_open(bench_pe *b, const char *provider, uint64_t max_bytes, uint64_t window, bench_ofi_floor **floor)
{
    (void)max_bytes;
    (void)window;
    (void)floor;
    return bench_fail(b, "this build has no libfabric, so there is no floor for %s", provider);
}

void bench_floor_ofi_close(bench_ofi_floor *floor)
{
    (void)floor;
}

void bench_floor_ofi_size(bench_ofi_floor *floor, uint64_t bytes, uint64_t window)
{
    (void)window;
    (void)floor;
    (void)bytes;
}

int bench_floor_ofi_ping_pong(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    (void)arg;
    (void)iterations;
    (void)meter;
    return bench_fail(b, "this build has no libfabric");
}

int bench_floor_ofi_stream(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    return bench_floor_ofi_ping_pong(b, arg, iterations, meter);
}
