/* kernels.cuh - what near.cu measures: ping-pongs, streams, barriers, and the receivers that check what arrives.
 *
 * The source of each PE is one pattern, different in every word. A message is a piece of it from a place that depends on its number and
 * on the run, so that no slot of the target receives the same words twice in a row: what is stale, torn or misplaced shows. */
#ifndef UNFENCE_BENCH_GPU_KERNELS_CUH
#define UNFENCE_BENCH_GPU_KERNELS_CUH

#include "gpu/rig.cuh"
#include "unfence/device.cuh"

enum : uint64_t {
    AT_SIGNALS = 1 << 20,
    AT_SOURCE = 32ull << 20,
    AT_TARGET = 192ull << 20,
    ROTATION = 128ull << 20,
    HEAP = 352ull << 20
};
enum { AT_WORDS = 64 << 10, AT_ECHO = 65 << 10, AT_FLOOR = 66 << 10, LANES_MOST = 1024, TIMES_MOST = 1 << 16 };

static __device__ __forceinline__ uint32_t pattern(int pe, uint64_t word)
{
    uint32_t x = (uint32_t)word * 2654435761u + (uint32_t)pe * 0x9e3779b9u;
    return x ^ x >> 15;
}

/* How messages lie: 2^bits places of `stride` bytes, message m to place m modulo their number. */
struct layout {
    uint64_t bytes, stride, run;
    uint32_t bits;

    UFD_METHOD uint64_t slot_of(uint64_t m) const
    {
        return m & ((1ull << bits) - 1);
    }
    UFD_METHOD uint64_t target_of(uint64_t m) const
    {
        return AT_TARGET + slot_of(m) * stride;
    }
    UFD_METHOD uint64_t source_of(uint64_t m) const
    {
        return AT_SOURCE + slot_of(slot_of(m) * 7 + (m >> bits) * 13 + run * 29 + 3) * stride;
    }
    UFD_METHOD uint64_t *signal_of(const ufd_world *w, uint64_t m) const
    {
        return (uint64_t *)(w->heap + AT_SIGNALS) + slot_of(m) * 2;
    }
    UFD_METHOD uint64_t value_of(uint64_t m) const
    {
        return run * 65536 + (m >> bits) + 1;
    }
};

__global__ void fill(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    uint32_t *p = (uint32_t *)(w->heap + AT_SOURCE);
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < ROTATION / 4; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = pattern(w->pe, i);
}

/* After `messages` from PE `from`: each slot holds its last message, and its signal if there were signals. */
__global__ void verify(rig_gang g, layout l, uint64_t messages, int from, bool signals)
{
    const ufd_world *w = rig_world(g);
    if (w->pe == from)
        return;
    uint64_t slots = 1ull << l.bits, used = messages < slots ? messages : slots;
    for (uint64_t s = blockIdx.x; s < used; s += gridDim.x) {
        uint64_t m = ((messages - 1 - s) >> l.bits << l.bits) + s, at = (l.source_of(m) - AT_SOURCE) / 4;
        const uint32_t *p = (const uint32_t *)(w->heap + l.target_of(m));
        for (uint64_t x = threadIdx.x; x < l.bytes / 4; x += blockDim.x)
            if (p[x] != pattern(from, at + x))
                rig_fault(g, 1, m, x);
        if (signals && threadIdx.x == 0 && *l.signal_of(w, m) != l.value_of(m))
            rig_fault(g, 2, m, *l.signal_of(w, m));
    }
}

/* ---------------------------------------------------------------- latency */

enum { PING_PUT_SIGNAL, PING_READ, PING_FLAGGED, WORD_SIGNAL, WORD_FLAGGED };
enum { PING_SMALL = 1024, PING_HOT = 6 };

/* Time per round trip: clock counts, and the timer around them, which tells how long a count is. */
struct times {
    uint64_t ns, clocks, n;
    uint32_t each[TIMES_MOST];
};

/* One side of a ping-pong. Up to PING_SMALL bytes are made by the sender in shared memory, where a kernel that is in a hurry has them; more
 * come from the heap. Places and what is expected are worked out while a message is under way: they are the benchmark's work. */
