/* moe_dispatch.cu - tokens go to the PEs of their experts and come back, as in a layer of mixed experts.
 *
 * One block a destination packs the tokens of its experts and puts them there with a signal that carries their number; there one block a source
 * waits for it, applies the experts, and puts the rows back with a signal. How many tokens an expert had is counted by atomics. Rounds are
 * apart by a barrier on the stream. Written for NVSHMEM's interface. Usage: moe_dispatch [PES] */
#include "start.h"

enum { TOKENS = 96, WIDTH = 32, EXPERTS = 8, ROUNDS = 4, THREADS = 64 };

/* Symmetric, a row for each token: of a source's PE, or of a destination's. */
struct layer {
    float *sent, *received, *done, *returned; /* [n_pes][TOKENS][WIDTH] */
    int *sent_expert, *received_expert;       /* [n_pes][TOKENS] */
    int *place;                               /* [TOKENS]: a token's row at its destination */
    uint64_t *here, *back;                    /* [n_pes] */
    int *load;                                /* [EXPERTS] on each PE, of which it has every n_pes-th */
    float *tokens;                            /* [TOKENS][WIDTH], and the results */
};

__device__ int expert_of(int token, int pe, int round)
{
    uint32_t h = (uint32_t)(token * 7919 + pe * 104729 + round * 1299709) * 2654435761u;
    return (int)((h >> 16) % EXPERTS);
}

__global__ void fill(layer l, int round)
{
    int me = nvshmem_my_pe();
    for (int i = threadIdx.x; i < TOKENS * WIDTH; i += blockDim.x)
        l.tokens[i] = l.tokens[i] * 0.5f + (float)((i * 31 + me * 17 + round * 7) % 101) / 64.0f;
}

__global__ void dispatch(layer l, int round)
{
    int me = nvshmem_my_pe(), n = nvshmem_n_pes(), to = blockIdx.x;
    float *rows = l.sent + (size_t)to * TOKENS * WIDTH;
    int *experts = l.sent_expert + to * TOKENS, count = 0;
    for (int t = 0; t < TOKENS; t++) {
        int expert = expert_of(t, me, round);
        if (expert % n != to)
            continue;
        for (int k = threadIdx.x; k < WIDTH; k += blockDim.x)
            rows[count * WIDTH + k] = l.tokens[t * WIDTH + k];
        if (threadIdx.x == 0) {
            experts[count] = expert;
            l.place[t] = count;
            nvshmem_int_atomic_add(l.load + expert, 1, to);
        }
        count++;
    }
    __syncthreads();
    nvshmemx_int_put_block(l.received_expert + me * TOKENS, experts, (size_t)count, to);
    __syncthreads();
    if (threadIdx.x == 0)
        nvshmem_fence(); /* the numbers of the experts come before the signal of the rows */
    __syncthreads();
    nvshmemx_putmem_signal_nbi_block(l.received + (size_t)me * TOKENS * WIDTH, rows, (size_t)count * WIDTH * sizeof(float),
                                     l.here + me, ((uint64_t)round << 32) + (uint64_t)count, NVSHMEM_SIGNAL_SET, to);
}

__global__ void apply(layer l, int round)
{
    int me = nvshmem_my_pe(), from = blockIdx.x;
    __shared__ int count;
    if (threadIdx.x == 0)
        count = (int)(nvshmem_signal_wait_until(l.here + from, NVSHMEM_CMP_GE, (uint64_t)round << 32) & 0xffffffffu);
    __syncthreads();
    const float *in = l.received + (size_t)from * TOKENS * WIDTH;
    float *out = l.done + (size_t)from * TOKENS * WIDTH;
    for (int i = threadIdx.x; i < count * WIDTH; i += blockDim.x) {
        int expert = l.received_expert[from * TOKENS + i / WIDTH];
        out[i] = fmaf(in[i], 0.25f + 0.125f * (float)expert, (float)(i % WIDTH) * 0.0625f);
    }
    __syncthreads();
    nvshmemx_putmem_signal_block(l.returned + (size_t)me * TOKENS * WIDTH, out, (size_t)count * WIDTH * sizeof(float),
                                 l.back + me, 1, NVSHMEM_SIGNAL_ADD, from);
}

__global__ void combine(layer l, int round)
{
    int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    if (threadIdx.x == 0)
        nvshmem_uint64_wait_until_all(l.back, (size_t)n, NULL, NVSHMEM_CMP_GE, (uint64_t)round);
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * WIDTH; i += blockDim.x) {
        int t = i / WIDTH, at = expert_of(t, me, round) % n;
        l.tokens[i] = l.returned[((size_t)at * TOKENS + (size_t)l.place[t]) * WIDTH + (size_t)(i % WIDTH)];
    }
}

static int body(void)
{
    int n = nvshmem_n_pes();
    size_t rows = (size_t)n * TOKENS * WIDTH;
    int loads[EXPERTS];
    layer l = {};
    cudaStream_t stream;
    float *all = (float *)nvshmem_calloc(4 * rows, sizeof(float));
    int *experts = (int *)nvshmem_calloc(2 * (size_t)n * TOKENS + EXPERTS, sizeof(int));
    uint64_t *words = (uint64_t *)nvshmem_calloc(3 * (size_t)n, sizeof(uint64_t));
    l.sent = all, l.received = all + rows, l.done = all + 2 * rows, l.returned = all + 3 * rows;
    l.sent_expert = experts, l.received_expert = experts + n * TOKENS, l.load = experts + 2 * n * TOKENS;
    l.here = words, l.back = words + n;
    CUDA_OK(cudaMalloc(&l.place, TOKENS * sizeof(int)));
    CUDA_OK(cudaMalloc(&l.tokens, TOKENS * WIDTH * sizeof(float)));
    CUDA_OK(cudaMemset(l.tokens, 0, TOKENS * WIDTH * sizeof(float)));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    for (int round = 1; round <= ROUNDS; round++) {
        fill<<<1, THREADS, 0, stream>>>(l, round);
        dispatch<<<n, THREADS, 0, stream>>>(l, round);
        apply<<<n, THREADS, 0, stream>>>(l, round);
        combine<<<1, THREADS, 0, stream>>>(l, round);
        nvshmemx_barrier_all_on_stream(stream);
    }
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaMemcpy(loads, l.load, sizeof loads, cudaMemcpyDeviceToHost));
    uint64_t sum = checksum(l.tokens, TOKENS * WIDTH);
    for (int i = 0; i < EXPERTS; i++)
        sum = sum * 31 + (uint64_t)loads[i];
    report("moe_dispatch", words + 2 * n, sum);
    nvshmem_barrier_all();
    nvshmem_free(words);
    nvshmem_free(experts);
    nvshmem_free(all);
    return 0;
}

int main(int argc, char **argv)
{
    return run_pes(argc > 1 ? atoi(argv[1]) : 2, body);
}
