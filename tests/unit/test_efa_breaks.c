/* test_efa_breaks.c - NICs of the EFA device model that break by plan: what plans hold, and when a break comes. */
#include "fabric/efa/device_model.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { PES = 3, SEEDS = 4000 };

static void half_of_the_plans_with_several_rails_break_some_and_none_breaks_all(void **state)
{
    (void)state;
    uf_efa_model_break b[UF_EFA_MODEL_BREAKS];
    int several = 0, broken = 0, queues = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t n_rails = uf_efa_model_breaks_plan(seed, PES, 1, b);
        uint32_t n = 0;
        assert_true(n_rails == 1 || n_rails == 2 || n_rails == 4);
        for (uint32_t i = 0; i < UF_EFA_MODEL_BREAKS; i++) {
            assert_true(b[i].at <= UINT64_C(1000) << 14);
            assert_true(b[i].pe < PES && b[i].rail < n_rails);
            n += b[i].at != 0;
            queues += b[i].at != 0 && b[i].queue_only;
        }
        if (n >= n_rails)
            fail_msg("seed %llu breaks %u of %u rails", (unsigned long long)seed, n, n_rails);
        several += n_rails > 1;
        broken += n > 0;
    }
    assert_in_range(several, SEEDS * 7 / 10, SEEDS * 8 / 10);
    assert_in_range(broken, several * 2 / 5, several * 7 / 10);
    assert_in_range(queues, broken / 3, broken);
}

static void a_plan_in_real_time_is_the_same_one_stretched(void **state)
{
    (void)state;
    uf_efa_model_break once[UF_EFA_MODEL_BREAKS], longer[UF_EFA_MODEL_BREAKS];
    for (uint64_t seed = 0; seed < 100; seed++) {
        assert_int_equal(uf_efa_model_breaks_plan(seed, PES, 1, once), uf_efa_model_breaks_plan(seed, PES, 64, longer));
        for (uint32_t i = 0; i < UF_EFA_MODEL_BREAKS; i++) {
            assert_int_equal(longer[i].at, once[i].at * 64);
            assert_int_equal(longer[i].rail, once[i].rail);
        }
    }
}

static bool lives(uf_efa_model_place *place, uint32_t pe, uint32_t rail)
{
    bool can_read, can_write;
    return uf_model_nic_alive(uf_efa_model_place_nic(place, pe, rail), &can_read, &can_write);
}

/* The one who moves the model does it, and says that there is something to see: a PE that sleeps must be woken. */
static void a_break_waits_for_its_time_and_comes_once(void **state)
{
    (void)state;
    const uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS] = {{.at = 1000, .pe = 2, .rail = 1}};
    const uf_efa_model_place_options o = {.n_pes = PES, .n_rails = 2, .breaks = breaks};
    uf_efa_model_place *place;
    assert_int_equal(uf_efa_model_place_create(&o, &place), UF_OK);
    assert_false(uf_efa_model_place_run(place, 999));
    assert_true(lives(place, 2, 1));
    assert_true(uf_efa_model_place_run(place, 1000));
    assert_false(uf_efa_model_place_run(place, 2000));
    for (uint32_t pe = 0; pe < PES; pe++)
        for (uint32_t rail = 0; rail < 2; rail++)
            assert_int_equal(lives(place, pe, rail), pe != 2 || rail != 1);
    assert_int_equal(uf_efa_model_place_severed(place), 1);
    uf_efa_model_place_destroy(place);
}

/* Nothing is under way, and no queue is there that could fail. */
static void a_break_waits_for_work_and_for_the_queue_that_is_to_fail(void **state)
{
    (void)state;
    const uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS] = {{.at = 1, .flying = 1}, {.at = 1, .rail = 1, .queue_only = true}};
    const uf_efa_model_place_options o = {.n_pes = PES, .n_rails = 4, .breaks = breaks};
    uf_efa_model_place *place;
    assert_int_equal(uf_efa_model_place_create(&o, &place), UF_OK);
    assert_false(uf_efa_model_place_run(place, 100000));
    assert_true(lives(place, 0, 0));
    assert_int_equal(uf_efa_model_place_severed(place), 0);
    uf_efa_model_place_destroy(place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_of_the_plans_with_several_rails_break_some_and_none_breaks_all),
        cmocka_unit_test(a_plan_in_real_time_is_the_same_one_stretched),
        cmocka_unit_test(a_break_waits_for_its_time_and_comes_once),
        cmocka_unit_test(a_break_waits_for_work_and_for_the_queue_that_is_to_fail),
    };
    return cmocka_run_group_tests_name("efa_breaks", tests, NULL, NULL);
}
