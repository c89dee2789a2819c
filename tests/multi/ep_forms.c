/* Promises of the forms of uf_ep beyond flat rows: order of additions at each level, gradients of fp8 rows, DeepEP's order of rows, checksums,
 * and the rules of start and finish. That every form agrees with the model is for `unfence selftest ep`. */
#include "ep/private.h"
#include "support/ep_pes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *fabric = "local";

static int refused(ep_pe *pe, int rc, int code, const char *says)
{
    if (rc != code || !strstr(uf_error_message(), says))
        ep_pe_fail(pe, "%s, expected %s: \"%s\" should say \"%s\"", uf_error_name(rc), uf_error_name(code), uf_error_message(),
                   says);
    return !pe->failed;
}

static uint16_t bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* ---------------------------------------------------------------- order of additions */

/* A token with a lane on each of four experts of two PEs, PE 0 first and last: the values cancel in one order only. */
typedef struct sum_case {
    const char *name;
    uf_ep_rounding rounding;
    int node_size;
    int32_t lanes[4];
    float y[4]; /* by expert */
    float wanted;
} sum_case;

static const sum_case sums[] = {
    /* (2^20 + 2^-6) - 2^20: the small one is lost; lanes in another order keep it. */
    {"lanes of both PEs in turn", UF_EP_ROUND_ONCE, 0, {0, 2, 1, 3}, {1 << 20, -(1 << 20), 1.0f / 64, 0}, 0},
    {"the large lanes first", UF_EP_ROUND_ONCE, 0, {0, 1, 2, 3}, {1 << 20, -(1 << 20), 1.0f / 64, 0}, 1.0f / 64},
    /* Per PE first: the same lanes in turn do not mix. */
    {"each PE by itself", UF_EP_ROUND_PER_PE, 0, {0, 2, 1, 3}, {1 << 20, -(1 << 20), 1.0f / 64, 0}, 1.0f / 64},
    /* 256 + 1 is no bf16 and rounds to 256 (ties to even): a second rounding loses both ones. */
    {"rounded on each PE", UF_EP_ROUND_PER_PE, 0, {0, 1, 2, -1}, {256, 1, 1, 0}, 256},
    {"rounded once", UF_EP_ROUND_ONCE, 0, {0, 1, 2, -1}, {256, 1, 1, 0}, 258},
    {"rounded on each host", UF_EP_ROUND_PER_HOST, 2, {0, 2, -1, -1}, {256, 0, 1, 0}, 256},
};

static void body_of_sums(ep_pe *pe)
{
    for (size_t i = 0; i < sizeof sums / sizeof *sums && !pe->failed; i++) {
        const sum_case *c = &sums[i];
        uf_ep_options o = {.size = sizeof o,
                           .type = UF_EP_BF16,
                           .hidden = 8,
                           .n_experts = 4,
                           .top_k = 4,
                           .max_tokens = 1,
                           .order = UF_EP_EXPERT_MAJOR,
                           .rounding = c->rounding,
                           .node_size = c->node_size};
        uf_ep *ep = NULL;
        uf_ep_handle *h = NULL;
        uf_ep_received r = {.size = sizeof r};
        uint16_t x[8] = {0}, y[4][8] = {{0}}, out[8];
        if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
            !ep_pe_ok(pe, uf_ep_dispatch(ep, x, c->lanes, NULL, 1, &h, &r), c->name))
            return;
        for (int e = 0; e < 2; e++)
            for (int row = r.expert_first[e]; row < r.expert_first[e + 1]; row++)
                for (int j = 0; j < 8; j++)
                    y[row][j] = bf16(c->y[pe->pe * 2 + e]);
        if (ep_pe_ok(pe, uf_ep_combine(ep, y, NULL, h, out, NULL), c->name) && out[7] != bf16(c->wanted))
            ep_pe_fail(pe, "%s: the sum is %04x, %04x is right", c->name, out[7], bf16(c->wanted));
        uf_ep_destroy(ep);
    }
}

static void sums_cancel_and_round_in_the_promised_order(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(2, fabric, 0, body_of_sums, NULL), 0);
}

/* ---------------------------------------------------------------- backward */

enum { H = 16, TOKENS = 5 };

