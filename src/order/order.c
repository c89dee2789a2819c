/* order.c - creation: bounds of a configuration, the one block of memory, the lists in it.
 *
 * All memory of a uf_order is one block whose size uf_order_bytes tells beforehand; nothing is allocated later (a test counts).
 * Every field that travels has a static bound in codec.h and its run-time bound in check() here, so that no encoder has to
 * look. Must never: accept a configuration whose values could be cut when they travel. */
#include "order/internal.h"
#include <stdlib.h>

enum {
    COUNT_RESERVE = 2, /* rail.c: 1 question, 1 answer */
    ALIGN = 64,
};

/* ---------------------------------------------------------------- bounds */

static int bound(const uf_order_config *c, const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most)
        return UF_OK;
    return uf_fail(UF_EINVAL, "PE %u: ordering protocol: %s is %llu; it must be from %llu to %llu", c->self, field,
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

static int check(const uf_order_config *c)
{
    const struct {
        const char *field;
        uint64_t value, least, most;
    } fields[] = {
        {"n_flows", c->n_flows, 1, UF_ORDER_MAX_FLOWS},
        {"self", c->self, 0, (uint64_t)c->n_flows - 1},
        {"n_rails", c->n_rails, 1, UF_ORDER_MAX_RAILS},
        {"window", c->window, 2, UF_ORDER_MAX_WINDOW},
        {"credits", c->credits, 4, UF_ORDER_MAX_CREDITS},
        {"message_credits", c->message_credits, 2, UF_ORDER_MAX_MESSAGES},
        {"tx_depth", c->tx_depth, 4, UF_ORDER_MAX_TX_DEPTH - 1},
        {"queue_ops", c->queue_ops, 1, UF_ORDER_MAX_QUEUE},
        {"max_lanes", c->max_lanes, 1, UF_ORDER_MAX_LANES},
        {"max_local_lanes", c->max_local_lanes, 1, UF_ORDER_MAX_LANES},
        {"max_fetches", c->max_fetches, 0, UF_ORDER_MAX_FETCHES},
        {"max_message", c->max_message, 1, UINT64_MAX},
        {"stripe_chunk", c->stripe_chunk, c->stripe_bytes ? 1 : 0, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        int rc = bound(c, fields[i].field, fields[i].value, fields[i].least, fields[i].most);
        if (rc)
            return rc;
    }
    if (c->window & (c->window - 1))
        return uf_fail(UF_EINVAL, "PE %u: ordering protocol: window is %u; it must be a power of two", c->self, c->window);
    return UF_OK;
}

/* Messages of a flow: so many may be asked for and so need a place for their answer ... */
static uint32_t answers_of(const uf_order_config *c)
{
    uint32_t half = c->message_credits / 2, wanted = c->max_fetches ? c->max_fetches : 1;
    return wanted < half ? wanted : half;
}

/* ... and the rest of message_credits are the credits. Both together never exceed what the fabric holds. */
static uint32_t general_of(const uf_order_config *c)
{
    return c->message_credits - answers_of(c);
}

/* With several rails, what was in flight on a broken one may arrive once more over another: a credit covers one arrival per rail. */
uint64_t uf_order_receives(const uf_order_config *config)
{
    uint64_t flow = config->message_credits;
    if (!config->immediates)
        flow += UF_ORDER_CONTROL_RESERVE;
    if (config->n_rails > 1)
        flow += COUNT_RESERVE;
    return flow * config->n_flows * config->n_rails;
}

uint64_t uf_order_remote_cqes(const uf_order_config *config)
{
    uint64_t flow = (uint64_t)config->credits + UF_ORDER_CONTROL_RESERVE;
    return config->immediates ? flow * config->n_flows * config->n_rails : 0;
}

/* ---------------------------------------------------------------- memory */

typedef struct layout {
    size_t flows, lanes, acked, cookies, saved, entries, slots, requests, parked, windows, maps, hash, ids, total;
    uint32_t buckets;
} layout;

static size_t place(size_t *at, uint64_t count, size_t size)
{
    size_t here = *at;
    *at = (here + count * size + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

static layout lay_out(const uf_order_config *c)
{
    layout l = {.buckets = 1};
    size_t at = 0, words = (c->window + 63) / 64;
    while (l.buckets < c->max_lanes)
        l.buckets *= 2;
    place(&at, 1, sizeof(uf_order));
    l.flows = place(&at, c->n_flows, sizeof(uf_order_flow));
    l.lanes = place(&at, c->max_local_lanes, sizeof(uf_order_lane));
    l.acked = place(&at, c->max_local_lanes * words, sizeof(uint64_t));
    l.cookies = place(&at, c->tx_depth, sizeof(uf_order_cookie));
    l.saved = place(&at, c->n_rails > 1 || c->duplicates ? c->tx_depth : 0, sizeof(uf_wr));
    l.entries = place(&at, c->queue_ops, sizeof(uf_order_entry));
    l.slots = place(&at, (uint64_t)c->n_flows * answers_of(c), sizeof(uf_order_slot));
    l.requests = place(&at, (uint64_t)c->n_flows * answers_of(c), sizeof(uint16_t));
    l.parked = place(&at, (uint64_t)c->n_flows * c->message_credits, sizeof(uf_order_parked));
    l.windows = place(&at, c->max_lanes, sizeof(uf_order_window));
    l.maps = place(&at, c->max_lanes * words, sizeof(uint64_t));
    l.hash = place(&at, l.buckets, sizeof(uint32_t));
    l.ids = place(&at, (uint64_t)c->n_flows * (UF_ORDER_LANE_IDS / 64), sizeof(uint64_t));
    l.total = at;
    return l;
}

size_t uf_order_bytes(const uf_order_config *config)
{
    return lay_out(config).total;
}

/* ---------------------------------------------------------------- creation */

static void init_flow(uf_order *o, uint32_t index)
{
    const uf_order_config *c = &o->config;
    uf_order_flow *f = &o->flows[index];
    uint32_t first = c->first_sequence;
    f->peer = index;
    f->rails_alive = (1u << c->n_rails) - 1;
    f->home = (uint16_t)uf_order_home_of(o, f, 0);
    f->epoch = UF_FIRST_EPOCH;
    f->receipted = UF_FIRST_EPOCH - 1;
    /* Only bit 0 starts at `first`, so that the sums, which travel as well, wrap at the same place. */
    f->tx_imm[0] = f->tx_msg[0] = f->rx_imm[0] = f->rx_msg[0] = f->arrived[0] = first;
    f->imm_told = f->msg_told = first;
    f->imm_proof = f->msg_proof = first - 1; /* nothing was told yet */
    f->epoch_first = 2 * first;
    f->ask_number[0] = (2 * first) & UF_IMM_VALUE_MASK;
    f->imm_limit = first + c->credits;
    f->msg_limit = first + o->general;
    f->lanes_active_head = f->lanes_active_tail = UF_NONE;
    f->answers_head = f->answers_tail = UF_NONE;
    f->wrs = UF_NONE;
    f->slot_free = 0;
    for (uint32_t i = 0; i < o->answers; i++)
        uf_order_slot_of(o, f, i)->next = i + 1 < o->answers ? i + 1 : UF_NONE;
    uint32_t base = index * c->message_credits;
    f->parked_free = base;
    for (uint32_t i = 0; i < c->message_credits; i++)
        o->parked[base + i].next = i + 1 < c->message_credits ? base + i + 1 : UF_NONE;
}

static void init_pools(uf_order *o, unsigned char *block, const layout *l)
{
    const uf_order_config *c = &o->config;
    size_t words = (c->window + 63) / 64;
    uint64_t *acked = (uint64_t *)(block + l->acked), *maps = (uint64_t *)(block + l->maps);
    for (uint32_t i = 0; i < c->tx_depth; i++)
        o->cookies[i].next = i + 1 < c->tx_depth ? i + 1 : UF_NONE;
    for (uint32_t i = 0; i < c->queue_ops; i++)
        o->entries[i].next = i + 1 < c->queue_ops ? i + 1 : UF_NONE;
    for (uint32_t i = 0; i < c->max_local_lanes; i++) {
        o->lanes[i].acked = acked + i * words;
        o->lanes[i].index = i;
        o->lanes[i].next_active = i + 1 < c->max_local_lanes ? i + 1 : UF_NONE;
    }
    for (uint32_t i = 0; i < c->max_lanes; i++) {
        o->windows[i].map = maps + i * words;
        o->windows[i].parked = UF_NONE;
        o->windows[i].next = i + 1 < c->max_lanes ? i + 1 : UF_NONE;
    }
    memset(o->hash, 0xff, (size_t)l->buckets * sizeof *o->hash);
    o->hash_mask = l->buckets - 1;
    o->cookies_free = c->tx_depth;
    o->entries_free = c->queue_ops;
}

static void init_rules(uf_order *o)
{
    const uf_order_config *c = &o->config;
    bool one_rail = c->n_rails == 1;
    o->general = general_of(c);
    o->answers = answers_of(c);
    o->imm_half = (c->credits + 1) / 2;
    o->msg_half = (o->general + 1) / 2;
    /* Without a CQE nothing can be sent again, so only where there is no other rail. */
    o->silent = !c->imm_placed && c->inline_bytes > 0 && one_rail;
    o->silent_control = c->inline_bytes > 0 && one_rail;
    o->silent_message = !c->imm_placed && c->inline_bytes >= UF_MESSAGE_BYTES && one_rail;
    o->by_receipt = !c->imm_placed || !one_rail;
    o->save = c->duplicates || !one_rail;
    o->cookie_reserve = c->tx_depth / 8 ? c->tx_depth / 8 : 1;
    o->cookie_first = c->n_flows < c->tx_depth / 4 ? c->n_flows : c->tx_depth / 4;
    o->whole = c->max_message;
    if (!one_rail && c->stripe_bytes && c->stripe_bytes <= o->whole)
        o->whole = c->stripe_bytes - 1;
    o->active_head = o->active_tail = o->replay_head = o->replay_tail = UF_NONE;
}

int uf_order_create(const uf_order_config *config, const uf_order_edges *edges, uf_order **order)
{
    int rc = check(config);
    if (rc)
        return rc;
    layout l = lay_out(config);
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGN, l.total))
        return uf_fail(
            UF_ENOMEM,
            "PE %u: ordering protocol: no memory for %zu KiB (%u peers, %u lanes here and %u of peers, window %u); lower "
            "UNFENCE_MAX_LANES, UNFENCE_MESSAGES or UNFENCE_WINDOW",
            config->self, l.total / 1024, config->n_flows, config->max_local_lanes, config->max_lanes, config->window);
    memset(memory, 0, l.total);
    unsigned char *block = memory;
    uf_order *o = memory;
    o->config = *config;
    o->edges = *edges;
    o->flows = (uf_order_flow *)(block + l.flows);
    o->lanes = (uf_order_lane *)(block + l.lanes);
    o->cookies = (uf_order_cookie *)(block + l.cookies);
    o->saved = (uf_wr *)(block + l.saved);
    o->entries = (uf_order_entry *)(block + l.entries);
    o->slots = (uf_order_slot *)(block + l.slots);
    o->requests = (uint16_t *)(block + l.requests);
    o->parked = (uf_order_parked *)(block + l.parked);
    o->windows = (uf_order_window *)(block + l.windows);
    o->hash = (uint32_t *)(block + l.hash);
    o->lane_ids = (uint64_t *)(block + l.ids);
    init_rules(o);
    init_pools(o, block, &l);
    for (uint32_t i = 0; i < config->n_flows; i++)
        init_flow(o, i);
    *order = o;
    return UF_OK;
}

void uf_order_destroy(uf_order *order)
{
    free(order);
}

const uf_order_counters *uf_order_counters_get(const uf_order *order)
{
    return &order->counters;
}
