/* moe_reference.c - see moe_reference.h: the contract in loops, slow on purpose, sharing no code with the product. */
#include "support/moe_reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int expert_at(const moe_reference *m, int s, int i, int j)
{
    return m->experts[s][i * m->top_k + j];
}

static int owner(const moe_reference *m, int expert)
{
    return expert < 0 ? -1 : expert / (m->n_experts / m->n_pes);
}

/* The highest lane of token (s, i) that PE d owns, or -1: the token goes to d if it is not -1. */
static int highest_lane(const moe_reference *m, int s, int i, int d)
{
    int highest = -1;
    for (int j = 0; j < m->top_k; j++)
        if (owner(m, expert_at(m, s, i, j)) == d)
            highest = j;
    return highest;
}

static int tokens_before(const moe_reference *m, int s)
{
    int n = 0;
    for (int t = 0; t < s; t++)
        n += m->tokens[t];
    return n;
}

void moe_reference_dispatch(const moe_reference *m, int d, moe_reference_rows *rows)
{
    int most = tokens_before(m, m->n_pes), local = m->n_experts / m->n_pes;
    size_t lanes = (size_t)most * (size_t)m->top_k + 1;
    memset(rows, 0, sizeof *rows);
    rows->x = calloc((size_t)most + 1, m->row_bytes);
    rows->experts = calloc(lanes, sizeof *rows->experts);
    rows->weights = calloc(lanes, sizeof *rows->weights);
    rows->source_pe = calloc((size_t)most + 1, sizeof *rows->source_pe);
    rows->source_token = calloc((size_t)most + 1, sizeof *rows->source_token);
    rows->expert_rows = calloc((size_t)local, sizeof *rows->expert_rows);
    rows->source_rows = calloc((size_t)m->n_pes, sizeof *rows->source_rows);
    rows->row_of = calloc((size_t)most + 1, sizeof *rows->row_of);
    for (int s = 0; s < m->n_pes; s++)
        for (int i = 0; i < m->tokens[s]; i++) {
            rows->row_of[tokens_before(m, s) + i] = highest_lane(m, s, i, d) < 0 ? -1 : rows->n_rows;
            if (highest_lane(m, s, i, d) < 0)
                continue;
            int n = rows->n_rows++;
            memcpy(rows->x + (size_t)n * m->row_bytes, m->x[s] + (size_t)i * m->row_bytes, m->row_bytes);
            for (int j = 0; j < m->top_k; j++) {
                int e = expert_at(m, s, i, j), mine = owner(m, e) == d;
                rows->experts[n * m->top_k + j] = mine ? e - d * local : -1;
                rows->weights[n * m->top_k + j] = m->weights && m->weights[s] ? m->weights[s][i * m->top_k + j] : 1.0f;
                if (mine)
                    rows->expert_rows[e - d * local]++;
            }
            rows->source_pe[n] = s;
            rows->source_token[n] = i;
            rows->source_rows[s]++;
        }
}

void moe_reference_rows_free(moe_reference_rows *rows)
{
    free(rows->x);
    free(rows->experts);
    free(rows->weights);
    free(rows->source_pe);
    free(rows->source_token);
    free(rows->expert_rows);
    free(rows->source_rows);
    free(rows->row_of);
}

float moe_reference_from_bf16(uint16_t v)
{
    int exponent = v >> 7 & 0xff, fraction = v & 0x7f;
    float magnitude;
    if (exponent == 0xff)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = (float)ldexp(fraction, -133);
    else
        magnitude = (float)ldexp(128 + fraction, exponent - 134);
    return v & 0x8000 ? -magnitude : magnitude;
}

uint16_t moe_reference_to_bf16(float v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v))
        return (uint16_t)(sign | 0x7fc0);
    double magnitude = fabs((double)v);
    /* The largest bf16 not above it, by bisection over the positive numbers, which are ordered as their bits are. */
    unsigned low = 0, high = 0x7f80;
    while (low < high) {
        unsigned middle = (low + high + 1) / 2;
        if ((double)moe_reference_from_bf16((uint16_t)middle) <= magnitude)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == 0x7f80)
        return (uint16_t)(sign | low);
    /* Above the largest finite number, infinity stands where the next number would be: 2^128. */
    double below = (double)moe_reference_from_bf16((uint16_t)low);
    double above = low == 0x7f7f ? ldexp(1, 128) : (double)moe_reference_from_bf16((uint16_t)(low + 1));
    double to_below = magnitude - below, to_above = above - magnitude;
    if (to_above < to_below || (to_above == to_below && low % 2))
        low++;
    return (uint16_t)(sign | low);
}

static float element(const unsigned char *row, size_t element_bytes, size_t h)
{
    if (element_bytes == 2) {
        uint16_t v;
        memcpy(&v, row + h * 2, 2);
        return moe_reference_from_bf16(v);
    }
    float f;
    memcpy(&f, row + h * 4, 4);
    return f;
}

void moe_reference_combine(const moe_reference *m, int s, const moe_reference_rows *rows, const unsigned char *const *y,
                           size_t element_bytes, unsigned char *out)
{
    for (int i = 0; i < m->tokens[s]; i++) {
        unsigned char *to = out + (size_t)i * m->row_bytes;
        /* The PEs of the token in increasing order of their highest lanes, and its row on each. */
        int pes[32], row[32], n = 0;
        for (int j = 0; j < m->top_k; j++)
            for (int d = 0; d < m->n_pes; d++)
                if (highest_lane(m, s, i, d) == j) {
                    pes[n] = d;
                    row[n++] = rows[d].row_of[tokens_before(m, s) + i];
                }
        for (size_t h = 0; h < m->row_bytes / element_bytes; h++) {
            volatile float sum = 0; /* volatile: rounded to float at each step, whatever the compiler would like */
            for (int k = 0; k < n; k++)
                sum = sum + element(y[pes[k]] + (size_t)row[k] * m->row_bytes, element_bytes, h);
            float result = sum;
            uint16_t half = moe_reference_to_bf16(result);
            if (element_bytes == 2)
                memcpy(to + h * 2, &half, 2);
            else
                memcpy(to + h * 4, &result, 4);
        }
    }
}

void moe_reference_combine_weights(const moe_reference *m, int s, const moe_reference_rows *rows, const float *const *row_weights,
                                   float *out_weights)
{
    for (int i = 0; i < m->tokens[s]; i++)
        for (int j = 0; j < m->top_k; j++) {
            int d = owner(m, expert_at(m, s, i, j));
            float w = 0;
            if (d >= 0 && row_weights && row_weights[d])
                w = row_weights[d][rows[d].row_of[tokens_before(m, s) + i] * m->top_k + j];
            else if (d >= 0)
                w = m->weights && m->weights[s] ? m->weights[s][i * m->top_k + j] : 1.0f;
            out_weights[i * m->top_k + j] = w;
        }
}
