/* fake_rdma_core.c - libibverbs and libefa over the device model; see fake_rdma_core.h. Compiled into a shared object that a test loads in their place.
 *
 * FAKE_IS_OLD leaves out what rdma-core before 59 does not have. */
#include "support/fake_rdma_core.h"
#include "base/clock.h"
#include "efa_model/model.h"
#include "fabric/efa/verbs_library.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

#define EXPORT __attribute__((visibility("default")))

/* The fake must have the types that the driver calls with. */
#define UF_VERBS_CALL(library, name, result, arguments) EXPORT result library##_##name arguments;
UF_EFADV_CALLS(UF_VERBS_CALL)
#undef UF_VERBS_CALL

EXPORT fake_rdma_core_control fake_rdma_core;

typedef struct fake_context {
    struct ibv_context ibv;
    uint32_t nic; /* FAKE_NICS: the one of another maker */
    int event_fd;
} fake_context;

typedef struct fake_pd {
    struct ibv_pd ibv;
    uint16_t number;
    uint32_t users;
} fake_pd;

typedef struct fake_mr {
    struct ibv_mr ibv;
    uf_model_mr mr;
} fake_mr;

typedef struct fake_ah {
    struct ibv_ah ibv;
    uint16_t number;
} fake_ah;

typedef struct fake_cq {
    struct ibv_cq_ex ibv;
    uint64_t *ring;
    uint32_t entries, users;
    uf_model_cq *cq;
} fake_cq;

typedef struct fake_qp {
    struct ibv_qp ibv;
    struct ibv_qp_init_attr_ex attr;
    uf_efadv_qp_init efa;
    uf_model_qp_info info;
    uint32_t qkey;
    enum ibv_qp_state state;
} fake_qp;

