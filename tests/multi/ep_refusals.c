/* Promises of uf_ep: what is wrong is refused on all PEs alike with PE, token and lane named, and a late PE is named by the others. */
#include "support/ep_pes.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *fabric = "local";

enum { PES = 4, K = 3, TOKENS = 6, HIDDEN = 8 };

static int refused(ep_pe *pe, int rc, int code, const char *says)
{
    if (rc != code || !strstr(uf_error_message(), says))
        ep_pe_fail(pe, "%s, expected %s: \"%s\" should say \"%s\"", uf_error_name(rc), uf_error_name(code), uf_error_message(),
                   says);
    return !pe->failed;
}

static int create(ep_pe *pe, uf_ep **ep)
{
    uf_ep_options o = {.size = sizeof o,
                       .type = UF_EP_BF16,
                       .hidden = HIDDEN,
                       .n_experts = 8,
                       .top_k = K,
                       .max_tokens = TOKENS,
                       .max_handles = 2};
    return ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, ep), "uf_ep_create");
}

/* ---------------------------------------------------------------- dispatch */

typedef struct wrong {
    int pe, token, lane, expert, n_tokens;
    const char *says;
} wrong;

static void body_of_wrong_routings(ep_pe *pe)
{
    static const wrong all[] = {
        {2, 4, 1, 8, TOKENS, "PE 2: token 4, lane 1 names expert 8, but experts are 0 to 7"},
        {0, 0, 2, -2, TOKENS, "PE 0: token 0, lane 2 names expert -2"},
        {3, 5, 2, 0, TOKENS, "PE 3: token 5, lane 2 names expert 0 a second time"},
        {1, 0, 0, 0, TOKENS + 1, "PE 1 has 7 tokens to dispatch, but max_tokens is 6"},
        {1, 0, 0, 0, -1, "PE 1 has -1 tokens"},
    };
    uint16_t x[TOKENS][HIDDEN] = {{0}}, y[PES * TOKENS][HIDDEN] = {{0}}, out[TOKENS][HIDDEN];
    uf_ep *ep = NULL;
    if (!create(pe, &ep))
        return;
    for (size_t i = 0; i < sizeof all / sizeof *all && !pe->failed; i++) {
        int32_t experts[TOKENS][K];
        for (int t = 0; t < TOKENS; t++)
            for (int j = 0; j < K; j++)
                experts[t][j] = j * 2;
        int mine = pe->pe == all[i].pe;
        if (mine && all[i].token < TOKENS)
            experts[all[i].token][all[i].lane] = all[i].expert;
        uf_ep_handle *handle = NULL;
        uf_ep_received r = {.size = sizeof r};
        int rc = uf_ep_dispatch(ep, x, experts[0], NULL, mine ? all[i].n_tokens : TOKENS, &handle, &r);
        refused(pe, rc, UF_EINVAL, all[i].says);
        /* A refusal leaves the PEs in step: the next dispatch, with the fault mended, goes through. */
        if (mine)
            experts[all[i].token][all[i].lane] = all[i].lane * 2;
        ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts[0], NULL, TOKENS, &handle, &r), "dispatch after a refusal");
        if (!pe->failed)
            ep_pe_ok(pe, uf_ep_combine(ep, y, NULL, handle, out, NULL), "combine after a refusal");
        uf_ep_handle_free(handle);
    }
    uf_ep_destroy(ep);
}

static void wrong_routings_are_refused_on_all_pes_alike(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_wrong_routings, NULL), 0);
}

static void body_of_full_handles(ep_pe *pe)
{
    uint16_t x[TOKENS][HIDDEN] = {{0}};
    int32_t experts[TOKENS][K];
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < K; j++)
            experts[t][j] = j;
    uf_ep *ep = NULL;
    uf_ep_handle *h[3] = {NULL};
    uf_ep_received r = {.size = sizeof r};
    if (!create(pe, &ep))
        return;
    ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts[0], NULL, TOKENS, &h[0], &r), "first");
    ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts[0], NULL, TOKENS, &h[1], &r), "second");
    /* Only PE 3 keeps both; all are refused, and nothing is lost. */
    if (!pe->failed && pe->pe != 3)
        uf_ep_handle_free(h[1]);
    refused(pe, uf_ep_dispatch(ep, x, experts[0], NULL, TOKENS, &h[2], &r), UF_EAGAIN, "PE 3 has all 2 handles open");
    if (!pe->failed && pe->pe == 3)
        uf_ep_handle_free(h[1]);
    ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts[0], NULL, TOKENS, &h[2], &r), "third");
    refused(pe, uf_ep_handle_free(h[1] == h[2] ? NULL : h[1]), h[1] == h[2] ? UF_OK : UF_EINVAL, "");
    uf_ep_destroy(ep);
}

