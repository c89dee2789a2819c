/* gpu_far.c - the peers that kernels do not reach by themselves: which way leads to each, and the command queues of the way by queue.
 *
 * A way is data in the peer's entry. UNFENCE_GPU_WAY may take a way that is there from kernels, never give one that is not; it is the same on all
 * PEs, and near is known alike on both sides, so both ends of a pair take one way. Where any PE of the world has a far peer, all
 * take words for the barrier from the symmetric host heap; a PE that has one makes its queues, each with a context of its own.
 * What GPUs see of a queue is page-locked or GPU memory; giving that back may wait for streams, so a queue's end leaves it alone and it goes with
 * the other tables, when no PE of the process has anything running (gpu_house.c). */
#include "base/error.h"
#include "base/log.h"
#include "world/gpu.h"
#include "world/queue.h"
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the way */

uint32_t uf_gpu_way(const uf_world *w, const struct uf_gpu *g, int pe)
{
    const char *asked = w->settings.text[UF_SET_GPU_WAY];
    if (pe == w->pe || (g->peers[pe].near && strcmp(asked, "queue") != 0))
        return UFD_WAY_NEAR;
    return strcmp(asked, "near") != 0 && g->host_bytes ? UFD_WAY_QUEUE : UFD_WAY_NONE;
}

static int32_t count_far(const uf_world *w, const struct uf_gpu *g)
{
    int32_t n = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        n += uf_gpu_way(w, g, pe) != UFD_WAY_NEAR;
    return n;
}

/* ---------------------------------------------------------------- what queues lie in */

struct uf_gpu_block {
    struct uf_gpu_block *next;
    bool pinned;
    void *ptr;
};

static int alloc_block(void *arg, uf_command_place place, const void *image, size_t bytes, void **host, void **device)
{
    struct uf_gpu *g = arg;
    struct uf_gpu_block *b = calloc(1, sizeof *b);
    if (!b)
        return uf_fail(UF_ENOMEM, "no memory for the record of a command queue");
    b->pinned = place != UF_COMMAND_LOCAL;
    int rc = b->pinned ? uf_cuda_host_alloc(g->device, bytes, &b->ptr) : uf_cuda_alloc(g->device, bytes, &b->ptr);
    if (rc) {
        free(b);
        return rc;
    }
    b->next = g->blocks;
    g->blocks = b;
    *host = b->pinned ? b->ptr : NULL;
    *device = b->ptr;
    if (!b->pinned)
        return uf_cuda_copy(g->device, b->ptr, image, bytes, NULL, 0);
    memcpy(b->ptr, image, bytes);
    return UF_OK;
}

static void keep_block(void *arg, uf_command_place place, void *host, void *device, size_t bytes)
{
    (void)arg, (void)place, (void)host, (void)device, (void)bytes; /* until uf_gpu_far_free */
}

void uf_gpu_far_free(struct uf_gpu *g)
{
    while (g->blocks) {
        struct uf_gpu_block *b = g->blocks;
        g->blocks = b->next;
        if (b->pinned)
            uf_cuda_host_free(g->device, b->ptr);
        else
            uf_cuda_free(g->device, b->ptr);
        free(b);
    }
}

/* ---------------------------------------------------------------- queues */

static int create_queue(uf_world *w, struct uf_gpu *g)
{
    const uf_command_memory memory = {g, alloc_block, keep_block, NULL};
    const uf_queue_options options = {
        .size = sizeof options, .depth = (uint32_t)w->settings.number[UF_SET_GPU_QUEUE_DEPTH], .memory = &memory};
    uf_ctx *ctx;
    pthread_mutex_lock(&w->contexts_lock);
    int rc = uf_ctx_create_locked(w, NULL, &ctx);
    pthread_mutex_unlock(&w->contexts_lock);
    if (!rc)
        rc = uf_queue_create(ctx, &options, &g->queues[g->n_queues]);
    g->n_queues += !rc;
    return rc;
}

/* Before the host heap is registered, since it may grow by this. */
int uf_gpu_far_words(uf_world *w, struct uf_gpu *g)
{
    bool any = false;
    int32_t mine = count_far(w, g), *all = calloc((size_t)w->n_pes, sizeof *all);
    int rc = all ? UF_OK : uf_fail(UF_ENOMEM, "PE %d: no memory for the reach of %d PEs", w->pe, w->n_pes);
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    for (int pe = 0; !rc && pe < w->n_pes; pe++)
        any |= all[pe] > 0;
    free(all);
    if (rc || !any || strcmp(w->settings.text[UF_SET_GPU_WAY], "near") == 0)
        return rc;
    void *words;
    rc = uf_memory_alloc(w, "GPU barrier words", 8 * (size_t)w->n_pes, UF_HEAP_ALIGN, &words);
    if (!rc)
        g->far_words = words;
    return rc;
}

int uf_gpu_far_open(uf_world *w, struct uf_gpu *g)
{
    g->n_far = count_far(w, g);
    int rc = UF_OK;
    bool queue = false;
    for (int pe = 0; pe < w->n_pes; pe++)
        queue |= uf_gpu_way(w, g, pe) == UFD_WAY_QUEUE;
    for (int64_t i = 0; queue && !rc && i < w->settings.number[UF_SET_GPU_QUEUES]; i++)
        rc = create_queue(w, g);
    return rc;
}

int uf_gpu_far_end(struct uf_gpu *g)
{
    int first = UF_OK;
    while (g->n_queues) {
        int rc = uf_queue_destroy(g->queues[--g->n_queues]);
        first = first ? first : rc;
    }
    return first;
}

int uf_gpu_far_status(const struct uf_gpu *g)
{
    int rc = UF_OK;
    for (uint32_t i = 0; i < g->n_queues && !rc; i++)
        rc = uf_queue_status(g->queues[i]);
    return rc;
}
