/* efa_fabric.c - the efa fabric alone, over the model in virtual time: what fabric.h promises, at the limits of its queues and
 * against completions that are nobody's. Each test has PEs that post and poll by hand, so who is late is the test's choice.
 * UNFENCE_SEED gives another seed; it is printed by a test that fails. */
#include "fabric/efa/device_model.h"
#include "fabric/efa/efa.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PES = 65, MEMORY = 1 << 16, KEPT = 4096 };

typedef struct pe {
    uf_fabric *f;
    _Alignas(64) unsigned char memory[MEMORY];
    uf_mr *mr;
    uf_fabric_key key;
    uf_cqe kept[KEPT]; /* all completions that poll gave, in order */
    int n;
} pe;

typedef struct net {
    uf_efa_model_place *place;
    uf_model *model;
    int n;
    pe *pes;
} net;

typedef struct net_options {
    const char *profile;           /* NULL: p5en */
    const uf_model_params *params; /* instead */
    int n, rails;                  /* 0: 2, 1 */
    uint32_t wanted;               /* rails; 0: all */
    uint32_t tx_depth, receives, remote_cqes;
    int wqe;    /* 0: 64 */
    bool apart; /* not connected */
} net_options;

static uint64_t seed(void)
{
    const char *text = getenv("UNFENCE_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static void connect_pes(net *s, int from, int to)
{
    for (uint32_t rail = 0; rail < s->pes[0].f->caps.n_rails; rail++) {
        unsigned char address[UF_FABRIC_ADDRESS_MAX];
        assert_int_equal(s->pes[to].f->ops->address(s->pes[to].f, rail, address), UF_OK);
        assert_int_equal(s->pes[from].f->ops->connect(s->pes[from].f, rail, (uint32_t)to, address), UF_OK);
    }
}

static void open_pe(net *s, int i, const net_options *o)
{
    static uf_settings settings;
    const char *const none[] = {NULL};
    assert_int_equal(uf_settings_load_from(none, &settings), UF_OK);
    settings.number[UF_SET_EFA_WQE] = o->wqe ? o->wqe : 64;
    const uf_fabric_params p = {.settings = &settings,
                                .pe = i,
                                .n_pes = s->n,
                                .provider = "",
                                .n_rails = o->wanted,
                                .tx_depth = o->tx_depth ? o->tx_depth : 64,
                                .receives = o->receives ? o->receives : 64,
                                .remote_cqes = o->remote_cqes ? o->remote_cqes : 256,
                                .arg = s->place};
    pe *e = &s->pes[i];
    if (uf_fabric_efa.open(&p, &e->f) != UF_OK)
        fail_msg("open: %s", uf_error_message());
    assert_int_equal(e->f->ops->mr_register(e->f, e->memory, MEMORY, true, &e->mr), UF_OK);
    e->f->ops->mr_key(e->mr, 0, &e->key);
    memset(e->memory, 0, MEMORY);
    e->n = 0;
}

static net *net_open(const net_options *o)
{
    net *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->n = o->n ? o->n : 2;
    const uf_efa_model_place_options p = {
        .profile = o->profile, .params = o->params, .seed = seed(), .n_pes = (uint32_t)s->n, .n_rails = (uint32_t)o->rails};
    assert_int_equal(uf_efa_model_place_create(&p, &s->place), UF_OK);
    s->model = uf_efa_model_place_model(s->place);
    s->pes = aligned_alloc(64, (size_t)s->n * sizeof *s->pes);
    assert_non_null(s->pes);
    for (int i = 0; i < s->n; i++)
        s->pes[i].f = NULL;
    for (int i = 0; i < s->n; i++)
        open_pe(s, i, o);
    for (int i = 0; i < s->n && !o->apart; i++)
        for (int j = 0; j < s->n; j++)
            connect_pes(s, i, j);
    return s;
}

static void net_close(net *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->pes[i].f)
            s->pes[i].f->ops->close(s->pes[i].f);
    uf_efa_model_place_destroy(s->place);
    free(s->pes);
    free(s);
}

static void expect_sound(net *s)
{
    const uf_model_stats *stats = uf_model_get_stats(s->model);
    if (uf_model_traps(s->model))
        fail_msg("UNFENCE_SEED=%llu: trap: %s", (unsigned long long)seed(), uf_model_trap(s->model, 0));
    assert_int_equal(stats->cqes_lost, 0);
    assert_int_equal(stats->out_of_memory, 0);
}

static int poll_pe(net *s, int i)
{
    pe *e = &s->pes[i];
    assert_true(e->n < KEPT);
    int n = e->f->ops->poll(e->f, e->kept + e->n, KEPT - e->n < 32 ? KEPT - e->n : 32);
    if (n > 0)
        e->n += n;
    return n;
}

/* Until nothing is left to happen; `deaf`: a PE that does not poll, -1: none. */
static void run(net *s, int deaf)
{
    bool moved = true;
    while (moved) {
        moved = uf_model_step(s->model);
        for (int i = 0; i < s->n; i++)
            while (i != deaf && poll_pe(s, i) > 0)
                moved = true;
    }
}

static uf_wr wr_to(net *s, int from, int to, uint8_t verb, uint32_t bytes, uint32_t cookie)
{
    return (uf_wr){.verb = verb,
                   .peer = (uint32_t)to,
                   .cookie = cookie,
                   .imm = cookie,
                   .bytes = bytes,
                   .local = (uintptr_t)s->pes[from].memory,
                   .local_desc = s->pes[from].f->ops->mr_desc(s->pes[from].mr, 0),
                   .remote = s->pes[to].key.base,
                   .remote_key = s->pes[to].key.key};
}

static int post(net *s, int from, const uf_wr *wr)
{
    return s->pes[from].f->ops->post(s->pes[from].f, wr);
}

/* The only completion of ours with this cookie. */
static const uf_cqe *sent(net *s, int i, uint32_t cookie)
{
    const uf_cqe *found = NULL;
    for (int k = 0; k < s->pes[i].n; k++) {
        const uf_cqe *c = &s->pes[i].kept[k];
        if (c->kind != UF_CQE_SENT || c->cookie != cookie)
            continue;
        if (found)
            fail_msg("UNFENCE_SEED=%llu: two completions of %u", (unsigned long long)seed(), cookie);
        found = c;
    }
    if (!found)
        fail_msg("UNFENCE_SEED=%llu: no completion of %u", (unsigned long long)seed(), cookie);
    return found;
}

static int count(net *s, int i, uf_cqe_kind kind)
{
    int n = 0;
    for (int k = 0; k < s->pes[i].n; k++)
        n += s->pes[i].kept[k].kind == kind;
    return n;
}

static uf_efa *efa_of(net *s, int i)
{
    return (uf_efa *)s->pes[i].f;
}

static void expect_words(const char *text, const char *const words[])
{
    for (int i = 0; words[i]; i++)
        if (!strstr(text, words[i]))
            fail_msg("\"%s\" does not say \"%s\"", text, words[i]);
}

/* ---------------------------------------------------------------- every verb */

static void every_verb_arrives_with_its_sender(const net_options *o)
{
    net *s = net_open(o);
    uint32_t rails = s->pes[0].f->caps.n_rails, cookie = 1;
    for (int from = 0; from < s->n; from++)
        for (int to = 0; to < s->n; to++)
            for (uint32_t rail = 0; rail < rails; rail++) {
                uf_wr wr = wr_to(s, from, to, UF_VERB_WRITE_IMM, 40, cookie++);
                uf_fabric_key key;
                s->pes[to].f->ops->mr_key(s->pes[to].mr, rail, &key);
                memset(s->pes[from].memory, from + 1, 100);
                wr.rail = (uint16_t)rail;
                wr.remote_key = key.key;
                wr.remote += 1000 + 100 * ((unsigned)from * rails + rail);
                wr.local_desc = s->pes[from].f->ops->mr_desc(s->pes[from].mr, rail);
                assert_int_equal(post(s, from, &wr), UF_OK);
                wr.verb = UF_VERB_SEND;
                memset(wr.message, 0x40 + from, sizeof wr.message);
                wr.cookie = cookie++;
                assert_int_equal(post(s, from, &wr), UF_OK);
                wr.verb = UF_VERB_READ;
                wr.local += 30000 + 100 * ((unsigned)to * rails + rail);
                wr.remote = s->pes[to].key.base;
                wr.cookie = cookie++;
                assert_int_equal(post(s, from, &wr), UF_OK);
                wr.verb = UF_VERB_WRITE_IMM; /* of nothing: neither keys nor addresses are needed */
                wr.bytes = wr.remote = wr.remote_key = wr.local = wr.local_desc = 0;
                wr.cookie = cookie++;
                assert_int_equal(post(s, from, &wr), UF_OK);
            }
    run(s, -1);
    for (int to = 0; to < s->n; to++) {
        assert_int_equal(count(s, to, UF_CQE_IMM), 2 * s->n * (int)rails);
        assert_int_equal(count(s, to, UF_CQE_MESSAGE), s->n * (int)rails);
        assert_int_equal(count(s, to, UF_CQE_SENT), 4 * s->n * (int)rails);
        for (int k = 0; k < s->pes[to].n; k++) {
            const uf_cqe *c = &s->pes[to].kept[k];
            assert_int_equal(c->status, UF_OK);
            if (c->kind == UF_CQE_MESSAGE)
                for (int b = 0; b < UF_MESSAGE_BYTES; b++)
                    assert_int_equal(c->message[b], 0x40 + (int)c->peer);
        }
        for (int from = 0; from < s->n; from++)
            for (uint32_t rail = 0; rail < rails; rail++) {
                unsigned at = 100 * ((unsigned)from * rails + rail);
                assert_int_equal(s->pes[to].memory[1000 + at], from + 1);
                assert_int_equal(s->pes[to].memory[1039 + at], from + 1);
                assert_int_equal(s->pes[to].memory[1040 + at], 0);
                assert_int_equal(s->pes[to].memory[30000 + at], from + 1);
            }
    }
    for (int i = 0; i < s->n; i++)
        assert_int_equal(efa_of(s, i)->strays, 0);
    expect_sound(s);
    net_close(s);
}

static void every_verb_arrives_on_every_kind_of_queue(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "p5", "chaos", "fifo"};
    for (size_t p = 0; p < sizeof profiles / sizeof *profiles; p++)
        for (int wqe = 64; wqe <= 128; wqe += 64)
            every_verb_arrives_with_its_sender(&(net_options){.profile = profiles[p], .n = 3, .rails = 2, .wqe = wqe});
}

