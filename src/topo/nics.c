/* nics.c - finds NICs: verbs devices, EFA functions without one, and network interfaces with hardware behind them.
 *
 * A function that shows up in two of these (a Mellanox card is a verbs device and an interface) is one NIC. What is only software (loopback,
 * bridges, soft RoCE) has no device below its class folder and is no NIC. Names mean nothing here: the order is that of PCI addresses. */
#include "base/error.h"
#include "topo/parse.h"
#include "topo/private.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define VERBS_CLASS "/sys/class/infiniband"
#define NET_CLASS   "/sys/class/net"
#define PCI_DEVICES "/sys/bus/pci/devices"

enum { VENDOR_AMAZON = 0x1d0f, EFA_FIRST = 0xefa0, EFA_LAST = 0xefaf };

/* Generation by device id; those after the last known are EFAs of an unknown one. */
static const uint32_t efa_generations[] = {1, 2, 3, 4, 4};

static bool is_efa(uint32_t vendor, uint32_t device)
{
    return vendor == VENDOR_AMAZON && device >= EFA_FIRST && device <= EFA_LAST;
}

static uint32_t efa_generation(uint32_t device)
{
    size_t i = device - EFA_FIRST;
    return i < sizeof efa_generations / sizeof *efa_generations ? efa_generations[i] : UF_TOPO_UNKNOWN;
}

/* A class folder has room for a name of the kernel's only: what is longer is not one. */
static bool join(char path[PATH_MAX], const char *a, const char *b, const char *c)
{
    int length = snprintf(path, PATH_MAX, "%s/%s%s", a, b, c);
    return length > 0 && length < PATH_MAX && strlen(b) < UF_TOPO_NAME && !strchr(b, '/');
}

static void read_driver(const char *root, const char *device, uf_topo_nic *nic)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/driver", device);
    if (length < (int)sizeof path)
        uf_topo_link_name(root, path, nic->driver, sizeof nic->driver);
}

/* ---------------------------------------------------------------- verbs devices */

static uf_topo_port_state verbs_state(const char *root, const char *port)
{
    char text[64];
    if (!uf_topo_text_in(root, port, "state", text, sizeof text))
        return UF_TOPO_PORT_UNKNOWN;
    if (strstr(text, "ACTIVE"))
        return UF_TOPO_PORT_UP;
    return strstr(text, "DOWN") || strstr(text, "INIT") || strstr(text, "ARMED") ? UF_TOPO_PORT_DOWN : UF_TOPO_PORT_UNKNOWN;
}

/* The fastest of its best ports: one endpoint uses one port. A rate of a port that is down is no promise, and only taken if none is up. */
static void read_ports(const char *root, const char *device, uf_topo_nic *nic)
{
    static const int preference[] = {[UF_TOPO_PORT_UNKNOWN] = 1, [UF_TOPO_PORT_UP] = 2, [UF_TOPO_PORT_DOWN] = 0};
    char(*ports)[UF_TOPO_FILE_NAME];
    char path[PATH_MAX], port[PATH_MAX], text[64];
    uint32_t n;
    int best = -1;
    if (!join(path, VERBS_CLASS, device, "/ports") || uf_topo_list(root, path, &ports, &n, NULL))
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t mbps;
        if (snprintf(port, sizeof port, "%s/%s", path, ports[i]) >= (int)sizeof port)
            continue;
        uf_topo_port_state state = verbs_state(root, port);
        bool known = uf_topo_text_in(root, port, "rate", text, sizeof text) && uf_topo_parse_rate(text, &mbps);
        if (preference[state] > best) {
            best = preference[state];
            nic->port = state;
            nic->rate = (uf_topo_rate){UF_TOPO_FROM_NOTHING, 0};
        }
        if (known && preference[state] == best && (!uf_topo_rate_known(nic->rate) || mbps > nic->rate.mbps))
            nic->rate = (uf_topo_rate){UF_TOPO_FROM_SYSTEM, mbps};
    }
    free(ports);
}

