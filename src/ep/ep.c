/* ep.c - the life of an uf_ep: agree on the shape, set aside the memory for the worst case, give it back.
 *
 * Symmetric memory is collective over the world, so all PEs of the world create together, each in its team; the options, compared first on all
 * of them, are refused in the same way everywhere before anything is allocated. Ordinary memory of the worst case is taken here
 * as well, so that dispatch and combine allocate nothing; pages that are never touched cost nothing. */
#include "base/error.h"
#include "ep/private.h"
#include <stdio.h>
#include <stdlib.h>

enum { MAX_HANDLES = 64, DEFAULT_HANDLES = 2 };

static size_t pad(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---------------------------------------------------------------- options */

/* What PEs compare; plain numbers, zeroed before use. */
typedef struct terms {
    int64_t type, hidden, n_experts, top_k, max_tokens, n_handles, n_pes;
    int64_t rc;
    char why[192];
} terms;

static int check_options(const uf_ep_options *o, int n_pes)
{
    if (!o)
        return uf_fail(UF_EINVAL, "uf_ep_create: argument options is NULL");
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL, "uf_ep_create: options.size is %zu, but this library's uf_ep_options has %zu bytes", o->size,
                       sizeof *o);
    if (o->type != UF_EP_BYTES && o->type != UF_EP_BF16 && o->type != UF_EP_F32)
        return uf_fail(UF_EINVAL, "uf_ep_create: options.type is %d, not one of UF_EP_BYTES, UF_EP_BF16 and UF_EP_F32",
                       (int)o->type);
    size_t element = o->type == UF_EP_BF16 ? 2 : o->type == UF_EP_F32 ? 4 : 1;
    if (o->hidden == 0 || o->hidden > ((size_t)1 << 30) || o->hidden * element % 16)
        return uf_fail(
            UF_EINVAL,
            "uf_ep_create: options.hidden is %zu elements of %zu bytes: a row is a positive multiple of 16 bytes, and at most "
            "2^30 elements",
            o->hidden, element);
    if (o->max_handles < 0 || o->max_handles > MAX_HANDLES)
        return uf_fail(UF_EINVAL, "uf_ep_create: options.max_handles is %d: 1 to %d are supported, 0 means %d", o->max_handles,
                       MAX_HANDLES, DEFAULT_HANDLES);
    uf_ep_shape shape = {n_pes, o->n_experts, o->top_k, o->max_tokens};
    return uf_ep_shape_check(&shape);
}

static uf_ep_layout lay_out(const uf_ep_options *o, int n_pes)
{
    size_t pes = (size_t)n_pes, k = (size_t)o->top_k, tokens = (size_t)o->max_tokens;
    size_t owners = k < pes ? k : pes, handles = (size_t)(o->max_handles ? o->max_handles : DEFAULT_HANDLES);
    uf_ep_layout l = {.row_bytes = o->hidden * (o->type == UF_EP_BF16 ? 2 : o->type == UF_EP_F32 ? 4 : 1), .lane_bytes = 4 * k};
    l.note_head = pad(sizeof(uf_ep_note) + 4 * pes);
    l.note_bytes = pad(l.note_head + tokens * (4 + 8 * k));
    l.slots = 2 * pes * l.note_bytes;
    l.back = pad(pes * tokens * l.row_bytes);
    bool combines = o->type != UF_EP_BYTES;
    l.tags = l.back + (combines ? pad(owners * tokens * l.row_bytes) : 0);
    l.slot_bytes = l.tags + (combines ? pes * 128 + pad(owners * tokens * l.lane_bytes) : 0);
    l.total = l.slots + handles * l.slot_bytes;
    l.stage_rows = pes * (l.note_head + 64) + pad(owners * tokens * (4 + 8 * k));
    l.stage_weights = l.stage_rows + pad(owners * tokens * l.row_bytes);
    l.stage_total = l.stage_weights + pes * 128 + pad(pes * tokens * l.lane_bytes);
    return l;
}

size_t uf_ep_bytes(const uf_ep_options *options, int n_pes)
{
    return check_options(options, n_pes) ? 0 : lay_out(options, n_pes).total;
}

