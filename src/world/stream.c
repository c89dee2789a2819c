/* stream.c - the on-stream family for near peers: addresses are resolved here, src/cuda/stream.c appends the operations.
 *
 * A put is one copy, a signal one 64-bit store, which the driver orders after everything before it in the stream with a fence of system scope; a
 * wait is one 64-bit wait, and a consuming one a store of 0 after it. Nothing here depends on how often a call is carried out, which is what makes it
 * capturable: no counter of ours is baked into a graph, and the barrier's words are back at 0 when it ends.
 *
 * Streams that wait cannot time out. So the words that any stream may be waiting for are noted, and when the world has failed they are given
 * what the waits want, again and again, since a graph may be replayed after that (uf_gpu_tick). */
#include "unfence/stream.h"
#include "base/error.h"
#include "base/map.h"
#include "world/gpu.h"
#include "world/team.h"
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- words that streams wait for */

typedef struct awaited {
    uint64_t *word;
    uint64_t value;
    uf_cuda_op_kind kind;
    bool on_gpu;
} awaited;

struct uf_gpu_waits {
    pthread_mutex_t lock;
    uf_map index; /* word -> its place in list */
    awaited *list;
    size_t n, room;
};

int uf_gpu_waits_create(struct uf_gpu *g)
{
    g->waits = calloc(1, sizeof *g->waits);
    if (!g->waits)
        return uf_fail(UF_ENOMEM, "no memory for the table of words that streams wait for");
    pthread_mutex_init(&g->waits->lock, NULL);
    return UF_OK;
}

void uf_gpu_waits_destroy(struct uf_gpu *g)
{
    if (!g->waits)
        return;
    uf_map_free(&g->waits->index);
    pthread_mutex_destroy(&g->waits->lock);
    free(g->waits->list);
    free(g->waits);
    g->waits = NULL;
}

static int add_awaited(uf_gpu_waits *t, const awaited *a)
{
    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        awaited *longer = realloc(t->list, room * sizeof *longer);
        if (!longer)
            return uf_fail(UF_ENOMEM, "no memory for the table of %zu words that streams wait for", room);
        t->list = longer;
        t->room = room;
    }
    int rc = uf_map_put(&t->index, (uint64_t)(uintptr_t)a->word, t->n);
    if (!rc)
        t->list[t->n++] = *a;
    return rc;
}

/* Notes what a stream will wait for. Of a word that only grows the largest value is enough; of others the last. */
static int note(struct uf_gpu *g, const awaited *a)
{
    uf_gpu_waits *t = g->waits;
    uint64_t at;
    int rc = UF_OK;
    pthread_mutex_lock(&t->lock);
    if (!uf_map_get(&t->index, (uint64_t)(uintptr_t)a->word, &at))
        rc = add_awaited(t, a);
    else if (a->kind != UF_CUDA_WAIT_GE || t->list[at].kind != a->kind || (int64_t)(a->value - t->list[at].value) > 0)
        t->list[at] = *a;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static bool holds(uint64_t seen, const awaited *a)
{
    switch (a->kind) {
    case UF_CUDA_WAIT_GE:
        return (int64_t)(seen - a->value) >= 0;
    case UF_CUDA_WAIT_NONZERO:
        return (seen & a->value) != 0;
    default:
        return seen == a->value;
    }
}

/* A word in GPU memory is not looked at first: a copy would need one more engine of the GPU, which may be held by what waits. */
static void let_go(struct uf_gpu *g, const awaited *a)
{
    if (a->on_gpu)
        uf_cuda_copy(g->device, NULL, NULL, 0, a->word, a->value);
    else if (!holds(__atomic_load_n(a->word, __ATOMIC_ACQUIRE), a))
        __atomic_store_n(a->word, a->value, __ATOMIC_RELEASE);
}

void uf_gpu_tick(uf_world *w)
{
    struct uf_gpu *g = uf_gpu_of(w);
    if (!g || atomic_load_explicit(&w->status, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&g->waits->lock);
    for (size_t i = 0; i < g->waits->n; i++)
        let_go(g, &g->waits->list[i]);
    pthread_mutex_unlock(&g->waits->lock);
}

/* ---------------------------------------------------------------- addresses */

static int check_world(uf_world *w, const char *call)
{
    int rc = uf_world_check(w);
    if (!rc && !uf_gpu_of(w))
        rc = uf_fail(
            UF_EINVAL,
            "%s on PE %d: no GPU memory is in use in this world yet: call uf_device_world or uf_malloc_on first, on all PEs",
            call, w->pe);
    return rc;
}

static int check(uf_ctx *ctx, const char *call, int pe)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "%s: argument ctx is NULL", call);
    uf_world *w = ctx->world;
    if (!uf_world_check_pe(w, pe))
        return uf_fail(UF_ERANGE, "%s on PE %d: argument pe: there is no PE %d in a world of %d PEs (0 to %d)", call, w->pe, pe,
                       w->n_pes, w->n_pes - 1);
    return check_world(w, call);
}

