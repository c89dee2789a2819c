/* near_sync.cu - waits, tests, timeouts, the status word, flagged puts, barriers, graph replay: part of device_near. */
#include "near.cuh"
#include <chrono>
#include <thread>

/* What each comparison means, written differently from the code under test. */
static __device__ bool expected(int cmp, uint64_t have, uint64_t want)
{
    const int sign = have < want ? 0 : have == want ? 1 : 2; /* bits: less, equal, greater */
    const int holds[6] = {2, 5, 4, 6, 1, 3};                 /* EQ NE GT GE LT LE */
    return holds[cmp] >> sign & 1;
}

template <class S> __global__ void comparisons(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    const uint64_t values[5] = {0, 1, 0x7fffffffffffffffull, 0x8000000000000000ull, ~0ull};
    uint64_t *word = near_signal(w, 0);
    for (int h = 0; h < 5; h++)
        for (int v = 0; v < 5; v++)
            for (int cmp = UF_EQ; cmp <= UF_LE; cmp++) {
                __syncthreads();
                if (ufd_block_rank() == 0)
                    ufd_ptx_store_relaxed(word, values[h]);
                __syncthreads();
                if (!near_takes_part<S>())
                    continue;
                bool holds = expected(cmp, values[h], values[v]);
                int code = h * 100 + v * 10 + cmp;
                NEAR_IS(g, ufd_test_in<S>(w, word, cmp, values[v]) == (holds ? UF_OK : UF_EAGAIN), 1, code, 0);
                NEAR_IS(g, ufd_wait_in<S>(w, word, cmp, values[v], 0) == (holds ? UF_OK : UF_ETIMEDOUT), 2, code, 0);
                NEAR_IS(g, ufd_wait_in<S>(w, word, cmp, values[v], 1000) == (holds ? UF_OK : UF_ETIMEDOUT), 3, code, 0);
            }
    NEAR_IS(g, ufd_signal_fetch(word) == ~0ull, 4, 0, 0);
}

/* A list of 37 words; the left neighbour raises them one after another, when it is told to. */
template <class S> __global__ void lists(rig_gang g)
{
    enum { N = 37 };
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int n = ufd_n_pes(w), right = (ufd_pe(w) + 1) % n, left = (ufd_pe(w) + n - 1) % n;
    const uint64_t **sigs = (const uint64_t **)near_data(w, 0);
    uint64_t *values = (uint64_t *)near_data(w, 1), *go = near_signal(w, 60), *word = near_signal(w, 0);
    unsigned char *skip = near_data(w, 2);
    for (uint32_t i = ufd_block_rank(); i < N; i += blockDim.x)
        sigs[i] = near_signal(w, i), values[i] = 1000 + i, skip[i] = 0;
    __syncthreads();
    ufd_wait_list any = {sigs, N, skip, UF_NE, 0, 0, 0}, all = {sigs, N, skip, UF_EQ, 0, 0, values};
    uint32_t index = 99;
    if (blockIdx.x == 0) { /* the waiting block */
        bool mine = near_takes_part<S>();
        for (uint32_t i = 0; i < N; i++) {
            uint32_t which = i * 23 % N;
            ufd_signal_block(c, go, UF_SIGNAL_SET, i + 1, left, UF_STRONG);
            if (mine) {
                NEAR_IS(g, ufd_wait_any_in<S>(w, any, &index, UFD_WORLD_TIMEOUT) == 0 && index == which, 1, index, which);
                NEAR_IS(g, ufd_wait_all_in<S>(w, all, i + 1 < N ? 2000 : UFD_WORLD_TIMEOUT) == (i + 1 < N ? UF_ETIMEDOUT : UF_OK),
                        2, i, 0);
            }
            __syncthreads();
            if (ufd_block_rank() == 0)
                skip[which] = 1; /* any no longer sees it; all is not to miss it */
            __syncthreads();
            all.skip = 0;
        }
        if (mine) {
            NEAR_IS(g, ufd_wait_any_in<S>(w, any, &index, 0) == 0 && index == N, 3, index, 0);
            any.skip = 0, any.cmp = UF_EQ, any.value = 7;
            NEAR_IS(g, ufd_wait_any_in<S>(w, any, &index, 100000) == UF_ETIMEDOUT, 4, 0, 0);
            any.n = 0;
            NEAR_IS(g, ufd_wait_any_in<S>(w, any, &index, 0) == 0 && index == 0, 5, index, 0);
            NEAR_IS(g, ufd_wait_all_in<S>(w, any, 0) == 0, 6, 0, 0);
        }
    } else if (ufd_block_rank() == 0) { /* raises the right neighbour's */
        for (uint32_t i = 0; i < N; i++) {
            NEAR_IS(g, ufd_wait(w, go, UF_GE, i + 1, UFD_WORLD_TIMEOUT) == 0, 7, i, 0);
            uint32_t which = i * 23 % N;
            ufd_signal(c, word + 8 * which, UF_SIGNAL_SET, 1000 + which, right, UF_WEAK);
        }
    }
}

