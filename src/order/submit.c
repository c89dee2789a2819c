/* submit.c - the way of an operation into the protocol, and posting a WR with everything that it takes.
 *
 * The weak path is here: a weak ADD on a put of one WR, a plain put, a get. When nothing stands before it, the operation becomes one WR at
 * once: no queue entry, no message, no allocation, no division, one table entry (the cookie). Everything else goes to sender.c.
 * Sequences, credits and numbers are taken after the post said UF_OK, never before (rule 2): a refusal leaves no hole. */
#include "order/internal.h"

/* Kind 0: on the weak path. */
static inline void book_add(uf_order *o, uf_order_lane *lane, uint8_t batch, bool silent)
{
    uf_order_batch *b = &lane->batch[batch];
    uf_order_flow *flow = lane->flow;
    b->epoch = flow->epoch;
    if (uf_likely(!silent)) {
        b->open++;
        b->plain++;
        lane->plain++;
    }
    if (uf_unlikely(o->by_receipt) && !o->config.imm_placed)
        b->plain_epoch = lane->plain_epoch = flow->epoch;
}

/* Counts a WR that was just accepted in its batch, by what completes it. */
void uf_order_book(uf_order *o, uf_order_lane *lane, uint8_t batch, uf_order_wr_type type, bool silent)
{
    uf_order_batch *b = &lane->batch[batch];
    uf_order_flow *flow = lane->flow;
    if (!silent)
        b->open++;
    switch (type) {
    case UF_WR_PLAIN:
        b->plain++;
        lane->plain++;
        return;
    case UF_WR_SEQUENCE:
    case UF_WR_MESSAGE:
        b->epoch = flow->epoch;
        uf_order_sequence_taken(o, lane);
        return;
    default:
        return;
    }
}

/* The network said no: full for now, or broken for ever. */
static uf_order_hold refused(uf_order *o, uf_order_flow *flow, int rc)
{
    if (rc == UF_EAGAIN)
        return UF_HOLD_POST;
    uf_order_end_flow(o, flow, rc);
    return UF_HOLD_FAILED;
}

/* Cookies for data: a flow may hold four times what is free, and some are kept for the first WR of flows that have none, so that peers
 * which do not complete never hold up one that would. Controls and answers, on which others wait, have a reserve. */
static inline bool cookie_room(const uf_order *o, const uf_order_flow *flow, uint8_t type)
{
    if (type >= UF_WR_ANSWER)
        return o->cookies_free > 0;
    if (uf_unlikely(o->config.n_rails > 1) && !uf_order_may_replay(o, flow, type))
        return false;
    uint32_t kept = o->cookie_reserve + o->cookie_first;
    uint32_t room = o->cookies_free > kept ? o->cookies_free - kept : 0;
    return uf_likely(flow->in_flight < 4 * room) || (flow->in_flight == 0 && o->cookies_free > o->cookie_reserve);
}

bool uf_order_may_post(const uf_order *o, const uf_order_flow *flow)
{
    return o->silent || o->silent_message || cookie_room(o, flow, UF_WR_PLAIN);
}

static inline uf_order_hold post(uf_order *o, uf_order_flow *flow, uf_wr *wr, const uf_order_cookie *like)
{
    if (wr->flags & UF_WR_SILENT) {
        wr->cookie = UF_ORDER_NO_COOKIE;
        int rc = o->edges.post(o->edges.arg, wr);
        return uf_likely(rc == UF_OK) ? UF_HOLD_GO : refused(o, flow, rc);
    }
    if (uf_unlikely(!cookie_room(o, flow, like->type)))
        return UF_HOLD_COOKIE;
    uint32_t index = o->cookie_free;
    uf_order_cookie *c = &o->cookies[index];
    wr->cookie = (uint32_t)c->generation << 16 | index;
    int rc = o->edges.post(o->edges.arg, wr);
    if (uf_unlikely(rc != UF_OK) && !(uf_order_mutant(o, UF_MUTANT_10_LOST) && rc == UF_EAGAIN))
        return refused(o, flow, rc);
    o->cookie_free = c->next;
    o->cookies_free--;
    flow->in_flight++;
    c->user = like->user;
    c->lane = like->lane;
    c->flow = flow;
    c->entry = like->entry;
    c->sequence = like->sequence;
    c->type = like->type;
    c->batch = like->batch;
    c->rail = (uint8_t)wr->rail;
    c->lost = false;
    if (uf_unlikely(o->save)) {
        o->saved[index] = *wr;
        c->prev = index; /* in no list */
        uf_order_rail_carries(flow, wr->rail, like->type);
        uf_order_may_replay_count(flow, like->type, 1);
        if (wr->verb <= UF_VERB_WRITE_IMM && wr->bytes)
            uf_order_overlap_add(o, flow, index);
    }
    return UF_HOLD_GO;
}

