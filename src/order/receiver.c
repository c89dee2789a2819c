/* receiver.c - immediates and messages of peers: what is applied at once, what waits for its range or for the cursor.
 *
 * A lane of a peer is a window here: W bits for the sequences that arrived, and a cursor before which all have. A weak ADD is
 * applied when its own range has arrived, a strong signal and every SET when the cursor has passed it, in sequence order. What
 * must wait lies in the flow's pool, which the peer's message credits cover, so it cannot overflow unless the peer is broken.
 * Everything that comes is checked: what no correct peer sends ends its flow with UF_EINTERNAL and the bytes in the sentence.
 * Must never: apply a sequence twice, or count as applied what still waits. */
#include "order/internal.h"

int uf_order_garbage(uf_order *o, uf_order_flow *flow, const char *what, const void *bytes, size_t n)
{
    char hex[2 * UF_MESSAGE_BYTES + 1] = "";
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = "0123456789abcdef"[b[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[b[i] & 15];
    }
    uf_fail(UF_EINTERNAL, "PE %u: PE %u sent %s (%s): versions or settings of the two differ, or this is a bug, please report it",
            o->config.self, flow->peer, what, hex);
    return uf_order_end_flow(o, flow, UF_EINTERNAL);
}

/* ---------------------------------------------------------------- the pool */

static uint32_t park(uf_order *o, uf_order_flow *flow)
{
    uint32_t index = flow->parked_free;
    if (index == UF_NONE)
        return UF_NONE;
    flow->parked_free = o->parked[index].next;
    flow->parked_used++;
    o->parked_total++;
    return index;
}

static void unpark(uf_order *o, uf_order_flow *flow, uint32_t index)
{
    o->parked[index].next = flow->parked_free;
    flow->parked_free = index;
    flow->parked_used--;
    o->parked_total--;
}

/* An answer that will be sent when the network takes it; until then its request keeps place and credit. */
int uf_order_park_answer(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, uint32_t bit)
{
    uint32_t index = park(o, flow);
    if (index == UF_NONE)
        return uf_order_garbage(o, flow, "more messages than it has credits for", wire, sizeof *wire);
    uf_order_parked *p = &o->parked[index];
    *p = (uf_order_parked){.wire = *wire, .sequence = bit, .next = UF_NONE};
    if (flow->answers_tail == UF_NONE)
        flow->answers_head = index;
    else
        o->parked[flow->answers_tail].next = index;
    flow->answers_tail = index;
    if (uf_order_answers_pump(o, flow) != UF_HOLD_GO && !flow->status) {
        o->counters.waited_answers++;
        uf_order_activate(o, flow);
    }
    return flow->status;
}

uf_order_hold uf_order_answers_pump(uf_order *o, uf_order_flow *flow)
{
    while (flow->answers_head != UF_NONE) {
        uint32_t index = flow->answers_head;
        uf_order_parked *p = &o->parked[index];
        uint32_t bit = p->sequence;
        uf_order_cookie like = {.type = UF_WR_ANSWER, .entry = UF_NONE};
        uf_order_hold hold = uf_order_post_message(o, flow, &p->wire, &like);
        if (hold != UF_HOLD_GO)
            return hold;
        o->counters.answers++;
        flow->answers_head = p->next;
        if (flow->answers_head == UF_NONE)
            flow->answers_tail = UF_NONE;
        unpark(o, flow, index);
        uf_order_credit_message(o, flow, bit);
    }
    return UF_HOLD_GO;
}

/* ---------------------------------------------------------------- windows */

static inline bool arrived(const uf_order_window *w, uint32_t sequence)
{
    uint32_t at = sequence & (w->size - 1);
    return uf_order_before(sequence, w->cursor) || (w->map[at >> 6] >> (at & 63) & 1);
}

typedef enum seen { SEEN_NEW, SEEN_BEFORE, SEEN_AHEAD } seen;

/* Is this sequence new to the window? *sequence: as far as its cursor counts. */
static seen look(const uf_order *o, const uf_order_window *w, uint16_t wire, uint32_t *sequence)
{
    uint32_t ahead = (uint16_t)(wire - w->cursor);
    *sequence = w->cursor + ahead;
    if (ahead >= 1u << (UF_IMM_SEQUENCE_BITS - 1)) {
        *sequence -= 1u << UF_IMM_SEQUENCE_BITS;
        return uf_order_mutant(o, UF_MUTANT_2_TWICE) ? SEEN_NEW : SEEN_BEFORE;
    }
    if (ahead >= w->size)
        return SEEN_AHEAD;
    return arrived(w, *sequence) && !uf_order_mutant(o, UF_MUTANT_2_TWICE) ? SEEN_BEFORE : SEEN_NEW;
}

static int apply_signal(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    uf_order_signal s = {.flow = flow->peer,
                         .op = wire->op & UF_MSG_OP_MASK,
                         .width = wire->op & UF_MSG_WIDTH4 ? 4 : 8,
                         .indexed = wire->op & UF_MSG_INDEXED,
                         .strong = wire->op & UF_MSG_STRONG,
                         .address = wire->address,
                         .operand = wire->operand,
                         .compare = wire->type == UF_MSG_ATOMIC ? wire->extra : 0};
    uint64_t old = 0;
    int rc = o->edges.apply(o->edges.arg, &s, &old);
    if (rc < 0)
        return uf_order_end_flow(o, flow, rc);
    o->counters.applied++;
    return UF_OK;
}

static bool by_cursor(const uf_order *o, const uf_order_wire *wire)
{
    bool set = (wire->op & UF_MSG_OP_MASK) == UF_ATOMIC_SET && !uf_order_mutant(o, UF_MUTANT_1_SET);
    bool strong = (wire->op & UF_MSG_STRONG) && !uf_order_mutant(o, UF_MUTANT_2_CURSOR);
    return set || strong || wire->type == UF_MSG_LANE_CLOSE;
}

/* Takes a waiting message out of the pool and makes it visible. */
static int release(uf_order *o, uf_order_window *w, uint32_t index)
{
    uf_order_flow *flow = w->flow;
    uf_order_wire wire = o->parked[index].wire;
    uint32_t bit = uf_wire_bit(&wire);
    wire.type &= UF_MSG_TYPE_MASK;
    w->n_parked--;
    unpark(o, flow, index);
    if (wire.type == UF_MSG_LANE_CLOSE) {
        if (w->n_parked)
            return uf_order_garbage(o, flow, "the end of a lane before its last signals", &wire, sizeof wire);
        uf_order_window_free(o, w);
    } else {
        int rc = apply_signal(o, flow, &wire);
        if (rc)
            return rc;
    }
    uf_order_credit_message(o, flow, bit);
    return flow->status;
}

/* Weak signals that waited for `sequence` only. */
static int release_ranges(uf_order *o, uf_order_window *w, uint32_t sequence)
{
    uint32_t *link = &w->parked;
    while (*link != UF_NONE) {
        uint32_t index = *link;
        uf_order_parked *p = &o->parked[index];
        if (p->missing && p->sequence - sequence - 1 < p->wire.aux && --p->missing == 0) {
            *link = p->next;
            int rc = release(o, w, index);
            if (rc)
                return rc;
        } else {
            link = &p->next;
        }
    }
    return UF_OK;
}

/* Notes an arrival, moves the cursor, and releases what waited for either. */
static int advance(uf_order *o, uf_order_window *w, uint32_t sequence)
{
    uint32_t mask = w->size - 1, before = w->cursor;
    if (!uf_order_before(sequence, w->cursor))
        w->map[(sequence & mask) >> 6] |= 1ull << (sequence & mask & 63);
    while (w->map[(w->cursor & mask) >> 6] >> (w->cursor & mask & 63) & 1) {
        w->map[(w->cursor & mask) >> 6] &= ~(1ull << (w->cursor & mask & 63));
        w->cursor++;
    }
    if ((before ^ w->cursor) & ~0xffffu)
        o->counters.wraps++;
    if (uf_likely(w->parked == UF_NONE))
        return UF_OK;
    int rc = release_ranges(o, w, sequence);
    while (!rc && w->used && w->parked != UF_NONE && uf_order_before(o->parked[w->parked].sequence, w->cursor)) {
        uint32_t index = w->parked;
        w->parked = o->parked[index].next;
        rc = release(o, w, index);
    }
    return rc;
}

/* Puts a message that must wait into the window's list, by sequence. */
static int park_message(uf_order *o, uf_order_window *w, const uf_order_wire *wire, uint32_t sequence, uint32_t missing)
{
    uint32_t index = park(o, w->flow);
    if (index == UF_NONE)
        return uf_order_garbage(o, w->flow, "more messages than it has credits for", wire, sizeof *wire);
    uint32_t *link = &w->parked;
    while (*link != UF_NONE && uf_order_before(o->parked[*link].sequence, sequence))
        link = &o->parked[*link].next;
    o->parked[index] = (uf_order_parked){*wire, sequence, missing, *link};
    *link = index;
    w->n_parked++;
    return UF_OK;
}

/* ---------------------------------------------------------------- messages with a sequence */

static int signal_in(uf_order *o, uf_order_window *w, const uf_order_wire *wire, uint32_t sequence)
{
    uf_order_flow *flow = w->flow;
    uf_order_wire plain = *wire;
    plain.type &= UF_MSG_TYPE_MASK;
    bool close = plain.type == UF_MSG_LANE_CLOSE;
    bool sound = close ? wire->address == w->open_id && wire->aux == 0
                       : (wire->op & UF_MSG_OP_MASK) <= UF_ATOMIC_ADD && wire->aux <= w->size &&
                             (wire->aux == 0 || (uint16_t)(wire->seq - (uint16_t)wire->extra) == wire->aux);
    if (!sound)
        return uf_order_garbage(o, flow, close ? "the end of a lane that it did not open" : "a signal with an impossible range",
                                wire, sizeof *wire);
    uint32_t missing = 0;
    for (uint32_t s = sequence - wire->aux; s != sequence && !uf_order_mutant(o, UF_MUTANT_2_RANGE); s++)
        missing += !arrived(w, s);
    bool wait = by_cursor(o, &plain);
    if (wait || missing) {
        if (missing || sequence != w->cursor)
            o->counters.held_receiver++;
        return park_message(o, w, wire, sequence, wait ? 0 : missing);
    }
    int rc = apply_signal(o, flow, &plain);
    if (!rc)
        uf_order_credit_message(o, flow, uf_wire_bit(wire));
    return rc ? rc : flow->status;
}

static int atomic_in(uf_order *o, uf_order_window *w, const uf_order_wire *wire)
{
    uf_order_flow *flow = w->flow;
    uf_order_signal s = {.flow = flow->peer,
                         .op = wire->op & UF_MSG_OP_MASK,
                         .width = wire->op & UF_MSG_WIDTH4 ? 4 : 8,
                         .indexed = wire->op & UF_MSG_INDEXED,
                         .address = wire->address,
                         .operand = wire->operand,
                         .compare = wire->extra};
    if (s.op > UF_ATOMIC_COMPARE_SWAP)
        return uf_order_garbage(o, flow, "an atomic that does not exist", wire, sizeof *wire);
    uint64_t old = 0;
    int rc = o->edges.apply(o->edges.arg, &s, &old);
    if (rc < 0)
        return uf_order_end_flow(o, flow, rc);
    o->counters.applied++;
    if (s.op >= UF_ATOMIC_FETCH) {
        uf_order_wire reply = {.type = UF_MSG_REPLY, .lane = wire->lane, .seq = wire->seq, .aux = wire->aux, .operand = old};
        return uf_order_park_answer(o, flow, &reply, uf_wire_bit(wire));
    }
    uf_order_credit_message(o, flow, uf_wire_bit(wire));
    return flow->status;
}

static int sequenced_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    uf_order_window *w = uf_order_window_find(o, flow, wire->lane);
    uint32_t sequence;
    bool other = w && uf_wire_type(wire) == UF_MSG_LANE_CLOSE && wire->address != w->open_id;
    if ((!w || other) && o->config.n_rails > 1) {
        o->counters.duplicates_dropped++; /* sent again over another rail after its lane closed: another may have its number */
        return UF_OK;
    }
    if (!w)
        return uf_order_garbage(o, flow, "a message on a lane that is not open", wire, sizeof *wire);
    switch (look(o, w, wire->seq, &sequence)) {
    case SEEN_BEFORE:
        o->counters.duplicates_dropped++;
        return UF_OK;
    case SEEN_AHEAD:
        return uf_order_garbage(o, flow, "a sequence beyond the lane's window", wire, sizeof *wire);
    case SEEN_NEW:
        break;
    }
    flow->arrived[uf_wire_bit(wire)]++;
    int rc = uf_wire_type(wire) == UF_MSG_ATOMIC ? atomic_in(o, w, wire) : signal_in(o, w, wire, sequence);
    return rc ? rc : advance(o, w, sequence);
}

