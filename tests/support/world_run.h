/* world_run.h - runs one function on every PE of a world that lives in this process, over the fabric that the test names.
 *
 * "local" and "ofi:..." run PEs as threads in real time; "shuffle:PROFILE" runs them as fibers in virtual time over the adversarial
 * network, so that a seed is one run exactly. A check that fails is noted with its PE, aborts the world so that nobody waits
 * for it, and fails the test from the main thread: cmocka's own assertions may not be used on other threads. */
#ifndef TESTS_SUPPORT_WORLD_RUN_H
#define TESTS_SUPPORT_WORLD_RUN_H

#include "unfence/unfence.h"
#include <stdbool.h>

typedef struct world_run {
    const char *fabric; /* as above */
    int n_pes;
    uint64_t seed;                   /* of shuffle */
    uint64_t timeout_ns;             /* 0: 60 s */
    size_t heap_bytes;               /* 0: 8 MiB */
    uint32_t n_rails;                /* of shuffle; 0: as the profile says */
    const struct uf_fabric_ops *ops; /* over shuffle's wire instead of its own; NULL: its own */
    void *arg;
} world_run;

/* What a PE's function gets. */
typedef struct world_pe {
    uf_world *world;
    int pe, n;
    const world_run *run;
    struct uf_shuffle_wire *wire; /* of shuffle */
    void *arg;
} world_pe;

/* Fails the current cmocka test if any PE failed or the adversarial network saw a broken rule. */
void world_run_all(const world_run *run, void (*body)(world_pe *me));
/* For threads that a body starts by itself and for helpers: notes the failure, aborts the world. Always false. */
bool world_run_failed(const world_pe *me, const char *file, int line, const char *what);

/* Leaves the (void) function if `condition` does not hold. */
#define CHECK(me, condition)                                                                                                     \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            world_run_failed(me, __FILE__, __LINE__, #condition);                                                                \
            return;                                                                                                              \
        }                                                                                                                        \
    } while (0)

#endif
