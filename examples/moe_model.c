/* moe_model.c - see moe_model.h. Plain loops over restrict arrays, written so that the compiler may use wide registers across independent
 * elements but never has a reason to change the order in which one element is added up. Compiled without contraction of a * b + c. */
#include "moe_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOP_K = 32, TOGETHER = 4 };

typedef struct expert {
    float *in, *out; /* [hidden][inner], [inner][hidden]; one allocation, at `in` */
} expert;

struct moe_model {
    moe_shape shape;
    uint16_t *embedding; /* [512][hidden]: 256 rows for a byte, 256 for the byte before it */
    float *routers;      /* [layers][hidden][experts] */
    expert *experts;     /* [layers][experts]; in is NULL where not made */
};

/* ---------------------------------------------------------------- numbers */

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t mix(uint64_t v)
{
    v ^= v >> 33;
    v *= 0xff51afd7ed558ccdu;
    v ^= v >> 33;
    v *= 0xc4ceb9fe1a85ec53u;
    return v ^ v >> 33;
}

/* n numbers spread evenly over (-scale, scale), from a stream that (seed, what, which) names. */
static void fill(float *to, size_t n, float scale, uint64_t seed, uint64_t what, uint64_t which)
{
    uint64_t stream = mix(seed + mix(what + mix(which + 1)));
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(mix(stream + i * 0x9e3779b97f4a7c15u) >> 40);
        to[i] = ((float)bits - 8388607.5f) * (scale / 8388608.0f);
    }
}

/* ---------------------------------------------------------------- creation */

moe_model *moe_model_create(const moe_shape *shape)
{
    size_t hidden = (size_t)shape->hidden, experts = (size_t)shape->experts, layers = (size_t)shape->layers;
    moe_model *m = calloc(1, sizeof *m);
    float *table = malloc(512 * hidden * sizeof *table);
    if (m) {
        m->shape = *shape;
        m->embedding = malloc(512 * hidden * sizeof *m->embedding);
        m->routers = malloc(layers * hidden * experts * sizeof *m->routers);
        m->experts = calloc(layers * experts, sizeof *m->experts);
    }
    if (!m || !table || !m->embedding || !m->routers || !m->experts) {
        free(table);
        moe_model_destroy(m);
        return NULL;
    }
    fill(table, 512 * hidden, 1.0f, shape->seed, 1, 0);
    for (size_t i = 0; i < 512 * hidden; i++)
        m->embedding[i] = to_bf16(table[i]);
    for (size_t l = 0; l < layers; l++)
        fill(m->routers + l * hidden * experts, hidden * experts, 3.0f / sqrtf((float)hidden), shape->seed, 2, l);
    free(table);
    return m;
}

void moe_model_destroy(moe_model *m)
{
    if (!m)
        return;
    for (size_t i = 0; m->experts && i < (size_t)m->shape.layers * (size_t)m->shape.experts; i++)
        free(m->experts[i].in);
    free(m->experts);
    free(m->routers);
    free(m->embedding);
    free(m);
}

int moe_model_experts(moe_model *m, int first, int n)
{
    size_t hidden = (size_t)m->shape.hidden, inner = (size_t)m->shape.inner;
    for (int l = 0; l < m->shape.layers; l++)
        for (int e = first; e < first + n; e++) {
            size_t which = (size_t)l * (size_t)m->shape.experts + (size_t)e;
            expert *x = &m->experts[which];
            if (x->in)
                continue;
            x->in = malloc(2 * hidden * inner * sizeof *x->in);
            if (!x->in)
                return -1;
            x->out = x->in + hidden * inner;
            fill(x->in, hidden * inner, 2.0f / sqrtf((float)hidden), m->shape.seed, 3, which);
            fill(x->out, hidden * inner, 2.0f / sqrtf((float)inner), m->shape.seed, 4, which);
        }
    return 0;
}

/* ---------------------------------------------------------------- before the experts */

void moe_model_embed(const moe_model *m, const unsigned char *text, int n, unsigned char before, uint16_t *x)
{
    size_t hidden = (size_t)m->shape.hidden;
    for (int i = 0; i < n; i++) {
        const uint16_t *now = m->embedding + (size_t)text[i] * hidden;
        const uint16_t *then = m->embedding + (256 + (size_t)(i ? text[i - 1] : before)) * hidden;
        for (size_t h = 0; h < hidden; h++)
            x[(size_t)i * hidden + h] = to_bf16(from_bf16(now[h]) + 0.5f * from_bf16(then[h]));
    }
}

static void normalise(const uint16_t *x, uint16_t *normal, size_t hidden)
{
    float squares = 0;
    for (size_t h = 0; h < hidden; h++)
        squares += from_bf16(x[h]) * from_bf16(x[h]);
    float scale = 1.0f / sqrtf(squares / (float)hidden + 1e-6f);
    for (size_t h = 0; h < hidden; h++)
        normal[h] = to_bf16(from_bf16(x[h]) * scale);
}

