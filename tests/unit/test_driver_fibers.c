/* test_driver_fibers.c - the deterministic driver: a seed is a run, time moves only when everybody had a turn. */
#include "engine/driver.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { FIBERS = 4, LOOKS = 50 };

typedef struct scene {
    uf_fibers *fibers;
    const uf_driver *driver;
    int order[FIBERS * LOOKS];
    int n, returned;
    int token;
} scene;

typedef struct actor {
    scene *scene;
    int number;
} actor;

static void look_and_relax(void *arg)
{
    actor *a = arg;
    scene *s = a->scene;
    for (uint32_t round = 0; round < LOOKS; round++) {
        s->order[s->n++] = a->number;
        s->driver->relax(s->driver->arg, round);
    }
    s->returned++;
}

static uint64_t run_scene(uint64_t seed, scene *s)
{
    actor actors[FIBERS];
    memset(s, 0, sizeof *s);
    assert_int_equal(uf_fibers_create(seed, 100, &s->fibers), UF_OK);
    s->driver = uf_fibers_driver(s->fibers);
    for (int i = 0; i < FIBERS; i++) {
        actors[i] = (actor){s, i};
        assert_int_equal(uf_fibers_add(s->fibers, look_and_relax, &actors[i]), UF_OK);
    }
    assert_int_equal(uf_fibers_run(s->fibers, 1000000), UF_OK);
    assert_int_equal(s->returned, FIBERS);
    uint64_t trace = uf_fibers_trace(s->fibers);
    uf_fibers_destroy(s->fibers);
    return trace;
}

static void same_seed_gives_same_run(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        scene a, b;
        assert_int_equal(run_scene(seed, &a), run_scene(seed, &b));
        assert_memory_equal(a.order, b.order, sizeof a.order);
    }
}

static void different_seeds_give_different_runs(void **state)
{
    (void)state;
    scene first, other;
    uint64_t trace = run_scene(0, &first);
    for (uint64_t seed = 1; seed < 20; seed++) {
        assert_int_not_equal(run_scene(seed, &other), trace);
        assert_memory_not_equal(first.order, other.order, sizeof first.order);
    }
}

static void wait_for_a_time(void *arg)
{
    actor *a = arg;
    const uf_driver *d = a->scene->driver;
    uint64_t deadline = d->now(d->arg) + 1000;
    for (uint32_t round = 0; d->now(d->arg) < deadline; round++) {
        d->relax(d->arg, round);
    }
    a->scene->returned++;
}

static void time_advances_when_all_wait(void **state)
{
    (void)state;
    scene s = {0};
    actor actors[2] = {{&s, 0}, {&s, 1}};
    assert_int_equal(uf_fibers_create(7, 10, &s.fibers), UF_OK);
    s.driver = uf_fibers_driver(s.fibers);
    assert_false(s.driver->threads);
    assert_int_equal(uf_fibers_add(s.fibers, wait_for_a_time, &actors[0]), UF_OK);
    assert_int_equal(uf_fibers_add(s.fibers, wait_for_a_time, &actors[1]), UF_OK);
    assert_int_equal(uf_fibers_run(s.fibers, 100000), UF_OK);
    assert_int_equal(s.returned, 2);
    uint64_t now = s.driver->now(s.driver->arg);
    assert_in_range(now, 1000, 1020);
    uf_fibers_destroy(s.fibers);
}

static void wait_for_ever(void *arg)
{
    actor *a = arg;
    while (!a->scene->token) {
        a->scene->driver->relax(a->scene->driver->arg, 0);
    }
}

