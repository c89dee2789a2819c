/* order_workload.c - runs one seed: a configuration, operations, the order in which everything moves, and the end.
 *
 * Half of the randomness is in the sizes: windows of 2, 4 and 8, a handful of credits, cursors just below the wrap of each field. */
#include "order_harness.h"
#include <stdio.h>
#include <string.h>

static world the_world; /* large, and one at a time */
static edge_arg edge_args[MAX_PES];

/* ---------------------------------------------------------------- edges */

static int edge_post(void *arg, const uf_wr *wr)
{
    edge_arg *e = arg;
    return network_post(e->w, e->pe, wr);
}

static int edge_apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    edge_arg *e = arg;
    return judge_apply(e->w, e->pe, signal, old);
}

static void edge_done(void *arg, uint64_t user, int status, uint64_t value)
{
    edge_arg *e = arg;
    judge_done(e->w, e->pe, user, status, value);
}

static void edge_failed(void *arg, uint32_t flow, int status)
{
    edge_arg *e = arg;
    judge_failed(e->w, e->pe, flow, status);
}

/* ---------------------------------------------------------------- configuration */

static uint32_t first_sequence(world *w)
{
    uint32_t back = pick(w, 24);
    switch (pick(w, 5)) {
    case 0:
        return 0;
    case 1:
        return (1u << 16) - back;
    case 2:
        return (1u << UF_IMM_VALUE_BITS) - back;
    case 3:
        return 0u - back;
    }
    return (uint32_t)random_next(w);
}

static void choose_config(world *w)
{
    static const uint32_t windows[] = {2, 2, 4, 4, 8, 8, 16, 64};
    w->n_pes = 2 + pick(w, MAX_PES - 1);
    w->n_ctx = 1 + pick(w, MAX_CTX);
    bool immediates = !chance(w, 32);
    w->config = (uf_order_config){
        .n_flows = w->n_pes,
        .n_rails = immediates && chance(w, 48) ? 2 + pick(w, MAX_RAILS - 1) : 1,
        .window = windows[pick(w, 8)],
        .credits = chance(w, 160) ? 4 + pick(w, 6) : 16 + pick(w, 48),
        .message_credits = chance(w, 160) ? 2 + pick(w, 6) : 8 + pick(w, 24),
        .tx_depth = 4 + pick(w, chance(w, 128) ? 12 : 60),
        .queue_ops = 4 + pick(w, chance(w, 128) ? 12 : 60),
        .max_lanes = w->n_pes * w->n_ctx + 1,
        .max_local_lanes = w->n_pes * w->n_ctx,
        .max_fetches = pick(w, 5),
        .max_message = 4 + pick(w, 12),
        .stripe_bytes = chance(w, 128) ? 2 + pick(w, 8) : 0,
        .stripe_chunk = 1 + pick(w, 6),
        .inline_bytes = chance(w, 128) ? 8 + 24 * pick(w, 2) : 0,
        .immediates = immediates,
        .imm_placed = chance(w, 150),
        .duplicates = chance(w, 80),
        .first_sequence = first_sequence(w),
        .mutations = w->options.mutations,
    };
    w->refuse = chance(w, 128) ? pick(w, 90) : 0;
    w->held_pe = w->n_pes > 2 && chance(w, 40) ? pick(w, w->n_pes) : w->n_pes;
    w->dead_pe = w->held_pe < w->n_pes && chance(w, 80);
    w->focus = chance(w, 40);
    w->break_at = w->config.n_rails > 1 && chance(w, 200) ? pick(w, w->max_ops) : UINT32_MAX;
    w->break_more_at =
        w->config.n_rails > 2 && w->break_at != UINT32_MAX && chance(w, 128) ? w->break_at + pick(w, 24) : UINT32_MAX;
    w->break_in_look = chance(w, 128);
    if (!immediates)
        w->result->seen |= SEEN_NO_IMMEDIATES;
    if (!w->config.imm_placed)
        w->result->seen |= SEEN_BY_RECEIPT;
}

