/* device.c - the model, its NICs and their tables: registrations, address handles, and the pool of messages. */
#include "base/error.h"
#include "efa_model/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BITS = 18 }; /* of a key: index of the registration; the rest is its generation, so that old keys fail */

static int check_params(const uf_model_params *p)
{
    const struct {
        const char *name;
        uint64_t value, least, most;
    } ranges[] = {
        {"paths", p->paths, 1, 64},
        {"mtu", p->mtu, 64, UF_EFA_MTU},
        {"gbps", p->gbps, 1, 10000},
        {"message_rate", p->message_rate, 1, 1000000000},
        {"latency_ns", p->latency_ns, 1, 1000000000},
        {"rto_ns", p->rto_ns, 1, 1000000000},
        {"drop_ppm", p->drop_ppm, 0, 900000},
        {"rnr_storm_ppm", p->rnr_storm_ppm, 0, 900000},
        {"max_qps", p->max_qps, 1, 65535},
        {"max_mrs", p->max_mrs, 1, (1u << KEY_BITS) - 1},
        {"max_ahs", p->max_ahs, 1, 65535},
        {"max_sq", p->max_sq, 2, 32768},
        {"max_rq", p->max_rq, 1, 32768},
        {"max_rdma", p->max_rdma, 1, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++)
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most)
            return uf_fail(UF_EINVAL, "EFA model: %s is %llu, and must be from %llu to %llu.", ranges[i].name,
                           (unsigned long long)ranges[i].value, (unsigned long long)ranges[i].least,
                           (unsigned long long)ranges[i].most);
    if (p->grain != 1 && p->grain != 8 && p->grain != 64 && p->grain != 128)
        return uf_fail(UF_EINVAL, "EFA model: grain is %u, and must be 1, 8, 64 or 128.", p->grain);
    if (p->tail_max_ns < p->tail_min_ns)
        return uf_fail(UF_EINVAL, "EFA model: tail_max_ns is less than tail_min_ns.");
    return UF_OK;
}

int uf_model_create(const uf_model_params *params, uint64_t seed, uf_model **model)
{
    return uf_model_create_shared(params, seed, NULL, model);
}

int uf_model_create_shared(const uf_model_params *params, uint64_t seed, const uf_model_host *host, uf_model **model)
{
    int rc = check_params(params);
    if (rc)
        return rc;
    uf_model before = {.host = host}; /* the model itself comes from its host, too */
    uf_model *m = uf_model_alloc(&before, 1, sizeof(*m));
    if (m) {
        m->host = host;
        m->scratch = uf_model_alloc(m, 2, params->mtu);
    }
    if (!m || !m->scratch) {
        uf_model_release(&before, m);
        return uf_fail(UF_ENOMEM, "EFA model: no memory for the model itself.");
    }
    m->p = *params;
    m->random = seed;
    m->free_event = UF_MODEL_NONE;
    m->free_message = UF_MODEL_NONE;
    uf_model_exponential_fill(m);
    *model = m;
    return UF_OK;
}

void uf_model_destroy(uf_model *model)
{
    if (!model)
        return;
    uf_model last = {.host = model->host};
    for (uint32_t i = 0; i < model->n_nics; i++) {
        uf_model_nic *nic = model->nics[i];
        uf_model_qps_free(nic);
        uf_model_release(model, nic->mrs);
        uf_model_release(model, nic->ahs);
        uf_model_release(model, nic->reverse);
        uf_model_release(model, nic->heard);
        uf_model_release(model, nic->waiting);
        uf_model_release(model, nic);
    }
    for (uint32_t i = 0; i < model->n_chunks; i++) {
        for (uint32_t j = 0; j < UF_MODEL_MESSAGES_PER_CHUNK; j++) {
            uf_model_release(model, model->chunks[i][j].seen);
            uf_model_release(model, model->chunks[i][j].snapshot);
        }
        uf_model_release(model, model->chunks[i]);
    }
    while (model->counters) {
        uf_model_counter *next = model->counters->next;
        uf_model_release(model, model->counters);
        model->counters = next;
    }
    uf_model_release(model, model->chunks);
    uf_model_release(model, model->nics);
    uf_model_release(model, model->plain);
    uf_model_release(model, model->heap);
    uf_model_release(model, model->events);
    uf_model_release(model, model->scratch);
    uf_model_release(&last, model);
}

