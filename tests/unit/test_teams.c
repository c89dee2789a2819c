/* Teams: ordered subsets, made and ended again and again, used by several threads at once. The argument names the fabric. */
#include "support/world_run.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *fabric = "local";

static void run_pes(int n, void (*body)(world_pe *me))
{
    const char *seed = getenv("UNFENCE_SEED");
    world_run run = {.fabric = fabric, .n_pes = n, .seed = seed ? strtoull(seed, NULL, 10) : 7};
    world_run_all(&run, body);
}

/* Everybody's number in the team, gathered: the team's order and its words are right. */
static bool gathers(world_pe *me, uf_team *team, const int *members, int n, int32_t *dst)
{
    int32_t mine = me->pe * 10 + 3;
    memset(dst, 0xff, sizeof *dst * (size_t)n);
    if (uf_allgather(team, dst, &mine, sizeof mine) != UF_OK)
        return false;
    for (int i = 0; i < n; i++)
        if (dst[i] != members[i] * 10 + 3)
            return false;
    return true;
}

static void lists_body(world_pe *me)
{
    static const int lists[][5] = {{0}, {4}, {1, 0}, {4, 2, 0}, {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 4, 1, 3}};
    static const int sizes[] = {1, 1, 2, 3, 5, 5, 4};
    uf_team *world = uf_team_world(me->world);
    void *dst;
    CHECK(me, uf_malloc(me->world, 4096, 0, &dst) == UF_OK);
    for (size_t l = 0; l < sizeof sizes / sizeof *sizes; l++) {
        int number = -1;
        for (int i = 0; i < sizes[l]; i++)
            if (lists[l][i] == me->pe)
                number = i;
        uf_team *team = (uf_team *)1;
        CHECK(me, uf_team_create(world, lists[l], sizes[l], &team) == UF_OK);
        CHECK(me, (number < 0) == (team == NULL));
        CHECK(me, uf_team_pe(team) == number);
        if (!team)
            continue;
        CHECK(me, uf_team_n_pes(team) == sizes[l]);
        for (int i = 0; i < sizes[l]; i++) {
            CHECK(me, uf_team_translate(team, i, world) == lists[l][i]);
            CHECK(me, uf_team_translate(world, lists[l][i], team) == i);
        }
        CHECK(me, uf_team_translate(team, sizes[l], world) == -1 && uf_team_translate(team, -1, world) == -1);
        for (int again = 0; again < 3; again++)
            CHECK(me, gathers(me, team, lists[l], sizes[l], dst));
        CHECK(me, uf_team_destroy(team) == UF_OK);
    }
}

static void a_team_is_an_ordered_subset(void **state)
{
    (void)state;
    run_pes(5, lists_body);
}

static void strided_body(world_pe *me)
{
    uf_team *world = uf_team_world(me->world), *odd, *back, *pair;
    void *dst;
    CHECK(me, uf_malloc(me->world, 4096, 0, &dst) == UF_OK);
    CHECK(me, uf_team_split_strided(world, 1, 2, 3, &odd) == UF_OK);
    CHECK(me, (odd != NULL) == (me->pe % 2 == 1));
    CHECK(me, uf_team_split_strided(world, 5, -1, 6, &back) == UF_OK);
    CHECK(me, gathers(me, back, (int[]){5, 4, 3, 2, 1, 0}, 6, dst));
    if (odd) {
        /* A team of a team: numbers are those of its parent. */
        CHECK(me, uf_team_split_strided(odd, 2, -2, 2, &pair) == UF_OK);
        CHECK(me, (pair != NULL) == (me->pe != 3));
        if (pair) {
            CHECK(me, gathers(me, pair, (int[]){5, 1}, 2, dst));
            CHECK(me, uf_team_translate(pair, 0, back) == 0 && uf_team_translate(back, 1, pair) == -1);
            CHECK(me, uf_team_destroy(pair) == UF_OK);
        }
        CHECK(me, gathers(me, odd, (int[]){1, 3, 5}, 3, dst));
        CHECK(me, uf_team_destroy(odd) == UF_OK);
    }
    CHECK(me, uf_team_split_strided(world, 0, 4, 3, &odd) == UF_ERANGE); /* PE 8 of 6 */
    CHECK(me, uf_team_split_strided(world, 0, 0, 2, &odd) == UF_EINVAL); /* PE 0 twice */
    CHECK(me, uf_team_destroy(back) == UF_OK);
    CHECK(me, uf_team_destroy(world) == UF_EINVAL);
    CHECK(me, uf_team_destroy(NULL) == UF_OK);
}