int uf_order_message(uf_order *order, uint32_t flow_index, const unsigned char message[UF_MESSAGE_BYTES])
{
    if (flow_index >= order->config.n_flows)
        return uf_fail(UF_EINTERNAL, "PE %u: a message came from PE %u, which does not exist", order->config.self, flow_index);
    uf_order_flow *flow = &order->flows[flow_index];
    if (flow->status)
        return flow->status;
    uf_order_wire wire;
    uf_wire_decode(message, &wire);
    switch (uf_wire_type(&wire)) {
    case UF_MSG_SIGNAL:
    case UF_MSG_ATOMIC:
    case UF_MSG_LANE_CLOSE:
        return sequenced_in(order, flow, &wire);
    case UF_MSG_LANE_OPEN:
        flow->arrived[uf_wire_bit(&wire)]++;
        return uf_order_open_in(order, flow, &wire);
    case UF_MSG_COUNT_ASK:
        return uf_order_count_asked(order, flow, &wire);
    case UF_MSG_COUNT_TELL:
        return uf_order_count_in(order, flow, &wire);
    case UF_MSG_REPLY:
    case UF_MSG_LANE_GRANT:
        return uf_order_answer_in(order, flow, &wire);
    case UF_MSG_CONTROL:
        if (!order->config.immediates && wire.operand >> 30 == UF_IMM_CONTROL)
            return uf_order_control_in(order, flow, (uint32_t)wire.operand);
        break;
    }
    return uf_order_garbage(order, flow, "a message of unknown type", message, UF_MESSAGE_BYTES);
}

