/* world.h - what the files of this room share: the world, its peers, its memory, its contexts.
 *
 * world.c creates and ends it, paths.c chooses what reaches each peer, memory.c owns symmetric memory (heap segments and windows), context.c contexts and completion,
 * rma.c puts and gets, signal.c signal words and waits, atomic.c atomics, team.c and collective.c the rest. Two ways lead to a peer and are
 * fixed at creation: `mapped` (its memory is in our address space: the caller does the work with loads and stores) and the
 * engine (everything else). Self is always mapped.
 * Locks: `setup` serialises collective memory calls, `contexts_lock` guards the list of contexts, a lock in uf_teams that of teams.
 * Regions are published with release stores and read without a lock, since they are only taken away after a barrier. */
#ifndef UF_WORLD_WORLD_H
#define UF_WORLD_WORLD_H

#include "base/tally.h"
#include "bootstrap/bootstrap.h"
#include "engine/engine.h"
#include "fabric/local/local.h"
#include "unfence/unfence.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum {
    UF_MAX_REGIONS = 1024, /* heap segments and windows alive at once */
    UF_REGION_SHIFT = 48,  /* a wire address is region << 48 | offset */
};

typedef struct uf_heap uf_heap;
typedef struct uf_teams uf_teams;
typedef struct uf_registry uf_registry;

/* A piece of symmetric memory with one registration: a heap segment or a window. The same index on all PEs. */
typedef struct uf_region {
    uint32_t index;
    unsigned char *base; /* here */
    size_t bytes;
    size_t heap_offset;       /* of a heap segment; SIZE_MAX for a window */
    uf_engine_mr *mr;         /* NULL without a network */
    uf_fabric_key *keys;      /* [n_pes] as operations carry them; NULL without a network */
    uf_fabric_key *rail_keys; /* [n_pes * n_rails] that they name, with several rails */
    uint64_t *addresses;      /* [n_pes] of a window: where it lies in its owner's process; NULL for segments of the host heap. Of
                               * GPU memory, window or not: where this process's GPU has it, 0 where it has not (gpu.h) */
    int memory;               /* UF_MEMORY_HOST or UF_MEMORY_CUDA */
    struct uf_gpu_window *gpu; /* of a window over GPU memory */
} uf_region;

struct uf_window {
    uf_world *world;
    uf_window *next; /* in world->ended_windows */
    uf_region region;
};

typedef struct uf_peer {
    bool mapped;       /* its heap is at range.base in this process */
    bool same_process; /* its windows can be reached by plain loads and stores, too */
    uf_local_range range;
    uf_local_identity identity;
    const char *reason;     /* why mapped or not */
    _Atomic bool no_attach; /* the system refused to copy into its process (foreign.c) */
} uf_peer;

/* A wait for a get or a fetched value; `user` of an operation. From the world's pool. */
typedef struct uf_request {
    _Atomic int state; /* see request.c */
    int status;
    uint64_t value;
    uint64_t *old;      /* where a fetched value goes, or NULL */
    void *registration; /* of an outside buffer, given back when done, or NULL */
    bool detached;      /* nobody waits: goes back to the pool when done */
    struct uf_request *next;
} uf_request;

struct uf_ctx {
    uf_world *world;
    uf_order_ctx order;
    uf_ctx *next;      /* in world->contexts */
    uint32_t n_queues; /* device command queues; under contexts_lock */
    uf_tally tally;
    pthread_mutex_t opening;          /* of lanes */
    _Atomic(uf_order_lane *) lanes[]; /* [n_pes], NULL until the first network operation to that peer */
};

struct uf_world {
    int pe, n_pes;
    uf_settings settings;
    uint64_t timeout_ns;
    uint32_t first_looks, looks; /* at a word before a wait turns to engine and driver: at once, and between turns */
    const uf_driver *driver;     /* what blocking calls wait with */
    uf_driver setup_driver;      /* the same with progress in relax(), for the bootstrap */
    uf_bootstrap *bootstrap;
    uf_fabric *fabric; /* NULL if every peer is mapped */
    uint32_t n_rails;  /* that all PEs have */
    uf_engine *engine;
    uf_local_identity identity;
    uf_peer *peers;
    char reason[256]; /* why this fabric, for the log and uf_world_path */

