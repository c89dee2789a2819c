/* ring_walk.c - see ring_walk.h. */
#include "support/ring_walk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 3000, MOST_PARTS = 3 };

static uint64_t mix(uint64_t v)
{
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* A number below `below` that depends on the arguments alone. */
static uint32_t pick(uint64_t seed, uint64_t a, uint64_t b, uint32_t below)
{
    return (uint32_t)((mix(mix(mix(seed) ^ a) ^ b) >> 32) % below);
}

static unsigned char byte_of(uint64_t tag, size_t i)
{
    return (unsigned char)(mix(tag ^ i >> 3) >> (i & 7) * 8);
}

static void fill(unsigned char *p, uint64_t tag, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(tag, i);
}

static int is_filled(ep_pe *pe, const void *at, uint64_t tag, size_t n, const char *what, int number, int origin)
{
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)at)[i] != byte_of(tag, i)) {
            ep_pe_fail(pe, "%s %d: byte %zu of %zu from PE %d is wrong", what, number, i, n, origin);
            return 0;
        }
    return 1;
}

/* The turns of others, and time, come with a wait. */
static void let_others_go(ep_pe *pe)
{
    const uint64_t never = 0;
    uf_wait(pe->world, &never, UF_GE, 1, 1);
}

/* A while of computing, in which only the network moves: some turns or none. */
static void compute(ep_pe *pe, uint64_t dice)
{
    for (uint32_t i = pick(dice, 1, 1, 4) ? 0 : pick(dice, 2, 2, 6); i > 0; i--)
        let_others_go(pe);
}

