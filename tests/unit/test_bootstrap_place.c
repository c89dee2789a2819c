/* test_bootstrap_place.c - a PE finds its place in its job from the environment of three launchers, and half-set ones are refused by name. */
#include "base/error.h"
#include "base/settings.h"
#include "bootstrap/address.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/place.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define TORCH    "RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=3", "MASTER_ADDR=node7", "MASTER_PORT=29500"
#define SLURM    "SLURM_PROCID=5", "SLURM_NTASKS=16", "SLURM_STEP_NODELIST=gpu[003-010,12]", "SLURM_JOB_ID=4242", "SLURM_STEP_ID=1"

static int find(const char *const *environment, uf_bootstrap_place *place)
{
    static uf_settings settings;
    memset(place, 0xee, sizeof *place);
    assert_int_equal(uf_settings_load_from(environment, &settings), UF_OK);
    return uf_bootstrap_find_place(&settings, environment, place);
}

static void assert_place(const uf_bootstrap_place *place, int pe, int n_pes, const char *source)
{
    assert_int_equal(place->pe, pe);
    assert_int_equal(place->n_pes, n_pes);
    assert_string_equal(place->source, source);
}

static void assert_refused(const char *const *environment, const char *named)
{
    uf_bootstrap_place place, before;
    memset(&before, 0xee, sizeof before);
    int rc = find(environment, &place);
    if (rc != UF_EINVAL || !strstr(uf_error_message(), named))
        print_message("code %d, \"%s\", not naming %s\n", rc, uf_error_message(), named);
    assert_int_equal(rc, UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), named));
    assert_memory_equal(&place, &before, sizeof place); /* outputs only on success */
}

static void an_empty_environment_is_one_pe(void **state)
{
    (void)state;
    uf_bootstrap_place place;
    assert_int_equal(find(ENV("HOME=/root", "RANKLE=1"), &place), UF_OK);
    assert_place(&place, 0, 1, "none");
    assert_string_equal(place.root, "");
    /* An empty variable is an unset one. */
    assert_int_equal(find(ENV("RANK=", "WORLD_SIZE=", "SLURM_PROCID="), &place), UF_OK);
    assert_place(&place, 0, 1, "none");
}

static void the_launchers_own_variables_come_first(void **state)
{
    (void)state;
    uf_bootstrap_place place;
    assert_int_equal(
        find(ENV(TORCH, SLURM, "UNFENCE_PE=2", "UNFENCE_N_PES=4", "UNFENCE_ROOT=127.0.0.1:7000", "UNFENCE_JOB=abc"), &place),
        UF_OK);
    assert_place(&place, 2, 4, "unfence run");
    assert_string_equal(place.root, "127.0.0.1:7000");
    assert_string_equal(place.job, "abc");
    assert_int_equal(find(ENV("UNFENCE_PE=0", "UNFENCE_N_PES=1"), &place), UF_OK);
    assert_place(&place, 0, 1, "unfence run");
}

static void half_of_the_launchers_variables_is_refused(void **state)
{
    (void)state;
    assert_refused(ENV("UNFENCE_PE=2"), "UNFENCE_N_PES");
    assert_refused(ENV("UNFENCE_N_PES=2"), "UNFENCE_PE");
    assert_refused(ENV("UNFENCE_ROOT=a:1"), "UNFENCE_PE");
    assert_refused(ENV("UNFENCE_PE=1", "UNFENCE_N_PES=2"), "UNFENCE_ROOT");
    assert_refused(ENV("UNFENCE_PE=2", "UNFENCE_N_PES=2", "UNFENCE_ROOT=a:1"), "UNFENCE_PE is 2");
}

