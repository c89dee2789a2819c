/* memory.c - symmetric memory: the heap and its segments, windows over the caller's buffers, and how both are found again.
 *
 * The heap is address space that every PE reserves in the same size; segments are appended at the same offsets on all PEs, so
 * the address of an object on a mapped peer is one addition away. Each segment and window is a region with an index that is the
 * same everywhere: region << 48 | offset is how a PE names a word of another. Calls that change memory are collective and begin by
 * comparing what the PEs want, so a program that disagrees with itself gets a sentence instead of a corrupted heap.
 * Nothing here is on the path of a put but uf_memory_find. */
#include "base/error.h"
#include "base/log.h"
#include "world/gpu.h"
#include "world/heap.h"
#include "world/registration.h"
#include "world/team.h"
#include "world/world.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEPT_REGISTRATIONS = 1024 };

static size_t round_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

/* ---------------------------------------------------------------- finding */

uf_region *uf_memory_find(uf_world *w, const void *ptr, size_t bytes)
{
    uint32_t n = atomic_load_explicit(&w->n_regions, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        /* Pairs with the release store in uf_memory_publish: the region's fields are complete when it is seen. */
        uf_region *r = atomic_load_explicit(&w->regions[i], memory_order_acquire);
        if (!r)
            continue;
        size_t offset = (size_t)((const unsigned char *)ptr - r->base);
        if (offset <= r->bytes && bytes <= r->bytes - offset)
            return r;
    }
    return NULL;
}

void *uf_memory_resolve(uf_world *w, uint64_t wire, size_t bytes)
{
    uint64_t index = wire >> UF_REGION_SHIFT, offset = wire & ((1ull << UF_REGION_SHIFT) - 1);
    if (index >= UF_MAX_REGIONS)
        return NULL;
    uf_region *r = atomic_load_explicit(&w->regions[index], memory_order_acquire);
    /* No engine can update a word in GPU memory. */
    bool inside = r && r->memory == UF_MEMORY_HOST && offset <= r->bytes && bytes <= r->bytes - offset;
    return inside ? r->base + offset : NULL;
}

int uf_memory_index(uf_world *w, uint32_t *index)
{
    for (uint32_t i = 0; i < UF_MAX_REGIONS; i++)
        if (!atomic_load_explicit(&w->regions[i], memory_order_relaxed)) {
            *index = i;
            return UF_OK;
        }
    return uf_fail(UF_ENOMEM,
                   "PE %d: all %d heap segments and windows of the world are in use; unregister some or raise UNFENCE_HEAP_SIZE",
                   w->pe, UF_MAX_REGIONS);
}

void uf_memory_publish(uf_world *w, uf_region *r)
{
    atomic_store_explicit(&w->regions[r->index], r, memory_order_release);
    if (r->index >= atomic_load(&w->n_regions))
        atomic_store_explicit(&w->n_regions, r->index + 1, memory_order_release);
}

/* ---------------------------------------------------------------- agreement */

/* What a PE brings to a collective memory call. */
typedef struct wish {
    char what[24];
    uint64_t a, b;
    int32_t rc;
    int32_t fd;
    char why[400];
} wish;

/* Compares `mine` on all PEs; all[] gets everybody's. UF_EMISMATCH with both, or the first failure among them. */
static int agree(uf_world *w, wish *mine, wish *all)
{
    int rc = uf_bootstrap_allgather(w->bootstrap, mine, sizeof *mine, all, w->timeout_ns);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        const wish *o = &all[pe];
        if (strncmp(o->what, mine->what, sizeof o->what) || o->a != mine->a || o->b != mine->b)
            rc = uf_fail(
                UF_EMISMATCH,
                "PE %d called %.23s(%llu, %llu) where PE %d called %s(%llu, %llu): collective calls must be the same on all PEs",
                pe, o->what, (unsigned long long)o->a, (unsigned long long)o->b, w->pe, mine->what, (unsigned long long)mine->a,
                (unsigned long long)mine->b);
        else if (o->rc)
            rc = uf_fail(o->rc, "%.399s", o->why);
    }
    return rc;
}

