/* The model's end of the rings (B1, B2, B13, B17, B19) and its strict checks, each shown to catch the bug it is for. */
#include "efa_rig.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static uf_efa_wqe sound(const rig *r, uint64_t id)
{
    uf_efa_wqe e = {0};
    uf_efa_to to = rig_to(r, id);
    uf_efa_sge local = {(uintptr_t)r->end[0].memory, 8, r->end[0].mr.lkey};
    assert_true(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_WRITE, &to, (uintptr_t)r->end[1].memory, r->end[1].mr.rkey, &local));
    return e;
}

static void b1_entries_are_fetched_in_order_and_their_slots_are_free_then(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, &(rig_options){.depth = 4, .plain = plain});
        for (uint64_t id = 1; id <= 500; id++)
            rig_write(r, id, 0, 0, 8, (int64_t)id);
        rig_run(r);
        rig_expect_no_traps(r);
        assert_int_equal(uf_model_get_stats(r->model)->wqes, 500);
        assert_int_equal(r->end[1].n_received, 500);
        for (uint32_t i = 0; i < 500; i++) /* only "fifo" keeps the order of the fetch to the end */
            assert_int_equal(r->end[1].received[i].c.imm, i + 1);
        rig_close(r);
    }
}

/* A sound entry with some bits of a word flipped or set must give this status and leave the rest alone. */
static void broken(const char *what, uint32_t word, uint64_t clear, uint64_t set, int status, bool trapped)
{
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    uf_efa_wqe e = sound(r, 5);
    memset(r->end[0].memory, 7, 8);
    e.w[word] = (e.w[word] & ~clear) | set;
    rig_post(r, &e);
    rig_write(r, 6, 0, 8, 8, -1);
    rig_run(r);
    if (rig_status(r, e.w[0] & 0xffff) != status && rig_status(r, 5) != status)
        fail_msg("%s: status %d and not %d", what, rig_status(r, 5), status);
    assert_int_equal(rig_status(r, 6), UF_EFA_OK);
    assert_int_equal(r->end[1].memory[0], 0); /* no network activity */
    if (trapped)
        rig_expect_trap(r, UF_MODEL_TRAP_MALFORMED, "entry 0");
    else
        rig_expect_no_traps(r);
    rig_close(r);
}

static void b2_each_rule_of_an_entry_is_checked(void **state)
{
    (void)state;
    const uint64_t one = 1;
    broken("meta_desc", 0, one << 23, 0, UF_EFA_QP_ERROR, true);
    broken("first", 0, one << 26, 0, UF_EFA_QP_ERROR, true);
    broken("last", 0, one << 27, 0, UF_EFA_QP_ERROR, true);
    broken("meta_extension", 0, 0, one << 22, UF_EFA_QP_ERROR, true);
    broken("ctrl2 bit 1", 0, 0, one << 25, UF_EFA_QP_ERROR, true);
    for (int bit = 29; bit < 32; bit++)
        broken("ctrl2 7:5", 0, 0, one << bit, UF_EFA_QP_ERROR, true);
    broken("ctrl3", 1, 0, one << 50, UF_EFA_QP_ERROR, true);
    broken("reserved byte", 1, 0, one << 56, UF_EFA_QP_ERROR, true);
    broken("reserved2", 2, 0, one << 32, UF_EFA_QP_ERROR, true);
    broken("reserved2 end", 3, 0, 1, UF_EFA_QP_ERROR, true);
    broken("phase", 0, 0, one << 24, UF_EFA_QP_ERROR, true);
    broken("no piece", 0, one << 48, 0, UF_EFA_QP_ERROR, true);
    broken("two pieces", 0, one << 48, 2 * one << 48, UF_EFA_QP_ERROR, true);
    broken("inline in 64 bytes", 0, 0, one << 21, UF_EFA_QP_ERROR, true);
    broken("lkey over 24 bits", 6, 0, one << 56, UF_EFA_QP_ERROR, true);
    broken("unknown ah", 1, 0, (uint64_t)99 << 32, UF_EFA_INVALID_AH, false);
    broken("unknown lkey", 6, (uint64_t)UINT32_MAX << 32, (uint64_t)500 << 32, UF_EFA_INVALID_LKEY, false);
    broken("local range", 6, UINT32_MAX, RIG_MEMORY + 1, UF_EFA_INVALID_LKEY, false);
    broken("local address", 7, UINT64_MAX, 64, UF_EFA_INVALID_LKEY, false);
    broken("lengths differ", 4, UINT32_MAX, 9, UF_EFA_LOCAL_LENGTH, false);
}

