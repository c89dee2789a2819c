/* describe.c - sentences about what is held and why: for waits that ran out and for the watchdog (rule 17).
 *
 * Never on a hot path. Only reads, but for the watchdog's own notes in the windows. */
#include "order/internal.h"
#include <stdarg.h>
#include <stdio.h>

static const char *const hold_text[] = {
    [UF_HOLD_GO] = "nothing",
    [UF_HOLD_FENCE] = "a fence before it",
    [UF_HOLD_OVERLAP] = "a put in flight to the same bytes",
    [UF_HOLD_STRONG] = "puts before it without completion",
    [UF_HOLD_GRANT] = "the peer's answer to the opening of the lane",
    [UF_HOLD_WINDOW] = "room in the lane's window",
    [UF_HOLD_CREDITS] = "credits for immediates, which return as the peer consumes",
    [UF_HOLD_MESSAGES] = "credits for messages, which return as the peer applies them",
    [UF_HOLD_SLOT] = "answers of the peer to earlier requests",
    [UF_HOLD_COOKIE] = "completions of work requests in flight",
    [UF_HOLD_POST] = "the network to take more",
    [UF_HOLD_RAIL] = "the peer's count after a rail broke",
    [UF_HOLD_FAILED] = "nothing: it has ended",
};

typedef struct text {
    char *at;
    size_t room, length;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n =
        vsnprintf(t->length < t->room ? t->at + t->length : NULL, t->length < t->room ? t->room - t->length : 0, format, args);
    va_end(args);
    if (n > 0)
        t->length += (size_t)n;
}

static uint32_t arrivals(const uf_order_window *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < (w->size + 63) / 64; i++)
        n += (uint32_t)__builtin_popcountll(w->map[i]);
    return n;
}

static void add_window(const uf_order *o, text *t, const uf_order_window *w)
{
    const char *sep = t->length ? "; " : "";
    add(t, "%slane %u from PE %u waits for sequence %u", sep, w->id, w->flow->peer, w->cursor & 0xffff);
    add(t, ", %u later ones arrived", arrivals(w));
    if (w->n_parked) {
        const uf_order_parked *p = &o->parked[w->parked];
        add(t, ", %u signal%s held", w->n_parked, w->n_parked == 1 ? "" : "s");
        if (p->missing)
            add(t, ", the first has %u of %u arrivals of its range at %u", p->wire.aux - p->missing, p->wire.aux,
                (p->sequence - p->wire.aux) & 0xffff);
        else
            add(t, ", the first has sequence %u", p->sequence & 0xffff);
    }
}

static void add_lane(const uf_order *o, text *t, const uf_order_lane *lane)
{
    uint32_t queued = 0, held = 0;
    for (uint32_t i = lane->queue.head; i != UF_NONE; i = o->entries[i].next)
        queued++;
    for (uint32_t i = lane->held.head; i != UF_NONE; i = o->entries[i].next)
        held++;
    for (uint32_t i = lane->ready.head; i != UF_NONE; i = o->entries[i].next)
        held++;
    if (queued)
        add(t, "%sa lane to PE %u has %u operations queued, the first waits for %s", t->length ? "; " : "", lane->flow->peer,
            queued, hold_text[lane->cause]);
    if (held)
        add(t, "%sa lane to PE %u holds %u signals until the puts before them are complete", t->length ? "; " : "",
            lane->flow->peer, held);
}

size_t uf_order_describe(const uf_order *order, uint32_t flow, char *out, size_t bytes)
{
    text t = {out, bytes, 0};
    if (bytes)
        out[0] = 0;
    if (flow >= order->config.n_flows)
        return 0;
    const uf_order_flow *f = &order->flows[flow];
    if (f->status)
        add(&t, "the connection to PE %u has ended", flow);
    for (uint32_t i = 0; i < order->config.max_lanes; i++)
        if (order->windows[i].used && order->windows[i].flow == f)
            add_window(order, &t, &order->windows[i]);
    for (uint32_t i = 0; i < order->config.max_local_lanes; i++)
        if (order->lanes[i].used && order->lanes[i].flow == f && !f->status)
            add_lane(order, &t, &order->lanes[i]);
    if (f->asking)
        add(&t, "%sPE %u has not yet confirmed what was sent to it", t.length ? "; " : "", flow);
    if (t.length == 0)
        add(&t, "PE %u has sent %u immediates and %u messages, all applied, and nothing to it waits", flow,
            f->rx_imm[0] + f->rx_imm[1] - order->config.first_sequence,
            f->rx_msg[0] + f->rx_msg[1] - order->config.first_sequence);
    return t.length < bytes ? t.length : bytes ? bytes - 1 : 0;
}

int uf_order_watch(uf_order *order, uint32_t *flow)
{
    const uf_order_window *stuck = NULL;
    for (uint32_t i = 0; i < order->config.max_lanes; i++) {
        uf_order_window *w = &order->windows[i];
        if (!w->used)
            continue;
        bool waits = w->n_parked > 0, moved = w->cursor != w->watched;
        if (waits && w->suspect && !moved && !stuck)
            stuck = w;
        w->suspect = waits;
        w->watched = w->cursor;
    }
    if (!stuck)
        return UF_OK;
    char sentence[256];
    text t = {sentence, sizeof sentence, 0};
    add_window(order, &t, stuck);
    *flow = stuck->flow->peer;
    return uf_fail(UF_EAGAIN,
                   "PE %u: %s and has not moved since the last look: PE %u has stopped sending, or a write of it was lost",
                   order->config.self, sentence, stuck->flow->peer);
}
