/* near_rma.cu - puts, gets, signals and atomics between near PEs, in each scope: part of device_near. */
#include "near.cuh"

/* What carries the bytes, and what then tells the receiver. */
enum { BY_PUT, BY_PUT_NBI_FENCE, BY_PUT_NBI_QUIET, BY_PUT_SIGNAL, BY_PUT_SIGNAL_NBI_ADD, BY_GET, BY_GET_NBI, KINDS };
static const char *const kind_name[KINDS] = {"put then strong signal",      "put_nbi, fence, weak signal",
                                             "put_nbi, quiet, weak signal", "put_signal SET",
                                             "put_signal_nbi ADD",          "get",
                                             "get_nbi, then quiet"};

struct copy_case {
    uint32_t bytes;
    uint8_t dst_align, src_align;
    uint16_t pad;
};

enum { GUARD = 64, GUARD_BYTE = 0xc5, SIG = 0, ACK = 1, READY = 2 };

template <class S>
static __device__ int send(const ufd_ctx &c, int kind, uint8_t *dst, const uint8_t *src, const copy_case &k, uint64_t n, int pe)
{
    uint64_t *sig = near_signal(c.world, SIG);
    int rc = 0;
    switch (kind) {
    case BY_PUT:
        rc = ufd_put_in<S>(c, dst, src, k.bytes, pe);
        return rc ? rc : ufd_signal_in<S>(c, sig, UF_SIGNAL_SET, n, pe, UF_STRONG);
    case BY_PUT_NBI_FENCE:
        rc = ufd_put_nbi_in<S>(c, dst, src, k.bytes, pe);
        ufd_fence_in<S>(c);
        return rc ? rc : ufd_signal_in<S>(c, sig, UF_SIGNAL_SET, n, pe, UF_WEAK);
    case BY_PUT_NBI_QUIET:
        rc = ufd_put_nbi_in<S>(c, dst, src, k.bytes, pe);
        ufd_quiet_in<S>(c);
        return rc ? rc : ufd_signal_in<S>(c, sig, UF_SIGNAL_ADD, 1, pe, UF_WEAK);
    case BY_PUT_SIGNAL:
        return ufd_put_signal_in<S>(c, dst, src, k.bytes, sig, UF_SIGNAL_SET, n, pe, UF_WEAK);
    default:
        return ufd_put_signal_nbi_in<S>(c, dst, src, k.bytes, sig, UF_SIGNAL_ADD, 1, pe, UF_STRONG);
    }
}

/* Every case around the ring: to the right neighbour, checked with its surroundings by the receiver as soon as the signal shows. */
template <class S> __global__ void copies(rig_gang g, int kind, uint32_t n_cases)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    const copy_case *cases = (const copy_case *)(w->heap + NEAR_CASES);
    bool getting = kind == BY_GET || kind == BY_GET_NBI, mine = near_takes_part<S>();
    uint8_t *area = near_data(w, 0);
    for (uint32_t i = threadIdx.x; i < (96 << 10); i += blockDim.x)
        area[i] = GUARD_BYTE;
    __syncthreads();
    if (threadIdx.x == 0)
        ufd_barrier(w);
    __syncthreads();
    for (uint32_t i = 0; i < n_cases; i++) {
        copy_case k = cases[i];
        uint8_t *src = near_data(w, 1) + k.src_align, *dst = area + GUARD + k.dst_align;
        near_fill(src, k.bytes, me, i);
        __syncthreads();
        int rc = 0;
        if (mine && !getting) {
            rc = send<S>(c, kind, dst, src, k, i + 1, right);
            rc = rc ? rc : ufd_wait_in<S>(w, near_signal(w, SIG), UF_GE, i + 1, UFD_WORLD_TIMEOUT);
        } else if (mine) {
            rc = ufd_signal_in<S>(c, near_signal(w, READY), UF_SIGNAL_SET, i + 1, right, UF_STRONG);
            rc = rc ? rc : ufd_wait_in<S>(w, near_signal(w, READY), UF_GE, i + 1, UFD_WORLD_TIMEOUT);
            rc = rc               ? rc
                 : kind == BY_GET ? ufd_get_in<S>(c, dst, src, k.bytes, left)
                                  : ufd_get_nbi_in<S>(c, dst, src, k.bytes, left);
            if (kind == BY_GET_NBI)
                ufd_quiet_in<S>(c);
        }
        NEAR_IS(g, rc == 0, 1, i, -rc);
        __syncthreads();
        NEAR_IS(g, near_is(dst, k.bytes, left, i), 2, i, k.bytes);
        for (uint32_t x = threadIdx.x; x < GUARD + 16; x += blockDim.x) {
            NEAR_IS(g, area + x >= dst || area[x] == GUARD_BYTE, 3, i, x);
            NEAR_IS(g, dst[k.bytes + x] == GUARD_BYTE, 4, i, x);
        }
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < k.bytes; x += blockDim.x)
            dst[x] = GUARD_BYTE;
        __syncthreads();
        if (threadIdx.x == 0) {
            ufd_signal(c, near_signal(w, ACK), UF_SIGNAL_ADD, 1, left, UF_STRONG);
            rc = ufd_wait(w, near_signal(w, ACK), UF_GE, i + 1, UFD_WORLD_TIMEOUT);
            if (getting && rc == 0) { /* the left neighbour's source is free only when we have read it */
                ufd_signal(c, near_signal(w, ACK + 4), UF_SIGNAL_ADD, 1, left, UF_STRONG);
                rc = ufd_wait(w, near_signal(w, ACK + 4), UF_GE, i + 1, UFD_WORLD_TIMEOUT);
            }
            NEAR_IS(g, rc == 0, 5, i, -rc);
        }
        if (__syncthreads_or(rc))
            return;
    }
}

