/* world_gpu.c - the promises of GPU memory in a world, through the public interface: heap, windows, host operations, streams, graphs, deaths.
 *
 * Runs on GPUs, and without one over tests/support/fake_cuda.c (UNFENCE_CUDA_LIBRARY): it needs no kernel and no nvcc. PEs are processes and
 * threads that share GPU 0, and one per GPU where there are more. Prints a line for each promise of each such crowd, and at the end
 * "N passed, N failed". The parent never touches CUDA, since children of a process that has cannot. It watches: a PE that is longer than
 * STEP_SECONDS (20) in one promise is named, its threads print where they are, its crowd is killed, and the next one goes on. */
#include "unfence/device_types.h"
#include "unfence/stream.h"
#include <cuda.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PES = 8, SLOT = 256, REPLAYS = 1000, SECOND = 1000000000, UNIT = 2 << 20 };

/* ---------------------------------------------------------------- the driver */

#define FUNCTIONS(X)                                                                                                             \
    X(cuInit)                                                                                                                    \
    X(cuDeviceGetCount)                                                                                                          \
    X(cuDeviceGet)                                                                                                               \
    X(cuDevicePrimaryCtxRetain)                                                                                                  \
    X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuMemAlloc) X(cuMemFree) X(cuMemAddressReserve)        \
        X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemcpyAsync)          \
            X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamBeginCapture)                 \
                X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy)    \
                    X(cuMemHostAlloc) X(cuMemFreeHost)

#define MEMBER(name) __typeof__(&name) name;
static struct {
    FUNCTIONS(MEMBER)
} cu;
#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

static const char *library(void)
{
    const char *name = getenv("UNFENCE_CUDA_LIBRARY");
    return name && *name ? name : "libcuda.so.1";
}

/* The number of GPUs, or -1. */
static int load_driver(void)
{
    int n = 0;
    void *lib = dlopen(library(), RTLD_NOW);
    if (!lib)
        return -1;
#define LOAD(name)                                                                                                               \
    {                                                                                                                            \
        void *symbol = dlsym(lib, TEXT(name));                                                                                   \
        if (!symbol)                                                                                                             \
            return -1;                                                                                                           \
        memcpy(&cu.name, &symbol, sizeof symbol);                                                                                \
    }
    FUNCTIONS(LOAD)
    return cu.cuInit(0) == CUDA_SUCCESS && cu.cuDeviceGetCount(&n) == CUDA_SUCCESS ? n : -1;
}

/* ---------------------------------------------------------------- PEs */

typedef struct result {
    int state; /* 0 not run, 1 kept, -1 broken */
    char why[400];
} result;

enum { MAX_PROMISES = 40, NOWHERE = 0, SETTING_UP = 1, FIRST_PROMISE = 2, ENDING = MAX_PROMISES + FIRST_PROMISE };
typedef struct table { /* shared by all processes */
    result results[MAX_PROMISES][MAX_PES];
    int flag[4];
    int64_t step[MAX_PES]; /* where a PE is, and since when: step << 48 | milliseconds */
} table;

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void at_step(table *t, int pe_number, int step)
{
    __atomic_store_n(&t->step[pe_number], (int64_t)step << 48 | milliseconds(), __ATOMIC_RELEASE);
}

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

static bool broken(pe *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool broken(pe *p, int line, const char *format, ...)
{
    char what[200];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    if (p->now->state == 0) {
        p->now->state = -1;
        snprintf(p->now->why, sizeof p->now->why, "line %d: %s; last error: %.180s", line, what, uf_error_message());
    }
    uf_world_abort(p->world, "a promise was broken");
    return false;
}
#define HOLD(condition)                                                                                                          \
    do {                                                                                                                         \
        if (!(condition))                                                                                                        \
            return broken(p, __LINE__, "%s", #condition);                                                                        \
    } while (0)
#define FINE(call)   HOLD((call) == UF_OK)
#define DRIVER(call) HOLD((call) == CUDA_SUCCESS)

static unsigned char pattern(int pe_number, size_t i, unsigned salt)
{
    return (unsigned char)((size_t)pe_number * 97 + i * 31 + i / 251 + salt * 13 + 1);
}

static void fill(unsigned char *to, size_t bytes, int who, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = pattern(who, i, salt);
}

static bool is(const unsigned char *at, size_t bytes, int who, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(who, i, salt))
            return false;
    return true;
}

static CUdeviceptr address(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

static bool copy(pe *p, void *to, const void *from, size_t bytes)
{
    DRIVER(cu.cuMemcpyAsync(address(to), address(from), bytes, p->stream));
    DRIVER(cu.cuStreamSynchronize(p->stream));
    return true;
}

static bool sync_all(pe *p)
{
    FINE(uf_barrier(uf_team_world(p->world)));
    return true;
}

/* ---------------------------------------------------------------- promises: memory */

static bool gpu_memory_is_zero_when_first_handed_out(pe *p)
{
    static _Thread_local unsigned char got[1 << 20];
    void *ptr;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, 1 << 20, 0, &ptr));
    FINE(uf_get(p->ctx, got, ptr, sizeof got, p->me));
    for (size_t i = 0; i < sizeof got; i++)
        HOLD(got[i] == 0);
    HOLD((uintptr_t)ptr % 64 == 0);
    FINE(uf_free(p->world, ptr));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)3 << 20, 0, &ptr));
    HOLD((uintptr_t)ptr % (2 << 20) == 0);
    FINE(uf_free(p->world, ptr));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, 0, 0, &ptr));
    HOLD(ptr == NULL);
    return true;
}

static bool pointers_of_near_peers_are_given(pe *p)
{
    for (int i = 0; i < p->n; i++) {
        void *there = uf_ptr(p->world, p->mine + 100, i);
        HOLD(there != NULL);
        HOLD(i != p->me || there == p->mine + 100);
        HOLD(i == p->me || there != p->mine + 100);
    }
    HOLD(uf_ptr(p->world, p->mine + ((size_t)64 << 30), p->right) == NULL);
    return true;
}