void uf_model_enter(uf_model *model, const uf_model_host *host)
{
    model->host = host;
}

/* ---- Time ---- */

uint64_t uf_model_now(const uf_model *model)
{
    return model->now;
}

uint64_t uf_model_next(uf_model *model)
{
    uf_model_look_at_doorbells(model);
    return model->n_heap ? model->heap[0].at : UINT64_MAX;
}

static void handle(uf_model *m, const model_event *e)
{
    message *msg = e->message == UF_MODEL_NONE ? NULL : uf_model_message(m, e->message);
    bool current = msg && e->attempt == msg->attempt && !msg->done;
    switch ((event_kind)e->kind) {
    case EVENT_FETCH:
        if (uf_model_qp_current(e->object, e->attempt))
            uf_model_fetch(m, e->object, (uint32_t)e->value);
        break;
    case EVENT_TRANSMIT:
        uf_model_transmit_next(m, e->object);
        break;
    case EVENT_ARRIVE:
        if (current || (msg->orphan && e->attempt == msg->attempt))
            uf_model_arrive(m, msg, e->packet);
        break;
    case EVENT_RETRANSMIT:
        if (current)
            uf_model_retransmit(m, msg, e->packet);
        break;
    case EVENT_PLACE:
        if (!current && !(e->attempt == msg->attempt && (msg->orphan || e->object)))
            break;
        (void)uf_model_place(m, msg, e->packet, PLACE_REST, e->value);
        if (!e->object) /* an early completion did not wait for it */
            uf_model_placed(m, msg);
        break;
    case EVENT_DUPLICATE:
        msg->late--;
        (void)uf_model_place_again(m, msg, e->packet);
        break;
    case EVENT_DELIVER:
        if (current || msg->orphan)
            uf_model_deliver(m, msg);
        break;
    case EVENT_ANSWER:
        if (!msg->done)
            uf_model_finish(m, msg, (unsigned)e->value);
        break;
    case EVENT_RNR:
        if (current)
            uf_model_send(m, msg);
        break;
    case EVENT_COUNT:
        uf_model_counter_add(e->object, e->value != 0);
        break;
    }
    if (msg)
        uf_model_message_unref(m, msg);
}

bool uf_model_step(uf_model *model)
{
    model_event event;
    uf_model_look_at_doorbells(model);
    if (!uf_model_event_take(model, UINT64_MAX, &event))
        return false;
    handle(model, &event);
    return true;
}

void uf_model_run(uf_model *model, uint64_t until)
{
    model_event event;
    uf_model_look_at_doorbells(model);
    while (uf_model_event_take(model, until, &event))
        handle(model, &event);
    if (until > model->now)
        model->now = until;
}

void uf_model_catch_up(uf_model *model, uint64_t until)
{
    model_event event;
    while (uf_model_event_take(model, until, &event))
        handle(model, &event);
    if (until > model->now)
        model->now = until;
    uf_model_look_at_doorbells(model);
}

/* ---- Messages ---- */

message *uf_model_message(uf_model *m, uint32_t index)
{
    return &m->chunks[index / UF_MODEL_MESSAGES_PER_CHUNK][index % UF_MODEL_MESSAGES_PER_CHUNK];
}

static bool grow_messages(uf_model *m)
{
    message **chunks = uf_model_resize(m, m->chunks, (m->n_chunks + 1) * sizeof(*chunks));
    if (!chunks)
        return false;
    m->chunks = chunks;
    message *chunk = uf_model_alloc(m, UF_MODEL_MESSAGES_PER_CHUNK, sizeof(*chunk));
    if (!chunk)
        return false;
    for (uint32_t i = UF_MODEL_MESSAGES_PER_CHUNK; i-- > 0;) {
        chunk[i].self = m->n_chunks * UF_MODEL_MESSAGES_PER_CHUNK + i;
        chunk[i].next = m->free_message;
        m->free_message = chunk[i].self;
    }
    m->chunks[m->n_chunks++] = chunk;
    return true;
}

