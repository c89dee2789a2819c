/* start.h - PEs for the NVSHMEM examples: this process forked, one child a PE, and a unique id that they share.
 *
 * Written against NVSHMEM's interface alone, so that it works with that library and with Unfence's headers of the same names. The parent touches
 * no GPU, since children of a process that has cannot. A PE takes GPU number (PE modulo their number). */
#ifndef EXAMPLES_NVSHMEM_START_H
#define EXAMPLES_NVSHMEM_START_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUDA_OK(call)                                                                                                            \
    do {                                                                                                                         \
        cudaError_t result = (call);                                                                                             \
        if (result != cudaSuccess) {                                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(result));                           \
            exit(1);                                                                                                             \
        }                                                                                                                        \
    } while (0)

struct meeting {
    volatile int ready;
    nvshmemx_uniqueid_t id;
};

static inline void start_pe(meeting *m, int pe, int n_pes)
{
    int gpus = 0;
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    CUDA_OK(cudaGetDeviceCount(&gpus));
    CUDA_OK(cudaSetDevice(pe % gpus));
    if (pe == 0) {
        nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
        if (nvshmemx_get_uniqueid(&id))
            exit(1);
        m->id = id;
        __sync_synchronize();
        m->ready = 1;
    }
    while (!m->ready)
        usleep(1000);
    __sync_synchronize();
    nvshmemx_uniqueid_t id = m->id;
    if (nvshmemx_set_attr_uniqueid_args(pe, n_pes, &id, &attr) || nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr))
        exit(1);
}

/* Runs `body` as every PE; 0 if it returned 0 in all of them. */
static inline int run_pes(int n_pes, int (*body)(void))
{
    meeting *m = (meeting *)mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int worst = m == MAP_FAILED;
    for (int pe = 0; pe < n_pes && !worst; pe++) {
        pid_t child = fork();
        if (child == 0) {
            start_pe(m, pe, n_pes);
            int result = body();
            nvshmem_finalize();
            exit(result);
        }
        worst |= child < 0;
    }
    for (int status; wait(&status) > 0;)
        worst |= status != 0;
    return worst;
}

/* A word of every PE on PE 0, added up there. */
static __global__ void hand_in(uint64_t *words, uint64_t mine)
{
    nvshmem_uint64_p(words + nvshmem_my_pe(), mine, 0);
    nvshmem_quiet();
}

static inline void report(const char *name, uint64_t *words, uint64_t mine)
{
    uint64_t all[64] = {0}, sum = 0;
    int n = nvshmem_n_pes();
    hand_in<<<1, 1>>>(words, mine);
    CUDA_OK(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    CUDA_OK(cudaMemcpy(all, words, (size_t)n * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        sum += all[i] * (uint64_t)(2 * i + 1);
    if (nvshmem_my_pe() == 0)
        printf("%s: %d PEs, checksum %016llx\n", name, n, (unsigned long long)sum);
}

/* Of the bits of n floats in GPU memory. */
static inline uint64_t checksum(const float *at, size_t n)
{
    uint32_t *bits = (uint32_t *)malloc(n * sizeof *bits);
    uint64_t sum = 14695981039346656037ull;
    CUDA_OK(cudaMemcpy(bits, at, n * sizeof *bits, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ bits[i]) * 1099511628211ull;
    free(bits);
    return sum;
}

#endif