static void too_many_open_handles_are_refused_with_the_pe(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_full_handles, NULL), 0);
}

static void body_of_wrong_calls(ep_pe *pe)
{
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r}, unsized = {0};
    int32_t experts[K] = {0, 1, 2};
    uint16_t x[HIDDEN] = {0}, y[PES * HIDDEN] = {0}, out[HIDDEN + 1];
    if (!create(pe, &ep))
        return;
    refused(pe, uf_ep_dispatch(NULL, x, experts, NULL, 1, &h, &r), UF_EINVAL, "ep is NULL");
    refused(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, NULL), UF_EINVAL, "received is NULL");
    refused(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &unsized), UF_EINVAL, "received.size is 0");
    refused(pe, uf_ep_dispatch(ep, pe->pe == 1 ? NULL : x, experts, NULL, 1, &h, &r), UF_EINVAL, "PE 1: x is NULL");
    refused(pe, uf_ep_dispatch(ep, x, pe->pe == 2 ? NULL : experts, NULL, 1, &h, &r), UF_EINVAL, "PE 2: experts is NULL");
    if (pe->failed || !ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r), "dispatch"))
        return;
    refused(pe, uf_ep_combine(ep, r.n_rows ? NULL : y, NULL, h, r.n_rows ? out : NULL, NULL), UF_EINVAL,
            "PE 0: y is NULL, but there are 4 rows");
    refused(pe, uf_ep_combine(ep, y, NULL, h, (char *)out + 1, NULL), UF_EINVAL, "out is not aligned");
    refused(pe, uf_ep_dispatch_cached(ep, NULL, h, &r), UF_EINVAL, "x is NULL");
    ep_pe_ok(pe, uf_ep_combine(ep, y, NULL, h, out, NULL), "combine");
    uf_ep_handle_free(h);
    refused(pe, uf_ep_combine(ep, y, NULL, h, out, NULL), UF_EINVAL, "not open");
    refused(pe, uf_ep_handle_free(h), UF_EINVAL, "freed before");
    uf_ep_destroy(ep);
}

static void wrong_arguments_are_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_wrong_calls, NULL), 0);
}

/* ---------------------------------------------------------------- mistakes of one PE */

enum { ALONE = 2 };

/* Everybody calls, PE ALONE with something wrong; some PEs have no row for it, nor it for them. */
typedef struct lone {
    uf_ep *ep;
    uf_ep_handle *h;
    uf_ep_received r;
    uint16_t x[HIDDEN], y[PES * TOKENS][HIDDEN], out[HIDDEN];
} lone;

static int lone_make(ep_pe *pe, lone *l)
{
    /* Tokens of PEs 0 and 1 go to 0 and 1, those of 2 and 3 to 2 and 3. */
    int32_t experts[K] = {pe->pe / 2 * 4, pe->pe / 2 * 4 + 3, -1};
    *l = (lone){.r = {.size = sizeof l->r}};
    for (int i = 0; i < HIDDEN; i++)
        l->x[i] = (uint16_t)(0x3f80 + pe->pe);
    return create(pe, &l->ep) && ep_pe_ok(pe, uf_ep_dispatch(l->ep, l->x, experts, NULL, 1, &l->h, &l->r), "dispatch");
}

/* What comes back of a token that went to two PEs is twice the token. */
static void lone_goes_on(ep_pe *pe, lone *l)
{
    if (pe->failed || !ep_pe_ok(pe, uf_ep_dispatch_cached(l->ep, l->x, l->h, &l->r), "cached dispatch after a refusal") ||
        !ep_pe_ok(pe, uf_ep_combine(l->ep, l->r.x, NULL, l->h, l->out, NULL), "combine after a refusal"))
        return;
    if (l->out[0] != l->x[0] + 0x80)
        ep_pe_fail(pe, "token 0x%x came back as 0x%x", l->x[0], l->out[0]);
}

