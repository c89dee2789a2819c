/* info_topo.c - `unfence info --topo`: src/topo's facts as tables and as JSON. What is unknown is a "?" here and null there, never 0. */
#include "base/error.h"
#include "base/settings.h"
#include "info.h"
#include "options.h"
#include "topo/topo.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- texts */

static const char *rate_text(uf_topo_rate rate, char text[32])
{
    if (!uf_topo_rate_known(rate))
        return "?";
    snprintf(text, 32, "%.6g Gb/s", (double)rate.mbps / 1000);
    return text;
}

static const char *number_text(uint32_t number, char text[16])
{
    if (number == UF_TOPO_UNKNOWN)
        return "?";
    snprintf(text, 16, "%" PRIu32, number);
    return text;
}

/* "0-47,96-143", cut with "..." where it does not fit. */
static const char *cpus_text(const uf_topo_cpus *cpus, char *text, size_t bytes)
{
    size_t length = 0;
    if (!cpus->count)
        return "?";
    for (uint32_t cpu = 0; cpu < UF_TOPO_CPUS; cpu++) {
        uint32_t last = cpu;
        char piece[32];
        if (!uf_topo_cpus_has(cpus, cpu))
            continue;
        while (uf_topo_cpus_has(cpus, last + 1))
            last++;
        int n = last > cpu ? snprintf(piece, sizeof piece, "%s%" PRIu32 "-%" PRIu32, length ? "," : "", cpu, last)
                           : snprintf(piece, sizeof piece, "%s%" PRIu32, length ? "," : "", cpu);
        if (length + (size_t)n + 4 > bytes) {
            memcpy(text + length, "...", 4);
            return text;
        }
        memcpy(text + length, piece, (size_t)n + 1);
        length += (size_t)n;
        cpu = last;
    }
    return text;
}

static char distance_letter(uf_topo_distance distance)
{
    return "SRNX?"[distance];
}

/* ---------------------------------------------------------------- tables */

static void print_host(const uf_topo *topo)
{
    char rate[32], nodes[16];
    uint32_t n;
    uf_topo_rate all = uf_topo_host_rate(topo, &n);
    printf("host\n  %-14s %s", "type", *topo->product ? topo->product : "?");
    if (topo->instance)
        printf(", sold with %" PRIu32 " EFA NIC%s of %" PRIu32 " Gb/s and %" PRIu32 " GPU%s", topo->instance->n_nics,
               topo->instance->n_nics == 1 ? "" : "s", topo->instance->nic_gbps, topo->instance->n_gpus,
               topo->instance->n_gpus == 1 ? "" : "s");
    printf("\n  %-14s %s\n", "NUMA nodes", number_text(topo->numa_nodes, nodes));
    if (n)
        printf("  %-14s %s over %" PRIu32 " NIC%s (%s)\n", "network", rate_text(all, rate), n, n == 1 ? "" : "s",
               uf_topo_origin_name(all.from));
    else
        printf("  %-14s no NIC that could be used\n", "network");
}

static void print_nics(const uf_topo *topo)
{
    char rate[32], cpus[28], numa[16], kind[16];
    printf("\nNICs\n");
    if (!topo->n_nics)
        printf("  none\n");
    else
        printf("  %3s %-14s %-7s %-12s %-16s %-8s %-13s %4s  %-27s %s\n", "", "name", "kind", "rate", "said by", "port", "PCI",
               "NUMA", "cores", "driver, interface");
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        const uf_topo_nic *nic = &topo->nics[i];
        snprintf(kind, sizeof kind, "%s%.2s", uf_topo_kind_name(nic->kind),
                 nic->generation == UF_TOPO_UNKNOWN ? "" : (char[3]){' ', (char)('0' + nic->generation % 10), '\0'});
        printf("  %3" PRIu32 " %-14s %-7s %-12s %-16s %-8s %-13s %4s  %-27s %s%s%s%s\n", i, nic->name, kind,
               rate_text(nic->rate, rate), uf_topo_origin_name(nic->rate.from), uf_topo_port_name(nic->port),
               *nic->place.bus ? nic->place.bus : "?", number_text(nic->place.numa, numa),
               cpus_text(&nic->place.cpus, cpus, sizeof cpus), *nic->driver ? nic->driver : "no driver",
               *nic->interface ? ", " : "", nic->interface, nic->virtual_function ? " (virtual function, not counted)" : "");
    }
}

static const char *count_text(uint64_t count, char text[24])
{
    if (count == UF_TOPO_UNCOUNTED)
        return "?";
    snprintf(text, 24, "%" PRIu64, count);
    return text;
}

