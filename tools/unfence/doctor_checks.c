/* doctor_checks.c - what each row of `unfence doctor` judges by, software and devices; the host's limits are in doctor_limits.c.
 *
 * "missing" is said only of what is known not to be there. A file that cannot be read is "unknown", and so is what only the device itself could
 * tell: where the answer is taken from its generation the words say so. */
#include "doctor_checks.h"
#include "topo/parse.h"
#include "topo/sysfs.h"
#include "unfence/unfence.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static doctor_state say(doctor_state state, char *found, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static doctor_state say(doctor_state state, char *found, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found, bytes, format, arguments);
    va_end(arguments);
    return state;
}

static bool at_least(const uint32_t *version, const uint32_t *least)
{
    for (int i = 0; i < 3; i++)
        if (version[i] != least[i])
            return version[i] > least[i];
    return true;
}

/* ---------------------------------------------------------------- software */

doctor_state doctor_check_libfabric(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t least[3] = {0};
    uf_topo_parse_version(row->argument, least);
    if (!facts->built_with_ofi)
        return say(DOCTOR_MISSING, found, bytes, "this build of Unfence is without libfabric");
    if (!facts->libfabric_known)
        return say(DOCTOR_UNKNOWN, found, bytes, "only the host itself can tell");
    return say(at_least(facts->libfabric, least) ? DOCTOR_OK : DOCTOR_MISSING, found, bytes, "libfabric %" PRIu32 ".%" PRIu32,
               facts->libfabric[0], facts->libfabric[1]);
}

doctor_state doctor_check_provider(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    for (size_t i = 0; i < DOCTOR_PROVIDERS; i++) {
        const doctor_provider *provider = &facts->providers[i];
        if (provider->name && strcmp(provider->name, row->argument) == 0)
            return say(provider->state, found, bytes, "%s", provider->why);
    }
    return say(DOCTOR_UNKNOWN, found, bytes, "not tried");
}

doctor_state doctor_check_library(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char name[64], path[512], lacking[64] = "";
    size_t length = strcspn(row->argument, " ");
    snprintf(name, sizeof name, "%.*s", (int)length, row->argument);
    if (!doctor_library_find(facts->root, name, path, sizeof path))
        return doctor_library_any(facts->root)
                   ? say(DOCTOR_MISSING, found, bytes, "no %s where libraries are", name)
                   : say(DOCTOR_UNKNOWN, found, bytes, "no folder of libraries is there to be looked at");
    switch (doctor_library_has(facts->root, path, row->argument + length, lacking, sizeof lacking)) {
    case 1:
        return say(DOCTOR_OK, found, bytes, "%s", path);
    case 0:
        return say(DOCTOR_MISSING, found, bytes, "%s is too old: it has no %s", path, lacking);
    default:
        return say(DOCTOR_UNKNOWN, found, bytes, "%s cannot be read", path);
    }
}

/* ---------------------------------------------------------------- EFA and other verbs devices */

static const uf_topo_nic *first_nic(const doctor_facts *facts, uf_topo_nic_kind kind, uint32_t *n, uint32_t *n_served)
{
    const uf_topo_nic *first = NULL;
    *n = *n_served = 0;
    for (uint32_t i = 0; i < facts->topo->n_nics; i++) {
        const uf_topo_nic *nic = &facts->topo->nics[i];
        if (nic->kind != kind)
            continue;
        first = first && (first->verbs || !nic->verbs) ? first : nic; /* one with a driver, if there is one */
        (*n)++;
        *n_served += nic->verbs;
    }
    return first;
}

/* "None" is only known where the kernel's list of devices is there to be looked at. */
static doctor_state none_of(const doctor_facts *facts, const char *what, char *found, size_t bytes)
{
    if (uf_topo_exists(facts->root, "/sys/bus/pci/devices"))
        return say(DOCTOR_MISSING, found, bytes, "no %s in this host", what);
    return say(DOCTOR_UNKNOWN, found, bytes, "/sys/bus/pci/devices is not there to be looked at");
}

