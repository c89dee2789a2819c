/* Every verb of the libfabric fabric keeps its promise, between PEs of one process. The provider is the argument; "rxm" is tcp;ofi_rxm. */
#include "test_ofi.h"
#include <poll.h>

static const uf_ofi_tuning as_found;
static const char *provider_under_test = "tcp";

/* ---------------------------------------------------------------- bytes arrive, once, and are whose they are */

typedef struct shape {
    size_t bytes, local, remote;
} shape;

static void check_write(pair *p, int from, int to, const shape *s, unsigned flags, unsigned seed)
{
    pe *me = &p->pes[from], *other = &p->pes[to];
    size_t half = p->bytes / 2;
    fill(me->memory + s->local, s->bytes, seed);
    memset(other->memory + half, 0xee, s->remote + s->bytes + 16);
    uf_wr wr = one_sided(p, UF_VERB_WRITE, from, to, s->local, half + s->remote, s->bytes);
    wr.flags = (uint8_t)flags;
    wr.cookie = seed;
    uint32_t sent = me->sent;
    post(p, from, &wr);
    PUMP_UNTIL(p, me->sent > sent);
    assert_int_equal(me->last.status, UF_OK);
    const unsigned char *there = other->memory + half + s->remote;
    if (s->bytes)
        PUMP_UNTIL(p, memcmp(me->memory + s->local, there, s->bytes) == 0);
    assert_int_equal(there[s->bytes], 0xee);
    if (s->remote)
        assert_int_equal(there[-1], 0xee);
    assert_int_equal(me->sent, sent + 1);
}

static void check_imm(pair *p, int from, int to, const shape *s, unsigned flags, unsigned seed)
{
    pe *me = &p->pes[from], *other = &p->pes[to];
    size_t half = p->bytes / 2;
    fill(me->memory + s->local, s->bytes, seed);
    memset(other->memory + half, 0xee, s->remote + s->bytes + 16);
    uf_wr wr = one_sided(p, UF_VERB_WRITE_IMM, from, to, s->local, half + s->remote, s->bytes);
    wr.flags = (uint8_t)flags;
    wr.imm = 0xfedc0000u + seed;
    uint32_t imms = other->imms, sent = me->sent;
    post(p, from, &wr);
    PUMP_UNTIL(p, other->imms > imms);
    /* The immediate says that the bytes are there: nobody is polled between the two. */
    assert_memory_equal(me->memory + s->local, other->memory + half + s->remote, s->bytes);
    assert_int_equal(other->last_imm.imm, wr.imm);
    assert_int_equal(other->last_imm.peer, from);
    PUMP_UNTIL(p, me->sent > sent);
    for (int i = 0; i < 50; i++)
        pump_all(p);
    assert_int_equal(other->imms, imms + 1);
    assert_int_equal(me->sent, sent + 1);
}

static void check_read(pair *p, int from, int to, const shape *s, unsigned seed)
{
    pe *me = &p->pes[from], *other = &p->pes[to];
    size_t half = p->bytes / 2;
    fill(other->memory + half + s->remote, s->bytes, seed);
    memset(me->memory + s->local, 0xee, s->bytes + 16);
    uf_wr wr = one_sided(p, UF_VERB_READ, from, to, s->local, half + s->remote, s->bytes);
    uint32_t sent = me->sent;
    post(p, from, &wr);
    PUMP_UNTIL(p, me->sent > sent);
    assert_memory_equal(me->memory + s->local, other->memory + half + s->remote, s->bytes);
    assert_int_equal(me->memory[s->local + s->bytes], 0xee);
}

static void every_verb_moves_every_size(void **state)
{
    (void)state;
    pair p;
    size_t most = 8u << 20;
    pair_open(&p, provider_under_test, &as_found, 2, 2 * most + 65536);
    size_t inject = ((uf_ofi *)p.pes[0].f)->inject_write;
    size_t sizes[] = {0, 1, 8, inject, inject + 1, 4095, 65536, most};
    unsigned seed = 1;
    for (int to = 1; to >= 0; to--) { /* the other PE, then itself */
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (size_t off = 0; off < 8; off += 5) {
                shape s = {sizes[i], off, off ? 3 : 0};
                check_write(&p, 0, to, &s, 0, seed++);
                check_write(&p, 0, to, &s, UF_WR_PLACED, seed++);
                check_imm(&p, 0, to, &s, 0, seed++);
                check_imm(&p, 0, to, &s, UF_WR_PLACED, seed++);
                check_read(&p, 0, to, &s, seed++);
            }
        }
    }
    assert_int_equal(p.pes[0].errors + p.pes[1].errors, 0);
    pair_close(&p);
}

