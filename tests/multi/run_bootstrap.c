/* run_bootstrap.c - the TCP bootstrap between real processes: who comes is let in, who is late, dead or wrong is named by everybody. */
#include "base/clock.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"
#include "multi/processes.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND 1000000000ull

/* What the bodies of one test agree on; set before they are forked. */
static int n_pes;
static const char *job = "test";
static uint64_t create_ns = 30 * SECOND;

static int create(process_table *table, int pe, uf_bootstrap **b)
{
    static uf_settings settings; /* zero: no interface, no job */
    uf_bootstrap_params params = {.settings = &settings,
                                  .driver = &uf_driver_threads,
                                  .pe = pe,
                                  .n_pes = n_pes,
                                  .root = table->root,
                                  .timeout_ns = create_ns,
                                  .job = job};
    return uf_bootstrap_create(&params, b);
}

/* Notes what a call returned and its sentence; 0, so that bodies can end with it. */
static int report(process_table *table, int pe, int code, int whose)
{
    table->report[pe].code = code;
    table->report[pe].pe = whose;
    snprintf(table->report[pe].text, sizeof table->report[pe].text, "%s", code ? uf_error_message() : "");
    return 0;
}

static void assert_all(process_table *table, int from, int to, int code, const char *said)
{
    for (int pe = from; pe <= to; pe++) {
        if (table->report[pe].code != code || !strstr(table->report[pe].text, said))
            print_message("PE %d: code %d, \"%s\"\n", pe, table->report[pe].code, table->report[pe].text);
        assert_int_equal(table->report[pe].code, code);
        assert_non_null(strstr(table->report[pe].text, said));
    }
}

static void run(int n, int (*body)(process_table *, int), void (*check)(process_table *))
{
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    n_pes = n;
    int failed = processes_run(table, n, body);
    for (int pe = 0; pe < n && failed; pe++)
        if (table->report[pe].status)
            print_message("PE %d: status %x, code %d, \"%s\"\n", pe, table->report[pe].status, table->report[pe].code,
                          table->report[pe].text);
    close(fd);
    if (check)
        check(table);
    processes_table_free(table);
    create_ns = 30 * SECOND;
    job = "test";
    assert_int_equal(failed, 0);
}

/* Everybody gives `bytes` bytes made of its number and the step; 0 if all came back right. */
static int exchange(uf_bootstrap *b, int pe, int n, size_t bytes, int step)
{
    unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)n + 1);
    memset(mine, pe * 7 + step, bytes);
    int rc = uf_bootstrap_allgather(b, mine, bytes, all, 0);
    for (int i = 0; i < n && !rc; i++)
        for (size_t k = 0; k < bytes && !rc; k++)
            rc = all[(size_t)i * bytes + k] == (unsigned char)(i * 7 + step) ? 0 : 1;
    free(mine);
    free(all);
    return rc;
}

/* Until there are news. */
static int await_news(uf_bootstrap *b, int *pe)
{
    struct pollfd p = {.fd = uf_bootstrap_fd(b), .events = POLLIN};
    for (uint64_t end = uf_clock_ns() + 30 * SECOND; uf_clock_ns() < end;) {
        int rc = uf_bootstrap_poll(b, pe);
        if (rc)
            return rc;
        poll(&p, 1, 1000);
    }
    return uf_fail(UF_ETIMEDOUT, "no news");
}

/* ---------------------------------------------------------------- it works */

static int exchanging(process_table *table, int pe)
{
    static const size_t sizes[] = {1, 0, 1000, 8, 300000, 24};
    uf_bootstrap *b;
    if (create(table, pe, &b))
        return report(table, pe, 1, -1), 1;
    int rc = 0;
    size_t most = n_pes > 16 ? 1000 : 300000;
    for (int step = 0; step < 60 && !rc; step++)
        rc =
            step % 7 ? exchange(b, pe, n_pes, sizes[step % 6] < most ? sizes[step % 6] : most, step) : uf_bootstrap_barrier(b, 0);
    table->report[pe].value = uf_bootstrap_id(b);
    report(table, pe, rc ? rc : uf_bootstrap_poll(b, NULL), -1);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc != 0;
}

