/* credit.c - credits, and the control writes that carry them and receipts (rules 3, 8, 10).
 *
 * An immediate costs the sender a credit until the receiver has consumed it, a message until it is applied, so that the peer's
 * CQ, receives and pools can never overrun. What came back is told cumulatively, once half of a flow's credits are new.
 * Control writes cost no credit. They are bounded by construction; unconsumed in the peer's CQ there can be at most, per flow,
 *   1 quiet      the next is sent only after the receipt of this one, which proves that it was consumed;
 *   1 receipt    it answers the peer's one outstanding quiet;
 *   1 + 1 credit returns: the next is sent only when more has been consumed than all returns before this one allowed the peer to send.
 *                So the peer has consumed this one, whatever the network did with their order. (By induction: all before it, too.)
 * UF_ORDER_CONTROL_RESERVE is their sum. The peer is never starved by that proof: it may send up to the last return plus all its credits,
 * which is more than the one before. A control that cannot be posted now is a bit in `control`; its value is read when it is
 * posted, so a later one never adds a second. */
#include "order/internal.h"

/* ---------------------------------------------------------------- flows with something to post */

void uf_order_activate(uf_order *o, uf_order_flow *flow)
{
    o->attention = true;
    flow->resting = 0;
    if (flow->active)
        return;
    uint32_t index = uf_order_flow_index(o, flow);
    flow->active = 1;
    flow->next_active = UF_NONE;
    if (o->active_tail == UF_NONE)
        o->active_head = index;
    else
        o->flows[o->active_tail].next_active = index;
    o->active_tail = index;
    o->n_active++;
}

/* ---------------------------------------------------------------- control, out */

static uf_order_hold post_control(uf_order *o, uf_order_flow *flow, uint32_t imm)
{
    uf_order_cookie like = {.type = UF_WR_CONTROL, .entry = UF_NONE};
    if (!o->config.immediates) {
        uf_order_wire wire = {.type = UF_MSG_CONTROL, .operand = imm};
        return uf_order_post_message(o, flow, &wire, &like);
    }
    uf_wr wr = {.verb = UF_VERB_WRITE_IMM,
                .flags = o->silent_control ? UF_WR_SILENT : 0,
                .rail = flow->home,
                .peer = flow->peer,
                .imm = imm};
    return uf_order_post(o, flow, &wr, &like);
}

/* Writes what is due; the receipt first, since it carries credits as well. */
uf_order_hold uf_order_control_pump(uf_order *o, uf_order_flow *flow)
{
    static const uint8_t order[] = {UF_CONTROL_RECEIPT, UF_CONTROL_QUIET, UF_CONTROL_CREDITS, UF_CONTROL_MESSAGES};
    for (uint32_t i = 0; flow->control && i < sizeof order; i++) {
        uint32_t type = order[i], bit = 0, value = 0;
        if (!(flow->control & 1u << type))
            continue;
        switch (type) {
        case UF_CONTROL_RECEIPT:
            bit = flow->receipt_bit;
            value = flow->receipt_number;
            break;
        case UF_CONTROL_QUIET:
            bit = (uint32_t)(flow->asking & 1);
            value = flow->flip_number;
            break;
        case UF_CONTROL_CREDITS:
            value = flow->rx_imm[0] + flow->rx_imm[1];
            break;
        case UF_CONTROL_MESSAGES:
            value = flow->rx_msg[0] + flow->rx_msg[1];
            break;
        }
        uf_order_hold hold = post_control(o, flow, uf_imm_control(type, bit, value));
        if (hold != UF_HOLD_GO)
            return hold;
        flow->control &= ~(1u << type);
        o->counters.control_wrs++;
        if (type == UF_CONTROL_CREDITS) {
            flow->imm_proof = flow->imm_told + o->config.credits;
            flow->imm_told = value;
        }
        if (type == UF_CONTROL_MESSAGES) {
            flow->msg_proof = flow->msg_told + o->general;
            flow->msg_told = value;
        }
    }
    return UF_HOLD_GO;
}

