/* bench_floor.c - the machine's own speed: cache lines between two cores, memcpy by one and by all processes, bare libfabric. */
#include "bench_floor.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#define COPY_AREA (64u << 20) /* well above the last cache level of one core's share */

const char *bench_ofi_provider(const char *fabric)
{
    return strncasecmp(fabric, "ofi:", 4) == 0 ? fabric + 4 : NULL;
}

/* -------------------------------------------------------------- cache lines */

static void line_send(bench_floor_lines *lines, int to, uint64_t number)
{
    unsigned char *payload = lines->payload[to][number % 8];
    memcpy(payload, &number, sizeof number);
    /* Release: the payload line is written before the flag line, pairs with line_await's acquire. */
    atomic_store_explicit(&lines->flag[to].value, number, memory_order_release);
}

/* At the flag before somebody else is let run: longer than a round trip between two cores, so that the floor is the caches' alone. */
enum { FLOOR_LOOKS = 4096 };

static int line_await(bench_pe *b, bench_floor_lines *lines, uint64_t number, uint64_t start)
{
    _Atomic uint64_t *flag = &lines->flag[b->pe].value;
    for (uint64_t round = 0; atomic_load_explicit(flag, memory_order_acquire) < number; round++) {
        if (round > FLOOR_LOOKS && bench_relax(b, round, start) != 0)
            return -1;
    }
    uint64_t got;
    memcpy(&got, lines->payload[b->pe][number % 8], sizeof got);
    return got == number ? 0 : bench_fail(b, "the floor's own payload line is behind its flag line");
}

int bench_floor_line_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_line_floor *f = arg;
    bench_floor_lines *lines = &b->shared->lines;
    uint64_t start = uf_clock_ns();
    if (b->pe > 1)
        return 0;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t number = ++f->round;
        if (b->pe == 0)
            line_send(lines, 1, number);
        if (line_await(b, lines, number, start) != 0)
            return -1;
        if (b->pe == 1)
            line_send(lines, 0, number);
        bench_meter_step(meter);
    }
    return 0;
}

/* -------------------------------------------------------------- memcpy */

static void copy_window(bench_copy_floor *f, uint64_t stride)
{
    for (uint64_t slot = 0; slot < f->window; slot++) {
        unsigned char *src = f->src + slot * stride;
        f->number++;
        if (f->stamped)
            bench_stamp(src, f->bytes, f->number);
        memcpy(f->dst + slot * stride, src, f->bytes);
        /* The copy is wanted although nobody here reads it. */
        __asm__ volatile("" ::"r"(f->dst) : "memory");
    }
}

