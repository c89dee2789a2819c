/* EFA's formats and rings alone: the golden encodings, every field's limit, laps and phases, back-pressure, batches, lanes of a
 * completion queue, stale request ids, statuses. */
#include "fabric/efa/queue.h"
#include "fabric/efa/status.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

_Static_assert(sizeof(uf_efa_sq) <= 192 && offsetof(uf_efa_sq, reserved) == 64 && offsetof(uf_efa_sq, completed) == 128,
               "posters, completer and constants are on lines of their own");

enum { SHIFT = 3, DEPTH = 1 << SHIFT };

static const uf_efa_to golden_to = {.id = 0x1122334455667788, .qpn = 0x123, .ah = 7, .qkey = 0x1a2b3c4d};
static const uf_efa_sge golden_local = {.addr = 0x7f5566778800, .bytes = 0x2000, .lkey = 0xabcdef};

static uf_efa_wqe write_named(uint64_t id)
{
    uf_efa_wqe e = {0};
    uf_efa_to to = golden_to;
    to.id = id;
    assert_true(uf_efa_encode_rdma(&e, UF_EFA_WQE_WORDS, UF_EFA_OP_WRITE, &to, 1, 2, &golden_local));
    return e;
}

static void v1_write_with_immediate_has_the_golden_words(void **state)
{
    (void)state;
    static const uint64_t golden[8] = {0x000101231d927788, 0x00000007deadbeef, 0x000000001a2b3c4d, 0x1122334455660000,
                                       0xcafe000100002000, 0x00007f0011223344, 0x00abcdef00002000, 0x00007f5566778800};
    uint64_t ring[2 * 8] = {0};
    uint32_t doorbell = 0;
    uf_efa_sq q;
    uf_efa_wqe e = {0};
    assert_true(uf_efa_encode_write_imm(&e, 8, &golden_to, 0x7f0011223344, 0xcafe0001, &golden_local, 0xdeadbeef));
    uf_efa_sq_init(&q, ring, &doorbell, 0, 8, 1, 0, NULL); /* depth 1: the second entry is on the second lap, phase 1 */
    assert_int_equal(uf_efa_sq_post_owned(&q, &e, 1, 0), 1);
    uf_efa_sq_complete(&q, 1);
    assert_int_equal(uf_efa_sq_post_owned(&q, &e, 1, 0), 1);
    assert_memory_equal(ring, golden, sizeof(golden));
    assert_int_equal(doorbell, 2);
}

static void v2_unsolicited_immediate_decodes_and_encodes(void **state)
{
    (void)state;
    const uint64_t golden[4] = {0x20000045ad00ffff, 0xdeadbeef01230007, 0, 0};
    uint64_t again[4];
    uf_efa_cqe c;
    uf_efa_decode_cqe(&c, golden, 1);
    assert_int_equal(c.id, 0xffff);
    assert_int_equal(c.queue, UF_EFA_QUEUE_RECV);
    assert_int_equal(c.op, UF_EFA_OP_WRITE);
    assert_true(c.unsolicited && c.has_imm && c.phase && c.status == 0);
    assert_int_equal(c.qpn, 0x45);
    assert_int_equal(c.bytes, 0x2000);
    assert_int_equal(c.ah, 7);
    assert_int_equal(c.source, 0x123);
    assert_int_equal(c.imm, 0xdeadbeef);
    uf_efa_encode_rx_cqe(again, &c);
    assert_memory_equal(again, golden, sizeof(golden));
}

static void v3_sent_completion_decodes_and_encodes(void **state)
{
    (void)state;
    const uint64_t golden[4] = {0x5566004523007788, 0x0000000011223344, 0, 0};
    uint64_t again[4];
    uf_efa_cqe c;
    uf_efa_decode_cqe(&c, golden, 1);
    assert_true(c.id == golden_to.id && c.qpn == 0x45 && c.status == 0 && c.phase == 1);
    assert_int_equal(c.queue, UF_EFA_QUEUE_SEND);
    assert_int_equal(c.op, UF_EFA_OP_WRITE);
    uf_efa_encode_tx_cqe(again, &c);
    assert_memory_equal(again, golden, sizeof(golden));
}