static void torchrun_places_a_pe_but_keeps_its_own_port(void **state)
{
    (void)state;
    uf_bootstrap_place place, other;
    uf_root root;
    assert_int_equal(find(ENV(TORCH), &place), UF_OK);
    assert_place(&place, 3, 8, "torchrun");
    assert_int_equal(uf_root_parse(place.root, &root), UF_OK);
    assert_string_equal(root.host, "node7");
    assert_int_equal(root.ports, UF_PLACE_PORTS);
    assert_true(root.port > 29500 || root.port + root.ports <= 29500);
    /* The same on all PEs, another job elsewhere. */
    assert_int_equal(find(ENV("RANK=7", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=node7", "MASTER_PORT=29500"), &other),
                     UF_OK);
    assert_string_equal(other.root, place.root);
    assert_string_equal(other.job, place.job);
    assert_int_equal(find(ENV(TORCH, "TORCHELASTIC_RUN_ID=other"), &other), UF_OK);
    assert_string_not_equal(other.job, place.job);
    assert_int_equal(find(ENV(TORCH, "TORCHELASTIC_RESTART_COUNT=1"), &other), UF_OK);
    assert_string_not_equal(other.job, place.job);
    assert_int_equal(find(ENV("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=fd00::7", "MASTER_PORT=1"), &place), UF_OK);
    assert_int_equal(uf_root_parse(place.root, &root), UF_OK);
    assert_string_equal(root.host, "fd00::7");
    assert_int_equal(find(ENV("RANK=0", "WORLD_SIZE=1"), &place), UF_OK);
    assert_place(&place, 0, 1, "torchrun");
}

static void half_of_torchruns_variables_is_refused(void **state)
{
    (void)state;
    assert_refused(ENV("RANK=0"), "WORLD_SIZE");
    assert_refused(ENV("WORLD_SIZE=2"), "RANK");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2"), "MASTER_ADDR");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a"), "MASTER_PORT");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=5"), "MASTER_ADDR");
    assert_refused(ENV("MASTER_ADDR=a"), "MASTER_ADDR");
    assert_refused(ENV("MASTER_PORT=5"), "MASTER_PORT");
    assert_refused(ENV("RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=5"), "RANK is 2");
    assert_refused(ENV("RANK=-1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=5"), "RANK is \"-1\"");
    assert_refused(ENV("RANK=1x", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=5"), "RANK is \"1x\"");
    assert_refused(ENV("RANK=1", "WORLD_SIZE=0", "MASTER_ADDR=a", "MASTER_PORT=5"), "WORLD_SIZE is \"0\"");
    assert_refused(ENV("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=65536"), "MASTER_PORT is \"65536\"");
    assert_refused(ENV("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=x", "MASTER_ADDR=a", "MASTER_PORT=5"), "LOCAL_RANK");
    assert_refused(ENV("RANK=1", "WORLD_SIZE=99999999999999999999", "MASTER_ADDR=a", "MASTER_PORT=5"), "WORLD_SIZE");
}

static void slurm_places_a_pe_at_its_steps_first_host(void **state)
{
    (void)state;
    uf_bootstrap_place place, other;
    uf_root root;
    assert_int_equal(find(ENV(SLURM), &place), UF_OK);
    assert_place(&place, 5, 16, "Slurm");
    assert_int_equal(uf_root_parse(place.root, &root), UF_OK);
    assert_string_equal(root.host, "gpu003");
    assert_int_equal(find(ENV("SLURM_PROCID=5", "SLURM_NTASKS=16", "SLURM_JOB_NODELIST=gpu[003-010,12]", "SLURM_JOB_ID=4242",
                              "SLURM_STEP_ID=1"),
                          &other),
                     UF_OK);
    assert_string_equal(other.root, place.root);
    /* Another step is another job. */
    assert_int_equal(find(ENV("SLURM_PROCID=5", "SLURM_NTASKS=16", "SLURM_JOB_NODELIST=gpu[003-010,12]", "SLURM_JOB_ID=4242",
                              "SLURM_STEP_ID=2"),
                          &other),
                     UF_OK);
    assert_string_not_equal(other.job, place.job);
    /* Batch scripts export torch's variables for all PEs and leave the rank to Slurm. */
    assert_int_equal(find(ENV(SLURM, "WORLD_SIZE=16", "MASTER_ADDR=gpu003", "MASTER_PORT=29500"), &place), UF_OK);
    assert_place(&place, 5, 16, "Slurm");
    /* A shell on a login node, inside of an allocation. */
    assert_int_equal(find(ENV("SLURM_NTASKS=16", "SLURM_JOB_ID=4242", "SLURM_JOB_NODELIST=gpu1"), &place), UF_OK);
    assert_place(&place, 0, 1, "none");
}

static void half_of_slurms_variables_is_refused(void **state)
{
    (void)state;
    assert_refused(ENV("SLURM_PROCID=0"), "SLURM_NTASKS");
    assert_refused(ENV("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=a"), "SLURM_JOB_ID");
    assert_refused(ENV("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=a"), "SLURM_STEP_ID");
    assert_refused(ENV("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0"), "SLURM_STEP_NODELIST");
    assert_refused(ENV("SLURM_PROCID=2", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=a"),
                   "SLURM_PROCID is 2");
    assert_refused(ENV("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=a[1-"),
                   "a[1-");
}

static void node_lists_give_their_first_host(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"login", "login"},
        {"a,b", "a"},
        {"node[003-010,12]", "node003"},
        {"node[7,3-5],other", "node7"},
        {"rack[1-2]n[01-04]", "rack1n01"},
        {"node[09-11]-ib.example.org", "node09-ib.example.org"},
        {"n[1-2],m[000-999]", "n1"},
        {"ip-10-0-0-1,ip-10-0-0-2", "ip-10-0-0-1"},
    };
    static const char *const wrong[] = {"",      ",a",     "a,",       "a,,b",          "a[",    "a[]",  "a[1",  "a[1-",
                                        "a[1-]", "a[-1]",  "a[2-1]",   "a[1,]",         "a[1]]", "a]",   "a[x]", "a b",
                                        "a;rm",  "a[[1]]", "a[1-2-3]", "a[1234567890]", "a,b[",  "a[1 ]"};
    char host[256];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(uf_place_first_host(lists[i][0], host, sizeof host), UF_OK);
        assert_string_equal(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (uf_place_first_host(wrong[i], host, sizeof host) != UF_EINVAL)
            print_message("accepted: %s as %s\n", wrong[i], host);
        assert_int_equal(uf_place_first_host(wrong[i], host, sizeof host), UF_EINVAL);
    }
    char list[600];
    memset(list, 'x', sizeof list - 1);
    list[sizeof list - 1] = 0;
    assert_int_equal(uf_place_first_host(list, host, sizeof host), UF_EINVAL);
    list[255] = 0;
    assert_int_equal(uf_place_first_host(list, host, sizeof host), UF_OK);
    assert_int_equal(uf_place_first_host(list, host, 255), UF_EINVAL);
}

