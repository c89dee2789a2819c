/* target.c - what a NIC does with a packet that arrives: refuse it, place it, and tell its software when all are there.
 *
 * B4 and B6 placement and completion, B9 reads, B10 receives that are missing, B11 and B12 errors that only the sender sees,
 * B14 queues that are gone, B18 effects at most once. */
#include "efa_model/internal.h"

static void add(uf_model *m, message *msg, uint64_t at, event_kind kind, uint32_t packet, uint64_t value, void *object)
{
    model_event event = {
        .kind = kind, .message = msg->self, .packet = packet, .attempt = msg->attempt, .value = value, .object = object};
    if (uf_model_event_add(m, at, &event))
        msg->refs++;
}

static model_qp *target_qp(const uf_model *m, const message *msg)
{
    model_qp *qp = uf_model_find_qp(m->nics[msg->target_nic], msg->qpn);
    return qp && !qp->failed ? qp : NULL;
}

static uint16_t reverse_ah(const uf_model *m, const message *msg)
{
    const uf_model_nic *nic = m->nics[msg->target_nic];
    uint32_t peer = msg->qp->nic->index;
    return peer < nic->n_reverse && nic->reverse[peer] ? (uint16_t)(nic->reverse[peer] - 1) : UF_EFA_AH_UNKNOWN;
}

static bool able(const uf_model_nic *nic, unsigned op)
{
    return op == UF_EFA_OP_READ ? nic->can_read : op == UF_EFA_OP_WRITE ? nic->can_write : true;
}

static bool takes_receive(const message *msg, const model_qp *qp)
{
    return msg->op == UF_EFA_OP_SEND || (msg->op == UF_EFA_OP_WRITE && msg->has_imm && !qp->o.unsolicited);
}

static void not_ready(uf_model *m, message *msg)
{
    m->stats.rnr++;
    msg->attempt++; /* what is still under way of this attempt is void */
    msg->refused = true;
    msg->rnr++;
    if (msg->qp->o.rnr_retry != 7 && msg->rnr > msg->qp->o.rnr_retry)
        uf_model_answer(m, msg, UF_EFA_REMOTE_RNR);
    else
        add(m, msg, m->now + uf_model_trip(m) + m->p.rnr_ns, EVENT_RNR, 0, 0, NULL);
}

static bool ready(uf_model *m, model_qp *qp)
{
    return uf_model_receives(m, qp) > 0 && !uf_model_chance(m, m->p.rnr_storm_ppm);
}

/* The target died before it could answer: the sender tries again until it gives up. */
static bool died(uf_model *m, message *msg)
{
    if (!m->nics[msg->target_nic]->dead)
        return false;
    add(m, msg, m->now + m->p.rto_ns, EVENT_RETRANSMIT, 0, 0, NULL);
    return true;
}

/* B11: 0, or the status. Unless the knob says otherwise nothing of a message that leaves the range is placed. */
static unsigned check_remote(const uf_model *m, const message *msg, const model_qp *qp, uint32_t packet)
{
    const model_mr *mr = uf_model_find_mr(m->nics[msg->target_nic], msg->rkey, true);
    uint32_t access = msg->op == UF_EFA_OP_READ ? UF_MODEL_REMOTE_READ : UF_MODEL_REMOTE_WRITE;
    uint64_t offset = 0, bytes = msg->bytes;
    if (bytes == 0)
        return 0; /* touches nothing: not looked at [I] */
    if (m->p.bad_key_places && msg->op == UF_EFA_OP_WRITE) {
        offset = (uint64_t)packet * m->p.mtu;
        bytes = uf_model_packet_bytes(m, msg, packet);
    }
    return mr && uf_model_mr_covers(mr, qp->o.pd, msg->remote + offset, bytes, access) ? 0 : UF_EFA_REMOTE_ADDRESS;
}

/* All bytes are there (or will be, where the completion may come early). */
static void complete(uf_model *m, message *msg)
{
    if (msg->responding) {
        model_qp *owner = target_qp(m, msg);
        if (owner)
            uf_model_count(m, owner, UF_MODEL_COUNT_REMOTE_READ, true, 0);
        uf_model_answer(m, msg, UF_EFA_OK);
    } else if (msg->has_imm) {
        model_qp *qp = target_qp(m, msg);
        if (qp && qp->o.unsolicited) /* B15: before or after the completion [I] */
            uf_model_count(m, qp, UF_MODEL_COUNT_REMOTE_WRITE, true, uf_model_random_below(m, 2 * m->p.cqe_ns));
        add(m, msg, m->now + m->p.cqe_ns, EVENT_DELIVER, 0, 0, NULL);
    } else {
        model_qp *qp = target_qp(m, msg);
        if (qp)
            uf_model_count(m, qp, UF_MODEL_COUNT_REMOTE_WRITE, true, uf_model_random_below(m, 2 * m->p.cqe_ns));
        uf_model_answer(m, msg, UF_EFA_OK);
    }
}

