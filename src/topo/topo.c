/* topo.c - reads a host: the order in which facts depend on each other, and where a device hangs. See topo.h.
 *
 * PCI first (one pass, three small files a function), then NICs and GPUs from it and from the class folders, then what follows from
 * both: rates where only the instance type tells, rails, contradictions. */
#include "topo/topo.h"
#include "base/error.h"
#include "topo/parse.h"
#include "topo/private.h"
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCI_DEVICES "/sys/bus/pci/devices"
#define NODES       "/sys/devices/system/node"
#define PRODUCT     "/sys/devices/virtual/dmi/id/product_name"

void uf_topo_note(uf_topo *topo, const char *format, ...)
{
    char note[UF_TOPO_NOTE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    for (uint32_t i = 0; i < topo->n_notes; i++)
        if (strcmp(topo->notes[i], note) == 0)
            return;
    if (topo->n_notes < UF_TOPO_NOTES)
        memcpy(topo->notes[topo->n_notes++], note, sizeof note);
}

/* ---------------------------------------------------------------- places */

/* Cuts a path behind its last PCI address, which is the function the device belongs to ("virtio0" and the like lie below it). */
static void find_function(uf_topo_place *place)
{
    const char *end = NULL;
    for (const char *at = place->path; *at;) {
        size_t length = strcspn(at, "/");
        if (uf_topo_parse_bus(at, length)) {
            memcpy(place->bus, at, length);
            place->bus[length] = '\0';
            end = at + length;
        }
        at += length + (at[length] == '/');
    }
    if (end)
        place->path[end - place->path] = '\0';
    else
        place->path[0] = '\0';
}

static uint32_t read_hex(const char *root, const char *folder, const char *name)
{
    char text[32];
    uint32_t value = UF_TOPO_UNKNOWN;
    if (uf_topo_text_in(root, folder, name, text, sizeof text))
        uf_topo_parse_hex(text, &value);
    return value;
}

static void read_node(const char *root, const char *folder, uf_topo_place *place)
{
    char text[4096], node[64];
    int64_t numa;
    /* -1 is the kernel's "no node"; the core list beside it then names every core there is, which says nothing. */
    if (!uf_topo_text_in(root, folder, "numa_node", text, sizeof text) || !uf_topo_parse_int(text, &numa) || numa < 0 ||
        numa >= UF_TOPO_CPUS)
        return;
    place->numa = (uint32_t)numa;
    if (uf_topo_text_in(root, folder, "local_cpulist", text, sizeof text) && uf_topo_parse_cpus(text, &place->cpus))
        return;
    snprintf(node, sizeof node, NODES "/node%" PRIu32 "/cpulist", place->numa);
    if (uf_topo_text(root, node, text, sizeof text))
        uf_topo_parse_cpus(text, &place->cpus);
}

/* The highest speed that the device can, times the lanes in use: an idle GPU lowers its speed, and would look slow. */
static void read_link(const char *root, const char *folder, uf_topo_place *place)
{
    static const char *const speeds[] = {"max_link_speed", "current_link_speed"};
    static const char *const widths[] = {"current_link_width", "max_link_width"};
    char speed[64], width[32];
    for (int i = 0; i < 4 && !uf_topo_rate_known(place->link); i++)
        if (uf_topo_text_in(root, folder, speeds[i / 2], speed, sizeof speed) &&
            uf_topo_text_in(root, folder, widths[i % 2], width, sizeof width) &&
            uf_topo_parse_link(speed, width, &place->link.mbps))
            place->link.from = UF_TOPO_FROM_SYSTEM;
}

void uf_topo_read_place(const char *root, const char *folder, uf_topo_place *place)
{
    static const char devices[] = "/sys/devices/";
    char target[PATH_MAX];
    memset(place, 0, sizeof *place);
    place->vendor = place->device = place->numa = UF_TOPO_UNKNOWN;
    bool real = uf_topo_target(root, folder, target, sizeof target) && strncmp(target, devices, sizeof devices - 1) == 0;
    if (real && strlen(target + sizeof devices - 1) < sizeof place->path) {
        strcpy(place->path, target + sizeof devices - 1);
        find_function(place);
        if (place->path[0])
            snprintf(target, sizeof target, "%s%s", devices, place->path);
        folder = target;
    }
    place->vendor = read_hex(root, folder, "vendor");
    place->device = read_hex(root, folder, "device");
    read_node(root, folder, place);
    read_link(root, folder, place);
}

int uf_topo_compare_places(const uf_topo_place *a, const uf_topo_place *b)
{
    if (!a->bus[0] || !b->bus[0])
        return !a->bus[0] - !b->bus[0];
    size_t la = strcspn(a->bus, ":"), lb = strcspn(b->bus, ":"); /* domains are not all of one length */
    return la != lb ? (la < lb ? -1 : 1) : strcasecmp(a->bus, b->bus);
}

/* Length of the part of a path that names its root complex: what comes before the first PCI address ("pci0000:50/", with more in front on
 * some machines). */
static size_t root_length(const char *path)
{
    const char *at = path;
    while (*at) {
        size_t length = strcspn(at, "/");
        if (uf_topo_parse_bus(at, length))
            break;
        at += length + (at[length] == '/');
    }
    return (size_t)(at - path);
}

static bool same_root(const char *a, const char *b)
{
    size_t length = root_length(a);
    return length > 0 && length == root_length(b) && strncmp(a, b, length) == 0;
}

uint32_t uf_topo_bridges_above(const uf_topo_place *a, const uf_topo_place *b)
{
    const char *pa = a->path, *pb = b->path;
    uint32_t bridges = 0;
    for (;;) {
        size_t length = strcspn(pa, "/");
        if (length == 0 || length != strcspn(pb, "/") || strncmp(pa, pb, length) != 0)
            return bridges;
        bridges += uf_topo_parse_bus(pa, length);
        if (!pa[length] || !pb[length])
            return bridges;
        pa += length + 1;
        pb += length + 1;
    }
}

uf_topo_distance uf_topo_distance_between(const uf_topo *topo, const uf_topo_place *a, const uf_topo_place *b)
{
    bool placed = a->path[0] && b->path[0], nodes = a->numa != UF_TOPO_UNKNOWN && b->numa != UF_TOPO_UNKNOWN;
    if (placed && uf_topo_bridges_above(a, b))
        return UF_TOPO_SAME_SWITCH;
    if (nodes && a->numa != b->numa) /* guests hang devices of both sockets from one root */
        return UF_TOPO_ACROSS;
    if (placed && same_root(a->path, b->path))
        return UF_TOPO_SAME_ROOT;
    return nodes || (placed && topo->numa_nodes == 1) ? UF_TOPO_SAME_SOCKET : UF_TOPO_DISTANCE_UNKNOWN;
}

/* ---------------------------------------------------------------- the host */

static int read_pci(uf_topo_reader *reader)
{
    char(*names)[UF_TOPO_FILE_NAME];
    char folder[PATH_MAX];
    uint32_t n;
    bool more;
    int rc = uf_topo_list(reader->root, PCI_DEVICES, &names, &n, &more);
    if (rc || !n)
        return rc;
    if (more)
        uf_topo_note(reader->topo, "more than %d PCI functions: the others were not looked at", UF_TOPO_LIST_MAX);
    reader->pci = calloc(n, sizeof *reader->pci);
    if (!reader->pci)
        rc = uf_fail(UF_ENOMEM, "no memory for %" PRIu32 " PCI functions", n);
    for (uint32_t i = 0; !rc && i < n; i++) {
        if (!uf_topo_parse_bus(names[i], strlen(names[i])))
            continue;
        uf_topo_pci *pci = &reader->pci[reader->n_pci++];
        strcpy(pci->bus, names[i]);
        snprintf(folder, sizeof folder, PCI_DEVICES "/%s", names[i]);
        pci->vendor = read_hex(reader->root, folder, "vendor");
        pci->device = read_hex(reader->root, folder, "device");
        pci->class = read_hex(reader->root, folder, "class");
    }
    free(names);
    return rc;
}

static int count_nodes(uf_topo_reader *reader)
{
    char(*names)[UF_TOPO_FILE_NAME];
    uint32_t n, nodes = 0;
    int rc = uf_topo_list(reader->root, NODES, &names, &n, NULL);
    for (uint32_t i = 0; i < n; i++) {
        int64_t number;
        nodes += strncmp(names[i], "node", 4) == 0 && uf_topo_parse_int(names[i] + 4, &number) && number >= 0;
    }
    free(names);
    reader->topo->numa_nodes = nodes ? nodes : UF_TOPO_UNKNOWN;
    return rc;
}

static void read_product(uf_topo_reader *reader)
{
    uf_topo *topo = reader->topo;
    if (uf_topo_text(reader->root, PRODUCT, topo->product, sizeof topo->product))
        topo->instance = uf_topo_instance_find(topo->product);
}

/* What the setting says goes before all; where nobody says anything the instance type does. */
static void settle_rates(uf_topo_reader *reader)
{
    uf_topo *topo = reader->topo;
    uf_topo_nic_kind kind = UF_TOPO_PLAIN;
    bool any = uf_topo_best_kind(topo, &kind);
    const uf_topo_nic *unknown = NULL;
    uint32_t n_unknown = 0;
    for (uint32_t i = 0; any && i < topo->n_nics; i++) {
        uf_topo_nic *nic = &topo->nics[i];
        if (nic->kind != kind)
            continue;
        if (reader->nic_gbps) {
            if (nic->rate.from == UF_TOPO_FROM_SYSTEM && nic->rate.mbps != reader->nic_gbps * 1000)
                uf_topo_note(topo, "UNFENCE_NIC_RATE=%" PRIu64 " goes before the driver's %.6g Gb/s", reader->nic_gbps,
                             (double)nic->rate.mbps / 1000);
            nic->rate = (uf_topo_rate){UF_TOPO_FROM_SETTING, reader->nic_gbps * 1000};
        } else if (!uf_topo_rate_known(nic->rate) && nic->kind == UF_TOPO_EFA && topo->instance) {
            nic->rate = (uf_topo_rate){UF_TOPO_FROM_INSTANCE, (uint64_t)topo->instance->nic_gbps * 1000};
        } else if (!uf_topo_rate_known(nic->rate) && uf_topo_nic_usable(nic)) {
            unknown = unknown ? unknown : nic;
            n_unknown++;
        }
    }
    if (unknown)
        uf_topo_note(topo, "the rate of %" PRIu32 " NIC%s (%s) is unknown: set UNFENCE_NIC_RATE to it, in Gb/s", n_unknown,
                     n_unknown == 1 ? "" : "s", unknown->name);
}

int uf_topo_read(const char *root, uint64_t nic_gbps, uf_topo **out)
{
    uf_topo_reader reader = {.root = root, .nic_gbps = nic_gbps, .topo = calloc(1, sizeof(uf_topo))};
    uf_topo *topo = reader.topo;
    if (!topo)
        return uf_fail(UF_ENOMEM, "no memory for the topology of this host");
    read_product(&reader);
    int rc = count_nodes(&reader);
    if (!rc)
        rc = read_pci(&reader);
    if (!rc)
        rc = uf_topo_find_nics(&reader);
    if (!rc)
        rc = uf_topo_find_gpus(&reader);
    if (!rc) {
        uf_topo_check_instance(topo); /* before rates are settled: it compares what the drivers say */
        settle_rates(&reader);
        rc = uf_topo_make_rails(topo);
    }
    free(reader.pci);
    if (rc)
        uf_topo_free(topo);
    else
        *out = topo;
    return rc;
}

void uf_topo_free(uf_topo *topo)
{
    if (!topo)
        return;
    free(topo->nics);
    free(topo->gpus);
    free(topo->rails);
    free(topo);
}

/* ---------------------------------------------------------------- names */

const char *uf_topo_kind_name(uf_topo_nic_kind kind)
{
    static const char *const names[] = {"EFA", "RDMA", "plain"};
    return names[kind];
}

const char *uf_topo_distance_name(uf_topo_distance distance)
{
    static const char *const names[] = {"same switch", "same root complex", "same socket", "across sockets", "unknown"};
    return names[distance];
}

const char *uf_topo_origin_name(uf_topo_origin origin)
{
    static const char *const names[] = {"unknown", "driver", "instance type", "UNFENCE_NIC_RATE"};
    return names[origin];
}

const char *uf_topo_port_name(uf_topo_port_state state)
{
    static const char *const names[] = {"unknown", "up", "down"};
    return names[state];
}
