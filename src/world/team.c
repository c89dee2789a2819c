/* team.c - teams, barrier and sync.
 *
 * sync is dissemination: in round k each member tells the one 2^k further and waits to be told, by one bare counted signal; log2(n) rounds,
 * no member is special, any n. Creating a team agrees on a number (one that is free on all its members), takes it, clears the
 * number's words while nobody can write them, and lets nobody start before all have; where another thread's creation was quicker
 * on some PE, all give it back and try another. A collective that fails half way leaves counts that fit no later one: it
 * ends its team, and the team's number is not used again. */
#include "world/team.h"
#include "base/error.h"
#include <stdlib.h>

static size_t scratch_bytes(int n_pes)
{
    size_t least = (size_t)n_pes * UF_TEAM_SMALL;
    return least > 65536 ? least : 65536;
}

static size_t words_of_team(int n_pes)
{
    return UF_SYNC_ROUNDS + (size_t)UF_TEAM_PURPOSES * (size_t)n_pes;
}

size_t uf_teams_words(int n_pes)
{
    return UF_MAX_TEAMS * words_of_team(n_pes);
}

int uf_team_check(uf_team *t, const char *call)
{
    if (!t)
        return uf_fail(UF_EINVAL, "%s: argument team is NULL", call);
    int rc = uf_world_check(t->world);
    if (!rc && t->failed)
        rc = uf_fail(t->failed,
                     "PE %d: %s of a team of %d PEs: an earlier collective of it failed half way, it can only be destroyed",
                     t->world->pe, call, t->n);
    return rc;
}

/* Notes an error that ends the team, and returns it. */
static int ended(uf_team *t, int rc)
{
    if (rc && !t->failed)
        t->failed = rc;
    return rc;
}

static unsigned long long timeout_ms(const uf_team *t)
{
    return (unsigned long long)(t->world->timeout_ns / 1000000);
}

/* ---------------------------------------------------------------- sync */

static int sync_round(uf_team *t, const char *call, int round, int distance)
{
    int to = t->pes[(t->me + distance) % t->n], from = t->pes[(t->me - distance + t->n) % t->n];
    int rc = uf_signal(t->ctx, &t->sync_words[round], UF_SIGNAL_ADD, 1, to, UF_WEAK);
    if (!rc)
        rc = uf_wait_from(t->world, &t->sync_words[round], UF_GE, t->syncs, from, t->world->timeout_ns);
    if (rc == UF_ETIMEDOUT)
        rc = uf_fail(
            rc, "PE %d: %s of a team of %d PEs: PE %d, or one that it waits for, has not come within %llu ms (UNFENCE_TIMEOUT)",
            t->world->pe, call, t->n, from, timeout_ms(t));
    return rc;
}

int uf_team_sync(uf_team *t, const char *call)
{
    int rc = UF_OK;
    t->syncs++;
    for (int round = 0, distance = 1; distance < t->n && !rc; round++, distance *= 2)
        rc = sync_round(t, call, round, distance);
    return ended(t, rc);
}

int uf_sync(uf_team *t)
{
    int rc = uf_team_check(t, "uf_sync");
    return rc ? rc : uf_team_sync(t, "uf_sync");
}

static int complete_all(uf_world *w)
{
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    int rc = UF_OK;
    pthread_mutex_lock(&w->contexts_lock);
    for (uf_ctx *c = w->contexts; c && !rc; c = c->next)
        rc = uf_ctx_complete(c, -1, true, deadline);
    pthread_mutex_unlock(&w->contexts_lock);
    return rc;
}

int uf_barrier(uf_team *t)
{
    int rc = uf_team_check(t, "uf_barrier");
    if (!rc)
        rc = ended(t, complete_all(t->world)); /* the others wait for us: not to come is to fail them */
    return rc ? rc : uf_team_sync(t, "uf_barrier");
}

/* ---------------------------------------------------------------- exchange between members */