template <class S, int Kind> struct player {
    const ufd_world *w;
    uint64_t heap;
    ufd_ctx c;
    layout l;
    int me;
    uint64_t base;
    uint32_t *mine, *want, *got; /* in shared memory: what is sent, what should come, what came */
    void *to;
    const void *from, *at;

    UFD_METHOD bool small(void) const
    {
        return l.bytes <= PING_SMALL;
    }
    /* By all threads: message i, which is sent next. */
    UFD_METHOD void prepare(uint32_t i)
    {
        to = (void *)(heap + l.target_of(i));
        from = small() ? (const void *)mine : (const void *)(heap + l.source_of(i));
        for (uint32_t x = S::rank(); x < l.bytes / 4 && small(); x += S::size())
            mine[x] = pattern(me, (l.source_of(i) - AT_SOURCE) / 4 + x);
    }
    /* ... and message i, which comes next. */
    UFD_METHOD void expect(uint32_t i)
    {
        at = (const void *)(heap + l.target_of(i));
        for (uint32_t x = S::rank(); x < l.bytes / 4 && small(); x += S::size())
            want[x] = pattern(1 - me, (l.source_of(i) - AT_SOURCE) / 4 + x);
        S::sync();
    }
    UFD_METHOD void send(uint32_t i) const
    {
        uint64_t v = base + i + 1, *word = (uint64_t *)(heap + AT_WORDS);
        if (Kind == PING_FLAGGED)
            ufd_put_flagged_in<S>(c, to, from, l.bytes, v, 1 - me);
        else
            ufd_put_signal_in<S>(c, to, from, l.bytes, word, UF_SIGNAL_SET, v, 1 - me, UF_WEAK);
        S::sync(); /* the source is free */
    }
    /* READ and FLAGGED look at every word. False: no more. */
    UFD_METHOD bool await(const rig_gang &g, uint32_t i) const
    {
        uint64_t v = base + i + 1;
        int rc = Kind == PING_FLAGGED ? ufd_wait_flagged_in<S>(w, got, at, l.bytes, v, UFD_WORLD_TIMEOUT)
                                      : ufd_wait_in<S>(w, (const uint64_t *)(heap + AT_WORDS), UF_GE, v, UFD_WORLD_TIMEOUT);
        const uint64_t *payload = Kind == PING_FLAGGED ? (const uint64_t *)got : (const uint64_t *)at;
        for (uint32_t x = S::rank(); x < l.bytes / 8 && rc == 0 && Kind != PING_PUT_SIGNAL; x += S::size())
            if (payload[x] != ((const uint64_t *)want)[x])
                rig_fault(g, 3, i, x);
        return rc == 0;
    }
};

/* Clock counts of each turn, by PE 0's leader. */
struct turns {
    uint64_t start, first, last;

    UFD_METHOD void begin(void)
    {
        start = ufd_ptx_ns(), first = last = (uint64_t)clock64();
    }
    UFD_METHOD void turn(times *t, uint32_t i)
    {
        uint64_t now = (uint64_t)clock64();
        t->each[i % TIMES_MOST] = (uint32_t)(now - last);
        last = now;
    }
    UFD_METHOD void end(times *t, uint32_t rounds) const
    {
        t->ns = ufd_ptx_ns() - start, t->clocks = last - first, t->n = rounds;
    }
};

/* The largest block that plays a ping-pong in a scope. */
template <class S> struct players {
    enum { most = 1 };
};
template <> struct players<ufd_warp> {
    enum { most = 32 };
};
template <> struct players<ufd_block> {
    enum { most = 1024 };
};

/* PE 0 sends, PE 1 answers alike. PE 1 waits for its first message before the loop, so that both then do the same in each turn. */
template <class S, int Kind>
__global__ void __launch_bounds__(players<S>::most) ping(rig_gang g, layout l, uint32_t rounds, uint64_t base, times *t)
{
    const ufd_world *w = rig_world(g);
    __shared__ __align__(8) uint32_t mine[PING_SMALL / 4], want[PING_SMALL / 4], got[PING_SMALL / 4];
    int me = w->pe;
    player<S, Kind> p = {w, w->heap, ufd_ctx_at(w, 0), l, me, base, mine, want, got, 0, 0, 0};
    bool timing = me == 0 && S::rank() == 0;
    turns time = {};
    p.prepare(0);
    p.expect(0);
    if (me == 1 && !p.await(g, 0))
        return;
    for (uint32_t i = 0; i < rounds + 50; i++) {
        if (timing && i == 50)
            time.begin();
        p.send(i);
        p.prepare(i + 1);
        p.expect(i + (uint32_t)me);
        if (!p.await(g, i + (uint32_t)me))
            return;
        if (timing && i >= 50)
            time.turn(t, i - 50);
    }
    if (timing)
        time.end(t, rounds);
    if (me == 0)
        p.send(rounds + 50); /* what PE 1 waits for in its last turn */
}

