/* gpu_window.c - windows over the program's own GPU buffers.
 *
 * Each PE finds out what its buffer is made of (src/cuda/share.c) and gives near peers what they need to map it: descriptors of its pieces to
 * other processes, handles to PEs of this one, an IPC name for plain memory. A buffer may be of another kind, and of other
 * pieces, on every PE. As in all collective calls each step is agreed on, so a buffer that one PE cannot share is refused on all of them
 * with that PE's sentence. */
#include "base/error.h"
#include "world/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool uf_gpu_is_buffer(uf_world *w, const void *ptr)
{
    const char *why;
    if (!uf_gpu_of(w) && !(uf_cuda_in_process(&w->settings) && uf_cuda_available(&w->settings, &why)))
        return false;
    return uf_cuda_is_gpu(ptr);
}

/* What PEs tell each other of their buffers. */
typedef struct offer {
    uf_cuda_buffer buffer;
    uint64_t pieces; /* for PEs of the same process: the owner's list, which stays until all have mapped */
} offer;

typedef struct opening {
    uf_world *w;
    struct uf_gpu *g;
    uf_cuda_piece *pieces;
    offer mine, *all;
    int *counts;
    uf_gpu_parcel **parcels; /* [n_pes] lists of those that come as descriptors */
} opening;

static bool comes_by_descriptor(const opening *o, int pe)
{
    return pe != o->w->pe && o->g->peers[pe].near && !o->w->peers[pe].same_process && o->all[pe].buffer.n_pieces > 0;
}

static bool others_are_near(const uf_world *w, const struct uf_gpu *g)
{
    for (int pe = 0; pe < w->n_pes; pe++)
        if (pe != w->pe && g->peers[pe].near && !w->peers[pe].same_process)
            return true;
    return false;
}

static int make_room(opening *o)
{
    size_t n = (size_t)o->w->n_pes;
    o->all = calloc(n, sizeof *o->all);
    o->counts = calloc(n, sizeof *o->counts);
    o->parcels = calloc(n, sizeof *o->parcels);
    return o->all && o->counts && o->parcels
               ? UF_OK
               : uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", o->w->pe, o->w->n_pes);
}

static int make_parcels(opening *o)
{
    for (int pe = 0; pe < o->w->n_pes; pe++) {
        if (!comes_by_descriptor(o, pe))
            continue;
        int n = o->all[pe].buffer.n_pieces;
        o->parcels[pe] = calloc((size_t)n, sizeof *o->parcels[pe]);
        if (!o->parcels[pe])
            return uf_fail(UF_ENOMEM, "PE %d: no memory for the %d pieces of PE %d's buffer", o->w->pe, n, pe);
        for (int i = 0; i < n; i++)
            o->parcels[pe][i].share.fd = -1;
        o->counts[pe] = n;
    }
    return UF_OK;
}

static int map_pieces(opening *o, int pe, uf_cuda_mapping *m)
{
    const uf_cuda_buffer *b = &o->all[pe].buffer;
    size_t n = (size_t)b->n_pieces;
    uf_cuda_share *shares = calloc(n, sizeof *shares);
    size_t *bytes = calloc(n, sizeof *bytes);
    int rc =
        shares && bytes ? UF_OK : uf_fail(UF_ENOMEM, "PE %d: no memory for the %zu pieces of PE %d's buffer", o->w->pe, n, pe);
    const uf_cuda_piece *pieces = (const uf_cuda_piece *)(uintptr_t)o->all[pe].pieces;
    bool by_descriptor = comes_by_descriptor(o, pe);
    for (size_t i = 0; !rc && i < n; i++) {
        shares[i] = by_descriptor ? o->parcels[pe][i].share : (uf_cuda_share){-1, pieces[i].share.handle};
        bytes[i] = by_descriptor ? o->parcels[pe][i].bytes : pieces[i].bytes;
    }
    if (!rc)
        rc = uf_cuda_buffer_map(o->g->device, b, shares, bytes, m);
    free(shares);
    free(bytes);
    return rc;
}