static void a_strided_team_counts_from_its_start(void **state)
{
    (void)state;
    run_pes(6, strided_body);
}

static void sixty_four_body(world_pe *me)
{
    uf_team *world = uf_team_world(me->world), *teams[64], *more;
    int pes[3] = {2, 0, 1};
    void *dst;
    CHECK(me, uf_malloc(me->world, 4096, 0, &dst) == UF_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 63; i++) /* the world's own is the 64th */
            CHECK(me, uf_team_create(world, pes, 3, &teams[i]) == UF_OK);
        CHECK(me, uf_team_create(world, pes, 3, &more) == UF_ENOMEM && strstr(uf_error_message(), "64"));
        for (int i = 0; i < 63; i += 7)
            CHECK(me, gathers(me, teams[i], pes, 3, dst));
        CHECK(me, uf_team_destroy(teams[20]) == UF_OK);
        CHECK(me, uf_team_create(world, pes, 3, &teams[20]) == UF_OK);
        CHECK(me, gathers(me, teams[20], pes, 3, dst));
        for (int i = 0; i < 63; i++)
            CHECK(me, uf_team_destroy(teams[i]) == UF_OK);
    }
}

static void sixty_four_teams_exist_at_once_and_numbers_come_back(void **state)
{
    (void)state;
    run_pes(3, sixty_four_body);
}

static void refusals_body(world_pe *me)
{
    uf_team *world = uf_team_world(me->world), *team = NULL;
    void *dst;
    CHECK(me, uf_malloc(me->world, 4096, 0, &dst) == UF_OK);
    CHECK(me, uf_team_create(world, (int[]){0, 1, 0}, 3, &team) == UF_EINVAL && strstr(uf_error_message(), "twice"));
    CHECK(me, uf_team_create(world, (int[]){0, 3}, 2, &team) == UF_ERANGE && strstr(uf_error_message(), "3"));
    CHECK(me, uf_team_create(world, NULL, 2, &team) == UF_EINVAL);
    CHECK(me, uf_team_create(world, (int[]){0}, 0, &team) == UF_EINVAL);
    CHECK(me, uf_team_create(NULL, (int[]){0}, 1, &team) == UF_EINVAL);
    /* PEs that do not agree: all are told. */
    CHECK(me, uf_team_create(world, me->pe ? (int[]){0, 1} : (int[]){1, 0}, 2, &team) == UF_EMISMATCH);
    /* One that gives nonsense: it hears what, the others whom to ask. */
    int rc = uf_team_create(world, me->pe == 1 ? (int[]){0, 7} : (int[]){0, 1}, 2, &team);
    CHECK(me, rc == UF_ERANGE && strstr(uf_error_message(), me->pe == 1 ? "pes[1] is 7" : "refused on PE 1"));
    CHECK(me, team == NULL);
    CHECK(me, gathers(me, world, (int[]){0, 1, 2}, 3, dst)); /* and the parent works as ever */
}

static void a_list_that_is_wrong_or_differs_is_refused_everywhere(void **state)
{
    (void)state;
    run_pes(3, refusals_body);
}

/* ---------------------------------------------------------------- several threads of a PE at once */

typedef struct worker {
    world_pe *me;
    uf_team *team;
    int32_t *dst;
    int members[8], n;
} worker;

