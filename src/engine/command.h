/* command.h - device command queues: a ring of 64-byte commands from kernels, or CPU threads, to a progress thread.
 *
 * Three pieces of memory, each where it is cheapest. The slots lie with the consumer (pinned host memory): a producer only stores
 * there, and never reads. What producers share among themselves (uf_command_local) lies with them. What the consumer tells
 * them (uf_command_report, results) lies where the waiter reads it locally if the machine can do that, and in host memory else.
 *
 * A command is eight words, and each word carries the parity of its lap in its top bit. So a slot is complete when all eight bits are
 * right, whatever order the stores arrive in and however they are cut: no fence between them, no doorbell, no trust in a
 * 16-byte store being one. Only the payload needs a fence before the command: uf_command_payload_fence, once for any number of them.
 *
 * A producer takes slots only when there is room (one compare and exchange on its own memory), so it never waits with a slot in
 * hand. If it loses its processor between taking and writing, the commands behind it in THIS ring wait for it and nothing else does:
 * other rings go on, the consumer looks elsewhere, and no thread of the library spins on it.
 * Positions are 63-bit counts of commands since creation; they wrap. C11, C++17, nvcc and NVRTC accept this header. */
#ifndef UF_ENGINE_COMMAND_H
#define UF_ENGINE_COMMAND_H

#include "../base/shared.h"
#if !defined(__CUDACC_RTC__)
#include <time.h>
#endif

#if defined(__cplusplus)
#define UF_COMMAND_STATIC_ASSERT(condition, why) static_assert(condition, why)
#else
#define UF_COMMAND_STATIC_ASSERT(condition, why) _Static_assert(condition, why)
#endif

#define UF_COMMAND_ABI 1u

/* ---- One command ---- */

enum {
    UF_COMMAND_NOP = 0,
    UF_COMMAND_PUT = 1,
    UF_COMMAND_PUT_SIGNAL = 2,
    UF_COMMAND_SIGNAL = 3,
    UF_COMMAND_ATOMIC = 4,
    UF_COMMAND_GET = 5,
    UF_COMMAND_FENCE = 6, /* later commands of the context after earlier ones, per peer */
    UF_COMMAND_FLUSH = 7, /* report.local passes this position when the sources of all before it may be reused */
    UF_COMMAND_QUIET = 8, /* report.remote passes it when all before it are complete at their targets */
    UF_COMMAND_OPS = 9
};

enum {
    UF_COMMAND_STRONG = 1,  /* as UF_STRONG */
    UF_COMMAND_SETTLED = 2, /* as UF_SETTLED */
    UF_COMMAND_INDEXED = 4, /* `word` is the index of a signal word, not an address */
    UF_COMMAND_NARROW = 8,  /* an atomic on 4 bytes; else 8 */
    UF_COMMAND_FLAGS = 15
};

typedef struct uf_command {
    uint32_t op;     /* UF_COMMAND_* */
    uint32_t atomic; /* uf_atomic_op: what happens to the word */
    uint32_t flags;
    uint32_t pe;
    uint32_t result;  /* place for a fetched value, see uf_command_result */
    uint64_t bytes;   /* of a put or get */
    uint64_t local;   /* source of a put, target of a get */
    uint64_t remote;  /* symmetric: target of a put, source of a get */
    uint64_t word;    /* symmetric: the signal word or the word of an atomic */
    uint64_t operand; /* of signal and atomic */
    uint64_t compare; /* of a compare and swap */
} uf_command;

/* The words. Bit 63 of each is the lap's.
 *   0   op 4 | atomic 4 | flags 4 | pe 24 | result 16 | top bit of operand 1 | of compare 1 | abi 3 | zero 6
 *   1   bytes 48 | zero 15        4   word 63
 *   2   local 63                  5   operand 63
 *   3   remote 63                 6   compare 63
 *   7   position 63: a producer that is laps away, or wrote where it had no slot, is an error and not an operation */
