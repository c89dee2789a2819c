/* queues.h - device command queues as the engine sees them: rings (command.h) that one endpoint serves in its step.
 *
 * A queue belongs to one context and is attached to one engine for life. Whoever makes the engine's step - its progress thread, or a
 * caller in its turn - consumes the rings, under the endpoint's lock, so all that a queue has needs no other. Endpoints share
 * nothing: as many progress threads as endpoints serve as many sets of queues beside each other.
 *
 * A queue takes commands in order, a batch a step, and never waits: if the protocol has no room its ring waits while others go
 * on. A command that is wrong is recorded (the first one with ring and position) and passed over; those around it are done. What a command's
 * addresses mean is the world's business, which is above this room: it gives the edges. */
#ifndef UF_ENGINE_QUEUES_H
#define UF_ENGINE_QUEUES_H

#include "engine/command.h"
#include "engine/engine.h"

typedef struct uf_command_queue uf_command_queue;

/* Where a command leads. */
typedef struct uf_command_way {
    uf_order_lane *lane; /* network: `op` goes there. NULL: near */
    uf_order_op op;      /* filled where lane is set; kind, operand, flags and the like are set already */
    unsigned char *to;   /* near: where the bytes go ... */
    const unsigned char *from;
    void *word; /* ... and the word that is updated */
} uf_command_way;

/* Called with the endpoint's lock held; must not call the engine but for uf_engine_lane_*_locked. */
typedef struct uf_command_edges {
    void *arg;
    /* Finds memory and lane of a put, get, signal or atomic whose PE exists. An error is the command's. */
    int (*resolve)(void *arg, const uf_command *c, uf_command_way *way);
    /* Updates a near word with release order: the value it had. */
    uint64_t (*apply)(void *arg, void *word, uint32_t op, uint32_t width, uint64_t operand, uint64_t compare);
    /* UF_OK, or the error that ended the world, with its sentence in uf_error_message: the queue then ends. */
    int (*sound)(void *arg);
} uf_command_edges;

/* Whose memory a piece of a queue is in. */
typedef enum uf_command_place {
    UF_COMMAND_SLOTS,  /* the consumer's, which producers store to */
    UF_COMMAND_LOCAL,  /* the producers': the consumer never touches it */
    UF_COMMAND_REPORT, /* written by the consumer, and read by waiters: theirs if the consumer can write there */
} uf_command_place;

typedef struct uf_command_memory {
    void *arg;
    /* `bytes` of memory, aligned to 64, filled from `image`. *host: where the consumer has it (NULL for LOCAL), *device: where producers do. */
    int (*alloc)(void *arg, uf_command_place place, const void *image, size_t bytes, void **host, void **device);
    void (*free)(void *arg, uf_command_place place, void *host, void *device, size_t bytes);
    /* Stores to a word of the REPORT so that all earlier stores, these ones and others, are seen before it. NULL: a release store. */
    void (*store)(void *arg, uint64_t *host, uint64_t value);
} uf_command_memory;

/* Plain memory of this process, for producers that are CPU threads. */
extern const uf_command_memory uf_command_memory_plain;

typedef struct uf_command_params {
    uint32_t shift;      /* log2 of the slots, UF_COMMAND_MIN_SHIFT to UF_COMMAND_MAX_SHIFT */
    uint32_t n_results;  /* fetches in flight, 1 to 65536 */
    uint64_t timeout_ns; /* what waits are given that ask for none */
    uint64_t first;      /* the position to start at: tests put it near the wraps */
    uf_order_ctx *ctx;   /* whose fence epoch FENCE moves */
    const uf_command_memory *memory;
    const uf_command_edges *edges;
} uf_command_params;

/* Makes a queue and attaches it: the engine's next step looks at it. UF_EINVAL names the bound, UF_ENOMEM. */
int uf_command_queue_create(uf_engine *engine, const uf_command_params *params, uf_command_queue **queue);
/* What producers get. It lives as long as the queue. */
const uf_command_ring *uf_command_queue_ring(const uf_command_queue *queue);
/* UF_OK if everything that was written to the ring has been consumed and every FLUSH, QUIET and fetch answered; UF_EAGAIN. For the
 * orderly end: producers have stopped. */
int uf_command_queue_idle(uf_command_queue *queue);
/* Detaches it, whatever is in it, and gives its memory back: no producer and no waiter may be left. True: all is gone. False: answers are
 * still on their way, and the caller calls uf_command_queue_free after the engine is destroyed. */
bool uf_command_queue_destroy(uf_command_queue *queue);
void uf_command_queue_free(uf_command_queue *queue);
/* UF_OK, or the queue's first error with its sentence in uf_error_message. Any thread. */
int uf_command_queue_status(uf_command_queue *queue);

typedef struct uf_command_counters {
    uint64_t commands, batches; /* consumed; turns that found something */
    uint64_t errors;            /* commands passed over */
    uint64_t waits;             /* turns that ended because the protocol had no room, or too many completions were pending */
    uint64_t torn;              /* looks that found a command not wholly written */
    uint64_t puts, gets, signals, atomics, fences, quiets;
    uint64_t bytes_near, bytes_network; /* of puts and gets */
} uf_command_counters;
void uf_command_queue_counters(uf_command_queue *queue, uf_command_counters *counters);

/* For the edge `resolve`: as uf_engine_lane_open and _close, with the endpoint's lock held. */
int uf_engine_lane_open_locked(uf_engine *engine, uf_order_ctx *ctx, uint32_t peer, uf_order_lane **lane);
int uf_engine_lane_close_locked(uf_engine *engine, uf_order_lane *lane);

#endif
