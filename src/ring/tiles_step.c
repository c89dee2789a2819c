/* tiles_step.c - the steps of an all-gather or reduce-scatter by tiles; tiles.c has the protocol.
 *
 * A step's tiles are sent in turns: in turn k PE i sends to i - k and hears from i + k, so at any moment each PE has one that sends to it. Sending never
 * waits for a peer's credit except in uf_tiles_finish; while a consumer waits for a tile, it waits for that credit as well, and goes on sending
 * when it comes: else two PEs could each wait for what the other has not sent yet. */
#include "base/error.h"
#include "ring/private.h"
#include <stdio.h>
#include <string.h>

static int check(uf_tiles *t, const char *call)
{
    if (!t)
        return uf_fail(UF_EINVAL, "%s: argument tiles is NULL", call);
    int rc = uf_world_check(t->world);
    if (!rc && t->broken)
        rc = uf_fail(t->broken, "%s on PE %d: an earlier call failed half-way, so the PEs are out of step: destroy these tiles",
                     call, t->world->pe);
    return rc;
}

static bool in_step(const uf_tiles *t)
{
    return t->started != t->finished;
}

static int check_step(uf_tiles *t, const char *call)
{
    int rc = check(t, call);
    if (!rc && !in_step(t))
        rc = uf_fail(UF_EINVAL, "%s on PE %d: no step is under way: uf_tiles_start begins one", call, t->world->pe);
    return rc;
}

static int breaks(uf_tiles *t, int rc)
{
    if (rc && !t->broken)
        t->broken = rc;
    return rc;
}

/* The number of the step that is under way, from 0. */
static uint64_t step_of(const uf_tiles *t)
{
    return t->finished;
}

static size_t tile_size(const uf_tiles *t, int owner, int tile)
{
    size_t left = t->share[owner] - (size_t)tile * t->tile_bytes;
    return left < t->tile_bytes ? left : t->tile_bytes;
}

/* ---------------------------------------------------------------- sending */

/* Whose share it is that s sends to d. */
static int owner_of(const uf_tiles *t, int s, int d)
{
    return t->kind == UF_TILES_GATHER ? s : d;
}

static int peer_of_turn(const uf_tiles *t, int turn)
{
    return (t->me - turn + t->n) % t->n;
}

static void skip_silent(uf_tiles *t)
{
    while (t->turn < t->n && !uf_tiles_sends(t, t->me, peer_of_turn(t, t->turn)))
        t->turn++;
}

/* What d's credit must be before it is sent to in this step. */
static uint64_t credit_wanted(const uf_tiles *t)
{
    uint64_t step = step_of(t), buffers = (uint64_t)t->n_buffers;
    return step < buffers ? 0 : step - buffers + 1;
}

static bool has_credit(const uf_tiles *t, int pe)
{
    return uf_signal_fetch(uf_tiles_credit(t, pe)) >= credit_wanted(t);
}

static int put_tile(uf_tiles *t, int d, int tile)
{
    int owner = owner_of(t, t->me, d);
    size_t within = (size_t)tile * t->tile_bytes, bytes = tile_size(t, owner, tile);
    bool gather = t->kind == UF_TILES_GATHER;
    size_t at = gather ? t->offset[t->me] : (size_t)t->me * t->stride;
    const unsigned char *from = t->src + (gather ? 0 : t->offset[d]);
    return uf_put_signal_nbi(t->ctx, uf_tiles_area(t, step_of(t)) + at + within, from + within, bytes,
                             uf_tiles_arrival(t, step_of(t), t->me, tile), UF_SIGNAL_ADD, 1, t->world_pe[d], UF_WEAK);
}

/* Sends up to `limit` tiles (0: all), stopping at the first peer without credit. */
static int push(uf_tiles *t, int limit)
{
    int rc = UF_OK;
    skip_silent(t);
    for (int sent = 0; !rc && t->turn < t->n && (limit == 0 || sent < limit); sent++) {
        int d = peer_of_turn(t, t->turn);
        if (t->tile == 0 && !has_credit(t, d))
            break;
        rc = put_tile(t, d, t->tile);
        if (++t->tile == uf_tiles_count(t, owner_of(t, t->me, d))) {
            t->tile = 0;
            t->turn++;
            skip_silent(t);
        }
    }
    return breaks(t, rc);
}

/* The PE whose credit stops the sending, or -1. */
static int stopped_by(const uf_tiles *t)
{
    if (t->turn >= t->n || t->tile > 0 || has_credit(t, peer_of_turn(t, t->turn)))
        return -1;
    return peer_of_turn(t, t->turn);
}

/* ---------------------------------------------------------------- the calls */

