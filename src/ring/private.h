/* private.h - what the files of this room share: the state of a ring and of tiles, and the agreement of PEs before they allocate.
 *
 * A ring is one uf_ring_port for each direction: plain numbers and addresses, so that a stream or a kernel may be given one. All its words, each
 * written by one neighbour only, and only ever added to:
 *   arrived[slot]  n_parts for each block that `from` has put into the slot. A word of its own for each slot, since two weak signals may be
 *                  applied in either order: a common counter would tell how many blocks are here, not which.
 *   credit         1 for each block that `to` has given back. A common counter is right here: blocks are given back in their order, a
 *                  signal is sent only after its slot is free, and carries no data; so a count of c, whichever c signals these are, means
 *                  that at least c slots, the first c, are free.
 * Step s (from 0) of a direction uses slot s % n_slots, its sender needs credit >= s - n_slots + 1, its receiver arrived >=
 * (s / n_slots + 1) * n_parts. Nothing is reset. Why no write can hit what is in use: the receiver gives a slot back after it has read it and after
 * the puts that send it on have left. A late second placement by the network comes before the sender's own completion, behind which the engine
 * holds the same sender's next put to that slot; and nobody changes a slot in place.
 *
 * Tiles: see tiles.c. */
#ifndef UF_RING_PRIVATE_H
#define UF_RING_PRIVATE_H

#include "unfence/ring.h"
#include "world/team.h"
#include <stdbool.h>

enum { UF_RING_DIRECTIONS = 2 };

typedef struct uf_ring_port {
    bool open;
    int to, from;      /* PEs of the world */
    uint64_t *arrived; /* [n_slots] */
    uint64_t *credit;
    unsigned char *slots; /* [n_slots] of slot_bytes */
    uint64_t sent, received, released;
    /* A context for each slot of the neighbour: its use again implies that the block before has arrived, so each has one block under way, and to
     * wait for what leaves a slot is to wait for no other. sent_on: the contexts, as bits by direction, on which what lies in a slot of ours may
     * still be leaving. */
    uf_ctx *ways[UF_RING_SLOTS];
    uint64_t sent_on[UF_RING_SLOTS][UF_RING_DIRECTIONS];
} uf_ring_port;

struct uf_ring {
    uf_world *world;
    uf_ctx *credits; /* signals alone */
    int n_parts, n_slots;
    size_t part_bytes[UF_RING_PARTS], slot_bytes, total;
    unsigned char *base; /* symmetric */
    uint64_t *words;
    uf_ring_port ports[UF_RING_DIRECTIONS];
    int broken; /* the first error that left neighbours out of step */
    uf_ring_stats stats;
};

struct uf_tiles {
    uf_world *world;
    uf_ctx *ctx, *credits;
    uf_tiles_kind kind;
    int me, n, n_buffers, ahead, most_tiles, memory;
    int *world_pe;                   /* [n] */
    size_t tile_bytes, stride, area; /* stride: between the shares of sources, to reduce */
    size_t *share, *offset;          /* [n], [n + 1] */
    const void **rows;               /* [n], of a sum */
    unsigned char *base;             /* symmetric: [n_buffers] areas */
    uint64_t *words;                 /* [n] credits, then [n_buffers][n][most_tiles] arrivals */
    uint64_t started, finished;
    const unsigned char *src; /* of the step */
    int turn, tile;           /* what is sent next: tile `tile` to the PE `turn` before this one */
    int broken;
};

/* A field that must be the same on all PEs. */
typedef struct uf_ring_term {
    const char *field;
    int64_t value;
} uf_ring_term;
enum { UF_RING_TERMS = 16 };
/* Collective over the world. If any PE comes with an error (rc, its sentence being the thread's last) or with other terms, all return it. `extras` (may be
 * NULL): [n_pes] each PE's `extra`. */
int uf_ring_agree(uf_world *world, const char *call, int rc, const uf_ring_term *terms, size_t n, uint64_t extra,
                  uint64_t *extras);
/* The largest of n. */
uint64_t uf_ring_most(const uint64_t *values, int n);

static inline size_t uf_ring_pad(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---------------------------------------------------------------- tiles */

/* Whether PE s of the team sends to PE d at all. */
static inline bool uf_tiles_sends(const uf_tiles *t, int s, int d)
{
    return s != d && t->share[t->kind == UF_TILES_GATHER ? s : d] > 0;
}

static inline uint64_t *uf_tiles_credit(const uf_tiles *t, int pe)
{
    return t->words + pe;
}

/* The arrival of tile `tile` from `source` in the area of `step`. */
static inline uint64_t *uf_tiles_arrival(const uf_tiles *t, uint64_t step, int source, int tile)
{
    size_t buffer = (size_t)(step % (uint64_t)t->n_buffers);
    return t->words + t->n + ((buffer * (size_t)t->n + (size_t)source) * (size_t)t->most_tiles + (size_t)tile);
}

static inline unsigned char *uf_tiles_area(const uf_tiles *t, uint64_t step)
{
    return t->base + (size_t)(step % (uint64_t)t->n_buffers) * t->area;
}

/* Adds rows in their order, f32 from 0, one rounding. */
void uf_ring_sum_f32(float *out, const float *const *rows, int n_rows, size_t n);
void uf_ring_sum_bf16(uint16_t *out, const uint16_t *const *rows, int n_rows, size_t n);

#endif
