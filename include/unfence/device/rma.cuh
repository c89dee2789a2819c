/* rma.cuh - puts, gets, signals, and what orders and completes them.
 *
 * Part of device.cuh. What each costs and why it is sound, for a near peer:
 *   put, get       loads and stores, weak (a get's loads relaxed at system scope, since the L1 may hold an old copy). No order by itself.
 *   put_signal     the puts, a barrier of the scope, and a release store (or release add) of the word at system scope by the leader.
 *                  PTX causality carries the other threads' stores through the barrier into the release, and to whoever acquires
 *                  the word. The release waits until the stores have arrived: 1.25 us over NVLink, the price of a lone small put.
 *                  Streams of puts pay it once a batch or not at all: mover.cuh. Small ones never do: flagged.cuh.
 *   signal         weak: a relaxed store or add, which promises nothing about other operations. strong: a release, as above.
 *   fence, quiet   one fence.acq_rel.sys by the leader, which is cumulative over what the scope's threads did before. To a near peer
 *                  there is no difference: what is ordered before everything later is also complete.
 *   flush          nothing but the scope's barrier: a store is issued with its data, so the source has been read.
 * A release covers all earlier operations of the scope, so a weak signal of a put is as strong as a strong one here, and UF_SETTLED
 * comes free; other ways to a peer make a difference, so say what you mean. "Earlier operations of the context" by other blocks are
 * covered if they happened before, that is, if these blocks told ours through an acquire and release of at least GPU scope.
 * To a far peer each is a command of the context's queue (far.cuh): put, put_signal and get wait for it, their _nbi forms do not, and
 * fence, quiet and flush are commands too where the world has a far peer at all.
 * ADD on a word in the host heap is not atomic against the CPU: such words are SET only, or owned by the host's engine. */
#ifndef UNFENCE_DEVICE_RMA_CUH
#define UNFENCE_DEVICE_RMA_CUH

#include "copy.cuh"
#include "far.cuh"

/* The update of a word at its place, by one thread. `ordered`: after everything that happened before. */
UFD_FN void ufd_signal_at(uint64_t *word, int op, uint64_t value, bool ordered)
{
    if (op == UF_SIGNAL_ADD && ordered)
        ufd_ptx_add_release(word, value);
    else if (op == UF_SIGNAL_ADD)
        ufd_ptx_add_relaxed(word, value);
    else if (ordered)
        ufd_ptx_store_release(word, value); /* pairs with the acquire of ufd_wait */
    else
        ufd_ptx_store_relaxed(word, value);
}

/* Begins with the scope's barrier, so that what its threads wrote to the source before is taken. To a far peer: until `last` (UF_COMMAND_FLUSH,
 * or 0: not at all) is reached. */
template <class S> UFD_FN int ufd_put_until(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe, uint32_t last)
{
    int64_t shift;
    int rc = ufd_check_target<S>(c, UFD_IN_PUT, dst, bytes, 1, pe);
    if (rc)
        return rc;
    ufd_route to = ufd_route_to(c, pe);
    if (to.way != UFD_WAY_NEAR)
        return ufd_far_move<S>(c.world, c.queue, to.way, false, dst, src, bytes, pe, last);
    if ((rc = ufd_reach_by(c, to, dst, &shift)))
        return rc;
    S::sync();
    ufd_copy<S, ufd_cached>(ufd_moved(dst, shift), src, bytes);
    return UF_OK;
}

template <class S> UFD_FN int ufd_put_nbi_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe)
{
    return ufd_put_until<S>(c, dst, src, bytes, pe, 0);
}

/* When it returns, in any thread of the scope, the source may be reused. */
template <class S> UFD_FN int ufd_put_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe)
{
    int rc = ufd_put_until<S>(c, dst, src, bytes, pe, UF_COMMAND_FLUSH);
    S::sync();
    return rc;
}

/* `src` is symmetric. */
template <class S> UFD_FN int ufd_get_until(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe, uint32_t last)
{
    int64_t shift;
    int rc = ufd_check_target<S>(c, UFD_IN_GET, src, bytes, 1, pe);
    if (rc)
        return rc;
    ufd_route to = ufd_route_to(c, pe);
    if (to.way != UFD_WAY_NEAR)
        return ufd_far_move<S>(c.world, c.queue, to.way, true, dst, src, bytes, pe, last);
    if ((rc = ufd_reach_by(c, to, src, &shift)))
        return rc;
    S::sync(); /* whatever its threads still do with the old contents of dst is over */
    ufd_copy<S, ufd_fresh>(dst, ufd_moved(src, shift), bytes);
    S::sync();
    return UF_OK;
}

