/* cq.c - what a NIC writes into its owner's memory: completions and counters.
 *
 * B6 and B8: the body of an entry first and the word with the phase last, as one release store. B13: there is no consumer
 * index in hardware, so an overrun loses an entry; the model knows the owner's position and tells. B15 counters. */
#include "efa_model/internal.h"

static void write_entry(uf_model *m, model_qp *qp, uf_model_cq *cq, uint64_t w[4])
{
    uint32_t depth = cq->o.entries, words = cq->o.entry_bytes / 8;
    if (cq->o.consumed && cq->written - uf_load_acquire32(cq->o.consumed) >= depth) { /* pairs with uf_efa_cq_advance */
        m->stats.cqes_lost++;
        uf_model_trap_add(m, UF_MODEL_TRAP_CQ_OVERRUN, qp, "a completion found all %u entries of its queue not consumed", depth);
        if (!m->p.cq_overwrites)
            return;
    }
    uint64_t *slot = cq->o.memory + (size_t)(cq->written & (depth - 1)) * words;
    if (!(cq->written / depth & 1))
        w[0] |= (uint64_t)1 << UF_EFA_CQE_PHASE_SHIFT;
    for (uint32_t i = 1; i < words; i++)
        uf_store_relaxed64(slot + i, w[i]);
    uf_store_release64(slot, w[0]); /* pairs with the acquire in uf_efa_cq_peek */
    cq->written++;
}

void uf_model_tx_cqe(uf_model *m, model_qp *qp, uint64_t id, unsigned op, unsigned status)
{
    uint64_t w[4];
    const uf_efa_cqe cqe = {
        .id = m->p.wide_ids ? id : id & 0xffff, .qpn = qp->info.qpn, .status = (uint8_t)status, .op = (uint8_t)op};
    uf_efa_encode_tx_cqe(w, &cqe);
    m->stats.tx_cqes++;
    write_entry(m, qp, qp->o.send_cq, w);
}

void uf_model_rx_cqe(uf_model *m, model_qp *qp, const uf_efa_cqe *cqe)
{
    uint64_t w[4];
    uf_efa_cqe c = *cqe;
    c.qpn = qp->info.qpn;
    c.phase = 0;
    uf_efa_encode_rx_cqe(w, &c);
    m->stats.rx_cqes++;
    write_entry(m, qp, qp->o.recv_cq, w);
}

void uf_model_count(uf_model *m, model_qp *qp, unsigned which, bool success, uint64_t delay)
{
    uf_model_counter *counter = qp->o.counters[which];
    if (!counter)
        return;
    model_event event = {.kind = EVENT_COUNT, .object = counter, .message = UF_MODEL_NONE, .value = success};
    uf_model_event_add(m, m->now + delay, &event);
}

void uf_model_counter_add(uf_model_counter *c, bool success)
{
    uint64_t value = ++c->counts[!success] & 0x7fffffff;
    if (c->words[!success])
        uf_store_release64(c->words[!success], value);
}

uint32_t uf_model_receives(uf_model *m, model_qp *qp)
{
    uint32_t posted = uf_load_acquire32(qp->info.rq_doorbell); /* pairs with uf_efa_rq_ring */
    qp->rq_seen += (uint16_t)(posted - qp->rq_seen);
    if (qp->rq_seen - qp->rq_taken > qp->o.rq_depth) {
        uf_model_trap_add(m, UF_MODEL_TRAP_RQ_OVERRUN, qp, "the doorbell covers %u receives, and the ring has %u",
                          qp->rq_seen - qp->rq_taken, qp->o.rq_depth);
        qp->rq_taken = qp->rq_seen - qp->o.rq_depth;
    }
    return qp->rq_seen - qp->rq_taken;
}
