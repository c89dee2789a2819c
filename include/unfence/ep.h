/* ep.h - MoE expert parallelism: dispatch tokens to the PEs that own their experts, combine the results.
 *
 * The contract, with R PEs in the team, E experts (E a multiple of R), L = E / R local experts, expert e owned by PE e / L:
 *   dispatch  PE d receives token (s, i) exactly once if one of its top-k lanes names an expert of d. Tokens come in order of source PE,
 *             then token: a pure function of the routing, the same at every run and on every fabric. A row has the payload bytes
 *             unchanged, its scales, the local expert number of each lane (-1 for lanes of other PEs and empty lanes), all the token's
 *             weights, and its source (PE and token). UF_EP_FLAT gives these rows; UF_EP_EXPERT_MAJOR gives one row for each lane
 *             instead, expert after expert, each expert's rows in the same order and beginning at a multiple of `alignment`.
 *   combine   Takes one row per received row, brings it back, and adds for each token: f32 from 0, first the biases, then the rows in
 *             order of their lanes (of UF_EP_FLAT: of each PE's highest lane), rounded to the row type (nearest even) as often as
 *             `rounding` says. Weights are not multiplied in (the caller does); they are carried back per lane. A token whose
 *             lanes are all -1 gives the sum of the biases, or zeros.
 *   backward  The backward pass of a dispatch is a combine on its handle (gradients of rows in, of tokens out; row_weights carry the
 *             gradients of the weights); that of a combine is a cached dispatch on its handle.
 * Signals are weak and counted, one word per source, direction and slot; nothing is fenced. docs/ep.md has the order of rows against
 * DeepEP's, the phases and the costs. */
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
    UF_EP_FP8 = 3, /* e4m3, not looked at; rows of combine are bf16 */
} uf_ep_type;

typedef enum uf_ep_order { UF_EP_FLAT = 0, UF_EP_EXPERT_MAJOR = 1 } uf_ep_order;

/* How often a sum is rounded to the type of rows on its way: a sum in f32 that is rounded at each level differs from the one that is
 * rounded once in 10 to 30 of 100 elements. */
typedef enum uf_ep_rounding {
    UF_EP_ROUND_ONCE = 0,     /* one sum in the order of lanes. UF_EP_EXPERT_MAJOR then sends back a row per lane */
    UF_EP_ROUND_PER_PE = 1,   /* DeepEP's direct levels: the rows of a PE, in lane order; then the PEs, by highest lane */
    UF_EP_ROUND_PER_HOST = 2, /* DeepEP's hybrid levels: the rows of a PE, the PEs of a host, the hosts */
} uf_ep_rounding;

typedef struct uf_ep_options {
    size_t size;
    uf_ep_type type; /* of a row's elements */
    size_t hidden;   /* elements of a row; for UF_EP_BYTES its bytes. A row is a multiple of 16 bytes */
    int n_experts;   /* over all PEs; a multiple of the team's size; at most 2048 */
    int top_k;       /* lanes of a token, 1..32 */
    int max_tokens;  /* most tokens a PE may dispatch at once; the same on all PEs */
    int max_handles; /* dispatches whose combine may be outstanding at once, 0: 2 */
    uf_ep_order order;
    int alignment; /* UF_EP_EXPERT_MAJOR: each expert's rows begin at a multiple of it; 0: 1. Also of expert_first in UF_EP_FLAT */
    int zero_padding;  /* UF_EP_EXPERT_MAJOR: rows between experts are zeroed; else they hold anything */
    int n_scales;      /* scales that travel with a row, of 4 bytes each (f32, or four ue8m0 packed), not looked at */
    int column_scales; /* received scales lie column after column (see scale_stride), as matrix units want them */
    uf_ep_rounding rounding;
    int node_size; /* UF_EP_ROUND_PER_HOST: consecutive PEs of the team that count as one host; 0: as the PEs really lie */
    int checksums; /* each row travels with a checksum that is compared at its end: to find who corrupts memory, not for speed */
} uf_ep_options;