static bool host_puts_reach_gpu_memory_of_peers(pe *p)
{
    static const size_t sizes[] = {1, 8, 13, 4096, 100000, (3 << 20) + 5};
    unsigned char *buffer = malloc(4 << 20);
    bool ok = buffer != NULL;
    for (unsigned s = 0; ok && s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        fill(buffer, n, p->me, s);
        ok = sync_all(p) && (uf_put(p->ctx, p->in + s, buffer, n, p->right) == UF_OK || broken(p, __LINE__, "put of %zu", n)) &&
             sync_all(p) && (uf_get(p->ctx, buffer, p->in + s, n, p->me) == UF_OK || broken(p, __LINE__, "get of %zu", n)) &&
             (is(buffer, n, p->left, s) || broken(p, __LINE__, "wrong bytes of %zu", n));
        /* And from GPU memory to GPU memory, to host memory, and back. */
        fill(buffer, n, p->me, s + 50);
        ok = ok && copy(p, p->mine, buffer, n) && sync_all(p) &&
             (uf_put_nbi(p->ctx, p->in, p->mine, n, p->right) == UF_OK || broken(p, __LINE__, "GPU put of %zu", n)) &&
             sync_all(p) &&
             (uf_get(p->ctx, buffer, p->in, n, p->right) == UF_OK || broken(p, __LINE__, "get from a peer of %zu", n)) &&
             (is(buffer, n, p->me, s + 50) || broken(p, __LINE__, "wrong bytes of %zu from GPU memory", n)) && sync_all(p);
    }
    free(buffer);
    return ok;
}

static bool gets_bring_gpu_memory_of_peers(pe *p)
{
    unsigned char buffer[5000];
    fill(buffer, sizeof buffer, p->me, 3);
    FINE(uf_put(p->ctx, p->mine, buffer, sizeof buffer, p->me));
    if (!sync_all(p))
        return false;
    FINE(uf_get(p->ctx, p->in, p->mine, sizeof buffer, p->left)); /* into GPU memory */
    memset(buffer, 0, sizeof buffer);
    FINE(uf_get_nbi(p->ctx, buffer, p->in, sizeof buffer, p->me));
    FINE(uf_quiet(p->ctx));
    HOLD(is(buffer, sizeof buffer, p->left, 3));
    return sync_all(p);
}

static bool a_signal_in_gpu_memory_follows_its_bytes(pe *p)
{
    unsigned char buffer[3000];
    for (unsigned round = 1; round <= 50; round++) {
        fill(buffer, sizeof buffer, p->me, round);
        FINE(uf_put_signal(p->ctx, p->in, buffer, sizeof buffer, &p->words[0], UF_SIGNAL_SET, round, p->right, UF_WEAK));
        FINE(uf_wait(p->world, &p->words[0], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, buffer, p->in, sizeof buffer, p->me));
        HOLD(is(buffer, sizeof buffer, p->left, round));
        /* The slot is free again when the left one knows it. */
        FINE(uf_signal(p->ctx, &p->words[1], UF_SIGNAL_SET, round, p->left, UF_STRONG));
        FINE(uf_wait(p->world, &p->words[1], UF_EQ, round, 10ull * SECOND));
    }
    HOLD(uf_test(p->world, &p->words[0], UF_EQ, 50) == UF_OK && uf_test(p->world, &p->words[0], UF_GT, 50) == UF_EAGAIN);
    return sync_all(p);
}

static bool a_signal_in_host_memory_follows_its_gpu_bytes(pe *p)
{
    unsigned char buffer[3000];
    for (unsigned round = 1; round <= 50; round++) {
        fill(buffer, sizeof buffer, p->me, round + 7);
        FINE(uf_put_signal(p->ctx, p->in, buffer, sizeof buffer, &p->host_words[0], UF_SIGNAL_ADD, 1, p->right, UF_WEAK));
        FINE(uf_wait(p->world, &p->host_words[0], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, buffer, p->in, sizeof buffer, p->me));
        HOLD(is(buffer, sizeof buffer, p->left, round + 7));
        FINE(uf_signal(p->ctx, &p->host_words[1], UF_SIGNAL_ADD, 1, p->left, UF_WEAK));
        FINE(uf_wait(p->world, &p->host_words[1], UF_GE, round, 10ull * SECOND));
    }
    return sync_all(p);
}

static bool rows_of_a_batch_may_mix_host_and_gpu_memory(pe *p)
{
    unsigned char a[64], b[64];
    void *host;
    FINE(uf_malloc(p->world, 64, 0, &host));
    fill(a, sizeof a, p->me, 1);
    fill(b, sizeof b, p->me, 2);
    if (!copy(p, p->mine, b, sizeof b))
        return false;
    const uf_put_row rows[] = {{p->in, a, sizeof a, NULL, 0, p->right, 0, 0},
                               {host, p->mine, sizeof b, &p->host_words[2], 1, p->right, UF_SIGNAL_ADD, UF_STRONG}};
    size_t done = 0;
    FINE(uf_put_batch(p->ctx, rows, 2, &done));
    HOLD(done == 2);
    FINE(uf_wait(p->world, &p->host_words[2], UF_GE, 1, 10ull * SECOND));
    HOLD(is(host, sizeof b, p->left, 2));
    FINE(uf_get(p->ctx, a, p->in, sizeof a, p->me));
    HOLD(is(a, sizeof a, p->left, 1));
    FINE(uf_free(p->world, host));
    return true;
}

static bool the_gpu_heap_grows_and_reuses(pe *p)
{
    unsigned char buffer[512];
    void *first, *again;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)80 << 20, 0, &first)); /* more than UNFENCE_CUDA_HEAP_SIZE */
    fill(buffer, sizeof buffer, p->me, 11);
    FINE(uf_put(p->ctx, (unsigned char *)first + (70 << 20), buffer, sizeof buffer, p->right));
    if (!sync_all(p))
        return false;
    FINE(uf_get(p->ctx, buffer, (unsigned char *)first + (70 << 20), sizeof buffer, p->me));
    HOLD(is(buffer, sizeof buffer, p->left, 11));
    HOLD(uf_free(p->world, (unsigned char *)first + 64) == UF_EINVAL);
    FINE(uf_free(p->world, first));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)80 << 20, 0, &again));
    HOLD(first == again);
    FINE(uf_free(p->world, again));
    return true;
}

static bool more_gpu_memory_than_there_is_is_refused(pe *p)
{
    void *ptr;
    unsigned char byte = 1;
    int rc = uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)200 << 30, 0, &ptr);
    HOLD(rc == UF_ENOMEM);
    HOLD(strstr(uf_error_message(), "PE") || strstr(uf_error_message(), "GPU"));
    FINE(uf_put(p->ctx, p->in, &byte, 1, p->right)); /* nothing is lost */
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: windows */

static bool window_carries(pe *p, unsigned char *buffer, size_t bytes)
{
    unsigned char host[4000], got[4000];
    uf_window *window;
    FINE(uf_register(p->world, buffer, bytes, &window));
    size_t at = bytes / 2 - sizeof host / 2; /* over the middle, where pieces meet */
    fill(host, sizeof host, p->me, 21);
    FINE(uf_put_signal(p->ctx, buffer + at, host, sizeof host, (uint64_t *)(void *)(buffer + bytes - 8), UF_SIGNAL_SET, 5,
                       p->right, 0));
    FINE(uf_wait(p->world, (uint64_t *)(void *)(buffer + bytes - 8), UF_EQ, 5, 10ull * SECOND));
    if (!copy(p, got, buffer + at, sizeof got))
        return false;
    HOLD(is(got, sizeof got, p->left, 21));
    FINE(uf_get(p->ctx, got, buffer + at, sizeof got, p->right));
    HOLD(is(got, sizeof got, p->me, 21));
    HOLD(uf_window_at(window, 8) == buffer + 8);
    HOLD(uf_ptr(p->world, buffer + 8, p->right) != NULL);
    FINE(uf_unregister(window));
    return true;
}

