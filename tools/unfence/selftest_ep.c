/* selftest_ep.c - runs dispatch and combine in every configuration and compares each byte with the reference model.
 *
 * The PEs are threads of this process, a world each, over any fabric. A configuration is one of: does the cached dispatch use the handle as it
 * is or after a combine; alignment 128 or 1; fp8 with scales or bf16; 0, 1 or 2 biases; and six ways to call (blocking, start and finish, start
 * and test until done; with one handle under way or two). Each has flat and expert-major dispatches (new, cached, and of gradients) with
 * combines between, and in its turn each number of rounding levels. */
#include "fabric/efa/device_model.h"
#include "selftest.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAYS = 6, ORDERS = 2 };

typedef struct config {
    int number;
    bool after_combine;
    bool aligned, fp8;
    int biases, way;
} config;

typedef struct seat {
    const selftest_plan *plan;
    const selftest_case *c;
    uf_group *group;
    uf_efa_model_place *place;
    int pe;
    uf_world *world;
    uint64_t passed, failed;
    char first[512];
} seat;

static config config_of(int number)
{
    return (config){.number = number,
                    .after_combine = number / 72 % 2,
                    .aligned = number / 36 % 2 == 0,
                    .fp8 = number / 18 % 2 == 0,
                    .biases = number / 6 % 3,
                    .way = number % WAYS};
}

