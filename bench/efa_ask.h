/* efa_ask.h - asks an EFA device, with two PEs and nothing but rings, what its documents do not say.
 *
 * PE 0 asks, PE 1 is asked; both call efa_ask with devices of their own. Questions that cannot hurt come first; those after
 * which a queue may be in error come last, each on queues of its own. It works on real devices, on the model in real time, and in
 * virtual time, where the answers are knobs. The questions are those of docs/first-efa-run.md. */
#ifndef UF_BENCH_EFA_ASK_H
#define UF_BENCH_EFA_ASK_H

#include "bootstrap/bootstrap.h"
#include "fabric/efa/device.h"

enum { EFA_ANSWERS_MAX = 24 };

typedef struct efa_answer {
    char question[4]; /* "Q1" */
    int64_t value;    /* what a program would want to know; -1: it was not to be found out */
    char text[176];
    const char *changes; /* what in Unfence follows from this answer */
} efa_answer;

typedef struct efa_ask_params {
    uf_efa_device *device; /* its first NIC is asked */
    uf_bootstrap *bootstrap;
    const uf_driver *driver;
    int pe;               /* 0 or 1 */
    uint64_t patience_ns; /* for a completion that may never come */
    uint64_t rate_ns;     /* each measurement of a rate */
    uint32_t samples;     /* of a latency */
    uint32_t rounds;      /* of the look for late duplicates */
    uint32_t max_queues;  /* at most so many are made to find the limit */
} efa_ask_params;

/* PE 0 gets the answers. An error ends the questions, those answered before are kept; both PEs must stop then. */
int efa_ask(const efa_ask_params *params, efa_answer answers[EFA_ANSWERS_MAX], uint32_t *n);

#endif
