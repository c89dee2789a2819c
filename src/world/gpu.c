/* gpu.c - the symmetric heap in GPU memory: opened at first use, grown by segments that near peers map.
 *
 * The picture is that of the host heap (memory.c): each PE reserves the same address space for itself and for each near peer, segments are
 * appended at the same offsets, and an object's address at a peer is one addition away. Who is near is decided by all PEs from the same
 * records: candidates by host and peer access, then whoever could map the first segment, both ways. Every step is collective and is
 * agreed on before the next, so that what fails on one PE fails on all with that PE's sentence and leaves nothing behind. */
#include "world/gpu.h"
#include "base/error.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static size_t round_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

static bool is_local(const uf_world *w, int pe)
{
    return pe != w->pe && w->peers[pe].same_process;
}

static int refuse_capture(const uf_world *w, const char *call)
{
    return uf_fail(
        UF_EINVAL,
        "%s on PE %d: a CUDA graph is being captured on this thread's stream or context; memory is allocated and registered "
        "before a capture begins, not in it",
        call, w->pe);
}

int uf_gpu_refuse_capture(uf_world *w, const char *call)
{
    return uf_gpu_of(w) && uf_cuda_capturing() ? refuse_capture(w, call) : UF_OK;
}

/* ---------------------------------------------------------------- passing descriptors */

typedef struct exchange {
    uf_world *w;
    struct uf_gpu *g;
    const uf_cuda_piece *mine;
    int n;
    const int *counts;
    uf_gpu_parcel *const *theirs;
    int *sent; /* [n_pes] */
    int missing;
} exchange;

static bool takes_part(const exchange *x, int pe)
{
    return pe != x->w->pe && x->g->peers[pe].near && !is_local(x->w, pe);
}

/* Sends what the receivers' queues take. *left: something remains. */
static int send_some(exchange *x, bool *left)
{
    *left = false;
    for (int pe = 0; pe < x->w->n_pes; pe++) {
        while (takes_part(x, pe) && x->sent[pe] < x->n) {
            const uf_cuda_piece *p = &x->mine[x->sent[pe]];
            const uf_local_passed what = {x->w->identity.nonce, x->g->step, p->bytes, (uint32_t)x->w->pe, (uint32_t)x->sent[pe]};
            int rc = uf_local_pass_send(x->g->pass, &x->g->peers[pe].pass, &what, p->share.fd);
            *left |= rc == UF_EAGAIN;
            if (rc == UF_EAGAIN)
                break;
            if (rc)
                return rc;
            x->sent[pe]++;
        }
    }
    return UF_OK;
}

static int receive_some(exchange *x)
{
    uf_local_passed what;
    int fd, rc;
    while ((rc = uf_local_pass_receive(x->g->pass, &what, &fd)) == UF_OK) {
        bool expected = what.pe < (uint32_t)x->w->n_pes && takes_part(x, (int)what.pe) &&
                        what.nonce == x->w->peers[what.pe].identity.nonce && what.step == x->g->step &&
                        what.index < (uint32_t)x->counts[what.pe] && x->theirs[what.pe][what.index].share.fd < 0;
        if (!expected) {
            close(fd);
            continue;
        }
        x->theirs[what.pe][what.index] = (uf_gpu_parcel){{fd, 0}, what.value};
        x->missing--;
    }
    return rc == UF_EAGAIN ? UF_OK : rc;
}

int uf_gpu_exchange(uf_world *w, struct uf_gpu *g, const uf_cuda_piece *mine, int n, const int *counts,
                    uf_gpu_parcel *const *theirs)
{
    exchange x = {w, g, mine, n, counts, theirs, calloc((size_t)w->n_pes, sizeof(int)), 0};
    if (!x.sent)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    g->step++;
    for (int pe = 0; pe < w->n_pes; pe++)
        if (takes_part(&x, pe))
            x.missing += counts[pe];
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    bool left = true;
    int rc = UF_OK;
    for (uint32_t round = 0; !rc && (left || x.missing); round++) {
        rc = send_some(&x, &left);
        if (!rc)
            rc = receive_some(&x);
        if (!rc && (left || x.missing))
            rc = uf_world_wait_step(w, round, deadline);
        if (rc == UF_ETIMEDOUT)
            rc = uf_fail(
                rc,
                "PE %d: %d descriptors of GPU memory from processes of this host have not come within %llu ms (UNFENCE_TIMEOUT)",
                w->pe, x.missing, (unsigned long long)(w->timeout_ns / 1000000));
    }
    free(x.sent);
    return rc;
}