static void read_interface_name(const char *root, const char *folder, uf_topo_nic *nic)
{
    char(*names)[UF_TOPO_FILE_NAME];
    char path[PATH_MAX];
    uint32_t n;
    if (snprintf(path, sizeof path, "%s/net", folder) >= (int)sizeof path || uf_topo_list(root, path, &names, &n, NULL))
        return;
    if (n && strlen(names[0]) < sizeof nic->interface)
        strcpy(nic->interface, names[0]);
    free(names);
}

static bool read_verbs(const char *root, const char *name, uf_topo_nic *nic)
{
    char folder[PATH_MAX];
    memset(nic, 0, sizeof *nic);
    if (!join(folder, VERBS_CLASS, name, "/device") || !uf_topo_exists(root, folder))
        return false;
    strcpy(nic->name, name);
    uf_topo_read_place(root, folder, &nic->place);
    bool efa = is_efa(nic->place.vendor, nic->place.device);
    nic->kind = efa ? UF_TOPO_EFA : UF_TOPO_RDMA;
    nic->generation = efa ? efa_generation(nic->place.device) : UF_TOPO_UNKNOWN;
    nic->verbs = true;
    read_driver(root, folder, nic);
    read_interface_name(root, folder, nic);
    read_ports(root, name, nic);
    return true;
}

/* ---------------------------------------------------------------- interfaces */

static bool read_plain(const char *root, const char *name, uf_topo_nic *nic)
{
    char folder[PATH_MAX], interface[PATH_MAX], text[64];
    memset(nic, 0, sizeof *nic);
    if (!join(interface, NET_CLASS, name, "") || !join(folder, NET_CLASS, name, "/device") || !uf_topo_exists(root, folder))
        return false;
    strcpy(nic->name, name);
    strcpy(nic->interface, name);
    nic->kind = UF_TOPO_PLAIN;
    nic->generation = UF_TOPO_UNKNOWN;
    uf_topo_read_place(root, folder, &nic->place);
    read_driver(root, folder, nic);
    if (uf_topo_text_in(root, interface, "operstate", text, sizeof text))
        nic->port = strcmp(text, "up") == 0     ? UF_TOPO_PORT_UP
                    : strcmp(text, "down") == 0 ? UF_TOPO_PORT_DOWN
                                                : UF_TOPO_PORT_UNKNOWN;
    if (uf_topo_text_in(root, interface, "speed", text, sizeof text) && uf_topo_parse_speed(text, &nic->rate.mbps))
        nic->rate.from = UF_TOPO_FROM_SYSTEM;
    return true;
}

/* ---------------------------------------------------------------- the list */

static int add(uf_topo_reader *reader, const uf_topo_nic *nic)
{
    uf_topo *topo = reader->topo;
    if (topo->n_nics == reader->nic_room) {
        uint32_t room = reader->nic_room ? 2 * reader->nic_room : 16;
        void *grown = realloc(topo->nics, room * sizeof *topo->nics);
        if (!grown)
            return uf_fail(UF_ENOMEM, "no memory for %" PRIu32 " NICs", room);
        topo->nics = grown;
        reader->nic_room = room;
    }
    topo->nics[topo->n_nics++] = *nic;
    return UF_OK;
}

static uf_topo_nic *find_bus(uf_topo *topo, const char *bus)
{
    for (uint32_t i = 0; *bus && i < topo->n_nics; i++)
        if (strcasecmp(topo->nics[i].place.bus, bus) == 0)
            return &topo->nics[i];
    return NULL;
}

static int add_verbs(uf_topo_reader *reader)
{
    char(*names)[UF_TOPO_FILE_NAME];
    uint32_t n;
    uf_topo_nic nic;
    int rc = uf_topo_list(reader->root, VERBS_CLASS, &names, &n, NULL);
    for (uint32_t i = 0; !rc && i < n; i++)
        if (read_verbs(reader->root, names[i], &nic))
            rc = add(reader, &nic);
    free(names);
    return rc;
}

