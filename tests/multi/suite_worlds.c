/* suite_worlds.c - worlds begin and end cleanly, several times, side by side, and in the middle of traffic. */
#include "multi/core_suite.h"
#include <stdlib.h>
#include <string.h>

/* A put with a signal round the ring of another world. */
static void use_world(suite *s, uf_world *w, uint64_t value)
{
    void *p = NULL;
    uint64_t *sig = NULL;
    uf_world_options o = suite_world_options(s);
    if (!CHECK_OK(s, uf_malloc(w, 1000, 0, &p)) || !CHECK_OK(s, uf_signal_alloc(w, 1, UF_SIGNAL_DEFAULT, &sig)))
        return;
    suite_fill(s->out, 1000, value + (uint64_t)s->pe);
    CHECK_OK(s, uf_put_signal(uf_ctx_default(w), p, s->out, 1000, sig, UF_SIGNAL_ADD, value, s->right, UF_STRONG));
    CHECK_OK(s, uf_wait(w, sig, UF_EQ, value, o.timeout_ns));
    VERIFY(s, p, 1000, value + (uint64_t)s->left);
    CHECK_OK(s, uf_barrier(uf_team_world(w)));
    CHECK_OK(s, uf_free(w, p));
    CHECK_OK(s, uf_signal_free(w, sig));
}

static void world_can_be_created_again_and_again(suite *s)
{
    for (uint64_t i = 1; i <= 5 && !s->failed; i++) {
        uf_world *w;
        if (suite_open_other(s, 0, &w)) {
            use_world(s, w, i);
            CHECK_OK(s, uf_world_status(w));
            CHECK_OK(s, suite_close_other(s, w));
        }
    }
}

