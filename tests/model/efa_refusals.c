/* What goes wrong between two model NICs: receives that are missing (B10), requests that the target refuses (B11, B12), queues
 * and peers that are gone (B14), keys that die under work. Each gives the specified status to the sender alone. */
#include "efa_rig.h"

static void b10_without_a_receive_the_sender_retries_and_gives_up(void **state)
{
    (void)state;
    for (uint32_t retry = 0; retry < 7; retry++)
        for (int send = 0; send < 2; send++) {
            uf_model_params p = rig_quiet();
            rig *r = rig_open(&p, 1, &(rig_options){.solicited = true, .rnr_retry = retry});
            r->end[0].memory[0] = 1;
            if (send)
                rig_send(r, 1, 0, 8);
            else
                rig_write(r, 1, 0, 0, 8, 5);
            rig_run(r);
            assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_RNR);
            assert_int_equal(uf_model_get_stats(r->model)->rnr, retry + 1);
            assert_int_equal(r->end[1].n_received, 0);
            assert_int_equal(r->end[1].memory[0], 0);
            rig_close(r);
        }
}

static void b10_seven_means_for_ever(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, &(rig_options){.solicited = true, .rnr_retry = 7});
    rig_write(r, 1, 0, 0, 8, 5);
    uf_model_run(r->model, 5000000);
    rig_collect(r);
    assert_int_equal(r->end[0].n_sent, 0);
    assert_true(uf_model_get_stats(r->model)->rnr > 50);
    rig_receives(r, 33, 1, 8);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_OK);
    assert_int_equal(r->end[1].received[0].c.id, 33);
    assert_int_equal(r->end[1].n_received, 1);
    rig_close(r);
}

static void b10_knob_the_payload_may_be_there_already(void **state)
{
    (void)state;
    for (int places = 0; places < 2; places++) {
        uf_model_params p = rig_quiet();
        p.rnr_places = places;
        rig *r = rig_open(&p, 1, &(rig_options){.solicited = true});
        r->end[0].memory[0] = 1;
        rig_write(r, 1, 0, 0, 8, 5);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_RNR);
        assert_int_equal(r->end[1].memory[0], places);
        rig_close(r);
    }
}

static void b10_receives_are_used_in_their_order_and_writes_leave_their_buffers(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, &(rig_options){.solicited = true});
    r->end[0].memory[0] = 1;
    rig_receives(r, 10, 3, 64);
    rig_write(r, 1, 0, 4096, 8, 5);
    rig_send(r, 2, 0, 8);
    rig_write(r, 3, 0, 4096, 8, -1); /* without an immediate: uses none */
    rig_send(r, 4, 0, 64);
    rig_run(r);
    assert_int_equal(r->end[1].n_received, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(r->end[1].received[i].c.id, 10 + i);
    assert_int_equal(r->end[1].memory[0], 0);
    assert_int_equal(r->end[1].memory[64], 1);
    assert_int_equal(r->end[1].memory[128], 1);
    assert_int_equal(r->end[1].received[1].c.op, UF_EFA_OP_SEND);
    assert_int_equal(r->end[1].received[2].c.bytes, 64);
    rig_close(r);
}

static void receives_of_several_pieces_are_filled_in_turn(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    rig_end *e = &r->end[1];
    uint64_t w[2] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        uf_efa_sge sge = {(uintptr_t)e->memory + i * 100, 10, e->mr.lkey};
        assert_true(uf_efa_encode_rx(w, 7, &sge, i == 0, i == 2));
        e->rq.ring[2 * i] = w[0];
        e->rq.ring[2 * i + 1] = w[1];
    }
    e->rq.posted = 3;
    uf_efa_rq_ring(&e->rq);
    for (uint32_t i = 0; i < 25; i++)
        r->end[0].memory[i] = (unsigned char)(i + 1);
    rig_send(r, 1, 0, 25);
    rig_run(r);
    rig_expect_no_traps(r);
    assert_int_equal(e->received[0].c.id, 7);
    assert_int_equal(e->memory[9], 10);
    assert_int_equal(e->memory[10], 0);
    assert_int_equal(e->memory[100], 11);
    assert_int_equal(e->memory[204], 25);
    assert_int_equal(e->memory[205], 0);
    rig_close(r);
}

