/* wqe.c - from a store on the bus to a message: rings, doorbells, in-order fetch and every check of an entry.
 *
 * B1 in-order fetch, B2 checks of an entry, B13 overruns, B17 no atomics; and the strict checks of rings and doorbells. */
#include "efa_model/internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- The bus: a write-combining buffer that keeps stores back until it is flushed, or as it likes ---- */

static void see_word(model_qp *qp, uint32_t i)
{
    wc_word w = qp->wc[i];
    qp->wc[i] = qp->wc[--qp->n_wc];
    uint32_t words = qp->o.wqe_bytes / 8;
    qp->ring[w.index] = w.value;
    qp->words_seen[w.index / words] |= 1u << w.index % words;
}

void uf_model_mmio_store64(void *arg, uint64_t *address, uint64_t value)
{
    model_qp *qp = arg;
    uf_model *m = qp->nic->model;
    uint64_t offset = (uintptr_t)address - (uintptr_t)qp->info.sq_ring;
    if (!qp->live || offset >= (uint64_t)qp->o.sq_depth * qp->o.wqe_bytes || offset % 8) {
        uf_model_trap_add(m, UF_MODEL_TRAP_STRAY_STORE, qp, "a store beside the ring, at its offset %lld", (long long)offset);
        return;
    }
    uint32_t index = (uint32_t)(offset / 8), words = qp->o.wqe_bytes / 8, bit = 1u << index % words;
    if (qp->words_stored[index / words] & bit)
        uf_model_trap_add(m, UF_MODEL_TRAP_OVERWRITE, qp,
                          "word %u of slot %u was stored again before the NIC had fetched the slot", index % words,
                          index / words);
    qp->words_stored[index / words] |= bit;
    if (qp->n_wc == UF_MODEL_WC_WORDS)
        see_word(qp, (uint32_t)uf_model_random_below(m, qp->n_wc));
    qp->wc[qp->n_wc++] = (wc_word){index, value};
    if (qp->wc_chance < 256) /* eight bits a store: whether one leaves, and which */
        qp->wc_chance = uf_model_random(m) | (uint64_t)1 << 63;
    if ((qp->wc_chance & 3) == 0)
        see_word(qp, (uint32_t)(qp->wc_chance >> 2 & 63) % qp->n_wc);
    qp->wc_chance >>= 8;
}

void uf_model_mmio_flush(void *arg)
{
    model_qp *qp = arg;
    while (qp->n_wc) /* in any order: nobody looks in between */
        see_word(qp, qp->n_wc - 1);
}

/* ---- Doorbells ---- */

static void doorbell(uf_model *m, model_qp *qp, uint32_t value)
{
    uint32_t n = m->p.doorbell_32 ? value - qp->rung : (uint16_t)(value - qp->rung);
    m->stats.doorbells++;
    if (qp->failed || qp->nic->dead) {
        if (qp->rung + n - qp->fetched > qp->o.sq_depth)
            return;
        qp->rung += n; /* flushed when fetched */
    } else if (n == 0 || n > 0x7fff) {
        uf_model_trap_add(m, UF_MODEL_TRAP_DOORBELL, qp, "the doorbell went from %u to %u, and it must move forward",
                          qp->rung & 0xffff, value);
        uf_model_qp_break(m, qp);
        return;
    } else if (qp->rung + n - qp->fetched > qp->o.sq_depth) {
        uf_model_trap_add(m, UF_MODEL_TRAP_SQ_OVERRUN, qp, "the doorbell covers %u entries not yet fetched, and the ring has %u",
                          qp->rung + n - qp->fetched, qp->o.sq_depth);
        uf_model_qp_break(m, qp);
        return;
    } else if (n > qp->info.max_batch) {
        uf_model_trap_add(m, UF_MODEL_TRAP_BATCH, qp, "%u entries since the last doorbell, and at most %u are allowed", n,
                          qp->info.max_batch);
        uf_model_qp_break(m, qp);
        return;
    } else {
        qp->rung += n;
    }
    model_event event = {
        .kind = EVENT_FETCH, .object = qp, .attempt = qp->generation, .message = UF_MODEL_NONE, .value = qp->rung};
    uf_model_event_add(m, m->now + m->p.fetch_ns, &event);
}

void uf_model_mmio_store32(void *arg, uint32_t *address, uint32_t value)
{
    model_qp *qp = arg;
    uf_model *m = qp->nic->model;
    if (!qp->live || address != qp->info.sq_doorbell) {
        uf_model_trap_add(m, UF_MODEL_TRAP_STRAY_STORE, qp, "a 32-bit store that is not to the doorbell");
        return;
    }
    uf_mmio_store32(address, value);
    doorbell(m, qp, value);
}