static void use_team(worker *w)
{
    for (int i = 0; i < 60; i++) {
        CHECK(w->me, gathers(w->me, w->team, w->members, w->n, w->dst));
        int64_t one = 1;
        CHECK(w->me, uf_reduce(w->team, w->dst, &one, 1, UF_INT64, UF_SUM) == UF_OK);
        int64_t sum;
        memcpy(&sum, w->dst, sizeof sum);
        CHECK(w->me, sum == w->n);
        CHECK(w->me, uf_barrier(w->team) == UF_OK);
    }
}

static void *use_team_main(void *arg)
{
    use_team(arg);
    return NULL;
}

static bool make_worker(world_pe *me, const int *members, int n, worker *w)
{
    void *dst;
    *w = (worker){.me = me, .n = n};
    memcpy(w->members, members, sizeof *members * (size_t)n);
    bool good =
        uf_malloc(me->world, 4096, 0, &dst) == UF_OK && uf_team_create(uf_team_world(me->world), members, n, &w->team) == UF_OK;
    w->dst = good ? dst : NULL;
    return good || world_run_failed(me, __FILE__, __LINE__, "team or memory");
}

static void threads_body(world_pe *me)
{
    static const int all[] = {0, 1, 2, 3}, back[] = {3, 2, 1, 0}, even[] = {0, 2}, odd[] = {3, 1};
    worker workers[4];
    pthread_t threads[4];
    bool running[4] = {false};
    if (!make_worker(me, all, 4, &workers[0]) || !make_worker(me, back, 4, &workers[1]) ||
        !make_worker(me, even, 2, &workers[2]) || !make_worker(me, odd, 2, &workers[3]))
        return;
    for (int i = 0; i < 4; i++)
        if (workers[i].team)
            running[i] = pthread_create(&threads[i], NULL, use_team_main, &workers[i]) == 0;
    for (int i = 0; i < 4; i++)
        if (running[i])
            pthread_join(threads[i], NULL);
}

static void threads_use_different_teams_at_once(void **state)
{
    (void)state;
    run_pes(4, threads_body);
}

/* Two parents with the same members; a thread each makes and ends children, so both want numbers at the same time. */
static void make_children(worker *w)
{
    for (int i = 0; i < 30; i++) {
        uf_team *child;
        CHECK(w->me, uf_team_split_strided(w->team, 0, 1, w->n, &child) == UF_OK);
        CHECK(w->me, gathers(w->me, child, w->members, w->n, w->dst));
        CHECK(w->me, uf_team_destroy(child) == UF_OK);
    }
}

static void *make_children_main(void *arg)
{
    make_children(arg);
    return NULL;
}

static void children_body(world_pe *me)
{
    static const int all[] = {0, 1, 2}, back[] = {2, 0, 1};
    worker a, b;
    pthread_t thread;
    if (!make_worker(me, all, 3, &a) || !make_worker(me, back, 3, &b))
        return;
    CHECK(me, pthread_create(&thread, NULL, make_children_main, &a) == 0);
    make_children(&b);
    pthread_join(thread, NULL);
}

static void threads_make_teams_of_different_parents_at_once(void **state)
{
    (void)state;
    run_pes(3, children_body);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_team_is_an_ordered_subset),
        cmocka_unit_test(a_strided_team_counts_from_its_start),
        cmocka_unit_test(sixty_four_teams_exist_at_once_and_numbers_come_back),
        cmocka_unit_test(a_list_that_is_wrong_or_differs_is_refused_everywhere),
        cmocka_unit_test(threads_use_different_teams_at_once),
        cmocka_unit_test(threads_make_teams_of_different_parents_at_once),
    };
    /* Fibers know no other threads. */
    size_t n = sizeof tests / sizeof *tests;
    if (strncmp(fabric, "shuffle:", 8) == 0)
        n -= 2;
    return _cmocka_run_group_tests(fabric, tests, n, NULL, NULL);
}