void uf_model_placed(uf_model *m, message *msg)
{
    if (++msg->placed == msg->packets && !msg->answered && !died(m, msg))
        complete(m, msg);
}

static void place(uf_model *m, message *msg, uint32_t packet)
{
    uint64_t seed = 0, bytes = uf_model_packet_bytes(m, msg, packet);
    unsigned status;
    if (bytes && !msg->responding && uf_model_chance(m, m->p.cqe_early_ppm) && uf_model_snapshot(m, msg)) {
        add(m, msg, m->now + m->p.cqe_ns + uf_model_random_below(m, m->p.latency_ns), EVENT_PLACE, packet, 0, msg);
        uf_model_placed(m, msg);
        return;
    }
    if (bytes && uf_model_chance(m, m->p.split_ppm)) {
        seed = uf_model_random(m);
        m->stats.splits++;
        status = uf_model_place(m, msg, packet, PLACE_FIRST, seed);
        if (!status) {
            add(m, msg, m->now + 1 + uf_model_random_below(m, m->p.split_ns), EVENT_PLACE, packet, seed, NULL);
            return;
        }
    } else {
        status = bytes ? uf_model_place(m, msg, packet, PLACE_ALL, 0) : 0;
    }
    if (status)
        uf_model_answer(m, msg, status);
    else
        uf_model_placed(m, msg);
}

static void arrive_send(uf_model *m, message *msg, model_qp *qp)
{
    if (!ready(m, qp)) {
        not_ready(m, msg);
        return;
    }
    msg->placed = 1;
    add(m, msg, m->now + m->p.cqe_ns, EVENT_DELIVER, 0, 0, NULL);
}

void uf_model_arrive(uf_model *m, message *msg, uint32_t packet)
{
    if (msg->answered || msg->refused || msg->qp->nic->dead)
        return;
    if (m->nics[msg->target_nic]->dead) {
        add(m, msg, m->now + m->p.rto_ns, EVENT_RETRANSMIT, packet, 0, NULL);
        return;
    }
    if (msg->seen[packet / 64] >> packet % 64 & 1)
        return;
    model_qp *qp = target_qp(m, msg);
    unsigned status = 0;
    if (!qp) { /* B14; also of a read that it had begun to answer */
        status = UF_EFA_REMOTE_QPN;
    } else if (msg->responding) {
        status = check_remote(m, msg, qp, packet);
    } else if (qp->o.qkey != msg->qkey) {
        if (!m->p.qkey_answers) { /* the sender hears nothing and tries again until it gives up */
            add(m, msg, m->now + m->p.rto_ns, EVENT_RETRANSMIT, packet, 0, NULL);
            return;
        }
        status = UF_EFA_REMOTE_QPN;
    } else if (!able(m->nics[msg->target_nic], msg->op)) {
        status = UF_EFA_FEATURE_MISMATCH;
    } else if (msg->op != UF_EFA_OP_SEND && reverse_ah(m, msg) == UF_EFA_AH_UNKNOWN) {
        status = UF_EFA_UNKNOWN_PEER;
    } else if (msg->op != UF_EFA_OP_SEND) {
        status = check_remote(m, msg, qp, packet);
    }
    if (status) {
        uf_model_answer(m, msg, status);
        return;
    }
    if (msg->op == UF_EFA_OP_READ && !msg->responding) {
        msg->responding = true;
        uf_model_send(m, msg);
        return;
    }
    if (!msg->responding && takes_receive(msg, qp) && !m->p.rnr_places && msg->op == UF_EFA_OP_WRITE && msg->placed == 0 &&
        !ready(m, qp)) {
        not_ready(m, msg);
        return;
    }
    msg->seen[packet / 64] |= (uint64_t)1 << packet % 64;
    if (msg->op == UF_EFA_OP_SEND)
        arrive_send(m, msg, qp);
    else
        place(m, msg, packet);
}

/* ---- Receives ---- */

typedef struct receive {
    uint32_t pieces;
    uint64_t bytes;
    uint16_t id;
    bool sound; /* first, last and keys are as they must be */
} receive;

