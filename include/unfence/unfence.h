/* unfence.h - one-sided communication with signals on networks that promise no order.
 *
 * Four nouns explain the library:
 *   world    a set of PEs (participants) that set up together; a handle, never a global.
 *   context  an independent stream of operations with its own order and completion.
 *   lane     one (context, peer) pair: the unit of order. Nothing is ever ordered or held back across lanes.
 *   window   symmetric memory over the caller's own buffer; the symmetric heap is a window the library owns.
 *
 * Rules that hold for every function, unless its comment says otherwise:
 *   - Returns UF_OK (0) or a negative UF_E* code; uf_error_message() then gives a sentence for people. Outputs are
 *     written only on success. Nothing here exits, aborts or prints (the log writes what UNFENCE_LOG allows).
 *   - Any thread may call it. "Collective" means that every PE of the world (or team) must call it, in the same order.
 *   - Sizes are bytes. Addresses named `dst`, `sig` or "symmetric" lie in this PE's own symmetric memory and stand
 *     for the same offset on the target PE. Other addresses are ordinary memory of this process.
 *   - A PE number counts from 0 in the world; a wrong one is refused with the number and the world's size.
 *   - What blocks has a timeout: an argument in nanoseconds, or UNFENCE_TIMEOUT. UF_FOREVER waits without one.
 * The codes, flags, comparisons and operations that the functions take and return are in codes.h, which kernels share.
 * Semantics follow OpenSHMEM 1.5 where the names do; docs/ordering.md is the normative text on order. */
#ifndef UNFENCE_UNFENCE_H
#define UNFENCE_UNFENCE_H

#include "codes.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UF_VERSION_MAJOR 0
#define UF_VERSION_MINOR 1
#define UF_VERSION_PATCH 0

#if defined(__GNUC__)
#define UF_API __attribute__((visibility("default")))
#else
#define UF_API
#endif

/* ---------------------------------------------------------------- errors and log */

/* The sentence for the last error returned to the calling thread: PE, peer, operation, cause, remedy. Never NULL; ""
 * if there was none. Valid until the thread's next failing call. */
UF_API const char *uf_error_message(void);
/* The name of a code, such as "UF_EINVAL"; "UF_E?" for an unknown one. */
UF_API const char *uf_error_name(int code);
/* The version of the library that is running, as "0.1.0". */
UF_API const char *uf_version(void);

enum { UF_LOG_NONE = 0, UF_LOG_ERROR = 1, UF_LOG_WARN = 2, UF_LOG_INFO = 3, UF_LOG_DEBUG = 4 };
/* Sends log lines (without newline) to `sink` instead of standard error; NULL restores that. The sink may be called
 * from any thread and must not call back into the library. Process-wide. */
typedef void (*uf_log_sink)(void *arg, int level, const char *line);
UF_API void uf_set_logger(uf_log_sink sink, void *arg);
/* Overrides UNFENCE_LOG with a UF_LOG_* level. Process-wide. */
UF_API void uf_set_log_level(int level);

/* ---------------------------------------------------------------- worlds */

typedef struct uf_world uf_world;
typedef struct uf_ctx uf_ctx;
typedef struct uf_team uf_team;
typedef struct uf_window uf_window;
typedef struct uf_group uf_group;
struct uf_driver;     /* src/engine/driver.h: who gives time and progress; for tests */
struct uf_fabric_ops; /* src/fabric/fabric.h: a network supplied by the caller; for tests */

typedef struct uf_world_options {
    size_t size;         /* sizeof(uf_world_options): lets the struct grow. UF_WORLD_OPTIONS sets it. */
    int pe, n_pes;       /* this PE and their number; -1: from `group` or the environment (`unfence run`, torchrun, Slurm) */
    uf_group *group;     /* PEs of one process find each other through it; NULL: over the network */
    const char *root;    /* "host:port" of PE 0's rendezvous; NULL: from the environment */
    const char *fabric;  /* as UNFENCE_FABRIC; NULL: from the environment */
    int strict;          /* as UNFENCE_STRICT; -1: from the environment */
    uint64_t heap_bytes; /* as UNFENCE_HEAP_SIZE; 0: from the environment */
    uint64_t timeout_ns; /* as UNFENCE_TIMEOUT; 0: from the environment */
    const struct uf_driver *driver;         /* NULL: threads and real time */
    const struct uf_fabric_ops *fabric_ops; /* NULL: chosen by `fabric` */
    void *fabric_arg;                       /* handed to fabric_ops->open */
} uf_world_options;

