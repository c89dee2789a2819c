/* test_driver_threads.c - the real-time driver: time never runs back, a wait hands its core over, a long one lets it sleep. */
#include "engine/driver.h"
#include "unfence/unfence.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

static void time_never_runs_back(void **state)
{
    (void)state;
    const uf_driver *d = &uf_driver_threads;
    assert_true(d->threads);
    uint64_t last = d->now(d->arg);
    for (uint32_t round = 0; round < 2000; round++) {
        d->relax(d->arg, round);
        uint64_t now = d->now(d->arg);
        assert_true(now >= last);
        last = now;
    }
}

static atomic_int turn;

static void *answer(void *arg)
{
    const uf_driver *d = &uf_driver_threads;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(*(int *)arg, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    for (int i = 0; i < 2000; i++) {
        for (uint32_t round = 0; atomic_load(&turn) != 1; round++) {
            d->relax(d->arg, round);
        }
        atomic_store(&turn, 0);
    }
    return NULL;
}

/* Both sides wait on one core: a wait that only span would need a whole time slice for each of the 4000 hand-overs. The
 * test has no time limit of its own; it is the harness' limit that a spinning driver would hit. */
static void two_waiters_on_one_core_hand_it_over(void **state)
{
    (void)state;
    const uf_driver *d = &uf_driver_threads;
    cpu_set_t before, one;
    pthread_t other;
    int cpu = sched_getcpu();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    atomic_store(&turn, 0);
    assert_int_equal(pthread_create(&other, NULL, answer, &cpu), 0);
    for (int i = 0; i < 2000; i++) {
        atomic_store(&turn, 1);
        for (uint32_t round = 0; atomic_load(&turn) != 0; round++) {
            d->relax(d->arg, round);
        }
    }
    pthread_join(other, NULL);
    sched_setaffinity(0, sizeof before, &before);
}

/* Context switches count naps: a hundred looks of a long wait are a hundred sleeps, not a burning core. A nap whose time ran out while its
 * thread had lost the core on the way to it counts as involuntary. */
static void a_long_wait_sleeps(void **state)
{
    (void)state;
    const uf_driver *d = &uf_driver_threads;
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    for (uint32_t round = 1000000; round < 1000100; round++) {
        d->relax(d->arg, round);
    }
    d->relax(d->arg, UINT32_MAX);
    getrusage(RUSAGE_THREAD, &after);
    assert_true(after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw >= 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_never_runs_back),
        cmocka_unit_test(two_waiters_on_one_core_hand_it_over),
        cmocka_unit_test(a_long_wait_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