/* Only where a driver counts, which of those here EFA's does. */
static void print_traffic(const char *root, const uf_topo *topo)
{
    char requests[24], bytes[24], failed[24], lost[24];
    bool any = false;
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        uf_topo_traffic t;
        if (topo->nics[i].kind != UF_TOPO_EFA)
            continue;
        uf_topo_traffic_read(root, topo->nics[i].name, &t);
        if (t.requests == UF_TOPO_UNCOUNTED && t.failed == UF_TOPO_UNCOUNTED)
            continue;
        if (!any)
            printf("\ntraffic since the driver was loaded, of all processes\n  %3s %-14s %20s %20s %12s %14s\n", "", "name",
                   "requests", "bytes", "failed", "peers lost");
        any = true;
        printf("  %3" PRIu32 " %-14s %20s %20s %12s %14s\n", i, topo->nics[i].name, count_text(t.requests, requests),
               count_text(t.bytes, bytes), count_text(t.failed, failed), count_text(t.lost_peers, lost));
    }
}

static void print_gpus(const uf_topo *topo)
{
    char rate[32], numa[16];
    printf("\nGPUs\n");
    if (!topo->n_gpus) {
        printf("  none\n");
        return;
    }
    printf("  %3s %-13s %4s  %-12s %-7s %s\n", "", "PCI", "NUMA", "network", "shared", "rails");
    for (uint32_t g = 0; g < topo->n_gpus; g++) {
        const uf_topo_gpu *gpu = &topo->gpus[g];
        printf("  %3" PRIu32 " %-13s %4s  %-12s %-7" PRIu32, g, gpu->place.bus, number_text(gpu->place.numa, numa),
               rate_text(gpu->rate, rate), gpu->sharing);
        for (uint32_t i = 0; i < gpu->n_rails; i++)
            printf(" %s", uf_topo_rail(topo, gpu, i)->name);
        printf("%s%s\n", gpu->n_rails ? "" : " none", gpu->hidden ? " (hidden from this container)" : "");
    }
    if (!topo->n_nics)
        return;
    printf("\ndistance of each GPU to NICs 0 to %" PRIu32
           ": S same switch, R same root complex, N same socket, X across sockets\n",
           topo->n_nics - 1);
    for (uint32_t g = 0; g < topo->n_gpus; g++) {
        printf("  %3" PRIu32 " ", g);
        for (uint32_t i = 0; i < topo->n_nics; i++)
            putchar(distance_letter(uf_topo_distance_between(topo, &topo->gpus[g].place, &topo->nics[i].place)));
        putchar('\n');
    }
}

/* ---------------------------------------------------------------- JSON */

static void add_text(json_object *object, const char *key, const char *value)
{
    json_object_object_add(object, key, *value ? json_object_new_string(value) : NULL);
}

static void add_number(json_object *object, const char *key, uint32_t value)
{
    json_object_object_add(object, key, value == UF_TOPO_UNKNOWN ? NULL : json_object_new_int64(value));
}

static void add_rate(json_object *object, const char *key, uf_topo_rate rate)
{
    json_object_object_add(object, key, uf_topo_rate_known(rate) ? json_object_new_int64((int64_t)rate.mbps) : NULL);
}

static void add_place(json_object *object, const uf_topo_place *place)
{
    char cpus[4096];
    add_text(object, "pci", place->bus);
    add_text(object, "path", place->path);
    add_number(object, "vendor", place->vendor);
    add_number(object, "device", place->device);
    add_number(object, "numa", place->numa);
    add_text(object, "cores", place->cpus.count ? cpus_text(&place->cpus, cpus, sizeof cpus) : "");
    add_rate(object, "link_mbps", place->link);
}

static void add_count(json_object *object, const char *key, uint64_t count)
{
    json_object_object_add(object, key, count == UF_TOPO_UNCOUNTED ? NULL : json_object_new_int64((int64_t)count));
}

