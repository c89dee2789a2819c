/* engine.h - joins the ordering protocol to a fabric: one endpoint (all rails) of one PE, and whoever drives it.
 *
 * step(now) moves everything that can move: polls the fabric, feeds src/order, posts what became possible. Callers that post
 * or wait take the endpoint's lock and do it inline; a progress thread (thread.c) does it when nobody else does. All functions
 * are thread-safe unless said otherwise; none blocks for the network, except where a deadline is given. */
#ifndef UF_ENGINE_ENGINE_H
#define UF_ENGINE_ENGINE_H

#include "engine/driver.h"
#include "fabric/fabric.h"
#include "order/order.h"

typedef struct uf_engine uf_engine;

/* What the world gives: how a peer's signal reaches memory, and whether the world still lives. Called with the endpoint's lock
 * held; must not call the engine. */
typedef struct uf_engine_host {
    void *arg;
    int (*apply)(void *arg, const uf_order_signal *signal, uint64_t *old);
    void (*done)(void *arg, uint64_t user, int status, uint64_t value);
    /* A flow failed; the world becomes unsound. The sentence is in uf_error_message. */
    void (*failed)(void *arg, uint32_t peer, int status);
    /* Called by the progress thread about every millisecond, without the lock: bootstrap messages, deaths. */
    void (*tick)(void *arg, uint64_t now);
    /* One round of a caller's wait, without the lock: progress, rest, and now and then a look at the clock and at the world. UF_OK to try
     * again, UF_ETIMEDOUT (no sentence made) past the deadline, or the error that ended the world. */
    int (*wait)(void *arg, uint32_t round, uint64_t deadline);
} uf_engine_host;

/* What both ends of a flow must count by alike. */
typedef struct uf_engine_limits {
    uint32_t credits, messages; /* of a flow */
    uint32_t immediates;        /* 0 or 1 */
} uf_engine_limits;

typedef struct uf_engine_params {
    const uf_settings *settings;
    int pe, n_pes;
    uf_fabric *fabric; /* open, not yet connected; NULL: no network, the engine only runs tick. Stays the caller's */
    uint32_t n_rails;  /* of the fabric's, those that all PEs have; 0: all */
    const uf_driver *driver;
    uf_engine_host host;
    const uf_engine_limits *agreed; /* the least of all PEs; NULL: this PE's own */
    uint32_t local_pes;             /* PEs that share this host: decides how long a wait spins */
} uf_engine_params;

/* What an engine with this configuration allocates at creation, in bytes: itself and its order. What the allocator adds to each is its own. */
size_t uf_engine_bytes(const uf_order_config *config);

/* How large a fabric's queues should be, before there is one: fills n_rails, tx_depth, receives, remote_cqes and those liked by settings and n_pes. Pure. */
void uf_engine_fabric_sizes(uf_fabric_params *params);
/* This PE's limits, from its fabric and settings. UF_ENOMEM with the numbers if they are too small to work with, UF_EUNSUPPORTED if the
 * fabric cannot tell when a put is placed. Pure. */
int uf_engine_limits_of(const uf_engine_params *params, uf_engine_limits *limits);
int uf_engine_create(const uf_engine_params *params, uf_engine **engine);
/* Starts the progress thread if driver and settings say so. After the fabric is connected. */
int uf_engine_start(uf_engine *engine);
/* Stops the thread; everything else still works. For the orderly end of a world. */
void uf_engine_stop(uf_engine *engine);
/* Stops the thread and frees. The caller has made everything quiet or given up on it. */
void uf_engine_destroy(uf_engine *engine);

int uf_engine_lane_open(uf_engine *engine, uf_order_ctx *ctx, uint32_t peer, uf_order_lane **lane);
int uf_engine_lane_close(uf_engine *engine, uf_order_lane *lane);
/* Starts one operation. When queues are full it makes progress and tries again for `timeout_ns` (0: UF_EAGAIN at once), or until the
 * world ends. */
int uf_engine_submit(uf_engine *engine, uf_order_lane *lane, const uf_order_op *op, uint64_t timeout_ns);
/* The same for many, one doorbell; *done of them were accepted. */
int uf_engine_submit_many(uf_engine *engine, uf_order_lane *const *lanes, const uf_order_op *ops, uint32_t n, uint64_t timeout_ns,
                          uint32_t *done);
void uf_engine_mark(uf_engine *engine, uf_order_lane *lane, bool remote, uf_order_mark *mark);
int uf_engine_mark_test(uf_engine *engine, uf_order_lane *lane, const uf_order_mark *mark);
/* One step if nobody else is at it: the number of events moved, 0 if none or somebody else has the lock, or the error that
 * ended the fabric. This is what every wait loop calls between looks. */
int uf_engine_poll(uf_engine *engine);
/* Ends the flow to a dead peer. */
void uf_engine_fail_peer(uf_engine *engine, uint32_t peer, int status);
/* Registrations go through the engine, since the fabric is used by one thread at a time. Operations name a registration by one word on
 * each side. With one rail these are the fabric's descriptor and key; with several, the addresses of tables by rail from which the engine
 * takes what belongs to the rail that a WR goes by. The tables must live as long as the operations that name them. */
typedef struct uf_engine_mr {
    uf_mr *mr;
    uint64_t desc; /* uf_order_op.local_desc */
    uint64_t by_rail[];
} uf_engine_mr;
int uf_engine_mr_register(uf_engine *engine, void *ptr, size_t bytes, bool remote, uf_engine_mr **mr);
void uf_engine_mr_close(uf_engine *engine, uf_engine_mr *mr);
/* uf_order_op.remote_key for a peer's keys by rail; uf_order_op.remote counts as the first of them does. */
static inline uint64_t uf_engine_key(const uf_fabric_key *by_rail, uint32_t n_rails)
{
    return n_rails == 1 ? by_rail->key : (uint64_t)(uintptr_t)by_rail;
}
void uf_engine_counters(uf_engine *engine, uf_order_counters *counters, uint64_t *eagain);
/* What went over one rail, one of those that the engine uses. */
typedef struct uf_engine_rail {
    uint64_t posted, completed, bytes; /* WRs; those whose CQE came; payload of the posted */
    uint32_t broken;                   /* peers that it does not reach any more */
} uf_engine_rail;
void uf_engine_rail_counters(uf_engine *engine, uint32_t rail, uf_engine_rail *counters);
/* To be called every few seconds: UF_OK, or UF_EAGAIN with the sentence about a peer's lane that has not moved since the last call although
 * signals wait for it (rule 17). */
int uf_engine_watch(uf_engine *engine);
size_t uf_engine_describe(uf_engine *engine, uint32_t peer, char *text, size_t bytes);

static inline uint64_t uf_engine_driver_now(const uf_driver *driver)
{
    return driver->now(driver->arg);
}

#endif
