/* ring_attention.h - what the files of the ring attention example share: a PE's part of the job, and one layer of it.
 *
 * ring_attention.c is the command: text, layers, the check against one PE, the report. ring_layer.c is where the library is used: keys and values of
 * a layer go round the ring while attention is computed on those that are here. */
#ifndef RING_ATTENTION_H
#define RING_ATTENTION_H

#include "attention.h"
#include "timeline.h"
#include <unfence/ring.h>

typedef struct attention_job {
    attention_shape shape;
    uf_world *world;
    uf_ring *blocks;    /* keys and values, as elements travel */
    uf_ring *gradients; /* of keys and values, f32: sums that come home */
    int me, n_pes;
    size_t *tokens, *first; /* [n_pes] of each PE */
    size_t most;            /* of tokens */
    unsigned char *own;     /* symmetric: this PE's keys, then its values */
    attention_rows rows;
    float *k, *v;         /* [most][width] of the block that is computed on */
    float *dk, *dv, *sum; /* [most][width] each; of sum twice that: what goes on */
    timeline line;
    uint64_t compute_ns, wait_ns; /* of both passes */
    int layer;
} attention_job;

/* Attention of one layer. rows.q is there; own holds the keys and values. Leaves rows.out and rows.log_sum. An error of the library, or 0. */
int ring_layer_forward(attention_job *job);
/* Its gradients: rows.dout is there and what the forward pass left. Leaves rows.dq, and those of this PE's keys and values in dk and dv. */
int ring_layer_backward(attention_job *job);
/* The bytes of each of the two parts of PE `pe`'s block. */
size_t ring_layer_bytes(const attention_job *job, int pe);

#endif