static void v4_receive_descriptor_has_the_golden_words(void **state)
{
    (void)state;
    const uf_efa_sge sge = {.addr = 0x7f5566778800, .bytes = 8928, .lkey = 0xabcdef};
    uint64_t w[2];
    assert_true(uf_efa_encode_rx(w, 0x11, &sge, 1, 1));
    assert_true(w[0] == 0x00007f5566778800 && w[1] == 0xc0abcdef22e00011);
    assert_true(uf_efa_encode_rx(w, 0x11, &sge, 1, 0) && w[1] >> 62 == 1);
    assert_true(uf_efa_encode_rx(w, 0x11, &sge, 0, 1) && w[1] >> 62 == 2);
}

static void flag_bytes_are_the_memorable_ones(void **state)
{
    (void)state;
    uint64_t w[4];
    uf_efa_cqe c = {.phase = 1, .op = UF_EFA_OP_WRITE};
    uf_efa_encode_tx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x23);
    c.op = UF_EFA_OP_READ;
    uf_efa_encode_tx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x13);
    c.op = UF_EFA_OP_SEND;
    uf_efa_encode_tx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x03);
    uf_efa_encode_rx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x05);
    c.has_imm = 1;
    uf_efa_encode_rx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x0d);
    c.op = UF_EFA_OP_WRITE;
    uf_efa_encode_rx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x2d);
    c.phase = 0;
    uf_efa_encode_rx_cqe(w, &c);
    assert_int_equal(w[0] >> 24 & 0xff, 0x2c);
}

static void every_field_at_its_largest_stays_in_its_bits(void **state)
{
    (void)state;
    const uf_efa_to all = {.id = UINT64_MAX, .qpn = 0xffff, .ah = 0xffff, .qkey = UINT32_MAX, .burst = 1};
    const uf_efa_sge local = {.addr = UINT64_MAX, .bytes = UINT32_MAX, .lkey = UF_EFA_LKEY_MAX};
    uf_efa_wqe e = {0};
    assert_true(uf_efa_encode_write_imm(&e, 8, &all, UINT64_MAX, UINT32_MAX, &local, UINT32_MAX));
    assert_true(e.w[0] == 0x0001ffff1c92ffff && e.w[1] == 0x0001ffffffffffff && e.w[2] == 0xffffffff);
    assert_true(e.w[3] == 0xffffffffffff0000 && e.w[4] == UINT64_MAX && e.w[5] == UINT64_MAX);
    assert_true(e.w[6] == 0x00ffffffffffffff && e.w[7] == UINT64_MAX);
    const uf_efa_to none = {.silent = 1};
    const uf_efa_sge empty = {0};
    assert_true(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_READ, &none, 0, 0, &empty));
    assert_true(e.w[0] == 0x000100000c810000); /* read, one piece, no completion wanted */
    for (int i = 1; i < 8; i++)
        assert_true(e.w[i] == 0);
}