/* A silent WR's source is free at once, and only its failure is told. */
static void silent_writes_copy_and_say_nothing(void **state)
{
    (void)state;
    for (int wqe = 64; wqe <= 128; wqe += 64) {
        net *s = net_open(&(net_options){.wqe = wqe});
        uint32_t most = s->pes[0].f->caps.inline_bytes;
        uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE_IMM, most, 9);
        wr.flags = UF_WR_SILENT;
        memset(s->pes[0].memory, 7, most);
        assert_int_equal(post(s, 0, &wr), UF_OK);
        memset(s->pes[0].memory, 8, most);
        run(s, -1);
        assert_int_equal(count(s, 0, UF_CQE_SENT), 0);
        assert_int_equal(count(s, 1, UF_CQE_IMM), 1);
        assert_int_equal(s->pes[1].memory[0], 7);
        assert_int_equal(s->pes[1].memory[most - 1], 7);
        wr.remote_key ^= 1u << 20;
        assert_int_equal(post(s, 0, &wr), UF_OK);
        run(s, -1);
        assert_int_equal(sent(s, 0, 9)->status, UF_EFABRIC);
        wr.bytes = most + 1;
        assert_int_equal(post(s, 0, &wr), UF_EINVAL);
        expect_sound(s);
        net_close(s);
    }
}

/* ---------------------------------------------------------------- queues that are full */

static void a_full_send_queue_says_again_and_loses_nothing(void **state)
{
    (void)state;
    uf_model_params p;
    assert_int_equal(uf_model_profile("chaos", &p), UF_OK);
    p.max_batch = 0; /* nothing rings early */
    for (uint8_t more = 0; more <= UF_WR_MORE; more += UF_WR_MORE) {
        net *s = net_open(&(net_options){.params = &p, .tx_depth = 32, .remote_cqes = 4096});
        uint32_t accepted = 0, rounds = 0, depth = s->pes[0].f->caps.tx_depth;
        while (accepted < 1000) {
            uint32_t burst = 0;
            uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE_IMM, 64, accepted);
            wr.flags = more;
            int rc;
            while ((rc = post(s, 0, &wr)) == UF_OK && accepted < 1000) {
                burst++;
                wr.cookie = wr.imm = ++accepted;
            }
            assert_true(rc == UF_OK || rc == UF_EAGAIN);
            assert_true(burst <= depth);
            assert_true(rounds++ || burst == depth);
            do { /* a doorbell that waited for more must have been rung, or nothing would ever come */
                assert_true(uf_model_step(s->model) || count(s, 0, UF_CQE_SENT) > 0);
            } while (poll_pe(s, 0) == 0);
            while (poll_pe(s, 1) > 0)
                continue;
        }
        s->pes[0].f->ops->flush(s->pes[0].f);
        run(s, -1);
        for (uint32_t c = 0; c < 1000; c++)
            assert_int_equal(sent(s, 0, c)->status, UF_OK);
        assert_true(count(s, 1, UF_CQE_IMM) >= 1000);
        expect_sound(s);
        net_close(s);
    }
}