/* ---------------------------------------------------------------- who is near */

static void not_near(struct uf_gpu *g, int pe, const char *why)
{
    uf_gpu_peer *p = &g->peers[pe];
    p->near = false;
    snprintf(p->reason, sizeof p->reason, "%s", why);
    uf_cuda_range_release(g->device, &p->range);
}

static void judge(uf_world *w, struct uf_gpu *g, int pe)
{
    uf_gpu_peer *p = &g->peers[pe];
    const uf_cuda_facts *mine = uf_cuda_facts_of(g->device);
    const char *why;
    if (pe == w->pe) {
        p->near = true;
        snprintf(p->reason, sizeof p->reason, "itself");
        return;
    }
    if (!w->peers[pe].mapped) {
        not_near(g, pe, w->peers[pe].reason);
        return;
    }
    if (!is_local(w, pe) && (!mine->fd_handles || !p->facts.fd_handles)) {
        not_near(g, pe, "a GPU of the two cannot share memory between processes (no POSIX file descriptors of it)");
        return;
    }
    if (!is_local(w, pe) && p->pass.net_namespace != g->peers[w->pe].pass.net_namespace) {
        not_near(g, pe, "the same host, but in another network namespace: descriptors cannot be passed (docker --network)");
        return;
    }
    p->near = uf_cuda_near(mine, &p->facts, &why);
    snprintf(p->reason, sizeof p->reason, "%s", why);
}

/* Near is what both find near. */
static int agree_on_near(uf_world *w, struct uf_gpu *g)
{
    size_t n = (size_t)w->n_pes;
    unsigned char *mine = calloc(n, 1), *all = calloc(n, n);
    int rc = mine && all ? UF_OK : uf_fail(UF_ENOMEM, "PE %d: no memory for the reach of %d PEs", w->pe, w->n_pes);
    for (size_t pe = 0; !rc && pe < n; pe++)
        mine[pe] = g->peers[pe].near;
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, mine, n, all, w->timeout_ns);
    for (size_t pe = 0; !rc && pe < n; pe++)
        if (g->peers[pe].near && !all[pe * n + (size_t)w->pe])
            not_near(g, (int)pe, "it cannot map this PE's GPU memory");
    free(mine);
    free(all);
    return rc;
}

/* ---------------------------------------------------------------- growth */

/* What a PE's segment is to the others. */
typedef struct offer {
    uint64_t handle;
} offer;

static int map_one(uf_world *w, struct uf_gpu *g, int pe, const offer *o, const uf_gpu_parcel *parcel, size_t bytes)
{
    uf_gpu_peer *p = &g->peers[pe];
    const uf_cuda_share share = {is_local(w, pe) ? -1 : parcel->share.fd, o->handle};
    int rc = uf_cuda_segment_map(g->device, &p->range, &share, bytes);
    if (rc && !g->proven && rc != UF_ENOMEM) {
        char why[sizeof p->reason];
        snprintf(why, sizeof why, "its memory could not be mapped: %.150s", uf_error_message());
        uf_log(UF_LOG_WARN, w->pe, "GPU memory of PE %d is not near, though it should be: %s", pe, uf_error_message());
        not_near(g, pe, why);
        rc = UF_OK;
    }
    return rc;
}

