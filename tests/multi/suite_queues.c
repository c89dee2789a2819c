/* suite_queues.c - device command queues: what kernels issue keeps the promises of what hosts issue, whoever else is at it.
 *
 * A kernel's threads are played by producers that this PE steps in an order that its seed decides: they take slots, write commands word by word in
 * any order and stop in between, wait for completion and go on, through the very code that kernels run (engine/command.h). Beside them
 * the host issues operations of its own. What an operation is follows from (seed, stream, number), so the receiver knows what must be there:
 *   a strong signal, or a weak one after a fence, says that everything before it in its stream is;
 *   a weak SET with a put says that its own bytes are; after a quiet a get brings what was put; after a flush sources are scribbled over;
 *   and in the end everything is there exactly once. */
#include "multi/core_suite.h"
#include "world/queue.h"
#include <pthread.h>
#include <string.h>

enum {
    QUEUES = 2,
    PRODUCERS = 3,                    /* of a queue */
    STREAMS = QUEUES * PRODUCERS + 1, /* of a PE; the last one is the host's */
    MAX_PES = 8,                      /* so that every stream has its words */
    SLOT = 96,                        /* room of one operation's bytes */
    COUNTED = 2 * SUITE_SIGNALS / 4,  /* signals from here on: what weak adds count */
    RUN = 8,                          /* commands that a thread writes in one go */
    TOLD = 3 * SUITE_SIGNALS / 4,     /* from here on: up to where a stream was quiet */
    SET_BY_PUT = SUITE_SIGNALS / 4,   /* from here on: last weak SET of a stream; before: its strong signals */
};

typedef enum kind { PUT, ADD, WEAK_SET, STRONG, STRONG_PUT, FENCED, FETCH, GET_BACK, FLUSHED, KINDS } kind;

typedef struct op {
    kind kind;
    int pe;
    size_t bytes;
} op;

typedef struct producer {
    suite *s;
    int stream;
    uf_ctx *ctx;
    const uf_command_ring *ring; /* NULL: the host */
    uint64_t at, n;              /* operations begun, of all */
    enum { NEXT, RESERVE, WRITE, AWAIT_DONE, FINISHED } phase;
    uf_command commands[RUN];
    uint32_t n_commands, words;
    uint64_t position, images[RUN * UF_COMMAND_WORDS], permutation;
    uint32_t result;
    uint64_t fetched[MAX_PES]; /* how many from that PE */
    bool last_quiet;
} producer;

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t v = a * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xbf58476d1ce4e5b9u ^ (c + 1) * 0x94d049bb133111ebu;
    v = (v ^ v >> 31) * 0xd6e8feb86659fd93u;
    v = (v ^ v >> 29) * 0x9e3779b97f4a7c15u;
    return v ^ v >> 32;
}

/* Stream numbers of all PEs: pe * STREAMS + stream. */
static op op_of(const suite *s, int stream, uint64_t i)
{
    uint64_t h = mix(s->place.seed, (uint64_t)stream, i);
    return (op){(kind)(h % KINDS), (int)(h / 64 % (uint64_t)s->n), 1 + (size_t)(h / 4096 % SLOT)};
}

static bool carries(kind k)
{
    return k == PUT || k == ADD || k == WEAK_SET || k == STRONG_PUT || k == GET_BACK || k == FLUSHED;
}

static uint64_t salt_of(int stream, uint64_t i)
{
    return (uint64_t)stream * 100000 + i;
}

static uint64_t ops_of(const suite *s)
{
    return suite_scale(s, 150, 40);
}

static unsigned char *slot_of(const suite *s, int stream, uint64_t i)
{
    return s->data + ((size_t)stream * ops_of(s) + i) * SLOT;
}

/* Behind the slots of all streams: sources, and where gets bring things back. */
static unsigned char *source_of(const producer *p, uint64_t i)
{
    return slot_of(p->s, p->s->n * STREAMS + p->stream % STREAMS, i);
}

static unsigned char *back_of(const producer *p)
{
    return slot_of(p->s, (p->s->n + 1) * STREAMS + p->stream % STREAMS, 0);
}

/* ---------------------------------------------------------------- the receiver */

