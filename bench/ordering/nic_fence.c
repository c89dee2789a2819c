/* nic_fence.c - put and signal are posted together, and the NIC holds the signal until all before it in its queue are acknowledged. EFA has no such
 * flag; the model has it for this comparison (can_fence). */
#include "raw.h"

typedef struct fence {
    ordering_list signals; /* one at most, when the queue had room for the put alone */
} fence;

static int fence_open(ordering_run *r)
{
    int rc = ordering_raw_open(r);
    return rc ? rc : ordering_list_open(&((fence *)r->state)->signals, r);
}

static void fence_close(ordering_run *r)
{
    ordering_list_close(&((fence *)r->state)->signals);
    ordering_raw_close(r);
}

static int fence_step(ordering_run *r, uint32_t pe)
{
    return pe == 0 ? ordering_list_signal(&((fence *)r->state)->signals, r) : UF_OK;
}

static int fence_put(ordering_run *r, uint64_t n)
{
    fence *f = r->state;
    int rc = fence_step(r, 0);
    rc = rc ? rc : ordering_raw_put(r, n, -1);
    if (rc)
        return rc;
    ordering_list_add(&f->signals, n);
    rc = fence_step(r, 0);
    return rc == UF_EAGAIN ? UF_OK : rc;
}

const ordering_scheme ordering_nic_fence = {
    .name = "nic-fence",
    .text = "the NIC holds each signal until all before it is acknowledged (no EFA can)",
    .fence = true,
    .state_bytes = sizeof(fence),
    .open = fence_open,
    .close = fence_close,
    .put = fence_put,
    .turn = ordering_raw_turn,
    .arrived = ordering_raw_saw_slot,
    .step = fence_step,
};
