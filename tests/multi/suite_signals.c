/* suite_signals.c - what a signal promises: it follows its bytes, is applied exactly once, and none is lost. */
#include "multi/core_suite.h"
#include <string.h>

enum { WORD_DATA = 0, WORD_ACK = 1, WORD_SUM = 8 };

/* One round of a ring: put to the right with a signal, check what came from the left, and let it go on. */
static void weak_round(suite *s, size_t bytes, uint64_t round, bool set, uint64_t *data_word, uint64_t *ack_word)
{
    size_t at = round * 3 % 16, from = round * 5 % 16;
    suite_fill(s->out + from, bytes, round * 100 + (uint64_t)s->pe);
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + at, s->out + from, bytes, data_word, set ? UF_SIGNAL_SET : UF_SIGNAL_ADD,
                                  set ? round : 1, s->right, UF_WEAK));
    if (AWAIT(s, data_word, round))
        VERIFY(s, s->data + at, bytes, round * 100 + (uint64_t)s->left);
    CHECK_OK(s, uf_flush(s->ctx));
    CHECK_OK(s, uf_signal(s->ctx, ack_word, UF_SIGNAL_ADD, 1, s->left, UF_WEAK));
    AWAIT(s, ack_word, round);
}

static void weak_signal_never_precedes_its_bytes(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    uint64_t rounds = suite_scale(s, 12, 3);
    for (size_t i = 0; i < n && !s->failed; i++) {
        for (uint64_t r = 1; r <= rounds && !s->failed; r++) {
            weak_round(s, sizes[i], r, false, &s->signals[3 * i], &s->signals[3 * i + 1]);
        }
    }
}

static void weak_set_never_precedes_its_bytes(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    uint64_t rounds = suite_scale(s, 8, 3);
    for (size_t i = 0; i < n && !s->failed; i++) {
        for (uint64_t r = 1; r <= rounds && !s->failed; r++) {
            weak_round(s, sizes[i], r, true, &s->signals[3 * i], &s->signals[3 * i + 1]);
        }
    }
}

static void words_without_index_signal_as_well(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    for (size_t i = 0; i < n && !s->failed; i++) {
        for (uint64_t r = 1; r <= 4 && !s->failed; r++) {
            weak_round(s, sizes[i], r, i % 2, &s->words[3 * i], &s->words[3 * i + 1]);
        }
    }
}

/* Many in flight at once, each with a word of its own, looked at in the order in which they come. */
static void each_of_many_weak_signals_covers_its_own_put(suite *s)
{
    enum { SLOTS = 64 };
    const uint64_t *sigs[SLOTS];
    unsigned char seen[SLOTS] = {0};
    size_t slot_bytes = suite_scale(s, 40000, 900);
    for (size_t i = 0; i < SLOTS; i++) {
        sigs[i] = &s->signals[i];
        suite_fill(s->out + i * slot_bytes, slot_bytes, i * 10 + (uint64_t)s->pe);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        size_t bytes = slot_bytes - i * 13;
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + i * slot_bytes, s->out + i * slot_bytes, bytes, &s->signals[i], i % 2,
                                      i % 3 ? 1 : 77777777, s->right, UF_WEAK));
    }
    for (size_t got = 0; got < SLOTS && !s->failed; got++) {
        uf_wait_list list = {.sigs = sigs, .n = SLOTS, .skip = seen, .cmp = UF_NE, .value = 0};
        size_t i = 0;
        uf_world_options o = suite_world_options(s);
        if (CHECK_OK(s, uf_wait_any(s->world, &list, &i, o.timeout_ns))) {
            seen[i] = 1;
            CHECK_EQ(s, uf_signal_fetch(sigs[i]), i % 3 ? 1 : 77777777);
            VERIFY(s, s->data + i * slot_bytes, slot_bytes - i * 13, i * 10 + (uint64_t)s->left);
        }
    }
}