static void check_ids(process_table *table)
{
    assert_all(table, 0, n_pes - 1, UF_OK, "");
    for (int pe = 0; pe < n_pes; pe++)
        assert_int_equal(table->report[pe].status, 0);
    for (int pe = 1; pe < n_pes; pe++)
        assert_true(table->report[pe].value == table->report[0].value);
    assert_true(table->report[0].value != 0);
}

static void eight_pes_exchange_what_they_have(void **state)
{
    (void)state;
    run(8, exchanging, check_ids);
}

static void a_hundred_pes_meet(void **state)
{
    (void)state;
    run(100, exchanging, check_ids);
}

static int root_last(process_table *table, int pe)
{
    atomic_fetch_add(&table->flags[0], 1);
    /* The others knock on a closed door before PE 0 comes. */
    if (pe == 0 && processes_await(&table->flags[0], n_pes))
        return 1;
    return exchanging(table, pe);
}

static void pe_0_may_come_last(void **state)
{
    (void)state;
    run(4, root_last, check_ids);
}

static int many_worlds(process_table *table, int pe)
{
    for (int world = 0; world < 20; world++) {
        uf_bootstrap *b;
        int rc = create(table, pe, &b);
        if (!rc) {
            rc = exchange(b, pe, n_pes, 16, world);
            uf_bootstrap_leave(b);
            uf_bootstrap_destroy(b);
        }
        if (rc)
            return report(table, pe, rc, world), 1;
    }
    return 0;
}

static void worlds_follow_one_another(void **state)
{
    (void)state;
    run(5, many_worlds, NULL);
}

static int worlds_at_once(process_table *table, int pe)
{
    uf_bootstrap *b[3];
    for (int i = 0; i < 3; i++)
        if (create(table, pe, &b[i]))
            return report(table, pe, 1, i), 1;
    int rc = uf_bootstrap_id(b[0]) == uf_bootstrap_id(b[1]);
    for (int step = 0; step < 30 && !rc; step++)
        rc = exchange(b[(step * 7) % 3], pe, n_pes, 100, step);
    /* One ends; the others do not mind. */
    uf_bootstrap_leave(b[1]);
    uf_bootstrap_destroy(b[1]);
    for (int step = 0; step < 10 && !rc; step++)
        rc = exchange(b[step & 1 ? 0 : 2], pe, n_pes, 100, step);
    for (int i = 0; i < 3; i += 2) {
        uf_bootstrap_leave(b[i]);
        uf_bootstrap_destroy(b[i]);
    }
    return rc ? report(table, pe, rc, -1), 1 : 0;
}

static void worlds_live_side_by_side(void **state)
{
    (void)state;
    run(4, worlds_at_once, NULL);
}

/* ---------------------------------------------------------------- deaths and aborts */

static int killed(process_table *table, int pe)
{
    uf_bootstrap *b;
    int whose = -1;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    if (pe == table->flags[1])
        raise(SIGKILL);
    /* Half of them hear it in an exchange, half while they do something else. */
    int rc = pe & 1 ? uf_bootstrap_barrier(b, 0) : await_news(b, &whose);
    report(table, pe, rc, whose);
    int again = uf_bootstrap_poll(b, &table->report[pe].pe);
    uf_bootstrap_destroy(b);
    return again != rc;
}

static void kill_one(int victim, const char *said)
{
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    n_pes = 8;
    table->flags[1] = victim;
    assert_int_equal(processes_run(table, n_pes, killed), 1);
    for (int pe = 0; pe < n_pes; pe++) {
        if (pe == victim)
            continue;
        assert_all(table, pe, pe, UF_EPEER, said);
        assert_int_equal(table->report[pe].pe, victim);
    }
    close(fd);
    processes_table_free(table);
}

static void a_killed_pe_is_named_by_all(void **state)
{
    (void)state;
    kill_one(3, "PE 3");
}