message *uf_model_message_new(uf_model *m)
{
    if (m->free_message == UF_MODEL_NONE && !grow_messages(m)) {
        m->stats.out_of_memory++;
        return NULL;
    }
    message *msg = uf_model_message(m, m->free_message);
    m->free_message = msg->next;
    uint64_t *seen = msg->seen;
    uint32_t seen_words = msg->seen_words, self = msg->self;
    memset(msg, 0, offsetof(message, sge)); /* the rest is written before it is read */
    msg->seen = seen;
    msg->seen_words = seen_words;
    msg->self = self;
    msg->packets = msg->sent = msg->placed = msg->late = 0;
    msg->snapshot = NULL;
    msg->refs = 1;
    msg->born = m->now;
    return msg;
}

void uf_model_message_unref(uf_model *m, message *msg)
{
    if (--msg->refs)
        return;
    uf_model_release(m, msg->snapshot);
    msg->snapshot = NULL;
    msg->next = m->free_message;
    m->free_message = msg->self;
}

/* ---- NICs ---- */

int uf_model_nic_create(uf_model *model, uf_model_nic **nic)
{
    uf_model_nic **nics = uf_model_resize(model, model->nics, (model->n_nics + 1) * sizeof(*nics));
    uf_model_nic *n = uf_model_alloc(model, 1, sizeof(*n));
    if (nics)
        model->nics = nics;
    if (n) {
        n->waiting = uf_model_alloc(model, 64, sizeof(*n->waiting));
        n->qps = uf_model_alloc(model, model->p.max_qps, sizeof(*n->qps));
    }
    if (!nics || !n || !n->waiting || !n->qps) {
        if (n) {
            uf_model_release(model, n->waiting);
            uf_model_release(model, n->qps);
        }
        uf_model_release(model, n);
        return uf_fail(UF_ENOMEM, "EFA model: no memory for NIC %u.", model->n_nics);
    }
    n->waiting_mask = 63;
    n->model = model;
    n->index = model->n_nics;
    n->free_mr = UF_MODEL_NONE;
    n->can_read = model->p.can_read;
    n->can_write = model->p.can_write;
    nics[model->n_nics++] = n;
    *nic = n;
    return UF_OK;
}

void uf_model_nic_gid(const uf_model_nic *nic, uint8_t gid[16])
{
    memset(gid, 0, 16);
    gid[0] = 0xfe;
    gid[1] = 0x80;
    for (int i = 0; i < 4; i++)
        gid[15 - i] = (uint8_t)((nic->index + 1) >> (8 * i));
}

void uf_model_nic_abilities(uf_model_nic *nic, bool can_read, bool can_write)
{
    nic->can_read = can_read;
    nic->can_write = can_write;
}

void uf_model_nic_kill(uf_model_nic *nic)
{
    nic->dead = true;
}

/* That a peer hears of it for all that is outstanding, and not only for what had arrived in part, is inferred [I]: connections end, not
 * messages. */
static void reset_work_of(uf_model *m, const model_qp *qp, uint32_t target)
{
    for (uint32_t i = qp->live ? qp->first : UF_MODEL_NONE; i != UF_MODEL_NONE;) {
        message *msg = uf_model_message(m, i);
        i = msg->next;
        if (msg->target_nic != target || !msg->started || msg->answered)
            continue;
        msg->attempt++; /* what is still under way is void */
        msg->refused = true;
        uf_model_answer(m, msg, UF_EFA_REMOTE_ABORT);
    }
}

void uf_model_nic_reset(uf_model_nic *nic)
{
    uf_model *m = nic->model;
    if (nic->dead)
        return;
    for (uint32_t i = 0; i < nic->n_qps; i++)
        if (nic->qps[i]->live)
            uf_model_qp_break(m, nic->qps[i]);
    for (uint32_t n = 0; n < m->n_nics; n++)
        for (uint32_t i = 0; i < m->nics[n]->n_qps; i++)
            reset_work_of(m, m->nics[n]->qps[i], nic->index);
}