static void b10_a_message_of_many_packets_is_refused_once_an_attempt(void **state)
{
    (void)state;
    for (uint64_t seed = rig_seed(); seed < rig_seed() + 20; seed++) {
        uf_model_params p = rig_quiet();
        p.mtu = 64;
        p.gbps = 1;
        p.jitter_ns = 20000;
        p.rnr_ns = 1000;
        rig *r = rig_open(&p, seed, &(rig_options){.solicited = true, .rnr_retry = 3});
        rig_write(r, 1, 0, 4096, 2048, 5);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_RNR);
        assert_int_equal(uf_model_get_stats(r->model)->rnr, 4);
        assert_true(r->end[0].sent[0].at >= 4 * 8000 + 3 * (8000 + 1000) + 8000); /* four ways there, each refused at its time */
        rig_close(r);
    }
}

static void check_whole(rig *r)
{
    for (uint32_t i = 0; i < r->end[1].n_received; i++)
        assert_memory_equal(r->end[1].memory + 4096, r->end[0].memory, 2048);
}

static void b10_a_refused_message_of_many_packets_is_whole_when_it_is_told(void **state)
{
    (void)state;
    for (uint64_t seed = rig_seed(); seed < rig_seed() + 60; seed++) {
        uf_model_params p = rig_quiet();
        p.mtu = 64;
        p.gbps = 1; /* its packets still leave when the first is refused */
        p.jitter_ns = 20000;
        p.rnr_ns = 1000;
        rig *r = rig_open(&p, seed, &(rig_options){.solicited = true, .rnr_retry = 7});
        for (uint32_t i = 0; i < 2048; i++)
            r->end[0].memory[i] = (unsigned char)(1 + i % 251);
        rig_write(r, 1, 0, 4096, 2048, 5);
        uf_model_run(r->model, 11000 + seed * 500);
        rig_receives(r, 1, 1, 8);
        r->each_event = check_whole;
        rig_run(r);
        assert_int_equal(r->end[1].n_received, 1);
        assert_int_equal(rig_status(r, 1), UF_EFA_OK);
        rig_close(r);
    }
}

static void strict_finds_a_receive_that_is_malformed(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, NULL);
        rig_receives(r, 1, 1, 64);
        if (which)
            r->end[1].rq.ring[1] &= ~((uint64_t)1 << 62); /* no first piece */
        else
            r->end[1].rq.ring[0] = 64; /* an address that the key does not cover */
        rig_send(r, 1, 0, 8);
        rig_run(r);
        rig_expect_trap(r, UF_MODEL_TRAP_RQ_MALFORMED, "receive 1");
        assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_STATUS);
        assert_int_equal(r->end[1].received[0].c.status, UF_EFA_INVALID_LKEY);
        rig_close(r);
    }
}

static int one_write(rig *r, uint32_t rkey, uint64_t offset, uint32_t bytes, uint16_t qpn, uint32_t qkey)
{
    uf_efa_wqe e = {0};
    uf_efa_to to = {.id = 1, .qpn = qpn, .ah = r->end[0].ah, .qkey = qkey};
    uf_efa_sge local = {(uintptr_t)r->end[0].memory, bytes, r->end[0].mr.lkey};
    memset(r->end[0].memory, 5, bytes);
    assert_true(uf_efa_encode_write_imm(&e, 8, &to, (uintptr_t)r->end[1].memory + offset, rkey, &local, 3));
    rig_post(r, &e);
    rig_write(r, 2, 0, 0, 8, 4);
    rig_run(r);
    assert_int_equal(rig_status(r, 2), UF_EFA_OK); /* others are unaffected */
    assert_int_equal(r->end[1].n_received, rig_status(r, 1) == UF_EFA_OK ? 2 : 1);
    return rig_status(r, 1);
}

