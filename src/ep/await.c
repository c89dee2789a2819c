/* await.c - what dispatch and combine do with the world: signals, puts to network peers, and waits that name who is late.
 *
 * Waits go through the sources one after another. The last one that had to be waited for is the latest of all, whatever the
 * order: those after it were here already, those before it came earlier. */
#include "base/error.h"
#include "ep/private.h"
#include <stdio.h>

/* How often a wait looks for the news that it is in vain. */
enum { LOOK_NS = 20000000 };

static uint64_t now(const uf_ep *ep)
{
    return ep->world->driver->now(ep->world->driver->arg);
}

static bool counts(const uf_ep *ep, const uf_ep_await *a, int pe)
{
    return pe != ep->me && (!a->rows || a->rows[pe] > 0);
}

static bool arrived(const uf_ep *ep, const uf_ep_await *a, int pe)
{
    return uf_signal_fetch(uf_ep_word(ep, a->kind, pe)) >= (a->expected ? a->expected[pe] : a->value);
}

/* The story of a wait that ran out; `detail` is the world's sentence about the lane of the first late PE. */
static int late(uf_ep *ep, const uf_ep_await *a)
{
    char detail[512], names[160] = "";
    snprintf(detail, sizeof detail, "%s", uf_error_message());
    int here = 0, all = 0, named = 0;
    for (int pe = 0; pe < ep->shape.n_pes; pe++) {
        if (!counts(ep, a, pe))
            continue;
        all++;
        if (arrived(ep, a, pe)) {
            here++;
            continue;
        }
        size_t at = strlen(names);
        if (named++ < 8 && a->rows)
            snprintf(names + at, sizeof names - at, "%sPE %d (%d rows)", at ? ", " : "", ep->world_pe[pe], a->rows[pe]);
        else if (named <= 8)
            snprintf(names + at, sizeof names - at, "%sPE %d", at ? ", " : "", ep->world_pe[pe]);
    }
    return uf_fail(UF_ETIMEDOUT, "PE %d: %s %llu waited %llu ms for %s: %d of %d PEs have delivered, late: %s%s. %s",
                   ep->world->pe, a->call, (unsigned long long)a->number, (unsigned long long)(ep->world->timeout_ns / 1000000),
                   a->what, here, all, names, named > 8 ? " and more" : "", detail);
}

/* Waits for one source, and looks from time to time whether it, or another, has said that it can't take part. */
static int wait_one(uf_ep *ep, const uf_ep_await *a, int pe, uint64_t left)
{
    for (;;) {
        uint64_t slice = left < LOOK_NS ? left : LOOK_NS;
        int rc = uf_wait_from(ep->world, uf_ep_word(ep, a->kind, pe), UF_GE, a->expected ? a->expected[pe] : a->value,
                              ep->world_pe[pe], slice);
        if (rc != UF_ETIMEDOUT)
            return rc;
        int refused = uf_ep_check_notices(ep);
        if (refused || slice == left)
            return refused ? refused : rc;
        left -= left == UF_FOREVER ? 0 : slice;
    }
}

int uf_ep_wait(uf_ep *ep, const uf_ep_await *a, bool block)
{
    for (int pe = 0; !block && pe < ep->shape.n_pes; pe++) {
        if (!counts(ep, a, pe) || arrived(ep, a, pe))
            continue;
        /* uf_test lets the engine move things, where no thread of its own does. */
        int rc = uf_test(ep->world, uf_ep_word(ep, a->kind, pe), UF_GE, a->expected ? a->expected[pe] : a->value);
        if (rc == UF_EAGAIN && uf_ep_check_notices(ep))
            return UF_EINVAL;
        if (rc)
            return rc;
    }
    uint64_t deadline = uf_world_deadline(ep->world, ep->world->timeout_ns);
    for (int step = 1; step < ep->shape.n_pes; step++) {
        int pe = (ep->me + step) % ep->shape.n_pes;
        if (!counts(ep, a, pe) || arrived(ep, a, pe))
            continue;
        uint64_t start = now(ep), left = deadline == UINT64_MAX ? UF_FOREVER : deadline > start ? deadline - start : 1;
        int rc = wait_one(ep, a, pe, left);
        ep->stats.late_ns[a->stats] += now(ep) - start;
        ep->stats.late_pe[a->stats] = ep->world_pe[pe];
        if (rc)
            return rc == UF_ETIMEDOUT ? late(ep, a) : rc;
    }
    return UF_OK;
}