#define UF_WORLD_OPTIONS                                                                                                         \
    {                                                                                                                            \
        sizeof(uf_world_options), -1, -1, NULL, NULL, NULL, -1, 0, 0, NULL, NULL, NULL                                           \
    }

/* Creates this PE's part of a world. Collective over the PEs of the world; blocks until all have arrived or
 * UNFENCE_BOOTSTRAP_TIMEOUT passes (the error then names the missing PEs). `options` NULL: everything from the
 * environment; with none there either, a world of one PE. Endpoints to all peers exist when it returns.
 * Errors: UF_EINVAL (options or a UNFENCE_ variable), UF_ETIMEDOUT, UF_EMISMATCH (versions or settings differ between
 * PEs), UF_EUNSUPPORTED (`strict` and the fabric is not there), UF_ENOMEM, UF_ESYSTEM, UF_EFABRIC. */
UF_API int uf_world_create(const uf_world_options *options, uf_world **world);
/* Ends it: waits (up to the timeout) until outgoing operations are done and every live PE has arrived here, then
 * frees everything. Collective. Contexts, teams, windows and memory of the world die with it. `world` may be NULL.
 * UF_ETIMEDOUT or UF_EPEER tell that not all came; the world is freed all the same. */
UF_API int uf_world_destroy(uf_world *world);

/* The number of this PE and how many there are; -1 and 0 if `world` is NULL. */
UF_API int uf_world_pe(const uf_world *world);
UF_API int uf_world_n_pes(const uf_world *world);
/* UF_OK while the world is sound, else the first error that ended it (UF_EPEER, UF_EABORTED, UF_EFABRIC, ...), with
 * its message. Does not block. Every blocking call of the world returns that same error once it is set. */
UF_API int uf_world_status(uf_world *world);
/* Ends the world for everybody with `why`: every blocked or later call on any PE returns UF_EABORTED and the reason. */
UF_API int uf_world_abort(uf_world *world, const char *why);

/* Shared by PEs that live in one process: create one, give it to each PE's options with pe = 0..n_pes-1 (each in its own
 * thread), free it after all worlds are destroyed. */
UF_API int uf_group_create(int n_pes, uf_group **group);
UF_API void uf_group_destroy(uf_group *group);

/* What carries operations to one peer. */
typedef struct uf_path_info {
    size_t size;
    const char *fabric;   /* "local", "ofi", ... valid while the world lives */
    const char *provider; /* "memfd", "net", "shm", ...: what was taken, whatever was asked for */
    const char *reason;   /* why this one, a sentence */
    int same_host;
} uf_path_info;
UF_API int uf_world_path(uf_world *world, int pe, uf_path_info *info);

/* What the world has done since creation. A snapshot: each field is exact once the operations it counts are complete. */
typedef struct uf_counters {
    size_t size;
    uint64_t puts, gets, signals, atomics;      /* operations given to the library (a put-with-signal counts in both) */
    uint64_t bytes_local, bytes_network;        /* payload of puts and gets, by path */
    uint64_t data_wrs, signal_wrs, control_wrs; /* work requests posted: payload (the immediate included), signal or atomic
                                                   messages, credits and receipts and grants */
    uint64_t signals_applied;                   /* signals of peers made visible here by the engine */
    uint64_t signals_held;                      /* strong signals that waited at the sender */
    uint64_t fences; /* fences that had to be realised on a network by waiting (the library itself makes none) */
    uint64_t quiets;
    uint64_t registrations, registration_hits;
    uint64_t eagain; /* posts that the network asked to repeat */
} uf_counters;
UF_API int uf_world_counters(uf_world *world, uf_counters *counters);

