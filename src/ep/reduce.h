/* reduce.h - the arithmetic of combine: add rows in float, from 0, in the order given, and round once.
 *
 * The result is defined to the bit, whatever the compiler or processor: only additions, so nothing can be contracted or
 * reordered. bf16 is the upper half of a float; rounding is to the nearest, ties to even; a NaN stays a (quiet) NaN. */
#ifndef UF_EP_REDUCE_H
#define UF_EP_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float uf_ep_float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t uf_ep_bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float uf_ep_from_bf16(uint16_t v)
{
    return uf_ep_float_of((uint32_t)v << 16);
}

static inline uint16_t uf_ep_to_bf16(float f)
{
    uint32_t bits = uf_ep_bits_of(f);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* out[0..n) = round(((0 + rows[0]) + rows[1]) + ...). n_rows 0 gives zeros. `out` overlaps no row. Rows and out are aligned to their
 * elements. */
void uf_ep_reduce_bf16(uint16_t *out, const uint16_t *const *rows, int n_rows, size_t n);
void uf_ep_reduce_f32(float *out, const float *const *rows, int n_rows, size_t n);

/* Copies a row to a place that this processor will not read soon: past the cache where that is faster. `dst` is aligned to 16 bytes and
 * `bytes` is a multiple of 16. Before a signal is sent, uf_ep_copy_done orders such stores. */
void uf_ep_copy_row(void *dst, const void *src, size_t bytes);
void uf_ep_copy_done(void);

#endif
