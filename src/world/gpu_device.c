/* gpu_device.c - the world as kernels see it: one ufd_world with its peers in GPU memory.
 *
 * It is written when GPU memory is opened and again when a heap grows, by a copy that changes nothing but the sizes, so kernels that run
 * meanwhile see either. The status word is page-locked host memory: uf_world_fail stores into it, and every wait of a kernel looks at it. The
 * words that barriers use are symmetric: those of kernels first, then [n_pes + 1] for each team, for barriers on streams. */
#include "base/error.h"
#include "engine/engine.h"
#include "world/gpu.h"
#include "world/team.h"
#include <stdlib.h>

enum { SCRATCH_BYTES = 4096 };

/* The image and the peers behind it, as one allocation. */
static size_t shown_bytes(const uf_world *w)
{
    return sizeof(ufd_world) + sizeof(ufd_peer) * (size_t)w->n_pes;
}

static size_t kernel_words(const uf_world *w)
{
    return 2 * (size_t)w->n_pes;
}

size_t uf_gpu_words_bytes(const uf_world *w)
{
    return 8 * (kernel_words(w) + UF_MAX_TEAMS * ((size_t)w->n_pes + 1));
}

uint64_t *uf_gpu_team_words(const uf_world *w, const struct uf_gpu *g, int team)
{
    return (uint64_t *)g->words + kernel_words(w) + (size_t)team * ((size_t)w->n_pes + 1);
}

static void fill_sizes(uf_world *w, struct uf_gpu *g)
{
    g->image.heap_bytes = g->range.used;
    g->image.host_heap = g->host_bytes ? (uint64_t)(uintptr_t)w->range.base : 0;
    g->image.host_heap_bytes = g->host_bytes;
}

static void fill_peers(uf_world *w, struct uf_gpu *g, ufd_peer *peers)
{
    for (int pe = 0; pe < w->n_pes; pe++) {
        const unsigned char *theirs = pe == w->pe ? g->range.base : g->peers[pe].range.base;
        if (g->peers[pe].near) {
            peers[pe].way = UFD_NEAR;
            peers[pe].shift = (int64_t)((uintptr_t)theirs - (uintptr_t)g->range.base);
        }
        if (w->peers[pe].mapped)
            peers[pe].host_shift = (int64_t)((uintptr_t)w->peers[pe].range.base - (uintptr_t)w->range.base);
    }
}

static int make_memory(uf_world *w, struct uf_gpu *g)
{
    void *status;
    int rc = uf_cuda_host_alloc(g->device, sizeof *g->status, &status);
    if (rc)
        return rc;
    g->status = status;
    rc = uf_cuda_alloc(g->device, SCRATCH_BYTES, &g->scratch);
    return rc ? rc : uf_cuda_alloc(g->device, shown_bytes(w), &g->shown);
}

int uf_gpu_show(uf_world *w, struct uf_gpu *g)
{
    int rc = make_memory(w, g);
    if (rc)
        return rc;
    unsigned char *all = calloc(1, shown_bytes(w));
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %d peers", w->pe, w->n_pes);
    g->image = (ufd_world){.abi = UFD_ABI,
                           .size = sizeof(ufd_world),
                           .pe = w->pe,
                           .n_pes = w->n_pes,
                           .heap = (uint64_t)(uintptr_t)g->range.base,
                           .peers = (const ufd_peer *)((unsigned char *)g->shown + sizeof(ufd_world)),
                           .status = g->status,
                           .timeout_ns = w->timeout_ns,
                           .barrier = g->words,
                           .scratch = g->scratch};
    fill_sizes(w, g);
    memcpy(all, &g->image, sizeof g->image);
    fill_peers(w, g, (ufd_peer *)(void *)(all + sizeof(ufd_world)));
    rc = uf_cuda_copy(g->device, g->shown, all, shown_bytes(w), NULL, 0);
    free(all);
    return rc;
}

int uf_gpu_show_sizes(uf_world *w, struct uf_gpu *g)
{
    fill_sizes(w, g);
    return uf_cuda_copy(g->device, g->shown, &g->image, sizeof g->image, NULL, 0);
}

void uf_gpu_hide(struct uf_gpu *g)
{
    uf_cuda_free(g->device, g->shown);
    uf_cuda_free(g->device, g->scratch);
    uf_cuda_host_free(g->device, g->status);
}

int uf_device_world(uf_world *w, const struct ufd_world **device)
{
    if (!w || !device)
        return uf_fail(UF_EINVAL, "uf_device_world: argument %s is NULL", !w ? "world" : "device");
    int rc = uf_world_check(w);
    if (rc)
        return rc;
    pthread_mutex_lock(&w->setup);
    rc = uf_gpu_open(w);
    if (!rc)
        *device = uf_gpu_of(w)->shown;
    pthread_mutex_unlock(&w->setup);
    return rc;
}
