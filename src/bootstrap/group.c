/* group.c - PEs of one process find each other through a uf_group: threads, or fibers of one thread.
 *
 * Each world of the group is a session of its own. A PE that creates a world joins the oldest session that
 * still lacks it and has not been given up, or starts a new one: so worlds may follow one another, live side
 * by side, and be tried again after a failure. Nothing here ever waits while it holds the lock, and whoever
 * waits looks, and calls driver->relax() between two looks: with fibers the one thread would otherwise wait
 * for itself.
 *
 * Collectives. entered[p] counts the steps that PE p has begun; a step is over when all have begun it. A part
 * lies in the slot of its step's parity. PE p writes slot s & 1 at step s + 2 only after step s + 1 was over,
 * which every PE begins only after it has read all parts of step s: no slot is overwritten while somebody
 * reads it, with no second barrier. That holds as long as nobody gives a step up; the first who does marks
 * the session broken, for all. */
#include "base/clock.h"
#include "bootstrap/transport.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    unsigned char *data;
    size_t bytes, capacity;
} slot;

typedef struct member {
    _Atomic uint64_t entered; /* release: the slot of that step is written */
    slot slots[2];
    bool joined, left; /* under the lock */
} member;

typedef struct session session;
struct session {
    session *next;
    uf_group *group;
    uint64_t id;
    int joined, members;  /* joined so far; still holding a reference */
    _Atomic int complete; /* all have joined */
    _Atomic int given_up; /* negative: creation failed with this code, broken_text says why */
    _Atomic int broken;   /* negative: no collective works any more */
    _Atomic int left;     /* how many have left */
    _Atomic int news;     /* negative: abort or death; news_pe and news_text are written before */
    int news_pe;
    char broken_text[UF_BOOTSTRAP_TEXT], news_text[UF_BOOTSTRAP_TEXT];
    member pe[];
};

struct uf_group {
    pthread_mutex_t lock; /* held for short steps only, never across a wait */
    int n_pes;
    int references;    /* the owner's and one per session */
    session *sessions; /* oldest first */
};

typedef struct group_bootstrap {
    uf_bootstrap base;
    session *session;
    uint64_t step;
    bool *missing; /* scratch for messages */
} group_bootstrap;

int uf_group_create(int n_pes, uf_group **group)
{
    if (!group)
        return uf_fail(UF_EINVAL, "uf_group_create needs a place for the group");
    if (n_pes < 1 || n_pes > 1048576)
        return uf_fail(UF_EINVAL, "a group of %d PEs was asked for: 1 to 1048576 are possible", n_pes);
    uf_group *made = calloc(1, sizeof *made);
    if (!made)
        return uf_fail(UF_ENOMEM, "no memory for a group of %d PEs", n_pes);
    pthread_mutex_init(&made->lock, NULL);
    made->n_pes = n_pes;
    made->references = 1;
    *group = made;
    return UF_OK;
}

static void group_release(uf_group *group)
{
    pthread_mutex_lock(&group->lock);
    bool last = --group->references == 0;
    pthread_mutex_unlock(&group->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&group->lock);
    free(group);
}

void uf_group_destroy(uf_group *group)
{
    if (group)
        group_release(group);
}

int uf_group_n_pes(const struct uf_group *group)
{
    return group->n_pes;
}

/* With the lock held: the session that PE `pe` joins, made if need be. */
static session *session_join(uf_group *group, int pe)
{
    session **link = &group->sessions;
    for (; *link; link = &(*link)->next)
        if (!(*link)->pe[pe].joined && !atomic_load(&(*link)->given_up))
            break;
    if (!*link) {
        session *made = calloc(1, sizeof *made + (size_t)group->n_pes * sizeof made->pe[0]);
        if (!made)
            return NULL;
        made->group = group;
        made->id = uf_bootstrap_random();
        group->references++;
        *link = made;
    }
    session *s = *link;
    s->pe[pe].joined = true;
    s->members++;
    if (++s->joined == group->n_pes)
        atomic_store_explicit(&s->complete, 1, memory_order_release);
    return s;
}

