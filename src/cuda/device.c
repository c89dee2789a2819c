/* device.c - GPUs: which there are, which one a PE uses, and whether one can reach another's memory.
 *
 * A device is used through its primary context, the one that the CUDA runtime and every framework use, so that streams, buffers and
 * kernels of the program and ours see the same addresses. The library never leaves a context behind that the caller did not have: every
 * call is a scope. Within a scope the thread's capture mode is relaxed, so that what we do beside the program's streams neither fails
 * nor spoils a graph that some thread is capturing. */
#include "base/error.h"
#include "cuda/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- scopes */

int uf_cuda_enter(const uf_cuda_device *d, uf_cuda_scope *scope)
{
    CUresult rc = uf_cuda.cuCtxPushCurrent(d->context);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuCtxPushCurrent", "making the context of GPU %d current failed", d->facts.ordinal);
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uf_cuda.cuThreadExchangeStreamCaptureMode(&scope->mode);
    return UF_OK;
}

void uf_cuda_leave(const uf_cuda_scope *scope)
{
    CUstreamCaptureMode mode = scope->mode;
    CUcontext ours;
    uf_cuda.cuThreadExchangeStreamCaptureMode(&mode);
    uf_cuda.cuCtxPopCurrent(&ours);
}

int uf_cuda_drain(const uf_cuda_device *d, const char *what)
{
    CUresult rc = uf_cuda.cuStreamSynchronize(d->stream);
    return rc == CUDA_SUCCESS ? UF_OK : uf_cuda_fail(rc, "cuStreamSynchronize", "%s on GPU %d failed", what, d->facts.ordinal);
}

/* ---------------------------------------------------------------- facts */

int uf_cuda_count(int *n)
{
    CUresult rc = uf_cuda.cuDeviceGetCount(n);
    return rc == CUDA_SUCCESS ? UF_OK : uf_cuda_fail(rc, "cuDeviceGetCount", "counting the GPUs failed");
}

/* A device that does not know an attribute does not have the ability. */
static uint8_t has(CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;
    return uf_cuda.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value > 0;
}

CUmemAllocationProp uf_cuda_heap_memory(const uf_cuda_facts *f, CUdevice device)
{
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = f->fd_handles ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.allocFlags.gpuDirectRDMACapable = f->rdma;
    return p;
}

