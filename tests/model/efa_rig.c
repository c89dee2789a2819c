/* efa_rig.c - see efa_rig.h. */
#include "efa_rig.h"

uint64_t rig_seed(void)
{
    const char *text = getenv("UNFENCE_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

uf_model_params rig_quiet(void)
{
    uf_model_params p;
    assert_int_equal(uf_model_profile("fifo", &p), UF_OK);
    return p;
}

static void open_end(rig *r, int which, const rig_options *o)
{
    rig_end *e = &r->end[which];
    uint32_t entries = o->cq_entries ? o->cq_entries : RIG_CQ, depth = o->depth ? o->depth : 64;
    uf_efa_cq_init(&e->cq, e->cq_memory, (uint32_t)__builtin_ctz(entries), 4);
    uf_model_cq_options cq = {.memory = e->cq_memory, .entries = entries, .entry_bytes = 32, .consumed = &e->cq.consumed};
    assert_int_equal(uf_model_cq_create(e->nic, &cq, &e->model_cq), UF_OK);
    uf_model_qp_options qp = {.pd = 1,
                              .sq_depth = depth,
                              .rq_depth = 256,
                              .wqe_bytes = o->wqe_bytes ? o->wqe_bytes : 64,
                              .qkey = RIG_QKEY,
                              .rnr_retry = o->rnr_retry,
                              .unsolicited = !o->solicited,
                              .plain = o->plain,
                              .send_cq = e->model_cq,
                              .recv_cq = e->model_cq};
    if (o->counter) {
        assert_int_equal(uf_model_counter_create(e->nic, &e->successes, &e->errors, &e->counter), UF_OK);
        qp.counters[o->counter - 1] = e->counter;
    }
    assert_int_equal(uf_model_qp_create(e->nic, &qp, &e->info), UF_OK);
    uf_efa_sq_init(&e->sq, e->info.sq_ring, e->info.sq_doorbell, (uint32_t)__builtin_ctz(depth), qp.wqe_bytes / 8,
                   e->info.sq_limit, e->info.max_batch, o->plain ? NULL : &e->info.mmio);
    uf_efa_rq_init(&e->rq, e->info.rq_ring, e->info.rq_doorbell, 8);
    assert_int_equal(uf_model_mr_register(e->nic, 1, e->memory, RIG_MEMORY,
                                          UF_MODEL_LOCAL | UF_MODEL_REMOTE_READ | UF_MODEL_REMOTE_WRITE, &e->mr),
                     UF_OK);
}

rig *rig_open(const uf_model_params *params, uint64_t seed, const rig_options *options)
{
    const rig_options none = {0}, *o = options ? options : &none;
    rig *r = aligned_alloc(128, sizeof(*r));
    uint8_t gid[16];
    assert_non_null(r);
    memset(r, 0, sizeof(*r));
    assert_int_equal(uf_model_create(params, seed, &r->model), UF_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(uf_model_nic_create(r->model, &r->end[i].nic), UF_OK);
    for (int i = 0; i < 2; i++) {
        open_end(r, i, o);
        uf_model_nic_gid(r->end[!i].nic, gid);
        if (!(o->deaf && i == 1))
            assert_int_equal(uf_model_ah_create(r->end[i].nic, gid, &r->end[i].ah), UF_OK);
    }
    return r;
}

void rig_close(rig *r)
{
    for (int i = 0; i < 2; i++)
        (void)uf_model_qp_destroy(r->end[i].nic, r->end[i].info.qpn); /* unless the test did */
    for (int i = 0; i < 2; i++)
        uf_model_cq_destroy(r->end[i].model_cq);
    uf_model_destroy(r->model);
    free(r);
}

uf_efa_to rig_to(const rig *r, uint64_t id)
{
    return (uf_efa_to){.id = id, .qpn = r->end[1].info.qpn, .ah = r->end[0].ah, .qkey = RIG_QKEY};
}

void rig_post(rig *r, const uf_efa_wqe *e)
{
    while (uf_efa_sq_post(&r->end[0].sq, e, 1, 0) == 0) { /* full: let something complete */
        assert_true(uf_model_step(r->model));
        rig_collect(r);
    }
}

void rig_write(rig *r, uint64_t id, uint64_t from, uint64_t to, uint32_t bytes, int64_t imm)
{
    uf_efa_wqe e = {0};
    uf_efa_to where = rig_to(r, id);
    uf_efa_sge local = {(uintptr_t)r->end[0].memory + from, bytes, r->end[0].mr.lkey};
    assert_true(uf_efa_encode_rdma(&e, UF_EFA_WQE_WORDS, UF_EFA_OP_WRITE, &where, (uintptr_t)r->end[1].memory + to,
                                   r->end[1].mr.rkey, &local));
    if (imm >= 0)
        uf_efa_wqe_imm(&e, (uint32_t)imm);
    rig_post(r, &e);
}

void rig_read(rig *r, uint64_t id, uint64_t into, uint64_t from, uint32_t bytes)
{
    uf_efa_wqe e = {0};
    uf_efa_to where = rig_to(r, id);
    uf_efa_sge local = {(uintptr_t)r->end[0].memory + into, bytes, r->end[0].mr.lkey};
    assert_true(uf_efa_encode_rdma(&e, UF_EFA_WQE_WORDS, UF_EFA_OP_READ, &where, (uintptr_t)r->end[1].memory + from,
                                   r->end[1].mr.rkey, &local));
    rig_post(r, &e);
}

void rig_send(rig *r, uint64_t id, uint64_t from, uint32_t bytes)
{
    uf_efa_wqe e = {0};
    uf_efa_to where = rig_to(r, id);
    uf_efa_sge local = {(uintptr_t)r->end[0].memory + from, bytes, r->end[0].mr.lkey};
    assert_true(uf_efa_encode_send(&e, UF_EFA_WQE_WORDS, &where, &local, 1));
    rig_post(r, &e);
}

void rig_receives(rig *r, uint16_t first, uint32_t n, uint32_t bytes)
{
    rig_end *e = &r->end[1];
    for (uint32_t i = 0; i < n; i++) {
        uf_efa_sge sge = {(uintptr_t)e->memory + (uint64_t)i * bytes, bytes, e->mr.lkey};
        assert_true(uf_efa_rq_post(&e->rq, (uint16_t)(first + i), &sge));
    }
    uf_efa_rq_ring(&e->rq);
}

void rig_collect(rig *r)
{
    uf_efa_cqe c;
    for (int i = 0; i < 2; i++) {
        rig_end *e = &r->end[i];
        while (uf_efa_cq_poll(&e->cq, &c, 1)) {
            assert_int_equal(c.qpn, e->info.qpn);
            rig_seen seen = {c, uf_model_now(r->model)};
            if (c.queue == UF_EFA_QUEUE_SEND) {
                assert_true(e->n_sent < RIG_SEEN);
                e->sent[e->n_sent++] = seen;
                uf_efa_sq_complete(&e->sq, 1);
            } else {
                assert_int_equal(c.queue, UF_EFA_QUEUE_RECV);
                assert_true(e->n_received < RIG_SEEN);
                e->received[e->n_received++] = seen;
                e->rq.completed += !c.unsolicited;
            }
        }
    }
}

void rig_run(rig *r)
{
    while (uf_model_step(r->model)) {
        rig_collect(r);
        if (r->each_event)
            r->each_event(r);
    }
    rig_collect(r);
    assert_int_equal(uf_model_get_stats(r->model)->out_of_memory, 0);
}

int rig_status(const rig *r, uint64_t id)
{
    int status = -1;
    for (uint32_t i = 0; i < r->end[0].n_sent; i++)
        if (r->end[0].sent[i].c.id == id)
            status = status == -1 ? r->end[0].sent[i].c.status : -2;
    return status;
}

void rig_expect_no_traps(const rig *r)
{
    if (uf_model_traps(r->model))
        fail_msg("trap: %s", uf_model_trap(r->model, 0));
}

void rig_expect_trap(const rig *r, uf_model_trap_kind kind, const char *word)
{
    assert_true(uf_model_get_stats(r->model)->traps[kind] > 0);
    assert_int_equal(uf_model_get_stats(r->model)->traps[kind], uf_model_traps(r->model));
    if (!strstr(uf_model_trap(r->model, 0), word))
        fail_msg("\"%s\" does not say \"%s\"", uf_model_trap(r->model, 0), word);
}