static bool windows_over_vmm_memory_of_two_mappings_work(pe *p)
{
    CUdeviceptr base;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handles[2];
    int device = p->crowd->device < 0 ? p->me : p->crowd->device;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cu.cuMemAddressReserve(&base, 6 * (size_t)UNIT, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        CUdeviceptr at = base + i * 2 * UNIT;
        DRIVER(cu.cuMemCreate(&handles[i], (i + 1) * 2 * UNIT, &prop, 0));
        DRIVER(cu.cuMemMap(at, (i + 1) * 2 * UNIT, 0, handles[i], 0));
        DRIVER(cu.cuMemSetAccess(at, (i + 1) * 2 * UNIT, &access, 1));
        DRIVER(cu.cuMemRelease(handles[i]));
    }
    /* From within the first mapping over the border into the second: the middle of the window is the border. */
    bool ok = window_carries(p, (unsigned char *)(uintptr_t)base + UNIT, 2 * (size_t)UNIT);
    DRIVER(cu.cuMemUnmap(base, 2 * (size_t)UNIT));
    DRIVER(cu.cuMemUnmap(base + 2 * (size_t)UNIT, 4 * (size_t)UNIT));
    DRIVER(cu.cuMemAddressFree(base, 6 * (size_t)UNIT));
    return ok;
}

static bool windows_over_cudamalloc_memory_work(pe *p)
{
    CUdeviceptr base;
    DRIVER(cu.cuMemAlloc(&base, 4 << 20));
    bool ok = window_carries(p, (unsigned char *)(uintptr_t)base + 4096, 1 << 20) &&
              window_carries(p, (unsigned char *)(uintptr_t)base + (2 << 20), 1 << 20);
    DRIVER(cu.cuMemFree(base));
    return ok;
}

