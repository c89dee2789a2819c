/* ring.c - ring exchange: make a ring, start a block, finish one, give its slot back.
 *
 * The protocol is in private.h. What happens to a block: start waits for a free slot of the neighbour (one look in the common case), then
 * posts one put with a weak signal; finish waits for the slot's word; release waits until what was sent on from the slot has left, then
 * signals. Nothing is allocated and no lock is taken here after creation. */
#include "base/error.h"
#include "ring/private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[UF_RING_DIRECTIONS] = {"forward", "reverse"};

/* ---------------------------------------------------------------- options */

static int check_options(const uf_ring_options *o)
{
    if (!o)
        return uf_fail(UF_EINVAL, "uf_ring_create: argument options is NULL");
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL, "uf_ring_create: options.size is %zu, but this library's uf_ring_options has %zu bytes",
                       o->size, sizeof *o);
    if (o->n_parts < 0 || o->n_parts > UF_RING_PARTS)
        return uf_fail(UF_EINVAL, "uf_ring_create: options.n_parts is %d: 1 to %d are supported, 0 means 1", o->n_parts,
                       UF_RING_PARTS);
    if (o->n_slots < 0 || o->n_slots == 1 || o->n_slots > UF_RING_SLOTS)
        return uf_fail(UF_EINVAL,
                       "uf_ring_create: options.n_slots is %d: 2 to %d are supported, 0 means 2 (with one, no block could come "
                       "while another is computed on)",
                       o->n_slots, UF_RING_SLOTS);
    if (o->directions < 0 || o->directions > 3)
        return uf_fail(
            UF_EINVAL,
            "uf_ring_create: options.directions is %d: 1 << UF_RING_FORWARD, 1 << UF_RING_REVERSE, both, or 0 for both",
            o->directions);
    if (o->memory != UF_MEMORY_HOST && o->memory != UF_MEMORY_CUDA)
        return uf_fail(UF_EINVAL, "uf_ring_create: options.memory is %d, not UF_MEMORY_HOST or UF_MEMORY_CUDA", o->memory);
    for (int i = 0; i < UF_RING_PARTS; i++)
        if (o->part_bytes[i] > SIZE_MAX / 4096)
            return uf_fail(UF_EINVAL, "uf_ring_create: options.part_bytes[%d] is %zu: at most %zu are supported", i,
                           o->part_bytes[i], SIZE_MAX / 4096);
    return UF_OK;
}

static int agree(uf_world *w, const uf_ring_options *o)
{
    static const char *const parts[UF_RING_PARTS] = {"part_bytes[0]", "part_bytes[1]", "part_bytes[2]", "part_bytes[3]",
                                                     "part_bytes[4]", "part_bytes[5]", "part_bytes[6]", "part_bytes[7]"};
    uf_ring_term terms[4 + UF_RING_PARTS] = {{0}};
    int rc = check_options(o);
    if (!rc) {
        terms[0] = (uf_ring_term){"n_parts", o->n_parts};
        terms[1] = (uf_ring_term){"n_slots", o->n_slots};
        terms[2] = (uf_ring_term){"directions", o->directions};
        terms[3] = (uf_ring_term){"memory", o->memory};
        for (int i = 0; i < UF_RING_PARTS; i++)
            terms[4 + i] = (uf_ring_term){parts[i], (int64_t)o->part_bytes[i]};
    }
    return uf_ring_agree(w, "uf_ring_create", rc, terms, 4 + UF_RING_PARTS, 0, NULL);
}

/* ---------------------------------------------------------------- create and destroy */

static void lay_out(uf_ring *r, const uf_ring_options *o)
{
    int directions = o->directions ? o->directions : 3, n_open = 0;
    r->n_parts = o->n_parts ? o->n_parts : 1;
    r->n_slots = o->n_slots ? o->n_slots : 2;
    for (int i = 0; i < r->n_parts; i++) {
        r->part_bytes[i] = o->part_bytes[i];
        r->slot_bytes += uf_ring_pad(o->part_bytes[i]);
    }
    if (r->slot_bytes == 0)
        r->slot_bytes = uf_ring_pad(1); /* so that a slot has an address */
    for (int d = 0; d < UF_RING_DIRECTIONS; d++) {
        r->ports[d].open = directions >> d & 1;
        n_open += r->ports[d].open;
    }
    r->total = (size_t)n_open * (size_t)r->n_slots * r->slot_bytes;
}

