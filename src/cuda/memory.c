/* memory.c - GPU memory by virtual memory management: ranges, segments, what a pointer is, and host memory for the GPU.
 *
 * A segment is one VMM allocation: created on this PE's GPU, mapped into its range, and exported as a file descriptor (for other
 * processes) and a handle (for PEs of this one), by which peers map the same memory into a range of theirs. Only the mapping PE's own
 * GPU gets access to a mapping. An allocation lives as long as any mapping or descriptor of it, so a peer that ends takes nothing away. */
#include "base/error.h"
#include "cuda/driver.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { RANGE_ALIGN = 2 << 20 };

static CUdeviceptr at(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

/* ---------------------------------------------------------------- ranges */

int uf_cuda_range_reserve(uf_cuda_device *d, size_t max, uf_cuda_range *range)
{
    CUdeviceptr base = 0;
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemAddressReserve(&base, max, RANGE_ALIGN, 0, 0);
    uf_cuda_leave(&scope);
    if (result != CUDA_SUCCESS)
        return uf_cuda_fail(result, "cuMemAddressReserve",
                            "reserving %zu bytes of address space for a GPU heap failed (UNFENCE_CUDA_HEAP_MAX)", max);
    *range = (uf_cuda_range){(unsigned char *)(uintptr_t)base, max, 0};
    return UF_OK;
}

void uf_cuda_range_release(uf_cuda_device *d, uf_cuda_range *range)
{
    uf_cuda_scope scope;
    if (!range->base || uf_cuda_enter(d, &scope))
        return;
    if (range->used)
        uf_cuda.cuMemUnmap(at(range->base), range->used);
    uf_cuda.cuMemAddressFree(at(range->base), range->max);
    uf_cuda_leave(&scope);
    memset(range, 0, sizeof *range);
}

/* ---------------------------------------------------------------- segments */

static int check_room(const uf_cuda_device *d, const uf_cuda_range *range, size_t bytes)
{
    if (bytes > range->max - range->used)
        return uf_fail(UF_ENOMEM,
                       "the heap of GPU %d needs %zu bytes more but only %zu of its %zu are left: raise UNFENCE_CUDA_HEAP_MAX",
                       d->facts.ordinal, bytes, range->max - range->used, range->max);
    return UF_OK;
}

/* Inside a scope. Maps at the end of the range and lets our GPU use it; nothing is left behind on failure. */
static int map_at_end(const uf_cuda_device *d, uf_cuda_range *range, CUmemGenericAllocationHandle handle, size_t bytes)
{
    CUdeviceptr where = at(range->base) + range->used;
    CUresult rc = uf_cuda.cuMemMap(where, bytes, 0, handle, 0);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuMemMap", "mapping %zu bytes of GPU memory on GPU %d failed", bytes, d->facts.ordinal);
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = d->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    rc = uf_cuda.cuMemSetAccess(where, bytes, &access, 1);
    if (rc != CUDA_SUCCESS) {
        uf_cuda.cuMemUnmap(where, bytes);
        return uf_cuda_fail(rc, "cuMemSetAccess", "GPU %d (%s) cannot be given access to %zu bytes of GPU memory",
                            d->facts.ordinal, d->facts.bus, bytes);
    }
    range->used += bytes;
    return UF_OK;
}

static void unmap_end(uf_cuda_range *range, size_t bytes)
{
    range->used -= bytes;
    uf_cuda.cuMemUnmap(at(range->base) + range->used, bytes);
}

static int zero(const uf_cuda_device *d, CUdeviceptr where, size_t bytes)
{
    CUresult rc = uf_cuda.cuMemsetD8Async(where, 0, bytes, d->stream);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuMemsetD8Async", "zeroing %zu bytes on GPU %d failed", bytes, d->facts.ordinal);
    return uf_cuda_drain(d, "zeroing memory");
}

/* Inside a scope. */
static int export_handle(const uf_cuda_device *d, CUmemGenericAllocationHandle handle, uf_cuda_share *share)
{
    int fd = -1;
    if (d->facts.fd_handles) {
        CUresult rc = uf_cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (rc != CUDA_SUCCESS)
            return uf_cuda_fail(rc, "cuMemExportToShareableHandle", "sharing memory of GPU %d with other processes failed",
                                d->facts.ordinal);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    *share = (uf_cuda_share){fd, handle};
    return UF_OK;
}

int uf_cuda_segment_create(uf_cuda_device *d, uf_cuda_range *range, size_t bytes, uf_cuda_share *share)
{
    CUmemGenericAllocationHandle handle;
    uf_cuda_scope scope;
    int rc = check_room(d, range, bytes);
    if (rc || (rc = uf_cuda_enter(d, &scope)))
        return rc;
    const CUmemAllocationProp p = uf_cuda_heap_memory(&d->facts, d->device);
    CUresult result = uf_cuda.cuMemCreate(&handle, bytes, &p, 0);
    if (result != CUDA_SUCCESS) {
        rc = uf_cuda_fail(result, "cuMemCreate", "taking %zu bytes of the %llu of GPU %d for the heap failed", bytes,
                          (unsigned long long)d->facts.bytes, d->facts.ordinal);
        goto leave;
    }
    rc = map_at_end(d, range, handle, bytes);
    if (rc)
        goto release;
    rc = zero(d, at(range->base) + range->used - bytes, bytes);
    if (!rc)
        rc = export_handle(d, handle, share);
    if (!rc)
        goto leave;
    unmap_end(range, bytes);
release:
    uf_cuda.cuMemRelease(handle);
leave:
    uf_cuda_leave(&scope);
    return rc;
}

int uf_cuda_segment_map(uf_cuda_device *d, uf_cuda_range *range, const uf_cuda_share *share, size_t bytes)
{
    CUmemGenericAllocationHandle handle = share->handle;
    uf_cuda_scope scope;
    int rc = check_room(d, range, bytes);
    if (rc || (rc = uf_cuda_enter(d, &scope)))
        return rc;
    if (share->fd >= 0) {
        CUresult result = uf_cuda.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)share->fd,
                                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (result != CUDA_SUCCESS)
            rc = uf_cuda_fail(result, "cuMemImportFromShareableHandle", "taking over a peer's GPU memory failed");
    }
    if (!rc) {
        rc = map_at_end(d, range, handle, bytes);
        if (share->fd >= 0)
            uf_cuda.cuMemRelease(handle); /* the mapping holds the memory */
    }
    uf_cuda_leave(&scope);
    return rc;
}

void uf_cuda_segment_drop(uf_cuda_device *d, uf_cuda_range *range, size_t bytes)
{
    uf_cuda_scope scope;
    if (uf_cuda_enter(d, &scope))
        return;
    unmap_end(range, bytes);
    uf_cuda_leave(&scope);
}

void uf_cuda_share_close(uf_cuda_share *share)
{
    if (share->fd >= 0)
        close(share->fd);
    if (share->handle)
        uf_cuda.cuMemRelease(share->handle);
    *share = (uf_cuda_share)UF_CUDA_SHARE_NONE;
}

/* ---------------------------------------------------------------- memory for ourselves, host memory */

int uf_cuda_alloc(uf_cuda_device *d, size_t bytes, void **ptr)
{
    CUdeviceptr where = 0;
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemAlloc(&where, bytes);
    if (result != CUDA_SUCCESS)
        rc = uf_cuda_fail(result, "cuMemAlloc", "taking %zu bytes on GPU %d failed", bytes, d->facts.ordinal);
    else if ((rc = zero(d, where, bytes)))
        uf_cuda.cuMemFree(where);
    uf_cuda_leave(&scope);
    if (!rc)
        *ptr = (void *)(uintptr_t)where;
    return rc;
}

void uf_cuda_free(uf_cuda_device *d, void *ptr)
{
    uf_cuda_scope scope;
    if (!ptr || uf_cuda_enter(d, &scope))
        return;
    uf_cuda.cuMemFree(at(ptr));
    uf_cuda_leave(&scope);
}

int uf_cuda_host_alloc(uf_cuda_device *d, size_t bytes, void **ptr)
{
    void *where = NULL;
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemHostAlloc(&where, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    uf_cuda_leave(&scope);
    if (result != CUDA_SUCCESS)
        return uf_cuda_fail(result, "cuMemHostAlloc", "locking %zu bytes of host memory for GPU %d failed", bytes,
                            d->facts.ordinal);
    memset(where, 0, bytes);
    *ptr = where;
    return UF_OK;
}

void uf_cuda_host_free(uf_cuda_device *d, void *ptr)
{
    uf_cuda_scope scope;
    if (!ptr || uf_cuda_enter(d, &scope))
        return;
    uf_cuda.cuMemFreeHost(ptr);
    uf_cuda_leave(&scope);
}

int uf_cuda_host_register(uf_cuda_device *d, void *ptr, size_t bytes)
{
    uf_cuda_scope scope;
    if (!d->facts.host_address)
        return uf_fail(UF_EUNSUPPORTED, "GPU %d (%s) does not see registered host memory at the CPU's addresses",
                       d->facts.ordinal, d->facts.name);
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemHostRegister(ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    uf_cuda_leave(&scope);
    return result == CUDA_SUCCESS ? UF_OK
                                  : uf_cuda_fail(result, "cuMemHostRegister",
                                                 "locking %zu bytes of host memory for GPU %d failed", bytes, d->facts.ordinal);
}

void uf_cuda_host_unregister(uf_cuda_device *d, void *ptr)
{
    uf_cuda_scope scope;
    if (uf_cuda_enter(d, &scope))
        return;
    uf_cuda.cuMemHostUnregister(ptr);
    uf_cuda_leave(&scope);
}

/* ---------------------------------------------------------------- what a pointer is */

bool uf_cuda_is_gpu(const void *ptr)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    unsigned managed = 0;
    if (uf_cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(ptr)) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE)
        return false;
    return uf_cuda.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at(ptr)) != CUDA_SUCCESS || !managed;
}