static bool vmm_memory_that_cannot_be_shared_is_refused_on_all(pe *p)
{
    CUdeviceptr base;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handle;
    uf_window *window = NULL;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = p->crowd->device < 0 ? p->me : p->crowd->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cu.cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    DRIVER(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    DRIVER(cu.cuMemMap(base, UNIT, 0, handle, 0));
    DRIVER(cu.cuMemSetAccess(base, UNIT, &access, 1));
    DRIVER(cu.cuMemRelease(handle));
    int rc = uf_register(p->world, (void *)(uintptr_t)base, UNIT, &window);
    if (p->crowd->threads) { /* within a process a handle needs no type */
        HOLD(rc == UF_OK);
        FINE(uf_unregister(window));
    } else {
        HOLD(rc == UF_EUNSUPPORTED);
        HOLD(strstr(uf_error_message(), "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
    }
    DRIVER(cu.cuMemUnmap(base, UNIT));
    DRIVER(cu.cuMemAddressFree(base, UNIT));
    return sync_all(p);
}

static bool windows_of_host_and_gpu_memory_do_not_mix(pe *p)
{
    static unsigned char host[MAX_PES][4096];
    uf_window *window = NULL;
    CUdeviceptr base;
    DRIVER(cu.cuMemAlloc(&base, 4096));
    int rc = uf_register(p->world, p->me == 0 ? (void *)(uintptr_t)base : host[p->me], 4096, &window);
    HOLD(rc == UF_EMISMATCH);
    HOLD(window == NULL);
    DRIVER(cu.cuMemFree(base));
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: refusals */

static bool what_the_host_cannot_do_is_refused(pe *p)
{
    uint64_t old = 0;
    unsigned char byte = 1;
    const uint64_t *list[] = {&p->words[3]};
    const uf_wait_list waits = {list, 1, NULL, UF_EQ, 0, NULL};
    HOLD(uf_signal(p->ctx, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0) == UF_EUNSUPPORTED);
    HOLD(strstr(uf_error_message(), "UF_SIGNAL_ADD"));
    HOLD(uf_put_signal(p->ctx, p->in, &byte, 1, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0) == UF_EUNSUPPORTED);
    HOLD(uf_atomic(p->ctx, UF_ATOMIC_FETCH_ADD, 8, &p->words[3], 1, 0, &old, p->right) == UF_EUNSUPPORTED);
    HOLD(uf_wait_all(p->world, &waits, 0) == UF_EUNSUPPORTED);
    HOLD(uf_signal(p->ctx, (uint64_t *)(void *)((unsigned char *)p->words + 4), UF_SIGNAL_SET, 1, p->right, 0) == UF_EINVAL);
    HOLD(strstr(uf_error_message(), "aligned"));
    HOLD(uf_put(p->ctx, p->in + ((size_t)80 << 30), &byte, 1, p->right) == UF_ERANGE);
    HOLD(uf_broadcast(uf_team_world(p->world), p->in, p->mine, 8, 0) == UF_EUNSUPPORTED);
    HOLD(uf_malloc_on(p->world, 7, 8, 0, (void **)&old) == UF_EINVAL);
    HOLD(uf_put_signal_on_stream(p->ctx, p->in, p->mine, 8, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0, p->stream) ==
         UF_EUNSUPPORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[3], UF_LT, 1, 0, p->stream) == UF_EUNSUPPORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[3], UF_EQ, 1, 8, p->stream) == UF_EINVAL);
    HOLD(uf_signal_on_stream(p->ctx, &p->words[3], UF_SIGNAL_SET, 1, p->n, 0, p->stream) == UF_ERANGE);
    HOLD(uf_put_on_stream(p->ctx, &byte, p->mine, 1, p->right, p->stream) == UF_ERANGE);
    HOLD(uf_wait(p->world, &p->words[3], UF_EQ, 77, 1000000) == UF_ETIMEDOUT);
    HOLD(strstr(uf_error_message(), "77"));
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: streams */

static bool on_stream_signals_follow_their_bytes(pe *p)
{
    unsigned char host[SLOT], got[SLOT];
    for (unsigned round = 1; round <= 200; round++) {
        fill(host, SLOT, p->me, round);
        DRIVER(cu.cuMemcpyAsync(address(p->mine), address(host), SLOT, p->stream));
        FINE(uf_put_signal_on_stream(p->ctx, p->in, p->mine, SLOT, &p->words[4], UF_SIGNAL_SET, round, p->right, UF_WEAK,
                                     p->stream));
        FINE(uf_wait_on_stream(p->world, &p->words[4], UF_GE, round, 0, p->stream));
        FINE(uf_get_on_stream(p->ctx, p->mine + SLOT, p->in, SLOT, p->me, p->stream));
        FINE(uf_fence_on_stream(p->ctx, p->stream));
        FINE(uf_signal_on_stream(p->ctx, &p->words[5], UF_SIGNAL_SET, round, p->left, UF_STRONG, p->stream));
        FINE(uf_wait_on_stream(p->world, &p->words[5], UF_EQ, round, 0, p->stream));
        FINE(uf_quiet_on_stream(p->ctx, p->stream));
        if (!copy(p, got, p->mine + SLOT, SLOT))
            return false;
        HOLD(is(got, SLOT, p->left, round));
    }
    return sync_all(p);
}

static bool streams_and_hosts_signal_each_other(pe *p)
{
    unsigned char host[SLOT], got[SLOT];
    for (unsigned round = 1; round <= 50; round++) {
        /* The right one's host waits for what our stream has put; its host then lets our stream go on. */
        fill(host, SLOT, p->me, round + 3);
        if (!copy(p, p->mine, host, SLOT))
            return false;
        FINE(uf_put_signal_on_stream(p->ctx, p->in, p->mine, SLOT, &p->host_words[4], UF_SIGNAL_SET, round, p->right, 0,
                                     p->stream));
        FINE(uf_wait_on_stream(p->world, &p->host_words[5], UF_GE, round, 0, p->stream));
        FINE(uf_wait(p->world, &p->host_words[4], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, got, p->in, SLOT, p->me));
        HOLD(is(got, SLOT, p->left, round + 3));
        FINE(uf_signal(p->ctx, &p->host_words[5], UF_SIGNAL_SET, round, p->left, 0));
        DRIVER(cu.cuStreamSynchronize(p->stream));
    }
    return sync_all(p);
}

static bool barriers_on_streams_hold_until_all_have_come(pe *p)
{
    unsigned char *got = malloc((size_t)p->n * 8);
    bool ok = got != NULL;
    for (uint64_t round = 1; ok && round <= 50; round++) {
        for (int i = 0; ok && i < p->n; i++)
            ok = uf_signal_on_stream(p->ctx, &p->words[16 + p->me], UF_SIGNAL_SET, round, i, 0, p->stream) == UF_OK;
        ok = ok && uf_barrier_on_stream(uf_team_world(p->world), p->stream) == UF_OK;
        ok = ok && cu.cuMemcpyAsync(address(got), address(&p->words[16]), (size_t)p->n * 8, p->stream) == CUDA_SUCCESS &&
             uf_barrier_on_stream(uf_team_world(p->world), p->stream) == UF_OK &&
             cu.cuStreamSynchronize(p->stream) == CUDA_SUCCESS;
        for (int i = 0; ok && i < p->n; i++) {
            uint64_t word;
            memcpy(&word, got + 8 * i, 8);
            ok = word == round;
        }
    }
    free(got);
    return ok ? sync_all(p) : broken(p, __LINE__, "a barrier on a stream let somebody pass, or failed");
}

/* Shifts a tape of n slots by one: through a copy, since the ranges overlap. */
static bool shift(pe *p, unsigned char *tape, unsigned char *spare, size_t slots)
{
    DRIVER(cu.cuMemcpyAsync(address(spare), address(tape + SLOT), (slots - 1) * SLOT, p->stream));
    DRIVER(cu.cuMemcpyAsync(address(tape), address(spare), (slots - 1) * SLOT, p->stream));
    return true;
}

/* What each replay does: with the right one's credit, put the head of the tape with a signal of 1; take what the left one has put to the end of the
 * log; give the left one its credit. All waits consume, so every replay is alike. */
static bool append_step(pe *p, unsigned char *tape, unsigned char *log, unsigned char *spare)
{
    FINE(uf_wait_on_stream(p->world, &p->words[33], UF_EQ, 1, UF_CONSUME, p->stream));
    FINE(uf_put_signal_on_stream(p->ctx, p->in, tape, SLOT, &p->words[32], UF_SIGNAL_SET, 1, p->right, UF_WEAK, p->stream));
    FINE(uf_wait_on_stream(p->world, &p->words[32], UF_EQ, 1, UF_CONSUME, p->stream));
    if (!shift(p, tape, spare, REPLAYS) || !shift(p, log, spare, REPLAYS))
        return false;
    FINE(uf_put_on_stream(p->ctx, log + (REPLAYS - 1) * SLOT, p->in, SLOT, p->me, p->stream));
    FINE(uf_signal_on_stream(p->ctx, &p->words[33], UF_SIGNAL_SET, 1, p->left, 0, p->stream));
    return true;
}

static bool replay(pe *p, unsigned char *tape, unsigned char *log, unsigned char *spare, unsigned char *host)
{
    CUgraph graph;
    CUgraphExec exec;
    for (unsigned i = 0; i < REPLAYS; i++)
        fill(host + (size_t)i * SLOT, SLOT, p->me, i + 100);
    if (!copy(p, tape, host, (size_t)REPLAYS * SLOT))
        return false;
    FINE(uf_signal(p->ctx, &p->words[33], UF_SIGNAL_SET, 1, p->left, 0)); /* the first credit */
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (!append_step(p, tape, log, spare))
        return false;
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    DRIVER(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned i = 0; i < REPLAYS; i++)
        DRIVER(cu.cuGraphLaunch(exec, p->stream));
    if (!copy(p, host, log, (size_t)REPLAYS * SLOT))
        return false;
    for (unsigned i = 0; i < REPLAYS; i++)
        HOLD(is(host + (size_t)i * SLOT, SLOT, p->left, i + 100));
    DRIVER(cu.cuGraphExecDestroy(exec));
    DRIVER(cu.cuGraphDestroy(graph));
    return true;
}

static bool a_captured_exchange_is_right_at_each_of_1000_replays(pe *p)
{
    void *tape, *log, *spare;
    unsigned char *host = malloc((size_t)REPLAYS * SLOT);
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &tape));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &log));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &spare));
    bool ok = host && sync_all(p) && replay(p, tape, log, spare, host) && sync_all(p);
    free(host);
    if (!ok)
        return false;
    FINE(uf_free(p->world, spare));
    FINE(uf_free(p->world, log));
    FINE(uf_free(p->world, tape));
    return true;
}

