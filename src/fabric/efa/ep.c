/* ep.c - turns work requests into entries of the send queue. The path of one put passes here once: no lock, no allocation, no
 * system call, no division. A full queue is UF_EAGAIN before anything was written.
 *
 * UF_WR_MORE leaves the doorbell to a later WR or to flush; the queue rings early by itself where the device bounds a batch. Every entry asks for
 * its completion, silent WRs too: only completions free slots. */
#include "fabric/efa/efa.h"
#include <string.h>

#define unlikely(x) __builtin_expect(!!(x), 0)

/* The local end of a WR as the entry names it: a silent write's bytes are copied, since their owner may reuse them at once. */
static uf_efa_sge local_end(uf_efa_rail *rail, uint16_t slot, const uf_wr *wr)
{
    if (wr->bytes == 0)
        return (uf_efa_sge){(uint64_t)(uintptr_t)rail->memory + rail->nowhere_at, 0, rail->memory_lkey};
    if (!(wr->flags & UF_WR_SILENT))
        return (uf_efa_sge){wr->local, (uint32_t)wr->bytes, (uint32_t)wr->local_desc};
    unsigned char *copy = rail->memory + rail->bounce_at + (size_t)slot * UF_EFA_BOUNCE_BYTES;
    memcpy(copy, (const void *)(uintptr_t)wr->local, wr->bytes);
    return (uf_efa_sge){(uint64_t)(uintptr_t)copy, (uint32_t)wr->bytes, rail->memory_lkey};
}

static int encode_rdma(uf_efa *efa, uf_efa_rail *rail, uint16_t slot, const uf_efa_to *to, const uf_wr *wr, uf_efa_wqe *e)
{
    const uf_efa_address *there = &rail->peers[wr->peer].address;
    uint64_t remote = wr->bytes ? wr->remote : there->nowhere_at;
    uint32_t rkey = wr->bytes ? (uint32_t)wr->remote_key : there->nowhere_key;
    int made;
    if (wr->verb != UF_VERB_READ && wr->bytes && wr->bytes <= efa->inline_write) {
        made = uf_efa_encode_write_inline(e, to, remote, rkey, (const void *)(uintptr_t)wr->local, (uint32_t)wr->bytes);
    } else {
        uf_efa_sge local = local_end(rail, slot, wr);
        uint32_t op = wr->verb == UF_VERB_READ ? UF_EFA_OP_READ : UF_EFA_OP_WRITE;
        made = uf_efa_encode_rdma(e, efa->words, op, to, remote, rkey, &local);
    }
    if (made && wr->verb == UF_VERB_WRITE_IMM)
        uf_efa_wqe_imm(e, wr->imm);
    return made;
}

/* The cold half of post's argument check: which of them is wrong. */
static int __attribute__((cold, noinline)) bad_wr(const uf_efa *efa, const uf_wr *wr)
{
    if (wr->rail >= efa->n_rails)
        return uf_fail(UF_ERANGE, "PE %d: a work request names rail %u, but there are %u", efa->pe, wr->rail, efa->n_rails);
    if (wr->peer >= efa->n_pes)
        return uf_fail(UF_ERANGE, "PE %d: a work request names PE %u, but there are %u", efa->pe, wr->peer, efa->n_pes);
    if (!efa->rails[wr->rail].peers[wr->peer].connected)
        return uf_fail(UF_EINVAL, "PE %d: a work request to PE %u came before it was connected on rail %u", efa->pe, wr->peer,
                       wr->rail);
    if (efa->n_rails == 1 && efa->rails[wr->rail].health != UF_EFA_SOUND)
        return uf_fail(UF_EFABRIC, "PE %d: rail %u (%s) is in error and takes no work requests: %s", efa->pe, wr->rail,
                       efa->device->nics[wr->rail].name, efa->rails[wr->rail].cause);
    if (wr->verb > UF_VERB_SEND)
        return uf_fail(UF_EINVAL, "PE %d: a work request to PE %u has the unknown verb %u", efa->pe, wr->peer, wr->verb);
    if (wr->bytes > efa->base.caps.max_message)
        return uf_fail(UF_EINVAL, "PE %d: a %s of %llu bytes to PE %u is larger than the %llu of %s", efa->pe,
                       uf_efa_verb_name(wr->verb), (unsigned long long)wr->bytes, wr->peer,
                       (unsigned long long)efa->base.caps.max_message, efa->device->nics[wr->rail].name);
    if ((wr->flags & UF_WR_SILENT) && (wr->verb == UF_VERB_READ || wr->bytes > efa->base.caps.inline_bytes))
        return uf_fail(UF_EINVAL, "PE %d: a silent %s of %llu bytes to PE %u: only writes up to %u bytes are copied", efa->pe,
                       uf_efa_verb_name(wr->verb), (unsigned long long)wr->bytes, wr->peer, efa->base.caps.inline_bytes);
    return uf_fail(UF_EINVAL, "PE %d: a %s to PE %u has the local descriptor 0x%llx, and a local key has 24 bits", efa->pe,
                   uf_efa_verb_name(wr->verb), wr->peer, (unsigned long long)wr->local_desc);
}

