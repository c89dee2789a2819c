/* rig.cuh - PEs without the library: plain device allocations as heaps, so that kernels of the device API can be tested and measured.
 *
 * A rig has n PEs spread over the GPUs that can reach each other, with peer access between them; one GPU is enough. Each PE has a heap at
 * its own address (another PE's is a shift away), a window, a part of a host heap, contexts, a status word and an error record: what
 * the host library would hand to kernels. A kernel is launched for all PEs at once, one launch a PE on a stream of its own, or, as
 * a gang, as one launch with a row of blocks a PE: tools that run one kernel at a time need that. */
#ifndef UNFENCE_TESTS_GPU_RIG_CUH
#define UNFENCE_TESTS_GPU_RIG_CUH

#include "unfence/device_types.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

enum {
    RIG_MAX_PES = 16,
    RIG_CTXS = 4,
    RIG_BARRIER_AT = 0,
    RIG_WINDOW_BYTES = 1 << 20,
    RIG_HOST_BYTES = 1 << 16,
    RIG_BEHIND = 2 << 20 /* behind each heap, so that its end is not the begin of a window */
};

/* Thrown when the machine fails; what it was is printed already. */
struct rig_failure {
};

#define RIG_CUDA(call) rig_cuda((call), #call, __FILE__, __LINE__)

static inline void rig_cuda(cudaError_t e, const char *call, const char *file, int line)
{
    if (e == cudaSuccess)
        return;
    fflush(stdout); /* what was right before stands before */
    fprintf(stderr, "ERROR   %s:%d: %s: %s\n", file, line, call, cudaGetErrorString(e));
    throw rig_failure();
}

/* What a kernel counts as wrong, and the first of it. */
struct rig_faults {
    unsigned long long count, code, a, b;
};

/* Given to kernels by value. */
struct rig_gang {
    const ufd_world *world[RIG_MAX_PES];
    rig_faults *faults[RIG_MAX_PES];
    int first; /* the PE of the first row of blocks */
};

struct rig_pe {
    int gpu;
    uint8_t *heap, *window, *host;
    uint64_t *scratch;
    ufd_world *world, shape; /* in GPU memory, and what was written there */
    ufd_peer *peers;
    ufd_error *error;
    rig_faults *faults;
    cudaStream_t streams[2];
};

struct rig {
    int n_pes, n_gpus;
    int stream; /* of each PE's two, where rig_start launches */
    bool as_gang;
    int refused; /* launches that this GPU has no room for; what they should have done has not been done */
    uint64_t heap_bytes;
    volatile int32_t *status; /* one for the world, in host memory that all GPUs see */
    rig_pe pe[RIG_MAX_PES];
    rig_gang gang;
};

/* GPUs 0..n-1 of which each reaches each. */
static inline int rig_find_gpus(int most)
{
    int n = 0;
    RIG_CUDA(cudaGetDeviceCount(&n));
    n = n < most ? n : most;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            int reaches = a == b;
            if (a != b)
                RIG_CUDA(cudaDeviceCanAccessPeer(&reaches, a, b));
            if (!reaches) {
                printf("# GPU %d cannot reach GPU %d: all PEs share GPU 0\n", a, b);
                return 1;
            }
        }
    return n;
}

