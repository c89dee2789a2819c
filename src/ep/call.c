/* call.c - the public calls: what is started on a handle goes from state to state, without waiting in a test, waiting in a finish.
 *
 * A dispatch whose notes are out is "counting" until it has read those of the others. At most two are: then the rows of the oldest are sent
 * before another may start. Arguments that are wrong on one PE are refused on all at the finish of a new dispatch, since all exchange
 * notes there; in a cached dispatch and a combine they are refused before anything is sent. */
#include "base/error.h"
#include "ep/private.h"

/* ---------------------------------------------------------------- steps */

static void stop_counting(uf_ep *ep, const uf_ep_handle *h)
{
    for (int i = 0; i < ep->n_counting; i++)
        if (ep->counting[i] == h) {
            ep->n_counting--;
            memmove(&ep->counting[i], &ep->counting[i + 1], (size_t)(ep->n_counting - i) * sizeof *ep->counting);
            return;
        }
}

/* Takes a handle as far as its rows are sent. */
static int advance(uf_ep *ep, uf_ep_handle *h, bool block)
{
    int rc = UF_OK;
    switch (h->state) {
    case UF_EP_COUNTS:
        rc = uf_ep_notes_read(ep, h, block);
        if (!rc)
            stop_counting(ep, h);
        return rc;
    case UF_EP_LEAVE:
        rc = uf_ep_wait_leave(ep, h, false, block);
        return rc ? rc : uf_ep_rows_send(ep, h);
    case UF_EP_BACK_LEAVE:
        rc = uf_ep_wait_leave(ep, h, true, block);
        return rc ? rc : uf_ep_back_send(ep, h);
    case UF_EP_FREE:
    case UF_EP_REFUSED:
    case UF_EP_ROWS:
    case UF_EP_OPEN:
    case UF_EP_BACK_ROWS:
        break;
    }
    return rc;
}

/* Notes are read in the order of the dispatches, which is why there are places enough for them. */
static int read_earlier(uf_ep *ep, const uf_ep_handle *h, bool block)
{
    int rc = UF_OK;
    while (!rc && h->state == UF_EP_COUNTS && ep->counting[0] != h)
        rc = advance(ep, ep->counting[0], block);
    return rc;
}

/* ---------------------------------------------------------------- dispatch */

static int check_received(const uf_ep *ep, const char *call, const uf_ep_received *r)
{
    if (!r)
        return uf_fail(UF_EINVAL, "%s on PE %d: argument received is NULL", call, ep->world->pe);
    if (r->size < sizeof *r)
        return uf_fail(UF_EINVAL, "%s on PE %d: received.size is %zu, but this library's uf_ep_received has %zu bytes", call,
                       ep->world->pe, r->size, sizeof *r);
    return UF_OK;
}

static int check_state(const uf_ep *ep, const char *call, const uf_ep_handle *h, bool wanted)
{
    if (wanted)
        return UF_OK;
    return uf_fail(UF_EINVAL, "%s on PE %d: %s", call, ep->world->pe,
                   h->state == UF_EP_OPEN ? "nothing of this kind was started on the handle"
                                          : "something else is started on the handle: finish that first");
}

static uf_ep_handle *find_handle(uf_ep *ep, int first, int n)
{
    for (int i = first; i < first + n; i++)
        if (ep->handles[i].state == UF_EP_FREE)
            return &ep->handles[i];
    return NULL;
}

/* What this PE refuses of its own call; all will hear of it. */
static uf_ep_fault find_fault(uf_ep *ep, const uf_ep_handle *h, const uf_ep_send *s)
{
    uf_ep_fault fault;
    if (!h)
        return (uf_ep_fault){UF_EP_FAULT_HANDLES, -1, -1, ep->sizes.n_handles};
    bool scales = ep->options.n_scales > 0;
    if (s->n_tokens > 0 && s->n_tokens <= ep->shape.max_tokens && (!s->x || !s->experts || (scales && !s->scales)))
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, !s->x ? 0 : !s->experts ? 1 : 2, s->n_tokens};
    if (s->gradients)
        return (uf_ep_fault){UF_EP_FAULT_GRADIENTS, -1, -1, s->gradients};
    uf_ep_routing_find(&ep->shape, s->experts, s->n_tokens, &fault);
    return fault;
}

