/* wait.cuh - waits and tests of words of this PE's own memory.
 *
 * Part of device.cuh. Words are read with acquire order at system scope (a load and an invalidation of this SM's L1, no fence), so
 * that when a comparison holds everything is readable that happened before the release of the value seen; in warp and block
 * scope for all of their threads. One thread polls. A wait that is not answered within 64 turns (some 20 us) leaves the L1, in
 * which others of the SM work, alone: it reads relaxed, and once more with acquire when the comparison holds. It looks at the clock
 * every 256 turns and at the world's status (in host memory, so a microsecond over the bus) every 4096 and before it gives up: a
 * wait that is answered soon pays for neither.
 *
 * Timeouts are nanoseconds: 0 looks once; UFD_WORLD_TIMEOUT is the world's; UF_FOREVER waits until the world ends. Results: UF_OK,
 * UF_ETIMEDOUT (the word, its value and the one wanted are in the world's error record), the code that ended the world. */
#ifndef UNFENCE_DEVICE_WAIT_CUH
#define UNFENCE_DEVICE_WAIT_CUH

#include "world.cuh"

#define UFD_WORLD_TIMEOUT 0xfffffffffffffffeull

UFD_FN bool ufd_holds(uint64_t have, int cmp, uint64_t want)
{
    switch (cmp) {
    case UF_EQ:
        return have == want;
    case UF_NE:
        return have != want;
    case UF_GT:
        return have > want;
    case UF_GE:
        return have >= want;
    case UF_LT:
        return have < want;
    default:
        return have <= want;
    }
}

/* How long a waiter has been at it. */
struct ufd_patience {
    uint64_t timeout_ns, deadline;
    uint32_t turns;
};

UFD_FN ufd_patience ufd_patience_of(const ufd_world *w, uint64_t timeout_ns)
{
    ufd_patience p = {timeout_ns == UFD_WORLD_TIMEOUT ? ufd_fixed(&w->timeout_ns) : timeout_ns, 0, 0};
    return p;
}

UFD_FN int ufd_patience_look(const ufd_world *w, ufd_patience *p)
{
    uint64_t now = ufd_ptx_ns();
    if (p->deadline == 0)
        p->deadline = p->timeout_ns > UF_FOREVER - now ? UF_FOREVER : now + p->timeout_ns;
    if (now < p->deadline && p->turns % 4096 != 0)
        return UF_OK;
    int32_t status = ufd_ptx_load_status(w->status);
    if (status != UF_OK)
        return status;
    return now < p->deadline ? UF_OK : UF_ETIMEDOUT;
}

/* After each look that found nothing: UF_OK to look again, else why not. */
UFD_FN int ufd_patience_turn(const ufd_world *w, ufd_patience *p)
{
    if (p->timeout_ns == 0)
        return UF_ETIMEDOUT;
    if (++p->turns % 256 != 0)
        return UF_OK;
    return ufd_patience_look(w, p);
}

/* How a word is read by a waiter that has been at it for `turns`, and read again when the comparison holds. */
struct ufd_acquiring {
    UFD_FN uint64_t load(const uint64_t *p, uint32_t turns)
    {
        return turns < 64 ? ufd_ptx_load_acquire(p) : ufd_ptx_load_relaxed(p);
    }
    UFD_FN uint64_t confirm(const uint64_t *p, uint64_t seen, uint32_t turns)
    {
        return turns < 64 ? seen : ufd_ptx_load_acquire(p);
    }
};
struct ufd_ordering_nothing {
    UFD_FN uint64_t load(const uint64_t *p, uint32_t turns)
    {
        return ufd_ptx_load_relaxed(p);
    }
    UFD_FN uint64_t confirm(const uint64_t *p, uint64_t seen, uint32_t turns)
    {
        return seen;
    }
};

