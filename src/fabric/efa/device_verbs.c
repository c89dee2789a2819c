/* device_verbs.c - real EFA NICs as a device of the efa fabric (device.h), through libibverbs and libefa.
 *
 * The libraries make things: protection domain, queues, registrations, address handles, in the order of the driver's documents
 * (reference 2.5). From then on they are not asked: rings and doorbells are read and written by queue.h. What nobody has yet seen on
 * hardware is marked [I], and docs/first-efa-run.md says how to find out. Nothing here runs on the path of a put.
 * A NIC's own limits are asked of it and never assumed; what a host lacks is refused with the name of what is missing. */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "fabric/efa/choose.h"
#include "fabric/efa/device.h"
#include "fabric/efa/verbs_library.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    PORT = 1,
    WIDE_WQE_BYTES = 128,
    WIDE_INLINE_BYTES = 80, /* what makes a queue one of 128-byte entries */
    NARROW_INLINE_BYTES = 32,
};

/* A handle that was given out, and what destroys it. */
typedef struct handle {
    uint16_t ahn;
    struct ibv_ah *ah;
} handle;

typedef struct nic {
    struct ibv_context *context;
    struct ibv_pd *pd;
    handle *handles;
    uint32_t n_handles, room;
    bool rnr_retry;
    char failure[96]; /* the first fatal event */
} nic;

typedef struct verbs_device {
    uf_efa_device base;
    uf_verbs lib;
    int pe;
    const char *root;  /* while it is opened */
    uint64_t nic_rate; /* UNFENCE_NIC_RATE */
    nic nics[UF_EFA_NICS_MAX];
} verbs_device;

struct uf_efa_device_cq {
    struct ibv_cq *cq;
};

struct uf_efa_device_mr {
    struct ibv_mr *mr;
};

static const char *name_of(const verbs_device *d, uint32_t i)
{
    return d->base.nics[i].name;
}

/* errno as the libraries leave it, with what it most often means here. */
static int refuse(const verbs_device *d, uint32_t i, const char *what, int error, const char *remedy)
{
    return uf_fail_errno(error == ENOMEM || error == ENOSPC ? UF_ENOMEM : UF_ESYSTEM, error,
                         "PE %d: EFA device %s: %s failed (%s)", d->pe, name_of(d, i), what, remedy);
}

/* ---------------------------------------------------------------- what a NIC can do */

static uint32_t round_down(uint32_t n)
{
    return n ? 1u << (31 - __builtin_clz(n)) : 0;
}

/* Verbs tell a speed in steps that EFA's generations have outgrown; what sysfs and the instance type say is better. */
static uint64_t rate_of(const verbs_device *d, const char *name)
{
    uf_topo_nic found;
    bool known = uf_topo_read_nic(d->root, name, d->nic_rate, &found) && uf_topo_rate_known(found.rate);
    return known ? found.rate.mbps * (1000000 / 8) : d->nic_rate * (1000000000 / 8);
}

