/* shuffle_wire.h - inside the shuffle fabric: what flies, what is due when, and who may touch it.
 *
 * A WR that was posted is a flight. Its life is a chain of events in one heap, ordered by tick and then by a random number:
 * PIECE (some bytes are placed) ... REMOTE (the target's CQE) ... AGAIN (bytes placed a second time) ... SENT (the sender's
 * CQE). All of it is guarded by the wire's mutex; shuffle_fabric.c takes it, shuffle_wire.c runs under it. */
#ifndef UF_TESTS_SHUFFLE_WIRE_H
#define UF_TESTS_SHUFFLE_WIRE_H

#include "support/shuffle_fabric.h"
#include <pthread.h>
#include <stdatomic.h>

#define SHUFFLE_RAILS  4
#define SHUFFLE_PIECES 16

/* Keys, descriptors and addresses differ by rail, so that one given to another rail is found out. */
struct uf_mr {
    uf_mr *next;
    unsigned char *ptr;
    size_t bytes;
    uint64_t number; /* from 1 on */
    bool remote, virtual_address;
};

/* What a port knows of a rail to a peer. Posts to a broken one go nowhere, or are refused, until the poll after that which told of it. */
typedef enum shuffle_health { SHUFFLE_SOUND, SHUFFLE_BROKEN, SHUFFLE_TOLD, SHUFFLE_CLOSED } shuffle_health;

/* A break that somebody has not heard of yet. */
typedef struct shuffle_news {
    uint64_t due;
    int pe;        /* who will hear */
    uint32_t peer; /* UF_CQE_ALL_PEERS: its own end broke */
    uint32_t rail;
} shuffle_news;

enum { SHUFFLE_NEWS = 64 };

typedef struct shuffle_cq {
    uf_cqe *entries; /* ring of `room`, grows */
    uint32_t head, used, room;
    uint32_t imms; /* of them: peers' immediates */
} shuffle_cq;

typedef struct shuffle_flight shuffle_flight;

/* One PE's endpoint; outlives the fabric object, since WRs to a closed endpoint still have to fail. */
typedef struct shuffle_port {
    uf_fabric *fabric; /* NULL: not opened yet, or closed */
    bool dead;
    uf_mr *mrs;
    uint32_t tx_depth, receives, remote_cqes;
    uint32_t tx_used[SHUFFLE_RAILS];
    uint32_t messages; /* in CQs, not polled */
    shuffle_cq cq[SHUFFLE_RAILS];
    shuffle_flight *unrung; /* posted UF_WR_MORE, waiting for the doorbell */
    uint8_t *connected;     /* [rail * n_pes + peer] */
    uint8_t *health;        /* the same; shuffle_health */
    char error[256];
} shuffle_port;

/* Flights of one (from, to, rail) in the order of posting, until their bytes and remote CQE are there. */
typedef struct shuffle_flow {
    shuffle_flight *first, *last;
    uint64_t posted;
    bool fail_next;
} shuffle_flow;

struct shuffle_flight {
    uf_wr wr;
    int from, to;
    uint64_t number; /* in its flow */
    shuffle_flight *flow_next, *ring_next;
    unsigned char *copy; /* of the source, once it must no longer be read */
    uint64_t cuts[SHUFFLE_PIECES + 1];
    uint32_t n_pieces, placed;
    uint32_t events; /* in the heap */
    bool delivered;  /* out of the flow's list */
    bool sent;
    bool dropped; /* its sender is gone */
    bool doomed;  /* fail_next */
    int status;
};

typedef enum shuffle_step { SHUFFLE_PIECE, SHUFFLE_REMOTE, SHUFFLE_AGAIN, SHUFFLE_SENT } shuffle_step;

typedef struct shuffle_event {
    uint64_t due, tie;
    shuffle_flight *flight;
    uint8_t step;
    uint8_t piece;
} shuffle_event;

struct uf_shuffle_wire {
    pthread_mutex_t lock;
    uf_shuffle_knobs knobs;
    uint64_t now, random, trace, next_key;
    shuffle_news news[SHUFFLE_NEWS];
    uint32_t n_news;
    shuffle_port *ports; /* [n_pes] */
    shuffle_flow *flows; /* [(from * n_pes + to) * SHUFFLE_RAILS + rail] */
    shuffle_event *heap;
    uint32_t heap_used, heap_room;
    uint32_t violations;
    char first[256];
    uf_shuffle_counters counters;
    bool out_of_memory;
};

uint64_t shuffle_random(uf_shuffle_wire *w);
void shuffle_note(uf_shuffle_wire *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
shuffle_flow *shuffle_flow_of(uf_shuffle_wire *w, int from, int to, uint32_t rail);
/* Puts a posted flight into the air. */
void shuffle_launch(uf_shuffle_wire *w, shuffle_flight *flight);
/* Moves time on by one tick and does what is due. */
void shuffle_advance(uf_shuffle_wire *w);
/* Ends everything that `pe` has in the air; later steps of it do nothing. */
void shuffle_drop_from(uf_shuffle_wire *w, int pe);
/* Frees all flights: the wire ends. */
void shuffle_free_flights(uf_shuffle_wire *w);
uf_mr *shuffle_mr_by_desc(const shuffle_port *port, uint32_t rail, uint64_t desc);
uint64_t shuffle_desc_of(const uf_mr *mr, uint32_t rail);
uint64_t shuffle_key_of(const uf_mr *mr, uint32_t rail);
uint64_t shuffle_base_of(const uf_mr *mr, uint32_t rail);
void shuffle_cq_push(uf_shuffle_wire *w, shuffle_cq *cq, const uf_cqe *cqe);

/* ---- shuffle_rail.c */
void shuffle_break(uf_shuffle_wire *w, int pe, uint32_t rail);
/* Breaks and news that are due. */
void shuffle_rails_step(uf_shuffle_wire *w);
/* `pe` closed: nothing is to be told to it any more. */
void shuffle_rails_forget(uf_shuffle_wire *w, int pe);
static inline uint8_t *shuffle_health_of(const uf_shuffle_wire *w, int pe, uint32_t rail, uint32_t peer)
{
    return &w->ports[pe].health[rail * (uint32_t)w->knobs.n_pes + peer];
}

#endif
