/* call.c - the public calls: what is started on a handle goes from state to state, without waiting in a test, waiting in a finish.
 *
 * A dispatch whose notes are out is "counting" until it has read those of the others. At most two are: then the rows of the oldest are sent
 * before another may start. Arguments that are wrong on one PE are refused on all at the finish of a new dispatch, since all exchange
 * notes there; in a cached dispatch and a combine at its finish as well, by the words of refuse.c. */
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

/* Once everybody has been heard: whether the call is refused, which is then its state. */
static bool heard_refusal(const uf_ep *ep, uf_ep_handle *h, uf_ep_state refused)
{
    int pe;
    if (!uf_ep_refused(ep, h, &pe, &h->fault))
        return false;
    h->fault_pe = ep->world_pe[pe];
    h->state = refused;
    return true;
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
        return rc || heard_refusal(ep, h, UF_EP_LEAVE_REFUSED) ? rc : uf_ep_rows_send(ep, h);
    case UF_EP_BACK_LEAVE:
        rc = uf_ep_wait_leave(ep, h, true, block);
        return rc || heard_refusal(ep, h, UF_EP_BACK_REFUSED) ? rc : uf_ep_back_send(ep, h);
    case UF_EP_FREE:
    case UF_EP_REFUSED:
    case UF_EP_LEAVE_REFUSED:
    case UF_EP_BACK_REFUSED:
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

static const uf_ep_fault no_fault = {UF_EP_FAULT_NONE, -1, -1, 0};

/* A struct of the caller's: `size` is its first member. */
static uf_ep_fault find_struct_fault(const void *given, size_t bytes, uf_ep_argument argument)
{
    size_t size;
    if (!given)
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, argument, 0};
    memcpy(&size, given, sizeof size);
    return size < bytes ? (uf_ep_fault){UF_EP_FAULT_SIZE, -1, argument, (int32_t)size} : no_fault;
}

static uf_ep_fault find_received_fault(const uf_ep_received *r)
{
    return find_struct_fault(r, sizeof *r, UF_EP_ARG_RECEIVED);
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
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1,
                             !s->x         ? UF_EP_ARG_X
                             : !s->experts ? UF_EP_ARG_EXPERTS
                                           : UF_EP_ARG_SCALES,
                             s->n_tokens};
    if (s->gradients)
        return (uf_ep_fault){UF_EP_FAULT_GRADIENTS, -1, -1, s->gradients};
    uf_ep_routing_find(&ep->shape, s->experts, s->n_tokens, &fault);
    return fault;
}

/* `fault`: what is wrong with the call already. */
static int start_new(uf_ep *ep, const uf_ep_send *send, uf_ep_fault fault, uf_ep_handle **handle)
{
    int rc = UF_OK;
    while (!rc && ep->n_counting == UF_EP_MOST_COUNTING)
        rc = advance(ep, ep->counting[0], true);
    if (rc)
        return uf_ep_break(ep, rc);
    uf_ep_handle *h = find_handle(ep, 0, ep->sizes.n_handles);
    if (!fault.kind)
        fault = find_fault(ep, h, send);
    if (fault.kind)
        h = find_handle(ep, ep->sizes.n_handles, UF_EP_MOST_REFUSED);
    if (!h)
        return uf_ep_break(ep, uf_fail(UF_EINVAL, "uf_ep_dispatch_start on PE %d: %d refused dispatches were not finished",
                                       ep->world->pe, UF_EP_MOST_REFUSED));
    uf_ep_count_call(ep);
    h->step = ++ep->step;
    h->calls = 0;
    h->state = UF_EP_COUNTS;
    if (!fault.kind) {
        h->send = *send;
        uf_ep_dispatch_plan(ep, h);
    }
    ep->counting[ep->n_counting++] = h;
    /* Staged bytes may be overwritten, and no earlier put of mine can be placed again, once it has completed. */
    rc = uf_ep_complete(ep);
    if (!rc)
        rc = uf_ep_notes_send(ep, h, &fault);
    *handle = h;
    return uf_ep_break(ep, rc);
}