    pthread_mutex_t setup;
    uf_heap *heap;
    uf_heap *signal_heap;     /* of the arena of signal words */
    uf_local_range range;     /* our heap's address space */
    _Atomic size_t heap_used; /* bytes of it that exist */
    size_t segment_bytes;     /* least growth */
    _Atomic(uf_region *) regions[UF_MAX_REGIONS];
    _Atomic uint32_t n_regions; /* indexes below it may be in use */
    uint64_t *signals;          /* arena of indexed signal words: at the start of the heap */
    size_t n_signals;
    uf_registry *registry; /* outside buffers; NULL where the fabric needs no registration of them */

    _Atomic(struct uf_gpu *) gpu;  /* NULL until GPU memory is asked for: gpu.h */
    _Atomic(int32_t *) gpu_status; /* where kernels look for `status` */
    struct uf_local_inbox *inbox;  /* where near processes ask us for copies; NULL: nobody needs to */
    _Atomic uint32_t inbox_ticks;
    struct uf_window *ended_windows; /* whoever scans the regions may still look at them: freed with the world */

    pthread_mutex_t contexts_lock; /* of the list, and of its end: a barrier holds it while it completes them */
    uf_ctx *contexts;
    uint32_t contexts_made;
    uf_ctx *default_ctx;
    uf_ctx *abandoned;                      /* destroyed while their lanes could not be closed: freed with the world */
    uf_counters retired;                    /* of destroyed contexts */
    struct uf_queue *queues, *ended_queues; /* device command queues; ended: answers to them may still come */
    _Atomic uint32_t n_queues;
    uf_teams *teams;

    _Atomic int status;          /* the first error that ended the world */
    char why[1024];              /* its sentence: written once, before status */
    _Atomic int claimed;         /* who writes `why` */
    _Atomic bool closing;        /* ends of connections are no news any more */
    _Atomic uint64_t next_watch; /* when the watchdog looks again */
    _Atomic bool stuck;          /* it has told of a lane that is stuck */
    _Atomic uint64_t signals_applied;

    _Atomic int pool_lock;
    uf_request *pool;
    struct uf_request_block *blocks;
};

/* ---------------------------------------------------------------- soundness (world.c) */

/* Records the first error that ends the world, with its sentence, and tells the bootstrap's news no more than once. */
void uf_world_fail(uf_world *w, int code, const char *why);
/* UF_OK, or the world's error with its sentence in this thread's message. */
int uf_world_check(uf_world *w);
/* Is there anything that a turn of a caller could move? */
static inline bool uf_world_steps(uf_world *w)
{
    return w->fabric || atomic_load_explicit(&w->n_queues, memory_order_relaxed);
}
/* `rc` of an operation, or the world's error if it has one: a lane that ended has ended the world, whose first error says why. */
int uf_world_first_cause(uf_world *w, int rc);
/* For wait loops: progress, then the driver's relax, and every 64 rounds the clock and the world's soundness. UF_OK to look again,
 * UF_ETIMEDOUT (no sentence made) past the deadline, or the world's error. */
