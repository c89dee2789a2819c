/* test_bootstrap_group.c - PEs of one process: as threads, and as fibers of one thread under seeds. The same promises hold for both. */
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_PES 16
#define SECOND   1000000000ull

typedef struct test test;
typedef struct pe {
    test *test;
    int number;
    int code, whose;
    char text[512];
    uint64_t id;
} pe;

struct test {
    uf_group *group;
    const uf_driver *driver;
    int n_pes;
    uint64_t timeout_ns;
    _Atomic int flag;
    int (*body)(pe *me);
    pe pes[MOST_PES];
};

static void pe_main(void *arg)
{
    pe *me = arg;
    me->code = me->test->body(me);
    snprintf(me->text, sizeof me->text, "%s", me->code ? uf_error_message() : "");
}

static void *thread_main(void *arg)
{
    pe_main(arg);
    return NULL;
}

static void test_init(test *t, int n_pes, uint64_t timeout_ns, int (*body)(pe *me))
{
    memset(t, 0, sizeof *t);
    t->n_pes = n_pes;
    t->timeout_ns = timeout_ns;
    t->body = body;
    for (int i = 0; i < n_pes; i++)
        t->pes[i] = (pe){.test = t, .number = i, .whose = -1};
    assert_int_equal(uf_group_create(n_pes, &t->group), UF_OK);
    assert_int_equal(uf_group_n_pes(t->group), n_pes);
}

static void run_threads(test *t)
{
    pthread_t threads[MOST_PES];
    t->driver = &uf_driver_threads;
    for (int i = 0; i < t->n_pes; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &t->pes[i]), 0);
    for (int i = 0; i < t->n_pes; i++)
        pthread_join(threads[i], NULL);
    uf_group_destroy(t->group);
}

static void run_fibers(test *t, uint64_t seed)
{
    uf_fibers *fibers;
    assert_int_equal(uf_fibers_create(seed, 50000, &fibers), UF_OK);
    t->driver = uf_fibers_driver(fibers);
    for (int i = 0; i < t->n_pes; i++)
        assert_int_equal(uf_fibers_add(fibers, pe_main, &t->pes[i]), UF_OK);
    int rc = uf_fibers_run(fibers, 100 * SECOND);
    if (rc)
        print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(rc, UF_OK);
    uf_fibers_destroy(fibers);
    uf_group_destroy(t->group);
}

/* Each body runs as threads and as fibers of several seeds; `check` looks at what the PEs returned. */
static void run_both(int n_pes, uint64_t timeout_ns, int (*body)(pe *me), void (*check)(test *t))
{
    static test t;
    test_init(&t, n_pes, timeout_ns, body);
    run_threads(&t);
    check(&t);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        test_init(&t, n_pes, timeout_ns, body);
        run_fibers(&t, seed);
        check(&t);
    }
}

static int create_as(pe *me, int number, uint64_t timeout_ns, uf_bootstrap **b)
{
    uf_bootstrap_params params = {
        .driver = me->test->driver, .pe = number, .n_pes = me->test->n_pes, .group = me->test->group, .timeout_ns = timeout_ns};
    return uf_bootstrap_create(&params, b);
}

static int create(pe *me, uf_bootstrap **b)
{
    return create_as(me, me->number, me->test->timeout_ns, b);
}

static void finish(uf_bootstrap *b)
{
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
}

static void await_flag(pe *me, int value)
{
    for (uint32_t round = 0; atomic_load(&me->test->flag) < value; round++)
        me->test->driver->relax(me->test->driver->arg, round);
}

static int exchange(pe *me, uf_bootstrap *b, size_t bytes, int step)
{
    unsigned char mine[64], all[64 * MOST_PES];
    memset(mine, me->number * 16 + step, bytes);
    int rc = uf_bootstrap_allgather(b, mine, bytes, all, 0);
    for (int i = 0; i < me->test->n_pes && !rc; i++)
        for (size_t k = 0; k < bytes && !rc; k++)
            rc = all[(size_t)i * bytes + k] == (unsigned char)(i * 16 + step)
                     ? UF_OK
                     : uf_fail(UF_EINTERNAL, "PE %d has wrong bytes of PE %d in step %d", me->number, i, step);
    return rc;
}

static void check_fine(test *t)
{
    for (int i = 0; i < t->n_pes; i++) {
        if (t->pes[i].code)
            print_message("PE %d: %s\n", i, t->pes[i].text);
        assert_int_equal(t->pes[i].code, UF_OK);
        assert_true(t->pes[i].id == t->pes[0].id);
    }
}

static void check_all(test *t, int code, const char *said)
{
    for (int i = 0; i < t->n_pes; i++) {
        if (t->pes[i].code != code || !strstr(t->pes[i].text, said))
            print_message("PE %d: code %d, %s\n", i, t->pes[i].code, t->pes[i].text);
        assert_int_equal(t->pes[i].code, code);
        assert_non_null(strstr(t->pes[i].text, said));
    }
}

