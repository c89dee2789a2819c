/* qp.c - making and ending completion queues, counters and queue pairs.
 *
 * A queue pair's number is the lowest free one: it comes back as soon as it may, which is when stale completions hurt most.
 * Unless a queue is `plain`, the ring's addresses that the caller gets are mapped without any access: whoever reads the ring,
 * which on hardware is write-only memory behind a bus, crashes on the spot instead of working by luck. */
#include "base/error.h"
#include "efa_model/internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool power_of_two(uint32_t n)
{
    return n && (n & (n - 1)) == 0;
}

int uf_model_cq_create(uf_model_nic *nic, const uf_model_cq_options *o, uf_model_cq **cq)
{
    const uf_model_params *p = &nic->model->p;
    if (!power_of_two(o->entries) || o->entries > p->max_cq || (o->entry_bytes != 16 && o->entry_bytes != 32) || !o->memory)
        return uf_fail(
            UF_EINVAL,
            "EFA model: a completion queue needs memory, a power of two of entries up to %u (not %u), of 16 or 32 bytes.",
            p->max_cq, o->entries);
    if (nic->n_cqs == p->max_cqs)
        return uf_fail(UF_ENOMEM, "EFA model: NIC %u has its %u completion queues.", nic->index, nic->n_cqs);
    uf_model_cq *c = uf_model_alloc(nic->model, 1, sizeof(*c));
    if (!c)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for a completion queue.");
    c->nic = nic;
    c->o = *o;
    nic->n_cqs++;
    *cq = c;
    return UF_OK;
}

void uf_model_cq_destroy(uf_model_cq *cq)
{
    cq->nic->n_cqs--;
    uf_model_release(cq->nic->model, cq);
}

int uf_model_counter_create(uf_model_nic *nic, uint64_t *successes, uint64_t *errors, uf_model_counter **counter)
{
    if (nic->n_counters == nic->model->p.max_counters)
        return uf_fail(UF_ENOMEM, "EFA model: NIC %u has its %u counters.", nic->index, nic->n_counters);
    uf_model_counter *c = uf_model_alloc(nic->model, 1, sizeof(*c));
    if (!c)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for a counter.");
    *c = (uf_model_counter){.nic = nic, .words = {successes, errors}, .counts = {nic->model->p.counter_start, 0}};
    c->next = nic->model->counters;
    nic->model->counters = c;
    nic->n_counters++;
    *counter = c;
    return UF_OK;
}

void uf_model_counter_destroy(uf_model_counter *counter)
{
    counter->nic->n_counters--;
    counter->words[0] = counter->words[1] = NULL;
}

model_qp *uf_model_find_qp(uf_model_nic *nic, uint32_t qpn)
{
    return qpn < nic->n_qps && nic->qps[qpn]->live ? nic->qps[qpn] : NULL;
}

bool uf_model_qp_current(const model_qp *qp, uint32_t generation)
{
    return qp->live && qp->generation == generation;
}

static int check_options(const uf_model_nic *nic, const uf_model_qp_options *o)
{
    const uf_model_params *p = &nic->model->p;
    if (o->wqe_bytes != 64 && o->wqe_bytes != 128)
        return uf_fail(UF_EINVAL, "EFA model: entries are of 64 or 128 bytes, not %u.", o->wqe_bytes);
    if (!power_of_two(o->sq_depth) || o->sq_depth < 2 || o->sq_depth > p->max_sq * 64 / o->wqe_bytes)
        return uf_fail(UF_EINVAL, "EFA model: a send queue has a power of two of entries up to %u of this size, not %u.",
                       p->max_sq * 64 / o->wqe_bytes, o->sq_depth);
    if (!power_of_two(o->rq_depth) || o->rq_depth > p->max_rq)
        return uf_fail(UF_EINVAL, "EFA model: a receive queue has a power of two of entries up to %u, not %u.", p->max_rq,
                       o->rq_depth);
    if (!o->send_cq || !o->recv_cq || o->send_cq->nic != nic || o->recv_cq->nic != nic)
        return uf_fail(UF_EINVAL, "EFA model: a queue pair needs two completion queues of its own NIC.");
    if (o->rnr_retry > 7)
        return uf_fail(UF_EINVAL, "EFA model: rnr_retry is 3 bits, not %u.", o->rnr_retry);
    if (o->unsolicited && !p->can_unsolicited)
        return uf_fail(UF_EUNSUPPORTED, "EFA model: this device has no unsolicited receives; post receives instead.");
    return UF_OK;
}

static void free_rings(model_qp *qp)
{
    uf_model *m = qp->nic ? qp->nic->model : NULL;
    if (!m) /* a number that was never used */
        return;
    if (qp->mapping)
        munmap(qp->mapping, qp->mapping_bytes);
    qp->mapping = NULL;
    uf_model_release(m, qp->ring);
    uf_model_release(m, qp->info.rq_ring);
    uf_model_release(m, qp->words_stored);
    uf_model_release(m, qp->words_seen);
    uf_model_release(m, qp->info.sq_doorbell);
    qp->ring = qp->info.rq_ring = NULL;
    qp->words_stored = qp->words_seen = qp->info.sq_doorbell = qp->info.rq_doorbell = NULL;
}

