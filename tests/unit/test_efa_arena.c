/* test_efa_arena.c - memory that processes share at one address: blocks, members, and what the dead leave behind. */
#include "fabric/efa/arena.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char job[64];

static int make(uf_efa_arena *a, void *arg)
{
    uint64_t *root = uf_efa_arena_resize(a, NULL, 4096);
    assert_non_null(root);
    root[0] = *(uint64_t *)arg;
    uf_efa_arena_root_set(a, root);
    return UF_OK;
}

static uf_efa_arena *open_as(uint32_t member, uint64_t value)
{
    uf_efa_arena *a = NULL;
    if (uf_efa_arena_open(job, 0, member, make, &value, &a) != UF_OK)
        fail_msg("%s", uf_error_message());
    return a;
}

static const char *path_of_job(void)
{
    static char path[128];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = job; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    snprintf(path, sizeof path, "/dev/shm/unfence-efa-%u-%016llx-0", (unsigned)getuid(), (unsigned long long)hash);
    return path;
}

/* Whether the file of this job's arena is there; arenas of other jobs do not matter. */
static int files(void)
{
    return access(path_of_job(), F_OK) == 0;
}

static void blocks_are_zero_aligned_and_used_again(void **state)
{
    (void)state;
    uf_efa_arena *a = open_as(0, 1);
    unsigned char *first = uf_efa_arena_resize(a, NULL, 1000);
    assert_int_equal((uintptr_t)first % 128, 0);
    memset(first, 7, 1000);
    unsigned char *grown = uf_efa_arena_resize(a, first, 100000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(grown[i], 7);
    for (int i = 1000; i < 100000; i++)
        assert_int_equal(grown[i], 0);
    unsigned char *again = uf_efa_arena_resize(a, NULL, 900);
    assert_ptr_equal(again, first);
    for (int i = 0; i < 900; i++)
        assert_int_equal(again[i], 0);
    uf_efa_arena_release(a, again);
    uf_efa_arena_release(a, grown);
    assert_null(uf_efa_arena_resize(a, NULL, (size_t)1 << 40));
    uf_efa_arena_close(a);
}

/* Another process finds the root at the same address, is a member of its own, and its memory is in reach. */
static void processes_share_addresses_and_reach_each_other(void **state)
{
    (void)state;
    int status;
    uint64_t secret = 41, there = 0;
    uf_efa_arena *a = open_as(0, 77);
    uint64_t *root = uf_efa_arena_root(a);
    pid_t child = fork();
    if (child == 0) { /* the parent's mapping came along: a process of its own has none */
        execl("/proc/self/exe", "member", job, (char *)NULL);
        _exit(9);
    }
    while (__atomic_load_n(&root[1], __ATOMIC_ACQUIRE) == 0 && waitpid(child, &status, WNOHANG) == 0)
        usleep(1000);
    assert_int_equal(uf_efa_arena_process(a, 1), (uint32_t)child);
    assert_int_equal(uf_efa_arena_reach(a, (uint32_t)child), UF_OK);
    assert_true(uf_efa_arena_copy(a, 0, &there, (uint32_t)child, (void *)(uintptr_t)root[1], sizeof there));
    assert_int_equal(there, 4242);
    assert_true(uf_efa_arena_copy(a, (uint32_t)child, (void *)(uintptr_t)root[1], 0, &secret, sizeof secret));
    uf_efa_arena *none = NULL;
    uint64_t value = 0;
    assert_int_equal(uf_efa_arena_open(job, 0, 1, make, &value, &none), UF_EAGAIN);
    __atomic_store_n(&root[2], 1, __ATOMIC_RELEASE);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 41);
    assert_false(uf_efa_arena_copy(a, 0, &there, (uint32_t)child, &secret, sizeof secret));
    uf_efa_arena_close(a);
    assert_int_equal(files(), 0);
}

