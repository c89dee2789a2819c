/* drain.c - the signal goes when nothing of the queue is in flight any more: after each put, or after a batch to each peer. What a proxy does that
 * knows no other order than a quiet NIC. The next puts go at once after the signals. */
#include "raw.h"

typedef struct drain {
    ordering_list signals;
    uint64_t in_flight; /* work requests without completion */
    uint64_t batch;     /* puts posted since the last signals */
    bool draining;
} drain;

static int drain_open(ordering_run *r)
{
    drain *d = r->state;
    int rc = ordering_raw_open(r);
    return rc ? rc : ordering_list_open(&d->signals, r);
}

static void drain_close(ordering_run *r)
{
    ordering_list_close(&((drain *)r->state)->signals);
    ordering_raw_close(r);
}

/* A batch must fit into the window, or it would never be full. */
static uint64_t batch_size(const ordering_run *r)
{
    uint64_t batch = r->scheme->one_by_one ? 1 : (uint64_t)r->o->batch * r->o->peers;
    return batch < r->o->inflight ? batch : r->o->inflight;
}

static int drain_put(ordering_run *r, uint64_t n)
{
    drain *d = r->state;
    if (d->draining)
        return UF_EAGAIN;
    int rc = ordering_raw_put(r, n, -1);
    if (rc)
        return rc;
    d->in_flight++;
    ordering_list_add(&d->signals, n);
    d->draining = ++d->batch == batch_size(r) || n + 1 == r->o->puts;
    return UF_OK;
}

static int drain_sent(ordering_run *r, uint32_t cookie)
{
    drain *d = r->state;
    (void)cookie;
    d->in_flight--;
    return UF_OK;
}

static int drain_step(ordering_run *r, uint32_t pe)
{
    drain *d = r->state;
    /* Signals that found the queue full leave batch at 0: they go on, without another drain. */
    if (pe != 0 || !d->draining || (d->in_flight && d->batch))
        return UF_OK;
    r->result->drains += d->batch != 0;
    d->batch = 0;
    uint64_t before = d->signals.head;
    int rc = ordering_list_signal(&d->signals, r);
    d->in_flight += d->signals.head - before;
    d->draining = d->signals.head != d->signals.tail;
    return rc;
}

const ordering_scheme ordering_drain = {
    .name = "drain",
    .text = "all in flight completes before each signal",
    .one_by_one = true,
    .state_bytes = sizeof(drain),
    .open = drain_open,
    .close = drain_close,
    .put = drain_put,
    .turn = ordering_raw_turn,
    .sent = drain_sent,
    .arrived = ordering_raw_saw_slot,
    .step = drain_step,
};

const ordering_scheme ordering_drain_batch = {
    .name = "drain-batch",
    .text = "a batch of puts to each peer, one drain, their signals",
    .state_bytes = sizeof(drain),
    .open = drain_open,
    .close = drain_close,
    .put = drain_put,
    .turn = ordering_raw_turn,
    .sent = drain_sent,
    .arrived = ordering_raw_saw_slot,
    .step = drain_step,
};
