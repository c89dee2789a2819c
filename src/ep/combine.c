/* combine.c - rows go back to their tokens' PEs and are added there, in a fixed order, with as many roundings as were asked for.
 *
 * What PE d has for source s lies at s in one block: owners in order, tokens in order (and with lanes_back a token's lanes in order). Both
 * ends know the place from the counts of the dispatch. Of UF_EP_FLAT the block is in y as it is: nothing to pack. Of expert-major order a
 * row per lane is gathered, or with UF_EP_ROUND_PER_PE the rows of a token are added first. s waits for all its owners, then
 * adds each token's rows in the order that its dispatch noted. Weights go back as they came unless the caller gives others: only then
 * are they sent. */
#include "base/error.h"
#include "ep/private.h"
#include "ep/reduce.h"

enum { STREAM_BYTES = 1 << 20, BOTH = 2 };

static bool adds_here(const uf_ep *ep)
{
    return ep->options.order == UF_EP_EXPERT_MAJOR && !ep->sizes.lanes_back;
}

static void add_rows(const uf_ep *ep, void *out, const void *const *rows, int n)
{
    if (ep->options.type == UF_EP_F32)
        uf_ep_reduce_f32(out, (const float *const *)rows, n, ep->sizes.back_bytes / 4);
    else
        uf_ep_reduce_bf16(out, (const uint16_t *const *)rows, n, ep->sizes.back_bytes / 2);
}

/* ---------------------------------------------------------------- sending */

/* Writes the block for s to `to`, which is not where y has it. */
static void write_block(const uf_ep *ep, const uf_ep_handle *h, int s, unsigned char *to)
{
    size_t bytes = ep->sizes.back_bytes, k = (size_t)ep->shape.top_k;
    const unsigned char *y = h->give.y;
    if (ep->options.order == UF_EP_FLAT) {
        size_t all = (size_t)h->rows_from[s] * bytes;
        if (all >= STREAM_BYTES)
            uf_ep_copy_row(to, y + (size_t)h->first_from[s] * bytes, all);
        else
            memcpy(to, y + (size_t)h->first_from[s] * bytes, all);
        uf_ep_copy_done();
        return;
    }
    for (int32_t t = h->first_from[s]; t < h->first_from[s + 1]; t++) {
        const void *rows[UF_EP_MOST_PARTS];
        int n = 0;
        for (size_t j = 0; j < k; j++)
            if (h->token_rows[(size_t)t * k + j] >= 0)
                rows[n++] = y + (size_t)h->token_rows[(size_t)t * k + j] * bytes;
        for (int i = 0; ep->sizes.lanes_back && i < n; i++, to += bytes)
            memcpy(to, rows[i], bytes);
        if (!ep->sizes.lanes_back) {
            add_rows(ep, to, rows, n);
            to += bytes;
        }
    }
}

/* Tag, weights and checksums of the block for s, as far as there are any. Returns their bytes. */
static size_t write_tag(const uf_ep *ep, const uf_ep_handle *h, int s, const unsigned char *block, unsigned char *to)
{
    size_t k = (size_t)ep->shape.top_k, lanes = (size_t)h->rows_from[s] * ep->sizes.lane_bytes, first = (size_t)h->first_from[s];
    const float *weights = h->give.row_weights;
    uf_ep_tag tag = {.weights_of = weights ? h->combine_id : 0};
    unsigned char *w = to + sizeof tag, *sums = w + lanes;
    memcpy(to, &tag, sizeof tag);
    if (weights && ep->options.order == UF_EP_FLAT)
        memcpy(w, weights + first * k, lanes);
    for (size_t l = 0; weights && ep->options.order == UF_EP_EXPERT_MAJOR && l < (size_t)h->rows_from[s] * k; l++) {
        int32_t row = h->token_rows[first * k + l];
        float weight = row < 0 ? 0 : weights[row];
        memcpy(w + l * 4, &weight, 4);
    }
    if (!ep->options.checksums)
        return sizeof tag + lanes;
    for (int32_t i = 0; i < h->back_from[s]; i++) {
        uint64_t sum = uf_ep_checksum(block + (size_t)i * ep->sizes.back_bytes, ep->sizes.back_bytes, NULL, 0);
        memcpy(sums + (size_t)i * 8, &sum, 8);
    }
    return sizeof tag + lanes + (size_t)h->back_from[s] * 8;
}