/* More messages than receives: the network holds them back until some are free. */
static void messages_wait_for_a_receive(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.receives = 8, .tx_depth = 64});
    for (uint32_t i = 0; i < 40; i++) {
        uf_wr wr = wr_to(s, 0, 1, UF_VERB_SEND, 0, i);
        memcpy(wr.message, &i, sizeof i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    uint64_t until = uf_model_now(s->model) + 10000000;
    while (uf_model_now(s->model) < until) {
        assert_true(uf_model_step(s->model));
        poll_pe(s, 0);
    }
    assert_true(count(s, 0, UF_CQE_SENT) <= 8);
    assert_true(uf_model_get_stats(s->model)->rnr > 0);
    run(s, -1);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 40);
    assert_int_equal(count(s, 1, UF_CQE_MESSAGE), 40);
    uint64_t seen = 0;
    for (int k = 0; k < s->pes[1].n; k++) {
        uint32_t i;
        memcpy(&i, s->pes[1].kept[k].message, sizeof i);
        seen |= UINT64_C(1) << i;
    }
    assert_int_equal(seen, (UINT64_C(1) << 40) - 1);
    expect_sound(s);
    net_close(s);
}

/* What caps promise fits even if the target does not run at all meanwhile: 64 senders, each with its share of both kinds. */
static void sixty_four_senders_against_a_pe_that_sleeps(const char *profile)
{
    enum { SENDERS = 64, IMMS = 20, MESSAGES = 4 };
    net *s = net_open(&(net_options){
        .profile = profile, .n = SENDERS + 1, .tx_depth = 64, .receives = SENDERS * MESSAGES, .remote_cqes = SENDERS * IMMS});
    assert_true(s->pes[SENDERS].f->caps.cq_depth >= SENDERS * IMMS);
    for (int from = 0; from < SENDERS; from++)
        for (uint32_t k = 0; k < IMMS + MESSAGES; k++) {
            uf_wr wr = wr_to(s, from, SENDERS, k < IMMS ? UF_VERB_WRITE_IMM : UF_VERB_SEND, 16, k);
            wr.remote += (unsigned)from * 512 + 16 * k;
            wr.imm = (uint32_t)from << 8 | k;
            assert_int_equal(post(s, from, &wr), UF_OK);
        }
    for (uint32_t k = 0; k < 40; k++) { /* it also has its own queue full */
        uf_wr wr = wr_to(s, SENDERS, (int)k, UF_VERB_WRITE, 16, k);
        assert_int_equal(post(s, SENDERS, &wr), UF_OK);
    }
    uint64_t wake = uf_model_now(s->model) + 10000000;
    while (uf_model_next(s->model) <= wake && uf_model_step(s->model))
        for (int i = 0; i < SENDERS; i++)
            poll_pe(s, i);
    uf_model_run(s->model, wake);
    run(s, -1);
    static unsigned char seen[SENDERS][IMMS];
    memset(seen, 0, sizeof seen);
    for (int k = 0; k < s->pes[SENDERS].n; k++) {
        const uf_cqe *c = &s->pes[SENDERS].kept[k];
        if (c->kind != UF_CQE_IMM)
            continue;
        assert_int_equal(c->peer, c->imm >> 8);
        assert_int_equal(seen[c->peer][c->imm & 0xff]++, 0);
    }
    assert_int_equal(count(s, SENDERS, UF_CQE_IMM), SENDERS * IMMS);
    assert_int_equal(count(s, SENDERS, UF_CQE_MESSAGE), SENDERS * MESSAGES);
    assert_int_equal(count(s, SENDERS, UF_CQE_SENT), 40);
    expect_sound(s);
    net_close(s);
}

static void no_completion_is_lost_while_a_pe_sleeps_for_10_ms(void **state)
{
    (void)state;
    sixty_four_senders_against_a_pe_that_sleeps("p5en");
    sixty_four_senders_against_a_pe_that_sleeps("chaos");
    sixty_four_senders_against_a_pe_that_sleeps("p5"); /* immediates use receives there */
}

/* ---------------------------------------------------------------- completions of nobody */

/* A queue ends with work in flight and another begins with its number on the same CQ. */
static void completions_of_a_recycled_queue_are_dropped(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "p5"}; /* 64-bit ids, and 16 */
    for (int p = 0; p < 2; p++) {
        net *s = net_open(&(net_options){.profile = profiles[p], .tx_depth = 16});
        uf_efa *efa = efa_of(s, 0);
        uf_efa_rail *rail = &efa->rails[0];
        for (int again = 0; again < 5; again++) {
            for (uint32_t i = 0; i < 10; i++) {
                uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE, 64, 1000 + i);
                assert_int_equal(post(s, 0, &wr), UF_OK);
            }
            uint16_t qpn = rail->qp.qpn;
            uint64_t strays = efa->strays;
            uf_efa_rail_stop(efa, rail);
            assert_int_equal(uf_efa_rail_start(efa, rail), UF_OK);
            assert_int_equal(rail->qp.qpn, qpn);
            for (int i = 0; i < 2; i++)
                connect_pes(s, i, 0);
            s->pes[0].n = 0;
            uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE_IMM, 64, 5);
            assert_int_equal(post(s, 0, &wr), UF_OK);
            run(s, -1);
            /* Ten flushed requests and every receive that was posted. */
            assert_int_equal(efa->strays - strays, 10 + rail->n_receives);
            assert_int_equal(count(s, 0, UF_CQE_SENT), 1);
            assert_int_equal(sent(s, 0, 5)->status, UF_OK);
            assert_int_equal(rail->health, UF_EFA_SOUND);
        }
        expect_sound(s);
        net_close(s);
    }
}

/* A queue that no PE has told of, at a NIC that we know, with the right qkey. */
static void arrivals_of_unknown_queues_are_dropped_and_counted(void **state)
{
    (void)state;
    static const char *const profiles[] = {"p5en", "p5"};
    for (int p = 0; p < 2; p++) {
        net *s = net_open(&(net_options){.profile = profiles[p], .receives = 4, .remote_cqes = 4});
        uf_efa_device *device = efa_of(s, 1)->device;
        const uf_efa_peer *target = &efa_of(s, 1)->rails[0].peers[0];
        uf_efa_cq cq;
        uf_efa_device_cq *device_cq;
        uf_efa_qp qp;
        assert_int_equal(device->ops->cq_create(device, 0, 64, &cq, &device_cq), UF_OK);
        const uf_efa_qp_options o = {
            .sq_depth = 16, .rq_depth = 16, .wqe_bytes = 64, .qkey = 1, .send_cq = device_cq, .recv_cq = device_cq};
        assert_int_equal(device->ops->qp_create(device, 0, &o, &qp), UF_OK);
        for (uint64_t i = 0; i < 20; i++) {
            const uf_efa_to to = {.id = i, .qkey = target->address.qkey, .qpn = target->address.qpn, .ah = target->ah};
            const uf_efa_sge nothing = {(uintptr_t)s->pes[1].memory, 0, (uint32_t)s->pes[1].f->ops->mr_desc(s->pes[1].mr, 0)};
            uf_efa_wqe e = {0};
            if (i % 2)
                assert_true(uf_efa_encode_write_imm(&e, 8, &to, target->address.nowhere_at, target->address.nowhere_key, &nothing,
                                                    (uint32_t)i));
            else
                assert_true(uf_efa_encode_send_inline(&e, 8, &to, "stranger", 8));
            while (uf_efa_sq_post_owned(&qp.sq, &e, 1, 0) == 0) {
                uf_efa_cqe c;
                assert_true(uf_model_step(s->model));
                while (uf_efa_cq_poll(&cq, &c, 1))
                    uf_efa_sq_complete(&qp.sq, 1);
                poll_pe(s, 0);
            }
        }
        run(s, -1);
        assert_int_equal(s->pes[0].n, 0);
        assert_int_equal(efa_of(s, 0)->strays, 20);
        uf_wr wr = wr_to(s, 1, 0, UF_VERB_SEND, 0, 3); /* the receives that they took are there again */
        for (int i = 0; i < 4; i++)
            assert_int_equal(post(s, 1, &wr), UF_OK);
        run(s, -1);
        assert_int_equal(count(s, 0, UF_CQE_MESSAGE), 4);
        device->ops->qp_destroy(device, 0, &qp);
        device->ops->cq_destroy(device, device_cq);
        expect_sound(s);
        net_close(s);
    }
}

