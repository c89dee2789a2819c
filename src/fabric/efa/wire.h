/* wire.h - the formats that an EFA device reads and writes: work queue entries, receive descriptors, completions.
 *
 * One header for CPU threads, CUDA threads and the device model; pure arithmetic on little-endian 64-bit words (w0 is the
 * first 8 bytes of an entry). Facts are from the device's public headers [H] unless marked: [C] seen in code that uses the
 * device, [I] inferred by us and to be proved on hardware. Encoders refuse what does not fit its field (they return 0) and
 * check nothing that only the device can know: keys, ranges, limits of the queue. */
#ifndef UF_FABRIC_EFA_WIRE_H
#define UF_FABRIC_EFA_WIRE_H

#include "base/shared.h"

enum {
    UF_EFA_OP_SEND = 0,
    UF_EFA_OP_READ = 1,
    UF_EFA_OP_WRITE = 2,

    UF_EFA_WQE_WORDS = 8,   /* a 64-byte entry */
    UF_EFA_WIDE_WORDS = 16, /* a 128-byte entry: for RDMA writes with inline data and sends over 32 bytes */
    UF_EFA_INLINE_BYTES = 32,
    UF_EFA_WIDE_INLINE_BYTES = 80,
    UF_EFA_SEND_SGES = 2,
    UF_EFA_MTU = 8928, /* payload of a packet, and so of a send */

    UF_EFA_CQE_WORDS = 4,       /* the 32-byte entry; the 16-byte one is its first half */
    UF_EFA_AH_UNKNOWN = 0xffff, /* in a receive completion: this device has no handle for the sender */
};

/* A local or remote key's low 24 bits are the key, the rest of a local key must be zero. */
#define UF_EFA_LKEY_MAX 0xffffffu

/* Word 0: req_id 15:0, ctrl1 23:16, ctrl2 31:24, destination QP 47:32, length 63:48. */
enum {
    UF_EFA_W0_OP_SHIFT = 16,
    UF_EFA_W0_IMM_SHIFT = 20,
    UF_EFA_W0_INLINE_SHIFT = 21,
    UF_EFA_W0_EXTENSION_SHIFT = 22, /* must be 0 */
    UF_EFA_W0_META_SHIFT = 23,      /* must be 1 */
    UF_EFA_W0_PHASE_SHIFT = 24,
    UF_EFA_W0_FIRST_SHIFT = 26, /* must be 1, as LAST */
    UF_EFA_W0_LAST_SHIFT = 27,
    UF_EFA_W0_COMPLETION_SHIFT = 28, /* wants a completion for success: every driver sets it, and so do we [C] */
    UF_EFA_W0_QPN_SHIFT = 32,
    UF_EFA_W0_LENGTH_SHIFT = 48,
    UF_EFA_W1_AH_SHIFT = 32,
    UF_EFA_W1_HINT_SHIFT = 48, /* bit 0 of the hints: sensitive to packets a second in bursts */
};

typedef struct uf_efa_sge {
    uint64_t addr;
    uint32_t bytes;
    uint32_t lkey;
} uf_efa_sge;

/* Where a work request goes and how it is named in its completion. */
typedef struct uf_efa_to {
    uint64_t id; /* only the low 16 bits come back unless the device has 64-bit request ids */
    uint32_t qkey;
    uint16_t qpn;
    uint16_t ah;
    uint8_t silent; /* no completion for success (the library never asks for it [C]) */
    uint8_t burst;  /* the processing hint */
} uf_efa_to;

/* An entry in the making. Its phase is 0: the ring sets it, since it depends on the slot. */
typedef struct uf_efa_wqe {
    uint64_t w[UF_EFA_WIDE_WORDS];
    uint32_t words; /* 8 or 16 */
} uf_efa_wqe;

UF_SHARED_FN void uf_efa_wqe_meta(uf_efa_wqe *e, const uf_efa_to *to, uint32_t op, uint32_t length)
{
    e->w[0] = (to->id & 0xffff) | (uint64_t)op << UF_EFA_W0_OP_SHIFT | (uint64_t)1 << UF_EFA_W0_META_SHIFT |
              (uint64_t)1 << UF_EFA_W0_FIRST_SHIFT | (uint64_t)1 << UF_EFA_W0_LAST_SHIFT |
              (uint64_t)(to->silent ? 0 : 1) << UF_EFA_W0_COMPLETION_SHIFT | (uint64_t)to->qpn << UF_EFA_W0_QPN_SHIFT |
              (uint64_t)length << UF_EFA_W0_LENGTH_SHIFT;
    e->w[1] = (uint64_t)to->ah << UF_EFA_W1_AH_SHIFT | (uint64_t)(to->burst ? 1 : 0) << UF_EFA_W1_HINT_SHIFT;
    e->w[2] = to->qkey;
    e->w[3] = to->id & ~(uint64_t)0xffff;
}

