/* test_engine_near.c - the progress thread goes to its NIC's cores where that helps, and is left alone everywhere else. */
#include "engine/private.h"
#include "support/fake_host.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PATH "pci0000:00/0000:00:01.0/0000:01:00.0"

typedef struct trial {
    const char *root, *device;
    uint32_t local_pes;
    cpu_set_t mask; /* before; afterwards what the thread has */
    bool stayed;
} trial;

static void *try_thread(void *arg)
{
    trial *t = arg;
    pthread_setaffinity_np(pthread_self(), sizeof t->mask, &t->mask);
    t->stayed = uf_engine_stay_near(t->root, t->device, t->local_pes);
    pthread_getaffinity_np(pthread_self(), sizeof t->mask, &t->mask);
    return NULL;
}

/* In a thread of its own, whose mask is nobody else's. */
static void run(trial *t)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, try_thread, t), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static cpu_set_t ours;
static int first = -1, second = -1; /* two cores that this process may use */

static int find_cores(void **state)
{
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof ours, &ours), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &ours))
            continue;
        if (first < 0)
            first = cpu;
        else if (second < 0)
            second = cpu;
    }
    return 0;
}

static cpu_set_t two(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    CPU_SET(second, &set);
    return set;
}

static void make_nic(const fake_host *host, const char *numa, int cpu)
{
    char cpus[16];
    snprintf(cpus, sizeof cpus, "%d", cpu);
    fake_pci_add(host,
                 &(fake_pci){.path = PATH, .vendor = 0x1d0f, .device = 0xefa2, .class = 0x020000, .numa = numa, .cpus = cpus});
    fake_verbs_add(host, "rdmap1s0", PATH, "200 Gb/sec (4X HDR)", "4: ACTIVE");
}

static void thread_goes_to_the_nics_cores(void **state)
{
    (void)state;
    fake_host host;
    if (second < 0)
        skip();
    fake_host_create(&host);
    make_nic(&host, "0", second);
    trial t = {host.root, "rdmap1s0", 1, two(), false};
    run(&t);
    assert_true(t.stayed);
    assert_int_equal(CPU_COUNT(&t.mask), 1);
    assert_true(CPU_ISSET(second, &t.mask));
    fake_host_remove(&host);
}

static void expect_untouched(trial *t)
{
    cpu_set_t before = t->mask;
    run(t);
    assert_false(t->stayed);
    assert_true(CPU_EQUAL(&before, &t->mask));
}

static void thread_is_left_alone_where_pes_share_cores(void **state)
{
    (void)state;
    fake_host host;
    if (second < 0)
        skip();
    fake_host_create(&host);
    make_nic(&host, "0", second);
    expect_untouched(&(trial){host.root, "rdmap1s0", 2, two(), false});
    expect_untouched(&(trial){host.root, "rdmap1s0", 64, two(), false});
    fake_host_remove(&host);
}

static void thread_is_left_alone_where_the_process_may_not_go(void **state)
{
    (void)state;
    fake_host host;
    if (second < 0)
        skip();
    fake_host_create(&host);
    make_nic(&host, "0", 4000);
    expect_untouched(&(trial){host.root, "rdmap1s0", 1, two(), false});
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    expect_untouched(&(trial){host.root, "rdmap1s0", 1, one, false});
    fake_host_remove(&host);
}

static void thread_is_left_alone_where_nothing_is_known(void **state)
{
    (void)state;
    fake_host host;
    if (second < 0)
        skip();
    fake_host_create(&host);
    make_nic(&host, "-1", second);
    expect_untouched(&(trial){host.root, "rdmap1s0", 1, two(), false});
    expect_untouched(&(trial){host.root, "rdmap9s0", 1, two(), false});
    expect_untouched(&(trial){host.root, "", 1, two(), false});
    expect_untouched(&(trial){"/nowhere", "lo", 1, two(), false});
    fake_host_remove(&host);
}

static cpu_set_t cores(int from, int end)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = from; cpu < end; cpu++)
        CPU_SET(cpu, &set);
    return set;
}

/* A NIC near cores 8 to 15. */
static void only_allowed_cores_are_chosen_and_only_if_they_are_enough(void **state)
{
    (void)state;
    uf_topo_cpus nic = {.count = 8, .bits = {0xff00}}, nowhere = {0};
    cpu_set_t near, all = cores(0, 16), some = cores(4, 12), far = cores(0, 8), inside = cores(9, 13), expected = cores(8, 12);
    assert_true(uf_engine_near_cores(&nic, &all, 8, &near));
    assert_int_equal(CPU_COUNT(&near), 8);
    assert_true(uf_engine_near_cores(&nic, &some, 1, &near));
    assert_true(CPU_EQUAL(&near, &expected));
    assert_false(uf_engine_near_cores(&nic, &all, 9, &near));    /* nine PEs: two cores each are not there */
    assert_false(uf_engine_near_cores(&nic, &far, 1, &near));    /* the process may not go there */
    assert_false(uf_engine_near_cores(&nic, &inside, 1, &near)); /* it is there already */
    assert_false(uf_engine_near_cores(&nowhere, &all, 1, &near));
    cpu_set_t wide = cores(0, 9); /* one near core of nine, for two PEs or more */
    assert_true(uf_engine_near_cores(&nic, &wide, 1, &near));
    assert_false(uf_engine_near_cores(&nic, &wide, 2, &near));
    cpu_set_t pair = cores(7, 9);
    assert_true(uf_engine_near_cores(&nic, &pair, 1, &near));
    cpu_set_t few = cores(6, 11); /* three near of five, for three PEs: near ones are enough, cores altogether are not */
    assert_false(uf_engine_near_cores(&nic, &few, 3, &near));
    assert_true(uf_engine_near_cores(&nic, &few, 2, &near));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_allowed_cores_are_chosen_and_only_if_they_are_enough),
        cmocka_unit_test(thread_goes_to_the_nics_cores),
        cmocka_unit_test(thread_is_left_alone_where_pes_share_cores),
        cmocka_unit_test(thread_is_left_alone_where_the_process_may_not_go),
        cmocka_unit_test(thread_is_left_alone_where_nothing_is_known),
    };
    return cmocka_run_group_tests_name("engine_near", tests, find_cores, NULL);
}
