/* test_world_waits.c - waits end when they say, whatever the network does: three PEs over a network that is made here and in which no
 * other PE answers but as far as it is made up here, in a time that is made here: each look at the clock and each rest is a microsecond.
 * PEs 1 and 2 only take part in what is collective. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/driver.h"
#include "fabric/fabric.h"
#include "order/codec.h"
#include "unfence/unfence.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PES = 3, CQES = 1024, PATIENCE = 1 << 22 };

typedef struct net {
    uf_fabric fabric;
    uf_world *world;
    uint64_t now, tick, polls; /* ns */
    bool busy;                 /* something comes with every poll: weak adds to signal word 0 */
    bool vague;                /* the network does not tell when a write is placed */
    bool full;                 /* posts are refused */
    bool keep_last;            /* the message that closes a lane to PE 2 is refused */
    uint32_t closed;           /* lanes to PE 1 */
    uint64_t abort_when;       /* the program aborts its world at this time; 0: never */
    uf_cqe cqes[CQES];
    uint32_t n;
} net;

static net nets[PES];

static uint64_t net_now(void *arg)
{
    net *n = arg;
    return n->now += n->tick;
}

static void net_relax(void *arg, uint32_t round)
{
    net *n = arg;
    (void)round;
    n->now += n->tick;
    sched_yield();
    if (n->abort_when && n->now >= n->abort_when) {
        n->abort_when = 0;
        uf_world_abort(n->world, "the program's own reason");
    }
}

static const uf_driver drivers[PES] = {
    {&nets[0], net_now, net_relax, false}, {&nets[1], net_now, net_relax, false}, {&nets[2], net_now, net_relax, false}};

static const struct uf_fabric_ops net_ops;

static int net_open(const uf_fabric_params *params, uf_fabric **out)
{
    net *n = params->arg;
    n->fabric = (uf_fabric){.ops = &net_ops,
                            .caps = {.fabric = "made",
                                     .provider = "made",
                                     .n_rails = 1,
                                     .imm_bits = 32,
                                     .imm_placed = true,
                                     .max_message = 1 << 20,
                                     .tx_depth = 64,
                                     .cq_depth = UINT32_MAX,
                                     .max_receives = UINT32_MAX,
                                     .address_bytes = 1}};
    n->fabric.caps.write_placed = !n->vague;
    *out = &n->fabric;
    return UF_OK;
}

static void net_close(uf_fabric *f)
{
    (void)f;
}

static int net_address(uf_fabric *f, uint32_t rail, void *address)
{
    (void)f, (void)rail;
    *(char *)address = 0;
    return UF_OK;
}

static int net_connect(uf_fabric *f, uint32_t rail, uint32_t peer, const void *address)
{
    (void)f, (void)rail, (void)peer, (void)address;
    return UF_OK;
}

static int net_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr)
{
    (void)f, (void)bytes, (void)remote;
    *mr = ptr;
    return UF_OK;
}

static void net_mr_close(uf_fabric *f, uf_mr *mr)
{
    (void)f, (void)mr;
}

static void net_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key)
{
    (void)mr, (void)rail;
    *key = (uf_fabric_key){0, 0};
}

/* What the peer would say to a request, as if it had applied everything. */
static void answer(net *n, const uf_wr *wr)
{
    uf_cqe *cqe = &n->cqes[n->n];
    *cqe = (uf_cqe){.kind = UF_CQE_IMM, .peer = wr->peer};
    if (wr->verb == UF_VERB_WRITE_IMM) {
        if (uf_imm_kind(wr->imm) != UF_IMM_CONTROL || uf_imm_type(wr->imm) != UF_CONTROL_QUIET)
            return;
        cqe->imm = uf_imm_control(UF_CONTROL_RECEIPT, uf_imm_control_bit(wr->imm), uf_imm_value(wr->imm));
    } else {
        uf_order_wire open;
        uf_wire_decode(wr->message, &open);
        if (uf_wire_type(&open) != UF_MSG_LANE_OPEN)
            return;
        uf_order_wire grant = {.type = UF_MSG_LANE_GRANT, .aux = open.aux, .address = open.address};
        cqe->kind = UF_CQE_MESSAGE;
        uf_wire_encode(&grant, cqe->message);
    }
    n->n++;
}

static int net_post(uf_fabric *f, const uf_wr *wr)
{
    net *n = (net *)(void *)f;
    uf_order_wire w = {.type = 0};
    if (wr->verb == UF_VERB_SEND)
        uf_wire_decode(wr->message, &w);
    bool last = uf_wire_type(&w) == UF_MSG_LANE_CLOSE;
    if (n->full || n->n + 2 > CQES || (last && n->keep_last && wr->peer == 2))
        return UF_EAGAIN;
    n->closed += last && wr->peer == 1;
    n->cqes[n->n++] = (uf_cqe){.kind = UF_CQE_SENT, .cookie = wr->cookie};
    if (wr->verb == UF_VERB_WRITE_IMM || wr->verb == UF_VERB_SEND)
        answer(n, wr);
    return UF_OK;
}