uf_order_hold uf_order_post(uf_order *o, uf_order_flow *flow, uf_wr *wr, const uf_order_cookie *like)
{
    return post(o, flow, wr, like);
}

/* Posts a message: counted ones for a credit, answers and controls without. The caller takes the sequence. */
uf_order_hold uf_order_post_message(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, const uf_order_cookie *like)
{
    bool counted = wire->type < UF_MSG_REPLY;
    uint32_t bit = (uint32_t)(flow->epoch & 1);
    uint32_t sent = flow->tx_msg[0] + flow->tx_msg[1];
    if (counted && !uf_order_before(sent, flow->msg_limit) && !uf_order_mutant(o, UF_MUTANT_8_MESSAGE))
        return UF_HOLD_MESSAGES;
    uf_order_wire out = *wire;
    if (counted)
        out.type |= (uint8_t)(bit << UF_MSG_BIT_SHIFT);
    uf_wr wr = {
        .verb = UF_VERB_SEND, .rail = like->lane ? like->lane->home : flow->home, .peer = flow->peer, .bytes = UF_MESSAGE_BYTES};
    bool told = like->user || like->entry != UF_NONE;
    if (o->silent_message && !told)
        wr.flags = UF_WR_SILENT;
    uf_wire_encode(&out, wr.message);
    uf_order_hold hold = post(o, flow, &wr, like);
    if (hold != UF_HOLD_GO)
        return hold;
    if (counted) {
        flow->tx_msg[bit]++;
        o->counters.message_wrs++;
    }
    if (like->lane)
        uf_order_book(o, like->lane, like->batch, like->type, wr.flags & UF_WR_SILENT);
    return UF_HOLD_GO;
}

/* ---------------------------------------------------------------- kind 0 */

/* Rule 1: one WR, no sequence. `entry` UF_NONE: op->user is told by the CQE. */
static inline uf_order_hold post_add(uf_order *o, uf_order_lane *lane, const uf_order_op *op, uint8_t batch, uint32_t entry)
{
    uf_order_flow *flow = lane->flow;
    uint64_t bytes = op->kind == UF_ORDER_SIGNAL ? 0 : op->bytes;
    if (uf_unlikely(!uf_order_before(flow->tx_imm[0] + flow->tx_imm[1], flow->imm_limit)) && !uf_order_mutant(o, UF_MUTANT_8_IMM))
        return UF_HOLD_CREDITS;
    if (uf_unlikely(o->save) && bytes && cookie_room(o, flow, UF_WR_ADD) && uf_order_overlaps(o, flow, op->remote, bytes))
        return UF_HOLD_OVERLAP;
    uint32_t bit = (uint32_t)(flow->epoch & 1);
    bool silent = o->silent && bytes <= o->config.inline_bytes && op->user == 0;
    uf_wr wr;
    wr.verb = UF_VERB_WRITE_IMM;
    wr.flags = (uint8_t)((op->more ? UF_WR_MORE : 0) | (silent ? UF_WR_SILENT : 0));
    wr.rail = lane->home;
    wr.peer = flow->peer;
    wr.imm = uf_imm_add(bit, (uint32_t)op->signal_address, (uint32_t)op->operand & UF_IMM_OPERAND_MAX);
    wr.bytes = bytes;
    wr.local = op->local;
    wr.local_desc = op->local_desc;
    wr.remote = op->remote;
    wr.remote_key = op->remote_key;
    if (uf_order_mutant(o, UF_MUTANT_4_HOME))
        wr.rail = (uint16_t)uf_order_stripe_rail(o, flow);
    uf_order_cookie like;
    like.user = entry == UF_NONE ? op->user : 0;
    like.lane = lane;
    like.entry = entry;
    like.sequence = 0;
    like.type = UF_WR_ADD;
    like.batch = batch;
    uf_order_hold hold = post(o, flow, &wr, &like);
    if (uf_unlikely(hold != UF_HOLD_GO))
        return hold;
    flow->tx_imm[bit]++;
    book_add(o, lane, batch, silent);
    o->counters.data_wrs++;
    o->counters.kind0++;
    return UF_HOLD_GO;
}

