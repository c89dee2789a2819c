/* Windows over a process's own buffer, used by other processes of the host: with the system's help, and where it forbids that (a filter of
 * system calls makes it) through the owner, whether the owner waits or computes. */
#include "multi/processes.h"
#include "unfence/unfence.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_PES = 3, BYTES = 3 << 20 };

static bool forbidden; /* set before the processes are forked */

/* From now on this process may not copy from or to another. */
static int forbid_copies(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static unsigned char pattern(size_t i, int from, int step)
{
    return (unsigned char)(i * 7 + (i >> 9) + (size_t)from * 50 + (size_t)step * 11);
}

static int tell(process_report *report, const char *what)
{
    snprintf(report->text, sizeof report->text, "%s (last error: %s)", what, uf_error_message());
    return 1;
}

/* Everybody puts into its part of everybody's window at once, by a signal that follows; and gets it back. */
static int exchange(uf_world *w, unsigned char *buffer, uint64_t *came, process_report *report, int step)
{
    int me = uf_world_pe(w);
    uf_ctx *ctx = uf_ctx_default(w);
    unsigned char *mine = malloc(BYTES), *back = malloc(BYTES);
    int bad = 0;
    for (size_t i = 0; i < BYTES; i++)
        mine[i] = pattern(i, me, step);
    for (int k = 0; k < N_PES && !bad; k++) {
        int to = (me + k) % N_PES;
        if (uf_put_signal(ctx, buffer + (size_t)me * BYTES, mine, BYTES, came, UF_SIGNAL_ADD, 1, to, UF_WEAK) ||
            uf_get(ctx, back, buffer + (size_t)me * BYTES, BYTES, to) || memcmp(back, mine, BYTES))
            bad = tell(report, "put or get");
    }
    if (!bad && uf_wait(w, came, UF_GE, (uint64_t)N_PES * (uint64_t)step, 30000000000u))
        bad = tell(report, "wait");
    for (size_t i = 0; i < (size_t)N_PES * BYTES && !bad; i++)
        if (buffer[i] != pattern(i % BYTES, (int)(i / BYTES), step))
            bad = tell(report, "a byte of the window");
    if (!bad && uf_barrier(uf_team_world(w)))
        bad = tell(report, "barrier");
    free(mine);
    free(back);
    return bad;
}

/* PE 0 computes, without a call to the library, until the others have put. */
static int while_the_owner_computes(uf_world *w, unsigned char *buffer, process_table *table, process_report *report)
{
    unsigned char bytes[70000];
    int me = uf_world_pe(w);
    if (me == 0)
        return processes_await(&table->flags[0], N_PES - 1) ? tell(report, "the others' puts") : 0;
    memset(bytes, me, sizeof bytes);
    if (uf_put(uf_ctx_default(w), buffer + (size_t)me * BYTES, bytes, sizeof bytes, 0))
        return tell(report, "put while the owner computes");
    atomic_fetch_add(&table->flags[0], 1);
    return 0;
}

/* A signal word and a counter inside a window of plain memory: all update PE 0's, which waits. */
static int words_in_a_window(uf_world *w, unsigned char *buffer, process_report *report)
{
    uint64_t *words = (uint64_t *)(void *)buffer, old = 0;
    uf_ctx *ctx = uf_ctx_default(w);
    enum { TIMES = 50 };
    words[0] = words[1] = 0;
    if (uf_barrier(uf_team_world(w)))
        return tell(report, "barrier before words");
    for (int i = 0; i < TIMES; i++)
        if (uf_atomic_fetch_add64(ctx, &words[1], 1, &old, 0) || uf_signal(ctx, &words[0], UF_SIGNAL_ADD, 2, 0, UF_STRONG))
            return tell(report, "atomic or signal");
    if (old < TIMES - 1)
        return tell(report, "a fetched value");
    if (uf_world_pe(w) == 0 && (uf_wait(w, &words[0], UF_EQ, 2 * TIMES * N_PES, 30000000000u) || words[1] != TIMES * N_PES))
        return tell(report, "the words' sums");
    return uf_barrier(uf_team_world(w)) ? tell(report, "barrier after words") : 0;
}

static int outside_of_a_window(uf_world *w, uf_window *window, process_report *report)
{
    unsigned char byte = 1;
    unsigned char *end = uf_window_at(window, (size_t)N_PES * BYTES);
    int rc = uf_put(uf_ctx_default(w), end, &byte, 1, (uf_world_pe(w) + 1) % N_PES);
    return rc == UF_ERANGE ? 0 : tell(report, "a put behind the window's end was not refused");
}

static int body(process_table *table, int pe)
{
    process_report *report = &table->report[pe];
    uf_world_options o = UF_WORLD_OPTIONS;
    uf_world *w;
    uf_window *window;
    uint64_t *came;
    o.pe = pe;
    o.n_pes = N_PES;
    o.root = table->root;
    o.fabric = "local";
    o.heap_bytes = 2 << 20;
    if (forbidden && forbid_copies())
        return tell(report, "seccomp");
    unsigned char *buffer = malloc((size_t)N_PES * BYTES);
    if (uf_world_create(&o, &w) || uf_register(w, buffer, (size_t)N_PES * BYTES, &window) ||
        uf_signal_alloc(w, 1, UF_SIGNAL_DEFAULT, &came))
        return tell(report, "world, window or signals");
    int bad = 0;
    for (int step = 1; step <= 3 && !bad; step++)
        bad = exchange(w, buffer, came, report, step);
    if (!bad)
        bad = while_the_owner_computes(w, buffer, table, report);
    if (!bad)
        bad = words_in_a_window(w, buffer, report);
    if (!bad)
        bad = outside_of_a_window(w, window, report);
    if (!bad && (uf_barrier(uf_team_world(w)) || uf_unregister(window) || uf_world_destroy(w)))
        bad = tell(report, "the end");
    free(buffer);
    return bad;
}

static void run(bool forbid)
{
    process_table *table = processes_table();
    int port = processes_reserve(table);
    forbidden = forbid;
    int failed = processes_run(table, N_PES, body);
    close(port);
    for (int pe = 0; pe < N_PES; pe++)
        if (table->report[pe].text[0])
            print_error("PE %d: %s\n", pe, table->report[pe].text);
    assert_int_equal(failed, 0);
    processes_table_free(table);
}

static void a_window_is_reached_with_the_systems_help(void **state)
{
    (void)state;
    run(false);
}

static void a_window_is_reached_where_the_system_forbids_it(void **state)
{
    (void)state;
    run(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_is_reached_with_the_systems_help),
        cmocka_unit_test(a_window_is_reached_where_the_system_forbids_it),
    };
    return cmocka_run_group_tests_name("foreign windows", tests, NULL, NULL);
}
