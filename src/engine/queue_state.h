/* queue_state.h - what queues.c (life) and command.c (service) share: one command queue, guarded by its engine's lock. */
#ifndef UF_ENGINE_QUEUE_STATE_H
#define UF_ENGINE_QUEUE_STATE_H

#include "base/error.h"
#include "engine/private.h"
#include "engine/queues.h"

enum { UF_COMMAND_PENDING = 4 }; /* FLUSH or QUIET commands of a queue awaited at once; the next one holds the ring */

typedef struct uf_command_mark {
    uf_order_lane *lane;
    uf_order_mark mark;
} uf_command_mark;

/* A FLUSH or QUIET that is not reached yet: its marks are in the level's row of the same number. */
typedef struct uf_command_pending {
    uint64_t position;
    uint32_t n_marks, reached;
} uf_command_pending;

/* Completion to one level. Requests are reached in order, so one needs marks only on lanes used since the one before it. */
typedef struct uf_command_level {
    bool remote;
    uint64_t *word; /* of the report */
    uint64_t told;  /* what it says */
    uint64_t generation;
    uint64_t *seen; /* [n_pes] generation in which the lane to a PE was last used */
    uf_order_lane **used;
    uint32_t n_used;
    uint32_t head, count;
    uf_command_pending pending[UF_COMMAND_PENDING];
    uf_command_mark *marks; /* [UF_COMMAND_PENDING][n_pes] */
} uf_command_level;

/* A fetched value on its way. Its address, plus one, is the operation's `user`. */
typedef struct uf_command_fetch {
    struct uf_command_queue *queue;
    uint64_t position;
    bool busy;
} uf_command_fetch;

struct uf_command_queue {
    uf_engine *engine;
    uf_command_queue *next; /* in the engine's ring of queues */
    uint32_t number;
    uint32_t n_pes;
    uf_command_ring ring;  /* addresses are the producers' */
    const uint64_t *slots; /* from here on: ours */
    uf_command_report *report;
    uf_command_result *results;
    uint64_t at;     /* next position to consume */
    uint64_t copied; /* bytes of a near put or get at the head that are done already */
    uint64_t trouble;
    bool ended;    /* the world is unsound: nothing more is consumed */
    bool detached; /* its memory is gone */
    uf_order_ctx *ctx;
    uf_command_memory memory;
    uf_command_edges edges;
    uf_command_level levels[2]; /* local, remote */
    uf_command_fetch *fetches;
    uint32_t fetching;
    uf_command_counters counters;
    int status;
    char why[UF_ERROR_BYTES];
    struct {
        void *host, *device;
        size_t bytes;
    } blocks[3]; /* by uf_command_place */
};

/* Serves every queue of the engine one turn: how much moved. With the lock held. */
int uf_command_serve(uf_engine *e);
/* The answer to a fetch; `user` as it was given. With the lock held. */
void uf_command_fetched(uint64_t user, int status, uint64_t value);
/* Notes the error of the command at `position`, whose sentence is in uf_error_message. The first one stays. */
void uf_command_record(uf_command_queue *q, int code, uint64_t position);

static inline bool uf_command_is_fetch_user(uint64_t user)
{
    return user & 1;
}

#endif