/* Brings the new segment of every near peer here. */
static int map_near(uf_world *w, struct uf_gpu *g, uf_cuda_share *share, size_t bytes, int *mapped)
{
    size_t n = (size_t)w->n_pes;
    const offer mine = {share->handle};
    offer *all = calloc(n, sizeof *all);
    int *counts = calloc(n, sizeof *counts);
    uf_gpu_parcel *parcels = calloc(n, sizeof *parcels), **at = calloc(n, sizeof *at);
    int rc = UF_OK;
    if (!all || !counts || !parcels || !at)
        rc = uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    for (size_t pe = 0; !rc && pe < n; pe++) {
        counts[pe] = 1;
        parcels[pe].share.fd = -1;
        at[pe] = &parcels[pe];
    }
    const uf_cuda_piece piece = {*share, bytes};
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    if (!rc)
        rc = uf_gpu_exchange(w, g, &piece, 1, counts, at);
    for (*mapped = 0; !rc && *mapped < w->n_pes; ++*mapped)
        if (*mapped != w->pe && g->peers[*mapped].near)
            rc = map_one(w, g, *mapped, &all[*mapped], &parcels[*mapped], bytes);
    if (rc && *mapped > 0)
        --*mapped; /* the last one failed and has left nothing */
    for (size_t pe = 0; parcels && pe < n; pe++)
        if (parcels[pe].share.fd >= 0)
            close(parcels[pe].share.fd);
    free(all);
    free(counts);
    free(parcels);
    free(at);
    return rc;
}

static void unmap_near(uf_world *w, struct uf_gpu *g, size_t bytes, int mapped)
{
    for (int pe = 0; pe < mapped; pe++)
        if (pe != w->pe && g->peers[pe].near)
            uf_cuda_segment_drop(g->device, &g->peers[pe].range, bytes);
}

static void fill_region(uf_world *w, struct uf_gpu *g, uf_region *r, size_t offset, size_t bytes)
{
    r->base = g->range.base + offset;
    r->bytes = bytes;
    r->heap_offset = offset;
    r->memory = UF_MEMORY_CUDA;
    for (int pe = 0; pe < w->n_pes; pe++)
        if (g->peers[pe].near)
            r->addresses[pe] = (uint64_t)(uintptr_t)((pe == w->pe ? g->range.base : g->peers[pe].range.base) + offset);
}

/* The first segment is also the trial of who is near. */
static int prove(uf_world *w, struct uf_gpu *g)
{
    int rc = g->proven ? UF_OK : agree_on_near(w, g);
    g->proven |= !rc;
    return rc;
}

static int grow(uf_world *w, struct uf_gpu *g, size_t bytes)
{
    uf_region *r = calloc(1, sizeof *r);
    uint64_t *addresses = calloc((size_t)w->n_pes, sizeof *addresses);
    if (!r || !addresses) {
        free(r);
        free(addresses);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a GPU heap segment's record", w->pe);
    }
    r->addresses = addresses;
    uf_cuda_share share = UF_CUDA_SHARE_NONE;
    size_t offset = g->range.used;
    int mapped = 0;
    int rc = uf_memory_index(w, &r->index);
    if (!rc)
        rc = uf_cuda_segment_create(g->device, &g->range, bytes, &share);
    bool created = !rc;
    rc = uf_memory_agree(w, "GPU heap growth", bytes, offset, rc);
    if (!rc) {
        rc = map_near(w, g, &share, bytes, &mapped);
        /* Also a barrier: nobody gives its handle back before all have mapped it. */
        rc = uf_memory_agree(w, "GPU heap mapping", bytes, offset, rc);
        if (!rc)
            rc = prove(w, g);
    }
    uf_cuda_share_close(&share);
    if (!rc)
        rc = uf_heap_grow(g->heap, bytes); /* cannot fail: uf_gpu_malloc has compared with max */
    if (rc) {
        unmap_near(w, g, bytes, mapped);
        if (created)
            uf_cuda_segment_drop(g->device, &g->range, bytes);
        free(addresses);
        free(r);
        return rc;
    }
    fill_region(w, g, r, offset, bytes);
    uf_memory_publish(w, r);
    atomic_store_explicit(&g->used, g->range.used, memory_order_release);
    return g->shown ? uf_gpu_show_sizes(w, g) : UF_OK;
}

/* ---------------------------------------------------------------- blocks */

