/* tiles.c - the life of an all-gather or reduce-scatter by tiles: agree on shares, set areas aside, give them back. tiles_step.c has the steps.
 *
 * Both are one exchange: source s sends tiles to every d, which land in d's area of the step, each with a weak signal to the word of (area, source, tile).
 * To gather, each d gets s's share, at its place among all shares; to reduce, each d gets what s adds to d's share, at the place of s. Step k uses
 * area k % n_buffers. A PE that finishes a step has all its tiles, has read them and adds 1 to the credit word of each that sends to it, so a
 * sender may begin step k with d when d's credit is at least k - n_buffers + 1. Credits carry no data and come in the order of steps, so one
 * word is enough for each peer; tiles carry data, and have a word each: a counter shared by two weak puts would tell how many came, not
 * which. Words only grow: the arrival of step k is awaited as >= k / n_buffers + 1. */
#include "base/error.h"
#include "ring/private.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BUFFERS = 8, DEFAULT_BUFFERS = 2 };

/* ---------------------------------------------------------------- options */

static int check_options(const uf_tiles_options *o)
{
    if (!o)
        return uf_fail(UF_EINVAL, "uf_tiles_create: argument options is NULL");
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.size is %zu, but this library's uf_tiles_options has %zu bytes",
                       o->size, sizeof *o);
    if (o->kind != UF_TILES_GATHER && o->kind != UF_TILES_REDUCE_SCATTER)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.kind is %d, not UF_TILES_GATHER or UF_TILES_REDUCE_SCATTER",
                       (int)o->kind);
    if (o->n_buffers < 0 || o->n_buffers > MAX_BUFFERS)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.n_buffers is %d: 1 to %d are supported, 0 means %d", o->n_buffers,
                       MAX_BUFFERS, DEFAULT_BUFFERS);
    if (o->tile_bytes == 0)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.tile_bytes is 0: a tile has at least one byte");
    if (o->bytes > SIZE_MAX / 4096 || o->bytes / o->tile_bytes >= INT_MAX / 2)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.bytes is %zu in tiles of %zu bytes: at most %d tiles are supported",
                       o->bytes, o->tile_bytes, INT_MAX / 2);
    if (o->ahead < 0)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.ahead is %d: 1 or more, or 0 for all", o->ahead);
    if (o->memory != UF_MEMORY_HOST && o->memory != UF_MEMORY_CUDA)
        return uf_fail(UF_EINVAL, "uf_tiles_create: options.memory is %d, not UF_MEMORY_HOST or UF_MEMORY_CUDA", o->memory);
    return UF_OK;
}

static int agree(uf_world *w, const uf_tiles_options *o, uint64_t *shares)
{
    uf_ring_term terms[4] = {{0}};
    int rc = check_options(o);
    if (!rc) {
        terms[0] = (uf_ring_term){"kind", (int64_t)o->kind};
        terms[1] = (uf_ring_term){"n_buffers", o->n_buffers};
        terms[2] = (uf_ring_term){"tile_bytes", (int64_t)o->tile_bytes};
        terms[3] = (uf_ring_term){"memory", o->memory};
    }
    return uf_ring_agree(w, "uf_tiles_create", rc, terms, 4, rc ? 0 : o->bytes, shares);
}

/* ---------------------------------------------------------------- create and destroy */

