/* trouble.c - PEs that die, stop, come too late or disagree, and machines that lack something: everybody is told, by name.
 *
 * Each test forks the PEs of a job over the fabric on the command line (local, ofi:tcp, ofi:shm), lets one of them come to grief and asks the
 * others what they were told. A PE notes what it found in the shared table; the parent asserts. No test measures time: a wait that
 * should end by news has a far longer timeout, so its code tells which of the two ended it. */
#include "multi/processes.h"
#include "unfence/unfence.h"
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

static const char *fabric = "local";

enum { KILLED = 0, STOPPED = 1 }; /* flags of the table */

#define LONG_NS UINT64_C(50000000000)

/* ---------------------------------------------------------------- what every PE does */

static void environment(const process_table *table, int pe, int n)
{
    char text[32];
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        signal(faults[i], SIG_DFL); /* cmocka's handlers would go on with the next test, in this process */
    }
    snprintf(text, sizeof text, "%d", pe);
    setenv("UNFENCE_PE", text, 1);
    snprintf(text, sizeof text, "%d", n);
    setenv("UNFENCE_N_PES", text, 1);
    setenv("UNFENCE_ROOT", table->root, 1);
    setenv("UNFENCE_FABRIC", fabric, 1);
    setenv("UNFENCE_HEAP_SIZE", "4M", 0);
    setenv("UNFENCE_LOG", "none", 0);
}

typedef struct job {
    uf_world *w;
    uf_ctx *ctx;
    uf_team *all;
    unsigned char *data;
    uint64_t *sig;
    int pe, n;
} job;

/* Notes what a call returned and said. */
static int note(process_table *table, int pe, int rc)
{
    table->report[pe].code = rc;
    snprintf(table->report[pe].text, sizeof table->report[pe].text, "%s", rc == UF_OK ? "" : uf_error_message());
    return rc;
}

static int join(process_table *table, int pe, int n, job *j)
{
    void *p = NULL;
    environment(table, pe, n);
    *j = (job){.pe = pe, .n = n};
    int rc = uf_world_create(NULL, &j->w);
    if (rc == UF_OK)
        rc = uf_malloc(j->w, 1 << 20, 0, &p);
    if (rc == UF_OK)
        rc = uf_signal_alloc(j->w, 8, UF_SIGNAL_DEFAULT, &j->sig);
    if (rc == UF_OK)
        rc = uf_barrier(uf_team_world(j->w));
    if (rc != UF_OK)
        return note(table, pe, rc);
    j->data = p;
    j->ctx = uf_ctx_default(j->w);
    j->all = uf_team_world(j->w);
    return UF_OK;
}

/* Puts with signals round the ring until something ends it, or `rounds` are over. */
static int traffic(job *j, uint64_t rounds)
{
    int right = (j->pe + 1) % j->n, rc = UF_OK;
    for (uint64_t i = 1; i <= rounds && rc == UF_OK; i++) {
        rc = uf_put_signal(j->ctx, j->data, j->data + (1 << 19), 1000 + i % 30000, &j->sig[0], UF_SIGNAL_ADD, 1, right,
                           i % 3 ? UF_WEAK : UF_STRONG);
        if (rc == UF_OK)
            rc = uf_wait(j->w, &j->sig[0], UF_GE, i, LONG_NS);
    }
    return rc;
}

static process_table *start(void)
{
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    close(fd); /* PE 0 listens there */
    return table;
}

static void assert_says(const process_table *table, int pe, int code, const char *word)
{
    const process_report *r = &table->report[pe];
    if (r->code != code || !strstr(r->text, word))
        fail_msg("PE %d was told %s (%s), and not %s with '%s'", pe, uf_error_name(r->code), r->text, uf_error_name(code), word);
}

