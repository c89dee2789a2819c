/* core_runner.h - the ways to bring PEs into being for the core's suite: threads, processes, fibers over the adversarial network. */
#ifndef UF_TESTS_CORE_RUNNER_H
#define UF_TESTS_CORE_RUNNER_H

#include "support/shuffle_fabric.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct runner_options {
    const char *mode;    /* "threads", "processes", "fibers", "pe" */
    const char *fabric;  /* as UNFENCE_FABRIC; NULL: from the environment */
    const char *tests;   /* part of a test's name; NULL: all */
    const char *profile; /* fibers: one of uf_shuffle_profiles; NULL: all */
    int n;               /* PEs; fibers: 0 lets the seed choose 2 to 4 */
    uint64_t seed;       /* first one */
    uint64_t seeds;      /* fibers: how many for each profile */
    unsigned timeout;    /* seconds until the runner kills what it has started */
    bool small, long_run, verbose;
} runner_options;

/* Each returns 0 if all passed. */
int runner_threads(const runner_options *o);
int runner_processes(const runner_options *o, char *const argv[]);
int runner_one_pe(const runner_options *o);
int runner_fibers(const runner_options *o);

/* The adversarial network of one process: a wire for the suite's world and two for worlds beside it. Close says what broke fabric.h, or
 * was lost although all tests passed; 0 if nothing. */
enum { RUNNER_WIRES = 3 };
int runner_wires_open(const char *profile, uint64_t seed, int n, uf_shuffle_wire *wires[RUNNER_WIRES]);
int runner_wires_close(uf_shuffle_wire *wires[RUNNER_WIRES], bool passed, uint64_t *severed);

#endif
