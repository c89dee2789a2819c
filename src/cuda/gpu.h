/* gpu.h - what the other rooms may ask of CUDA: devices, GPU memory that processes share, copies, and operations on streams.
 *
 * This room alone calls the CUDA driver, and no type of the vendor's leaves it: addresses are plain pointers, streams are the opaque
 * handle of unfence/stream.h. It knows no world: who shares what with whom is decided by its callers. Nothing is loaded
 * before uf_cuda_available is first asked; built without cuda.h (absent.c) that says so, and nothing else is ever called.
 * Any thread may call; each call makes the device's primary context current for its own duration. */
#ifndef UF_CUDA_GPU_H
#define UF_CUDA_GPU_H

#include "base/settings.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

/* ---------------------------------------------------------------- the driver (driver.c) */

/* True if there is a driver with a GPU, new enough; *why is a sentence either way, valid for ever. The first call of a process decides which library
 * is opened (UNFENCE_CUDA_LIBRARY). False in a child of a process that had initialised CUDA before it forked. */
bool uf_cuda_available(const uf_settings *settings, const char **why);
/* True if the process has a CUDA driver in it already, whoever loaded it: only then can a pointer be one of its GPU memory. Loads nothing. */
bool uf_cuda_in_process(const uf_settings *settings);

/* ---------------------------------------------------------------- devices (device.c) */

/* What is known of a GPU; PEs exchange it as bytes. */
typedef struct uf_cuda_facts {
    unsigned char uuid[16];
    char name[64];
    char bus[16]; /* PCI address */
    int32_t ordinal;
    int32_t driver; /* CUDA version it supports, 13000 for 13.0 */
    uint64_t bytes;
    uint64_t granularity; /* of VMM allocations */
    uint8_t vmm;          /* has what a heap needs: virtual memory management */
    uint8_t fd_handles;   /* memory can be handed to other processes as file descriptors */
    uint8_t dmabuf;       /* and to other devices */
    uint8_t rdma;         /* VMM memory may be registered with NICs */
    uint8_t memory_ops;   /* 64-bit stream memory operations */
    uint8_t host_address; /* registered host memory has the same address on the GPU */
    uint8_t host_atomics; /* its atomics on host memory are atomic against the CPU */
    uint8_t reserved;
} uf_cuda_facts;

typedef struct uf_cuda_device uf_cuda_device;

int uf_cuda_count(int *n);
int uf_cuda_describe(int ordinal, uf_cuda_facts *facts);
/* The device by UNFENCE_CUDA_DEVICE: a number, or auto: that of the calling thread's current context, else local_rank modulo their number. */
int uf_cuda_choose(const uf_settings *settings, int local_rank, int *ordinal);
int uf_cuda_open(int ordinal, uf_cuda_device **device);
void uf_cuda_close(uf_cuda_device *device);
const uf_cuda_facts *uf_cuda_facts_of(const uf_cuda_device *device);
/* True if `mine` can load and store memory of `peer`'s GPU; *why is a static sentence either way. A GPU that this process cannot see is
 * near until the mapping of its memory says otherwise. */
bool uf_cuda_near(const uf_cuda_facts *mine, const uf_cuda_facts *peer, const char **why);
/* Lets our context use the plain allocations of a peer's GPU (VMM memory needs none of it). */
int uf_cuda_allow_peer(uf_cuda_device *device, const uf_cuda_facts *peer);
/* True while the calling thread's context captures a graph as far as can be seen: on a blocking stream or the thread's own. */
bool uf_cuda_capturing(void);

/* ---------------------------------------------------------------- memory (memory.c) */

/* Address space for one PE's GPU heap: segments are appended at increasing offsets, as in fabric/local. */
typedef struct uf_cuda_range {
    unsigned char *base;
    size_t max, used;
} uf_cuda_range;
int uf_cuda_range_reserve(uf_cuda_device *device, size_t max, uf_cuda_range *range);
/* Unmaps all segments and gives the address space back. Nothing may use it any more. A range never reserved is left alone. */
void uf_cuda_range_release(uf_cuda_device *device, uf_cuda_range *range);

/* An allocation on its way to other PEs: a descriptor for other processes (-1: none), the handle for our own. Holds the memory until closed. */
typedef struct uf_cuda_share {
    int fd;
    uint64_t handle;
} uf_cuda_share;
#define UF_CUDA_SHARE_NONE                                                                                                       \
    {                                                                                                                            \
        -1, 0                                                                                                                    \
    }
/* Takes `bytes` (a multiple of the granularity) of zeroed GPU memory at range->used. UF_ENOMEM with needed and free. */
int uf_cuda_segment_create(uf_cuda_device *device, uf_cuda_range *range, size_t bytes, uf_cuda_share *share);
/* Maps a peer's allocation at range->used: by its descriptor if that is not -1 (which stays the caller's), else by its handle. */
int uf_cuda_segment_map(uf_cuda_device *device, uf_cuda_range *range, const uf_cuda_share *share, size_t bytes);
/* Takes back the last segment. */
void uf_cuda_segment_drop(uf_cuda_device *device, uf_cuda_range *range, size_t bytes);
void uf_cuda_share_close(uf_cuda_share *share);

/* Memory of the GPU for ourselves alone, zeroed; and page-locked host memory that the GPU sees at the same address, zeroed. */
int uf_cuda_alloc(uf_cuda_device *device, size_t bytes, void **ptr);
void uf_cuda_free(uf_cuda_device *device, void *ptr);
int uf_cuda_host_alloc(uf_cuda_device *device, size_t bytes, void **ptr);
void uf_cuda_host_free(uf_cuda_device *device, void *ptr);
/* Locks host memory and maps it for all GPUs at its own address. */
int uf_cuda_host_register(uf_cuda_device *device, void *ptr, size_t bytes);
void uf_cuda_host_unregister(uf_cuda_device *device, void *ptr);

