/* test_shuffle_fabric.c - the test network itself: it keeps what fabric.h promises, no more, and finds who breaks it. */
#include "support/shuffle_fabric.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROOM 4096

typedef struct pair {
    uf_shuffle_wire *wire;
    uf_fabric *f[2];
    uf_mr *mr[2];
    uf_fabric_key key[2];
    unsigned char *mem[2];
    uint32_t sent[2], imms[2], messages[2];
    int32_t last_status;
    uint32_t last_imm, last_cookie;
    uf_cqe last;
} pair;

static void open_pair(pair *p, const uf_shuffle_knobs *knobs)
{
    unsigned char address[UF_FABRIC_ADDRESS_MAX];
    memset(p, 0, sizeof *p);
    assert_int_equal(uf_shuffle_create(knobs, &p->wire), UF_OK);
    for (int i = 0; i < 2; i++) {
        uf_fabric_params params = {
            .pe = i, .n_pes = 2, .provider = "", .tx_depth = 64, .receives = 4, .remote_cqes = 8, .arg = p->wire};
        assert_int_equal(uf_shuffle_fabric.open(&params, &p->f[i]), UF_OK);
        p->mem[i] = calloc(1, ROOM);
        assert_int_equal(uf_shuffle_fabric.mr_register(p->f[i], p->mem[i], ROOM, true, &p->mr[i]), UF_OK);
        uf_shuffle_fabric.mr_key(p->mr[i], 0, &p->key[i]);
    }
    for (int i = 0; i < 2; i++) {
        for (uint32_t peer = 0; peer < 2; peer++) {
            for (uint32_t rail = 0; rail < p->f[i]->caps.n_rails; rail++) {
                assert_int_equal(uf_shuffle_fabric.address(p->f[peer], rail, address), UF_OK);
                assert_int_equal(uf_shuffle_fabric.connect(p->f[i], rail, peer, address), UF_OK);
            }
        }
    }
}

static void open_profile(pair *p, const char *profile, uint64_t seed)
{
    uf_shuffle_knobs knobs;
    assert_int_equal(uf_shuffle_profile(profile, seed, 2, &knobs), UF_OK);
    open_pair(p, &knobs);
}

/* Closes it; the number of violations it had found. */
static uint32_t close_pair(pair *p, char first[256])
{
    uint32_t violations = uf_shuffle_violations(p->wire, first, 256);
    for (int i = 0; i < 2; i++) {
        if (p->f[i])
            uf_shuffle_fabric.close(p->f[i]);
    }
    uf_shuffle_destroy(p->wire);
    free(p->mem[0]);
    free(p->mem[1]);
    return violations;
}

static void close_sound(pair *p)
{
    char first[256];
    uint32_t violations = close_pair(p, first);
    assert_string_equal(first, "");
    assert_int_equal(violations, 0);
}

static void poll_one(pair *p, int who)
{
    uf_cqe cqes[8];
    int n = uf_shuffle_fabric.poll(p->f[who], cqes, 8);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        p->last = cqes[i];
        p->sent[who] += cqes[i].kind == UF_CQE_SENT;
        p->messages[who] += cqes[i].kind == UF_CQE_MESSAGE;
        if (cqes[i].kind == UF_CQE_SENT) {
            p->last_status = cqes[i].status;
            p->last_cookie = cqes[i].cookie;
        }
        if (cqes[i].kind == UF_CQE_IMM) {
            p->imms[who]++;
            p->last_imm = cqes[i].imm;
        }
    }
}

static uf_wr write_wr(const pair *p, uint64_t from_offset, uint64_t to_offset, uint64_t bytes)
{
    return (uf_wr){.verb = UF_VERB_WRITE,
                   .flags = UF_WR_PLACED,
                   .peer = 1,
                   .cookie = 5,
                   .bytes = bytes,
                   .local = (uint64_t)(uintptr_t)(p->mem[0] + from_offset),
                   .local_desc = uf_shuffle_fabric.mr_desc(p->mr[0], 0),
                   .remote = p->key[1].base + to_offset,
                   .remote_key = p->key[1].key};
}

static void post(pair *p, const uf_wr *wr)
{
    int rc;
    while ((rc = uf_shuffle_fabric.post(p->f[0], wr)) == UF_EAGAIN) {
        poll_one(p, 0);
    }
    assert_int_equal(rc, UF_OK);
}