static void derived_ports_lie_in_their_range_and_avoid_one(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char job[32];
        snprintf(job, sizeof job, "slurm %d 0", i);
        uint16_t port = uf_place_derived_port(job, 0);
        assert_true(port >= 16384 && port + UF_PLACE_PORTS <= 30784);
        for (uint16_t k = 0; k < UF_PLACE_PORTS; k++) {
            uint16_t avoid = (uint16_t)(port + k), other = uf_place_derived_port(job, avoid);
            assert_true(avoid < other || avoid >= other + UF_PLACE_PORTS);
            assert_true(other >= 16384 && other + UF_PLACE_PORTS <= 30784);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_environment_is_one_pe),
        cmocka_unit_test(the_launchers_own_variables_come_first),
        cmocka_unit_test(half_of_the_launchers_variables_is_refused),
        cmocka_unit_test(torchrun_places_a_pe_but_keeps_its_own_port),
        cmocka_unit_test(half_of_torchruns_variables_is_refused),
        cmocka_unit_test(slurm_places_a_pe_at_its_steps_first_host),
        cmocka_unit_test(half_of_slurms_variables_is_refused),
        cmocka_unit_test(node_lists_give_their_first_host),
        cmocka_unit_test(derived_ports_lie_in_their_range_and_avoid_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
