/* shuffle_fabric.c - the table of fabric.h over the shuffle wire, its profiles, and what a test may do to it.
 *
 * Every function takes the wire's mutex and leaves movement to shuffle_wire.c. A second thread inside the same endpoint is
 * noted as a violation, since fabric.h promises a fabric one thread at a time. */
#include "support/shuffle_fabric.h"
#include "base/error.h"
#include "support/shuffle_wire.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS_MAGIC UINT32_C(0x73687566)

typedef struct shuffle {
    uf_fabric base;
    uf_shuffle_wire *wire;
    int pe;
    atomic_bool inside;
} shuffle;

typedef struct shuffle_address {
    uint32_t magic, pe, rail, n_pes;
} shuffle_address;

static shuffle *self_of(uf_fabric *f)
{
    return (shuffle *)f;
}

static shuffle_port *enter(shuffle *s)
{
    bool intruder = atomic_exchange(&s->inside, true);
    pthread_mutex_lock(&s->wire->lock);
    if (intruder) {
        shuffle_note(s->wire, "two threads inside the endpoint of PE %d at once", s->pe);
    }
    return &s->wire->ports[s->pe];
}

static void leave(shuffle *s)
{
    atomic_store(&s->inside, false);
    pthread_mutex_unlock(&s->wire->lock);
}

/* ---------------------------------------------------------------- life */

static uf_fabric_caps caps_of(const uf_shuffle_knobs *k, const uf_fabric_params *p)
{
    uf_fabric_caps c = {.fabric = "shuffle", .provider = "shuffle", .detail = "adversarial network of one process"};
    c.n_rails = p->n_rails && p->n_rails < k->n_rails ? p->n_rails : k->n_rails;
    c.imm_bits = k->imm_bits;
    c.imm_placed = k->imm_placed;
    c.write_placed = true;
    c.duplicates = k->duplicate > 0;
    c.needs_desc = k->needs_desc;
    c.virtual_address = k->virtual_address;
    c.max_message = k->max_message;
    c.inline_bytes = k->inline_bytes;
    c.tx_depth = k->tx_depth && k->tx_depth < p->tx_depth ? k->tx_depth : p->tx_depth;
    c.cq_depth = p->remote_cqes * c.n_rails;
    c.max_receives = p->receives * c.n_rails;
    c.address_bytes = sizeof(shuffle_address);
    return c;
}

static int shuffle_open(const uf_fabric_params *params, uf_fabric **out)
{
    uf_shuffle_wire *w = params->arg;
    if (!w || params->n_pes != w->knobs.n_pes || params->pe < 0 || params->pe >= params->n_pes) {
        return uf_fail(UF_EINVAL, "shuffle: PE %d of %d does not fit the wire it was given", params->pe, params->n_pes);
    }
    shuffle *s = calloc(1, sizeof *s);
    uint8_t *connected = calloc((size_t)w->knobs.n_rails * (size_t)w->knobs.n_pes, 1);
    uint8_t *health = calloc((size_t)w->knobs.n_rails * (size_t)w->knobs.n_pes, 1);
    if (!s || !connected || !health) {
        free(s);
        free(connected);
        free(health);
        return uf_fail(UF_ENOMEM, "shuffle: no memory for the endpoint of PE %d", params->pe);
    }
    s->base.ops = &uf_shuffle_fabric;
    s->base.caps = caps_of(&w->knobs, params);
    s->wire = w;
    s->pe = params->pe;
    shuffle_port *port = enter(s);
    if (port->fabric) {
        shuffle_note(w, "PE %d opened twice on one wire", params->pe);
    }
    free(port->connected);
    free(port->health);
    port->connected = connected;
    port->health = health;
    port->fabric = &s->base;
    port->dead = false;
    port->tx_depth = s->base.caps.tx_depth;
    port->receives = s->base.caps.max_receives;
    port->remote_cqes = s->base.caps.cq_depth;
    port->messages = 0;
    leave(s);
    *out = &s->base;
    return UF_OK;
}

static void shuffle_close(uf_fabric *f)
{
    shuffle *s = self_of(f);
    shuffle_port *port = enter(s);
    shuffle_drop_from(s->wire, s->pe);
    shuffle_rails_forget(s->wire, s->pe);
    while (port->mrs) {
        uf_mr *mr = port->mrs;
        port->mrs = mr->next;
        free(mr);
    }
    for (uint32_t rail = 0; rail < SHUFFLE_RAILS; rail++) {
        free(port->cq[rail].entries);
        port->cq[rail] = (shuffle_cq){0};
        port->tx_used[rail] = 0;
    }
    free(port->connected);
    free(port->health);
    port->connected = NULL;
    port->health = NULL;
    port->fabric = NULL;
    leave(s);
    free(s);
}

