/* refuse.c - what is wrong with a combine or a cached dispatch on one PE, told to all, so that all refuse alike and nobody waits in vain.
 *
 * A wrong argument: the PE takes part in the call without rows. It sets its word of refusal on each PE, and the strong signal behind it is the one
 * that all wait for in such a call anyway. Once it is there, every PE finds the same first refusal. The PEs stay in step.
 * A handle that can't be used: the PE does not know whose rows the others send, so it can't take part. It sets its notice on each PE, which waits look at
 * now and then. If all make the same mistake in the same call, nothing was started anywhere and they stay in step; a PE that did start the
 * call gives up with the sentence of the one who could not, says so to all, and the uf_ep is of no use any more. */
#include "base/error.h"
#include "ep/private.h"

enum { CALLS_KEPT = 64 };

/* A notice: bit 63 "gave up", origin 11 bits, how 4, calls in a row 8, number of the first of them 40. */
enum { ORIGIN_AT = 52, HOW_AT = 48, STREAK_AT = 40, MOST_STREAK = 255 };
static const uint64_t GAVE_UP = 1ull << 63;

static int tell_all(uf_ep *ep, int kind_of_word, uint64_t value)
{
    int rc = UF_OK;
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int pe = (ep->me + turn) % ep->shape.n_pes;
        rc = uf_signal(ep->ctx, uf_ep_word(ep, kind_of_word, ep->me), UF_SIGNAL_SET, value, ep->world_pe[pe], UF_WEAK);
    }
    return rc;
}

/* ---------------------------------------------------------------- wrong arguments */

int uf_ep_refuse(uf_ep *ep, const uf_ep_handle *h)
{
    int rc = UF_OK;
    uint64_t value = uf_ep_fault_pack(&h->own, h->call);
    ep->refuses = true;
    for (int turn = 1; !rc && turn < ep->shape.n_pes; turn++) {
        int pe = (ep->me + turn) % ep->shape.n_pes;
        rc = uf_signal(ep->ctx, uf_ep_word(ep, uf_ep_refusal_kind(h->peer_slot[pe], h->calls), ep->me), UF_SIGNAL_SET, value,
                       ep->world_pe[pe], UF_WEAK);
    }
    return rc;
}

bool uf_ep_refused(const uf_ep *ep, const uf_ep_handle *h, int *pe, uf_ep_fault *fault)
{
    int kind = uf_ep_refusal_kind(h->slot, h->calls);
    for (int s = 0; s < ep->shape.n_pes; s++) {
        bool mine = s == ep->me && h->own.kind != UF_EP_FAULT_NONE;
        if (mine)
            *fault = h->own;
        if (mine || (s != ep->me && uf_ep_fault_unpack(uf_signal_fetch(uf_ep_word(ep, kind, s)), h->call, fault))) {
            *pe = s;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- unusable handles */

uf_ep_fault uf_ep_handle_find(const uf_ep *ep, const uf_ep_handle *h)
{
    uf_ep_fault fault = {UF_EP_FAULT_HANDLE, -1, UF_EP_HANDLE_NULL, 0};
    if (!h)
        return fault;
    if (h->ep == ep && h->state == UF_EP_OPEN)
        return (uf_ep_fault){UF_EP_FAULT_NONE, -1, -1, 0};
    fault.lane = h->ep != ep ? UF_EP_HANDLE_FOREIGN : h->state == UF_EP_FREE ? UF_EP_HANDLE_FREED : UF_EP_HANDLE_BUSY;
    return fault;
}

void uf_ep_count_call(uf_ep *ep)
{
    ep->calls++;
    ep->refused_calls <<= 1;
    ep->streak = 0;
}

int uf_ep_refuse_call(uf_ep *ep, const uf_ep_fault *fault)
{
    uint64_t streak = ep->streak < MOST_STREAK ? ep->streak + 1 : MOST_STREAK;
    uf_ep_count_call(ep);
    ep->refused_calls |= 1;
    ep->streak = streak;
    int rc = tell_all(ep, UF_EP_NOTICE,
                      (uint64_t)ep->me << ORIGIN_AT | (uint64_t)fault->lane << HOW_AT | streak << STREAK_AT |
                          (ep->calls - streak + 1));
    return rc ? uf_ep_break(ep, rc) : uf_ep_fault_fail(&ep->shape, ep->world_pe[ep->me], fault);
}

/* Whether a notice is of a call that this PE did start. */
static bool concerns_me(const uf_ep *ep, uint64_t notice)
{
    uint64_t first = notice & ((1ull << STREAK_AT) - 1), n = notice >> STREAK_AT & MOST_STREAK;
    if (notice & GAVE_UP)
        return true;
    for (uint64_t call = first; call < first + n; call++)
        if (call <= ep->calls && ep->calls - call < CALLS_KEPT && !(ep->refused_calls >> (ep->calls - call) & 1))
            return true;
    return false;
}

int uf_ep_check_notices(uf_ep *ep)
{
    for (int s = 0; s < ep->shape.n_pes; s++) {
        uint64_t notice = s == ep->me ? 0 : uf_signal_fetch(uf_ep_word(ep, UF_EP_NOTICE, s));
        if (!notice || !concerns_me(ep, notice))
            continue;
        int origin = (int)(notice >> ORIGIN_AT & 2047);
        uf_ep_fault fault = {UF_EP_FAULT_HANDLE, -1, (int32_t)(notice >> HOW_AT & 15), 0};
        int rc = tell_all(ep, UF_EP_NOTICE, notice | GAVE_UP);
        if (origin >= ep->shape.n_pes)
            return uf_ep_break(ep, uf_fail(UF_EINTERNAL, "PE %d sent a notice that cannot be: 0x%llx", ep->world_pe[s],
                                           (unsigned long long)notice));
        return uf_ep_break(ep, rc ? rc : uf_ep_fault_fail(&ep->shape, ep->world_pe[origin], &fault));
    }
    return UF_OK;
}
