/* bench_ring.c - `unfence bench ring`: an all-gather between all PEs as a ring and by tiles, against what the machine can move.
 *
 * The floor moves as many bytes in the same run: over mapped memory every PE copies what it would send, over a network pairs of PEs stream over bare
 * libfabric (so the number of PEs must be even there; else there is no floor). A step is one whole all-gather: every block carries its step
 * in its first and last words, which are looked at each time; all of what the last step of a slice brought is looked at after it. */
#include "bench_floor.h"
#include "unfence/ring.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TILES = 8, SLOTS = 3, MOST = 8 << 20, COPY_AREA = 32 << 20 }; /* the last: beyond the caches */

typedef struct ring_run {
    uint64_t bytes;
    uf_ring *ring;
    uf_tiles *tiles;
    unsigned char *own; /* symmetric: the block of this PE, as a ring sends it */
    uint64_t rings, gathers;
    bench_ofi_floor *ofi; /* NULL on local */
    unsigned char *area;  /* of the floor's copies: to the first half, from the second */
    uint64_t copied;
    const unsigned char *last[2][BENCH_MAX_PES]; /* [ring, tiles][origin] where the last step's blocks are; NULL: overwritten */
} ring_run;

static int check_block(bench_pe *b, ring_run *r, int way, const unsigned char *block, int origin, uint64_t step)
{
    r->last[way][origin] = block;
    if (!bench_stamp_is(block, r->bytes, step))
        return bench_fail(b, "the block of PE %d is not that of step %llu", origin, (unsigned long long)step);
    return 0;
}

/* After a slice, when nobody sends: slots and areas are as the last step left them. */
static int check_last(bench_pe *b, const ring_run *r, int way, uint64_t step)
{
    for (int pe = 0; pe < b->n_pes; pe++)
        if (r->last[way][pe] && bench_pattern_check(b, r->last[way][pe], r->bytes, (uint64_t)pe, step) != 0)
            return -1;
    return 0;
}

/* ---------------------------------------------------------------- ring */

static int ring_step(bench_pe *b, ring_run *r)
{
    const uf_ring_route route = {.n_pes = b->n_pes, .hops = b->n_pes - 1, .direction = UF_RING_FORWARD};
    uf_ring_block held = {{r->own}, {r->bytes}};
    bench_stamp(r->own, r->bytes, ++r->rings);
    int rc = UF_OK;
    for (int hop = 0; !rc && hop <= route.hops; hop++) {
        if (hop > 0)
            rc = uf_ring_finish(r->ring, UF_RING_FORWARD, NULL, &held, 0);
        if (!rc && hop < route.hops)
            rc = uf_ring_start(r->ring, UF_RING_FORWARD, &held, 0);
        int origin = uf_ring_origin(&route, b->pe, hop);
        if (!rc && hop > 0 && check_block(b, r, 0, held.part[0], origin, r->rings) != 0)
            return -1;
        if (hop + SLOTS <= route.hops)
            r->last[0][origin] = NULL;
        if (!rc && hop > 0)
            rc = uf_ring_release(r->ring, UF_RING_FORWARD, 0);
    }
    rc = rc ? rc : uf_ring_flush(r->ring);
    return rc ? bench_fail_library(b, rc, "a step of the ring") : 0;
}

