/* device_model.c - the EFA device model as a device of the efa fabric (device.h), and the place where its PEs meet.
 *
 * In the deterministic mode queues are strict: rings cannot be read, stores pass through the model's write-combining buffer. In real time they are
 * plain: the poster stores to memory and the model looks at the doorbell, so that posting takes no lock; the place's mutex
 * guards the model itself, held for set-up calls and by the one PE that moves it. */
#include "fabric/efa/device_model.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/efa/device.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct uf_efa_model_place {
    pthread_mutex_t lock; /* guards the model and `opened` */
    uf_model *model;
    uf_model_params params;
    char profile[16];
    uint64_t seed, opened, started;
    uint32_t n_pes, n_rails;
    bool real_time;
    uf_model_nic *nics[]; /* n_rails of each PE */
};

typedef struct model_device {
    uf_efa_device base;
    uf_efa_model_place *place;
    bool owns_place;
    uint32_t pe;
    uint16_t pd;
} model_device;

struct uf_efa_device_cq {
    uf_model_cq *cq;
    uint64_t *memory;
};

struct uf_efa_device_mr {
    uf_model_mr mr;
    uf_model_nic *nic;
};

/* ---------------------------------------------------------------- the place */

static int choose_params(const uf_efa_model_place_options *o, uf_efa_model_place *p)
{
    const char *profile = o->profile && o->profile[0] ? o->profile : "p5en";
    snprintf(p->profile, sizeof p->profile, "%s", o->params ? "own" : profile);
    if (o->params) {
        p->params = *o->params;
        return UF_OK;
    }
    return uf_model_profile(profile, &p->params);
}

int uf_efa_model_place_create(const uf_efa_model_place_options *o, uf_efa_model_place **out)
{
    uint32_t n_rails = o->n_rails ? o->n_rails : 1;
    if (o->n_pes == 0 || n_rails > UF_EFA_NICS_MAX)
        return uf_fail(UF_EINVAL, "EFA model: a place has at least one PE (not %u) and at most %d NICs for each (not %u)",
                       o->n_pes, UF_EFA_NICS_MAX, n_rails);
    uf_efa_model_place *p = calloc(1, sizeof *p + (size_t)o->n_pes * n_rails * sizeof p->nics[0]);
    if (!p)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for a place of %u PEs", o->n_pes);
    p->seed = o->seed;
    p->n_pes = o->n_pes;
    p->n_rails = n_rails;
    p->real_time = o->real_time;
    p->started = uf_clock_ns();
    pthread_mutex_init(&p->lock, NULL);
    int rc = choose_params(o, p);
    if (!rc)
        rc = uf_model_create(&p->params, o->seed, &p->model);
    for (uint32_t i = 0; !rc && i < o->n_pes * n_rails; i++)
        rc = uf_model_nic_create(p->model, &p->nics[i]);
    if (rc)
        uf_efa_model_place_destroy(p);
    else
        *out = p;
    return rc;
}