/* How many NICs carry what this PE sends over the network (rail i of every PE talks to rail i); 0 without a network. */
UF_API int uf_world_n_rails(const uf_world *world);
/* What went over one of them since creation; a snapshot, as above. */
typedef struct uf_rail_counters {
    size_t size;
    uint64_t posted;    /* work requests that the network took, those sent again after a break included */
    uint64_t completed; /* those of which it told the end: not of small ones that it copied, nor of what a break took with it */
    uint64_t bytes;     /* of the posted */
    int broken;         /* PEs that cannot be reached over it any more: 0 while it is sound, all if the NIC or its queue failed */
} uf_rail_counters;
UF_API int uf_world_rail_counters(uf_world *world, int rail, uf_rail_counters *counters);

/* ---------------------------------------------------------------- symmetric memory */

/* Allocates `bytes` of symmetric memory, the same offset on every PE, aligned to `align` (a power of two; 0 and values
 * below 64 mean 64; 2 MiB for blocks of 2 MiB and more). Contents are zero when first handed out. Collective: all PEs
 * must ask for the same; a difference is refused with both sizes (UF_EMISMATCH). 0 bytes gives NULL. */
UF_API int uf_malloc(uf_world *world, size_t bytes, size_t align, void **ptr);
/* Frees it. Collective. Includes a barrier, so no PE's later allocation is overwritten by an earlier put; the caller
 * must have completed its own puts. NULL is allowed. */
UF_API int uf_free(uf_world *world, void *ptr);

/* Which memory. */
enum {
    UF_MEMORY_HOST = 0, /* what uf_malloc gives */
    UF_MEMORY_CUDA = 1, /* of this PE's GPU (UNFENCE_CUDA_DEVICE) */
};
/* As uf_malloc, in the memory that `memory` names. GPU memory has a heap of its own (UNFENCE_CUDA_HEAP_SIZE, _MAX), the same offsets on all PEs; uf_free,
 * uf_ptr, puts, gets, signals and waits take its addresses, which only kernels, streams and this library may dereference. The
 * first use of GPU memory in a world loads the CUDA driver; from then on any pointer to GPU memory may also be a source of a put or the target of a
 * get. Peers whose GPU memory can be mapped (same host, peer access) are near; to others GPU addresses are refused. The host
 * cannot add to a word in GPU memory atomically, nor wait for several: UF_EUNSUPPORTED. Errors beyond those of uf_malloc:
 * UF_EUNSUPPORTED (no driver, no GPU, too old; on all PEs alike, naming the PE), UF_EINVAL (a CUDA graph is being captured). */
UF_API int uf_malloc_on(uf_world *world, int memory, size_t bytes, size_t align, void **ptr);

/* Makes the caller's own buffer symmetric: afterwards pointers into it may be used as `dst` and count as offset from
 * `ptr` on every PE. Collective; `bytes` must be the same everywhere, `ptr` need not. The memory stays the caller's and
 * must stay mapped until uf_unregister. It may not overlap a window or the heap (UF_EINVAL): a pointer names one place. GPU buffers
 * work alike, on all PEs or none: those of cudaMalloc, and of cuMemCreate with POSIX file descriptors as handle type (PyTorch's
 * expandable segments), which near peers map; other kinds are refused with a sentence. */
UF_API int uf_register(uf_world *world, void *ptr, size_t bytes, uf_window **window);
/* Collective. Includes a barrier; as for uf_free, the caller must have completed its own operations on the window. */
UF_API int uf_unregister(uf_window *window);
/* (window, offset) as a symmetric pointer: the local address of that offset. NULL if offset > size. */
UF_API void *uf_window_at(const uf_window *window, size_t offset);

/* Signal words: 64-bit, symmetric, zero at first, with small indexes, which lets a weak signal travel inside the put's own
 * packet. Any 8-byte aligned symmetric word may serve as a signal, but only these take that path. */
enum {
    UF_SIGNAL_DEFAULT = 0,
    UF_SIGNAL_MIXED = 1 /* words updated both by near peers and through the network; on a CPU
                                                   every word is */
};
UF_API int uf_signal_alloc(uf_world *world, size_t n, int kind, uint64_t **signals); /* collective */
UF_API int uf_signal_free(uf_world *world, uint64_t *signals);                       /* collective */

/* Where `sym` of PE `pe` is mapped in this process, or NULL if it is not (a peer over the network). */
UF_API void *uf_ptr(uf_world *world, const void *sym, int pe);

