/* internal.h - what the files of the model share. The way of a work request: wqe.c fetches and checks it, network.c carries
 * its packets, target.c receives them, place.c moves the bytes, cq.c tells both sides. event.c keeps the order in time. */
#ifndef UF_EFA_MODEL_INTERNAL_H
#define UF_EFA_MODEL_INTERNAL_H

#include "efa_model/model.h"
#include "fabric/efa/status.h"

enum { UF_MODEL_MESSAGES_PER_CHUNK = 1024, UF_MODEL_TRAP_KEPT = 32, UF_MODEL_TRAP_BYTES = 200, UF_MODEL_WC_WORDS = 64 };
#define UF_MODEL_NONE UINT32_MAX

typedef enum event_kind {
    EVENT_FETCH,      /* qp, value: the doorbell reaches the NIC */
    EVENT_TRANSMIT,   /* nic: its wire is free for the next waiting packet */
    EVENT_ARRIVE,     /* message, packet */
    EVENT_RETRANSMIT, /* message, packet: its loss is noticed */
    EVENT_PLACE,      /* message, packet, seed: the second step of a placement */
    EVENT_DUPLICATE,  /* message, packet: placed once more */
    EVENT_DELIVER,    /* message: its completion is written at the target */
    EVENT_ANSWER,     /* message, value: the status is back at the sender */
    EVENT_RNR,        /* message: try again */
    EVENT_COUNT,      /* counter (in qp's place), value: success or not */
} event_kind;

typedef struct model_event {
    uint64_t value; /* what the kind says; for packets a seed */
    void *object;
    uint32_t message, packet;
    uint32_t attempt; /* packets of an earlier attempt are ignored */
    uint32_t kind;
} model_event;

typedef struct heap_entry {
    uint64_t at, order; /* the order of making, and the event's slot */
} heap_entry;

/* A place in memory, and whose memory it is. */
typedef struct span {
    unsigned char *at;
    uint32_t owner; /* uf_model_host.owner; 0: the model's, or there is one process only */
} span;

typedef struct model_mr {
    unsigned char *base;
    uint64_t bytes;
    uint32_t access, generation, owner;
    uint16_t pd;
    bool live;
} model_mr;

struct uf_model_cq {
    uf_model_nic *nic;
    uf_model_cq_options o;
    uint32_t written;
};

struct uf_model_counter {
    uf_model_nic *nic;
    uint64_t *words[2]; /* successes, errors */
    uint64_t counts[2];
    uf_model_counter *next; /* all of the model: an event may still name a destroyed one */
};

typedef struct wc_word {
    uint32_t index; /* in the ring */
    uint64_t value;
} wc_word;

typedef struct model_qp {
    uf_model_nic *nic;
    uf_model_qp_options o;
    uf_model_qp_info info;
    uint32_t generation; /* of this number */
    bool live, failed;
    uint64_t *ring;                      /* what the NIC sees; the caller's view is info.sq_ring */
    uint32_t *words_stored, *words_seen; /* a bit per word of a slot since its last fetch */
    wc_word wc[UF_MODEL_WC_WORDS];
    uint32_t n_wc;
    uint64_t wc_chance; /* random bits for the next stores */
    uint64_t poison;
    uint32_t rung, fetched; /* positions */
    uint32_t rq_seen, rq_taken;
    uint32_t bell;     /* plain queues: the doorbell as last looked at */
    uint64_t messages; /* started, for delay_every */
    uint64_t free_ps;
    uint32_t first;                /* messages outstanding */
    uint32_t under_way;            /* of these, started */
    uint32_t held_head, held_tail; /* the others, in order of posting (can_fence) */
    void *mapping;
    size_t mapping_bytes;
} model_qp;

typedef struct message {
    uint32_t next, previous; /* of the QP's list, or the free list */
    uint32_t refs;           /* events that name it, and 1 while it is not done */
    uint32_t attempt, rnr;
    model_qp *qp;
    uint32_t generation, target_nic;
    uint64_t id, born, delay;
    uint64_t bytes, remote;
    uint32_t rkey, qkey, imm;
    uint16_t qpn, ah, n_sge, inline_bytes;
    uint8_t op, status;
    bool has_imm, is_inline, wants_cqe, done, responding, answered, orphan, refused, started;
    uint32_t held_next;
    uf_efa_sge sge[UF_EFA_SEND_SGES];
    uint64_t inline_words[UF_EFA_WIDE_INLINE_BYTES / 8];
    uint32_t packets, sent, placed;
    uint32_t late;  /* duplicates still to come */
    uint64_t *seen; /* a bit per packet */
    uint32_t seen_words;
    unsigned char *snapshot; /* the payload, where the source may not be read any more */
    uint32_t self;
} message;

struct uf_model_nic {
    uf_model *model;
    uint32_t index;
    bool dead, can_read, can_write;
    uint64_t free_ps;     /* when its wire is free, in picoseconds */
    uint64_t prepared_ps; /* when it has prepared the messages that it has begun */
    bool transmitting;
    uint32_t *waiting, waiting_mask, waiting_head, waiting_tail; /* messages with packets to send, round robin */
    uint64_t path_until[64];
    model_mr *mrs;
    uint32_t n_mrs, free_mr;
    uint32_t *ahs; /* index of the peer + 1 */
    uint32_t n_ahs;
    uint32_t *reverse, n_reverse; /* by peer: our handle + 1 */
    uint64_t *heard;              /* by peer, with `reverse`: it answered once */
    model_qp **qps;
    uint32_t n_qps, n_cqs, n_counters;
};

