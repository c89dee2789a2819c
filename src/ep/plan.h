/* plan.h - the layout arithmetic of dispatch and combine: counts, prefix sums, slots. Pure: no I/O, no communication, no allocation.
 *
 * Everything is a function of the routing, so row order needs no sort and no atomics: row of token (s, i) on PE d =
 * (rows of sources before s on d) + (tokens before i of s that go to d). Depends on base alone. */
#ifndef UF_EP_PLAN_H
#define UF_EP_PLAN_H

#include <stddef.h>
#include <stdint.h>

typedef struct uf_ep_shape {
    int n_pes, n_experts, top_k, max_tokens;
} uf_ep_shape;

/* UF_EINVAL with the field and limit: PEs 1..1024, experts a positive multiple of PEs up to 2048, top_k 1..32 (and <= experts), max_tokens >= 0 and
 * n_pes * max_tokens < 2^31. */
int uf_ep_shape_check(const uf_ep_shape *shape);
/* UF_EINVAL with token and lane: number out of range, below -1, or twice in a token; n_tokens beyond max_tokens. */
int uf_ep_routing_check(const uf_ep_shape *shape, const int32_t *experts, int n_tokens);

/* The source's view: rows[d] = tokens of mine that go to PE d (each once). slot[i * n_pes ...] is not stored: see uf_ep_plan_slots. */
void uf_ep_plan_counts(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *rows);
/* For each token and lane: slot[i * top_k + j] = index among my rows to the owner of that lane, -1 for empty lanes. Lanes of the same owner share it. */
void uf_ep_plan_slots(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *slot);
/* The list of tokens that go to each PE, in token order: tokens[first[d] .. first[d] + rows[d]), first is the prefix sum of rows. `tokens` has room for
 * n_tokens * min(top_k, n_pes). */
void uf_ep_plan_lists(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *first, int32_t *tokens);
/* The receiver's view from everybody's counts, counts[s * n_pes + d]: first row of source s on PE d. Exclusive prefix over s. */
int32_t uf_ep_plan_row(const uf_ep_shape *shape, const int32_t *counts, int s, int d);
/* The order of reduction of a token: its distinct owners by increasing highest lane. Returns their number; owners[k], and lane[k] a lane of that owner. */
int uf_ep_plan_owners(const uf_ep_shape *shape, const int32_t *token_experts, int *owners, int *lane);

#endif