int uf_cuda_classify(const void *ptr, uf_cuda_pointer *out)
{
    CUmemorytype type = 0;
    unsigned managed = 0, mapped = 0;
    int ordinal = -1;
    unsigned long long buffer = 0;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED};
    void *values[] = {&type, &managed, &ordinal, &buffer, &base, &bytes, &mapped};
    CUresult rc = uf_cuda.cuPointerGetAttributes(sizeof names / sizeof *names, names, values, at(ptr));
    if (rc != CUDA_SUCCESS && rc != CUDA_ERROR_INVALID_VALUE)
        return uf_cuda_fail(rc, "cuPointerGetAttributes", "asking what memory is at %p failed", ptr);
    *out = (uf_cuda_pointer){UF_CUDA_HOST, -1, 0, (unsigned char *)(uintptr_t)base, bytes};
    if (rc != CUDA_SUCCESS || type == 0)
        return UF_OK;
    if (type == CU_MEMORYTYPE_HOST || managed) {
        out->kind = managed ? UF_CUDA_MANAGED : UF_CUDA_PINNED;
        return UF_OK;
    }
    out->ordinal = ordinal;
    out->buffer = buffer;
    out->kind = UF_CUDA_PLAIN;
    CUmemGenericAllocationHandle handle;
    if (uf_cuda.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) != CUDA_SUCCESS)
        return UF_OK;
    uf_cuda.cuMemRelease(handle);
    out->kind = UF_CUDA_VMM;
    /* A range may hold many mappings; what others can be given is the one at hand. */
    CUdeviceptr mapping = 0;
    size_t mapping_bytes = 0;
    if (uf_cuda.cuPointerGetAttribute(&mapping, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at(ptr)) == CUDA_SUCCESS &&
        uf_cuda.cuPointerGetAttribute(&mapping_bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at(ptr)) == CUDA_SUCCESS &&
        mapping_bytes) {
        out->base = (unsigned char *)(uintptr_t)mapping;
        out->bytes = mapping_bytes;
    }
    return UF_OK;
}

int uf_cuda_dmabuf(uf_cuda_device *d, const void *ptr, size_t bytes, int *fd)
{
    uf_cuda_scope scope;
    if (!d->facts.dmabuf)
        return uf_fail(
            UF_EUNSUPPORTED,
            "GPU %d (%s) or its kernel module gives no dma-buf of its memory (the open kernel module and Linux 5.12 do)",
            d->facts.ordinal, d->facts.name);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr first = at(ptr) / page * page, end = (at(ptr) + bytes + page - 1) / page * page;
    int rc = uf_cuda_enter(d, &scope), got = -1;
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemGetHandleForAddressRange(&got, first, end - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    uf_cuda_leave(&scope);
    if (result != CUDA_SUCCESS)
        return uf_cuda_fail(result, "cuMemGetHandleForAddressRange", "a dma-buf of %zu bytes of GPU %d could not be made", bytes,
                            d->facts.ordinal);
    fcntl(got, F_SETFD, FD_CLOEXEC);
    *fd = got;
    return UF_OK;
}