/* Exactly one PE did not end with 0: the victim. */
static void assert_one_failed(const process_table *table, int n, int victim, int failed)
{
    for (int pe = 0; pe < n; pe++) {
        int status = table->report[pe].status;
        if (pe != victim && status != 0)
            fail_msg("PE %d ended with %s %d after it was told: %s", pe, WIFSIGNALED(status) ? "signal" : "code",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), table->report[pe].text);
    }
    assert_int_equal(failed, 1);
}

static void assert_killed(const process_table *table, int pe)
{
    assert_true(WIFSIGNALED(table->report[pe].status) && WTERMSIG(table->report[pe].status) == SIGKILL);
}

/* ---------------------------------------------------------------- a PE dies */

/* The locks of the shm provider lie in memory that all share (src/fabric/ofi/select.c): a victim whose progress thread is at work when the main
 * thread kills the process takes one along. There it has no such thread, and so dies between two calls. */
static void die_between_calls(void)
{
    if (strcmp(fabric, "ofi:shm") == 0)
        setenv("UNFENCE_PROGRESS", "inline", 1);
}

enum { VICTIM = 1 };

/* Everything that can wait says the same after the first has been told. */
static int all_waits_say(job *j, int code)
{
    uint64_t old;
    const uint64_t *sigs[1] = {&j->sig[5]};
    size_t index;
    uf_wait_list list = {.sigs = sigs, .n = 1, .cmp = UF_EQ, .value = 9};
    int other = VICTIM;
    void *p;
    int got[] = {
        uf_wait(j->w, &j->sig[5], UF_EQ, 9, LONG_NS),
        uf_wait_any(j->w, &list, &index, LONG_NS),
        uf_wait_all(j->w, &list, LONG_NS),
        uf_wait_from(j->w, &j->sig[5], UF_EQ, 9, other, LONG_NS),
        uf_barrier(j->all),
        uf_sync(j->all),
        uf_broadcast(j->all, j->data, j->data, 8, 0),
        uf_atomic(j->ctx, UF_ATOMIC_FETCH_ADD, 8, &j->sig[6], 1, 0, &old, other),
        uf_quiet(j->ctx),
        uf_malloc(j->w, 64, 0, &p),
        uf_world_status(j->w),
    };
    for (size_t i = 0; i < sizeof got / sizeof got[0]; i++) {
        if (got[i] != code)
            return (int)i + 10;
    }
    return 0;
}

/* Nobody dies before all have come out of the last collective call; and no survivor leaves before all have been told, since its own leaving
 * is news as well, which may come first where the machine is busy. */
static void meet(process_table *table, int n)
{
    atomic_fetch_add(&table->flags[KILLED], 1);
    processes_await(&table->flags[KILLED], n);
}

static int dies_in_traffic(process_table *table, int pe)
{
    job j;
    if (pe == VICTIM)
        die_between_calls();
    if (join(table, pe, 4, &j) != UF_OK)
        return 1;
    if (pe == VICTIM) {
        traffic(&j, 20);
        raise(SIGKILL);
    }
    int rc = note(table, pe, traffic(&j, UINT64_MAX));
    int wrong = rc == UF_EPEER ? all_waits_say(&j, UF_EPEER) : 2;
    meet(table, 3);
    uf_world_destroy(j.w);
    return wrong;
}

static void death_in_traffic_is_told_to_everybody_with_the_number(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 4, dies_in_traffic);
    assert_killed(table, VICTIM);
    for (int pe = 0; pe < 4; pe++) {
        if (pe != VICTIM)
            assert_says(table, pe, UF_EPEER, "PE 1");
    }
    assert_one_failed(table, 4, VICTIM, failed);
    processes_table_free(table);
}

