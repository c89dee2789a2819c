/* order_harness.h - a hostile world for src/order, made from a seed: PEs, a network that keeps no promise but those of the design, and
 * a judge who knows what was submitted and checks every effect.
 *
 * One thread, virtual time, no clock: a seed reproduces a run exactly. order_network.c moves WRs: it places payload in pieces
 * in any order, a second time where the fabric may, delays CQEs, refuses posts, breaks rails. order_workload.c chooses
 * configurations and operations. order_judge.c checks docs/ordering.md: each violation names its guarantee (G1..).
 * Nothing here knows how the protocol works inside, but for codec.h, which it needs to count what lies in a CQ. */
#ifndef UF_TESTS_ORDER_HARNESS_H
#define UF_TESTS_ORDER_HARNESS_H

#include "order/codec.h"
#include "order/mutations.h"
#include "order/order.h"

enum {
    MAX_PES = 4,
    MAX_CTX = 3,
    MAX_RAILS = 3,
    MAX_OPS = 512,
    MAX_WIRE = 1024, /* WRs in the network */
    MAX_CQ = 1024,
    MAX_MARKS = 16,
    SLOTS = 12, /* places of a (source, target) pair in the target's memory */
    SLOT_BYTES = 64,
    SLOT_STRIDE = 2500, /* so that some cross a block of the overlap filter */
    TRACE = 48,
};

/* What a run reached, for the coverage that the property test asserts. */
enum {
    SEEN_WINDOW_FULL = 1u << 0,
    SEEN_WRAP = 1u << 1,
    SEEN_HELD_STRONG = 1u << 2,
    SEEN_HELD_FENCE = 1u << 3,
    SEEN_DUPLICATE = 1u << 4,
    SEEN_QUIET_RACE = 1u << 5,
    SEEN_CREDITS = 1u << 6,
    SEEN_MESSAGES = 1u << 7,
    SEEN_GRANT = 1u << 8,
    SEEN_REFUSED = 1u << 9,
    SEEN_ANSWER_WAITED = 1u << 10,
    SEEN_OVERLAP_HELD = 1u << 11,
    SEEN_RAIL_BROKE = 1u << 12,
    SEEN_REPLAYED = 1u << 13,
    SEEN_RECEIVER_HELD = 1u << 14,
    SEEN_QUEUE_FULL = 1u << 15,
    SEEN_STALLED_PEER = 1u << 16,
    SEEN_DEAD_PEER = 1u << 17,
    SEEN_SPLIT = 1u << 18,
    SEEN_SETTLED = 1u << 19,
    SEEN_FETCH = 1u << 20,
    SEEN_NO_IMMEDIATES = 1u << 21,
    SEEN_BY_RECEIPT = 1u << 22,
    SEEN_RAIL_ERROR = 1u << 23,
    SEEN_REOPENED = 1u << 24,
    SEEN_KINDS = 25,
};

typedef struct run_options {
    uint64_t seed;
    uint32_t mutations;
    uint32_t n_ops;
    bool trace;
} run_options;

typedef struct run_result {
    char violation[640]; /* "" if there is none */
    uint32_t seen;
    uint32_t n_ops;
    uint64_t applied, steps;
} run_result;

/* An operation as the judge knows it. Its number is its signal index, its `user` and the pattern of its bytes. */
typedef struct op_record {
    uf_order_op op;
    uint8_t src, dst, ctx;
    uint8_t slot;
    uint16_t serial;      /* in its lane */
    uint16_t after_fence; /* operations of the lane before its fence: they must be complete before it has an effect */
    uint16_t posted_set;  /* place among the SETs of its lane, as posted */
    bool has_signal, fetch, applied, done, excused, complete, source_free, abandoned;
    uint64_t placed;   /* byte k is in target memory, or (get) here */
    uint64_t captured; /* the network has its own copy of byte k or does not need it any more */
    uint64_t answer;   /* of a fetch */
} op_record;

typedef struct lane_record {
    uf_order_lane *lane;
    uint16_t ops[MAX_OPS];
    uint16_t n, complete, local; /* operations; prefixes that are complete there, and whose sources are free */
    uint16_t fence;              /* operations before the last fence */
    uint16_t sets_posted, sets_applied;
    uint64_t fence_epoch;
    bool closing; /* nothing is submitted any more; another takes its place when it is closed */
} lane_record;

typedef struct mark_record {
    uf_order_mark mark;
    lane_record *lane;
    uint16_t upto;
    uint8_t src, dst;
} mark_record;

typedef struct wire_wr {
    uf_wr wr;
    uint8_t src, pieces, left; /* pieces; bit p of left: piece p is not placed yet */
    bool delivered;            /* its remote CQE is in the target's CQ */
    bool acked;                /* its own CQE was handed in, or it wants none */
    bool dead;                 /* its rail broke */
    uint8_t data[SLOT_BYTES];  /* copied when the source may be reused */
    bool has_data;
} wire_wr;

typedef struct cq_entry {
    uint8_t src;
    bool message;
    uint32_t imm;
    unsigned char bytes[UF_MESSAGE_BYTES];
} cq_entry;