template <class T> static T *rig_device(uint64_t n)
{
    T *p;
    RIG_CUDA(cudaMalloc((void **)&p, n * sizeof(T)));
    RIG_CUDA(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}

static inline void rig_pe_memory(rig *r, int pe)
{
    rig_pe *p = &r->pe[pe];
    p->gpu = pe % r->n_gpus;
    RIG_CUDA(cudaSetDevice(p->gpu));
    p->heap = rig_device<uint8_t>(r->heap_bytes + RIG_BEHIND);
    p->window = rig_device<uint8_t>(RIG_WINDOW_BYTES);
    RIG_CUDA(cudaHostAlloc((void **)&p->host, RIG_HOST_BYTES, cudaHostAllocMapped | cudaHostAllocPortable));
    p->scratch = rig_device<uint64_t>(1);
    p->error = rig_device<ufd_error>(1);
    p->faults = rig_device<rig_faults>(1);
    for (cudaStream_t &s : p->streams)
        RIG_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
}

static inline void rig_pe_world(rig *r, int pe)
{
    rig_pe *p = &r->pe[pe];
    RIG_CUDA(cudaSetDevice(p->gpu));
    p->peers = rig_device<ufd_peer>(RIG_MAX_PES);
    int64_t *shifts = rig_device<int64_t>(RIG_MAX_PES);
    ufd_window *window = rig_device<ufd_window>(1);
    ufd_ctx *ctxs = rig_device<ufd_ctx>(RIG_CTXS);
    p->world = rig_device<ufd_world>(1);
    ufd_peer peers[RIG_MAX_PES] = {};
    int64_t window_shifts[RIG_MAX_PES] = {};
    for (int q = 0; q < r->n_pes; q++) {
        peers[q].shift = r->pe[q].heap - p->heap;
        peers[q].host_shift = r->pe[q].host - p->host;
        peers[q].way = UFD_WAY_NEAR;
        window_shifts[q] = r->pe[q].window - p->window;
    }
    ufd_window own = {(uint64_t)p->window, RIG_WINDOW_BYTES, shifts};
    ufd_world w = {};
    w.abi = UFD_ABI, w.size = sizeof w, w.pe = pe, w.n_pes = r->n_pes;
    w.heap = (uint64_t)p->heap, w.heap_bytes = w.heap_span = r->heap_bytes;
    w.host_heap = (uint64_t)p->host, w.host_heap_bytes = RIG_HOST_BYTES;
    w.peers = p->peers, w.status = (const int32_t *)r->status, w.timeout_ns = 10000000000ull;
    w.barrier = (uint64_t *)(p->heap + RIG_BARRIER_AT), w.scratch = p->scratch;
    w.windows = window, w.n_windows = 1, w.n_ctxs = RIG_CTXS, w.ctxs = ctxs, w.error = p->error;
    ufd_ctx each[RIG_CTXS];
    for (uint32_t i = 0; i < RIG_CTXS; i++)
        each[i] = {UFD_ABI, sizeof(ufd_ctx), p->world, p->peers, w.heap, w.heap_span, i, 0};
    RIG_CUDA(cudaMemcpy(p->peers, peers, sizeof peers, cudaMemcpyHostToDevice));
    RIG_CUDA(cudaMemcpy(shifts, window_shifts, sizeof window_shifts, cudaMemcpyHostToDevice));
    RIG_CUDA(cudaMemcpy(window, &own, sizeof own, cudaMemcpyHostToDevice));
    RIG_CUDA(cudaMemcpy(ctxs, each, sizeof each, cudaMemcpyHostToDevice));
    RIG_CUDA(cudaMemcpy(p->world, &w, sizeof w, cudaMemcpyHostToDevice));
    p->shape = w;
    r->gang.world[pe] = p->world;
    r->gang.faults[pe] = p->faults;
}

/* n_pes PEs over at most `most_gpus` GPUs. */
static inline void rig_open(rig *r, int n_pes, int most_gpus, uint64_t heap_bytes, bool as_gang)
{
    /* Kernels wait for each other: none may be loaded only when it is first launched, which waits for those that run. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    *r = {};
    r->n_gpus = rig_find_gpus(as_gang ? 1 : most_gpus);
    r->n_pes = n_pes, r->heap_bytes = heap_bytes, r->as_gang = as_gang;
    for (int a = 0; a < r->n_gpus; a++)
        for (int b = 0; b < r->n_gpus; b++) {
            RIG_CUDA(cudaSetDevice(a));
            if (a != b)
                RIG_CUDA(cudaDeviceEnablePeerAccess(b, 0));
        }
    RIG_CUDA(cudaHostAlloc((void **)&r->status, 64, cudaHostAllocMapped | cudaHostAllocPortable));
    *r->status = 0;
    for (int pe = 0; pe < n_pes; pe++)
        rig_pe_memory(r, pe);
    for (int pe = 0; pe < n_pes; pe++)
        rig_pe_world(r, pe);
}

static inline void rig_synchronize(rig *r)
{
    for (int g = 0; g < r->n_gpus; g++) {
        RIG_CUDA(cudaSetDevice(g));
        RIG_CUDA(cudaDeviceSynchronize());
    }
}

/* Everything as it was at first: heaps, windows, counts, errors, faults. */
static inline void rig_reset(rig *r)
{
    rig_synchronize(r);
    *r->status = 0;
    for (int i = 0; i < r->n_pes; i++) {
        rig_pe *p = &r->pe[i];
        RIG_CUDA(cudaSetDevice(p->gpu));
        RIG_CUDA(cudaMemset(p->heap, 0, r->heap_bytes));
        RIG_CUDA(cudaMemset(p->window, 0, RIG_WINDOW_BYTES));
        memset(p->host, 0, RIG_HOST_BYTES);
        RIG_CUDA(cudaMemset(p->scratch, 0, sizeof *p->scratch));
        RIG_CUDA(cudaMemset(p->error, 0, sizeof *p->error));
        RIG_CUDA(cudaMemset(p->faults, 0, sizeof *p->faults));
    }
    rig_synchronize(r);
}

/* Whether blocks of this kernel can have so many threads and bytes of shared memory; if not, says so. */
static inline bool rig_fits(rig *r, const void *kernel, unsigned threads, size_t shared)
{
    cudaFuncAttributes a;
    int most_shared = 0;
    RIG_CUDA(cudaSetDevice(r->pe[0].gpu));
    RIG_CUDA(cudaFuncGetAttributes(&a, kernel));
    RIG_CUDA(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, r->pe[0].gpu));
    if (threads <= (unsigned)a.maxThreadsPerBlock && shared + a.sharedSizeBytes <= (size_t)most_shared)
        return true;
    printf("REFUSED a block of %u threads and %zu bytes of shared memory: the kernel, of %d registers, fits %d threads and %d "
           "bytes\n",
           threads, shared + a.sharedSizeBytes, a.numRegs, a.maxThreadsPerBlock, most_shared);
    r->refused++;
    return false;
}

/* Starts `kernel` for every PE, or for none. Its first parameter is the gang. */
template <class... P, class... A>
static void rig_start(rig *r, void (*kernel)(rig_gang, P...), unsigned blocks, unsigned threads, size_t shared, A... arguments)
{
    rig_gang gang = r->gang;
    if (!rig_fits(r, (const void *)kernel, threads, shared))
        return;
    for (int i = 0; i < r->n_gpus && shared > 48 * 1024; i++) { /* before any of them runs and waits for the others */
        RIG_CUDA(cudaSetDevice(i));
        RIG_CUDA(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    }
    for (int i = 0; i < (r->as_gang ? 1 : r->n_pes); i++) {
        gang.first = i;
        RIG_CUDA(cudaSetDevice(r->pe[i].gpu));
        kernel<<<dim3(blocks, r->as_gang ? (unsigned)r->n_pes : 1), threads, shared, r->pe[i].streams[r->stream]>>>(
            gang, P(arguments)...);
        RIG_CUDA(cudaGetLastError());
    }
}

static inline void rig_read(const rig *r, int pe, void *to, const void *from, uint64_t bytes)
{
    RIG_CUDA(cudaSetDevice(r->pe[pe].gpu));
    RIG_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

#ifdef __CUDACC__

static __device__ __forceinline__ const ufd_world *rig_world(const rig_gang &g)
{
    return g.world[g.first + blockIdx.y];
}

static __device__ __noinline__ void rig_fault(const rig_gang &g, uint64_t code, uint64_t a, uint64_t b)
{
    rig_faults *f = g.faults[g.first + blockIdx.y];
    if (atomicAdd(&f->count, 1ull) == 0)
        f->code = code, f->a = a, f->b = b;
}

#endif

#endif
