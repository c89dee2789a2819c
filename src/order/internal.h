/* internal.h - what the files of this room share: flows, lanes, batches, queued operations, cookies.
 *
 * order.c     creation, bounds, ends
 * submit.c    the way of an operation into the protocol: the weak path, and posting a WR with what it takes
 * sender.c    queued operations: their forms, what holds them and why
 * progress.c  turns of flows and lanes
 * lane.c      batches (what strong signals, fences and marks wait for), sequences and window of a sending lane
 * credit.c    credits of both sides and control writes
 * receipt.c   receipt epochs of both sides
 * complete.c  own CQEs, operations that end, flows that end
 * receiver.c  immediates and messages of peers: windows, cursors, signals that wait
 * answer.c    requests and their answers: lanes that open and close, fetched values
 * rail.c      choice of rails (rule 4), rails that break (rule 16), overlap of puts (rule 11)
 * describe.c  sentences about what is held and why
 *
 * All indices are into arrays of the one block made at creation; UF_NONE is "no entry". Nothing here is shared between threads. */
#ifndef UF_ORDER_INTERNAL_H
#define UF_ORDER_INTERNAL_H

#include "base/error.h"
#include "order/codec.h"
#include "order/mutations.h"
#include "order/order.h"

#define UF_NONE        UINT32_MAX
#define uf_unlikely(x) __builtin_expect(!!(x), 0)
#define uf_likely(x)   __builtin_expect(!!(x), 1)

enum {
    UF_BATCHES = 8,       /* boundaries of a lane that may be pending before new ones merge; a power of two */
    UF_FIRST_EPOCH = 2,   /* of receipts; 0 is "none" and the first receipt bit is 0 */
    UF_FILTER_SLOTS = 64, /* overlap filter of a flow */
    UF_FILTER_SHIFT = 12, /* bytes of a block of it, as a power of two */
    UF_FILTER_BLOCKS = 8, /* puts over more blocks count as "large" */
};

/* ---------------------------------------------------------------- what holds an operation */

typedef enum uf_order_hold {
    UF_HOLD_GO = 0,   /* nothing: it was posted */
    UF_HOLD_FENCE,    /* operations before its fence are not complete (rule 7) */
    UF_HOLD_OVERLAP,  /* it overlaps a WR of ours without CQE (rule 11) */
    UF_HOLD_STRONG,   /* WRs without a sequence before it have no CQE yet (rule 6) */
    UF_HOLD_GRANT,    /* the peer has not numbered the lane yet (rule 5) */
    UF_HOLD_WINDOW,   /* the lane's window is full (rule 5) */
    UF_HOLD_CREDITS,  /* the peer has not consumed enough immediates (rule 8) */
    UF_HOLD_MESSAGES, /* the peer has not applied enough messages (rule 8) */
    UF_HOLD_SLOT,     /* all slots for answers of this flow are taken (rule 10) */
    UF_HOLD_COOKIE,   /* as many WRs in flight as the endpoint may have (rule 10) */
    UF_HOLD_POST,     /* the network refused the post (rule 10) */
    UF_HOLD_RAIL,     /* immediates of a broken rail are in doubt (rule 16) */
    UF_HOLD_FAILED,   /* the flow ended while it was tried; its queues are gone */
} uf_order_hold;

/* ---------------------------------------------------------------- batches of a sending lane */

/* Operations of a lane between two boundaries. The open batch takes what is submitted; a boundary closes it. */
typedef struct uf_order_batch {
    uint64_t epoch;       /* last receipt epoch that a WR of it used; UF_FIRST_EPOCH - 1: none */
    uint64_t plain_epoch; /* the same for kind 0, where an own CQE does not prove arrival */
    uint32_t open;        /* operations queued, WRs without CQE and fetches without reply */
    uint32_t plain;       /* of these: WRs without a sequence and without CQE */
    uint32_t waiting;     /* of these: operations that still have something to post */
    bool keep;            /* somebody waits for its receipt: it must not be folded into the next */
} uf_order_batch;

typedef enum uf_order_grant { UF_GRANT_NONE, UF_GRANT_ASKED, UF_GRANT_GIVEN } uf_order_grant;

