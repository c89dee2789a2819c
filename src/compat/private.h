/* private.h - what the files of the NVSHMEM host part share: the one world of the process, and how a failure is told.
 *
 * This room stands on the public headers alone, so that its archive links with the shared library and with the static one. It keeps
 * what NVSHMEM keeps: state of the process. One thread at a time starts, ends, allocates and splits teams, as that interface asks. */
#ifndef UNFENCE_COMPAT_PRIVATE_H
#define UNFENCE_COMPAT_PRIVATE_H

#include "nvshmemx.h"
#include <stdbool.h>

typedef struct uf_compat {
    uf_world *world;
    uf_ctx *ctx;
    int starts;             /* nvshmem_init calls that finalize has not answered */
    uf_nvshmem_state state; /* world NULL: the GPU is not in use yet */
    uf_team *teams[UF_NVSHMEM_TEAMS];
} uf_compat;
extern uf_compat uf_compat_here;

/* Hands rc to the failure handler unless it is UF_OK. True if it is. */
bool uf_compat_ok(const char *function, int rc);
/* UF_OK, or UF_EINVAL before init. */
int uf_compat_started(void);
/* Fills the state of all modules: UF_ESYSTEM if one refuses. */
int uf_compat_fill_modules(void);
/* The teams of the world and of this host. */
void uf_compat_teams_open(void);
/* For mistakes that this room finds itself: keeps the sentence (a literal) for the failure handler and uf_nvshmem_message. Returns `code`. */
int uf_compat_fail(int code, const char *sentence);

#endif
