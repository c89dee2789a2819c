/* topo.h - what is in this host: NICs and how fast they are, GPUs, where each hangs, and which NICs serve which GPU.
 *
 * Read from sysfs alone, below a root prefix: no verbs, no CUDA, no tool that may be absent, nothing loaded, nothing changed. The prefix "" is
 * the running host; tests and `unfence info --root` give a folder with a copy of another one's /sys. Whatever is missing, unreadable
 * or garbage makes a fact unknown and never 0, and never makes reading fail: containers hide much. Reading never blocks.
 * Where two sources contradict each other (driver against instance type) both are told in the notes and neither is corrected in
 * silence; UNFENCE_NIC_RATE settles it.
 *
 * Knows base alone. No function here keeps state; all may be called from any thread. */
#ifndef UF_TOPO_TOPO_H
#define UF_TOPO_TOPO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UF_TOPO_UNKNOWN UINT32_MAX /* of every uint32_t here: "unknown" is a value of its own */
#define UF_TOPO_NAME    64
#define UF_TOPO_PATH    256
#define UF_TOPO_NOTE    320
#define UF_TOPO_NOTES   32
#define UF_TOPO_CPUS    4096 /* cores that a set can name */

/* ---------------------------------------------------------------- facts */

/* A speed in Mb/s and where it comes from. `mbps` has no meaning, and is not to be calculated with, when `from` is UNKNOWN. */
typedef enum uf_topo_origin {
    UF_TOPO_FROM_NOTHING,  /* unknown */
    UF_TOPO_FROM_SYSTEM,   /* the driver's word in sysfs */
    UF_TOPO_FROM_INSTANCE, /* the instance type's table, where the driver says nothing */
    UF_TOPO_FROM_SETTING,  /* UNFENCE_NIC_RATE */
} uf_topo_origin;

typedef struct uf_topo_rate {
    uf_topo_origin from;
    uint64_t mbps;
} uf_topo_rate;

static inline bool uf_topo_rate_known(uf_topo_rate rate)
{
    return rate.from != UF_TOPO_FROM_NOTHING;
}

typedef struct uf_topo_cpus {
    uint32_t count; /* cores in the set; 0: unknown, since no device is near no core */
    uint64_t bits[UF_TOPO_CPUS / 64];
} uf_topo_cpus;

/* Where a device hangs. */
typedef struct uf_topo_place {
    char bus[16];            /* PCI address as "0000:53:00.0"; "" if it is not a PCI device or this is not known */
    char path[UF_TOPO_PATH]; /* below /sys/devices: "pci0000:50/0000:50:01.0/0000:53:00.0"; "" unknown */
    uint32_t vendor, device; /* PCI ids */
    uint32_t numa;           /* NUMA node */
    uf_topo_cpus cpus;       /* cores of that node; unknown where the node is */
    uf_topo_rate link;       /* what the device's own PCIe link carries of payload */
} uf_topo_place;

typedef enum uf_topo_nic_kind {                /* in order of preference as a fabric */
                                UF_TOPO_EFA,   /* an Elastic Fabric Adapter */
                                UF_TOPO_RDMA,  /* any other device with verbs */
                                UF_TOPO_PLAIN, /* a network interface with hardware behind it */
} uf_topo_nic_kind;

typedef enum uf_topo_port_state { UF_TOPO_PORT_UNKNOWN, UF_TOPO_PORT_UP, UF_TOPO_PORT_DOWN } uf_topo_port_state;

typedef struct uf_topo_nic {
    char name[UF_TOPO_NAME];      /* of the verbs device, else of the interface, else the PCI address (no driver) */
    char interface[UF_TOPO_NAME]; /* network interface of the same device, "" none */
    char driver[UF_TOPO_NAME];    /* "" none is bound, or unknown */
    uf_topo_nic_kind kind;
    uint32_t generation; /* of an EFA, 1 to 4 */
    uf_topo_port_state port;
    bool verbs;            /* a verbs device exists, without which an EFA carries nothing */
    bool virtual_function; /* of a physical function that is in this host too, which therefore is what counts */
    uf_topo_rate rate;
    uf_topo_place place;
} uf_topo_nic;

typedef struct uf_topo_gpu {
    char driver[UF_TOPO_NAME];
    bool hidden; /* its device file is known not to be here: a container was not given it, so CUDA does not count it */
    uf_topo_place place;
    uf_topo_rate rate;     /* what the fabric can carry for this GPU: its share of its nearest NICs, at most its own link */
    uint32_t first_rail;   /* its rails are topo->rails[first_rail .. first_rail + n_rails) */
    uint32_t n_rails;      /* 0: there is no NIC to serve it */
    uint32_t sharing;      /* GPUs that have the same nearest NICs, this one included */
    uint32_t nearest_nics; /* number of those NICs */
} uf_topo_gpu;

