/* ep_case.c - see ep_case.h. */
#include "multi/ep_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t v)
{
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

typedef struct stream {
    uint64_t at;
} stream;

static uint32_t next(stream *s, uint32_t below)
{
    return (uint32_t)((mix(s->at++) >> 32) % below);
}

static int local_experts(const ep_shape *s)
{
    return s->n_experts / s->n_pes;
}

/* The experts that a routing may choose from: the first `n` of them. */
static int choice(const ep_shape *s)
{
    if (s->routing == EP_ONE_PE)
        return local_experts(s);
    if (s->routing == EP_SOME_DEAF)
        return s->n_experts - local_experts(s);
    return s->n_experts;
}

static void route(const ep_shape *s, stream *r, int32_t *lanes)
{
    int n = choice(s);
    for (int j = 0; j < s->top_k; j++) {
        lanes[j] = -1;
        if (s->routing == EP_NOWHERE || (s->routing == EP_ONE_EXPERT && j > 0) || j >= n)
            continue;
        if (s->routing == EP_ONE_EXPERT) {
            lanes[j] = s->n_experts - 1;
            continue;
        }
        int taken;
        do {
            lanes[j] = (int32_t)next(r, (uint32_t)n);
            taken = 0;
            for (int l = 0; l < j; l++)
                taken |= lanes[l] == lanes[j];
        } while (taken);
    }
    for (int j = 0; j < s->top_k && s->routing == EP_RANDOM; j++)
        if (next(r, 8) == 0)
            lanes[j] = -1;
}

/* Elements whose sums round and cancel: few exponents, all signs. Opaque rows get plain bytes. */
static void fill_rows(const ep_case *c, stream *r, unsigned char *rows, size_t n)
{
    size_t elements = n * c->row_bytes / c->element_bytes;
    for (size_t i = 0; i < elements; i++) {
        uint32_t bits = (next(r, 0x10000) & 0x807f) | (0x3d00u + (next(r, 8) << 7));
        uint32_t low = next(r, 0x10000);
        uint16_t half = (uint16_t)bits;
        uint32_t whole = bits << 16 | low;
        if (c->element_bytes == 2)
            memcpy(rows + i * 2, &half, 2);
        else if (c->element_bytes == 4)
            memcpy(rows + i * 4, &whole, 4);
        else
            rows[i] = (unsigned char)low;
    }
}

static void *take(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    if (!p)
        abort();
    return p;
}

static float fraction(stream *r)
{
    return (float)next(r, 1 << 20) / (1 << 20);
}

/* Fills x, y and what the model says; routing and weights are there. */
static void fill_contents(ep_case *c, uint64_t seed)
{
    size_t pes = (size_t)c->shape.n_pes, k = (size_t)c->shape.top_k;
    stream r = {mix(seed ^ 0x5eed)};
    for (size_t s = 0; s < pes; s++) {
        c->x[s] = take((size_t)c->tokens[s], c->row_bytes);
        fill_rows(c, &r, c->x[s], (size_t)c->tokens[s]);
    }
    c->model = (moe_reference){c->shape.n_pes,
                               c->shape.n_experts,
                               c->shape.top_k,
                               c->row_bytes,
                               c->tokens,
                               (const int32_t *const *)c->experts,
                               (const float *const *)c->weights,
                               (const unsigned char *const *)c->x};
    for (size_t d = 0; d < pes; d++) {
        moe_reference_dispatch(&c->model, (int)d, &c->rows[d]);
        size_t n = (size_t)c->rows[d].n_rows;
        c->y[d] = take(n, c->row_bytes);
        fill_rows(c, &r, c->y[d], n);
        c->row_weights[d] = d % 3 == 2 ? NULL : take(n * k, sizeof(float));
        for (size_t i = 0; c->row_weights[d] && i < n * k; i++)
            c->row_weights[d][i] = fraction(&r);
    }
    for (size_t s = 0; s < pes && c->shape.type != UF_EP_BYTES; s++) {
        c->out[s] = take((size_t)c->tokens[s], c->row_bytes);
        c->out_weights[s] = take((size_t)c->tokens[s] * k, sizeof(float));
        moe_reference_combine(&c->model, (int)s, c->rows, (const unsigned char *const *)c->y, c->element_bytes, c->out[s]);
        moe_reference_combine_weights(&c->model, (int)s, c->rows, (const float *const *)c->row_weights, c->out_weights[s]);
    }
}

static ep_case *blank(const ep_shape *shape, uint64_t seed)
{
    size_t pes = (size_t)shape->n_pes;
    ep_case *c = take(1, sizeof *c);
    c->shape = *shape;
    c->seed = seed;
    c->element_bytes = shape->type == UF_EP_BF16 ? 2 : shape->type == UF_EP_F32 ? 4 : 1;
    c->row_bytes = shape->hidden * c->element_bytes;
    c->tokens = take(pes, sizeof *c->tokens);
    c->experts = take(pes, sizeof *c->experts);
    c->weights = take(pes, sizeof *c->weights);
    c->row_weights = take(pes, sizeof *c->row_weights);
    c->x = take(pes, sizeof *c->x);
    c->y = take(pes, sizeof *c->y);
    c->out = take(pes, sizeof *c->out);
    c->out_weights = take(pes, sizeof *c->out_weights);
    c->rows = take(pes, sizeof *c->rows);
    return c;
}

ep_case *ep_case_make(const ep_shape *shape, uint64_t seed)
{
    ep_case *c = blank(shape, seed);
    stream r = {mix(seed)};
    for (int s = 0; s < shape->n_pes; s++) {
        int n = shape->tokens - s * shape->ragged;
        c->tokens[s] = n > 0 ? n : 0;
        size_t lanes = (size_t)c->tokens[s] * (size_t)shape->top_k;
        c->experts[s] = take(lanes, sizeof **c->experts);
        for (int i = 0; i < c->tokens[s]; i++)
            route(shape, &r, c->experts[s] + i * shape->top_k);
        c->weights[s] = s % 4 == 3 ? NULL : take(lanes, sizeof(float));
        for (size_t l = 0; c->weights[s] && l < lanes; l++)
            c->weights[s][l] = fraction(&r);
    }
    fill_contents(c, seed);
    return c;
}

ep_case *ep_case_again(const ep_case *old, uint64_t seed)
{
    ep_case *c = blank(&old->shape, seed);
    for (int s = 0; s < c->shape.n_pes; s++) {
        size_t lanes = (size_t)old->tokens[s] * (size_t)c->shape.top_k;
        c->tokens[s] = old->tokens[s];
        c->experts[s] = take(lanes, sizeof **c->experts);
        memcpy(c->experts[s], old->experts[s], lanes * sizeof **c->experts);
        c->weights[s] = old->weights[s] ? take(lanes, sizeof(float)) : NULL;
        if (c->weights[s])
            memcpy(c->weights[s], old->weights[s], lanes * sizeof(float));
    }
    fill_contents(c, seed);
    return c;
}

void ep_case_free(ep_case *c)
{
    for (int pe = 0; pe < c->shape.n_pes; pe++) {
        void *mine[] = {c->experts[pe], c->weights[pe], c->row_weights[pe], c->x[pe], c->y[pe], c->out[pe], c->out_weights[pe]};
        for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
            free(mine[i]);
        moe_reference_rows_free(&c->rows[pe]);
    }
    void *all[] = {c->tokens, c->experts, c->weights, c->row_weights, c->x, c->y, c->out, c->out_weights, c->rows, c};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---------------------------------------------------------------- on a PE */

int ep_case_create(ep_pe *pe, const ep_case *c, int max_handles, uf_ep **ep)
{
    uf_ep_options o = {.size = sizeof o,
                       .type = c->shape.type,
                       .hidden = c->shape.hidden,
                       .n_experts = c->shape.n_experts,
                       .top_k = c->shape.top_k,
                       .max_tokens = c->shape.max_tokens,
                       .max_handles = max_handles};
    return ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, ep), "uf_ep_create");
}

