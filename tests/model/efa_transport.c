/* How the model carries messages: B3 to B9, B15, B16 and B18, and determinism. Whatever order, loss and repetition a seed
 * brings, all bytes arrive, each effect happens once, and nothing is told before it is true. */
#include "efa_rig.h"

static void fill(rig *r, uint64_t seed)
{
    for (uint32_t i = 0; i < RIG_MEMORY; i++)
        r->end[0].memory[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 13);
}

static void b3_a_message_is_its_packets_and_a_send_is_one(void **state)
{
    (void)state;
    const uint32_t sizes[] = {0, 1, 255, 256, 257, 512, 4096, 5000};
    uf_model_params p = rig_quiet();
    p.mtu = 256;
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        rig *r = rig_open(&p, 1, NULL);
        fill(r, i);
        rig_write(r, 1, 7, 100, sizes[i], 1);
        rig_run(r);
        uint64_t packets = sizes[i] ? (sizes[i] + 255) / 256 : 1;
        assert_int_equal(uf_model_get_stats(r->model)->packets, packets);
        assert_memory_equal(r->end[1].memory + 100, r->end[0].memory + 7, sizes[i]);
        assert_int_equal(r->end[1].memory[100 + sizes[i]], 0);
        assert_int_equal(r->end[1].received[0].c.bytes, sizes[i]);
        rig_close(r);
    }
}

static void b3_the_wire_has_a_rate_and_turns_are_taken(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.mtu = 1024;
    p.gbps = 8; /* a byte a nanosecond */
    rig *r = rig_open(&p, 1, NULL);
    rig_write(r, 1, 0, 0, 32768, -1);
    rig_write(r, 2, 0, 0, 1024, -1);
    rig_run(r);
    assert_int_equal(r->end[0].sent[0].c.id, 2); /* it did not wait for all of the first */
    assert_true(r->end[0].sent[0].at < r->end[0].sent[1].at - 25000);
    assert_in_range(r->end[0].sent[1].at, 33792 + 16000, 33792 + 16000 + 3000);
    rig_close(r);
}

static void b3_messages_have_a_rate_of_their_own(void **state)
{
    (void)state;
    for (int of_queue = 0; of_queue < 2; of_queue++) {
        uf_model_params p = rig_quiet();
        if (of_queue)
            p.qp_message_rate = 1000000;
        else
            p.message_rate = 1000000;
        rig *r = rig_open(&p, 1, &(rig_options){.depth = 256});
        for (uint64_t id = 0; id < 101; id++)
            rig_write(r, id, 0, 0, 0, -1);
        rig_run(r);
        assert_in_range(r->end[0].sent[100].at - r->end[0].sent[0].at, 99000, 101000);
        rig_close(r);
    }
}

/* Bytes and messages are counted apart: a short message beside a long one costs the wire its few bytes. */
static void b3_the_rate_of_messages_takes_no_time_of_the_wire(void **state)
{
    (void)state;
    uint64_t took[2];
    for (int both = 0; both < 2; both++) {
        uf_model_params p = rig_quiet();
        p.message_rate = 1000000;
        p.gbps = 8;
        rig *r = rig_open(&p, 1, &(rig_options){.depth = 256});
        for (uint64_t id = 0; id < 100; id += 2) {
            rig_write(r, id, 0, 0, 4000, -1);
            if (both)
                rig_write(r, id + 1, 0, 0, 0, -1);
        }
        rig_run(r);
        took[both] = uf_model_now(r->model);
        rig_close(r);
    }
    assert_in_range(took[1], took[0], took[0] + 3000);
}

/* Watches bytes of end 1 while a message arrives. */
static uint32_t partial, out_of_order;
static uint64_t watched, grain;

static void watch_partial(rig *r)
{
    if (r->end[1].n_received)
        return;
    uint32_t there = 0;
    for (uint64_t at = 0; at < watched; at += grain) {
        uint32_t of_block = 0, prefix = 0;
        for (uint64_t i = 0; i < grain; i++) {
            if (r->end[1].memory[at + i] == 0xee)
                of_block++;
            if (of_block == i + 1)
                prefix++;
        }
        there += of_block;
        out_of_order += of_block != prefix; /* within a block: from its start */
    }
    partial += there > 0 && there < watched;
}

