/* world_device.h - what the parts of world_device share: kernels that report, and the promises of the checked part. */
#ifndef TESTS_GPU_WORLD_DEVICE_H
#define TESTS_GPU_WORLD_DEVICE_H

#include "crowd.h"
#include "unfence/device.cuh"
#include <cuda_runtime.h>

/* Words of a PE's own that kernels report in. */
enum { FAULTS_AT = 60, CODE_AT = 61, LARGE = 40000 };

#define RUNTIME(call)                                                                                                            \
    do {                                                                                                                         \
        cudaError_t wrong = (call);                                                                                              \
        if (wrong != cudaSuccess)                                                                                                \
            return crowd_broken(p, __LINE__, "%s: %s", #call, cudaGetErrorString(wrong));                                        \
    } while (0)

/* What kernels get of a PE. */
struct seat {
    const ufd_world *world;
    int left, right;
    uint8_t *mine, *in;
    uint64_t *words, *host_words;
};

bool device_seat(pe *p, seat *s);
/* After a launch: waits for it; true if no kernel has counted a fault. */
bool device_no_faults(pe *p);
/* Waits for the kernel; what it left as its code. */
bool device_code(pe *p, int *code);

bool a_checked_kernel_s_error_becomes_a_sentence(pe *p);
/* Loads the kernels of the checked part. */
bool load_checked(pe *p);

#ifdef __CUDACC__
static __device__ __forceinline__ uint8_t device_pattern(int who, uint64_t i, uint32_t salt)
{
    return (uint8_t)((uint64_t)who * 97 + i * 31 + i / 251 + salt * 13 + 1); /* as pattern() */
}

static __device__ __forceinline__ void device_fault(const seat &s, bool wrong)
{
    if (wrong)
        atomicAdd((unsigned long long *)(s.words + FAULTS_AT), 1ull);
}

static __device__ __forceinline__ void device_leave_code(const seat &s, int code)
{
    s.words[CODE_AT] = (uint64_t)(int64_t)code;
}
#endif

#endif
