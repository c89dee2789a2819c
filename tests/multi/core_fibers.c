/* core_fibers.c - runs the suite in virtual time over the adversarial network: each seed is one exact run.
 *
 * The seed chooses the turns of the PEs, every movement of the network, the number of PEs and how scarce the library's own
 * resources are. A failure prints the command that repeats it. After each run the network is asked whether any rule of fabric.h was broken and
 * whether anything was lost; both fail the run, whatever the tests said. */
#include "engine/driver.h"
#include "multi/core_runner.h"
#include "multi/core_suite.h"
#include "support/shuffle_fabric.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PES = 8, STEP_NS = 1000 };

#define VIRTUAL_LIMIT_NS UINT64_C(60000000000)

typedef struct scene {
    const runner_options *options;
    const char *profile;
    uint64_t seed;
    int n;
    uf_fibers *fibers;
    uf_group *group;
    uf_shuffle_wire *wire[RUNNER_WIRES];
    int failures;
    suite_result result;
} scene;

typedef struct actor {
    scene *scene;
    int pe;
} actor;

static void run_pe(void *arg)
{
    actor *a = arg;
    scene *s = a->scene;
    suite_result result;
    suite_place place = {
        .pe = a->pe,
        .n = s->n,
        .group = s->group,
        .driver = uf_fibers_driver(s->fibers),
        .fabric_ops = &uf_shuffle_fabric,
        .fabric_arg = s->wire[0],
        .more_fabric_args = {s->wire[1], s->wire[2]},
        .seed = s->seed,
        .max_window = (uint32_t)atoi(getenv("UNFENCE_WINDOW")),
        .small = true,
        .seldom = s->seed % 8 != 0 && !s->options->tests,
        .single_thread = true,
        .inline_progress = true,
        .rails_break = true,
    };
    s->failures += suite_run(&place, s->options->tests, s->options->verbose && s->options->seeds == 1, &result);
    if (a->pe == 0)
        s->result = result;
}

/* Scarcity by seed: what is plenty in production hides what happens when it runs out. No other thread runs, so setenv is safe. */
static void choose_settings(uint64_t seed)
{
    static const char *const credits[] = {"4", "5", "16", "256"}, *const messages[] = {"2", "3", "8", "32"};
    static const char *const windows[] = {"2", "4", "16", "256"}, *const depths[] = {"16", "64", "1024", "1024"};
    setenv("UNFENCE_CREDITS", credits[seed % 4], 1);
    setenv("UNFENCE_MESSAGES", messages[seed / 4 % 4], 1);
    setenv("UNFENCE_WINDOW", windows[seed / 2 % 4], 1);
    setenv("UNFENCE_QUEUE_DEPTH", depths[seed / 8 % 4], 1);
    static const char *const stripes[] = {"0", "256", "1K", "8K"};
    setenv("UNFENCE_STRIPE", stripes[seed / 3 % 4], 1);
    setenv("UNFENCE_MAX_LANES", "1024", 1);
    setenv("UNFENCE_HEAP_MAX", "256M", 1);
    setenv("UNFENCE_SIGNALS", "4096", 1);
}

/* One, two or four rails where the profile does not say, and in half of those runs one or two of them break somewhere on the way. */
static void choose_rails(uint64_t seed, uf_shuffle_knobs *k)
{
    static const uint32_t rails[] = {1, 2, 4, 2};
    uint64_t dice = suite_random_start(&(suite){.place.seed = seed}, 0, 0x7a11);
    if (k->n_rails == 0)
        k->n_rails = rails[suite_random_next(&dice, 4)];
    for (uint32_t i = 0; i < UF_SHUFFLE_BREAKS && i + 1 < k->n_rails; i++) {
        uint64_t scale = UINT64_C(1) << (8 + suite_random_next(&dice, 11));
        k->breaks[i].at = suite_random_next(&dice, 2) ? 1 + suite_random_next(&dice, scale) : 0;
        k->breaks[i].flying = (uint32_t)suite_random_next(&dice, 12);
        k->breaks[i].pe = (int)suite_random_next(&dice, (uint64_t)k->n_pes);
        k->breaks[i].rail = (uint32_t)suite_random_next(&dice, k->n_rails);
    }
}

int runner_wires_open(const char *profile, uint64_t seed, int n, uf_shuffle_wire *wires[RUNNER_WIRES])
{
    int rc = UF_OK;
    for (int i = 0; rc == UF_OK && i < RUNNER_WIRES; i++) {
        uf_shuffle_knobs knobs;
        rc = uf_shuffle_profile(profile, seed * RUNNER_WIRES + (uint64_t)i, n, &knobs);
        if (rc != UF_OK)
            break;
        choose_rails(seed * RUNNER_WIRES + (uint64_t)i, &knobs);
        rc = uf_shuffle_create(&knobs, &wires[i]);
    }
    return rc;
}

