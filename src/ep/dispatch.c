/* dispatch.c - tokens go to the PEs that own their experts: one exchange of notes, then the rows, straight to their place.
 *
 * Step by step, on every PE alike:
 *   notes   To each PE: my counts for all PEs, whether my arguments are in order, which slot I receive in, and, for the rows that will
 *           come to it, token, experts and weights. One message with one weak signal, since all of it is one block.
 *   layout  With everybody's counts each PE knows every row's final place: sources in order, tokens in order.
 *   rows    To a mapped peer: each row is copied to its place, then one bare signal. To a network peer: rows are packed into one block
 *           here and put with one weak signal. Rows and their descriptions are two messages because the rows of all sources must be
 *           contiguous at the receiver; the descriptions ride on the notes, which must be sent anyway.
 *           Scales go beside the rows, as a block of their own.
 *   wait    For the rows of all sources that have any. Nothing is copied at the receiver but the descriptions (and see expand.c).
 * An argument that is wrong on one PE is refused on all with the same sentence, before any row has moved. */
#include "base/error.h"
#include "ep/private.h"
#include "ep/reduce.h"
#include <stddef.h>

/* Rows of one dispatch from which on copies go past the cache: the receiver's caches could not hold them anyway. */
enum { STREAM_BYTES = 1 << 20, BOTH = 2 };

/* ---------------------------------------------------------------- notes */

/* My routing: who owns which lane of which token, and the place of each row among mine to its owner. */
void uf_ep_dispatch_plan(uf_ep *ep, uf_ep_handle *h)
{
    const float *weights = h->send.weights;
    size_t k = (size_t)ep->shape.top_k, lanes = (size_t)h->send.n_tokens * k;
    h->n_tokens = h->send.n_tokens;
    if (lanes)
        memcpy(h->experts, h->send.experts, lanes * sizeof *h->experts);
    if (lanes && weights)
        memcpy(h->weights, weights, lanes * sizeof *weights);
    for (size_t i = 0; !weights && i < lanes; i++)
        h->weights[i] = 1;
    uf_ep_plan_slots(&ep->shape, h->experts, h->n_tokens, h->rows_to, h->lane_place);
    uf_ep_plan_prefix(&ep->shape, h->rows_to, h->first_to);
    if (ep->sizes.lanes_back)
        uf_ep_plan_lanes(&ep->shape, h->experts, h->n_tokens, h->lanes_to, h->lane_back);
    h->back_to = ep->sizes.lanes_back ? h->lanes_to : h->rows_to;
    uf_ep_plan_prefix(&ep->shape, h->back_to, h->back_first_to);
    for (int i = 0; i < h->n_tokens; i++) {
        int owners[32], lane[32], n = uf_ep_plan_owners(&ep->shape, h->experts + (size_t)i * k, owners, lane);
        size_t at = (size_t)i * (size_t)ep->sizes.most_owners;
        h->n_owners[i] = (uint8_t)n;
        for (int o = 0; o < n; o++) {
            h->owner[at + (size_t)o] = (int16_t)owners[o];
            h->place[at + (size_t)o] = h->lane_place[(size_t)i * k + (size_t)lane[o]];
        }
    }
}

/* Where the note to `pe` is written: in its own memory if that is mapped, else where it will be sent from. */
static unsigned char *note_to(const uf_ep *ep, const uf_ep_handle *h, int place, int pe)
{
    if (ep->peer[pe])
        return ep->peer[pe] + uf_ep_note_at(ep, place, ep->me);
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
            size_t at = (size_t)i * (size_t)ep->sizes.most_owners + (size_t)o;
            int d = h->owner[at], place = h->place[at], first = d * ep->sizes.n_local;
            int32_t n = h->rows_to[d], *local = uf_ep_note_experts(ep, ep->to[d], n) + (size_t)place * (size_t)k;
            uf_ep_note_tokens(ep, ep->to[d])[place] = i;
            for (int j = 0; j < k; j++)
                local[j] = e[j] >= first && e[j] < first + ep->sizes.n_local ? e[j] - first : -1;
            memcpy(uf_ep_note_weights(ep, ep->to[d], n) + (size_t)place * (size_t)k, w, (size_t)k * sizeof *w);
        }
    }
}