static void body_of_lone_arguments(ep_pe *pe)
{
    static lone all[PES];
    lone *l = &all[pe->pe];
    int mistaken = pe->pe == ALONE;
    uf_ep_received unsized = {0};
    uf_ep_back odd = {.size = sizeof odd, .y = l->y, .out = l->out, .bias = {NULL, mistaken ? (char *)l->x + 1 : NULL}};
    uf_ep_back small = {.size = mistaken ? 8 : sizeof small, .y = l->y, .out = l->out};
    if (!lone_make(pe, l))
        return;
    /* The first combine of a handle, where rows of the others are already on their way; then repeated ones. */
    for (int round = 0; round < 3 && !pe->failed; round++)
        refused(pe, uf_ep_combine(l->ep, mistaken ? NULL : l->y, NULL, l->h, l->out, NULL), UF_EINVAL,
                "PE 2: y is NULL, but there are 2 rows");
    refused(pe, uf_ep_combine(l->ep, l->y, NULL, l->h, mistaken ? NULL : l->out, NULL), UF_EINVAL,
            "PE 2: out is NULL, but there are 1 tokens");
    lone_goes_on(pe, l);
    refused(pe, uf_ep_dispatch_cached(l->ep, mistaken ? NULL : l->x, l->h, &l->r), UF_EINVAL,
            "PE 2: x is NULL, but there are 1 tokens");
    refused(pe, uf_ep_dispatch_cached(l->ep, l->x, l->h, mistaken ? &unsized : &l->r), UF_EINVAL, "PE 2: received.size is 0");
    lone_goes_on(pe, l);
    if (!pe->failed && ep_pe_ok(pe, uf_ep_combine_start(l->ep, &odd, l->h), "start"))
        refused(pe, uf_ep_combine_finish(l->ep, l->h), UF_EINVAL, "PE 2: bias[1] is not aligned");
    if (!pe->failed && ep_pe_ok(pe, uf_ep_combine_start(l->ep, &small, l->h), "start")) {
        int done = 0;
        while (!pe->failed && !done)
            ep_pe_ok(pe, uf_ep_test(l->ep, l->h, &done), "test");
        refused(pe, uf_ep_combine_finish(l->ep, l->h), UF_EINVAL, "PE 2: back.size is 8");
    }
    if (!pe->failed &&
        ep_pe_ok(pe, uf_ep_dispatch_start(l->ep, mistaken ? NULL : &(uf_ep_send){.size = sizeof(uf_ep_send), .x = l->x}, &l->h),
                 "start"))
        refused(pe, uf_ep_dispatch_finish(l->ep, l->h, &l->r), UF_EINVAL, "PE 2: argument send is NULL");
    lone_goes_on(pe, l);
    uf_ep_destroy(l->ep);
}

static void a_wrong_argument_of_one_pe_is_refused_by_all_and_all_go_on(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_lone_arguments, NULL), 0);
}

/* Handles that PE ALONE can't use: in a combine, a cached dispatch, and two calls in a row. The timeout is such that a PE left waiting would
 * end the test with another error. */
static void body_of_lone_handles(ep_pe *pe)
{
    static lone all[PES];
    lone *l = &all[pe->pe];
    int kind = *(const int *)pe->arg, mistaken = pe->pe == ALONE;
    static const char *const says[] = {"PE 2: the handle cannot be used: it is NULL",
                                       "PE 2: the handle cannot be used: it is not open"};
    uf_ep_handle *used = l->h;
    if (!lone_make(pe, l))
        return;
    used = l->h;
    if (mistaken && kind == 1)
        uf_ep_handle_free(l->h);
    if (mistaken && kind != 1)
        used = NULL;
    /* A mistake that all make first is refused by each for itself. */
    if (kind == 2)
        refused(pe, uf_ep_combine(l->ep, l->y, NULL, NULL, l->out, NULL), UF_EINVAL, "it is NULL");
    if (kind == 2 && mistaken)
        refused(pe, uf_ep_combine(l->ep, l->y, NULL, NULL, l->out, NULL), UF_EINVAL, "it is NULL");
    if (kind == 1)
        refused(pe, uf_ep_dispatch_cached(l->ep, l->x, used, &l->r), UF_EINVAL, says[1]);
    else
        refused(pe, uf_ep_combine(l->ep, l->y, NULL, used, l->out, NULL), UF_EINVAL, says[0]);
    /* PEs are out of step now: whoever goes on is told the same, or that it was told. */
    int32_t experts[K] = {0, 3, 6};
    uf_ep_handle *next = NULL;
    refused(pe, uf_ep_dispatch(l->ep, l->x, experts, NULL, 1, &next, &l->r), UF_EINVAL,
            mistaken ? says[kind == 1] : "an earlier dispatch or combine failed");
    uf_ep_destroy(l->ep);
}

