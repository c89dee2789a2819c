/* operations.c - NVSHMEM's host and on-stream operations: one call of the library each, and its failure told.
 *
 * None of these functions has a result, so each ends in uf_compat_ok. Words in GPU memory cannot be read by the host: what
 * it wants of them it gets. */
#include "private.h"

static void tell(const char *function, int rc)
{
    uf_compat_ok(function, rc);
}

/* A world is missing, else what `call` says. */
#define OPERATION(function, call)                                                                                                \
    do {                                                                                                                         \
        int rc = uf_compat_started();                                                                                            \
        tell(function, rc ? rc : (call));                                                                                        \
    } while (0)

void uf_nvshmem_put(void *dst, const void *src, size_t bytes, int pe)
{
    OPERATION("nvshmem_putmem", uf_put(uf_compat_here.ctx, dst, src, bytes, pe));
}

void uf_nvshmem_put_nbi(void *dst, const void *src, size_t bytes, int pe)
{
    OPERATION("nvshmem_putmem_nbi", uf_put_nbi(uf_compat_here.ctx, dst, src, bytes, pe));
}

void uf_nvshmem_get(void *dst, const void *src, size_t bytes, int pe)
{
    OPERATION("nvshmem_getmem", uf_get(uf_compat_here.ctx, dst, src, bytes, pe));
}

void uf_nvshmem_get_nbi(void *dst, const void *src, size_t bytes, int pe)
{
    OPERATION("nvshmem_getmem_nbi", uf_get_nbi(uf_compat_here.ctx, dst, src, bytes, pe));
}

void uf_nvshmem_put_signal(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe)
{
    OPERATION("nvshmem_putmem_signal", uf_put_signal(uf_compat_here.ctx, dst, src, bytes, sig, op, value, pe, UF_WEAK));
}

void uf_nvshmem_put_signal_nbi(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe)
{
    OPERATION("nvshmem_putmem_signal_nbi", uf_put_signal_nbi(uf_compat_here.ctx, dst, src, bytes, sig, op, value, pe, UF_WEAK));
}

void uf_nvshmem_signal(uint64_t *sig, uint64_t value, int op, int pe)
{
    OPERATION("nvshmemx_signal_op", uf_signal(uf_compat_here.ctx, sig, op, value, pe, UF_WEAK));
}

static int fetch(const uint64_t *sig, uint64_t *value)
{
    int rc = uf_compat_started();
    return rc ? rc : uf_get(uf_compat_here.ctx, value, sig, sizeof *value, uf_world_pe(uf_compat_here.world));
}

uint64_t uf_nvshmem_signal_fetch(uint64_t *sig)
{
    uint64_t value = 0;
    tell("nvshmem_signal_fetch", fetch(sig, &value));
    return value;
}

uint64_t uf_nvshmem_signal_wait_until(uint64_t *sig, int cmp, uint64_t value)
{
    uint64_t seen = 0;
    int rc = uf_compat_started();
    if (rc == UF_OK)
        rc = uf_wait(uf_compat_here.world, sig, cmp, value, UF_FOREVER);
    tell("nvshmem_signal_wait_until", rc ? rc : fetch(sig, &seen));
    return seen;
}

void uf_nvshmem_fence(void)
{
    OPERATION("nvshmem_fence", uf_fence(uf_compat_here.ctx));
}

void uf_nvshmem_quiet(void)
{
    OPERATION("nvshmem_quiet", uf_quiet(uf_compat_here.ctx));
}

void uf_nvshmem_put_on_stream(void *dst, const void *src, size_t bytes, int pe, uf_stream stream)
{
    OPERATION("nvshmemx_putmem_on_stream", uf_put_on_stream(uf_compat_here.ctx, dst, src, bytes, pe, stream));
}

void uf_nvshmem_get_on_stream(void *dst, const void *src, size_t bytes, int pe, uf_stream stream)
{
    OPERATION("nvshmemx_getmem_on_stream", uf_get_on_stream(uf_compat_here.ctx, dst, src, bytes, pe, stream));
}

void uf_nvshmem_put_signal_on_stream(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe,
                                     uf_stream stream)
{
    OPERATION("nvshmemx_putmem_signal_on_stream",
              uf_put_signal_on_stream(uf_compat_here.ctx, dst, src, bytes, sig, op, value, pe, UF_WEAK, stream));
}

void uf_nvshmem_signal_on_stream(uint64_t *sig, uint64_t value, int op, int pe, uf_stream stream)
{
    OPERATION("nvshmemx_signal_op_on_stream", uf_signal_on_stream(uf_compat_here.ctx, sig, op, value, pe, UF_WEAK, stream));
}

void nvshmemx_signal_wait_until_on_stream(uint64_t *sig, int cmp, uint64_t value, cudaStream_t stream)
{
    OPERATION("nvshmemx_signal_wait_until_on_stream", uf_wait_on_stream(uf_compat_here.world, sig, cmp, value, 0, stream));
}

void nvshmemx_quiet_on_stream(cudaStream_t stream)
{
    OPERATION("nvshmemx_quiet_on_stream", uf_quiet_on_stream(uf_compat_here.ctx, stream));
}
