/* selftest_case.c - the input of `unfence selftest ep`, from a seed, with the answers of the reference model.
 *
 * The model is the one of the tests: loops over the text of the contract, sharing nothing with the library. Sums are made of
 * numbers that round and cancel, so that a wrong order or number of roundings shows. */
#include "selftest.h"
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t v)
{
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

static uint32_t next(uint64_t *at, uint32_t below)
{
    return (uint32_t)((mix((*at)++) >> 32) % below);
}

static void *take(bool *full, size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    *full = *full || !p;
    return p;
}

static void fill_bytes(uint64_t *at, unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)next(at, 256);
}

static void fill_bf16(uint64_t *at, unsigned char *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bits = (uint16_t)((next(at, 0x10000) & 0x807f) | (0x3d00u + (next(at, 8) << 7)));
        /* A third are 2^20 or its negative: where they cancel, what is left tells in which order they were added. */
        if (next(at, 3) == 0)
            bits = (uint16_t)((bits & 0x8000) | 0x4980);
        memcpy(to + i * 2, &bits, 2);
    }
}

static void fill_floats(uint64_t *at, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (float)next(at, 1 << 20) / (1 << 20);
}

static void route(const selftest_case *c, uint64_t *at, int32_t *lanes)
{
    for (int j = 0; j < c->top_k; j++) {
        bool taken = true;
        while (taken) {
            lanes[j] = (int32_t)next(at, (uint32_t)c->n_experts);
            taken = false;
            for (int l = 0; l < j; l++)
                taken = taken || lanes[l] == lanes[j];
        }
    }
    for (int j = 0; j < c->top_k; j++)
        lanes[j] = next(at, 8) == 0 ? -1 : lanes[j];
}

static void fill_inputs(selftest_case *c, uint64_t *at, bool *full)
{
    size_t k = (size_t)c->top_k;
    for (int s = 0; s < c->n_pes && !*full; s++) {
        size_t n = (size_t)(c->counts[s] = c->tokens > s ? c->tokens - s : 0);
        c->experts[s] = take(full, n * k, sizeof **c->experts);
        c->weights[s] = take(full, n * k, sizeof **c->weights);
        c->x[s] = take(full, n, c->row_bytes);
        c->scales[s] = take(full, n * (size_t)c->n_scales, 4);
        c->bias[s][0] = take(full, n, c->back_bytes);
        c->bias[s][1] = take(full, n, c->back_bytes);
        if (*full)
            return;
        for (size_t i = 0; i < n; i++)
            route(c, at, c->experts[s] + i * k);
        fill_floats(at, c->weights[s], n * k);
        fill_bytes(at, c->x[s], n * c->row_bytes);
        fill_bytes(at, c->scales[s], n * (size_t)c->n_scales * 4);
        fill_bf16(at, c->bias[s][0], n * c->back_bytes / 2);
        fill_bf16(at, c->bias[s][1], n * c->back_bytes / 2);
    }
}

static void ask_model(selftest_case *c, uint64_t *at, bool *full)
{
    size_t k = (size_t)c->top_k;
    c->model = (moe_reference){.n_pes = c->n_pes,
                               .n_experts = c->n_experts,
                               .top_k = c->top_k,
                               .row_bytes = c->row_bytes,
                               .tokens = c->counts,
                               .experts = (const int32_t *const *)c->experts,
                               .weights = (const float *const *)c->weights,
                               .x = (const unsigned char *const *)c->x};
    for (int d = 0; d < c->n_pes && !*full; d++) {
        moe_reference_dispatch(&c->model, d, &c->rows[d]);
        moe_reference_expand(&c->model, &c->rows[d], c->alignment, &c->expanded[d]);
        size_t flat = (size_t)c->rows[d].n_rows, expanded = (size_t)c->expanded[d].n_rows;
        c->y[0][d] = take(full, flat, c->back_bytes);
        c->y[1][d] = take(full, expanded, c->back_bytes);
        c->back_weights[0][d] = take(full, flat * k, sizeof(float));
        c->back_weights[1][d] = take(full, expanded, sizeof(float));
        if (*full)
            return;
        fill_bf16(at, c->y[0][d], flat * c->back_bytes / 2);
        fill_bf16(at, c->y[1][d], expanded * c->back_bytes / 2);
        fill_floats(at, c->back_weights[0][d], flat * k);
        fill_floats(at, c->back_weights[1][d], expanded);
    }
}

