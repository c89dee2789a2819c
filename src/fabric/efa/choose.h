/* choose.h - which of a host's EFA devices are the rails of one PE, where the user named none. */
#ifndef UF_FABRIC_EFA_CHOOSE_H
#define UF_FABRIC_EFA_CHOOSE_H

#include "fabric/efa/device.h"
#include "topo/topo.h"

/* What a PE knows of its place in the host. */
typedef struct uf_efa_local {
    uint32_t rank, size; /* among the PEs of this host; size 0: unknown */
    uint32_t gpu;        /* among those of the topology that are not hidden; UF_TOPO_UNKNOWN: none is known */
    uf_topo_cpus cpus;   /* cores that it may use; count 0: unknown */
} uf_efa_local;

typedef struct uf_efa_choice {
    uint32_t n;
    uint32_t nic[UF_EFA_NICS_MAX]; /* indexes into the names, rail order */
    char why[128];                 /* "nearest to GPU 3" */
} uf_efa_choice;

/* From the launcher's variables ("NAME=value", NULL-terminated): torchrun's, Slurm's or Open MPI's; else, where all PEs are on one host, from
 * its number. The cores are left alone. */
void uf_efa_local_read(const char *const *environment, int pe, int n_pes, bool one_host, uf_efa_local *local);

/* Of the `n` devices with these names (at most UF_EFA_NICS_MAX) those that are near `local`, at most `n_rails` (0: no bound). Pure; at
 * least one if n is not 0. */
void uf_efa_choose(const uf_topo *topo, const char *const *names, uint32_t n, uint32_t n_rails, const uf_efa_local *local,
                   uf_efa_choice *choice);

#endif