static void a_placed_write_completes_only_when_its_bytes_are_there(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 4u << 20);
    pe *me = &p.pes[0], *other = &p.pes[1];
    assert_true(me->f->caps.write_placed);
    size_t sizes[] = {1, 8, 64, 65, 1024, 4096, 4097, 65536, 1u << 20};
    for (unsigned round = 0; round < 20; round++) {
        size_t bytes = sizes[round % 9];
        fill(me->memory, bytes, round + 7);
        memset(other->memory, 0, bytes);
        uf_wr wr = one_sided(&p, UF_VERB_WRITE, 0, 1, 0, 0, bytes);
        wr.flags = UF_WR_PLACED;
        uint32_t sent = me->sent;
        post(&p, 0, &wr);
        /* Looked at in the instant of the CQE; the target moves on only after a look that found none. */
        for (;;) {
            pump(me);
            if (me->sent > sent)
                break;
            pump(other);
        }
        assert_memory_equal(me->memory, other->memory, bytes);
    }
    pair_close(&p);
}

static void silent_with(const uf_ofi_tuning *tuning)
{
    pair p;
    pair_open(&p, provider_under_test, tuning, 2, 1u << 20);
    pe *me = &p.pes[0], *other = &p.pes[1];
    uint32_t limit = me->f->caps.inline_bytes;
    assert_true(limit >= 32);
    for (unsigned i = 0; i < 1000; i++) {
        size_t bytes = i % 3 == 0 ? 8 : i % 3 == 1 ? limit : 0;
        uf_wr wr = one_sided(&p, i & 1 ? UF_VERB_WRITE_IMM : UF_VERB_WRITE, 0, 1, 0, (size_t)i * 64, bytes > 64 ? 64 : bytes);
        wr.flags = UF_WR_SILENT;
        wr.imm = 1;
        memset(me->memory, (int)(i % 250 + 1), 64);
        post(&p, 0, &wr);
        memset(me->memory, 0xff, 64); /* the source is ours again at once */
    }
    for (unsigned i = 0; i < 100; i++) {
        uf_wr wr = {.verb = UF_VERB_SEND, .peer = 1, .flags = UF_WR_SILENT, .message = {3}};
        post(&p, 0, &wr);
    }
    PUMP_UNTIL(&p, other->imms == 500 && other->messages == 100);
    for (unsigned i = 0; i < 1000; i++) {
        size_t bytes = i % 3 == 0 ? 8 : i % 3 == 1 ? (limit > 64 ? 64 : limit) : 0;
        unsigned char *at = other->memory + (size_t)i * 64;
        if (bytes)
            PUMP_UNTIL(&p, at[0] == i % 250 + 1 && at[bytes - 1] == i % 250 + 1);
    }
    assert_int_equal(me->sent, 0);
    assert_int_equal(other->message_sum[0], 300);
    assert_int_equal(me->errors, 0);
    uf_wr big = one_sided(&p, UF_VERB_WRITE, 0, 1, 0, 0, (size_t)limit + 1);
    big.flags = UF_WR_SILENT;
    assert_int_equal(me->f->ops->post(me->f, &big), UF_EINVAL);
    pair_close(&p);
}

static void silent_writes_copy_their_source_and_give_no_cqe(void **state)
{
    (void)state;
    silent_with(&as_found);
}

static void silent_writes_work_where_nothing_can_be_injected(void **state)
{
    (void)state;
    silent_with(&(uf_ofi_tuning){.no_inject = true});
}

/* ---------------------------------------------------------------- pressure */

static void ten_thousand_writes_without_a_poll_end_in_eagain_and_lose_nothing(void **state)
{
    (void)state;
    enum { WRITES = 10000 };
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 1u << 20);
    pe *me = &p.pes[0], *other = &p.pes[1];
    uint32_t depth = me->f->caps.tx_depth, refusals = 0;
    assert_true(depth >= 64);
    for (uint32_t i = 0; i < WRITES;) {
        bool imm = i % 2;
        uf_wr wr = one_sided(&p, imm ? UF_VERB_WRITE_IMM : UF_VERB_WRITE, 0, 1, 0, 0, i % 5 ? 8 : 4096);
        wr.cookie = i;
        wr.imm = i;
        int rc = me->f->ops->post(me->f, &wr);
        if (rc == UF_OK) {
            i++;
            continue;
        }
        assert_int_equal(rc, UF_EAGAIN);
        refusals++;
        pump_all(&p);
    }
    PUMP_UNTIL(&p, me->sent == WRITES && other->imms == WRITES / 2);
    for (uint32_t i = 0; i < WRITES; i++)
        assert_int_equal(me->cookie_seen[i], 1);
    assert_true(refusals > 0);
    uint64_t sum = 0;
    for (uint64_t i = 1; i < WRITES; i += 2)
        sum += i;
    assert_int_equal(other->imm_sum[0], sum);
    assert_int_equal(me->errors + other->errors, 0);
    pair_close(&p);
}

