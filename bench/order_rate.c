/* order_rate.c - released signals a second of the ordering protocol alone, on one core.
 *
 * Two PEs in one process send each other weak signalled puts of 64 bytes. The wire is an array: post appends, and then the remote CQE
 * and the sender's own are handed in. So a signal is submit + post + imm + apply + sent + its share of credits, all through
 * order.h. Run under `valgrind --tool=callgrind` with a small count for instructions a signal. No timed assertion.
 * order_rate [SIGNALS [FLOWS [receipts]]]: of FLOWS peers (2) only one is active, and the cost must not depend on their number. */
#include "base/clock.h"
#include "order/order.h"
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64 };

typedef struct side {
    uf_order *order;
    uf_order_ctx ctx;
    uf_order_lane *lane;
    struct {
        uint32_t cookie, imm;
    } wire[4 * BATCH];
    uint32_t n_wire;
    uint64_t sum;
} side;

static int post(void *arg, const uf_wr *wr)
{
    side *s = arg;
    if (s->n_wire == 4 * BATCH)
        return UF_EAGAIN;
    s->wire[s->n_wire].cookie = wr->cookie;
    s->wire[s->n_wire++].imm = wr->imm;
    return UF_OK;
}

static int apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    side *s = arg;
    (void)old;
    s->sum += signal->operand;
    return UF_OK;
}

static void done(void *arg, uint64_t user, int status, uint64_t value)
{
    (void)arg, (void)user, (void)status, (void)value;
}

static void failed(void *arg, uint32_t flow, int status)
{
    (void)arg, (void)flow, (void)status;
}

static void deliver(side *from, side *to, uint32_t flow)
{
    uint32_t n = from->n_wire;
    for (uint32_t i = 0; i < n; i++)
        uf_order_imm(to->order, flow, 0, from->wire[i].imm);
    from->n_wire = 0;
    for (uint32_t i = 0; i < n; i++)
        if (from->wire[i].cookie != UF_ORDER_NO_COOKIE)
            uf_order_sent(from->order, from->wire[i].cookie, UF_OK);
}

/* Time that this process had a core: what others on the machine do is not the protocol's. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
    uint64_t signals = argc > 1 ? strtoull(argv[1], NULL, 0) : 50000000;
    uint32_t flows = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 2;
    bool placed = argc <= 3;
    static side sides[2];
    for (uint32_t i = 0; i < 2; i++) {
        uf_order_config config = {.self = i,
                                  .n_flows = flows < 2 ? 2 : flows,
                                  .n_rails = 1,
                                  .window = 256,
                                  .credits = 256,
                                  .message_credits = 32,
                                  .tx_depth = 1024,
                                  .queue_ops = 1024,
                                  .max_lanes = 64,
                                  .max_local_lanes = 64,
                                  .max_fetches = 8,
                                  .max_message = 1u << 30,
                                  .inline_bytes = placed ? 0 : 64,
                                  .immediates = true,
                                  .imm_placed = placed};
        uf_order_edges edges = {&sides[i], post, apply, done, failed};
        sides[i].ctx = (uf_order_ctx){.window = 256};
        if (uf_order_create(&config, &edges, &sides[i].order) ||
            uf_order_lane_open(sides[i].order, &sides[i].ctx, 1 - i, &sides[i].lane)) {
            fprintf(stderr, "%s\n", uf_error_message());
            return 1;
        }
    }
    uint64_t wall = uf_clock_ns(), start = cpu_ns(), sent = 0, refused = 0;
    while (sent < signals) {
        side *s = &sides[sent / BATCH & 1], *peer = &sides[~sent / BATCH & 1];
        uint32_t flow = (uint32_t)(s - sides);
        for (uint32_t i = 0; i < BATCH; i++, sent++) {
            uf_order_op op = {.kind = UF_ORDER_PUT_SIGNAL,
                              .op = UF_ATOMIC_ADD,
                              .indexed = true,
                              .signal_address = i,
                              .operand = 1,
                              .local = sent << 6,
                              .remote = sent << 6,
                              .bytes = 64};
            while (uf_order_submit(s->order, s->lane, &op) == UF_EAGAIN) {
                refused++;
                deliver(s, peer, flow);
                deliver(peer, s, 1 - flow);
                uf_order_progress(s->order);
            }
        }
        deliver(s, peer, flow);
        uf_order_progress(s->order);
        uf_order_progress(peer->order);
        deliver(peer, s, 1 - flow);
    }
    for (int i = 0; i < 1000; i++)
        for (uint32_t k = 0; k < 2; k++) {
            uf_order_progress(sides[k].order);
            deliver(&sides[k], &sides[1 - k], k);
        }
    double seconds = (double)(cpu_ns() - start) * 1e-9, elapsed = (double)(uf_clock_ns() - wall) * 1e-9;
    uint64_t sum = sides[0].sum + sides[1].sum;
    const uf_order_counters *c = uf_order_counters_get(sides[0].order);
    printf("{\"version\":1, \"rows\":[{\"bench\":\"order_rate\", \"fabric\":\"none\", \"policy\":\"%s\", \"bytes\":64, "
           "\"inflight\":%d, "
           "\"peers\":1, \"metric\":\"rate\", \"unit\":\"1/s\", \"p50\":%.0f, \"n\":%llu}]}\n",
           placed ? "placed" : "receipts", BATCH, (double)sum / seconds, (unsigned long long)sum);
    fprintf(stderr,
            "%.1f million released signals a second of this core (%.1f by the clock on the wall), %llu refused, control %llu of "
            "%llu WRs\n",
            (double)sum / seconds * 1e-6, (double)sum / elapsed * 1e-6, (unsigned long long)refused,
            (unsigned long long)c->control_wrs, (unsigned long long)(c->data_wrs + c->control_wrs));
    for (uint32_t i = 0; i < 2; i++)
        uf_order_destroy(sides[i].order);
    return sum != signals;
}
