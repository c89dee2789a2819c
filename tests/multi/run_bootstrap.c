/* run_bootstrap.c - the TCP bootstrap between real processes: worlds meet, exchange, follow one another; who is late is named by everybody. */
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

/* ---------------------------------------------------------------- it works */

static void check_ids(process_table *table)
{
    rig_assert_all(table, 0, rig_n_pes - 1, UF_OK, "");
    for (int pe = 0; pe < rig_n_pes; pe++)
        assert_int_equal(table->report[pe].status, 0);
    for (int pe = 1; pe < rig_n_pes; pe++)
        assert_true(table->report[pe].value == table->report[0].value);
    assert_true(table->report[0].value != 0);
}

static void eight_pes_exchange_what_they_have(void **state)
{
    (void)state;
    rig_run(8, rig_exchanging, check_ids);
}

static void a_hundred_pes_meet(void **state)
{
    (void)state;
    rig_run(100, rig_exchanging, check_ids);
}

static int root_last(process_table *table, int pe)
{
    atomic_fetch_add(&table->flags[0], 1);
    /* The others knock on a closed door before PE 0 comes. */
    if (pe == 0 && processes_await(&table->flags[0], rig_n_pes))
        return 1;
    return rig_exchanging(table, pe);
}

static void pe_0_may_come_last(void **state)
{
    (void)state;
    rig_run(4, root_last, check_ids);
}

static int many_worlds(process_table *table, int pe)
{
    for (int world = 0; world < 20; world++) {
        uf_bootstrap *b;
        int rc = rig_create(table, pe, &b);
        if (!rc) {
            rc = rig_exchange(b, pe, rig_n_pes, 16, world);
            uf_bootstrap_leave(b);
            uf_bootstrap_destroy(b);
        }
        if (rc)
            return rig_report(table, pe, rc, world), 1;
    }
    return 0;
}

static void worlds_follow_one_another(void **state)
{
    (void)state;
    rig_run(5, many_worlds, NULL);
}

static int worlds_at_once(process_table *table, int pe)
{
    uf_bootstrap *b[3];
    for (int i = 0; i < 3; i++)
        if (rig_create(table, pe, &b[i]))
            return rig_report(table, pe, 1, i), 1;
    int rc = uf_bootstrap_id(b[0]) == uf_bootstrap_id(b[1]);
    for (int step = 0; step < 30 && !rc; step++)
        rc = rig_exchange(b[(step * 7) % 3], pe, rig_n_pes, 100, step);
    /* One ends; the others do not mind. */
    uf_bootstrap_leave(b[1]);
    uf_bootstrap_destroy(b[1]);
    for (int step = 0; step < 10 && !rc; step++)
        rc = rig_exchange(b[step & 1 ? 0 : 2], pe, rig_n_pes, 100, step);
    for (int i = 0; i < 3; i += 2) {
        uf_bootstrap_leave(b[i]);
        uf_bootstrap_destroy(b[i]);
    }
    return rc ? rig_report(table, pe, rc, -1), 1 : 0;
}

static void worlds_live_side_by_side(void **state)
{
    (void)state;
    rig_run(4, worlds_at_once, NULL);
}

/* ---------------------------------------------------------------- late ones */

static int never_coming(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe == 2 || pe == 4)
        return 0;
    int rc = rig_create(table, pe, &b);
    rig_report(table, pe, rc, -1);
    return rc == UF_OK;
}

static void check_never(process_table *table)
{
    rig_assert_all(table, 0, 1, UF_ETIMEDOUT, "PEs 2, 4 of 6");
    rig_assert_all(table, 3, 3, UF_ETIMEDOUT, "PEs 2, 4 of 6");
    rig_assert_all(table, 5, 5, UF_ETIMEDOUT, "PEs 2, 4 of 6");
}

static void pes_that_do_not_come_are_named_by_all(void **state)
{
    (void)state;
    rig_create_ns = SECOND / 2;
    rig_run(6, never_coming, check_never);
}

static int rootless(process_table *table, int pe)
{
    uf_bootstrap *b;
    int rc = pe ? rig_create(table, pe, &b) : UF_OK;
    rig_report(table, pe, rc, -1);
    return 0;
}

