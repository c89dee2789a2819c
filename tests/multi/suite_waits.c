/* suite_waits.c - waits return when, and only when, their comparison holds; and in time, saying why, when it never will. */
#include "multi/core_suite.h"
#include <string.h>

static bool model_holds(int cmp, uint64_t a, uint64_t b)
{
    switch (cmp) {
    case UF_EQ:
        return a == b;
    case UF_NE:
        return a != b;
    case UF_GT:
        return a > b;
    case UF_GE:
        return a >= b;
    case UF_LT:
        return a < b;
    default:
        return a <= b;
    }
}

static void every_comparison_is_unsigned_and_exact(suite *s)
{
    const uint64_t values[] = {0, 1, 2, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t a = 0; a < 6; a++) {
        s->words[0] = values[a];
        for (size_t b = 0; b < 6; b++) {
            for (int cmp = UF_EQ; cmp <= UF_LE; cmp++) {
                bool holds = model_holds(cmp, values[a], values[b]);
                CHECK_EQ(s, uf_test(s->world, &s->words[0], cmp, values[b]), (uint64_t)(holds ? UF_OK : UF_EAGAIN));
                CHECK_EQ(s, uf_wait(s->world, &s->words[0], cmp, values[b], 0), (uint64_t)(holds ? UF_OK : UF_ETIMEDOUT));
            }
        }
    }
    CHECK_EQ(s, uf_signal_fetch(&s->words[0]), UINT64_MAX);
}

/* Each PE waits for a value that its left neighbour brings about, step by step, with another comparison each time. */
static void a_signal_ends_the_wait_for_it(suite *s)
{
    uf_world_options o = suite_world_options(s);
    for (uint64_t i = 1; i <= 12 && !s->failed; i++) {
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[i], UF_SIGNAL_SET, i * 10, s->right, UF_WEAK));
        const int cmps[] = {UF_EQ, UF_NE, UF_GT, UF_GE};
        const uint64_t wanted[] = {i * 10, 0, i * 10 - 1, i * 10};
        if (i % 2)
            CHECK_OK(s, uf_wait(s->world, &s->signals[i], cmps[i % 4], wanted[i % 4], o.timeout_ns));
        else
            CHECK_OK(s, uf_wait_from(s->world, &s->signals[i], cmps[i % 4], wanted[i % 4], s->left, UF_FOREVER));
        CHECK_EQ(s, uf_signal_fetch(&s->signals[i]), i * 10);
    }
}

static void wait_any_gives_one_that_holds(suite *s)
{
    enum { N = 16 };
    const uint64_t *sigs[N];
    unsigned char skip[N] = {0};
    uf_world_options o = suite_world_options(s);
    for (size_t i = 0; i < N; i++) {
        sigs[i] = &s->signals[i];
    }
    for (size_t i = 0; i < N; i++) {
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[(i * 5 + 3) % N], UF_SIGNAL_ADD, i + 1, s->right, UF_WEAK));
    }
    uf_wait_list list = {.sigs = sigs, .n = N, .skip = skip, .cmp = UF_GT, .value = 0};
    for (size_t got = 0; got < N && !s->failed; got++) {
        size_t index = N;
        if (CHECK_OK(s, uf_wait_any(s->world, &list, &index, o.timeout_ns)) && CHECK(s, index < N && !skip[index])) {
            CHECK(s, uf_signal_fetch(sigs[index]) > 0);
            skip[index] = 1;
        }
    }
    size_t index = 3;
    CHECK_OK(s, uf_wait_any(s->world, &list, &index, 0)); /* all are skipped now */
    CHECK_EQ(s, index, N);
}

static void wait_all_waits_for_every_one(suite *s)
{
    enum { N = 10 };
    const uint64_t *sigs[N];
    uint64_t values[N];
    unsigned char skip[N] = {0};
    uf_world_options o = suite_world_options(s);
    for (size_t i = 0; i < N; i++) {
        sigs[i] = &s->signals[i];
        values[i] = i * i + 1;
        skip[i] = i == 4; /* never signalled */
    }
    for (size_t i = N; i-- > 0;) {
        if (i != 4)
            CHECK_OK(s, uf_signal(s->ctx, &s->signals[i], UF_SIGNAL_SET, values[i], s->right, UF_WEAK));
    }
    uf_wait_list list = {.sigs = sigs, .n = N, .skip = skip, .cmp = UF_EQ, .values = values};
    CHECK_OK(s, uf_wait_all(s->world, &list, o.timeout_ns));
    for (size_t i = 0; i < N; i++) {
        CHECK_EQ(s, uf_signal_fetch(sigs[i]), skip[i] ? 0 : values[i]);
    }
    list.skip = NULL;
    CHECK_EQ(s, uf_wait_all(s->world, &list, 1000), (uint64_t)UF_ETIMEDOUT);
    list.n = 0;
    CHECK_OK(s, uf_wait_all(s->world, &list, 0));
}

