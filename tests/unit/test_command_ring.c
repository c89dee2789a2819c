/* test_command_ring.c - rings of commands between CPU threads that stand for a kernel's and the engine that consumes them.
 *
 * The engine has no network and its edges are the test's: every command is near, its target a word that the test owns. So the order and
 * completeness of what comes out, what a torn writer holds up and what an error does are seen exactly. Producers use the calls
 * that kernels use. Positions start at 0, before 2^32 and before their own wrap at 2^63. */
#include "base/error.h"
#include "engine/queues.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHIFT = 6, DEPTH = 1 << SHIFT, PES = 4, MAX_THREADS = 8, EACH = 3000, RESULTS = 4 };

#define SHORT_NS 2000000u
#define LONG_NS  60000000000u

static const uint64_t starts[] = {0, 0xffffffff - 100, UF_COMMAND_POSITION_MASK - 100};

typedef struct rig {
    uf_engine *engine;
    uf_order_ctx ctx;
    uf_command_queue *queue, *other;
    const uf_command_ring *ring, *other_ring;
    int world; /* what `sound` says */
    uint64_t words[64], target[4096];
    /* What `resolve` saw, in order; by whoever holds the engine's lock. */
    uint64_t seen[MAX_THREADS], faults, resolved;
    const uint64_t *payload[MAX_THREADS];
} rig;

static void tick(void *arg, uint64_t now)
{
    (void)arg, (void)now;
}

static void failed(void *arg, uint32_t peer, int status)
{
    (void)arg, (void)peer, (void)status;
}

static int wait_step(void *arg, uint32_t round, uint64_t deadline)
{
    (void)arg, (void)round, (void)deadline;
    return UF_OK;
}

/* operand: thread << 32 | number. The payload, written by the producer before the command, must be readable and say the same. */
static void judge(rig *r, const uf_command *c)
{
    uint32_t thread = (uint32_t)(c->operand >> 32), number = (uint32_t)c->operand;
    if (thread >= MAX_THREADS || r->payload[thread] == NULL)
        return;
    r->faults += r->seen[thread] != number || *(const uint64_t *)(uintptr_t)c->local != ~c->operand || c->compare != c->operand;
    r->seen[thread] = number + 1;
}

static int resolve(void *arg, const uf_command *c, uf_command_way *way)
{
    rig *r = arg;
    r->resolved++;
    if (c->word == 8)
        return uf_fail(UF_ERANGE, "word: no such word");
    judge(r, c);
    way->word = (void *)(uintptr_t)c->word;
    way->to = (unsigned char *)(uintptr_t)c->remote;
    way->from = (const unsigned char *)(uintptr_t)c->local;
    return UF_OK;
}

static uint64_t apply(void *arg, void *word, uint32_t op, uint32_t width, uint64_t operand, uint64_t compare)
{
    (void)arg, (void)compare;
    assert_int_equal(width, 8);
    if (op == UF_ATOMIC_SET) {
        __atomic_store_n((uint64_t *)word, operand, __ATOMIC_RELEASE);
        return 0;
    }
    return __atomic_fetch_add((uint64_t *)word, operand, __ATOMIC_ACQ_REL);
}

static int sound(void *arg)
{
    rig *r = arg;
    return r->world ? uf_fail(r->world, "the world has ended") : UF_OK;
}

static uf_command_queue *add_queue_in(rig *r, uint64_t first, const uf_command_memory *memory)
{
    const uf_command_edges edges = {r, resolve, apply, sound};
    const uf_command_params params = {SHIFT, RESULTS, LONG_NS, first, &r->ctx, memory, &edges};
    uf_command_queue *q;
    assert_int_equal(uf_command_queue_create(r->engine, &params, &q), UF_OK);
    return q;
}

static uf_command_queue *add_queue(rig *r, uint64_t first)
{
    return add_queue_in(r, first, &uf_command_memory_plain);
}