/* ---------------------------------------------------------------- errors */

static void a_bad_key_fails_its_own_request_only(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){0});
    uf_wr bad = wr_to(s, 0, 1, UF_VERB_WRITE_IMM, 64, 1), good = wr_to(s, 0, 1, UF_VERB_WRITE_IMM, 64, 2), wide = bad;
    bad.remote_key ^= 1u << 20;
    wide.cookie = 3;
    wide.remote += MEMORY - 63;
    assert_int_equal(post(s, 0, &bad), UF_OK);
    assert_int_equal(post(s, 0, &good), UF_OK);
    assert_int_equal(post(s, 0, &wide), UF_OK);
    run(s, -1);
    assert_int_equal(sent(s, 0, 1)->status, UF_EFABRIC);
    assert_int_equal(sent(s, 0, 3)->status, UF_EFABRIC);
    assert_int_equal(sent(s, 0, 2)->status, UF_OK);
    assert_int_equal(count(s, 1, UF_CQE_IMM), 1);
    expect_words(s->pes[0].f->ops->error(s->pes[0].f),
                 (const char *[]){"PE 0", "write with immediate of 64 bytes", "PE 1", "rail 0", "model0",
                                  "remote address refused", "window", NULL});
    net_close(s);
}

/* Every status that a device may give, put into the CQ as it would be. */
static void each_status_is_a_sentence(void **state)
{
    (void)state;
    static const int codes[][2] = {{UF_EFA_FLUSHED, UF_EFABRIC},
                                   {UF_EFA_QP_ERROR, UF_EINTERNAL},
                                   {UF_EFA_UNSUPPORTED_OP, UF_EUNSUPPORTED},
                                   {UF_EFA_INVALID_AH, UF_EINTERNAL},
                                   {UF_EFA_INVALID_LKEY, UF_EFABRIC},
                                   {UF_EFA_LOCAL_LENGTH, UF_EINVAL},
                                   {UF_EFA_REMOTE_ADDRESS, UF_EFABRIC},
                                   {UF_EFA_REMOTE_ABORT, UF_EPEER},
                                   {UF_EFA_REMOTE_QPN, UF_EPEER},
                                   {UF_EFA_REMOTE_RNR, UF_EFABRIC},
                                   {UF_EFA_REMOTE_LENGTH, UF_EINTERNAL},
                                   {UF_EFA_REMOTE_STATUS, UF_EFABRIC},
                                   {UF_EFA_UNRESPONSIVE, UF_EPEER},
                                   {UF_EFA_UNKNOWN_PEER, UF_EFABRIC},
                                   {UF_EFA_UNREACHABLE, UF_EPEER},
                                   {UF_EFA_FEATURE_MISMATCH, UF_EUNSUPPORTED},
                                   {77, UF_EINTERNAL}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        net *s = net_open(&(net_options){0});
        uf_efa_rail *rail = &efa_of(s, 0)->rails[0];
        uf_wr wr = wr_to(s, 0, 1, UF_VERB_READ, 4096, 11);
        char number[32];
        uint64_t entry[4];
        assert_int_equal(post(s, 0, &wr), UF_OK);
        const uf_efa_cqe c = {.id = uf_efa_id(&rail->ids, 0),
                              .qpn = rail->qp.qpn,
                              .status = (uint8_t)codes[i][0],
                              .op = UF_EFA_OP_READ,
                              .phase = 1};
        uf_efa_encode_tx_cqe(entry, &c);
        uint64_t *ring = (uint64_t *)(uintptr_t)rail->cq.ring;
        memcpy(ring + 1, entry + 1, 24);
        ring[0] = entry[0];
        assert_int_equal(poll_pe(s, 0), 1);
        assert_int_equal(sent(s, 0, 11)->status, codes[i][1]);
        assert_int_equal(s->pes[0].kept[0].peer, 1);
        snprintf(number, sizeof number, "EFA status %d", codes[i][0]);
        const char *words[] = {"PE 0: a read of 4096 bytes to PE 1 on rail 0 (model0)", number,
                               uf_efa_status_name((unsigned)codes[i][0]), uf_efa_status_remedy((unsigned)codes[i][0]), NULL};
        bool fatal = codes[i][0] == UF_EFA_FLUSHED || codes[i][0] == UF_EFA_QP_ERROR;
        expect_words(s->pes[0].f->ops->error(s->pes[0].f), words);
        assert_int_equal(rail->health != UF_EFA_SOUND, fatal);
        wr.cookie = 12;
        assert_int_equal(post(s, 0, &wr), fatal ? UF_EFABRIC : UF_OK);
        net_close(s);
    }
}

/* A PE that was connected by one side only: its RDMA is refused, and the sentence says by whom. */
static void a_target_that_does_not_know_us_refuses(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.apart = true});
    uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE, 64, 4);
    assert_int_equal(post(s, 0, &wr), UF_EINVAL);
    expect_words(uf_error_message(), (const char *[]){"PE 0", "PE 1", "before it was connected", NULL});
    connect_pes(s, 0, 1);
    assert_int_equal(post(s, 0, &wr), UF_OK);
    run(s, -1);
    assert_int_equal(sent(s, 0, 4)->status, UF_EFABRIC);
    expect_words(s->pes[0].f->ops->error(s->pes[0].f), (const char *[]){"PE 1", "does not know us", NULL});
    connect_pes(s, 1, 0);
    wr.cookie = 5;
    assert_int_equal(post(s, 0, &wr), UF_OK);
    run(s, -1);
    assert_int_equal(sent(s, 0, 5)->status, UF_OK);
    expect_sound(s);
    net_close(s);
}

