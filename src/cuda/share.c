/* share.c - the program's own GPU buffers, given to peers.
 *
 * Two kinds of memory can be shared. VMM allocations that were made with POSIX descriptors as their handle type (PyTorch's expandable
 * segments, other libraries' symmetric heaps) go piece by piece: a buffer may span several mappings, and the peer puts them side by side
 * again. Plain cudaMalloc memory goes by the driver's older IPC handle, which names the whole allocation. Memory that has neither
 * (pools, VMM without a handle type) is refused with what would help. PEs of one process reach plain memory at its own address. */
#include "base/error.h"
#include "cuda/driver.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == UF_CUDA_IPC_BYTES, "an IPC handle has 64 bytes");

/* ---------------------------------------------------------------- sharing */

/* Inside a scope. Takes the allocation that is mapped at `address`. */
static int take_piece(const uf_cuda_pointer *p, const unsigned char *address, bool others, uf_cuda_piece *piece)
{
    CUmemGenericAllocationHandle handle;
    CUresult rc = uf_cuda.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuMemRetainAllocationHandle", "the GPU buffer's memory at %p cannot be shared",
                            (const void *)address);
    *piece = (uf_cuda_piece){{-1, handle}, p->bytes};
    if (!others)
        return UF_OK;
    rc = uf_cuda.cuMemExportToShareableHandle(&piece->share.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (rc == CUDA_SUCCESS) {
        fcntl(piece->share.fd, F_SETFD, FD_CLOEXEC);
        return UF_OK;
    }
    CUmemAllocationProp made;
    bool never = uf_cuda.cuMemGetAllocationPropertiesFromHandle(&made, handle) == CUDA_SUCCESS &&
                 !(made.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    piece->share.fd = -1;
    uf_cuda_share_close(&piece->share);
    if (!never)
        return uf_cuda_fail(rc, "cuMemExportToShareableHandle", "the GPU memory at %p cannot be given to other processes",
                            (const void *)address);
    return uf_fail(UF_EUNSUPPORTED,
                   "the GPU memory at %p was made by cuMemCreate without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, so other "
                   "processes cannot be "
                   "given it: ask for that handle type where it is made, or use uf_malloc_on",
                   (const void *)address);
}

static int take_pieces(const unsigned char *ptr, size_t bytes, bool others, uf_cuda_buffer *buffer, uf_cuda_piece **pieces)
{
    uf_cuda_piece *list = NULL;
    int n = 0, rc = UF_OK;
    uf_cuda_pointer p;
    const unsigned char *next = ptr;
    while (!rc && next < ptr + bytes) {
        rc = uf_cuda_classify(next, &p);
        if (!rc && p.kind != UF_CUDA_VMM)
            rc = uf_fail(UF_ERANGE, "the GPU buffer at %p with %zu bytes is not mapped at %p", (const void *)ptr, bytes,
                         (const void *)next);
        uf_cuda_piece *longer = rc ? NULL : realloc(list, sizeof *list * ((size_t)n + 1));
        if (!rc && !longer)
            rc = uf_fail(UF_ENOMEM, "no memory for the record of a GPU buffer of %d pieces", n + 1);
        if (longer)
            list = longer;
        if (!rc && !(rc = take_piece(&p, next, others, &list[n]))) {
            if (n == 0)
                buffer->offset = (uint64_t)(ptr - p.base);
            n++;
            buffer->span += p.bytes;
            next = p.base + p.bytes;
        }
    }
    if (rc) {
        uf_cuda_buffer_release(list, n);
        return rc;
    }
    buffer->n_pieces = n;
    *pieces = list;
    return UF_OK;
}

static int take_plain(const uf_cuda_pointer *p, const unsigned char *ptr, size_t bytes, bool others, uf_cuda_buffer *buffer)
{
    if (bytes > p->bytes - (size_t)(ptr - p->base))
        return uf_fail(UF_ERANGE,
                       "the GPU buffer at %p with %zu bytes runs over the end of its allocation, which has %zu from there",
                       (const void *)ptr, bytes, p->bytes - (size_t)(ptr - p->base));
    CUipcMemHandle handle;
    CUresult rc = uf_cuda.cuIpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)ptr);
    buffer->offset = (uint64_t)(ptr - p->base);
    buffer->has_ipc = rc == CUDA_SUCCESS;
    if (buffer->has_ipc)
        memcpy(buffer->ipc, &handle, sizeof handle);
    else if (others && rc != CUDA_ERROR_INVALID_VALUE && rc != CUDA_ERROR_NOT_SUPPORTED)
        return uf_cuda_fail(rc, "cuIpcGetMemHandle", "the GPU memory at %p cannot be given to other processes",
                            (const void *)ptr);
    else if (others)
        return uf_fail(UF_EUNSUPPORTED,
                       "the GPU memory at %p is neither of cuMemCreate nor of cudaMalloc (a memory pool's, say), so other "
                       "processes cannot be "
                       "given it: use one of these, or uf_malloc_on",
                       (const void *)ptr);
    return UF_OK;
}

