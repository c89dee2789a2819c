/* suite_order.c - order and completion: strong signals, fence, quiet, flush; and what they do not do to other lanes. */
#include "multi/core_suite.h"
#include <string.h>

enum { PUTS = 24 };

/* Sizes that differ from slot to slot, so that late ones are short and early ones long. */
static size_t slot_size(const suite *s, size_t i, size_t slot_bytes)
{
    return i == 0 ? slot_bytes : (i * 7919 + s->place.seed * 31) % (slot_bytes / (1 + i % 5));
}

static void put_slots(suite *s, uf_ctx *ctx, unsigned char *dst, unsigned char *src, size_t slot_bytes, uint64_t salt)
{
    for (size_t i = 0; i < PUTS; i++) {
        size_t bytes = slot_size(s, i, slot_bytes);
        suite_fill(src + i * slot_bytes, bytes, salt + i * 100 + (uint64_t)s->pe);
        CHECK_OK(s, uf_put_nbi(ctx, dst + i * slot_bytes, src + i * slot_bytes, bytes, s->right));
    }
}

static void verify_slots(suite *s, const unsigned char *dst, size_t slot_bytes, uint64_t salt)
{
    for (size_t i = 0; i < PUTS; i++) {
        VERIFY(s, dst + i * slot_bytes, slot_size(s, i, slot_bytes), salt + i * 100 + (uint64_t)s->left);
    }
}

/* How the strong signal is sent differs by round: alone or with a put, set or added, with an index or without. */
static void strong_round(suite *s, uf_ctx *ctx, uint64_t round, size_t slot_bytes)
{
    uint64_t *word = round % 2 ? &s->signals[round] : &s->words[round];
    size_t tail = (size_t)PUTS * slot_bytes;
    put_slots(s, ctx, s->data, s->out, slot_bytes, round * 10000);
    CHECK_OK(s, uf_signal(ctx, &s->signals[100], UF_SIGNAL_ADD, 3, s->right, UF_WEAK));
    CHECK_OK(s, uf_put_signal_nbi(ctx, s->data + tail, s->out, 100, &s->signals[100], UF_SIGNAL_ADD, 4, s->right, UF_WEAK));
    if (round % 4 < 2)
        CHECK_OK(s, uf_signal(ctx, word, round % 3 ? UF_SIGNAL_SET : UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    else
        CHECK_OK(s, uf_put_signal_nbi(ctx, s->data + tail + 128, s->out, round * 50, word,
                                      round % 3 ? UF_SIGNAL_SET : UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    if (AWAIT(s, word, 1)) {
        verify_slots(s, s->data, slot_bytes, round * 10000);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[100]), 7 * (round + 1));
    }
    suite_settle(s); /* before data and sources are used again */
}

static void strong_signal_follows_all_earlier(suite *s)
{
    for (uint64_t round = 0; round < 8 && !s->failed; round++) {
        strong_round(s, s->ctx, round, suite_scale(s, 60000, 700));
    }
}

static void ordered_context_keeps_the_same_promises(suite *s)
{
    const uint32_t windows[] = {2, 4, 8, 0};
    for (uint64_t round = 0; round < 8 && !s->failed; round++) {
        uf_ctx_options options = {.size = sizeof options, .flags = UF_ORDERED, .window = suite_window(s, windows[round % 4])};
        uf_ctx *ctx = NULL;
        if (CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx))) {
            strong_round(s, ctx, round, suite_scale(s, 60000, 700));
            CHECK_OK(s, uf_ctx_destroy(ctx));
        }
    }
}

/* A chain: each strong signal stands for everything before it, whatever is sent after it. */
static void strong_signals_of_a_lane_come_in_order(suite *s)
{
    size_t links = suite_scale(s, 400, 40);
    suite_fill(s->out, links * 16, (uint64_t)s->pe);
    for (size_t i = 0; i < links; i++) {
        CHECK_OK(s, uf_put_nbi(s->ctx, s->data + i * 16, s->out + i * 16, 16, s->right));
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[0], UF_SIGNAL_SET, i + 1, s->right, UF_STRONG));
    }
    uint64_t seen = 0;
    while (seen < links && !s->failed) {
        if (!AWAIT(s, &s->signals[0], seen + 1))
            break;
        uint64_t now = uf_signal_fetch(&s->signals[0]);
        CHECK(s, now > seen && now <= links);
        seen = now;
        if (memcmp(s->data + (seen - 1) * 16, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16) == 0)
            CHECK(s, !"a strong signal came before an earlier put");
    }
    if (!s->failed)
        VERIFY(s, s->data, links * 16, (uint64_t)s->left);
}

