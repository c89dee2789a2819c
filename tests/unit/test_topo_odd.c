/* test_topo_odd.c - hosts that are broken, strange or hostile are read as far as they can be: nothing hangs, nothing crashes, nothing unknown
 * becomes a number. */
#include "support/fake_host.h"
#include "topo/topo.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static fake_host host;
static uf_topo *topo;

static int setup(void **state)
{
    (void)state;
    fake_host_create(&host);
    topo = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    uf_topo_free(topo);
    fake_host_remove(&host);
    return 0;
}

static void read_host(void)
{
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
}

static bool noted(const char *words)
{
    for (uint32_t i = 0; i < topo->n_notes; i++)
        if (strstr(topo->notes[i], words))
            return true;
    return false;
}

static void in_device(uint32_t s, uint32_t i, const char *name, char file[256])
{
    char path[128];
    snprintf(file, 256, "/sys/devices/%s/%s", fake_machine_path(s, i, path), name);
}

/* ---------------------------------------------------------------- broken trees */

static void each_missing_file_makes_its_own_fact_unknown(void **state)
{
    (void)state;
    static const char *const names[] = {"vendor",
                                        "device",
                                        "class",
                                        "numa_node",
                                        "local_cpulist",
                                        "max_link_speed",
                                        "driver",
                                        "infiniband/rdmap0s0/ports/1/rate",
                                        "infiniband/rdmap0s0/ports/1/state",
                                        "infiniband/rdmap0s0/ports"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char file[256];
        struct stat status;
        fake_host fresh;
        fake_host_create(&fresh);
        fake_machine_add(&fresh, fake_machine_find("p5en"));
        for (uint32_t i = 0; i < 6; i++) {
            char whole[400];
            in_device(0, i, names[n], file);
            snprintf(whole, sizeof whole, "%s%s", fresh.root, file);
            if (lstat(whole, &status) == 0)
                fake_remove(&fresh, file);
        }
        assert_int_equal(uf_topo_read(fresh.root, 0, &topo), UF_OK);
        /* All NICs of the other switches are untouched by it. */
        assert_true(topo->n_nics >= 12);
        const uf_topo_nic *last = &topo->nics[topo->n_nics - 1];
        assert_string_equal(last->name, "rdmap15s0");
        assert_int_equal(last->rate.mbps, 200000);
        assert_int_equal(last->place.numa, 1);
        for (uint32_t i = 0; i < topo->n_nics; i++)
            assert_true(!uf_topo_rate_known(topo->nics[i].rate) || topo->nics[i].rate.mbps > 0);
        uf_topo_free(topo);
        topo = NULL;
        fake_host_remove(&fresh);
    }
}

static void unreadable_files_are_unknown(void **state)
{
    (void)state;
    char file[256], whole[400];
    if (geteuid() == 0)
        skip(); /* root reads everything */
    fake_machine_add(&host, fake_machine_find("mellanox"));
    in_device(0, 0, "infiniband/mlx5_0/ports/1/rate", file);
    snprintf(whole, sizeof whole, "%s%s", host.root, file);
    assert_int_equal(chmod(whole, 0), 0);
    read_host();
    assert_false(uf_topo_rate_known(topo->nics[0].rate));
}

static void garbage_is_unknown(void **state)
{
    (void)state;
    static const char *const garbage[] = {"",
                                          "\n",
                                          "0",
                                          "-1",
                                          "0 Gb/sec",
                                          "-5 Gb/sec",
                                          "inf Gb/sec",
                                          "nan",
                                          "1e9 Gb/sec (4X)",
                                          "100",
                                          "99999999999999999999 Gb/sec",
                                          "\x80\xff\xfe",
                                          "200 Gb",
                                          "Gb/sec"};
    char file[256];
    fake_machine_add(&host, fake_machine_find("mellanox"));
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        in_device(0, 0, "infiniband/mlx5_0/ports/1/rate", file);
        fake_file(&host, file, garbage[i]);
        in_device(0, 0, "numa_node", file);
        fake_file(&host, file, garbage[i][0] == '0' ? "9999999" : garbage[i]);
        in_device(0, 1, "current_link_width", file);
        fake_file(&host, file, i % 2 ? "0" : "255");
        read_host();
        assert_false(uf_topo_rate_known(topo->nics[0].rate));
        assert_int_equal(topo->nics[0].place.cpus.count == 0, topo->nics[0].place.numa == UF_TOPO_UNKNOWN);
        assert_false(uf_topo_rate_known(topo->gpus[0].place.link));
        uf_topo_free(topo);
        topo = NULL;
    }
}