/* Operations of `stream` before `upto` to PE `at`: their bytes are there. */
static void judge_upto_of(suite *s, const suite *at, int stream, uint64_t from, uint64_t upto)
{
    for (uint64_t i = from; i < upto && !s->failed; i++) {
        op o = op_of(s, stream, i);
        if (o.pe == at->pe && carries(o.kind))
            VERIFY(s, slot_of(at, stream, i), o.bytes, salt_of(stream, i));
    }
}

static void judge_upto(suite *s, int stream, uint64_t from, uint64_t upto)
{
    judge_upto_of(s, s, stream, from, upto);
}

/* Weak adds of `stream` to this PE before operation `upto`. */
static uint64_t adds_before(const suite *s, int stream, uint64_t upto)
{
    uint64_t adds = 0;
    for (uint64_t i = 0; i < upto; i++) {
        op o = op_of(s, stream, i);
        adds += o.pe == s->pe && o.kind == ADD;
    }
    return adds;
}

static void judge(suite *s, uint64_t strong[], uint64_t weak[], uint64_t told[])
{
    for (int stream = 0; stream < s->n * STREAMS && !s->failed; stream++) {
        uint64_t now = uf_signal_fetch(&s->signals[stream]);
        if (now != strong[stream]) {
            CHECK(s, now > strong[stream] && now <= ops_of(s));
            judge_upto(s, stream, strong[stream], now);
            strong[stream] = now;
        }
        now = uf_signal_fetch(&s->signals[TOLD + stream]);
        if (now != told[stream]) {
            CHECK(s, now > told[stream] && now <= ops_of(s));
            judge_upto(s, stream, told[stream], now);
            CHECK(s, uf_signal_fetch(&s->signals[COUNTED + stream]) >= adds_before(s, stream, now));
            told[stream] = now;
        }
        now = uf_signal_fetch(&s->signals[SET_BY_PUT + stream]);
        if (now != weak[stream] && CHECK(s, now <= ops_of(s))) { /* weak signals have no order among each other */
            VERIFY(s, slot_of(s, stream, now - 1), op_of(s, stream, now - 1).bytes, salt_of(stream, now - 1));
            weak[stream] = now;
        }
    }
}

/* Everything of everybody is here, once. */
static void judge_end(suite *s)
{
    for (int stream = 0; stream < s->n * STREAMS && !s->failed; stream++) {
        uint64_t fetches = 0, strong = 0;
        judge_upto(s, stream, 0, ops_of(s));
        for (uint64_t i = 0; i < ops_of(s); i++) {
            op o = op_of(s, stream, i);
            fetches += o.pe == s->pe && o.kind == FETCH;
            if (o.pe == s->pe && (o.kind == STRONG || o.kind == STRONG_PUT || o.kind == FENCED))
                strong = i + 1;
        }
        CHECK_EQ(s, uf_signal_fetch(&s->signals[COUNTED + stream]), adds_before(s, stream, ops_of(s)));
        CHECK_EQ(s, uf_signal_fetch(&s->words[stream]), fetches);
        CHECK_EQ(s, uf_signal_fetch(&s->signals[stream]), strong);
    }
}

/* ---------------------------------------------------------------- the host as an initiator */

static void host_op(producer *p, uint64_t i, op o)
{
    suite *s = p->s;
    unsigned char *dst = slot_of(s, p->stream, i), *src = source_of(p, i);
    uint64_t *word = &s->signals[p->stream], old = 0;
    switch (o.kind) {
    case ADD:
        CHECK_OK(s, uf_put_signal_nbi(p->ctx, dst, src, o.bytes, &s->signals[COUNTED + p->stream], UF_SIGNAL_ADD, 1, o.pe, 0));
        break;
    case WEAK_SET:
        CHECK_OK(
            s, uf_put_signal_nbi(p->ctx, dst, src, o.bytes, &s->signals[SET_BY_PUT + p->stream], UF_SIGNAL_SET, i + 1, o.pe, 0));
        break;
    case STRONG:
        CHECK_OK(s, uf_signal(p->ctx, word, UF_SIGNAL_SET, i + 1, o.pe, UF_STRONG));
        break;
    case STRONG_PUT:
        CHECK_OK(s, uf_put_signal_nbi(p->ctx, dst, src, o.bytes, word, UF_SIGNAL_SET, i + 1, o.pe, UF_STRONG));
        break;
    case FENCED:
        CHECK_OK(s, uf_fence(p->ctx));
        CHECK_OK(s, uf_signal(p->ctx, word, UF_SIGNAL_SET, i + 1, o.pe, UF_WEAK));
        break;
    case FETCH:
        CHECK_OK(s, uf_atomic(p->ctx, UF_ATOMIC_FETCH_ADD, 8, &s->words[p->stream], 1, 0, &old, o.pe));
        CHECK_EQ(s, old, p->fetched[o.pe]);
        p->fetched[o.pe]++;
        break;
    default:
        CHECK_OK(s, uf_put_nbi(p->ctx, dst, src, o.bytes, o.pe));
    }
}