/* A team of all PEs in an order that the seed gives. */
static uf_team *team_of(ep_pe *pe, uint64_t seed)
{
    int order[64];
    uf_team *team = NULL;
    for (int i = 0; i < pe->n_pes; i++) {
        int at = (int)pick(seed, 77, (uint64_t)i, (uint32_t)i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    ep_pe_ok(pe, uf_team_create(uf_team_world(pe->world), order, pe->n_pes, &team), "uf_team_create");
    return team;
}

/* ---------------------------------------------------------------- rotations */

typedef struct rotation {
    uint64_t seed;
    int round, n_parts, causal;
} rotation;

static size_t size_of(const rotation *r, int origin, int part)
{
    uint64_t key = (uint64_t)r->round << 16 | (uint64_t)part;
    if (pick(r->seed, key, (uint64_t)origin, 5) == 0)
        return 0;
    return pick(r->seed, key, 1000 + (uint64_t)origin, MOST_BYTES + 1);
}

static uint64_t tag_of(const rotation *r, int origin, int part)
{
    return mix(r->seed) ^ (uint64_t)r->round << 40 ^ (uint64_t)origin << 20 ^ (uint64_t)part << 56;
}

/* causal 1: PE needs what came before it. 2: some pairs that a seed gives. */
static int needs(const void *arg, int pe, int origin)
{
    const rotation *r = arg;
    if (r->causal == 1)
        return origin <= pe;
    return r->causal == 0 || pick(r->seed, (uint64_t)r->round, (uint64_t)(pe * 64 + origin), 3) == 0;
}

static int check_block(ep_pe *pe, const rotation *r, const uf_ring_block *b, int origin)
{
    for (int i = 0; i < r->n_parts && !pe->failed; i++)
        is_filled(pe, b->part[i], tag_of(r, origin, i), b->bytes[i], "rotation", r->round, origin);
    return !pe->failed;
}

/* One hop: what comes, goes on and is looked at. False: the PE has failed. */
static int hop_once(ep_pe *pe, uf_ring *ring, const rotation *r, const uf_ring_route *route, int me, int hop, uf_ring_block *held)
{
    int origin = uf_ring_origin(route, me, hop);
    size_t bytes[UF_RING_PARTS] = {0};
    for (int i = 0; i < r->n_parts; i++)
        bytes[i] = size_of(r, origin, i);
    if (hop > 0 && !uf_ring_receives(route, me, hop))
        return 1;
    if (hop > 0 && !ep_pe_ok(pe, uf_ring_finish(ring, route->direction, bytes, held, 0), "uf_ring_finish"))
        return 0;
    if (uf_ring_sends(route, me, hop) && !ep_pe_ok(pe, uf_ring_start(ring, route->direction, held, 0), "uf_ring_start"))
        return 0;
    int wanted = needs(route->arg, me, origin);
    if (wanted && !check_block(pe, r, held, origin))
        return 0;
    compute(pe, r->seed ^ (uint64_t)(r->round * 100 + hop) ^ (uint64_t)me << 32);
    if (wanted && !check_block(pe, r, held, origin)) /* nothing is written over what is held */
        return 0;
    return hop == 0 || ep_pe_ok(pe, uf_ring_release(ring, route->direction, 0), "uf_ring_release");
}

int ring_walk_rotations(ep_pe *pe, uint64_t seed, int rounds)
{
    uf_team *team = team_of(pe, seed);
    uf_ring *ring = NULL;
    rotation r = {seed, 0, 1 + (int)pick(seed, 1, 0, MOST_PARTS), 0};
    uf_ring_options o = {.size = sizeof o, .n_parts = r.n_parts, .n_slots = 2 + (int)pick(seed, 2, 0, 3)};
    for (int i = 0; i < r.n_parts; i++)
        o.part_bytes[i] = MOST_BYTES;
    unsigned char *own = calloc(MOST_PARTS, MOST_BYTES + 64);
    if (pe->failed || !own || !ep_pe_ok(pe, uf_ring_create(team, &o, &ring), "uf_ring_create")) {
        free(own);
        return 0;
    }
    int me = uf_team_pe(team);
    for (r.round = 0; r.round < rounds && !pe->failed; r.round++) {
        r.causal = (int)pick(seed, 3, (uint64_t)r.round, 3);
        uf_ring_route route = {.n_pes = pe->n_pes,
                               .hops = pe->n_pes - (int)pick(seed, 4, (uint64_t)r.round, 2),
                               .direction = (uf_ring_direction)pick(seed, 5, (uint64_t)r.round, 2),
                               .needs = r.causal ? needs : NULL,
                               .arg = &r};
        uf_ring_block held = {{NULL}, {0}};
        for (int i = 0; i < r.n_parts; i++) {
            unsigned char *part = own + (size_t)i * (MOST_BYTES + 64);
            held.bytes[i] = size_of(&r, me, i);
            held.part[i] = held.bytes[i] ? part : NULL;
            fill(part, tag_of(&r, me, i), held.bytes[i]);
        }
        for (int hop = 0; hop <= route.hops && hop_once(pe, ring, &r, &route, me, hop, &held); hop++)
            ;
        if (!pe->failed)
            ep_pe_ok(pe, uf_ring_flush(ring), "uf_ring_flush");
    }
    int rc = uf_ring_destroy(ring);
    if (!pe->failed && ep_pe_ok(pe, rc, "uf_ring_destroy"))
        ep_pe_ok(pe, uf_team_destroy(team), "uf_team_destroy");
    free(own);
    return !pe->failed;
}

/* ---------------------------------------------------------------- streams */

typedef struct lane {
    uf_ring_direction direction;
    int to, from; /* in the team */
    int sent, received, held;
    uf_ring_block blocks[UF_RING_SLOTS]; /* received and held, by number modulo slots */
} lane;

static size_t stream_size(uint64_t seed, const lane *l, int sender, int number)
{
    return pick(seed, (uint64_t)number << 8 | (uint64_t)sender, 40 + (uint64_t)l->direction, MOST_BYTES);
}

static uint64_t stream_tag(uint64_t seed, const lane *l, int sender, int number)
{
    return mix(seed + 9) ^ (uint64_t)number << 32 ^ (uint64_t)(sender * 2 + (int)l->direction);
}

/* Starts or finishes one block if that can be done at once. What is sent lies in `source`, a place for each block. */
static void move(ep_pe *pe, uf_ring *ring, lane *l, uint64_t seed, int me, int blocks, int slots, unsigned char *source)
{
    if (l->sent < blocks) {
        unsigned char *at = source + ((size_t)l->direction * (size_t)blocks + (size_t)l->sent) * MOST_BYTES;
        uf_ring_block b = {{at}, {stream_size(seed, l, me, l->sent)}};
        int rc = uf_ring_start(ring, l->direction, &b, UF_NOWAIT);
        if (rc != UF_EAGAIN && ep_pe_ok(pe, rc, "uf_ring_start"))
            l->sent++;
    }
    if (!pe->failed && l->received < blocks && l->received - l->held < slots) {
        size_t bytes = stream_size(seed, l, l->from, l->received);
        int rc = uf_ring_finish(ring, l->direction, &bytes, &l->blocks[l->received % slots], UF_NOWAIT);
        if (rc != UF_EAGAIN && ep_pe_ok(pe, rc, "uf_ring_finish"))
            l->received++;
    }
}

int ring_walk_streams(ep_pe *pe, uint64_t seed, int blocks)
{
    uf_team *team = uf_team_world(pe->world);
    uf_ring *ring = NULL;
    int me = pe->pe, n = pe->n_pes, slots = 2 + (int)pick(seed, 6, 0, 4);
    uf_ring_options o = {.size = sizeof o, .n_slots = slots, .part_bytes = {MOST_BYTES}};
    unsigned char *source = malloc((size_t)(2 * blocks) * MOST_BYTES);
    if (!source || !ep_pe_ok(pe, uf_ring_create(team, &o, &ring), "uf_ring_create")) {
        free(source);
        return 0;
    }
    lane lanes[2] = {{.direction = UF_RING_FORWARD, .to = (me + 1) % n, .from = (me + n - 1) % n},
                     {.direction = UF_RING_REVERSE, .to = (me + n - 1) % n, .from = (me + 1) % n}};
    for (int i = 0; i < 2 * blocks; i++) {
        const lane *l = &lanes[i / blocks];
        fill(source + (size_t)i * MOST_BYTES, stream_tag(seed, l, me, i % blocks), stream_size(seed, l, me, i % blocks));
    }
    uint64_t turn = 0;
    while (!pe->failed &&
           (lanes[0].held < blocks || lanes[1].held < blocks || lanes[0].sent < blocks || lanes[1].sent < blocks)) {
        lane *l = &lanes[pick(seed ^ (uint64_t)me, 8, turn++, 2)];
        uint32_t lazy = pick(seed ^ (uint64_t)me, 10, turn, 4);
        move(pe, ring, l, seed, me, blocks, slots, source);
        let_others_go(pe);
        if (pe->failed || l->held == l->received || (lazy && l->received - l->held < slots && l->received < blocks))
            continue;
        uf_ring_block *b = &l->blocks[l->held % slots];
        is_filled(pe, b->part[0], stream_tag(seed, l, l->from, l->held), b->bytes[0], "stream", l->held, l->from);
        int rc = pe->failed ? UF_EINVAL : uf_ring_release(ring, l->direction, lazy & 1 ? UF_NOWAIT : 0);
        if (!pe->failed && rc != UF_EAGAIN && ep_pe_ok(pe, rc, "uf_ring_release"))
            l->held++;
    }
    int rc = uf_ring_destroy(ring);
    if (!pe->failed)
        ep_pe_ok(pe, rc, "uf_ring_destroy");
    free(source);
    return !pe->failed;
}

/* ---------------------------------------------------------------- sums that come home */

int ring_walk_sums(ep_pe *pe, uint64_t seed, int rounds)
{
    enum { N = 200 };
    uf_ring *ring = NULL;
    uf_ring_options o = {.size = sizeof o, .directions = 1 << UF_RING_REVERSE, .part_bytes = {N * sizeof(uint64_t)}};
    if (!ep_pe_ok(pe, uf_ring_create(uf_team_world(pe->world), &o, &ring), "uf_ring_create"))
        return 0;
    uint64_t sums[2][N]; /* two, since one may still leave while the next is made */
    int n = pe->n_pes;
    uf_ring_route route = {.n_pes = n, .hops = n, .direction = UF_RING_REVERSE};
    for (int round = 0; round < rounds && !pe->failed; round++) {
        uf_ring_block in = {{NULL}, {0}};
        for (int hop = 0; hop <= n && !pe->failed; hop++) {
            int origin = uf_ring_origin(&route, pe->pe, hop);
            if (hop > 0 && !ep_pe_ok(pe, uf_ring_finish(ring, UF_RING_REVERSE, NULL, &in, 0), "uf_ring_finish"))
                break;
            if (hop > 1 && !ep_pe_ok(pe, uf_ring_flush(ring), "uf_ring_flush"))
                break;
            uint64_t *out = sums[hop % 2];
            const uint64_t *before = hop ? in.part[0] : NULL;
            for (int i = 0; i < N && hop < n; i++)
                out[i] = (before ? before[i] : 0) + mix(seed ^ (uint64_t)(pe->pe * 1000 + origin) ^ (uint64_t)round << 32) +
                         (uint64_t)i;
            for (int i = 0; i < N && hop == n && !pe->failed; i++) {
                uint64_t wanted = 0;
                for (int p = 0; p < n; p++)
                    wanted += mix(seed ^ (uint64_t)(p * 1000 + origin) ^ (uint64_t)round << 32) + (uint64_t)i;
                if (before && before[i] != wanted)
                    ep_pe_fail(pe, "sum %d: element %d came home wrong", round, i);
            }
            if (hop < n) {
                uf_ring_block b = {{out}, {sizeof sums[0]}};
                ep_pe_ok(pe, uf_ring_start(ring, UF_RING_REVERSE, &b, 0), "uf_ring_start");
            }
            if (hop > 0 && !pe->failed)
                ep_pe_ok(pe, uf_ring_release(ring, UF_RING_REVERSE, 0), "uf_ring_release");
        }
        if (!pe->failed)
            ep_pe_ok(pe, uf_ring_flush(ring), "uf_ring_flush");
    }
    int rc = uf_ring_destroy(ring);
    if (!pe->failed)
        ep_pe_ok(pe, rc, "uf_ring_destroy");
    return !pe->failed;
}

/* ---------------------------------------------------------------- tiles */

static uint64_t share_tag(uint64_t seed, int step, int source, int owner)
{
    return mix(seed + 21) ^ (uint64_t)step << 32 ^ (uint64_t)(source * 64 + owner);
}

/* Elements of a share in floats: odd, sometimes none. */
static size_t share_floats(uint64_t seed, int pe)
{
    return pick(seed, 30, (uint64_t)pe, 4) == 0 ? 0 : pick(seed, 31, (uint64_t)pe, 900);
}

static int gather_step(ep_pe *pe, uf_tiles *t, uint64_t seed, int step, unsigned char *own)
{
    size_t mine = uf_tiles_bytes(t, pe->pe);
    unsigned char *place = uf_tiles_next(t);
    int in_place = place && pick(seed, 32, (uint64_t)step, 2);
    unsigned char *src = in_place ? place + uf_tiles_offset(t, pe->pe) : own;
    fill(src, share_tag(seed, step, pe->pe, 0), mine);
    if (!ep_pe_ok(pe, uf_tiles_start(t, in_place ? NULL : src), "uf_tiles_start"))
        return 0;
    int some = (int)pick(seed, 33, (uint64_t)(step * 64 + pe->pe), 3); /* 0: waits for no tile itself */
    for (int turn = 0; some && turn < pe->n_pes; turn++) {
        int from = (pe->pe + turn * (some == 2 ? 1 : pe->n_pes - 1)) % pe->n_pes;
        for (int tile = 0; tile < uf_tiles_count(t, from) && !pe->failed; tile++) {
            const void *at = NULL;
            size_t bytes = 0, before = 0;
            if (!ep_pe_ok(pe, uf_tiles_wait(t, from, tile, &at, &bytes), "uf_tiles_wait"))
                return 0;
            compute(pe, seed ^ (uint64_t)(step * 64 + tile) ^ (uint64_t)pe->pe << 40); /* others may be a step ahead meanwhile */
            before = (size_t)((const unsigned char *)at - (unsigned char *)place) - uf_tiles_offset(t, from);
            for (size_t i = 0; i < bytes && !pe->failed; i++)
                if (((const unsigned char *)at)[i] != byte_of(share_tag(seed, step, from, 0), before + i))
                    ep_pe_fail(pe, "gather %d: tile %d of PE %d is wrong at byte %zu", step, tile, from, i);
        }
    }
    return !pe->failed && ep_pe_ok(pe, uf_tiles_finish(t), "uf_tiles_finish");
}

/* Small whole numbers: their sums are exact in any order, here and in bf16. */
static float addend(uint64_t seed, int step, int source, size_t at)
{
    return (float)pick(seed + 5, (uint64_t)(step * 64 + source), at, 8);
}

static int reduce_step(ep_pe *pe, uf_tiles *t, uint64_t seed, int step, float *src, float *out)
{
    size_t total = uf_tiles_offset(t, pe->n_pes - 1) + uf_tiles_bytes(t, pe->n_pes - 1), first = uf_tiles_offset(t, pe->pe) / 4;
    for (size_t i = 0; i < total / 4; i++)
        src[i] = addend(seed, step, pe->pe, i);
    if (!ep_pe_ok(pe, uf_tiles_start(t, src), "uf_tiles_start"))
        return 0;
    size_t done = 0;
    for (int tile = 0; tile < uf_tiles_count(t, pe->pe) && !pe->failed; tile++) {
        size_t bytes = 0;
        if (!ep_pe_ok(pe, uf_tiles_sum(t, tile, UF_TILES_F32, out), "uf_tiles_sum") ||
            !ep_pe_ok(pe, uf_tiles_wait(t, pe->pe, tile, NULL, &bytes), "uf_tiles_wait"))
            return 0;
        for (size_t i = 0; i < bytes / 4 && !pe->failed; i++) {
            float wanted = 0;
            for (int p = 0; p < pe->n_pes; p++)
                wanted += addend(seed, step, p, first + done + i);
            if (out[i] != wanted)
                ep_pe_fail(pe, "reduce-scatter %d: element %zu of tile %d is wrong", step, i, tile);
        }
        done += bytes / 4;
    }
    return !pe->failed && ep_pe_ok(pe, uf_tiles_finish(t), "uf_tiles_finish");
}

int ring_walk_tiles(ep_pe *pe, uint64_t seed, int steps)
{
    uf_tiles *gather = NULL, *reduce = NULL;
    uf_tiles_options o = {.size = sizeof o,
                          .kind = UF_TILES_GATHER,
                          .n_buffers = 1 + (int)pick(seed, 34, 0, 3),
                          .bytes = pick(seed, 35, (uint64_t)pe->pe, 4) ? pick(seed, 36, (uint64_t)pe->pe, 5000) : 0,
                          .tile_bytes = 1 + pick(seed, 37, 0, 1500),
                          .ahead = (int)pick(seed, 38, 0, 3)};
    uf_tiles_options s = o;
    s.kind = UF_TILES_REDUCE_SCATTER;
    s.bytes = share_floats(seed, pe->pe) * sizeof(float);
    s.tile_bytes = 4 * (1 + (size_t)pick(seed, 39, 0, 300));
    size_t total = 0;
    for (int p = 0; p < pe->n_pes; p++)
        total += share_floats(seed, p) * sizeof(float);
    unsigned char *own = malloc(o.bytes + 1);
    float *src = malloc(total + 4), *out = malloc(s.tile_bytes);
    if (own && src && out && ep_pe_ok(pe, uf_tiles_create(uf_team_world(pe->world), &o, &gather), "uf_tiles_create") &&
        ep_pe_ok(pe, uf_tiles_create(uf_team_world(pe->world), &s, &reduce), "uf_tiles_create"))
        for (int step = 0; step < steps; step++)
            if (!gather_step(pe, gather, seed, step, own) || !reduce_step(pe, reduce, seed, step, src, out))
                break;
    int rc = uf_tiles_destroy(reduce), other = uf_tiles_destroy(gather);
    if (!pe->failed)
        ep_pe_ok(pe, rc ? rc : other, "uf_tiles_destroy");
    free(own);
    free(src);
    free(out);
    return !pe->failed;
}

int ring_walk(ep_pe *pe, uint64_t seed)
{
    return ring_walk_rotations(pe, seed, 6) && ring_walk_streams(pe, seed, 12) && ring_walk_sums(pe, seed, 4) &&
           ring_walk_tiles(pe, seed, 5);
}
