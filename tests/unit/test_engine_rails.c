/* test_engine_rails.c - the engine over a fabric of several rails that only takes notes: what each WR carries, where it goes, and how the
 * sizes follow from the number of rails. */
#include "base/error.h"
#include "base/log.h"
#include "engine/private.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RAILS = 4, MAX_WRS = 256, MAX_CQES = 8, N_PES = 4 };

struct uf_mr {
    uint64_t number;
};

/* Notes what is posted, and hands out the completions that a test has put there. */
typedef struct fake {
    uf_fabric base;
    uf_wr wr[MAX_WRS];
    uint32_t n;
    uf_cqe cqe[MAX_CQES];
    int n_cqes;
    uf_mr mr;
    const char *error;
} fake;

static int fake_post(uf_fabric *f, const uf_wr *wr)
{
    fake *k = (fake *)f;
    if (k->n == MAX_WRS)
        return UF_EAGAIN;
    k->wr[k->n++] = *wr;
    return UF_OK;
}

static int fake_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    fake *k = (fake *)f;
    int n = k->n_cqes < max ? k->n_cqes : max;
    memcpy(cqes, k->cqe, (size_t)n * sizeof *cqes);
    k->n_cqes = 0;
    f->drained = UINT32_MAX;
    return n;
}

static int fake_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr)
{
    fake *k = (fake *)f;
    (void)ptr, (void)bytes, (void)remote;
    *mr = &k->mr;
    return UF_OK;
}

static void fake_close_mr(uf_fabric *f, uf_mr *mr)
{
    (void)f, (void)mr;
}

static uint64_t fake_desc(const uf_mr *mr, uint32_t rail)
{
    return mr->number + rail;
}

static const char *fake_error(uf_fabric *f)
{
    return ((fake *)f)->error;
}

static const struct uf_fabric_ops fake_ops = {.name = "fake",
                                              .post = fake_post,
                                              .poll = fake_poll,
                                              .mr_register = fake_register,
                                              .mr_close = fake_close_mr,
                                              .mr_desc = fake_desc,
                                              .error = fake_error};

typedef struct bench {
    fake k;
    uf_settings settings;
    uf_engine *engine;
    uf_order_ctx ctx[2];
    uf_order_lane *lane[2][N_PES];
    int failed;
    char why[UF_ERROR_BYTES];
} bench;

static int note_apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    (void)arg, (void)signal, (void)old;
    return UF_OK;
}

static void note_done(void *arg, uint64_t user, int status, uint64_t value)
{
    (void)arg, (void)user, (void)status, (void)value;
}

static void note_failed(void *arg, uint32_t peer, int status)
{
    bench *b = arg;
    (void)peer;
    b->failed = status;
    snprintf(b->why, sizeof b->why, "%s", uf_error_message());
}

static void note_tick(void *arg, uint64_t now)
{
    (void)arg, (void)now;
}

static uf_engine_params params_of(bench *b)
{
    return (uf_engine_params){
        .settings = &b->settings,
        .pe = 1,
        .n_pes = N_PES,
        .fabric = &b->k.base,
        .driver = &uf_driver_threads,
        .host = {.arg = b, .apply = note_apply, .done = note_done, .failed = note_failed, .tick = note_tick},
        .local_pes = 1};
}

static void load(bench *b, const char *const *environment, uint32_t n_rails)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(uf_settings_load_from(environment, &b->settings), UF_OK);
    b->k.base.ops = &fake_ops;
    b->k.base.caps = (uf_fabric_caps){.fabric = "fake",
                                      .provider = "fake",
                                      .n_rails = n_rails,
                                      .imm_bits = 32,
                                      .imm_placed = true,
                                      .write_placed = true,
                                      .needs_desc = true,
                                      .max_message = 1 << 30,
                                      .tx_depth = 1024,
                                      .cq_depth = UINT32_MAX,
                                      .max_receives = UINT32_MAX};
    b->k.mr.number = 7000;
    b->k.error = "the cable was pulled";
}

