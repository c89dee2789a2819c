/* lane.c - the sending side of a lane: batches, sequences and their window, opening and closing.
 *
 * A lane must know three things about what was submitted up to some point, and none of them may cost memory an operation: is it
 * complete here (marks), complete there (marks, fences), are its WRs without a sequence complete (strong signals). So operations
 * are counted in batches. A boundary closes the open batch and is made only when somebody needs it; on the weak path a batch is two
 * counters. There are UF_BATCHES of them: when they are all alive, a boundary is put off until the oldest retires, and what
 * waits for it waits for a little more than it asked, which delays and is never wrong. A fence cannot wait for what comes after
 * it, so the operation behind it is refused with UF_EAGAIN until there is room.
 * Must never: look at another lane, or take a sequence without a successful post. */
#include "order/internal.h"

/* ---------------------------------------------------------------- queues */

void uf_order_queue_push(uf_order *o, uf_order_queue *queue, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    e->next = UF_NONE;
    e->prev = queue->tail;
    if (queue->tail == UF_NONE)
        queue->head = entry;
    else
        o->entries[queue->tail].next = entry;
    queue->tail = entry;
}

void uf_order_queue_remove(uf_order *o, uf_order_queue *queue, uint32_t entry)
{
    uf_order_entry *e = &o->entries[entry];
    if (e->prev == UF_NONE)
        queue->head = e->next;
    else
        o->entries[e->prev].next = e->next;
    if (e->next == UF_NONE)
        queue->tail = e->prev;
    else
        o->entries[e->next].prev = e->prev;
}

/* ---------------------------------------------------------------- batches */

static void open_batch(uf_order_lane *lane)
{
    lane->newest++;
    *uf_order_batch_of(lane, lane->newest) = (uf_order_batch){.epoch = UF_FIRST_EPOCH - 1, .plain_epoch = UF_FIRST_EPOCH - 1};
}

static bool ring_full(const uf_order_lane *lane)
{
    return lane->newest - lane->oldest == UF_BATCHES - 1;
}

static bool batch_empty(const uf_order_lane *lane, const uf_order_batch *b)
{
    return b->open == 0 && b->epoch <= lane->flow->receipted;
}

/* Drops batches that nobody can ask about any more. One that only lacks a receipt which nobody wants is folded into the next. */
void uf_order_lane_retire(uf_order *o, uf_order_lane *lane)
{
    bool ask = false;
    while (lane->oldest < lane->newest) {
        uf_order_batch *b = uf_order_batch_of(lane, lane->oldest);
        if (b->open)
            break;
        if (b->epoch > lane->flow->receipted) {
            if (b->keep)
                break;
            uf_order_batch *next = uf_order_batch_of(lane, lane->oldest + 1);
            next->epoch = next->epoch > b->epoch ? next->epoch : b->epoch;
            next->plain_epoch = next->plain_epoch > b->plain_epoch ? next->plain_epoch : b->plain_epoch;
            ask |= next->keep; /* its receipt was asked for without the epoch that it has just taken over */
        }
        lane->oldest++;
    }
    if (lane->want_boundary && !ring_full(lane)) {
        lane->want_boundary = false;
        uf_order_batch *last = uf_order_batch_of(lane, lane->newest);
        if (!batch_empty(lane, last)) {
            ask |= last->keep; /* what joined it since its receipt was asked for has a later epoch */
            open_batch(lane);
        }
    }
    if (ask)
        uf_order_lane_want(o, lane);
}

/* Ends the open batch. *last: the last batch that holds something incomplete, 0 if nothing is. False: the ring is full, *last
 * is the open batch, which will be closed as soon as there is room. `keep`: receipts of the batches will be asked about. */
bool uf_order_lane_boundary(uf_order *o, uf_order_lane *lane, bool keep, uint64_t *last)
{
    bool made = true;
    uf_order_lane_retire(o, lane);
    if (batch_empty(lane, uf_order_batch_of(lane, lane->newest))) {
        *last = lane->oldest < lane->newest ? lane->newest - 1 : 0;
    } else if (ring_full(lane)) {
        lane->want_boundary = true;
        *last = lane->newest;
        made = false;
    } else {
        *last = lane->newest;
        open_batch(lane);
    }
    if (*last && keep) {
        uf_order_batch_of(lane, *last)->keep = true;
        uf_order_lane_want(o, lane);
    }
    return made;
}

