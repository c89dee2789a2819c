/* test_order_edges.c - the promises of docs/ordering.md where something is full, wraps, or breaks in the middle of a call. */
#include "order_pair.h"

/* G6: a remote mark that found all batches of its lane in use covers what joined its batch later, and asks for the receipt of that, too. */
static void mark_on_a_full_ring_is_reported(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(64, 1);
    uf_order_mark mark;
    p->stop_sent = true;
    uf_wr held[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        uf_order_mark_set(p->side[0].order, lane, true, &mark);
    }
    /* Everything is consumed and receipts come, but own CQEs of the adds do not: the lane's batches stay. */
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < p->side[0].n_wire; i++)
            held[n++] = p->side[0].wire[i];
        pair_deliver(p, 0);
        pair_deliver(p, 1);
    }
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    held[n++] = p->side[0].wire[0];
    pair_deliver(p, 0);
    p->stop_sent = false;
    for (uint32_t i = 0; i < n; i++)
        uf_order_sent(p->side[0].order, held[i].cookie, UF_OK);
    pair_move(p);
    assert_int_equal(p->side[1].n_applied, 13);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &mark), UF_OK);
    pair_destroy(p);
}

/* How often `user` was told, and that it was an error. */
static uint32_t told(const pair_side *s, uint64_t user)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_done; i++)
        if (s->done[i].user == user) {
            assert_int_equal(s->done[i].status, UF_EFABRIC);
            n++;
        }
    return n;
}

/* G7: an operation whose post breaks the network ends once: either submit refuses it, or `done` tells its end. Each kind of operation. */
static void operation_that_breaks_the_network_ends_once(void **state)
{
    (void)state;
    for (uint32_t kind = UF_ORDER_PUT; kind <= UF_ORDER_GET; kind++)
        for (uint32_t form = 0; form < 4; form++) {
            uf_order_config c = pair_config();
            pair *p = pair_create(&c);
            uf_order_ctx ctx = {.window = 8, .ordered = form & 1};
            uf_order_lane *lane = pair_lane(p, &ctx);
            uf_order_op op = pair_put_signal(form & 2 ? 3 * 4096 : 64, 1), first = pair_signal(1ull << 40);
            assert_int_equal(uf_order_submit(p->side[0].order, lane, &first), UF_OK);
            pair_move(p); /* the lane is granted */
            op.kind = (uint8_t)kind;
            op.op = kind == UF_ORDER_ATOMIC ? UF_ATOMIC_SWAP : UF_ATOMIC_ADD;
            op.width = 8;
            op.user = 77;
            p->post_error = UF_EFABRIC;
            int rc = uf_order_submit(p->side[0].order, lane, &op);
            uf_order_progress(p->side[0].order);
            assert_int_equal(p->side[0].failed, UF_EFABRIC);
            assert_true(rc == UF_OK || rc == UF_EFABRIC);
            assert_int_equal((rc != UF_OK) + told(&p->side[0], 77), 1);
            pair_destroy(p);
        }
}

/* G7, G9: the post that a fence makes breaks the network, not that of the operation behind it: it is refused, not left lying. */
static void fence_that_breaks_the_network_ends_the_operation(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_put_signal(64, 1);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    uint64_t posted = p->side[0].posted;
    p->post_error = UF_EFABRIC;
    ctx.fence_epoch++;
    op.user = 77;
    int rc = uf_order_submit(p->side[0].order, lane, &op);
    p->post_error = UF_OK;
    for (int i = 0; i < 4; i++)
        uf_order_progress(p->side[0].order);
    assert_int_equal((rc != UF_OK) + told(&p->side[0], 77), 1);
    assert_int_equal(p->side[0].posted, posted);
    assert_false(uf_order_busy(p->side[0].order));
    pair_destroy(p);
}

static uint32_t type_of(const uf_wr *wr)
{
    uf_order_wire w = {.type = 0};
    if (wr->verb == UF_VERB_SEND)
        uf_wire_decode(wr->message, &w);
    return uf_wire_type(&w);
}