static void limit_names_fibers_that_have_not_returned(void **state)
{
    (void)state;
    scene s = {0};
    actor actors[3] = {{&s, 0}, {&s, 1}, {&s, 2}};
    assert_int_equal(uf_fibers_create(7, 10, &s.fibers), UF_OK);
    s.driver = uf_fibers_driver(s.fibers);
    assert_int_equal(uf_fibers_add(s.fibers, wait_for_ever, &actors[0]), UF_OK);
    assert_int_equal(uf_fibers_add(s.fibers, wait_for_a_time, &actors[1]), UF_OK);
    assert_int_equal(uf_fibers_add(s.fibers, wait_for_ever, &actors[2]), UF_OK);
    assert_int_equal(uf_fibers_run(s.fibers, 5000), UF_ETIMEDOUT);
    assert_non_null(strstr(uf_error_message(), "5000"));
    assert_non_null(strstr(uf_error_message(), " 0 2"));
    uf_fibers_destroy(s.fibers);
}

static void note_current(void *arg)
{
    actor *a = arg;
    assert_int_equal(uf_fibers_current(a->scene->fibers), a->number);
    assert_int_equal(uf_fibers_add(a->scene->fibers, wait_for_ever, a), UF_EINVAL);
}

static void fiber_knows_its_number_and_adds_none(void **state)
{
    (void)state;
    scene s = {0};
    actor actors[3] = {{&s, 0}, {&s, 1}, {&s, 2}};
    assert_int_equal(uf_fibers_create(1, 10, &s.fibers), UF_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uf_fibers_add(s.fibers, note_current, &actors[i]), UF_OK);
    }
    assert_int_equal(uf_fibers_current(s.fibers), -1);
    assert_int_equal(uf_fibers_run(s.fibers, 5000), UF_OK);
    assert_int_equal(uf_fibers_current(s.fibers), -1);
    uf_fibers_destroy(s.fibers);
}

/* Sums a large frame on its own stack across switches: what a wrong stack annotation or a shared stack would spoil. */
static void fill_stack(void *arg)
{
    actor *a = arg;
    volatile unsigned char frame[100000];
    for (size_t i = 0; i < sizeof frame; i++) {
        frame[i] = (unsigned char)(i * 7 + (size_t)a->number);
    }
    for (uint32_t round = 0; round < 20; round++) {
        a->scene->driver->relax(a->scene->driver->arg, round);
    }
    for (size_t i = 0; i < sizeof frame; i++) {
        assert_int_equal(frame[i], (unsigned char)(i * 7 + (size_t)a->number));
    }
    a->scene->returned++;
}

static void each_fiber_has_its_own_stack(void **state)
{
    (void)state;
    scene s = {0};
    actor actors[16];
    assert_int_equal(uf_fibers_create(3, 10, &s.fibers), UF_OK);
    s.driver = uf_fibers_driver(s.fibers);
    for (int i = 0; i < 16; i++) {
        actors[i] = (actor){&s, i};
        assert_int_equal(uf_fibers_add(s.fibers, fill_stack, &actors[i]), UF_OK);
    }
    assert_int_equal(uf_fibers_run(s.fibers, 100000), UF_OK);
    assert_int_equal(s.returned, 16);
    uf_fibers_destroy(s.fibers);
}

static void relax_outside_of_fibers_advances_time(void **state)
{
    (void)state;
    uf_fibers *f = NULL;
    assert_int_equal(uf_fibers_create(3, 10, &f), UF_OK);
    const uf_driver *d = uf_fibers_driver(f);
    d->relax(d->arg, 0);
    d->relax(d->arg, 1);
    assert_int_equal(d->now(d->arg), 20);
    uf_fibers_destroy(f);
}

static void zero_step_is_refused(void **state)
{
    (void)state;
    uf_fibers *f = NULL;
    assert_int_equal(uf_fibers_create(3, 0, &f), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "step_ns"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_gives_same_run),
        cmocka_unit_test(different_seeds_give_different_runs),
        cmocka_unit_test(time_advances_when_all_wait),
        cmocka_unit_test(limit_names_fibers_that_have_not_returned),
        cmocka_unit_test(fiber_knows_its_number_and_adds_none),
        cmocka_unit_test(each_fiber_has_its_own_stack),
        cmocka_unit_test(relax_outside_of_fibers_advances_time),
        cmocka_unit_test(zero_step_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
