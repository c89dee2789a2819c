/* efa.c - opens the EFA fabric: chooses sizes from what the NICs can do and the caller wants, makes the queues, meets the peers.
 *
 * Everything that a rail will ever need is made here, before the first WR: queues, receives, handles of all peers (a NIC refuses
 * RDMA of a peer it has no handle for, so both sides make them before connect returns on either), so that nothing on the path of a put
 * allocates or asks the device. */
#include "fabric/efa/efa.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* By the first letters of the name that follows "efa:"; the empty one takes every other name. */
static const struct {
    const char *begins;
    const struct uf_efa_device_ops *ops;
} devices[] = {
    {"model", &uf_efa_device_model},
#if defined(UNFENCE_WITH_VERBS)
    {"", &uf_efa_device_verbs},
#endif
};

static int open_device(const uf_fabric_params *params, uf_efa_device **device)
{
    const uf_efa_device_params p = {.settings = params->settings,
                                    .name = params->provider ? params->provider : "",
                                    .pe = params->pe,
                                    .n_pes = params->n_pes,
                                    .one_host = params->one_host,
                                    .n_rails = params->n_rails,
                                    .arg = params->arg};
    /* An argument is a place of the model's that tests share: nothing else takes one. */
    if (params->arg)
        return uf_efa_device_model.open(&p, device);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strncasecmp(p.name, devices[i].begins, strlen(devices[i].begins)) == 0)
            return devices[i].ops->open(&p, device);
    return uf_fail(UF_EUNSUPPORTED,
                   "PE %d: this build was made without libibverbs-dev and so has no driver for EFA devices ('efa:%s'); efa:model "
                   "is the device model, ofi:efa-direct "
                   "reaches EFA through libfabric",
                   params->pe, p.name);
}

/* ---------------------------------------------------------------- sizes */

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static uint32_t scaled(uint32_t wanted, uint32_t n_rails)
{
    return least((uint64_t)(wanted ? wanted : UF_EFA_DEFAULT_DEPTH) * n_rails, UINT32_MAX);
}

static uint32_t round_up(uint64_t n)
{
    uint32_t p = 1;
    while (p < n && p < 1u << 31)
        p *= 2;
    return p;
}

/* Queue sizes of every rail: what is wanted, cut to what the least able NIC has. */
typedef struct sizes {
    uint32_t sq, rq, cq; /* entries */
    uint32_t receives;   /* posted: messages, and immediates where they use receives */
    uint32_t remote;     /* immediates that use none */
    bool unsolicited;
} sizes;

static uf_efa_nic common_nic(const uf_efa_device *device, uint32_t n_rails)
{
    uf_efa_nic c = device->nics[0];
    for (uint32_t i = 1; i < n_rails; i++) {
        const uf_efa_nic *n = &device->nics[i];
        c.can_read &= n->can_read;
        c.can_write &= n->can_write;
        c.can_unsolicited &= n->can_unsolicited;
        c.wide_write &= n->wide_write;
        c.duplicates |= n->duplicates;
        c.max_sq = least(c.max_sq, n->max_sq);
        c.max_sq_wide = least(c.max_sq_wide, n->max_sq_wide);
        c.max_rq = least(c.max_rq, n->max_rq);
        c.max_cq = least(c.max_cq, n->max_cq);
        c.max_ahs = least(c.max_ahs, n->max_ahs);
        c.max_rdma = n->max_rdma < c.max_rdma ? n->max_rdma : c.max_rdma;
        c.rate_bytes = n->rate_bytes < c.rate_bytes ? n->rate_bytes : c.rate_bytes;
    }
    return c;
}

static uint32_t more_of(uint32_t liked, uint32_t have, uint32_t spare)
{
    return liked > have ? least(liked - have, spare) : 0;
}

