/* team.c - teams, barrier and sync.
 *
 * sync is dissemination: in round k each member tells the one 2^k further and waits to be told, by one bare counted signal; log2(n) rounds,
 * no member is special, any n. Creating a team agrees on a number in the parent (the lowest that is free on all), clears the
 * number's words while nobody can write them, and lets nobody start before all have. */
#include "world/team.h"
#include "base/error.h"
#include <stdlib.h>

static size_t scratch_bytes(int n_pes)
{
    size_t least = (size_t)n_pes * 256;
    return least > 65536 ? least : 65536;
}

size_t uf_teams_words(int n_pes)
{
    return (size_t)UF_MAX_TEAMS * (UF_SYNC_ROUNDS + (size_t)n_pes);
}

int uf_team_check(uf_team *t, const char *call)
{
    if (!t)
        return uf_fail(UF_EINVAL, "%s: argument team is NULL", call);
    return uf_world_check(t->world);
}

/* ---------------------------------------------------------------- sync */

static int sync_team(uf_team *t, const char *call)
{
    uint64_t step = ++t->syncs;
    for (int round = 0, distance = 1; distance < t->n; round++, distance *= 2) {
        int to = t->pes[(t->me + distance) % t->n], from = t->pes[(t->me - distance % t->n + t->n) % t->n];
        int rc = uf_signal(t->ctx, &t->sync_words[round], UF_SIGNAL_ADD, 1, to, UF_WEAK);
        if (!rc)
            rc = uf_wait_from(t->world, &t->sync_words[round], UF_GE, step, from, t->world->timeout_ns);
        if (rc == UF_ETIMEDOUT)
            return uf_fail(
                rc,
                "PE %d: %s of a team of %d PEs: PE %d, or one that it waits for, has not come within %llu ms (UNFENCE_TIMEOUT)",
                t->world->pe, call, t->n, from, (unsigned long long)(t->world->timeout_ns / 1000000));
        if (rc)
            return rc;
    }
    return UF_OK;
}

int uf_sync(uf_team *t)
{
    int rc = uf_team_check(t, "uf_sync");
    return rc ? rc : sync_team(t, "uf_sync");
}

static int complete_all(uf_world *w)
{
    pthread_mutex_lock(&w->setup);
    size_t n = 0;
    for (uf_ctx *c = w->contexts; c; c = c->next)
        n++;
    uf_ctx **contexts = malloc(n * sizeof *contexts);
    n = 0;
    for (uf_ctx *c = w->contexts; c && contexts; c = c->next)
        contexts[n++] = c;
    pthread_mutex_unlock(&w->setup);
    if (!contexts)
        return uf_fail(UF_ENOMEM, "PE %d: uf_barrier: no memory for the list of contexts", w->pe);
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    int rc = UF_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = uf_ctx_complete(contexts[i], -1, true, deadline);
    free(contexts);
    return rc;
}

int uf_barrier(uf_team *t)
{
    int rc = uf_team_check(t, "uf_barrier");
    if (!rc)
        rc = complete_all(t->world);
    return rc ? rc : sync_team(t, "uf_barrier");
}

/* ---------------------------------------------------------------- exchange between members */

int uf_team_send(uf_team *t, int to, void *dst, const void *src, size_t bytes, unsigned flags)
{
    return uf_put_signal_nbi(t->ctx, dst, src, bytes, &t->arrivals[t->me], UF_SIGNAL_ADD, 1, t->pes[to], flags);
}

int uf_team_receive(uf_team *t, const char *call, int from)
{
    t->expected[from]++;
    int rc = uf_wait_from(t->world, &t->arrivals[from], UF_GE, t->expected[from], t->pes[from], t->world->timeout_ns);
    if (rc == UF_ETIMEDOUT)
        return uf_fail(
            rc,
            "PE %d: %s of a team of %d PEs: PE %d is late: %llu of %llu parts have come from it within %llu ms (UNFENCE_TIMEOUT)",
            t->world->pe, call, t->n, t->pes[from], (unsigned long long)uf_signal_fetch(&t->arrivals[from]),
            (unsigned long long)t->expected[from], (unsigned long long)(t->world->timeout_ns / 1000000));
    return rc;
}

int uf_team_gather_small(uf_team *t, const char *call, const void *mine, size_t bytes, unsigned char *all)
{
    int rc = sync_team(t, call); /* the slots are free: whoever is here has read the last ones */
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_send(t, (t->me + i) % t->n, t->scratch + (size_t)t->me * t->slot, mine, bytes, UF_WEAK);
    memcpy(all + (size_t)t->me * 64, mine, bytes);
    for (int i = 1; i < t->n && !rc; i++) {
        int from = (t->me - i + t->n) % t->n;
        rc = uf_team_receive(t, call, from);
        if (!rc)
            memcpy(all + (size_t)from * 64, t->scratch + (size_t)from * t->slot, bytes);
    }
    if (!rc)
        rc = uf_flush(t->ctx);
    return rc;
}

