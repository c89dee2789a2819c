/* rail.c - which rails are broken, to whom, and when the engine may be told: rule 16 begins here.
 *
 * A whole rail breaks when its own queue is in error or its NIC is gone. What flew then is flushed or never heard of again; neither is told,
 * since it will be sent again elsewhere.
 * The way over a rail to one peer breaks when the peer stops answering there, and whether it is the peer or only its NIC cannot be seen
 * from one rail. So it is taken for the NIC as long as another rail to that peer is not known to be broken: the engine sends
 * everything again over that one, which is the question that decides. A dead peer fails on each rail in turn, and on the last one its WRs fail with
 * UF_EPEER and its number, as they do with one rail. Where several rails time out this takes a timeout each; most deaths are told by the
 * bootstrap before. With one rail nothing is ever taken for a broken way.
 *
 * When a break may be told: all WRs have had their completion or, of a NIC that is gone, will have none; what the CQ held was handed out; and
 * no packet of theirs is under way any more, for which only time can be waited (UF_EFA_STALE_NS). What is posted
 * meanwhile goes nowhere, and is sent again like the rest: if it were refused, the engine would keep others waiting behind it. */
#include "base/log.h"
#include "fabric/efa/efa.h"
#include <stdio.h>
#include <string.h>

static void begin(uf_efa *efa, uf_efa_rail *rail, int code)
{
    rail->code = code;
    rail->health = UF_EFA_BREAKING;
    efa->ailing = true;
    rail->broke_at = efa->device->ops->now(efa->device);
}

void uf_efa_rail_break(uf_efa *efa, uf_efa_rail *rail, unsigned status)
{
    if (rail->health != UF_EFA_SOUND)
        return;
    begin(efa, rail, UF_EFABRIC);
    snprintf(rail->cause, sizeof rail->cause, "PE %d: the queue of rail %u (%s) is in error: %s (EFA status %u). %s", efa->pe,
             rail->index, efa->device->nics[rail->index].name, uf_efa_status_name(status), status, uf_efa_status_remedy(status));
}

void uf_efa_rail_gone(uf_efa *efa, uf_efa_rail *rail, int code)
{
    if (rail->health == UF_EFA_SOUND) {
        begin(efa, rail, code);
        snprintf(rail->cause, sizeof rail->cause, "%s", uf_error_message());
    }
    rail->gone = true;
}

/* Whether `peer` may still be reached over another rail than this one. */
static bool another_way(const uf_efa *efa, const uf_efa_rail *rail, uint32_t peer)
{
    for (uint32_t i = 0; i < efa->n_rails; i++) {
        const uf_efa_rail *other = &efa->rails[i];
        if (other != rail && other->health == UF_EFA_SOUND && other->peers[peer].connected &&
            other->peers[peer].health == UF_EFA_SOUND)
            return true;
    }
    return false;
}

bool uf_efa_rail_tells(uf_efa *efa, uf_efa_rail *rail, const uf_efa_slot *slot, unsigned status)
{
    uf_efa_peer *p = &rail->peers[slot->peer];
    if (status == UF_EFA_FLUSHED)
        return false;
    if (uf_efa_status_code(status) != UF_EPEER)
        return true;
    if (p->health == UF_EFA_SOUND && another_way(efa, rail, slot->peer)) {
        p->health = UF_EFA_BREAKING;
        p->status = (uint8_t)status;
        efa->ailing = true;
        rail->peers_breaking++;
    }
    return p->health == UF_EFA_SOUND;
}

int uf_efa_rail_refuse(const uf_efa_rail *rail, uint32_t peer)
{
    bool told = rail->health == UF_EFA_BROKEN || rail->peers[peer].health == UF_EFA_BROKEN;
    return told ? UF_EAGAIN : UF_OK;
}

static bool rail_is_due(const uf_efa *efa, const uf_efa_rail *rail)
{
    bool drained = efa->base.drained >> rail->index & 1;
    bool quiet = rail->gone || rail->qp.sq.reserved == rail->qp.sq.completed;
    return drained && quiet && efa->device->ops->now(efa->device) - rail->broke_at >= UF_EFA_STALE_NS;
}

static int tell_rail(uf_efa *efa, uf_efa_rail *rail, uf_cqe *cqe)
{
    rail->health = UF_EFA_BROKEN;
    rail->peers_breaking = 0; /* they are told with it */
    snprintf(efa->error, sizeof efa->error, "%s", rail->cause);
    *cqe = (uf_cqe){.kind = UF_CQE_RAIL, .rail = rail->index, .peer = UF_CQE_ALL_PEERS, .status = UF_EFABRIC};
    return 1;
}

static int tell_peer(uf_efa *efa, uf_efa_rail *rail, uint32_t peer, uf_cqe *cqe)
{
    uf_efa_peer *p = &rail->peers[peer];
    p->health = UF_EFA_BROKEN;
    rail->peers_breaking--;
    snprintf(efa->error, sizeof efa->error,
             "PE %d: rail %u (%s) does not reach PE %u, which other rails may: %s (EFA status %u). %s", efa->pe, rail->index,
             efa->device->nics[rail->index].name, peer, uf_efa_status_name(p->status), p->status,
             uf_efa_status_remedy(p->status));
    *cqe = (uf_cqe){.kind = UF_CQE_RAIL, .rail = rail->index, .peer = peer, .status = UF_EFABRIC};
    return 1;
}

static int peer_news(uf_efa *efa, uf_efa_rail *rail, uf_cqe *cqe)
{
    for (uint32_t i = 0; i < efa->n_pes; i++)
        if (rail->peers[i].health == UF_EFA_BREAKING && rail->peers[i].in_flight == 0)
            return tell_peer(efa, rail, i, cqe);
    return 0;
}

int uf_efa_rail_news(uf_efa *efa, uf_cqe *cqe)
{
    for (uint32_t i = 0; i < efa->n_rails; i++) {
        uf_efa_rail *rail = &efa->rails[i];
        int n = 0;
        if (rail->health == UF_EFA_BREAKING && rail_is_due(efa, rail))
            n = tell_rail(efa, rail, cqe);
        else if (rail->health == UF_EFA_SOUND && rail->peers_breaking)
            n = peer_news(efa, rail, cqe);
        if (n)
            return n;
    }
    return 0;
}