static int agree_on(uf_world *w, const char *what, uint64_t a, uint64_t b, int rc, int fd, wish *all)
{
    wish mine = {.a = a, .b = b, .rc = rc, .fd = fd};
    snprintf(mine.what, sizeof mine.what, "%s", what);
    if (rc)
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    return agree(w, &mine, all);
}

int uf_memory_agree(uf_world *w, const char *what, uint64_t a, uint64_t b, int rc)
{
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    rc = agree_on(w, what, a, b, rc, -1, all);
    free(all);
    return rc;
}

/* ---------------------------------------------------------------- registration with the network */

/* Tells all PEs this one's keys of all rails, and makes of theirs what operations carry. */
static int exchange_keys(uf_world *w, uf_region *r)
{
    uf_fabric_key mine[UF_ORDER_MAX_RAILS];
    uint32_t rails = w->n_rails;
    for (uint32_t rail = 0; rail < rails; rail++)
        w->fabric->ops->mr_key(r->mr->mr, rail, &mine[rail]);
    int rc = uf_bootstrap_allgather(w->bootstrap, mine, rails * sizeof *mine, r->rail_keys, w->timeout_ns);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        const uf_fabric_key *by_rail = &r->rail_keys[(size_t)pe * rails];
        r->keys[pe] = (uf_fabric_key){uf_engine_key(by_rail, rails), by_rail->base};
    }
    return rc;
}

/* Registers the region with the fabric and exchanges keys. Collective also where this PE has failed (rc). */
static int join_network(uf_world *w, uf_region *r, int rc, wish *all)
{
    if (!w->fabric)
        return rc;
    r->keys = calloc((size_t)w->n_pes, sizeof *r->keys);
    r->rail_keys = calloc((size_t)w->n_pes * w->n_rails, sizeof *r->rail_keys);
    if ((!r->keys || !r->rail_keys) && !rc)
        rc = uf_fail(UF_ENOMEM, "PE %d: no memory for the keys of %d peers", w->pe, w->n_pes);
    if (!rc)
        rc = uf_engine_mr_register(w->engine, r->base, r->bytes, true, &r->mr);
    rc = agree_on(w, "registration", r->bytes, r->index, rc, 0, all);
    return rc ? rc : exchange_keys(w, r);
}

static void leave_network(uf_world *w, uf_region *r)
{
    if (r->mr)
        uf_engine_mr_close(w->engine, r->mr);
    free(r->keys);
    free(r->rail_keys);
    free(r->addresses);
}

/* ---------------------------------------------------------------- heap */

static int map_peers(uf_world *w, const wish *all, size_t bytes, int *mapped)
{
    for (*mapped = 0; *mapped < w->n_pes; ++*mapped) {
        uf_peer *p = &w->peers[*mapped];
        if (!p->mapped || *mapped == w->pe)
            continue;
        int rc = uf_local_segment_map(&p->range, &p->identity, all[*mapped].fd, bytes);
        if (rc)
            return rc;
    }
    return UF_OK;
}

static void unmap_peers(uf_world *w, size_t bytes, int mapped)
{
    for (int pe = 0; pe < mapped; pe++)
        if (w->peers[pe].mapped && pe != w->pe)
            uf_local_segment_drop(&w->peers[pe].range, bytes);
}