/* Collective over `team`. Symmetric memory is collective over the world, so where the team is not the whole world, all its PEs create at
 * once, in teams of the same size and with the same options. One call at a time per uf_ep, in the same order on all its PEs. UF_EINVAL
 * names the field and its limit; UF_EMISMATCH if PEs differ; UF_ENOMEM with needed and available (receive space for the worst case is
 * set aside: n_pes * max_tokens rows per handle). */
UF_API int uf_ep_create(uf_team *team, const uf_ep_options *options, uf_ep **ep);
/* Collective. Handles still open die with it. */
UF_API int uf_ep_destroy(uf_ep *ep);
/* Bytes of symmetric memory that uf_ep_create will ask for on each PE. */
UF_API size_t uf_ep_bytes(const uf_ep_options *options, int n_pes);

/* What a PE received. The caller sets `size` before the call. All arrays belong to the handle and live until uf_ep_handle_free or the next
 * dispatch on it. Row numbers are those of x. */
typedef struct uf_ep_received {
    size_t size;
    int n_rows;             /* of x; UF_EP_EXPERT_MAJOR: padding included */
    const void *x;          /* [n_rows][hidden], rows contiguous */
    const int32_t *experts; /* [n_rows][top_k] local expert number or -1; NULL in UF_EP_EXPERT_MAJOR: see expert_first */
    const float *weights;   /* [n_rows][top_k], all lanes of the token; in UF_EP_EXPERT_MAJOR [n_rows], that of the row's lane */
    const int32_t *source_pe;    /* [n_rows]; -1 for padding */
    const int32_t *source_token; /* [n_rows]; -1 for padding */
    const int32_t *expert_rows;  /* [n_local = n_experts / n_pes] lanes that name each local expert */
    const int32_t *source_rows;  /* [n_pes] tokens from each PE */
    const int32_t *source_lane;  /* [n_rows] UF_EP_EXPERT_MAJOR: the row's lane; UF_EP_FLAT: the token's highest lane here */
    int n_tokens;                /* distinct tokens received: the n_rows of UF_EP_FLAT */
    const int32_t *token_rows; /* [n_tokens][top_k] UF_EP_EXPERT_MAJOR: the row of each lane, -1 for lanes of others; else NULL */
    const int32_t
        *expert_first; /* [n_local + 1] first row of each expert, at multiples of `alignment`. UF_EP_FLAT: the same sums */
    const int32_t *expert_aligned; /* [n_local] expert_rows rounded up to a multiple of `alignment` */
    const int32_t *source_first;   /* [n_pes + 1] tokens of the PEs before, exclusive */
    const void *scales; /* NULL if there are none; 4 bytes each: scale j of row n at n * scale_row_stride + j * scale_stride */
    size_t scale_row_stride, scale_stride; /* in scales, not bytes. column_scales: 1 and n_rows rounded up to a multiple of 4 */
} uf_ep_received;

/* What a PE dispatches. */
typedef struct uf_ep_send {
    size_t size;
    const void *x;          /* [n_tokens][hidden] */
    const int32_t *experts; /* [n_tokens][top_k] global expert numbers, -1 none; a number at most once per token */
    const float *weights;   /* [n_tokens][top_k]; NULL: all 1 */
    int n_tokens;           /* 0 is as good as any other */
    const void *scales;     /* scale j of token i at i * scale_token_stride + j * scale_stride, of 4 bytes each */
    size_t scale_token_stride, scale_stride; /* in scales; both 0: [n_tokens][n_scales] */
    int gradients; /* cached only: rows are of the type of combine, without scales. Tells UF_EP_FP8's bf16 gradients from its rows */
} uf_ep_send;

/* Starts a dispatch, and returns as soon as nothing more can be done without hearing from others. *handle NULL: a new routing, *handle is
 * set; else the routing and weights of that handle again with new rows (cached: no counts are exchanged; experts, weights and n_tokens
 * are not looked at), whose received arrays are overwritten. What `send` points to stays unchanged until the finish. Several
 * may be started before the first is finished; all PEs start and finish in the same order. UF_EAGAIN does not come from here, but
 * from the finish, as all refusals do that others must hear of. */