int bench_floor_copy_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_copy_floor *f = arg;
    uint64_t stride = (f->bytes + 63) & ~63ull, repeats = f->repeats > 0 ? f->repeats : 1;
    bench_meter_start(meter);
    for (uint64_t i = 0; b->pe < f->active && i < iterations; i++) {
        for (uint64_t repeat = 0; repeat < repeats; repeat++)
            copy_window(f, stride);
        /* The slowest process decides: what a step costs is known when all are through. */
        if (f->active > 1 && bench_sync(b) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

/* -------------------------------------------------------------- the command */

static report_row floor_row(const bench_pe *b, const char *fabric, const char *policy)
{
    report_row row = {.peers = (uint32_t)b->n_pes - 1, .inflight = 1};
    snprintf(row.bench, sizeof row.bench, "floor");
    snprintf(row.fabric, sizeof row.fabric, "%s", fabric);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return row;
}

static int add_latency(bench_pe *b, bench_lane *lane, report_row row)
{
    for (size_t i = 0; i < lane->samples.n; i++)
        lane->samples.values[i] /= 1e3;
    row.metric = REPORT_LATENCY;
    snprintf(row.unit, sizeof row.unit, "us");
    stats_summarize(&lane->samples, &row);
    return bench_row_add(b, &row);
}

/* `bytes` moved a step, `processes` at once. */
static int add_bandwidth(bench_pe *b, bench_lane *lane, double bytes, report_row row)
{
    for (size_t i = 0; i < lane->samples.n; i++)
        lane->samples.values[i] = bytes * 1e3 / lane->samples.values[i];
    row.metric = REPORT_BANDWIDTH;
    snprintf(row.unit, sizeof row.unit, "MB/s");
    stats_summarize(&lane->samples, &row);
    return bench_row_add(b, &row);
}

static int measure_lines(bench_pe *b)
{
    bench_line_floor line = {0};
    bench_lane lane = {.name = "cache-line", .slice = bench_floor_line_slice, .arg = &line, .divide = 2};
    uint64_t rounds;
    int rc = bench_interleave(b, &lane, 1, &rounds);
    if (rc == 0) {
        report_row row = floor_row(b, "local", "cache-line");
        row.bytes = 8;
        rc = add_latency(b, &lane, row);
    }
    bench_lanes_free(&lane, 1);
    return rc;
}

static int measure_copies(bench_pe *b, unsigned char *area, uint64_t bytes)
{
    uint64_t window = bench_window(b->options, bytes);
    if (bytes > COPY_AREA / 2)
        return bench_fail(b, "--sizes: %llu bytes are more than the %u MiB that the floor copies", (unsigned long long)bytes,
                          COPY_AREA >> 21);
    bench_copy_floor one = {.dst = area, .src = area + COPY_AREA / 2, .bytes = bytes, .window = window, .active = 1};
    bench_copy_floor all = one;
    all.active = b->n_pes;
    bench_lane lanes[] = {{.name = "memcpy", .slice = bench_floor_copy_slice, .arg = &one},
                          {.name = "memcpy-all", .slice = bench_floor_copy_slice, .arg = &all}};
    uint64_t rounds;
    int rc = bench_interleave(b, lanes, 2, &rounds);
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        report_row row = floor_row(b, "local", lanes[i].name);
        row.bytes = bytes;
        row.inflight = (uint32_t)window;
        rc = add_bandwidth(b, &lanes[i], (double)(bytes * window) * (i == 0 ? 1 : b->n_pes), row);
    }
    bench_lanes_free(lanes, 2);
    return rc;
}

static int measure_memory(bench_pe *b)
{
    int rc = measure_lines(b);
    unsigned char *area = mmap(NULL, COPY_AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        return bench_fail(b, "no memory: %u bytes to copy", COPY_AREA);
    memset(area, 1, COPY_AREA);
    for (size_t i = 0; rc == 0 && i < b->options->sizes.n; i++) {
        if (b->options->sizes.values[i] >= 1024)
            rc = measure_copies(b, area, b->options->sizes.values[i]);
    }
    munmap(area, COPY_AREA);
    return rc;
}

static int measure_network_size(bench_pe *b, bench_ofi_floor *floor, uint64_t bytes)
{
    bench_lane lanes[] = {{.name = "ping-pong", .slice = bench_floor_ofi_ping_pong, .arg = floor, .divide = 2},
                          {.name = "stream", .slice = bench_floor_ofi_stream, .arg = floor}};
    uint64_t rounds, window = bench_window(b->options, bytes);
    bench_floor_ofi_size(floor, bytes, window);
    int rc = bench_interleave(b, lanes, 2, &rounds);
    report_row row = floor_row(b, b->fabric, "writedata");
    row.bytes = bytes;
    if (rc == 0)
        rc = add_latency(b, &lanes[0], row);
    row.inflight = (uint32_t)window;
    if (rc == 0)
        rc = add_bandwidth(b, &lanes[1], (double)(bytes * window), row);
    bench_lanes_free(lanes, 2);
    return rc;
}

static uint64_t largest_size(const bench_options *options)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < options->sizes.n; i++)
        largest = options->sizes.values[i] > largest ? options->sizes.values[i] : largest;
    return largest;
}

static int measure_network(bench_pe *b, const char *provider)
{
    bench_ofi_floor *floor;
    if (bench_floor_ofi_open(b, provider, largest_size(b->options), b->options->window, &floor) != 0)
        return -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < b->options->sizes.n; i++)
        rc = measure_network_size(b, floor, b->options->sizes.values[i]);
    bench_floor_ofi_close(floor);
    return rc;
}

int bench_floor_main(bench_pe *b)
{
    const char *provider = bench_ofi_provider(b->fabric);
    if (b->pe == 0)
        atomic_store(&b->shared->total, (b->options->sizes.n + 1) * 1000);
    return provider ? measure_network(b, provider) : measure_memory(b);
}