bool uf_model_nic_alive(const uf_model_nic *nic, bool *can_read, bool *can_write)
{
    *can_read = nic->can_read;
    *can_write = nic->can_write;
    return !nic->dead;
}

/* ---- Registrations ---- */

int uf_model_mr_register(uf_model_nic *nic, uint16_t pd, void *ptr, uint64_t bytes, uint32_t access, uf_model_mr *out)
{
    uint32_t index = nic->free_mr;
    if (bytes > UINT64_MAX - (uintptr_t)ptr)
        return uf_fail(UF_EINVAL, "EFA model: the memory at %p of %llu bytes wraps around.", ptr, (unsigned long long)bytes);
    if (index != UF_MODEL_NONE) {
        nic->free_mr = (uint32_t)nic->mrs[index].bytes;
    } else {
        if (nic->n_mrs == nic->model->p.max_mrs)
            return uf_fail(UF_ENOMEM, "EFA model: NIC %u has its %u registrations; close some.", nic->index, nic->n_mrs);
        if ((nic->n_mrs & (nic->n_mrs - 1)) == 0) {
            model_mr *mrs = uf_model_resize(nic->model, nic->mrs, (size_t)(nic->n_mrs ? nic->n_mrs * 2 : 1) * sizeof(*mrs));
            if (!mrs)
                return uf_fail(UF_ENOMEM, "EFA model: no memory for registration %u of NIC %u.", nic->n_mrs, nic->index);
            nic->mrs = mrs;
        }
        index = nic->n_mrs++;
        /* Not from the stream of random numbers: how often a caller registers may depend on where its memory lies, and what the
         * network does must not. */
        nic->mrs[index] = (model_mr){.generation = (index + 1) * 0x9e3779b9u + nic->index * 0x85ebca6bu};
    }
    model_mr *mr = &nic->mrs[index];
    uint32_t generation = mr->generation + 1;
    *mr = (model_mr){.base = ptr, .bytes = bytes, .access = access, .pd = pd, .live = true, .generation = generation};
    mr->owner = nic->model->host ? nic->model->host->owner : 0;
    out->lkey = (index + 1) | (generation & 0x3f) << KEY_BITS;
    out->rkey = (index + 1) | (generation & 0x3fff) << KEY_BITS;
    return UF_OK;
}

model_mr *uf_model_find_mr(uf_model_nic *nic, uint32_t key, bool remote)
{
    uint32_t index = (key & ((1u << KEY_BITS) - 1)) - 1;
    if (index >= nic->n_mrs || !nic->mrs[index].live)
        return NULL;
    model_mr *mr = &nic->mrs[index];
    return key >> KEY_BITS == (mr->generation & (remote ? 0x3fff : 0x3f)) ? mr : NULL;
}

bool uf_model_mr_covers(const model_mr *mr, uint16_t pd, uint64_t address, uint64_t bytes, uint32_t access)
{
    uint64_t offset = address - (uintptr_t)mr->base;
    return mr->pd == pd && (mr->access & access) == access && offset <= mr->bytes && bytes <= mr->bytes - offset;
}

void uf_model_mr_close(uf_model_nic *nic, uf_model_mr mr)
{
    model_mr *found = uf_model_find_mr(nic, mr.lkey, false);
    if (!found)
        return;
    found->live = false;
    found->bytes = nic->free_mr;
    nic->free_mr = (uint32_t)(found - nic->mrs);
}

/* ---- Address handles ---- */

static bool know(uf_model_nic *nic, uint32_t peer)
{
    if (peer < nic->n_reverse)
        return true;
    uint32_t n = peer + 64;
    uint32_t *reverse = uf_model_resize(nic->model, nic->reverse, n * sizeof(*reverse));
    if (!reverse)
        return false;
    nic->reverse = reverse;
    uint64_t *heard = uf_model_resize(nic->model, nic->heard, n * sizeof(*heard));
    if (!heard)
        return false;
    nic->heard = heard;
    memset(reverse + nic->n_reverse, 0, (n - nic->n_reverse) * sizeof(*reverse));
    memset(heard + nic->n_reverse, 0, (n - nic->n_reverse) * sizeof(*heard));
    nic->n_reverse = n;
    return true;
}

