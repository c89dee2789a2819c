/* test_doctor.c - every row of `unfence doctor` can say ok, missing and unknown, each for a reason that is really there.
 *
 * A case is a small host: files, perhaps a whole machine, and what the process would know. The last test holds the cases against the table of
 * rows, so a new row without all three cannot come in. */
#include "doctor.h"
#include "support/fake_host.h"
#include "unfence/unfence.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define PCI    "/sys/bus/pci/devices/none"
#define PROC   "/proc/none"
#define DEV    "/dev/none"
#define LIB    "/usr/lib/"
#define NVIDIA "/proc/driver/nvidia/"
#define PORT   "/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/"
#define OPEN   "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65\n"
#define CLOSED "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65\n"

typedef struct file {
    const char *path, *text;
} file;

typedef struct drive {
    const char *id;
    doctor_state state;
    const char *words;   /* to be found in what was found */
    const char *machine; /* of fake_machine_find */
    file files[4];
    void (*facts)(doctor_facts *facts);
} drive;

#define FACTS(name, statement)                                                                                                   \
    static void name(doctor_facts *facts)                                                                                        \
    {                                                                                                                            \
        statement;                                                                                                               \
    }
FACTS(memory_1g, facts->host.memory_available = 1 << 30)
FACTS(memory_1m, facts->host.memory_available = 1 << 20)
FACTS(not_throttled, (facts->host.quota_known = true, facts->host.cpu_quota = 4, facts->host.throttled = 0))
FACTS(throttled, (facts->host.throttled = 7, facts->host.periods = 9))
FACTS(attach_works, (facts->attach = 0, facts->host.ptrace_scope = 0))
FACTS(attach_refused, facts->attach = EPERM)
FACTS(attach_scope, (facts->attach = 0, facts->host.ptrace_scope = 1))
FACTS(userfault_works, facts->userfault = 0)
FACTS(userfault_refused, facts->userfault = EPERM)
FACTS(limits_high, (facts->host.limits_known = true, facts->host.memlock = UINT64_MAX, facts->host.open_files = 65536))
FACTS(limits_low, (facts->host.limits_known = true, facts->host.memlock = 65536, facts->host.open_files = 16))
FACTS(shm_large, facts->host.shm_available = 1 << 30)
FACTS(shm_small, facts->host.shm_available = 1 << 20)
FACTS(libfabric_117, (facts->libfabric_known = true, facts->libfabric[0] = 1, facts->libfabric[1] = 17))
FACTS(libfabric_116, (facts->libfabric_known = true, facts->libfabric[0] = 1, facts->libfabric[1] = 16))
FACTS(libfabric_22, (facts->libfabric_known = true, facts->libfabric[0] = 2, facts->libfabric[1] = 2))
FACTS(no_ofi, facts->built_with_ofi = false)
FACTS(kernel_61, strcpy(facts->host.kernel, "6.1.0-18-amd64"))
FACTS(kernel_54, strcpy(facts->host.kernel, "5.4.0-1"))

static void all_providers(doctor_facts *facts, doctor_state state)
{
    static const char *const names[DOCTOR_PROVIDERS] = {"tcp", "shm", "efa", "efa-direct", "verbs"};
    for (size_t i = 0; i < DOCTOR_PROVIDERS; i++) {
        facts->providers[i].name = names[i];
        facts->providers[i].state = state;
        snprintf(facts->providers[i].why, sizeof facts->providers[i].why, "the word of %s", names[i]);
    }
}
FACTS(providers_ok, all_providers(facts, DOCTOR_OK))
FACTS(providers_missing, all_providers(facts, DOCTOR_MISSING))

#define PROVIDER(id, name)                                                                                                       \
    {id, DOCTOR_OK, .words = "the word of " name, .facts = providers_ok},                                                        \
        {id, DOCTOR_MISSING, .words = "the word of " name, .facts = providers_missing},                                          \
    {                                                                                                                            \
        id, DOCTOR_UNKNOWN, .words = "not tried"                                                                                 \
    }