static void a_handle_that_one_pe_cannot_use_ends_the_call_on_all(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_lone_handles, &kind), 0);
}

static void body_of_opaque_rows(ep_pe *pe)
{
    uf_ep_options o = {
        .size = sizeof o, .type = UF_EP_BYTES, .hidden = 16, .n_experts = 4, .top_k = 1, .max_tokens = 1, .max_handles = 0};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    unsigned char x[16] = {0};
    int32_t expert = 3;
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch(ep, x, &expert, NULL, 1, &h, &r), "dispatch"))
        return;
    refused(pe, uf_ep_combine(ep, r.x, NULL, h, x, NULL), UF_EUNSUPPORTED, "UF_EP_BYTES cannot be added");
    uf_ep_destroy(ep);
}

static void opaque_rows_cannot_be_combined(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(2, fabric, 0, body_of_opaque_rows, NULL), 0);
}

/* ---------------------------------------------------------------- create */

static void body_of_options(ep_pe *pe)
{
    static const struct {
        uf_ep_options o;
        const char *says;
    } bad[] = {
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 8,
          .n_experts = 10,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 0},
         "not a multiple of the 4 PEs"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 7,
          .n_experts = 8,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 0},
         "options.hidden is 7"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_F32,
          .hidden = 0,
          .n_experts = 8,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 0},
         "options.hidden is 0"},
        {{.size = sizeof(uf_ep_options),
          .type = (uf_ep_type)9,
          .hidden = 8,
          .n_experts = 8,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 0},
         "options.type is 9"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 8,
          .n_experts = 8,
          .top_k = 33,
          .max_tokens = 4,
          .max_handles = 0},
         "top_k is 33"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 8,
          .n_experts = 4096,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 0},
         "n_experts is 4096"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 8,
          .n_experts = 8,
          .top_k = 2,
          .max_tokens = -4,
          .max_handles = 0},
         "max_tokens is -4"},
        {{.size = sizeof(uf_ep_options),
          .type = UF_EP_BF16,
          .hidden = 8,
          .n_experts = 8,
          .top_k = 2,
          .max_tokens = 4,
          .max_handles = 65},
         "max_handles is 65"},
        {{.size = 3, .type = UF_EP_BF16, .hidden = 8, .n_experts = 8, .top_k = 2, .max_tokens = 4, .max_handles = 0},
         "options.size is 3"},
    };
    uf_ep *ep = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad && !pe->failed; i++) {
        refused(pe, uf_ep_create(uf_team_world(pe->world), &bad[i].o, &ep), UF_EINVAL, bad[i].says);
        if (uf_ep_bytes(&bad[i].o, pe->n_pes) != 0)
            ep_pe_fail(pe, "uf_ep_bytes accepts case %zu", i);
    }
    /* One PE differs, or one alone is wrong: all are told. */
    uf_ep_options o = {.size = sizeof o,
                       .type = UF_EP_BF16,
                       .hidden = 8,
                       .n_experts = 8,
                       .top_k = pe->pe == 2 ? 3 : 2,
                       .max_tokens = 4,
                       .max_handles = 0};
    refused(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), UF_EMISMATCH, "top_k is");
    o.top_k = pe->pe == 1 ? 0 : 2;
    refused(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), UF_EINVAL, "top_k is 0");
    refused(pe, uf_ep_create(NULL, &o, &ep), UF_EINVAL, "team is NULL");
    refused(pe, uf_ep_create(uf_team_world(pe->world), NULL, &ep), UF_EINVAL, "options is NULL");
}

static void options_are_refused_by_field_and_limit_on_all_pes(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_options, NULL), 0);
}