static bool tagged(const uf_ep *ep, const uf_ep_handle *h)
{
    return h->give.row_weights || ep->options.checksums;
}

/* To a mapped peer: written by us, then one signal for rows and weights. */
static int send_mapped(uf_ep *ep, const uf_ep_handle *h, int s)
{
    size_t bytes = (size_t)h->back_from[s] * ep->sizes.back_bytes;
    unsigned char *slot = ep->peer[s] + uf_ep_slot_at(ep, h->peer_slot[s]);
    unsigned char *to = slot + ep->layout.back + (size_t)h->back_at[s] * ep->sizes.back_bytes;
    write_block(ep, h, s, to);
    uf_ep_count_copy(ep, bytes);
    if (tagged(ep, h))
        uf_ep_count_copy(ep, write_tag(ep, h, s, to, ep->peer[s] + uf_ep_tag_at(ep, h->peer_slot[s], ep->me, h->tag_at[s])));
    return s == ep->me ? UF_OK : uf_ep_signal(ep, uf_ep_back_kind(h->peer_slot[s]), BOTH, s);
}

/* To a network peer: put from y itself where the block lies there. The word counts 2 for a combine however many messages it takes, since
 * two weak signals may come in any order. `gathered` is where the block can be made. */
static int send_network(uf_ep *ep, const uf_ep_handle *h, unsigned char *gathered, int s)
{
    size_t bytes = (size_t)h->back_from[s] * ep->sizes.back_bytes;
    size_t to = uf_ep_slot_at(ep, h->peer_slot[s]) + ep->layout.back + (size_t)h->back_at[s] * ep->sizes.back_bytes;
    const unsigned char *block = gathered;
    if (ep->options.order == UF_EP_FLAT)
        block = (const unsigned char *)h->give.y + (size_t)h->first_from[s] * ep->sizes.back_bytes;
    else
        write_block(ep, h, s, gathered);
    int kind = uf_ep_back_kind(h->peer_slot[s]), rc = uf_ep_put(ep, to, block, bytes, kind, tagged(ep, h) ? 1 : BOTH, s);
    if (rc || !tagged(ep, h))
        return rc;
    unsigned char *stage =
        ep->stage + ep->layout.stage_tags + (size_t)s * 128 + ((size_t)h->first_from[s] * ep->sizes.tag_bytes + 63) / 64 * 64;
    size_t tag = write_tag(ep, h, s, block, stage);
    return uf_ep_put(ep, uf_ep_tag_at(ep, h->peer_slot[s], ep->me, h->tag_at[s]), stage, tag, kind, 1, s);
}

/* All are heard from, rows or not, so that all hear of a refusal. */
static void expect_rows(uf_ep *ep, uf_ep_handle *h)
{
    uint64_t *expected = ep->expected_back + (size_t)h->slot * (size_t)ep->shape.n_pes;
    for (int d = 0; d < ep->shape.n_pes; d++)
        expected[d] += d != ep->me ? BOTH : 0;
    h->state = UF_EP_BACK_ROWS;
}

int uf_ep_back_send(uf_ep *ep, uf_ep_handle *h)
{
    int rc = uf_ep_stage(ep, &ep->stage_back_used);
    unsigned char *gathered = ep->stage ? ep->stage + ep->layout.stage_back : NULL;
    /* Network peers first: their bytes travel while this PE copies to the mapped ones. */
    for (int pass = 0; pass < 2; pass++)
        for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
            int s = (ep->me + turn) % ep->shape.n_pes;
            if (!ep->peer[s] != (pass == 0))
                continue;
            if (!h->rows_from[s])
                rc = uf_ep_signal(ep, uf_ep_back_kind(h->peer_slot[s]), BOTH, s);
            else
                rc = pass == 0 ? send_network(ep, h, gathered, s) : send_mapped(ep, h, s);
            if (pass == 0 && ep->options.order == UF_EP_EXPERT_MAJOR)
                gathered += (size_t)h->back_from[s] * ep->sizes.back_bytes;
        }
    /* My own rows are read where they are, unless they must be added first. */
    if (!rc && adds_here(ep) && h->rows_from[ep->me])
        rc = send_mapped(ep, h, ep->me);
    expect_rows(ep, h);
    return rc;
}

