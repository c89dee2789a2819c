/* rma.c - puts and gets: from the public call to memory (mapped peers) or to the engine (all others).
 *
 * The path of one put: check arguments -> where is it (reach) -> mapped: copy, and the signal is one atomic instruction on the
 * peer's word; network: fill one uf_order_op and submit it. Nothing on this path allocates, takes a lock of this room, or reads the
 * clock. Windows over a user's buffer in another process of this host: foreign.c. */
#include "base/error.h"
#include "world/foreign.h"
#include "world/gpu.h"
#include "world/reach.h"

static int refuse_range(const uf_world *w, const char *call, const char *argument, const void *ptr, size_t bytes)
{
    return uf_fail(UF_ERANGE,
                   "%s on PE %d: argument %s: %p with %zu bytes is not symmetric memory of this world (uf_malloc, uf_register, "
                   "uf_signal_alloc), or runs over its end",
                   call, w->pe, argument, ptr, bytes);
}

static inline int find(uf_world *w, const char *call, const char *argument, const void *sym, size_t bytes, int pe, uf_reach *at)
{
    if (!uf_reach_find(w, sym, bytes, pe, at))
        return refuse_range(w, call, argument, sym, bytes);
    return at->gpu ? uf_gpu_reach(w, call, argument, at->region, sym, pe, &at->mapped) : UF_OK;
}

/* A signal word: like find, and aligned. */
static inline int find_word(uf_world *w, const char *call, const uint64_t *sig, int pe, uf_reach *at)
{
    if ((uintptr_t)sig & 7)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument sig: %p is not aligned to 8 bytes", call, w->pe, (const void *)sig);
    return find(w, call, "sig", sig, 8, pe, at);
}

static int refuse_pe(const uf_world *w, const char *call, int pe)
{
    return uf_fail(UF_ERANGE, "%s on PE %d: argument pe: there is no PE %d in a world of %d PEs (0 to %d)", call, w->pe, pe,
                   w->n_pes, w->n_pes - 1);
}

static int refuse_flags(const uf_world *w, const char *call, unsigned flags, int op)
{
    if (op != UF_SIGNAL_SET && op != UF_SIGNAL_ADD)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument op is %d, neither UF_SIGNAL_SET nor UF_SIGNAL_ADD", call, w->pe, op);
    return uf_fail(UF_EINVAL, "%s on PE %d: argument flags is 0x%x; known are UF_STRONG, UF_SETTLED and UF_NOWAIT", call, w->pe,
                   flags);
}

enum { KNOWN_FLAGS = UF_STRONG | UF_SETTLED | UF_NOWAIT };

/* Sound world, known context and PE. Only the world's status is shared memory; it is read-only in a sound world. */
static inline int check(uf_ctx *ctx, const char *call, int pe)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "%s: argument ctx is NULL", call);
    uf_world *w = ctx->world;
    if (!uf_world_check_pe(w, pe))
        return refuse_pe(w, call, pe);
    return atomic_load_explicit(&w->status, memory_order_relaxed) ? uf_world_check(w) : UF_OK;
}

/* ---------------------------------------------------------------- mapped peers */