static void open_rig(rig *r, uint64_t first)
{
    static uf_settings settings;
    memset(r, 0, sizeof *r);
    assert_int_equal(uf_settings_load(&settings), UF_OK);
    const uf_engine_params params = {.settings = &settings,
                                     .pe = 1,
                                     .n_pes = PES,
                                     .driver = &uf_driver_threads,
                                     .host = {r, NULL, NULL, failed, tick, wait_step},
                                     .local_pes = 1};
    assert_int_equal(uf_engine_create(&params, &r->engine), UF_OK);
    r->ctx.window = 2;
    r->queue = add_queue(r, first);
    r->other = add_queue(r, 0);
    r->ring = uf_command_queue_ring(r->queue);
    r->other_ring = uf_command_queue_ring(r->other);
}

static void close_rig(rig *r)
{
    assert_true(uf_command_queue_destroy(r->queue));
    assert_true(uf_command_queue_destroy(r->other));
    assert_int_equal(uf_engine_poll(r->engine), 0);
    uf_engine_destroy(r->engine);
}

static uf_command add(uint64_t *word, uint64_t value)
{
    return (uf_command){
        .op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = (uint64_t)(uintptr_t)word, .operand = value, .pe = 2};
}

static uint64_t push(const uf_command_ring *ring, const uf_command *c)
{
    uint64_t position = 0;
    assert_int_equal(uf_command_misfit(c), 0);
    assert_int_equal(uf_command_try_reserve(ring, 1, &position), 1);
    uf_command_write(ring, position, c);
    return position;
}

static void settle(rig *r)
{
    while (uf_engine_poll(r->engine) > 0)
        ;
}

/* ---------------------------------------------------------------- one thread */

static void a_full_ring_refuses_and_changes_nothing(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        static rig r;
        uint64_t position = 0;
        open_rig(&r, starts[s]);
        for (int lap = 0; lap < 5; lap++) {
            for (uint64_t i = 0; i < DEPTH; i++) {
                uf_command c = add(&r.words[0], 1);
                assert_int_equal(push(r.ring, &c), (starts[s] + (uint64_t)lap * DEPTH + i) & UF_COMMAND_POSITION_MASK);
            }
            uint64_t before = r.ring->local->reserved;
            assert_int_equal(uf_command_try_reserve(r.ring, 1, &position), 0);
            assert_int_equal(uf_command_reserve(r.ring, 1, SHORT_NS, &position), UF_COMMAND_ETIMEDOUT);
            assert_int_equal(r.ring->local->reserved, before);
            settle(&r);
            assert_int_equal(r.words[0], (uint64_t)(lap + 1) * DEPTH);
            /* As many as there is room for at once, and no more. */
            assert_int_equal(uf_command_reserve(r.ring, DEPTH + 1, SHORT_NS, &position), UF_COMMAND_ERANGE);
        }
        assert_int_equal(uf_command_try_reserve(r.ring, DEPTH, &position), 1);
        for (uint64_t i = 0; i < DEPTH; i++) {
            uf_command nop = {.op = UF_COMMAND_NOP};
            uf_command_write(r.ring, (position + i) & UF_COMMAND_POSITION_MASK, &nop);
        }
        settle(&r);
        assert_int_equal(uf_command_queue_idle(r.queue), UF_OK);
        assert_int_equal(uf_command_queue_status(r.queue), UF_OK);
        close_rig(&r);
    }
}

/* A writer stops after each number of words, at each piece of the command: nothing of its ring goes on, everything of the other
 * does, and when it resumes its own command and those behind it are done in order. */
