/* core_networks.c - the networks that live inside one process, for threads and fibers: the adversarial one and the EFA device model.
 *
 * Each gives the suite's world and two worlds beside it a wire of their own, and after a run says what was wrong with it: rules
 * broken, traps, completions lost. On the wires beside, tests end worlds by abort, which may drop what flies; there
 * only what no ending excuses counts. */
#include "fabric/efa/device_model.h"
#include "multi/core_runner.h"
#include "multi/core_suite.h"
#include "support/shuffle_fabric.h"
#include "unfence/unfence.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- shuffle */

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

static int shuffle_open(const char *profile, uint64_t seed, int n, bool threads, void **wire)
{
    uf_shuffle_knobs knobs;
    (void)threads;
    int rc = uf_shuffle_profile(profile, seed, n, &knobs);
    if (rc != UF_OK)
        return rc;
    choose_rails(seed, &knobs);
    return uf_shuffle_create(&knobs, (uf_shuffle_wire **)wire);
}

static int shuffle_close(void *wire, bool first, bool passed, uint64_t *severed)
{
    int faults = 0;
    char what[256];
    uf_shuffle_counters counters;
    uint32_t violations = uf_shuffle_violations(wire, what, sizeof what);
    uf_shuffle_counters_get(wire, &counters);
    *severed += counters.severed;
    if (violations > 0) {
        fprintf(stderr, "FAILED  the network found %u violations of fabric.h, the first: %s\n", violations, what);
        faults++;
    }
    if (counters.lost > 0 && first && passed) {
        fprintf(stderr, "FAILED  %llu work requests were completed and then lost\n", (unsigned long long)counters.lost);
        faults++;
    }
    uf_shuffle_destroy(wire);
    return faults;
}

static void *wire_itself(void *wire)
{
    return wire;
}

static uint64_t shuffle_trace(void *wire)
{
    return uf_shuffle_trace(wire);
}

/* ---------------------------------------------------------------- efa over the model */

static const char *const efa_profiles[] = {"p5en", "chaos", "p5", "p6-b200", "fifo", NULL};

enum { EFA_BREAKS = 2 };

/* A NIC that is killed, or its queue pair that fails, at the first moment after `at` when so much is under way. */
typedef struct efa_break {
    uint64_t at, flying; /* at 0: none */
    uint32_t pe, rail;
    bool queue_only;
} efa_break;

typedef struct efa_wire {
    uf_efa_model_place *place;
    efa_break breaks[EFA_BREAKS];
    uint64_t severed;
} efa_wire;

/* One, two or four rails. In half of the runs with several one or two of them break, never the last; in real time none does. */
static uint32_t efa_choose_rails(uint64_t seed, int n, bool threads, efa_wire *w)
{
    static const uint32_t rails[] = {1, 2, 4, 2};
    uint64_t dice = suite_random_start(&(suite){.place.seed = seed}, 0, 0xefa11);
    uint32_t n_rails = rails[suite_random_next(&dice, 4)];
    for (uint32_t i = 0; i < EFA_BREAKS && i + 1 < n_rails && !threads; i++) {
        uint64_t scale = UINT64_C(1000) << suite_random_next(&dice, 15);
        w->breaks[i] = (efa_break){.at = suite_random_next(&dice, 2) ? 1 + suite_random_next(&dice, scale) : 0,
                                   .flying = suite_random_next(&dice, 12),
                                   .pe = (uint32_t)suite_random_next(&dice, (uint64_t)n),
                                   .rail = (uint32_t)suite_random_next(&dice, n_rails),
                                   .queue_only = suite_random_next(&dice, 2)};
    }
    return n_rails;
}

static int efa_open(const char *profile, uint64_t seed, int n, bool threads, void **wire)
{
    efa_wire *w = calloc(1, sizeof *w);
    if (!w)
        return UF_ENOMEM;
    const uf_efa_model_place_options o = {.profile = profile,
                                          .seed = seed,
                                          .n_pes = (uint32_t)n,
                                          .n_rails = efa_choose_rails(seed, n, threads, w),
                                          .real_time = threads};
    int rc = uf_efa_model_place_create(&o, &w->place);
    if (rc)
        free(w);
    else
        *wire = w;
    return rc;
}

static void *efa_arg(void *wire)
{
    return ((efa_wire *)wire)->place;
}

