/* suite_collectives.c - collectives against the naive model: everybody knows what everybody gives, and works it out. */
#include "multi/core_suite.h"
#include <stdlib.h>
#include <string.h>

/* The teams that each collective is tried on: all, every second one, and all in reverse. NULL where this PE is not in it. */
typedef struct team_set {
    uf_team *team[3];
} team_set;

static bool open_teams(suite *s, team_set *t)
{
    int reverse[64];
    for (int i = 0; i < s->n && i < 64; i++) {
        reverse[i] = s->n - 1 - i;
    }
    t->team[0] = s->all;
    return CHECK_OK(s, uf_team_split_strided(s->all, 0, 2, (s->n + 1) / 2, &t->team[1])) &&
           CHECK_OK(s, uf_team_create(s->all, reverse, s->n, &t->team[2]));
}

static void close_teams(suite *s, team_set *t)
{
    for (int i = 1; i < 3; i++) {
        if (t->team[i])
            CHECK_OK(s, uf_team_destroy(t->team[i]));
    }
}

/* What member `pe` of team number `which` gives in round `round`. */
static uint64_t salt_of(int which, size_t round, int pe)
{
    return (uint64_t)which * 1000000 + round * 1000 + (uint64_t)pe;
}

static size_t bytes_of(const suite *s, size_t round)
{
    const size_t full[] = {0, 1, 8, 13, 1000, 65536, 1000003}, small[] = {0, 1, 8, 13, 200, 1000, 5001};
    return s->place.small ? small[round] : full[round];
}

static void broadcast_gives_everybody_the_roots_bytes(suite *s)
{
    team_set t;
    if (!open_teams(s, &t))
        return;
    for (int which = 0; which < 3; which++) {
        uf_team *team = t.team[which];
        int n = team ? uf_team_n_pes(team) : 0, me = team ? uf_team_pe(team) : 0;
        for (int root = 0; root < n && !s->failed; root++) {
            for (size_t round = 0; round < 7 && !s->failed; round++) {
                size_t bytes = bytes_of(s, round);
                bool in_place = round % 2 && me == root; /* dst equal to src on the root */
                suite_fill(in_place ? s->data : s->out, bytes, salt_of(which, round, me));
                CHECK_OK(s, uf_broadcast(team, s->data, in_place ? s->data : s->out, bytes, root));
                VERIFY(s, s->data, bytes, salt_of(which, round, root));
            }
        }
    }
    close_teams(s, &t);
}

static void allgather_puts_every_part_in_its_place(suite *s)
{
    team_set t;
    if (!open_teams(s, &t))
        return;
    for (int which = 0; which < 3; which++) {
        uf_team *team = t.team[which];
        for (size_t round = 0; team && round < 7 && !s->failed; round++) {
            size_t bytes = bytes_of(s, round);
            int n = uf_team_n_pes(team);
            suite_fill(s->out, bytes, salt_of(which, round, uf_team_pe(team)));
            CHECK_OK(s, uf_allgather(team, s->data, s->out, bytes));
            for (int pe = 0; pe < n; pe++) {
                VERIFY(s, s->data + (size_t)pe * bytes, bytes, salt_of(which, round, pe));
            }
        }
    }
    close_teams(s, &t);
}

static void alltoall_brings_each_part_to_its_owner(suite *s)
{
    team_set t;
    if (!open_teams(s, &t))
        return;
    for (int which = 0; which < 3; which++) {
        uf_team *team = t.team[which];
        for (size_t round = 0; team && round < 7 && !s->failed; round++) {
            size_t bytes = bytes_of(s, round);
            int n = uf_team_n_pes(team), me = uf_team_pe(team);
            for (int pe = 0; pe < n; pe++) {
                suite_fill(s->out + (size_t)pe * bytes, bytes, salt_of(which, round, me * 64 + pe));
            }
            CHECK_OK(s, uf_alltoall(team, s->data, s->out, bytes));
            for (int pe = 0; pe < n; pe++) {
                VERIFY(s, s->data + (size_t)pe * bytes, bytes, salt_of(which, round, pe * 64 + me));
            }
        }
    }
    close_teams(s, &t);
}

/* ---------------------------------------------------------------- reduce */

static size_t type_bytes(uf_dtype type)
{
    return type == UF_INT32 || type == UF_UINT32 || type == UF_FLOAT ? 4 : 8;
}

static bool op_fits(uf_dtype type, uf_reduce_op op)
{
    return op <= UF_MAX || (type != UF_FLOAT && type != UF_DOUBLE);
}