/* ---------------------------------------------------------------- immediates */

/* One of kind 0 or 1 is consumed. */
static inline void consumed(uf_order *o, uf_order_flow *flow, uint32_t bit)
{
    flow->rx_imm[bit]++;
    if (uf_unlikely(flow->asked))
        uf_order_receipt_check(o, flow, bit);
    if (uf_unlikely(flow->rx_imm[0] + flow->rx_imm[1] - flow->imm_told >= o->imm_half))
        uf_order_credit_imm(o, flow);
}

static int imm_sequence(uf_order *o, uf_order_flow *flow, uint32_t imm)
{
    uf_order_window *w = uf_order_window_find(o, flow, uf_imm_lane(imm));
    uint32_t sequence;
    if (uf_imm_spare(imm) || (!w && o->config.n_rails == 1))
        return uf_order_garbage(o, flow, "a write on a lane that is not open", &imm, sizeof imm);
    seen s = w ? look(o, w, uf_imm_sequence_of(imm), &sequence) : SEEN_BEFORE;
    if (s == SEEN_AHEAD)
        return uf_order_garbage(o, flow, "a sequence beyond the lane's window", &imm, sizeof imm);
    if (s == SEEN_BEFORE) {
        o->counters.duplicates_dropped++;
        return UF_OK;
    }
    consumed(o, flow, uf_imm_bit(imm));
    return flow->status ? flow->status : advance(o, w, sequence);
}

