/* efa_world.c - whole worlds over the EFA model in virtual time: what an application meets there and nowhere else.
 *
 * Late duplicates over memory that is used again, a quiet beside signals that keep coming, a NIC that dies in the middle. The rest of the
 * public interface is tested by core_suite on the same network. UNFENCE_SEED gives one seed instead of the usual ones. */
#include "engine/driver.h"
#include "fabric/efa/device_model.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PES = 8, SEEDS = 8 };

typedef struct show {
    uf_efa_model_place *place;
    uf_fibers *fibers;
    uf_group *group;
    int n;
    uint64_t seed;
    void (*body)(struct show *s, uf_world *w, int pe);
    char failure[512];
    uint32_t n_rails;   /* 0: 1 */
    uint64_t rounds;    /* of lose_a_nic */
    uint32_t lost_rail; /* there */
    unsigned flags;     /* of the body's signals */
    int told[MAX_PES];  /* what each PE was told */
    char words[MAX_PES][512];
} show;

typedef struct actor {
    show *show;
    int pe;
} actor;

#define CHECK(s, pe, condition)                                                                                                  \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            note(s, pe, __LINE__, #condition);                                                                                   \
            return;                                                                                                              \
        }                                                                                                                        \
    } while (0)

static void note(show *s, int pe, int line, const char *what)
{
    if (!s->failure[0])
        snprintf(s->failure, sizeof s->failure, "line %d, PE %d: %s (%s)", line, pe, what, uf_error_message());
}

static void run_pe(void *arg)
{
    actor *a = arg;
    show *s = a->show;
    uf_world *w = NULL;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = a->pe;
    o.n_pes = s->n;
    o.group = s->group;
    o.driver = uf_fibers_driver(s->fibers);
    o.fabric_ops = &uf_fabric_efa;
    o.fabric_arg = s->place;
    o.heap_bytes = 2 << 20;
    o.timeout_ns = 300000000;
    if (uf_world_create(&o, &w) != UF_OK) {
        note(s, a->pe, __LINE__, "uf_world_create");
        return;
    }
    s->body(s, w, a->pe);
    if (s->failure[0])
        uf_world_abort(w, s->failure);
    uf_world_destroy(w);
}

/* Plays the body on every PE. The model's traps are the caller's to judge. */
static void play(show *s, const uf_model_params *params)
{
    actor actors[MAX_PES];
    const uf_efa_model_place_options o = {.params = params, .seed = s->seed, .n_pes = (uint32_t)s->n, .n_rails = s->n_rails};
    assert_int_equal(uf_efa_model_place_create(&o, &s->place), UF_OK);
    assert_int_equal(uf_fibers_create(s->seed, 500, &s->fibers), UF_OK);
    assert_int_equal(uf_fibers_attach(s->fibers, uf_efa_model_place_next, uf_efa_model_place_run, s->place), UF_OK);
    assert_int_equal(uf_group_create(s->n, &s->group), UF_OK);
    for (int pe = 0; pe < s->n; pe++) {
        actors[pe] = (actor){s, pe};
        assert_int_equal(uf_fibers_add(s->fibers, run_pe, &actors[pe]), UF_OK);
    }
    if (uf_fibers_run(s->fibers, UINT64_C(2000000000)) != UF_OK)
        fail_msg("UNFENCE_SEED=%llu: %s", (unsigned long long)s->seed, uf_error_message());
    uf_fibers_destroy(s->fibers);
    uf_group_destroy(s->group);
    if (s->failure[0])
        fail_msg("UNFENCE_SEED=%llu: %s", (unsigned long long)s->seed, s->failure);
    const uf_model_stats *stats = uf_model_get_stats(uf_efa_model_place_model(s->place));
    assert_int_equal(stats->cqes_lost, 0);
    assert_int_equal(stats->out_of_memory, 0);
}

static void over(show *s)
{
    uf_efa_model_place_destroy(s->place);
}