/* The weight that comes back for a lane of token (s, i). */
static float weight_back(const selftest_case *c, int order, int token, int j, int32_t e)
{
    if (e < 0)
        return 0;
    int d = e / (c->n_experts / c->n_pes), row = c->rows[d].row_of[token];
    return order ? c->back_weights[1][d][c->expanded[d].row[row * c->top_k + j]] : c->back_weights[0][d][row * c->top_k + j];
}

static void ask_sums(selftest_case *c, int order, int s, int first, bool *full)
{
    size_t n = (size_t)c->counts[s], k = (size_t)c->top_k;
    for (int r = 0; r < SELFTEST_ROUNDINGS; r++)
        for (int b = 0; b < SELFTEST_BIASES && !*full; b++) {
            const moe_reference_sum how = {.levels = r + 1,
                                           .node_size = c->node_size,
                                           .experts = order ? c->expanded : NULL,
                                           .bias = {b > 0 ? c->bias[s][0] : NULL, b > 1 ? c->bias[s][1] : NULL},
                                           .row_bytes = c->back_bytes,
                                           .element_bytes = 2};
            c->out[order][r][b][s] = take(full, n, c->back_bytes);
            if (!*full)
                moe_reference_combine_all(&c->model, &how, s, c->rows, (const unsigned char *const *)c->y[order],
                                          c->out[order][r][b][s]);
        }
    c->out_weights[order][s] = take(full, n * k, sizeof(float));
    for (int i = 0; i < c->counts[s] && !*full; i++)
        for (int j = 0; j < c->top_k; j++)
            c->out_weights[order][s][(size_t)i * k + (size_t)j] =
                weight_back(c, order, first + i, j, c->experts[s][(size_t)i * k + (size_t)j]);
}

selftest_case *selftest_case_make(const selftest_preset *preset, int n_pes, int tokens, bool fp8, int alignment, uint64_t seed)
{
    selftest_case *c = calloc(1, sizeof *c);
    bool full = false;
    if (!c)
        return NULL;
    c->n_pes = n_pes, c->tokens = tokens, c->fp8 = fp8, c->alignment = alignment;
    c->hidden = preset->hidden, c->top_k = preset->top_k;
    c->n_experts = (preset->experts + n_pes - 1) / n_pes * n_pes;
    c->node_size = n_pes % 2 ? 1 : 2;
    c->n_scales = fp8 ? (preset->hidden + 127) / 128 : 0;
    c->row_bytes = (size_t)preset->hidden * (fp8 ? 1 : 2);
    c->back_bytes = (size_t)preset->hidden * 2;
    uint64_t at = mix(seed ^ (uint64_t)tokens << 20 ^ (uint64_t)fp8);
    fill_inputs(c, &at, &full);
    if (!full)
        ask_model(c, &at, &full);
    for (int order = 0; order < 2; order++)
        for (int s = 0, first = 0; s < n_pes && !full; first += c->counts[s], s++)
            ask_sums(c, order, s, first, &full);
    if (!full)
        return c;
    selftest_case_free(c);
    return NULL;
}

void selftest_case_free(selftest_case *c)
{
    for (int pe = 0; pe < c->n_pes; pe++) {
        void *mine[] = {c->experts[pe],        c->weights[pe],       c->x[pe],    c->scales[pe],          c->bias[pe][0],
                        c->bias[pe][1],        c->y[0][pe],          c->y[1][pe], c->back_weights[0][pe], c->back_weights[1][pe],
                        c->out_weights[0][pe], c->out_weights[1][pe]};
        for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
            free(mine[i]);
        for (int order = 0; order < 2; order++)
            for (int r = 0; r < SELFTEST_ROUNDINGS; r++)
                for (int b = 0; b < SELFTEST_BIASES; b++)
                    free(c->out[order][r][b][pe]);
        moe_reference_rows_free(&c->rows[pe]);
        moe_reference_experts_free(&c->expanded[pe]);
    }
    free(c);
}
