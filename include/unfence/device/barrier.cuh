/* barrier.cuh - the barrier of a world's PEs.
 *
 * Part of device.cuh. Each PE keeps a count of its rounds and a word for every other PE, which that PE sets to its own count: one store
 * to each peer, all at once, and a wait until all words have come this far. A peer is at most one round ahead, so words that only grow
 * are enough. ufd_barrier first makes everything that happened before complete (one fence, 0.6 us and more with stores under way) and its
 * waits acquire, so that whatever any PE did before is readable after; ufd_sync leaves the fence out and orders nothing: one trip.
 *
 * A world with peers that are not near meets by its leader's thread alone: words of near peers as above, those of far peers in the host heap,
 * set by strong signals through a command queue, after a quiet of all queues where that is asked for.
 *
 * One caller of a PE at a time (a thread, warp or block): a grid first meets by itself. A peer that is not reached at all makes
 * it UF_EUNSUPPORTED. After an error the PEs' counts may differ and the world should be ended. */
#ifndef UNFENCE_DEVICE_BARRIER_CUH
#define UNFENCE_DEVICE_BARRIER_CUH

#include "far.cuh"
#include "wait.cuh"

/* A barrier's waits acquire, and its stores come after a fence; a sync's do neither. */
struct ufd_completing {
    typedef ufd_acquiring load;
    UFD_FN void fence(void)
    {
        ufd_ptx_fence();
    }
    UFD_FN int quiet_far(const ufd_world *w)
    {
        ufd_ptx_fence();
        return ufd_far_quiet_all(w);
    }
};
struct ufd_only_meeting {
    typedef ufd_ordering_nothing load;
    UFD_FN void fence(void)
    {
    }
    UFD_FN int quiet_far(const ufd_world *w)
    {
        return UF_OK;
    }
};

/* The i-th of the other PEs, each PE beginning with its neighbour. */
UFD_FN int ufd_other(int me, int n, int i)
{
    return me + 1 + i < n ? me + 1 + i : me + 1 + i - n;
}

/* Tells peer `p` that this PE has come to `round`. Strong: a word must not go back when two rounds' signals pass each other. */
UFD_FN int ufd_tell_round(const ufd_world *w, int p, uint64_t round)
{
    uint64_t position;
    if (w->peers[p].way == UFD_WAY_NEAR) {
        ufd_ptx_store_relaxed(ufd_moved(w->barrier + w->pe, w->peers[p].shift), round);
        return UF_OK;
    }
    uf_command c = ufd_command_signal(w->far_barrier + w->pe, UF_SIGNAL_SET, round, p, UF_STRONG);
    return ufd_queue_issue(w->ctxs[0].queue, &c, 0, &position);
}

/* All of it by one thread. */
template <class How> inline __device__ __noinline__ int ufd_meet_far(const ufd_world *w)
{
    const int me = w->pe, n = w->n_pes;
    uint64_t round = *w->scratch + 1;
    int rc = UF_OK;
    for (int p = 0; p < n; p++)
        if (w->peers[p].way != UFD_WAY_NEAR && ufd_far_lacks(w->ctxs[0].queue, w->peers[p].way))
            return UF_EUNSUPPORTED;
    rc = How::quiet_far(w);
    for (int i = 0; i < n - 1 && rc == UF_OK; i++)
        rc = ufd_tell_round(w, ufd_other(me, n, i), round);
    if (rc)
        return ufd_fail(w, rc, UFD_IN_BARRIER, -1, w->far_barrier, 0, round);
    ufd_patience patience = ufd_patience_of(w, UFD_WORLD_TIMEOUT);
    for (int i = 0; i < n - 1 && rc == UF_OK; i++) {
        uint64_t seen;
        int p = ufd_other(me, n, i);
        const uint64_t *word = (w->peers[p].way == UFD_WAY_NEAR ? w->barrier : w->far_barrier) + p;
        rc = ufd_wait_here<typename How::load>(w, word, UF_GE, round, &patience, &seen);
        if (rc == UF_ETIMEDOUT)
            ufd_fail(w, rc, UFD_IN_BARRIER, p, word, seen, round);
    }
    *w->scratch = round;
    return rc;
}

template <class S, class How> UFD_FN int ufd_meet(const ufd_world *w)
{
    const int me = ufd_pe(w), n = ufd_n_pes(w), first = (int)S::rank(), step = (int)S::size();
    const ufd_peer *peers = ufd_fixed(&w->peers);
    uint64_t *words = ufd_fixed(&w->barrier), *count = ufd_fixed(&w->scratch);
    uint32_t way;
    int rc = UF_OK;
    S::sync(); /* what all its threads did comes before the fence below */
    if (ufd_fixed(&w->n_far)) {
        if (first == 0)
            rc = ufd_meet_far<How>(w);
        return ufd_worst<S>(rc);
    }
    /* Loaded before the fence, which takes longer than they do and empties the L1, and looked at after it. */
    uint64_t round = *count + 1; /* weak: the call before this one happened before */
    int64_t first_shift = ufd_fixed_peer(peers + ufd_other(me, n, min(first, n - 1)), &way);
    if (first < n - 1)
        How::fence(); /* by every thread that stores below */
#pragma unroll 1      /* few turns, and code that stays in the instruction cache */
    for (int i = first; i < n - 1; i += step) {
        if (i != first)
            ufd_fixed_peer(peers + ufd_other(me, n, i), &way);
        rc = way == UFD_WAY_NEAR ? rc : UF_EUNSUPPORTED;
    }
    rc = ufd_worst<S>(rc);
    if (rc)
        return rc;
#pragma unroll 1
    for (int i = first; i < n - 1; i += step) {
        int64_t shift = i == first ? first_shift : ufd_fixed_peer(peers + ufd_other(me, n, i), &way);
        ufd_ptx_store_relaxed(ufd_moved(words + me, shift), round); /* to the waits below, there */
    }
    ufd_patience patience = ufd_patience_of(w, UFD_WORLD_TIMEOUT);
#pragma unroll 1
    for (int i = first; i < n - 1 && rc == UF_OK; i += step) {
        uint64_t seen;
        int p = ufd_other(me, n, i);
        rc = ufd_wait_here<typename How::load>(w, words + p, UF_GE, round, &patience, &seen);
        if (rc == UF_ETIMEDOUT)
            ufd_fail(w, rc, UFD_IN_BARRIER, p, words + p, seen, round);
    }
    rc = ufd_worst<S>(rc); /* everybody has read the count */
    if (first == 0)
        *count = round;
    return rc;
}

template <class S> UFD_FN int ufd_barrier_in(const ufd_world *w)
{
    return ufd_meet<S, ufd_completing>(w);
}

template <class S> UFD_FN int ufd_sync_in(const ufd_world *w)
{
    return ufd_meet<S, ufd_only_meeting>(w);
}

#endif