static void loops_fifos_folders_and_devices_in_place_of_files_are_unknown(void **state)
{
    (void)state;
    char rate[256], whole[400];
    fake_machine_add(&host, fake_machine_find("mellanox"));
    for (int kind = 0; kind < 4; kind++) {
        in_device(0, 0, "infiniband/mlx5_0/ports/1/rate", rate);
        snprintf(whole, sizeof whole, "%s%s", host.root, rate);
        fake_remove(&host, rate);
        if (kind == 0)
            fake_link(&host, rate, "rate");
        else if (kind == 1)
            assert_int_equal(mkfifo(whole, 0600), 0);
        else if (kind == 2)
            fake_folder(&host, rate);
        else
            fake_link(&host, rate, "/dev/zero");
        read_host();
        assert_int_equal(topo->n_nics, 4);
        assert_false(uf_topo_rate_known(topo->nics[0].rate));
        uf_topo_free(topo);
        topo = NULL;
    }
    /* Whole devices that lead in circles, out of the tree, or nowhere. */
    fake_link(&host, "/sys/class/infiniband/loop", "loop");
    fake_link(&host, "/sys/class/infiniband/nowhere", "../../devices/pci0000:99/0000:99:00.0/infiniband/nowhere");
    fake_link(&host, "/sys/class/infiniband/outside", "/proc");
    fake_link(&host, "/sys/bus/pci/devices/0000:ee:00.0", "0000:ee:00.0");
    fake_link(&host, "/sys/class/net/self", "self");
    read_host();
    assert_int_equal(topo->n_nics, 4);
}

static void a_broken_link_leaves_the_gpu_and_says_that_its_nics_are_a_guess(void **state)
{
    (void)state;
    char path[128], link[64];
    fake_machine_add(&host, fake_machine_find("p5"));
    const char *bus = strrchr(fake_machine_path(0, 4, path), '/') + 1;
    snprintf(link, sizeof link, "/sys/bus/pci/devices/%s", bus);
    fake_remove(&host, link);
    /* A copy of its files in place of the link, as tools that copy sysfs make it. */
    char file[128];
    static const char *const files[][2] = {
        {"vendor", "0x10de"}, {"device", "0x2330"}, {"class", "0x030200"}, {"numa_node", "-1"}};
    for (size_t i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s/%s", link, files[i][0]);
        fake_file(&host, file, files[i][1]);
    }
    read_host();
    assert_int_equal(topo->n_gpus, 8);
    assert_string_equal(topo->gpus[0].place.bus, bus);
    assert_int_equal(uf_topo_distance_between(topo, &topo->gpus[0].place, &topo->nics[0].place), UF_TOPO_DISTANCE_UNKNOWN);
    assert_int_equal(topo->gpus[0].nearest_nics, 32);
    assert_true(noted("nothing says which NICs are near GPU"));
    assert_int_equal(topo->gpus[1].n_rails, 4);
}

/* ---------------------------------------------------------------- strange hosts */

static void no_numa_node_is_unknown_and_its_core_list_is_not_believed(void **state)
{
    (void)state;
    char path[128] = "pci0000:00/0000:00:01.0/0000:01:00.0";
    fake_pci_add(&host,
                 &(fake_pci){.path = path, .vendor = 0x15b3, .device = 0x1017, .class = 0x020700, .numa = "-1", .cpus = "0-63"});
    fake_verbs_add(&host, "mlx5_0", path, "100 Gb/sec (4X EDR)", "4: ACTIVE");
    read_host();
    assert_int_equal(topo->nics[0].place.numa, UF_TOPO_UNKNOWN);
    assert_int_equal(topo->nics[0].place.cpus.count, 0);
    assert_int_equal(topo->nics[0].rate.mbps, 100000);
}

static void node_without_a_list_at_the_device_gives_its_own(void **state)
{
    (void)state;
    const char *path = "pci0000:00/0000:00:01.0/0000:01:00.0";
    fake_pci_add(&host, &(fake_pci){.path = path, .vendor = 0x15b3, .device = 0x1017, .class = 0x020700, .numa = "1"});
    fake_verbs_add(&host, "mlx5_0", path, "100 Gb/sec (4X EDR)", "4: ACTIVE");
    fake_file(&host, "/sys/devices/system/node/node1/cpulist", "8-15,24-31\n");
    read_host();
    assert_int_equal(topo->nics[0].place.cpus.count, 16);
    assert_true(uf_topo_cpus_has(&topo->nics[0].place.cpus, 24));
    assert_false(uf_topo_cpus_has(&topo->nics[0].place.cpus, 7));
}