/* Half a megabyte and a signal to each of the others, several rounds in flight, until something ends it; the victim dies with its own half sent. */
static int dies_under_large_puts(process_table *table, int pe)
{
    job j;
    if (pe == VICTIM)
        die_between_calls();
    if (join(table, pe, 4, &j) != UF_OK)
        return 1;
    meet(table, 4);
    int rc = UF_OK;
    for (uint64_t round = 1; rc == UF_OK; round++) {
        for (int other = 0; other < 4 && rc == UF_OK; other++)
            if (other != pe)
                rc = uf_put_signal_nbi(j.ctx, j.data, j.data + (1 << 19), 1 << 19, &j.sig[1], UF_SIGNAL_ADD, 1, other, UF_WEAK);
        if (pe == VICTIM && round == 6)
            raise(SIGKILL);
        if (rc == UF_OK && round % 4 == 0)
            rc = uf_quiet(j.ctx);
    }
    note(table, pe, rc);
    int wrong = rc == UF_EPEER ? all_waits_say(&j, UF_EPEER) : 2;
    meet(table, 4 + 3);
    uf_world_destroy(j.w);
    return wrong;
}

static void death_under_large_puts_is_told_to_everybody_with_the_number(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 4, dies_under_large_puts);
    assert_killed(table, VICTIM);
    for (int pe = 0; pe < 4; pe++) {
        if (pe != VICTIM)
            assert_says(table, pe, UF_EPEER, "PE 1");
    }
    assert_one_failed(table, 4, VICTIM, failed);
    processes_table_free(table);
}

static int dies_while_all_wait(process_table *table, int pe)
{
    job j;
    if (pe == VICTIM)
        die_between_calls();
    if (join(table, pe, 3, &j) != UF_OK)
        return 1;
    meet(table, 3);
    if (pe == VICTIM)
        raise(SIGKILL);
    int rc = pe == 0 ? uf_wait(j.w, &j.sig[5], UF_EQ, 9, LONG_NS) : uf_barrier(j.all);
    note(table, pe, rc);
    uf_world_destroy(j.w);
    return rc == UF_EPEER ? 0 : 2;
}

static void death_ends_waits_that_nothing_else_would_end(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 3, dies_while_all_wait);
    assert_killed(table, VICTIM);
    assert_says(table, 0, UF_EPEER, "PE 1");
    assert_says(table, 2, UF_EPEER, "PE 1");
    assert_one_failed(table, 3, VICTIM, failed);
    processes_table_free(table);
}

static int root_dies(process_table *table, int pe)
{
    job j;
    if (pe == 0)
        die_between_calls();
    if (join(table, pe, 3, &j) != UF_OK)
        return 1;
    meet(table, 3);
    if (pe == 0)
        raise(SIGKILL);
    int rc = note(table, pe, uf_wait(j.w, &j.sig[5], UF_EQ, 9, LONG_NS));
    uf_world_destroy(j.w);
    return rc == UF_EPEER ? 0 : 2;
}

static void death_of_pe_0_is_told_as_well(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 3, root_dies);
    assert_killed(table, 0);
    assert_says(table, 1, UF_EPEER, "PE 0");
    assert_says(table, 2, UF_EPEER, "PE 0");
    assert_one_failed(table, 3, 0, failed);
    processes_table_free(table);
}

/* exit() with the world open, in the middle of traffic: the PE itself ends with its own code, the others are told. */
static int exits_in_traffic(process_table *table, int pe)
{
    job j;
    if (join(table, pe, 3, &j) != UF_OK)
        return 1;
    if (pe == VICTIM) {
        traffic(&j, 20);
        exit(42);
    }
    int rc = note(table, pe, traffic(&j, UINT64_MAX));
    meet(table, 2);
    uf_world_destroy(j.w);
    return rc == UF_EPEER ? 0 : 2;
}

static void exit_with_an_open_world_is_clean_and_told(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 3, exits_in_traffic);
    assert_true(WIFEXITED(table->report[VICTIM].status));
    assert_int_equal(WEXITSTATUS(table->report[VICTIM].status), 42);
    assert_says(table, 0, UF_EPEER, "PE 1");
    assert_says(table, 2, UF_EPEER, "PE 1");
    assert_one_failed(table, 3, VICTIM, failed);
    processes_table_free(table);
}