/* The host: one model, its NICs, and the thread that moves it while any device is open. */
static struct {
    pthread_mutex_t lock;
    uf_model *model;
    uf_model_nic *nics[FAKE_NICS];
    fake_context *contexts[FAKE_NICS]; /* the last opened, for events */
    struct ibv_device devices[FAKE_NICS + 1];
    uint32_t open;
    uint16_t next_pd;
    uint64_t started;
    pthread_t thread;
    _Atomic bool stop;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fails(const char *call)
{
    if (strcmp(fake_rdma_core.fail, call))
        return false;
    errno = fake_rdma_core.error;
    return true;
}

static int refuse(const char *why)
{
    fake_rdma_core.refusals++;
    snprintf(fake_rdma_core.refusal, sizeof fake_rdma_core.refusal, "%s", why);
    return errno = EINVAL;
}

static void enter(void)
{
    pthread_mutex_lock(&host.lock);
}

static void leave(int made)
{
    if (made)
        fake_rdma_core.objects += (uint32_t)made;
    pthread_mutex_unlock(&host.lock);
}

static uf_model_nic *nic_of(struct ibv_context *c)
{
    return host.nics[((fake_context *)c)->nic];
}

/* The NICs' own pace: they do not wait for anybody, so the test need not call for them. */
static void *move(void *arg)
{
    (void)arg;
    const struct timespec pause = {.tv_nsec = 20000};
    while (!atomic_load(&host.stop)) {
        enter();
        uf_model_catch_up(host.model, uf_clock_ns() - host.started);
        leave(0);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int raise_event(uint32_t nic, int event)
{
    return host.contexts[nic] && write(host.contexts[nic]->event_fd, &event, sizeof event) == sizeof event ? 0 : -1;
}

static int start_host(void)
{
    uf_model_params params;
    int rc = uf_model_profile("p5en", &params);
    params.latency_ns = 1000;
    params.tail_ppm = 0;
    if (!rc)
        rc = uf_model_create(&params, 1, &host.model);
    for (uint32_t i = 0; !rc && i < FAKE_NICS; i++)
        rc = uf_model_nic_create(host.model, &host.nics[i]);
    host.started = uf_clock_ns();
    atomic_store(&host.stop, false);
    return rc ? rc : pthread_create(&host.thread, NULL, move, NULL);
}

/* ---------------------------------------------------------------- devices */

EXPORT struct ibv_device **ibv_get_device_list(int *n)
{
    if (fails("ibv_get_device_list"))
        return NULL;
    struct ibv_device **list = calloc(FAKE_NICS + 2, sizeof *list);
    for (uint32_t i = 0; i <= FAKE_NICS; i++) {
        if (i == 0)
            snprintf(host.devices[i].name, sizeof host.devices[i].name, "mlx5_0");
        else
            snprintf(host.devices[i].name, sizeof host.devices[i].name, "rdmap%us6", i - 1);
        list[i] = &host.devices[i];
    }
    *n = FAKE_NICS + 1;
    fake_rdma_core.raise = raise_event;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    int ends[2];
    if (fails("ibv_open_device") || pipe(ends))
        return NULL;
    fake_context *c = calloc(1, sizeof *c);
    c->ibv.device = device;
    c->ibv.async_fd = ends[0];
    c->event_fd = ends[1];
    c->nic = (uint32_t)(device - host.devices) - 1;
    if (host.open++ == 0 && start_host())
        abort();
    enter();
    if (c->nic < FAKE_NICS)
        host.contexts[c->nic] = c;
    leave(1);
    return &c->ibv;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    fake_context *c = (fake_context *)context;
    close(c->ibv.async_fd);
    close(c->event_fd);
    enter();
    if (c->nic < FAKE_NICS && host.contexts[c->nic] == c)
        host.contexts[c->nic] = NULL;
    leave(-1);
    free(c);
    if (--host.open == 0) {
        atomic_store(&host.stop, true);
        pthread_join(host.thread, NULL);
        uf_model_destroy(host.model);
    }
    return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    if (fails("ibv_query_device"))
        return fake_rdma_core.error;
    memset(attr, 0, sizeof *attr);
    attr->max_cqe = 32768;
    attr->vendor_part_id = 0xefa2;
    strcpy(attr->fw_ver, "0.0.0.0");
    return 0;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    (void)context;
    if (fails("ibv_query_port"))
        return fake_rdma_core.error;
    if (port != 1)
        return refuse("port");
    struct ibv_port_attr *a = (struct ibv_port_attr *)(void *)attr;
    a->state = fake_rdma_core.port_state ? (enum ibv_port_state)fake_rdma_core.port_state : IBV_PORT_ACTIVE;
    a->max_msg_sz = 8928;
    return 0;
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    if (fails("ibv_query_gid"))
        return -1;
    if (port != 1 || index != 0) {
        refuse("gid index");
        return -1;
    }
    uf_model_nic_gid(nic_of(context), gid->raw);
    return 0;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    int type;
    if (read(context->async_fd, &type, sizeof type) != sizeof type)
        return -1;
    event->event_type = (enum ibv_event_type)type;
    return 0;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

EXPORT int efadv_query_device(struct ibv_context *context, uf_efadv_device *attr, uint32_t bytes)
{
    if (((fake_context *)context)->nic >= FAKE_NICS)
        return EOPNOTSUPP;
    if (fails("efadv_query_device"))
        return fake_rdma_core.error;
    if (bytes < sizeof *attr)
        return refuse("efadv_device_attr is shorter than this library's");
    const uint32_t caps = UF_EFADV_RDMA_READ | UF_EFADV_RDMA_WRITE | UF_EFADV_RNR_RETRY | UF_EFADV_UNSOLICITED_WRITE_RECV;
    *attr = (uf_efadv_device){.max_sq_wr = 4096,
                              .max_rq_wr = 32768,
                              .max_sq_sge = 2,
                              .max_rq_sge = 3,
                              .inline_buf_size = 32,
                              .inline_buf_size_ex = 80,
                              .device_caps = caps & ~fake_rdma_core.caps_without,
                              .max_rdma_size = 1u << 30};
    return 0;
}

/* ---------------------------------------------------------------- domains, memory, handles */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    if (fails("ibv_alloc_pd"))
        return NULL;
    fake_pd *pd = calloc(1, sizeof *pd);
    pd->ibv.context = context;
    enter();
    pd->number = ++host.next_pd;
    leave(1);
    return &pd->ibv;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    if (((fake_pd *)pd)->users)
        return refuse("protection domain in use");
    enter();
    leave(-1);
    free(pd);
    return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *ptr, size_t bytes, int access)
{
    if (fails("ibv_reg_mr"))
        return NULL;
    if (access & IBV_ACCESS_REMOTE_WRITE && !(access & IBV_ACCESS_LOCAL_WRITE)) {
        refuse("remote write without local write");
        return NULL;
    }
    uint32_t rights = access & IBV_ACCESS_LOCAL_WRITE ? UF_MODEL_LOCAL : 0;
    rights |= access & IBV_ACCESS_REMOTE_READ ? UF_MODEL_REMOTE_READ : 0;
    rights |= access & IBV_ACCESS_REMOTE_WRITE ? UF_MODEL_REMOTE_WRITE : 0;
    fake_mr *mr = calloc(1, sizeof *mr);
    enter();
    int rc = uf_model_mr_register(nic_of(pd->context), ((fake_pd *)pd)->number, ptr, bytes, rights, &mr->mr);
    leave(rc ? 0 : 1);
    if (rc) {
        free(mr);
        errno = ENOMEM;
        return NULL;
    }
    ((fake_pd *)pd)->users++;
    mr->ibv.context = pd->context;
    mr->ibv.pd = pd;
    mr->ibv.lkey = mr->mr.lkey;
    mr->ibv.rkey = mr->mr.rkey;
    return &mr->ibv;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    enter();
    uf_model_mr_close(nic_of(mr->context), ((fake_mr *)mr)->mr);
    leave(-1);
    ((fake_pd *)mr->pd)->users--;
    free(mr);
    return 0;
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    if (fails("ibv_create_ah"))
        return NULL;
    if (!attr->is_global || attr->port_num != 1) {
        refuse("address handle that is not global");
        return NULL;
    }
    fake_ah *ah = calloc(1, sizeof *ah);
    enter();
    int rc = uf_model_ah_create(nic_of(pd->context), attr->grh.dgid.raw, &ah->number);
    leave(rc ? 0 : 1);
    if (rc) {
        free(ah);
        errno = EINVAL;
        return NULL;
    }
    ((fake_pd *)pd)->users++;
    ah->ibv.context = pd->context;
    ah->ibv.pd = pd;
    return &ah->ibv;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
    enter();
    uf_model_ah_destroy(nic_of(ah->context), ((fake_ah *)ah)->number);
    leave(-1);
    ((fake_pd *)ah->pd)->users--;
    free(ah);
    return 0;
}

EXPORT int efadv_query_ah(struct ibv_ah *ah, uf_efadv_ah *attr, uint32_t bytes)
{
    if (fails("efadv_query_ah"))
        return fake_rdma_core.error;
    if (bytes != sizeof *attr)
        return refuse("efadv_ah_attr");
    attr->ahn = ((fake_ah *)ah)->number;
    return 0;
}

/* ---------------------------------------------------------------- queues */

EXPORT struct ibv_cq_ex *efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, uf_efadv_cq_init *efa,
                                         uint32_t bytes)
{
    if (fails("efadv_create_cq"))
        return NULL;
    if (bytes > sizeof *efa || efa->comp_mask || attr->cqe > 32768) {
        refuse("completion queue");
        return NULL;
    }
    fake_cq *cq = calloc(1, sizeof *cq);
    cq->ibv.context = context;
    cq->entries = 1;
    while (cq->entries < attr->cqe)
        cq->entries *= 2;
    cq->ring = calloc(cq->entries, UF_EFA_CQE_WORDS * 8);
    const uf_model_cq_options o = {.memory = cq->ring, .entries = cq->entries, .entry_bytes = UF_EFA_CQE_WORDS * 8};
    enter();
    int rc = uf_model_cq_create(nic_of(context), &o, &cq->cq);
    leave(rc ? 0 : 1);
    if (!rc)
        return &cq->ibv;
    free(cq->ring);
    free(cq);
    errno = ENOMEM;
    return NULL;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *ibv)
{
    fake_cq *cq = (fake_cq *)ibv;
    if (cq->users)
        return refuse("completion queue in use");
    enter();
    uf_model_cq_destroy(cq->cq);
    leave(-1);
    free(cq->ring);
    free(cq);
    return 0;
}

/* SRD queue pairs come to life when they are ready to send; the model's are born so. */
static int awaken(fake_qp *qp)
{
    const struct ibv_qp_cap *cap = &qp->attr.cap;
    const uf_model_qp_options o = {.pd = ((fake_pd *)qp->attr.pd)->number,
                                   .sq_depth = cap->max_send_wr,
                                   .rq_depth = cap->max_recv_wr,
                                   .wqe_bytes = qp->efa.flags & UF_EFADV_QP_INLINE_WRITE || cap->max_inline_data > 32 ? 128 : 64,
                                   .qkey = qp->qkey,
                                   .rnr_retry = 7,
                                   .unsolicited = qp->efa.flags & UF_EFADV_QP_UNSOLICITED,
                                   .plain = true,
                                   .send_cq = ((fake_cq *)qp->attr.send_cq)->cq,
                                   .recv_cq = ((fake_cq *)qp->attr.recv_cq)->cq};
    int rc = uf_model_qp_create(nic_of(qp->ibv.context), &o, &qp->info);
    qp->ibv.qp_num = qp->info.qpn;
    return rc ? ENOMEM : 0;
}

EXPORT struct ibv_qp *efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, uf_efadv_qp_init *efa,
                                         uint32_t bytes)
{
    if (fails("efadv_create_qp_ex"))
        return NULL;
    const uint32_t needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (bytes > sizeof *efa || efa->comp_mask || efa->reserved || efa->driver_qp_type != UF_EFADV_SRD ||
        attr->qp_type != IBV_QPT_DRIVER || attr->comp_mask != needed || !attr->sq_sig_all || attr->cap.max_recv_sge > 3 ||
        attr->cap.max_send_sge > 2) {
        refuse("queue pair");
        return NULL;
    }
    fake_qp *qp = calloc(1, sizeof *qp);
    qp->ibv.context = context;
    qp->attr = *attr;
    qp->efa = *efa;
    ((fake_pd *)attr->pd)->users++;
    ((fake_cq *)attr->send_cq)->users++;
    enter();
    leave(1);
    return &qp->ibv;
}

EXPORT int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    fake_qp *qp = (fake_qp *)ibv;
    if (fails("ibv_modify_qp"))
        return fake_rdma_core.error;
    const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    int rc = 0;
    enter();
    if (qp->state == IBV_QPS_RESET && attr->qp_state == IBV_QPS_INIT && mask == init && attr->port_num == 1)
        qp->qkey = attr->qkey;
    else if (qp->state == IBV_QPS_RTR && attr->qp_state == IBV_QPS_RTS &&
             (mask & ~IBV_QP_RNR_RETRY) == (IBV_QP_STATE | IBV_QP_SQ_PSN))
        rc = awaken(qp);
    else if (qp->state != IBV_QPS_INIT || attr->qp_state != IBV_QPS_RTR || mask != IBV_QP_STATE)
        rc = refuse("order of states, or attributes of one");
    if (!rc)
        qp->state = attr->qp_state;
    leave(0);
    return rc;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *ibv)
{
    fake_qp *qp = (fake_qp *)ibv;
    enter();
    if (qp->state == IBV_QPS_RTS)
        (void)uf_model_qp_destroy(nic_of(ibv->context), qp->info.qpn);
    leave(-1);
    ((fake_pd *)qp->attr.pd)->users--;
    ((fake_cq *)qp->attr.send_cq)->users--;
    free(qp);
    return 0;
}

