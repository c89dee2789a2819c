/* Rings and tiles are right to the byte on networks that reorder, delay, cut, refuse, repeat and lose, for every seed.
 *
 * PEs are fibers of one thread in virtual time over the EFA device model (p5en, chaos and others) and over the adversarial network, so that a seed is one
 * exact run. What a protocol would get wrong that trusted the order of two weak signals, or gave a slot back too early, is a wrong byte here;
 * the networks also tell of sources that changed in flight and of late duplicates over changed memory. A late PE is late in virtual time. */
#include "engine/driver.h"
#include "fabric/efa/device_model.h"
#include "support/ring_walk.h"
#include "support/shuffle_fabric.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_PES = 7 };

static uint64_t seeds = 12, first_seed = 1;
static uint64_t overtakes, refused, duplicates; /* a network that was kind all the time would prove nothing */

typedef struct scene {
    bool efa; /* else the adversarial network */
    const char *profile;
    uint64_t seed, timeout_ns;
    uint64_t step_ns; /* 0: as fine as the network's events; more for what takes long */
    int n;
    int (*body)(ep_pe *pe, uint64_t seed);
    uf_fibers *fibers;
    uf_group *group;
    uf_shuffle_wire *wire;
    uf_efa_model_place *place;
} scene;

typedef struct actor {
    ep_pe pe;
    const scene *scene;
} actor;

static void act(void *arg)
{
    actor *a = arg;
    uf_world_options o = UF_WORLD_OPTIONS;
    const scene *s = a->scene;
    o.pe = a->pe.pe, o.n_pes = a->pe.n_pes, o.group = s->group, o.driver = uf_fibers_driver(s->fibers);
    o.fabric_ops = s->efa ? &uf_fabric_efa : &uf_shuffle_fabric;
    o.fabric_arg = s->efa ? (void *)s->place : (void *)s->wire;
    o.timeout_ns = s->timeout_ns;
    if (!ep_pe_ok(&a->pe, uf_world_create(&o, &a->pe.world), "uf_world_create"))
        return;
    s->body(&a->pe, s->seed);
    if (a->pe.failed)
        uf_world_abort(a->pe.world, a->pe.why);
    int rc = uf_world_destroy(a->pe.world);
    if (!a->pe.failed)
        ep_pe_ok(&a->pe, rc, "uf_world_destroy");
}

static int open_network(scene *s)
{
    static const uint32_t rails[] = {1, 2, 4};
    uint32_t n_rails = rails[s->seed / MOST_PES % 3];
    if (s->efa) {
        const uf_efa_model_place_options o = {
            .profile = s->profile, .seed = s->seed, .n_pes = (uint32_t)s->n, .n_rails = n_rails};
        int rc = uf_efa_model_place_create(&o, &s->place);
        return rc ? rc : uf_fibers_attach(s->fibers, uf_efa_model_place_next, uf_efa_model_place_run, s->place);
    }
    uf_shuffle_knobs knobs;
    int rc = uf_shuffle_profile(s->profile, s->seed, s->n, &knobs);
    if (!rc && knobs.n_rails == 0)
        knobs.n_rails = n_rails;
    return rc ? rc : uf_shuffle_create(&knobs, &s->wire);
}

/* What was wrong with the network when all is over. */
static int close_network(scene *s, char *why, size_t bytes)
{
    int wrong = 0;
    if (s->efa) {
        const uf_model *model = uf_efa_model_place_model(s->place);
        const uf_model_stats *stats = uf_model_get_stats(model);
        wrong = uf_model_traps(model) > 0 || stats->cqes_lost || stats->out_of_memory;
        snprintf(why, bytes, "the model trapped: %s",
                 uf_model_traps(model) ? uf_model_trap(model, 0) : "no, it lost completions");
        duplicates += stats->duplicates;
        uf_efa_model_place_destroy(s->place);
    } else {
        uf_shuffle_counters c;
        wrong = uf_shuffle_violations(s->wire, why, bytes) > 0;
        uf_shuffle_counters_get(s->wire, &c);
        overtakes += c.overtakes, refused += c.refused;
        uf_shuffle_destroy(s->wire);
    }
    return wrong;
}

