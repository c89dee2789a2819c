/* device_queue.cuh - operations to PEs that are not near: kernels hand them to the host's progress threads through a command queue.
 *
 * Header-only, for CUDA C++ and NVRTC. The host hands a kernel a `ufd_queue` (its address or a copy); symmetric addresses are this
 * PE's own, sources of puts and targets of gets lie in symmetric memory too. Each operation comes in three scopes:
 *     ufd_queue_put(...)         by the calling thread, alone
 *     ufd_queue_put_warp(...)    by the 32 threads of a warp together, all with the same arguments: one lane speaks
 *     ufd_queue_put_block(...)   by all threads of a block, likewise
 * and ufd_queue_each_warp writes the commands of 32 lanes, each its own, in one go: one reservation, one fence, 32 lines.
 *
 * They return 0, or a negative UF_E* code: the queue's error, UF_ETIMEDOUT, or UF_ERANGE for a field that does not fit (nothing was
 * issued then). A command that is accepted here and found wrong by the host (a bad PE, an address that is not symmetric) is the queue's
 * error: every later wait returns it and the host has the sentence. Operations return once issued; flush says that sources
 * may be reused, quiet that all is complete at the targets. What an issue costs: a fence at system scope, which waits until the
 * payload is where the NIC will read it (and what else this thread stored, earlier commands too), and 64 bytes over the bus. So issue
 * many at once where you can; and where the payload was there before the kernel began, or an uf_command_payload_fence of this
 * thread has covered it, the calls that end in _ready do without the fence. */
#ifndef UNFENCE_DEVICE_QUEUE_CUH
#define UNFENCE_DEVICE_QUEUE_CUH

#include "codes.h"
#include "engine/command.h"

typedef uf_command_ring ufd_queue;

#define UFD_QUEUE_FN static __device__ __forceinline__

/* ---- Who speaks ---- */

struct ufd_queue_by_thread {
    UFD_QUEUE_FN bool leads(void)
    {
        return true;
    }
    UFD_QUEUE_FN void sync(void)
    {
    }
    UFD_QUEUE_FN uint64_t share(uint64_t v)
    {
        return v;
    }
};

struct ufd_queue_by_warp {
    UFD_QUEUE_FN uint32_t lane(void)
    {
        return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
    }
    UFD_QUEUE_FN bool leads(void)
    {
        return lane() == 0;
    }
    UFD_QUEUE_FN void sync(void)
    {
        __syncwarp();
    }
    UFD_QUEUE_FN uint64_t share(uint64_t v)
    {
        v = __shfl_sync(0xffffffffu, (unsigned long long)v, 0);
        __syncwarp(); /* a shuffle promises no memory order: what the leader has seen, all have */
        return v;
    }
};

struct ufd_queue_by_block {
    UFD_QUEUE_FN bool leads(void)
    {
        return (threadIdx.x | threadIdx.y | threadIdx.z) == 0;
    }
    UFD_QUEUE_FN void sync(void)
    {
        __syncthreads();
    }
    /* Between two of these lies a sync of every operation, so that the word may be used again. */
    UFD_QUEUE_FN uint64_t share(uint64_t v)
    {
        __shared__ uint64_t shared;
        if (leads())
            shared = v;
        __syncthreads();
        return shared;
    }
};

/* ---- Issuing ---- */

/* Does the payload need a fence, or is it READY: written by an earlier kernel, by the host, or before a fence of this thread? */
enum ufd_payload { UFD_PAYLOAD_NEW, UFD_PAYLOAD_READY };

/* The fence comes before the slot is taken: nobody waits for it behind an empty slot. */
template <ufd_payload P> UFD_QUEUE_FN void ufd_queue_cover(const uf_command *c)
{
    if (P == UFD_PAYLOAD_NEW && uf_command_carries(c))
        uf_command_payload_fence();
}

/* One thread: takes a slot and writes one command whose payload this thread has written or learnt of. */
template <ufd_payload P>
UFD_QUEUE_FN int ufd_queue_issue_as(const ufd_queue *q, const uf_command *c, uint64_t timeout_ns, uint64_t *position)
{
    if (uf_command_misfit(c))
        return UF_COMMAND_ERANGE;
    ufd_queue_cover<P>(c);
    int rc = uf_command_reserve(q, 1, timeout_ns, position);
    if (rc == 0)
        uf_command_write(q, *position, c);
    return rc;
}

