/* stream.h - puts, gets, signals and waits that a CUDA stream carries out, in its order.
 *
 * Each call appends to the stream and returns; nothing is launched, allocated or waited for, so all of them may be captured in a CUDA graph
 * and replayed. A stream belongs to the primary context of the GPU that the world uses (UNFENCE_CUDA_DEVICE). GPU memory must be in use in
 * the world first (uf_malloc_on, uf_device_world): these calls never open it, since that is collective and not allowed in a capture.
 *
 * Order is the stream's: what is appended later happens later, so a signal covers everything before it in the stream, weak or strong, and
 * fence and quiet have nothing to wait for. Other streams, and the host, are ordered by signals or by CUDA's own events.
 *
 * Graphs bake constants in: a replay waits for the same value as the capture did. So a wait inside a graph consumes: it waits for its
 * value and stores 0 (UF_CONSUME), and the sender stores that value only when it knows that the last one was consumed, by a word of credit that
 * travels the other way and is consumed alike. docs/gpu-memory.md has the example.
 *
 * A stream that waits has no timeout of its own. If the world fails (a PE dies, uf_world_abort), the waits are let go: the stream goes on with whatever
 * its memory holds, and uf_world_status, asked after synchronizing, says that and why its results are void.
 *
 * CUDA lets calls that free or allocate memory in a context wait for all of its streams, those that wait for a signal as well. So nothing may be
 * freed, allocated or registered, by this library either, while a stream of the process waits for what is sent only afterwards.
 *
 * Peers must be near (uf_malloc_on); to others UF_EUNSUPPORTED. Errors: UF_EINVAL, UF_ERANGE, UF_EUNSUPPORTED, UF_ESYSTEM (what the driver
 * says), and the world's error. */
#ifndef UNFENCE_STREAM_H
#define UNFENCE_STREAM_H

#include "unfence/unfence.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A CUstream or cudaStream_t. */
struct CUstream_st;
typedef struct CUstream_st *uf_stream;

/* As uf_put and uf_get. `src` of a put and `dst` of a get are any memory that the GPU may copy: GPU memory, page-locked memory, and other
 * host memory, which the driver copies when it likes and which a captured graph reads at each replay. */
UF_API int uf_put_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe, uf_stream stream);
UF_API int uf_get_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe, uf_stream stream);
enum {
    UF_BY_VALUE =
        0x100, /* the bytes of a put with signal are read during the call, not by the stream: then they are stored like the signal, without
                            a copy, in one step with it. Host memory the CPU reads; a multiple of 8 bytes up to UF_BY_VALUE_MAX, and dst
                            aligned to 8. A graph stores the bytes of the capture at each replay. */
    UF_BY_VALUE_MAX = 64
};
/* As uf_put_signal and uf_signal. `op` is UF_SIGNAL_SET: a stream can store a word but not add to it (UF_EUNSUPPORTED). `sig` is a word of GPU memory, or
 * of the host heap (uf_signal_alloc, uf_malloc). `flags` as there, and UF_BY_VALUE. */
UF_API int uf_put_signal_on_stream(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value,
                                   int pe, unsigned flags, uf_stream stream);
UF_API int uf_signal_on_stream(uf_ctx *ctx, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags, uf_stream stream);

enum {
    UF_CONSUME = 1, /* store 0 in the word when the comparison has held */
    UF_CHAINED =
        2, /* in a capture: the wait may share a node with the stores and waits before it, which makes the launch cheaper. Right if no other
                       captured stream hangs on those (no event recorded since the last copy or kernel): it would be held as well. */
};
/* Holds the stream until this PE's own word compares: UF_EQ, UF_GE or UF_GT, or UF_NE with 0. UF_GE and UF_GT compare cyclically: the
 * difference as a signed number. `flags`: UF_CONSUME | UF_CHAINED, or 0. */
UF_API int uf_wait_on_stream(uf_world *world, uint64_t *sig, int cmp, uint64_t value, unsigned flags, uf_stream stream);

/* What the stream's earlier operations on the context need to be ordered before, or complete at, its later ones. Other streams' are not covered. */
UF_API int uf_fence_on_stream(uf_ctx *ctx, uf_stream stream);
UF_API int uf_quiet_on_stream(uf_ctx *ctx, uf_stream stream);
/* Holds the stream until the streams of all PEs of the team have come here, with everything before it complete. One at a time per team; may be
 * captured and replayed, by all alike. */
UF_API int uf_barrier_on_stream(uf_team *team, uf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