/* The handle of a refused dispatch has no routing: `fault` says why. */
int uf_ep_notes_send(uf_ep *ep, const uf_ep_handle *h, const uf_ep_fault *fault)
{
    bool rows = fault->kind == UF_EP_FAULT_NONE;
    int place = (int)(h->step % UF_EP_NOTES_KEPT);
    size_t pes = (size_t)ep->shape.n_pes;
    uf_ep_note head = {.step = h->step, .fault = *fault, .slot = h->slot};
    for (int d = 0; d < ep->shape.n_pes; d++) {
        ep->to[d] = note_to(ep, rows ? h : NULL, place, d);
        memcpy(ep->to[d], &head, sizeof head);
        if (!rows)
            continue;
        memcpy(uf_ep_note_counts(ep->to[d]), h->rows_to, pes * sizeof *h->rows_to);
        if (ep->sizes.lanes_back)
            memcpy(uf_ep_note_counts(ep->to[d]) + pes, h->lanes_to, pes * sizeof *h->lanes_to);
    }
    if (rows)
        describe_rows(ep, h);
    int rc = UF_OK;
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        size_t bytes = uf_ep_note_size(ep, rows ? h->rows_to[d] : 0);
        if (ep->peer[d]) {
            uf_ep_count_copy(ep, bytes);
            rc = uf_ep_signal(ep, UF_EP_NOTES + place, 1, d);
        } else {
            rc = uf_ep_put(ep, uf_ep_note_at(ep, place, ep->me), ep->to[d], bytes, UF_EP_NOTES + place, 1, d);
        }
    }
    return rc;
}

/* Finds what some PE refused: of the first such PE, so that all say the same. */
static int read_heads(uf_ep *ep, uf_ep_handle *h, int place)
{
    for (int s = 0; s < ep->shape.n_pes; s++) {
        uf_ep_note head;
        memcpy(&head, ep->base + uf_ep_note_at(ep, place, s), sizeof head);
        if (head.step != h->step)
            return uf_fail(UF_EMISMATCH,
                           "PE %d is in dispatch %llu, PE %d in dispatch %llu: all PEs of the team must make the same calls",
                           ep->world_pe[s], (unsigned long long)head.step, ep->world->pe, (unsigned long long)h->step);
        if (!head.fault.kind)
            continue;
        h->fault = head.fault;
        h->fault_pe = ep->world_pe[s];
        h->state = UF_EP_REFUSED;
        return UF_OK;
    }
    return UF_OK;
}

/* Takes everybody's counts, which must be such as a correct peer sends: they decide where rows are written. */
static int read_counts(uf_ep *ep, uf_ep_handle *h, int place)
{
    size_t n = (size_t)ep->shape.n_pes;
    for (size_t s = 0; s < n; s++) {
        unsigned char *note = ep->base + uf_ep_note_at(ep, place, (int)s);
        int32_t *counts = h->counts + s * n, *lanes = ep->sizes.lanes_back ? h->lane_counts + s * n : counts;
        uf_ep_note head;
        memcpy(&head, note, sizeof head);
        memcpy(counts, uf_ep_note_counts(note), n * sizeof *counts);
        if (ep->sizes.lanes_back)
            memcpy(lanes, uf_ep_note_counts(note) + n, n * sizeof *lanes);
        int64_t sum = 0, lane_sum = 0;
        bool sound = head.slot >= 0 && head.slot < ep->sizes.n_handles;
        for (size_t d = 0; d < n; d++) {
            sound = sound && counts[d] >= 0 && counts[d] <= ep->shape.max_tokens && lanes[d] >= counts[d];
            sum += counts[d];
            lane_sum += lanes[d];
        }
        if (!sound || sum > (int64_t)ep->shape.max_tokens * ep->sizes.most_owners ||
            lane_sum > (int64_t)ep->shape.max_tokens * ep->sizes.most_parts)
            return uf_fail(UF_EINTERNAL, "PE %d sent counts that cannot be: slot %d, %lld rows, %lld lanes", ep->world_pe[s],
                           head.slot, (long long)sum, (long long)lane_sum);
        h->peer_slot[s] = head.slot;
    }
    return UF_OK;
}

/* ---------------------------------------------------------------- layout */

/* Rows from s to the PEs before me. */
static int32_t rows_before(const uf_ep *ep, const int32_t *counts, int s)
{
    int32_t sum = 0;
    for (int before = 0; before < ep->me; before++)
        sum += counts[(size_t)s * (size_t)ep->shape.n_pes + (size_t)before];
    return sum;
}

static void lay_out_rows(uf_ep *ep, uf_ep_handle *h)
{
    int n = ep->shape.n_pes;
    const int32_t *back = ep->sizes.lanes_back ? h->lane_counts : h->counts;
    h->n_got = 0;
    for (int pe = 0; pe < n; pe++) {
        size_t to_me = (size_t)pe * (size_t)n + (size_t)ep->me;
        h->rows_from[pe] = h->counts[to_me];
        h->first_from[pe] = h->n_got;
        h->n_got += h->rows_from[pe];
        h->row_at[pe] = uf_ep_plan_row(&ep->shape, h->counts, ep->me, pe);
        h->tag_at[pe] = rows_before(ep, h->counts, pe);
        h->back_from[pe] = back[to_me];
        h->back_at[pe] = rows_before(ep, back, pe);
    }
    h->first_from[n] = h->n_got;
}