UFD_QUEUE_FN int ufd_queue_issue(const ufd_queue *q, const uf_command *c, uint64_t timeout_ns, uint64_t *position)
{
    return ufd_queue_issue_as<UFD_PAYLOAD_NEW>(q, c, timeout_ns, position);
}

UFD_QUEUE_FN int ufd_queue_issue_ready(const ufd_queue *q, const uf_command *c, uint64_t timeout_ns, uint64_t *position)
{
    return ufd_queue_issue_as<UFD_PAYLOAD_READY>(q, c, timeout_ns, position);
}

template <class S, ufd_payload P> UFD_QUEUE_FN int ufd_queue_issue_in(const ufd_queue *q, const uf_command *c)
{
    uint64_t position;
    int rc = 0;
    S::sync(); /* what all have written comes before the leader's fence, which is cumulative */
    if (S::leads())
        rc = ufd_queue_issue_as<P>(q, c, 0, &position);
    return (int)S::share((uint64_t)rc);
}

template <ufd_payload P>
UFD_QUEUE_FN int ufd_queue_each_warp_as(const ufd_queue *q, const uf_command *c, bool mine, uint64_t timeout_ns)
{
    uint32_t lane = ufd_queue_by_warp::lane(), speakers = __ballot_sync(0xffffffffu, mine);
    if (__any_sync(0xffffffffu, mine && uf_command_misfit(c)))
        return UF_COMMAND_ERANGE;
    if (speakers == 0)
        return 0;
    uint64_t base = 0;
    int rc = 0;
    if (mine)
        ufd_queue_cover<P>(c); /* each lane before its own stores: together one instruction of the warp */
    if (lane == 0)
        rc = uf_command_reserve(q, (uint32_t)__popc(speakers), timeout_ns, &base);
    rc = __shfl_sync(0xffffffffu, rc, 0);
    base = ufd_queue_by_warp::share(base);
    if (rc)
        return rc;
    if (mine)
        uf_command_write(q, (base + (uint32_t)__popc(speakers & ((1u << lane) - 1))) & UF_COMMAND_POSITION_MASK, c);
    __syncwarp();
    return 0;
}

/* Every lane of the warp calls it; those with `mine` issue their own command. All return the same; with an error nothing was issued. A
 * payload belongs to its lane, or a __syncwarp lies between. */
UFD_QUEUE_FN int ufd_queue_each_warp(const ufd_queue *q, const uf_command *c, bool mine, uint64_t timeout_ns)
{
    return ufd_queue_each_warp_as<UFD_PAYLOAD_NEW>(q, c, mine, timeout_ns);
}

UFD_QUEUE_FN int ufd_queue_each_warp_ready(const ufd_queue *q, const uf_command *c, bool mine, uint64_t timeout_ns)
{
    return ufd_queue_each_warp_as<UFD_PAYLOAD_READY>(q, c, mine, timeout_ns);
}

/* ---- Waiting ---- */

UFD_QUEUE_FN int ufd_queue_await(const ufd_queue *q, uint32_t op, uint64_t position, uint64_t timeout_ns)
{
    return uf_command_wait(q, op == UF_COMMAND_QUIET ? &q->report->remote : &q->report->local, position, timeout_ns);
}

/* FLUSH or QUIET, and the wait for it. */
template <class S> UFD_QUEUE_FN int ufd_queue_complete_in(const ufd_queue *q, uint32_t op)
{
    uf_command c = {};
    uint64_t position;
    int rc = 0;
    c.op = op;
    S::sync();
    if (S::leads()) {
        rc = ufd_queue_issue(q, &c, 0, &position);
        if (rc == 0)
            rc = ufd_queue_await(q, op, position, 0);
    }
    return (int)S::share((uint64_t)rc);
}