static int take(uf_world *w, struct uf_gpu *g, size_t bytes, size_t align, void **ptr)
{
    size_t offset = 0, need;
    int rc = UF_OK;
    if (bytes > g->range.max)
        rc = uf_fail(UF_ENOMEM,
                     "PE %d: uf_malloc_on of %zu bytes, but the GPU heap has address space for %zu; raise UNFENCE_CUDA_HEAP_MAX",
                     w->pe, bytes, g->range.max);
    while (!rc && (rc = uf_heap_alloc(g->heap, bytes, align, &offset, &need)) == UF_EAGAIN) {
        size_t step = round_up(need > g->segment_bytes ? need : g->segment_bytes, g->unit), left = g->range.max - g->range.used;
        if (step > left)
            step = round_up(need, g->unit);
        if (step > left)
            rc =
                uf_fail(UF_ENOMEM,
                        "PE %d: uf_malloc_on of %zu bytes needs %zu more of the GPU heap, which has address space for %zu; raise "
                        "UNFENCE_CUDA_HEAP_MAX",
                        w->pe, bytes, step, left);
        else
            rc = grow(w, g, step);
    }
    if (!rc)
        *ptr = g->range.base + offset;
    return rc;
}

int uf_gpu_malloc(uf_world *w, size_t bytes, size_t align, void **ptr)
{
    if (align < UF_HEAP_ALIGN)
        align = bytes >= UF_HEAP_LARGE ? UF_HEAP_LARGE : UF_HEAP_ALIGN;
    int rc = uf_memory_agree(w, "uf_malloc_on CUDA", bytes, align, UF_OK);
    if (!rc)
        rc = uf_gpu_open(w);
    return rc ? rc : take(w, uf_gpu_of(w), bytes, align, ptr);
}

bool uf_gpu_in_heap(const uf_world *w, const void *ptr)
{
    const struct uf_gpu *g = uf_gpu_of(w);
    return g && (size_t)((const unsigned char *)ptr - g->range.base) < g->range.max;
}

int uf_gpu_free_block(uf_world *w, void *ptr)
{
    struct uf_gpu *g = uf_gpu_of(w);
    size_t offset = (size_t)((unsigned char *)ptr - g->range.base), start, bytes;
    if (!uf_heap_block(g->heap, offset, &start, &bytes) || start != offset || ptr == g->words)
        return uf_fail(UF_EINVAL, "uf_free: argument ptr is not the start of a live allocation of this world's GPU heap");
    int rc = uf_memory_agree(w, "uf_free CUDA", offset, 0, UF_OK);
    if (rc)
        return rc;
    if (g->writer)
        uf_cuda_words_forget(g->writer, ptr, bytes);
    return uf_heap_free(g->heap, offset);
}

/* ---------------------------------------------------------------- the host heap, seen by GPUs */

static uf_region *host_segment_at(uf_world *w, size_t offset)
{
    uint32_t n = atomic_load_explicit(&w->n_regions, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        uf_region *r = atomic_load_explicit(&w->regions[i], memory_order_acquire);
        if (r && r->memory == UF_MEMORY_HOST && r->heap_offset == offset)
            return r;
    }
    return NULL;
}

static void unregister_to(uf_world *w, struct uf_gpu *g, size_t offset, int pes)
{
    for (int pe = 0; pe < pes; pe++)
        if (w->peers[pe].mapped)
            uf_cuda_host_unregister(g->device, w->peers[pe].range.base + offset);
}

static int register_segment(uf_world *w, struct uf_gpu *g, const uf_region *r)
{
    for (int pe = 0; pe < w->n_pes; pe++) {
        int rc =
            w->peers[pe].mapped ? uf_cuda_host_register(g->device, w->peers[pe].range.base + r->heap_offset, r->bytes) : UF_OK;
        if (rc) {
            unregister_to(w, g, r->heap_offset, pe);
            return rc;
        }
    }
    return UF_OK;
}

/* What cannot be registered is not shown: signals in host memory are then for the host alone. */
static void register_host(uf_world *w, struct uf_gpu *g)
{
    uf_region *r;
    while ((r = host_segment_at(w, g->host_bytes))) {
        if (register_segment(w, g, r)) {
            uf_log(UF_LOG_WARN, w->pe, "the symmetric host heap from %zu bytes on is not visible to GPUs: %s", g->host_bytes,
                   uf_error_message());
            return;
        }
        g->host_bytes += r->bytes;
    }
}

