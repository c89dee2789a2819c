/* copy.cuh - bytes from anywhere to anywhere by the threads of a scope, at any size and alignment.
 *
 * Part of device.cuh. Where source and target agree modulo 16 the middle goes in 16-byte accesses, four in flight a thread; where they
 * agree modulo 8 or 4 in those; else each 16-byte store is put together from aligned 4-byte loads. The few bytes before and
 * after are copied by the leader and the last thread. Nothing outside of the target is written; of the source at most the
 * rest of the 4-byte word that its first byte lies in is read. Accesses are weak: order is the caller's. */
#ifndef UNFENCE_DEVICE_COPY_CUH
#define UNFENCE_DEVICE_COPY_CUH

#include "scope.cuh"

/* How a source is read. `ufd_fresh` is for a peer's memory, which the L1 may hold an old copy of. */
struct ufd_cached {
    template <class V> UFD_FN V load(const V *p)
    {
        return *p;
    }
};
struct ufd_fresh {
    template <class V> UFD_FN V load(const V *p)
    {
        return ufd_ptx_fresh(p);
    }
};

/* Up to 31 bytes by one thread, in as few accesses as alignment allows. */
template <class L> UFD_FN void ufd_copy_edge(uint64_t dst, uint64_t src, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t together = dst | src | 8, width = together & (0 - together);
        while (width > bytes)
            width /= 2;
        if (width == 8)
            *(uint64_t *)dst = L::load((const uint64_t *)src);
        else if (width == 4)
            *(uint32_t *)dst = L::load((const uint32_t *)src);
        else if (width == 2)
            *(uint16_t *)dst = L::load((const uint16_t *)src);
        else
            *(uint8_t *)dst = L::load((const uint8_t *)src);
        dst += width, src += width, bytes -= width;
    }
}

/* n accesses of type V, shared out; both addresses are multiples of its size. */
template <class S, class L, class V> UFD_FN void ufd_copy_span(V *dst, const V *src, uint64_t n)
{
    uint64_t i = S::rank(), step = S::size();
    for (; i + 3 * step < n; i += 4 * step) {
        V a = L::load(src + i), b = L::load(src + i + step), c = L::load(src + i + 2 * step), d = L::load(src + i + 3 * step);
        dst[i] = a;
        dst[i + step] = b;
        dst[i + 2 * step] = c;
        dst[i + 3 * step] = d;
    }
    for (; i < n; i += step)
        dst[i] = L::load(src + i);
}

/* n 16-byte stores from a source that lies `src % 4` bytes behind a word. The words that it reads end with the last one
 * that holds a byte of the source's 16 n, so the caller leaves at least three bytes behind these. */
template <class S, class L> UFD_FN void ufd_copy_shifted(uint4 *dst, uint64_t src, uint64_t n)
{
    const uint32_t *words = (const uint32_t *)(src & ~(uint64_t)3);
    uint32_t shift = (uint32_t)(src & 3) * 8;
    for (uint64_t i = S::rank(); i < n; i += S::size()) {
        const uint32_t *from = words + 4 * i;
        uint32_t a = L::load(from), b = L::load(from + 1), c = L::load(from + 2), d = L::load(from + 3), e = L::load(from + 4);
        dst[i] = make_uint4(__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift), __funnelshift_r(c, d, shift),
                            __funnelshift_r(d, e, shift));
    }
}

/* `bytes` by all threads of the scope. No barrier before or after. */
template <class S, class L> UFD_FN void ufd_copy(void *target, const void *source, uint64_t bytes)
{
    uint64_t dst = (uint64_t)target, src = (uint64_t)source;
    if (bytes < 32) {
        uint64_t together = dst | src | bytes;
        if (together % 8 == 0)
            ufd_copy_span<S, L>((uint64_t *)dst, (const uint64_t *)src, bytes / 8);
        else if (together % 4 == 0)
            ufd_copy_span<S, L>((uint32_t *)dst, (const uint32_t *)src, bytes / 4);
        else
            ufd_copy_span<S, L>((uint8_t *)dst, (const uint8_t *)src, bytes);
        return;
    }
    uint64_t head = (0 - dst) % 16, middle = (bytes - head) / 16, apart = (dst - src) % 16;
    if (apart % 4 != 0 && (bytes - head) % 16 < 3)
        middle--; /* ufd_copy_shifted's last word must lie inside the source */
    uint64_t tail = bytes - head - 16 * middle;
    if (S::rank() == 0)
        ufd_copy_edge<L>(dst, src, head);
    if (S::rank() == S::size() - 1)
        ufd_copy_edge<L>(dst + bytes - tail, src + bytes - tail, tail);
    dst += head, src += head;
    if (apart == 0)
        ufd_copy_span<S, L>((uint4 *)dst, (const uint4 *)src, middle);
    else if (apart == 8)
        ufd_copy_span<S, L>((uint64_t *)dst, (const uint64_t *)src, 2 * middle);
    else if (apart % 4 == 0)
        ufd_copy_span<S, L>((uint32_t *)dst, (const uint32_t *)src, 4 * middle);
    else
        ufd_copy_shifted<S, L>((uint4 *)dst, src, middle);
}

#endif