int uf_ep_signal(uf_ep *ep, int kind, uint64_t value, int pe)
{
    return uf_signal(ep->ctx, uf_ep_word(ep, kind, ep->me), UF_SIGNAL_ADD, value, ep->world_pe[pe], UF_WEAK);
}

int uf_ep_put(uf_ep *ep, size_t offset, const void *src, size_t bytes, int kind, uint64_t value, int pe)
{
    return uf_put_signal_nbi(ep->ctx, ep->base + offset, src, bytes, uf_ep_word(ep, kind, ep->me), UF_SIGNAL_ADD, value,
                             ep->world_pe[pe], UF_WEAK);
}

int uf_ep_give_leave(uf_ep *ep, const uf_ep_handle *h)
{
    int rc = h->own.kind ? uf_ep_refuse(ep, h) : UF_OK;
    int strength = ep->refuses ? UF_STRONG : UF_WEAK;
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int pe = (ep->me + turn) % ep->shape.n_pes;
        rc = uf_signal(ep->ctx, uf_ep_word(ep, UF_EP_READY, ep->me), UF_SIGNAL_ADD, 1, ep->world_pe[pe], strength);
        ep->expected_ready[pe]++;
    }
    return rc;
}

int uf_ep_wait_leave(uf_ep *ep, uf_ep_handle *h, bool combine, bool block)
{
    return uf_ep_wait(ep,
                      &(uf_ep_await){.call = combine ? "combine" : "dispatch",
                                     .what = "leave to overwrite",
                                     .kind = UF_EP_READY,
                                     .expected = ep->expected_ready,
                                     .stats = combine,
                                     .number = combine ? h->combine_id : h->step},
                      block);
}

int uf_ep_complete(uf_ep *ep)
{
    ep->stage_rows_used = ep->stage_back_used = false;
    return ep->n_network ? uf_flush(ep->ctx) : UF_OK;
}

int uf_ep_stage(uf_ep *ep, bool *used)
{
    int rc = *used ? uf_ep_complete(ep) : UF_OK;
    *used = true;
    return rc;
}

void uf_ep_count_copy(uf_ep *ep, size_t bytes)
{
    uf_tally_add(&ep->ctx->tally, UF_PUTS, 1);
    uf_tally_add(&ep->ctx->tally, UF_BYTES_LOCAL, bytes);
}

void uf_ep_count_path(uf_ep *ep, int pe, size_t bytes)
{
    if (pe != ep->me)
        *(ep->peer[pe] ? &ep->stats.mapped_bytes : &ep->stats.network_bytes) += bytes;
}

int uf_ep_check(uf_ep *ep, const char *call, const uf_ep_handle *handle)
{
    if (handle && (handle->ep != ep || handle->state == UF_EP_FREE))
        return uf_fail(UF_EINVAL, "%s on PE %d: argument handle %s", call, ep->world->pe,
                       handle->ep != ep ? "belongs to another uf_ep" : "is not open: it was freed");
    int rc = uf_world_check(ep->world);
    if (!rc && ep->broken)
        rc =
            uf_fail(ep->broken,
                    "%s on PE %d: an earlier dispatch or combine failed half-way, so the PEs are out of step: destroy this uf_ep",
                    call, ep->world->pe);
    return rc;
}

int uf_ep_break(uf_ep *ep, int rc)
{
    if (rc && !ep->broken)
        ep->broken = rc;
    return rc;
}