int uf_team_send(uf_team *t, uf_team_purpose purpose, int to, void *dst, const void *src, size_t bytes, unsigned flags)
{
    return ended(
        t, uf_put_signal_nbi(t->ctx, dst, src, bytes, &t->arrivals[purpose].words[t->me], UF_SIGNAL_ADD, 1, t->pes[to], flags));
}

int uf_team_receive(uf_team *t, uf_team_purpose purpose, const char *call, int from)
{
    const uint64_t *word = &t->arrivals[purpose].words[from];
    uint64_t expected = ++t->arrivals[purpose].expected[from];
    int rc = uf_wait_from(t->world, word, UF_GE, expected, t->pes[from], t->world->timeout_ns);
    if (rc == UF_ETIMEDOUT)
        rc = uf_fail(
            rc,
            "PE %d: %s of a team of %d PEs: PE %d is late: %llu of %llu parts have come from it within %llu ms (UNFENCE_TIMEOUT)",
            t->world->pe, call, t->n, t->pes[from], (unsigned long long)uf_signal_fetch(word), (unsigned long long)expected,
            timeout_ms(t));
    return ended(t, rc);
}

int uf_team_flush(uf_team *t)
{
    return ended(t, uf_flush(t->ctx));
}

int uf_team_gather_small(uf_team *t, const char *call, const void *mine, size_t bytes, unsigned char *all)
{
    int rc = uf_team_sync(t, call); /* the slots are free: whoever is here has read the last ones */
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_send(t, UF_TEAM_PART, (t->me + i) % t->n, t->scratch + (size_t)t->me * t->slot, mine, bytes, UF_WEAK);
    memcpy(all + (size_t)t->me * UF_TEAM_SMALL, mine, bytes);
    for (int i = 1; i < t->n && !rc; i++) {
        int from = (t->me - i + t->n) % t->n;
        rc = uf_team_receive(t, UF_TEAM_PART, call, from);
        if (!rc)
            memcpy(all + (size_t)from * UF_TEAM_SMALL, t->scratch + (size_t)from * t->slot, bytes);
    }
    return rc ? rc : uf_team_flush(t);
}

/* ---------------------------------------------------------------- create and destroy */

static void free_team(uf_team *t)
{
    free(t->pes);
    free(t->arrivals[0].expected);
    free(t);
}

/* A team's record for number `id`, not yet in use. `pes` are world numbers. */
static uf_team *new_team(uf_world *w, int id, const int *pes, int n)
{
    const uf_teams *all = w->teams;
    uf_team *t = calloc(1, sizeof *t);
    int *list = malloc(sizeof *list * (size_t)n);
    uint64_t *expected = calloc((size_t)n * UF_TEAM_PURPOSES, sizeof *expected);
    if (!t || !list || !expected) {
        free(t);
        free(list);
        free(expected);
        uf_fail(UF_ENOMEM, "PE %d: no memory for a team of %d PEs", w->pe, n);
        return NULL;
    }
    *t = (uf_team){.world = w, .id = id, .n = n, .me = -1, .pes = list};
    for (int i = 0; i < n; i++) {
        list[i] = pes[i];
        if (pes[i] == w->pe)
            t->me = i;
    }
    t->sync_words = all->words + (size_t)id * words_of_team(w->n_pes);
    for (size_t p = 0; p < UF_TEAM_PURPOSES; p++) {
        t->arrivals[p].words = t->sync_words + UF_SYNC_ROUNDS + p * (size_t)w->n_pes;
        t->arrivals[p].expected = expected + p * (size_t)n;
    }
    t->scratch = all->scratch + (size_t)id * all->scratch_bytes;
    t->slot = all->scratch_bytes / (size_t)n / UF_TEAM_SMALL * UF_TEAM_SMALL;
    t->settled = w->fabric && w->fabric->caps.duplicates ? UF_SETTLED : UF_WEAK;
    return t;
}