static void names_mean_nothing_and_addresses_everything(void **state)
{
    (void)state;
    static const char *const names[] = {"zeta", "rdmap10s0", "rdmap9s0", "alpha"};
    for (uint32_t i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "pci0000:00/0000:00:1%u.0/%s:0%u:00.0", i, i == 3 ? "10000" : "9000", 9 - i);
        fake_pci_add(&host, &(fake_pci){.path = path, .vendor = 0x1d0f, .device = 0xefa1, .class = 0x020000});
        fake_verbs_add(&host, names[i], path, "100 Gb/sec (4X EDR)", "4: ACTIVE");
    }
    read_host();
    static const char *const expected[] = {"rdmap9s0", "rdmap10s0", "zeta", "alpha"};
    for (uint32_t i = 0; i < 4; i++)
        assert_string_equal(topo->nics[i].name, expected[i]);
}

static void virtual_functions_count_only_where_their_physical_one_is_not_here(void **state)
{
    (void)state;
    uint32_t n;
    for (uint32_t i = 0; i < 4; i++) {
        char path[64], name[16], link[96];
        snprintf(path, sizeof path, "pci0000:00/0000:00:01.0/0000:01:00.%u", i);
        snprintf(name, sizeof name, "mlx5_%u", i);
        fake_pci_add(&host, &(fake_pci){.path = path, .vendor = 0x15b3, .device = i ? 0x1018 : 0x1017, .class = 0x020700});
        fake_verbs_add(&host, name, path, "100 Gb/sec (4X EDR)", "4: ACTIVE");
        snprintf(link, sizeof link, "/sys/devices/%s/physfn", path);
        if (i)
            fake_link(&host, link, "../0000:01:00.0");
    }
    read_host();
    uf_topo_rate all = uf_topo_host_rate(topo, &n);
    assert_int_equal(n, 1);
    assert_int_equal(all.mbps, 100000);
    assert_false(topo->nics[0].virtual_function);
    assert_true(topo->nics[1].virtual_function && topo->nics[3].virtual_function);
    uf_topo_free(topo);
    fake_remove(&host, "/sys/class/infiniband/mlx5_0");
    read_host();
    uf_topo_host_rate(topo, &n);
    assert_int_equal(n, 3);
}

static void hundreds_of_devices_are_read(void **state)
{
    (void)state;
    uint32_t n;
    for (uint32_t i = 0; i < 600; i++) {
        char path[96], name[24];
        snprintf(path, sizeof path, "pci%04x:00/%04x:00:01.0/%04x:%02x:00.0", i / 100, i / 100, i / 100, 1 + i % 100);
        bool gpu = i % 2;
        fake_pci_add(&host, &(fake_pci){.path = path,
                                        .vendor = gpu ? 0x10de : 0x1d0f,
                                        .device = gpu ? 0x2330 : 0xefa2,
                                        .class = gpu ? 0x030200 : 0x020000,
                                        .numa = "0"});
        snprintf(name, sizeof name, "rdmap%us0", i);
        if (!gpu)
            fake_verbs_add(&host, name, path, "200 Gb/sec (4X HDR)", "4: ACTIVE");
    }
    read_host();
    assert_int_equal(topo->n_nics, 300);
    assert_int_equal(topo->n_gpus, 256);
    assert_true(noted("more than 256 GPUs"));
    assert_int_equal(uf_topo_host_rate(topo, &n).mbps, 60000000);
    for (uint32_t g = 0; g < 250; g++)
        assert_int_equal(topo->gpus[g].n_rails, 1);
}

static void an_efa_without_driver_is_seen_and_not_used(void **state)
{
    (void)state;
    uint32_t n;
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:1e.0", .vendor = 0x1d0f, .device = 0xefa2, .class = 0x020000});
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:05.0", .vendor = 0x1d0f, .device = 0xec20, .class = 0x020000});
    fake_net_add(&host, "ens5", "pci0000:00/0000:00:05.0", "25000", "up");
    read_host();
    assert_int_equal(topo->n_nics, 2);
    assert_int_equal(topo->nics[1].kind, UF_TOPO_EFA);
    assert_string_equal(topo->nics[1].name, "0000:00:1e.0");
    assert_false(topo->nics[1].verbs);
    assert_true(noted("1 EFA function without a verbs device"));
    assert_int_equal(uf_topo_host_rate(topo, &n).mbps, 25000);
    assert_int_equal(n, 1);
}