static int exchanging(pe *me)
{
    uf_bootstrap *b;
    int rc = create(me, &b);
    if (rc)
        return rc;
    me->id = uf_bootstrap_id(b);
    for (int step = 0; step < 100 && !rc; step++)
        rc = step % 5 ? exchange(me, b, (size_t)(step * 7 % 64), step) : uf_bootstrap_barrier(b, 0);
    if (!rc)
        rc = uf_bootstrap_poll(b, NULL);
    finish(b);
    return rc;
}

static void pes_exchange_what_they_have(void **state)
{
    (void)state;
    run_both(8, 60 * SECOND, exchanging, check_fine);
    run_both(1, 60 * SECOND, exchanging, check_fine);
}

static int world_after_world(pe *me)
{
    int rc = UF_OK;
    for (int world = 0; world < 20 && !rc; world++) {
        uf_bootstrap *b;
        rc = create(me, &b);
        if (rc)
            break;
        rc = exchange(me, b, 8, world);
        finish(b);
    }
    return rc;
}

static void worlds_follow_one_another(void **state)
{
    (void)state;
    run_both(5, 60 * SECOND, world_after_world, check_fine);
}

static int world_beside_world(pe *me)
{
    uf_bootstrap *b[3];
    int rc = UF_OK;
    for (int i = 0; i < 3; i++)
        if ((rc = create(me, &b[i])))
            return rc;
    if (uf_bootstrap_id(b[0]) == uf_bootstrap_id(b[1]))
        rc = uf_fail(UF_EINTERNAL, "two worlds with one id");
    for (int step = 0; step < 30 && !rc; step++)
        rc = exchange(me, b[step * 7 % 3], 16, step);
    finish(b[1]);
    for (int step = 0; step < 10 && !rc; step++)
        rc = exchange(me, b[step & 1 ? 0 : 2], 16, step);
    finish(b[0]);
    finish(b[2]);
    return rc;
}

static void worlds_live_side_by_side(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, world_beside_world, check_fine);
}

static int aborting(pe *me)
{
    uf_bootstrap *b;
    int rc = create(me, &b);
    if (rc)
        return rc;
    if (me->number == 2)
        uf_bootstrap_abort(b, UF_EABORTED, "enough");
    rc = uf_bootstrap_barrier(b, 0);
    if (rc != uf_bootstrap_poll(b, &me->whose))
        rc = UF_EINTERNAL;
    uf_bootstrap_destroy(b);
    return rc;
}

static void check_abort(test *t)
{
    check_all(t, UF_EABORTED, "PE 2 ended the world: enough");
    for (int i = 0; i < t->n_pes; i++)
        assert_int_equal(t->pes[i].whose, 2);
}

static void an_abort_reaches_everybody_with_its_reason(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, aborting, check_abort);
}

static int dying(pe *me)
{
    uf_bootstrap *b;
    int rc = create(me, &b);
    if (!rc)
        rc = uf_bootstrap_barrier(b, 0);
    if (rc)
        return rc;
    if (me->number == 1) {
        uf_bootstrap_destroy(b); /* without a leave */
        return uf_fail(UF_EPEER, "PE 1");
    }
    rc = uf_bootstrap_barrier(b, 0);
    uf_bootstrap_poll(b, &me->whose);
    uf_bootstrap_destroy(b);
    return rc;
}

static void check_death(test *t)
{
    check_all(t, UF_EPEER, "PE 1");
    for (int i = 0; i < t->n_pes; i++)
        assert_int_equal(t->pes[i].whose, i == 1 ? -1 : 1);
}

static void an_end_without_leave_is_a_death(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, dying, check_death);
}

static int leaving(pe *me)
{
    uf_bootstrap *b;
    int rc = create(me, &b);
    if (rc)
        return rc;
    if (me->number != 3)
        rc = uf_bootstrap_barrier(b, 0);
    else
        rc = uf_fail(UF_EPEER, "PE 3 has left");
    if (uf_bootstrap_poll(b, NULL))
        rc = UF_EINTERNAL; /* leaving is no news */
    finish(b);
    return rc;
}

static void check_left(test *t)
{
    check_all(t, UF_EPEER, "PE 3 has left");
}

static void nobody_waits_for_who_has_left(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, leaving, check_left);
}

static int missing(pe *me)
{
    uf_bootstrap *b;
    if (me->number == 0 || me->number == 2)
        return uf_fail(UF_ETIMEDOUT, "PEs 0, 2 of 4");
    return create(me, &b);
}

static void check_missing(test *t)
{
    check_all(t, UF_ETIMEDOUT, "PEs 0, 2 of 4");
}

