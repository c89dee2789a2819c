/* test_order_protocol.c - the promises of docs/ordering.md one at a time, over a wire that keeps order; tests/model takes it away. */
#include "order_pair.h"

/* G1, rule 1: the common case is one work request and nothing else. */
static void weak_add_is_one_write(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(4096, 511);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    assert_int_equal(p->side[0].n_wire, 1);
    assert_int_equal(p->side[0].wire[0].verb, UF_VERB_WRITE_IMM);
    assert_int_equal(p->side[0].wire[0].imm, uf_imm_add(0, 7, 511));
    pair_move(p);
    assert_int_equal(p->side[0].posted, 1);
    assert_int_equal(p->side[1].posted, 0);
    assert_int_equal(p->side[1].word, 511);
    pair_destroy(p);
}

/* Rule 8: credits come back in at most one control write per half window. */
static void controls_are_few(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.credits = 128;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(64, 1);
    for (uint32_t i = 0; i < 6400; i++) {
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        pair_deliver(p, 0);
        pair_deliver(p, 1);
    }
    assert_int_equal(p->side[1].word, 6400);
    assert_true(uf_order_counters_get(p->side[1].order)->control_wrs <= 6400 / 64);
    assert_int_equal(uf_order_counters_get(p->side[0].order)->data_wrs, 6400);
    pair_destroy(p);
}

/* C4: a signal on a put of nothing is delivered; G3: a strong one with nothing before it costs no more than a weak one. */
static void put_of_nothing_still_signals(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(0, 3);
    op.flags = UF_STRONG;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[0].posted, 1);
    assert_int_equal(p->side[1].word, 3);
    op.op = UF_ATOMIC_SET;
    op.operand = 1ull << 40;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].n_applied, 2);
    assert_true(p->side[1].applied[1].operand == 1ull << 40 && p->side[1].applied[1].op == UF_ATOMIC_SET);
    pair_destroy(p);
}

/* C5, rule 6: many puts, then one strong signal: it waits for their CQEs, and a weak one behind it does not. */
static void strong_signal_waits_and_nothing_else_does(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op put = pair_put_signal(64, 0), strong = pair_signal(1000), weak = pair_put_signal(64, 5);
    put.kind = UF_ORDER_PUT;
    strong.flags = UF_STRONG;
    p->stop_sent = true;
    for (int i = 0; i < 10; i++)
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &put), UF_OK);
    uf_wr writes[10];
    memcpy(writes, p->side[0].wire, sizeof writes);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &strong), UF_OK);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &weak), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].word, 5);
    p->stop_sent = false;
    for (int i = 0; i < 10; i++)
        uf_order_sent(p->side[0].order, writes[i].cookie, UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].word, 1005);
    assert_true(p->side[1].applied[1].strong);
    assert_int_equal(uf_order_counters_get(p->side[0].order)->held_strong, 1);
    pair_destroy(p);
}

/* Rule 6: in a UF_ORDERED context strong signals never wait at the sender. */
static void ordered_context_never_holds_a_strong_signal(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 16, .ordered = true};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op put = pair_put_signal(64, 0), strong = pair_signal(1000);
    put.kind = UF_ORDER_PUT;
    strong.flags = UF_STRONG;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &put), UF_OK);
    pair_move(p); /* the lane is granted */
    p->stop_sent = true;
    for (int i = 0; i < 10; i++)
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &put), UF_OK);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &strong), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].word, 1000);
    assert_int_equal(uf_order_counters_get(p->side[0].order)->held_strong, 0);
    pair_destroy(p);
}

/* C15, C16: a put of more parts than one WR takes has one signal; of more parts than the window, too. */
static void split_put_has_one_signal(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    const uint64_t sizes[] = {4097, 8 * 4096, 9 * 4096, 100 * 4096 + 1};
    for (uint32_t i = 0; i < 4; i++) {
        uf_order_op op = pair_put_signal(sizes[i], 1);
        op.user = i + 1;
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        pair_move(p);
        assert_int_equal(p->side[1].n_applied, i + 1);
        assert_int_equal(p->side[0].n_done, i + 1);
        assert_true(p->side[0].done[i].user == i + 1u && p->side[0].done[i].status == UF_OK);
    }
    pair_destroy(p);
}