/* What one thread says to another in a word: a signal, or 8 bytes of payload with their flag, from register to register. */
template <int Kind> struct word_player {
    const ufd_world *w;
    uint64_t heap;
    ufd_ctx c;
    int me;
    uint32_t mask; /* of the places that messages take in turn */

    UFD_METHOD uint64_t *place(uint64_t v) const
    {
        return (uint64_t *)(heap + (Kind == WORD_SIGNAL ? (uint64_t)AT_WORDS : AT_TARGET + ((uint32_t)v & mask) * 65536ull));
    }
    UFD_METHOD static uint64_t payload(int pe, uint64_t v)
    {
        return v * 0x9e3779b97f4a7c15ull + (uint64_t)pe;
    }
    UFD_METHOD void send(uint64_t *there, uint64_t v, uint64_t word) const
    {
        if (Kind == WORD_SIGNAL)
            ufd_signal(c, there, UF_SIGNAL_SET, v, 1 - me, UF_WEAK);
        else
            ufd_put_flagged(c, there, &word, 8, v, 1 - me);
    }
    UFD_METHOD bool await(const uint64_t *here, uint64_t v, uint64_t want) const
    {
        uint64_t word = want;
        int rc = Kind == WORD_SIGNAL ? ufd_wait(w, here, UF_GE, v, UFD_WORLD_TIMEOUT)
                                     : ufd_wait_flagged(w, &word, here, 8, v, UFD_WORLD_TIMEOUT);
        return rc == 0 && word == want;
    }
};

/* As ping, by one thread. */
template <int Kind>
__global__ void __launch_bounds__(1) word_ping(rig_gang g, uint32_t mask, uint32_t rounds, uint64_t base, times *t)
{
    const ufd_world *w = rig_world(g);
    const int me = w->pe;
    const word_player<Kind> p = {w, w->heap, ufd_ctx_at(w, 0), me, mask};
    turns time = {};
    uint64_t out = base + 1, in = out; /* numbers of the messages sent and awaited next */
    bool right = me == 0 || p.await(p.place(in), in, p.payload(0, in));
    in += (uint64_t)me;
    uint64_t *to = p.place(out), word = p.payload(me, out);
    for (uint32_t i = 0; i < rounds + 50 && right; i++) {
        if (me == 0 && i == 50)
            time.begin();
        p.send(to, out, word);
        out++;
        to = p.place(out), word = p.payload(me, out);
        right = p.await(p.place(in), in, p.payload(1 - me, in));
        in++;
        if (me == 0 && i >= 50)
            time.turn(t, i - 50);
    }
    if (!right)
        rig_fault(g, 7, in - base, 0);
    if (me == 0) {
        time.end(t, rounds);
        p.send(to, out, word);
    }
}

/* What a fence costs a thread with one remote store outstanding, and without. */
__global__ void fences(rig_gang g, uint32_t rounds, bool store, times *t)
{
    const ufd_world *w = rig_world(g);
    uint64_t *there = (uint64_t *)(ufd_ptr(w, (uint8_t *)w->heap, 1 - w->pe) + AT_TARGET);
    if (w->pe != 0)
        return;
    uint64_t start = ufd_ptx_ns();
    for (uint32_t i = 0; i < rounds; i++) {
        if (store)
            ufd_ptx_store_relaxed(there + i % 4096 * 16, i);
        ufd_ptx_fence();
    }
    t->ns = ufd_ptx_ns() - start, t->n = rounds;
}

template <class S, class How> __global__ void meetings(rig_gang g, uint32_t rounds, times *t)
{
    const ufd_world *w = rig_world(g);
    uint64_t start = 0;
    for (uint32_t i = 0; i < rounds + 50; i++) {
        if (i == 50)
            start = ufd_ptx_ns();
        if (ufd_meet<S, How>(w))
            return;
    }
    if (w->pe == 0 && S::rank() == 0)
        t->ns = ufd_ptx_ns() - start, t->n = rounds;
}