static int choose_sizes(uf_efa *efa, const uf_fabric_params *params, const uf_efa_nic *nic, sizes *s)
{
    uf_fabric_caps *caps = &efa->base.caps;
    uint32_t tx = params->tx_depth ? params->tx_depth : UF_EFA_DEFAULT_DEPTH;
    /* The caller counts for one rail; what flew on those that broke may come once more on each that is left. */
    uint32_t messages = scaled(params->receives, efa->n_rails), remote = scaled(params->remote_cqes, efa->n_rails);
    s->sq = least(round_up(tx), efa->words == UF_EFA_WQE_WORDS ? nic->max_sq : nic->max_sq_wide);
    tx = least(tx, s->sq);
    s->unsolicited = nic->can_unsolicited;
    messages = least(messages, nic->max_rq);
    if (!s->unsolicited)
        remote = least(remote, nic->max_rq - messages);
    /* The CQ has no protection of its own: all that can come at once must fit. */
    uint64_t fixed = (uint64_t)tx + messages;
    if (fixed >= nic->max_cq)
        return uf_fail(
            UF_ENOMEM,
            "PE %d: %s has completion queues of %u entries, too few for %u work requests in flight and %u messages; lower "
            "UNFENCE_QUEUE_DEPTH or UNFENCE_MESSAGES",
            efa->pe, nic->name, nic->max_cq, tx, messages);
    remote = least(remote, nic->max_cq - fixed);
    /* Here more cost an entry of a ring or two: what is left of the rings is shared out. */
    uint32_t spare = nic->max_cq - (uint32_t)fixed - remote, taken = messages + (s->unsolicited ? 0 : remote);
    spare = least(spare, nic->max_rq - taken);
    uint32_t more = more_of(params->receives_liked, messages, spare / 2);
    messages += more;
    remote += more_of(params->remote_cqes_liked, remote, spare - more);
    fixed += more;
    s->receives = messages + (s->unsolicited ? 0 : remote);
    s->remote = s->unsolicited ? remote : 0;
    s->rq = round_up(s->receives);
    s->cq = round_up(fixed + remote);
    caps->tx_depth = tx;
    caps->max_receives = messages;
    caps->cq_depth = remote;
    return UF_OK;
}

/* "rdmap79s0, rdmap80s0 and 2 more, part 0xefa2 ..." */
static void describe_rails(const uf_efa *efa, char *text, size_t bytes)
{
    enum { NAMED = 2 };
    const uf_efa_nic *nics = efa->device->nics;
    size_t at = (size_t)snprintf(text, bytes, "%.20s", nics[0].name);
    for (uint32_t i = 1; i < efa->n_rails && i < NAMED; i++)
        at += (size_t)snprintf(text + at, bytes - at, ", %.20s", nics[i].name);
    if (efa->n_rails > NAMED)
        at += (size_t)snprintf(text + at, bytes - at, " and %u more", efa->n_rails - NAMED);
    if (nics[0].detail[0])
        snprintf(text + at, bytes - at, ", %s", nics[0].detail);
}

static void fill_caps(uf_efa *efa, const uf_efa_nic *nic)
{
    uf_fabric_caps *caps = &efa->base.caps;
    strcpy(caps->fabric, "efa");
    snprintf(caps->provider, sizeof caps->provider, "%s", efa->device->ops->name);
    describe_rails(efa, caps->detail, sizeof caps->detail);
    snprintf(caps->device, sizeof caps->device, "%s", nic->name);
    caps->n_rails = efa->n_rails;
    caps->imm_bits = 32;
    caps->imm_placed = true; /* the sender's completion follows the target's answer, and that the completion there */
    caps->write_placed = true;
    caps->duplicates = nic->duplicates;
    caps->needs_desc = true;
    caps->virtual_address = true;
    caps->max_message = nic->max_rdma;
    efa->inline_write = efa->words == UF_EFA_WIDE_WORDS ? UF_EFA_WIDE_INLINE_BYTES : 0;
    caps->inline_bytes = efa->inline_write ? efa->inline_write : UF_EFA_BOUNCE_BYTES;
    caps->address_bytes = sizeof(uf_efa_address);
    caps->rate_bytes = nic->rate_bytes;
}

/* ---------------------------------------------------------------- a rail */

