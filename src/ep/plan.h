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

/* What is wrong with a PE's arguments: plain data, because it travels to all PEs so that all refuse alike. */
typedef enum uf_ep_fault_kind {
    UF_EP_FAULT_NONE = 0,
    UF_EP_FAULT_TOKENS = 1,    /* value: the number of tokens */
    UF_EP_FAULT_RANGE = 2,     /* value: the expert number */
    UF_EP_FAULT_TWICE = 3,     /* value: the expert number; lane is the second one */
    UF_EP_FAULT_NULL = 4,      /* lane: a uf_ep_argument; value: the tokens or rows that need it, 0 if it is always needed */
    UF_EP_FAULT_HANDLES = 5,   /* value: handles open. UF_EAGAIN */
    UF_EP_FAULT_GRADIENTS = 6, /* of a new dispatch */
    UF_EP_FAULT_ALIGNMENT = 7, /* lane: a uf_ep_argument */
    UF_EP_FAULT_SIZE = 8,      /* lane: a uf_ep_argument; value: its size field */
    UF_EP_FAULT_HANDLE = 9,    /* lane: a uf_ep_handle_fault */
} uf_ep_fault_kind;

/* Arguments by number, as faults name them. */
typedef enum uf_ep_argument {
    UF_EP_ARG_X = 0,
    UF_EP_ARG_EXPERTS,
    UF_EP_ARG_SCALES,
    UF_EP_ARG_Y,
    UF_EP_ARG_OUT,
    UF_EP_ARG_BIAS_0,
    UF_EP_ARG_BIAS_1,
    UF_EP_ARG_SEND,
    UF_EP_ARG_BACK,
    UF_EP_ARG_RECEIVED,
} uf_ep_argument;

typedef enum uf_ep_handle_fault {
    UF_EP_HANDLE_NULL = 0,
    UF_EP_HANDLE_FOREIGN,
    UF_EP_HANDLE_FREED,
    UF_EP_HANDLE_BUSY,
} uf_ep_handle_fault;

typedef struct uf_ep_fault {
    int32_t kind; /* uf_ep_fault_kind */
    int32_t token, lane, value;
} uf_ep_fault;

/* A fault of a call as one signal word: kind, lane and value, and the low 24 bits of the call's number, which is not 0. Token is not carried. */
uint64_t uf_ep_fault_pack(const uf_ep_fault *fault, uint64_t call);
/* Whether `word` is a fault of `call`; if so, which. */
int uf_ep_fault_unpack(uint64_t word, uint64_t call, uf_ep_fault *fault);

/* UF_EINVAL with the field and limit: PEs 1..1024, experts a positive multiple of PEs up to 2048, top_k 1..32 (and <= experts),
 * max_tokens >= 0, n_pes * max_tokens and top_k * max_tokens < 2^31. */
int uf_ep_shape_check(const uf_ep_shape *shape);
/* UF_EINVAL with the first fault of a routing: n_tokens beyond max_tokens, a number out of range or below -1, or twice in a token. Makes
 * no sentence: uf_ep_fault_fail does, on any PE. */
int uf_ep_routing_find(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, uf_ep_fault *fault);
/* Fails with the sentence for a fault of PE `pe`; UF_OK for none. */
int uf_ep_fault_fail(const uf_ep_shape *shape, int pe, const uf_ep_fault *fault);
/* Both in one: UF_EINVAL naming PE, token, lane, number and limit. */
int uf_ep_routing_check(const uf_ep_shape *shape, int pe, const int32_t *experts, int n_tokens);

/* The source's view: rows[d] = tokens of mine that go to PE d (each once). */
void uf_ep_plan_counts(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *rows);
/* The same, and for each token and lane: slot[i * top_k + j] = index among my rows to the owner of that lane, -1 for empty lanes.
 * Lanes of the same owner share it. */
void uf_ep_plan_slots(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *rows, int32_t *slot);
/* first[d] = rows of the PEs before d: where the block of PE d begins when blocks follow each other in PE order. */
void uf_ep_plan_prefix(const uf_ep_shape *shape, const int32_t *rows, int32_t *first);
/* The receiver's view from everybody's counts, counts[s * n_pes + d]: first row of source s on PE d. Exclusive prefix over s. */
int32_t uf_ep_plan_row(const uf_ep_shape *shape, const int32_t *counts, int s, int d);
/* The order of reduction of a token: its distinct owners by increasing highest lane. Returns their number (at most min(top_k, n_pes), the
 * room that both arrays need); owners[k], and lane[k] the highest lane of that owner. */
int uf_ep_plan_owners(const uf_ep_shape *shape, const int32_t *token_experts, int *owners, int *lane);

/* The rows of UF_EP_EXPERT_MAJOR. From rows[l] lanes of each local expert: aligned[l] = rows[l] rounded up to a multiple of `alignment`,
 * first[l] the sum of those before, first[n_local] of all. */
void uf_ep_plan_experts(int n_local, int alignment, const int32_t *rows, int32_t *aligned, int32_t *first);
/* row[t * top_k + j] of n tokens by their local experts: the row of each lane, -1 for lanes of others. Within an expert in the order of
 * tokens. `next` [n_local] is scratch. */
void uf_ep_plan_expand(int n_local, int top_k, const int32_t *experts, int n, const int32_t *first, int32_t *next, int32_t *row);
/* For each token and lane: place[i * top_k + j] = index among all my lanes to the owner of that lane, -1 for empty lanes; lanes[d] = their
 * number. As uf_ep_plan_slots, but each lane by itself. */
void uf_ep_plan_lanes(const uf_ep_shape *shape, const int32_t *experts, int n_tokens, int32_t *lanes, int32_t *place);
/* The order in which the groups of a list of PEs are added: by their last member. group[pe] is the group of a PE; order[g] of the list's
 * groups, at most 32. Returns their number. */
int uf_ep_plan_groups(const int32_t *group, const int *pes, int n, int32_t *order);

#endif
