/* sender.c - operations that cannot go out as one WR at once: what form they take, what holds them and why.
 *
 * A lane has three queues. `queue` is in order of submission and stops at the first operation that something holds. A signal
 * that must wait for CQEs (strong after what has no sequence, settled, or too many parts) leaves it for `held`, so that nothing else waits
 * for it; when its CQEs are in it moves to `ready`, which only needs window and credits. Strong signals keep their order
 * through `held` and `ready`; where the peer has no room for messages, strong ones and SETs go to `ready` at once. Weak ones
 * leave `held` as their own CQEs come. Every reason to stop is a uf_order_hold; the functions here return it upwards, and progress
 * tries again after each event that may have lifted it.
 * Must never: take a sequence before the post succeeded, or let one lane's hold stop another's. */
#include "order/internal.h"

enum { PUMP_OPS = 16 }; /* operations of a lane in one turn: then others have theirs */

/* ---------------------------------------------------------------- slots for answers */

uf_order_slot *uf_order_slot_of(uf_order *o, const uf_order_flow *flow, uint32_t slot)
{
    return &o->slots[(size_t)uf_order_flow_index(o, flow) * o->answers + slot];
}

static void slot_take(uf_order *o, uf_order_flow *flow, const uf_order_slot *slot)
{
    uint32_t index = flow->slot_free;
    uf_order_slot *s = uf_order_slot_of(o, flow, index);
    uint16_t requests = (uint16_t)(s->requests + (slot->type == UF_SLOT_OPEN));
    flow->slot_free = s->next;
    *s = *slot;
    s->requests = requests;
    flow->slots_used++;
    o->outstanding++;
}

void uf_order_slot_give(uf_order *o, uf_order_flow *flow, uint32_t slot)
{
    uf_order_slot *s = uf_order_slot_of(o, flow, slot);
    s->type = UF_SLOT_FREE;
    s->next = flow->slot_free;
    flow->slot_free = slot;
    flow->slots_used--;
    o->outstanding--;
    uf_order_wake(o, flow);
}

/* A request with nobody's operation behind it. */
uf_order_hold uf_order_post_request(uf_order *o, uf_order_flow *flow, uf_order_wire *wire, const uf_order_slot *slot)
{
    if (flow->slot_free == UF_NONE)
        return UF_HOLD_SLOT;
    uf_order_cookie like = {.type = UF_WR_REQUEST, .entry = UF_NONE};
    wire->aux = (uint16_t)flow->slot_free;
    wire->seq = (uint16_t)(uf_order_slot_of(o, flow, flow->slot_free)->requests + 1);
    uf_order_hold hold = uf_order_post_message(o, flow, wire, &like);
    if (hold == UF_HOLD_GO)
        slot_take(o, flow, slot);
    return hold;
}

/* ---------------------------------------------------------------- entries */

/* Places are shared so that flows which do not move always leave one for each of the others; of the rest no flow holds more than is free. */
static bool place_free(const uf_order *o, const uf_order_flow *flow)
{
    uint32_t kept = o->config.n_flows - o->flows_queued;
    uint32_t room = o->entries_free > kept ? o->entries_free - kept : 0;
    return flow->queued == 0 || flow->queued < room || uf_order_mutant(o, UF_MUTANT_10_HOG);
}

static uint32_t entry_new(uf_order *o, uf_order_lane *lane, const uf_order_op *op)
{
    uf_order_flow *flow = lane->flow;
    uint32_t index = o->entry_free;
    if (index == UF_NONE || !place_free(o, flow))
        return UF_NONE;
    uf_order_entry *e = &o->entries[index];
    o->entry_free = e->next;
    o->entries_free--;
    o->flows_queued += flow->queued++ == 0;
    uint64_t used = o->config.queue_ops - o->entries_free;
    if (used > o->counters.max_queue)
        o->counters.max_queue = used;
    *e = (uf_order_entry){.op = *op, .lane = lane, .batch = (uint8_t)(lane->newest & (UF_BATCHES - 1))};
    e->strong = uf_order_is_signal(op) && (op->flags & UF_STRONG);
    if (op->kind != UF_ORDER_GET)
        e->fence = lane->fence;
    uf_order_batch *b = &lane->batch[e->batch];
    b->open++;
    b->waiting++;
    return index;
}

