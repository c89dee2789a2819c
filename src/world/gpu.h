/* gpu.h - GPU memory of a world: the heap on each PE's GPU, windows over GPU buffers, and what puts, gets, waits and kernels need of them.
 *
 * gpu.c opens and grows the heap, gpu_window.c shares the program's buffers, gpu_reach.c carries the host's operations on GPU memory,
 * gpu_device.c tells kernels, gpu_far.c makes their way to peers that are not near, stream.c serves CUDA streams. None of it exists before the first call that asks for GPU memory (w->gpu is
 * NULL, which is all that a world without GPUs ever looks at). GPU memory is regions like all symmetric memory; region.addresses[pe]
 * is where the PE's part is mapped for this process's GPU, 0 if it is not. The CPU may never follow such an address.
 * A peer is near if both can map each other's GPU memory, tried out with the first segment; both sides know it alike. */
#ifndef UF_WORLD_GPU_H
#define UF_WORLD_GPU_H

#include "cuda/gpu.h"
#include "cuda/writer.h"
#include "fabric/local/pass.h"
#include "unfence/device_types.h"
#include "world/heap.h"
#include "world/world.h"

enum { UF_GPU_WINDOWS = 64 }; /* that kernels see at once */

typedef struct uf_gpu_peer {
    bool near;
    char reason[200]; /* why, or why not */
    uf_cuda_facts facts;
    uf_local_pass_name pass;
    uf_cuda_range range; /* its heap, mapped here; our own is the same as uf_gpu.range */
} uf_gpu_peer;

typedef struct uf_gpu_waits uf_gpu_waits; /* of streams: stream.c */
typedef struct uf_gpu_house uf_gpu_house; /* what the PEs of one process share: gpu_house.c */

struct uf_gpu {
    uf_cuda_device *device;
    uf_gpu_peer *peers;
    uf_local_pass *pass;
    uint64_t step; /* of exchanges of descriptors */
    bool proven;   /* near peers have mapped a segment: from now on a mapping that fails is an error */
    uf_heap *heap;
    uf_cuda_range range;
    _Atomic size_t used; /* bytes of the heap that exist */
    size_t unit, segment_bytes;
    size_t host_bytes; /* of the symmetric host heaps, ours and mapped peers', that GPUs see */
    void *words;       /* symmetric: those of barriers, see gpu_device.c */
    ufd_world image;   /* what kernels see, as it is in GPU memory at `shown` */
    void *shown;
    const uf_region *windows[UF_GPU_WINDOWS]; /* that kernels see */
    int32_t *status;                          /* page-locked: what kernels look at */
    uf_gpu_waits *waits;
    uf_cuda_writer *writer; /* by which the engine stores signal words in GPU memory; NULL: there is no way */
    uf_gpu_house *house;
    uint64_t *far_words; /* symmetric, in the host heap: barriers with far peers. NULL: no PE has any */
    int32_t n_far;       /* peers that kernels do not reach as near ones */
    uint32_t n_queues;
    struct uf_queue *queues[UFD_MAX_QUEUES];
    struct uf_gpu_block *blocks; /* what they lie in */
    bool ending;                 /* has been counted there as one that ends */
};

/* What a window over GPU buffers keeps: the mappings of near peers' parts. */
typedef struct uf_gpu_window {
    uf_cuda_mapping *mappings; /* [n_pes] */
    int shown;                 /* 1 + its number among those that kernels see; 0: not one of them */
} uf_gpu_window;

static inline struct uf_gpu *uf_gpu_of(const uf_world *w)
{
    return atomic_load_explicit(&((uf_world *)(uintptr_t)w)->gpu, memory_order_acquire);
}

/* ---------------------------------------------------------------- gpu.c; all collective, with `setup` held */

/* Opens this PE's GPU at the first call; on all PEs or on none. */
int uf_gpu_open(uf_world *w);
/* Ends it all: no operation of the host or engine is under way. Windows are closed first. */
void uf_gpu_destroy(uf_world *w);
int uf_gpu_malloc(uf_world *w, size_t bytes, size_t align, void **ptr);
bool uf_gpu_in_heap(const uf_world *w, const void *ptr);
int uf_gpu_free_block(uf_world *w, void *ptr);
/* Refuses a collective memory call while the caller captures a graph: it would allocate or wait for others. UF_OK where CUDA is not in use. */
int uf_gpu_refuse_capture(uf_world *w, const char *call);
/* Not collective: shows GPUs what the symmetric host heap has grown by. */
void uf_gpu_host_grew(uf_world *w);
/* Descriptors of every near PE in another process: mine[0..n) go to all of them, counts[pe] come from each, in theirs[pe][i] with their bytes. What has come
 * must be closed by the caller, also after an error. */
