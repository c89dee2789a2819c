/* moe_model.h - a small mixture-of-experts model whose every number follows from a seed, and whose arithmetic is the same wherever it runs.
 *
 * Activations are bf16 between the steps of a layer and float within them. An expert is two matrices with a ReLU between; expert e of layer l
 * is made from (seed, l, e), so any process can make it. Each output element is added up in one fixed order, whether
 * rows come alone or four at a time, so that the PE that owns an expert and the PE that checks it get the same bits. Nothing here
 * knows of PEs but moe_model_layer_alone, which computes a layer in one process with the grouping that the PEs have. */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct moe_shape {
    int layers, hidden, inner, experts, top_k; /* inner: width between an expert's two matrices */
    uint64_t seed;
} moe_shape;

typedef struct moe_model moe_model;

/* NULL if memory is out. Holds the embedding and the routers; of experts those that moe_model_experts asks for. */
moe_model *moe_model_create(const moe_shape *shape);
void moe_model_destroy(moe_model *m);
/* Makes experts [first, first + n) of all layers. 0, or -1 if memory is out. */
int moe_model_experts(moe_model *m, int first, int n);

/* x[n][hidden] from the bytes text[0..n); `before` is the byte before the first. */
void moe_model_embed(const moe_model *m, const unsigned char *text, int n, unsigned char before, uint16_t *x);
/* Normalises x[n][hidden] to `normal` and routes it: experts[n][top_k] by falling score, weights[n][top_k] that sum to 1. */
void moe_model_route(const moe_model *m, int layer, const uint16_t *x, int n, uint16_t *normal, int32_t *experts, float *weights);
/* What one PE computes: y[n][hidden] = round(sum over lanes j with experts[r][j] >= 0, in lane order, of weights[r][j] * expert(x[r])). The
 * number of an expert is `first` + experts[r][j]. `scratch` grows as needed. 0, or -1 if memory is out. */
typedef struct moe_scratch {
    float *outputs;     /* one row per lane in use */
    int32_t *rows, *at; /* lanes grouped by expert: row, and place in outputs */
    size_t lanes;
} moe_scratch;
int moe_model_experts_apply(const moe_model *m, int layer, int first, int n_experts, const uint16_t *x, const int32_t *experts,
                            const float *weights, int n, uint16_t *y, moe_scratch *scratch);
void moe_scratch_free(moe_scratch *scratch);
/* x += out, in bf16. */
void moe_model_add(uint16_t *x, const uint16_t *out, size_t n);
/* out[n][hidden]: the layer's mixture for tokens `normal` computed here alone. The lanes of a token whose experts belong to one of `n_pes` PEs
 * are added and rounded together first, then the PEs' sums in increasing order of their highest lanes. All experts must have been made. 0, or -1. */
int moe_model_layer_alone(const moe_model *m, int layer, int n_pes, const uint16_t *normal, const int32_t *experts,
                          const float *weights, int n, uint16_t *out, moe_scratch *scratch);

#endif
