/* dispatch.c - tokens go to the PEs that own their experts: one exchange of notes, then the rows, straight to their final place.
 *
 * Step by step, on every PE alike:
 *   notes   To each PE: my counts for all PEs, whether my arguments are in order, which slot I receive in, and, for the rows that will
 *           come to it, token, experts and weights. One message with one weak signal, since all of it is one block.
 *   layout  With everybody's counts each PE knows every row's final place: sources in order, tokens in order.
 *   rows    To a mapped peer: each row is copied to its place, then one bare signal. To a network peer: rows are packed into one block
 *           here and put with one weak signal. Rows and their descriptions are two messages because the rows of all sources must be
 *           contiguous at the receiver; the descriptions ride on the notes, which must be sent anyway.
 *   wait    For the rows of all sources that have any. Nothing is copied at the receiver but the descriptions.
 * An argument that is wrong on one PE is refused on all with the same sentence, before any row has moved. */
#include "base/error.h"
#include "ep/private.h"
#include "ep/reduce.h"

/* Rows of one dispatch from which on copies go past the cache: the receiver's caches could not hold them anyway. */
enum { STREAM_BYTES = 1 << 20 };

/* ---------------------------------------------------------------- notes */

/* My routing: who owns which lane of which token, and the place of each row among mine to its owner. */
static void plan(uf_ep *ep, uf_ep_handle *h, const int32_t *experts, const float *weights, int n_tokens)
{
    size_t k = (size_t)ep->shape.top_k, lanes = (size_t)n_tokens * k;
    h->n_tokens = n_tokens;
    if (lanes)
        memcpy(h->experts, experts, lanes * sizeof *experts);
    if (lanes && weights)
        memcpy(h->weights, weights, lanes * sizeof *weights);
    for (size_t i = 0; !weights && i < lanes; i++)
        h->weights[i] = 1;
    uf_ep_plan_slots(&ep->shape, h->experts, n_tokens, h->rows_to, h->lane_place);
    uf_ep_plan_prefix(&ep->shape, h->rows_to, h->first_to);
    for (int i = 0; i < n_tokens; i++) {
        int owners[32], lane[32], n = uf_ep_plan_owners(&ep->shape, h->experts + (size_t)i * k, owners, lane);
        size_t at = (size_t)i * (size_t)ep->most_owners;
        h->n_owners[i] = (uint8_t)n;
        for (int o = 0; o < n; o++) {
            h->owner[at + (size_t)o] = (int16_t)owners[o];
            h->place[at + (size_t)o] = h->lane_place[(size_t)i * k + (size_t)lane[o]];
        }
    }
}

/* Where the note to `pe` is written: in its own memory if that is mapped, else where it will be sent from. */
static unsigned char *note_to(const uf_ep *ep, const uf_ep_handle *h, int parity, int pe)
{
    if (ep->peer[pe])
        return ep->peer[pe] + uf_ep_note_at(ep, parity, ep->me);
    size_t before = h ? (size_t)h->first_to[pe] * (4 + 8 * (size_t)ep->shape.top_k) : 0;
    return ep->stage + (size_t)pe * (ep->layout.note_head + 64) + (before + 63) / 64 * 64;
}

static void describe_rows(uf_ep *ep, const uf_ep_handle *h)
{
    int k = ep->shape.top_k;
    for (int i = 0; i < h->n_tokens; i++) {
        const int32_t *e = h->experts + (size_t)i * (size_t)k;
        const float *w = h->weights + (size_t)i * (size_t)k;
        for (int o = 0; o < h->n_owners[i]; o++) {
            size_t at = (size_t)i * (size_t)ep->most_owners + (size_t)o;
            int d = h->owner[at], place = h->place[at], first = d * ep->n_local;
            int32_t n = h->rows_to[d], *local = uf_ep_note_experts(ep, ep->to[d], n) + (size_t)place * (size_t)k;
            uf_ep_note_tokens(ep, ep->to[d])[place] = i;
            for (int j = 0; j < k; j++)
                local[j] = e[j] >= first && e[j] < first + ep->n_local ? e[j] - first : -1;
            memcpy(uf_ep_note_weights(ep, ep->to[d], n) + (size_t)place * (size_t)k, w, (size_t)k * sizeof *w);
        }
    }
}