int uf_order_imm(uf_order *order, uint32_t flow_index, uint32_t rail, uint32_t imm)
{
    if (uf_unlikely(flow_index >= order->config.n_flows || rail >= order->config.n_rails))
        return uf_fail(UF_EINTERNAL, "PE %u: an immediate came from PE %u over rail %u; there are %u PEs and %u rails",
                       order->config.self, flow_index, rail, order->config.n_flows, order->config.n_rails);
    uf_order_flow *flow = &order->flows[flow_index];
    if (uf_unlikely(flow->status))
        return flow->status;
    uint32_t kind = uf_imm_kind(imm);
    if (uf_unlikely(order->config.n_rails > 1) && !uf_order_rail_open(flow, rail, kind)) {
        order->counters.duplicates_dropped++; /* rule 16: its sender was told that it did not come */
        return UF_OK;
    }
    if (uf_likely(kind == UF_IMM_ADD)) {
        uf_order_signal s = {.flow = flow_index,
                             .op = UF_ATOMIC_ADD,
                             .width = 8,
                             .indexed = true,
                             .address = uf_imm_index(imm),
                             .operand = uf_imm_operand(imm)};
        uint64_t old;
        int rc = order->edges.apply(order->edges.arg, &s, &old);
        if (uf_unlikely(rc < 0))
            return uf_order_end_flow(order, flow, rc);
        order->counters.applied++;
        consumed(order, flow, uf_imm_bit(imm));
        return flow->status;
    }
    if (kind == UF_IMM_SEQUENCE)
        return imm_sequence(order, flow, imm);
    if (kind == UF_IMM_CONTROL)
        return uf_order_control_in(order, flow, imm);
    return uf_order_garbage(order, flow, "an immediate of a reserved kind", &imm, sizeof imm);
}

/* The flow ended: nothing of it waits any more. */
void uf_order_receiver_end(uf_order *o, uf_order_flow *flow)
{
    for (uint32_t i = 0; i < o->config.max_lanes; i++) {
        uf_order_window *w = &o->windows[i];
        if (!w->used || w->flow != flow)
            continue;
        for (uint32_t p = w->parked; p != UF_NONE;) {
            uint32_t next = o->parked[p].next;
            unpark(o, flow, p);
            p = next;
        }
        uf_order_window_free(o, w);
    }
    for (uint32_t p = flow->answers_head; p != UF_NONE;) {
        uint32_t next = o->parked[p].next;
        unpark(o, flow, p);
        p = next;
    }
    flow->answers_head = flow->answers_tail = UF_NONE;
}