static int start_new(uf_ep *ep, const uf_ep_send *send, uf_ep_handle **handle)
{
    int rc = UF_OK;
    while (!rc && ep->n_counting == UF_EP_MOST_COUNTING)
        rc = advance(ep, ep->counting[0], true);
    if (rc)
        return uf_ep_break(ep, rc);
    uf_ep_handle *h = find_handle(ep, 0, ep->sizes.n_handles);
    uf_ep_fault fault = find_fault(ep, h, send);
    if (fault.kind)
        h = find_handle(ep, ep->sizes.n_handles, UF_EP_MOST_REFUSED);
    if (!h)
        return uf_ep_break(ep, uf_fail(UF_EINVAL, "uf_ep_dispatch_start on PE %d: %d refused dispatches were not finished",
                                       ep->world->pe, UF_EP_MOST_REFUSED));
    h->send = *send;
    h->step = ++ep->step;
    h->state = UF_EP_COUNTS;
    if (!fault.kind)
        uf_ep_dispatch_plan(ep, h);
    ep->counting[ep->n_counting++] = h;
    /* Staged bytes may be overwritten, and no earlier put of mine can be placed again, once it has completed. */
    rc = uf_ep_complete(ep);
    if (!rc)
        rc = uf_ep_notes_send(ep, h, &fault);
    *handle = h;
    return uf_ep_break(ep, rc);
}

static int start_cached(uf_ep *ep, const uf_ep_send *send, uf_ep_handle *h)
{
    const char *call = "uf_ep_dispatch_start with a handle";
    int rc = check_state(ep, call, h, h->state == UF_EP_OPEN);
    if (!rc && h->n_tokens && !send->x)
        rc =
            uf_fail(UF_EINVAL, "%s on PE %d: argument x is NULL, but the handle has %d tokens", call, ep->world->pe, h->n_tokens);
    if (!rc && h->n_tokens && !send->scales && ep->options.n_scales && !send->gradients)
        rc = uf_fail(UF_EINVAL, "%s on PE %d: argument scales is NULL, but rows have %d", call, ep->world->pe,
                     ep->options.n_scales);
    if (rc)
        return rc;
    h->send = *send;
    h->state = UF_EP_LEAVE;
    h->resized = h->row_bytes != uf_ep_send_bytes(ep, h);
    if (h->resized)
        rc = uf_ep_complete(ep);
    return uf_ep_break(ep, rc ? rc : uf_ep_give_leave(ep, h, false));
}

int uf_ep_dispatch_start(uf_ep *ep, const uf_ep_send *send, uf_ep_handle **handle)
{
    if (!ep || !send || !handle)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_start: argument %s is NULL", !ep ? "ep" : !send ? "send" : "handle");
    if (send->size < sizeof *send)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_start on PE %d: send.size is %zu, but this library's uf_ep_send has %zu bytes",
                       ep->world->pe, send->size, sizeof *send);
    int rc = uf_ep_check(ep, "uf_ep_dispatch_start", *handle);
    if (rc)
        return rc;
    return *handle ? start_cached(ep, send, *handle) : start_new(ep, send, handle);
}

int uf_ep_dispatch_finish(uf_ep *ep, uf_ep_handle *h, uf_ep_received *received)
{
    const char *call = "uf_ep_dispatch_finish";
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, call, h);
    if (!rc)
        rc = check_received(ep, call, received);
    if (!rc)
        rc = check_state(ep, call, h,
                         h->state == UF_EP_COUNTS || h->state == UF_EP_REFUSED || h->state == UF_EP_LEAVE ||
                             h->state == UF_EP_ROWS);
    if (rc)
        return rc;
    rc = read_earlier(ep, h, true);
    if (!rc)
        rc = advance(ep, h, true);
    if (!rc && h->state == UF_EP_REFUSED) {
        h->state = UF_EP_FREE;
        return uf_ep_fault_fail(&ep->shape, h->fault_pe, &h->fault);
    }
    if (!rc)
        rc = uf_ep_rows_wait(ep, h, true);
    if (!rc)
        rc = uf_ep_receive(ep, h);
    if (rc)
        return uf_ep_break(ep, rc);
    h->state = UF_EP_OPEN;
    uf_ep_received_fill(h, received);
    return UF_OK;
}

int uf_ep_dispatch(uf_ep *ep, const void *x, const int32_t *experts, const float *weights, int n_tokens, uf_ep_handle **handle,
                   uf_ep_received *received)
{
    if (!ep || !handle)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch: argument %s is NULL", !ep ? "ep" : "handle");
    int rc = check_received(ep, "uf_ep_dispatch", received);
    uf_ep_send send = {.size = sizeof send, .x = x, .experts = experts, .weights = weights, .n_tokens = n_tokens};
    uf_ep_handle *h = NULL;
    if (!rc)
        rc = uf_ep_dispatch_start(ep, &send, &h);
    if (!rc)
        rc = uf_ep_dispatch_finish(ep, h, received);
    if (!rc)
        *handle = h;
    return rc;
}