void uf_order_entry_free(uf_order *o, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    o->flows_queued -= --e->lane->flow->queued == 0;
    e->lane = NULL;
    e->next = o->entry_free;
    o->entry_free = entry;
    o->entries_free++;
}

/* Nothing of it is left to post. */
static void entry_left(uf_order *o, uf_order_queue *from, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    uf_order_lane *lane = e->lane;
    uf_order_batch *b = &lane->batch[e->batch];
    uf_order_queue_remove(o, from, entry);
    e->left = true;
    b->open--;
    b->waiting--;
    if (b->waiting == 0)
        uf_order_lane_want(o, lane);
    if (e->wrs)
        return;
    uint64_t user = e->op.user;
    bool fetch = e->op.kind == UF_ORDER_ATOMIC && e->op.op >= UF_ATOMIC_FETCH;
    uf_order_entry_free(o, entry);
    if (user && !fetch)
        o->edges.done(o->edges.arg, user, UF_OK, 0);
}

/* A WR that named the entry has its CQE. */
void uf_order_entry_sent(uf_order *o, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    if (--e->wrs || !e->data_done)
        return;
    if (e->held && !e->strong) {
        /* Settled: it only waited for its own CQEs. */
        uf_order_queue_remove(o, &e->lane->held, entry);
        uf_order_queue_push(o, &e->lane->ready, entry);
        e->held = false;
    }
    if (!e->left && e->op.kind != UF_ORDER_PUT_SIGNAL)
        return;
    uint64_t user = e->op.user;
    e->op.user = 0;
    if (e->left)
        uf_order_entry_free(o, entry);
    if (user)
        o->edges.done(o->edges.arg, user, UF_OK, 0);
}

/* ---------------------------------------------------------------- what a sequence needs */

static uf_order_hold ask_grant(uf_order *o, uf_order_lane *lane)
{
    if (lane->grant == UF_GRANT_ASKED)
        return UF_HOLD_GRANT;
    uf_order_wire wire = {.type = UF_MSG_LANE_OPEN,
                          .address = lane->index | (uint64_t)lane->opened << 32,
                          .operand = lane->window,
                          .extra = lane->sequence};
    uf_order_slot slot = {.type = UF_SLOT_OPEN, .lane = lane};
    uf_order_hold hold = uf_order_post_request(o, lane->flow, &wire, &slot);
    if (hold != UF_HOLD_GO)
        return hold;
    lane->grant = UF_GRANT_ASKED;
    o->counters.grants++;
    return UF_HOLD_GRANT;
}

static uf_order_hold sequence_room(uf_order *o, uf_order_lane *lane)
{
    if (uf_unlikely(lane->grant != UF_GRANT_GIVEN))
        return ask_grant(o, lane);
    return uf_order_window_room(o, lane) ? UF_HOLD_GO : UF_HOLD_WINDOW;
}

/* ---------------------------------------------------------------- forms */

static uint64_t parts_of(const uf_order *o, uint64_t bytes)
{
    if (uf_likely(bytes <= o->whole))
        return bytes != 0;
    uint64_t part = uf_order_part_bytes(o, bytes);
    return bytes / part + (bytes % part != 0);
}

/* What has no sequence and no CQE, or signals that wait for such: a strong signal must come after them. */
static bool lacks_cqes(const uf_order *o, const uf_order_lane *lane)
{
    if (uf_order_mutant(o, UF_MUTANT_6_STRONG))
        return false;
    return lane->plain || lane->plain_epoch > lane->flow->receipted || lane->held.head != UF_NONE;
}

/* ... or signals that have not left for want of messages. */
static bool must_hold(const uf_order *o, const uf_order_lane *lane)
{
    return lacks_cqes(o, lane) || (lane->ready.head != UF_NONE && !uf_order_mutant(o, UF_MUTANT_6_STRONG));
}

