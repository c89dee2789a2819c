/* complete.c - own CQEs, and flows that end.
 *
 * A CQE takes its WR out of its batch and tells whoever waits. What a CQE means differs by type, and only the cookie knows: for a
 * put that its bytes are placed, for an immediate that the peer's CQ has it or only that the source may be reused, for a
 * message nothing but that its sequence is behind us.
 * When a flow ends, everything of it completes with the error, once, and its cookies are given up: a generation in the cookie
 * tells a late CQE from that of a new WR. Must never: call `done` twice for one operation. */
#include "order/internal.h"

void uf_order_cookie_free(uf_order *o, uint32_t index)
{
    uf_order_cookie *c = &o->cookies[index];
    if (uf_unlikely(o->save)) {
        uf_order_may_replay_count(c->flow, c->type, -1);
        if (c->prev != index)
            uf_order_overlap_remove(o, c->flow, index);
    }
    c->flow->in_flight--;
    c->type = UF_WR_FREE;
    c->generation++;
    c->next = o->cookie_free;
    o->cookie_free = index;
    o->cookies_free++;
}

static int stray(uf_order *o, uint32_t cookie)
{
    if (o->lost) {
        o->lost--; /* of a flow that ended, or a control of a broken rail */
        return UF_OK;
    }
    return uf_fail(UF_EINTERNAL, "PE %u: the fabric completed a work request that is not in flight (cookie %#x)", o->config.self,
                   cookie);
}

static void batch_sent(uf_order *o, uf_order_lane *lane, uint8_t batch)
{
    uf_order_batch *b = &lane->batch[batch];
    if (--b->open == 0 && uf_unlikely(lane->oldest < lane->newest))
        uf_order_lane_retire(o, lane);
}

/* The counterpart of uf_order_book. */
static inline void unbook(uf_order *o, const uf_order_cookie *c)
{
    uf_order_lane *lane = c->lane;
    if (uf_likely(c->type == UF_WR_ADD || c->type == UF_WR_PLAIN)) {
        lane->batch[c->batch].plain--;
        lane->plain--;
        batch_sent(o, lane, c->batch);
        return;
    }
    switch (c->type) {
    case UF_WR_SEQUENCE:
    case UF_WR_MESSAGE:
        uf_order_sequence_acked(o, lane, c->sequence);
        break;
    case UF_WR_READ:
        break;
    default:
        return;
    }
    batch_sent(o, lane, c->batch);
}

int uf_order_sent(uf_order *order, uint32_t cookie, int status)
{
    uint32_t index = cookie & 0xffff;
    if (uf_unlikely(index >= order->config.tx_depth))
        return stray(order, cookie);
    uf_order_cookie *c = &order->cookies[index];
    if (uf_unlikely(c->type == UF_WR_FREE || c->generation != cookie >> 16))
        return stray(order, cookie);
    if (uf_unlikely(status < 0)) {
        uf_order_fail_flow(order, c->flow->peer, status);
        if (order->lost)
            order->lost--; /* this one has come */
        return status;
    }
    unbook(order, c);
    uint64_t user = c->user;
    uint32_t entry = c->entry;
    uf_order_cookie_free(order, index);
    uf_order_wake(order, c->flow);
    if (user)
        order->edges.done(order->edges.arg, user, UF_OK, 0);
    else if (entry != UF_NONE)
        uf_order_entry_sent(order, entry);
    return UF_OK;
}

/* ---------------------------------------------------------------- ends */

static void end_cookies(uf_order *o, uf_order_flow *flow, int status)
{
    for (uint32_t i = 0; i < o->config.tx_depth; i++) {
        uf_order_cookie *c = &o->cookies[i];
        if (c->type == UF_WR_FREE || c->flow != flow)
            continue;
        uint64_t user = c->user;
        if (!c->lost)
            o->lost++;
        uf_order_cookie_free(o, i);
        if (user)
            o->edges.done(o->edges.arg, user, status, 0);
    }
}