static std::vector<copy_case> copy_cases(bool quick, bool alone)
{
    std::vector<copy_case> cases;
    std::vector<uint32_t> all = {0,  1,  2,  3,  4,  5,  7,   8,   9,   12,  15,  16,  17,   24,   31,   32,  33,
                                 47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 255, 256, 1000, 1023, 1024, 1025};
    std::vector<uint32_t> few = {0, 1, 8, 17, 33, 130};
    for (uint32_t bytes : quick ? few : all)
        for (int a = 0; a < 256; a += quick ? 37 : 1)
            cases.push_back({bytes, (uint8_t)(a / 16), (uint8_t)(a % 16), 0});
    for (uint32_t bytes : {2047u, 4096u, 4097u, 8191u, 16387u, 32768u, 65535u, 65536u})
        for (int a = 0; a < 256 && !quick; a += alone ? 51 : 17)
            cases.push_back({bytes, (uint8_t)(a / 16), (uint8_t)(a % 16), 0});
    return cases;
}

template <class S> static void copies_in(near_run *n, const char *scope, unsigned threads)
{
    std::vector<copy_case> cases = copy_cases(n->quick, threads == 32);
    for (int kind = 0; kind < KINDS; kind++) {
        char promise[160];
        snprintf(promise, sizeof promise,
                 "%s in %s scope: every size to 64 KiB and alignment arrives whole, alone and before its signal (%zu cases)",
                 kind_name[kind], scope, cases.size());
        rig_reset(&n->r);
        for (int pe = 0; pe < n->r.n_pes; pe++)
            RIG_CUDA(cudaMemcpy(n->r.pe[pe].heap + NEAR_CASES, cases.data(), cases.size() * sizeof(copy_case),
                                cudaMemcpyHostToDevice));
        rig_start(&n->r, copies<S>, 1, threads, 0, kind, (uint32_t)cases.size());
        near_report(n, promise, 0);
    }
}

/* Every thread, warp or block of a grid adds to words of all PEs, weak and strong in turn. */
template <class S> __global__ void counts(rig_gang g, uint32_t each)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint32_t group = (blockIdx.x * blockDim.x + threadIdx.x) / S::size();
    for (uint32_t i = 0; i < each; i++)
        for (int pe = 0; pe < ufd_n_pes(w); pe++) {
            int rc = ufd_signal_in<S>(c, near_signal(w, group % 4), UF_SIGNAL_ADD, 1, pe, i % 2 ? UF_WEAK : UF_STRONG);
            NEAR_IS(g, rc == 0, 1, i, -rc);
        }
    uint64_t groups = gridDim.x * blockDim.x / S::size(), want = groups / 4 * each * ufd_n_pes(w);
    for (uint32_t word = 0; word < 4 && blockIdx.x == 0; word++)
        NEAR_IS(g, ufd_wait_block(w, near_signal(w, word), UF_EQ, want, UFD_WORLD_TIMEOUT) == 0, 2, want, *near_signal(w, word));
}

