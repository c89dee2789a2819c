/* sum.c - rows added in the order given, in f32 from 0, with one rounding to the element's type: the same bits at every run.
 *
 * In blocks that stay in the first-level cache, and loops plain enough for the compiler to vectorise: each element's additions are its own. */
#include "ring/private.h"
#include <string.h>

enum { BLOCK = 512 };

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even; a NaN stays one. */
static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

void uf_ring_sum_f32(float *out, const float *const *rows, int n_rows, size_t n)
{
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        float sum[BLOCK] = {0};
        for (int r = 0; r < n_rows; r++)
            for (size_t i = 0; i < m; i++)
                sum[i] += rows[r][at + i];
        memcpy(out + at, sum, m * sizeof *sum);
    }
}

void uf_ring_sum_bf16(uint16_t *out, const uint16_t *const *rows, int n_rows, size_t n)
{
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        float sum[BLOCK] = {0};
        for (int r = 0; r < n_rows; r++)
            for (size_t i = 0; i < m; i++)
                sum[i] += from_bf16(rows[r][at + i]);
        for (size_t i = 0; i < m; i++)
            out[at + i] = to_bf16(sum[i]);
    }
}