static const drive drives[] = {
    {"memory", DOCTOR_OK, .words = "1 GiB, needed 128 MiB", .facts = memory_1g},
    {"memory", DOCTOR_MISSING, .words = "1 MiB", .facts = memory_1m},
    {"memory", DOCTOR_UNKNOWN, .words = "meminfo"},
    {"cpu-throttling", DOCTOR_OK, .words = "4.00 cores, not used up", .facts = not_throttled},
    {"cpu-throttling", DOCTOR_OK, .words = "no quota",
     .files = {{"/proc/self/cgroup", "0::/x"}, {"/sys/fs/cgroup/x/cpu.max", "max 100000"}}},
    {"cpu-throttling", DOCTOR_MISSING, .words = "7 of 9", .facts = throttled},
    {"cpu-throttling", DOCTOR_MISSING, .words = "3 of 5",
     .files = {{"/proc/self/cgroup", "0::/x"}, {"/sys/fs/cgroup/x/cpu.stat", "nr_periods 5\nnr_throttled 3\n"}}},
    {"cpu-throttling", DOCTOR_MISSING, .words = "2 of 4",
     .files = {{"/proc/self/cgroup", "3:cpu,cpuacct:/d\n"},
               {"/sys/fs/cgroup/cpu,cpuacct/d/cpu.stat", "nr_periods 4\nnr_throttled 2\n"}}},
    {"cpu-throttling", DOCTOR_UNKNOWN, .words = "no quota"},
    {"attach", DOCTOR_OK, .words = "ptrace_scope 0", .facts = attach_works},
    {"attach", DOCTOR_MISSING, .words = "refuses", .facts = attach_refused},
    {"attach", DOCTOR_MISSING, .words = "only to children", .facts = attach_scope},
    {"attach", DOCTOR_MISSING, .words = "privileges", .files = {{"/proc/sys/kernel/yama/ptrace_scope", "2\n"}}},
    {"attach", DOCTOR_UNKNOWN, .words = "itself"},
    {"userfaultfd", DOCTOR_OK, .words = "works", .facts = userfault_works},
    {"userfaultfd", DOCTOR_MISSING, .words = "refuses", .facts = userfault_refused},
    {"userfaultfd", DOCTOR_UNKNOWN, .words = "itself"},
    {"huge-pages", DOCTOR_OK, .words = "[advise]",
     .files = {{"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never"}}},
    {"huge-pages", DOCTOR_MISSING, .words = "[never]",
     .files = {{"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]"}}},
    {"huge-pages", DOCTOR_UNKNOWN, .words = "shmem_enabled"},
    {"memlock", DOCTOR_OK, .words = "unlimited", .facts = limits_high},
    {"memlock", DOCTOR_OK, .words = "unlimited",
     .files = {{"/proc/self/limits",
                "Limit   Soft  Hard\nMax locked memory   unlimited  unlimited bytes\nMax open files 9 9\n"}}},
    {"memlock", DOCTOR_MISSING, .words = "64 KiB, needed 64 MiB", .facts = limits_low},
    {"memlock", DOCTOR_UNKNOWN, .words = "limits"},
    {"memlock", DOCTOR_UNKNOWN, .words = "limits",
     .files = {{"/proc/self/limits", "Max locked memory     garbage\nMax open files 9 9\n"}}},
    {"open-files", DOCTOR_OK, .words = "65536", .facts = limits_high},
    {"open-files", DOCTOR_MISSING, .words = "16, needed 80", .facts = limits_low},
    {"open-files", DOCTOR_UNKNOWN, .words = "limits"},
    {"dev-shm", DOCTOR_OK, .words = "1 GiB", .facts = shm_large},
    {"dev-shm", DOCTOR_MISSING, .words = "1 MiB, needed 32 MiB", .facts = shm_small},
    {"dev-shm", DOCTOR_UNKNOWN, .words = "unknown"},
    {"libfabric", DOCTOR_OK, .words = "libfabric 1.17", .facts = libfabric_117},
    {"libfabric", DOCTOR_MISSING, .words = "libfabric 1.16", .facts = libfabric_116},
    {"libfabric", DOCTOR_MISSING, .words = "without libfabric", .facts = no_ofi},
    {"libfabric", DOCTOR_UNKNOWN, .words = "itself"},
    {"libfabric-2.1", DOCTOR_OK, .words = "2.2", .facts = libfabric_22},
    {"libfabric-2.1", DOCTOR_MISSING, .words = "1.17", .facts = libfabric_117},
    {"libfabric-2.1", DOCTOR_UNKNOWN, .words = "itself"},
    PROVIDER("provider-tcp", "tcp"),
    PROVIDER("provider-shm", "shm"),
    PROVIDER("provider-efa", "efa"),
    PROVIDER("provider-efa-direct", "efa-direct"),
    PROVIDER("provider-verbs", "verbs"),
    {"libibverbs", DOCTOR_OK, .words = LIB "libibverbs.so.1",
     .files = {{LIB "libibverbs.so.1", "*ibv_get_device_list*ibv_open_device*"}}},
    {"libibverbs", DOCTOR_MISSING, .words = "no libibverbs.so.1", .files = {{LIB "none", ""}}},
    {"libibverbs", DOCTOR_UNKNOWN, .words = "no folder of libraries"},
    {"libibverbs", DOCTOR_UNKNOWN, .words = "cannot be read", .files = {{LIB "libibverbs.so.1/x", ""}}},
    {"libefa", DOCTOR_OK, .words = "/opt/amazon/efa/lib64/libefa.so.1",
     .files = {{LIB "libefa.so.1", "*"},
               {"/opt/amazon/efa/lib64/libefa.so.1", "*efadv_create_qp_ex*efadv_query_cq*efadv_query_qp_wqs*"}}},
    {"libefa", DOCTOR_MISSING, .words = "it has no efadv_query_cq",
     .files = {{LIB "libefa.so.1", "*efadv_create_qp_ex*efadv_query_cq_more*efadv_query_qp_wqs*"}}},
    {"libefa", DOCTOR_UNKNOWN, .words = "cannot be read", .files = {{LIB "libefa.so.1/x", ""}}},
    {"verbs-devices", DOCTOR_OK, .words = "2 of 2",
     .files = {{"/dev/infiniband/uverbs0", ""}, {"/dev/infiniband/uverbs1", ""}, {"/dev/infiniband/rdma_cm", ""}}},
    {"verbs-devices", DOCTOR_MISSING, .words = "no /dev/infiniband", .files = {{DEV, ""}}},
    {"verbs-devices", DOCTOR_UNKNOWN, .words = "/dev is not there"},
    {"rdma-device", DOCTOR_OK, .words = "4, mlx5_0 first", .machine = "mellanox"},
    {"rdma-device", DOCTOR_MISSING, .words = "no RDMA NIC", .machine = "p5en"},
    {"rdma-device", DOCTOR_UNKNOWN, .words = "not there"},
    {"efa-device", DOCTOR_OK, .words = "16, generation 3", .machine = "p5en"},
    {"efa-device", DOCTOR_MISSING, .words = "no EFA", .machine = "mellanox"},
    {"efa-device", DOCTOR_UNKNOWN, .words = "not there"},
    {"efa-driver", DOCTOR_OK, .words = "2.13.0", .machine = "p5en", .files = {{"/sys/module/efa/version", "2.13.0g\n"}}},
    {"efa-driver", DOCTOR_MISSING, .words = "2.1.1", .machine = "p5en", .files = {{"/sys/module/efa/version", "2.1.1\n"}}},
    {"efa-driver", DOCTOR_MISSING, .words = "not loaded", .files = {{"/sys/module/nvme/version", "1"}}},
    {"efa-driver", DOCTOR_UNKNOWN, .words = "kernel itself", .machine = "p5en", .files = {{"/sys/module/efa/initstate", "live"}}},
    {"efa-driver", DOCTOR_UNKNOWN, .words = "/sys/module is not there"},
    {"efa-rdma-read", DOCTOR_OK, .words = "rdma_read_wrs", .machine = "p5", .files = {{PORT "rdma_read_wrs", "0"}}},
    {"efa-rdma-read", DOCTOR_MISSING, .words = "no counter rdma_read_wrs", .machine = "p5", .files = {{PORT "tx_bytes", "0"}}},
    {"efa-rdma-read", DOCTOR_UNKNOWN, .words = "shows no counters", .machine = "p5"},
    {"efa-rdma-write", DOCTOR_OK, .words = "generation 2", .machine = "p5", .files = {{PORT "rdma_write_wrs", "0"}}},
    {"efa-rdma-write", DOCTOR_MISSING, .words = "this begins with 2", .machine = "p4d"},
    {"efa-rdma-write", DOCTOR_UNKNOWN, .words = "shows no counters", .machine = "p5"},
    {"efa-unsolicited", DOCTOR_OK, .words = "inferred", .machine = "p5en"},
    {"efa-unsolicited", DOCTOR_MISSING, .words = "generation 2", .machine = "p5"},
    {"efa-unsolicited", DOCTOR_UNKNOWN, .words = "not there"},
    {"nic-rate", DOCTOR_OK, .words = "3200 Gb/s over 16 NICs (driver)", .machine = "p5en"},
    {"nic-rate", DOCTOR_MISSING, .words = "no NIC", .files = {{PCI, ""}}},
    {"nic-rate", DOCTOR_UNKNOWN, .words = "not there"},
    {"nic-cores", DOCTOR_OK, .words = "16 of 16", .machine = "p5en"},
    {"nic-cores", DOCTOR_MISSING, .words = "no NIC", .files = {{PCI, ""}}},
    {"nic-cores", DOCTOR_UNKNOWN, .words = "not there"},
    {"nic-number", DOCTOR_OK, .words = "16 of 16 of a p5en.48xlarge", .machine = "p5en"},
    {"nic-number", DOCTOR_MISSING, .words = "16 of 32 of a p5.48xlarge", .machine = "p5en",
     .files = {{"/sys/devices/virtual/dmi/id/product_name", "p5.48xlarge"}}},
    {"nic-number", DOCTOR_UNKNOWN, .words = "not known here", .machine = "p5en",
     .files = {{"/sys/devices/virtual/dmi/id/product_name", "x9.large"}}},
    {"nic-errors", DOCTOR_OK, .words = "none of 42 over 1 NIC", .machine = "p5",
     .files = {{PORT "rdma_write_wrs", "40"}, {PORT "rdma_read_wrs", "2"}, {PORT "rdma_write_wr_err", "0"}}},
    {"nic-errors", DOCTOR_MISSING, .words = "7 writes and reads of", .machine = "p5",
     .files = {{PORT "rdma_read_wr_err", "4"}, {PORT "rdma_write_wr_err", "3"}}},
    {"nic-errors", DOCTOR_UNKNOWN, .words = "no counters of failures", .machine = "p5",
     .files = {{PORT "rdma_write_wr_err", "-1"}, {PORT "rdma_write_wrs", "5"}}},
    {"gpu-rails", DOCTOR_OK, .words = "2 for each of 8 GPUs", .machine = "p5en"},
    {"gpu-rails", DOCTOR_MISSING, .words = "no GPU", .files = {{PCI, ""}}},
    {"gpu-rails", DOCTOR_UNKNOWN, .words = "not there"},
    {"gpu", DOCTOR_OK, .words = "8", .machine = "p5en"},
    {"gpu", DOCTOR_MISSING, .words = "no GPU", .files = {{PCI, ""}}},
    {"gpu", DOCTOR_UNKNOWN, .words = "not there"},
    {"cuda", DOCTOR_OK, .words = "kernel driver 580.65",
     .files = {{LIB "libcuda.so.1", ""}, {"/sys/module/nvidia/version", "580.65"}}},
    {"cuda", DOCTOR_MISSING, .words = "its kernel driver is not", .files = {{LIB "libcuda.so.1", ""}, {PROC, ""}}},
    {"cuda", DOCTOR_MISSING, .words = "libcuda.so.1 is not", .files = {{NVIDIA "version", OPEN}}},
    {"cuda", DOCTOR_UNKNOWN, .words = "neither"},
    {"gpu-registration", DOCTOR_OK, .words = "dma-buf", .files = {{NVIDIA "version", OPEN}}, .facts = kernel_61},
    {"gpu-registration", DOCTOR_OK, .words = "nvidia-peermem",
     .files = {{NVIDIA "version", CLOSED}, {"/sys/module/nvidia_peermem/version", "1"}}},
    {"gpu-registration", DOCTOR_MISSING, .words = "closed", .files = {{NVIDIA "version", CLOSED}}, .facts = kernel_61},
    {"gpu-registration", DOCTOR_MISSING, .words = "5.4.0", .files = {{NVIDIA "version", OPEN}}, .facts = kernel_54},
    {"gpu-registration", DOCTOR_UNKNOWN, .words = "/proc is not there"},
    {"gpu-registration", DOCTOR_UNKNOWN, .words = "its version is unknown", .files = {{NVIDIA "version", OPEN}}},
    {"gdrcopy", DOCTOR_OK, .words = "/dev/gdrdrv", .files = {{LIB "libgdrapi.so.2", ""}, {"/dev/gdrdrv", ""}}},
    {"gdrcopy", DOCTOR_MISSING, .words = "/dev/gdrdrv is not", .files = {{LIB "libgdrapi.so.2", ""}}},
    {"gdrcopy", DOCTOR_MISSING, .words = "libgdrapi.so.2 is not", .files = {{"/dev/gdrdrv", ""}}},
    {"gdrcopy", DOCTOR_UNKNOWN, .words = "/dev is not there"},
    {"peer-mapping", DOCTOR_OK, .words = "=1",
     .files = {{NVIDIA "params", "EnableMSI: 1\nRegistryDwords: \"PeerMappingOverride=1\"\n"}}},
    {"peer-mapping", DOCTOR_MISSING, .words = "not among", .files = {{NVIDIA "params", "EnableMSI: 1\nRegistryDwords: \"\"\n"}}},
    {"peer-mapping", DOCTOR_UNKNOWN, .words = "params"},
};
#define N_DRIVES (sizeof drives / sizeof *drives)

