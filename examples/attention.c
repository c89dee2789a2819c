/* attention.c - see attention.h. */
#include "attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t v)
{
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* Between -1 and 1; the same f32 for everybody. */
static float number(uint64_t seed, uint64_t what, uint64_t at)
{
    return (float)((int64_t)(mix(mix(seed ^ what << 48) ^ at) >> 40) - (1 << 23)) / (1 << 23);
}

void attention_embed(const attention_shape *s, unsigned char byte, size_t at, float *x)
{
    int width = attention_width(s);
    for (int i = 0; i < width; i++)
        x[i] = number(s->seed, 1, (uint64_t)byte * 65536 + (uint64_t)i) + 0.5f * number(s->seed, 2, at * 65536 + (uint64_t)i);
}

float attention_loss_weight(const attention_shape *s, size_t at, int i)
{
    return number(s->seed, 3, at * 65536 + (uint64_t)i);
}

void attention_weights(const attention_shape *s, int layer, attention_matrix which, float *w)
{
    size_t width = (size_t)attention_width(s);
    float scale = 1.7f / sqrtf((float)width); /* keeps the variance of its input */
    for (size_t i = 0; i < width * width; i++)
        w[i] = scale * number(s->seed, 4 + (uint64_t)which, (uint64_t)layer << 32 | i);
}

void attention_project(const attention_shape *s, const float *x, const float *w, size_t n, float *out)
{
    size_t width = (size_t)attention_width(s);
    memset(out, 0, n * width * sizeof *out);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            for (size_t j = 0; j < width; j++)
                out[t * width + j] += x[t * width + i] * w[i * width + j];
}

void attention_project_back(const attention_shape *s, const float *dout, const float *w, size_t n, float *dx)
{
    size_t width = (size_t)attention_width(s);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++) {
            float sum = 0;
            for (size_t j = 0; j < width; j++)
                sum += dout[t * width + j] * w[i * width + j];
            dx[t * width + i] += sum;
        }
}

/* ---------------------------------------------------------------- elements */

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void attention_store(const attention_shape *s, const float *from, size_t n, void *to)
{
    uint16_t *half = to;
    if (!s->bf16)
        memcpy(to, from, n * sizeof *from);
    for (size_t i = 0; s->bf16 && i < n; i++)
        half[i] = to_bf16(from[i]);
}

void attention_load(const attention_shape *s, const void *from, size_t n, float *to)
{
    const uint16_t *half = from;
    if (!s->bf16)
        memcpy(to, from, n * sizeof *to);
    for (size_t i = 0; s->bf16 && i < n; i++)
        to[i] = from_bf16(half[i]);
}

void attention_round(const attention_shape *s, float *x, size_t n)
{
    for (size_t i = 0; s->bf16 && i < n; i++)
        x[i] = from_bf16(to_bf16(x[i]));
}

/* ---------------------------------------------------------------- forward */

static float dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Keys of the block that token `at` looks at. */
static size_t visible(const attention_shape *s, const attention_block *b, size_t at)
{
    if (!s->causal || at >= b->first + b->n)
        return b->n;
    return at < b->first ? 0 : at - b->first + 1;
}

void attention_begin(const attention_shape *s, attention_rows *r)
{
    size_t width = (size_t)attention_width(s), heads = (size_t)s->heads;
    memset(r->out, 0, r->n * width * sizeof *r->out);
    for (size_t i = 0; i < r->n * heads; i++)
        r->most[i] = -INFINITY, r->sum[i] = 0;
}

/* One row and head: new scores, and what was summed before made to count from the new maximum. */
static void forward_head(const attention_shape *s, attention_rows *r, const attention_block *b, size_t row, int head, size_t keys)
{
    size_t width = (size_t)attention_width(s), at = row * (size_t)s->heads + (size_t)head, column = (size_t)(head * s->dim);
    const float *q = r->q + row * width + column;
    float *out = r->out + row * width + column, most = r->most[at], scale = 1 / sqrtf((float)s->dim), sum = 0;
    for (size_t j = 0; j < keys; j++) {
        r->scores[j] = scale * dot(q, b->k + j * width + column, s->dim);
        most = r->scores[j] > most ? r->scores[j] : most;
    }
    float before = r->sum[at] > 0 ? expf(r->most[at] - most) : 0;
    for (int d = 0; d < s->dim; d++)
        out[d] *= before;
    for (size_t j = 0; j < keys; j++) {
        float p = expf(r->scores[j] - most);
        const float *v = b->v + j * width + column;
        sum += p;
        for (int d = 0; d < s->dim; d++)
            out[d] += p * v[d];
    }
    r->sum[at] = r->sum[at] * before + sum;
    r->most[at] = most;
}