static int make_memory(uf_efa *efa, uf_efa_rail *rail, const sizes *s)
{
    rail->n_receives = s->receives;
    rail->bounce_at = s->receives * UF_MESSAGE_BYTES;
    rail->nowhere_at = rail->bounce_at + s->sq * UF_EFA_BOUNCE_BYTES;
    size_t bytes = ((size_t)rail->nowhere_at + UF_EFA_NOWHERE_BYTES + 63) / 64 * 64;
    rail->memory = aligned_alloc(64, bytes);
    rail->slots = calloc(s->sq, sizeof *rail->slots);
    rail->peers = calloc(efa->n_pes, sizeof *rail->peers);
    if (!rail->memory || !rail->slots || !rail->peers || uf_map_init_fixed(&rail->pe_of, efa->n_pes))
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the queues of rail %u (%zu bytes)", efa->pe, rail->index, bytes);
    memset(rail->memory, 0, bytes);
    return efa->device->ops->mr_register(efa->device, rail->index, rail->memory, bytes,
                                         UF_EFA_ACCESS_LOCAL | UF_EFA_ACCESS_REMOTE_READ | UF_EFA_ACCESS_REMOTE_WRITE,
                                         &rail->memory_mr, &rail->memory_lkey, &rail->memory_rkey);
}

int uf_efa_rail_start(uf_efa *efa, uf_efa_rail *rail)
{
    const uf_efa_nic *nic = &efa->device->nics[rail->index];
    uint32_t depth = 1u << rail->slot_bits, rq = round_up(rail->n_receives);
    /* Below 2^31 and not 0: a stranger that guesses the queue's number must guess this, too. */
    rail->qkey = (uint32_t)((efa->device->token + rail->generation * UINT64_C(0x9e3779b97f4a7c15)) >> 33) | 1;
    const uf_efa_qp_options o = {.sq_depth = depth,
                                 .rq_depth = rq,
                                 .wqe_bytes = efa->words * 8,
                                 .qkey = rail->qkey,
                                 .rnr_retry = UF_EFA_RNR_FOR_EVER,
                                 .unsolicited = rail->unsolicited,
                                 .send_cq = rail->device_cq,
                                 .recv_cq = rail->device_cq};
    int rc = efa->device->ops->qp_create(efa->device, rail->index, &o, &rail->qp);
    if (rc)
        return rc;
    rail->has_qp = true;
    rail->health = UF_EFA_SOUND;
    rail->gone = false;
    uf_efa_ids_init(&rail->ids, rail->slot_bits, efa->device->token + rail->generation, nic->wide_ids);
    uf_efa_ids_init(&rail->receive_ids, (uint32_t)__builtin_ctz(rq), efa->device->token + rail->generation, 0);
    rail->generation++;
    rail->free_slot = UF_EFA_NONE;
    for (uint32_t i = least(efa->base.caps.tx_depth, rail->qp.sq.limit); i-- > 0;)
        uf_efa_slot_give(rail, (uint16_t)i);
    for (uint32_t i = 0; i < rail->n_receives; i++)
        uf_efa_rail_receive(rail, i);
    uf_efa_rq_ring(&rail->qp.rq);
    return UF_OK;
}

void uf_efa_rail_stop(uf_efa *efa, uf_efa_rail *rail)
{
    if (rail->has_qp)
        efa->device->ops->qp_destroy(efa->device, rail->index, &rail->qp);
    rail->has_qp = false;
    for (uint32_t i = 0; rail->peers && i < efa->n_pes; i++)
        rail->peers[i].in_flight = 0;
}

static int build_rail(uf_efa *efa, uint32_t index, const sizes *s)
{
    uf_efa_rail *rail = &efa->rails[index];
    rail->index = (uint16_t)index;
    rail->unsolicited = s->unsolicited;
    rail->slot_bits = (uint32_t)__builtin_ctz(s->sq);
    int rc = make_memory(efa, rail, s);
    if (!rc)
        rc = efa->device->ops->cq_create(efa->device, index, s->cq, &rail->cq, &rail->device_cq);
    if (!rc)
        rc = uf_efa_rail_start(efa, rail);
    /* The caller's promise of WRs in flight: what the shortest queue holds. */
    if (!rc)
        efa->base.caps.tx_depth = least(efa->base.caps.tx_depth, rail->qp.sq.limit);
    return rc;
}

static void destroy_handles(uf_efa *efa, uf_efa_rail *rail)
{
    for (uint32_t i = 0; rail->peers && i < efa->n_pes; i++)
        if (rail->peers[i].made_ah)
            efa->device->ops->ah_destroy(efa->device, rail->index, rail->peers[i].ah);
}