/* A command, FLUSH or QUIET behind it, and the wait: one reservation for both. */
template <class S> UFD_QUEUE_FN int ufd_queue_finish_in(const ufd_queue *q, uf_command c, uint32_t op)
{
    uf_command last = {};
    uint64_t position;
    int rc = 0;
    last.op = op;
    S::sync();
    if (S::leads()) {
        rc = uf_command_misfit(&c) ? UF_COMMAND_ERANGE : 0;
        if (rc == 0) {
            ufd_queue_cover<UFD_PAYLOAD_NEW>(&c);
            rc = uf_command_reserve(q, 2, 0, &position);
        }
        if (rc == 0) {
            uint64_t end = (position + 1) & UF_COMMAND_POSITION_MASK;
            uf_command_write(q, position, &c);
            uf_command_write(q, end, &last);
            rc = ufd_queue_await(q, op, end, 0);
        }
    }
    return (int)S::share((uint64_t)rc);
}

/* A place for the value, the command, and the wait for it. `timeout_ns` holds for each of the three. */
template <class S> UFD_QUEUE_FN int ufd_queue_fetch_in(const ufd_queue *q, uf_command c, uint64_t timeout_ns, uint64_t *old)
{
    uint64_t position, value = 0, deadline = 0;
    int rc = 0;
    S::sync();
    if (S::leads()) {
        for (uint32_t turn = UF_COMMAND_EAGER; rc == 0 && !uf_command_claim(q, blockIdx.x * 7 + threadIdx.x, &c.result); turn++)
            if ((rc = uf_command_status(q)) == 0)
                rc = uf_command_wait_turn(q, turn, timeout_ns, &deadline);
        if (rc == 0 && (rc = ufd_queue_issue(q, &c, timeout_ns, &position)) != 0)
            uf_command_unclaim(q, c.result);
        else if (rc == 0)
            rc = uf_command_fetch_wait(q, c.result, position, timeout_ns, &value);
    }
    rc = (int)S::share((uint64_t)rc);
    S::sync(); /* the word that shares is used twice */
    value = S::share(value);
    if (rc == 0)
        *old = value;
    return rc;
}

/* ---- The commands ---- */

UFD_QUEUE_FN uf_command ufd_command_put(void *dst, const void *src, uint64_t bytes, int pe)
{
    uf_command c = {};
    c.op = UF_COMMAND_PUT;
    c.pe = (uint32_t)pe;
    c.bytes = bytes;
    c.local = (uint64_t)src;
    c.remote = (uint64_t)dst;
    return c;
}

UFD_QUEUE_FN uf_command ufd_command_get(void *dst, const void *src, uint64_t bytes, int pe)
{
    uf_command c = ufd_command_put((void *)src, dst, bytes, pe);
    c.op = UF_COMMAND_GET;
    return c;
}

/* flags: UF_STRONG and UF_SETTLED, whose values are those of UF_COMMAND_STRONG and UF_COMMAND_SETTLED. op: UF_SIGNAL_SET or _ADD. */
UFD_QUEUE_FN uf_command ufd_command_signal(uint64_t *sig, int op, uint64_t value, int pe, unsigned flags)
{
    uf_command c = {};
    c.op = UF_COMMAND_SIGNAL;
    c.atomic = (uint32_t)op;
    c.flags = flags & (UF_COMMAND_STRONG | UF_COMMAND_SETTLED);
    c.pe = (uint32_t)pe;
    c.word = (uint64_t)sig;
    c.operand = value;
    return c;
}

UFD_QUEUE_FN uf_command ufd_command_put_signal(void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                                               int pe, unsigned flags)
{
    uf_command c = ufd_command_signal(sig, op, value, pe, flags);
    c.op = UF_COMMAND_PUT_SIGNAL;
    c.bytes = bytes;
    c.local = (uint64_t)src;
    c.remote = (uint64_t)dst;
    return c;
}

UFD_QUEUE_FN uf_command ufd_command_atomic(int op, int width, void *dst, uint64_t operand, uint64_t compare, int pe)
{
    uf_command c = {};
    c.op = UF_COMMAND_ATOMIC;
    c.atomic = (uint32_t)op;
    c.flags = width == 4 ? (uint32_t)UF_COMMAND_NARROW : 0;
    c.pe = (uint32_t)pe;
    c.word = (uint64_t)dst;
    c.operand = operand;
    c.compare = compare;
    return c;
}

UFD_QUEUE_FN uf_command ufd_command_fence(void)
{
    uf_command c = {};
    c.op = UF_COMMAND_FENCE;
    return c;
}

/* ---- The operations, in each scope ---- */