/* Of the whole flow, or (lane not NULL) of one lane what has not been posted completely. */
static void end_entries(uf_order *o, uf_order_flow *flow, uf_order_lane *lane, int status)
{
    for (uint32_t i = 0; i < o->config.queue_ops; i++) {
        uf_order_entry *e = &o->entries[i];
        if (!e->lane || e->lane->flow != flow || (lane && (e->lane != lane || e->left)))
            continue;
        bool fetch = e->op.kind == UF_ORDER_ATOMIC && e->op.op >= UF_ATOMIC_FETCH && e->left;
        uint64_t user = fetch ? 0 : e->op.user; /* a fetch that was posted is in its slot */
        if (!e->left) {
            e->lane->batch[e->batch].open--;
            e->lane->batch[e->batch].waiting--;
        }
        uf_order_entry_free(o, i);
        if (user)
            o->edges.done(o->edges.arg, user, status, 0);
    }
}

static void end_slots(uf_order *o, uf_order_flow *flow, int status)
{
    for (uint32_t i = 0; i < o->answers; i++) {
        uf_order_slot *s = uf_order_slot_of(o, flow, i);
        uint64_t user = s->type == UF_SLOT_FETCH ? s->user : 0;
        if (s->type != UF_SLOT_FREE)
            uf_order_slot_give(o, flow, i);
        if (user)
            o->edges.done(o->edges.arg, user, status, 0);
    }
}

static void end_lanes(uf_order *o, uf_order_flow *flow)
{
    for (uint32_t i = 0; i < o->config.max_local_lanes; i++) {
        uf_order_lane *lane = &o->lanes[i];
        if (!lane->used || lane->flow != flow)
            continue;
        lane->queue = lane->held = lane->ready = (uf_order_queue){UF_NONE, UF_NONE};
        lane->active = false;
        lane->status = flow->status;
    }
    flow->lanes_active_head = flow->lanes_active_tail = UF_NONE;
}

/* The sentence is in the thread's message already. Returns `status`. */
int uf_order_end_flow(uf_order *o, uf_order_flow *flow, int status)
{
    if (flow->status)
        return flow->status;
    flow->status = status;
    flow->stalled |= UF_STALL_FAILED;
    flow->control = 0;
    flow->rails_ask = flow->rails_tell = 0;
    if (flow->asking)
        o->outstanding--;
    flow->asking = 0;
    o->edges.failed(o->edges.arg, flow->peer, status); /* the reason before its consequences */
    end_lanes(o, flow);
    uf_order_receiver_end(o, flow);
    end_cookies(o, flow, status);
    end_entries(o, flow, NULL, status);
    end_slots(o, flow, status);
    o->attention = true;
    return status;
}

/* Ends one lane: what is not posted completes with `status`, what is in flight as usual. */
int uf_order_end_lane(uf_order *o, uf_order_lane *lane, int status)
{
    if (lane->status)
        return lane->status;
    lane->status = status;
    for (uint32_t i = 0; i < o->config.tx_depth; i++) {
        uint32_t entry = o->cookies[i].entry;
        if (o->cookies[i].type != UF_WR_FREE && o->cookies[i].lane == lane && entry != UF_NONE && !o->entries[entry].left)
            o->cookies[i].entry = UF_NONE;
    }
    lane->queue = lane->held = lane->ready = (uf_order_queue){UF_NONE, UF_NONE};
    o->edges.failed(o->edges.arg, lane->flow->peer, status);
    end_entries(o, lane->flow, lane, status);
    uf_order_wake(o, lane->flow);
    return status;
}

void uf_order_fail_flow(uf_order *order, uint32_t flow, int status)
{
    if (flow < order->config.n_flows && status < 0)
        uf_order_end_flow(order, &order->flows[flow], status);
}

bool uf_order_busy(const uf_order *order)
{
    return order->n_active || order->attention || order->entries_free != order->config.queue_ops ||
           order->cookies_free != order->config.tx_depth || order->outstanding || order->parked_total ||
           order->replay_head != UF_NONE;
}