/* Five thousand immediates for a queue of a few hundred entries, taken one at a time while they come: what does not fit waits in the provider
 * or holds the sender back, and nothing is lost or told twice. */
static void a_flood_that_is_taken_one_by_one_loses_nothing(void **state)
{
    (void)state;
    enum { WRITES = 5000 };
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 1u << 20);
    pe *me = &p.pes[0], *other = &p.pes[1];
    uint64_t start = uf_clock_ns();
    uf_cqe one;
    for (uint32_t i = 0; i < WRITES || other->imms < WRITES || me->sent < WRITES;) {
        uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, i % 7 ? 64 : 3000);
        wr.cookie = i;
        wr.imm = i;
        if (i < WRITES && me->f->ops->post(me->f, &wr) == UF_OK)
            i++;
        else if (other->f->ops->poll(other->f, &one, 1) == 1)
            count_cqe(other, &one);
        pump(me);
        assert_true(uf_clock_ns() - start < DEADLINE_NS);
    }
    assert_int_equal(other->imms, WRITES);
    assert_int_equal(other->imm_sum[0], (uint64_t)WRITES * (WRITES - 1) / 2);
    for (uint32_t i = 0; i < WRITES; i++)
        assert_int_equal(me->cookie_seen[i], 1);
    assert_int_equal(me->errors + other->errors, 0);
    pair_close(&p);
}

static void storm_with(const uf_ofi_tuning *tuning)
{
    enum { MESSAGES = 10000 };
    pair p;
    pair_open(&p, provider_under_test, tuning, 2, 4096);
    uint64_t sums[2] = {0, 0};
    for (unsigned i = 0; i < MESSAGES; i++) {
        for (int from = 0; from < 2; from++) {
            uf_wr wr = {.verb = UF_VERB_SEND, .peer = (uint32_t)(i % 8 ? !from : from), .cookie = i};
            wr.message[0] = (unsigned char)(i + (unsigned)from);
            memset(wr.message + 1, (int)i, 31);
            sums[from] += wr.message[0];
            post(&p, from, &wr);
        }
        if (i % 50 == 0)
            pump_all(&p);
    }
    PUMP_UNTIL(&p,
               p.pes[0].messages + p.pes[1].messages == 2 * MESSAGES && p.pes[0].sent == MESSAGES && p.pes[1].sent == MESSAGES);
    for (int from = 0; from < 2; from++)
        assert_int_equal(p.pes[0].message_sum[from] + p.pes[1].message_sum[from], sums[from]);
    for (unsigned i = 0; i < MESSAGES; i++)
        assert_int_equal(p.pes[0].cookie_seen[i], 1);
    assert_int_equal(p.pes[0].errors + p.pes[1].errors, 0);
    pair_close(&p);
}

static void a_storm_of_messages_arrives_whole_and_named(void **state)
{
    (void)state;
    storm_with(&as_found);
}

/* Regression: shm gave stale contexts with remote writes once an odd number of messages had shifted its ring. */
static void messages_and_immediates_do_not_confuse_each_other(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 65536);
    uint32_t messages = 0;
    for (uint32_t i = 1; i <= 5000; i++) {
        if (i % 5 == 0 || i % 7 == 0) {
            uf_wr word = {.verb = UF_VERB_SEND, .peer = 1, .message = {1}};
            post(&p, 0, &word);
            messages++;
        }
        uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, i % 300);
        wr.imm = 1;
        post(&p, 0, &wr);
        PUMP_UNTIL(&p, p.pes[1].imms == i && p.pes[1].messages == messages);
    }
    PUMP_UNTIL(&p, p.pes[0].sent == 5000 + messages);
    assert_int_equal(p.pes[1].imm_sum[0], 5000);
    assert_int_equal(p.pes[0].errors + p.pes[1].errors, 0);
    pair_close(&p);
}