static void b4_bytes_appear_in_pieces_as_coarse_as_the_device_promises(void **state)
{
    (void)state;
    const uint32_t grains[] = {1, 8, 64, 128};
    for (int g = 0; g < 4; g++) {
        partial = out_of_order = 0;
        watched = 4096;
        grain = grains[g];
        uint64_t split = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) {
            uf_model_params p = rig_quiet();
            p.grain = grains[g];
            p.split_ppm = 900000;
            p.split_ns = 1000;
            rig *r = rig_open(&p, seed, NULL);
            memset(r->end[0].memory, 0xee, 4096);
            r->each_event = watch_partial;
            rig_write(r, 1, 0, 0, 4096, 1);
            rig_run(r);
            split += uf_model_get_stats(r->model)->splits;
            assert_memory_equal(r->end[1].memory, r->end[0].memory, 4096);
            rig_close(r);
        }
        assert_true(split > 10);
        assert_true(partial > 0);
        assert_int_equal(out_of_order, 0);
    }
}

static void b4_packets_land_in_any_order(void **state)
{
    (void)state;
    uint32_t later_first = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uf_model_params p = rig_quiet();
        p.mtu = 256;
        p.paths = 32;
        p.jitter_ns = 10000;
        rig *r = rig_open(&p, seed, NULL);
        memset(r->end[0].memory, 0xee, 1024);
        rig_write(r, 1, 0, 0, 1024, 1);
        while (uf_model_step(r->model))
            later_first += r->end[1].memory[1023] && !r->end[1].memory[0];
        rig_close(r);
    }
    assert_true(later_first > 5);
}

/* The heart: any profile, many seeds, all kinds of messages; each completion is checked when it is seen. */
enum { MESSAGES = 120, STRIDE = 512 };

static void check_arrivals(rig *r)
{
    static uint32_t checked;
    if (r->end[1].n_received < checked)
        checked = 0;
    for (; checked < r->end[1].n_received; checked++) {
        uint32_t id = r->end[1].received[checked].c.imm, n = r->end[1].received[checked].c.bytes;
        assert_memory_equal(r->end[1].memory + id * STRIDE, r->end[0].memory + id * STRIDE, n); /* B6: bytes before completion */
    }
    if (r->end[1].n_received == MESSAGES)
        checked = 0;
}

static const char *last_profile;
static uint64_t last_seed;

/* After success and failure alike. */
static int tell_seed(void **state)
{
    (void)state;
    print_message("last run: profile %s, UNFENCE_SEED=%llu\n", last_profile, (unsigned long long)last_seed);
    return 0;
}

static uint64_t run_profile(const char *profile, uint64_t seed, uint32_t *inversions)
{
    uf_model_params p;
    last_profile = profile;
    last_seed = seed;
    assert_int_equal(uf_model_profile(profile, &p), UF_OK);
    rig *r = rig_open(&p, seed, &(rig_options){.rnr_retry = 7, .solicited = seed & 1 || !p.can_unsolicited});
    uint32_t taken[MESSAGES] = {0};
    fill(r, seed);
    rig_receives(r, 0, 200, 16);
    memset(r->end[1].memory, 0, RIG_MEMORY);
    r->each_event = check_arrivals;
    for (uint32_t id = 0; id < MESSAGES; id++)
        rig_write(r, id, id * STRIDE, id * STRIDE, (id * 37) % (STRIDE + 1), id);
    rig_run(r);
    rig_expect_no_traps(r);
    assert_int_equal(r->end[1].n_received, MESSAGES);
    assert_int_equal(r->end[0].n_sent, MESSAGES);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const rig_seen *in = &r->end[1].received[i], *out = &r->end[0].sent[i];
        assert_int_equal(taken[in->c.imm]++, 0); /* B18 */
        assert_int_equal(in->c.source, r->end[0].info.qpn);
        assert_int_equal(in->c.ah, r->end[1].ah);
        assert_int_equal(in->c.unsolicited, !(seed & 1 || !p.can_unsolicited));
        assert_int_equal(out->c.status, UF_EFA_OK);
        if (i && in->c.imm < r->end[1].received[i - 1].c.imm)
            (*inversions)++;
        for (uint32_t j = 0; j < MESSAGES; j++) /* B8: the sender hears after the target */
            if (r->end[1].received[j].c.imm == out->c.id)
                assert_true(out->at > r->end[1].received[j].at);
    }
    for (uint32_t id = 0; id < MESSAGES; id++)
        assert_memory_equal(r->end[1].memory + id * STRIDE, r->end[0].memory + id * STRIDE, (id * 37) % (STRIDE + 1));
    const uf_model_stats *s = uf_model_get_stats(r->model);
    uint64_t trace = uf_model_now(r->model) * 31 + s->events * 7 + s->packets + s->drops * 3;
    rig_close(r);
    return trace;
}

