/* request.c - what waits for an operation's end: gets, fetched values, and registrations to give back.
 *
 * A request is taken by the caller, named to src/order as `user`, and ended once by uf_request_done under the endpoint's lock. If the
 * caller has given up waiting, the end puts it back into the pool; so a late answer never finds a request that is
 * somebody else's. The pool grows by blocks and is freed with the world. */
#include "base/error.h"
#include "world/world.h"
#include <stdlib.h>

enum { BLOCK = 64 };

struct uf_request_block {
    struct uf_request_block *next;
    uf_request requests[BLOCK];
};

enum { IN_FLIGHT, DONE, GIVEN_UP };

static void pool_lock(uf_world *w)
{
    while (atomic_exchange_explicit(&w->pool_lock, 1, memory_order_acquire))
        w->driver->relax(w->driver->arg, 0);
}

static void pool_unlock(uf_world *w)
{
    atomic_store_explicit(&w->pool_lock, 0, memory_order_release);
}

static uf_request *take(uf_world *w)
{
    pool_lock(w);
    uf_request *r = w->pool;
    if (r)
        w->pool = r->next;
    pool_unlock(w);
    return r;
}

static void add_block(uf_world *w, struct uf_request_block *b)
{
    pool_lock(w);
    b->next = w->blocks;
    w->blocks = b;
    for (int i = 0; i < BLOCK; i++) {
        b->requests[i].next = w->pool;
        w->pool = &b->requests[i];
    }
    pool_unlock(w);
}

uf_request *uf_request_get(uf_world *w)
{
    uf_request *r = take(w);
    if (!r) {
        struct uf_request_block *b = calloc(1, sizeof *b);
        if (!b)
            return NULL;
        add_block(w, b);
        r = take(w);
    }
    if (r) {
        atomic_store_explicit(&r->state, IN_FLIGHT, memory_order_relaxed);
        r->status = UF_OK;
        r->old = NULL;
        r->registration = NULL;
        r->detached = false;
    }
    return r;
}

void uf_request_put(uf_world *w, uf_request *r)
{
    pool_lock(w);
    r->next = w->pool;
    w->pool = r;
    pool_unlock(w);
}

void uf_requests_free(uf_world *w)
{
    while (w->blocks) {
        struct uf_request_block *next = w->blocks->next;
        free(w->blocks);
        w->blocks = next;
    }
}

void uf_request_done(void *world, uint64_t user, int status, uint64_t value)
{
    uf_world *w = world;
    uf_request *r = (uf_request *)(uintptr_t)user;
    if (r->registration)
        uf_memory_source_done(w, r->registration);
    r->registration = NULL;
    r->status = status;
    r->value = value;
    if (r->old && status == UF_OK)
        *r->old = value;
    /* Pairs with the acquire load in uf_request_wait. */
    if (r->detached || atomic_exchange_explicit(&r->state, DONE, memory_order_acq_rel) == GIVEN_UP)
        uf_request_put(w, r);
}

int uf_request_wait(uf_world *w, uf_request *r, const char *call, int pe, uint64_t *value)
{
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    for (uint32_t round = 0; atomic_load_explicit(&r->state, memory_order_acquire) != DONE; round++) {
        int rc = uf_world_wait_step(w, round, deadline);
        if (!rc)
            continue;
        int in_flight = IN_FLIGHT;
        if (!atomic_compare_exchange_strong(&r->state, &in_flight, GIVEN_UP))
            break; /* it came at the last moment */
        if (rc != UF_ETIMEDOUT)
            return rc;
        char how[256];
        uf_engine_describe(w->engine, (uint32_t)pe, how, sizeof how);
        return uf_fail(rc, "PE %d: %s from PE %d had no answer within %llu ms (UNFENCE_TIMEOUT): %s", w->pe, call, pe,
                       (unsigned long long)(w->timeout_ns / 1000000), how);
    }
    int status = r->status;
    *value = r->value;
    uf_request_put(w, r);
    if (status && !uf_world_check(w))
        return uf_fail(status, "PE %d: %s from PE %d failed", w->pe, call, pe);
    return status;
}