static int describe(verbs_device *d, uint32_t i, const uf_efadv_device *efa)
{
    nic *n = &d->nics[i];
    uf_efa_nic *out = &d->base.nics[i];
    struct ibv_device_attr device = {0};
    struct ibv_port_attr port = {0};
    union ibv_gid gid;
    int error = d->lib.ibv_query_device_(n->context, &device);
    if (!error)
        error = d->lib.ibv_query_port_(n->context, PORT, &port);
    if (error)
        return refuse(d, i, "asking for its limits", error, "the driver does not answer; see dmesg");
    if (port.state != IBV_PORT_ACTIVE)
        return uf_fail(UF_EUNSUPPORTED,
                       "PE %d: the port of EFA device %s is not active (state %d): the interface is detached or down; "
                       "name the devices to use as UNFENCE_FABRIC=efa:NAME,NAME",
                       d->pe, out->name, (int)port.state);
    if (d->lib.ibv_query_gid_(n->context, PORT, 0, &gid))
        return refuse(d, i, "asking for its address", errno, "the driver does not answer; see dmesg");
    memcpy(out->gid, gid.raw, sizeof out->gid);
    snprintf(out->detail, sizeof out->detail, "part 0x%x, firmware %.40s", device.vendor_part_id, device.fw_ver);
    out->rate_bytes = rate_of(d, out->name);
    out->can_read = efa->device_caps & UF_EFADV_RDMA_READ;
    out->can_write = efa->device_caps & UF_EFADV_RDMA_WRITE;
    out->can_unsolicited = efa->device_caps & UF_EFADV_UNSOLICITED_WRITE_RECV;
    n->rnr_retry = efa->device_caps & UF_EFADV_RNR_RETRY;
    /* The device may place payload twice; whether it does is known only of the first generations that promise block order [C], so it
     * is taken to. */
    out->duplicates = true;
    out->max_sq = round_down(efa->max_sq_wr);
    out->wide_write = efa->inline_buf_size_ex >= WIDE_INLINE_BYTES && out->can_write;
    out->max_sq_wide = out->wide_write ? out->max_sq / 2 : 0; /* the same memory in entries of twice the size [I] */
    out->max_rq = round_down(efa->max_rq_wr);
    out->max_cq = round_down((uint32_t)device.max_cqe);
    out->max_ahs = device.max_ah > 0 ? (uint32_t)device.max_ah : UINT16_MAX; /* the driver reports none */
    out->max_rdma = efa->max_rdma_size;
    out->mtu = port.max_msg_sz;
    return UF_OK;
}

static int open_nic(verbs_device *d, uint32_t i, struct ibv_device *device, const uf_efadv_device *efa,
                    struct ibv_context *context)
{
    nic *n = &d->nics[i];
    snprintf(d->base.nics[i].name, sizeof d->base.nics[i].name, "%s", d->lib.ibv_get_device_name_(device));
    n->context = context;
    d->base.n_nics = i + 1; /* close frees it from here on */
    int rc = describe(d, i, efa);
    if (rc)
        return rc;
    n->pd = d->lib.ibv_alloc_pd_(context);
    if (!n->pd)
        return refuse(d, i, "making a protection domain", errno, "the device's limit, or the locked-memory limit");
    /* Events are looked at and never waited for. */
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    return UF_OK;
}

/* ---------------------------------------------------------------- which NICs */

/* Where `name` stands in the list "NAME,NAME", or -1. The empty list has every NIC, in the order of the system. */
static int place_in_list(const char *list, const char *name, uint32_t next)
{
    if (!list[0])
        return (int)next;
    size_t length = strlen(name);
    int place = 0;
    for (const char *c = list;; place++) {
        const char *comma = strchr(c, ',');
        size_t n = comma ? (size_t)(comma - c) : strlen(c);
        if (n == length && memcmp(c, name, n) == 0)
            return place;
        if (!comma)
            return -1;
        c = comma + 1;
    }
}

static uint32_t names_in(const char *list)
{
    uint32_t n = list[0] != 0;
    for (const char *c = list; *c; c++)
        n += *c == ',';
    return n;
}

static int refuse_names(const verbs_device *d, const char *list, struct ibv_device **devices, uint32_t found)
{
    char there[400] = "none";
    size_t at = 0;
    for (int i = 0; devices[i] && at < sizeof there; i++)
        at += (size_t)snprintf(there + at, sizeof there - at, "%s%s", i ? ", " : "", d->lib.ibv_get_device_name_(devices[i]));
    if (!list[0])
        return uf_fail(UF_EUNSUPPORTED,
                       "PE %d: this host has no EFA device (RDMA devices: %s): it needs an instance type with EFA, the EFA "
                       "interface attached, "
                       "and the efa driver loaded; UNFENCE_FABRIC=ofi:tcp works without, efa:model is the device model",
                       d->pe, there);
    return uf_fail(UF_EUNSUPPORTED,
                   "PE %d: of the %u devices of UNFENCE_FABRIC=efa:%s this host has %u as EFA devices (RDMA devices: %s)", d->pe,
                   names_in(list), list, found, there);
}