void uf_efa_model_place_destroy(uf_efa_model_place *p)
{
    if (!p)
        return;
    if (p->model)
        uf_model_destroy(p->model);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

uf_model *uf_efa_model_place_model(uf_efa_model_place *p)
{
    return p->model;
}

uf_model_nic *uf_efa_model_place_nic(uf_efa_model_place *p, uint32_t pe, uint32_t rail)
{
    return p->nics[pe * p->n_rails + rail];
}

void uf_efa_model_place_kill(uf_efa_model_place *p, uint32_t pe, uint32_t rail)
{
    pthread_mutex_lock(&p->lock);
    uf_model_nic_kill(uf_efa_model_place_nic(p, pe, rail));
    pthread_mutex_unlock(&p->lock);
}

uint64_t uf_efa_model_place_next(void *place)
{
    return uf_model_next(((uf_efa_model_place *)place)->model);
}

void uf_efa_model_place_run(void *place, uint64_t until)
{
    uf_model_run(((uf_efa_model_place *)place)->model, until);
}

/* ---------------------------------------------------------------- open, close */

static model_device *enter(uf_efa_device *device)
{
    model_device *d = (model_device *)device;
    pthread_mutex_lock(&d->place->lock);
    return d;
}

static void leave(model_device *d)
{
    pthread_mutex_unlock(&d->place->lock);
}

static uf_model_nic *nic_of(const model_device *d, uint32_t nic)
{
    return uf_efa_model_place_nic(d->place, d->pe, nic);
}

static uf_efa_nic describe(const uf_efa_model_place *p, const uf_model_nic *nic, uint32_t rail)
{
    const uf_model_params *m = &p->params;
    uf_efa_nic n = {.rate_bytes = (uint64_t)m->gbps * 125000000,
                    .can_unsolicited = m->can_unsolicited,
                    .wide_ids = m->wide_ids,
                    .wide_write = true,
                    .duplicates = m->duplicate_ppm > 0,
                    .max_sq = m->max_sq,
                    .max_sq_wide = m->max_sq / 2,
                    .max_rq = m->max_rq,
                    .max_cq = m->max_cq,
                    .max_ahs = m->max_ahs,
                    .max_rdma = m->max_rdma,
                    .mtu = m->mtu};
    uf_model_nic_alive(nic, &n.can_read, &n.can_write);
    uf_model_nic_gid(nic, n.gid);
    snprintf(n.name, sizeof n.name, "model%u", rail);
    snprintf(n.detail, sizeof n.detail, "profile %s, seed %llu: a model, not hardware", p->profile, (unsigned long long)p->seed);
    return n;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static const struct uf_efa_device_ops in_real_time;

/* What a process can have for itself: a model of one PE. */
static int own_place(const uf_efa_device_params *params, uf_efa_model_place **place)
{
    const char *profile = params->name + strlen("model");
    if (profile[0] != 0 && profile[0] != '-')
        return uf_fail(UF_EINVAL, "PE %d: 'efa:%s' is no EFA device; efa:model and efa:model-PROFILE are the device model",
                       params->pe, params->name);
    if (params->n_pes != 1)
        return uf_fail(
            UF_EUNSUPPORTED,
            "PE %d: efa:%s serves a world of one PE, or PEs of one process that were given a common model: it does not cross "
            "processes. Use ofi:tcp or ofi:shm between these %d PEs",
            params->pe, params->name, params->n_pes);
    const uf_efa_model_place_options o = {.profile = profile[0] ? profile + 1 : NULL,
                                          .seed = (uint64_t)params->settings->number[UF_SET_SEED],
                                          .n_pes = 1,
                                          .real_time = true};
    return uf_efa_model_place_create(&o, place);
}

static int model_open(const uf_efa_device_params *params, uf_efa_device **device)
{
    uf_efa_model_place *place = params->arg;
    int rc = place ? UF_OK : own_place(params, &place);
    if (rc)
        return rc;
    model_device *d = calloc(1, sizeof *d);
    if (!d || params->pe < 0 || (uint32_t)params->n_pes > place->n_pes) {
        rc = d ? uf_fail(UF_EINVAL, "PE %d: the model that it was given has place for %u PEs, not %d", params->pe, place->n_pes,
                         params->n_pes)
               : uf_fail(UF_ENOMEM, "PE %d: no memory for a device", params->pe);
        free(d);
        if (!params->arg)
            uf_efa_model_place_destroy(place);
        return rc;
    }
    d->place = place;
    d->owns_place = !params->arg;
    d->pe = (uint32_t)params->pe;
    d->base.ops = place->real_time ? &in_real_time : &uf_efa_device_model;
    d->base.n_nics = place->n_rails;
    enter(&d->base);
    d->base.token = mix(place->seed + mix(++place->opened));
    for (uint32_t i = 0; i < place->n_rails; i++)
        d->base.nics[i] = describe(place, nic_of(d, i), i);
    leave(d);
    d->pd = (uint16_t)(d->base.token | 1);
    *device = &d->base;
    return UF_OK;
}

static void model_close(uf_efa_device *device)
{
    model_device *d = (model_device *)device;
    if (d->owns_place)
        uf_efa_model_place_destroy(d->place);
    free(d);
}

/* ---------------------------------------------------------------- queues */

static int model_cq_create(uf_efa_device *device, uint32_t nic, uint32_t entries, uf_efa_cq *queue, uf_efa_device_cq **out)
{
    model_device *d = (model_device *)device;
    uf_efa_device_cq *cq = calloc(1, sizeof *cq);
    if (cq)
        cq->memory = calloc(entries, UF_EFA_CQE_WORDS * 8);
    if (!cq || !cq->memory) {
        free(cq);
        return uf_fail(UF_ENOMEM, "PE %u: no memory for a completion queue of %u entries", d->pe, entries);
    }
    uf_efa_cq_init(queue, cq->memory, (uint32_t)__builtin_ctz(entries), UF_EFA_CQE_WORDS);
    const uf_model_cq_options o = {
        .memory = cq->memory, .entries = entries, .entry_bytes = UF_EFA_CQE_WORDS * 8, .consumed = &queue->consumed};
    enter(device);
    int rc = uf_model_cq_create(nic_of(d, nic), &o, &cq->cq);
    leave(d);
    if (rc) {
        free(cq->memory);
        free(cq);
    } else {
        *out = cq;
    }
    return rc;
}

static void model_cq_destroy(uf_efa_device *device, uf_efa_device_cq *cq)
{
    model_device *d = enter(device);
    uf_model_cq_destroy(cq->cq);
    leave(d);
    free(cq->memory);
    free(cq);
}

static int model_qp_create(uf_efa_device *device, uint32_t nic, const uf_efa_qp_options *options, uf_efa_qp *qp)
{
    model_device *d = (model_device *)device;
    const uf_model_qp_options o = {.pd = d->pd,
                                   .sq_depth = options->sq_depth,
                                   .rq_depth = options->rq_depth,
                                   .wqe_bytes = options->wqe_bytes,
                                   .qkey = options->qkey,
                                   .rnr_retry = options->rnr_retry,
                                   .unsolicited = options->unsolicited,
                                   .plain = d->place->real_time,
                                   .send_cq = options->send_cq->cq,
                                   .recv_cq = options->recv_cq->cq};
    uf_model_qp_info *info = calloc(1, sizeof *info); /* lives as long as the queue: its table of stores is used */
    if (!info)
        return uf_fail(UF_ENOMEM, "PE %u: no memory for a queue pair", d->pe);
    enter(device);
    int rc = uf_model_qp_create(nic_of(d, nic), &o, info);
    leave(d);
    if (rc) {
        free(info);
        return rc;
    }
    qp->qpn = info->qpn;
    qp->maker = info;
    uf_efa_sq_init(&qp->sq, info->sq_ring, info->sq_doorbell, (uint32_t)__builtin_ctz(info->sq_depth), o.wqe_bytes / 8,
                   info->sq_limit, info->max_batch, o.plain ? NULL : &info->mmio);
    uf_efa_rq_init(&qp->rq, info->rq_ring, info->rq_doorbell, (uint32_t)__builtin_ctz(info->rq_depth));
    return UF_OK;
}

static void model_qp_destroy(uf_efa_device *device, uint32_t nic, uf_efa_qp *qp)
{
    model_device *d = enter(device);
    (void)uf_model_qp_destroy(nic_of(d, nic), qp->qpn);
    leave(d);
    free(qp->maker);
}

/* ---------------------------------------------------------------- registrations and handles */

static int model_mr_register(uf_efa_device *device, uint32_t nic, void *ptr, size_t bytes, unsigned access,
                             uf_efa_device_mr **out, uint32_t *lkey, uint32_t *rkey)
{
    static const uint32_t rights[] = {UF_MODEL_LOCAL, UF_MODEL_REMOTE_READ, UF_MODEL_REMOTE_WRITE};
    uint32_t allowed = 0;
    for (unsigned i = 0; i < 3; i++)
        allowed |= access >> i & 1 ? rights[i] : 0;
    uf_efa_device_mr *mr = calloc(1, sizeof *mr);
    model_device *d = enter(device);
    int rc = mr ? uf_model_mr_register(nic_of(d, nic), d->pd, ptr, bytes, allowed, &mr->mr)
                : uf_fail(UF_ENOMEM, "PE %u: no memory to note a registration", d->pe);
    leave(d);
    if (rc) {
        free(mr);
        return rc;
    }
    mr->nic = nic_of(d, nic);
    *lkey = mr->mr.lkey;
    *rkey = mr->mr.rkey;
    *out = mr;
    return UF_OK;
}

static void model_mr_close(uf_efa_device *device, uf_efa_device_mr *mr)
{
    model_device *d = enter(device);
    uf_model_mr_close(mr->nic, mr->mr);
    leave(d);
    free(mr);
}

static int model_ah_create(uf_efa_device *device, uint32_t nic, const uint8_t gid[16], uint16_t *ah)
{
    model_device *d = enter(device);
    int rc = uf_model_ah_create(nic_of(d, nic), gid, ah);
    leave(d);
    return rc;
}

static void model_ah_destroy(uf_efa_device *device, uint32_t nic, uint16_t ah)
{
    model_device *d = enter(device);
    uf_model_ah_destroy(nic_of(d, nic), ah);
    leave(d);
}

/* ---------------------------------------------------------------- time and failure */

/* One PE moves the model for all; the others find the lock taken and their completions, if any, already there. */
static void model_progress(uf_efa_device *device)
{
    uf_efa_model_place *p = ((model_device *)device)->place;
    if (pthread_mutex_trylock(&p->lock))
        return;
    uf_model_catch_up(p->model, uf_clock_ns() - p->started);
    pthread_mutex_unlock(&p->lock);
}

static int model_failed(uf_efa_device *device, uint32_t nic)
{
    bool can_read, can_write;
    model_device *d = enter(device);
    bool alive = uf_model_nic_alive(nic_of(d, nic), &can_read, &can_write);
    leave(d);
    return alive ? UF_OK
                 : uf_fail(UF_EFABRIC,
                           "PE %u: EFA device %s of rail %u is gone: it was removed or has failed; restart the job without it",
                           d->pe, d->base.nics[nic].name, nic);
}

#define MODEL_OPS                                                                                                                \
    .name = "model", .open = model_open, .close = model_close, .cq_create = model_cq_create, .cq_destroy = model_cq_destroy,     \
    .qp_create = model_qp_create, .qp_destroy = model_qp_destroy, .mr_register = model_mr_register, .mr_close = model_mr_close,  \
    .ah_create = model_ah_create, .ah_destroy = model_ah_destroy, .failed = model_failed

const struct uf_efa_device_ops uf_efa_device_model = {MODEL_OPS};
static const struct uf_efa_device_ops in_real_time = {MODEL_OPS, .progress = model_progress};
