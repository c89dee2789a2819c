/* nvshmemx.h - NVSHMEM's extensions over Unfence: start by a unique id, modules, streams, and operations by warps and blocks.
 *
 * The same rules as in nvshmem.h. A stream stores signals; it cannot add to a word, so that an ADD takes a kernel of one thread (it never
 * waits), which code that nvcc compiles launches; from other code ADD on a stream is a failure. docs/nvshmem.md has the list. */
#ifndef UNFENCE_NVSHMEMX_H
#define UNFENCE_NVSHMEMX_H

#include "nvshmem.h"

#if !defined(__CUDACC_RTC__)
struct CUmod_st;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUmod_st *CUmodule;

#define NVSHMEMX_INIT_WITH_UNIQUEID 8u
/* Made by one PE, copied to all by the program. */
typedef struct nvshmemx_uniqueid {
    int version;
    char internal[124]; /* where PE 0 listens */
} nvshmemx_uniqueid_t;
typedef struct nvshmemx_init_attr {
    int version, pe, n_pes;
    nvshmemx_uniqueid_t id;
} nvshmemx_init_attr_t;
#define NVSHMEMX_UNIQUEID_INITIALIZER                                                                                            \
    {                                                                                                                            \
        1,                                                                                                                       \
        {                                                                                                                        \
            0                                                                                                                    \
        }                                                                                                                        \
    }
#define NVSHMEMX_INIT_ATTR_INITIALIZER                                                                                           \
    {                                                                                                                            \
        1, -1, -1, NVSHMEMX_UNIQUEID_INITIALIZER                                                                                 \
    }
enum { NVSHMEM_STATUS_NOT_INITIALIZED = 0, NVSHMEM_STATUS_IS_BOOTSTRAPPED = 1, NVSHMEM_STATUS_IS_INITIALIZED = 2 };

#ifdef __cplusplus
extern "C" {
#endif
/* Called by the process that becomes PE 0, before its nvshmemx_init_attr. */
int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id);
int nvshmemx_set_attr_uniqueid_args(int pe, int n_pes, const nvshmemx_uniqueid_t *id, nvshmemx_init_attr_t *attr);
int nvshmemx_init_attr(unsigned flags, nvshmemx_init_attr_t *attr);
int nvshmemx_hostlib_init_attr(unsigned flags, nvshmemx_init_attr_t *attr);
void nvshmemx_hostlib_finalize(void);
int nvshmemx_init_status(void);
int nvshmemx_cumodule_init(CUmodule module);
int nvshmemx_cumodule_finalize(CUmodule module);

void nvshmemx_signal_wait_until_on_stream(uint64_t *sig, int cmp, uint64_t value, cudaStream_t stream);
void nvshmemx_barrier_all_on_stream(cudaStream_t stream);
void nvshmemx_sync_all_on_stream(cudaStream_t stream);
int nvshmemx_barrier_on_stream(nvshmem_team_t team, cudaStream_t stream);
int nvshmemx_team_sync_on_stream(nvshmem_team_t team, cudaStream_t stream);
void nvshmemx_quiet_on_stream(cudaStream_t stream);
#ifdef __cplusplus
}
#endif

/* ---------------------------------------------------------------- on streams */

static inline void nvshmemx_putmem_on_stream(void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream)
{
    uf_nvshmem_put_on_stream(dst, src, bytes, pe, stream);
}

static inline void nvshmemx_putmem_nbi_on_stream(void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream)
{
    uf_nvshmem_put_on_stream(dst, src, bytes, pe, stream);
}

static inline void nvshmemx_getmem_on_stream(void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream)
{
    uf_nvshmem_get_on_stream(dst, src, bytes, pe, stream);
}

static inline void nvshmemx_getmem_nbi_on_stream(void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream)
{
    uf_nvshmem_get_on_stream(dst, src, bytes, pe, stream);
}