enum {
    UF_COMMAND_WORDS = 8,
    UF_COMMAND_OP_BITS = 4,
    UF_COMMAND_ATOMIC_BITS = 4,
    UF_COMMAND_FLAG_BITS = 4,
    UF_COMMAND_PE_BITS = 24,
    UF_COMMAND_RESULT_BITS = 16,
    UF_COMMAND_ABI_BITS = 3,
    UF_COMMAND_BYTES_BITS = 48,
    UF_COMMAND_ATOMIC_SHIFT = UF_COMMAND_OP_BITS,
    UF_COMMAND_FLAG_SHIFT = UF_COMMAND_ATOMIC_SHIFT + UF_COMMAND_ATOMIC_BITS,
    UF_COMMAND_PE_SHIFT = UF_COMMAND_FLAG_SHIFT + UF_COMMAND_FLAG_BITS,
    UF_COMMAND_RESULT_SHIFT = UF_COMMAND_PE_SHIFT + UF_COMMAND_PE_BITS,
    UF_COMMAND_OPERAND_SHIFT = UF_COMMAND_RESULT_SHIFT + UF_COMMAND_RESULT_BITS,
    UF_COMMAND_COMPARE_SHIFT = UF_COMMAND_OPERAND_SHIFT + 1,
    UF_COMMAND_ABI_SHIFT = UF_COMMAND_COMPARE_SHIFT + 1,
    UF_COMMAND_USED_BITS = UF_COMMAND_ABI_SHIFT + UF_COMMAND_ABI_BITS,
    UF_COMMAND_LAP_SHIFT = 63,
    UF_COMMAND_MIN_SHIFT = 6, /* a ring holds 64 commands at least: twice what a warp writes in one go */
    UF_COMMAND_MAX_SHIFT = 20
};

#define UF_COMMAND_MASK(bits)    (((uint64_t)1 << (bits)) - 1)
#define UF_COMMAND_POSITION_MASK UF_COMMAND_MASK(63)
#define UF_COMMAND_LAP           ((uint64_t)1 << UF_COMMAND_LAP_SHIFT)

UF_COMMAND_STATIC_ASSERT(UF_COMMAND_USED_BITS <= 63, "word 0 has room for its fields and the lap");
UF_COMMAND_STATIC_ASSERT(UF_COMMAND_OPS <= 1 << UF_COMMAND_OP_BITS, "every op fits its field");
UF_COMMAND_STATIC_ASSERT(UF_COMMAND_FLAGS < 1 << UF_COMMAND_FLAG_BITS, "every flag fits its field");
UF_COMMAND_STATIC_ASSERT(UF_COMMAND_ABI < 1 << UF_COMMAND_ABI_BITS, "the abi number fits its field");

/* What does not fit, or what a decoded command has wrong; 0: nothing. */
enum {
    UF_COMMAND_BAD_OP = 1,
    UF_COMMAND_BAD_ATOMIC = 2,
    UF_COMMAND_BAD_FLAGS = 3,
    UF_COMMAND_BAD_PE = 4,
    UF_COMMAND_BAD_RESULT = 5,
    UF_COMMAND_BAD_BYTES = 6,
    UF_COMMAND_BAD_LOCAL = 7,
    UF_COMMAND_BAD_REMOTE = 8,
    UF_COMMAND_BAD_WORD = 9,
    UF_COMMAND_BAD_POSITION = 10, /* of a decoded command only, as the next two */
    UF_COMMAND_BAD_ABI = 11,
    UF_COMMAND_BAD_SPARE = 12
};

