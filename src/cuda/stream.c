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

/* While a stream is captured: its last node, if that is a batch of memory operations with room for n more. */
static bool find_last_batch(CUstream stream, size_t n, CUgraphNode *node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *before = NULL;
    CUgraphNodeType type;
    size_t n_before = 0;
    if (uf_cuda.cuStreamGetCaptureInfo(stream, &status, NULL, NULL, &before, &n_before) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE || n_before != 1)
        return false;
    *node = before[0];
    return uf_cuda.cuGraphNodeGetType(*node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP &&
           uf_cuda.cuGraphBatchMemOpNodeGetParams(*node, params) == CUDA_SUCCESS && params->count + n <= BATCH;
}

/* Every node of a graph costs the host at each launch, so what may do so joins the node before it. A wait may not by itself: another branch of the
 * graph may hang on that node already, and would then be held by a wait that its program put elsewhere; a store holds nobody. */
static bool join_last_node(CUstream stream, const uf_cuda_op *ops, size_t n)
{
    CUstreamBatchMemOpParams batch[BATCH];
    CUDA_BATCH_MEM_OP_NODE_PARAMS params;
    CUgraphNode node;
    if (n > BATCH || !find_last_batch(stream, n, &node, &params))
        return false;
    memcpy(batch, params.paramArray, params.count * sizeof *batch);
    for (size_t i = 0; i < n; i++)
        batch[params.count + i] = params_of(&ops[i]);
    params.count += (unsigned)n;
    params.paramArray = batch;
    return uf_cuda.cuGraphBatchMemOpNodeSetParams(node, &params) == CUDA_SUCCESS;
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

static int append_copy(CUstream stream, void *dst, const void *src, size_t bytes, const char *what)
{
    CUresult result = bytes ? uf_cuda.cuMemcpyAsync(at(dst), at(src), bytes, stream) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS
               ? UF_OK
               : uf_cuda_fail(result, "cuMemcpyAsync", "%s: appending a copy of %zu bytes from %p to %p to the stream failed",
                              what, bytes, src, dst);
}

static int append_ops(CUstream stream, const uf_cuda_op *ops, size_t n, uf_cuda_join join, const char *what)
{
    CUresult result =
        n == 0 || (join == UF_CUDA_MAY_JOIN && join_last_node(stream, ops, n)) ? CUDA_SUCCESS : append(stream, ops, n);
    return result == CUDA_SUCCESS
               ? UF_OK
               : uf_cuda_fail(result, "cuStreamBatchMemOp", "%s: appending %zu store%s or wait%s to the stream failed", what, n,
                              n == 1 ? "" : "s", n == 1 ? "" : "s");
}

int uf_cuda_stream_put(uf_cuda_device *d, CUstream stream, void *dst, const void *src, size_t bytes, const uf_cuda_op *ops,
                       size_t n, uf_cuda_join join, const char *what)
{
    bool pushed;
    if (n && !d->facts.memory_ops)
        return uf_fail(UF_EUNSUPPORTED, "%s: GPU %d (%s) or its driver has no 64-bit stream memory operations", what,
                       d->facts.ordinal, d->facts.name);
    int rc = begin(d, &pushed);
    if (rc)
        return rc;
    rc = append_copy(stream, dst, src, bytes, what);
    if (!rc)
        rc = append_ops(stream, ops, n, join, what);
    end(pushed);
    return rc;
}

int uf_cuda_stream_ops(uf_cuda_device *d, CUstream stream, const uf_cuda_op *ops, size_t n, uf_cuda_join join, const char *what)
{
    return uf_cuda_stream_put(d, stream, NULL, NULL, 0, ops, n, join, what);
}
