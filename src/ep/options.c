/* options.c - what the PEs of an uf_ep agree on before anything is allocated, and how they divide their memory.
 *
 * A wrong option, or one that differs between PEs, is refused on all of them with the same sentence: all PEs exchange their terms, and
 * each reads them in the same order. The division of memory is arithmetic on the options, the same everywhere. */
#include "base/error.h"
#include "ep/private.h"
#include <stdio.h>
#include <stdlib.h>

enum { MAX_HANDLES = 64, DEFAULT_HANDLES = 2, MAX_SCALES = 65536, MAX_ALIGNMENT = 65536 };

static size_t pad(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static const size_t element_bytes[] = {[UF_EP_BYTES] = 1, [UF_EP_BF16] = 2, [UF_EP_F32] = 4, [UF_EP_FP8] = 1};

/* What PEs compare; plain numbers, zeroed before use. */
static const char *const term_names[] = {"type",        "hidden",    "n_experts",      "top_k",    "max_tokens",
                                         "max_handles", "order",     "alignment",      "n_scales", "rounding",
                                         "node_size",   "checksums", "the team's size"};
enum { N_TERMS = sizeof term_names / sizeof *term_names };

typedef struct terms {
    int64_t term[N_TERMS];
    int64_t rc;
    char why[192];
} terms;

static int options_fail(const char *field, long long value, const char *limit)
{
    return uf_fail(UF_EINVAL, "uf_ep_create: options.%s is %lld: %s", field, value, limit);
}

static int check_layout(const uf_ep_options *o, int n_pes)
{
    if (o->order != UF_EP_FLAT && o->order != UF_EP_EXPERT_MAJOR)
        return options_fail("order", o->order, "UF_EP_FLAT or UF_EP_EXPERT_MAJOR");
    if (o->alignment < 0 || o->alignment > MAX_ALIGNMENT)
        return options_fail("alignment", o->alignment, "1 to 65536 are supported, 0 means 1");
    if (o->n_scales < 0 || o->n_scales > MAX_SCALES)
        return options_fail("n_scales", o->n_scales, "0 to 65536 are supported");
    if (o->rounding != UF_EP_ROUND_ONCE && o->rounding != UF_EP_ROUND_PER_PE && o->rounding != UF_EP_ROUND_PER_HOST)
        return options_fail("rounding", o->rounding, "UF_EP_ROUND_ONCE, UF_EP_ROUND_PER_PE or UF_EP_ROUND_PER_HOST");
    if (o->node_size < 0 || (o->node_size > 0 && n_pes % o->node_size))
        return options_fail("node_size", o->node_size, "it must divide the number of PEs; 0: as the PEs really lie");
    uf_ep_sizes sizes;
    uf_ep_sizes_of(o, n_pes, &sizes);
    if (sizes.most_rows > INT32_MAX)
        return uf_fail(
            UF_EINVAL,
            "uf_ep_create: max_tokens %d of %d PEs with %d lanes, aligned to %d, may give %lld rows: it must stay below 2^31",
            o->max_tokens, n_pes, o->top_k, o->alignment, (long long)sizes.most_rows);
    return UF_OK;
}

static int check_options(const uf_ep_options *o, int n_pes)
{
    if (!o)
        return uf_fail(UF_EINVAL, "uf_ep_create: argument options is NULL");
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL, "uf_ep_create: options.size is %zu, but this library's uf_ep_options has %zu bytes", o->size,
                       sizeof *o);
    if (o->type != UF_EP_BYTES && o->type != UF_EP_BF16 && o->type != UF_EP_F32 && o->type != UF_EP_FP8)
        return uf_fail(UF_EINVAL, "uf_ep_create: options.type is %d, not one of UF_EP_BYTES, UF_EP_BF16, UF_EP_F32 and UF_EP_FP8",
                       (int)o->type);
    size_t element = element_bytes[o->type];
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
    int rc = uf_ep_shape_check(&shape);
    return rc ? rc : check_layout(o, n_pes);
}

void uf_ep_sizes_of(const uf_ep_options *o, int n_pes, uf_ep_sizes *s)
{
    int n_local = o->n_experts / n_pes, alignment = o->alignment ? o->alignment : 1;
    int64_t tokens = (int64_t)n_pes * o->max_tokens, lanes = o->top_k < n_local ? o->top_k : n_local;
    *s = (uf_ep_sizes){
        .n_handles = o->max_handles ? o->max_handles : DEFAULT_HANDLES,
        .n_local = n_local,
        .alignment = alignment,
        .most_owners = o->top_k < n_pes ? o->top_k : n_pes,
        .lanes_back = o->order == UF_EP_EXPERT_MAJOR && o->rounding == UF_EP_ROUND_ONCE,
        .wire_scales = o->n_scales + (o->checksums ? 2 : 0),
        .row_bytes = o->hidden * element_bytes[o->type],
        .back_bytes = o->hidden * (o->type == UF_EP_FP8 ? 2 : element_bytes[o->type]),
    };
    s->room_bytes = s->row_bytes > s->back_bytes ? s->row_bytes : s->back_bytes;
    s->lane_bytes = 4 * (size_t)o->top_k;
    s->tag_bytes = s->lane_bytes + (o->checksums ? 8 * (size_t)(s->lanes_back ? o->top_k : 1) : 0);
    s->most_rows = tokens;
    if (o->order == UF_EP_EXPERT_MAJOR)
        s->most_rows = tokens * lanes + (int64_t)(alignment - 1) * n_local;
    s->most_parts = s->lanes_back ? o->top_k : s->most_owners;
}

