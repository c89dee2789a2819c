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

static uint32_t rails_of(const uf_engine_params *p)
{
    uint32_t all = p->fabric->caps.n_rails;
    return (uint32_t)least(p->n_rails && p->n_rails < all ? p->n_rails : all, UF_ORDER_MAX_RAILS);
}

/* What a peer may have outstanding where UNFENCE_CREDITS and UNFENCE_MESSAGES leave the choice: little where a fabric's library keeps
 * memory for each, much where it is an entry of a ring. Then neither a credit return that comes late, nor signals that must be
 * released in order and wait for one late packet, hold up the puts of a fast NIC: late is half a millisecond. */
static const struct plenty {
    uint32_t credits, messages;
} few = {256, 32}, many = {1024, 4096};

static struct plenty chosen(const uf_settings *settings, const struct plenty *otherwise)
{
    uint32_t credits = (uint32_t)settings->number[UF_SET_CREDITS], messages = (uint32_t)settings->number[UF_SET_MESSAGES];
    return (struct plenty){credits ? credits : otherwise->credits, messages ? messages : otherwise->messages};
}

static void sizes_for(const uf_fabric_params *p, struct plenty of_peer, uint32_t *receives, uint32_t *remote_cqes)
{
    /* What several rails need for one of them is all that two need, halved: see uf_order_receives. */
    uint32_t rails = p->settings->number[UF_SET_RAILS] == 1 ? 1 : 2;
    uf_order_config c = {
        .n_flows = (uint32_t)p->n_pes, .n_rails = rails, .credits = of_peer.credits, .message_credits = of_peer.messages};
    *receives = (uint32_t)least(uf_order_receives(&c) / rails, UINT32_MAX - 1);
    c.immediates = true;
    *remote_cqes = (uint32_t)least(uf_order_remote_cqes(&c) / rails, UINT32_MAX - 1);
}

void uf_engine_fabric_sizes(uf_fabric_params *p)
{
    const int64_t *set = p->settings->number;
    p->n_rails = (uint32_t)set[UF_SET_RAILS];
    p->tx_depth = (uint32_t)set[UF_SET_QUEUE_DEPTH];
    sizes_for(p, chosen(p->settings, &few), &p->receives, &p->remote_cqes);
    sizes_for(p, chosen(p->settings, &many), &p->receives_liked, &p->remote_cqes_liked);
}

/* The most of what a peer may have outstanding, if `room` holds `fixed` and `each` for every one of it. */
static uint64_t fitting(uint64_t wanted, uint32_t room, uint64_t fixed, uint64_t each)
{
    if (room == UINT32_MAX)
        return wanted;
    return room > fixed ? least(wanted, (room - fixed) / each) : 0;
}

int uf_engine_limits_of(const uf_engine_params *p, uf_engine_limits *limits)
{
    const uf_fabric_caps *caps = &p->fabric->caps;
    if (!caps->write_placed)
        return uf_fail(
            UF_EUNSUPPORTED,
            "PE %d: %s (%s) does not tell when the bytes of a put are in the target's memory, so no quiet over it would "
            "prove anything; choose another provider with UNFENCE_FABRIC",
            p->pe, caps->fabric, caps->provider);
    uf_order_config none = {.n_flows = (uint32_t)p->n_pes, .n_rails = rails_of(p)};
    uint64_t each = (uint64_t)none.n_flows * none.n_rails;
    /* Control costs no credit. Where there are no immediates, which a peer may say later, it travels as messages. */
    uint64_t receives = uf_order_receives(&none);
    none.immediates = true;
    uint64_t cqes = uf_order_remote_cqes(&none);
    struct plenty credits_of = chosen(p->settings, caps->cq_depth == UINT32_MAX ? &few : &many);
    struct plenty messages_of = chosen(p->settings, caps->max_receives == UINT32_MAX ? &few : &many);
    uint64_t credits = fitting(credits_of.credits, caps->cq_depth, cqes, each);
    uint64_t messages = fitting(messages_of.messages, caps->max_receives, receives, each);
    if (credits < 4 || messages < 2)
        return uf_fail(
            UF_ENOMEM,
            "PE %d: %s (%s) holds %u completions and %u messages a rail, too few for %d PEs over %u rails, which need %llu "
            "and %llu; use fewer PEs per network endpoint, fewer rails (UNFENCE_RAILS) or a deeper queue",
            p->pe, caps->fabric, caps->provider, caps->cq_depth, caps->max_receives, p->n_pes, none.n_rails,
            (unsigned long long)(cqes + 4 * each), (unsigned long long)(receives + 2 * each));
    *limits = (uf_engine_limits){(uint32_t)credits, (uint32_t)messages, caps->imm_bits >= 32};
    return UF_OK;
}

/* A part of a striped put is worth its WR if it keeps its rail busy for far longer than posting takes. */
static void choose_stripe(const uf_engine_params *p, uf_order_config *c)
{
    enum { PART_NS = 2000, LEAST = 16 << 10, MOST = 1 << 20 };
    const uint64_t usual_rate = UINT64_C(12500000000); /* 100 Gb/s, where the fabric does not know */
    uint64_t rate = p->fabric->caps.rate_bytes ? p->fabric->caps.rate_bytes : usual_rate;
    uint64_t wanted = (uint64_t)p->settings->number[UF_SET_STRIPE];
    uint64_t part = floor_power_of_two(least(rate / (1000000000 / PART_NS), MOST));
    c->stripe_chunk = part < LEAST ? LEAST : part;
    c->stripe_bytes = c->n_rails * c->stripe_chunk;
    if (!wanted)
        return;
    c->stripe_bytes = wanted;
    c->stripe_chunk = least(c->stripe_chunk, (wanted + c->n_rails - 1) / c->n_rails);
}

/* Messages kept for answers: half of a few, but of many an eighth is enough to hide a round trip, and signals need the rest. */
static uint32_t fetches_of(uint32_t messages)
{
    enum { FEW = 16 };
    return messages / 8 > FEW ? messages / 8 : FEW;
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
        .n_rails = rails_of(p),
        .window = floor_power_of_two((uint64_t)set[UF_SET_WINDOW]),
        .credits = limits.credits,
        .message_credits = limits.messages,
        .tx_depth = (uint32_t)least((uint64_t)set[UF_SET_QUEUE_DEPTH], caps->tx_depth * (uint64_t)rails_of(p)),
        .queue_ops = 2 * (uint32_t)(set[UF_SET_QUEUE_DEPTH] > p->n_pes ? set[UF_SET_QUEUE_DEPTH] : p->n_pes),
        .max_lanes = (uint32_t)set[UF_SET_MAX_LANES],
        .max_local_lanes = (uint32_t)set[UF_SET_MAX_LANES],
        .max_fetches = fetches_of(limits.messages),
        .max_message = caps->max_message,
        .inline_bytes = caps->inline_bytes,
        .immediates = limits.immediates,
        .imm_placed = caps->imm_placed,
        .duplicates = caps->duplicates,
    };
    choose_stripe(p, c);
    return UF_OK;
}