/* ---------------------------------------------------------------- all die */

/* Files of /dev/shm whose names hold one of the numbers or ours. Other jobs of the machine have files there, too. */
static int left_in_dev_shm(const uint64_t pids[], int n, char name[256])
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    int left = 0;
    while (dir && (entry = readdir(dir))) {
        bool ours = strstr(entry->d_name, "unfence") != NULL;
        for (int i = 0; i < n; i++) {
            char pid[24];
            snprintf(pid, sizeof pid, "%d:", (int)pids[i]); /* as the shm provider begins its names */
            ours |= strncmp(entry->d_name, pid, strlen(pid)) == 0;
        }
        if (ours) {
            snprintf(name, 256, "%s", entry->d_name);
            left++;
        }
    }
    if (dir)
        closedir(dir);
    return left;
}

static int all_die(process_table *table, int pe)
{
    job j;
    if (join(table, pe, 3, &j) != UF_OK)
        return 1;
    table->report[pe].value = (uint64_t)getpid();
    traffic(&j, 20);
    meet(table, 3);
    raise(SIGKILL);
    return 1;
}

static int comes_after(process_table *table, int pe)
{
    job j;
    int rc = join(table, pe, 2, &j);
    if (rc == UF_OK)
        rc = note(table, pe, uf_world_destroy(j.w));
    return rc != UF_OK;
}

/* Ours are never there by name; what a provider leaves is swept by the next world of anybody. */
static void nothing_is_left_in_dev_shm_when_all_are_killed(void **state)
{
    (void)state;
    char name[256];
    uint64_t pids[3];
    process_table *table = start();
    assert_int_equal(processes_run(table, 3, all_die), 3);
    for (int pe = 0; pe < 3; pe++) {
        assert_killed(table, pe);
        pids[pe] = table->report[pe].value;
    }
    processes_table_free(table);
    table = start();
    assert_int_equal(processes_run(table, 2, comes_after), 0);
    if (left_in_dev_shm(pids, 3, name))
        fail_msg("/dev/shm/%s is left", name);
    processes_table_free(table);
}

/* ---------------------------------------------------------------- a PE is late */

/* PE 1 stops itself. The others time out and name it; their work among themselves goes on, also on another context. */
static int one_stops(process_table *table, int pe)
{
    job j;
    setenv("UNFENCE_TIMEOUT", "2s", 1);
    if (join(table, pe, 3, &j) != UF_OK)
        return 1;
    if (pe == VICTIM) {
        table->report[pe].value = (uint64_t)getpid();
        atomic_store(&table->flags[STOPPED], 1);
        raise(SIGSTOP);
        return 3;
    }
    int other = pe == 0 ? 2 : 0, wrong = 0;
    uf_ctx *second = NULL;
    processes_await(&table->flags[STOPPED], 1);
    wrong |= uf_ctx_create(j.w, NULL, &second) != UF_OK;
    wrong |= uf_put_nbi(j.ctx, j.data, j.data, 100000, VICTIM) != UF_OK; /* may never complete */
    wrong |= uf_put_signal_nbi(second, j.data, j.data, 1000, &j.sig[1], UF_SIGNAL_ADD, 1, other, UF_STRONG) != UF_OK;
    wrong |= uf_quiet_pe(second, other) != UF_OK;
    wrong |= uf_wait(j.w, &j.sig[1], UF_GE, 1, LONG_NS) != UF_OK;
    int rc = note(table, pe, uf_barrier(j.all));
    wrong |= rc != UF_ETIMEDOUT;
    meet(table, 2);
    if (pe == 0)
        kill((pid_t)table->report[VICTIM].value, SIGKILL);
    uf_world_destroy(j.w);
    return wrong ? 2 : 0;
}