static void check_rootless(process_table *table)
{
    rig_assert_all(table, 1, 2, UF_ETIMEDOUT, "did not find PE 0");
    rig_assert_all(table, 1, 2, UF_ETIMEDOUT, table->root); /* what was tried */
    rig_assert_all(table, 1, 2, UF_ETIMEDOUT, "Connection refused");
}

static void without_pe_0_the_addresses_tried_are_listed(void **state)
{
    (void)state;
    rig_create_ns = SECOND / 4;
    rig_run(3, rootless, check_rootless);
}

static int late_in_exchange(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    if (pe == table->flags[1] && processes_await(&table->flags[0], rig_n_pes - 1))
        return 1;
    int rc = uf_bootstrap_barrier(b, pe == table->flags[1] ? 0 : SECOND / 5);
    rig_report(table, pe, rc, -1);
    atomic_fetch_add(&table->flags[0], 1);
    /* The steps no longer match, and everybody knows. */
    int again = uf_bootstrap_barrier(b, 0);
    processes_await(&table->flags[0], rig_n_pes);
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
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    while (atomic_load(&table->flags[0]) < rig_n_pes - 1)
        uf_bootstrap_poll(b, NULL);
    rig_report(table, pe, uf_bootstrap_barrier(b, 0), -1);
    atomic_fetch_add(&table->flags[0], 1);
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_late_3(process_table *table)
{
    rig_assert_all(table, 0, rig_n_pes - 1, UF_ETIMEDOUT, "PE 3 did not come");
}

static void check_late_0(process_table *table)
{
    rig_assert_all(table, 0, rig_n_pes - 1, UF_ETIMEDOUT, "PE 0 did not come");
}

static void who_is_late_in_an_exchange_is_named_by_all(void **state)
{
    (void)state;
    rig_run(5, late_3, check_late_3);
    rig_run(5, late_0, check_late_0);
}

static int stopped_root(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (rig_create(table, pe, &b) || uf_bootstrap_barrier(b, 0))
        return rig_report(table, pe, 1, -1), 1;
    if (pe == 0) {
        int late = processes_await(&table->flags[0], rig_n_pes - 1); /* no tick, no answer */
        uf_bootstrap_destroy(b);
        return late;
    }
    rig_report(table, pe, uf_bootstrap_barrier(b, SECOND / 5), -1);
    atomic_fetch_add(&table->flags[0], 1);
    uf_bootstrap_destroy(b);
    return 0;
}

static void check_stopped(process_table *table)
{
    rig_assert_all(table, 1, rig_n_pes - 1, UF_ETIMEDOUT, "PE 0 does not answer");
}

static void a_pe_0_that_does_not_answer_is_named(void **state)
{
    (void)state;
    rig_run(3, stopped_root, check_stopped);
}

static int second_try(process_table *table, int pe)
{
    uf_bootstrap *b;
    if (pe != 2) {
        rig_create_ns = SECOND / 4;
        int rc = rig_create(table, pe, &b);
        rig_report(table, pe, rc, -1);
        if (rc != UF_ETIMEDOUT)
            return 1;
        atomic_fetch_add(&table->flags[0], 1);
    } else if (processes_await(&table->flags[0], rig_n_pes - 1)) {
        return 1;
    }
    rig_create_ns = 30 * SECOND;
    return rig_exchanging(table, pe);
}

static void a_creation_that_failed_can_be_tried_again(void **state)
{
    (void)state;
    rig_run(4, second_try, check_ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_pes_exchange_what_they_have),
        cmocka_unit_test(a_hundred_pes_meet),
        cmocka_unit_test(pe_0_may_come_last),
        cmocka_unit_test(worlds_follow_one_another),
        cmocka_unit_test(worlds_live_side_by_side),
        cmocka_unit_test(pes_that_do_not_come_are_named_by_all),
        cmocka_unit_test(without_pe_0_the_addresses_tried_are_listed),
        cmocka_unit_test(who_is_late_in_an_exchange_is_named_by_all),
        cmocka_unit_test(a_pe_0_that_does_not_answer_is_named),
        cmocka_unit_test(a_creation_that_failed_can_be_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