static void step_host(producer *p)
{
    suite *s = p->s;
    if (p->at == p->n) {
        CHECK_OK(s, uf_quiet(p->ctx));
        p->phase = FINISHED;
        return;
    }
    op o = op_of(s, p->stream, p->at);
    suite_fill(source_of(p, p->at), o.bytes, salt_of(p->stream, p->at));
    host_op(p, p->at, o);
    p->at++;
}

/* ---------------------------------------------------------------- a kernel's thread as an initiator */

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void append(producer *p, const uf_command *c)
{
    p->commands[p->n_commands++] = *c;
}

/* Appends operation i, with what must go before or after it; true if the thread waits for it before it goes on. */
static bool compose(producer *p, uint64_t i)
{
    suite *s = p->s;
    op o = op_of(s, p->stream, i);
    uf_command c = {.op = UF_COMMAND_PUT, .pe = (uint32_t)o.pe, .operand = i + 1};
    const uf_command fence = {.op = UF_COMMAND_FENCE}, flush = {.op = UF_COMMAND_FLUSH}, quiet = {.op = UF_COMMAND_QUIET};
    if (carries(o.kind)) {
        c.bytes = o.bytes;
        c.local = address(source_of(p, i));
        c.remote = address(slot_of(s, p->stream, i));
        suite_fill(source_of(p, i), o.bytes, salt_of(p->stream, i));
    }
    c.word = address(&s->signals[p->stream]);
    switch (o.kind) {
    case ADD:
        c.op = UF_COMMAND_PUT_SIGNAL;
        c.atomic = UF_ATOMIC_ADD;
        c.operand = 1;
        c.word = address(&s->signals[COUNTED + p->stream]);
        break;
    case WEAK_SET:
        c.op = UF_COMMAND_PUT_SIGNAL;
        c.word = address(&s->signals[SET_BY_PUT + p->stream]);
        break;
    case STRONG:
    case STRONG_PUT:
        c.op = o.kind == STRONG ? UF_COMMAND_SIGNAL : UF_COMMAND_PUT_SIGNAL;
        c.flags = UF_COMMAND_STRONG;
        break;
    case FENCED:
        c.op = UF_COMMAND_SIGNAL;
        append(p, &fence);
        break;
    case FETCH:
        c.op = UF_COMMAND_ATOMIC;
        c.atomic = UF_ATOMIC_FETCH_ADD;
        c.word = address(&s->words[p->stream]);
        c.operand = 1;
        c.result = p->result;
        break;
    default:
        break;
    }
    append(p, &c);
    if (o.kind == GET_BACK)
        append(p, &quiet);
    if (o.kind == FLUSHED)
        append(p, &flush);
    return o.kind == GET_BACK || o.kind == FLUSHED || o.kind == FETCH;
}

/* The next things to reserve, a run of them; false: everything is done. */
static bool next_run(producer *p)
{
    const uf_command quiet = {.op = UF_COMMAND_QUIET};
    if (p->at == p->n && p->last_quiet)
        return false;
    p->phase = RESERVE;
    p->n_commands = 0;
    if (p->at == p->n) {
        p->last_quiet = true;
        append(p, &quiet);
        return true;
    }
    for (bool waits = false; p->at < p->n && !waits && p->n_commands + 2 <= RUN; p->at++) {
        if (op_of(p->s, p->stream, p->at).kind == FETCH && !uf_command_claim(p->ring, (uint32_t)p->stream, &p->result)) {
            if (p->n_commands == 0) /* the places are in use: later */
                p->phase = NEXT;
            return true;
        }
        waits = compose(p, p->at);
    }
    return true;
}

