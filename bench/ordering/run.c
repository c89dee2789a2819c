/* run.c - one scheme, once: the model, the loop that gives every PE its turns in virtual time, the check of payload, and the result.
 *
 * The loop is event-driven: time goes from one event of the model, or one end of a PE's work, to the next. A PE has a turn when it is free and has
 * something to do; the work of a turn is charged when it is over: its completions delay its signals' being seen, and all of it delays its next turn.
 * When nothing can happen any more, every put must have been seen: else a signal was lost, and the run fails. */
#include "base/error.h"
#include "ordering.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WORD = 8, LINE = 64, WHOLE = 16384 }; /* up to WHOLE bytes every word of a payload is checked, beyond one of each line */
#define ARENA_MAX ((size_t)1 << 28)          /* bytes of all puts together */
#define PUTS_MAX  65536u                     /* of a peer: words of the library */

/* ---------------------------------------------------------------- payload */

static uint64_t word_at(const ordering_run *r, uint64_t offset)
{
    return (r->salt + offset) * 0x9e3779b97f4a7c15u;
}

static void fill_source(ordering_run *r)
{
    for (uint64_t at = 0; at + WORD <= r->o->bytes; at += WORD) {
        uint64_t word = word_at(r, at);
        memcpy(r->arena + at, &word, WORD);
    }
}

static bool payload_there(const ordering_run *r, uint64_t n)
{
    const unsigned char *p = ordering_place_of(r, n);
    uint64_t step = r->o->bytes <= WHOLE ? WORD : LINE, wrong = 0;
    for (uint64_t at = 0; at + WORD <= r->o->bytes; at += step) {
        uint64_t word;
        memcpy(&word, p + at, WORD);
        wrong |= word ^ word_at(r, at);
    }
    return wrong == 0;
}

void ordering_worked(ordering_run *r, uint32_t pe)
{
    r->ports[pe].spent += r->o->costs.cqe_ns;
    r->result->receiver_work += pe != 0;
}

int ordering_saw(ordering_run *r, uint64_t n)
{
    const ordering_scheme *s = r->scheme;
    uint32_t pe = s->no_signals ? 0 : ordering_peer_of(r, n), slot;
    if (n >= r->o->puts || r->is_seen[n])
        return uf_fail(UF_EINTERNAL, "ordering: %s: the signal of put %llu of %u was seen %s", s->name, (unsigned long long)n,
                       r->o->puts, n >= r->o->puts ? "and there is no such put" : "twice");
    slot = ordering_slot_of(r, n);
    bool early = !payload_there(r, n);
    if (s->in_order && slot > 0)
        early = early || !r->is_seen[ordering_put_of(r, pe, slot - 1)];
    r->result->early += early;
    uint64_t now = r->now + r->ports[pe].spent;
    r->is_seen[n] = 1;
    r->seen++;
    r->latency[n] = (double)(now - r->issued_at[n]);
    return UF_OK;
}

/* ---------------------------------------------------------------- the loop */

static bool window_open(const ordering_run *r)
{
    return r->issued < r->o->puts && r->issued < r->ports[0].data_sent + r->o->inflight;
}

static bool has_work(const ordering_run *r, uint32_t pe)
{
    if (ordering_port_ready(&r->ports[pe]) || (r->scheme->ready && r->scheme->ready(r, pe)))
        return true;
    return pe == 0 && !r->refused && window_open(r);
}

static int start_puts(ordering_run *r)
{
    for (int i = 0; i < ORDERING_TURN && window_open(r); i++) {
        r->issued_at[r->issued] = r->now + r->ports[0].spent;
        int rc = r->scheme->put(r, r->issued);
        if (rc == UF_EAGAIN) {
            r->refused = true;
            return UF_OK;
        }
        if (rc)
            return rc;
        r->issued++;
    }
    return UF_OK;
}

static int turn(ordering_run *r, uint32_t pe)
{
    ordering_port *port = &r->ports[pe];
    uint64_t sent = port->sent, done = port->data_sent;
    port->spent = 0;
    int rc = r->scheme->turn(r, pe);
    if (pe == 0 && !rc) {
        while (done < port->data_sent)
            r->done_at[done++] = r->now + port->spent;
        if (port->sent != sent || port->spent)
            r->refused = false;
        rc = start_puts(r);
    }
    port->base.ops->flush(&port->base);
    port->free_at = r->now + port->spent;
    return rc;
}

/* When something happens next; `busy`: a PE's work ends then, and it may have more. */
static uint64_t next_time(const ordering_run *r, const bool *worked)
{
    uint64_t next = uf_model_next(r->model);
    for (uint32_t pe = 0; pe < r->n_pes; pe++) {
        uint64_t at = r->ports[pe].free_at;
        if ((worked[pe] || (at > r->now && has_work(r, pe))) && at < next)
            next = at;
    }
    return next;
}

