/* test_rails.c - worlds with several network cards, some of which break: what was promised holds over those that are left.
 *
 * PEs are fibers over the adversarial network, which breaks a rail when a body says so; seeds decide where everything was then. */
#include "base/log.h"
#include "support/shuffle_fabric.h"
#include "support/world_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 30, SLOT = 20000, SLOTS = 12 };

static char warnings[4096];
static uint64_t settled, severed;

static void listen(void *arg, int level, const char *line)
{
    (void)arg;
    size_t used = strlen(warnings);
    if (level == UF_LOG_WARN)
        snprintf(warnings + used, sizeof warnings - used, "%s\n", line);
}

static void run_seeds(world_run run, void (*body)(world_pe *me))
{
    for (run.seed = 1; run.seed <= SEEDS; run.seed++) {
        warnings[0] = 0;
        world_run_all(&run, body);
    }
}

static unsigned char byte_of(const world_pe *me, int round, size_t at)
{
    return (unsigned char)(1 + (at * 31 + (size_t)round * 7 + (size_t)me->run->seed) % 255);
}

static bool holds(const world_pe *me, const unsigned char *slot, int round, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (slot[i] != byte_of(me, round, i))
            return false;
    return true;
}

/* ---------------------------------------------------------------- a break in the middle */

/* Sizes from one WR to many stripes, signals that are numbered, and a rail of either end that breaks while they fly. */
static void break_body(world_pe *me)
{
    static const size_t sizes[SLOTS] = {8, 100, 5000, SLOT, 1, 700, 9000, 64, SLOT, 3000, 12000, 8};
    unsigned char *data, *out = malloc(SLOT * SLOTS);
    uint64_t *sig;
    void *p;
    CHECK(me, uf_malloc(me->world, SLOT * SLOTS, 0, &p) == UF_OK &&
                  uf_signal_alloc(me->world, SLOTS, UF_SIGNAL_DEFAULT, &sig) == UF_OK);
    data = p;
    if (me->pe == 0) {
        for (int i = 0; i < SLOTS; i++) {
            for (size_t k = 0; k < sizes[i]; k++)
                out[i * SLOT + (int)k] = byte_of(me, i, k);
            if (i == (int)(me->run->seed % SLOTS))
                uf_shuffle_break_rail(me->wire, (int)(me->run->seed / 2 % 2), (uint32_t)(me->run->seed % me->run->n_rails));
            CHECK(me, uf_put_signal_nbi(uf_ctx_default(me->world), data + i * SLOT, out + i * SLOT, sizes[i], &sig[i],
                                        UF_SIGNAL_SET, (uint64_t)i + 9, 1, i % 3 ? UF_WEAK : UF_STRONG) == UF_OK);
        }
        CHECK(me, uf_quiet(uf_ctx_default(me->world)) == UF_OK);
    } else if (me->pe == 1) {
        for (int i = 0; i < SLOTS; i++) {
            CHECK(me, uf_wait(me->world, &sig[i], UF_NE, 0, UINT64_C(60000000000)) == UF_OK);
            CHECK(me, sig[i] == (uint64_t)i + 9 && holds(me, data + i * SLOT, i, sizes[i]));
        }
    }
    CHECK(me, uf_barrier(uf_team_world(me->world)) == UF_OK);
    CHECK(me, uf_world_status(me->world) == UF_OK);
    uf_shuffle_counters c;
    uf_shuffle_counters_get(me->wire, &c);
    severed += c.severed;
    free(out);
}

static void numbered_work_goes_on_over_the_other_rails(void **state)
{
    (void)state;
    severed = 0;
    run_seeds((world_run){.fabric = "shuffle:chaos", .n_pes = 2, .n_rails = 2}, break_body);
    run_seeds((world_run){.fabric = "shuffle:rails", .n_pes = 2, .n_rails = 4}, break_body);
    assert_true(severed > SEEDS);
}

static void a_break_is_logged_with_the_rail_and_the_reason(void **state)
{
    (void)state;
    warnings[0] = 0;
    world_run_all(&(world_run){.fabric = "shuffle:rails", .n_pes = 2, .n_rails = 4, .seed = 7}, break_body);
    assert_non_null(strstr(warnings, "rail 3"));
    assert_non_null(strstr(warnings, "the test broke rail 3 of PE 1"));
    assert_non_null(strstr(warnings, "over the other rails"));
}

/* ---------------------------------------------------------------- adds in doubt */