#if defined(__CUDACC__)
/* After everything before it in the stream. */
static __global__ void uf_nvshmem_add(uint64_t *sig, uint64_t value, int pe)
{
    ufn_must(ufd_signal(ufn_ctx(), sig, UF_SIGNAL_ADD, value, pe, UF_STRONG));
}
#endif

static inline void nvshmemx_signal_op_on_stream(uint64_t *sig, uint64_t value, int op, int pe, cudaStream_t stream)
{
#if defined(__CUDACC__)
    if (op == UF_SIGNAL_ADD) {
        uf_nvshmem_add<<<1, 1, 0, stream>>>(sig, value, pe);
        return;
    }
#endif
    uf_nvshmem_signal_on_stream(sig, value, op, pe, stream);
}

static inline void nvshmemx_putmem_signal_on_stream(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value,
                                                    int op, int pe, cudaStream_t stream)
{
#if defined(__CUDACC__)
    if (op == UF_SIGNAL_ADD) {
        uf_nvshmem_put_on_stream(dst, src, bytes, pe, stream);
        nvshmemx_signal_op_on_stream(sig, value, op, pe, stream);
        return;
    }
#endif
    uf_nvshmem_put_signal_on_stream(dst, src, bytes, sig, value, op, pe, stream);
}

static inline void nvshmemx_putmem_signal_nbi_on_stream(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value,
                                                        int op, int pe, cudaStream_t stream)
{
    nvshmemx_putmem_signal_on_stream(dst, src, bytes, sig, value, op, pe, stream);
}

#define UF_NVSHMEM_TYPED_STREAM_(name, type)                                                                                     \
    static inline void nvshmemx_##name##_put_on_stream(type *dst, const type *src, size_t n, int pe, cudaStream_t stream)        \
    {                                                                                                                            \
        nvshmemx_putmem_on_stream(dst, src, n * sizeof(type), pe, stream);                                                       \
    }                                                                                                                            \
    static inline void nvshmemx_##name##_put_nbi_on_stream(type *dst, const type *src, size_t n, int pe, cudaStream_t stream)    \
    {                                                                                                                            \
        nvshmemx_putmem_nbi_on_stream(dst, src, n * sizeof(type), pe, stream);                                                   \
    }                                                                                                                            \
    static inline void nvshmemx_##name##_get_on_stream(type *dst, const type *src, size_t n, int pe, cudaStream_t stream)        \
    {                                                                                                                            \
        nvshmemx_getmem_on_stream(dst, src, n * sizeof(type), pe, stream);                                                       \
    }                                                                                                                            \
    static inline void nvshmemx_##name##_put_signal_on_stream(type *dst, const type *src, size_t n, uint64_t *sig,               \
                                                              uint64_t value, int op, int pe, cudaStream_t stream)               \
    {                                                                                                                            \
        nvshmemx_putmem_signal_on_stream(dst, src, n * sizeof(type), sig, value, op, pe, stream);                                \
    }                                                                                                                            \
    static inline void nvshmemx_##name##_put_signal_nbi_on_stream(type *dst, const type *src, size_t n, uint64_t *sig,           \
                                                                  uint64_t value, int op, int pe, cudaStream_t stream)           \
    {                                                                                                                            \
        nvshmemx_putmem_signal_on_stream(dst, src, n * sizeof(type), sig, value, op, pe, stream);                                \
    }
UF_NVSHMEM_DATA_TYPES(UF_NVSHMEM_TYPED_STREAM_)
#endif

/* ---------------------------------------------------------------- by warps and blocks */

