/* efa_post.cu - kernels post through the EFA queue code into a ring in mapped host memory, and the host checks as the
 * device would: phase, completeness, each thread's order, doorbells forward. Needs a GPU and no NIC. Exit code 0: all is right.
 *
 * nvcc -std=c++17 -O2 -arch=sm_90 -Isrc tests/gpu/efa_post.cu -o efa_post && ./efa_post
 *
 * What it can't show: a NIC's memory behind the bus, which is write-combining and not readable. */
#include "fabric/efa/queue.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum { SHIFT = 10, DEPTH = 1 << SHIFT, BLOCKS = 8, THREADS = 32, POSTERS = BLOCKS * THREADS, EACH = 500, MAX_BATCH = 16 };

/* Every thread for itself: the hardest case for the turn. */
__global__ void post_each(uf_efa_sq *sq, uint32_t each)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t lane = 0; lane < 32;
         lane++) { /* one lane of a warp at a time: lanes that wait for each other may not diverge */
        if ((threadIdx.x & 31) == lane)
            for (uint32_t i = 0; i < each;) {
                uf_efa_wqe e;
                uint64_t name = (uint64_t)me << 32 | i;
                uf_efa_to to = {name, (uint32_t)name * 2654435761u, 1, 2, 0, 0};
                uf_efa_sge local = {~name, i, me};
                uf_efa_encode_write_imm(&e, 8, &to, name, i, &local, i);
                i += uf_efa_sq_post(sq, &e, 1, (i & 3) != 3 && i + 1 < each);
            }
        __syncwarp();
    }
}

/* A warp together: one reservation, each lane writes and flushes its own entry, lane 0 publishes. */
__global__ void post_warp(uf_efa_sq *sq, uint32_t each)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    for (uint32_t i = 0; i < each; i++)
        for (uint32_t half = 0; half < 2; half++) { /* 16 entries a batch */
            uint32_t base = 0;
            if (lane == 0)
                while (!uf_efa_sq_reserve(sq, 16, &base))
                    uf_shared_pause(0);
            base = __shfl_sync(0xffffffff, base, 0);
            if (lane / 16 == half) {
                uf_efa_wqe e;
                uint64_t name = (uint64_t)me << 32 | i;
                uf_efa_to to = {name, (uint32_t)name * 2654435761u, 1, 2, 0, 0};
                uf_efa_sge local = {~name, i, me};
                uf_efa_encode_write_imm(&e, 8, &to, name, i, &local, i);
                uf_efa_sq_write(sq, base + lane % 16, &e);
                uf_efa_sq_flush_stores(sq);
            }
            __syncwarp();
            if (lane == 0)
                uf_efa_sq_publish(sq, base, 16, 0);
            __syncwarp();
        }
}

static int run(const char *name, void (*kernel)(uf_efa_sq *, uint32_t))
{
    uf_efa_sq *sq;
    uint64_t *ring;
    uint32_t *bell, seen[POSTERS] = {0}, next = 0, faults = 0;
    cudaHostAlloc((void **)&sq, sizeof(*sq), cudaHostAllocMapped);
    cudaHostAlloc((void **)&ring, DEPTH * 64, cudaHostAllocMapped);
    cudaHostAlloc((void **)&bell, 64, cudaHostAllocMapped);
    memset(ring, 0xa5, DEPTH * 64);
    *bell = 0;
    uf_efa_sq_init(sq, ring, bell, SHIFT, 8, DEPTH - 1, MAX_BATCH, NULL);
    auto start = std::chrono::steady_clock::now();
    kernel<<<BLOCKS, THREADS>>>(sq, EACH);
    while (next != POSTERS * EACH && !faults) {
        uint32_t upto = uf_load_acquire32(bell);
        if (upto - next > DEPTH)
            faults++;
        uint32_t n = upto - next;
        for (; next != upto && !faults; next++) {
            uint64_t w[8];
            for (int i = 0; i < 8; i++) {
                w[i] = uf_load_relaxed64(&ring[(next % DEPTH) * 8 + i]);
                uf_store_relaxed64(&ring[(next % DEPTH) * 8 + i], 0xa5a5a5a5a5a5a5a5);
            }
            uint32_t from = (uint32_t)(w[5] >> 32) % POSTERS, at = (uint32_t)w[5];
            faults += (w[0] >> 24 & 1) != (next >> SHIFT & 1) || at != seen[from]++ || w[7] != ~w[5] || (uint32_t)w[1] != at ||
                      w[2] != (uint32_t)((uint32_t)w[5] * 2654435761u) || w[4] != uf_efa_word(at, at) ||
                      w[6] != uf_efa_word(at, from);
        }
        if (n)
            uf_efa_sq_complete(sq, n);
        if (cudaStreamQuery(0) != cudaErrorNotReady && next != POSTERS * EACH && uf_load_acquire32(bell) == next)
            faults += 1000;
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(40))
            faults += 100000;
    }
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    printf("%s: %u entries in %.2f s, %u faults, %s\n", name, next, s, faults, cudaGetErrorString(cudaGetLastError()));
    if (faults)
        exit(1);
    cudaDeviceSynchronize();
    return 0;
}

int main(void)
{
    return run("each thread", post_each) + run("warps", post_warp);
}
