/* ring.h - ring exchange (ring attention), tiled all-gather and tiled reduce-scatter: the next bytes fly while these are computed on.
 *
 * uf_ring   Blocks go from each PE of a team to its neighbour, in either direction, each as one put with a weak signal. A block has up to
 *           eight parts (K, V, ...), which lie one after the other in a receive slot; there are two slots or more for each direction. A slot is
 *           given back by one signal. A rotation, in which everybody's block visits everybody who needs it, looks like this:
 *
 *               uf_ring_route route = {.n_pes = n, .hops = n - 1, .direction = UF_RING_FORWARD};
 *               uf_ring_block held = {.part = {k, v}, .bytes = {k_bytes, v_bytes}};
 *               for (int hop = 0; hop <= route.hops; hop++) {
 *                   int origin = uf_ring_origin(&route, me, hop);
 *                   if (hop > 0 && !uf_ring_receives(&route, me, hop))
 *                       continue;
 *                   if (hop > 0)
 *                       uf_ring_finish(ring, UF_RING_FORWARD, bytes_of[origin], &held, 0);   the block of `origin` is here
 *                   if (uf_ring_sends(&route, me, hop))
 *                       uf_ring_start(ring, UF_RING_FORWARD, &held, 0);                      and flies on,
 *                   compute(&held, origin);                                                  while this runs
 *                   if (hop > 0)
 *                       uf_ring_release(ring, UF_RING_FORWARD, 0);
 *               }
 *               uf_ring_flush(ring);                                                         k and v may be changed
 *
 * uf_tiles  An all-gather whose consumer waits for one tile after the other, or the reduce-scatter that mirrors it.
 *
 * Nothing here is fenced, reset or followed by a barrier: what a word counts only grows. Step numbers and words are 64 bits. One call at a time
 * for each uf_ring and uf_tiles; different ones may be used by different threads. docs/ring.md has the protocol. */
#ifndef UNFENCE_RING_H
#define UNFENCE_RING_H

#include "unfence/unfence.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- ring exchange */

typedef struct uf_ring uf_ring;

/* FORWARD: blocks go from PE i of the team to PE i + 1, the last one's to PE 0. */
typedef enum uf_ring_direction { UF_RING_FORWARD = 0, UF_RING_REVERSE = 1 } uf_ring_direction;
enum { UF_RING_PARTS = 8, UF_RING_SLOTS = 64 };

typedef struct uf_ring_options {
    size_t size;
    int n_parts;    /* of a block, 1 to UF_RING_PARTS; 0: 1 */
    int n_slots;    /* blocks that may be under way to a PE or held by it, each direction, 2 to UF_RING_SLOTS; 0: 2 */
    int directions; /* 1 << UF_RING_FORWARD, 1 << UF_RING_REVERSE, or both; 0: both */
    int memory;     /* UF_MEMORY_HOST or UF_MEMORY_CUDA: where the slots lie */
    size_t part_bytes[UF_RING_PARTS]; /* the most that any PE will send of each part; may be 0 */
} uf_ring_options;

/* Collective over `team`; symmetric memory is collective over the world, so where the team is not the whole world all its PEs create at once,
 * each in its team, with the same options. Takes n_slots blocks of symmetric memory a direction. Errors, on all PEs alike: UF_EINVAL names field and
 * limit, UF_EMISMATCH where PEs differ, UF_ENOMEM. */
UF_API int uf_ring_create(uf_team *team, const uf_ring_options *options, uf_ring **ring);
/* Collective over the world, as creating was. What was started is completed; blocks that nobody took are dropped. NULL is allowed. */
UF_API int uf_ring_destroy(uf_ring *ring);

/* Where the parts of a block are and how long. Sizes do not travel: the receiver says what it awaits, as it knows the sizes of each origin or was told them
 * (uf_allgather). In a slot each part begins at the next multiple of 64 bytes after the one before. */
typedef struct uf_ring_block {
    const void *part[UF_RING_PARTS];
    size_t bytes[UF_RING_PARTS];
} uf_ring_block;

/* Sends a block to the neighbour, and returns while it flies. Parts may lie in a slot (a block that was received and goes on), in other symmetric
 * memory, or in any memory of this process; where all of a block lies as it does in a slot, it is one put. They must stay unchanged until uf_ring_flush, or,
 * in a slot, until uf_ring_release, which sees to it. Parts, and whole blocks, of 0 bytes are delivered like others (part[i] may then be NULL). Waits while
 * all slots of the neighbour are taken; with UF_NOWAIT it returns UF_EAGAIN instead. Errors: UF_EINVAL (a part longer than part_bytes, a
 * direction the ring does not have), UF_ETIMEDOUT and UF_EPEER, which name the neighbour and the step. */
UF_API int uf_ring_start(uf_ring *ring, uf_ring_direction direction, const uf_ring_block *block, unsigned flags);
/* Waits for the next block in this direction, or with UF_NOWAIT returns UF_EAGAIN if it is not here: *block then says where it is, with the sizes
 * in `bytes`, which are those that the neighbour sent (NULL: part_bytes). Read it, do not write it: it is sent on from there, and a network may place it a second time. UF_EINVAL if
 * all slots are held: none could come. */
UF_API int uf_ring_finish(uf_ring *ring, uf_ring_direction direction, const size_t *bytes, uf_ring_block *block, unsigned flags);
/* Gives the oldest block held in this direction back, so that the neighbour may send another. Waits first, if it was sent on, until it has left,
 * or with UF_NOWAIT returns UF_EAGAIN if it has not. */