/* Eight contexts at once: each strong signal speaks for its own context alone, and all arrive. */
static void strong_signals_of_many_contexts_are_independent(suite *s)
{
    enum { CONTEXTS = 8 };
    uf_ctx *ctx[CONTEXTS] = {0};
    size_t slot_bytes = suite_scale(s, 20000, 200), area = (size_t)PUTS * slot_bytes;
    for (int c = 0; c < CONTEXTS; c++) {
        uf_ctx_options options = {.size = sizeof options, .flags = c % 2 ? UF_ORDERED : 0, .window = suite_window(s, 8)};
        CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx[c]));
    }
    for (int c = 0; c < CONTEXTS && !s->failed; c++) {
        put_slots(s, ctx[c], s->data + (size_t)c * area, s->out + (size_t)c * area, slot_bytes, (uint64_t)c * 5000);
        CHECK_OK(s, uf_signal(ctx[c], &s->signals[c], UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    }
    for (int c = CONTEXTS - 1; c >= 0 && !s->failed; c--) {
        if (AWAIT(s, &s->signals[c], 1))
            verify_slots(s, s->data + (size_t)c * area, slot_bytes, (uint64_t)c * 5000);
    }
    for (int c = 0; c < CONTEXTS; c++) {
        CHECK_OK(s, uf_ctx_destroy(ctx[c]));
    }
}

/* ---------------------------------------------------------------- quiet */

static void quiet_means_placed(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    for (size_t i = 0; i < n && !s->failed; i++) {
        for (uint64_t by_pe = 0; by_pe < 2; by_pe++) {
            suite_fill(s->out + 1, sizes[i], i * 10 + by_pe);
            CHECK_OK(s, uf_put_nbi(s->ctx, s->data + 3, s->out + 1, sizes[i], s->right));
            CHECK_OK(s, by_pe ? uf_quiet_pe(s->ctx, s->right) : uf_quiet(s->ctx));
            CHECK_OK(s, uf_sync(s->all)); /* no quiet in it */
            VERIFY(s, s->data + 3, sizes[i], i * 10 + by_pe);
            CHECK_OK(s, uf_sync(s->all));
        }
    }
}

static void quiet_means_signals_and_atomics_applied(suite *s)
{
    uint64_t each = suite_scale(s, 300, 30);
    for (uint64_t round = 1; round <= 3 && !s->failed; round++) {
        for (uint64_t i = 0; i < each; i++) {
            CHECK_OK(s, uf_signal(s->ctx, &s->signals[0], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
            CHECK_OK(s, uf_signal(s->ctx, &s->signals[1], UF_SIGNAL_ADD, 1000, s->right, UF_STRONG));
            CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 16, &s->words[0], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
            CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, &s->words[1], 1, 0, NULL, s->right, 0));
        }
        CHECK_OK(s, uf_quiet(s->ctx));
        CHECK_OK(s, uf_sync(s->all));
        CHECK_EQ(s, uf_signal_fetch(&s->signals[0]), round * each);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[1]), round * each * 1000);
        CHECK_EQ(s, uf_signal_fetch(&s->words[0]), round * each);
        CHECK_EQ(s, uf_signal_fetch(&s->words[1]), round * each);
        CHECK_OK(s, uf_sync(s->all));
    }
}

static void quiet_test_says_when_all_is_complete(suite *s)
{
    size_t bytes = suite_scale(s, 3000000, 9000);
    suite_fill(s->out, bytes, 5);
    CHECK_OK(s, uf_quiet_test(s->ctx));
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, bytes, s->signals, UF_SIGNAL_SET, 1, s->right, UF_STRONG));
    int rc = UF_EAGAIN;
    while (rc == UF_EAGAIN) {
        rc = uf_quiet_test(s->ctx);
        if (rc == UF_EAGAIN)
            suite_yield(s);
    }
    CHECK_OK(s, rc);
    CHECK_OK(s, uf_sync(s->all));
    CHECK_EQ(s, uf_signal_fetch(s->signals), 1);
    VERIFY(s, s->data, bytes, 5);
}

/* After flush the source is the caller's again: spoiling it must not reach the target. */
static void flush_frees_the_source(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    for (size_t i = 0; i < n && !s->failed; i++) {
        suite_fill(s->out, sizes[i], i);
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, sizes[i], s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        CHECK_OK(s, uf_flush(s->ctx));
        CHECK_OK(s, uf_flush_test(s->ctx));
        memset(s->out, 0, sizes[i]);
        if (AWAIT(s, s->signals, i + 1))
            VERIFY(s, s->data, sizes[i], i);
        suite_settle(s);
        suite_fill(s->out, sizes[i], i + 50);
        CHECK_OK(s, uf_put(s->ctx, s->data, s->out, sizes[i], s->right)); /* the blocking form promises the same */
        memset(s->out, 0, sizes[i]);
        suite_settle(s);
        VERIFY(s, s->data, sizes[i], i + 50);
        suite_settle(s);
    }
}

