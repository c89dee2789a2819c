/* command.c - serves device command queues: takes commands off the rings and gives them to the protocol, or does them here.
 *
 * It runs inside the engine's step, under the endpoint's lock, and is bounded: a batch of commands and a piece of a near copy from each
 * ring, starting with another ring each time. It must never wait: for a torn command, for room in the protocol, or for completions;
 * whatever cannot go on now is looked at again in the next step. It trusts nothing that a ring holds: every field is checked
 * here or by the world's `resolve`, and a wrong command costs an error and no more. No allocation, lock, system call or clock. */
#include "engine/queue_state.h"
#include <stdatomic.h>
#include <string.h>

enum {
    BATCH = 64,              /* commands of a ring in one turn */
    COPY_BYTES = 256 * 1024, /* copied for a ring in one turn: some 20 us */
};

/* What a command uses. */
enum { USES_DATA = 1, USES_SIGNAL = 2, USES_ATOMIC = 4 };
static const struct {
    const char *name;
    uint32_t uses;
    uint32_t flags; /* allowed */
} kinds[UF_COMMAND_OPS] = {
    [UF_COMMAND_NOP] = {"nop", 0, 0},
    [UF_COMMAND_PUT] = {"put", USES_DATA, 0},
    [UF_COMMAND_PUT_SIGNAL] = {"put_signal", USES_DATA | USES_SIGNAL,
                               UF_COMMAND_STRONG | UF_COMMAND_SETTLED | UF_COMMAND_INDEXED},
    [UF_COMMAND_SIGNAL] = {"signal", USES_SIGNAL, UF_COMMAND_STRONG | UF_COMMAND_SETTLED | UF_COMMAND_INDEXED},
    [UF_COMMAND_ATOMIC] = {"atomic", USES_ATOMIC, UF_COMMAND_NARROW},
    [UF_COMMAND_GET] = {"get", USES_DATA, 0},
    [UF_COMMAND_FENCE] = {"fence", 0, 0},
    [UF_COMMAND_FLUSH] = {"flush", 0, 0},
    [UF_COMMAND_QUIET] = {"quiet", 0, 0},
};

/* ---------------------------------------------------------------- telling */

static void tell(const uf_command_queue *q, uint64_t *word, uint64_t value)
{
    if (q->memory.store)
        q->memory.store(q->memory.arg, word, value);
    else
        uf_store_release64(word, value); /* pairs with the acquire loads of producers and waiters in command.h */
}

static void tell_counter(const uf_command_queue *q, uint64_t *word, uint64_t position)
{
    tell(q, word, (position & UF_COMMAND_POSITION_MASK) | q->trouble);
}

void uf_command_record(uf_command_queue *q, int code, uint64_t position)
{
    q->counters.errors++;
    if (q->status)
        return;
    snprintf(q->why, sizeof q->why, "PE %d, command queue %u, command %llu: %s", q->engine->pe, q->number,
             (unsigned long long)position, uf_error_message());
    q->status = code;
    q->trouble = UF_COMMAND_TROUBLE;
    tell(q, &q->report->position, position);
    tell(q, &q->report->status, (uint64_t)(uint32_t)code);
    /* Whoever waits reads one of these, and then the status. */
    tell_counter(q, &q->report->consumed, q->at);
    for (int i = 0; i < 2; i++)
        tell_counter(q, q->levels[i].word, q->levels[i].told);
}

static void tell_result(uf_command_queue *q, uint32_t result, uint64_t position, uint64_t value)
{
    tell(q, &q->results[result].value, value);
    tell(q, &q->results[result].tag, uf_command_tag(position));
}

void uf_command_fetched(uint64_t user, int status, uint64_t value)
{
    uf_command_fetch *f = (uf_command_fetch *)(uintptr_t)(user - 1);
    uf_command_queue *q = f->queue;
    f->busy = false;
    q->fetching--;
    if (q->detached)
        return;
    if (status == UF_OK)
        tell_result(q, (uint32_t)(f - q->fetches), f->position, value);
    else
        uf_command_record(q, status, f->position);
}

/* ---------------------------------------------------------------- checking */