template <class S> __global__ void late(rig_gang g, uint64_t timeout_ns)
{
    const ufd_world *w = rig_world(g);
    if (!near_takes_part<S>())
        return;
    uint64_t start = ufd_ptx_ns();
    int rc = ufd_wait_in<S>(w, near_signal(w, 3), UF_GE, 5, timeout_ns);
    uint64_t took = ufd_ptx_ns() - start;
    NEAR_IS(g, rc == UF_ETIMEDOUT, 1, -rc, 0);
    NEAR_IS(g, took + 2000 >= timeout_ns && took < timeout_ns + 1000000000, 2, took, timeout_ns);
    NEAR_IS(g, ufd_wait_flagged_in<S>(w, near_data(w, 1), near_data(w, 0), 100, 3, 100000) == UF_ETIMEDOUT, 3, 0, 0);
}

static uint64_t late_record_wrong(near_run *n)
{
    uint64_t wrong = 0;
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        ufd_error e;
        rig_read(&n->r, pe, &e, n->r.pe[pe].error, sizeof e);
        wrong += e.ready != 1 || e.code != UF_ETIMEDOUT || e.what != UFD_IN_WAIT || e.given != 0 || e.wanted != 5;
        wrong += e.thread[0] != 0 || e.block[0] != 0 || e.address != n->r.pe[pe].shape.heap + NEAR_SIGNALS + 64 * 3;
    }
    return wrong;
}

/* Waits without a timeout; the host ends the world when it sees that all are waiting. */
__global__ void ended(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint64_t *never = near_signal(w, 0), *here = (uint64_t *)w->host_heap;
    const uint64_t **sigs = (const uint64_t **)near_data(w, 0);
    if (ufd_block_rank() == 0) {
        sigs[0] = never;
        ufd_signal(c, here, UF_SIGNAL_SET, 1, ufd_pe(w), UF_WEAK);
    }
    __syncthreads();
    ufd_wait_list list = {sigs, 1, 0, UF_GE, 0, 5, 0};
    uint32_t index;
    NEAR_IS(g, ufd_wait_block(w, never, UF_GE, 5, UF_FOREVER) == UF_EPEER, 1, 0, 0);
    NEAR_IS(g, ufd_wait_warp(w, never, UF_GE, 5, UF_FOREVER) == UF_EPEER, 2, 0, 0);
    NEAR_IS(g, ufd_wait(w, never, UF_GE, 5, UF_FOREVER) == UF_EPEER, 3, 0, 0);
    NEAR_IS(g, ufd_wait_all_block(w, list, UF_FOREVER) == UF_EPEER, 4, 0, 0);
    NEAR_IS(g, ufd_wait_any_warp(w, list, &index, UF_FOREVER) == UF_EPEER, 5, 0, 0);
    NEAR_IS(g, ufd_wait_flagged_block(w, never, near_data(w, 1), 64, 5, UF_FOREVER) == UF_EPEER, 6, 0, 0);
    if (ufd_pe(w) == 0)
        NEAR_IS(g, ufd_barrier_warp(w) == UF_EPEER, 7, 0, 0);
}