static int refuse_far(uf_world *w, const char *call, int pe)
{
    return uf_fail(UF_EUNSUPPORTED,
                   "%s on PE %d: PE %d is not near (%s), and streams reach only near peers; let the host or a kernel do it", call,
                   w->pe, pe, uf_gpu_of(w)->peers[pe].reason);
}

/* Where a symmetric range of `pe` is for a stream: GPU memory of a near peer, or host memory mapped here. */
static int find(uf_world *w, const char *call, const char *argument, const void *sym, size_t bytes, int pe, void **at,
                bool *on_gpu)
{
    const struct uf_gpu *g = uf_gpu_of(w);
    const uf_region *r = uf_memory_find(w, sym, bytes);
    *on_gpu = r && r->memory == UF_MEMORY_CUDA;
    if (!r)
        return uf_fail(
            UF_ERANGE,
            "%s on PE %d: argument %s: %p with %zu bytes is not symmetric memory of this world (uf_malloc_on, uf_malloc, "
            "uf_register, uf_signal_alloc), or runs over its end",
            call, w->pe, argument, sym, bytes);
    if (!w->peers[pe].mapped || (*on_gpu && !g->peers[pe].near))
        return refuse_far(w, call, pe);
    if (*on_gpu)
        return uf_gpu_reach(w, call, argument, r, sym, pe, at);
    *at = uf_ptr(w, sym, pe);
    if (!*at)
        return uf_fail(
            UF_EUNSUPPORTED,
            "%s on PE %d: argument %s lies in a window over host memory of PE %d, another process; streams reach heaps and GPU "
            "windows",
            call, w->pe, argument, pe);
    return UF_OK;
}

/* What memory operations store to must be mapped for the GPU. */
static int check_seen(const uf_world *w, const char *call, const char *argument, const void *sym)
{
    size_t offset = (size_t)((const unsigned char *)sym - w->range.base);
    if (offset < uf_gpu_of(w)->host_bytes)
        return UF_OK;
    return uf_fail(UF_EUNSUPPORTED,
                   "%s on PE %d: argument %s: %p is host memory that the GPU does not see (a window, or the heap could not be "
                   "locked); use memory of uf_malloc_on",
                   call, w->pe, argument, sym);
}

/* A signal word: aligned, and if it is in host memory then where GPUs see it. */
static int find_word(uf_world *w, const char *call, const uint64_t *sig, int pe, uint64_t **at, bool *on_gpu)
{
    void *found = NULL;
    if (!sig)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument sig is NULL", call, w->pe);
    if ((uintptr_t)sig & 7)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument sig: %p is not aligned to 8 bytes", call, w->pe, (const void *)sig);
    int rc = find(w, call, "sig", sig, 8, pe, &found, on_gpu);
    if (rc)
        return rc;
    *at = found;
    return *on_gpu ? UF_OK : check_seen(w, call, "sig", sig);
}

/* ---------------------------------------------------------------- puts, gets, signals */

static void count(uf_ctx *ctx, uf_counted what, size_t bytes)
{
    uf_tally_add(&ctx->tally, what, 1);
    if (bytes)
        uf_tally_add(&ctx->tally, UF_BYTES_LOCAL, bytes);
}

