/* queue.c - device command queues seen from the world: what the addresses of a command mean, and the life of a queue.
 *
 * The engine consumes the rings (engine/command.c) and asks here, under the endpoint's lock, where a command leads: to mapped memory, which the
 * engine then copies to and updates itself, or over a lane. Nothing here may call the engine from there, allocate or wait. Every
 * address is looked up in the regions before it is used: what is not symmetric memory is an error of the command. */
#include "world/queue.h"
#include "base/error.h"
#include "world/reach.h"
#include <stdlib.h>

struct uf_queue {
    uf_ctx *ctx;
    uf_command_queue *commands;
    uf_queue *next; /* in world->queues */
};

/* ---------------------------------------------------------------- where a command leads */

static int refuse(const char *field, uint64_t address, uint64_t bytes)
{
    return uf_fail(
        UF_ERANGE,
        "%s: 0x%llx with %llu bytes is not symmetric memory of this world (uf_malloc, uf_register, uf_signal_alloc), or "
        "runs over its end",
        field, (unsigned long long)address, (unsigned long long)bytes);
}

static inline void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* The consumer is a CPU, and no network here reaches GPU memory yet. */
static int refuse_gpu(const char *field, uint64_t address)
{
    return uf_fail(UF_EUNSUPPORTED, "%s: 0x%llx is GPU memory, which command queues do not reach yet; use memory from uf_malloc",
                   field, (unsigned long long)address);
}

static int find(uf_world *w, const char *field, uint64_t address, uint64_t bytes, uint32_t pe, uf_reach *at)
{
    if (!uf_reach_find(w, pointer(address), bytes, (int)pe, at))
        return refuse(field, address, bytes);
    if (at->gpu)
        return refuse_gpu(field, address);
    if (w->peers[pe].mapped && !at->mapped)
        return uf_fail(UF_EUNSUPPORTED,
                       "%s: 0x%llx lies in a window over a buffer of another process on this host (PE %u), which command queues "
                       "do not reach; use memory from uf_malloc",
                       field, (unsigned long long)address, pe);
    return UF_OK;
}

static int lead_data(uf_world *w, const uf_command *c, uf_command_way *way)
{
    const uf_region *here = uf_memory_find(w, pointer(c->local), c->bytes);
    if (!here)
        return refuse("local", c->local, c->bytes);
    if (here->memory == UF_MEMORY_CUDA)
        return refuse_gpu("local", c->local);
    uf_reach there = {0};
    int rc = find(w, "remote", c->remote, c->bytes, c->pe, &there);
    if (rc)
        return rc;
    if (there.mapped) {
        way->to = c->op == UF_COMMAND_GET ? pointer(c->local) : there.mapped;
        way->from = c->op == UF_COMMAND_GET ? there.mapped : pointer(c->local);
        return UF_OK;
    }
    uf_reach_remote(&there, pointer(c->remote), (int)c->pe, &way->op);
    way->op.local = c->local;
    way->op.local_desc = here->mr->desc;
    return UF_OK;
}

/* This PE's own word that a command names by address or index; NULL with the error made. */
static uint64_t *find_word(uf_world *w, const uf_command *c)
{
    if (!(c->flags & UF_COMMAND_INDEXED))
        return pointer(c->word);
    if (c->word < w->n_signals)
        return &w->signals[c->word];
    uf_fail(UF_ERANGE, "word: signal index %llu, but there are %zu (UNFENCE_SIGNALS)", (unsigned long long)c->word, w->n_signals);
    return NULL;
}

static int lead_word(uf_world *w, const uf_command *c, uf_command_way *way)
{
    const uint64_t *word = find_word(w, c);
    uf_reach at = {0};
    int rc = word ? find(w, "word", (uint64_t)(uintptr_t)word, way->op.width, c->pe, &at) : UF_ERANGE;
    if (rc)
        return rc;
    if (at.mapped)
        way->word = at.mapped;
    else if (c->op == UF_COMMAND_ATOMIC)
        way->op.signal_address = uf_memory_wire(at.region, word);
    else
        uf_reach_signal(w, &at, word, &way->op);
    return UF_OK;
}