doctor_state doctor_check_efa_device(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t n, served;
    (void)row;
    const uf_topo_nic *nic = first_nic(facts, UF_TOPO_EFA, &n, &served);
    if (!nic)
        return none_of(facts, "EFA", found, bytes);
    if (nic->generation == UF_TOPO_UNKNOWN)
        return say(DOCTOR_OK, found, bytes, "%" PRIu32 ", of a generation that is not known here", n);
    return say(DOCTOR_OK, found, bytes, "%" PRIu32 ", generation %" PRIu32, n, nic->generation);
}

doctor_state doctor_check_efa_driver(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char text[64];
    uint32_t n, served, version[3], least[3] = {0};
    bool loaded = uf_topo_exists(facts->root, "/sys/module/efa");
    uf_topo_parse_version(row->argument, least);
    first_nic(facts, UF_TOPO_EFA, &n, &served);
    if (served < n)
        return say(DOCTOR_MISSING, found, bytes, "%" PRIu32 " of %" PRIu32 " EFAs have no verbs device%s", n - served, n,
                   loaded ? "" : ": the module efa is not loaded");
    if (!loaded && !n)
        return uf_topo_exists(facts->root, "/sys/module") ? say(DOCTOR_MISSING, found, bytes, "the module efa is not loaded")
                                                          : say(DOCTOR_UNKNOWN, found, bytes, "/sys/module is not there");
    if (!uf_topo_text(facts->root, "/sys/module/efa/version", text, sizeof text) || !uf_topo_parse_version(text, version))
        return say(DOCTOR_UNKNOWN, found, bytes, "in use, without a version: the one of the kernel itself");
    return say(at_least(version, least) ? DOCTOR_OK : DOCTOR_MISSING, found, bytes, "version %s", text);
}

/* argument: "generation counter": the first generation that has the ability, and the driver's counter of it ("-": none). Counters exist
 * wherever the driver knows the operation, so they speak for the driver, and the generation for the device. */
doctor_state doctor_check_efa_ability(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char path[256];
    uint32_t n, served, least = (uint32_t)row->argument[0] - '0';
    const char *counter = row->argument + 2;
    const uf_topo_nic *nic = first_nic(facts, UF_TOPO_EFA, &n, &served);
    if (!nic)
        return none_of(facts, "EFA", found, bytes);
    if (nic->generation == UF_TOPO_UNKNOWN)
        return say(DOCTOR_UNKNOWN, found, bytes, "%s is of a generation that is not known here", nic->name);
    if (nic->generation < least)
        return say(DOCTOR_MISSING, found, bytes, "%s is of generation %" PRIu32 ", this begins with %" PRIu32, nic->name,
                   nic->generation, least);
    if (!nic->verbs)
        return say(DOCTOR_UNKNOWN, found, bytes, "no driver serves %s", nic->name);
    if (*counter == '-')
        return say(DOCTOR_OK, found, bytes, "by its generation, %" PRIu32 " (inferred)", nic->generation);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters", nic->name);
    if (!uf_topo_exists(facts->root, path))
        return say(DOCTOR_UNKNOWN, found, bytes, "the driver shows no counters");
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s", nic->name, counter);
    if (!uf_topo_exists(facts->root, path))
        return say(DOCTOR_MISSING, found, bytes, "the driver of %s does not know it (no counter %s)", nic->name, counter);
    return say(DOCTOR_OK, found, bytes, "driver (%s) and generation %" PRIu32, counter, nic->generation);
}

doctor_state doctor_check_rdma_device(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t n, served;
    (void)row;
    const uf_topo_nic *nic = first_nic(facts, UF_TOPO_RDMA, &n, &served);
    if (!nic)
        return none_of(facts, "RDMA NIC other than EFA", found, bytes);
    return say(DOCTOR_OK, found, bytes, "%" PRIu32 ", %s first", n, nic->name);
}

