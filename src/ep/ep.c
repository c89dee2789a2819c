/* ep.c - the life of an uf_ep: agree on the shape, set aside the memory for the worst case, give it back.
 *
 * Symmetric memory is collective over the world, so all PEs of the world create together, each in its team; the options, compared first on all
 * of them, are refused in the same way everywhere before anything is allocated. Ordinary memory of the worst case is taken here
 * as well, so that dispatch and combine allocate nothing; pages that are never touched cost nothing. */
#include "base/error.h"
#include "ep/private.h"
#include <stdio.h>
#include <stdlib.h>

/* ---------------------------------------------------------------- memory */

/* Takes `n` elements from one failure-counting allocator, so that a list of them needs one check. */
static void *take(int *rc, size_t n, size_t bytes)
{
    void *p = *rc ? NULL : calloc(n ? n : 1, bytes);
    if (!p && !*rc)
        *rc = uf_fail(UF_ENOMEM, "uf_ep_create: no memory for %zu elements of %zu bytes", n, bytes);
    return p;
}

/* The arrays of a handle, taken and released as one list. */
typedef struct room {
    void *at; /* the pointer's place */
    size_t n, bytes;
} room;
enum { N_ROOMS = 25 };

static void list_rooms(const uf_ep *ep, uf_ep_handle *h, room *rooms)
{
    const uf_ep_sizes *z = &ep->sizes;
    size_t pes = (size_t)ep->shape.n_pes, tokens = (size_t)ep->shape.max_tokens, k = (size_t)ep->shape.top_k;
    size_t owners = tokens * (size_t)z->most_owners, got = pes * tokens, local = (size_t)z->n_local;
    size_t expanded = ep->options.order == UF_EP_EXPERT_MAJOR ? (size_t)z->most_rows : 0, rows = expanded ? expanded : got;
    bool own_scales = ep->options.n_scales && (expanded || ep->options.column_scales);
    const room all[N_ROOMS] = {
        {&h->counts, pes * pes, 4},
        {&h->lane_counts, z->lanes_back ? pes * pes : 0, 4},
        {&h->peer_slot, 10 * pes + 3, 4},
        {&h->n_owners, tokens, 1},
        {&h->owner, owners, 2},
        {&h->place, owners, 4},
        {&h->experts, tokens * k, 4},
        {&h->lane_place, tokens * k, 4},
        {&h->lane_back, z->lanes_back ? tokens * k : 0, 4},
        {&h->weights, tokens * k, 4},
        {&h->got_experts, got * k, 4},
        {&h->got_weights, got * k, 4},
        {&h->got_pe, got, 4},
        {&h->got_token, got, 4},
        {&h->got_lane, got, 4},
        {&h->expert_rows, local, 4},
        {&h->expert_first, local + 1, 4},
        {&h->expert_aligned, local, 4},
        {&h->token_rows, expanded ? got * k : 0, 4},
        {&h->row_pe, expanded, 4},
        {&h->row_token, expanded, 4},
        {&h->row_lane, expanded, 4},
        {&h->row_weights, expanded, 4},
        {&h->own_x, expanded, z->room_bytes},
        {&h->own_scales, own_scales ? (rows + 4) * (size_t)ep->options.n_scales : 0, 4},
    };
    memcpy(rooms, all, sizeof all);
}

static int handle_init(uf_ep *ep, uf_ep_handle *h, int slot)
{
    int rc = UF_OK;
    room rooms[N_ROOMS];
    h->ep = ep;
    h->slot = slot;
    list_rooms(ep, h, rooms);
    for (int i = 0; i < N_ROOMS; i++) {
        void *p = rooms[i].n ? take(&rc, rooms[i].n, rooms[i].bytes) : NULL;
        memcpy(rooms[i].at, &p, sizeof p);
    }
    if (rc)
        return rc;
    /* first_from has one element more: the sum of all. */
    int32_t **by_pe[] = {&h->rows_to, &h->first_to, &h->rows_from, &h->row_at,       &h->tag_at,
                         &h->back_at, &h->lanes_to, &h->back_from, &h->back_first_to};
    size_t pes = (size_t)ep->shape.n_pes;
    for (size_t i = 0; i < sizeof by_pe / sizeof *by_pe; i++)
        *by_pe[i] = h->peer_slot + (i + 1) * pes;
    h->first_from = take(&rc, pes + 1, sizeof *h->first_from);
    return rc;
}

static void handle_free(const uf_ep *ep, uf_ep_handle *h)
{
    room rooms[N_ROOMS];
    list_rooms(ep, h, rooms);
    for (int i = 0; i < N_ROOMS; i++) {
        void *p;
        memcpy(&p, rooms[i].at, sizeof p);
        free(p);
    }
    free(h->first_from);
}

/* What this PE needs of its own. */
static int take_own(uf_ep *ep)
{
    int rc = UF_OK;
    size_t pes = (size_t)ep->shape.n_pes, handles = (size_t)ep->sizes.n_handles;
    ep->world_pe = take(&rc, pes, sizeof *ep->world_pe);
    ep->host = take(&rc, pes, sizeof *ep->host);
    ep->everybody = take(&rc, pes, sizeof *ep->everybody);
    ep->peer = take(&rc, pes, sizeof *ep->peer);
    ep->to = take(&rc, pes, sizeof *ep->to);
    ep->next_row = take(&rc, (size_t)ep->sizes.n_local, sizeof *ep->next_row);
    ep->partial = take(&rc, UF_EP_MOST_PARTS, ep->options.rounding == UF_EP_ROUND_PER_HOST ? ep->sizes.back_bytes : 1);
    ep->expected_ready = take(&rc, pes, sizeof *ep->expected_ready);
    ep->expected_data = take(&rc, pes * handles, sizeof *ep->expected_data);
    ep->expected_back = take(&rc, pes * handles, sizeof *ep->expected_back);
    ep->handles = take(&rc, handles + UF_EP_MOST_REFUSED, sizeof *ep->handles);
    for (int i = 0; !rc && i < ep->sizes.n_handles; i++)
        rc = handle_init(ep, &ep->handles[i], i);
    for (int i = 0; !rc && i < UF_EP_MOST_REFUSED; i++)
        ep->handles[ep->sizes.n_handles + i] = (uf_ep_handle){.ep = ep, .slot = -1};
    return rc;
}