static void b11_what_the_target_refuses_only_the_sender_hears(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.mtu = 256;
    struct {
        uint32_t rkey, bytes, qkey;
        uint64_t offset;
        uint16_t qpn;
        int status;
    } cases[] = {
        {0, 8, RIG_QKEY, 0, 0, UF_EFA_OK},
        {1, 8, RIG_QKEY, 0, 0, UF_EFA_REMOTE_ADDRESS},
        {0, 8, RIG_QKEY, RIG_MEMORY - 7, 0, UF_EFA_REMOTE_ADDRESS},
        {0, 8, RIG_QKEY, (uint64_t)-1, 0, UF_EFA_REMOTE_ADDRESS},
        {0, 8, RIG_QKEY, 0, 1, UF_EFA_REMOTE_QPN},
        {0, 8, RIG_QKEY, 0, 0xffff, UF_EFA_REMOTE_QPN},
        {0, 8, RIG_QKEY + 1, 0, 0, UF_EFA_REMOTE_QPN},
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        rig *r = rig_open(&p, 1, NULL);
        int status =
            one_write(r, r->end[1].mr.rkey ^ cases[i].rkey << 20, cases[i].offset, cases[i].bytes, cases[i].qpn, cases[i].qkey);
        assert_int_equal(status, cases[i].status);
        rig_expect_no_traps(r);
        rig_close(r);
    }
    for (int places = 0; places < 2; places++) { /* knob: what of a write that leaves the range is placed */
        p.bad_key_places = places;
        rig *r = rig_open(&p, 1, NULL);
        assert_int_equal(one_write(r, r->end[1].mr.rkey, RIG_MEMORY - 300, 600, 0, RIG_QKEY), UF_EFA_REMOTE_ADDRESS);
        assert_int_equal(r->end[1].memory[RIG_MEMORY - 300], places ? 5 : 0);
        assert_int_equal(r->end[1].memory[RIG_MEMORY - 1], 0);
        rig_close(r);
    }
}

static void b11_permissions_are_kept_apart(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    for (int writes = 0; writes < 2; writes++) {
        rig *r = rig_open(&p, 1, NULL);
        rig_end *e = &r->end[1];
        uf_model_mr_close(e->nic, e->mr);
        assert_int_equal(
            uf_model_mr_register(e->nic, 1, e->memory, RIG_MEMORY, writes ? UF_MODEL_REMOTE_WRITE : UF_MODEL_REMOTE_READ, &e->mr),
            UF_OK);
        rig_write(r, 1, 0, 0, 8, -1);
        rig_read(r, 2, 0, 0, 8);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), writes ? UF_EFA_OK : UF_EFA_REMOTE_ADDRESS);
        assert_int_equal(rig_status(r, 2), writes ? UF_EFA_REMOTE_ADDRESS : UF_EFA_OK);
        rig_close(r);
    }
    rig *r = rig_open(&p, 1, NULL); /* another protection domain */
    rig_end *e = &r->end[1];
    uf_model_mr_close(e->nic, e->mr);
    assert_int_equal(uf_model_mr_register(e->nic, 2, e->memory, RIG_MEMORY, UF_MODEL_REMOTE_WRITE, &e->mr), UF_OK);
    rig_write(r, 1, 0, 0, 8, -1);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_ADDRESS);
    rig_close(r);
}

static void b11_a_send_longer_than_the_receive_is_refused_and_the_receive_stays(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    rig_receives(r, 1, 1, 16);
    rig_send(r, 1, 0, 17);
    rig_send(r, 2, 0, 16);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_LENGTH);
    assert_int_equal(rig_status(r, 2), UF_EFA_OK);
    assert_int_equal(r->end[1].n_received, 1);
    rig_close(r);
}

static void b11_a_target_of_an_older_generation_lacks_the_write(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    uf_model_nic_abilities(r->end[1].nic, true, false);
    rig_write(r, 1, 0, 0, 8, -1);
    rig_read(r, 2, 0, 0, 8);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_FEATURE_MISMATCH);
    assert_int_equal(rig_status(r, 2), UF_EFA_OK);
    rig_close(r);
}

static void b12_a_target_must_know_the_writer_but_not_the_sender(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, &(rig_options){.deaf = true});
    rig_receives(r, 1, 1, 16);
    rig_write(r, 1, 0, 0, 8, 1);
    rig_read(r, 2, 0, 0, 8);
    rig_send(r, 3, 0, 8);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_UNKNOWN_PEER);
    assert_int_equal(rig_status(r, 2), UF_EFA_UNKNOWN_PEER);
    assert_int_equal(rig_status(r, 3), UF_EFA_OK);
    assert_int_equal(r->end[1].n_received, 1);
    assert_int_equal(r->end[1].received[0].c.ah, UF_EFA_AH_UNKNOWN);
    rig_close(r);
}

