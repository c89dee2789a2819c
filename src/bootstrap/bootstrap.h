/* bootstrap.h - how PEs find each other, agree, and hear of each other's end.
 *
 * Two implementations behind one table: in one process (group.c: PEs are threads or fibers that share a
 * uf_group) and over TCP (tcp.c: PE 0 listens, every PE keeps one connection to it for the life of the
 * world). Each frame carries a magic number, the world's id, a step counter and a length, so frames of two
 * steps or two jobs can never be taken for each other. PE 0 listens only while a world forms and gives each
 * PE that comes to the world that still lacks it: worlds of one job use one address, one after another, and
 * live side by side. They must be created in the same order on each PE. The exchange is used at creation and
 * by collective memory calls, never for data. One caller at a time per PE (the world's setup lock);
 * uf_bootstrap_poll and uf_bootstrap_abort from any thread. */
#ifndef UF_BOOTSTRAP_BOOTSTRAP_H
#define UF_BOOTSTRAP_BOOTSTRAP_H

#include "base/settings.h"
#include "engine/driver.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uf_bootstrap uf_bootstrap;

typedef struct uf_bootstrap_params {
    const uf_settings *settings;
    const uf_driver *driver; /* relax() between looks, now() for deadlines */
    int pe, n_pes;           /* final numbers */
    struct uf_group *group;  /* not NULL: in this process */
    const char *root;        /* "host:port" of PE 0; PE 0 listens there. "host:port+n": n ports from there, tried in
                         order by all */
    uint64_t timeout_ns;
    const char *job; /* name of the job, from uf_bootstrap_place; NULL or "": UNFENCE_JOB. Who names another job is
                        sent away */
} uf_bootstrap_params;

/* Where this process stands in its job: from options, else `unfence run` (UNFENCE_PE, UNFENCE_N_PES,
 * UNFENCE_ROOT), else torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), else Slurm (SLURM_PROCID,
 * SLURM_NTASKS, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID for the port), else one PE. */
typedef struct uf_bootstrap_place {
    int pe, n_pes;
    char root[280];
    char job[256];      /* UNFENCE_JOB, or made from torchrun's or Slurm's numbers; "": unknown */
    const char *source; /* "unfence run", "torchrun", "Slurm", "none", for the log */
} uf_bootstrap_place;
/* UF_EINVAL names the variable that is missing or wrong. Pure but for `environment` ("NAME=value",
 * NULL-terminated). */
int uf_bootstrap_find_place(const uf_settings *settings, const char *const *environment, uf_bootstrap_place *place);

/* Number of PEs that a group was made for. */
int uf_group_n_pes(const struct uf_group *group);

/* Blocks until all PEs are connected. UF_ETIMEDOUT names the PEs that did not come and the addresses tried;
 * UF_EMISMATCH: another version or number of PEs. Retries refused connections with growing pauses until the
 * deadline. */
int uf_bootstrap_create(const uf_bootstrap_params *params, uf_bootstrap **bootstrap);
void uf_bootstrap_destroy(uf_bootstrap *bootstrap);

/* Everybody's `bytes` (the same number on all; refused otherwise with both numbers: UF_EMISMATCH on all
 * alike) to everybody: all[pe * bytes]. Collective. UF_EPEER names a PE that died or left, UF_ETIMEDOUT those
 * that did not come. After UF_ETIMEDOUT the steps of the PEs no longer match, so every later exchange of this
 * world returns that same error at once, on all PEs. `timeout_ns` 0: the one given at creation. */
int uf_bootstrap_allgather(uf_bootstrap *bootstrap, const void *mine, size_t bytes, void *all, uint64_t timeout_ns);
int uf_bootstrap_barrier(uf_bootstrap *bootstrap, uint64_t timeout_ns);

/* Tells all others that this PE ends the world, and why. Does not block for long. */
void uf_bootstrap_abort(uf_bootstrap *bootstrap, int code, const char *why);
/* Tells them that it leaves in order, so that its closed connection is no death. */
void uf_bootstrap_leave(uf_bootstrap *bootstrap);

/* News: an abort or a death somewhere. Does not block; UF_OK if there is none, else the code (UF_EPEER,
 * UF_EABORTED), *pe whose it is, and the sentence in uf_error_message. Keeps answering the same. */
int uf_bootstrap_poll(uf_bootstrap *bootstrap, int *pe);
/* A descriptor that is readable when uf_bootstrap_poll has something to do, or -1 (in one process). */
int uf_bootstrap_fd(uf_bootstrap *bootstrap);
/* Something that differs between jobs and is equal on all PEs of one (from PE 0's clock, pid and random
 * bytes). */
uint64_t uf_bootstrap_id(const uf_bootstrap *bootstrap);

#endif