/* h NULL: this PE refuses, `fault` says why. */
static int send_notes(uf_ep *ep, const uf_ep_handle *h, const uf_ep_fault *fault, int parity)
{
    uf_ep_note head = {.step = ep->step, .fault = *fault, .slot = h ? h->slot : -1};
    for (int d = 0; d < ep->shape.n_pes; d++) {
        ep->to[d] = note_to(ep, h, parity, d);
        memcpy(ep->to[d], &head, sizeof head);
        if (h)
            memcpy(uf_ep_note_counts(ep->to[d]), h->rows_to, (size_t)ep->shape.n_pes * sizeof *h->rows_to);
    }
    if (h)
        describe_rows(ep, h);
    int rc = UF_OK;
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        size_t bytes = uf_ep_note_size(ep, h ? h->rows_to[d] : 0);
        if (ep->peer[d]) {
            uf_ep_count_copy(ep, bytes);
            rc = uf_ep_signal(ep, UF_EP_NOTES + parity, 1, d);
        } else {
            rc = uf_ep_put(ep, uf_ep_note_at(ep, parity, ep->me), ep->to[d], bytes, UF_EP_NOTES + parity, 1, d);
        }
    }
    return rc;
}

/* Refuses what some PE refused, with its words: the first such PE, so that all say the same. */
static int read_heads(uf_ep *ep, int parity)
{
    for (int s = 0; s < ep->shape.n_pes; s++) {
        uf_ep_note head;
        memcpy(&head, ep->base + uf_ep_note_at(ep, parity, s), sizeof head);
        if (head.step != ep->step)
            return uf_ep_break(
                ep, uf_fail(UF_EMISMATCH,
                            "PE %d is in dispatch %llu, PE %d in dispatch %llu: all PEs of the team must make the same calls",
                            ep->world_pe[s], (unsigned long long)head.step, ep->world->pe, (unsigned long long)ep->step));
        int rc = uf_ep_fault_fail(&ep->shape, ep->world_pe[s], &head.fault);
        if (rc)
            return rc;
    }
    return UF_OK;
}

/* Takes everybody's counts, which must be such as a correct peer sends: they decide where rows are written. */
static int read_counts(uf_ep *ep, uf_ep_handle *h, int parity)
{
    size_t n = (size_t)ep->shape.n_pes;
    for (size_t s = 0; s < n; s++) {
        unsigned char *note = ep->base + uf_ep_note_at(ep, parity, (int)s);
        int32_t *counts = h->counts + s * n;
        uf_ep_note head;
        memcpy(&head, note, sizeof head);
        memcpy(counts, uf_ep_note_counts(note), n * sizeof *counts);
        int64_t sum = 0;
        bool sound = head.slot >= 0 && head.slot < ep->n_handles;
        for (size_t d = 0; d < n; d++) {
            sound = sound && counts[d] >= 0 && counts[d] <= ep->shape.max_tokens;
            sum += counts[d];
        }
        if (!sound || sum > (int64_t)ep->shape.max_tokens * ep->most_owners)
            return uf_fail(UF_EINTERNAL, "PE %d sent counts that cannot be: slot %d, %lld rows", ep->world_pe[s], head.slot,
                           (long long)sum);
        h->peer_slot[s] = head.slot;
    }
    return UF_OK;
}

/* ---------------------------------------------------------------- layout */

static void lay_out_rows(uf_ep *ep, uf_ep_handle *h)
{
    int n = ep->shape.n_pes;
    h->n_rows = 0;
    for (int pe = 0; pe < n; pe++) {
        h->rows_from[pe] = h->counts[(size_t)pe * (size_t)n + (size_t)ep->me];
        h->first_from[pe] = h->n_rows;
        h->n_rows += h->rows_from[pe];
        h->row_at[pe] = uf_ep_plan_row(&ep->shape, h->counts, ep->me, pe);
        h->back_at[pe] = 0;
        for (int before = 0; before < ep->me; before++)
            h->back_at[pe] += h->counts[(size_t)pe * (size_t)n + (size_t)before];
    }
}

