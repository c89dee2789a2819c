/* order_judge.c - knows what was submitted and checks each effect against docs/ordering.md. A violation names its guarantee.
 *
 * The judge sees only the edges of src/order and what the network did; it shares no state with the protocol. */
#include "order_harness.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORD_BASE (1ull << 32) /* address of signal words without an index */

void violation(world *w, const char *format, ...)
{
    if (w->failed)
        return; /* the first one is the cause */
    w->failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(w->result->violation, sizeof w->result->violation, format, args);
    va_end(args);
}

static lane_record *lane_of(world *w, const op_record *op)
{
    return &w->pes[op->src].lane[op->ctx][op->dst];
}

static uint64_t all_bytes(const op_record *op)
{
    return op->op.bytes ? ~0ull >> (64 - op->op.bytes) : 0;
}

static bool is_put(const op_record *op)
{
    return op->op.kind == UF_ORDER_PUT || op->op.kind == UF_ORDER_PUT_SIGNAL;
}

/* Its whole effect is there. Gets have none. */
static bool complete(const op_record *op)
{
    if (op->excused || op->op.kind == UF_ORDER_GET)
        return true;
    return (!is_put(op) || op->placed == all_bytes(op)) && (!op->has_signal || op->applied);
}

/* Its source may be reused, what it fetched is here. */
static bool complete_here(const op_record *op)
{
    if (op->excused)
        return true;
    if (op->fetch)
        return op->done;
    return op->captured == all_bytes(op);
}

static void advance(world *w, lane_record *l)
{
    while (l->complete < l->n && complete(&w->ops[l->ops[l->complete]]))
        l->complete++;
    while (l->local < l->n && complete_here(&w->ops[l->ops[l->local]]))
        l->local++;
}

static void check_fence(world *w, uint32_t id, const char *what)
{
    op_record *op = &w->ops[id];
    lane_record *l = lane_of(w, op);
    if (op->after_fence == 0)
        return;
    advance(w, l);
    if (l->complete < op->after_fence)
        violation(w, "G5: %s of operation %u came before operation %u, which is before its fence", what, id, l->ops[l->complete]);
}

void judge_op(world *w, uint32_t id)
{
    op_record *op = &w->ops[id];
    lane_record *l = lane_of(w, op);
    if (w->pes[op->src].ctx[op->ctx].fence_epoch != l->fence_epoch) {
        l->fence_epoch = w->pes[op->src].ctx[op->ctx].fence_epoch;
        l->fence = l->n;
    }
    op->serial = l->n;
    op->after_fence = op->op.kind == UF_ORDER_GET ? 0 : l->fence;
    l->ops[l->n++] = (uint16_t)id;
    note(w, "submit", id, op->src * 16u + op->dst, op->op.kind * 256u + op->op.flags);
}

void judge_placed(world *w, uint32_t id, uint32_t offset, uint32_t bytes)
{
    op_record *op = &w->ops[id];
    if (op->placed == 0)
        check_fence(w, id, "a byte");
    op->placed |= (~0ull >> (64 - bytes)) << offset;
}

void judge_captured(world *w, uint32_t id, uint32_t offset, uint32_t bytes)
{
    w->ops[id].captured |= (~0ull >> (64 - bytes)) << offset;
}

static bool find_op(const world *w, bool indexed, uint64_t address, uint32_t *id)
{
    uint64_t n = indexed ? address : (address - WORD_BASE) / 8;
    *id = (uint32_t)n;
    return n < w->n_ops && (indexed || address >= WORD_BASE);
}

void judge_message_posted(world *w, const uf_wr *wr, uint32_t src)
{
    uf_order_wire m;
    uint32_t id;
    uf_wire_decode(wr->message, &m);
    if (uf_wire_type(&m) != UF_MSG_SIGNAL || (m.op & UF_MSG_OP_MASK) != UF_ATOMIC_SET)
        return;
    if (!find_op(w, m.op & UF_MSG_INDEXED, m.address, &id) || w->ops[id].src != src)
        return;
    if (w->ops[id].posted_set == 0)
        w->ops[id].posted_set = ++lane_of(w, &w->ops[id])->sets_posted;
}