UF_API int uf_ep_dispatch_start(uf_ep *ep, const uf_ep_send *send, uf_ep_handle **handle);
/* Blocks until all rows are here. Refused on all PEs alike with token, lane and limit named: too many tokens, an expert out of range or
 * twice in a token, a NULL argument; a new handle is then free. UF_EAGAIN, on all PEs alike: some PE has max_handles open. After these all
 * PEs are in step and may go on. UF_ETIMEDOUT and UF_EPEER name the late PE, the phase and how far it came; the uf_ep is of no use after these
 * and is to be destroyed, as it is after the UF_EINVAL that names a PE which can't use the handle of its call. */
UF_API int uf_ep_dispatch_finish(uf_ep *ep, uf_ep_handle *handle, uf_ep_received *received);
/* Both in one, with packed rows and no scales. */
UF_API int uf_ep_dispatch(uf_ep *ep, const void *x, const int32_t *experts, const float *weights, int n_tokens,
                          uf_ep_handle **handle, uf_ep_received *received);
UF_API int uf_ep_dispatch_cached(uf_ep *ep, const void *x, uf_ep_handle *handle, uf_ep_received *received);

/* What a PE gives back. */
typedef struct uf_ep_back {
    size_t size;
    const void *y;            /* one row per received row, of the type of combine; padding is not read */
    const float *row_weights; /* in the shape of received weights; NULL: those received */
    const void *bias[2];      /* [n_tokens][hidden] each, or NULL */
    void *out;                /* [n_tokens][hidden] */
    float *out_weights;       /* [n_tokens][top_k], lane by lane from the owning PE, 0 for empty lanes; may be NULL */
} uf_ep_back;

/* Starts a combine on the handle of a finished dispatch; what `back` points to stays unchanged (and out untouched) until the finish. May be
 * done again on the same handle. A wrong argument is refused at the finish, on all PEs alike, which stay in step. A handle that can't be
 * used (as in a cached dispatch) is UF_EINVAL here, and at the finish of those PEs that could use theirs, whose uf_ep is then of no use any more.
 * UF_EUNSUPPORTED for UF_EP_BYTES. */
UF_API int uf_ep_combine_start(uf_ep *ep, const uf_ep_back *back, uf_ep_handle *handle);
/* Blocks until all rows are back and added. y is the caller's again on return. */
UF_API int uf_ep_combine_finish(uf_ep *ep, uf_ep_handle *handle);
/* Both in one, without biases. */
UF_API int uf_ep_combine(uf_ep *ep, const void *y, const float *row_weights, uf_ep_handle *handle, void *out, float *out_weights);

/* Moves what has been started on the handle as far as it goes without waiting. *done: its finish will not have to wait. */
UF_API int uf_ep_test(uf_ep *ep, uf_ep_handle *handle, int *done);
/* Local. The handle's receive space may then be used by a later dispatch. UF_EINVAL while something is started on it. */
UF_API int uf_ep_handle_free(uf_ep_handle *handle);

/* The rows of a UF_EP_FLAT dispatch in DeepEP's order: by the source's number within its group of `group_size` consecutive PEs, then by
 * source PE, then token. rows[n_rows]. groups[group_size], if not NULL: rows of the groups up to and including each. */
UF_API int uf_ep_group_order(const uf_ep_received *received, int n_pes, int group_size, int32_t *rows, int32_t *groups);

/* Where time and bytes went since creation, for tables: nanoseconds summed and calls counted by the caller's own clock are better for latency. */
typedef struct uf_ep_stats {
    size_t size;
    uint64_t dispatches, combines;
    uint64_t tokens_sent, tokens_received; /* rows; own rows included */
    uint64_t bytes_sent, bytes_received;   /* payload to and from other PEs */
    uint64_t late_ns[2];                   /* time waited for the latest PE, dispatch and combine */
    int late_pe[2];                        /* who that was last, -1 if nobody */
    uint64_t mapped_bytes, network_bytes;  /* rows with their scales to other PEs, by path: copied into mapped memory, or put */
} uf_ep_stats;
UF_API int uf_ep_stats_get(const uf_ep *ep, uf_ep_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