static void same(ep_pe *pe, const ep_case *c, const char *name, const char *what, const void *got, const void *wanted,
                 size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)got)[i] != ((const unsigned char *)wanted)[i]) {
            ep_pe_fail(pe, "%s (seed %llu): %s differs from the model at byte %zu of %zu", name, (unsigned long long)c->seed,
                       what, i, bytes);
            return;
        }
}

static int compare_received(ep_pe *pe, const ep_case *c, const uf_ep_received *r, const char *name)
{
    const moe_reference_rows *m = &c->rows[pe->pe];
    size_t n = (size_t)m->n_rows, k = (size_t)c->shape.top_k;
    if (r->n_rows != m->n_rows) {
        ep_pe_fail(pe, "%s (seed %llu): %d rows, the model says %d", name, (unsigned long long)c->seed, r->n_rows, m->n_rows);
        return 0;
    }
    same(pe, c, name, "x", r->x, m->x, n * c->row_bytes);
    same(pe, c, name, "experts", r->experts, m->experts, n * k * sizeof *r->experts);
    same(pe, c, name, "weights", r->weights, m->weights, n * k * sizeof *r->weights);
    same(pe, c, name, "source_pe", r->source_pe, m->source_pe, n * sizeof *r->source_pe);
    same(pe, c, name, "source_token", r->source_token, m->source_token, n * sizeof *r->source_token);
    same(pe, c, name, "expert_rows", r->expert_rows, m->expert_rows, (size_t)local_experts(&c->shape) * sizeof *r->expert_rows);
    same(pe, c, name, "source_rows", r->source_rows, m->source_rows, (size_t)c->shape.n_pes * sizeof *r->source_rows);
    return !pe->failed;
}