typedef struct candidate {
    struct ibv_device *device;
    struct ibv_context *context;
    uf_efadv_device efa;
} candidate;

/* Opens the devices of the list that are EFA devices, each at its place. */
static int open_candidates(verbs_device *d, const char *list, struct ibv_device **devices, candidate *all, uint32_t *n)
{
    *n = 0;
    int denied = 0;
    for (int i = 0; devices[i]; i++) {
        const char *name = d->lib.ibv_get_device_name_(devices[i]);
        int place = place_in_list(list, name, *n);
        if (place < 0 || place >= UF_EFA_NICS_MAX || all[place].context)
            continue;
        candidate c = {.device = devices[i], .context = d->lib.ibv_open_device_(devices[i])};
        if (!c.context) {
            denied = errno;
            continue;
        }
        if (d->lib.efadv_query_device_(c.context, &c.efa, sizeof c.efa)) { /* of another maker */
            d->lib.ibv_close_device_(c.context);
            continue;
        }
        all[place] = c;
        ++*n;
    }
    if (*n < (list[0] ? names_in(list) : 1) && denied)
        return uf_fail_errno(UF_ESYSTEM, denied,
                             "PE %d: an RDMA device cannot be opened: /dev/infiniband/uverbs* must be there and writable "
                             "(in a container: --device=/dev/infiniband)",
                             d->pe);
    return UF_OK;
}

/* Moves the candidates that are this PE's rails to the front, in their order. */
static int keep_near(verbs_device *d, const uf_efa_device_params *params, candidate *all, uint32_t *n)
{
    const char *names[UF_EFA_NICS_MAX];
    candidate sorted[UF_EFA_NICS_MAX] = {0};
    uf_efa_local local;
    uf_efa_choice choice;
    uf_topo *topo;
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    int rc = uf_topo_read(d->root, d->nic_rate, &topo);
    if (rc)
        return rc;
    local = (uf_efa_local){0};
    uf_efa_local_read((const char *const *)environ, params->pe, params->n_pes, params->one_host, &local);
    for (uint32_t cpu = 0; known && cpu < CPU_SETSIZE; cpu++) {
        bool may = CPU_ISSET(cpu, &allowed);
        local.cpus.bits[cpu / 64] |= (uint64_t)may << cpu % 64;
        local.cpus.count += may;
    }
    for (uint32_t i = 0; i < *n; i++)
        names[i] = d->lib.ibv_get_device_name_(all[i].device);
    uf_efa_choose(topo, names, *n, params->n_rails, &local, &choice);
    uint32_t at = 0;
    for (uint32_t i = 0; i < choice.n; i++) {
        sorted[at++] = all[choice.nic[i]];
        uf_log(UF_LOG_INFO, d->pe, "rail %u is EFA device %s, %s", i, names[choice.nic[i]], choice.why);
        all[choice.nic[i]].context = NULL;
    }
    for (uint32_t i = 0; i < *n; i++)
        if (all[i].context)
            sorted[at++] = all[i];
    memcpy(all, sorted, sizeof sorted);
    *n = choice.n;
    uf_topo_free(topo);
    return UF_OK;
}

static int open_nics(verbs_device *d, const uf_efa_device_params *params)
{
    const char *list = params->name;
    int n_devices = 0;
    struct ibv_device **devices = d->lib.ibv_get_device_list_(&n_devices);
    if (!devices)
        return uf_fail_errno(UF_EUNSUPPORTED, errno,
                             "PE %d: the RDMA devices of this host cannot be listed (is the ib_uverbs module loaded?)", d->pe);
    candidate all[UF_EFA_NICS_MAX] = {0};
    uint32_t found, opened = 0;
    int rc = open_candidates(d, list, devices, all, &found);
    if (!rc && (found == 0 || found < names_in(list)))
        rc = refuse_names(d, list, devices, found);
    if (!rc && !list[0])
        rc = keep_near(d, params, all, &found);
    for (; !rc && opened < found; opened++)
        rc = open_nic(d, opened, all[opened].device, &all[opened].efa, all[opened].context);
    for (uint32_t i = d->base.n_nics; i < UF_EFA_NICS_MAX; i++) /* those that no NIC owns yet */
        if (all[i].context)
            d->lib.ibv_close_device_(all[i].context);
    d->lib.ibv_free_device_list_(devices);
    return rc;
}

