/* reach.h - where a symmetric address leads: for puts, gets and atomics of the host (rma.c, atomic.c) and of command queues (queue.c).
 *
 * The one place that turns an address of this PE into one of a peer: mapped memory, a window in another process, or region, key and wire
 * address for the network. It takes no lock and allocates nothing, so that a command queue may ask under the endpoint's lock, and
 * makes no sentence: what to say about an address that leads nowhere is its caller's business. Inline, since it is a part of
 * the time of a small put. */
#ifndef UF_WORLD_REACH_H
#define UF_WORLD_REACH_H

#include "world/world.h"

typedef struct uf_reach {
    void *mapped;      /* not NULL: at this address in our own process */
    uf_region *region; /* else: in this region; */
    uint64_t foreign;  /* and, for a mapped peer, at this address of its process */
    bool gpu;          /* it is GPU memory, not for the CPU: where, gpu_reach.c says */
} uf_reach;

/* False: [sym, sym + bytes) is no symmetric memory of this world, or runs over its end. */
static inline bool uf_reach_find(uf_world *w, const void *sym, size_t bytes, int pe, uf_reach *at)
{
    const uf_peer *p = &w->peers[pe];
    if (p->mapped && uf_memory_in_heap(w, sym, bytes)) {
        at->mapped = p->range.base + ((const unsigned char *)sym - w->range.base);
        return true;
    }
    at->region = uf_memory_find(w, sym, bytes);
    if (!at->region)
        return false;
    at->mapped = NULL;
    if (at->region->memory == UF_MEMORY_CUDA) {
        at->gpu = true;
        return true;
    }
    if (p->mapped) {
        at->foreign = at->region->addresses[pe] + (uint64_t)((const unsigned char *)sym - at->region->base);
        if (p->same_process)
            at->mapped = (void *)(uintptr_t)at->foreign;
    }
    return true;
}

/* The far end of a put or get over the network. */
static inline void uf_reach_remote(const uf_reach *at, const void *sym, int pe, uf_order_op *op)
{
    const uf_fabric_key *key = &at->region->keys[pe];
    op->remote = key->base + (uint64_t)((const unsigned char *)sym - at->region->base);
    op->remote_key = key->key;
}

/* A signal word over the network: by its index in the arena, or by its wire address. */
static inline void uf_reach_signal(const uf_world *w, const uf_reach *at, const uint64_t *sig, uf_order_op *op)
{
    size_t index = (size_t)(sig - w->signals);
    op->indexed = sig >= w->signals && index < w->n_signals;
    op->signal_address = op->indexed ? index : uf_memory_wire(at->region, sig);
}

#endif