struct uf_model {
    uf_model_params p;
    uint64_t now, random;
    uint64_t exponential[1024]; /* quantiles of jitter_ns */
    uf_model_nic **nics;
    uint32_t n_nics;
    heap_entry *heap;
    uint32_t n_heap;
    uint64_t sequence;
    model_event *events;
    uint32_t n_events, free_event, event_room;
    message **chunks;
    uint32_t n_chunks, free_message;
    model_qp **plain; /* whose doorbells must be looked at */
    uint32_t n_plain;
    const uf_model_host *host; /* NULL: one process */
    unsigned char *scratch;    /* two packets */
    uf_model_stats stats;
    char traps[UF_MODEL_TRAP_KEPT][UF_MODEL_TRAP_BYTES];
    uint32_t n_traps;
    uf_model_counter *counters;
};

/* memory.c */
void *uf_model_alloc(uf_model *m, size_t n, size_t bytes); /* zero, aligned to 128 */
void *uf_model_resize(uf_model *m, void *p, size_t bytes); /* as realloc */
void uf_model_release(uf_model *m, void *p);
bool uf_model_copy(uf_model *m, span to, span from, size_t bytes); /* may overlap. False: an owner has ended */
/* The bytes where this process can read them: at the place itself, or copied to `room`. NULL: the owner has ended. */
const unsigned char *uf_model_here(uf_model *m, span from, size_t bytes, unsigned char *room);

/* event.c */
bool uf_model_event_add(uf_model *m, uint64_t at, const model_event *event);
bool uf_model_event_take(uf_model *m, uint64_t until, model_event *event); /* moves the time; false if there is none */
void uf_model_exponential_fill(uf_model *m);

/* splitmix64: one addition of state, so a seed of any value is good. */
static inline uint64_t uf_model_random(uf_model *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* 0 for n 0. */
static inline uint64_t uf_model_random_below(uf_model *m, uint64_t n)
{
    return n ? (uint64_t)((unsigned __int128)uf_model_random(m) * n >> 64) : 0;
}

static inline bool uf_model_chance(uf_model *m, uint32_t ppm)
{
    return ppm && (uf_model_random(m) >> 32) * 1000000 >> 32 < ppm;
}

static inline uint64_t uf_model_jitter(uf_model *m)
{
    return m->p.jitter_ns ? m->exponential[uf_model_random(m) >> 54] : 0;
}

/* device.c */
message *uf_model_message(uf_model *m, uint32_t index);
message *uf_model_message_new(uf_model *m);
void uf_model_message_unref(uf_model *m, message *msg);
model_mr *uf_model_find_mr(uf_model_nic *nic, uint32_t key, bool remote);
/* True if [address, address + bytes) lies in the registration and it permits `access`. */
bool uf_model_mr_covers(const model_mr *mr, uint16_t pd, uint64_t address, uint64_t bytes, uint32_t access);
void uf_model_trap_add(uf_model *m, uf_model_trap_kind kind, const model_qp *qp, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* qp.c */
void uf_model_qps_free(uf_model_nic *nic);
model_qp *uf_model_find_qp(uf_model_nic *nic, uint32_t qpn); /* NULL: there is none */
bool uf_model_qp_current(const model_qp *qp, uint32_t generation);

/* wqe.c */
void uf_model_look_at_doorbells(uf_model *m);
void uf_model_fetch(uf_model *m, model_qp *qp, uint32_t upto);
void uf_model_mmio_store64(void *qp, uint64_t *address, uint64_t value);
void uf_model_mmio_flush(void *qp);
void uf_model_mmio_store32(void *qp, uint32_t *address, uint32_t value);
void uf_model_end_early(uf_model *m, message *msg, unsigned status); /* its packets under way still arrive */
void uf_model_qp_break(uf_model *m, model_qp *qp);                   /* into error: everything outstanding is flushed */
void uf_model_held_go(uf_model *m, model_qp *qp);                    /* starts what no fence holds any more */

/* network.c */
void uf_model_send(uf_model *m, message *msg); /* queues all its packets */
void uf_model_transmit_next(uf_model *m, uf_model_nic *nic);
void uf_model_retransmit(uf_model *m, message *msg, uint32_t packet);
uint64_t uf_model_trip(uf_model *m); /* one way, of a packet without payload */
uint64_t uf_model_packet_bytes(const uf_model *m, const message *msg, uint32_t packet);
void uf_model_answer(uf_model *m, message *msg, unsigned status); /* from the target to the sender */
void uf_model_finish(uf_model *m, message *msg, unsigned status); /* at the sender */

/* target.c */
void uf_model_arrive(uf_model *m, message *msg, uint32_t packet);
void uf_model_deliver(uf_model *m, message *msg);
void uf_model_placed(uf_model *m, message *msg);

/* place.c */
typedef enum place_step { PLACE_ALL, PLACE_FIRST, PLACE_REST } place_step;
/* The bytes of a packet of a write or read to where they belong. 0, or the status that refuses them. */
unsigned uf_model_place(uf_model *m, message *msg, uint32_t packet, place_step step, uint64_t seed);
unsigned uf_model_place_again(uf_model *m, message *msg, uint32_t packet);
/* A send's bytes into the caller's buffer: 0 or the status. */
unsigned uf_model_gather(uf_model *m, message *msg, unsigned char *to);
/* Keeps a copy of the payload. False: it cannot be read any more. */
bool uf_model_snapshot(uf_model *m, message *msg);

/* cq.c */
void uf_model_tx_cqe(uf_model *m, model_qp *qp, uint64_t id, unsigned op, unsigned status);
void uf_model_rx_cqe(uf_model *m, model_qp *qp, const uf_efa_cqe *cqe);
void uf_model_count(uf_model *m, model_qp *qp, unsigned which, bool success, uint64_t delay);
void uf_model_counter_add(uf_model_counter *counter, bool success);
/* Receives posted and not taken. */
uint32_t uf_model_receives(uf_model *m, model_qp *qp);

#endif