int uf_put_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe, uf_stream stream)
{
    void *at;
    bool on_gpu;
    int rc = check(ctx, "uf_put_on_stream", pe);
    if (rc || bytes == 0)
        return rc;
    uf_world *w = ctx->world;
    if (!src)
        return uf_fail(UF_EINVAL, "uf_put_on_stream on PE %d: argument src is NULL", w->pe);
    if ((rc = find(w, "uf_put_on_stream", "dst", dst, bytes, pe, &at, &on_gpu)) ||
        (rc = uf_cuda_stream_put(uf_gpu_of(w)->device, stream, at, src, bytes, NULL, 0, UF_CUDA_APART, "uf_put_on_stream")))
        return rc;
    count(ctx, UF_PUTS, bytes);
    return UF_OK;
}

int uf_get_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe, uf_stream stream)
{
    void *at;
    bool on_gpu;
    int rc = check(ctx, "uf_get_on_stream", pe);
    if (rc || bytes == 0)
        return rc;
    uf_world *w = ctx->world;
    if (!dst)
        return uf_fail(UF_EINVAL, "uf_get_on_stream on PE %d: argument dst is NULL", w->pe);
    if ((rc = find(w, "uf_get_on_stream", "src", src, bytes, pe, &at, &on_gpu)) ||
        (rc = uf_cuda_stream_put(uf_gpu_of(w)->device, stream, dst, at, bytes, NULL, 0, UF_CUDA_APART, "uf_get_on_stream")))
        return rc;
    count(ctx, UF_GETS, bytes);
    return UF_OK;
}

static int check_signal(const uf_world *w, const char *call, int op, unsigned flags)
{
    if (op == UF_SIGNAL_ADD)
        return uf_fail(UF_EUNSUPPORTED,
                       "%s on PE %d: argument op is UF_SIGNAL_ADD, but a stream can store a word and not add to it: use "
                       "UF_SIGNAL_SET and a word "
                       "for each source, or add in a kernel",
                       call, w->pe);
    if (op != UF_SIGNAL_SET)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument op is %d, neither UF_SIGNAL_SET nor UF_SIGNAL_ADD", call, w->pe, op);
    if (flags & ~(unsigned)(UF_STRONG | UF_SETTLED | UF_NOWAIT | UF_BY_VALUE))
        return uf_fail(UF_EINVAL,
                       "%s on PE %d: argument flags is 0x%x; known are UF_STRONG, UF_SETTLED, UF_NOWAIT and UF_BY_VALUE", call,
                       w->pe, flags);
    return UF_OK;
}

/* A word here that a stream stores to is none that the engine may update. */
static int claim_own(const uf_world *w, const uint64_t *sig)
{
    uf_cuda_writer *writer = uf_gpu_of(w)->writer;
    return writer ? uf_cuda_word_claim(writer, sig, UF_CUDA_BY_PEERS) : UF_OK;
}

enum { MOST_OPS = UF_BY_VALUE_MAX / 8 + 1 };

/* A put with signal, resolved: what is appended to the stream. */
typedef struct message {
    void *at; /* of the copy */
    size_t copied;
    uf_cuda_op ops[MOST_OPS];
    size_t n;
} message;

static int check_by_value(const uf_world *w, const char *call, const void *dst, const void *src, size_t bytes)
{
    if (bytes > UF_BY_VALUE_MAX || bytes % 8 || (uintptr_t)dst % 8)
        return uf_fail(
            UF_EINVAL,
            "%s on PE %d: UF_BY_VALUE takes a multiple of 8 bytes up to %d and a dst that is aligned to 8; given are %zu "
            "bytes and %p",
            call, w->pe, UF_BY_VALUE_MAX, bytes, dst);
    if (uf_gpu_in_heap(w, src))
        return uf_fail(UF_EINVAL,
                       "%s on PE %d: argument src: %p is GPU memory, which the CPU cannot read; leave UF_BY_VALUE away", call,
                       w->pe, src);
    return UF_OK;
}

/* The bytes as stores of 8, read now. */
static void add_values(message *m, const void *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uf_cuda_op store = {UF_CUDA_WRITE, (uint64_t *)(void *)((unsigned char *)m->at + i), 0};
        memcpy(&store.value, (const unsigned char *)src + i, 8);
        m->ops[m->n++] = store;
    }
}