/* ---------------------------------------------------------------- open, close */

static void verbs_close(uf_efa_device *device)
{
    verbs_device *d = (verbs_device *)device;
    for (uint32_t i = 0; i < d->base.n_nics; i++) {
        nic *n = &d->nics[i];
        for (uint32_t k = 0; k < n->n_handles; k++)
            d->lib.ibv_destroy_ah_(n->handles[k].ah);
        free(n->handles);
        if (n->pd)
            d->lib.ibv_dealloc_pd_(n->pd);
        d->lib.ibv_close_device_(n->context);
    }
    uf_verbs_unload(&d->lib);
    free(d);
}

static uint64_t new_token(void)
{
    uint64_t token;
    if (getrandom(&token, sizeof token, GRND_NONBLOCK) != (ssize_t)sizeof token)
        token = uf_clock_ns(); /* early at boot: tokens need only differ */
    return token;
}

static int verbs_open(const uf_efa_device_params *params, uf_efa_device **device)
{
    verbs_device *d = calloc(1, sizeof *d);
    if (!d)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for an EFA device", params->pe);
    d->base.ops = &uf_efa_device_verbs;
    d->pe = params->pe;
    int rc = uf_verbs_load(params->settings->text[UF_SET_RDMA_CORE], params->pe, &d->lib);
    if (rc) {
        free(d);
        return rc;
    }
    d->base.token = new_token();
    d->root = params->root ? params->root : "";
    d->nic_rate = (uint64_t)params->settings->number[UF_SET_NIC_RATE];
    rc = open_nics(d, params);
    d->root = NULL;
    if (rc)
        verbs_close(&d->base);
    else
        *device = &d->base;
    return rc;
}

/* ---------------------------------------------------------------- completion queues */

static bool power_of_two(uint32_t n)
{
    return n && (n & (n - 1)) == 0;
}

static int verbs_cq_create(uf_efa_device *device, uint32_t i, uint32_t entries, uf_efa_cq *queue, uf_efa_device_cq **out)
{
    verbs_device *d = (verbs_device *)device;
    struct ibv_cq_init_attr_ex attr = {.cqe = entries};
    uf_efadv_cq_init efa = {0};
    uf_efadv_cq ring = {0};
    uf_efa_device_cq *cq = calloc(1, sizeof *cq);
    if (!cq)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to note a completion queue", d->pe);
    struct ibv_cq_ex *made = d->lib.efadv_create_cq_(d->nics[i].context, &attr, &efa, sizeof efa);
    int rc = made ? UF_OK
                  : refuse(d, i, "making a completion queue", errno, "the device's limit, or the locked-memory limit: ulimit -l");
    if (!rc) {
        cq->cq = (struct ibv_cq *)made; /* as ibv_cq_ex_to_cq: the first members are the same */
        int error = d->lib.efadv_query_cq_(cq->cq, &ring, sizeof ring);
        if (error)
            rc = refuse(d, i, "asking for the memory of a completion queue", error,
                        "rdma-core and the efa driver must be of one age");
    }
    if (!rc && ((ring.entry_size != UF_EFA_CQE_WORDS * 8 && ring.entry_size != UF_EFA_CQE_WORDS * 4) ||
                !power_of_two(ring.num_entries) || ring.num_entries < entries))
        rc = uf_fail(UF_EUNSUPPORTED,
                     "PE %d: EFA device %s has completion queues of %u entries of %u bytes where %u of 32 or 16 were asked for: "
                     "this library does not know them yet; UNFENCE_FABRIC=ofi:efa-direct leaves them to libfabric",
                     d->pe, name_of(d, i), ring.num_entries, ring.entry_size, entries);
    if (rc) {
        if (made)
            d->lib.ibv_destroy_cq_((struct ibv_cq *)made);
        free(cq);
        return rc;
    }
    uf_efa_cq_init(queue, (const uint64_t *)(const void *)ring.buffer, (uint32_t)__builtin_ctz(ring.num_entries),
                   ring.entry_size / 8);
    *out = cq;
    return UF_OK;
}

