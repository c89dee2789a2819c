/* fake_cuda.c - a CUDA driver over host memory, for machines without a GPU: built as a library that UNFENCE_CUDA_LIBRARY names.
 *
 * It keeps the driver's promises as far as src/cuda and programs that use streams rely on them, and is strict where the real one is silent
 * or kills: GPU memory lies at addresses that the CPU may not touch (the bytes are elsewhere), a device reads and writes only what it was given
 * access to, stores and waits of streams work only on memory that a GPU sees, and what a capture forbids is refused. Memory is memfds, so
 * descriptors of it travel between processes as real ones do. Streams are threads that carry out their operations in order; the
 * legacy stream and blocking ones wait for each other. What gives memory back waits until the context is idle, and until then nobody else appends
 * anything to that context's streams: the driver's manual calls that implicit synchronization, and it is how programs hang.
 * Environment: FAKE_CUDA_DEVICES (2), FAKE_CUDA_PEERS=0 (no peer access), FAKE_CUDA_VERSION (13000), FAKE_CUDA_FAIL=function:n:code (its n-th call
 * fails). FAKE_CUDA_NIC_ORDER and
 * FAKE_CUDA_NIC_FLUSH: attributes that say what the writes of NICs need. What else tests may ask is in fake_cuda.h. */
#include "support/fake_cuda.h"
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { DEVICES = 8, UNIT = 2 << 20 };

/* ---------------------------------------------------------------- state */

typedef struct memory { /* what cuMemCreate and cuMemAlloc make */
    int fd, refs, device;
    size_t bytes;
    bool exportable;
} memory;

typedef struct mapping {
    uintptr_t at;
    size_t bytes;
    memory *memory;
    unsigned char *alias; /* where its bytes are */
    unsigned access;      /* a bit for each device */
    bool plain;
    uint64_t id;
    struct mapping *next;
} mapping;

typedef struct range { /* reservations and registered host memory */
    uintptr_t at;
    size_t bytes;
    void *owned; /* of cuMemHostAlloc */
    struct range *next;
} range;

struct CUctx_st {
    int device, refs, draining; /* calls that wait for it to be idle */
    unsigned peers;
};

typedef enum op_kind { OP_COPY, OP_FILL, OP_MEMOP, OP_GRAPH } op_kind;
typedef struct op {
    op_kind kind;
    int device;
    uintptr_t dst, src;
    size_t bytes;
    unsigned char value;
    unsigned char *snapshot;          /* of pageable memory */
    CUstreamBatchMemOpParams *memops; /* [n_memops], this op's own */
    unsigned n_memops;
    CUgraph graph;
    uint64_t number; /* in the order in which all were given */
    struct op *next;
} op;

struct CUgraph_st {
    op *first, **last;
};

struct CUstream_st {
    CUcontext context;
    bool blocking, stop, busy, started;
    uint64_t number; /* of the operation under way */
    pthread_t thread;
    pthread_cond_t changed;
    op *first, **last;
    CUgraph capture;
    CUresult error;
    struct CUstream_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;
static range *reserved, *registered;
static struct CUctx_st contexts[DEVICES];
static struct CUstream_st defaults[DEVICES];
static CUstream streams;
static uint64_t last_number;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; /* some stream has done something, or a context is drained */
static int n_devices = 2, live, captures;
static uint64_t last_id;
static pid_t owner;
static _Thread_local CUcontext stack[32];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode mode;

/* ---------------------------------------------------------------- failures on purpose */

static char failing[64];
static int failing_in, failing_code;

EXPORT void fake_cuda_fail(const char *function, int nth, int code)
{
    pthread_mutex_lock(&lock);
    snprintf(failing, sizeof failing, "%s", function);
    failing_in = nth;
    failing_code = code;
    pthread_mutex_unlock(&lock);
}

EXPORT int fake_cuda_pending(void)
{
    pthread_mutex_lock(&lock);
    int n = failing_in;
    pthread_mutex_unlock(&lock);
    return n;
}

EXPORT int fake_cuda_live(void)
{
    pthread_mutex_lock(&lock);
    int n = live;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Calls of this thread since it asked last: each function by its name, which is one string literal. */
static _Thread_local struct {
    const char *function;
    int n;
} counts[64];

static void count(const char *function)
{
    size_t i = 0;
    while (i < sizeof counts / sizeof *counts - 1 && counts[i].function && strcmp(counts[i].function, function))
        i++;
    counts[i].function = function;
    counts[i].n++;
}

EXPORT int fake_cuda_calls(const char *function)
{
    int n = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].function && (!function || !strcmp(counts[i].function, function))) {
            n += counts[i].n;
            counts[i].n = 0;
        }
    return n;
}

