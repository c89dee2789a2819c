/* signal.c - signals as seen by their owner: applied by the engine, waited for by the program.
 *
 * A signal word is written by mapped peers (rma.c) and by this PE's engine (uf_signal_apply) with the same atomic instructions, so both
 * may update one word. The waiter's acquire load pairs with the release of whoever wrote: what the signal covers is readable then.
 * Waits look at the word first, then make progress for the whole PE, and read the clock only now and then. */
#include "base/error.h"
#include "world/gpu.h"
#include "world/world.h"
#include <stdio.h>

/* ---------------------------------------------------------------- applying */

int uf_signal_apply(void *world, const uf_order_signal *s, uint64_t *old)
{
    uf_world *w = world;
    void *word;
    if (s->indexed)
        word = s->address < w->n_signals ? &w->signals[s->address] : NULL;
    else
        word = s->width == 4 || s->width == 8 ? uf_memory_resolve(w, s->address, s->width) : NULL;
    if (!word || (uintptr_t)word % s->width)
        return uf_fail(
            UF_ERANGE,
            "PE %d: a signal or atomic from PE %u names %s 0x%llx, which is no %u-byte word of this PE's symmetric memory", w->pe,
            s->flow, s->indexed ? "index" : "address", (unsigned long long)s->address, s->width);
    uint64_t before = uf_atomic_apply(word, s->op, s->width, s->operand, s->compare);
    if (old)
        *old = before;
    atomic_store_explicit(&w->signals_applied, atomic_load_explicit(&w->signals_applied, memory_order_relaxed) + 1,
                          memory_order_relaxed); /* one writer: the holder of the endpoint's lock */
    return UF_OK;
}

/* ---------------------------------------------------------------- comparing */

static inline bool holds(uint64_t seen, int cmp, uint64_t value)
{
    switch (cmp) {
    case UF_EQ:
        return seen == value;
    case UF_NE:
        return seen != value;
    case UF_GT:
        return seen > value;
    case UF_GE:
        return seen >= value;
    case UF_LT:
        return seen < value;
    default:
        return seen <= value;
    }
}

static const char *cmp_text(int cmp)
{
    static const char *const text[] = {"==", "!=", ">", ">=", "<", "<="};
    return text[cmp];
}

uint64_t uf_signal_fetch(const uint64_t *sig)
{
    return __atomic_load_n(sig, __ATOMIC_ACQUIRE);
}

static int check(uf_world *w, const char *call, const uint64_t *sig, int cmp)
{
    if (!w || !sig)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !w ? "world" : "sig");
    if ((uintptr_t)sig & 7)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument sig: %p is not aligned to 8 bytes", call, w->pe, (const void *)sig);
    if (cmp < UF_EQ || cmp > UF_LE)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument cmp is %d, not one of UF_EQ to UF_LE", call, w->pe, cmp);
    return UF_OK;
}

/* ---------------------------------------------------------------- one word */

static int timed_out(uf_world *w, const uint64_t *sig, int cmp, uint64_t value, int pe, uint64_t timeout_ns)
{
    char how[256] = "", from[32] = "";
    if (pe >= 0) {
        snprintf(from, sizeof from, " from PE %d", pe);
        how[0] = ':';
        how[1] = ' ';
        uf_engine_describe(w->engine, (uint32_t)pe, how + 2, sizeof how - 2);
    }
    return uf_fail(UF_ETIMEDOUT,
                   "PE %d: a wait for a signal%s ran out after %llu.%03llu ms: the word at %p is %llu, awaited was %s %llu%s",
                   w->pe, from, (unsigned long long)(timeout_ns / 1000000), (unsigned long long)(timeout_ns / 1000 % 1000),
                   (const void *)sig, (unsigned long long)uf_signal_fetch(sig), cmp_text(cmp), (unsigned long long)value, how);
}

/* Looks at the word alone, `looks` times: that costs less than one turn through the engine or the driver, and the answer of a near peer is
 * there within a few hundred. The comparison that nearly all waits use has a loop of its own. */
