/* Promises of uf_ep_dispatch and uf_ep_combine: bit for bit what the reference model says, over the fabric named on the command line.
 *
 * The PEs are threads of this process with a world each; `ofi:...` forces the network between them. */
#include "multi/ep_case.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *fabric = "local";

/* ---------------------------------------------------------------- one case after another */

typedef struct batch {
    ep_case **cases;
    int n;
} batch;

static void each_case_alone(ep_pe *pe)
{
    const batch *b = pe->arg;
    for (int i = 0; i < b->n && !pe->failed; i++) {
        const ep_case *c = b->cases[i];
        char name[160];
        snprintf(name, sizeof name, "case %d: E %d, k %d, %d tokens (-%d), hidden %zu, type %d, routing %d", i,
                 c->shape.n_experts, c->shape.top_k, c->shape.tokens, c->shape.ragged, c->shape.hidden, (int)c->shape.type,
                 (int)c->shape.routing);
        uf_ep *ep = NULL;
        uf_ep_handle *handle = NULL;
        if (!ep_case_create(pe, c, 1, &ep))
            return;
        if (ep_case_dispatch(pe, c, ep, &handle, name) &&
            (c->shape.type == UF_EP_BYTES || ep_case_combine(pe, c, ep, handle, name)))
            ep_pe_ok(pe, uf_ep_handle_free(handle), name);
        int rc = uf_ep_destroy(ep);
        if (!pe->failed)
            ep_pe_ok(pe, rc, "uf_ep_destroy");
    }
}

static void run_cases(int n_pes, const ep_shape *shapes, int n)
{
    batch b = {calloc((size_t)n, sizeof *b.cases), n};
    assert_non_null(b.cases);
    for (int i = 0; i < n; i++) {
        ep_shape s = shapes[i];
        s.n_pes = n_pes;
        b.cases[i] = ep_case_make(&s, (uint64_t)(n_pes * 1000 + i));
    }
    int failed = ep_pes_run(n_pes, fabric, 0, each_case_alone, &b);
    for (int i = 0; i < n; i++)
        ep_case_free(b.cases[i]);
    free(b.cases);
    assert_int_equal(failed, 0);
}

static void every_number_of_tokens_arrives_and_returns(void **state)
{
    (void)state;
    static const int sweep[] = {0, 1, 2, 7, 32, 128, 129, 1024, 4096};
    ep_shape shapes[sizeof sweep / sizeof *sweep];
    for (size_t i = 0; i < sizeof sweep / sizeof *sweep; i++)
        shapes[i] = (ep_shape){4, 32, 4, sweep[i], 16, UF_EP_BF16, EP_RANDOM, sweep[i], 0};
    run_cases(4, shapes, (int)(sizeof sweep / sizeof *sweep));
}

static void every_number_of_pes_agrees_with_the_model(void **state)
{
    (void)state;
    static const int pes[] = {1, 2, 3, 4, 6, 8};
    for (size_t p = 0; p < sizeof pes / sizeof *pes; p++) {
        int e = pes[p] * 8;
        const ep_shape shapes[] = {
            {0, e, 8, 40, 64, UF_EP_BF16, EP_RANDOM, 40, 7},
            {0, e, 3, 50, 24, UF_EP_F32, EP_RANDOM, 33, 11},
            {0, e, 2, 20, 48, UF_EP_BYTES, EP_RANDOM, 20, 3},
        };
        run_cases(pes[p], shapes, 3);
    }
}

static void extreme_routings_and_shapes_are_first_class(void **state)
{
    (void)state;
    const ep_shape shapes[] = {
        {0, 8, 4, 30, 32, UF_EP_BF16, EP_ONE_EXPERT, 30, 0},  /* all to one expert; the others receive nothing */
        {0, 8, 4, 30, 32, UF_EP_BF16, EP_NOWHERE, 30, 0},     /* all lanes empty: zeros come back */
        {0, 64, 8, 30, 32, UF_EP_F32, EP_ONE_PE, 30, 0},      /* all to one PE, every lane */
        {0, 64, 8, 30, 32, UF_EP_BF16, EP_SOME_DEAF, 30, 10}, /* one PE receives nothing, another has no token */
        {0, 16, 1, 30, 32, UF_EP_BF16, EP_FULL, 30, 1},       /* k = 1 */
        {0, 64, 32, 30, 32, UF_EP_BF16, EP_FULL, 30, 1},      /* k = 32 */
        {0, 4, 4, 30, 32, UF_EP_F32, EP_FULL, 30, 1},         /* E = PEs, every token to all */
        {0, 2048, 8, 30, 32, UF_EP_BF16, EP_RANDOM, 30, 1},   /* E = 2048 */
        {0, 32, 8, 30, 2880, UF_EP_BF16, EP_RANDOM, 9, 2},    /* a hidden size that others refuse */
        {0, 32, 8, 30, 8, UF_EP_BF16, EP_RANDOM, 9, 2},       /* rows of 16 bytes */
        {0, 32, 8, 30, 4, UF_EP_F32, EP_RANDOM, 9, 2},
        {0, 32, 8, 30, 1021 * 8, UF_EP_BF16, EP_RANDOM, 3, 1}, /* an odd multiple of 16 bytes */
        {0, 32, 8, 9, 32, UF_EP_BF16, EP_RANDOM, 9, 9},        /* only PE 0 has tokens */
        {0, 32, 8, 0, 32, UF_EP_BF16, EP_RANDOM, 0, 0},        /* nobody has any, nor may have */
        {0, 32, 9, 700, 1024, UF_EP_BF16, EP_RANDOM, 700, 50}, /* copies go past the cache */
    };
    run_cases(4, shapes, (int)(sizeof shapes / sizeof *shapes));
}