static void what_does_not_fit_its_field_is_refused(void **state)
{
    (void)state;
    const uf_efa_sge bad = {.bytes = 8, .lkey = UF_EFA_LKEY_MAX + 1}, good = {.bytes = 8, .lkey = 1}, longest = {.bytes = 0xffff},
                     longer = {.bytes = 0x10000};
    const uf_efa_sge three[3] = {good, good, good}, second_bad[2] = {good, bad};
    unsigned char bytes[81] = {0};
    uint64_t w[2];
    uf_efa_wqe e = {0};
    assert_false(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_WRITE, &golden_to, 0, 0, &bad));
    assert_false(uf_efa_encode_write_imm(&e, 8, &golden_to, 0, 0, &bad, 0));
    assert_false(uf_efa_encode_rdma(&e, 8, UF_EFA_OP_SEND, &golden_to, 0, 0, &good));
    assert_false(uf_efa_encode_rdma(&e, 8, 3, &golden_to, 0, 0, &good));
    assert_false(uf_efa_encode_rdma(&e, 9, UF_EFA_OP_WRITE, &golden_to, 0, 0, &good));
    assert_false(uf_efa_encode_send(&e, 8, &golden_to, three, 0));
    assert_false(uf_efa_encode_send(&e, 8, &golden_to, three, 3));
    assert_false(uf_efa_encode_send(&e, 8, &golden_to, second_bad, 2));
    assert_true(uf_efa_encode_send(&e, 8, &golden_to, three, 2));
    assert_true(uf_efa_encode_send_inline(&e, 8, &golden_to, bytes, 32));
    assert_false(uf_efa_encode_send_inline(&e, 8, &golden_to, bytes, 33));
    assert_true(uf_efa_encode_send_inline(&e, 16, &golden_to, bytes, 80));
    assert_false(uf_efa_encode_send_inline(&e, 16, &golden_to, bytes, 81));
    assert_true(uf_efa_encode_write_inline(&e, &golden_to, 0, 0, bytes, 80));
    assert_false(uf_efa_encode_write_inline(&e, &golden_to, 0, 0, bytes, 81));
    assert_false(uf_efa_encode_rx(w, 0, &bad, 1, 1));
    assert_true(uf_efa_encode_rx(w, 0, &longest, 1, 1));
    assert_false(uf_efa_encode_rx(w, 0, &longer, 1, 1));
}

static void inline_bytes_are_at_their_offsets(void **state)
{
    (void)state;
    unsigned char bytes[80];
    uf_efa_wqe e = {0};
    for (int i = 0; i < 80; i++)
        bytes[i] = (unsigned char)(i + 1);
    for (uint32_t n = 0; n <= 80; n++) {
        unsigned char expected[96] = {0};
        memcpy(expected, bytes, n);
        assert_true(uf_efa_encode_write_inline(&e, &golden_to, 5, 6, bytes, n));
        assert_memory_equal((unsigned char *)e.w + 48, expected, 80);
        assert_int_equal(e.w[0] >> 48, n);
        assert_int_equal(e.w[0] >> 16 & 0xff, 0xa2);
        assert_true(uf_efa_encode_send_inline(&e, 16, &golden_to, bytes, n));
        assert_memory_equal((unsigned char *)e.w + 32, expected, 96);
        assert_int_equal(e.w[0] >> 16 & 0xff, 0xa0);
    }
    assert_true(uf_efa_encode_send(&e, 8, &golden_to, &golden_local, 1) && (e.w[0] >> 16 & 0xff) == 0x80);
    assert_true(e.w[6] == 0 && e.w[7] == 0);
}

static void long_write_lengths_use_the_high_half_only_where_it_means_length(void **state)
{
    (void)state;
    uint64_t w[4];
    uf_efa_cqe c = {.op = UF_EFA_OP_WRITE, .has_imm = 1, .bytes = 0x40000000, .ah = 1}, d;
    uf_efa_encode_rx_cqe(w, &c);
    uf_efa_decode_cqe(&d, w, 1);
    assert_int_equal(d.bytes, 0x40000000);
    uf_efa_decode_cqe(&d, w, 0); /* the 16-byte entry has no high half */
    assert_int_equal(d.bytes, 0);
    w[1] |= UF_EFA_AH_UNKNOWN; /* a GID lies there */
    uf_efa_decode_cqe(&d, w, 1);
    assert_int_equal(d.bytes, 0);
}

static void any_completion_decodes(void **state)
{
    (void)state;
    uint64_t w[4] = {0}, seed = 1;
    uf_efa_cqe c;
    for (int i = 0; i < 100000; i++) {
        for (int j = 0; j < 4; j++)
            w[j] = seed = seed * 6364136223846793005u + 1442695040888963407u;
        uf_efa_decode_cqe(&c, w, i & 1);
        assert_true(c.op < 8 && c.queue < 4 && c.phase < 2 && c.has_imm < 2);
    }
}