void attention_forward(const attention_shape *s, attention_rows *r, const attention_block *b, size_t from, size_t to)
{
    for (size_t row = from; row < to; row++) {
        size_t keys = visible(s, b, r->first + row);
        for (int head = 0; keys && head < s->heads; head++)
            forward_head(s, r, b, row, head, keys);
    }
}

void attention_end(const attention_shape *s, attention_rows *r)
{
    size_t width = (size_t)attention_width(s);
    for (size_t row = 0; row < r->n; row++)
        for (int head = 0; head < s->heads; head++) {
            size_t at = row * (size_t)s->heads + (size_t)head;
            r->log_sum[at] = r->most[at] + logf(r->sum[at]);
            for (int d = 0; d < s->dim; d++)
                r->out[row * width + (size_t)(head * s->dim + d)] /= r->sum[at];
        }
}

/* ---------------------------------------------------------------- backward */

void attention_back_begin(const attention_shape *s, attention_rows *r)
{
    size_t width = (size_t)attention_width(s);
    memset(r->dq, 0, r->n * width * sizeof *r->dq);
    for (size_t row = 0; row < r->n; row++)
        for (int head = 0; head < s->heads; head++) {
            size_t at = row * width + (size_t)(head * s->dim);
            r->delta[row * (size_t)s->heads + (size_t)head] = dot(r->dout + at, r->out + at, s->dim);
        }
}

static void backward_head(const attention_shape *s, attention_rows *r, const attention_block *b, size_t row, int head,
                          size_t keys)
{
    size_t width = (size_t)attention_width(s), at = row * (size_t)s->heads + (size_t)head, column = (size_t)(head * s->dim);
    const float *q = r->q + row * width + column, *dout = r->dout + row * width + column;
    float *dq = r->dq + row * width + column, scale = 1 / sqrtf((float)s->dim);
    for (size_t j = 0; j < keys; j++) {
        const float *k = b->k + j * width + column, *v = b->v + j * width + column;
        float *dk = b->dk + j * width + column, *dv = b->dv + j * width + column;
        float p = expf(scale * dot(q, k, s->dim) - r->log_sum[at]);
        float ds = scale * p * (dot(dout, v, s->dim) - r->delta[at]);
        for (int d = 0; d < s->dim; d++) {
            dv[d] += p * dout[d];
            dk[d] += ds * q[d];
            dq[d] += ds * k[d];
        }
    }
}

void attention_backward(const attention_shape *s, attention_rows *r, const attention_block *b, size_t from, size_t to)
{
    for (size_t row = from; row < to; row++) {
        size_t keys = visible(s, b, r->first + row);
        for (int head = 0; head < s->heads; head++)
            backward_head(s, r, b, row, head, keys);
    }
}

/* ---------------------------------------------------------------- the reference */

typedef struct reference {
    const attention_shape *s;
    size_t n, width;
    double *x;         /* [layers + 1][n][width] */
    double *q, *k, *v; /* of one layer */
    double *dx, *dout; /* [n][width] */
    double *dq, *dk, *dv;
    double *p; /* [n]: one row of probabilities */
    float *w[3];
} reference;

static void reference_project(const reference *f, const double *x, const float *w, double *out)
{
    memset(out, 0, f->n * f->width * sizeof *out);
    for (size_t t = 0; t < f->n; t++)
        for (size_t i = 0; i < f->width; i++)
            for (size_t j = 0; j < f->width; j++)
                out[t * f->width + j] += x[t * f->width + i] * (double)w[i * f->width + j];
}

static void reference_project_back(const reference *f, const double *dout, const float *w, double *dx)
{
    for (size_t t = 0; t < f->n; t++)
        for (size_t i = 0; i < f->width; i++)
            for (size_t j = 0; j < f->width; j++)
                dx[t * f->width + i] += dout[t * f->width + j] * (double)w[i * f->width + j];
}

static double reference_dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The probabilities of one row and head in p; how many there are. */
static size_t reference_softmax(const reference *f, size_t row, size_t column)
{
    size_t keys = f->s->causal ? row + 1 : f->n;
    double most = -INFINITY, sum = 0, scale = 1 / sqrt((double)f->s->dim);
    for (size_t j = 0; j < keys; j++) {
        f->p[j] = scale * reference_dot(f->q + row * f->width + column, f->k + j * f->width + column, f->s->dim);
        most = f->p[j] > most ? f->p[j] : most;
    }
    for (size_t j = 0; j < keys; j++)
        sum += f->p[j] = exp(f->p[j] - most);
    for (size_t j = 0; j < keys; j++)
        f->p[j] /= sum;
    return keys;
}

