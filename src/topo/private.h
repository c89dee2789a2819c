/* private.h - what the files of this room share: finding (nics.c, gpus.c), placing (rails.c), checking (instance.c), joined by topo.c. */
#ifndef UF_TOPO_PRIVATE_H
#define UF_TOPO_PRIVATE_H

#include "topo/sysfs.h"
#include "topo/topo.h"

/* PCI functions by address, with the ids that say what they are; read once. */
typedef struct uf_topo_pci {
    char bus[16];
    uint32_t vendor, device, class; /* UF_TOPO_UNKNOWN where unreadable */
} uf_topo_pci;

typedef struct uf_topo_reader {
    const char *root;
    uint64_t nic_gbps;
    uf_topo_pci *pci;
    uint32_t n_pci;
    uf_topo *topo;
    uint32_t nic_room, gpu_room;
} uf_topo_reader;

/* Adds a sentence, once; those beyond UF_TOPO_NOTES are dropped. */
void uf_topo_note(uf_topo *topo, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fills a place from the folder of a device (a link is followed): everything that cannot be read stays unknown. */
void uf_topo_read_place(const char *root, const char *folder, uf_topo_place *place);
/* Orders places by PCI address; those without one are equal, and last. */
/* PCI bridges that are above both. */
uint32_t uf_topo_bridges_above(const uf_topo_place *a, const uf_topo_place *b);
int uf_topo_compare_places(const uf_topo_place *a, const uf_topo_place *b);

int uf_topo_find_nics(uf_topo_reader *reader); /* UF_ENOMEM */
int uf_topo_find_gpus(uf_topo_reader *reader); /* UF_ENOMEM */
/* The best kind of NIC that is usable here; false if none is. */
bool uf_topo_best_kind(const uf_topo *topo, uf_topo_nic_kind *kind);
bool uf_topo_nic_usable(const uf_topo_nic *nic);
int uf_topo_make_rails(uf_topo *topo); /* UF_ENOMEM */
void uf_topo_check_instance(uf_topo *topo);

#endif
