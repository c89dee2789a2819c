/* memory.c - NVSHMEM's symmetric heap: GPU memory of the world's heap, and the moment at which the GPU comes into use.
 *
 * The first allocation is collective, as all are, so that is where the world opens its GPU and where this process's kernels are told of
 * the world. */
#include "private.h"

#include <stdlib.h>

static int open_gpu(void)
{
    uf_compat *here = &uf_compat_here;
    if (here->state.world)
        return UF_OK;
    int rc = uf_device_world(here->world, &here->state.world);
    if (rc)
        return rc;
    rc = uf_compat_fill_modules();
    if (rc)
        here->state.world = NULL;
    return rc;
}

static int allocate(size_t bytes, size_t align, void **ptr)
{
    int rc = uf_compat_started();
    if (rc || (rc = open_gpu()))
        return rc;
    return uf_malloc_on(uf_compat_here.world, UF_MEMORY_CUDA, bytes, align, ptr);
}

/* Memory that was used before and freed is not zero when it is handed out again. */
static int clear(char *at, size_t bytes)
{
    const size_t step = 1 << 20;
    uf_compat *here = &uf_compat_here;
    char *zeros = calloc(1, step);
    int rc = zeros ? UF_OK : uf_compat_fail(UF_ENOMEM, "no memory for nvshmem_calloc");
    for (size_t done = 0; done < bytes && rc == UF_OK; done += step)
        rc = uf_put(here->ctx, at + done, zeros, bytes - done < step ? bytes - done : step, uf_world_pe(here->world));
    if (rc == UF_OK)
        rc = uf_barrier(uf_team_world(here->world)); /* nobody's put comes before the zeros */
    free(zeros);
    return rc;
}

void *nvshmem_malloc(size_t bytes)
{
    void *ptr = NULL;
    return uf_compat_ok("nvshmem_malloc", allocate(bytes, 512, &ptr)) ? ptr : NULL;
}

void *nvshmem_align(size_t alignment, size_t bytes)
{
    void *ptr = NULL;
    return uf_compat_ok("nvshmem_align", allocate(bytes, alignment, &ptr)) ? ptr : NULL;
}

void *nvshmem_calloc(size_t count, size_t bytes)
{
    void *ptr = NULL;
    size_t all = 0;
    int rc = __builtin_mul_overflow(count, bytes, &all)
                 ? uf_compat_fail(UF_EINVAL, "nvshmem_calloc: count times bytes is too large")
                 : UF_OK;
    if (rc == UF_OK)
        rc = allocate(all, 512, &ptr);
    if (rc == UF_OK && ptr)
        rc = clear(ptr, all);
    return uf_compat_ok("nvshmem_calloc", rc) ? ptr : NULL;
}

void nvshmem_free(void *ptr)
{
    int rc = uf_compat_started();
    uf_compat_ok("nvshmem_free", rc ? rc : uf_free(uf_compat_here.world, ptr));
}

void *uf_nvshmem_ptr(const void *symmetric, int pe)
{
    return uf_compat_here.world ? uf_ptr(uf_compat_here.world, symmetric, pe) : NULL;
}
