/* test_base_map.c - the hash table agrees with the simplest table there is, over seeded runs that fill, empty and refill it. */
#include "base/map.h"
#include "unfence/unfence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void a_zeroed_map_is_empty_and_grows(void **state)
{
    uf_map map = {0};
    uint64_t value = 5;

    (void)state;
    assert_false(uf_map_get(&map, 0, &value));
    assert_false(uf_map_remove(&map, 0, &value));
    assert_int_equal(value, 5);
    for (uint64_t key = 0; key < 10000; key++)
        assert_int_equal(uf_map_put(&map, key << 40, ~key), UF_OK);
    assert_int_equal(uf_map_count(&map), 10000);
    for (uint64_t key = 0; key < 10000; key++) {
        assert_true(uf_map_get(&map, key << 40, &value));
        assert_int_equal(value, ~key);
    }
    uf_map_free(&map);
    assert_int_equal(uf_map_count(&map), 0);
    assert_int_equal(uf_map_put(&map, 1, 2), UF_OK);
    uf_map_free(&map);
}

static void any_key_and_any_value_are_kept(void **state)
{
    const uint64_t words[] = {0, 1, UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 63};
    uf_map map = {0};
    uint64_t value;

    (void)state;
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(uf_map_put(&map, words[i], words[4 - i]), UF_OK);
    for (size_t i = 0; i < 5; i++) {
        assert_true(uf_map_get(&map, words[i], &value));
        assert_int_equal(value, words[4 - i]);
        assert_true(uf_map_get(&map, words[i], NULL));
    }
    assert_int_equal(uf_map_put(&map, 0, 77), UF_OK); /* replaces */
    assert_int_equal(uf_map_count(&map), 5);
    assert_true(uf_map_remove(&map, 0, &value));
    assert_int_equal(value, 77);
    assert_false(uf_map_get(&map, 0, NULL));
    uf_map_free(&map);
}

static void a_fixed_map_refuses_one_entry_more_and_changes_nothing(void **state)
{
    uint64_t value;
    uf_map map;

    (void)state;
    for (size_t entries = 0; entries < 40; entries++) {
        assert_int_equal(uf_map_init_fixed(&map, entries), UF_OK);
        uf_map_slot *slots = map.slots;
        for (uint64_t key = 0; key < entries; key++)
            assert_int_equal(uf_map_put(&map, key, key), UF_OK);
        assert_int_equal(uf_map_put(&map, 1000, 1), UF_ENOMEM);
        assert_int_equal(uf_map_count(&map), entries);
        for (uint64_t key = 0; key < entries; key++)
            assert_true(uf_map_get(&map, key, &value) && value == key);
        if (entries) { /* replacing needs no room */
            assert_int_equal(uf_map_put(&map, 0, 9), UF_OK);
            assert_true(uf_map_remove(&map, 0, NULL));
            assert_int_equal(uf_map_put(&map, 1000, 1), UF_OK);
        }
        assert_ptr_equal(map.slots, slots);
        uf_map_free(&map);
    }
}

static void a_map_beyond_the_address_space_is_refused(void **state)
{
    uf_map map;

    (void)state;
    assert_int_equal(uf_map_init(&map, SIZE_MAX / 2), UF_ENOMEM);
    assert_int_equal(uf_map_init_fixed(&map, SIZE_MAX), UF_ENOMEM);
    assert_int_equal(uf_map_count(&map), 0);
}

/* The simplest table: an array of what should be there. */
#define KEYS 97
typedef struct plain {
    bool used[KEYS];
    uint64_t value[KEYS];
    size_t count;
} plain;

/* Keys far apart and close together, so that runs of full slots meet, wrap and have their middle taken out. */
static uint64_t key_of(uint64_t number, uint64_t seed)
{
    return seed % 2 ? number : number * 0x100000001b3u + seed;
}

static void compare_all(const uf_map *map, const plain *expected, uint64_t seed)
{
    uint64_t key, value;
    size_t cursor = 0, found = 0;

    assert_int_equal(uf_map_count(map), expected->count);
    for (uint64_t n = 0; n < KEYS; n++) {
        bool there = uf_map_get(map, key_of(n, seed), &value);
        if (there != expected->used[n] || (there && value != expected->value[n]))
            fail_msg("seed %llu: key %llu differs", (unsigned long long)seed, (unsigned long long)n);
    }
    while (uf_map_next(map, &cursor, &key, &value))
        found++;
    assert_int_equal(found, expected->count);
}

static void one_run(uint64_t seed)
{
    uint64_t random = seed, value;
    plain expected = {0};
    uf_map map = {0};

    for (int step = 0; step < 600; step++) {
        uint64_t n = next_random(&random) % KEYS;
        bool filling = (step / 150) % 2 == 0;
        if (next_random(&random) % 4 < (filling ? 3u : 1u)) {
            assert_int_equal(uf_map_put(&map, key_of(n, seed), random), UF_OK);
            expected.count += !expected.used[n];
            expected.used[n] = true;
            expected.value[n] = random;
        } else {
            if (uf_map_remove(&map, key_of(n, seed), &value) != expected.used[n])
                fail_msg("seed %llu, step %d: remove differs", (unsigned long long)seed, step);
            expected.count -= expected.used[n];
            expected.used[n] = false;
        }
        if (step % 10 == 0)
            compare_all(&map, &expected, seed);
    }
    compare_all(&map, &expected, seed);
    uf_map_free(&map);
}

static void seeded_runs_agree_with_a_plain_array(void **state)
{
    const char *only = getenv("UNFENCE_SEED");

    (void)state;
    if (only && strtoull(only, NULL, 10)) {
        one_run(strtoull(only, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 400; seed++)
        one_run(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zeroed_map_is_empty_and_grows),
        cmocka_unit_test(any_key_and_any_value_are_kept),
        cmocka_unit_test(a_fixed_map_refuses_one_entry_more_and_changes_nothing),
        cmocka_unit_test(a_map_beyond_the_address_space_is_refused),
        cmocka_unit_test(seeded_runs_agree_with_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
