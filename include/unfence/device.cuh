/* device.cuh - one-sided communication from inside kernels: what unfence.h offers the host, for CUDA C++ and NVRTC.
 *
 * Header-only: no relocatable device code, no library to link, any number of translation units, no header of the system under
 * NVRTC. The host hands a kernel a `const ufd_world *`; `ufd_ctx c = ufd_ctx_block(w)` is then this block's context. Names and
 * semantics are those of unfence.h, with results instead of messages: UF_OK or a negative UF_E*, and the first failure of a world
 * kept with its block and thread in its error record. Each operation comes in three scopes:
 *     ufd_put(...)         by the calling thread, alone
 *     ufd_put_warp(...)    by the 32 threads of a warp together, all with the same arguments
 *     ufd_put_block(...)   by all threads of a block together, likewise
 * Define UFD_CHECK before including it for a checked build, which refuses wrong PEs and misaligned or foreign addresses.
 *
 * What an operation costs and which PTX order makes it sound is said where it is written: device/rma.cuh (puts, gets, signals,
 * fences), wait.cuh, atomic.cuh, flagged.cuh (small puts with their own flags), barrier.cuh, mover.cuh (streams of puts). The way
 * to a peer is in the world's table: near (NVLink, PCIe peer access, the same GPU), or by command queue for memory of the host
 * heap (device/far.cuh). The movers and flagged puts are for near peers alone: for others they return UF_EUNSUPPORTED. */
#ifndef UNFENCE_DEVICE_CUH
#define UNFENCE_DEVICE_CUH

#include "device/atomic.cuh"
#include "device/barrier.cuh"
#include "device/far.cuh"
#include "device/flagged.cuh"
#include "device/mover.cuh"
#include "device/rma.cuh"
#include "device/wait.cuh"

/* name, name_warp and name_block of one template. Parameters and arguments are lists in parentheses. */
#define UFD_IN_EACH_SCOPE_(name, parameters, arguments)                                                                          \
    UFD_FN int name parameters                                                                                                   \
    {                                                                                                                            \
        return name##_in<ufd_thread> arguments;                                                                                  \
    }                                                                                                                            \
    UFD_FN int name##_warp parameters                                                                                            \
    {                                                                                                                            \
        return name##_in<ufd_warp> arguments;                                                                                    \
    }                                                                                                                            \
    UFD_FN int name##_block parameters                                                                                           \
    {                                                                                                                            \
        return name##_in<ufd_block> arguments;                                                                                   \
    }

/* Puts, gets and signals: rma.cuh. `dst` of puts, `src` of gets and `sig` are symmetric addresses of this PE; what lies there at `pe` is
 * meant. The other address is any memory that this GPU can read or write, shared memory included. */
UFD_IN_EACH_SCOPE_(ufd_put, (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe), (c, dst, src, bytes, pe))
UFD_IN_EACH_SCOPE_(ufd_put_nbi, (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe), (c, dst, src, bytes, pe))
UFD_IN_EACH_SCOPE_(ufd_get, (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe), (c, dst, src, bytes, pe))
UFD_IN_EACH_SCOPE_(ufd_put_signal,
                   (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                    unsigned flags),
                   (c, dst, src, bytes, sig, op, value, pe, flags))
UFD_IN_EACH_SCOPE_(ufd_signal, (const ufd_ctx &c, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags),
                   (c, sig, op, value, pe, flags))
/* For a near peer what could wait is over at once; by command queue these are complete after ufd_flush or ufd_quiet. */
UFD_IN_EACH_SCOPE_(ufd_get_nbi, (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, int pe), (c, dst, src, bytes, pe))
UFD_IN_EACH_SCOPE_(ufd_put_signal_nbi,
                   (const ufd_ctx &c, void *dst, const void *src, uint64_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                    unsigned flags),
                   (c, dst, src, bytes, sig, op, value, pe, flags))

/* Order and completion of what the scope's threads did, and of what happened before that: rma.cuh. */
UFD_IN_EACH_SCOPE_(ufd_fence, (const ufd_ctx &c), (c))
UFD_IN_EACH_SCOPE_(ufd_quiet, (const ufd_ctx &c), (c))
UFD_IN_EACH_SCOPE_(ufd_flush, (const ufd_ctx &c), (c))

/* Atomics: atomic.cuh. */
UFD_IN_EACH_SCOPE_(ufd_atomic,
                   (const ufd_ctx &c, int op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old, int pe),
                   (c, op, width, dst, operand, compare, old, pe))

/* Waits and tests: wait.cuh. */
UFD_IN_EACH_SCOPE_(ufd_wait, (const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value, uint64_t timeout_ns),
                   (w, sig, cmp, value, timeout_ns))
UFD_IN_EACH_SCOPE_(ufd_test, (const ufd_world *w, const uint64_t *sig, int cmp, uint64_t value), (w, sig, cmp, value))
UFD_IN_EACH_SCOPE_(ufd_wait_all, (const ufd_world *w, const ufd_wait_list &list, uint64_t timeout_ns), (w, list, timeout_ns))
UFD_IN_EACH_SCOPE_(ufd_wait_any, (const ufd_world *w, const ufd_wait_list &list, uint32_t *index, uint64_t timeout_ns),
                   (w, list, index, timeout_ns))

/* Small puts with their own flags: flagged.cuh. */
UFD_IN_EACH_SCOPE_(ufd_put_flagged, (const ufd_ctx &c, void *slot, const void *src, uint64_t bytes, uint64_t sequence, int pe),
                   (c, slot, src, bytes, sequence, pe))
UFD_IN_EACH_SCOPE_(ufd_wait_flagged,
                   (const ufd_world *w, void *dst, const void *slot, uint64_t bytes, uint64_t sequence, uint64_t timeout_ns),
                   (w, dst, slot, bytes, sequence, timeout_ns))

/* All PEs of the world: barrier.cuh. sync leaves out what makes earlier operations complete. */
UFD_IN_EACH_SCOPE_(ufd_barrier, (const ufd_world *w), (w))
UFD_IN_EACH_SCOPE_(ufd_sync, (const ufd_world *w), (w))

#endif
