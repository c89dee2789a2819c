/* floors.cuh - what the machine itself takes for the same work, measured beside it: what no library over it can beat.
 *
 * Bare words: loads and stores of two threads that know every address beforehand, with no test of anything. Bare bulk stores: the same
 * bytes of shared memory sent again and again, so that nothing has to be loaded first. A target that is missed by less than
 * its floor is a wrong target; one that is missed by more is our work. */
#ifndef UNFENCE_BENCH_GPU_FLOORS_CUH
#define UNFENCE_BENCH_GPU_FLOORS_CUH

#include "kernels.cuh"

/* A ping-pong of words: polled relaxed; so with a second load half a trip behind the first; polled with acquire; 16 bytes at once;
 * sent with a release; with 8 bytes of payload before the release. Both sides at once (a barrier): without a fence, with one. */
enum { BARE_RELAXED, BARE_TWICE, BARE_ACQUIRE, BARE_PAIR, BARE_RELEASE, BARE_PUT, BARE_SYNC, BARE_BARRIER };

template <int Kind> static __device__ __forceinline__ void bare_send(uint64_t *there, uint64_t v)
{
    if (Kind == BARE_PAIR) {
        ufd_ptx_store_pair(there, v, v);
        return;
    }
    if (Kind == BARE_PUT)
        ufd_ptx_store_relaxed(there + 16, v);
    if (Kind == BARE_BARRIER)
        ufd_ptx_fence();
    if (Kind == BARE_RELEASE || Kind == BARE_PUT)
        ufd_ptx_store_release(there, v);
    else
        ufd_ptx_store_relaxed(there, v);
}

template <int Kind> static __device__ __forceinline__ void bare_await(const uint64_t *here, uint64_t v)
{
    uint64_t low = 0, high = 0;
    if (Kind == BARE_TWICE) {
        low = ufd_ptx_load_relaxed(here);
        for (long long start = clock64(); clock64() - start < 250;)
            ;
        high = ufd_ptx_load_relaxed(here);
        for (;;) { /* each is awaited only when its turn comes */
            if (low >= v)
                return;
            low = ufd_ptx_load_relaxed(here);
            if (high >= v)
                return;
            high = ufd_ptx_load_relaxed(here);
        }
    }
    if (Kind == BARE_PAIR) {
        do
            ufd_ptx_load_pair(here, &low, &high);
        while (high < v || low < v);
    } else if (Kind == BARE_RELAXED || Kind == BARE_SYNC) {
        while (ufd_ptx_load_relaxed(here) < v)
            ;
    } else {
        while (ufd_ptx_load_acquire(here) < v)
            ;
    }
}

/* One thread a PE. No wait of it ends without its peer: for the benchmark, and right after a run that showed both alive. */
template <int Kind> __global__ void bare_words(rig_gang g, uint32_t rounds, uint64_t base, times *t)
{
    const ufd_world *w = rig_world(g);
    int me = w->pe;
    uint64_t *here = (uint64_t *)(w->heap + AT_FLOOR), *there = ufd_ptr(w, here, 1 - me);
    uint64_t start = ufd_ptx_ns(), v = base;
    for (uint32_t i = 0; i < rounds + 50; i++) {
        if (i == 50)
            start = ufd_ptx_ns();
        v++;
        if (Kind == BARE_SYNC || Kind == BARE_BARRIER || me == 0)
            bare_send<Kind>(there, v);
        bare_await<Kind>(here, v);
        if (Kind != BARE_SYNC && Kind != BARE_BARRIER && me == 1)
            bare_send<Kind>(there, v);
    }
    if (me == 0)
        t->ns = ufd_ptx_ns() - start, t->n = rounds;
}

/* How a stream of bulk stores is told: not; each by a relaxed word `8` groups later; each group waited for so, but nothing told. */
enum { BARE_UNTOLD, BARE_TOLD, BARE_AWAITED };

/* `each` stores of `bytes` by the first lane of every warp, over `stages` stages; what arrives is not looked at. */
template <int Told>
__global__ void __launch_bounds__(1024) bare_stores(rig_gang g, uint32_t bytes, uint32_t stages, uint64_t each)
{
#if UFD_HAS_BULK
    extern __shared__ __align__(128) uint8_t shared[];
    const ufd_world *w = rig_world(g);
    uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (w->pe != 0 || threadIdx.x % 32 != 0)
        return;
    uint64_t lane = blockIdx.x * warps + warp, lanes = gridDim.x * warps, slots = ROTATION / bytes / lanes, slot = 0;
    uint8_t *there = ufd_ptr(w, (uint8_t *)w->heap, 1);
    uint64_t *told = (uint64_t *)(there + AT_SIGNALS) + lane * 16;
    for (uint64_t i = 0; i < each; i++) {
        uint8_t *stage = shared + (warp * stages + (uint32_t)i % stages) * bytes;
        ufd_ptx_bulk_store((uint64_t)there + AT_TARGET + (slot * lanes + lane) * bytes, stage, bytes);
        ufd_ptx_bulk_commit();
        slot = slot + 1 == slots ? 0 : slot + 1;
        if (Told != BARE_UNTOLD)
            ufd_ptx_bulk_complete<8>();
        else
            ufd_ptx_bulk_read<1>();
        if (Told == BARE_TOLD)
            ufd_ptx_store_relaxed(told, i);
    }
    ufd_ptx_bulk_complete<0>();
#endif
}

#endif