/* Appends a segment of `bytes` on all PEs, or on none. */
static int grow_heap(uf_world *w, size_t bytes, wish *all)
{
    uf_region *r = calloc(1, sizeof *r);
    if (!r)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a heap segment's record", w->pe);
    int fd = -1, mapped = 0;
    int rc = uf_memory_index(w, &r->index);
    size_t offset = w->range.used;
    if (!rc)
        rc = uf_local_segment_create(&w->range, bytes, &fd);
    bool created = !rc;
    rc = agree_on(w, "heap growth", bytes, offset, rc, fd, all);
    if (!rc)
        rc = map_peers(w, all, bytes, &mapped);
    r->base = w->range.base + offset;
    r->bytes = bytes;
    r->heap_offset = offset;
    if (created) {
        /* Also a barrier: nobody closes its descriptor before all have mapped it. */
        int joined = w->fabric ? join_network(w, r, rc, all) : agree_on(w, "heap mapping", bytes, offset, rc, 0, all);
        rc = rc ? rc : joined;
    }
    if (fd >= 0)
        close(fd);
    if (rc) {
        leave_network(w, r);
        unmap_peers(w, bytes, mapped);
        if (created)
            uf_local_segment_drop(&w->range, bytes);
        free(r);
        return rc;
    }
    uf_memory_publish(w, r);
    atomic_store_explicit(&w->heap_used, w->range.used, memory_order_release);
    uf_gpu_host_grew(w);
    rc = uf_heap_grow(w->heap, bytes); /* cannot fail: uf_memory_alloc has compared with max */
    /* Nobody signals a word of the segment before its owner has published it: its engine would find no word there. */
    return rc || !w->fabric ? rc : uf_bootstrap_barrier(w->bootstrap, w->timeout_ns);
}

int uf_memory_alloc(uf_world *w, const char *what, size_t bytes, size_t align, void **ptr)
{
    if (align < UF_HEAP_ALIGN)
        align = bytes >= UF_HEAP_LARGE ? UF_HEAP_LARGE : UF_HEAP_ALIGN;
    size_t offset, need;
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    int rc = agree_on(w, what, bytes, align, UF_OK, -1, all);
    if (!rc && bytes > w->range.max)
        rc = uf_fail(UF_ENOMEM, "PE %d: %s of %zu bytes, but the heap has address space for %zu; raise UNFENCE_HEAP_MAX", w->pe,
                     what, bytes, w->range.max);
    while (!rc && (rc = uf_heap_alloc(w->heap, bytes, align, &offset, &need)) == UF_EAGAIN) {
        size_t grow = round_up(need > w->segment_bytes ? need : w->segment_bytes, UF_HEAP_LARGE);
        size_t left = w->range.max - w->range.used;
        if (grow > left)
            grow = round_up(need, UF_HEAP_LARGE);
        if (grow > left)
            rc = uf_fail(
                UF_ENOMEM,
                "PE %d: %s of %zu bytes needs %zu more of the heap, which has address space for %zu; raise UNFENCE_HEAP_MAX",
                w->pe, what, bytes, grow, left);
        else
            rc = grow_heap(w, grow, all);
    }
    free(all);
    if (!rc)
        *ptr = w->range.base + offset;
    return rc;
}

int uf_malloc(uf_world *w, size_t bytes, size_t align, void **ptr)
{
    if (!w || !ptr)
        return uf_fail(UF_EINVAL, "uf_malloc: argument %s is NULL", !w ? "world" : "ptr");
    if (align & (align - 1))
        return uf_fail(UF_EINVAL, "uf_malloc: argument align is %zu, not a power of two", align);
    int rc = uf_world_check(w);
    if (rc)
        return rc;
    if (bytes == 0) {
        *ptr = NULL;
        return UF_OK;
    }
    pthread_mutex_lock(&w->setup);
    rc = uf_memory_alloc(w, "uf_malloc", bytes, align, ptr);
    pthread_mutex_unlock(&w->setup);
    return rc;
}

static bool is_block(const uf_heap *heap, size_t offset)
{
    size_t start, bytes;
    return uf_heap_block(heap, offset, &start, &bytes) && start == offset;
}

static int free_block(uf_world *w, const char *what, void *ptr)
{
    size_t offset = (size_t)((unsigned char *)ptr - w->range.base);
    if (!uf_memory_in_heap(w, ptr, 1) || !is_block(w->heap, offset))
        return uf_fail(UF_EINVAL, "%s: argument ptr is not the start of a live allocation of this world", what);
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    int rc = agree_on(w, what, offset, 0, UF_OK, -1, all);
    free(all);
    return rc ? rc : uf_heap_free(w->heap, offset);
}