/* Some words of the commands, in an order of their own: every eleventh, or the like. */
static void write_some(producer *p)
{
    uint32_t all = p->n_commands * UF_COMMAND_WORDS;
    for (uint64_t n = 1 + suite_random(p->s, all); n > 0 && p->words < all; n--, p->words++) {
        uint64_t at = (p->words * p->permutation) % all;
        uint64_t position = (p->position + at / UF_COMMAND_WORDS) & UF_COMMAND_POSITION_MASK;
        uf_store_release64(uf_command_slot(p->ring, position) + at % UF_COMMAND_WORDS, p->images[at]);
    }
    if (p->words == all)
        p->phase = AWAIT_DONE;
}

static void reserve(producer *p)
{
    static const uint64_t coprime[] = {1, 11, 13, 17}; /* to any number of words up to RUN commands */
    if (!uf_command_try_reserve(p->ring, p->n_commands, &p->position))
        return;
    for (uint32_t i = 0; i < p->n_commands; i++) {
        CHECK(p->s, uf_command_misfit(&p->commands[i]) == 0);
        uf_command_encode(&p->commands[i], (p->position + i) & UF_COMMAND_POSITION_MASK, p->ring->shift,
                          p->images + (size_t)i * UF_COMMAND_WORDS);
    }
    p->words = 0;
    p->permutation = coprime[suite_random(p->s, 4)];
    p->phase = WRITE;
}

/* Where all PEs are fibers of one thread: what a quiet says is held against the targets' memory at that very moment. */
static const suite *everyone[MAX_PES];

static void look_at_targets(const producer *p)
{
    suite *s = p->s;
    for (int pe = 0; s->place.single_thread && pe < s->n && !s->failed; pe++) {
        CHECK_EQ(s, uf_signal_fetch(&everyone[pe]->signals[COUNTED + p->stream]), adds_before(everyone[pe], p->stream, p->at));
        judge_upto_of(s, everyone[pe], p->stream, 0, p->at);
    }
}

/* What a thread does that has waited: true if it has nothing more to wait for. */
static bool done_waiting(producer *p)
{
    suite *s = p->s;
    const uf_command *last = &p->commands[p->n_commands - 1];
    uint64_t position = (p->position + p->n_commands - 1) & UF_COMMAND_POSITION_MASK, value;
    int rc = 1;
    if (last->op == UF_COMMAND_QUIET)
        rc = uf_command_test(p->ring, &p->ring->report->remote, position);
    else if (last->op == UF_COMMAND_FLUSH)
        rc = uf_command_test(p->ring, &p->ring->report->local, position);
    else if (last->op == UF_COMMAND_ATOMIC && (rc = uf_command_fetch_test(p->ring, p->result, position, &value)) > 0) {
        CHECK_EQ(s, value, p->fetched[last->pe]);
        p->fetched[last->pe]++;
    }
    if (!CHECK(s, rc >= 0) || rc == 0)
        return false;
    uf_command *before = p->n_commands > 1 ? &p->commands[p->n_commands - 2] : NULL;
    if (last->op == UF_COMMAND_FLUSH) /* the source is ours again */
        memset((void *)(uintptr_t)before->local, 0xee, before->bytes);
    if (last->op != UF_COMMAND_QUIET)
        return true;
    look_at_targets(p);
    /* Over other lanes, which nothing orders after the queue's: the receivers hold us to it. */
    for (int pe = 0; pe < s->n; pe++)
        CHECK_OK(s, uf_signal(s->ctx, &s->signals[TOLD + p->stream], UF_SIGNAL_SET, p->at, pe, UF_WEAK));
    if (before && before->op == UF_COMMAND_PUT) {
        /* What was put is there: a get brings it back, and another quiet says when. */
        memset(back_of(p), 0, SLOT);
        p->commands[0] = *before;
        p->commands[0].op = UF_COMMAND_GET;
        p->commands[0].local = address(back_of(p));
        p->commands[1] = *last;
        p->n_commands = 2;
        p->phase = RESERVE;
        return false;
    }
    if (before)
        VERIFY(s, back_of(p), before->bytes, salt_of(p->stream, p->at - 1));
    return true;
}

static void step(producer *p)
{
    if (!p->ring) {
        step_host(p);
        return;
    }
    switch (p->phase) {
    case NEXT:
        if (!next_run(p))
            p->phase = FINISHED;
        break;
    case RESERVE:
        reserve(p);
        break;
    case WRITE:
        write_some(p);
        break;
    case AWAIT_DONE:
        if (done_waiting(p))
            p->phase = NEXT;
        break;
    case FINISHED:
        break;
    }
}