/* Unpacks what the notes say about my rows, while the rows themselves are on their way. */
static int read_descriptions(uf_ep *ep, uf_ep_handle *h, int place)
{
    size_t k = (size_t)ep->shape.top_k;
    memset(h->expert_rows, 0, (size_t)ep->sizes.n_local * sizeof *h->expert_rows);
    for (int s = 0; s < ep->shape.n_pes; s++) {
        unsigned char *note = ep->base + uf_ep_note_at(ep, place, s);
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
            if (e < -1 || e >= ep->sizes.n_local)
                return uf_fail(UF_EINTERNAL, "PE %d sent local expert %d of %d", ep->world_pe[s], e, ep->sizes.n_local);
            if (e < 0)
                continue;
            h->expert_rows[e]++;
            h->got_lane[l / k] = (int32_t)(l % k);
        }
    }
    return UF_OK;
}

/* Rows of PEs whose notes say one thing and whose descriptions another would be written past the end of an array. */
static int check_lanes(const uf_ep *ep, const uf_ep_handle *h, int s)
{
    int32_t lanes = 0;
    size_t k = (size_t)ep->shape.top_k;
    for (size_t l = (size_t)h->first_from[s] * k; l < (size_t)h->first_from[s + 1] * k; l++)
        lanes += h->got_experts[l] >= 0;
    if (lanes != h->back_from[s])
        return uf_fail(UF_EINTERNAL, "PE %d announced %d lanes, but described %d", ep->world_pe[s], h->back_from[s], lanes);
    return UF_OK;
}

int uf_ep_notes_read(uf_ep *ep, uf_ep_handle *h, bool block)
{
    int place = (int)(h->step % UF_EP_NOTES_KEPT);
    int rc = uf_ep_wait(ep,
                        &(uf_ep_await){.call = "dispatch",
                                       .what = "counts",
                                       .kind = UF_EP_NOTES + place,
                                       .value = (h->step + UF_EP_NOTES_KEPT - 1) / UF_EP_NOTES_KEPT,
                                       .number = h->step},
                        block);
    if (!rc)
        rc = read_heads(ep, h, place);
    if (rc || h->state == UF_EP_REFUSED)
        return rc;
    rc = read_counts(ep, h, place);
    if (rc)
        return rc;
    lay_out_rows(ep, h);
    rc = uf_ep_rows_send(ep, h);
    /* Descriptions are read while the rows are on their way. */
    if (!rc)
        rc = read_descriptions(ep, h, place);
    for (int s = 0; !rc && ep->sizes.lanes_back && s < ep->shape.n_pes; s++)
        rc = check_lanes(ep, h, s);
    return rc;
}

/* ---------------------------------------------------------------- rows */

/* The scales of a token as they travel, and its checksum behind them. */
static void pack_scales(const uf_ep *ep, const uf_ep_handle *h, int i, const unsigned char *row, unsigned char *to)
{
    size_t n = (size_t)ep->options.n_scales;
    const uf_ep_send *send = &h->send;
    bool given = n && !send->gradients, packed = send->scale_token_stride == 0 && send->scale_stride == 0;
    size_t token_stride = packed ? n : send->scale_token_stride, stride = packed ? 1 : send->scale_stride;
    const unsigned char *from = given ? (const unsigned char *)send->scales + (size_t)i * token_stride * 4 : NULL;
    if (given && stride == 1)
        memcpy(to, from, n * 4);
    for (size_t j = 0; given && stride != 1 && j < n; j++)
        memcpy(to + j * 4, from + j * stride * 4, 4);
    if (!given)
        memset(to, 0, n * 4);
    if (ep->options.checksums) {
        uint64_t sum = uf_ep_checksum(row, uf_ep_send_bytes(ep, h), to, n);
        memcpy(to + n * 4, &sum, sizeof sum);
    }
}

/* Where the rows to d begin: in its own memory, or in the stage. `part` 0: rows, 1: scales. */
static unsigned char *rows_at(const uf_ep *ep, const uf_ep_handle *h, int d, int part)
{
    size_t bytes = part ? 4 * (size_t)ep->sizes.wire_scales : uf_ep_send_bytes(ep, h);
    size_t in_slot = part ? ep->layout.scales : 0, in_stage = part ? ep->layout.stage_scales : ep->layout.stage_rows;
    return ep->peer[d] ? ep->peer[d] + uf_ep_slot_at(ep, h->peer_slot[d]) + in_slot + (size_t)h->row_at[d] * bytes
                       : ep->stage + in_stage + (size_t)h->first_to[d] * bytes;
}

