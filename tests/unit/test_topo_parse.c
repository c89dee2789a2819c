/* test_topo_parse.c - what the kernel writes into its files is read as it means it, and nothing else is read as anything. */
#include "support/fake_host.h"
#include "topo/parse.h"
#include "topo/sysfs.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void rates_are_read_as_the_kernel_writes_them(void **state)
{
    (void)state;
    uint64_t mbps = 7;
    assert_true(uf_topo_parse_rate("100 Gb/sec (4X EDR)", &mbps));
    assert_int_equal(mbps, 100000);
    assert_true(uf_topo_parse_rate("2.5 Gb/sec (1X SDR)", &mbps));
    assert_int_equal(mbps, 2500);
    assert_true(uf_topo_parse_rate("112.128 Gb/sec", &mbps));
    assert_int_equal(mbps, 112128);
    assert_false(uf_topo_parse_rate("0.0000 Gb/sec", &mbps));
    assert_false(uf_topo_parse_rate(".5 Gb/sec", &mbps));
    assert_int_equal(mbps, 112128);
    assert_true(uf_topo_parse_link("32.0 GT/s PCIe", "16", &mbps));
    assert_int_equal(mbps, 453710);
    assert_false(uf_topo_parse_link("Unknown", "16", &mbps));
    assert_false(uf_topo_parse_link("32.0 GT/s PCIe", "Unknown", &mbps));
    assert_false(uf_topo_parse_speed("-1", &mbps));
    assert_false(uf_topo_parse_speed("4294967295", &mbps));
    assert_true(uf_topo_parse_speed("25000", &mbps));
    assert_int_equal(mbps, 25000);
}

static void core_lists_are_sets(void **state)
{
    (void)state;
    uf_topo_cpus cpus = {0};
    assert_true(uf_topo_parse_cpus("0-3,2,8,4000-4095", &cpus));
    assert_int_equal(cpus.count, 101);
    assert_true(uf_topo_cpus_has(&cpus, 4095) && !uf_topo_cpus_has(&cpus, 5) && !uf_topo_cpus_has(&cpus, 4096));
    static const char *const wrong[] = {"", ",", "3-1", "1-", "-1", "0,,1", "0-3x", "4096", "0-4294967296", "0x10", "1 2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(uf_topo_parse_cpus(wrong[i], &cpus));
    assert_int_equal(cpus.count, 101);
}

static void addresses_and_versions(void **state)
{
    (void)state;
    uint32_t version[3];
    assert_true(uf_topo_parse_bus("0000:53:00.0", 12) && uf_topo_parse_bus("10000:e1:00.7", 13));
    assert_false(uf_topo_parse_bus("0000:53:00.8", 12) || uf_topo_parse_bus("pci0000:50", 10) ||
                 uf_topo_parse_bus("0000:53:00.0x", 13) || uf_topo_parse_bus("", 0) ||
                 uf_topo_parse_bus("0123456789abcdef0000:53:00.0", 28));
    assert_true(uf_topo_parse_version("2.13.0g", version));
    assert_true(version[0] == 2 && version[1] == 13 && version[2] == 0);
    assert_true(uf_topo_parse_version("6.18", version));
    assert_true(version[0] == 6 && version[1] == 18 && version[2] == 0);
    assert_false(uf_topo_parse_version("v2", version) || uf_topo_parse_version("", version));
    assert_false(uf_topo_parse_version("99999999999999", version));
}

static void lists_are_in_order_of_numbers_and_bounded(void **state)
{
    (void)state;
    fake_host host;
    char(*names)[UF_TOPO_FILE_NAME];
    uint32_t n;
    bool more;
    static const char *const files[] = {"/d/eth10", "/d/eth2", "/d/.hidden", "/d/eth1"};
    fake_host_create(&host);
    for (size_t i = 0; i < 4; i++)
        fake_file(&host, files[i], "x");
    assert_int_equal(uf_topo_list(host.root, "/d", &names, &n, &more), UF_OK);
    assert_int_equal(n, 3);
    assert_false(more);
    assert_string_equal(names[0], "eth1");
    assert_string_equal(names[2], "eth10");
    free(names);
    for (uint32_t i = 0; i < UF_TOPO_LIST_MAX; i++) {
        char file[32];
        snprintf(file, sizeof file, "/d/more%u", i);
        fake_link(&host, file, "x");
    }
    assert_int_equal(uf_topo_list(host.root, "/d", &names, &n, &more), UF_OK);
    assert_int_equal(n, UF_TOPO_LIST_MAX);
    assert_true(more);
    free(names);
    fake_host_remove(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_read_as_the_kernel_writes_them),
        cmocka_unit_test(core_lists_are_sets),
        cmocka_unit_test(addresses_and_versions),
        cmocka_unit_test(lists_are_in_order_of_numbers_and_bounded),
    };
    return cmocka_run_group_tests_name("topo_parse", tests, NULL, NULL);
}