static void start(bench *b, uint32_t n_rails)
{
    static const char *const environment[] = {"UNFENCE_STRIPE=1000", NULL};
    load(b, environment, n_rails);
    uf_engine_params params = params_of(b);
    assert_int_equal(uf_engine_create(&params, &b->engine), UF_OK);
    for (uint32_t c = 0; c < 2; c++) {
        b->ctx[c] = (uf_order_ctx){.window = 64, .number = c};
        for (uint32_t pe = 0; pe < N_PES; pe++)
            assert_int_equal(uf_engine_lane_open(b->engine, &b->ctx[c], pe, &b->lane[c][pe]), UF_OK);
    }
}

static void put(bench *b, uint32_t pe, const uf_engine_mr *mr, const uf_fabric_key *keys, uint32_t n_rails, uint64_t bytes)
{
    uf_order_op op = {.kind = UF_ORDER_PUT,
                      .local = 100000,
                      .local_desc = mr->desc,
                      .remote = keys[0].base + 64,
                      .remote_key = uf_engine_key(keys, n_rails),
                      .bytes = bytes};
    assert_int_equal(uf_engine_submit(b->engine, b->lane[0][pe], &op, 0), UF_OK);
}

/* ---------------------------------------------------------------- keys */

static void each_part_carries_the_keys_of_its_rail(void **state)
{
    static const uf_fabric_key keys[MAX_RAILS] = {{11, 1000000}, {12, 0}, {13, 5000000}, {14, 77}};
    bench b;
    uf_engine_mr *mr;
    uint32_t seen = 0;
    (void)state;
    start(&b, MAX_RAILS);
    assert_int_equal(uf_engine_mr_register(b.engine, &b, 4096, true, &mr), UF_OK);
    put(&b, 2, mr, keys, MAX_RAILS, 4000);
    put(&b, 3, mr, keys, MAX_RAILS, 8);
    assert_int_equal(b.k.n, MAX_RAILS + 1);
    for (uint32_t i = 0; i < b.k.n; i++) {
        const uf_wr *wr = &b.k.wr[i];
        assert_true(wr->rail < MAX_RAILS);
        assert_int_equal(wr->remote_key, keys[wr->rail].key);
        assert_int_equal(wr->remote, keys[wr->rail].base + 64 + (wr->local - 100000));
        assert_int_equal(wr->local_desc, 7000 + wr->rail);
        seen |= 1u << wr->rail;
    }
    assert_int_equal(seen, (1u << MAX_RAILS) - 1);
    uf_engine_mr_close(b.engine, mr);
    uf_engine_destroy(b.engine);
}

static void with_one_rail_the_words_are_the_keys(void **state)
{
    static const uf_fabric_key key = {11, 1000000};
    bench b;
    uf_engine_mr *mr;
    (void)state;
    start(&b, 1);
    assert_int_equal(uf_engine_mr_register(b.engine, &b, 4096, true, &mr), UF_OK);
    assert_int_equal(mr->desc, 7000);
    assert_int_equal(uf_engine_key(&key, 1), 11);
    put(&b, 2, mr, &key, 1, 4000);
    assert_int_equal(b.k.n, 1);
    assert_int_equal(b.k.wr[0].remote_key, 11);
    assert_int_equal(b.k.wr[0].remote, 1000064);
    assert_int_equal(b.k.wr[0].local_desc, 7000);
    uf_engine_mr_close(b.engine, mr);
    uf_engine_destroy(b.engine);
}

/* ---------------------------------------------------------------- placement */

static void signal_on(bench *b, uint32_t ctx, uint32_t pe)
{
    uf_order_op op = {.kind = UF_ORDER_SIGNAL, .op = UF_ATOMIC_ADD, .width = 8, .indexed = true, .operand = 1};
    assert_int_equal(uf_engine_submit(b->engine, b->lane[ctx][pe], &op, 0), UF_OK);
}

static void small_ones_spread_by_target_and_context_and_stay_there(void **state)
{
    bench b;
    (void)state;
    start(&b, MAX_RAILS);
    for (uint32_t again = 0; again < 2; again++)
        for (uint32_t ctx = 0; ctx < 2; ctx++)
            for (uint32_t pe = 0; pe < N_PES; pe++)
                signal_on(&b, ctx, pe);
    uint32_t used[MAX_RAILS] = {0};
    for (uint32_t i = 0; i < b.k.n; i++) {
        assert_int_equal(b.k.wr[i].rail, b.k.wr[i % (2 * N_PES)].rail);
        used[b.k.wr[i].rail]++;
    }
    for (uint32_t rail = 0; rail < MAX_RAILS; rail++)
        assert_int_equal(used[rail], 2 * 2 * N_PES / MAX_RAILS);
    uf_engine_destroy(b.engine);
}