/* Moves everything; each message of `type` that side 0 sends is kept in `again`. */
static void move_and_keep(pair *p, uint32_t type, uf_wr *again, uint32_t *n)
{
    for (int i = 0; i < 32; i++) {
        for (uint32_t k = 0; k < p->side[0].n_wire; k++)
            if (type_of(&p->side[0].wire[k]) == type)
                again[(*n)++] = p->side[0].wire[k];
        pair_deliver(p, 0);
        uf_order_progress(p->side[0].order);
        pair_deliver(p, 1);
        uf_order_progress(p->side[1].order);
    }
}

/* Signals on `lane` are told to be applied, with either receipt bit. */
static void expect_quiet(pair *p, uf_order_lane *lane)
{
    uf_order_op op = pair_signal(0);
    uf_order_mark mark;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        uf_order_mark_set(p->side[0].order, lane, true, &mark);
        pair_move(p);
        assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &mark), UF_OK);
    }
    assert_int_equal(p->side[0].failed, 0);
    assert_int_equal(p->side[1].failed, 0);
}

static pair *pair_of_two_rails(uint32_t max_lanes)
{
    uf_order_config c = pair_config();
    c.n_rails = 2;
    c.max_lanes = max_lanes;
    return pair_create(&c);
}

/* Rule 16: a request for a lane that comes once more, since its rail broke, is dropped: also when the lane has ended meanwhile. */
static void request_that_comes_twice_is_one(void **state)
{
    (void)state;
    pair *p = pair_of_two_rails(1);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_signal(1000);
    uf_wr again[4];
    uint32_t n = 0;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    move_and_keep(p, UF_MSG_LANE_OPEN, again, &n);
    assert_int_equal(n, 1);
    while (uf_order_lane_close(p->side[0].order, lane) == UF_EAGAIN)
        pair_move(p);
    pair_move(p);
    uf_order_message(p->side[1].order, 0, again[0].message); /* must not take the only window */
    pair_move(p);
    lane = pair_lane(p, &ctx);
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    expect_quiet(p, lane);
    assert_int_equal(p->side[1].word, 2000);
    pair_destroy(p);
}

/* ... and when it was refused: it has been answered once, and counts once. */
static void refused_request_that_comes_twice_counts_once(void **state)
{
    (void)state;
    pair *p = pair_of_two_rails(1);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *first = pair_lane(p, &ctx), *second = pair_lane(p, &ctx);
    uf_order_op op = pair_signal(1000);
    uf_wr again[4];
    uint32_t n = 0;
    assert_int_equal(uf_order_submit(p->side[0].order, first, &op), UF_OK);
    pair_move(p);
    assert_int_equal(uf_order_submit(p->side[0].order, second, &op), UF_OK);
    move_and_keep(p, UF_MSG_LANE_OPEN, again, &n);
    assert_int_equal(n, 1);
    assert_int_equal(p->side[0].failed, UF_ENOMEM); /* of that lane */
    p->side[0].failed = 0;
    uf_order_message(p->side[1].order, 0, again[0].message);
    pair_move(p);
    assert_int_equal(uf_order_submit(p->side[0].order, first, &op), UF_OK);
    expect_quiet(p, first);
    pair_destroy(p);
}

/* Rule 16: the end of a lane that comes once more is no news to the lane that has its number now. */
static void end_of_a_lane_that_comes_twice_spares_its_successor(void **state)
{
    (void)state;
    pair *p = pair_of_two_rails(4);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx), *next = pair_lane(p, &ctx);
    uf_order_op op = pair_signal(1000);
    uf_wr again[4];
    uint32_t n = 0;
    assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
    pair_move(p);
    while (uf_order_lane_close(p->side[0].order, lane) == UF_EAGAIN)
        move_and_keep(p, UF_MSG_LANE_CLOSE, again, &n);
    assert_int_equal(n, 1);
    assert_int_equal(uf_order_submit(p->side[0].order, next, &op), UF_OK);
    pair_move(p);
    uf_order_message(p->side[1].order, 0, again[0].message);
    for (int i = 0; i < 4; i++)
        assert_int_equal(uf_order_submit(p->side[0].order, next, &op), UF_OK);
    expect_quiet(p, next);
    assert_int_equal(p->side[1].word, 6000);
    pair_destroy(p);
}