/* ---------------------------------------------------------------- providers that can do less */

static void without_a_source_immediates_are_refused_and_messages_still_are_named(void **state)
{
    (void)state;
    uf_ofi_tuning tuning = {.headers_only = true};
    storm_with(&tuning);
    pair p;
    pair_open(&p, provider_under_test, &tuning, 2, 4096);
    assert_int_equal(p.pes[0].f->caps.imm_bits, 0);
    uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, 8);
    assert_int_equal(p.pes[0].f->ops->post(p.pes[0].f, &wr), UF_EUNSUPPORTED);
    pair_close(&p);
}

/* As over EFA: 32-byte messages without a header, and the completion names the sender. shm can do that too. */
static void where_the_completion_names_the_sender_it_is_believed(void **state)
{
    (void)state;
    uf_ofi_tuning tuning = {.cqe_source = true};
    if (strcmp(provider_under_test, "shm"))
        skip();
    storm_with(&tuning);
    pair p;
    pair_open(&p, provider_under_test, &tuning, 2, 65536);
    for (unsigned i = 0; i < 400; i++) {
        int from = i & 1, to = i % 3 == 0 ? from : !from;
        uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, from, to, 0, 0, i % 100);
        wr.imm = 0xffff0000u + i;
        uint32_t imms = p.pes[to].imms;
        post(&p, from, &wr);
        PUMP_UNTIL(&p, p.pes[to].imms > imms);
        assert_int_equal(p.pes[to].last_imm.peer, from);
        assert_int_equal(p.pes[to].last_imm.imm, wr.imm);
    }
    pair_close(&p);
}

static void rails_are_told_apart(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &(uf_ofi_tuning){.endpoints = 2}, 2, 65536);
    pe *me = &p.pes[0], *other = &p.pes[1];
    assert_int_equal(me->f->caps.n_rails, 2);
    for (unsigned i = 0; i < 200; i++) {
        uint16_t rail = i % 2;
        uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, 8);
        wr.rail = rail;
        wr.imm = i;
        wr.local_desc = me->f->ops->mr_desc(me->mr, rail);
        wr.remote = other->key[rail].base;
        wr.remote_key = other->key[rail].key;
        uint32_t imms = other->imms, sent = me->sent;
        post(&p, 0, &wr);
        PUMP_UNTIL(&p, other->imms > imms && me->sent > sent);
        assert_int_equal(other->last_imm.rail, rail);
        assert_int_equal(other->last_imm.imm, i);
    }
    pair_close(&p);
}

/* ---------------------------------------------------------------- sleeping, arguments, life */

static void a_sleeper_is_woken_by_what_arrives(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &(uf_ofi_tuning){.wait_fd = true}, 2, 65536);
    pe *me = &p.pes[0], *other = &p.pes[1];
    int fd = other->f->ops->wait_fd(other->f);
    if (fd < 0) {
        assert_int_equal(other->f->ops->arm(other->f), UF_EAGAIN);
        pair_close(&p);
        skip();
    }
    for (unsigned i = 0; i < 100; i++) {
        uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, 8);
        wr.imm = i;
        uint32_t imms = other->imms;
        post(&p, 0, &wr);
        while (other->imms == imms) {
            while (other->f->ops->arm(other->f) != UF_OK)
                pump(other);
            if (other->imms > imms)
                break;
            struct pollfd waits = {fd, POLLIN, 0};
            int woken = 0;
            for (int tries = 0; tries < 6000 && !woken; tries++) {
                pump(me); /* a connection needs both sides */
                woken = poll(&waits, 1, 10);
            }
            assert_int_equal(woken, 1);
            pump(other);
        }
        assert_int_equal(other->last_imm.imm, i);
    }
    pair_close(&p);
}

