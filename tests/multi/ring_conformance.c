/* Rings and tiles between processes, over the fabric named on the command line: every byte right, wrong calls refused alike, and the death of a
 * PE told to all who wait for it, with its number. */
#include "multi/processes.h"
#include "support/ring_walk.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *fabric = "local";
static int n_pes;

static int open_world(process_table *table, int n, ep_pe *pe)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = pe->pe, o.n_pes = n, o.root = table->root, o.fabric = fabric, o.strict = 1, o.timeout_ns = 30000000000u;
    pe->n_pes = n;
    return ep_pe_ok(pe, uf_world_create(&o, &pe->world), "uf_world_create");
}

/* Prints what went wrong; the exit code of the child. */
static int result(const ep_pe *pe)
{
    if (pe->failed)
        fprintf(stderr, "PE %d of %d over %s: %s\n", pe->pe, pe->n_pes, fabric, pe->why);
    return pe->failed ? 1 : 0;
}

static int run(int n, int (*body)(process_table *table, int pe))
{
    process_table *table = processes_table();
    int port = processes_reserve(table);
    n_pes = n;
    int failed = processes_run(table, n, body);
    close(port);
    processes_table_free(table);
    return failed;
}

/* ---------------------------------------------------------------- bytes */

static int walk(process_table *table, int number)
{
    ep_pe pe = {.pe = number};
    if (open_world(table, n_pes, &pe)) {
        for (uint64_t seed = 100; seed < 104 && ring_walk(&pe, seed * 8 + (uint64_t)n_pes); seed++)
            ;
        if (pe.failed)
            uf_world_abort(pe.world, pe.why);
        int rc = uf_world_destroy(pe.world);
        if (!pe.failed)
            ep_pe_ok(&pe, rc, "uf_world_destroy");
    }
    return result(&pe);
}

static void every_byte_is_right_with_any_number_of_pes(void **state)
{
    (void)state;
    static const int numbers[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_int_equal(run(numbers[i], walk), 0);
}

/* ---------------------------------------------------------------- refusals */

static void refused(ep_pe *pe, int rc, int wanted, const char *words)
{
    if (rc != wanted || !strstr(uf_error_message(), words))
        ep_pe_fail(pe, "%s with \"%s\" was expected, not %s: %s", uf_error_name(wanted), words, uf_error_name(rc),
                   uf_error_message());
}

static void refuse_options(ep_pe *pe)
{
    uf_team *team = uf_team_world(pe->world);
    uf_ring *ring = NULL;
    uf_tiles *tiles = NULL;
    uf_ring_options o = {.size = sizeof o, .part_bytes = {64}}, bad = o;
    bad.n_slots = 1;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EINVAL, "options.n_slots is 1");
    bad = o, bad.n_parts = 9;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EINVAL, "options.n_parts is 9");
    bad = o, bad.directions = 4;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EINVAL, "options.directions is 4");
    bad = o, bad.size = 8;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EINVAL, "options.size is 8");
    /* Wrong on one PE alone, and different on one: all hear of it. */
    bad = o, bad.n_slots = pe->pe == 1 ? 65 : 2;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EINVAL, "options.n_slots is 65");
    bad = o, bad.part_bytes[0] = pe->pe == 1 ? 65 : 64;
    refused(pe, uf_ring_create(team, &bad, &ring), UF_EMISMATCH, "part_bytes[0]");
    uf_tiles_options t = {.size = sizeof t, .bytes = 100, .tile_bytes = 0};
    refused(pe, uf_tiles_create(team, &t, &tiles), UF_EINVAL, "options.tile_bytes is 0");
    t.tile_bytes = pe->pe == 1 ? 7 : 8;
    refused(pe, uf_tiles_create(team, &t, &tiles), UF_EMISMATCH, "tile_bytes");
}

static void refuse_calls(ep_pe *pe)
{
    uf_ring *ring = NULL;
    uf_tiles *tiles = NULL;
    unsigned char own[100] = {0};
    uf_ring_options o = {.size = sizeof o, .directions = 1 << UF_RING_REVERSE, .part_bytes = {64}};
    uf_tiles_options t = {.size = sizeof t, .bytes = 100, .tile_bytes = 64};
    uf_ring_block b = {{own}, {65}}, none = {{NULL}, {64}};
    if (!ep_pe_ok(pe, uf_ring_create(uf_team_world(pe->world), &o, &ring), "uf_ring_create") ||
        !ep_pe_ok(pe, uf_tiles_create(uf_team_world(pe->world), &t, &tiles), "uf_tiles_create"))
        return;
    refused(pe, uf_ring_start(ring, UF_RING_FORWARD, &b, 0), UF_EINVAL, "created without it");
    refused(pe, uf_ring_start(ring, UF_RING_REVERSE, &b, 0), UF_EINVAL, "block.bytes[0] is 65");
    refused(pe, uf_ring_start(ring, UF_RING_REVERSE, &none, 0), UF_EINVAL, "block.part[0] is NULL");
    refused(pe, uf_ring_release(ring, UF_RING_REVERSE, 0), UF_EINVAL, "is held");
    refused(pe, uf_ring_finish(ring, UF_RING_REVERSE, NULL, &b, UF_NOWAIT), UF_EAGAIN, "");
    refused(pe, uf_tiles_wait(tiles, 0, 0, NULL, NULL), UF_EINVAL, "no step is under way");
    refused(pe, uf_tiles_finish(tiles), UF_EINVAL, "no step is under way");
    if (!ep_pe_ok(pe, uf_tiles_start(tiles, own), "uf_tiles_start"))
        return;
    refused(pe, uf_tiles_start(tiles, own), UF_EINVAL, "the step before is not finished");
    refused(pe, uf_tiles_wait(tiles, pe->n_pes, 0, NULL, NULL), UF_ERANGE, "there is no PE 2");
    refused(pe, uf_tiles_wait(tiles, 0, 2, NULL, NULL), UF_ERANGE, "has 2 tiles");
    refused(pe, uf_tiles_sum(tiles, 0, UF_TILES_F32, own), UF_EINVAL, "to gather");
    ep_pe_ok(pe, uf_tiles_finish(tiles), "uf_tiles_finish");
    /* Two blocks come; with both held no third could. */
    for (int i = 0; i < 2; i++) {
        b = (uf_ring_block){{own}, {64}};
        ep_pe_ok(pe, uf_ring_start(ring, UF_RING_REVERSE, &b, 0), "uf_ring_start");
        ep_pe_ok(pe, uf_ring_finish(ring, UF_RING_REVERSE, NULL, &b, 0), "uf_ring_finish");
    }
    refused(pe, uf_ring_finish(ring, UF_RING_REVERSE, NULL, &b, 0), UF_EINVAL, "all 2 slots");
    b = (uf_ring_block){{own}, {64}};
    refused(pe, uf_ring_start(ring, UF_RING_REVERSE, &b, UF_NOWAIT), UF_EAGAIN, "");
    ep_pe_ok(pe, uf_tiles_destroy(tiles), "uf_tiles_destroy");
    ep_pe_ok(pe, uf_ring_destroy(ring), "uf_ring_destroy");
}

