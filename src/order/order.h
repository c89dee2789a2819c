/* order.h - the ordering protocol (docs/ordering.md): puts with signals over a network that promises no order, with no drain.
 *
 * Pure: no I/O, no threads, no clock, and no allocation after create. One uf_order belongs to one PE's endpoint; whoever
 * holds the endpoint calls it, from one thread at a time. It owns every queue, window, credit and receipt of all flows
 * (pairs of this endpoint and a peer's) and lanes (pairs of a context and a flow).
 *
 * Out of it come calls of four edges, which must not call back in:
 *   post      hands over a WR. UF_OK: accepted, a CQE will come. UF_EAGAIN: the network is full now; the operation stays
 *             queued and uf_order_progress tries again. Sequences, credits and numbers are taken only when post says UF_OK.
 *   apply     makes a signal or atomic of a peer visible here, now. For fetching atomics it returns the old value.
 *   done      tells that an operation submitted with a `user` that is not 0 is complete: its source is reusable, its get or
 *             fetched value is here (`value`), or it failed (`status`).
 *   failed    tells that a lane or flow ended with an error; waiters on it must be told. The sentence is in uf_error_message.
 * Into it go operations (submit), own CQEs (sent), peers' immediates (imm) and messages (message).
 *
 * The path of one weak put-with-signal: submit -> post(WRITE_IMM, kind 0) | network | imm -> apply. No queue, no message. */
#ifndef UF_ORDER_ORDER_H
#define UF_ORDER_ORDER_H

#include "base/wr.h"
#include "unfence/unfence.h"
#include <stddef.h>

typedef struct uf_order uf_order;
typedef struct uf_order_lane uf_order_lane;

/* ---------------------------------------------------------------- creation */

/* Entries that control writes may take in a peer's CQ (or receives, without immediates) beyond all credits, per flow: credit.c shows
 * that no more can be outstanding. With several rails use uf_order_remote_cqes and uf_order_receives, which count all. */
enum { UF_ORDER_CONTROL_RESERVE = 4 };
#define UF_ORDER_MAX_RAILS 16u

typedef struct uf_order_config {
    uint32_t self, n_flows; /* this PE; flows are numbered by peer PE */
    uint32_t n_rails;
    uint32_t window;          /* largest W of a lane: power of two, 2..2^15 */
    uint32_t credits;         /* immediates in flight per flow before the peer has consumed some, at least 4 */
    uint32_t message_credits; /* messages in flight per flow, at least 2: up to half of them, at most max_fetches, are kept for
                                 answers; also the size of its pool of held messages */
    uint32_t tx_depth;        /* WRs in flight on this endpoint, all rails: size of the cookie table */
    uint32_t
        queue_ops; /* operations that may wait in software on this endpoint; beyond it submit says UF_EAGAIN. One is kept for each
                                 flow, so more than n_flows */
    uint32_t max_lanes;       /* receiver's pool: lanes of all peers that may use sequences here at once */
    uint32_t max_local_lanes; /* lanes that may be open on our side at once */
    uint32_t max_fetches;     /* fetching atomics in flight per flow */
    uint64_t max_message;     /* largest single WR payload; longer puts are split */
    uint64_t stripe_bytes; /* several rails: puts and gets from this size on are striped over them; 0: only what must be split */
    uint64_t stripe_chunk; /* in parts of at least so many bytes */
    uint32_t inline_bytes; /* payload up to here may be posted UF_WR_SILENT; 0: never silent */
    bool immediates;       /* false: the fabric has no usable immediates, everything travels as messages */
    bool imm_placed;       /* own CQE of an immediate proves that it is in the target's home CQ; false: receipts are needed */
    bool duplicates;       /* hold back a put that overlaps one of our WRs without CQE */
    uint32_t first_sequence; /* where sequences and cumulative counters start: tests put them near the wrap */
    uint32_t mutations;      /* tests only: rules switched off, a set of UF_ORDER_MUTATION bits; 0 in real life */
} uf_order_config;

/* Where a peer's signal or atomic goes. `address` is what the initiator gave as `signal_address`, in this PE's terms. */
typedef struct uf_order_signal {
    uint32_t flow; /* who sent it */
    uint8_t op;    /* uf_atomic_op; signals are UF_ATOMIC_SET and UF_ATOMIC_ADD */
    uint8_t width; /* 4 or 8 */
    bool indexed;  /* `address` is a signal index, not an address */
    bool strong;
    uint64_t address;
    uint64_t operand, compare;
} uf_order_signal;