static bool a_captured_barrier_is_right_at_each_replay(pe *p)
{
    CUgraph graph;
    CUgraphExec exec;
    if (!sync_all(p))
        return false;
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    FINE(uf_barrier_on_stream(uf_team_world(p->world), p->stream));
    FINE(uf_signal_on_stream(p->ctx, &p->words[40], UF_SIGNAL_SET, 1, p->right, 0, p->stream));
    FINE(uf_barrier_on_stream(uf_team_world(p->world), p->stream));
    /* The left one's signal is here now; without the barrier it would be waited for, so nothing here can wait for long. */
    FINE(uf_wait_on_stream(p->world, &p->words[40], UF_EQ, 1, UF_CONSUME, p->stream));
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    DRIVER(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 300; i++)
        DRIVER(cu.cuGraphLaunch(exec, p->stream));
    DRIVER(cu.cuStreamSynchronize(p->stream));
    DRIVER(cu.cuGraphExecDestroy(exec));
    DRIVER(cu.cuGraphDestroy(graph));
    return sync_all(p);
}

static bool allocating_while_capturing_is_refused_and_said(pe *p)
{
    CUstream blocking;
    CUgraph graph;
    void *ptr = NULL;
    uf_window *window = NULL;
    if (p->crowd->threads && p->crowd->device >= 0 && p->me > 0)
        return sync_all(p) && sync_all(p); /* all of them have one context: one thread is enough */
    if (!sync_all(p))
        return false;
    DRIVER(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DRIVER(cu.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    int malloced = uf_malloc_on(p->world, UF_MEMORY_CUDA, 4096, 0, &ptr);
    bool said = strstr(uf_error_message(), "captured") != NULL;
    int registered = uf_register(p->world, p->mine, 4096, &window);
    bool said_too = strstr(uf_error_message(), "captured") != NULL;
    DRIVER(cu.cuStreamEndCapture(blocking, &graph));
    DRIVER(cu.cuGraphDestroy(graph));
    DRIVER(cu.cuStreamDestroy(blocking));
    HOLD(malloced == UF_EINVAL && said);
    HOLD(registered == UF_EINVAL && said_too);
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: kernels' view */

static bool kernels_are_told_the_world(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    ufd_peer peers[MAX_PES];
    int32_t status;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w) || !copy(p, peers, w.peers, sizeof *peers * (size_t)p->n))
        return false;
    HOLD(w.abi == UFD_ABI && w.size == sizeof w && w.pe == p->me && w.n_pes == p->n);
    HOLD((uint64_t)(uintptr_t)p->mine >= w.heap && (uint64_t)(uintptr_t)(p->in + (4 << 20)) <= w.heap + w.heap_bytes);
    HOLD((uint64_t)(uintptr_t)p->host_words >= w.host_heap &&
         (uint64_t)(uintptr_t)p->host_words < w.host_heap + w.host_heap_bytes);
    for (int i = 0; i < p->n; i++) {
        HOLD(peers[i].way == UFD_NEAR);
        HOLD((uintptr_t)p->mine + (uint64_t)peers[i].shift == (uintptr_t)uf_ptr(p->world, p->mine, i));
        HOLD((uintptr_t)p->host_words + (uint64_t)peers[i].host_shift == (uintptr_t)uf_ptr(p->world, p->host_words, i));
    }
    HOLD(w.timeout_ns > 0 && w.barrier && w.scratch && w.error);
    HOLD(w.heap_span >= w.heap_bytes && (uint64_t)(uintptr_t)w.barrier - w.heap < w.heap_bytes);
    ufd_ctx contexts[64];
    HOLD(w.n_ctxs >= 1 && w.n_ctxs <= 64);
    if (!copy(p, contexts, w.ctxs, sizeof *contexts * w.n_ctxs))
        return false;
    for (uint32_t i = 0; i < w.n_ctxs; i++)
        HOLD(contexts[i].abi == UFD_ABI && contexts[i].size == sizeof *contexts && contexts[i].index == i &&
             contexts[i].world == device && contexts[i].peers == w.peers && contexts[i].heap == w.heap &&
             contexts[i].heap_span == w.heap_span);
    memcpy(&status, w.status, sizeof status);
    HOLD(status == 0);
    const struct ufd_world *again;
    FINE(uf_device_world(p->world, &again));
    HOLD(device == again);
    return true;
}

/* The window with that base as kernels would find it; false: they would not. */
static bool find_window(pe *p, const struct ufd_world *device, uint64_t base, ufd_window *found)
{
    static _Thread_local ufd_window all[64];
    ufd_world w;
    if (!copy(p, &w, device, sizeof w) || w.n_windows > 64 || !copy(p, all, w.windows, sizeof *all * w.n_windows))
        return false;
    for (uint32_t i = 0; i < w.n_windows; i++)
        if (all[i].bytes && all[i].base == base) {
            *found = all[i];
            return true;
        }
    return false;
}

static bool kernels_see_windows_come_and_go(pe *p)
{
    const struct ufd_world *device;
    ufd_window seen[3];
    int64_t shifts[MAX_PES];
    uf_window *windows[3];
    CUdeviceptr base;
    FINE(uf_device_world(p->world, &device));
    DRIVER(cu.cuMemAlloc(&base, 6 << 20));
    for (unsigned i = 0; i < 3; i++)
        FINE(uf_register(p->world, (void *)(uintptr_t)(base + i * 65536), 4096 * (i + 1), &windows[i]));
    for (unsigned i = 0; i < 3; i++) {
        unsigned char *at = (unsigned char *)(uintptr_t)(base + i * 65536);
        HOLD(find_window(p, device, (uint64_t)(uintptr_t)at, &seen[i]) && seen[i].bytes == 4096 * (i + 1));
        if (!copy(p, shifts, seen[i].shifts, sizeof *shifts * (size_t)p->n))
            return false;
        for (int other = 0; other < p->n; other++)
            HOLD((uintptr_t)at + (uint64_t)shifts[other] == (uintptr_t)uf_ptr(p->world, at, other));
    }
    FINE(uf_unregister(windows[1]));
    HOLD(!find_window(p, device, base + 65536, &seen[1]) && find_window(p, device, base + 2 * 65536, &seen[2]));
    FINE(uf_register(p->world, (void *)(uintptr_t)(base + 65536), 8192, &windows[1])); /* takes the place that is free */
    HOLD(find_window(p, device, base + 65536, &seen[1]) && seen[1].bytes == 8192);
    for (int i = 0; i < 3; i++)
        FINE(uf_unregister(windows[i]));
    HOLD(!find_window(p, device, base, &seen[0]));
    DRIVER(cu.cuMemFree(base));
    return sync_all(p);
}

/* The record as a kernel leaves it: the numbers are written by us here, by kernels in world_device.cu. */
static bool what_kernels_record_becomes_a_sentence(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w))
        return false;
    FINE(uf_device_error(p->world));
    const ufd_error late = {.abi = UFD_ABI,
                            .size = sizeof late,
                            .count = 3,
                            .ready = 1,
                            .code = UF_ETIMEDOUT,
                            .what = UFD_IN_WAIT,
                            .pe = -1,
                            .block = {4, 5, 6},
                            .thread = {32, 1, 0},
                            .address = w.heap + 0x140,
                            .given = 41,
                            .wanted = 42};
    if (!copy(p, w.error, &late, sizeof late))
        return false;
    HOLD(uf_device_error(p->world) == UF_ETIMEDOUT);
    const char *parts[] = {"a wait", "(4, 5, 6)", "(32, 1, 0)", "0x140", "41", "42", "2 more"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        HOLD(strstr(uf_error_message(), parts[i]));
    FINE(uf_device_error(p->world));
    HOLD(uf_device_error(NULL) == UF_EINVAL);
    return true;
}

