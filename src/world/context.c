/* context.c - contexts, their lanes, and completion: fence, quiet, flush.
 *
 * A context costs a pointer per peer; its lane to a peer opens at the first operation that needs the network. Completion is per lane
 * and by marks: a mark notes how far the lane has been used, and the wait ends when that much is done, whatever other threads go on
 * submitting. Mapped peers have nothing to complete: what the caller stored is in memory. */
#include "base/error.h"
#include "world/world.h"
#include <stdio.h>
#include <stdlib.h>

enum { MARKS = 64 }; /* lanes completed at a time: bounds the stack, not the number of peers */

int uf_ctx_create_locked(uf_world *w, const uf_ctx_options *options, uf_ctx **ctx)
{
    uint32_t window = options && options->window ? options->window : (uint32_t)w->settings.number[UF_SET_WINDOW];
    if (window < 2 || window > 32768 || (window & (window - 1)))
        return uf_fail(UF_EINVAL, "uf_ctx_create: options.window is %u; it must be a power of two from 2 to 32768", window);
    if (window > (uint32_t)w->settings.number[UF_SET_WINDOW])
        return uf_fail(UF_EINVAL,
                       "uf_ctx_create: options.window is %u, above UNFENCE_WINDOW with %lld, for which memory was set aside",
                       window, (long long)w->settings.number[UF_SET_WINDOW]);
    if (options && options->flags & ~(uint32_t)UF_ORDERED)
        return uf_fail(UF_EINVAL, "uf_ctx_create: options.flags is 0x%x; only UF_ORDERED is known", options->flags);
    uf_ctx *c = calloc(1, sizeof *c + sizeof c->lanes[0] * (size_t)w->n_pes);
    if (!c)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a context of %d lanes", w->pe, w->n_pes);
    c->world = w;
    c->order.window = window;
    c->order.ordered = options && options->flags & UF_ORDERED;
    c->order.number = w->contexts_made++;
    pthread_mutex_init(&c->opening, NULL);
    c->next = w->contexts;
    w->contexts = c;
    *ctx = c;
    return UF_OK;
}

int uf_ctx_create(uf_world *w, const uf_ctx_options *options, uf_ctx **ctx)
{
    if (!w || !ctx)
        return uf_fail(UF_EINVAL, "uf_ctx_create: argument %s is NULL", !w ? "world" : "ctx");
    if (options && options->size < sizeof *options)
        return uf_fail(UF_EINVAL, "uf_ctx_create: options.size is %zu, not %zu", options->size, sizeof *options);
    int rc = uf_world_check(w);
    if (rc)
        return rc;
    pthread_mutex_lock(&w->contexts_lock);
    rc = uf_ctx_create_locked(w, options, ctx);
    pthread_mutex_unlock(&w->contexts_lock);
    return rc;
}

uf_ctx *uf_ctx_default(uf_world *w)
{
    return w ? w->default_ctx : NULL;
}

void uf_ctx_free(uf_ctx *ctx)
{
    pthread_mutex_destroy(&ctx->opening);
    free(ctx);
}

/* A lane that is closed is another context's soon, so it is forgotten at once: this one may have to live on. */
static int close_lanes(uf_ctx *ctx, uint64_t deadline)
{
    uf_world *w = ctx->world;
    /* All begin at once: each waits for an answer of its peer. */
    for (int pe = 0; pe < w->n_pes; pe++) {
        uf_order_lane *lane = atomic_load(&ctx->lanes[pe]);
        if (lane && uf_engine_lane_close(w->engine, lane) == UF_OK)
            atomic_store_explicit(&ctx->lanes[pe], NULL, memory_order_release);
    }
    for (int pe = 0; pe < w->n_pes; pe++) {
        uf_order_lane *lane = atomic_load(&ctx->lanes[pe]);
        int rc;
        for (uint32_t round = 0; lane && (rc = uf_engine_lane_close(w->engine, lane)) == UF_EAGAIN; round++)
            if ((rc = uf_world_wait_step(w, round, deadline))) {
                char how[256];
                uf_engine_describe(w->engine, (uint32_t)pe, how, sizeof how);
                return rc == UF_ETIMEDOUT ? uf_fail(rc, "PE %d: the lane to PE %d cannot be closed: %s", w->pe, pe, how) : rc;
            }
        atomic_store_explicit(&ctx->lanes[pe], NULL, memory_order_release);
    }
    return UF_OK;
}