static void fill(unsigned char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(1 + (i * 31 + seed) % 255);
    }
}

/* In every profile that has them: when the immediate is seen, all bytes are there; when the sender's CQE is, if it promises so, as well. */
static void immediate_follows_its_bytes_in_every_profile(void **state)
{
    (void)state;
    for (int k = 0; uf_shuffle_profiles[k]; k++) {
        for (uint64_t seed = 1; seed <= 20; seed++) {
            pair p;
            open_profile(&p, uf_shuffle_profiles[k], seed);
            if (p.f[0]->caps.imm_bits != 0) {
                uint64_t bytes = seed * 13 % 200;
                uf_wr wr = write_wr(&p, 7, 3, bytes);
                wr.verb = UF_VERB_WRITE_IMM;
                wr.flags = 0;
                wr.imm = (uint32_t)(seed << 24 | 17);
                fill(p.mem[0] + 7, bytes, seed);
                post(&p, &wr);
                while (p.imms[1] == 0) {
                    if (p.f[0]->caps.imm_placed)
                        assert_int_equal(p.sent[0], 0);
                    poll_one(&p, (int)(seed % 2));
                    poll_one(&p, 1);
                }
                assert_int_equal(p.last_imm, wr.imm);
                assert_memory_equal(p.mem[0] + 7, p.mem[1] + 3, bytes);
                while (p.sent[0] == 0) {
                    poll_one(&p, 0);
                }
                assert_int_equal(p.last_status, UF_OK);
                assert_int_equal(p.last_cookie, 5);
            }
            close_sound(&p);
        }
    }
}

static void placed_write_completes_after_its_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        pair p;
        open_profile(&p, "chaos", seed);
        uf_wr wr = write_wr(&p, 0, 100, 1000);
        fill(p.mem[0], 1000, seed);
        post(&p, &wr);
        while (p.sent[0] == 0) {
            poll_one(&p, 0);
        }
        assert_memory_equal(p.mem[0], p.mem[1] + 100, 1000);
        close_sound(&p);
    }
}

static void read_brings_remote_bytes(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "bytes", 3);
    uf_wr wr = write_wr(&p, 50, 60, 500);
    wr.verb = UF_VERB_READ;
    fill(p.mem[1] + 60, 500, 9);
    post(&p, &wr);
    while (p.sent[0] == 0) {
        poll_one(&p, 0);
    }
    assert_memory_equal(p.mem[0] + 50, p.mem[1] + 60, 500);
    close_sound(&p);
}

/* Two writes to one place, with no order between them: over seeds either may win, unless the profile is the kind one. */
static int winner(const char *profile, uint64_t seed)
{
    pair p;
    open_profile(&p, profile, seed);
    uf_wr first = write_wr(&p, 0, 0, 1), second = write_wr(&p, 1, 0, 1);
    p.mem[0][0] = 1;
    p.mem[0][1] = 2;
    post(&p, &first);
    post(&p, &second);
    while (p.sent[0] < 2) {
        poll_one(&p, 0);
    }
    int won = p.mem[1][0];
    close_sound(&p);
    return won;
}

static void writes_overtake_each_other_unless_fifo(void **state)
{
    (void)state;
    int wins[3] = {0};
    for (uint64_t seed = 0; seed < 100; seed++) {
        assert_int_equal(winner("fifo", seed), 2);
        wins[winner("reorder", seed)]++;
    }
    assert_true(wins[1] > 10);
    assert_true(wins[2] > 10);
}

static void source_changed_too_early_is_seen_at_the_target(void **state)
{
    (void)state;
    uint32_t spoilt = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        pair p;
        open_profile(&p, "late", seed);
        uf_wr wr = write_wr(&p, 0, 0, 1000);
        fill(p.mem[0], 1000, 1);
        post(&p, &wr);
        memset(p.mem[0], 0, 1000); /* before the CQE: what nobody may do */
        while (p.sent[0] == 0) {
            poll_one(&p, 0);
        }
        spoilt += p.mem[1][999] == 0;
        close_sound(&p);
    }
    assert_int_equal(spoilt, 20);
}