doctor_state doctor_check_uverbs(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char(*names)[UF_TOPO_FILE_NAME];
    char path[512];
    uint32_t n, devices = 0, ours = 0;
    (void)row;
    if (uf_topo_list(facts->root, "/dev/infiniband", &names, &n, NULL) != UF_OK)
        return say(DOCTOR_UNKNOWN, found, bytes, "no memory to look");
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(names[i], "uverbs", 6) != 0)
            continue;
        devices++;
        int length = snprintf(path, sizeof path, "%s/dev/infiniband/%s", facts->root, names[i]);
        ours += length > 0 && (size_t)length < sizeof path && access(path, R_OK | W_OK) == 0;
    }
    free(names);
    if (devices)
        return say(ours == devices ? DOCTOR_OK : DOCTOR_MISSING, found, bytes, "%" PRIu32 " of %" PRIu32 " may be opened", ours,
                   devices);
    if (uf_topo_exists(facts->root, "/dev"))
        return say(DOCTOR_MISSING, found, bytes, "no /dev/infiniband/uverbs*");
    return say(DOCTOR_UNKNOWN, found, bytes, "/dev is not there to be looked at");
}

doctor_state doctor_check_nic_rate(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t n;
    (void)row;
    uf_topo_rate all = uf_topo_host_rate(facts->topo, &n);
    if (!n)
        return none_of(facts, "NIC that could be used", found, bytes);
    if (!uf_topo_rate_known(all))
        return say(DOCTOR_UNKNOWN, found, bytes, "no rate of %s%" PRIu32 " NIC%s", n > 1 ? "all " : "", n, n > 1 ? "s" : "");
    return say(DOCTOR_OK, found, bytes, "%.6g Gb/s over %" PRIu32 " NIC%s (%s)%s", (double)all.mbps / 1000, n, n > 1 ? "s" : "",
               uf_topo_origin_name(all.from), facts->topo->n_notes ? "; unfence info --topo has notes" : "");
}

doctor_state doctor_check_nic_cores(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t n = 0, known = 0;
    (void)row;
    for (uint32_t i = 0; i < facts->topo->n_nics; i++) {
        n++;
        known += facts->topo->nics[i].place.cpus.count > 0;
    }
    if (!n)
        return none_of(facts, "NIC", found, bytes);
    return say(known == n ? DOCTOR_OK : DOCTOR_UNKNOWN, found, bytes, "the cores near %" PRIu32 " of %" PRIu32 " NIC%s are known",
               known, n, n > 1 ? "s" : "");
}

doctor_state doctor_check_nic_number(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    const uf_topo_instance *type = facts->topo->instance;
    uint32_t n, served;
    (void)row;
    if (!first_nic(facts, UF_TOPO_EFA, &n, &served))
        return none_of(facts, "EFA", found, bytes);
    if (!type)
        return say(DOCTOR_UNKNOWN, found, bytes, "%" PRIu32 "; how many %s has is not known here", n,
                   *facts->topo->product ? facts->topo->product : "this kind of host");
    return say(n >= type->n_nics ? DOCTOR_OK : DOCTOR_MISSING, found, bytes, "%" PRIu32 " of %" PRIu32 " of a %s", n,
               type->n_nics, type->type);
}

/* What failed before this job says nothing of why: it tells where to look. */
doctor_state doctor_check_nic_errors(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint64_t requests = 0;
    uint32_t n, served, counted = 0;
    (void)row;
    if (!first_nic(facts, UF_TOPO_EFA, &n, &served))
        return none_of(facts, "EFA", found, bytes);
    for (uint32_t i = 0; i < facts->topo->n_nics; i++) {
        const uf_topo_nic *nic = &facts->topo->nics[i];
        uf_topo_traffic t;
        uf_topo_traffic_read(facts->root, nic->name, &t);
        if (nic->kind != UF_TOPO_EFA || t.failed == UF_TOPO_UNCOUNTED)
            continue;
        if (t.failed)
            return say(DOCTOR_MISSING, found, bytes, "%" PRIu64 " writes and reads of %s failed since its driver was loaded",
                       t.failed, nic->name);
        requests += t.requests == UF_TOPO_UNCOUNTED ? 0 : t.requests;
        counted++;
    }
    if (!counted)
        return say(DOCTOR_UNKNOWN, found, bytes, "the driver shows no counters of failures");
    return say(DOCTOR_OK, found, bytes, "none of %" PRIu64 " over %" PRIu32 " NIC%s", requests, counted, counted > 1 ? "s" : "");
}