typedef struct uf_order_queue {
    uint32_t head, tail;
} uf_order_queue;

struct uf_order_lane {
    uf_order_ctx *ctx;
    struct uf_order_flow *flow;
    uint64_t fence_seen;     /* the context's fence epoch when the last operation was submitted */
    uint64_t fence;          /* batches up to here come before the operations that are submitted now */
    uint64_t oldest, newest; /* batches alive; newest is the open one */
    bool detour;             /* operations wait in `queue`: later ones look there first */
    bool ordered;            /* UF_ORDERED and the fabric has immediates */
    bool adds;               /* not ordered and the fabric has immediates: weak adds may be of kind 0 */
    bool want_boundary;      /* a boundary that found the ring full */
    bool used;
    int status;  /* the error that ended it */
    bool active; /* in its flow's list of lanes with something to post */
    uint32_t index, next_active;
    uint32_t plain;       /* sum over batches */
    uint64_t plain_epoch; /* the largest of all */
    uf_order_batch batch[UF_BATCHES];

    uf_order_queue queue; /* in order of submission: nothing passes */
    uf_order_queue held;  /* signals that wait for CQEs (strong, settled), in order; weak ones leave as they can */
    uf_order_queue ready; /* released from `held`, or never held: they only need window and credits */
    uint8_t cause;        /* uf_order_hold of the head of `queue` */
    uint8_t home;         /* rail */

    uint8_t grant;           /* uf_order_grant */
    uint16_t id;             /* the peer's number of this lane */
    uint64_t closing;        /* epoch of the message that closes it; 0: not sent */
    uint32_t opened;         /* how often this place was opened: the upper half of the open id */
    uint32_t window;         /* W */
    uint32_t sequence;       /* next to be taken */
    uint32_t tail;           /* all before it are proven to have arrived */
    uint64_t *acked;         /* own CQEs by sequence modulo W, from `tail` */
    uint32_t sequence_in[2]; /* where an epoch's sequences ended, by its low bit ... */
    uint64_t epoch_in[2];    /* ... and which epoch that is */
    uint32_t sequence_other; /* mutation 13 */
};

/* ---------------------------------------------------------------- queued operations */

typedef enum uf_order_form {
    UF_FORM_NEW,       /* not chosen yet */
    UF_FORM_PLAIN,     /* WRITEs whose CQEs mean placed */
    UF_FORM_ADD,       /* one WRITE_IMM of kind 0 */
    UF_FORM_SEQUENCED, /* WRITE_IMMs of kind 1, then (a signal) a message with their range */
    UF_FORM_AFTER,     /* WRITEs, and after their CQEs a message without a range */
    UF_FORM_MESSAGE,   /* a message alone */
    UF_FORM_GET,       /* READs */
} uf_order_form;

typedef struct uf_order_entry {
    uf_order_op op;
    uf_order_lane *lane;
    uint64_t fence;    /* batches up to here must be complete before its data may go; 0: none */
    uint64_t boundary; /* a held strong signal: WRs without sequence of batches up to here */
    uint64_t posted;   /* bytes handed over */
    uint32_t prev, next;
    uint32_t wrs;   /* data WRs without CQE */
    uint16_t first; /* sequence of its first part */
    uint16_t parts; /* sequenced parts handed over */
    uint8_t form;   /* uf_order_form */
    uint8_t batch;  /* place in the ring */
    bool strong;
    bool data_done; /* all data WRs are handed over */
    bool left;      /* nothing more to post: only CQEs are awaited */
    bool held;      /* in `held` */
    int status;
} uf_order_entry;

/* ---------------------------------------------------------------- cookies */

typedef enum uf_order_wr_type {
    UF_WR_FREE = 0,
    UF_WR_PLAIN,    /* WRITE */
    UF_WR_ADD,      /* WRITE_IMM kind 0 */
    UF_WR_SEQUENCE, /* WRITE_IMM kind 1 */
    UF_WR_MESSAGE,  /* SEND with a sequence */
    UF_WR_REQUEST,  /* SEND without: LANE_OPEN */
    UF_WR_LAST,     /* SEND of LANE_CLOSE: its lane is gone */
    UF_WR_READ,
    UF_WR_ANSWER, /* SEND of REPLY, LANE_GRANT, COUNT_ASK, COUNT_TELL; from here on with a reserve of cookies */
    UF_WR_CONTROL,
} uf_order_wr_type;