static int net_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    net *n = (net *)(void *)f;
    if (++n->polls == PATIENCE)
        n->busy = false; /* the wait would never end */
    uint32_t got = n->n < (uint32_t)max ? n->n : (uint32_t)max;
    memcpy(cqes, n->cqes, got * sizeof *cqes);
    memmove(n->cqes, n->cqes + got, (n->n - got) * sizeof *cqes);
    n->n -= got;
    if (n->busy && got < (uint32_t)max)
        cqes[got++] = (uf_cqe){.kind = UF_CQE_IMM, .imm = uf_imm_add(0, 0, 1)};
    return (int)got;
}

static const char *net_error(uf_fabric *f)
{
    (void)f;
    return "made up";
}

static const struct uf_fabric_ops net_ops = {.name = "made",
                                             .open = net_open,
                                             .close = net_close,
                                             .address = net_address,
                                             .connect = net_connect,
                                             .mr_register = net_register,
                                             .mr_close = net_mr_close,
                                             .mr_key = net_key,
                                             .post = net_post,
                                             .poll = net_poll,
                                             .error = net_error};

static struct uf_group *group;
static pthread_t others[PES];
static uint64_t *sigs; /* PE 0's */

static int create(int pe, uint64_t **words)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    o.group = group;
    o.pe = pe;
    o.heap_bytes = 1 << 20;
    o.timeout_ns = 1000000000;
    o.driver = &drivers[pe];
    o.fabric_ops = &net_ops;
    o.fabric_arg = &nets[pe];
    int rc = uf_world_create(&o, &nets[pe].world);
    return rc ? rc : uf_signal_alloc(nets[pe].world, 1, UF_SIGNAL_DEFAULT, words);
}

static void *other_pe(void *arg)
{
    uint64_t *words;
    int pe = (int)(intptr_t)arg;
    create(pe, &words);
    uf_world_destroy(nets[pe].world);
    return NULL;
}

static int make_world(void **state)
{
    (void)state;
    memset(nets, 0, sizeof nets);
    for (int pe = 0; pe < PES; pe++)
        nets[pe].tick = 1000;
    assert_int_equal(uf_group_create(PES, &group), UF_OK);
    for (intptr_t pe = 1; pe < PES; pe++)
        assert_int_equal(pthread_create(&others[pe], NULL, other_pe, (void *)pe), 0);
    assert_int_equal(create(0, &sigs), UF_OK);
    return 0;
}

static int end_world(void **state)
{
    (void)state;
    nets[0].busy = nets[0].full = nets[0].keep_last = false;
    uf_world_destroy(nets[0].world);
    for (int pe = 1; pe < PES; pe++)
        pthread_join(others[pe], NULL);
    uf_group_destroy(group);
    return 0;
}

/* C24: a wait whose signal does not come runs out at its deadline also where other traffic never pauses. */
static void wait_runs_out_while_other_signals_come(void **state)
{
    (void)state;
    uf_world *w = nets[0].world;
    nets[0].busy = true;
    assert_int_equal(uf_wait(w, sigs, UF_GE, 1, 1000000), UF_ETIMEDOUT);
    const uf_wait_list list = {.sigs = (const uint64_t *const[]){sigs}, .n = 1, .cmp = UF_GE, .value = 1};
    assert_int_equal(uf_wait_all(w, &list, 1000000), UF_ETIMEDOUT);
    assert_true(nets[0].polls < PATIENCE);
}

/* C23: who waits for room in the queues hears that the world was aborted, and does not wait for its own deadline. */
static void wait_for_room_ends_with_the_world(void **state)
{
    (void)state;
    int rc = UF_OK;
    nets[0].full = true;
    nets[0].abort_when = nets[0].now + 10000000;
    for (int i = 0; i < 100000 && !rc; i++)
        rc = uf_signal(uf_ctx_default(nets[0].world), sigs, UF_SIGNAL_ADD, 1, 1, UF_WEAK);
    assert_int_equal(rc, UF_EABORTED);
    assert_non_null(strstr(uf_error_message(), "the program's own reason"));
}

/* ... and without an abort it does, with a sentence that names the peer. */
static void wait_for_room_runs_out(void **state)
{
    (void)state;
    int rc = UF_OK;
    nets[0].full = true;
    for (int i = 0; i < 100000 && !rc; i++)
        rc = uf_signal(uf_ctx_default(nets[0].world), sigs, UF_SIGNAL_ADD, 1, 1, UF_WEAK);
    assert_int_equal(rc, UF_ETIMEDOUT);
    assert_non_null(strstr(uf_error_message(), "to PE 1"));
}

