/* place.c - moving payload: from the sender's memory to the target's (or back, for a read), in pieces and in any order.
 *
 * The sender's memory is read when the packet arrives, the latest moment a retransmission could: a caller that changes its
 * source before the completion is found out. Only bytes that outlive the completion are kept in a snapshot. */
#include "efa_model/internal.h"
#include <string.h>

/* The payload from `offset` on; `at` is NULL if its registration is gone. */
static span local_bytes(uf_model *m, message *msg, uint64_t offset, uint64_t bytes)
{
    if (msg->snapshot)
        return (span){msg->snapshot + offset, 0};
    if (msg->is_inline)
        return (span){(unsigned char *)msg->inline_words + offset, 0};
    const model_mr *mr = uf_model_find_mr(msg->qp->nic, msg->sge[0].lkey, false);
    if (!mr || !uf_model_mr_covers(mr, msg->qp->o.pd, msg->sge[0].addr + offset, bytes, 0)) {
        uf_model_trap_add(m, UF_MODEL_TRAP_MR_IN_USE, msg->qp,
                          "the registration of a local buffer was closed under a request that uses it");
        return (span){NULL, 0};
    }
    return (span){(unsigned char *)(uintptr_t)msg->sge[0].addr + offset, mr->owner};
}

static uint32_t mix(uint64_t seed, uint64_t block)
{
    uint64_t z = (seed ^ block * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    return (uint32_t)(z >> 32);
}

static span after(span s, uint64_t offset)
{
    return (span){s.at + offset, s.owner};
}

/* Half of the pieces in the first step, the others in the second; of a block with inner order, a part from its start. */
static bool copy_step(uf_model *m, span to, span from, uint64_t n, place_step step, uint64_t seed)
{
    uint64_t grain = m->p.grain;
    bool alive = true;
    for (uint64_t done = 0, block = 0; done < n && alive; block++) {
        uint64_t left = grain - ((uintptr_t)(to.at + done) & (grain - 1));
        left = left < n - done ? left : n - done;
        uint64_t first = grain == 128 ? mix(seed, block) % (left + 1) : mix(seed, block) & 1 ? left : 0;
        if (step == PLACE_FIRST && first)
            alive = uf_model_copy(m, after(to, done), after(from, done), first);
        else if (step != PLACE_FIRST && left > first)
            alive = uf_model_copy(m, after(to, done + first), after(from, done + first), left - first);
        done += left;
    }
    return alive;
}

/* Both ends of a packet. 0, or the status. */
static unsigned ends(uf_model *m, message *msg, uint32_t packet, span *to, span *from, uint64_t *n)
{
    uint64_t offset = (uint64_t)packet * m->p.mtu;
    *n = uf_model_packet_bytes(m, msg, packet);
    span local = local_bytes(m, msg, offset, *n);
    if (!local.at)
        return UF_EFA_INVALID_LKEY;
    const model_mr *mr = uf_model_find_mr(m->nics[msg->target_nic], msg->rkey, true);
    if (!mr || msg->remote + offset - (uintptr_t)mr->base > mr->bytes - *n || *n > mr->bytes)
        return UF_EFA_REMOTE_ADDRESS;
    span remote = {(unsigned char *)(uintptr_t)(msg->remote + offset), mr->owner};
    *to = msg->responding ? local : remote;
    *from = msg->responding ? remote : local;
    return 0;
}

unsigned uf_model_place(uf_model *m, message *msg, uint32_t packet, place_step step, uint64_t seed)
{
    span to, from;
    uint64_t n;
    if (m->nics[msg->target_nic]->dead || msg->qp->nic->dead)
        return 0;
    unsigned status = ends(m, msg, packet, &to, &from, &n);
    if (status)
        return status;
    bool whole = step == PLACE_ALL || (step == PLACE_REST && seed == 0);
    bool alive = whole ? uf_model_copy(m, to, from, n) : copy_step(m, to, from, n, step, seed);
    return alive ? 0 : UF_EFA_REMOTE_ABORT;
}

/* B5: the same bytes a second time. Where the target's bytes are others by now, its owner has used them: a trap. */
unsigned uf_model_place_again(uf_model *m, message *msg, uint32_t packet)
{
    span to, from;
    uint64_t n;
    if (m->nics[msg->target_nic]->dead || msg->qp->nic->dead)
        return 0;
    unsigned status = ends(m, msg, packet, &to, &from, &n);
    if (status)
        return status;
    const unsigned char *old = uf_model_here(m, to, n, m->scratch), *again = uf_model_here(m, from, n, m->scratch + m->p.mtu);
    if (!old || !again)
        return UF_EFA_REMOTE_ABORT;
    m->stats.duplicates++;
    if (memcmp(old, again, n) != 0)
        uf_model_trap_add(
            m, UF_MODEL_TRAP_DUPLICATE, msg->qp,
            "a packet of request %llu was placed a second time over bytes at NIC %u that had changed since the first",
            (unsigned long long)msg->id, msg->target_nic);
    return uf_model_copy(m, to, from, n) ? 0 : UF_EFA_REMOTE_ABORT;
}

unsigned uf_model_gather(uf_model *m, message *msg, unsigned char *to)
{
    if (msg->is_inline || msg->snapshot) {
        memcpy(to, local_bytes(m, msg, 0, msg->bytes).at, msg->bytes);
        return 0;
    }
    for (uint32_t i = 0; i < msg->n_sge; i++) {
        const uf_efa_sge *sge = &msg->sge[i];
        const model_mr *mr = uf_model_find_mr(msg->qp->nic, sge->lkey, false);
        if (!mr || !uf_model_mr_covers(mr, msg->qp->o.pd, sge->addr, sge->bytes, 0)) {
            uf_model_trap_add(m, UF_MODEL_TRAP_MR_IN_USE, msg->qp,
                              "the registration of a local buffer was closed under a send that uses it");
            return UF_EFA_INVALID_LKEY;
        }
        const span from = {(unsigned char *)(uintptr_t)sge->addr, mr->owner};
        if (!uf_model_copy(m, (span){to, 0}, from, sge->bytes))
            return UF_EFA_REMOTE_ABORT;
        to += sge->bytes;
    }
    return 0;
}

bool uf_model_snapshot(uf_model *m, message *msg)
{
    if (msg->snapshot || msg->is_inline)
        return true;
    if (msg->op == UF_EFA_OP_READ)
        return false; /* the reader's memory is not the network's to keep */
    unsigned char *bytes = uf_model_alloc(m, 1, msg->bytes);
    if (!bytes)
        return false;
    unsigned status = 0;
    if (msg->op == UF_EFA_OP_SEND) {
        status = uf_model_gather(m, msg, bytes);
    } else if (msg->bytes) {
        span from = local_bytes(m, msg, 0, msg->bytes);
        status = !from.at || !uf_model_copy(m, (span){bytes, 0}, from, msg->bytes);
    }
    if (status) {
        uf_model_release(m, bytes);
        return false;
    }
    msg->snapshot = bytes;
    return true;
}
