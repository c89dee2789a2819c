/* barrier.cuh - the barrier of a world's PEs.
 *
 * Part of device.cuh. Each PE keeps a count of its rounds and a word for every other PE, which that PE sets to its own count: one store
 * to each peer, all at once, and a wait until all words have come this far. A peer is at most one round ahead, so words that only grow
 * are enough. ufd_barrier first makes everything that happened before complete (one fence) and its waits acquire, so that whatever
 * any PE did before is readable after; ufd_sync leaves the fence out and orders nothing.
 *
 * One caller of a PE at a time (a thread, warp or block): a grid first meets by itself. The world must be all near: else
 * UF_EUNSUPPORTED. After an error the PEs' counts may differ and the world should be ended. */
#ifndef UNFENCE_DEVICE_BARRIER_CUH
#define UNFENCE_DEVICE_BARRIER_CUH

#include "wait.cuh"

template <class S> UFD_FN int ufd_meet(const ufd_world *w, bool complete)
{
    int me = w->pe, n = w->n_pes, rc = UF_OK;
    for (int p = (int)S::rank(); p < n; p += (int)S::size())
        if (w->peers[p].way != UFD_NEAR)
            rc = UF_EUNSUPPORTED;
    rc = ufd_worst<S>(rc); /* also the scope's barrier: what all its threads did comes before the fence below */
    if (rc)
        return rc;
    uint64_t round = ufd_ptx_load_relaxed(w->scratch) + 1;
    uint64_t *words = w->barrier;
    if (complete)
        ufd_ptx_fence(); /* by every thread that stores below */
    for (int p = (int)S::rank(); p < n; p += (int)S::size())
        if (p != me)
            ufd_ptx_store_relaxed(ufd_moved(words + me, w->peers[p].shift), round); /* pairs with the acquire below, there */
    ufd_patience patience = ufd_patience_of(w, UFD_WORLD_TIMEOUT);
    for (int p = (int)S::rank(); p < n && rc == UF_OK; p += (int)S::size()) {
        uint64_t seen = round;
        if (p != me)
            rc = ufd_wait_here(w, words + p, UF_GE, round, &patience, &seen);
        if (rc == UF_ETIMEDOUT)
            ufd_fail(w, rc, UFD_IN_BARRIER, p, words + p, seen, round);
    }
    rc = ufd_worst<S>(rc); /* everybody has read the count */
    if (S::rank() == 0)
        ufd_ptx_store_relaxed(w->scratch, round);
    return rc;
}

template <class S> UFD_FN int ufd_barrier_in(const ufd_world *w)
{
    return ufd_meet<S>(w, true);
}

template <class S> UFD_FN int ufd_sync_in(const ufd_world *w)
{
    return ufd_meet<S>(w, false);
}

#endif
