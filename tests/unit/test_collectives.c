/* Barriers and collectives against naive models: any number of PEs, any size, any fabric (the argument names it).
 *
 * Every call is followed by a check of all of dst, by scribbling over it, and by the next call at once: nothing but the collective itself keeps
 * one call's data from the next one's. */
#include "support/world_run.h"
#include "world/combine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *fabric = "local";
static bool shuffled; /* the adversarial network: many seeds of small worlds instead of large data */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The bytes that PE `pe` brings to call number `call`. */
static void fill(void *to, size_t bytes, int pe, uint64_t call)
{
    unsigned char *p = to;
    uint64_t x = mix(call * 64 + (uint64_t)pe);
    for (size_t i = 0; i < bytes; i++) {
        p[i] = (unsigned char)(x >> 56);
        x = x * 6364136223846793005u + 1442695040888963407u;
    }
}

typedef struct room {
    unsigned char *dst; /* symmetric, room for n times the largest size, and a byte behind it */
    unsigned char *src, *want;
    size_t bytes;
} room;

static bool make_room(world_pe *me, size_t each, room *r)
{
    r->bytes = each * (size_t)me->n;
    r->src = malloc(r->bytes + 1);
    r->want = malloc(r->bytes + 1);
    void *dst = NULL;
    if (uf_malloc(me->world, r->bytes + 1, 0, &dst) != UF_OK)
        return world_run_failed(me, __FILE__, __LINE__, "uf_malloc");
    r->dst = dst;
    memset(r->dst, 0x5a, r->bytes + 1);
    return true;
}

static void free_room(world_pe *me, room *r)
{
    uf_free(me->world, r->dst);
    free(r->src);
    free(r->want);
}

/* All `bytes` are as wanted and nothing was written behind them; then spoils them. */
static bool as_wanted(world_pe *me, room *r, size_t bytes, const char *what, size_t size, uint64_t call)
{
    if (memcmp(r->dst, r->want, bytes) == 0 && r->dst[bytes] == 0x5a) {
        memset(r->dst, 0x5a, bytes);
        return true;
    }
    size_t at = 0;
    while (at < bytes && r->dst[at] == r->want[at])
        at++;
    char text[160];
    snprintf(text, sizeof text, "%s of %zu bytes, call %llu: byte %zu of %zu is %d, not %d", what, size, (unsigned long long)call,
             at, bytes, r->dst[at], at < bytes ? r->want[at] : 0x5a);
    return world_run_failed(me, __FILE__, __LINE__, text);
}

static const size_t large_sizes[] = {0, 1, 7, 65536, 5u << 20};
static const size_t small_sizes[] = {0, 1, 7, 300, 5000};

static size_t size_at(int i)
{
    return shuffled ? small_sizes[i] : large_sizes[i];
}

enum { N_SIZES = 5 };

