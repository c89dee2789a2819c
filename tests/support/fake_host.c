/* fake_host.c - see fake_host.h. */
#include "support/fake_host.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATH_BYTES = 1024 };

static void whole(const fake_host *host, const char *path, char out[PATH_BYTES])
{
    int length = snprintf(out, PATH_BYTES, "%s%s", host->root, path);
    assert_true(length > 0 && length < PATH_BYTES);
}

static void make_folders(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        if (mkdir(path, 0755) && errno != EEXIST)
            fail_msg("mkdir %s: %s", path, strerror(errno));
        *at = '/';
    }
}

void fake_host_create(fake_host *host)
{
    /* In memory where that is possible: thousands of small files take a second there and half a minute on a disk. */
    strcpy(host->root, "/dev/shm/fake-host-XXXXXX");
    if (mkdtemp(host->root))
        return;
    strcpy(host->root, "/tmp/fake-host-XXXXXX");
    assert_non_null(mkdtemp(host->root));
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *ftw)
{
    (void)status;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void fake_host_remove(fake_host *host)
{
    nftw(host->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void fake_remove(const fake_host *host, const char *path)
{
    char at[PATH_BYTES];
    whole(host, path, at);
    assert_int_equal(nftw(at, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void fake_file(const fake_host *host, const char *path, const char *text)
{
    char at[PATH_BYTES];
    whole(host, path, at);
    FILE *file = fopen(at, "we");
    if (!file) { /* mostly they are there: looking first would cost more than all the rest */
        make_folders(at);
        file = fopen(at, "we");
    }
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

void fake_folder(const fake_host *host, const char *path)
{
    char at[PATH_BYTES];
    whole(host, path, at);
    strcat(at, "/");
    make_folders(at);
}

void fake_link(const fake_host *host, const char *path, const char *to)
{
    char at[PATH_BYTES];
    whole(host, path, at);
    if (symlink(to, at) == 0)
        return;
    make_folders(at);
    if (symlink(to, at))
        fail_msg("symlink %s: %s", at, strerror(errno));
}

static void file_in(const fake_host *host, const char *folder, const char *name, const char *text)
{
    char path[PATH_BYTES], line[512];
    if (!text)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(line, sizeof line, "%s\n", text);
    fake_file(host, path, line);
}

static void hex_in(const fake_host *host, const char *folder, const char *name, int digits, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "0x%0*" PRIx32, digits, value);
    file_in(host, folder, name, text);
}

void fake_pci_add(const fake_host *host, const fake_pci *pci)
{
    char folder[512], path[1024], to[1024];
    snprintf(folder, sizeof folder, "/sys/devices/%s", pci->path);
    hex_in(host, folder, "vendor", 4, pci->vendor);
    hex_in(host, folder, "device", 4, pci->device);
    hex_in(host, folder, "class", 6, pci->class);
    file_in(host, folder, "numa_node", pci->numa);
    file_in(host, folder, "local_cpulist", pci->cpus);
    file_in(host, folder, "current_link_speed", pci->speed);
    file_in(host, folder, "max_link_speed", pci->speed);
    file_in(host, folder, "current_link_width", pci->width);
    if (pci->driver) {
        snprintf(path, sizeof path, "%s/driver", folder);
        snprintf(to, sizeof to, "../../../../bus/pci/drivers/%s", pci->driver);
        fake_link(host, path, to);
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s", strrchr(pci->path, '/') + 1);
    snprintf(to, sizeof to, "../../../devices/%s", pci->path);
    fake_link(host, path, to);
}

/* The device's own folder below the function's, its link up, and the class folder's link down. */
static void add_class(const fake_host *host, const char *class, const char *name, const char *path, char folder[PATH_BYTES])
{
    char at[PATH_BYTES], to[PATH_BYTES + 16];
    snprintf(folder, PATH_BYTES, "/sys/devices/%s/%s/%s", path ? path : "virtual", class, name);
    fake_folder(host, folder);
    if (path) {
        snprintf(at, sizeof at, "%.900s/device", folder);
        fake_link(host, at, "../..");
    }
    snprintf(at, sizeof at, "/sys/class/%s/%s", class, name);
    snprintf(to, sizeof to, "../../%s", folder + strlen("/sys/"));
    fake_link(host, at, to);
}

void fake_verbs_add(const fake_host *host, const char *name, const char *path, const char *rate, const char *state)
{
    char folder[PATH_BYTES];
    add_class(host, "infiniband", name, path, folder);
    strcat(folder, "/ports/1");
    file_in(host, folder, "rate", rate);
    file_in(host, folder, "state", state);
}

void fake_net_add(const fake_host *host, const char *name, const char *path, const char *speed, const char *operstate)
{
    char folder[PATH_BYTES];
    add_class(host, "net", name, path, folder);
    file_in(host, folder, "speed", speed);
    file_in(host, folder, "operstate", operstate);
}

const char *fake_machine_path(uint32_t s, uint32_t i, char path[128])
{
    uint32_t bus = 0x10 + 0x18 * s; /* up to eight switches with 22 devices each */
    snprintf(path, 128, "pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:%02x.0/0000:%02x:00.0", bus, bus, bus + 1, bus + 2,
             i, bus + 3 + i);
    return path;
}

void fake_machine_add(const fake_host *host, const fake_machine *m)
{
    char path[128], name[64], numa[8], line[64];
    for (uint32_t node = 0; node < m->nodes; node++) {
        snprintf(line, sizeof line, "/sys/devices/system/node/node%" PRIu32 "/cpulist", node);
        fake_file(host, line, node ? "48-95\n" : "0-47\n");
    }
    if (m->product) {
        snprintf(line, sizeof line, "%s\n", m->product);
        fake_file(host, "/sys/devices/virtual/dmi/id/product_name", line);
    }
    for (uint32_t s = 0; s < m->switches; s++) {
        uint32_t node = s < (m->switches + 1) / 2 ? 0 : m->nodes - 1;
        snprintf(numa, sizeof numa, "%" PRIu32, node);
        for (uint32_t i = 0; i < m->nics + m->gpus; i++) {
            bool nic = i < m->nics;
            fake_machine_path(s, i, path);
            fake_pci_add(host, &(fake_pci){.path = path,
                                           .vendor = nic ? m->nic_vendor : 0x10de,
                                           .device = nic ? m->nic_device : m->gpu_device,
                                           .class = nic ? 0x020000 : 0x030200,
                                           .numa = numa,
                                           .cpus = node ? "48-95" : "0-47",
                                           .driver = nic ? m->nic_driver : "nvidia",
                                           .speed = nic ? NULL : m->gpu_speed,
                                           .width = nic ? NULL : "16"});
            if (!nic)
                continue;
            snprintf(name, sizeof name, m->nic_name, s * m->nics + i);
            fake_verbs_add(host, name, path, m->rate, "4: ACTIVE");
        }
    }
}

const fake_machine *fake_machine_find(const char *name)
{
    static const struct {
        const char *name;
        fake_machine machine;
    } machines[] = {
        {"p4d",
         {"p4d.24xlarge", 4, 2, 1, 0x1d0f, 0xefa0, 0x20b0, "rdmap%us27", "efa", "100 Gb/sec (4X EDR)", "16.0 GT/s PCIe", 2}},
        {"p5", {"p5.48xlarge", 8, 1, 4, 0x1d0f, 0xefa1, 0x2330, "rdmap%us0", "efa", "100 Gb/sec (4X EDR)", "32.0 GT/s PCIe", 2}},
        {"p5en",
         {"p5en.48xlarge", 4, 2, 4, 0x1d0f, 0xefa2, 0x2335, "rdmap%us0", "efa", "200 Gb/sec (4X HDR)", "32.0 GT/s PCIe", 2}},
        {"p6-b200",
         {"p6-b200.48xlarge", 4, 2, 2, 0x1d0f, 0xefa3, 0x2901, "rdmap%us0", "efa", "400 Gb/sec (8X HDR)", "32.0 GT/s PCIe", 2}},
        {"p6-b300",
         {"p6-b300.48xlarge", 8, 1, 2, 0x1d0f, 0xefa4, 0x3182, "rdmap%us0", "efa", "400 Gb/sec (8X HDR)", "64.0 GT/s PCIe", 2}},
        {"mellanox",
         {"PowerEdge", 4, 2, 1, 0x15b3, 0x1021, 0x2330, "mlx5_%u", "mlx5_core", "400 Gb/sec (4X NDR)", "32.0 GT/s PCIe", 2}},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (strcmp(machines[i].name, name) == 0)
            return &machines[i].machine;
    return NULL;
}