/* Forward in fp8, backward in bf16: the gradients of a combine are dispatched on its handle as bf16 rows. */
static void body_of_gradients(ep_pe *pe)
{
    uf_ep_options o = {.size = sizeof o,
                       .type = UF_EP_FP8,
                       .hidden = H,
                       .n_experts = pe->n_pes,
                       .top_k = 1,
                       .max_tokens = TOKENS,
                       .n_scales = 1,
                       .alignment = 4,
                       .order = *(const int *)pe->arg ? UF_EP_EXPERT_MAJOR : UF_EP_FLAT,
                       .checksums = 1};
    int32_t experts[TOKENS];
    uint8_t x[TOKENS][H];
    uint32_t scales[TOKENS];
    uint16_t g[TOKENS][H], back[TOKENS][H];
    for (int i = 0; i < TOKENS; i++) {
        experts[i] = (pe->pe + i) % pe->n_pes;
        scales[i] = (uint32_t)(pe->pe * 100 + i);
        memset(x[i], pe->pe * 16 + i, H);
        for (int j = 0; j < H; j++)
            g[i][j] = bf16((float)(pe->pe * 32 + i * 4 + j % 4 + 1));
    }
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    uf_ep_send forward = {.size = sizeof forward, .x = x, .experts = experts, .n_tokens = TOKENS, .scales = scales};
    uf_ep_send backward = {.size = sizeof backward, .x = g, .gradients = 1};
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch_start(ep, &forward, &h), "start") ||
        !ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h, &r), "finish"))
        return;
    for (int n = 0; n < r.n_rows; n++)
        if (r.source_pe[n] >= 0 && (((const uint8_t *)r.x)[n * H] != r.source_pe[n] * 16 + r.source_token[n] ||
                                    ((const uint32_t *)r.scales)[(size_t)n * r.scale_row_stride] !=
                                        (uint32_t)(r.source_pe[n] * 100 + r.source_token[n])))
            ep_pe_fail(pe, "row %d is not token %d of PE %d", n, r.source_token[n], r.source_pe[n]);
    if (!ep_pe_ok(pe, uf_ep_dispatch_start(ep, &backward, &h), "start of gradients") ||
        !ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h, &r), "finish of gradients"))
        return;
    if (r.scales)
        ep_pe_fail(pe, "gradients have scales");
    /* The backward pass of the dispatch brings them to where they came from: each token has one lane. */
    if (ep_pe_ok(pe, uf_ep_combine(ep, r.x, NULL, h, back, NULL), "combine") && memcmp(back, g, sizeof g) != 0)
        ep_pe_fail(pe, "the gradients did not come back");
    uf_ep_destroy(ep);
}

static void gradients_of_fp8_rows_travel_as_bf16(void **state)
{
    (void)state;
    for (int expert_major = 0; expert_major < 2; expert_major++)
        assert_int_equal(ep_pes_run(3, fabric, 0, body_of_gradients, &expert_major), 0);
}

/* ---------------------------------------------------------------- checksums */

/* A byte of a row that has arrived is changed before the finish: where is in the sentence. */
static void body_of_corruption(ep_pe *pe)
{
    int in_combine = *(const int *)pe->arg;
    uf_ep_options o = {
        .size = sizeof o, .type = UF_EP_F32, .hidden = 4, .n_experts = 2, .top_k = 2, .max_tokens = 3, .checksums = 1};
    float x[3][4] = {{1}, {2}, {3}}, y[6][4] = {{5}, {6}, {7}}, out[3][4];
    const int32_t experts[3][2] = {{0, 1}, {1, -1}, {1, 0}};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    uf_ep_send send = {.size = sizeof send, .x = x, .experts = experts[0], .n_tokens = 3};
    uf_ep_back back = {.size = sizeof back, .y = y, .out = out};
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch_start(ep, &send, &h), "start"))
        return;
    int done = 0, rc;
    while (!done && ep_pe_ok(pe, uf_ep_test(ep, h, &done), "test"))
        ;
    if (!in_combine) {
        /* On PE 1, row 4 is token 1 of PE 1; row 1 is token 1 of PE 0. */
        if (pe->pe == 1)
            ep->base[uf_ep_slot_at(ep, h->slot) + 16 + 3] ^= 4;
        rc = uf_ep_dispatch_finish(ep, h, &r);
    } else {
        if (!ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h, &r), "finish") ||
            !ep_pe_ok(pe, uf_ep_combine_start(ep, &back, h), "combine"))
            return;
        for (done = 0; !done && ep_pe_ok(pe, uf_ep_test(ep, h, &done), "test");)
            ;
        if (pe->pe == 1) /* PE 0's second row for PE 1 */
            ep->base[uf_ep_slot_at(ep, h->slot) + ep->layout.back + (size_t)h->back_first_to[0] * 16 + 16] ^= 1;
        rc = uf_ep_combine_finish(ep, h);
    }
    if (pe->pe == 1)
        refused(pe, rc, UF_EFABRIC, in_combine ? "combine 1, row 1 of PE 0" : "dispatch 1, row 1, token 1 of PE 0");
    else
        ep_pe_ok(pe, rc, "without corruption");
    uf_ep_destroy(ep);
}