static void check_bytes(world *w, uint32_t id, const char *when)
{
    op_record *op = &w->ops[id];
    const unsigned char *memory = w->pes[op->dst].memory[op->src][op->slot];
    uint32_t at = (uint32_t)(op->op.remote % SLOT_STRIDE);
    for (uint32_t i = 0; i < op->op.bytes; i++)
        if (memory[at + i] != pattern(id, i)) {
            violation(w, "G1: byte %u of operation %u from PE %u to PE %u is wrong %s", i, id, op->src, op->dst, when);
            return;
        }
}

static void release_slot(world *w, op_record *op)
{
    pe *to = &w->pes[op->dst];
    if (op->op.bytes == 0 || op->abandoned || !is_put(op))
        return;
    op->abandoned = true;
    to->free[op->src][to->n_free[op->src]++] = op->slot;
}

static void check_order(world *w, uint32_t id)
{
    op_record *op = &w->ops[id];
    lane_record *l = lane_of(w, op);
    if (op->op.flags & UF_STRONG) {
        advance(w, l);
        if (l->complete < op->serial)
            violation(w, "G3: strong signal %u was applied before operation %u of its lane", id, l->ops[l->complete]);
    }
    if (op->op.kind != UF_ORDER_ATOMIC && op->op.op == UF_ATOMIC_SET && op->posted_set != ++l->sets_applied)
        violation(w, "G4: SET %u was sent as number %u of its lane and applied as %u", id, op->posted_set, l->sets_applied);
    check_fence(w, id, "the signal");
}

int judge_apply(world *w, uint32_t index, const uf_order_signal *s, uint64_t *old)
{
    uint32_t id;
    if (!find_op(w, s->indexed, s->address, &id)) {
        violation(w, "G2: PE %u was given a signal that nobody sent (address %#llx)", index, (unsigned long long)s->address);
        return UF_OK;
    }
    op_record *op = &w->ops[id];
    note(w, "apply", id, s->flow * 16 + index, (uint32_t)s->operand);
    if (op->dst != index || op->src != s->flow || !op->has_signal)
        violation(w, "G2: signal of operation %u from PE %u to PE %u was applied at PE %u as from PE %u", id, op->src, op->dst,
                  index, s->flow);
    if (op->applied)
        violation(w, "G2: signal of operation %u was applied twice", id);
    if (s->operand != op->op.operand || s->op != op->op.op)
        violation(w, "G2: signal of operation %u has operand %llu instead of %llu", id, (unsigned long long)s->operand,
                  (unsigned long long)op->op.operand);
    if (op->op.kind == UF_ORDER_ATOMIC && (s->width != op->op.width || s->compare != op->op.compare))
        violation(w, "G2: atomic %u was changed on its way", id);
    if (is_put(op)) {
        if (op->placed != all_bytes(op))
            violation(w, "G1: signal of operation %u was applied before all of its bytes were placed", id);
        else
            check_bytes(w, id, "when its signal is applied");
    }
    if (is_put(op) && (op->op.flags & UF_SETTLED) && op->captured != all_bytes(op))
        violation(w, "G13: settled signal %u was applied while the network may still write its bytes", id);
    check_order(w, id);
    op->applied = true;
    w->result->applied++;
    release_slot(w, op);
    *old = op->answer;
    return UF_OK;
}