typedef struct uf_order_cookie {
    _Alignas(64) uint64_t user; /* a cache line each, found by a shift */
    uf_order_lane *lane;
    struct uf_order_flow *flow;
    uint32_t entry; /* UF_NONE: `user` is told by this CQE alone */
    uint32_t sequence;
    uint32_t next, prev;
    uint16_t generation;
    uint8_t type; /* uf_order_wr_type */
    uint8_t batch;
    uint8_t rail;
    bool lost;       /* its rail broke; it waits for its replay or for the counts */
    uint32_t replay; /* next in the list of those to be sent again */
} uf_order_cookie;

/* A slot for an answer: reserves its receive. */
typedef enum uf_order_slot_type { UF_SLOT_FREE, UF_SLOT_FETCH, UF_SLOT_OPEN } uf_order_slot_type;
typedef struct uf_order_slot {
    uf_order_lane *lane;
    uint64_t user;
    uint32_t next;
    uint16_t sequence; /* of the request: an answer to an older one is told by it */
    uint16_t id;
    uint16_t requests; /* for a lane that it was used for: a copy of an older one is told by that */
    uint8_t type;
    uint8_t batch;
} uf_order_slot;

/* ---------------------------------------------------------------- receiving side */

/* A message that waits for its range or the cursor, or an answer that could not be sent yet. */
typedef struct uf_order_parked {
    uf_order_wire wire;
    uint32_t sequence; /* its own, as far as the lane's cursor counts */
    uint32_t missing;  /* of its range */
    uint32_t next;
} uf_order_parked;

typedef struct uf_order_window {
    uint64_t *map; /* arrived, by sequence modulo W, from the cursor */
    uint64_t open_id;
    struct uf_order_flow *flow;
    uint32_t next;   /* in its hash chain, or free */
    uint32_t size;   /* W */
    uint32_t cursor; /* all before it have arrived */
    uint32_t parked; /* messages that wait, by sequence */
    uint32_t n_parked;
    uint32_t watched; /* cursor when the watchdog last looked */
    uint16_t id;
    bool used, suspect;
} uf_order_window;

/* ---------------------------------------------------------------- flows */

/* Bits of uf_order_flow.stalled: why operations must not be posted past the queues of other lanes. 0 on the weak path. */
enum {
    UF_STALL_CREDITS = 1, /* a lane waits for credits */
    UF_STALL_POST = 2,    /* the network refused, or no cookie was left */
    UF_STALL_RAIL = 4,    /* a rail broke: the peer has not told its counts yet */
    UF_STALL_FAILED = 8,
};

