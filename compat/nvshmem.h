/* nvshmem.h - NVSHMEM's names over Unfence: a program written for that library compiles against this header instead.
 *
 * For C11, C++17, nvcc and NVRTC. Only names and signatures follow NVSHMEM; docs/nvshmem.md lists the functions and says where semantics
 * differ. What Unfence cannot do is absent, so that using it is a compile error. Functions that host and device share are inline here and
 * choose by where they are compiled; those of the host alone are in libunfence_nvshmem.a. No relocatable device code is needed. */
#ifndef UNFENCE_NVSHMEM_H
#define UNFENCE_NVSHMEM_H

#if !defined(__CUDACC_RTC__) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#endif
#endif
#include "unfence_nvshmem/host.h"
#include "unfence_nvshmem/types.h"

#if defined(__CUDACC__)
#include "unfence_nvshmem/device.cuh"
#define UF_NVSHMEM_BOTH   static inline __host__ __device__
#define UF_NVSHMEM_DEVICE static inline __device__
#else
#define UF_NVSHMEM_BOTH static inline
#endif
#if defined(__CUDA_ARCH__)
#define UF_NVSHMEM_AT(host, device) device
#else
#define UF_NVSHMEM_AT(host, device) host
#endif

#define NVSHMEM_SIGNAL_SET UF_SIGNAL_SET
#define NVSHMEM_SIGNAL_ADD UF_SIGNAL_ADD
#define NVSHMEM_CMP_EQ     UF_EQ
#define NVSHMEM_CMP_NE     UF_NE
#define NVSHMEM_CMP_GT     UF_GT
#define NVSHMEM_CMP_GE     UF_GE
#define NVSHMEM_CMP_LT     UF_LT
#define NVSHMEM_CMP_LE     UF_LE

typedef int32_t nvshmem_team_t;
enum { NVSHMEM_TEAM_INVALID = -1, NVSHMEM_TEAM_WORLD = 0, NVSHMEM_TEAM_SHARED = 1, NVSHMEMX_TEAM_NODE = 2 };

/* ---------------------------------------------------------------- the host alone */

#if !defined(__CUDACC_RTC__)
#ifdef __cplusplus
extern "C" {
#endif
enum { NVSHMEM_THREAD_SINGLE = 0, NVSHMEM_THREAD_FUNNELED = 1, NVSHMEM_THREAD_SERIALIZED = 2, NVSHMEM_THREAD_MULTIPLE = 3 };
typedef struct nvshmem_team_config {
    int num_contexts; /* not looked at */
} nvshmem_team_config_t;

/* From the environment (`unfence run`, torchrun, Slurm). */
void nvshmem_init(void);
int nvshmem_init_thread(int requested, int *provided);
void nvshmem_query_thread(int *provided);
void nvshmem_finalize(void);
void nvshmem_global_exit(int status);

void *nvshmem_malloc(size_t bytes);
void *nvshmem_calloc(size_t count, size_t bytes);
void *nvshmem_align(size_t alignment, size_t bytes);
void nvshmem_free(void *ptr);

int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int n, const nvshmem_team_config_t *config,
                               long config_mask, nvshmem_team_t *team);
void nvshmem_team_destroy(nvshmem_team_t team);
int nvshmem_barrier(nvshmem_team_t team);
int nvshmem_team_sync(nvshmem_team_t team);
#ifdef __cplusplus
}
#endif
#endif

/* ---------------------------------------------------------------- host and device */

UF_NVSHMEM_BOTH int nvshmem_my_pe(void)
{
    return UF_NVSHMEM_AT(uf_nvshmem_my_pe(), ufd_pe(ufn_world()));
}

UF_NVSHMEM_BOTH int nvshmem_n_pes(void)
{
    return UF_NVSHMEM_AT(uf_nvshmem_n_pes(), ufd_n_pes(ufn_world()));
}

UF_NVSHMEM_BOTH void *nvshmem_ptr(const void *symmetric, int pe)
{
    return UF_NVSHMEM_AT(uf_nvshmem_ptr(symmetric, pe), (void *)ufd_ptr(ufn_world(), (const char *)symmetric, pe));
}

UF_NVSHMEM_BOTH void nvshmem_putmem(void *dst, const void *src, size_t bytes, int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_put(dst, src, bytes, pe), ufn_must(ufd_put(ufn_ctx(), dst, src, bytes, pe)));
}