template <class S> static void counts_in(near_run *n, const char *scope)
{
    char promise[120];
    uint32_t threads = 128, blocks = 4, each = n->quick ? 4 : 200;
    uint64_t faults = 0, want = (uint64_t)blocks * threads /
                                (scope[0] == 't'   ? 1
                                 : scope[0] == 'w' ? 32
                                                   : threads) /
                                4 * each * n->r.n_pes;
    rig_reset(&n->r);
    rig_start(&n->r, counts<S>, blocks, threads, 0, each);
    rig_synchronize(&n->r);
    for (int pe = 0; pe < n->r.n_pes; pe++)
        for (int word = 0; word < 4; word++) {
            uint64_t have;
            rig_read(&n->r, pe, &have, n->r.pe[pe].heap + NEAR_SIGNALS + 64 * word, 8);
            faults += have != want;
        }
    snprintf(promise, sizeof promise, "signals in %s scope: the sum sent by all to all is the sum applied, exactly", scope);
    near_report(n, promise, faults);
}

template <class S, class T>
static __device__ void atomic_is(const rig_gang &g, const ufd_ctx &c, T *word, int pe, int op, uint64_t operand, uint64_t compare,
                                 uint64_t old, uint64_t now)
{
    uint64_t was = ~0ull, is = ~0ull;
    int rc = ufd_atomic_in<S>(c, op, sizeof(T), word, operand, compare, &was, pe);
    rc = rc ? rc : ufd_atomic_in<S>(c, UF_ATOMIC_FETCH, sizeof(T), word, 0, 0, &is, pe);
    if (S::rank() != 0)
        return;
    NEAR_IS(g, rc == 0, 10 + op, pe, -rc);
    NEAR_IS(g, is == now, 100 + op, is, now);
    NEAR_IS(g, was == (op >= UF_ATOMIC_FETCH ? old : ~0ull), 200 + op, was, old);
}

template <class S, class T> static __device__ void atomics_of(const rig_gang &g, const ufd_ctx &c, T *word, int pe)
{
    const T top = (T)((T)1 << (8 * sizeof(T) - 1));
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_SET, top + 5, 0, 0, (T)(top + 5));
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_ADD, top, 0, 0, 5);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_OR, 0x38, 0, 0, 0x3d);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_AND, 0x1e, 0, 0, 0x1c);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_XOR, 0x11, 0, 0, 0x0d);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_FETCH, 0, 0, 0x0d, 0x0d);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_FETCH_ADD, 3, 0, 0x0d, 0x10);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_FETCH_OR, 0x0f, 0, 0x10, 0x1f);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_FETCH_AND, 0x1c, 0, 0x1f, 0x1c);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_FETCH_XOR, 0x14, 0, 0x1c, 0x08);
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_SWAP, top + 1, 0, 0x08, (T)(top + 1));
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_COMPARE_SWAP, 7, 9, (T)(top + 1), (T)(top + 1));
    atomic_is<S>(g, c, word, pe, UF_ATOMIC_COMPARE_SWAP, 7, (T)(top + 1), (T)(top + 1), 7);
}

/* On words of the right neighbour that nobody else touches; the neighbouring 4 bytes must stay. */
template <class S> __global__ void atomics(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int right = (ufd_pe(w) + 1) % ufd_n_pes(w);
    if (!near_takes_part<S>())
        return;
    uint32_t *narrow = (uint32_t *)near_signal(w, 1);
    atomics_of<S>(g, c, near_signal(w, 0), right);
    atomics_of<S>(g, c, narrow, right);
    uint64_t beside = 1;
    if (S::rank() == 0)
        NEAR_IS(g, ufd_atomic_fetch32(c, narrow + 1, &beside, right) == 0 && beside == 0, 300, beside, 0);
}

/* All threads of all PEs draw tickets from one word of PE 0, by addition and by compare and swap. */
__global__ void tickets(rig_gang g, uint32_t each)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint64_t sum = 0, old = 0;
    for (uint32_t i = 0; i < each; i++) {
        NEAR_IS(g, ufd_atomic_fetch_add64(c, near_signal(w, 0), 1, &old, 0) == 0, 1, i, 0);
        sum += old;
    }
    for (uint32_t i = 0; i < each; i++)
        for (uint64_t want = 0;; want = old) {
            NEAR_IS(g,
                    ufd_atomic_compare_swap32(c, (uint32_t *)near_signal(w, 1), (uint32_t)want, (uint32_t)want + 1, &old, 0) == 0,
                    2, i, 0);
            if (old == want)
                break;
        }
    ufd_atomic_add64(c, near_signal(w, 2), sum, ufd_pe(w));
}