static void an_address_handle_destroyed_under_work_ends_it_in_error(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    r->end[0].memory[0] = 4;
    for (uint64_t id = 1; id <= 3; id++)
        rig_write(r, id, 0, id * 8, 8, -1);
    uf_model_run(r->model, 1000);
    uf_model_ah_destroy(r->end[0].nic, r->end[0].ah);
    rig_write(r, 4, 0, 64, 8, -1);
    rig_run(r);
    for (uint64_t id = 1; id <= 4; id++)
        assert_int_equal(rig_status(r, id), UF_EFA_INVALID_AH);
    assert_int_equal(r->end[1].memory[8], 4);
    assert_int_equal(r->end[1].memory[64], 0);
    rig_close(r);
}

static void b14_destroying_a_queue_flushes_what_is_outstanding(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    rig_receives(r, 40, 2, 16);
    for (uint64_t id = 1; id <= 3; id++)
        rig_write(r, id, 0, 0, 8, -1);
    uf_model_run(r->model, 1000); /* fetched, and under way */
    rig_write(r, 4, 0, 0, 8, -1); /* posted, and not yet fetched */
    assert_int_equal(uf_model_qp_destroy(r->end[0].nic, r->end[0].info.qpn), UF_OK);
    assert_int_equal(uf_model_qp_destroy(r->end[1].nic, r->end[1].info.qpn), UF_OK);
    rig_run(r);
    for (uint64_t id = 1; id <= 4; id++)
        assert_int_equal(rig_status(r, id), UF_EFA_FLUSHED);
    assert_int_equal(r->end[1].n_received, 2);
    assert_int_equal(r->end[1].received[1].c.id, 41);
    assert_int_equal(r->end[1].received[1].c.status, UF_EFA_FLUSHED);
    rig_close(r);
}

static void b14_late_packets_of_a_dead_queue_still_arrive_with_its_bytes(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    r->end[0].memory[0] = 6;
    rig_write(r, 1, 0, 0, 8, 9);
    uf_model_run(r->model, 1000);
    assert_int_equal(uf_model_qp_destroy(r->end[0].nic, r->end[0].info.qpn), UF_OK);
    uf_model_mr_close(r->end[0].nic, r->end[0].mr);
    r->end[0].memory[0] = 99; /* its owner has the flush, and uses the memory again */
    rig_run(r);
    rig_expect_no_traps(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_FLUSHED);
    assert_int_equal(r->end[1].memory[0], 6);
    assert_int_equal(r->end[1].received[0].c.imm, 9);
    rig_close(r);
}

static void b14_a_failed_or_missing_target_queue_answers_so(void **state)
{
    (void)state;
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, NULL);
        rig_write(r, 1, 0, 0, 8, 9);
        uf_model_run(r->model, 1000);
        int (*end)(uf_model_nic *, uint16_t) = destroyed ? uf_model_qp_destroy : uf_model_qp_fail;
        assert_int_equal(end(r->end[1].nic, r->end[1].info.qpn), UF_OK);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), UF_EFA_REMOTE_QPN);
        assert_int_equal(r->end[1].n_received, 0);
        rig_close(r);
    }
}

/* Whenever it is: before the request is there, between two packets of the answer, or after the last of them. */
static void b14_a_read_whose_target_queue_fails_while_it_answers_hears_that_it_is_gone(void **state)
{
    (void)state;
    uint32_t gone = 0, late = 0;
    for (uint64_t at = 1000; at < 250000; at += 3000) {
        uf_model_params p = rig_quiet();
        p.gbps = 1; /* the answer's packets take their time */
        rig *r = rig_open(&p, 1, NULL);
        rig_read(r, 1, 0, 0, 16384);
        uf_model_run(r->model, at);
        rig_collect(r);
        bool under_way = rig_status(r, 1) == -1;
        if (under_way)
            assert_int_equal(uf_model_qp_fail(r->end[1].nic, r->end[1].info.qpn), UF_OK);
        rig_run(r);
        int status = rig_status(r, 1);
        assert_true(status == UF_EFA_OK || status == UF_EFA_REMOTE_QPN);
        gone += status == UF_EFA_REMOTE_QPN;
        late += under_way && status == UF_EFA_OK;
        rig_close(r);
    }
    assert_true(gone > 30);
    assert_true(late <= 5); /* all bytes were there: the completion was on its way */
}