/* Hands over everything, what was posted last first. */
static void move_backwards(pair *p)
{
    for (int i = 0; i < 32; i++)
        for (uint32_t k = 0; k < 2; k++) {
            pair_side *s = &p->side[k];
            for (uint32_t a = 0, b = s->n_wire; a + 1 < b; a++) {
                uf_wr last = s->wire[--b];
                s->wire[b] = s->wire[a];
                s->wire[a] = last;
            }
            pair_deliver(p, k);
            uf_order_progress(s->order);
        }
}

/* Rule 5, G10: a lane is closed when its window is free again, so the next lane finds it, whatever overtakes what. */
static void closed_lane_has_given_its_window_back(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.max_lanes = 1;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    for (uint32_t i = 0; i < 10; i++) {
        uf_order_lane *lane = pair_lane(p, &ctx);
        uf_order_op op = pair_signal(1000);
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        move_backwards(p);
        assert_int_equal(p->side[0].failed, 0);
        assert_int_equal(p->side[1].word, 1000 * (i + 1));
        for (int tries = 0; uf_order_lane_close(p->side[0].order, lane) == UF_EAGAIN; tries++) {
            assert_true(tries < 100);
            move_backwards(p);
        }
    }
    pair_destroy(p);
}

enum { MANY = 64 };

static int take_any(void *arg, const uf_wr *wr)
{
    uint32_t *posted = arg;
    posted[wr->peer]++;
    return UF_OK;
}

static int apply_none(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    (void)arg, (void)signal, (void)old;
    return UF_OK;
}

static void done_none(void *arg, uint64_t user, int status, uint64_t value)
{
    (void)arg, (void)user, (void)status, (void)value;
}

static void failed_none(void *arg, uint32_t flow, int status)
{
    (void)arg, (void)flow, (void)status;
}

/* G12, rule 10: all peers but one neither consume nor let anything complete, and each was given all that it could be: the last one still
 * gets its turn. */
static void peers_that_do_not_move_leave_room_for_the_last(void **state)
{
    (void)state;
    uint32_t posted[MANY] = {0};
    uf_order_config c = pair_config();
    c.n_flows = MANY;
    c.queue_ops = 2 * MANY;
    c.tx_depth = 4 * MANY;
    uf_order_edges edges = {posted, take_any, apply_none, done_none, failed_none};
    uf_order *order;
    assert_int_equal(uf_order_create(&c, &edges, &order), UF_OK);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane;
    for (uint32_t peer = 1; peer < MANY - 1; peer++) {
        assert_int_equal(uf_order_lane_open(order, &ctx, peer, &lane), UF_OK);
        uf_order_op weak = pair_put_signal(64, 1), message = pair_signal(1000);
        while (uf_order_submit(order, lane, &weak) == UF_OK)
            uf_order_progress(order);
        while (uf_order_submit(order, lane, &message) == UF_OK)
            uf_order_progress(order);
        assert_true(posted[peer] > 0);
    }
    uf_order_op fetch = {.kind = UF_ORDER_ATOMIC, .op = UF_ATOMIC_FETCH_ADD, .width = 8, .operand = 1, .user = 7};
    assert_int_equal(uf_order_lane_open(order, &ctx, MANY - 1, &lane), UF_OK);
    assert_int_equal(uf_order_submit(order, lane, &fetch), UF_OK);
    uf_order_progress(order);
    assert_int_equal(posted[MANY - 1], 1); /* the request for the lane */
    uf_order_destroy(order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mark_on_a_full_ring_is_reported),
        cmocka_unit_test(operation_that_breaks_the_network_ends_once),
        cmocka_unit_test(fence_that_breaks_the_network_ends_the_operation),
        cmocka_unit_test(peers_that_do_not_move_leave_room_for_the_last),
        cmocka_unit_test(closed_lane_has_given_its_window_back),
        cmocka_unit_test(request_that_comes_twice_is_one),
        cmocka_unit_test(refused_request_that_comes_twice_counts_once),
        cmocka_unit_test(end_of_a_lane_that_comes_twice_spares_its_successor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
