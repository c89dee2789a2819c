/* bootstrap_rig.c - see bootstrap_rig.h. */
#include "multi/bootstrap_rig.h"
#include "base/clock.h"
#include "base/error.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* What the bodies of one test agree on; set before they are forked. */
int rig_n_pes;
const char *rig_job = "test";
uint64_t rig_create_ns = 30 * SECOND;

int rig_create(process_table *table, int pe, uf_bootstrap **b)
{
    static uf_settings settings; /* zero: no interface, no job */
    uf_bootstrap_params params = {.settings = &settings,
                                  .driver = &uf_driver_threads,
                                  .pe = pe,
                                  .n_pes = rig_n_pes,
                                  .root = table->root,
                                  .timeout_ns = rig_create_ns,
                                  .job = rig_job};
    return uf_bootstrap_create(&params, b);
}

/* Notes what a call returned and its sentence; 0, so that bodies can end with it. */
int rig_report(process_table *table, int pe, int code, int whose)
{
    table->report[pe].code = code;
    table->report[pe].pe = whose;
    snprintf(table->report[pe].text, sizeof table->report[pe].text, "%s", code ? uf_error_message() : "");
    return 0;
}

void rig_assert_all(process_table *table, int from, int to, int code, const char *said)
{
    for (int pe = from; pe <= to; pe++) {
        if (table->report[pe].code != code || !strstr(table->report[pe].text, said))
            print_message("PE %d: code %d, \"%s\"\n", pe, table->report[pe].code, table->report[pe].text);
        assert_int_equal(table->report[pe].code, code);
        assert_non_null(strstr(table->report[pe].text, said));
    }
}

void rig_run(int n, int (*body)(process_table *, int), void (*check)(process_table *))
{
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    rig_n_pes = n;
    int failed = processes_run(table, n, body);
    for (int pe = 0; pe < n && failed; pe++)
        if (table->report[pe].status)
            print_message("PE %d: status %x, code %d, \"%s\"\n", pe, table->report[pe].status, table->report[pe].code,
                          table->report[pe].text);
    close(fd);
    if (check)
        check(table);
    processes_table_free(table);
    rig_create_ns = 30 * SECOND;
    rig_job = "test";
    assert_int_equal(failed, 0);
}

/* Everybody gives `bytes` bytes made of its number and the step; 0 if all came back right. */
int rig_exchange(uf_bootstrap *b, int pe, int n, size_t bytes, int step)
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
int rig_await_news(uf_bootstrap *b, int *pe)
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

int rig_exchanging(process_table *table, int pe)
{
    static const size_t sizes[] = {1, 0, 1000, 8, 300000, 24};
    uf_bootstrap *b;
    if (rig_create(table, pe, &b))
        return rig_report(table, pe, 1, -1), 1;
    int rc = 0;
    size_t most = rig_n_pes > 16 ? 1000 : 300000;
    for (int step = 0; step < 60 && !rc; step++)
        rc = step % 7 ? rig_exchange(b, pe, rig_n_pes, sizes[step % 6] < most ? sizes[step % 6] : most, step)
                      : uf_bootstrap_barrier(b, 0);
    table->report[pe].value = uf_bootstrap_id(b);
    rig_report(table, pe, rc ? rc : uf_bootstrap_poll(b, NULL), -1);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc != 0;
}