static int stalled(const ordering_run *r)
{
    return uf_fail(
        UF_EINTERNAL,
        "ordering: %s stalled at %llu ns: %llu of %u puts started, %llu completed, %llu signals seen; nothing moves any more",
        r->scheme->name, (unsigned long long)r->now, (unsigned long long)r->issued, r->o->puts,
        (unsigned long long)r->ports[0].data_sent, (unsigned long long)r->seen);
}

/* A turn that spent time is followed by another, which may find nothing: what could not be posted is tried again then. */
static int loop(ordering_run *r, bool *worked)
{
    for (;;) {
        for (uint32_t pe = 0; pe < r->n_pes; pe++) {
            if (r->ports[pe].free_at > r->now || !(worked[pe] || has_work(r, pe)))
                continue;
            int rc = turn(r, pe);
            if (rc)
                return rc;
            worked[pe] = r->ports[pe].spent != 0;
        }
        uint64_t next = next_time(r, worked);
        if (next == UINT64_MAX)
            return r->seen == r->o->puts ? UF_OK : stalled(r);
        r->now = next > r->now ? next : r->now;
        uf_model_run(r->model, r->now);
    }
}

/* ---------------------------------------------------------------- a run's things */

static int choose_params(const ordering_run *r, uf_model_params *p)
{
    const ordering_options *o = r->o;
    if (o->params)
        *p = *o->params;
    else if (uf_model_profile(o->profile, p))
        return UF_EINVAL;
    uint64_t way = p->latency_ns + p->jitter_ns;
    if (o->rtt_ns) {
        p->jitter_ns = p->jitter_ns * (o->rtt_ns / 2) / way;
        p->latency_ns = o->rtt_ns / 2 - p->jitter_ns;
    }
    p->can_fence = r->scheme->fence;
    r->result->rtt_ns = 2 * (double)(p->latency_ns + p->jitter_ns);
    r->result->bandwidth = (double)p->gbps * 125e6;
    return UF_OK;
}

static int open_place(ordering_run *r)
{
    uf_model_params params;
    int rc = choose_params(r, &params);
    if (r->scheme->counters && !(r->remote_writes = calloc(r->n_ports, sizeof *r->remote_writes)))
        rc = uf_fail(UF_ENOMEM, "ordering: no memory for %u counters", r->n_ports);
    const uf_efa_model_place_options o = {
        .params = &params, .seed = r->o->seed, .n_pes = r->n_ports, .remote_writes = r->remote_writes};
    rc = rc ? rc : uf_efa_model_place_create(&o, &r->place);
    if (!rc)
        r->model = uf_efa_model_place_model(r->place);
    return rc;
}

