/* collective.c - broadcast, all-gather, all-to-all, reduce.
 *
 * All are made of counted weak signals: a part and the count that says it is there travel as one operation, and a receiver
 * waits for each source by its own word. They begin with a sync, since a part lands in the caller's own dst, and end without
 * one: whoever has all its parts may go on. reduce combines in the order of PEs on one owner per range, so its
 * result is the same bits on all PEs, at every run, whatever the network did. */
#include "base/error.h"
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
        rc = uf_team_receive(t, call, (t->me - i + t->n) % t->n);
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
        rc = uf_sync(t);
    if (rc || bytes == 0)
        return rc;
    /* A binomial tree over distances from the root: member d hears from d without its highest bit and tells d + 2^k above it. */
    int distance = (t->me - root + t->n) % t->n, high = 1;
    while (high <= distance)
        high *= 2;
    if (distance == 0)
        copy_own(dst, src, bytes);
    else
        rc = uf_team_receive(t, "uf_broadcast", (distance - high / 2 + root) % t->n);
    /* Far children first: they have most to pass on. */
    int top = high;
    while (distance + top * 2 < t->n)
        top *= 2;
    for (int step = top; step >= high && !rc; step /= 2)
        if (distance + step < t->n)
            rc = uf_team_send(t, (distance + step + root) % t->n, dst, dst, bytes, t->settled);
    return rc ? rc : uf_flush(t->ctx);
}

/* ---------------------------------------------------------------- all-gather, all-to-all */

int uf_allgather(uf_team *t, void *dst, const void *src, size_t bytes)
{
    int rc = uf_team_check(t, "uf_allgather");
    if (rc || (rc = too_large(t, "uf_allgather", bytes)) ||
        (rc = check(t, "uf_allgather", dst, src, bytes * (size_t)t->n, bytes)) || (rc = uf_sync(t)) || bytes == 0)
        return rc;
    unsigned char *own = (unsigned char *)dst + bytes * (size_t)t->me;
    copy_own(own, src, bytes);
    for (int i = 1; i < t->n && !rc; i++)
        rc = uf_team_send(t, (t->me + i) % t->n, own, own, bytes, t->settled);
    if (!rc)
        rc = receive_all(t, "uf_allgather");
    return rc ? rc : uf_flush(t->ctx);
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
    rc = uf_sync(t);
    if (rc || bytes == 0)
        return rc;
    unsigned char *to = (unsigned char *)dst + bytes * (size_t)t->me;
    const unsigned char *from = src;
    copy_own(to, from + bytes * (size_t)t->me, bytes);
    for (int i = 1; i < t->n && !rc; i++) {
        int peer = (t->me + i) % t->n;
        rc = uf_team_send(t, peer, to, from + bytes * (size_t)peer, bytes, t->settled);
    }
    if (!rc)
        rc = receive_all(t, "uf_alltoall");
    return rc ? rc : uf_flush(t->ctx);
}

/* ---------------------------------------------------------------- reduce */

#define COMBINE_ORDERED(name, type, unsigned_type)                                                                               \
    static int combine_##name(void *into, const void *with, size_t n, uf_reduce_op op)                                           \
    {                                                                                                                            \
        type *a = into;                                                                                                          \
        const type *b = with;                                                                                                    \
        for (size_t i = 0; i < n; i++)                                                                                           \
            switch (op) {                                                                                                        \
            case UF_SUM:                                                                                                         \
                a[i] = (type)((unsigned_type)a[i] + (unsigned_type)b[i]);                                                        \
                break;                                                                                                           \
            case UF_PROD:                                                                                                        \
                a[i] = (type)((unsigned_type)a[i] * (unsigned_type)b[i]);                                                        \
                break;                                                                                                           \
            case UF_MIN:                                                                                                         \
                a[i] = b[i] < a[i] ? b[i] : a[i];                                                                                \
                break;                                                                                                           \
            case UF_MAX:                                                                                                         \
                a[i] = b[i] > a[i] ? b[i] : a[i];                                                                                \
                break;                                                                                                           \
                BITS default : return UF_EINVAL;                                                                                 \
            }                                                                                                                    \
        return UF_OK;                                                                                                            \
    }
#define BITS                                                                                                                     \
    case UF_AND:                                                                                                                 \
        a[i] &= b[i];                                                                                                            \
        break;                                                                                                                   \
    case UF_OR:                                                                                                                  \
        a[i] |= b[i];                                                                                                            \
        break;                                                                                                                   \
    case UF_XOR:                                                                                                                 \
        a[i] ^= b[i];                                                                                                            \
        break;