int uf_ep_back_refuse(uf_ep *ep, uf_ep_handle *h)
{
    int rc = uf_ep_refuse(ep, h);
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int s = (ep->me + turn) % ep->shape.n_pes;
        rc = uf_signal(ep->ctx, uf_ep_word(ep, uf_ep_back_kind(h->peer_slot[s]), ep->me), UF_SIGNAL_ADD, BOTH, ep->world_pe[s],
                       UF_STRONG);
    }
    expect_rows(ep, h);
    return rc;
}

int uf_ep_back_wait(uf_ep *ep, uf_ep_handle *h, bool block)
{
    return uf_ep_wait(ep,
                      &(uf_ep_await){.call = "combine",
                                     .what = "rows",
                                     .kind = uf_ep_back_kind(h->slot),
                                     .expected = ep->expected_back + (size_t)h->slot * (size_t)ep->shape.n_pes,
                                     .stats = 1,
                                     .number = h->combine_id},
                      block);
}

/* ---------------------------------------------------------------- reducing */

/* The rows of token i in the order of addition, and whose they are. */
static int list_parts(const uf_ep *ep, const uf_ep_handle *h, int i, int *pes, const void **rows)
{
    size_t k = (size_t)ep->shape.top_k, bytes = ep->sizes.back_bytes;
    if (!ep->sizes.lanes_back) {
        size_t at = (size_t)i * (size_t)ep->sizes.most_owners;
        for (int o = 0; o < h->n_owners[i]; o++) {
            pes[o] = h->owner[at + (size_t)o];
            rows[o] = ep->to[pes[o]] + (size_t)h->place[at + (size_t)o] * bytes;
        }
        return h->n_owners[i];
    }
    int n = 0;
    for (size_t j = 0; j < k; j++) {
        size_t l = (size_t)i * k + j;
        if (h->experts[l] < 0)
            continue;
        pes[n] = h->experts[l] / ep->sizes.n_local;
        if (pes[n] == ep->me) {
            int32_t token = h->first_from[ep->me] + h->lane_place[l];
            rows[n] = (const unsigned char *)h->give.y + (size_t)h->token_rows[(size_t)token * k + j] * bytes;
        } else {
            rows[n] = ep->to[pes[n]] + (size_t)h->lane_back[l] * bytes;
        }
        n++;
    }
    return n;
}

/* Adds the rows of each host by itself; the sums take the place of the rows. */
static int add_hosts(const uf_ep *ep, const int *pes, const void **rows, int n)
{
    int32_t hosts[UF_EP_MOST_PARTS];
    int n_hosts = uf_ep_plan_groups(ep->host, pes, n, hosts);
    for (int g = 0; g < n_hosts; g++) {
        const void *mine[UF_EP_MOST_PARTS];
        int m = 0;
        for (int p = 0; p < n; p++)
            if (ep->host[pes[p]] == hosts[g])
                mine[m++] = rows[p];
        add_rows(ep, ep->partial + (size_t)g * ep->sizes.back_bytes, mine, m);
    }
    for (int g = 0; g < n_hosts; g++)
        rows[g] = ep->partial + (size_t)g * ep->sizes.back_bytes;
    return n_hosts;
}