int uf_cuda_buffer_share(uf_cuda_device *d, const void *ptr, size_t bytes, bool others, uf_cuda_buffer *buffer,
                         uf_cuda_piece **pieces)
{
    uf_cuda_pointer p;
    uf_cuda_buffer b;
    uf_cuda_scope scope;
    memset(&b, 0, sizeof b);
    b.address = (uint64_t)(uintptr_t)ptr;
    *pieces = NULL;
    int rc = uf_cuda_classify(ptr, &p);
    if (rc)
        return rc;
    if (p.ordinal != d->facts.ordinal)
        return uf_fail(UF_EINVAL, "the buffer at %p lies on GPU %d, but this PE uses GPU %d (UNFENCE_CUDA_DEVICE)", ptr,
                       p.ordinal, d->facts.ordinal);
    if ((rc = uf_cuda_enter(d, &scope)))
        return rc;
    rc = p.kind == UF_CUDA_VMM ? take_pieces(ptr, bytes, others, &b, pieces) : take_plain(&p, ptr, bytes, others, &b);
    uf_cuda_leave(&scope);
    if (!rc)
        *buffer = b;
    return rc;
}

void uf_cuda_buffer_release(uf_cuda_piece *pieces, int n)
{
    for (int i = 0; i < n; i++)
        uf_cuda_share_close(&pieces[i].share);
    free(pieces);
}

/* ---------------------------------------------------------------- mapping */

static int map_pieces(uf_cuda_device *d, const uf_cuda_buffer *b, const uf_cuda_share *shares, const size_t *bytes,
                      uf_cuda_mapping *m)
{
    int rc = uf_cuda_range_reserve(d, b->span, &m->range);
    for (int i = 0; !rc && i < b->n_pieces; i++)
        rc = uf_cuda_segment_map(d, &m->range, &shares[i], bytes[i]);
    if (rc)
        uf_cuda_range_release(d, &m->range);
    else
        m->at = m->range.base + b->offset;
    return rc;
}

static int open_plain(uf_cuda_device *d, const uf_cuda_buffer *b, uf_cuda_mapping *m)
{
    CUdeviceptr base = 0;
    CUipcMemHandle handle;
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    memcpy(&handle, b->ipc, sizeof handle);
    CUresult result = uf_cuda.cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    uf_cuda_leave(&scope);
    if (result != CUDA_SUCCESS)
        return uf_cuda_fail(result, "cuIpcOpenMemHandle", "opening a peer's cudaMalloc buffer on GPU %d failed",
                            d->facts.ordinal);
    m->ipc = base;
    m->at = (unsigned char *)(uintptr_t)base + b->offset;
    return UF_OK;
}

int uf_cuda_buffer_map(uf_cuda_device *d, const uf_cuda_buffer *b, const uf_cuda_share *shares, const size_t *bytes,
                       uf_cuda_mapping *mapping)
{
    uf_cuda_mapping m;
    memset(&m, 0, sizeof m);
    int rc = shares ? map_pieces(d, b, shares, bytes, &m) : open_plain(d, b, &m);
    if (!rc)
        *mapping = m;
    return rc;
}

void uf_cuda_buffer_unmap(uf_cuda_device *d, uf_cuda_mapping *m)
{
    uf_cuda_scope scope;
    if (m->ipc && uf_cuda_enter(d, &scope) == UF_OK) {
        uf_cuda.cuIpcCloseMemHandle(m->ipc);
        uf_cuda_leave(&scope);
    }
    uf_cuda_range_release(d, &m->range);
    memset(m, 0, sizeof *m);
}