static void a_torn_writer_holds_up_its_own_ring_only(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (int words = 0; words < UF_COMMAND_WORDS; words++)
            for (int lap = 0; lap < 3; lap++) {
                static rig r;
                open_rig(&r, starts[s]);
                for (int i = 0; i < lap * DEPTH; i++) {
                    uf_command c = add(&r.words[5], 1);
                    push(r.ring, &c);
                    settle(&r);
                }
                uint64_t position = 0, image[UF_COMMAND_WORDS];
                uf_command torn = add(&r.words[0], 1), behind = add(&r.words[1], 1);
                assert_int_equal(uf_command_try_reserve(r.ring, 1, &position), 1);
                uf_command_encode(&torn, position, SHIFT, image);
                for (int i = 0; i < words; i++) /* not in ascending order */
                    uf_store_release64(uf_command_slot(r.ring, position) + (i * 3 + 1) % 8, image[(i * 3 + 1) % 8]);
                push(r.ring, &behind);
                push(r.other_ring, &behind);
                settle(&r);
                assert_int_equal(r.words[0], 0);
                assert_int_equal(r.words[1], 1);
                assert_int_equal(uf_command_queue_idle(r.other), UF_OK);
                uf_command_write(r.ring, position, &torn);
                settle(&r);
                assert_int_equal(r.words[0], 1);
                assert_int_equal(r.words[1], 2);
                assert_int_equal(uf_command_queue_status(r.queue), UF_OK);
                close_rig(&r);
            }
}

static void fetched_values_come_to_whom_they_belong(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        static rig r;
        uint32_t result[RESULTS + 1];
        uint64_t position[RESULTS], value, none;
        open_rig(&r, starts[s]);
        for (uint64_t round = 0; round < 100; round++) {
            for (uint32_t i = 0; i < RESULTS; i++) {
                assert_int_equal(uf_command_claim(r.ring, i * 3, &result[i]), 1);
                uf_command c = add(&r.words[i], 10);
                c.atomic = UF_ATOMIC_FETCH_ADD;
                c.result = result[i];
                position[i] = push(r.ring, &c);
                assert_int_equal(uf_command_fetch_test(r.ring, result[i], position[i], &value), 0);
            }
            assert_int_equal(uf_command_claim(r.ring, 0, &result[RESULTS]), 0);
            /* One gives up: its place comes back with its answer and not before. */
            assert_int_equal(uf_command_fetch_wait(r.ring, result[1], position[1], SHORT_NS, &none), UF_COMMAND_ETIMEDOUT);
            assert_int_equal(uf_command_claim(r.ring, 0, &result[RESULTS]), 0);
            settle(&r);
            assert_int_equal(uf_command_claim(r.ring, 0, &result[RESULTS]), 1);
            assert_int_equal(result[RESULTS], result[1]);
            uint64_t taken = 2;
            assert_int_equal(uf_command_local_exchange(&r.ring->claims[result[RESULTS]], &taken, 0), 1);
            for (uint32_t i = 0; i < RESULTS; i++)
                if (i != 1) {
                    assert_int_equal(uf_command_fetch_wait(r.ring, result[i], position[i], 0, &value), 0);
                    assert_int_equal(value, round * 10);
                }
        }
        close_rig(&r);
    }
}

/* ---------------------------------------------------------------- between two stores of the consumer */

/* Waiters look at any moment, so what they may conclude must hold before and after each store that the consumer makes. */
typedef struct witness {
    rig *r;
    uint64_t first, wrong_at;                  /* where the ring began; the position of its wrong command */
    uint64_t position[RESULTS], want[RESULTS]; /* of fetches: position, and the value that belongs to it */
    uint32_t fetches;
    uint64_t quiet; /* position of the last command */
    uint64_t looks, answers;
} witness;

static void look(witness *w)
{
    const uf_command_ring *ring = w->r->ring;
    if (!ring) /* not made yet */
        return;
    w->looks++;
    for (uint32_t i = 0; i < w->fetches; i++)
        if (uf_load_acquire64(&ring->results[i].tag) == uf_command_tag(w->position[i])) {
            assert_int_equal(ring->results[i].value, w->want[i]);
            w->answers++;
        }
    uint64_t consumed = uf_load_acquire64(&ring->report->consumed), local = uf_load_acquire64(&ring->report->local),
             remote = uf_load_acquire64(&ring->report->remote);
    /* No slot is given back before its command has been taken: resolved, or told to be wrong, or reached. */
    uint64_t taken = w->r->resolved + (uf_command_status(ring) != 0) +
                     (uint64_t)uf_command_passed(remote & UF_COMMAND_POSITION_MASK, w->quiet);
    assert_true(uf_command_distance(w->first, consumed & UF_COMMAND_POSITION_MASK) <= taken);
    if ((consumed | local | remote) & UF_COMMAND_TROUBLE)
        assert_int_not_equal(uf_command_status(ring), 0);
    if (uf_command_status(ring))
        assert_int_equal(ring->report->position, w->wrong_at);
}

