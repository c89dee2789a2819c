/* far.cuh - operations to peers that are not near: handed to the host's progress threads through the context's command queue.
 *
 * Part of device.cuh. The near path makes one test for the way and calls in here with plain values, so that nothing of it is kept in a
 * near loop's registers; nothing here is inlined there. In every scope the leader writes one command (../device_queue.cuh, which says
 * what that costs), after the scope's barrier, so that its fence covers what all threads wrote to the source.
 *
 * A command names memory that the host's CPU and its network reach: both ends of a put or get, and the word of a signal or atomic, lie in
 * the symmetric host heap (which this GPU sees) or in a registered window over host memory. GPU memory, and the shared or local memory of
 * a kernel, is refused here, with block and thread in the world's error record, before anything is handed over. What only the host
 * can judge becomes the queue's error: each later wait of the context returns it, and uf_device_error has the sentence. */
#ifndef UNFENCE_DEVICE_FAR_CUH
#define UNFENCE_DEVICE_FAR_CUH

#include "../device_queue.cuh"
#include "world.cuh"

#define UFD_FAR_FN inline __device__ __noinline__

/* True for memory that no command can carry. */
UFD_FN bool ufd_far_is_gpu(const ufd_world *w, uint64_t address)
{
    if (address - w->host_heap < w->host_heap_bytes)
        return false;
    if (address - w->heap < w->heap_span || __isShared((const void *)address) || __isLocal((const void *)address))
        return true;
    for (uint32_t i = 0; i < w->n_windows; i++)
        if (address - w->windows[i].base < w->windows[i].bytes)
            return true;
    return false;
}

/* The first address of the command that it cannot name, or 0. */
UFD_FN uint64_t ufd_far_wrong(const ufd_world *w, const uf_command &c)
{
    if (c.bytes && ufd_far_is_gpu(w, c.local))
        return c.local;
    if (c.bytes && ufd_far_is_gpu(w, c.remote))
        return c.remote;
    return c.op != UF_COMMAND_PUT && c.op != UF_COMMAND_GET && ufd_far_is_gpu(w, c.word) ? c.word : 0;
}

/* The command, and FLUSH or QUIET behind it with the wait for that (last; 0: neither), by the leader. */
template <class S>
UFD_FN int ufd_far_hand(const ufd_world *w, const ufd_queue *q, const uf_command &c, uint32_t what, uint32_t last, uint64_t *old)
{
    int rc = UF_OK;
    S::sync();
    if (S::rank() == 0) {
        uint64_t wrong = ufd_far_wrong(w, c), position;
        if (wrong)
            rc = UF_EUNSUPPORTED;
        else if (old)
            rc = ufd_queue_fetch_in<ufd_queue_by_thread>(q, c, 0, old);
        else if (last)
            rc = ufd_queue_finish_in<ufd_queue_by_thread>(q, c, last);
        else
            rc = ufd_queue_issue(q, &c, 0, &position);
        if (rc)
            ufd_fail(w, rc, what, (int)c.pe, (const void *)(wrong ? wrong : c.bytes ? c.remote : c.word), c.bytes, c.operand);
    }
    return ufd_worst<S>(rc);
}

UFD_FN bool ufd_far_lacks(const ufd_queue *q, uint32_t way)
{
    return way != UFD_WAY_QUEUE || !q;
}

/* `way` is the peer's. A put, or (get) a get whose `dst` is here. */
template <class S>
UFD_FAR_FN int ufd_far_move(const ufd_world *w, const ufd_queue *q, uint32_t way, bool get, void *dst, const void *src,
                            uint64_t bytes, int pe, uint32_t last)
{
    if (ufd_far_lacks(q, way))
        return UF_EUNSUPPORTED;
    return ufd_far_hand<S>(w, q, get ? ufd_command_get(dst, src, bytes, pe) : ufd_command_put(dst, src, bytes, pe),
                           get ? UFD_IN_GET : UFD_IN_PUT, last, (uint64_t *)0);
}

template <class S>
UFD_FAR_FN int ufd_far_put_signal(const ufd_world *w, const ufd_queue *q, uint32_t way, void *dst, const void *src,
                                  uint64_t bytes, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags, uint32_t last)
{
    if (ufd_far_lacks(q, way))
        return UF_EUNSUPPORTED;
    return ufd_far_hand<S>(w, q, ufd_command_put_signal(dst, src, bytes, sig, op, value, pe, flags), UFD_IN_PUT_SIGNAL, last,
                           (uint64_t *)0);
}

template <class S>
UFD_FAR_FN int ufd_far_signal(const ufd_world *w, const ufd_queue *q, uint32_t way, uint64_t *sig, int op, uint64_t value, int pe,
                              unsigned flags)
{
    if (ufd_far_lacks(q, way))
        return UF_EUNSUPPORTED;
    return ufd_far_hand<S>(w, q, ufd_command_signal(sig, op, value, pe, flags), UFD_IN_SIGNAL, 0, (uint64_t *)0);
}

/* *fetched is the leader's: the value there before, for fetching forms. */
template <class S>
UFD_FAR_FN int ufd_far_atomic(const ufd_world *w, const ufd_queue *q, uint32_t way, int op, int width, void *dst,
                              uint64_t operand, uint64_t compare, int pe, uint64_t *fetched)
{
    uint64_t value = 0;
    if (ufd_far_lacks(q, way))
        return UF_EUNSUPPORTED;
    int rc = ufd_far_hand<S>(w, q, ufd_command_atomic(op, width, dst, operand, compare, pe), UFD_IN_ATOMIC, 0,
                             op >= UF_ATOMIC_FETCH ? &value : (uint64_t *)0);
    if (rc == UF_OK && fetched && op >= UF_ATOMIC_FETCH && S::rank() == 0)
        *fetched = value;
    return rc;
}

/* FENCE, FLUSH or QUIET of one context's queue. */
template <class S> UFD_FAR_FN int ufd_far_order(const ufd_queue *q, uint32_t op)
{
    int rc = UF_OK;
    S::sync();
    if (S::rank() == 0)
        rc = op == UF_COMMAND_FENCE ? ufd_queue_fence(q) : ufd_queue_complete_in<ufd_queue_by_thread>(q, op);
    return ufd_worst<S>(rc);
}

/* All queues of the world, by one thread: first each is told, then each is waited for. */
UFD_FN int ufd_far_quiet_all(const ufd_world *w)
{
    uint64_t positions[UFD_MAX_QUEUES];
    uf_command quiet = {};
    int rc = UF_OK;
    quiet.op = UF_COMMAND_QUIET;
    for (uint32_t i = 0; i < w->n_queues && rc == UF_OK; i++)
        rc = ufd_queue_issue(w->ctxs[i].queue, &quiet, 0, &positions[i]);
    for (uint32_t i = 0; i < w->n_queues && rc == UF_OK; i++)
        rc = ufd_queue_await(w->ctxs[i].queue, UF_COMMAND_QUIET, positions[i], 0);
    return rc;
}

#endif
