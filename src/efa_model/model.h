/* model.h - an EFA device in software: NICs that read real work queue entries and write real completions.
 *
 * It promises what the hardware promises and no more (reference behaviours B1 to B19), so a program that relies on an order or
 * a courtesy that EFA does not give fails here. What is unknown about the hardware is a knob of uf_model_params, marked [I].
 * Times are model times: only ratios and counts carry over to hardware.
 *
 * Deterministic mode: one model holds any number of NICs of one process; time is virtual and moves only in uf_model_step and
 * uf_model_run; the same seed and the same calls give the same run. Not thread-safe: the caller has one thread or a lock.
 *
 * How a caller uses it: profile -> create -> NICs -> memory, address handles, CQs, QPs -> its own posting code over the
 * returned rings (fabric/efa/queue.h) -> run until the next event, poll, and so on. What the caller does wrong is a trap: counted,
 * kept as a sentence, and answered as a device would; the model never aborts. Creation calls return UF_OK or fail with a sentence. */
#ifndef UF_EFA_MODEL_MODEL_H
#define UF_EFA_MODEL_MODEL_H

#include "fabric/efa/wire.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct uf_model uf_model;
typedef struct uf_model_nic uf_model_nic;
typedef struct uf_model_cq uf_model_cq;
typedef struct uf_model_counter uf_model_counter;

/* Probabilities are parts of a million. Durations are nanoseconds. */
typedef struct uf_model_params {
    /* Network */
    uint64_t latency_ns; /* one way, the least */
    uint64_t jitter_ns;  /* mean of an exponential addition, each packet its own */
    uint32_t tail_ppm;   /* packets that take tail_min..tail_max longer */
    uint64_t tail_min_ns, tail_max_ns;
    uint32_t paths;     /* 1 to 64, of each sending NIC */
    uint32_t stall_ppm; /* packets that find their path stalled from now on for stall_ns */
    uint64_t stall_ns;
    uint32_t drop_ppm; /* of packets and of acks */
    uint64_t rto_ns;
    uint64_t unresponsive_ns; /* after which the sender gives up */
    uint32_t delay_every;     /* the first and then each n-th message of a queue comes delay_ns later; 0: none */
    uint64_t delay_ns;
    /* NIC */
    uint32_t mtu; /* payload of a packet, and the longest send */
    uint32_t gbps;
    uint64_t message_rate;    /* a second, of a NIC */
    uint64_t qp_message_rate; /* of a QP; 0: no limit [I] */
    uint64_t fetch_ns, cqe_ns, ack_ns, rnr_ns;
    /* Placement */
    uint32_t split_ppm; /* packets whose bytes appear in two steps, split_ns apart at most */
    uint64_t split_ns;
    uint32_t grain;           /* 1, 8 or 64: bytes that appear together; 128: each aligned block in address order */
    uint32_t duplicate_ppm;   /* messages of which one packet is placed twice. Lost acks do so too, unless this is 0 */
    bool duplicate_after_cqe; /* also after the sender's completion [I] */
    uint32_t cqe_early_ppm;   /* completions that precede the last payload: memory of different domains */
    /* Unspecified points [I] */
    bool rnr_places;        /* the payload of a write refused for want of a receive is already placed */
    uint32_t rnr_storm_ppm; /* arrivals refused although a receive is posted */
    bool bad_key_places;    /* packets inside the range are placed although the message leaves it */
    bool qkey_answers;      /* a wrong qkey is answered (9) instead of dropped until the sender gives up */
    bool doorbell_32;       /* the device looks at all 32 bits of a doorbell */
    bool cq_overwrites;     /* an overrun CQ loses its oldest entry instead of the newest */
    /* Abilities and limits, each NIC */
    bool can_read, can_write, can_unsolicited, wide_ids;
    /* What no EFA device can, and no profile has: to compare with. A write with immediate of 0 bytes is held until all requests
     * posted before it to its queue are acknowledged, and those posted after it wait behind it, as behind other NICs' fence flag. */
    bool can_fence;
    uint32_t max_qps, max_cqs, max_counters, max_mrs, max_ahs;
    uint32_t max_sq, max_rq, max_cq; /* entries */
    uint32_t max_batch;              /* 64-byte units between two doorbells; 0: none */
    bool whole_sq;                   /* false: a QP takes depth - 1 entries */
    uint64_t max_rdma;
    uint64_t counter_start; /* completion counters begin here, to reach their wrap at 2^31 */
} uf_model_params;

/* "p5", "p5en", "p6-b200", "chaos", "fifo". UF_EINVAL names the known ones. */
int uf_model_profile(const char *name, uf_model_params *params);
/* UF_EINVAL with the field that is out of range, UF_ENOMEM. The params are copied. */
int uf_model_create(const uf_model_params *params, uint64_t seed, uf_model **model);
/* Frees everything. The callers' memory is not touched. */
void uf_model_destroy(uf_model *model);