static CUresult enter(const char *function)
{
    CUresult rc = CUDA_SUCCESS;
    count(function);
    pthread_mutex_lock(&lock);
    if (owner && owner != getpid())
        rc = CUDA_ERROR_NOT_INITIALIZED;
    if (failing_in > 0 && strcmp(function, failing) == 0 && --failing_in == 0)
        rc = (CUresult)failing_code;
    pthread_mutex_unlock(&lock);
    return rc;
}
#define ENTER(name)                                                                                                              \
    do {                                                                                                                         \
        CUresult injected = enter(#name);                                                                                        \
        if (injected != CUDA_SUCCESS)                                                                                            \
            return injected;                                                                                                     \
    } while (0)

static void alive(int n)
{
    live += n;
}

/* What a capture under way forbids to threads that have not said that they know. */
static bool forbidden(void)
{
    return captures > 0 && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* ---------------------------------------------------------------- start, devices, contexts */

static int number_of(const char *name, int none)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : none;
}

EXPORT CUresult cuInit(unsigned flags)
{
    const char *fail = getenv("FAKE_CUDA_FAIL");
    char name[64];
    int nth, code;
    (void)flags;
    if (fail && sscanf(fail, "%63[^:]:%d:%d", name, &nth, &code) == 3)
        fake_cuda_fail(name, nth, code);
    ENTER(cuInit);
    pthread_mutex_lock(&lock);
    n_devices = number_of("FAKE_CUDA_DEVICES", 2);
    for (int i = 0; i < n_devices && !owner; i++) {
        contexts[i].device = i;
        defaults[i].context = &contexts[i];
        defaults[i].blocking = true;
        defaults[i].last = &defaults[i].first;
        pthread_cond_init(&defaults[i].changed, NULL);
    }
    owner = getpid();
    pthread_mutex_unlock(&lock);
    return n_devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = number_of("FAKE_CUDA_VERSION", 13000);
    return enter("cuDriverGetVersion");
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
                 {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
                 {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *text = names[i].name;
            return CUDA_SUCCESS;
        }
    *text = "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    (void)error;
    *text = "said the driver of the tests";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *n)
{
    ENTER(cuDeviceGetCount);
    *n = n_devices;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet);
    *device = ordinal;
    return ordinal >= 0 && ordinal < n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    ENTER(cuDeviceGetName);
    snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid);
    memset(uuid, 0x5a, sizeof *uuid);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device)
{
    ENTER(cuDeviceGetPCIBusId);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem);
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute);
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING ? number_of("FAKE_CUDA_NIC_ORDER", 0)
             : attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
                 ? number_of("FAKE_CUDA_NIC_FLUSH", 1)
                 : attribute != CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
    ENTER(cuDeviceCanAccessPeer);
    *can = a != b && number_of("FAKE_CUDA_PEERS", 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    pthread_mutex_lock(&lock);
    contexts[device].refs++;
    alive(1);
    pthread_mutex_unlock(&lock);
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&lock);
    contexts[device].refs--;
    alive(-1);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    ENTER(cuCtxPushCurrent);
    if (depth == 32)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return enter("cuCtxGetCurrent");
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    depth = depth ? depth : 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return enter("cuCtxGetDevice");
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER(cuCtxEnablePeerAccess);
    (void)flags;
    pthread_mutex_lock(&lock);
    stack[depth - 1]->peers |= 1u << peer->device;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static int current(void)
{
    return depth ? stack[depth - 1]->device : -1;
}

static bool is_idle(const struct CUctx_st *c)
{
    bool idle = !defaults[c->device].first && !defaults[c->device].busy;
    for (CUstream s = streams; s; s = s->next)
        idle &= s->context != c || (!s->first && !s->busy);
    return idle;
}