int uf_world_wait_step(uf_world *w, uint32_t round, uint64_t deadline);
static inline uint64_t uf_world_deadline(uf_world *w, uint64_t timeout_ns)
{
    if (timeout_ns == UF_FOREVER)
        return UINT64_MAX;
    uint64_t now = w->driver->now(w->driver->arg);
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

static inline int uf_world_check_pe(const uf_world *w, int pe)
{
    return pe >= 0 && pe < w->n_pes;
}

/* ---------------------------------------------------------------- memory (memory.c) */

int uf_memory_create(uf_world *w);
void uf_memory_destroy(uf_world *w);
/* The region that holds [ptr, ptr + bytes) of this PE, or NULL. */
uf_region *uf_memory_find(uf_world *w, const void *ptr, size_t bytes);
/* The same by index and offset, as a wire address names it. NULL if it is not wholly inside. */
void *uf_memory_resolve(uf_world *w, uint64_t wire_address, size_t bytes);
static inline uint64_t uf_memory_wire(const uf_region *r, const void *ptr)
{
    return (uint64_t)r->index << UF_REGION_SHIFT | (uint64_t)((const unsigned char *)ptr - r->base);
}
/* True if [ptr, ptr + bytes) lies in the heap: then base + (ptr - range.base) is where a mapped peer has it. */
static inline bool uf_memory_in_heap(const uf_world *w, const void *ptr, size_t bytes)
{
    size_t offset = (size_t)((const unsigned char *)ptr - w->range.base);
    size_t used = atomic_load_explicit(&w->heap_used, memory_order_acquire);
    return offset < used && bytes <= used - offset;
}
/* uf_malloc without taking `setup`; for the world's own tables. `what` names the caller in errors. Collective. */
int uf_memory_alloc(uf_world *w, const char *what, size_t bytes, size_t align, void **ptr);
/* Steps of collective memory calls: compares what all PEs do (`what` of at most 23 characters, a, b) and returns the first failure of any (rc, with this
 * thread's sentence). */
int uf_memory_agree(uf_world *w, const char *what, uint64_t a, uint64_t b, int rc);
/* A free index for a region, and making it known to uf_memory_find. */
int uf_memory_index(uf_world *w, uint32_t *index);
void uf_memory_publish(uf_world *w, uf_region *r);
/* A local buffer as the fabric wants to see it: its descriptor, and what must be given back when the operation is done (NULL if
 * nothing). Memory inside a region needs nothing; other memory is registered through the cache. */
int uf_memory_source(uf_world *w, const void *ptr, size_t bytes, uint64_t *desc, void **registration);
void uf_memory_source_done(uf_world *w, void *registration);
void uf_memory_counters(uf_world *w, uint64_t *registrations, uint64_t *hits);

/* Closes registrations that nobody holds. Not from inside the engine. */
void uf_memory_tick(uf_world *w);

/* ---------------------------------------------------------------- operations */

/* The lane to a network peer, opened at first use. */
int uf_ctx_lane(uf_ctx *ctx, int pe, uf_order_lane **lane);
int uf_ctx_create_locked(uf_world *w, const uf_ctx_options *options, uf_ctx **ctx);
void uf_ctx_free(uf_ctx *ctx);
/* Adds a context's counters to those of the world's ended ones (world.c). */
void uf_ctx_retire(uf_ctx *ctx);
/* Completes one context (all peers, or one if pe >= 0) until `deadline`. */
int uf_ctx_complete(uf_ctx *ctx, int pe, bool remote, uint64_t deadline);

/* Applies an atomic to a word of our own or a mapped peer's memory. Returns the old value. */
uint64_t uf_atomic_apply(void *word, uint8_t op, uint8_t width, uint64_t operand, uint64_t compare);
/* Edge of the engine: a peer's signal or atomic. */
int uf_signal_apply(void *world, const uf_order_signal *signal, uint64_t *old);

uf_request *uf_request_get(uf_world *w);
void uf_request_put(uf_world *w, uf_request *r);
void uf_requests_free(uf_world *w);
/* Blocks until the request is done, then puts it back: its status, with the value it brought. */
int uf_request_wait(uf_world *w, uf_request *r, const char *call, int pe, uint64_t *value);
/* Edge of the engine. */
void uf_request_done(void *world, uint64_t user, int status, uint64_t value);

/* ---------------------------------------------------------------- device command queues (queue.c, queue.h) */

struct uf_command_counters;
/* Ends those that are left, before the engine goes, and frees what is left of them, after it. */
void uf_queues_stop(uf_world *w);
void uf_queues_free(uf_world *w);
/* Adds what they have done to the world's counters. */
void uf_queues_count(uf_world *w, uf_counters *sum);
void uf_queue_add_counters(uf_counters *sum, const struct uf_command_counters *counters);

/* ---------------------------------------------------------------- teams (team.c) */

int uf_teams_create(uf_world *w); /* after memory: makes the world team */
void uf_teams_destroy(uf_world *w);

#endif