static void b5_to_b8_and_b18_hold_in_every_profile(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5", "p5en", "p6-b200", "chaos", "fifo"};
    for (int i = 0; i < 5; i++) {
        uint32_t inversions = 0;
        for (uint64_t seed = rig_seed(); seed < rig_seed() + 40; seed++) {
            (void)run_profile(profiles[i], seed, &inversions);
        }
        if (strcmp(profiles[i], "fifo") == 0)
            assert_int_equal(inversions, 0);
        else
            assert_true(inversions > 100); /* B7 */
    }
}

static void a_seed_repeats_its_run(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint64_t first = run_profile("chaos", seed, &n);
        assert_true(first == run_profile("chaos", seed, &n));
        assert_true(first != run_profile("chaos", seed + 2, &n));
    }
}

static void b5_a_duplicate_over_changed_bytes_is_trapped(void **state)
{
    (void)state;
    uint32_t trapped = 0, late = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uf_model_params p = rig_quiet();
        p.duplicate_ppm = 900000;
        p.duplicate_after_cqe = seed & 1;
        rig *r = rig_open(&p, seed, NULL);
        r->end[0].memory[0] = 1;
        rig_write(r, 1, 0, 0, 8, 1);
        while (uf_model_step(r->model)) {
            rig_collect(r);
            if (r->end[1].n_received && r->end[1].memory[0] == 1)
                r->end[1].memory[0] = 2; /* the planted bug: the slot is used again before the sender has its completion */
            late += r->end[0].n_sent && uf_model_get_stats(r->model)->duplicates == 1;
        }
        trapped += uf_model_get_stats(r->model)->traps[UF_MODEL_TRAP_DUPLICATE] > 0;
        if (trapped == 1)
            rig_expect_trap(r, UF_MODEL_TRAP_DUPLICATE, "second time");
        assert_int_equal(r->end[1].n_received, 1);
        rig_close(r);
    }
    assert_true(trapped > 40);
    assert_true(late > 10);
}

static void b5_a_duplicate_comes_before_the_senders_completion_unless_the_knob_says_so(void **state)
{
    (void)state;
    for (int after = 0; after < 2; after++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            uf_model_params p = rig_quiet();
            p.duplicate_ppm = 900000;
            p.duplicate_after_cqe = after;
            rig *r = rig_open(&p, seed, NULL);
            rig_write(r, 1, 0, 0, 8, -1);
            while (uf_model_step(r->model)) {
                rig_collect(r);
                if (r->end[0].n_sent == 0)
                    assert_true(!after || uf_model_get_stats(r->model)->duplicates == 0);
                else if (!after)
                    r->end[1].memory[0] = r->end[0].memory[0] = 77; /* both are their owners' again */
                else
                    r->end[0].memory[0] = 55; /* the source is; a late copy must carry the old bytes */
            }
            rig_expect_no_traps(r);
            assert_int_equal(r->end[1].memory[0], after ? 0 : 77);
            rig_close(r);
        }
}

static void b6_early_completions_exist_where_memories_differ(void **state)
{
    (void)state;
    uint32_t early = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uf_model_params p = rig_quiet();
        p.cqe_early_ppm = 900000;
        rig *r = rig_open(&p, seed, NULL);
        r->end[0].memory[0] = 3;
        rig_write(r, 1, 0, 0, 8, 1);
        while (uf_model_step(r->model)) {
            rig_collect(r);
            early += r->end[1].n_received && r->end[1].memory[0] == 0;
        }
        assert_int_equal(r->end[1].memory[0], 3);
        rig_close(r);
    }
    assert_true(early > 5);
}

static void b7_the_first_message_can_be_held_back(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.delay_every = 4;
    p.delay_ns = 100000;
    rig *r = rig_open(&p, 1, NULL);
    for (uint64_t id = 0; id < 8; id++)
        rig_write(r, id, 0, 0, 8, (int64_t)id);
    rig_run(r);
    assert_int_equal(r->end[1].received[0].c.imm, 1);
    assert_int_equal(r->end[1].received[6].c.imm, 0);
    assert_int_equal(r->end[1].received[7].c.imm, 4);
    rig_close(r);
}