static void expect_no_traps(show *s)
{
    const uf_model *model = uf_efa_model_place_model(s->place);
    if (uf_model_traps(model))
        fail_msg("UNFENCE_SEED=%llu: trap: %s", (unsigned long long)s->seed, uf_model_trap(model, 0));
}

static uint64_t seed_of(uint64_t i)
{
    const char *text = getenv("UNFENCE_SEED");
    return text ? strtoull(text, NULL, 0) : i + 1;
}

/* ---------------------------------------------------------------- late duplicates */

/* One slot, used again and again: the receiver changes what it got, in place, before it answers. */
static void change_in_place(show *s, uf_world *w, int pe)
{
    enum { ROUNDS = 60, BYTES = 3000 };
    unsigned char *slot, source[BYTES];
    uint64_t *words;
    CHECK(s, pe, uf_malloc(w, BYTES, 0, (void **)&slot) == UF_OK);
    CHECK(s, pe, uf_signal_alloc(w, 2, UF_SIGNAL_DEFAULT, &words) == UF_OK);
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
    uf_ctx *ctx = uf_ctx_default(w);
    for (uint64_t r = 1; r <= ROUNDS; r++) {
        if (pe == 0) {
            memset(source, (int)r, BYTES);
            CHECK(s, pe, uf_put_signal_nbi(ctx, slot, source, BYTES, &words[0], UF_SIGNAL_ADD, 1, 1, s->flags) == UF_OK);
            CHECK(s, pe, uf_wait(w, &words[1], UF_GE, r, UF_FOREVER) == UF_OK);
            CHECK(s, pe, uf_flush(ctx) == UF_OK);
        } else {
            CHECK(s, pe, uf_wait(w, &words[0], UF_GE, r, UF_FOREVER) == UF_OK);
            for (int i = 0; i < BYTES; i++) {
                CHECK(s, pe, slot[i] == (unsigned char)r);
                slot[i] = 0;
            }
            CHECK(s, pe, uf_signal(ctx, &words[1], UF_SIGNAL_ADD, 1, 0, UF_WEAK) == UF_OK);
        }
    }
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
}

static uf_model_params duplicating(void)
{
    uf_model_params p;
    assert_int_equal(uf_model_profile("chaos", &p), UF_OK);
    p.duplicate_ppm = 500000;
    p.mtu = 1024;
    return p;
}

static void a_late_duplicate_over_a_changed_slot_is_trapped(void **state)
{
    (void)state;
    show s = {.n = 2, .seed = seed_of(0), .body = change_in_place, .flags = UF_WEAK};
    const uf_model_params p = duplicating();
    play(&s, &p);
    assert_true(uf_model_get_stats(uf_efa_model_place_model(s.place))->traps[UF_MODEL_TRAP_DUPLICATE] > 0);
    over(&s);
}

static void settled_data_may_be_changed_in_place(void **state)
{
    (void)state;
    const uf_model_params p = duplicating();
    for (uint64_t i = 0; i < SEEDS; i++) {
        show s = {.n = 2, .seed = seed_of(i), .body = change_in_place, .flags = UF_WEAK | UF_SETTLED};
        play(&s, &p);
        expect_no_traps(&s);
        assert_true(uf_model_get_stats(uf_efa_model_place_model(s.place))->duplicates > 0);
        over(&s);
    }
}

/* The sender writes the same slot again at once: the library itself keeps the second put behind the first one's duplicates. */
static void overwrite_from_the_sender(show *s, uf_world *w, int pe)
{
    enum { ROUNDS = 100, BYTES = 2500 };
    unsigned char *slot;
    static unsigned char sources[ROUNDS][BYTES];
    uint64_t *words;
    CHECK(s, pe, uf_malloc(w, BYTES, 0, (void **)&slot) == UF_OK);
    CHECK(s, pe, uf_signal_alloc(w, 1, UF_SIGNAL_DEFAULT, &words) == UF_OK);
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
    for (int r = 0; pe == 0 && r < ROUNDS; r++) {
        memset(sources[r], r + 1, BYTES);
        CHECK(s, pe, uf_put_signal_nbi(uf_ctx_default(w), slot, sources[r], BYTES, words, UF_SIGNAL_ADD, 1, 1, UF_WEAK) == UF_OK);
    }
    if (pe == 1) {
        CHECK(s, pe, uf_wait(w, words, UF_GE, ROUNDS, UF_FOREVER) == UF_OK);
        for (int i = 0; i < BYTES; i++)
            CHECK(s, pe, slot[i] == ROUNDS);
    }
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
}