static int resolve_bytes(uf_world *w, const char *call, void *dst, const void *src, size_t bytes, int pe, unsigned flags,
                         message *m)
{
    bool on_gpu;
    if (!src)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument src is NULL", call, w->pe);
    int rc = find(w, call, "dst", dst, bytes, pe, &m->at, &on_gpu);
    if (rc || !(flags & UF_BY_VALUE)) {
        m->copied = bytes;
        return rc;
    }
    if ((rc = check_by_value(w, call, dst, src, bytes)) || (!on_gpu && (rc = check_seen(w, call, "dst", dst))))
        return rc;
    add_values(m, src, bytes);
    return UF_OK;
}

static int put_signal(uf_ctx *ctx, const char *call, void *dst, const void *src, size_t bytes, uint64_t *sig, int op,
                      uint64_t value, int pe, unsigned flags, uf_stream stream)
{
    message m;
    uf_cuda_op store = {UF_CUDA_WRITE, NULL, value};
    bool sig_on_gpu;
    int rc = check(ctx, call, pe);
    if (rc)
        return rc;
    uf_world *w = ctx->world;
    m.at = NULL;
    m.copied = m.n = 0;
    /* All is checked before anything is appended. */
    if ((rc = check_signal(w, call, op, flags)) || (rc = find_word(w, call, sig, pe, &store.word, &sig_on_gpu)) ||
        (bytes && (rc = resolve_bytes(w, call, dst, src, bytes, pe, flags, &m))) ||
        (sig_on_gpu && pe == w->pe && (rc = claim_own(w, sig))))
        return rc;
    m.ops[m.n++] = store;
    if ((rc = uf_cuda_stream_put(uf_gpu_of(w)->device, stream, m.at, src, m.copied, m.ops, m.n, UF_CUDA_MAY_JOIN, call)))
        return rc;
    if (bytes)
        count(ctx, UF_PUTS, bytes);
    count(ctx, UF_SIGNALS, 0);
    return UF_OK;
}

int uf_put_signal_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                            unsigned flags, uf_stream stream)
{
    return put_signal(ctx, "uf_put_signal_on_stream", dst, src, bytes, sig, op, value, pe, flags, stream);
}

int uf_signal_on_stream(uf_ctx *ctx, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags, uf_stream stream)
{
    return put_signal(ctx, "uf_signal_on_stream", NULL, NULL, 0, sig, op, value, pe, flags, stream);
}

/* ---------------------------------------------------------------- waits and order */

/* A comparison as the driver has it; false: it has none. */
static bool translate(int cmp, uint64_t value, uf_cuda_op *op)
{
    op->value = value;
    switch (cmp) {
    case UF_EQ:
        op->kind = UF_CUDA_WAIT_EQ;
        return true;
    case UF_GE:
        op->kind = UF_CUDA_WAIT_GE;
        return true;
    case UF_GT:
        op->kind = UF_CUDA_WAIT_GE;
        op->value = value + 1;
        return true;
    case UF_NE:
        op->kind = UF_CUDA_WAIT_NONZERO;
        op->value = UINT64_MAX;
        return value == 0;
    default:
        return false;
    }
}

int uf_wait_on_stream(uf_world *w, uint64_t *sig, int cmp, uint64_t value, unsigned flags, uf_stream stream)
{
    static const char call[] = "uf_wait_on_stream";
    uf_cuda_op ops[2] = {{UF_CUDA_WAIT_EQ, NULL, 0}, {UF_CUDA_WRITE, NULL, 0}};
    bool on_gpu;
    if (!w)
        return uf_fail(UF_EINVAL, "%s: argument world is NULL", call);
    int rc = check_world(w, call);
    if (rc)
        return rc;
    if (flags & ~(unsigned)(UF_CONSUME | UF_CHAINED))
        return uf_fail(UF_EINVAL, "%s on PE %d: argument flags is 0x%x; known are UF_CONSUME and UF_CHAINED", call, w->pe, flags);
    if (!translate(cmp, value, &ops[0]))
        return uf_fail(cmp < UF_EQ || cmp > UF_LE ? UF_EINVAL : UF_EUNSUPPORTED,
                       "%s on PE %d: argument cmp is %d: a stream can wait for UF_EQ, UF_GE, UF_GT, and UF_NE with value 0", call,
                       w->pe, cmp);
    if ((rc = find_word(w, call, sig, w->pe, &ops[0].word, &on_gpu)))
        return rc;
    ops[1].word = ops[0].word;
    const awaited a = {ops[0].word, ops[0].value, ops[0].kind, on_gpu};
    rc = note(uf_gpu_of(w), &a);
    uf_cuda_join join = flags & UF_CHAINED ? UF_CUDA_MAY_JOIN : UF_CUDA_APART;
    return rc ? rc : uf_cuda_stream_ops(uf_gpu_of(w)->device, stream, ops, flags & UF_CONSUME ? 2 : 1, join, call);
}