static void zero_byte_put_signal_delivers(suite *s)
{
    uint64_t wanted = 0;
    const unsigned flags[] = {UF_WEAK, UF_STRONG, UF_WEAK | UF_SETTLED, UF_STRONG | UF_SETTLED};
    for (int i = 0; i < 4; i++) {
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 0, s->signals, UF_SIGNAL_ADD, 1, s->right, flags[i]));
        CHECK_OK(s, uf_put_signal(s->ctx, s->data, s->out, 0, s->signals, UF_SIGNAL_ADD, 100000, s->right, flags[i]));
        CHECK_OK(s, uf_put_signal(s->ctx, s->data, s->out, 0, s->words, UF_SIGNAL_SET, 5, s->right, flags[i]));
        wanted += 100001;
    }
    AWAIT(s, s->signals, wanted);
    AWAIT(s, s->words, 5);
    CHECK_EQ(s, s->data[0], 0);
}

/* What PE `pe` sends in the sum test, as every other PE can work it out. */
typedef struct sum_step {
    int to, word;
    uint64_t value;
    size_t bytes;
    unsigned flags;
    bool plain, bare;
    int ctx;
} sum_step;

static sum_step sum_draw(const suite *s, uint64_t *state)
{
    sum_step d;
    d.to = (int)suite_random_next(state, (uint64_t)s->n);
    d.word = (int)suite_random_next(state, 8);
    uint64_t kind = suite_random_next(state, 4);
    d.value = kind == 0 ? suite_random_next(state, UINT64_C(1) << 60) : suite_random_next(state, kind == 1 ? 4096 : 512);
    d.bytes = suite_random_next(state, 10) == 0 ? suite_random_next(state, 9000) : suite_random_next(state, 80);
    d.flags = suite_random_next(state, 4) == 0 ? UF_STRONG : UF_WEAK;
    d.plain = suite_random_next(state, 4) == 0;
    d.bare = suite_random_next(state, 3) == 0;
    d.ctx = (int)suite_random_next(state, 3);
    return d;
}

static void sum_send(suite *s, const sum_step *d, uf_ctx *const ctx[3])
{
    uint64_t *word = d->plain ? &s->words[WORD_SUM + d->word] : &s->signals[WORD_SUM + d->word];
    if (d->bare)
        CHECK_OK(s, uf_signal(ctx[d->ctx], word, UF_SIGNAL_ADD, d->value, d->to, d->flags));
    else
        CHECK_OK(s, uf_put_signal_nbi(ctx[d->ctx], s->data + (size_t)s->pe * 9000, s->out, d->bytes, word, UF_SIGNAL_ADD,
                                      d->value, d->to, d->flags));
}

static void sum_of_signals_sent_equals_sum_applied(suite *s)
{
    size_t steps = suite_scale(s, 3000, 120);
    uf_ctx *ctx[3] = {s->ctx, NULL, NULL};
    uf_ctx_options ordered = {.size = sizeof ordered, .flags = UF_ORDERED, .window = suite_window(s, 4)};
    CHECK_OK(s, uf_ctx_create(s->world, NULL, &ctx[1]));
    CHECK_OK(s, uf_ctx_create(s->world, &ordered, &ctx[2]));
    if (s->failed)
        return;
    uint64_t state = suite_random_start(s, s->pe, 1);
    for (size_t i = 0; i < steps && !s->failed; i++) {
        sum_step d = sum_draw(s, &state);
        sum_send(s, &d, ctx);
    }
    suite_settle(s);
    uint64_t indexed[8] = {0}, plain[8] = {0};
    for (int pe = 0; pe < s->n; pe++) {
        state = suite_random_start(s, pe, 1);
        for (size_t i = 0; i < steps; i++) {
            sum_step d = sum_draw(s, &state);
            if (d.to == s->pe)
                *(d.plain ? &plain[d.word] : &indexed[d.word]) += d.value;
        }
    }
    for (int w = 0; w < 8; w++) {
        CHECK_EQ(s, uf_signal_fetch(&s->signals[WORD_SUM + w]), indexed[w]);
        CHECK_EQ(s, uf_signal_fetch(&s->words[WORD_SUM + w]), plain[w]);
    }
    CHECK_OK(s, uf_ctx_destroy(ctx[1]));
    CHECK_OK(s, uf_ctx_destroy(ctx[2]));
}