static void phases_flip_each_lap_and_positions_wrap(void **state)
{
    (void)state;
    uint64_t ring[DEPTH * 8];
    uint32_t doorbell = 0;
    uf_efa_sq q;
    memset(ring, 0, sizeof(ring));
    uf_efa_sq_init(&q, ring, &doorbell, SHIFT, 8, DEPTH, 0, NULL);
    q.reserved = q.rung = q.completed = (uint32_t)-12;
    q.turn = (uint32_t)-12;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t position = (uint32_t)-12 + i;
        uf_efa_wqe e = write_named(i);
        assert_int_equal(uf_efa_sq_post(&q, &e, 1, 0), 1);
        const uint64_t *slot = ring + (position % DEPTH) * 8;
        assert_int_equal(slot[0] & 0xffff, i);
        assert_int_equal(slot[0] >> UF_EFA_W0_PHASE_SHIFT & 1, position / DEPTH & 1);
        assert_int_equal(doorbell, position + 1);
        uf_efa_sq_complete(&q, 1);
    }
}

static void full_ring_says_again_and_does_nothing(void **state)
{
    (void)state;
    uint64_t ring[DEPTH * 8] = {0}, before[DEPTH * 8];
    uint32_t doorbell = 0, position;
    uf_efa_sq q;
    uf_efa_wqe e[DEPTH + 1];
    for (int i = 0; i <= DEPTH; i++)
        e[i] = write_named((uint64_t)i + 1);
    for (int owned = 0; owned < 2; owned++) {
        uint32_t (*post)(uf_efa_sq *, const uf_efa_wqe *, uint32_t, int) = owned ? uf_efa_sq_post_owned : uf_efa_sq_post;
        uf_efa_sq_init(&q, ring, &doorbell, SHIFT, 8, DEPTH - 1, 0, NULL); /* this device takes depth - 1 */
        assert_int_equal(q.max_batch, DEPTH - 1);
        assert_int_equal(post(&q, e, DEPTH + 1, 1), DEPTH - 1);
        assert_int_equal(doorbell, DEPTH - 1); /* the full ring was rung although more was to follow */
        memcpy(before, ring, sizeof(ring));
        assert_int_equal(post(&q, e, 1, 0), 0);
        assert_false(uf_efa_sq_reserve(&q, 1, &position));
        assert_memory_equal(before, ring, sizeof(ring));
        assert_int_equal(doorbell, DEPTH - 1);
        uf_efa_sq_complete(&q, 2);
        assert_int_equal(uf_efa_sq_room(&q), 2);
        assert_int_equal(post(&q, e, 3, 0), 2);
        assert_int_equal(doorbell, DEPTH + 1);
    }
}

typedef struct bells {
    uint32_t values[64], n, unflushed;
} bells;

static void see_word(void *arg, uint64_t *address, uint64_t value)
{
    ((bells *)arg)->unflushed++;
    *address = value;
}

static void see_flush(void *arg)
{
    ((bells *)arg)->unflushed = 0;
}

static void see_bell(void *arg, uint32_t *address, uint32_t value)
{
    bells *b = arg;
    assert_int_equal(b->unflushed, 0);
    b->values[b->n++] = value;
    *address = value;
}

static void no_two_doorbells_are_more_than_a_batch_apart(void **state)
{
    (void)state;
    uint64_t ring[16 * 8];
    uint32_t doorbell = 0;
    uf_efa_wqe e[16];
    for (uint64_t i = 0; i < 16; i++)
        e[i] = write_named(i);
    for (int owned = 0; owned < 2; owned++) {
        uint32_t (*post)(uf_efa_sq *, const uf_efa_wqe *, uint32_t, int) = owned ? uf_efa_sq_post_owned : uf_efa_sq_post;
        bells b = {.n = 0};
        uf_efa_mmio mmio = {see_word, see_flush, see_bell, &b};
        uf_efa_sq q;
        uf_efa_sq_init(&q, ring, &doorbell, 4, 8, 16, 3, &mmio);
        assert_int_equal(post(&q, e, 2, 1), 2);
        assert_int_equal(b.n, 0); /* more is to follow */
        assert_int_equal(post(&q, e, 2, 1), 2);
        assert_int_equal(b.n, 1);
        assert_int_equal(post(&q, e, 12, 0), 12);
        uint32_t last = 0;
        for (uint32_t i = 0; i < b.n; i++) {
            assert_in_range(b.values[i] - last, 1, 3);
            last = b.values[i];
        }
        assert_int_equal(last, 16);
    }
}