static void transmitted_source_may_be_changed_after_its_cqe(void **state)
{
    (void)state;
    uint32_t early = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        unsigned char wanted[300];
        pair p;
        open_profile(&p, "transmitted", seed);
        uf_wr wr = write_wr(&p, 0, 0, 300);
        wr.verb = UF_VERB_WRITE_IMM;
        wr.flags = 0;
        fill(p.mem[0], 300, seed);
        memcpy(wanted, p.mem[0], 300);
        post(&p, &wr);
        while (p.sent[0] == 0) {
            poll_one(&p, 0);
        }
        early += memcmp(wanted, p.mem[1], 300) != 0;
        memset(p.mem[0], 0, 300);
        while (p.imms[1] == 0) {
            poll_one(&p, 1);
        }
        assert_memory_equal(wanted, p.mem[1], 300);
        close_sound(&p);
    }
    assert_true(early > 5);
}

static void duplicates_stop_at_the_senders_cqe(void **state)
{
    (void)state;
    uint32_t overwritten = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        pair p;
        open_profile(&p, "duplicates", seed);
        uf_wr wr = write_wr(&p, 0, 0, 100);
        wr.verb = UF_VERB_WRITE_IMM;
        fill(p.mem[0], 100, seed);
        post(&p, &wr);
        while (p.imms[1] == 0) {
            poll_one(&p, 1);
        }
        memset(p.mem[1], 0, 100); /* allowed to be spoilt until the sender's CQE */
        while (p.sent[0] == 0) {
            poll_one(&p, 0);
        }
        for (int i = 0; i < 100; i++) {
            if (p.mem[1][i] != 0) {
                overwritten++;
                break;
            }
        }
        memset(p.mem[1], 0, 100);
        uf_shuffle_tick(p.wire, 1000);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(p.mem[1][i], 0);
        }
        close_sound(&p);
    }
    assert_true(overwritten > 5);
}

static void posts_are_refused_and_slots_come_back(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "tiny", 5);
    uf_wr wr = write_wr(&p, 0, 0, 64);
    uint32_t accepted = 0;
    while (uf_shuffle_fabric.post(p.f[0], &wr) == UF_OK) {
        accepted++;
    }
    assert_int_equal(accepted, p.f[0]->caps.tx_depth);
    uf_shuffle_tick(p.wire, 1000);
    assert_int_equal(uf_shuffle_fabric.post(p.f[0], &wr), UF_EAGAIN); /* a slot is free when its CQE is taken */
    while (p.sent[0] < accepted) {
        poll_one(&p, 0);
    }
    post(&p, &wr);
    close_sound(&p);
}

static void silent_write_is_copied_at_post_and_gives_no_cqe(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "tiny", 6);
    uf_wr wr = write_wr(&p, 0, 0, 8);
    wr.flags = UF_WR_SILENT;
    memset(p.mem[0], 7, 8);
    post(&p, &wr);
    memset(p.mem[0], 0, 8);
    uf_shuffle_tick(p.wire, 1000);
    poll_one(&p, 0);
    assert_int_equal(p.sent[0], 0);
    assert_int_equal(p.mem[1][7], 7);
    close_sound(&p);
}

static void nothing_leaves_before_the_doorbell(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "fifo", 6);
    uf_wr wr = write_wr(&p, 0, 0, 8);
    wr.flags |= UF_WR_MORE;
    memset(p.mem[0], 7, 8);
    post(&p, &wr);
    uf_shuffle_tick(p.wire, 1000);
    poll_one(&p, 0);
    assert_int_equal(p.sent[0], 0);
    uf_shuffle_fabric.flush(p.f[0]);
    while (p.sent[0] == 0) {
        poll_one(&p, 0);
    }
    assert_int_equal(p.mem[1][7], 7);
    close_sound(&p);
}

/* ---------------------------------------------------------------- strictness */

/* Posts `wr` and takes what comes back; returns the violations found, their first sentence in `first`. */
static uint32_t violations_of(const char *profile, void (*spoil)(pair *p, uf_wr *wr), char first[256])
{
    pair p;
    open_profile(&p, profile, 4);
    uf_wr wr = write_wr(&p, 0, 0, 64);
    spoil(&p, &wr);
    uf_shuffle_fabric.post(p.f[0], &wr);
    uf_shuffle_tick(p.wire, 1000);
    poll_one(&p, 0);
    return close_pair(&p, first);
}

