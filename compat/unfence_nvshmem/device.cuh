/* device.cuh - the device side behind nvshmem.h: this module's state, and operations of device.cuh that cannot return an error.
 *
 * Part of nvshmem.h, seen by nvcc and NVRTC only. NVSHMEM's device functions have no results, so what fails here (a peer that is not near, an
 * address that is not symmetric, a wait that outlasts UNFENCE_TIMEOUT, a dead peer) ends the kernel by a trap: the host sees an error at its next
 * call, and uf_device_error says what it was. Nothing goes on with wrong data. */
#ifndef UNFENCE_NVSHMEM_DEVICE_CUH
#define UNFENCE_NVSHMEM_DEVICE_CUH

#include "host.h"
#include "unfence/device.cuh"

/* Of this module alone, filled by the host. A module compiled at run time is asked for it by name. */
#if defined(__CUDACC_RTC__)
extern "C" {
__constant__ uf_nvshmem_state uf_nvshmem_here;
}
#else
static __constant__ uf_nvshmem_state uf_nvshmem_here;

namespace
{
int uf_nvshmem_fill(const uf_nvshmem_state *state)
{
    cudaError_t rc = cudaMemcpyToSymbol(uf_nvshmem_here, state, sizeof *state);
    if (rc == cudaSuccess)
        rc = cudaStreamSynchronize(
            0); /* a copy from pageable memory may return before it has arrived; other streams do not wait for it */
    return rc == cudaSuccess ? 0 : -1;
}
struct uf_nvshmem_registrar {
    uf_nvshmem_module module;
    uf_nvshmem_registrar() : module{UFD_ABI, sizeof(uf_nvshmem_state), uf_nvshmem_fill, NULL}
    {
        uf_nvshmem_register(&module);
    }
    ~uf_nvshmem_registrar()
    {
        uf_nvshmem_unregister(&module);
    }
};
uf_nvshmem_registrar uf_nvshmem_registered;
} // namespace
#endif

UFD_FN const ufd_world *ufn_world(void)
{
    return uf_nvshmem_here.world;
}

UFD_FN ufd_ctx ufn_ctx(void)
{
    return ufd_ctx_block(uf_nvshmem_here.world);
}

UFD_FN void ufn_must(int rc)
{
    if (rc != UF_OK)
        __trap();
}

/* ---------------------------------------------------------------- one element */

/* Bytes that one store or load of the machine moves whole. */
template <int N> struct ufn_bits;
template <> struct ufn_bits<1> {
    typedef uint8_t type;
};
template <> struct ufn_bits<2> {
    typedef uint16_t type;
};
template <> struct ufn_bits<4> {
    typedef uint32_t type;
};
template <> struct ufn_bits<8> {
    typedef uint64_t type;
};

template <class To, class From> UFD_FN To ufn_cast(From from)
{
    static_assert(sizeof(To) == sizeof(From), "other bits");
    union {
        From from;
        To to;
    } u;
    u.from = from;
    return u.to;
}

template <class T> UFD_FN T *ufn_at(const T *symmetric, int pe)
{
    int64_t shift;
    ufn_must(ufd_reach(ufn_ctx(), symmetric, pe, &shift));
    return ufd_moved((T *)symmetric, shift);
}

template <class T> UFD_FN void ufn_p(T *dst, T value, int pe)
{
    *(volatile T *)ufn_at(dst, pe) = value;
}

template <class T> UFD_FN T ufn_g(const T *src, int pe)
{
    typedef typename ufn_bits<sizeof(T)>::type bits;
    return ufn_cast<T>(ufd_ptx_fresh((const bits *)ufn_at(src, pe)));
}

/* ---------------------------------------------------------------- atomics */

template <class T> UFD_FN T ufn_atomic(int op, T *dst, T operand, T compare, int pe)
{
    typedef typename ufn_bits<sizeof(T)>::type bits;
    uint64_t old = 0;
    ufn_must(
        ufd_atomic_in<ufd_thread>(ufn_ctx(), op, sizeof(T), dst, ufn_cast<bits>(operand), ufn_cast<bits>(compare), &old, pe));
    return ufn_cast<T>((bits)old);
}

/* ---------------------------------------------------------------- waits and tests of words of 4 and 8 bytes */

UFD_FN uint32_t ufn_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

UFD_FN uint64_t ufn_acquire(const uint64_t *p)
{
    return ufd_ptx_load_acquire(p);
}