/* ---------------------------------------------------------------- several steps of one uf_ep */

typedef struct steps {
    ep_case *a, *b, *a_again;
} steps;

static void body_of_handles(ep_pe *pe)
{
    const steps *s = pe->arg;
    uf_ep *ep = NULL;
    uf_ep_handle *a = NULL, *b = NULL;
    if (!ep_case_create(pe, s->a, 2, &ep))
        return;
    for (int round = 0; round < 3 && !pe->failed; round++) {
        if (ep_case_dispatch(pe, s->a, ep, &a, "dispatch a") && ep_case_dispatch(pe, s->b, ep, &b, "dispatch b") &&
            ep_case_combine(pe, s->b, ep, b, "combine b") && ep_case_combine(pe, s->a, ep, a, "combine a") &&
            ep_case_replay(pe, s->a_again, ep, a, "cached dispatch a") &&
            ep_case_combine(pe, s->a_again, ep, a, "combine a again") &&
            ep_case_combine(pe, s->a_again, ep, a, "combine a a third time") &&
            ep_case_replay(pe, s->a, ep, a, "cached dispatch a, first rows") &&
            ep_case_replay(pe, s->a_again, ep, a, "cached dispatch a, two in a row") &&
            ep_case_combine(pe, s->b, ep, b, "combine b again") && ep_case_combine(pe, s->a, ep, a, "combine a at last")) {
            /* Freed in another order on each PE: slots are each PE's own business. */
            uf_ep_handle_free(pe->pe % 2 ? a : b);
            uf_ep_handle_free(pe->pe % 2 ? b : a);
        }
    }
    int rc = uf_ep_destroy(ep);
    if (!pe->failed)
        ep_pe_ok(pe, rc, "uf_ep_destroy");
}

static void dispatches_may_precede_combines_and_be_replayed(void **state)
{
    (void)state;
    for (int n_pes = 1; n_pes <= 4; n_pes++) {
        ep_shape shape = {n_pes, n_pes * 4, 3, 60, 40, UF_EP_BF16, EP_RANDOM, 60, 13};
        ep_shape other = {n_pes, n_pes * 4, 3, 60, 40, UF_EP_BF16, EP_SOME_DEAF, 45, 9};
        steps s = {ep_case_make(&shape, 71), ep_case_make(n_pes > 1 ? &other : &shape, 72), NULL};
        s.a_again = ep_case_again(s.a, 73);
        int failed = ep_pes_run(n_pes, fabric, 0, body_of_handles, &s);
        ep_case_free(s.a);
        ep_case_free(s.b);
        ep_case_free(s.a_again);
        assert_int_equal(failed, 0);
    }
}

static void body_of_churn(ep_pe *pe)
{
    ep_case_churn(pe, pe->arg, 120, 12345);
}

static void slots_are_reused_without_harm_in_any_order(void **state)
{
    (void)state;
    ep_churn *churn = ep_churn_make(3, 900);
    int failed = ep_pes_run(3, fabric, 0, body_of_churn, churn);
    ep_churn_free(churn);
    assert_int_equal(failed, 0);
}

/* ---------------------------------------------------------------- order of additions */

static void body_of_cancellation(ep_pe *pe)
{
    /* One token on each PE with one lane for each of three PEs; the highest lanes decide the order, not the numbers of the PEs. */
    const int32_t up[3] = {0, 1, 2}, turned[3] = {0, 2, 1};
    const float values[3] = {1 << 20, 1.0f / 64, -(1 << 20)};
    uf_ep_options o = {
        .size = sizeof o, .type = UF_EP_F32, .hidden = 4, .n_experts = 3, .top_k = 3, .max_tokens = 1, .max_handles = 1};
    uf_ep *ep = NULL;
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create"))
        return;
    for (int turn = 0; turn < 2 && !pe->failed; turn++) {
        float x[4] = {0}, y[12], out[4];
        uf_ep_handle *handle = NULL;
        uf_ep_received r = {.size = sizeof r};
        if (!ep_pe_ok(pe, uf_ep_dispatch(ep, x, turn ? turned : up, NULL, 1, &handle, &r), "dispatch"))
            break;
        for (int i = 0; i < 12; i++)
            y[i] = values[pe->pe];
        if (ep_pe_ok(pe, uf_ep_combine(ep, y, NULL, handle, out, NULL), "combine") && out[3] != (turn ? 1.0f / 64 : 0.0f))
            ep_pe_fail(pe, "turn %d: the sum is %g", turn, (double)out[3]);
        uf_ep_handle_free(handle);
    }
    uf_ep_destroy(ep);
}

static void rows_are_added_in_order_of_highest_lanes(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(3, fabric, 0, body_of_cancellation, NULL), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_pes_agrees_with_the_model),
        cmocka_unit_test(every_number_of_tokens_arrives_and_returns),
        cmocka_unit_test(extreme_routings_and_shapes_are_first_class),
        cmocka_unit_test(dispatches_may_precede_combines_and_be_replayed),
        cmocka_unit_test(slots_are_reused_without_harm_in_any_order),
        cmocka_unit_test(rows_are_added_in_order_of_highest_lanes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