static bool kernels_see_heaps_grow(pe *p)
{
    const struct ufd_world *device;
    ufd_world before, after;
    void *gpu, *host;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &before, device, sizeof before))
        return false;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, before.heap_bytes, 0, &gpu));
    FINE(uf_malloc(p->world, before.host_heap_bytes, 0, &host));
    if (!copy(p, &after, device, sizeof after))
        return false;
    HOLD(after.heap_bytes > before.heap_bytes && after.host_heap_bytes > before.host_heap_bytes);
    HOLD((uint64_t)(uintptr_t)gpu + before.heap_bytes <= after.heap + after.heap_bytes);
    HOLD((uint64_t)(uintptr_t)host + before.host_heap_bytes <= after.host_heap + after.host_heap_bytes);
    FINE(uf_free(p->world, host));
    FINE(uf_free(p->world, gpu));
    return true;
}

/* The last one: it ends the world. */
static bool an_abort_lets_streams_go_and_tells_kernels(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w))
        return false;
    FINE(uf_wait_on_stream(p->world, &p->words[50], UF_EQ, 1, UF_CONSUME, p->stream));
    FINE(uf_wait_on_stream(p->world, &p->host_words[6], UF_GE, 3, 0, p->stream));
    HOLD(cu.cuStreamQuery(p->stream) == CUDA_ERROR_NOT_READY);
    if (!sync_all(p))
        return false;
    if (p->me == 0)
        FINE(uf_world_abort(p->world, "for the test"));
    HOLD(cu.cuStreamSynchronize(p->stream) == CUDA_SUCCESS);
    HOLD(uf_world_status(p->world) == UF_EABORTED);
    HOLD(*(const volatile int32_t *)w.status == UF_EABORTED);
    HOLD(uf_wait(p->world, &p->words[51], UF_EQ, 9, 10ull * SECOND) == UF_EABORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[50], UF_EQ, 1, 0, p->stream) == UF_EABORTED);
    return true;
}

typedef struct promise {
    const char *name;
    bool (*keep)(pe *p);
} promise;
#define PROMISE(f)                                                                                                               \
    {                                                                                                                            \
#f, f                                                                                                                    \
    }
static const promise promises[] = {
    PROMISE(gpu_memory_is_zero_when_first_handed_out),
    PROMISE(pointers_of_near_peers_are_given),
    PROMISE(host_puts_reach_gpu_memory_of_peers),
    PROMISE(gets_bring_gpu_memory_of_peers),
    PROMISE(a_signal_in_gpu_memory_follows_its_bytes),
    PROMISE(a_signal_in_host_memory_follows_its_gpu_bytes),
    PROMISE(rows_of_a_batch_may_mix_host_and_gpu_memory),
    PROMISE(the_gpu_heap_grows_and_reuses),
    PROMISE(more_gpu_memory_than_there_is_is_refused),
    PROMISE(windows_over_vmm_memory_of_two_mappings_work),
    PROMISE(windows_over_cudamalloc_memory_work),
    PROMISE(vmm_memory_that_cannot_be_shared_is_refused_on_all),
    PROMISE(windows_of_host_and_gpu_memory_do_not_mix),
    PROMISE(what_the_host_cannot_do_is_refused),
    PROMISE(on_stream_signals_follow_their_bytes),
    PROMISE(streams_and_hosts_signal_each_other),
    PROMISE(barriers_on_streams_hold_until_all_have_come),
    PROMISE(a_captured_exchange_is_right_at_each_of_1000_replays),
    PROMISE(a_captured_barrier_is_right_at_each_replay),
    PROMISE(allocating_while_capturing_is_refused_and_said),
    PROMISE(kernels_are_told_the_world),
    PROMISE(kernels_see_windows_come_and_go),
    PROMISE(what_kernels_record_becomes_a_sentence),
    PROMISE(kernels_see_heaps_grow),
    PROMISE(an_abort_lets_streams_go_and_tells_kernels),
};
enum { N_PROMISES = sizeof promises / sizeof *promises };

/* ---------------------------------------------------------------- crowds */

typedef struct job {
    const crowd *crowd;
    table *shared;
    uf_group *group;
    char root[64];
    int me;
} job;

/* Where the PEs of this process are, for whoever watches: asked by SIGUSR1, each tells by SIGUSR2. */
static pthread_t pe_threads[MAX_PES];
static int n_pe_threads;

static void tell_where(int number)
{
    void *frames[24];
    (void)number;
    static const char head[] = "-- a PE is here:\n";
    if (write(STDERR_FILENO, head, sizeof head - 1) > 0)
        backtrace_symbols_fd(frames, backtrace(frames, 24), STDERR_FILENO);
}

static void ask_all(int number)
{
    (void)number;
    int n = __atomic_load_n(&n_pe_threads, __ATOMIC_ACQUIRE);
    for (int i = 0; i < n && i < MAX_PES; i++)
        if (pe_threads[i])
            pthread_kill(pe_threads[i], SIGUSR2);
}

static void be_askable(void)
{
    void *frames[2];
    backtrace(frames, 2); /* loads what it needs before a handler does */
    struct sigaction ask = {.sa_handler = ask_all, .sa_flags = SA_RESTART},
                     tell = {.sa_handler = tell_where, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &ask, NULL);
    sigaction(SIGUSR2, &tell, NULL);
    int i = __atomic_fetch_add(&n_pe_threads, 1, __ATOMIC_ACQ_REL);
    if (i < MAX_PES)
        pe_threads[i] = pthread_self();
}