static const char *const field_names[] = {
    [UF_COMMAND_BAD_OP] = "op is unknown",
    [UF_COMMAND_BAD_BYTES] = "bytes is 2^48 or more",
    [UF_COMMAND_BAD_POSITION] = "it names another position: a producer wrote where it had taken no slot",
    [UF_COMMAND_BAD_ABI] = "it was written by another version of command.h: build kernels and library from one version",
    [UF_COMMAND_BAD_SPARE] = "spare bits are set",
};

static int check_word(const uf_command *c, uint32_t width)
{
    if (!(c->flags & UF_COMMAND_INDEXED) && c->word % width)
        return uf_fail(UF_EINVAL, "%s: word 0x%llx is not aligned to its %u bytes", kinds[c->op].name,
                       (unsigned long long)c->word, width);
    return UF_OK;
}

static int check_atomic(const uf_command_queue *q, const uf_command *c)
{
    if (c->atomic > UF_ATOMIC_COMPARE_SWAP)
        return uf_fail(UF_EINVAL, "atomic: %u is no uf_atomic_op", c->atomic);
    if (c->atomic >= UF_ATOMIC_FETCH && c->result >= q->ring.n_results)
        return uf_fail(UF_ERANGE, "atomic: result is %u, but the queue has %u places for fetched values", c->result,
                       q->ring.n_results);
    if (c->atomic >= UF_ATOMIC_FETCH && q->fetches[c->result].busy)
        return uf_fail(UF_EINVAL, "atomic: result %u still waits for an earlier value: uf_command_claim gives free ones",
                       c->result);
    return check_word(c, c->flags & UF_COMMAND_NARROW ? 4 : 8);
}

/* Everything but where its memory is. */
static int check(const uf_command_queue *q, const uf_command *c)
{
    if (c->flags & ~kinds[c->op].flags)
        return uf_fail(UF_EINVAL, "%s: flags is 0x%x; it takes 0x%x", kinds[c->op].name, c->flags, kinds[c->op].flags);
    uint32_t uses = kinds[c->op].uses;
    if (!uses)
        return UF_OK;
    if (c->pe >= q->n_pes)
        return uf_fail(UF_ERANGE, "%s: there is no PE %u in a world of %u PEs", kinds[c->op].name, c->pe, q->n_pes);
    if (uses & USES_ATOMIC)
        return check_atomic(q, c);
    if (!(uses & USES_SIGNAL))
        return UF_OK;
    if (c->atomic > UF_ATOMIC_ADD)
        return uf_fail(UF_EINVAL, "%s: operation %u on the signal is neither SET nor ADD", kinds[c->op].name, c->atomic);
    return check_word(c, 8);
}

/* ---------------------------------------------------------------- completion */

/* The lane has something that a later FLUSH or QUIET must await. */
static inline void use_lane(uf_command_queue *q, uint32_t pe, uf_order_lane *lane)
{
    for (int i = 0; i < 2; i++) {
        uf_command_level *l = &q->levels[i];
        if (l->seen[pe] != l->generation) {
            l->seen[pe] = l->generation;
            l->used[l->n_used++] = lane;
        }
    }
}

static void reached(uf_command_queue *q, uf_command_level *l, uint64_t position)
{
    l->told = position + 1;
    tell_counter(q, l->word, l->told);
}

/* A FLUSH or QUIET: notes how far each lane used since the last one has come. UF_EAGAIN: as many are pending as may be. */
static int await_completion(uf_command_queue *q, uf_command_level *l)
{
    /* What was stored to near PEs by this thread comes before whatever the waiter tells anybody. */
    atomic_thread_fence(memory_order_seq_cst);
    if (l->n_used == 0) {
        if (l->count == 0)
            reached(q, l, q->at);
        else
            l->pending[(l->head + l->count - 1) % UF_COMMAND_PENDING].position = q->at;
        return UF_OK;
    }
    if (l->count == UF_COMMAND_PENDING)
        return UF_EAGAIN;
    uint32_t place = (l->head + l->count++) % UF_COMMAND_PENDING;
    uf_command_mark *marks = &l->marks[(size_t)place * q->n_pes];
    for (uint32_t i = 0; i < l->n_used; i++) {
        marks[i].lane = l->used[i];
        uf_order_mark_set(q->engine->order, l->used[i], l->remote, &marks[i].mark);
    }
    l->pending[place] = (uf_command_pending){q->at, l->n_used, 0};
    l->n_used = 0;
    l->generation++;
    return UF_OK;
}

