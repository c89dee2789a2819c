/* rail.c - several rails: which one carries what (rule 4), rails that break (rule 16), and puts that would overlap one of our own WRs
 * in flight (rule 11).
 *
 * A lane has a home rail for all that is one WR; what is large goes in parts over all rails in turn. When a rail to a peer breaks, what can be
 * sent twice without harm is sent again over another: plain puts and gets, sequenced WRs (the
 * receiver drops a sequence that it has seen), answers (they name their request), controls (they are cumulative). A weak add has no
 * sequence, so it is in doubt: the flow stands still, asks its peer how many adds it has consumed from that rail, and either all came, or
 * exactly those in doubt are missing and are sent again; anything between ends the flow with an error that names the rail.
 * The peer tells its count only after its CQ of that rail was seen empty, and takes nothing more from that rail and peer: what it
 * tells stays true. Sequenced WRs wait for that answer too, so that a strong signal sent again cannot pass adds that still
 * lie in the broken rail's CQ. Must never: send an add again whose first copy may still be consumed. */
#include "order/internal.h"

enum { STRIPE_ALIGN = 64 }; /* so that parts begin where cache lines do */

/* ---------------------------------------------------------------- which rail */

/* By source, target and context: in an all-to-all every PE sends and receives as much over each of its rails. */
uint32_t uf_order_home_of(const uf_order *o, const uf_order_flow *flow, uint32_t ctx)
{
    uint32_t alive = flow->rails_alive;
    if (!alive)
        return 0;
    for (uint32_t skip = (o->config.self + flow->peer + ctx) % (uint32_t)__builtin_popcount(alive); skip; skip--)
        alive &= alive - 1;
    return (uint32_t)__builtin_ctz(alive);
}

/* The next one in turn that works; the flow has one. */
uint32_t uf_order_stripe_rail(uf_order *o, const uf_order_flow *flow)
{
    do
        o->next_rail = o->next_rail + 1 < o->config.n_rails ? o->next_rail + 1 : 0;
    while (!(flow->rails_alive & 1u << o->next_rail));
    return o->next_rail;
}

/* How a put or get above `whole` is cut: one part for each rail, if that gives parts which are worth it. The same for the life of an
 * operation. */
uint64_t uf_order_part_bytes(const uf_order *o, uint64_t bytes)
{
    const uf_order_config *c = &o->config;
    if (c->n_rails == 1 || c->stripe_bytes == 0)
        return c->max_message;
    uint64_t part = bytes / c->n_rails + (bytes % c->n_rails != 0);
    part = part < c->stripe_chunk ? c->stripe_chunk : (part + STRIPE_ALIGN - 1) / STRIPE_ALIGN * STRIPE_ALIGN;
    return part < c->max_message ? part : c->max_message;
}

/* A WR was posted on `rail`. */
void uf_order_rail_carries(uf_order_flow *flow, uint32_t rail, uint8_t type)
{
    flow->rails_used |= 1u << rail;
    flow->tx_adds[rail] += type == UF_WR_ADD;
}

/* May an immediate of that kind be taken from `rail`? Then it is counted. */
bool uf_order_rail_open(uf_order_flow *flow, uint32_t rail, uint32_t kind)
{
    if (flow->rails_closed >> rail & 1)
        return false;
    flow->rx_adds[rail] += kind == UF_IMM_ADD;
    return true;
}

/* ---------------------------------------------------------------- overlap */

static uint32_t filter_slot(uint64_t block)
{
    return (uint32_t)(block * 0x9e3779b97f4a7c15ull >> 58);
}
static_assert(UF_FILTER_SLOTS == 64, "filter_slot makes 6 bits");

static uint64_t blocks(uint64_t remote, uint64_t bytes)
{
    return ((remote + bytes - 1) >> UF_FILTER_SHIFT) - (remote >> UF_FILTER_SHIFT) + 1;
}