static void end_when_waiting(near_run *n)
{
    auto start = std::chrono::steady_clock::now();
    for (int pe = 0; pe < n->r.n_pes; pe++)
        while (*(volatile uint64_t *)n->r.pe[pe].host != 1 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
            std::this_thread::yield();
    *n->r.status = UF_EPEER;
}

/* Messages of many sizes around the ring through four slots, each reused as soon as its message was answered. */
template <class S> __global__ void flagged(rig_gang g, uint32_t messages)
{
    enum { SLOTS = 4, MOST = 2100 };
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    bool mine = near_takes_part<S>();
    for (uint64_t i = 1; i <= messages; i++) {
        uint64_t bytes = i % 64 == 0 ? MOST - i % 7 : (i * 2654435761u >> 7) % 70;
        uint8_t *src = near_data(w, 0) + i % 16, *dst = near_data(w, 1) + 64 + i * 5 % 16,
                *slot = near_data(w, 2) + i % SLOTS * 8192;
        near_fill(src, bytes, me, i);
        near_fill(dst - 8, bytes + 16, 77, i);
        __syncthreads();
        int rc = 0;
        if (mine) {
            if (i > SLOTS)
                rc = ufd_wait_in<S>(w, near_signal(w, 0), UF_GE, i - SLOTS, UFD_WORLD_TIMEOUT);
            rc = rc ? rc : ufd_put_flagged_in<S>(c, slot, src, bytes, i, right);
            rc = rc ? rc : ufd_wait_flagged_in<S>(w, dst, slot, bytes, i, UFD_WORLD_TIMEOUT);
            ufd_signal_in<S>(c, near_signal(w, 0), UF_SIGNAL_SET, i, left, UF_WEAK);
        }
        NEAR_IS(g, rc == 0, 1, i, -rc);
        if (__syncthreads_or(rc))
            return;
        NEAR_IS(g, near_is(dst, bytes, left, i), 2, i, bytes);
        for (uint32_t x = threadIdx.x; x < 8; x += blockDim.x) {
            NEAR_IS(g, dst[(int)x - 8] == near_byte(77, i, x), 3, i, x);
            NEAR_IS(g, dst[bytes + x] == near_byte(77, i, bytes + 8 + x), 4, i, x);
        }
        __syncthreads();
    }
}

/* Two messages in one slot without waiting for an answer. */
__global__ void flagged_overrun(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int n = ufd_n_pes(w), right = (ufd_pe(w) + 1) % n;
    uint64_t word = 5;
    uint8_t *slot = near_data(w, 0);
    ufd_put_flagged(c, slot, &word, 8, 1, right);
    ufd_put_flagged(c, slot, &word, 8, 2, right);
    ufd_signal(c, near_signal(w, 0), UF_SIGNAL_SET, 1, right, UF_STRONG);
    NEAR_IS(g, ufd_wait(w, near_signal(w, 0), UF_GE, 1, UFD_WORLD_TIMEOUT) == 0, 1, 0, 0);
    NEAR_IS(g, ufd_wait_flagged(w, &word, slot, 8, 1, UFD_WORLD_TIMEOUT) == UF_EMISMATCH, 2, 0, 0);
    NEAR_IS(g, ufd_wait_flagged(w, &word, slot, 8, 2, UFD_WORLD_TIMEOUT) == 0 && word == 5, 3, word, 0);
}

/* Plain stores of every round are readable after its barrier, everywhere; nobody is more than a round ahead. */
template <class S> __global__ void barriers(rig_gang g, uint32_t rounds)
{
    const ufd_world *w = rig_world(g);
    int me = ufd_pe(w), n = ufd_n_pes(w);
    uint32_t *table = (uint32_t *)near_data(w, 0);
    for (uint32_t i = 1; i <= rounds; i++) {
        uint32_t *mine = table + i % 2 * 4096 + me * 64;
        for (uint32_t x = threadIdx.x; x < (uint32_t)n * 32; x += blockDim.x)
            ufd_ptr(w, mine, (int)(x / 32))[x % 32] = i + x % 32;
        __syncthreads();
        int rc = near_takes_part<S>() ? ufd_barrier_in<S>(w) : 0;
        NEAR_IS(g, rc == 0, 1, i, -rc);
        if (__syncthreads_or(rc))
            return;
        for (uint32_t x = threadIdx.x; x < (uint32_t)n * 32; x += blockDim.x) {
            uint32_t have = table[i % 2 * 4096 + x / 32 * 64 + x % 32];
            NEAR_IS(g, have == i + x % 32, 2, i, have);
        }
        __syncthreads();
    }
}

template <class S> __global__ void syncs(rig_gang g, uint32_t rounds)
{
    const ufd_world *w = rig_world(g);
    if (!near_takes_part<S>())
        return;
    for (uint32_t i = 1; i <= rounds; i++) {
        int rc = ufd_sync_in<S>(w);
        uint64_t count = *(volatile uint64_t *)w->scratch;
        NEAR_IS(g, rc == 0, 1, i, -rc);
        NEAR_IS(g, S::rank() != 0 || count == i, 2, i, count);
        for (int pe = 0; pe < ufd_n_pes(w); pe++) {
            uint64_t seen = ufd_ptx_load_relaxed(w->barrier + pe);
            NEAR_IS(g, pe == ufd_pe(w) || seen == i || seen == i + 1, 3, i, seen);
        }
        if (rc)
            return;
    }
}

/* What a captured kernel can do: its count lives in memory, so that each replay continues. */
__global__ void replayed(rig_gang g, uint32_t bytes)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    uint64_t *count = near_signal(w, 9), i = *count + 1;
    uint8_t *src = near_data(w, 0), *dst = near_data(w, 1);
    near_fill(src, bytes, me, i);
    int rc = ufd_put_signal_block(c, dst, src, bytes, near_signal(w, 0), UF_SIGNAL_ADD, 1, right, UF_WEAK);
    rc = rc ? rc : ufd_wait_block(w, near_signal(w, 0), UF_GE, i, UFD_WORLD_TIMEOUT);
    NEAR_IS(g, rc == 0 && near_is(dst, bytes, left, i), 1, i, -rc);
    ufd_signal_block(c, near_signal(w, 1), UF_SIGNAL_ADD, 1, left, UF_STRONG);
    rc = ufd_wait_block(w, near_signal(w, 1), UF_GE, i, UFD_WORLD_TIMEOUT);
    NEAR_IS(g, rc == 0 && ufd_barrier_block(w) == 0, 2, i, -rc);
    if (ufd_block_rank() == 0)
        *count = i;
}