/* Answers what is complete, in order: how many. */
static int complete(uf_command_queue *q, uf_command_level *l)
{
    int n = 0;
    for (; l->count && !q->ended; l->count--, n++) {
        uf_command_pending *p = &l->pending[l->head];
        const uf_command_mark *marks = &l->marks[(size_t)l->head * q->n_pes];
        for (; p->reached < p->n_marks; p->reached++) {
            int rc = uf_order_mark_test(q->engine->order, marks[p->reached].lane, &marks[p->reached].mark);
            if (rc == UF_EAGAIN)
                return n;
            if (rc) { /* a lane has ended: what was awaited will never be complete, and nobody is told that it is */
                uf_command_record(q, rc, p->position);
                q->ended = true;
                return n;
            }
        }
        reached(q, l, p->position);
        l->head = (l->head + 1) % UF_COMMAND_PENDING;
    }
    return n;
}

/* ---------------------------------------------------------------- doing */

static void await_fetch(uf_command_queue *q, const uf_command *c)
{
    uf_command_fetch *f = &q->fetches[c->result];
    f->position = q->at;
    f->busy = true;
    q->fetching++;
}

static bool is_fetch(const uf_command *c)
{
    return c->op == UF_COMMAND_ATOMIC && c->atomic >= UF_ATOMIC_FETCH;
}

static int submit(uf_command_queue *q, const uf_command *c, uf_command_way *way)
{
    bool fetch = is_fetch(c);
    if (fetch)
        way->op.user = (uint64_t)(uintptr_t)&q->fetches[c->result] + 1;
    int rc = uf_order_submit(q->engine->order, way->lane, &way->op);
    if (rc)
        return rc;
    if (fetch)
        await_fetch(q, c);
    use_lane(q, c->pe, way->lane);
    return UF_OK;
}

/* A near PE: the bytes, in pieces that fit the turn's budget, then the word. UF_EAGAIN: more next time. */
static int do_near(uf_command_queue *q, const uf_command *c, const uf_command_way *way, uint64_t *budget)
{
    if (way->op.bytes) {
        uint64_t left = way->op.bytes - q->copied, piece = left < *budget ? left : *budget;
        if (q->copied == 0 && piece == left)
            memmove(way->to, way->from, piece);
        else
            memcpy(way->to + q->copied, way->from + q->copied,
                   piece); /* overlapping ranges of this size: as uf_put's, undefined */
        q->copied += piece;
        *budget -= piece;
        if (piece < left)
            return UF_EAGAIN;
        q->copied = 0;
    }
    if (way->word) {
        uint64_t old = q->edges.apply(q->edges.arg, way->word, c->atomic, way->op.width, c->operand, c->compare);
        if (is_fetch(c))
            tell_result(q, c->result, q->at, old);
    }
    return UF_OK;
}

static inline void count(uf_command_queue *q, uint32_t op, const uf_command_way *way)
{
    uf_command_counters *n = &q->counters;
    n->puts += op <= UF_COMMAND_PUT_SIGNAL && way->op.bytes;
    n->gets += op == UF_COMMAND_GET;
    n->signals += op == UF_COMMAND_PUT_SIGNAL || op == UF_COMMAND_SIGNAL;
    n->atomics += op == UF_COMMAND_ATOMIC;
    n->bytes_network += way->lane ? way->op.bytes : 0;
    n->bytes_near += way->lane ? 0 : way->op.bytes;
}