static int shuffle_get_address(uf_fabric *f, uint32_t rail, void *address)
{
    shuffle *s = self_of(f);
    shuffle_address a = {ADDRESS_MAGIC, (uint32_t)s->pe, rail, (uint32_t)s->wire->knobs.n_pes};
    memcpy(address, &a, sizeof a);
    return UF_OK;
}

static int shuffle_connect(uf_fabric *f, uint32_t rail, uint32_t peer, const void *address)
{
    shuffle *s = self_of(f);
    shuffle_address a;
    memcpy(&a, address, sizeof a);
    if (a.magic != ADDRESS_MAGIC || a.pe != peer || a.rail != rail || peer >= (uint32_t)s->wire->knobs.n_pes) {
        return uf_fail(UF_EINVAL, "shuffle: PE %d was given an address that is not rail %u of PE %u", s->pe, rail, peer);
    }
    shuffle_port *port = enter(s);
    port->connected[rail * (uint32_t)s->wire->knobs.n_pes + peer] = 1;
    leave(s);
    return UF_OK;
}

/* ---------------------------------------------------------------- registrations */

static int shuffle_mr_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **out)
{
    shuffle *s = self_of(f);
    uf_mr *mr = calloc(1, sizeof *mr);
    if (!mr) {
        return uf_fail(UF_ENOMEM, "shuffle: no memory for a registration");
    }
    shuffle_port *port = enter(s);
    *mr = (uf_mr){.next = port->mrs, .ptr = ptr, .bytes = bytes, .number = s->wire->next_key++, .remote = remote};
    mr->virtual_address = s->wire->knobs.virtual_address;
    port->mrs = mr;
    leave(s);
    *out = mr;
    return UF_OK;
}

static void shuffle_mr_close(uf_fabric *f, uf_mr *mr)
{
    shuffle *s = self_of(f);
    shuffle_port *port = enter(s);
    uf_mr **at = &port->mrs;
    while (*at && *at != mr) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = mr->next;
        free(mr);
    } else {
        shuffle_note(s->wire, "PE %d closed a registration that it does not have", s->pe);
    }
    leave(s);
}

static void shuffle_mr_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key)
{
    *key = (uf_fabric_key){shuffle_key_of(mr, rail), shuffle_base_of(mr, rail)};
}

static uint64_t shuffle_mr_desc(const uf_mr *mr, uint32_t rail)
{
    return shuffle_desc_of(mr, rail);
}

/* ---------------------------------------------------------------- post */

/* The sentence of what is wrong with the WR, or NULL. */
static const char *fault_of(const shuffle *s, const shuffle_port *port, const uf_wr *wr)
{
    const uf_shuffle_knobs *k = &s->wire->knobs;
    bool moves = wr->verb != UF_VERB_SEND && wr->bytes > 0;
    if (wr->verb > UF_VERB_SEND) {
        return "unknown verb";
    }
    if (wr->rail >= k->n_rails || wr->peer >= (uint32_t)k->n_pes) {
        return "rail or peer out of range";
    }
    if (!port->connected[wr->rail * (uint32_t)k->n_pes + wr->peer]) {
        return "the peer was never connected";
    }
    if (wr->verb == UF_VERB_WRITE_IMM && k->imm_bits == 0) {
        return "this fabric has no immediates";
    }
    if (moves && wr->bytes > k->max_message) {
        return "longer than max_message";
    }
    if ((wr->flags & UF_WR_SILENT) && (wr->verb == UF_VERB_READ || (moves && wr->bytes > k->inline_bytes))) {
        return "silent, but longer than inline_bytes";
    }
    if (moves && k->needs_desc && !(wr->flags & UF_WR_SILENT)) {
        const uf_mr *mr = shuffle_mr_by_desc(port, wr->rail, wr->local_desc);
        uint64_t offset = mr ? wr->local - (uint64_t)(uintptr_t)mr->ptr : 0;
        if (!mr || offset > mr->bytes || wr->bytes > mr->bytes - offset) {
            return "local buffer not covered by its descriptor";
        }
    }
    return NULL;
}