/* What kernels need to know of the world (unfence/device_types.h, unfence/device.cuh): *device is in this PE's GPU memory, lives as long as the
 * world and is kept up to date when heaps grow. Collective at the first call. Errors: those of uf_malloc_on. */
struct ufd_world;
UF_API int uf_device_world(uf_world *world, const struct ufd_world **device);
/* The first failure that a kernel's operations or waits have recorded on this PE since the last call: its code, with a sentence that names
 * the operation, block, thread, peer and place (arguments are tested by kernels compiled with UFD_CHECK; timeouts are always recorded). The record is
 * then free for the next one. UF_OK: there is none. Not collective; waits for no kernel. Errors of its own: UF_EINVAL, UF_ESYSTEM. */
UF_API int uf_device_error(uf_world *world);

/* ---------------------------------------------------------------- contexts */

enum {
    UF_ORDERED = 1, /* every put carries a sequence: strong signals never wait at the sender, for one more packet each */
};

typedef struct uf_ctx_options {
    size_t size;
    uint32_t flags;  /* UF_ORDERED or 0 */
    uint32_t window; /* sequence window per peer, a power of two from 2 to 32768; 0: UNFENCE_WINDOW */
} uf_ctx_options;

/* Local, cheap. `options` may be NULL. Errors: UF_EINVAL, UF_ENOMEM (more lanes than UNFENCE_MAX_LANES; with the numbers). */
UF_API int uf_ctx_create(uf_world *world, const uf_ctx_options *options, uf_ctx **ctx);
/* Completes what the context has started (as uf_quiet), then frees it. NULL is allowed. */
UF_API int uf_ctx_destroy(uf_ctx *ctx);
/* The world's own context, for programs that need only one. Never destroyed by the caller. */
UF_API uf_ctx *uf_ctx_default(uf_world *world);

/* ---------------------------------------------------------------- puts, gets, signals */

/* The plain names return when `src` may be reused (local completion); the _nbi names return at once, and `src` must stay
 * unchanged until uf_flush or uf_quiet. Data becomes visible on the target in any order until a signal, fence, quiet or
 * barrier orders it. bytes may be 0 (a put then does nothing; a signal is still delivered), above 4 GiB, and of any
 * alignment. `src` and gets' `dst` may be any memory of this process; outside of symmetric memory it is registered
 * automatically. Errors: UF_EINVAL, UF_ERANGE (PE, or not symmetric memory), UF_EAGAIN (only UF_NOWAIT), UF_ETIMEDOUT (back-
 * pressure), and the world's error. */
UF_API int uf_put(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe);
UF_API int uf_put_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe);
UF_API int uf_get(uf_ctx *ctx, void *dst, const void *src, size_t bytes,
                  int pe); /* `src` symmetric; blocks until the data is here */
UF_API int uf_get_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, int pe); /* data here after uf_quiet */

/* A put and then an update of the symmetric 8-byte aligned word `sig` on the same PE: `op` UF_SIGNAL_SET or UF_SIGNAL_ADD with
 * `value`; `flags` UF_WEAK or UF_STRONG, | UF_SETTLED, | UF_NOWAIT. */
UF_API int uf_put_signal(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                         unsigned flags);
UF_API int uf_put_signal_nbi(uf_ctx *ctx, void *dst, const void *src, size_t bytes, uint64_t *sig, int op, uint64_t value, int pe,
                             unsigned flags);
/* A signal alone. UF_STRONG: after all earlier operations of the lane, without a drain. */
UF_API int uf_signal(uf_ctx *ctx, uint64_t *sig, int op, uint64_t value, int pe, unsigned flags);

/* Many puts with one doorbell, as `n` calls of uf_put_signal_nbi (sig NULL: uf_put_nbi) in order. On an error
 * `*done` rows (if not NULL) have been accepted and the others not. */
typedef struct uf_put_row {
    void *dst;
    const void *src;
    size_t bytes;
    uint64_t *sig;
    uint64_t value;
    int pe;
    uint16_t op, flags;
} uf_put_row;
UF_API int uf_put_batch(uf_ctx *ctx, const uf_put_row *rows, size_t n, size_t *done);

