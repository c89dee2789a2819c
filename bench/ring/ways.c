/* ways.c - how blocks are told of: through uf_ring, or by draining. Slots and credits are alike. */
#include "ring_model.h"

/* ---------------------------------------------------------------- ring */

static int ring_open(ring_model_pe *p)
{
    const uf_ring_options o = {
        .size = sizeof o, .n_slots = (int)p->o->slots, .directions = 1 << UF_RING_FORWARD, .part_bytes = {p->o->bytes}};
    return uf_ring_create(p->team, &o, &p->ring);
}

static void ring_close(ring_model_pe *p)
{
    uf_ring_destroy(p->ring);
}

static int ring_start(ring_model_pe *p, const void *block)
{
    const uf_ring_block b = {{block}, {p->o->bytes}};
    return uf_ring_start(p->ring, UF_RING_FORWARD, &b, UF_NOWAIT);
}

static int ring_finish(ring_model_pe *p, const void **block)
{
    uf_ring_block b;
    int rc = uf_ring_finish(p->ring, UF_RING_FORWARD, NULL, &b, UF_NOWAIT);
    if (!rc)
        *block = b.part[0];
    return rc;
}

static int ring_release(ring_model_pe *p)
{
    return uf_ring_release(p->ring, UF_RING_FORWARD, UF_NOWAIT);
}

static int ring_turn(ring_model_pe *p)
{
    (void)p;
    return UF_OK;
}

const ring_model_way ring_model_ring = {"ring", ring_open, ring_close, ring_start, ring_finish, ring_release, ring_turn};

/* ---------------------------------------------------------------- drain */

static int drain_open(ring_model_pe *p)
{
    int rc = uf_malloc(p->world, p->o->slots * p->o->bytes, 0, (void **)&p->slots);
    rc = rc ? rc : uf_signal_alloc(p->world, p->o->slots + 1, UF_SIGNAL_DEFAULT, &p->words);
    rc = rc ? rc : uf_ctx_create(p->world, NULL, &p->ctx);
    return rc ? rc : uf_ctx_create(p->world, NULL, &p->credits);
}

static void drain_close(ring_model_pe *p)
{
    uf_ctx_destroy(p->ctx);
    uf_ctx_destroy(p->credits);
    uf_free(p->world, p->slots);
    uf_signal_free(p->world, p->words);
}

static int drain_start(ring_model_pe *p, const void *block)
{
    if (*p->nic_busy || uf_signal_fetch(&p->words[p->o->slots]) + p->o->slots <= p->sent)
        return UF_EAGAIN;
    int rc = uf_put_nbi(p->ctx, p->slots + p->sent % p->o->slots * p->o->bytes, block, p->o->bytes, p->to);
    p->draining = *p->nic_busy = !rc;
    return rc;
}

static int drain_turn(ring_model_pe *p)
{
    int rc = p->draining ? uf_quiet_test(p->ctx) : UF_EAGAIN;
    if (rc)
        return rc == UF_EAGAIN ? UF_OK : rc;
    p->draining = *p->nic_busy = false;
    return uf_signal(p->ctx, &p->words[p->sent++ % p->o->slots], UF_SIGNAL_ADD, 1, p->to, UF_WEAK);
}

static int drain_finish(ring_model_pe *p, const void **block)
{
    uint64_t slot = p->received % p->o->slots;
    if (uf_signal_fetch(&p->words[slot]) <= p->received / p->o->slots)
        return UF_EAGAIN;
    *block = p->slots + slot * p->o->bytes;
    p->received++;
    return UF_OK;
}

/* What is sent on has been drained. */
static int drain_release(ring_model_pe *p)
{
    if (p->draining)
        return UF_EAGAIN;
    p->released++;
    return uf_signal(p->credits, &p->words[p->o->slots], UF_SIGNAL_ADD, 1, p->from, UF_WEAK);
}

const ring_model_way ring_model_drain = {"drain", drain_open, drain_close, drain_start, drain_finish, drain_release, drain_turn};
