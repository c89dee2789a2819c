/* device_model.c - the EFA device model as a device of the efa fabric (device.h), and the place where its PEs meet.
 *
 * In the deterministic mode queues are strict: rings cannot be read, stores pass through the model's write-combining buffer. In real time they are
 * plain: the poster stores to memory and the model looks at the doorbell, so that posting takes no lock; the place's mutex
 * guards the model itself, held for set-up calls and by the one PE that moves it.
 *
 * Between processes the place, the model, its rings and completion queues lie in an arena (arena.h), and payload is copied by the process that
 * moves the model. One that dies meanwhile leaves the model torn: it is not touched again, and every PE is told. */
#include "fabric/efa/device_model.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/efa/arena.h"
#include "fabric/efa/device.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct uf_efa_model_place {
    pthread_mutex_t lock; /* guards the model and `opened` */
    uf_model *model;
    uf_model_params params;
    char profile[16];
    uint64_t seed, opened, started;
    uint32_t n_pes, n_rails;
    bool real_time;
    bool torn;                   /* a process died while it moved the model */
    uint32_t id;                 /* of an arena's place, in its NICs' addresses; 0: it is in one process only */
    uf_model_counter **counters; /* of peers' writes, as nics; NULL: none */
    uf_model_nic *nics[];        /* n_rails of each PE */
};

enum { LOOK_EVERY = 4096, ARENAS = 8 }; /* moves between two looks for dead processes; worlds that a process has at once */

typedef struct model_device {
    uf_efa_device base;
    uf_efa_model_place *place;
    bool owns_place;
    uint32_t pe;
    uint16_t pd;
    uint32_t moves;
    uf_efa_arena *arena; /* NULL: the place is in this process only */
    uf_model_host host;  /* with an arena */
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

static int make_counters(uf_efa_model_place *p, uint64_t *words)
{
    uint32_t n = p->n_pes * p->n_rails;
    int rc = UF_OK;
    p->counters = calloc(n, sizeof(uf_model_counter *));
    if (!p->counters)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for %u counters", n);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = uf_model_counter_create(p->nics[i], &words[i], NULL, &p->counters[i]);
    return rc;
}

static int init_lock(uf_efa_model_place *p, bool shared)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (shared) {
        pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    }
    int why = pthread_mutex_init(&p->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    return why ? uf_fail_errno(UF_ESYSTEM, why, "EFA model: no lock could be made") : UF_OK;
}

/* Fills a place of zeros, in an arena if `host` is not NULL. */
static int fill_place(uf_efa_model_place *p, const uf_efa_model_place_options *o, const uf_model_host *host)
{
    p->seed = o->seed;
    p->n_pes = o->n_pes;
    p->n_rails = o->n_rails ? o->n_rails : 1;
    p->real_time = o->real_time;
    p->started = uf_clock_ns();
    int rc = init_lock(p, host != NULL);
    if (!rc)
        rc = choose_params(o, p);
    if (!rc)
        rc = uf_model_create_shared(&p->params, o->seed, host, &p->model);
    for (uint32_t i = 0; !rc && i < p->n_pes * p->n_rails; i++)
        rc = uf_model_nic_create(p->model, &p->nics[i]);
    return rc;
}

static size_t place_bytes(const uf_efa_model_place_options *o)
{
    return sizeof(uf_efa_model_place) + (size_t)o->n_pes * (o->n_rails ? o->n_rails : 1) * sizeof(uf_model_nic *);
}

int uf_efa_model_place_create(const uf_efa_model_place_options *o, uf_efa_model_place **out)
{
    if (o->n_pes == 0 || o->n_rails > UF_EFA_NICS_MAX)
        return uf_fail(UF_EINVAL, "EFA model: a place has at least one PE (not %u) and at most %d NICs for each (not %u)",
                       o->n_pes, UF_EFA_NICS_MAX, o->n_rails);
    uf_efa_model_place *p = calloc(1, place_bytes(o));
    if (!p)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for a place of %u PEs", o->n_pes);
    int rc = fill_place(p, o, NULL);
    if (!rc && o->remote_writes)
        rc = make_counters(p, o->remote_writes);
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
    free(p->counters); /* themselves the model's */
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

static uint64_t visible(const uf_model_stats *s)
{
    return s->copies + s->tx_cqes + s->rx_cqes + s->cqes_lost;
}

bool uf_efa_model_place_run(void *place, uint64_t until)
{
    uf_model *model = ((uf_efa_model_place *)place)->model;
    uint64_t before = visible(uf_model_get_stats(model));
    uf_model_run(model, until);
    return visible(uf_model_get_stats(model)) != before;
}

/* ---------------------------------------------------------------- open, close */

/* What a lock call gave: whether the model is ours and whole. */
static bool entered(model_device *d, int rc)
{
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&d->place->lock);
        d->place->torn = true;
    } else if (rc) {
        return false;
    }
    if (d->place->torn) {
        pthread_mutex_unlock(&d->place->lock);
        return false;
    }
    if (d->arena)
        uf_model_enter(d->place->model, &d->host);
    return true;
}