/* A model that several processes run in turns, in real time: all its memory lies at addresses that are the same in each of them.
 * Who runs it says so with uf_model_enter, under a lock that all share; plain queue pairs only. */
typedef struct uf_model_host {
    void *arg;
    uint32_t owner; /* names this process, not 0: memory registered in its turn is its own */
    /* As realloc and free, but new memory is zero and aligned to 128. */
    void *(*resize)(void *arg, void *p, size_t bytes);
    void (*release)(void *arg, void *p);
    /* Between the memory of two owners; 0 is the model's. False: one of them has ended. */
    bool (*copy)(void *arg, uint32_t to_owner, void *to, uint32_t from_owner, const void *from, size_t bytes);
} uf_model_host;

int uf_model_create_shared(const uf_model_params *params, uint64_t seed, const uf_model_host *host, uf_model **model);
/* `host` must live until the next call; it is this process's own. */
void uf_model_enter(uf_model *model, const uf_model_host *host);

/* ---- Time ---- */

/* Nanoseconds of virtual time since creation. */
uint64_t uf_model_now(const uf_model *model);
/* When something happens next; UINT64_MAX: never, unless somebody posts. Plain doorbells (see uf_model_qp_options) are read here. */
uint64_t uf_model_next(uf_model *model);
/* Moves to the next event and does it; false if there is none. */
bool uf_model_step(uf_model *model);
/* Does all events up to `until`, and then it is `until` (if that is later than now). */
void uf_model_run(uf_model *model, uint64_t until);
/* The same for a clock that runs by itself: plain doorbells found now were rung since the last look, so they count from `until` on and
 * not from where time stood before. */
void uf_model_catch_up(uf_model *model, uint64_t until);

/* ---- NICs and what they know ---- */

/* Belongs to the model and ends with it. UF_ENOMEM. */
int uf_model_nic_create(uf_model *model, uf_model_nic **nic);
/* The NIC's address, for uf_model_ah_create on another. */
void uf_model_nic_gid(const uf_model_nic *nic, uint8_t gid[16]);
/* Another generation than the rest: p4d reads and does not write. As created it can do what the params say. */
void uf_model_nic_abilities(uf_model_nic *nic, bool can_read, bool can_write);
/* The NIC neither sends, answers nor touches memory from now on. */
void uf_model_nic_kill(uf_model_nic *nic);
/* What the NIC can do now; false if it was killed. */
bool uf_model_nic_alive(const uf_model_nic *nic, bool *can_read, bool *can_write);

enum { UF_MODEL_LOCAL = 1, UF_MODEL_REMOTE_READ = 2, UF_MODEL_REMOTE_WRITE = 4 };

typedef struct uf_model_mr {
    uint32_t lkey, rkey;
} uf_model_mr;

/* Makes [ptr, ptr + bytes) usable to QPs of protection domain `pd`; keys are new each time. `access`: LOCAL is for what the NIC writes
 * on its owner's behalf (receives, reads). UF_EINVAL: the range wraps. UF_ENOMEM: the device's limit, or memory. */
int uf_model_mr_register(uf_model_nic *nic, uint16_t pd, void *ptr, uint64_t bytes, uint32_t access, uf_model_mr *mr);
/* Work that still uses the memory fails, as a trap. */
void uf_model_mr_close(uf_model_nic *nic, uf_model_mr mr);
/* A handle for a peer, which also lets the peer's RDMA in (B12). UF_ERANGE: no NIC has this address. UF_ENOMEM: the limit. */
int uf_model_ah_create(uf_model_nic *nic, const uint8_t gid[16], uint16_t *ah);
/* Outstanding work that names it is completed in error; its packets under way still arrive. */
void uf_model_ah_destroy(uf_model_nic *nic, uint16_t ah);

typedef struct uf_model_cq_options {
    uint64_t *memory;         /* the caller's, zeroed, entries * entry_bytes */
    uint32_t entries;         /* a power of two */
    uint32_t entry_bytes;     /* 32 or 16 */
    const uint32_t *consumed; /* the owner's position (uf_efa_cq.consumed), by which overruns are found; may be NULL */
} uf_model_cq_options;

/* UF_EINVAL, UF_ENOMEM: the device's limit, or memory. */
int uf_model_cq_create(uf_model_nic *nic, const uf_model_cq_options *options, uf_model_cq **cq);
/* No QP may use it any more. */
void uf_model_cq_destroy(uf_model_cq *cq);