/* The target's endpoint is gone: told as the peer's end. What comes late for the old queue does not reach the one that has its number now. */
static void a_peer_that_closed_is_named(void **state)
{
    (void)state;
    const net_options o = {0};
    net *s = net_open(&o);
    uf_wr wr = wr_to(s, 0, 1, UF_VERB_SEND, 0, 1);
    s->pes[1].f->ops->close(s->pes[1].f);
    s->pes[1].f = NULL;
    assert_int_equal(post(s, 0, &wr), UF_OK);
    while (uf_model_step(s->model))
        poll_pe(s, 0);
    assert_int_equal(sent(s, 0, 1)->status, UF_EPEER);
    expect_words(s->pes[0].f->ops->error(s->pes[0].f), (const char *[]){"message of 32 bytes to PE 1", "no such queue", NULL});
    open_pe(s, 1, &o);
    wr.cookie = 2;
    assert_int_equal(post(s, 0, &wr), UF_OK);
    run(s, -1);
    assert_int_equal(sent(s, 0, 2)->status, UF_EPEER);
    assert_int_equal(s->pes[1].n, 0);
    expect_sound(s);
    net_close(s);
}

/* Those who talk to a dead NIC hear that it does not answer; its owner hears that it is gone. */
static void a_dead_nic_is_told_to_both_sides(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.n = 3});
    uf_wr warm = wr_to(s, 0, 2, UF_VERB_WRITE, 64, 1);
    assert_int_equal(post(s, 0, &warm), UF_OK);
    run(s, -1);
    for (uint32_t i = 0; i < 10; i++) {
        uf_wr wr = wr_to(s, 0, 2, UF_VERB_WRITE_IMM, 20000, 10 + i), own = wr_to(s, 2, 0, UF_VERB_WRITE, 64, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
        assert_int_equal(post(s, 2, &own), UF_OK);
    }
    uf_model_run(s->model, uf_model_now(s->model) + 3000);
    uf_efa_model_place_kill(s->place, 2, 0);
    run(s, 2);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(sent(s, 0, 10 + i)->status, UF_EPEER);
    expect_words(s->pes[0].f->ops->error(s->pes[0].f), (const char *[]){"PE 0", "PE 2", "rail 0", "stopped answering", NULL});
    int rc = 0;
    for (int i = 0; i < 1000 && rc >= 0; i++)
        rc = poll_pe(s, 2);
    assert_int_equal(rc, UF_EFABRIC);
    expect_words(uf_error_message(), (const char *[]){"PE 2", "rail 0", "model0", "gone", NULL});
    expect_sound(s);
    net_close(s);
}

/* With one rail it is the peer that reset; with two, the way over that rail, which is told and not the WRs. */
static void a_peer_whose_device_is_reset_is_named(void **state)
{
    (void)state;
    for (int rails = 1; rails <= 2; rails++) {
        net *s = net_open(&(net_options){.rails = rails});
        for (uint32_t i = 0; i < 4; i++) {
            uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE, 64, i);
            assert_int_equal(post(s, 0, &wr), UF_OK);
        }
        uf_model_run(s->model, uf_model_now(s->model) + 3000);
        uf_model_nic_reset(uf_efa_model_place_nic(s->place, 1, 0));
        while (uf_model_step(s->model))
            while (poll_pe(s, 0) > 0) {
            }
        poll_pe(s, 0);
        assert_int_equal(count(s, 0, UF_CQE_SENT), rails == 1 ? 4 : 0);
        assert_int_equal(count(s, 0, UF_CQE_RAIL), rails - 1);
        if (rails == 1)
            assert_int_equal(sent(s, 0, 3)->status, UF_EPEER);
        expect_words(s->pes[0].f->ops->error(s->pes[0].f),
                     (const char *[]){"PE 0", "PE 1", "rail 0", "connection reset by the target", "EFA status 8", NULL});
        net_close(s);
    }
}

/* The queue pair fails: everything in flight is told, then poll says that the fabric has ended. */
static void a_failed_queue_ends_everything_in_flight(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){0});
    for (uint32_t i = 0; i < 10; i++) {
        uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE, 64, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    assert_int_equal(uf_model_qp_fail(uf_efa_model_place_nic(s->place, 0, 0), efa_of(s, 0)->rails[0].qp.qpn), UF_OK);
    int rc = 0;
    for (int i = 0; i < 1000 && rc >= 0; i++) {
        uf_model_step(s->model);
        rc = poll_pe(s, 0);
    }
    assert_int_equal(rc, UF_EFABRIC);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(sent(s, 0, i)->status, UF_EFABRIC);
    expect_words(uf_error_message(), (const char *[]){"PE 0", "rail 0", "flushed", NULL});
    net_close(s);
}

/* One of two NICs dies, here or there, or its queue fails: one CQE says so after all that was in flight, and the other rail goes on. */
static void a_rail_that_breaks_is_told_once_and_the_other_goes_on(void **state)
{
    (void)state;
    enum { OWN_NIC, PEERS_NIC, QUEUE, WAYS };
    for (int way = 0; way < WAYS; way++) {
        net *s = net_open(&(net_options){.rails = 2});
        for (uint32_t i = 0; i < 20; i++) {
            uf_wr wr = wr_to(s, 0, 1, UF_VERB_WRITE, 64, i);
            uf_fabric_key key;
            wr.rail = i % 2;
            s->pes[1].f->ops->mr_key(s->pes[1].mr, wr.rail, &key);
            wr.remote_key = key.key;
            wr.local_desc = s->pes[0].f->ops->mr_desc(s->pes[0].mr, wr.rail);
            assert_int_equal(post(s, 0, &wr), UF_OK);
        }
        if (way == QUEUE)
            assert_int_equal(uf_model_qp_fail(uf_efa_model_place_nic(s->place, 0, 1), efa_of(s, 0)->rails[1].qp.qpn), UF_OK);
        else
            uf_efa_model_place_kill(s->place, way == OWN_NIC ? 0 : 1, 1);
        run(s, -1);
        for (int i = 0; i < 1000; i++) {
            if (i == 500)
                uf_model_run(s->model, uf_model_now(s->model) + UF_EFA_STALE_NS);
            poll_pe(s, 0);
            poll_pe(s, 1);
        }
        assert_int_equal(count(s, 0, UF_CQE_SENT), 10);
        for (uint32_t i = 0; i < 20; i += 2)
            assert_int_equal(sent(s, 0, i)->status, UF_OK);
        assert_int_equal(count(s, 0, UF_CQE_RAIL), 1);
        const uf_cqe *last = s->pes[0].kept; /* of that rail */
        for (int k = 0; k < s->pes[0].n; k++)
            last = s->pes[0].kept[k].rail == 1 ? &s->pes[0].kept[k] : last;
        assert_int_equal(last->kind, UF_CQE_RAIL);
        assert_int_equal(last->status, UF_EFABRIC);
        assert_int_equal(last->peer, way == PEERS_NIC ? 1 : UF_CQE_ALL_PEERS);
        expect_words(s->pes[0].f->ops->error(s->pes[0].f), (const char *[]){"PE 0", "rail 1", NULL});
        assert_int_equal(s->pes[0].f->drained, 3);
        uf_wr wr = wr_to(s, 0, 1, UF_VERB_SEND, 0, 50);
        assert_int_equal(post(s, 0, &wr), UF_OK);
        wr.rail = 1;
        assert_int_equal(post(s, 0, &wr), UF_EAGAIN);
        run(s, -1);
        assert_int_equal(sent(s, 0, 50)->status, UF_OK);
        expect_sound(s);
        net_close(s);
    }
}