static int move(uf_command_queue *q, const uf_command *c, uint64_t *budget)
{
    static const uint8_t order_kinds[UF_COMMAND_OPS] = {
        [UF_COMMAND_PUT] = UF_ORDER_PUT,       [UF_COMMAND_PUT_SIGNAL] = UF_ORDER_PUT_SIGNAL,
        [UF_COMMAND_SIGNAL] = UF_ORDER_SIGNAL, [UF_COMMAND_ATOMIC] = UF_ORDER_ATOMIC,
        [UF_COMMAND_GET] = UF_ORDER_GET,
    };
    uint32_t uses = kinds[c->op].uses;
    bool data = uses & USES_DATA && c->bytes;
    if (uses == USES_DATA && !data)
        return UF_OK;
    uf_command_way way = {.op = {.kind = uses & USES_SIGNAL && !data ? UF_ORDER_SIGNAL : order_kinds[c->op],
                                 .op = (uint8_t)c->atomic,
                                 .width = c->flags & UF_COMMAND_NARROW ? 4 : 8,
                                 .flags = (uint8_t)(c->flags & (UF_COMMAND_STRONG | UF_COMMAND_SETTLED)),
                                 .indexed = c->flags & UF_COMMAND_INDEXED,
                                 .more = true,
                                 .operand = c->operand,
                                 .compare = c->compare,
                                 .bytes = data ? c->bytes : 0}};
    int rc = q->edges.resolve(q->edges.arg, c, &way);
    if (!rc)
        rc = way.lane ? submit(q, c, &way) : do_near(q, c, &way, budget);
    if (!rc)
        count(q, c->op, &way);
    return rc;
}

/* One command: UF_OK done, UF_EAGAIN not now, or what is wrong with it. */
static int execute(uf_command_queue *q, const uf_command *c, uint64_t *budget)
{
    int rc = check(q, c);
    if (rc)
        return rc;
    switch (c->op) {
    case UF_COMMAND_NOP:
        return UF_OK;
    case UF_COMMAND_FENCE:
        /* Near PEs: a release fence orders the stores. Lanes look at the epoch when they are next used (rule 7). */
        atomic_thread_fence(memory_order_release);
        __atomic_fetch_add(&q->ctx->fence_epoch, 1, __ATOMIC_RELAXED);
        q->counters.fences++;
        return UF_OK;
    case UF_COMMAND_FLUSH:
        return await_completion(q, &q->levels[0]);
    case UF_COMMAND_QUIET:
        rc = await_completion(q, &q->levels[1]);
        q->counters.quiets += rc == UF_OK;
        return rc;
    default:
        return *budget ? move(q, c, budget) : UF_EAGAIN;
    }
}

/* ---------------------------------------------------------------- the turn */

static int next_command(uf_command_queue *q, uf_command *c)
{
    uint64_t words[UF_COMMAND_WORDS];
    if (!uf_command_peek(q->slots, q->ring.shift, q->at, words)) {
        q->counters.torn += !((words[0] ^ uf_command_lap(q->at, q->ring.shift)) & UF_COMMAND_LAP);
        return UF_EAGAIN;
    }
    int bad = uf_command_decode(words, q->at, c);
    return bad ? uf_fail(UF_EINVAL, "%s", field_names[bad]) : UF_OK;
}

static int consume(uf_command_queue *q)
{
    uint64_t budget = COPY_BYTES, first = q->at;
    uf_command c;
    for (int i = 0; i < BATCH; i++) {
        int rc = next_command(q, &c);
        if (rc == UF_EAGAIN)
            break;
        if (!rc && (rc = execute(q, &c, &budget)) == UF_EAGAIN) {
            q->counters.waits++;
            break;
        }
        if (rc)
            uf_command_record(q, rc, q->at);
        q->at = (q->at + 1) & UF_COMMAND_POSITION_MASK;
    }
    int n = (int)uf_command_distance(first, q->at);
    if (n) {
        q->counters.commands += (uint64_t)n;
        q->counters.batches++;
        tell_counter(q, &q->report->consumed, q->at);
    }
    return n + (budget < COPY_BYTES); /* a piece of a copy is progress */
}

static int serve(uf_command_queue *q)
{
    if (q->ended)
        return 0;
    int rc = q->edges.sound(q->edges.arg);
    if (rc) {
        q->status = 0; /* the end of the world is worth more than the error of a command */
        uf_command_record(q, rc, q->at);
        q->ended = true;
        return 1;
    }
    int n = complete(q, &q->levels[0]) + complete(q, &q->levels[1]);
    return q->engine->broken ? n : n + consume(q);
}

int uf_command_serve(uf_engine *e)
{
    uf_command_queue *q = e->queues;
    if (!q)
        return 0;
    e->queues = q->next; /* another begins next time */
    int n = 0;
    const uf_command_queue *first = q;
    do
        n += serve(q);
    while ((q = q->next) != first);
    return n;
}
