/* suite_rma.c - puts and gets as such: every size, alignment and kind of memory, whole and in the right place. */
#include "multi/core_suite.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What lies before and behind the target of a put stays as it was. */
static void put_writes_its_bytes_and_no_others(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    for (size_t i = 0; i < n && !s->failed; i++) {
        for (size_t shift = 0; shift < 8; shift += 3) {
            size_t bytes = sizes[i];
            memset(s->data, 0x11, bytes + 64);
            suite_settle(s);
            suite_fill(s->out + 7 - shift, bytes, i + shift);
            CHECK_OK(s, uf_put_nbi(s->ctx, s->data + 16 + shift, s->out + 7 - shift, bytes, s->right));
            suite_settle(s);
            VERIFY(s, s->data + 16 + shift, bytes, i + shift);
            CHECK_EQ(s, s->data[15 + shift], 0x11);
            CHECK_EQ(s, s->data[16 + shift + bytes], 0x11);
            suite_settle(s);
        }
    }
}

static void put_reaches_every_pe_and_self(suite *s)
{
    size_t bytes = suite_scale(s, 5000, 500);
    for (int pe = 0; pe < s->n; pe++) {
        suite_fill(s->out + (size_t)pe * bytes, bytes, (uint64_t)(s->pe * 100 + pe));
        CHECK_OK(s, uf_put_nbi(s->ctx, s->data + (size_t)s->pe * bytes, s->out + (size_t)pe * bytes, bytes, pe));
    }
    suite_settle(s);
    for (int pe = 0; pe < s->n; pe++) {
        VERIFY(s, s->data + (size_t)pe * bytes, bytes, (uint64_t)(pe * 100 + s->pe));
    }
}

static void get_brings_what_is_there(suite *s)
{
    size_t n;
    const size_t *sizes = suite_sizes(s, &n);
    suite_fill(s->data, s->room / 2, (uint64_t)s->pe);
    suite_settle(s);
    for (size_t i = 0; i < n && !s->failed; i++) {
        memset(s->out, 0, sizes[i] + 1);
        CHECK_OK(s, uf_get(s->ctx, s->out, s->data, sizes[i], s->right));
        VERIFY(s, s->out, sizes[i], (uint64_t)s->right);
        CHECK_EQ(s, s->out[sizes[i]], 0);
        CHECK_OK(s, uf_get_nbi(s->ctx, s->out + 5, s->data, sizes[i], s->left));
        CHECK_OK(s, uf_quiet(s->ctx));
        VERIFY(s, s->out + 5, sizes[i], (uint64_t)s->left);
    }
}

/* Many gets at once, into symmetric memory, ordinary memory and the stack. */
static void gets_in_flight_together_all_arrive(suite *s)
{
    enum { GETS = 100 };
    unsigned char stack[GETS][8];
    size_t bytes = suite_scale(s, 3000, 300), half = s->room / 2;
    for (size_t i = 0; i < GETS; i++) {
        suite_fill(s->data + i * bytes, bytes, i * 10 + (uint64_t)s->pe);
    }
    suite_settle(s);
    for (size_t i = 0; i < GETS; i++) {
        unsigned char *to = i % 3 == 0 ? stack[i] : i % 3 == 1 ? s->out + i * bytes : s->data + half + i * bytes;
        CHECK_OK(s, uf_get_nbi(s->ctx, to, s->data + i * bytes, i % 3 == 0 ? 8 : bytes, s->right));
    }
    CHECK_OK(s, uf_quiet(s->ctx));
    for (size_t i = 0; i < GETS; i++) {
        const unsigned char *to = i % 3 == 0 ? stack[i] : i % 3 == 1 ? s->out + i * bytes : s->data + half + i * bytes;
        VERIFY(s, to, i % 3 == 0 ? 8 : bytes, i * 10 + (uint64_t)s->right);
    }
}

static void batch_puts_every_row(suite *s)
{
    enum { ROWS = 200 };
    uf_put_row rows[ROWS];
    size_t done = 0, bytes = 200;
    for (size_t i = 0; i < ROWS; i++) {
        int pe = (int)(i % (size_t)s->n);
        suite_fill(s->out + i * bytes, bytes, i * 10 + (uint64_t)s->pe);
        rows[i] = (uf_put_row){.dst = s->data + ((size_t)s->pe * ROWS + i) * bytes,
                               .src = s->out + i * bytes,
                               .bytes = i % 7 ? bytes : 0,
                               .sig = i % 2 ? &s->signals[s->pe] : NULL,
                               .value = 1,
                               .pe = pe,
                               .op = UF_SIGNAL_ADD,
                               .flags = i % 5 == 1 ? UF_STRONG : UF_WEAK};
    }
    CHECK_OK(s, uf_put_batch(s->ctx, rows, ROWS, &done));
    CHECK_EQ(s, done, ROWS);
    CHECK_OK(s, uf_put_batch(s->ctx, rows, 0, NULL));
    suite_settle(s);
    for (int pe = 0; pe < s->n; pe++) {
        uint64_t signals = 0;
        for (size_t i = 0; i < ROWS; i++) {
            if ((int)(i % (size_t)s->n) == s->pe) {
                VERIFY(s, s->data + ((size_t)pe * ROWS + i) * bytes, i % 7 ? bytes : 0, i * 10 + (uint64_t)pe);
                signals += i % 2;
            }
        }
        CHECK_EQ(s, uf_signal_fetch(&s->signals[pe]), signals);
    }
}