/* ---------------------------------------------------------------- GPUs */

/* The farthest of a GPU's rails; UF_TOPO_DISTANCE_UNKNOWN if one is not known. */
static uf_topo_distance farthest_rail(const uf_topo *topo, const uf_topo_gpu *gpu)
{
    uf_topo_distance farthest = UF_TOPO_SAME_SWITCH;
    for (uint32_t i = 0; i < gpu->n_rails; i++) {
        uf_topo_distance d = uf_topo_distance_between(topo, &gpu->place, &uf_topo_rail(topo, gpu, i)->place);
        farthest = d > farthest ? d : farthest;
    }
    return farthest;
}

doctor_state doctor_check_gpu_rails(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    const uf_topo *topo = facts->topo;
    uint32_t least = UINT32_MAX, most = 0, n = 0, unknown = 0;
    (void)row;
    for (uint32_t g = 0; g < topo->n_gpus; g++) {
        const uf_topo_gpu *gpu = &topo->gpus[g];
        if (gpu->hidden)
            continue;
        uf_topo_distance far = farthest_rail(topo, gpu);
        if (!gpu->n_rails || far == UF_TOPO_ACROSS)
            return say(DOCTOR_MISSING, found, bytes, "%s of GPU %" PRIu32 " (%s)",
                       gpu->n_rails ? "a rail across sockets is the best" : "no NIC for the data", g, gpu->place.bus);
        least = gpu->n_rails < least ? gpu->n_rails : least;
        most = gpu->n_rails > most ? gpu->n_rails : most;
        unknown += far == UF_TOPO_DISTANCE_UNKNOWN;
        n++;
    }
    if (!n)
        return none_of(facts, "GPU that this process may use", found, bytes);
    if (unknown)
        return say(DOCTOR_UNKNOWN, found, bytes, "how far the NICs of %" PRIu32 " of %" PRIu32 " GPUs are", unknown, n);
    if (least != most)
        return say(DOCTOR_MISSING, found, bytes, "%" PRIu32 " for some of %" PRIu32 " GPUs, %" PRIu32 " for others", least, n,
                   most);
    return say(DOCTOR_OK, found, bytes, "%" PRIu32 " for each of %" PRIu32 " GPU%s", most, n, n > 1 ? "s" : "");
}

doctor_state doctor_check_gpu(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint32_t n = facts->topo->n_gpus, hidden = 0;
    (void)row;
    for (uint32_t i = 0; i < n; i++)
        hidden += facts->topo->gpus[i].hidden;
    if (!n)
        return none_of(facts, "GPU", found, bytes);
    return say(hidden < n ? DOCTOR_OK : DOCTOR_MISSING, found, bytes, "%" PRIu32 "%s", n,
               hidden == n ? ", none given to this container"
               : hidden    ? ", some not given to this container"
                           : "");
}

doctor_state doctor_check_cuda(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char path[512], version[64] = "";
    (void)row;
    bool library = doctor_library_find(facts->root, "libcuda.so.1", path, sizeof path);
    bool module = uf_topo_exists(facts->root, "/proc/driver/nvidia") || uf_topo_exists(facts->root, "/sys/module/nvidia");
    uf_topo_text(facts->root, "/sys/module/nvidia/version", version, sizeof version);
    if (library && module)
        return say(DOCTOR_OK, found, bytes, "%s, kernel driver %s", path, *version ? version : "of unknown version");
    if (!uf_topo_exists(facts->root, "/proc") && !uf_topo_exists(facts->root, "/sys"))
        return say(DOCTOR_UNKNOWN, found, bytes, "neither /proc nor /sys is there to be looked at");
    return say(DOCTOR_MISSING, found, bytes, "%s",
               library  ? "libcuda.so.1 is there, its kernel driver is not"
               : module ? "the kernel driver is there, libcuda.so.1 is not"
                        : "neither libcuda.so.1 nor a kernel driver");
}

