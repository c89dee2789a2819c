/* efa_questions.c - the program that asks an EFA device what no document says (bench/efa_ask.c), over the model, where the
 * answers are knobs: each must come out as it was set, and the other way when it is set the other way. Two PEs as fibers in virtual time. */
#include "../../bench/efa_ask.h"
#include "base/error.h"
#include "fabric/efa/device_model.h"
#include "fabric/efa/efa.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct interview {
    uf_efa_model_place *place;
    uf_group *group;
    uf_fibers *fibers;
    efa_answer answers[EFA_ANSWERS_MAX];
    uint32_t n;
    int rc[2];
    char why[2][UF_ERROR_BYTES];
} interview;

typedef struct actor {
    interview *i;
    int pe;
} actor;

static void run_pe(void *arg)
{
    actor *a = arg;
    interview *i = a->i;
    uf_settings settings;
    const char *const nothing[] = {NULL};
    uf_efa_device *device = NULL;
    uf_bootstrap *bootstrap = NULL;
    efa_answer answers[EFA_ANSWERS_MAX];
    uint32_t n;
    int rc = uf_settings_load_from(nothing, &settings);
    const uf_bootstrap_params b = {.settings = &settings,
                                   .driver = uf_fibers_driver(i->fibers),
                                   .pe = a->pe,
                                   .n_pes = 2,
                                   .group = i->group,
                                   .timeout_ns = UINT64_C(100000000000)};
    const uf_efa_device_params d = {.settings = &settings, .name = "", .pe = a->pe, .n_pes = 2, .arg = i->place};
    if (!rc)
        rc = uf_bootstrap_create(&b, &bootstrap);
    if (!rc)
        rc = uf_efa_device_model.open(&d, &device);
    const efa_ask_params p = {.device = device,
                              .bootstrap = bootstrap,
                              .driver = uf_fibers_driver(i->fibers),
                              .pe = a->pe,
                              .patience_ns = 50000000,
                              .rate_ns = 300000,
                              .samples = 200,
                              .rounds = 4,
                              .max_queues = 1000};
    if (!rc)
        rc = efa_ask(&p, a->pe ? answers : i->answers, a->pe ? &n : &i->n);
    i->rc[a->pe] = rc;
    snprintf(i->why[a->pe], sizeof i->why[0], "%s", rc ? uf_error_message() : "");
    if (device)
        device->ops->close(device);
    uf_bootstrap_leave(bootstrap);
    uf_bootstrap_destroy(bootstrap);
}

static interview *start(const uf_model_params *params)
{
    interview *i = calloc(1, sizeof *i);
    actor actors[2];
    assert_non_null(i);
    const uf_efa_model_place_options o = {.params = params, .seed = 7, .n_pes = 2};
    assert_int_equal(uf_efa_model_place_create(&o, &i->place), UF_OK);
    assert_int_equal(uf_group_create(2, &i->group), UF_OK);
    assert_int_equal(uf_fibers_create(7, 500, &i->fibers), UF_OK);
    assert_int_equal(uf_fibers_attach(i->fibers, uf_efa_model_place_next, uf_efa_model_place_run, i->place), UF_OK);
    for (int pe = 0; pe < 2; pe++) {
        actors[pe] = (actor){i, pe};
        assert_int_equal(uf_fibers_add(i->fibers, run_pe, &actors[pe]), UF_OK);
    }
    if (uf_fibers_run(i->fibers, UINT64_C(60000000000)) != UF_OK)
        fail_msg("%s", uf_error_message());
    return i;
}

static interview *ask_model(const uf_model_params *params)
{
    interview *i = start(params);
    for (int pe = 0; pe < 2; pe++)
        if (i->rc[pe])
            fail_msg("PE %d: %s", pe, i->why[pe]);
    return i;
}

static void end(interview *i)
{
    uf_fibers_destroy(i->fibers);
    uf_group_destroy(i->group);
    uf_efa_model_place_destroy(i->place);
    free(i);
}

