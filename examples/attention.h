/* attention.h - the numbers of the ring attention example: attention over blocks of keys and values, and the whole of it for comparison.
 *
 * A model of a few layers over text: x of a layer [tokens][width], q = x Wq, k = x Wk, v = x Wv, x of the next = x + attention(q, k, v). width is
 * heads * dim; weights and embeddings are numbers that a hash gives. Keys and values come in blocks, in any order: softmax is kept
 * as a running maximum and sum for each row (online). Products are of f32 or bf16 inputs, sums are f32. The reference computes all of it again with
 * all tokens at once in float64, and rounds nothing. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stddef.h>
#include <stdint.h>

typedef struct attention_shape {
    int heads, dim, layers, causal, bf16;
    uint64_t seed;
} attention_shape;

static inline int attention_width(const attention_shape *s)
{
    return s->heads * s->dim;
}

/* Token `at` of the text, whose byte is `byte`. */
void attention_embed(const attention_shape *s, unsigned char byte, size_t at, float *x);
/* What the loss weighs output `i` of token `at` with: the loss is the sum of these products. */
float attention_loss_weight(const attention_shape *s, size_t at, int i);

typedef enum attention_matrix { ATTENTION_Q = 0, ATTENTION_K = 1, ATTENTION_V = 2 } attention_matrix;
/* [width][width] of a layer. */
void attention_weights(const attention_shape *s, int layer, attention_matrix which, float *w);
/* out[n][width] = x w; and back: dx += dout w^T. */
void attention_project(const attention_shape *s, const float *x, const float *w, size_t n, float *out);
void attention_project_back(const attention_shape *s, const float *dout, const float *w, size_t n, float *dx);

/* Elements as they travel: 2 bytes for bf16, 4 for f32. */
static inline size_t attention_element(const attention_shape *s)
{
    return s->bf16 ? 2 : 4;
}
void attention_store(const attention_shape *s, const float *from, size_t n, void *to);
void attention_load(const attention_shape *s, const void *from, size_t n, float *to);
/* Rounds in place to what attention_store keeps. */
void attention_round(const attention_shape *s, float *x, size_t n);

/* A PE's queries of one layer, and what is known of them so far. */
typedef struct attention_rows {
    size_t n, first;   /* tokens, and the place of the first in the text */
    float *q, *out;    /* [n][width]; out is finished by attention_end */
    float *most, *sum; /* [n][heads] */
    float *log_sum;    /* [n][heads], after attention_end */
    float *dout, *dq;  /* [n][width] */
    float *delta;      /* [n][heads] */
    float *scores;     /* scratch of two blocks' rows */
} attention_rows;

/* Keys and values of the n tokens from `first` on, as f32. */
typedef struct attention_block {
    size_t n, first;
    const float *k, *v;
    float *dk, *dv; /* backward: added to */
} attention_block;

void attention_begin(const attention_shape *s, attention_rows *r);
/* Rows [from, to) against a block. */
void attention_forward(const attention_shape *s, attention_rows *r, const attention_block *b, size_t from, size_t to);
void attention_end(const attention_shape *s, attention_rows *r);
/* Backward, when `out` and `log_sum` are there: dq starts at 0, delta is made; then rows against each block. */
void attention_back_begin(const attention_shape *s, attention_rows *r);
void attention_backward(const attention_shape *s, attention_rows *r, const attention_block *b, size_t from, size_t to);

/* The whole job for n tokens in float64 on one PE: what attention has added to the embeddings after the last layer, and to the gradient of the loss by
 * them. -1: no memory. */
int attention_reference(const attention_shape *s, const unsigned char *text, size_t n, double *out, double *gradient);

#endif