static void b14_stale_completions_of_a_recycled_number_are_filtered_by_generation(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    rig_end *e = &r->end[0];
    uf_efa_ids old, new;
    uf_efa_cqe c;
    uint32_t slot = 0, ours = 0, stale = 0;
    uf_efa_ids_init(&old, 10, 1, 1);
    uf_efa_ids_init(&new, 10, 2, 1);
    for (uint32_t i = 0; i < 3; i++)
        rig_write(r, uf_efa_id(&old, i), 0, 0, 8, -1);
    uf_model_run(r->model, 1000);
    assert_int_equal(uf_model_qp_destroy(e->nic, e->info.qpn), UF_OK);
    uf_model_qp_options q = {
        .pd = 1, .sq_depth = 64, .rq_depth = 64, .wqe_bytes = 64, .send_cq = e->model_cq, .recv_cq = e->model_cq};
    uint16_t before = e->info.qpn;
    assert_int_equal(uf_model_qp_create(e->nic, &q, &e->info), UF_OK);
    assert_int_equal(e->info.qpn, before);
    uf_efa_sq_init(&e->sq, e->info.sq_ring, e->info.sq_doorbell, 6, 8, e->info.sq_limit, e->info.max_batch, &e->info.mmio);
    for (uint32_t i = 0; i < 3; i++)
        rig_write(r, uf_efa_id(&new, i), 0, 0, 8, -1);
    while (uf_model_step(r->model))
        continue;
    while (uf_efa_cq_poll(&e->cq, &c, 1)) {
        if (uf_efa_id_slot(&new, c.id, &slot))
            ours += c.status == UF_EFA_OK;
        else
            stale += c.status == UF_EFA_FLUSHED && uf_efa_id_slot(&old, c.id, &slot);
    }
    assert_int_equal(ours, 3);
    assert_int_equal(stale, 3);
    rig_close(r);
}

static void a_peer_that_died_or_never_lived_is_told_apart(void **state)
{
    (void)state;
    for (int heard = 0; heard < 2; heard++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, NULL);
        if (heard) {
            rig_write(r, 1, 0, 0, 8, -1);
            rig_run(r);
        }
        uf_model_nic_kill(r->end[1].nic);
        r->end[0].memory[0] = 5;
        rig_write(r, 2, 0, 0, 8, -1);
        rig_read(r, 3, 0, 0, 8);
        rig_run(r);
        int status = heard ? UF_EFA_UNRESPONSIVE : UF_EFA_UNREACHABLE;
        assert_int_equal(rig_status(r, 2), status);
        assert_int_equal(rig_status(r, 3), status);
        assert_int_equal(r->end[1].memory[0], 0);
        rig_close(r);
    }
}

static void a_reader_of_a_peer_that_dies_while_it_answers_gives_up(void **state)
{
    (void)state;
    for (uint64_t at = 1000; at < 120000; at += 3000) {
        uf_model_params p = rig_quiet();
        p.gbps = 1;
        rig *r = rig_open(&p, 1, NULL);
        rig_read(r, 1, 0, 0, 16384);
        rig_read(r, 2, 16384, 0, 16384); /* waits for the wire, with nothing under way */
        uf_model_run(r->model, at);
        uf_model_nic_kill(r->end[1].nic);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), UF_EFA_UNREACHABLE);
        assert_int_equal(rig_status(r, 2), UF_EFA_UNREACHABLE);
        rig_close(r);
    }
}

static void knob_a_wrong_qkey_may_meet_silence(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.qkey_answers = false;
    rig *r = rig_open(&p, 1, NULL);
    int status = one_write(r, r->end[1].mr.rkey, 0, 8, 0, RIG_QKEY + 1);
    assert_true(status == UF_EFA_UNRESPONSIVE);
    rig_close(r);
}

static void strict_finds_memory_deregistered_under_work(void **state)
{
    (void)state;
    for (int send = 0; send < 2; send++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, NULL);
        rig_receives(r, 1, 1, 16);
        if (send)
            rig_send(r, 1, 0, 8);
        else
            rig_write(r, 1, 0, 0, 8, -1);
        uf_model_run(r->model, 1000);
        uf_model_mr_close(r->end[0].nic, r->end[0].mr); /* the planted bug: before the completion */
        rig_run(r);
        rig_expect_trap(r, UF_MODEL_TRAP_MR_IN_USE, "closed under");
        assert_int_equal(rig_status(r, 1), UF_EFA_INVALID_LKEY);
        rig_close(r);
    }
}

