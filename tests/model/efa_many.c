/* efa_many.c - very many queues at once: contexts with deep queues to one peer, and all contexts of all PEs to all PEs (case C1).
 *
 * Engines over the efa fabric and the model, in one thread and virtual time, without worlds, so that hundreds of PEs cost little. Each put
 * is signalled: contexts take turns between weak ADDs, strong SETs after plain puts, and strong SETs of ordered contexts. Every signal must be applied
 * once, SETs of a lane in their order and after their bytes, whatever runs out meanwhile; and creation must take no more memory than it says.
 * Arguments: --pes N --contexts N --ops N --depth N, else the sizes of the normal set. UNFENCE_SEED gives another seed. */
#include "engine/private.h"
#include "fabric/efa/device_model.h"
#include "fabric/efa/efa.h"
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PUT_BYTES = 16, SUBMITS = 32 };

/* Contexts come in three kinds, by number. */
enum { WEAK, STRONG, ORDERED, KINDS };

typedef struct scene {
    uint32_t n, contexts, ops, senders; /* `ops` of each lane; the first `senders` PEs send */
    bool all;                           /* to all others; else PE 0 to PE 1 */
    uint64_t seed, now, faults;
    char fault[256];
    uf_settings settings;
    uf_efa_model_place *place;
    uf_model *model;
    struct member *members;
} scene;

/* What a PE has got on one lane of a peer. */
typedef struct got {
    uint32_t applied, last;
} got;

typedef struct member {
    scene *s;
    uint32_t pe;
    uf_fabric *fabric;
    uf_engine *engine;
    uf_order_ctx *contexts;
    uf_order_lane **lanes; /* [context][peer] */
    uint64_t next;         /* operation, over all lanes */
    uint64_t applied;
    bool full;             /* the last operation was refused, and nothing has completed since */
    got *got;              /* [peer][context] */
    unsigned char *source; /* [context][op] */
    unsigned char *target; /* [peer][context][op] */
    size_t target_bytes;
    uf_mr *source_mr, *target_mr;
    uf_fabric_key key; /* of the target */
} member;

static void fault(scene *s, const member *m, const char *what, uint64_t a, uint64_t b)
{
    if (s->faults++ == 0)
        snprintf(s->fault, sizeof s->fault, "PE %u: %s (%llu, %llu)", m->pe, what, (unsigned long long)a, (unsigned long long)b);
}

