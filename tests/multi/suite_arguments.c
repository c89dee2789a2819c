/* suite_arguments.c - wrong arguments are refused before anything happens, and the message names the argument. */
#include "multi/core_suite.h"
#include <stdio.h>
#include <stdlib.h>

/* Every function that takes a PE, given one that does not exist: the number and the world's size are named. */
static void pe_out_of_range_is_refused_with_number_and_size(suite *s)
{
    const int bad[] = {s->n, s->n + 1000, -1, INT32_MIN, INT32_MAX};
    uint64_t old = 0;
    for (int i = 0; i < 5; i++) {
        char number[32], size[32];
        snprintf(number, sizeof number, "%d", bad[i]);
        snprintf(size, sizeof size, "%d", s->n);
        CHECK_CODE(s, uf_put(s->ctx, s->data, s->out, 8, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_put(s->ctx, s->data, s->out, 8, bad[i]), UF_ERANGE, size);
        CHECK_CODE(s, uf_put_nbi(s->ctx, s->data, s->out, 8, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_put_nbi(s->ctx, s->data, s->out, 0, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_get(s->ctx, s->out, s->data, 8, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_get_nbi(s->ctx, s->out, s->data, 8, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_signal(s->ctx, s->signals, UF_SIGNAL_ADD, 1, bad[i], 0), UF_ERANGE, number);
        CHECK_CODE(s, uf_put_signal(s->ctx, s->data, s->out, 8, s->signals, UF_SIGNAL_ADD, 1, bad[i], 0), UF_ERANGE, number);
        CHECK_CODE(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, s->signals, UF_SIGNAL_ADD, 1, bad[i], 0), UF_ERANGE, number);
        CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, s->words, 1, 0, &old, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, s->words, 1, 0, NULL, bad[i], 0), UF_ERANGE, number);
        CHECK_CODE(s, uf_quiet_pe(s->ctx, bad[i]), UF_ERANGE, number);
        CHECK_CODE(s, uf_wait_from(s->world, s->words, UF_EQ, 0, bad[i], 1000), UF_ERANGE, number);
        CHECK_CODE(s, uf_broadcast(s->all, s->data, s->out, 8, bad[i]), UF_ERANGE, number);
    }
}

static void misaligned_signals_and_atomics_are_refused(suite *s)
{
    uint64_t *odd = (uint64_t *)(void *)(s->data + 4), old = 0;
    CHECK_CODE(s, uf_signal(s->ctx, odd, UF_SIGNAL_ADD, 1, s->right, 0), UF_EINVAL, "sig");
    CHECK_CODE(s, uf_put_signal(s->ctx, s->data + 64, s->out, 8, odd, UF_SIGNAL_ADD, 1, s->right, 0), UF_EINVAL, "sig");
    CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH, 8, odd, 0, 0, &old, s->right), UF_EINVAL, "dst");
    CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH, 4, s->data + 2, 0, 0, &old, s->right), UF_EINVAL, "dst");
    CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH, 4, s->data + 4, 0, 0, &old, s->right));
    CHECK_CODE(s, uf_wait(s->world, odd, UF_EQ, 0, 0), UF_EINVAL, "sig");
}

static void addresses_that_are_not_symmetric_are_refused(suite *s)
{
    uint64_t word = 0, old = 0;
    unsigned char *outside = s->out;
    CHECK_CODE(s, uf_put(s->ctx, outside, s->data, 8, s->right), UF_ERANGE, "dst");
    CHECK_CODE(s, uf_get(s->ctx, s->data, outside, 8, s->right), UF_ERANGE, "src");
    CHECK_CODE(s, uf_signal(s->ctx, &word, UF_SIGNAL_ADD, 1, s->right, 0), UF_ERANGE, "sig");
    CHECK_CODE(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, &word, UF_SIGNAL_ADD, 1, s->right, 0), UF_ERANGE, "sig");
    CHECK_CODE(s, uf_put_signal_nbi(s->ctx, outside, s->out, 8, s->signals, UF_SIGNAL_ADD, 1, s->right, 0), UF_ERANGE, "dst");
    CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH, 8, &word, 0, 0, &old, s->right), UF_ERANGE, "dst");
    CHECK_CODE(s, uf_put(s->ctx, s->data, s->out, (size_t)1 << 46, s->right), UF_ERANGE,
               "dst"); /* begins inside, ends far outside */
    CHECK_EQ(s, word, 0);
}

