/* shuffle_fabric.h - an adversarial network inside one process: everything fabric.h allows, at its worst, from a seed.
 *
 * All PEs of a process that open uf_shuffle_fabric with the same wire (uf_world_options.fabric_arg) are connected through it. Payload is cut
 * at random bytes and placed piece by piece at random times, reread from the source each time; completions come as late as the
 * knobs allow; posts are refused; payload is placed twice. Nothing moves but in poll (of anybody), so that with the
 * deterministic driver a seed gives one run exactly. With threads it is safe (one mutex), but not repeatable.
 * It is strict: what a correct engine never does (a bad key, an overrun CQ, a source freed in flight, a doorbell forgotten)
 * is answered as a device would and noted as a violation, which a test must find to be none. It must never be kinder than
 * fabric.h says. A test instrument: no claim about the speed of anything. */
#ifndef UF_TESTS_SHUFFLE_FABRIC_H
#define UF_TESTS_SHUFFLE_FABRIC_H

#include "fabric/fabric.h"

/* A rail of a PE breaks: what flies on it to and from that PE is gone, what lies in CQs stays. Only where imm_placed. */
typedef struct uf_shuffle_break {
    uint64_t at; /* tick; 0: never. If the PE has no endpoint then, later */
    int pe;
    uint32_t rail;
    uint32_t flying; /* ... and not before the PE has so many WRs in flight on it */
} uf_shuffle_break;

enum { UF_SHUFFLE_BREAKS = 2 };

typedef struct uf_shuffle_knobs {
    uint64_t seed;
    int n_pes;
    uint32_t n_rails;     /* 1 to 4; 0 means 1 */
    uint32_t delay;       /* each step of a WR takes 0..delay ticks; a tick is one poll by anybody */
    uint32_t span;        /* how many earlier WRs of the same flow and rail one may overtake; 0: in order, UINT32_MAX: any */
    uint32_t pieces;      /* payload is cut into at most that many, at any byte; 0 means 1. At most 16 */
    uint32_t refuse;      /* posts answered UF_EAGAIN without reason, of 1000 */
    uint32_t duplicate;   /* WRITEs whose payload is placed a second time before the sender's CQE, of 1000 */
    uint32_t imm_bits;    /* 32, or 0: no immediates */
    bool imm_placed;      /* false: the sender's CQE of a WRITE_IMM comes as soon as the source is read */
    bool virtual_address; /* false: remote addresses are offsets */
    bool needs_desc;      /* true: local buffers must be registered */
    uint64_t max_message; /* 0 means 1 MiB */
    uint32_t inline_bytes;
    uint32_t tx_depth;  /* 0: what the engine asks for; else at most this */
    bool hold_messages; /* true: a message that finds no receive waits (RNR); false: that is a violation */
    uf_shuffle_break breaks[UF_SHUFFLE_BREAKS];
} uf_shuffle_knobs;

typedef struct uf_shuffle_wire uf_shuffle_wire;

extern const struct uf_fabric_ops uf_shuffle_fabric;

/* Knobs of the named profile: "fifo" (kind: in order, whole, at once), "reorder", "bytes" (many pieces, any byte), "late" (long delays),
 * "refuse" (a third of the posts), "duplicates", "transmitted" (completion when the source is read), "messages" (no immediates), "tiny"
 * (64-byte messages, few slots), "rails", "chaos" (all at once). UF_EINVAL for another name. */
int uf_shuffle_profile(const char *name, uint64_t seed, int n_pes, uf_shuffle_knobs *knobs);
/* The names above, NULL-terminated. */
extern const char *const uf_shuffle_profiles[];

int uf_shuffle_create(const uf_shuffle_knobs *knobs, uf_shuffle_wire **wire);
/* After every fabric on it is closed. */
void uf_shuffle_destroy(uf_shuffle_wire *wire);

/* From now on `pe` neither sends nor receives: its own polls find nothing, WRs to it fail with UF_EPEER. */
void uf_shuffle_kill(uf_shuffle_wire *wire, int pe);
/* The next WR posted by `from` to `to` completes with UF_EFABRIC; half of its payload may have been placed. */
void uf_shuffle_fail_next(uf_shuffle_wire *wire, int from, int to);
/* Breaks a rail of a PE now. The PE itself and all others hear of it a while later, each in its own time. */
void uf_shuffle_break_rail(uf_shuffle_wire *wire, int pe, uint32_t rail);
/* Moves time on by `ticks` polls that take nothing. */
void uf_shuffle_tick(uf_shuffle_wire *wire, uint32_t ticks);

/* How many rules of the interface were broken so far; the first one as a sentence (or ""). */
uint32_t uf_shuffle_violations(uf_shuffle_wire *wire, char *first, size_t bytes);

/* What it did, so that a test can assert that the interesting things happened at all. */
typedef struct uf_shuffle_counters {
    uint64_t posts, refused, pieces, duplicates, overtakes, held_messages, errors, lost;
    uint64_t breaks, severed; /* rails that broke, and WRs that were lost on them */
} uf_shuffle_counters;
void uf_shuffle_counters_get(uf_shuffle_wire *wire, uf_shuffle_counters *counters);
/* A hash of everything that moved, in order. */
uint64_t uf_shuffle_trace(uf_shuffle_wire *wire);

#endif
