/* combine.c - rows go back to their tokens' PEs and are added there, in a fixed order, with one rounding.
 *
 * The rows that PE d has for source s lie together in y, in the order of s's tokens, so they go back as they are: one block,
 * nothing to pack. They land where s laid out its rows to d: owners in order, tokens in order. Both ends know that place from
 * the counts of the dispatch. s waits for the rows of all its owners, then adds each token's rows in the order that its dispatch noted;
 * its own rows are read where they are. Weights go back as they came unless the caller gives others: only then are they sent. */
#include "base/error.h"
#include "ep/private.h"
#include "ep/reduce.h"

enum { STREAM_BYTES = 1 << 20, BOTH = 2 };

/* ---------------------------------------------------------------- sending */

/* Rows to a mapped peer: copied by us, then one signal for rows and weights. */
static int send_mapped(uf_ep *ep, const uf_ep_handle *h, const unsigned char *y, const float *weights, int s)
{
    size_t bytes = (size_t)h->rows_from[s] * ep->layout.row_bytes, lanes = (size_t)h->rows_from[s] * ep->layout.lane_bytes;
    unsigned char *to =
        ep->peer[s] + uf_ep_slot_at(ep, h->peer_slot[s]) + ep->layout.back + (size_t)h->back_at[s] * ep->layout.row_bytes;
    if (bytes >= STREAM_BYTES) {
        uf_ep_copy_row(to, y, bytes);
        uf_ep_copy_done();
    } else {
        memcpy(to, y, bytes);
    }
    uf_ep_count_copy(ep, bytes);
    if (weights) {
        unsigned char *tag_at = ep->peer[s] + uf_ep_tag_at(ep, h->peer_slot[s], ep->me, h->back_at[s]);
        uf_ep_tag tag = {.weights_of = ep->combines};
        memcpy(tag_at, &tag, sizeof tag);
        memcpy(tag_at + sizeof tag, weights, lanes);
        uf_ep_count_copy(ep, sizeof tag + lanes);
    }
    return uf_ep_signal(ep, UF_EP_BACK + h->peer_slot[s], BOTH, s);
}

/* Rows to a network peer: put from y itself. The word counts 2 for a combine however many messages it takes, since two weak signals
 * may come in any order. */
static int send_network(uf_ep *ep, const uf_ep_handle *h, const unsigned char *y, const float *weights, int s)
{
    size_t bytes = (size_t)h->rows_from[s] * ep->layout.row_bytes, lanes = (size_t)h->rows_from[s] * ep->layout.lane_bytes;
    size_t to = uf_ep_slot_at(ep, h->peer_slot[s]) + ep->layout.back + (size_t)h->back_at[s] * ep->layout.row_bytes;
    int kind = UF_EP_BACK + h->peer_slot[s], rc = uf_ep_put(ep, to, y, bytes, kind, weights ? 1 : BOTH, s);
    if (rc || !weights)
        return rc;
    unsigned char *stage = ep->stage + ep->layout.stage_weights + (size_t)s * 128 +
                           ((size_t)h->first_from[s] * ep->layout.lane_bytes + 63) / 64 * 64;
    uf_ep_tag tag = {.weights_of = ep->combines};
    memcpy(stage, &tag, sizeof tag);
    memcpy(stage + sizeof tag, weights, lanes);
    return uf_ep_put(ep, uf_ep_tag_at(ep, h->peer_slot[s], ep->me, h->back_at[s]), stage, sizeof tag + lanes, kind, 1, s);
}

static int send_back(uf_ep *ep, const uf_ep_handle *h, const unsigned char *y, const float *row_weights)
{
    int rc = UF_OK;
    /* Network peers first: their bytes travel while this PE copies to the mapped ones. */
    for (int pass = 0; pass < 2; pass++)
        for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
            int s = (ep->me + turn) % ep->shape.n_pes;
            if (!h->rows_from[s] || !ep->peer[s] != (pass == 0))
                continue;
            const unsigned char *rows = y + (size_t)h->first_from[s] * ep->layout.row_bytes;
            const float *weights = row_weights ? row_weights + (size_t)h->first_from[s] * (size_t)ep->shape.top_k : NULL;
            rc = pass == 0 ? send_network(ep, h, rows, weights, s) : send_mapped(ep, h, rows, weights, s);
        }
    return rc;
}

/* ---------------------------------------------------------------- reducing */