static void a_corrupted_row_is_found_by_its_checksum(void **state)
{
    (void)state;
    for (int in_combine = 0; in_combine < 2; in_combine++)
        assert_int_equal(ep_pes_run(2, fabric, 0, body_of_corruption, &in_combine), 0);
}

/* ---------------------------------------------------------------- order of rows, start and finish */

static void body_of_group_order(ep_pe *pe)
{
    uf_ep_options o = {.size = sizeof o, .hidden = 16, .n_experts = 4, .top_k = 1, .max_tokens = 4};
    unsigned char x[4][16] = {{0}};
    const int32_t experts[4] = {0, 0, 0, 0};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch(ep, x, experts, NULL, pe->pe + 1, &h, &r), "dispatch"))
        return;
    /* PE s has s + 1 tokens, all for PE 0. Groups of two: PEs 0 and 2, then 1 and 3. */
    int32_t rows[10], groups[2];
    static const int32_t wanted[10] = {0, 3, 4, 5, 1, 2, 6, 7, 8, 9};
    if (pe->pe == 0 && ep_pe_ok(pe, uf_ep_group_order(&r, 4, 2, rows, groups), "uf_ep_group_order") &&
        (memcmp(rows, wanted, sizeof wanted) != 0 || groups[0] != 4 || groups[1] != 10))
        ep_pe_fail(pe, "the order is not that of the groups");
    refused(pe, uf_ep_group_order(&r, 4, 3, rows, groups), UF_EINVAL, "must divide");
    uf_ep_destroy(ep);
}

static void rows_map_to_the_order_of_groups(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(4, fabric, 0, body_of_group_order, NULL), 0);
}

static void body_of_starts(ep_pe *pe)
{
    uf_ep_options o = {
        .size = sizeof o, .type = UF_EP_BF16, .hidden = 8, .n_experts = 4, .top_k = 1, .max_tokens = 2, .max_handles = 3};
    uint16_t x[2][8] = {{0}}, y[8][8] = {{0}}, out[2][8];
    int32_t experts[2] = {0, 3}, wrong[2] = {0, pe->pe == 1 ? 4 : 3};
    uf_ep *ep = NULL, *other = NULL;
    uf_ep_handle *h[4] = {NULL}, *bad = NULL;
    uf_ep_received r = {.size = sizeof r};
    uf_ep_send send = {.size = sizeof send, .x = x, .experts = experts, .n_tokens = 2}, mistaken = send, gradients = send;
    uf_ep_back back = {.size = sizeof back, .y = y, .out = out};
    mistaken.experts = wrong;
    gradients.gradients = 1;
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &other), "uf_ep_create"))
        return;
    /* Three good ones and a wrong one under way at once; the wrong one is refused at its own finish and costs no handle. */
    if (!ep_pe_ok(pe, uf_ep_dispatch_start(ep, &send, &h[0]), "first") ||
        !ep_pe_ok(pe, uf_ep_dispatch_start(ep, &mistaken, &bad), "wrong") ||
        !ep_pe_ok(pe, uf_ep_dispatch_start(ep, &send, &h[1]), "second") ||
        !ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h[1], &r), "second's finish"))
        return;
    refused(pe, uf_ep_dispatch_finish(ep, bad, &r), UF_EINVAL, "PE 1: token 1, lane 0 names expert 4");
    refused(pe, uf_ep_combine_start(ep, &back, h[0]), UF_EINVAL, "something else is started");
    refused(pe, uf_ep_handle_free(h[0]), UF_EINVAL, "finish that first");
    ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h[0], &r), "first's finish");
    refused(pe, uf_ep_dispatch_finish(ep, h[0], &r), UF_EINVAL, "nothing of this kind was started");
    refused(pe, uf_ep_combine_finish(ep, h[0]), UF_EINVAL, "nothing of this kind was started");
    refused(pe, uf_ep_combine_start(other, &back, h[0]), UF_EINVAL, "belongs to another uf_ep");
    ep_pe_ok(pe, uf_ep_dispatch_start(ep, &gradients, &h[2]), "gradients of nothing");
    if (!pe->failed)
        refused(pe, uf_ep_dispatch_finish(ep, h[2], &r), UF_EINVAL, "needs the handle");
    if (!pe->failed && ep_pe_ok(pe, uf_ep_combine_start(ep, &back, h[0]), "combine") &&
        ep_pe_ok(pe, uf_ep_combine_start(ep, &back, h[1]), "another combine meanwhile") &&
        ep_pe_ok(pe, uf_ep_combine_finish(ep, h[1]), "its finish"))
        ep_pe_ok(pe, uf_ep_combine_finish(ep, h[0]), "finish");
    uf_ep_destroy(other);
    uf_ep_destroy(ep);
}