static void one_card_in_two_classes_is_one_nic(void **state)
{
    (void)state;
    const char *path = "pci0000:00/0000:00:01.0/0000:01:00.0";
    fake_pci_add(&host, &(fake_pci){.path = path, .vendor = 0x15b3, .device = 0x1017, .class = 0x020000, .driver = "mlx5_core"});
    fake_verbs_add(&host, "mlx5_0", path, "100 Gb/sec (2X HDR)", "4: ACTIVE");
    fake_net_add(&host, "ens1f0np0", path, "100000", "up");
    read_host();
    assert_int_equal(topo->n_nics, 1);
    assert_int_equal(topo->nics[0].kind, UF_TOPO_RDMA);
    assert_string_equal(topo->nics[0].interface, "ens1f0np0");
    assert_string_equal(topo->nics[0].driver, "mlx5_core");
}

static void interfaces_of_software_are_no_nics(void **state)
{
    (void)state;
    fake_net_add(&host, "lo", NULL, "10000", "unknown");
    fake_net_add(&host, "docker0", NULL, "-1", "down");
    fake_verbs_add(&host, "rxe0", NULL, "100 Gb/sec (4X EDR)", "4: ACTIVE");
    read_host();
    assert_int_equal(topo->n_nics, 0);
}

static void a_virtual_nics_function_is_the_one_above_it(void **state)
{
    (void)state;
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:03.0", .vendor = 0x1af4, .device = 0x1000, .class = 0x020000});
    fake_net_add(&host, "eth0", "pci0000:00/0000:00:03.0/virtio0", "-1", "up");
    read_host();
    assert_int_equal(topo->n_nics, 1);
    assert_string_equal(topo->nics[0].place.bus, "0000:00:03.0");
    assert_int_equal(topo->nics[0].place.vendor, 0x1af4);
    assert_false(uf_topo_rate_known(topo->nics[0].rate));
}

static void a_port_that_is_down_carries_nothing(void **state)
{
    (void)state;
    uint32_t n;
    char file[256];
    fake_machine_add(&host, fake_machine_find("mellanox"));
    in_device(1, 0, "infiniband/mlx5_1/ports/1/state", file);
    fake_file(&host, file, "1: DOWN\n");
    /* A second port that is up makes the device up, at that port's rate. */
    in_device(2, 0, "infiniband/mlx5_2/ports/1/state", file);
    fake_file(&host, file, "1: DOWN\n");
    in_device(2, 0, "infiniband/mlx5_2/ports/2/state", file);
    fake_file(&host, file, "4: ACTIVE\n");
    in_device(2, 0, "infiniband/mlx5_2/ports/2/rate", file);
    fake_file(&host, file, "200 Gb/sec (4X HDR)\n");
    read_host();
    assert_int_equal(topo->nics[1].port, UF_TOPO_PORT_DOWN);
    assert_int_equal(topo->nics[2].port, UF_TOPO_PORT_UP);
    assert_int_equal(uf_topo_host_rate(topo, &n).mbps, 1000000);
    assert_int_equal(n, 3);
    /* The GPUs below the dead NIC reach the others of their socket. */
    assert_int_equal(topo->gpus[2].n_rails, 1);
    assert_string_equal(uf_topo_rail(topo, &topo->gpus[2], 0)->name, "mlx5_0");
    assert_int_equal(uf_topo_distance_between(topo, &topo->gpus[2].place, &topo->nics[0].place), UF_TOPO_SAME_SOCKET);
    assert_int_equal(uf_topo_distance_between(topo, &topo->gpus[2].place, &topo->nics[3].place), UF_TOPO_ACROSS);
    /* Four GPUs on one NIC of 400. */
    assert_int_equal(topo->gpus[0].rate.mbps, 100000);
}