/* Rule 10, C35: a network that refuses for a while loses nothing; a full queue is UF_EAGAIN and nothing happened. */
static void back_pressure_is_never_an_error(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uint64_t accepted = 0, rc = 0;
    p->refuse = true;
    for (uint32_t i = 0; i < 1000; i++) {
        uf_order_op op = pair_put_signal(64, 1);
        int r = uf_order_submit(p->side[0].order, lane, &op);
        assert_true(r == UF_OK || r == UF_EAGAIN);
        accepted += r == UF_OK;
        rc += r == UF_EAGAIN;
    }
    assert_true(accepted > 0 && accepted <= c.queue_ops && rc > 0);
    p->refuse = false;
    pair_move(p);
    assert_int_equal(p->side[1].word, accepted);
    pair_destroy(p);
}

/* Rule 9: a remote mark is not reported before the signal is applied, a local one may be. */
static void remote_mark_waits_until_applied(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.imm_placed = false;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(64, 1);
    uf_order_mark local, remote, nothing;
    uf_order_mark_set(p->side[0].order, lane, true, &nothing);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &nothing), UF_OK);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    uf_order_mark_set(p->side[0].order, lane, false, &local);
    uf_order_mark_set(p->side[0].order, lane, true, &remote);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &local), UF_EAGAIN);
    uf_order_sent(p->side[0].order, p->side[0].wire[0].cookie, UF_OK);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &local), UF_OK);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &remote), UF_EAGAIN);
    uf_order_imm(p->side[1].order, 0, 0, p->side[0].wire[0].imm);
    memmove(p->side[0].wire, p->side[0].wire + 1, --p->side[0].n_wire * sizeof(uf_wr));
    pair_move(p);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &remote), UF_OK);
    pair_destroy(p);
}

static void fetching_atomic_returns_the_old_value(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    p->old = 0xfeedfacecafebeef;
    for (uint32_t i = 0; i < 20; i++) {
        uf_order_op op = {.kind = UF_ORDER_ATOMIC,
                          .op = UF_ATOMIC_COMPARE_SWAP,
                          .width = 4,
                          .signal_address = 0x123456789abc,
                          .operand = i,
                          .compare = ~0ull,
                          .user = i + 1};
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    }
    pair_move(p);
    assert_int_equal(p->side[0].n_done, 20);
    assert_true(p->side[0].done[19].value == p->old && p->side[1].applied[0].compare == ~0ull);
    assert_true(p->side[1].applied[0].width == 4 && p->side[1].applied[0].address == 0x123456789abc);
    pair_destroy(p);
}

/* C1: 129 lanes to one peer, each with 1024 operations under way at once. */
static void many_lanes_with_deep_queues_to_one_peer(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.window = 1024;
    c.tx_depth = 32768;
    c.queue_ops = 1u << 18;
    pair *p = pair_create(&c);
    static uf_order_ctx ctx[129];
    uf_order_lane *lanes[129];
    for (uint32_t k = 0; k < 129; k++) {
        ctx[k] = (uf_order_ctx){.window = 1024};
        lanes[k] = pair_lane(p, &ctx[k]);
    }
    for (uint32_t i = 0; i < 1024; i++)
        for (uint32_t k = 0; k < 129; k++) {
            uf_order_op op = pair_put_signal(8, i % 4 ? 1 : 1ull << 32);
            op.flags = i % 8 == 1 ? UF_STRONG : 0;
            int rc;
            while ((rc = uf_order_submit(p->side[0].order, lanes[k], &op)) == UF_EAGAIN)
                pair_move(p);
            assert_int_equal(rc, UF_OK);
        }
    for (uint32_t i = 0; i < 4000 && p->side[1].n_applied < 129 * 1024; i++)
        pair_move(p);
    assert_int_equal(p->side[1].n_applied, 129 * 1024);
    assert_true(p->side[1].word == 129ull * (768 + 256 * (1ull << 32)));
    for (uint32_t k = 0; k < 129; k++)
        while (uf_order_lane_close(p->side[0].order, lanes[k]) == UF_EAGAIN)
            pair_move(p);
    pair_move(p);
    assert_false(uf_order_busy(p->side[0].order));
    pair_destroy(p);
}

/* Rule 5: no window left at the peer ends that lane, with the numbers, and no other; closing gives one back. */
static void refused_lane_names_the_numbers(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.max_lanes = 1;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *first = pair_lane(p, &ctx), *second = pair_lane(p, &ctx), *third = pair_lane(p, &ctx);
    uf_order_op op = pair_signal(1000), weak = pair_signal(1);
    op.user = 1;
    assert_int_equal(uf_order_submit(p->side[0].order, first, &op), UF_OK);
    pair_move(p);
    op.user = 2;
    assert_int_equal(uf_order_submit(p->side[0].order, second, &op), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[0].failed, UF_ENOMEM);
    assert_int_equal(p->side[0].n_done, 2);
    assert_int_equal(p->side[0].done[1].status, UF_ENOMEM);
    assert_int_equal(uf_order_submit(p->side[0].order, second, &weak), UF_ENOMEM);
    assert_int_equal(uf_order_submit(p->side[0].order, first, &op), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].word, 2000);
    assert_int_equal(uf_order_lane_close(p->side[0].order, second), UF_OK);
    while (uf_order_lane_close(p->side[0].order, first) == UF_EAGAIN)
        pair_move(p);
    pair_move(p);
    assert_int_equal(uf_order_submit(p->side[0].order, third, &op), UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].word, 3000);
    pair_destroy(p);
}