static int efa_close(void *wire, bool first, bool passed, uint64_t *severed)
{
    efa_wire *w = wire;
    *severed += w->severed;
    const uf_model *model = uf_efa_model_place_model(w->place);
    const uf_model_stats *stats = uf_model_get_stats(model);
    int faults = 0;
    /* Memory closed under work: what an abort does. */
    uint64_t excused = first && passed ? 0 : stats->traps[UF_MODEL_TRAP_MR_IN_USE];
    if (uf_model_traps(model) > excused) {
        fprintf(stderr, "FAILED  the EFA model trapped %llu times:\n", (unsigned long long)uf_model_traps(model));
        for (uint32_t i = 0; i < 4 && uf_model_trap(model, i); i++)
            fprintf(stderr, "        %s\n", uf_model_trap(model, i));
        faults++;
    }
    if (stats->cqes_lost || stats->out_of_memory) {
        fprintf(stderr, "FAILED  the EFA model lost %llu completions and was out of memory %llu times\n",
                (unsigned long long)stats->cqes_lost, (unsigned long long)stats->out_of_memory);
        faults++;
    }
    uf_efa_model_place_destroy(w->place);
    free(w);
    return faults;
}

/* Each world's only queue pair of a NIC is its first. */
static bool efa_break_now(efa_wire *w, const efa_break *b)
{
    if (b->queue_only)
        return uf_model_qp_fail(uf_efa_model_place_nic(w->place, b->pe, b->rail), 0) == UF_OK;
    uf_efa_model_place_kill(w->place, b->pe, b->rail);
    return true;
}

/* Whether something broke. */
static bool efa_look(efa_wire *w)
{
    bool broke = false;
    const uf_model *model = uf_efa_model_place_model(w->place);
    const uf_model_stats *s = uf_model_get_stats(model);
    for (uint32_t i = 0; i < EFA_BREAKS; i++) {
        efa_break *b = &w->breaks[i];
        uint64_t flying = s->wqes - s->tx_cqes - s->silent;
        if (b->at == 0 || b->at > uf_model_now(model) || flying < b->flying || !efa_break_now(w, b))
            continue;
        b->at = 0;
        broke = true;
        w->severed += flying;
    }
    return broke;
}

static uint64_t efa_next(void *wire)
{
    return uf_efa_model_place_next(((efa_wire *)wire)->place);
}

static bool efa_run(void *wire, uint64_t until)
{
    bool seen = uf_efa_model_place_run(((efa_wire *)wire)->place, until);
    return efa_look(wire) || seen;
}

static int efa_attach(void *wire, uf_fibers *fibers)
{
    return uf_fibers_attach(fibers, efa_next, efa_run, wire);
}

static uint64_t efa_trace(void *wire)
{
    const uf_model_stats *s = uf_model_get_stats(uf_efa_model_place_model(((efa_wire *)wire)->place));
    const uint64_t counts[] = {s->events,    s->doorbells, s->wqes,   s->packets, s->drops,   s->retransmits, s->rnr,
                               s->acks_lost, s->bytes,     s->splits, s->tx_cqes, s->rx_cqes, s->stalls,      s->duplicates};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        hash = (hash ^ counts[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---------------------------------------------------------------- all */

static const runner_network networks[] = {
    {"shuffle", uf_shuffle_profiles, &uf_shuffle_fabric, 1000, true, "rails", shuffle_open, wire_itself, shuffle_close, NULL,
     shuffle_trace},
    {"efa", efa_profiles, &uf_fabric_efa, 500, true, NULL, efa_open, efa_arg, efa_close, efa_attach, efa_trace},
};

const runner_network *runner_network_find(const char *fabric, const char **profile)
{
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        size_t length = strlen(networks[i].name);
        if (strncmp(fabric, networks[i].name, length) || (fabric[length] && fabric[length] != ':'))
            continue;
        *profile = fabric[length] ? fabric + length + 1 : NULL;
        return &networks[i];
    }
    return NULL;
}

int runner_wires_open(const runner_network *network, const char *profile, uint64_t seed, int n, bool threads,
                      void *wires[RUNNER_WIRES])
{
    int rc = UF_OK;
    for (int i = 0; rc == UF_OK && i < RUNNER_WIRES; i++)
        rc = network->open(profile, seed * RUNNER_WIRES + (uint64_t)i, n, threads, &wires[i]);
    return rc;
}

int runner_wires_close(const runner_network *network, void *wires[RUNNER_WIRES], bool passed, uint64_t *severed)
{
    int faults = 0;
    for (int i = 0; i < RUNNER_WIRES && wires[i]; i++)
        faults += network->close(wires[i], i == 0, passed, severed);
    return faults;
}