/* What needs the team, the memory and the words. */
static int open_ports(uf_ring *r, const uf_team *team)
{
    int right = team->pes[(team->me + 1) % team->n], left = team->pes[(team->me + team->n - 1) % team->n], rc = UF_OK;
    unsigned char *slots = r->base;
    for (int d = 0; !rc && d < UF_RING_DIRECTIONS; d++) {
        uf_ring_port *p = &r->ports[d];
        p->to = d == UF_RING_FORWARD ? right : left;
        p->from = d == UF_RING_FORWARD ? left : right;
        p->arrived = r->words + d * (r->n_slots + 1);
        p->credit = p->arrived + r->n_slots;
        p->slots = slots;
        if (!p->open)
            continue;
        slots += (size_t)r->n_slots * r->slot_bytes;
        for (int way = 0; !rc && way < r->n_slots; way++)
            rc = uf_ctx_create(r->world, NULL, &p->ways[way]);
    }
    return rc ? rc : uf_ctx_create(r->world, NULL, &r->credits);
}

static int close_contexts(uf_ring *r)
{
    int rc = uf_ctx_destroy(r->credits);
    for (int d = 0; d < UF_RING_DIRECTIONS; d++)
        for (int way = 0; way < r->n_slots; way++) {
            int ended = uf_ctx_destroy(r->ports[d].ways[way]);
            rc = rc ? rc : ended;
        }
    return rc;
}

int uf_ring_create(uf_team *team, const uf_ring_options *options, uf_ring **out)
{
    if (!team || !out)
        return uf_fail(UF_EINVAL, "uf_ring_create: argument %s is NULL", !team ? "team" : "ring");
    uf_world *w = team->world;
    int rc = agree(w, options);
    if (rc)
        return rc;
    uf_ring *r = calloc(1, sizeof *r);
    rc = uf_ring_agree(w, "uf_ring_create", r ? UF_OK : uf_fail(UF_ENOMEM, "uf_ring_create: no memory for %zu bytes", sizeof *r),
                       NULL, 0, 0, NULL);
    if (rc) {
        free(r);
        return rc;
    }
    r->world = w;
    r->stats.size = sizeof r->stats;
    lay_out(r, options);
    rc = uf_malloc_on(w, options->memory, r->total, 0, (void **)&r->base);
    if (!rc)
        rc = uf_signal_alloc(w, (size_t)(UF_RING_DIRECTIONS * (r->n_slots + 1)), UF_SIGNAL_DEFAULT, &r->words);
    if (!rc)
        rc = uf_ring_agree(w, "uf_ring_create", open_ports(r, team), NULL, 0, 0, NULL);
    if (!rc) {
        *out = r;
        return UF_OK;
    }
    char why[UF_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", uf_error_message());
    close_contexts(r);
    uf_signal_free(w, r->words);
    uf_free(w, r->base);
    free(r);
    return uf_error_set(rc, why);
}

int uf_ring_destroy(uf_ring *r)
{
    if (!r)
        return UF_OK;
    int rc = close_contexts(r), freed = uf_free(r->world, r->base);
    if (!freed)
        freed = uf_signal_free(r->world, r->words);
    free(r);
    return rc ? rc : freed;
}

/* ---------------------------------------------------------------- checks and waits */

static int check(uf_ring *r, const char *call, uf_ring_direction d)
{
    if (!r)
        return uf_fail(UF_EINVAL, "%s: argument ring is NULL", call);
    if ((d != UF_RING_FORWARD && d != UF_RING_REVERSE) || !r->ports[d].open)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument direction is %d: %s", call, r->world->pe, (int)d,
                       d == UF_RING_FORWARD || d == UF_RING_REVERSE ? "the ring was created without it"
                                                                    : "not UF_RING_FORWARD or UF_RING_REVERSE");
    int rc = uf_world_check(r->world);
    if (!rc && r->broken)
        rc = uf_fail(r->broken,
                     "%s on PE %d: an earlier call failed half-way, so the neighbours are out of step: destroy this ring", call,
                     r->world->pe);
    return rc;
}

static int breaks(uf_ring *r, int rc)
{
    if (rc && !r->broken)
        r->broken = rc;
    return rc;
}

static uint64_t now(const uf_ring *r)
{
    return r->world->driver->now(r->world->driver->arg);
}

/* What a neighbour owes. */
typedef struct owed {
    const uint64_t *word;
    uint64_t value;
    int pe;
    uint64_t step;
    uf_ring_direction direction;
    const char *what; /* after "waited for PE n to " */
    uint64_t *waited;
} owed;

static int await(uf_ring *r, const owed *o, unsigned flags)
{
    if (uf_signal_fetch(o->word) >= o->value)
        return UF_OK;
    if (flags & UF_NOWAIT)
        return uf_test(r->world, o->word, UF_GE, o->value);
    uint64_t start = now(r);
    int rc = uf_wait_from(r->world, o->word, UF_GE, o->value, o->pe, r->world->timeout_ns);
    *o->waited += now(r) - start;
    if (rc != UF_ETIMEDOUT)
        return rc;
    char detail[512];
    snprintf(detail, sizeof detail, "%s", uf_error_message());
    return uf_fail(rc, "PE %d: step %llu of a ring (%s) waited %llu ms for PE %d to %s. %s", r->world->pe,
                   (unsigned long long)o->step, names[o->direction], (unsigned long long)(r->world->timeout_ns / 1000000), o->pe,
                   o->what, detail);
}