static int make_rings(model_qp *qp)
{
    const uf_model_qp_options *o = &qp->o;
    uf_model *m = qp->nic->model;
    size_t bytes = (size_t)o->sq_depth * o->wqe_bytes;
    qp->ring = uf_model_alloc(m, 1, bytes);
    qp->info.rq_ring = uf_model_alloc(m, o->rq_depth, 16);
    qp->words_stored = uf_model_alloc(m, o->sq_depth, sizeof(uint32_t));
    qp->words_seen = uf_model_alloc(m, o->sq_depth, sizeof(uint32_t));
    uint32_t *bells = uf_model_alloc(m, 1, 128); /* a line each */
    qp->info.sq_doorbell = bells;
    if (!qp->ring || !qp->info.rq_ring || !qp->words_stored || !qp->words_seen || !bells)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for the rings of a queue pair.");
    memset(bells, 0, 128);
    qp->info.rq_doorbell = bells + 16;
    qp->info.sq_ring = qp->ring;
    if (!o->plain) {
        void *mapping = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping == MAP_FAILED)
            return uf_fail(UF_ENOMEM, "EFA model: no address space for a ring of %zu bytes.", bytes);
        qp->mapping = mapping;
        qp->mapping_bytes = bytes;
        qp->info.sq_ring = mapping;
    }
    qp->poison = uf_model_random(qp->nic->model) | 1;
    for (size_t i = 0; i < bytes / 8; i++)
        qp->ring[i] = qp->poison;
    return UF_OK;
}

static model_qp *free_number(uf_model_nic *nic)
{
    for (uint32_t i = 0; i < nic->n_qps; i++)
        if (!nic->qps[i]->live)
            return nic->qps[i];
    if (nic->n_qps == nic->model->p.max_qps)
        return NULL;
    model_qp *qp = uf_model_alloc(nic->model, 1, sizeof(*qp));
    if (qp) {
        qp->nic = nic;
        qp->info.qpn = (uint16_t)nic->n_qps;
        nic->qps[nic->n_qps++] = qp;
    }
    return qp;
}

static int watch(uf_model *m, model_qp *qp)
{
    model_qp **plain = uf_model_resize(m, m->plain, (m->n_plain + 1) * sizeof(*plain));
    if (!plain)
        return uf_fail(UF_ENOMEM, "EFA model: no memory to watch a doorbell.");
    m->plain = plain;
    plain[m->n_plain++] = qp;
    return UF_OK;
}

static void unwatch(uf_model *m, const model_qp *qp)
{
    for (uint32_t i = 0; i < m->n_plain; i++)
        if (m->plain[i] == qp)
            m->plain[i--] = m->plain[--m->n_plain];
}

int uf_model_qp_create(uf_model_nic *nic, const uf_model_qp_options *o, uf_model_qp_info *info)
{
    uf_model *m = nic->model;
    int rc = check_options(nic, o);
    if (rc)
        return rc;
    model_qp *qp = free_number(nic);
    if (!qp)
        return uf_fail(UF_ENOMEM, "EFA model: NIC %u has its %u queue pairs.", nic->index, nic->n_qps);
    uint16_t qpn = qp->info.qpn;
    *qp = (model_qp){.nic = nic, .o = *o, .generation = qp->generation, .first = UF_MODEL_NONE, .held_head = UF_MODEL_NONE};
    qp->info.qpn = qpn;
    rc = make_rings(qp);
    if (!rc && o->plain)
        rc = watch(m, qp);
    if (rc) {
        free_rings(qp);
        return rc;
    }
    uint32_t unit = o->wqe_bytes / 64, batch = m->p.max_batch / unit;
    qp->info.sq_depth = o->sq_depth;
    qp->info.rq_depth = o->rq_depth;
    qp->info.sq_limit = m->p.whole_sq ? o->sq_depth : o->sq_depth - 1;
    qp->info.max_batch = m->p.max_batch == 0 || batch > qp->info.sq_limit ? qp->info.sq_limit : batch ? batch : 1;
    qp->info.mmio = (uf_efa_mmio){uf_model_mmio_store64, uf_model_mmio_flush, uf_model_mmio_store32, qp};
    qp->live = true;
    *info = qp->info;
    return UF_OK;
}

int uf_model_qp_fail(uf_model_nic *nic, uint16_t qpn)
{
    model_qp *qp = uf_model_find_qp(nic, qpn);
    if (!qp)
        return uf_fail(UF_ERANGE, "EFA model: NIC %u has no queue pair %u.", nic->index, qpn);
    uf_model_qp_break(nic->model, qp);
    return UF_OK;
}

int uf_model_qp_destroy(uf_model_nic *nic, uint16_t qpn)
{
    int rc = uf_model_qp_fail(nic, qpn);
    if (rc)
        return rc;
    model_qp *qp = nic->qps[qpn];
    qp->live = false;
    qp->generation++;
    unwatch(nic->model, qp);
    free_rings(qp);
    return UF_OK;
}

void uf_model_qps_free(uf_model_nic *nic)
{
    for (uint32_t i = 0; i < nic->n_qps; i++) {
        free_rings(nic->qps[i]);
        uf_model_release(nic->model, nic->qps[i]);
    }
    uf_model_release(nic->model, nic->qps);
}
