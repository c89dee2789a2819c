/* device_types.h - what the host hands to kernels: plain data that C11, C++17, nvcc and NVRTC all accept.
 *
 * The host fills a ufd_world and its ufd_ctx table in GPU memory; kernels get a pointer to one of them (or a copy as a parameter) and
 * use unfence/device.cuh. Kernels only read all of this but what the words "kernels write" name. Each struct that crosses
 * begins with {abi, size}: ufd_check refuses a kernel that was compiled against another layout. Addresses are 64-bit numbers
 * where the host cannot follow them. A struct grows at its end; a change in front of that is a new UFD_ABI. */
#ifndef UNFENCE_DEVICE_TYPES_H
#define UNFENCE_DEVICE_TYPES_H

#include "codes.h"

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long uint64_t;
typedef long int64_t;
#else
#include <stdint.h>
#endif

#define UFD_ABI 1u

/* How a kernel reaches a PE. */
enum {
    UFD_WAY_NONE = 0,  /* not at all: operations return UF_EUNSUPPORTED */
    UFD_WAY_NEAR = 1,  /* its memory is mapped: loads, stores and bulk copies */
    UFD_WAY_QUEUE = 2, /* through a command queue of the host's progress threads */
    UFD_WAY_DIRECT = 3 /* through the NIC's own queues */
};

typedef struct ufd_peer {
    int64_t shift;      /* UFD_WAY_NEAR: added to an address of this PE's GPU heap it gives the same object of the peer */
    uint32_t way;       /* UFD_WAY_* */
    uint32_t reserved;  /* 0. shift and way are read with one 16-byte load */
    int64_t host_shift; /* as shift, for the symmetric host heap as the GPU sees it */
    uint64_t reserved2;
} ufd_peer;

/* Symmetric memory outside of the heaps: a registered window over the user's own buffer. */
typedef struct ufd_window {
    uint64_t base, bytes;  /* this PE's */
    const int64_t *shifts; /* [n_pes], as ufd_peer.shift */
} ufd_window;

/* Where an operation failed or a wait gave up: the first one of a world is kept, in memory that kernels write. */
enum {
    UFD_IN_PUT = 1,
    UFD_IN_GET = 2,
    UFD_IN_PUT_SIGNAL = 3,
    UFD_IN_SIGNAL = 4,
    UFD_IN_ATOMIC = 5,
    UFD_IN_WAIT = 6,
    UFD_IN_BARRIER = 7,
    UFD_IN_FLAGGED = 8,
    UFD_IN_MOVER = 9
};
typedef struct ufd_error {
    uint32_t abi, size;
    uint32_t count; /* failures so far. Zero it to take the next one */
    uint32_t ready; /* 1: the fields below are written */
    int32_t code;   /* UF_E* */
    uint32_t what;  /* UFD_IN_* */
    int32_t pe;     /* the peer concerned; -1: none or unknown */
    uint32_t block[3], thread[3];
    uint64_t address; /* the one refused, or the word that was awaited */
    uint64_t given;   /* bytes of the operation, or the value last seen there */
    uint64_t wanted;  /* the value awaited */
} ufd_error;

#define UFD_MAX_QUEUES 16 /* of a world */

struct ufd_ctx;
struct uf_command_ring; /* engine/command.h */

typedef struct ufd_world {
    uint32_t abi, size;
    int32_t pe, n_pes;
    uint64_t heap, heap_bytes;           /* this PE's GPU heap: address space, of which the first heap_bytes exist */
    uint64_t host_heap, host_heap_bytes; /* this PE's symmetric host heap as the GPU sees it; 0: not mapped for the GPU */
    const ufd_peer *peers;               /* [n_pes], 16-byte aligned */
    const int32_t *status;               /* in host memory: 0, or the negative code that ended the world: waits look at it */
    uint64_t timeout_ns;                 /* of barriers, and of waits that are given UFD_WORLD_TIMEOUT */
    uint64_t *barrier;                   /* [n_pes] words of this PE's GPU heap, symmetric, 0 at first: kernels write */
    uint64_t *scratch;                   /* [1], of this PE alone, 0 at first: rounds of the barrier. Kernels write */
    uint64_t heap_span;                  /* the heap's whole address space: where it may grow to */
    const ufd_window *windows;           /* [n_windows] */
    uint32_t n_windows, n_ctxs;
    const struct ufd_ctx *ctxs; /* [n_ctxs], at least one */
    ufd_error *error;           /* kernels write; NULL: failures are only returned */
    uint64_t *far_barrier;      /* [n_pes] as `barrier`, of the host heap: set by peers that are not near */
    uint32_t n_far, n_queues;   /* peers that are not near; contexts with a queue of their own: ctxs[0 .. n_queues) */
} ufd_world;

/* A context as kernels see it: what the way to a near peer needs is one load away, and each further way adds its own fields. */
typedef struct ufd_ctx {
    uint32_t abi, size;
    const ufd_world *world;
    const ufd_peer *peers;    /* the world's */
    uint64_t heap, heap_span; /* the world's */
    uint32_t index, flags;
    const struct uf_command_ring *queue; /* UFD_WAY_QUEUE: what this context's operations are handed to; NULL: no peer needs it */
} ufd_ctx;

/* One put of many, with a signal or (sig NULL) without; the layout of uf_put_row. */
typedef struct ufd_row {
    void *dst;
    const void *src;
    uint64_t bytes;
    uint64_t *sig;
    uint64_t value;
    int32_t pe;
    uint16_t op, flags;
} ufd_row;

/* Words to wait for together; fields as those of uf_wait_list. */
typedef struct ufd_wait_list {
    const uint64_t *const *sigs;
    uint64_t n;
    const unsigned char *skip;
    int32_t cmp;
    uint32_t reserved;
    uint64_t value;
    const uint64_t *values;
} ufd_wait_list;

#endif
