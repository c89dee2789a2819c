/* gpu_reach.c - the host's operations on GPU memory: where it is, what may be done there, and doing it through the driver.
 *
 * The CPU never follows an address of GPU memory. A put is a copy on a stream of our own that is waited for, and its signal comes after the
 * copy in that same stream (a word in GPU memory) or after its end (a word in host memory), so it never precedes its bytes. What would have to be an
 * atomic update of a GPU word by the host is refused: there is no such operation that kernels and the host agree on. To peers over the
 * network GPU memory is refused here, in one place (uf_gpu_refuse_network), before anything is given to a NIC. */
#include "base/error.h"
#include "world/gpu.h"

int uf_gpu_refuse_network(uf_world *w, const char *call, const char *argument, int pe)
{
    const struct uf_gpu *g = uf_gpu_of(w);
    return uf_fail(
        UF_EUNSUPPORTED,
        "%s on PE %d: argument %s is GPU memory, and PE %d is not near (%s): fabric %s cannot reach GPU memory, which needs a "
        "NIC that registers it (dma-buf or peer memory) or staging through host memory; use a host buffer for this PE",
        call, w->pe, argument, pe, g ? g->peers[pe].reason : "no GPU memory is open",
        w->fabric ? w->fabric->caps.fabric : "local");
}

int uf_gpu_refuse(uf_world *w, const char *call, const char *argument, const void *ptr)
{
    return uf_fail(UF_EUNSUPPORTED,
                   "%s on PE %d: argument %s: %p is GPU memory, which the CPU cannot load and store; use a word or buffer of the "
                   "host heap (uf_malloc, "
                   "uf_signal_alloc), which kernels and streams reach as well, or do it in a kernel",
                   call, w->pe, argument, ptr);
}

bool uf_gpu_ask(uf_world *w, const void *ptr)
{
    if (uf_memory_in_heap(w, ptr, 1))
        return false;
    return uf_gpu_in_heap(w, ptr) || uf_cuda_is_gpu(ptr);
}

int uf_gpu_reach(uf_world *w, const char *call, const char *argument, const uf_region *r, const void *sym, int pe, void **at)
{
    uint64_t base = r->addresses[pe];
    if (!base)
        return uf_gpu_refuse_network(w, call, argument, pe);
    *at = (void *)(uintptr_t)(base + (uint64_t)((const unsigned char *)sym - r->base));
    return UF_OK;
}

int uf_gpu_put(uf_world *w, const char *call, void *dst, const void *src, size_t bytes, uint64_t *word, bool word_on_gpu, int op,
               uint64_t value)
{
    struct uf_gpu *g = uf_gpu_of(w);
    if (word_on_gpu && op != UF_SIGNAL_SET)
        return uf_fail(UF_EUNSUPPORTED,
                       "%s on PE %d: argument op is UF_SIGNAL_ADD on a word in GPU memory (%p), which the host cannot add to "
                       "atomically; use "
                       "UF_SIGNAL_SET, or a word of the host heap (uf_signal_alloc), which kernels and streams reach as well",
                       call, w->pe, (void *)word);
    return uf_cuda_copy(g->device, dst, src, bytes, word_on_gpu ? word : NULL, value);
}

int uf_gpu_get(uf_world *w, void *dst, const void *src, size_t bytes)
{
    return uf_cuda_copy(uf_gpu_of(w)->device, dst, src, bytes, NULL, 0);
}
