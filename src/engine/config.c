/* config.c - the protocol's sizes, from what the fabric can hold and the settings ask for.
 *
 * Pure arithmetic: credits of all flows fit the fabric's CQ, messages its receives, control the reserve (rule 8). Both ends of a
 * flow count by the same sizes, so the world compares the limits of all PEs first and gives the least of them back. */
#include "base/error.h"
#include "engine/private.h"

static uint32_t floor_power_of_two(uint64_t v)
{
    uint32_t p = 1;
    while ((uint64_t)p * 2 <= v && p < 1u << 31)
        p *= 2;
    return p;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int uf_engine_limits_of(const uf_engine_params *p, uf_engine_limits *limits)
{
    const uf_fabric_caps *caps = &p->fabric->caps;
    const int64_t *set = p->settings->number;
    uint32_t flows = (uint32_t)p->n_pes;
    if (!caps->write_placed)
        return uf_fail(
            UF_EUNSUPPORTED,
            "PE %d: %s (%s) does not tell when the bytes of a put are in the target's memory, so no quiet over it would "
            "prove anything; choose another provider with UNFENCE_FABRIC",
            p->pe, caps->fabric, caps->provider);
    /* Control costs no credit. Where there are no immediates it travels as messages. */
    uint32_t reserve = UF_ORDER_CONTROL_RESERVE * flows;
    uint64_t credits = (uint64_t)set[UF_SET_CREDITS];
    if (caps->cq_depth != UINT32_MAX)
        credits = caps->cq_depth > reserve ? least(credits, (caps->cq_depth - reserve) / flows) : 0;
    uint64_t messages = (uint64_t)set[UF_SET_MESSAGES];
    if (caps->max_receives != UINT32_MAX)
        messages = caps->max_receives > reserve ? least(messages, (caps->max_receives - reserve) / flows) : 0;
    if (credits < 4 || messages < 2)
        return uf_fail(UF_ENOMEM,
                       "PE %d: %s (%s) holds %u completions and %u messages, too few for %d PEs, which need %u and %u; use fewer "
                       "PEs per network endpoint or a deeper queue",
                       p->pe, caps->fabric, caps->provider, caps->cq_depth, caps->max_receives, p->n_pes, reserve + 4 * flows,
                       reserve + 2 * flows);
    *limits = (uf_engine_limits){(uint32_t)credits, (uint32_t)messages, caps->n_rails, caps->imm_bits >= 32};
    return UF_OK;
}

int uf_engine_order_config(const uf_engine_params *p, uf_order_config *c)
{
    const uf_fabric_caps *caps = &p->fabric->caps;
    const int64_t *set = p->settings->number;
    uf_engine_limits limits;
    int rc = uf_engine_limits_of(p, &limits);
    if (rc)
        return rc;
    if (p->agreed)
        limits = *p->agreed;
    *c = (uf_order_config){
        .self = (uint32_t)p->pe,
        .n_flows = (uint32_t)p->n_pes,
        .n_rails = caps->n_rails,
        .window = floor_power_of_two((uint64_t)set[UF_SET_WINDOW]),
        .credits = limits.credits,
        .message_credits = limits.messages,
        .tx_depth = (uint32_t)least((uint64_t)set[UF_SET_QUEUE_DEPTH], caps->tx_depth * (uint64_t)caps->n_rails),
        .queue_ops = 2 * (uint32_t)(set[UF_SET_QUEUE_DEPTH] > p->n_pes ? set[UF_SET_QUEUE_DEPTH] : p->n_pes),
        .max_lanes = (uint32_t)set[UF_SET_MAX_LANES],
        .max_local_lanes = (uint32_t)set[UF_SET_MAX_LANES],
        .max_fetches = limits.messages,
        .max_message = caps->max_message,
        .inline_bytes = caps->inline_bytes,
        .immediates = limits.immediates,
        .imm_placed = caps->imm_placed,
        .duplicates = caps->duplicates,
    };
    return UF_OK;
}