uf_order_hold uf_order_post_add(uf_order *o, uf_order_lane *lane, const uf_order_op *op, uint8_t batch, uint32_t entry)
{
    return post_add(o, lane, op, batch, entry);
}

/* ---------------------------------------------------------------- puts, gets and sequenced parts */

/* One WR of a put or get. `like` says of which type it is, and whom its CQE tells. */
static inline uf_order_hold post_data(uf_order *o, uf_order_lane *lane, const uf_order_op *op, const uf_order_part *part,
                                      const uf_order_cookie *like)
{
    uf_order_flow *flow = lane->flow;
    uint32_t bit = (uint32_t)(flow->epoch & 1);
    uf_wr wr;
    wr.verb = like->type == UF_WR_READ ? UF_VERB_READ : UF_VERB_WRITE;
    wr.flags = (uint8_t)((op->more ? UF_WR_MORE : 0) | (like->type == UF_WR_PLAIN ? UF_WR_PLACED : 0));
    wr.rail = uf_likely(part->bytes == op->bytes) ? lane->home : (uint16_t)uf_order_stripe_rail(o, flow);
    wr.peer = flow->peer;
    wr.imm = 0;
    wr.bytes = part->bytes;
    wr.local = op->local + part->offset;
    wr.local_desc = op->local_desc;
    wr.remote = op->remote + part->offset;
    wr.remote_key = op->remote_key;
    if (like->type == UF_WR_SEQUENCE) {
        wr.verb = UF_VERB_WRITE_IMM;
        wr.imm = uf_imm_sequence(bit, lane->id, like->sequence);
    }
    if (uf_unlikely(o->save) && like->type != UF_WR_READ && cookie_room(o, flow, like->type) &&
        uf_order_overlaps(o, flow, wr.remote, wr.bytes))
        return UF_HOLD_OVERLAP;
    uf_order_hold hold = post(o, flow, &wr, like);
    if (uf_unlikely(hold != UF_HOLD_GO))
        return hold;
    if (like->type == UF_WR_SEQUENCE) {
        flow->tx_imm[bit]++;
        o->counters.kind1++;
    }
    uf_order_book(o, lane, like->batch, (uf_order_wr_type)like->type, false);
    o->counters.data_wrs++;
    return UF_HOLD_GO;
}

uf_order_hold uf_order_post_data(uf_order *o, uf_order_lane *lane, const uf_order_op *op, const uf_order_part *part,
                                 const uf_order_cookie *like)
{
    return post_data(o, lane, op, part, like);
}

/* ---------------------------------------------------------------- submit */

/* May this signal travel in an immediate without a sequence? (rule 1) */
static inline bool fits_immediate(const uf_order *o, const uf_order_lane *lane, const uf_order_op *op)
{
    bool small = op->operand <= UF_IMM_OPERAND_MAX || uf_order_mutant(o, UF_MUTANT_1_OPERAND);
    return small && op->signal_address <= UF_IMM_INDEX_MAX && op->op == UF_ATOMIC_ADD && (op->indexed & lane->adds) &&
           !(op->flags & UF_SETTLED) && (op->kind == UF_ORDER_SIGNAL || op->bytes <= o->whole);
}

bool uf_order_fits_immediate(const uf_order *o, const uf_order_lane *lane, const uf_order_op *op)
{
    return fits_immediate(o, lane, op);
}

