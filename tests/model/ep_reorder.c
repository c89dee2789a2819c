/* Dispatch and combine are bit for bit right on a network that reorders, delays, cuts, refuses and repeats, for every seed.
 *
 * The PEs are fibers of one thread in virtual time over the adversarial network, so that a seed is one exact run. Each run walks through
 * dispatches, replays and combines of many routings with several handles open: what a protocol that trusted the order of two
 * weak signals, or reused a slot too early, would get wrong. The network also tells of sources that changed in flight. */
#include "engine/driver.h"
#include "multi/ep_case.h"
#include "support/shuffle_fabric.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_PES = 4, STEPS = 50, STEP_NS = 1000 };

static uint64_t seeds = 12, first_seed = 1;

typedef struct actor {
    ep_pe pe;
    uf_group *group;
    const uf_driver *driver;
    uf_shuffle_wire *wire;
    uint64_t seed;
} actor;

static void act(void *arg)
{
    actor *a = arg;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = a->pe.pe, o.n_pes = a->pe.n_pes, o.group = a->group;
    o.driver = a->driver, o.fabric_ops = &uf_shuffle_fabric, o.fabric_arg = a->wire;
    if (!ep_pe_ok(&a->pe, uf_world_create(&o, &a->pe.world), "uf_world_create"))
        return;
    ep_case_churn(&a->pe, a->pe.arg, STEPS, a->seed);
    int rc = uf_world_destroy(a->pe.world);
    if (!a->pe.failed)
        ep_pe_ok(&a->pe, rc, "uf_world_destroy");
}

static int run_seed(const char *profile, uint64_t seed, ep_churn *churn, int n, uf_shuffle_counters *seen)
{
    uf_fibers *fibers = NULL;
    uf_group *group = NULL;
    uf_shuffle_wire *wire = NULL;
    uf_shuffle_knobs knobs;
    actor actors[MOST_PES];
    if (uf_fibers_create(seed, STEP_NS, &fibers) || uf_group_create(n, &group) || uf_shuffle_profile(profile, seed, n, &knobs) ||
        uf_shuffle_create(&knobs, &wire))
        return 1;
    for (int pe = 0; pe < n; pe++) {
        actors[pe] = (actor){{.pe = pe, .n_pes = n, .arg = churn}, group, uf_fibers_driver(fibers), wire, seed};
        if (uf_fibers_add(fibers, act, &actors[pe]))
            return 1;
    }
    int rc = uf_fibers_run(fibers, UINT64_C(600000000000)), failed = rc != UF_OK;
    if (rc)
        fprintf(stderr, "profile %s, seed %llu: %s\n", profile, (unsigned long long)seed, uf_error_message());
    for (int pe = 0; pe < n; pe++) {
        failed += actors[pe].pe.failed > 0;
        if (actors[pe].pe.failed)
            fprintf(stderr, "profile %s, seed %llu, PE %d of %d: %s\n", profile, (unsigned long long)seed, pe, n,
                    actors[pe].pe.why);
    }
    char why[256];
    if (!failed && uf_shuffle_violations(wire, why, sizeof why)) {
        fprintf(stderr, "profile %s, seed %llu: a rule of the network was broken: %s\n", profile, (unsigned long long)seed, why);
        failed++;
    }
    uf_shuffle_counters c;
    uf_shuffle_counters_get(wire, &c);
    seen->overtakes += c.overtakes, seen->duplicates += c.duplicates, seen->refused += c.refused;
    if (rc)
        return failed; /* fibers still stand in the middle of things */
    uf_shuffle_destroy(wire);
    uf_group_destroy(group);
    uf_fibers_destroy(fibers);
    return failed;
}

static void every_seed_of_every_profile_agrees_with_the_model(void **state)
{
    (void)state;
    uf_shuffle_counters seen = {0};
    int failed = 0;
    for (int n = 2; n <= MOST_PES; n++) {
        ep_churn *churn = ep_churn_make(n, 4000);
        for (int p = 0; uf_shuffle_profiles[p]; p++)
            for (uint64_t seed = first_seed; seed < first_seed + seeds && failed < 5; seed++)
                if (seed % (MOST_PES - 1) == (uint64_t)(n - 2))
                    failed += run_seed(uf_shuffle_profiles[p], seed, churn, n, &seen);
        ep_churn_free(churn);
    }
    assert_int_equal(failed, 0);
    /* A network that was kind all the time would prove nothing. */
    assert_true(seen.overtakes > 0 && seen.duplicates > 0 && seen.refused > 0);
}

/* Arguments: number of seeds, first seed. UNFENCE_SEED=n runs that one. */
int main(int argc, char **argv)
{
    const char *one = getenv("UNFENCE_SEED");
    if (argc > 1)
        seeds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    if (one && strtoull(one, NULL, 10))
        first_seed = strtoull(one, NULL, 10), seeds = 1;
    setenv("UNFENCE_HEAP_MAX", "1G", 1);
    setenv("UNFENCE_HEAP_SIZE", "2M", 1);
    setenv("UNFENCE_SIGNALS", "4096", 1);
    setenv("UNFENCE_MAX_LANES", "256", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_seed_of_every_profile_agrees_with_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