/* Chosen when the operation is first in its queue and its fence is over, so by what is outstanding then. */
static uf_order_form choose_form(const uf_order *o, const uf_order_lane *lane, const uf_order_entry *e)
{
    const uf_order_op *op = &e->op;
    switch (op->kind) {
    case UF_ORDER_GET:
        return UF_FORM_GET;
    case UF_ORDER_PUT:
        return lane->ordered ? UF_FORM_SEQUENCED : UF_FORM_PLAIN;
    case UF_ORDER_PUT_SIGNAL:
        break;
    default: /* atomics, and signals alone */
        return uf_order_is_signal(op) && !e->strong && uf_order_fits_immediate(o, lane, op) ? UF_FORM_ADD : UF_FORM_MESSAGE;
    }
    if (!e->strong && uf_order_fits_immediate(o, lane, op))
        return UF_FORM_ADD;
    if (op->bytes == 0)
        return UF_FORM_MESSAGE;
    bool after = op->flags & UF_SETTLED || !o->config.immediates || parts_of(o, op->bytes) > lane->window;
    /* A strong signal that has to wait for CQEs anyway lets its put go as cheaply as any. */
    if (after || (e->strong && !lane->ordered && must_hold(o, lane)))
        return UF_FORM_AFTER;
    return UF_FORM_SEQUENCED;
}

/* ---------------------------------------------------------------- data */

static const uf_order_wr_type type_of_form[] = {
    [UF_FORM_PLAIN] = UF_WR_PLAIN,
    [UF_FORM_AFTER] = UF_WR_PLAIN,
    [UF_FORM_SEQUENCED] = UF_WR_SEQUENCE,
    [UF_FORM_GET] = UF_WR_READ,
};

/* Hands over the parts of a put or get. */
static uf_order_hold data_step(uf_order *o, uf_order_lane *lane, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    uf_order_flow *flow = lane->flow;
    uf_order_wr_type type = type_of_form[e->form];
    bool told = e->op.user || e->form == UF_FORM_AFTER;
    uint64_t most = uf_likely(e->op.bytes <= o->whole) ? o->whole : uf_order_part_bytes(o, e->op.bytes);
    while (e->posted < e->op.bytes) {
        uf_order_part part = {e->posted, e->op.bytes - e->posted};
        if (part.bytes > most)
            part.bytes = most;
        uf_order_cookie like = {
            .lane = lane, .entry = told ? entry : UF_NONE, .sequence = lane->sequence, .type = (uint8_t)type, .batch = e->batch};
        if (type == UF_WR_SEQUENCE) {
            uf_order_hold hold = sequence_room(o, lane);
            if (hold != UF_HOLD_GO)
                return hold;
            if (!uf_order_before(flow->tx_imm[0] + flow->tx_imm[1], flow->imm_limit) && !uf_order_mutant(o, UF_MUTANT_8_IMM))
                return UF_HOLD_CREDITS;
        }
        uf_order_hold hold = uf_order_post_data(o, lane, &e->op, &part, &like);
        if (hold != UF_HOLD_GO) {
            if (uf_order_mutant(o, UF_MUTANT_2_REFUSED) && hold == UF_HOLD_POST && type == UF_WR_SEQUENCE)
                lane->sequence++;
            return hold;
        }
        if (e->posted == 0)
            e->first = (uint16_t)like.sequence;
        e->parts++;
        e->wrs += told;
        e->posted += part.bytes;
    }
    e->data_done = true;
    return UF_HOLD_GO;
}

/* ---------------------------------------------------------------- signals and atomics as messages */

static void message_of(const uf_order_lane *lane, const uf_order_entry *e, uint32_t sequence, uf_order_wire *wire)
{
    const uf_order_op *op = &e->op;
    *wire = (uf_order_wire){.type = UF_MSG_SIGNAL,
                            .op = (uint8_t)(op->op | (op->indexed ? UF_MSG_INDEXED : 0)),
                            .lane = lane->id,
                            .seq = (uint16_t)sequence,
                            .address = op->signal_address,
                            .operand = op->operand};
    if (op->kind == UF_ORDER_ATOMIC) {
        wire->type = UF_MSG_ATOMIC;
        wire->op |= op->width == 4 ? UF_MSG_WIDTH4 : 0;
        wire->aux = (uint16_t)lane->flow->slot_free;
        wire->extra = op->compare;
        return;
    }
    if (e->strong)
        wire->op |= UF_MSG_STRONG;
    else if (e->form == UF_FORM_SEQUENCED && e->op.op == UF_ATOMIC_ADD) {
        /* Others are applied by the cursor, which covers their parts. */
        wire->aux = e->parts;
        wire->extra = e->first;
    }
}