/* ---------------------------------------------------------------- the play */

static bool open_queue(suite *s, uint64_t first, unsigned flags, uf_ctx **ctx, uf_queue **queue)
{
    uf_ctx_options c = {.size = sizeof c, .flags = flags, .window = suite_window(s, 8)};
    uf_queue_options q = {.size = sizeof q, .depth = 64, .n_results = 2, .first = first};
    return CHECK_OK(s, uf_ctx_create(s->world, &c, ctx)) && CHECK_OK(s, uf_queue_create(*ctx, &q, queue));
}

static bool all_finished(const producer *p)
{
    for (int i = 0; i < STREAMS; i++)
        if (p[i].phase != FINISHED)
            return false;
    return true;
}

static void play(suite *s, producer *players)
{
    uint64_t strong[MAX_PES * STREAMS] = {0}, weak[MAX_PES * STREAMS] = {0}, told[MAX_PES * STREAMS] = {0};
    while (!all_finished(players) && !s->failed) {
        producer *p = &players[suite_random(s, STREAMS)];
        if (p->phase != FINISHED)
            step(p);
        /* Seldom, so that much is in flight at once. */
        if (suite_random(s, 16) == 0)
            suite_yield(s);
        if (suite_random(s, 8) == 0)
            judge(s, strong, weak, told);
        if (uf_world_status(s->world)) /* another PE has failed */
            CHECK_OK(s, uf_world_status(s->world));
    }
}

static void queues_and_hosts_keep_every_promise(suite *s)
{
    static const uint64_t first[] = {0, 0xffffffff - 50, UF_COMMAND_POSITION_MASK - 50};
    uf_ctx *ctx[QUEUES] = {0};
    uf_queue *queue[QUEUES] = {0};
    producer players[STREAMS];
    if (s->n > MAX_PES)
        return;
    for (int i = 0; i < QUEUES && !s->failed; i++)
        open_queue(s, first[(s->place.seed + (uint64_t)i) % 3], i ? UF_ORDERED : 0, &ctx[i], &queue[i]);
    for (int i = 0; i < STREAMS; i++) {
        bool host = i == STREAMS - 1;
        players[i] = (producer){.s = s, .stream = s->pe * STREAMS + i, .ctx = s->ctx, .n = ops_of(s)};
        if (!host && queue[i % QUEUES]) {
            players[i].ctx = ctx[i % QUEUES];
            players[i].ring = uf_queue_ring(queue[i % QUEUES]);
        }
    }
    if (s->place.single_thread)
        everyone[s->pe] = s;
    suite_settle(s);
    play(s, players);
    for (int i = 0; i < QUEUES; i++) {
        if (queue[i])
            CHECK_OK(s, uf_queue_status(queue[i]));
        if (!s->failed && i == 0) /* all streams are quiet */
            CHECK_OK(s, uf_sync(s->all));
    }
    if (!s->failed)
        judge_end(s);
    if (!s->failed)
        CHECK_OK(s, uf_sync(s->all));
    for (int i = 0; i < QUEUES; i++) {
        if (queue[i])
            CHECK_CODE(s, uf_ctx_destroy(ctx[i]), UF_EINVAL, "queue");
        uf_queue_destroy(queue[i]);
        uf_ctx_destroy(ctx[i]);
    }
}

/* ---------------------------------------------------------------- errors */

static uint64_t push(suite *s, const uf_command_ring *ring, const uf_command *c)
{
    uint64_t position = 0;
    while (!uf_command_try_reserve(ring, 1, &position) && !s->failed)
        suite_yield(s);
    uf_command_write(ring, position, c);
    return position;
}

static int await(suite *s, const uf_command_ring *ring, uint64_t position)
{
    int rc;
    while ((rc = uf_command_test(ring, &ring->report->remote, position)) == 0 && !s->failed)
        suite_yield(s);
    return rc;
}