/* Plain queues: one look finds the last of several doorbells, so the batch rule cannot be checked, and is not. */
void uf_model_look_at_doorbells(uf_model *m)
{
    for (uint32_t i = 0; i < m->n_plain; i++) {
        model_qp *qp = m->plain[i];
        uint32_t value = uf_load_acquire32(qp->info.sq_doorbell); /* pairs with the poster's doorbell store */
        if (value == qp->bell)
            continue;
        qp->bell = value;
        uint32_t batch = qp->info.max_batch;
        qp->info.max_batch = qp->o.sq_depth;
        doorbell(m, qp, value);
        qp->info.max_batch = batch;
    }
}

/* ---- Fetch ---- */

typedef struct fetched {
    uint64_t w[UF_EFA_WIDE_WORDS];
    uint32_t words, op, length;
    bool is_inline, complete;
} fetched;

static void take_slot(model_qp *qp, uint32_t position, fetched *f)
{
    f->words = qp->o.wqe_bytes / 8;
    uint32_t slot = position & (qp->o.sq_depth - 1);
    uint64_t *ring = qp->ring + (size_t)slot * f->words;
    f->complete = true;
    for (uint32_t i = 0; i < f->words; i++) {
        f->w[i] = uf_load_relaxed64(ring + i);
        f->complete = f->complete && (!qp->o.plain || f->w[i] != qp->poison);
        uf_store_relaxed64(ring + i, qp->poison);
    }
    if (!qp->o.plain)
        f->complete = qp->words_seen[slot] == (1u << f->words) - 1;
    qp->words_seen[slot] = 0;
    qp->words_stored[slot] = 0;
    f->op = (uint32_t)(f->w[0] >> UF_EFA_W0_OP_SHIFT & 0xf);
    f->length = (uint32_t)(f->w[0] >> UF_EFA_W0_LENGTH_SHIFT);
    f->is_inline = f->w[0] >> UF_EFA_W0_INLINE_SHIFT & 1;
}

/* What is wrong with the bits of the entry, or NULL. */
static const char *malformed(const uf_model *m, const model_qp *qp, uint32_t position, const fetched *f)
{
    const uint64_t one =
        (uint64_t)1 << UF_EFA_W0_META_SHIFT | (uint64_t)1 << UF_EFA_W0_FIRST_SHIFT | (uint64_t)1 << UF_EFA_W0_LAST_SHIFT;
    const uint64_t zero = (uint64_t)1 << UF_EFA_W0_EXTENSION_SHIFT | (uint64_t)1 << 25 | (uint64_t)7 << 29;
    if ((f->w[0] >> UF_EFA_W0_PHASE_SHIFT & 1) != (position / qp->o.sq_depth & 1))
        return "its phase is that of another lap";
    if ((f->w[0] & one) != one)
        return "meta_desc, first and last must be 1";
    if ((f->w[0] & zero) || f->w[1] >> 50 || f->w[2] >> 32 || (f->w[3] & 0xffff) || (f->w[3] && !m->p.wide_ids))
        return "a reserved bit is set";
    uint32_t room = f->words == UF_EFA_WQE_WORDS ? UF_EFA_INLINE_BYTES : UF_EFA_WIDE_INLINE_BYTES;
    if (f->op == UF_EFA_OP_SEND) {
        if (f->is_inline ? f->length > room : f->length < 1 || f->length > UF_EFA_SEND_SGES)
            return "a send has 1 or 2 pieces, or as many inline bytes as the entry holds";
        for (uint32_t i = 0; !f->is_inline && i < f->length; i++)
            if (f->w[4 + 2 * i] >> 56)
                return "a local key has 24 bits";
    } else if (f->op <= UF_EFA_OP_WRITE) {
        if (f->op == UF_EFA_OP_READ && (f->is_inline || (f->w[0] >> UF_EFA_W0_IMM_SHIFT & 1)))
            return "a read has neither immediate nor inline bytes";
        if (f->is_inline ? f->words != UF_EFA_WIDE_WORDS || f->length > room : f->length != 1)
            return "an RDMA has one piece, or up to 80 inline bytes in an entry of 128";
        if (!f->is_inline && f->w[6] >> 56)
            return "a local key has 24 bits";
    }
    return NULL;
}