static void fill_abilities(CUdevice device, uf_cuda_facts *f)
{
    f->vmm = has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    f->fd_handles = has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    f->dmabuf = has(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    f->rdma = has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    f->memory_ops = has(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    f->host_address = has(device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    f->host_atomics = has(device, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
}

int uf_cuda_describe(int ordinal, uf_cuda_facts *facts)
{
    uf_cuda_facts f;
    CUdevice device;
    CUuuid uuid;
    size_t bytes = 0, granularity = 0;
    memset(&f, 0, sizeof f);
    f.ordinal = ordinal;
    const char *call = "cuDeviceGet";
    CUresult rc = uf_cuda.cuDeviceGet(&device, ordinal);
    if (rc == CUDA_SUCCESS && (rc = uf_cuda.cuDeviceGetName(f.name, sizeof f.name, device)))
        call = "cuDeviceGetName";
    if (rc == CUDA_SUCCESS && (rc = uf_cuda.cuDeviceGetUuid(&uuid, device)))
        call = "cuDeviceGetUuid";
    if (rc == CUDA_SUCCESS && (rc = uf_cuda.cuDeviceGetPCIBusId(f.bus, sizeof f.bus, device)))
        call = "cuDeviceGetPCIBusId";
    if (rc == CUDA_SUCCESS && (rc = uf_cuda.cuDeviceTotalMem(&bytes, device)))
        call = "cuDeviceTotalMem";
    if (rc == CUDA_SUCCESS && (rc = uf_cuda.cuDriverGetVersion(&f.driver)))
        call = "cuDriverGetVersion";
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, call, "looking at GPU %d failed", ordinal);
    memcpy(f.uuid, uuid.bytes, sizeof f.uuid);
    f.bytes = bytes;
    fill_abilities(device, &f);
    if (f.vmm) {
        const CUmemAllocationProp p = uf_cuda_heap_memory(&f, device);
        rc = uf_cuda.cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        if (rc != CUDA_SUCCESS || granularity == 0)
            return uf_cuda_fail(rc, "cuMemGetAllocationGranularity", "asking GPU %d for its unit of memory failed", ordinal);
        f.granularity = granularity;
    }
    *facts = f;
    return UF_OK;
}

const uf_cuda_facts *uf_cuda_facts_of(const uf_cuda_device *device)
{
    return &device->facts;
}

/* ---------------------------------------------------------------- choice */

int uf_cuda_choose(const uf_settings *settings, int local_rank, int *ordinal)
{
    const char *asked = settings->text[UF_SET_CUDA_DEVICE];
    int n;
    int rc = uf_cuda_count(&n);
    if (rc)
        return rc;
    CUdevice current;
    if (strcmp(asked, "auto") == 0) {
        *ordinal = uf_cuda.cuCtxGetDevice(&current) == CUDA_SUCCESS ? (int)current : local_rank % n;
        return UF_OK;
    }
    char *end;
    long number = strtol(asked, &end, 10);
    if (end == asked || *end || number < 0 || number >= n)
        return uf_fail(UF_EINVAL,
                       "UNFENCE_CUDA_DEVICE=%s: give auto or the number of one of the %d GPUs that this process sees (0 to %d)",
                       asked, n, n - 1);
    *ordinal = (int)number;
    return UF_OK;
}

int uf_cuda_open(int ordinal, uf_cuda_device **device)
{
    uf_cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return uf_fail(UF_ENOMEM, "no memory for the record of GPU %d", ordinal);
    uf_cuda_scope scope;
    CUresult result;
    int rc = uf_cuda_describe(ordinal, &d->facts);
    if (rc)
        goto free_record;
    if (!d->facts.vmm) {
        rc =
            uf_fail(UF_EUNSUPPORTED,
                    "GPU %d (%s) or its driver has no virtual memory management (cuMemCreate), which symmetric memory is made of",
                    ordinal, d->facts.name);
        goto free_record;
    }
    if ((result = uf_cuda.cuDeviceGet(&d->device, ordinal)) ||
        (result = uf_cuda.cuDevicePrimaryCtxRetain(&d->context, d->device))) {
        rc = uf_cuda_fail(result, "cuDevicePrimaryCtxRetain", "opening GPU %d (%s) failed", ordinal, d->facts.name);
        goto free_record;
    }
    rc = uf_cuda_enter(d, &scope);
    if (rc)
        goto release;
    /* Non-blocking: it waits for no other stream, so a program's stream that waits for us never waits for itself. Streams of one priority share
     * a few queues of the hardware, where one that waits holds those behind it: ours has a priority that programs seldom use. */
    int least = 0, greatest = 0;
    if (uf_cuda.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS)
        greatest = 0;
    result = uf_cuda.cuStreamCreateWithPriority(&d->stream, CU_STREAM_NON_BLOCKING, greatest);
    uf_cuda_leave(&scope);
    if (result == CUDA_SUCCESS) {
        *device = d;
        return UF_OK;
    }
    rc = uf_cuda_fail(result, "cuStreamCreateWithPriority", "a stream on GPU %d (%s) could not be made", ordinal, d->facts.name);
release:
    uf_cuda.cuDevicePrimaryCtxRelease(d->device);
free_record:
    free(d);
    return rc;
}

void uf_cuda_close(uf_cuda_device *d)
{
    uf_cuda_scope scope;
    if (!d)
        return;
    if (uf_cuda_enter(d, &scope) == UF_OK) {
        uf_cuda.cuStreamSynchronize(d->stream);
        uf_cuda.cuStreamDestroy(d->stream);
        uf_cuda_leave(&scope);
    }
    uf_cuda.cuDevicePrimaryCtxRelease(d->device);
    free(d);
}

/* ---------------------------------------------------------------- peers */

/* The peer's GPU as this process numbers it; false: it does not see it. */
static bool find_visible(const uf_cuda_facts *peer, CUdevice *device)
{
    int n = 0;
    CUuuid uuid;
    if (uf_cuda.cuDeviceGetCount(&n) != CUDA_SUCCESS)
        return false;
    for (int i = 0; i < n; i++)
        if (uf_cuda.cuDeviceGet(device, i) == CUDA_SUCCESS && uf_cuda.cuDeviceGetUuid(&uuid, *device) == CUDA_SUCCESS &&
            memcmp(uuid.bytes, peer->uuid, sizeof peer->uuid) == 0)
            return true;
    return false;
}

bool uf_cuda_near(const uf_cuda_facts *mine, const uf_cuda_facts *peer, const char **why)
{
    CUdevice here, there;
    int can = 0;
    if (memcmp(mine->uuid, peer->uuid, sizeof mine->uuid) == 0) {
        *why = "the same GPU";
        return true;
    }
    if (!find_visible(peer, &there)) {
        *why = "its GPU is hidden from this process (CUDA_VISIBLE_DEVICES), but its memory can be mapped";
        return true;
    }
    if (uf_cuda.cuDeviceGet(&here, mine->ordinal) == CUDA_SUCCESS &&
        uf_cuda.cuDeviceCanAccessPeer(&can, here, there) == CUDA_SUCCESS && can) {
        *why = "another GPU of this host with peer access";
        return true;
    }
    *why = "another GPU of this host, but the system offers no peer access between the two (P2P disabled, or no path: see "
           "nvidia-smi topo "
           "-p2p r)";
    return false;
}

int uf_cuda_allow_peer(uf_cuda_device *d, const uf_cuda_facts *peer)
{
    CUdevice there;
    CUcontext context;
    uf_cuda_scope scope;
    if (memcmp(d->facts.uuid, peer->uuid, sizeof peer->uuid) == 0 || !find_visible(peer, &there))
        return UF_OK;
    CUresult rc = uf_cuda.cuDevicePrimaryCtxRetain(&context, there);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuDevicePrimaryCtxRetain", "opening GPU %s for peer access failed", peer->bus);
    int failed = uf_cuda_enter(d, &scope);
    if (!failed) {
        rc = uf_cuda.cuCtxEnablePeerAccess(context, 0);
        uf_cuda_leave(&scope);
        if (rc != CUDA_SUCCESS && rc != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
            failed =
                uf_cuda_fail(rc, "cuCtxEnablePeerAccess", "GPU %s cannot be given access to GPU %s", d->facts.bus, peer->bus);
    }
    uf_cuda.cuDevicePrimaryCtxRelease(there);
    return failed;
}

bool uf_cuda_capturing(void)
{
    CUcontext context = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (uf_cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return false;
    /* Asked for the legacy stream, the driver refuses to answer while any blocking stream is captured. */
    if (uf_cuda.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return true;
    return uf_cuda.cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}