static void rnr_storms_lose_and_double_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = rig_seed(); seed < rig_seed() + 30; seed++) {
        uf_model_params p;
        uint32_t taken[100] = {0};
        assert_int_equal(uf_model_profile("chaos", &p), UF_OK);
        p.rnr_storm_ppm = 400000;
        rig *r = rig_open(&p, seed, &(rig_options){.solicited = true, .rnr_retry = 7});
        rig_receives(r, 0, 200, 64);
        for (uint32_t i = 0; i < 100; i++) {
            memset(r->end[0].memory + i * 64, (int)i + 1, 64);
            if (i & 1)
                rig_send(r, i, i * 64, 64);
            else
                rig_write(r, i, i * 64, 32768 + i * 64, 64, i);
        }
        rig_run(r);
        rig_expect_no_traps(r);
        assert_int_equal(r->end[1].n_received, 100);
        for (uint32_t i = 0; i < 100; i++) {
            const uf_efa_cqe *c = &r->end[1].received[i].c;
            uint32_t at = c->op == UF_EFA_OP_SEND ? r->end[1].memory[c->id * 64] - 1u : c->imm;
            assert_int_equal(taken[at]++, 0);
            assert_int_equal(rig_status(r, i), UF_EFA_OK);
            if (!(i & 1))
                assert_memory_equal(r->end[1].memory + 32768 + i * 64, r->end[0].memory + i * 64, 64);
        }
        rig_close(r);
    }
}

/* The NIC dies at each moment of a message, also when all bytes are there and the answer is not: the sender is told in any case, once. */
static void b11_a_target_that_dies_at_any_moment_is_unresponsive(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.mtu = 256;
    p.split_ppm = 1000000;
    for (int imm = -1; imm <= 0; imm++)
        for (uint64_t at = 0; at < 20000; at += 50) {
            rig *r = rig_open(&p, at + 1, NULL);
            rig_write(r, 1, 0, 0, 8, -1);
            rig_run(r);
            rig_write(r, 2, 0, 0, 600, imm);
            uf_model_run(r->model, uf_model_now(r->model) + at);
            uf_model_nic_kill(r->end[1].nic);
            rig_run(r);
            int status = rig_status(r, 2);
            if (status != UF_EFA_UNRESPONSIVE && status != UF_EFA_OK)
                fail_msg("killed %llu ns after the doorbell: status %d", (unsigned long long)at, status);
            rig_expect_no_traps(r);
            rig_close(r);
        }
}

/* Its own queues end without a word: there is nobody to say one. */
static void b14_queues_of_a_dead_nic_end_silently(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    rig_receives(r, 0, 4, 16);
    for (uint64_t id = 1; id <= 3; id++)
        rig_write(r, id, 0, 0, 8, -1);
    uf_model_run(r->model, 1000);
    uf_model_nic_kill(r->end[0].nic);
    uf_model_nic_kill(r->end[1].nic);
    for (int i = 0; i < 2; i++)
        assert_int_equal(uf_model_qp_destroy(r->end[i].nic, r->end[i].info.qpn), UF_OK);
    rig_run(r);
    assert_int_equal(r->end[0].n_sent, 0);
    assert_int_equal(r->end[1].n_received, 0);
    rig_close(r);
}