typedef struct uf_order_flow {
    /* The weak path, sending. */
    uint32_t stalled;
    uint32_t peer;
    uint64_t epoch;     /* of WRs posted now; its low bit travels */
    uint32_t tx_imm[2]; /* immediates sent, by receipt bit; their sum counts credits */
    uint32_t imm_limit; /* sum up to which credits reach */
    uint32_t in_flight; /* cookies */
    uint16_t home;      /* rail of controls and answers; lanes have their own */
    uint16_t active;    /* in the list of flows with something to post */
    uint8_t resting;    /* not in it, although it has something: only an event of its own will let that go (progress.c) */
    uint8_t again;      /* a lane of it has had its turn and has more */
    /* The weak path, receiving. */
    uint32_t rx_imm[2];
    uint32_t imm_told;  /* sum that the sender was told last */
    uint32_t imm_proof; /* more than this consumed: the sender has read what it was told last */
    uint32_t asked;     /* bit b: the peer waits for the receipt of bit b */

    uint64_t receipted; /* all epochs up to here are applied */
    uint64_t asking;    /* epoch whose receipt is outstanding, 0: none */
    uint64_t wanted;    /* somebody waits for receipts up to here */
    uint32_t tx_msg[2], msg_limit;
    uint32_t flip_number; /* sent with the bit of `asking` */
    uint32_t epoch_first; /* had been sent with the bit of `epoch` when that began */

    uint32_t rx_msg[2], msg_told, msg_proof;
    uint32_t ask_number[2];
    uint32_t arrived[2]; /* mutation 9 */

    uint32_t control;     /* bit t: control t must be written */
    uint32_t receipt_bit; /* of the receipt to be written */
    uint32_t receipt_number;
    uint32_t queued;                               /* entries of the shared queue */
    uint32_t lanes_active_head, lanes_active_tail; /* lanes with something to post */
    uint32_t next_active;

    uint32_t slot_free, slots_used;
    uint32_t parked_free, parked_used;
    uint32_t answers_head, answers_tail; /* parked answers */
    uint32_t wrs;                        /* list of data WRs in flight, if `save` */
    uint32_t large;                      /* of these, those over more blocks than the filter counts */
    uint16_t filter[UF_FILTER_SLOTS];

    /* Several rails only; sets of rails as bits. */
    uint32_t rails_alive;                 /* sender: those that work */
    uint32_t rails_used;                  /* sender: those that have carried something to this peer */
    uint32_t rails_doubt;                 /* sender: broken ones whose count the peer has not told; 0: not UF_STALL_RAIL */
    uint32_t rails_ask;                   /* sender: of these, those that the peer was not asked about yet */
    uint32_t rails_closed;                /* receiver: those of this peer from which nothing more is taken */
    uint32_t rails_heard;                 /* receiver: those whose counts a peer asked for since the last look began */
    uint32_t rails_asked;                 /* receiver: those whose counts are to be told once they are drained */
    uint32_t rails_tell;                  /* receiver: those whose counts are to be told now */
    uint32_t open_imm, open_msg;          /* those without CQE, which might have to be sent again */
    uint32_t tx_adds[UF_ORDER_MAX_RAILS]; /* kind 0 posted on each rail */
    uint32_t rx_adds[UF_ORDER_MAX_RAILS]; /* kind 0 consumed from each rail */
    int status;
} uf_order_flow;

/* A piece of a put or get that is one WR. */
typedef struct uf_order_part {
    uint64_t offset, bytes;
} uf_order_part;

/* ---------------------------------------------------------------- the whole */

struct uf_order {
    uf_order_config config;
    uf_order_edges edges;
    bool silent; /* kind 0 of few bytes needs no CQE: receipts complete it */
    bool silent_control, silent_message;
    bool by_receipt; /* windows and adds are proven by receipts, not by own CQEs */
    bool save;       /* WRs in flight are kept whole: for overlap (a replay is a duplicate, too) and for replays */
    bool attention;  /* progress may have something to do */
    uint32_t cookie_free, cookies_free;
    uint32_t cookie_reserve;               /* the last ones are for controls and answers, */
    uint32_t cookie_first;                 /* and those before them for the first WR of a flow that has none */
    uint32_t imm_half, msg_half;           /* credits come back when so many were consumed */
    uint32_t general, answers;             /* messages of a flow: with credits, and reserved for answers */
    uint32_t drains_heard, drains_awaited; /* rails that are rails_heard or rails_asked for some flow */
    uint32_t next_rail;                    /* of a striped put's next part */
    uint64_t whole;                        /* puts and gets up to here are one WR */
    uint32_t entry_free, entries_free;
    uint32_t flows_queued; /* flows with an entry: for each other one a place is kept */
    uint32_t lane_free, lanes_used, window_free, windows_used;
    uint32_t active_head, active_tail, n_active;
    uint32_t replay_head, replay_tail;
    uint32_t lost;                      /* cookies given up by flows that ended: their CQEs may still come */
    uint32_t parked_total, outstanding; /* receipts and slots awaited */
    uf_order_flow *flows;
    uf_order_lane *lanes;
    uf_order_cookie *cookies;
    uf_wr *saved; /* by cookie, if `save` */
    uf_order_entry *entries;
    uf_order_slot *slots;    /* [n_flows][answers] */
    uint16_t *requests;      /* [n_flows][answers]: the last request for a lane that a peer's slot was used for */
    uf_order_parked *parked; /* [n_flows][message_credits] */
    uf_order_window *windows;
    uint32_t *hash; /* (flow, lane id) -> window */
    uint32_t hash_mask;
    uint64_t *lane_ids; /* [n_flows][UF_ORDER_LANE_IDS / 64] in use */
    uf_order_counters counters;
};

