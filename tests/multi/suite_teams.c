/* suite_teams.c - teams: who is in them, under which number, and that they wait for their own members only. */
#include "multi/core_suite.h"

static void world_team_holds_everybody(suite *s)
{
    CHECK_EQ(s, uf_team_n_pes(s->all), s->n);
    CHECK_EQ(s, uf_team_pe(s->all), s->pe);
    for (int pe = 0; pe < s->n; pe++) {
        CHECK_EQ(s, uf_team_translate(s->all, pe, s->all), pe);
    }
}

static void strided_team_numbers_its_members(suite *s)
{
    for (int stride = 1; stride <= 3; stride++) {
        int n = (s->n + stride - 1) / stride;
        uf_team *team = (uf_team *)s;
        if (!CHECK_OK(s, uf_team_split_strided(s->all, 0, stride, n, &team)))
            return;
        if (s->pe % stride != 0) {
            CHECK(s, team == NULL);
            continue;
        }
        CHECK_EQ(s, uf_team_n_pes(team), n);
        CHECK_EQ(s, uf_team_pe(team), s->pe / stride);
        for (int pe = 0; pe < s->n; pe++) {
            CHECK_EQ(s, uf_team_translate(s->all, pe, team), pe % stride == 0 ? pe / stride : -1);
        }
        for (int pe = 0; pe < n; pe++) {
            CHECK_EQ(s, uf_team_translate(team, pe, s->all), pe * stride);
        }
        CHECK_OK(s, uf_barrier(team));
        CHECK_OK(s, uf_sync(team));
        CHECK_OK(s, uf_team_destroy(team));
    }
}

/* In reverse order: the list, not the number in the world, decides who is 0. */
static void team_keeps_the_order_of_its_list(suite *s)
{
    int pes[64];
    uf_team *reverse = NULL, *nested = NULL;
    int n = s->n < 64 ? s->n : 64;
    for (int i = 0; i < n; i++) {
        pes[i] = n - 1 - i;
    }
    if (!CHECK_OK(s, uf_team_create(s->all, pes, n, &reverse)))
        return;
    if (s->pe >= n) {
        CHECK(s, reverse == NULL);
        return;
    }
    CHECK_EQ(s, uf_team_pe(reverse), n - 1 - s->pe);
    int half[64];
    for (int i = 0; i < (n + 1) / 2; i++) {
        half[i] = 2 * i; /* every second one, in the parent's numbers */
    }
    CHECK_OK(s, uf_team_create(reverse, half, (n + 1) / 2, &nested));
    if (uf_team_pe(reverse) % 2 == 0) {
        CHECK_EQ(s, uf_team_pe(nested), uf_team_pe(reverse) / 2);
        CHECK_EQ(s, uf_team_translate(nested, 0, s->all), n - 1);
        CHECK_OK(s, uf_barrier(nested));
        CHECK_OK(s, uf_team_destroy(nested));
    } else {
        CHECK(s, nested == NULL);
    }
    CHECK_OK(s, uf_team_destroy(reverse));
}

/* Each PE is in a team of its own half; the halves make different numbers of barriers. */
static void team_barrier_waits_for_its_own_members_only(suite *s)
{
    uf_team *low = NULL, *high = NULL;
    int half = s->n / 2;
    CHECK_OK(s, uf_team_split_strided(s->all, 0, 1, half, &low));
    CHECK_OK(s, uf_team_split_strided(s->all, half, 1, s->n - half, &high));
    uf_team *mine = s->pe < half ? low : high;
    int rounds = s->pe < half ? 30 : 3, n = uf_team_n_pes(mine), me = uf_team_pe(mine);
    if (!CHECK(s, mine && (low == NULL) != (high == NULL)))
        return;
    for (int i = 1; i <= rounds && !s->failed; i++) {
        uint64_t value = (uint64_t)i * 100;
        int right = uf_team_translate(mine, (me + 1) % n, s->all);
        CHECK_OK(s, uf_put(s->ctx, &s->words[0], &value, 8, right));
        CHECK_OK(s, uf_barrier(mine));
        CHECK_EQ(s, uf_signal_fetch(&s->words[0]), value);
        CHECK_OK(s, uf_barrier(mine));
    }
    CHECK_OK(s, uf_team_destroy(mine));
}

static void teams_can_be_made_again_and_again(suite *s)
{
    for (int i = 0; i < 100 && !s->failed; i++) { /* more than exist at once */
        uf_team *team = NULL;
        CHECK_OK(s, uf_team_split_strided(s->all, 0, 1, s->n, &team));
        if (team)
            CHECK_OK(s, uf_team_destroy(team));
    }
}

static void too_many_teams_are_refused_with_the_limit(suite *s)
{
    uf_team *team[65] = {0}, *more = NULL;
    int n = 0, rc = UF_OK;
    while (n < 64 && (rc = uf_team_split_strided(s->all, 0, 1, s->n, &team[n])) == UF_OK) {
        n++;
    }
    CHECK(s, n >= 60); /* the world's own counts, too */
    if (rc == UF_OK)
        rc = uf_team_split_strided(s->all, 0, 1, s->n, &more);
    CHECK_EQ(s, rc, (uint64_t)UF_ENOMEM);
    while (n-- > 0) {
        CHECK_OK(s, uf_team_destroy(team[n]));
    }
}

static void wrong_members_are_refused(suite *s)
{
    uf_team *team = NULL;
    int twice[2] = {0, 0}, beyond[1] = {s->n}, negative[1] = {-1};
    CHECK_CODE(s, uf_team_create(s->all, twice, 2, &team), UF_EINVAL, "0");
    CHECK_CODE(s, uf_team_create(s->all, beyond, 1, &team), UF_ERANGE, "PE");
    CHECK_CODE(s, uf_team_create(s->all, negative, 1, &team), UF_ERANGE, "-1");
    CHECK_EQ(s, uf_team_split_strided(s->all, 0, 0, s->n + 1, &team) != UF_OK, 1);
    CHECK(s, team == NULL);
}

const suite_test suite_team_tests[] = {
    {"world_team_holds_everybody", world_team_holds_everybody, 1, SUITE_SELDOM},
    {"strided_team_numbers_its_members", strided_team_numbers_its_members, 1, SUITE_SELDOM},
    {"team_keeps_the_order_of_its_list", team_keeps_the_order_of_its_list, 1, SUITE_SELDOM},
    {"team_barrier_waits_for_its_own_members_only", team_barrier_waits_for_its_own_members_only, 2, SUITE_SELDOM},
    {"teams_can_be_made_again_and_again", teams_can_be_made_again_and_again, 1, SUITE_SELDOM},
    {"too_many_teams_are_refused_with_the_limit", too_many_teams_are_refused_with_the_limit, 1, SUITE_SELDOM},
    {"wrong_members_are_refused", wrong_members_are_refused, 1, SUITE_SELDOM},
    {NULL, NULL, 0, 0},
};
