/* queues.c - the life of device command queues: their memory, their place in an engine, their end and what they say of themselves.
 *
 * Everything is allocated here and nothing later. Slots begin with the parity of the lap before the first, so that memory which
 * nobody has written is no command at any starting position. Serving is in command.c. */
#include "engine/queues.h"
#include "engine/queue_state.h"
#include <stdlib.h>
#include <string.h>

/* What kernels return and compare without unfence.h. */
_Static_assert(UF_COMMAND_ETIMEDOUT == UF_ETIMEDOUT && UF_COMMAND_ERANGE == UF_ERANGE, "the codes of command.h are unfence.h's");
_Static_assert((int)UF_COMMAND_STRONG == (int)UF_STRONG && (int)UF_COMMAND_SETTLED == (int)UF_SETTLED, "so are its flags");

/* ---------------------------------------------------------------- plain memory */

static int plain_alloc(void *arg, uf_command_place place, const void *image, size_t bytes, void **host, void **device)
{
    (void)arg;
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        return uf_fail(UF_ENOMEM, "no memory for a command queue: %zu bytes", bytes);
    memcpy(p, image, bytes);
    *host = place == UF_COMMAND_LOCAL ? NULL : p;
    *device = p;
    return UF_OK;
}

static void plain_free(void *arg, uf_command_place place, void *host, void *device, size_t bytes)
{
    (void)arg, (void)place, (void)host, (void)bytes;
    free(device);
}

const uf_command_memory uf_command_memory_plain = {NULL, plain_alloc, plain_free, NULL};

/* ---------------------------------------------------------------- creation */

static int check(const uf_command_params *p)
{
    if (p->shift < UF_COMMAND_MIN_SHIFT || p->shift > UF_COMMAND_MAX_SHIFT)
        return uf_fail(UF_EINVAL, "a command queue of 2^%u slots: it must have 2^%d to 2^%d", p->shift, UF_COMMAND_MIN_SHIFT,
                       UF_COMMAND_MAX_SHIFT);
    if (p->n_results == 0 || p->n_results > 1u << UF_COMMAND_RESULT_BITS)
        return uf_fail(UF_EINVAL, "a command queue with %u places for fetched values: it must have 1 to %u", p->n_results,
                       1u << UF_COMMAND_RESULT_BITS);
    if (p->first & ~UF_COMMAND_POSITION_MASK)
        return uf_fail(UF_EINVAL, "a command queue that starts at 0x%llx: positions have 63 bits", (unsigned long long)p->first);
    if (p->timeout_ns == 0)
        return uf_fail(UF_EINVAL, "a command queue with a timeout of 0: no wait may be without one");
    return UF_OK;
}

/* One of the three blocks, from an image that is thrown away. */
static int block(uf_command_queue *q, uf_command_place place, const void *image, size_t bytes)
{
    int rc = q->memory.alloc(q->memory.arg, place, image, bytes, &q->blocks[place].host, &q->blocks[place].device);
    if (!rc)
        q->blocks[place].bytes = bytes;
    return rc;
}

static int make_slots(uf_command_queue *q, uint64_t first)
{
    uint64_t slots = (uint64_t)1 << q->ring.shift;
    uint64_t *image = malloc(slots * UF_COMMAND_WORDS * 8);
    if (!image)
        return uf_fail(UF_ENOMEM, "no memory for a command queue of %llu slots", (unsigned long long)slots);
    for (uint64_t i = 0; i < slots; i++) {
        uint64_t position = (first + i) & UF_COMMAND_POSITION_MASK, *slot = image + (position & (slots - 1)) * UF_COMMAND_WORDS;
        for (int w = 0; w < UF_COMMAND_WORDS; w++)
            slot[w] = uf_command_lap(position, q->ring.shift) ^ UF_COMMAND_LAP;
    }
    int rc = block(q, UF_COMMAND_SLOTS, image, slots * UF_COMMAND_WORDS * 8);
    free(image);
    return rc;
}

static int make_local(uf_command_queue *q, uint64_t first)
{
    size_t bytes = sizeof(uf_command_local) + q->ring.n_results * sizeof(uint64_t);
    uf_command_local *image = calloc(1, bytes);
    if (!image)
        return uf_fail(UF_ENOMEM, "no memory for a command queue");
    image->reserved = image->consumed = first;
    int rc = block(q, UF_COMMAND_LOCAL, image, bytes);
    free(image);
    return rc;
}

static int make_report(uf_command_queue *q, uint64_t first)
{
    size_t bytes = sizeof(uf_command_report) + q->ring.n_results * sizeof(uf_command_result);
    uf_command_report *image = calloc(1, bytes);
    if (!image)
        return uf_fail(UF_ENOMEM, "no memory for a command queue");
    image->consumed = image->local = image->remote = first;
    int rc = block(q, UF_COMMAND_REPORT, image, bytes);
    free(image);
    return rc;
}

static void point(uf_command_queue *q)
{
    uf_command_local *local = q->blocks[UF_COMMAND_LOCAL].device;
    uf_command_report *theirs = q->blocks[UF_COMMAND_REPORT].device;
    q->ring.slots = q->blocks[UF_COMMAND_SLOTS].device;
    q->ring.local = local;
    q->ring.claims = (uint64_t *)(local + 1);
    q->ring.report = theirs;
    q->ring.results = (const uf_command_result *)(theirs + 1);
    q->slots = q->blocks[UF_COMMAND_SLOTS].host;
    q->report = q->blocks[UF_COMMAND_REPORT].host;
    q->results = (uf_command_result *)(q->report + 1);
    q->levels[0].word = &q->report->local;
    q->levels[1].word = &q->report->remote;
}

