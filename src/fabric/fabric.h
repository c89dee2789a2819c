/* fabric.h - the one interface to a network. Each folder below implements it with the same file names (ep, mr, cq).
 *
 * A fabric moves work requests (base/wr.h) between endpoints and reports completions. It promises what its caps say and
 * nothing else: in particular no order between any two WRs. It never blocks, never sleeps, never calls back, and holds no
 * lock: the engine calls it for one endpoint from one thread at a time (open, mr_* and close included).
 * Life: open -> endpoint address exchanged by the caller -> connect every peer -> post/poll ... -> close.
 * One fabric object belongs to one PE of one world and has one endpoint per rail.
 *
 * Several rails ask two things more of poll. It says in uf_fabric.drained which CQs it found empty, and it turns a break into one CQE:
 * UF_CQE_RAIL, `status` < 0, its sentence in error(). That is the last of what was posted on that rail to that peer: each WR has had its CQE
 * before, or never will have one and moves no byte from now on. A WR that failed only because of the break has none, since it will be sent
 * again over another rail; WRs to a peer that is gone fail as ever (UF_EPEER). What peers sent may still be in the CQ of a broken rail and
 * is handed out as ever. A fabric with one rail never reports a break: there its errors are those of its WRs or of poll. */
#ifndef UF_FABRIC_FABRIC_H
#define UF_FABRIC_FABRIC_H

#include "base/settings.h"
#include "base/wr.h"
#include <stddef.h>

typedef struct uf_fabric uf_fabric;
typedef struct uf_mr uf_mr;

/* What the network can do: data, from which the layers above compute. */
typedef struct uf_fabric_caps {
    char fabric[16];   /* "ofi" */
    char provider[48]; /* "net": what was taken, whatever was asked for */
    char detail[96];   /* device, address or domain, and why that provider if another was named; for people */
    char device[64];  /* the NIC of rail 0 as the system calls it ("rdmap86s0", "eth0"), "" if there is none or it is not known */
    uint32_t n_rails; /* endpoints: rail i talks to rail i */
    uint32_t imm_bits; /* 32 if an immediate of 32 bits travels AND the CQE tells who sent it; 0: no immediates, use messages */
    bool imm_placed;   /* the sender's CQE of a WRITE_IMM means the target's CQ has the immediate; false: source reusable only */
    bool write_placed; /* a WRITE posted UF_WR_PLACED completes only when its bytes are in target memory */
    bool duplicates;   /* payload may be placed a second time, until the sender's CQE */
    bool ordered_writes;   /* informational: the network happens to keep order. Nothing may rely on it */
    bool needs_desc;       /* local buffers must be registered (local_desc from mr_desc) */
    bool virtual_address;  /* remote addresses are the target's virtual addresses; false: offsets from the registration's start */
    uint64_t max_message;  /* largest WRITE, WRITE_IMM or READ */
    uint32_t inline_bytes; /* WRs up to this size may be UF_WR_SILENT: source copied when post returns */
    uint32_t tx_depth;     /* WRs in flight per rail before post says UF_EAGAIN */
    uint32_t cq_depth;     /* remote CQEs that fit into one rail's CQ; UINT32_MAX: the fabric itself holds senders back */
    uint32_t max_receives; /* messages that one rail holds for us; UINT32_MAX likewise */
    size_t address_bytes;  /* of one endpoint address, at most UF_FABRIC_ADDRESS_MAX */
    uint64_t rate_bytes;   /* bytes a second of one rail if known, 0 if not */
} uf_fabric_caps;

#define UF_FABRIC_ADDRESS_MAX 256

/* A registration as peers see it; exchanged by the caller as bytes. */
typedef struct uf_fabric_key {
    uint64_t key;
    uint64_t base; /* what corresponds to the first byte: its virtual address or 0 */
} uf_fabric_key;

typedef struct uf_fabric_params {
    const uf_settings *settings;
    int pe, n_pes;
    const char *provider; /* "" = choose the best one here; else a name, case does not matter */
    bool one_host;        /* all PEs are on this host: loopback and shm are eligible */
    uint32_t n_rails;     /* wanted: at most so many; 0: one for each NIC that is near */
    uint32_t tx_depth;    /* wanted, per rail; caps say what was got */
    /* For one rail. With n rails each rail needs n times as many, since what flew on those that broke may arrive once more. */
    uint32_t receives;    /* messages that may arrive unconsumed at once: the fabric keeps that many receives posted */
    uint32_t remote_cqes; /* remote CQEs that may be outstanding at once: size of the CQ */
    uint32_t receives_liked, remote_cqes_liked; /* so many would be of use where they cost little; 0: no more than those */
    void *arg;                                  /* uf_world_options.fabric_arg */
} uf_fabric_params;

struct uf_fabric_ops {
    const char *name;
    /* UF_EUNSUPPORTED with the reason if there is no such device or provider here. */
    int (*open)(const uf_fabric_params *params, uf_fabric **out);
    /* Frees everything; WRs in flight are dropped. */
    void (*close)(uf_fabric *f);
    /* Writes caps.address_bytes of this PE's address on `rail`. */
    int (*address)(uf_fabric *f, uint32_t rail, void *address);
    /* Makes `peer` reachable in both directions: afterwards WRs to it may be posted and its own accepted. Includes self. */
    int (*connect)(uf_fabric *f, uint32_t rail, uint32_t peer, const void *address);
    /* Registers [ptr, ptr+bytes) on all rails for local use and, if `remote`, for peers' reads and writes. */
    int (*mr_register)(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr);
    void (*mr_close)(uf_fabric *f, uf_mr *mr);
    void (*mr_key)(const uf_mr *mr, uint32_t rail, uf_fabric_key *key);
    uint64_t (*mr_desc)(const uf_mr *mr, uint32_t rail); /* for uf_wr.local_desc */
    /* Posts one WR. A write of 0 bytes needs no address and no key, local or remote: the fabric has its own place for it. UF_OK: exactly one CQE will come (none if silent and successful). UF_EAGAIN: nothing happened; poll, then try
     * again (or on a rail that broke, until what the poll with its UF_CQE_RAIL returned was handled: later nobody posts there). Other errors: nothing happened and
     * never will for this peer. */
    int (*post)(uf_fabric *f, const uf_wr *wr);
    /* Rings the doorbell for WRs posted UF_WR_MORE. May be NULL. */
    void (*flush)(uf_fabric *f);
    /* Takes up to `max` completions, those of one rail in CQ order: their number, or a negative error that ended the fabric. With several
     * rails it sets f->drained. */
    int (*poll)(uf_fabric *f, uf_cqe *cqes, int max);
    /* A descriptor that becomes readable when poll may have something, or -1. `arm` returns UF_OK if the caller may sleep on it now,
     * UF_EAGAIN if it must poll first. Both may be NULL. */
    int (*wait_fd)(uf_fabric *f);
    int (*arm)(uf_fabric *f);
    /* The sentence of the last error CQE (status < 0), naming peer, rail and cause. */
    const char *(*error)(uf_fabric *f);
};

struct uf_fabric {
    const struct uf_fabric_ops *ops;
    uf_fabric_caps caps;
    /* Several rails, set by each poll: bit i if it looked and nothing is left in the CQ of rail i behind what it returned. */
    uint32_t drained;
};

/* The fabrics compiled in, by name ("ofi"); NULL if there is none of that name. */
const struct uf_fabric_ops *uf_fabric_find(const char *name);
/* All of them, NULL-terminated, in order of preference. */
const struct uf_fabric_ops *const *uf_fabric_all(void);

#endif
