/* ep_pes.h - runs one function on each of n PEs, each a thread with a world of its own in one group.
 *
 * cmocka's assertions belong to the main thread, so a PE tells what went wrong with ep_pe_fail, which keeps its first sentence; ep_pes_run
 * prints the sentences and returns how many PEs failed, for the test to assert on. */
#ifndef TESTS_SUPPORT_EP_PES_H
#define TESTS_SUPPORT_EP_PES_H

#include "unfence/ep.h"

typedef struct ep_pe {
    uf_world *world;
    int pe, n_pes;
    void *arg;
    int failed;
    char why[512];
} ep_pe;

/* `timeout_ns` 0: the default. */
int ep_pes_run(int n_pes, const char *fabric, uint64_t timeout_ns, void (*body)(ep_pe *pe), void *arg);
/* Notes a failure of this PE; the first one counts. */
void ep_pe_fail(ep_pe *pe, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* True if rc is UF_OK, else notes the call and the library's sentence. */
int ep_pe_ok(ep_pe *pe, int rc, const char *call);

#endif