/* With the lock, which it gives up meanwhile. */
static void wait_until_idle(void)
{
    struct CUctx_st *c = depth ? stack[depth - 1] : NULL;
    if (!c)
        return;
    c->draining++;
    while (!is_idle(c))
        pthread_cond_wait(&progress, &lock);
    c->draining--;
    pthread_cond_broadcast(&progress);
}

/* ---------------------------------------------------------------- memory */

static bool overlaps(uintptr_t at, size_t bytes, uintptr_t other, size_t other_bytes)
{
    return at < other + other_bytes && other < at + bytes;
}

static range **range_at(range **list, uintptr_t at, size_t bytes)
{
    for (range **r = list; *r; r = &(*r)->next)
        if (at >= (*r)->at && at + bytes <= (*r)->at + (*r)->bytes)
            return r;
    return NULL;
}

static void add_range(range **list, uintptr_t at, size_t bytes, void *owned)
{
    range *r = calloc(1, sizeof *r);
    *r = (range){at, bytes, owned, *list};
    *list = r;
    alive(1);
}

static void drop_range(range **r)
{
    range *gone = *r;
    *r = gone->next;
    free(gone);
    alive(-1);
}

static mapping **mapping_at(uintptr_t at)
{
    for (mapping **m = &mappings; *m; m = &(*m)->next)
        if (at >= (*m)->at && at < (*m)->at + (*m)->bytes)
            return m;
    return NULL;
}

static memory *make_memory(int device, size_t bytes, bool exportable)
{
    memory *m = calloc(1, sizeof *m);
    *m = (memory){memfd_create("fake-gpu", MFD_CLOEXEC), 1, device, bytes, exportable};
    if (ftruncate(m->fd, (off_t)bytes))
        abort();
    alive(1);
    return m;
}

static void unref(memory *m)
{
    if (--m->refs)
        return;
    close(m->fd);
    free(m);
    alive(-1);
}

static mapping *map_memory(uintptr_t at, memory *m)
{
    mapping *new = calloc(1, sizeof *new);
    void *alias = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    *new = (mapping){at, m->bytes, m, alias, 0, false, ++last_id, mappings};
    mappings = new;
    m->refs++;
    alive(1);
    return new;
}