/* C23: what is queued and in flight to a dead peer ends with its error, once; late CQEs are no news. */
static void failed_flow_ends_everything_once(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    p->stop_imm = p->stop_sent = true;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 60; i++) {
        uf_order_op op = pair_put_signal(64, i % 2 ? 1 : 1000);
        op.user = i + 1;
        n += uf_order_submit(p->side[0].order, lane, &op) == UF_OK;
    }
    uf_order_mark mark;
    uf_order_mark_set(p->side[0].order, lane, true, &mark);
    uf_order_fail_flow(p->side[0].order, 1, UF_EPEER);
    assert_int_equal(p->side[0].n_done, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(p->side[0].done[i].status, UF_EPEER);
    assert_int_equal(p->side[0].failed, UF_EPEER);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &mark), UF_EPEER);
    assert_int_equal(uf_order_sent(p->side[0].order, p->side[0].wire[0].cookie, UF_OK), UF_OK);
    assert_int_equal(p->side[0].n_done, n);
    assert_int_equal(uf_order_lane_close(p->side[0].order, lane), UF_OK);
    pair_destroy(p);
}

static void nonsense_from_a_peer_ends_its_flow_with_the_bytes(void **state)
{
    (void)state;
    const uint32_t imms[] = {uf_imm_sequence(0, 5, 0), 3u << 30, uf_imm_sequence(0, 0, 1) | 1};
    for (uint32_t i = 0; i < 3; i++) {
        uf_order_config c = pair_config();
        pair *p = pair_create(&c);
        assert_int_equal(uf_order_imm(p->side[0].order, 1, 0, imms[i]), UF_EINTERNAL);
        assert_non_null(strstr(uf_error_message(), "PE 1"));
        assert_int_equal(p->side[0].failed, UF_EINTERNAL);
        assert_int_equal(uf_order_imm(p->side[0].order, 1, 0, uf_imm_add(0, 1, 1)), UF_EINTERNAL);
        pair_destroy(p);
    }
    for (uint32_t type = 0; type < 128; type++) {
        uf_order_config c = pair_config();
        pair *p = pair_create(&c);
        uf_order_wire w = {.type = (uint8_t)type, .lane = 9, .aux = 900};
        unsigned char bytes[UF_MESSAGE_BYTES];
        uf_wire_encode(&w, bytes);
        assert_int_equal(uf_order_message(p->side[0].order, 1, bytes), UF_EINTERNAL);
        assert_non_null(strstr(uf_error_message(), "0900")); /* the lane, as it came */
        pair_destroy(p);
    }
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    assert_int_equal(uf_order_imm(p->side[0].order, 9, 0, 0), UF_EINTERNAL);
    assert_int_equal(uf_order_imm(p->side[0].order, 1, 1, 0), UF_EINTERNAL);
    assert_int_equal(uf_order_sent(p->side[0].order, 3, UF_OK), UF_EINTERNAL);
    pair_destroy(p);
}

static void wrong_operations_are_refused(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8}, wide = {.window = 32}, odd = {.window = 3};
    uf_order_lane *lane = pair_lane(p, &ctx), *none;
    uf_order_op op = pair_signal(1);
    op.kind = 9;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_EINVAL);
    op = pair_signal(1);
    op.op = UF_ATOMIC_XOR;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_EINVAL);
    op = pair_signal(1);
    op.signal_address = 1u << 20;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_EINVAL);
    op = (uf_order_op){.kind = UF_ORDER_ATOMIC, .op = UF_ATOMIC_ADD, .width = 3};
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_EINVAL);
    assert_int_equal(uf_order_lane_open(p->side[0].order, &wide, 1, &none), UF_EINVAL);
    assert_int_equal(uf_order_lane_open(p->side[0].order, &odd, 1, &none), UF_EINVAL);
    assert_int_equal(uf_order_lane_open(p->side[0].order, &ctx, 2, &none), UF_ERANGE);
    assert_int_equal(p->side[0].posted, 0);
    pair_destroy(p);
}