static bool wrong(seat *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(seat *s, const char *format, ...)
{
    va_list args;
    if (s->failed++)
        return false;
    va_start(args, format);
    vsnprintf(s->first, sizeof s->first, format, args);
    va_end(args);
    return false;
}

static bool done(seat *s, int rc, const char *call)
{
    return rc == UF_OK || wrong(s, "PE %d: %s: %s", s->pe, call, uf_error_message());
}

/* Compares a row; a difference is told with PE, row and column (element). */
static bool same(seat *s, const char *what, size_t row, const void *got, const void *wanted, size_t bytes, size_t element)
{
    if (memcmp(got, wanted, bytes) == 0)
        return true;
    size_t at = 0;
    while (((const unsigned char *)got)[at] == ((const unsigned char *)wanted)[at])
        at++;
    return wrong(s, "%s: (PE %d, row %zu, column %zu) differs from the model", what, s->pe, row, at / element);
}

/* ---------------------------------------------------------------- what came */

static bool check_flat(seat *s, const selftest_case *c, const uf_ep_received *r)
{
    const moe_reference_rows *m = &c->rows[s->pe];
    size_t k = (size_t)c->top_k;
    if (r->n_rows != m->n_rows)
        return wrong(s, "flat dispatch: PE %d received %d rows, the model says %d", s->pe, r->n_rows, m->n_rows);
    for (size_t n = 0; n < (size_t)m->n_rows; n++) {
        const unsigned char *x = (const unsigned char *)r->x + n * c->row_bytes;
        if (!same(s, "flat x", n, x, m->x + n * c->row_bytes, c->row_bytes, c->fp8 ? 1 : 2) ||
            !same(s, "flat experts", n, r->experts + n * k, m->experts + n * k, k * 4, 4) ||
            !same(s, "flat weights", n, r->weights + n * k, m->weights + n * k, k * 4, 4))
            return false;
    }
    return same(s, "source PEs", 0, r->source_pe, m->source_pe, (size_t)m->n_rows * 4, 4) &&
           same(s, "source tokens", 0, r->source_token, m->source_token, (size_t)m->n_rows * 4, 4);
}

static bool check_expanded(seat *s, const selftest_case *c, const uf_ep_received *r)
{
    const moe_reference_rows *m = &c->rows[s->pe];
    const moe_reference_experts *x = &c->expanded[s->pe];
    static const unsigned char zeros[1 << 16];
    if (r->n_rows != x->n_rows)
        return wrong(s, "expert-major dispatch: PE %d received %d rows, the model says %d", s->pe, r->n_rows, x->n_rows);
    for (size_t n = 0; n < (size_t)x->n_rows; n++) {
        int32_t t = x->token[n], pe = t < 0 ? -1 : m->source_pe[t], token = t < 0 ? -1 : m->source_token[t];
        const void *wanted = t < 0 ? zeros : m->x + (size_t)t * c->row_bytes;
        float weight = t < 0 ? 0 : m->weights[t * c->top_k + x->lane[n]];
        if (!same(s, "expert-major x", n, (const unsigned char *)r->x + n * c->row_bytes, wanted, c->row_bytes, c->fp8 ? 1 : 2) ||
            !same(s, "expert-major weights", n, &r->weights[n], &weight, 4, 4) ||
            !same(s, "source PE", n, &r->source_pe[n], &pe, 4, 4) ||
            !same(s, "source token", n, &r->source_token[n], &token, 4, 4) ||
            !same(s, "source lane", n, &r->source_lane[n], &x->lane[n], 4, 4))
            return false;
    }
    return same(s, "rows of lanes", 0, r->token_rows, x->row, (size_t)m->n_rows * (size_t)c->top_k * 4, 4) &&
           same(s, "first rows of experts", 0, r->expert_first, x->first, ((size_t)(c->n_experts / c->n_pes) + 1) * 4, 4);
}

static bool check_scales(seat *s, const selftest_case *c, const uf_ep_received *r)
{
    size_t n_scales = (size_t)c->n_scales;
    for (size_t n = 0; n < (size_t)r->n_rows && n_scales; n++)
        for (size_t j = 0; j < n_scales; j++) {
            uint32_t zero = 0;
            const unsigned char *got = (const unsigned char *)r->scales + (n * r->scale_row_stride + j * r->scale_stride) * 4;
            const unsigned char *from = r->source_pe[n] < 0
                                            ? (const unsigned char *)&zero
                                            : c->scales[r->source_pe[n]] + ((size_t)r->source_token[n] * n_scales + j) * 4;
            if (memcmp(got, from, 4) != 0)
                return wrong(s, "scales: (PE %d, row %zu, column %zu) differs from the model", s->pe, n, j);
        }
    return true;
}

static bool check_counts(seat *s, const selftest_case *c, const uf_ep_received *r)
{
    const moe_reference_rows *m = &c->rows[s->pe];
    int32_t sum = 0, first = 0;
    for (int l = 0; l < c->n_experts / c->n_pes; l++) {
        int32_t aligned = m->expert_rows[l] + (c->alignment - m->expert_rows[l] % c->alignment) % c->alignment;
        if (r->expert_rows[l] != m->expert_rows[l] || r->expert_aligned[l] != aligned || r->expert_first[l] != first)
            return wrong(s, "counts: (PE %d, expert %d) differs from the model", s->pe, l);
        first += aligned;
    }
    for (int pe = 0; pe < c->n_pes; pe++) {
        if (r->source_rows[pe] != m->source_rows[pe] || r->source_first[pe] != sum)
            return wrong(s, "counts: (PE %d, source %d) differs from the model", s->pe, pe);
        sum += m->source_rows[pe];
    }
    return (r->n_tokens == m->n_rows && r->source_first[c->n_pes] == sum) ||
           wrong(s, "counts: PE %d received other tokens", s->pe);
}

static bool check_received(seat *s, const selftest_case *c, int order, const uf_ep_received *r)
{
    return (order ? check_expanded(s, c, r) : check_flat(s, c, r)) && check_scales(s, c, r) && check_counts(s, c, r);
}

/* ---------------------------------------------------------------- the calls, in six ways */

static bool await(seat *s, uf_ep *ep, uf_ep_handle *handle, int way)
{
    for (int ready = way % 3 != 2; !ready;)
        if (!done(s, uf_ep_test(ep, handle, &ready), "uf_ep_test"))
            return false;
    return true;
}

static bool dispatch(seat *s, const selftest_case *c, uf_ep *ep, int order, int way, uf_ep_handle **handle)
{
    /* Scales lie the other way round in every second way. */
    uf_ep_send send = {.size = sizeof send,
                       .x = c->x[s->pe],
                       .experts = c->experts[s->pe],
                       .weights = c->weights[s->pe],
                       .n_tokens = c->counts[s->pe],
                       .scales = c->scales[s->pe]};
    size_t n = (size_t)c->counts[s->pe], n_scales = (size_t)c->n_scales;
    uint32_t *turned = NULL;
    if (way % 2 && n_scales) {
        turned = malloc((n * n_scales + 1) * 4);
        for (size_t i = 0; turned && i < n * n_scales; i++)
            memcpy(&turned[i % n_scales * n + i / n_scales], c->scales[s->pe] + i * 4, 4);
        send.scales = turned, send.scale_token_stride = 1, send.scale_stride = n;
    }
    uf_ep_received r = {.size = sizeof r};
    /* Two under way: the second is finished first where the notes allow it. */
    bool two = way >= 3 && !*handle;
    uf_ep_handle *other = NULL;
    uf_ep_received r2 = {.size = sizeof r2};
    bool ok;
    if (way == 0 && *handle && !n_scales)
        ok = done(s, uf_ep_dispatch_cached(ep, send.x, *handle, &r), "uf_ep_dispatch_cached");
    else if (way == 0 && !n_scales)
        ok = done(s, uf_ep_dispatch(ep, send.x, send.experts, send.weights, send.n_tokens, handle, &r), "uf_ep_dispatch");
    else
        ok = done(s, uf_ep_dispatch_start(ep, &send, handle), "uf_ep_dispatch_start") &&
             (!two || done(s, uf_ep_dispatch_start(ep, &send, &other), "uf_ep_dispatch_start")) &&
             (!two || (await(s, ep, other, way) && done(s, uf_ep_dispatch_finish(ep, other, &r2), "uf_ep_dispatch_finish"))) &&
             await(s, ep, *handle, way) && done(s, uf_ep_dispatch_finish(ep, *handle, &r), "uf_ep_dispatch_finish");
    ok = ok && check_received(s, c, order, &r) && (!two || check_received(s, c, order, &r2)) &&
         (!two || done(s, uf_ep_handle_free(other), "uf_ep_handle_free"));
    free(turned);
    return ok;
}

static bool combine(seat *s, const selftest_case *c, uf_ep *ep, int order, int rounding, const config *g, uf_ep_handle *handle)
{
    size_t n = (size_t)c->counts[s->pe], k = (size_t)c->top_k;
    unsigned char *out = malloc(n * c->back_bytes + 1);
    float *weights = malloc((n * k + 1) * sizeof *weights);
    if (!out || !weights) {
        free(out);
        free(weights);
        return wrong(s, "PE %d: no memory", s->pe);
    }
    memset(out, 0xa5, n * c->back_bytes);
    uf_ep_back back = {.size = sizeof back,
                       .y = c->y[order][s->pe],
                       .row_weights = c->back_weights[order][s->pe],
                       .bias = {g->biases > 0 ? c->bias[s->pe][0] : NULL, g->biases > 1 ? c->bias[s->pe][1] : NULL},
                       .out = out,
                       .out_weights = weights};
    bool ok = done(s, uf_ep_combine_start(ep, &back, handle), "uf_ep_combine_start") && await(s, ep, handle, g->way) &&
              done(s, uf_ep_combine_finish(ep, handle), "uf_ep_combine_finish");
    for (size_t i = 0; ok && i < n; i++)
        ok = same(s, order ? "combine of expert-major rows" : "combine of flat rows", i, out + i * c->back_bytes,
                  c->out[order][rounding][g->biases][s->pe] + i * c->back_bytes, c->back_bytes, 2) &&
             same(s, "weights", i, weights + i * k, c->out_weights[order][s->pe] + i * k, k * sizeof *weights, 4);
    free(out);
    free(weights);
    return ok;
}

/* The backward pass of the combine: bf16 rows (here those of the first bias) by the same routing, whatever the forward rows were. */
static bool gradients(seat *s, const selftest_case *c, uf_ep *ep, int way, uf_ep_handle *handle)
{
    uf_ep_send send = {.size = sizeof send, .x = c->bias[s->pe][0], .gradients = 1};
    uf_ep_received r = {.size = sizeof r};
    if (!done(s, uf_ep_dispatch_start(ep, &send, &handle), "uf_ep_dispatch_start") || !await(s, ep, handle, way) ||
        !done(s, uf_ep_dispatch_finish(ep, handle, &r), "uf_ep_dispatch_finish"))
        return false;
    for (size_t n = 0; n < (size_t)r.n_rows; n++) {
        const unsigned char *row = (const unsigned char *)r.x + n * c->back_bytes;
        if (r.source_pe[n] >= 0 &&
            !same(s, "gradients", n, row, c->bias[r.source_pe[n]][0] + (size_t)r.source_token[n] * c->back_bytes, c->back_bytes,
                  2))
            return false;
    }
    return true;
}

static bool run_config(seat *s, const selftest_case *c, uf_ep *const *eps, int rounding, const config *g)
{
    uf_ep_handle *h[ORDERS] = {NULL, NULL};
    bool ok = true;
    for (int order = 0; order < ORDERS && ok; order++)
        ok = dispatch(s, c, eps[order], order, g->way, &h[order]);
    for (int order = 0; order < ORDERS && ok && g->after_combine; order++)
        ok = combine(s, c, eps[order], order, rounding, g, h[order]);
    for (int order = 0; order < ORDERS && ok; order++)
        ok = dispatch(s, c, eps[order], order, g->way, &h[order]) && combine(s, c, eps[order], order, rounding, g, h[order]) &&
             gradients(s, c, eps[order], g->way, h[order]) && combine(s, c, eps[order], order, rounding, g, h[order]) &&
             done(s, uf_ep_handle_free(h[order]), "uf_ep_handle_free");
    s->passed += ok;
    return ok;
}

/* ---------------------------------------------------------------- the configurations */

static uf_ep *open_ep(seat *s, const selftest_case *c, int order, int rounding)
{
    const uf_ep_options o = {.size = sizeof o,
                             .type = c->fp8 ? UF_EP_FP8 : UF_EP_BF16,
                             .hidden = (size_t)c->hidden,
                             .n_experts = c->n_experts,
                             .top_k = c->top_k,
                             .max_tokens = c->tokens,
                             .order = order ? UF_EP_EXPERT_MAJOR : UF_EP_FLAT,
                             .alignment = c->alignment,
                             .zero_padding = 1,
                             .n_scales = c->n_scales,
                             .column_scales = rounding == UF_EP_ROUND_PER_PE,
                             .rounding = (uf_ep_rounding)rounding,
                             .node_size = c->node_size,
                             .checksums = rounding == UF_EP_ROUND_PER_HOST};
    uf_ep *ep = NULL;
    done(s, uf_ep_create(uf_team_world(s->world), &o, &ep), "uf_ep_create");
    return ep;
}

/* All configurations of one alignment and type with one number of rounding levels. */
static bool run_group(seat *s, const selftest_case *c, int rounding)
{
    uf_ep *eps[ORDERS] = {NULL, NULL};
    for (int order = 0; order < ORDERS; order++)
        if (!(eps[order] = open_ep(s, c, order, rounding)))
            return false;
    bool ok = true;
    for (int n = 0; n < SELFTEST_CONFIGS && ok; n++) {
        config g = config_of(n);
        bool mine = g.fp8 == c->fp8 && g.aligned == (c->alignment > 1);
        if (mine && (!s->plan->quick || (n + c->tokens) % SELFTEST_ROUNDINGS == rounding))
            ok = run_config(s, c, eps, rounding, &g);
        if (!ok) {
            char why[400];
            snprintf(why, sizeof why, "%.399s", s->first);
            snprintf(s->first, sizeof s->first, "configuration %d, rounding %d, %d tokens: %s", n, rounding, c->tokens, why);
        }
    }
    for (int order = 0; order < ORDERS && ok; order++)
        ok = done(s, uf_ep_destroy(eps[order]), "uf_ep_destroy");
    return ok;
}

static void *sit(void *arg)
{
    seat *s = arg;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = s->pe, o.n_pes = s->plan->n_pes, o.group = s->group;
    if (s->place)
        o.fabric_ops = &uf_fabric_efa, o.fabric_arg = s->place;
    else
        o.fabric = s->plan->fabric;
    if (!done(s, uf_world_create(&o, &s->world), "uf_world_create"))
        return NULL;
    bool ok = true;
    for (int rounding = 0; rounding < SELFTEST_ROUNDINGS && ok; rounding++)
        ok = run_group(s, s->c, rounding);
    if (!ok)
        uf_world_abort(s->world, "a comparison of the selftest failed");
    uf_world_destroy(s->world);
    return NULL;
}

static int run_seats(const selftest_plan *plan, const selftest_case *c, selftest_result *result)
{
    seat seats[SELFTEST_MAX_PES] = {{0}};
    pthread_t threads[SELFTEST_MAX_PES];
    uf_group *group = NULL;
    uf_efa_model_place *place = NULL;
    static const char model[] = "efa:model-";
    int started = 0, rc = uf_group_create(plan->n_pes, &group);
    if (!rc && strncmp(plan->fabric, model, sizeof model - 1) == 0) {
        const uf_efa_model_place_options o = {.profile = plan->fabric + sizeof model - 1,
                                              .seed = plan->seed,
                                              .n_pes = (uint32_t)plan->n_pes,
                                              .n_rails = 1,
                                              .real_time = true};
        rc = uf_efa_model_place_create(&o, &place);
    }
    for (; !rc && started < plan->n_pes; started++) {
        seats[started] = (seat){.plan = plan, .c = c, .group = group, .place = place, .pe = started};
        if (pthread_create(&threads[started], NULL, sit, &seats[started]))
            break;
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++) {
        result->passed += i == 0 ? seats[i].passed : 0;
        result->failed += seats[i].failed > 0;
        /* An abort follows a difference: the difference is the story. */
        bool story = seats[i].failed && (!result->first[0] || strstr(seats[i].first, "differs from the model"));
        if (story && !strstr(result->first, "differs from the model"))
            snprintf(result->first, sizeof result->first, "%s", seats[i].first);
    }
    if (rc || started < plan->n_pes) {
        result->failed++;
        snprintf(result->first, sizeof result->first, "%s", rc ? uf_error_message() : "cannot start a thread for each PE");
    }
    if (place)
        uf_efa_model_place_destroy(place);
    uf_group_destroy(group);
    return result->failed ? -1 : 0;
}

int selftest_ep_run(const selftest_plan *plan, const selftest_preset *preset, int tokens, selftest_result *result)
{
    /* One case after another: all four of a large preset would not fit. */
    int rc = 0;
    for (int i = 0; i < 4 && rc == 0; i++) {
        selftest_case *c = selftest_case_make(preset, plan->n_pes, tokens, i % 2, i / 2 ? 128 : 1, plan->seed);
        if (c) {
            rc = run_seats(plan, c, result);
            selftest_case_free(c);
            continue;
        }
        result->failed++;
        snprintf(result->first, sizeof result->first, "no memory for %d tokens", tokens);
        rc = -1;
    }
    return rc;
}
