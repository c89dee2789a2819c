/* info.h - what `unfence info` has found out, as plain data: gathered in info.c, printed for people there and for machines in
 * info_json.c. */
#ifndef UNFENCE_TOOL_INFO_H
#define UNFENCE_TOOL_INFO_H

#include "base/settings.h"
#include "cuda/gpu.h"
#include "cuda/writer.h"
#include "fabric/fabric.h"
#include "host.h"
#include <stdbool.h>

#define INFO_PROVIDERS 16
#define INFO_WARNINGS  12
#define INFO_GPUS      16

/* A fabric tried with one provider: its limits, or why it is refused. */
typedef struct info_provider {
    char fabric[16], provider[32];
    bool usable;
    uf_fabric_caps caps;  /* if usable */
    char refused[400];    /* else */
    uint64_t order_bytes; /* memory of the ordering protocol for the PEs asked for, 0 if it would not fit */
} info_provider;

/* Memory that each PE of a world of n_pes sets aside at creation, with the settings in force. */
typedef struct info_memory {
    uint64_t n_pes;
    uint64_t heap, signals, address_space;
} info_memory;

typedef struct info_gpu {
    bool known;
    char refused[300]; /* else */
    uf_cuda_facts facts;
    char signals[480]; /* by which way signal words in its memory are stored, and why not by another */
    bool near[INFO_GPUS];
    const char *near_why[INFO_GPUS];
} info_gpu;

typedef struct info_gpus {
    bool usable;
    char why[640]; /* the driver, or why there is none */
    int n, found;
    info_gpu gpus[INFO_GPUS];
} info_gpus;
void info_gpus_find(const uf_settings *settings, info_gpus *g);
void info_gpus_print(const info_gpus *g);
struct json_object *info_gpus_json(const info_gpus *g);

typedef struct info_facts {
    host_facts host;
    info_gpus gpus;
    uf_settings settings;
    info_provider providers[INFO_PROVIDERS];
    size_t n_providers;
    info_memory memory;
    char warnings[INFO_WARNINGS][300];
    size_t n_warnings;
} info_facts;

typedef struct info_build {
    const char *version, *compiler, *build_type, *architecture, *sanitizers;
    char fabrics[64]; /* "local, ofi, efa" */
} info_build;
info_build info_build_facts(void);

/* Opens a fabric with one provider as a world of n PEs would, and closes it. */
void info_probe(const uf_settings *settings, uint64_t n, const struct uf_fabric_ops *ops, const char *provider, info_provider *p);
/* `unfence info --topo` (info_topo.c), below `root`. TOOL_EXIT_*. */
int info_topo(const char *root, bool json);
/* 0, or -1 if writing failed. */
int info_print_json(const info_facts *facts);

/* argv[0] is the command's own name. Returns TOOL_EXIT_*. */
int info_command(int argc, char **argv);

#endif