/* With the lock held: which PEs lack, as a sentence part. `step` 0: who has not joined; else who has not
 * begun it. */
static const char *missing_pes(group_bootstrap *b, uint64_t step, char *text, size_t bytes)
{
    session *s = b->session;
    for (int i = 0; i < b->base.n_pes; i++)
        b->missing[i] = step ? atomic_load(&s->pe[i].entered) < step : !s->pe[i].joined;
    return uf_bootstrap_list_pes(b->missing, b->base.n_pes, text, bytes);
}

static void session_release(session *s)
{
    uf_group *group = s->group;
    pthread_mutex_lock(&group->lock);
    bool last = --s->members == 0;
    if (last) {
        session **link = &group->sessions;
        while (*link != s)
            link = &(*link)->next;
        *link = s->next;
    }
    pthread_mutex_unlock(&group->lock);
    if (!last)
        return;
    for (int i = 0; i < group->n_pes; i++)
        for (int k = 0; k < 2; k++)
            free(s->pe[i].slots[k].data);
    free(s);
    group_release(group);
}

/* With the lock held. The first news stays. */
static void session_tell(session *s, int code, int pe, const char *text)
{
    if (atomic_load(&s->news))
        return;
    s->news_pe = pe;
    snprintf(s->news_text, sizeof s->news_text, "%s", text);
    atomic_store_explicit(&s->news, code, memory_order_release);
}

static void session_break(session *s, int code, const char *text)
{
    if (atomic_load(&s->broken))
        return;
    snprintf(s->broken_text, sizeof s->broken_text, "%s", text);
    atomic_store_explicit(&s->broken, code, memory_order_release);
}

static int group_poll(uf_bootstrap *base, int *pe)
{
    session *s = ((group_bootstrap *)base)->session;
    int news = atomic_load_explicit(&s->news, memory_order_acquire);
    if (!news)
        return UF_OK;
    if (pe)
        *pe = s->news_pe;
    return uf_error_set(news, s->news_text);
}

static bool all_entered(const session *s, int n_pes, uint64_t step)
{
    for (int i = 0; i < n_pes; i++)
        if (atomic_load_explicit(&s->pe[i].entered, memory_order_acquire) < step)
            return false;
    return true;
}

/* Puts this PE's part into its slot and begins the step. */
static int step_enter(group_bootstrap *b, const void *mine, size_t bytes)
{
    session *s = b->session;
    member *me = &s->pe[b->base.pe];
    slot *mine_at = &me->slots[b->step & 1];
    int rc = UF_OK;
    if (bytes > mine_at->capacity) {
        unsigned char *grown = realloc(mine_at->data, bytes);
        if (!grown)
            return uf_fail(UF_ENOMEM, "no memory for %zu bytes of a bootstrap exchange on PE %d", bytes, b->base.pe);
        mine_at->data = grown;
        mine_at->capacity = bytes;
    }
    if (bytes)
        memcpy(mine_at->data, mine, bytes);
    mine_at->bytes = bytes;
    /* Under the lock, so that "given up" and "everybody has come" cannot both be true of one step. */
    pthread_mutex_lock(&s->group->lock);
    int broken = atomic_load(&s->broken);
    if (broken)
        rc = uf_error_set(broken, s->broken_text);
    else
        atomic_store_explicit(&me->entered, b->step, memory_order_release);
    pthread_mutex_unlock(&s->group->lock);
    return rc;
}

