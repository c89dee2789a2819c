/* codec.h - what the ordering protocol puts on the wire: 32-bit immediates and 32-byte messages (docs/ordering.md, "Wire formats").
 *
 * Pure functions over plain data, nothing else: no state, no checks that need state. Every field has a static bound here and a
 * run-time bound in uf_order_check (order.c); a value that does not fit is never encoded, since the callers' bounds are those.
 * Decoders accept any bytes: they mask, and leave it to the receiver to refuse what no correct peer sends.
 * All integers travel little-endian. */
#ifndef UF_ORDER_CODEC_H
#define UF_ORDER_CODEC_H

#include "base/wr.h"
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---------------------------------------------------------------- immediates
 *          31-30   29        28-0
 * kind 0   0       receipt   signal index 20 | operand 9
 * kind 1   1       receipt   lane id 12 | sequence 16 | spare 1
 * kind 2   2       type 2 (29-28) | bit 1 (27) | value 27
 * kind 3   reserved */
enum { UF_IMM_ADD = 0, UF_IMM_SEQUENCE = 1, UF_IMM_CONTROL = 2, UF_IMM_RESERVED = 3 };

enum {
    UF_IMM_KIND_SHIFT = 30,
    UF_IMM_BIT_SHIFT = 29,
    UF_IMM_OPERAND_BITS = 9,
    UF_IMM_INDEX_BITS = 20,
    UF_IMM_SEQUENCE_BITS = 16,
    UF_IMM_LANE_BITS = 12,
    UF_IMM_TYPE_SHIFT = 28,
    UF_IMM_CONTROL_BIT_SHIFT = 27,
    UF_IMM_VALUE_BITS = 27,
};

#define UF_IMM_OPERAND_MAX ((1u << UF_IMM_OPERAND_BITS) - 1)
#define UF_IMM_INDEX_MAX   ((1u << UF_IMM_INDEX_BITS) - 1)
#define UF_IMM_VALUE_MASK  ((1u << UF_IMM_VALUE_BITS) - 1)
#define UF_ORDER_LANE_IDS  (1u << UF_IMM_LANE_BITS)

/* Largest values that uf_order_check lets into a configuration. */
#define UF_ORDER_MAX_WINDOW   (1u << 15)
#define UF_ORDER_MAX_CREDITS  (1u << 15)
#define UF_ORDER_MAX_MESSAGES (1u << 12)
#define UF_ORDER_MAX_TX_DEPTH (1u << 16)
#define UF_ORDER_MAX_QUEUE    (1u << 20)
#define UF_ORDER_MAX_LANES    (1u << 20)
#define UF_ORDER_MAX_FETCHES  (1u << 12)
#define UF_ORDER_MAX_FLOWS    (1u << 20)

static_assert(2 + 1 + UF_IMM_INDEX_BITS + UF_IMM_OPERAND_BITS == 32, "kind 0 fills 32 bits");
static_assert(2 + 1 + UF_IMM_LANE_BITS + UF_IMM_SEQUENCE_BITS + 1 == 32, "kind 1 fills 32 bits");
static_assert(2 + 2 + 1 + UF_IMM_VALUE_BITS == 32, "kind 2 fills 32 bits");
/* A window of at most half the sequence space tells ahead from behind. */
static_assert(2 * UF_ORDER_MAX_WINDOW <= 1u << UF_IMM_SEQUENCE_BITS, "sequence field too narrow for the window");
/* Cumulative values of control differ by at most what is in flight, so half their field tells new from stale. */
static_assert(4 * (UF_ORDER_MAX_CREDITS + UF_ORDER_MAX_MESSAGES) <= 1u << UF_IMM_VALUE_BITS, "control value too narrow");

/* Controls. Their values are cumulative, so that one may replace another. */
enum {
    UF_CONTROL_CREDITS = 0,  /* immediates of yours that I have consumed */
    UF_CONTROL_MESSAGES = 1, /* messages of yours that I have applied */
    UF_CONTROL_QUIET = 2,   /* with receipt bit `bit` I have sent `value` immediates and messages: tell me when all are applied */
    UF_CONTROL_RECEIPT = 3, /* all `value` of yours with receipt bit `bit` are applied */
};

static inline uint32_t uf_imm_add(uint32_t bit, uint32_t index, uint32_t operand)
{
    return bit << UF_IMM_BIT_SHIFT | index << UF_IMM_OPERAND_BITS | operand;
}

static inline uint32_t uf_imm_sequence(uint32_t bit, uint32_t lane, uint32_t sequence)
{
    return (uint32_t)UF_IMM_SEQUENCE << UF_IMM_KIND_SHIFT | bit << UF_IMM_BIT_SHIFT | lane << (UF_IMM_SEQUENCE_BITS + 1) |
           (sequence & 0xffffu) << 1;
}

static inline uint32_t uf_imm_control(uint32_t type, uint32_t bit, uint32_t value)
{
    return (uint32_t)UF_IMM_CONTROL << UF_IMM_KIND_SHIFT | type << UF_IMM_TYPE_SHIFT | bit << UF_IMM_CONTROL_BIT_SHIFT |
           (value & UF_IMM_VALUE_MASK);
}

static inline uint32_t uf_imm_kind(uint32_t imm)
{
    return imm >> UF_IMM_KIND_SHIFT;
}