static uf_order_hold message_step(uf_order *o, uf_order_lane *lane, uint32_t entry, bool was_held)
{
    uf_order_entry *e = &o->entries[entry];
    uf_order_flow *flow = lane->flow;
    bool fetch = e->op.kind == UF_ORDER_ATOMIC && e->op.op >= UF_ATOMIC_FETCH;
    uf_order_hold hold = sequence_room(o, lane);
    if (hold != UF_HOLD_GO)
        return hold;
    if (fetch && flow->slot_free == UF_NONE)
        return UF_HOLD_SLOT;
    /* With no data to wait for, the message's own CQE tells the user; a fetch is told by its reply. */
    bool told = e->op.user && !fetch && e->op.bytes == 0;
    uint32_t sequence = lane->sequence;
    if (was_held && uf_order_mutant(o, UF_MUTANT_13_OWNERS))
        sequence = lane->sequence_other++;
    uf_order_wire wire;
    message_of(lane, e, sequence, &wire);
    uf_order_cookie like = {
        .lane = lane, .entry = told ? entry : UF_NONE, .sequence = sequence, .type = UF_WR_MESSAGE, .batch = e->batch};
    hold = uf_order_post_message(o, flow, &wire, &like);
    if (hold != UF_HOLD_GO) {
        if (uf_order_mutant(o, UF_MUTANT_2_REFUSED) && hold == UF_HOLD_POST)
            lane->sequence++;
        return hold;
    }
    e->wrs += told;
    if (fetch) {
        uf_order_slot slot = {.type = UF_SLOT_FETCH,
                              .lane = lane,
                              .user = e->op.user,
                              .sequence = (uint16_t)sequence,
                              .id = lane->id,
                              .batch = e->batch};
        lane->batch[e->batch].open++;
        slot_take(o, flow, &slot);
    }
    return UF_HOLD_GO;
}

/* ---------------------------------------------------------------- one operation */

/* Sets a signal aside until CQEs are in; true if it has to be. */
static bool set_aside(uf_order *o, uf_order_lane *lane, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    bool own = e->form == UF_FORM_AFTER && e->wrs;
    if (!own && !(e->strong && lacks_cqes(o, lane)))
        return false;
    if (e->strong) {
        uf_order_lane_boundary(o, lane, lane->plain_epoch > lane->flow->receipted, &e->boundary);
        o->counters.held_strong++;
    }
    uf_order_queue_remove(o, &lane->queue, entry);
    uf_order_queue_push(o, &lane->held, entry);
    e->held = true;
    return true;
}

/* A signal that the peer applies by its cursor may have any later sequence. So where only the peer's room for messages is missing it
 * waits beside the queue, and the puts behind it go on: they need none. Those that come then go behind it, to leave in their order. */
static bool waits_beside(const uf_order_entry *e)
{
    return uf_order_is_signal(&e->op) && (e->strong || e->op.op == UF_ATOMIC_SET);
}

/* The signal or atomic of the queue's first operation, whose data is handed over. */
static uf_order_hold signal_step(uf_order *o, uf_order_lane *lane, uint32_t entry)
{
    bool beside = waits_beside(&o->entries[entry]);
    uf_order_hold hold = beside && lane->ready.head != UF_NONE ? UF_HOLD_MESSAGES : message_step(o, lane, entry, false);
    if (hold == UF_HOLD_MESSAGES && beside) {
        uf_order_queue_remove(o, &lane->queue, entry);
        uf_order_queue_push(o, &lane->ready, entry);
        o->counters.waited_messages++;
        return UF_HOLD_GO;
    }
    if (hold == UF_HOLD_GO)
        entry_left(o, &lane->queue, entry);
    return hold;
}