/* The other process: shows where a word of its own is, waits, and ends with what was put there. It does not leave: it dies. */
static int member(void)
{
    static uint64_t word = 4242;
    uint64_t value = 5;
    uf_efa_arena *a = NULL;
    if (uf_efa_arena_open(job, 0, 1, make, &value, &a) != UF_OK)
        return 1;
    uint64_t *root = uf_efa_arena_root(a);
    if (root[0] != 77)
        return 2;
    __atomic_store_n(&root[1], (uint64_t)(uintptr_t)&word, __ATOMIC_RELEASE);
    while (__atomic_load_n(&root[2], __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    _exit((int)__atomic_load_n(&word, __ATOMIC_ACQUIRE));
}

/* All members died: nobody left the arena, and it must not be taken for a living one. */
static void what_the_dead_left_is_removed(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    if (child == 0) {
        uint64_t value = 13;
        uf_efa_arena *a = NULL;
        _exit(uf_efa_arena_open(job, 0, 3, make, &value, &a) == UF_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(files(), 1);
    uf_efa_arena *a = open_as(0, 14);
    assert_int_equal(*(uint64_t *)uf_efa_arena_root(a), 14);
    uf_efa_arena_close(a);
    assert_int_equal(files(), 0);
}

/* Once all have joined there is no file, so none can be left behind; and the name may be another's. */
static void a_hidden_arena_works_on_and_leaves_its_name_to_others(void **state)
{
    (void)state;
    uint64_t value = 0;
    uf_efa_arena *a = open_as(0, 15), *none = NULL;
    uf_efa_arena_hide(a);
    assert_int_equal(files(), 0);
    unsigned char *block = uf_efa_arena_resize(a, NULL, 3 << 20);
    assert_non_null(block);
    block[(3 << 20) - 1] = 1;
    /* The address is taken, so a second one of this number is refused, and takes back the file that it made. */
    assert_int_equal(uf_efa_arena_open(job, 0, 1, make, &value, &none), UF_EAGAIN);
    assert_int_equal(files(), 0);
    FILE *others = fopen(path_of_job(), "w");
    assert_non_null(others);
    fclose(others);
    uf_efa_arena_hide(a);
    assert_int_equal(files(), 1);
    uf_efa_arena_close(a);
    assert_int_equal(files(), 1);
    unlink(path_of_job());
}

/* Threads that are members share the mapping; the last one takes it away. */
static void members_of_one_process_share_an_arena(void **state)
{
    (void)state;
    uf_efa_arena *a = open_as(0, 21), *b = open_as(1, 22);
    uint64_t *root = uf_efa_arena_root(a);
    assert_ptr_equal(uf_efa_arena_root(b), root);
    assert_int_equal(root[0], 21);
    assert_int_equal(uf_efa_arena_process(a, 1), (uint32_t)getpid());
    unsigned char *block = uf_efa_arena_resize(b, NULL, 2 << 20);
    assert_non_null(block);
    uf_efa_arena_close(a);
    block[(2 << 20) - 1] = 1;
    assert_int_equal(root[0], 21);
    assert_int_equal(files(), 1);
    uf_efa_arena_close(b);
    assert_int_equal(files(), 0);
    a = open_as(2, 23); /* the address is free again */
    assert_int_equal(*(uint64_t *)uf_efa_arena_root(a), 23);
    uf_efa_arena_close(a);
}

static uf_efa_arena *find_as(uint32_t member, uint64_t value)
{
    uf_efa_arena *a = NULL;
    if (uf_efa_arena_find(job, 3, member, make, &value, &a) != UF_OK)
        fail_msg("%s", uf_error_message());
    return a;
}

/* One thread has left the world before and the other has not: where the first found room the second must find it. */
static void members_meet_though_one_is_still_in_the_arena_before(void **state)
{
    (void)state;
    uint64_t value = 0;
    uf_efa_arena *a = find_as(0, 31), *b = find_as(1, 32), *none = NULL;
    uf_efa_arena_hide(a);
    uf_efa_arena_close(a);
    a = find_as(0, 33);
    uf_efa_arena_close(b); /* and number 0 is free */
    b = find_as(1, 34);
    assert_ptr_equal(uf_efa_arena_root(a), uf_efa_arena_root(b));
    assert_int_equal(*(uint64_t *)uf_efa_arena_root(b), 33);
    /* A world beside it, and no more than there are numbers. */
    uf_efa_arena *beside = find_as(0, 35), *third = find_as(0, 36);
    assert_ptr_not_equal(uf_efa_arena_root(beside), uf_efa_arena_root(a));
    assert_int_equal(uf_efa_arena_find(job, 3, 0, make, &value, &none), UF_EAGAIN);
    uf_efa_arena_close(third);
    uf_efa_arena_close(beside);
    uf_efa_arena_close(a);
    uf_efa_arena_close(b);
    assert_int_equal(files(), 0);
}

int main(int argc, char *argv[])
{
    uf_set_log_level(UF_LOG_NONE);
    if (argc == 2) {
        snprintf(job, sizeof job, "%s", argv[1]);
        return member();
    }
    snprintf(job, sizeof job, "test-arena-%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zero_aligned_and_used_again),
        cmocka_unit_test(processes_share_addresses_and_reach_each_other),
        cmocka_unit_test(what_the_dead_left_is_removed),
        cmocka_unit_test(members_of_one_process_share_an_arena),
        cmocka_unit_test(members_meet_though_one_is_still_in_the_arena_before),
        cmocka_unit_test(a_hidden_arena_works_on_and_leaves_its_name_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