/* The next receive of the queue, without taking it. */
static receive look_at_receive(uf_model *m, const model_qp *qp, uint32_t available)
{
    receive r = {.sound = true};
    for (uint32_t i = 0; i < available; i++) {
        uint64_t w = uf_load_relaxed64(qp->info.rq_ring + 2 * (size_t)((qp->rq_taken + i) & (qp->o.rq_depth - 1)) + 1);
        if (i == 0)
            r.id = (uint16_t)w;
        r.sound = r.sound && (w >> 62 & 1) == (i == 0) && (w >> 56 & 0x3f) == 0;
        r.bytes += (uint16_t)(w >> 16);
        r.pieces++;
        if (w >> 63)
            return r;
    }
    r.sound = false;
    (void)m;
    return r;
}

/* The bytes of a send into the pieces of a receive; 0 or the status of the receive. */
static unsigned scatter(uf_model *m, const model_qp *qp, const receive *r, const unsigned char *bytes, uint64_t n)
{
    for (uint32_t i = 0; i < r->pieces && n; i++) {
        const uint64_t *d = qp->info.rq_ring + 2 * (size_t)((qp->rq_taken + i) & (qp->o.rq_depth - 1));
        uint64_t address = uf_load_relaxed64(d), w = uf_load_relaxed64(d + 1), part = (uint16_t)(w >> 16);
        part = part < n ? part : n;
        const model_mr *mr = uf_model_find_mr(qp->nic, (uint32_t)(w >> 32) & UF_EFA_LKEY_MAX, false);
        if (!mr || !uf_model_mr_covers(mr, qp->o.pd, address, part, UF_MODEL_LOCAL))
            return UF_EFA_INVALID_LKEY;
        const span to = {(unsigned char *)(uintptr_t)address, mr->owner}, from = {(unsigned char *)(uintptr_t)bytes, 0};
        if (!uf_model_copy(m, to, from, part))
            return UF_EFA_REMOTE_ABORT;
        bytes += part;
        n -= part;
    }
    return 0;
}

/* Takes a receive for the message and fills its completion. 0, or the status for the sender. */
static unsigned take_receive(uf_model *m, message *msg, model_qp *qp, uf_efa_cqe *cqe)
{
    receive r = look_at_receive(m, qp, uf_model_receives(m, qp));
    cqe->id = r.id;
    unsigned status = r.sound ? 0 : UF_EFA_INVALID_LKEY;
    if (!status && msg->op == UF_EFA_OP_SEND) {
        if (msg->bytes > r.bytes)
            return UF_EFA_REMOTE_LENGTH; /* the receive stays: the target's software sees nothing */
        unsigned local = uf_model_gather(m, msg, m->scratch);
        if (local)
            return local;
        status = scatter(m, qp, &r, m->scratch, msg->bytes);
    }
    if (status)
        uf_model_trap_add(m, UF_MODEL_TRAP_RQ_MALFORMED, qp,
                          "receive %u has no first or last piece, or a local key that does not cover it", r.id);
    qp->rq_taken += r.pieces;
    cqe->status = (uint8_t)status;
    return status ? UF_EFA_REMOTE_STATUS : 0;
}

/* B6: completion, counter, then the answer. */
void uf_model_deliver(uf_model *m, message *msg)
{
    model_qp *qp = target_qp(m, msg);
    if (msg->answered || died(m, msg))
        return;
    if (!qp) {
        uf_model_answer(m, msg, UF_EFA_REMOTE_QPN);
        return;
    }
    uf_efa_cqe cqe = {.id = 0xffff,
                      .bytes = (uint32_t)msg->bytes,
                      .imm = msg->imm,
                      .ah = reverse_ah(m, msg),
                      .source = msg->qp->info.qpn,
                      .op = msg->op,
                      .has_imm = msg->has_imm};
    unsigned status = 0;
    if (takes_receive(msg, qp)) {
        if (uf_model_receives(m, qp) == 0) {
            not_ready(m, msg);
            return;
        }
        status = take_receive(m, msg, qp, &cqe);
    } else {
        cqe.unsolicited = 1;
    }
    if (!status || cqe.status) {
        uf_model_rx_cqe(m, qp, &cqe);
        if (!cqe.unsolicited)
            uf_model_count(m, qp, msg->op == UF_EFA_OP_SEND ? UF_MODEL_COUNT_RECV : UF_MODEL_COUNT_REMOTE_WRITE, !status,
                           uf_model_random_below(m, 2 * m->p.cqe_ns));
    }
    uf_model_answer(m, msg, status);
}
