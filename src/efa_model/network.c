/* network.c - packets between NICs, each on a path of its own: rates, delays, losses; and the sender's end of a message.
 *
 * B3 packets, B5 and B18 duplicates, B7 no order by accident, B8 the sender's completion after the answer, B10's retries,
 * B16 nothing common to two NICs. A NIC's wire takes packets of its messages in turn, one of each. */
#include "efa_model/internal.h"
#include <stdlib.h>
#include <string.h>

static uf_model_nic *transmitter(const uf_model *m, const message *msg)
{
    return msg->responding ? m->nics[msg->target_nic] : msg->qp->nic;
}

uint64_t uf_model_packet_bytes(const uf_model *m, const message *msg, uint32_t packet)
{
    if (msg->op == UF_EFA_OP_READ && !msg->responding)
        return 0; /* the request */
    uint64_t offset = (uint64_t)packet * m->p.mtu, left = msg->bytes - offset;
    return left < m->p.mtu ? left : m->p.mtu;
}

uint64_t uf_model_trip(uf_model *m)
{
    return m->p.latency_ns + uf_model_jitter(m);
}

static void add(uf_model *m, message *msg, uint64_t at, event_kind kind, uint32_t packet, uint64_t value)
{
    model_event event = {.kind = kind, .message = msg->self, .packet = packet, .attempt = msg->attempt, .value = value};
    if (uf_model_event_add(m, at, &event))
        msg->refs++;
}

/* The packet leaves at `depart`: it arrives, or its loss is noticed after the retransmission timeout. */
static void launch(uf_model *m, message *msg, uint32_t packet, uint64_t depart)
{
    uf_model_nic *nic = transmitter(m, msg);
    uint32_t path = (uint32_t)uf_model_random_below(m, m->p.paths);
    uint64_t at = depart + uf_model_trip(m) + msg->delay;
    m->stats.packets++;
    if (uf_model_chance(m, m->p.tail_ppm))
        at += m->p.tail_min_ns + uf_model_random_below(m, m->p.tail_max_ns - m->p.tail_min_ns);
    if (uf_model_chance(m, m->p.stall_ppm)) {
        m->stats.stalls++;
        nic->path_until[path] = depart + m->p.stall_ns;
    }
    if (nic->path_until[path] > depart)
        at += nic->path_until[path] - depart;
    if (uf_model_chance(m, m->p.drop_ppm)) {
        m->stats.drops++;
        add(m, msg, depart + m->p.rto_ns, EVENT_RETRANSMIT, packet, 0);
    } else {
        add(m, msg, at, EVENT_ARRIVE, packet, 0);
    }
}

/* Takes the wire for one packet. Its bytes take the wire's time. That a NIC prepares so many messages a second at most is a limit of its
 * own: it does so beside the wire, and a long message leaves it idle. */
static void send_packet(uf_model *m, uf_model_nic *nic, message *msg, uint32_t packet)
{
    uint64_t bytes = uf_model_packet_bytes(m, msg, packet);
    uint64_t cost = bytes * 8000 / m->p.gbps;
    uint64_t begin = m->now * 1000 > nic->free_ps ? m->now * 1000 : nic->free_ps;
    if (packet == 0 && !msg->responding) {
        uint64_t each = 1000000000000u / m->p.message_rate; /* one more may be prepared while the wire is taken */
        begin = begin + each > nic->prepared_ps ? begin : nic->prepared_ps - each;
        nic->prepared_ps = (begin > nic->prepared_ps ? begin : nic->prepared_ps) + each;
    }
    nic->free_ps = begin + cost;
    if (packet == 0 && !msg->responding && m->p.qp_message_rate) { /* a slow queue holds up itself and not the NIC */
        begin = begin > msg->qp->free_ps ? begin : msg->qp->free_ps;
        msg->qp->free_ps = begin + 1000000000000u / m->p.qp_message_rate;
    }
    m->stats.bytes += bytes;
    launch(m, msg, packet, (begin + cost) / 1000);
}

static uint32_t packets_to_send(const message *msg)
{
    return msg->op == UF_EFA_OP_READ && !msg->responding ? 1 : msg->packets;
}

static bool wait_for_wire(uf_model *m, uf_model_nic *nic, message *msg)
{
    if (nic->waiting_tail - nic->waiting_head > nic->waiting_mask) {
        uint32_t room = (nic->waiting_mask + 1) * 2, *waiting = uf_model_alloc(m, room, sizeof(*waiting));
        if (!waiting) {
            m->stats.out_of_memory++;
            return false;
        }
        for (uint32_t i = nic->waiting_head; i != nic->waiting_tail; i++)
            waiting[i & (room - 1)] = nic->waiting[i & nic->waiting_mask];
        uf_model_release(m, nic->waiting);
        nic->waiting = waiting;
        nic->waiting_mask = room - 1;
    }
    nic->waiting[nic->waiting_tail++ & nic->waiting_mask] = msg->self;
    return true;
}

static void wake_wire(uf_model *m, uf_model_nic *nic)
{
    if (nic->transmitting)
        return;
    model_event event = {.kind = EVENT_TRANSMIT, .object = nic, .message = UF_MODEL_NONE};
    nic->transmitting = uf_model_event_add(m, nic->free_ps / 1000, &event);
}