static void worlds_live_side_by_side(suite *s)
{
    uf_world *first, *second;
    if (!suite_open_other(s, 0, &first) || !suite_open_other(s, 1, &second))
        return;
    for (uint64_t i = 1; i <= 3; i++) {
        use_world(s, first, i);
        CHECK_OK(s, uf_put_signal(s->ctx, s->data, s->out, 10, s->signals, UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        use_world(s, second, i * 1000);
        AWAIT(s, s->signals, i);
    }
    void *p = NULL;
    CHECK_OK(s, uf_malloc(first, 64, 0, &p));
    CHECK_EQ(s, uf_put(uf_ctx_default(second), p, s->out, 8, s->right),
             (uint64_t)UF_ERANGE); /* memory of one is none of the other's */
    CHECK_OK(s, suite_close_other(s, first));
    use_world(s, second, 77);
    CHECK_OK(s, suite_close_other(s, second));
}

/* Whatever is in flight when the world ends still arrives: the target of these puts is memory that outlives the world. */
static void destroy_completes_what_was_started(suite *s)
{
    for (uint64_t round = 0; round < 3 && !s->failed; round++) {
        size_t bytes = suite_scale(s, 500000, 9000);
        unsigned char *mine = calloc(1, bytes);
        uf_world *w;
        uf_window *window = NULL;
        if (CHECK(s, mine) && suite_open_other(s, 0, &w)) {
            CHECK_OK(s, uf_register(w, mine, bytes, &window));
            suite_fill(s->out, bytes, round);
            CHECK_OK(s, uf_put_nbi(uf_ctx_default(w), mine, s->out, bytes, s->right));
            CHECK_OK(s, suite_close_other(s, w));
            VERIFY(s, mine, bytes, round);
        }
        free(mine);
    }
}

static void destroy_in_the_middle_of_traffic_is_clean(suite *s)
{
    for (uint64_t round = 0; round < 4 && !s->failed; round++) {
        uf_world *w;
        void *p = NULL;
        uint64_t *sig = NULL;
        uf_ctx *ctx = NULL;
        if (!suite_open_other(s, 0, &w))
            return;
        CHECK_OK(s, uf_malloc(w, (size_t)s->n * 4096, 0, &p));
        CHECK_OK(s, uf_signal_alloc(w, 1, UF_SIGNAL_DEFAULT, &sig));
        CHECK_OK(s, uf_ctx_create(w, NULL, &ctx)); /* and not destroyed: it dies with its world */
        for (int i = 0; i < 200 && !s->failed; i++) {
            CHECK_OK(s, uf_put_signal_nbi(i % 2 ? ctx : uf_ctx_default(w), (unsigned char *)p + s->pe * 4096, s->out,
                                          (size_t)i * 20, sig, i % 3 ? UF_SIGNAL_ADD : UF_SIGNAL_SET, 1, (s->pe + i) % s->n,
                                          i % 5 ? UF_WEAK : UF_STRONG));
        }
        CHECK_OK(s, suite_close_other(s, w));
    }
}

/* A PE that is a little behind may be told of the abort in its barrier already. */
static void barrier_before_abort(suite *s, uf_world *w, const char *reason)
{
    int rc = uf_barrier(uf_team_world(w));
    if (rc != UF_OK)
        CHECK_CODE(s, rc, UF_EABORTED, reason);
}

static void abort_reaches_everybody_with_its_reason(suite *s)
{
    uf_world *w;
    uint64_t never = 0;
    uf_world_options o = suite_world_options(s);
    if (!suite_open_other(s, 0, &w))
        return;
    barrier_before_abort(s, w, "the oven is on fire");
    if (s->pe == s->n - 1)
        CHECK_OK(s, uf_world_abort(w, "the oven is on fire"));
    /* everybody waits for what never comes, the one who aborted as well */
    CHECK_CODE(s, uf_wait(w, &never, UF_EQ, 4711, o.timeout_ns), UF_EABORTED, "the oven is on fire");
    CHECK_CODE(s, uf_barrier(uf_team_world(w)), UF_EABORTED, "the oven is on fire");
    CHECK_CODE(s, uf_world_status(w), UF_EABORTED, "the oven is on fire");
    CHECK_CODE(s, uf_quiet(uf_ctx_default(w)), UF_EABORTED, "the oven is on fire");
    suite_close_other(s, w); /* returns, whatever it says */
    CHECK_OK(s, uf_world_status(s->world));
}

static void first_reason_is_the_one_that_is_told(suite *s)
{
    uf_world *w;
    if (!suite_open_other(s, 0, &w))
        return;
    barrier_before_abort(s, w, "first reason");
    if (s->pe == 0) {
        CHECK_OK(s, uf_world_abort(w, "first reason"));
        uf_world_abort(w, "second reason");
        CHECK_CODE(s, uf_world_status(w), UF_EABORTED, "first reason");
    }
    CHECK_CODE(s, uf_sync(uf_team_world(w)), UF_EABORTED, "first reason");
    suite_close_other(s, w);
}

static void world_of_one_works_alone(suite *s)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    uf_world *w = NULL;
    uint64_t *sig = NULL;
    void *p = NULL;
    o.pe = 0;
    o.n_pes = 1;
    o.heap_bytes = (uint64_t)2 << 20;
    if (!CHECK_OK(s, uf_world_create(&o, &w)))
        return;
    CHECK_OK(s, uf_malloc(w, 100, 0, &p));
    CHECK_OK(s, uf_signal_alloc(w, 1, UF_SIGNAL_DEFAULT, &sig));
    suite_fill(s->out, 100, 5);
    CHECK_OK(s, uf_put_signal(uf_ctx_default(w), p, s->out, 100, sig, UF_SIGNAL_SET, 8, 0, UF_STRONG));
    CHECK_OK(s, uf_wait(w, sig, UF_EQ, 8, 0));
    VERIFY(s, p, 100, 5);
    CHECK_OK(s, uf_barrier(uf_team_world(w)));
    CHECK_OK(s, suite_close_other(s, w));
}

static void path_names_fabric_provider_and_reason(suite *s)
{
    for (int pe = 0; pe < s->n; pe++) {
        uf_path_info info = {.size = sizeof info};
        CHECK_OK(s, uf_world_path(s->world, pe, &info));
        CHECK(s, info.fabric && info.fabric[0] && info.provider && info.provider[0] && info.reason && info.reason[0]);
    }
    uf_path_info info = {.size = sizeof info};
    CHECK_CODE(s, uf_world_path(s->world, s->n, &info), UF_ERANGE, "PE");
}

const suite_test suite_world_tests[] = {
    {"path_names_fabric_provider_and_reason", path_names_fabric_provider_and_reason, 1, SUITE_SELDOM},
    {"world_can_be_created_again_and_again", world_can_be_created_again_and_again, 1, SUITE_SELDOM},
    {"worlds_live_side_by_side", worlds_live_side_by_side, 1, SUITE_SELDOM},
    {"destroy_completes_what_was_started", destroy_completes_what_was_started, 1, SUITE_SELDOM},
    {"destroy_in_the_middle_of_traffic_is_clean", destroy_in_the_middle_of_traffic_is_clean, 1, SUITE_SELDOM},
    {"abort_reaches_everybody_with_its_reason", abort_reaches_everybody_with_its_reason, 1, SUITE_SELDOM},
    {"first_reason_is_the_one_that_is_told", first_reason_is_the_one_that_is_told, 1, SUITE_SELDOM},
    {"world_of_one_works_alone", world_of_one_works_alone, 1, SUITE_SELDOM},
    {NULL, NULL, 0, 0},
};
