/* order_network.c - the adversary: a network that promises what section 4 of the design says and nothing else.
 *
 * Payload is placed in pieces, in any order between and within WRs, and again until the sender's CQE where the fabric has
 * duplicates. A remote CQE comes after all bytes of its write. A sender's CQE comes after that (imm_placed), or whenever
 * it likes once it has copied the source. Posts are refused at random. The CQs are as deep as uf_order says they must be, and
 * overrunning one is a violation of G8. A broken rail swallows what is on it; what was in a CQ already stays there. */
#include "order_harness.h"
#include <string.h>

static uint32_t op_of_address(uint64_t local)
{
    return (uint32_t)(local >> 8);
}

/* Between whom a rail is broken, as bits of the peers of `index`. */
static uint32_t broken_to(const world *w, uint32_t index, uint32_t rail)
{
    uint32_t broken = w->rail_broken[rail];
    return broken >> index & 1 ? (1u << w->n_pes) - 1 : broken;
}

int network_post(world *w, uint32_t src, const uf_wr *wr)
{
    pe *p = &w->pes[src];
    if (chance(w, w->refuse) || w->n_wire == MAX_WIRE)
        return UF_EAGAIN;
    if (wr->rail >= w->config.n_rails || (p->rail_told[wr->rail] >> wr->peer & 1))
        violation(w, "G15: PE %u posted on rail %u, which it knows to be broken", src, wr->rail);
    if (wr->bytes > w->config.max_message && wr->verb != UF_VERB_SEND)
        violation(w, "PE %u posted %llu bytes, more than one WR takes", src, (unsigned long long)wr->bytes);
    wire_wr *x = &w->wire[w->n_wire++];
    bool payload = wr->verb <= UF_VERB_READ && wr->bytes;
    x->wr = *wr;
    x->src = (uint8_t)src;
    x->delivered = x->dead = x->has_data = false;
    x->acked = wr->flags & UF_WR_SILENT;
    x->pieces = 0;
    if (payload) {
        uint32_t most = wr->bytes < 4 ? (uint32_t)wr->bytes : 4;
        x->pieces = (uint8_t)(1 + pick(w, most));
    }
    x->left = (uint8_t)((1u << x->pieces) - 1);
    x->dead = broken_to(w, src, wr->rail) >> wr->peer & 1;
    if (x->acked && payload) {
        if (wr->bytes > w->config.inline_bytes)
            violation(w, "PE %u posted %llu bytes silently", src, (unsigned long long)wr->bytes);
        uint32_t id = op_of_address(wr->local);
        for (uint32_t i = 0; i < wr->bytes; i++)
            x->data[i] = pattern(id, (uint32_t)(wr->local & 0xff) + i);
        x->has_data = true;
        judge_captured(w, id, (uint32_t)(wr->local & 0xff), (uint32_t)wr->bytes);
    }
    if (x->acked && (w->config.imm_placed ? uf_imm_kind(wr->imm) != UF_IMM_CONTROL : wr->flags & UF_WR_PLACED))
        violation(w, "PE %u posted silently a WR whose CQE it needs", src);
    if (wr->verb == UF_VERB_SEND)
        judge_message_posted(w, wr, src);
    uint32_t kind = uf_imm_kind(wr->imm);
    if (wr->verb == UF_VERB_WRITE_IMM && kind == UF_IMM_CONTROL) {
        uint32_t type = uf_imm_type(wr->imm);
        if (type == UF_CONTROL_QUIET)
            p->quiet[wr->peer] = true;
        if (type == UF_CONTROL_RECEIPT)
            w->pes[wr->peer].quiet[src] = false;
    } else if (wr->verb != UF_VERB_WRITE && wr->verb != UF_VERB_READ && p->quiet[wr->peer]) {
        w->result->seen |= SEEN_QUIET_RACE;
    }
    note(w,
         wr->verb == UF_VERB_SEND   ? "post message"
         : wr->verb == UF_VERB_READ ? "post read"
                                    : "post write",
         src, wr->peer,
         wr->verb == UF_VERB_WRITE_IMM ? wr->imm
         : wr->verb == UF_VERB_SEND    ? wr->message[0]
                                       : op_of_address(wr->local));
    return UF_OK;
}

static uint32_t piece_bounds(const wire_wr *x, uint32_t piece, uint32_t *end)
{
    uint32_t bytes = (uint32_t)x->wr.bytes, size = (bytes + x->pieces - 1) / x->pieces;
    uint32_t from = piece * size;
    *end = from + size < bytes ? from + size : bytes;
    return from < bytes ? from : bytes;
}