static void store_and_look(void *arg, uint64_t *host, uint64_t value)
{
    look(arg);
    uf_store_release64(host, value);
    look(arg);
}

static void a_waiter_concludes_nothing_wrong_between_any_two_stores(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (uint32_t bad = 0; bad <= RESULTS; bad++) {
            static rig r;
            witness w = {.r = &r, .first = starts[s], .wrong_at = UINT64_MAX};
            const uf_command_memory memory = {&w, uf_command_memory_plain.alloc, uf_command_memory_plain.free, store_and_look};
            const uf_command quiet = {.op = UF_COMMAND_QUIET};
            open_rig(&r, 0);
            assert_true(uf_command_queue_destroy(r.queue));
            r.ring = NULL;
            r.queue = add_queue_in(&r, starts[s], &memory);
            r.ring = uf_command_queue_ring(r.queue);
            for (uint32_t i = 0; i < RESULTS; i++) {
                if (i == bad) {
                    uf_command c = add(&r.words[60], 1);
                    c.pe = PES;
                    w.wrong_at = push(r.ring, &c);
                }
                uf_command c = add(&r.words[i], 5);
                c.atomic = UF_ATOMIC_FETCH_ADD;
                assert_int_equal(uf_command_claim(r.ring, i, &c.result), 1);
                assert_int_equal(c.result, i);
                r.words[i] = w.want[i] = 1000 + i;
                w.position[i] = push(r.ring, &c);
                w.fetches = i + 1;
            }
            w.quiet = push(r.ring, &quiet);
            settle(&r);
            assert_true(w.looks > 2 * RESULTS && w.answers >= RESULTS);
            assert_int_equal(uf_command_queue_status(r.queue), bad < RESULTS ? UF_ERANGE : UF_OK);
            close_rig(&r);
        }
}

/* What is not consumed is not given out again, wherever the consumer stands in the ring and however often it has gone round. */
static void no_slot_is_given_out_before_its_command_is_taken(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        static rig r;
        uint64_t position = 0;
        open_rig(&r, starts[s]);
        uf_command c = add(&r.words[0], 1);
        for (uint64_t lead = 0; lead < 2 * DEPTH + 3; lead++) {
            /* The first of a full ring is torn: nothing behind it is consumed. */
            assert_int_equal(uf_command_try_reserve(r.ring, 1, &position), 1);
            for (uint64_t i = 1; i < DEPTH; i++)
                push(r.ring, &c);
            settle(&r);
            uint64_t more;
            for (uint32_t n = 1; n <= DEPTH; n++)
                assert_int_equal(uf_command_try_reserve(r.ring, n, &more), 0);
            uf_command_write(r.ring, position, &c);
            settle(&r);
            assert_int_equal(r.words[0], (lead + 1) * DEPTH + lead);
            push(r.ring, &c); /* the next round begins one slot further on */
            settle(&r);
        }
        assert_int_equal(uf_command_queue_status(r.queue), UF_OK);
        close_rig(&r);
    }
}

/* ---------------------------------------------------------------- errors */

typedef struct mistake {
    uf_command c;
    int code;
    const char *word; /* of the sentence */
} mistake;

