/* order_pair.h - two PEs' ordering protocols joined by a wire that does what a test tells it.
 *
 * pair_move hands everything over in order; tests that want less keep `stop_imm`, `stop_sent` or `refuse` set. Everything that was
 * applied or done is noted in arrays. */
#ifndef UF_TESTS_ORDER_PAIR_H
#define UF_TESTS_ORDER_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/error.h"
#include "order/codec.h"
#include "order/order.h"
#include <stdlib.h>
#include <string.h>

enum { PAIR_WRS = 1 << 18, PAIR_NOTES = 1 << 12 };

typedef struct pair_side {
    struct pair *pair;
    uint32_t self;
    uf_order *order;
    uf_wr *wire; /* posted, not handed over yet */
    uint32_t n_wire;
    uint64_t posted;
    uf_order_signal applied[PAIR_NOTES];
    uint32_t n_applied;
    struct {
        uint64_t user, value;
        int status;
    } done[PAIR_NOTES];
    uint32_t n_done;
    uint64_t word; /* sum of the operands applied */
    int failed;
} pair_side;

typedef struct pair {
    pair_side side[2];
    bool refuse;    /* posts say UF_EAGAIN */
    bool stop_imm;  /* the receivers consume nothing */
    bool stop_sent; /* own CQEs do not come */
    int post_error; /* the network breaks: posts say this */
    int apply_error;
    uint64_t old; /* what fetches fetch */
} pair;

static inline int pair_post(void *arg, const uf_wr *wr)
{
    pair_side *s = arg;
    if (s->pair->refuse || s->n_wire == PAIR_WRS)
        return UF_EAGAIN;
    if (s->pair->post_error)
        return uf_fail(s->pair->post_error, "the network broke");
    s->wire[s->n_wire++] = *wr;
    s->posted++;
    return UF_OK;
}

static inline int pair_apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    pair_side *s = arg;
    if (s->n_applied < PAIR_NOTES)
        s->applied[s->n_applied] = *signal;
    s->n_applied++;
    s->word += signal->operand;
    *old = s->pair->old;
    return s->pair->apply_error;
}

static inline void pair_done(void *arg, uint64_t user, int status, uint64_t value)
{
    pair_side *s = arg;
    if (s->n_done < PAIR_NOTES) {
        s->done[s->n_done].user = user;
        s->done[s->n_done].status = status;
        s->done[s->n_done].value = value;
    }
    s->n_done++;
}

static inline void pair_failed(void *arg, uint32_t flow, int status)
{
    pair_side *s = arg;
    (void)flow;
    s->failed = status;
}

static inline uf_order_config pair_config(void)
{
    return (uf_order_config){.n_flows = 2,
                             .n_rails = 1,
                             .window = 16,
                             .credits = 32,
                             .message_credits = 16,
                             .tx_depth = 64,
                             .queue_ops = 64,
                             .max_lanes = 256,
                             .max_local_lanes = 256,
                             .max_fetches = 4,
                             .max_message = 4096,
                             .immediates = true,
                             .imm_placed = true};
}

static inline pair *pair_create(const uf_order_config *config)
{
    pair *p = calloc(1, sizeof *p);
    assert_non_null(p);
    for (uint32_t i = 0; i < 2; i++) {
        uf_order_config c = *config;
        uf_order_edges edges = {&p->side[i], pair_post, pair_apply, pair_done, pair_failed};
        c.self = i;
        p->side[i].pair = p;
        p->side[i].self = i;
        p->side[i].wire = calloc(PAIR_WRS, sizeof(uf_wr));
        assert_non_null(p->side[i].wire);
        assert_int_equal(uf_order_create(&c, &edges, &p->side[i].order), UF_OK);
    }
    return p;
}

static inline void pair_destroy(pair *p)
{
    for (uint32_t i = 0; i < 2; i++) {
        uf_order_destroy(p->side[i].order);
        free(p->side[i].wire);
    }
    free(p);
}

/* Hands over what one side has posted, in order. */
static inline void pair_deliver(pair *p, uint32_t from)
{
    pair_side *s = &p->side[from], *to = &p->side[1 - from];
    uint32_t n = s->n_wire, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uf_wr wr = s->wire[i];
        bool remote = wr.verb == UF_VERB_WRITE_IMM || wr.verb == UF_VERB_SEND;
        if (remote && p->stop_imm) {
            s->wire[kept++] = wr;
            continue;
        }
        if (wr.verb == UF_VERB_WRITE_IMM)
            uf_order_imm(to->order, from, 0, wr.imm);
        if (wr.verb == UF_VERB_SEND)
            uf_order_message(to->order, from, wr.message);
        if (!(wr.flags & UF_WR_SILENT) && !p->stop_sent)
            uf_order_sent(s->order, wr.cookie, UF_OK);
    }
    s->n_wire = kept;
}

static inline void pair_move(pair *p)
{
    for (int i = 0; i < 64; i++)
        for (uint32_t k = 0; k < 2; k++) {
            pair_deliver(p, k);
            uf_order_progress(p->side[k].order);
        }
}

static inline uf_order_lane *pair_lane(pair *p, uf_order_ctx *ctx)
{
    uf_order_lane *lane;
    assert_int_equal(uf_order_lane_open(p->side[0].order, ctx, 1, &lane), UF_OK);
    return lane;
}

static inline uf_order_op pair_signal(uint64_t operand)
{
    return (uf_order_op){.kind = UF_ORDER_SIGNAL, .op = UF_ATOMIC_ADD, .indexed = true, .signal_address = 7, .operand = operand};
}

static inline uf_order_op pair_put_signal(uint64_t bytes, uint64_t operand)
{
    uf_order_op op = pair_signal(operand);
    op.kind = UF_ORDER_PUT_SIGNAL;
    op.bytes = bytes;
    op.local = 4096;
    op.remote = 8192;
    return op;
}

#endif