static inline bool look(const uint64_t *sig, int cmp, uint64_t value, uint32_t looks)
{
    if (cmp == UF_GE) {
        do
            if (uf_signal_fetch(sig) >= value)
                return true;
        while (--looks > 0);
        return false;
    }
    do
        if (holds(uf_signal_fetch(sig), cmp, value))
            return true;
    while (--looks > 0);
    return false;
}

/* A word in GPU memory, which the driver reads for us. */
static int wait_gpu_word(uf_world *w, const uint64_t *sig, int cmp, uint64_t value, uint64_t timeout_ns)
{
    uint64_t deadline = uf_world_deadline(w, timeout_ns), seen = 0;
    for (uint32_t round = 0;; round++) {
        int rc = uf_gpu_get(w, &seen, sig, sizeof seen);
        if (rc || holds(seen, cmp, value))
            return rc;
        /* Each look takes microseconds, so the clock is read every time. */
        rc = uf_world_wait_step(w, round | 63, deadline);
        if (!rc && timeout_ns == 0)
            rc = UF_ETIMEDOUT;
        if (rc == UF_ETIMEDOUT)
            return uf_fail(
                rc, "PE %d: a wait for a signal in GPU memory ran out after %llu ms: the word at %p is %llu, awaited was %s %llu",
                w->pe, (unsigned long long)(timeout_ns / 1000000), (const void *)sig, (unsigned long long)seen, cmp_text(cmp),
                (unsigned long long)value);
        if (rc)
            return rc;
    }
}

enum { FIRST_ROUNDS = 32 }; /* before wait_step's first look at the deadline */

static int wait_word(uf_world *w, const uint64_t *sig, int cmp, uint64_t value, int pe, uint64_t timeout_ns)
{
    if (uf_gpu_is(w, sig))
        return wait_gpu_word(w, sig, cmp, value, timeout_ns);
    if (look(sig, cmp, value, w->first_looks))
        return UF_OK;
    uint64_t deadline = UINT64_MAX;
    for (uint32_t round = 0;; round++) {
        /* A wait that is over soon never reads the clock. */
        if (round == FIRST_ROUNDS)
            deadline = uf_world_deadline(w, timeout_ns);
        int rc = uf_world_wait_step(w, round, deadline);
        if (look(sig, cmp, value, w->looks))
            return UF_OK;
        if (!rc && timeout_ns == 0)
            rc = uf_world_check(w) ? uf_world_check(w) : UF_ETIMEDOUT;
        if (rc)
            return rc == UF_ETIMEDOUT ? timed_out(w, sig, cmp, value, pe, timeout_ns) : rc;
    }
}

int uf_wait(uf_world *w, const uint64_t *sig, int cmp, uint64_t value, uint64_t timeout_ns)
{
    int rc = check(w, "uf_wait", sig, cmp);
    return rc ? rc : wait_word(w, sig, cmp, value, -1, timeout_ns);
}

int uf_wait_from(uf_world *w, const uint64_t *sig, int cmp, uint64_t value, int pe, uint64_t timeout_ns)
{
    int rc = check(w, "uf_wait_from", sig, cmp);
    if (!rc && !uf_world_check_pe(w, pe))
        rc =
            uf_fail(UF_ERANGE, "uf_wait_from on PE %d: argument pe: there is no PE %d in a world of %d PEs", w->pe, pe, w->n_pes);
    return rc ? rc : wait_word(w, sig, cmp, value, pe, timeout_ns);
}

int uf_progress(uf_world *w)
{
    if (!w)
        return uf_fail(UF_EINVAL, "uf_progress: argument world is NULL");
    if (uf_world_steps(w))
        uf_engine_poll(w->engine);
    return uf_world_check(w);
}

int uf_test(uf_world *w, const uint64_t *sig, int cmp, uint64_t value)
{
    int rc = check(w, "uf_test", sig, cmp);
    uint64_t seen = 0;
    if (!rc && uf_gpu_is(w, sig)) {
        if ((rc = uf_progress(w)) || (rc = uf_gpu_get(w, &seen, sig, sizeof seen)) || holds(seen, cmp, value))
            return rc;
        return uf_fail(UF_EAGAIN, "PE %d: the signal word in GPU memory at %p is %llu, which does not compare %s %llu yet", w->pe,
                       (const void *)sig, (unsigned long long)seen, cmp_text(cmp), (unsigned long long)value);
    }
    if (rc || look(sig, cmp, value, 1))
        return rc;
    rc = uf_progress(w);
    if (rc || look(sig, cmp, value, 1))
        return rc;
    return uf_fail(UF_EAGAIN, "PE %d: the signal word at %p does not compare %s %llu yet", w->pe, (const void *)sig,
                   cmp_text(cmp), (unsigned long long)value);
}