COMBINE_ORDERED(int32, int32_t, uint32_t)
COMBINE_ORDERED(int64, int64_t, uint64_t)
COMBINE_ORDERED(uint32, uint32_t, uint32_t)
COMBINE_ORDERED(uint64, uint64_t, uint64_t)
#undef BITS
#define BITS
COMBINE_ORDERED(float, float, float)
COMBINE_ORDERED(double, double, double)
#undef BITS

static const struct {
    size_t bytes;
    int (*combine)(void *into, const void *with, size_t n, uf_reduce_op op);
} types[] = {{4, combine_int32},  {8, combine_int64}, {4, combine_uint32},
             {8, combine_uint64}, {4, combine_float}, {8, combine_double}};

/* One round: elements [first, first + n) of the caller's arrays, at most one slot for each owner. */
typedef struct round {
    size_t first, n, each; /* owner o has [first + o * each, ...) as far as n reaches */
    size_t element;
    uf_dtype type;
    uf_reduce_op op;
} round;

static size_t owned(const round *r, int owner, size_t *first)
{
    size_t begin = r->each * (size_t)owner;
    if (begin >= r->n)
        return 0;
    *first = r->first + begin;
    return r->n - begin < r->each ? r->n - begin : r->each;
}

/* Sends each owner my elements of its range, combines my range from all, sends it to all, and waits for the other ranges. */
static int reduce_round(uf_team *t, unsigned char *dst, const unsigned char *src, const round *r)
{
    size_t first = 0, n;
    int rc = UF_OK;
    for (int i = 1; i < t->n && !rc; i++) {
        int owner = (t->me + i) % t->n;
        if ((n = owned(r, owner, &first)))
            rc = uf_team_send(t, owner, t->scratch + (size_t)t->me * t->slot, src + first * r->element, n * r->element, UF_WEAK);
    }
    if (!rc && (n = owned(r, t->me, &first))) {
        unsigned char *result = t->scratch + (size_t)t->me * t->slot;
        memcpy(result, src + first * r->element, n * r->element);
        /* In PE order from PE 0: own elements take their turn, so start from a copy of PE 0's. */
        unsigned char *sum = dst + first * r->element;
        for (int from = 0; from < t->n && !rc; from++) {
            if (from != t->me)
                rc = uf_team_receive(t, "uf_reduce", from);
            const unsigned char *part = t->scratch + (size_t)from * t->slot;
            if (!rc && from == 0)
                memcpy(sum, part, n * r->element);
            else if (!rc)
                rc = types[r->type].combine(sum, part, n, r->op);
        }
        for (int i = 1; i < t->n && !rc; i++)
            rc = uf_team_send(t, (t->me + i) % t->n, sum, sum, n * r->element, t->settled);
    }
    /* A range that has come back also says that its owner has read all slots: the next round may fill them. */
    for (int i = 1; i < t->n && !rc; i++) {
        int owner = (t->me - i + t->n) % t->n;
        if (owned(r, owner, &first))
            rc = uf_team_receive(t, "uf_reduce", owner);
    }
    return rc ? rc : uf_flush(t->ctx);
}

int uf_reduce(uf_team *t, void *dst, const void *src, size_t n, uf_dtype type, uf_reduce_op op)
{
    int rc = uf_team_check(t, "uf_reduce");
    if (rc)
        return rc;
    if ((unsigned)type > UF_DOUBLE)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument type is %d, no uf_dtype", t->world->pe, (int)type);
    if ((unsigned)op > UF_XOR || (op >= UF_AND && type >= UF_FLOAT))
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument op is %d%s", t->world->pe, (int)op,
                       (unsigned)op > UF_XOR ? ", no uf_reduce_op" : ": bits of floating-point numbers are not combined");
    size_t element = types[type].bytes;
    if (n > SIZE_MAX / element)
        return uf_fail(UF_EINVAL, "uf_reduce on PE %d: argument n is %zu: that many elements are no size", t->world->pe, n);
    if ((rc = check(t, "uf_reduce", dst, src, n * element, n * element)) || (rc = uf_sync(t)))
        return rc;
    if (t->n == 1) {
        copy_own(dst, src, n * element);
        return UF_OK;
    }
    size_t room = t->slot / element;
    for (size_t first = 0; first < n && !rc;) {
        size_t left = n - first, each = (left + (size_t)t->n - 1) / (size_t)t->n;
        round r = {first, left, each < room ? each : room, element, type, op};
        if (r.each * (size_t)t->n < left)
            r.n = r.each * (size_t)t->n;
        rc = reduce_round(t, dst, src, &r);
        first += r.n;
    }
    return rc;
}