/* Called when the context's fence epoch moved: false if the boundary finds no room now. */
bool uf_order_lane_fence(uf_order *o, uf_order_lane *lane)
{
    uint64_t last;
    if (!uf_order_lane_boundary(o, lane, true, &last))
        return false;
    lane->fence = last;
    lane->fence_seen = __atomic_load_n(&lane->ctx->fence_epoch, __ATOMIC_RELAXED);
    return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* All of the batches up to `last` has its CQEs and replies. */
bool uf_order_lane_done_here(uf_order_lane *lane, uint64_t last)
{
    for (uint64_t n = lane->oldest; n <= least(last, lane->newest); n++)
        if (uf_order_batch_of(lane, n)->open)
            return false;
    return true;
}

/* ... and is applied at the peer. */
bool uf_order_lane_done_there(uf_order_lane *lane, uint64_t last)
{
    for (uint64_t n = lane->oldest; n <= least(last, lane->newest); n++)
        if (!batch_empty(lane, uf_order_batch_of(lane, n)))
            return false;
    return true;
}

/* Their WRs without a sequence have reached the peer's home CQ or memory. Asks for the receipt if only that is missing. */
bool uf_order_lane_no_plain(uf_order *o, uf_order_lane *lane, uint64_t last)
{
    uint64_t epoch = 0;
    bool none = true;
    for (uint64_t n = lane->oldest; n <= least(last, lane->newest); n++) {
        uf_order_batch *b = uf_order_batch_of(lane, n);
        if (b->plain)
            none = false;
        if (b->plain_epoch > epoch)
            epoch = b->plain_epoch;
    }
    if (epoch <= lane->flow->receipted)
        return none;
    uf_order_receipt_want(o, lane->flow, epoch);
    return false;
}

/* Asks for the receipts that kept batches and those before them lack, once all of a batch is posted: earlier it would not cover
 * the batch. */
void uf_order_lane_want(uf_order *o, uf_order_lane *lane)
{
    uint64_t epoch = 0, wanted = 0;
    for (uint64_t n = lane->oldest; n <= lane->newest; n++) {
        uf_order_batch *b = uf_order_batch_of(lane, n);
        if (b->waiting == 0 && b->epoch > epoch)
            epoch = b->epoch;
        if (b->keep)
            wanted = epoch;
    }
    if (wanted > lane->flow->receipted)
        uf_order_receipt_want(o, lane->flow, wanted);
}

/* ---------------------------------------------------------------- marks */

void uf_order_mark_set(uf_order *order, uf_order_lane *lane, bool remote, uf_order_mark *mark)
{
    uint64_t last;
    uf_order_lane_boundary(order, lane, remote, &last);
    *mark = (uf_order_mark){last, remote};
}

int uf_order_mark_test(uf_order *order, uf_order_lane *lane, const uf_order_mark *mark)
{
    if (uf_unlikely(lane->status))
        return uf_fail(lane->status, "PE %u: operations to PE %u cannot complete: the lane has ended; see its first error",
                       order->config.self, lane->flow->peer);
    bool done = mark->remote ? uf_order_lane_done_there(lane, mark->serial) : uf_order_lane_done_here(lane, mark->serial);
    if (done)
        uf_order_lane_retire(order, lane);
    return done ? UF_OK : UF_EAGAIN;
}

/* ---------------------------------------------------------------- sequences */

/* Rule 5: may the next sequence be taken? */
bool uf_order_window_room(uf_order *o, uf_order_lane *lane)
{
    uint32_t used = lane->sequence - lane->tail;
    if (uf_order_mutant(o, UF_MUTANT_5_WINDOW))
        return true;
    if (o->by_receipt && used >= lane->window / 2) {
        uf_order_flow *flow = lane->flow;
        for (uint32_t p = 0; p < 2; p++)
            if (lane->epoch_in[p] <= flow->receipted && uf_order_before(lane->tail, lane->sequence_in[p]))
                lane->tail = lane->sequence_in[p];
        used = lane->sequence - lane->tail;
        if (used >= lane->window / 2)
            uf_order_receipt_want(o, flow, lane->epoch_in[0] > lane->epoch_in[1] ? lane->epoch_in[0] : lane->epoch_in[1]);
    }
    return used < lane->window;
}

/* After a successful post only. */
void uf_order_sequence_taken(uf_order *o, uf_order_lane *lane)
{
    uint32_t p = (uint32_t)(lane->flow->epoch & 1);
    lane->sequence++;
    lane->sequence_in[p] = lane->sequence;
    lane->epoch_in[p] = lane->flow->epoch;
    if (uf_unlikely((lane->sequence & 0xffff) == 0))
        o->counters.wraps++;
}

void uf_order_sequence_acked(uf_order *o, uf_order_lane *lane, uint32_t sequence)
{
    if (o->by_receipt)
        return;
    uint32_t mask = lane->window - 1;
    lane->acked[(sequence & mask) >> 6] |= 1ull << (sequence & mask & 63);
    while (lane->acked[(lane->tail & mask) >> 6] >> (lane->tail & mask & 63) & 1) {
        lane->acked[(lane->tail & mask) >> 6] &= ~(1ull << (lane->tail & mask & 63));
        lane->tail++;
    }
}

/* ---------------------------------------------------------------- opening and closing */

int uf_order_lane_open(uf_order *order, uf_order_ctx *ctx, uint32_t flow, uf_order_lane **lane)
{
    if (flow >= order->config.n_flows)
        return uf_fail(UF_ERANGE, "PE %u: there is no PE %u; there are %u", order->config.self, flow, order->config.n_flows);
    if (ctx->window < 2 || ctx->window > order->config.window || (ctx->window & (ctx->window - 1)))
        return uf_fail(UF_EINVAL, "PE %u: window %u of a context must be a power of two from 2 to %u", order->config.self,
                       ctx->window, order->config.window);
    if (order->flows[flow].status)
        return uf_fail(order->flows[flow].status, "PE %u: the connection to PE %u has ended", order->config.self, flow);
    uint32_t index = order->lane_free;
    if (index == UF_NONE)
        return uf_fail(UF_ENOMEM, "PE %u: all %u lanes (context and peer pairs) are open; UNFENCE_MAX_LANES sets their number",
                       order->config.self, order->config.max_local_lanes);
    uf_order_lane *l = &order->lanes[index];
    order->lane_free = l->next_active;
    order->lanes_used++;
    uint64_t *acked = l->acked;
    uint32_t opened = l->opened + 1;
    memset(acked, 0, (ctx->window + 63) / 64 * sizeof *acked);
    *l = (uf_order_lane){
        .ctx = ctx,
        .flow = &order->flows[flow],
        .fence_seen = __atomic_load_n(&ctx->fence_epoch, __ATOMIC_RELAXED),
        .oldest = 1,
        .ordered = ctx->ordered && order->config.immediates,
        .adds = !ctx->ordered && order->config.immediates,
        .used = true,
        .index = index,
        .next_active = UF_NONE,
        .plain_epoch = UF_FIRST_EPOCH - 1,
        .queue = {UF_NONE, UF_NONE},
        .held = {UF_NONE, UF_NONE},
        .ready = {UF_NONE, UF_NONE},
        .opened = opened,
        .home = (uint8_t)uf_order_home_of(order, &order->flows[flow], ctx->number),
        .window = ctx->window,
        .sequence = order->config.first_sequence,
        .tail = order->config.first_sequence,
        .sequence_other = order->config.first_sequence,
        .acked = acked,
        .sequence_in = {order->config.first_sequence, order->config.first_sequence},
    };
    open_batch(l);
    *lane = l;
    return UF_OK;
}

uint32_t uf_order_lane_peer(const uf_order_lane *lane)
{
    return lane->flow->peer;
}

static void lane_release(uf_order *order, uf_order_lane *lane)
{
    uf_order_lane_deactivate(order, lane);
    lane->used = false;
    lane->next_active = order->lane_free;
    order->lane_free = lane->index;
    order->lanes_used--;
}

/* The number goes back by a message with a sequence: the receiver frees the window when its cursor passes it, so nothing of this
 * lane can come after. */
static uf_order_hold post_close(uf_order *o, uf_order_lane *lane)
{
    uf_order_flow *flow = lane->flow;
    if (flow->stalled & UF_STALL_RAIL)
        return UF_HOLD_RAIL;
    if (!uf_order_window_room(o, lane))
        return UF_HOLD_WINDOW;
    uf_order_wire wire = {.type = UF_MSG_LANE_CLOSE,
                          .lane = lane->id,
                          .seq = (uint16_t)lane->sequence,
                          .address = lane->index | (uint64_t)lane->opened << 32};
    uf_order_cookie like = {.type = UF_WR_LAST, .entry = UF_NONE};
    uf_order_hold hold = uf_order_post_message(o, flow, &wire, &like);
    if (hold == UF_HOLD_GO)
        lane->closing = flow->epoch;
    return hold;
}

/* True if nothing of the lane is left at the peer: it has freed the window, so whoever hears of the close finds it. */
static bool closed_there(uf_order *o, uf_order_lane *lane)
{
    uf_order_flow *flow = lane->flow;
    if (flow->status || lane->grant != UF_GRANT_GIVEN)
        return true;
    if (!lane->closing && post_close(o, lane) != UF_HOLD_GO)
        return flow->status != UF_OK;
    if (lane->closing > flow->receipted)
        uf_order_receipt_want(o, flow, lane->closing);
    return flow->status || lane->closing <= flow->receipted;
}

int uf_order_lane_close(uf_order *order, uf_order_lane *lane)
{
    uf_order_flow *flow = lane->flow;
    if (!lane->status && lane->grant == UF_GRANT_ASKED)
        return UF_EAGAIN;
    if (!flow->status && !uf_order_lane_done_there(lane, lane->newest)) {
        uf_order_mark mark;
        uf_order_mark_set(order, lane, true, &mark);
        return UF_EAGAIN;
    }
    if (!closed_there(order, lane))
        return UF_EAGAIN;
    lane_release(order, lane);
    return UF_OK;
}