/* 0 or the status that refuses it: what is named exists, is ours, and is not too long. */
static unsigned check_work(const uf_model *m, model_qp *qp, const message *msg)
{
    uf_model_nic *nic = qp->nic;
    uint32_t access = msg->op == UF_EFA_OP_READ ? UF_MODEL_LOCAL : 0;
    uint64_t local = msg->is_inline ? msg->inline_bytes : 0;
    if ((msg->op == UF_EFA_OP_READ && !nic->can_read) || (msg->op == UF_EFA_OP_WRITE && !nic->can_write))
        return UF_EFA_UNSUPPORTED_OP;
    if (msg->target_nic == UF_MODEL_NONE)
        return UF_EFA_INVALID_AH;
    for (uint32_t i = 0; i < msg->n_sge; i++) {
        const model_mr *mr = uf_model_find_mr(nic, msg->sge[i].lkey, false);
        if (!mr || !uf_model_mr_covers(mr, qp->o.pd, msg->sge[i].addr, msg->sge[i].bytes, access))
            if (!(mr && msg->sge[i].bytes == 0 && mr->pd == qp->o.pd))
                return UF_EFA_INVALID_LKEY;
        local += msg->sge[i].bytes;
    }
    if (local != msg->bytes || msg->bytes > (msg->op == UF_EFA_OP_SEND ? m->p.mtu : m->p.max_rdma))
        return UF_EFA_LOCAL_LENGTH;
    return 0;
}

static void fill(uf_model *m, message *msg, model_qp *qp, const fetched *f)
{
    uf_model_nic *nic = qp->nic;
    uint32_t ah = (uint16_t)(f->w[1] >> UF_EFA_W1_AH_SHIFT);
    msg->qp = qp;
    msg->generation = qp->generation;
    msg->op = (uint8_t)f->op;
    msg->id = (f->w[0] & 0xffff) | f->w[3];
    msg->has_imm = f->w[0] >> UF_EFA_W0_IMM_SHIFT & 1;
    msg->wants_cqe = f->w[0] >> UF_EFA_W0_COMPLETION_SHIFT & 1;
    msg->imm = (uint32_t)f->w[1];
    msg->qkey = (uint32_t)f->w[2];
    msg->qpn = (uint16_t)(f->w[0] >> UF_EFA_W0_QPN_SHIFT);
    msg->ah = (uint16_t)ah;
    msg->target_nic = ah < nic->n_ahs && nic->ahs[ah] ? nic->ahs[ah] - 1 : UF_MODEL_NONE;
    msg->is_inline = f->is_inline;
    msg->inline_bytes = f->is_inline ? (uint16_t)f->length : 0;
    uint32_t data = 4;
    if (f->op == UF_EFA_OP_READ || f->op == UF_EFA_OP_WRITE) {
        msg->bytes = (uint32_t)f->w[4];
        msg->rkey = (uint32_t)(f->w[4] >> 32);
        msg->remote = f->w[5];
        data = 6;
    }
    if (f->is_inline) {
        memset(msg->inline_words, 0, sizeof(msg->inline_words));
        memcpy(msg->inline_words, f->w + data, (size_t)(f->length + 7) / 8 * 8);
    } else {
        msg->n_sge = (uint16_t)f->length;
        for (uint32_t i = 0; i < msg->n_sge; i++)
            msg->sge[i] =
                (uf_efa_sge){f->w[data + 2 * i + 1], (uint32_t)f->w[data + 2 * i], (uint32_t)(f->w[data + 2 * i] >> 32)};
    }
    if (f->op == UF_EFA_OP_SEND) {
        msg->bytes = msg->inline_bytes;
        for (uint32_t i = 0; i < msg->n_sge; i++)
            msg->bytes += msg->sge[i].bytes;
    }
    uint64_t packets = (msg->bytes + m->p.mtu - 1) / m->p.mtu;
    msg->packets = packets ? (uint32_t)packets : 1;
}

static bool make_seen(uf_model *m, message *msg)
{
    uint32_t words = (msg->packets + 63) / 64;
    if (words > msg->seen_words) {
        uint64_t *seen = uf_model_resize(m, msg->seen, words * sizeof(*seen));
        if (!seen)
            return false;
        msg->seen = seen;
        msg->seen_words = words;
    }
    memset(msg->seen, 0, words * sizeof(*msg->seen));
    return true;
}

/* ---- Fences (can_fence) ---- */

static bool fenced(const uf_model *m, const message *msg)
{
    return m->p.can_fence && msg->op == UF_EFA_OP_WRITE && msg->has_imm && msg->bytes == 0;
}

static void go(uf_model *m, message *msg)
{
    msg->started = true;
    msg->qp->under_way++;
    uf_model_send(m, msg);
}