template <class T> UFD_FN bool ufn_holds(const T *word, int cmp, T want)
{
    typedef typename ufn_bits<sizeof(T)>::type bits;
    T have = ufn_cast<T>(ufn_acquire((const bits *)word)); /* pairs with the release of a signal */
    switch (cmp) {
    case UF_EQ:
        return have == want;
    case UF_NE:
        return have != want;
    case UF_GT:
        return have > want;
    case UF_GE:
        return have >= want;
    case UF_LT:
        return have < want;
    default:
        return have <= want;
    }
}

/* What the words are compared with: one value for all, or one each. */
template <class T> struct ufn_one {
    T value;
    UFD_METHOD T at(size_t) const
    {
        return value;
    }
};
template <class T> struct ufn_each {
    const T *values;
    UFD_METHOD T at(size_t i) const
    {
        return values[i];
    }
};

/* A look that found nothing: goes on, or ends the kernel when the world has ended or its time is over. */
UFD_FN void ufn_turn(ufd_patience *patience, const void *word)
{
    int rc = ufd_patience_turn(ufn_world(), patience);
    if (rc != UF_OK)
        ufn_must(ufd_fail(ufn_world(), rc, UFD_IN_WAIT, -1, word, 0, 0));
}

template <class T> UFD_FN void ufn_wait(const T *word, int cmp, T value)
{
    ufd_patience patience = ufd_patience_of(ufn_world(), UFD_WORLD_TIMEOUT);
    while (!ufn_holds(word, cmp, value))
        ufn_turn(&patience, word);
}

/* The same of a signal: the value that held. */
UFD_FN uint64_t ufn_signal_wait(const uint64_t *sig, int cmp, uint64_t value)
{
    uint64_t seen = 0;
    ufd_patience patience = ufd_patience_of(ufn_world(), UFD_WORLD_TIMEOUT);
    int rc = ufd_wait_here<ufd_acquiring>(ufn_world(), sig, cmp, value, &patience, &seen);
    if (rc != UF_OK)
        ufn_must(ufd_fail(ufn_world(), rc, UFD_IN_WAIT, -1, sig, seen, value));
    return seen;
}

template <class T, class W> UFD_FN bool ufn_test_all(const T *words, size_t n, const int *status, int cmp, const W &want)
{
    for (size_t i = 0; i < n; i++)
        if (!(status && status[i]) && !ufn_holds(words + i, cmp, want.at(i)))
            return false;
    return true;
}

template <class T, class W> UFD_FN void ufn_wait_all(const T *words, size_t n, const int *status, int cmp, const W &want)
{
    for (size_t i = 0; i < n; i++)
        if (!(status && status[i]))
            ufn_wait(words + i, cmp, want.at(i));
}

UFD_FN bool ufn_none(size_t n, const int *status)
{
    for (size_t i = 0; i < n; i++)
        if (!(status && status[i]))
            return false;
    return true;
}

/* The indexes of those that hold, at most `most` of them; their number. */
template <class T, class W>
UFD_FN size_t ufn_test_some(const T *words, size_t n, size_t *indexes, size_t most, const int *status, int cmp, const W &want)
{
    size_t found = 0;
    for (size_t i = 0; i < n && found < most; i++)
        if (!(status && status[i]) && ufn_holds(words + i, cmp, want.at(i)))
            indexes[found++] = i;
    return found;
}

/* The same until there is one; 0 if all are left out. */
template <class T, class W>
UFD_FN size_t ufn_wait_some(const T *words, size_t n, size_t *indexes, size_t most, const int *status, int cmp, const W &want)
{
    size_t found = 0;
    ufd_patience patience = ufd_patience_of(ufn_world(), UFD_WORLD_TIMEOUT);
    if (ufn_none(n, status))
        return 0;
    while ((found = ufn_test_some(words, n, indexes, most, status, cmp, want)) == 0)
        ufn_turn(&patience, words);
    return found;
}

/* One index, or the largest size_t if there is none. */
template <class T, class W> UFD_FN size_t ufn_test_any(const T *words, size_t n, const int *status, int cmp, const W &want)
{
    size_t index;
    return ufn_test_some(words, n, &index, 1, status, cmp, want) ? index : ~(size_t)0;
}

template <class T, class W> UFD_FN size_t ufn_wait_any(const T *words, size_t n, const int *status, int cmp, const W &want)
{
    size_t index;
    return ufn_wait_some(words, n, &index, 1, status, cmp, want) ? index : ~(size_t)0;
}

#endif