static void verbs_cq_destroy(uf_efa_device *device, uf_efa_device_cq *cq)
{
    verbs_device *d = (verbs_device *)device;
    d->lib.ibv_destroy_cq_(cq->cq);
    free(cq);
}

/* ---------------------------------------------------------------- queue pairs */

static struct ibv_qp *make_qp(verbs_device *d, uint32_t i, const uf_efa_qp_options *o)
{
    bool wide = o->wqe_bytes == WIDE_WQE_BYTES;
    const uf_efa_nic *can = &d->base.nics[i];
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = o->send_cq->cq,
        .recv_cq = o->recv_cq->cq,
        .cap = {.max_send_wr = o->sq_depth,
                .max_recv_wr = o->rq_depth,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = wide ? WIDE_INLINE_BYTES : NARROW_INLINE_BYTES},
        .qp_type = IBV_QPT_DRIVER,
        .sq_sig_all = 1,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = d->nics[i].pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    if (can->can_read)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ;
    if (can->can_write)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    uf_efadv_qp_init efa = {.driver_qp_type = UF_EFADV_SRD};
    if (o->unsolicited)
        efa.flags |= UF_EFADV_QP_UNSOLICITED;
    if (wide)
        efa.flags |= UF_EFADV_QP_INLINE_WRITE;
    // cppcheck-suppress returnDanglingLifetime ; the call through a pointer is taken for an initialiser
    return d->lib.efadv_create_qp_ex_(d->nics[i].context, &attr, &efa, sizeof efa);
}

/* RESET -> INIT -> RTR -> RTS, with nothing about a peer: SRD names it in each entry. */
static int make_ready(verbs_device *d, uint32_t i, struct ibv_qp *qp, const uf_efa_qp_options *o)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = o->qkey};
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .rnr_retry = (uint8_t)o->rnr_retry};
    int retry = d->nics[i].rnr_retry ? IBV_QP_RNR_RETRY : 0; /* devices without it retry for ever [I] */
    int error = d->lib.ibv_modify_qp_(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    if (!error)
        error = d->lib.ibv_modify_qp_(qp, &receive, IBV_QP_STATE);
    if (!error)
        error = d->lib.ibv_modify_qp_(qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN | retry);
    return error ? refuse(d, i, "making a queue pair ready", error, "the driver refused it; see dmesg") : UF_OK;
}

static int take_rings(verbs_device *d, uint32_t i, struct ibv_qp *made, const uf_efa_qp_options *o, uf_efa_qp *qp)
{
    uf_efadv_wq sq = {0}, rq = {0};
    int error = d->lib.efadv_query_qp_wqs_(made, &sq, &rq, sizeof sq);
    if (error)
        return refuse(d, i, "asking for the memory of a queue pair", error, "rdma-core and the efa driver must be of one age");
    if (sq.entry_size != o->wqe_bytes || !power_of_two(sq.num_entries) || sq.num_entries < o->sq_depth || rq.entry_size != 16 ||
        !power_of_two(rq.num_entries) || rq.num_entries < o->rq_depth)
        return uf_fail(UF_EUNSUPPORTED,
                       "PE %d: EFA device %s made queues of %u entries of %u bytes and %u of %u where %u of %u and %u of 16 were "
                       "asked for: this "
                       "library does not know them yet; UNFENCE_FABRIC=ofi:efa-direct leaves them to libfabric",
                       d->pe, name_of(d, i), sq.num_entries, sq.entry_size, rq.num_entries, rq.entry_size, o->sq_depth,
                       o->wqe_bytes, o->rq_depth);
    qp->qpn = (uint16_t)made->qp_num;
    qp->maker = made;
    uint32_t limit = o->sq_depth; /* the fabric's own bound: it made the completion queue for it */
    uf_efa_sq_init(&qp->sq, (uint64_t *)(void *)sq.buffer, sq.doorbell, (uint32_t)__builtin_ctz(sq.num_entries), o->wqe_bytes / 8,
                   limit, sq.max_batch, NULL);
    uf_efa_rq_init(&qp->rq, (uint64_t *)(void *)rq.buffer, rq.doorbell, (uint32_t)__builtin_ctz(rq.num_entries));
    d->base.nics[i].wide_ids = sq.caps & UF_EFADV_WQ_64_BIT_IDS;
    return UF_OK;
}

