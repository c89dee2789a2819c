/* The symmetric heap's allocator: the same calls give the same offsets, blocks never overlap, everything comes back. */
#include "base/error.h"
#include "world/heap.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* ---- the naive model: a list of blocks, every rule checked by comparing all with all */

enum { MODEL_MAX = 4096 };

typedef struct model {
    size_t starts[MODEL_MAX], bytes[MODEL_MAX];
    size_t n, segments[64], n_segments, used;
} model;

static size_t up(size_t v, size_t unit)
{
    return (v + unit - 1) / unit * unit;
}

static bool model_free_at(const model *m, size_t start, size_t bytes)
{
    for (size_t i = 0; i < m->n; i++)
        if (start < m->starts[i] + m->bytes[i] && m->starts[i] < start + bytes)
            return false;
    return true;
}

/* Lowest aligned offset inside one segment where `bytes` fit: candidates are segment starts and ends of blocks. */
static bool model_lowest(const model *m, size_t bytes, size_t align, size_t *best)
{
    bool any = false;
    size_t segment_start = 0;
    for (size_t s = 0; s < m->n_segments; s++) {
        size_t segment_end = segment_start + m->segments[s];
        for (size_t i = 0; i <= m->n; i++) {
            size_t from = i < m->n ? m->starts[i] + m->bytes[i] : segment_start;
            from = up(from < segment_start ? segment_start : from, align);
            if (from + bytes <= segment_end && model_free_at(m, from, bytes) && (!any || from < *best)) {
                any = true;
                *best = from;
            }
        }
        segment_start = segment_end;
    }
    return any;
}

static void check_lookups(const uf_heap *h, const model *m, uint64_t *seed)
{
    size_t start, bytes, index;
    for (size_t i = 0; i < m->n; i++) {
        assert_true(uf_heap_block(h, m->starts[i] + next_random(seed) % m->bytes[i], &start, &bytes));
        assert_int_equal(start, m->starts[i]);
        assert_int_equal(bytes, m->bytes[i]);
        assert_true(uf_heap_segment(h, start, &index, &start, &bytes));
        assert_true(m->starts[i] >= start && m->starts[i] + m->bytes[i] <= start + bytes);
    }
    assert_false(uf_heap_block(h, m->used, &start, &bytes));
    assert_false(uf_heap_segment(h, m->used, &index, &start, &bytes));
    assert_int_equal(uf_heap_n_blocks(h), m->n);
    assert_int_equal(uf_heap_used(h), m->used);
}

static size_t random_size(uint64_t *seed)
{
    switch (next_random(seed) % 8) {
    case 0:
        return 1 + next_random(seed) % (5 * MIB);
    case 1:
        return 2 * MIB * (1 + next_random(seed) % 2);
    default:
        return 1 + next_random(seed) % 5000;
    }
}

static void model_alloc(uf_heap *h, uf_heap *twin, model *m, uint64_t *seed)
{
    size_t bytes = random_size(seed), align = next_random(seed) % 3 ? 0 : (size_t)1 << next_random(seed) % 23;
    size_t real = up(bytes, 64), want_align = bytes >= 2 * MIB ? 2 * MIB : 64;
    if (align > want_align)
        want_align = align;
    size_t offset = 0, growth = 0, expected = 0, offset2 = 0, growth2 = 0;
    int rc = uf_heap_alloc(h, bytes, align, &offset, &growth);
    assert_int_equal(uf_heap_alloc(twin, bytes, align, &offset2, &growth2), rc);
    if (rc == UF_EAGAIN) {
        assert_false(model_lowest(m, real, want_align, &expected));
        assert_int_equal(growth, growth2);
        assert_int_equal(uf_heap_grow(h, growth), UF_OK);
        assert_int_equal(uf_heap_grow(twin, growth), UF_OK);
        m->segments[m->n_segments++] = growth;
        m->used += growth;
        rc = uf_heap_alloc(h, bytes, align, &offset, &growth);
        assert_int_equal(uf_heap_alloc(twin, bytes, align, &offset2, &growth2), rc);
    }
    if (rc == UF_ENOMEM) {
        assert_false(model_lowest(m, real, want_align, &expected));
        return;
    }
    assert_int_equal(rc, UF_OK);
    assert_int_equal(offset, offset2);
    assert_true(model_lowest(m, real, want_align, &expected));
    assert_int_equal(offset, expected);
    m->starts[m->n] = offset;
    m->bytes[m->n++] = real;
}

static void model_free(uf_heap *h, uf_heap *twin, model *m, uint64_t *seed)
{
    if (!m->n)
        return;
    size_t i = next_random(seed) % m->n;
    if (m->bytes[i] > 64)
        assert_int_equal(uf_heap_free(h, m->starts[i] + 64), UF_EINVAL);
    assert_int_equal(uf_heap_free(h, m->starts[i]), UF_OK);
    assert_int_equal(uf_heap_free(twin, m->starts[i]), UF_OK);
    assert_int_equal(uf_heap_free(h, m->starts[i]), UF_EINVAL);
    m->starts[i] = m->starts[--m->n];
    m->bytes[i] = m->bytes[m->n];
}

