/* suite_contexts.c - contexts: as many as one likes, none in the way of another, back-pressure without loss. */
#include "multi/core_suite.h"
#include <string.h>

/* The case that broke a ring of 128 slots: 129 queues to one peer, each with more signals than a queue is deep. */
static void hundred_and_29_contexts_to_one_peer(suite *s)
{
    enum { CONTEXTS = 129 };
    uf_ctx *ctx[CONTEXTS] = {0};
    uint64_t depth = suite_scale(s, s->n > 2 ? 128 : 1030, 4);
    for (int c = 0; c < CONTEXTS && !s->failed; c++) {
        uf_ctx_options options = {.size = sizeof options, .flags = c % 3 == 2 ? UF_ORDERED : 0, .window = suite_window(s, 16)};
        CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx[c]));
    }
    for (uint64_t i = 0; i < depth && !s->failed; i++) {
        for (int c = 0; c < CONTEXTS && !s->failed; c++) {
            /* Weak sets of one word may overtake each other, so every set is strong; for adds it makes no difference. */
            bool add = c % 2;
            CHECK_OK(s, uf_put_signal_nbi(ctx[c], s->data + c * 8, s->out + c * 8, 8, &s->signals[c],
                                          add ? UF_SIGNAL_ADD : UF_SIGNAL_SET, add ? 1 : i + 1, s->right,
                                          add && c % 5 ? UF_WEAK : UF_STRONG));
        }
    }
    for (int c = 0; c < CONTEXTS && !s->failed; c++) {
        AWAIT(s, &s->signals[c], depth);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[c]), depth);
    }
    for (int c = 0; c < CONTEXTS; c++) {
        CHECK_OK(s, uf_ctx_destroy(ctx[c]));
    }
}

static void contexts_come_and_go(suite *s)
{
    size_t rounds = suite_scale(s, 300, 20);
    for (size_t i = 1; i <= rounds && !s->failed; i++) {
        uf_ctx_options options = {.size = sizeof options, .window = suite_window(s, 2u << i % 5)};
        uf_ctx *ctx = NULL;
        if (CHECK_OK(s, uf_ctx_create(s->world, i % 2 ? &options : NULL, &ctx))) {
            CHECK_OK(s, uf_put_signal_nbi(ctx, s->data, s->out, 40, s->signals, UF_SIGNAL_ADD, 1000000, s->right, UF_STRONG));
            CHECK_OK(s, uf_put_signal_nbi(ctx, s->data, s->out, 40, s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
            CHECK_OK(s, uf_ctx_destroy(ctx)); /* completes what it has started */
        }
    }
    CHECK_OK(s, uf_sync(s->all));
    CHECK_EQ(s, uf_signal_fetch(s->signals), rounds * 1000001);
}

static void barrier_completes_every_context(suite *s)
{
    enum { CONTEXTS = 6 };
    uf_ctx *ctx[CONTEXTS] = {0};
    size_t bytes = suite_scale(s, 200000, 3000);
    for (int c = 0; c < CONTEXTS; c++) {
        uf_ctx_options options = {.size = sizeof options, .flags = c % 2 ? UF_ORDERED : 0};
        CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx[c]));
    }
    for (int c = 0; c < CONTEXTS && !s->failed; c++) {
        suite_fill(s->out + (size_t)c * bytes, bytes, (uint64_t)c);
        CHECK_OK(s, uf_put_nbi(ctx[c], s->data + (size_t)c * bytes, s->out + (size_t)c * bytes, bytes, s->right));
        CHECK_OK(s, uf_signal(ctx[c], &s->signals[c], UF_SIGNAL_SET, 9, s->right, UF_WEAK));
    }
    CHECK_OK(s, uf_barrier(s->all));
    for (int c = 0; c < CONTEXTS; c++) {
        VERIFY(s, s->data + (size_t)c * bytes, bytes, (uint64_t)c);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[c]), 9);
        CHECK_OK(s, uf_ctx_destroy(ctx[c]));
    }
}

/* One that asked not to wait is told to come again, and what was accepted is exactly what arrives. */
static void nowait_says_again_and_loses_nothing(suite *s)
{
    size_t bytes = suite_scale(s, 4000, 600), tries = suite_scale(s, 20000, 300);
    uint64_t accepted = 0, refused = 0, theirs = 0;
    for (size_t i = 0; i < tries && !s->failed; i++) {
        int rc = uf_put_signal_nbi(s->ctx, s->data, s->out, bytes, &s->signals[0], UF_SIGNAL_ADD, i % 2 ? 1 : 100000, s->right,
                                   (i % 7 ? UF_WEAK : UF_STRONG) | UF_NOWAIT);
        if (rc == UF_EAGAIN) {
            refused++;
            if (refused % 16 == 0)
                CHECK_OK(s, uf_progress(s->world));
        } else if (CHECK_OK(s, rc)) {
            accepted += i % 2 ? 1 : 100000;
        }
        rc = uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, &s->words[0], 1, 0, NULL, s->right, UF_NOWAIT);
        CHECK(s, rc == UF_OK || rc == UF_EAGAIN);
        accepted += rc == UF_OK ? UINT64_C(1) << 40 : 0;
    }
    CHECK_OK(s, uf_put_signal(s->ctx, s->data + bytes, &accepted, 8, &s->signals[1], UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    suite_settle(s);
    memcpy(&theirs, s->data + bytes, 8);
    CHECK_EQ(s, uf_signal_fetch(&s->signals[0]) + (uf_signal_fetch(&s->words[0]) << 40), theirs);
}

static void a_smallest_window_carries_everything(suite *s)
{
    uf_ctx_options options = {.size = sizeof options, .window = suite_window(s, 2), .flags = UF_ORDERED};
    uf_ctx *ctx = NULL;
    size_t bytes = suite_scale(s, 1000000, 9000), rounds = 5;
    if (!CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx)))
        return;
    for (size_t i = 0; i < rounds && !s->failed; i++) { /* longer than two work requests where messages are short */
        suite_fill(s->out + i * bytes, bytes, i);
        CHECK_OK(s, uf_put_signal_nbi(ctx, s->data + i * bytes, s->out + i * bytes, bytes, &s->signals[i], UF_SIGNAL_SET, 1,
                                      s->right, i % 2 ? UF_STRONG : UF_WEAK));
    }
    for (size_t i = 0; i < rounds && !s->failed; i++) {
        if (AWAIT(s, &s->signals[i], 1))
            VERIFY(s, s->data + i * bytes, bytes, i);
    }
    CHECK_OK(s, uf_ctx_destroy(ctx));
}

const suite_test suite_context_tests[] = {
    {"hundred_and_29_contexts_to_one_peer", hundred_and_29_contexts_to_one_peer, 1, 0},
    {"contexts_come_and_go", contexts_come_and_go, 1, 0},
    {"barrier_completes_every_context", barrier_completes_every_context, 1, 0},
    {"nowait_says_again_and_loses_nothing", nowait_says_again_and_loses_nothing, 1, 0},
    {"a_smallest_window_carries_everything", a_smallest_window_carries_everything, 1, 0},
    {NULL, NULL, 0, 0},
};