static void pes_that_do_not_come_are_named(void **state)
{
    (void)state;
    run_both(4, SECOND / 50, missing, check_missing);
}

static int again(pe *me)
{
    uf_bootstrap *b;
    if (me->number == 1) {
        await_flag(me, 3);
    } else {
        int rc = create_as(me, me->number, SECOND / 50, &b);
        if (rc != UF_ETIMEDOUT)
            return UF_EINTERNAL;
        atomic_fetch_add(&me->test->flag, 1);
    }
    return exchanging(me);
}

static void a_creation_that_failed_can_be_tried_again(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, again, check_fine);
}

static int late(pe *me)
{
    uf_bootstrap *b;
    int rc = create(me, &b);
    if (rc)
        return rc;
    if (me->number == 3)
        await_flag(me, 3);
    rc = uf_bootstrap_barrier(b, SECOND / 50);
    atomic_fetch_add(&me->test->flag, 1);
    if (uf_bootstrap_barrier(b, 0) != UF_ETIMEDOUT)
        rc = UF_EINTERNAL; /* out of step for good */
    await_flag(me, 4);
    finish(b);
    return rc;
}

static void check_late(test *t)
{
    check_all(t, UF_ETIMEDOUT, "PE 3 did not come");
}

static void who_is_late_in_an_exchange_is_named_by_all(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, late, check_late);
}

static int differing(pe *me)
{
    uf_bootstrap *b;
    unsigned char mine[16] = {0}, all[16 * MOST_PES];
    int rc = create(me, &b);
    if (rc)
        return rc;
    int refused = uf_bootstrap_allgather(b, mine, me->number == 2 ? 16 : 8, all, 0);
    char text[512];
    snprintf(text, sizeof text, "%s", uf_error_message());
    rc = exchange(me, b, 8, 1); /* that was an answer, not an end */
    finish(b);
    return rc ? rc : uf_error_set(refused, text);
}

static void check_differing(test *t)
{
    check_all(t, UF_EMISMATCH, "PE 2 brings 16 bytes");
}

static void differing_sizes_are_refused_on_all_with_both(void **state)
{
    (void)state;
    run_both(4, 60 * SECOND, differing, check_differing);
}

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    uf_bootstrap *b;
    uf_group *group;
    assert_int_equal(uf_group_create(0, &group), UF_EINVAL);
    assert_int_equal(uf_group_create(-3, &group), UF_EINVAL);
    assert_int_equal(uf_group_create(2, NULL), UF_EINVAL);
    assert_int_equal(uf_group_create(2, &group), UF_OK);
    uf_bootstrap_params params = {.driver = &uf_driver_threads, .pe = 0, .n_pes = 3, .group = group, .timeout_ns = SECOND};
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_EMISMATCH);
    params.pe = 3;
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_EINVAL);
    params.pe = -1;
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_EINVAL);
    uf_group_destroy(group);
    uf_group_destroy(NULL);
    params = (uf_bootstrap_params){.driver = &uf_driver_threads, .pe = 0, .n_pes = 3, .timeout_ns = SECOND};
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_EINVAL); /* no root */
    assert_non_null(strstr(uf_error_message(), "UNFENCE_ROOT"));
}

static void one_pe_needs_nobody(void **state)
{
    (void)state;
    uf_bootstrap *b;
    int mine = 7, all = 0;
    uf_bootstrap_params params = {.driver = &uf_driver_threads, .pe = 0, .n_pes = 1, .timeout_ns = SECOND};
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_OK);
    assert_int_equal(uf_bootstrap_allgather(b, &mine, sizeof mine, &all, 0), UF_OK);
    assert_int_equal(all, 7);
    assert_int_equal(uf_bootstrap_barrier(b, 0), UF_OK);
    assert_int_equal(uf_bootstrap_fd(b), -1);
    assert_int_equal(uf_bootstrap_allgather(b, &mine, (size_t)1 << 40, &all, 0), UF_EINVAL);
    finish(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pes_exchange_what_they_have),
        cmocka_unit_test(worlds_follow_one_another),
        cmocka_unit_test(worlds_live_side_by_side),
        cmocka_unit_test(an_abort_reaches_everybody_with_its_reason),
        cmocka_unit_test(an_end_without_leave_is_a_death),
        cmocka_unit_test(nobody_waits_for_who_has_left),
        cmocka_unit_test(pes_that_do_not_come_are_named),
        cmocka_unit_test(a_creation_that_failed_can_be_tried_again),
        cmocka_unit_test(who_is_late_in_an_exchange_is_named_by_all),
        cmocka_unit_test(differing_sizes_are_refused_on_all_with_both),
        cmocka_unit_test(wrong_numbers_are_refused),
        cmocka_unit_test(one_pe_needs_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
