/* efa_ask.c - see efa_ask.h. Each question is a function that both PEs call; they meet by the bootstrap before and after what they do, so
 * the asked PE's processor does nothing meanwhile, as the device is to be looked at and not the program. */
#include "efa_ask.h"
#include "base/error.h"
#include "fabric/efa/status.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY = 1 << 20, SLOT = 4096, DEPTH = 256, MANY = 8, NO_IMM = -1 };

typedef struct ask {
    const efa_ask_params *p;
    uf_efa_device *d;
    const struct uf_efa_device_ops *ops;
    unsigned char *memory; /* what the other PE writes; the upper half is what this one sends */
    uf_efa_device_mr *mr;
    uint32_t lkey, rkey, there_key;
    uint64_t there;
    uint16_t ah, own_ah;
    efa_answer *answers;
    uint32_t n;
} ask;

typedef struct queue {
    uf_efa_qp qp;
    uint32_t qkey, to_qkey;
    uint16_t to_qpn;
    bool made;
} queue;

/* Queues of one question, with one CQ. */
typedef struct set {
    uf_efa_cq cq;
    uf_efa_device_cq *device_cq;
    queue q[MANY];
    uint32_t n;
} set;

typedef struct set_options {
    uint32_t n, cq_entries; /* 0: 1, enough */
    bool solicited;
    uint32_t rnr_retry;
} set_options;

static bool asking(const ask *a)
{
    return a->p->pe == 0;
}

static int meet(ask *a)
{
    return uf_bootstrap_barrier(a->p->bootstrap, 0);
}

/* The asked PE's word to the other. */
static int hear(ask *a, int64_t mine, int64_t *theirs)
{
    int64_t all[2];
    int rc = uf_bootstrap_allgather(a->p->bootstrap, &mine, sizeof mine, all, 0);
    *theirs = rc ? -1 : all[1];
    return rc;
}

static uint64_t now(const ask *a)
{
    return a->p->driver->now(a->p->driver->arg);
}

static void relax(ask *a, uint32_t *round)
{
    if (a->ops->progress)
        a->ops->progress(a->d);
    a->p->driver->relax(a->p->driver->arg, (*round)++);
}

static efa_answer *answer(ask *a, const char *question, int64_t value, const char *changes)
{
    static efa_answer nobodys;
    efa_answer *x = asking(a) && a->n < EFA_ANSWERS_MAX ? &a->answers[a->n++] : &nobodys;
    snprintf(x->question, sizeof x->question, "%s", question);
    x->value = value;
    x->changes = changes;
    return x;
}
#define SAY(answer, ...) (void)snprintf((answer)->text, sizeof(answer)->text, __VA_ARGS__)

/* ---------------------------------------------------------------- queues */

static void close_set(ask *a, set *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->q[i].made)
            a->ops->qp_destroy(a->d, 0, &s->q[i].qp);
    if (s->device_cq)
        a->ops->cq_destroy(a->d, s->device_cq);
    memset(s, 0, sizeof *s);
}

static int make_queue(ask *a, set *s, const set_options *o, queue *q)
{
    q->qkey = (uint32_t)(a->d->token >> 40) | 1;
    const uf_efa_qp_options options = {.sq_depth = DEPTH,
                                       .rq_depth = DEPTH,
                                       .wqe_bytes = 64,
                                       .qkey = q->qkey,
                                       .rnr_retry = o->rnr_retry,
                                       .unsolicited = a->d->nics[0].can_unsolicited && !o->solicited,
                                       .send_cq = s->device_cq,
                                       .recv_cq = s->device_cq};
    int rc = a->ops->qp_create(a->d, 0, &options, &q->qp);
    q->made = rc == UF_OK;
    return rc;
}

static int open_set(ask *a, set *s, const set_options *o)
{
    struct {
        uint32_t qkey, qpn;
    } mine, all[2];
    memset(s, 0, sizeof *s);
    s->n = o->n ? o->n : 1;
    uint32_t entries = o->cq_entries ? o->cq_entries : 2 * MANY * DEPTH;
    int rc = a->ops->cq_create(a->d, 0, entries, &s->cq, &s->device_cq);
    for (uint32_t i = 0; !rc && i < s->n; i++) {
        queue *q = &s->q[i];
        rc = make_queue(a, s, o, q);
        mine.qkey = q->qkey;
        mine.qpn = q->qp.qpn;
        if (!rc)
            rc = uf_bootstrap_allgather(a->p->bootstrap, &mine, sizeof mine, all, 0);
        q->to_qkey = all[!a->p->pe].qkey;
        q->to_qpn = (uint16_t)all[!a->p->pe].qpn;
    }
    if (rc)
        close_set(a, s);
    return rc;
}

