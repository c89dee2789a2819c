/* atomic.c - atomics on symmetric words: by the processor on mapped peers, by the owner's engine on all others.
 *
 * The engine applies them with the same instructions as mapped peers do, so both may work on one word at once. */
#include "base/error.h"
#include "world/foreign.h"
#include "world/gpu.h"
#include "world/reach.h"

#define APPLY(type)                                                                                                              \
    static type apply_##type(type *word, uint8_t op, type operand, type compare)                                                 \
    {                                                                                                                            \
        switch (op) {                                                                                                            \
        case UF_ATOMIC_ADD:                                                                                                      \
        case UF_ATOMIC_FETCH_ADD:                                                                                                \
            return __atomic_fetch_add(word, operand, __ATOMIC_ACQ_REL);                                                          \
        case UF_ATOMIC_AND:                                                                                                      \
        case UF_ATOMIC_FETCH_AND:                                                                                                \
            return __atomic_fetch_and(word, operand, __ATOMIC_ACQ_REL);                                                          \
        case UF_ATOMIC_OR:                                                                                                       \
        case UF_ATOMIC_FETCH_OR:                                                                                                 \
            return __atomic_fetch_or(word, operand, __ATOMIC_ACQ_REL);                                                           \
        case UF_ATOMIC_XOR:                                                                                                      \
        case UF_ATOMIC_FETCH_XOR:                                                                                                \
            return __atomic_fetch_xor(word, operand, __ATOMIC_ACQ_REL);                                                          \
        case UF_ATOMIC_SET:                                                                                                      \
            __atomic_store_n(word, operand, __ATOMIC_RELEASE);                                                                   \
            return 0;                                                                                                            \
        case UF_ATOMIC_SWAP:                                                                                                     \
            return __atomic_exchange_n(word, operand, __ATOMIC_ACQ_REL);                                                         \
        case UF_ATOMIC_COMPARE_SWAP:                                                                                             \
            __atomic_compare_exchange_n(word, &compare, operand, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);                     \
            return compare; /* the word's value, whether it was swapped or not */                                                \
        default:            /* UF_ATOMIC_FETCH */                                                                                \
            return __atomic_load_n(word, __ATOMIC_ACQUIRE);                                                                      \
        }                                                                                                                        \
    }
APPLY(uint32_t)
APPLY(uint64_t)

uint64_t uf_atomic_apply(void *word, uint8_t op, uint8_t width, uint64_t operand, uint64_t compare)
{
    return width == 4 ? apply_uint32_t(word, op, (uint32_t)operand, (uint32_t)compare)
                      : apply_uint64_t(word, op, operand, compare);
}

static int check(uf_ctx *ctx, uf_atomic_op op, int width, const void *dst, const uint64_t *old, int pe, unsigned flags)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "uf_atomic: argument ctx is NULL");
    uf_world *w = ctx->world;
    if (!uf_world_check_pe(w, pe))
        return uf_fail(UF_ERANGE, "uf_atomic on PE %d: argument pe: there is no PE %d in a world of %d PEs", w->pe, pe, w->n_pes);
    if ((unsigned)op > UF_ATOMIC_COMPARE_SWAP)
        return uf_fail(UF_EINVAL, "uf_atomic on PE %d: argument op is %d, no uf_atomic_op", w->pe, (int)op);
    if (width != 4 && width != 8)
        return uf_fail(UF_EINVAL, "uf_atomic on PE %d: argument width is %d; words have 4 or 8 bytes", w->pe, width);
    if ((uintptr_t)dst % (unsigned)width)
        return uf_fail(UF_EINVAL, "uf_atomic on PE %d: argument dst: %p is not aligned to its width of %d bytes", w->pe, dst,
                       width);
    if (op >= UF_ATOMIC_FETCH && !old)
        return uf_fail(UF_EINVAL, "uf_atomic on PE %d: argument old is NULL, but the operation fetches", w->pe);
    if (flags & ~(unsigned)UF_NOWAIT)
        return uf_fail(UF_EINVAL, "uf_atomic on PE %d: argument flags is 0x%x; only UF_NOWAIT is known", w->pe, flags);
    return uf_world_check(w);
}

static int refuse_word(const uf_world *w, const void *dst, int width)
{
    return uf_fail(UF_ERANGE,
                   "uf_atomic on PE %d: argument dst: %p with %d bytes is not symmetric memory that an atomic can reach", w->pe,
                   dst, width);
}

/* `request` not NULL: the caller will wait for it. */
static int submit(uf_ctx *ctx, uf_order_op *op, uint64_t *old, int pe, unsigned flags, uf_request **request)
{
    uf_world *w = ctx->world;
    uf_order_lane *lane;
    uf_request *r = NULL;
    int rc = uf_ctx_lane(ctx, pe, &lane);
    if (rc)
        return rc;
    if (op->op >= UF_ATOMIC_FETCH) {
        r = uf_request_get(w);
        if (!r)
            return uf_fail(UF_ENOMEM, "PE %d: no memory for a request", w->pe);
        r->detached = !request;
        r->old = request ? NULL : old;
        op->user = (uint64_t)(uintptr_t)r;
    }
    rc = uf_engine_submit(w->engine, lane, op, flags & UF_NOWAIT ? 0 : w->timeout_ns);
    if (rc && r)
        uf_request_put(w, r);
    if (!rc && request)
        *request = r;
    return uf_world_first_cause(w, rc);
}

/* On a mapped peer's word; one in a window over another process's own buffer is updated by its owner. */
static int apply_near(uf_world *w, const uf_order_op *o, const uf_reach *at, int pe, uint64_t *before)
{
    if (!at->mapped)
        return uf_foreign_atomic(w, pe, at->foreign, o->op, o->width, o->operand, o->compare, before);
    *before = uf_atomic_apply(at->mapped, o->op, o->width, o->operand, o->compare);
    return UF_OK;
}

static int start(uf_ctx *ctx, uf_atomic_op op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old, int pe,
                 unsigned flags, uf_request **request)
{
    int rc = check(ctx, op, width, dst, old, pe, flags);
    if (rc)
        return rc;
    uf_world *w = ctx->world;
    uf_reach at = {0};
    if (!uf_reach_find(w, dst, (size_t)width, pe, &at))
        return refuse_word(w, dst, width);
    if (at.gpu)
        return uf_gpu_refuse(w, "uf_atomic", "dst", dst);
    uf_order_op o = {.kind = UF_ORDER_ATOMIC, .op = (uint8_t)op, .width = (uint8_t)width, .operand = operand, .compare = compare};
    if (w->peers[pe].mapped) {
        uint64_t before;
        rc = apply_near(w, &o, &at, pe, &before);
        if (!rc && op >= UF_ATOMIC_FETCH)
            *old = before;
    } else {
        o.signal_address = uf_memory_wire(at.region, dst);
        rc = submit(ctx, &o, old, pe, flags, request);
    }
    if (!rc)
        uf_tally_add(&ctx->tally, UF_ATOMICS, 1);
    return rc;
}

int uf_atomic_nbi(uf_ctx *ctx, uf_atomic_op op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old, int pe,
                  unsigned flags)
{
    return start(ctx, op, width, dst, operand, compare, old, pe, flags, NULL);
}

int uf_atomic(uf_ctx *ctx, uf_atomic_op op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old, int pe)
{
    uf_request *request = NULL;
    int rc = start(ctx, op, width, dst, operand, compare, old, pe, 0, &request);
    return rc || !request ? rc : uf_request_wait(ctx->world, request, "uf_atomic", pe, old);
}
