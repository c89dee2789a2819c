/* run_bootstrap_deaths.c - the TCP bootstrap when a PE is killed, aborts or leaves: everybody else is told who and why. */
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

#include <cmocka.h>

/* ---------------------------------------------------------------- deaths and aborts */

static int killed(process_table *table, int pe)
{
    uf_bootstrap *b;
    int whose = -1;
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    if (pe == table->flags[1])
        raise(SIGKILL);
    /* Half of them hear it in an exchange, half while they do something else. */
    int rc = pe & 1 ? uf_bootstrap_barrier(b, 0) : rig_await_news(b, &whose);
    rig_report(table, pe, rc, whose);
    int again = uf_bootstrap_poll(b, &table->report[pe].pe);
    uf_bootstrap_destroy(b);
    return again != rc;
}

static void kill_one(int victim, const char *said)
{
    process_table *table = processes_table();
    int fd = processes_reserve(table);
    rig_n_pes = 8;
    table->flags[1] = victim;
    assert_int_equal(processes_run(table, rig_n_pes, killed), 1);
    for (int pe = 0; pe < rig_n_pes; pe++) {
        if (pe == victim)
            continue;
        rig_assert_all(table, pe, pe, UF_EPEER, said);
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
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    if (pe == table->flags[1])
        uf_bootstrap_abort(b, UF_EABORTED, "the reactor is too hot");
    rc = pe & 1 ? uf_bootstrap_barrier(b, 0) : rig_await_news(b, &whose);
    rig_report(table, pe, rc, whose);
    uf_bootstrap_poll(b, &table->report[pe].pe);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_abort(process_table *table)
{
    for (int pe = 0; pe < rig_n_pes; pe++) {
        /* Who aborts may be gone before others have heard: the first news stays. */
        rig_assert_all(table, pe, pe, UF_EABORTED, "PE 5 ended the world: the reactor is too hot");
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
    rig_run(8, aborting_5, check_abort);
}

static int aborting_0(process_table *table, int pe)
{
    table->flags[1] = 0;
    return aborting(table, pe);
}

static void check_abort_0(process_table *table)
{
    rig_assert_all(table, 0, rig_n_pes - 1, UF_EABORTED, "PE 0 ended the world: the reactor is too hot");
}

static void an_abort_of_pe_0_reaches_everybody(void **state)
{
    (void)state;
    rig_run(8, aborting_0, check_abort_0);
}

static int leaving(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    if (pe == table->flags[1]) {
        uf_bootstrap_leave(b);
        uf_bootstrap_destroy(b);
        return 0;
    }
    int rc = uf_bootstrap_barrier(b, 0);
    int news = uf_bootstrap_poll(b, NULL);
    rig_report(table, pe, news ? 1 : rc, -1);
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
    rig_assert_all(table, 0, 1, UF_EPEER, "PE 2 has left");
    rig_assert_all(table, 3, 4, UF_EPEER, "PE 2 has left");
}

static void check_left_0(process_table *table)
{
    rig_assert_all(table, 1, 4, UF_EPEER, "PE 0 has left");
}

static void leaving_is_no_death_but_nobody_waits_for_who_left(void **state)
{
    (void)state;
    rig_run(5, leaving_2, check_left_2);
    rig_run(5, leaving_0, check_left_0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_pe_is_named_by_all),
        cmocka_unit_test(the_death_of_pe_0_is_seen_by_all),
        cmocka_unit_test(an_abort_reaches_everybody_with_its_reason),
        cmocka_unit_test(an_abort_of_pe_0_reaches_everybody),
        cmocka_unit_test(leaving_is_no_death_but_nobody_waits_for_who_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
