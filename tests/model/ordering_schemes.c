/* ordering_schemes.c - the schemes that `unfence bench ordering` compares keep what they promise, and the comparison would notice if not.
 *
 * A scheme that breaks its promise is fast for nothing, so each runs under the chaos profile: no signal may be seen before its bytes, none may get lost
 * (the run would stall), the model may not trap. UNFENCE_SEED gives one seed instead of the usual ones. */
#include "raw.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed_of(uint64_t i)
{
    const char *text = getenv("UNFENCE_SEED");
    return text ? strtoull(text, NULL, 0) : i + 1;
}

static ordering_options small(const char *profile, uint64_t seed)
{
    return (ordering_options){.profile = profile,
                              .seed = seed,
                              .bytes = 1600, /* seven packets of chaos, the last a short one */
                              .puts = 160,
                              .inflight = 24,
                              .peers = 3,
                              .batch = 5,
                              .costs = {40, 40}};
}

static void measure(const ordering_scheme *s, const ordering_options *o, ordering_result *r)
{
    if (ordering_measure(s, o, r) != UF_OK)
        fail_msg("UNFENCE_SEED=%llu: %s: %s", (unsigned long long)o->seed, s->name, uf_error_message());
}

static void no_scheme_shows_a_signal_before_its_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; ordering_schemes[i]; i++)
        for (uint64_t n = 0; n < 8; n++) {
            ordering_result r;
            ordering_options o = small("chaos", seed_of(n));
            measure(ordering_schemes[i], &o, &r);
            if (r.early)
                fail_msg("UNFENCE_SEED=%llu: %s: %llu signals were seen before their bytes", (unsigned long long)o.seed,
                         ordering_schemes[i]->name, (unsigned long long)r.early);
            assert_int_equal(r.puts, o.puts);
            assert_int_equal(r.data_wrs, o.puts);
            free(r.latency);
        }
}

/* One peer, one put in flight, and more in flight than a peer's window: where the ends of queues and batches lie. */
static void schemes_work_at_the_edges_of_their_windows(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 1}, {1, 2, 16}, {5, 3, 2}, {1, 64, 7}, {2, 33, 33}};
    (void)state;
    for (size_t i = 0; ordering_schemes[i]; i++)
        for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
            ordering_result r;
            ordering_options o = small("p5en", seed_of(0));
            o.peers = shapes[n][0];
            o.inflight = shapes[n][1];
            o.batch = shapes[n][2];
            o.puts = 131;
            measure(ordering_schemes[i], &o, &r);
            assert_int_equal(r.early, 0);
            free(r.latency);
        }
}

/* What relies on the order of the network: the signal is posted right behind its put. */
static int put_and_hope(ordering_run *r, uint64_t n)
{
    int rc = ordering_raw_put(r, n, -1);
    if (rc)
        return rc;
    rc = ordering_raw_signal(r, n, ordering_peer_of(r, n), ordering_slot_of(r, n));
    return rc == UF_EAGAIN ? UF_EINTERNAL : rc; /* the queue holds twice the window */
}

static const ordering_scheme hopeful = {
    .name = "hopeful",
    .open = ordering_raw_open,
    .close = ordering_raw_close,
    .put = put_and_hope,
    .turn = ordering_raw_turn,
    .arrived = ordering_raw_saw_slot,
};

static void a_scheme_that_relies_on_order_is_found_out(void **state)
{
    (void)state;
    ordering_result r;
    ordering_options o = small("p5en", seed_of(0));
    measure(&hopeful, &o, &r);
    assert_true(r.early > 0);
    free(r.latency);
}

/* A scheme that forgets a signal. */
static int put_and_forget(ordering_run *r, uint64_t n)
{
    int rc = n == 77 ? ordering_raw_put(r, n, -1) : ordering_raw_put(r, n, ordering_slot_of(r, n));
    return rc;
}

static void a_signal_that_is_never_sent_ends_the_run(void **state)
{
    (void)state;
    ordering_scheme forgetful = hopeful;
    forgetful.put = put_and_forget;
    ordering_result r;
    ordering_options o = small("p5en", seed_of(0));
    assert_int_equal(ordering_measure(&forgetful, &o, &r), UF_EINTERNAL);
    assert_non_null(strstr(uf_error_message(), "159 signals seen"));
}

static void a_seed_repeats_its_run(void **state)
{
    (void)state;
    for (size_t i = 0; ordering_schemes[i]; i++) {
        ordering_result a, b, other;
        ordering_options o = small("p5en", 3);
        measure(ordering_schemes[i], &o, &a);
        measure(ordering_schemes[i], &o, &b);
        o.seed = 4;
        measure(ordering_schemes[i], &o, &other);
        assert_true(a.rate == b.rate && a.model_events == b.model_events && a.wrs == b.wrs && a.cqes == b.cqes);
        assert_true(a.rate != other.rate);
        assert_int_equal(a.n_latency, b.n_latency);
        if (a.n_latency)
            assert_memory_equal(a.latency, b.latency, a.n_latency * sizeof *a.latency);
        free(a.latency);
        free(b.latency);
        free(other.latency);
    }
}

static void a_point_that_does_not_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        uint32_t puts, inflight, peers;
        const char *word;
    } wrong[] = {
        {32, 100, 8, 1, "64 bytes"}, {1 << 20, 1000, 8, 1, "256 MiB"}, {4096, 100, 64, 1, "in flight"},
        {4096, 100, 8, 0, "peers"},  {4096, 70000, 8, 1, "65536"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ordering_result r;
        ordering_options o = small("p5en", 1);
        o.bytes = wrong[i].bytes;
        o.puts = wrong[i].puts;
        o.inflight = wrong[i].inflight;
        o.peers = wrong[i].peers;
        assert_int_equal(ordering_measure(ordering_schemes[0], &o, &r), UF_EINVAL);
        assert_non_null(strstr(uf_error_message(), wrong[i].word));
    }
    ordering_result r;
    ordering_options o = small("p9", 1);
    assert_int_equal(ordering_measure(ordering_schemes[0], &o, &r), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "p5en"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_scheme_shows_a_signal_before_its_bytes),
        cmocka_unit_test(schemes_work_at_the_edges_of_their_windows),
        cmocka_unit_test(a_scheme_that_relies_on_order_is_found_out),
        cmocka_unit_test(a_signal_that_is_never_sent_ends_the_run),
        cmocka_unit_test(a_seed_repeats_its_run),
        cmocka_unit_test(a_point_that_does_not_fit_is_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
