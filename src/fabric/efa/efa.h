/* efa.h - private header of the EFA fabric: writes work queue entries and reads completions itself, without a library between.
 *
 * A fabric object is an array of rails; a rail is one NIC with one queue pair, one completion queue for both directions, handles
 * of all peers and a table from (handle, source queue) back to the PE. What makes queues and keys is a device (device.h): the model
 * or real NICs; from then on everything here is loads, stores and arithmetic.
 *
 * Room is found before anything is written: a WR needs a slot of ours and an entry of the ring, there are as many of both,
 * and a completion frees both. The CQ has room for all that can come at once: every entry of the SQ, every receive, and, where
 * immediates use no receive, as many of them as caps.cq_depth says; nothing protects it otherwise.
 * efa.c opens and connects, ep.c posts, cq.c polls, rail.c knows which rails are broken, mr.c registers. One thread at a time. */
#ifndef UF_FABRIC_EFA_EFA_H
#define UF_FABRIC_EFA_EFA_H

#include "base/error.h"
#include "base/map.h"
#include "fabric/efa/device.h"
#include "fabric/efa/status.h"
#include "fabric/fabric.h"

enum {
    UF_EFA_NONE = 0xffff,
    UF_EFA_BOUNCE_BYTES = 32,   /* what a silent write may have where entries have no inline writes: copied beside its slot */
    UF_EFA_NOWHERE_BYTES = 64,  /* where writes of 0 bytes go */
    UF_EFA_LOOK_EVERY = 256,    /* empty polls between two looks at the device's health */
    UF_EFA_RNR_FOR_EVER = 7,    /* credits see to it that a live peer has a receive; deadlines find a dead one */
    UF_EFA_DEFAULT_DEPTH = 256, /* where the caller does not say */
    /* How long packets of a flushed request may still be under way: several times the longest delay that was ever told of SRD [I]. */
    UF_EFA_STALE_NS = 2000000,
};

/* Of a rail, and of the way over a rail to one peer. */
typedef enum uf_efa_health {
    UF_EFA_SOUND,
    UF_EFA_BREAKING, /* known to be broken; its last completions are awaited. What is posted now goes nowhere */
    UF_EFA_BROKEN,   /* and the engine was told (with one rail: poll or the WRs tell) */
} uf_efa_health;

/* A WR in flight. */
typedef struct uf_efa_slot {
    uint64_t bytes;
    uint32_t peer;
    uint32_t cookie;
    uint16_t next; /* free list, UF_EFA_NONE ends it */
    uint8_t verb;
    bool silent; /* its success is not told */
} uf_efa_slot;

/* An endpoint as peers know it. Exchanged as bytes. */
typedef struct uf_efa_address {
    uint8_t gid[16];
    uint32_t qkey;
    uint16_t qpn;
    uint16_t mark;       /* UF_EFA_ADDRESS_MARK and the layout's version: another fabric's bytes are refused */
    uint64_t nowhere_at; /* for writes of 0 bytes */
    uint32_t nowhere_key;
    uint32_t pe;
} uf_efa_address;
#define UF_EFA_ADDRESS_MARK 0xefa1
_Static_assert(sizeof(uf_efa_address) == 40, "the address has no padding");

typedef struct uf_efa_peer {
    uf_efa_address address;
    uint16_t ah;
    bool connected;
    bool made_ah;       /* others of this address use it too: PEs of one host may share a NIC */
    uint8_t health;     /* uf_efa_health; SOUND with one rail */
    uint8_t status;     /* what broke it */
    uint32_t in_flight; /* WRs without a completion, counted with several rails */
} uf_efa_peer;

