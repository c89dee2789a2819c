/* shuffle_wire.c - time and movement of the shuffle fabric: which step of which flight happens next, and what it does.
 *
 * The source is read when a piece is placed and not before, and again for a second placement, so whoever changes a source
 * too early corrupts data that a test then finds. Keys are looked up at each piece, as a device does for each packet. It must never place
 * a byte outside of a registration, whatever is asked. */
#include "support/shuffle_wire.h"
#include "unfence/unfence.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 */
uint64_t shuffle_random(uf_shuffle_wire *w)
{
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void shuffle_note(uf_shuffle_wire *w, const char *format, ...)
{
    if (w->violations++ == 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(w->first, sizeof w->first, format, args);
        va_end(args);
    }
}

shuffle_flow *shuffle_flow_of(uf_shuffle_wire *w, int from, int to, uint32_t rail)
{
    return &w->flows[((size_t)from * (size_t)w->knobs.n_pes + (size_t)to) * SHUFFLE_RAILS + rail];
}

/* ---------------------------------------------------------------- registrations */

uint64_t shuffle_key_of(const uf_mr *mr, uint32_t rail)
{
    return mr->number * SHUFFLE_RAILS + rail;
}

uint64_t shuffle_desc_of(const uf_mr *mr, uint32_t rail)
{
    return shuffle_key_of(mr, rail) + (UINT64_C(1) << 40); /* so that a key given as a descriptor is found out */
}

/* What rail i calls the first byte: rail 0 counts from 0, as most do, the others from somewhere else. */
uint64_t shuffle_base_of(const uf_mr *mr, uint32_t rail)
{
    return mr->virtual_address ? (uint64_t)(uintptr_t)mr->ptr : (uint64_t)rail << 44;
}

uf_mr *shuffle_mr_by_desc(const shuffle_port *port, uint32_t rail, uint64_t desc)
{
    uf_mr *mr = port->mrs;
    while (mr && shuffle_desc_of(mr, rail) != desc) {
        mr = mr->next;
    }
    return mr;
}

/* ---------------------------------------------------------------- the heap of events */

static bool earlier(const shuffle_event *a, const shuffle_event *b)
{
    return a->due != b->due ? a->due < b->due : a->tie < b->tie;
}

static void heap_push(uf_shuffle_wire *w, shuffle_event event)
{
    if (w->heap_used == w->heap_room) {
        uint32_t room = w->heap_room ? 2 * w->heap_room : 256;
        shuffle_event *more = realloc(w->heap, room * sizeof *more);
        if (!more) {
            w->out_of_memory = true;
            shuffle_note(w, "the test instrument is out of memory");
            return;
        }
        w->heap = more;
        w->heap_room = room;
    }
    uint32_t i = w->heap_used++;
    while (i > 0 && earlier(&event, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = event;
}

static shuffle_event heap_pop(uf_shuffle_wire *w)
{
    shuffle_event top = w->heap[0], last = w->heap[--w->heap_used];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < w->heap_used && earlier(&w->heap[child + 1], &w->heap[child])) {
            child++;
        }
        if (child >= w->heap_used || !earlier(&w->heap[child], &last)) {
            break;
        }
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static void schedule(uf_shuffle_wire *w, shuffle_flight *flight, shuffle_step step, uint32_t piece, uint64_t least)
{
    uint64_t wait = w->knobs.delay ? shuffle_random(w) % (w->knobs.delay + 1) : 0;
    flight->events++;
    heap_push(w, (shuffle_event){w->now + least + wait, shuffle_random(w), flight, (uint8_t)step, (uint8_t)piece});
}

/* ---------------------------------------------------------------- flights */

static void flow_append(shuffle_flow *flow, shuffle_flight *flight)
{
    flight->number = flow->posted++;
    if (flow->last) {
        flow->last->flow_next = flight;
    } else {
        flow->first = flight;
    }
    flow->last = flight;
}

static void flow_remove(uf_shuffle_wire *w, shuffle_flight *flight)
{
    shuffle_flow *flow = shuffle_flow_of(w, flight->from, flight->to, flight->wr.rail);
    shuffle_flight **at = &flow->first, *before = NULL;
    if (flight->delivered) {
        return;
    }
    w->counters.overtakes += flow->first != flight;
    while (*at != flight) {
        before = *at;
        at = &before->flow_next;
    }
    *at = flight->flow_next;
    if (flow->last == flight) {
        flow->last = before;
    }
    flight->delivered = true;
}

static void free_if_over(shuffle_flight *flight)
{
    if (flight->events == 0 && flight->delivered && flight->sent) {
        free(flight->copy);
        free(flight);
    }
}

/* True if `flight` would overtake one that is more than `span` before it. */
static bool held_by_span(uf_shuffle_wire *w, const shuffle_flight *flight)
{
    const shuffle_flow *flow = shuffle_flow_of(w, flight->from, flight->to, flight->wr.rail);
    return flow->first && flow->first->number < flight->number && flight->number - flow->first->number > w->knobs.span;
}

static bool writes(const shuffle_flight *flight)
{
    return flight->wr.verb == UF_VERB_WRITE || flight->wr.verb == UF_VERB_WRITE_IMM;
}

/* Does the sender's CQE wait for the bytes and the remote CQE? */
static bool completes_when_placed(const uf_shuffle_wire *w, const shuffle_flight *flight)
{
    switch (flight->wr.verb) {
    case UF_VERB_WRITE:
        return flight->wr.flags & UF_WR_PLACED;
    case UF_VERB_WRITE_IMM:
    case UF_VERB_SEND:
        return w->knobs.imm_placed;
    default:
        return true;
    }
}

static void fail(uf_shuffle_wire *w, shuffle_flight *flight, int status, const char *why)
{
    if (flight->status == UF_OK) {
        flight->status = status;
        snprintf(w->ports[flight->from].error, sizeof w->ports[flight->from].error,
                 "shuffle: WR from PE %d to PE %d on rail %u failed: %s", flight->from, flight->to, (unsigned)flight->wr.rail,
                 why);
        w->counters.errors++;
        w->counters.lost += flight->sent; /* completed when "transmitted": nobody will hear of it */
    }
}

/* Where the flight's bytes lie in this process, or NULL. */
static unsigned char *remote_at(const shuffle_port *port, const uf_wr *wr, const char **why)
{
    for (uf_mr *mr = port->mrs; mr; mr = mr->next) {
        if (shuffle_key_of(mr, wr->rail) != wr->remote_key || !mr->remote) {
            continue;
        }
        uint64_t offset = wr->remote - shuffle_base_of(mr, wr->rail);
        if (offset > mr->bytes || wr->bytes > mr->bytes - offset) {
            *why = "remote address out of the registration's range";
            return NULL;
        }
        return mr->ptr + offset;
    }
    *why = "remote key unknown or closed";
    return NULL;
}

/* Keys are handed out in order, so one that was never given shows as such, and so does that of another rail: these are bugs and not late WRs. */
static bool key_was_never_given(const uf_shuffle_wire *w, const uf_wr *wr)
{
    uint64_t number = wr->remote_key / SHUFFLE_RAILS;
    return number == 0 || number >= w->next_key || wr->remote_key % SHUFFLE_RAILS != wr->rail;
}

static void place(uf_shuffle_wire *w, shuffle_flight *flight, uint32_t piece)
{
    const shuffle_port *from = &w->ports[flight->from], *to = &w->ports[flight->to];
    uint64_t offset = flight->cuts[piece], bytes = flight->cuts[piece + 1] - offset;
    const char *why = NULL;
    unsigned char *remote = remote_at(to, &flight->wr, &why);
    if (!remote) {
        fail(w, flight, UF_EFABRIC, why);
        if (key_was_never_given(w, &flight->wr)) {
            shuffle_note(w, "PE %d to PE %d: key %llu was never given for rail %u", flight->from, flight->to,
                         (unsigned long long)flight->wr.remote_key, flight->wr.rail);
        }
        return;
    }
    if (!flight->copy && w->knobs.needs_desc && !shuffle_mr_by_desc(from, flight->wr.rail, flight->wr.local_desc)) {
        fail(w, flight, UF_EFABRIC, "the local registration was closed in flight");
        return;
    }
    unsigned char *local = flight->copy ? flight->copy : (unsigned char *)(uintptr_t)flight->wr.local;
    if (writes(flight)) {
        memcpy(remote + offset, local + offset, bytes);
    } else {
        memcpy(local + offset, remote + offset, bytes);
    }
    w->counters.pieces++;
}

static void cut(uf_shuffle_wire *w, shuffle_flight *flight)
{
    uint64_t bytes = flight->wr.verb == UF_VERB_SEND ? 0 : flight->wr.bytes;
    uint32_t most = w->knobs.pieces ? w->knobs.pieces : 1;
    most = most > SHUFFLE_PIECES ? SHUFFLE_PIECES : most;
    flight->n_pieces = bytes == 0 ? 0 : 1 + (uint32_t)(shuffle_random(w) % most);
    flight->cuts[0] = 0;
    for (uint32_t i = 1; i < flight->n_pieces; i++) { /* insertion sort of random byte offsets; equal ones give empty pieces */
        uint64_t at = shuffle_random(w) % (bytes + 1);
        uint32_t j = i;
        for (; j > 1 && flight->cuts[j - 1] > at; j--) {
            flight->cuts[j] = flight->cuts[j - 1];
        }
        flight->cuts[j] = at;
    }
    flight->cuts[flight->n_pieces] = bytes;
}

void shuffle_launch(uf_shuffle_wire *w, shuffle_flight *flight)
{
    shuffle_flow *flow = shuffle_flow_of(w, flight->from, flight->to, flight->wr.rail);
    if (flight->dropped) { /* its rail broke before the doorbell rang */
        free(flight->copy);
        free(flight);
        return;
    }
    flow_append(flow, flight);
    flight->doomed = flow->fail_next;
    flow->fail_next = false;
    cut(w, flight);
    for (uint32_t i = 0; i < flight->n_pieces; i++) {
        schedule(w, flight, SHUFFLE_PIECE, i, 0);
    }
    if (flight->n_pieces == 0) {
        schedule(w, flight, SHUFFLE_REMOTE, 0, 0);
    }
    if (!completes_when_placed(w, flight) && !flight->doomed) {
        schedule(w, flight, SHUFFLE_SENT, 0, 0);
    }
}

/* ---------------------------------------------------------------- completions */

void shuffle_cq_push(uf_shuffle_wire *w, shuffle_cq *cq, const uf_cqe *cqe)
{
    if (cq->used == cq->room) {
        uint32_t room = cq->room ? 2 * cq->room : 64;
        uf_cqe *more = malloc(room * sizeof *more);
        if (!more) {
            w->out_of_memory = true;
            shuffle_note(w, "the test instrument is out of memory");
            return;
        }
        for (uint32_t i = 0; i < cq->used; i++) {
            more[i] = cq->entries[(cq->head + i) % cq->room];
        }
        free(cq->entries);
        cq->entries = more;
        cq->room = room;
        cq->head = 0;
    }
    cq->entries[(cq->head + cq->used++) % cq->room] = *cqe;
}

static void deliver_imm(uf_shuffle_wire *w, shuffle_flight *flight)
{
    shuffle_port *to = &w->ports[flight->to];
    shuffle_cq *cq = &to->cq[flight->wr.rail];
    uf_cqe cqe = {.kind = UF_CQE_IMM,
                  .rail = flight->wr.rail,
                  .peer = (uint32_t)flight->from,
                  .imm = flight->wr.imm,
                  .bytes = flight->wr.bytes};
    if (cq->imms >= to->remote_cqes) {
        shuffle_note(w, "CQ overrun: %u immediates wait at PE %d, whose CQ was asked to hold %u; the next came from PE %d",
                     cq->imms, flight->to, to->remote_cqes, flight->from);
    }
    cq->imms++;
    shuffle_cq_push(w, cq, &cqe);
}

/* False: no receive is free and the message has to wait. */
static bool deliver_message(uf_shuffle_wire *w, shuffle_flight *flight)
{
    shuffle_port *to = &w->ports[flight->to];
    uf_cqe cqe = {.kind = UF_CQE_MESSAGE, .rail = flight->wr.rail, .peer = (uint32_t)flight->from};
    if (to->messages >= to->receives) {
        if (w->knobs.hold_messages) {
            w->counters.held_messages++;
            return false;
        }
        shuffle_note(w, "receives exhausted: %u messages wait at PE %d, which posted %u receives; the next came from PE %d",
                     to->messages, flight->to, to->receives, flight->from);
    }
    memcpy(cqe.message, flight->wr.message, sizeof cqe.message);
    to->messages++;
    shuffle_cq_push(w, &to->cq[flight->wr.rail], &cqe);
    return true;
}

static void complete(uf_shuffle_wire *w, shuffle_flight *flight)
{
    shuffle_port *from = &w->ports[flight->from];
    if (flight->sent) {
        return;
    }
    flight->sent = true;
    if (flight->dropped) {
        return;
    }
    if ((flight->wr.flags & UF_WR_SILENT) && flight->status == UF_OK) {
        from->tx_used[flight->wr.rail]--;
        return;
    }
    uf_cqe cqe = {.kind = UF_CQE_SENT,
                  .rail = flight->wr.rail,
                  .status = flight->status,
                  .peer = (uint32_t)flight->to,
                  .cookie = flight->wr.cookie,
                  .bytes = flight->wr.bytes};
    shuffle_cq_push(w, &from->cq[flight->wr.rail], &cqe);
}

/* ---------------------------------------------------------------- steps */

/* The target is out of reach, or the flight was doomed: it ends with an error, perhaps with half of its bytes placed. */
static bool cut_short(uf_shuffle_wire *w, shuffle_flight *flight)
{
    const shuffle_port *to = &w->ports[flight->to];
    if (!flight->dropped && flight->status == UF_OK) {
        if (to->dead || !to->fabric) {
            fail(w, flight, UF_EPEER, "the peer is gone");
        } else if (flight->doomed && flight->placed * 2 >= flight->n_pieces) {
            fail(w, flight, UF_EFABRIC, "failed on demand of the test");
        }
    }
    if (flight->dropped || flight->status != UF_OK) {
        flow_remove(w, flight);
        complete(w, flight);
        return true;
    }
    return false;
}

static void after_delivery(uf_shuffle_wire *w, shuffle_flight *flight)
{
    uint64_t last = 0;
    flow_remove(w, flight);
    if (flight->sent || !completes_when_placed(w, flight)) {
        return;
    }
    if (writes(flight) && !(flight->wr.flags & UF_WR_SILENT) && shuffle_random(w) % 1000 < w->knobs.duplicate) {
        for (uint32_t i = 0; i < flight->n_pieces; i++) {
            if (shuffle_random(w) % 2) {
                schedule(w, flight, SHUFFLE_AGAIN, i, 0);
                last = w->knobs.delay + 1;
            }
        }
    }
    schedule(w, flight, SHUFFLE_SENT, 0, last);
}

static void step_remote(uf_shuffle_wire *w, shuffle_flight *flight)
{
    if (flight->wr.verb == UF_VERB_WRITE_IMM) {
        deliver_imm(w, flight);
    } else if (flight->wr.verb == UF_VERB_SEND && !deliver_message(w, flight)) {
        schedule(w, flight, SHUFFLE_REMOTE, 0, 1);
        return;
    }
    after_delivery(w, flight);
}

static void step_piece(uf_shuffle_wire *w, shuffle_flight *flight, uint32_t piece)
{
    place(w, flight, piece);
    if (cut_short(w, flight)) {
        return;
    }
    if (++flight->placed == flight->n_pieces) {
        schedule(w, flight, SHUFFLE_REMOTE, 0, 0);
    }
}

/* A completion that does not wait for the bytes: the source is read now, for the application may change it from here on. */
static void step_sent(uf_shuffle_wire *w, shuffle_flight *flight)
{
    if (writes(flight) && !flight->delivered && !flight->copy && flight->wr.bytes > 0) {
        flight->copy = malloc(flight->wr.bytes);
        if (!flight->copy) {
            w->out_of_memory = true;
            shuffle_note(w, "the test instrument is out of memory");
            return;
        }
        memcpy(flight->copy, (const void *)(uintptr_t)flight->wr.local, flight->wr.bytes);
    }
    complete(w, flight);
}

static void take_step(uf_shuffle_wire *w, shuffle_event event)
{
    shuffle_flight *flight = event.flight;
    flight->events--;
    if (cut_short(w, flight)) {
        free_if_over(flight);
        return;
    }
    if (event.step <= SHUFFLE_REMOTE && held_by_span(w, flight)) {
        flight->events++;
        event.due = w->now + 1;
        heap_push(w, event);
        return;
    }
    w->trace =
        (w->trace ^ (event.step | (uint64_t)event.piece << 8 | (uint64_t)flight->from << 16 | (uint64_t)flight->to << 32)) *
        UINT64_C(0x100000001b3);
    w->trace = (w->trace ^ flight->number ^ w->now << 20) * UINT64_C(0x100000001b3);
    switch ((shuffle_step)event.step) {
    case SHUFFLE_PIECE:
        step_piece(w, flight, event.piece);
        break;
    case SHUFFLE_REMOTE:
        step_remote(w, flight);
        break;
    case SHUFFLE_AGAIN:
        w->counters.duplicates++;
        place(w, flight, event.piece);
        break;
    case SHUFFLE_SENT:
        step_sent(w, flight);
        break;
    }
    free_if_over(flight);
}

void shuffle_advance(uf_shuffle_wire *w)
{
    w->now++;
    shuffle_rails_step(w);
    while (w->heap_used > 0 && w->heap[0].due <= w->now) {
        take_step(w, heap_pop(w));
    }
}

void shuffle_drop_from(uf_shuffle_wire *w, int pe)
{
    for (uint32_t i = 0; i < w->heap_used; i++) {
        if (w->heap[i].flight->from == pe) {
            w->heap[i].flight->dropped = true;
        }
    }
    while (w->ports[pe].unrung) {
        shuffle_flight *flight = w->ports[pe].unrung;
        w->ports[pe].unrung = flight->ring_next;
        free(flight->copy);
        free(flight);
    }
}

void shuffle_free_flights(uf_shuffle_wire *w)
{
    while (w->heap_used > 0) {
        shuffle_flight *flight = heap_pop(w).flight;
        if (--flight->events == 0) {
            free(flight->copy);
            free(flight);
        }
    }
}