static void a_wrong_command_is_told_and_loses_nothing_of_the_others(void **state)
{
    (void)state;
    static rig r;
    uint64_t at = (uint64_t)(uintptr_t)&r.words[3];
    const mistake mistakes[] = {
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = at, .pe = PES}, UF_ERANGE, "no PE 4"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = 12, .word = at}, UF_EINVAL, "uf_atomic_op"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = at + 4}, UF_EINVAL, "aligned"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = at + 2, .flags = UF_COMMAND_NARROW}, UF_EINVAL, "aligned"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_SWAP, .word = at, .result = RESULTS}, UF_ERANGE, "4 places"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = at, .flags = UF_COMMAND_STRONG}, UF_EINVAL, "flags"},
        {{.op = UF_COMMAND_SIGNAL, .atomic = UF_ATOMIC_XOR, .word = at}, UF_EINVAL, "SET nor ADD"},
        {{.op = UF_COMMAND_PUT_SIGNAL, .atomic = UF_ATOMIC_ADD, .word = at + 1}, UF_EINVAL, "aligned"},
        {{.op = UF_COMMAND_PUT, .flags = UF_COMMAND_STRONG, .bytes = 8}, UF_EINVAL, "flags"},
        {{.op = UF_COMMAND_QUIET, .flags = UF_COMMAND_INDEXED}, UF_EINVAL, "flags"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = 8}, UF_ERANGE, "no such word"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        open_rig(&r, starts[i % 3]);
        char place[64];
        uf_command good = add(&r.words[0], 1), quiet = {.op = UF_COMMAND_QUIET};
        push(r.ring, &good);
        uint64_t position = push(r.ring, &mistakes[i].c);
        push(r.ring, &good);
        push(r.ring, &mistakes[0].c); /* the first error stays */
        push(r.ring, &good);
        push(r.other_ring, &good);
        uint64_t end = push(r.ring, &quiet), other_end = push(r.other_ring, &quiet);
        settle(&r);
        assert_int_equal(r.words[0], 4);
        assert_int_equal(r.words[3], 0);
        assert_int_equal(uf_command_queue_status(r.queue), mistakes[i].code);
        assert_non_null(strstr(uf_error_message(), mistakes[i].word));
        snprintf(place, sizeof place, "PE 1, command queue 0, command %llu:", (unsigned long long)position);
        assert_non_null(strstr(uf_error_message(), place));
        /* Every waiter of the ring hears of it, and none of the other one. */
        uint64_t more, value;
        assert_int_equal(uf_command_status(r.ring), mistakes[i].code);
        assert_int_equal(r.ring->report->position, position);
        assert_int_equal(uf_command_wait(r.ring, &r.ring->report->remote, end, 0), mistakes[i].code);
        assert_int_equal(uf_command_wait(r.ring, &r.ring->report->local, end, 0), mistakes[i].code);
        assert_int_equal(uf_command_fetch_wait(r.ring, 0, end, 0, &value), mistakes[i].code);
        assert_int_equal(uf_command_wait(r.other_ring, &r.other_ring->report->remote, other_end, 0), 0);
        assert_int_equal(uf_command_try_reserve(r.ring, DEPTH, &more), 1);
        assert_int_equal(uf_command_reserve(r.ring, 1, 0, &more), mistakes[i].code);
        assert_int_equal(uf_command_queue_status(r.other), UF_OK);
        uf_command_counters n;
        uf_command_queue_counters(r.queue, &n);
        assert_int_equal(n.errors, 2);
        assert_int_equal(n.commands, 6);
        close_rig(&r);
    }
}

static void bytes_that_no_producer_wrote_are_an_error_of_their_position(void **state)
{
    (void)state;
    static rig r;
    open_rig(&r, 0);
    uint64_t position = 0, words[UF_COMMAND_WORDS];
    uf_command good = add(&r.words[0], 1);
    assert_int_equal(uf_command_try_reserve(r.ring, 1, &position), 1);
    uf_command_encode(&good, position + 2 * DEPTH, SHIFT, words);
    for (int i = 0; i < UF_COMMAND_WORDS; i++)
        uf_store_release64(uf_command_slot(r.ring, position) + i, words[i]);
    push(r.ring, &good);
    settle(&r);
    assert_int_equal(r.words[0], 1);
    assert_int_equal(uf_command_queue_status(r.queue), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "another position"));
    close_rig(&r);
}