static void unlink_ctx(uf_world *w, const uf_ctx *ctx)
{
    for (uf_ctx **at = &w->contexts; *at; at = &(*at)->next)
        if (*at == ctx) {
            *at = ctx->next;
            return;
        }
}

int uf_ctx_destroy(uf_ctx *ctx)
{
    if (!ctx)
        return UF_OK;
    uf_world *w = ctx->world;
    pthread_mutex_lock(&w->contexts_lock);
    uint32_t queues = ctx->n_queues;
    pthread_mutex_unlock(&w->contexts_lock);
    if (queues)
        return uf_fail(UF_EINVAL, "uf_ctx_destroy: argument ctx has %u command queues: end them first", queues);
    if (ctx == w->default_ctx)
        return uf_fail(UF_EINVAL,
                       "uf_ctx_destroy: argument ctx is the world's default context, which lives as long as the world");
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    /* Out of the list first: a barrier of another thread must not look at lanes that are being closed. */
    pthread_mutex_lock(&w->contexts_lock);
    unlink_ctx(w, ctx);
    pthread_mutex_unlock(&w->contexts_lock);
    int rc = uf_ctx_complete(ctx, -1, true, deadline);
    if (!rc)
        rc = close_lanes(ctx, deadline);
    pthread_mutex_lock(&w->contexts_lock);
    uf_ctx **list = rc == UF_ETIMEDOUT ? &w->contexts : &w->abandoned;
    if (rc) {
        ctx->next = *list;
        *list = ctx;
    }
    /* An unsound world keeps the lanes until it is destroyed; the context goes in any case. */
    if (rc != UF_ETIMEDOUT)
        uf_ctx_retire(ctx);
    pthread_mutex_unlock(&w->contexts_lock);
    if (rc == UF_ETIMEDOUT) {
        char why[UF_ERROR_BYTES];
        snprintf(why, sizeof why, "%s", uf_error_message());
        return uf_fail(rc, "uf_ctx_destroy had no end within %llu ms, the context lives on: %s",
                       (unsigned long long)(w->timeout_ns / 1000000), why);
    }
    if (!rc)
        uf_ctx_free(ctx);
    return rc;
}

int uf_ctx_lane(uf_ctx *ctx, int pe, uf_order_lane **lane)
{
    *lane = atomic_load_explicit(&ctx->lanes[pe], memory_order_acquire);
    if (*lane)
        return UF_OK;
    pthread_mutex_lock(&ctx->opening);
    int rc = UF_OK;
    *lane = atomic_load_explicit(&ctx->lanes[pe], memory_order_relaxed);
    uf_order_lane *open = NULL;
    if (!*lane && !(rc = uf_engine_lane_open(ctx->world->engine, &ctx->order, (uint32_t)pe, lane)) &&
        !atomic_compare_exchange_strong(&ctx->lanes[pe], &open, *lane)) {
        /* A command queue of the context was faster (queue.c, find_lane). */
        rc = uf_engine_lane_close(ctx->world->engine, *lane);
        *lane = open;
    }
    pthread_mutex_unlock(&ctx->opening);
    return rc;
}

/* ---------------------------------------------------------------- completion */

typedef struct pending {
    int pe;
    uf_order_lane *lane;
    uf_order_mark mark;
} pending;

/* Marks up to MARKS lanes from *pe on; *pe is where to go on. */
static int mark_some(uf_ctx *ctx, int *pe, int last, bool remote, pending *p)
{
    int n = 0;
    for (; *pe <= last && n < MARKS; ++*pe) {
        uf_order_lane *lane = atomic_load_explicit(&ctx->lanes[*pe], memory_order_acquire);
        if (!lane)
            continue;
        p[n] = (pending){*pe, lane, {0, remote}};
        uf_engine_mark(ctx->world->engine, lane, remote, &p[n].mark);
        n++;
    }
    return n;
}