/* By the calling thread. `*seen` is the value that held, or the last one. */
template <class L>
UFD_FN int ufd_wait_here(const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value, ufd_patience *patience, uint64_t *seen)
{
#ifdef UFD_CHECK
    if ((uint64_t)sig % 8 != 0 || cmp < UF_EQ || cmp > UF_LE)
        return ufd_fail(w, UF_EINVAL, UFD_IN_WAIT, -1, sig, (uint64_t)cmp, value);
    if (!ufd_is_symmetric(w, sig, 8))
        return ufd_fail(w, UF_ERANGE, UFD_IN_WAIT, -1, sig, 0, value);
#endif
    for (;;) {
        *seen = L::load(sig, patience->turns); /* pairs with the release of ufd_signal and ufd_put_signal */
        if (ufd_holds(*seen, cmp, value)) {
            *seen = L::confirm(sig, *seen, patience->turns);
            if (ufd_holds(*seen, cmp, value))
                return UF_OK;
        }
        int rc = ufd_patience_turn(w, patience);
        if (rc)
            return rc;
    }
}

/* The same, and a wait that gave up is recorded. */
UFD_FN int ufd_wait_recorded(const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value, ufd_patience *patience)
{
    uint64_t seen = 0;
    int rc = ufd_wait_here<ufd_acquiring>(w, sig, cmp, value, patience, &seen);
    if (rc == UF_ETIMEDOUT && patience->timeout_ns != 0)
        ufd_fail(w, rc, UFD_IN_WAIT, -1, sig, seen, value);
    return rc;
}

template <class S> UFD_FN int ufd_wait_in(const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value, uint64_t timeout_ns)
{
    int rc = UF_OK;
    ufd_patience patience = ufd_patience_of(w, timeout_ns);
    if (S::rank() == 0)
        rc = ufd_wait_recorded(w, sig, cmp, value, &patience);
    return ufd_worst<S>(rc);
}

/* One look: UF_OK or UF_EAGAIN. */
template <class S> UFD_FN int ufd_test_in(const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value)
{
    int rc = ufd_wait_in<S>(w, sig, cmp, value, 0);
    return rc == UF_ETIMEDOUT ? UF_EAGAIN : rc;
}

UFD_FN bool ufd_list_skips(const ufd_wait_list &list, uint64_t i)
{
    return list.skip && list.skip[i];
}

UFD_FN uint64_t ufd_list_value(const ufd_wait_list &list, uint64_t i)
{
    return list.values ? list.values[i] : list.value;
}

/* Until every word holds. The threads of the scope share the words out. */
template <class S> UFD_FN int ufd_wait_all_in(const ufd_world *w, const ufd_wait_list &list, uint64_t timeout_ns)
{
    int rc = UF_OK;
    ufd_patience patience = ufd_patience_of(w, timeout_ns);
    for (uint64_t i = S::rank(); i < list.n && rc == UF_OK; i += S::size())
        if (!ufd_list_skips(list, i))
            rc = ufd_wait_recorded(w, list.sigs[i], list.cmp, ufd_list_value(list, i), &patience);
    return ufd_worst<S>(rc);
}

/* Until one of fewer than 2^32 - 1 words holds; *index is the first found, or n if all are skipped. */
template <class S> UFD_FN int ufd_wait_any_in(const ufd_world *w, const ufd_wait_list &list, uint32_t *index, uint64_t timeout_ns)
{
    const uint32_t none = 0xffffffffu;
    ufd_patience patience = ufd_patience_of(w, timeout_ns);
    for (;;) {
        uint32_t found = none;
        bool open = false;
        for (uint32_t i = S::rank(); i < list.n && found == none; i += S::size()) {
            if (ufd_list_skips(list, i))
                continue;
            open = true;
            if (ufd_holds(ufd_ptx_load_acquire(list.sigs[i]), list.cmp, ufd_list_value(list, i)))
                found = i;
        }
        if (S::any(found != none)) {
            *index = S::least(found);
            return UF_OK;
        }
        if (!S::any(open)) {
            *index = (uint32_t)list.n;
            return UF_OK;
        }
        int rc = ufd_worst<S>(S::rank() == 0 ? ufd_patience_turn(w, &patience) : UF_OK);
        if (rc)
            return rc;
    }
}

/* The word's value with acquire order. */
UFD_FN uint64_t ufd_signal_fetch(const uint64_t *sig)
{
    return ufd_ptx_load_acquire(sig);
}

#endif