UF_SHARED_FN void uf_efa_wqe_imm(uf_efa_wqe *e, uint32_t imm)
{
    e->w[0] |= (uint64_t)1 << UF_EFA_W0_IMM_SHIFT;
    e->w[1] |= imm;
}

UF_SHARED_FN uint64_t uf_efa_word(uint32_t low, uint32_t high)
{
    return low | (uint64_t)high << 32;
}

/* The inline bytes into whole words, zero-filled, from word `first` to the end of the entry. */
UF_SHARED_FN void uf_efa_wqe_inline(uf_efa_wqe *e, uint32_t first, const void *bytes, uint32_t n)
{
    const uint8_t *b = (const uint8_t *)bytes;
    for (uint32_t i = first; i < e->words; i++) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < 8 && (i - first) * 8 + j < n; j++)
            word |= (uint64_t)b[(i - first) * 8 + j] << (8 * j);
        e->w[i] = word;
    }
}

UF_SHARED_FN void uf_efa_wqe_blank(uf_efa_wqe *e, uint32_t words)
{
    e->words = words;
    for (uint32_t i = 4; i < words; i++)
        e->w[i] = 0;
}

/* An RDMA write (op WRITE) or read (op READ) of local->bytes between `local` and `remote`, in an entry of 8 or 16 words. A
 * zero-length one still names a valid lkey [C]. 0 if the op, the words or the local key is none. */
UF_SHARED_FN int uf_efa_encode_rdma(uf_efa_wqe *e, uint32_t words, uint32_t op, const uf_efa_to *to, uint64_t remote,
                                    uint32_t rkey, const uf_efa_sge *local)
{
    if ((op != UF_EFA_OP_WRITE && op != UF_EFA_OP_READ) || local->lkey > UF_EFA_LKEY_MAX ||
        (words != UF_EFA_WQE_WORDS && words != UF_EFA_WIDE_WORDS))
        return 0;
    uf_efa_wqe_blank(e, words);
    uf_efa_wqe_meta(e, to, op, 1);
    e->w[4] = uf_efa_word(local->bytes, rkey);
    e->w[5] = remote;
    e->w[6] = uf_efa_word(local->bytes, local->lkey);
    e->w[7] = local->addr;
    return 1;
}

/* The same write with an immediate: the target gets a completion that carries it. */
UF_SHARED_FN int uf_efa_encode_write_imm(uf_efa_wqe *e, uint32_t words, const uf_efa_to *to, uint64_t remote, uint32_t rkey,
                                         const uf_efa_sge *local, uint32_t imm)
{
    if (!uf_efa_encode_rdma(e, words, UF_EFA_OP_WRITE, to, remote, rkey, local))
        return 0;
    uf_efa_wqe_imm(e, imm);
    return 1;
}

/* An RDMA write whose at most 80 bytes travel in the (always wide) entry. uf_efa_wqe_imm may add an immediate. */
UF_SHARED_FN int uf_efa_encode_write_inline(uf_efa_wqe *e, const uf_efa_to *to, uint64_t remote, uint32_t rkey, const void *bytes,
                                            uint32_t n)
{
    if (n > UF_EFA_WIDE_INLINE_BYTES)
        return 0;
    uf_efa_wqe_blank(e, UF_EFA_WIDE_WORDS);
    uf_efa_wqe_meta(e, to, UF_EFA_OP_WRITE, n);
    e->w[0] |= (uint64_t)1 << UF_EFA_W0_INLINE_SHIFT;
    e->w[4] = uf_efa_word(n, rkey);
    e->w[5] = remote;
    uf_efa_wqe_inline(e, 6, bytes, n);
    return 1;
}