static void drop_mapping(mapping **m)
{
    mapping *gone = *m;
    *m = gone->next;
    munmap(gone->alias, gone->bytes);
    unref(gone->memory);
    free(gone);
    alive(-1);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr hint, unsigned long long flags)
{
    ENTER(cuMemAddressReserve);
    (void)hint;
    (void)flags;
    align = align < UNIT ? UNIT : align;
    unsigned char *all = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t base = ((uintptr_t)all + align - 1) / align * align;
    if (base > (uintptr_t)all)
        munmap(all, base - (uintptr_t)all);
    munmap((void *)(base + bytes), (uintptr_t)all + align - base);
    pthread_mutex_lock(&lock);
    add_range(&reserved, base, bytes, NULL);
    pthread_mutex_unlock(&lock);
    *at = base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool used = false;
    for (mapping *m = mappings; m; m = m->next)
        used |= overlaps(at, bytes, m->at, m->bytes);
    range **r = range_at(&reserved, at, bytes);
    if (r && !used && (*r)->at == at && (*r)->bytes == bytes) {
        munmap((void *)at, bytes);
        drop_range(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *p,
                            unsigned long long flags)
{
    ENTER(cuMemCreate);
    (void)flags;
    if (forbidden())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (bytes % UNIT || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)1 << 30)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *handle = (uintptr_t)make_memory(p->location.id, bytes, p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    unref((memory *)(uintptr_t)handle);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    ENTER(cuMemMap);
    memory *m = (memory *)(uintptr_t)handle;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool used = false;
    for (mapping *o = mappings; o; o = o->next)
        used |= overlaps(at, bytes, o->at, o->bytes);
    if (range_at(&reserved, at, bytes) && !used && bytes == m->bytes && offset == 0 && flags == 0) {
        map_memory(at, m);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    wait_until_idle();
    for (uintptr_t next = at; next < at + bytes && rc == CUDA_SUCCESS;) {
        mapping **m = mapping_at(next);
        if (!m || (*m)->at != next || (*m)->plain || next + (*m)->bytes > at + bytes) {
            rc = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        next += (*m)->bytes;
        drop_mapping(m);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
    ENTER(cuMemSetAccess);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    mapping **m = mapping_at(at);
    if (m && (*m)->at == at && (*m)->bytes == bytes) {
        rc = CUDA_SUCCESS;
        for (size_t i = 0; i < n; i++) {
            if (access[i].location.id != (*m)->memory->device && !number_of("FAKE_CUDA_PEERS", 1))
                rc = CUDA_ERROR_INVALID_DEVICE;
            else
                (*m)->access |= 1u << access[i].location.id;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags flags)
{
    ENTER(cuMemGetAllocationGranularity);
    (void)p;
    (void)flags;
    *unit = UNIT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *p, CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemGetAllocationPropertiesFromHandle);
    memset(p, 0, sizeof *p);
    p->location.id = ((memory *)(uintptr_t)handle)->device;
    if (((memory *)(uintptr_t)handle)->exportable)
        p->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                             unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle);
    memory *m = (memory *)(uintptr_t)handle;
    (void)flags;
    if (!m->exportable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = dup(m->fd);
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

/* Which device imported memory is of does not travel with a memfd: any of this process may be given access. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type)
{
    ENTER(cuMemImportFromShareableHandle);
    int fd = (int)(uintptr_t)shared;
    struct stat st;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &st))
        return CUDA_ERROR_INVALID_VALUE;
    memory *m = calloc(1, sizeof *m);
    *m = (memory){fcntl(fd, F_DUPFD_CLOEXEC, 0), 1, current(), (size_t)st.st_size, true};
    pthread_mutex_lock(&lock);
    alive(1);
    pthread_mutex_unlock(&lock);
    *handle = (uintptr_t)m;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at)
{
    ENTER(cuMemRetainAllocationHandle);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    mapping **m = mapping_at((uintptr_t)at);
    if (m && !(*m)->plain) {
        (*m)->memory->refs++;
        *handle = (uintptr_t)(*m)->memory;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type,
                                              unsigned long long flags)
{
    ENTER(cuMemGetHandleForAddressRange);
    (void)bytes;
    (void)flags;
    pthread_mutex_lock(&lock);
    mapping **m = mapping_at(at);
    int fd = m && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ? dup((*m)->memory->fd) : -1;
    pthread_mutex_unlock(&lock);
    memcpy(out, &fd, sizeof fd);
    return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uintptr_t reserve_plain(size_t bytes)
{
    return (uintptr_t)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    ENTER(cuMemAlloc);
    if (forbidden())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&lock);
    memory *m = make_memory(current(), bytes, false);
    mapping *new = map_memory(reserve_plain(bytes), m);
    new->plain = true;
    new->access = 1u << current();
    unref(m);
    *at = new->at;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult free_plain(CUdeviceptr at)
{
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    wait_until_idle();
    mapping **m = mapping_at(at);
    if (m && (*m)->plain && (*m)->at == at) {
        munmap((void *)at, (*m)->bytes);
        drop_mapping(m);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemFree(CUdeviceptr at)
{
    return free_plain(at);
}

typedef struct ipc_name {
    int pid, fd;
    size_t bytes;
} ipc_name;

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
    ENTER(cuIpcGetMemHandle);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    mapping **m = mapping_at(at);
    memset(handle, 0, sizeof *handle);
    if (m && (*m)->plain) {
        const ipc_name name = {getpid(), (*m)->memory->fd, (*m)->bytes};
        memcpy(handle, &name, sizeof name);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
    ENTER(cuIpcOpenMemHandle);
    ipc_name name;
    char path[64];
    (void)flags;
    memcpy(&name, &handle, sizeof name);
    if (name.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    memory *m = calloc(1, sizeof *m);
    *m = (memory){open(path, O_RDWR | O_CLOEXEC), 1, current(), name.bytes, false};
    if (m->fd < 0) {
        free(m);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    alive(1);
    mapping *new = map_memory(reserve_plain(name.bytes), m);
    new->plain = true;
    new->access = 1u << current();
    unref(m);
    *at = new->at;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    return free_plain(at);
}

EXPORT CUresult cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
    ENTER(cuMemHostRegister);
    CUresult rc = CUDA_SUCCESS;
    (void)flags;
    if (forbidden())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    for (range *r = registered; r; r = r->next)
        if (overlaps((uintptr_t)at, bytes, r->at, r->bytes))
            rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (rc == CUDA_SUCCESS)
        add_range(&registered, (uintptr_t)at, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemHostUnregister(void *at)
{
    pthread_mutex_lock(&lock);
    wait_until_idle();
    range **r = range_at(&registered, (uintptr_t)at, 1);
    bool found = r && (*r)->at == (uintptr_t)at;
    if (found)
        drop_range(r);
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

EXPORT CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    ENTER(cuMemHostAlloc);
    (void)flags;
    if (forbidden())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (posix_memalign(at, 4096, (bytes + 4095) / 4096 * 4096))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add_range(&registered, (uintptr_t)*at, (bytes + 4095) / 4096 * 4096, *at);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *at)
{
    pthread_mutex_lock(&lock);
    wait_until_idle();
    range **r = range_at(&registered, (uintptr_t)at, 1);
    void *owned = r ? (*r)->owned : NULL;
    if (owned)
        drop_range(r);
    pthread_mutex_unlock(&lock);
    free(owned);
    return owned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------- what a pointer is */

static CUresult attribute(void *out, CUpointer_attribute name, CUdeviceptr at)
{
    mapping **found = mapping_at(at), *m = found ? *found : NULL;
    bool host = !m && range_at(&registered, at, 1);
    union {
        unsigned number;
        int ordinal;
        unsigned long long wide;
        size_t bytes;
        CUdeviceptr base;
    } v = {0};
    size_t bytes = sizeof v.wide;
    switch (name) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        v.number = m ? CU_MEMORYTYPE_DEVICE : host ? CU_MEMORYTYPE_HOST : 0;
        bytes = sizeof v.number;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        bytes = sizeof v.number;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        v.number = m != NULL;
        bytes = sizeof v.number;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        v.ordinal = m ? m->memory->device : -2;
        bytes = sizeof v.ordinal;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        v.wide = m ? m->id : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        v.base = m ? m->at : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        v.bytes = m ? m->bytes : 0;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, &v, bytes);
    return m || host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuPointerGetAttribute(void *out, CUpointer_attribute name, CUdeviceptr at)
{
    ENTER(cuPointerGetAttribute);
    pthread_mutex_lock(&lock);
    CUresult rc = attribute(out, name, at);
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *names, void **out, CUdeviceptr at)
{
    ENTER(cuPointerGetAttributes);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n; i++)
        attribute(out[i], names[i], at); /* unknown pointers are no error here */
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- carrying out */

/* With the lock. Where the bytes at `at` are, and how many follow; NULL: the device may not. Host memory is where it is. */
static unsigned char *resolve(uintptr_t at, int device, size_t *follow)
{
    mapping **found = mapping_at(at);
    if (!found) {
        *follow = SIZE_MAX;
        return range_at(&reserved, at, 1) ? NULL : (unsigned char *)at;
    }
    mapping *m = *found;
    *follow = m->at + m->bytes - at;
    bool peer = m->plain && contexts[device].peers & 1u << m->memory->device;
    return m->access & 1u << device || peer ? m->alias + (at - m->at) : NULL;
}

static CUresult copy(const op *o)
{
    CUresult rc = CUDA_SUCCESS;
    for (size_t done = 0; done < o->bytes && rc == CUDA_SUCCESS;) {
        size_t to_follow, from_follow = SIZE_MAX, n = o->bytes - done;
        pthread_mutex_lock(&lock);
        unsigned char *to = resolve(o->dst + done, o->device, &to_follow);
        unsigned char *from = o->snapshot          ? o->snapshot + done
                              : o->kind == OP_FILL ? NULL
                                                   : resolve(o->src + done, o->device, &from_follow);
        pthread_mutex_unlock(&lock);
        n = n < to_follow ? n : to_follow;
        n = n < from_follow ? n : from_follow;
        if (!to || (!from && o->kind != OP_FILL))
            rc = CUDA_ERROR_ILLEGAL_ADDRESS;
        else if (o->kind == OP_FILL)
            memset(to, o->value, n);
        else
            memmove(to, from, n);
        done += n;
    }
    return rc;
}

static bool reached(const CUstreamBatchMemOpParams *p, const unsigned char *word)
{
    uint64_t seen = __atomic_load_n((const uint64_t *)(const void *)word, __ATOMIC_ACQUIRE), value = p->waitValue.value64;
    switch (p->waitValue.flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return (int64_t)(seen - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == value;
    default:
        return (seen & value) != 0;
    }
}

static CUresult memory_operation(const op *o, const CUstreamBatchMemOpParams *p, const CUstream s)
{
    size_t follow;
    CUdeviceptr at = p->writeValue.address;
    pthread_mutex_lock(&lock);
    unsigned char *word = mapping_at(at) || range_at(&registered, at, 8) ? resolve(at, o->device, &follow) : NULL;
    pthread_mutex_unlock(&lock);
    if (!word || at % 8)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
        __atomic_store_n((uint64_t *)(void *)word, p->writeValue.value64, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    }
    while (!reached(p, word)) {
        const struct timespec pause = {0, 20000};
        pthread_mutex_lock(&lock);
        bool stop = s->stop;
        pthread_mutex_unlock(&lock);
        if (stop)
            return CUDA_ERROR_LAUNCH_FAILED;
        nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

static void free_op(op *o)
{
    free(o->snapshot);
    free(o->memops);
    free(o);
}

static CUstreamBatchMemOpParams *copy_batch(const CUstreamBatchMemOpParams *params, unsigned n)
{
    CUstreamBatchMemOpParams *same = calloc(n ? n : 1, sizeof *same);
    memcpy(same, params, n * sizeof *same);
    return same;
}

static CUresult carry_out(const op *o, const CUstream s)
{
    CUresult rc = CUDA_SUCCESS;
    if (o->kind == OP_COPY || o->kind == OP_FILL)
        return copy(o);
    if (o->kind == OP_MEMOP) {
        for (unsigned i = 0; i < o->n_memops && rc == CUDA_SUCCESS; i++)
            rc = memory_operation(o, &o->memops[i], s);
        return rc;
    }
    for (const op *part = o->graph->first; part && rc == CUDA_SUCCESS; part = part->next)
        rc = carry_out(part, s);
    return rc;
}

/* The number of the oldest operation that is not done. */
static uint64_t oldest(const struct CUstream_st *s)
{
    return s->busy ? s->number : s->first ? s->first->number : UINT64_MAX;
}

/* With the lock: an operation of the legacy stream begins when all that blocking streams were given before it is done, and the other way. */
static bool held_by_others(const CUstream s, const op *o)
{
    CUstream legacy = &defaults[s->context->device];
    bool held = false;
    if (s == legacy) {
        for (CUstream other = streams; other; other = other->next)
            held |= other->blocking && other->context == s->context && oldest(other) < o->number;
        return held;
    }
    return s->blocking && oldest(legacy) < o->number;
}

static void *stream_main(void *arg)
{
    CUstream s = arg;
    pthread_mutex_lock(&lock);
    while (!s->stop || s->first) {
        op *o = s->first;
        if (!o) {
            pthread_cond_wait(&s->changed, &lock);
            continue;
        }
        if (held_by_others(s, o)) {
            pthread_cond_wait(&progress, &lock);
            continue;
        }
        s->first = o->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        s->number = o->number;
        pthread_mutex_unlock(&lock);
        CUresult rc = carry_out(o, s);
        free_op(o);
        pthread_mutex_lock(&lock);
        s->busy = false;
        if (s->error == CUDA_SUCCESS)
            s->error = rc;
        pthread_cond_broadcast(&s->changed);
        pthread_cond_broadcast(&progress);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static CUstream known(CUstream s)
{
    if (s == NULL || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
        return current() >= 0 ? &defaults[current()] : NULL;
    return s;
}

static CUresult give(CUstream handle, const op *o)
{
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    CUstream s = known(handle);
    if (s) {
        op *new = malloc(sizeof *new);
        while (s->context->draining && !s->capture)
            pthread_cond_wait(&progress, &lock);
        *new = *o;
        new->number = ++last_number;
        new->device = s->context->device;
        new->next = NULL;
        op ***last = s->capture ? &s->capture->last : &s->last;
        **last = new;
        *last = &new->next;
        if (!s->started && !s->capture)
            s->started = pthread_create(&s->thread, NULL, stream_main, s) == 0;
        pthread_cond_broadcast(&s->changed);
        rc = s->error;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---------------------------------------------------------------- streams */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER(cuStreamCreate);
    CUstream s = calloc(1, sizeof *s);
    s->context = stack[depth - 1];
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    s->last = &s->first;
    pthread_cond_init(&s->changed, NULL);
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    alive(1);
    pthread_mutex_unlock(&lock);
    *stream = s;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    ENTER(cuStreamCreateWithPriority);
    return priority < -5 || priority > 0 ? CUDA_ERROR_INVALID_VALUE : cuStreamCreate(stream, flags);
}

EXPORT CUresult cuStreamDestroy(CUstream s)
{
    pthread_mutex_lock(&lock);
    s->stop = true;
    bool started = s->started;
    for (CUstream *at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    alive(-1);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&lock);
    if (started)
        pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    free(s);
    return CUDA_SUCCESS;
}

static CUresult finish(CUstream s)
{
    pthread_mutex_lock(&lock);
    CUresult rc = s && s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    while (rc == CUDA_SUCCESS && s && (s->first || s->busy))
        pthread_cond_wait(&s->changed, &lock);
    if (rc == CUDA_SUCCESS && s)
        rc = s->error;
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER(cuStreamSynchronize);
    pthread_mutex_lock(&lock);
    CUstream s = known(handle);
    pthread_mutex_unlock(&lock);
    return finish(s);
}

/* With the lock. */
static bool is_pageable(uintptr_t at)
{
    return !mapping_at(at) && !range_at(&reserved, at, 1) && !range_at(&registered, at, 1);
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    pthread_mutex_lock(&lock);
    CUstream s = known(handle);
    CUresult rc = s->first || s->busy ? CUDA_ERROR_NOT_READY : s->error;
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyAsync);
    op o = {.kind = OP_COPY, .dst = dst, .src = src, .bytes = bytes};
    pthread_mutex_lock(&lock);
    CUstream s = known(stream);
    /* The driver has read pageable memory when it returns, and written it. */
    bool from_pageable = s && !s->capture && is_pageable(src), to_pageable = s && !s->capture && is_pageable(dst);
    pthread_mutex_unlock(&lock);
    if (from_pageable) {
        o.snapshot = malloc(bytes);
        memcpy(o.snapshot, (const void *)src, bytes);
    }
    CUresult rc = give(stream, &o);
    return rc == CUDA_SUCCESS && to_pageable ? finish(s) : rc;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER(cuMemsetD8Async);
    const op o = {.kind = OP_FILL, .dst = dst, .value = value, .bytes = bytes};
    return give(stream, &o);
}

EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned n, CUstreamBatchMemOpParams *params, unsigned flags)
{
    ENTER(cuStreamBatchMemOp);
    if (flags || n > 256)
        return CUDA_ERROR_INVALID_VALUE;
    const op o = {.kind = OP_MEMOP, .memops = copy_batch(params, n), .n_memops = n};
    CUresult rc = give(stream, &o);
    if (rc == CUDA_ERROR_INVALID_HANDLE)
        free(o.memops);
    return rc;
}

/* ---------------------------------------------------------------- capture and graphs */

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode old = mode;
    mode = *other;
    *other = old;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    ENTER(cuStreamIsCapturing);
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (CUstream s = streams; s; s = s->next)
        if ((handle == NULL || handle == CU_STREAM_LEGACY) && s->blocking && s->capture && depth &&
            s->context == stack[depth - 1])
            rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    CUstream s = known(handle);
    *status = s && s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    pthread_mutex_unlock(&lock);
    return rc;
}

static void free_graph(CUgraph graph)
{
    for (op *o = graph->first; o;) {
        op *next = o->next;
        free_op(o);
        o = next;
    }
    free(graph);
    pthread_mutex_lock(&lock);
    alive(-1);
    pthread_mutex_unlock(&lock);
}

static CUgraph new_graph(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    alive(1);
    return graph;
}

EXPORT CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode how)
{
    (void)how;
    pthread_mutex_lock(&lock);
    s->capture = new_graph();
    captures++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *graph)
{
    pthread_mutex_lock(&lock);
    *graph = s->capture;
    s->capture = NULL;
    captures--;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* A node is an operation of the graph. Here a capture is a chain: the last operation is all that the next depends on. */
static CUresult fake_cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                            const CUgraphNode **before, size_t *n_before)
{
    static _Thread_local CUgraphNode node;
    ENTER(cuStreamGetCaptureInfo);
    pthread_mutex_lock(&lock);
    CUstream s = known(handle);
    *status = s && s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    op *last = NULL;
    if (s && s->capture)
        for (last = s->capture->first; last && last->next; last = last->next)
            ;
    pthread_mutex_unlock(&lock);
    if (id)
        *id = 0;
    if (graph)
        *graph = NULL;
    node = (CUgraphNode)(void *)last;
    *before = &node;
    *n_before = last != NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    ENTER(cuGraphNodeGetType);
    const op *o = (const op *)(const void *)node;
    *type = o->kind == OP_MEMOP ? CU_GRAPH_NODE_TYPE_BATCH_MEM_OP : CU_GRAPH_NODE_TYPE_MEMCPY;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    ENTER(cuGraphBatchMemOpNodeGetParams);
    const op *o = (const op *)(const void *)node;
    *params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = stack[depth - 1], .count = o->n_memops, .paramArray = o->memops};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    ENTER(cuGraphBatchMemOpNodeSetParams);
    op *o = (op *)(void *)node;
    CUstreamBatchMemOpParams *new = copy_batch(params->paramArray, params->count);
    free(o->memops);
    o->memops = new;
    o->n_memops = params->count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)exec;
    (void)stream;
    return CUDA_SUCCESS;
}

/* A graph that can be launched is a copy here: the graph may be destroyed. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    CUgraph copied = new_graph();
    pthread_mutex_unlock(&lock);
    for (const op *o = graph->first; o; o = o->next) {
        op *same = malloc(sizeof *same);
        *same = *o;
        same->memops = o->memops ? copy_batch(o->memops, o->n_memops) : NULL;
        same->next = NULL;
        *copied->last = same;
        copied->last = &same->next;
    }
    *exec = (CUgraphExec)(void *)copied;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    const op o = {.kind = OP_GRAPH, .graph = (CUgraph)(void *)exec};
    return give(stream, &o);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    free_graph((CUgraph)(void *)exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    free_graph(graph);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- writes of others */

EXPORT CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
    (void)target;
    (void)scope;
    ENTER(cuFlushGPUDirectRDMAWrites);
    return depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT void *fake_cuda_bytes(unsigned long address, unsigned long bytes)
{
    void *at = NULL;
    pthread_mutex_lock(&lock);
    mapping **found = mapping_at(address);
    if (found && (*found)->at + (*found)->bytes - address >= bytes)
        at = (*found)->alias + (address - (*found)->at);
    pthread_mutex_unlock(&lock);
    return at;
}

/* ---------------------------------------------------------------- finding functions */

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    static const struct {
        const char *name;
        int since;
        void (*function)(void);
    } all[] = {
#define UF_CUDA_FUNCTION(f, since)          {#f, since, (void (*)(void))f},
#define UF_CUDA_FUNCTION_AS(type, f, since) {#f, since, (void (*)(void))fake_##f},
#include "cuda/functions.def"
#undef UF_CUDA_FUNCTION
#undef UF_CUDA_FUNCTION_AS
    };
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, name))
            continue;
        bool there = version >= all[i].since && all[i].since <= number_of("FAKE_CUDA_VERSION", 13000);
        if (there)
            memcpy(function, &all[i].function, sizeof *function);
        *status = there ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    }
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}