static void the_death_of_pe_0_is_seen_by_all(void **state)
{
    (void)state;
    kill_one(0, "PE 0 died");
}

static int aborting(process_table *table, int pe)
{
    uf_bootstrap *b;
    int whose = -1, rc;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    if (pe == table->flags[1])
        uf_bootstrap_abort(b, UF_EABORTED, "the reactor is too hot");
    rc = pe & 1 ? uf_bootstrap_barrier(b, 0) : await_news(b, &whose);
    report(table, pe, rc, whose);
    uf_bootstrap_poll(b, &table->report[pe].pe);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_abort(process_table *table)
{
    for (int pe = 0; pe < n_pes; pe++) {
        /* Who aborts may be gone before others have heard: the first news stays. */
        assert_all(table, pe, pe, UF_EABORTED, "PE 5 ended the world: the reactor is too hot");
        assert_int_equal(table->report[pe].pe, 5);
    }
}

static int aborting_5(process_table *table, int pe)
{
    table->flags[1] = 5;
    return aborting(table, pe);
}

static void an_abort_reaches_everybody_with_its_reason(void **state)
{
    (void)state;
    run(8, aborting_5, check_abort);
}

static int aborting_0(process_table *table, int pe)
{
    table->flags[1] = 0;
    return aborting(table, pe);
}

static void check_abort_0(process_table *table)
{
    assert_all(table, 0, n_pes - 1, UF_EABORTED, "PE 0 ended the world: the reactor is too hot");
}

static void an_abort_of_pe_0_reaches_everybody(void **state)
{
    (void)state;
    run(8, aborting_0, check_abort_0);
}

static int leaving(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    if (pe == table->flags[1]) {
        uf_bootstrap_leave(b);
        uf_bootstrap_destroy(b);
        return 0;
    }
    int rc = uf_bootstrap_barrier(b, 0);
    int news = uf_bootstrap_poll(b, NULL);
    report(table, pe, news ? 1 : rc, -1);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return news != UF_OK;
}

static int leaving_2(process_table *table, int pe)
{
    table->flags[1] = 2;
    return leaving(table, pe);
}

static int leaving_0(process_table *table, int pe)
{
    table->flags[1] = 0;
    return leaving(table, pe);
}

static void check_left_2(process_table *table)
{
    assert_all(table, 0, 1, UF_EPEER, "PE 2 has left");
    assert_all(table, 3, 4, UF_EPEER, "PE 2 has left");
}

static void check_left_0(process_table *table)
{
    assert_all(table, 1, 4, UF_EPEER, "PE 0 has left");
}

static void leaving_is_no_death_but_nobody_waits_for_who_left(void **state)
{
    (void)state;
    run(5, leaving_2, check_left_2);
    run(5, leaving_0, check_left_0);
}

/* ---------------------------------------------------------------- late ones */

static int never_coming(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe == 2 || pe == 4)
        return 0;
    int rc = create(table, pe, &b);
    report(table, pe, rc, -1);
    return rc == UF_OK;
}

static void check_never(process_table *table)
{
    assert_all(table, 0, 1, UF_ETIMEDOUT, "PEs 2, 4 of 6");
    assert_all(table, 3, 3, UF_ETIMEDOUT, "PEs 2, 4 of 6");
    assert_all(table, 5, 5, UF_ETIMEDOUT, "PEs 2, 4 of 6");
}

static void pes_that_do_not_come_are_named_by_all(void **state)
{
    (void)state;
    create_ns = SECOND / 2;
    run(6, never_coming, check_never);
}

static int rootless(process_table *table, int pe)
{
    uf_bootstrap *b;
    int rc = pe ? create(table, pe, &b) : UF_OK;
    report(table, pe, rc, -1);
    return 0;
}

static void check_rootless(process_table *table)
{
    assert_all(table, 1, 2, UF_ETIMEDOUT, "did not find PE 0");
    assert_all(table, 1, 2, UF_ETIMEDOUT, table->root); /* what was tried */
    assert_all(table, 1, 2, UF_ETIMEDOUT, "Connection refused");
}