static void the_end_of_the_world_ends_every_wait(void **state)
{
    (void)state;
    static rig r;
    open_rig(&r, starts[2]);
    uf_command bad = add(&r.words[0], 1), quiet = {.op = UF_COMMAND_QUIET};
    bad.pe = PES;
    push(r.ring, &bad);
    settle(&r);
    assert_int_equal(uf_command_status(r.ring), UF_ERANGE);
    r.world = UF_EPEER; /* more than the error of a command */
    uint64_t end = push(r.ring, &quiet), value;
    settle(&r);
    assert_int_equal(uf_command_queue_status(r.queue), UF_EPEER);
    assert_non_null(strstr(uf_error_message(), "the world has ended"));
    assert_int_equal(uf_command_wait(r.ring, &r.ring->report->remote, end, 0), UF_EPEER);
    assert_int_equal(uf_command_fetch_wait(r.other_ring, 0, 0, 0, &value), UF_EPEER);
    assert_int_equal(uf_command_queue_idle(r.queue), UF_OK);
    close_rig(&r);
}

static void bad_sizes_are_refused_with_their_bounds(void **state)
{
    (void)state;
    static rig r;
    open_rig(&r, 0);
    const uf_command_edges edges = {&r, resolve, apply, sound};
    const uf_command_params good = {SHIFT, RESULTS, LONG_NS, 0, &r.ctx, &uf_command_memory_plain, &edges};
    uf_command_queue *q = NULL;
    for (int i = 0; i < 6; i++) {
        uf_command_params p = good;
        p.shift = i == 0 ? UF_COMMAND_MIN_SHIFT - 1 : i == 1 ? UF_COMMAND_MAX_SHIFT + 1 : SHIFT;
        p.n_results = i == 2 ? 0 : i == 3 ? 65537 : RESULTS;
        p.first = i == 4 ? UF_COMMAND_LAP : 0;
        p.timeout_ns = i == 5 ? 0 : LONG_NS;
        assert_int_equal(uf_command_queue_create(r.engine, &p, &q), UF_EINVAL);
        assert_null(q);
    }
    close_rig(&r);
}

/* ---------------------------------------------------------------- a large copy */

static void a_large_copy_is_made_in_pieces_and_others_go_on(void **state)
{
    (void)state;
    static rig r;
    enum { BYTES = 3 * 1024 * 1024 + 5 };
    unsigned char *from = malloc(BYTES), *to = calloc(1, BYTES);
    assert_true(from && to);
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    open_rig(&r, 0);
    uf_command put = {.op = UF_COMMAND_PUT_SIGNAL,
                      .atomic = UF_ATOMIC_SET,
                      .bytes = BYTES,
                      .local = (uint64_t)(uintptr_t)from,
                      .remote = (uint64_t)(uintptr_t)to,
                      .word = (uint64_t)(uintptr_t)&r.words[0],
                      .operand = UINT64_C(99) << 32}; /* of no thread */
    uf_command behind = add(&r.words[1], 1), beside = add(&r.words[2], 1);
    push(r.ring, &put);
    push(r.ring, &behind);
    uint64_t steps = 0;
    while (r.words[1] == 0) {
        assert_int_equal(r.words[0], 0);
        push(r.other_ring, &beside);
        assert_true(uf_engine_poll(r.engine) > 0);
        assert_int_equal(r.words[2], ++steps);
    }
    assert_true(steps > 3);
    assert_int_equal(r.words[0], put.operand);
    assert_memory_equal(from, to, BYTES);
    close_rig(&r);
    free(from);
    free(to);
}

/* ---------------------------------------------------------------- many threads */

typedef struct producer {
    rig *r;
    pthread_t thread;
    uint32_t index;
    int rc;
    uint64_t payload[EACH];
} producer;

static producer producers[MAX_THREADS];