typedef struct cq {
    cq_entry *entry; /* MAX_CQ of them, in world.entries */
    uint32_t head, n, messages;
    uint32_t control[MAX_PES], immediate[MAX_PES], message[MAX_PES]; /* unconsumed, by source */
} cq;

typedef struct pe {
    uf_order *order;
    uf_order_ctx ctx[MAX_CTX];
    lane_record lane[MAX_CTX][MAX_PES];
    cq cq[MAX_RAILS];
    uint32_t stalled;              /* steps for which it does nothing */
    bool held;                     /* stalled until the workload says otherwise */
    uint32_t rail_told[MAX_RAILS]; /* peers to which it knows the rail to be broken, as bits */
    bool flow_failed[MAX_PES], flow_told[MAX_PES];
    bool quiet[MAX_PES];                                /* a request for a receipt is under way to that peer */
    uint32_t lost_adds[MAX_PES], lost_arrived[MAX_PES]; /* of a broken rail: adds without CQE, and those that had come */
    unsigned char memory[MAX_PES][SLOTS][SLOT_BYTES];
    uint16_t owner[MAX_PES][SLOTS]; /* by source: the operation whose bytes must be there, plus 1 */
    uint8_t free[MAX_PES][SLOTS], n_free[MAX_PES];
} pe;

typedef struct event {
    const char *what;
    uint32_t a, b, c;
} event;

typedef struct world {
    run_options options;
    run_result *result;
    uint64_t random;
    uf_order_config config;
    uint32_t n_pes, n_ctx, n_ops, max_ops;
    uint32_t refuse;                 /* of 256 posts so many are refused */
    uint32_t held_pe;                /* n_pes: nobody */
    bool dead_pe;                    /* the held one never comes back */
    bool focus;                      /* most of what happens is on one lane, marks and fences are frequent: its batches run out */
    uint32_t rail_broken[MAX_RAILS]; /* PEs whose rail broke, as bits */
    uint32_t break_at;               /* number of operations after which a rail breaks; UINT32_MAX: never */
    uint32_t break_more_at;          /* the same for a second one */
    bool break_in_look, break_due;   /* the first one breaks while a PE looks at its CQs */
    uint64_t steps;
    pe pes[MAX_PES];
    /* From here on nothing is cleared for a run: each is written before it is read. */
    op_record ops[MAX_OPS];
    cq_entry entries[MAX_PES][MAX_RAILS][MAX_CQ];
    wire_wr wire[MAX_WIRE];
    uint32_t n_wire;
    mark_record marks[MAX_MARKS];
    uint32_t n_marks;
    event trace[TRACE];
    uint64_t n_trace;
    bool failed;
} world;

static inline uint64_t random_next(world *w)
{
    uint64_t x = w->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    w->random = x;
    return x * 0x2545f4914f6cdd1dull;
}

/* 0..n-1 */
static inline uint32_t pick(world *w, uint32_t n)
{
    return (uint32_t)((random_next(w) >> 32) * n >> 32);
}

static inline bool chance(world *w, uint32_t of_256)
{
    return random_next(w) >> 56 < of_256;
}

static inline void note(world *w, const char *what, uint32_t a, uint32_t b, uint32_t c)
{
    if (w->options.trace)
        w->trace[w->n_trace++ % TRACE] = (event){what, a, b, c};
}

/* Byte `offset` of operation `op`. */
static inline unsigned char pattern(uint32_t op, uint32_t offset)
{
    return (unsigned char)((op * 167 + offset * 59 + (op >> 8) + 1) & 0xff);
}

/* order_judge.c */
void violation(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void judge_op(world *w, uint32_t id); /* an operation was accepted */
void judge_placed(world *w, uint32_t id, uint32_t offset, uint32_t bytes);
int judge_apply(world *w, uint32_t pe, const uf_order_signal *s, uint64_t *old);
void judge_done(world *w, uint32_t pe, uint64_t user, int status, uint64_t value);
void judge_captured(world *w, uint32_t id, uint32_t offset, uint32_t bytes);
void judge_mark(world *w, const mark_record *m);
void judge_message_posted(world *w, const uf_wr *wr, uint32_t src);
void judge_failed(world *w, uint32_t pe, uint32_t flow, int status);
void judge_end(world *w);
bool judge_all_complete(world *w, bool without_held, uint32_t *open);
void excuse_flow(world *w, uint32_t a, uint32_t b);

/* order_network.c */
typedef struct edge_arg {
    world *w;
    uint32_t pe;
} edge_arg;
int network_post(world *w, uint32_t src, const uf_wr *wr);
bool network_move(world *w); /* one random WR does its next thing; false if nothing could */
bool network_consume(world *w, uint32_t pe, uint32_t most);
void network_break_one(world *w);
void network_break_rail(world *w, uint32_t pes, uint32_t rail); /* of the PEs whose bit is set */
void network_tell_rail(world *w, uint32_t pe, uint32_t peers, uint32_t rail);

/* order_workload.c */
void run_seed(const run_options *options, run_result *result);
void print_trace(const world *w);

#endif