static int check_sums(const uf_ep *ep, const uf_ep_handle *h)
{
    size_t bytes = ep->sizes.back_bytes;
    for (int d = 0; d < ep->shape.n_pes; d++) {
        if (d == ep->me || !h->rows_to[d])
            continue;
        const unsigned char *sums = ep->base + uf_ep_tag_at(ep, h->slot, d, h->first_to[d]) + sizeof(uf_ep_tag) +
                                    (size_t)h->rows_to[d] * ep->sizes.lane_bytes;
        for (int32_t i = 0; i < h->back_to[d]; i++) {
            uint64_t sum;
            memcpy(&sum, sums + (size_t)i * 8, 8);
            if (sum != uf_ep_checksum(ep->to[d] + (size_t)i * bytes, bytes, NULL, 0))
                return uf_fail(UF_EFABRIC,
                               "PE %d: combine %llu, row %d of PE %d: the row is not what was sent: its checksum differs",
                               ep->world->pe, (unsigned long long)h->combine_id, i, ep->world_pe[d]);
        }
    }
    return UF_OK;
}

/* The weights that came back: those of this combine where the owner sent some, else those that the dispatch carried there. */
static void gather_weights(const uf_ep *ep, const uf_ep_handle *h)
{
    size_t k = (size_t)ep->shape.top_k;
    const float *own = h->give.row_weights;
    for (size_t l = 0; l < (size_t)h->n_tokens * k; l++) {
        int32_t e = h->experts[l], d = e < 0 ? -1 : e / ep->sizes.n_local;
        size_t lane = d < 0 ? 0 : (size_t)h->lane_place[l] * k + l % k;
        float *to = &h->give.out_weights[l];
        if (d < 0) {
            *to = 0;
        } else if (d == ep->me) {
            size_t mine = (size_t)h->first_from[d] * k + lane;
            size_t at = own && ep->options.order == UF_EP_EXPERT_MAJOR ? (size_t)h->token_rows[mine] : mine;
            *to = own ? own[at] : h->weights[l];
        } else {
            const unsigned char *tag_at = ep->base + uf_ep_tag_at(ep, h->slot, d, h->first_to[d]);
            uf_ep_tag tag;
            memcpy(&tag, tag_at, sizeof tag);
            *to = h->weights[l];
            if (tag.weights_of == h->combine_id)
                memcpy(to, tag_at + sizeof tag + lane * sizeof *to, sizeof *to);
        }
    }
}

int uf_ep_back_reduce(uf_ep *ep, const uf_ep_handle *h)
{
    size_t bytes = ep->sizes.back_bytes;
    unsigned char *back = ep->base + uf_ep_slot_at(ep, h->slot) + ep->layout.back;
    for (int d = 0; d < ep->shape.n_pes; d++)
        ep->to[d] = back + (size_t)h->back_first_to[d] * bytes;
    int rc = ep->options.checksums ? check_sums(ep, h) : UF_OK;
    if (rc)
        return rc;
    if (ep->options.order == UF_EP_FLAT && h->give.y)
        ep->to[ep->me] = (unsigned char *)h->give.y + (size_t)h->first_from[ep->me] * bytes;
    for (int i = 0; i < h->n_tokens; i++) {
        int pes[UF_EP_MOST_PARTS], n_biases = 0;
        const void *rows[2 + UF_EP_MOST_PARTS];
        for (int b = 0; b < 2; b++)
            if (h->give.bias[b])
                rows[n_biases++] = (const unsigned char *)h->give.bias[b] + (size_t)i * bytes;
        int n = list_parts(ep, h, i, pes, rows + n_biases);
        if (ep->options.rounding == UF_EP_ROUND_PER_HOST)
            n = add_hosts(ep, pes, rows + n_biases, n);
        add_rows(ep, (unsigned char *)h->give.out + (size_t)i * bytes, rows, n_biases + n);
    }
    if (h->give.out_weights)
        gather_weights(ep, h);
    ep->stats.combines++;
    for (int d = 0; d < ep->shape.n_pes; d++) {
        uf_ep_count_path(ep, d, (size_t)h->back_from[d] * bytes);
        ep->stats.bytes_sent += d == ep->me ? 0 : (uint64_t)h->back_from[d] * bytes;
        ep->stats.bytes_received += d == ep->me ? 0 : (uint64_t)h->back_to[d] * bytes;
    }
    return UF_OK;
}