/* How far two devices are from each other, nearest first. */
typedef enum uf_topo_distance {
    UF_TOPO_SAME_SWITCH, /* a PCIe bridge above both */
    UF_TOPO_SAME_ROOT,   /* one root complex */
    UF_TOPO_SAME_SOCKET, /* one NUMA node, several root complexes */
    UF_TOPO_ACROSS,      /* different NUMA nodes */
    UF_TOPO_DISTANCE_UNKNOWN,
} uf_topo_distance;

/* What an instance type is sold with; a row of the table in instance.c. */
typedef struct uf_topo_instance {
    const char *type; /* "p5en.48xlarge" */
    uint32_t n_gpus;  /* 0: none that are GPUs */
    uint32_t n_nics, nic_gbps;
    uint32_t generation;
} uf_topo_instance;

typedef struct uf_topo {
    char product[UF_TOPO_NAME];       /* DMI product name, "" unknown */
    const uf_topo_instance *instance; /* NULL: not in the table */
    uint32_t numa_nodes;
    uf_topo_nic *nics; /* by PCI address, those without one last by name: the same order whatever the drivers call them */
    uint32_t n_nics;
    uf_topo_gpu *gpus; /* by PCI address, as CUDA_DEVICE_ORDER=PCI_BUS_ID counts them */
    uint32_t n_gpus;
    uint32_t *rails; /* indexes of NICs, one GPU's after another's */
    uint32_t n_rails;
    char notes[UF_TOPO_NOTES][UF_TOPO_NOTE]; /* contradictions and things that are odd, a sentence with its remedy each */
    uint32_t n_notes;
} uf_topo;

/* ---------------------------------------------------------------- reading */

/* Everything, from below `root`. `nic_gbps` is UNFENCE_NIC_RATE, 0: not set. UF_ENOMEM is the only error; a host without devices, or a folder
 * that does not exist, gives an empty topology. */
int uf_topo_read(const char *root, uint64_t nic_gbps, uf_topo **topo);
void uf_topo_free(uf_topo *topo); /* NULL is fine */

/* One NIC by the name of its verbs device or interface: a handful of files, for the start of an endpoint. False: there is none of that
 * name, or it is not hardware. Of its facts each may be unknown. The instance type is consulted only for an unknown rate. */
bool uf_topo_read_nic(const char *root, const char *name, uint64_t nic_gbps, uf_topo_nic *nic);

/* What the driver of an EFA counted since it was loaded, for all processes together; UF_TOPO_UNCOUNTED: it does not count that. */
#define UF_TOPO_UNCOUNTED UINT64_MAX
typedef struct uf_topo_traffic {
    uint64_t requests, bytes; /* writes, reads and sends */
    uint64_t failed;          /* writes and reads that ended with an error */
    uint64_t lost_peers;      /* times that a peer stopped answering, or a path to one was bad */
} uf_topo_traffic;
void uf_topo_traffic_read(const char *root, const char *name, uf_topo_traffic *traffic);

/* ---------------------------------------------------------------- questions */

uf_topo_distance uf_topo_distance_between(const uf_topo *topo, const uf_topo_place *a, const uf_topo_place *b);
/* The rails of a GPU: rail i of every GPU and host talks to rail i. */
static inline const uf_topo_nic *uf_topo_rail(const uf_topo *topo, const uf_topo_gpu *gpu, uint32_t i)
{
    return &topo->nics[topo->rails[gpu->first_rail + i]];
}
/* All NICs of the best kind that is here and usable: their number and rates together. Unknown if that of one is unknown. */
uf_topo_rate uf_topo_host_rate(const uf_topo *topo, uint32_t *n_nics);
static inline bool uf_topo_cpus_has(const uf_topo_cpus *cpus, uint32_t cpu)
{
    return cpu < UF_TOPO_CPUS && (cpus->bits[cpu / 64] >> (cpu % 64) & 1);
}

const char *uf_topo_kind_name(uf_topo_nic_kind kind);               /* "EFA", "RDMA", "plain" */
const char *uf_topo_distance_name(uf_topo_distance distance);       /* "same switch" */
const char *uf_topo_origin_name(uf_topo_origin origin);             /* "driver", "instance type", "UNFENCE_NIC_RATE", "unknown" */
const char *uf_topo_port_name(uf_topo_port_state state);            /* "up", "down", "unknown" */
const uf_topo_instance *uf_topo_instance_find(const char *product); /* NULL: not in the table */

#endif