/* ---------------------------------------------------------------- breaks */

static void tell(bench *b, uint32_t rail, uint32_t peer)
{
    b->k.cqe[0] = (uf_cqe){.kind = UF_CQE_RAIL, .rail = (uint16_t)rail, .peer = peer, .status = UF_EFABRIC};
    b->k.n_cqes = 1;
    uf_engine_poll(b->engine);
}

static void a_break_to_one_peer_moves_only_its_lanes(void **state)
{
    bench b;
    (void)state;
    uf_set_log_level(UF_LOG_NONE);
    start(&b, 2);
    tell(&b, 0, 2);
    for (uint32_t pe = 0; pe < N_PES; pe++)
        signal_on(&b, 0, pe);
    for (uint32_t i = 0; i < b.k.n; i++)
        assert_int_equal(b.k.wr[i].rail, b.k.wr[i].peer == 2 ? 1 : (1 + b.k.wr[i].peer) % 2);
    assert_int_equal(b.failed, 0);
    uf_engine_rail rail;
    uf_engine_rail_counters(b.engine, 0, &rail);
    assert_int_equal(rail.broken, 1);
    tell(&b, 0, UF_CQE_ALL_PEERS);
    uf_engine_rail_counters(b.engine, 0, &rail);
    assert_int_equal(rail.broken, N_PES);
    uf_engine_destroy(b.engine);
}

static void what_flew_is_posted_again_on_the_rail_that_is_left(void **state)
{
    static const uf_fabric_key keys[2] = {{11, 1000}, {12, 2000}};
    bench b;
    uf_engine_mr *mr;
    (void)state;
    uf_set_log_level(UF_LOG_NONE);
    start(&b, 2);
    assert_int_equal(uf_engine_mr_register(b.engine, &b, 4096, true, &mr), UF_OK);
    put(&b, 3, mr, keys, 2, 8);
    assert_int_equal(b.k.wr[0].rail, 0);
    tell(&b, 0, UF_CQE_ALL_PEERS);
    bool again = false;
    for (uint32_t i = 1; i < b.k.n; i++) {
        const uf_wr *wr = &b.k.wr[i];
        assert_int_equal(wr->rail, 1);
        again |= wr->verb == UF_VERB_WRITE && wr->remote_key == 12 && wr->remote == 2064 && wr->local_desc == 7001;
    }
    assert_true(again);
    uf_engine_rail rail;
    uf_engine_rail_counters(b.engine, 0, &rail);
    assert_int_equal(rail.posted, 1);
    assert_int_equal(rail.bytes, 8);
    assert_int_equal(rail.completed, 0); /* the break took it */
    assert_int_equal(rail.broken, N_PES);
    uf_engine_rail_counters(b.engine, 1, &rail);
    assert_int_equal(rail.posted, b.k.n - 1);
    assert_int_equal(rail.broken, 0);
    const uf_wr last = b.k.wr[b.k.n - 1];
    b.k.cqe[0] = (uf_cqe){.kind = UF_CQE_SENT, .rail = 1, .peer = last.peer, .cookie = last.cookie};
    b.k.n_cqes = 1;
    uf_engine_poll(b.engine);
    uf_engine_rail_counters(b.engine, 1, &rail);
    assert_int_equal(rail.completed, 1);
    uf_engine_mr_close(b.engine, mr);
    uf_engine_destroy(b.engine);
}

static void the_last_rail_says_why(void **state)
{
    bench b;
    (void)state;
    uf_set_log_level(UF_LOG_NONE);
    start(&b, 2);
    tell(&b, 0, 2);
    assert_int_equal(b.failed, 0);
    tell(&b, 1, 2);
    assert_int_equal(b.failed, UF_EFABRIC);
    assert_non_null(strstr(b.why, "rail 1 to PE 2"));
    assert_non_null(strstr(b.why, "the cable was pulled"));
    uf_engine_destroy(b.engine);
}