/* Control `type` is due: tries at once, since a peer may wait for it, and leaves it to progress if the network is full. */
void uf_order_control_set(uf_order *o, uf_order_flow *flow, uint32_t type)
{
    flow->control |= 1u << type;
    if (flow->stalled & UF_STALL_POST || uf_order_control_pump(o, flow) != UF_HOLD_GO)
        uf_order_activate(o, flow);
}

/* A control was on a rail that broke. It is due again if it is still the last of its kind; perhaps it arrived all the same, which
 * does no harm. A credit return counts as never sent, or nothing might ever prove that it was read. */
void uf_order_control_lost(uf_order *o, uf_order_flow *flow, uint32_t imm)
{
    uint32_t type = uf_imm_type(imm), value = uf_imm_value(imm);
    switch (type) {
    case UF_CONTROL_CREDITS:
        if (value != (flow->imm_told & UF_IMM_VALUE_MASK))
            return;
        flow->imm_told = flow->imm_proof - o->config.credits;
        break;
    case UF_CONTROL_MESSAGES:
        if (value != (flow->msg_told & UF_IMM_VALUE_MASK))
            return;
        flow->msg_told = flow->msg_proof - o->general;
        break;
    case UF_CONTROL_QUIET:
        if (!flow->asking || value != flow->flip_number)
            return;
        break;
    default:
        if (value != flow->receipt_number)
            return;
        break;
    }
    flow->control |= 1u << type;
    uf_order_activate(o, flow);
}

/* ---------------------------------------------------------------- credits, receiving side */

/* Half of the flow's credits were consumed since it was last told. */
void uf_order_credit_imm(uf_order *o, uf_order_flow *flow)
{
    bool proven = uf_order_before(flow->imm_proof, flow->rx_imm[0] + flow->rx_imm[1]);
    if (proven && !(flow->control & 1u << UF_CONTROL_CREDITS) && !uf_order_mutant(o, UF_MUTANT_8_RETURN))
        uf_order_control_set(o, flow, UF_CONTROL_CREDITS);
}

/* A message with a credit was applied, and its place in the pool is free again. */
void uf_order_credit_message(uf_order *o, uf_order_flow *flow, uint32_t bit)
{
    flow->rx_msg[bit]++;
    if (uf_unlikely(flow->asked))
        uf_order_receipt_check(o, flow, bit);
    uint32_t sum = flow->rx_msg[0] + flow->rx_msg[1];
    if (sum - flow->msg_told >= o->msg_half && uf_order_before(flow->msg_proof, sum) &&
        !(flow->control & 1u << UF_CONTROL_MESSAGES) && !uf_order_mutant(o, UF_MUTANT_8_RETURN))
        uf_order_control_set(o, flow, UF_CONTROL_MESSAGES);
}

/* ---------------------------------------------------------------- control, in */

/* A cumulative count of the peer: moves `limit` forward, or is older than what we know. */
static void returned(uf_order *o, uint32_t value, uint32_t credits, uint32_t *limit)
{
    uint32_t known = *limit - credits;
    uint32_t new = uf_field_distance(known, value, UF_IMM_VALUE_BITS);
    if (new == 0 || new > credits)
        return;
    if (((known + new) & UF_IMM_VALUE_MASK) < new)
        o->counters.wraps++;
    *limit += new;
}

int uf_order_control_in(uf_order *o, uf_order_flow *flow, uint32_t imm)
{
    uint32_t value = uf_imm_value(imm), bit = uf_imm_control_bit(imm);
    uf_order_wake(o, flow);
    switch (uf_imm_type(imm)) {
    case UF_CONTROL_CREDITS:
        returned(o, value, o->config.credits, &flow->imm_limit);
        uf_order_receipt_pace(o, flow);
        return flow->status;
    case UF_CONTROL_MESSAGES:
        returned(o, value, o->general, &flow->msg_limit);
        uf_order_receipt_pace(o, flow);
        return flow->status;
    case UF_CONTROL_QUIET:
        uf_order_quiet_in(o, flow, bit, value);
        return flow->status;
    }
    return uf_order_receipt_in(o, flow, bit, value);
}
