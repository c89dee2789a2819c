/* gpu_device.c - the world as kernels see it: one ufd_world with its peers, contexts, windows and error record in GPU memory.
 *
 * All of it is one allocation, laid out by layout_of. It is written when GPU memory is opened; a heap that grows changes the sizes alone, and
 * a window that comes or goes one entry of a table of fixed places, whose `bytes` are written last and cleared first: kernels that run
 * meanwhile see it whole or not at all. The status word is page-locked host memory: uf_world_fail stores into it, and every wait of a
 * kernel looks at it. The words that barriers use are symmetric: [n_pes] for kernels, then [n_pes + 1] for each team, for streams. */
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "world/gpu.h"
#include "world/queue.h"
#include "world/team.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONTEXTS = UFD_MAX_QUEUES };

/* Where things are behind the ufd_world. */
typedef struct layout {
    size_t peers, contexts, rings, windows, shifts, error, scratch, bytes;
} layout;

static layout layout_of(const uf_world *w)
{
    size_t n = (size_t)w->n_pes;
    layout l;
    l.peers = (sizeof(ufd_world) + 63) / 64 * 64;
    l.contexts = l.peers + n * sizeof(ufd_peer);
    l.rings = l.contexts + CONTEXTS * sizeof(ufd_ctx);
    l.windows = l.rings + UFD_MAX_QUEUES * sizeof(uf_command_ring);
    l.shifts = l.windows + UF_GPU_WINDOWS * sizeof(ufd_window);
    l.error = (l.shifts + UF_GPU_WINDOWS * n * sizeof(int64_t) + 63) / 64 * 64;
    l.scratch = (l.error + sizeof(ufd_error) + 63) / 64 * 64;
    l.bytes = l.scratch + sizeof(uint64_t);
    return l;
}

static void *shown_at(const struct uf_gpu *g, size_t offset)
{
    return (unsigned char *)g->shown + offset;
}

static size_t kernel_words(const uf_world *w)
{
    return (size_t)w->n_pes;
}

size_t uf_gpu_words_bytes(const uf_world *w)
{
    return 8 * (kernel_words(w) + UF_MAX_TEAMS * ((size_t)w->n_pes + 1));
}

uint64_t *uf_gpu_team_words(const uf_world *w, const struct uf_gpu *g, int team)
{
    return (uint64_t *)g->words + kernel_words(w) + (size_t)team * ((size_t)w->n_pes + 1);
}

/* ---------------------------------------------------------------- filling */

static void fill_sizes(uf_world *w, struct uf_gpu *g)
{
    g->image.heap_bytes = g->range.used;
    g->image.host_heap = g->host_bytes ? (uint64_t)(uintptr_t)w->range.base : 0;
    g->image.host_heap_bytes = g->host_bytes;
}

static void fill_image(uf_world *w, struct uf_gpu *g, const layout *l)
{
    g->image = (ufd_world){.abi = UFD_ABI,
                           .size = sizeof(ufd_world),
                           .pe = w->pe,
                           .n_pes = w->n_pes,
                           .heap = (uint64_t)(uintptr_t)g->range.base,
                           .heap_span = g->range.max,
                           .peers = shown_at(g, l->peers),
                           .status = g->status,
                           .timeout_ns = w->timeout_ns,
                           .barrier = g->words,
                           .scratch = shown_at(g, l->scratch),
                           .windows = shown_at(g, l->windows),
                           .n_ctxs = CONTEXTS,
                           .ctxs = shown_at(g, l->contexts),
                           .error = shown_at(g, l->error),
                           .far_barrier = g->far_words,
                           .n_far = (uint32_t)g->n_far,
                           .n_queues = g->n_queues};
    fill_sizes(w, g);
}

static void fill_peers(uf_world *w, const struct uf_gpu *g, ufd_peer *peers)
{
    for (int pe = 0; pe < w->n_pes; pe++) {
        const unsigned char *theirs = pe == w->pe ? g->range.base : g->peers[pe].range.base;
        peers[pe].way = uf_gpu_way(w, g, pe);
        if (g->peers[pe].near)
            peers[pe].shift = (int64_t)((uintptr_t)theirs - (uintptr_t)g->range.base);
        if (w->peers[pe].mapped)
            peers[pe].host_shift = (int64_t)((uintptr_t)w->peers[pe].range.base - (uintptr_t)w->range.base);
    }
}