static void wait_some_gives_all_that_hold(suite *s)
{
    enum { N = 12 };
    const uint64_t *sigs[N];
    unsigned char skip[N] = {0};
    size_t indexes[N], total = 0;
    uf_world_options o = suite_world_options(s);
    for (size_t i = 0; i < N; i++) {
        sigs[i] = &s->signals[i];
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[i], UF_SIGNAL_ADD, 700, s->right, i % 2 ? UF_STRONG : UF_WEAK));
    }
    uf_wait_list list = {.sigs = sigs, .n = N, .skip = skip, .cmp = UF_EQ, .value = 700};
    while (total < N && !s->failed) {
        size_t count = 0;
        CHECK_OK(s, uf_wait_some(s->world, &list, indexes, &count, o.timeout_ns));
        CHECK(s, count > 0 && count <= N - total);
        for (size_t i = 0; i < count && !s->failed; i++) {
            CHECK(s, indexes[i] < N && !skip[indexes[i]] && uf_signal_fetch(sigs[indexes[i]]) == 700);
            skip[indexes[i]] = 1;
        }
        total += count;
    }
}

static void a_wait_that_cannot_end_times_out_and_says_for_what(suite *s)
{
    size_t index = 0, count = 0, indexes[2];
    const uint64_t *sigs[2] = {&s->signals[0], &s->signals[1]};
    uf_wait_list list = {.sigs = sigs, .n = 2, .cmp = UF_EQ, .value = 4711};
    char number[16];
    const char *left = number;
    uint64_t short_time = 3000000;
    s->signals[0] = 42;
    CHECK_CODE(s, uf_wait(s->world, &s->signals[0], UF_GE, 4711, short_time), UF_ETIMEDOUT, "4711");
    CHECK_CODE(s, uf_wait(s->world, &s->signals[0], UF_GE, 4711, short_time), UF_ETIMEDOUT, "42");
    number[0] = (char)('0' + s->left % 10);
    number[1] = 0;
    CHECK_CODE(s, uf_wait_from(s->world, &s->signals[0], UF_GE, 4711, s->left, short_time), UF_ETIMEDOUT, "PE");
    CHECK_CODE(s, uf_wait_from(s->world, &s->signals[0], UF_GE, 4711, s->left, short_time), UF_ETIMEDOUT, left);
    CHECK_EQ(s, uf_wait_any(s->world, &list, &index, short_time), (uint64_t)UF_ETIMEDOUT);
    CHECK_EQ(s, uf_wait_some(s->world, &list, indexes, &count, short_time), (uint64_t)UF_ETIMEDOUT);
    CHECK_EQ(s, uf_wait_all(s->world, &list, short_time), (uint64_t)UF_ETIMEDOUT);
    CHECK_OK(s, uf_world_status(s->world)); /* nobody is to blame: the world lives on */
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, &s->signals[2], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
    AWAIT(s, &s->signals[2], 1);
}

/* A message hops round the ring a hundred times: every PE is waiting most of the time. */
static void a_token_goes_round_and_round(suite *s)
{
    uint64_t laps = suite_scale(s, 100, 6);
    for (uint64_t lap = 1; lap <= laps && !s->failed; lap++) {
        if (s->pe == 0)
            CHECK_OK(s, uf_put_signal(s->ctx, s->data, &lap, 8, s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        AWAIT(s, s->signals, lap);
        uint64_t got;
        memcpy(&got, s->data, 8);
        CHECK_EQ(s, got, lap);
        if (s->pe != 0)
            CHECK_OK(s, uf_put_signal(s->ctx, s->data, &got, 8, s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
    }
}

const suite_test suite_wait_tests[] = {
    {"every_comparison_is_unsigned_and_exact", every_comparison_is_unsigned_and_exact, 1, 0},
    {"a_signal_ends_the_wait_for_it", a_signal_ends_the_wait_for_it, 1, 0},
    {"wait_any_gives_one_that_holds", wait_any_gives_one_that_holds, 1, 0},
    {"wait_all_waits_for_every_one", wait_all_waits_for_every_one, 1, 0},
    {"wait_some_gives_all_that_hold", wait_some_gives_all_that_hold, 1, 0},
    {"a_wait_that_cannot_end_times_out_and_says_for_what", a_wait_that_cannot_end_times_out_and_says_for_what, 1, 0},
    {"a_token_goes_round_and_round", a_token_goes_round_and_round, 1, 0},
    {NULL, NULL, 0, 0},
};