/* The data is here when it returns. */
template <class S> UFD_FN int ufd_get_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe)
{
    return ufd_get_until<S>(c, dst, src, bytes, pe, UF_COMMAND_QUIET);
}

/* The data is here after ufd_quiet. */
template <class S> UFD_FN int ufd_get_nbi_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe)
{
    return ufd_get_until<S>(c, dst, src, bytes, pe, 0);
}

/* To a near peer the source may be reused when it returns: nothing is saved by asking for less. To a far one `last` says. */
template <class S>
UFD_FN int ufd_put_signal_until(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op,
                                uint64_t value, int pe, unsigned flags, uint32_t last)
{
    int64_t shift = 0, sig_shift;
    int rc = bytes ? ufd_check_target<S>(c, UFD_IN_PUT_SIGNAL, dst, bytes, 1, pe) : UF_OK;
    if (rc || (rc = ufd_check_target<S>(c, UFD_IN_PUT_SIGNAL, sig, 8, 8, pe)))
        return rc;
    ufd_route to = ufd_route_to(c, pe);
    if (to.way != UFD_WAY_NEAR)
        return ufd_far_put_signal<S>(c.world, c.queue, to.way, dst, src, bytes, sig, op, value, pe, flags, last);
    if ((bytes && (rc = ufd_reach_by(c, to, dst, &shift))) || (rc = ufd_reach_by(c, to, sig, &sig_shift)))
        return rc;
    S::sync();
    ufd_copy<S, ufd_cached>(ufd_moved(dst, shift), src, bytes);
    S::sync();
    if (S::rank() == 0)
        ufd_signal_at(ufd_moved(sig, sig_shift), op, value, true);
    return UF_OK;
}

template <class S>
UFD_FN int ufd_put_signal_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                             int pe, unsigned flags)
{
    return ufd_put_signal_until<S>(c, dst, src, bytes, sig, op, value, pe, flags, UF_COMMAND_FLUSH);
}

template <class S>
UFD_FN int ufd_put_signal_nbi_in(const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op,
                                 uint64_t value, int pe, unsigned flags)
{
    return ufd_put_signal_until<S>(c, dst, src, bytes, sig, op, value, pe, flags, 0);
}

template <class S> UFD_FN int ufd_signal_in(const ufd_ctx &c, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags)
{
    int64_t shift;
    int rc = ufd_check_target<S>(c, UFD_IN_SIGNAL, sig, 8, 8, pe);
    if (rc)
        return rc;
    ufd_route to = ufd_route_to(c, pe);
    if (to.way != UFD_WAY_NEAR)
        return ufd_far_signal<S>(c.world, c.queue, to.way, sig, op, value, pe, flags);
    if ((rc = ufd_reach_by(c, to, sig, &shift)))
        return rc;
    bool ordered = (flags & (UF_STRONG | UF_SETTLED)) != 0;
    if (ordered)
        S::sync();
    if (S::rank() == 0)
        ufd_signal_at(ufd_moved(sig, shift), op, value, ordered);
    return UF_OK;
}

/* What near peers need: a fence at system scope by the leader. */
template <class S> UFD_FN void ufd_fence_near(void)
{
    S::sync();
    if (S::rank() == 0)
        ufd_ptx_fence();
    S::sync();
}

template <class S> UFD_FN int ufd_fence_in(const ufd_ctx &c)
{
    ufd_fence_near<S>();
    return c.queue ? ufd_far_order<S>(c.queue, UF_COMMAND_FENCE) : UF_OK;
}

template <class S> UFD_FN int ufd_quiet_in(const ufd_ctx &c)
{
    ufd_fence_near<S>();
    return c.queue ? ufd_far_order<S>(c.queue, UF_COMMAND_QUIET) : UF_OK;
}

template <class S> UFD_FN int ufd_flush_in(const ufd_ctx &c)
{
    S::sync();
    return c.queue ? ufd_far_order<S>(c.queue, UF_COMMAND_FLUSH) : UF_OK;
}

#endif