/* A bad row is refused; those before it happen, those behind it do not. */
static void batch_tells_how_many_rows_were_accepted(suite *s)
{
    uf_put_row rows[4];
    size_t done = 99;
    suite_fill(s->out, 64, 7);
    for (size_t i = 0; i < 4; i++) {
        rows[i] = (uf_put_row){.dst = s->data + i * 64, .src = s->out, .bytes = 64, .pe = i == 2 ? s->n : s->right};
    }
    CHECK_CODE(s, uf_put_batch(s->ctx, rows, 4, &done), UF_ERANGE, "PE");
    CHECK(s, done <= 2); /* rows may be checked all at first, or one by one */
    suite_settle(s);
    if (done > 0)
        VERIFY(s, s->data, 64, 7);
    CHECK_EQ(s, s->data[3 * 64], 0);
}

static void sources_may_be_any_memory(suite *s)
{
    static const unsigned char constant[64] = "read-only memory of the program, as a source of puts";
    unsigned char stack[512];
    size_t bytes = suite_scale(s, 300000, 5000);
    unsigned char *heap = malloc(bytes);
    if (!CHECK(s, heap))
        return;
    suite_fill(stack, sizeof stack, 1);
    suite_fill(heap, bytes, 2);
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data, constant, sizeof constant, s->right));
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data + 64, stack, sizeof stack, s->right));
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data + 1024, heap, bytes, s->right));
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data + 1024 + bytes, heap + 1, bytes - 1, s->right));
    suite_settle(s);
    CHECK(s, memcmp(s->data, constant, sizeof constant) == 0);
    VERIFY(s, s->data + 64, sizeof stack, 1);
    VERIFY(s, s->data + 1024, bytes, 2);
    CHECK(s, memcmp(s->data + 1024 + bytes, heap + 1, bytes - 1) == 0);
    free(heap);
}

/* The same address, mapped anew between puts: an old registration must not bring the old pages' bytes. */
static void source_mapped_anew_at_the_same_address_is_read_anew(suite *s)
{
    size_t bytes = 16384;
    unsigned char *fixed = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(s, fixed != MAP_FAILED))
        return;
    for (uint64_t round = 0; round < 5 && !s->failed; round++) {
        suite_fill(fixed, bytes, round);
        CHECK_OK(s, uf_put_nbi(s->ctx, s->data, fixed, bytes, s->right));
        CHECK_OK(s, uf_quiet(s->ctx));
        CHECK_OK(s, uf_sync(s->all));
        VERIFY(s, s->data, bytes, round);
        CHECK_OK(s, uf_sync(s->all));
        munmap(fixed, bytes);
        unsigned char *again = mmap(fixed, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(s, again == fixed);
    }
    munmap(fixed, bytes);
}

static void symmetric_memory_is_a_source_too(suite *s)
{
    size_t half = s->room / 2;
    suite_fill(s->data, half, (uint64_t)s->pe);
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data + half, s->data, half, s->right));
    suite_settle(s);
    VERIFY(s, s->data + half, half, (uint64_t)s->left);
}

/* Random puts of all PEs into areas of their own, against a model that every PE computes. */
static void random_puts_match_the_model(suite *s)
{
    size_t area = s->room / (size_t)s->n, steps = suite_scale(s, 600, 60);
    unsigned char *model = calloc(1, s->room);
    if (!CHECK(s, model))
        return;
    suite_fill(s->out, area, (uint64_t)s->pe);
    for (size_t i = 0; i < steps; i++) {
        size_t bytes = suite_random(s, suite_random(s, 20) ? 300 : area / 2), at = suite_random(s, area - bytes);
        CHECK_OK(
            s, uf_put_nbi(s->ctx, s->data + (size_t)s->pe * area + at, s->out + at, bytes, (int)suite_random(s, (uint64_t)s->n)));
    }
    suite_settle(s);
    for (int pe = 0; pe < s->n; pe++) {
        uint64_t state = suite_random_start(s, pe, 0);
        suite_fill(s->out, area, (uint64_t)pe);
        for (size_t i = 0; i < steps; i++) {
            size_t bytes = suite_random_next(&state, suite_random_next(&state, 20) ? 300 : area / 2);
            size_t at = suite_random_next(&state, area - bytes);
            if ((int)suite_random_next(&state, (uint64_t)s->n) == s->pe)
                memcpy(model + (size_t)pe * area + at, s->out + at, bytes);
        }
    }
    CHECK(s, memcmp(model, s->data, s->room) == 0);
    free(model);
}