/* ---------------------------------------------------------------- rails that break */

/* A WR over one rail with that rail's keys. */
static uf_wr wr_over(net *s, uint32_t rail, int from, int to, uint8_t verb, uint32_t bytes, uint32_t cookie)
{
    uf_wr wr = wr_to(s, from, to, verb, bytes, cookie);
    uf_fabric_key key;
    s->pes[to].f->ops->mr_key(s->pes[to].mr, rail, &key);
    wr.rail = (uint16_t)rail;
    wr.remote_key = key.key;
    wr.local_desc = s->pes[from].f->ops->mr_desc(s->pes[from].mr, rail);
    return wr;
}

/* Long enough for a break to be noticed and told. */
static void settle(net *s)
{
    for (int part = 0; part < 2; part++) {
        run(s, -1);
        for (int i = 0; i < 2 * UF_EFA_LOOK_EVERY; i++)
            for (int k = 0; k < s->n; k++)
                poll_pe(s, k);
        uf_model_run(s->model, uf_model_now(s->model) + UF_EFA_STALE_NS);
    }
    run(s, -1);
}

static void fail_queue(net *s, int i, uint32_t rail)
{
    assert_int_equal(uf_model_qp_fail(uf_efa_model_place_nic(s->place, (uint32_t)i, rail), efa_of(s, i)->rails[rail].qp.qpn),
                     UF_OK);
}

static int count_rail(net *s, int i, uint32_t rail, uint32_t peer)
{
    int n = 0;
    for (int k = 0; k < s->pes[i].n; k++) {
        const uf_cqe *c = &s->pes[i].kept[k];
        n += c->kind == UF_CQE_RAIL && c->rail == rail && c->peer == peer;
    }
    return n;
}

/* On one rail after the other; on the last one it is the peer, and its number is told. Those who never talk to it hear nothing. */
static void a_peer_that_is_dead_on_all_rails_is_named(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.n = 3, .rails = 2});
    uf_efa_model_place_kill(s->place, 2, 0);
    uf_efa_model_place_kill(s->place, 2, 1);
    for (uint32_t i = 0; i < 4; i++) {
        uf_wr first = wr_over(s, 0, 0, 2, UF_VERB_WRITE_IMM, 64, i), other = wr_over(s, i % 2, 0, 1, UF_VERB_WRITE, 64, 100 + i);
        assert_int_equal(post(s, 0, &first), UF_OK);
        assert_int_equal(post(s, 0, &other), UF_OK);
    }
    settle(s);
    assert_int_equal(count_rail(s, 0, 0, 2), 1);
    assert_int_equal(count(s, 0, UF_CQE_RAIL), 1);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 4); /* to PE 1 */
    expect_words(s->pes[0].f->ops->error(s->pes[0].f), (const char *[]){"PE 0", "rail 0", "PE 2", "never answered", NULL});
    for (uint32_t i = 0; i < 4; i++) { /* sent again, as the engine does */
        uf_wr again = wr_over(s, 1, 0, 2, UF_VERB_WRITE_IMM, 64, i);
        assert_int_equal(post(s, 0, &again), UF_OK);
    }
    settle(s);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(sent(s, 0, i)->status, UF_EPEER);
        assert_int_equal(sent(s, 0, i)->peer, 2);
        assert_int_equal(sent(s, 0, 100 + i)->status, UF_OK);
    }
    assert_int_equal(count(s, 0, UF_CQE_RAIL), 1);
    assert_int_equal(count(s, 1, UF_CQE_RAIL), 0);
    expect_sound(s);
    net_close(s);
}

static void a_pe_whose_rails_are_all_dead_hears_of_each(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.rails = 2});
    for (uint32_t i = 0; i < 6; i++) {
        uf_wr wr = wr_over(s, i % 2, 0, 1, UF_VERB_WRITE, 64, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    uf_efa_model_place_kill(s->place, 0, 0);
    fail_queue(s, 0, 1);
    settle(s);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 0);
    assert_int_equal(count(s, 0, UF_CQE_RAIL), 2);
    for (uint32_t rail = 0; rail < 2; rail++) {
        uf_wr wr = wr_over(s, rail, 0, 1, UF_VERB_WRITE, 64, 50);
        assert_int_equal(count_rail(s, 0, rail, UF_CQE_ALL_PEERS), 1);
        assert_int_equal(post(s, 0, &wr), UF_EAGAIN);
    }
    net_close(s);
}

/* The target's queue is in error and its NIC works: told by its answers, and the other rail goes on. */
static void a_peers_failed_queue_breaks_one_way_only(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.n = 3, .rails = 2});
    fail_queue(s, 1, 1);
    for (uint32_t i = 0; i < 5; i++) {
        uf_wr lost = wr_over(s, 1, 0, 1, UF_VERB_WRITE_IMM, 64, i), kept = wr_over(s, 1, 0, 2, UF_VERB_WRITE, 64, 10 + i);
        assert_int_equal(post(s, 0, &lost), UF_OK);
        assert_int_equal(post(s, 0, &kept), UF_OK);
    }
    settle(s);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 5);
    assert_int_equal(count(s, 0, UF_CQE_RAIL), 1);
    assert_int_equal(count_rail(s, 0, 1, 1), 1);
    assert_int_equal(count_rail(s, 1, 1, UF_CQE_ALL_PEERS), 1);
    assert_int_equal(count(s, 2, UF_CQE_RAIL), 0);
    uf_wr around = wr_over(s, 0, 0, 1, UF_VERB_WRITE_IMM, 64, 20), beside = wr_over(s, 1, 0, 2, UF_VERB_WRITE, 64, 21);
    assert_int_equal(post(s, 0, &around), UF_OK);
    assert_int_equal(post(s, 0, &beside), UF_OK);
    settle(s);
    assert_int_equal(sent(s, 0, 20)->status, UF_OK);
    assert_int_equal(sent(s, 0, 21)->status, UF_OK);
    expect_sound(s);
    net_close(s);
}