static uint64_t stamp(uint64_t pe, uint64_t context, uint64_t op)
{
    return (pe << 48 | context << 32 | op << 1 | 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static size_t place_of(const scene *s, uint32_t peer, uint32_t context, uint64_t op)
{
    return (((size_t)peer * s->contexts + context) * s->ops + op) * PUT_BYTES;
}

static bool bytes_there(const member *m, uint32_t peer, uint32_t context, uint64_t op)
{
    uint64_t words[2], wanted = stamp(peer, context, op);
    memcpy(words, m->target + place_of(m->s, m->s->all ? peer : 0, context, op), PUT_BYTES);
    return words[0] == wanted && words[1] == ~wanted;
}

/* ---------------------------------------------------------------- the engines' host */

/* The operand of a SET is the number of its operation, from 1. */
static int apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    member *m = arg;
    scene *s = m->s;
    uint32_t context = (uint32_t)signal->address;
    (void)old;
    if (context >= s->contexts)
        return uf_fail(UF_ERANGE, "there is no context %u", context);
    got *g = &m->got[(size_t)signal->flow * s->contexts + context];
    m->applied++;
    g->applied++;
    if (context % KINDS == WEAK)
        return UF_OK;
    if (signal->operand != g->last + 1)
        fault(s, m, "a SET came out of order", signal->operand, g->last);
    g->last = (uint32_t)signal->operand;
    if (!bytes_there(m, signal->flow, context, signal->operand - 1))
        fault(s, m, "a signal came before its bytes", context, signal->operand);
    return UF_OK;
}

static void done(void *arg, uint64_t user, int status, uint64_t value)
{
    member *m = arg;
    (void)value;
    if (status)
        fault(m->s, m, "an operation failed", user, (uint64_t)-status);
}

static void failed(void *arg, uint32_t peer, int status)
{
    member *m = arg;
    fault(m->s, m, uf_error_message(), peer, (uint64_t)-status);
}

static uint64_t now(void *arg)
{
    return ((scene *)arg)->now;
}

static void relax(void *arg, uint32_t round)
{
    (void)arg, (void)round;
}

static int wait_round(void *arg, uint32_t round, uint64_t deadline)
{
    (void)arg, (void)round, (void)deadline;
    return UF_ETIMEDOUT; /* nobody here waits */
}

/* ---------------------------------------------------------------- set-up */

static size_t in_use(void)
{
    struct mallinfo2 i = mallinfo2();
    return i.uordblks + i.hblkhd;
}

/* 0 under sanitizers, which have an allocator of their own. */
static void create_engine(scene *s, member *m, const uf_driver *driver)
{
    uf_order_config config;
    const uf_engine_params p = {.settings = &s->settings,
                                .pe = (int)m->pe,
                                .n_pes = (int)s->n,
                                .fabric = m->fabric,
                                .driver = driver,
                                .host = {m, apply, done, failed, NULL, wait_round},
                                .local_pes = s->n};
    assert_int_equal(uf_engine_order_config(&p, &config), UF_OK);
    size_t before = in_use();
    if (uf_engine_create(&p, &m->engine) != UF_OK)
        fail_msg("%s", uf_error_message());
    size_t took = in_use() - before, reported = uf_engine_bytes(&config);
    /* The allocator rounds a large piece up to whole pages, and has words of its own before each of the two. */
    assert_true(took <= reported + 4096 + 128);
    if (m->pe == 0)
        printf("%u PEs, %u contexts: creation reports %zu KiB a PE and took %zu\n", s->n, s->contexts, reported / 1024,
               took / 1024);
}

static void open_member(scene *s, uint32_t pe)
{
    member *m = &s->members[pe];
    *m = (member){.s = s, .pe = pe};
    uf_fabric_params p = {.settings = &s->settings, .pe = (int)pe, .n_pes = (int)s->n, .provider = "model", .arg = s->place};
    uf_engine_fabric_sizes(&p);
    if (uf_fabric_efa.open(&p, &m->fabric) != UF_OK)
        fail_msg("%s", uf_error_message());
    m->contexts = calloc(s->contexts, sizeof *m->contexts);
    m->lanes = calloc((size_t)s->contexts * s->n, sizeof(uf_order_lane *));
    m->got = calloc((size_t)s->n * s->contexts, sizeof *m->got);
    m->target_bytes = place_of(s, s->all ? s->n : 1, 0, 0);
    m->target = calloc(1, m->target_bytes);
    m->source = calloc(1, place_of(s, 1, 0, 0));
    assert_true(m->contexts && m->lanes && m->got && m->target && m->source);
    for (uint32_t c = 0; c < s->contexts; c++)
        for (uint64_t op = 0; op < s->ops; op++) {
            uint64_t word = stamp(pe, c, op), words[2] = {word, ~word};
            memcpy(m->source + place_of(s, 0, c, op), words, PUT_BYTES);
        }
    assert_int_equal(m->fabric->ops->mr_register(m->fabric, m->target, m->target_bytes, true, &m->target_mr), UF_OK);
    assert_int_equal(m->fabric->ops->mr_register(m->fabric, m->source, place_of(s, 1, 0, 0), false, &m->source_mr), UF_OK);
    m->fabric->ops->mr_key(m->target_mr, 0, &m->key);
}

static void connect_all(const scene *s)
{
    unsigned char address[UF_FABRIC_ADDRESS_MAX];
    for (uint32_t i = 0; i < s->n; i++) {
        assert_int_equal(s->members[i].fabric->ops->address(s->members[i].fabric, 0, address), UF_OK);
        for (uint32_t k = 0; k < s->n; k++)
            assert_int_equal(s->members[k].fabric->ops->connect(s->members[k].fabric, 0, i, address), UF_OK);
    }
}

static void open_scene(scene *s, const char *const *settings, const uf_driver *driver)
{
    assert_int_equal(uf_settings_load_from(settings, &s->settings), UF_OK);
    const uf_efa_model_place_options o = {.profile = "p5en", .seed = s->seed, .n_pes = s->n};
    assert_int_equal(uf_efa_model_place_create(&o, &s->place), UF_OK);
    s->model = uf_efa_model_place_model(s->place);
    s->members = calloc(s->n, sizeof *s->members);
    assert_non_null(s->members);
    for (uint32_t pe = 0; pe < s->n; pe++)
        open_member(s, pe);
    connect_all(s);
    for (uint32_t pe = 0; pe < s->n; pe++) {
        member *m = &s->members[pe];
        create_engine(s, m, driver);
        for (uint32_t c = 0; c < s->contexts; c++)
            m->contexts[c] = (uf_order_ctx){
                .window = (uint32_t)s->settings.number[UF_SET_WINDOW], .ordered = c % KINDS == ORDERED, .number = c};
    }
}

static void close_scene(scene *s)
{
    for (uint32_t pe = 0; pe < s->n; pe++) {
        member *m = &s->members[pe];
        uf_engine_destroy(m->engine);
        m->fabric->ops->close(m->fabric);
        free(m->contexts);
        free(m->lanes);
        free(m->got);
        free(m->target);
        free(m->source);
    }
    free(s->members);
    uf_efa_model_place_destroy(s->place);
}

/* ---------------------------------------------------------------- traffic */

static uint64_t ops_of(const scene *s)
{
    return (uint64_t)s->ops * s->contexts * (s->all ? s->n - 1 : 1);
}

/* Operation `i` of a PE: contexts in turn, then peers, then the next of each lane. So all lanes are in use at once. */
static int submit(scene *s, member *m, uint64_t i)
{
    uint32_t context = (uint32_t)(i % s->contexts), peers = s->all ? s->n - 1 : 1;
    uint32_t peer = s->all ? (m->pe + 1 + (uint32_t)(i / s->contexts % peers)) % s->n : 1;
    uint64_t op = i / s->contexts / peers;
    uf_order_lane **lane = &m->lanes[(size_t)context * s->n + peer];
    int rc = *lane ? UF_OK : uf_engine_lane_open(m->engine, &m->contexts[context], peer, lane);
    if (rc)
        return rc;
    const member *to = &s->members[peer];
    size_t at = place_of(s, s->all ? m->pe : 0, context, op);
    bool weak = context % KINDS == WEAK;
    const uf_order_op o = {.kind = UF_ORDER_PUT_SIGNAL,
                           .op = weak ? UF_ATOMIC_ADD : UF_ATOMIC_SET,
                           .width = 8,
                           .flags = weak ? UF_WEAK : UF_STRONG,
                           .indexed = true,
                           .signal_address = context,
                           .operand = weak ? 1 : op + 1,
                           .local = (uint64_t)(uintptr_t)(m->source + place_of(s, 0, context, op)),
                           .local_desc = m->fabric->ops->mr_desc(m->source_mr, 0),
                           .remote = to->key.base + at,
                           .remote_key = to->key.key,
                           .bytes = PUT_BYTES};
    return uf_engine_submit(m->engine, *lane, &o, 0);
}

/* Completions first, then what fits. True if it did anything. */
static bool turn(scene *s, member *m)
{
    const uf_efa_cq *cq = &((const uf_efa *)m->fabric)->rails[0].cq;
    uf_efa_cqe ignored;
    bool moved = uf_efa_cq_peek(cq, cq->consumed, &ignored), sends = s->all || m->pe == 0;
    if (moved && uf_engine_poll(m->engine) < 0)
        fault(s, m, uf_error_message(), 0, 0);
    m->full = m->full && !moved;
    for (int i = 0; sends && !m->full && i < SUBMITS && m->next < ops_of(s); i++) {
        int rc = submit(s, m, m->next);
        m->full = rc == UF_EAGAIN;
        if (m->full)
            break;
        if (rc)
            fault(s, m, uf_error_message(), m->next, (uint64_t)-rc);
        m->next++;
        moved = true;
    }
    return moved;
}

static uint64_t play(scene *s)
{
    uint64_t applied = 0, wanted = ops_of(s) * (s->all ? s->n : 1);
    for (bool moved = true; s->faults == 0;) {
        uint64_t next = uf_model_next(s->model);
        if (!moved && next == UINT64_MAX)
            break;
        /* A little at a time: what every PE can do meanwhile is worth more than a tick. */
        s->now = next == UINT64_MAX || next < s->now + 200 ? s->now + 200 : next;
        uf_model_run(s->model, s->now);
        moved = false;
        for (uint32_t pe = 0; pe < s->n; pe++)
            moved |= turn(s, &s->members[pe]);
    }
    for (uint32_t pe = 0; pe < s->n; pe++)
        applied += s->members[pe].applied;
    if (s->faults == 0 && applied != wanted)
        fault(s, &s->members[0], "nothing moves any more: applied, wanted", applied, wanted);
    return applied;
}

static void check_all(scene *s)
{
    for (uint32_t pe = 0; pe < s->n && s->faults == 0; pe++)
        for (uint32_t from = 0; from < s->n; from++)
            for (uint32_t c = 0; c < s->contexts; c++) {
                const member *m = &s->members[pe];
                uint32_t wanted = (s->all ? from != pe : from == 0 && pe == 1) ? s->ops : 0;
                if (m->got[(size_t)from * s->contexts + c].applied != wanted)
                    fault(s, m, "a lane has not had each signal once", from, c);
                for (uint64_t op = 0; op < wanted; op++)
                    if (!bytes_there(m, from, c, op))
                        fault(s, m, "bytes are missing at the end", from, op);
            }
    const uf_model_stats *stats = uf_model_get_stats(s->model);
    if (uf_model_traps(s->model) || stats->cqes_lost || stats->out_of_memory)
        fault(s, &s->members[0], uf_model_traps(s->model) ? uf_model_trap(s->model, 0) : "completions were lost",
              stats->cqes_lost, stats->out_of_memory);
}

static void run_scene(scene *s, const char *const *settings)
{
    const char *seed = getenv("UNFENCE_SEED");
    const uf_driver driver = {s, now, relax, false};
    s->seed = seed ? strtoull(seed, NULL, 0) : 1;
    open_scene(s, settings, &driver);
    uint64_t applied = play(s);
    check_all(s);
    if (s->faults)
        fail_msg("UNFENCE_SEED=%llu: %llu faults, the first: %s", (unsigned long long)s->seed, (unsigned long long)s->faults,
                 s->fault);
    printf("%u PEs, %u contexts: %llu signals in %.3f ms (model result)\n", s->n, s->contexts, (unsigned long long)applied,
           (double)s->now * 1e-6);
    close_scene(s);
}

/* ---------------------------------------------------------------- tests */

static uint32_t pes = 48, many_contexts = 16, many_ops = 2, depth = 128;

static void contexts_with_deep_queues_to_one_peer(void **state)
{
    (void)state;
    scene s = {.n = 2, .contexts = 129, .ops = depth};
    run_scene(&s, (const char *const[]){NULL});
}

/* So scarce that everything runs out: 129 lanes over four credits, two messages and windows of 2. */
static void they_do_so_when_everything_is_scarce(void **state)
{
    (void)state;
    scene s = {.n = 2, .contexts = 129, .ops = depth / 8};
    run_scene(
        &s, (const char *const[]){"UNFENCE_CREDITS=4", "UNFENCE_MESSAGES=2", "UNFENCE_WINDOW=2", "UNFENCE_QUEUE_DEPTH=16", NULL});
}

static void all_contexts_of_all_pes_to_all_pes(void **state)
{
    (void)state;
    scene s = {.n = pes, .contexts = many_contexts, .ops = many_ops, .all = true};
    run_scene(&s, (const char *const[]){"UNFENCE_WINDOW=64", NULL});
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        uint32_t *value;
    } arguments[] = {{"--pes", &pes}, {"--contexts", &many_contexts}, {"--ops", &many_ops}, {"--depth", &depth}};
    for (int i = 1; i + 1 < argc; i += 2)
        for (size_t k = 0; k < sizeof arguments / sizeof *arguments; k++)
            if (strcmp(argv[i], arguments[k].name) == 0)
                *arguments[k].value = (uint32_t)strtoul(argv[i + 1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_with_deep_queues_to_one_peer),
        cmocka_unit_test(they_do_so_when_everything_is_scarce),
        cmocka_unit_test(all_contexts_of_all_pes_to_all_pes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