/* ---------------------------------------------------------------- teams */

static void body_of_teams(ep_pe *pe)
{
    /* Two halves, numbered backwards, each with its own experts; both dispatch at once. */
    int half = pe->pe / 2, pes[2] = {half * 2 + 1, half * 2};
    uf_team *team[2] = {NULL, NULL};
    for (int t = 0; t < 2; t++) {
        int list[2] = {t * 2 + 1, t * 2};
        if (!ep_pe_ok(pe, uf_team_create(uf_team_world(pe->world), list, 2, &team[t]), "uf_team_create"))
            return;
    }
    uf_ep_options o = {
        .size = sizeof o, .type = UF_EP_F32, .hidden = 4, .n_experts = 4, .top_k = 2, .max_tokens = 1, .max_handles = 0};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    int32_t experts[2] = {0, 3};
    float x[4] = {(float)pe->pe, 0, 0, 0}, out[4];
    if (!ep_pe_ok(pe, uf_ep_create(team[half], &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r), "dispatch"))
        return;
    const float *got = r.x;
    if (r.n_rows != 2 || got[0] != (float)pes[0] || got[4] != (float)pes[1])
        ep_pe_fail(pe, "%d rows, from PEs %g and %g", r.n_rows, (double)got[0], (double)got[4]);
    if (ep_pe_ok(pe, uf_ep_combine(ep, r.x, NULL, h, out, NULL), "combine") && out[0] != 2 * (float)pe->pe)
        ep_pe_fail(pe, "combine gave %g", (double)out[0]);
    uf_ep_destroy(ep);
}

static void disjoint_teams_work_at_once(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(PES, fabric, 0, body_of_teams, NULL), 0);
}

/* ---------------------------------------------------------------- late PEs */

static pthread_barrier_t others_gave_up;

static void body_of_late(ep_pe *pe)
{
    int in_dispatch = *(const int *)pe->arg;
    uint16_t x[HIDDEN] = {0}, y[PES * HIDDEN] = {0}, out[HIDDEN];
    int32_t experts[K] = {0, 3, 6};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    int ready = create(pe, &ep) && (in_dispatch || ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r), "dispatch"));
    int rc = UF_OK;
    if (ready && pe->pe != 3)
        rc = in_dispatch ? uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r) : uf_ep_combine(ep, y, NULL, h, out, NULL);
    if (ready && pe->pe != 3 && refused(pe, rc, UF_ETIMEDOUT, "late: PE 3") &&
        refused(pe, rc, UF_ETIMEDOUT, in_dispatch ? "dispatch 1 " : "combine 1 "))
        refused(pe, uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r), UF_ETIMEDOUT, "out of step");
    uf_ep_stats stats = {.size = sizeof stats};
    if (pe->pe != 3 && (uf_ep_stats_get(ep, &stats) || stats.late_pe[!in_dispatch] != 3 || !stats.late_ns[!in_dispatch]))
        ep_pe_fail(pe, "the statistics blame PE %d", stats.late_pe[!in_dispatch]);
    pthread_barrier_wait(&others_gave_up);
    uf_ep_destroy(ep);
}

static void a_late_pe_is_named_with_phase_and_progress(void **state)
{
    (void)state;
    for (int in_dispatch = 0; in_dispatch < 2; in_dispatch++) {
        pthread_barrier_init(&others_gave_up, NULL, PES);
        assert_int_equal(ep_pes_run(PES, fabric, 1500000000, body_of_late, &in_dispatch), 0);
        pthread_barrier_destroy(&others_gave_up);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_routings_are_refused_on_all_pes_alike),
        cmocka_unit_test(too_many_open_handles_are_refused_with_the_pe),
        cmocka_unit_test(wrong_arguments_are_refused_by_name),
        cmocka_unit_test(a_wrong_argument_of_one_pe_is_refused_by_all_and_all_go_on),
        cmocka_unit_test(a_handle_that_one_pe_cannot_use_ends_the_call_on_all),
        cmocka_unit_test(opaque_rows_cannot_be_combined),
        cmocka_unit_test(options_are_refused_by_field_and_limit_on_all_pes),
        cmocka_unit_test(disjoint_teams_work_at_once),
        cmocka_unit_test(a_late_pe_is_named_with_phase_and_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