static void what_is_started_is_finished_once_in_any_order(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(2, fabric, 0, body_of_starts, NULL), 0);
}

/* Two tokens from each PE to both, and back: nobody may take mapped memory for the network or the other way round. */
static void body_of_paths(ep_pe *pe)
{
    enum { ROW = 64, SCALES = 2, ROWS = 2 };
    uf_ep_options o = {.size = sizeof o,
                       .type = UF_EP_F32,
                       .hidden = ROW / 4,
                       .n_experts = 2,
                       .top_k = 2,
                       .max_tokens = ROWS,
                       .n_scales = SCALES};
    float x[ROWS][ROW / 4] = {{0}}, y[2 * ROWS][ROW / 4] = {{0}}, out[ROWS][ROW / 4];
    uint32_t scales[ROWS][SCALES] = {{0}};
    const int32_t experts[ROWS][2] = {{0, 1}, {1, 0}};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    uf_ep_stats stats = {.size = sizeof stats};
    uf_ep_send send = {.size = sizeof send, .x = x, .experts = experts[0], .n_tokens = ROWS, .scales = scales};
    if (!ep_pe_ok(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), "uf_ep_create") ||
        !ep_pe_ok(pe, uf_ep_dispatch_start(ep, &send, &h), "start") ||
        !ep_pe_ok(pe, uf_ep_dispatch_finish(ep, h, &r), "finish") ||
        !ep_pe_ok(pe, uf_ep_combine(ep, y, NULL, h, out, NULL), "combine") || !ep_pe_ok(pe, uf_ep_stats_get(ep, &stats), "stats"))
        return;
    uint64_t wanted = ROWS * (2 * ROW + SCALES * 4), mapped = strcmp(fabric, "local") == 0 ? wanted : 0;
    if (stats.mapped_bytes != mapped || stats.network_bytes != wanted - mapped)
        ep_pe_fail(pe, "%llu bytes mapped and %llu by the network, not %llu of %llu", (unsigned long long)stats.mapped_bytes,
                   (unsigned long long)stats.network_bytes, (unsigned long long)mapped, (unsigned long long)wanted);
    uf_ep_destroy(ep);
}

static void bytes_are_counted_by_the_path_they_took(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(2, fabric, 0, body_of_paths, NULL), 0);
}

static void body_of_options(ep_pe *pe)
{
    static const struct {
        uf_ep_order order;
        int alignment, n_scales, rounding, node_size, max_tokens;
        const char *says;
    } bad[] = {
        {(uf_ep_order)2, 0, 0, 0, 0, 1, "options.order is 2"},
        {UF_EP_FLAT, -1, 0, 0, 0, 1, "options.alignment is -1"},
        {UF_EP_FLAT, 0, 65537, 0, 0, 1, "options.n_scales is 65537"},
        {UF_EP_FLAT, 0, 0, 3, 0, 1, "options.rounding is 3"},
        {UF_EP_FLAT, 0, 0, 2, 3, 1, "options.node_size is 3"},
        {UF_EP_EXPERT_MAJOR, 1, 0, 0, 0, 1 << 29, "must stay below 2^31"},
    };
    uf_ep *ep = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad && !pe->failed; i++) {
        uf_ep_options o = {.size = sizeof o,
                           .hidden = 16,
                           .n_experts = 8,
                           .top_k = 2,
                           .max_tokens = bad[i].max_tokens,
                           .order = bad[i].order,
                           .alignment = bad[i].alignment,
                           .n_scales = bad[i].n_scales,
                           .rounding = (uf_ep_rounding)bad[i].rounding,
                           .node_size = bad[i].node_size};
        refused(pe, uf_ep_create(uf_team_world(pe->world), &o, &ep), UF_EINVAL, bad[i].says);
    }
}

static void wrong_forms_are_refused_by_field_and_limit(void **state)
{
    (void)state;
    assert_int_equal(ep_pes_run(2, fabric, 0, body_of_options, NULL), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_cancel_and_round_in_the_promised_order),
        cmocka_unit_test(gradients_of_fp8_rows_travel_as_bf16),
        cmocka_unit_test(a_corrupted_row_is_found_by_its_checksum),
        cmocka_unit_test(rows_map_to_the_order_of_groups),
        cmocka_unit_test(what_is_started_is_finished_once_in_any_order),
        cmocka_unit_test(bytes_are_counted_by_the_path_they_took),
        cmocka_unit_test(wrong_forms_are_refused_by_field_and_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