static inline bool uses_word(const uf_command *c)
{
    return c->op == UF_COMMAND_PUT_SIGNAL || c->op == UF_COMMAND_SIGNAL || c->op == UF_COMMAND_ATOMIC;
}

/* As uf_ctx_lane, with the endpoint's lock held. */
static inline int find_lane(uf_ctx *ctx, uint32_t pe, uf_order_lane **lane)
{
    *lane = atomic_load_explicit(&ctx->lanes[pe], memory_order_acquire);
    if (*lane)
        return UF_OK;
    int rc = uf_engine_lane_open_locked(ctx->world->engine, &ctx->order, pe, lane);
    uf_order_lane *open = NULL;
    /* A host thread may be opening it, too (uf_ctx_lane): whoever is second closes its own again, at once since nobody has used it. */
    if (!rc && !atomic_compare_exchange_strong(&ctx->lanes[pe], &open, *lane)) {
        rc = uf_engine_lane_close_locked(ctx->world->engine, *lane);
        *lane = open;
    }
    return rc;
}

static int resolve(void *arg, const uf_command *c, uf_command_way *way)
{
    uf_queue *q = arg;
    uf_world *w = q->ctx->world;
    int rc = way->op.bytes ? lead_data(w, c, way) : UF_OK;
    if (!rc && uses_word(c))
        rc = lead_word(w, c, way);
    return rc || w->peers[c->pe].mapped ? rc : find_lane(q->ctx, c->pe, &way->lane);
}

static uint64_t apply(void *arg, void *word, uint32_t op, uint32_t width, uint64_t operand, uint64_t compare)
{
    (void)arg;
    return uf_atomic_apply(word, (uint8_t)op, (uint8_t)width, operand, compare);
}

static int sound(void *arg)
{
    uf_queue *q = arg;
    return uf_world_check(q->ctx->world);
}

/* ---------------------------------------------------------------- life */

static int log2_of(uint32_t depth, uint32_t *shift)
{
    if (depth == 0)
        depth = 1024;
    if (depth & (depth - 1))
        return uf_fail(UF_EINVAL, "uf_queue_create: options.depth is %u, no power of two", depth);
    *shift = 0;
    while (depth >> (*shift + 1))
        ++*shift;
    return UF_OK;
}

static void link_queue(uf_world *w, uf_queue *q)
{
    pthread_mutex_lock(&w->contexts_lock);
    q->next = w->queues;
    w->queues = q;
    q->ctx->n_queues++;
    atomic_fetch_add(&w->n_queues, 1);
    pthread_mutex_unlock(&w->contexts_lock);
}

static void unlink_queue(uf_world *w, const uf_queue *q)
{
    pthread_mutex_lock(&w->contexts_lock);
    uf_queue **at = &w->queues;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    q->ctx->n_queues--;
    atomic_fetch_sub(&w->n_queues, 1);
    pthread_mutex_unlock(&w->contexts_lock);
}

int uf_queue_create(uf_ctx *ctx, const uf_queue_options *o, uf_queue **queue)
{
    const uf_queue_options defaults = {.size = sizeof defaults};
    if (!ctx || !queue)
        return uf_fail(UF_EINVAL, "uf_queue_create: argument %s is NULL", !ctx ? "ctx" : "queue");
    if (!o)
        o = &defaults;
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL, "uf_queue_create: options.size is %zu, not %zu", o->size, sizeof *o);
    uf_world *w = ctx->world;
    uint32_t shift = 0;
    int rc = uf_world_check(w);
    if (!rc)
        rc = log2_of(o->depth, &shift);
    if (rc)
        return rc;
    uf_queue *q = calloc(1, sizeof *q);
    if (!q)
        return uf_fail(UF_ENOMEM, "uf_queue_create: no memory");
    q->ctx = ctx;
    const uf_command_edges edges = {q, resolve, apply, sound};
    uf_command_params params = {.shift = shift,
                                .n_results = o->n_results ? o->n_results : 64,
                                .timeout_ns = w->timeout_ns,
                                .first = o->first,
                                .ctx = &ctx->order,
                                .memory = o->memory ? o->memory : &uf_command_memory_plain,
                                .edges = &edges};
    rc = uf_command_queue_create(w->engine, &params, &q->commands);
    if (rc) {
        free(q);
        return rc;
    }
    link_queue(w, q);
    *queue = q;
    return UF_OK;
}

