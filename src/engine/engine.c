/* engine.c - one endpoint: the ordering protocol on one side, a fabric on the other, a lock around both.
 *
 * Everything that moves goes through step(): completions out of the fabric into src/order, and what became possible out of
 * src/order into the fabric. Callers that post or wait hold the lock for one bounded step and do the work themselves,
 * so an operation of a program that communicates never waits for a thread to wake up; thread.c steps in when nobody does.
 * Nothing here reads a clock, sleeps or blocks with the lock held. The lock is the room's only one: a word that is
 * exchanged, since a step takes well under a microsecond and those who wait yield. */
#include "engine/engine.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/private.h"
#include "engine/queue_state.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    CQE_BATCH = 32,
    CQE_BATCHES = 4, /* of one step where command queues start as many operations in it */
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline bool try_lock(uf_engine *e)
{
    /* Pairs with the release store in unlock: what the last holder did to order and fabric is seen here. */
    return atomic_load_explicit(&e->locked, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&e->locked, 1, memory_order_acquire) == 0;
}

static inline void lock(uf_engine *e)
{
    uint32_t tries = 0;
    while (!try_lock(e)) {
        /* The holder may have been descheduled on a machine with more threads than cores: let it run. */
        if (++tries % 64 == 0)
            sched_yield();
        else
            cpu_pause();
    }
}

static inline void unlock(uf_engine *e)
{
    atomic_store_explicit(&e->locked, 0, memory_order_release);
}

void uf_engine_lock(uf_engine *e)
{
    lock(e);
}

void uf_engine_unlock(uf_engine *e)
{
    unlock(e);
}

/* ---------------------------------------------------------------- edges of src/order */

static int edge_post(void *arg, const uf_wr *wr)
{
    uf_engine *e = arg;
    int rc = e->fabric->ops->post(e->fabric, wr);
    if (rc == UF_EAGAIN) {
        e->eagain++;
        return rc;
    }
    if (wr->flags & UF_WR_MORE)
        e->unrung = true;
    e->rails[wr->rail].posted += rc == UF_OK;
    e->rails[wr->rail].bytes += rc == UF_OK ? wr->bytes : 0;
    return rc;
}

/* The same with several rails: the operation named tables (engine.h). */
static int edge_post_rails(void *arg, const uf_wr *wr)
{
    if (wr->verb == UF_VERB_SEND || wr->bytes == 0)
        return edge_post(arg, wr);
    const uf_fabric_key *keys = (const uf_fabric_key *)(uintptr_t)wr->remote_key;
    const uint64_t *descs = (const uint64_t *)(uintptr_t)wr->local_desc;
    uf_wr out = *wr;
    out.remote += keys[wr->rail].base - keys[0].base;
    out.remote_key = keys[wr->rail].key;
    out.local_desc = descs ? descs[wr->rail] : 0;
    return edge_post(arg, &out);
}

static int edge_apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    uf_engine *e = arg;
    return e->host.apply(e->host.arg, signal, old);
}

static void edge_done(void *arg, uint64_t user, int status, uint64_t value)
{
    uf_engine *e = arg;
    if (uf_command_is_fetch_user(user))
        uf_command_fetched(user, status, value);
    else
        e->host.done(e->host.arg, user, status, value);
}

static void edge_failed(void *arg, uint32_t flow, int status)
{
    uf_engine *e = arg;
    e->host.failed(e->host.arg, flow, status);
}

/* ---------------------------------------------------------------- the step */

/* A rail broke: its work moves to the others, and somebody should know. The last one ends the flow, and so the world. */
static int __attribute__((cold)) rail_broke(uf_engine *e, const uf_cqe *cqe)
{
    if (cqe->rail >= e->n_rails)
        return UF_OK; /* one that this PE has and others do not, so nobody uses it */
    const char *why = e->fabric->ops->error(e->fabric);
    uf_engine_rail *rail = &e->rails[cqe->rail];
    uint32_t flow = cqe->peer == UF_CQE_ALL_PEERS ? UF_ORDER_ALL_FLOWS : cqe->peer;
    char to[24] = "every PE";
    if (flow != UF_ORDER_ALL_FLOWS)
        snprintf(to, sizeof to, "PE %u", flow);
    rail->broken = flow == UF_ORDER_ALL_FLOWS || rail->broken == (uint32_t)e->n_pes ? (uint32_t)e->n_pes : rail->broken + 1;
    if (e->n_rails > 1)
        uf_log(UF_LOG_WARN, e->pe, "rail %u to %s broke; what it carried goes over the other rails from now on: %s", cqe->rail,
               to, why);
    return uf_order_fail_rail(e->order, flow, cqe->rail, why);
}

