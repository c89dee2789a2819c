/* core_runner.h - the ways to bring PEs into being for the core's suite: threads, processes, fibers in virtual time. */
#ifndef UF_TESTS_CORE_RUNNER_H
#define UF_TESTS_CORE_RUNNER_H

#include "engine/driver.h"
#include "fabric/fabric.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct runner_options {
    const char *mode; /* "threads", "processes", "fibers", "pe" */
    const char *
        fabric; /* as UNFENCE_FABRIC; NULL: from the environment, with fibers shuffle. Fibers and threads: also shuffle:PROFILE, efa:PROFILE */
    const char *tests;   /* part of a test's name; NULL: all */
    const char *profile; /* fibers: one of the network's; NULL: all */
    int n;               /* PEs; fibers: 0 lets the seed choose 2 to 4 */
    uint64_t seed;       /* first one */
    uint64_t seeds;      /* fibers: how many for each profile, 0: 100. threads: runs, 0: 1 */
    unsigned timeout;    /* seconds until the runner kills what it has started */
    bool small, long_run, verbose;
    bool again; /* fibers: each seed twice, which must go the same way */
} runner_options;

/* Each returns 0 if all passed. */
int runner_threads(const runner_options *o);
int runner_processes(const runner_options *o, char *const argv[]);
int runner_one_pe(const runner_options *o);
int runner_fibers(const runner_options *o);

/* A network inside one process. A wire is one such network for one world; what a wire is, its maker knows. */
typedef struct runner_network {
    const char *name;
    const char *const *profiles; /* NULL-terminated */
    const struct uf_fabric_ops *ops;
    uint64_t step_ns;          /* of virtual time */
    bool rails_break;          /* by seed, some rails do */
    const char *rails_profile; /* where over many seeds some must; NULL: in each */
    int (*open)(const char *profile, uint64_t seed, int n, bool threads, void **wire);
    void *(*arg)(void *wire); /* what the fabric takes for its argument */
    /* Says what broke a rule, or was lost although all tests passed; the number of such things. `first`: the suite's own world's. *severed:
     * WRs that broken rails took with them are added. */
    int (*close)(void *wire, bool first, bool passed, uint64_t *severed);
    int (*attach)(void *wire, uf_fibers *fibers); /* NULL: it has no time of its own */
    uint64_t (*trace)(void *wire);
} runner_network;

/* "shuffle", "efa", or with ":PROFILE"; *profile is NULL without one. NULL: it is none of these. */
const runner_network *runner_network_find(const char *fabric, const char **profile);

/* A wire for the suite's world and two for worlds beside it. */
enum { RUNNER_WIRES = 3 };
int runner_wires_open(const runner_network *network, const char *profile, uint64_t seed, int n, bool threads,
                      void *wires[RUNNER_WIRES]);
int runner_wires_close(const runner_network *network, void *wires[RUNNER_WIRES], bool passed, uint64_t *severed);

#endif
