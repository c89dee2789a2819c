/* near_checked.cu - the checked build of the device API, in a translation unit of its own: part of device_near. */
#define UFD_CHECK
#include "near.cuh"

/* Everything that can be wrong, and each that is right beside it. */
__global__ void refusals(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint64_t *word = near_signal(w, 0), old = 0;
    uint8_t *end = (uint8_t *)(w->heap + w->heap_bytes), *outside = (uint8_t *)w->scratch;
    uint64_t *odd = (uint64_t *)((uint8_t *)word + 4);
    int me = ufd_pe(w), n = ufd_n_pes(w);
    NEAR_IS(g, ufd_put(c, word, &old, 8, n) == UF_ERANGE && ufd_put(c, word, &old, 8, -1) == UF_ERANGE, 1, 0, 0);
    NEAR_IS(g, ufd_put(c, outside, &old, 8, me) == UF_ERANGE && ufd_put(c, end, &old, 1, me) == UF_ERANGE, 2, 0, 0);
    NEAR_IS(g, ufd_put(c, end - 8, &old, 9, me) == UF_ERANGE && ufd_put(c, end - 8, &old, 8, me) == UF_OK, 3, 0, 0);
    NEAR_IS(g, ufd_get(c, &old, outside, 8, me) == UF_ERANGE && ufd_get(c, &old, end - 8, 8, me) == UF_OK, 4, 0, 0);
    NEAR_IS(g, ufd_signal(c, odd, UF_SIGNAL_SET, 1, me, 0) == UF_EINVAL, 5, 0, 0);
    NEAR_IS(g, ufd_put_signal(c, word, &old, 8, odd, UF_SIGNAL_SET, 1, me, 0) == UF_EINVAL, 6, 0, 0);
    NEAR_IS(g, ufd_put_signal(c, word, &old, 8, (uint64_t *)end, UF_SIGNAL_SET, 1, me, 0) == UF_ERANGE, 7, 0, 0);
    NEAR_IS(g, ufd_atomic_add64(c, odd, 1, me) == UF_EINVAL && ufd_atomic_add32(c, (uint32_t *)odd, 1, me) == UF_OK, 8, 0, 0);
    NEAR_IS(g, ufd_wait(w, odd, UF_GE, 0, 0) == UF_EINVAL && ufd_wait(w, word, 6, 0, 0) == UF_EINVAL, 9, 0, 0);
    NEAR_IS(g, ufd_wait(w, (uint64_t *)outside, UF_GE, 0, 0) == UF_ERANGE && ufd_wait(w, word, UF_GE, 0, 0) == UF_OK, 10, 0, 0);
    NEAR_IS(g, ufd_put_flagged(c, odd, &old, 8, 1, me) == UF_EINVAL && ufd_put_flagged(c, end - 16, &old, 9, 1, me) == UF_ERANGE,
            11, 0, 0);
    ufd_ctx other = c;
    other.abi++;
    NEAR_IS(g, ufd_put(other, word, &old, 8, me) == UF_EMISMATCH && ufd_check(w) == UF_OK, 12, 0, 0);
}

/* One thread of one block does one thing wrong. */
__global__ void culprit(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    if (blockIdx.x == 2 && threadIdx.x == 37)
        ufd_signal(c, (uint64_t *)((uint8_t *)near_signal(w, 1) + 2), UF_SIGNAL_ADD, 1, 0, UF_WEAK);
}

static uint64_t culprit_unnamed(near_run *n)
{
    uint64_t wrong = 0;
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        ufd_error e;
        rig_read(&n->r, pe, &e, n->r.pe[pe].error, sizeof e);
        wrong += e.count != 1 || e.ready != 1 || e.code != UF_EINVAL || e.what != UFD_IN_SIGNAL || e.pe != 0;
        wrong += e.block[0] != 2 || e.thread[0] != 37 || e.address != n->r.pe[pe].shape.heap + NEAR_SIGNALS + 64 + 2;
    }
    return wrong;
}

/* Scopes agree on a refusal, and it is recorded once. */
__global__ void together(rig_gang g)
{
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    uint8_t *outside = (uint8_t *)w->scratch;
    NEAR_IS(g, ufd_put_block(c, outside, outside, 8, 0) == UF_ERANGE, 1, 0, 0);
    NEAR_IS(g, w->error->count == 1, 2, w->error->count, 0);
    NEAR_IS(g, ufd_wait_block(w, (uint64_t *)(outside + 1), UF_EQ, 1, 5) == UF_EINVAL, 3, 0, 0);
}

void near_checked(near_run *n)
{
    rig_reset(&n->r);
    rig_start(&n->r, refusals, 1, 1, 0);
    near_report(n, "a checked build refuses wrong PEs, misaligned and foreign addresses, and nothing else", 0);
    rig_reset(&n->r);
    rig_start(&n->r, culprit, 3, 64, 0);
    rig_synchronize(&n->r);
    near_report(n, "the record names block and thread of the one that was wrong", culprit_unnamed(n));
    rig_reset(&n->r);
    rig_start(&n->r, together, 1, 64, 0);
    near_report(n, "a block is refused together and recorded once", 0);
}