typedef enum uf_cuda_kind {
    UF_CUDA_HOST = 0, /* nothing that CUDA knows */
    UF_CUDA_PINNED,   /* host memory locked by CUDA: loads and stores by the CPU work */
    UF_CUDA_MANAGED,  /* wanders between both: the same */
    UF_CUDA_PLAIN,    /* GPU memory of cudaMalloc or a pool */
    UF_CUDA_VMM,      /* GPU memory of cuMemCreate */
} uf_cuda_kind;
typedef struct uf_cuda_pointer {
    uf_cuda_kind kind;
    int ordinal;         /* of the GPU; -1 for host memory */
    uint64_t buffer;     /* its id, never used again in this process; 0 for host memory */
    unsigned char *base; /* of the allocation or mapping that holds the pointer */
    size_t bytes;        /* from there */
} uf_cuda_pointer;
int uf_cuda_classify(const void *ptr, uf_cuda_pointer *out);
/* True for memory that only a GPU or the driver may touch. One driver call. */
bool uf_cuda_is_gpu(const void *ptr);

/* A descriptor by which other devices (NICs) may register [ptr, ptr + bytes) of GPU memory, rounded outwards to pages. The caller's to close. */
int uf_cuda_dmabuf(uf_cuda_device *device, const void *ptr, size_t bytes, int *fd);

/* ---------------------------------------------------------------- the program's own buffers (share.c) */

/* One allocation that a buffer lies in. A buffer of several mappings (PyTorch's expandable segments) has as many. */
typedef struct uf_cuda_piece {
    uf_cuda_share share;
    size_t bytes; /* of the whole allocation */
} uf_cuda_piece;

enum { UF_CUDA_IPC_BYTES = 64 };

/* How others reach a buffer; exchanged as bytes but for `pieces`. */
typedef struct uf_cuda_buffer {
    uint64_t address; /* here */
    uint64_t offset;  /* of the buffer from the first piece's start, or from the start of the plain allocation */
    uint64_t span;    /* bytes of all pieces together */
    int32_t n_pieces; /* 0: plain memory, by `ipc` */
    int32_t has_ipc;
    unsigned char ipc[UF_CUDA_IPC_BYTES];
} uf_cuda_buffer;
/* Finds out how [ptr, ptr + bytes) can be shared; *pieces are given back by uf_cuda_buffer_release. UF_EUNSUPPORTED: memory that no other
 * process can be given; with `others` false that is no failure. */
int uf_cuda_buffer_share(uf_cuda_device *device, const void *ptr, size_t bytes, bool others, uf_cuda_buffer *buffer,
                         uf_cuda_piece **pieces);
void uf_cuda_buffer_release(uf_cuda_piece *pieces, int n);
/* A peer's buffer as it is mapped here. */
typedef struct uf_cuda_mapping {
    unsigned char *at;   /* where the buffer's first byte is; NULL: not mapped */
    uf_cuda_range range; /* of pieces */
    uint64_t ipc;        /* address opened by its IPC handle */
} uf_cuda_mapping;
/* shares[n_pieces] and bytes[n_pieces] of a VMM buffer; both NULL for a plain one, which is opened by its IPC handle. */
int uf_cuda_buffer_map(uf_cuda_device *device, const uf_cuda_buffer *buffer, const uf_cuda_share *shares, const size_t *bytes,
                       uf_cuda_mapping *mapping);
void uf_cuda_buffer_unmap(uf_cuda_device *device, uf_cuda_mapping *mapping);

/* ---------------------------------------------------------------- copies (stream.c) */

/* Copies between any two of host and GPU memory and returns when the bytes are in place. With `word` (not NULL; GPU memory or host memory that
 * the GPU sees), `value` is stored there after them. */
int uf_cuda_copy(uf_cuda_device *device, void *dst, const void *src, size_t bytes, uint64_t *word, uint64_t value);

/* ---------------------------------------------------------------- operations on the program's streams (stream.c) */

typedef enum uf_cuda_op_kind {
    UF_CUDA_WRITE = 0,   /* stores value after everything before it in the stream */
    UF_CUDA_WAIT_EQ,     /* holds the stream until the word equals value; */
    UF_CUDA_WAIT_GE,     /* ... until word - value, as a signed number, is not negative; */
    UF_CUDA_WAIT_NONZERO /* ... until word & value is not 0 */
} uf_cuda_op_kind;
typedef struct uf_cuda_op {
    uf_cuda_op_kind kind;
    uint64_t *word;
    uint64_t value;
} uf_cuda_op;
/* Both only append to the stream, also while it is being captured; neither launches a kernel, allocates or waits. `what` begins the sentence of a
 * failure. A put is the copy (none if bytes is 0) and then the operations, which are given to the driver at once. Those that may join become
 * part of the node before them while a graph is captured, if that is one of memory operations. */
typedef enum uf_cuda_join { UF_CUDA_APART = 0, UF_CUDA_MAY_JOIN } uf_cuda_join;
int uf_cuda_stream_put(uf_cuda_device *device, struct CUstream_st *stream, void *dst, const void *src, size_t bytes,
                       const uf_cuda_op *ops, size_t n, uf_cuda_join join, const char *what);
int uf_cuda_stream_ops(uf_cuda_device *device, struct CUstream_st *stream, const uf_cuda_op *ops, size_t n, uf_cuda_join join,
                       const char *what);

#endif