/* ---------------------------------------------------------------- create and destroy */

static void free_team(uf_team *t)
{
    free(t->pes);
    free(t->expected);
    free(t);
}

/* A team's record for number `id`. `pes` are world numbers. */
static int make_team(uf_world *w, int id, const int *pes, int n, uf_team **team)
{
    uf_teams *all = w->teams;
    uf_team *t = calloc(1, sizeof *t);
    int *list = malloc(sizeof *list * (size_t)n);
    uint64_t *expected = calloc((size_t)n, sizeof *expected);
    if (!t || !list || !expected) {
        free(t);
        free(list);
        free(expected);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a team of %d PEs", w->pe, n);
    }
    *t = (uf_team){.world = w, .id = id, .n = n, .me = -1, .pes = list, .expected = expected};
    for (int i = 0; i < n; i++) {
        list[i] = pes[i];
        if (pes[i] == w->pe)
            t->me = i;
    }
    t->sync_words = all->words + (size_t)id * (UF_SYNC_ROUNDS + (size_t)w->n_pes);
    t->arrivals = t->sync_words + UF_SYNC_ROUNDS;
    t->scratch = all->scratch + (size_t)id * all->scratch_bytes;
    t->slot = all->scratch_bytes / (size_t)n / 64 * 64;
    t->settled = w->fabric && w->fabric->caps.duplicates ? UF_SETTLED : UF_WEAK;
    /* Words of an earlier team of this number: all its members have taken everything out of them. */
    for (size_t i = 0; i < UF_SYNC_ROUNDS + (size_t)n; i++)
        __atomic_store_n(&t->sync_words[i], 0, __ATOMIC_RELAXED);
    pthread_mutex_lock(&w->setup);
    int rc = uf_ctx_create_locked(w, NULL, &t->ctx);
    if (!rc) {
        all->free_ids &= ~(1ull << id);
        t->next = all->all;
        all->all = t;
    }
    pthread_mutex_unlock(&w->setup);
    if (rc) {
        free_team(t);
        return rc;
    }
    *team = t;
    return UF_OK;
}

/* What the members of a parent tell each other about the team to come. */
typedef struct proposal {
    uint64_t free_ids;
    uint64_t hash; /* of the list */
    int64_t n, rc;
} proposal;

static uint64_t hash_list(const int *pes, int n)
{
    uint64_t h = 1469598103934665603ull;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)(unsigned)pes[i]) * 1099511628211ull;
    return h;
}

static int check_list(uf_team *parent, const int *pes, int n)
{
    if (!pes || n < 1 || n > parent->n)
        return uf_fail(UF_EINVAL, "uf_team_create on PE %d: argument %s (the parent has %d PEs)", parent->world->pe,
                       !pes ? "pes is NULL" : "n is out of range", parent->n);
    unsigned char *seen = calloc((size_t)parent->n, 1);
    if (!seen)
        return uf_fail(UF_ENOMEM, "PE %d: uf_team_create: no memory", parent->world->pe);
    int rc = UF_OK;
    for (int i = 0; i < n && !rc; i++) {
        if (pes[i] < 0 || pes[i] >= parent->n)
            rc = uf_fail(UF_ERANGE, "uf_team_create on PE %d: argument pes[%d] is %d; the parent has PEs 0 to %d",
                         parent->world->pe, i, pes[i], parent->n - 1);
        else if (seen[pes[i]]++)
            rc = uf_fail(UF_EINVAL, "uf_team_create on PE %d: argument pes names PE %d twice", parent->world->pe, pes[i]);
    }
    free(seen);
    return rc;
}

/* All members of the parent take part, also with a list that this one refuses: nobody is left waiting. */
static int agree(uf_team *parent, const int *pes, int n, int rc, int *id)
{
    uf_world *w = parent->world;
    char why[UF_ERROR_BYTES] = "";
    if (rc)
        strncpy(why, uf_error_message(), sizeof why - 1);
    pthread_mutex_lock(&w->setup);
    proposal mine = {w->teams->free_ids, rc ? 0 : hash_list(pes, n), n, rc};
    pthread_mutex_unlock(&w->setup);
    unsigned char *all = malloc((size_t)parent->n * 64);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: uf_team_create: no memory", w->pe);
    int failed = uf_team_gather_small(parent, "uf_team_create", &mine, sizeof mine, all);
    uint64_t free_ids = UINT64_MAX;
    for (int i = 0; i < parent->n && !failed; i++) {
        proposal p;
        memcpy(&p, all + (size_t)i * 64, sizeof p);
        free_ids &= p.free_ids;
        if (p.rc && !rc)
            failed = uf_fail((int)p.rc, "PE %d: uf_team_create was refused on PE %d, which knows why", w->pe, parent->pes[i]);
        else if (!rc && (p.hash != mine.hash || p.n != mine.n))
            failed = uf_fail(UF_EMISMATCH, "PE %d: uf_team_create: PE %d gave another list of PEs", w->pe, parent->pes[i]);
    }
    free(all);
    if (rc)
        return uf_error_set(rc, why);
    if (!failed && !free_ids)
        failed = uf_fail(UF_ENOMEM,
                         "PE %d: uf_team_create: no team number is free on all PEs of the parent; at most %d teams exist at once",
                         w->pe, UF_MAX_TEAMS);
    if (!failed)
        *id = __builtin_ctzll(free_ids);
    return failed;
}