/* Commands alone and in runs, a few fetches in between, and at the end a quiet. */
static void *produce(void *arg)
{
    producer *p = arg;
    const uf_command_ring *ring = p->r->ring;
    uint64_t random = p->index + 7, position = 0, last = 0;
    for (uint32_t sent = 0; sent < EACH && !p->rc;) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = (random >> 40 & 3) ? 1 : 1 + (uint32_t)(random >> 33) % 32;
        n = n < EACH - sent ? n : EACH - sent;
        p->rc = uf_command_reserve(ring, n, 0, &position);
        for (uint32_t i = 0; i < n && !p->rc; i++, sent++) {
            uint64_t name = (uint64_t)p->index << 32 | sent;
            p->payload[sent] = ~name;
            uf_command_payload_fence();
            uf_command c = {.op = UF_COMMAND_PUT_SIGNAL,
                            .atomic = UF_ATOMIC_SET,
                            .bytes = 8,
                            .local = (uint64_t)(uintptr_t)&p->payload[sent],
                            .remote = (uint64_t)(uintptr_t)&p->r->target[p->index],
                            .word = (uint64_t)(uintptr_t)&p->r->words[p->index],
                            .operand = name,
                            .compare = name};
            uf_command_write(ring, (position + i) & UF_COMMAND_POSITION_MASK, &c);
        }
    }
    uf_command quiet = {.op = UF_COMMAND_QUIET};
    if (!p->rc)
        p->rc = uf_command_reserve(ring, 1, 0, &last);
    if (!p->rc) {
        uf_command_write(ring, last, &quiet);
        p->rc = uf_command_wait(ring, &ring->report->remote, last, 0);
    }
    /* Quiet: the last of it is there. */
    if (!p->rc && (p->r->target[p->index] != ~((uint64_t)p->index << 32 | (EACH - 1)) ||
                   __atomic_load_n(&p->r->words[p->index], __ATOMIC_ACQUIRE) != ((uint64_t)p->index << 32 | (EACH - 1))))
        p->rc = 1;
    return NULL;
}

static void run_producers(int n, uint64_t first)
{
    static rig r;
    open_rig(&r, first);
    for (int i = 0; i < n; i++) {
        memset(&producers[i], 0, sizeof producers[i]);
        producers[i].r = &r;
        producers[i].index = (uint32_t)i;
        r.payload[i] = producers[i].payload;
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
    uf_command_counters c = {0};
    for (uint32_t turn = 0; c.commands < (uint64_t)n * (EACH + 1); turn++) {
        if (uf_engine_poll(r.engine) > 0)
            turn = 0;
        else
            uf_shared_pause(turn);
        uf_command_queue_counters(r.queue, &c);
    }
    for (int i = 0; i < n; i++)
        pthread_join(producers[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        assert_int_equal(producers[i].rc, 0);
        assert_int_equal(r.seen[i], EACH);
    }
    assert_int_equal(r.faults, 0);
    assert_int_equal(uf_command_queue_status(r.queue), UF_OK);
    assert_int_equal(uf_command_queue_idle(r.queue), UF_OK);
    close_rig(&r);
}

static void every_thread_finds_its_commands_done_once_and_in_order(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        run_producers(1, starts[s]);
        run_producers(2, starts[s]);
        run_producers(MAX_THREADS, starts[s]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_ring_refuses_and_changes_nothing),
        cmocka_unit_test(a_torn_writer_holds_up_its_own_ring_only),
        cmocka_unit_test(fetched_values_come_to_whom_they_belong),
        cmocka_unit_test(a_waiter_concludes_nothing_wrong_between_any_two_stores),
        cmocka_unit_test(no_slot_is_given_out_before_its_command_is_taken),
        cmocka_unit_test(a_wrong_command_is_told_and_loses_nothing_of_the_others),
        cmocka_unit_test(bytes_that_no_producer_wrote_are_an_error_of_their_position),
        cmocka_unit_test(the_end_of_the_world_ends_every_wait),
        cmocka_unit_test(bad_sizes_are_refused_with_their_bounds),
        cmocka_unit_test(a_large_copy_is_made_in_pieces_and_others_go_on),
        cmocka_unit_test(every_thread_finds_its_commands_done_once_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