void *uf_tiles_next(uf_tiles *t)
{
    if (!t || t->kind != UF_TILES_GATHER || (in_step(t) && t->n_buffers == 1))
        return NULL;
    return uf_tiles_area(t, t->started);
}

int uf_tiles_start(uf_tiles *t, const void *src)
{
    int rc = check(t, "uf_tiles_start");
    if (!rc && in_step(t))
        rc =
            uf_fail(UF_EINVAL, "uf_tiles_start on PE %d: the step before is not finished: uf_tiles_finish ends it", t->world->pe);
    if (!rc && !src && t->kind == UF_TILES_REDUCE_SCATTER && t->offset[t->n] > 0)
        rc = uf_fail(UF_EINVAL, "uf_tiles_start on PE %d: argument src is NULL, but there are %zu bytes to reduce", t->world->pe,
                     t->offset[t->n]);
    if (rc)
        return rc;
    unsigned char *own = t->kind == UF_TILES_GATHER ? uf_tiles_area(t, t->started) + t->offset[t->me] : NULL;
    if (own && src && src != own)
        rc = uf_put(t->ctx, own, src, t->share[t->me], t->world_pe[t->me]);
    if (rc)
        return rc;
    t->src = own ? own : src;
    t->started++;
    t->turn = 1;
    t->tile = 0;
    return push(t, t->ahead);
}

int uf_tiles_push(uf_tiles *t)
{
    int rc = check_step(t, "uf_tiles_push");
    return rc ? rc : push(t, t->ahead);
}

static int late(uf_tiles *t, int pe, int tile, int stop)
{
    char detail[512], other[96] = "";
    snprintf(detail, sizeof detail, "%s", uf_error_message());
    if (stop >= 0)
        snprintf(other, sizeof other, " (and for PE %d to finish step %llu)", t->world_pe[stop],
                 (unsigned long long)(step_of(t) - (uint64_t)t->n_buffers));
    if (pe < 0)
        return uf_fail(UF_ETIMEDOUT, "PE %d: step %llu of tiles waited %llu ms for PE %d to finish step %llu. %s", t->world->pe,
                       (unsigned long long)step_of(t), (unsigned long long)(t->world->timeout_ns / 1000000), t->world_pe[stop],
                       (unsigned long long)(step_of(t) - (uint64_t)t->n_buffers), detail);
    return uf_fail(UF_ETIMEDOUT, "PE %d: step %llu of tiles waited %llu ms for tile %d of %d from PE %d%s. %s", t->world->pe,
                   (unsigned long long)step_of(t), (unsigned long long)(t->world->timeout_ns / 1000000), tile,
                   uf_tiles_count(t, owner_of(t, pe, t->me)), t->world_pe[pe], other, detail);
}

/* Waits for a tile to arrive, sending meanwhile whatever can be. */
static int await_tile(uf_tiles *t, int pe, int tile)
{
    uint64_t *word = uf_tiles_arrival(t, step_of(t), pe, tile), value = step_of(t) / (uint64_t)t->n_buffers + 1;
    while (uf_signal_fetch(word) < value) {
        int rc = push(t, t->ahead), stop = stopped_by(t);
        if (!rc && stop >= 0) {
            const uint64_t *words[2] = {word, uf_tiles_credit(t, stop)}, values[2] = {value, credit_wanted(t)};
            const uf_wait_list list = {.sigs = words, .n = 2, .cmp = UF_GE, .values = values};
            size_t index;
            rc = uf_wait_any(t->world, &list, &index, t->world->timeout_ns);
        } else if (!rc && t->turn >= t->n) {
            rc = uf_wait_from(t->world, word, UF_GE, value, t->world_pe[pe], t->world->timeout_ns);
        }
        if (rc)
            return rc == UF_ETIMEDOUT ? late(t, pe, tile, stop) : rc;
    }
    return UF_OK;
}

int uf_tiles_wait(uf_tiles *t, int pe, int tile, const void **at, size_t *bytes)
{
    int rc = check_step(t, "uf_tiles_wait");
    if (rc)
        return rc;
    if (pe < 0 || pe >= t->n)
        return uf_fail(UF_ERANGE, "uf_tiles_wait on PE %d: argument pe: there is no PE %d in a team of %d PEs", t->world->pe, pe,
                       t->n);
    int owner = owner_of(t, pe, t->me);
    if (tile < 0 || tile >= uf_tiles_count(t, owner))
        return uf_fail(UF_ERANGE, "uf_tiles_wait on PE %d: argument tile is %d: the share of PE %d has %d tiles", t->world->pe,
                       tile, owner, uf_tiles_count(t, owner));
    rc = pe == t->me ? UF_OK : await_tile(t, pe, tile);
    if (rc)
        return rc;
    size_t within = (size_t)tile * t->tile_bytes;
    const unsigned char *area = uf_tiles_area(t, step_of(t));
    if (t->kind == UF_TILES_GATHER)
        area += t->offset[pe];
    else
        area = pe == t->me ? t->src + t->offset[pe] : area + (size_t)pe * t->stride;
    if (at)
        *at = area + within;
    if (bytes)
        *bytes = tile_size(t, owner, tile);
    return UF_OK;
}