static int range_of(const uf_ctx *ctx, int pe, int *first, int *last)
{
    *first = pe < 0 ? 0 : pe;
    *last = pe < 0 ? ctx->world->n_pes - 1 : pe;
    /* What was stored into mapped memory is ordered before whatever the caller tells anybody next. */
    atomic_thread_fence(memory_order_seq_cst);
    return ctx->world->fabric != NULL;
}

int uf_ctx_complete(uf_ctx *ctx, int pe, bool remote, uint64_t deadline)
{
    uf_world *w = ctx->world;
    int at, last;
    pending p[MARKS];
    if (!range_of(ctx, pe, &at, &last))
        return uf_world_check(w);
    while (at <= last) {
        int n = mark_some(ctx, &at, last, remote, p);
        for (int i = 0; i < n; i++) {
            int rc;
            for (uint32_t round = 0; (rc = uf_engine_mark_test(w->engine, p[i].lane, &p[i].mark)) == UF_EAGAIN; round++)
                if ((rc = uf_world_wait_step(w, round, deadline)))
                    break;
            if (rc == UF_ETIMEDOUT) {
                char how[256];
                uf_engine_describe(w->engine, (uint32_t)p[i].pe, how, sizeof how);
                return uf_fail(rc, "PE %d: %s: operations to PE %d are not complete at their deadline (UNFENCE_TIMEOUT): %s",
                               w->pe, remote ? "quiet" : "flush", p[i].pe, how);
            }
            if (rc)
                return uf_world_first_cause(w, rc);
        }
    }
    return uf_world_check(w);
}

/* Nobody waits for mapped memory, so nobody needs the clock. */
static uint64_t completion_deadline(uf_world *w)
{
    return w->fabric ? uf_world_deadline(w, w->timeout_ns) : UINT64_MAX;
}

static int complete_test(uf_ctx *ctx, bool remote)
{
    uf_world *w = ctx->world;
    int at, last;
    pending p[MARKS];
    if (!range_of(ctx, -1, &at, &last))
        return uf_world_check(w);
    uf_engine_poll(w->engine);
    while (at <= last) {
        int n = mark_some(ctx, &at, last, remote, p);
        for (int i = 0; i < n; i++) {
            int rc = uf_engine_mark_test(w->engine, p[i].lane, &p[i].mark);
            if (rc == UF_EAGAIN)
                return uf_fail(rc, "PE %d: operations to PE %d are not complete yet", w->pe, p[i].pe);
            if (rc)
                return uf_world_first_cause(w, rc);
        }
    }
    return uf_world_check(w);
}

int uf_fence(uf_ctx *ctx)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "uf_fence: argument ctx is NULL");
    /* Mapped peers: a release fence orders the stores. Network lanes look at the epoch when they are next used (rule 7). */
    atomic_thread_fence(memory_order_release);
    __atomic_fetch_add(&ctx->order.fence_epoch, 1, __ATOMIC_RELAXED);
    uf_tally_add(&ctx->tally, UF_FENCES, 1);
    return UF_OK;
}

int uf_quiet(uf_ctx *ctx)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "uf_quiet: argument ctx is NULL");
    uf_tally_add(&ctx->tally, UF_QUIETS, 1);
    return uf_ctx_complete(ctx, -1, true, completion_deadline(ctx->world));
}

int uf_quiet_pe(uf_ctx *ctx, int pe)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "uf_quiet_pe: argument ctx is NULL");
    if (!uf_world_check_pe(ctx->world, pe))
        return uf_fail(UF_ERANGE, "uf_quiet_pe: there is no PE %d in a world of %d PEs", pe, ctx->world->n_pes);
    uf_tally_add(&ctx->tally, UF_QUIETS, 1);
    return uf_ctx_complete(ctx, pe, true, completion_deadline(ctx->world));
}

int uf_quiet_test(uf_ctx *ctx)
{
    return ctx ? complete_test(ctx, true) : uf_fail(UF_EINVAL, "uf_quiet_test: argument ctx is NULL");
}

int uf_flush(uf_ctx *ctx)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "uf_flush: argument ctx is NULL");
    return uf_ctx_complete(ctx, -1, false, completion_deadline(ctx->world));
}

int uf_flush_test(uf_ctx *ctx)
{
    return ctx ? complete_test(ctx, false) : uf_fail(UF_EINVAL, "uf_flush_test: argument ctx is NULL");
}