static int make_memory(ordering_run *r)
{
    const ordering_options *o = r->o;
    r->chunk = (size_t)ordering_puts_to(r, 1) * o->bytes;
    void *arena = mmap(NULL, r->chunk * r->n_pes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    r->arena = arena == MAP_FAILED ? NULL : arena;
    r->ports = calloc(r->n_ports, sizeof *r->ports);
    r->issued_at = malloc(o->puts * sizeof *r->issued_at);
    r->done_at = malloc(o->puts * sizeof *r->done_at);
    r->is_seen = calloc(o->puts, 1);
    r->latency = malloc(o->puts * sizeof *r->latency);
    r->state = calloc(1, r->scheme->state_bytes + 1);
    if (!r->arena || !r->ports || !r->issued_at || !r->done_at || !r->is_seen || !r->latency || !r->state)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u puts of %llu bytes", o->puts, (unsigned long long)o->bytes);
    fill_source(r);
    return UF_OK;
}

static void free_memory(ordering_run *r)
{
    if (r->arena)
        munmap(r->arena, r->chunk * r->n_pes);
    free(r->ports);
    free(r->issued_at);
    free(r->done_at);
    free(r->is_seen);
    free(r->latency);
    free(r->state);
    free(r->remote_writes);
}

/* ---------------------------------------------------------------- the result */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first and last eighth are left out: the window fills, and empties. */
static void fill_result(ordering_run *r)
{
    ordering_result *result = r->result;
    uint64_t puts = r->o->puts, first = puts / 8, last = puts - 1 - puts / 8;
    double took = (double)(r->done_at[last] - r->done_at[first]);
    result->puts = puts;
    result->rate = took > 0 ? (double)(last - first) * (double)r->o->bytes * 1e9 / took : 0;
    result->model_events = uf_model_get_stats(r->model)->events;
    for (uint32_t i = 0; i < r->n_pes; i++) {
        const ordering_port *p = &r->ports[i];
        result->wrs += p->wrs;
        result->data_wrs += p->data_wrs;
        result->cqes += p->sent + p->arrived;
        result->remote_cqes += i ? p->arrived : 0;
        result->receiver_work += i ? p->wrs + p->sent + p->arrived : 0;
    }
    if (r->scheme->no_signals)
        return;
    memmove(r->latency, r->latency + first, (puts - first) * sizeof *r->latency);
    result->latency = r->latency;
    result->n_latency = puts - first;
    r->latency = NULL;
    qsort(result->latency, result->n_latency, sizeof *result->latency, by_value);
}

static int check_model(const ordering_run *r)
{
    const uf_model_stats *s = uf_model_get_stats(r->model);
    if (uf_model_traps(r->model))
        return uf_fail(UF_EINTERNAL, "ordering: %s: the model trapped: %s", r->scheme->name, uf_model_trap(r->model, 0));
    if (s->cqes_lost || s->out_of_memory)
        return uf_fail(UF_EINTERNAL, "ordering: %s: the model lost %llu completions, and was out of memory %llu times",
                       r->scheme->name, (unsigned long long)s->cqes_lost, (unsigned long long)s->out_of_memory);
    return UF_OK;
}

/* What opening cost is not the scheme's. */
static void reset_ports(ordering_run *r)
{
    for (uint32_t i = 0; i < r->n_ports; i++) {
        ordering_port *p = &r->ports[i];
        p->spent = p->wrs = p->data_wrs = p->sent = p->arrived = p->data_sent = 0;
        p->free_at = r->now;
        p->costs = r->o->costs;
    }
}

static int play(ordering_run *r)
{
    bool *worked = calloc(r->n_pes, sizeof *worked);
    if (!worked)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u PEs", r->n_pes);
    for (uint32_t i = 0; i < r->n_ports; i++)
        r->ports[i].place = r->place;
    int rc = r->scheme->open(r);
    if (!rc) {
        reset_ports(r);
        rc = loop(r, worked);
    }
    free(worked);
    rc = rc ? rc : check_model(r);
    if (!rc)
        fill_result(r);
    return rc;
}

int ordering_measure(const ordering_scheme *scheme, const ordering_options *options, ordering_result *result)
{
    char why[UF_ERROR_BYTES];
    if (!ordering_fits(options, why, sizeof why))
        return uf_fail(UF_EINVAL, "ordering: %s", why);
    *result = (ordering_result){0};
    ordering_run r = {
        .o = options, .scheme = scheme, .result = result, .n_pes = 1 + options->peers, .salt = options->seed << 32 | 1};
    r.n_ports = scheme->counters ? r.n_pes + options->peers : r.n_pes;
    int rc = make_memory(&r);
    rc = rc ? rc : open_place(&r);
    rc = rc ? rc : play(&r);
    snprintf(why, sizeof why, "%s", rc ? uf_error_message() : "");
    if (r.place) /* else nothing of the scheme is open */
        scheme->close(&r);
    uf_efa_model_place_destroy(r.place);
    free_memory(&r);
    return rc ? uf_error_set(rc, why) : UF_OK;
}

bool ordering_fits(const ordering_options *o, char *why, size_t bytes)
{
    why[0] = 0;
    if (o->peers == 0 || o->inflight == 0 || o->batch == 0 || o->puts < 16)
        snprintf(why, bytes, "peers, inflight and batch must be 1 or more, and puts 16 or more");
    else if (o->bytes < LINE || o->bytes % WORD)
        snprintf(why, bytes, "puts have %d bytes or more, a multiple of %d", LINE, WORD);
    else if (o->puts > PUTS_MAX)
        snprintf(why, bytes, "%u puts are more than %u", o->puts, PUTS_MAX);
    else if (o->puts < 2 * o->inflight || o->bytes * o->puts > ARENA_MAX)
        snprintf(why, bytes, "%u puts of %llu bytes in flight, twice, are more than %zu MiB", o->inflight,
                 (unsigned long long)o->bytes, ARENA_MAX >> 20);
    return why[0] == 0;
}

uint32_t ordering_puts(uint64_t bytes, uint32_t inflight, uint32_t wanted)
{
    uint64_t puts = wanted < 16 ? 16 : wanted, pays = (128u << 20) / bytes;
    puts = puts > pays ? pays : puts;
    puts = puts < 4 * (uint64_t)inflight ? 4 * (uint64_t)inflight : puts;
    puts = puts > ARENA_MAX / bytes ? ARENA_MAX / bytes : puts;
    puts = puts < 16 ? 16 : puts;
    return puts > PUTS_MAX ? PUTS_MAX : (uint32_t)puts;
}

double ordering_drain_formula(const ordering_result *result, uint64_t bytes)
{
    return (double)bytes / ((double)bytes / result->bandwidth + result->rtt_ns * 1e-9);
}
