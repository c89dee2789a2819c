/* collective.c - broadcast, all-gather, all-to-all, reduce.
 *
 * All are made of counted weak signals: a part and the count that says it is there travel as one operation, and a receiver
 * waits for each source by its own word. They begin with a sync, since a part lands in the caller's own dst, and end without
 * one: whoever has all its parts may go on. reduce combines in the order of PEs on one owner per range, so its
 * result is the same bits on all PEs, at every run, whatever the network did. */
#include "base/error.h"
#include "world/combine.h"
#include "world/gpu.h"
#include "world/team.h"

static int check(uf_team *t, const char *call, const void *dst, const void *src, size_t dst_bytes, size_t src_bytes)
{
    int rc = uf_team_check(t, call);
    if (rc)
        return rc;
    uf_world *w = t->world;
    if (src_bytes && !src)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument src is NULL", call, w->pe);
    if (dst_bytes && !uf_memory_find(w, dst, dst_bytes))
        return uf_fail(UF_ERANGE,
                       "%s on PE %d: argument dst: %p with %zu bytes is not symmetric memory of this world, or runs over its end",
                       call, w->pe, dst, dst_bytes);
    if ((dst_bytes && uf_gpu_is(w, dst)) || (src_bytes && uf_gpu_is(w, src)))
        return uf_gpu_refuse(w, call, uf_gpu_is(w, dst) ? "dst" : "src", uf_gpu_is(w, dst) ? dst : src);
    return UF_OK;
}

static int too_large(const uf_team *t, const char *call, size_t bytes)
{
    return bytes > SIZE_MAX / (size_t)t->n ? uf_fail(UF_EINVAL, "%s on PE %d: argument bytes is %zu: %d times that is no size",
                                                     call, t->world->pe, bytes, t->n)
                                           : UF_OK;
}

static void copy_own(void *dst, const void *src, size_t bytes)
{
    if (bytes && dst != src)
        memmove(dst, src, bytes);
}

static int receive_all(uf_team *t, const char *call)
{
    int rc = UF_OK;
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_receive(t, UF_TEAM_RESULT, call, (t->me - i + t->n) % t->n);
    return rc;
}

/* ---------------------------------------------------------------- broadcast */

int uf_broadcast(uf_team *t, void *dst, const void *src, size_t bytes, int root)
{
    int rc = uf_team_check(t, "uf_broadcast");
    if (rc)
        return rc;
    if (root < 0 || root >= t->n)
        return uf_fail(UF_ERANGE, "uf_broadcast on PE %d: argument root is %d; the team has PEs 0 to %d", t->world->pe, root,
                       t->n - 1);
    rc = check(t, "uf_broadcast", dst, src, bytes, t->me == root ? bytes : 0);
    if (!rc)
        rc = uf_team_sync(t, "uf_broadcast");
    if (rc || bytes == 0)
        return rc;
    /* A binomial tree over distances from the root: member d hears from d without its highest bit and tells d + 2^k above it. */
    int distance = (t->me - root + t->n) % t->n, high = 1;
    while (high <= distance)
        high *= 2;
    if (distance == 0)
        copy_own(dst, src, bytes);
    else
        rc = uf_team_receive(t, UF_TEAM_RESULT, "uf_broadcast", (distance - high / 2 + root) % t->n);
    /* Far children first: they have most to pass on. */
    int top = high;
    while (distance + top * 2 < t->n)
        top *= 2;
    for (int step = top; step >= high && !rc; step /= 2)
        if (distance + step < t->n)
            rc = uf_team_send(t, UF_TEAM_RESULT, (distance + step + root) % t->n, dst, dst, bytes, t->settled);
    return rc ? rc : uf_team_flush(t);
}

/* ---------------------------------------------------------------- all-gather, all-to-all */

int uf_allgather(uf_team *t, void *dst, const void *src, size_t bytes)
{
    int rc = uf_team_check(t, "uf_allgather");
    if (rc || (rc = too_large(t, "uf_allgather", bytes)) ||
        (rc = check(t, "uf_allgather", dst, src, bytes * (size_t)t->n, bytes)) || (rc = uf_team_sync(t, "uf_allgather")) ||
        bytes == 0)
        return rc;
    unsigned char *own = (unsigned char *)dst + bytes * (size_t)t->me;
    copy_own(own, src, bytes);
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_send(t, UF_TEAM_RESULT, (t->me + i) % t->n, own, own, bytes, t->settled);
    if (!rc)
        rc = receive_all(t, "uf_allgather");
    return rc ? rc : uf_team_flush(t);
}

int uf_alltoall(uf_team *t, void *dst, const void *src, size_t bytes)
{
    int rc = uf_team_check(t, "uf_alltoall");
    if (rc || (rc = too_large(t, "uf_alltoall", bytes)) ||
        (rc = check(t, "uf_alltoall", dst, src, bytes * (size_t)t->n, bytes * (size_t)t->n)))
        return rc;
    if (bytes && dst == src)
        return uf_fail(UF_EINVAL, "uf_alltoall on PE %d: arguments dst and src are the same; it cannot work in place",
                       t->world->pe);
    rc = uf_team_sync(t, "uf_alltoall");
    if (rc || bytes == 0)
        return rc;
    unsigned char *to = (unsigned char *)dst + bytes * (size_t)t->me;
    const unsigned char *from = src;
    copy_own(to, from + bytes * (size_t)t->me, bytes);
    for (int i = 1; i < t->n && !rc; i++) {
        int peer = (t->me + i) % t->n;
        rc = uf_team_send(t, UF_TEAM_RESULT, peer, to, from + bytes * (size_t)peer, bytes, t->settled);
    }
    if (!rc)
        rc = receive_all(t, "uf_alltoall");
    return rc ? rc : uf_team_flush(t);
}