static void late_pe_is_named_and_delays_nobody_else(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 3, one_stops);
    assert_killed(table, VICTIM);
    assert_says(table, 0, UF_ETIMEDOUT, "PE 1");
    assert_says(table, 2, UF_ETIMEDOUT, "PE 1");
    assert_one_failed(table, 3, VICTIM, failed);
    processes_table_free(table);
}

static int one_never_comes(process_table *table, int pe)
{
    job j;
    setenv("UNFENCE_BOOTSTRAP_TIMEOUT", "1s", 1);
    if (pe == VICTIM)
        return 0;
    return join(table, pe, 3, &j) == UF_OK;
}

static void pe_that_never_starts_is_named(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 3, one_never_comes), 0);
    assert_says(table, 0, UF_ETIMEDOUT, "1");
    processes_table_free(table);
}

/* ---------------------------------------------------------------- PEs disagree */

static const char *differing_name, *differing_value;

static int one_differs(process_table *table, int pe)
{
    job j;
    if (pe == 1)
        setenv(differing_name, differing_value, 1);
    int rc = join(table, pe, 2, &j);
    return rc == UF_OK;
}

static void different_settings_are_refused_by_name(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"UNFENCE_HEAP_SIZE", "8M"},
        {"UNFENCE_WINDOW", "64"},
        {"UNFENCE_SIGNALS", "1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        process_table *table = start();
        differing_name = cases[i][0];
        differing_value = cases[i][1];
        assert_int_equal(processes_run(table, 2, one_differs), 0);
        assert_says(table, 0, UF_EMISMATCH, cases[i][0]);
        assert_says(table, 1, UF_EMISMATCH, cases[i][0]);
        processes_table_free(table);
    }
}

/* What bounds traffic may differ, as devices do: the least counts, and nobody waits for credits that the other does not give. */
static int one_has_less(process_table *table, int pe)
{
    job j;
    if (pe == 1) {
        setenv("UNFENCE_CREDITS", "4", 1);
        setenv("UNFENCE_MESSAGES", "2", 1);
        setenv("UNFENCE_QUEUE_DEPTH", "32", 1);
    }
    if (join(table, pe, 2, &j) != UF_OK)
        return 1;
    for (int i = 0; i < 2000; i++) {
        int rc = uf_put_signal_nbi(j.ctx, j.data, j.data + 4096, 64, &j.sig[2], UF_SIGNAL_ADD, i % 3 ? 1 : 100000, 1 - pe, i % 2);
        if (rc != UF_OK) {
            note(table, pe, rc);
            return 2;
        }
    }
    int rc = note(table, pe, uf_barrier(j.all));
    table->report[pe].value = uf_signal_fetch(&j.sig[2]);
    rc = uf_world_destroy(j.w) || rc;
    return rc != UF_OK;
}

static void different_credits_and_depths_are_negotiated(void **state)
{
    (void)state;
    process_table *table = start();
    int failed = processes_run(table, 2, one_has_less);
    assert_says(table, 0, UF_OK, "");
    assert_says(table, 1, UF_OK, "");
    assert_int_equal(failed, 0);
    assert_int_equal(table->report[0].value, 667 * 100000 + 1333);
    assert_int_equal(table->report[1].value, 667 * 100000 + 1333);
    processes_table_free(table);
}

/* ---------------------------------------------------------------- the machine lacks something */

static int alone(process_table *table, int pe, const char *name, const char *value)
{
    uf_world *w = NULL;
    environment(table, pe, 1);
    if (name)
        setenv(name, value, 1);
    int rc = note(table, pe, uf_world_create(NULL, &w));
    if (rc == UF_OK)
        uf_world_destroy(w);
    return 0;
}

static int with_few_files(process_table *table, int pe)
{
    job j;
    struct rlimit limit = {12, 12};
    setenv("UNFENCE_BOOTSTRAP_TIMEOUT", "2s", 1); /* the other may have failed before it came */
    setrlimit(RLIMIT_NOFILE, &limit);
    return join(table, pe, 2, &j) == UF_OK;
}

