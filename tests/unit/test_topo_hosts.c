/* test_topo_hosts.c - hosts that users have are read from sysfs as their vendors describe them: NICs, rates, rails, rate per GPU.
 *
 * The truth: published descriptions of each instance type (NICs times Gb/s, NICs a GPU, what a switch holds). Rates per GPU are their sums,
 * worked out here by hand and not by the code's formula. */
#include "support/fake_host.h"
#include "topo/topo.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

static void read_machine(const char *name, uint64_t nic_gbps)
{
    fake_machine_add(&host, fake_machine_find(name));
    assert_int_equal(uf_topo_read(host.root, nic_gbps, &topo), UF_OK);
}

static bool noted(const char *words)
{
    for (uint32_t i = 0; i < topo->n_notes; i++)
        if (strstr(topo->notes[i], words))
            return true;
    return false;
}

static void expect_quiet(void)
{
    for (uint32_t i = 0; i < topo->n_notes; i++)
        fail_msg("a note nobody needs: %s", topo->notes[i]);
}

typedef struct expectation {
    const char *machine;
    uf_topo_nic_kind kind;
    uint32_t generation, n_nics, n_gpus, rails, sharing;
    uint64_t nic_gbps, gpu_gbps, host_gbps;
} expectation;

static void expect_host(const expectation *e)
{
    uint32_t n;
    read_machine(e->machine, 0);
    assert_int_equal(topo->n_nics, e->n_nics);
    assert_int_equal(topo->n_gpus, e->n_gpus);
    assert_int_equal(topo->numa_nodes, 2);
    uf_topo_rate all = uf_topo_host_rate(topo, &n);
    assert_int_equal(n, e->n_nics);
    assert_int_equal(all.from, UF_TOPO_FROM_SYSTEM);
    assert_int_equal(all.mbps, e->host_gbps * 1000);
    for (uint32_t i = 0; i < n; i++) {
        const uf_topo_nic *nic = &topo->nics[i];
        assert_int_equal(nic->kind, e->kind);
        assert_int_equal(nic->generation, e->generation);
        assert_int_equal(nic->rate.mbps, e->nic_gbps * 1000);
        assert_int_equal(nic->port, UF_TOPO_PORT_UP);
        assert_true(nic->verbs && !nic->virtual_function);
        assert_int_equal(nic->place.numa, i < n / 2 ? 0 : 1);
        assert_int_equal(nic->place.cpus.count, 48);
        assert_true(uf_topo_cpus_has(&nic->place.cpus, i < n / 2 ? 47 : 48));
    }
    for (uint32_t g = 0; g < e->n_gpus; g++) {
        const uf_topo_gpu *gpu = &topo->gpus[g];
        assert_int_equal(gpu->n_rails, e->rails);
        assert_int_equal(gpu->sharing, e->sharing);
        assert_int_equal(gpu->rate.from, UF_TOPO_FROM_SYSTEM);
        assert_int_equal(gpu->rate.mbps, e->gpu_gbps * 1000);
        assert_false(gpu->hidden);
        for (uint32_t i = 0; i < gpu->n_rails; i++)
            assert_int_equal(uf_topo_distance_between(topo, &gpu->place, &uf_topo_rail(topo, gpu, i)->place),
                             UF_TOPO_SAME_SWITCH);
    }
    expect_quiet();
}

static void p4d_has_a_nic_for_two_gpus(void **state)
{
    (void)state;
    expect_host(&(expectation){"p4d", UF_TOPO_EFA, 1, 4, 8, 1, 2, 100, 50, 400});
    /* Both GPUs of a switch use its one NIC, and not the next switch's. */
    for (uint32_t g = 0; g < 8; g++)
        assert_int_equal(topo->rails[topo->gpus[g].first_rail], g / 2);
}

static void p5_has_four_nics_of_100_a_gpu(void **state)
{
    (void)state;
    expect_host(&(expectation){"p5", UF_TOPO_EFA, 2, 32, 8, 4, 1, 100, 400, 3200});
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(topo->rails[topo->gpus[g].first_rail + i], 4 * g + i);
}

static void p5en_has_two_nics_of_200_a_gpu_from_four_that_two_share(void **state)
{
    (void)state;
    expect_host(&(expectation){"p5en", UF_TOPO_EFA, 3, 16, 8, 2, 2, 200, 400, 3200});
    /* No NIC is the rail of two GPUs, in the order of addresses. */
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(topo->rails[topo->gpus[g].first_rail + i], 2 * g + i);
}

