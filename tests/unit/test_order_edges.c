/* test_order_edges.c - the promises of docs/ordering.md where something is full, wraps, or breaks in the middle of a call. */
#include "order_pair.h"

/* G6: a remote mark that found all batches of its lane in use covers what joined its batch later, and asks for the receipt of that, too. */
static void mark_on_a_full_ring_is_reported(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {0, 8, false};
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
            uf_order_ctx ctx = {0, 8, form & 1};
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
    uf_order_ctx ctx = {0, 8, false};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mark_on_a_full_ring_is_reported),
        cmocka_unit_test(operation_that_breaks_the_network_ends_once),
        cmocka_unit_test(fence_that_breaks_the_network_ends_the_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