static void too_long(pair *p, uf_wr *wr)
{
    wr->bytes = p->f[0]->caps.max_message + 1;
}

static void bad_peer(pair *p, uf_wr *wr)
{
    (void)p;
    wr->peer = 2;
}

static void bad_desc(pair *p, uf_wr *wr)
{
    (void)p;
    wr->local_desc = 12345;
}

static void beyond_desc(pair *p, uf_wr *wr)
{
    (void)p;
    wr->local += ROOM - 10;
}

static void never_given_key(pair *p, uf_wr *wr)
{
    (void)p;
    wr->remote_key = 999;
}

static void long_silent(pair *p, uf_wr *wr)
{
    (void)p;
    wr->flags = UF_WR_SILENT;
}

static void needless_imm(pair *p, uf_wr *wr)
{
    (void)p;
    wr->verb = UF_VERB_WRITE_IMM;
}

static void what_breaks_the_interface_is_noted(void **state)
{
    (void)state;
    const struct {
        const char *profile, *word;
        void (*spoil)(pair *p, uf_wr *wr);
    } cases[] = {
        {"tiny", "max_message", too_long},        {"fifo", "out of range", bad_peer},       {"reorder", "descriptor", bad_desc},
        {"reorder", "descriptor", beyond_desc},   {"fifo", "never given", never_given_key}, {"tiny", "inline_bytes", long_silent},
        {"messages", "immediates", needless_imm},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char first[256];
        assert_int_equal(violations_of(cases[i].profile, cases[i].spoil, first), 1);
        if (!strstr(first, cases[i].word))
            fail_msg("'%s' does not name '%s'", first, cases[i].word);
    }
}

static void out_of_range_is_an_error_cqe_and_places_nothing(void **state)
{
    (void)state;
    const char *const profiles[] = {"reorder", "bytes"}; /* offsets, and virtual addresses */
    for (int i = 0; i < 2; i++) {
        pair p;
        open_profile(&p, profiles[i], 4);
        uf_wr wr = write_wr(&p, 0, ROOM - 63, 64);
        memset(p.mem[0], 9, 64);
        post(&p, &wr);
        while (p.sent[0] == 0) {
            poll_one(&p, 0);
        }
        assert_int_equal(p.last_status, UF_EFABRIC);
        assert_non_null(strstr(uf_shuffle_fabric.error(p.f[0]), "range"));
        assert_int_equal(p.mem[1][ROOM - 1], 0);
        close_sound(&p);
    }
}

static void overrun_of_the_cq_is_noted(void **state)
{
    (void)state;
    char first[256];
    pair p;
    open_profile(&p, "fifo", 1);
    uf_wr wr = {.verb = UF_VERB_WRITE_IMM, .peer = 1};
    for (int i = 0; i < 8; i++) {
        post(&p, &wr);
    }
    uf_shuffle_tick(p.wire, 100);
    assert_int_equal(uf_shuffle_violations(p.wire, first, sizeof first), 0);
    post(&p, &wr);
    uf_shuffle_tick(p.wire, 100);
    assert_int_equal(close_pair(&p, first), 1);
    assert_non_null(strstr(first, "CQ overrun"));
}

static void message_without_receive_is_noted_or_held(void **state)
{
    (void)state;
    char first[256];
    for (int hold = 0; hold < 2; hold++) {
        uf_shuffle_knobs knobs;
        pair p;
        assert_int_equal(uf_shuffle_profile("fifo", 1, 2, &knobs), UF_OK);
        knobs.hold_messages = hold;
        open_pair(&p, &knobs);
        uf_wr wr = {.verb = UF_VERB_SEND, .peer = 1};
        memset(wr.message, 0x5a, sizeof wr.message);
        for (int i = 0; i < 5; i++) { /* 4 receives are posted */
            post(&p, &wr);
        }
        uf_shuffle_tick(p.wire, 100);
        while (p.messages[1] < 5) {
            poll_one(&p, 1);
        }
        assert_memory_equal(p.last.message, wr.message, sizeof wr.message);
        assert_int_equal(p.last.peer, 0);
        assert_int_equal(close_pair(&p, first), hold ? 0 : 1);
        assert_true(hold || strstr(first, "receives exhausted"));
    }
}