static void without_pe_0_the_addresses_tried_are_listed(void **state)
{
    (void)state;
    create_ns = SECOND / 4;
    run(3, rootless, check_rootless);
}

static int late_in_exchange(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    if (pe == table->flags[1] && processes_await(&table->flags[0], n_pes - 1))
        return 1;
    int rc = uf_bootstrap_barrier(b, pe == table->flags[1] ? 0 : SECOND / 5);
    report(table, pe, rc, -1);
    atomic_fetch_add(&table->flags[0], 1);
    /* The steps no longer match, and everybody knows. */
    int again = uf_bootstrap_barrier(b, 0);
    processes_await(&table->flags[0], n_pes);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return again != UF_ETIMEDOUT;
}

static int late_3(process_table *table, int pe)
{
    table->flags[1] = 3;
    return late_in_exchange(table, pe);
}

static int late_0(process_table *table, int pe)
{
    table->flags[1] = 0;
    if (pe)
        return late_in_exchange(table, pe);
    /* PE 0 computes, but its engine's tick goes on. */
    uf_bootstrap *b;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    while (atomic_load(&table->flags[0]) < n_pes - 1)
        uf_bootstrap_poll(b, NULL);
    report(table, pe, uf_bootstrap_barrier(b, 0), -1);
    atomic_fetch_add(&table->flags[0], 1);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_late_3(process_table *table)
{
    assert_all(table, 0, n_pes - 1, UF_ETIMEDOUT, "PE 3 did not come");
}

static void check_late_0(process_table *table)
{
    assert_all(table, 0, n_pes - 1, UF_ETIMEDOUT, "PE 0 did not come");
}

static void who_is_late_in_an_exchange_is_named_by_all(void **state)
{
    (void)state;
    run(5, late_3, check_late_3);
    run(5, late_0, check_late_0);
}

static int stopped_root(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return report(table, pe, 1, -1), 1;
    if (pe == 0) {
        int late = processes_await(&table->flags[0], n_pes - 1); /* no tick, no answer */
        uf_bootstrap_destroy(b);
        return late;
    }
    report(table, pe, uf_bootstrap_barrier(b, SECOND / 5), -1);
    atomic_fetch_add(&table->flags[0], 1);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_stopped(process_table *table)
{
    assert_all(table, 1, n_pes - 1, UF_ETIMEDOUT, "PE 0 does not answer");
}

static void a_pe_0_that_does_not_answer_is_named(void **state)
{
    (void)state;
    run(3, stopped_root, check_stopped);
}

static int second_try(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe != 2) {
        create_ns = SECOND / 4;
        int rc = create(table, pe, &b);
        report(table, pe, rc, -1);
        if (rc != UF_ETIMEDOUT)
            return 1;
        atomic_fetch_add(&table->flags[0], 1);
    } else if (processes_await(&table->flags[0], n_pes - 1)) {
        return 1;
    }
    create_ns = 30 * SECOND;
    return exchanging(table, pe);
}

static void a_creation_that_failed_can_be_tried_again(void **state)
{
    (void)state;
    run(4, second_try, check_ids);
}

/* ---------------------------------------------------------------- wrong ones */

static int differing_sizes(process_table *table, int pe)
{
    uf_bootstrap *b;
    unsigned char mine[16] = {0}, all[64];
    if (create(table, pe, &b))
        return report(table, pe, 1, -1), 1;
    report(table, pe, uf_bootstrap_allgather(b, mine, pe == 2 ? 16 : 8, all, 0), -1);
    int rc = exchange(b, pe, n_pes, 8, 1); /* that was an answer, not an end */
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc;
}

static void check_sizes(process_table *table)
{
    assert_all(table, 0, n_pes - 1, UF_EMISMATCH, "PE 2 brings 16 bytes");
    assert_all(table, 0, n_pes - 1, UF_EMISMATCH, "PE 0 8");
    for (int pe = 0; pe < n_pes; pe++)
        assert_int_equal(table->report[pe].status, 0);
}

static void differing_sizes_are_refused_on_all_with_both(void **state)
{
    (void)state;
    run(4, differing_sizes, check_sizes);
}

static int differing_n_pes(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe == 2)
        n_pes = 5;
    report(table, pe, create(table, pe, &b), -1);
    return 0;
}