static void a_rail_that_nobody_uses_may_break(void **state)
{
    bench b;
    (void)state;
    load(&b, (const char *const[]){NULL}, 3);
    uf_engine_params params = params_of(&b);
    params.n_rails = 1;
    assert_int_equal(uf_engine_create(&params, &b.engine), UF_OK);
    tell(&b, 2, UF_CQE_ALL_PEERS);
    assert_int_equal(b.failed, 0);
    uf_engine_destroy(b.engine);
}

/* ---------------------------------------------------------------- sizes */

static void what_a_fabric_is_asked_for_is_what_the_protocol_needs(void **state)
{
    bench b;
    (void)state;
    for (uint32_t rails = 1; rails <= MAX_RAILS; rails++) {
        load(&b, (const char *const[]){"UNFENCE_CREDITS=50", "UNFENCE_MESSAGES=20", NULL}, rails);
        uf_fabric_params fabric = {.settings = &b.settings, .n_pes = N_PES};
        uf_engine_fabric_sizes(&fabric);
        b.k.base.caps.cq_depth = fabric.remote_cqes * rails;
        b.k.base.caps.max_receives = fabric.receives * rails;
        uf_engine_params params = params_of(&b);
        uf_order_config config;
        assert_int_equal(uf_engine_order_config(&params, &config), UF_OK);
        assert_int_equal(config.credits, 50);
        assert_true(config.message_credits >= 20);
        assert_true(uf_order_remote_cqes(&config) <= b.k.base.caps.cq_depth);
        assert_true(uf_order_receives(&config) <= b.k.base.caps.max_receives);
    }
}

static void shallow_queues_lower_the_limits_or_are_refused_with_numbers(void **state)
{
    bench b;
    uf_engine_limits limits;
    (void)state;
    load(&b, (const char *const[]){NULL}, MAX_RAILS);
    uf_engine_params params = params_of(&b);
    b.k.base.caps.cq_depth = 30 * N_PES * MAX_RAILS;
    assert_int_equal(uf_engine_limits_of(&params, &limits), UF_OK);
    assert_int_equal(limits.credits, 30 - UF_ORDER_CONTROL_RESERVE);
    b.k.base.caps.cq_depth = 100;
    assert_int_equal(uf_engine_limits_of(&params, &limits), UF_ENOMEM);
    assert_non_null(strstr(uf_error_message(), "100 completions"));
    assert_non_null(strstr(uf_error_message(), "4 PEs over 4 rails"));
    assert_non_null(strstr(uf_error_message(), "128"));
    params.n_rails = 1;
    assert_int_equal(uf_engine_limits_of(&params, &limits), UF_OK);
}

static void stripes_follow_from_the_rate_unless_they_are_set(void **state)
{
    bench b;
    uf_order_config config;
    (void)state;
    load(&b, (const char *const[]){NULL}, MAX_RAILS);
    uf_engine_params params = params_of(&b);
    b.k.base.caps.rate_bytes = UINT64_C(25000000000);
    assert_int_equal(uf_engine_order_config(&params, &config), UF_OK);
    assert_int_equal(config.stripe_chunk, 32 << 10);
    assert_int_equal(config.stripe_bytes, 128 << 10);
    b.k.base.caps.rate_bytes = 0;
    assert_int_equal(uf_engine_order_config(&params, &config), UF_OK);
    assert_int_equal(config.stripe_bytes, 64 << 10);
    load(&b, (const char *const[]){"UNFENCE_STRIPE=10K", NULL}, MAX_RAILS);
    assert_int_equal(uf_engine_order_config(&params, &config), UF_OK);
    assert_int_equal(config.stripe_bytes, 10 << 10);
    assert_int_equal(config.stripe_chunk, 2560);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_carries_the_keys_of_its_rail),
        cmocka_unit_test(with_one_rail_the_words_are_the_keys),
        cmocka_unit_test(small_ones_spread_by_target_and_context_and_stay_there),
        cmocka_unit_test(a_break_to_one_peer_moves_only_its_lanes),
        cmocka_unit_test(what_flew_is_posted_again_on_the_rail_that_is_left),
        cmocka_unit_test(the_last_rail_says_why),
        cmocka_unit_test(a_rail_that_nobody_uses_may_break),
        cmocka_unit_test(what_a_fabric_is_asked_for_is_what_the_protocol_needs),
        cmocka_unit_test(shallow_queues_lower_the_limits_or_are_refused_with_numbers),
        cmocka_unit_test(stripes_follow_from_the_rate_unless_they_are_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