/* Unpacks what the notes say about my rows, while the rows themselves are on their way. */
static int read_descriptions(uf_ep *ep, uf_ep_handle *h, int parity)
{
    size_t k = (size_t)ep->shape.top_k;
    memset(h->expert_rows, 0, (size_t)ep->n_local * sizeof *h->expert_rows);
    for (int s = 0; s < ep->shape.n_pes; s++) {
        unsigned char *note = ep->base + uf_ep_note_at(ep, parity, s);
        int32_t n = h->rows_from[s], first = h->first_from[s];
        if (n == 0)
            continue;
        memcpy(h->got_token + first, uf_ep_note_tokens(ep, note), (size_t)n * sizeof *h->got_token);
        memcpy(h->got_experts + (size_t)first * k, uf_ep_note_experts(ep, note, n), (size_t)n * k * sizeof *h->got_experts);
        memcpy(h->got_weights + (size_t)first * k, uf_ep_note_weights(ep, note, n), (size_t)n * k * sizeof *h->got_weights);
        for (int32_t r = first; r < first + n; r++)
            h->got_pe[r] = s;
        for (size_t l = (size_t)first * k; l < (size_t)(first + n) * k; l++) {
            int32_t e = h->got_experts[l];
            if (e < -1 || e >= ep->n_local)
                return uf_fail(UF_EINTERNAL, "PE %d sent local expert %d of %d", ep->world_pe[s], e, ep->n_local);
            if (e >= 0)
                h->expert_rows[e]++;
        }
    }
    return UF_OK;
}

/* ---------------------------------------------------------------- rows */

/* Copies each of my tokens to all its owners of one kind, token by token, so that a row is read from memory once. */
static void copy_rows(uf_ep *ep, const uf_ep_handle *h, const unsigned char *x, bool network, bool stream)
{
    size_t bytes = ep->layout.row_bytes;
    for (int i = 0; i < h->n_tokens; i++) {
        const unsigned char *row = x + (size_t)i * bytes;
        for (int o = 0; o < h->n_owners[i]; o++) {
            size_t at = (size_t)i * (size_t)ep->most_owners + (size_t)o;
            int d = h->owner[at];
            if (!ep->peer[d] != network)
                continue;
            unsigned char *to = ep->to[d] + (size_t)h->place[at] * bytes;
            if (stream)
                uf_ep_copy_row(to, row, bytes);
            else
                memcpy(to, row, bytes);
        }
    }
    if (stream)
        uf_ep_copy_done();
}

static int send_rows(uf_ep *ep, uf_ep_handle *h, const unsigned char *x)
{
    size_t bytes = ep->layout.row_bytes;
    int64_t rows = 0;
    for (int d = 0; d < ep->shape.n_pes; d++) {
        size_t at = uf_ep_slot_at(ep, h->peer_slot[d]) + (size_t)h->row_at[d] * bytes;
        ep->to[d] = ep->peer[d] ? ep->peer[d] + at : ep->stage + ep->layout.stage_rows + (size_t)h->first_to[d] * bytes;
        rows += h->rows_to[d];
    }
    bool stream = (size_t)rows * bytes >= STREAM_BYTES;
    int rc = UF_OK;
    if (ep->n_network)
        copy_rows(ep, h, x, true, false);
    for (int turn = 1; !rc && ep->n_network && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        if (!ep->peer[d] && h->rows_to[d])
            rc = uf_ep_put(ep, uf_ep_slot_at(ep, h->peer_slot[d]) + (size_t)h->row_at[d] * bytes, ep->to[d],
                           (size_t)h->rows_to[d] * bytes, UF_EP_DATA, 1, d);
    }
    copy_rows(ep, h, x, false, stream);
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        if (!ep->peer[d] || !h->rows_to[d])
            continue;
        uf_ep_count_copy(ep, (size_t)h->rows_to[d] * bytes);
        rc = uf_ep_signal(ep, UF_EP_DATA, 1, d);
    }
    ep->stats.dispatches++;
    ep->stats.tokens_sent += (uint64_t)rows;
    ep->stats.tokens_received += (uint64_t)h->n_rows;
    ep->stats.bytes_sent += (uint64_t)(rows - h->rows_to[ep->me]) * bytes;
    ep->stats.bytes_received += (uint64_t)(h->n_rows - h->rows_from[ep->me]) * bytes;
    return rc;
}

static int wait_rows(uf_ep *ep, uf_ep_handle *h)
{
    for (int s = 0; s < ep->shape.n_pes; s++)
        ep->expected_data[s] += s != ep->me && h->rows_from[s] > 0;
    h->combines = 0;
    return uf_ep_wait(
        ep, &(uf_ep_await){
                .call = "dispatch", .what = "rows", .kind = UF_EP_DATA, .expected = ep->expected_data, .rows = h->rows_from});
}

/* ---------------------------------------------------------------- the calls */