static int ring_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (ring_step(b, arg) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

static int ring_verify(bench_pe *b, void *arg)
{
    return check_last(b, arg, 0, ((ring_run *)arg)->rings);
}

/* ---------------------------------------------------------------- tiles */

static int tiles_step(bench_pe *b, ring_run *r)
{
    unsigned char *area = uf_tiles_next(r->tiles);
    unsigned char *own = area + uf_tiles_offset(r->tiles, b->pe);
    bench_stamp(own, r->bytes, ++r->gathers);
    int rc = uf_tiles_start(r->tiles, NULL);
    for (int turn = 1; !rc && turn < b->n_pes; turn++) {
        int pe = (b->pe + turn) % b->n_pes;
        for (int tile = 0; !rc && tile < uf_tiles_count(r->tiles, pe); tile++)
            rc = uf_tiles_wait(r->tiles, pe, tile, NULL, NULL);
        if (!rc && check_block(b, r, 1, area + uf_tiles_offset(r->tiles, pe), pe, r->gathers) != 0)
            return -1;
    }
    rc = rc ? rc : uf_tiles_finish(r->tiles);
    return rc ? bench_fail_library(b, rc, "a step of the tiles") : 0;
}

static int tiles_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (tiles_step(b, arg) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

static int tiles_verify(bench_pe *b, void *arg)
{
    return check_last(b, arg, 1, ((ring_run *)arg)->gathers);
}

/* ---------------------------------------------------------------- the floor over mapped memory */

/* A step: as many copies as a PE sends blocks, through an area as large as `bench floor` takes, so that caches help no more than there. */
static int copy_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    ring_run *r = arg;
    uint64_t stride = (r->bytes + 63) & ~63ull, slots = COPY_AREA / stride;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        for (int k = 1; k < b->n_pes; k++) {
            unsigned char *to = r->area + r->copied++ % slots * stride;
            memcpy(to, to + COPY_AREA, r->bytes);
            /* The copy is wanted although nobody here reads it. */
            __asm__ volatile("" ::"r"(to) : "memory");
        }
        /* The slowest process decides: what a step costs is known when all are through. */
        if (bench_sync(b) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

/* ---------------------------------------------------------------- setting up */

static int open_ours(bench_pe *b, ring_run *r)
{
    const uf_ring_options ring = {
        .size = sizeof ring, .n_slots = SLOTS, .directions = 1 << UF_RING_FORWARD, .part_bytes = {r->bytes}};
    const uf_tiles_options tiles = {
        .size = sizeof tiles, .kind = UF_TILES_GATHER, .bytes = r->bytes, .tile_bytes = r->bytes / TILES + (r->bytes < TILES)};
    int rc = uf_ring_create(uf_team_world(b->world), &ring, &r->ring);
    rc = rc ? rc : uf_tiles_create(uf_team_world(b->world), &tiles, &r->tiles);
    rc = rc ? rc : uf_malloc(b->world, r->bytes, 0, (void **)&r->own);
    if (rc)
        return bench_fail_library(b, rc, "uf_ring_create, uf_tiles_create or uf_malloc");
    bench_pattern_fill(r->own, r->bytes, (uint64_t)b->pe);
    /* A share is made in place: in each of the two areas. */
    for (int step = 0; step < 2; step++) {
        unsigned char *area = uf_tiles_next(r->tiles);
        bench_pattern_fill(area + uf_tiles_offset(r->tiles, b->pe), r->bytes, (uint64_t)b->pe);
        if (tiles_step(b, r) != 0)
            return -1;
    }
    return 0;
}

static int close_ours(bench_pe *b, ring_run *r)
{
    int rc = uf_ring_destroy(r->ring);
    rc = rc ? rc : uf_tiles_destroy(r->tiles);
    rc = rc ? rc : uf_free(b->world, r->own);
    r->ring = NULL, r->tiles = NULL;
    return rc ? bench_fail_library(b, rc, "uf_ring_destroy, uf_tiles_destroy or uf_free") : 0;
}

/* Each PE sends its block and what it passes on: so many blocks, from a pair all that two PEs send. */
static uint64_t blocks_of(const bench_pe *b)
{
    return (uint64_t)b->n_pes - 1;
}

static int open_floor(bench_pe *b, ring_run *r, uint64_t most)
{
    uf_path_info path = {.size = sizeof path};
    if (bench_ofi_provider(b->fabric)) {
        int rc = uf_world_path(b->world, b->pe ? 0 : 1, &path); /* the floor is of the provider that the library took */
        if (rc)
            return bench_fail_library(b, rc, "uf_world_path");
        return b->n_pes % 2 ? 0 : bench_floor_ofi_open(b, path.provider, most, 2 * blocks_of(b), &r->ofi);
    }
    r->area = mmap(NULL, 2 * (size_t)COPY_AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->area == MAP_FAILED) {
        r->area = NULL;
        return bench_fail(b, "no memory: %zu bytes for the floor", 2 * (size_t)COPY_AREA);
    }
    memset(r->area, 1, 2 * (size_t)COPY_AREA);
    return 0;
}

/* ---------------------------------------------------------------- rows */

static report_row make_row(const bench_pe *b, const ring_run *r, const char *policy)
{
    report_row row = {.bytes = r->bytes, .inflight = 1, .peers = (uint32_t)b->n_pes - 1};
    snprintf(row.bench, sizeof row.bench, "ring");
    snprintf(row.fabric, sizeof row.fabric, "%s", b->fabric);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return row;
}

static int add_rows(bench_pe *b, const ring_run *r, bench_lane *lanes, size_t n, uint64_t rounds)
{
    double bytes = (double)r->bytes * (double)blocks_of(b) * b->n_pes;
    for (size_t i = 0; i < n; i++) {
        report_row row = make_row(b, r, lanes[i].name);
        row.metric = REPORT_BANDWIDTH;
        snprintf(row.unit, sizeof row.unit, "MB/s all PEs");
        for (size_t k = 0; k < lanes[i].samples.n; k++)
            lanes[i].samples.values[k] = bytes * 1e3 / lanes[i].samples.values[k];
        stats_summarize(&lanes[i].samples, &row);
        if (bench_row_add(b, &row) != 0)
            return -1;
    }
    for (size_t i = 0; n == 3 && i < 2; i++) {
        report_row row = make_row(b, r, lanes[i].name);
        row.metric = REPORT_RATIO;
        snprintf(row.unit, sizeof row.unit, "x");
        snprintf(row.against, sizeof row.against, "floor");
        if (bench_ratio(&lanes[i], &lanes[2], rounds, true, &row) != 0)
            return bench_fail(b, "no memory for ratios");
        if (bench_row_add(b, &row) != 0)
            return -1;
    }
    return 0;
}

static int measure(bench_pe *b, ring_run *r)
{
    uint64_t rounds;
    bench_lane lanes[3] = {{.name = "ring", .slice = ring_slice, .verify = ring_verify, .arg = r},
                           {.name = "tiles", .slice = tiles_slice, .verify = tiles_verify, .arg = r}};
    size_t n = r->ofi || r->area ? 3 : 2;
    if (r->ofi)
        bench_floor_ofi_size(r->ofi, r->bytes, 2 * blocks_of(b));
    lanes[2] = r->ofi ? (bench_lane){.name = "floor", .slice = bench_floor_ofi_stream, .arg = r->ofi}
                      : (bench_lane){.name = "floor", .slice = copy_slice, .arg = r};
    int rc = bench_interleave(b, lanes, n, &rounds);
    if (rc == 0)
        rc = b->pe == 0 ? add_rows(b, r, lanes, n, rounds) : 0;
    bench_lanes_free(lanes, n);
    return rc;
}

int bench_ring_main(bench_pe *b)
{
    const tool_numbers *sizes = &b->options->sizes;
    ring_run r = {0};
    uint64_t most = 0;
    for (size_t i = 0; i < sizes->n; i++)
        most = sizes->values[i] > most ? sizes->values[i] : most;
    if (b->pe == 0)
        atomic_store(&b->shared->total, 1000 * sizes->n);
    if (most > MOST)
        return bench_fail(b, "--sizes: blocks of at most %d bytes can be measured here", MOST);
    int rc = bench_world_open(b, most * (uint64_t)(2 * b->n_pes + 6) + (16u << 20));
    rc = rc ? rc : open_floor(b, &r, most);
    for (size_t i = 0; rc == 0 && i < sizes->n; i++) {
        r.bytes = sizes->values[i];
        r.rings = r.gathers = 0;
        memset(r.last, 0, sizeof r.last);
        rc = open_ours(b, &r);
        rc = rc ? rc : measure(b, &r);
        rc = rc ? rc : close_ours(b, &r);
    }
    bench_floor_ofi_close(r.ofi);
    if (r.area)
        munmap(r.area, 2 * (size_t)COPY_AREA);
    return rc;
}
