/* Promises of src/ep/plan.c: rows and slots are what enumerating the routing gives, and wrong routings are named. */
#include "ep/plan.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 400, MOST_TOKENS = 64 };

static uint64_t random_state, seed_at; /* seed_at: told when a check fails */

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static uf_ep_shape random_shape(void)
{
    static const int pes[] = {1, 2, 3, 4, 6, 8, 16, 24};
    uf_ep_shape s = {.n_pes = pes[random_below(8)], .max_tokens = MOST_TOKENS};
    s.n_experts = s.n_pes * (1 + (int)random_below(8));
    s.top_k = 1 + (int)random_below(s.n_experts < 32 ? (uint32_t)s.n_experts : 32);
    return s;
}

/* Distinct experts in random order, with some empty lanes. */
static void random_routing(const uf_ep_shape *s, int n, int32_t *experts)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < s->top_k; j++) {
            int32_t e;
            int again;
            do {
                e = (int32_t)random_below((uint32_t)s->n_experts);
                again = 0;
                for (int l = 0; l < j; l++)
                    again |= experts[i * s->top_k + l] == e;
            } while (again);
            experts[i * s->top_k + j] = random_below(6) ? e : -1;
        }
}

static int goes_to(const uf_ep_shape *s, const int32_t *e, int d)
{
    int highest = -1;
    for (int j = 0; j < s->top_k; j++)
        if (e[j] >= 0 && e[j] / (s->n_experts / s->n_pes) == d)
            highest = j;
    return highest;
}

static void check_one_routing(const uf_ep_shape *s, const int32_t *experts, int n)
{
    int32_t counts[32], rows[32], slot[MOST_TOKENS * 32], seen[32] = {0};
    uf_ep_plan_counts(s, experts, n, counts);
    uf_ep_plan_slots(s, experts, n, rows, slot);
    for (int i = 0; i < n; i++) {
        const int32_t *e = experts + i * s->top_k;
        for (int j = 0; j < s->top_k; j++)
            assert_int_equal(slot[i * s->top_k + j], e[j] < 0 ? -1 : seen[e[j] / (s->n_experts / s->n_pes)]);
        int owners[32], lane[32], n_owners = uf_ep_plan_owners(s, e, owners, lane), expected = 0;
        for (int d = 0; d < s->n_pes; d++)
            expected += goes_to(s, e, d) >= 0;
        assert_int_equal(n_owners, expected);
        for (int k = 0; k < n_owners; k++) {
            assert_int_equal(lane[k], goes_to(s, e, owners[k]));
            assert_true(k == 0 || lane[k - 1] < lane[k]);
        }
        for (int d = 0; d < s->n_pes; d++)
            seen[d] += goes_to(s, e, d) >= 0;
    }
    assert_memory_equal(counts, seen, (size_t)s->n_pes * sizeof *counts);
    assert_memory_equal(rows, seen, (size_t)s->n_pes * sizeof *rows);
}

static void plan_agrees_with_enumeration_for_every_seed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_state = (seed_at = seed) * 7919;
        uf_ep_shape s = random_shape();
        int n = (int)random_below(MOST_TOKENS + 1);
        int32_t experts[MOST_TOKENS * 32];
        random_routing(&s, n, experts);
        assert_int_equal(uf_ep_routing_check(&s, 0, experts, n), UF_OK);
        check_one_routing(&s, experts, n);
    }
}

static void rows_of_sources_follow_each_other_without_gap(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_state = seed_at = seed;
        uf_ep_shape s = random_shape();
        int32_t counts[32 * 32], first[32];
        for (int i = 0; i < s.n_pes * s.n_pes; i++)
            counts[i] = (int32_t)random_below(50);
        for (int d = 0; d < s.n_pes; d++) {
            int32_t expected = 0;
            for (int src = 0; src < s.n_pes; src++) {
                assert_int_equal(uf_ep_plan_row(&s, counts, src, d), expected);
                expected += counts[src * s.n_pes + d];
            }
        }
        uf_ep_plan_prefix(&s, counts, first);
        for (int d = 0, sum = 0; d < s.n_pes; sum += counts[d++])
            assert_int_equal(first[d], sum);
    }
}

/* Each lane has a row of its own among those of its expert, in the order of tokens; experts begin at multiples of the alignment. */
static void expert_rows_fill_their_places_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_state = seed_at = seed;
        uf_ep_shape s = random_shape();
        s.n_pes = 1;
        int n = (int)random_below(MOST_TOKENS + 1), alignment = 1 + (int)random_below(130), k = s.top_k;
        int32_t experts[MOST_TOKENS * 32], rows[192] = {0}, aligned[192], first[193], next[192], row[MOST_TOKENS * 32];
        random_routing(&s, n, experts);
        for (int l = 0; l < n * k; l++)
            if (experts[l] >= 0)
                rows[experts[l]]++;
        uf_ep_plan_experts(s.n_experts, alignment, rows, aligned, first);
        uf_ep_plan_expand(s.n_experts, k, experts, n, first, next, row);
        for (int e = 0, expected = 0; e < s.n_experts; e++) {
            assert_int_equal(first[e], expected);
            assert_int_equal(first[e] % alignment, 0);
            assert_true(aligned[e] >= rows[e] && aligned[e] < rows[e] + alignment && aligned[e] % alignment == 0);
            int at = first[e];
            for (int l = 0; l < n * k; l++)
                if (experts[l] == e)
                    assert_int_equal(row[l], at++);
            expected += aligned[e];
            assert_int_equal(first[e + 1], expected);
        }
        for (int l = 0; l < n * k; l++)
            assert_true(experts[l] >= 0 || row[l] == -1);
    }
}