static uf_efa_to to(const ask *a, const queue *q, uint64_t id)
{
    return (uf_efa_to){.id = id, .qkey = q->to_qkey, .qpn = q->to_qpn, .ah = a->ah};
}

/* An entry that writes `bytes` to the other PE's memory at `offset`. */
static uf_efa_wqe entry(const ask *a, const uf_efa_to *where, uint64_t offset, uint32_t bytes, int64_t imm)
{
    uf_efa_wqe e;
    const uf_efa_sge local = {(uint64_t)(uintptr_t)a->memory + MEMORY / 2, bytes, a->lkey};
    uf_efa_encode_rdma(&e, UF_EFA_WQE_WORDS, UF_EFA_OP_WRITE, where, a->there + offset, a->there_key, &local);
    if (imm != NO_IMM)
        uf_efa_wqe_imm(&e, (uint32_t)imm);
    return e;
}

static bool put(ask *a, queue *q, uint64_t id, uint64_t offset, uint32_t bytes, int64_t imm)
{
    const uf_efa_to where = to(a, q, id);
    const uf_efa_wqe e = entry(a, &where, offset, bytes, imm);
    return uf_efa_sq_post_owned(&q->qp.sq, &e, 1, 0) == 1;
}

/* The next completion of a send queue, with its slot given back. */
static bool take(ask *a, set *s, uf_efa_cqe *c)
{
    if (a->ops->progress)
        a->ops->progress(a->d);
    while (uf_efa_cq_poll(&s->cq, c, 1)) {
        for (uint32_t i = 0; i < s->n && c->queue == UF_EFA_QUEUE_SEND; i++)
            if (s->q[i].qp.qpn == c->qpn)
                uf_efa_sq_complete(&s->q[i].qp.sq, 1);
        if (c->queue == UF_EFA_QUEUE_SEND)
            return true;
    }
    return false;
}

static bool await(ask *a, set *s, uf_efa_cqe *c)
{
    uint64_t start = now(a);
    for (uint32_t round = 0; !take(a, s, c);) {
        relax(a, &round);
        if (now(a) - start > a->p->patience_ns)
            return false;
    }
    return true;
}

/* Writes one thing and waits: the status, or -1 if nothing came. */
static int status_of(ask *a, set *s, uint64_t offset, uint32_t bytes, int64_t imm)
{
    uf_efa_cqe c;
    return put(a, &s->q[0], 1, offset, bytes, imm) && await(a, s, &c) ? c.status : -1;
}

static const char *status_name(int status)
{
    return status < 0 ? "no completion in time" : uf_efa_status_name((unsigned)status);
}

/* ---------------------------------------------------------------- what cannot hurt */

/* Without this no answer would mean anything. Both PEs hear of it. */
static int reach(ask *a)
{
    set s;
    int64_t status = 0, all[2];
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a))
        status = status_of(a, &s, 0, 8, NO_IMM);
    rc = uf_bootstrap_allgather(a->p->bootstrap, &status, sizeof status, all, 0);
    close_set(a, &s);
    if (!rc && all[0] != UF_EFA_OK)
        rc = uf_fail(UF_EFABRIC, "a plain write of PE 0 to PE 1 failed: %s (EFA status %d), so nothing can be asked. %s",
                     status_name((int)all[0]), (int)all[0],
                     all[0] < 0 ? "Look at the security group and the subnet." : uf_efa_status_remedy((unsigned)all[0]));
    return rc;
}