/* Parameters and arguments are lists in parentheses; `issue` is called with <scope>. */
#define UFD_QUEUE_IN_EACH_SCOPE_(name, parameters, call, arguments)                                                              \
    UFD_QUEUE_FN int name parameters                                                                                             \
    {                                                                                                                            \
        return call<ufd_queue_by_thread> arguments;                                                                              \
    }                                                                                                                            \
    UFD_QUEUE_FN int name##_warp parameters                                                                                      \
    {                                                                                                                            \
        return call<ufd_queue_by_warp> arguments;                                                                                \
    }                                                                                                                            \
    UFD_QUEUE_FN int name##_block parameters                                                                                     \
    {                                                                                                                            \
        return call<ufd_queue_by_block> arguments;                                                                               \
    }

template <class S> UFD_QUEUE_FN int ufd_queue_do_in(const ufd_queue *q, uf_command c)
{
    return ufd_queue_issue_in<S, UFD_PAYLOAD_NEW>(q, &c);
}

template <class S> UFD_QUEUE_FN int ufd_queue_ready_in(const ufd_queue *q, uf_command c)
{
    return ufd_queue_issue_in<S, UFD_PAYLOAD_READY>(q, &c);
}

UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put, (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, int pe), ufd_queue_do_in,
                         (q, ufd_command_put(dst, src, bytes, pe)))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_ready, (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, int pe),
                         ufd_queue_ready_in, (q, ufd_command_put(dst, src, bytes, pe)))
/* The data is here after quiet. */
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_get, (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, int pe), ufd_queue_do_in,
                         (q, ufd_command_get(dst, src, bytes, pe)))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_signal,
                         (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                          int pe, unsigned flags),
                         ufd_queue_do_in, (q, ufd_command_put_signal(dst, src, bytes, sig, op, value, pe, flags)))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_signal_ready,
                         (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                          int pe, unsigned flags),
                         ufd_queue_ready_in, (q, ufd_command_put_signal(dst, src, bytes, sig, op, value, pe, flags)))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_signal, (const ufd_queue *q, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags),
                         ufd_queue_do_in, (q, ufd_command_signal(sig, op, value, pe, flags)))
/* Those that fetch nothing. */
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_atomic, (const ufd_queue *q, int op, int width, void *dst, uint64_t operand, int pe),
                         ufd_queue_do_in, (q, ufd_command_atomic(op, width, dst, operand, 0, pe)))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_fetch,
                         (const ufd_queue *q, int op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old,
                          int pe),
                         ufd_queue_fetch_in, (q, ufd_command_atomic(op, width, dst, operand, compare, pe), 0, old))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_fence, (const ufd_queue *q), ufd_queue_do_in, (q, ufd_command_fence()))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_flush, (const ufd_queue *q), ufd_queue_complete_in, (q, UF_COMMAND_FLUSH))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_quiet, (const ufd_queue *q), ufd_queue_complete_in, (q, UF_COMMAND_QUIET))

/* The same that wait: until the source may be reused (flush), or until it is complete at the target, and a get here (quiet). As all waits
 * for completion they wait for everything that was issued before, too; cheaper than two calls by a reservation. */
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_flush, (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, int pe),
                         ufd_queue_finish_in, (q, ufd_command_put(dst, src, bytes, pe), UF_COMMAND_FLUSH))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_get_quiet, (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, int pe),
                         ufd_queue_finish_in, (q, ufd_command_get(dst, src, bytes, pe), UF_COMMAND_QUIET))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_signal_flush,
                         (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                          int pe, unsigned flags),
                         ufd_queue_finish_in,
                         (q, ufd_command_put_signal(dst, src, bytes, sig, op, value, pe, flags), UF_COMMAND_FLUSH))
UFD_QUEUE_IN_EACH_SCOPE_(ufd_queue_put_signal_quiet,
                         (const ufd_queue *q, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value,
                          int pe, unsigned flags),
                         ufd_queue_finish_in,
                         (q, ufd_command_put_signal(dst, src, bytes, sig, op, value, pe, flags), UF_COMMAND_QUIET))

/* 1 if this kernel was compiled against the header that the queue was made with. */
UFD_QUEUE_FN int ufd_queue_check(const ufd_queue *q)
{
    return q->abi == UF_COMMAND_ABI && q->size == sizeof(ufd_queue);
}

#endif
