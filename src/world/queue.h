/* queue.h - device command queues of a context: what kernels, or CPU threads in their place, issue operations through.
 *
 * For src/cuda and tests; no public interface. A queue is served by the progress thread of its context's endpoint, and by callers in
 * their turns (UNFENCE_PROGRESS=inline). Symmetric addresses in its commands are this PE's own, as everywhere; sources of puts and targets
 * of gets must lie in symmetric memory as well (uf_malloc, uf_register), since a wild address of a kernel must not be followed. */
#ifndef UF_WORLD_QUEUE_H
#define UF_WORLD_QUEUE_H

#include "engine/queues.h"
#include "unfence/unfence.h"

typedef struct uf_queue uf_queue;

typedef struct uf_queue_options {
    size_t size;
    uint32_t depth;                  /* commands, a power of two from 64 to 2^20; 0: 1024 */
    uint32_t n_results;              /* fetching atomics in flight; 0: 64 */
    uint64_t first;                  /* position to start at: for tests */
    const uf_command_memory *memory; /* NULL: plain memory */
} uf_queue_options;

/* Local. The context should have no other initiator. Errors: UF_EINVAL, UF_ENOMEM, the world's. */
int uf_queue_create(uf_ctx *ctx, const uf_queue_options *options, uf_queue **queue);
/* Waits until what was written is consumed and complete, then frees it. No producer may be left. UF_ETIMEDOUT: it lives on, and
 * uf_world_destroy frees it. NULL is allowed. */
int uf_queue_destroy(uf_queue *queue);
/* What producers get: may be copied to where they are. */
const uf_command_ring *uf_queue_ring(const uf_queue *queue);
/* UF_OK or the queue's first error, or the world's, with its sentence. */
int uf_queue_status(uf_queue *queue);
void uf_queue_counters(uf_queue *queue, uf_command_counters *counters);

#endif