static void check_n_pes(process_table *table)
{
    assert_int_equal(table->report[0].code, UF_EMISMATCH);
    assert_non_null(strstr(table->report[0].text, "started for 5 PEs and PE 0 for 3"));
    assert_all(table, 2, 2, UF_EMISMATCH, "started for 5 PEs and PE 0 for 3");
}

static void another_number_of_pes_is_refused_with_both(void **state)
{
    (void)state;
    create_ns = 2 * SECOND; /* PE 1 may come after PE 0 has given up */
    run(3, differing_n_pes, check_n_pes);
}

static int same_number(process_table *table, int pe)
{
    uf_bootstrap *b;
    report(table, pe, create(table, pe == 2 ? 1 : pe, &b), -1);
    return 0;
}

static void check_same(process_table *table)
{
    assert_all(table, 0, 0, UF_EMISMATCH, "two PEs 1");
}

static void two_pes_of_one_number_are_refused(void **state)
{
    (void)state;
    create_ns = 2 * SECOND;
    run(3, same_number, check_same);
}

/* A connection to PE 0 as somebody who is not of this library makes it. */
static int knock(process_table *table)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strchr(table->root, ':') + 1));
    for (uint64_t end = uf_clock_ns() + 20 * SECOND; uf_clock_ns() < end;) {
        struct sockaddr_in here;
        socklen_t n = sizeof here;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (struct sockaddr *)&address, sizeof address) && !getsockname(fd, (struct sockaddr *)&here, &n) &&
            here.sin_port != address.sin_port)
            return fd;
        close(fd);
    }
    return -1;
}

/* Sends a hello whose version is not ours and reads what comes: a frame in `reader`. */
static int foreign_hello(process_table *table, int frame_version, uf_frame_reader *reader)
{
    unsigned char bytes[UF_FRAME_BYTES + UF_HELLO_BYTES], answer[1024];
    uf_hello hello = {.job = uf_frame_hash(job, strlen(job), 0),
                      .major = UF_VERSION_MAJOR,
                      .minor = UF_VERSION_MINOR + 3,
                      .patch = 9,
                      .n_pes = 2,
                      .pe = 1};
    uf_frame frame = {.version = (uint16_t)frame_version, .type = UF_FRAME_HELLO, .length = UF_HELLO_BYTES};
    uf_frame_encode(&frame, bytes);
    uf_hello_encode(&hello, bytes + UF_FRAME_BYTES);
    int fd = knock(table), rc = 0;
    if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes)
        return -1;
    uf_frame_reader_init(reader, 4096);
    while (!rc) {
        size_t used;
        ssize_t n = read(fd, answer, sizeof answer);
        if (n <= 0)
            return -1;
        rc = uf_frame_read(reader, answer, (size_t)n, &used);
    }
    close(fd);
    return rc == 1 ? 0 : -1;
}

static int other_version(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe == 0)
        return report(table, pe, create(table, pe, &b), -1);
    uf_frame_reader reader;
    if (foreign_hello(table, table->flags[1] ? 7 : UF_FRAME_VERSION, &reader))
        return 1;
    table->report[pe].code = reader.frame.code;
    snprintf(table->report[pe].text, sizeof table->report[pe].text, "%s", (const char *)reader.payload);
    int type = reader.frame.type;
    uf_frame_reader_free(&reader);
    return type != UF_FRAME_REFUSE;
}

static int other_protocol(process_table *table, int pe)
{
    table->flags[1] = 1;
    return other_version(table, pe);
}

