/* ep.h - MoE expert parallelism: dispatch tokens to the PEs that own their experts, combine the results.
 *
 * The contract, with R PEs in the team, E experts (E a multiple of R), L = E / R local experts, expert e owned by PE e / L:
 *   dispatch  PE d receives token (s, i) exactly once if one of its top-k lanes names an expert of d. Rows come in order of source PE,
 *             then token: a pure function of the routing, the same at every run and on every fabric. A row has the payload bytes
 *             unchanged, the local expert number of each lane (-1 for lanes of other PEs and empty lanes), all the token's weights,
 *             and its source (PE and token).
 *   combine   Takes one row per received row, brings it back, and adds for each token the rows of its PEs: f32 from 0, in increasing
 *             order of each PE's highest lane, one rounding to the row type (nearest even). Weights are not multiplied
 *             in (the caller does); they are carried back per lane. A token whose lanes are all -1 gives zeros.
 * Signals are weak and counted, one per destination and step; nothing is fenced, and no row passes through a third PE. */
#ifndef UNFENCE_EP_H
#define UNFENCE_EP_H

#include "unfence/unfence.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct uf_ep uf_ep;
typedef struct uf_ep_handle uf_ep_handle;

typedef enum uf_ep_type {
    UF_EP_BYTES = 0, /* opaque: dispatch only */
    UF_EP_BF16 = 1,
    UF_EP_F32 = 2,
} uf_ep_type;

typedef struct uf_ep_options {
    size_t size;
    uf_ep_type type; /* of a row's elements */
    size_t hidden;   /* elements of a row; for UF_EP_BYTES its bytes. A row is a multiple of 16 bytes */
    int n_experts;   /* over all PEs; a multiple of the team's size; at most 2048 */
    int top_k;       /* lanes of a token, 1..32 */
    int max_tokens;  /* most tokens a PE may dispatch at once; the same on all PEs */
    int max_handles; /* dispatches whose combine may be outstanding at once, 0: 2 */
} uf_ep_options;

/* Collective over `team`. Symmetric memory is collective over the world, so where the team is not the whole world, all its PEs create at once, in
 * teams of the same size and with the same options. One call at a time per uf_ep, in the same order on all its PEs. UF_EINVAL names the field and its limit; UF_EMISMATCH if PEs differ; UF_ENOMEM with needed and available (receive
 * space for the worst case is set aside: n_pes * max_tokens rows per handle). */
UF_API int uf_ep_create(uf_team *team, const uf_ep_options *options, uf_ep **ep);
/* Collective. Handles still open die with it. */
UF_API int uf_ep_destroy(uf_ep *ep);
/* Bytes of symmetric memory that uf_ep_create will ask for on each PE. */
UF_API size_t uf_ep_bytes(const uf_ep_options *options, int n_pes);

/* What a PE received. The caller sets `size` before the call. All arrays belong to the handle and live until uf_ep_handle_free. */
typedef struct uf_ep_received {
    size_t size;
    int n_rows;
    const void *x;               /* [n_rows][hidden], in symmetric memory, rows contiguous */
    const int32_t *experts;      /* [n_rows][top_k] local expert number or -1 */
    const float *weights;        /* [n_rows][top_k], all lanes of the token */
    const int32_t *source_pe;    /* [n_rows] */
    const int32_t *source_token; /* [n_rows] */
    const int32_t *expert_rows;  /* [n_experts / n_pes] lanes (not rows) that name each local expert */
    const int32_t *source_rows;  /* [n_pes] rows from each PE */
} uf_ep_received;

/* Dispatches x[n_tokens][hidden] by experts[n_tokens][top_k] (global expert numbers, -1 none; a number at most once per token) and
 * weights[n_tokens][top_k] (NULL: all 1). Collective; n_tokens may be 0 and may differ between PEs. Blocks until all rows are here. Refused on
 * all PEs alike with token, lane and limit named: too many tokens, an expert out of range or twice in a token. UF_ETIMEDOUT and UF_EPEER name the
 * late PE, the phase and how far it came; the uf_ep is of no use after these and is to be destroyed. UF_EAGAIN, on all PEs alike: some PE has
 * max_handles open. After UF_EINVAL and UF_EAGAIN all PEs are in step and may go on. */
UF_API int uf_ep_dispatch(uf_ep *ep, const void *x, const int32_t *experts, const float *weights, int n_tokens,
                          uf_ep_handle **handle, uf_ep_received *received);
/* The same routing again with new rows (weights of the handle kept): no counts are exchanged. Overwrites `received->x` of the handle. */
UF_API int uf_ep_dispatch_cached(uf_ep *ep, const void *x, uf_ep_handle *handle, uf_ep_received *received);
/* Brings y[n_rows][hidden] (one row per received row) back and reduces: out[n_tokens][hidden]. `row_weights` [n_rows][top_k] (NULL: those
 * received) are carried back to out_weights[n_tokens][top_k] (may be NULL): lane by lane from the owning PE, 0 for empty lanes. Collective. May be called
 * again on the same handle. y is the caller's again on return. UF_EUNSUPPORTED for UF_EP_BYTES. */
UF_API int uf_ep_combine(uf_ep *ep, const void *y, const float *row_weights, uf_ep_handle *handle, void *out, float *out_weights);
/* Local. The handle's receive space may then be used by a later dispatch. */
UF_API int uf_ep_handle_free(uf_ep_handle *handle);

/* Where time and bytes went since creation, for tables: nanoseconds summed and calls counted by the caller's own clock are better for latency. */
typedef struct uf_ep_stats {
    size_t size;
    uint64_t dispatches, combines;
    uint64_t tokens_sent, tokens_received; /* rows; own rows included */
    uint64_t bytes_sent, bytes_received;   /* payload to and from other PEs */
    uint64_t late_ns[2];                   /* time waited for the latest PE, dispatch and combine */
    int late_pe[2];                        /* who that was last, -1 if nobody */
} uf_ep_stats;
UF_API int uf_ep_stats_get(const uf_ep *ep, uf_ep_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