/* Copies one piece to where it goes. */
static void place(world *w, wire_wr *x, uint32_t piece)
{
    uint32_t end, from = piece_bounds(x, piece, &end);
    uint32_t id = op_of_address(x->wr.local), base = (uint32_t)(x->wr.local & 0xff);
    op_record *op = &w->ops[id];
    if (x->wr.verb == UF_VERB_READ) {
        for (uint32_t i = from; i < end; i++)
            op->placed |= 1ull << (base + i);
        return;
    }
    uint32_t slot = (uint32_t)(x->wr.remote / SLOT_STRIDE), at = (uint32_t)(x->wr.remote % SLOT_STRIDE);
    unsigned char *memory = w->pes[x->wr.peer].memory[x->src][slot];
    for (uint32_t i = from; i < end; i++)
        memory[at + i] = x->has_data ? x->data[i] : op->source_free ? 0xee : pattern(id, base + i);
    if (end > from)
        judge_placed(w, id, base + from, end - from);
    x->left &= (uint8_t) ~(1u << piece);
}

static void push(world *w, wire_wr *x)
{
    pe *to = &w->pes[x->wr.peer];
    cq *c = &to->cq[x->wr.rail];
    bool message = x->wr.verb == UF_VERB_SEND;
    uint32_t imms = c->n - c->messages;
    if (c->n == MAX_CQ || (message ? c->messages >= uf_order_receives(&w->config) : imms >= uf_order_remote_cqes(&w->config))) {
        violation(w, "G8: PE %u's %s overran", x->wr.peer, message ? "receives" : "CQ");
        return;
    }
    cq_entry *e = &c->entry[(c->head + c->n++) % MAX_CQ];
    e->src = x->src;
    e->message = message;
    e->imm = x->wr.imm;
    x->delivered = true;
    if (message) {
        c->messages++;
        memcpy(e->bytes, x->wr.message, UF_MESSAGE_BYTES);
        if (++c->message[x->src] > uf_order_receives(&w->config) / w->n_pes)
            violation(w, "G8: PE %u has more messages from PE %u than its credits", x->wr.peer, x->src);
    } else if (uf_imm_kind(e->imm) == UF_IMM_CONTROL) {
        if (++c->control[x->src] > UF_ORDER_CONTROL_RESERVE * w->config.n_rails)
            violation(w, "G8: PE %u has %u controls from PE %u", x->wr.peer, c->control[x->src], x->src);
    } else if (++c->immediate[x->src] > w->config.credits * w->config.n_rails) {
        violation(w, "G8: PE %u has more immediates from PE %u than its credits", x->wr.peer, x->src);
    }
    note(w, message ? "message arrives" : "immediate arrives", x->src, x->wr.peer, message ? e->bytes[0] : e->imm);
}

/* May the sender's CQE come now? */
static bool may_ack(const world *w, const wire_wr *x)
{
    if (x->acked || w->pes[x->src].stalled || w->pes[x->src].held)
        return false;
    if (x->wr.verb == UF_VERB_WRITE || x->wr.verb == UF_VERB_READ)
        return x->left == 0;
    if (w->config.imm_placed)
        return x->delivered;
    /* On a fabric in software a peer that does not move may hold back our CQEs as well. */
    return x->delivered || !w->pes[x->wr.peer].held;
}

static void ack(world *w, wire_wr *x)
{
    uint32_t id = op_of_address(x->wr.local), base = (uint32_t)(x->wr.local & 0xff);
    x->acked = true;
    if (x->pieces && x->wr.verb != UF_VERB_READ) {
        if (x->left)
            for (uint32_t i = 0; i < x->wr.bytes; i++)
                x->data[i] = pattern(id, base + i);
        x->has_data = true;
        judge_captured(w, id, base, (uint32_t)x->wr.bytes);
    }
    if (x->pieces && x->wr.verb == UF_VERB_READ)
        judge_captured(w, id, base, (uint32_t)x->wr.bytes);
    note(w, "CQE", x->src, x->wr.peer, x->wr.cookie);
    uf_order_sent(w->pes[x->src].order, x->wr.cookie, UF_OK);
}

/* What a WR may do next, by chance. True if it did something. */
static bool move(world *w, uint32_t index)
{
    wire_wr *x = &w->wire[index];
    if (x->dead)
        return false;
    bool counts = x->wr.verb == UF_VERB_WRITE_IMM || x->wr.verb == UF_VERB_SEND;
    if (may_ack(w, x) && chance(w, x->left || (counts && !x->delivered) ? 40 : 128)) {
        ack(w, x);
        return true;
    }
    if (x->left) {
        uint32_t piece = pick(w, x->pieces);
        while (!(x->left >> piece & 1))
            piece = (piece + 1) % x->pieces;
        if (x->wr.verb == UF_VERB_READ)
            x->left &= (uint8_t) ~(1u << piece);
        place(w, x, piece);
        return true;
    }
    if (counts && !x->delivered) {
        push(w, x);
        return true;
    }
    if (x->acked) {
        w->wire[index] = w->wire[--w->n_wire];
        return true;
    }
    if (w->config.duplicates && x->pieces && x->wr.verb != UF_VERB_READ && chance(w, 48)) {
        place(w, x, pick(w, x->pieces));
        w->result->seen |= SEEN_DUPLICATE;
        return true;
    }
    if (may_ack(w, x)) {
        ack(w, x);
        return true;
    }
    return false;
}