/* ---------------------------------------------------------------- order and completion */

/* Later puts, signals and atomics of the context are delivered after earlier ones, per peer. O(1), does not block, orders
 * no gets. Seldom needed: a weak signal covers its put, a strong one everything before. */
UF_API int uf_fence(uf_ctx *ctx);
/* Blocks until everything started on the context is complete at its target: bytes placed, signals and atomics applied,
 * gets here. `quiet_pe`: one peer only. `_test`: UF_OK if it is, else UF_EAGAIN at once (and progress is made). */
UF_API int uf_quiet(uf_ctx *ctx);
UF_API int uf_quiet_pe(uf_ctx *ctx, int pe);
UF_API int uf_quiet_test(uf_ctx *ctx);
/* Blocks until the sources of everything started may be reused, which says nothing about the target. */
UF_API int uf_flush(uf_ctx *ctx);
UF_API int uf_flush_test(uf_ctx *ctx);

/* ---------------------------------------------------------------- waits */

/* All compare unsigned 64-bit words of this PE's own memory. When a comparison holds, the data that the signal covers is
 * readable. They make progress for the whole PE while they wait. timeout_ns 0: test once. UF_ETIMEDOUT: the message has
 * the value seen and wanted and, for `_from`, how far the lane from `pe` has come. */
UF_API int uf_wait(uf_world *world, const uint64_t *sig, int cmp, uint64_t value, uint64_t timeout_ns);
UF_API int uf_wait_from(uf_world *world, const uint64_t *sig, int cmp, uint64_t value, int pe, uint64_t timeout_ns);
/* Over sigs[0..n): `skip` (may be NULL) marks entries to leave out with non-zero bytes; `values` NULL: all compare with
 * `value`. any: one that holds, its index in *index (n if all are skipped). all: every one. some: the indexes of all that
 * hold, at least one, in `indexes` (room for n) and their number in *count. */
typedef struct uf_wait_list {
    const uint64_t *const *sigs;
    size_t n;
    const unsigned char *skip;
    int cmp;
    uint64_t value;
    const uint64_t *values;
} uf_wait_list;
UF_API int uf_wait_any(uf_world *world, const uf_wait_list *list, size_t *index, uint64_t timeout_ns);
UF_API int uf_wait_all(uf_world *world, const uf_wait_list *list, uint64_t timeout_ns);
UF_API int uf_wait_some(uf_world *world, const uf_wait_list *list, size_t *indexes, size_t *count, uint64_t timeout_ns);
/* One look, with progress: UF_OK or UF_EAGAIN. */
UF_API int uf_test(uf_world *world, const uint64_t *sig, int cmp, uint64_t value);
/* The word's value with acquire order: what uf_wait would compare. */
UF_API uint64_t uf_signal_fetch(const uint64_t *sig);
/* Moves whatever can move, without waiting. Only needed with UNFENCE_PROGRESS=inline. */
UF_API int uf_progress(uf_world *world);

/* ---------------------------------------------------------------- atomics */

/* Atomic on the symmetric word `dst` (aligned to its `width`, 4 or 8 bytes) of PE `pe`, with respect to all other atomics
 * and signals on that word. Fetching forms write the old value, zero-extended, to *old (required) and block until it is
 * here; `_nbi` returns at once and *old is written by uf_quiet's return. The others are complete after uf_quiet.
 * Where the fabric has no atomics the owner's engine applies them. flags: UF_NOWAIT or 0. */
UF_API int uf_atomic(uf_ctx *ctx, uf_atomic_op op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old,
                     int pe);
UF_API int uf_atomic_nbi(uf_ctx *ctx, uf_atomic_op op, int width, void *dst, uint64_t operand, uint64_t compare, uint64_t *old,
                         int pe, unsigned flags);