/* Operations that are one WR and need no sequence; UF_HOLD_RAIL stands for "not one of them". */
static inline uf_order_hold submit_direct(uf_order *o, uf_order_lane *lane, const uf_order_op *op)
{
    uint8_t batch = (uint8_t)(lane->newest & (UF_BATCHES - 1));
    if (uf_order_is_signal(op)) {
        /* A strong signal with nothing before it is weak. */
        bool weak = !(op->flags & UF_STRONG) || uf_order_lane_done_there(lane, lane->newest);
        return weak && fits_immediate(o, lane, op) ? post_add(o, lane, op, batch, UF_NONE) : UF_HOLD_RAIL;
    }
    bool one = op->bytes && op->bytes <= o->whole;
    bool put = op->kind == UF_ORDER_PUT && !lane->ordered;
    if (!one || (!put && op->kind != UF_ORDER_GET))
        return UF_HOLD_RAIL;
    uf_order_part whole = {0, op->bytes};
    uf_order_cookie like = {
        .user = op->user, .lane = lane, .entry = UF_NONE, .type = put ? UF_WR_PLAIN : UF_WR_READ, .batch = batch};
    return post_data(o, lane, op, &whole, &like);
}

static int check_op(const uf_order *o, const uf_order_op *op)
{
    if (op->kind > UF_ORDER_GET)
        return uf_fail(UF_EINVAL, "PE %u: operation of unknown kind %u", o->config.self, op->kind);
    if (uf_order_is_signal(op) && op->op > UF_ATOMIC_ADD)
        return uf_fail(UF_EINVAL, "PE %u: signal operation %u is neither UF_SIGNAL_SET nor UF_SIGNAL_ADD", o->config.self,
                       op->op);
    if (op->kind == UF_ORDER_ATOMIC && (op->op > UF_ATOMIC_COMPARE_SWAP || (op->width != 4 && op->width != 8)))
        return uf_fail(UF_EINVAL, "PE %u: atomic operation %u of width %u does not exist", o->config.self, op->op, op->width);
    if (op->indexed && op->signal_address > UF_IMM_INDEX_MAX)
        return uf_fail(UF_EINVAL, "PE %u: signal index %llu is above the largest, %u", o->config.self,
                       (unsigned long long)op->signal_address, UF_IMM_INDEX_MAX);
    return UF_OK;
}

static int ended(const uf_order *o, const uf_order_lane *lane)
{
    return uf_fail(lane->status, "PE %u: operations to PE %u are refused: the lane has ended; see its first error",
                   o->config.self, lane->flow->peer);
}

/* The context's fence epoch has moved: what is submitted now is behind a boundary. Asking for the receipt may break the network. */
static int cross_fence(uf_order *o, uf_order_lane *lane)
{
    bool made = uf_order_lane_fence(o, lane);
    return lane->status ? lane->status : made ? UF_OK : UF_EAGAIN;
}

int uf_order_submit(uf_order *order, uf_order_lane *lane, const uf_order_op *op)
{
    uf_order_flow *flow = lane->flow;
    uf_order_hold hold = UF_HOLD_RAIL;
    if (uf_unlikely(lane->status))
        return ended(order, lane);
    if (uf_unlikely(__atomic_load_n(&lane->ctx->fence_epoch, __ATOMIC_RELAXED) != lane->fence_seen)) {
        int rc = cross_fence(order, lane);
        if (rc)
            return rc;
    }
    if (uf_unlikely(lane->fence) && uf_order_lane_done_there(lane, lane->fence))
        lane->fence = 0;
    bool open = lane->fence == 0 || (uf_order_mutant(order, UF_MUTANT_7_FENCE) && op->kind != UF_ORDER_SIGNAL);
    if (uf_likely((flow->stalled | lane->detour) == 0 && open)) {
        hold = submit_direct(order, lane, op);
        if (uf_likely(hold == UF_HOLD_GO))
            return UF_OK;
        if (hold == UF_HOLD_FAILED)
            return flow->status;
    }
    int rc = check_op(order, op);
    return rc ? rc : uf_order_enqueue(order, lane, op, hold);
}
