/* test_order_many.c - numbers that wrap only after tens of millions of signals: a few seconds of work, so not under sanitizers. */
#include "order_pair.h"

/* Rule 9, C13: however many signals leave without a quiet, half of the field of numbers is never reached: the protocol asks for receipts by
 * itself. The numbers of a request are compared as a distance, so one more than that far away would be taken for an old one. */
static void quiet_after_very_many_signals_is_answered(void **state)
{
    (void)state;
    uf_order_config c = pair_config();
    c.credits = UF_ORDER_MAX_CREDITS;
    pair *p = pair_create(&c);
    uf_order_ctx ctx = {.window = 8};
    uf_order_lane *lane = pair_lane(p, &ctx);
    uf_order_op op = pair_signal(1);
    uf_order_mark mark;
    for (uint32_t i = 0; i < (1u << 26) + 9; i++) {
        assert_int_equal(uf_order_submit(p->side[0].order, lane, &op), UF_OK);
        if (p->side[0].n_wire >= 16) {
            pair_deliver(p, 0);
            pair_deliver(p, 1);
        }
    }
    uf_order_mark_set(p->side[0].order, lane, true, &mark);
    pair_move(p);
    assert_int_equal(uf_order_mark_test(p->side[0].order, lane, &mark), UF_OK);
    assert_true(uf_order_counters_get(p->side[0].order)->receipts <= 16);
    pair_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet_after_very_many_signals_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