/* Compares the options of all PEs of the world, whose memory is collective; a PE whose own are wrong says so to all. */
static int agree(uf_world *w, const uf_ep_options *o, int n_pes)
{
    terms mine = {.n_pes = n_pes};
    int rc = check_options(o, n_pes);
    if (rc) {
        mine.rc = rc;
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    } else {
        mine.type = o->type, mine.hidden = (int64_t)o->hidden, mine.n_experts = o->n_experts, mine.top_k = o->top_k;
        mine.max_tokens = o->max_tokens, mine.n_handles = o->max_handles;
    }
    terms *all = malloc((size_t)w->n_pes * sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the options of %d PEs", w->pe, w->n_pes);
    pthread_mutex_lock(&w->setup);
    int exchanged = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    pthread_mutex_unlock(&w->setup);
    if (exchanged)
        rc = exchanged;
    else if (rc)
        uf_error_set(rc, mine.why);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        const terms *t = &all[pe];
        const struct {
            const char *field;
            int64_t theirs, ours;
        } f[] = {{"type", t->type, mine.type},
                 {"hidden", t->hidden, mine.hidden},
                 {"n_experts", t->n_experts, mine.n_experts},
                 {"top_k", t->top_k, mine.top_k},
                 {"max_tokens", t->max_tokens, mine.max_tokens},
                 {"max_handles", t->n_handles, mine.n_handles},
                 {"the team's size", t->n_pes, mine.n_pes}};
        if (t->rc)
            rc = uf_fail((int)t->rc, "PE %d: %.191s", pe, t->why);
        for (size_t i = 0; !rc && i < sizeof f / sizeof *f; i++)
            if (f[i].theirs != f[i].ours)
                rc = uf_fail(UF_EMISMATCH, "uf_ep_create: %s is %lld on PE %d and %lld on PE %d: it must be the same everywhere",
                             f[i].field, (long long)f[i].theirs, pe, (long long)f[i].ours, w->pe);
    }
    free(all);
    return rc;
}

/* ---------------------------------------------------------------- memory */

/* Takes `n` elements from one failure-counting allocator, so that a list of them needs one check. */
static void *take(int *rc, size_t n, size_t bytes)
{
    void *p = *rc ? NULL : calloc(n ? n : 1, bytes);
    if (!p && !*rc)
        *rc = uf_fail(UF_ENOMEM, "uf_ep_create: no memory for %zu elements of %zu bytes", n, bytes);
    return p;
}

static int handle_init(uf_ep *ep, uf_ep_handle *h, int slot)
{
    int rc = UF_OK;
    size_t pes = (size_t)ep->shape.n_pes, tokens = (size_t)ep->shape.max_tokens, k = (size_t)ep->shape.top_k;
    size_t owners = tokens * (size_t)ep->most_owners, rows = pes * tokens;
    h->ep = ep;
    h->slot = slot;
    h->counts = take(&rc, pes * pes, sizeof *h->counts);
    h->peer_slot = take(&rc, pes * 7, sizeof *h->peer_slot);
    h->n_owners = take(&rc, tokens, sizeof *h->n_owners);
    h->owner = take(&rc, owners, sizeof *h->owner);
    h->place = take(&rc, owners, sizeof *h->place);
    h->experts = take(&rc, tokens * k, sizeof *h->experts);
    h->lane_place = take(&rc, tokens * k, sizeof *h->lane_place);
    h->weights = take(&rc, tokens * k, sizeof *h->weights);
    h->got_experts = take(&rc, rows * k, sizeof *h->got_experts);
    h->got_weights = take(&rc, rows * k, sizeof *h->got_weights);
    h->got_pe = take(&rc, rows, sizeof *h->got_pe);
    h->got_token = take(&rc, rows, sizeof *h->got_token);
    h->expert_rows = take(&rc, (size_t)ep->n_local, sizeof *h->expert_rows);
    if (rc)
        return rc;
    int32_t **by_pe[] = {&h->rows_to, &h->first_to, &h->rows_from, &h->first_from, &h->row_at, &h->back_at};
    for (size_t i = 0; i < sizeof by_pe / sizeof *by_pe; i++)
        *by_pe[i] = h->peer_slot + (i + 1) * pes;
    return UF_OK;
}