/* A send from 1 or 2 pieces of memory. */
UF_SHARED_FN int uf_efa_encode_send(uf_efa_wqe *e, uint32_t words, const uf_efa_to *to, const uf_efa_sge *sges, uint32_t n)
{
    if (n < 1 || n > UF_EFA_SEND_SGES || (words != UF_EFA_WQE_WORDS && words != UF_EFA_WIDE_WORDS))
        return 0;
    uf_efa_wqe_blank(e, words);
    uf_efa_wqe_meta(e, to, UF_EFA_OP_SEND, n);
    for (uint32_t i = 0; i < n; i++) {
        if (sges[i].lkey > UF_EFA_LKEY_MAX)
            return 0;
        e->w[4 + 2 * i] = uf_efa_word(sges[i].bytes, sges[i].lkey);
        e->w[5 + 2 * i] = sges[i].addr;
    }
    return 1;
}

/* A send whose bytes travel in the entry: at most 32 of them in 8 words, 80 in 16 (the rest of the wide entry is unused). */
UF_SHARED_FN int uf_efa_encode_send_inline(uf_efa_wqe *e, uint32_t words, const uf_efa_to *to, const void *bytes, uint32_t n)
{
    if (words != UF_EFA_WQE_WORDS && words != UF_EFA_WIDE_WORDS)
        return 0;
    if (n > (words == UF_EFA_WQE_WORDS ? UF_EFA_INLINE_BYTES : UF_EFA_WIDE_INLINE_BYTES))
        return 0;
    uf_efa_wqe_blank(e, words);
    uf_efa_wqe_meta(e, to, UF_EFA_OP_SEND, n);
    e->w[0] |= (uint64_t)1 << UF_EFA_W0_INLINE_SHIFT;
    uf_efa_wqe_inline(e, 4, bytes, n);
    return 1;
}

/* One receive descriptor (16 bytes, no phase). A receive of several pieces is several descriptors: `first` and `last` mark
 * its ends. `bytes` is 16 bits on the wire. 0: the key or the length does not fit. */
UF_SHARED_FN int uf_efa_encode_rx(uint64_t w[2], uint16_t id, const uf_efa_sge *sge, int first, int last)
{
    if (sge->lkey > UF_EFA_LKEY_MAX || sge->bytes > 0xffff)
        return 0;
    w[0] = sge->addr;
    w[1] = id | (uint64_t)sge->bytes << 16 | (uint64_t)sge->lkey << 32 | (uint64_t)(first ? 1 : 0) << 62 |
           (uint64_t)(last ? 1 : 0) << 63;
    return 1;
}

/* Word 0 of a completion: req_id 15:0, status 23:16, flags 31:24, local QP 47:32. */
enum {
    UF_EFA_CQE_STATUS_SHIFT = 16,
    UF_EFA_CQE_PHASE_SHIFT = 24,
    UF_EFA_CQE_QUEUE_SHIFT = 25, /* 2 bits: 1 send queue, 2 receive queue */
    UF_EFA_CQE_IMM_SHIFT = 27,
    UF_EFA_CQE_OP_SHIFT = 28, /* 3 bits */
    UF_EFA_CQE_UNSOLICITED_SHIFT = 31,
    UF_EFA_CQE_QPN_SHIFT = 32,
    UF_EFA_QUEUE_SEND = 1,
    UF_EFA_QUEUE_RECV = 2,
};

typedef struct uf_efa_cqe {
    uint64_t id;    /* send: 64 bits if the device has them, else 16. Receive: 16, none if unsolicited */
    uint32_t bytes; /* receive only */
    uint32_t imm;
    uint16_t qpn;    /* ours */
    uint16_t ah;     /* receive: our handle of the sender, UF_EFA_AH_UNKNOWN if there is none */
    uint16_t source; /* receive: the sender's QP */
    uint8_t status;  /* uf_efa_status */
    uint8_t queue;   /* UF_EFA_QUEUE_* */
    uint8_t op;
    uint8_t has_imm;
    uint8_t unsolicited;
    uint8_t phase;
} uf_efa_cqe;