static void b9_a_read_brings_the_bytes_and_tells_only_the_reader(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uf_model_params p;
        assert_int_equal(uf_model_profile("chaos", &p), UF_OK);
        rig *r = rig_open(&p, seed, &(rig_options){.counter = 1 + UF_MODEL_COUNT_REMOTE_READ});
        for (uint32_t i = 0; i < RIG_MEMORY; i++)
            r->end[1].memory[i] = (unsigned char)(i * 7 + seed);
        rig_read(r, 1, 0, 64, 10000);
        rig_read(r, 2, 20000, 0, 0);
        rig_read(r, 3, 30000, 20000, 256);
        rig_run(r);
        rig_expect_no_traps(r);
        for (uint64_t id = 1; id <= 3; id++)
            assert_int_equal(rig_status(r, id), UF_EFA_OK);
        assert_int_equal(r->end[1].n_received, 0);
        assert_int_equal(r->end[1].successes, 3);
        assert_memory_equal(r->end[0].memory, r->end[1].memory + 64, 10000);
        assert_memory_equal(r->end[0].memory + 30000, r->end[1].memory + 20000, 256);
        rig_close(r);
    }
}

static void b9_a_read_may_see_a_concurrent_write_or_not(void **state)
{
    (void)state;
    uint32_t seen = 0, missed = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uf_model_params p = rig_quiet();
        p.jitter_ns = 8000;
        p.paths = 8;
        rig *r = rig_open(&p, seed, NULL);
        r->end[0].memory[0] = 9;
        rig_write(r, 1, 0, 0, 8, -1);
        rig_read(r, 2, 64, 0, 8);
        rig_run(r);
        seen += r->end[0].memory[64] == 9;
        missed += r->end[0].memory[64] == 0;
        rig_close(r);
    }
    assert_true(seen > 3 && missed > 0);
    assert_int_equal(seen + missed, 60);
}

static void b15_counters_wrap_at_31_bits_and_may_precede_the_completion(void **state)
{
    (void)state;
    uint32_t counter_first = 0, cqe_first = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uf_model_params p = rig_quiet();
        p.counter_start = 0x7fffffff - 1;
        p.cqe_ns = 5000;
        rig *r = rig_open(&p, seed, &(rig_options){.counter = 1 + UF_MODEL_COUNT_REMOTE_WRITE});
        rig_write(r, 1, 0, 0, 8, 1);
        while (uf_model_step(r->model)) {
            rig_collect(r);
            counter_first += r->end[1].successes != 0 && r->end[1].n_received == 0;
            cqe_first += r->end[1].successes == 0 && r->end[1].n_received != 0;
        }
        assert_int_equal(r->end[1].successes, 0x7fffffff);
        rig_write(r, 2, 0, 0, 8, -1);
        rig_run(r);
        assert_int_equal(r->end[1].successes, 0); /* counts pure writes, which raise no completion there */
        assert_int_equal(r->end[1].n_received, 1);
        rig_close(r);
    }
    assert_true(cqe_first && counter_first);
}