UF_API int uf_ring_release(uf_ring *ring, uf_ring_direction direction, unsigned flags);
/* Waits until everything that was started has left: the memory of blocks of one's own may be changed. */
UF_API int uf_ring_flush(uf_ring *ring);

/* A rotation as numbers, for a team of n_pes. Block o starts on PE o and moves one PE a hop, so that PE p holds after hop h the block of p - h (in
 * reverse p + h). hops: n_pes - 1 visits everybody, n_pes brings it home again (sums that travel with it). `needs`: whether PE `pe` needs the block of
 * `origin`, the same answer on all PEs; NULL: all do. A block goes no further than to the last who needs it. */
typedef struct uf_ring_route {
    int n_pes, hops;
    uf_ring_direction direction;
    int (*needs)(const void *arg, int pe, int origin);
    const void *arg;
} uf_ring_route;
UF_API int uf_ring_origin(const uf_ring_route *route, int pe, int hop);
/* Whether PE `pe` sends the block that it holds after hop `hop` (0: its own) on, and whether hop `hop` brings it one. */
UF_API int uf_ring_sends(const uf_ring_route *route, int pe, int hop);
UF_API int uf_ring_receives(const uf_ring_route *route, int pe, int hop);

/* Since creation, both directions. */
typedef struct uf_ring_stats {
    size_t size;
    uint64_t blocks_sent, blocks_received, bytes_sent;
    uint64_t puts;                        /* with signal: one a block, unless parts lie apart */
    uint64_t block_wait_ns, slot_wait_ns; /* time waited for blocks, and for the neighbour to give a slot back */
} uf_ring_stats;
UF_API int uf_ring_stats_get(const uf_ring *ring, uf_ring_stats *stats);

/* ---------------------------------------------------------------- tiled all-gather and reduce-scatter */

typedef struct uf_tiles uf_tiles;

typedef enum uf_tiles_kind {
    UF_TILES_GATHER = 0,         /* every PE's share comes to every PE */
    UF_TILES_REDUCE_SCATTER = 1, /* the sum over all PEs of a share comes to the share's PE */
} uf_tiles_kind;

typedef struct uf_tiles_options {
    size_t size;
    uf_tiles_kind kind;
    int n_buffers;     /* steps whose tiles may be on their way or unread, 1 to 8; 0: 2 */
    size_t bytes;      /* of this PE's share; any, may differ between PEs, may be 0 */
    size_t tile_bytes; /* the same on all; the last tile of a share may be shorter */
    int ahead;         /* tiles that one call sends at most, so that a start soon returns; 0: all */
    int memory;        /* UF_MEMORY_HOST or UF_MEMORY_CUDA */
} uf_tiles_options;

/* Collective, as uf_ring_create is. Sets n_buffers areas aside: for all shares, or, to reduce, for a share from each PE. */
UF_API int uf_tiles_create(uf_team *team, const uf_tiles_options *options, uf_tiles **tiles);
UF_API int uf_tiles_destroy(uf_tiles *tiles);

/* Bytes of PE `pe`'s share, their number of tiles, and where in the concatenation of all shares (in team order) it begins. */
UF_API size_t uf_tiles_bytes(const uf_tiles *tiles, int pe);
UF_API int uf_tiles_count(const uf_tiles *tiles, int pe);
UF_API size_t uf_tiles_offset(const uf_tiles *tiles, int pe);

/* GATHER: where the next step will have its result, all shares one after the other. Whoever makes its own share there, at uf_tiles_offset of
 * itself, gives uf_tiles_start a NULL and saves a copy. NULL while a step
 * that uses the same area is under way, and for other kinds. */
UF_API void *uf_tiles_next(uf_tiles *tiles);
/* Begins a step. GATHER: `src` is this PE's share. REDUCE_SCATTER: all shares, one after the other. Sends what it can without waiting, first to the
 * PE before this one, whose turn it is first to need it, then to the one before that: at any moment each PE sends to one and hears from one. `src` must
 * stay unchanged until uf_tiles_finish. Collective in its order of calls only: it waits for nobody. UF_EINVAL: the step before is not finished. */
UF_API int uf_tiles_start(uf_tiles *tiles, const void *src);
/* Sends what is left and can be, without waiting, `ahead` tiles at most. uf_tiles_wait and _finish do so as well. */
UF_API int uf_tiles_push(uf_tiles *tiles);
/* Waits for tile `tile` from PE `pe`: of its share (GATHER), or of what it adds to this PE's share. Tiles of the PE itself are there at once, then those of the
 * PE after it, and so on: best taken in that order. */
UF_API int uf_tiles_wait(uf_tiles *tiles, int pe, int tile, const void **at, size_t *bytes);
/* REDUCE_SCATTER: waits for tile `tile` from all PEs and adds them in the order of the team, in f32, from 0; one rounding to the element's type (to nearest,
 * ties to even). The same bits at every run. tile_bytes and shares must be multiples of the element. */
typedef enum uf_tiles_type { UF_TILES_F32 = 0, UF_TILES_BF16 = 1 } uf_tiles_type;
UF_API int uf_tiles_sum(uf_tiles *tiles, int tile, uf_tiles_type type, void *out);
/* Ends the step: everything has been sent, `src` is the caller's again, and what was received is not read any more. */
UF_API int uf_tiles_finish(uf_tiles *tiles);

#ifdef __cplusplus
}
#endif

#endif