typedef struct uf_gpu_parcel {
    uf_cuda_share share;
    size_t bytes;
} uf_gpu_parcel;
int uf_gpu_exchange(uf_world *w, struct uf_gpu *g, const uf_cuda_piece *mine, int n, const int *counts,
                    uf_gpu_parcel *const *theirs);

/* ---------------------------------------------------------------- gpu_house.c */

/* For `members` PEs, each of which gives it back once. */
uf_gpu_house *uf_gpu_house_create(int members);
void uf_gpu_house_leave(struct uf_gpu *g);
/* Waits until every PE of this process is ending the world; meanwhile, if it has failed, lets go what our streams wait for. False: some did
 * not come in time, and nothing may be given back that a GPU's context would have to be idle for. */
bool uf_gpu_house_gather(uf_world *w, struct uf_gpu *g);

/* ---------------------------------------------------------------- gpu_window.c */

/* Shares r->base .. of this PE's GPU with near peers and fills r->addresses. Collective also where this PE has failed (rc). */
int uf_gpu_window_open(uf_world *w, uf_region *r);
void uf_gpu_window_close(uf_world *w, uf_region *r);
/* True if `ptr` is GPU memory, for worlds that may not have used any yet. */
bool uf_gpu_is_buffer(uf_world *w, const void *ptr);

/* ---------------------------------------------------------------- gpu_reach.c */

/* True if the CPU may not touch `ptr`. One load in a world without GPU memory. */
bool uf_gpu_ask(uf_world *w, const void *ptr);
static inline bool uf_gpu_is(uf_world *w, const void *ptr)
{
    return __builtin_expect(uf_gpu_of(w) != NULL, 0) && uf_gpu_ask(w, ptr);
}
/* Where a GPU region's part of `pe` is for our GPU; UF_EUNSUPPORTED with the reason if it isn't near. */
int uf_gpu_reach(uf_world *w, const char *call, const char *argument, const uf_region *r, const void *sym, int pe, void **at);
/* The refusal of what would have the network touch GPU memory. */
int uf_gpu_refuse_network(uf_world *w, const char *call, const char *argument, int pe);
/* The refusal of what the CPU would have to do in GPU memory. */
int uf_gpu_refuse(uf_world *w, const char *call, const char *argument, const void *ptr);
/* A put (word NULL) or put with signal in which some of dst, src and word is GPU memory; any may be host memory mapped here. Done on return. */
int uf_gpu_put(uf_world *w, const char *call, void *dst, const void *src, size_t bytes, uint64_t *word, bool word_on_gpu, int op,
               uint64_t value);
/* A get likewise, and the value of a word in GPU memory. */
int uf_gpu_get(uf_world *w, void *dst, const void *src, size_t bytes);

/* ---------------------------------------------------------------- gpu_device.c */

size_t uf_gpu_words_bytes(const uf_world *w);
/* The words that PEs of a team use for barriers on streams: [n_pes + 1] of this PE's heap. */
uint64_t *uf_gpu_team_words(const uf_world *w, const struct uf_gpu *g, int team);
int uf_gpu_show(uf_world *w, struct uf_gpu *g);
/* After growth. */
int uf_gpu_show_sizes(uf_world *w, struct uf_gpu *g);
/* A window over GPU memory, until it is hidden. Beyond UF_GPU_WINDOWS kernels do not see it, which is logged. */
int uf_gpu_show_window(uf_world *w, struct uf_gpu *g, uf_region *r);
void uf_gpu_hide_window(struct uf_gpu *g, uf_region *r);
void uf_gpu_hide(struct uf_gpu *g);

/* ---------------------------------------------------------------- gpu_far.c */

/* UFD_WAY_* of kernels to a peer. Valid once near is proven and the host heap registered. */
uint32_t uf_gpu_way(const uf_world *w, const struct uf_gpu *g, int pe);
/* Collective: words for barriers, if any PE has a far peer. */
int uf_gpu_far_words(uf_world *w, struct uf_gpu *g);
/* Local: the queues, if a peer needs them. */
int uf_gpu_far_open(uf_world *w, struct uf_gpu *g);
/* For the orderly end of a world, while others still serve: waits for what kernels have issued, and ends the queues. */
int uf_gpu_far_end(struct uf_gpu *g);
/* UF_OK, or the first error of a queue with its sentence. */
int uf_gpu_far_status(const struct uf_gpu *g);
/* What queues lay in, after all of them have ended. */
void uf_gpu_far_free(struct uf_gpu *g);

/* ---------------------------------------------------------------- stream.c */

int uf_gpu_waits_create(struct uf_gpu *g);
void uf_gpu_waits_destroy(struct uf_gpu *g);
/* In a world that has failed: lets go the streams that wait for its words. For the tick, and once at the end. */
void uf_gpu_tick(uf_world *w);

#endif