int uf_free(uf_world *w, void *ptr)
{
    if (!w)
        return uf_fail(UF_EINVAL, "uf_free: argument world is NULL");
    if (!ptr)
        return UF_OK;
    pthread_mutex_lock(&w->setup);
    int rc = uf_gpu_in_heap(w, ptr) ? uf_gpu_free_block(w, ptr) : free_block(w, "uf_free", ptr);
    pthread_mutex_unlock(&w->setup);
    return rc;
}

/* ---------------------------------------------------------------- signal words */

/* The books are kept in larger units than the arena has, so what lies beyond its end is given back. */
static int take_words(uf_world *w, size_t n, size_t *offset)
{
    size_t growth;
    int rc = uf_heap_alloc(w->signal_heap, n * 8, UF_HEAP_ALIGN, offset, &growth);
    if (!rc && *offset + n * 8 <= w->n_signals * 8)
        return UF_OK;
    if (!rc)
        uf_heap_free(w->signal_heap, *offset);
    return uf_fail(UF_ENOMEM,
                   "PE %d: %zu signal words asked for, but fewer of the world's %zu are free in one piece; raise UNFENCE_SIGNALS",
                   w->pe, n, w->n_signals);
}

int uf_signal_alloc(uf_world *w, size_t n, int kind, uint64_t **signals)
{
    if (!w || !signals)
        return uf_fail(UF_EINVAL, "uf_signal_alloc: argument %s is NULL", !w ? "world" : "signals");
    if (kind != UF_SIGNAL_DEFAULT && kind != UF_SIGNAL_MIXED)
        return uf_fail(UF_EINVAL, "uf_signal_alloc: argument kind is %d, neither UF_SIGNAL_DEFAULT nor UF_SIGNAL_MIXED", kind);
    if (n == 0 || n > w->n_signals)
        return uf_fail(n ? UF_ENOMEM : UF_EINVAL,
                       "uf_signal_alloc: argument n is %zu; a world has %zu signal words (UNFENCE_SIGNALS)", n, w->n_signals);
    pthread_mutex_lock(&w->setup);
    size_t offset = 0;
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    int rc = all ? UF_OK : uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    if (!rc)
        rc = agree_on(w, "uf_signal_alloc", n, (uint64_t)kind, UF_OK, -1, all);
    if (!rc)
        rc = take_words(w, n, &offset);
    if (!rc) {
        /* Freed words may hold old counts; nobody signals before all have come out of the second exchange. */
        memset((unsigned char *)w->signals + offset, 0, n * 8);
        rc = agree_on(w, "uf_signal_alloc zero", n, offset, UF_OK, -1, all);
    }
    free(all);
    pthread_mutex_unlock(&w->setup);
    if (!rc)
        *signals = (uint64_t *)(void *)((unsigned char *)w->signals + offset);
    return rc;
}

int uf_signal_free(uf_world *w, uint64_t *signals)
{
    if (!w)
        return uf_fail(UF_EINVAL, "uf_signal_free: argument world is NULL");
    if (!signals)
        return UF_OK;
    size_t offset = (size_t)((unsigned char *)signals - (unsigned char *)w->signals);
    pthread_mutex_lock(&w->setup);
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    int rc = UF_OK;
    if (offset >= w->n_signals * 8 || !is_block(w->signal_heap, offset))
        rc = uf_fail(UF_EINVAL, "uf_signal_free: argument signals is not what uf_signal_alloc gave");
    else if (!all)
        rc = uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    else if (!(rc = agree_on(w, "uf_signal_free", offset, 0, UF_OK, -1, all)))
        rc = uf_heap_free(w->signal_heap, offset);
    free(all);
    pthread_mutex_unlock(&w->setup);
    return rc;
}