#if defined(__CUDACC__)
#define UF_NVSHMEM_SCOPE_(scope)                                                                                                 \
    UF_NVSHMEM_DEVICE void nvshmemx_putmem_##scope(void *dst, const void *src, size_t bytes, int pe)                             \
    {                                                                                                                            \
        ufn_must(ufd_put_##scope(ufn_ctx(), dst, src, bytes, pe));                                                               \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_putmem_nbi_##scope(void *dst, const void *src, size_t bytes, int pe)                         \
    {                                                                                                                            \
        ufn_must(ufd_put_nbi_##scope(ufn_ctx(), dst, src, bytes, pe));                                                           \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_getmem_##scope(void *dst, const void *src, size_t bytes, int pe)                             \
    {                                                                                                                            \
        ufn_must(ufd_get_##scope(ufn_ctx(), dst, src, bytes, pe));                                                               \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_getmem_nbi_##scope(void *dst, const void *src, size_t bytes, int pe)                         \
    {                                                                                                                            \
        ufn_must(ufd_get_nbi_##scope(ufn_ctx(), dst, src, bytes, pe));                                                           \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_putmem_signal_##scope(void *dst, const void *src, size_t bytes, uint64_t *sig,               \
                                                          uint64_t value, int op, int pe)                                        \
    {                                                                                                                            \
        ufn_must(ufd_put_signal_##scope(ufn_ctx(), dst, src, bytes, sig, op, value, pe, UF_WEAK));                               \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_putmem_signal_nbi_##scope(void *dst, const void *src, size_t bytes, uint64_t *sig,           \
                                                              uint64_t value, int op, int pe)                                    \
    {                                                                                                                            \
        ufn_must(ufd_put_signal_nbi_##scope(ufn_ctx(), dst, src, bytes, sig, op, value, pe, UF_WEAK));                           \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_barrier_all_##scope(void)                                                                    \
    {                                                                                                                            \
        ufn_must(ufd_barrier_##scope(ufn_world()));                                                                              \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_sync_all_##scope(void)                                                                       \
    {                                                                                                                            \
        ufn_must(ufd_barrier_##scope(ufn_world()));                                                                              \
    }
UF_NVSHMEM_SCOPE_(warp)
UF_NVSHMEM_SCOPE_(block)

#define UF_NVSHMEM_TYPED_SCOPE_(name, type, scope)                                                                               \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_put_##scope(type *dst, const type *src, size_t n, int pe)                           \
    {                                                                                                                            \
        nvshmemx_putmem_##scope(dst, src, n * sizeof(type), pe);                                                                 \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_put_nbi_##scope(type *dst, const type *src, size_t n, int pe)                       \
    {                                                                                                                            \
        nvshmemx_putmem_nbi_##scope(dst, src, n * sizeof(type), pe);                                                             \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_get_##scope(type *dst, const type *src, size_t n, int pe)                           \
    {                                                                                                                            \
        nvshmemx_getmem_##scope(dst, src, n * sizeof(type), pe);                                                                 \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_get_nbi_##scope(type *dst, const type *src, size_t n, int pe)                       \
    {                                                                                                                            \
        nvshmemx_getmem_nbi_##scope(dst, src, n * sizeof(type), pe);                                                             \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_put_signal_##scope(type *dst, const type *src, size_t n, uint64_t *sig,             \
                                                                uint64_t value, int op, int pe)                                  \
    {                                                                                                                            \
        nvshmemx_putmem_signal_##scope(dst, src, n * sizeof(type), sig, value, op, pe);                                          \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmemx_##name##_put_signal_nbi_##scope(type *dst, const type *src, size_t n, uint64_t *sig,         \
                                                                    uint64_t value, int op, int pe)                              \
    {                                                                                                                            \
        nvshmemx_putmem_signal_nbi_##scope(dst, src, n * sizeof(type), sig, value, op, pe);                                      \
    }
#define UF_NVSHMEM_TYPED_SCOPES_(name, type)                                                                                     \
    UF_NVSHMEM_TYPED_SCOPE_(name, type, warp)                                                                                    \
    UF_NVSHMEM_TYPED_SCOPE_(name, type, block)
UF_NVSHMEM_DATA_TYPES(UF_NVSHMEM_TYPED_SCOPES_)
#endif

#endif