/* Splits an entry of 2 words (wide 0) or 4 (wide 1). Anything decodes: a queue that is neither is the caller's to refuse. */
UF_SHARED_FN void uf_efa_decode_cqe(uf_efa_cqe *c, const uint64_t *w, int wide)
{
    c->status = (uint8_t)(w[0] >> UF_EFA_CQE_STATUS_SHIFT);
    c->phase = (uint8_t)(w[0] >> UF_EFA_CQE_PHASE_SHIFT & 1);
    c->queue = (uint8_t)(w[0] >> UF_EFA_CQE_QUEUE_SHIFT & 3);
    c->op = (uint8_t)(w[0] >> UF_EFA_CQE_OP_SHIFT & 7);
    c->qpn = (uint16_t)(w[0] >> UF_EFA_CQE_QPN_SHIFT);
    if (c->queue == UF_EFA_QUEUE_RECV) {
        c->id = w[0] & 0xffff;
        c->has_imm = (uint8_t)(w[0] >> UF_EFA_CQE_IMM_SHIFT & 1);
        c->unsolicited = (uint8_t)(w[0] >> UF_EFA_CQE_UNSOLICITED_SHIFT & 1);
        c->bytes = (uint32_t)(w[0] >> 48);
        if (wide && c->has_imm && c->op == UF_EFA_OP_WRITE && (w[1] & 0xffff) != UF_EFA_AH_UNKNOWN)
            c->bytes |= (uint32_t)(w[2] & 0xffff) << 16; /* with an unknown handle these bytes are the sender's GID */
        c->ah = (uint16_t)w[1];
        c->source = (uint16_t)(w[1] >> 16);
        c->imm = (uint32_t)(w[1] >> 32);
    } else {
        c->id = (w[0] & 0xffff) | w[0] >> 48 << 16 | w[1] << 32;
        c->has_imm = 0;
        c->unsolicited = 0;
        c->bytes = 0;
        c->ah = 0;
        c->source = 0;
        c->imm = 0;
    }
}

/* The entry of a finished send-queue work request, as the device writes it (w[2] and w[3] are zero). */
UF_SHARED_FN void uf_efa_encode_tx_cqe(uint64_t w[4], const uf_efa_cqe *c)
{
    w[0] = (c->id & 0xffff) | (uint64_t)c->status << UF_EFA_CQE_STATUS_SHIFT |
           (uint64_t)(c->phase & 1) << UF_EFA_CQE_PHASE_SHIFT | (uint64_t)UF_EFA_QUEUE_SEND << UF_EFA_CQE_QUEUE_SHIFT |
           (uint64_t)(c->op & 7) << UF_EFA_CQE_OP_SHIFT | (uint64_t)c->qpn << UF_EFA_CQE_QPN_SHIFT | (c->id >> 16 & 0xffff) << 48;
    w[1] = c->id >> 32;
    w[2] = 0;
    w[3] = 0;
}

/* The entry of an arrival. */
UF_SHARED_FN void uf_efa_encode_rx_cqe(uint64_t w[4], const uf_efa_cqe *c)
{
    w[0] = (c->id & 0xffff) | (uint64_t)c->status << UF_EFA_CQE_STATUS_SHIFT |
           (uint64_t)(c->phase & 1) << UF_EFA_CQE_PHASE_SHIFT | (uint64_t)UF_EFA_QUEUE_RECV << UF_EFA_CQE_QUEUE_SHIFT |
           (uint64_t)(c->has_imm & 1) << UF_EFA_CQE_IMM_SHIFT | (uint64_t)(c->op & 7) << UF_EFA_CQE_OP_SHIFT |
           (uint64_t)(c->unsolicited & 1) << UF_EFA_CQE_UNSOLICITED_SHIFT | (uint64_t)c->qpn << UF_EFA_CQE_QPN_SHIFT |
           (uint64_t)(c->bytes & 0xffff) << 48;
    w[1] = c->ah | (uint64_t)c->source << 16 | (uint64_t)c->imm << 32;
    w[2] = c->op == UF_EFA_OP_WRITE ? c->bytes >> 16 : 0;
    w[3] = 0;
}

/* How host code stores to the device instead of plainly, or NULL members. The model gives this to see what a memory word does
 * not tell: each doorbell value, and what a write-combining buffer still holds. Kernels always store plainly. */
typedef struct uf_efa_mmio {
    void (*store64)(void *arg, uint64_t *address, uint64_t value); /* a word of an SQ ring */
    void (*flush)(void *arg);                                      /* all words above, before the doorbell below */
    void (*store32)(void *arg, uint32_t *address, uint32_t value); /* a doorbell */
    void *arg;
} uf_efa_mmio;

#endif