static void null_arguments_are_refused(suite *s)
{
    size_t index, count;
    uf_wait_list no_sigs = {.n = 3, .cmp = UF_EQ};
    void *block = NULL;
    CHECK_CODE(s, uf_put(NULL, s->data, s->out, 8, 0), UF_EINVAL, "ctx");
    CHECK_CODE(s, uf_put(s->ctx, NULL, s->out, 8, 0), UF_ERANGE, "dst");
    CHECK_CODE(s, uf_put(s->ctx, s->data, NULL, 8, 0), UF_EINVAL, "src");
    CHECK_CODE(s, uf_get(s->ctx, NULL, s->data, 8, 0), UF_EINVAL, "dst");
    CHECK_CODE(s, uf_put_batch(s->ctx, NULL, 3, NULL), UF_EINVAL, "rows");
    CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, s->words, 1, 0, NULL, 0), UF_EINVAL, "old");
    CHECK_CODE(s, uf_malloc(s->world, 64, 0, NULL), UF_EINVAL, "ptr");
    CHECK_CODE(s, uf_malloc(NULL, 64, 0, &block), UF_EINVAL, "world");
    CHECK_CODE(s, uf_ctx_create(s->world, NULL, NULL), UF_EINVAL, "ctx");
    CHECK_CODE(s, uf_fence(NULL), UF_EINVAL, "ctx");
    CHECK_CODE(s, uf_quiet(NULL), UF_EINVAL, "ctx");
    CHECK_CODE(s, uf_wait(s->world, NULL, UF_EQ, 0, 0), UF_EINVAL, "sig");
    CHECK_CODE(s, uf_wait(NULL, s->words, UF_EQ, 0, 0), UF_EINVAL, "world");
    CHECK_CODE(s, uf_wait_any(s->world, &no_sigs, &index, 0), UF_EINVAL, "sigs");
    CHECK_CODE(s, uf_wait_some(s->world, NULL, &index, &count, 0), UF_EINVAL, "list");
    CHECK_CODE(s, uf_barrier(NULL), UF_EINVAL, "team");
    CHECK_CODE(s, uf_world_create(NULL, NULL), UF_EINVAL, "world");
    CHECK(s, uf_world_pe(NULL) == -1 && uf_world_n_pes(NULL) == 0);
    CHECK(s, uf_team_pe(NULL) == -1 && uf_team_n_pes(NULL) == 0);
    CHECK_OK(s, uf_ctx_destroy(NULL));
    CHECK_OK(s, uf_world_destroy(NULL));
    uf_group_destroy(NULL);
}

static void unknown_operations_flags_and_widths_are_refused(suite *s)
{
    uint64_t old = 0;
    void *block = NULL;
    CHECK_CODE(s, uf_signal(s->ctx, s->signals, 7, 1, s->right, 0), UF_EINVAL, "op");
    CHECK_CODE(s, uf_signal(s->ctx, s->signals, UF_SIGNAL_ADD, 1, s->right, 64), UF_EINVAL, "flags");
    CHECK_CODE(s, uf_put_signal(s->ctx, s->data, s->out, 8, s->signals, -1, 1, s->right, 0), UF_EINVAL, "op");
    CHECK_CODE(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, s->signals, UF_SIGNAL_SET, 1, s->right, 0x100), UF_EINVAL,
               "flags");
    CHECK_CODE(s, uf_atomic(s->ctx, (uf_atomic_op)55, 8, s->words, 1, 0, &old, s->right), UF_EINVAL, "op");
    CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_ADD, 3, s->words, 1, 0, &old, s->right), UF_EINVAL, "width");
    CHECK_CODE(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, s->words, 1, 0, NULL, s->right, UF_STRONG), UF_EINVAL, "flags");
    CHECK_CODE(s, uf_wait(s->world, s->words, 99, 0, 0), UF_EINVAL, "cmp");
    CHECK_CODE(s, uf_malloc(s->world, 64, 3, &block), UF_EINVAL, "align");
}