static void unregister_host(uf_world *w, struct uf_gpu *g)
{
    for (size_t offset = 0; offset < g->host_bytes;) {
        const uf_region *r = host_segment_at(w, offset);
        if (!r)
            return;
        unregister_to(w, g, offset, w->n_pes);
        offset += r->bytes;
    }
}

void uf_gpu_host_grew(uf_world *w)
{
    struct uf_gpu *g = uf_gpu_of(w);
    if (!g)
        return;
    register_host(w, g);
    if (uf_gpu_show_sizes(w, g))
        uf_log(UF_LOG_WARN, w->pe, "kernels do not see that the host heap has grown: %s", uf_error_message());
}

/* ---------------------------------------------------------------- opening */

/* What each PE tells when GPU memory is first asked for. */
typedef struct hello {
    uf_cuda_facts facts;
    uf_local_pass_name pass;
    int64_t heap_size, heap_max;
    char way[16];
    uint64_t house; /* of the first PE of a process: for the others of it */
} hello;

static int local_rank(const uf_world *w)
{
    int rank = 0;
    for (int pe = 0; pe < w->pe; pe++)
        rank += memcmp(w->peers[pe].identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id) == 0;
    return rank;
}

static int open_device(uf_world *w, struct uf_gpu *g)
{
    const char *why;
    int ordinal;
    if (!uf_cuda_available(&w->settings, &why))
        return uf_fail(UF_EUNSUPPORTED, "PE %d has no GPU memory: %s", w->pe, why);
    g->peers = calloc((size_t)w->n_pes, sizeof *g->peers);
    if (!g->peers)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %d peers", w->pe, w->n_pes);
    int rc = uf_cuda_capturing() ? refuse_capture(w, "the first use of GPU memory") : UF_OK;
    if (!rc)
        rc = uf_cuda_choose(&w->settings, local_rank(w), &ordinal);
    if (!rc)
        rc = uf_cuda_open(ordinal, &g->device);
    return rc ? rc : uf_local_pass_create(&g->pass);
}

static int compare(const uf_world *w, int pe, const hello *a, const hello *b)
{
    const struct {
        const char *name;
        int64_t a, b;
    } numbers[] = {{"UNFENCE_CUDA_HEAP_SIZE", a->heap_size, b->heap_size}, {"UNFENCE_CUDA_HEAP_MAX", a->heap_max, b->heap_max}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].a != numbers[i].b)
            return uf_fail(UF_EMISMATCH, "PE %d has %s=%lld, PE %d has %lld: it must be the same on all PEs of a world", pe,
                           numbers[i].name, (long long)numbers[i].a, w->pe, (long long)numbers[i].b);
    if (strncmp(a->way, b->way, sizeof a->way))
        return uf_fail(UF_EMISMATCH,
                       "PE %d has UNFENCE_GPU_WAY=%.16s, PE %d has %.16s: it must be the same on all PEs of a world", pe, a->way,
                       w->pe, b->way);
    return UF_OK;
}

static int first_of_process(const uf_world *w, int *members)
{
    int first = w->pe;
    *members = 0;
    for (int pe = w->n_pes - 1; pe >= 0; pe--)
        if (pe == w->pe || is_local(w, pe)) {
            first = pe;
            ++*members;
        }
    return first;
}

static int meet(uf_world *w, struct uf_gpu *g)
{
    int members, first = first_of_process(w, &members);
    hello mine, *all = calloc((size_t)w->n_pes, sizeof *all);
    memset(&mine, 0, sizeof mine);
    mine.facts = *uf_cuda_facts_of(g->device);
    mine.pass = *uf_local_pass_name_of(g->pass);
    mine.heap_size = w->settings.number[UF_SET_CUDA_HEAP_SIZE];
    mine.heap_max = w->settings.number[UF_SET_CUDA_HEAP_MAX];
    snprintf(mine.way, sizeof mine.way, "%s", w->settings.text[UF_SET_GPU_WAY]);
    if (first == w->pe)
        g->house = uf_gpu_house_create(members);
    mine.house = (uint64_t)(uintptr_t)g->house;
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    int rc = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    if (!rc && !(g->house = (uf_gpu_house *)(uintptr_t)all[first].house))
        rc = uf_fail(UF_ENOMEM, "PE %d: no memory for what the PEs of its process share", first);
    g->unit = UF_HEAP_LARGE;
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        rc = compare(w, pe, &all[pe], &mine);
        g->peers[pe].facts = all[pe].facts;
        g->peers[pe].pass = all[pe].pass;
        if (all[pe].facts.granularity > g->unit)
            g->unit = all[pe].facts.granularity; /* powers of two */
    }
    free(all);
    for (int pe = 0; !rc && pe < w->n_pes; pe++)
        judge(w, g, pe);
    return rc ? rc : agree_on_near(w, g);
}