static uint64_t tickets_wrong(near_run *n, uint64_t drawn)
{
    uint64_t sum = 0, words[3];
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        rig_read(&n->r, pe, &words[2], n->r.pe[pe].heap + NEAR_SIGNALS + 128, 8);
        sum += words[2];
    }
    rig_read(&n->r, 0, &words[0], n->r.pe[0].heap + NEAR_SIGNALS, 8);
    rig_read(&n->r, 0, &words[1], n->r.pe[0].heap + NEAR_SIGNALS + 64, 8);
    return (words[0] != drawn) + (words[1] != drawn) + (sum != drawn * (drawn - 1) / 2);
}

/* Chunks from every PE to every PE at once, a block for each pair, two slots each; every byte read right after its signal. */
__global__ void all_to_all(rig_gang g, uint32_t rounds, uint32_t bytes)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), pe = (int)blockIdx.x;
    for (uint32_t i = 1; i <= rounds; i++) {
        uint8_t *src = near_data(w, 0) + pe * 65536, *slot = near_data(w, 1 + i % 2);
        near_fill(src, bytes, me, i * n + pe);
        int rc = ufd_put_signal_block(c, slot + me * 65536, src, bytes, near_signal(w, me), UF_SIGNAL_SET, i, pe, UF_WEAK);
        rc = rc ? rc : ufd_wait_block(w, near_signal(w, pe), UF_GE, i, UFD_WORLD_TIMEOUT);
        NEAR_IS(g, rc == 0, 1, i, -rc);
        NEAR_IS(g, near_is(slot + pe * 65536, bytes, pe, i * n + me), 2, i, pe);
        ufd_signal_block(c, near_signal(w, 32 + me), UF_SIGNAL_SET, i, pe, UF_STRONG);
        if (rc || ufd_wait_block(w, near_signal(w, 32 + pe), UF_GE, i - 1, UFD_WORLD_TIMEOUT))
            return;
    }
}

/* The heap is not all: a registered window, and the host heap as the GPU sees it. ufd_ptr says where they are. */
__global__ void elsewhere(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    uint8_t *window = (uint8_t *)w->windows[0].base, *host = (uint8_t *)w->host_heap, *src = near_data(w, 0);
    near_fill(src, 5000, me, 1);
    NEAR_IS(g,
            ufd_put_signal_block(c, window + 33, src, 5000, (uint64_t *)(window + 8000), UF_SIGNAL_ADD, 4, right, UF_WEAK) == 0,
            1, 0, 0);
    NEAR_IS(g, ufd_put_signal_block(c, host + 7, src, 5000, (uint64_t *)(host + 8000), UF_SIGNAL_SET, 9, right, UF_WEAK) == 0, 2,
            0, 0);
    NEAR_IS(g, ufd_wait_block(w, (uint64_t *)(window + 8000), UF_EQ, 4, UFD_WORLD_TIMEOUT) == 0, 3, 0, 0);
    NEAR_IS(g, near_is(window + 33, 5000, left, 1), 4, 0, 0);
    NEAR_IS(g, ufd_wait_block(w, (uint64_t *)(host + 8000), UF_EQ, 9, UFD_WORLD_TIMEOUT) == 0, 5, 0, 0);
    NEAR_IS(g, near_is(host + 7, 5000, left, 1), 6, 0, 0);
    NEAR_IS(g, ufd_put(c, &g, src, 8, right) == UF_ERANGE, 7, 0, 0);
    NEAR_IS(g, ufd_ptr(w, &g, right) == 0 && ufd_ptr(w, src, n) == 0 && ufd_ptr(w, src, -1) == 0, 8, 0, 0);
    NEAR_IS(g, ufd_ptr(w, src, me) == src && *ufd_ptr(w, window + 33, right) == near_byte(me, 1, 0), 9, 0, 0);
}

/* A source may change after flush, and after put returns, though the put itself goes on. */
template <class S> __global__ void reuse(rig_gang g, uint32_t rounds, uint32_t bytes)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    uint8_t *src = near_data(w, 0), *dst = near_data(w, 1);
    for (uint32_t i = 1; i <= rounds; i++) {
        near_fill(src, bytes, me, i);
        __syncthreads();
        if (near_takes_part<S>()) {
            if (i % 2)
                ufd_put_in<S>(c, dst, src, bytes, right);
            else
                ufd_put_nbi_in<S>(c, dst, src, bytes, right);
            ufd_flush_in<S>(c);
        }
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < bytes; x += blockDim.x)
            src[x] = 0;
        ufd_signal_block(c, near_signal(w, 0), UF_SIGNAL_SET, i, right, UF_STRONG);
        int rc = ufd_wait_block(w, near_signal(w, 0), UF_GE, i, UFD_WORLD_TIMEOUT);
        NEAR_IS(g, rc == 0 && near_is(dst, bytes, left, i), 1, i, -rc);
        ufd_signal_block(c, near_signal(w, 1), UF_SIGNAL_SET, i, left, UF_STRONG);
        if (rc || ufd_wait_block(w, near_signal(w, 1), UF_GE, i, UFD_WORLD_TIMEOUT))
            return;
    }
}