/* Copies each of my tokens to all its owners of one kind, token by token, so that a row is read from memory once. */
static void copy_rows(uf_ep *ep, const uf_ep_handle *h, bool network, bool stream)
{
    size_t bytes = uf_ep_send_bytes(ep, h);
    const unsigned char *x = h->send.x;
    for (int i = 0; i < h->n_tokens; i++) {
        const unsigned char *row = x + (size_t)i * bytes;
        for (int o = 0; o < h->n_owners[i]; o++) {
            size_t at = (size_t)i * (size_t)ep->sizes.most_owners + (size_t)o;
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

/* The same for the scales: packed for the first owner, copied for the others. */
static void copy_scales(uf_ep *ep, const uf_ep_handle *h)
{
    size_t bytes = 4 * (size_t)ep->sizes.wire_scales, row_bytes = uf_ep_send_bytes(ep, h);
    for (int i = 0; bytes && i < h->n_tokens; i++) {
        const unsigned char *first = NULL;
        for (int o = 0; o < h->n_owners[i]; o++) {
            size_t at = (size_t)i * (size_t)ep->sizes.most_owners + (size_t)o;
            unsigned char *to = rows_at(ep, h, h->owner[at], 1) + (size_t)h->place[at] * bytes;
            if (first)
                memcpy(to, first, bytes);
            else
                pack_scales(ep, h, i, (const unsigned char *)h->send.x + (size_t)i * row_bytes, to);
            first = first ? first : to;
        }
    }
}

static int put_rows(uf_ep *ep, const uf_ep_handle *h, int d)
{
    size_t bytes = uf_ep_send_bytes(ep, h), scales = 4 * (size_t)ep->sizes.wire_scales, slot = uf_ep_slot_at(ep, h->peer_slot[d]);
    size_t n = (size_t)h->rows_to[d], row = (size_t)h->row_at[d];
    int kind = uf_ep_data_kind(h->peer_slot[d]);
    int rc = uf_ep_put(ep, slot + row * bytes, rows_at(ep, h, d, 0), n * bytes, kind, scales ? 1 : BOTH, d);
    if (!rc && scales)
        rc = uf_ep_put(ep, slot + ep->layout.scales + row * scales, rows_at(ep, h, d, 1), n * scales, kind, 1, d);
    return rc;
}

int uf_ep_rows_send(uf_ep *ep, uf_ep_handle *h)
{
    size_t bytes = uf_ep_send_bytes(ep, h), scales = 4 * (size_t)ep->sizes.wire_scales;
    int64_t rows = 0;
    int rc = uf_ep_stage(ep, &ep->stage_rows_used);
    for (int d = 0; d < ep->shape.n_pes; d++) {
        ep->to[d] = rows_at(ep, h, d, 0);
        rows += h->rows_to[d];
        uf_ep_count_path(ep, d, (size_t)h->rows_to[d] * (bytes + scales));
    }
    bool stream = (size_t)rows * bytes >= STREAM_BYTES;
    if (rc)
        return rc;
    copy_scales(ep, h);
    if (ep->n_network)
        copy_rows(ep, h, true, false);
    for (int turn = 1; !rc && ep->n_network && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        if (!ep->peer[d] && h->rows_to[d])
            rc = put_rows(ep, h, d);
    }
    copy_rows(ep, h, false, stream);
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int d = (ep->me + turn) % ep->shape.n_pes;
        if (!ep->peer[d] || !h->rows_to[d])
            continue;
        uf_ep_count_copy(ep, (size_t)h->rows_to[d] * (bytes + scales));
        rc = uf_ep_signal(ep, uf_ep_data_kind(h->peer_slot[d]), BOTH, d);
    }
    uint64_t *expected = ep->expected_data + (size_t)h->slot * (size_t)ep->shape.n_pes;
    for (int s = 0; s < ep->shape.n_pes; s++)
        expected[s] += s != ep->me && h->rows_from[s] > 0 ? BOTH : 0;
    h->repeats = 0;
    h->row_bytes = bytes;
    h->state = UF_EP_ROWS;
    ep->stats.dispatches++;
    ep->stats.tokens_sent += (uint64_t)rows;
    ep->stats.tokens_received += (uint64_t)h->n_got;
    ep->stats.bytes_sent += (uint64_t)(rows - h->rows_to[ep->me]) * bytes;
    ep->stats.bytes_received += (uint64_t)(h->n_got - h->rows_from[ep->me]) * bytes;
    return rc;
}

int uf_ep_rows_wait(uf_ep *ep, uf_ep_handle *h, bool block)
{
    return uf_ep_wait(ep,
                      &(uf_ep_await){.call = "dispatch",
                                     .what = "rows",
                                     .kind = uf_ep_data_kind(h->slot),
                                     .expected = ep->expected_data + (size_t)h->slot * (size_t)ep->shape.n_pes,
                                     .rows = h->rows_from,
                                     .number = h->step},
                      block);
}
