/* progress.c - who has a turn: flows with something to post, lanes of a flow, and what each posts first.
 *
 * progress looks only if something happened that may have lifted a hold (`attention`), or if the network refused last time. A flow
 * first posts its controls and answers, since peers wait for those, then gives each lane a turn. Whoever could not move keeps its place
 * in front of those that did, so that a scarce credit or place in the network goes round. A flow that only an event of its own can let go
 * (credits, CQEs, receipts, answers) rests outside the list until that comes: a thousand peers that do not move cost nothing.
 * Must never: let one lane or flow that is stuck keep another from its turn. */
#include "order/internal.h"

void uf_order_lane_activate(uf_order *o, uf_order_lane *lane)
{
    uf_order_flow *flow = lane->flow;
    if (!lane->active) {
        lane->active = true;
        lane->next_active = UF_NONE;
        if (flow->lanes_active_tail == UF_NONE)
            flow->lanes_active_head = lane->index;
        else
            o->lanes[flow->lanes_active_tail].next_active = lane->index;
        flow->lanes_active_tail = lane->index;
    }
    uf_order_activate(o, flow);
}

void uf_order_lane_deactivate(uf_order *o, uf_order_lane *lane)
{
    uf_order_flow *flow = lane->flow;
    uint32_t before = UF_NONE;
    if (!lane->active)
        return;
    lane->active = false;
    for (uint32_t i = flow->lanes_active_head; i != lane->index; i = o->lanes[i].next_active)
        before = i;
    if (before == UF_NONE)
        flow->lanes_active_head = lane->next_active;
    else
        o->lanes[before].next_active = lane->next_active;
    if (flow->lanes_active_tail == lane->index)
        flow->lanes_active_tail = before;
}

typedef struct list {
    uint32_t head, tail;
} list;

static void lane_append(uf_order *o, list *l, uint32_t lane)
{
    o->lanes[lane].next_active = UF_NONE;
    if (l->tail == UF_NONE)
        l->head = lane;
    else
        o->lanes[l->tail].next_active = lane;
    l->tail = lane;
}

/* `b` behind `a`. */
static list joined(uf_order *o, list a, list b)
{
    if (a.head == UF_NONE)
        return b;
    if (b.head == UF_NONE)
        return a;
    o->lanes[a.tail].next_active = b.head;
    return (list){a.head, b.tail};
}

/* A turn for each lane of the flow, until the network is full. Those that could not move, or had no turn, keep their places in front: they are
 * first when there is room. */
static uf_order_hold pump_lanes(uf_order *o, uf_order_flow *flow, uint32_t *posted)
{
    list stuck = {UF_NONE, UF_NONE}, moved = {UF_NONE, UF_NONE};
    uf_order_hold hold = UF_HOLD_GO;
    uint32_t next = flow->lanes_active_head;
    while (next != UF_NONE && hold != UF_HOLD_POST && hold != UF_HOLD_COOKIE) {
        uint32_t index = next;
        uf_order_lane *lane = &o->lanes[index];
        uint32_t before = *posted;
        next = lane->next_active;
        hold = uf_order_pump_lane(o, lane, posted);
        if (hold == UF_HOLD_FAILED)
            return hold;
        if (hold == UF_HOLD_CREDITS)
            flow->stalled |= UF_STALL_CREDITS;
        if (!uf_order_lane_has_work(lane))
            lane->active = false;
        else
            lane_append(o, *posted == before ? &stuck : &moved, index);
    }
    list rest = {next, next == UF_NONE ? UF_NONE : flow->lanes_active_tail};
    list all = joined(o, joined(o, stuck, rest), moved);
    flow->lanes_active_head = all.head;
    flow->lanes_active_tail = all.tail;
    return hold == UF_HOLD_POST || hold == UF_HOLD_COOKIE ? hold : UF_HOLD_GO;
}

static uf_order_hold pump_flow(uf_order *o, uf_order_flow *flow, uint32_t *posted)
{
    flow->stalled &= ~(uint32_t)(UF_STALL_CREDITS | UF_STALL_POST);
    flow->again = 0;
    uf_order_hold hold = uf_order_control_pump(o, flow);
    if (hold == UF_HOLD_GO)
        hold = uf_order_answers_pump(o, flow);
    if (hold == UF_HOLD_GO)
        hold = uf_order_count_pump(o, flow);
    if (hold == UF_HOLD_GO && !(flow->stalled & UF_STALL_RAIL))
        hold = uf_order_may_post(o, flow) ? pump_lanes(o, flow, posted) : UF_HOLD_COOKIE;
    if (hold == UF_HOLD_POST || hold == UF_HOLD_COOKIE)
        flow->stalled |= UF_STALL_POST;
    return hold;
}

static bool flow_has_work(const uf_order_flow *flow)
{
    return !flow->status && (flow->control || flow->answers_head != UF_NONE || flow->lanes_active_head != UF_NONE ||
                             flow->rails_ask || flow->rails_tell || (flow->stalled & UF_STALL_RAIL));
}

/* After its turn: does only an event of the flow's own let it go on? What the network or the endpoint refused may go at any time. */
static bool may_rest(const uf_order_flow *flow)
{
    bool refused = flow->stalled & (UF_STALL_POST | UF_STALL_RAIL);
    return !refused && !flow->again && !flow->control && flow->answers_head == UF_NONE && !flow->rails_tell;
}

/* Puts flows in front of those that are active. */
static void requeue(uf_order *o, list flows)
{
    if (flows.head == UF_NONE)
        return;
    o->flows[flows.tail].next_active = o->active_head;
    if (o->active_tail == UF_NONE)
        o->active_tail = flows.tail;
    o->active_head = flows.head;
}

int uf_order_progress(uf_order *order)
{
    if (!order->attention)
        return 0;
    order->attention = false;
    uint64_t before = order->counters.data_wrs + order->counters.message_wrs + order->counters.control_wrs;
    uf_order_hold full = uf_order_replay(order);
    uint32_t stuck = UF_NONE, stuck_tail = UF_NONE, moved = UF_NONE, moved_tail = UF_NONE;
    uint32_t next = order->active_head;
    /* What joins while this runs goes behind, and is looked at in the next call. */
    order->active_head = order->active_tail = UF_NONE;
    order->n_active = 0;
    while (next != UF_NONE) {
        uf_order_flow *flow = &order->flows[next];
        uint32_t index = next, posted = 0;
        next = flow->next_active;
        uf_order_hold hold = pump_flow(order, flow, &posted);
        if (hold == UF_HOLD_POST)
            full = hold;
        if (!flow_has_work(flow) || may_rest(flow)) {
            flow->active = 0;
            flow->resting = flow_has_work(flow);
            continue;
        }
        uint32_t *head = posted ? &moved : &stuck, *tail = posted ? &moved_tail : &stuck_tail;
        flow->next_active = UF_NONE;
        if (*tail == UF_NONE)
            *head = index;
        else
            order->flows[*tail].next_active = index;
        *tail = index;
        order->n_active++;
    }
    requeue(order, (list){moved, moved_tail});
    requeue(order, (list){stuck, stuck_tail});
    if (full == UF_HOLD_POST)
        order->attention = true;
    return (int)(order->counters.data_wrs + order->counters.message_wrs + order->counters.control_wrs - before);
}