/* Typed short forms of uf_atomic. */
#define UF_ATOMIC_TYPED_(bits, width)                                                                                            \
    static inline int uf_atomic_set##bits(uf_ctx *c, uint##bits##_t *d, uint##bits##_t v, int pe)                                \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_SET, width, d, v, 0, NULL, pe);                                                            \
    }                                                                                                                            \
    static inline int uf_atomic_add##bits(uf_ctx *c, uint##bits##_t *d, uint##bits##_t v, int pe)                                \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_ADD, width, d, v, 0, NULL, pe);                                                            \
    }                                                                                                                            \
    static inline int uf_atomic_fetch##bits(uf_ctx *c, const uint##bits##_t *d, uint64_t *old, int pe)                           \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_FETCH, width, (void *)(uintptr_t)d, 0, 0, old, pe);                                        \
    }                                                                                                                            \
    static inline int uf_atomic_fetch_add##bits(uf_ctx *c, uint##bits##_t *d, uint##bits##_t v, uint64_t *old, int pe)           \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_FETCH_ADD, width, d, v, 0, old, pe);                                                       \
    }                                                                                                                            \
    static inline int uf_atomic_swap##bits(uf_ctx *c, uint##bits##_t *d, uint##bits##_t v, uint64_t *old, int pe)                \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_SWAP, width, d, v, 0, old, pe);                                                            \
    }                                                                                                                            \
    static inline int uf_atomic_compare_swap##bits(uf_ctx *c, uint##bits##_t *d, uint##bits##_t compare, uint##bits##_t v,       \
                                                   uint64_t *old, int pe)                                                        \
    {                                                                                                                            \
        return uf_atomic(c, UF_ATOMIC_COMPARE_SWAP, width, d, v, compare, old, pe);                                              \
    }
UF_ATOMIC_TYPED_(64, 8)
UF_ATOMIC_TYPED_(32, 4)

/* ---------------------------------------------------------------- teams and collectives */

/* The team of all PEs; never destroyed by the caller. */
UF_API uf_team *uf_team_world(uf_world *world);
/* A team of pes[0..n) (numbers in `parent`, distinct), in that order. Collective over `parent`; all give the same list. PEs not in
 * it get *team = NULL. At most 64 teams exist at once in a world. */
UF_API int uf_team_create(uf_team *parent, const int *pes, int n, uf_team **team);
/* PEs start, start+stride, ... (n of them) of `parent`. */
UF_API int uf_team_split_strided(uf_team *parent, int start, int stride, int n, uf_team **team);
UF_API int uf_team_destroy(uf_team *team); /* collective over the team */
/* As for a world; -1 and 0 if `team` is NULL, as it is for who is not in it. */
UF_API int uf_team_pe(const uf_team *team);
UF_API int uf_team_n_pes(const uf_team *team);
/* The number in `to` of PE `pe` of `from`, or -1. */
UF_API int uf_team_translate(const uf_team *from, int pe, const uf_team *to);

/* barrier: completes all contexts of the PE (uf_quiet on each), then waits for the team. sync: waits only. */
UF_API int uf_barrier(uf_team *team);
UF_API int uf_sync(uf_team *team);
/* Collectives on the team. `dst` is symmetric, `src` any memory; they may not overlap unless equal (in place: broadcast on the
 * root, reduce). Data may be read when the call returns; `dst` may be reused by its owner then, and `src` as well. Each starts and
 * ends without a barrier where it can. broadcast: `bytes` from root's src to everybody's dst. allgather: `bytes` of each to dst + pe * bytes.
 * alltoall: `bytes` from src + pe * bytes to dst + mine * bytes of each. reduce: n elements, combined in PE order (deterministic). */
typedef enum uf_dtype { UF_INT32 = 0, UF_INT64 = 1, UF_UINT32 = 2, UF_UINT64 = 3, UF_FLOAT = 4, UF_DOUBLE = 5 } uf_dtype;
typedef enum uf_reduce_op { UF_SUM = 0, UF_PROD = 1, UF_MIN = 2, UF_MAX = 3, UF_AND = 4, UF_OR = 5, UF_XOR = 6 } uf_reduce_op;
UF_API int uf_broadcast(uf_team *team, void *dst, const void *src, size_t bytes, int root);
UF_API int uf_allgather(uf_team *team, void *dst, const void *src, size_t bytes);
UF_API int uf_alltoall(uf_team *team, void *dst, const void *src, size_t bytes);
UF_API int uf_reduce(uf_team *team, void *dst, const void *src, size_t n, uf_dtype type, uf_reduce_op op);

#ifdef __cplusplus
}
#endif

#endif
