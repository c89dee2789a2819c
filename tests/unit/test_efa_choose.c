/* test_efa_choose.c - which EFA devices become a PE's rails, on hosts that users have: near its GPU, else near its cores, else its part. */
#include "fabric/efa/choose.h"
#include "support/fake_host.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static fake_host host;
static uf_topo *topo;
static const char *names[UF_EFA_NICS_MAX];
static uint32_t n_names;

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

/* The devices in an order that is not that of their addresses, as the system may list them. */
static void read_machine(const char *name)
{
    fake_machine_add(&host, fake_machine_find(name));
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    n_names = topo->n_nics < UF_EFA_NICS_MAX ? topo->n_nics : UF_EFA_NICS_MAX;
    for (uint32_t i = 0; i < n_names; i++)
        names[i] = topo->nics[n_names - 1 - i].name;
}

static const uf_topo_nic *chosen(const uf_efa_choice *c, uint32_t rail)
{
    assert_true(rail < c->n && c->nic[rail] < n_names);
    return &topo->nics[n_names - 1 - c->nic[rail]];
}

static void expect_gpu(const uf_efa_choice *c, uint32_t g)
{
    const uf_topo_gpu *gpu = &topo->gpus[g];
    assert_int_equal(c->n, gpu->n_rails);
    for (uint32_t i = 0; i < c->n; i++)
        assert_ptr_equal(chosen(c, i), uf_topo_rail(topo, gpu, i));
}

static void rails_are_those_of_the_gpu_and_no_two_pes_share_one(void **state)
{
    static const struct {
        const char *machine;
        uint32_t rails; /* of a GPU, by the vendor's description */
    } hosts[] = {{"p5", 4}, {"p5en", 2}, {"p6-b200", 1}};
    (void)state;
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++) {
        uint64_t used = 0;
        read_machine(hosts[h].machine);
        for (uint32_t g = 0; g < topo->n_gpus; g++) {
            uf_efa_choice c;
            uf_efa_choose(topo, names, n_names, 0, &(uf_efa_local){.rank = g, .size = topo->n_gpus, .gpu = g}, &c);
            assert_int_equal(c.n, hosts[h].rails);
            expect_gpu(&c, g);
            assert_non_null(strstr(c.why, "GPU"));
            for (uint32_t i = 0; i < c.n; i++) {
                assert_false(used >> c.nic[i] & 1);
                used |= UINT64_C(1) << c.nic[i];
            }
        }
        teardown(NULL);
        setup(NULL);
    }
}

static void with_fewer_rails_wanted_the_first_ones_stay(void **state)
{
    (void)state;
    read_machine("p5");
    uf_efa_choice all, two;
    const uf_efa_local local = {.rank = 3, .size = 8, .gpu = 3};
    uf_efa_choose(topo, names, n_names, 0, &local, &all);
    uf_efa_choose(topo, names, n_names, 2, &local, &two);
    assert_int_equal(two.n, 2);
    assert_memory_equal(two.nic, all.nic, 2 * sizeof two.nic[0]);
    uf_efa_choose(topo, names, n_names, 9, &local, &two);
    assert_int_equal(two.n, all.n);
}

static void a_pe_on_some_cores_takes_what_is_near_them(void **state)
{
    (void)state;
    read_machine("p5en");
    uint32_t firsts = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        uf_efa_local local = {.rank = rank, .size = 4, .gpu = UF_TOPO_UNKNOWN, .cpus = topo->nics[n_names - 1].place.cpus};
        uf_efa_choice c;
        assert_true(local.cpus.count > 0);
        uf_efa_choose(topo, names, n_names, 0, &local, &c);
        assert_int_equal(c.n, n_names / 2);
        for (uint32_t i = 0; i < c.n; i++)
            assert_int_equal(chosen(&c, i)->place.numa, topo->nics[n_names - 1].place.numa);
        uf_efa_choose(topo, names, n_names, 1, &local, &c);
        firsts |= 1u << c.nic[0];
    }
    assert_int_equal(__builtin_popcount(firsts), 4); /* those who want only one each begin with another */
}