typedef struct uf_efa_rail {
    uf_efa_cq cq;
    uf_efa_qp qp;
    uf_efa_ids ids;         /* of WRs */
    uf_efa_ids receive_ids; /* of receives, 16 bits on every device */
    uf_efa_slot *slots;
    uint16_t free_slot;
    uint16_t index;
    bool unsolicited, has_qp;
    uf_efa_peer *peers; /* by PE */
    uf_map pe_of;       /* key: handle << 16 | source queue */
    uint64_t generation;
    uint32_t qkey;
    uint32_t slot_bits;
    uf_efa_device_cq *device_cq;
    /* Registered as one piece: receives, then the copies of silent writes, then where writes of 0 bytes go. */
    unsigned char *memory;
    uint32_t n_receives;
    uint32_t bounce_at, nowhere_at; /* offsets */
    uf_efa_device_mr *memory_mr;
    uint32_t memory_lkey, memory_rkey;
    uint8_t health; /* uf_efa_health: not SOUND when the queue is in error or the NIC gone */
    bool gone;      /* the NIC is: no completion of ours will come */
    int code;       /* what poll returns when this was the only rail */
    uint32_t peers_breaking;
    uint64_t broke_at;          /* the device's time */
    char cause[UF_ERROR_BYTES]; /* what broke it */
} uf_efa_rail;

typedef struct uf_efa {
    uf_fabric base;
    int pe;
    uint32_t n_pes, n_rails;
    uint32_t words;        /* of an SQ entry: 8 or 16 */
    uint32_t inline_write; /* bytes of a write that travel in the entry */
    uint32_t empty_polls, polls;
    uint32_t first_rail; /* that is looked at: in turn, since a poll may not come to all */
    bool ailing;         /* a rail, or the way over one to a peer, broke at some time: only then is there news to look for */
    bool spoken;         /* error() belongs to a completion of this poll */
    uint64_t strays;     /* completions of nobody: stale, unknown senders, receives in error. The first are logged */
    struct uf_mr *mrs;   /* all that are registered: close frees what the caller left */
    uf_efa_device *device;
    char error[UF_ERROR_BYTES]; /* of the last error completion */
    uf_efa_rail rails[];
} uf_efa;

struct uf_mr {
    struct uf_mr *next, **link;
    uint64_t base;
    uint32_t n_rails;
    struct {
        uf_efa_device_mr *mr;
        uint32_t lkey, rkey;
    } rail[];
};

extern const struct uf_fabric_ops uf_fabric_efa;

int uf_efa_fabric_post(uf_fabric *f, const uf_wr *wr);
void uf_efa_fabric_flush(uf_fabric *f);
int uf_efa_fabric_poll(uf_fabric *f, uf_cqe *cqes, int max);
int uf_efa_fabric_mr_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr);
void uf_efa_fabric_mr_close(uf_fabric *f, uf_mr *mr);
void uf_efa_fabric_mr_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key);
uint64_t uf_efa_fabric_mr_desc(const uf_mr *mr, uint32_t rail);

/* Makes the rail's queue pair and posts its receives: ids of the next generation, so that what is still to come from a queue which had the same
 * number before is known for stale. */
int uf_efa_rail_start(uf_efa *efa, uf_efa_rail *rail);
/* Ends it; its completions may still lie in the CQ. WRs in flight are forgotten. */
void uf_efa_rail_stop(uf_efa *efa, uf_efa_rail *rail);
/* Posts the receive with this index again; the doorbell is the caller's. */
void uf_efa_rail_receive(uf_efa_rail *rail, uint32_t index);
/* The queue of the rail is in error (the completion's status), or its NIC is gone (the device's sentence is uf_error_message()). */
void uf_efa_rail_break(uf_efa *efa, uf_efa_rail *rail, unsigned status);
void uf_efa_rail_gone(uf_efa *efa, uf_efa_rail *rail, int code);
/* Several rails: a WR failed. False: only because of a break, so its completion is not told. */
bool uf_efa_rail_tells(uf_efa *efa, uf_efa_rail *rail, const uf_efa_slot *slot, unsigned status);
/* Several rails: writes one UF_CQE_RAIL if one is due; the number written. */
int uf_efa_rail_news(uf_efa *efa, uf_cqe *cqe);
/* Several rails: what becomes of a WR that is posted on a broken one. */
int uf_efa_rail_refuse(const uf_efa_rail *rail, uint32_t peer);
/* "write", "read" ... for sentences. */
const char *uf_efa_verb_name(unsigned verb);

static inline uint64_t uf_efa_source_key(uint16_t ah, uint16_t qpn)
{
    return (uint64_t)ah << 16 | qpn;
}

static inline void uf_efa_slot_give(uf_efa_rail *rail, uint16_t slot)
{
    rail->slots[slot].next = rail->free_slot;
    rail->free_slot = slot;
}

#endif