typedef struct uf_order_edges {
    void *arg;
    /* A WRITE_IMM of 0 bytes (controls, signals alone) has no remote address: the caller gives it one if the fabric wants it. Keys and
     * descriptors are the operation's; where they differ by rail the caller translates them by wr->rail. */
    int (*post)(void *arg, const uf_wr *wr);
    /* UF_OK with the old value in *old, or an error (address not ours), which ends the flow. */
    int (*apply)(void *arg, const uf_order_signal *signal, uint64_t *old);
    void (*done)(void *arg, uint64_t user, int status, uint64_t value);
    void (*failed)(void *arg, uint32_t flow, int status);
} uf_order_edges;

/* Bytes that create will allocate for `config`, for the line that creation logs. */
size_t uf_order_bytes(const uf_order_config *config);
/* What the fabric must be able to hold for `config`, beyond which nothing of a correct peer comes: unconsumed remote CQEs of one
 * rail, and unconsumed messages. */
uint64_t uf_order_remote_cqes(const uf_order_config *config);
uint64_t uf_order_receives(const uf_order_config *config);
/* UF_EINVAL names the field that breaks a bound (each packed field of codec.h has one); UF_ENOMEM. */
int uf_order_create(const uf_order_config *config, const uf_order_edges *edges, uf_order **order);
void uf_order_destroy(uf_order *order);

/* ---------------------------------------------------------------- lanes */

/* The part of a context that lanes share. Owned by the caller, must outlive its lanes. With several rails the home of a lane (rule 4) is
 * chosen by source, target and `number`, so that lanes spread over the rails; large puts are striped, see uf_order_config. */
typedef struct uf_order_ctx {
    uint64_t fence_epoch; /* uf_fence adds 1, atomically: any thread may; lanes compare lazily */
    uint32_t window;      /* W for this context's lanes, a power of two <= config.window */
    bool ordered;         /* UF_ORDERED */
    uint32_t number;      /* which of this PE's contexts */
} uf_order_ctx;

/* Opens the lane of `ctx` to `flow`. Cheap: nothing is sent until a sequence is needed. UF_ENOMEM with the numbers. */
int uf_order_lane_open(uf_order *order, uf_order_ctx *ctx, uint32_t flow, uf_order_lane **lane);
/* UF_EAGAIN until the lane is quiet and its number at the receiver has come back, so that whoever hears of it can open another; then
 * the lane is gone. Nothing may be submitted on it from the first call on. */
int uf_order_lane_close(uf_order *order, uf_order_lane *lane);
/* The PE that it leads to; any thread. */
uint32_t uf_order_lane_peer(const uf_order_lane *lane);

/* ---------------------------------------------------------------- operations */

typedef enum uf_order_kind {
    UF_ORDER_PUT = 0,
    UF_ORDER_PUT_SIGNAL = 1,
    UF_ORDER_SIGNAL = 2,
    UF_ORDER_ATOMIC = 3,
    UF_ORDER_GET = 4,
} uf_order_kind;

typedef struct uf_order_op {
    uint8_t kind;  /* uf_order_kind */
    uint8_t op;    /* uf_atomic_op of the signal or atomic */
    uint8_t width; /* of an atomic */
    uint8_t flags; /* UF_STRONG, UF_SETTLED */
    bool indexed;  /* signal_address is an index below 2^20 */
    bool more;     /* another operation follows at once */
    uint64_t signal_address;
    uint64_t operand, compare;
    uint64_t local, local_desc, remote, remote_key, bytes; /* as uf_wr; one registration holds the whole of it on each side */
    uint64_t user;                                         /* not 0: `done` will be called with it */
} uf_order_op;

/* Starts the operation: posts it if nothing holds it, else queues it. UF_OK: it will happen, exactly once, or `done` tells why not
 * (within this call if its post broke the network). UF_EAGAIN: the queue is full and nothing happened. UF_EINVAL / the lane's error:
 * refused, `done` will not be called. */
int uf_order_submit(uf_order *order, uf_order_lane *lane, const uf_order_op *op);

/* Completion. A mark notes what has been submitted on a lane so far; `done` tells when all of that is complete to the level
 * asked. Marks are plain data; any number may be pending. Remote marks may cause a receipt to be asked for. */