static void flush_rings_once_for_what_waits(void **state)
{
    (void)state;
    uint64_t ring[16 * 8];
    uint32_t doorbell = 0;
    bells b = {.n = 0};
    uf_efa_mmio mmio = {see_word, see_flush, see_bell, &b};
    uf_efa_sq q;
    uf_efa_wqe e = write_named(1);
    uf_efa_sq_init(&q, ring, &doorbell, 4, 8, 16, 0, &mmio);
    uf_efa_sq_flush(&q);
    assert_int_equal(b.n, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(uf_efa_sq_post(&q, &e, 1, 1), 1);
    uf_efa_sq_flush(&q);
    uf_efa_sq_flush(&q);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.values[0], 3);
}

static void narrow_entry_clears_the_rest_of_a_wide_slot(void **state)
{
    (void)state;
    uint64_t ring[2 * 16];
    uint32_t doorbell = 0;
    uf_efa_sq q;
    uf_efa_wqe e = write_named(1);
    memset(ring, 0xa5, sizeof(ring));
    uf_efa_sq_init(&q, ring, &doorbell, 1, 16, 2, 0, NULL);
    assert_int_equal(uf_efa_sq_post(&q, &e, 1, 0), 1);
    for (int i = 8; i < 16; i++)
        assert_true(ring[i] == 0);
    assert_true(ring[16] == 0xa5a5a5a5a5a5a5a5);
}

static void receive_queue_fills_wraps_and_refuses(void **state)
{
    (void)state;
    uint64_t ring[2 * 2];
    uint32_t doorbell = 0;
    uf_efa_rq q;
    const uf_efa_sge sge = {.addr = 64, .bytes = 32, .lkey = 3};
    uf_efa_rq_init(&q, ring, &doorbell, 1);
    q.posted = q.completed = 0xffff;
    assert_true(uf_efa_rq_post(&q, 1, &sge) && uf_efa_rq_post(&q, 2, &sge));
    assert_false(uf_efa_rq_post(&q, 3, &sge));
    uf_efa_rq_ring(&q);
    assert_int_equal(doorbell, 1);         /* 16 bits */
    assert_int_equal(ring[3] & 0xffff, 1); /* position 0xffff is slot 1 */
    q.completed++;
    assert_true(uf_efa_rq_post(&q, 3, &sge));
    assert_int_equal(ring[3] & 0xffff, 3);
}

static void put_cqe(uint64_t *ring, uint32_t position, uint64_t id)
{
    uf_efa_cqe c = {.id = id, .op = UF_EFA_OP_WRITE, .phase = (uint8_t)((position >> SHIFT & 1) ^ 1)};
    uf_efa_encode_tx_cqe(ring + (position % DEPTH) * 4, &c);
}

static void lanes_see_a_prefix_and_the_owner_takes_it(void **state)
{
    (void)state;
    uint64_t ring[DEPTH * 4] = {0};
    uf_efa_cq q;
    uf_efa_cqe c, batch[DEPTH];
    uf_efa_cq_init(&q, ring, SHIFT, 4);
    uint32_t arrived = 0;
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 5; i++, arrived++)
            put_cqe(ring, arrived, arrived);
        for (uint32_t lane = 0; lane < DEPTH; lane++) { /* eight lanes, five arrivals */
            int there = uf_efa_cq_peek(&q, q.consumed + lane, &c);
            assert_int_equal(there, lane < 5);
            if (there)
                assert_int_equal(c.id, q.consumed + lane);
        }
        if (round & 1) {
            uf_efa_cq_advance(&q, 5);
        } else {
            assert_int_equal(uf_efa_cq_poll(&q, batch, 2), 2);
            assert_int_equal(uf_efa_cq_poll(&q, batch, DEPTH), 3);
            assert_int_equal(batch[2].id, arrived - 1);
        }
        assert_int_equal(uf_efa_cq_poll(&q, batch, DEPTH), 0);
    }
}

