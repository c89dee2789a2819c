/* ring_layer.c - attention of one layer over blocks that go round: the next one flies while this one is computed on.
 *
 * Forward: at each hop the block that is held is sent on first, then computed on, then its slot is given back. A causal mask lets a block go no
 * further than to the last PE that looks at it (uf_ring_route). Backward: the same rotation again, and behind it a second ring with the
 * gradients of the block's keys and values: each PE adds its part to what came and sends the sum on, never changing it where it came, until
 * it is home. Without a mask the backward pass goes the other way round; with one it must not, or blocks would pass by all those first that
 * cannot look at them. Computing stops every few rows to look whether the next block is here: only for the timeline, nothing waits for it. */
#include "ring_attention.h"
#include <string.h>

enum { ROWS = 32 };

size_t ring_layer_bytes(const attention_job *j, int pe)
{
    return j->tokens[pe] * (size_t)attention_width(&j->shape) * attention_element(&j->shape);
}

static size_t pad(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Whether PE `pe` looks at the keys of `origin`. */
static int needs(const void *arg, int pe, int origin)
{
    const attention_job *j = arg;
    return !j->shape.causal || origin <= pe;
}

/* One way round of blocks. */
typedef struct rotation {
    attention_job *job;
    uf_ring_route route;
    int pass, hop;
    int here; /* the block of the next hop has come */
    uf_ring_block held, next;
} rotation;

static timeline_event about(const rotation *r, int hop)
{
    return (timeline_event){.layer = (int16_t)r->job->layer,
                            .pass = (int16_t)r->pass,
                            .hop = (int16_t)hop,
                            .origin = (int16_t)uf_ring_origin(&r->route, r->job->me, hop)};
}

static int neighbour(const rotation *r, int way)
{
    int step = (r->route.direction == UF_RING_FORWARD ? 1 : -1) * way;
    return (r->job->me + step + r->job->n_pes) % r->job->n_pes;
}

static int finish(rotation *r, unsigned flags)
{
    attention_job *j = r->job;
    timeline_event e = about(r, r->hop + 1);
    size_t bytes = ring_layer_bytes(j, e.origin), both[UF_RING_PARTS] = {bytes, bytes};
    uint64_t start = timeline_now();
    int rc = uf_ring_finish(j->blocks, r->route.direction, both, &r->next, flags);
    if (rc)
        return flags & UF_NOWAIT && rc == UF_EAGAIN ? UF_OK : rc;
    e.peer = (int16_t)neighbour(r, -1);
    e.bytes = (uint32_t)(2 * bytes);
    if (!(flags & UF_NOWAIT)) {
        timeline_add(&j->line, TIMELINE_WAIT, start, e);
        j->wait_ns += timeline_now() - start;
    }
    timeline_add(&j->line, TIMELINE_SIGNAL, timeline_now(), e);
    r->here = 1;
    return UF_OK;
}

static int start(rotation *r)
{
    attention_job *j = r->job;
    timeline_event e = about(r, r->hop);
    e.peer = (int16_t)neighbour(r, 1);
    e.bytes = (uint32_t)(r->held.bytes[0] + r->held.bytes[1]);
    uint64_t began = timeline_now();
    int rc = uf_ring_start(j->blocks, r->route.direction, &r->held, 0);
    timeline_add(&j->line, TIMELINE_PUT, began, e);
    return rc;
}

typedef void (*kernel)(const attention_shape *s, attention_rows *r, const attention_block *b, size_t from, size_t to);

/* All rows against the block that is held, with a look at the network now and then. */
static int compute(rotation *r, kernel run)
{
    attention_job *j = r->job;
    timeline_event e = about(r, r->hop);
    uint64_t began = timeline_now();
    size_t n = j->tokens[e.origin], elements = n * (size_t)attention_width(&j->shape);
    attention_load(&j->shape, r->held.part[0], elements, j->k);
    attention_load(&j->shape, r->held.part[1], elements, j->v);
    const attention_block b = {n, j->first[e.origin], j->k, j->v, j->dk, j->dv};
    int rc = UF_OK, more = uf_ring_receives(&r->route, j->me, r->hop + 1);
    for (size_t row = 0; !rc && row < j->rows.n; row += ROWS) {
        run(&j->shape, &j->rows, &b, row, row + ROWS < j->rows.n ? row + ROWS : j->rows.n);
        if (more && !r->here)
            rc = finish(r, UF_NOWAIT);
    }
    timeline_add(&j->line, TIMELINE_COMPUTE, began, e);
    j->compute_ns += timeline_now() - began;
    return rc;
}

/* Takes the block of this hop, sends it on, computes on it and gives it back; `after` then does what else the pass does with it. */
static int rotate(rotation *r, kernel run, int (*after)(rotation *r, int looked))
{
    attention_job *j = r->job;
    int rc = UF_OK;
    r->held = (uf_ring_block){{j->own, j->own + pad(ring_layer_bytes(j, j->me))},
                              {ring_layer_bytes(j, j->me), ring_layer_bytes(j, j->me)}};
    for (r->hop = 0; !rc && r->hop <= r->route.hops; r->hop++) {
        int comes = r->hop > 0 && uf_ring_receives(&r->route, j->me, r->hop);
        int looks = (r->hop == 0 || comes) && needs(j, j->me, uf_ring_origin(&r->route, j->me, r->hop));
        if (comes) {
            r->hop--; /* finish speaks of the hop to come */
            rc = r->here ? UF_OK : finish(r, 0);
            r->hop++;
            r->held = r->next;
        }
        r->here = 0;
        if (!rc && uf_ring_sends(&r->route, j->me, r->hop))
            rc = start(r);
        if (!rc && looks)
            rc = compute(r, run);
        if (!rc && comes)
            rc = uf_ring_release(j->blocks, r->route.direction, 0);
        if (!rc && after)
            rc = after(r, looks);
    }
    return rc ? rc : uf_ring_flush(j->blocks);
}

int ring_layer_forward(attention_job *j)
{
    rotation r = {.job = j, .route = {j->n_pes, j->n_pes - 1, UF_RING_FORWARD, needs, j}};
    attention_begin(&j->shape, &j->rows);
    int rc = rotate(&r, attention_forward, NULL);
    if (!rc)
        attention_end(&j->shape, &j->rows);
    return rc;
}

/* ---------------------------------------------------------------- gradients */

static size_t gradient_bytes(const attention_job *j, int pe)
{
    return j->tokens[pe] * (size_t)attention_width(&j->shape) * sizeof(float);
}

static void clear(attention_job *j)
{
    memset(j->dk, 0, j->most * (size_t)attention_width(&j->shape) * sizeof *j->dk);
    memset(j->dv, 0, j->most * (size_t)attention_width(&j->shape) * sizeof *j->dv);
}

/* The sums that came for the block of this hop, from the neighbour. */
static int take_sums(const rotation *r, int hop, uf_ring_block *in)
{
    attention_job *j = r->job;
    timeline_event e = about(r, hop);
    e.pass = 2;
    e.peer = (int16_t)neighbour(r, -1);
    e.bytes = (uint32_t)(2 * gradient_bytes(j, e.origin));
    size_t bytes = gradient_bytes(j, e.origin), both[UF_RING_PARTS] = {bytes, bytes};
    uint64_t began = timeline_now();
    int rc = uf_ring_finish(j->gradients, r->route.direction, both, in, 0);
    timeline_add(&j->line, TIMELINE_WAIT, began, e);
    timeline_add(&j->line, TIMELINE_SIGNAL, timeline_now(), e);
    j->wait_ns += timeline_now() - began;
    return rc;
}

/* What came, if anything did, and this PE's part, to where it is sent from. */
static void add_parts(attention_job *j, const uf_ring_block *in, size_t elements, float *out_k, float *out_v)
{
    const float *k = in ? in->part[0] : NULL, *v = in ? in->part[1] : NULL;
    for (size_t i = 0; i < elements; i++) {
        out_k[i] = j->dk[i] + (k ? k[i] : 0);
        out_v[i] = j->dv[i] + (v ? v[i] : 0);
    }
}

/* One hop of the second ring. Whoever did not look at the block passes its sums on as they came. */
static int sum_hop(rotation *r, int looked)
{
    attention_job *j = r->job;
    int origin = uf_ring_origin(&r->route, j->me, r->hop);
    size_t bytes = gradient_bytes(j, origin);
    timeline_event e = about(r, r->hop);
    uf_ring_block in = {{NULL}, {0}}, out = {{j->sum, (unsigned char *)j->sum + pad(bytes)}, {bytes, bytes}};
    int rc = r->hop ? take_sums(r, r->hop, &in) : UF_OK;
    if (!rc && looked)
        rc = uf_ring_flush(j->gradients); /* the sum before has left */
    if (!rc && looked)
        add_parts(j, r->hop ? &in : NULL, bytes / sizeof(float), j->sum, (float *)(void *)((char *)j->sum + pad(bytes)));
    uint64_t began = timeline_now();
    if (!rc)
        rc = uf_ring_start(j->gradients, r->route.direction, looked ? &out : &in, 0);
    e.pass = 2, e.peer = (int16_t)neighbour(r, 1), e.bytes = (uint32_t)(2 * bytes);
    timeline_add(&j->line, TIMELINE_PUT, began, e);
    if (!rc && r->hop)
        rc = uf_ring_release(j->gradients, r->route.direction, 0);
    clear(j);
    return rc;
}

int ring_layer_backward(attention_job *j)
{
    uf_ring_direction way = j->shape.causal ? UF_RING_FORWARD : UF_RING_REVERSE;
    rotation r = {.job = j, .pass = 1, .route = {j->n_pes, j->n_pes - 1, way, needs, j}};
    uf_ring_block in;
    attention_back_begin(&j->shape, &j->rows);
    clear(j);
    int rc = rotate(&r, attention_backward, sum_hop);
    if (!rc)
        rc = take_sums(&r, j->n_pes, &in); /* home */
    if (rc)
        return rc;
    memcpy(j->dk, in.part[0], gradient_bytes(j, j->me));
    memcpy(j->dv, in.part[1], gradient_bytes(j, j->me));
    rc = uf_ring_release(j->gradients, way, 0);
    return rc ? rc : uf_ring_flush(j->gradients);
}