static const doctor_row *find_row(const char *id)
{
    for (size_t i = 0; i < doctor_n_rows; i++)
        if (strcmp(doctor_rows[i].id, id) == 0)
            return &doctor_rows[i];
    fail_msg("there is no row %s", id);
    return NULL;
}

/* The words of a library's string table stand between zero bytes, which a case writes as stars. */
static void write_library(const fake_host *host, const char *path, const char *text)
{
    char whole[300];
    fake_file(host, path, "");
    snprintf(whole, sizeof whole, "%s%s", host->root, path);
    FILE *out = fopen(whole, "we");
    assert_non_null(out);
    for (; *text; text++)
        fputc(*text == '*' ? '\0' : *text, out);
    fclose(out);
}

static void drive_row(const drive *d)
{
    fake_host host;
    uf_topo *topo;
    char found[600] = "";
    const doctor_row *row = find_row(d->id);
    fake_host_create(&host);
    if (d->machine)
        fake_machine_add(&host, fake_machine_find(d->machine));
    for (size_t i = 0; i < 4 && d->files[i].path; i++)
        (d->files[i].text[0] == '*' ? write_library : fake_file)(&host, d->files[i].path, d->files[i].text);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    doctor_facts facts = {
        .root = host.root, .topo = topo, .n_pes = 2, .heap = 64 << 20, .built_with_ofi = true, .attach = -1, .userfault = -1};
    host_read(host.root, &facts.host);
    if (d->facts)
        d->facts(&facts);
    doctor_state state = row->check(&facts, row, found, sizeof found);
    uf_topo_free(topo);
    fake_host_remove(&host);
    if (state != d->state || !strstr(found, d->words))
        fail_msg("%s: %s \"%s\" instead of %s \"%s\"", d->id, doctor_state_name(state), found, doctor_state_name(d->state),
                 d->words);
}