void uf_model_send(uf_model *m, message *msg)
{
    uf_model_nic *nic = transmitter(m, msg);
    msg->sent = 0;
    msg->placed = 0;
    msg->refused = false;
    memset(msg->seen, 0, (size_t)(msg->packets + 63) / 64 * sizeof(*msg->seen));
    if (packets_to_send(msg) == 1 && nic->waiting_head == nic->waiting_tail) {
        send_packet(m, nic, msg, 0); /* nobody waits: no event is needed to give it its place on the wire */
        msg->sent = 1;
        return;
    }
    if (wait_for_wire(m, nic, msg)) {
        msg->refs++;
        wake_wire(m, nic);
    }
}

void uf_model_transmit_next(uf_model *m, uf_model_nic *nic)
{
    nic->transmitting = false;
    if (nic->waiting_head == nic->waiting_tail)
        return;
    message *msg = uf_model_message(m, nic->waiting[nic->waiting_head++ & nic->waiting_mask]);
    bool keep = false;
    if (!msg->done && !msg->refused && transmitter(m, msg) == nic && msg->sent < packets_to_send(msg) && !nic->dead) {
        send_packet(m, nic, msg, msg->sent++);
        keep = msg->sent < packets_to_send(msg) && wait_for_wire(m, nic, msg);
    } else if (!msg->done && msg->responding && nic->dead) {
        add(m, msg, m->now + m->p.rto_ns, EVENT_RETRANSMIT, msg->sent, 0); /* the reader gives up in time */
    }
    if (!keep)
        uf_model_message_unref(m, msg);
    if (nic->waiting_head != nic->waiting_tail)
        wake_wire(m, nic);
}

void uf_model_retransmit(uf_model *m, message *msg, uint32_t packet)
{
    uf_model_nic *source = msg->qp->nic;
    if (source->dead)
        return;
    if (m->now - msg->born > m->p.unresponsive_ns) {
        bool heard = msg->target_nic < source->n_reverse && source->heard[msg->target_nic];
        uf_model_finish(m, msg, heard ? UF_EFA_UNRESPONSIVE : UF_EFA_UNREACHABLE);
        return;
    }
    m->stats.retransmits++;
    send_packet(m, transmitter(m, msg), msg, packet);
}

/* B5: some packet of the message is placed once more, before the sender is told unless the knob says otherwise. */
static uint64_t maybe_duplicate(uf_model *m, message *msg, uint64_t at, bool ack_lost)
{
    if (msg->op != UF_EFA_OP_WRITE || msg->bytes == 0 || m->p.duplicate_ppm == 0)
        return at;
    if (!ack_lost && !uf_model_chance(m, m->p.duplicate_ppm))
        return at;
    uint64_t again = m->now + uf_model_trip(m) + uf_model_random_below(m, m->p.rto_ns);
    if (m->p.duplicate_after_cqe)
        again += at - m->now;
    else
        at = at > again + m->p.latency_ns ? at : again + m->p.latency_ns;
    msg->late++;
    add(m, msg, again, EVENT_DUPLICATE, (uint32_t)uf_model_random_below(m, msg->packets), 0);
    return at;
}

void uf_model_answer(uf_model *m, message *msg, unsigned status)
{
    msg->answered = true;
    uint64_t at = m->now + m->p.ack_ns + uf_model_trip(m) + m->p.cqe_ns;
    bool lost = uf_model_chance(m, m->p.drop_ppm);
    if (lost) {
        m->stats.acks_lost++;
        at += m->p.rto_ns;
    }
    if (status == UF_EFA_OK)
        at = maybe_duplicate(m, msg, at, lost);
    add(m, msg, at, EVENT_ANSWER, 0, status);
}

void uf_model_finish(uf_model *m, message *msg, unsigned status)
{
    model_qp *qp = msg->qp;
    uf_model_nic *nic = qp->nic;
    static const uint8_t counts[] = {UF_MODEL_COUNT_SEND, UF_MODEL_COUNT_READ, UF_MODEL_COUNT_WRITE};
    msg->done = true;
    bool local =
        status == UF_EFA_FLUSHED || status == UF_EFA_INVALID_AH || status == UF_EFA_UNRESPONSIVE || status == UF_EFA_UNREACHABLE;
    if (!local && msg->target_nic < nic->n_reverse)
        nic->heard[msg->target_nic] = 1;
    if (msg->late && !nic->dead)
        uf_model_snapshot(m, msg); /* the source is the caller's again, and the network still has the bytes */
    if (msg->previous != UF_MODEL_NONE)
        uf_model_message(m, msg->previous)->next = msg->next;
    else
        qp->first = msg->next;
    if (msg->next != UF_MODEL_NONE)
        uf_model_message(m, msg->next)->previous = msg->previous;
    qp->under_way -= msg->started;
    if (nic->dead) { /* forgotten, and nobody is told */
        uf_model_message_unref(m, msg);
        return;
    }
    uf_model_count(m, qp, counts[msg->op], status == UF_EFA_OK, 0);
    if (status != UF_EFA_OK || msg->wants_cqe)
        uf_model_tx_cqe(m, qp, msg->id, msg->op, status);
    else
        m->stats.silent++;
    uf_model_message_unref(m, msg);
    uf_model_held_go(m, qp);
}