/* Each wrong address is told with its field, and the commands around it are done. */
static void wrong_addresses_are_told_and_lose_nothing(suite *s)
{
    unsigned char outside[16];
    const uint64_t data = address(s->data), end = data + s->room, word = address(&s->signals[7]), none = address(outside);
    const struct {
        uf_command c;
        const char *field;
    } wrong[] = {
        {{.op = UF_COMMAND_PUT, .bytes = 16, .local = none, .remote = data}, "local"},
        {{.op = UF_COMMAND_PUT, .bytes = 16, .local = data, .remote = none}, "remote"},
        {{.op = UF_COMMAND_PUT, .bytes = (uint64_t)1 << 47, .local = data, .remote = data}, "local"},
        {{.op = UF_COMMAND_GET, .bytes = 16, .local = data, .remote = 64}, "remote"},
        {{.op = UF_COMMAND_SIGNAL, .atomic = UF_ATOMIC_ADD, .word = (none + 7) & ~(uint64_t)7}, "word"},
        {{.op = UF_COMMAND_SIGNAL, .atomic = UF_ATOMIC_ADD, .word = 1 << 30, .flags = UF_COMMAND_INDEXED}, "word"},
        {{.op = UF_COMMAND_ATOMIC, .atomic = UF_ATOMIC_ADD, .word = 8}, "word"},
    };
    const uf_command quiet = {.op = UF_COMMAND_QUIET};
    (void)end;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong && !s->failed; i++) {
        uf_ctx *ctx = NULL;
        uf_queue *queue = NULL;
        if (!open_queue(s, 0, 0, &ctx, &queue))
            return;
        const uf_command_ring *ring = uf_queue_ring(queue);
        uf_command good = {
            .op = UF_COMMAND_SIGNAL, .atomic = UF_ATOMIC_ADD, .word = word, .operand = 1, .pe = (uint32_t)s->right};
        uf_command bad = wrong[i].c;
        bad.pe = (uint32_t)s->right;
        push(s, ring, &good);
        push(s, ring, &bad);
        push(s, ring, &good);
        CHECK(s, await(s, ring, push(s, ring, &quiet)) == UF_ERANGE);
        CHECK_CODE(s, uf_queue_status(queue), UF_ERANGE, wrong[i].field);
        AWAIT(s, &s->signals[7], 2 * (i + 1));
        CHECK_OK(s, uf_queue_destroy(queue));
        CHECK_OK(s, uf_ctx_destroy(ctx));
        suite_settle(s);
    }
}

/* In a world beside the suite's own, which ends in the middle. */
static void an_abort_ends_the_waits_of_queues(suite *s)
{
    uf_world *w;
    uf_ctx *ctx = NULL;
    uf_queue *queue = NULL;
    if (!suite_open_other(s, 0, &w))
        return;
    if (CHECK_OK(s, uf_ctx_create(w, NULL, &ctx)) && CHECK_OK(s, uf_queue_create(ctx, NULL, &queue))) {
        const uf_command_ring *ring = uf_queue_ring(queue);
        CHECK_OK(s, uf_sync(s->all)); /* in the world that lives: the other one may end while somebody is still in its sync */
        if (s->pe == 0)
            CHECK_OK(s, uf_world_abort(w, "to end the waits"));
        uint64_t never = (ring->local->reserved + 5) & UF_COMMAND_POSITION_MASK;
        int rc;
        while ((rc = uf_command_test(ring, &ring->report->remote, never)) == 0) {
            uf_world_status(w);
            uf_progress(w);
            suite_yield(s);
        }
        CHECK(s, rc == UF_EABORTED || rc == UF_EPEER);
        CHECK_CODE(s, uf_queue_status(queue), rc, "to end the waits");
    }
    suite_close_other(s, w);
}

static void a_queue_says_what_it_cannot_be(suite *s)
{
    uf_queue *queue = NULL;
    uf_queue_options o = {.size = sizeof o, .depth = 100};
    CHECK_CODE(s, uf_queue_create(s->ctx, &o, &queue), UF_EINVAL, "depth");
    o.depth = 32;
    CHECK_CODE(s, uf_queue_create(s->ctx, &o, &queue), UF_EINVAL, "slots");
    o = (uf_queue_options){.size = 4};
    CHECK_CODE(s, uf_queue_create(s->ctx, &o, &queue), UF_EINVAL, "size");
    CHECK_CODE(s, uf_queue_create(NULL, NULL, &queue), UF_EINVAL, "ctx");
    CHECK_OK(s, uf_queue_destroy(NULL));
}

/* ---------------------------------------------------------------- threads in place of a kernel's */

enum { THREADS = 4, THREAD_SLOT = 64 };

typedef struct thread {
    suite *s;
    const uf_command_ring *ring;
    pthread_t id;
    int index, rc;
    uint64_t n;
} thread;