static void quiet_of_one_context_needs_no_other(suite *s)
{
    uf_ctx *other = NULL;
    size_t bytes = suite_scale(s, 4 << 20, 30000);
    if (!CHECK_OK(s, uf_ctx_create(s->world, NULL, &other)))
        return;
    suite_fill(s->out, bytes, 1);
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data, s->out, bytes, s->right));
    CHECK_OK(s, uf_signal(s->ctx, &s->signals[0], UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    for (uint64_t i = 1; i <= 10; i++) {
        CHECK_OK(s, uf_put_signal_nbi(other, s->data + bytes, s->out, 64, &s->signals[1], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        CHECK_OK(s, uf_quiet(other));
        AWAIT(s, &s->signals[1], i);
    }
    if (AWAIT(s, &s->signals[0], 1))
        VERIFY(s, s->data, bytes, 1);
    CHECK_OK(s, uf_ctx_destroy(other));
}

/* ---------------------------------------------------------------- fence */

static void fence_orders_puts_before_later_signals(suite *s)
{
    size_t slot_bytes = suite_scale(s, 50000, 600);
    for (uint64_t round = 0; round < 6 && !s->failed; round++) {
        uint64_t *word = round % 2 ? &s->words[round] : &s->signals[round];
        put_slots(s, s->ctx, s->data, s->out, slot_bytes, round * 10000);
        CHECK_OK(s, uf_fence(s->ctx));
        if (round % 3 == 0)
            CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        else if (round % 3 == 1)
            CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + (size_t)PUTS * slot_bytes, s->out, 33, word, UF_SIGNAL_SET, 1,
                                          s->right, UF_WEAK));
        else
            CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, word, 1, 0, NULL, s->right, 0));
        if (AWAIT(s, word, 1))
            verify_slots(s, s->data, slot_bytes, round * 10000);
        suite_settle(s);
    }
}

static void fence_orders_puts_to_one_place(suite *s)
{
    size_t bytes = suite_scale(s, 100000, 3000);
    enum { LAYERS = 8 };
    for (uint64_t i = 0; i < LAYERS; i++) {
        suite_fill(s->out + i * bytes, bytes, i * 10 + (uint64_t)s->pe);
    }
    for (uint64_t i = 0; i < LAYERS; i++) {
        CHECK_OK(s, uf_put_nbi(s->ctx, s->data, s->out + i * bytes, i + 1 == LAYERS ? bytes : bytes - i, s->right));
        CHECK_OK(s, uf_fence(s->ctx));
    }
    suite_settle(s);
    VERIFY(s, s->data, bytes, (LAYERS - 1) * 10 + (uint64_t)s->left);
}

static void fence_orders_signals_before_later_puts(suite *s)
{
    uint64_t rounds = suite_scale(s, 50, 6);
    for (uint64_t r = 1; r <= rounds && !s->failed; r++) {
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[0], UF_SIGNAL_ADD, 1000, s->right, UF_WEAK));
        CHECK_OK(s, uf_fence(s->ctx));
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, r, &s->signals[1], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        if (AWAIT(s, &s->signals[1], r))
            CHECK(s, uf_signal_fetch(&s->signals[0]) >= 1000 * r);
    }
}

const suite_test suite_order_tests[] = {
    {"strong_signal_follows_all_earlier", strong_signal_follows_all_earlier, 1, 0},
    {"ordered_context_keeps_the_same_promises", ordered_context_keeps_the_same_promises, 1, 0},
    {"strong_signals_of_a_lane_come_in_order", strong_signals_of_a_lane_come_in_order, 1, 0},
    {"strong_signals_of_many_contexts_are_independent", strong_signals_of_many_contexts_are_independent, 1, 0},
    {"quiet_means_placed", quiet_means_placed, 1, 0},
    {"quiet_means_signals_and_atomics_applied", quiet_means_signals_and_atomics_applied, 1, 0},
    {"quiet_test_says_when_all_is_complete", quiet_test_says_when_all_is_complete, 1, 0},
    {"flush_frees_the_source", flush_frees_the_source, 1, 0},
    {"quiet_of_one_context_needs_no_other", quiet_of_one_context_needs_no_other, 1, 0},
    {"fence_orders_puts_before_later_signals", fence_orders_puts_before_later_signals, 1, 0},
    {"fence_orders_puts_to_one_place", fence_orders_puts_to_one_place, 1, 0},
    {"fence_orders_signals_before_later_puts", fence_orders_signals_before_later_puts, 1, 0},
    {NULL, NULL, 0, 0},
};
