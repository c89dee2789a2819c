/* crowd.h - PEs for tests on GPUs: as processes and as threads, sharing one GPU or one each, watched from outside.
 *
 * A program hands over a list of promises; each is kept by every PE of a crowd in turn, in one world. The parent never touches CUDA, since children of
 * a process that has cannot; it prints a line for each promise. A PE that is longer than STEP_SECONDS (20) in one promise is named, its
 * threads print where they are, its crowd is killed, and the next crowd goes on. For C and for nvcc. The driver is loaded as the library
 * does it, so that all of it runs over the driver of the tests too. */
#ifndef TESTS_GPU_CROWD_H
#define TESTS_GPU_CROWD_H

#include "unfence/device_types.h"
#include "unfence/stream.h"
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MAX_PES = 8, SECOND = 1000000000, UNIT = 2 << 20 };

/* ---------------------------------------------------------------- the driver */

/* clang-format off */
#define FUNCTIONS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuMemAlloc) X(cuMemFree) \
    X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) \
    X(cuMemSetAccess) X(cuMemcpyAsync) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) \
    X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphUpload) \
    X(cuGraphExecDestroy) \
    X(cuGraphDestroy) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemsetD8Async) X(cuStreamBatchMemOp)
/* clang-format on */

#define CROWD_MEMBER(name) __typeof__(&name) name;
typedef struct crowd_driver {
    FUNCTIONS(CROWD_MEMBER)
} crowd_driver;
extern crowd_driver cu;

const char *crowd_library(void);
/* The number of GPUs, or -1. */
int crowd_load_driver(void);

/* ---------------------------------------------------------------- PEs */

typedef struct result {
    int state; /* 0 not run, 1 kept, -1 broken */
    char why[400];
} result;

enum { MAX_PROMISES = 40 };
typedef struct table { /* shared by all processes */
    result results[MAX_PROMISES][MAX_PES];
    int flag[4];
    int64_t step[MAX_PES]; /* where a PE is, and since when: step << 48 | milliseconds */
} table;

typedef struct crowd {
    const char *name;
    int n, device; /* -1: PE i on GPU i */
    bool threads;
} crowd;

typedef struct pe {
    const crowd *crowd;
    table *shared;
    int me, n, right, left;
    uf_world *world;
    uf_ctx *ctx;
    CUcontext context;
    CUstream stream;
    uint64_t *host_words;     /* [16] signal words of the host heap */
    unsigned char *mine, *in; /* GPU heap: 4 MiB each */
    uint64_t *words;          /* GPU heap: [64] */
    result *now;
} pe;

bool crowd_broken(pe *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define HOLD(condition)                                                                                                          \
    do {                                                                                                                         \
        if (!(condition))                                                                                                        \
            return crowd_broken(p, __LINE__, "%s", #condition);                                                                  \
    } while (0)
#define FINE(call)   HOLD((call) == UF_OK)
#define DRIVER(call) HOLD((call) == CUDA_SUCCESS)

static inline unsigned char pattern(int pe_number, size_t i, unsigned salt)
{
    return (unsigned char)((size_t)pe_number * 97 + i * 31 + i / 251 + salt * 13 + 1);
}

static inline void fill(unsigned char *to, size_t bytes, int who, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = pattern(who, i, salt);
}

static inline bool is(const unsigned char *at, size_t bytes, int who, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(who, i, salt))
            return false;
    return true;
}

static inline CUdeviceptr address(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

static inline bool copy(pe *p, void *to, const void *from, size_t bytes)
{
    DRIVER(cu.cuMemcpyAsync(address(to), address(from), bytes, p->stream));
    DRIVER(cu.cuStreamSynchronize(p->stream));
    return true;
}

static inline bool sync_all(pe *p)
{
    FINE(uf_barrier(uf_team_world(p->world)));
    return true;
}

/* ---------------------------------------------------------------- crowds */

typedef struct promise {
    const char *name;
    bool (*keep)(pe *p);
} promise;
#define PROMISE(f)                                                                                                               \
    {                                                                                                                            \
#f, f                                                                                                                    \
    }
typedef struct suite {
    const promise *promises;
    int n;
} suite;

table *crowd_make_table(void);
void crowd_say(const char *crowd_name, const char *name, bool ok, const char *why);
int crowd_count_gpus(void);
/* One crowd. UNFENCE_CUDA_DEVICE is the caller's to set; auto takes what the crowd says. */
void crowd_run_processes(const crowd *c, const suite *s);
void crowd_run_threads(const crowd *c, const suite *s);
/* On GPU 0: 2 and 4 processes, 2 and 4 threads (not over the EFA model); with several GPUs also one PE each. */
void crowd_run_all(int gpus, const suite *s);
/* Two processes on GPU 0; PE 1 is killed when PE 0, in `survive`, has said that it waits (crowd_waits_now). */
void crowd_run_death(const char *crowd_name, const char *name, bool (*survive)(pe *p));
void crowd_waits_now(pe *p);
/* Prints "N passed, N failed"; what main returns. */
int crowd_finish(int gpus);

#ifdef __cplusplus
}
#endif

#endif