static void wrong_options_are_refused(suite *s)
{
    uf_ctx *ctx = NULL;
    uf_ctx_options window3 = {.size = sizeof window3, .window = 3}, window1 = {.size = sizeof window1, .window = 1};
    uf_ctx_options huge = {.size = sizeof huge, .window = 65536}, flags = {.size = sizeof flags, .flags = 8},
                   no_size = {.window = 4};
    CHECK_CODE(s, uf_ctx_create(s->world, &window3, &ctx), UF_EINVAL, "window");
    CHECK_CODE(s, uf_ctx_create(s->world, &window1, &ctx), UF_EINVAL, "window");
    CHECK_CODE(s, uf_ctx_create(s->world, &huge, &ctx), UF_EINVAL, "window");
    CHECK_CODE(s, uf_ctx_create(s->world, &flags, &ctx), UF_EINVAL, "flags");
    CHECK_CODE(s, uf_ctx_create(s->world, &no_size, &ctx), UF_EINVAL, "size");
    CHECK(s, ctx == NULL);
    uf_world *w = NULL;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.size = 3;
    CHECK_CODE(s, uf_world_create(&o, &w), UF_EINVAL, "size");
    uf_world_options p = UF_WORLD_OPTIONS;
    p.pe = 5;
    p.n_pes = 2;
    CHECK_CODE(s, uf_world_create(&p, &w), UF_EINVAL, "5");
    uf_group *group = NULL;
    CHECK_CODE(s, uf_group_create(0, &group), UF_EINVAL, "0");
    CHECK_CODE(s, uf_group_create(2, NULL), UF_EINVAL, "group");
    CHECK(s, w == NULL);
}

/* After all of the above nothing has happened and everything still works. */
static void refused_calls_leave_no_trace(suite *s)
{
    uf_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    CHECK_OK(s, uf_world_counters(s->world, &before));
    CHECK_EQ(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, s->signals, 7, 1, s->right, 0), (uint64_t)UF_EINVAL);
    CHECK_EQ(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, s->signals, 0, 1, s->n, 0), (uint64_t)UF_ERANGE);
    CHECK_EQ(s, uf_put_nbi(s->ctx, s->out, s->out, 8, s->right), (uint64_t)UF_ERANGE);
    CHECK_OK(s, uf_world_counters(s->world, &after));
    CHECK_EQ(s, after.puts + after.signals, before.puts + before.signals);
    CHECK_OK(s, uf_world_status(s->world));
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data, s->out, 8, s->signals, UF_SIGNAL_ADD, 1, s->right, 0));
    AWAIT(s, s->signals, 1);
    CHECK_EQ(s, uf_signal_fetch(s->signals), 1);
}

static void every_code_has_a_name(suite *s)
{
    for (int code = UF_EMISMATCH; code <= UF_OK; code++) {
        const char *name = uf_error_name(code);
        CHECK(s, name && name[0] == 'U' && name[3] != 'E' ? code == UF_OK : name && name[4] != '?');
    }
    CHECK(s, uf_error_name(-99)[4] == '?');
    CHECK(s, uf_version()[0] != 0);
}

const suite_test suite_argument_tests[] = {
    {"pe_out_of_range_is_refused_with_number_and_size", pe_out_of_range_is_refused_with_number_and_size, 1, SUITE_SELDOM},
    {"misaligned_signals_and_atomics_are_refused", misaligned_signals_and_atomics_are_refused, 1, SUITE_SELDOM},
    {"addresses_that_are_not_symmetric_are_refused", addresses_that_are_not_symmetric_are_refused, 1, SUITE_SELDOM},
    {"null_arguments_are_refused", null_arguments_are_refused, 1, SUITE_SELDOM},
    {"unknown_operations_flags_and_widths_are_refused", unknown_operations_flags_and_widths_are_refused, 1, SUITE_SELDOM},
    {"wrong_options_are_refused", wrong_options_are_refused, 1, SUITE_SELDOM},
    {"refused_calls_leave_no_trace", refused_calls_leave_no_trace, 1, SUITE_SELDOM},
    {"every_code_has_a_name", every_code_has_a_name, 1, SUITE_SELDOM},
    {NULL, NULL, 0, 0},
};