/* The first field that its bits cannot hold. Operand and compare always fit. */
UF_SHARED_FN int uf_command_misfit(const uf_command *c)
{
    if (c->op >= UF_COMMAND_OPS)
        return UF_COMMAND_BAD_OP;
    if (c->atomic >> UF_COMMAND_ATOMIC_BITS)
        return UF_COMMAND_BAD_ATOMIC;
    if (c->flags & ~(uint32_t)UF_COMMAND_FLAGS)
        return UF_COMMAND_BAD_FLAGS;
    if (c->pe >> UF_COMMAND_PE_BITS)
        return UF_COMMAND_BAD_PE;
    if (c->result >> UF_COMMAND_RESULT_BITS)
        return UF_COMMAND_BAD_RESULT;
    if (c->bytes >> UF_COMMAND_BYTES_BITS)
        return UF_COMMAND_BAD_BYTES;
    if (c->local >> UF_COMMAND_LAP_SHIFT)
        return UF_COMMAND_BAD_LOCAL;
    if (c->remote >> UF_COMMAND_LAP_SHIFT)
        return UF_COMMAND_BAD_REMOTE;
    return c->word >> UF_COMMAND_LAP_SHIFT ? UF_COMMAND_BAD_WORD : 0;
}

/* The lap's bit for the words of `position` in a ring of 2^shift slots. */
UF_SHARED_FN uint64_t uf_command_lap(uint64_t position, uint32_t shift)
{
    return (~position >> shift & 1) << UF_COMMAND_LAP_SHIFT;
}

/* For a command of which uf_command_misfit finds nothing. */
UF_SHARED_FN void uf_command_encode(const uf_command *c, uint64_t position, uint32_t shift, uint64_t words[UF_COMMAND_WORDS])
{
    uint64_t lap = uf_command_lap(position, shift);
    words[0] = lap | c->op | (uint64_t)c->atomic << UF_COMMAND_ATOMIC_SHIFT | (uint64_t)c->flags << UF_COMMAND_FLAG_SHIFT |
               (uint64_t)c->pe << UF_COMMAND_PE_SHIFT | (uint64_t)c->result << UF_COMMAND_RESULT_SHIFT |
               c->operand >> UF_COMMAND_LAP_SHIFT << UF_COMMAND_OPERAND_SHIFT |
               c->compare >> UF_COMMAND_LAP_SHIFT << UF_COMMAND_COMPARE_SHIFT | (uint64_t)UF_COMMAND_ABI << UF_COMMAND_ABI_SHIFT;
    words[1] = lap | c->bytes;
    words[2] = lap | c->local;
    words[3] = lap | c->remote;
    words[4] = lap | c->word;
    words[5] = lap | (c->operand & UF_COMMAND_POSITION_MASK);
    words[6] = lap | (c->compare & UF_COMMAND_POSITION_MASK);
    words[7] = lap | (position & UF_COMMAND_POSITION_MASK);
}

/* The other way, of words that uf_command_peek found complete: 0, or what is wrong with them. */
UF_SHARED_FN int uf_command_decode(const uint64_t words[UF_COMMAND_WORDS], uint64_t position, uf_command *c)
{
    uint64_t w = words[0] & UF_COMMAND_POSITION_MASK;
    c->op = (uint32_t)(w & UF_COMMAND_MASK(UF_COMMAND_OP_BITS));
    c->atomic = (uint32_t)(w >> UF_COMMAND_ATOMIC_SHIFT & UF_COMMAND_MASK(UF_COMMAND_ATOMIC_BITS));
    c->flags = (uint32_t)(w >> UF_COMMAND_FLAG_SHIFT & UF_COMMAND_MASK(UF_COMMAND_FLAG_BITS));
    c->pe = (uint32_t)(w >> UF_COMMAND_PE_SHIFT & UF_COMMAND_MASK(UF_COMMAND_PE_BITS));
    c->result = (uint32_t)(w >> UF_COMMAND_RESULT_SHIFT & UF_COMMAND_MASK(UF_COMMAND_RESULT_BITS));
    c->bytes = words[1] & UF_COMMAND_POSITION_MASK;
    c->local = words[2] & UF_COMMAND_POSITION_MASK;
    c->remote = words[3] & UF_COMMAND_POSITION_MASK;
    c->word = words[4] & UF_COMMAND_POSITION_MASK;
    c->operand = (words[5] & UF_COMMAND_POSITION_MASK) | (w >> UF_COMMAND_OPERAND_SHIFT & 1) << UF_COMMAND_LAP_SHIFT;
    c->compare = (words[6] & UF_COMMAND_POSITION_MASK) | (w >> UF_COMMAND_COMPARE_SHIFT & 1) << UF_COMMAND_LAP_SHIFT;
    if ((words[7] & UF_COMMAND_POSITION_MASK) != (position & UF_COMMAND_POSITION_MASK))
        return UF_COMMAND_BAD_POSITION;
    if ((w >> UF_COMMAND_ABI_SHIFT & UF_COMMAND_MASK(UF_COMMAND_ABI_BITS)) != UF_COMMAND_ABI)
        return UF_COMMAND_BAD_ABI;
    if (w >> UF_COMMAND_USED_BITS)
        return UF_COMMAND_BAD_SPARE;
    if (c->op >= UF_COMMAND_OPS)
        return UF_COMMAND_BAD_OP;
    return c->bytes >> UF_COMMAND_BYTES_BITS ? UF_COMMAND_BAD_BYTES : 0;
}