static void each_row_says_what_is_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DRIVES; i++)
        drive_row(&drives[i]);
}

static void every_row_can_be_ok_missing_and_unknown(void **state)
{
    (void)state;
    for (size_t r = 0; r < doctor_n_rows; r++) {
        const doctor_row *row = &doctor_rows[r];
        uint32_t seen = 0;
        for (size_t i = 0; i < N_DRIVES; i++)
            if (strcmp(drives[i].id, row->id) == 0)
                seen |= 1u << drives[i].state;
        if (seen != 7)
            fail_msg("row %s has not been driven to all of ok, missing and unknown", row->id);
    }
}

static void every_row_is_complete_and_of_some_use(void **state)
{
    (void)state;
    uint32_t known = 0, used = 0;
    for (const doctor_path *path = doctor_paths; path->name; path++)
        known |= path->bit;
    for (size_t r = 0; r < doctor_n_rows; r++) {
        const doctor_row *row = &doctor_rows[r];
        assert_true(*row->id && *row->what && *row->remedy && *row->lost);
        assert_true((row->needed | row->helps) != 0);
        assert_int_equal((row->needed | row->helps) & ~known, 0);
        assert_int_equal(row->needed & row->helps, 0);
        used |= row->needed;
        for (size_t other = 0; other < r; other++)
            assert_string_not_equal(doctor_rows[other].id, row->id);
    }
    assert_int_equal(used, known);
}

static void nothing_is_wrong_with_this_host_that_stops_the_check(void **state)
{
    (void)state;
    static uf_settings settings;
    static const char *const none[] = {NULL};
    uf_topo *topo;
    char found[600];
    assert_int_equal(uf_settings_load_from(none, &settings), UF_OK);
    assert_int_equal(uf_topo_read("", 0, &topo), UF_OK);
    doctor_facts facts = {.root = "", .topo = topo, .n_pes = 2};
    host_read("", &facts.host);
    for (size_t r = 0; r < doctor_n_rows; r++) {
        found[0] = '\0';
        doctor_rows[r].check(&facts, &doctor_rows[r], found, sizeof found);
        assert_true(*found);
    }
    uf_topo_free(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_says_what_is_there),
        cmocka_unit_test(every_row_can_be_ok_missing_and_unknown),
        cmocka_unit_test(every_row_is_complete_and_of_some_use),
        cmocka_unit_test(nothing_is_wrong_with_this_host_that_stops_the_check),
    };
    return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