static inline void copy(uf_world *w, int pe, void *to, const void *from, size_t bytes)
{
    if (bytes == 8) /* the commonest small message: one store */
        __builtin_memcpy(to, from, 8);
    else if (pe == w->pe)
        memmove(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static int put_mapped(uf_ctx *ctx, const uf_reach *to, const void *src, size_t bytes, int pe)
{
    uf_world *w = ctx->world;
    if (to->mapped) {
        copy(w, pe, to->mapped, src, bytes);
        return UF_OK;
    }
    return uf_foreign_put(w, pe, to->foreign, src, bytes);
}

/* A word in a window over another process's own buffer: its owner updates it, and we wait until it has. */
static int signal_foreign(uf_world *w, int pe, uint64_t word, int op, uint64_t value)
{
    uint64_t old;
    return uf_foreign_atomic(w, pe, word, op == UF_SIGNAL_ADD ? UF_ATOMIC_ADD : UF_ATOMIC_SET, 8, value, 0, &old);
}

/* Release: pairs with the acquire load of the waiter (signal.c), so that the put's bytes are seen before the word. */
static inline void signal_word(uint64_t *word, int op, uint64_t value)
{
    if (op == UF_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline int signal_mapped(uf_world *w, int pe, const uf_reach *word, int op, uint64_t value)
{
    if (!word->mapped)
        return signal_foreign(w, pe, word->foreign, op, value);
    signal_word(word->mapped, op, value);
    return UF_OK;
}

/* A row in which some of dst, src and signal word is GPU memory: the driver copies, and the signal comes after it. */
static int put_gpu(uf_ctx *ctx, const char *call, const uf_reach *to, const uf_reach *word, const uf_put_row *r)
{
    uf_world *w = ctx->world;
    if (r->bytes && !to->mapped)
        return uf_gpu_refuse(w, call, "src", r->src);
    int rc = uf_gpu_put(w, call, to->mapped, r->src, r->bytes, word->gpu ? word->mapped : NULL, word->gpu, r->op, r->value);
    return rc || !r->sig || word->gpu ? rc : signal_mapped(w, r->pe, word, r->op, r->value);
}

/* ---------------------------------------------------------------- network peers */

static void fill_signal(uf_world *w, uf_order_op *op, uint64_t *sig, const uf_reach *word, int signal_op, uint64_t value,
                        unsigned flags)
{
    op->op = signal_op == UF_SIGNAL_ADD ? UF_ATOMIC_ADD : UF_ATOMIC_SET;
    op->width = 8;
    op->operand = value;
    op->flags = (uint8_t)(flags & (UF_STRONG | UF_SETTLED));
    uf_reach_signal(w, word, sig, op);
}

static int fill_data(uf_world *w, uf_order_op *op, const uf_reach *at, const void *sym, const void *local, size_t bytes, int pe,
                     void **registration)
{
    *registration = NULL;
    op->bytes = bytes;
    if (bytes == 0)
        return UF_OK;
    uf_reach_remote(at, sym, pe, op);
    op->local = (uint64_t)(uintptr_t)local;
    return w->fabric->caps.needs_desc ? uf_memory_source(w, local, bytes, &op->local_desc, registration) : UF_OK;
}

/* Gives the source's registration, if there is one, to a request that ends with the operation. */
static int attach(uf_world *w, uf_order_op *op, void *registration, uf_request *request)
{
    if (!registration && !request)
        return UF_OK;
    if (!request) {
        request = uf_request_get(w);
        if (!request) {
            uf_memory_source_done(w, registration);
            return uf_fail(UF_ENOMEM, "PE %d: no memory for a request", w->pe);
        }
        request->detached = true;
    }
    request->registration = registration;
    op->user = (uint64_t)(uintptr_t)request;
    return UF_OK;
}

/* What attach took, for an operation that was not accepted. */
static void detach(uf_world *w, const uf_order_op *op)
{
    uf_request *request = (uf_request *)(uintptr_t)op->user;
    if (!request)
        return;
    uf_memory_source_done(w, request->registration);
    uf_request_put(w, request);
}

/* ---------------------------------------------------------------- puts */

/* Does a row to a mapped peer on the spot; for the others fills `op` and says so in *network. */
static inline int start(uf_ctx *ctx, const char *call, const uf_put_row *r, uf_order_op *op, bool *network)
{
    *network = false;
    int rc = check(ctx, call, r->pe);
    if (rc)
        return rc;
    uf_world *w = ctx->world;
    if (r->flags & ~(unsigned)KNOWN_FLAGS || r->op > UF_SIGNAL_ADD)
        return refuse_flags(w, call, r->flags, r->op);
    if (r->bytes && !r->src)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument src is NULL", call, w->pe);
    uf_reach to = {0}, word = {0};
    if (r->sig && (rc = find_word(w, call, r->sig, r->pe, &word)))
        return rc;
    if (r->bytes && (rc = find(w, call, "dst", r->dst, r->bytes, r->pe, &to)))
        return rc;
    bool gpu = to.gpu || word.gpu || (r->bytes && uf_gpu_is(w, r->src));
    if (gpu && w->peers[r->pe].mapped)
        return put_gpu(ctx, call, &to, &word, r);
    if (gpu)
        return uf_gpu_refuse_network(w, call, "src", r->pe);
    if (w->peers[r->pe].mapped) {
        if (r->bytes && (rc = put_mapped(ctx, &to, r->src, r->bytes, r->pe)))
            return rc;
        return r->sig ? signal_mapped(w, r->pe, &word, r->op, r->value) : UF_OK;
    }
    *network = r->bytes || r->sig;
    *op = (uf_order_op){.kind = !r->sig ? UF_ORDER_PUT : r->bytes ? UF_ORDER_PUT_SIGNAL : UF_ORDER_SIGNAL};
    if (r->sig)
        fill_signal(w, op, r->sig, &word, r->op, r->value, r->flags);
    void *registration;
    rc = fill_data(w, op, &to, r->dst, r->src, r->bytes, r->pe, &registration);
    return rc ? rc : attach(w, op, registration, NULL);
}

static inline void count_row(uf_ctx *ctx, const uf_put_row *r)
{
    if (r->bytes) {
        uf_tally_add(&ctx->tally, UF_PUTS, 1);
        uf_tally_add(&ctx->tally, ctx->world->peers[r->pe].mapped ? UF_BYTES_LOCAL : UF_BYTES_NETWORK, r->bytes);
    }
    if (r->sig)
        uf_tally_add(&ctx->tally, UF_SIGNALS, 1);
}

static int submit(uf_ctx *ctx, uf_order_op *op, int pe, unsigned flags)
{
    uf_world *w = ctx->world;
    uf_order_lane *lane;
    int rc = uf_ctx_lane(ctx, pe, &lane);
    if (!rc)
        rc = uf_engine_submit(w->engine, lane, op, flags & UF_NOWAIT ? 0 : w->timeout_ns);
    if (rc) {
        detach(w, op);
        rc = uf_world_first_cause(w, rc);
    }
    return rc;
}

/* The whole of a row to a mapped peer's heap, if it is one that nothing can be said against: false sends it the long way round, which finds
 * the words for what is wrong. One look at each fact, since this is a third of the time of a small message. */
static inline bool put_row_mapped(uf_ctx *ctx, const uf_put_row *r)
{
    if (__builtin_expect(!ctx, 0))
        return false;
    uf_world *w = ctx->world;
    if (__builtin_expect((unsigned)r->pe >= (unsigned)w->n_pes, 0))
        return false;
    const uf_peer *p = &w->peers[r->pe];
    size_t used = atomic_load_explicit(&w->heap_used, memory_order_acquire);
    size_t to = (size_t)((unsigned char *)r->dst - w->range.base), word = (size_t)((unsigned char *)r->sig - w->range.base);
    unsigned char *base = p->range.base;
    bool plain = p->mapped && atomic_load_explicit(&w->status, memory_order_relaxed) == 0 && r->src && r->bytes && to < used &&
                 r->bytes <= used - to && word < used && (word & 7) == 0 && r->op <= UF_SIGNAL_ADD &&
                 !(r->flags & ~(unsigned)KNOWN_FLAGS) && !uf_gpu_is(w, r->src);
    if (__builtin_expect(!plain, 0))
        return false;
    copy(w, r->pe, base + to, r->src, r->bytes);
    signal_word((uint64_t *)(void *)(base + word), r->op, r->value);
    uf_tally_add(&ctx->tally, UF_PUTS, 1);
    uf_tally_add(&ctx->tally, UF_SIGNALS, 1);
    uf_tally_add(&ctx->tally, UF_BYTES_LOCAL, r->bytes);
    return true;
}

static int put_row(uf_ctx *ctx, const char *call, const uf_put_row *row)
{
    uf_order_op op;
    bool network;
    int rc = start(ctx, call, row, &op, &network);
    if (!rc && network)
        rc = submit(ctx, &op, row->pe, row->flags);
    if (!rc)
        count_row(ctx, row);
    return rc;
}

/* Blocks until what was just submitted to `pe` has left its source. */
static int finish_local(uf_ctx *ctx, int pe)
{
    if (ctx->world->peers[pe].mapped)
        return UF_OK;
    return uf_ctx_complete(ctx, pe, false, uf_world_deadline(ctx->world, ctx->world->timeout_ns));
}

int uf_put_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe)
{
    const uf_put_row row = {dst, src, bytes, NULL, 0, pe, 0, 0};
    return put_row(ctx, "uf_put_nbi", &row);
}

int uf_put(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe)
{
    const uf_put_row row = {dst, src, bytes, NULL, 0, pe, 0, 0};
    int rc = put_row(ctx, "uf_put", &row);
    return rc ? rc : finish_local(ctx, pe);
}

static inline int put_signal(uf_ctx *ctx, const char *call, const uf_put_row *row, int op, unsigned flags)
{
    if (op < 0 || op > UF_SIGNAL_ADD || flags > UINT16_MAX)
        return ctx ? refuse_flags(ctx->world, call, flags, op) : check(ctx, call, 0);
    if (!row->sig)
        return uf_fail(UF_EINVAL, "%s: argument sig is NULL", call);
    return put_row_mapped(ctx, row) ? UF_OK : put_row(ctx, call, row);
}

int uf_put_signal_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                      unsigned flags)
{
    const uf_put_row row = {dst, src, bytes, sig, value, pe, (uint16_t)op, (uint16_t)flags};
    return put_signal(ctx, "uf_put_signal_nbi", &row, op, flags);
}

int uf_put_signal(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                  unsigned flags)
{
    const uf_put_row row = {dst, src, bytes, sig, value, pe, (uint16_t)op, (uint16_t)flags};
    int rc = put_signal(ctx, "uf_put_signal", &row, op, flags);
    return rc ? rc : finish_local(ctx, pe);
}

int uf_signal(uf_ctx *ctx, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags)
{
    const uf_put_row row = {NULL, NULL, 0, sig, value, pe, (uint16_t)op, (uint16_t)flags};
    return put_signal(ctx, "uf_signal", &row, op, flags);
}

/* ---------------------------------------------------------------- batches */

enum { BATCH = 32 };

/* Network rows waiting for their doorbell: rows[first .. first + n) of the caller. */
typedef struct batch {
    uint32_t n;
    uint64_t timeout_ns;
    uf_order_lane *lanes[BATCH];
    uf_order_op ops[BATCH];
} batch;

/* Submits what has gathered; *done counts the rows that were accepted. */
static int send_batch(uf_ctx *ctx, batch *b, const uf_put_row *rows, size_t *done)
{
    uint32_t accepted = 0;
    int rc = UF_OK;
    if (b->n) {
        b->ops[b->n - 1].more = false;
        rc = uf_engine_submit_many(ctx->world->engine, b->lanes, b->ops, b->n, b->timeout_ns, &accepted);
        rc = uf_world_first_cause(ctx->world, rc);
    }
    for (uint32_t i = 0; i < b->n; i++)
        if (i < accepted)
            count_row(ctx, &rows[*done + i]);
        else
            detach(ctx->world, &b->ops[i]);
    *done += accepted;
    b->n = 0;
    return rc;
}

/* Takes one row: done on the spot if it needs no network, else gathered. */
static int take_row(uf_ctx *ctx, batch *b, const uf_put_row *rows, size_t i, size_t *done)
{
    const uf_put_row *r = &rows[i];
    bool network;
    /* What is done on the spot may not overtake a row that can still be refused. */
    int rc = check(ctx, "uf_put_batch", r->pe);
    if (!rc && (b->n == BATCH || (b->n && ctx->world->peers[r->pe].mapped)))
        rc = send_batch(ctx, b, rows, done);
    if (!rc)
        rc = start(ctx, "uf_put_batch", r, &b->ops[b->n], &network);
    if (rc)
        return rc;
    if (!network) {
        if (b->n) /* an empty row between others */
            rc = send_batch(ctx, b, rows, done);
        if (!rc) {
            count_row(ctx, r);
            ++*done;
        }
        return rc;
    }
    rc = uf_ctx_lane(ctx, r->pe, &b->lanes[b->n]);
    if (rc) {
        detach(ctx->world, &b->ops[b->n]);
        return rc;
    }
    b->ops[b->n].more = true;
    b->timeout_ns = r->flags & UF_NOWAIT ? 0 : ctx->world->timeout_ns;
    b->n++;
    return UF_OK;
}

int uf_put_batch(uf_ctx *ctx, const uf_put_row *rows, size_t n, size_t *done)
{
    size_t accepted = 0;
    batch b = {.n = 0};
    int rc = !ctx         ? uf_fail(UF_EINVAL, "uf_put_batch: argument ctx is NULL")
             : !rows && n ? uf_fail(UF_EINVAL, "uf_put_batch: argument rows is NULL")
                          : UF_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = take_row(ctx, &b, rows, i, &accepted);
    /* A refused row ends the batch, but those before it have been taken: they go. Its message is kept. */
    if (ctx && b.n) {
        char why[UF_ERROR_BYTES];
        strncpy(why, uf_error_message(), sizeof why - 1);
        why[sizeof why - 1] = 0;
        int sent = send_batch(ctx, &b, rows, &accepted);
        rc = rc ? uf_error_set(rc, why) : sent;
    }
    if (done)
        *done = accepted;
    return rc;
}

/* ---------------------------------------------------------------- gets */

/* `request` not NULL: somebody will wait for it; it is taken only when the operation is accepted. */
static int get(uf_ctx *ctx, const char *call, void *dst, const void *src, size_t bytes, int pe, uf_request **request)
{
    int rc = check(ctx, call, pe);
    if (rc || bytes == 0)
        return rc;
    uf_world *w = ctx->world;
    if (!dst)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument dst is NULL", call, w->pe);
    uf_reach from = {0};
    if ((rc = find(w, call, "src", src, bytes, pe, &from)))
        return rc;
    if (from.gpu || uf_gpu_is(w, dst)) {
        if (!from.mapped)
            return w->peers[pe].mapped ? uf_gpu_refuse(w, call, "dst", dst) : uf_gpu_refuse_network(w, call, "dst", pe);
        rc = uf_gpu_get(w, dst, from.mapped, bytes);
    } else if (w->peers[pe].mapped) {
        if (from.mapped)
            copy(w, pe, dst, from.mapped, bytes);
        else
            rc = uf_foreign_get(w, pe, from.foreign, dst, bytes);
    } else {
        uf_order_op op = {.kind = UF_ORDER_GET};
        void *registration;
        rc = fill_data(w, &op, &from, src, dst, bytes, pe, &registration);
        if (!rc && request && !(*request = uf_request_get(w))) {
            uf_memory_source_done(w, registration);
            rc = uf_fail(UF_ENOMEM, "PE %d: no memory for a request", w->pe);
        }
        if (!rc)
            rc = attach(w, &op, registration, request ? *request : NULL);
        if (!rc)
            rc = submit(ctx, &op, pe, 0);
    }
    if (!rc) {
        uf_tally_add(&ctx->tally, UF_GETS, 1);
        uf_tally_add(&ctx->tally, w->peers[pe].mapped ? UF_BYTES_LOCAL : UF_BYTES_NETWORK, bytes);
    }
    return rc;
}

int uf_get_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe)
{
    return get(ctx, "uf_get_nbi", dst, src, bytes, pe, NULL);
}

int uf_get(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe)
{
    uf_request *request = NULL;
    uint64_t ignored;
    int rc = get(ctx, "uf_get", dst, src, bytes, pe, &request);
    return rc || !request ? rc : uf_request_wait(ctx->world, request, "uf_get", pe, &ignored);
}
