/* near.cuh - what the parts of device_near share: the report of a promise, the map of a heap, and patterns. */
#ifndef UNFENCE_TESTS_GPU_NEAR_CUH
#define UNFENCE_TESTS_GPU_NEAR_CUH

#include "rig.cuh"
#include "unfence/device.cuh"

enum { NEAR_SIGNALS = 64 << 10, NEAR_CASES = 128 << 10, NEAR_DATA = 1 << 20, NEAR_AREA = 1 << 20, NEAR_HEAP = 48 << 20 };

struct near_run {
    rig r;
    bool quick;         /* a small set, for tools that make everything slow */
    bool first_failure; /* is the last promise: each further one may take its whole timeout */
    int passed, failed;
};

struct near_over {
}; /* thrown when no promise is left to be looked at */

/* Each runs its tests, all on a fresh rig, and reports each promise. */
void near_rma(near_run *n);
void near_sync(near_run *n);
void near_mover(near_run *n);
void near_checked(near_run *n);

/* Waits for the kernels, then says whether `promise` held: no PE counted a fault and the host found none. */
void near_report(near_run *n, const char *promise, uint64_t host_faults);

#ifdef __CUDACC__

static __device__ __forceinline__ uint64_t *near_signal(const ufd_world *w, uint32_t i)
{
    return (uint64_t *)(w->heap + NEAR_SIGNALS) + 8 * i;
}

static __device__ __forceinline__ uint8_t *near_data(const ufd_world *w, uint32_t area)
{
    return (uint8_t *)(w->heap + NEAR_DATA + (uint64_t)NEAR_AREA * area);
}

static __device__ __forceinline__ uint8_t near_byte(int pe, uint64_t message, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull ^ (message * 64 + (uint64_t)pe + 1) * 0xd1b54a32d192ed03ull;
    return (uint8_t)((x >> 32) ^ (x >> 17));
}

/* By all threads of a block. */
static __device__ __forceinline__ void near_fill(uint8_t *p, uint64_t bytes, int pe, uint64_t message)
{
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x)
        p[i] = near_byte(pe, message, i);
}

static __device__ __forceinline__ bool near_is(const uint8_t *p, uint64_t bytes, int pe, uint64_t message)
{
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x)
        if (p[i] != near_byte(pe, message, i))
            return false;
    return true;
}

#define NEAR_IS(g, condition, code, a, b)                                                                                        \
    do {                                                                                                                         \
        if (!(condition))                                                                                                        \
            rig_fault(g, code, (uint64_t)(a), (uint64_t)(b));                                                                    \
    } while (0)

/* Whether the calling thread belongs to the one group of scope S that does the work of a block: thread 0, warp 0, all. */
template <class S> static __device__ __forceinline__ bool near_takes_part(void)
{
    return ufd_block_rank() < S::size();
}

#endif

#endif