static json_object *nic_object(const char *root, const uf_topo_nic *nic)
{
    json_object *object = json_object_new_object();
    uf_topo_traffic traffic;
    uf_topo_traffic_read(root, nic->name, &traffic);
    add_text(object, "name", nic->name);
    add_text(object, "interface", nic->interface);
    add_text(object, "driver", nic->driver);
    add_text(object, "kind", uf_topo_kind_name(nic->kind));
    add_number(object, "generation", nic->generation);
    add_text(object, "port", uf_topo_port_name(nic->port));
    add_rate(object, "rate_mbps", nic->rate);
    add_text(object, "rate_from", uf_topo_origin_name(nic->rate.from));
    json_object_object_add(object, "verbs", json_object_new_boolean(nic->verbs));
    json_object_object_add(object, "virtual_function", json_object_new_boolean(nic->virtual_function));
    add_place(object, &nic->place);
    add_count(object, "requests", traffic.requests);
    add_count(object, "bytes", traffic.bytes);
    add_count(object, "failed", traffic.failed);
    add_count(object, "peers_lost", traffic.lost_peers);
    return object;
}

static json_object *gpu_object(const uf_topo *topo, const uf_topo_gpu *gpu)
{
    json_object *object = json_object_new_object(), *rails = json_object_new_array(), *distances = json_object_new_array();
    add_text(object, "driver", gpu->driver);
    json_object_object_add(object, "hidden", json_object_new_boolean(gpu->hidden));
    add_rate(object, "rate_mbps", gpu->rate);
    add_text(object, "rate_from", uf_topo_origin_name(gpu->rate.from));
    add_number(object, "sharing", gpu->sharing);
    add_place(object, &gpu->place);
    for (uint32_t i = 0; i < gpu->n_rails; i++)
        json_object_array_add(rails, json_object_new_string(uf_topo_rail(topo, gpu, i)->name));
    for (uint32_t i = 0; i < topo->n_nics; i++)
        json_object_array_add(distances, json_object_new_string(uf_topo_distance_name(
                                             uf_topo_distance_between(topo, &gpu->place, &topo->nics[i].place))));
    json_object_object_add(object, "rails", rails);
    json_object_object_add(object, "distances", distances);
    return object;
}

static int print_json(const char *root_folder, const uf_topo *topo)
{
    json_object *root = json_object_new_object(), *object = json_object_new_object(), *type = NULL;
    json_object *nics = json_object_new_array(), *gpus = json_object_new_array(), *notes = json_object_new_array();
    uint32_t n;
    uf_topo_rate all = uf_topo_host_rate(topo, &n);
    if (topo->instance) {
        type = json_object_new_object();
        add_text(type, "type", topo->instance->type);
        add_number(type, "nics", topo->instance->n_nics);
        add_number(type, "nic_mbps", topo->instance->nic_gbps * 1000);
        add_number(type, "gpus", topo->instance->n_gpus);
        add_number(type, "generation", topo->instance->generation);
    }
    for (uint32_t i = 0; i < topo->n_nics; i++)
        json_object_array_add(nics, nic_object(root_folder, &topo->nics[i]));
    for (uint32_t g = 0; g < topo->n_gpus; g++)
        json_object_array_add(gpus, gpu_object(topo, &topo->gpus[g]));
    for (uint32_t i = 0; i < topo->n_notes; i++)
        json_object_array_add(notes, json_object_new_string(topo->notes[i]));
    add_text(object, "product", topo->product);
    json_object_object_add(object, "instance", type);
    add_number(object, "numa_nodes", topo->numa_nodes);
    add_number(object, "usable_nics", n);
    add_rate(object, "rate_mbps", all);
    add_text(object, "rate_from", uf_topo_origin_name(all.from));
    json_object_object_add(object, "nics", nics);
    json_object_object_add(object, "gpus", gpus);
    json_object_object_add(object, "notes", notes);
    add_number(root, "version", 1);
    json_object_object_add(root, "topo", object);
    int rc = printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY)) < 0 ? -1 : 0;
    json_object_put(root);
    return fflush(stdout) != 0 ? -1 : rc;
}

/* ---------------------------------------------------------------- the command */

int info_topo(const char *root, bool json)
{
    static uf_settings settings;
    uf_topo *topo;
    int rc = TOOL_EXIT_OK;
    if (uf_settings_load(&settings) != UF_OK || uf_topo_read(root, (uint64_t)settings.number[UF_SET_NIC_RATE], &topo) != UF_OK) {
        fprintf(stderr, "unfence info: %s\n", uf_error_message());
        return TOOL_EXIT_FAILED;
    }
    if (json) {
        rc = print_json(root, topo) == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
    } else {
        print_host(topo);
        print_nics(topo);
        print_traffic(root, topo);
        print_gpus(topo);
        if (topo->n_notes)
            printf("\nnotes\n");
        for (uint32_t i = 0; i < topo->n_notes; i++)
            printf("  %s\n", topo->notes[i]);
    }
    uf_topo_free(topo);
    return rc;
}