/* ---------------------------------------------------------------- sums and the end */

static int check_sum(uf_tiles *t, int tile, uf_tiles_type type, const void *out)
{
    int rc = check_step(t, "uf_tiles_sum");
    if (rc)
        return rc;
    size_t element = type == UF_TILES_BF16 ? 2 : 4;
    if (t->kind != UF_TILES_REDUCE_SCATTER)
        return uf_fail(UF_EINVAL, "uf_tiles_sum on PE %d: these tiles were created to gather", t->world->pe);
    if (t->memory != UF_MEMORY_HOST)
        return uf_fail(UF_EUNSUPPORTED, "uf_tiles_sum on PE %d: the host does not add in GPU memory", t->world->pe);
    if (type != UF_TILES_F32 && type != UF_TILES_BF16)
        return uf_fail(UF_EINVAL, "uf_tiles_sum on PE %d: argument type is %d, not UF_TILES_F32 or UF_TILES_BF16", t->world->pe,
                       (int)type);
    if (!out || (uintptr_t)out % element || t->tile_bytes % element || t->share[t->me] % element || (uintptr_t)t->src % element ||
        t->offset[t->me] % element)
        return uf_fail(
            UF_EINVAL,
            "uf_tiles_sum on PE %d: argument out is NULL, or out, src, a tile (%zu bytes) or a share (%zu bytes) is no "
            "multiple of an element of %zu bytes",
            t->world->pe, t->tile_bytes, t->share[t->me], element);
    if (tile < 0 || tile >= uf_tiles_count(t, t->me))
        return uf_fail(UF_ERANGE, "uf_tiles_sum on PE %d: argument tile is %d: this PE's share has %d tiles", t->world->pe, tile,
                       uf_tiles_count(t, t->me));
    return UF_OK;
}

int uf_tiles_sum(uf_tiles *t, int tile, uf_tiles_type type, void *out)
{
    size_t bytes = 0;
    int rc = check_sum(t, tile, type, out);
    /* In the order in which they come; added in the order of the team. */
    for (int turn = 0; !rc && turn < t->n; turn++) {
        int pe = (t->me + turn) % t->n;
        rc = uf_tiles_wait(t, pe, tile, &t->rows[pe], &bytes);
    }
    if (rc)
        return rc;
    if (type == UF_TILES_BF16)
        uf_ring_sum_bf16(out, (const uint16_t *const *)t->rows, t->n, bytes / 2);
    else
        uf_ring_sum_f32(out, (const float *const *)t->rows, t->n, bytes / 4);
    return UF_OK;
}

/* Sends the rest, and waits here for the credits it needs: what all others still wait for from this PE in earlier steps has been sent. */
static int push_all(uf_tiles *t)
{
    for (;;) {
        int rc = push(t, 0), stop = stopped_by(t);
        if (!rc && stop >= 0)
            rc = uf_wait_from(t->world, uf_tiles_credit(t, stop), UF_GE, credit_wanted(t), t->world_pe[stop],
                              t->world->timeout_ns);
        if (rc)
            return rc == UF_ETIMEDOUT ? late(t, -1, 0, stop) : rc;
        if (t->turn >= t->n)
            return UF_OK;
    }
}

/* Those that the caller did not wait for: an area is given back whole. */
static int await_all(uf_tiles *t)
{
    int rc = UF_OK;
    for (int turn = 1; turn < t->n; turn++) {
        int pe = (t->me + turn) % t->n, count = uf_tiles_count(t, owner_of(t, pe, t->me));
        for (int tile = 0; !rc && tile < count; tile++)
            rc = await_tile(t, pe, tile);
    }
    return rc;
}

int uf_tiles_finish(uf_tiles *t)
{
    int rc = check_step(t, "uf_tiles_finish");
    rc = rc ? rc : await_all(t);
    rc = rc ? rc : push_all(t);
    if (rc) /* a wait that ran out may be repeated */
        return rc;
    rc = uf_flush(t->ctx);
    for (int turn = 1; !rc && turn < t->n; turn++) {
        int pe = (t->me + turn) % t->n;
        if (uf_tiles_sends(t, pe, t->me))
            rc = uf_signal(t->credits, uf_tiles_credit(t, t->me), UF_SIGNAL_ADD, 1, t->world_pe[pe], UF_WEAK);
    }
    if (rc)
        return breaks(t, rc);
    t->finished++;
    return UF_OK;
}