/* Takes the number: UF_EAGAIN if another thread did. */
static int take_id(uf_teams *all, uf_team *t)
{
    int rc = UF_EAGAIN;
    pthread_mutex_lock(&all->lock);
    if (all->free_ids >> t->id & 1) {
        all->free_ids &= ~(1ull << t->id);
        t->next = all->all;
        all->all = t;
        rc = UF_OK;
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

/* Ends the record. A number whose words may still be written to is not given back. */
static void drop_team(uf_team *t)
{
    uf_teams *all = t->world->teams;
    pthread_mutex_lock(&all->lock);
    if (!t->failed)
        all->free_ids |= 1ull << t->id;
    for (uf_team **at = &all->all; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    pthread_mutex_unlock(&all->lock);
    free_team(t);
}

/* Makes this PE's part of team `id`, ready for others' signals. UF_EAGAIN: the number is taken here. */
static int make_team(uf_world *w, int id, const int *pes, int n, uf_team **team)
{
    uf_team *t = new_team(w, id, pes, n);
    if (!t)
        return UF_ENOMEM;
    int rc = take_id(w->teams, t);
    if (rc) {
        free_team(t);
        return rc;
    }
    /* Words of an earlier team of this number: all its members have taken everything out of them. */
    for (size_t i = 0; i < words_of_team(w->n_pes); i++)
        __atomic_store_n(&t->sync_words[i], 0, __ATOMIC_RELAXED);
    rc = uf_ctx_create(w, NULL, &t->ctx);
    if (rc)
        drop_team(t);
    else
        *team = t;
    return rc;
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

/* This thread's sentence, kept while others are made. */
typedef struct sentence {
    char text[UF_ERROR_BYTES];
} sentence;

static void keep_sentence(sentence *s)
{
    strncpy(s->text, uf_error_message(), sizeof s->text - 1);
    s->text[sizeof s->text - 1] = 0;
}

/* Everybody's proposal: the numbers that are free on all members to be in *common. All members of the parent take part, also with a list that
 * this one refuses (rc): nobody is left waiting. */
static int agree(uf_team *parent, const int *pes, int n, int rc, unsigned char *all, uint64_t *common)
{
    uf_world *w = parent->world;
    sentence why;
    keep_sentence(&why);
    pthread_mutex_lock(&w->teams->lock);
    proposal mine = {w->teams->free_ids, rc ? 0 : hash_list(pes, n), n, rc};
    pthread_mutex_unlock(&w->teams->lock);
    int failed = uf_team_gather_small(parent, "uf_team_create", &mine, sizeof mine, all);
    if (rc)
        return uf_error_set(rc, why.text);
    for (int i = 0; i < parent->n && !failed; i++) {
        proposal p;
        memcpy(&p, all + (size_t)i * UF_TEAM_SMALL, sizeof p);
        if (p.rc)
            failed = uf_fail((int)p.rc, "PE %d: uf_team_create was refused on PE %d, which knows why", w->pe, parent->pes[i]);
        else if (p.hash != mine.hash || p.n != mine.n)
            failed = uf_fail(UF_EMISMATCH, "PE %d: uf_team_create: PE %d gave another list of PEs", w->pe, parent->pes[i]);
    }
    *common = UINT64_MAX;
    for (int i = 0; i < n && !failed; i++) {
        proposal p;
        memcpy(&p, all + (size_t)pes[i] * UF_TEAM_SMALL, sizeof p);
        *common &= p.free_ids;
    }
    return failed;
}

/* Tells how making the team went here: UF_OK if it went well everywhere. Nobody signals a member before it has cleared its words. */
static int settle(uf_team *parent, int rc, unsigned char *all)
{
    sentence why;
    keep_sentence(&why);
    int64_t mine = rc;
    int failed = uf_team_gather_small(parent, "uf_team_create", &mine, sizeof mine, all), other = UF_OK;
    if (failed || (rc && rc != UF_EAGAIN))
        return failed ? failed : uf_error_set(rc, why.text);
    for (int i = 0; i < parent->n && (!other || other == UF_EAGAIN); i++) {
        int64_t theirs;
        memcpy(&theirs, all + (size_t)i * UF_TEAM_SMALL, sizeof theirs);
        if (theirs == UF_EAGAIN || !theirs)
            other = theirs ? UF_EAGAIN : other;
        else
            other =
                uf_fail((int)theirs, "PE %d: uf_team_create failed on PE %d, which knows why", parent->world->pe, parent->pes[i]);
    }
    return other;
}

/* The number to try: parents begin their search at different places, so that two creations at once seldom want the same. */
static int choose_id(const uf_team *parent, int attempt, uint64_t common)
{
    int start = (parent->id * 11 + attempt * 17) % UF_MAX_TEAMS;
    uint64_t turned = start ? common >> start | common << (UF_MAX_TEAMS - start) : common;
    return (__builtin_ctzll(turned) + start) % UF_MAX_TEAMS;
}

/* One attempt. `list` are world numbers of the members, `member` whether we are one. UF_EAGAIN: all are to try again. */
static int try_team(uf_team *parent, int attempt, const int *list, int n, bool member, uint64_t common, unsigned char *all,
                    uf_team **team)
{
    uf_team *made = NULL;
    int rc = member ? make_team(parent->world, choose_id(parent, attempt, common), list, n, &made) : UF_OK;
    rc = settle(parent, rc, all);
    if (rc && made) {
        uf_ctx_destroy(made->ctx);
        drop_team(made);
    } else if (!rc)
        *team = made;
    return rc;
}

static int create(uf_team *parent, const int *pes, int n, int *list, unsigned char *all, uf_team **team)
{
    uf_world *w = parent->world;
    int rc = UF_EAGAIN, checked = check_list(parent, pes, n);
    for (int attempt = 0; rc == UF_EAGAIN; attempt++) {
        uint64_t common;
        rc = agree(parent, pes, n, checked, all, &common);
        if (rc)
            return rc;
        if (!common || attempt == UF_MAX_TEAMS)
            return uf_fail(UF_ENOMEM,
                           "PE %d: uf_team_create: no team number is free on all %d PEs; at most %d teams exist at once", w->pe,
                           n, UF_MAX_TEAMS);
        bool member = false;
        for (int i = 0; i < n; i++) {
            list[i] = parent->pes[pes[i]];
            member |= list[i] == w->pe;
        }
        rc = try_team(parent, attempt, list, n, member, common, all, team);
    }
    return rc;
}

int uf_team_create(uf_team *parent, const int *pes, int n, uf_team **team)
{
    int rc = uf_team_check(parent, "uf_team_create");
    if (rc)
        return rc;
    if (!team)
        return uf_fail(UF_EINVAL, "uf_team_create: argument team is NULL");
    unsigned char *all = malloc((size_t)parent->n * UF_TEAM_SMALL);
    int *list = malloc(sizeof *list * (size_t)parent->n);
    if (all && list)
        rc = create(parent, pes, n, list, all, team);
    else
        rc = uf_fail(UF_ENOMEM, "PE %d: uf_team_create: no memory for the records of %d PEs", parent->world->pe, parent->n);
    free(all);
    free(list);
    return rc;
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

int uf_team_destroy(uf_team *t)
{
    if (!t)
        return UF_OK;
    if (t == t->world->teams->world_team)
        return uf_fail(UF_EINVAL, "uf_team_destroy: argument team is the team of all PEs, which lives as long as the world");
    int rc = t->failed ? UF_OK : uf_world_check(t->world);
    if (!rc && !t->failed)
        rc = uf_team_sync(t, "uf_team_destroy");
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
    pthread_mutex_init(&all->lock, NULL);
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
    if (w->teams)
        pthread_mutex_destroy(&w->teams->lock);
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