static int64_t value(const interview *i, const char *question)
{
    int64_t found = -99;
    for (uint32_t k = 0; k < i->n; k++)
        if (strcmp(i->answers[k].question, question) == 0) {
            assert_true(found == -99);
            assert_true(i->answers[k].text[0] && i->answers[k].changes[0]);
            found = i->answers[k].value;
        }
    if (found == -99)
        fail_msg("%s was not answered", question);
    return found;
}

static void expect(const interview *i, const char *question, int64_t wanted)
{
    int64_t got = value(i, question);
    if (got != wanted)
        for (uint32_t k = 0; k < i->n; k++)
            if (strcmp(i->answers[k].question, question) == 0)
                fail_msg("%s: %lld and not %lld: %s", question, (long long)got, (long long)wanted, i->answers[k].text);
}

static uf_model_params profile(const char *name)
{
    uf_model_params p;
    assert_int_equal(uf_model_profile(name, &p), UF_OK);
    return p;
}

static void the_usual_device_answers_as_its_profile_says(void **state)
{
    (void)state;
    const uf_model_params p = profile("p5en");
    interview *i = ask_model(&p);
    expect(i, "Q1", 16);
    expect(i, "Q2", 0);
    expect(i, "Q3", 0);
    expect(i, "Q4", 0);
    expect(i, "Q5", UF_EFA_REMOTE_QPN);
    expect(i, "Q6", 0);
    expect(i, "Q7", p.max_qps);
    expect(i, "Q11", UF_EFA_OK);
    expect(i, "Q14", 1);
    expect(i, "Q15", UF_EFA_OK);
    assert_in_range(value(i, "Q9"), 2 * p.latency_ns, 4 * p.latency_ns);
    assert_true(value(i, "Q13") < (int64_t)UF_EFA_STALE_NS);
    end(i);
}

static void every_knob_turns_its_answer(void **state)
{
    (void)state;
    uf_model_params p = profile("p5en");
    p.doorbell_32 = p.rnr_places = p.cq_overwrites = p.duplicate_after_cqe = true;
    p.qkey_answers = p.wide_ids = false;
    p.duplicate_ppm = 200000;
    p.max_batch = 0;
    p.max_qps = 40;
    p.latency_ns = 40000;
    p.qp_message_rate = 1000000;
    interview *i = ask_model(&p);
    expect(i, "Q1", 32);
    expect(i, "Q2", -1);
    assert_true(value(i, "Q3") > 0);
    expect(i, "Q4", 1);
    expect(i, "Q5", UF_EFA_UNRESPONSIVE);
    expect(i, "Q6", 1);
    expect(i, "Q7", 40);
    assert_true(value(i, "Q8") > 300); /* per cent of one queue's rate */
    assert_in_range(value(i, "Q9"), 80000, 160000);
    expect(i, "Q14", 0);
    end(i);
}

/* Every packet takes the long way: some are still under way when their queue is long gone, and none for longer than the fabric waits. */
static void packets_of_a_dead_queue_are_seen(void **state)
{
    (void)state;
    uf_model_params p = profile("p5en");
    p.tail_ppm = 1000000;
    interview *i = ask_model(&p);
    assert_in_range(value(i, "Q13"), 1, UF_EFA_STALE_NS);
    end(i);
}

static void a_device_without_unsolicited_receives_is_not_asked_for_them(void **state)
{
    (void)state;
    const uf_model_params p = profile("p5");
    interview *i = ask_model(&p);
    expect(i, "Q6", -1);
    expect(i, "Q4", 0);
    end(i);
}

static void two_nics_that_do_not_meet_are_not_asked(void **state)
{
    (void)state;
    uf_model_params p = profile("p5en");
    p.can_write = false;
    interview *i = start(&p);
    for (int pe = 0; pe < 2; pe++) {
        assert_int_equal(i->rc[pe], UF_EFABRIC);
        assert_non_null(strstr(i->why[pe], "nothing can be asked"));
    }
    assert_int_equal(i->n, 0);
    end(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_usual_device_answers_as_its_profile_says),
        cmocka_unit_test(every_knob_turns_its_answer),
        cmocka_unit_test(packets_of_a_dead_queue_are_seen),
        cmocka_unit_test(two_nics_that_do_not_meet_are_not_asked),
        cmocka_unit_test(a_device_without_unsolicited_receives_is_not_asked_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