static void put_above_4_gib_arrives_whole(suite *s)
{
    size_t bytes = ((size_t)4 << 30) + ((size_t)1 << 20) + 3;
    void *big = NULL;
    if (!CHECK_OK(s, uf_malloc(s->world, bytes, 0, &big)))
        return;
    unsigned char *source = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (CHECK(s, source != MAP_FAILED) && s->pe < 2) { /* one direction, so that memory for two is enough */
        if (s->pe == 0) {
            suite_fill(source, bytes, 1);
            CHECK_OK(s, uf_put_signal_nbi(s->ctx, big, source, bytes, s->signals, UF_SIGNAL_ADD, 1, 1, UF_WEAK));
            CHECK_OK(s, uf_quiet(s->ctx));
        } else if (AWAIT(s, s->signals, 1)) {
            CHECK_EQ(s, uf_signal_fetch(s->signals), 1);
            VERIFY(s, big, bytes, 1);
        }
    }
    suite_settle(s);
    munmap(source, bytes);
    CHECK_OK(s, uf_free(s->world, big));
}

/* Of all rails together; false if one cannot be told. */
static bool sum_rails(suite *s, uf_rail_counters *sum)
{
    *sum = (uf_rail_counters){0};
    for (int i = 0; i < uf_world_n_rails(s->world); i++) {
        uf_rail_counters one = {.size = sizeof one};
        if (!CHECK_OK(s, uf_world_rail_counters(s->world, i, &one)))
            return false;
        CHECK(s, one.completed <= one.posted);
        CHECK(s, one.broken == 0 || (s->place.rails_break && one.broken <= s->n));
        sum->posted += one.posted;
        sum->completed += one.completed;
        sum->bytes += one.bytes;
    }
    return true;
}

static void traffic_is_counted_by_rail(suite *s)
{
    uf_rail_counters before, after, small = {.size = sizeof small - 1};
    uf_rail_counters whole = {.size = sizeof whole};
    if (!sum_rails(s, &before))
        return;
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data, s->out, 4000, s->right));
    CHECK_OK(s, uf_quiet(s->ctx));
    if (!sum_rails(s, &after))
        return;
    uint64_t least = suite_networked(s, s->right) ? 1 : 0;
    CHECK(s, after.posted - before.posted >= least);
    CHECK(s, after.completed - before.completed >= least);
    CHECK(s, after.bytes - before.bytes >= 4000 * least);
    CHECK_EQ(s, uf_world_n_rails(NULL), 0);
    CHECK_CODE(s, uf_world_rail_counters(s->world, uf_world_n_rails(s->world), &whole), UF_ERANGE, "no rail");
    CHECK_CODE(s, uf_world_rail_counters(s->world, -1, &whole), UF_ERANGE, "no rail -1");
    CHECK_CODE(s, uf_world_rail_counters(s->world, 0, &small), UF_EINVAL, "size");
    CHECK_CODE(s, uf_world_rail_counters(NULL, 0, &whole), UF_EINVAL, "world");
}

static void traffic_is_counted(suite *s)
{
    uf_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    CHECK_OK(s, uf_world_counters(s->world, &before));
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data, s->out, 100, s->right));
    CHECK_OK(s, uf_get(s->ctx, s->out, s->data, 50, s->right));
    CHECK_OK(s, uf_quiet(s->ctx));
    CHECK_OK(s, uf_world_counters(s->world, &after));
    CHECK_EQ(s, after.puts - before.puts, 1);
    CHECK_EQ(s, after.gets - before.gets, 1);
    CHECK(s, after.quiets > before.quiets);
    bool network = suite_networked(s, s->right);
    CHECK_EQ(s, network ? after.bytes_network - before.bytes_network : after.bytes_local - before.bytes_local, 150);
}

const suite_test suite_rma_tests[] = {
    {"put_writes_its_bytes_and_no_others", put_writes_its_bytes_and_no_others, 1, 0},
    {"put_reaches_every_pe_and_self", put_reaches_every_pe_and_self, 1, 0},
    {"get_brings_what_is_there", get_brings_what_is_there, 1, 0},
    {"gets_in_flight_together_all_arrive", gets_in_flight_together_all_arrive, 1, 0},
    {"batch_puts_every_row", batch_puts_every_row, 1, 0},
    {"batch_tells_how_many_rows_were_accepted", batch_tells_how_many_rows_were_accepted, 1, 0},
    {"sources_may_be_any_memory", sources_may_be_any_memory, 1, 0},
    {"source_mapped_anew_at_the_same_address_is_read_anew", source_mapped_anew_at_the_same_address_is_read_anew, 1, 0},
    {"symmetric_memory_is_a_source_too", symmetric_memory_is_a_source_too, 1, 0},
    {"random_puts_match_the_model", random_puts_match_the_model, 1, 0},
    {"put_above_4_gib_arrives_whole", put_above_4_gib_arrives_whole, 2, SUITE_NEEDS_LONG},
    {"traffic_is_counted", traffic_is_counted, 1, 0},
    {"traffic_is_counted_by_rail", traffic_is_counted_by_rail, 1, 0},
    {NULL, NULL, 0, 0},
};