static void set_stores_and_add_adds_modulo_two_to_64(suite *s)
{
    uint64_t *word = &s->signals[3];
    CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_SET, UINT64_MAX - 3, s->right, UF_STRONG));
    CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_ADD, 0, s->right, UF_STRONG));
    CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_ADD, 5, s->right, UF_STRONG));
    CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_ADD, UINT64_MAX, s->right, UF_STRONG));
    CHECK_OK(s, uf_signal(s->ctx, &s->signals[4], UF_SIGNAL_ADD, 1, s->right, UF_STRONG));
    AWAIT(s, &s->signals[4], 1);
    CHECK_EQ(s, uf_signal_fetch(word), 0);
}

static void waiting_works_across_the_wrap_of_a_word(suite *s)
{
    uf_world_options o = suite_world_options(s);
    s->signals[5] = UINT64_MAX - 2;
    suite_settle(s);
    for (uint64_t i = 1; i <= 6; i++) {
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[5], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        CHECK_OK(s, uf_wait_from(s->world, &s->signals[5], UF_EQ, UINT64_MAX - 2 + i, s->left, o.timeout_ns));
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[6], UF_SIGNAL_ADD, 1, s->left, UF_WEAK));
        AWAIT(s, &s->signals[6], i); /* the right one has seen it: only now may the next change it */
    }
}

static void every_operand_arrives_whole(suite *s)
{
    const uint64_t operands[] = {0,         1, 511, 512, 513, 65535, 1 << 20, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 63,
                                 UINT64_MAX};
    enum { N = sizeof operands / sizeof operands[0] };
    for (size_t i = 0; i < N; i++) {
        for (unsigned strong = 0; strong < 2; strong++) {
            uint64_t *add = &s->signals[32 + 2 * i + strong], *set = &s->signals[96 + 2 * i + strong];
            CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + i, s->out, 1, add, UF_SIGNAL_ADD, operands[i], s->right, strong));
            CHECK_OK(s, uf_signal(s->ctx, set, UF_SIGNAL_SET, operands[i], s->right, strong));
            CHECK_OK(s, uf_signal(s->ctx, &s->words[2 * i + strong], UF_SIGNAL_ADD, operands[i], s->right, strong));
        }
    }
    suite_settle(s);
    for (size_t i = 0; i < 2 * (size_t)N; i++) {
        CHECK_EQ(s, uf_signal_fetch(&s->signals[32 + i]), operands[i / 2]);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[96 + i]), operands[i / 2]);
        CHECK_EQ(s, uf_signal_fetch(&s->words[i]), operands[i / 2]);
    }
}

/* The receiver changes what it got at once; whatever the network places again must not undo that. */
static void settled_signal_lets_the_receiver_change_data_in_place(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    for (size_t i = 0; i < n && !s->failed; i++) {
        suite_fill(s->out, sizes[i], i);
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, sizes[i], &s->signals[i], UF_SIGNAL_ADD, 1, s->right,
                                      (i % 2 ? UF_STRONG : UF_WEAK) | UF_SETTLED));
        if (AWAIT(s, &s->signals[i], 1))
            VERIFY(s, s->data, sizes[i], i);
        memset(s->data, 0xee, sizes[i]);
        suite_settle(s);
        size_t kept = 0;
        while (kept < sizes[i] && s->data[kept] == 0xee) {
            kept++;
        }
        CHECK_EQ(s, kept, sizes[i]);
        suite_settle(s);
    }
}

/* Everybody signals one word of one PE, with bytes of its own each time. */
static void many_senders_share_one_word(suite *s)
{
    uint64_t each = suite_scale(s, 500, 40);
    int target = s->n - 1;
    suite_fill(s->out, 128, (uint64_t)s->pe);
    for (uint64_t i = 0; i < each && !s->failed; i++) {
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + (size_t)s->pe * 128, s->out, 128, s->signals, UF_SIGNAL_ADD, 1, target,
                                      UF_WEAK));
    }
    if (s->pe == target && AWAIT(s, s->signals, each * (uint64_t)s->n)) {
        for (int pe = 0; pe < s->n; pe++) {
            VERIFY(s, s->data + (size_t)pe * 128, 128, (uint64_t)pe);
        }
    }
}