static void the_library_keeps_duplicates_off_its_own_later_puts(void **state)
{
    (void)state;
    const uf_model_params p = duplicating();
    for (uint64_t i = 0; i < SEEDS; i++) {
        show s = {.n = 2, .seed = seed_of(i), .body = overwrite_from_the_sender};
        play(&s, &p);
        expect_no_traps(&s);
        assert_true(uf_model_get_stats(uf_efa_model_place_model(s.place))->duplicates > 0);
        over(&s);
    }
}

/* ---------------------------------------------------------------- quiet beside new signals */

/* Every PE signals its right neighbour from two contexts. One asks again and again for quiet while the other keeps going: each quiet
 * must end, and then all signals of its context must have been applied. */
static void quiet_and_go_on(show *s, uf_world *w, int pe)
{
    enum { ROUNDS = 12, EACH = 9 };
    uint64_t *words, *seen, base = 0;
    uf_ctx *quiet = uf_ctx_default(w), *busy;
    int right = (pe + 1) % s->n;
    CHECK(s, pe, uf_signal_alloc(w, 2, UF_SIGNAL_DEFAULT, &words) == UF_OK);
    CHECK(s, pe, uf_malloc(w, 8, 0, (void **)&seen) == UF_OK);
    CHECK(s, pe, uf_ctx_create(w, NULL, &busy) == UF_OK);
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
    for (int r = 0; r < ROUNDS; r++) {
        for (int k = 0; k < EACH; k++) {
            unsigned strength = (r + k) % 3 == 0 ? UF_STRONG : UF_WEAK;
            CHECK(s, pe, uf_signal(quiet, &words[0], UF_SIGNAL_ADD, 1, right, strength) == UF_OK);
            CHECK(s, pe, uf_signal(busy, &words[1], UF_SIGNAL_ADD, 1, right, strength) == UF_OK);
        }
        /* New signals of the busy context between the tries of one quiet. */
        int rc;
        while ((rc = uf_quiet_test(quiet)) == UF_EAGAIN) {
            CHECK(s, pe, uf_signal(busy, &words[1], UF_SIGNAL_ADD, 1, right, UF_WEAK) == UF_OK);
            base++;
        }
        CHECK(s, pe, rc == UF_OK);
        CHECK(s, pe, uf_get(quiet, seen, &words[0], 8, right) == UF_OK);
        CHECK(s, pe, *seen == (uint64_t)(r + 1) * EACH);
    }
    CHECK(s, pe, uf_quiet(busy) == UF_OK);
    CHECK(s, pe, uf_get(busy, seen, &words[1], 8, right) == UF_OK);
    CHECK(s, pe, *seen == base + ROUNDS * EACH);
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
    CHECK(s, pe, uf_ctx_destroy(busy) == UF_OK);
}

static void quiet_ends_while_new_signals_go_on(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "chaos", "p5"};
    for (uint64_t i = 0; i < SEEDS; i++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile(profiles[i % 3], &p), UF_OK);
        show s = {.n = 3, .seed = seed_of(i), .body = quiet_and_go_on};
        play(&s, &p);
        expect_no_traps(&s);
        over(&s);
    }
}

/* ---------------------------------------------------------------- death */