/* EFA functions that no driver serves: there, and of no use until one does. */
static int add_unserved(uf_topo_reader *reader)
{
    char folder[PATH_MAX];
    uint32_t unserved = 0;
    const char *first = NULL;
    int rc = UF_OK;
    for (uint32_t i = 0; !rc && i < reader->n_pci; i++) {
        const uf_topo_pci *pci = &reader->pci[i];
        if (!is_efa(pci->vendor, pci->device) || find_bus(reader->topo, pci->bus))
            continue;
        uf_topo_nic nic = {.kind = UF_TOPO_EFA, .generation = efa_generation(pci->device)};
        snprintf(folder, sizeof folder, PCI_DEVICES "/%s", pci->bus);
        uf_topo_read_place(reader->root, folder, &nic.place);
        strcpy(nic.name, pci->bus);
        strcpy(nic.place.bus, pci->bus); /* known even if the link is broken */
        read_driver(reader->root, folder, &nic);
        first = first ? first : pci->bus;
        unserved++;
        rc = add(reader, &nic);
    }
    if (unserved)
        uf_topo_note(reader->topo,
                     "%" PRIu32
                     " EFA function%s without a verbs device (%s): load the efa and ib_uverbs modules, or give the devices to "
                     "this container",
                     unserved, unserved == 1 ? "" : "s", first);
    return rc;
}

static int add_plain(uf_topo_reader *reader)
{
    char(*names)[UF_TOPO_FILE_NAME];
    uint32_t n;
    uf_topo_nic nic;
    int rc = uf_topo_list(reader->root, NET_CLASS, &names, &n, NULL);
    for (uint32_t i = 0; !rc && i < n; i++) {
        if (!read_plain(reader->root, names[i], &nic))
            continue;
        uf_topo_nic *same = find_bus(reader->topo, nic.place.bus);
        if (same && same->kind != UF_TOPO_PLAIN) {
            if (!same->interface[0])
                strcpy(same->interface, nic.interface);
            continue;
        }
        rc = add(reader, &nic);
    }
    free(names);
    return rc;
}

/* Both a function and its virtual functions in one list would be one cable counted many times. In a guest or container that sees only
 * virtual ones they are what there is. */
static void mark_virtual(uf_topo_reader *reader)
{
    char path[PATH_MAX], physical[16];
    for (uint32_t i = 0; i < reader->topo->n_nics; i++) {
        uf_topo_nic *nic = &reader->topo->nics[i];
        if (!nic->place.bus[0])
            continue;
        snprintf(path, sizeof path, PCI_DEVICES "/%s/physfn", nic->place.bus);
        nic->virtual_function = uf_topo_link_name(reader->root, path, physical, sizeof physical) &&
                                strcasecmp(physical, nic->place.bus) != 0 && find_bus(reader->topo, physical);
    }
}

static int by_place(const void *a, const void *b)
{
    const uf_topo_nic *x = a, *y = b;
    int order = uf_topo_compare_places(&x->place, &y->place);
    if (!order)
        order = strverscmp(x->name, y->name);
    return order;
}

int uf_topo_find_nics(uf_topo_reader *reader)
{
    int rc = add_verbs(reader);
    if (!rc)
        rc = add_unserved(reader);
    if (!rc)
        rc = add_plain(reader);
    if (rc || !reader->topo->n_nics)
        return rc;
    mark_virtual(reader);
    qsort(reader->topo->nics, reader->topo->n_nics, sizeof *reader->topo->nics, by_place);
    return UF_OK;
}

bool uf_topo_read_nic(const char *root, const char *name, uint64_t nic_gbps, uf_topo_nic *nic)
{
    char product[UF_TOPO_NAME];
    uf_topo_nic found;
    if (!*name || (!read_verbs(root, name, &found) && !read_plain(root, name, &found)))
        return false;
    const uf_topo_instance *instance = NULL;
    if (!uf_topo_rate_known(found.rate) && found.kind == UF_TOPO_EFA &&
        uf_topo_text(root, "/sys/devices/virtual/dmi/id/product_name", product, sizeof product))
        instance = uf_topo_instance_find(product);
    if (nic_gbps)
        found.rate = (uf_topo_rate){UF_TOPO_FROM_SETTING, nic_gbps * 1000};
    else if (instance)
        found.rate = (uf_topo_rate){UF_TOPO_FROM_INSTANCE, (uint64_t)instance->nic_gbps * 1000};
    *nic = found;
    return true;
}