int uf_team_create(uf_team *parent, const int *pes, int n, uf_team **team)
{
    int rc = uf_team_check(parent, "uf_team_create");
    if (rc)
        return rc;
    if (!team)
        return uf_fail(UF_EINVAL, "uf_team_create: argument team is NULL");
    uf_world *w = parent->world;
    int id = 0, *list = NULL;
    rc = agree(parent, pes, n, check_list(parent, pes, n), &id);
    if (rc)
        return rc;
    bool member = false;
    list = malloc(sizeof *list * (size_t)n);
    for (int i = 0; list && i < n; i++) {
        list[i] = parent->pes[pes[i]];
        member |= list[i] == w->pe;
    }
    uf_team *made = NULL;
    if (!list)
        rc = uf_fail(UF_ENOMEM, "PE %d: uf_team_create: no memory", w->pe);
    else if (member)
        rc = make_team(w, id, list, n, &made);
    free(list);
    /* Nobody signals a member before it has cleared its words. */
    int synced = sync_team(parent, "uf_team_create");
    if (rc || synced)
        return rc ? rc : synced;
    *team = made;
    return UF_OK;
}

int uf_team_split_strided(uf_team *parent, int start, int stride, int n, uf_team **team)
{
    int rc = uf_team_check(parent, "uf_team_split_strided");
    if (rc)
        return rc;
    int room = n > 0 && n <= parent->n ? n : 0;
    int *pes = malloc(sizeof *pes * (size_t)(room + 1));
    if (!pes)
        return uf_fail(UF_ENOMEM, "PE %d: uf_team_split_strided: no memory", parent->world->pe);
    for (int i = 0; i < room; i++) {
        int64_t pe = (int64_t)start + (int64_t)i * stride;
        pes[i] = pe < 0 || pe >= parent->n ? -1 : (int)pe;
    }
    rc = uf_team_create(parent, pes, n, team);
    free(pes);
    return rc;
}

static void drop_team(uf_team *t)
{
    uf_teams *all = t->world->teams;
    pthread_mutex_lock(&t->world->setup);
    all->free_ids |= 1ull << t->id;
    for (uf_team **at = &all->all; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    pthread_mutex_unlock(&t->world->setup);
    free_team(t);
}

int uf_team_destroy(uf_team *t)
{
    if (!t)
        return UF_OK;
    if (t == t->world->teams->world_team)
        return uf_fail(UF_EINVAL, "uf_team_destroy: argument team is the team of all PEs, which lives as long as the world");
    int rc = uf_world_check(t->world);
    if (!rc)
        rc = sync_team(t, "uf_team_destroy");
    int closed = uf_ctx_destroy(t->ctx);
    drop_team(t);
    return rc ? rc : closed;
}

int uf_teams_create(uf_world *w)
{
    uf_teams *all = calloc(1, sizeof *all);
    int *pes = malloc(sizeof *pes * (size_t)w->n_pes);
    if (!all || !pes) {
        free(all);
        free(pes);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for teams", w->pe);
    }
    w->teams = all;
    all->free_ids = UINT64_MAX;
    all->scratch_bytes = scratch_bytes(w->n_pes);
    void *scratch;
    int rc = uf_memory_alloc(w, "scratch of teams", all->scratch_bytes * UF_MAX_TEAMS, 64, &scratch);
    if (!rc)
        rc = uf_signal_alloc(w, uf_teams_words(w->n_pes), UF_SIGNAL_DEFAULT, &all->words);
    for (int pe = 0; pe < w->n_pes; pe++)
        pes[pe] = pe;
    if (!rc) {
        all->scratch = scratch;
        rc = make_team(w, 0, pes, w->n_pes, &all->world_team);
    }
    free(pes);
    return rc;
}

void uf_teams_destroy(uf_world *w)
{
    while (w->teams && w->teams->all) {
        uf_team *next = w->teams->all->next;
        free_team(w->teams->all);
        w->teams->all = next;
    }
    free(w->teams);
    w->teams = NULL;
}

/* ---------------------------------------------------------------- questions */

uf_team *uf_team_world(uf_world *w)
{
    return w ? w->teams->world_team : NULL;
}

int uf_team_pe(const uf_team *t)
{
    return t ? t->me : -1;
}

int uf_team_n_pes(const uf_team *t)
{
    return t ? t->n : 0;
}

int uf_team_translate(const uf_team *from, int pe, const uf_team *to)
{
    if (!from || !to || pe < 0 || pe >= from->n)
        return -1;
    for (int i = 0; i < to->n; i++)
        if (to->pes[i] == from->pes[pe])
            return i;
    return -1;
}