/* Runs the scene; the number of things that were wrong, each told with its seed. */
static int play(scene *s)
{
    actor actors[MOST_PES];
    char why[512] = "";
    setenv("UNFENCE_STRIPE", s->seed % 2 ? "1K" : "0", 1);
    if (uf_fibers_create(s->seed,
                         s->step_ns ? s->step_ns
                         : s->efa   ? 500
                                    : 1000,
                         &s->fibers) ||
        uf_group_create(s->n, &s->group) || open_network(s))
        return 1;
    for (int pe = 0; pe < s->n; pe++) {
        actors[pe] = (actor){{.pe = pe, .n_pes = s->n, .arg = s}, s};
        if (uf_fibers_add(s->fibers, act, &actors[pe]))
            return 1;
    }
    int rc = uf_fibers_run(s->fibers, UINT64_C(600000000000)), failed = rc != UF_OK;
    const char *network = s->efa ? "efa" : "shuffle";
    if (rc)
        fprintf(stderr, "%s, profile %s, UNFENCE_SEED=%llu: %s\n", network, s->profile, (unsigned long long)s->seed,
                uf_error_message());
    for (int pe = 0; pe < s->n; pe++) {
        failed += actors[pe].pe.failed > 0;
        if (actors[pe].pe.failed)
            fprintf(stderr, "%s, profile %s, UNFENCE_SEED=%llu, PE %d of %d: %s\n", network, s->profile,
                    (unsigned long long)s->seed, pe, s->n, actors[pe].pe.why);
    }
    if (rc)
        return failed; /* fibers still stand in the middle of things */
    if (close_network(s, why, sizeof why) && !failed) {
        fprintf(stderr, "%s, profile %s, UNFENCE_SEED=%llu: %s\n", network, s->profile, (unsigned long long)s->seed, why);
        failed++;
    }
    uf_group_destroy(s->group);
    uf_fibers_destroy(s->fibers);
    return failed;
}

static void play_all(bool efa, const char *const *profiles)
{
    int failed = 0;
    for (int p = 0; profiles[p]; p++)
        for (uint64_t seed = first_seed; seed < first_seed + seeds && failed < 5; seed++) {
            scene s = {.efa = efa, .profile = profiles[p], .seed = seed, .timeout_ns = 60000000000u, .body = ring_walk};
            s.n = 1 + (int)(seed % MOST_PES);
            failed += play(&s);
        }
    assert_int_equal(failed, 0);
}

static void every_byte_is_right_over_the_efa_model(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "chaos", "p5", "p6-b200", NULL};
    play_all(true, profiles);
    assert_true(duplicates > 0);
}

static void every_byte_is_right_over_the_adversarial_network(void **state)
{
    (void)state;
    play_all(false, uf_shuffle_profiles);
    assert_true(overtakes > 0 && refused > 0);
}

/* ---------------------------------------------------------------- a late PE */

enum { LATE = 1 };

/* PE 1 does not come for a minute of virtual time. */
static void sleep_virtually(ep_pe *pe, uint64_t ns)
{
    uint64_t never = 0;
    uf_wait(pe->world, &never, UF_GE, 1, ns);
}

static int be_late(ep_pe *pe, uint64_t seed)
{
    if (pe->pe == LATE)
        sleep_virtually(pe, 60000000000u);
    return ring_walk_rotations(pe, seed, 3) && ring_walk_tiles(pe, seed, 2);
}

static void a_pe_that_is_a_minute_late_changes_no_byte(void **state)
{
    (void)state;
    scene s = {.efa = true, .profile = "p5en", .seed = 5, .n = 3, .body = be_late};
    s.timeout_ns = 120000000000u;
    s.step_ns = 50000;
    assert_int_equal(play(&s), 0);
}