/* ---- The ring ---- */

/* Counters of the report: a position in 63 bits, and the top bit when there is something in `status`. So one load tells a waiter both. */
#define UF_COMMAND_TROUBLE UF_COMMAND_LAP

/* Written by the consumer alone. */
typedef struct uf_command_report {
    uint64_t consumed; /* slots before it may be written again */
    uint64_t local;    /* FLUSH commands before it are reached */
    uint64_t remote;   /* QUIET commands before it are reached */
    uint64_t status;   /* 0, or the first error: a negative UF_E* code. Every wait of the ring returns it */
    uint64_t position; /* of the command that it is about */
    uint64_t padding[3];
} uf_command_report;

/* A fetched value. `tag` names the command: 2 * position + 1, and is stored after the value. */
typedef struct uf_command_result {
    uint64_t value, tag;
} uf_command_result;

/* Written by producers alone; a line of its own. Both are read together, in one load where the machine has that. */
typedef struct uf_command_local {
    uint64_t consumed; /* what somebody last read in the report */
    uint64_t reserved; /* next free position */
    uint64_t padding[14];
} uf_command_local;

/* What a producer is given; it may be copied. Addresses are the producer's. */
typedef struct uf_command_ring {
    uint32_t abi, size; /* UF_COMMAND_ABI, sizeof(uf_command_ring) */
    uint32_t shift;     /* log2 of the slots */
    uint32_t n_results;
    uint64_t *slots;
    uf_command_local *local;
    uint64_t *claims; /* [n_results] who uses a result: 0 nobody, 2 a thread, a tag: a thread that gave up before the answer */
    const uf_command_report *report;
    const uf_command_result *results;
    uint64_t timeout_ns; /* of waits that are given 0 */
} uf_command_ring;

UF_COMMAND_STATIC_ASSERT(sizeof(uf_command_report) == 64, "the report is one line");
UF_COMMAND_STATIC_ASSERT(UF_COMMAND_WORDS * 8 == 64, "a command is one line");

/* The codes that waits return, beside those in `status`. */
#define UF_COMMAND_ETIMEDOUT (-4)
#define UF_COMMAND_ERANGE    (-10)

/* From `from` to `to`, both positions. */
UF_SHARED_FN uint64_t uf_command_distance(uint64_t from, uint64_t to)
{
    return (to - from) & UF_COMMAND_POSITION_MASK;
}

/* True if a counter of the report has passed `position`. */
UF_SHARED_FN int uf_command_passed(uint64_t counter, uint64_t position)
{
    return uf_command_distance(position + 1, counter) >> 62 == 0;
}

/* Memory of the producers' own: GPU scope is enough in a kernel, and needs no fence that waits for the bus. */
UF_SHARED_FN uint64_t uf_command_local_load(const uint64_t *p)
{
#if defined(__CUDA_ARCH__)
    unsigned long long v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
#else
    return uf_load_acquire64(p);
#endif
}

