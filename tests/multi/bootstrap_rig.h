/* bootstrap_rig.h - what the tests of the TCP bootstrap share: PEs as processes that create one, exchange and report. */
#ifndef UF_TESTS_MULTI_BOOTSTRAP_RIG_H
#define UF_TESTS_MULTI_BOOTSTRAP_RIG_H

#include "bootstrap/bootstrap.h"
#include "multi/processes.h"
#include <stddef.h>

#define SECOND 1000000000ull

/* What the bodies of one test agree on: set before they are forked, put back by rig_run. */
extern int rig_n_pes;
extern const char *rig_job;
extern uint64_t rig_create_ns;

int rig_create(process_table *table, int pe, uf_bootstrap **b);
/* Notes what a call returned and its sentence; 0, so that bodies can end with it. */
int rig_report(process_table *table, int pe, int code, int whose);
/* PEs `from` to `to` have reported `code` with a sentence that has `said` in it. */
void rig_assert_all(process_table *table, int from, int to, int code, const char *said);
/* Runs `body` in n processes, which must all end well, then `check` (may be NULL) on what they reported. */
void rig_run(int n, int (*body)(process_table *, int), void (*check)(process_table *));
/* Everybody gives `bytes` bytes made of its number and the step; 0 if all came back right. */
int rig_exchange(uf_bootstrap *b, int pe, int n, size_t bytes, int step);
/* A body: many exchanges of many sizes, the id of the bootstrap as the reported value. */
int rig_exchanging(process_table *table, int pe);
/* Until there are news. */
int rig_await_news(uf_bootstrap *b, int *pe);

#endif