void uf_ep_lay_out(const uf_ep_options *o, int n_pes, uf_ep_layout *out)
{
    uf_ep_sizes s;
    uf_ep_sizes_of(o, n_pes, &s);
    size_t pes = (size_t)n_pes, k = (size_t)o->top_k, tokens = (size_t)o->max_tokens, owners = (size_t)s.most_owners;
    size_t parts = (size_t)s.most_parts, scales = 4 * (size_t)s.wire_scales;
    bool combines = o->type != UF_EP_BYTES;
    uf_ep_layout l = {0};
    l.note_head = pad(sizeof(uf_ep_note) + (s.lanes_back ? 8 : 4) * pes);
    l.note_bytes = pad(l.note_head + tokens * (4 + 8 * k));
    l.slots = UF_EP_NOTES_KEPT * pes * l.note_bytes;
    l.scales = pad(pes * tokens * s.room_bytes);
    l.back = l.scales + pad(pes * tokens * scales);
    l.tags = l.back + (combines ? pad(parts * tokens * s.back_bytes) : 0);
    l.slot_bytes = l.tags + (combines ? pes * 128 + pad(owners * tokens * s.tag_bytes) : 0);
    l.total = l.slots + (size_t)s.n_handles * l.slot_bytes;
    l.stage_rows = pes * (l.note_head + 64) + pad(owners * tokens * (4 + 8 * k));
    l.stage_scales = l.stage_rows + pad(owners * tokens * s.room_bytes);
    l.stage_tags = l.stage_scales + pad(owners * tokens * scales);
    l.stage_back = l.stage_tags + (combines ? pes * 128 + pad(pes * tokens * s.tag_bytes) : 0);
    /* Rows that cannot be sent from where the caller has them: those of expert-major order. */
    size_t gathered = o->order == UF_EP_EXPERT_MAJOR && combines ? (s.lanes_back ? (size_t)s.most_rows : pes * tokens) : 0;
    l.stage_total = l.stage_back + pad(gathered * s.back_bytes);
    *out = l;
}

size_t uf_ep_bytes(const uf_ep_options *options, int n_pes)
{
    uf_ep_layout layout;
    if (check_options(options, n_pes))
        return 0;
    uf_ep_lay_out(options, n_pes, &layout);
    return layout.total;
}

/* Compares the options of all PEs of the world, whose memory is collective; a PE whose own are wrong says so to all. */
int uf_ep_agree(uf_world *w, const uf_ep_options *o, int n_pes)
{
    terms mine = {.term = {[N_TERMS - 1] = n_pes}};
    int rc = check_options(o, n_pes);
    if (rc) {
        mine.rc = rc;
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    } else {
        mine.term[0] = o->type, mine.term[1] = (int64_t)o->hidden, mine.term[2] = o->n_experts, mine.term[3] = o->top_k;
        mine.term[4] = o->max_tokens, mine.term[5] = o->max_handles, mine.term[6] = o->order, mine.term[7] = o->alignment;
        mine.term[8] = o->n_scales, mine.term[9] = o->rounding, mine.term[10] = o->node_size, mine.term[11] = o->checksums;
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
        if (t->rc)
            rc = uf_fail((int)t->rc, "PE %d: %.191s", pe, t->why);
        for (size_t i = 0; !rc && i < N_TERMS; i++)
            if (t->term[i] != mine.term[i])
                rc = uf_fail(UF_EMISMATCH, "uf_ep_create: %s is %lld on PE %d and %lld on PE %d: it must be the same everywhere",
                             term_names[i], (long long)t->term[i], pe, (long long)mine.term[i], w->pe);
    }
    free(all);
    return rc;
}

/* Whether all PEs have what they need: nobody may dispatch to one that has not. */
int uf_ep_confirm(uf_world *w, int rc)
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

int uf_ep_find_hosts(uf_team *team, int node_size, int32_t *host)
{
    uf_world *w = team->world;
    int n = uf_team_n_pes(team), rc = UF_OK;
    int32_t mine = w->pe, *all = malloc((size_t)w->n_pes * sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the hosts of %d PEs", w->pe, w->n_pes);
    /* A host goes by the number of its first PE. */
    for (int pe = w->pe - 1; !rc && pe >= 0; pe--) {
        uf_path_info path = {.size = sizeof path};
        rc = uf_world_path(w, pe, &path);
        if (!rc && path.same_host)
            mine = pe;
    }
    pthread_mutex_lock(&w->setup);
    int exchanged = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    pthread_mutex_unlock(&w->setup);
    rc = rc ? rc : exchanged;
    for (int pe = 0; !rc && pe < n; pe++)
        host[pe] = node_size ? pe / node_size : all[team->pes[pe]];
    free(all);
    return rc;
}