static void filter_count(uf_order_flow *flow, uint64_t remote, uint64_t bytes, int by)
{
    uint64_t n = blocks(remote, bytes);
    if (n > UF_FILTER_BLOCKS) {
        flow->large += (uint32_t)by;
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        flow->filter[filter_slot((remote >> UF_FILTER_SHIFT) + i)] += (uint16_t)by;
}

void uf_order_overlap_add(uf_order *o, uf_order_flow *flow, uint32_t cookie)
{
    uf_order_cookie *c = &o->cookies[cookie];
    c->prev = UF_NONE;
    c->next = flow->wrs;
    if (flow->wrs != UF_NONE)
        o->cookies[flow->wrs].prev = cookie;
    flow->wrs = cookie;
    filter_count(flow, o->saved[cookie].remote, o->saved[cookie].bytes, 1);
}

void uf_order_overlap_remove(uf_order *o, uf_order_flow *flow, uint32_t cookie)
{
    uf_order_cookie *c = &o->cookies[cookie];
    if (c->prev == UF_NONE)
        flow->wrs = c->next;
    else
        o->cookies[c->prev].next = c->next;
    if (c->next != UF_NONE)
        o->cookies[c->next].prev = c->prev;
    c->prev = cookie;
    filter_count(flow, o->saved[cookie].remote, o->saved[cookie].bytes, -1);
}

/* True if a late duplicate of a WR of ours could land on [remote, remote + bytes). The registration is not compared: two may
 * cover the same memory. */
bool uf_order_overlaps(uf_order *o, const uf_order_flow *flow, uint64_t remote, uint64_t bytes)
{
    if (uf_likely(flow->wrs == UF_NONE) || uf_order_mutant(o, UF_MUTANT_11_OVERLAP))
        return false;
    uint64_t n = blocks(remote, bytes);
    if (n <= UF_FILTER_BLOCKS && flow->large == 0) {
        uint32_t hits = 0;
        for (uint64_t i = 0; i < n; i++)
            hits += flow->filter[filter_slot((remote >> UF_FILTER_SHIFT) + i)];
        if (hits == 0)
            return false;
    }
    for (uint32_t i = flow->wrs; i != UF_NONE; i = o->cookies[i].next) {
        const uf_wr *wr = &o->saved[i];
        if (remote < wr->remote + wr->bytes && wr->remote < remote + bytes) {
            o->counters.held_overlap++;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- replay */

/* A replay arrives without a credit of its own, as the first copy may have come and given it back. So with several rails not only what is
 * unconsumed but also what has no CQE is at most a flow's credits, and each rail that breaks adds at most that to another's CQ. */
bool uf_order_may_replay(const uf_order *o, const uf_order_flow *flow, uint8_t type)
{
    if (type == UF_WR_ADD || type == UF_WR_SEQUENCE)
        return flow->open_imm < o->config.credits;
    if (type == UF_WR_MESSAGE || type == UF_WR_REQUEST || type == UF_WR_LAST)
        return flow->open_msg < o->general;
    return true;
}

void uf_order_may_replay_count(uf_order_flow *flow, uint8_t type, int by)
{
    if (type == UF_WR_ADD || type == UF_WR_SEQUENCE)
        flow->open_imm += (uint32_t)by;
    if (type == UF_WR_MESSAGE || type == UF_WR_REQUEST || type == UF_WR_LAST)
        flow->open_msg += (uint32_t)by;
}

static void replay_push(uf_order *o, uint32_t cookie)
{
    uf_order_cookie *c = &o->cookies[cookie];
    if (uf_order_mutant(o, UF_MUTANT_16_REPLAY))
        return;
    c->replay = UF_NONE;
    if (o->replay_tail == UF_NONE)
        o->replay_head = cookie;
    else
        o->cookies[o->replay_tail].replay = cookie;
    o->replay_tail = cookie;
}

static bool waits_for_count(const uf_order_cookie *c)
{
    bool ordered = c->type == UF_WR_SEQUENCE || c->type == UF_WR_MESSAGE || c->type == UF_WR_LAST;
    return ordered && (c->flow->stalled & UF_STALL_RAIL);
}

/* Sends lost WRs again. UF_HOLD_POST if the network refused one. */
uf_order_hold uf_order_replay(uf_order *o)
{
    uf_order_hold full = UF_HOLD_GO;
    uint32_t next = o->replay_head;
    o->replay_head = o->replay_tail = UF_NONE;
    while (next != UF_NONE) {
        uint32_t index = next;
        uf_order_cookie *c = &o->cookies[index];
        next = c->replay;
        if (!c->lost || c->type == UF_WR_FREE)
            continue; /* its flow ended */
        if (full != UF_HOLD_GO || waits_for_count(c)) {
            replay_push(o, index);
            continue;
        }
        uf_wr wr = o->saved[index];
        wr.rail = c->lane ? c->lane->home : c->flow->home;
        wr.cookie = (uint32_t)c->generation << 16 | index;
        int rc = o->edges.post(o->edges.arg, &wr);
        if (rc == UF_EAGAIN) {
            full = UF_HOLD_POST;
            replay_push(o, index);
        } else if (rc < 0) {
            uf_order_end_flow(o, c->flow, rc);
        } else {
            o->saved[index].rail = wr.rail;
            c->rail = (uint8_t)wr.rail;
            c->lost = false;
            uf_order_rail_carries(c->flow, wr.rail, c->type);
            o->counters.replayed++;
        }
    }
    return full;
}

/* ---------------------------------------------------------------- counts */

static void end_by_rail(uf_order *o, uf_order_flow *flow, uint32_t rail, const char *happened, const char *why)
{
    uf_fail(UF_EFABRIC,
            "PE %u: rail %u to PE %u broke and %s, so signals to it can neither be trusted nor sent again; replace the network "
            "card or leave it out (UNFENCE_RAILS)%s%s",
            o->config.self, rail, flow->peer, happened, why ? ": " : "", why ? why : "");
    uf_order_end_flow(o, flow, UF_EFABRIC);
}

static uf_order_hold post_count(uf_order *o, uf_order_flow *flow, uint8_t type, uint32_t rail)
{
    uf_order_cookie like = {.type = UF_WR_ANSWER, .entry = UF_NONE};
    uf_order_wire wire = {.type = type, .operand = rail, .extra = flow->rx_adds[rail]};
    return uf_order_post_message(o, flow, &wire, &like);
}

static uf_order_hold post_counts(uf_order *o, uf_order_flow *flow, uint8_t type, uint32_t *rails)
{
    while (*rails) {
        uf_order_hold hold = post_count(o, flow, type, (uint32_t)__builtin_ctz(*rails));
        if (hold != UF_HOLD_GO)
            return hold;
        *rails &= *rails - 1;
    }
    return UF_HOLD_GO;
}

/* Asks and tells what is due. */
uf_order_hold uf_order_count_pump(uf_order *o, uf_order_flow *flow)
{
    uf_order_hold hold = post_counts(o, flow, UF_MSG_COUNT_ASK, &flow->rails_ask);
    return hold == UF_HOLD_GO ? post_counts(o, flow, UF_MSG_COUNT_TELL, &flow->rails_tell) : hold;
}

/* The peer wants to know how many adds we have: told when its rail is drained (uf_order_drained). */
int uf_order_count_asked(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    if (wire->operand >= o->config.n_rails || o->config.n_rails == 1)
        return uf_order_garbage(o, flow, "a question about a rail that does not exist", wire, sizeof *wire);
    uint32_t bit = 1u << wire->operand;
    if (flow->rails_closed & bit) {
        flow->rails_tell |= bit;
        uf_order_activate(o, flow);
    } else {
        flow->rails_heard |= bit;
        o->drains_heard |= bit;
    }
    return UF_OK;
}

static void drained_flow(uf_order *o, uf_order_flow *flow, uint32_t empty)
{
    uint32_t tell = flow->rails_asked & empty;
    flow->rails_asked = (flow->rails_asked & ~empty) | flow->rails_heard;
    flow->rails_heard = 0;
    if (!tell)
        return;
    flow->rails_closed |= tell;
    flow->rails_tell |= tell;
    uf_order_activate(o, flow);
}

void uf_order_drained(uf_order *order, uint32_t empty)
{
    if (uf_likely(!(order->drains_heard | (order->drains_awaited & empty))))
        return;
    order->drains_heard = order->drains_awaited = 0;
    for (uint32_t i = 0; i < order->config.n_flows; i++) {
        uf_order_flow *flow = &order->flows[i];
        if (flow->status)
            continue;
        drained_flow(order, flow, empty);
        order->drains_awaited |= flow->rails_asked;
    }
}

static bool in_doubt(const uf_order_cookie *c, const uf_order_flow *flow, uint32_t rail)
{
    return c->type == UF_WR_ADD && c->flow == flow && c->lost && c->rail == rail;
}

/* The adds in doubt are settled: all of them came, or none. */
static void settle(uf_order *o, uf_order_flow *flow, uint32_t rail, bool came)
{
    for (uint32_t i = 0; i < o->config.tx_depth; i++) {
        uf_order_cookie *c = &o->cookies[i];
        if (!in_doubt(c, flow, rail))
            continue;
        if (came) {
            c->lost = false;
            uf_order_sent(o, (uint32_t)c->generation << 16 | i, UF_OK);
        } else {
            replay_push(o, i);
        }
    }
}

int uf_order_count_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire)
{
    if (wire->operand >= o->config.n_rails || o->config.n_rails == 1)
        return uf_order_garbage(o, flow, "an answer to nothing that was asked", wire, sizeof *wire);
    uint32_t rail = (uint32_t)wire->operand, doubt = 0;
    if (!(flow->rails_doubt & 1u << rail))
        return UF_OK; /* told twice */
    for (uint32_t i = 0; i < o->config.tx_depth; i++)
        doubt += in_doubt(&o->cookies[i], flow, rail);
    uint32_t missing = flow->tx_adds[rail] - (uint32_t)wire->extra;
    if (missing != 0 && missing != doubt) {
        end_by_rail(o, flow, rail, "only some of the signals in flight had arrived", NULL);
        return flow->status;
    }
    flow->rails_doubt &= ~(1u << rail);
    if (!flow->rails_doubt)
        flow->stalled &= ~(uint32_t)UF_STALL_RAIL;
    uf_order_wake(o, flow);
    settle(o, flow, rail, missing == 0);
    return UF_OK;
}

/* ---------------------------------------------------------------- a rail breaks */

static void control_again(uf_order *o, uint32_t cookie)
{
    uf_order_flow *flow = o->cookies[cookie].flow;
    uint32_t imm = o->saved[cookie].imm;
    if (!o->config.immediates) {
        uf_order_wire wire;
        uf_wire_decode(o->saved[cookie].message, &wire);
        imm = (uint32_t)wire.operand;
    }
    uf_order_cookie_free(o, cookie);
    uf_order_control_lost(o, flow, imm);
}

static void lose(uf_order *o, uint32_t cookie)
{
    uf_order_cookie *c = &o->cookies[cookie];
    o->lost++;
    c->generation++; /* a CQE of the lost WR must not be taken for that of its replay */
    c->lost = true;
    if (c->type == UF_WR_CONTROL)
        control_again(o, cookie);
    else if (c->type != UF_WR_ADD || uf_order_mutant(o, UF_MUTANT_16_DOUBT))
        replay_push(o, cookie); /* adds wait for the count */
}

/* New homes, and the question to the peer. */
static void leave_rail(uf_order *o, uf_order_flow *flow, uint32_t rail)
{
    for (uint32_t i = 0; i < o->config.max_local_lanes; i++) {
        uf_order_lane *lane = &o->lanes[i];
        if (lane->used && lane->flow == flow && lane->home == rail)
            lane->home = (uint8_t)uf_order_home_of(o, flow, lane->ctx->number);
    }
    if (flow->home == rail)
        flow->home = (uint16_t)uf_order_home_of(o, flow, 0);
    if (!(flow->rails_used & 1u << rail))
        return;
    flow->rails_doubt |= 1u << rail;
    flow->rails_ask |= 1u << rail;
    flow->stalled |= UF_STALL_RAIL;
    uf_order_activate(o, flow);
}

static void fail_flow_rail(uf_order *o, uf_order_flow *flow, uint32_t rail, const char *why)
{
    if (flow->status || !(flow->rails_alive & 1u << rail))
        return;
    flow->rails_alive &= ~(1u << rail);
    uf_order_wake(o, flow);
    if (!flow->rails_alive)
        end_by_rail(o, flow, rail, "was the last one", why);
    else if (!o->config.imm_placed && (flow->rails_used & 1u << rail))
        end_by_rail(o, flow, rail, "a completion on this network does not prove arrival", why);
    if (flow->status)
        return;
    leave_rail(o, flow, rail);
    for (uint32_t i = 0; i < o->config.tx_depth; i++) {
        uf_order_cookie *c = &o->cookies[i];
        if (c->type != UF_WR_FREE && c->flow == flow && c->rail == rail && !c->lost)
            lose(o, i);
    }
}

int uf_order_fail_rail(uf_order *order, uint32_t flow, uint32_t rail, const char *why)
{
    if (rail >= order->config.n_rails || (flow >= order->config.n_flows && flow != UF_ORDER_ALL_FLOWS))
        return uf_fail(UF_EINVAL, "PE %u: there is no rail %u to PE %u; there are %u rails and %u PEs", order->config.self, rail,
                       flow, order->config.n_rails, order->config.n_flows);
    for (uint32_t i = 0; i < order->config.n_flows; i++)
        if (flow == i || flow == UF_ORDER_ALL_FLOWS)
            fail_flow_rail(order, &order->flows[i], rail, why);
    return UF_OK;
}