/* Worlds of every number of PEs; over the adversarial network, seeds of each. */
static void run_all(void (*body)(world_pe *me), int most)
{
    const char *seed = getenv("UNFENCE_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, last = seed || !shuffled ? first : 4;
    for (int n = 1; n <= most; n++)
        for (uint64_t s = first; s <= last; s++) {
            world_run run = {.fabric = fabric, .n_pes = n, .seed = s * 100 + (uint64_t)n};
            if (seed)
                run.seed = first;
            world_run_all(&run, body);
        }
}

/* ---------------------------------------------------------------- one by one */

static void broadcast_body(world_pe *me)
{
    room r;
    uf_team *team = uf_team_world(me->world);
    uint64_t call = 0;
    if (!make_room(me, size_at(N_SIZES - 1), &r))
        return;
    for (int i = 0; i < N_SIZES; i++)
        for (int root = 0; root < me->n; root++) {
            size_t bytes = size_at(i);
            fill(r.want, bytes, root, ++call);
            fill(r.src, bytes, me->pe, call);
            CHECK(me, uf_broadcast(team, r.dst, r.src, bytes, root) == UF_OK);
            memset(r.src, 0, bytes); /* ours again */
            if (!as_wanted(me, &r, bytes, "broadcast", bytes, call))
                return;
            /* In place on the root. */
            fill(r.want, bytes, root, ++call);
            if (me->pe == root)
                fill(r.dst, bytes, root, call);
            CHECK(me, uf_broadcast(team, r.dst, r.dst, bytes, root) == UF_OK);
            if (!as_wanted(me, &r, bytes, "broadcast in place", bytes, call))
                return;
        }
    free_room(me, &r);
}

static void a_broadcast_brings_the_roots_bytes_to_all(void **state)
{
    (void)state;
    run_all(broadcast_body, 7);
}

static void allgather_body(world_pe *me)
{
    room r;
    uf_team *team = uf_team_world(me->world);
    if (!make_room(me, size_at(N_SIZES - 1), &r))
        return;
    for (uint64_t call = 1; call <= 2 * N_SIZES; call++) {
        size_t bytes = size_at((int)(call % N_SIZES));
        for (int pe = 0; pe < me->n; pe++)
            fill(r.want + bytes * (size_t)pe, bytes, pe, call);
        fill(r.src, bytes, me->pe, call);
        CHECK(me, uf_allgather(team, r.dst, r.src, bytes) == UF_OK);
        memset(r.src, 0, bytes);
        if (!as_wanted(me, &r, bytes * (size_t)me->n, "allgather", bytes, call))
            return;
    }
    free_room(me, &r);
}

static void an_allgather_brings_everybodys_bytes_to_all(void **state)
{
    (void)state;
    run_all(allgather_body, 7);
}

static void alltoall_body(world_pe *me)
{
    room r;
    uf_team *team = uf_team_world(me->world);
    if (!make_room(me, size_at(N_SIZES - 1), &r))
        return;
    for (uint64_t call = 1; call <= 2 * N_SIZES; call++) {
        size_t bytes = size_at((int)(call % N_SIZES));
        for (int pe = 0; pe < me->n; pe++) {
            fill(r.want + bytes * (size_t)pe, bytes, pe, call * 64 + (uint64_t)me->pe);
            fill(r.src + bytes * (size_t)pe, bytes, me->pe, call * 64 + (uint64_t)pe);
        }
        CHECK(me, uf_alltoall(team, r.dst, r.src, bytes) == UF_OK);
        memset(r.src, 0, bytes * (size_t)me->n);
        if (!as_wanted(me, &r, bytes * (size_t)me->n, "alltoall", bytes, call))
            return;
    }
    free_room(me, &r);
}

static void an_alltoall_brings_each_its_own_bytes(void **state)
{
    (void)state;
    run_all(alltoall_body, 7);
}

/* ---------------------------------------------------------------- reduce */

/* Values of every kind: small ones, so that products stay finite, and any bits for integers. */
static void fill_numbers(void *to, size_t n, uf_dtype type, int pe, uint64_t call)
{
    fill(to, n * uf_combine_element(type), pe, call);
    if (type < UF_FLOAT)
        return;
    for (size_t i = 0; i < n; i++) {
        double v = (double)(int64_t)mix(call * 977 + i * 64 + (uint64_t)pe) / 3e18;
        if (type == UF_FLOAT)
            ((float *)to)[i] = (float)v;
        else
            ((double *)to)[i] = v;
    }
}

/* One element after another, PE after PE, by the plainest code there is. */
#define NAIVE(name, type, unsigned_type)                                                                                         \
    static void naive_##name(type *all, int n_pes, size_t n, uf_reduce_op op, type *out)                                         \
    {                                                                                                                            \
        for (size_t i = 0; i < n; i++) {                                                                                         \
            type v = all[i];                                                                                                     \
            for (int pe = 1; pe < n_pes; pe++) {                                                                                 \
                type w = all[(size_t)pe * n + i];                                                                                \
                if (op == UF_SUM)                                                                                                \
                    v = (type)((unsigned_type)v + (unsigned_type)w);                                                             \
                if (op == UF_PROD)                                                                                               \
                    v = (type)((unsigned_type)v * (unsigned_type)w);                                                             \
                if (op == UF_MIN && w < v)                                                                                       \
                    v = w;                                                                                                       \
                if (op == UF_MAX && w > v)                                                                                       \
                    v = w;                                                                                                       \
                v = naive_bits_##name(v, w, op);                                                                                 \
            }                                                                                                                    \
            out[i] = v;                                                                                                          \
        }                                                                                                                        \
    }
#define NAIVE_BITS(name, type)                                                                                                   \
    static type naive_bits_##name(type v, type w, uf_reduce_op op)                                                               \
    {                                                                                                                            \
        return op == UF_AND ? (type)(v & w) : op == UF_OR ? (type)(v | w) : op == UF_XOR ? (type)(v ^ w) : v;                    \
    }
#define NAIVE_NO_BITS(name, type)                                                                                                \
    static type naive_bits_##name(type v, type w, uf_reduce_op op)                                                               \
    {                                                                                                                            \
        (void)w;                                                                                                                 \
        (void)op;                                                                                                                \
        return v;                                                                                                                \
    }
NAIVE_BITS(int32, int32_t)
NAIVE_BITS(int64, int64_t)
NAIVE_BITS(uint32, uint32_t)
NAIVE_BITS(uint64, uint64_t)
NAIVE_NO_BITS(float, float)
NAIVE_NO_BITS(double, double)
NAIVE(int32, int32_t, uint32_t)
NAIVE(int64, int64_t, uint64_t)
NAIVE(uint32, uint32_t, uint32_t)
NAIVE(uint64, uint64_t, uint64_t)
NAIVE(float, float, float)
NAIVE(double, double, double)

static void naive_reduce(void *all, int n_pes, size_t n, uf_dtype type, uf_reduce_op op, void *out)
{
    switch (type) {
    case UF_INT32:
        naive_int32(all, n_pes, n, op, out);
        break;
    case UF_INT64:
        naive_int64(all, n_pes, n, op, out);
        break;
    case UF_UINT32:
        naive_uint32(all, n_pes, n, op, out);
        break;
    case UF_UINT64:
        naive_uint64(all, n_pes, n, op, out);
        break;
    case UF_FLOAT:
        naive_float(all, n_pes, n, op, out);
        break;
    default:
        naive_double(all, n_pes, n, op, out);
        break;
    }
}

/* Reduces n elements once from a buffer of its own and once in place. */
static bool one_reduce(world_pe *me, room *r, size_t n, uf_dtype type, uf_reduce_op op, uint64_t call)
{
    size_t bytes = n * uf_combine_element(type);
    unsigned char *all = malloc(bytes * (size_t)me->n + 1);
    for (int pe = 0; pe < me->n; pe++)
        fill_numbers(all + bytes * (size_t)pe, n, type, pe, call);
    naive_reduce(all, me->n, n, type, op, r->want);
    memcpy(r->src, all + bytes * (size_t)me->pe, bytes);
    bool good = uf_reduce(uf_team_world(me->world), r->dst, r->src, n, type, op) == UF_OK ||
                world_run_failed(me, __FILE__, __LINE__, "uf_reduce");
    good = good && as_wanted(me, r, bytes, "reduce", bytes, call);
    if (good) {
        memcpy(r->dst, all + bytes * (size_t)me->pe, bytes);
        good = uf_reduce(uf_team_world(me->world), r->dst, r->dst, n, type, op) == UF_OK ||
               world_run_failed(me, __FILE__, __LINE__, "uf_reduce in place");
        good = good && as_wanted(me, r, bytes, "reduce in place", bytes, call);
    }
    free(all);
    return good;
}

static void reduce_body(world_pe *me)
{
    static const size_t counts[] = {0, 1, 7, 1000};
    room r;
    uint64_t call = 0;
    if (!make_room(me, 8u << 20, &r))
        return;
    for (int type = UF_INT32; type <= UF_DOUBLE; type++)
        for (int op = UF_SUM; op <= (type < UF_FLOAT ? UF_XOR : UF_MAX); op++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                if (!one_reduce(me, &r, counts[i], (uf_dtype)type, (uf_reduce_op)op, ++call))
                    return;
    /* Far above the scratch: many rounds, slots used again and again. */
    size_t far = shuffled ? 30000 : 5u << 20;
    if (one_reduce(me, &r, far / 8, UF_DOUBLE, UF_SUM, ++call) && one_reduce(me, &r, far / 4 + 3, UF_FLOAT, UF_SUM, ++call) &&
        one_reduce(me, &r, 65536 / 4, UF_INT32, UF_PROD, ++call))
        free_room(me, &r);
}

static void a_reduce_combines_in_pe_order_bit_for_bit(void **state)
{
    (void)state;
    run_all(reduce_body, 7);
}

/* ---------------------------------------------------------------- barrier and sync */

static void barrier_body(world_pe *me)
{
    uf_team *team = uf_team_world(me->world);
    void *p;
    uf_ctx *ctx;
    enum { WORDS = 512 };
    CHECK(me, uf_malloc(me->world, sizeof(uint64_t) * WORDS, 0, &p) == UF_OK);
    CHECK(me, uf_ctx_create(me->world, NULL, &ctx) == UF_OK);
    volatile uint64_t *words = p;
    uint64_t out[WORDS];
    for (uint64_t step = 1; step <= 20; step++) {
        int to = (me->pe + 1) % me->n, from = (me->pe + me->n - 1) % me->n;
        for (int i = 0; i < WORDS; i++)
            out[i] = step * 1000 + (uint64_t)me->pe;
        CHECK(me, uf_put_nbi(ctx, p, out, sizeof out, to) == UF_OK);
        CHECK(me, uf_barrier(team) == UF_OK);
        for (int i = 0; i < WORDS; i++)
            CHECK(me, words[i] == step * 1000 + (uint64_t)from);
        CHECK(me, uf_sync(team) == UF_OK); /* all have read before anybody writes again */
    }
    CHECK(me, uf_ctx_destroy(ctx) == UF_OK);
}

static void a_barrier_completes_every_context(void **state)
{
    (void)state;
    run_all(barrier_body, 7);
}

/* Nobody leaves a sync before everybody has come: seen through a word that each raises before. */
static void sync_body(world_pe *me)
{
    uf_team *team = uf_team_world(me->world);
    uint64_t *came;
    CHECK(me, uf_signal_alloc(me->world, 1, UF_SIGNAL_DEFAULT, &came) == UF_OK);
    CHECK(me, uf_sync(team) == UF_OK);
    for (uint64_t step = 1; step <= 20; step++) {
        for (int pe = 0; pe < me->n; pe++)
            CHECK(me, uf_signal(uf_ctx_default(me->world), came, UF_SIGNAL_ADD, 1, pe, UF_WEAK) == UF_OK);
        CHECK(me, uf_quiet(uf_ctx_default(me->world)) == UF_OK);
        CHECK(me, uf_sync(team) == UF_OK);
        CHECK(me, uf_signal_fetch(came) >= step * (uint64_t)me->n);
        CHECK(me, uf_sync(team) == UF_OK);
    }
}

static void nobody_leaves_a_sync_before_all_have_come(void **state)
{
    (void)state;
    run_all(sync_body, 8);
}

/* ---------------------------------------------------------------- what goes wrong */

static void wrong_arguments_body(world_pe *me)
{
    uf_team *team = uf_team_world(me->world);
    void *p;
    int64_t here[4] = {0};
    CHECK(me, uf_malloc(me->world, 4096, 0, &p) == UF_OK);
    CHECK(me, uf_sync(NULL) == UF_EINVAL && uf_barrier(NULL) == UF_EINVAL);
    CHECK(me, uf_broadcast(team, p, here, 8, me->n) == UF_ERANGE);
    CHECK(me, uf_broadcast(team, p, here, 8, -1) == UF_ERANGE);
    CHECK(me, uf_broadcast(team, here, here, 8, 0) == UF_ERANGE && strstr(uf_error_message(), "dst"));
    CHECK(me, uf_allgather(team, here, here, 8) == UF_ERANGE);
    CHECK(me, uf_allgather(team, p, NULL, 8) == UF_EINVAL && strstr(uf_error_message(), "src"));
    CHECK(me, uf_allgather(team, p, here, SIZE_MAX / 2 + 1) == (me->n > 1 ? UF_EINVAL : UF_ERANGE));
    CHECK(me, uf_alltoall(team, p, p, 8) == UF_EINVAL);
    CHECK(me, uf_reduce(team, p, here, 4, (uf_dtype)6, UF_SUM) == UF_EINVAL);
    CHECK(me, uf_reduce(team, p, here, 4, UF_INT32, (uf_reduce_op)7) == UF_EINVAL);
    CHECK(me, uf_reduce(team, p, here, 4, UF_FLOAT, UF_XOR) == UF_EINVAL);
    CHECK(me, uf_reduce(team, (char *)p + 1, here, 1, UF_INT32, UF_SUM) == UF_EINVAL && strstr(uf_error_message(), "aligned"));
    CHECK(me, uf_reduce(team, p, here, SIZE_MAX / 4, UF_INT64, UF_SUM) == UF_EINVAL);
    /* None of it has done any harm. */
    here[0] = me->pe;
    CHECK(me, uf_reduce(team, p, here, 1, UF_INT64, UF_SUM) == UF_OK);
    CHECK(me, *(int64_t *)p == me->n * (me->n - 1) / 2);
}

static void wrong_arguments_are_refused_by_name(void **state)
{
    (void)state;
    run_all(wrong_arguments_body, 2);
}

/* The last PE does not come to the sync: all others are told, and their team is of no use any more. */
static void late_body(world_pe *me)
{
    uf_team *team, *world = uf_team_world(me->world);
    int pes[3] = {0, 1, 2};
    uint64_t *done;
    CHECK(me, uf_team_create(world, pes, 3, &team) == UF_OK);
    CHECK(me, uf_signal_alloc(me->world, 1, UF_SIGNAL_DEFAULT, &done) == UF_OK);
    if (me->pe == 2) {
        CHECK(me, uf_wait(me->world, done, UF_GE, 2, UF_FOREVER) == UF_OK);
        return;
    }
    CHECK(me, uf_sync(team) == UF_ETIMEDOUT && strstr(uf_error_message(), "uf_sync") && strstr(uf_error_message(), "PE "));
    CHECK(me,
          uf_reduce(team, NULL, NULL, 0, UF_INT32, UF_SUM) == UF_ETIMEDOUT && strstr(uf_error_message(), "earlier collective"));
    CHECK(me, uf_team_destroy(team) == UF_OK);
    CHECK(me, uf_world_status(me->world) == UF_OK);
    CHECK(me, uf_signal(uf_ctx_default(me->world), done, UF_SIGNAL_ADD, 1, 2, UF_WEAK) == UF_OK);
    CHECK(me, uf_quiet(uf_ctx_default(me->world)) == UF_OK);
}

static void a_late_pe_is_told_and_its_team_ends(void **state)
{
    (void)state;
    world_run run = {.fabric = fabric, .n_pes = 3, .seed = 1, .timeout_ns = 300000000};
    world_run_all(&run, late_body);
}

static void abort_body(world_pe *me)
{
    uf_team *team = uf_team_world(me->world);
    void *p;
    CHECK(me, uf_malloc(me->world, 4096, 0, &p) == UF_OK);
    if (me->pe == 1) {
        uf_world_abort(me->world, "had enough");
        return;
    }
    int rc = uf_allgather(team, p, p, 8);
    CHECK(me, rc == UF_EABORTED && strstr(uf_error_message(), "had enough"));
    rc = uf_barrier(team);
    CHECK(me, rc == UF_EABORTED);
}

static void an_abort_ends_every_collective_with_its_reason(void **state)
{
    (void)state;
    world_run run = {.fabric = fabric, .n_pes = 4, .seed = 1};
    world_run_all(&run, abort_body);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    shuffled = strncmp(fabric, "shuffle:", 8) == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broadcast_brings_the_roots_bytes_to_all),
        cmocka_unit_test(an_allgather_brings_everybodys_bytes_to_all),
        cmocka_unit_test(an_alltoall_brings_each_its_own_bytes),
        cmocka_unit_test(a_reduce_combines_in_pe_order_bit_for_bit),
        cmocka_unit_test(a_barrier_completes_every_context),
        cmocka_unit_test(nobody_leaves_a_sync_before_all_have_come),
        cmocka_unit_test(wrong_arguments_are_refused_by_name),
        cmocka_unit_test(a_late_pe_is_told_and_its_team_ends),
        cmocka_unit_test(an_abort_ends_every_collective_with_its_reason),
    };
    return cmocka_run_group_tests_name(fabric, tests, NULL, NULL);
}