/* Time is up for this step: the last look, then it is over for all. */
static int step_give_up(group_bootstrap *b)
{
    session *s = b->session;
    char pes[256], text[UF_BOOTSTRAP_TEXT];
    int rc = UF_OK;
    pthread_mutex_lock(&s->group->lock);
    if (!all_entered(s, b->base.n_pes, b->step)) {
        snprintf(text, sizeof text,
                 "%s did not come to exchange %llu of the world in time (PE %d waited); the world's setup "
                 "calls are out of step now",
                 missing_pes(b, b->step, pes, sizeof pes), (unsigned long long)b->step, b->base.pe);
        session_break(s, UF_ETIMEDOUT, text);
        rc = uf_error_set(atomic_load(&s->broken), s->broken_text);
    }
    pthread_mutex_unlock(&s->group->lock);
    return rc;
}

/* Somebody who is needed for this step has left in order: nobody may wait for him. */
static int step_check_left(group_bootstrap *b)
{
    session *s = b->session;
    char text[UF_BOOTSTRAP_TEXT];
    int rc = UF_OK;
    if (!atomic_load_explicit(&s->left, memory_order_relaxed))
        return UF_OK;
    pthread_mutex_lock(&s->group->lock);
    for (int i = 0; i < b->base.n_pes && !rc; i++) {
        if (!s->pe[i].left || atomic_load(&s->pe[i].entered) >= b->step)
            continue;
        snprintf(text, sizeof text, "PE %d has left the world while PE %d waits for it in exchange %llu", i, b->base.pe,
                 (unsigned long long)b->step);
        session_break(s, UF_EPEER, text);
        rc = uf_error_set(atomic_load(&s->broken), s->broken_text);
    }
    pthread_mutex_unlock(&s->group->lock);
    return rc;
}

static int step_wait(group_bootstrap *b, uint64_t deadline)
{
    session *s = b->session;
    const uf_driver *driver = b->base.driver;
    for (uint32_t round = 0;; round++) {
        /* First of all whether it is done: a death after the end of a step does not undo the step. */
        if (all_entered(s, b->base.n_pes, b->step))
            return UF_OK;
        int rc = group_poll(&b->base, NULL);
        if (!rc && atomic_load_explicit(&s->broken, memory_order_acquire))
            rc = uf_error_set(atomic_load(&s->broken), s->broken_text);
        if (!rc)
            rc = step_check_left(b);
        if (!rc && driver->now(driver->arg) >= deadline)
            return step_give_up(b);
        if (rc)
            return rc;
        driver->relax(driver->arg, round);
    }
}

static int group_allgather(uf_bootstrap *base, const void *mine, size_t bytes, void *all, uint64_t deadline)
{
    group_bootstrap *b = (group_bootstrap *)base;
    session *s = b->session;
    int rc = group_poll(base, NULL);
    if (rc)
        return rc;
    b->step++;
    rc = step_enter(b, mine, bytes);
    if (!rc)
        rc = step_wait(b, deadline);
    if (rc)
        return rc;
    /* Everybody sees the same sizes, so everybody decides alike. */
    size_t expected = s->pe[0].slots[b->step & 1].bytes;
    for (int i = 0; i < base->n_pes; i++) {
        size_t got = s->pe[i].slots[b->step & 1].bytes;
        if (got != expected)
            return uf_fail(UF_EMISMATCH,
                           "PE %d brings %zu bytes to exchange %llu of the world and PE 0 %zu: the PEs call "
                           "different functions, or with "
                           "different arguments",
                           i, got, (unsigned long long)b->step, expected);
    }
    for (int i = 0; i < base->n_pes && bytes; i++)
        memcpy((unsigned char *)all + (size_t)i * bytes, s->pe[i].slots[b->step & 1].data, bytes);
    return UF_OK;
}

static void group_abort(uf_bootstrap *base, int code, const char *why)
{
    session *s = ((group_bootstrap *)base)->session;
    char text[UF_BOOTSTRAP_TEXT];
    snprintf(text, sizeof text, "PE %d ended the world: %s", base->pe, why);
    pthread_mutex_lock(&s->group->lock);
    session_tell(s, code, base->pe, text);
    pthread_mutex_unlock(&s->group->lock);
}