static int reserve(uf_world *w, struct uf_gpu *g)
{
    size_t max = round_up((size_t)w->settings.number[UF_SET_CUDA_HEAP_MAX], g->unit);
    g->segment_bytes = round_up((size_t)w->settings.number[UF_SET_CUDA_HEAP_SIZE], g->unit);
    if (g->segment_bytes > max)
        return uf_fail(UF_EINVAL, "UNFENCE_CUDA_HEAP_MAX is %zu bytes, less than UNFENCE_CUDA_HEAP_SIZE with %zu", max,
                       g->segment_bytes);
    int rc = uf_cuda_range_reserve(g->device, max, &g->range);
    for (int pe = 0; !rc && pe < w->n_pes; pe++)
        if (g->peers[pe].near && pe != w->pe)
            rc = uf_cuda_range_reserve(g->device, max, &g->peers[pe].range);
    return rc ? rc : uf_heap_create(max, &g->heap);
}

static void log_near(uf_world *w, const struct uf_gpu *g)
{
    const uf_cuda_facts *f = uf_cuda_facts_of(g->device);
    int near = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        near += g->peers[pe].near && pe != w->pe;
    uf_log(UF_LOG_INFO, w->pe, "GPU %d (%s, %s): %d of %d peers near, host heap %s, signal words stored by %s", f->ordinal,
           f->name, f->bus, near, w->n_pes - 1, g->host_bytes ? "visible to it" : "not visible to it",
           g->writer ? uf_cuda_writer_text(g->writer) : "nothing");
    for (int pe = 0; pe < w->n_pes; pe++)
        if (!g->peers[pe].near)
            uf_log(UF_LOG_INFO, w->pe, "GPU memory of PE %d is not near: %s", pe, g->peers[pe].reason);
}

static void free_gpu(uf_world *w, struct uf_gpu *g)
{
    uf_gpu_waits_destroy(g);
    uf_cuda_writer_close(g->writer); /* while what it has mapped exists */
    if (g->device) {
        uf_gpu_hide(g);
        uf_gpu_far_free(g);
        unregister_host(w, g);
        for (int pe = 0; g->peers && pe < w->n_pes; pe++)
            if (pe != w->pe)
                uf_cuda_range_release(g->device, &g->peers[pe].range);
        uf_cuda_range_release(g->device, &g->range);
    }
    uf_heap_destroy(g->heap);
    uf_local_pass_destroy(g->pass);
    uf_cuda_close(g->device);
    uf_gpu_house_leave(g);
    free(g->peers);
    free(g);
}

static void drop_segments(uf_world *w)
{
    for (uint32_t i = 0; i < UF_MAX_REGIONS; i++) {
        uf_region *r = atomic_load(&w->regions[i]);
        if (!r || r->memory != UF_MEMORY_CUDA || r->heap_offset == SIZE_MAX)
            continue;
        atomic_store(&w->regions[i], NULL);
        free(r->addresses);
        free(r);
    }
}

/* Without a writer only near peers can signal into GPU memory, which is enough for many: no error. */
static void open_writer(const uf_world *w, struct uf_gpu *g)
{
    if (uf_cuda_writer_open(g->device, &w->settings, g->words, &g->writer))
        uf_log(UF_LOG_WARN, w->pe, "%s", uf_error_message());
}