/* One handle for an address, whoever uses it: a completion names the handle, and could not be told apart otherwise. */
static int handle_of(uf_efa *efa, uf_efa_rail *rail, const uf_efa_address *a, uint16_t *ah, bool *made)
{
    *made = false;
    for (uint32_t i = 0; i < efa->n_pes; i++) {
        const uf_efa_peer *p = &rail->peers[i];
        if (p->connected && memcmp(p->address.gid, a->gid, sizeof a->gid) == 0) {
            *ah = p->ah;
            return UF_OK;
        }
    }
    int rc = efa->device->ops->ah_create(efa->device, rail->index, a->gid, ah);
    *made = rc == UF_OK;
    return rc;
}

static void close_rail(uf_efa *efa, uf_efa_rail *rail)
{
    uf_efa_rail_stop(efa, rail);
    if (rail->device_cq)
        efa->device->ops->cq_destroy(efa->device, rail->device_cq);
    destroy_handles(efa, rail);
    if (rail->memory_mr)
        efa->device->ops->mr_close(efa->device, rail->memory_mr);
    uf_map_free(&rail->pe_of);
    free(rail->peers);
    free(rail->slots);
    free(rail->memory);
}

/* ---------------------------------------------------------------- open, close, addresses */

/* Queues first: what is in flight then is flushed and reads no memory of the caller's any more. */
static void efa_close(uf_fabric *f)
{
    uf_efa *efa = (uf_efa *)f;
    for (uint32_t i = 0; i < efa->n_rails; i++)
        uf_efa_rail_stop(efa, &efa->rails[i]);
    while (efa->mrs)
        uf_efa_fabric_mr_close(f, efa->mrs);
    for (uint32_t i = 0; i < efa->n_rails; i++)
        close_rail(efa, &efa->rails[i]);
    efa->device->ops->close(efa->device);
    free(efa);
}

static int check_nic(const uf_efa *efa, const uf_efa_nic *nic)
{
    if (!nic->can_write)
        return uf_fail(UF_EUNSUPPORTED,
                       "PE %d: EFA device %s has no RDMA write, which this fabric needs (second generation, p5, or later); "
                       "ofi:efa emulates it",
                       efa->pe, nic->name);
    if (!nic->can_read)
        return uf_fail(UF_EUNSUPPORTED, "PE %d: EFA device %s has no RDMA read; look at the driver's version", efa->pe,
                       nic->name);
    if (efa->words == UF_EFA_WIDE_WORDS && (!nic->wide_write || nic->max_sq_wide < 2))
        return uf_fail(UF_EUNSUPPORTED, "PE %d: EFA device %s takes no entries of 128 bytes; set UNFENCE_EFA_WQE=64", efa->pe,
                       nic->name);
    if (nic->max_ahs < efa->n_pes)
        return uf_fail(UF_ENOMEM, "PE %d: EFA device %s has %u address handles, too few for %u PEs", efa->pe, nic->name,
                       nic->max_ahs, efa->n_pes);
    return UF_OK;
}

static int build(uf_efa *efa, const uf_fabric_params *params)
{
    sizes s = {0};
    const uf_efa_nic nic = common_nic(efa->device, efa->n_rails);
    efa->words = params->settings->number[UF_SET_EFA_WQE] == 128 ? UF_EFA_WIDE_WORDS : UF_EFA_WQE_WORDS;
    int rc = check_nic(efa, &nic);
    if (!rc) {
        fill_caps(efa, &nic);
        rc = choose_sizes(efa, params, &nic, &s);
    }
    for (uint32_t i = 0; i < efa->n_rails && !rc; i++)
        rc = build_rail(efa, i, &s);
    return rc;
}