static int refuse(process_table *table, int number)
{
    ep_pe pe = {.pe = number};
    if (open_world(table, n_pes, &pe)) {
        refuse_options(&pe);
        refuse_calls(&pe);
        int rc = uf_world_destroy(pe.world);
        if (!pe.failed)
            ep_pe_ok(&pe, rc, "uf_world_destroy");
    }
    return result(&pe);
}

static void wrong_options_and_calls_are_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(run(2, refuse), 0);
}

/* ---------------------------------------------------------------- death */

enum { PES = 4, VICTIM = 2, TOLD = 0 };

/* A survivor that leaves is news as well, so nobody leaves before all have been told. */
static void leave_together(process_table *table)
{
    atomic_fetch_add(&table->flags[TOLD], 1);
    processes_await(&table->flags[TOLD], PES - 1);
}

static int die_in_a_rotation(process_table *table, int number)
{
    ep_pe pe = {.pe = number};
    uf_ring *ring = NULL;
    static unsigned char own[5000];
    uf_ring_options o = {.size = sizeof o, .part_bytes = {sizeof own}};
    if (!open_world(table, PES, &pe) || !ep_pe_ok(&pe, uf_ring_create(uf_team_world(pe.world), &o, &ring), "uf_ring_create"))
        return result(&pe);
    int rc = UF_OK;
    for (int step = 0; rc == UF_OK && step < 1000000; step++) {
        uf_ring_block b = {{own}, {sizeof own}};
        if (pe.pe == VICTIM && step == 5)
            raise(SIGKILL);
        rc = uf_ring_start(ring, UF_RING_FORWARD, &b, 0);
        rc = rc ? rc : uf_ring_finish(ring, UF_RING_FORWARD, NULL, &b, 0);
        rc = rc ? rc : uf_ring_release(ring, UF_RING_FORWARD, 0);
    }
    refused(&pe, rc, UF_EPEER, "PE 2");
    refused(&pe, uf_ring_flush(ring), UF_EPEER, "PE 2");
    leave_together(table);
    uf_ring_destroy(ring);
    uf_world_destroy(pe.world);
    return result(&pe);
}

static int die_in_a_gather(process_table *table, int number)
{
    ep_pe pe = {.pe = number};
    uf_tiles *tiles = NULL;
    static unsigned char own[5000];
    uf_tiles_options o = {.size = sizeof o, .bytes = sizeof own, .tile_bytes = 600};
    if (!open_world(table, PES, &pe) || !ep_pe_ok(&pe, uf_tiles_create(uf_team_world(pe.world), &o, &tiles), "uf_tiles_create"))
        return result(&pe);
    int rc = UF_OK;
    for (int step = 0; rc == UF_OK && step < 1000000; step++) {
        rc = uf_tiles_start(tiles, own);
        if (pe.pe == VICTIM && step == 5)
            raise(SIGKILL);
        for (int tile = 0; rc == UF_OK && tile < uf_tiles_count(tiles, (pe.pe + 1) % PES); tile++)
            rc = uf_tiles_wait(tiles, (pe.pe + 1) % PES, tile, NULL, NULL);
        rc = rc ? rc : uf_tiles_finish(tiles);
    }
    refused(&pe, rc, UF_EPEER, "PE 2");
    leave_together(table);
    uf_tiles_destroy(tiles);
    uf_world_destroy(pe.world);
    return result(&pe);
}

static void a_killed_pe_is_named_to_everyone_in_a_rotation(void **state)
{
    (void)state;
    assert_int_equal(run(PES, die_in_a_rotation), 1); /* the victim alone does not end well */
}

static void a_killed_pe_is_named_to_everyone_in_a_gather(void **state)
{
    (void)state;
    assert_int_equal(run(PES, die_in_a_gather), 1);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    setenv("UNFENCE_HEAP_SIZE", "4M", 0);
    setenv("UNFENCE_SIGNALS", "262144", 0);
    setenv("UNFENCE_LOG", "none", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_right_with_any_number_of_pes),
        cmocka_unit_test(wrong_options_and_calls_are_refused_by_name),
        cmocka_unit_test(a_killed_pe_is_named_to_everyone_in_a_rotation),
        cmocka_unit_test(a_killed_pe_is_named_to_everyone_in_a_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