/* Small whole numbers of both signs, and for floating point fractions whose sum depends on the order of addition. */
static void give_element(uf_dtype type, unsigned char *at, uint64_t salt, size_t i)
{
    uint64_t state = salt * 1000003 + i;
    int64_t whole = (int64_t)suite_random_next(&state, 2001) - 1000;
    switch (type) {
    case UF_INT32:
    case UF_UINT32:
        memcpy(at, &(int32_t){(int32_t)whole}, 4);
        break;
    case UF_INT64:
    case UF_UINT64:
        memcpy(at, &(int64_t){whole * (INT64_C(1) << 33) + (whole & 0xffff)}, 8);
        break;
    case UF_FLOAT:
        memcpy(at, &(float){(float)whole * 0.1f}, 4);
        break;
    case UF_DOUBLE:
        memcpy(at, &(double){(double)whole * 0.1}, 8);
        break;
    }
}

#define COMBINE(T, a, b, op)                                                                                                     \
    ((op) == UF_SUM    ? (T)((a) + (b))                                                                                          \
     : (op) == UF_PROD ? (T)((a) * (b))                                                                                          \
     : (op) == UF_MIN  ? ((b) < (a) ? (b) : (a))                                                                                 \
                       : ((b) > (a) ? (b) : (a)))

static uint64_t combine_bits(uint64_t a, uint64_t b, uf_reduce_op op)
{
    return op == UF_AND ? a & b : op == UF_OR ? a | b : a ^ b;
}

static void model_combine(uf_dtype type, uf_reduce_op op, unsigned char *acc, const unsigned char *next)
{
    uint64_t ua = 0, ub = 0;
    float fa, fb;
    double da, db;
    size_t bytes = type_bytes(type);
    memcpy(&ua, acc, bytes);
    memcpy(&ub, next, bytes);
    if (op >= UF_AND) {
        ua = combine_bits(ua, ub, op);
    } else if (type == UF_FLOAT) {
        memcpy(&fa, acc, 4);
        memcpy(&fb, next, 4);
        fa = COMBINE(float, fa, fb, op);
        memcpy(&ua, &fa, 4);
    } else if (type == UF_DOUBLE) {
        memcpy(&da, acc, 8);
        memcpy(&db, next, 8);
        da = COMBINE(double, da, db, op);
        memcpy(&ua, &da, 8);
    } else if (op <= UF_PROD) { /* modulo 2^bits, signed or not */
        ua = op == UF_SUM ? ua + ub : ua * ub;
    } else if (type == UF_INT32) {
        ua = (uint64_t)(uint32_t)COMBINE(int32_t, (int32_t)ua, (int32_t)ub, op);
    } else if (type == UF_INT64) {
        ua = (uint64_t)COMBINE(int64_t, (int64_t)ua, (int64_t)ub, op);
    } else {
        ua = COMBINE(uint64_t, ua, ub, op);
    }
    memcpy(acc, &ua, bytes);
}

static bool reduce_matches(suite *s, uf_team *team, uf_dtype type, uf_reduce_op op, size_t n, uint64_t salt, unsigned char *model)
{
    size_t bytes = type_bytes(type);
    int members = uf_team_n_pes(team), me = uf_team_pe(team);
    bool in_place = salt % 2;
    unsigned char *src = in_place ? s->data : s->out;
    for (size_t i = 0; i < n; i++) {
        unsigned char next[8];
        give_element(type, src + i * bytes, salt * 64 + (uint64_t)me, i);
        give_element(type, model + i * bytes, salt * 64, i);
        for (int pe = 1; pe < members; pe++) {
            give_element(type, next, salt * 64 + (uint64_t)pe, i);
            model_combine(type, op, model + i * bytes, next);
        }
    }
    return CHECK_OK(s, uf_reduce(team, s->data, src, n, type, op)) &&
           suite_check(s, memcmp(s->data, model, n * bytes) == 0, __FILE__, __LINE__,
                       "reduce of %zu elements, type %d, op %d is wrong", n, (int)type, (int)op);
}

/* Bitwise, floating point too: combined in the order of PEs. */
static void reduce_is_bitwise_the_fold_in_pe_order(suite *s)
{
    team_set t;
    const size_t full[] = {0, 1, 7, 1000, 50000}, small[] = {0, 1, 7, 100, 600};
    const size_t *counts = s->place.small ? small : full;
    unsigned char *model = malloc(50000 * 8);
    if (!CHECK(s, model) || !open_teams(s, &t)) {
        free(model);
        return;
    }
    for (int which = 0; which < 3; which++) {
        for (int type = UF_INT32; t.team[which] && type <= UF_DOUBLE; type++) {
            for (int op = UF_SUM; op <= UF_XOR && !s->failed; op++) {
                uint64_t salt = (uint64_t)(type * 7 + op + which);
                if (op_fits((uf_dtype)type, (uf_reduce_op)op))
                    reduce_matches(s, t.team[which], (uf_dtype)type, (uf_reduce_op)op, counts[salt % 5], salt, model);
            }
        }
    }
    free(model);
    close_teams(s, &t);
}

