/* cq.c - takes completions out of the ring and says whose they are.
 *
 * Three kinds may come: of a WR of ours (its slot is in the id), of a peer's message (the receive is in the id), of a peer's
 * immediate. The sender is found by handle and source queue, which only a connected peer's present queue has. What belongs to nobody
 * (an earlier queue of this number, a peer's former self, a stranger) is counted and dropped: it has taken nothing of ours but the
 * receive, which is posted again.
 *
 * An error completion concerns one WR, unless it is of the receive queue or of a malformed entry: then the queue pair is in error,
 * everything in flight is flushed, and once that is taken poll says so; with several rails rail.c does. */
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

/* Whether the caller is told that the WR failed. */
static bool __attribute__((cold, noinline)) failed(uf_efa *efa, uf_efa_rail *rail, const uf_efa_slot *slot, unsigned status)
{
    if (status == UF_EFA_QP_ERROR || status == UF_EFA_FLUSHED)
        uf_efa_rail_break(efa, rail, status);
    if (efa->n_rails > 1 && !uf_efa_rail_tells(efa, rail, slot, status))
        return false;
    describe(efa, rail, slot, status);
    efa->spoken = true;
    return true;
}

/* Each translator returns the number of CQEs it wrote, 0 or 1. */
static int take_sent(uf_efa *efa, uf_efa_rail *rail, const uf_efa_cqe *c, uf_cqe *cqe)
{
    uint32_t index;
    bool late = rail->health == UF_EFA_BROKEN; /* its WRs were given up */
    if (unlikely(c->qpn != rail->qp.qpn || !uf_efa_id_slot(&rail->ids, c->id, &index) || late)) {
        stray(efa, "PE %d: a completion of an earlier queue %u on rail %u was dropped", efa->pe, c->qpn, rail->index);
        return 0;
    }
    uf_efa_slot *slot = &rail->slots[index];
    *cqe = (uf_cqe){.kind = UF_CQE_SENT, .rail = rail->index, .peer = slot->peer, .cookie = slot->cookie};
    int told = !slot->silent;
    if (unlikely(c->status)) {
        cqe->status = uf_efa_status_code(c->status);
        told = failed(efa, rail, slot, c->status);
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
        uf_efa_rail_break(efa, rail, c->status);
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
        if (rail->health == UF_EFA_SOUND) /* else a queue in error would flush it at once */
            uf_efa_rail_receive(rail, index);
    }
    if (unlikely(!known))
        stray(efa, "PE %d: an arrival of %u bytes from queue %u, handle %u on rail %u is of no PE of this world and was dropped",
              efa->pe, c->bytes, c->source, c->ah, rail->index);
    return known;
}

/* *empty: it saw that nothing is left. */
static int poll_rail(uf_efa *efa, uf_efa_rail *rail, uf_cqe *cqes, int max, bool *empty)
{
    uf_efa_cqe c;
    uint32_t posted = rail->qp.rq.posted, taken = 0;
    int n = 0;
    *empty = false;
    while (n < max) {
        if (!uf_efa_cq_peek(&rail->cq, rail->cq.consumed + taken, &c)) {
            *empty = true;
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
    return n;
}

/* Nothing has come for a while: perhaps because the device is gone. */
static int __attribute__((cold, noinline)) look_at_device(uf_efa *efa)
{
    uf_efa_rail *rail = &efa->rails[0];
    int code = rail->health == UF_EFA_SOUND ? efa->device->ops->failed(efa->device, 0) : 0;
    if (code)
        uf_efa_rail_gone(efa, rail, code);
    return rail->health == UF_EFA_SOUND ? 0 : uf_fail(rail->code, "%s", rail->cause);
}

/* With several rails one may be gone while the others are busy. */
static void __attribute__((cold, noinline)) look_at_devices(uf_efa *efa)
{
    for (uint32_t i = 0; i < efa->n_rails; i++) {
        int code = efa->rails[i].gone ? 0 : efa->device->ops->failed(efa->device, i);
        if (code)
            uf_efa_rail_gone(efa, &efa->rails[i], code);
    }
}

static int poll_rails(uf_efa *efa, uf_cqe *cqes, int max)
{
    uint32_t rail = efa->first_rail;
    int n = 0;
    efa->base.drained = 0;
    efa->spoken = false;
    if (unlikely(++efa->polls % UF_EFA_LOOK_EVERY == 0))
        look_at_devices(efa);
    efa->first_rail = rail + 1 < efa->n_rails ? rail + 1 : 0;
    for (uint32_t i = 0; i < efa->n_rails && n < max; i++) {
        bool empty;
        n += poll_rail(efa, &efa->rails[rail], cqes + n, max - n, &empty);
        efa->base.drained |= (uint32_t)empty << rail;
        rail = rail + 1 < efa->n_rails ? rail + 1 : 0;
    }
    if (unlikely(efa->ailing) && n < max && !efa->spoken)
        n += uf_efa_rail_news(efa, cqes + n);
    return n;
}

int uf_efa_fabric_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    uf_efa *efa = (uf_efa *)f;
    bool empty;
    if (efa->device->ops->progress)
        efa->device->ops->progress(efa->device);
    if (efa->n_rails > 1)
        return poll_rails(efa, cqes, max);
    int n = poll_rail(efa, &efa->rails[0], cqes, max, &empty);
    if (unlikely(n == 0 && ++efa->empty_polls % UF_EFA_LOOK_EVERY == 0))
        return look_at_device(efa);
    return n;
}