/* A peer that is not near is refused, by every operation. */
__global__ void not_near(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint64_t *word = near_signal(w, 0), old;
    int right = (ufd_pe(w) + 1) % ufd_n_pes(w), no = UF_EUNSUPPORTED;
    NEAR_IS(g, ufd_put(c, word, &old, 8, right) == no && ufd_get_warp(c, &old, word, 8, right) == no, 1, 0, 0);
    NEAR_IS(g, ufd_put_signal_block(c, word, &old, 8, word, UF_SIGNAL_ADD, 1, right, 0) == no, 2, 0, 0);
    NEAR_IS(g, ufd_signal(c, word, UF_SIGNAL_ADD, 1, right, 0) == no && ufd_atomic_add64(c, word, 1, right) == no, 3, 0, 0);
    NEAR_IS(g, ufd_put_flagged(c, word, &old, 8, 1, right) == no && ufd_barrier_block(w) == no, 4, 0, 0);
    NEAR_IS(g, ufd_ptr(w, word, right) == 0 && *word == 0, 5, 0, 0);
    NEAR_IS(g, ufd_check(w) == UF_OK, 6, 0, 0);
}

static void ways(near_run *n, uint32_t way)
{
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        const int right = (pe + 1) % n->r.n_pes;
        RIG_CUDA(cudaMemcpy(&n->r.pe[pe].peers[right].way, &way, sizeof way, cudaMemcpyHostToDevice));
    }
}

void near_rma(near_run *n)
{
    copies_in<ufd_thread>(n, "thread", 32);
    copies_in<ufd_warp>(n, "warp", 64);
    copies_in<ufd_block>(n, "block", 192);
    counts_in<ufd_thread>(n, "thread");
    counts_in<ufd_warp>(n, "warp");
    counts_in<ufd_block>(n, "block");

    rig_reset(&n->r);
    rig_start(&n->r, atomics<ufd_thread>, 1, 64, 0);
    near_report(n, "atomics in thread scope: each of the twelve does what it says, 4 and 8 bytes wide", 0);
    rig_reset(&n->r);
    rig_start(&n->r, atomics<ufd_warp>, 1, 64, 0);
    near_report(n, "atomics in warp scope: likewise, once a warp", 0);
    rig_reset(&n->r);
    rig_start(&n->r, atomics<ufd_block>, 1, 64, 0);
    near_report(n, "atomics in block scope: likewise, once a block", 0);

    uint32_t each = n->quick ? 2 : 50;
    rig_reset(&n->r);
    rig_start(&n->r, tickets, 2, 64, 0, each);
    rig_synchronize(&n->r);
    near_report(n, "tickets drawn by all threads of all PEs from one word are each drawn once",
                tickets_wrong(n, (uint64_t)each * 128 * n->r.n_pes));

    rig_reset(&n->r);
    rig_start(&n->r, all_to_all, (unsigned)n->r.n_pes, 256, 0, n->quick ? 5u : 1000u, n->quick ? 999u : 40000u);
    near_report(n, "all to all: every byte is there when its signal is, in every round", 0);

    rig_reset(&n->r);
    rig_start(&n->r, elsewhere, 1, 128, 0);
    near_report(n, "windows and the host heap are reached, what is not symmetric is refused, ufd_ptr tells which", 0);

    rig_reset(&n->r);
    rig_start(&n->r, reuse<ufd_thread>, 1, 64, 0, n->quick ? 4u : 500u, 2000u);
    near_report(n, "a source may change after put or flush, in thread scope", 0);
    rig_reset(&n->r);
    rig_start(&n->r, reuse<ufd_warp>, 1, 64, 0, n->quick ? 4u : 500u, 20000u);
    near_report(n, "a source may change after put or flush, in warp scope", 0);
    rig_reset(&n->r);
    rig_start(&n->r, reuse<ufd_block>, 1, 512, 0, n->quick ? 4u : 500u, 60000u);
    near_report(n, "a source may change after put or flush, in block scope", 0);

    rig_reset(&n->r);
    ways(n, UFD_WAY_NONE);
    rig_start(&n->r, not_near, 1, 32, 0);
    rig_synchronize(&n->r);
    ways(n, UFD_WAY_NEAR);
    near_report(n, "a peer that is not near is refused by every operation, and nothing is written", 0);
}