static bool set_up(pe *p, const job *j)
{
    be_askable();
    at_step(p->shared, p->me, SETTING_UP);
    uf_world_options o = UF_WORLD_OPTIONS;
    CUdevice device;
    int ordinal = p->crowd->device < 0 ? p->me : p->crowd->device;
    o.pe = p->me;
    o.n_pes = p->n;
    o.group = j->group;
    o.root = j->group ? NULL : j->root;
    o.timeout_ns = 15ull * SECOND;
    o.heap_bytes = 8 << 20;
    if (cu.cuDeviceGet(&device, ordinal) || cu.cuDevicePrimaryCtxRetain(&p->context, device) || cu.cuCtxPushCurrent(p->context) ||
        cu.cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING))
        return false;
    if (uf_world_create(&o, &p->world))
        return false;
    p->ctx = uf_ctx_default(p->world);
    void *mine, *in, *words;
    if (uf_signal_alloc(p->world, 16, UF_SIGNAL_DEFAULT, &p->host_words) ||
        uf_malloc_on(p->world, UF_MEMORY_CUDA, 4 << 20, 0, &mine) || uf_malloc_on(p->world, UF_MEMORY_CUDA, 4 << 20, 0, &in) ||
        uf_malloc_on(p->world, UF_MEMORY_CUDA, 64 * 8, 0, &words))
        return false;
    p->mine = mine;
    p->in = in;
    p->words = words;
    return true;
}

static void tear_down(pe *p)
{
    CUcontext gone;
    at_step(p->shared, p->me, ENDING);
    uf_world_destroy(p->world);
    if (p->stream)
        cu.cuStreamDestroy(p->stream);
    cu.cuCtxPopCurrent(&gone);
    CUdevice device;
    if (cu.cuDeviceGet(&device, p->crowd->device < 0 ? p->me : p->crowd->device) == CUDA_SUCCESS)
        cu.cuDevicePrimaryCtxRelease(device);
    at_step(p->shared, p->me, NOWHERE);
}

static void *run_pe(void *arg)
{
    const job *j = arg;
    pe p = {.crowd = j->crowd, .shared = j->shared, .me = j->me, .n = j->crowd->n};
    p.right = (p.me + 1) % p.n;
    p.left = (p.me + p.n - 1) % p.n;
    if (!set_up(&p, j)) {
        for (int i = 0; i < N_PROMISES; i++) {
            j->shared->results[i][p.me].state = -1;
            snprintf(j->shared->results[i][p.me].why, sizeof j->shared->results[i][p.me].why, "setting up: %.300s",
                     uf_error_message());
        }
        if (p.world)
            uf_world_abort(p.world, "setting up failed");
        tear_down(&p);
        return NULL;
    }
    bool going = true;
    for (int i = 0; i < N_PROMISES && going; i++) {
        p.now = &j->shared->results[i][p.me];
        at_step(p.shared, p.me, FIRST_PROMISE + i);
        going = promises[i].keep(&p);
        if (going)
            p.now->state = 1;
        else if (p.now->state == 0) {
            p.now->state = -1;
            snprintf(p.now->why, sizeof p.now->why, "%.390s", uf_error_message());
        }
    }
    tear_down(&p);
    return NULL;
}

static int passed, failed;

static void say(const char *crowd_name, const char *name, bool ok, const char *why)
{
    printf("%-4s %s: %s%s%s\n", ok ? "ok" : "FAIL", crowd_name, name, ok ? "" : ": ", ok ? "" : why);
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

static void report(const crowd *c, const table *t)
{
    for (int i = 0; i < N_PROMISES; i++) {
        const result *worst = NULL;
        for (int pe_number = 0; pe_number < c->n; pe_number++)
            if (t->results[i][pe_number].state != 1 && (!worst || !worst->why[0]))
                worst = &t->results[i][pe_number];
        say(c->name, promises[i].name, !worst, !worst ? "" : worst->why[0] ? worst->why : "not run");
    }
}

static const char ending[] = "worlds_end_and_leave_nothing_in_the_driver";

/* The driver of the tests counts what is alive in it. */
static bool nothing_is_left(void)
{
    int (*alive)(void) = NULL;
    void *lib = dlopen(library(), RTLD_NOW | RTLD_NOLOAD), *symbol = lib ? dlsym(lib, "fake_cuda_live") : NULL;
    memcpy(&alive, &symbol, sizeof symbol);
    if (!alive || alive() == 0)
        return true;
    fprintf(stderr, "%d objects of the driver are left\n", alive());
    return false;
}

static table *make_table(void)
{
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return t;
}

/* A free port; it stays bound, so that nobody else takes it, by a socket that does not listen. */
static int reserve_port(char root[64])
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &bytes)) {
        perror("bind");
        exit(1);
    }
    snprintf(root, 64, "127.0.0.1:%d", ntohs(a.sin_port));
    return fd;
}

static int limit_of_a_step(void)
{
    const char *text = getenv("STEP_SECONDS");
    return 1000 * (text && atoi(text) > 0 ? atoi(text) : 20);
}

/* The first PE that has been in one step for too long, or -1. */
static int find_stuck(const crowd *c, const table *t)
{
    for (int i = 0; i < c->n; i++) {
        int64_t at = __atomic_load_n(&t->step[i], __ATOMIC_ACQUIRE);
        int step = (int)(at >> 48);
        int64_t since = at & (((int64_t)1 << 48) - 1);
        if (step != NOWHERE && milliseconds() - since > limit_of_a_step())
            return i;
    }
    return -1;
}

static const char *name_of(int step)
{
    return step == SETTING_UP ? "setting up" : step == ENDING ? "ending the world" : promises[step - FIRST_PROMISE].name;
}

static void name_stuck(const crowd *c, const table *t, const pid_t *pids, int n)
{
    for (int i = 0; i < c->n; i++) {
        int64_t at = __atomic_load_n(&t->step[i], __ATOMIC_ACQUIRE);
        int step = (int)(at >> 48);
        int64_t ms = milliseconds() - (at & (((int64_t)1 << 48) - 1));
        if (step != NOWHERE)
            fprintf(stderr, "HANG %s: PE %d has been in %s for %d ms\n", c->name, i, name_of(step), (int)ms);
    }
    fflush(stderr);
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGUSR1);
    const struct timespec moment = {1, 0};
    nanosleep(&moment, NULL);
}

/* Waits for children that carry the PEs of `c`; those that hang are named and all are killed. How many did not end well by themselves. */
static int collect(const crowd *c, const table *t, pid_t *pids, int n)
{
    int bad = 0, left = n;
    for (;;) {
        for (int i = 0, status; i < n; i++)
            if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
                pids[i] = 0;
                left--;
            }
        if (left == 0)
            return bad;
        if (find_stuck(c, t) >= 0)
            break;
        const struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
    }
    name_stuck(c, t, pids, n);
    for (int i = 0; i < n; i++)
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    return bad + left;
}