static void low_open_file_limit_is_named(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 2, with_few_files), 0);
    int told = 0;
    for (int pe = 0; pe < 2; pe++) { /* the one that ran into it says so; the other may be told that it left */
        told += strstr(table->report[pe].text, "ulimit -n") != NULL || strstr(table->report[pe].text, "RLIMIT_NOFILE") != NULL;
        assert_int_not_equal(table->report[pe].code, UF_OK);
    }
    if (told == 0)
        fail_msg("nobody named the limit: '%s', '%s'", table->report[0].text, table->report[1].text);
    processes_table_free(table);
}

static int with_little_address_space(process_table *table, int pe)
{
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    setrlimit(RLIMIT_AS, &limit);
    return alone(table, pe, "UNFENCE_HEAP_MAX", "64G");
}

static void low_address_space_limit_is_named_with_numbers(void **state)
{
    (void)state;
    if (SANITIZED)
        skip(); /* a sanitizer needs address space without end */
    process_table *table = start();
    assert_int_equal(processes_run(table, 1, with_little_address_space), 0);
    assert_says(table, 0, UF_ENOMEM, "ulimit -v");
    processes_table_free(table);
}

static int with_a_heap_larger_than_the_machine(process_table *table, int pe)
{
    setenv("UNFENCE_HEAP_MAX", "16T", 1);
    return alone(table, pe, "UNFENCE_HEAP_SIZE", "8T");
}

static void heap_larger_than_memory_is_refused_with_both_numbers(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 1, with_a_heap_larger_than_the_machine), 0);
    assert_says(table, 0, UF_ENOMEM, "8796093022208");
    processes_table_free(table);
}

static int without_locked_memory(process_table *table, int pe)
{
    job j;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_MEMLOCK, &none);
    if (join(table, pe, 2, &j) != UF_OK)
        return 1;
    int rc = note(table, pe, traffic(&j, 50));
    rc = uf_world_destroy(j.w) || rc;
    return rc != UF_OK;
}

static void fabrics_that_lock_no_memory_need_no_memlock_limit(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 2, without_locked_memory), 0);
    processes_table_free(table);
}

/* ---------------------------------------------------------------- the user errs */

static const char *wrong_name, *wrong_value;

static int with_wrong_setting(process_table *table, int pe)
{
    return alone(table, pe, wrong_name, wrong_value);
}

static void wrong_settings_are_refused_by_name_and_value(void **state)
{
    (void)state;
    const struct {
        const char *name, *value;
        int code;
    } cases[] = {
        {"UNFENCE_WINDOW", "many", UF_EINVAL},      {"UNFENCE_WINDOW", "100", UF_EINVAL},
        {"UNFENCE_TIMEOUT", "soon", UF_EINVAL},     {"UNFENCE_HEAP_SIZE", "-4", UF_EINVAL},
        {"UNFENCE_STRICT", "maybe", UF_EINVAL},     {"UNFENCE_PROGRESS", "magic", UF_EINVAL},
        {"UNFENCE_FABRIC", "telepathy", UF_EINVAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        process_table *table = start();
        wrong_name = cases[i].name;
        wrong_value = cases[i].value;
        assert_int_equal(processes_run(table, 1, with_wrong_setting), 0);
        assert_says(table, 0, cases[i].code, wrong_value);
        assert_says(table, 0, cases[i].code, wrong_name);
        processes_table_free(table);
    }
}

static void collect_line(void *arg, int level, const char *line)
{
    process_report *r = arg;
    size_t used = strlen(r->text);
    (void)level;
    snprintf(r->text + used, sizeof r->text - used, "%s\n", line);
}

static int with_misspelt_setting(process_table *table, int pe)
{
    uf_world *w = NULL;
    environment(table, pe, 1);
    setenv("UNFENCE_LOG", "warn", 1);
    setenv("UNFENCE_TIMOUT", "5s", 1);
    uf_set_logger(collect_line, &table->report[pe]);
    table->report[pe].code = uf_world_create(NULL, &w);
    uf_world_destroy(w);
    return 0;
}

static void misspelt_variable_is_warned_about_with_the_nearest_name(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 1, with_misspelt_setting), 0);
    assert_says(table, 0, UF_OK, "UNFENCE_TIMOUT");
    assert_says(table, 0, UF_OK, "UNFENCE_TIMEOUT");
    processes_table_free(table);
}