static void release_own(uf_tiles *t)
{
    if (!t)
        return;
    void *all[] = {t->world_pe, t->share, t->offset, t->rows, t};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Everything that follows from the options and the shares of the world's PEs. */
static void lay_out(uf_tiles *t, const uf_team *team, const uf_tiles_options *o, const uint64_t *shares)
{
    size_t most = 0;
    t->kind = o->kind;
    t->n_buffers = o->n_buffers ? o->n_buffers : DEFAULT_BUFFERS;
    t->tile_bytes = o->tile_bytes;
    t->ahead = o->ahead;
    t->memory = o->memory;
    t->turn = t->n; /* no step is under way */
    for (int pe = 0; pe < t->n; pe++) {
        t->world_pe[pe] = team->pes[pe];
        t->share[pe] = (size_t)shares[team->pes[pe]];
        t->offset[pe + 1] = t->offset[pe] + t->share[pe];
        most = t->share[pe] > most ? t->share[pe] : most;
    }
    t->stride = uf_ring_pad(most);
    t->most_tiles = (int)((most + t->tile_bytes - 1) / t->tile_bytes);
    t->area = t->kind == UF_TILES_GATHER ? uf_ring_pad(t->offset[t->n]) : t->stride * (size_t)t->n;
    if (t->area == 0)
        t->area = uf_ring_pad(1); /* so that it has an address */
}

static int take_own(uf_team *team, const uf_tiles_options *o, const uint64_t *shares, uf_tiles **out)
{
    uf_tiles *t = calloc(1, sizeof *t);
    size_t n = (size_t)team->n;
    if (t) {
        t->world = team->world;
        t->me = team->me;
        t->n = team->n;
        t->world_pe = calloc(n, sizeof *t->world_pe);
        t->share = calloc(n, sizeof *t->share);
        t->offset = calloc(n + 1, sizeof *t->offset);
        t->rows = calloc(n, sizeof *t->rows);
    }
    if (!t || !t->world_pe || !t->share || !t->offset || !t->rows) {
        release_own(t);
        return uf_fail(UF_ENOMEM, "uf_tiles_create: PE %d has no memory for %zu shares", team->world->pe, n);
    }
    lay_out(t, team, o, shares);
    *out = t;
    return UF_OK;
}

/* Memory is the same on all PEs of the world, whose teams may need different amounts. */
static int take_symmetric(uf_tiles *t, uint64_t *each)
{
    uf_world *w = t->world;
    int rc = uf_ring_agree(w, "uf_tiles_create", UF_OK, NULL, 0, t->area, each);
    if (!rc)
        rc = uf_malloc_on(w, t->memory, (size_t)uf_ring_most(each, w->n_pes) * (size_t)t->n_buffers, 0, (void **)&t->base);
    if (rc)
        return rc;
    uint64_t words = (uint64_t)t->n + (uint64_t)t->n_buffers * (uint64_t)t->n * (uint64_t)t->most_tiles;
    rc = uf_ring_agree(w, "uf_tiles_create", UF_OK, NULL, 0, words, each);
    if (!rc)
        rc = uf_signal_alloc(w, (size_t)uf_ring_most(each, w->n_pes), UF_SIGNAL_DEFAULT, &t->words);
    if (rc)
        return rc;
    rc = uf_ctx_create(w, NULL, &t->ctx);
    rc = rc ? rc : uf_ctx_create(w, NULL, &t->credits);
    return uf_ring_agree(w, "uf_tiles_create", rc, NULL, 0, 0, NULL);
}

static int give_back(uf_tiles *t)
{
    int rc = uf_ctx_destroy(t->ctx), other = uf_ctx_destroy(t->credits);
    rc = rc ? rc : other;
    other = uf_free(t->world, t->base);
    rc = rc ? rc : other;
    other = other ? other : uf_signal_free(t->world, t->words);
    release_own(t);
    return rc ? rc : other;
}

int uf_tiles_create(uf_team *team, const uf_tiles_options *options, uf_tiles **out)
{
    if (!team || !out)
        return uf_fail(UF_EINVAL, "uf_tiles_create: argument %s is NULL", !team ? "team" : "tiles");
    uf_world *w = team->world;
    uf_tiles *t = NULL;
    uint64_t *each = calloc((size_t)w->n_pes, sizeof *each);
    if (!each)
        return uf_ring_agree(w, "uf_tiles_create",
                             uf_fail(UF_ENOMEM, "uf_tiles_create: PE %d has no memory for %d shares", w->pe, w->n_pes), NULL, 0,
                             0, NULL);
    int rc = agree(w, options, each);
    if (!rc)
        rc = uf_ring_agree(w, "uf_tiles_create", take_own(team, options, each, &t), NULL, 0, 0, NULL);
    if (!rc)
        rc = take_symmetric(t, each);
    free(each);
    if (!rc) {
        *out = t;
        return UF_OK;
    }
    char why[UF_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", uf_error_message());
    if (t)
        give_back(t);
    return uf_error_set(rc, why);
}

int uf_tiles_destroy(uf_tiles *t)
{
    return t ? give_back(t) : UF_OK;
}

/* ---------------------------------------------------------------- shares */

static bool wrong_pe(const uf_tiles *t, int pe)
{
    return !t || pe < 0 || pe >= t->n;
}

size_t uf_tiles_bytes(const uf_tiles *t, int pe)
{
    return wrong_pe(t, pe) ? 0 : t->share[pe];
}

int uf_tiles_count(const uf_tiles *t, int pe)
{
    return wrong_pe(t, pe) ? 0 : (int)((t->share[pe] + t->tile_bytes - 1) / t->tile_bytes);
}

size_t uf_tiles_offset(const uf_tiles *t, int pe)
{
    return wrong_pe(t, pe) ? 0 : t->offset[pe];
}