static void score(const float *restrict router, const uint16_t *restrict normal, size_t hidden, size_t experts,
                  float *restrict scores)
{
    for (size_t e = 0; e < experts; e++)
        scores[e] = 0;
    for (size_t h = 0; h < hidden; h++) {
        float v = from_bf16(normal[h]);
        for (size_t e = 0; e < experts; e++)
            scores[e] += v * router[h * experts + e];
    }
}

/* The k best scores by falling value (the lower number where equal), and their softmax. */
static void choose(float *scores, int experts, int k, int32_t *chosen, float *weights)
{
    float sum = 0;
    for (int j = 0; j < k; j++) {
        int best = 0;
        for (int e = 1; e < experts; e++)
            if (scores[e] > scores[best])
                best = e;
        chosen[j] = best;
        weights[j] = scores[best];
        scores[best] = -INFINITY;
    }
    float highest = weights[0];
    for (int j = 0; j < k; j++)
        sum += weights[j] = expf(weights[j] - highest);
    for (int j = 0; j < k; j++)
        weights[j] /= sum;
}

void moe_model_route(const moe_model *m, int layer, const uint16_t *x, int n, uint16_t *normal, int32_t *experts, float *weights)
{
    size_t hidden = (size_t)m->shape.hidden, all = (size_t)m->shape.experts, k = (size_t)m->shape.top_k;
    const float *router = m->routers + (size_t)layer * hidden * all;
    float scores[2048];
    for (size_t i = 0; i < (size_t)n; i++) {
        normalise(x + i * hidden, normal + i * hidden, hidden);
        score(router, normal + i * hidden, hidden, all, scores);
        choose(scores, m->shape.experts, m->shape.top_k, experts + i * k, weights + i * k);
    }
}

/* ---------------------------------------------------------------- experts */

/* sum[i] += v[0] * m[i] + v[1] * m[stride + i] + ..., added one after the other: four at a time only saves loads and stores. */
static void add_rows(float *restrict sum, const float *restrict v, const float *restrict m, size_t stride, size_t rows, size_t n)
{
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *restrict a = m + r * stride, *restrict b = a + stride, *restrict c = b + stride, *restrict d = c + stride;
        float va = v[r], vb = v[r + 1], vc = v[r + 2], vd = v[r + 3];
        for (size_t i = 0; i < n; i++)
            sum[i] = (((sum[i] + va * a[i]) + vb * b[i]) + vc * c[i]) + vd * d[i];
    }
    for (; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            sum[i] += v[r] * m[r * stride + i];
}

/* One expert on up to four rows at once, block by block of its matrices, so that those are read from memory once for all of them. Element by
 * element the same as row by row. */
static void apply(const expert *ex, size_t hidden, size_t inner, const uint16_t *const *rows, float *const *outputs, int n)
{
    enum { WIDTH = 64, HEIGHT = 32 };
    for (int r = 0; r < n; r++)
        memset(outputs[r], 0, hidden * sizeof(float));
    for (size_t from = 0; from < inner; from += WIDTH) {
        size_t width = inner - from < WIDTH ? inner - from : WIDTH;
        float between[TOGETHER][WIDTH] = {{0}}, v[HEIGHT];
        for (size_t h = 0; h < hidden; h += HEIGHT) {
            size_t height = hidden - h < HEIGHT ? hidden - h : HEIGHT;
            for (int r = 0; r < n; r++) {
                for (size_t i = 0; i < height; i++)
                    v[i] = from_bf16(rows[r][h + i]);
                add_rows(between[r], v, ex->in + h * inner + from, inner, height, width);
            }
        }
        for (int r = 0; r < n; r++)
            for (size_t f = 0; f < width; f++)
                between[r][f] = between[r][f] > 0 ? between[r][f] : 0;
        for (size_t f = 0; f < width; f += 4)
            for (int r = 0; r < n; r++)
                add_rows(outputs[r], between[r] + f, ex->out + (from + f) * hidden, hidden, width - f < 4 ? width - f : 4,
                         hidden);
    }
}

static int grow(moe_scratch *s, size_t lanes, size_t hidden)
{
    if (lanes <= s->lanes)
        return 0;
    moe_scratch_free(s);
    s->outputs = malloc(lanes * hidden * sizeof *s->outputs);
    s->rows = malloc(lanes * sizeof *s->rows);
    s->at = malloc(lanes * sizeof *s->at);
    s->lanes = s->outputs && s->rows && s->at ? lanes : 0;
    return s->lanes ? 0 : -1;
}

void moe_scratch_free(moe_scratch *s)
{
    free(s->outputs);
    free(s->rows);
    free(s->at);
    *s = (moe_scratch){0};
}

