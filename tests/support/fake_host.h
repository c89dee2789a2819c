/* fake_host.h - a folder that looks like another host's /sys, /proc and /dev: made from compact descriptions into a temporary folder, given to
 * code that takes a root prefix, removed at the end. The layout is that of sysfs: devices in a tree below /sys/devices, the class and bus
 * folders full of links into it. Every call fails the running cmocka test if the file system refuses. */
#ifndef UF_TESTS_FAKE_HOST_H
#define UF_TESTS_FAKE_HOST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_host {
    char root[64];
} fake_host;

void fake_host_create(fake_host *host);
void fake_host_remove(fake_host *host);

/* Files, with the folders above them. A path begins with "/". */
void fake_file(const fake_host *host, const char *path, const char *text);
void fake_folder(const fake_host *host, const char *path);
void fake_link(const fake_host *host, const char *path, const char *to);
void fake_remove(const fake_host *host, const char *path); /* a file, a link, or a folder with all that is in it */

/* A PCI function at `path` below /sys/devices; what is NULL or negative is left out. */
typedef struct fake_pci {
    const char *path; /* "pci0000:50/0000:50:01.0/0000:53:00.0" */
    uint32_t vendor, device, class;
    const char *numa, *cpus, *driver;
    const char *speed, *width; /* of the link, current and maximal */
} fake_pci;
void fake_pci_add(const fake_host *host, const fake_pci *pci);
/* A verbs device of the function at `path`, with one port. rate and state are the files' texts. */
void fake_verbs_add(const fake_host *host, const char *name, const char *path, const char *rate, const char *state);
/* A network interface of the device at `path`; NULL: one that is only software. */
void fake_net_add(const fake_host *host, const char *name, const char *path, const char *speed, const char *operstate);

/* A whole host: `switches` PCIe switches, each under a host bridge of its own, the first half of them on NUMA node 0, the others on 1. */
typedef struct fake_machine {
    const char *product;
    uint32_t switches, gpus, nics; /* the last two below each switch */
    uint32_t nic_vendor, nic_device, gpu_device;
    const char *nic_name;          /* printf format with one %u */
    const char *nic_driver, *rate; /* the port's rate file */
    const char *gpu_speed;
    uint32_t nodes;
} fake_machine;
void fake_machine_add(const fake_host *host, const fake_machine *machine);
/* Path below /sys/devices of device `i` (NICs first) below switch `s` of any machine made so. */
const char *fake_machine_path(uint32_t s, uint32_t i, char path[128]);
/* Machines that users have, by name: p4d, p5, p5en, p6-b200, p6-b300, mellanox. NULL: no such. */
const fake_machine *fake_machine_find(const char *name);

#endif
