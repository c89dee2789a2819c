/* scope.cuh - who does an operation together: one thread, a warp, or a block.
 *
 * Part of device.cuh. A scope says how many threads take part, which one this is, and how they agree. Each operation is written
 * once, as a template over it. The threads of a warp (all 32) or block (all) call together and with the same arguments, and get the
 * same result. sync() orders memory: what one thread did before it has happened before what another does after it, so that
 * a release by the leader covers all of them. Block scope uses 4 bytes of static shared memory. */
#ifndef UNFENCE_DEVICE_SCOPE_CUH
#define UNFENCE_DEVICE_SCOPE_CUH

#include "ptx.cuh"

UFD_FN uint32_t ufd_block_rank(void)
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

struct ufd_thread {
    UFD_FN uint32_t rank(void)
    {
        return 0;
    }
    UFD_FN uint32_t size(void)
    {
        return 1;
    }
    UFD_FN void sync(void)
    {
    }
    UFD_FN bool any(bool mine)
    {
        return mine;
    }
    UFD_FN uint32_t least(uint32_t mine)
    {
        return mine;
    }
};

struct ufd_warp {
    UFD_FN uint32_t rank(void)
    {
        return ufd_block_rank() % 32;
    }
    UFD_FN uint32_t size(void)
    {
        return 32;
    }
    UFD_FN void sync(void)
    {
        __syncwarp();
    }
    UFD_FN bool any(bool mine)
    {
        bool result = __any_sync(0xffffffffu, mine);
        __syncwarp(); /* a vote promises no memory order by itself */
        return result;
    }
    UFD_FN uint32_t least(uint32_t mine)
    {
        return __reduce_min_sync(0xffffffffu, mine);
    }
};

struct ufd_block {
    UFD_FN uint32_t rank(void)
    {
        return ufd_block_rank();
    }
    UFD_FN uint32_t size(void)
    {
        return blockDim.x * blockDim.y * blockDim.z;
    }
    UFD_FN void sync(void)
    {
        __syncthreads();
    }
    UFD_FN bool any(bool mine)
    {
        return __syncthreads_or(mine);
    }
    UFD_FN uint32_t least(uint32_t mine)
    {
        __shared__ uint32_t result;
        if (rank() == 0)
            result = 0xffffffffu;
        __syncthreads();
        atomicMin(&result, mine);
        __syncthreads();
        mine = result;
        __syncthreads(); /* before the next use overwrites it */
        return mine;
    }
};

/* The error of any of the threads, for all of them; 0 if none has one. The usual case costs one vote. */
template <class S> UFD_FN int ufd_worst(int mine)
{
    if (!S::any(mine != 0))
        return 0;
    return (int)S::least(mine ? (uint32_t)mine : 0xffffffffu); /* 0xffffffff is UF_EINVAL as well: then all errors are that */
}

#endif
