/* suite_atomics.c - atomics against a model, and under contention of all PEs. */
#include "multi/core_suite.h"
#include <string.h>

static uint64_t model_apply(uf_atomic_op op, int width, uint64_t old, uint64_t operand, uint64_t compare)
{
    uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX, v = old;
    switch (op) {
    case UF_ATOMIC_SET:
    case UF_ATOMIC_SWAP:
        v = operand;
        break;
    case UF_ATOMIC_ADD:
    case UF_ATOMIC_FETCH_ADD:
        v = old + operand;
        break;
    case UF_ATOMIC_AND:
    case UF_ATOMIC_FETCH_AND:
        v = old & operand;
        break;
    case UF_ATOMIC_OR:
    case UF_ATOMIC_FETCH_OR:
        v = old | operand;
        break;
    case UF_ATOMIC_XOR:
    case UF_ATOMIC_FETCH_XOR:
        v = old ^ operand;
        break;
    case UF_ATOMIC_FETCH:
        break;
    case UF_ATOMIC_COMPARE_SWAP:
        v = (old & mask) == (compare & mask) ? operand : old;
        break;
    }
    return v & mask;
}

/* Each PE alone works on the words of its right neighbour: every op, both widths, random operands; old values and the end are
 * compared. Fetching ones block, so that the order is the program's; the others are ordered by the next fetching one on a model
 * of our own only if fenced, so a fence stands before each. */
static void every_op_matches_the_model_in_both_widths(suite *s)
{
    size_t steps = suite_scale(s, 40, 4);
    uint64_t model[2] = {0, 0};
    uint32_t *narrow = (uint32_t *)(void *)&s->words[2];
    for (size_t i = 0; i < steps && !s->failed; i++) {
        for (int op = UF_ATOMIC_SET; op <= UF_ATOMIC_COMPARE_SWAP && !s->failed; op++) {
            for (int wide = 0; wide < 2; wide++) {
                int width = wide ? 8 : 4;
                void *word = wide ? (void *)&s->words[0] : (void *)narrow;
                uint64_t operand = suite_random(s, UINT64_MAX), old = 77, was = model[wide];
                uint64_t compare = suite_random(s, 2) ? was : operand;
                if (!wide)
                    operand &= UINT32_MAX;
                CHECK_OK(s, uf_fence(s->ctx));
                CHECK_OK(s, uf_atomic(s->ctx, (uf_atomic_op)op, width, word, operand, compare,
                                      op >= UF_ATOMIC_FETCH ? &old : NULL, s->right));
                if (op >= UF_ATOMIC_FETCH)
                    CHECK_EQ(s, old, was);
                model[wide] = model_apply((uf_atomic_op)op, width, was, operand, compare);
            }
        }
    }
    suite_settle(s);
    uint64_t got = 0;
    CHECK_OK(s, uf_get(s->ctx, &got, &s->words[0], 8, s->right));
    CHECK_EQ(s, got, model[1]);
    CHECK_OK(s, uf_get(s->ctx, &got, &s->words[2], 8, s->right));
    CHECK_EQ(s, got, model[0]); /* the other half of the word is untouched: 0 */
}

static void tickets_are_unique_under_contention(suite *s)
{
    uint64_t each = suite_scale(s, 400, 25), total = each * (uint64_t)s->n;
    for (int pe = 0; pe < (s->n > 2 ? 2 : s->n); pe++) { /* one PE's word, then another's */
        for (uint64_t i = 0; i < each && !s->failed; i++) {
            uint64_t ticket = 0;
            unsigned char mine = (unsigned char)(s->pe + 1);
            CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, &s->words[pe], 1, 0, &ticket, pe));
            if (CHECK(s, ticket < total))
                CHECK_OK(s, uf_put(s->ctx, s->data + (size_t)pe * total + ticket, &mine, 1, pe));
        }
    }
    suite_settle(s);
    if (s->pe < 2) {
        CHECK_EQ(s, s->words[s->pe], total);
        CHECK(s, memchr(s->data + (size_t)s->pe * total, 0, total) == NULL); /* each ticket had exactly one owner */
    }
}

/* A lock made of compare-and-swap guards a counter made of get and put. */
static void compare_swap_makes_a_lock(suite *s)
{
    uint64_t each = suite_scale(s, 30, 4);
    for (uint64_t i = 0; i < each && !s->failed; i++) {
        uint64_t old = 1, counter = 0;
        while (!s->failed && old != 0) {
            CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_COMPARE_SWAP, 8, &s->words[0], (uint64_t)s->pe + 1, 0, &old, 0));
            if (old != 0)
                suite_yield(s);
        }
        CHECK_OK(s, uf_get(s->ctx, &counter, s->data, 8, 0));
        counter++;
        CHECK_OK(s, uf_put(s->ctx, s->data, &counter, 8, 0));
        CHECK_OK(s, uf_quiet(s->ctx));
        CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_SWAP, 8, &s->words[0], 0, 0, &old, 0));
        CHECK_EQ(s, old, s->pe + 1); /* nobody took it from us */
    }
    suite_settle(s);
    if (s->pe == 0) {
        uint64_t counter;
        memcpy(&counter, s->data, 8);
        CHECK_EQ(s, counter, each * (uint64_t)s->n);
    }
}

