/* reorder_window.c - the immediate is a sequence of the peer, and the peer releases in order out of a window of 16. A put waits for the window: until
 * the one 16 before it, and all before that, are complete. */
#include "base/error.h"
#include "raw.h"
#include <stdlib.h>

enum { WINDOW = 16 };

typedef struct window {
    uint32_t sent, acked;     /* sender: next sequence; all before it are complete */
    uint32_t acked_map;       /* of those from `acked` on */
    uint32_t cursor, arrived; /* receiver: next to be released, and a bit for each from it on */
} window;

static int window_open(ordering_run *r)
{
    window **w = r->state;
    *w = calloc(r->n_pes, sizeof **w);
    return *w ? ordering_raw_open(r) : uf_fail(UF_ENOMEM, "ordering: no memory for %u windows", r->n_pes);
}

static void window_close(ordering_run *r)
{
    ordering_raw_close(r);
    free(*(window **)r->state);
}

static int window_put(ordering_run *r, uint64_t n)
{
    window *w = &(*(window **)r->state)[ordering_peer_of(r, n)];
    if (w->sent - w->acked == WINDOW)
        return UF_EAGAIN;
    int rc = ordering_raw_put(r, n, w->sent);
    w->sent += rc == UF_OK;
    return rc;
}

static int window_sent(ordering_run *r, uint32_t cookie)
{
    uint64_t n = cookie >> 1;
    window *w = &(*(window **)r->state)[ordering_peer_of(r, n)];
    w->acked_map |= 1u << (ordering_slot_of(r, n) - w->acked);
    for (; w->acked_map & 1; w->acked_map >>= 1)
        w->acked++;
    return UF_OK;
}

static int window_arrived(ordering_run *r, uint32_t pe, const uf_cqe *cqe)
{
    window *w = &(*(window **)r->state)[pe];
    uint32_t ahead = cqe->imm - w->cursor;
    int rc = UF_OK;
    if (ahead >= WINDOW)
        return uf_fail(UF_EINTERNAL, "ordering: sequence %u came to PE %u, which is at %u", cqe->imm, pe, w->cursor);
    w->arrived |= 1u << ahead;
    r->result->receiver_work += ahead != 0;
    for (; w->arrived & 1 && !rc; w->arrived >>= 1)
        rc = ordering_saw(r, ordering_put_of(r, pe, w->cursor++));
    return rc;
}

const ordering_scheme ordering_reorder_window = {
    .name = "reorder-window",
    .text = "16 sequences of a peer in the immediate, released in order",
    .in_order = true,
    .state_bytes = sizeof(window *),
    .open = window_open,
    .close = window_close,
    .put = window_put,
    .turn = ordering_raw_turn,
    .sent = window_sent,
    .arrived = window_arrived,
};