static int map_peer(opening *o, int pe, uf_cuda_mapping *m)
{
    const uf_cuda_buffer *b = &o->all[pe].buffer;
    if (b->n_pieces)
        return map_pieces(o, pe, m);
    if (!o->w->peers[pe].same_process)
        return uf_cuda_buffer_map(o->g->device, b, NULL, NULL, m);
    m->at = (unsigned char *)(uintptr_t)b->address;
    return uf_cuda_allow_peer(o->g->device, &o->g->peers[pe].facts);
}

static int map_all(opening *o, uf_region *r)
{
    int rc = make_parcels(o);
    if (!rc)
        rc = uf_gpu_exchange(o->w, o->g, o->pieces, o->mine.buffer.n_pieces, o->counts, o->parcels);
    for (int pe = 0; !rc && pe < o->w->n_pes; pe++) {
        if (pe == o->w->pe || !o->g->peers[pe].near)
            continue;
        rc = map_peer(o, pe, &r->gpu->mappings[pe]);
        r->addresses[pe] = (uint64_t)(uintptr_t)r->gpu->mappings[pe].at;
    }
    return rc;
}

static void close_opening(opening *o)
{
    for (int pe = 0; o->parcels && pe < o->w->n_pes; pe++) {
        for (int i = 0; o->parcels[pe] && i < o->counts[pe]; i++)
            if (o->parcels[pe][i].share.fd >= 0)
                close(o->parcels[pe][i].share.fd);
        free(o->parcels[pe]);
    }
    uf_cuda_buffer_release(o->pieces, o->mine.buffer.n_pieces);
    free(o->parcels);
    free(o->counts);
    free(o->all);
}

static int make_window(uf_world *w, uf_region *r)
{
    r->gpu = calloc(1, sizeof *r->gpu);
    if (r->gpu)
        r->gpu->mappings = calloc((size_t)w->n_pes, sizeof *r->gpu->mappings);
    return r->gpu && r->gpu->mappings ? UF_OK
                                      : uf_fail(UF_ENOMEM, "PE %d: no memory for the mappings of %d PEs", w->pe, w->n_pes);
}

int uf_gpu_window_open(uf_world *w, uf_region *r)
{
    int rc = uf_gpu_open(w);
    if (rc)
        return rc;
    opening o = {.w = w, .g = uf_gpu_of(w)};
    memset(&o.mine, 0, sizeof o.mine);
    rc = make_window(w, r);
    if (!rc)
        rc = make_room(&o);
    if (!rc && (rc = uf_cuda_buffer_share(o.g->device, r->base, r->bytes, others_are_near(w, o.g), &o.mine.buffer, &o.pieces))) {
        char why[360];
        snprintf(why, sizeof why, "%.359s", uf_error_message());
        rc = uf_fail(rc, "PE %d: uf_register: %s", w->pe, why);
    }
    o.mine.pieces = (uint64_t)(uintptr_t)o.pieces;
    rc = uf_memory_agree(w, "uf_register shared", r->bytes, r->index, rc);
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, &o.mine, sizeof o.mine, o.all, w->timeout_ns);
    if (!rc) {
        rc = map_all(&o, r);
        r->addresses[w->pe] = (uint64_t)(uintptr_t)r->base;
        /* Also a barrier: nobody gives its pieces back before all have mapped them. */
        if (!rc)
            rc = uf_gpu_show_window(w, o.g, r);
        rc = uf_memory_agree(w, "uf_register mapped", r->bytes, r->index, rc);
    }
    close_opening(&o);
    if (rc)
        uf_gpu_window_close(w, r);
    return rc;
}

void uf_gpu_window_close(uf_world *w, uf_region *r)
{
    struct uf_gpu *g = uf_gpu_of(w);
    if (!r->gpu)
        return;
    uf_gpu_hide_window(g, r);
    if (g->writer)
        uf_cuda_words_forget(g->writer, r->base, r->bytes);
    for (int pe = 0; r->gpu->mappings && pe < w->n_pes; pe++)
        if (pe != w->pe)
            uf_cuda_buffer_unmap(g->device, &r->gpu->mappings[pe]);
    free(r->gpu->mappings);
    free(r->gpu);
    r->gpu = NULL;
}
