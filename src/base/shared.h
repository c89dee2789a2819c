/* shared.h - memory shared between CPU threads, CUDA threads and devices: fixed-width integers, loads, stores, fences.
 *
 * Headers that a kernel and the host both include use these and nothing else: no _Atomic, no bit-fields, no header of the
 * system under NVRTC. C11, C++17, nvcc and NVRTC accept it. On the device every operation has system scope, since the other
 * side is a CPU or a NIC. Each use names the pair it orders at the place of use.
 *
 * The mmio family is for a NIC's memory, which a CPU maps write-combining (rings) or uncached (doorbells): C's release fences
 * do not order write-combining stores on x86, so uf_mmio_flush is an instruction of its own. Never read such memory back. */
#ifndef UF_BASE_SHARED_H
#define UF_BASE_SHARED_H

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef int int32_t;
#else
#include <stdint.h>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define UF_SHARED_FN static __host__ __device__ __forceinline__
#else
#define UF_SHARED_FN static inline
#endif

#if defined(__CUDA_ARCH__)

UF_SHARED_FN uint32_t uf_load_relaxed32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

UF_SHARED_FN uint32_t uf_load_acquire32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

UF_SHARED_FN uint64_t uf_load_relaxed64(const uint64_t *p)
{
    unsigned long long v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

UF_SHARED_FN uint64_t uf_load_acquire64(const uint64_t *p)
{
    unsigned long long v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

UF_SHARED_FN void uf_store_relaxed32(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

UF_SHARED_FN void uf_store_release32(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

UF_SHARED_FN void uf_store_relaxed64(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"((unsigned long long)v) : "memory");
}

UF_SHARED_FN void uf_store_release64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"((unsigned long long)v) : "memory");
}

/* True if *p was *expected and is now `wanted`; else *expected is what it was. Acquire and release. */
UF_SHARED_FN int uf_compare_exchange32(uint32_t *p, uint32_t *expected, uint32_t wanted)
{
    uint32_t old;
    asm volatile("atom.acq_rel.sys.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(*expected), "r"(wanted) : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
}

UF_SHARED_FN int uf_compare_exchange64(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
    unsigned long long old;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"((unsigned long long)*expected), "l"((unsigned long long)wanted)
                 : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
}

/* The _here family orders threads of one processor among each other: all of this GPU, all of this host. For counters that no other
 * side looks at: at system scope a release waits for everything on its way over the bus. */
UF_SHARED_FN uint32_t uf_load_acquire_here32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

UF_SHARED_FN void uf_store_release_here64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"((unsigned long long)v) : "memory");
}

UF_SHARED_FN void uf_add_release_here32(uint32_t *p, uint32_t v)
{
    asm volatile("red.release.gpu.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Relaxed: no order. */
UF_SHARED_FN int uf_compare_exchange_here32(uint32_t *p, uint32_t *expected, uint32_t wanted)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(*expected), "r"(wanted) : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
}

/* Acquire. */
UF_SHARED_FN int uf_compare_exchange_here64(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
    unsigned long long old;
    asm volatile("atom.acquire.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"((unsigned long long)*expected), "l"((unsigned long long)wanted)
                 : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
}

UF_SHARED_FN void uf_mmio_store32(uint32_t *p, uint32_t v)
{
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

UF_SHARED_FN void uf_mmio_store64(uint64_t *p, uint64_t v)
{
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"((unsigned long long)v) : "memory");
}

/* Everything this thread stored, to memory and to the device, before everything it stores afterwards. Cumulative, so that a
 * doorbell rung by another thread, which acquired from this one, comes after this one's stores. */
UF_SHARED_FN void uf_mmio_flush(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

UF_SHARED_FN void uf_shared_pause(uint32_t turn)
{
    (void)turn;
    __nanosleep(20);
}

#else

UF_SHARED_FN uint32_t uf_load_relaxed32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

UF_SHARED_FN uint32_t uf_load_acquire32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

UF_SHARED_FN uint64_t uf_load_relaxed64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

UF_SHARED_FN uint64_t uf_load_acquire64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

UF_SHARED_FN void uf_store_relaxed32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

UF_SHARED_FN void uf_store_release32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

UF_SHARED_FN void uf_store_relaxed64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

UF_SHARED_FN void uf_store_release64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* True if *p was *expected and is now `wanted`; else *expected is what it was. Acquire and release. */
UF_SHARED_FN int uf_compare_exchange32(uint32_t *p, uint32_t *expected, uint32_t wanted)
{
    return __atomic_compare_exchange_n(p, expected, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

UF_SHARED_FN int uf_compare_exchange64(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
    return __atomic_compare_exchange_n(p, expected, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The _here family: see above. */
UF_SHARED_FN uint32_t uf_load_acquire_here32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

UF_SHARED_FN void uf_store_release_here64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

UF_SHARED_FN void uf_add_release_here32(uint32_t *p, uint32_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}

UF_SHARED_FN int uf_compare_exchange_here32(uint32_t *p, uint32_t *expected, uint32_t wanted)
{
    return __atomic_compare_exchange_n(p, expected, wanted, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

UF_SHARED_FN int uf_compare_exchange_here64(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
    return __atomic_compare_exchange_n(p, expected, wanted, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* A release, which costs nothing on x86 and lets a model that reads the register with acquire stand in for the device. */
UF_SHARED_FN void uf_mmio_store32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

UF_SHARED_FN void uf_mmio_store64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

/* Everything this thread stored, to memory and to the device, before everything it stores afterwards. */
UF_SHARED_FN void uf_mmio_flush(void)
{
#if defined(__x86_64__)
    __asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* One turn of a wait for another thread of this machine that is a few stores away. It may have lost its processor: after
 * some turns, give it ours. */
#if !defined(__CUDACC_RTC__)
#include <sched.h>
UF_SHARED_FN void uf_shared_pause(uint32_t turn)
{
    if (turn > 64)
        sched_yield();
#if defined(__x86_64__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
#else
UF_SHARED_FN void uf_shared_pause(uint32_t turn)
{
    (void)turn;
}
#endif

#endif
#endif