static void reference_layer(reference *f, int layer)
{
    double *x = f->x + (size_t)layer * f->n * f->width;
    double *const qkv[3] = {f->q, f->k, f->v};
    for (int m = 0; m < 3; m++) {
        attention_weights(f->s, layer, (attention_matrix)m, f->w[m]);
        reference_project(f, x, f->w[m], qkv[m]);
    }
}

static void reference_forward(reference *f, int layer)
{
    const double *x = f->x + (size_t)layer * f->n * f->width;
    double *next = f->x + (size_t)(layer + 1) * f->n * f->width;
    reference_layer(f, layer);
    memcpy(next, x, f->n * f->width * sizeof *x);
    for (size_t row = 0; row < f->n; row++)
        for (int head = 0; head < f->s->heads; head++) {
            size_t column = (size_t)(head * f->s->dim), keys = reference_softmax(f, row, column);
            for (size_t j = 0; j < keys; j++)
                for (int d = 0; d < f->s->dim; d++)
                    next[row * f->width + column + (size_t)d] += f->p[j] * f->v[j * f->width + column + (size_t)d];
        }
}

static void reference_backward_row(reference *f, size_t row, int head)
{
    size_t column = (size_t)(head * f->s->dim), at = row * f->width + column, keys = reference_softmax(f, row, column);
    double delta = 0, scale = 1 / sqrt((double)f->s->dim);
    for (size_t j = 0; j < keys; j++)
        delta += f->p[j] * reference_dot(f->dout + at, f->v + j * f->width + column, f->s->dim);
    for (size_t j = 0; j < keys; j++) {
        size_t key = j * f->width + column;
        double ds = scale * f->p[j] * (reference_dot(f->dout + at, f->v + key, f->s->dim) - delta);
        for (size_t d = 0; d < (size_t)f->s->dim; d++) {
            f->dv[key + d] += f->p[j] * f->dout[at + d];
            f->dk[key + d] += ds * f->q[at + d];
            f->dq[at + d] += ds * f->k[key + d];
        }
    }
}

static void reference_backward(reference *f, int layer)
{
    size_t bytes = f->n * f->width * sizeof *f->dx;
    double *const gradients[3] = {f->dq, f->dk, f->dv};
    reference_layer(f, layer);
    memcpy(f->dout, f->dx, bytes);
    for (int m = 0; m < 3; m++)
        memset(gradients[m], 0, bytes);
    for (size_t row = 0; row < f->n; row++)
        for (int head = 0; head < f->s->heads; head++)
            reference_backward_row(f, row, head);
    for (int m = 0; m < 3; m++)
        reference_project_back(f, gradients[m], f->w[m], f->dx);
}

static void reference_run(reference *f, const unsigned char *text)
{
    float x[65536];
    for (size_t t = 0; t < f->n; t++) {
        attention_embed(f->s, text[t], t, x);
        for (size_t i = 0; i < f->width; i++) {
            f->x[t * f->width + i] = (double)x[i];
            f->dx[t * f->width + i] = (double)attention_loss_weight(f->s, t, (int)i);
        }
    }
    for (int layer = 0; layer < f->s->layers; layer++)
        reference_forward(f, layer);
    for (int layer = f->s->layers - 1; layer >= 0; layer--)
        reference_backward(f, layer);
}

int attention_reference(const attention_shape *s, const unsigned char *text, size_t n, double *out, double *gradient)
{
    size_t width = (size_t)attention_width(s), all = n * width, layers = (size_t)s->layers;
    double *d = calloc((layers + 1 + 8) * all + n + 1, sizeof *d);
    float *w = malloc(3 * width * width * sizeof *w);
    if (d && w) {
        double *next = d + (layers + 1) * all;
        reference f = {.s = s, .n = n, .width = width, .x = d};
        double **const each[] = {&f.q, &f.k, &f.v, &f.dx, &f.dout, &f.dq, &f.dk, &f.dv, &f.p};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            *each[i] = next + i * all;
        for (size_t m = 0; m < 3; m++)
            f.w[m] = w + m * width * width;
        reference_run(&f, text);
        for (size_t i = 0; i < all; i++) {
            out[i] = f.x[layers * all + i] - f.x[i];
            gradient[i] = f.dx[i] - (double)attention_loss_weight(s, i / width, (int)(i % width));
        }
    }
    int rc = d && w ? 0 : -1;
    free(d);
    free(w);
    return rc;
}