UF_NVSHMEM_BOTH void nvshmem_putmem_nbi(void *dst, const void *src, size_t bytes, int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_put_nbi(dst, src, bytes, pe), ufn_must(ufd_put_nbi(ufn_ctx(), dst, src, bytes, pe)));
}

UF_NVSHMEM_BOTH void nvshmem_getmem(void *dst, const void *src, size_t bytes, int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_get(dst, src, bytes, pe), ufn_must(ufd_get(ufn_ctx(), dst, src, bytes, pe)));
}

UF_NVSHMEM_BOTH void nvshmem_getmem_nbi(void *dst, const void *src, size_t bytes, int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_get_nbi(dst, src, bytes, pe), ufn_must(ufd_get_nbi(ufn_ctx(), dst, src, bytes, pe)));
}

UF_NVSHMEM_BOTH void nvshmem_putmem_signal(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op,
                                           int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_put_signal(dst, src, bytes, sig, value, op, pe),
                  ufn_must(ufd_put_signal(ufn_ctx(), dst, src, bytes, sig, op, value, pe, UF_WEAK)));
}

UF_NVSHMEM_BOTH void nvshmem_putmem_signal_nbi(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op,
                                               int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_put_signal_nbi(dst, src, bytes, sig, value, op, pe),
                  ufn_must(ufd_put_signal_nbi(ufn_ctx(), dst, src, bytes, sig, op, value, pe, UF_WEAK)));
}

UF_NVSHMEM_BOTH void nvshmemx_signal_op(uint64_t *sig, uint64_t value, int op, int pe)
{
    UF_NVSHMEM_AT(uf_nvshmem_signal(sig, value, op, pe), ufn_must(ufd_signal(ufn_ctx(), sig, op, value, pe, UF_WEAK)));
}

UF_NVSHMEM_BOTH uint64_t nvshmem_signal_fetch(uint64_t *sig)
{
    return UF_NVSHMEM_AT(uf_nvshmem_signal_fetch(sig), ufd_signal_fetch(sig));
}

/* The value that held. The host reads it again: others may have moved the word on since. */
UF_NVSHMEM_BOTH uint64_t nvshmem_signal_wait_until(uint64_t *sig, int cmp, uint64_t value)
{
#if defined(__CUDA_ARCH__)
    return ufn_signal_wait(sig, cmp, value);
#else
    return uf_nvshmem_signal_wait_until(sig, cmp, value);
#endif
}

UF_NVSHMEM_BOTH void nvshmem_fence(void)
{
    UF_NVSHMEM_AT(uf_nvshmem_fence(), ufn_must(ufd_fence(ufn_ctx())));
}

UF_NVSHMEM_BOTH void nvshmem_quiet(void)
{
    UF_NVSHMEM_AT(uf_nvshmem_quiet(), ufn_must(ufd_quiet(ufn_ctx())));
}

UF_NVSHMEM_BOTH void nvshmem_barrier_all(void)
{
    UF_NVSHMEM_AT(uf_nvshmem_barrier_all(), ufn_must(ufd_barrier(ufn_world())));
}

/* Makes plain stores visible, as NVSHMEM promises: in kernels that is the barrier, since ufd_sync orders nothing. */
UF_NVSHMEM_BOTH void nvshmem_sync_all(void)
{
    UF_NVSHMEM_AT(uf_nvshmem_sync_all(), ufn_must(ufd_barrier(ufn_world())));
}

UF_NVSHMEM_BOTH uf_nvshmem_team uf_nvshmem_team_at(nvshmem_team_t team)
{
    uf_nvshmem_team none = {-1, 0, 0, 1};
    if (team < 0 || team >= UF_NVSHMEM_TEAMS)
        return none;
    return UF_NVSHMEM_AT(uf_nvshmem_team_of(team), uf_nvshmem_here.teams[team]);
}

/* -1 for who is not in it, and for no team. */
UF_NVSHMEM_BOTH int nvshmem_team_my_pe(nvshmem_team_t team)
{
    return uf_nvshmem_team_at(team).me;
}

UF_NVSHMEM_BOTH int nvshmem_team_n_pes(nvshmem_team_t team)
{
    uf_nvshmem_team t = uf_nvshmem_team_at(team);
    return t.n ? t.n : -1;
}