/* ---------------------------------------------------------------- reduce */

/* One round: elements [first, first + n) of the caller's arrays, at most one slot for each owner. */
typedef struct round {
    size_t first, n, each; /* owner o has [first + o * each, ...) as far as n reaches */
    size_t element;
    uf_combine combine;
    unsigned parts; /* flags of sends into the scratch */
} round;

static size_t owned(const round *r, int owner, size_t *first)
{
    size_t begin = r->each * (size_t)owner;
    if (begin >= r->n)
        return 0;
    *first = r->first + begin;
    return r->n - begin < r->each ? r->n - begin : r->each;
}

/* Sends each owner our elements of its range. */
static int send_parts(uf_team *t, const unsigned char *src, const round *r)
{
    int rc = UF_OK;
    for (int i = 1; i < t->n && !rc; i++) {
        int owner = (t->me + i) % t->n;
        size_t first = 0, n = owned(r, owner, &first);
        if (n)
            rc = uf_team_send(t, UF_TEAM_PART, owner, t->scratch + (size_t)t->me * t->slot, src + first * r->element,
                              n * r->element, r->parts);
    }
    return rc;
}

/* Combines our range from everybody's parts in PE order, whenever they come, and sends it to all. */
static int combine_range(uf_team *t, unsigned char *dst, const unsigned char *src, const round *r)
{
    size_t first = 0, n = owned(r, t->me, &first), bytes = n * r->element;
    unsigned char *result = dst + first * r->element;
    int rc = UF_OK;
    if (!n)
        return UF_OK;
    /* Our own part waits for its turn in our own slot: dst may be src. */
    memcpy(t->scratch + (size_t)t->me * t->slot, src + first * r->element, bytes);
    for (int from = 0; from < t->n && !rc; from++) {
        const unsigned char *part = t->scratch + (size_t)from * t->slot;
        if (from != t->me)
            rc = uf_team_receive(t, UF_TEAM_PART, "uf_reduce", from);
        if (!rc && from == 0)
            memcpy(result, part, bytes);
        else if (!rc)
            r->combine(result, part, n);
    }
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_send(t, UF_TEAM_RESULT, (t->me + i) % t->n, result, result, bytes, t->settled);
    return rc;
}

/* A range that has come back also says that its owner has read all its slots: they are free for the next round. */
static int receive_ranges(uf_team *t, const round *r)
{
    int rc = UF_OK;
    for (int i = 1; i < t->n && !rc; i++) {
        int owner = (t->me - i + t->n) % t->n;
        size_t first;
        if (owned(r, owner, &first))
            rc = uf_team_receive(t, UF_TEAM_RESULT, "uf_reduce", owner);
    }
    return rc;
}

static int reduce_all(uf_team *t, unsigned char *dst, const unsigned char *src, size_t n, size_t element, uf_combine combine)
{
    size_t room = t->slot / element, bytes = n * element;
    /* In place, results come into the very bytes that our parts are read from: an owner must not have ours before our completion,
     * after which the network reads them no more. */
    bool in_place = src < dst + bytes && dst < src + bytes;
    unsigned parts = in_place ? t->settled : UF_WEAK;
    int rc = UF_OK;
    for (size_t first = 0; first < n && !rc;) {
        size_t left = n - first, each = (left + (size_t)t->n - 1) / (size_t)t->n;
        round r = {
            .first = first, .n = left, .each = each < room ? each : room, .element = element, .combine = combine, .parts = parts};
        if (r.each * (size_t)t->n < left)
            r.n = r.each * (size_t)t->n;
        rc = send_parts(t, src, &r);
        if (!rc)
            rc = combine_range(t, dst, src, &r);
        if (!rc)
            rc = receive_ranges(t, &r);
        first += r.n;
    }
    return rc ? rc : uf_team_flush(t);
}

int uf_reduce(uf_team *t, void *dst, const void *src, size_t n, uf_dtype type, uf_reduce_op op)
{
    int rc = uf_team_check(t, "uf_reduce");
    if (rc)
        return rc;
    size_t element = uf_combine_element(type);
    if (!element)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument type is %d, no uf_dtype", t->world->pe, (int)type);
    uf_combine combine = uf_combine_find(type, op);
    if (!combine)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument op is %d%s", t->world->pe, (int)op,
                       (unsigned)op > UF_XOR ? ", no uf_reduce_op" : ": bits of floating-point numbers are not combined");
    if (n > SIZE_MAX / element)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument n is %zu: that many elements are no size", t->world->pe, n);
    if ((uintptr_t)dst % element)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument dst: %p is not aligned to its elements of %zu bytes",
                       t->world->pe, dst, element);
    if ((rc = check(t, "uf_reduce", dst, src, n * element, n * element)) || (rc = uf_team_sync(t, "uf_reduce")))
        return rc;
    if (t->n > 1)
        return reduce_all(t, dst, src, n, element, combine);
    copy_own(dst, src, n * element);
    return UF_OK;
}