/* ---------------------------------------------------------------- start */

static int check_block(const uf_ring *r, const uf_ring_block *b)
{
    if (!b)
        return uf_fail(UF_EINVAL, "uf_ring_start on PE %d: argument block is NULL", r->world->pe);
    for (int i = 0; i < r->n_parts; i++) {
        if (b->bytes[i] > r->part_bytes[i])
            return uf_fail(UF_EINVAL, "uf_ring_start on PE %d: block.bytes[%d] is %zu, and the ring was created for at most %zu",
                           r->world->pe, i, b->bytes[i], r->part_bytes[i]);
        if (b->bytes[i] && !b->part[i])
            return uf_fail(UF_EINVAL, "uf_ring_start on PE %d: block.part[%d] is NULL, but has %zu bytes", r->world->pe, i,
                           b->bytes[i]);
    }
    return UF_OK;
}

typedef struct run {
    const unsigned char *src;
    size_t at, bytes;
} run;

/* The slot of ours that an address lies in, and its direction; false: in none. */
static bool find_slot(const uf_ring *r, const unsigned char *at, int *direction, size_t *slot)
{
    for (int d = 0; d < UF_RING_DIRECTIONS; d++) {
        const uf_ring_port *p = &r->ports[d];
        if (!p->open || at < p->slots || at >= p->slots + (size_t)r->n_slots * r->slot_bytes)
            continue;
        *direction = d;
        *slot = (size_t)(at - p->slots) / r->slot_bytes;
        return true;
    }
    return false;
}

/* Parts that lie in the source as they do in a slot make one run; the gaps that align them go along only where they are gaps of a slot as well.
 * Empty parts make none. */
static int find_runs(const uf_ring *r, const uf_ring_block *b, run *runs)
{
    int n = 0, direction;
    size_t at = 0, slot;
    for (int i = 0; i < r->n_parts; at += uf_ring_pad(b->bytes[i++])) {
        const unsigned char *src = b->part[i];
        run *last = n ? &runs[n - 1] : NULL;
        if (b->bytes[i] == 0)
            continue;
        if (last && last->src + (at - last->at) == src && (last->at + last->bytes == at || find_slot(r, src, &direction, &slot)))
            last->bytes = at + b->bytes[i] - last->at;
        else
            runs[n++] = (run){src, at, b->bytes[i]};
    }
    return n;
}

/* Notes that a slot of ours is being sent on: it is not given back before that has left. */
static void note_source(uf_ring *r, const unsigned char *src, uf_ring_direction d, size_t way)
{
    int from;
    size_t slot;
    if (find_slot(r, src, &from, &slot))
        r->ports[from].sent_on[slot][d] |= UINT64_C(1) << way;
}

/* The runs together add n_parts, however many they are. */
static int put_runs(uf_ring *r, uf_ring_direction d, const run *runs, int n)
{
    uf_ring_port *p = &r->ports[d];
    size_t slot = (size_t)(p->sent % (uint64_t)r->n_slots);
    uint64_t *word = &p->arrived[slot], parts = (uint64_t)r->n_parts;
    if (n == 0)
        return uf_signal(p->ways[slot], word, UF_SIGNAL_ADD, parts, p->to, UF_WEAK);
    int rc = UF_OK;
    for (int i = 0; !rc && i < n; i++) {
        uint64_t value = i == 0 ? parts - (uint64_t)(n - 1) : 1;
        note_source(r, runs[i].src, d, slot);
        rc = uf_put_signal_nbi(p->ways[slot], p->slots + slot * r->slot_bytes + runs[i].at, runs[i].src, runs[i].bytes, word,
                               UF_SIGNAL_ADD, value, p->to, UF_WEAK);
        r->stats.bytes_sent += rc ? 0 : runs[i].bytes;
    }
    r->stats.puts += (uint64_t)n;
    return rc;
}

int uf_ring_start(uf_ring *r, uf_ring_direction d, const uf_ring_block *block, unsigned flags)
{
    int rc = check(r, "uf_ring_start", d);
    if (!rc)
        rc = check_block(r, block);
    if (rc)
        return rc;
    uf_ring_port *p = &r->ports[d];
    uint64_t slots = (uint64_t)r->n_slots;
    if (p->sent >= slots)
        rc = await(r,
                   &(owed){.word = p->credit,
                           .value = p->sent - slots + 1,
                           .pe = p->to,
                           .step = p->sent,
                           .direction = d,
                           .what = "give a slot back",
                           .waited = &r->stats.slot_wait_ns},
                   flags);
    if (rc) /* nothing was sent: the neighbours are still in step */
        return rc;
    run runs[UF_RING_PARTS];
    rc = put_runs(r, d, runs, find_runs(r, block, runs));
    if (rc)
        return breaks(r, rc);
    p->sent++;
    r->stats.blocks_sent++;
    return UF_OK;
}