/* A call on an open handle; what is wrong with it is told to all and refused by all at its finish. */
static void open_call(uf_ep *ep, uf_ep_handle *h, uf_ep_fault fault)
{
    uf_ep_count_call(ep);
    h->calls++;
    h->call = ep->calls;
    h->own = fault;
}

static uf_ep_fault find_cached_fault(const uf_ep *ep, const uf_ep_handle *h, const uf_ep_send *s)
{
    if (h->n_tokens && !s->x)
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, UF_EP_ARG_X, h->n_tokens};
    if (h->n_tokens && !s->scales && ep->options.n_scales && !s->gradients)
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, UF_EP_ARG_SCALES, h->n_tokens};
    return no_fault;
}

static int start_cached(uf_ep *ep, const uf_ep_send *send, uf_ep_fault fault, uf_ep_handle *h)
{
    uf_ep_fault unusable = uf_ep_handle_find(ep, h);
    if (unusable.kind)
        return uf_ep_refuse_call(ep, &unusable);
    if (!fault.kind)
        fault = find_cached_fault(ep, h, send);
    open_call(ep, h, fault);
    h->state = UF_EP_LEAVE;
    int rc = UF_OK;
    if (!fault.kind) {
        h->send = *send;
        h->resized = h->row_bytes != uf_ep_send_bytes(ep, h);
        rc = h->resized ? uf_ep_complete(ep) : UF_OK;
    }
    return uf_ep_break(ep, rc ? rc : uf_ep_give_leave(ep, h));
}

static int start(uf_ep *ep, const uf_ep_send *send, uf_ep_fault fault, uf_ep_handle **handle)
{
    int rc = uf_ep_check(ep, "uf_ep_dispatch_start", NULL);
    if (rc)
        return rc;
    if (!fault.kind)
        fault = find_struct_fault(send, sizeof *send, UF_EP_ARG_SEND);
    return *handle ? start_cached(ep, send, fault, *handle) : start_new(ep, send, fault, handle);
}

int uf_ep_dispatch_start(uf_ep *ep, const uf_ep_send *send, uf_ep_handle **handle)
{
    if (!ep || !handle)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_start: argument %s is NULL", !ep ? "ep" : "handle");
    return start(ep, send, no_fault, handle);
}

static int finish(uf_ep *ep, uf_ep_handle *h, uf_ep_received *received)
{
    int rc = read_earlier(ep, h, true);
    if (!rc)
        rc = advance(ep, h, true);
    if (!rc && (h->state == UF_EP_REFUSED || h->state == UF_EP_LEAVE_REFUSED)) {
        h->state = h->state == UF_EP_REFUSED ? UF_EP_FREE : UF_EP_OPEN;
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

int uf_ep_dispatch_finish(uf_ep *ep, uf_ep_handle *h, uf_ep_received *received)
{
    const char *call = "uf_ep_dispatch_finish";
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, call, h);
    if (rc)
        return rc;
    /* Nothing is lost: the finish can be called again. */
    uf_ep_fault fault = find_received_fault(received);
    if (fault.kind)
        return uf_ep_fault_fail(&ep->shape, ep->world->pe, &fault);
    rc = check_state(ep, call, h,
                     h->state == UF_EP_COUNTS || h->state == UF_EP_REFUSED || h->state == UF_EP_LEAVE ||
                         h->state == UF_EP_LEAVE_REFUSED || h->state == UF_EP_ROWS);
    return rc ? rc : finish(ep, h, received);
}

int uf_ep_dispatch(uf_ep *ep, const void *x, const int32_t *experts, const float *weights, int n_tokens, uf_ep_handle **handle,
                   uf_ep_received *received)
{
    if (!ep || !handle)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch: argument %s is NULL", !ep ? "ep" : "handle");
    uf_ep_send send = {.size = sizeof send, .x = x, .experts = experts, .weights = weights, .n_tokens = n_tokens};
    uf_ep_handle *h = NULL;
    int rc = start(ep, &send, find_received_fault(received), &h);
    if (!rc)
        rc = finish(ep, h, received);
    if (!rc)
        *handle = h;
    return rc;
}

int uf_ep_dispatch_cached(uf_ep *ep, const void *x, uf_ep_handle *h, uf_ep_received *received)
{
    if (!ep)
        return uf_fail(UF_EINVAL, "uf_ep_dispatch_cached: argument ep is NULL");
    uf_ep_send send = {.size = sizeof send, .x = x};
    int rc = uf_ep_check(ep, "uf_ep_dispatch_cached", NULL);
    if (!rc)
        rc = start_cached(ep, &send, find_received_fault(received), h);
    return rc ? rc : finish(ep, h, received);
}

/* ---------------------------------------------------------------- combine */

static uf_ep_fault find_back_fault(const uf_ep *ep, const uf_ep_back *b, const uf_ep_handle *h)
{
    uf_ep_fault fault = find_struct_fault(b, sizeof *b, UF_EP_ARG_BACK);
    if (fault.kind)
        return fault;
    if (!b->y && h->n_rows)
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, UF_EP_ARG_Y, h->n_rows};
    if (!b->out && h->n_tokens)
        return (uf_ep_fault){UF_EP_FAULT_NULL, -1, UF_EP_ARG_OUT, h->n_tokens};
    const void *const addresses[] = {b->y, b->out, b->bias[0], b->bias[1]};
    uintptr_t mask = ep->options.type == UF_EP_F32 ? 3 : 1;
    for (int i = 0; i < (int)(sizeof addresses / sizeof *addresses); i++)
        if ((uintptr_t)addresses[i] & mask)
            return (uf_ep_fault){UF_EP_FAULT_ALIGNMENT, -1, UF_EP_ARG_Y + i, 0};
    return no_fault;
}