/* Receipt bit of kinds 0 and 1. */
static inline uint32_t uf_imm_bit(uint32_t imm)
{
    return imm >> UF_IMM_BIT_SHIFT & 1;
}

static inline uint32_t uf_imm_index(uint32_t imm)
{
    return imm >> UF_IMM_OPERAND_BITS & UF_IMM_INDEX_MAX;
}

static inline uint32_t uf_imm_operand(uint32_t imm)
{
    return imm & UF_IMM_OPERAND_MAX;
}

static inline uint32_t uf_imm_lane(uint32_t imm)
{
    return imm >> (UF_IMM_SEQUENCE_BITS + 1) & (UF_ORDER_LANE_IDS - 1);
}

static inline uint16_t uf_imm_sequence_of(uint32_t imm)
{
    return (uint16_t)(imm >> 1);
}

static inline uint32_t uf_imm_spare(uint32_t imm)
{
    return imm & 1;
}

static inline uint32_t uf_imm_type(uint32_t imm)
{
    return imm >> UF_IMM_TYPE_SHIFT & 3;
}

static inline uint32_t uf_imm_control_bit(uint32_t imm)
{
    return imm >> UF_IMM_CONTROL_BIT_SHIFT & 1;
}

static inline uint32_t uf_imm_value(uint32_t imm)
{
    return imm & UF_IMM_VALUE_MASK;
}

/* How far `to` is ahead of `from` in a field of `bits` bits. */
static inline uint32_t uf_field_distance(uint32_t from, uint32_t to, uint32_t bits)
{
    return (to - from) & ((1u << bits) - 1);
}

/* ---------------------------------------------------------------- messages */

/* Message types. The first group is counted and paid from message credits; but for LANE_OPEN it has a sequence. The second is neither:
 * an answer has the slot that its request reserved, counts and controls are bounded by construction (credit.c). */
enum {
    UF_MSG_SIGNAL = 1,
    UF_MSG_ATOMIC = 2,
    UF_MSG_LANE_OPEN = 3,
    UF_MSG_LANE_CLOSE = 4,
    UF_MSG_REPLY = 8,
    UF_MSG_LANE_GRANT = 9,
    UF_MSG_COUNT_ASK = 10,
    UF_MSG_COUNT_TELL = 11,
    UF_MSG_CONTROL = 12,
};

enum {
    UF_MSG_TYPE_MASK = 0x7f,
    UF_MSG_BIT_SHIFT = 7,  /* of `type`: the receipt bit */
    UF_MSG_OP_MASK = 0x0f, /* of `op`: uf_atomic_op */
    UF_MSG_WIDTH4 = 0x10,  /* the word has 4 bytes, else 8 */
    UF_MSG_INDEXED = 0x20, /* `address` is a signal index */
    UF_MSG_STRONG = 0x40,  /* applied when the cursor has passed it */
    UF_MSG_OP_SPARE = 0x80,
};

/*               lane    seq   aux     address   operand         extra
 * SIGNAL        id      own   count   word      operand         first sequence of its range
 * ATOMIC        id      own   slot    word      operand         compare
 * LANE_OPEN     -       use   slot    open id   W               first sequence
 * LANE_CLOSE    id      own   -       open id   -               -
 * REPLY         of the request  slot  -         old value       -
 * LANE_GRANT    id      -     slot    open id   lanes in use    lanes there are; op: 0 granted, 1 refused
 * COUNT_ASK     -       -     -       -         rail            -
 * COUNT_TELL    -       -     -       -         rail            kind 0 immediates consumed
 * CONTROL       -       -     -       -         the immediate   -
 * Use: how often its slot was used for such a request. An open id names one opening of one lane for ever: local lane number | serial << 32. */
typedef struct uf_order_wire {
    uint8_t type, op;
    uint16_t lane, seq, aux;
    uint64_t address, operand, extra;
} uf_order_wire;

static_assert(sizeof(uf_order_wire) == UF_MESSAGE_BYTES, "a message has 32 bytes and no padding");
static_assert(UF_ORDER_MAX_WINDOW <= UINT16_MAX, "count fits aux");
static_assert(UF_ORDER_MAX_FETCHES <= UINT16_MAX, "slot fits aux");

static inline uint16_t uf_le16(uint16_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap16(v);
#else
    return v;
#endif
}

static inline uint64_t uf_le64(uint64_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(v);
#else
    return v;
#endif
}

static inline void uf_wire_swap(uf_order_wire *w)
{
    w->lane = uf_le16(w->lane);
    w->seq = uf_le16(w->seq);
    w->aux = uf_le16(w->aux);
    w->address = uf_le64(w->address);
    w->operand = uf_le64(w->operand);
    w->extra = uf_le64(w->extra);
}

static inline void uf_wire_encode(const uf_order_wire *wire, unsigned char bytes[UF_MESSAGE_BYTES])
{
    uf_order_wire w = *wire;
    uf_wire_swap(&w);
    memcpy(bytes, &w, sizeof w);
}

static inline void uf_wire_decode(const unsigned char bytes[UF_MESSAGE_BYTES], uf_order_wire *wire)
{
    memcpy(wire, bytes, sizeof *wire);
    uf_wire_swap(wire);
}

static inline uint32_t uf_wire_type(const uf_order_wire *w)
{
    return w->type & UF_MSG_TYPE_MASK;
}

static inline uint32_t uf_wire_bit(const uf_order_wire *w)
{
    return w->type >> UF_MSG_BIT_SHIFT;
}

#endif