/* The target must know the sender, as EFA demands. */
static bool accepted_by_target(const shuffle *s, const uf_wr *wr)
{
    const shuffle_port *to = &s->wire->ports[wr->peer];
    return !to->connected || to->connected[wr->rail * (uint32_t)s->wire->knobs.n_pes + (uint32_t)s->pe];
}

static void ring_doorbell(uf_shuffle_wire *w, shuffle_port *port)
{
    while (port->unrung) {
        shuffle_flight *flight = port->unrung;
        port->unrung = flight->ring_next;
        shuffle_launch(w, flight);
    }
}

static int accept_wr(shuffle *s, shuffle_port *port, const uf_wr *wr)
{
    shuffle_flight *flight = calloc(1, sizeof *flight), **at = &port->unrung;
    bool silent_payload = (wr->flags & UF_WR_SILENT) && wr->verb != UF_VERB_SEND && wr->bytes > 0;
    if (flight && silent_payload) {
        flight->copy = malloc(wr->bytes);
    }
    if (!flight || (silent_payload && !flight->copy)) {
        free(flight);
        return uf_fail(UF_ENOMEM, "shuffle: no memory for a work request");
    }
    if (silent_payload) {
        memcpy(flight->copy, (const void *)(uintptr_t)wr->local, wr->bytes);
    }
    flight->wr = *wr;
    flight->from = s->pe;
    flight->to = (int)wr->peer;
    port->tx_used[wr->rail]++;
    s->wire->counters.posts++;
    while (*at) {
        at = &(*at)->ring_next;
    }
    *at = flight;
    if (!(wr->flags & UF_WR_MORE)) {
        ring_doorbell(s->wire, port);
    }
    return UF_OK;
}

static int post_locked(shuffle *s, shuffle_port *port, const uf_wr *wr)
{
    uf_shuffle_wire *w = s->wire;
    const char *fault = fault_of(s, port, wr);
    if (fault) {
        shuffle_note(w, "PE %d posted a bad WR (verb %u, peer %u, %llu bytes): %s", s->pe, wr->verb, wr->peer,
                     (unsigned long long)wr->bytes, fault);
        return uf_fail(UF_EFABRIC, "shuffle: PE %d posted a bad WR to PE %u: %s", s->pe, wr->peer, fault);
    }
    if (port->dead) {
        return UF_OK; /* a dead PE's WRs go nowhere */
    }
    uint8_t health = *shuffle_health_of(w, s->pe, wr->rail, wr->peer);
    if (health == SHUFFLE_CLOSED) {
        shuffle_note(w, "PE %d posted to PE %u on rail %u, which it was told is broken", s->pe, wr->peer, wr->rail);
        return UF_EAGAIN;
    }
    if (health != SHUFFLE_SOUND) {
        bool refuse = shuffle_random(w) % 2; /* else it is lost: no CQE comes */
        w->counters.severed += !refuse;
        return refuse ? UF_EAGAIN : UF_OK;
    }
    if (!accepted_by_target(s, wr)) {
        shuffle_note(w, "PE %d posted to PE %u, which was not connected to it yet", s->pe, wr->peer);
    }
    if (port->tx_used[wr->rail] >= port->tx_depth || shuffle_random(w) % 1000 < w->knobs.refuse) {
        w->counters.refused++;
        return UF_EAGAIN;
    }
    return accept_wr(s, port, wr);
}

static int shuffle_post(uf_fabric *f, const uf_wr *wr)
{
    shuffle *s = self_of(f);
    shuffle_port *port = enter(s);
    int rc = post_locked(s, port, wr);
    leave(s);
    return rc;
}

static void shuffle_flush(uf_fabric *f)
{
    shuffle *s = self_of(f);
    shuffle_port *port = enter(s);
    ring_doorbell(s->wire, port);
    leave(s);
}

/* ---------------------------------------------------------------- poll */

static void hear(uf_shuffle_wire *w, const shuffle_port *port, const uf_cqe *cqe)
{
    int pe = (int)(port - w->ports);
    for (uint32_t peer = 0; peer < (uint32_t)w->knobs.n_pes; peer++) {
        if (cqe->peer == peer || cqe->peer == UF_CQE_ALL_PEERS) {
            *shuffle_health_of(w, pe, cqe->rail, peer) = SHUFFLE_TOLD;
        }
    }
}

/* What the last poll told has been handled: from now on posts there break the rules. */
static void close_told(uf_shuffle_wire *w, shuffle_port *port)
{
    for (uint32_t i = 0; i < w->knobs.n_rails * (uint32_t)w->knobs.n_pes; i++) {
        if (port->health[i] == SHUFFLE_TOLD) {
            port->health[i] = SHUFFLE_CLOSED;
        }
    }
}