static void b2_reads_sends_and_too_long_ones_are_checked(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.max_rdma = 1024;
    p.mtu = 512;
    rig *r = rig_open(&p, 1, &(rig_options){.rnr_retry = 7});
    uf_efa_wqe e = {0};
    uf_efa_to to = rig_to(r, 1);
    uf_efa_sge two[2] = {{(uintptr_t)r->end[0].memory, 400, r->end[0].mr.lkey},
                         {(uintptr_t)r->end[0].memory, 113, r->end[0].mr.lkey}};
    rig_receives(r, 0, 4, 512);
    rig_write(r, 0, 0, 0, 1025, -1);
    assert_true(uf_efa_encode_send(&e, 8, &to, two, 2));
    rig_post(r, &e); /* 513 bytes: more than a packet */
    to.id = 2;
    two[1].bytes = 112;
    assert_true(uf_efa_encode_send(&e, 8, &to, two, 2));
    rig_post(r, &e);
    to.id = 3;
    assert_true(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_READ, &to, (uintptr_t)r->end[1].memory, r->end[1].mr.rkey, &two[0]));
    uf_efa_wqe_imm(&e, 1);
    rig_post(r, &e); /* a read with an immediate */
    rig_run(r);
    assert_int_equal(rig_status(r, 0), UF_EFA_LOCAL_LENGTH);
    assert_int_equal(rig_status(r, 1), UF_EFA_LOCAL_LENGTH);
    assert_int_equal(rig_status(r, 2), UF_EFA_OK);
    assert_int_equal(rig_status(r, 3), UF_EFA_QP_ERROR);
    rig_expect_trap(r, UF_MODEL_TRAP_MALFORMED, "a read has");
    rig_close(r);
}

static void b17_other_operations_do_not_exist(void **state)
{
    (void)state;
    for (uint64_t op = 3; op < 16; op++)
        broken("atomics and the like", 0, (uint64_t)0xf << 16, op << 16, UF_EFA_UNSUPPORTED_OP, false);
}

static void b17_a_device_without_rdma_write_refuses_it(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.can_write = false;
    rig *r = rig_open(&p, 1, NULL);
    rig_write(r, 1, 0, 0, 8, -1);
    rig_read(r, 2, 0, 0, 8);
    rig_run(r);
    assert_int_equal(rig_status(r, 1), UF_EFA_UNSUPPORTED_OP);
    assert_int_equal(rig_status(r, 2), UF_EFA_OK);
    rig_close(r);
}

static void b19_success_is_silent_where_asked_and_errors_never_are(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    uf_efa_wqe e = {0};
    uf_efa_to to = rig_to(r, 1);
    uf_efa_sge local = {(uintptr_t)r->end[0].memory, 8, r->end[0].mr.lkey};
    to.silent = 1;
    r->end[0].memory[0] = 9;
    assert_true(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_WRITE, &to, (uintptr_t)r->end[1].memory, r->end[1].mr.rkey, &local));
    rig_post(r, &e);
    to.id = 2;
    assert_true(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_WRITE, &to, (uintptr_t)r->end[1].memory, 12345, &local));
    rig_post(r, &e);
    rig_run(r);
    assert_int_equal(r->end[1].memory[0], 9);
    assert_int_equal(rig_status(r, 1), -1);
    assert_int_equal(rig_status(r, 2), UF_EFA_REMOTE_ADDRESS);
    assert_int_equal(uf_model_get_stats(r->model)->silent, 1);
    rig_close(r);
}

static void wide_entries_carry_inline_writes_and_sends(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, &(rig_options){.wqe_bytes = 128});
    unsigned char bytes[80];
    uf_efa_wqe e = {0};
    for (int i = 0; i < 80; i++)
        bytes[i] = (unsigned char)(i + 1);
    uf_efa_to to = rig_to(r, 1);
    assert_true(uf_efa_encode_write_inline(&e, &to, (uintptr_t)r->end[1].memory + 3, r->end[1].mr.rkey, bytes, 80));
    uf_efa_wqe_imm(&e, 5);
    rig_post(r, &e);
    rig_receives(r, 9, 1, 4096);
    to.id = 2;
    assert_true(uf_efa_encode_send_inline(&e, 16, &to, bytes, 71));
    rig_post(r, &e);
    rig_write(r, 3, 0, 200, 8, -1); /* a narrow entry in a wide slot */
    rig_run(r);
    rig_expect_no_traps(r);
    assert_int_equal(r->end[1].n_received, 2);
    assert_memory_equal(r->end[1].memory, bytes, 71); /* the send came last on this profile */
    assert_int_equal(r->end[1].memory[82], 80);
    assert_int_equal(rig_status(r, 3), UF_EFA_OK);
    rig_close(r);
}