/* Takes the first operation of `queue` as far as it goes. UF_HOLD_GO: it left the queue. */
static uf_order_hold advance(uf_order *o, uf_order_lane *lane, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    if (e->form == UF_FORM_NEW) {
        if (e->fence && !uf_order_lane_done_there(lane, e->fence)) {
            if (e->op.kind != UF_ORDER_SIGNAL && !uf_order_mutant(o, UF_MUTANT_7_FENCE))
                return UF_HOLD_FENCE;
            if (e->op.kind == UF_ORDER_SIGNAL && !uf_order_mutant(o, UF_MUTANT_7_BARE))
                e->strong = true; /* after everything before the fence, and nothing waits here */
        }
        e->form = choose_form(o, lane, e);
    }
    if (e->form == UF_FORM_ADD) {
        uf_order_hold hold = uf_order_post_add(o, lane, &e->op, e->batch, e->op.user ? entry : UF_NONE);
        if (hold != UF_HOLD_GO)
            return hold;
        e->wrs += e->op.user != 0;
        e->data_done = true;
        entry_left(o, &lane->queue, entry);
        return UF_HOLD_GO;
    }
    if (!e->data_done && e->form == UF_FORM_MESSAGE)
        e->data_done = true;
    if (!e->data_done) {
        uf_order_hold hold = data_step(o, lane, entry);
        if (hold != UF_HOLD_GO)
            return hold;
    }
    if (uf_order_is_signal(&e->op) || e->op.kind == UF_ORDER_ATOMIC)
        return set_aside(o, lane, entry) ? UF_HOLD_GO : signal_step(o, lane, entry);
    entry_left(o, &lane->queue, entry);
    return UF_HOLD_GO;
}

/* ---------------------------------------------------------------- one lane */

/* Adds that were posted after a strong signal was set aside may belong to the batches that it waits for, with a later epoch than
 * was asked for then: asks for it when only receipts are missing. */
static void want_adds(uf_order *o, uf_order_lane *lane, uint64_t last)
{
    uint64_t epoch = 0;
    for (uint64_t n = lane->oldest; n <= last && n <= lane->newest; n++) {
        const uf_order_batch *b = uf_order_batch_of(lane, n);
        if (b->plain)
            return;
        epoch = b->plain_epoch > epoch ? b->plain_epoch : epoch;
    }
    if (epoch > lane->flow->receipted)
        uf_order_receipt_want(o, lane->flow, epoch);
}

/* Strong signals whose CQEs are in become ready, in order. Weak ones left by themselves (uf_order_entry_sent). */
static void promote(uf_order *o, uf_order_lane *lane)
{
    while (lane->held.head != UF_NONE) {
        uint32_t entry = lane->held.head;
        uf_order_entry *e = &o->entries[entry];
        if (!e->strong)
            return;
        if (!uf_order_lane_no_plain(o, lane, e->boundary)) {
            want_adds(o, lane, e->boundary);
            return;
        }
        uf_order_queue_remove(o, &lane->held, entry);
        uf_order_queue_push(o, &lane->ready, entry);
        e->held = false;
    }
}

static void count_hold(uf_order *o, uf_order_lane *lane, uf_order_hold hold)
{
    if (lane->cause == hold)
        return;
    lane->cause = (uint8_t)hold;
    switch (hold) {
    case UF_HOLD_FENCE:
        o->counters.held_fence++;
        return;
    case UF_HOLD_WINDOW:
        o->counters.waited_window++;
        return;
    case UF_HOLD_CREDITS:
        o->counters.waited_credits++;
        return;
    case UF_HOLD_MESSAGES:
        o->counters.waited_messages++;
        return;
    case UF_HOLD_POST:
    case UF_HOLD_COOKIE:
        o->counters.waited_post++;
        return;
    default:
        return;
    }
}

/* Weak operations that need no sequence may pass a head that waits for what they do not need. */
static bool may_pass(uf_order_hold hold)
{
    return hold == UF_HOLD_GRANT || hold == UF_HOLD_WINDOW || hold == UF_HOLD_MESSAGES || hold == UF_HOLD_SLOT;
}