static void gpu_hidden_by_a_container_is_told(void **state)
{
    (void)state;
    char path[128], file[160], text[64];
    fake_machine_add(&host, fake_machine_find("p6-b200"));
    for (uint32_t g = 0; g < 8; g++) {
        const char *bus = strrchr(fake_machine_path(g / 2, 2 + g % 2, path), '/') + 1;
        snprintf(file, sizeof file, "/proc/driver/nvidia/gpus/%s/information", bus);
        snprintf(text, sizeof text, "Model: \t\t NVIDIA B200\nDevice Minor: \t %u\n", g);
        fake_file(&host, file, text);
    }
    fake_file(&host, "/dev/nvidia3", "");
    read_host();
    for (uint32_t g = 0; g < 8; g++)
        assert_int_equal(topo->gpus[g].hidden, g != 3);
    assert_true(noted("7 of 8 GPUs were not given to this container"));
    assert_int_equal(topo->gpus[3].rate.mbps, 400000);
    uf_topo_free(topo);
    /* Other containers hide the driver's entry instead. */
    for (uint32_t g = 0; g < 7; g++) {
        snprintf(file, sizeof file, "/dev/nvidia%u", g);
        fake_file(&host, file, "");
    }
    fake_file(&host, "/dev/nvidia7", "");
    snprintf(file, sizeof file, "/proc/driver/nvidia/gpus/%s", strrchr(fake_machine_path(0, 2, path), '/') + 1);
    fake_remove(&host, file);
    read_host();
    for (uint32_t g = 0; g < 8; g++)
        assert_int_equal(topo->gpus[g].hidden, g == 0);
}

static void other_display_adapters_are_no_gpus(void **state)
{
    (void)state;
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:01.0", .vendor = 0x1a03, .device = 0x2000, .class = 0x030000});
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:02.0", .vendor = 0x8086, .device = 0x3e92, .class = 0x030000});
    fake_pci_add(&host, &(fake_pci){.path = "pci0000:00/0000:00:03.0", .vendor = 0x10de, .device = 0x10f8, .class = 0x040300});
    read_host();
    assert_int_equal(topo->n_gpus, 0);
}

static void root_complexes_are_told_apart_below_a_platform_device(void **state)
{
    (void)state;
    uf_topo_place gpu = {.path = "platform/40.pcie/pci0000:00/0000:00:01.0", .numa = 0};
    uf_topo_place same = {.path = "platform/40.pcie/pci0000:00/0000:00:02.0", .numa = 0};
    uf_topo_place other = {.path = "platform/41.pcie/pci0001:00/0001:00:01.0", .numa = 0};
    uf_topo_place nested = {.path = "platform/40.pcie/pci0000:00/0000:00:01.0/0000:01:00.0", .numa = 1};
    read_host();
    assert_int_equal(uf_topo_distance_between(topo, &gpu, &same), UF_TOPO_SAME_ROOT);
    assert_int_equal(uf_topo_distance_between(topo, &gpu, &other), UF_TOPO_SAME_SOCKET);
    assert_int_equal(uf_topo_distance_between(topo, &gpu, &nested), UF_TOPO_SAME_SWITCH);
    other.numa = same.numa = 1;
    assert_int_equal(uf_topo_distance_between(topo, &gpu, &other), UF_TOPO_ACROSS);
    assert_int_equal(uf_topo_distance_between(topo, &gpu, &same), UF_TOPO_ACROSS);
}

static void uneven_numbers_leave_no_nic_unused(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("mellanox");
    machine.switches = 1;
    machine.nics = 3;
    fake_machine_add(&host, &machine);
    read_host();
    assert_int_equal(topo->gpus[0].n_rails + topo->gpus[1].n_rails, 3);
    assert_int_equal(topo->rails[0] + topo->rails[1] + topo->rails[2], 3); /* NICs 0, 1 and 2 */
    assert_int_equal(topo->gpus[0].rate.mbps, 453710);                     /* half of 1200, and its link carries less */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_missing_file_makes_its_own_fact_unknown),
        TEST(unreadable_files_are_unknown),
        TEST(garbage_is_unknown),
        TEST(loops_fifos_folders_and_devices_in_place_of_files_are_unknown),
        TEST(a_broken_link_leaves_the_gpu_and_says_that_its_nics_are_a_guess),
        TEST(no_numa_node_is_unknown_and_its_core_list_is_not_believed),
        TEST(node_without_a_list_at_the_device_gives_its_own),
        TEST(names_mean_nothing_and_addresses_everything),
        TEST(virtual_functions_count_only_where_their_physical_one_is_not_here),
        TEST(hundreds_of_devices_are_read),
        TEST(an_efa_without_driver_is_seen_and_not_used),
        TEST(one_card_in_two_classes_is_one_nic),
        TEST(interfaces_of_software_are_no_nics),
        TEST(a_virtual_nics_function_is_the_one_above_it),
        TEST(a_port_that_is_down_carries_nothing),
        TEST(gpu_hidden_by_a_container_is_told),
        TEST(other_display_adapters_are_no_gpus),
        TEST(root_complexes_are_told_apart_below_a_platform_device),
        TEST(uneven_numbers_leave_no_nic_unused),
    };
    return cmocka_run_group_tests_name("topo_odd", tests, NULL, NULL);
}