static void closed_source_in_flight_is_an_error_cqe(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "reorder", 4);
    uf_wr wr = write_wr(&p, 0, 0, 64);
    post(&p, &wr);
    uf_shuffle_fabric.mr_close(p.f[0], p.mr[0]);
    while (p.sent[0] == 0) {
        poll_one(&p, 0);
    }
    assert_int_equal(p.last_status, UF_EFABRIC);
    close_sound(&p);
}

static void dead_peer_gives_error_cqes_and_takes_nothing(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "late", 4);
    uf_wr wr = write_wr(&p, 0, 0, 64);
    post(&p, &wr);
    post(&p, &wr);
    uf_shuffle_kill(p.wire, 1);
    while (p.sent[0] < 2) {
        poll_one(&p, 0);
        assert_true(p.sent[0] == 0 || p.last_status == UF_EPEER);
    }
    assert_non_null(strstr(uf_shuffle_fabric.error(p.f[0]), "PE 1"));
    poll_one(&p, 1);
    assert_int_equal(p.imms[1] + p.messages[1], 0);
    close_sound(&p);
}

static void failure_on_demand_hits_one_wr(void **state)
{
    (void)state;
    pair p;
    open_profile(&p, "fifo", 4);
    uf_wr wr = write_wr(&p, 0, 0, 64);
    uf_shuffle_fail_next(p.wire, 0, 1);
    post(&p, &wr);
    while (p.sent[0] < 1) {
        poll_one(&p, 0);
    }
    assert_int_equal(p.last_status, UF_EFABRIC);
    post(&p, &wr);
    while (p.sent[0] < 2) {
        poll_one(&p, 0);
    }
    assert_int_equal(p.last_status, UF_OK);
    close_sound(&p);
}

static void close_with_traffic_in_flight_is_clean(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        pair p;
        open_profile(&p, "chaos", seed);
        for (int i = 0; i < 20; i++) {
            uf_wr wr = write_wr(&p, 0, 0, 200);
            post(&p, &wr);
        }
        uf_shuffle_fabric.close(p.f[seed % 2]);
        p.f[seed % 2] = NULL;
        for (int i = 0; i < 300 && seed % 2 == 1; i++) {
            poll_one(&p, 0);
        }
        assert_int_equal(p.sent[0] >= 20, seed % 2 == 1);
        close_sound(&p);
    }
}

static uint64_t trace_of(uint64_t seed)
{
    pair p;
    open_profile(&p, "chaos", seed);
    for (int i = 0; i < 20; i++) {
        uf_wr wr = write_wr(&p, 0, (uint64_t)i * 64, 64);
        post(&p, &wr);
    }
    while (p.sent[0] < 20) {
        poll_one(&p, 0);
    }
    uint64_t trace = uf_shuffle_trace(p.wire);
    close_sound(&p);
    return trace;
}

static void same_seed_moves_the_same(void **state)
{
    (void)state;
    assert_int_equal(trace_of(1), trace_of(1));
    assert_int_not_equal(trace_of(1), trace_of(2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(immediate_follows_its_bytes_in_every_profile),
        cmocka_unit_test(placed_write_completes_after_its_bytes),
        cmocka_unit_test(read_brings_remote_bytes),
        cmocka_unit_test(writes_overtake_each_other_unless_fifo),
        cmocka_unit_test(source_changed_too_early_is_seen_at_the_target),
        cmocka_unit_test(transmitted_source_may_be_changed_after_its_cqe),
        cmocka_unit_test(duplicates_stop_at_the_senders_cqe),
        cmocka_unit_test(posts_are_refused_and_slots_come_back),
        cmocka_unit_test(silent_write_is_copied_at_post_and_gives_no_cqe),
        cmocka_unit_test(nothing_leaves_before_the_doorbell),
        cmocka_unit_test(what_breaks_the_interface_is_noted),
        cmocka_unit_test(out_of_range_is_an_error_cqe_and_places_nothing),
        cmocka_unit_test(overrun_of_the_cq_is_noted),
        cmocka_unit_test(message_without_receive_is_noted_or_held),
        cmocka_unit_test(closed_source_in_flight_is_an_error_cqe),
        cmocka_unit_test(dead_peer_gives_error_cqes_and_takes_nothing),
        cmocka_unit_test(failure_on_demand_hits_one_wr),
        cmocka_unit_test(close_with_traffic_in_flight_is_clean),
        cmocka_unit_test(same_seed_moves_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