static int limits(ask *a)
{
    const uf_efa_nic *nic = &a->d->nics[0];
    set s;
    uint32_t made = 0;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    queue *more = calloc(a->p->max_queues, sizeof *more);
    while (asking(a) && more && made < a->p->max_queues && make_queue(a, &s, &(set_options){0}, &more[made]) == UF_OK)
        made++;
    for (uint32_t i = 0; i < made; i++)
        a->ops->qp_destroy(a->d, 0, &more[i].qp);
    free(more);
    const uf_efa_sq *sq = &s.q[0].qp.sq;
    SAY(answer(a, "Q7", made + 1, "UNFENCE_QUEUE_DEPTH and the queues that kernels may own"),
        "%s: send queue %u entries (%u of 128 bytes), %u of %u may be outstanding, %u a doorbell; receive %u, CQ %u; %u%s queues",
        nic->name, nic->max_sq, nic->max_sq_wide, sq->limit, 1u << sq->shift, sq->max_batch, nic->max_rq, nic->max_cq, made + 1,
        made == a->p->max_queues ? " or more" : "");
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int ids(ask *a)
{
    set s;
    uf_efa_cqe c = {0};
    const uint64_t id = UINT64_C(0x123456789abc0007);
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a) && put(a, &s.q[0], id, 0, 8, NO_IMM) && await(a, &s, &c)) {
        bool wide = c.id == id, told = a->d->nics[0].wide_ids;
        SAY(answer(a, "Q14", wide, wide == told ? "nothing" : "uf_efa_nic.wide_ids of device_verbs.c is wrong"),
            "request ids come back with %s; the device was taken to have %s", wide ? "64 bits" : "16 bits", told ? "64" : "16");
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int empty_writes(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a)) {
        uint32_t key = a->there_key;
        a->there_key ^= 1u << 20;
        int status = status_of(a, &s, 0, 0, NO_IMM);
        a->there_key = key;
        SAY(answer(a, "Q15", status,
                   status ? "nothing: the fabric gives every write of nothing a key" : "the key for writes of nothing could go"),
            "a write of 0 bytes with a wrong key: %s", status_name(status));
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void measure_latency(ask *a, set *s, uint64_t *took)
{
    uint32_t n = a->p->samples, failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = now(a);
        failed += status_of(a, s, 0, 8, NO_IMM) != UF_EFA_OK;
        took[i] = now(a) - start;
    }
    qsort(took, n, sizeof *took, by_size);
    SAY(answer(a, "Q9", failed ? -1 : (int64_t)took[n / 2], "latency_ns, jitter_ns and the tail of src/efa_model/params.c"),
        "completion of 8 bytes, one at a time: p50 %.1f us, p99 %.1f, p99.9 %.1f, longest %.1f, %u of %u failed",
        (double)took[n / 2] / 1e3, (double)took[(uint64_t)n * 99 / 100] / 1e3, (double)took[(uint64_t)n * 999 / 1000] / 1e3,
        (double)took[n - 1] / 1e3, failed, n);
}

static int latency(ask *a)
{
    set s;
    uint64_t *took = calloc(a->p->samples, sizeof *took);
    int rc = took ? open_set(a, &s, &(set_options){0}) : UF_ENOMEM;
    if (!rc) {
        if (asking(a))
            measure_latency(a, &s, took);
        rc = meet(a);
        close_set(a, &s);
    }
    free(took);
    return rc;
}

/* Completions a second over the first `n` queues. */
static double rate(ask *a, set *s, uint32_t n, bool burst)
{
    uint64_t start = now(a), done = 0, flying = 0;
    uf_efa_cqe c;
    for (uint32_t round = 0; now(a) - start < a->p->rate_ns; relax(a, &round)) {
        for (uint32_t i = 0; i < n; i++) {
            uf_efa_to where = to(a, &s->q[i], i);
            where.burst = burst;
            const uf_efa_wqe e = entry(a, &where, 64 * i, 8, NO_IMM);
            while (uf_efa_sq_post_owned(&s->q[i].qp.sq, &e, 1, 1))
                flying++;
            uf_efa_sq_flush_owned(&s->q[i].qp.sq);
        }
        while (take(a, s, &c)) {
            done += c.status == UF_EFA_OK;
            flying--;
        }
    }
    double per_second = (double)done * 1e9 / (double)(now(a) - start);
    while (flying && await(a, s, &c))
        flying--;
    return per_second;
}