/* False: the model is torn, and not to be touched. */
static bool enter(uf_efa_device *device)
{
    model_device *d = (model_device *)device;
    return entered(d, pthread_mutex_lock(&d->place->lock));
}

static void leave(model_device *d)
{
    pthread_mutex_unlock(&d->place->lock);
}

static int torn(const model_device *d)
{
    return uf_fail(UF_EPEER,
                   "PE %u: a process of this job died while it moved the EFA model, which cannot go on: restart the job", d->pe);
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
    memcpy(n.gid + 4, &p->id, sizeof p->id);
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

/* The profile in a device's name. */
static int own_options(const uf_efa_device_params *params, uf_efa_model_place_options *o)
{
    const char *profile = params->name + strlen("model");
    if (profile[0] != 0 && profile[0] != '-')
        return uf_fail(UF_EINVAL, "PE %d: 'efa:%s' is no EFA device; efa:model and efa:model-PROFILE are the device model",
                       params->pe, params->name);
    *o = (uf_efa_model_place_options){.profile = profile[0] ? profile + 1 : NULL,
                                      .seed = (uint64_t)params->settings->number[UF_SET_SEED],
                                      .n_pes = (uint32_t)params->n_pes,
                                      .real_time = true};
    return UF_OK;
}

static uf_model_host host_of(uf_efa_arena *arena)
{
    return (uf_model_host){.arg = arena,
                           .owner = (uint32_t)getpid(),
                           .resize = uf_efa_arena_resize,
                           .release = uf_efa_arena_release,
                           .copy = uf_efa_arena_copy};
}

/* The first process of a job makes the place for all. */
static int make_shared(uf_efa_arena *arena, void *arg)
{
    const uf_efa_model_place_options *o = arg;
    const uf_model_host host = host_of(arena);
    uf_efa_model_place *p = uf_efa_arena_resize(arena, NULL, place_bytes(o));
    if (!p)
        return uf_fail(UF_ENOMEM, "EFA model: no memory for a place of %u PEs", o->n_pes);
    int rc = fill_place(p, o, &host);
    if (!rc) {
        p->id = (uint32_t)mix(p->started ^ host.owner) | 1;
        uf_efa_arena_root_set(arena, p);
    }
    return rc;
}

/* A process takes part in several worlds by several arenas; worlds are made in one order everywhere. */
static int open_shared(const uf_efa_device_params *params, uf_efa_model_place_options *o, model_device *d)
{
    const char *job = params->settings->text[UF_SET_JOB];
    char name[UF_SETTING_TEXT + 32];
    if (!job[0])
        job = params->settings->text[UF_SET_ROOT];
    if (!job[0] || !params->one_host)
        return uf_fail(
            UF_EUNSUPPORTED,
            "PE %d: efa:%s connects processes of one job on one host, and %s. Start them with `unfence run`, or use ofi:tcp",
            params->pe, params->name, job[0] ? "these are on several" : "neither UNFENCE_JOB nor UNFENCE_ROOT names it");
    snprintf(name, sizeof name, "%s %s", job, params->name);
    int rc = UF_EAGAIN;
    for (uint32_t number = 0; rc == UF_EAGAIN && number < ARENAS; number++)
        rc = uf_efa_arena_open(name, number, (uint32_t)params->pe, make_shared, o, &d->arena);
    if (rc == UF_EAGAIN)
        return uf_fail(UF_EUNSUPPORTED, "PE %d: this process has %d worlds over efa:%s, and no more are possible", params->pe,
                       ARENAS, params->name);
    if (rc)
        return rc;
    d->host = host_of(d->arena);
    d->place = uf_efa_arena_root(d->arena);
    return UF_OK;
}

static int choose_place(const uf_efa_device_params *params, model_device *d)
{
    uf_efa_model_place_options o;
    if (params->arg) {
        d->place = params->arg;
        return UF_OK;
    }
    int rc = own_options(params, &o);
    if (rc)
        return rc;
    if (params->n_pes > 1)
        return open_shared(params, &o, d);
    d->owns_place = true;
    return uf_efa_model_place_create(&o, &d->place);
}

static void model_close(uf_efa_device *device)
{
    model_device *d = (model_device *)device;
    if (d->arena)
        uf_efa_arena_close(d->arena);
    if (d->owns_place)
        uf_efa_model_place_destroy(d->place);
    free(d);
}

static int model_open(const uf_efa_device_params *params, uf_efa_device **device)
{
    model_device *d = calloc(1, sizeof *d);
    if (!d)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for a device", params->pe);
    int rc = choose_place(params, d);
    if (rc) {
        free(d);
        return rc;
    }
    uf_efa_model_place *place = d->place;
    d->pe = (uint32_t)params->pe;
    if (params->pe < 0 || (uint32_t)params->n_pes > place->n_pes)
        rc = uf_fail(UF_EINVAL, "PE %d: the model that it was given has place for %u PEs, not %d", params->pe, place->n_pes,
                     params->n_pes);
    else if (!enter(&d->base))
        rc = torn(d);
    if (rc) {
        model_close(&d->base);
        return rc;
    }
    d->base.ops = place->real_time ? &in_real_time : &uf_efa_device_model;
    d->base.n_nics = place->n_rails;
    d->base.token = mix(place->seed + mix(++place->opened));
    for (uint32_t i = 0; i < place->n_rails; i++)
        d->base.nics[i] = describe(place, nic_of(d, i), i);
    leave(d);
    d->pd = (uint16_t)(d->base.token | 1);
    *device = &d->base;
    return UF_OK;
}

/* ---------------------------------------------------------------- queues */

/* Who looks for overruns must see the owner's position, which is in its process. */
static int make_cq(model_device *d, uint32_t nic, uint32_t entries, const uf_efa_cq *queue, uf_efa_device_cq *cq)
{
    size_t bytes = (size_t)entries * UF_EFA_CQE_WORDS * 8;
    cq->memory = d->arena ? uf_efa_arena_resize(d->arena, NULL, bytes) : calloc(1, bytes);
    if (!cq->memory)
        return uf_fail(UF_ENOMEM, "PE %u: no memory for a completion queue of %u entries", d->pe, entries);
    const uf_model_cq_options o = {.memory = cq->memory,
                                   .entries = entries,
                                   .entry_bytes = UF_EFA_CQE_WORDS * 8,
                                   .consumed = d->arena ? NULL : &queue->consumed};
    return uf_model_cq_create(nic_of(d, nic), &o, &cq->cq);
}

static void free_cq(model_device *d, uf_efa_device_cq *cq)
{
    if (!d->arena)
        free(cq->memory);
    else if (cq->memory)
        uf_efa_arena_release(d->arena, cq->memory);
    free(cq);
}

static int model_cq_create(uf_efa_device *device, uint32_t nic, uint32_t entries, uf_efa_cq *queue, uf_efa_device_cq **out)
{
    model_device *d = (model_device *)device;
    uf_efa_device_cq *cq = calloc(1, sizeof *cq);
    if (!cq)
        return uf_fail(UF_ENOMEM, "PE %u: no memory to note a completion queue", d->pe);
    if (!enter(device)) {
        free(cq);
        return torn(d);
    }
    int rc = make_cq(d, nic, entries, queue, cq);
    if (rc)
        free_cq(d, cq);
    leave(d);
    if (rc)
        return rc;
    uf_efa_cq_init(queue, cq->memory, (uint32_t)__builtin_ctz(entries), UF_EFA_CQE_WORDS);
    *out = cq;
    return UF_OK;
}

static void model_cq_destroy(uf_efa_device *device, uf_efa_device_cq *cq)
{
    model_device *d = (model_device *)device;
    if (!enter(device)) {
        free(cq);
        return;
    }
    uf_model_cq_destroy(cq->cq);
    free_cq(d, cq);
    leave(d);
}

static int model_qp_create(uf_efa_device *device, uint32_t nic, const uf_efa_qp_options *options, uf_efa_qp *qp)
{
    model_device *d = (model_device *)device;
    uf_model_qp_options o = {.pd = d->pd,
                             .sq_depth = options->sq_depth,
                             .rq_depth = options->rq_depth,
                             .wqe_bytes = options->wqe_bytes,
                             .qkey = options->qkey,
                             .rnr_retry = options->rnr_retry,
                             .unsolicited = options->unsolicited,
                             .plain = d->place->real_time,
                             .send_cq = options->send_cq->cq,
                             .recv_cq = options->recv_cq->cq};
    if (d->place->counters)
        o.counters[UF_MODEL_COUNT_REMOTE_WRITE] = d->place->counters[d->pe * d->place->n_rails + nic];
    uf_model_qp_info *info = calloc(1, sizeof *info); /* lives as long as the queue: its table of stores is used */
    if (!info)
        return uf_fail(UF_ENOMEM, "PE %u: no memory for a queue pair", d->pe);
    int rc = enter(device) ? UF_OK : torn(d);
    if (!rc) {
        rc = uf_model_qp_create(nic_of(d, nic), &o, info);
        leave(d);
    }
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
    model_device *d = (model_device *)device;
    if (enter(device)) {
        (void)uf_model_qp_destroy(nic_of(d, nic), qp->qpn);
        leave(d);
    }
    free(qp->maker);
}

/* ---------------------------------------------------------------- registrations and handles */

static int model_mr_register(uf_efa_device *device, uint32_t nic, void *ptr, size_t bytes, unsigned access,
                             uf_efa_device_mr **out, uint32_t *lkey, uint32_t *rkey)
{
    static const uint32_t rights[] = {UF_MODEL_LOCAL, UF_MODEL_REMOTE_READ, UF_MODEL_REMOTE_WRITE};
    model_device *d = (model_device *)device;
    uint32_t allowed = 0;
    for (unsigned i = 0; i < 3; i++)
        allowed |= access >> i & 1 ? rights[i] : 0;
    uf_efa_device_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return uf_fail(UF_ENOMEM, "PE %u: no memory to note a registration", d->pe);
    int rc = enter(device) ? UF_OK : torn(d);
    if (!rc) {
        rc = uf_model_mr_register(nic_of(d, nic), d->pd, ptr, bytes, allowed, &mr->mr);
        leave(d);
    }
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
    if (enter(device)) {
        uf_model_mr_close(mr->nic, mr->mr);
        leave((model_device *)device);
    }
    free(mr);
}

/* The process behind a NIC must be in our reach, and on our model. Who has an address of every peer knows that all have joined. */
static int reach(const model_device *d, const uint8_t gid[16])
{
    uint8_t real[16];
    if (memcmp(gid + 4, &d->place->id, sizeof d->place->id))
        return uf_fail(UF_EUNSUPPORTED,
                       "PE %u: a peer is on another EFA model: several PEs of one process need a common one (fabric_arg)", d->pe);
    if (d->arena)
        uf_efa_arena_hide(d->arena);
    for (uint32_t i = 0; i < d->place->n_pes * d->place->n_rails; i++) {
        uf_model_nic_gid(d->place->nics[i], real);
        if (memcmp(real + 8, gid + 8, 8) == 0)
            return uf_efa_arena_reach(d->arena, uf_efa_arena_process(d->arena, i / d->place->n_rails));
    }
    return UF_OK; /* the model will say that there is none */
}

static int model_ah_create(uf_efa_device *device, uint32_t nic, const uint8_t gid[16], uint16_t *ah)
{
    model_device *d = (model_device *)device;
    uint8_t bare[16];
    memcpy(bare, gid, sizeof bare);
    int rc = d->arena ? reach(d, gid) : UF_OK;
    memset(bare + 4, 0, sizeof d->place->id);
    if (!rc && !enter(device))
        rc = torn(d);
    if (rc)
        return rc;
    rc = uf_model_ah_create(nic_of(d, nic), bare, ah);
    leave(d);
    return rc;
}

static void model_ah_destroy(uf_efa_device *device, uint32_t nic, uint16_t ah)
{
    model_device *d = (model_device *)device;
    if (!enter(device))
        return;
    uf_model_ah_destroy(nic_of(d, nic), ah);
    leave(d);
}

/* ---------------------------------------------------------------- time and failure */

/* The NICs of processes that ended without a word end with them. */
static void bury(model_device *d)
{
    for (uint32_t pe = 0; pe < d->place->n_pes; pe++) {
        uint32_t process = uf_efa_arena_process(d->arena, pe);
        if (process && kill((pid_t)process, 0) && errno == ESRCH)
            for (uint32_t rail = 0; rail < d->place->n_rails; rail++)
                uf_model_nic_kill(uf_efa_model_place_nic(d->place, pe, rail));
    }
}

/* One PE moves the model for all; the others find the lock taken and their completions, if any, already there. */
static void model_progress(uf_efa_device *device)
{
    model_device *d = (model_device *)device;
    if (!entered(d, pthread_mutex_trylock(&d->place->lock)))
        return;
    if (d->arena && ++d->moves % LOOK_EVERY == 0)
        bury(d);
    uf_model_catch_up(d->place->model, uf_clock_ns() - d->place->started);
    leave(d);
}

static int model_failed(uf_efa_device *device, uint32_t nic)
{
    bool can_read, can_write;
    model_device *d = (model_device *)device;
    if (!enter(device))
        return torn(d);
    bool alive = uf_model_nic_alive(nic_of(d, nic), &can_read, &can_write);
    leave(d);
    return alive ? UF_OK
                 : uf_fail(UF_EFABRIC,
                           "PE %u: EFA device %s of rail %u is gone: it was removed or has failed; restart the job without it",
                           d->pe, d->base.nics[nic].name, nic);
}

static uint64_t virtual_now(uf_efa_device *device)
{
    return uf_model_now(((model_device *)device)->place->model);
}

static uint64_t clock_now(uf_efa_device *device)
{
    (void)device;
    return uf_clock_ns();
}

#define MODEL_OPS                                                                                                                \
    .name = "model", .open = model_open, .close = model_close, .cq_create = model_cq_create, .cq_destroy = model_cq_destroy,     \
    .qp_create = model_qp_create, .qp_destroy = model_qp_destroy, .mr_register = model_mr_register, .mr_close = model_mr_close,  \
    .ah_create = model_ah_create, .ah_destroy = model_ah_destroy, .failed = model_failed

const struct uf_efa_device_ops uf_efa_device_model = {MODEL_OPS, .now = virtual_now};
static const struct uf_efa_device_ops in_real_time = {MODEL_OPS, .progress = model_progress, .now = clock_now};
