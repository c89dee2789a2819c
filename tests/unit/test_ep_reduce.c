/* Promises of src/ep/reduce.c: float from 0, in the order given, one rounding to nearest even, the same bits as a scalar model. */
#include "ep/reduce.h"
#include "support/moe_reference.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 60, MOST_ROWS = 9, MOST = 1300 };

static uint64_t random_state;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void conversion_to_bf16_is_nearest_even_for_all_upper_halves(void **state)
{
    (void)state;
    /* Every bf16 with the lower halves around the tie, and a few between. */
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234};
    for (uint32_t high = 0; high < 0x10000; high++)
        for (size_t k = 0; k < sizeof low / sizeof *low; k++) {
            float f = uf_ep_float_of(high << 16 | low[k]);
            uint16_t got = uf_ep_to_bf16(f);
            if (isnan(f)) {
                assert_true(isnan(uf_ep_from_bf16(got)));
                continue;
            }
            if (got != moe_reference_to_bf16(f))
                fail_msg("%a becomes %04x, the model says %04x", (double)f, got, moe_reference_to_bf16(f));
        }
}

static void conversion_from_bf16_is_exact(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x10000; v++) {
        float f = uf_ep_from_bf16((uint16_t)v), model = moe_reference_from_bf16((uint16_t)v);
        assert_true(isnan(f) ? isnan(model) : uf_ep_bits_of(f) == uf_ep_bits_of(model));
    }
}

static uint16_t random_bf16(void)
{
    /* Exponents near each other, so that additions round and cancel. */
    uint32_t bits = random_bits();
    return (uint16_t)((bits & 0x807f) | (0x3c00 + ((bits >> 16 & 0xf) << 7)));
}

static void reduction_has_the_bits_of_the_scalar_model(void **state)
{
    (void)state;
    static uint16_t in[MOST_ROWS][MOST], out[MOST];
    static float fin[MOST_ROWS][MOST], fout[MOST];
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_state = seed * 104729;
        int n_rows = (int)(random_bits() % (MOST_ROWS + 1));
        size_t n = random_bits() % (MOST + 1);
        const uint16_t *rows[MOST_ROWS];
        const float *frows[MOST_ROWS];
        for (int r = 0; r < MOST_ROWS; r++) {
            rows[r] = in[r], frows[r] = fin[r];
            for (size_t i = 0; i < n; i++)
                in[r][i] = random_bf16(), fin[r][i] = moe_reference_from_bf16(random_bf16()) * 1.37f;
        }
        uf_ep_reduce_bf16(out, rows, n_rows, n);
        uf_ep_reduce_f32(fout, frows, n_rows, n);
        for (size_t i = 0; i < n; i++) {
            volatile float sum = 0, fsum = 0;
            for (int r = 0; r < n_rows; r++) {
                sum = sum + moe_reference_from_bf16(in[r][i]);
                fsum = fsum + fin[r][i];
            }
            if (out[i] != moe_reference_to_bf16(sum) || uf_ep_bits_of(fout[i]) != uf_ep_bits_of(fsum))
                fail_msg("seed %llu, element %zu of %zu, %d rows", (unsigned long long)seed, i, n, n_rows);
        }
    }
}

static void order_of_addition_is_the_order_of_rows(void **state)
{
    (void)state;
    /* (2^20 + 2^-6) - 2^20 is 0 in float as 2^-6 is lost; 2^20 - 2^20 + 2^-6 keeps it. */
    uint16_t big = moe_reference_to_bf16(ldexpf(1, 20)), small = moe_reference_to_bf16(ldexpf(1, -6));
    uint16_t minus = (uint16_t)(big | 0x8000), out[8];
    uint16_t a[8], b[8], c[8];
    for (int i = 0; i < 8; i++)
        a[i] = big, b[i] = small, c[i] = minus;
    uf_ep_reduce_bf16(out, (const uint16_t *const[]){a, b, c}, 3, 8);
    assert_int_equal(out[7], 0);
    uf_ep_reduce_bf16(out, (const uint16_t *const[]){a, c, b}, 3, 8);
    assert_int_equal(out[7], small);
}

static void sum_starts_from_plus_zero(void **state)
{
    (void)state;
    uint16_t minus_zero[4] = {0x8000, 0x8000, 0x8000, 0x8000}, out[4] = {1, 1, 1, 1};
    uf_ep_reduce_bf16(out, (const uint16_t *const[]){minus_zero}, 1, 4);
    assert_int_equal(out[0], 0);
    uf_ep_reduce_bf16(out, NULL, 0, 4);
    assert_int_equal(out[3], 0);
}

static void copied_rows_are_equal_at_any_source_alignment(void **state)
{
    (void)state;
    static unsigned char from[4096 + 64];
    static unsigned char to[4096 + 32] __attribute__((aligned(64)));
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7);
    for (size_t bytes = 0; bytes <= 4096; bytes += 16) {
        memset(to, 0xee, sizeof to);
        uf_ep_copy_row(to, from + bytes % 17, bytes);
        uf_ep_copy_done();
        assert_memory_equal(to, from + bytes % 17, bytes);
        assert_int_equal(to[bytes], 0xee);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversion_to_bf16_is_nearest_even_for_all_upper_halves),
        cmocka_unit_test(conversion_from_bf16_is_exact),
        cmocka_unit_test(reduction_has_the_bits_of_the_scalar_model),
        cmocka_unit_test(order_of_addition_is_the_order_of_rows),
        cmocka_unit_test(sum_starts_from_plus_zero),
        cmocka_unit_test(copied_rows_are_equal_at_any_source_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