/* What the network has to say afterwards: nothing, one hopes. `passed`: no test failed. *severed: WRs lost on broken rails are added. */
int runner_wires_close(uf_shuffle_wire *wires[RUNNER_WIRES], bool passed, uint64_t *severed)
{
    int faults = 0;
    for (int i = 0; i < RUNNER_WIRES && wires[i]; i++) {
        char first[256];
        uf_shuffle_counters counters;
        uint32_t violations = uf_shuffle_violations(wires[i], first, sizeof first);
        uf_shuffle_counters_get(wires[i], &counters);
        *severed += counters.severed;
        if (violations > 0) {
            fprintf(stderr, "FAILED  the network found %u violations of fabric.h, the first: %s\n", violations, first);
            faults++;
        }
        if (counters.lost > 0 && i == 0 && passed) { /* on other wires tests end worlds by abort, which may drop what flies */
            fprintf(stderr, "FAILED  %llu work requests were completed and then lost\n", (unsigned long long)counters.lost);
            faults++;
        }
        uf_shuffle_destroy(wires[i]);
    }
    return faults;
}

static int open_scene(scene *s)
{
    int rc = uf_fibers_create(s->seed, STEP_NS, &s->fibers);
    if (rc == UF_OK)
        rc = uf_group_create(s->n, &s->group);
    return rc == UF_OK ? runner_wires_open(s->profile, s->seed, s->n, s->wire) : rc;
}

/* 0 if the run passed; the trace of turns and movements in *trace. */
static int run_seed(const runner_options *o, const char *profile, uint64_t seed, suite_result *result, uint64_t *trace,
                    uint64_t *severed)
{
    scene s = {.options = o, .profile = profile, .seed = seed, .n = o->n ? o->n : 2 + (int)(seed * 7 % 3)};
    actor actors[MAX_PES];
    choose_settings(seed);
    int rc = open_scene(&s);
    for (int pe = 0; rc == UF_OK && pe < s.n; pe++) {
        actors[pe] = (actor){&s, pe};
        rc = uf_fibers_add(s.fibers, run_pe, &actors[pe]);
    }
    if (rc == UF_OK)
        rc = uf_fibers_run(s.fibers, VIRTUAL_LIMIT_NS);
    if (rc != UF_OK)
        fprintf(stderr, "FAILED  %s: %s\n", uf_error_name(rc), uf_error_message());
    *trace = rc == UF_OK ? uf_fibers_trace(s.fibers) ^ uf_shuffle_trace(s.wire[0]) : 0;
    int faults = 1;
    if (rc == UF_OK) { /* else fibers still stand in the middle of things, and keep them */
        faults = s.failures + runner_wires_close(s.wire, s.failures == 0, severed);
        uf_group_destroy(s.group);
        uf_fibers_destroy(s.fibers);
    }
    if (faults)
        fprintf(stderr, "        again: core_suite --mode fibers --profile %s --seed %llu --n %d%s%s\n", profile,
                (unsigned long long)seed, s.n, o->tests ? " --tests " : "", o->tests ? o->tests : "");
    *result = s.result;
    return faults;
}

static int run_profile(const runner_options *o, const char *profile)
{
    int failed = 0, ran = 0, by_rail = 0;
    uint64_t trace = 0, severed = 0;
    for (uint64_t i = 0; i < o->seeds && failed < 5; i++) {
        suite_result result;
        failed += run_seed(o, profile, o->seed + i, &result, &trace, &severed) != 0;
        ran += result.ran;
        by_rail += result.by_rail;
    }
    printf("%s profile %-12s seeds %llu to %llu: %d tests, %d seeds failed, %llu WRs lost on broken rails, %d tests ended by "
           "them, last "
           "trace %016llx\n",
           failed ? "FAILED " : "ok     ", profile, (unsigned long long)o->seed, (unsigned long long)(o->seed + o->seeds - 1),
           ran, failed, (unsigned long long)severed, by_rail, (unsigned long long)trace);
    fflush(stdout);
    return failed;
}

int runner_fibers(const runner_options *o)
{
    int failed = 0;
    for (int i = 0; uf_shuffle_profiles[i]; i++) {
        if (!o->profile || strcmp(o->profile, uf_shuffle_profiles[i]) == 0)
            failed += run_profile(o, uf_shuffle_profiles[i]);
    }
    return failed;
}