static int verbs_qp_create(uf_efa_device *device, uint32_t i, const uf_efa_qp_options *options, uf_efa_qp *qp)
{
    verbs_device *d = (verbs_device *)device;
    struct ibv_qp *made = make_qp(d, i, options);
    if (!made)
        return refuse(
            d, i, "making a queue pair", errno,
            options->unsolicited || options->wqe_bytes == WIDE_WQE_BYTES
                ? "an rdma-core that does not know unsolicited receives or wide entries, the device's limit, or ulimit -l"
                : "the device's limit of queue pairs, or the locked-memory limit: ulimit -l");
    int rc = make_ready(d, i, made, options);
    if (!rc)
        rc = take_rings(d, i, made, options, qp);
    if (rc)
        d->lib.ibv_destroy_qp_(made);
    return rc;
}

static void verbs_qp_destroy(uf_efa_device *device, uint32_t i, uf_efa_qp *qp)
{
    (void)i;
    verbs_device *d = (verbs_device *)device;
    d->lib.ibv_destroy_qp_(qp->maker);
    qp->maker = NULL;
}

/* ---------------------------------------------------------------- registrations and handles */

static int verbs_mr_register(uf_efa_device *device, uint32_t i, void *ptr, size_t bytes, unsigned access, uf_efa_device_mr **out,
                             uint32_t *lkey, uint32_t *rkey)
{
    verbs_device *d = (verbs_device *)device;
    /* A NIC that cannot read or write refuses a registration that allows it. */
    int rights = access & UF_EFA_ACCESS_LOCAL ? IBV_ACCESS_LOCAL_WRITE : 0;
    if (access & UF_EFA_ACCESS_REMOTE_READ && d->base.nics[i].can_read)
        rights |= IBV_ACCESS_REMOTE_READ;
    if (access & UF_EFA_ACCESS_REMOTE_WRITE && d->base.nics[i].can_write)
        rights |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    uf_efa_device_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to note a registration", d->pe);
    mr->mr = d->lib.ibv_reg_mr_(d->nics[i].pd, ptr, bytes, rights);
    if (!mr->mr) {
        int error = errno;
        free(mr);
        return uf_fail_errno(
            error == ENOMEM ? UF_ENOMEM : UF_ESYSTEM, error,
            "PE %d: EFA device %s cannot register %zu bytes at %p (if it is the locked-memory limit: ulimit -l unlimited)", d->pe,
            name_of(d, i), bytes, ptr);
    }
    *lkey = mr->mr->lkey;
    *rkey = mr->mr->rkey;
    *out = mr;
    return UF_OK;
}

static void verbs_mr_close(uf_efa_device *device, uf_efa_device_mr *mr)
{
    verbs_device *d = (verbs_device *)device;
    d->lib.ibv_dereg_mr_(mr->mr);
    free(mr);
}

