/* message_ack.c - the put carries a sequence in its immediate, the signal is a message of 32 bytes with the same sequence, the peer releases in order
 * and acknowledges each by a message. Sequences in flight to a peer are bounded by the acknowledgements. */
#include "base/error.h"
#include "raw.h"
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 2048, PARTS = 2, ACK_COOKIE = 1 };

typedef struct channel {
    uint32_t sent, acked; /* sender */
    uint32_t cursor;      /* receiver: next to be released */
    uint32_t owed;        /* acknowledgements that found the queue full */
    unsigned char parts[SEQUENCES];
} channel;

typedef struct messages {
    ordering_list signals; /* one at most, when the queue had room for the put alone */
    channel *channels;     /* by PE */
} messages;

static int message_open(ordering_run *r)
{
    messages *m = r->state;
    m->channels = calloc(r->n_pes, sizeof *m->channels);
    if (!m->channels)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u channels", r->n_pes);
    int rc = ordering_raw_open(r);
    return rc ? rc : ordering_list_open(&m->signals, r);
}

static void message_close(ordering_run *r)
{
    messages *m = r->state;
    ordering_raw_close(r);
    ordering_list_close(&m->signals);
    free(m->channels);
}

static int post_signal(ordering_run *r, messages *m)
{
    int rc = UF_OK;
    while (m->signals.head < m->signals.tail && !rc) {
        uint64_t n = m->signals.puts[m->signals.head];
        rc = ordering_raw_message(r, 0, ordering_peer_of(r, n), ordering_cookie(n, true), ordering_slot_of(r, n));
        m->signals.head += rc == UF_OK;
    }
    return rc;
}

static int message_put(ordering_run *r, uint64_t n)
{
    messages *m = r->state;
    channel *c = &m->channels[ordering_peer_of(r, n)];
    int rc = post_signal(r, m);
    /* The receives of both sides are shared by all peers. */
    if (!rc && c->sent - c->acked >= SEQUENCES / r->o->peers)
        rc = UF_EAGAIN;
    rc = rc ? rc : ordering_raw_put(r, n, ordering_slot_of(r, n));
    if (rc)
        return rc;
    c->sent++;
    ordering_list_add(&m->signals, n);
    rc = post_signal(r, m);
    return rc == UF_EAGAIN ? UF_OK : rc;
}

static int message_step(ordering_run *r, uint32_t pe)
{
    messages *m = r->state;
    channel *c = &m->channels[pe];
    int rc = pe == 0 ? post_signal(r, m) : UF_OK;
    while (c->owed && !rc) {
        rc = ordering_raw_message(r, pe, 0, ACK_COOKIE, 0);
        c->owed -= rc == UF_OK;
    }
    return rc;
}

static int part_arrived(ordering_run *r, uint32_t pe, uint32_t sequence)
{
    channel *c = &((messages *)r->state)->channels[pe];
    int rc = UF_OK;
    if (sequence - c->cursor >= SEQUENCES)
        return uf_fail(UF_EINTERNAL, "ordering: sequence %u came to PE %u, which is at %u", sequence, pe, c->cursor);
    c->parts[sequence % SEQUENCES]++;
    r->result->receiver_work += sequence != c->cursor;
    while (c->parts[c->cursor % SEQUENCES] == PARTS && !rc) {
        c->parts[c->cursor % SEQUENCES] = 0;
        rc = ordering_saw(r, ordering_put_of(r, pe, c->cursor++));
        c->owed++;
    }
    return rc;
}

static int message_arrived(ordering_run *r, uint32_t pe, const uf_cqe *cqe)
{
    uint64_t value;
    if (pe == 0) {
        ((messages *)r->state)->channels[cqe->peer].acked++;
        return UF_OK;
    }
    memcpy(&value, cqe->message, sizeof value);
    return part_arrived(r, pe, cqe->kind == UF_CQE_IMM ? cqe->imm : (uint32_t)value);
}

const ordering_scheme ordering_message_ack = {
    .name = "message-ack",
    .text = "sequences, a signal message for each put, released in order, acknowledged each",
    .in_order = true,
    .state_bytes = sizeof(messages),
    .open = message_open,
    .close = message_close,
    .put = message_put,
    .turn = ordering_raw_turn,
    .arrived = message_arrived,
    .step = message_step,
};
