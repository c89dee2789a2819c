/* core_fibers.c - runs the suite in virtual time over a network inside the process (core_networks.c): each seed is one exact run.
 *
 * The seed chooses the turns of the PEs, every movement of the network, the number of PEs and how scarce the library's own
 * resources are. A failure prints the command that repeats it. After each run the network is asked whether any rule of fabric.h was broken and
 * whether anything was lost; both fail the run, whatever the tests said. */
#include "engine/driver.h"
#include "multi/core_runner.h"
#include "multi/core_suite.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PES = 8 };

#define VIRTUAL_LIMIT_NS UINT64_C(60000000000)

typedef struct scene {
    const runner_options *options;
    const runner_network *network;
    const char *profile;
    uint64_t seed;
    int n;
    uf_fibers *fibers;
    uf_group *group;
    void *wire[RUNNER_WIRES];
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
        .fabric_ops = s->network->ops,
        .fabric_arg = s->network->arg(s->wire[0]),
        .more_fabric_args = {s->network->arg(s->wire[1]), s->network->arg(s->wire[2])},
        .seed = s->seed,
        .max_window = (uint32_t)atoi(getenv("UNFENCE_WINDOW")),
        .small = true,
        .seldom = s->seed % 8 != 0 && !s->options->tests,
        .single_thread = true,
        .inline_progress = true,
        .rails_break = s->network->rails_break,
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
    setenv("UNFENCE_EFA_WQE", seed / 16 % 2 ? "128" : "64", 1);
    setenv("UNFENCE_MAX_LANES", "1024", 1);
    setenv("UNFENCE_HEAP_MAX", "256M", 1);
    setenv("UNFENCE_SIGNALS", "4096", 1);
}

static int open_scene(scene *s)
{
    int rc = uf_fibers_create(s->seed, s->network->step_ns, &s->fibers);
    if (rc == UF_OK)
        rc = uf_group_create(s->n, &s->group);
    if (rc == UF_OK)
        rc = runner_wires_open(s->network, s->profile, s->seed, s->n, false, s->wire);
    for (int i = 0; rc == UF_OK && s->network->attach && i < RUNNER_WIRES; i++)
        rc = s->network->attach(s->wire[i], s->fibers);
    return rc;
}

/* 0 if the run passed; the trace of turns and movements in *trace. */
static int run_seed(const runner_options *o, const runner_network *network, const char *profile, uint64_t seed,
                    suite_result *result, uint64_t *trace, uint64_t *severed)
{
    scene s = {.options = o, .network = network, .profile = profile, .seed = seed, .n = o->n ? o->n : 2 + (int)(seed * 7 % 3)};
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
    *trace = rc == UF_OK ? uf_fibers_trace(s.fibers) ^ network->trace(s.wire[0]) : 0;
    int faults = 1;
    if (rc == UF_OK) { /* else fibers still stand in the middle of things, and keep them */
        /* A world that a rail ended leaves work behind, as an aborted one does. */
        bool whole = s.failures == 0 && s.result.by_rail == 0;
        faults = s.failures + runner_wires_close(network, s.wire, whole, severed);
        uf_group_destroy(s.group);
        uf_fibers_destroy(s.fibers);
    }
    if (faults)
        fprintf(stderr, "        again: core_suite --mode fibers --fabric %s --profile %s --seed %llu --seeds 1 --n %d%s%s\n",
                network->name, profile, (unsigned long long)seed, s.n, o->tests ? " --tests " : "", o->tests ? o->tests : "");
    *result = s.result;
    return faults;
}

/* Over many seeds breaks must have hit something, and most of what they hit must have gone on: else the runs show nothing about them. */
static int judge_breaks(const runner_network *network, const char *profile, uint64_t seeds, uint64_t severed, int by_rail)
{
    bool hit = severed > 0 || (network->rails_profile && strcmp(profile, network->rails_profile) != 0);
    if (seeds < 10 || (hit && (uint64_t)by_rail * 2 <= seeds))
        return 0;
    fprintf(stderr, "FAILED  %s\n", hit ? "too many tests were ended by broken rails" : "no rail broke with anything on it");
    return 1;
}

/* A seed that fails must fail again for whoever looks for the reason: the run depends on nothing but the seed. */
static bool goes_the_same_way(const runner_options *o, const runner_network *network, const char *profile, uint64_t seed,
                              uint64_t trace)
{
    suite_result result;
    uint64_t other = 0, severed = 0;
    void *shift = malloc(1000 * (1 + seed % 7)); /* addresses are others than before */
    run_seed(o, network, profile, seed, &result, &other, &severed);
    free(shift);
    if (other != trace)
        fprintf(stderr, "FAILED  profile %s, seed %llu went another way the second time: trace %016llx, then %016llx\n", profile,
                (unsigned long long)seed, (unsigned long long)trace, (unsigned long long)other);
    return other == trace;
}

static int run_profile(const runner_options *o, const runner_network *network, const char *profile)
{
    int failed = 0, ran = 0, by_rail = 0;
    uint64_t trace = 0, severed = 0;
    uint64_t seeds = o->seeds ? o->seeds : 100;
    for (uint64_t i = 0; i < seeds && failed < 5; i++) {
        suite_result result;
        failed += run_seed(o, network, profile, o->seed + i, &result, &trace, &severed) != 0;
        if (o->again)
            failed += !goes_the_same_way(o, network, profile, o->seed + i, trace);
        ran += result.ran;
        by_rail += result.by_rail;
    }
    if (!o->tests && network->rails_break)
        failed += judge_breaks(network, profile, seeds, severed, by_rail);
    printf("%s profile %-12s seeds %llu to %llu: %d tests, %d failed, last trace %016llx; broken rails lost %llu WRs and ended "
           "%d tests\n",
           failed ? "FAILED " : "ok     ", profile, (unsigned long long)o->seed, (unsigned long long)(o->seed + seeds - 1), ran,
           failed, (unsigned long long)trace, (unsigned long long)severed, by_rail);
    fflush(stdout);
    return failed;
}

int runner_fibers(const runner_options *o)
{
    int failed = 0;
    const char *profile = NULL;
    const runner_network *network = runner_network_find(o->fabric ? o->fabric : "shuffle", &profile);
    if (!network) {
        fprintf(stderr, "core_suite: fibers need a network inside the process: shuffle or efa, not %s\n", o->fabric);
        return 2;
    }
    profile = o->profile ? o->profile : profile;
    for (int i = 0; network->profiles[i]; i++) {
        if (!profile || strcmp(profile, network->profiles[i]) == 0)
            failed += run_profile(o, network, network->profiles[i]);
    }
    return failed;
}