/* ---- Strict checks ---- */

static void strict_finds_a_batch_over_the_limit(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    r->end[0].sq.max_batch = 40; /* the planted bug: the device said 16 */
    uf_efa_wqe e[17];
    for (uint64_t i = 0; i < 17; i++)
        e[i] = sound(r, i);
    assert_int_equal(uf_efa_sq_post(&r->end[0].sq, e, 17, 0), 17);
    rig_run(r);
    rig_expect_trap(r, UF_MODEL_TRAP_BATCH, "17 entries");
    rig_close(r);
}

static void strict_finds_a_doorbell_that_goes_back_or_stands(void **state)
{
    (void)state;
    for (uint32_t back = 0; back < 2; back++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, 1, NULL);
        rig_write(r, 1, 0, 0, 8, -1);
        rig_write(r, 2, 0, 0, 8, -1);
        uf_efa_sq_ring(&r->end[0].sq, 2 - back);
        rig_run(r);
        rig_expect_trap(r, UF_MODEL_TRAP_DOORBELL, "must move forward");
        assert_int_equal(rig_status(r, 1), UF_EFA_FLUSHED); /* the queue is in error, and says so */
        assert_int_equal(rig_status(r, 2), UF_EFA_FLUSHED);
        rig_close(r);
    }
}

static void strict_finds_a_doorbell_before_the_flush(void **state)
{
    (void)state;
    uint32_t found = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uf_model_params p = rig_quiet();
        rig *r = rig_open(&p, seed, NULL);
        uf_efa_wqe e = sound(r, 1);
        uf_efa_sq_write(&r->end[0].sq, 0, &e); /* and no flush of the write-combining buffer */
        uf_efa_sq_ring(&r->end[0].sq, 1);
        rig_run(r);
        found += uf_model_get_stats(r->model)->traps[UF_MODEL_TRAP_TORN] == 1;
        if (found == 1)
            rig_expect_trap(r, UF_MODEL_TRAP_TORN, "not flushed");
        rig_close(r);
    }
    assert_true(found > 90); /* a buffer may empty itself by chance */
}

static void strict_finds_an_entry_that_lacks_a_word(void **state)
{
    (void)state;
    for (uint32_t plain = 0; plain < 2; plain++)
        for (uint32_t missing = 1; missing < 8; missing++) { /* not word 0: the phase alone proves nothing */
            uf_model_params p = rig_quiet();
            rig *r = rig_open(&p, 1, &(rig_options){.plain = plain, .depth = 2});
            uf_efa_sq *q = &r->end[0].sq;
            for (uint32_t lap = 0; lap < 3; lap++) { /* so that the slot has held sound entries before */
                rig_write(r, 100 + lap, 0, 0, 8, -1);
                rig_run(r);
            }
            uf_efa_wqe e = sound(r, 1);
            uint64_t *slot = q->ring + 8 * (3 % 2);
            for (uint32_t i = 0; i < 8; i++)
                if (i != missing)
                    uf_efa_sq_store64(q, slot + i, i == 0 ? e.w[0] | 1u << UF_EFA_W0_PHASE_SHIFT : e.w[i]);
            uf_efa_sq_flush_stores(q);
            uf_efa_sq_ring(q, 4);
            rig_run(r);
            rig_expect_trap(r, UF_MODEL_TRAP_TORN, "words missing");
            rig_close(r);
        }
}

static void strict_finds_a_slot_written_before_its_fetch(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.whole_sq = true;
    p.max_batch = 0;
    rig *r = rig_open(&p, 1, &(rig_options){.depth = 4});
    r->end[0].sq.limit = 5; /* the planted bug: one more than the ring holds */
    for (uint64_t i = 0; i < 5; i++) {
        uf_efa_wqe e = sound(r, i);
        assert_int_equal(uf_efa_sq_post(&r->end[0].sq, &e, 1, 0), 1);
    }
    rig_run(r);
    assert_true(uf_model_get_stats(r->model)->traps[UF_MODEL_TRAP_OVERWRITE] > 0);
    assert_non_null(strstr(uf_model_trap(r->model, 0), "before the NIC had fetched"));
    rig_close(r);
}

static void b13_a_doorbell_over_more_than_the_ring_fails_the_queue(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    p.max_batch = 0;
    rig *r = rig_open(&p, 1, &(rig_options){.depth = 4, .plain = true});
    uf_mmio_store32(r->end[0].info.sq_doorbell, 5);
    rig_run(r);
    rig_expect_trap(r, UF_MODEL_TRAP_SQ_OVERRUN, "covers 5 entries");
    rig_close(r);
}

