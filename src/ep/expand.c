/* expand.c - what the caller sees of what came: checked, and in expert-major order if that was asked for.
 *
 * Rows lie in the receive slot in the order of source PE and token. UF_EP_FLAT shows them there. UF_EP_EXPERT_MAJOR copies each to
 * the rows of its lanes, whose places are prefix sums over the experts' counts: nothing is sorted, so the order is the same at every run. */
#include "base/error.h"
#include "ep/private.h"

uint64_t uf_ep_checksum(const void *row, size_t bytes, const void *scales, size_t n_scales)
{
    /* Each word is multiplied by an odd number and turned, so that neither a flipped bit nor two exchanged words go unseen. */
    uint64_t sum = 0x9e3779b97f4a7c15u ^ bytes, word;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        memcpy(&word, (const unsigned char *)row + at, sizeof word);
        sum = (sum << 7 | sum >> 57) ^ word * 0xff51afd7ed558ccdu;
    }
    for (size_t j = 0; j < n_scales; j++) {
        uint32_t scale;
        memcpy(&scale, (const unsigned char *)scales + j * 4, sizeof scale);
        sum = (sum << 7 | sum >> 57) ^ scale * 0xc4ceb9fe1a85ec53u;
    }
    return sum;
}

static int check_sums(const uf_ep *ep, const uf_ep_handle *h, const unsigned char *x, const unsigned char *scales)
{
    size_t bytes = uf_ep_send_bytes(ep, h), n = (size_t)ep->options.n_scales;
    for (int32_t t = 0; t < h->n_got; t++) {
        const unsigned char *mine = scales + (size_t)t * (n * 4 + 8);
        uint64_t sum;
        memcpy(&sum, mine + n * 4, sizeof sum);
        if (sum != uf_ep_checksum(x + (size_t)t * bytes, bytes, mine, n))
            return uf_fail(UF_EFABRIC,
                           "PE %d: dispatch %llu, row %d, token %d of PE %d: the row is not what was sent: its checksum differs",
                           ep->world->pe, (unsigned long long)h->step, t, h->got_token[t], ep->world_pe[h->got_pe[t]]);
    }
    return UF_OK;
}

/* ---------------------------------------------------------------- expert-major */

static void describe_row(const uf_ep *ep, uf_ep_handle *h, int32_t row, int32_t t, int lane)
{
    h->row_pe[row] = t < 0 ? -1 : h->got_pe[t];
    h->row_token[row] = t < 0 ? -1 : h->got_token[t];
    h->row_lane[row] = t < 0 ? -1 : lane;
    h->row_weights[row] = t < 0 ? 0 : h->got_weights[(size_t)t * (size_t)ep->shape.top_k + (size_t)lane];
}

static void expand_tokens(const uf_ep *ep, uf_ep_handle *h, const unsigned char *x)
{
    size_t bytes = uf_ep_send_bytes(ep, h), k = (size_t)ep->shape.top_k;
    for (int32_t t = 0; t < h->n_got; t++)
        for (size_t j = 0; j < k; j++) {
            int32_t row = h->token_rows[(size_t)t * k + j];
            if (row < 0)
                continue;
            memcpy(h->own_x + (size_t)row * bytes, x + (size_t)t * bytes, bytes);
            describe_row(ep, h, row, t, (int)j);
        }
}

static void pad_experts(const uf_ep *ep, uf_ep_handle *h)
{
    size_t bytes = uf_ep_send_bytes(ep, h);
    for (int l = 0; l < ep->sizes.n_local; l++)
        for (int32_t row = h->expert_first[l] + h->expert_rows[l]; row < h->expert_first[l + 1]; row++) {
            describe_row(ep, h, row, -1, 0);
            if (ep->options.zero_padding)
                memset(h->own_x + (size_t)row * bytes, 0, bytes);
        }
}

/* ---------------------------------------------------------------- scales */

static size_t columns_of(const uf_ep_handle *h)
{
    return ((size_t)h->n_rows + 3) / 4 * 4;
}

static void put_scales(const uf_ep *ep, uf_ep_handle *h, size_t row, const unsigned char *from)
{
    size_t n = (size_t)ep->options.n_scales, column = columns_of(h);
    if (!ep->options.column_scales) {
        memcpy(h->own_scales + row * n * 4, from, n * 4);
        return;
    }
    for (size_t j = 0; j < n; j++)
        memcpy(h->own_scales + (j * column + row) * 4, from + j * 4, 4);
}