typedef struct uf_order_mark {
    uint64_t serial; /* operations of the lane up to here */
    bool remote;     /* applied and placed; false: sources reusable */
} uf_order_mark;
void uf_order_mark_set(uf_order *order, uf_order_lane *lane, bool remote, uf_order_mark *mark);
/* UF_OK complete, UF_EAGAIN not yet, or the error that ended the lane. */
int uf_order_mark_test(uf_order *order, uf_order_lane *lane, const uf_order_mark *mark);

/* ---------------------------------------------------------------- events */

/* Cookie of WRs posted UF_WR_SILENT: no CQE comes; if the fabric reports a failure all the same, call uf_order_fail_flow. */
#define UF_ORDER_NO_COOKIE UINT32_MAX

/* Each returns UF_OK or the error that ended the flow concerned (already told by `failed`); UF_EINTERNAL for what no
 * correct peer sends (a bad lane, count or kind), with the bytes in the sentence. */
int uf_order_sent(uf_order *order, uint32_t cookie, int status);
int uf_order_imm(uf_order *order, uint32_t flow, uint32_t rail, uint32_t imm);
int uf_order_message(uf_order *order, uint32_t flow, const unsigned char message[UF_MESSAGE_BYTES]);
/* Posts what became possible: the number of WRs posted, or a negative error. */
int uf_order_progress(uf_order *order);
/* True if progress could post something or somebody waits for something to come: the endpoint must not sleep for long. */
bool uf_order_busy(const uf_order *order);
/* Ends a flow (the peer died): everything queued or in flight to it completes with `status`. */
void uf_order_fail_flow(uf_order *order, uint32_t flow, int status);
/* Several rails only: the caller looked at all CQs and has handed in everything that it took from them; bit i of `empty`: nothing was left
 * in that of rail i. Call it after each look; it costs one comparison. A look counts for what was asked before it began: a question may
 * come out of one CQ while what it asks about arrives in another that was looked at first. */
void uf_order_drained(uf_order *order, uint32_t empty);
/* A rail broke, to one peer or (UF_ORDER_ALL_FLOWS) to all: call it after the last CQE of it was handed in, instead of handing in its
 * errors. Plain puts and sequenced WRs in flight on it are sent again over another; an immediate without a sequence is settled by asking for
 * the counts (rule 16). `why` goes into the sentence of flows that end by it. */
#define UF_ORDER_ALL_FLOWS UINT32_MAX
int uf_order_fail_rail(uf_order *order, uint32_t flow, uint32_t rail, const char *why);

/* ---------------------------------------------------------------- looking in */

typedef struct uf_order_counters {
    uint64_t data_wrs, message_wrs, control_wrs;                          /* posted */
    uint64_t kind0, kind1;                                                /* immediates sent, by kind */
    uint64_t held_strong;                                                 /* strong signals that waited at the sender */
    uint64_t held_fence;                                                  /* operations that waited for a fence */
    uint64_t waited_window, waited_credits, waited_messages, waited_post; /* times an operation stopped for it */
    uint64_t applied;                                                     /* signals and atomics of peers applied here */
    uint64_t held_receiver; /* messages that had to wait here for their range or cursor */
    uint64_t duplicates_dropped;
    uint64_t wraps; /* a lane's sequence or a cumulative counter wrapped */
    uint64_t receipts, grants;
    uint64_t answers, waited_answers; /* replies and grants sent; those that the network did not take at once */
    uint64_t held_overlap;            /* times a put overlapped a WR of ours without CQE */
    uint64_t replayed;                /* WRs sent again over another rail */
    uint64_t max_queue;               /* most operations waiting in software */
} uf_order_counters;
const uf_order_counters *uf_order_counters_get(const uf_order *order);

/* The watchdog (rule 17), to be called every few seconds: UF_OK if all lanes of peers that have signals waiting moved since the last
 * call, else UF_EAGAIN with the peer in *flow and a sentence in uf_error_message that has its sequence and what arrived of what is expected. */
int uf_order_watch(uf_order *order, uint32_t *flow);
/* How far the lanes from `flow` have come, for the message of a wait that ran out: writes a sentence such as "lane 3 from PE 2 has
 * 17 of 20 arrivals of sequence 65531, 2 signals held". Returns its length. */
size_t uf_order_describe(const uf_order *order, uint32_t flow, char *text, size_t bytes);

#endif