/* Each line is a step that all PEs take together: its outcome is agreed on before the next. */
static int open_all(uf_world *w, struct uf_gpu *g)
{
    int rc = uf_memory_agree(w, "GPU", 0, 0, open_device(w, g));
    if (!rc)
        rc = meet(w, g);
    if (!rc)
        rc = uf_memory_agree(w, "GPU address space", 0, 0, reserve(w, g));
    if (!rc)
        rc = take(w, g, uf_gpu_words_bytes(w), UF_HEAP_ALIGN, &g->words);
    if (!rc)
        rc = uf_gpu_far_words(w, g);
    if (rc)
        return rc;
    register_host(w, g);
    open_writer(w, g);
    rc = uf_gpu_waits_create(g);
    if (!rc)
        rc = uf_gpu_far_open(w, g);
    return uf_memory_agree(w, "GPU tables", 0, 0, rc ? rc : uf_gpu_show(w, g));
}

int uf_gpu_open(uf_world *w)
{
    if (uf_gpu_of(w))
        return UF_OK;
    struct uf_gpu *g = calloc(1, sizeof *g);
    int rc =
        g ? open_all(w, g) : uf_memory_agree(w, "GPU", 0, 0, uf_fail(UF_ENOMEM, "PE %d: no memory for a GPU's record", w->pe));
    if (rc) {
        char why[UF_ERROR_BYTES];
        snprintf(why, sizeof why, "%s", uf_error_message());
        drop_segments(w);
        if (g) {
            uf_gpu_far_end(g); /* nobody has used a queue */
            free_gpu(w, g);
        }
        return uf_error_set(rc, why);
    }
    log_near(w, g);
    atomic_store_explicit(&w->gpu, g, memory_order_release);
    atomic_store_explicit(&w->gpu_status, g->status, memory_order_release);
    /* A failure since then has been told to nobody. */
    __atomic_store_n(g->status, atomic_load(&w->status), __ATOMIC_RELEASE);
    return UF_OK;
}

void uf_gpu_destroy(uf_world *w)
{
    struct uf_gpu *g = uf_gpu_of(w);
    if (!g)
        return;
    bool idle = uf_gpu_house_gather(w, g);
    atomic_store(&w->gpu_status, NULL);
    if (!idle) {
        uf_log(UF_LOG_WARN, w->pe,
               "the GPU memory of the world stays until the process ends: other PEs of this process have not destroyed it "
               "within %llu ms, and freeing memory waits for their streams",
               (unsigned long long)(w->timeout_ns / 1000000));
        drop_segments(w);
        atomic_store(&w->gpu, NULL);
        return;
    }
    for (uint32_t i = 0; i < UF_MAX_REGIONS; i++) {
        uf_region *r = atomic_load(&w->regions[i]);
        if (r && r->memory == UF_MEMORY_CUDA && r->heap_offset == SIZE_MAX)
            uf_gpu_window_close(w, r);
    }
    drop_segments(w);
    atomic_store(&w->gpu, NULL);
    free_gpu(w, g);
}

int uf_malloc_on(uf_world *w, int memory, size_t bytes, size_t align, void **ptr)
{
    if (memory == UF_MEMORY_HOST)
        return uf_malloc(w, bytes, align, ptr);
    if (!w || !ptr)
        return uf_fail(UF_EINVAL, "uf_malloc_on: argument %s is NULL", !w ? "world" : "ptr");
    if (memory != UF_MEMORY_CUDA)
        return uf_fail(UF_EINVAL, "uf_malloc_on: argument memory is %d, neither UF_MEMORY_HOST nor UF_MEMORY_CUDA", memory);
    if (align & (align - 1))
        return uf_fail(UF_EINVAL, "uf_malloc_on: argument align is %zu, not a power of two", align);
    int rc = uf_world_check(w);
    if (!rc)
        rc = uf_gpu_refuse_capture(w, "uf_malloc_on");
    if (rc)
        return rc;
    if (bytes == 0) {
        *ptr = NULL;
        return UF_OK;
    }
    pthread_mutex_lock(&w->setup);
    rc = uf_gpu_malloc(w, bytes, align, ptr);
    pthread_mutex_unlock(&w->setup);
    return rc;
}