/* Contexts share the queues out; what they read of a ring lies in GPU memory. */
static void fill_contexts(const struct uf_gpu *g, const layout *l, ufd_ctx *contexts, uf_command_ring *rings)
{
    for (uint32_t i = 0; i < g->n_queues; i++)
        rings[i] = *uf_queue_ring(g->queues[i]);
    for (uint32_t i = 0; i < CONTEXTS; i++)
        contexts[i] = (ufd_ctx){.abi = UFD_ABI,
                                .size = sizeof(ufd_ctx),
                                .world = g->shown,
                                .peers = g->image.peers,
                                .heap = g->image.heap,
                                .heap_span = g->image.heap_span,
                                .index = i,
                                .queue = g->n_queues ? (const uf_command_ring *)shown_at(g, l->rings) + i % g->n_queues : NULL};
}

int uf_gpu_show(uf_world *w, struct uf_gpu *g)
{
    const layout l = layout_of(w);
    void *status;
    int rc = uf_cuda_host_alloc(g->device, sizeof *g->status, &status);
    if (rc)
        return rc;
    g->status = status;
    if ((rc = uf_cuda_alloc(g->device, l.bytes, &g->shown)))
        return rc;
    unsigned char *all = calloc(1, l.bytes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %d peers", w->pe, w->n_pes);
    fill_image(w, g, &l);
    memcpy(all, &g->image, sizeof g->image);
    fill_peers(w, g, (ufd_peer *)(void *)(all + l.peers));
    fill_contexts(g, &l, (ufd_ctx *)(void *)(all + l.contexts), (uf_command_ring *)(void *)(all + l.rings));
    ufd_error *error = (ufd_error *)(void *)(all + l.error);
    error->abi = UFD_ABI;
    error->size = sizeof *error;
    rc = uf_cuda_copy(g->device, g->shown, all, l.bytes, NULL, 0);
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
    uf_cuda_host_free(g->device, g->status);
}

/* ---------------------------------------------------------------- windows */

/* Writes entry and shifts, then what makes kernels find them. */
static int write_window(uf_world *w, struct uf_gpu *g, const uf_region *r, uint32_t place, const int64_t *shifts)
{
    const layout l = layout_of(w);
    size_t n = (size_t)w->n_pes * sizeof *shifts, entry = l.windows + place * sizeof(ufd_window);
    const ufd_window window = {(uint64_t)(uintptr_t)r->base, 0, shown_at(g, l.shifts + place * n)};
    uint64_t bytes = r->bytes;
    int rc = uf_cuda_copy(g->device, shown_at(g, l.shifts + place * n), shifts, n, NULL, 0);
    if (!rc)
        rc = uf_cuda_copy(g->device, shown_at(g, entry), &window, sizeof window, NULL, 0);
    if (!rc)
        rc = uf_cuda_copy(g->device, shown_at(g, entry + offsetof(ufd_window, bytes)), &bytes, sizeof bytes, NULL, 0);
    if (rc || place < g->image.n_windows)
        return rc;
    g->image.n_windows = place + 1;
    return uf_gpu_show_sizes(w, g);
}

int uf_gpu_show_window(uf_world *w, struct uf_gpu *g, uf_region *r)
{
    uint32_t place = 0;
    while (place < UF_GPU_WINDOWS && g->windows[place])
        place++;
    if (place == UF_GPU_WINDOWS) {
        uf_log(UF_LOG_WARN, w->pe, "kernels do not see the window at %p: there are %d others; unregister some", (void *)r->base,
               UF_GPU_WINDOWS);
        return UF_OK;
    }
    int64_t *shifts = calloc((size_t)w->n_pes, sizeof *shifts);
    if (!shifts)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the addresses of %d PEs", w->pe, w->n_pes);
    for (int pe = 0; pe < w->n_pes; pe++)
        shifts[pe] = r->addresses[pe] ? (int64_t)(r->addresses[pe] - (uint64_t)(uintptr_t)r->base) : 0;
    int rc = write_window(w, g, r, place, shifts);
    free(shifts);
    if (!rc) {
        g->windows[place] = r;
        r->gpu->shown = (int)place + 1;
    }
    return rc;
}

void uf_gpu_hide_window(struct uf_gpu *g, uf_region *r)
{
    static const uint64_t none = 0;
    if (!r->gpu->shown)
        return;
    size_t place = (size_t)r->gpu->shown - 1;
    unsigned char *entry = (unsigned char *)(uintptr_t)g->image.windows + place * sizeof(ufd_window);
    /* A GPU that takes no copies any more runs no kernels either. */
    if (uf_cuda_copy(g->device, entry + offsetof(ufd_window, bytes), &none, sizeof none, NULL, 0))
        uf_log(UF_LOG_WARN, -1, "kernels still see a window that has ended: %s", uf_error_message());
    g->windows[place] = NULL;
    r->gpu->shown = 0;
}

/* ---------------------------------------------------------------- the public interface */

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

/* What an operation was about, by its code, and how its numbers are said. */
static const char *operation_of(uint32_t what)
{
    static const char *const names[] = {[UFD_IN_PUT] = "a put",
                                        [UFD_IN_GET] = "a get",
                                        [UFD_IN_PUT_SIGNAL] = "a put with signal",
                                        [UFD_IN_SIGNAL] = "a signal",
                                        [UFD_IN_ATOMIC] = "an atomic",
                                        [UFD_IN_WAIT] = "a wait",
                                        [UFD_IN_BARRIER] = "a barrier",
                                        [UFD_IN_FLAGGED] = "a flagged put or its wait",
                                        [UFD_IN_MOVER] = "a mover"};
    return what < sizeof names / sizeof *names && names[what] ? names[what] : "an operation";
}

static void say_peer(char *to, size_t bytes, int pe)
{
    to[0] = '\0';
    if (pe >= 0)
        snprintf(to, bytes, " with PE %d", pe);
}

/* Where an address lies: an offset says more than a number of this process. */
static void say_address(char *to, size_t bytes, const ufd_world *image, uint64_t address)
{
    if (address - image->heap < image->heap_span)
        snprintf(to, bytes, "offset 0x%llx of the GPU heap, which has 0x%llx bytes", (unsigned long long)(address - image->heap),
                 (unsigned long long)image->heap_bytes);
    else if (address - image->host_heap < image->host_heap_bytes)
        snprintf(to, bytes, "offset 0x%llx of the host heap", (unsigned long long)(address - image->host_heap));
    else
        snprintf(to, bytes, "address 0x%llx, outside of the heaps", (unsigned long long)address);
}

static void say_why(char *to, size_t bytes, const ufd_error *e)
{
    unsigned long long given = e->given, wanted = e->wanted;
    switch (e->code) {
    case UF_ETIMEDOUT:
        snprintf(to, bytes,
                 "the word there was %llu when the time was over, and %llu was awaited: has the sender failed or never sent?",
                 given, wanted);
        break;
    case UF_ERANGE:
        snprintf(to, bytes, "there is no such PE, or %llu bytes there are not symmetric memory that exists", given);
        break;
    case UF_EUNSUPPORTED:
        snprintf(to, bytes,
                 "the peer is reached by command queue, which carries host memory alone: let source, target and word lie in the "
                 "host heap (uf_malloc, uf_signal_alloc)");
        break;
    case UF_EINVAL:
        snprintf(to, bytes, "the address is not aligned as the operation needs it, or an argument is unknown (%llu, %llu)", given,
                 wanted);
        break;
    default:
        snprintf(to, bytes, "%s (%llu, %llu)", uf_error_name(e->code), given, wanted);
    }
}

static int set_sentence(const uf_world *w, const struct uf_gpu *g, const ufd_error *e)
{
    char peer[32], where[160], why[200], more[60] = "";
    say_peer(peer, sizeof peer, e->pe);
    say_address(where, sizeof where, &g->image, e->address);
    say_why(why, sizeof why, e);
    if (e->count > 1)
        snprintf(more, sizeof more, "; %u more failures came after it", e->count - 1);
    return uf_fail(e->code, "PE %d: %s%s in a kernel failed in block (%u, %u, %u), thread (%u, %u, %u), at %s: %s%s", w->pe,
                   operation_of(e->what), peer, e->block[0], e->block[1], e->block[2], e->thread[0], e->thread[1], e->thread[2],
                   where, why, more);
}

int uf_device_error(uf_world *w)
{
    static const ufd_error none = {.abi = UFD_ABI, .size = sizeof none};
    ufd_error e;
    if (!w)
        return uf_fail(UF_EINVAL, "uf_device_error: argument world is NULL");
    struct uf_gpu *g = uf_gpu_of(w);
    if (!g)
        return UF_OK; /* no kernel knows the world */
    int rc = uf_cuda_copy(g->device, &e, g->image.error, sizeof e, NULL, 0);
    if (!rc && (e.count == 0 || !e.ready))
        return uf_gpu_far_status(g); /* what the host found wrong with a command */
    if (rc)
        return rc;
    rc = uf_cuda_copy(g->device, g->image.error, &none, sizeof none, NULL, 0);
    return rc ? rc : set_sentence(w, g, &e);
}