/* Whenever it comes, each request has one end: done before, reset, or met by a queue in error. Nothing is placed afterwards. */
static void b14_a_target_that_is_reset_answers_all_that_is_outstanding(void **state)
{
    (void)state;
    uint32_t resets = 0, missing = 0, done = 0;
    for (int knob = 0; knob < 2; knob++) /* with a wire that is slow, and with payload that is placed in two steps */
        for (uint64_t at = 500; at < 60000; at += 500) {
            static unsigned char there[RIG_MEMORY];
            uf_model_params p = rig_quiet();
            p.gbps = knob ? 100 : 1;
            p.split_ppm = knob ? 1000000 : 0;
            p.split_ns = knob ? 5000 : 0;
            p.mtu = 1024;
            rig *r = rig_open(&p, at, NULL);
            memset(r->end[0].memory, 1, RIG_MEMORY);
            rig_write(r, 1, 0, 0, 8000, -1);
            rig_write(r, 2, 0, 8000, 4000, 7);
            rig_read(r, 3, 16384, 16384, 8000);
            rig_send(r, 4, 0, 64); /* no receive is posted: it is refused and tries again */
            uf_model_run(r->model, at);
            uf_model_nic_reset(r->end[1].nic);
            memcpy(there, r->end[1].memory, sizeof there);
            rig_run(r);
            assert_memory_equal(there, r->end[1].memory, sizeof there);
            for (uint64_t id = 1; id <= 4; id++) {
                int status = rig_status(r, id);
                resets += status == UF_EFA_REMOTE_ABORT;
                missing += status == UF_EFA_REMOTE_QPN;
                done += status == UF_EFA_OK;
                if (status != UF_EFA_REMOTE_ABORT && status != UF_EFA_REMOTE_QPN && status != UF_EFA_OK &&
                    status != UF_EFA_REMOTE_RNR)
                    fail_msg("reset %llu ns after the doorbell: request %llu ends with %d", (unsigned long long)at,
                             (unsigned long long)id, status);
            }
            rig_write(r, 5, 0, 0, 8, -1);
            rig_run(r);
            assert_int_equal(rig_status(r, 5), UF_EFA_REMOTE_QPN);
            rig_expect_no_traps(r);
            rig_close(r);
        }
    assert_true(resets > 100 && missing > 0 && done > 0);
}

static void b14_a_nic_that_is_reset_flushes_its_own_queues(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    for (uint64_t id = 1; id <= 3; id++)
        rig_write(r, id, 0, 0, 8, -1);
    uf_model_run(r->model, 1000);
    uf_model_nic_reset(r->end[0].nic);
    rig_run(r);
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(rig_status(r, id), UF_EFA_FLUSHED);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b11_a_target_that_dies_at_any_moment_is_unresponsive),
        cmocka_unit_test(b14_queues_of_a_dead_nic_end_silently),
        cmocka_unit_test(b10_without_a_receive_the_sender_retries_and_gives_up),
        cmocka_unit_test(b10_seven_means_for_ever),
        cmocka_unit_test(b10_knob_the_payload_may_be_there_already),
        cmocka_unit_test(b10_receives_are_used_in_their_order_and_writes_leave_their_buffers),
        cmocka_unit_test(receives_of_several_pieces_are_filled_in_turn),
        cmocka_unit_test(b10_a_message_of_many_packets_is_refused_once_an_attempt),
        cmocka_unit_test(b10_a_refused_message_of_many_packets_is_whole_when_it_is_told),
        cmocka_unit_test(strict_finds_a_receive_that_is_malformed),
        cmocka_unit_test(b11_what_the_target_refuses_only_the_sender_hears),
        cmocka_unit_test(b11_permissions_are_kept_apart),
        cmocka_unit_test(b11_a_send_longer_than_the_receive_is_refused_and_the_receive_stays),
        cmocka_unit_test(b11_a_target_of_an_older_generation_lacks_the_write),
        cmocka_unit_test(b12_a_target_must_know_the_writer_but_not_the_sender),
        cmocka_unit_test(an_address_handle_destroyed_under_work_ends_it_in_error),
        cmocka_unit_test(b14_destroying_a_queue_flushes_what_is_outstanding),
        cmocka_unit_test(b14_late_packets_of_a_dead_queue_still_arrive_with_its_bytes),
        cmocka_unit_test(b14_a_failed_or_missing_target_queue_answers_so),
        cmocka_unit_test(b14_a_read_whose_target_queue_fails_while_it_answers_hears_that_it_is_gone),
        cmocka_unit_test(b14_stale_completions_of_a_recycled_number_are_filtered_by_generation),
        cmocka_unit_test(a_peer_that_died_or_never_lived_is_told_apart),
        cmocka_unit_test(a_reader_of_a_peer_that_dies_while_it_answers_gives_up),
        cmocka_unit_test(knob_a_wrong_qkey_may_meet_silence),
        cmocka_unit_test(strict_finds_memory_deregistered_under_work),
        cmocka_unit_test(b14_a_target_that_is_reset_answers_all_that_is_outstanding),
        cmocka_unit_test(b14_a_nic_that_is_reset_flushes_its_own_queues),
        cmocka_unit_test(rnr_storms_lose_and_double_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
