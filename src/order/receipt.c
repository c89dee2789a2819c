/* receipt.c - receipts: how a sender learns that what it sent is applied (rule 9).
 *
 * A flow counts what it sends by one receipt bit. Quiet sends {bit, number} and flips the bit; the peer answers when as many with
 * that bit are applied. A bare total would be wrong, since newer signals may overtake older ones and stand in for them. At most
 * one receipt is outstanding, so two bits are enough: when bit b is used again, everything that had b before is applied. Here the
 * epochs are 64-bit numbers; only their lowest bit travels. Numbers are cumulative over all epochs of a bit, modulo the
 * field of the control, so a request that is sent again (rule 16) is the same request.
 * A receipt proves that what it covers was consumed, yet it does not move credits: then nothing would prove any more that the
 * credit return before it was consumed, and those could pile up in the peer's CQ (credit.c). */
#include "order/internal.h"

/* ---------------------------------------------------------------- the side that asks */

/* So many of one epoch, and its receipt is asked for although nobody wants it (uf_order_receipt_pace). */
#define MOST_OF_AN_EPOCH (1u << 24)
/* The answering side tells a request from a late copy of an older one by the distance of their numbers: less than half the field. */
static_assert(MOST_OF_AN_EPOCH + 2 * (UF_ORDER_MAX_CREDITS + UF_ORDER_MAX_MESSAGES) < UF_IMM_VALUE_MASK / 2,
              "an epoch could outrun the field of its number");

void uf_order_receipt_want(uf_order *o, uf_order_flow *flow, uint64_t epoch)
{
    if (epoch > flow->wanted)
        flow->wanted = epoch;
    uf_order_receipt_start(o, flow);
}

/* Asks for the open epoch if somebody wants it and no other receipt is outstanding. */
void uf_order_receipt_start(uf_order *o, uf_order_flow *flow)
{
    if (flow->asking || flow->wanted < flow->epoch || flow->status)
        return;
    uint32_t bit = (uint32_t)(flow->epoch & 1);
    flow->asking = flow->epoch;
    flow->flip_number = (flow->tx_imm[bit] + flow->tx_msg[bit]) & UF_IMM_VALUE_MASK;
    if (uf_order_mutant(o, UF_MUTANT_9_TOTAL))
        flow->flip_number = (flow->flip_number + flow->tx_imm[bit ^ 1] + flow->tx_msg[bit ^ 1]) & UF_IMM_VALUE_MASK;
    flow->epoch++;
    flow->epoch_first = flow->tx_imm[bit ^ 1] + flow->tx_msg[bit ^ 1];
    o->outstanding++;
    uf_order_control_set(o, flow, UF_CONTROL_QUIET);
}

/* Called when credits come back, which is soon enough: an epoch that nobody ends grows by no more than them in between. */
void uf_order_receipt_pace(uf_order *o, uf_order_flow *flow)
{
    uint32_t bit = (uint32_t)(flow->epoch & 1);
    if (uf_unlikely(flow->tx_imm[bit] + flow->tx_msg[bit] - flow->epoch_first > MOST_OF_AN_EPOCH))
        uf_order_receipt_want(o, flow, flow->epoch);
}

int uf_order_receipt_in(uf_order *o, uf_order_flow *flow, uint32_t bit, uint32_t number)
{
    /* A receipt written again after a rail broke may come twice; its number tells. */
    if (!flow->asking || (flow->asking & 1) != bit || flow->flip_number != number)
        return UF_OK;
    flow->receipted = flow->asking;
    flow->asking = 0;
    flow->control &= ~(1u << UF_CONTROL_QUIET); /* the request itself may have been due again after a rail broke */
    o->outstanding--;
    o->counters.receipts++;
    uf_order_receipt_start(o, flow);
    uf_order_wake(o, flow);
    return UF_OK;
}

/* ---------------------------------------------------------------- the side that answers */

void uf_order_quiet_in(uf_order *o, uf_order_flow *flow, uint32_t bit, uint32_t number)
{
    /* Each request counts more than the one before, by less than half the field (MOST_OF_AN_EPOCH); an old one that was sent again over another rail may come late. */
    uint32_t newer = uf_field_distance(flow->ask_number[bit], number, UF_IMM_VALUE_BITS);
    if (newer == 0 || newer > UF_IMM_VALUE_MASK / 2)
        return;
    flow->ask_number[bit] = number;
    flow->asked |= 1u << bit;
    uf_order_receipt_check(o, flow, bit);
}

/* Something with `bit` was applied: is that all the peer asked about? */
void uf_order_receipt_check(uf_order *o, uf_order_flow *flow, uint32_t bit)
{
    if (!(flow->asked & 1u << bit))
        return;
    uint32_t applied = flow->rx_imm[bit] + flow->rx_msg[bit];
    if (uf_order_mutant(o, UF_MUTANT_9_ARRIVED))
        applied = flow->rx_imm[bit] + flow->arrived[bit];
    bool all = ((applied ^ flow->ask_number[bit]) & UF_IMM_VALUE_MASK) == 0;
    if (uf_order_mutant(o, UF_MUTANT_9_TOTAL)) {
        uint32_t total = flow->rx_imm[0] + flow->rx_imm[1] + flow->rx_msg[0] + flow->rx_msg[1];
        all = ((total - flow->ask_number[bit]) & UF_IMM_VALUE_MASK) < UF_IMM_VALUE_MASK / 2;
    }
    if (!all)
        return;
    flow->asked &= ~(1u << bit);
    flow->receipt_bit = bit;
    flow->receipt_number = flow->ask_number[bit];
    uf_order_control_set(o, flow, UF_CONTROL_RECEIPT);
}
