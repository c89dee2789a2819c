/* world.cuh - who am I, who is there, where is an object at a peer, and the record of the first failure.
 *
 * Part of device.cuh. ufd_reach is on the path of every operation: it loads the peer's entry (16 bytes, read-only for the kernel's
 * life, so in a loop over one peer it is loaded once), makes the one test for the way, and one for the heap; windows and the
 * host heap are found off that path. Nothing here takes the address of what a caller wants in registers. With
 * UFD_CHECK defined before the header, arguments are tested as well, which costs some tens of nanoseconds an operation. */
#ifndef UNFENCE_DEVICE_WORLD_CUH
#define UNFENCE_DEVICE_WORLD_CUH

#include "scope.cuh"

UFD_FN int ufd_pe(const ufd_world *w)
{
    return ufd_fixed(&w->pe);
}

UFD_FN int ufd_n_pes(const ufd_world *w)
{
    return ufd_fixed(&w->n_pes);
}

/* UF_OK if the host laid out what this kernel was compiled for, else UF_EMISMATCH. Once a kernel is enough. */
UFD_FN int ufd_check(const ufd_world *w)
{
    bool fits = w->abi == UFD_ABI && w->size >= sizeof(ufd_world) && w->ctxs->abi == UFD_ABI && w->ctxs->size == sizeof(ufd_ctx);
    return fits ? UF_OK : UF_EMISMATCH;
}

/* A context of the world: `index` modulo their number. By value: it stays in registers. */
UFD_FN ufd_ctx ufd_ctx_at(const ufd_world *w, uint32_t index)
{
    return w->ctxs[index % w->n_ctxs];
}

/* One for this block, so that blocks share as few as can be. */
UFD_FN ufd_ctx ufd_ctx_block(const ufd_world *w)
{
    return ufd_ctx_at(w, blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
}

/* Keeps the first failure of the world with the caller's block and thread. Returns `code`. */
inline __device__ __noinline__ int ufd_fail(const ufd_world *w, int code, uint32_t what, int pe, const void *address,
                                            uint64_t given, uint64_t wanted)
{
    ufd_error *e = w->error;
    if (!e || atomicAdd(&e->count, 1u) != 0)
        return code;
    e->code = code;
    e->what = what;
    e->pe = pe;
    e->block[0] = blockIdx.x, e->block[1] = blockIdx.y, e->block[2] = blockIdx.z;
    e->thread[0] = threadIdx.x, e->thread[1] = threadIdx.y, e->thread[2] = threadIdx.z;
    e->address = (uint64_t)address;
    e->given = given;
    e->wanted = wanted;
    __threadfence_system(); /* pairs with the host's reading `ready` first */
    *(volatile uint32_t *)&e->ready = 1;
    return code;
}

/* The way to a peer, and the shift of its GPU heap. Who sends to one peer again and again keeps it. */
struct ufd_route {
    int64_t shift;
    int32_t pe;
    uint32_t way;
};

UFD_FN ufd_route ufd_route_to(const ufd_ctx &c, int pe)
{
    ufd_route r;
    r.shift = ufd_fixed_peer(c.peers + pe, &r.way);
    r.pe = pe;
    return r;
}

#define UFD_NOWHERE ((int64_t)1 << 63) /* no shift: addresses have 48 bits */

/* The shift of a symmetric address outside of the GPU heap, or UFD_NOWHERE. By value, so that the caller's stays in a register. */
inline __device__ __noinline__ int64_t ufd_shift_outside(const ufd_world *w, uint64_t address, int pe)
{
    if (address - w->host_heap < w->host_heap_bytes)
        return w->peers[pe].host_shift;
    for (uint32_t i = 0; i < w->n_windows; i++)
        if (address - w->windows[i].base < w->windows[i].bytes)
            return w->windows[i].shifts[pe];
    return UFD_NOWHERE;
}

/* What to add to `symmetric` to have it at the route's peer: UF_OK, UF_EUNSUPPORTED (not near), UF_ERANGE (not symmetric memory). */
UFD_FN int ufd_reach_by(const ufd_ctx &c, const ufd_route &r, const void *symmetric, int64_t *shift)
{
    if (r.way != UFD_WAY_NEAR)
        return UF_EUNSUPPORTED;
    *shift = r.shift;
    if ((uint64_t)symmetric - c.heap < c.heap_span)
        return UF_OK;
    *shift = ufd_shift_outside(c.world, (uint64_t)symmetric, r.pe);
    return *shift == UFD_NOWHERE ? UF_ERANGE : UF_OK;
}

UFD_FN int ufd_reach(const ufd_ctx &c, const void *symmetric, int pe, int64_t *shift)
{
    return ufd_reach_by(c, ufd_route_to(c, pe), symmetric, shift);
}

template <class T> UFD_FN T *ufd_moved(T *p, int64_t shift)
{
    return (T *)((uint64_t)p + (uint64_t)shift);
}

/* Where `symmetric` of PE `pe` is mapped for this GPU, or NULL if it is not. */
template <class T> UFD_FN T *ufd_ptr(const ufd_world *w, T *symmetric, int pe)
{
    int64_t shift;
    if (pe < 0 || pe >= ufd_n_pes(w) || ufd_reach(w->ctxs[0], symmetric, pe, &shift))
        return (T *)0;
    return ufd_moved(symmetric, shift);
}

/* Whether bytes [p, p + bytes) are symmetric memory that exists. */
inline __device__ __noinline__ bool ufd_is_symmetric(const ufd_world *w, const void *p, uint64_t bytes)
{
    uint64_t a = (uint64_t)p;
    if (a - w->heap < w->heap_span)
        return a - w->heap <= w->heap_bytes && bytes <= w->heap_bytes - (a - w->heap);
    if (a - w->host_heap < w->host_heap_bytes)
        return bytes <= w->host_heap_bytes - (a - w->host_heap);
    for (uint32_t i = 0; i < w->n_windows; i++)
        if (a - w->windows[i].base < w->windows[i].bytes)
            return bytes <= w->windows[i].bytes - (a - w->windows[i].base);
    return false;
}

/* The tests of a checked build; all threads of the scope get the same answer and its leader records it. */
template <class S>
UFD_FN int ufd_check_target(const ufd_ctx &c, uint32_t what, const void *symmetric, uint64_t bytes, uint32_t align, int pe)
{
#ifdef UFD_CHECK
    int code = UF_OK;
    if (c.abi != UFD_ABI || c.size != sizeof(ufd_ctx))
        return UF_EMISMATCH; /* nothing else of it can be believed */
    if (pe < 0 || pe >= c.world->n_pes)
        code = UF_ERANGE;
    else if ((uint64_t)symmetric % align != 0)
        code = UF_EINVAL;
    else if (!ufd_is_symmetric(c.world, symmetric, bytes))
        code = UF_ERANGE;
    if (code && S::rank() == 0)
        ufd_fail(c.world, code, what, pe, symmetric, bytes, align);
    return code;
#else
    return UF_OK;
#endif
}

#endif