/* Whether an argument is wrong that the device could not tell, or only after the WR has cost something. */
static bool sound(const uf_efa *efa, const uf_wr *wr)
{
    if (wr->rail >= efa->n_rails || wr->peer >= efa->n_pes)
        return false;
    const uf_efa_rail *rail = &efa->rails[wr->rail];
    if (!rail->peers[wr->peer].connected || (rail->health && efa->n_rails == 1) || wr->verb > UF_VERB_SEND)
        return false;
    if (wr->verb == UF_VERB_SEND)
        return true;
    if (wr->bytes > efa->base.caps.max_message || wr->local_desc > UF_EFA_LKEY_MAX)
        return false;
    return !(wr->flags & UF_WR_SILENT) || (wr->verb != UF_VERB_READ && wr->bytes <= efa->base.caps.inline_bytes);
}

int uf_efa_fabric_post(uf_fabric *f, const uf_wr *wr)
{
    uf_efa *efa = (uf_efa *)f;
    if (unlikely(!sound(efa, wr)))
        return bad_wr(efa, wr);
    uf_efa_rail *rail = &efa->rails[wr->rail];
    if (unlikely(rail->health | rail->peers[wr->peer].health))
        return uf_efa_rail_refuse(rail, wr->peer);
    uint16_t slot = rail->free_slot;
    if (unlikely(slot == UF_EFA_NONE || uf_efa_sq_room(&rail->qp.sq) == 0)) {
        uf_efa_sq_flush_owned(&rail->qp.sq); /* what waits for its doorbell must move, or nothing ever frees the queue */
        return UF_EAGAIN;
    }
    uf_efa_peer *peer = &rail->peers[wr->peer];
    const uf_efa_to to = {
        .id = uf_efa_id(&rail->ids, slot), .qkey = peer->address.qkey, .qpn = peer->address.qpn, .ah = peer->ah};
    uf_efa_wqe e; /* 8 or 16 words of it are written */
    int made = wr->verb == UF_VERB_SEND ? uf_efa_encode_send_inline(&e, efa->words, &to, wr->message, UF_MESSAGE_BYTES)
                                        : encode_rdma(efa, rail, slot, &to, wr, &e);
    if (unlikely(!made))
        return bad_wr(efa, wr);
    uf_efa_slot *s = &rail->slots[slot];
    rail->free_slot = s->next;
    *s = (uf_efa_slot){.bytes = wr->verb == UF_VERB_SEND ? UF_MESSAGE_BYTES : wr->bytes,
                       .peer = wr->peer,
                       .cookie = wr->cookie,
                       .verb = wr->verb,
                       .silent = wr->flags & UF_WR_SILENT};
    peer->in_flight++;
    uf_efa_sq_post_owned(&rail->qp.sq, &e, 1, wr->flags & UF_WR_MORE);
    return UF_OK;
}

void uf_efa_fabric_flush(uf_fabric *f)
{
    uf_efa *efa = (uf_efa *)f;
    for (uint32_t i = 0; i < efa->n_rails; i++)
        uf_efa_sq_flush_owned(&efa->rails[i].qp.sq);
}