/* The first WR that fails says that the way is broken; the others still fly then, and their end comes before the news. */
static void a_broken_way_is_told_after_all_that_flew_on_it(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.rails = 2});
    uf_model_nic *there = uf_efa_model_place_nic(s->place, 1, 1);
    uf_wr early = wr_over(s, 1, 0, 1, UF_VERB_WRITE, 64, 0);
    assert_int_equal(post(s, 0, &early), UF_OK);
    uf_model_run(s->model, uf_model_now(s->model) + 1000000);
    poll_pe(s, 0);
    assert_int_equal(sent(s, 0, 0)->status, UF_OK);
    uf_model_nic_kill(there);
    for (uint32_t i = 1; i < 4; i++) {
        uf_wr wr = wr_over(s, 1, 0, 1, UF_VERB_WRITE, 64, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
        uf_model_run(s->model, uf_model_now(s->model) + 3000000);
    }
    uf_efa_peer *way = &efa_of(s, 0)->rails[1].peers[1];
    uint32_t seen = 0; /* states in which it was breaking, with so many in flight */
    while (uf_model_step(s->model)) {
        bool told = count(s, 0, UF_CQE_RAIL) > 0;
        while (poll_pe(s, 0) > 0) {
        }
        if (way->health == UF_EFA_BREAKING && way->in_flight > 0)
            seen |= 1u << way->in_flight;
        assert_int_equal(count(s, 0, UF_CQE_RAIL), way->health == UF_EFA_BROKEN);
        assert_true(way->health != UF_EFA_BROKEN || way->in_flight == 0 || told);
    }
    poll_pe(s, 0);
    assert_int_equal(seen, 6);
    assert_int_equal(way->in_flight, 0);
    assert_int_equal(count_rail(s, 0, 1, 1), 1);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 1);
    net_close(s);
}

/* Between the first sign and the news: nothing is refused, nothing is told, and the news waits until stale packets have died. */
static void a_break_is_told_when_its_packets_are_gone(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.rails = 2});
    for (uint32_t i = 0; i < 8; i++) {
        uf_wr wr = wr_over(s, 1, 0, 1, UF_VERB_WRITE, 30000, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    uf_model_run(s->model, uf_model_now(s->model) + 4000);
    fail_queue(s, 0, 1);
    for (int i = 0; i < 100; i++)
        poll_pe(s, 0);
    uint64_t seen = uf_model_now(s->model);
    assert_int_not_equal(efa_of(s, 0)->rails[1].health, UF_EFA_SOUND);
    for (uint32_t i = 0; i < 200; i++) { /* more than a queue holds */
        uf_wr wr = wr_over(s, 1, 0, 1, UF_VERB_WRITE, 64, 100 + i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    while (uf_model_now(s->model) < seen + UF_EFA_STALE_NS - 1) {
        uf_model_run(s->model, uf_model_now(s->model) + (UF_EFA_STALE_NS - 1) / 7);
        if (uf_model_now(s->model) < seen + UF_EFA_STALE_NS)
            poll_pe(s, 0);
    }
    assert_int_equal(s->pes[0].n, 0);
    settle(s);
    assert_int_equal(s->pes[0].n, 1);
    assert_int_equal(count_rail(s, 0, 1, UF_CQE_ALL_PEERS), 1);
    expect_sound(s);
    net_close(s);
}

/* What comes for WRs that were given up is dropped; what peers had sent is handed out. */
static void late_completions_of_a_broken_rail_are_dropped(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.rails = 2});
    uf_efa_rail *rail = &efa_of(s, 0)->rails[1];
    uf_wr wr = wr_over(s, 1, 0, 1, UF_VERB_WRITE, 64, 7);
    assert_int_equal(post(s, 0, &wr), UF_OK);
    const uf_efa_cqe done = {.id = uf_efa_id(&rail->ids, 0), .qpn = rail->qp.qpn, .op = UF_EFA_OP_WRITE, .phase = 1};
    const uf_efa_cqe arrived = {.qpn = rail->qp.qpn,
                                .op = UF_EFA_OP_WRITE,
                                .imm = 99,
                                .has_imm = 1,
                                .unsolicited = 1,
                                .ah = rail->peers[1].ah,
                                .source = rail->peers[1].address.qpn,
                                .phase = 1};
    uf_efa_model_place_kill(s->place, 0, 1);
    settle(s);
    assert_int_equal(count_rail(s, 0, 1, UF_CQE_ALL_PEERS), 1);
    uint64_t entries[2][4];
    uf_efa_encode_tx_cqe(entries[0], &done);
    uf_efa_encode_rx_cqe(entries[1], &arrived);
    memcpy((uint64_t *)(uintptr_t)rail->cq.ring, entries, sizeof entries);
    settle(s);
    assert_int_equal(count(s, 0, UF_CQE_SENT), 0);
    assert_int_equal(count(s, 0, UF_CQE_IMM), 1);
    assert_int_equal(s->pes[0].kept[s->pes[0].n - 1].imm, 99);
    assert_int_equal(efa_of(s, 0)->strays, 1);
    assert_int_equal(count(s, 0, UF_CQE_RAIL), 1);
    net_close(s);
}

/* A bit says that the poll saw the end of that CQ, and nothing else: not that it took all it had room for. */
static void drained_is_what_a_poll_has_seen_empty(void **state)
{
    (void)state;
    net *s = net_open(&(net_options){.rails = 2});
    uf_fabric *f = s->pes[1].f;
    uf_cqe cqe[4];
    poll_pe(s, 1);
    assert_int_equal(f->drained, 3);
    for (uint32_t i = 0; i < 3; i++) {
        uf_wr wr = wr_over(s, 1, 0, 1, UF_VERB_WRITE_IMM, 8, i);
        assert_int_equal(post(s, 0, &wr), UF_OK);
    }
    while (uf_model_step(s->model)) {
    }
    uint32_t taken = 0;
    for (int i = 0; i < 8; i++) {
        int n = f->ops->poll(f, cqe, 1);
        taken += (uint32_t)n;
        bool left = taken < 3 || n == 1;
        assert_int_equal(f->drained >> 1 & 1, !left);
        assert_true(n == 0 || taken <= 3);
        assert_true(!(f->drained & ~3u));
    }
    assert_int_equal(taken, 3);
    net_close(s);
}

static void each_rail_has_room_for_what_flew_on_the_others(void **state)
{
    (void)state;
    for (uint32_t rails = 1; rails <= 4; rails *= 2) {
        net *s = net_open(&(net_options){.rails = (int)rails, .receives = 32, .remote_cqes = 100});
        const uf_fabric_caps *caps = &s->pes[0].f->caps;
        assert_int_equal(caps->n_rails, rails);
        assert_int_equal(caps->max_receives, 32 * rails);
        assert_int_equal(caps->cq_depth, 100 * rails);
        assert_string_equal(caps->device, "model0");
        static const char *const begins[] = {"", "model0, profile", "model0, model1, profile", "",
                                             "model0, model1 and 2 more, profile"};
        assert_int_equal(strncmp(caps->detail, begins[rails], strlen(begins[rails])), 0);
        net_close(s);
    }
    net *s = net_open(&(net_options){.rails = 4, .wanted = 3, .receives = 32});
    assert_int_equal(s->pes[0].f->caps.n_rails, 3);
    assert_int_equal(s->pes[0].f->caps.max_receives, 96);
    net_close(s);
}

/* ---------------------------------------------------------------- what is refused, and what is the same twice */

static void what_cannot_be_opened_is_refused_with_its_reason(void **state)
{
    (void)state;
    static uf_settings settings;
    const char *const none[] = {NULL};
    assert_int_equal(uf_settings_load_from(none, &settings), UF_OK);
    uf_fabric *f = NULL;
    uf_fabric_params p = {.settings = &settings, .pe = 1, .n_pes = 2, .provider = "model", .tx_depth = 16};
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EUNSUPPORTED);
    expect_words(uf_error_message(), (const char *[]){"PE 1", "PEs of one host", "ofi:tcp", NULL});
    p.n_pes = 1;
    p.pe = 0;
    p.provider = "model-moon";
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EINVAL);
    expect_words(uf_error_message(), (const char *[]){"moon", "p5en", NULL});
    p.provider = "models";
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EINVAL);
    p.provider = "Model-Chaos";
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EINVAL); /* profiles are in small letters */
    p.provider = "model-chaos";
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_OK);
    f->ops->close(f);

    net *s = net_open(&(net_options){0});
    p = (uf_fabric_params){.settings = &settings, .pe = 0, .n_pes = 3, .provider = "", .arg = s->place};
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EINVAL);
    unsigned char nonsense[UF_FABRIC_ADDRESS_MAX] = {0};
    assert_int_equal(s->pes[0].f->ops->connect(s->pes[0].f, 0, 1, nonsense), UF_EMISMATCH);
    uf_wr wr = wr_to(s, 0, 1, 9, 16, 1);
    assert_int_equal(post(s, 0, &wr), UF_EINVAL);
    wr = wr_to(s, 0, 1, UF_VERB_WRITE, 16, 1);
    wr.rail = 7;
    assert_int_equal(post(s, 0, &wr), UF_ERANGE);
    wr.rail = 0;
    wr.peer = 2;
    assert_int_equal(post(s, 0, &wr), UF_ERANGE);
    wr.peer = 1;
    wr.local_desc = 1u << 24;
    assert_int_equal(post(s, 0, &wr), UF_EINVAL);
    wr.local_desc = 0;
    wr.bytes = s->pes[0].f->caps.max_message + 1;
    assert_int_equal(post(s, 0, &wr), UF_EINVAL);
    net_close(s);
    uf_model_params p4d;
    assert_int_equal(uf_model_profile("p5", &p4d), UF_OK);
    p4d.can_write = false;
    const uf_efa_model_place_options o = {.params = &p4d, .n_pes = 1};
    uf_efa_model_place *place;
    assert_int_equal(uf_efa_model_place_create(&o, &place), UF_OK);
    p = (uf_fabric_params){.settings = &settings, .pe = 0, .n_pes = 1, .provider = "", .arg = place};
    assert_int_equal(uf_fabric_efa.open(&p, &f), UF_EUNSUPPORTED);
    expect_words(uf_error_message(), (const char *[]){"no RDMA write", "ofi:efa", NULL});
    uf_efa_model_place_destroy(place);
}

