/* atomic.cuh - atomics on symmetric words of 4 or 8 bytes.
 *
 * Part of device.cuh. One atomic instruction at system scope, relaxed: it orders nothing else, as in OpenSHMEM. Over NVLink it is executed
 * by the owner's memory; between GPUs on PCIe only where the host found native peer atomics. Fetching forms wait for the value,
 * about 1.3 us over NVLink; the others are complete after ufd_quiet. In warp and block scope the leader does it, once.
 * Of a far peer's word the host of its owner does it (far.cuh), with its own atomic instructions. */
#ifndef UNFENCE_DEVICE_ATOMIC_CUH
#define UNFENCE_DEVICE_ATOMIC_CUH

#include "far.cuh"

#define UFD_PTX_ATOMICS_(bits, reg)                                                                                              \
    UFD_FN uint##bits##_t ufd_ptx_atomic(uint##bits##_t *p, int op, uint##bits##_t v, uint##bits##_t compare)                    \
    {                                                                                                                            \
        uint64_t at = ufd_ptx_global(p);                                                                                         \
        uint##bits##_t old = 0;                                                                                                  \
        switch (op) {                                                                                                            \
        case UF_ATOMIC_SET:                                                                                                      \
            asm volatile("st.relaxed.sys.global.u" #bits " [%0], %1;" ::"l"(at), reg(v) : "memory");                             \
            break;                                                                                                               \
        case UF_ATOMIC_FETCH:                                                                                                    \
            asm volatile("ld.relaxed.sys.global.u" #bits " %0, [%1];" : "=" reg(old) : "l"(at) : "memory");                      \
            break;                                                                                                               \
        case UF_ATOMIC_ADD:                                                                                                      \
            asm volatile("red.relaxed.sys.global.add.u" #bits " [%0], %1;" ::"l"(at), reg(v) : "memory");                        \
            break;                                                                                                               \
        case UF_ATOMIC_AND:                                                                                                      \
            asm volatile("red.relaxed.sys.global.and.b" #bits " [%0], %1;" ::"l"(at), reg(v) : "memory");                        \
            break;                                                                                                               \
        case UF_ATOMIC_OR:                                                                                                       \
            asm volatile("red.relaxed.sys.global.or.b" #bits " [%0], %1;" ::"l"(at), reg(v) : "memory");                         \
            break;                                                                                                               \
        case UF_ATOMIC_XOR:                                                                                                      \
            asm volatile("red.relaxed.sys.global.xor.b" #bits " [%0], %1;" ::"l"(at), reg(v) : "memory");                        \
            break;                                                                                                               \
        case UF_ATOMIC_FETCH_ADD:                                                                                                \
            asm volatile("atom.relaxed.sys.global.add.u" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(v) : "memory");    \
            break;                                                                                                               \
        case UF_ATOMIC_FETCH_AND:                                                                                                \
            asm volatile("atom.relaxed.sys.global.and.b" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(v) : "memory");    \
            break;                                                                                                               \
        case UF_ATOMIC_FETCH_OR:                                                                                                 \
            asm volatile("atom.relaxed.sys.global.or.b" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(v) : "memory");     \
            break;                                                                                                               \
        case UF_ATOMIC_FETCH_XOR:                                                                                                \
            asm volatile("atom.relaxed.sys.global.xor.b" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(v) : "memory");    \
            break;                                                                                                               \
        case UF_ATOMIC_SWAP:                                                                                                     \
            asm volatile("atom.relaxed.sys.global.exch.b" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(v) : "memory");   \
            break;                                                                                                               \
        case UF_ATOMIC_COMPARE_SWAP:                                                                                             \
            asm volatile("atom.relaxed.sys.global.cas.b" #bits " %0, [%1], %2, %3;"                                              \
                         : "=" reg(old)                                                                                          \
                         : "l"(at), reg(compare), reg(v)                                                                         \
                         : "memory");                                                                                            \
            break;                                                                                                               \
        }                                                                                                                        \
        return old;                                                                                                              \
    }
UFD_PTX_ATOMICS_(32, "r")
UFD_PTX_ATOMICS_(64, "l")

/* As uf_atomic: `width` 4 or 8; the old value, zero-extended, goes to *old (the leader's; may be NULL) for fetching forms. */
template <class S>
UFD_FN int ufd_atomic_in(const ufd_ctx &c, int op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old,
                         int pe)
{
    int64_t shift;
    int rc = ufd_check_target<S>(c, UFD_IN_ATOMIC, dst, (uint64_t)width, (uint32_t)width, pe);
    if (rc)
        return rc;
    ufd_route to = ufd_route_to(c, pe);
    if (to.way != UFD_WAY_NEAR)
        return ufd_far_atomic<S>(c.world, c.queue, to.way, op, width, dst, operand, compare, pe, old);
    if ((rc = ufd_reach_by(c, to, dst, &shift)))
        return rc;
    S::sync();
    if (S::rank() == 0) {
        void *at = ufd_moved(dst, shift);
        uint64_t was = width == 4 ? ufd_ptx_atomic((uint32_t *)at, op, (uint32_t)operand, (uint32_t)compare)
                                  : ufd_ptx_atomic((uint64_t *)at, op, operand, compare);
        if (old && op >= UF_ATOMIC_FETCH)
            *old = was;
    }
    return UF_OK;
}

/* Typed short forms, by the calling thread. */
#define UFD_ATOMIC_TYPED_(bits, width)                                                                                           \
    UFD_FN int ufd_atomic_set##bits(const ufd_ctx &c, uint##bits##_t *d, uint##bits##_t v, int pe)                               \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_SET, width, d, v, 0, (uint64_t *)0, pe);                                   \
    }                                                                                                                            \
    UFD_FN int ufd_atomic_add##bits(const ufd_ctx &c, uint##bits##_t *d, uint##bits##_t v, int pe)                               \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_ADD, width, d, v, 0, (uint64_t *)0, pe);                                   \
    }                                                                                                                            \
    UFD_FN int ufd_atomic_fetch##bits(const ufd_ctx &c, const uint##bits##_t *d, uint64_t *old, int pe)                          \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_FETCH, width, (void *)d, 0, 0, old, pe);                                   \
    }                                                                                                                            \
    UFD_FN int ufd_atomic_fetch_add##bits(const ufd_ctx &c, uint##bits##_t *d, uint##bits##_t v, uint64_t *old, int pe)          \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_FETCH_ADD, width, d, v, 0, old, pe);                                       \
    }                                                                                                                            \
    UFD_FN int ufd_atomic_swap##bits(const ufd_ctx &c, uint##bits##_t *d, uint##bits##_t v, uint64_t *old, int pe)               \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_SWAP, width, d, v, 0, old, pe);                                            \
    }                                                                                                                            \
    UFD_FN int ufd_atomic_compare_swap##bits(const ufd_ctx &c, uint##bits##_t *d, uint##bits##_t compare, uint##bits##_t v,      \
                                             uint64_t *old, int pe)                                                              \
    {                                                                                                                            \
        return ufd_atomic_in<ufd_thread>(c, UF_ATOMIC_COMPARE_SWAP, width, d, v, compare, old, pe);                              \
    }
UFD_ATOMIC_TYPED_(64, 8)
UFD_ATOMIC_TYPED_(32, 4)

#endif
