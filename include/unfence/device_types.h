/* device_types.h - what the host hands to kernels: plain data that C11, C++17, nvcc and NVRTC all accept.
 *
 * uf_device_world (unfence.h) fills a ufd_world in GPU memory; kernels get a pointer to it and use unfence/device.cuh. All of it
 * is read-only for kernels but what the words named "GPU writes" say. Each struct that crosses begins with {abi, size}, which the host
 * and the device side compare: a kernel compiled against another version is refused by ufd_check and by the host, not run wild. */
#ifndef UNFENCE_DEVICE_TYPES_H
#define UNFENCE_DEVICE_TYPES_H

#if defined(__CUDACC_RTC__)
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
    UFD_NEAR = 1,  /* its memory is mapped: loads, stores and bulk copies */
    UFD_QUEUE = 2, /* through a command queue of the host's progress threads */
    UFD_DIRECT = 3 /* through the NIC's own queues */
};

typedef struct ufd_peer {
    int64_t shift; /* UFD_NEAR: added to an address of this PE's GPU heap it gives the same object of the peer */
    int64_t host_shift; /* the same for the symmetric host heap as the GPU sees it */
    uint32_t way;       /* UFD_NEAR, UFD_QUEUE, UFD_DIRECT */
    uint32_t reserved;
} ufd_peer;

typedef struct ufd_world {
    uint32_t abi, size;
    int32_t pe, n_pes;
    uint64_t heap, heap_bytes;           /* this PE's GPU heap: address space, of which the first heap_bytes exist */
    uint64_t host_heap, host_heap_bytes; /* this PE's symmetric host heap as the GPU sees it; 0: not mapped for the GPU */
    const ufd_peer *peers;               /* [n_pes] */
    const int32_t *status;               /* in host memory: 0, or the negative code that ended the world: waits look at it */
    uint64_t timeout_ns;                 /* of waits that are given 0 */
    uint64_t *barrier;                   /* [2 * n_pes] words of this PE's GPU heap, symmetric: GPU writes. ufd_barrier's */
    uint64_t *scratch;                   /* of this PE alone: counters of ufd_barrier. GPU writes */
} ufd_world;

#endif
