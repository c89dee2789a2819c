/* ring_attention.cu - blocks of K and V travel around a ring of PEs, as in attention over a sequence that no single GPU holds.
 *
 * Each PE has its queries and one block of K/V. In n steps every block visits every PE: while a step's block is computed on, it is put into the
 * right neighbour's other slot with a signal, and a signal to the left neighbour says that a slot is free again. Steps alternate between
 * calls on the stream and kernels, which do the same. Written for NVSHMEM's interface. Usage: ring_attention [PES] */
#include "start.h"

enum { ROWS = 128, WIDTH = 64, LAYERS = 6, BLOCK = 2 * ROWS * WIDTH, THREADS = 128 };

struct ring {
    float *queries, *out;
    float *slots;              /* symmetric, 2 blocks */
    uint64_t *arrived, *freed; /* symmetric: steps whose block is here; steps that the right neighbour is through with */
    int left, right;
    cudaStream_t stream;
};

__device__ float value(uint32_t seed)
{
    seed = (seed ^ (seed >> 15)) * 0x2c1b3c6du;
    seed = (seed ^ (seed >> 12)) * 0x297a2d39u;
    return (float)(int)((seed >> 9) & 0xffff) / 65536.0f - 0.5f;
}

__global__ void fill(float *at, int n, uint32_t seed)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        at[i] = value(seed * 1000003u + (uint32_t)i);
}

/* A thread has a query; it adds what the block's rows have for it, in their order. */
__global__ void attend(float *out, const float *queries, const float *block)
{
    int row = threadIdx.x;
    const float *keys = block, *values = block + ROWS * WIDTH;
    for (int j = 0; j < ROWS; j++) {
        float score = 0;
        for (int k = 0; k < WIDTH; k++)
            score = fmaf(queries[row * WIDTH + k], keys[j * WIDTH + k], score);
        score = score * score; /* a weight that needs no running maximum */
        for (int k = 0; k < WIDTH; k++)
            out[row * WIDTH + k] = fmaf(score, values[j * WIDTH + k], out[row * WIDTH + k]);
    }
}

__global__ void send(float *slot, const float *block, uint64_t *arrived, uint64_t *freed, uint64_t step, int right)
{
    if (threadIdx.x == 0)
        nvshmem_signal_wait_until(freed, NVSHMEM_CMP_GE, step);
    __syncthreads();
    nvshmemx_putmem_signal_block(slot, block, BLOCK * sizeof(float), arrived, step + 1, NVSHMEM_SIGNAL_SET, right);
}

__global__ void give_back(uint64_t *freed, uint64_t step, int left)
{
    nvshmemx_signal_op(freed, step + 1, NVSHMEM_SIGNAL_SET, left);
}

__global__ void await(uint64_t *arrived, uint64_t step)
{
    nvshmem_signal_wait_until(arrived, NVSHMEM_CMP_GE, step + 1);
}

static void step_on_stream(const ring *r, uint64_t step, bool last)
{
    float *block = r->slots + step % 2 * BLOCK, *next = r->slots + (step + 1) % 2 * BLOCK;
    if (!last) {
        nvshmemx_signal_wait_until_on_stream(r->freed, NVSHMEM_CMP_GE, step, r->stream);
        nvshmemx_putmem_signal_on_stream(next, block, BLOCK * sizeof(float), r->arrived, step + 1, NVSHMEM_SIGNAL_SET, r->right,
                                         r->stream);
    }
    attend<<<1, THREADS, 0, r->stream>>>(r->out, r->queries, block);
    nvshmemx_quiet_on_stream(r->stream);
    nvshmemx_signal_op_on_stream(r->freed, step + 1, NVSHMEM_SIGNAL_SET, r->left, r->stream);
    if (!last)
        nvshmemx_signal_wait_until_on_stream(r->arrived, NVSHMEM_CMP_GE, step + 1, r->stream);
}

static void step_by_kernels(const ring *r, uint64_t step, bool last)
{
    float *block = r->slots + step % 2 * BLOCK, *next = r->slots + (step + 1) % 2 * BLOCK;
    if (!last)
        send<<<1, THREADS, 0, r->stream>>>(next, block, r->arrived, r->freed, step, r->right);
    attend<<<1, THREADS, 0, r->stream>>>(r->out, r->queries, block);
    give_back<<<1, 1, 0, r->stream>>>(r->freed, step, r->left);
    if (!last)
        await<<<1, 1, 0, r->stream>>>(r->arrived, step);
}

static int body(void)
{
    int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    ring r = {};
    r.slots = (float *)nvshmem_malloc(2 * BLOCK * sizeof(float));
    r.arrived = (uint64_t *)nvshmem_calloc(2, sizeof(uint64_t));
    uint64_t *words = (uint64_t *)nvshmem_calloc((size_t)n, sizeof(uint64_t));
    r.freed = r.arrived + 1;
    r.left = (me + n - 1) % n;
    r.right = (me + 1) % n;
    CUDA_OK(cudaMalloc(&r.queries, ROWS * WIDTH * sizeof(float)));
    CUDA_OK(cudaMalloc(&r.out, ROWS * WIDTH * sizeof(float)));
    CUDA_OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    CUDA_OK(cudaMemset(r.out, 0, ROWS * WIDTH * sizeof(float)));
    CUDA_OK(cudaDeviceSynchronize());
    nvshmem_barrier_all();

    uint64_t step = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        fill<<<1, THREADS, 0, r.stream>>>(r.queries, ROWS * WIDTH, (uint32_t)(layer * 100 + me));
        fill<<<1, THREADS, 0, r.stream>>>(r.slots + step % 2 * BLOCK, BLOCK, (uint32_t)(layer * 100 + 50 + me));
        for (int i = 0; i < n; i++, step++) {
            if ((layer + i) % 2 == 0)
                step_on_stream(&r, step, i == n - 1);
            else
                step_by_kernels(&r, step, i == n - 1);
        }
    }
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaStreamSynchronize(r.stream));
    report("ring_attention", words, checksum(r.out, ROWS * WIDTH));
    nvshmem_barrier_all();
    nvshmem_free(words);
    nvshmem_free(r.arrived);
    nvshmem_free(r.slots);
    return 0;
}

int main(int argc, char **argv)
{
    return run_pes(argc > 1 ? atoi(argv[1]) : 2, body);
}