bool network_move(world *w)
{
    if (w->n_wire == 0)
        return false;
    uint32_t first = pick(w, w->n_wire);
    for (uint32_t i = 0; i < 8; i++) {
        if (move(w, first))
            return true;
        first = first + 1 < w->n_wire ? first + 1 : 0;
    }
    return false;
}

static void some_moves(world *w)
{
    for (uint32_t n = pick(w, 2 * w->n_wire + 2); n; n--)
        network_move(w);
}

/* While a PE looks at one CQ after another, the network moves, a rail breaks, and others hear of it and ask about it. */
static void others_go_on(world *w, uint32_t index)
{
    some_moves(w);
    if (w->break_due)
        network_break_one(w);
    w->break_due = false;
    for (uint32_t i = 0; i < w->n_pes; i++) {
        pe *p = &w->pes[i];
        if (i == index || p->held || p->stalled)
            continue;
        for (uint32_t r = 0; r < w->config.n_rails; r++)
            if (broken_to(w, i, r) & ~p->rail_told[r])
                network_tell_rail(w, i, (1u << w->n_pes) - 1, r);
        uf_order_progress(p->order);
    }
    some_moves(w);
}

bool network_consume(world *w, uint32_t index, uint32_t most)
{
    pe *p = &w->pes[index];
    bool any = false;
    uint32_t first = w->config.n_rails > 1 ? pick(w, w->config.n_rails) : 0, empty = 0;
    for (uint32_t r = 0; r < w->config.n_rails; r++) {
        uint32_t rail = (first + r) % w->config.n_rails;
        cq *c = &p->cq[rail];
        for (uint32_t i = 0; i < most && c->n; i++) {
            cq_entry e = c->entry[c->head];
            c->head = (c->head + 1) % MAX_CQ;
            c->n--;
            any = true;
            if (e.message) {
                c->messages--;
                c->message[e.src]--;
                uf_order_message(p->order, e.src, e.bytes);
                continue;
            }
            if (uf_imm_kind(e.imm) == UF_IMM_CONTROL)
                c->control[e.src]--;
            else
                c->immediate[e.src]--;
            uf_order_imm(p->order, e.src, rail, e.imm);
        }
        empty |= c->n == 0 ? 1u << rail : 0;
        if (r + 1 < w->config.n_rails && (w->break_due || chance(w, 64)))
            others_go_on(w, index);
    }
    if (w->config.n_rails > 1)
        uf_order_drained(p->order, empty);
    return any;
}

/* A rail breaks for all PEs, or for one. The last one stays whole, so that not everything just ends. */
void network_break_one(world *w)
{
    uint32_t rail = pick(w, w->config.n_rails > 2 ? 2 : w->config.n_rails);
    network_break_rail(w, chance(w, 128) ? (1u << w->n_pes) - 1 : 1u << pick(w, w->n_pes), rail);
}

/* From now on nothing moves on it; what was delivered stays in the CQs. */
void network_break_rail(world *w, uint32_t pes, uint32_t rail)
{
    w->rail_broken[rail] |= pes;
    w->result->seen |= SEEN_RAIL_BROKE;
    note(w, "rail breaks", rail, pes, 0);
    for (uint32_t i = 0; i < w->n_wire; i++)
        if (w->wire[i].wr.rail == rail && (broken_to(w, w->wire[i].src, rail) >> w->wire[i].wr.peer & 1))
            w->wire[i].dead = true;
}

/* Takes what a PE has in flight to a peer on a broken rail out of the network. */
static void forget(world *w, uint32_t index, uint32_t peers, uint32_t rail)
{
    pe *p = &w->pes[index];
    for (uint32_t i = 0; i < w->n_wire;) {
        wire_wr *x = &w->wire[i];
        if (x->src != index || x->wr.rail != rail || !(peers >> x->wr.peer & 1)) {
            i++;
            continue;
        }
        if (x->wr.verb == UF_VERB_WRITE_IMM && uf_imm_kind(x->wr.imm) == UF_IMM_ADD && !x->acked) {
            p->lost_adds[x->wr.peer]++;
            p->lost_arrived[x->wr.peer] += x->delivered;
        }
        if (x->delivered && x->pieces)
            judge_captured(w, op_of_address(x->wr.local), (uint32_t)(x->wr.local & 0xff), (uint32_t)x->wr.bytes);
        w->wire[i] = w->wire[--w->n_wire];
    }
}

/* Tells a PE what it does not know yet of a broken rail: to all of `peers`, that is everybody or those whose end broke. */
void network_tell_rail(world *w, uint32_t index, uint32_t peers, uint32_t rail)
{
    pe *p = &w->pes[index];
    uint32_t all = (1u << w->n_pes) - 1, news = peers & broken_to(w, index, rail) & ~p->rail_told[rail];
    p->rail_told[rail] |= news;
    forget(w, index, news, rail);
    note(w, "rail told", index, rail, news);
    if (news == all) {
        uf_order_fail_rail(p->order, UF_ORDER_ALL_FLOWS, rail, "told by the test");
        return;
    }
    for (uint32_t peer = 0; peer < w->n_pes; peer++)
        if (news >> peer & 1)
            uf_order_fail_rail(p->order, peer, rail, "told by the test");
}