/* One add at a time is in flight, so it is settled whatever became of it: applied exactly once. */
static void doubt_body(world_pe *me)
{
    enum { ROUNDS = 10 };
    uf_ctx *ctx = uf_ctx_default(me->world);
    uint64_t *sig, source = 5;
    void *p;
    CHECK(me, uf_malloc(me->world, 8, 0, &p) == UF_OK && uf_signal_alloc(me->world, 1, UF_SIGNAL_DEFAULT, &sig) == UF_OK);
    for (int i = 0; me->pe == 0 && i < ROUNDS; i++) {
        CHECK(me, uf_put_signal_nbi(ctx, p, &source, 8, sig, UF_SIGNAL_ADD, 1, 1, UF_WEAK) == UF_OK);
        if (i == ROUNDS / 2) { /* the home of this lane is rail (0 + 1 + 0) % 2 */
            uf_shuffle_tick(me->wire, (uint32_t)(me->run->seed % 40));
            uf_shuffle_break_rail(me->wire, (int)(me->run->seed % 2), 1);
        }
        CHECK(me, uf_quiet(ctx) == UF_OK);
    }
    CHECK(me, uf_barrier(uf_team_world(me->world)) == UF_OK);
    CHECK(me, me->pe == 0 || (*sig == ROUNDS && *(uint64_t *)p == 5));
    uf_shuffle_counters c;
    uf_shuffle_counters_get(me->wire, &c);
    settled += c.severed;
}

static void an_add_in_doubt_is_applied_exactly_once(void **state)
{
    (void)state;
    settled = 0;
    run_seeds((world_run){.fabric = "shuffle:chaos", .n_pes = 2, .n_rails = 2}, doubt_body);
    run_seeds((world_run){.fabric = "shuffle:reorder", .n_pes = 2, .n_rails = 2}, doubt_body);
    assert_true(settled > SEEDS);
}

/* ---------------------------------------------------------------- the last one */

static void last_body(world_pe *me)
{
    uf_ctx *ctx = uf_ctx_default(me->world);
    uint64_t *sig, source = 5;
    void *p;
    CHECK(me, uf_malloc(me->world, 8, 0, &p) == UF_OK && uf_signal_alloc(me->world, 1, UF_SIGNAL_DEFAULT, &sig) == UF_OK);
    if (me->pe == 0) {
        uf_shuffle_break_rail(me->wire, 0, 1);
        CHECK(me, uf_put_signal(ctx, p, &source, 8, sig, UF_SIGNAL_SET, 1, 1, UF_WEAK) == UF_OK && uf_quiet(ctx) == UF_OK);
        uf_shuffle_break_rail(me->wire, 0, 0);
    }
    int rc;
    while ((rc = uf_put_signal(ctx, p, &source, 8, sig, UF_SIGNAL_SET, 1, 1 - me->pe, UF_WEAK)) == UF_OK)
        if ((rc = uf_quiet(ctx)))
            break;
    CHECK(me, rc == UF_EFABRIC || rc == UF_EPEER || rc == UF_EABORTED);
    rc = uf_world_status(me->world);
    CHECK(me, rc == UF_EFABRIC);
    CHECK(me, strstr(uf_error_message(), "rail 0") && strstr(uf_error_message(), "the last one"));
    CHECK(me, strstr(uf_error_message(), "the test broke rail 0 of PE 0"));
}

static void the_last_rail_ends_the_world_with_its_story(void **state)
{
    (void)state;
    uf_set_log_level(UF_LOG_NONE);
    run_seeds((world_run){.fabric = "shuffle:reorder", .n_pes = 2, .n_rails = 2}, last_body);
    uf_set_log_level(UF_LOG_WARN);
}

/* ---------------------------------------------------------------- uneven hosts */

/* PE i has i + 1 rails. */
static int open_uneven(const uf_fabric_params *params, uf_fabric **out)
{
    uf_fabric_params mine = *params;
    mine.n_rails = (uint32_t)params->pe + 2;
    return uf_shuffle_fabric.open(&mine, out);
}

static void pes_with_different_rails_use_the_fewest(void **state)
{
    (void)state;
    struct uf_fabric_ops uneven = uf_shuffle_fabric;
    uneven.open = open_uneven;
    run_seeds((world_run){.fabric = "shuffle:rails", .n_pes = 3, .n_rails = 4, .ops = &uneven}, break_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbered_work_goes_on_over_the_other_rails),
        cmocka_unit_test(a_break_is_logged_with_the_rail_and_the_reason),
        cmocka_unit_test(an_add_in_doubt_is_applied_exactly_once),
        cmocka_unit_test(the_last_rail_ends_the_world_with_its_story),
        cmocka_unit_test(pes_with_different_rails_use_the_fewest),
    };
    setenv("UNFENCE_STRIPE", "4K", 1);
    setenv("UNFENCE_HEAP_MAX", "256M", 1);
    uf_set_logger(listen, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