/* One graph for each stream that a launch goes to; each holds three steps. */
static uint64_t replay(near_run *n, int replays)
{
    rig *r = &n->r;
    int graphs = r->as_gang ? 1 : r->n_pes;
    cudaGraph_t graph[RIG_MAX_PES];
    cudaGraphExec_t exec[RIG_MAX_PES];
    for (int i = 0; i < graphs; i++) {
        RIG_CUDA(cudaSetDevice(r->pe[i].gpu));
        RIG_CUDA(cudaStreamBeginCapture(r->pe[i].streams[0], cudaStreamCaptureModeRelaxed));
    }
    for (int step = 0; step < 3; step++)
        rig_start(r, replayed, 1, 256, 0, 3000u);
    for (int i = 0; i < graphs; i++) {
        RIG_CUDA(cudaSetDevice(r->pe[i].gpu));
        RIG_CUDA(cudaStreamEndCapture(r->pe[i].streams[0], &graph[i]));
        RIG_CUDA(cudaGraphInstantiate(&exec[i], graph[i], 0));
    }
    for (int k = 0; k < replays; k++)
        for (int i = 0; i < graphs; i++) {
            RIG_CUDA(cudaSetDevice(r->pe[i].gpu));
            RIG_CUDA(cudaGraphLaunch(exec[i], r->pe[i].streams[0]));
        }
    rig_synchronize(r);
    uint64_t wrong = 0;
    for (int pe = 0; pe < r->n_pes; pe++) {
        uint64_t count;
        rig_read(r, pe, &count, r->pe[pe].heap + NEAR_SIGNALS + 64 * 9, 8);
        wrong += count != 3u * replays;
    }
    for (int i = 0; i < graphs; i++) {
        RIG_CUDA(cudaGraphExecDestroy(exec[i]));
        RIG_CUDA(cudaGraphDestroy(graph[i]));
    }
    return wrong;
}

