/* breaks.c - NICs of the device model that fail while PEs use them: planned by a seed, carried out by whoever moves the model.
 *
 * A break belongs to the place and not to a thread of its own, so it comes in every mode alike: between fibers, between threads, and between
 * processes, where nobody else could reach the model. It waits for its time and then for so much work under way. Never are all NICs of a PE, or
 * all rails, planned to break: what then is lost is lost by right, and a test could tell nothing from it. */
#include "fabric/efa/breaks.h"
#include "unfence/unfence.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    *state += 0x9e3779b97f4a7c15;
    return mix(*state) % n;
}

uint32_t uf_efa_model_breaks_plan(uint64_t seed, uint32_t n_pes, uint64_t stretch, uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS])
{
    static const uint32_t rails[] = {1, 2, 4, 2};
    uint64_t dice = mix(seed * 1000003 + 0xefa11);
    uint32_t n_rails = rails[below(&dice, 4)];
    for (uint32_t i = 0; i < UF_EFA_MODEL_BREAKS; i++) {
        breaks[i] = (uf_efa_model_break){0};
        if (i + 1 >= n_rails)
            continue;
        uint64_t scale = UINT64_C(1000) << below(&dice, 15);
        breaks[i].at = below(&dice, 2) ? (1 + below(&dice, scale)) * stretch : 0;
        breaks[i].flying = below(&dice, 12);
        breaks[i].pe = (uint32_t)below(&dice, n_pes);
        breaks[i].rail = (uint32_t)below(&dice, n_rails);
        breaks[i].queue_only = below(&dice, 2);
    }
    return n_rails;
}

uint64_t uf_efa_model_breaks_do(uf_model *model, uf_model_nic *const *nics, uint32_t n_rails,
                                uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS])
{
    const uf_model_stats *s = uf_model_get_stats(model);
    uint64_t taken = 0;
    for (uint32_t i = 0; i < UF_EFA_MODEL_BREAKS; i++) {
        uf_efa_model_break *b = &breaks[i];
        uint64_t flying = s->wqes - s->tx_cqes - s->silent;
        if (b->at == 0 || b->at > uf_model_now(model) || flying < b->flying)
            continue;
        uf_model_nic *nic = nics[b->pe * n_rails + b->rail];
        if (!b->queue_only)
            uf_model_nic_kill(nic);
        else if (uf_model_qp_fail(nic, 0) != UF_OK) /* a world's only queue pair of a NIC is its first; it has none yet */
            continue;
        b->at = 0;
        taken += flying + 1;
    }
    return taken;
}