static inline bool uf_order_mutant(const uf_order *o, uf_order_mutation m)
{
    return UF_ORDER_HAS_MUTATIONS && (o->config.mutations & (uint32_t)m);
}

void uf_order_activate(uf_order *o, uf_order_flow *flow);

/* Something happened to the flow that may have lifted a hold. */
static inline void uf_order_wake(uf_order *o, uf_order_flow *flow)
{
    o->attention = true;
    if (uf_unlikely(flow->resting))
        uf_order_activate(o, flow);
}

static inline bool uf_order_lane_has_work(const uf_order_lane *lane)
{
    return lane->queue.head != UF_NONE || lane->ready.head != UF_NONE || lane->held.head != UF_NONE;
}

static inline bool uf_order_is_signal(const uf_order_op *op)
{
    return op->kind == UF_ORDER_PUT_SIGNAL || op->kind == UF_ORDER_SIGNAL;
}

static inline uf_order_batch *uf_order_batch_of(uf_order_lane *lane, uint64_t n)
{
    return &lane->batch[n & (UF_BATCHES - 1)];
}

static inline uint32_t uf_order_flow_index(const uf_order *o, const uf_order_flow *flow)
{
    return (uint32_t)(flow - o->flows);
}

/* Sequences and sums wrap: a is before b. */
static inline bool uf_order_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* ---- lane.c */
bool uf_order_lane_fence(uf_order *o, uf_order_lane *lane);
bool uf_order_lane_boundary(uf_order *o, uf_order_lane *lane, bool keep, uint64_t *last);
void uf_order_lane_retire(uf_order *o, uf_order_lane *lane);
bool uf_order_lane_done_here(uf_order_lane *lane, uint64_t last);
bool uf_order_lane_done_there(uf_order_lane *lane, uint64_t last);
bool uf_order_lane_no_plain(uf_order *o, uf_order_lane *lane, uint64_t last);
void uf_order_lane_want(uf_order *o, uf_order_lane *lane);
bool uf_order_window_room(uf_order *o, uf_order_lane *lane);
void uf_order_sequence_taken(uf_order *o, uf_order_lane *lane);
void uf_order_sequence_acked(uf_order *o, uf_order_lane *lane, uint32_t sequence);
void uf_order_queue_push(uf_order *o, uf_order_queue *queue, uint32_t entry);
void uf_order_queue_remove(uf_order *o, uf_order_queue *queue, uint32_t entry);

/* ---- submit.c */
void uf_order_book(uf_order *o, uf_order_lane *lane, uint8_t batch, uf_order_wr_type type, bool silent);
uf_order_hold uf_order_post_add(uf_order *o, uf_order_lane *lane, const uf_order_op *op, uint8_t batch, uint32_t entry);
uf_order_hold uf_order_post_data(uf_order *o, uf_order_lane *lane, const uf_order_op *op, const uf_order_part *part,
                                 const uf_order_cookie *like);
uf_order_hold uf_order_post(uf_order *o, uf_order_flow *flow, uf_wr *wr, const uf_order_cookie *like);
/* False: no lane of the flow could post anything now, for want of cookies. */
bool uf_order_may_post(const uf_order *o, const uf_order_flow *flow);
uf_order_hold uf_order_post_message(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, const uf_order_cookie *like);

bool uf_order_fits_immediate(const uf_order *o, const uf_order_lane *lane, const uf_order_op *op);