template <class S> static void sync_in(near_run *n, const char *scope, unsigned threads)
{
    char promise[160];
    rig_reset(&n->r);
    rig_start(&n->r, comparisons<S>, 1, threads, 0);
    snprintf(promise, sizeof promise, "wait and test in %s scope: six comparisons, unsigned, at the edges", scope);
    near_report(n, promise, 0);
    rig_reset(&n->r);
    rig_start(&n->r, lists<S>, 2, threads, 0);
    snprintf(promise, sizeof promise, "wait_all and wait_any in %s scope: the right word, skips, values, empty lists", scope);
    near_report(n, promise, 0);
    rig_reset(&n->r);
    rig_start(&n->r, late<S>, 1, threads, 0, 3000000ull);
    rig_synchronize(&n->r);
    snprintf(promise, sizeof promise,
             "a wait in %s scope ends at its timeout, and the record names word, value, block and thread", scope);
    near_report(n, promise, late_record_wrong(n));
    rig_reset(&n->r);
    rig_start(&n->r, flagged<S>, 1, threads, 0, n->quick ? 70u : 20000u);
    snprintf(promise, sizeof promise,
             "flagged puts in %s scope: every size and alignment whole, through slots reused all the time", scope);
    near_report(n, promise, 0);
    rig_reset(&n->r);
    rig_start(&n->r, barriers<S>, 1, threads, 0, n->quick ? 20u : 10000u);
    snprintf(promise, sizeof promise, "barrier in %s scope: plain stores before it are readable after it, %d rounds", scope,
             n->quick ? 20 : 10000);
    near_report(n, promise, 0);
    rig_reset(&n->r);
    rig_start(&n->r, syncs<S>, 1, threads, 0, n->quick ? 20u : 10000u);
    snprintf(promise, sizeof promise, "sync in %s scope: nobody leaves before all have come, %d rounds", scope,
             n->quick ? 20 : 10000);
    near_report(n, promise, 0);
}

void near_sync(near_run *n)
{
    sync_in<ufd_thread>(n, "thread", 32);
    sync_in<ufd_warp>(n, "warp", 64);
    sync_in<ufd_block>(n, "block", 256);

    rig_reset(&n->r);
    rig_start(&n->r, flagged_overrun, 1, 1, 0);
    near_report(n, "a slot written twice without an answer is told from the message awaited", 0);

    rig_reset(&n->r);
    rig_start(&n->r, ended, 1, 32, 0);
    end_when_waiting(n);
    near_report(n, "the end of the world ends every wait with its code, also those without a timeout", 0);

    rig_reset(&n->r);
    near_report(n, "a captured kernel communicates in every replay of its graph", replay(n, n->quick ? 5 : 1000));
}
