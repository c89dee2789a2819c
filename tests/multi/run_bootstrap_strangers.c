/* run_bootstrap_strangers.c - the TCP bootstrap and those who do not belong: other sizes, versions, protocols and jobs are named and disturb nobody. */
#include "base/clock.h"
#include "base/error.h"
#include "multi/bootstrap_rig.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/frame.h"
#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---------------------------------------------------------------- wrong ones */

static int differing_sizes(process_table *table, int pe)
{
    uf_bootstrap *b;
    unsigned char mine[16] = {0}, all[64];
    if (rig_create(table, pe, &b))
        return rig_report(table, pe, 1, -1), 1;
    rig_report(table, pe, uf_bootstrap_allgather(b, mine, pe == 2 ? 16 : 8, all, 0), -1);
    int rc = rig_exchange(b, pe, rig_n_pes, 8, 1); /* that was an answer, not an end */
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc;
}

static void check_sizes(process_table *table)
{
    rig_assert_all(table, 0, rig_n_pes - 1, UF_EMISMATCH, "PE 2 brings 16 bytes");
    rig_assert_all(table, 0, rig_n_pes - 1, UF_EMISMATCH, "PE 0 8");
    for (int pe = 0; pe < rig_n_pes; pe++)
        assert_int_equal(table->report[pe].status, 0);
}

static void differing_sizes_are_refused_on_all_with_both(void **state)
{
    (void)state;
    rig_run(4, differing_sizes, check_sizes);
}

static int differing_n_pes(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe == 2)
        rig_n_pes = 5;
    rig_report(table, pe, rig_create(table, pe, &b), -1);
    return 0;
}

static void check_n_pes(process_table *table)
{
    assert_int_equal(table->report[0].code, UF_EMISMATCH);
    assert_non_null(strstr(table->report[0].text, "started for 5 PEs and PE 0 for 3"));
    rig_assert_all(table, 2, 2, UF_EMISMATCH, "started for 5 PEs and PE 0 for 3");
}

static void another_number_of_pes_is_refused_with_both(void **state)
{
    (void)state;
    rig_create_ns = 2 * SECOND; /* PE 1 may come after PE 0 has given up */
    rig_run(3, differing_n_pes, check_n_pes);
}

static int same_number(process_table *table, int pe)
{
    uf_bootstrap *b;
    rig_report(table, pe, rig_create(table, pe == 2 ? 1 : pe, &b), -1);
    return 0;
}

static void check_same(process_table *table)
{
    rig_assert_all(table, 0, 0, UF_EMISMATCH, "two PEs 1");
}

static void two_pes_of_one_number_are_refused(void **state)
{
    (void)state;
    rig_create_ns = 2 * SECOND;
    rig_run(3, same_number, check_same);
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
    uf_hello hello = {.job = uf_frame_hash(rig_job, strlen(rig_job), 0),
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
        return rig_report(table, pe, rig_create(table, pe, &b), -1);
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
    rig_assert_all(table, 0, 1, UF_EMISMATCH, theirs);
    rig_assert_all(table, 0, 1, UF_EMISMATCH, ours);
    assert_int_equal(table->report[1].status, 0);
}

static void another_version_is_refused_with_both(void **state)
{
    (void)state;
    rig_run(2, other_version, check_version);
    rig_run(2, other_protocol, check_version);
}

static int strangers(process_table *table, int pe)
{
    if (pe < 3) {
        rig_n_pes = 3;
        /* The last one comes when all strangers have knocked. */
        if (pe == 2 && processes_await(&table->flags[0], 3))
            return 1;
        return rig_exchanging(table, pe);
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
    rig_run(6, strangers, NULL);
}

static int two_jobs(process_table *table, int pe)
{
    /* 0..2 are one job, 3..5 another; both were given the same ports. */
    char root[64];
    strcpy(root, table->root);
    rig_n_pes = 3;
    rig_job = pe < 3 ? "red" : "blue";
    uf_bootstrap *b;
    int rc = rig_create(table, pe % 3, &b);
    if (rc)
        return rig_report(table, pe, rc, -1), 1;
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
        cmocka_unit_test(differing_sizes_are_refused_on_all_with_both),
        cmocka_unit_test(another_number_of_pes_is_refused_with_both),
        cmocka_unit_test(two_pes_of_one_number_are_refused),
        cmocka_unit_test(another_version_is_refused_with_both),
        cmocka_unit_test(strangers_do_not_disturb),
        cmocka_unit_test(two_jobs_at_one_address_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