static void bit_operations_on_floating_point_are_refused(suite *s)
{
    CHECK_CODE(s, uf_reduce(s->all, s->data, s->out, 4, UF_FLOAT, UF_XOR), UF_EINVAL, "");
    CHECK_CODE(s, uf_reduce(s->all, s->data, s->out, 4, UF_DOUBLE, UF_AND), UF_EINVAL, "");
    CHECK_CODE(s, uf_reduce(s->all, s->data, s->out, 4, (uf_dtype)77, UF_SUM), UF_EINVAL, "77");
    CHECK_CODE(s, uf_reduce(s->all, s->data, s->out, 4, UF_INT32, (uf_reduce_op)78), UF_EINVAL, "78");
}

/* Collectives follow each other without anything between, into the same memory, and puts go on beside them. */
static void collectives_follow_each_other_closely(suite *s)
{
    size_t rounds = suite_scale(s, 60, 8), bytes = 96;
    for (size_t r = 0; r < rounds && !s->failed; r++) {
        suite_fill(s->out, bytes * (size_t)s->n, salt_of(7, r, s->pe));
        CHECK_OK(s, uf_put_signal_nbi(s->ctx, s->data + s->room - 8, &s->words[9], 8, s->signals, UF_SIGNAL_ADD, 1, s->right,
                                      UF_WEAK));
        CHECK_OK(s, uf_allgather(s->all, s->data, s->out, bytes));
        for (int pe = 0; pe < s->n; pe++) {
            VERIFY(s, s->data + (size_t)pe * bytes, bytes, salt_of(7, r, pe));
        }
        CHECK_OK(s, uf_broadcast(s->all, s->data, s->out, bytes, (int)(r % (size_t)s->n)));
        VERIFY(s, s->data, bytes, salt_of(7, r, (int)(r % (size_t)s->n)));
        uint64_t one = 1, sum = 0;
        CHECK_OK(s, uf_reduce(s->all, s->data, &one, 1, UF_UINT64, UF_SUM));
        memcpy(&sum, s->data, 8);
        CHECK_EQ(s, sum, s->n);
    }
    AWAIT(s, s->signals, rounds);
}

static void sync_and_barrier_let_nobody_through_early(suite *s)
{
    size_t rounds = suite_scale(s, 100, 10);
    for (uint64_t r = 1; r <= rounds && !s->failed; r++) {
        for (int pe = 0; pe < s->n; pe++) {
            CHECK_OK(s, uf_atomic_nbi(s->ctx, UF_ATOMIC_ADD, 8, &s->words[r % 2], 1, 0, NULL, pe, 0));
        }
        if (r % 3 == 0) {
            CHECK_OK(s, uf_quiet(s->ctx));
            CHECK_OK(s, uf_sync(s->all));
        } else {
            CHECK_OK(s, uf_barrier(s->all));
        }
        uint64_t wanted = (uint64_t)s->n * ((r + 1) / 2);
        if (r % 2 == 0)
            wanted = (uint64_t)s->n * (r / 2);
        CHECK_EQ(s, uf_signal_fetch(&s->words[r % 2]), wanted);
    }
}

const suite_test suite_collective_tests[] = {
    {"sync_and_barrier_let_nobody_through_early", sync_and_barrier_let_nobody_through_early, 1, 0},
    {"broadcast_gives_everybody_the_roots_bytes", broadcast_gives_everybody_the_roots_bytes, 1, SUITE_SELDOM},
    {"allgather_puts_every_part_in_its_place", allgather_puts_every_part_in_its_place, 1, 0},
    {"alltoall_brings_each_part_to_its_owner", alltoall_brings_each_part_to_its_owner, 1, SUITE_SELDOM},
    {"reduce_is_bitwise_the_fold_in_pe_order", reduce_is_bitwise_the_fold_in_pe_order, 1, SUITE_SELDOM},
    {"bit_operations_on_floating_point_are_refused", bit_operations_on_floating_point_are_refused, 1, SUITE_SELDOM},
    {"collectives_follow_each_other_closely", collectives_follow_each_other_closely, 1, 0},
    {NULL, NULL, 0, 0},
};