/* ---- sender.c */
uf_order_hold uf_order_pump_lane(uf_order *o, uf_order_lane *lane, uint32_t *posted);
uf_order_hold uf_order_post_request(uf_order *o, uf_order_flow *flow, uf_order_wire *wire, const uf_order_slot *slot);
int uf_order_enqueue(uf_order *o, uf_order_lane *lane, const uf_order_op *op, uf_order_hold tried);
void uf_order_entry_free(uf_order *o, uint32_t entry);
void uf_order_entry_sent(uf_order *o, uint32_t entry);
void uf_order_slot_give(uf_order *o, uf_order_flow *flow, uint32_t slot);
uf_order_slot *uf_order_slot_of(uf_order *o, const uf_order_flow *flow, uint32_t slot);

/* ---- progress.c */
void uf_order_lane_activate(uf_order *o, uf_order_lane *lane);
void uf_order_lane_deactivate(uf_order *o, uf_order_lane *lane);

/* ---- credit.c */
void uf_order_control_set(uf_order *o, uf_order_flow *flow, uint32_t type);
uf_order_hold uf_order_control_pump(uf_order *o, uf_order_flow *flow);
void uf_order_control_lost(uf_order *o, uf_order_flow *flow, uint32_t imm);
void uf_order_credit_imm(uf_order *o, uf_order_flow *flow);
void uf_order_credit_message(uf_order *o, uf_order_flow *flow, uint32_t bit);
int uf_order_control_in(uf_order *o, uf_order_flow *flow, uint32_t imm);

/* ---- receipt.c */
void uf_order_receipt_want(uf_order *o, uf_order_flow *flow, uint64_t epoch);
void uf_order_receipt_check(uf_order *o, uf_order_flow *flow, uint32_t bit);
void uf_order_receipt_start(uf_order *o, uf_order_flow *flow);
void uf_order_receipt_pace(uf_order *o, uf_order_flow *flow);
int uf_order_receipt_in(uf_order *o, uf_order_flow *flow, uint32_t bit, uint32_t number);
void uf_order_quiet_in(uf_order *o, uf_order_flow *flow, uint32_t bit, uint32_t number);

/* ---- complete.c */
void uf_order_cookie_free(uf_order *o, uint32_t index);
int uf_order_end_lane(uf_order *o, uf_order_lane *lane, int status);
int uf_order_end_flow(uf_order *o, uf_order_flow *flow, int status);

/* ---- receiver.c */
uf_order_hold uf_order_answers_pump(uf_order *o, uf_order_flow *flow);
int uf_order_garbage(uf_order *o, uf_order_flow *flow, const char *what, const void *bytes, size_t n);
void uf_order_receiver_end(uf_order *o, uf_order_flow *flow);
int uf_order_park_answer(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire, uint32_t bit);

/* ---- answer.c */
int uf_order_open_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire);
int uf_order_answer_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire);
uf_order_window *uf_order_window_find(uf_order *o, const uf_order_flow *flow, uint32_t id);
void uf_order_window_free(uf_order *o, uf_order_window *window);

/* ---- rail.c */
void uf_order_rail_carries(uf_order_flow *flow, uint32_t rail, uint8_t type);
bool uf_order_rail_open(uf_order_flow *flow, uint32_t rail, uint32_t kind);
uint32_t uf_order_home_of(const uf_order *o, const uf_order_flow *flow, uint32_t ctx);
uint32_t uf_order_stripe_rail(uf_order *o, const uf_order_flow *flow);
uint64_t uf_order_part_bytes(const uf_order *o, uint64_t bytes);
bool uf_order_overlaps(uf_order *o, const uf_order_flow *flow, uint64_t remote, uint64_t bytes);
void uf_order_overlap_add(uf_order *o, uf_order_flow *flow, uint32_t cookie);
void uf_order_overlap_remove(uf_order *o, uf_order_flow *flow, uint32_t cookie);
bool uf_order_may_replay(const uf_order *o, const uf_order_flow *flow, uint8_t type);
void uf_order_may_replay_count(uf_order_flow *flow, uint8_t type, int by);
uf_order_hold uf_order_replay(uf_order *o);
uf_order_hold uf_order_count_pump(uf_order *o, uf_order_flow *flow);
int uf_order_count_asked(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire);
int uf_order_count_in(uf_order *o, uf_order_flow *flow, const uf_order_wire *wire);

#endif