/* Puts with strong signals, one after the other; a value that comes back now and then; a quiet at the end. */
static void *produce(void *arg)
{
    thread *t = arg;
    suite *s = t->s;
    const uf_command_ring *ring = t->ring;
    uint64_t position = 0, value = 0;
    unsigned char *source = s->data + s->room / 2 + (size_t)t->index * t->n * THREAD_SLOT;
    for (uint64_t i = 0; i < t->n && !t->rc; i++) {
        uf_command c = {.op = UF_COMMAND_PUT_SIGNAL,
                        .flags = UF_COMMAND_STRONG,
                        .pe = (uint32_t)s->right,
                        .bytes = THREAD_SLOT,
                        .local = address(source + i * THREAD_SLOT),
                        .remote = address(s->data + ((size_t)t->index * t->n + i) * THREAD_SLOT),
                        .word = address(&s->signals[t->index]),
                        .operand = i + 1};
        suite_fill(source + i * THREAD_SLOT, THREAD_SLOT, salt_of(t->index, i) + (uint64_t)s->pe);
        uf_command_payload_fence();
        if (!(t->rc = uf_command_reserve(ring, 1, 0, &position)))
            uf_command_write(ring, position, &c);
        if (i % 16 != 15 || t->rc)
            continue;
        uf_command f = {.op = UF_COMMAND_ATOMIC,
                        .atomic = UF_ATOMIC_FETCH_ADD,
                        .pe = (uint32_t)s->right,
                        .word = address(&s->words[t->index]),
                        .operand = 1};
        if (!uf_command_claim(ring, (uint32_t)t->index, &f.result)) /* two places for four threads */
            continue;
        if (!(t->rc = uf_command_reserve(ring, 1, 0, &position))) {
            uf_command_write(ring, position, &f);
            t->rc = uf_command_fetch_wait(ring, f.result, position, 0, &value);
        }
    }
    const uf_command quiet = {.op = UF_COMMAND_QUIET};
    if (!t->rc && !(t->rc = uf_command_reserve(ring, 1, 0, &position))) {
        uf_command_write(ring, position, &quiet);
        t->rc = uf_command_wait(ring, &ring->report->remote, position, 0);
    }
    return NULL;
}

static void threads_of_a_kernel_share_a_queue(suite *s)
{
    uf_ctx *ctx = NULL;
    uf_queue *queue = NULL;
    thread threads[THREADS];
    if (!open_queue(s, 0xffffffff - 20, 0, &ctx, &queue))
        return;
    uint64_t n = suite_scale(s, 1000, 100);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (thread){.s = s, .ring = uf_queue_ring(queue), .index = i, .n = n};
        CHECK(s, pthread_create(&threads[i].id, NULL, produce, &threads[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        /* The last signal of each stands for all before it. */
        if (AWAIT(s, &s->signals[i], n))
            for (uint64_t k = 0; k < n && !s->failed; k++)
                VERIFY(s, s->data + ((size_t)i * n + k) * THREAD_SLOT, THREAD_SLOT, salt_of(i, k) + (uint64_t)s->left);
    }
    /* Whoever waits moves the queue where no thread does: until all producers have what they wait for. */
    uf_command_counters c = {0};
    while (!s->failed && c.quiets < THREADS) {
        suite_yield(s);
        uf_queue_counters(queue, &c);
    }
    CHECK_OK(s, uf_barrier(s->all));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        CHECK_EQ(s, threads[i].rc, 0);
    }
    CHECK_OK(s, uf_queue_destroy(queue));
    CHECK_OK(s, uf_ctx_destroy(ctx));
}

const suite_test suite_queue_tests[] = {
    {"queues_and_hosts_keep_every_promise", queues_and_hosts_keep_every_promise, 1, 0},
    {"wrong_addresses_are_told_and_lose_nothing", wrong_addresses_are_told_and_lose_nothing, 1, 0},
    {"an_abort_ends_the_waits_of_queues", an_abort_ends_the_waits_of_queues, 1, SUITE_SELDOM},
    {"a_queue_says_what_it_cannot_be", a_queue_says_what_it_cannot_be, 1, SUITE_SELDOM},
    {"threads_of_a_kernel_share_a_queue", threads_of_a_kernel_share_a_queue, 1, SUITE_NEEDS_THREADS},
    {NULL, NULL, 0, 0},
};
