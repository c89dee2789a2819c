/* host.h - what the NVSHMEM headers of this folder and their host part (libunfence_nvshmem.a) share: plain data and the functions behind
 * the inline ones.
 *
 * Part of nvshmem.h. A process holds one world, as that interface has it. Kernels find it through a `uf_nvshmem_state` in constant memory, one for
 * each module of device code: nvshmem.h puts it there, a static initializer tells the host part of it, and the first
 * allocation, which opens the GPU, fills it. So nothing needs relocatable device code. A failure of a function that has no result to return
 * it with goes to the failure handler. This header must stay readable for C11, C++17, nvcc and NVRTC. */
#ifndef UNFENCE_NVSHMEM_HOST_H
#define UNFENCE_NVSHMEM_HOST_H

#include "unfence/device_types.h"

enum { UF_NVSHMEM_TEAMS = 64 };

/* PEs start, start + stride, ... of the world, n of them; `me` is this PE's number there. No team: me -1, n 0. */
typedef struct uf_nvshmem_team {
    int32_t me, n, start, stride;
} uf_nvshmem_team;

typedef struct uf_nvshmem_state {
    uint32_t abi, size;
    const struct ufd_world *world;
    uf_nvshmem_team teams[UF_NVSHMEM_TEAMS];
} uf_nvshmem_state;

#if !defined(__CUDACC_RTC__)
#include "unfence/stream.h"
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A module of device code that was compiled ahead: `fill` copies the state to its own constant memory, 0 if it could. */
typedef struct uf_nvshmem_module {
    uint32_t abi, size; /* UFD_ABI and sizeof(uf_nvshmem_state) of the code that was compiled */
    int (*fill)(const uf_nvshmem_state *state);
    struct uf_nvshmem_module *next; /* the host part's */
} uf_nvshmem_module;
void uf_nvshmem_register(uf_nvshmem_module *module);
void uf_nvshmem_unregister(uf_nvshmem_module *module);

/* Fills the state of a module compiled at run time (a CUmodule of this PE's GPU), now if the GPU is in use, else at the first allocation; again when
 * teams change. uf_module_finish before the module is unloaded. Errors: UF_EINVAL (the module does not hold these headers), UF_ENOMEM, UF_ESYSTEM. */
int uf_module_init(void *module);
int uf_module_finish(void *module);

/* Takes what functions without a result cannot return: the function's name, the code and the sentence. If it returns, so does the function,
 * with nothing done. NULL restores the default, which ends the world for all PEs, prints the sentence and exits with status 1. */
typedef void (*uf_nvshmem_failure)(const char *function, int code, const char *message);
void uf_nvshmem_set_failure(uf_nvshmem_failure handler);
/* The sentence of the last error returned to the calling thread by a function of this interface that returns one. */
const char *uf_nvshmem_message(void);
/* The world that the process holds, for what this interface lacks; NULL before init and after finalize. */
uf_world *uf_nvshmem_world(void);

/* Behind functions that host and device share. */
int uf_nvshmem_my_pe(void);
int uf_nvshmem_n_pes(void);
void *uf_nvshmem_ptr(const void *symmetric, int pe);
void uf_nvshmem_put(void *dst, const void *src, size_t bytes, int pe);
void uf_nvshmem_put_nbi(void *dst, const void *src, size_t bytes, int pe);
void uf_nvshmem_get(void *dst, const void *src, size_t bytes, int pe);
void uf_nvshmem_get_nbi(void *dst, const void *src, size_t bytes, int pe);
void uf_nvshmem_put_signal(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe);
void uf_nvshmem_put_signal_nbi(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe);
void uf_nvshmem_signal(uint64_t *sig, uint64_t value, int op, int pe);
uint64_t uf_nvshmem_signal_fetch(uint64_t *sig);
uint64_t uf_nvshmem_signal_wait_until(uint64_t *sig, int cmp, uint64_t value);
void uf_nvshmem_fence(void);
void uf_nvshmem_quiet(void);
void uf_nvshmem_barrier_all(void);
void uf_nvshmem_sync_all(void);
uf_nvshmem_team uf_nvshmem_team_of(int team);

void uf_nvshmem_put_on_stream(void *dst, const void *src, size_t bytes, int pe, uf_stream stream);
void uf_nvshmem_get_on_stream(void *dst, const void *src, size_t bytes, int pe, uf_stream stream);
void uf_nvshmem_put_signal_on_stream(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t value, int op, int pe,
                                     uf_stream stream);
void uf_nvshmem_signal_on_stream(uint64_t *sig, uint64_t value, int op, int pe, uf_stream stream);

#ifdef __cplusplus
}
#endif
#endif

#endif