/* Three ways, each enough: dma-buf (the open kernel modules, Linux 5.12 and later), the peer memory module, the EFA driver's own. */
doctor_state doctor_check_gpu_registration(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    static const uint32_t dmabuf_kernel[3] = {5, 12, 0};
    char text[512], path[256];
    uint32_t kernel[3], n, served;
    (void)row;
    if (uf_topo_exists(facts->root, "/sys/module/nvidia_peermem") || uf_topo_exists(facts->root, "/sys/module/nv_peer_mem"))
        return say(DOCTOR_OK, found, bytes, "nvidia-peermem");
    const uf_topo_nic *nic = first_nic(facts, UF_TOPO_EFA, &n, &served);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/gdr", nic ? nic->name : "-");
    if (uf_topo_text(facts->root, path, text, sizeof text) && strcmp(text, "1") == 0)
        return say(DOCTOR_OK, found, bytes, "the efa driver itself (gdr)");
    bool version = uf_topo_text(facts->root, "/proc/driver/nvidia/version", text, sizeof text);
    if (!version && !uf_topo_exists(facts->root, "/proc"))
        return say(DOCTOR_UNKNOWN, found, bytes, "/proc is not there to be looked at");
    if (!version)
        return say(DOCTOR_MISSING, found, bytes, "no NVIDIA kernel driver");
    if (!strstr(text, "Open Kernel Module"))
        return say(DOCTOR_MISSING, found, bytes, "closed kernel modules, which export no dma-buf, and no nvidia-peermem");
    if (!uf_topo_parse_version(facts->host.kernel, kernel))
        return say(DOCTOR_UNKNOWN, found, bytes,
                   "open kernel modules; dma-buf for devices needs Linux 5.12, and its version is unknown");
    return at_least(kernel, dmabuf_kernel)
               ? say(DOCTOR_OK, found, bytes, "dma-buf (open kernel modules, Linux %.40s)", facts->host.kernel)
               : say(DOCTOR_MISSING, found, bytes, "Linux %.40s has no dma-buf for devices, and no nvidia-peermem is loaded",
                     facts->host.kernel);
}

doctor_state doctor_check_gdrcopy(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char path[512];
    (void)row;
    bool library = doctor_library_find(facts->root, "libgdrapi.so.2", path, sizeof path);
    bool device = uf_topo_exists(facts->root, "/dev/gdrdrv");
    if (library && device)
        return say(DOCTOR_OK, found, bytes, "%s and /dev/gdrdrv", path);
    if (!library && !uf_topo_exists(facts->root, "/dev"))
        return say(DOCTOR_UNKNOWN, found, bytes, "/dev is not there to be looked at");
    return say(DOCTOR_MISSING, found, bytes, "%s",
               library  ? "libgdrapi.so.2 is there, /dev/gdrdrv is not"
               : device ? "/dev/gdrdrv is there, libgdrapi.so.2 is not"
                        : "neither libgdrapi.so.2 nor /dev/gdrdrv");
}

doctor_state doctor_check_peer_mapping(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    char text[16384];
    (void)row;
    if (!uf_topo_text(facts->root, "/proc/driver/nvidia/params", text, sizeof text))
        return say(DOCTOR_UNKNOWN, found, bytes, "no /proc/driver/nvidia/params");
    return strstr(text, "PeerMappingOverride=1") ? say(DOCTOR_OK, found, bytes, "PeerMappingOverride=1")
                                                 : say(DOCTOR_MISSING, found, bytes, "not among the driver's parameters");
}