#if !defined(FAKE_IS_OLD)
EXPORT int efadv_query_qp_wqs(struct ibv_qp *ibv, uf_efadv_wq *sq, uf_efadv_wq *rq, uint32_t bytes)
{
    fake_qp *qp = (fake_qp *)ibv;
    if (fails("efadv_query_qp_wqs"))
        return fake_rdma_core.error;
    if (bytes != sizeof *sq || qp->state != IBV_QPS_RTS)
        return refuse("efadv_wq_attr");
    bool wide = qp->efa.flags & UF_EFADV_QP_INLINE_WRITE;
    *sq = (uf_efadv_wq){.buffer = (uint8_t *)qp->info.sq_ring,
                        .entry_size = wide ? 128 : 64,
                        .num_entries = qp->info.sq_depth,
                        .doorbell = qp->info.sq_doorbell,
                        .max_batch = qp->info.max_batch};
    *rq = (uf_efadv_wq){.buffer = (uint8_t *)qp->info.rq_ring,
                        .entry_size = 16,
                        .num_entries = qp->info.rq_depth,
                        .doorbell = qp->info.rq_doorbell};
    return 0;
}

EXPORT int efadv_query_cq(struct ibv_cq *ibv, uf_efadv_cq *attr, uint32_t bytes)
{
    fake_cq *cq = (fake_cq *)ibv;
    if (fails("efadv_query_cq"))
        return fake_rdma_core.error;
    if (bytes != sizeof *attr)
        return refuse("efadv_cq_attr");
    *attr = (uf_efadv_cq){.buffer = (uint8_t *)cq->ring, .entry_size = UF_EFA_CQE_WORDS * 8, .num_entries = cq->entries};
    return 0;
}
#endif