/* ---------------------------------------------------------------- windows */

/* Tells where each PE's buffer is, and shows it to the network. */
static int share_window(uf_world *w, uf_region *r, wish *all)
{
    if (r->memory == UF_MEMORY_CUDA)
        return uf_gpu_window_open(w, r);
    uint64_t mine = (uint64_t)(uintptr_t)r->base;
    int rc = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, r->addresses, w->timeout_ns);
    return rc ? rc : join_network(w, r, UF_OK, all);
}

/* A pointer must name one place on every PE, so no two pieces of symmetric memory may share bytes. */
static int refuse_overlap(const uf_world *w, const uf_region *r)
{
    uintptr_t start = (uintptr_t)r->base;
    for (uint32_t i = 0; i < UF_MAX_REGIONS; i++) {
        const uf_region *o = atomic_load_explicit(&w->regions[i], memory_order_relaxed);
        uintptr_t other = o ? (uintptr_t)o->base : 0;
        if (o && start < other + o->bytes && other < start + r->bytes)
            return uf_fail(
                UF_EINVAL,
                "uf_register on PE %d: argument ptr: %p with %zu bytes overlaps %s at %p with %zu bytes; pointers into "
                "that are symmetric already",
                w->pe, (void *)r->base, r->bytes, o->heap_offset == SIZE_MAX ? "a window" : "the heap", (void *)o->base,
                o->bytes);
    }
    return UF_OK;
}

static int open_window(uf_world *w, uf_window *win, wish *all)
{
    uf_region *r = &win->region;
    int rc = uf_memory_index(w, &r->index);
    if (!rc)
        rc = refuse_overlap(w, r);
    r->addresses = calloc((size_t)w->n_pes, sizeof *r->addresses);
    if (!rc && !r->addresses)
        rc = uf_fail(UF_ENOMEM, "PE %d: no memory for the addresses of %d PEs", w->pe, w->n_pes);
    rc = agree_on(w, r->memory == UF_MEMORY_CUDA ? "uf_register CUDA" : "uf_register", r->bytes, r->index, rc, -1, all);
    if (!rc)
        rc = share_window(w, r, all);
    if (!rc)
        uf_memory_publish(w, r);
    /* Nobody puts into a window that its owner has not published yet: its signals would find no word. */
    return rc ? rc : uf_bootstrap_barrier(w->bootstrap, w->timeout_ns);
}

int uf_register(uf_world *w, void *ptr, size_t bytes, uf_window **window)
{
    if (!w || !ptr || !window || !bytes)
        return uf_fail(UF_EINVAL, "uf_register: argument %s",
                       !w        ? "world is NULL"
                       : !ptr    ? "ptr is NULL"
                       : !window ? "window is NULL"
                                 : "bytes is 0");
    if (bytes >> UF_REGION_SHIFT)
        return uf_fail(UF_EINVAL, "uf_register: argument bytes is %zu, more than 2^%d", bytes, UF_REGION_SHIFT);
    int memory = uf_gpu_is_buffer(w, ptr) ? UF_MEMORY_CUDA : UF_MEMORY_HOST, captured = uf_gpu_refuse_capture(w, "uf_register");
    if (captured)
        return captured;
    uf_window *win = calloc(1, sizeof *win);
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    if (!win || !all) {
        free(win);
        free(all);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a window's record", w->pe);
    }
    *win = (uf_window){.world = w, .region = {.base = ptr, .bytes = bytes, .heap_offset = SIZE_MAX, .memory = memory}};
    pthread_mutex_lock(&w->setup);
    int rc = open_window(w, win, all);
    if (rc) {
        if (atomic_load(&w->regions[win->region.index]) == &win->region)
            atomic_store(&w->regions[win->region.index], NULL);
        uf_gpu_window_close(w, &win->region);
        leave_network(w, &win->region);
        win->next = w->ended_windows;
        w->ended_windows = win;
    }
    pthread_mutex_unlock(&w->setup);
    free(all);
    if (!rc)
        *window = win;
    return rc;
}