/* ---------------------------------------------------------------- streams from PE 0 to PE 1 (or both ways) */

/* Messages of a grid, mover k of `lanes` taking k, k + lanes, ... `stamp`: when every 64th message of lane 0 was taken. */
struct source {
    layout l;
    uint64_t heap;
    int32_t pe;
    uint64_t first, lanes, each;
    uint64_t *stamp;

    UFD_METHOD bool operator()(uint32_t warp, uint64_t i, ufd_row *row) const
    {
        if (i >= each)
            return false;
        uint64_t m = first + warp + i * lanes;
        row->dst = (void *)(heap + l.target_of(m));
        row->src = (const void *)(heap + l.source_of(m));
        row->bytes = l.bytes;
        row->sig = (uint64_t *)(heap + AT_SIGNALS) + l.slot_of(m) * 2;
        row->value = l.value_of(m);
        row->pe = pe;
        row->op = UF_SIGNAL_SET;
        row->flags = UF_WEAK;
        if (stamp && first + warp == 0 && i % 64 == 0)
            stamp[i / 64 % TIMES_MOST] = ufd_ptx_ns();
        return true;
    }
};

template <class Shape, int Mode>
__global__ void __launch_bounds__(ufd_mover_threads<Shape>(Mode))
    moving(rig_gang g, layout l, uint64_t each, uint32_t batch, uint64_t ns, uint64_t *stamp, bool both)
{
    extern __shared__ __align__(128) uint8_t stages[];
    const ufd_world *w = rig_world(g);
    if (w->pe != 0 && !both)
        return;
    source next = {l, w->heap, 1 - w->pe, blockIdx.x * (uint64_t)Shape::warps, gridDim.x * (uint64_t)Shape::warps, each, stamp};
    ufd_mover_knob knob = {batch, ns};
    int rc = ufd_mover_block<Shape, Mode>(ufd_ctx_block(w), stages, knob, next);
    if (rc)
        rig_fault(g, 4, (uint64_t)-rc, 0);
}

/* The same by plain block puts: unsignalled, or each with a release. */
__global__ void __launch_bounds__(1024) putting(rig_gang g, layout l, uint64_t each, bool signals)
{
    const ufd_world *w = rig_world(g);
    if (w->pe != 0)
        return;
    ufd_ctx c = ufd_ctx_block(w);
    source next = {l, w->heap, 1, blockIdx.x, gridDim.x, each, 0};
    ufd_row row;
    for (uint64_t i = 0; next(0, i, &row); i++)
        if (signals)
            ufd_put_signal_block(c, row.dst, row.src, row.bytes, row.sig, row.op, row.value, row.pe, row.flags);
        else
            ufd_put_nbi_block(c, row.dst, row.src, row.bytes, row.pe);
    ufd_quiet_block(c);
}

/* PE 1 answers every 64th message of lane 0 as soon as its signal shows; PE 0 notes when the answer came. One thread each. */
__global__ void echo(rig_gang g, layout l, uint64_t lanes, uint64_t each, uint64_t base, uint64_t *came)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_at(w, 1);
    uint64_t *word = (uint64_t *)(w->heap + AT_ECHO);
    for (uint64_t i = 0; i < each; i += 64) {
        int rc;
        if (w->pe == 1) {
            rc = ufd_wait(w, l.signal_of(w, i * lanes), UF_GE, l.value_of(i * lanes), 2000000000);
            ufd_signal(c, word, UF_SIGNAL_SET, base + i + 1, 0, UF_WEAK);
        } else {
            rc = ufd_wait(w, word, UF_GE, base + i + 1, 2000000000);
            came[i / 64 % TIMES_MOST] = ufd_ptx_ns();
        }
        if (rc) {
            rig_fault(g, 5, i, (uint64_t)-rc);
            return;
        }
    }
}

/* ---------------------------------------------------------------- the checking receiver */

struct tally {
    unsigned long long messages, wrong_words, wrong_messages, waited;
};

