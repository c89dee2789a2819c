/* moe_report.h - what the example shows: progress while it runs, then a table for people or JSON for machines. Only PE 0 calls these. */
#ifndef MOE_REPORT_H
#define MOE_REPORT_H

#include <stdint.h>

/* What one PE did in one run: plain numbers, sent to PE 0 as bytes. */
typedef struct moe_pe {
    uint64_t tokens, sent, received; /* bytes of text; rows, its own included */
    uint64_t dispatches;
    uint64_t bytes_local, bytes_network; /* payload put, by path */
    uint64_t puts, signals, signalled;   /* signalled: work requests can only be counted against those that used a network */
    uint64_t data_wrs, signal_wrs, control_wrs, fences, eagain;
    uint64_t checked, wrong;                                     /* elements compared with one process; those that differ */
    uint64_t digest;                                             /* of all results */
    double dispatch_p50, dispatch_p99, combine_p50, combine_p99; /* microseconds */
    double late_dispatch, late_combine;                          /* milliseconds waited for the latest PE, in all */
    int64_t late_pe;                                             /* who that was last, -1: nobody */
} moe_pe;

/* One run of the whole job over one fabric. */
typedef struct moe_run {
    char asked[64], fabric[64], provider[64];
    double seconds;
    moe_pe *pes;
} moe_run;

typedef struct moe_job {
    int n_pes, layers, hidden, inner, experts, top_k, tokens, batches, check;
    uint64_t seed;
    int text_files, text_cut; /* text_cut: --batches left some of the text out */
    int n_runs;
    moe_run *runs;
} moe_job;

void moe_progress(const char *what, uint64_t done, uint64_t all);
/* True if every result was right: nothing differs from one process, and all runs gave the same bits. */
int moe_job_sound(const moe_job *job);
void moe_report_table(const moe_job *job);
/* 0, or -1 if memory is out. */
int moe_report_json(const moe_job *job);

#endif