int uf_unregister(uf_window *window)
{
    if (!window)
        return UF_OK;
    uf_world *w = window->world;
    wish *all = malloc(sizeof *all * (size_t)w->n_pes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    pthread_mutex_lock(&w->setup);
    /* All have completed what they sent into it before any owner takes it away. */
    int rc = agree_on(w, "uf_unregister", window->region.index, window->region.bytes, UF_OK, -1, all);
    atomic_store_explicit(&w->regions[window->region.index], NULL, memory_order_release);
    if (window->region.memory == UF_MEMORY_CUDA) {
        uf_gpu_window_close(w, &window->region);
        /* An owner may free its buffer when this returns, which is not allowed while others have it open. */
        int closed = agree_on(w, "uf_unregister closed", window->region.index, window->region.bytes, UF_OK, -1, all);
        rc = rc ? rc : closed;
    }
    leave_network(w, &window->region);
    window->next = w->ended_windows;
    w->ended_windows = window;
    pthread_mutex_unlock(&w->setup);
    free(all);
    return rc;
}

void *uf_window_at(const uf_window *window, size_t offset)
{
    return window && offset <= window->region.bytes ? window->region.base + offset : NULL;
}

void *uf_ptr(uf_world *w, const void *sym, int pe)
{
    if (!w || !uf_world_check_pe(w, pe) || !sym)
        return NULL;
    if (pe == w->pe)
        return uf_memory_find(w, sym, 1) ? (void *)(uintptr_t)sym : NULL;
    void *on_gpu = NULL;
    const uf_peer *p = &w->peers[pe];
    if (!p->mapped)
        return NULL;
    if (uf_memory_in_heap(w, sym, 1))
        return p->range.base + ((const unsigned char *)sym - w->range.base);
    uf_region *r = uf_memory_find(w, sym, 1);
    if (r && r->memory == UF_MEMORY_CUDA)
        return r->addresses[pe] && !uf_gpu_reach(w, "uf_ptr", "sym", r, sym, pe, &on_gpu) ? on_gpu : NULL;
    return r && p->same_process ? (void *)(uintptr_t)(r->addresses[pe] + (uint64_t)((const unsigned char *)sym - r->base)) : NULL;
}

/* ---------------------------------------------------------------- local buffers of operations */

/* Edges of the registration cache. */
static int cache_register(void *arg, void *ptr, size_t bytes, uf_engine_mr **mr)
{
    uf_world *w = arg;
    return uf_engine_mr_register(w->engine, ptr, bytes, false, mr);
}

static void cache_close(void *arg, uf_engine_mr *mr)
{
    uf_world *w = arg;
    uf_engine_mr_close(w->engine, mr);
}

int uf_memory_source(uf_world *w, const void *ptr, size_t bytes, uint64_t *desc, void **registration)
{
    *desc = 0;
    *registration = NULL;
    if (!w->fabric->caps.needs_desc || bytes == 0)
        return UF_OK;
    uf_region *r = uf_memory_find(w, ptr, bytes);
    if (r) {
        *desc = r->mr->desc;
        return UF_OK;
    }
    uf_registration *taken;
    int rc = uf_registry_get(w->registry, ptr, bytes, &taken);
    if (rc)
        return rc;
    *desc = uf_registration_mr(taken)->desc;
    *registration = taken;
    return UF_OK;
}

void uf_memory_source_done(uf_world *w, void *registration)
{
    if (registration)
        uf_registry_put(w->registry, registration);
}

void uf_memory_tick(uf_world *w)
{
    if (w->registry)
        uf_registry_collect(w->registry);
}

void uf_memory_counters(uf_world *w, uint64_t *registrations, uint64_t *hits)
{
    *registrations = *hits = 0;
    if (!w->registry)
        return;
    uf_registry_counters c;
    uf_registry_counters_get(w->registry, &c);
    *registrations = c.registrations;
    *hits = c.hits;
}

/* ---------------------------------------------------------------- create and destroy */

static int create_registry(uf_world *w)
{
    uf_registry_params params = {w, cache_register, cache_close, KEPT_REGISTRATIONS};
    const char *why;
    int rc = uf_registry_create(&params, &w->registry);
    if (!rc && !uf_registry_keeps(w->registry, &why))
        uf_log(UF_LOG_INFO, w->pe, "buffers outside of symmetric memory are registered for each operation: %s", why);
    return rc;
}

int uf_memory_create(uf_world *w)
{
    size_t max = (size_t)w->settings.number[UF_SET_HEAP_MAX];
    w->segment_bytes = round_up((size_t)w->settings.number[UF_SET_HEAP_SIZE], UF_HEAP_LARGE);
    w->n_signals = (size_t)w->settings.number[UF_SET_SIGNALS] + uf_teams_words(w->n_pes);
    if (w->n_signals > (size_t)1 << 20)
        return uf_fail(UF_EINVAL,
                       "PE %d: UNFENCE_SIGNALS=%lld and the teams of %d PEs need %zu signal words; an index has 20 bits", w->pe,
                       (long long)w->settings.number[UF_SET_SIGNALS], w->n_pes, w->n_signals);
    size_t signal_bytes = round_up(w->n_signals * 8, UF_HEAP_LARGE);
    if (max < w->segment_bytes || max < signal_bytes)
        return uf_fail(
            UF_EINVAL,
            "PE %d: UNFENCE_HEAP_MAX is %zu bytes, less than UNFENCE_HEAP_SIZE with %zu or the signal words with %zu: raise "
            "it, or lower UNFENCE_HEAP_SIZE or UNFENCE_SIGNALS",
            w->pe, max, w->segment_bytes, signal_bytes);
    uint32_t color = 0;
    int rc = uf_local_range_reserve(max, 0, &w->range);
    for (int pe = 0; !rc && pe < w->n_pes; pe++)
        if (w->peers[pe].mapped && pe != w->pe)
            rc = uf_local_range_reserve(max, ++color, &w->peers[pe].range);
    w->peers[w->pe].range = w->range;
    void *arena = NULL;
    if (rc || (rc = uf_heap_create(max, &w->heap)) || (rc = uf_heap_create(signal_bytes, &w->signal_heap)) ||
        (rc = uf_heap_grow(w->signal_heap, signal_bytes)) ||
        (w->fabric && w->fabric->caps.needs_desc && (rc = create_registry(w))) ||
        (rc = uf_memory_alloc(w, "signal words", w->n_signals * 8, UF_HEAP_ALIGN, &arena)))
        return rc;
    w->signals = arena;
    return UF_OK;
}

void uf_memory_destroy(uf_world *w)
{
    if (w->engine)
        uf_engine_stop(w->engine);
    w->inbox = NULL; /* the bootstrap's end still waits, and serves while it does */
    uf_gpu_destroy(w);
    if (w->registry)
        uf_registry_destroy(w->registry);
    for (uint32_t i = 0; i < UF_MAX_REGIONS; i++) {
        uf_region *r = atomic_load(&w->regions[i]);
        if (!r)
            continue;
        leave_network(w, r);
        free(r->heap_offset == SIZE_MAX ? (void *)((char *)r - offsetof(uf_window, region)) : (void *)r);
    }
    while (w->ended_windows) {
        uf_window *next = w->ended_windows->next;
        free(w->ended_windows);
        w->ended_windows = next;
    }
    for (int pe = 0; w->peers && pe < w->n_pes; pe++)
        if (pe != w->pe && w->peers[pe].range.base)
            uf_local_range_release(&w->peers[pe].range);
    if (w->range.base)
        uf_local_range_release(&w->range);
    uf_heap_destroy(w->heap);
    uf_heap_destroy(w->signal_heap);
}