/* Fills scratch->outputs with one row per lane in use, in order of row and lane: expert by expert, since their matrices are what is large. */
static int run_lanes(const moe_model *m, int layer, int first, int n_experts, const uint16_t *x, const int32_t *experts, int n,
                     moe_scratch *s)
{
    size_t hidden = (size_t)m->shape.hidden, k = (size_t)m->shape.top_k, lanes = 0;
    int32_t start[2049] = {0};
    for (size_t l = 0; l < (size_t)n * k; l++)
        if (experts[l] >= 0) {
            start[experts[l] + 1]++;
            lanes++;
        }
    if (grow(s, lanes, hidden))
        return -1;
    for (int e = 0; e < n_experts; e++)
        start[e + 1] += start[e];
    int32_t next[2048], place = 0;
    memcpy(next, start, (size_t)n_experts * sizeof *next);
    for (size_t l = 0; l < (size_t)n * k; l++)
        if (experts[l] >= 0) {
            int32_t to = next[experts[l]]++;
            s->rows[to] = (int32_t)(l / k);
            s->at[to] = place++;
        }
    for (int e = 0; e < n_experts; e++) {
        const expert *ex = &m->experts[(size_t)layer * (size_t)m->shape.experts + (size_t)(first + e)];
        for (int32_t l = start[e]; l < start[e + 1]; l += TOGETHER) {
            const uint16_t *rows[TOGETHER];
            float *outputs[TOGETHER];
            int some = start[e + 1] - l < TOGETHER ? start[e + 1] - l : TOGETHER;
            for (int r = 0; r < some; r++) {
                rows[r] = x + (size_t)s->rows[l + r] * hidden;
                outputs[r] = s->outputs + (size_t)s->at[l + r] * hidden;
            }
            apply(ex, hidden, (size_t)m->shape.inner, rows, outputs, some);
        }
    }
    return 0;
}

static void add_weighted(float *restrict sum, const float *restrict row, float weight, size_t n)
{
    for (size_t h = 0; h < n; h++)
        sum[h] += weight * row[h];
}

static void round_row(uint16_t *restrict to, const float *restrict from, size_t n)
{
    for (size_t h = 0; h < n; h++)
        to[h] = to_bf16(from[h]);
}

int moe_model_experts_apply(const moe_model *m, int layer, int first, int n_experts, const uint16_t *x, const int32_t *experts,
                            const float *weights, int n, uint16_t *y, moe_scratch *s)
{
    size_t hidden = (size_t)m->shape.hidden, k = (size_t)m->shape.top_k;
    float *sum = malloc(hidden * sizeof *sum);
    if (!sum || run_lanes(m, layer, first, n_experts, x, experts, n, s)) {
        free(sum);
        return -1;
    }
    const float *output = s->outputs;
    for (size_t r = 0; r < (size_t)n; r++) {
        memset(sum, 0, hidden * sizeof *sum);
        for (size_t j = 0; j < k; j++)
            if (experts[r * k + j] >= 0) {
                add_weighted(sum, output, weights[r * k + j], hidden);
                output += hidden;
            }
        round_row(y + r * hidden, sum, hidden);
    }
    free(sum);
    return 0;
}

/* ---------------------------------------------------------------- after the experts */

void moe_model_add(uint16_t *x, const uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = to_bf16(from_bf16(x[i]) + from_bf16(out[i]));
}

/* One token: `outputs` has a row per lane. The highest lane not yet done belongs to the PE that comes last, so walk lanes upwards and add a
 * PE's sum when its highest lane is reached. */
static void mix_token(const moe_model *m, int n_pes, const int32_t *experts, const float *weights, const float *outputs,
                      float *sum, float *part, uint16_t *out)
{
    size_t hidden = (size_t)m->shape.hidden;
    int k = m->shape.top_k, per_pe = m->shape.experts / n_pes;
    memset(sum, 0, hidden * sizeof *sum);
    for (int last = 0; last < k; last++) {
        int pe = experts[last] / per_pe, highest = 1;
        for (int j = last + 1; j < k; j++)
            highest = highest && experts[j] / per_pe != pe;
        if (!highest)
            continue;
        memset(part, 0, hidden * sizeof *part);
        for (int j = 0; j <= last; j++)
            if (experts[j] / per_pe == pe)
                add_weighted(part, outputs + (size_t)j * hidden, weights[j], hidden);
        for (size_t h = 0; h < hidden; h++)
            sum[h] += from_bf16(to_bf16(part[h]));
    }
    round_row(out, sum, hidden);
}

int moe_model_layer_alone(const moe_model *m, int layer, int n_pes, const uint16_t *normal, const int32_t *experts,
                          const float *weights, int n, uint16_t *out, moe_scratch *s)
{
    size_t hidden = (size_t)m->shape.hidden, k = (size_t)m->shape.top_k;
    float *sum = malloc(2 * hidden * sizeof *sum);
    if (!sum || run_lanes(m, layer, 0, m->shape.experts, normal, experts, n, s)) {
        free(sum);
        return -1;
    }
    for (size_t i = 0; i < (size_t)n; i++)
        mix_token(m, n_pes, experts + i * k, weights + i * k, s->outputs + i * k * hidden, sum, sum + hidden, out + i * hidden);
    free(sum);
    return 0;
}