static void hold(uf_model *m, model_qp *qp, message *msg)
{
    msg->refs++;
    msg->held_next = UF_MODEL_NONE;
    if (qp->held_head == UF_MODEL_NONE)
        qp->held_head = msg->self;
    else
        uf_model_message(m, qp->held_tail)->held_next = msg->self;
    qp->held_tail = msg->self;
}

void uf_model_held_go(uf_model *m, model_qp *qp)
{
    while (qp->held_head != UF_MODEL_NONE) {
        message *msg = uf_model_message(m, qp->held_head);
        if (!msg->done && (qp->failed || (qp->under_way && fenced(m, msg))))
            return;
        qp->held_head = msg->held_next;
        if (!msg->done)
            go(m, msg);
        uf_model_message_unref(m, msg);
    }
}

static void start(uf_model *m, model_qp *qp, const fetched *f)
{
    message *msg = f->op <= UF_EFA_OP_WRITE ? uf_model_message_new(m) : NULL;
    if (!msg) {
        unsigned why = f->op <= UF_EFA_OP_WRITE ? UF_EFA_QP_ERROR : UF_EFA_UNSUPPORTED_OP; /* B17: there are no others */
        uf_model_tx_cqe(m, qp, (f->w[0] & 0xffff) | f->w[3], f->op, why);
        return;
    }
    fill(m, msg, qp, f);
    unsigned status = check_work(m, qp, msg);
    if (!status && !make_seen(m, msg))
        status = UF_EFA_QP_ERROR;
    if (status) {
        uf_model_tx_cqe(m, qp, msg->id, msg->op, status);
        uf_model_message_unref(m, msg);
        return;
    }
    if (m->p.delay_every && qp->messages % m->p.delay_every == 0)
        msg->delay = m->p.delay_ns;
    qp->messages++;
    msg->previous = UF_MODEL_NONE;
    msg->next = qp->first;
    if (qp->first != UF_MODEL_NONE)
        uf_model_message(m, qp->first)->previous = msg->self;
    qp->first = msg->self;
    if (qp->held_head != UF_MODEL_NONE || (qp->under_way && fenced(m, msg)))
        hold(m, qp, msg);
    else
        go(m, msg);
}

void uf_model_fetch(uf_model *m, model_qp *qp, uint32_t upto)
{
    if (qp->nic->dead)
        return;
    for (; (int32_t)(upto - qp->fetched) > 0; qp->fetched++) {
        fetched f;
        take_slot(qp, qp->fetched, &f);
        uint64_t id = (f.w[0] & 0xffff) | (m->p.wide_ids ? f.w[3] & ~(uint64_t)0xffff : 0);
        m->stats.wqes++;
        if (qp->failed) {
            uf_model_tx_cqe(m, qp, id, f.op, UF_EFA_FLUSHED);
            continue;
        }
        const char *wrong = malformed(m, qp, qp->fetched, &f);
        if (!f.complete)
            uf_model_trap_add(m, UF_MODEL_TRAP_TORN, qp,
                              "entry %u was not complete when the doorbell covered it: words missing, or not flushed",
                              qp->fetched);
        else if (wrong)
            uf_model_trap_add(m, UF_MODEL_TRAP_MALFORMED, qp, "entry %u: %s", qp->fetched, wrong);
        if (wrong || !f.complete)
            uf_model_tx_cqe(m, qp, id, f.op, UF_EFA_QP_ERROR);
        else
            start(m, qp, &f);
    }
}

void uf_model_end_early(uf_model *m, message *msg, unsigned status)
{
    msg->orphan = !msg->qp->nic->dead && uf_model_snapshot(m, msg); /* a dead NIC's packets do nothing */
    uf_model_finish(m, msg, status);
}

void uf_model_qp_break(uf_model *m, model_qp *qp)
{
    if (qp->failed)
        return;
    qp->failed = true;
    while (qp->first != UF_MODEL_NONE) {
        uf_model_end_early(m, uf_model_message(m, qp->first), UF_EFA_FLUSHED);
    }
    if (qp->nic->dead)
        return;
    uf_model_fetch(m, qp, qp->rung); /* posted and not yet fetched */
    uf_efa_cqe cqe = {.status = UF_EFA_FLUSHED, .ah = UF_EFA_AH_UNKNOWN};
    for (uint32_t n = uf_model_receives(m, qp); n > 0; n--) {
        uint64_t w = uf_load_relaxed64(qp->info.rq_ring + 2 * (size_t)(qp->rq_taken++ & (qp->o.rq_depth - 1)) + 1);
        cqe.id = w & 0xffff;
        if (w >> 63) /* its last piece */
            uf_model_rx_cqe(m, qp, &cqe);
    }
}