int ep_case_dispatch(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle **handle, const char *name)
{
    uf_ep_received r = {.size = sizeof r};
    int rc = uf_ep_dispatch(ep, c->x[pe->pe], c->experts[pe->pe], c->weights[pe->pe], c->tokens[pe->pe], handle, &r);
    return ep_pe_ok(pe, rc, name) && compare_received(pe, c, &r, name);
}

int ep_case_replay(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle *handle, const char *name)
{
    uf_ep_received r = {.size = sizeof r};
    return ep_pe_ok(pe, uf_ep_dispatch_cached(ep, c->x[pe->pe], handle, &r), name) && compare_received(pe, c, &r, name);
}

int ep_case_combine(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle *handle, const char *name)
{
    size_t n = (size_t)c->tokens[pe->pe], k = (size_t)c->shape.top_k;
    unsigned char *out = take(n, c->row_bytes);
    float *out_weights = take(n * k, sizeof *out_weights);
    memset(out, 0xa5, n * c->row_bytes);
    int ok = ep_pe_ok(pe, uf_ep_combine(ep, c->y[pe->pe], c->row_weights[pe->pe], handle, out, out_weights), name);
    if (ok) {
        same(pe, c, name, "out", out, c->out[pe->pe], n * c->row_bytes);
        same(pe, c, name, "out_weights", out_weights, c->out_weights[pe->pe], n * k * sizeof *out_weights);
    }
    free(out);
    free(out_weights);
    return !pe->failed;
}

/* ---------------------------------------------------------------- mistakes */

/* PE `wrong` makes a mistake in a combine or a cached dispatch: all must say so, and stay in step. */
static void mistake(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle *handle, int combine, int wrong, const char *name)
{
    unsigned char *out = take((size_t)c->tokens[pe->pe], c->row_bytes);
    uf_ep_back back = {.size = pe->pe == wrong ? 1 : sizeof back, .y = c->y[pe->pe], .out = out};
    uf_ep_received r = {.size = pe->pe == wrong ? 1 : sizeof r};
    char says[64];
    snprintf(says, sizeof says, "PE %d: %s.size is 1", wrong, combine ? "back" : "received");
    int rc = combine ? uf_ep_combine_start(ep, &back, handle) : uf_ep_dispatch_cached(ep, c->x[pe->pe], handle, &r);
    if (combine && ep_pe_ok(pe, rc, name))
        rc = uf_ep_combine_finish(ep, handle);
    if (rc != UF_EINVAL || !strstr(uf_error_message(), says))
        ep_pe_fail(pe, "%s: %s: \"%s\" should say \"%s\"", name, uf_error_name(rc), uf_error_message(), says);
    free(out);
}

/* ---------------------------------------------------------------- many steps */

ep_churn *ep_churn_make(int n_pes, uint64_t seed)
{
    ep_churn *churn = take(1, sizeof *churn);
    for (int i = 0; i < EP_CHURN_CASES; i++) {
        ep_shape s = {n_pes,      n_pes * 4, 4, 50, 16, UF_EP_F32, i % 4 == 3 && n_pes > 1 ? EP_SOME_DEAF : EP_RANDOM,
                      50 - i * 4, i % 5 * 9};
        churn->cases[i] = ep_case_make(&s, seed + (uint64_t)i);
    }
    return churn;
}

void ep_churn_free(ep_churn *churn)
{
    for (int i = 0; i < EP_CHURN_CASES; i++)
        ep_case_free(churn->cases[i]);
    free(churn);
}

void ep_case_churn(ep_pe *pe, const ep_churn *churn, int steps, uint64_t seed)
{
    uf_ep *ep = NULL;
    uf_ep_handle *open[EP_CHURN_HANDLES] = {NULL};
    const ep_case *of[EP_CHURN_HANDLES] = {NULL};
    stream r = {mix(seed)};
    if (!ep_case_create(pe, churn->cases[0], EP_CHURN_HANDLES, &ep))
        return;
    for (int i = 0; i < steps && !pe->failed; i++) {
        uint32_t at = next(&r, EP_CHURN_HANDLES), what = next(&r, 7), which = next(&r, EP_CHURN_CASES);
        char name[64];
        snprintf(name, sizeof name, "step %d, handle %u, action %u", i, at, what);
        if (!open[at]) {
            of[at] = churn->cases[which];
            ep_case_dispatch(pe, of[at], ep, &open[at], name);
        } else if (what == 0) {
            ep_pe_ok(pe, uf_ep_handle_free(open[at]), name);
            open[at] = NULL;
        } else if (what == 1) {
            ep_case_replay(pe, of[at], ep, open[at], name);
        } else if (what < 5) {
            ep_case_combine(pe, of[at], ep, open[at], name);
        } else {
            mistake(pe, of[at], ep, open[at], what == 5, (int)which % pe->n_pes, name);
        }
    }
    int rc = uf_ep_destroy(ep);
    if (!pe->failed)
        ep_pe_ok(pe, rc, "uf_ep_destroy");
}