/* Values are swapped into one word and out of it; none is lost or doubled. */
static void swap_conserves_values(suite *s)
{
    uint64_t each = suite_scale(s, 200, 20), put_in = 0, got_out = 0;
    for (uint64_t i = 0; i < each && !s->failed; i++) {
        uint64_t old = 0, mine = (uint64_t)s->pe * 1000003 + i * 17 + 1;
        CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_SWAP, 8, &s->words[0], mine, 0, &old, 0));
        put_in += mine;
        got_out += old;
    }
    CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_ADD, 8, &s->words[1], put_in - got_out, 0, NULL, 0));
    suite_settle(s);
    if (s->pe == 0)
        CHECK_EQ(s, s->words[1], s->words[0]); /* what is still in it */
}

/* Both halves of one 8-byte word, added to by everybody at once: no half disturbs the other. */
static void narrow_atomics_leave_their_neighbours_alone(suite *s)
{
    uint32_t *halves = (uint32_t *)(void *)&s->words[0];
    uint64_t each = suite_scale(s, 300, 30);
    for (uint64_t i = 0; i < each && !s->failed; i++) {
        CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 4, &halves[0], UINT32_MAX, 0, NULL, 0, 0)); /* minus one */
        CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 4, &halves[1], 3, 0, NULL, 0, 0));
    }
    suite_settle(s);
    if (s->pe == 0) {
        CHECK_EQ(s, halves[0], (uint32_t)(0 - each * (uint64_t)s->n));
        CHECK_EQ(s, halves[1], 3 * each * (uint64_t)s->n);
    }
}

static void signals_and_atomics_share_a_word(suite *s)
{
    uint64_t each = suite_scale(s, 300, 30);
    for (uint64_t i = 0; i < each && !s->failed; i++) {
        CHECK_OK(s, uf_signal(s->ctx, s->signals, UF_SIGNAL_ADD, 1, 0, UF_WEAK));
        CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, s->signals, 1000, 0, NULL, 0, 0));
        uint64_t old = 0;
        if (i % 10 == 0)
            CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, s->signals, 1000000000, 0, &old, 0));
    }
    suite_settle(s);
    if (s->pe == 0)
        CHECK_EQ(s, uf_signal_fetch(s->signals), (uint64_t)s->n * (1001 * each + 1000000000 * ((each + 9) / 10)));
}

static void fetched_values_are_here_after_quiet(suite *s)
{
    enum { N = 64 };
    uint64_t old[N];
    memset(old, 0xff, sizeof old);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_FETCH_ADD, 8, &s->words[3], UINT64_C(1) << 32, 0, &old[i], s->right, 0));
    }
    CHECK_OK(s, uf_quiet(s->ctx));
    uint64_t seen = 0;
    for (uint64_t i = 0; i < N; i++) {
        CHECK_EQ(s, old[i] & UINT32_MAX, 0);
        if (CHECK(s, old[i] >> 32 < N))
            seen |= UINT64_C(1) << (old[i] >> 32);
    }
    CHECK_EQ(s, seen, UINT64_MAX); /* 64 different old values, in whatever order */
}

static void typed_forms_do_the_same(suite *s)
{
    uint64_t old = 0, *wide = &s->words[8];
    uint32_t *narrow = (uint32_t *)(void *)&s->words[9];
    CHECK_OK(s, uf_atomic_set64(s->ctx, wide, 5, s->right));
    CHECK_OK(s, uf_quiet(s->ctx));
    CHECK_OK(s, uf_atomic_fetch_add64(s->ctx, wide, 6, &old, s->right));
    CHECK_EQ(s, old, 5);
    CHECK_OK(s, uf_atomic_compare_swap64(s->ctx, wide, 11, 1, &old, s->right));
    CHECK_EQ(s, old, 11);
    CHECK_OK(s, uf_atomic_swap64(s->ctx, wide, 9, &old, s->right));
    CHECK_EQ(s, old, 1);
    CHECK_OK(s, uf_atomic_fetch64(s->ctx, wide, &old, s->right));
    CHECK_EQ(s, old, 9);
    CHECK_OK(s, uf_atomic_set32(s->ctx, narrow, UINT32_MAX, s->right));
    CHECK_OK(s, uf_quiet(s->ctx));
    CHECK_OK(s, uf_atomic_fetch_add32(s->ctx, narrow, 2, &old, s->right));
    CHECK_EQ(s, old, UINT32_MAX);
    CHECK_OK(s, uf_atomic_fetch32(s->ctx, narrow, &old, s->right));
    CHECK_EQ(s, old, 1);
    CHECK_OK(s, uf_atomic_compare_swap32(s->ctx, narrow, 0, 7, &old, s->right));
    CHECK_EQ(s, old, 1);
    CHECK_OK(s, uf_atomic_swap32(s->ctx, narrow, 8, &old, s->right));
    CHECK_EQ(s, old, 1);
}

const suite_test suite_atomic_tests[] = {
    {"every_op_matches_the_model_in_both_widths", every_op_matches_the_model_in_both_widths, 1, 0},
    {"tickets_are_unique_under_contention", tickets_are_unique_under_contention, 1, 0},
    {"compare_swap_makes_a_lock", compare_swap_makes_a_lock, 1, 0},
    {"swap_conserves_values", swap_conserves_values, 1, 0},
    {"narrow_atomics_leave_their_neighbours_alone", narrow_atomics_leave_their_neighbours_alone, 1, 0},
    {"signals_and_atomics_share_a_word", signals_and_atomics_share_a_word, 1, 0},
    {"fetched_values_are_here_after_quiet", fetched_values_are_here_after_quiet, 1, 0},
    {"typed_forms_do_the_same", typed_forms_do_the_same, 1, 0},
    {NULL, NULL, 0, 0},
};