static int handle(uf_engine *e, const uf_cqe *cqe)
{
    switch (cqe->kind) {
    case UF_CQE_SENT:
        if (cqe->rail < e->n_rails)
            e->rails[cqe->rail].completed++;
        if (cqe->status < 0)
            uf_error_set(cqe->status, e->fabric->ops->error(e->fabric));
        return uf_order_sent(e->order, cqe->cookie, cqe->status);
    case UF_CQE_IMM:
        return uf_order_imm(e->order, cqe->peer, cqe->rail, cqe->imm);
    case UF_CQE_MESSAGE:
        return uf_order_message(e->order, cqe->peer, cqe->message);
    case UF_CQE_RAIL:
        return rail_broke(e, cqe);
    }
    return uf_fail(UF_EINTERNAL, "PE %d: the fabric reported a completion of unknown kind %u", e->pe, cqe->kind);
}

static void ring(uf_engine *e)
{
    if (e->unrung && e->fabric->ops->flush)
        e->fabric->ops->flush(e->fabric);
    e->unrung = false;
}

/* A batch of completions out of the fabric: how many, or the error that ended it. */
static int take_batch(uf_engine *e)
{
    uf_cqe cqes[CQE_BATCH];
    int n = e->fabric->ops->poll(e->fabric, cqes, CQE_BATCH);
    if (n < 0) {
        e->broken = n;
        e->host.failed(e->host.arg, (uint32_t)e->pe, n);
        return n;
    }
    for (int i = 0; i < n; i++) {
        int rc = handle(e, &cqes[i]);
        /* Other errors concern one flow and have been told through the failed edge; so may this have been, then it is told to no effect. */
        if (rc == UF_EINTERNAL && !e->unsound) {
            e->unsound = true;
            e->host.failed(e->host.arg, (uint32_t)e->pe, rc);
        }
    }
    if (__builtin_expect(e->n_rails > 1, 0))
        uf_order_drained(e->order, e->fabric->drained);
    return n;
}

static int take_completions(uf_engine *e)
{
    int n = take_batch(e), last = n;
    /* Fewer than what is started would leave operations in software queues, the long way. */
    for (int i = 1; e->queues && last == CQE_BATCH && i < CQE_BATCHES; i++) {
        last = take_batch(e);
        n = last < 0 ? last : n + last;
    }
    return n;
}

/* With the lock held. Events moved, or the error that ended the fabric: command queues are served then, too, so that theirs hear of it. */
static int step(uf_engine *e)
{
    int n = e->fabric && !e->broken ? take_completions(e) : 0;
    int moved = uf_command_serve(e);
    if (e->broken)
        return e->broken;
    if (!e->fabric)
        return moved;
    int posted = uf_order_progress(e->order);
    ring(e);
    return n + moved + (posted > 0 ? posted : 0);
}