static void handle_free(uf_ep_handle *h)
{
    void *all[] = {h->counts,  h->peer_slot,   h->n_owners,    h->owner,  h->place,     h->experts,    h->lane_place,
                   h->weights, h->got_experts, h->got_weights, h->got_pe, h->got_token, h->expert_rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What this PE needs of its own. */
static int take_own(uf_ep *ep)
{
    int rc = UF_OK;
    size_t pes = (size_t)ep->shape.n_pes;
    ep->world_pe = take(&rc, pes, sizeof *ep->world_pe);
    ep->peer = take(&rc, pes, sizeof *ep->peer);
    ep->to = take(&rc, pes, sizeof *ep->to);
    ep->expected_data = take(&rc, pes, sizeof *ep->expected_data);
    ep->expected_ready = take(&rc, pes, sizeof *ep->expected_ready);
    ep->expected_back = take(&rc, pes * (size_t)ep->n_handles, sizeof *ep->expected_back);
    ep->handles = take(&rc, (size_t)ep->n_handles, sizeof *ep->handles);
    for (int i = 0; !rc && i < ep->n_handles; i++)
        rc = handle_init(ep, &ep->handles[i], i);
    return rc;
}

/* Finds out who is mapped, and takes staging memory if somebody is not. */
static int find_peers(uf_ep *ep, uf_team *team)
{
    for (int pe = 0; pe < ep->shape.n_pes; pe++) {
        ep->world_pe[pe] = team->pes[pe];
        ep->peer[pe] = pe == ep->me ? ep->base : uf_ptr(ep->world, ep->base, ep->world_pe[pe]);
        ep->n_network += !ep->peer[pe];
    }
    int rc = UF_OK;
    if (ep->n_network && posix_memalign((void **)&ep->stage, 4096, ep->layout.stage_total))
        rc = uf_fail(UF_ENOMEM, "uf_ep_create: PE %d has no memory for %zu bytes of staging", ep->world->pe,
                     ep->layout.stage_total);
    return rc;
}

/* Whether all PEs have what they need: nobody may dispatch to one that has not. */
static int confirm(uf_world *w, int rc)
{
    terms mine = {.rc = rc};
    if (rc)
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    terms *all = malloc((size_t)w->n_pes * sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the answers of %d PEs", w->pe, w->n_pes);
    pthread_mutex_lock(&w->setup);
    int exchanged = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    pthread_mutex_unlock(&w->setup);
    for (int pe = 0; !exchanged && pe < w->n_pes; pe++)
        if (all[pe].rc)
            exchanged = uf_fail((int)all[pe].rc, "PE %d: %.191s", pe, all[pe].why);
    free(all);
    return exchanged;
}

static void release_own(uf_ep *ep)
{
    for (int i = 0; ep->handles && i < ep->n_handles; i++)
        handle_free(&ep->handles[i]);
    void *all[] = {ep->world_pe, ep->peer,  ep->to, ep->expected_data, ep->expected_ready, ep->expected_back,
                   ep->handles,  ep->stage, ep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---------------------------------------------------------------- create and destroy */

int uf_ep_create(uf_team *team, const uf_ep_options *options, uf_ep **out)
{
    if (!team || !out)
        return uf_fail(UF_EINVAL, "uf_ep_create: argument %s is NULL", !team ? "team" : "ep");
    uf_world *w = team->world;
    int n_pes = uf_team_n_pes(team), rc = agree(w, options, n_pes);
    if (rc)
        return rc;
    uf_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return confirm(w, uf_fail(UF_ENOMEM, "uf_ep_create: no memory for %zu bytes", sizeof *ep));
    ep->world = w;
    ep->type = options->type;
    ep->layout = lay_out(options, n_pes);
    ep->shape = (uf_ep_shape){n_pes, options->n_experts, options->top_k, options->max_tokens};
    ep->me = uf_team_pe(team);
    ep->n_handles = options->max_handles ? options->max_handles : DEFAULT_HANDLES;
    ep->n_local = options->n_experts / n_pes;
    ep->most_owners = options->top_k < n_pes ? options->top_k : n_pes;
    ep->stats = (uf_ep_stats){.size = sizeof ep->stats, .late_pe = {-1, -1}};
    /* Everything collective is called by all PEs or by none: what fails on one PE alone is told to the others first. */
    rc = confirm(w, take_own(ep));
    if (!rc)
        rc = uf_malloc(w, ep->layout.total, 0, (void **)&ep->base);
    if (!rc)
        rc = uf_signal_alloc(w, (size_t)(UF_EP_BACK + ep->n_handles) * (size_t)n_pes, UF_SIGNAL_DEFAULT, &ep->words);
    if (!rc) {
        rc = find_peers(ep, team);
        rc = confirm(w, rc ? rc : uf_ctx_create(w, NULL, &ep->ctx));
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
    if (!handle->open)
        return uf_fail(UF_EINVAL, "uf_ep_handle_free on PE %d: the handle is not open: it was freed before",
                       handle->ep->world->pe);
    handle->open = false;
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
