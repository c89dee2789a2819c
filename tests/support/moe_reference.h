/* moe_reference.h - dispatch and combine as the contract says them, in one process, with no cleverness at all.
 *
 * A model to compare the product with, so it shares nothing with it: no header, no arithmetic, not even the conversion of bf16 (done here
 * through double and a search for the nearest neighbour). It reads the inputs of all PEs at once and walks them in loops that can be
 * checked against the text of the contract by eye. Slow, and meant to be. */
#ifndef TESTS_SUPPORT_MOE_REFERENCE_H
#define TESTS_SUPPORT_MOE_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* One dispatch of all PEs. Arrays by PE: experts[s] is [tokens[s]][top_k], weights[s] the same or NULL (all 1), x[s] is
 * [tokens[s]][row_bytes]. */
typedef struct moe_reference {
    int n_pes, n_experts, top_k;
    size_t row_bytes;
    const int *tokens;
    const int32_t *const *experts;
    const float *const *weights;
    const unsigned char *const *x;
} moe_reference;

/* What PE d must receive. Arrays are allocated by moe_reference_dispatch. */
typedef struct moe_reference_rows {
    int n_rows;
    unsigned char *x;
    int32_t *experts;
    float *weights;
    int32_t *source_pe, *source_token;
    int32_t *expert_rows, *source_rows;
    int32_t *row_of; /* [tokens of all PEs, one PE after the other] the row of that token here, or -1 */
} moe_reference_rows;

void moe_reference_dispatch(const moe_reference *m, int d, moe_reference_rows *rows);
void moe_reference_rows_free(moe_reference_rows *rows);
/* out[tokens[s]] of PE s, from y[d] = [rows of PE d] of all PEs, whose dispatches gave rows[d]. Elements of 2 bytes are bf16, of 4 float. */
void moe_reference_combine(const moe_reference *m, int s, const moe_reference_rows *rows, const unsigned char *const *y,
                           size_t element_bytes, unsigned char *out);
/* out_weights[tokens[s]][top_k] of PE s, from row_weights[d] = [rows of PE d][top_k] (NULL: those received). */
void moe_reference_combine_weights(const moe_reference *m, int s, const moe_reference_rows *rows, const float *const *row_weights,
                                   float *out_weights);

/* The rows of PE d in expert-major order, each expert's beginning at a multiple of `alignment`. */
typedef struct moe_reference_experts {
    int n_rows;
    int32_t *token, *lane; /* [n_rows] its row in flat order and its lane, -1 for padding */
    int32_t *row;          /* [flat rows][top_k] the row of that lane, or -1 */
    int32_t *first;        /* [local experts + 1] */
} moe_reference_experts;
void moe_reference_expand(const moe_reference *m, const moe_reference_rows *flat, int alignment, moe_reference_experts *experts);
void moe_reference_experts_free(moe_reference_experts *experts);

/* The sum of PE s with everything that can be asked for. */
typedef struct moe_reference_sum {
    int levels;                           /* 1: rounded once; 2: also per PE; 3: also per host */
    int node_size;                        /* consecutive PEs of a host */
    const moe_reference_experts *experts; /* [n_pes]; NULL: y is in flat order */
    const unsigned char *bias[2];         /* [tokens[s]][row_bytes], or NULL */
    size_t row_bytes, element_bytes;      /* of y, biases and out */
} moe_reference_sum;
void moe_reference_combine_all(const moe_reference *m, const moe_reference_sum *how, int s, const moe_reference_rows *rows,
                               const unsigned char *const *y, unsigned char *out);

/* bf16 nearest to v, ties to the even one. */
uint16_t moe_reference_to_bf16(float v);
float moe_reference_from_bf16(uint16_t v);

#endif
