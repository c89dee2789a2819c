/* doctor.h - what `unfence doctor` looks at and what it says of it, as plain data.
 *
 * A table of rows (doctor_rows.c), each with a function that judges it from doctor_facts: files below a root prefix, the topology, and what
 * only a running process can know (doctor_facts.c), which is gathered before and is unknown below a prefix. So every row can be driven
 * to ok, missing and unknown by a test, and no check changes, loads or waits for anything. */
#ifndef UNFENCE_TOOL_DOCTOR_H
#define UNFENCE_TOOL_DOCTOR_H

#include "base/settings.h"
#include "host.h"
#include "topo/topo.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum doctor_state { DOCTOR_OK, DOCTOR_MISSING, DOCTOR_UNKNOWN } doctor_state;

/* Exit code if something that a fabric asked for needs is missing; others are TOOL_EXIT_*. */
#define DOCTOR_EXIT_MISSING 3

/* What can be asked for, as bits of doctor_row.needed and .helps. */
enum {
    DOCTOR_LOCAL = 1 << 0, /* mapped memory */
    DOCTOR_TCP = 1 << 1,   /* libfabric's providers */
    DOCTOR_SHM = 1 << 2,
    DOCTOR_OFI_EFA = 1 << 3,
    DOCTOR_EFA_DIRECT = 1 << 4,
    DOCTOR_VERBS = 1 << 5,
    DOCTOR_EFA = 1 << 6,       /* the EFA's queues without libfabric */
    DOCTOR_GPU = 1 << 7,       /* GPU memory as source or target */
    DOCTOR_GPU_POSTS = 1 << 8, /* kernels that write the NIC's queues */
};

typedef struct doctor_path {
    const char *name; /* as in UNFENCE_FABRIC, or "gpu", "gpu-posts" */
    uint32_t bit;
} doctor_path;
extern const doctor_path doctor_paths[]; /* ends with a NULL name */

/* A libfabric provider tried as a world would open it. */
typedef struct doctor_provider {
    const char *name;
    doctor_state state;
    char why[400];
} doctor_provider;
#define DOCTOR_PROVIDERS 5

typedef struct doctor_facts {
    const char *root;
    const uf_topo *topo;
    host_facts host;
    uint64_t n_pes, heap; /* PEs of this host, and bytes that each locks for a NIC */
    bool built_with_ofi;
    bool libfabric_known;
    uint32_t libfabric[3]; /* version in use */
    doctor_provider providers[DOCTOR_PROVIDERS];
    int attach, userfault; /* errno of a trial of cross-memory attach and userfaultfd, 0: works, -1: not tried */
} doctor_facts;

typedef struct doctor_row doctor_row;
struct doctor_row {
    const char *id;         /* stable, "efa-rdma-write" */
    uint32_t needed, helps; /* by which paths; those that need it are not repeated in helps */
    /* Writes what was found, as words. `row` carries the row's own argument. */
    doctor_state (*check)(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes);
    const char *argument;
    const char *what, *remedy, *lost; /* for people; lost: what does not work, or works worse, without it */
};
extern const doctor_row doctor_rows[];
extern const size_t doctor_n_rows;

const char *doctor_state_name(doctor_state state);

/* Fills what only a running process can know; below a prefix all of it stays unknown. Providers are tried in processes of their own, which are
 * given up after some seconds: a driver that hangs or crashes is a finding. */
void doctor_gather(doctor_facts *facts, const uf_settings *settings);
/* doctor_library.c: the file of a shared library below the prefix; false if there is none where loaders look. */
bool doctor_library_find(const char *root, const char *name, char *path, size_t bytes);
/* Whether there is any folder of libraries below the prefix: without one nothing is known of them. */
bool doctor_library_any(const char *root);
/* 1: the file names all `symbols` (words with a space between), 0: it lacks one, which goes to `lacking`; -1: it cannot be read. */
int doctor_library_has(const char *root, const char *path, const char *symbols, char *lacking, size_t bytes);

/* argv[0] is the command's own name. TOOL_EXIT_* or DOCTOR_EXIT_MISSING. */
int doctor_command(int argc, char **argv);

#endif