static int take(uf_shuffle_wire *w, shuffle_port *port, uint32_t rail, uf_cqe *cqes, int max)
{
    shuffle_cq *cq = &port->cq[rail];
    int n = 0;
    if (max > 1 && w->knobs.delay > 0) {
        max = 1 + (int)(shuffle_random(w) % (uint64_t)max); /* a poll may see only part of what is there */
    }
    while (n < max && cq->used > 0) {
        uf_cqe *cqe = &cqes[n++];
        *cqe = cq->entries[cq->head];
        cq->head = (cq->head + 1) % cq->room;
        cq->used--;
        cq->imms -= cqe->kind == UF_CQE_IMM;
        port->messages -= cqe->kind == UF_CQE_MESSAGE;
        port->tx_used[rail] -= cqe->kind == UF_CQE_SENT;
        if (cqe->kind == UF_CQE_RAIL) {
            hear(w, port, cqe);
        }
    }
    return n;
}

static int shuffle_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    shuffle *s = self_of(f);
    shuffle_port *port = enter(s);
    uf_shuffle_wire *w = s->wire;
    int n = 0;
    f->drained = 0;
    if (!port->dead) {
        close_told(w, port);
        shuffle_advance(w);
        uint32_t first = w->knobs.n_rails > 1 ? (uint32_t)(shuffle_random(w) % w->knobs.n_rails) : 0;
        for (uint32_t i = 0; i < w->knobs.n_rails && n < max; i++) {
            uint32_t rail = (first + i) % w->knobs.n_rails;
            n += take(w, port, rail, cqes + n, max - n);
            f->drained |= port->cq[rail].used == 0 ? 1u << rail : 0;
        }
    }
    leave(s);
    return n;
}

static const char *shuffle_error(uf_fabric *f)
{
    shuffle *s = self_of(f);
    return s->wire->ports[s->pe].error;
}

const struct uf_fabric_ops uf_shuffle_fabric = {
    .name = "shuffle",
    .open = shuffle_open,
    .close = shuffle_close,
    .address = shuffle_get_address,
    .connect = shuffle_connect,
    .mr_register = shuffle_mr_register,
    .mr_close = shuffle_mr_close,
    .mr_key = shuffle_mr_key,
    .mr_desc = shuffle_mr_desc,
    .post = shuffle_post,
    .flush = shuffle_flush,
    .poll = shuffle_poll,
    .error = shuffle_error,
};

/* ---------------------------------------------------------------- the wire, for tests */

const char *const uf_shuffle_profiles[] = {"fifo",        "reorder",  "bytes", "late",  "refuse", "duplicates",
                                           "transmitted", "messages", "tiny",  "rails", "chaos",  NULL};

static const uf_shuffle_knobs profile_knobs[] = {
    /* fifo */ {.imm_bits = 32, .imm_placed = true, .inline_bytes = 32},
    /* reorder */ {.imm_bits = 32, .imm_placed = true, .delay = 16, .span = UINT32_MAX, .pieces = 2, .needs_desc = true},
    /* bytes */
    {.imm_bits = 32, .imm_placed = true, .delay = 24, .span = UINT32_MAX, .pieces = 16, .virtual_address = true},
    /* late */ {.imm_bits = 32, .imm_placed = true, .delay = 200, .span = UINT32_MAX, .pieces = 4, .inline_bytes = 64},
    /* refuse */
    {.imm_bits = 32, .imm_placed = true, .delay = 16, .span = 8, .pieces = 2, .refuse = 333, .tx_depth = 24},
    /* duplicates */
    {.imm_bits = 32, .imm_placed = true, .delay = 24, .span = UINT32_MAX, .pieces = 4, .duplicate = 500},
    /* transmitted */ {.imm_bits = 32, .delay = 32, .span = UINT32_MAX, .pieces = 4, .needs_desc = true},
    /* messages */ {.imm_placed = true, .delay = 16, .span = UINT32_MAX, .pieces = 3, .virtual_address = true},
    /* tiny */
    {.imm_bits = 32,
     .imm_placed = true,
     .delay = 16,
     .span = 64,
     .pieces = 3,
     .max_message = 256,
     .tx_depth = 16,
     .inline_bytes = 8},
    /* rails */
    {.imm_bits = 32, .imm_placed = true, .delay = 16, .span = UINT32_MAX, .pieces = 2, .n_rails = 4, .max_message = 4096},
    /* chaos */
    {.imm_bits = 32,
     .imm_placed = true,
     .delay = 100,
     .span = UINT32_MAX,
     .pieces = 16,
     .n_rails = 2,
     .refuse = 200,
     .duplicate = 250,
     .needs_desc = true,
     .virtual_address = true,
     .max_message = 4096,
     .inline_bytes = 16,
     .tx_depth = 32,
     .hold_messages = true},
};