static int rates(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){.n = MANY});
    if (rc)
        return rc;
    if (asking(a)) {
        double one = rate(a, &s, 1, false), four = rate(a, &s, 4, false), many = rate(a, &s, MANY, false),
               hinted = rate(a, &s, 1, true);
        SAY(answer(a, "Q8", (int64_t)(many / (one > 0 ? one : 1) * 100),
                   "if many queues are faster, qp_message_rate of the model, and more than one queue a rail"),
            "writes of 8 bytes, M/s: 1 queue %.2f, 4 queues %.2f, %d queues %.2f; 1 queue with the burst hint %.2f", one / 1e6,
            four / 1e6, MANY, many / 1e6, hinted / 1e6);
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int loopback(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a)) {
        ask self = *a;
        self.ah = a->own_ah;
        self.there = (uint64_t)(uintptr_t)a->memory;
        self.there_key = a->rkey;
        s.q[0].to_qpn = s.q[0].qp.qpn;
        s.q[0].to_qkey = s.q[0].qkey;
        memset(a->memory, 0, 64);
        memset(a->memory + MEMORY / 2, 0x5a, 64);
        int status = status_of(&self, &s, 0, 64, NO_IMM);
        SAY(answer(a, "Q11", status,
                   status ? "PEs of one host need the local fabric" : "nothing: the local fabric is faster, not needed"),
            "a write to this NIC's own address: %s%s", status_name(status),
            status == 0 && a->memory[63] != 0x5a ? ", but the bytes did not arrive" : "");
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

/* The asked PE changes what was written and completed, and looks whether it changes back. */
static int64_t damaged_slots(ask *a)
{
    int64_t damaged = 0;
    memset(a->memory, 0xff, MEMORY / 2);
    uint64_t start = now(a);
    for (uint32_t round = 0; now(a) - start < a->p->rate_ns;)
        relax(a, &round);
    for (uint32_t slot = 0; slot < MEMORY / 2 / SLOT; slot++) {
        bool sound = true;
        for (uint32_t i = 0; i < SLOT; i++)
            sound &= a->memory[slot * SLOT + i] == 0xff;
        damaged += !sound;
    }
    return damaged;
}

static int duplicates(ask *a)
{
    set s;
    int64_t found = 0, theirs = 0;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    memset(a->memory + MEMORY / 2, 0x11, SLOT);
    for (uint32_t round = 0; !rc && round < a->p->rounds; round++) {
        uf_efa_cqe c;
        for (uint32_t slot = 0; asking(a) && slot < MEMORY / 2 / SLOT; slot++)
            put(a, &s.q[0], slot, (uint64_t)slot * SLOT, SLOT, NO_IMM);
        for (uint32_t slot = 0; asking(a) && slot < MEMORY / 2 / SLOT && await(a, &s, &c);)
            slot++;
        rc = meet(a);
        if (!rc)
            rc = hear(a, asking(a) ? 0 : damaged_slots(a), &theirs);
        found += theirs;
    }
    SAY(answer(a, "Q3", found,
               found ? "UF_SETTLED and the overlap rule must wait longer than the completion"
                     : "nothing; rare ones may be missed"),
        "payload placed again after its sender's completion: %" PRId64 " of %u writes of %d bytes", found,
        a->p->rounds * (MEMORY / 2 / SLOT), SLOT);
    close_set(a, &s);
    return rc;
}

/* ---------------------------------------------------------------- what may break a queue */

static int wrong_qkey(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a)) {
        s.q[0].to_qkey ^= 0x1000;
        uint64_t start = now(a);
        int status = status_of(a, &s, 0, 8, NO_IMM);
        SAY(answer(a, "Q5", status, "qkey_answers of the model; how a stale address is told in status.c"),
            "a wrong queue key: %s (EFA status %d) after %.1f ms", status_name(status), status, (double)(now(a) - start) / 1e6);
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int without_receive(ask *a)
{
    set s;
    int64_t placed;
    int status = -1, rc = open_set(a, &s, &(set_options){.solicited = true});
    if (rc)
        return rc;
    memset(a->memory, 0, SLOT);
    memset(a->memory + MEMORY / 2, 0x77, SLOT);
    rc = meet(a);
    if (!rc && asking(a))
        status = status_of(a, &s, 0, SLOT, 5);
    if (!rc)
        rc = meet(a);
    if (!rc)
        rc = hear(a, a->memory[0] == 0x77 || a->memory[SLOT - 1] == 0x77, &placed);
    if (!rc)
        SAY(answer(a, "Q4", status == UF_EFA_REMOTE_RNR ? placed : -1,
                   "rnr_places of the model; either is sound for Unfence, which promises nothing before the signal"),
            "a write with immediate without a receive: %s (EFA status %d), its payload %s", status_name(status), status,
            placed ? "was placed" : "was not placed");
    close_set(a, &s);
    return rc;
}

/* When memory changed for the last time, in nanoseconds from now on; -1: never. */
static int64_t last_change(ask *a)
{
    unsigned char *before = malloc(MEMORY / 2);
    int64_t last = -1;
    if (!before)
        return -1;
    memcpy(before, a->memory, MEMORY / 2);
    uint64_t start = now(a);
    for (uint32_t round = 0; now(a) - start < a->p->rate_ns; relax(a, &round)) {
        if (memcmp(before, a->memory, MEMORY / 2) == 0)
            continue;
        last = (int64_t)(now(a) - start);
        memcpy(before, a->memory, MEMORY / 2);
    }
    free(before);
    return last;
}

static int stale_packets(ask *a)
{
    set s;
    int64_t last = -1;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    memset(a->memory, 0, MEMORY / 2);
    memset(a->memory + MEMORY / 2, 0x33, SLOT);
    rc = meet(a);
    for (uint32_t slot = 0; asking(a) && slot < MEMORY / 2 / SLOT; slot++)
        put(a, &s.q[0], slot, (uint64_t)slot * SLOT, SLOT, NO_IMM);
    if (asking(a)) {
        uf_efa_cqe c;
        (void)await(a, &s, &c); /* the first is through, so others are under way */
        a->ops->qp_destroy(a->d, 0, &s.q[0].qp);
        s.q[0].made = false;
    }
    if (!rc)
        rc = meet(a);
    if (!rc)
        rc = hear(a, asking(a) ? 0 : last_change(a), &last);
    if (!rc) {
        efa_answer *x = answer(a, "Q13", last, "UF_EFA_STALE_NS must be several times this");
        if (last < 0)
            SAY(x, "packets of a destroyed queue: none came after the two PEs had met");
        else
            SAY(x, "packets of a destroyed queue came until %.1f us after the two PEs had met", (double)last / 1e3);
    }
    close_set(a, &s);
    return rc;
}

static int doorbell_bits(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    if (asking(a)) {
        uf_efa_sq *q = &s.q[0].qp.sq;
        uf_efa_cqe c = {.status = UF_EFA_FLUSHED};
        const uf_efa_to where = to(a, &s.q[0], 1);
        const uf_efa_wqe e = entry(a, &where, 0, 8, NO_IMM);
        uf_efa_sq_write(q, q->reserved++, &e);
        uf_efa_sq_flush_stores(q);
        uf_efa_sq_ring(q, q->reserved + 0x10000);
        bool low = await(a, &s, &c) && c.status == UF_EFA_OK;
        SAY(answer(a, "Q1", low ? 16 : 32, "doorbell_32 of the model; the code counts in 32 bits and is right with both"),
            "a doorbell that is right in its low 16 bits and wrong above: %s", low ? "works" : "breaks the queue");
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

static int long_batch(ask *a)
{
    set s;
    int rc = open_set(a, &s, &(set_options){0});
    if (rc)
        return rc;
    uf_efa_sq *q = &s.q[0].qp.sq;
    if (asking(a) && q->max_batch >= q->limit) {
        SAY(answer(a, "Q2", -1, "nothing"), "the device bounds no batch: it takes %u entries a doorbell", q->limit);
    } else if (asking(a)) {
        const uf_efa_to where = to(a, &s.q[0], 1);
        const uf_efa_wqe e = entry(a, &where, 0, 8, NO_IMM);
        uf_efa_cqe c;
        uint32_t n = q->max_batch + 1, good = 0;
        for (uint32_t i = 0; i < n; i++)
            uf_efa_sq_write(q, q->reserved++, &e);
        uf_efa_sq_flush_owned(q);
        while (good < n && await(a, &s, &c) && c.status == UF_EFA_OK)
            good++;
        SAY(answer(a, "Q2", good == n, "nothing: queue.h keeps the bound. A bound that is not needed costs doorbells"),
            "%u entries at one doorbell where %u are allowed: %u completed", n, q->max_batch, good);
    }
    rc = meet(a);
    close_set(a, &s);
    return rc;
}

/* What became of the oldest entry of the full CQ: 0 it is there, 1 it was overwritten. */
static int64_t overwritten(const set *s)
{
    uf_efa_cqe c;
    uf_efa_decode_cqe(&c, s->cq.ring, s->cq.words == UF_EFA_CQE_WORDS);
    return c.imm != 1;
}

static int overrun(ask *a)
{
    set s;
    int64_t over = -1;
    uint32_t failed = 0;
    int rc = open_set(a, &s, &(set_options){.cq_entries = asking(a) ? 0 : 64});
    if (rc)
        return rc;
    struct {
        uint32_t entries;
    } mine = {1u << s.cq.shift}, all[2];
    rc = uf_bootstrap_allgather(a->p->bootstrap, &mine, sizeof mine, all, 0);
    for (uint32_t i = 0; !rc && asking(a) && i < all[1].entries + 8; i++)
        failed += status_of(a, &s, 0, 0, (int64_t)i + 1) != UF_EFA_OK;
    if (!rc)
        rc = meet(a);
    if (!rc)
        rc = hear(a, overwritten(&s), &over);
    if (failed > 8) /* not for want of room */
        over = -1;
    if (!rc)
        SAY(answer(a, "Q6", over, "cq_overwrites of the model; nothing else: credits keep every CQ from overrun"),
            "a full CQ of %u entries %s; %u of the 8 writes beyond were told an error", all[1].entries,
            over < 0 ? "was not filled"
            : over   ? "overwrites its oldest"
                     : "drops the newest",
            failed);
    close_set(a, &s);
    return rc;
}

static int overrun_if_possible(ask *a)
{
    if (a->d->nics[0].can_unsolicited)
        return overrun(a);
    SAY(answer(a, "Q6", -1, "nothing"), "not asked: needs immediates without receives, which %s does not have",
        a->d->nics[0].name);
    return UF_OK;
}

/* ---------------------------------------------------------------- all */

static int set_up(ask *a)
{
    struct {
        uint8_t gid[16];
        uint64_t base;
        uint64_t key;
    } mine = {.base = 0}, all[2];
    a->memory = aligned_alloc(4096, MEMORY);
    if (!a->memory)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to be asked with", a->p->pe);
    memset(a->memory, 0, MEMORY);
    unsigned access = UF_EFA_ACCESS_LOCAL | UF_EFA_ACCESS_REMOTE_READ | UF_EFA_ACCESS_REMOTE_WRITE;
    int rc = a->ops->mr_register(a->d, 0, a->memory, MEMORY, access, &a->mr, &a->lkey, &a->rkey);
    memcpy(mine.gid, a->d->nics[0].gid, sizeof mine.gid);
    mine.base = (uint64_t)(uintptr_t)a->memory;
    mine.key = a->rkey;
    if (!rc)
        rc = uf_bootstrap_allgather(a->p->bootstrap, &mine, sizeof mine, all, 0);
    if (!rc)
        rc = a->ops->ah_create(a->d, 0, all[!a->p->pe].gid, &a->ah);
    if (!rc)
        rc = a->ops->ah_create(a->d, 0, a->d->nics[0].gid, &a->own_ah);
    a->there = rc ? 0 : all[!a->p->pe].base;
    a->there_key = rc ? 0 : (uint32_t)all[!a->p->pe].key;
    return rc ? rc : meet(a);
}

int efa_ask(const efa_ask_params *params, efa_answer answers[EFA_ANSWERS_MAX], uint32_t *n)
{
    static int (*const questions[])(ask *) = {reach,         limits,        ids,        empty_writes,       latency,
                                              rates,         loopback,      duplicates, wrong_qkey,         without_receive,
                                              stale_packets, doorbell_bits, long_batch, overrun_if_possible};
    ask a = {.p = params, .d = params->device, .ops = params->device->ops, .answers = answers};
    int rc = set_up(&a);
    for (size_t i = 0; !rc && i < sizeof questions / sizeof *questions; i++)
        rc = questions[i](&a);
    if (a.mr)
        a.ops->mr_close(a.d, a.mr);
    free(a.memory);
    *n = a.n;
    return rc;
}