/* ---------------------------------------------------------------- finish and release */

int uf_ring_finish(uf_ring *r, uf_ring_direction d, const size_t *bytes, uf_ring_block *block, unsigned flags)
{
    int rc = check(r, "uf_ring_finish", d);
    if (!rc && !block)
        rc = uf_fail(UF_EINVAL, "uf_ring_finish on PE %d: argument block is NULL", r->world->pe);
    for (int i = 0; !rc && bytes && i < r->n_parts; i++)
        if (bytes[i] > r->part_bytes[i])
            rc = uf_fail(UF_EINVAL, "uf_ring_finish on PE %d: bytes[%d] is %zu, and the ring was created for at most %zu",
                         r->world->pe, i, bytes[i], r->part_bytes[i]);
    if (rc)
        return rc;
    uf_ring_port *p = &r->ports[d];
    uint64_t slots = (uint64_t)r->n_slots;
    size_t slot = (size_t)(p->received % slots);
    if (p->received - p->released == slots)
        return uf_fail(UF_EINVAL,
                       "uf_ring_finish on PE %d: all %d slots of direction %s hold blocks that were not given back with "
                       "uf_ring_release, so none can come",
                       r->world->pe, r->n_slots, names[d]);
    rc = await(r,
               &(owed){.word = &p->arrived[slot],
                       .value = (p->received / slots + 1) * (uint64_t)r->n_parts,
                       .pe = p->from,
                       .step = p->received,
                       .direction = d,
                       .what = "send its block",
                       .waited = &r->stats.block_wait_ns},
               flags);
    if (rc)
        return rc;
    const unsigned char *at = p->slots + slot * r->slot_bytes;
    *block = (uf_ring_block){{NULL}, {0}};
    for (int i = 0; i < r->n_parts; i++) {
        block->part[i] = at;
        block->bytes[i] = bytes ? bytes[i] : r->part_bytes[i];
        at += uf_ring_pad(block->bytes[i]);
    }
    p->received++;
    r->stats.blocks_received++;
    return UF_OK;
}

/* Waits until what was started on these contexts, bits by direction, has left; with UF_NOWAIT looks. */
static int flush(uf_ring *r, const uint64_t *ways, unsigned flags)
{
    int rc = UF_OK;
    for (int d = 0; d < UF_RING_DIRECTIONS; d++)
        for (int way = 0; !rc && way < r->n_slots && ways[d] >> way; way++)
            if (ways[d] >> way & 1 && r->ports[d].ways[way])
                rc = flags & UF_NOWAIT ? uf_flush_test(r->ports[d].ways[way]) : uf_flush(r->ports[d].ways[way]);
    return rc;
}

int uf_ring_release(uf_ring *r, uf_ring_direction d, unsigned flags)
{
    int rc = check(r, "uf_ring_release", d);
    if (rc)
        return rc;
    uf_ring_port *p = &r->ports[d];
    if (p->released == p->received)
        return uf_fail(UF_EINVAL, "uf_ring_release on PE %d: no block of direction %s is held", r->world->pe, names[d]);
    uint64_t *sent_on = p->sent_on[p->released % (uint64_t)r->n_slots];
    rc = flush(r, sent_on, flags);
    if (rc == UF_EAGAIN)
        return rc;
    if (!rc)
        rc = uf_signal(r->credits, p->credit, UF_SIGNAL_ADD, 1, p->from, UF_WEAK);
    if (rc)
        return breaks(r, rc);
    memset(sent_on, 0, UF_RING_DIRECTIONS * sizeof *sent_on);
    p->released++;
    return UF_OK;
}

int uf_ring_flush(uf_ring *r)
{
    static const uint64_t all[UF_RING_DIRECTIONS] = {UINT64_MAX, UINT64_MAX};
    if (!r)
        return uf_fail(UF_EINVAL, "uf_ring_flush: argument ring is NULL");
    int rc = uf_world_check(r->world);
    return rc ? rc : flush(r, all, 0);
}

int uf_ring_stats_get(const uf_ring *r, uf_ring_stats *stats)
{
    if (!r || !stats)
        return uf_fail(UF_EINVAL, "uf_ring_stats_get: argument %s is NULL", !r ? "ring" : "stats");
    if (stats->size < sizeof *stats)
        return uf_fail(UF_EINVAL, "uf_ring_stats_get: stats.size is %zu, but this library's uf_ring_stats has %zu bytes",
                       stats->size, sizeof *stats);
    size_t size = stats->size;
    *stats = r->stats;
    stats->size = size;
    return UF_OK;
}