/* Acquires both counters. They are two loads, in any order: `reserved` may be the older one, and so behind `consumed`. */
UF_SHARED_FN void uf_command_local_counters(const uf_command_local *l, uint64_t *consumed, uint64_t *reserved)
{
#if defined(__CUDA_ARCH__)
    unsigned long long a, b;
    asm volatile("ld.acquire.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(l) : "memory");
    *consumed = a;
    *reserved = b;
#else
    *consumed = uf_load_acquire64(&l->consumed);
    *reserved = uf_load_relaxed64(&l->reserved);
#endif
}

/* True if *p was *expected and is now `wanted`; else *expected is what it was. Releases what the thread has read and written. */
UF_SHARED_FN int uf_command_local_exchange(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
#if defined(__CUDA_ARCH__)
    unsigned long long old;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"((unsigned long long)*expected), "l"((unsigned long long)wanted)
                 : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
#else
    return uf_compare_exchange64(p, expected, wanted);
#endif
}

/* The same with no order: the position is all that is wanted of it. */
UF_SHARED_FN int uf_command_local_take(uint64_t *p, uint64_t *expected, uint64_t wanted)
{
#if defined(__CUDA_ARCH__)
    unsigned long long old;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"((unsigned long long)*expected), "l"((unsigned long long)wanted)
                 : "memory");
    int same = old == *expected;
    *expected = old;
    return same;
#else
    return __atomic_compare_exchange_n(p, expected, wanted, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
#endif
}

/* ---- Producing ---- */

/* The payload that this thread wrote, or that others wrote before a barrier with it, before any command that this thread writes
 * afterwards: pairs with the acquire load in uf_command_peek, and then with the NIC that the consumer tells. System scope, since who
 * reads the payload is no GPU thread. On a CPU the release store in uf_command_write does it. */
UF_SHARED_FN void uf_command_payload_fence(void)
{
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/* Is there anything that must be visible before it? FENCE, FLUSH and QUIET concern commands, whose order is that of their positions. */
UF_SHARED_FN int uf_command_carries(const uf_command *c)
{
    return c->op >= UF_COMMAND_PUT && c->op <= UF_COMMAND_GET;
}

/* Takes over what the report says is consumed: 1 if that is beyond `used`. */
UF_SHARED_FN int uf_command_refresh(const uf_command_ring *r, uint64_t used)
{
    uint64_t known = uf_command_local_load(&r->local->consumed);
    /* Pairs with the release in the consumer's tell: it has read the slots before they are written again. */
    uint64_t now = uf_load_acquire64(&r->report->consumed) & UF_COMMAND_POSITION_MASK;
    while (uf_command_distance(known, now) - 1 < (uint64_t)1 << 62)
        if (uf_command_local_exchange(&r->local->consumed, &known, now)) /* pairs with the loads in uf_command_try_reserve */
            break;
    return uf_command_distance(used, now) - 1 < (uint64_t)1 << 62;
}

/* Takes `n` slots in a row: 1, and the first position; 0 and nothing has changed: no room as far as was seen. Any number of threads. */
UF_SHARED_FN int uf_command_try_reserve(const uf_command_ring *r, uint32_t n, uint64_t *position)
{
    uint64_t consumed, base;
    uf_command_local_counters(r->local, &consumed, &base); /* pairs with the exchange in uf_command_refresh */
    for (;;) {
        if (uf_command_distance(consumed, base) + n > (uint64_t)1 << r->shift) { /* full, or `base` is the older one */
            if (!uf_command_refresh(r, consumed))
                return 0;
            uf_command_local_counters(r->local, &consumed, &base);
        } else if (uf_command_local_take(&r->local->reserved, &base, (base + n) & UF_COMMAND_POSITION_MASK)) {
            *position = base;
            return 1;
        }
        /* Others were faster: `base` is where they are, and a `consumed` of before is on the safe side. */
    }
}

/* Two words in one store where the machine has that. Each is complete by itself, so nothing depends on it. */
UF_SHARED_FN void uf_command_store_pair(uint64_t *at, uint64_t first, uint64_t second)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"((unsigned long long)first),
                 "l"((unsigned long long)second)
                 : "memory");
#else
    uf_store_release64(at, first); /* releases the payload: see uf_command_payload_fence */
    uf_store_relaxed64(at + 1, second);
#endif
}