static void wrong_work_requests_are_refused_with_the_field_named(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 4096);
    uf_fabric *f = p.pes[0].f;
    uf_wr wr = one_sided(&p, UF_VERB_WRITE, 0, 1, 0, 0, 8);
    wr.peer = 2;
    assert_int_equal(f->ops->post(f, &wr), UF_ERANGE);
    assert_non_null(strstr(uf_error_message(), "names PE 2"));
    wr.peer = 1;
    wr.rail = 1;
    assert_int_equal(f->ops->post(f, &wr), UF_ERANGE);
    assert_non_null(strstr(uf_error_message(), "rail 1"));
    wr.rail = 0;
    wr.bytes = f->caps.max_message + 1;
    assert_int_equal(f->ops->post(f, &wr), UF_EINVAL);
    wr.bytes = 8;
    wr.verb = 9;
    assert_int_equal(f->ops->post(f, &wr), UF_EINVAL);
    uf_mr *mr = NULL;
    assert_int_equal(f->ops->mr_register(f, NULL, 8, true, &mr), UF_EINVAL);
    assert_int_equal(f->ops->mr_register(f, p.pes[0].memory, 0, true, &mr), UF_EINVAL);
    uf_fabric_params params = test_params(provider_under_test, 0, 2);
    uf_fabric *lonely;
    assert_int_equal(uf_fabric_ofi.open(&params, &lonely), UF_OK);
    wr.verb = UF_VERB_WRITE;
    assert_int_equal(lonely->ops->post(lonely, &wr), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "before it was connected"));
    lonely->ops->close(lonely);
    pair_close(&p);
}

/* Providers of sockets end the connection for it and make a new one for what comes next: WRs in flight fail, later ones arrive. */
static void a_bad_remote_key_is_an_error_cqe_or_nothing(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, provider_under_test, &as_found, 2, 65536);
    pe *me = &p.pes[0], *other = &p.pes[1];
    uf_wr wr = one_sided(&p, UF_VERB_WRITE, 0, 1, 0, 0, 8192);
    wr.remote_key += 77;
    wr.flags = UF_WR_PLACED;
    wr.cookie = 5;
    post(&p, 0, &wr);
    for (int i = 0; i < 2000 && !me->sent; i++)
        pump_all(&p);
    if (me->sent) {
        assert_int_equal(me->last.cookie, 5);
        assert_true(me->last.status < 0);
        assert_non_null(strstr(me->f->ops->error(me->f), "PE 1"));
    }
    uint32_t sent = me->sent, errors = me->errors;
    for (uint32_t i = 0; i < 50; i++) {
        uf_wr good = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, 8);
        post(&p, 0, &good);
    }
    PUMP_UNTIL(&p, me->sent == sent + 50 && other->imms + me->errors - errors >= 50);
    pair_close(&p);
}

static void what_is_registered_or_in_flight_is_freed_by_close(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        pair p;
        pair_open(&p, provider_under_test, &as_found, 2, 1u << 20);
        uf_mr *left;
        assert_int_equal(p.pes[0].f->ops->mr_register(p.pes[0].f, p.pes[0].memory, 4096, false, &left), UF_OK);
        assert_int_equal(p.pes[0].f->ops->mr_register(p.pes[0].f, p.pes[0].memory, 4096, true, &left), UF_OK);
        uf_wr hello = one_sided(&p, UF_VERB_WRITE_IMM, 0, 1, 0, 0, 8);
        post(&p, 0, &hello);
        for (int i = 0; i < round * 20; i++) {
            uf_wr wr = one_sided(&p, UF_VERB_WRITE_IMM, i & 1, !(i & 1), 0, 0, 32768);
            (void)p.pes[i & 1].f->ops->post(p.pes[i & 1].f, &wr);
            if (round & 1)
                pump_all(&p);
        }
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        provider_under_test = strcmp(argv[1], "rxm") ? argv[1] : "tcp;ofi_rxm"; /* a semicolon parts lists in CMake */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verb_moves_every_size),
        cmocka_unit_test(a_placed_write_completes_only_when_its_bytes_are_there),
        cmocka_unit_test(silent_writes_copy_their_source_and_give_no_cqe),
        cmocka_unit_test(silent_writes_work_where_nothing_can_be_injected),
        cmocka_unit_test(ten_thousand_writes_without_a_poll_end_in_eagain_and_lose_nothing),
        cmocka_unit_test(a_flood_that_is_taken_one_by_one_loses_nothing),
        cmocka_unit_test(a_storm_of_messages_arrives_whole_and_named),
        cmocka_unit_test(messages_and_immediates_do_not_confuse_each_other),
        cmocka_unit_test(without_a_source_immediates_are_refused_and_messages_still_are_named),
        cmocka_unit_test(where_the_completion_names_the_sender_it_is_believed),
        cmocka_unit_test(rails_are_told_apart),
        cmocka_unit_test(a_sleeper_is_woken_by_what_arrives),
        cmocka_unit_test(wrong_work_requests_are_refused_with_the_field_named),
        cmocka_unit_test(a_bad_remote_key_is_an_error_cqe_or_nothing),
        cmocka_unit_test(what_is_registered_or_in_flight_is_freed_by_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
