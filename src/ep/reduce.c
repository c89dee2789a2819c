/* reduce.c - rows added in blocks that stay in the first-level cache, in loops plain enough for the compiler to vectorise.
 *
 * The same loop body is compiled twice on x86-64: for every processor, and with the wider registers that nearly all have. The
 * choice is made by the processor at run time and cannot change a bit of the result: each element's additions are its own. */
#include "ep/reduce.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { BLOCK = 512 }; /* floats: 2 KiB of accumulators */

#define UF_EP_INLINE static inline __attribute__((always_inline))

UF_EP_INLINE void add_bf16(float *restrict sum, const uint16_t *restrict row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += uf_ep_from_bf16(row[i]);
}

UF_EP_INLINE void reduce_bf16(uint16_t *restrict out, const uint16_t *const *rows, int n_rows, size_t n)
{
    float sum[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        memset(sum, 0, m * sizeof *sum);
        int r = 0;
        /* Two rows a turn: half the loads and stores of the accumulators, the same additions in the same order. */
        for (; r + 1 < n_rows; r += 2) {
            const uint16_t *restrict a = rows[r] + at, *restrict b = rows[r + 1] + at;
            for (size_t i = 0; i < m; i++)
                sum[i] = (sum[i] + uf_ep_from_bf16(a[i])) + uf_ep_from_bf16(b[i]);
        }
        if (r < n_rows)
            add_bf16(sum, rows[r] + at, m);
        for (size_t i = 0; i < m; i++)
            out[at + i] = uf_ep_to_bf16(sum[i]);
    }
}

UF_EP_INLINE void reduce_f32(float *restrict out, const float *const *rows, int n_rows, size_t n)
{
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        float *restrict sum = out + at;
        memset(sum, 0, m * sizeof *sum);
        for (int r = 0; r < n_rows; r++) {
            const float *restrict row = rows[r] + at;
            for (size_t i = 0; i < m; i++)
                sum[i] += row[i];
        }
    }
}

#if defined(__x86_64__)
#define UF_EP_WIDE __attribute__((target("avx2")))
UF_EP_WIDE static void reduce_bf16_wide(uint16_t *out, const uint16_t *const *rows, int n_rows, size_t n)
{
    reduce_bf16(out, rows, n_rows, n);
}

UF_EP_WIDE static void reduce_f32_wide(float *out, const float *const *rows, int n_rows, size_t n)
{
    reduce_f32(out, rows, n_rows, n);
}

static inline int wide(void)
{
    return __builtin_cpu_supports("avx2");
}
#endif

void uf_ep_reduce_bf16(uint16_t *out, const uint16_t *const *rows, int n_rows, size_t n)
{
#if defined(__x86_64__)
    if (wide()) {
        reduce_bf16_wide(out, rows, n_rows, n);
        return;
    }
#endif
    reduce_bf16(out, rows, n_rows, n);
}

void uf_ep_reduce_f32(float *out, const float *const *rows, int n_rows, size_t n)
{
#if defined(__x86_64__)
    if (wide()) {
        reduce_f32_wide(out, rows, n_rows, n);
        return;
    }
#endif
    reduce_f32(out, rows, n_rows, n);
}

#if defined(__x86_64__)
void uf_ep_copy_row(void *dst, const void *src, size_t bytes)
{
    /* A store past the cache saves reading the line that is about to be overwritten, a third of the traffic of a large copy. */
    __m128i *d = dst;
    const __m128i *s = src;
    size_t n = bytes / sizeof *d, i = 0;
    for (; i + 4 <= n; i += 4) {
        __m128i a = _mm_loadu_si128(s + i), b = _mm_loadu_si128(s + i + 1);
        __m128i c = _mm_loadu_si128(s + i + 2), e = _mm_loadu_si128(s + i + 3);
        _mm_stream_si128(d + i, a);
        _mm_stream_si128(d + i + 1, b);
        _mm_stream_si128(d + i + 2, c);
        _mm_stream_si128(d + i + 3, e);
    }
    for (; i < n; i++)
        _mm_stream_si128(d + i, _mm_loadu_si128(s + i));
}

void uf_ep_copy_done(void)
{
    /* Orders the streaming stores before the signal's release store, which alone would not. */
    _mm_sfence();
}
#else
void uf_ep_copy_row(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void uf_ep_copy_done(void)
{
}
#endif
