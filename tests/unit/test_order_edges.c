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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mark_on_a_full_ring_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