/* Counts what it did among the world's ended contexts. */
static void retire(uf_world *w, uf_queue *q)
{
    uf_command_counters c;
    uf_command_queue_counters(q->commands, &c);
    pthread_mutex_lock(&w->contexts_lock);
    uf_queue_add_counters(&w->retired, &c);
    pthread_mutex_unlock(&w->contexts_lock);
}

/* Answers that are still on their way name the queue: what is left of it stays until the engine is gone. */
static void end(uf_world *w, uf_queue *q)
{
    if (uf_command_queue_destroy(q->commands)) {
        free(q);
        return;
    }
    pthread_mutex_lock(&w->contexts_lock);
    q->next = w->ended_queues;
    w->ended_queues = q;
    pthread_mutex_unlock(&w->contexts_lock);
}

int uf_queue_destroy(uf_queue *q)
{
    if (!q)
        return UF_OK;
    uf_world *w = q->ctx->world;
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    int rc;
    for (uint32_t round = 0; (rc = uf_command_queue_idle(q->commands)) == UF_EAGAIN; round++)
        if ((rc = uf_world_wait_step(w, round, deadline)))
            break;
    if (!rc)
        rc = uf_ctx_complete(q->ctx, -1, true, deadline);
    if (rc == UF_ETIMEDOUT)
        return uf_fail(rc, "PE %d: uf_queue_destroy: commands are not complete after %llu ms; the queue lives on", w->pe,
                       (unsigned long long)(w->timeout_ns / 1000000));
    retire(w, q);
    unlink_queue(w, q);
    end(w, q);
    return rc;
}

void uf_queues_stop(uf_world *w)
{
    while (w->queues) {
        uf_queue *q = w->queues;
        unlink_queue(w, q);
        end(w, q);
    }
}

void uf_queues_free(uf_world *w)
{
    while (w->ended_queues) {
        uf_queue *q = w->ended_queues;
        w->ended_queues = q->next;
        uf_command_queue_free(q->commands);
        free(q);
    }
}

/* ---------------------------------------------------------------- questions */

const uf_command_ring *uf_queue_ring(const uf_queue *q)
{
    return uf_command_queue_ring(q->commands);
}

int uf_queue_status(uf_queue *q)
{
    int rc = uf_world_check(q->ctx->world);
    return rc ? rc : uf_command_queue_status(q->commands);
}

void uf_queue_counters(uf_queue *q, uf_command_counters *counters)
{
    uf_command_queue_counters(q->commands, counters);
}

void uf_queue_add_counters(uf_counters *sum, const uf_command_counters *c)
{
    sum->puts += c->puts;
    sum->gets += c->gets;
    sum->signals += c->signals;
    sum->atomics += c->atomics;
    sum->bytes_local += c->bytes_near;
    sum->bytes_network += c->bytes_network;
    sum->fences += c->fences;
    sum->quiets += c->quiets;
}

/* With contexts_lock held. */
void uf_queues_count(uf_world *w, uf_counters *sum)
{
    for (uf_queue *q = w->queues; q; q = q->next) {
        uf_command_counters c;
        uf_command_queue_counters(q->commands, &c);
        uf_queue_add_counters(sum, &c);
    }
}
