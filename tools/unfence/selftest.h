/* selftest.h - what the files of `unfence selftest` share. */
#ifndef UNFENCE_TOOL_SELFTEST_H
#define UNFENCE_TOOL_SELFTEST_H

#include "support/moe_reference.h"
#include "unfence/ep.h"
#include <stdbool.h>

enum { SELFTEST_MAX_PES = 16, SELFTEST_CONFIGS = 144, SELFTEST_ROUNDINGS = 3, SELFTEST_BIASES = 3 };

typedef struct selftest_preset {
    const char *name;
    int hidden, experts, top_k;
} selftest_preset;

/* The inputs of all PEs for one number of tokens, and what the reference model says; made once, then only read. */
typedef struct selftest_case {
    int n_pes, hidden, n_experts, top_k, tokens, n_scales, node_size;
    bool fp8;
    int alignment;
    size_t row_bytes, back_bytes;
    int counts[SELFTEST_MAX_PES]; /* tokens of each PE: ragged */
    int32_t *experts[SELFTEST_MAX_PES];
    float *weights[SELFTEST_MAX_PES];
    unsigned char *x[SELFTEST_MAX_PES], *scales[SELFTEST_MAX_PES], *bias[SELFTEST_MAX_PES][2];
    moe_reference model;
    moe_reference_rows rows[SELFTEST_MAX_PES];
    moe_reference_experts expanded[SELFTEST_MAX_PES];
    /* By order (flat, expert-major): rows and weights given back, and what then comes out. */
    unsigned char *y[2][SELFTEST_MAX_PES];
    float *back_weights[2][SELFTEST_MAX_PES];
    unsigned char *out[2][SELFTEST_ROUNDINGS][SELFTEST_BIASES][SELFTEST_MAX_PES];
    float *out_weights[2][SELFTEST_MAX_PES];
} selftest_case;

/* NULL: no memory. Tokens of PE s: tokens - s, at least 0. Some lanes are empty. */
selftest_case *selftest_case_make(const selftest_preset *preset, int n_pes, int tokens, bool fp8, int alignment, uint64_t seed);
void selftest_case_free(selftest_case *c);

typedef struct selftest_plan {
    const char *fabric;
    int n_pes;
    bool quick; /* each configuration with one of the roundings and some of the token counts, instead of all */
    uint64_t seed;
} selftest_plan;

typedef struct selftest_result {
    uint64_t passed, failed;
    char first[512]; /* the first wrong (PE, row, column), or the first error */
} selftest_result;

/* Runs the configurations of one preset and number of tokens. */
int selftest_ep_run(const selftest_plan *plan, const selftest_preset *preset, int tokens, selftest_result *result);

int selftest_command(int argc, char **argv);

#endif