static bool open_lanes(world *w, uint32_t index)
{
    pe *p = &w->pes[index];
    for (uint32_t c = 0; c < w->n_ctx; c++) {
        uint32_t window = w->config.window;
        while (window > 2 && chance(w, 64))
            window /= 2;
        p->ctx[c] = (uf_order_ctx){.window = window, .ordered = chance(w, 64), .number = c};
        for (uint32_t to = 0; to < w->n_pes; to++)
            if (uf_order_lane_open(p->order, &p->ctx[c], to, &p->lane[c][to].lane) != UF_OK)
                return false;
    }
    return true;
}

static bool create_pes(world *w)
{
    for (uint32_t i = 0; i < w->n_pes; i++) {
        pe *p = &w->pes[i];
        edge_args[i] = (edge_arg){w, i};
        for (uint32_t r = 0; r < MAX_RAILS; r++)
            p->cq[r].entry = w->entries[i][r];
        uf_order_edges edges = {&edge_args[i], edge_post, edge_apply, edge_done, edge_failed};
        uf_order_config config = w->config;
        config.self = i;
        if (uf_order_create(&config, &edges, &p->order) != UF_OK || !open_lanes(w, i)) {
            violation(w, "creation failed: %s", uf_error_message());
            return false;
        }
        for (uint32_t from = 0; from < w->n_pes; from++) {
            p->n_free[from] = SLOTS;
            for (uint32_t s = 0; s < SLOTS; s++)
                p->free[from][s] = (uint8_t)s;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- operations */

/* A place in the target's memory for a put; false if all are in use. */
static bool take_slot(world *w, op_record *op, uint32_t id)
{
    pe *to = &w->pes[op->dst];
    if (to->n_free[op->src] == 0 || op->op.bytes == 0) {
        op->op.bytes = 0;
        return false;
    }
    op->slot = to->free[op->src][--to->n_free[op->src]];
    uint32_t at = pick(w, SLOT_BYTES + 1 - (uint32_t)op->op.bytes);
    op->op.remote = (uint64_t)op->slot * SLOT_STRIDE + at;
    op->op.local = (uint64_t)id << 8;
    return true;
}

static uint32_t choose_bytes(world *w)
{
    if (chance(w, 20))
        return 0;
    if (chance(w, 200))
        return 1 + pick(w, (uint32_t)w->config.max_message);
    return 1 + pick(w, 48);
}

static void choose_signal(world *w, op_record *op, uint32_t id)
{
    op->has_signal = true;
    op->op.op = chance(w, 40) ? UF_ATOMIC_SET : UF_ATOMIC_ADD;
    op->op.indexed = !chance(w, 24);
    op->op.signal_address = op->op.indexed ? id : (1ull << 32) + 8ull * id;
    op->op.operand = chance(w, 200) ? pick(w, 512) : random_next(w);
    if (chance(w, 48))
        op->op.flags |= UF_STRONG;
    if (chance(w, 20))
        op->op.flags |= UF_SETTLED;
}

static void choose_op(world *w, op_record *op, uint32_t id)
{
    uint32_t dice = pick(w, 100);
    if (chance(w, 90))
        op->op.user = id + 1;
    op->op.more = chance(w, 64);
    if (dice < 60) {
        op->op.kind = UF_ORDER_PUT_SIGNAL;
        op->op.bytes = choose_bytes(w);
        choose_signal(w, op, id);
    } else if (dice < 74) {
        op->op.kind = UF_ORDER_PUT;
        op->op.bytes = choose_bytes(w);
    } else if (dice < 86) {
        op->op.kind = UF_ORDER_SIGNAL;
        choose_signal(w, op, id);
    } else if (dice < 90) {
        op->op.kind = UF_ORDER_GET;
        op->op.bytes = choose_bytes(w);
    } else {
        op->op.kind = UF_ORDER_ATOMIC;
        op->op.op = (uint8_t)pick(w, UF_ATOMIC_COMPARE_SWAP + 1);
        op->op.width = pick(w, 2) ? 8 : 4;
        op->op.signal_address = (1ull << 32) + 8ull * id;
        op->op.operand = random_next(w);
        op->op.compare = random_next(w);
        op->has_signal = true;
        op->fetch = op->op.op >= UF_ATOMIC_FETCH;
        op->answer = random_next(w);
        op->op.user = op->fetch ? id + 1 : op->op.user;
    }
}

static uint32_t choose_ctx(world *w)
{
    return w->focus ? 0 : pick(w, w->n_ctx);
}

static bool submit_one(world *w, uint32_t src, uint32_t dst)
{
    pe *p = &w->pes[src], *to = &w->pes[dst];
    uint32_t id = w->n_ops;
    op_record *op = &w->ops[id];
    memset(op, 0, sizeof *op);
    op->src = (uint8_t)src;
    op->dst = (uint8_t)dst;
    op->ctx = (uint8_t)choose_ctx(w);
    if (p->lane[op->ctx][dst].closing)
        return false;
    choose_op(w, op, id);
    bool put = op->op.kind == UF_ORDER_PUT || op->op.kind == UF_ORDER_PUT_SIGNAL;
    bool slot = put && take_slot(w, op, id);
    if (op->op.kind == UF_ORDER_GET)
        op->op.local = (uint64_t)id << 8;
    if (slot && p->flow_failed[dst] == false && to->owner[src][op->slot] && !w->ops[to->owner[src][op->slot] - 1].excused) {
        /* The last owner of these bytes must still find them: late duplicates of older ones must not come any more. */
        uint32_t last = to->owner[src][op->slot] - 1u, at = (uint32_t)(w->ops[last].op.remote % SLOT_STRIDE);
        for (uint32_t i = 0; i < w->ops[last].op.bytes; i++)
            if (to->memory[src][op->slot][at + i] != pattern(last, i))
                violation(w, "G14: bytes of operation %u were overwritten by a late duplicate", last);
    }
    w->n_ops++;
    lane_record *l = &p->lane[op->ctx][dst];
    uint16_t before[3] = {l->n, l->fence, 0};
    uint64_t epoch = l->fence_epoch;
    uint16_t owner = slot ? to->owner[src][op->slot] : 0;
    if (slot)
        to->owner[src][op->slot] = (uint16_t)(id + 1);
    judge_op(w, id);
    int rc = uf_order_submit(p->order, l->lane, &op->op);
    if (rc == UF_OK) {
        if (op->op.bytes > w->config.max_message)
            w->result->seen |= SEEN_SPLIT;
        if (op->op.flags & UF_SETTLED)
            w->result->seen |= SEEN_SETTLED;
        if (op->fetch)
            w->result->seen |= SEEN_FETCH;
        return true;
    }
    /* Nothing happened: take it back. */
    if (slot) {
        to->owner[src][op->slot] = owner;
        to->free[src][to->n_free[src]++] = op->slot;
    }
    l->n = before[0];
    l->fence = before[1];
    l->fence_epoch = epoch;
    w->n_ops--;
    if (rc == UF_EAGAIN)
        w->result->seen |= SEEN_QUEUE_FULL;
    else if (!p->flow_failed[dst])
        violation(w, "G9: operation %u of PE %u was refused: %s", id, src, uf_error_message());
    return false;
}

static void set_mark(world *w, uint32_t src, uint32_t dst)
{
    if (w->n_marks == MAX_MARKS)
        return;
    mark_record *m = &w->marks[w->n_marks++];
    lane_record *l = &w->pes[src].lane[choose_ctx(w)][dst];
    if (l->closing) {
        w->n_marks--;
        return;
    }
    *m = (mark_record){.lane = l, .upto = l->n, .src = (uint8_t)src, .dst = (uint8_t)dst};
    uf_order_mark_set(w->pes[src].order, l->lane, chance(w, 170), &m->mark);
    note(w, "mark", src, dst, l->n);
}

static void test_marks(world *w)
{
    for (uint32_t i = 0; i < w->n_marks;) {
        mark_record *m = &w->marks[i];
        int rc = uf_order_mark_test(w->pes[m->src].order, m->lane->lane, &m->mark);
        if (rc == UF_OK)
            judge_mark(w, m);
        else if (rc != UF_EAGAIN && !w->pes[m->src].flow_failed[m->dst])
            violation(w, "G6: a mark failed although nothing is broken: %s", uf_error_message());
        if (rc == UF_EAGAIN)
            i++;
        else
            w->marks[i] = w->marks[--w->n_marks];
    }
}

/* All that was submitted on a lane that is closed is complete, so its marks are. */
static void end_marks(world *w, const lane_record *l)
{
    for (uint32_t i = 0; i < w->n_marks;) {
        if (w->marks[i].lane != l) {
            i++;
            continue;
        }
        judge_mark(w, &w->marks[i]);
        w->marks[i] = w->marks[--w->n_marks];
    }
}

/* Goes on closing the lanes that are to be closed, and opens another in the place of each. */
static void reopen_lanes(world *w, uint32_t src)
{
    pe *p = &w->pes[src];
    for (uint32_t c = 0; c < w->n_ctx; c++)
        for (uint32_t dst = 0; dst < w->n_pes; dst++) {
            lane_record *l = &p->lane[c][dst];
            if (!l->closing || p->flow_failed[dst] || uf_order_lane_close(p->order, l->lane) != UF_OK || p->flow_failed[dst])
                continue;
            end_marks(w, l);
            *l = (lane_record){.fence_epoch = p->ctx[c].fence_epoch};
            if (uf_order_lane_open(p->order, &p->ctx[c], dst, &l->lane) != UF_OK)
                violation(w, "G10: PE %u cannot open a lane to PE %u in place of one that it closed: %s", src, dst,
                          uf_error_message());
            w->result->seen |= SEEN_REOPENED;
            note(w, "reopened", src, dst, c);
        }
}

/* ---------------------------------------------------------------- time passes */

static bool awake(const pe *p)
{
    return !p->held && p->stalled == 0;
}

static void tell_failures(world *w)
{
    for (uint32_t a = 0; a < w->n_pes; a++)
        for (uint32_t b = 0; b < w->n_pes; b++)
            if (w->pes[a].flow_failed[b] && !w->pes[b].flow_told[a] && !w->pes[b].flow_failed[a]) {
                w->pes[b].flow_told[a] = true;
                uf_order_fail_flow(w->pes[b].order, a, UF_EPEER);
            }
}

static void break_rails(world *w, bool now)
{
    if (w->break_at == UINT32_MAX)
        return;
    bool due = w->n_ops >= w->break_at && !w->rail_broken[0] && !w->rail_broken[1];
    w->break_due = due && w->break_in_look;
    if (due && !w->break_in_look)
        network_break_one(w);
    if (w->n_ops >= w->break_more_at) {
        w->break_more_at = UINT32_MAX;
        network_break_one(w);
    }
    for (uint32_t r = 0; r < w->config.n_rails; r++)
        for (uint32_t i = 0; w->rail_broken[r] && i < w->n_pes; i++) {
            uint32_t peers = w->rail_broken[r] >> i & 1 ? (1u << w->n_pes) - 1 : w->rail_broken[r];
            if ((peers & ~w->pes[i].rail_told[r]) && (now || chance(w, 16)) && awake(&w->pes[i]))
                network_tell_rail(w, i, peers, r);
        }
}

static void application(world *w)
{
    bool aimed = w->focus && chance(w, 200);
    uint32_t src = aimed ? 0 : pick(w, w->n_pes), dst = aimed ? 1 : pick(w, w->n_pes);
    pe *p = &w->pes[src];
    if (!awake(p) || p->flow_failed[dst])
        return;
    uint32_t dice = pick(w, 100);
    if (aimed && chance(w, 24)) {
        for (uint32_t n = 10; n && w->n_ops < w->max_ops && !w->failed && submit_one(w, src, dst); n--)
            set_mark(w, src, dst);
    } else if (dice < 76) {
        uint32_t burst = chance(w, 64) ? 1 + pick(w, 12) : 1;
        while (burst-- && w->n_ops < w->max_ops && !w->failed && submit_one(w, src, dst))
            continue;
    } else if (dice < 84) {
        p->ctx[choose_ctx(w)].fence_epoch++;
    } else if (dice < 85 && chance(w, 128)) {
        p->lane[pick(w, w->n_ctx)][dst].closing = true;
    } else if (dice < 97) {
        set_mark(w, src, dst);
    } else {
        p->stalled = 1 + pick(w, 120);
        w->result->seen |= SEEN_STALLED_PEER;
    }
}

static bool step(world *w)
{
    w->steps++;
    for (uint32_t i = 0; i < w->n_pes; i++)
        if (w->pes[i].stalled)
            w->pes[i].stalled--;
    uint32_t dice = pick(w, 16);
    if (dice < 9)
        return network_move(w);
    uint32_t i = pick(w, w->n_pes);
    if (dice == 15 && awake(&w->pes[i]))
        reopen_lanes(w, i);
    if (dice < 12)
        return awake(&w->pes[i]) && network_consume(w, i, 1 + pick(w, 4));
    if (dice < 14)
        return awake(&w->pes[i]) && uf_order_progress(w->pes[i].order) > 0;
    return false;
}

/* Lets everything move that can, fairly; true if anything did. */
static bool round_all(world *w)
{
    bool moved = false;
    for (uint32_t n = 2 * w->n_wire + 8; n && !w->failed; n--)
        moved |= network_move(w);
    for (uint32_t i = 0; i < w->n_pes; i++) {
        w->pes[i].stalled = 0;
        if (!awake(&w->pes[i]))
            continue;
        moved |= network_consume(w, i, 1 + pick(w, MAX_CQ));
        reopen_lanes(w, i);
        moved |= uf_order_progress(w->pes[i].order) > 0;
    }
    uint32_t marks = w->n_marks;
    test_marks(w);
    break_rails(w, true);
    tell_failures(w);
    w->steps += 16;
    return moved || marks != w->n_marks;
}

/* Rounds until `w` is complete; a violation if it is not when nothing moves any more. */
static void drain(world *w, bool without_held)
{
    uint32_t idle = 0, rounds = 0;
    while (!w->failed) {
        idle = round_all(w) ? 0 : idle + 1;
        uint32_t open;
        bool all = judge_all_complete(w, without_held, &open);
        if (all && (without_held || w->n_marks == 0))
            return;
        if (idle <= 64 && ++rounds <= 20000)
            continue;
        if (all) {
            violation(w, "G6: a mark of PE %u on its lane to PE %u is not reported although all is complete", w->marks[0].src,
                      w->marks[0].dst);
            return;
        }
        const op_record *op = &w->ops[open];
        char text[512];
        uf_order_describe(w->pes[op->src].order, op->dst, text, sizeof text);
        violation(w, "%s: operation %u (kind %u, PE %u to PE %u, %s applied, %s told) does not end: %s",
                  without_held ? "G12, a peer that is held up holds others" : "G9", open, op->op.kind, op->src, op->dst,
                  op->applied ? "is" : "not", op->done ? "is" : "not", text);
    }
}

/* A peer that does not move must not hold up the others (G12); later it moves again, or is declared dead. */
static void held_peer(world *w)
{
    if (w->held_pe == w->n_pes)
        return;
    pe *p = &w->pes[w->held_pe];
    drain(w, true);
    for (uint32_t src = 0; src < w->n_pes && !w->failed; src++)
        for (uint32_t dst = 0; dst < w->n_pes && !w->failed; dst++) {
            if (src == w->held_pe || dst == w->held_pe || w->pes[src].flow_failed[dst] || w->n_ops == MAX_OPS)
                continue;
            uint32_t tries = 0;
            while (!submit_one(w, src, dst) && !w->failed)
                if (++tries > 64)
                    violation(w, "G12: PE %u cannot submit to PE %u while PE %u is held up", src, dst, w->held_pe);
                else
                    round_all(w);
        }
    drain(w, true);
    p->held = false;
    if (!w->dead_pe)
        return;
    w->result->seen |= SEEN_DEAD_PEER;
    for (uint32_t i = 0; i < w->n_pes && !w->failed; i++) {
        w->pes[w->held_pe].flow_told[i] = w->pes[i].flow_told[w->held_pe] = true;
        w->pes[w->held_pe].flow_failed[i] = w->pes[i].flow_failed[w->held_pe] = true;
        excuse_flow(w, i, w->held_pe);
        uf_order_fail_flow(w->pes[i].order, w->held_pe, UF_EPEER);
        uf_order_fail_flow(p->order, i, UF_EPEER);
    }
}

static void close_lanes(world *w)
{
    for (uint32_t i = 0; i < w->n_pes && !w->failed; i++)
        for (uint32_t c = 0; c < w->n_ctx; c++)
            for (uint32_t to = 0; to < w->n_pes; to++) {
                uint32_t tries = 0;
                w->pes[i].lane[c][to].closing = false;
                while (!w->failed && uf_order_lane_close(w->pes[i].order, w->pes[i].lane[c][to].lane) == UF_EAGAIN) {
                    round_all(w);
                    if (++tries > 4000)
                        violation(w, "G9: the lane of PE %u to PE %u cannot be closed", i, to);
                }
            }
    uint32_t rounds = 0;
    for (bool busy = true; busy && !w->failed;) {
        round_all(w);
        busy = false;
        for (uint32_t i = 0; i < w->n_pes; i++)
            busy |= uf_order_busy(w->pes[i].order);
        if (++rounds > 4000)
            violation(w, "G9: a PE stays busy with nothing to do");
    }
}

static void collect(world *w)
{
    for (uint32_t i = 0; i < w->n_pes; i++) {
        const uf_order_counters *c = uf_order_counters_get(w->pes[i].order);
        const struct {
            uint64_t count;
            uint32_t seen;
        } map[] = {
            {c->waited_window, SEEN_WINDOW_FULL},
            {c->wraps, SEEN_WRAP},
            {c->held_strong, SEEN_HELD_STRONG},
            {c->held_fence, SEEN_HELD_FENCE},
            {c->waited_credits, SEEN_CREDITS},
            {c->waited_messages, SEEN_MESSAGES},
            {c->grants, SEEN_GRANT},
            {c->waited_post, SEEN_REFUSED},
            {c->waited_answers, SEEN_ANSWER_WAITED},
            {c->held_overlap, SEEN_OVERLAP_HELD},
            {c->replayed, SEEN_REPLAYED},
            {c->held_receiver, SEEN_RECEIVER_HELD},
        };
        for (uint32_t k = 0; k < sizeof map / sizeof map[0]; k++)
            w->result->seen |= map[k].count ? map[k].seen : 0;
    }
}

void print_trace(const world *w)
{
    const uf_order_config *c = &w->config;
    uint64_t first = w->n_trace > TRACE ? w->n_trace - TRACE : 0;
    fprintf(stderr,
            "  %u PEs, %u contexts, rails %u, window %u, credits %u, messages %u, tx %u, queue %u, message %llu, inline %u, "
            "immediates "
            "%d, placed %d, duplicates %d, first %#x, held PE %u, rail breaks at %u\n",
            w->n_pes, w->n_ctx, c->n_rails, c->window, c->credits, c->message_credits, c->tx_depth, c->queue_ops,
            (unsigned long long)c->max_message, c->inline_bytes, c->immediates, c->imm_placed, c->duplicates, c->first_sequence,
            w->held_pe, w->break_at);
    for (uint64_t i = first; i < w->n_trace; i++) {
        const event *e = &w->trace[i % TRACE];
        fprintf(stderr, "  %-18s %u %u %#x\n", e->what, e->a, e->b, e->c);
    }
}

void run_seed(const run_options *options, run_result *result)
{
    world *w = &the_world;
    memset(result, 0, sizeof *result);
    memset(w, 0, offsetof(world, ops));
    w->options = *options;
    w->result = result;
    w->n_wire = w->n_marks = 0;
    w->n_trace = 0;
    w->failed = false;
    w->random = (options->seed + 1) * 0x9e3779b97f4a7c15ull;
    w->max_ops = options->n_ops;
    choose_config(w);
    if (create_pes(w)) {
        if (w->held_pe < w->n_pes)
            w->pes[w->held_pe].held = true;
        uint64_t limit = 400ull * w->max_ops;
        while (w->n_ops < w->max_ops && !w->failed && w->steps < limit) {
            if (!step(w) || chance(w, 64))
                application(w);
            if (w->n_marks && chance(w, 24))
                test_marks(w);
            if (w->break_at != UINT32_MAX)
                break_rails(w, false);
            if (w->result->seen & SEEN_RAIL_BROKE)
                tell_failures(w);
        }
        held_peer(w);
        drain(w, false);
        if (!w->failed)
            judge_end(w);
        close_lanes(w);
    }
    collect(w);
    result->n_ops = w->n_ops;
    result->steps = w->steps;
    if (w->failed && options->trace)
        print_trace(w);
    for (uint32_t i = 0; i < w->n_pes; i++)
        uf_order_destroy(w->pes[i].order);
}