/* A put took some of its sequences: its own and its signal's must follow one another. */
static bool midway(const uf_order *o, const uf_order_lane *lane)
{
    if (lane->queue.head == UF_NONE)
        return false;
    const uf_order_entry *e = &o->entries[lane->queue.head];
    return e->form == UF_FORM_SEQUENCED && e->posted;
}

/* Signals that were set aside and have their CQEs: they are older than most of `queue`. */
static uf_order_hold pump_ready(uf_order *o, uf_order_lane *lane, uint32_t *left)
{
    while (lane->ready.head != UF_NONE && *left && !midway(o, lane)) {
        uint32_t entry = lane->ready.head;
        uf_order_hold hold = message_step(o, lane, entry, true);
        if (hold != UF_HOLD_GO)
            return hold;
        entry_left(o, &lane->ready, entry);
        --*left;
    }
    return UF_HOLD_GO;
}

static uf_order_hold pump_queue(uf_order *o, uf_order_lane *lane, uint32_t *left)
{
    while (lane->queue.head != UF_NONE && *left) {
        uf_order_hold hold = advance(o, lane, lane->queue.head);
        if (hold != UF_HOLD_GO)
            return hold;
        --*left;
    }
    return UF_HOLD_GO;
}

/* Posts what it can of one lane. What stopped it, UF_HOLD_GO if its queues are empty or it has had its turn. */
uf_order_hold uf_order_pump_lane(uf_order *o, uf_order_lane *lane, uint32_t *posted)
{
    uint32_t left = PUMP_OPS;
    uf_order_lane_retire(o, lane);
    promote(o, lane);
    uf_order_hold ready = pump_ready(o, lane, &left), head = UF_HOLD_GO;
    if (ready != UF_HOLD_POST && ready != UF_HOLD_COOKIE && ready != UF_HOLD_FAILED)
        head = pump_queue(o, lane, &left);
    if (lane->flow->status)
        return UF_HOLD_FAILED;
    promote(o, lane);
    *posted += PUMP_OPS - left;
    uf_order_hold stop = head != UF_HOLD_GO ? head : ready;
    count_hold(o, lane, stop);
    lane->detour = lane->queue.head != UF_NONE && !may_pass(head);
    /* Nothing will happen that makes progress look here again: it had its turn, or became ready just now. */
    if ((left == 0 && uf_order_lane_has_work(lane)) || (ready == UF_HOLD_GO && lane->ready.head != UF_NONE)) {
        o->attention = true;
        lane->flow->again = 1;
    }
    return stop;
}

/* `tried`: what held it on the direct way, UF_HOLD_RAIL if it was not tried there. */
int uf_order_enqueue(uf_order *o, uf_order_lane *lane, const uf_order_op *op, uf_order_hold tried)
{
    uf_order_flow *flow = lane->flow;
    if (op->bytes == 0 && op->user == 0 && (op->kind == UF_ORDER_PUT || op->kind == UF_ORDER_GET))
        return UF_OK;
    uint32_t entry = entry_new(o, lane, op);
    if (entry == UF_NONE)
        return UF_EAGAIN;
    uf_order_entry *e = &o->entries[entry];
    if (op->kind == UF_ORDER_SIGNAL || op->kind == UF_ORDER_ATOMIC)
        e->op.bytes = 0;
    bool first = lane->queue.head == UF_NONE;
    uf_order_queue_push(o, &lane->queue, entry);
    uint32_t posted = 0;
    /* What is complete without a WR is told by progress: submit calls `done` only for what it breaks. */
    bool empty = op->bytes == 0 && (op->kind == UF_ORDER_PUT || op->kind == UF_ORDER_GET);
    if (first)
        lane->detour = true;
    if (first && tried == UF_HOLD_RAIL && flow->stalled == 0 && !empty && uf_order_pump_lane(o, lane, &posted) == UF_HOLD_FAILED)
        return op->user ? UF_OK : flow->status; /* `done` has told its end, and nobody is told twice */
    if (uf_order_lane_has_work(lane))
        uf_order_lane_activate(o, lane);
    return UF_OK;
}
