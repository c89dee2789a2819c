/* stream.c - copies of our own, and what is appended to the program's streams: copies and 64-bit stores and waits, never a kernel.
 *
 * Our own copies run on the device's private stream and are waited for. What goes to the program's stream is only appended: in stream order
 * a store comes after everything before it in the stream, with a fence of system scope before it, so a peer that sees the word sees the
 * bytes. The same calls serve a stream that is being captured: they become nodes of the graph. */
#include "base/error.h"
#include "cuda/driver.h"
#include <string.h>

enum { BATCH = 64 }; /* operations given to the driver at once; its own limit is 256 */

static CUdeviceptr at(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

static CUstreamBatchMemOpParams params_of(const uf_cuda_op *op)
{
    static const unsigned conditions[] = {[UF_CUDA_WAIT_EQ] = CU_STREAM_WAIT_VALUE_EQ,
                                          [UF_CUDA_WAIT_GE] = CU_STREAM_WAIT_VALUE_GEQ,
                                          [UF_CUDA_WAIT_NONZERO] = CU_STREAM_WAIT_VALUE_AND};
    CUstreamBatchMemOpParams p;
    memset(&p, 0, sizeof p);
    if (op->kind == UF_CUDA_WRITE) {
        p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        p.writeValue.address = at(op->word);
        p.writeValue.value64 = op->value;
    } else {
        p.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        p.waitValue.address = at(op->word);
        p.waitValue.value64 = op->value;
        p.waitValue.flags = conditions[op->kind];
    }
    return p;
}

static CUresult append(CUstream stream, const uf_cuda_op *ops, size_t n)
{
    CUstreamBatchMemOpParams batch[BATCH];
    CUresult rc = CUDA_SUCCESS;
    for (size_t i = 0; i < n && rc == CUDA_SUCCESS;) {
        unsigned k = 0;
        for (; k < BATCH && i < n; k++, i++)
            batch[k] = params_of(&ops[i]);
        rc = uf_cuda.cuStreamBatchMemOp(stream, k, batch, 0);
    }
    return rc;
}

/* ---------------------------------------------------------------- our own copies */

int uf_cuda_copy(uf_cuda_device *d, void *dst, const void *src, size_t bytes, uint64_t *word, uint64_t value)
{
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(d, &scope);
    if (rc)
        return rc;
    CUresult result = bytes ? uf_cuda.cuMemcpyAsync(at(dst), at(src), bytes, d->stream) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        rc = uf_cuda_fail(result, "cuMemcpyAsync", "copying %zu bytes from %p to %p on GPU %d failed", bytes, src, dst,
                          d->facts.ordinal);
    if (!rc && word) {
        const uf_cuda_op op = {UF_CUDA_WRITE, word, value};
        result = append(d->stream, &op, 1);
        if (result != CUDA_SUCCESS)
            rc = uf_cuda_fail(result, "cuStreamBatchMemOp", "storing a signal word at %p on GPU %d failed", (void *)word,
                              d->facts.ordinal);
    }
    if (rc)
        uf_cuda.cuStreamSynchronize(d->stream); /* what was begun ends before the caller may reuse anything */
    else
        rc = uf_cuda_drain(d, "a copy");
    uf_cuda_leave(&scope);
    return rc;
}

/* ---------------------------------------------------------------- the program's streams */

/* Whoever works with streams has the context current already: then there is nothing to do. */
static int begin(const uf_cuda_device *d, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    if (uf_cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == d->context)
        return UF_OK;
    CUresult rc = uf_cuda.cuCtxPushCurrent(d->context);
    if (rc != CUDA_SUCCESS)
        return uf_cuda_fail(rc, "cuCtxPushCurrent", "making the context of GPU %d current failed", d->facts.ordinal);
    *pushed = true;
    return UF_OK;
}

static void end(bool pushed)
{
    CUcontext ours;
    if (pushed)
        uf_cuda.cuCtxPopCurrent(&ours);
}

int uf_cuda_stream_copy(uf_cuda_device *d, CUstream stream, void *dst, const void *src, size_t bytes, const char *what)
{
    bool pushed;
    int rc = begin(d, &pushed);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuMemcpyAsync(at(dst), at(src), bytes, stream);
    end(pushed);
    return result == CUDA_SUCCESS
               ? UF_OK
               : uf_cuda_fail(result, "cuMemcpyAsync", "%s: appending a copy of %zu bytes from %p to %p to the stream failed",
                              what, bytes, src, dst);
}

int uf_cuda_stream_ops(uf_cuda_device *d, CUstream stream, const uf_cuda_op *ops, size_t n, const char *what)
{
    bool pushed;
    if (!d->facts.memory_ops)
        return uf_fail(UF_EUNSUPPORTED, "%s: GPU %d (%s) or its driver has no 64-bit stream memory operations", what,
                       d->facts.ordinal, d->facts.name);
    int rc = begin(d, &pushed);
    if (rc)
        return rc;
    CUresult result = append(stream, ops, n);
    end(pushed);
    return result == CUDA_SUCCESS
               ? UF_OK
               : uf_cuda_fail(result, "cuStreamBatchMemOp", "%s: appending %zu store%s or wait%s to the stream failed", what, n,
                              n == 1 ? "" : "s", n == 1 ? "" : "s");
}