/* Finds out who is mapped, and takes staging memory if somebody is not. */
static int find_peers(uf_ep *ep, uf_team *team)
{
    for (int pe = 0; pe < ep->shape.n_pes; pe++) {
        ep->world_pe[pe] = team->pes[pe];
        ep->peer[pe] = pe == ep->me ? ep->base : uf_ptr(ep->world, ep->base, ep->world_pe[pe]);
        ep->n_network += !ep->peer[pe];
        ep->everybody[pe] = 1;
    }
    int rc = UF_OK;
    if (ep->n_network && posix_memalign((void **)&ep->stage, 4096, ep->layout.stage_total))
        rc = uf_fail(UF_ENOMEM, "uf_ep_create: PE %d has no memory for %zu bytes of staging", ep->world->pe,
                     ep->layout.stage_total);
    return rc;
}

static void release_own(uf_ep *ep)
{
    for (int i = 0; ep->handles && i < ep->sizes.n_handles; i++)
        handle_free(ep, &ep->handles[i]);
    void *all[] = {
        ep->everybody,     ep->world_pe,      ep->host,    ep->peer,  ep->to, ep->next_row, ep->partial, ep->expected_ready,
        ep->expected_data, ep->expected_back, ep->handles, ep->stage, ep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---------------------------------------------------------------- create and destroy */

int uf_ep_create(uf_team *team, const uf_ep_options *options, uf_ep **out)
{
    if (!team || !out)
        return uf_fail(UF_EINVAL, "uf_ep_create: argument %s is NULL", !team ? "team" : "ep");
    uf_world *w = team->world;
    int n_pes = uf_team_n_pes(team), rc = uf_ep_agree(w, options, n_pes);
    if (rc)
        return rc;
    uf_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return uf_ep_confirm(w, uf_fail(UF_ENOMEM, "uf_ep_create: no memory for %zu bytes", sizeof *ep));
    ep->world = w;
    ep->options = *options;
    uf_ep_sizes_of(options, n_pes, &ep->sizes);
    uf_ep_lay_out(options, n_pes, &ep->layout);
    ep->shape = (uf_ep_shape){n_pes, options->n_experts, options->top_k, options->max_tokens};
    ep->me = uf_team_pe(team);
    ep->stats = (uf_ep_stats){.size = sizeof ep->stats, .late_pe = {-1, -1}};
    /* Everything collective is called by all PEs or by none: what fails on one PE alone is told to the others first. */
    rc = uf_ep_confirm(w, take_own(ep));
    if (!rc)
        rc = uf_malloc(w, ep->layout.total, 0, (void **)&ep->base);
    if (!rc)
        rc = uf_signal_alloc(w, (size_t)(UF_EP_SLOTS + UF_EP_SLOT_WORDS * ep->sizes.n_handles) * (size_t)n_pes, UF_SIGNAL_DEFAULT,
                             &ep->words);
    if (!rc && options->rounding == UF_EP_ROUND_PER_HOST)
        rc = uf_ep_find_hosts(team, options->node_size, ep->host);
    if (!rc) {
        rc = find_peers(ep, team);
        rc = uf_ep_confirm(w, rc ? rc : uf_ctx_create(w, NULL, &ep->ctx));
    }
    if (!rc) {
        *out = ep;
        return UF_OK;
    }
    char why[UF_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", uf_error_message());
    uf_ctx_destroy(ep->ctx);
    uf_signal_free(w, ep->words);
    uf_free(w, ep->base);
    release_own(ep);
    return uf_error_set(rc, why);
}

int uf_ep_destroy(uf_ep *ep)
{
    if (!ep)
        return UF_OK;
    uf_world *w = ep->world;
    int rc = uf_ctx_destroy(ep->ctx), freed = uf_free(w, ep->base);
    if (!freed)
        freed = uf_signal_free(w, ep->words);
    release_own(ep);
    return rc ? rc : freed;
}

int uf_ep_handle_free(uf_ep_handle *handle)
{
    if (!handle)
        return UF_OK;
    if (handle->state != UF_EP_OPEN)
        return uf_fail(UF_EINVAL, "uf_ep_handle_free on PE %d: the handle %s", handle->ep->world->pe,
                       handle->state == UF_EP_FREE ? "is not open: it was freed before"
                                                   : "has something started on it: finish that first");
    handle->state = UF_EP_FREE;
    return UF_OK;
}

int uf_ep_stats_get(const uf_ep *ep, uf_ep_stats *stats)
{
    if (!ep || !stats)
        return uf_fail(UF_EINVAL, "uf_ep_stats_get: argument %s is NULL", !ep ? "ep" : "stats");
    if (stats->size < sizeof *stats)
        return uf_fail(UF_EINVAL, "uf_ep_stats_get: stats.size is %zu, but this library's uf_ep_stats has %zu bytes", stats->size,
                       sizeof *stats);
    size_t size = stats->size;
    *stats = ep->stats;
    stats->size = size;
    return UF_OK;
}
