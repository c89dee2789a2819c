/* hw_counter.c - put, its own completion, then a plain write of 0 bytes to a second queue of the peer, whose arrivals the peer's NIC counts in memory.
 *
 * No completion at the peer, but a queue for each signal word, and a count, which does not say whose signal it was: the k-th that arrives is taken for
 * the k-th that was posted. That is sound, since all that were posted had their bytes placed, and exact on average. Here the second
 * queue of a peer is on a NIC of its own; the model's wire is the sender's, so nothing is gained by it. */
#include "base/error.h"
#include "raw.h"
#include <stdlib.h>

typedef struct counted {
    uint64_t posted, seen;
} counted;

typedef struct counter_state {
    ordering_list signals;
    counted *peers;  /* by PE */
    uint32_t *order; /* of each peer, a row: puts whose signals were posted */
    uint32_t row;
} counter_state;

static int counter_open(ordering_run *r)
{
    counter_state *s = r->state;
    s->row = ordering_puts_to(r, 1);
    s->peers = calloc(r->n_pes, sizeof *s->peers);
    s->order = malloc((size_t)r->n_pes * s->row * sizeof *s->order);
    if (!s->peers || !s->order)
        return uf_fail(UF_ENOMEM, "ordering: no memory for the signals of %u peers", r->o->peers);
    int rc = ordering_raw_open(r);
    return rc ? rc : ordering_list_open(&s->signals, r);
}

static void counter_close(ordering_run *r)
{
    counter_state *s = r->state;
    ordering_raw_close(r);
    ordering_list_close(&s->signals);
    free(s->peers);
    free(s->order);
}

static int counter_put(ordering_run *r, uint64_t n)
{
    return ordering_raw_put(r, n, -1);
}

static int counter_sent(ordering_run *r, uint32_t cookie)
{
    if (!(cookie & 1))
        ordering_list_add(&((counter_state *)r->state)->signals, cookie >> 1);
    return UF_OK;
}

static uint32_t second_queue(const ordering_run *r, uint32_t pe)
{
    return r->n_pes + pe - 1;
}

static int post_signals(ordering_run *r, counter_state *s)
{
    int rc = UF_OK;
    while (s->signals.head < s->signals.tail && !rc) {
        uint32_t n = s->signals.puts[s->signals.head], peer = ordering_peer_of(r, n);
        rc = ordering_raw_signal(r, n, second_queue(r, peer), -1);
        if (rc == UF_OK) {
            s->signals.head++;
            s->order[(size_t)peer * s->row + s->peers[peer].posted++] = n;
        }
    }
    return rc;
}

static bool counter_ready(const ordering_run *r, uint32_t pe)
{
    const counter_state *s = r->state;
    return pe != 0 && uf_load_acquire64(&r->remote_writes[second_queue(r, pe)]) != s->peers[pe].seen;
}

static int counter_step(ordering_run *r, uint32_t pe)
{
    counter_state *s = r->state;
    if (pe == 0)
        return post_signals(r, s);
    int rc = UF_OK;
    uint64_t count = uf_load_acquire64(&r->remote_writes[second_queue(r, pe)]);
    if (count > s->peers[pe].posted)
        return uf_fail(UF_EINTERNAL, "ordering: the counter of PE %u is at %llu, and %llu signals were posted", pe,
                       (unsigned long long)count, (unsigned long long)s->peers[pe].posted);
    if (count != s->peers[pe].seen)
        ordering_worked(r, pe); /* one look, however many came */
    while (!rc && s->peers[pe].seen < count)
        rc = ordering_saw(r, s->order[(size_t)pe * s->row + s->peers[pe].seen++]);
    return rc;
}

static int counter_arrived(ordering_run *r, uint32_t pe, const uf_cqe *cqe)
{
    (void)r, (void)cqe;
    return uf_fail(UF_EINTERNAL, "ordering: PE %u got a completion, and nobody sends any", pe);
}

const ordering_scheme ordering_hw_counter = {
    .name = "hw-counter",
    .text = "after the put's completion a write to a queue whose arrivals the NIC counts",
    .counters = true,
    .state_bytes = sizeof(counter_state),
    .open = counter_open,
    .close = counter_close,
    .put = counter_put,
    .turn = ordering_raw_turn,
    .ready = counter_ready,
    .sent = counter_sent,
    .arrived = counter_arrived,
    .step = counter_step,
};