/* A block takes lanes of the stream, its warps in turn: each waits for its message and reads every word the moment that its signal shows. */
__global__ void __launch_bounds__(1024)
    checking(rig_gang g, layout l, uint64_t lanes, uint64_t each, bool both, tally *sums0, tally *sums1)
{
    const ufd_world *w = rig_world(g);
    if (w->pe != 1 && !both)
        return;
    tally mine = {};
    uint32_t lane = ufd_warp::rank();
    const uint64_t share = lanes / gridDim.x;
    for (uint64_t i = threadIdx.x / 32; i < each * share; i += blockDim.x / 32) {
        uint64_t m = blockIdx.x + i % share * gridDim.x + i / share * lanes, at = (l.source_of(m) - AT_SOURCE) / 4;
        const uint64_t *word = l.signal_of(w, m);
        const uint4 *p = (const uint4 *)(w->heap + l.target_of(m));
        bool early = ufd_test_warp(w, word, UF_GE, l.value_of(m)) != UF_OK;
        if (early && ufd_wait_warp(w, word, UF_GE, l.value_of(m), 2000000000)) {
            rig_fault(g, 6, m, ufd_signal_fetch(word));
            break;
        }
        uint32_t wrong = 0;
        for (uint64_t x = lane; x < l.bytes / 16; x += 32) {
            uint4 v = p[x];
            wrong += (v.x != pattern(1 - w->pe, at + 4 * x)) + (v.y != pattern(1 - w->pe, at + 4 * x + 1)) +
                     (v.z != pattern(1 - w->pe, at + 4 * x + 2)) + (v.w != pattern(1 - w->pe, at + 4 * x + 3));
        }
        wrong = __reduce_add_sync(0xffffffffu, wrong);
        mine.messages++, mine.wrong_words += wrong, mine.wrong_messages += wrong != 0, mine.waited += early;
    }
    if (lane == 0) {
        tally *sums = w->pe == 0 ? sums0 : sums1; /* in its own GPU's memory */
        atomicAdd(&sums->messages, mine.messages);
        atomicAdd(&sums->wrong_words, mine.wrong_words);
        atomicAdd(&sums->wrong_messages, mine.wrong_messages);
        atomicAdd(&sums->waited, mine.waited);
    }
}

/* The control: as a mover, but each signal goes out when its source has been read, not when its bytes have arrived. A checker that
 * finds nothing wrong here would find nothing anywhere. HASTY stages a warp keep the way full, so that bytes wait on it and words pass. */
enum { HASTY = 8 };
__global__ void __launch_bounds__(256) hasty(rig_gang g, layout l, uint64_t each)
{
#if UFD_HAS_BULK
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[8];
    const ufd_world *w = rig_world(g);
    uint32_t warp = threadIdx.x / 32, stages = l.bytes <= 2048 ? HASTY : 2;
    if (w->pe != 0 || threadIdx.x % 32 != 0)
        return;
    source next = {l, w->heap, 1, blockIdx.x * 8ull, gridDim.x * 8ull, each, 0};
    int64_t shift = (int64_t)(ufd_ptr(w, (uint8_t *)w->heap, 1) - (uint8_t *)w->heap);
    ufd_ptx_barrier_init(&full[warp]);
    ufd_ptx_barriers_ready();
    ufd_row row;
    for (uint64_t i = 0; next(warp, i, &row); i += stages) {
        uint32_t n = each - i < stages ? (uint32_t)(each - i) : stages;
        ufd_ptx_barrier_expect(&full[warp], n * (uint32_t)l.bytes);
        for (uint32_t k = 0; k < n; k++) {
            next(warp, i + k, &row);
            ufd_ptx_bulk_load(shared + (warp * stages + k) * l.bytes, (uint64_t)row.src, (uint32_t)row.bytes, &full[warp]);
        }
        ufd_ptx_barrier_wait(&full[warp], (uint32_t)(i / stages) & 1);
        for (uint32_t k = 0; k < n; k++) {
            next(warp, i + k, &row);
            ufd_ptx_bulk_store((uint64_t)row.dst + (uint64_t)shift, shared + (warp * stages + k) * l.bytes, (uint32_t)row.bytes);
        }
        ufd_ptx_bulk_commit();
        ufd_ptx_bulk_read<0>();
        for (uint32_t k = n; k-- > 0;) { /* the last one first */
            next(warp, i + k, &row);
            ufd_signal_at(ufd_moved(row.sig, shift), UF_SIGNAL_SET, row.value, false);
        }
    }
    ufd_ptx_bulk_complete<0>();
#endif
}

#endif