void uf_ep_fill_received(const uf_ep_handle *h, uf_ep_received *r)
{
    size_t size = r->size;
    *r = (uf_ep_received){.size = size,
                          .n_rows = h->n_rows,
                          .x = h->ep->base + uf_ep_slot_at(h->ep, h->slot),
                          .experts = h->got_experts,
                          .weights = h->got_weights,
                          .source_pe = h->got_pe,
                          .source_token = h->got_token,
                          .expert_rows = h->expert_rows,
                          .source_rows = h->rows_from};
}

static int check_received(const uf_ep *ep, const char *call, const uf_ep_received *r)
{
    if (!r)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument received is NULL", call, ep->world->pe);
    if (r->size < sizeof *r)
        return uf_fail(UF_EINVAL, "%s on PE %d: received.size is %zu, but this library's uf_ep_received has %zu bytes", call,
                       ep->world->pe, r->size, sizeof *r);
    return UF_OK;
}

static uf_ep_handle *find_handle(uf_ep *ep)
{
    for (int i = 0; i < ep->n_handles; i++)
        if (!ep->handles[i].open)
            return &ep->handles[i];
    return NULL;
}

/* What this PE refuses of its own call; all will hear of it. */
static uf_ep_fault find_fault(uf_ep *ep, const uf_ep_handle *h, const void *x, const int32_t *experts, int n_tokens)
{
    uf_ep_fault fault;
    if (!h)
        return (uf_ep_fault){UF_EP_FAULT_HANDLES, -1, -1, ep->n_handles};
    if (n_tokens > 0 && n_tokens <= ep->shape.max_tokens && (!x || !experts))
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, !x ? 0 : 1, n_tokens};
    uf_ep_routing_find(&ep->shape, experts, n_tokens, &fault);
    return fault;
}

int uf_ep_dispatch(uf_ep *ep, const void *x, const int32_t *experts, const float *weights, int n_tokens, uf_ep_handle **handle,
                   uf_ep_received *received)
{
    if (!ep || !handle)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch: argument %s is NULL", !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, "uf_ep_dispatch", NULL);
    if (!rc)
        rc = check_received(ep, "uf_ep_dispatch", received);
    if (rc)
        return rc;
    uf_ep_handle *h = find_handle(ep);
    uf_ep_fault fault = find_fault(ep, h, x, experts, n_tokens);
    if (fault.kind)
        h = NULL;
    else
        plan(ep, h, experts, weights, n_tokens);

    ep->step++;
    int parity = (int)(ep->step & 1);
    /* Staged bytes may be overwritten, and no earlier put of mine can be placed again, once it has completed. */
    rc = ep->n_network ? uf_flush(ep->ctx) : UF_OK;
    if (!rc)
        rc = send_notes(ep, h, &fault, parity);
    if (!rc)
        rc = uf_ep_wait(
            ep, &(uf_ep_await){.call = "dispatch", .what = "counts", .kind = UF_EP_NOTES + parity, .value = (ep->step + 1) / 2});
    if (rc)
        return uf_ep_break(ep, rc);
    rc = read_heads(ep, parity);
    if (rc)
        return rc;
    rc = read_counts(ep, h, parity);
    if (!rc) {
        lay_out_rows(ep, h);
        rc = send_rows(ep, h, x);
    }
    if (!rc)
        rc = read_descriptions(ep, h, parity);
    if (!rc)
        rc = wait_rows(ep, h);
    if (rc)
        return uf_ep_break(ep, rc);
    h->open = true;
    *handle = h;
    uf_ep_fill_received(h, received);
    return UF_OK;
}

int uf_ep_dispatch_cached(uf_ep *ep, const void *x, uf_ep_handle *h, uf_ep_received *received)
{
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_cached: argument %s is NULL", !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, "uf_ep_dispatch_cached", h);
    if (!rc)
        rc = check_received(ep, "uf_ep_dispatch_cached", received);
    if (!rc && !x && h->n_tokens)
        rc = uf_fail(UF_EINVAL, "uf_ep_dispatch_cached on PE %d: argument x is NULL, but the handle has %d tokens", ep->world->pe,
                     h->n_tokens);
    if (rc)
        return rc;
    /* As in uf_ep_dispatch: staged rows of the last call may be overwritten once they have left. */
    rc = ep->n_network ? uf_flush(ep->ctx) : UF_OK;
    if (!rc)
        rc = uf_ep_wait_ready(ep, h, false);
    if (!rc)
        rc = send_rows(ep, h, x);
    if (!rc)
        rc = wait_rows(ep, h);
    if (rc)
        return uf_ep_break(ep, rc);
    uf_ep_fill_received(h, received);
    return UF_OK;
}