static void reduce(uf_ep *ep, const uf_ep_handle *h, const unsigned char *y, unsigned char *out)
{
    const unsigned char *back = ep->base + uf_ep_slot_at(ep, h->slot) + ep->layout.back;
    size_t bytes = ep->layout.row_bytes;
    for (int d = 0; d < ep->shape.n_pes; d++)
        ep->to[d] = d == ep->me ? NULL : (unsigned char *)back + (size_t)h->first_to[d] * bytes;
    const unsigned char *own = y ? y + (size_t)h->first_from[ep->me] * bytes : NULL;
    for (int i = 0; i < h->n_tokens; i++) {
        const void *rows[32];
        size_t at = (size_t)i * (size_t)ep->most_owners;
        for (int o = 0; o < h->n_owners[i]; o++) {
            int d = h->owner[at + (size_t)o];
            rows[o] = (d == ep->me ? own : ep->to[d]) + (size_t)h->place[at + (size_t)o] * bytes;
        }
        void *to = out + (size_t)i * bytes;
        if (ep->type == UF_EP_BF16)
            uf_ep_reduce_bf16(to, (const uint16_t *const *)rows, h->n_owners[i], bytes / 2);
        else
            uf_ep_reduce_f32(to, (const float *const *)rows, h->n_owners[i], bytes / 4);
    }
}

/* The weights that came back: those of this combine where the owner sent some, else those that the dispatch carried there. */
static void gather_weights(uf_ep *ep, const uf_ep_handle *h, const float *row_weights, float *out)
{
    size_t k = (size_t)ep->shape.top_k;
    for (int d = 0; d < ep->shape.n_pes; d++) {
        ep->to[d] = NULL;
        if (d == ep->me || !h->rows_to[d])
            continue;
        unsigned char *at = ep->base + uf_ep_tag_at(ep, h->slot, d, h->first_to[d]);
        uf_ep_tag tag;
        memcpy(&tag, at, sizeof tag);
        if (tag.weights_of == ep->combines)
            ep->to[d] = at + sizeof tag;
    }
    for (size_t l = 0; l < (size_t)h->n_tokens * k; l++) {
        int32_t e = h->experts[l], d = e < 0 ? -1 : e / ep->n_local;
        size_t lane = d < 0 ? 0 : (size_t)h->lane_place[l] * k + l % k;
        if (d < 0)
            out[l] = 0;
        else if (d == ep->me && row_weights)
            out[l] = row_weights[(size_t)h->first_from[d] * k + lane];
        else if (d != ep->me && ep->to[d])
            memcpy(&out[l], ep->to[d] + lane * sizeof(float), sizeof(float));
        else
            out[l] = h->weights[l];
    }
}

/* ---------------------------------------------------------------- the call */

static int check_combine(uf_ep *ep, const void *y, const uf_ep_handle *h, const void *out)
{
    if (ep->type == UF_EP_BYTES)
        return uf_fail(UF_EUNSUPPORTED,
                       "uf_ep_combine on PE %d: rows of type UF_EP_BYTES cannot be added; create with UF_EP_BF16 or UF_EP_F32",
                       ep->world->pe);
    if ((!y && h->n_rows) || (!out && h->n_tokens))
        return uf_fail(UF_EINVAL, "uf_ep_combine on PE %d: argument %s is NULL, but there are %d rows and %d tokens",
                       ep->world->pe, !y && h->n_rows ? "y" : "out", h->n_rows, h->n_tokens);
    uintptr_t mask = ep->type == UF_EP_BF16 ? 1 : 3;
    if (((uintptr_t)y & mask) || ((uintptr_t)out & mask))
        return uf_fail(UF_EINVAL, "uf_ep_combine on PE %d: argument %s is not aligned to its elements", ep->world->pe,
                       (uintptr_t)y & mask ? "y" : "out");
    return UF_OK;
}

int uf_ep_combine(uf_ep *ep, const void *y, const float *row_weights, uf_ep_handle *h, void *out, float *out_weights)
{
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "uf_ep_combine: argument %s is NULL", !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, "uf_ep_combine", h);
    if (!rc)
        rc = check_combine(ep, y, h, out);
    if (rc)
        return rc;
    ep->combines++;
    if (h->combines++)
        rc = uf_ep_wait_ready(ep, h, true);
    if (!rc)
        rc = send_back(ep, h, y, row_weights);
    uint64_t *expected = ep->expected_back + (size_t)h->slot * (size_t)ep->shape.n_pes;
    for (int d = 0; d < ep->shape.n_pes; d++)
        expected[d] += d != ep->me && h->rows_to[d] ? BOTH : 0;
    if (!rc)
        rc = uf_ep_wait(ep, &(uf_ep_await){.call = "combine",
                                           .what = "rows",
                                           .kind = UF_EP_BACK + h->slot,
                                           .expected = expected,
                                           .rows = h->rows_to,
                                           .stats = 1});
    if (rc)
        return uf_ep_break(ep, rc);
    reduce(ep, h, y, out);
    if (out_weights)
        gather_weights(ep, h, row_weights, out_weights);
    ep->stats.combines++;
    ep->stats.bytes_sent += (uint64_t)(h->n_rows - h->rows_from[ep->me]) * ep->layout.row_bytes;
    int64_t rows = 0;
    for (int d = 0; d < ep->shape.n_pes; d++)
        rows += h->rows_to[d];
    ep->stats.bytes_received += (uint64_t)(rows - h->rows_to[ep->me]) * ep->layout.row_bytes;
    /* y is the caller's again. */
    return uf_ep_break(ep, ep->n_network ? uf_flush(ep->ctx) : UF_OK);
}