static int efa_open(const uf_fabric_params *params, uf_fabric **out)
{
    uf_efa_device *device = NULL;
    int rc = open_device(params, &device);
    if (rc)
        return rc;
    uint32_t n_rails = params->n_rails ? least(params->n_rails, device->n_nics) : device->n_nics;
    uf_efa *efa = calloc(1, sizeof *efa + n_rails * sizeof efa->rails[0]);
    if (!efa) {
        device->ops->close(device);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %u rails", params->pe, n_rails);
    }
    efa->base.ops = &uf_fabric_efa;
    efa->pe = params->pe;
    efa->n_pes = (uint32_t)params->n_pes;
    efa->n_rails = n_rails;
    efa->device = device;
    rc = build(efa, params);
    if (rc)
        efa_close(&efa->base);
    else
        *out = &efa->base;
    return rc;
}

static int efa_address(uf_fabric *f, uint32_t index, void *address)
{
    uf_efa *efa = (uf_efa *)f;
    if (index >= efa->n_rails)
        return uf_fail(UF_ERANGE, "PE %d: there is no rail %u", efa->pe, index);
    const uf_efa_rail *rail = &efa->rails[index];
    uf_efa_address a = {.qkey = rail->qkey,
                        .qpn = rail->qp.qpn,
                        .mark = UF_EFA_ADDRESS_MARK,
                        .nowhere_at = (uint64_t)(uintptr_t)rail->memory + rail->nowhere_at,
                        .nowhere_key = rail->memory_rkey,
                        .pe = (uint32_t)efa->pe};
    memcpy(a.gid, efa->device->nics[index].gid, sizeof a.gid);
    memcpy(address, &a, sizeof a);
    return UF_OK;
}

static int efa_connect(uf_fabric *f, uint32_t index, uint32_t peer, const void *address)
{
    uf_efa *efa = (uf_efa *)f;
    if (index >= efa->n_rails || peer >= efa->n_pes)
        return uf_fail(UF_ERANGE, "PE %d: there is no PE %u on rail %u", efa->pe, peer, index);
    uf_efa_rail *rail = &efa->rails[index];
    uf_efa_peer *p = &rail->peers[peer];
    uf_efa_address a;
    memcpy(&a, address, sizeof a);
    if (a.mark != UF_EFA_ADDRESS_MARK || a.pe != peer)
        return uf_fail(UF_EMISMATCH,
                       "PE %d: what PE %u gave as its address on rail %u is none of this fabric: look at its version", efa->pe,
                       peer, index);
    if (p->connected && memcmp(p->address.gid, a.gid, sizeof a.gid))
        return uf_fail(UF_EINVAL, "PE %d: PE %u was connected on rail %u and is now at another NIC, which no fabric does",
                       efa->pe, peer, index);
    uint16_t ah = p->ah;
    bool made = p->made_ah;
    int rc = p->connected ? UF_OK : handle_of(efa, rail, &a, &ah, &made);
    if (rc)
        return rc;
    if (p->connected) /* it has a new queue */
        uf_map_remove(&rail->pe_of, uf_efa_source_key(ah, p->address.qpn), NULL);
    p->address = a;
    p->ah = ah;
    p->connected = true;
    p->made_ah = made;
    return uf_map_put(&rail->pe_of, uf_efa_source_key(ah, a.qpn), peer);
}

static const char *efa_error(uf_fabric *f)
{
    return ((uf_efa *)f)->error;
}

static int efa_wait_fd(uf_fabric *f)
{
    uf_efa *efa = (uf_efa *)f;
    return efa->device->ops->wait_fd ? efa->device->ops->wait_fd(efa->device) : -1;
}

static int efa_arm(uf_fabric *f)
{
    uf_efa *efa = (uf_efa *)f;
    return efa->device->ops->arm ? efa->device->ops->arm(efa->device) : UF_EAGAIN;
}

const struct uf_fabric_ops uf_fabric_efa = {
    .name = "efa",
    .open = efa_open,
    .close = efa_close,
    .address = efa_address,
    .connect = efa_connect,
    .mr_register = uf_efa_fabric_mr_register,
    .mr_close = uf_efa_fabric_mr_close,
    .mr_key = uf_efa_fabric_mr_key,
    .mr_desc = uf_efa_fabric_mr_desc,
    .post = uf_efa_fabric_post,
    .flush = uf_efa_fabric_flush,
    .poll = uf_efa_fabric_poll,
    .wait_fd = efa_wait_fd,
    .arm = efa_arm,
    .error = efa_error,
};
