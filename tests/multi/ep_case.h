/* ep_case.h - one dispatch and combine of all PEs, made from a seed, with what the reference model says of it.
 *
 * Made once in the main thread and only read by the PEs. */
#ifndef TESTS_MULTI_EP_CASE_H
#define TESTS_MULTI_EP_CASE_H

#include "support/ep_pes.h"
#include "support/moe_reference.h"

typedef enum ep_routing {
    EP_RANDOM = 0,     /* top_k distinct experts, some lanes empty */
    EP_ONE_EXPERT = 1, /* every token to the last expert, alone */
    EP_NOWHERE = 2,    /* all lanes -1 */
    EP_ONE_PE = 3,     /* all lanes of all tokens to experts of PE 0, as far as it has some */
    EP_FULL = 4,       /* as EP_RANDOM with no empty lane */
    EP_SOME_DEAF = 5,  /* the last PE receives nothing */
} ep_routing;

typedef struct ep_shape {
    int n_pes, n_experts, top_k, max_tokens;
    size_t hidden;
    uf_ep_type type;
    ep_routing routing;
    int tokens, ragged; /* PE s has tokens - s * ragged of them, at least 0 */
} ep_shape;

typedef struct ep_case {
    ep_shape shape;
    uint64_t seed;
    size_t row_bytes, element_bytes;
    int *tokens;
    int32_t **experts;
    float **weights, **row_weights; /* by PE; weights[s] NULL on every fourth PE, row_weights[d] NULL on every third */
    unsigned char **x, **y, **out;  /* out: what combine must give */
    float **out_weights;
    moe_reference model;
    moe_reference_rows *rows;
} ep_case;

ep_case *ep_case_make(const ep_shape *shape, uint64_t seed);
void ep_case_free(ep_case *c);

/* What PEs do with a case; each notes failures in pe and returns true if there was none. `name` goes into the sentence. */
int ep_case_create(ep_pe *pe, const ep_case *c, int max_handles, uf_ep **ep);
int ep_case_dispatch(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle **handle, const char *name);
int ep_case_replay(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle *handle, const char *name);
int ep_case_combine(ep_pe *pe, const ep_case *c, uf_ep *ep, uf_ep_handle *handle, const char *name);
/* The rows of `c` again, with other contents: a case with the same routing and weights, and new x and y. */
ep_case *ep_case_again(const ep_case *c, uint64_t seed);

/* Cases of one shape of communication and many routings, and a walk through them in an order that a seed gives, the same on all PEs: up to three
 * handles are open, some are never combined, some replayed, some refused for a mistake of one PE. */
enum { EP_CHURN_CASES = 12, EP_CHURN_HANDLES = 3 };
typedef struct ep_churn {
    ep_case *cases[EP_CHURN_CASES];
} ep_churn;
ep_churn *ep_churn_make(int n_pes, uint64_t seed);
void ep_churn_free(ep_churn *churn);
void ep_case_churn(ep_pe *pe, const ep_churn *churn, int steps, uint64_t seed);

#endif