static int make_tables(uf_command_queue *q, uint64_t first)
{
    q->fetches = calloc(q->ring.n_results, sizeof *q->fetches);
    bool made = q->fetches;
    for (int i = 0; i < 2; i++) {
        uf_command_level *l = &q->levels[i];
        l->remote = i == 1;
        l->told = first;
        l->generation = 1;
        l->seen = calloc(q->n_pes, sizeof *l->seen);
        l->used = calloc(q->n_pes, sizeof(uf_order_lane *));
        l->marks = calloc((size_t)q->n_pes * UF_COMMAND_PENDING, sizeof *l->marks);
        made = made && l->seen && l->used && l->marks;
    }
    if (!made)
        return uf_fail(UF_ENOMEM, "no memory for a command queue to %u PEs with %u fetches in flight", q->n_pes,
                       q->ring.n_results);
    for (uint32_t i = 0; i < q->ring.n_results; i++)
        q->fetches[i].queue = q;
    return UF_OK;
}

static void free_blocks(uf_command_queue *q)
{
    for (int i = 0; i < 3; i++)
        if (q->blocks[i].bytes)
            q->memory.free(q->memory.arg, (uf_command_place)i, q->blocks[i].host, q->blocks[i].device, q->blocks[i].bytes);
}

void uf_command_queue_free(uf_command_queue *q)
{
    if (!q)
        return;
    for (int i = 0; i < 2; i++) {
        free(q->levels[i].seen);
        free(q->levels[i].used);
        free(q->levels[i].marks);
    }
    free(q->fetches);
    free(q);
}

static void attach(uf_engine *e, uf_command_queue *q)
{
    uf_engine_lock(e);
    q->number = e->next_queue++;
    if (e->queues) {
        q->next = e->queues->next;
        e->queues->next = q;
    } else {
        q->next = e->queues = q;
    }
    atomic_fetch_add_explicit(&e->n_queues, 1, memory_order_release);
    uf_engine_unlock(e);
}

int uf_command_queue_create(uf_engine *engine, const uf_command_params *p, uf_command_queue **queue)
{
    int rc = check(p);
    if (rc)
        return rc;
    uf_command_queue *q = calloc(1, sizeof *q);
    if (!q)
        return uf_fail(UF_ENOMEM, "no memory for a command queue");
    q->engine = engine;
    q->n_pes = (uint32_t)engine->n_pes;
    q->memory = *p->memory;
    q->edges = *p->edges;
    q->ctx = p->ctx;
    q->at = p->first;
    q->ring = (uf_command_ring){
        .abi = UF_COMMAND_ABI, .size = sizeof q->ring, .shift = p->shift, .n_results = p->n_results, .timeout_ns = p->timeout_ns};
    if ((rc = make_slots(q, p->first)) || (rc = make_local(q, p->first)) || (rc = make_report(q, p->first)) ||
        (rc = make_tables(q, p->first))) {
        free_blocks(q);
        uf_command_queue_free(q);
        return rc;
    }
    point(q);
    attach(engine, q);
    *queue = q;
    return UF_OK;
}

const uf_command_ring *uf_command_queue_ring(const uf_command_queue *q)
{
    return &q->ring;
}

/* ---------------------------------------------------------------- the end */

int uf_command_queue_idle(uf_command_queue *q)
{
    uint64_t words[UF_COMMAND_WORDS];
    uf_engine_lock(q->engine);
    bool idle = q->ended || (!q->levels[0].count && !q->levels[1].count && !q->fetching &&
                             !uf_command_peek(q->slots, q->ring.shift, q->at, words));
    uf_engine_unlock(q->engine);
    return idle ? UF_OK : UF_EAGAIN;
}

static void detach(uf_engine *e, uf_command_queue *q)
{
    uf_command_queue *before = q;
    while (before->next != q)
        before = before->next;
    before->next = q->next;
    if (e->queues == q)
        e->queues = q->next == q ? NULL : q->next;
    q->detached = true;
    atomic_fetch_sub_explicit(&e->n_queues, 1, memory_order_release);
}

bool uf_command_queue_destroy(uf_command_queue *q)
{
    uf_engine_lock(q->engine);
    detach(q->engine, q);
    bool gone = q->fetching == 0;
    uf_engine_unlock(q->engine);
    free_blocks(q);
    if (gone)
        uf_command_queue_free(q);
    return gone;
}

/* ---------------------------------------------------------------- questions */

int uf_command_queue_status(uf_command_queue *q)
{
    uf_engine_lock(q->engine);
    int rc = q->status ? uf_error_set(q->status, q->why) : UF_OK;
    uf_engine_unlock(q->engine);
    return rc;
}

void uf_command_queue_counters(uf_command_queue *q, uf_command_counters *counters)
{
    uf_engine_lock(q->engine);
    *counters = q->counters;
    uf_engine_unlock(q->engine);
}

int uf_engine_lane_open_locked(uf_engine *e, uf_order_ctx *ctx, uint32_t peer, uf_order_lane **lane)
{
    return uf_order_lane_open(e->order, ctx, peer, lane);
}

int uf_engine_lane_close_locked(uf_engine *e, uf_order_lane *lane)
{
    return uf_order_lane_close(e->order, lane);
}