int uf_engine_poll(uf_engine *e)
{
    if (!(e->fabric || uf_engine_has_queues(e)) || !try_lock(e))
        return 0;
    int n = step(e);
    unlock(e);
    /* Tells the progress thread that callers do its work; a lost update only costs it one look. */
    atomic_store_explicit(&e->inline_steps, atomic_load_explicit(&e->inline_steps, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return n;
}

/* One step for the progress thread: as uf_engine_poll, but -1 if somebody else is at it. */
int uf_engine_thread_step(uf_engine *e)
{
    if (!try_lock(e))
        return -1;
    int n = step(e);
    unlock(e);
    return n < 0 ? 0 : n;
}

bool uf_engine_thread_arm(uf_engine *e)
{
    if (!e->fabric->ops->arm || !try_lock(e))
        return false;
    bool sleepy = !e->broken && !uf_order_busy(e->order) && e->fabric->ops->arm(e->fabric) == UF_OK;
    unlock(e);
    return sleepy;
}

/* ---------------------------------------------------------------- operations */

static int no_room(uf_engine *e, const uf_order_lane *lane)
{
    uint32_t peer = uf_order_lane_peer(lane);
    char how[256];
    uf_engine_describe(e, peer, how, sizeof how);
    return uf_fail(UF_ETIMEDOUT,
                   "PE %d: an operation to PE %u found no room in the queues until its deadline: the network or a peer does not "
                   "take what was sent (%s); UNFENCE_TIMEOUT sets how long to wait, UNFENCE_QUEUE_DEPTH the room",
                   e->pe, peer, how);
}

/* Between two tries of a caller that found the queues full: UF_OK to try again. The clock is read only here, so that
 * an operation that finds room costs no system call. */
static int back_off(uf_engine *e, const uf_order_lane *lane, uint64_t timeout_ns, uint64_t *deadline, uint32_t round)
{
    if (timeout_ns == 0)
        return uf_fail(UF_EAGAIN, "PE %d: the queues are full and the caller asked not to wait (UF_NOWAIT)", e->pe);
    if (round == 0) {
        uint64_t now = e->driver->now(e->driver->arg);
        *deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    }
    int rc = e->host.wait(e->host.arg, round, *deadline);
    return rc == UF_ETIMEDOUT ? no_room(e, lane) : rc;
}

int uf_engine_submit(uf_engine *e, uf_order_lane *lane, const uf_order_op *op, uint64_t timeout_ns)
{
    uint64_t deadline = 0;
    for (uint32_t round = 0;; round++) {
        lock(e);
        int rc = e->broken ? e->broken : uf_order_submit(e->order, lane, op);
        ring(e);
        unlock(e);
        if (rc != UF_EAGAIN)
            return rc;
        rc = back_off(e, lane, timeout_ns, &deadline, round);
        if (rc)
            return rc;
    }
}

int uf_engine_submit_many(uf_engine *e, uf_order_lane *const *lanes, const uf_order_op *ops, uint32_t n, uint64_t timeout_ns,
                          uint32_t *done)
{
    uint64_t deadline = 0;
    *done = 0;
    for (uint32_t round = 0; *done < n; round++) {
        int rc = UF_OK;
        lock(e);
        while (*done < n && (rc = e->broken ? e->broken : uf_order_submit(e->order, lanes[*done], &ops[*done])) == UF_OK) {
            ++*done;
            round = 0;
        }
        ring(e);
        unlock(e);
        if (rc == UF_EAGAIN)
            rc = back_off(e, lanes[*done], timeout_ns, &deadline, round);
        if (rc)
            return rc;
    }
    return UF_OK;
}

void uf_engine_mark(uf_engine *e, uf_order_lane *lane, bool remote, uf_order_mark *mark)
{
    lock(e);
    uf_order_mark_set(e->order, lane, remote, mark);
    uf_order_progress(e->order);
    ring(e);
    unlock(e);
}

int uf_engine_mark_test(uf_engine *e, uf_order_lane *lane, const uf_order_mark *mark)
{
    lock(e);
    int rc = e->broken ? e->broken : uf_order_mark_test(e->order, lane, mark);
    unlock(e);
    return rc;
}

int uf_engine_lane_open(uf_engine *e, uf_order_ctx *ctx, uint32_t peer, uf_order_lane **lane)
{
    lock(e);
    int rc = uf_order_lane_open(e->order, ctx, peer, lane);
    unlock(e);
    return rc;
}

int uf_engine_lane_close(uf_engine *e, uf_order_lane *lane)
{
    lock(e);
    int rc = uf_order_lane_close(e->order, lane);
    ring(e);
    unlock(e);
    return rc;
}

void uf_engine_fail_peer(uf_engine *e, uint32_t peer, int status)
{
    if (!e->fabric)
        return;
    lock(e);
    uf_order_fail_flow(e->order, peer, status);
    unlock(e);
}

static void name_registration(const uf_engine *e, uf_engine_mr *m)
{
    const uf_fabric *f = e->fabric;
    if (!f->caps.needs_desc)
        return;
    for (uint32_t rail = 0; rail < e->n_rails; rail++)
        m->by_rail[rail] = f->ops->mr_desc(m->mr, rail);
    m->desc = e->n_rails == 1 ? m->by_rail[0] : (uint64_t)(uintptr_t)m->by_rail;
}

int uf_engine_mr_register(uf_engine *e, void *ptr, size_t bytes, bool remote, uf_engine_mr **mr)
{
    uf_engine_mr *m = calloc(1, sizeof *m + e->n_rails * sizeof m->by_rail[0]);
    if (!m)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to note a registration", e->pe);
    lock(e);
    int rc = e->fabric->ops->mr_register(e->fabric, ptr, bytes, remote, &m->mr);
    if (!rc)
        name_registration(e, m);
    unlock(e);
    if (rc) {
        free(m);
        return rc;
    }
    *mr = m;
    return UF_OK;
}

void uf_engine_mr_close(uf_engine *e, uf_engine_mr *m)
{
    lock(e);
    e->fabric->ops->mr_close(e->fabric, m->mr);
    unlock(e);
    free(m);
}

void uf_engine_counters(uf_engine *e, uf_order_counters *counters, uint64_t *eagain)
{
    memset(counters, 0, sizeof *counters);
    *eagain = 0;
    if (!e->fabric)
        return;
    lock(e);
    *counters = *uf_order_counters_get(e->order);
    *eagain = e->eagain;
    unlock(e);
}

void uf_engine_rail_counters(uf_engine *e, uint32_t rail, uf_engine_rail *counters)
{
    lock(e);
    *counters = e->rails[rail];
    unlock(e);
}

int uf_engine_watch(uf_engine *e)
{
    uint32_t peer;
    if (!e->fabric)
        return UF_OK;
    lock(e);
    int rc = uf_order_watch(e->order, &peer);
    unlock(e);
    return rc;
}

size_t uf_engine_describe(uf_engine *e, uint32_t peer, char *text, size_t bytes)
{
    if (!e->fabric)
        return (size_t)snprintf(text, bytes, "PE %u is reached through mapped memory", peer);
    lock(e);
    size_t n = uf_order_describe(e->order, peer, text, bytes);
    unlock(e);
    return n;
}

size_t uf_engine_bytes(const uf_order_config *config)
{
    return sizeof(uf_engine) + uf_order_bytes(config);
}

/* ---------------------------------------------------------------- creation */

int uf_engine_create(const uf_engine_params *params, uf_engine **engine)
{
    uf_engine *e = calloc(1, sizeof *e);
    if (!e)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the engine", params->pe);
    e->pe = params->pe;
    e->n_pes = params->n_pes;
    e->fabric = params->fabric;
    e->driver = params->driver;
    e->host = params->host;
    e->local_pes = params->local_pes;
    e->want_thread = params->driver->threads && strcasecmp(params->settings->text[UF_SET_PROGRESS], "inline") != 0;
    e->want_near = params->settings->number[UF_SET_PIN_PROGRESS];
    if (e->fabric) {
        uf_order_config config;
        int rc = uf_engine_order_config(params, &config);
        if (!rc) {
            uf_order_edges edges = {e, config.n_rails > 1 ? edge_post_rails : edge_post, edge_apply, edge_done, edge_failed};
            e->n_rails = config.n_rails;
            rc = uf_order_create(&config, &edges, &e->order);
        }
        if (rc) {
            free(e);
            return rc;
        }
        uf_log(UF_LOG_DEBUG, e->pe, "ordering protocol: %zu KiB set aside, window %u, credits %u, messages %u a peer",
               uf_engine_bytes(&config) / 1024, config.window, config.credits, config.message_credits);
        if (config.n_rails > 1)
            uf_log(UF_LOG_DEBUG, e->pe, "%u rails: puts from %llu bytes on are striped in parts of at least %llu", config.n_rails,
                   (unsigned long long)config.stripe_bytes, (unsigned long long)config.stripe_chunk);
    }
    *engine = e;
    return UF_OK;
}

int uf_engine_start(uf_engine *e)
{
    return e->want_thread ? uf_engine_thread_start(e) : UF_OK;
}

void uf_engine_stop(uf_engine *e)
{
    uf_engine_thread_stop(e);
}

void uf_engine_destroy(uf_engine *e)
{
    if (!e)
        return;
    uf_engine_thread_stop(e);
    uf_order_destroy(e->order);
    free(e);
}