int uf_shuffle_profile(const char *name, uint64_t seed, int n_pes, uf_shuffle_knobs *knobs)
{
    for (size_t i = 0; uf_shuffle_profiles[i]; i++) {
        if (strcmp(uf_shuffle_profiles[i], name) == 0) {
            *knobs = profile_knobs[i];
            knobs->seed = seed;
            knobs->n_pes = n_pes;
            return UF_OK;
        }
    }
    return uf_fail(UF_EINVAL, "shuffle: no profile is called '%s'", name);
}

int uf_shuffle_create(const uf_shuffle_knobs *knobs, uf_shuffle_wire **out)
{
    uf_shuffle_wire *w = calloc(1, sizeof *w);
    size_t n = knobs->n_pes > 0 ? (size_t)knobs->n_pes : 0;
    if (w) {
        w->ports = calloc(n, sizeof *w->ports);
        w->flows = calloc(n * n * SHUFFLE_RAILS, sizeof *w->flows);
    }
    if (!w || !w->ports || !w->flows || n == 0 || knobs->n_rails > SHUFFLE_RAILS) {
        uf_shuffle_destroy(w);
        return uf_fail(UF_EINVAL, "shuffle: no memory, or %d PEs or %u rails are not possible", knobs->n_pes, knobs->n_rails);
    }
    w->knobs = *knobs;
    w->knobs.n_rails = knobs->n_rails ? knobs->n_rails : 1;
    w->knobs.max_message = knobs->max_message ? knobs->max_message : 1 << 20;
    w->random = knobs->seed;
    w->next_key = 1;
    if (w->knobs.n_rails == 1 || !w->knobs.imm_placed) {
        memset(w->knobs.breaks, 0, sizeof w->knobs.breaks); /* nothing could go on */
    }
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return UF_OK;
}

void uf_shuffle_destroy(uf_shuffle_wire *w)
{
    if (!w) {
        return;
    }
    if (w->ports && w->flows) {
        shuffle_free_flights(w);
        pthread_mutex_destroy(&w->lock);
    }
    free(w->heap);
    free(w->ports);
    free(w->flows);
    free(w);
}

void uf_shuffle_kill(uf_shuffle_wire *w, int pe)
{
    pthread_mutex_lock(&w->lock);
    w->ports[pe].dead = true;
    shuffle_drop_from(w, pe);
    pthread_mutex_unlock(&w->lock);
}

void uf_shuffle_fail_next(uf_shuffle_wire *w, int from, int to)
{
    pthread_mutex_lock(&w->lock);
    for (uint32_t rail = 0; rail < w->knobs.n_rails; rail++) {
        shuffle_flow_of(w, from, to, rail)->fail_next = true;
    }
    pthread_mutex_unlock(&w->lock);
}

void uf_shuffle_break_rail(uf_shuffle_wire *w, int pe, uint32_t rail)
{
    pthread_mutex_lock(&w->lock);
    shuffle_break(w, pe, rail);
    pthread_mutex_unlock(&w->lock);
}

void uf_shuffle_tick(uf_shuffle_wire *w, uint32_t ticks)
{
    pthread_mutex_lock(&w->lock);
    while (ticks-- > 0) {
        shuffle_advance(w);
    }
    pthread_mutex_unlock(&w->lock);
}

uint32_t uf_shuffle_violations(uf_shuffle_wire *w, char *first, size_t bytes)
{
    pthread_mutex_lock(&w->lock);
    uint32_t n = w->violations;
    snprintf(first, bytes, "%s", w->first);
    pthread_mutex_unlock(&w->lock);
    return n;
}

void uf_shuffle_counters_get(uf_shuffle_wire *w, uf_shuffle_counters *counters)
{
    pthread_mutex_lock(&w->lock);
    *counters = w->counters;
    pthread_mutex_unlock(&w->lock);
}

uint64_t uf_shuffle_trace(uf_shuffle_wire *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t trace = w->trace;
    pthread_mutex_unlock(&w->lock);
    return trace;
}
