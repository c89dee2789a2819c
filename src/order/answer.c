/* answer.c - requests between peers and their answers: lanes that open and close, fetched values.
 *
 * A request reserves a slot here before it leaves, and with it the receive for its answer. So an answer needs no credit, and two
 * PEs that ask each other with all credits spent cannot wait for one another (rule 10). A window is given to a peer's lane from
 * a pool made at creation; its number is the flow's, so that 12 bits do. An answer names its request, so a second copy of it
 * (sent again over another rail) is told from the answer to the slot's next request. */
#include "order/internal.h"

/* ---------------------------------------------------------------- windows by (flow, lane id) */

static uint32_t bucket(const uf_order *o, const uf_order_flow *flow, uint32_t id)
{
    uint32_t key = uf_order_flow_index(o, flow) << UF_IMM_LANE_BITS | id;
    return (key * 2654435761u >> 7) & o->hash_mask;
}

uf_order_window *uf_order_window_find(uf_order *o, const uf_order_flow *flow, uint32_t id)
{
    if (id >= UF_ORDER_LANE_IDS)
        return NULL;
    for (uint32_t i = o->hash[bucket(o, flow, id)]; i != UF_NONE; i = o->windows[i].next)
        if (o->windows[i].flow == flow && o->windows[i].id == id)
            return &o->windows[i];
    return NULL;
}

static uint64_t *id_map(uf_order *o, const uf_order_flow *flow)
{
    return &o->lane_ids[(size_t)uf_order_flow_index(o, flow) * (UF_ORDER_LANE_IDS / 64)];
}

static uint32_t free_id(const uint64_t *map)
{
    for (uint32_t i = 0; i < UF_ORDER_LANE_IDS / 64; i++)
        if (~map[i])
            return i * 64 + (uint32_t)__builtin_ctzll(~map[i]);
    return UF_NONE;
}

void uf_order_window_free(uf_order *o, uf_order_window *window)
{
    uint32_t index = (uint32_t)(window - o->windows);
    uint32_t *link = &o->hash[bucket(o, window->flow, window->id)];
    while (*link != index)
        link = &o->windows[*link].next;
    *link = window->next;
    id_map(o, window->flow)[window->id / 64] &= ~(1ull << window->id % 64);
    window->used = false;
    window->parked = UF_NONE;
    window->n_parked = 0;
    window->next = o->window_free;
    o->window_free = index;
    o->windows_used--;
}

/* A request that was sent again since its rail broke may come twice, the second time after its lane has ended or was refused. */
static bool asked_before(const uf_order *o, const uf_order_flow *flow, const uf_order_wire *wire)
{
    uint16_t *last = &o->requests[(size_t)uf_order_flow_index(o, flow) * o->answers + wire->aux];
    if ((int16_t)(wire->seq - *last) <= 0)
        return true;
    *last = wire->seq;
    return false;
}

int uf_order_open_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    uint64_t size = wire->operand;
    if (size < 2 || size > o->config.window || (size & (size - 1)))
        return uf_order_garbage(o, flow, "a request for a lane with an impossible window", wire, sizeof *wire);
    if (wire->aux >= o->answers)
        return uf_order_garbage(o, flow, "a request for a lane with an impossible place for its answer", wire, sizeof *wire);
    if (asked_before(o, flow, wire)) {
        if (o->config.n_rails == 1)
            return uf_order_garbage(o, flow, "a request for a lane twice", wire, sizeof *wire);
        o->counters.duplicates_dropped++;
        return UF_OK;
    }
    uf_order_wire grant = {.type = UF_MSG_LANE_GRANT, .aux = wire->aux, .address = wire->address, .extra = o->config.max_lanes};
    uint32_t id = free_id(id_map(o, flow)), index = o->window_free;
    if (index == UF_NONE || id == UF_NONE) {
        grant.op = 1;
        grant.operand = o->windows_used;
        return uf_order_park_answer(o, flow, &grant, uf_wire_bit(wire));
    }
    uf_order_window *w = &o->windows[index];
    uint32_t *head = &o->hash[bucket(o, flow, id)];
    o->window_free = w->next;
    o->windows_used++;
    w->open_id = wire->address;
    w->flow = flow;
    w->size = (uint32_t)size;
    w->cursor = (uint32_t)wire->extra;
    w->watched = w->cursor;
    w->parked = UF_NONE;
    w->n_parked = 0;
    w->id = (uint16_t)id;
    w->used = true;
    w->suspect = false;
    memset(w->map, 0, (size + 63) / 64 * sizeof *w->map);
    w->next = *head;
    *head = index;
    id_map(o, flow)[id / 64] |= 1ull << id % 64;
    grant.lane = w->id;
    grant.operand = o->windows_used;
    return uf_order_park_answer(o, flow, &grant, uf_wire_bit(wire));
}

/* ---------------------------------------------------------------- answers */

static int grant_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, uf_order_lane *lane)
{
    uf_order_slot_give(o, flow, wire->aux);
    if (wire->op == 0 && wire->lane < UF_ORDER_LANE_IDS) {
        lane->id = wire->lane;
        lane->grant = UF_GRANT_GIVEN;
        return UF_OK;
    }
    lane->grant = UF_GRANT_NONE;
    uf_fail(UF_ENOMEM,
            "PE %u: PE %u has no window left for another lane that uses sequences: %llu of %llu (context and peer pairs of all "
            "PEs) are in use there; raise UNFENCE_MAX_LANES or use fewer contexts",
            o->config.self, flow->peer, (unsigned long long)wire->operand, (unsigned long long)wire->extra);
    return uf_order_end_lane(o, lane, UF_ENOMEM);
}

static void reply_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, const uf_order_slot *slot)
{
    uf_order_lane *lane = slot->lane;
    uint64_t user = slot->user;
    uf_order_batch *b = &lane->batch[slot->batch];
    uf_order_slot_give(o, flow, wire->aux);
    if (--b->open == 0)
        uf_order_lane_retire(o, lane);
    if (user)
        o->edges.done(o->edges.arg, user, UF_OK, wire->operand);
}

int uf_order_answer_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    uint32_t type = uf_wire_type(wire);
    uf_order_slot *slot = wire->aux < o->answers ? uf_order_slot_of(o, flow, wire->aux) : NULL;
    bool ours = false;
    if (slot && type == UF_MSG_REPLY)
        ours = slot->type == UF_SLOT_FETCH && slot->id == wire->lane && slot->sequence == wire->seq;
    if (slot && type == UF_MSG_LANE_GRANT)
        ours = slot->type == UF_SLOT_OPEN && wire->address == (slot->lane->index | (uint64_t)slot->lane->opened << 32);
    if (!ours && o->config.n_rails > 1) {
        o->counters.duplicates_dropped++;
        return UF_OK;
    }
    if (!ours)
        return uf_order_garbage(o, flow, "an answer to nothing that was asked", wire, sizeof *wire);
    if (type == UF_MSG_LANE_GRANT)
        return grant_in(o, flow, wire, slot->lane);
    reply_in(o, flow, wire, slot);
    return UF_OK;
}