static void run_processes(const crowd *c)
{
    job j = {.crowd = c, .shared = make_table()};
    pid_t pids[MAX_PES];
    int port = reserve_port(j.root);
    for (j.me = 0; j.me < c->n; j.me++) {
        pids[j.me] = fork();
        if (pids[j.me] == 0) {
            exit(load_driver() > 0 && !run_pe(&j) && nothing_is_left() ? 0 : 1);
        }
    }
    int bad = collect(c, j.shared, pids, c->n);
    close(port);
    report(c, j.shared);
    say(c->name, ending, bad == 0, "see above, or one was killed");
    munmap(j.shared, sizeof *j.shared);
}

static int threads_main(const crowd *c, table *shared)
{
    pthread_t threads[MAX_PES];
    job jobs[MAX_PES];
    uf_group *group;
    if (load_driver() < 1 || uf_group_create(c->n, &group))
        return 1;
    for (int i = 0; i < c->n; i++) {
        jobs[i] = (job){.crowd = c, .shared = shared, .group = group, .me = i};
        pthread_create(&threads[i], NULL, run_pe, &jobs[i]);
    }
    for (int i = 0; i < c->n; i++)
        pthread_join(threads[i], NULL);
    uf_group_destroy(group);
    return nothing_is_left() ? 0 : 2;
}

/* In a process of its own: the parent stays free of CUDA. */
static void run_threads(const crowd *c)
{
    table *shared = make_table();
    pid_t pid = fork();
    if (pid == 0)
        exit(threads_main(c, shared));
    int bad = collect(c, shared, &pid, 1);
    report(c, shared);
    say(c->name, ending, bad == 0, "see above, or it was killed");
    munmap(shared, sizeof *shared);
}

/* ---------------------------------------------------------------- deaths, and machines without a driver */

/* PE 1 is killed while PE 0's stream and host wait for it. */
static int die_or_survive(const job *j)
{
    pe p = {.crowd = j->crowd, .shared = j->shared, .me = j->me, .n = 2, .right = 1 - j->me, .left = 1 - j->me};
    result *r = &j->shared->results[0][j->me];
    if (load_driver() < 1 || !set_up(&p, j))
        return 1;
    p.now = r;
    if (uf_barrier(uf_team_world(p.world)))
        return 1;
    if (p.me == 1) {
        __atomic_store_n(&j->shared->flag[0], 1, __ATOMIC_RELEASE);
        pause();
    }
    int stream_wait = uf_wait_on_stream(p.world, &p.words[0], UF_EQ, 1, UF_CONSUME, p.stream);
    __atomic_store_n(&j->shared->flag[1], 1, __ATOMIC_RELEASE);
    int host_wait = uf_wait(p.world, &p.words[1], UF_EQ, 1, 15ull * SECOND);
    bool named = strstr(uf_error_message(), "PE 1") != NULL;
    CUresult drained = cu.cuStreamSynchronize(p.stream);
    int status = uf_world_status(p.world);
    bool ok = !stream_wait && host_wait == UF_EPEER && named && drained == CUDA_SUCCESS && status == UF_EPEER;
    r->state = ok ? 1 : -1;
    snprintf(r->why, sizeof r->why, "wait on stream %d, host wait %d, synchronize %d, status %d: %.200s", stream_wait, host_wait,
             drained, status, uf_error_message());
    tear_down(&p);
    return 0;
}

static void run_death(void)
{
    static const crowd two = {"2 processes, one killed", 2, 0, false};
    job j = {.crowd = &two, .shared = make_table()};
    pid_t pids[2];
    int port = reserve_port(j.root);
    for (j.me = 0; j.me < 2; j.me++) {
        pids[j.me] = fork();
        if (pids[j.me] == 0)
            exit(die_or_survive(&j));
    }
    for (int i = 0; i < 600 && !(__atomic_load_n(&j.shared->flag[0], __ATOMIC_ACQUIRE) &&
                                 __atomic_load_n(&j.shared->flag[1], __ATOMIC_ACQUIRE));
         i++) {
        const struct timespec moment = {0, 50000000};
        nanosleep(&moment, NULL);
    }
    kill(pids[1], SIGKILL);
    at_step(j.shared, 1, NOWHERE);
    collect(&two, j.shared, pids, 2);
    close(port);
    say(two.name, "a_killed_pe_ends_the_waits_of_hosts_and_streams", j.shared->results[0][0].state == 1,
        j.shared->results[0][0].why);
    munmap(j.shared, sizeof *j.shared);
}

static int ask_without_driver(table *t)
{
    uf_world *w;
    void *ptr = NULL;
    setenv("UNFENCE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    int created = uf_world_create(NULL, &w);
    if (created)
        return 1;
    int rc = uf_malloc_on(w, UF_MEMORY_CUDA, 4096, 0, &ptr);
    snprintf(t->results[0][0].why, sizeof t->results[0][0].why, "%d: %.300s", rc, uf_error_message());
    bool said = strstr(uf_error_message(), "no CUDA driver") && strstr(uf_error_message(), "/nonexistent/libcuda.so.1");
    t->results[0][0].state =
        rc == UF_EUNSUPPORTED && said && uf_malloc(w, 4096, 0, &ptr) == UF_OK && uf_world_destroy(w) == UF_OK;
    return 0;
}

static void run_without_driver(void)
{
    table *t = make_table();
    pid_t pid = fork();
    if (pid == 0)
        exit(ask_without_driver(t));
    waitpid(pid, NULL, 0);
    say("no driver", "the_same_library_works_and_says_so", t->results[0][0].state == 1, t->results[0][0].why);
    munmap(t, sizeof *t);
}

static int count_gpus(void)
{
    table *t = make_table();
    pid_t pid = fork();
    if (pid == 0) {
        t->flag[0] = load_driver();
        exit(0);
    }
    waitpid(pid, NULL, 0);
    int n = t->flag[0];
    munmap(t, sizeof *t);
    return n;
}

int main(void)
{
    int gpus = count_gpus();
    printf("%s: %d GPUs\n", library(), gpus);
    fflush(stdout); /* children would print it again */
    run_without_driver();
    if (gpus > 0) {
        const crowd shared[] = {{"2 processes on GPU 0", 2, 0, false},
                                {"4 processes on GPU 0", 4, 0, false},
                                {"2 threads on GPU 0", 2, 0, true},
                                {"4 threads on GPU 0", 4, 0, true}};
        for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
            setenv("UNFENCE_CUDA_DEVICE", "0", 1);
            if (shared[i].threads)
                run_threads(&shared[i]);
            else
                run_processes(&shared[i]);
        }
        run_death();
        unsetenv("UNFENCE_CUDA_DEVICE"); /* auto: that of the current context */
        int each = gpus < MAX_PES ? gpus : MAX_PES;
        const crowd one_each[] = {{"processes, a GPU each", each, -1, false}, {"threads, a GPU each", each, -1, true}};
        if (gpus > 1) {
            run_processes(&one_each[0]);
            run_threads(&one_each[1]);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : gpus > 0 ? 0 : 77;
}
