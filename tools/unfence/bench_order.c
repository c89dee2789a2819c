/* bench_order.c - `unfence bench order`: how many signals a second one core can send, receive and release through the ordering protocol alone.
 *
 * Two endpoints of src/order face each other in one thread, and the network between them is two short arrays: no fabric, no copy, no lock.
 * A step is a batch of puts with signals: submitted, posted, delivered to the other side, applied there, completed here, credits
 * and receipts included. Nothing may be allocated meanwhile, which is measured too, and every signal must have been applied once. */
#include "bench.h"
#include "order/order.h"
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define BATCH      64
#define WIRE_DEPTH 4096

typedef struct wire {
    uint32_t n;
    uf_wr wrs[WIRE_DEPTH];
} wire;

/* One of the two endpoints, and what it has put on the wire. */
typedef struct endpoint {
    uf_order *order;
    wire out;
    uint64_t applied, sum, failures;
} endpoint;

typedef struct order_lane {
    endpoint ends[2];
    uf_order_ctx ctx;
    uf_order_lane *lane;
    uf_order_op op;
    uint64_t sent;
} order_lane;

/* -------------------------------------------------------------- edges */

static int edge_post(void *arg, const uf_wr *wr)
{
    endpoint *end = arg;
    if (end->out.n == WIRE_DEPTH)
        return UF_EAGAIN;
    end->out.wrs[end->out.n++] = *wr;
    return UF_OK;
}

static int edge_apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    endpoint *end = arg;
    if (old)
        *old = end->sum;
    end->applied++;
    end->sum = signal->op == UF_ATOMIC_SET ? signal->operand : end->sum + signal->operand;
    return UF_OK;
}

static void edge_done(void *arg, uint64_t user, int status, uint64_t value)
{
    endpoint *end = arg;
    (void)user;
    (void)value;
    end->failures += status != UF_OK;
}

static void edge_failed(void *arg, uint32_t flow, int status)
{
    endpoint *end = arg;
    (void)flow;
    (void)status;
    end->failures++;
}

/* -------------------------------------------------------------- the wire */

static int deliver(order_lane *l, int from)
{
    endpoint *source = &l->ends[from], *target = &l->ends[1 - from];
    /* Deliveries post answers on the other wire, and completions may post on this one: the length is read at each turn. */
    for (uint32_t i = 0; i < source->out.n; i++) {
        uf_wr wr = source->out.wrs[i];
        int rc = UF_OK;
        if (wr.verb == UF_VERB_WRITE_IMM)
            rc = uf_order_imm(target->order, (uint32_t)from, wr.rail, wr.imm);
        else if (wr.verb == UF_VERB_SEND)
            rc = uf_order_message(target->order, (uint32_t)from, wr.message);
        if (rc == UF_OK && !(wr.flags & UF_WR_SILENT))
            rc = uf_order_sent(source->order, wr.cookie, UF_OK);
        if (rc != UF_OK)
            return rc;
    }
    source->out.n = 0;
    return UF_OK;
}

/* Until both wires are empty and neither side has anything to post. */
static int exchange(order_lane *l)
{
    for (;;) {
        int rc = deliver(l, 0);
        if (rc == UF_OK)
            rc = deliver(l, 1);
        for (int end = 0; rc == UF_OK && end < 2; end++) {
            int posted = uf_order_progress(l->ends[end].order);
            rc = posted < 0 ? posted : UF_OK;
        }
        if (rc != UF_OK || (l->ends[0].out.n == 0 && l->ends[1].out.n == 0))
            return rc;
    }
}

static int run_batch(bench_pe *b, order_lane *l)
{
    int rc = UF_OK;
    for (uint32_t sent = 0; rc == UF_OK && sent < BATCH;) {
        rc = uf_order_submit(l->ends[0].order, l->lane, &l->op);
        if (rc == UF_OK) {
            sent++;
            l->op.operand += l->op.op == UF_ATOMIC_SET;
        } else if (rc == UF_EAGAIN) {
            rc = exchange(l);
        }
    }
    l->sent += BATCH;
    if (rc == UF_OK)
        rc = exchange(l);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "the ordering protocol");
}