/* The CQ is as long as all that may come, or caps say less. */
static void sizes_are_what_the_device_has(void **state)
{
    (void)state;
    uf_model_params small;
    assert_int_equal(uf_model_profile("p5en", &small), UF_OK);
    small.max_sq = 64;
    small.max_rq = 128;
    small.max_cq = 256;
    for (int unsolicited = 0; unsolicited < 2; unsolicited++) {
        small.can_unsolicited = unsolicited;
        net *s = net_open(&(net_options){.params = &small, .tx_depth = 1000, .receives = 100, .remote_cqes = 10000});
        const uf_fabric_caps *caps = &s->pes[0].f->caps;
        assert_true(caps->tx_depth <= 64);
        assert_int_equal(caps->max_receives, 100);
        assert_int_equal(caps->cq_depth, unsolicited ? 256 - 64 - 100 : 28);
        net_close(s);
    }
}

static uint64_t hash_of_a_run(uint64_t *events, int registrations)
{
    net *s = net_open(&(net_options){.profile = "chaos", .n = 3});
    uint64_t hash = 0;
    for (int i = 0; i < registrations; i++) {
        uf_mr *mr;
        assert_int_equal(s->pes[0].f->ops->mr_register(s->pes[0].f, s->pes[0].memory, 64, true, &mr), UF_OK);
    }
    for (uint32_t i = 0; i < 60; i++) {
        uf_wr wr = wr_to(s, (int)(i % 3), (int)(i % 2), (uint8_t)(i % 4), i * 37, i);
        assert_int_equal(post(s, (int)(i % 3), &wr), UF_OK);
    }
    run(s, -1);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < s->pes[i].n; k++)
            hash = (hash ^ (s->pes[i].kept[k].cookie + s->pes[i].kept[k].imm * 64u + s->pes[i].kept[k].kind)) *
                   UINT64_C(0x100000001b3);
    *events = uf_model_get_stats(s->model)->events;
    expect_sound(s);
    net_close(s);
    return hash;
}

/* Also where callers register more or less memory, which may depend on where the system put it. */
static void a_seed_gives_the_same_run_again(void **state)
{
    (void)state;
    uint64_t first_events, events;
    uint64_t first = hash_of_a_run(&first_events, 0);
    for (int registrations = 0; registrations < 10; registrations += 3) {
        assert_int_equal(hash_of_a_run(&events, registrations), first);
        assert_int_equal(events, first_events);
    }
}

int main(void)
{
    uf_set_log_level(UF_LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verb_arrives_on_every_kind_of_queue),
        cmocka_unit_test(silent_writes_copy_and_say_nothing),
        cmocka_unit_test(a_full_send_queue_says_again_and_loses_nothing),
        cmocka_unit_test(messages_wait_for_a_receive),
        cmocka_unit_test(no_completion_is_lost_while_a_pe_sleeps_for_10_ms),
        cmocka_unit_test(completions_of_a_recycled_queue_are_dropped),
        cmocka_unit_test(arrivals_of_unknown_queues_are_dropped_and_counted),
        cmocka_unit_test(a_bad_key_fails_its_own_request_only),
        cmocka_unit_test(each_status_is_a_sentence),
        cmocka_unit_test(a_target_that_does_not_know_us_refuses),
        cmocka_unit_test(a_peer_that_closed_is_named),
        cmocka_unit_test(a_dead_nic_is_told_to_both_sides),
        cmocka_unit_test(a_peer_whose_device_is_reset_is_named),
        cmocka_unit_test(a_failed_queue_ends_everything_in_flight),
        cmocka_unit_test(a_rail_that_breaks_is_told_once_and_the_other_goes_on),
        cmocka_unit_test(a_peer_that_is_dead_on_all_rails_is_named),
        cmocka_unit_test(a_pe_whose_rails_are_all_dead_hears_of_each),
        cmocka_unit_test(a_peers_failed_queue_breaks_one_way_only),
        cmocka_unit_test(a_broken_way_is_told_after_all_that_flew_on_it),
        cmocka_unit_test(a_break_is_told_when_its_packets_are_gone),
        cmocka_unit_test(late_completions_of_a_broken_rail_are_dropped),
        cmocka_unit_test(drained_is_what_a_poll_has_seen_empty),
        cmocka_unit_test(each_rail_has_room_for_what_flew_on_the_others),
        cmocka_unit_test(what_cannot_be_opened_is_refused_with_its_reason),
        cmocka_unit_test(sizes_are_what_the_device_has),
        cmocka_unit_test(a_seed_gives_the_same_run_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
