/* ptx.cuh - the instructions that the device API is made of: loads, stores and atomics with their order, fences, bulk copies.
 *
 * Part of device.cuh. Orders and scopes are those of the PTX memory model; all accesses that another GPU or the host takes part in
 * have system scope. "Release" makes everything that happened before this thread's store (its own accesses, and those it has
 * seen through a barrier of its warp or block) visible to whoever acquires the stored value. Nothing here knows worlds or peers. */
#ifndef UNFENCE_DEVICE_PTX_CUH
#define UNFENCE_DEVICE_PTX_CUH

#include "../device_types.h"

#define UFD_FN     static __device__ __forceinline__
#define UFD_METHOD __device__ __forceinline__

/* Bulk copies and their barriers exist from sm_90 on. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define UFD_HAS_BULK 1
#else
#define UFD_HAS_BULK 0
#endif

UFD_FN uint64_t ufd_ptx_global(const void *p)
{
    return (uint64_t)__cvta_generic_to_global(p);
}

UFD_FN uint32_t ufd_ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---------------------------------------------------------------- what the host laid out and nobody changes while a kernel runs
 *
 * These asm statements are neither volatile nor do they clobber memory: the compiler may keep a value in a register across waits and
 * fences. That matters: a load with acquire empties this SM's L1, and each word read again afterwards costs a trip to the L2. */

template <class T> UFD_FN T ufd_fixed(const T *p)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "not a word");
    if constexpr (sizeof(T) == 8) {
        uint64_t v;
        asm("ld.u64 %0, [%1];" : "=l"(v) : "l"(p));
        return (T)v;
    } else {
        uint32_t v;
        asm("ld.u32 %0, [%1];" : "=r"(v) : "l"(p));
        return (T)v;
    }
}

/* shift and way of a peer. */
UFD_FN int64_t ufd_fixed_peer(const ufd_peer *p, uint32_t *way)
{
    *way = ufd_fixed(&p->way);
    return ufd_fixed(&p->shift);
}

/* ---------------------------------------------------------------- 8-byte words of global memory */

UFD_FN uint64_t ufd_ptx_load_relaxed(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

UFD_FN uint64_t ufd_ptx_load_acquire(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

UFD_FN void ufd_ptx_store_relaxed(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(ufd_ptx_global(p)), "l"(v) : "memory");
}

UFD_FN void ufd_ptx_store_release(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(ufd_ptx_global(p)), "l"(v) : "memory");
}

UFD_FN void ufd_ptx_add_relaxed(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(ufd_ptx_global(p)), "l"(v) : "memory");
}

UFD_FN void ufd_ptx_add_release(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(ufd_ptx_global(p)), "l"(v) : "memory");
}

UFD_FN int32_t ufd_ptx_load_status(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

/* Both words in one access that is not torn: a 128-bit scalar, not a vector of two. 16-byte aligned. */
UFD_FN void ufd_ptx_store_pair(void *p, uint64_t low, uint64_t high)
{
    asm volatile("{\n\t.reg .b128 pair;\n\tmov.b128 pair, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], pair;\n\t}" ::"l"(
                     ufd_ptx_global(p)),
                 "l"(low), "l"(high)
                 : "memory");
}

UFD_FN void ufd_ptx_load_pair(const void *p, uint64_t *low, uint64_t *high)
{
    asm volatile("{\n\t.reg .b128 pair;\n\tld.relaxed.sys.global.b128 pair, [%2];\n\tmov.b128 {%0, %1}, pair;\n\t}"
                 : "=l"(*low), "=l"(*high)
                 : "l"(ufd_ptx_global(p))
                 : "memory");
}

/* ---------------------------------------------------------------- loads of a peer's memory: past the L1, which is not coherent */

UFD_FN uint4 ufd_ptx_fresh(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(ufd_ptx_global(p))
                 : "memory");
    return v;
}

UFD_FN uint64_t ufd_ptx_fresh(const uint64_t *p)
{
    return ufd_ptx_load_relaxed(p);
}

UFD_FN uint32_t ufd_ptx_fresh(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

UFD_FN uint16_t ufd_ptx_fresh(const uint16_t *p)
{
    uint16_t v;
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return v;
}

UFD_FN uint8_t ufd_ptx_fresh(const uint8_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(ufd_ptx_global(p)) : "memory");
    return (uint8_t)v;
}

/* ---------------------------------------------------------------- fences and time */

/* Everything that happened before, everywhere, before everything that this thread does afterwards. */
UFD_FN void ufd_ptx_fence(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Between the async proxy (bulk copies) and ordinary accesses to global memory, both ways. Nothing below sm_90. */
UFD_FN void ufd_ptx_fence_async(void)
{
#if UFD_HAS_BULK
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

UFD_FN uint64_t ufd_ptx_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* ---------------------------------------------------------------- mbarriers of one arrival a phase, in shared memory: one thread tells
 * another of the block. An arrival releases, a test that finds its phase over acquires (both at block scope). */

UFD_FN void ufd_ptx_barrier_init(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ufd_ptx_shared(barrier)) : "memory");
}

UFD_FN void ufd_ptx_barrier_end(uint64_t *barrier)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(ufd_ptx_shared(barrier)) : "memory");
}

UFD_FN void ufd_ptx_barrier_arrive(uint64_t *barrier)
{
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(ufd_ptx_shared(barrier))
                 : "memory");
}

/* Whether the last phase of this parity is over: true for 1 before the first. */
UFD_FN bool ufd_ptx_barrier_test(uint64_t *barrier, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(over)
                 : "r"(ufd_ptx_shared(barrier)), "r"(parity)
                 : "memory");
    return over != 0;
}

/* ---------------------------------------------------------------- bulk copies */

#if UFD_HAS_BULK

/* After the inits: the async proxy sees the barriers. */
UFD_FN void ufd_ptx_barriers_ready(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

/* The barrier's phase with this parity ends when `bytes` more have arrived. */
UFD_FN void ufd_ptx_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ufd_ptx_shared(barrier)), "r"(bytes) : "memory");
}

UFD_FN void ufd_ptx_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(ufd_ptx_shared(barrier)), "r"(parity)
                     : "memory");
}

/* Addresses and bytes are multiples of 16. */
UFD_FN void ufd_ptx_bulk_load(void *shared, uint64_t global, uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(ufd_ptx_shared(shared)),
        "l"(global), "r"(bytes), "r"(ufd_ptx_shared(barrier))
        : "memory");
}

UFD_FN void ufd_ptx_bulk_store(uint64_t global, const void *shared, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(ufd_ptx_shared(shared)),
                 "r"(bytes)
                 : "memory");
}

UFD_FN void ufd_ptx_bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* All groups of this thread but the newest N have read their shared memory. */
template <int N> UFD_FN void ufd_ptx_bulk_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* ... are complete: their writes are visible to this thread. */
template <int N> UFD_FN void ufd_ptx_bulk_complete(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

#endif

#endif
