/* shuffle_rail.c - rails that break, in the shuffle fabric: what is lost at once, and when who hears of it.
 *
 * A rail breaks at one PE: its WRs on it and those of all others to it are gone from that tick on, wherever they were: not placed, half
 * placed, or delivered with the sender's CQE still to come. What lies in a CQ stays there and is polled as ever. The PE itself hears
 * UF_CQE_ALL_PEERS, every other one hears of the PE, each in its own time and behind what its CQ holds then, as fabric.h says. It must never
 * let a lost WR move a byte or give a CQE. */
#include "support/shuffle_wire.h"
#include "unfence/unfence.h"
#include <stdio.h>
#include <stdlib.h>

static bool goes_over(const shuffle_flight *flight, int pe, uint32_t rail)
{
    return flight->wr.rail == rail && (flight->from == pe || flight->to == pe);
}

static void sever(uf_shuffle_wire *w, shuffle_flight *flight)
{
    if (flight->dropped)
        return;
    flight->dropped = true;
    if (!flight->sent) {
        w->ports[flight->from].tx_used[flight->wr.rail]--;
        w->counters.severed++;
    }
}

static void tell_later(uf_shuffle_wire *w, int pe, uint32_t peer, uint32_t rail)
{
    uint64_t wait = 1 + shuffle_random(w) % (4 * (uint64_t)w->knobs.delay + 64);
    if (w->n_news == SHUFFLE_NEWS) {
        shuffle_note(w, "the test instrument has no room for another broken rail");
        return;
    }
    w->news[w->n_news++] = (shuffle_news){w->now + wait, pe, peer, rail};
}

static void set_broken(uf_shuffle_wire *w, int pe, uint32_t rail, uint32_t peer)
{
    uint8_t *health = shuffle_health_of(w, pe, rail, peer);
    if (*health == SHUFFLE_SOUND)
        *health = SHUFFLE_BROKEN;
}

void shuffle_break(uf_shuffle_wire *w, int pe, uint32_t rail)
{
    w->counters.breaks++;
    for (uint32_t i = 0; i < w->heap_used; i++)
        if (goes_over(w->heap[i].flight, pe, rail))
            sever(w, w->heap[i].flight);
    for (int from = 0; from < w->knobs.n_pes; from++)
        for (shuffle_flight *f = w->ports[from].unrung; f; f = f->ring_next)
            if (goes_over(f, pe, rail))
                sever(w, f);
    for (int other = 0; other < w->knobs.n_pes; other++) {
        set_broken(w, pe, rail, (uint32_t)other);
        if (other == pe || !w->ports[other].fabric)
            continue;
        set_broken(w, other, rail, (uint32_t)pe);
        tell_later(w, other, (uint32_t)pe, rail);
    }
    tell_later(w, pe, UF_CQE_ALL_PEERS, rail);
}

static void tell(uf_shuffle_wire *w, const shuffle_news *news)
{
    shuffle_port *port = &w->ports[news->pe];
    uf_cqe cqe = {.kind = UF_CQE_RAIL, .rail = (uint16_t)news->rail, .status = UF_EFABRIC, .peer = news->peer};
    if (!port->fabric)
        return;
    snprintf(port->error, sizeof port->error, "shuffle: the test broke rail %u of PE %d", news->rail,
             news->peer == UF_CQE_ALL_PEERS ? news->pe : (int)news->peer);
    shuffle_cq_push(w, &port->cq[news->rail], &cqe);
}

void shuffle_rails_step(uf_shuffle_wire *w)
{
    for (uint32_t i = 0; i < UF_SHUFFLE_BREAKS; i++) {
        uf_shuffle_break *b = &w->knobs.breaks[i];
        if (b->at == 0 || b->at > w->now || w->ports[b->pe].tx_used[b->rail] < b->flying)
            continue;
        b->at = w->ports[b->pe].fabric ? 0 : w->now + b->at;
        if (b->at == 0)
            shuffle_break(w, b->pe, b->rail);
    }
    for (uint32_t i = 0; i < w->n_news;) {
        if (w->news[i].due > w->now) {
            i++;
            continue;
        }
        shuffle_news news = w->news[i];
        w->news[i] = w->news[--w->n_news];
        tell(w, &news);
    }
}

void shuffle_rails_forget(uf_shuffle_wire *w, int pe)
{
    for (uint32_t i = 0; i < w->n_news;) {
        if (w->news[i].pe == pe)
            w->news[i] = w->news[--w->n_news];
        else
            i++;
    }
}