static void stale_ids_of_a_recycled_queue_are_told_apart(void **state)
{
    (void)state;
    uf_efa_ids old, new, wide;
    uint32_t slot;
    uf_efa_ids_init(&old, 12, 15, 0);
    uf_efa_ids_init(&new, 12, 16, 0); /* four bits of generation: the sixteenth looks like the first */
    assert_int_equal(uf_efa_id(&old, 4095), 0xffff);
    assert_true(uf_efa_id_slot(&old, 0xffff, &slot) && slot == 4095);
    assert_false(uf_efa_id_slot(&new, 0xffff, &slot));
    assert_true(uf_efa_id_slot(&new, uf_efa_id(&new, 7), &slot) && slot == 7);
    uf_efa_ids_init(&wide, 12, 0x123456789, 1);
    assert_true(uf_efa_id(&wide, 5) == (0x123456789ull << 12 | 5));
    assert_true(uf_efa_id_slot(&wide, uf_efa_id(&wide, 5), &slot) && slot == 5);
    assert_false(uf_efa_id_slot(&wide, uf_efa_id(&wide, 5) ^ (uint64_t)1 << 63, &slot));
    uf_efa_ids_init(&new, 16, 3, 0); /* no bit left: nothing is ever stale */
    assert_true(uf_efa_id_slot(&new, 0xffff, &slot) && slot == 0xffff);
}

static void every_status_has_a_sentence_and_a_code(void **state)
{
    (void)state;
    for (unsigned s = 0; s < 300; s++) {
        int defined = s <= 15 || s == 18;
        assert_non_null(uf_efa_status_name(s));
        const char *remedy = uf_efa_status_remedy(s);
        assert_true(remedy[strlen(remedy) - 1] == '.');
        assert_int_equal(strcmp(uf_efa_status_name(s), "unknown status") == 0, !defined);
        assert_true(s == 0 ? uf_efa_status_code(s) == UF_OK : uf_efa_status_code(s) < 0);
    }
    assert_int_equal(uf_efa_status_code(UF_EFA_UNRESPONSIVE), UF_EPEER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v1_write_with_immediate_has_the_golden_words),
        cmocka_unit_test(v2_unsolicited_immediate_decodes_and_encodes),
        cmocka_unit_test(v3_sent_completion_decodes_and_encodes),
        cmocka_unit_test(v4_receive_descriptor_has_the_golden_words),
        cmocka_unit_test(flag_bytes_are_the_memorable_ones),
        cmocka_unit_test(every_field_at_its_largest_stays_in_its_bits),
        cmocka_unit_test(what_does_not_fit_its_field_is_refused),
        cmocka_unit_test(inline_bytes_are_at_their_offsets),
        cmocka_unit_test(long_write_lengths_use_the_high_half_only_where_it_means_length),
        cmocka_unit_test(any_completion_decodes),
        cmocka_unit_test(phases_flip_each_lap_and_positions_wrap),
        cmocka_unit_test(full_ring_says_again_and_does_nothing),
        cmocka_unit_test(no_two_doorbells_are_more_than_a_batch_apart),
        cmocka_unit_test(flush_rings_once_for_what_waits),
        cmocka_unit_test(narrow_entry_clears_the_rest_of_a_wide_slot),
        cmocka_unit_test(receive_queue_fills_wraps_and_refuses),
        cmocka_unit_test(lanes_see_a_prefix_and_the_owner_takes_it),
        cmocka_unit_test(stale_ids_of_a_recycled_queue_are_told_apart),
        cmocka_unit_test(every_status_has_a_sentence_and_a_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
