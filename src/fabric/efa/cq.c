/* cq.c - takes completions out of the ring and says whose they are.
 *
 * Three kinds may come: of a WR of ours (its slot is in the id), of a peer's message (the receive is in the id), of a peer's
 * immediate. The sender is found by handle and source queue, which only a connected peer's present queue has. What belongs to nobody
 * (an earlier queue of this number, a peer's former self, a stranger) is counted and dropped: it has taken nothing of ours but the
 * receive, which is posted again.
 *
 * An error completion concerns one WR, unless it is of the receive queue or of a malformed entry: then the queue pair is in error,
 * everything in flight is flushed, and once that is taken poll says so.
 *
 * Several rails: a queue in error, a dead NIC, or a peer that one rail reaches no more are each told once, as UF_CQE_RAIL, when
 * nothing is in flight there any more; the WRs that failed because of it are not told, since they will be sent again. */
#include "base/log.h"
#include "fabric/efa/efa.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define unlikely(x) __builtin_expect(!!(x), 0)

enum { STRAYS_LOGGED = 4 };

const char *uf_efa_verb_name(unsigned verb)
{
    static const char *const names[] = {"write", "write with immediate", "read", "message", "work request"};
    return names[verb <= UF_VERB_SEND ? verb : 4];
}

static void __attribute__((format(printf, 2, 3), cold)) stray(uf_efa *efa, const char *format, ...)
{
    char text[256];
    if (++efa->strays > STRAYS_LOGGED)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    uf_log(UF_LOG_INFO, efa->pe, "%s%s", text, efa->strays == STRAYS_LOGGED ? " (further ones are not logged)" : "");
}

void uf_efa_rail_receive(uf_efa_rail *rail, uint32_t index)
{
    const uf_efa_sge sge = {(uint64_t)(uintptr_t)rail->memory + (uint64_t)index * UF_MESSAGE_BYTES, UF_MESSAGE_BYTES,
                            rail->memory_lkey};
    uf_efa_rq_post(&rail->qp.rq, (uint16_t)uf_efa_id(&rail->receive_ids, index), &sge);
}

static void __attribute__((cold, noinline))
describe(uf_efa *efa, const uf_efa_rail *rail, const uf_efa_slot *slot, unsigned status)
{
    snprintf(efa->error, sizeof efa->error, "PE %d: a %s of %llu bytes to PE %u on rail %u (%s) failed: %s (EFA status %u). %s",
             efa->pe, uf_efa_verb_name(slot->verb), (unsigned long long)slot->bytes, slot->peer, rail->index,
             efa->device->nics[rail->index].name, uf_efa_status_name(status), status, uf_efa_status_remedy(status));
}

static void __attribute__((cold, noinline)) break_rail(uf_efa *efa, uf_efa_rail *rail, unsigned status)
{
    if (!efa->cause[0] || (efa->n_rails > 1 && !rail->broken))
        snprintf(efa->cause, sizeof efa->cause, "PE %d: the queue of rail %u (%s) is in error: %s (EFA status %u). %s", efa->pe,
                 rail->index, efa->device->nics[rail->index].name, uf_efa_status_name(status), status,
                 uf_efa_status_remedy(status));
    rail->broken = true;
}

/* What an error says of more than its own WR; true if the WR failed only because of that, and another rail will carry it. */
static bool __attribute__((cold, noinline)) broke(uf_efa *efa, uf_efa_rail *rail, uf_efa_peer *peer, unsigned status)
{
    if (status == UF_EFA_QP_ERROR || status == UF_EFA_FLUSHED) {
        break_rail(efa, rail, status);
        return efa->n_rails > 1;
    }
    if (efa->n_rails == 1 || (status != UF_EFA_UNRESPONSIVE && status != UF_EFA_UNREACHABLE))
        return false;
    if (!peer->broken) {
        peer->broken = true;
        rail->breaking++;
    }
    return true;
}

/* Each translator returns the number of CQEs it wrote, 0 or 1. */
static int take_sent(uf_efa *efa, uf_efa_rail *rail, const uf_efa_cqe *c, uf_cqe *cqe)
{
    uint32_t index;
    if (unlikely(c->qpn != rail->qp.qpn || !uf_efa_id_slot(&rail->ids, c->id, &index))) {
        stray(efa, "PE %d: a completion of an earlier queue %u on rail %u was dropped", efa->pe, c->qpn, rail->index);
        return 0;
    }
    uf_efa_slot *slot = &rail->slots[index];
    *cqe = (uf_cqe){.kind = UF_CQE_SENT, .rail = rail->index, .peer = slot->peer, .cookie = slot->cookie};
    int told = !slot->silent;
    if (unlikely(c->status)) {
        describe(efa, rail, slot, c->status);
        cqe->status = uf_efa_status_code(c->status);
        told = !broke(efa, rail, &rail->peers[slot->peer], c->status);
    }
    rail->peers[slot->peer].in_flight--;
    uf_efa_sq_complete(&rail->qp.sq, 1);
    uf_efa_slot_give(rail, (uint16_t)index);
    return told;
}