int uf_model_ah_create(uf_model_nic *nic, const uint8_t gid[16], uint16_t *ah)
{
    uint8_t real[16] = {0};
    uint32_t peer = ((uint32_t)gid[12] << 24 | (uint32_t)gid[13] << 16 | (uint32_t)gid[14] << 8 | gid[15]) - 1, i;
    if (peer < nic->model->n_nics)
        uf_model_nic_gid(nic->model->nics[peer], real);
    if (peer >= nic->model->n_nics || memcmp(gid, real, 16) != 0)
        return uf_fail(UF_ERANGE, "EFA model: no NIC has this GID.");
    for (i = 0; i < nic->n_ahs && nic->ahs[i]; i++)
        continue;
    if (i == nic->model->p.max_ahs)
        return uf_fail(UF_ENOMEM, "EFA model: NIC %u has its %u address handles.", nic->index, i);
    uint32_t *ahs = i == nic->n_ahs ? uf_model_resize(nic->model, nic->ahs, (i + 1) * sizeof(*ahs)) : nic->ahs;
    if (!ahs || (nic->ahs = ahs, !know(nic, peer)))
        return uf_fail(UF_ENOMEM, "EFA model: no memory for an address handle of NIC %u.", nic->index);
    nic->ahs[i] = peer + 1;
    nic->n_ahs += i == nic->n_ahs;
    if (nic->reverse[peer] == 0)
        nic->reverse[peer] = i + 1;
    *ah = (uint16_t)i;
    return UF_OK;
}

static void fail_work_of(uf_model *m, const model_qp *qp, uint16_t ah)
{
    for (uint32_t i = qp->live ? qp->first : UF_MODEL_NONE; i != UF_MODEL_NONE;) {
        message *msg = uf_model_message(m, i);
        i = msg->next; /* ending it takes it out of the list */
        if (msg->ah == ah)
            uf_model_end_early(m, msg, UF_EFA_INVALID_AH);
    }
}

void uf_model_ah_destroy(uf_model_nic *nic, uint16_t ah)
{
    if (ah >= nic->n_ahs || nic->ahs[ah] == 0)
        return;
    uint32_t peer = nic->ahs[ah] - 1;
    for (uint32_t i = 0; i < nic->n_qps; i++)
        fail_work_of(nic->model, nic->qps[i], ah);
    nic->ahs[ah] = 0;
    nic->reverse[peer] = 0;
    for (uint32_t i = 0; i < nic->n_ahs; i++) /* another handle of the same peer still makes it known */
        if (nic->ahs[i] == peer + 1)
            nic->reverse[peer] = i + 1;
}

/* ---- What happened ---- */

const uf_model_stats *uf_model_get_stats(const uf_model *model)
{
    return &model->stats;
}

uint64_t uf_model_traps(const uf_model *model)
{
    uint64_t sum = 0;
    for (int i = 0; i < UF_MODEL_TRAPS; i++)
        sum += model->stats.traps[i];
    return sum;
}

const char *uf_model_trap(const uf_model *model, uint32_t i)
{
    return i < model->n_traps ? model->traps[i] : NULL;
}

void uf_model_trap_add(uf_model *m, uf_model_trap_kind kind, const model_qp *qp, const char *format, ...)
{
    m->stats.traps[kind]++;
    if (m->n_traps == UF_MODEL_TRAP_KEPT)
        return;
    char *text = m->traps[m->n_traps++];
    int n = snprintf(text, UF_MODEL_TRAP_BYTES, "at %llu ns, NIC %u, queue %u: ", (unsigned long long)m->now, qp->nic->index,
                     qp->info.qpn);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + n, UF_MODEL_TRAP_BYTES - (size_t)n, format, arguments);
    va_end(arguments);
}