void judge_done(world *w, uint32_t index, uint64_t user, int status, uint64_t value)
{
    uint32_t id = (uint32_t)user - 1;
    op_record *op = &w->ops[id];
    note(w, "done", id, index, (uint32_t)status);
    if (user == 0 || id >= w->n_ops || op->src != index || op->done) {
        violation(w, "G7: PE %u was told that operation %u is done, which it did not ask for or knows already", index, id);
        return;
    }
    op->done = true;
    if (status < 0) {
        if (!w->pes[index].flow_failed[op->dst])
            violation(w, "G7: operation %u failed although nothing is broken", id);
        return;
    }
    if (op->fetch && (!op->applied || value != op->answer))
        violation(w, "G7: operation %u fetched %llu instead of %llu", id, (unsigned long long)value,
                  (unsigned long long)op->answer);
    if (!op->fetch && op->captured != all_bytes(op))
        violation(w, "G7: operation %u is done but its buffer is still in use", id);
    op->source_free = op->op.kind != UF_ORDER_GET;
}

void judge_mark(world *w, const mark_record *m)
{
    lane_record *l = m->lane;
    advance(w, l);
    if (l->local < m->upto)
        violation(w, "G6: a mark of PE %u to PE %u was reported before operation %u was complete here", m->src, m->dst,
                  l->ops[l->local]);
    if (m->mark.remote && l->complete < m->upto)
        violation(w, "G6: a remote mark of PE %u to PE %u was reported before operation %u was complete there", m->src, m->dst,
                  l->ops[l->complete]);
    for (uint32_t i = 0; m->mark.remote && i < m->upto; i++)
        release_slot(w, &w->ops[l->ops[i]]);
}

void excuse_flow(world *w, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < w->n_ops; i++)
        if ((w->ops[i].src == a && w->ops[i].dst == b) || (w->ops[i].src == b && w->ops[i].dst == a))
            w->ops[i].excused = true;
}

void judge_failed(world *w, uint32_t index, uint32_t flow, int status)
{
    pe *p = &w->pes[index];
    note(w, "failed", index, flow, (uint32_t)status);
    bool rail = status == UF_EFABRIC && w->break_at != UINT32_MAX;
    if (status == UF_EPEER && (p->flow_told[flow] || w->pes[flow].flow_told[index])) {
        p->flow_failed[flow] = true; /* the workload said so */
        excuse_flow(w, index, flow);
        return;
    }
    if (!rail)
        violation(w, "G10: PE %u ended its connection to PE %u: %s", index, flow, uf_error_message());
    else if (w->config.imm_placed && (p->lost_arrived[flow] == 0 || p->lost_arrived[flow] == p->lost_adds[flow]))
        violation(w, "G15: PE %u gave PE %u up although all or none of its %u adds in doubt had arrived", index, flow,
                  p->lost_adds[flow]);
    w->result->seen |= SEEN_RAIL_ERROR;
    p->flow_failed[flow] = true;
    excuse_flow(w, index, flow);
}

/* Have all operations ended? `without_held`: those to and from the PE that is held up do not count. *open: one that has not. */
bool judge_all_complete(world *w, bool without_held, uint32_t *open)
{
    for (uint32_t i = 0; i < w->n_ops; i++) {
        op_record *op = &w->ops[i];
        if (without_held && (op->src == w->held_pe || op->dst == w->held_pe))
            continue;
        bool told = op->op.user == 0 || op->done;
        if (!complete(op) || !complete_here(op) || !(told || op->excused)) {
            *open = i;
            return false;
        }
    }
    return true;
}

void judge_end(world *w)
{
    for (uint32_t i = 0; i < w->n_ops; i++)
        if (w->ops[i].op.user && !w->ops[i].done)
            violation(w, "G9: operation %u never ended", i);
    for (uint32_t to = 0; to < w->n_pes; to++) {
        pe *p = &w->pes[to];
        for (uint32_t from = 0; from < w->n_pes; from++)
            for (uint32_t slot = 0; slot < SLOTS; slot++)
                if (p->owner[from][slot] && !w->ops[p->owner[from][slot] - 1].excused)
                    check_bytes(w, p->owner[from][slot] - 1u, "at the end");
        const uf_order_counters *c = uf_order_counters_get(p->order);
        if (c->max_queue > w->config.queue_ops)
            violation(w, "G11: PE %u had %llu operations waiting, more than %u", to, (unsigned long long)c->max_queue,
                      w->config.queue_ops);
    }
}