/* Rule 17, C24: a cursor that does not move is told with peer, sequence and what arrived. */
static void stuck_cursor_is_reported(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op first = pair_signal(1000), split = pair_put_signal(3 * 4096, 1);
    uint32_t flow;
    char text[400];
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &first), UF_OK);
    pair_move(p);
    assert_int_equal(uf_order_watch(p->side[1].order, &flow), UF_OK);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &split), UF_OK);
    memmove(p->side[0].wire, p->side[0].wire + 1, --p->side[0].n_wire * sizeof(uf_wr)); /* lost */
    pair_move(p);
    assert_int_equal(uf_order_watch(p->side[1].order, &flow), UF_OK);
    assert_int_equal(uf_order_watch(p->side[1].order, &flow), UF_EAGAIN);
    assert_int_equal(flow, 0);
    assert_non_null(strstr(uf_error_message(), "PE 0"));
    assert_true(uf_order_describe(p->side[1].order, 0, text, sizeof text) == strlen(text));
    assert_non_null(strstr(text, "2 of 3 arrivals"));
    assert_true(uf_order_describe(p->side[1].order, 0, text, 10) == 9);
    pair_destroy(p);
}

/* C7: a counter that two weak puts in flight share says how many came, not which. The remedies: a word each, or strong. */
static void shared_counter_tells_how_many_not_which(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op a = pair_put_signal(64, 1), b = pair_put_signal(64, 1);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &a), UF_OK);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &b), UF_OK);
    /* The network delivers b first: the word says 1, and it is not a that came. */
    uf_order_imm(p->side[1].order, 0, 0, p->side[0].wire[1].imm);
    assert_int_equal(p->side[1].word, 1);
    uf_order_imm(p->side[1].order, 0, 0, p->side[0].wire[0].imm);
    assert_int_equal(p->side[1].word, 2);
    pair_destroy(p);
}

/* G3, G4: where the peer has no room for messages, signals wait and the puts behind them do not; and signals leave in the order of submission,
 * strong ones and SETs among each other. */
static void puts_pass_signals_that_wait_for_messages(void **state)
{
    (void)state;
    enum { PUTS = 12 };
    uf_order_config c = pair_config();
    c.message_credits = 4;
    c.window = 64;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 64, .ordered = true};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(8, 1000);
    op.flags = UF_STRONG;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    pair_move(p); /* the lane has its number now */
    uint64_t data = uf_order_counters_get(p->side[0].order)->data_wrs;
    p->stop_imm = true;
    for (uint64_t i = 0; i < PUTS; i++) {
        op.op = i % 3 ? UF_ATOMIC_SET : UF_ATOMIC_ADD;
        op.flags = i % 3 == 2 ? UF_WEAK : UF_STRONG;
        op.operand = i;
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    }
    uf_order_progress(p->side[0].order);
    const uf_order_counters *counters = uf_order_counters_get(p->side[0].order);
    assert_int_equal(counters->data_wrs - data, PUTS);
    assert_true(counters->message_wrs < 1 + PUTS); /* else nothing had to wait, and this shows nothing */
    p->stop_imm = false;
    pair_move(p);
    assert_int_equal(p->side[1].n_applied, 1 + PUTS);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(p->side[1].applied[1 + i].operand, i);
    assert_true(counters->waited_messages > 0);
    pair_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weak_add_is_one_write),
        cmocka_unit_test(controls_are_few),
        cmocka_unit_test(put_of_nothing_still_signals),
        cmocka_unit_test(strong_signal_waits_and_nothing_else_does),
        cmocka_unit_test(ordered_context_never_holds_a_strong_signal),
        cmocka_unit_test(puts_pass_signals_that_wait_for_messages),
        cmocka_unit_test(split_put_has_one_signal),
        cmocka_unit_test(back_pressure_is_never_an_error),
        cmocka_unit_test(remote_mark_waits_until_applied),
        cmocka_unit_test(fetching_atomic_returns_the_old_value),
        cmocka_unit_test(many_lanes_with_deep_queues_to_one_peer),
        cmocka_unit_test(refused_lane_names_the_numbers),
        cmocka_unit_test(failed_flow_ends_everything_once),
        cmocka_unit_test(nonsense_from_a_peer_ends_its_flow_with_the_bytes),
        cmocka_unit_test(wrong_operations_are_refused),
        cmocka_unit_test(stuck_cursor_is_reported),
        cmocka_unit_test(shared_counter_tells_how_many_not_which),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