/* More strong signals on one lane than a 16-bit sequence has numbers. */
static void signals_are_exact_past_the_wrap_of_sequences(suite *s)
{
    uint64_t total = suite_scale(s, 70000, 300);
    uf_ctx_options options = {.size = sizeof options, .window = suite_window(s, s->place.small ? 4 : 256)};
    uf_ctx *ctx = NULL;
    if (!CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx)))
        return;
    for (uint64_t i = 1; i <= total && !s->failed; i++) {
        CHECK_OK(s, uf_put_signal_nbi(ctx, s->data + i % 64 * 8, s->out, 8, s->signals, UF_SIGNAL_SET, i, s->right, UF_STRONG));
        if (i % 1000 == 0)
            AWAIT(s, s->signals, i - 999); /* keeps PEs near each other */
    }
    AWAIT(s, s->signals, total);
    CHECK_EQ(s, uf_signal_fetch(s->signals), total);
    CHECK_OK(s, uf_ctx_destroy(ctx));
}

static void weak_signalled_put_costs_one_work_request(suite *s)
{
    uf_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    uint64_t puts = suite_scale(s, 2000, 256);
    suite_settle(s);
    CHECK_OK(s, uf_world_counters(s->world, &before));
    for (uint64_t i = 0; i < puts && !s->failed; i++) {
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 64, s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        if (i % 64 == 63)
            CHECK_OK(s, uf_flush(s->ctx));
    }
    AWAIT(s, s->signals, puts);
    CHECK_OK(s, uf_flush(s->ctx)); /* what comes from the left says nothing about our own */
    CHECK_OK(s, uf_world_counters(s->world, &after));
    CHECK_EQ(s, after.puts - before.puts, puts);
    CHECK_EQ(s, after.signals - before.signals, puts);
    CHECK_EQ(s, after.fences - before.fences, 0);
    uf_path_info path = {.size = sizeof path};
    CHECK_OK(s, uf_world_path(s->world, s->right, &path));
    if (strcmp(path.fabric, "ofi") == 0) {
        CHECK_EQ(s, after.data_wrs - before.data_wrs, puts);
        CHECK_EQ(s, after.signal_wrs - before.signal_wrs, 0);
        CHECK(s, after.control_wrs - before.control_wrs <= puts / 64 + 2);
    }
}

const suite_test suite_signal_tests[] = {
    {"weak_signal_never_precedes_its_bytes", weak_signal_never_precedes_its_bytes, 1, 0},
    {"weak_set_never_precedes_its_bytes", weak_set_never_precedes_its_bytes, 1, 0},
    {"words_without_index_signal_as_well", words_without_index_signal_as_well, 1, 0},
    {"each_of_many_weak_signals_covers_its_own_put", each_of_many_weak_signals_covers_its_own_put, 1, 0},
    {"zero_byte_put_signal_delivers", zero_byte_put_signal_delivers, 1, 0},
    {"sum_of_signals_sent_equals_sum_applied", sum_of_signals_sent_equals_sum_applied, 1, 0},
    {"set_stores_and_add_adds_modulo_two_to_64", set_stores_and_add_adds_modulo_two_to_64, 1, 0},
    {"waiting_works_across_the_wrap_of_a_word", waiting_works_across_the_wrap_of_a_word, 1, 0},
    {"every_operand_arrives_whole", every_operand_arrives_whole, 1, 0},
    {"settled_signal_lets_the_receiver_change_data_in_place", settled_signal_lets_the_receiver_change_data_in_place, 1, 0},
    {"many_senders_share_one_word", many_senders_share_one_word, 1, 0},
    {"signals_are_exact_past_the_wrap_of_sequences", signals_are_exact_past_the_wrap_of_sequences, 1, 0},
    {"weak_signalled_put_costs_one_work_request", weak_signalled_put_costs_one_work_request, 2, 0},
    {NULL, NULL, 0, 0},
};