UF_NVSHMEM_BOTH int nvshmem_team_translate_pe(nvshmem_team_t from, int pe, nvshmem_team_t to)
{
    uf_nvshmem_team a = uf_nvshmem_team_at(from), b = uf_nvshmem_team_at(to);
    if (pe < 0 || pe >= a.n || b.n == 0)
        return -1;
    int far = a.start + pe * a.stride - b.start, i = far / b.stride;
    return far % b.stride == 0 && i >= 0 && i < b.n ? i : -1;
}

/* nvshmem_float_put and so on. */
#define UF_NVSHMEM_TYPED_(name, type)                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_put(type *dst, const type *src, size_t n, int pe)                                      \
    {                                                                                                                            \
        nvshmem_putmem(dst, src, n * sizeof(type), pe);                                                                          \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_put_nbi(type *dst, const type *src, size_t n, int pe)                                  \
    {                                                                                                                            \
        nvshmem_putmem_nbi(dst, src, n * sizeof(type), pe);                                                                      \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_get(type *dst, const type *src, size_t n, int pe)                                      \
    {                                                                                                                            \
        nvshmem_getmem(dst, src, n * sizeof(type), pe);                                                                          \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_get_nbi(type *dst, const type *src, size_t n, int pe)                                  \
    {                                                                                                                            \
        nvshmem_getmem_nbi(dst, src, n * sizeof(type), pe);                                                                      \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_put_signal(type *dst, const type *src, size_t n, uint64_t *sig, uint64_t value,        \
                                                     int op, int pe)                                                             \
    {                                                                                                                            \
        nvshmem_putmem_signal(dst, src, n * sizeof(type), sig, value, op, pe);                                                   \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_put_signal_nbi(type *dst, const type *src, size_t n, uint64_t *sig, uint64_t value,    \
                                                         int op, int pe)                                                         \
    {                                                                                                                            \
        nvshmem_putmem_signal_nbi(dst, src, n * sizeof(type), sig, value, op, pe);                                               \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH void nvshmem_##name##_p(type *dst, type value, int pe)                                                       \
    {                                                                                                                            \
        UF_NVSHMEM_AT(uf_nvshmem_put(dst, &value, sizeof value, pe), ufn_p(dst, value, pe));                                     \
    }                                                                                                                            \
    UF_NVSHMEM_BOTH type nvshmem_##name##_g(const type *src, int pe)                                                             \
    {                                                                                                                            \
        type value = 0;                                                                                                          \
        UF_NVSHMEM_AT(uf_nvshmem_get(&value, src, sizeof value, pe), value = ufn_g(src, pe));                                    \
        return value;                                                                                                            \
    }
UF_NVSHMEM_DATA_TYPES(UF_NVSHMEM_TYPED_)

/* ---------------------------------------------------------------- the device alone */

#if defined(__CUDACC__)
/* Waits and tests: `status` non-zero leaves an entry out. The vector forms compare each word with its own value. */
#define UF_NVSHMEM_WAITS_(name, type)                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmem_##name##_wait_until(type *word, int cmp, type value)                                          \
    {                                                                                                                            \
        ufn_wait(word, cmp, value);                                                                                              \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE int nvshmem_##name##_test(type *word, int cmp, type value)                                                 \
    {                                                                                                                            \
        return ufn_holds(word, cmp, value);                                                                                      \
    }                                                                                                                            \
    UF_NVSHMEM_WAITS_OF_(name, type, , type value, ufn_one<type>{value})                                                         \
    UF_NVSHMEM_WAITS_OF_(name, type, _vector, type *values, ufn_each<type>{values})
#define UF_NVSHMEM_WAITS_OF_(name, type, suffix, parameter, ...)                                                                 \
    UF_NVSHMEM_DEVICE void nvshmem_##name##_wait_until_all##suffix(type *words, size_t n, const int *status, int cmp, parameter) \
    {                                                                                                                            \
        ufn_wait_all(words, n, status, cmp, __VA_ARGS__);                                                                        \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE size_t nvshmem_##name##_wait_until_any##suffix(type *words, size_t n, const int *status, int cmp,          \
                                                                     parameter)                                                  \
    {                                                                                                                            \
        return ufn_wait_any(words, n, status, cmp, __VA_ARGS__);                                                                 \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE size_t nvshmem_##name##_wait_until_some##suffix(type *words, size_t n, size_t *indexes, const int *status, \
                                                                      int cmp, parameter)                                        \
    {                                                                                                                            \
        return ufn_wait_some(words, n, indexes, n, status, cmp, __VA_ARGS__);                                                    \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE int nvshmem_##name##_test_all##suffix(type *words, size_t n, const int *status, int cmp, parameter)        \
    {                                                                                                                            \
        return ufn_test_all(words, n, status, cmp, __VA_ARGS__);                                                                 \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE size_t nvshmem_##name##_test_any##suffix(type *words, size_t n, const int *status, int cmp, parameter)     \
    {                                                                                                                            \
        return ufn_test_any(words, n, status, cmp, __VA_ARGS__);                                                                 \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE size_t nvshmem_##name##_test_some##suffix(type *words, size_t n, size_t *indexes, const int *status,       \
                                                                int cmp, parameter)                                              \
    {                                                                                                                            \
        return ufn_test_some(words, n, indexes, n, status, cmp, __VA_ARGS__);                                                    \
    }
UF_NVSHMEM_WORD_TYPES(UF_NVSHMEM_WAITS_)

#define UF_NVSHMEM_ATOMICS_OF_ALL_(name, type)                                                                                   \
    UF_NVSHMEM_DEVICE type nvshmem_##name##_atomic_fetch(const type *src, int pe)                                                \
    {                                                                                                                            \
        return ufn_atomic<type>(UF_ATOMIC_FETCH, (type *)src, 0, 0, pe);                                                         \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE void nvshmem_##name##_atomic_set(type *dst, type value, int pe)                                            \
    {                                                                                                                            \
        ufn_atomic<type>(UF_ATOMIC_SET, dst, value, 0, pe);                                                                      \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE type nvshmem_##name##_atomic_swap(type *dst, type value, int pe)                                           \
    {                                                                                                                            \
        return ufn_atomic<type>(UF_ATOMIC_SWAP, dst, value, 0, pe);                                                              \
    }
#define UF_NVSHMEM_ATOMIC_(name, type, what, op)                                                                                 \
    UF_NVSHMEM_DEVICE void nvshmem_##name##_atomic_##what(type *dst, type value, int pe)                                         \
    {                                                                                                                            \
        ufn_atomic<type>(UF_ATOMIC_##op, dst, value, 0, pe);                                                                     \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE type nvshmem_##name##_atomic_fetch_##what(type *dst, type value, int pe)                                   \
    {                                                                                                                            \
        return ufn_atomic<type>(UF_ATOMIC_FETCH_##op, dst, value, 0, pe);                                                        \
    }
#define UF_NVSHMEM_ATOMICS_(name, type)                                                                                          \
    UF_NVSHMEM_ATOMICS_OF_ALL_(name, type)                                                                                       \
    UF_NVSHMEM_ATOMIC_(name, type, add, ADD)                                                                                     \
    UF_NVSHMEM_ATOMIC_(name, type, and, AND)                                                                                     \
    UF_NVSHMEM_ATOMIC_(name, type, or, OR)                                                                                       \
    UF_NVSHMEM_ATOMIC_(name, type, xor, XOR)                                                                                     \
    UF_NVSHMEM_DEVICE void nvshmem_##name##_atomic_inc(type *dst, int pe)                                                        \
    {                                                                                                                            \
        ufn_atomic<type>(UF_ATOMIC_ADD, dst, 1, 0, pe);                                                                          \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE type nvshmem_##name##_atomic_fetch_inc(type *dst, int pe)                                                  \
    {                                                                                                                            \
        return ufn_atomic<type>(UF_ATOMIC_FETCH_ADD, dst, 1, 0, pe);                                                             \
    }                                                                                                                            \
    UF_NVSHMEM_DEVICE type nvshmem_##name##_atomic_compare_swap(type *dst, type compare, type value, int pe)                     \
    {                                                                                                                            \
        return ufn_atomic<type>(UF_ATOMIC_COMPARE_SWAP, dst, value, compare, pe);                                                \
    }
UF_NVSHMEM_WORD_TYPES(UF_NVSHMEM_ATOMICS_)
UF_NVSHMEM_FLOAT_TYPES(UF_NVSHMEM_ATOMICS_OF_ALL_)
#endif

#endif