/* The largest shape: 1024 PEs with two experts each, 32 lanes. */
static void the_plan_holds_for_1024_pes(void **state)
{
    (void)state;
    enum { PES = 1024, K = 32, TOKENS = 200 };
    const uf_ep_shape s = {PES, 2048, K, 4096};
    static int32_t experts[TOKENS * K], rows[PES], first[PES], slot[TOKENS * K], lanes[PES], place[TOKENS * K], seen[PES],
        seen_lanes[PES];
    random_state = seed_at = 4711;
    random_routing(&s, TOKENS, experts);
    uf_ep_plan_slots(&s, experts, TOKENS, rows, slot);
    uf_ep_plan_prefix(&s, rows, first);
    uf_ep_plan_lanes(&s, experts, TOKENS, lanes, place);
    memset(seen, 0, sizeof seen);
    memset(seen_lanes, 0, sizeof seen_lanes);
    int groups_wrong = 0;
    for (int i = 0; i < TOKENS; i++) {
        const int32_t *e = experts + i * K;
        int owners[32], lane[32], n = uf_ep_plan_owners(&s, e, owners, lane);
        static int32_t host[PES];
        int32_t order[32];
        for (int d = 0; d < PES; d++)
            host[d] = d / 8;
        int n_hosts = uf_ep_plan_groups(host, owners, n, order);
        for (int o = 0; o < n; o++)
            assert_int_equal(slot[i * K + lane[o]], seen[owners[o]]++);
        for (int j = 0; j < K; j++)
            assert_int_equal(place[i * K + j], e[j] < 0 ? -1 : seen_lanes[e[j] / 2]++);
        /* Hosts come in the order of their last owners. */
        for (int g = 0, at = -1; g < n_hosts; g++) {
            int last = -1;
            for (int o = 0; o < n; o++)
                last = host[owners[o]] == order[g] ? o : last;
            groups_wrong += last <= at;
            at = last;
        }
    }
    assert_int_equal(groups_wrong, 0);
    assert_memory_equal(rows, seen, sizeof rows);
    assert_memory_equal(lanes, seen_lanes, sizeof lanes);
    for (int d = 0, sum = 0; d < PES; sum += rows[d++])
        assert_int_equal(first[d], sum);
}

static void shape_limits_are_refused_with_field_and_limit(void **state)
{
    (void)state;
    const struct {
        uf_ep_shape shape;
        const char *says;
    } bad[] = {
        {{0, 8, 2, 10}, "0 PEs"},
        {{1025, 8, 2, 10}, "1025 PEs"},
        {{4, 0, 2, 10}, "n_experts is 0"},
        {{4, 2052, 2, 10}, "n_experts is 2052"},
        {{3, 8, 2, 10}, "not a multiple of the 3 PEs"},
        {{4, 8, 0, 10}, "top_k is 0"},
        {{4, 64, 33, 10}, "top_k is 33"},
        {{4, 8, 9, 10}, "only 8 experts"},
        {{4, 8, 2, -1}, "max_tokens is -1"},
        {{8, 8, 2, 1 << 28}, "2^31"},
        {{1, 32, 32, 1 << 27}, "2^31"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(uf_ep_shape_check(&bad[i].shape), UF_EINVAL);
        if (!strstr(uf_error_message(), bad[i].says))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, uf_error_message(), bad[i].says);
    }
    const uf_ep_shape good[] = {{1, 1, 1, 0}, {1024, 2048, 32, 4096}, {24, 24, 1, 1}, {6, 2046, 32, 1}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(uf_ep_shape_check(&good[i]), UF_OK);
}

static void bad_routings_are_refused_with_pe_token_and_lane(void **state)
{
    (void)state;
    const uf_ep_shape s = {2, 8, 3, 4};
    const struct {
        int32_t experts[6];
        int n;
        const char *says;
    } bad[] = {
        {{0, 1, 2, 3, 8, 5}, 2, "PE 1: token 1, lane 1 names expert 8, but experts are 0 to 7"},
        {{0, -2, 2, 3, 4, 5}, 2, "token 0, lane 1 names expert -2"},
        {{0, 1, 2, 3, 4, 3}, 2, "token 1, lane 2 names expert 3 a second time"},
        {{0}, 5, "PE 1 has 5 tokens to dispatch, but max_tokens is 4"},
        {{0}, -1, "PE 1 has -1 tokens"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(uf_ep_routing_check(&s, 1, bad[i].experts, bad[i].n), UF_EINVAL);
        if (!strstr(uf_error_message(), bad[i].says))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, uf_error_message(), bad[i].says);
    }
    const int32_t good[6] = {-1, -1, -1, 7, -1, 0};
    assert_int_equal(uf_ep_routing_check(&s, 1, good, 2), UF_OK);
    assert_int_equal(uf_ep_routing_check(&s, 1, good, 0), UF_OK);
}

static int tell_seed(void **state)
{
    (void)state;
    print_message("last seed: %llu\n", (unsigned long long)seed_at);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(plan_agrees_with_enumeration_for_every_seed, tell_seed),
        cmocka_unit_test_teardown(rows_of_sources_follow_each_other_without_gap, tell_seed),
        cmocka_unit_test_teardown(expert_rows_fill_their_places_in_order, tell_seed),
        cmocka_unit_test_teardown(the_plan_holds_for_1024_pes, tell_seed),
        cmocka_unit_test(shape_limits_are_refused_with_field_and_limit),
        cmocka_unit_test(bad_routings_are_refused_with_pe_token_and_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
