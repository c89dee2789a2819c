/* ordering_targets.c - what this project wants of its own signals on the model, and the collapse of others that it exists for.
 *
 * Model results in virtual time, so a seed gives the same figures everywhere and nothing here depends on this machine. p5en, 64 puts in flight.
 * Asserted for five seeds, a second each. UNFENCE_SEED gives another first one. */
#include "ordering.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEEDS = 5 };

static uint64_t the_seed = 1;

static ordering_result measure(const char *name, uint64_t bytes, uint64_t rtt_ns)
{
    ordering_options o = {.profile = "p5en",
                          .seed = the_seed,
                          .bytes = bytes,
                          .puts = (uint32_t)((64 << 20) / bytes),
                          .inflight = 64,
                          .peers = 1,
                          .batch = 16,
                          .rtt_ns = rtt_ns,
                          .costs = {40, 40}};
    ordering_result r;
    if (ordering_measure(ordering_scheme_find(name), &o, &r) != UF_OK)
        fail_msg("UNFENCE_SEED=%llu: %s", (unsigned long long)o.seed, uf_error_message());
    assert_int_equal(r.early, 0);
    return r;
}

static double share(const char *name, uint64_t bytes, uint64_t rtt_ns)
{
    ordering_result base = measure("unsignalled", bytes, rtt_ns), r = measure(name, bytes, rtt_ns);
    double share = r.rate / base.rate;
    printf("%s, %llu bytes, round trip %llu us: %.4f of unsignalled (model result)\n", name, (unsigned long long)bytes,
           (unsigned long long)rtt_ns / 1000, share);
    free(r.latency);
    return share;
}

static const uint64_t round_trips[] = {10000, 20000, 40000}, sizes[] = {8192, 16384};

static void at_least(const char *name, double bound)
{
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 2; j++)
            assert_true(share(name, sizes[j], round_trips[i]) >= bound);
}

static void draining_at_each_signal_collapses(void **state)
{
    (void)state;
    assert_true(share("drain", 8192, 20000) < 0.05);
    assert_true(share("drain", 8192, 40000) < 0.05);
}

/* Tails and completions, which it leaves out, only add to it. */
static void draining_is_no_better_than_its_formula(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        ordering_result r = measure("drain", 8192, round_trips[i]);
        double formula = ordering_drain_formula(&r, 8192);
        assert_true(r.rate < formula && r.rate > 0.7 * formula);
        free(r.latency);
    }
}

static void weak_signals_cost_three_parts_of_a_hundred_at_most(void **state)
{
    (void)state;
    at_least("counted", 0.97);
}

static void ordered_signals_cost_seven_parts_of_a_hundred_at_most(void **state)
{
    (void)state;
    at_least("ordered", 0.93);
}

static void one_strong_signal_for_many_puts_costs_seven_parts_at_most(void **state)
{
    (void)state;
    at_least("strong", 0.93);
}

static double percentile(const ordering_result *r, double part)
{
    return r->latency[(size_t)(part * (double)r->n_latency)];
}

static void a_weak_signal_is_as_early_as_a_bare_immediate_and_one_write(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        ordering_result bare = measure("floor", 8192, round_trips[i]), ours = measure("counted", 8192, round_trips[i]);
        double p50 = percentile(&ours, 0.5) / percentile(&bare, 0.5), p99 = percentile(&ours, 0.99) / percentile(&bare, 0.99);
        printf("weak signal to a bare immediate, round trip %llu us: p50 %.4f, p99 %.4f (model result)\n",
               (unsigned long long)round_trips[i] / 1000, p50, p99);
        assert_true(p50 <= 1.02);
        assert_true(p99 <= 1.10);
        assert_int_equal(ours.data_wrs, ours.puts);
        assert_true(ours.remote_cqes == ours.puts);
        assert_true((double)(ours.wrs - ours.data_wrs) / (double)ours.puts <= 1.0 / 64);
        free(bare.latency);
        free(ours.latency);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draining_at_each_signal_collapses),
        cmocka_unit_test(draining_is_no_better_than_its_formula),
        cmocka_unit_test(weak_signals_cost_three_parts_of_a_hundred_at_most),
        cmocka_unit_test(ordered_signals_cost_seven_parts_of_a_hundred_at_most),
        cmocka_unit_test(one_strong_signal_for_many_puts_costs_seven_parts_at_most),
        cmocka_unit_test(a_weak_signal_is_as_early_as_a_bare_immediate_and_one_write),
    };
    const char *first = getenv("UNFENCE_SEED");
    int failed = 0;
    the_seed = first ? strtoull(first, NULL, 0) : 1;
    for (int i = 0; i < SEEDS; i++, the_seed++) {
        printf("seed %llu\n", (unsigned long long)the_seed);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