static void strict_finds_stores_beside_the_ring(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, &(rig_options){.depth = 4});
    uf_efa_sq *q = &r->end[0].sq;
    uf_efa_sq_store64(q, q->ring + 4 * 8, 1);
    uf_efa_sq_store64(q, q->ring - 1, 1);
    q->mmio->store32(q->mmio->arg, q->doorbell + 1, 1);
    assert_int_equal(uf_model_get_stats(r->model)->traps[UF_MODEL_TRAP_STRAY_STORE], 3);
    rig_expect_trap(r, UF_MODEL_TRAP_STRAY_STORE, "beside the ring");
    rig_close(r);
}

static void strict_kills_who_reads_the_ring(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        volatile const uint64_t *ring = r->end[0].info.sq_ring;
        _exit(*ring == 0 ? 0 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    rig_close(r);
}

static void b13_an_overrun_completion_queue_is_told(void **state)
{
    (void)state;
    for (int overwrites = 0; overwrites < 2; overwrites++) {
        uf_model_params p = rig_quiet();
        p.cq_overwrites = overwrites;
        rig *r = rig_open(&p, 1, &(rig_options){.cq_entries = 8});
        uf_efa_wqe e[16];
        for (uint64_t i = 0; i < 9; i++)
            e[i] = sound(r, i);
        assert_int_equal(uf_efa_sq_post(&r->end[0].sq, e, 9, 0), 9);
        while (uf_model_step(r->model)) /* nobody polls: the planted bug is a queue that is not counted on */
            continue;
        rig_expect_trap(r, UF_MODEL_TRAP_CQ_OVERRUN, "all 8 entries");
        assert_int_equal(uf_model_get_stats(r->model)->cqes_lost, 1);
        assert_int_equal(r->end[0].cq_memory[0] & 0xffff, overwrites ? 8 : 0);
        rig_close(r);
    }
}

static void b13_more_receives_than_the_ring_holds_are_told(void **state)
{
    (void)state;
    uf_model_params p = rig_quiet();
    rig *r = rig_open(&p, 1, NULL);
    uf_mmio_store32(r->end[1].info.rq_doorbell, 257);
    rig_send(r, 1, 0, 8);
    rig_run(r);
    assert_true(uf_model_get_stats(r->model)->traps[UF_MODEL_TRAP_RQ_OVERRUN] > 0);
    rig_close(r);
}

static void knob_a_device_may_look_at_all_bits_of_a_doorbell(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        uf_model_params p = rig_quiet();
        p.doorbell_32 = wide;
        rig *r = rig_open(&p, 1, &(rig_options){.depth = 4});
        uf_efa_wqe e = sound(r, 1);
        uf_efa_sq_write(&r->end[0].sq, 0, &e);
        uf_efa_sq_flush_stores(&r->end[0].sq);
        uf_efa_sq_ring(&r->end[0].sq, 0x10001);
        rig_run(r);
        assert_int_equal(rig_status(r, 1), wide ? -1 : UF_EFA_OK);
        assert_int_equal(uf_model_traps(r->model), wide);
        rig_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b1_entries_are_fetched_in_order_and_their_slots_are_free_then),
        cmocka_unit_test(b2_each_rule_of_an_entry_is_checked),
        cmocka_unit_test(b2_reads_sends_and_too_long_ones_are_checked),
        cmocka_unit_test(b17_other_operations_do_not_exist),
        cmocka_unit_test(b17_a_device_without_rdma_write_refuses_it),
        cmocka_unit_test(b19_success_is_silent_where_asked_and_errors_never_are),
        cmocka_unit_test(wide_entries_carry_inline_writes_and_sends),
        cmocka_unit_test(strict_finds_a_batch_over_the_limit),
        cmocka_unit_test(strict_finds_a_doorbell_that_goes_back_or_stands),
        cmocka_unit_test(strict_finds_a_doorbell_before_the_flush),
        cmocka_unit_test(strict_finds_an_entry_that_lacks_a_word),
        cmocka_unit_test(strict_finds_a_slot_written_before_its_fetch),
        cmocka_unit_test(b13_a_doorbell_over_more_than_the_ring_fails_the_queue),
        cmocka_unit_test(strict_finds_stores_beside_the_ring),
        cmocka_unit_test(strict_kills_who_reads_the_ring),
        cmocka_unit_test(b13_an_overrun_completion_queue_is_told),
        cmocka_unit_test(b13_more_receives_than_the_ring_holds_are_told),
        cmocka_unit_test(knob_a_device_may_look_at_all_bits_of_a_doorbell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