static void p6_b200_has_a_nic_of_400_a_gpu(void **state)
{
    (void)state;
    expect_host(&(expectation){"p6-b200", UF_TOPO_EFA, 4, 8, 8, 1, 2, 400, 400, 3200});
}

static void p6_b300_has_two_nics_of_400_a_gpu_and_a_link_that_carries_them(void **state)
{
    (void)state;
    expect_host(&(expectation){"p6-b300", UF_TOPO_EFA, 4, 16, 8, 2, 1, 400, 800, 6400});
}

static void a_mellanox_box_has_rdma_nics_of_any_vendor(void **state)
{
    (void)state;
    expect_host(&(expectation){"mellanox", UF_TOPO_RDMA, UF_TOPO_UNKNOWN, 4, 8, 1, 2, 400, 200, 1600});
    assert_string_equal(topo->nics[0].name, "mlx5_0");
    assert_null(topo->instance);
}

static void an_empty_host_is_empty_and_no_error(void **state)
{
    (void)state;
    uint32_t n;
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_int_equal(topo->n_nics + topo->n_gpus + topo->n_rails, 0);
    assert_int_equal(topo->numa_nodes, UF_TOPO_UNKNOWN);
    assert_false(uf_topo_rate_known(uf_topo_host_rate(topo, &n)));
    assert_int_equal(n, 0);
    expect_quiet();
    uf_topo_free(topo);
    assert_int_equal(uf_topo_read("/nowhere/at/all", 0, &topo), UF_OK);
    assert_int_equal(topo->n_nics + topo->n_gpus, 0);
}

static void this_host_can_be_read(void **state)
{
    (void)state;
    assert_int_equal(uf_topo_read("", 0, &topo), UF_OK);
    for (uint32_t i = 0; i < topo->n_nics; i++)
        assert_true(!uf_topo_rate_known(topo->nics[i].rate) || topo->nics[i].rate.mbps > 0);
}

static void gpu_rate_is_no_more_than_its_own_link(void **state)
{
    (void)state;
    /* 800 Gb/s of NICs behind a Gen5 x16 link, which carries some 55 to 60 GB/s. */
    fake_machine machine = *fake_machine_find("p6-b300");
    machine.gpu_speed = "32.0 GT/s PCIe";
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_in_range(topo->gpus[0].rate.mbps, 440000, 480000);
}

static void old_driver_that_says_100_is_contradicted_and_not_corrected(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p5en");
    machine.rate = "100 Gb/sec (4X EDR)";
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_int_equal(topo->nics[3].rate.mbps, 100000);
    assert_int_equal(topo->nics[3].rate.from, UF_TOPO_FROM_SYSTEM);
    assert_true(noted("16 of 16 EFA NICs: the driver says 100 Gb/s"));
    assert_true(noted("UNFENCE_NIC_RATE"));
}

static void the_setting_goes_before_all(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p5en");
    machine.rate = "100 Gb/sec (4X EDR)";
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 200, &topo), UF_OK);
    assert_int_equal(topo->nics[3].rate.mbps, 200000);
    assert_int_equal(topo->nics[3].rate.from, UF_TOPO_FROM_SETTING);
    assert_int_equal(topo->gpus[0].rate.mbps, 400000);
    assert_true(noted("goes before the driver's 100 Gb/s"));
}

static void rate_that_nobody_tells_is_the_instance_types(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p5en");
    machine.rate = NULL;
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_int_equal(topo->nics[0].rate.mbps, 200000);
    assert_int_equal(topo->nics[0].rate.from, UF_TOPO_FROM_INSTANCE);
    assert_int_equal(topo->gpus[7].rate.from, UF_TOPO_FROM_INSTANCE);
}

static void unknown_rate_stays_unknown_and_never_0(void **state)
{
    (void)state;
    uint32_t n;
    fake_machine machine = *fake_machine_find("mellanox");
    machine.rate = NULL;
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_int_equal(topo->nics[0].rate.from, UF_TOPO_FROM_NOTHING);
    assert_false(uf_topo_rate_known(topo->gpus[0].rate));
    assert_false(uf_topo_rate_known(uf_topo_host_rate(topo, &n)));
    assert_int_equal(n, 4);
    assert_true(noted("4 NICs (mlx5_0) is unknown: set UNFENCE_NIC_RATE"));
}