/* ---------------------------------------------------------------- many words */

static int check_list(uf_world *w, const char *call, const uf_wait_list *l)
{
    if (!w || !l || (l->n && !l->sigs))
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !w ? "world" : !l ? "list" : "list.sigs");
    for (size_t i = 0; i < l->n; i++) {
        int rc = l->skip && l->skip[i] ? UF_OK : check(w, call, l->sigs[i], l->cmp);
        if (!rc && !(l->skip && l->skip[i]) && uf_gpu_is(w, l->sigs[i]))
            rc = uf_gpu_refuse(w, call, "list", l->sigs[i]);
        if (rc)
            return rc;
    }
    return UF_OK;
}

/* Looks at all entries: how many count, how many hold; the first `room` that hold go to `indexes`, the last that does not to *missing. */
static size_t scan(const uf_wait_list *l, size_t room, size_t *indexes, size_t *counted, size_t *missing)
{
    size_t held = 0;
    *counted = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->skip && l->skip[i])
            continue;
        ++*counted;
        if (!holds(uf_signal_fetch(l->sigs[i]), l->cmp, l->values ? l->values[i] : l->value)) {
            *missing = i;
            continue;
        }
        if (held < room)
            indexes[held] = i;
        held++;
    }
    return held;
}

/* Waits until at least `wanted` entries hold (SIZE_MAX: all that count). */
static int wait_list(uf_world *w, const char *call, const uf_wait_list *l, size_t wanted, size_t room, size_t *indexes,
                     size_t *held, uint64_t timeout_ns)
{
    int rc = check_list(w, call, l);
    if (rc)
        return rc;
    uint64_t deadline = uf_world_deadline(w, timeout_ns);
    for (uint32_t round = 0;; round++) {
        size_t counted, missing = 0;
        *held = scan(l, room, indexes, &counted, &missing);
        if (counted == 0 || *held >= (wanted < counted ? wanted : counted))
            return UF_OK;
        if (!rc && timeout_ns == 0 && round > 0)
            rc = UF_ETIMEDOUT;
        if (rc == UF_ETIMEDOUT)
            return uf_fail(rc, "PE %d: %s ran out after %llu ms: %zu of %zu signals hold; entry %zu is %llu, awaited was %s %llu",
                           w->pe, call, (unsigned long long)(timeout_ns / 1000000), *held, counted, missing,
                           (unsigned long long)uf_signal_fetch(l->sigs[missing]), cmp_text(l->cmp),
                           (unsigned long long)(l->values ? l->values[missing] : l->value));
        if (rc)
            return rc;
        rc = uf_world_wait_step(w, round, deadline);
    }
}

int uf_wait_any(uf_world *w, const uf_wait_list *list, size_t *index, uint64_t timeout_ns)
{
    size_t held, first;
    if (!index)
        return uf_fail(UF_EINVAL, "uf_wait_any: argument index is NULL");
    int rc = wait_list(w, "uf_wait_any", list, 1, 1, &first, &held, timeout_ns);
    if (!rc)
        *index = held ? first : list->n;
    return rc;
}

int uf_wait_all(uf_world *w, const uf_wait_list *list, uint64_t timeout_ns)
{
    size_t held;
    return wait_list(w, "uf_wait_all", list, SIZE_MAX, 0, NULL, &held, timeout_ns);
}

int uf_wait_some(uf_world *w, const uf_wait_list *list, size_t *indexes, size_t *count, uint64_t timeout_ns)
{
    size_t held;
    if (!indexes || !count)
        return uf_fail(UF_EINVAL, "uf_wait_some: argument %s is NULL", !indexes ? "indexes" : "count");
    int rc = wait_list(w, "uf_wait_some", list, 1, list ? list->n : 0, indexes, &held, timeout_ns);
    if (!rc)
        *count = held;
    return rc;
}