/* Everybody waits for PE 1, which does nothing: whoever does is told its number, with the step or tile. */
static void wait_for_it(ep_pe *pe, uf_ring *ring, uf_tiles *tiles)
{
    static unsigned char own[100];
    uf_ring_block b = {{own}, {64}};
    int rc = uf_ring_finish(ring, UF_RING_FORWARD, NULL, &b, 0);
    if (pe->pe == LATE + 1 && (rc != UF_ETIMEDOUT || !strstr(uf_error_message(), "for PE 1 to send its block")))
        ep_pe_fail(pe, "finish: %s: %s", uf_error_name(rc), uf_error_message());
    b = (uf_ring_block){{own}, {64}};
    for (int i = 0; i < 2 && pe->pe == LATE - 1; i++)
        ep_pe_ok(pe, uf_ring_start(ring, UF_RING_FORWARD, &b, 0), "uf_ring_start");
    if (pe->pe == LATE - 1 && ((rc = uf_ring_start(ring, UF_RING_FORWARD, &b, 0)) != UF_ETIMEDOUT ||
                               !strstr(uf_error_message(), "for PE 1 to give a slot back")))
        ep_pe_fail(pe, "start: %s: %s", uf_error_name(rc), uf_error_message());
    ep_pe_ok(pe, uf_tiles_start(tiles, own), "uf_tiles_start");
    rc = uf_tiles_wait(tiles, LATE, 1, NULL, NULL);
    if (rc != UF_ETIMEDOUT || !strstr(uf_error_message(), "tile 1 of 2 from PE 1"))
        ep_pe_fail(pe, "tiles: %s: %s", uf_error_name(rc), uf_error_message());
}

static int give_up_on_it(ep_pe *pe, uint64_t seed)
{
    static int met;
    (void)seed;
    uf_ring *ring = NULL;
    uf_tiles *tiles = NULL;
    uf_ring_options o = {.size = sizeof o, .part_bytes = {64}};
    uf_tiles_options t = {.size = sizeof t, .bytes = 100, .tile_bytes = 64};
    if (!ep_pe_ok(pe, uf_ring_create(uf_team_world(pe->world), &o, &ring), "uf_ring_create") ||
        !ep_pe_ok(pe, uf_tiles_create(uf_team_world(pe->world), &t, &tiles), "uf_tiles_create"))
        return 0;
    if (pe->pe == LATE)
        sleep_virtually(pe, 9000000);
    else
        wait_for_it(pe, ring, tiles);
    /* Times of waiting differ by more than the world's timeout: so all meet, outside of the library, before it ends. */
    for (met++; met % pe->n_pes;)
        sleep_virtually(pe, 1);
    int rc = uf_tiles_destroy(tiles), other = uf_ring_destroy(ring);
    return ep_pe_ok(pe, rc ? rc : other, "uf_tiles_destroy and uf_ring_destroy");
}

static void who_waits_for_a_late_pe_is_told_its_number(void **state)
{
    (void)state;
    scene s = {.efa = true, .profile = "p5en", .seed = 6, .n = 3, .body = give_up_on_it};
    s.timeout_ns = 2000000;
    assert_int_equal(play(&s), 0);
}

/* Arguments: number of seeds, first seed. UNFENCE_SEED=n runs that one. */
int main(int argc, char **argv)
{
    const char *one = getenv("UNFENCE_SEED");
    if (argc > 1)
        seeds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    if (one && strtoull(one, NULL, 10))
        first_seed = strtoull(one, NULL, 10), seeds = 1;
    setenv("UNFENCE_HEAP_MAX", "256M", 1);
    setenv("UNFENCE_HEAP_SIZE", "1M", 1);
    setenv("UNFENCE_SIGNALS", "262144", 1);
    setenv("UNFENCE_MAX_LANES", "256", 1);
    if (!getenv("UNFENCE_LOG"))
        uf_set_log_level(UF_LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_right_over_the_efa_model),
        cmocka_unit_test(every_byte_is_right_over_the_adversarial_network),
        cmocka_unit_test(a_pe_that_is_a_minute_late_changes_no_byte),
        cmocka_unit_test(who_waits_for_a_late_pe_is_told_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