UF_SHARED_FN uint64_t *uf_command_slot(const uf_command_ring *r, uint64_t position)
{
    return r->slots + (position & UF_COMMAND_MASK(r->shift)) * UF_COMMAND_WORDS;
}

/* Writes the command of a position that this thread has taken. */
UF_SHARED_FN void uf_command_write(const uf_command_ring *r, uint64_t position, const uf_command *c)
{
    uint64_t words[UF_COMMAND_WORDS], *slot = uf_command_slot(r, position);
    uf_command_encode(c, position, r->shift, words);
    for (int i = 0; i < UF_COMMAND_WORDS; i += 2)
        uf_command_store_pair(slot + i, words[i], words[i + 1]);
}

/* ---- Waiting ---- */

UF_SHARED_FN uint64_t uf_command_now(void)
{
#if defined(__CUDA_ARCH__)
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
#elif defined(__CUDACC_RTC__)
    return 0;
#else
    struct timespec t;
#if defined(CLOCK_MONOTONIC)
    clock_gettime(CLOCK_MONOTONIC, &t);
#else
    timespec_get(&t, TIME_UTC); /* strict C11 has no other clock */
#endif
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

/* The ring's error, or 0. Pairs with the release that stored it: `position` is readable then. */
UF_SHARED_FN int uf_command_status(const uf_command_ring *r)
{
    return (int)(int32_t)uf_load_acquire64(&r->report->status);
}

/* Looks of a wait before it rests. Waits for room begin behind them: a full ring has no use for many eyes. */
enum { UF_COMMAND_EAGER = 16 };

/* Between two looks of a wait: 0 to look again, or why not. *deadline is 0 at first. A short wait neither reads a clock nor rests: its
 * look at memory across a bus takes long enough. */
UF_SHARED_FN int uf_command_wait_turn(const uf_command_ring *r, uint32_t turn, uint64_t timeout_ns, uint64_t *deadline)
{
    if (turn < UF_COMMAND_EAGER)
        return 0;
    if (turn % 64 == UF_COMMAND_EAGER) {
        uint64_t now = uf_command_now(), time = timeout_ns ? timeout_ns : r->timeout_ns;
        if (turn == UF_COMMAND_EAGER)
            *deadline = time > ~(uint64_t)0 - now ? ~(uint64_t)0 : now + time;
        else if (now >= *deadline)
            return UF_COMMAND_ETIMEDOUT;
    }
    uf_shared_pause(turn);
    return 0;
}

/* As uf_command_try_reserve, but waits for room: 0, or the ring's error, or UF_COMMAND_ETIMEDOUT, or UF_COMMAND_ERANGE for more slots than
 * the ring has. With an error nothing has been taken. timeout_ns 0: the ring's own. */
UF_SHARED_FN int uf_command_reserve(const uf_command_ring *r, uint32_t n, uint64_t timeout_ns, uint64_t *position)
{
    uint64_t deadline = 0;
    if (n == 0 || n > (uint32_t)1 << r->shift)
        return UF_COMMAND_ERANGE;
    for (uint32_t turn = UF_COMMAND_EAGER; !uf_command_try_reserve(r, n, position); turn++) {
        int rc = uf_command_status(r);
        if (rc == 0)
            rc = uf_command_wait_turn(r, turn, timeout_ns, &deadline);
        if (rc)
            return rc;
    }
    return 0;
}

/* Has `counter` (of the report: local or remote) passed `position`? 1, 0, or the ring's error, which comes first. */
UF_SHARED_FN int uf_command_test(const uf_command_ring *r, const uint64_t *counter, uint64_t position)
{
    uint64_t seen = uf_load_acquire64(counter); /* pairs with the consumer's release: what completed is here */
    if (seen & UF_COMMAND_TROUBLE)
        return uf_command_status(r);
    return uf_command_passed(seen, position);
}

UF_SHARED_FN int uf_command_wait(const uf_command_ring *r, const uint64_t *counter, uint64_t position, uint64_t timeout_ns)
{
    uint64_t deadline = 0;
    for (uint32_t turn = 0;; turn++) {
        int rc = uf_command_test(r, counter, position);
        if (rc)
            return rc > 0 ? 0 : rc;
        rc = uf_command_wait_turn(r, turn, timeout_ns, &deadline);
        if (rc)
            return rc;
    }
}

/* Takes a place for a fetched value, BEFORE a slot is taken: 1, or 0 if all are in use. `hint` spreads threads over them. */
UF_SHARED_FN int uf_command_claim(const uf_command_ring *r, uint32_t hint, uint32_t *result)
{
    for (uint32_t i = 0; i < r->n_results; i++) {
        uint32_t at = (hint + i) % r->n_results;
        uint64_t seen = uf_command_local_load(&r->claims[at]);
        /* Free, or given up by a thread whose answer has come since: no later one can be on its way. */
        if (seen == 0 || ((seen & 1) && uf_load_acquire64(&r->results[at].tag) == seen))
            if (uf_command_local_exchange(&r->claims[at], &seen, 2)) {
                *result = at;
                return 1;
            }
    }
    return 0;
}

/* Gives back a place whose command was not issued. */
UF_SHARED_FN void uf_command_unclaim(const uf_command_ring *r, uint32_t result)
{
    uint64_t taken = 2;
    uf_command_local_exchange(&r->claims[result], &taken, 0);
}

UF_SHARED_FN uint64_t uf_command_tag(uint64_t position)
{
    return position << 1 | 1;
}

/* Looks for the value of the fetch at `position`: 1 and *value, and the place is free again; or 0. */
UF_SHARED_FN int uf_command_fetch_test(const uf_command_ring *r, uint32_t result, uint64_t position, uint64_t *value)
{
    if (uf_load_acquire64(&r->results[result].tag) == uf_command_tag(position)) { /* pairs with the consumer's release */
        *value = uf_load_relaxed64(&r->results[result].value);
        uf_command_unclaim(r, result);
        return 1;
    }
    return 0;
}

/* The waiter gives up: the place is free when the answer has come. */
UF_SHARED_FN void uf_command_fetch_abandon(const uf_command_ring *r, uint32_t result, uint64_t position)
{
    uint64_t taken = 2;
    uf_command_local_exchange(&r->claims[result], &taken, uf_command_tag(position));
}

UF_SHARED_FN int uf_command_fetch_wait(const uf_command_ring *r, uint32_t result, uint64_t position, uint64_t timeout_ns,
                                       uint64_t *value)
{
    uint64_t deadline = 0;
    for (uint32_t turn = 0;; turn++) {
        if (uf_command_fetch_test(r, result, position, value))
            return 0;
        int rc = turn % 16 == 15 ? uf_command_status(r) : 0;
        if (rc == 0)
            rc = uf_command_wait_turn(r, turn, timeout_ns, &deadline);
        if (rc) {
            uf_command_fetch_abandon(r, result, position);
            return rc;
        }
    }
}

/* ---- Consuming: one thread ---- */

/* Copies the slot of `position` to `words`: 1 if all of it has arrived. */
UF_SHARED_FN int uf_command_peek(const uint64_t *slots, uint32_t shift, uint64_t position, uint64_t words[UF_COMMAND_WORDS])
{
    const uint64_t *slot = slots + (position & UF_COMMAND_MASK(shift)) * UF_COMMAND_WORDS;
    uint64_t lap = uf_command_lap(position, shift), wrong;
    words[0] = uf_load_acquire64(slot); /* pairs with the producer's fence or release store: the payload is readable then */
    wrong = words[0] ^ lap;
    if (wrong & UF_COMMAND_LAP)
        return 0;
    for (int i = 1; i < UF_COMMAND_WORDS; i++) {
        words[i] = uf_load_relaxed64(slot + i); /* a word with the right lap is itself; it needs no other's order */
        wrong |= words[i] ^ lap;
    }
    return !(wrong & UF_COMMAND_LAP);
}

#endif