int uf_ep_dispatch_cached(uf_ep *ep, const void *x, uf_ep_handle *h, uf_ep_received *received)
{
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_cached: argument %s is NULL", !ep ? "ep" : "handle");
    int rc = check_received(ep, "uf_ep_dispatch_cached", received);
    uf_ep_send send = {.size = sizeof send, .x = x};
    if (!rc)
        rc = uf_ep_dispatch_start(ep, &send, &h);
    return rc ? rc : uf_ep_dispatch_finish(ep, h, received);
}

/* ---------------------------------------------------------------- combine */

static int check_back(const uf_ep *ep, const uf_ep_back *b, const uf_ep_handle *h)
{
    if (ep->options.type == UF_EP_BYTES)
        return uf_fail(UF_EUNSUPPORTED,
                       "uf_ep_combine on PE %d: rows of type UF_EP_BYTES cannot be added; create with UF_EP_BF16 or UF_EP_F32",
                       ep->world->pe);
    if ((!b->y && h->n_rows) || (!b->out && h->n_tokens))
        return uf_fail(UF_EINVAL, "uf_ep_combine on PE %d: argument %s is NULL, but there are %d rows and %d tokens",
                       ep->world->pe, !b->y && h->n_rows ? "y" : "out", h->n_rows, h->n_tokens);
    const void *const addresses[] = {b->y, b->out, b->bias[0], b->bias[1]};
    static const char *const names[] = {"y", "out", "bias[0]", "bias[1]"};
    uintptr_t mask = ep->options.type == UF_EP_F32 ? 3 : 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((uintptr_t)addresses[i] & mask)
            return uf_fail(UF_EINVAL, "uf_ep_combine on PE %d: argument %s is not aligned to its elements", ep->world->pe,
                           names[i]);
    return UF_OK;
}

int uf_ep_combine_start(uf_ep *ep, const uf_ep_back *back, uf_ep_handle *h)
{
    const char *call = "uf_ep_combine_start";
    if (!ep || !back || !h)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !ep ? "ep" : !back ? "back" : "handle");
    if (back->size < sizeof *back)
        return uf_fail(UF_EINVAL, "%s on PE %d: back.size is %zu, but this library's uf_ep_back has %zu bytes", call,
                       ep->world->pe, back->size, sizeof *back);
    int rc = uf_ep_check(ep, call, h);
    if (!rc)
        rc = check_state(ep, call, h, h->state == UF_EP_OPEN);
    if (!rc)
        rc = check_back(ep, back, h);
    if (rc)
        return rc;
    h->give = *back;
    h->combine_id = ++ep->combines;
    if (h->repeats++ == 0)
        return uf_ep_break(ep, uf_ep_back_send(ep, h));
    h->state = UF_EP_BACK_LEAVE;
    return uf_ep_break(ep, uf_ep_give_leave(ep, h, true));
}

int uf_ep_combine_finish(uf_ep *ep, uf_ep_handle *h)
{
    const char *call = "uf_ep_combine_finish";
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, call, h);
    if (!rc)
        rc = check_state(ep, call, h, h->state == UF_EP_BACK_LEAVE || h->state == UF_EP_BACK_ROWS);
    if (rc)
        return rc;
    rc = advance(ep, h, true);
    if (!rc)
        rc = uf_ep_back_wait(ep, h, true);
    if (!rc)
        rc = uf_ep_back_reduce(ep, h);
    /* y is the caller's again. */
    if (!rc)
        rc = uf_ep_complete(ep);
    h->state = UF_EP_OPEN;
    return uf_ep_break(ep, rc);
}

int uf_ep_combine(uf_ep *ep, const void *y, const float *row_weights, uf_ep_handle *h, void *out, float *out_weights)
{
    uf_ep_back back = {.size = sizeof back, .y = y, .row_weights = row_weights, .out = out, .out_weights = out_weights};
    int rc = uf_ep_combine_start(ep, &back, h);
    return rc ? rc : uf_ep_combine_finish(ep, h);
}

/* ---------------------------------------------------------------- both */

int uf_ep_test(uf_ep *ep, uf_ep_handle *h, int *done)
{
    if (!ep || !h || !done)
        return uf_fail(UF_EINVAL, "uf_ep_test: argument %s is NULL", !ep ? "ep" : !h ? "handle" : "done");
    *done = 0;
    int rc = uf_ep_check(ep, "uf_ep_test", h);
    if (rc)
        return rc;
    rc = read_earlier(ep, h, false);
    if (!rc)
        rc = advance(ep, h, false);
    if (!rc && h->state == UF_EP_ROWS)
        rc = uf_ep_rows_wait(ep, h, false);
    if (!rc && h->state == UF_EP_BACK_ROWS)
        rc = uf_ep_back_wait(ep, h, false);
    *done = rc == UF_OK;
    return rc == UF_EAGAIN ? UF_OK : uf_ep_break(ep, rc);
}