/* PE 2 loses its NIC while everybody talks to everybody: whoever waits for it is told so, by number, and does not hang. */
static void lose_a_nic(show *s, uf_world *w, int pe)
{
    uint64_t *words;
    unsigned char *slots;
    static unsigned char source[MAX_PES][4000];
    uf_ctx *ctx = uf_ctx_default(w);
    CHECK(s, pe, uf_malloc(w, sizeof source, 0, (void **)&slots) == UF_OK);
    CHECK(s, pe, uf_signal_alloc(w, MAX_PES, UF_SIGNAL_DEFAULT, &words) == UF_OK);
    CHECK(s, pe, uf_barrier(uf_team_world(w)) == UF_OK);
    int rc = UF_OK;
    for (uint64_t r = 1; r < s->rounds && rc == UF_OK; r++) {
        if (pe == 2 && r == 5)
            uf_efa_model_place_kill(s->place, 2, s->lost_rail);
        for (int to = 0; to < s->n && rc == UF_OK; to++)
            if (to != pe)
                rc = uf_put_signal_nbi(ctx, slots + (size_t)pe * 4000, source[pe], 4000, &words[pe], UF_SIGNAL_ADD, 1, to,
                                       r % 2 ? UF_WEAK : UF_STRONG);
        for (int from = 0; from < s->n && rc == UF_OK; from++)
            if (from != pe)
                rc = uf_wait_from(w, &words[from], UF_GE, r, from, UF_FOREVER);
        if (rc == UF_OK && r % 3 == 0)
            rc = uf_quiet(ctx);
    }
    s->told[pe] = rc;
    snprintf(s->words[pe], sizeof s->words[pe], "%s", uf_error_message());
}

static void a_dead_nic_ends_every_waiter_with_its_number(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "chaos"};
    for (uint64_t i = 0; i < SEEDS; i++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile(profiles[i % 2], &p), UF_OK);
        show s = {.n = 4, .seed = seed_of(i), .body = lose_a_nic, .rounds = 100000};
        play(&s, &p);
        for (int pe = 0; pe < s.n; pe++)
            if (s.told[pe] == UF_OK || s.told[pe] == UF_ETIMEDOUT || !strstr(s.words[pe], "PE 2"))
                fail_msg("UNFENCE_SEED=%llu: PE %d was told %s: %s", (unsigned long long)s.seed, pe, uf_error_name(s.told[pe]),
                         s.words[pe]);
        over(&s);
    }
}

/* The same with a second NIC: what the dead one carried goes over the other, and nobody is told of an error. */
static void one_of_two_nics_may_die(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "chaos"};
    setenv("UNFENCE_STRIPE", "2K", 1);
    for (uint64_t i = 0; i < SEEDS; i++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile(profiles[i % 2], &p), UF_OK);
        show s = {.n = 3, .seed = seed_of(i), .body = lose_a_nic, .rounds = 60, .n_rails = 2, .lost_rail = i / 2 % 2};
        play(&s, &p);
        for (int pe = 0; pe < s.n; pe++)
            if (s.told[pe] != UF_OK)
                fail_msg("UNFENCE_SEED=%llu: PE %d was told %s: %s", (unsigned long long)s.seed, pe, uf_error_name(s.told[pe]),
                         s.words[pe]);
        over(&s);
    }
    unsetenv("UNFENCE_STRIPE");
}

/* ---------------------------------------------------------------- determinism */

static void a_seed_is_one_run(void **state)
{
    (void)state;
    const uf_model_params p = duplicating();
    uf_model_stats first;
    for (int again = 0; again < 2; again++) {
        show s = {.n = 3, .seed = seed_of(3), .body = quiet_and_go_on};
        play(&s, &p);
        const uf_model_stats *stats = uf_model_get_stats(uf_efa_model_place_model(s.place));
        if (again)
            assert_memory_equal(stats, &first, sizeof first);
        first = *stats;
        over(&s);
    }
}

int main(void)
{
    uf_set_log_level(UF_LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_duplicate_over_a_changed_slot_is_trapped),
        cmocka_unit_test(settled_data_may_be_changed_in_place),
        cmocka_unit_test(the_library_keeps_duplicates_off_its_own_later_puts),
        cmocka_unit_test(quiet_ends_while_new_signals_go_on),
        cmocka_unit_test(a_dead_nic_ends_every_waiter_with_its_number),
        cmocka_unit_test(one_of_two_nics_may_die),
        cmocka_unit_test(a_seed_is_one_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
