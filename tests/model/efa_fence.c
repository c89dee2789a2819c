/* The one ability of the model that no EFA device has (can_fence): a queue that holds a write with immediate of 0 bytes until all
 * before it are acknowledged. It is there to compare ordering schemes with, so it must do what a fence does, and be off elsewhere. */
#include "efa_rig.h"

static uf_model_params fencing(bool can)
{
    uf_model_params p = rig_quiet();
    p.can_fence = can;
    p.delay_every = 4; /* the first message comes late: what does not wait for it overtakes it */
    p.delay_ns = 40000;
    return p;
}

static uint64_t time_of(const rig_seen *seen, uint32_t n, uint64_t id, bool by_imm)
{
    for (uint32_t i = 0; i < n; i++)
        if ((by_imm ? seen[i].c.imm : seen[i].c.id) == id)
            return seen[i].at;
    fail_msg("there is no completion of %llu", (unsigned long long)id);
    return 0;
}

static void no_profile_has_it(void **state)
{
    (void)state;
    const char *const names[] = {"p5", "p5en", "p6-b200", "chaos", "fifo"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile(names[i], &p), UF_OK);
        assert_false(p.can_fence);
    }
}

static void without_it_a_signal_overtakes(void **state)
{
    (void)state;
    uf_model_params p = fencing(false);
    rig *r = rig_open(&p, rig_seed(), NULL);
    rig_write(r, 1, 0, 0, 4096, -1);
    rig_write(r, 2, 0, 0, 0, 2);
    rig_run(r);
    assert_true(time_of(r->end[1].received, r->end[1].n_received, 2, true) < time_of(r->end[0].sent, r->end[0].n_sent, 1, false));
    rig_close(r);
}

static void a_signal_waits_for_all_before_it_and_all_behind_wait_for_it(void **state)
{
    (void)state;
    uf_model_params p = fencing(true);
    rig *r = rig_open(&p, rig_seed(), NULL);
    rig_write(r, 1, 0, 0, 4096, -1);
    rig_write(r, 2, 0, 4096, 4096, -1);
    rig_write(r, 3, 0, 0, 0, 3);
    rig_write(r, 4, 0, 8192, 4096, -1);
    rig_write(r, 5, 0, 0, 0, 5);
    rig_run(r);
    assert_int_equal(r->end[0].n_sent, 5);
    uint64_t sent[6], seen[6];
    for (uint64_t id = 1; id <= 5; id++)
        sent[id] = time_of(r->end[0].sent, 5, id, false);
    seen[3] = time_of(r->end[1].received, r->end[1].n_received, 3, true);
    seen[5] = time_of(r->end[1].received, r->end[1].n_received, 5, true);
    assert_true(seen[3] > sent[1] && seen[3] > sent[2]);
    assert_true(seen[3] >= sent[1] + p.latency_ns);
    /* The put behind it shares its wait, and the signal after that waits once more, for both. */
    assert_true(sent[4] > sent[1] + 2 * p.latency_ns);
    assert_true(seen[5] > sent[4] && seen[5] > sent[3]);
    rig_expect_no_traps(r);
    rig_close(r);
}

/* The immediate of a put with bytes is no fence: it is the library's own way, and compared with this one. */
static void an_immediate_with_bytes_is_not_held(void **state)
{
    (void)state;
    uf_model_params p = fencing(true);
    rig *r = rig_open(&p, rig_seed(), NULL);
    rig_write(r, 1, 0, 0, 4096, -1);
    rig_write(r, 2, 0, 4096, 64, 2);
    rig_run(r);
    assert_true(time_of(r->end[1].received, r->end[1].n_received, 2, true) < time_of(r->end[0].sent, r->end[0].n_sent, 1, false));
    rig_close(r);
}

static void a_queue_that_fails_flushes_what_it_held(void **state)
{
    (void)state;
    uf_model_params p = fencing(true);
    rig *r = rig_open(&p, rig_seed(), NULL);
    rig_write(r, 1, 0, 0, 4096, -1);
    rig_write(r, 2, 0, 0, 0, 2);
    rig_write(r, 3, 0, 0, 0, 3);
    uf_model_run(r->model, 5000); /* fetched, and not yet arrived */
    assert_int_equal(uf_model_qp_fail(r->end[0].nic, r->end[0].info.qpn), UF_OK);
    rig_run(r);
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(rig_status(r, id), UF_EFA_FLUSHED);
    assert_int_equal(r->end[1].n_received, 0);
    rig_close(r);
}

/* Loss, duplicates and retries change when, not whether. */
static void it_holds_in_chaos(void **state)
{
    (void)state;
    for (uint64_t seed = rig_seed(); seed < rig_seed() + 30; seed++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile("chaos", &p), UF_OK);
        p.can_fence = true;
        rig *r = rig_open(&p, seed, NULL);
        for (uint64_t id = 1; id <= 24; id++)
            rig_write(r, id, 0, id * 1024, id % 3 ? 1000 : 0, id % 3 ? -1 : (int64_t)id);
        rig_run(r);
        assert_int_equal(r->end[0].n_sent, 24);
        assert_int_equal(r->end[1].n_received, 8);
        for (uint64_t signal = 3; signal <= 24; signal += 3) {
            uint64_t seen = time_of(r->end[1].received, r->end[1].n_received, signal, true);
            for (uint64_t id = 1; id < signal; id++)
                if (time_of(r->end[0].sent, r->end[0].n_sent, id, false) >= seen)
                    fail_msg("UNFENCE_SEED=%llu: signal %llu came before request %llu was acknowledged", (unsigned long long)seed,
                             (unsigned long long)signal, (unsigned long long)id);
        }
        rig_expect_no_traps(r);
        rig_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_profile_has_it),
        cmocka_unit_test(without_it_a_signal_overtakes),
        cmocka_unit_test(a_signal_waits_for_all_before_it_and_all_behind_wait_for_it),
        cmocka_unit_test(an_immediate_with_bytes_is_not_held),
        cmocka_unit_test(a_queue_that_fails_flushes_what_it_held),
        cmocka_unit_test(it_holds_in_chaos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