/* Scales in the order and the shape asked for. Those of padding are zero, as are those of gradients, which have none. */
static void lay_out_scales(const uf_ep *ep, uf_ep_handle *h, const unsigned char *scales)
{
    size_t n = (size_t)ep->options.n_scales, k = (size_t)ep->shape.top_k, wire = 4 * (size_t)ep->sizes.wire_scales;
    memset(h->own_scales, 0, columns_of(h) * n * 4);
    for (size_t t = 0; t < (size_t)h->n_got; t++) {
        if (ep->options.order == UF_EP_FLAT)
            put_scales(ep, h, t, scales + t * wire);
        for (size_t j = 0; ep->options.order == UF_EP_EXPERT_MAJOR && j < k; j++)
            if (h->token_rows[t * k + j] >= 0)
                put_scales(ep, h, (size_t)h->token_rows[t * k + j], scales + t * wire);
    }
}

/* ---------------------------------------------------------------- the whole */

int uf_ep_receive(uf_ep *ep, uf_ep_handle *h)
{
    unsigned char *x = ep->base + uf_ep_slot_at(ep, h->slot), *scales = x + ep->layout.scales;
    int rc = ep->options.checksums ? check_sums(ep, h, x, scales) : UF_OK;
    if (rc)
        return rc;
    bool expand = ep->options.order == UF_EP_EXPERT_MAJOR;
    uf_ep_plan_experts(ep->sizes.n_local, ep->sizes.alignment, h->expert_rows, h->expert_aligned, h->expert_first);
    h->n_rows = expand ? h->expert_first[ep->sizes.n_local] : h->n_got;
    h->x = expand ? h->own_x : x;
    h->scales = h->own_scales ? h->own_scales : scales;
    if (expand) {
        uf_ep_plan_expand(ep->sizes.n_local, ep->shape.top_k, h->got_experts, h->n_got, h->expert_first, ep->next_row,
                          h->token_rows);
        expand_tokens(ep, h, x);
        pad_experts(ep, h);
    }
    if (h->own_scales)
        lay_out_scales(ep, h, scales);
    return UF_OK;
}

void uf_ep_received_fill(const uf_ep_handle *h, uf_ep_received *r)
{
    const uf_ep *ep = h->ep;
    bool expand = ep->options.order == UF_EP_EXPERT_MAJOR, columns = ep->options.column_scales != 0;
    size_t size = r->size, n = (size_t)ep->options.n_scales;
    *r = (uf_ep_received){.size = size,
                          .n_rows = h->n_rows,
                          .x = h->x,
                          .experts = expand ? NULL : h->got_experts,
                          .weights = expand ? h->row_weights : h->got_weights,
                          .source_pe = expand ? h->row_pe : h->got_pe,
                          .source_token = expand ? h->row_token : h->got_token,
                          .source_lane = expand ? h->row_lane : h->got_lane,
                          .expert_rows = h->expert_rows,
                          .source_rows = h->rows_from,
                          .n_tokens = h->n_got,
                          .token_rows = expand ? h->token_rows : NULL,
                          .expert_first = h->expert_first,
                          .expert_aligned = h->expert_aligned,
                          .source_first = h->first_from};
    if (!n || h->send.gradients)
        return;
    r->scales = h->scales;
    r->scale_row_stride = columns ? 1 : h->own_scales ? n : (size_t)ep->sizes.wire_scales;
    r->scale_stride = columns ? columns_of(h) : 1;
}

int uf_ep_group_order(const uf_ep_received *r, int n_pes, int group_size, int32_t *rows, int32_t *groups)
{
    if (!r || !rows || n_pes < 1 || group_size < 1 || n_pes % group_size)
        return uf_fail(UF_EINVAL, "uf_ep_group_order: %s",
                       !r || !rows ? "argument received or rows is NULL" : "group_size must divide n_pes, and both be positive");
    if (!r->experts)
        return uf_fail(UF_EINVAL, "uf_ep_group_order: the rows are in expert-major order, which has no groups of sources");
    int32_t n = 0;
    for (int u = 0; u < group_size; u++) {
        for (int s = u; s < n_pes; s += group_size)
            for (int32_t row = r->source_first[s]; row < r->source_first[s + 1]; row++)
                rows[n++] = row;
        if (groups)
            groups[u] = n;
    }
    return UF_OK;
}
