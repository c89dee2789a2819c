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

/* ---------------------------------------------------------------- expert-major order, biases and levels */

void moe_reference_expand(const moe_reference *m, const moe_reference_rows *flat, int alignment, moe_reference_experts *x)
{
    int local = m->n_experts / m->n_pes, lanes = flat->n_rows * m->top_k;
    size_t most = (size_t)lanes + (size_t)local * (size_t)alignment + 1;
    x->n_rows = 0;
    x->token = calloc(most, sizeof *x->token);
    x->lane = calloc(most, sizeof *x->lane);
    x->row = calloc((size_t)lanes + 1, sizeof *x->row);
    x->first = calloc((size_t)local + 1, sizeof *x->first);
    for (int l = 0; l < lanes; l++)
        x->row[l] = -1;
    for (int e = 0; e < local; e++) {
        x->first[e] = x->n_rows;
        for (int l = 0; l < lanes; l++)
            if (flat->experts[l] == e) {
                x->row[l] = x->n_rows;
                x->token[x->n_rows] = l / m->top_k;
                x->lane[x->n_rows++] = l % m->top_k;
            }
        while (x->n_rows % alignment != 0) {
            x->token[x->n_rows] = -1;
            x->lane[x->n_rows++] = -1;
        }
    }
    x->first[local] = x->n_rows;
}

void moe_reference_experts_free(moe_reference_experts *x)
{
    free(x->token);
    free(x->lane);
    free(x->row);
    free(x->first);
}

/* One number of a sum, and the lane that decides when it is added. */
typedef struct part {
    int lane, pe;
    float value;
} part;

static float rounded(const moe_reference_sum *how, float v)
{
    return how->element_bytes == 2 ? moe_reference_from_bf16(moe_reference_to_bf16(v)) : v;
}

/* Adds the parts by increasing lane. */
static float add(const moe_reference_sum *how, float start, const part *parts, int n)
{
    volatile float sum = start;
    for (int lane = 0; lane < 32; lane++)
        for (int p = 0; p < n; p++)
            if (parts[p].lane == lane)
                sum = sum + parts[p].value;
    return rounded(how, sum);
}

/* Replaces the parts of each group of `size` consecutive PEs by their sum, which has the highest lane of the group. */
static int add_groups(const moe_reference *m, const moe_reference_sum *how, int size, part *parts, int n)
{
    part sums[32] = {{0}};
    int found = 0;
    for (int first = 0; first < m->n_pes; first += size) {
        part mine[32];
        int k = 0, lane = -1;
        for (int p = 0; p < n; p++)
            if (parts[p].pe >= first && parts[p].pe < first + size) {
                mine[k++] = parts[p];
                lane = parts[p].lane > lane ? parts[p].lane : lane;
            }
        if (k > 0)
            sums[found++] = (part){lane, first, add(how, 0, mine, k)};
    }
    memcpy(parts, sums, (size_t)found * sizeof *parts);
    return found;
}

static float sum_of(const moe_reference *m, const moe_reference_sum *how, int s, int i, size_t h, const moe_reference_rows *rows,
                    const unsigned char *const *y)
{
    part parts[32];
    int n = 0, token = tokens_before(m, s) + i;
    for (int j = 0; j < m->top_k; j++) {
        int d = owner(m, expert_at(m, s, i, j));
        if (d < 0 || (!how->experts && highest_lane(m, s, i, d) != j))
            continue;
        int row = rows[d].row_of[token];
        if (how->experts)
            row = how->experts[d].row[row * m->top_k + j];
        parts[n++] = (part){j, d, element(y[d] + (size_t)row * how->row_bytes, how->element_bytes, h)};
    }
    if (how->levels >= 2)
        n = add_groups(m, how, 1, parts, n);
    if (how->levels >= 3)
        n = add_groups(m, how, how->node_size, parts, n);
    volatile float start = 0;
    for (int b = 0; b < 2; b++)
        if (how->bias[b])
            start = start + element(how->bias[b] + (size_t)i * how->row_bytes, how->element_bytes, h);
    return add(how, start, parts, n);
}

void moe_reference_combine_all(const moe_reference *m, const moe_reference_sum *how, int s, const moe_reference_rows *rows,
                               const unsigned char *const *y, unsigned char *out)
{
    for (int i = 0; i < m->tokens[s]; i++)
        for (size_t h = 0; h < how->row_bytes / how->element_bytes; h++) {
            float sum = sum_of(m, how, s, i, h, rows, y);
            uint16_t half = moe_reference_to_bf16(sum);
            unsigned char *to = out + (size_t)i * how->row_bytes + h * how->element_bytes;
            if (how->element_bytes == 2)
                memcpy(to, &half, 2);
            else
                memcpy(to, &sum, 4);
        }
}