/* To near peers the stream's own order is all there is to fence and quiet. */
static int ordered(uf_ctx *ctx, const char *call, uf_counted what)
{
    if (!ctx)
        return uf_fail(UF_EINVAL, "%s: argument ctx is NULL", call);
    int rc = check_world(ctx->world, call);
    if (!rc)
        uf_tally_add(&ctx->tally, what, 1);
    return rc;
}

int uf_fence_on_stream(uf_ctx *ctx, uf_stream stream)
{
    (void)stream;
    return ordered(ctx, "uf_fence_on_stream", UF_FENCES);
}

int uf_quiet_on_stream(uf_ctx *ctx, uf_stream stream)
{
    (void)stream;
    return ordered(ctx, "uf_quiet_on_stream", UF_QUIETS);
}

/* ---------------------------------------------------------------- barrier */

/* Operations on their way to the stream. */
typedef struct batch {
    uf_world *w;
    struct uf_gpu *g;
    uf_stream stream;
    size_t n;
    uf_cuda_op ops[64];
} batch;

static int flush(batch *b)
{
    size_t n = b->n;
    b->n = 0;
    return n ? uf_cuda_stream_ops(b->g->device, b->stream, b->ops, n, UF_CUDA_APART, "uf_barrier_on_stream") : UF_OK;
}

static int add(batch *b, uf_cuda_op_kind kind, uint64_t *word, uint64_t value)
{
    int rc = b->n == sizeof b->ops / sizeof *b->ops ? flush(b) : UF_OK;
    b->ops[b->n++] = (uf_cuda_op){kind, word, value};
    return rc;
}

/* Waits for 1 in our own word and takes it away. */
static int consume(batch *b, uint64_t *word)
{
    const awaited a = {word, 1, UF_CUDA_WAIT_EQ, true};
    int rc = note(b->g, &a);
    if (!rc)
        rc = add(b, UF_CUDA_WAIT_EQ, word, 1);
    return rc ? rc : add(b, UF_CUDA_WRITE, word, 0);
}

static uint64_t *at_peer(const batch *b, uint64_t *word, int pe)
{
    const unsigned char *base = pe == b->w->pe ? b->g->range.base : b->g->peers[pe].range.base;
    return (uint64_t *)(uintptr_t)(base + ((unsigned char *)word - b->g->range.base));
}

/* All come to member 0, which then lets all go. Every word is 1 only from its sender's store to its receiver's wait: a PE stores its next arrival
 * only after member 0 has consumed the last one, which it knows from having been let go; so no number is baked in, and replays are alike. */
static int meet(batch *b, const uf_team *t)
{
    uint64_t *words = uf_gpu_team_words(b->w, b->g, t->id), *leave = words + b->w->n_pes;
    int root = t->pes[0], rc = UF_OK;
    if (t->me != 0) {
        rc = add(b, UF_CUDA_WRITE, at_peer(b, &words[t->me], root), 1);
        if (!rc)
            rc = consume(b, leave);
    } else {
        for (int i = 1; i < t->n && !rc; i++)
            rc = consume(b, &words[i]);
        for (int i = 1; i < t->n && !rc; i++)
            rc = add(b, UF_CUDA_WRITE, at_peer(b, leave, t->pes[i]), 1);
    }
    return rc ? rc : flush(b);
}

int uf_barrier_on_stream(uf_team *t, uf_stream stream)
{
    static const char call[] = "uf_barrier_on_stream";
    int rc = uf_team_check(t, call);
    if (!rc)
        rc = check_world(t->world, call);
    for (int i = 0; !rc && i < t->n; i++)
        if (!uf_gpu_of(t->world)->peers[t->pes[i]].near)
            rc = refuse_far(t->world, call, t->pes[i]);
    if (rc)
        return rc;
    batch b = {.w = t->world, .g = uf_gpu_of(t->world), .stream = stream};
    return meet(&b, t);
}