static void b16_nics_share_nothing_and_keep_their_limits(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    uf_model *m;
    uf_model_nic *nic[3];
    uf_model_cq *cq[2];
    uf_model_counter *counter;
    uf_model_qp_info info;
    uf_model_mr mr[3];
    uint16_t ah;
    uint8_t gid[16] = {0};
    static uint64_t memory[2][8 * 4];
    p.max_qps = 2;
    p.max_cqs = 1;
    p.max_counters = 1;
    p.max_mrs = 1;
    p.max_ahs = 1;
    assert_int_equal(uf_model_create(&p, 1, &m), UF_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(uf_model_nic_create(m, &nic[i]), UF_OK);
    for (int i = 0; i < 2; i++) {
        uf_model_cq_options o = {.memory = memory[i], .entries = 8, .entry_bytes = 32};
        assert_int_equal(uf_model_cq_create(nic[i], &o, &cq[i]), UF_OK);
        assert_int_equal(uf_model_mr_register(nic[i], 1, memory, 8, UF_MODEL_LOCAL, &mr[i]), UF_OK);
    }
    uf_model_cq_options o = {.memory = memory[0], .entries = 8, .entry_bytes = 32};
    uf_model_cq *one_more;
    assert_int_equal(uf_model_cq_create(nic[0], &o, &one_more), UF_ENOMEM);
    o.entries = 12;
    assert_int_equal(uf_model_cq_create(nic[2], &o, &one_more), UF_EINVAL);
    uf_model_qp_options q = {.sq_depth = 4, .rq_depth = 4, .wqe_bytes = 64, .send_cq = cq[0], .recv_cq = cq[0]};
    assert_int_equal(uf_model_qp_create(nic[1], &q, &info), UF_EINVAL); /* another NIC's queues */
    for (uint16_t i = 0; i < 2; i++) {
        assert_int_equal(uf_model_qp_create(nic[0], &q, &info), UF_OK);
        assert_int_equal(info.qpn, i);
    }
    assert_int_equal(uf_model_qp_create(nic[0], &q, &info), UF_ENOMEM);
    assert_int_equal(uf_model_qp_destroy(nic[0], 0), UF_OK);
    assert_int_equal(uf_model_qp_destroy(nic[0], 0), UF_ERANGE);
    assert_int_equal(uf_model_qp_create(nic[0], &q, &info), UF_OK);
    assert_int_equal(info.qpn, 0);
    q.sq_depth = 8192;
    assert_int_equal(uf_model_qp_create(nic[0], &q, &info), UF_EINVAL);
    assert_int_equal(uf_model_counter_create(nic[0], &memory[0][0], NULL, &counter), UF_OK);
    assert_int_equal(uf_model_counter_create(nic[0], &memory[0][0], NULL, &counter), UF_ENOMEM);
    assert_int_equal(uf_model_mr_register(nic[0], 1, memory, 8, 0, &mr[2]), UF_ENOMEM);
    uf_model_mr_close(nic[0], mr[0]);
    assert_int_equal(uf_model_mr_register(nic[0], 1, memory, 8, 0, &mr[2]), UF_OK);
    assert_true(mr[2].lkey != mr[0].lkey && mr[2].rkey != mr[0].rkey); /* an old key stays dead */
    assert_int_equal(uf_model_ah_create(nic[0], gid, &ah), UF_ERANGE);
    uf_model_nic_gid(nic[1], gid);
    assert_int_equal(uf_model_ah_create(nic[0], gid, &ah), UF_OK);
    assert_int_equal(uf_model_ah_create(nic[0], gid, &ah), UF_ENOMEM);
    assert_int_equal(uf_model_ah_create(nic[2], gid, &ah), UF_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(uf_model_qp_destroy(nic[0], (uint16_t)i), UF_OK);
    for (int i = 0; i < 2; i++)
        uf_model_cq_destroy(cq[i]);
    uf_model_destroy(m);
}

static void params_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    uf_model *m;
    uf_model_params p;
    assert_int_equal(uf_model_profile("p7", &p), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "p6-b200"));
    p = rig_quiet();
    p.paths = 65;
    assert_int_equal(uf_model_create(&p, 1, &m), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "paths is 65"));
    p = rig_quiet();
    p.grain = 16;
    assert_int_equal(uf_model_create(&p, 1, &m), UF_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b3_a_message_is_its_packets_and_a_send_is_one),
        cmocka_unit_test(b3_the_wire_has_a_rate_and_turns_are_taken),
        cmocka_unit_test(b3_messages_have_a_rate_of_their_own),
        cmocka_unit_test(b3_the_rate_of_messages_takes_no_time_of_the_wire),
        cmocka_unit_test(b4_bytes_appear_in_pieces_as_coarse_as_the_device_promises),
        cmocka_unit_test(b4_packets_land_in_any_order),
        cmocka_unit_test_teardown(b5_to_b8_and_b18_hold_in_every_profile, tell_seed),
        cmocka_unit_test_teardown(a_seed_repeats_its_run, tell_seed),
        cmocka_unit_test(b5_a_duplicate_over_changed_bytes_is_trapped),
        cmocka_unit_test(b5_a_duplicate_comes_before_the_senders_completion_unless_the_knob_says_so),
        cmocka_unit_test(b6_early_completions_exist_where_memories_differ),
        cmocka_unit_test(b7_the_first_message_can_be_held_back),
        cmocka_unit_test(b9_a_read_brings_the_bytes_and_tells_only_the_reader),
        cmocka_unit_test(b9_a_read_may_see_a_concurrent_write_or_not),
        cmocka_unit_test(b15_counters_wrap_at_31_bits_and_may_precede_the_completion),
        cmocka_unit_test(b16_nics_share_nothing_and_keep_their_limits),
        cmocka_unit_test(params_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
