/* nvshmem_host.c - the host part of NVSHMEM's names between two processes, over whatever CUDA driver UNFENCE_CUDA_LIBRARY names.
 *
 * Runs without a GPU over the driver of the tests. A unique id made by PE 0 brings the PEs together; then memory, puts, gets, signals, waits,
 * teams, streams, and what becomes of mistakes: functions with a result return it, the others call the failure handler. */
#include "nvshmemx.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct meeting {
    _Atomic int ready;
    nvshmemx_uniqueid_t id;
};
static struct meeting *meeting;
static int failures, last_code;

static void note_failure(const char *function, int code, const char *message)
{
    if (function && message[0])
        failures++;
    last_code = code;
}

#define HOLD(condition)                                                                                                          \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            print_error("PE %d, line %d: %s; %s\n", uf_nvshmem_my_pe(), __LINE__, #condition, uf_nvshmem_message());             \
            _exit(1);                                                                                                            \
        }                                                                                                                        \
    } while (0)

static void start(int pe, int n)
{
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    if (pe == 0) {
        HOLD(nvshmemx_get_uniqueid(&meeting->id) == 0);
        meeting->ready = 1;
    }
    while (!meeting->ready)
        usleep(100);
    HOLD(nvshmemx_set_attr_uniqueid_args(n, n, &meeting->id, &attr) == UF_EINVAL); /* no such PE */
    HOLD(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr) == UF_EINVAL);     /* not filled */
    HOLD(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED);
    HOLD(nvshmemx_set_attr_uniqueid_args(pe, n, &meeting->id, &attr) == 0);
    HOLD(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr) == 0);
    HOLD(nvshmem_my_pe() == pe && nvshmem_n_pes() == n);
}

static void memory_and_signals(int me, int other)
{
    enum { N = 1000 };
    int from[N], to[N];
    int *at = nvshmem_calloc(2 * N, sizeof(int));
    uint64_t *words = nvshmem_calloc(8, sizeof(uint64_t));
    HOLD(at && words && (uintptr_t)at % 512 == 0 && nvshmem_malloc(0) == NULL && nvshmem_ptr(at, me) == at);
    for (int i = 0; i < N; i++)
        from[i] = me * 10000 + i;
    nvshmem_int_put_signal(at, from, N, words, 4, NVSHMEM_SIGNAL_SET, other);
    HOLD(nvshmem_signal_wait_until(words, NVSHMEM_CMP_GE, 4) == 4);
    nvshmem_getmem(to, at, sizeof to, me);
    for (int i = 0; i < N; i++)
        HOLD(to[i] == other * 10000 + i);
    nvshmem_int_p(at + N, 17 + me, other);
    nvshmem_quiet();
    nvshmem_barrier_all();
    HOLD(nvshmem_int_g(at + N, me) == 17 + other && nvshmem_int_g(at + N, other) == 17 + me);
    nvshmem_fence();
    nvshmemx_signal_op(words + 1, 3, NVSHMEM_SIGNAL_SET, other);
    HOLD(nvshmem_signal_wait_until(words + 1, NVSHMEM_CMP_NE, 0) == 3 && nvshmem_signal_fetch(words + 1) == 3);
    nvshmem_sync_all();
    nvshmem_free(words);
    nvshmem_free(at);
    int *again = nvshmem_calloc(2 * N, sizeof(int)); /* the same memory, with what was put there */
    for (int i = 0; i < N; i++)
        HOLD(nvshmem_int_g(again + i, me) == 0);
    nvshmem_free(again);
}

static void teams(int me)
{
    nvshmem_team_t alone = 9, mine = NVSHMEM_TEAM_INVALID;
    HOLD(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) == me && nvshmem_team_n_pes(NVSHMEM_TEAM_SHARED) == 2);
    for (int pe = 0; pe < 2; pe++) {
        HOLD(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, pe, 1, 1, NULL, 0, &alone) == 0);
        mine = pe == me ? alone : mine;
        HOLD((alone != NVSHMEM_TEAM_INVALID) == (pe == me));
    }
    HOLD(nvshmem_team_my_pe(mine) == 0 && nvshmem_team_n_pes(mine) == 1);
    HOLD(nvshmem_team_translate_pe(mine, 0, NVSHMEM_TEAM_WORLD) == me &&
         nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, 1 - me, mine) == -1);
    HOLD(nvshmem_barrier(mine) == 0 && nvshmem_team_sync(NVSHMEM_TEAM_SHARED) == 0 && nvshmem_barrier(50) == UF_EINVAL);
    nvshmem_team_destroy(mine);
    HOLD(nvshmem_team_n_pes(mine) == -1);
}

/* On the stream that always exists. */
static void streams(int me, int other)
{
    uint64_t *words = nvshmem_calloc(8, sizeof(uint64_t));
    nvshmemx_putmem_signal_on_stream(words + 1, words + 4, 8, words, 6, NVSHMEM_SIGNAL_SET, other, NULL);
    nvshmemx_quiet_on_stream(NULL);
    HOLD(nvshmem_signal_wait_until(words, NVSHMEM_CMP_EQ, 6) == 6);
    nvshmemx_signal_wait_until_on_stream(words, NVSHMEM_CMP_GE, 6, NULL);
    nvshmemx_signal_op_on_stream(words + 2, 1, NVSHMEM_SIGNAL_SET, other, NULL);
    HOLD(nvshmem_signal_wait_until(words + 2, NVSHMEM_CMP_EQ, 1) == 1);
    nvshmemx_barrier_all_on_stream(NULL);
    HOLD(failures == 0);
    nvshmemx_signal_op_on_stream(words + 2, 1, NVSHMEM_SIGNAL_ADD, other,
                                 NULL); /* takes a kernel, which this file is no home of */
    HOLD(failures == 1 && last_code == UF_EUNSUPPORTED);
    nvshmem_putmem(words, &me, sizeof me, 2);
    HOLD(failures == 2 && last_code == UF_ERANGE);
    nvshmem_putmem(&failures, &me, sizeof me, other);
    HOLD(failures == 3);
    nvshmem_barrier_all();
    nvshmem_free(words);
}

static int run(int pe)
{
    uf_nvshmem_set_failure(note_failure);
    nvshmem_barrier_all();
    HOLD(failures == 1 && last_code == UF_EINVAL && nvshmem_my_pe() == -1); /* not started */
    failures = 0;
    start(pe, 2);
    memory_and_signals(pe, 1 - pe);
    teams(pe);
    streams(pe, 1 - pe);
    failures = 0;
    nvshmem_finalize();
    HOLD(failures == 0 && nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED && uf_nvshmem_world() == NULL);
    HOLD(uf_module_finish(meeting) == UF_EINVAL);
    return 0;
}

static void two_processes_use_the_host_functions(void **state)
{
    (void)state;
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meeting != MAP_FAILED);
    for (int pe = 0; pe < 2; pe++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(run(pe));
    }
    for (int i = 0, status; i < 2; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_processes_use_the_host_functions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