/* A GPU that is not in this host, all cores, nothing near: dealt out in order of addresses. */
static void what_nothing_is_near_to_is_dealt_out_by_local_rank(void **state)
{
    (void)state;
    read_machine("p5");
    for (uint32_t size = 1; size <= 40; size += 3) {
        uint64_t used = 0;
        int last = -1;
        for (uint32_t rank = 0; rank < size; rank++) {
            uf_efa_local local = {.rank = rank, .size = size, .gpu = 99};
            memset(local.cpus.bits, 0xff, sizeof local.cpus.bits);
            local.cpus.count = UF_TOPO_CPUS;
            uf_efa_choice c;
            uf_efa_choose(topo, names, n_names, 0, &local, &c);
            assert_true(c.n >= n_names / size && c.n <= n_names / size + 1);
            for (uint32_t i = 0; i < c.n; i++) {
                int at = (int)(chosen(&c, i) - topo->nics);
                assert_true(size > n_names ? at >= last : at == last + 1);
                last = at;
                used |= UINT64_C(1) << c.nic[i];
            }
        }
        assert_int_equal(used, (UINT64_C(1) << n_names) - 1);
    }
    uf_efa_choice c;
    uf_efa_choose(topo, names, n_names, 0, &(uf_efa_local){.gpu = UF_TOPO_UNKNOWN}, &c);
    assert_int_equal(c.n, n_names);
}

/* Nothing in sysfs, as in a container that hides it: the devices' own order. */
static void unknown_devices_are_dealt_out_as_they_come(void **state)
{
    (void)state;
    static const char *const some[] = {"rdmap0s6", "rdmap1s6", "rdmap2s6"};
    assert_int_equal(uf_topo_read(host.root, 0, &topo), UF_OK);
    for (uint32_t rank = 0; rank < 3; rank++) {
        uf_efa_choice c;
        uf_efa_choose(topo, some, 3, 0, &(uf_efa_local){.rank = rank, .size = 3, .gpu = rank}, &c);
        assert_int_equal(c.n, 1);
        assert_int_equal(c.nic[0], rank);
    }
}

static void the_place_is_what_the_launcher_says(void **state)
{
    (void)state;
    static const struct {
        const char *environment[5];
        int pe, n_pes;
        bool one_host;
        uint32_t rank, size, gpu;
    } rows[] = {
        {{"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=8"}, 11, 16, false, 3, 8, 3},
        {{"SLURM_LOCALID=2", "SLURM_NTASKS_PER_NODE=4"}, 6, 8, false, 2, 4, 2},
        {{"OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}, 3, 4, false, 1, 2, 1},
        {{"LOCAL_RANK=3"}, 11, 16, false, 3, 0, 3},
        {{"LOCAL_RANK=9", "LOCAL_WORLD_SIZE=8"}, 9, 16, false, 9, 0, 9},
        {{"LOCAL_RANK=x", "LOCAL_WORLD_SIZE=8"}, 2, 4, true, 2, 4, 2},
        {{"LOCAL_RANKS=3"}, 5, 8, false, 0, 0, UF_TOPO_UNKNOWN},
        {{NULL}, 5, 8, true, 5, 8, 5},
        {{"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "CUDA_VISIBLE_DEVICES=4,6"}, 1, 2, true, 1, 2, 6},
        {{"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "CUDA_VISIBLE_DEVICES=7"}, 1, 2, true, 1, 2, 7},
        {{"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "CUDA_VISIBLE_DEVICES=GPU-8a1f,GPU-77"}, 0, 2, true, 0, 2, UF_TOPO_UNKNOWN},
        {{"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "CUDA_VISIBLE_DEVICES="}, 0, 2, true, 0, 2, UF_TOPO_UNKNOWN},
        {{"LOCAL_RANK=99999999999999999999"}, 0, 2, false, 0, 0, UF_TOPO_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uf_efa_local local;
        uf_efa_local_read(rows[i].environment, rows[i].pe, rows[i].n_pes, rows[i].one_host, &local);
        if (local.rank != rows[i].rank || local.size != rows[i].size || local.gpu != rows[i].gpu)
            fail_msg("row %zu: rank %u of %u, GPU %u", i, local.rank, local.size, local.gpu);
    }
}

int main(void)
{
#define ON_A_HOST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ON_A_HOST(rails_are_those_of_the_gpu_and_no_two_pes_share_one),
        ON_A_HOST(with_fewer_rails_wanted_the_first_ones_stay),
        ON_A_HOST(a_pe_on_some_cores_takes_what_is_near_them),
        ON_A_HOST(what_nothing_is_near_to_is_dealt_out_by_local_rank),
        ON_A_HOST(unknown_devices_are_dealt_out_as_they_come),
        cmocka_unit_test(the_place_is_what_the_launcher_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
