/* queue_warp.cuh - a warp posts to an EFA send queue together: one reservation, one turn and one doorbell for up to 32 entries.
 *
 * Stores are a property of where the ring lies. UF_EFA_STORES_APART is what a NIC's memory is known to take from a GPU: each word of an entry by
 * a store of its own that nothing may combine [C]. UF_EFA_STORES_COMBINED lets four lanes write one entry in 16-byte pieces, so that a
 * store instruction of the warp covers eight entries without a gap and the bus carries full packets: right for a ring in host memory, which
 * an acquire of the doorbell reads (the model). A CPU's write-combining buffers do the same to a NIC's memory, but nobody has seen a
 * GPU do it to an EFA device: docs/first-efa-run.md asks [I].
 * All 32 lanes of the warp call each function together. */
#ifndef UF_FABRIC_EFA_QUEUE_WARP_CUH
#define UF_FABRIC_EFA_QUEUE_WARP_CUH

#include "fabric/efa/queue.h"

enum uf_efa_stores { UF_EFA_STORES_APART, UF_EFA_STORES_COMBINED };

/* Words 2 * piece and 2 * piece + 1 of the entry that lane `from` holds. */
static __device__ __forceinline__ void uf_efa_warp_piece(const uf_efa_wqe *mine, uint32_t from, uint32_t piece, uint64_t *low,
                                                         uint64_t *high)
{
    for (uint32_t i = 0; i < UF_EFA_WQE_WORDS / 2; i++) {
        uint64_t a = __shfl_sync(0xffffffff, (unsigned long long)mine->w[2 * i], from);
        uint64_t b = __shfl_sync(0xffffffff, (unsigned long long)mine->w[2 * i + 1], from);
        *low = piece == i ? a : *low;
        *high = piece == i ? b : *high;
    }
}

/* The 64-byte entries of lanes 0 .. n - 1 into the slots from `position` on. */
static __device__ __forceinline__ void uf_efa_warp_write_combined(const uf_efa_sq *q, uint32_t position, uint32_t n,
                                                                  const uf_efa_wqe *mine, uint32_t lane)
{
    uint32_t mask = ((uint32_t)1 << q->shift) - 1, piece = lane % 4;
    for (uint32_t first = 0; first < n; first += 8) {
        uint32_t from = first + lane / 4, at = position + from;
        uint64_t low = 0, high = 0;
        uf_efa_warp_piece(mine, from, piece, &low, &high);
        if (piece == 0)
            low |= (uint64_t)(at >> q->shift & 1) << UF_EFA_W0_PHASE_SHIFT;
        uint64_t *slot = q->ring + (uint64_t)(at & mask) * q->words + 2 * piece;
        if (from < n)
            asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"((unsigned long long)low),
                         "l"((unsigned long long)high)
                         : "memory");
    }
}

/* Posts the entries of lanes 0 .. n - 1, in order of the lanes, n at most 32 and max_batch: 1 to all lanes; or 0, and nothing
 * has changed: the ring was full. `more` as for uf_efa_sq_publish. */
static __device__ __forceinline__ int uf_efa_sq_post_warp(uf_efa_sq *q, const uf_efa_wqe *mine, uint32_t n,
                                                          enum uf_efa_stores stores, int more)
{
    uint32_t lane = threadIdx.x % 32, position = 0;
    int taken = lane == 0 ? uf_efa_sq_reserve(q, n, &position) : 0;
    if (!__shfl_sync(0xffffffff, taken, 0))
        return 0;
    position = __shfl_sync(0xffffffff, position, 0);
    if (stores == UF_EFA_STORES_COMBINED && q->words == UF_EFA_WQE_WORDS)
        uf_efa_warp_write_combined(q, position, n, mine, lane);
    else if (lane < n)
        uf_efa_sq_write(q, position + lane, mine);
    /* To a NIC's memory each lane has a fence of its own: the publisher's does not cover what others stored there [C]. In host memory it
     * does, behind the barrier: fences are cumulative. */
    if (stores == UF_EFA_STORES_APART && lane != 0)
        uf_efa_sq_flush_stores(q);
    __syncwarp();
    if (lane == 0)
        uf_efa_sq_publish(q, position, n, more);
    return 1;
}

#endif
