/* wr.h - the words that the ordering protocol and the fabrics share: a work request and a completion.
 *
 * Plain data, copied by value. A work request (WR) is made by src/order, handed to a fabric by the engine, and
 * answered by exactly one completion (CQE) that carries its cookie back, unless it was posted UF_WR_SILENT. */
#ifndef UF_BASE_WR_H
#define UF_BASE_WR_H

#include <stdbool.h>
#include <stdint.h>

typedef enum uf_verb {
    UF_VERB_WRITE = 0,     /* one-sided write; the target's software sees nothing */
    UF_VERB_WRITE_IMM = 1, /* write that raises a CQE with `imm` at the target after all bytes are placed; 0 bytes allowed */
    UF_VERB_READ = 2,      /* one-sided read from remote to local */
    UF_VERB_SEND = 3,      /* UF_MESSAGE_BYTES bytes of `message` into a receive of the target */
} uf_verb;

/* Every two-sided message of the protocol has this size: EFA's inline limit. */
#define UF_MESSAGE_BYTES 32

enum {
    UF_WR_PLACED = 1, /* the CQE must mean "bytes placed in target memory", not only "source reusable" */
    UF_WR_MORE = 2,   /* another WR follows at once: the doorbell may wait for it (the engine calls flush afterwards) */
    UF_WR_SILENT = 4, /* no CQE is wanted for success; only for WRs with bytes <= the fabric's inline_bytes */
};

typedef struct uf_wr {
    uint8_t verb;  /* uf_verb */
    uint8_t flags; /* UF_WR_* */
    uint16_t rail; /* which NIC; 0 is the home rail */
    uint32_t peer; /* the flow: index of the target PE in the world */
    uint32_t cookie;
    uint32_t imm;
    uint64_t bytes;
    uint64_t local;      /* address of the local buffer */
    uint64_t local_desc; /* the fabric's descriptor of its registration (0 if none is needed) */
    uint64_t remote;     /* address as the target's registration counts it */
    uint64_t remote_key;
    unsigned char message[UF_MESSAGE_BYTES]; /* UF_VERB_SEND only */
} uf_wr;

typedef enum uf_cqe_kind {
    UF_CQE_SENT = 0,    /* a WR of ours is done: `cookie` */
    UF_CQE_IMM = 1,     /* a peer's write-with-immediate is placed: `peer`, `imm`, `bytes` if the fabric knows them */
    UF_CQE_MESSAGE = 2, /* a peer's message arrived: `peer`, `message` */
    UF_CQE_RAIL = 3,    /* our `rail` to `peer` (UF_CQE_ALL_PEERS: to everybody) broke: fabric.h says when */
} uf_cqe_kind;

#define UF_CQE_ALL_PEERS UINT32_MAX

typedef struct uf_cqe {
    uint8_t kind; /* uf_cqe_kind */
    uint8_t flags;
    uint16_t rail;
    int32_t status; /* UF_OK or a negative UF_E*; with an error the fabric keeps the sentence: uf_fabric_error() */
    uint32_t peer;
    uint32_t cookie;
    uint32_t imm;
    uint64_t bytes;
    unsigned char message[UF_MESSAGE_BYTES];
} uf_cqe;

#endif