static int take_received(uf_efa *efa, uf_efa_rail *rail, const uf_efa_cqe *c, uf_cqe *cqe)
{
    uint64_t peer = 0;
    uint32_t index = 0;
    bool used_receive = !c->unsolicited, known;
    bool stale = used_receive && (!uf_efa_id_slot(&rail->receive_ids, c->id, &index) || index >= rail->n_receives);
    if (unlikely(c->qpn != rail->qp.qpn || stale)) {
        stray(efa, "PE %d: an arrival for an earlier queue %u on rail %u was dropped", efa->pe, c->qpn, rail->index);
        return 0;
    }
    if (unlikely(c->status)) {
        break_rail(efa, rail, c->status);
        return 0;
    }
    known = c->ah != UF_EFA_AH_UNKNOWN && uf_map_get(&rail->pe_of, uf_efa_source_key(c->ah, c->source), &peer);
    *cqe = (uf_cqe){.rail = rail->index, .peer = (uint32_t)peer, .bytes = c->bytes};
    if (c->has_imm) {
        cqe->kind = UF_CQE_IMM;
        cqe->imm = c->imm;
    } else if (used_receive && c->bytes == UF_MESSAGE_BYTES) {
        cqe->kind = UF_CQE_MESSAGE;
        memcpy(cqe->message, rail->memory + (size_t)index * UF_MESSAGE_BYTES, UF_MESSAGE_BYTES);
    } else {
        known = false;
    }
    if (used_receive) {
        rail->qp.rq.completed++;
        uf_efa_rail_receive(rail, index);
    }
    if (unlikely(!known))
        stray(efa, "PE %d: an arrival of %u bytes from queue %u, handle %u on rail %u is of no PE of this world and was dropped",
              efa->pe, c->bytes, c->source, c->ah, rail->index);
    return known;
}

static uf_cqe rail_cqe(const uf_efa_rail *rail, uint32_t peer)
{
    return (uf_cqe){.kind = UF_CQE_RAIL, .rail = rail->index, .status = UF_EFABRIC, .peer = peer};
}

/* One break that is due, if there is one: 0 or 1. */
static int __attribute__((cold, noinline)) tell_break(uf_efa *efa, uf_efa_rail *rail, uf_cqe *cqe)
{
    const uf_efa_sq *sq = &rail->qp.sq;
    if (rail->broken && !rail->told && (rail->gone || sq->reserved == sq->completed)) {
        rail->told = true;
        snprintf(efa->error, sizeof efa->error, "%s", efa->cause);
        *cqe = rail_cqe(rail, UF_CQE_ALL_PEERS);
        return 1;
    }
    for (uint32_t i = 0; i < efa->n_pes && rail->breaking; i++) {
        uf_efa_peer *peer = &rail->peers[i];
        if (!peer->broken || peer->told || peer->in_flight)
            continue;
        peer->told = true;
        rail->breaking--;
        snprintf(efa->error, sizeof efa->error,
                 "PE %d: rail %u (%s) reaches PE %u no more: the NIC there, or the path, has failed", efa->pe, rail->index,
                 efa->device->nics[rail->index].name, i);
        *cqe = rail_cqe(rail, i);
        return 1;
    }
    return 0;
}

static int poll_rail(uf_efa *efa, uf_efa_rail *rail, uf_cqe *cqes, int max)
{
    uf_efa_cqe c;
    uint32_t posted = rail->qp.rq.posted, taken = 0;
    int n = 0;
    while (n < max) {
        if (!uf_efa_cq_peek(&rail->cq, rail->cq.consumed + taken, &c)) {
            efa->base.drained |= 1u << rail->index;
            break;
        }
        taken++;
        if (c.queue == UF_EFA_QUEUE_SEND)
            n += take_sent(efa, rail, &c, &cqes[n]);
        else if (c.queue == UF_EFA_QUEUE_RECV)
            n += take_received(efa, rail, &c, &cqes[n]);
        else
            stray(efa, "PE %d: rail %u reported a completion of queue type %u, which is none", efa->pe, rail->index, c.queue);
    }
    if (taken)
        uf_efa_cq_advance(&rail->cq, taken);
    if (posted != rail->qp.rq.posted)
        uf_efa_rq_ring(&rail->qp.rq);
    if (unlikely((rail->broken || rail->breaking) && efa->n_rails > 1 && n < max))
        n += tell_break(efa, rail, &cqes[n]);
    return n;
}

/* Now and then: whether the NICs live. With several rails a break is told by poll; with one it ends the fabric, when nothing else is left. */
static int __attribute__((cold, noinline)) look_at_device(uf_efa *efa, int n)
{
    for (uint32_t i = 0; i < efa->n_rails; i++) {
        uf_efa_rail *rail = &efa->rails[i];
        if (!rail->broken && efa->device->ops->failed(efa->device, i)) {
            rail->broken = rail->gone = true;
            snprintf(efa->cause, sizeof efa->cause, "%s", uf_error_message());
        }
        if (rail->broken && efa->n_rails == 1 && n == 0)
            return uf_fail(UF_EFABRIC, "%s", efa->cause);
    }
    return n;
}

int uf_efa_fabric_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    uf_efa *efa = (uf_efa *)f;
    int n = 0;
    if (efa->device->ops->progress)
        efa->device->ops->progress(efa->device);
    f->drained = 0;
    for (uint32_t i = 0; i < efa->n_rails && n < max; i++)
        n += poll_rail(efa, &efa->rails[i], cqes + n, max - n);
    if (unlikely(++efa->polls % UF_EFA_LOOK_EVERY == 0))
        return look_at_device(efa, n);
    return n;
}