/* Two words of the caller's that the NIC counts up, wrapping at 2^31. `errors` may be NULL. UF_ENOMEM: the limit, or memory. */
int uf_model_counter_create(uf_model_nic *nic, uint64_t *successes, uint64_t *errors, uf_model_counter **counter);
/* The words are not written any more. */
void uf_model_counter_destroy(uf_model_counter *counter);

/* ---- Queue pairs ---- */

enum {
    UF_MODEL_COUNT_SEND,
    UF_MODEL_COUNT_RECV,
    UF_MODEL_COUNT_READ,
    UF_MODEL_COUNT_REMOTE_READ,
    UF_MODEL_COUNT_WRITE,
    UF_MODEL_COUNT_REMOTE_WRITE,
    UF_MODEL_COUNTS
};

typedef struct uf_model_qp_options {
    uint16_t pd;
    uint32_t sq_depth, rq_depth; /* powers of two */
    uint32_t wqe_bytes;          /* 64 or 128 */
    uint32_t qkey;
    uint32_t rnr_retry; /* 0 to 6; 7: for ever */
    bool unsolicited;
    bool
        plain; /* the caller stores to the ring with plain stores and the doorbell is a word that the model looks at: fewer checks */
    uf_model_cq *send_cq, *recv_cq;
    uf_model_counter *counters[UF_MODEL_COUNTS]; /* NULL: none */
} uf_model_qp_options;

typedef struct uf_model_qp_info {
    uint16_t qpn; /* the lowest free number: numbers are used again at once */
    uint64_t *sq_ring, *rq_ring;
    uint32_t *sq_doorbell, *rq_doorbell;
    uint32_t sq_depth, rq_depth;
    uint32_t sq_limit;  /* entries that may be outstanding */
    uint32_t max_batch; /* entries between two doorbells */
    uf_efa_mmio mmio;   /* how to store to them unless `plain`: the ring's addresses cannot be read or written then */
} uf_model_qp_info;

/* A queue pair that is ready to send and receive. UF_EINVAL, UF_EUNSUPPORTED (unsolicited receives), UF_ENOMEM. */
int uf_model_qp_create(uf_model_nic *nic, const uf_model_qp_options *options, uf_model_qp_info *info);
/* Outstanding work is completed as flushed, into CQs that must still exist; then the number is free. UF_ERANGE: no such QP. */
int uf_model_qp_destroy(uf_model_nic *nic, uint16_t qpn);
/* The same without freeing it: the QP answers nobody any more, and flushes what is posted. */
int uf_model_qp_fail(uf_model_nic *nic, uint16_t qpn);

/* ---- What happened ---- */

typedef enum uf_model_trap_kind {
    UF_MODEL_TRAP_TORN,         /* doorbell over an entry that is not complete, or still in the write-combining buffer */
    UF_MODEL_TRAP_MALFORMED,    /* bits that must be zero or one, or a wrong phase */
    UF_MODEL_TRAP_BATCH,        /* more than max_batch entries between two doorbells */
    UF_MODEL_TRAP_SQ_OVERRUN,   /* doorbell over more entries than the ring holds */
    UF_MODEL_TRAP_DOORBELL,     /* a doorbell that does not move forward */
    UF_MODEL_TRAP_OVERWRITE,    /* a ring word stored twice before the NIC fetched it */
    UF_MODEL_TRAP_STRAY_STORE,  /* a store beside the ring or the doorbell */
    UF_MODEL_TRAP_CQ_OVERRUN,   /* a completion without room */
    UF_MODEL_TRAP_RQ_OVERRUN,   /* more receives than the ring holds */
    UF_MODEL_TRAP_RQ_MALFORMED, /* a descriptor without first or last, or with a bad key */
    UF_MODEL_TRAP_DUPLICATE,    /* a second placement overwrote bytes that had changed since the first */
    UF_MODEL_TRAP_MR_IN_USE,    /* memory deregistered under work that uses it */
    UF_MODEL_TRAPS,
} uf_model_trap_kind;

typedef struct uf_model_stats {
    uint64_t events, doorbells, wqes, packets, bytes;
    uint64_t drops, retransmits, acks_lost, duplicates, splits, stalls, rnr;
    uint64_t tx_cqes, rx_cqes, cqes_lost, silent;
    uint64_t copies;        /* pieces of payload moved in memory */
    uint64_t out_of_memory; /* not 0: something was forgotten for want of memory, and the run is void */
    uint64_t traps[UF_MODEL_TRAPS];
} uf_model_stats;

/* Counts since creation; valid as long as the model. */
const uf_model_stats *uf_model_get_stats(const uf_model *model);
/* Sum over all kinds: 0 in a sound run. */
uint64_t uf_model_traps(const uf_model *model);
/* The sentence of the i-th trap, of the first 32; NULL beyond. */
const char *uf_model_trap(const uf_model *model, uint32_t i);

#endif