static void one_unknown_nic_makes_the_sum_unknown(void **state)
{
    (void)state;
    char path[128], file[256];
    uint32_t n;
    fake_machine_add(&host, fake_machine_find("mellanox"));
    snprintf(file, sizeof file, "/sys/devices/%s/infiniband/mlx5_2/ports/1/rate", fake_machine_path(2, 0, path));
    fake_file(&host, file, "0 Gb/sec\n");
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_true(uf_topo_rate_known(topo->gpus[0].rate));
    assert_false(uf_topo_rate_known(topo->gpus[4].rate));
    assert_false(uf_topo_rate_known(uf_topo_host_rate(topo, &n)));
}

static void missing_nics_and_gpus_are_told_with_both_numbers(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p5en");
    machine.nics = 3;
    machine.gpus = 1;
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_true(noted("p5en.48xlarge has 16 EFA NICs, 12 are visible here"));
    assert_true(noted("p5en.48xlarge has 8 GPUs, 4 are visible here"));
}

static void nics_of_another_generation_are_told(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p5en");
    machine.nic_device = 0xefa1;
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_true(noted("16 of 16 EFA NICs are of generation 2"));
}

static void an_efa_newer_than_this_library_is_an_efa(void **state)
{
    (void)state;
    fake_machine machine = *fake_machine_find("p6-b300");
    machine.product = "p9.96xlarge";
    machine.nic_device = 0xefa9;
    fake_machine_add(&host, &machine);
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    assert_int_equal(topo->nics[0].kind, UF_TOPO_EFA);
    assert_int_equal(topo->nics[0].generation, UF_TOPO_UNKNOWN);
    expect_quiet();
}

static void instance_types_are_found_by_any_case_and_no_other_name(void **state)
{
    (void)state;
    assert_int_equal(uf_topo_instance_find("p5en.48xlarge")->nic_gbps, 200);
    assert_int_equal(uf_topo_instance_find("P4DE.24xlarge")->n_nics, 4);
    assert_non_null(uf_topo_instance_find("g6.48xlarge"));
    assert_null(uf_topo_instance_find("p5en.48xlarge2"));
    assert_null(uf_topo_instance_find(""));
}

static void one_nic_is_read_by_name_as_in_the_whole(void **state)
{
    (void)state;
    uf_topo_nic nic;
    read_machine("p5en", 0);
    assert_true(uf_topo_read_nic(host.root, "rdmap9s0", 0, &nic));
    assert_int_equal(nic.rate.mbps, 200000);
    assert_int_equal(nic.place.numa, 1);
    assert_int_equal(nic.place.cpus.count, 48);
    assert_true(uf_topo_read_nic(host.root, "rdmap9s0", 25, &nic));
    assert_int_equal(nic.rate.mbps, 25000);
    assert_int_equal(nic.rate.from, UF_TOPO_FROM_SETTING);
    assert_false(uf_topo_read_nic(host.root, "rdmap99s0", 0, &nic));
    assert_false(uf_topo_read_nic(host.root, "", 0, &nic));
    assert_false(uf_topo_read_nic(host.root, "../../class/infiniband/rdmap9s0", 0, &nic));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(p4d_has_a_nic_for_two_gpus),
        TEST(p5_has_four_nics_of_100_a_gpu),
        TEST(p5en_has_two_nics_of_200_a_gpu_from_four_that_two_share),
        TEST(p6_b200_has_a_nic_of_400_a_gpu),
        TEST(p6_b300_has_two_nics_of_400_a_gpu_and_a_link_that_carries_them),
        TEST(a_mellanox_box_has_rdma_nics_of_any_vendor),
        TEST(an_empty_host_is_empty_and_no_error),
        TEST(this_host_can_be_read),
        TEST(gpu_rate_is_no_more_than_its_own_link),
        TEST(old_driver_that_says_100_is_contradicted_and_not_corrected),
        TEST(the_setting_goes_before_all),
        TEST(rate_that_nobody_tells_is_the_instance_types),
        TEST(unknown_rate_stays_unknown_and_never_0),
        TEST(one_unknown_nic_makes_the_sum_unknown),
        TEST(missing_nics_and_gpus_are_told_with_both_numbers),
        TEST(nics_of_another_generation_are_told),
        TEST(an_efa_newer_than_this_library_is_an_efa),
        TEST(instance_types_are_found_by_any_case_and_no_other_name),
        TEST(one_nic_is_read_by_name_as_in_the_whole),
    };
    return cmocka_run_group_tests_name("topo_hosts", tests, NULL, NULL);
}