static void group_leave(uf_bootstrap *base)
{
    session *s = ((group_bootstrap *)base)->session;
    pthread_mutex_lock(&s->group->lock);
    if (!s->pe[base->pe].left)
        atomic_fetch_add(&s->left, 1);
    s->pe[base->pe].left = true;
    pthread_mutex_unlock(&s->group->lock);
}

static int group_fd(uf_bootstrap *base)
{
    (void)base;
    return -1;
}

static void group_destroy(uf_bootstrap *base)
{
    group_bootstrap *b = (group_bootstrap *)base;
    session *s = b->session;
    char text[64];
    pthread_mutex_lock(&s->group->lock);
    if (!s->pe[base->pe].left && atomic_load(&s->complete)) {
        /* The counterpart of a connection that closes without a leave. */
        snprintf(text, sizeof text, "PE %d ended without leaving the world", base->pe);
        s->pe[base->pe].left = true;
        session_tell(s, UF_EPEER, base->pe, text);
    }
    pthread_mutex_unlock(&s->group->lock);
    session_release(s);
    free(b->missing);
    free(b);
}

static const uf_bootstrap_ops group_ops = {
    .destroy = group_destroy,
    .allgather = group_allgather,
    .abort = group_abort,
    .leave = group_leave,
    .poll = group_poll,
    .fd = group_fd,
};

/* Waits until all have joined; the first whose time is up gives the session up for all that are in it. */
static int join_wait(group_bootstrap *b, uint64_t deadline)
{
    session *s = b->session;
    const uf_driver *driver = b->base.driver;
    char pes[256];
    for (uint32_t round = 0; !atomic_load_explicit(&s->complete, memory_order_acquire); round++) {
        pthread_mutex_lock(&s->group->lock);
        if (!atomic_load(&s->complete) && !atomic_load(&s->given_up) && driver->now(driver->arg) >= deadline) {
            snprintf(s->broken_text, sizeof s->broken_text,
                     "%s of %d did not come to create the world in time (PE %d waited %llu ms)",
                     missing_pes(b, 0, pes, sizeof pes), b->base.n_pes, b->base.pe,
                     (unsigned long long)(b->base.timeout_ns / 1000000));
            atomic_store(&s->given_up, UF_ETIMEDOUT);
        }
        int given_up = atomic_load(&s->given_up);
        pthread_mutex_unlock(&s->group->lock);
        if (given_up)
            return uf_error_set(given_up, s->broken_text);
        driver->relax(driver->arg, round);
    }
    return UF_OK;
}

int uf_bootstrap_group_create(const uf_bootstrap_params *params, uf_bootstrap **out)
{
    uf_group *group = params->group;
    if (group->n_pes != params->n_pes)
        return uf_fail(UF_EMISMATCH, "PE %d asks for a world of %d PEs, but its group was made for %d", params->pe, params->n_pes,
                       group->n_pes);
    group_bootstrap *b = calloc(1, sizeof *b);
    bool *missing = calloc((size_t)params->n_pes, sizeof *missing);
    session *s = NULL;
    if (b && missing) {
        pthread_mutex_lock(&group->lock);
        s = session_join(group, params->pe);
        pthread_mutex_unlock(&group->lock);
    }
    if (!s) {
        free(b);
        free(missing);
        return uf_fail(UF_ENOMEM, "no memory to join %d PEs of this process", params->n_pes);
    }
    b->base = (uf_bootstrap){.ops = &group_ops,
                             .driver = params->driver,
                             .pe = params->pe,
                             .n_pes = params->n_pes,
                             .timeout_ns = params->timeout_ns,
                             .id = s->id};
    b->session = s;
    b->missing = missing;
    int rc = join_wait(b, uf_deadline(uf_bootstrap_now(&b->base), params->timeout_ns));
    if (rc) {
        group_destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return UF_OK;
}