static void check_version(process_table *table)
{
    char theirs[64], ours[64];
    snprintf(theirs, sizeof theirs, "PE 1 runs Unfence %d.%d.9", UF_VERSION_MAJOR, UF_VERSION_MINOR + 3);
    snprintf(ours, sizeof ours, "PE 0 runs %d.%d.%d", UF_VERSION_MAJOR, UF_VERSION_MINOR, UF_VERSION_PATCH);
    assert_all(table, 0, 1, UF_EMISMATCH, theirs);
    assert_all(table, 0, 1, UF_EMISMATCH, ours);
    assert_int_equal(table->report[1].status, 0);
}

static void another_version_is_refused_with_both(void **state)
{
    (void)state;
    run(2, other_version, check_version);
    run(2, other_protocol, check_version);
}

static int strangers(process_table *table, int pe)
{
    if (pe < 3) {
        n_pes = 3;
        /* The last one comes when all strangers have knocked. */
        if (pe == 2 && processes_await(&table->flags[0], 3))
            return 1;
        return exchanging(table, pe);
    }
    static const char *const greetings[] = {"GET / HTTP/1.1\r\n\r\n", "", "UFSB but not really, and then more than a header has"};
    const char *greeting = greetings[pe - 3];
    int fd = knock(table);
    if (fd < 0 || write(fd, greeting, strlen(greeting)) < 0)
        return 1;
    atomic_fetch_add(&table->flags[0], 1);
    char byte;
    while (read(fd, &byte, 1) > 0) /* until PE 0 hangs up */
        ;
    close(fd);
    return 0;
}

static void strangers_do_not_disturb(void **state)
{
    (void)state;
    run(6, strangers, NULL);
}

static int two_jobs(process_table *table, int pe)
{
    /* 0..2 are one job, 3..5 another; both were given the same ports. */
    char root[64];
    strcpy(root, table->root);
    n_pes = 3;
    job = pe < 3 ? "red" : "blue";
    uf_bootstrap *b;
    int rc = create(table, pe % 3, &b);
    if (rc)
        return report(table, pe, rc, -1), 1;
    unsigned char mine = (unsigned char)pe, all[3];
    rc = uf_bootstrap_allgather(b, &mine, 1, all, 0);
    for (int i = 0; i < 3 && !rc; i++)
        rc = all[i] != pe / 3 * 3 + i;
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc;
}

static void two_jobs_at_one_address_do_not_meet(void **state)
{
    (void)state;
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    strcat(table->root, "+8");
    for (int round = 0; round < 5; round++)
        assert_int_equal(processes_run(table, 6, two_jobs), 0);
    close(fd);
    processes_table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_pes_exchange_what_they_have),
        cmocka_unit_test(a_hundred_pes_meet),
        cmocka_unit_test(pe_0_may_come_last),
        cmocka_unit_test(worlds_follow_one_another),
        cmocka_unit_test(worlds_live_side_by_side),
        cmocka_unit_test(a_killed_pe_is_named_by_all),
        cmocka_unit_test(the_death_of_pe_0_is_seen_by_all),
        cmocka_unit_test(an_abort_reaches_everybody_with_its_reason),
        cmocka_unit_test(an_abort_of_pe_0_reaches_everybody),
        cmocka_unit_test(leaving_is_no_death_but_nobody_waits_for_who_left),
        cmocka_unit_test(pes_that_do_not_come_are_named_by_all),
        cmocka_unit_test(without_pe_0_the_addresses_tried_are_listed),
        cmocka_unit_test(who_is_late_in_an_exchange_is_named_by_all),
        cmocka_unit_test(a_pe_0_that_does_not_answer_is_named),
        cmocka_unit_test(a_creation_that_failed_can_be_tried_again),
        cmocka_unit_test(differing_sizes_are_refused_on_all_with_both),
        cmocka_unit_test(another_number_of_pes_is_refused_with_both),
        cmocka_unit_test(two_pes_of_one_number_are_refused),
        cmocka_unit_test(another_version_is_refused_with_both),
        cmocka_unit_test(strangers_do_not_disturb),
        cmocka_unit_test(two_jobs_at_one_address_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
