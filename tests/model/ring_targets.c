/* ring_targets.c - what this project wants of ring exchange on the model: the wire's rate, signals that cost next to nothing, and draining beside it.
 *
 * Model results in virtual time, p5en with its late packets: a seed gives the same figures everywhere. One group of 8 PEs and 7 hops, as each of the
 * groups of a larger job is: they share nothing. UNFENCE_SEED gives another seed. */
#include "ordering.h"
#include "ring_model.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed(void)
{
    const char *text = getenv("UNFENCE_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static ring_model_result rotate(uint64_t bytes, bool drain)
{
    ring_model_options o = {
        .profile = "p5en", .seed = seed(), .bytes = bytes, .pes = 8, .group = 8, .chains = 16, .blocks = 2, .drain = drain};
    ring_model_result r;
    o.slots = ring_model_slots(&o);
    if (ring_model_run(&o, &r) != UF_OK)
        fail_msg("UNFENCE_SEED=%llu: %s", (unsigned long long)o.seed, uf_error_message());
    printf("%s, blocks of %llu bytes: %.4f of the wire, the slowest PE %.4f (model result)\n", drain ? "drain" : "ring",
           (unsigned long long)bytes, r.share, r.least);
    return r;
}

static void a_rotation_reaches_nineteen_twentieths_of_the_wire(void **state)
{
    (void)state;
    assert_true(rotate(1 << 20, false).share >= 0.95);
    assert_true(rotate(2 << 20, false).share >= 0.95);
}

static void draining_reaches_less_than_half_of_that(void **state)
{
    (void)state;
    assert_true(rotate(1 << 20, true).share < 0.475);
}

static void a_block_is_one_write_and_one_credit(void **state)
{
    (void)state;
    ring_model_result r = rotate(256 << 10, false);
    assert_int_equal(r.data_wrs, 2 * r.blocks);
    assert_int_equal(r.signal_wrs, 0);
    assert_true(r.control_wrs * 64 <= r.data_wrs);
}

static void a_signal_costs_less_than_a_hundredth_of_its_block(void **state)
{
    (void)state;
    static const char *const names[] = {"unsignalled", "counted"};
    double rates[2];
    for (int i = 0; i < 2; i++) {
        ordering_options o = {.profile = "p5en",
                              .seed = seed(),
                              .bytes = 1 << 20,
                              .puts = 128,
                              .inflight = 8,
                              .peers = 1,
                              .batch = 1,
                              .costs = {40, 40}};
        ordering_result r;
        if (ordering_measure(ordering_scheme_find(names[i]), &o, &r) != UF_OK)
            fail_msg("UNFENCE_SEED=%llu: %s", (unsigned long long)o.seed, uf_error_message());
        rates[i] = r.rate;
        free(r.latency);
    }
    printf("signalled over unsignalled, blocks of 1 MiB: %.4f (model result)\n", rates[1] / rates[0]);
    assert_true(rates[1] >= 0.99 * rates[0]);
}

int main(void)
{
    uf_set_log_level(UF_LOG_NONE);
    setenv("UNFENCE_HEAP_MAX", "1G", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rotation_reaches_nineteen_twentieths_of_the_wire),
        cmocka_unit_test(draining_reaches_less_than_half_of_that),
        cmocka_unit_test(a_block_is_one_write_and_one_credit),
        cmocka_unit_test(a_signal_costs_less_than_a_hundredth_of_its_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