/* A context whose end runs out of time lives on, and its end can be tried again: each lane is closed once. */
static void end_of_a_context_can_be_tried_again(void **state)
{
    (void)state;
    uf_ctx *ctx, *next;
    assert_int_equal(uf_ctx_create(nets[0].world, NULL, &ctx), UF_OK);
    for (int pe = 1; pe < PES; pe++)
        assert_int_equal(uf_signal(ctx, sigs, UF_SIGNAL_SET, 1, pe, UF_WEAK), UF_OK);
    nets[0].keep_last = true;
    assert_int_equal(uf_ctx_destroy(ctx), UF_ETIMEDOUT);
    assert_non_null(strstr(uf_error_message(), "the lane to PE 2"));
    assert_int_equal(nets[0].closed, 1);
    /* Another context takes the place of the lane that was closed. */
    assert_int_equal(uf_ctx_create(nets[0].world, NULL, &next), UF_OK);
    assert_int_equal(uf_signal(next, sigs, UF_SIGNAL_SET, 1, 1, UF_WEAK), UF_OK);
    assert_int_equal(uf_quiet(next), UF_OK);
    nets[0].keep_last = false;
    assert_int_equal(uf_ctx_destroy(ctx), UF_OK);
    assert_int_equal(nets[0].closed, 1);
    assert_int_equal(uf_ctx_destroy(next), UF_OK);
    assert_int_equal(nets[0].closed, 2);
}

/* What no correct network does ends the world with a sentence, and is not passed over. */
static void completion_of_nothing_ends_the_world(void **state)
{
    (void)state;
    nets[0].cqes[nets[0].n++] = (uf_cqe){.kind = UF_CQE_SENT, .cookie = 12345};
    assert_int_equal(uf_progress(nets[0].world), UF_EINTERNAL);
    assert_non_null(strstr(uf_error_message(), "not in flight"));
}

/* C28: a quiet over a network that cannot say when bytes are in place would prove nothing, so there is no world over it. */
static void network_that_does_not_tell_of_placement_is_refused(void **state)
{
    (void)state;
    memset(nets, 0, sizeof nets);
    nets[0].tick = 1000;
    nets[0].vague = true;
    assert_int_equal(uf_group_create(1, &group), UF_OK);
    assert_int_equal(create(0, &sigs), UF_EUNSUPPORTED);
    assert_non_null(strstr(uf_error_message(), "made"));
    uf_group_destroy(group);
}

static char told[1024];
static int n_told;

static void note_line(void *arg, int level, const char *line)
{
    (void)arg;
    if (level == UF_LOG_WARN && n_told++ == 0)
        snprintf(told, sizeof told, "%s", line);
}

/* Brings a message of PE 1. */
static void bring(const uf_order_wire *wire)
{
    uf_cqe *cqe = &nets[0].cqes[nets[0].n++];
    *cqe = (uf_cqe){.kind = UF_CQE_MESSAGE, .peer = 1};
    uf_wire_encode(wire, cqe->message);
}

/* Rule 17, C24: a signal that waits for parts of its put which do not come is told of within seconds, once, while the program waits. */
static void stuck_lane_is_told_of_once(void **state)
{
    (void)state;
    const uf_order_wire open = {.type = UF_MSG_LANE_OPEN, .seq = 1, .address = 5, .operand = 8};
    const uf_order_wire signal = {.type = UF_MSG_SIGNAL, .op = UF_ATOMIC_ADD | UF_MSG_INDEXED, .seq = 2, .aux = 2, .operand = 1};
    bring(&open);
    bring(&signal);
    n_told = 0;
    nets[0].tick = 100000;
    uf_set_logger(note_line, NULL);
    assert_int_equal(uf_wait(nets[0].world, sigs, UF_GE, 1, 60000000000), UF_ETIMEDOUT);
    uf_set_logger(NULL, NULL);
    assert_int_equal(n_told, 1);
    assert_non_null(strstr(told, "unfence: PE 0: warn: lane 0 from PE 1 waits for sequence 0"));
    assert_non_null(strstr(told, "0 of 2 arrivals"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wait_runs_out_while_other_signals_come, make_world, end_world),
        cmocka_unit_test_setup_teardown(wait_for_room_ends_with_the_world, make_world, end_world),
        cmocka_unit_test_setup_teardown(wait_for_room_runs_out, make_world, end_world),
        cmocka_unit_test_setup_teardown(completion_of_nothing_ends_the_world, make_world, end_world),
        cmocka_unit_test(network_that_does_not_tell_of_placement_is_refused),
        cmocka_unit_test_setup_teardown(stuck_lane_is_told_of_once, make_world, end_world),
        cmocka_unit_test_setup_teardown(end_of_a_context_can_be_tried_again, make_world, end_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