static void one_seed(uint64_t first_seed)
{
    uint64_t seed = first_seed;
    static model m;
    memset(&m, 0, sizeof(m));
    uf_heap *h, *twin;
    assert_int_equal(uf_heap_create(32 * MIB, &h), UF_OK);
    assert_int_equal(uf_heap_create(32 * MIB, &twin), UF_OK);
    for (int step = 0; step < 200; step++) {
        if (next_random(&seed) % 5 < 3)
            model_alloc(h, twin, &m, &seed);
        else
            model_free(h, twin, &m, &seed);
    }
    check_lookups(h, &m, &seed);
    while (m.n)
        model_free(h, twin, &m, &seed);
    /* All is one again: the largest segment can be had whole. */
    assert_int_equal(uf_heap_allocated(h), 0);
    for (size_t s = 0; s < m.n_segments; s++) {
        size_t offset, growth;
        assert_int_equal(uf_heap_alloc(h, m.segments[s], 0, &offset, &growth), UF_OK);
    }
    assert_int_equal(uf_heap_allocated(h), uf_heap_used(h));
    uf_heap_destroy(h);
    uf_heap_destroy(twin);
}

static uint64_t running_seed;

static int print_failing_seed(void **state)
{
    (void)state;
    if (running_seed)
        fprintf(stderr, "failed with UNFENCE_SEED=%llu\n", (unsigned long long)running_seed);
    return 0;
}

static void blocks_follow_the_naive_model_on_every_pe_alike(void **state)
{
    (void)state;
    const char *only = getenv("UNFENCE_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : 1, last = only ? first : 300;
    for (uint64_t seed = first; seed <= last; seed++) {
        running_seed = seed;
        one_seed(seed);
    }
    running_seed = 0;
}

static void large_blocks_are_aligned_to_2_mib(void **state)
{
    (void)state;
    uf_heap *h;
    size_t small, large, growth;
    assert_int_equal(uf_heap_create(64 * MIB, &h), UF_OK);
    assert_int_equal(uf_heap_grow(h, 16 * MIB), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 1, 0, &small, &growth), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 2 * MIB, 0, &large, &growth), UF_OK);
    assert_int_equal(small % 64, 0);
    assert_int_equal(large % (2 * MIB), 0);
    uf_heap_destroy(h);
}

static void a_block_never_crosses_into_the_next_segment(void **state)
{
    (void)state;
    uf_heap *h;
    size_t offset, growth, index, start, bytes;
    assert_int_equal(uf_heap_create(64 * MIB, &h), UF_OK);
    assert_int_equal(uf_heap_grow(h, 2 * MIB), UF_OK);
    assert_int_equal(uf_heap_grow(h, 2 * MIB), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 3 * MIB, 0, &offset, &growth), UF_EAGAIN);
    assert_int_equal(growth, 4 * MIB);
    assert_int_equal(uf_heap_grow(h, growth), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 3 * MIB, 0, &offset, &growth), UF_OK);
    assert_int_equal(offset, 4 * MIB);
    assert_true(uf_heap_segment(h, offset + 3 * MIB - 1, &index, &start, &bytes));
    assert_int_equal(index, 2);
    assert_int_equal(start, 4 * MIB);
    assert_int_equal(bytes, 4 * MIB);
    uf_heap_destroy(h);
}

static void a_growth_that_was_asked_for_is_always_enough(void **state)
{
    (void)state;
    uf_heap *h;
    size_t offset, growth;
    assert_int_equal(uf_heap_create((size_t)8 << 30, &h), UF_OK);
    assert_int_equal(uf_heap_grow(h, 6 * MIB), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 100, UF_HEAP_ALIGN_MAX, &offset, &growth), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 100, UF_HEAP_ALIGN_MAX, &offset, &growth), UF_EAGAIN);
    assert_int_equal(uf_heap_grow(h, growth), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 100, UF_HEAP_ALIGN_MAX, &offset, &growth), UF_OK);
    assert_int_equal(offset, UF_HEAP_ALIGN_MAX);
    uf_heap_destroy(h);
}

static void refusals_name_the_numbers(void **state)
{
    (void)state;
    uf_heap *h;
    size_t offset, growth;
    assert_int_equal(uf_heap_create(4 * MIB, &h), UF_OK);
    assert_int_equal(uf_heap_alloc(h, 8 * MIB, 0, &offset, &growth), UF_ENOMEM);
    assert_non_null(strstr(uf_error_message(), "8388608"));
    assert_non_null(strstr(uf_error_message(), "4194304"));
    assert_int_equal(uf_heap_alloc(h, 64, 48, &offset, &growth), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "48"));
    assert_int_equal(uf_heap_alloc(h, 64, UF_HEAP_ALIGN_MAX * 2, &offset, &growth), UF_EINVAL);
    assert_int_equal(uf_heap_alloc(h, 0, 0, &offset, &growth), UF_EINVAL);
    assert_int_equal(uf_heap_alloc(h, SIZE_MAX - 10, 0, &offset, &growth), UF_EINVAL);
    assert_int_equal(uf_heap_alloc(h, SIZE_MAX / 2 - 10, 0, &offset, &growth), UF_ENOMEM);
    assert_int_equal(uf_heap_grow(h, 6 * MIB), UF_ENOMEM);
    assert_int_equal(uf_heap_grow(h, 100), UF_EINVAL);
    assert_int_equal(uf_heap_free(h, 0), UF_EINVAL);
    uf_heap_destroy(h);
    uf_heap_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(blocks_follow_the_naive_model_on_every_pe_alike, print_failing_seed),
        cmocka_unit_test(large_blocks_are_aligned_to_2_mib),
        cmocka_unit_test(a_block_never_crosses_into_the_next_segment),
        cmocka_unit_test(a_growth_that_was_asked_for_is_always_enough),
        cmocka_unit_test(refusals_name_the_numbers),
    };
    return cmocka_run_group_tests_name("heap", tests, NULL, NULL);
}
