/* sender_wait.c - each signal goes out after its own put's completion, and nothing else waits: a round trip of latency instead of one of bandwidth. */
#include "raw.h"

typedef struct waiting {
    ordering_list signals;
} waiting;

static int wait_open(ordering_run *r)
{
    int rc = ordering_raw_open(r);
    return rc ? rc : ordering_list_open(&((waiting *)r->state)->signals, r);
}

static void wait_close(ordering_run *r)
{
    ordering_list_close(&((waiting *)r->state)->signals);
    ordering_raw_close(r);
}

static int wait_put(ordering_run *r, uint64_t n)
{
    return ordering_raw_put(r, n, -1);
}

static int wait_sent(ordering_run *r, uint32_t cookie)
{
    if (!(cookie & 1))
        ordering_list_add(&((waiting *)r->state)->signals, cookie >> 1);
    return UF_OK;
}

static int wait_step(ordering_run *r, uint32_t pe)
{
    return pe == 0 ? ordering_list_signal(&((waiting *)r->state)->signals, r) : UF_OK;
}

const ordering_scheme ordering_sender_wait = {
    .name = "sender-wait",
    .text = "each signal goes after its own put's completion",
    .state_bytes = sizeof(waiting),
    .open = wait_open,
    .close = wait_close,
    .put = wait_put,
    .turn = ordering_raw_turn,
    .sent = wait_sent,
    .arrived = ordering_raw_saw_slot,
    .step = wait_step,
};