static int note_handle(verbs_device *d, uint32_t i, handle h)
{
    nic *n = &d->nics[i];
    if (n->n_handles == n->room) {
        uint32_t room = n->room ? 2 * n->room : 64;
        handle *more = realloc(n->handles, room * sizeof *more);
        if (!more)
            return uf_fail(UF_ENOMEM, "PE %d: no memory to note %u address handles", d->pe, room);
        n->handles = more;
        n->room = room;
    }
    n->handles[n->n_handles++] = h;
    return UF_OK;
}

static int verbs_ah_create(uf_efa_device *device, uint32_t i, const uint8_t gid[16], uint16_t *ah)
{
    verbs_device *d = (verbs_device *)device;
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT};
    memcpy(attr.grh.dgid.raw, gid, sizeof attr.grh.dgid.raw);
    handle h = {.ah = d->lib.ibv_create_ah_(d->nics[i].pd, &attr)};
    if (!h.ah)
        return refuse(
            d, i, "making the address handle of a peer", errno,
            "the peer is in another subnet or availability zone, or a security group does not let all traffic of itself through");
    uf_efadv_ah number = {0};
    int error = d->lib.efadv_query_ah_(h.ah, &number, sizeof number);
    h.ahn = number.ahn;
    int rc = error ? refuse(d, i, "asking for the number of an address handle", error,
                            "rdma-core and the efa driver must be of one age")
                   : note_handle(d, i, h);
    if (rc)
        d->lib.ibv_destroy_ah_(h.ah);
    else
        *ah = h.ahn;
    return rc;
}

static void verbs_ah_destroy(uf_efa_device *device, uint32_t i, uint16_t ah)
{
    verbs_device *d = (verbs_device *)device;
    nic *n = &d->nics[i];
    for (uint32_t k = 0; k < n->n_handles; k++)
        if (n->handles[k].ahn == ah) {
            d->lib.ibv_destroy_ah_(n->handles[k].ah);
            n->handles[k] = n->handles[--n->n_handles];
            return;
        }
}

/* ---------------------------------------------------------------- failure */

static const char *fatal(enum ibv_event_type type)
{
    switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
        return "the device failed";
    case IBV_EVENT_PORT_ERR:
        return "its port went down";
    case IBV_EVENT_QP_FATAL:
        return "a queue pair failed";
    case IBV_EVENT_CQ_ERR:
        return "a completion queue was overrun";
    default:
        return NULL;
    }
}

static int verbs_failed(uf_efa_device *device, uint32_t i)
{
    verbs_device *d = (verbs_device *)device;
    nic *n = &d->nics[i];
    struct ibv_async_event event;
    struct pollfd fd = {.fd = n->context->async_fd, .events = POLLIN};
    while (!n->failure[0] && poll(&fd, 1, 0) > 0 && d->lib.ibv_get_async_event_(n->context, &event) == 0) {
        const char *what = fatal(event.event_type);
        d->lib.ibv_ack_async_event_(&event);
        if (what)
            snprintf(n->failure, sizeof n->failure, "%s", what);
    }
    return n->failure[0] ? uf_fail(UF_EFABRIC, "PE %d: EFA device %s of rail %u: %s; see dmesg, and restart the job without it",
                                   d->pe, name_of(d, i), i, n->failure)
                         : UF_OK;
}

static uint64_t verbs_now(uf_efa_device *device)
{
    (void)device;
    return uf_clock_ns();
}

/* No descriptor to sleep on: a queue that is polled behind the library's back cannot be armed through it [I]. */
const struct uf_efa_device_ops uf_efa_device_verbs = {.name = "verbs",
                                                      .open = verbs_open,
                                                      .close = verbs_close,
                                                      .cq_create = verbs_cq_create,
                                                      .cq_destroy = verbs_cq_destroy,
                                                      .qp_create = verbs_qp_create,
                                                      .qp_destroy = verbs_qp_destroy,
                                                      .mr_register = verbs_mr_register,
                                                      .mr_close = verbs_mr_close,
                                                      .ah_create = verbs_ah_create,
                                                      .ah_destroy = verbs_ah_destroy,
                                                      .now = verbs_now,
                                                      .failed = verbs_failed};