static int creation_line(process_table *table, int pe)
{
    job j;
    setenv("UNFENCE_LOG", "info", 1);
    uf_set_logger(collect_line, &table->report[pe]);
    int rc = join(table, pe, 2, &j);
    uf_set_logger(NULL, NULL);
    if (rc == UF_OK)
        uf_world_destroy(j.w);
    return rc != UF_OK;
}

static void creation_says_which_fabric_and_why(void **state)
{
    (void)state;
    process_table *table = start();
    const char *colon = strchr(fabric, ':');
    assert_int_equal(processes_run(table, 2, creation_line), 0);
    assert_says(table, 0, UF_OK, colon ? colon + 1 : fabric);
    processes_table_free(table);
}

static int strict_without_device(process_table *table, int pe)
{
    uf_world *w = NULL;
    environment(table, pe, 2);
    setenv("UNFENCE_FABRIC", "OFI:EFA", 1); /* case does not matter */
    setenv("UNFENCE_STRICT", "yes", 1);
    setenv("UNFENCE_BOOTSTRAP_TIMEOUT", "5s", 1);
    note(table, pe, uf_world_create(NULL, &w));
    return 0;
}

static void strict_refuses_what_is_not_there(void **state)
{
    (void)state;
    process_table *table = start();
    assert_int_equal(processes_run(table, 2, strict_without_device), 0);
    int told = 0;
    for (int pe = 0; pe < 2; pe++) {
        assert_int_not_equal(table->report[pe].code, UF_OK);
        told += table->report[pe].code == UF_EUNSUPPORTED && strcasestr(table->report[pe].text, "efa") != NULL;
    }
    if (told == 0)
        fail_msg("nobody was told: '%s', '%s'", table->report[0].text, table->report[1].text);
    processes_table_free(table);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_in_traffic_is_told_to_everybody_with_the_number),
        cmocka_unit_test(death_under_large_puts_is_told_to_everybody_with_the_number),
        cmocka_unit_test(death_ends_waits_that_nothing_else_would_end),
        cmocka_unit_test(death_of_pe_0_is_told_as_well),
        cmocka_unit_test(exit_with_an_open_world_is_clean_and_told),
        cmocka_unit_test(nothing_is_left_in_dev_shm_when_all_are_killed),
        cmocka_unit_test(late_pe_is_named_and_delays_nobody_else),
        cmocka_unit_test(pe_that_never_starts_is_named),
        cmocka_unit_test(different_settings_are_refused_by_name),
        cmocka_unit_test(different_credits_and_depths_are_negotiated),
        cmocka_unit_test(low_open_file_limit_is_named),
        cmocka_unit_test(low_address_space_limit_is_named_with_numbers),
        cmocka_unit_test(heap_larger_than_memory_is_refused_with_both_numbers),
        cmocka_unit_test(fabrics_that_lock_no_memory_need_no_memlock_limit),
        cmocka_unit_test(wrong_settings_are_refused_by_name_and_value),
        cmocka_unit_test(misspelt_variable_is_warned_about_with_the_nearest_name),
        cmocka_unit_test(creation_says_which_fabric_and_why),
        cmocka_unit_test(strict_refuses_what_is_not_there),
    };
    if (argc > 1)
        fabric = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