int uf_ep_combine_start(uf_ep *ep, const uf_ep_back *back, uf_ep_handle *h)
{
    if (!ep)
        return uf_fail(UF_EINVAL, "uf_ep_combine_start: argument ep is NULL");
    int rc = uf_ep_check(ep, "uf_ep_combine_start", NULL);
    if (rc)
        return rc;
    if (ep->options.type == UF_EP_BYTES)
        return uf_fail(UF_EUNSUPPORTED,
                       "uf_ep_combine on PE %d: rows of type UF_EP_BYTES cannot be added; create with UF_EP_BF16 or UF_EP_F32",
                       ep->world->pe);
    uf_ep_fault unusable = uf_ep_handle_find(ep, h);
    if (unusable.kind)
        return uf_ep_refuse_call(ep, &unusable);
    open_call(ep, h, find_back_fault(ep, back, h));
    if (!h->own.kind)
        h->give = *back;
    h->combine_id = ++ep->combines;
    if (h->repeats++ == 0)
        return uf_ep_break(ep, h->own.kind ? uf_ep_back_refuse(ep, h) : uf_ep_back_send(ep, h));
    h->state = UF_EP_BACK_LEAVE;
    return uf_ep_break(ep, uf_ep_give_leave(ep, h));
}

int uf_ep_combine_finish(uf_ep *ep, uf_ep_handle *h)
{
    const char *call = "uf_ep_combine_finish";
    if (!ep || !h)
        return uf_fail(UF_EINVAL, "%s: argument %s is NULL", call, !ep ? "ep" : "handle");
    int rc = uf_ep_check(ep, call, h);
    if (!rc)
        rc = check_state(ep, call, h,
                         h->state == UF_EP_BACK_LEAVE || h->state == UF_EP_BACK_REFUSED || h->state == UF_EP_BACK_ROWS);
    if (rc)
        return rc;
    rc = advance(ep, h, true);
    bool refused = !rc && h->state == UF_EP_BACK_REFUSED;
    if (!rc && !refused)
        rc = uf_ep_back_wait(ep, h, true);
    if (!rc && !refused)
        refused = heard_refusal(ep, h, UF_EP_BACK_REFUSED);
    if (!rc && !refused)
        rc = uf_ep_back_reduce(ep, h);
    /* y is the caller's again. */
    if (!rc)
        rc = uf_ep_complete(ep);
    h->state = UF_EP_OPEN;
    if (!rc && refused)
        return uf_ep_fault_fail(&ep->shape, h->fault_pe, &h->fault);
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