static int order_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    order_lane *l = arg;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (run_batch(b, l) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

static int order_verify(bench_pe *b, void *arg)
{
    order_lane *l = arg;
    const endpoint *target = &l->ends[1];
    if (l->ends[0].failures + target->failures > 0)
        return bench_fail(b, "a flow of the ordering protocol failed: %s", uf_error_message());
    uint64_t sum = l->op.op == UF_ATOMIC_SET ? l->op.operand - 1 : l->sent;
    if (target->applied != l->sent || target->sum != sum)
        return bench_fail(b, "%llu signals were sent, %llu applied, their sum is %llu and should be %llu",
                          (unsigned long long)l->sent, (unsigned long long)target->applied, (unsigned long long)target->sum,
                          (unsigned long long)sum);
    return 0;
}

/* -------------------------------------------------------------- set up and reported */

static const uf_order_config base_config = {
    .n_flows = 2,
    .n_rails = 1,
    .window = 256,
    .credits = 256,
    .message_credits = 128,
    .tx_depth = 1024,
    .queue_ops = 2048,
    .max_lanes = 64,
    .max_local_lanes = 64,
    .max_fetches = 32,
    .max_message = 1u << 30,
    .inline_bytes = 64,
    .immediates = true,
    .imm_placed = true,
};

static int open_lane(bench_pe *b, order_lane *l, uf_order_op op, bool ordered)
{
    memset(l, 0, sizeof *l);
    l->op = op;
    l->ctx = (uf_order_ctx){.window = base_config.window, .ordered = ordered};
    for (uint32_t end = 0; end < 2; end++) {
        uf_order_config config = base_config;
        config.self = end;
        uf_order_edges edges = {&l->ends[end], edge_post, edge_apply, edge_done, edge_failed};
        int rc = uf_order_create(&config, &edges, &l->ends[end].order);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_order_create");
    }
    int rc = uf_order_lane_open(l->ends[0].order, &l->ctx, 1, &l->lane);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_order_lane_open");
}

static void close_lane(order_lane *l)
{
    for (int end = 0; end < 2; end++)
        uf_order_destroy(l->ends[end].order);
}

static int add_rows(bench_pe *b, bench_lane *lane, uint64_t allocated)
{
    report_row row = {.bytes = 8, .inflight = BATCH, .peers = 1, .metric = REPORT_RATE};
    snprintf(row.bench, sizeof row.bench, "order");
    snprintf(row.fabric, sizeof row.fabric, "none");
    snprintf(row.policy, sizeof row.policy, "%s", lane->name);
    snprintf(row.unit, sizeof row.unit, "1/s");
    for (size_t i = 0; i < lane->samples.n; i++) {
        double step = lane->samples.values[i];
        lane->samples.values[i] = step > 0 ? BATCH * 1e9 / step : 0;
    }
    stats_summarize(&lane->samples, &row);
    if (bench_row_add(b, &row) != 0)
        return -1;
    row.metric = REPORT_COUNT;
    snprintf(row.unit, sizeof row.unit, "bytes allocated");
    row.p50 = row.p99 = row.p999 = row.min = row.max = (double)allocated;
    row.n = 1;
    return bench_row_add(b, &row);
}

/* Bytes in use by malloc; sanitizers replace it and answer 0. */
static uint64_t bytes_in_use(void)
{
    return (uint64_t)mallinfo2().uordblks;
}

static int measure(bench_pe *b, const char *name, uf_order_op op, bool ordered)
{
    static order_lane l; /* too large for a stack */
    uint64_t rounds;
    bench_lane lane = {.name = name, .slice = order_slice, .verify = order_verify, .arg = &l};
    int rc = open_lane(b, &l, op, ordered);
    if (rc == 0)
        rc = run_batch(b, &l);
    /* Looked at apart from bench_interleave, which sets memory aside for its own samples. */
    uint64_t before = bytes_in_use();
    for (int i = 0; rc == 0 && i < 1000; i++)
        rc = run_batch(b, &l);
    uint64_t allocated = bytes_in_use() - before;
    if (rc == 0)
        rc = bench_interleave(b, &lane, 1, &rounds);
    if (rc == 0)
        rc = add_rows(b, &lane, allocated);
    bench_lanes_free(&lane, 1);
    close_lane(&l);
    return rc;
}

int bench_order_main(bench_pe *b)
{
    uf_order_op op = {.kind = UF_ORDER_PUT_SIGNAL, .op = UF_ATOMIC_ADD, .width = 8, .indexed = true, .operand = 1, .bytes = 8};
    uf_order_op strong = op, set = op;
    strong.flags = UF_STRONG;
    set.op = UF_ATOMIC_SET;
    if (b->pe == 0)
        atomic_store(&b->shared->total, 3000);
    if (measure(b, "weak", op, false) != 0 || measure(b, "ordered", strong, true) != 0)
        return -1;
    return measure(b, "set", set, false);
}
