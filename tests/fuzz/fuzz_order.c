/* fuzz_order.c - any immediates and messages from a peer are either applied or end its flow with a sentence, and never break us.
 *
 * The first byte chooses a configuration. Then records: a tag, and an immediate of 4 bytes or a message of 32 from one of two peers. Our own
 * operations run in between, so that answers, credits and receipts find something outstanding. Checks besides memory: an error has a
 * sentence, and the other peer's flow lives on when one has ended. */
#include "base/error.h"
#include "order/codec.h"
#include "order/order.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_WRS = 256 };

typedef struct sink {
    uint32_t cookies[MOST_WRS];
    uint32_t n;
    int failed[3];
} sink;

static int post(void *arg, const uf_wr *wr)
{
    sink *s = arg;
    if (s->n == MOST_WRS)
        return UF_EAGAIN;
    if (!(wr->flags & UF_WR_SILENT))
        s->cookies[s->n++] = wr->cookie;
    return UF_OK;
}

static int apply(void *arg, const uf_order_signal *signal, uint64_t *old)
{
    (void)arg;
    *old = signal->operand;
    return signal->address == 13 ? uf_fail(UF_ERANGE, "no such word") : UF_OK;
}

static void done(void *arg, uint64_t user, int status, uint64_t value)
{
    (void)arg, (void)user, (void)status, (void)value;
}

static void failed(void *arg, uint32_t flow, int status)
{
    sink *s = arg;
    if (flow > 2 || status >= 0 || s->failed[flow] || uf_error_message()[0] == 0)
        abort();
    s->failed[flow] = status;
}

static void own_operation(uf_order *order, uf_order_lane *lane, uint8_t choice)
{
    uf_order_op op = {.kind = choice % 5,
                      .op = choice % 5 == UF_ORDER_ATOMIC ? choice % 12 : choice & 1,
                      .width = 8,
                      .flags = choice >> 5 & (UF_STRONG | UF_SETTLED),
                      .indexed = true,
                      .signal_address = choice,
                      .operand = (uint64_t)choice << (choice & 15),
                      .local = 4096,
                      .remote = 4096,
                      .bytes = choice * 40u,
                      .user = choice};
    int rc = uf_order_submit(order, lane, &op);
    if (rc < 0 && rc != UF_EAGAIN && uf_error_message()[0] == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    sink s = {.n = 0};
    uint8_t choice = data[0];
    uf_order_config config = {.n_flows = 3,
                              .n_rails = choice & 1 ? 2 : 1,
                              .window = 2u << (choice >> 1 & 3),
                              .credits = 4,
                              .message_credits = 4,
                              .tx_depth = 64,
                              .queue_ops = 32,
                              .max_lanes = 3,
                              .max_local_lanes = 2,
                              .max_fetches = 2,
                              .max_message = 4096,
                              .immediates = !(choice & 8),
                              .imm_placed = choice & 16,
                              .duplicates = choice & 32,
                              .first_sequence = choice & 64 ? 0xfffffffe : 0};
    uf_order_edges edges = {&s, post, apply, done, failed};
    uf_order_ctx ctx = {.window = 2, .ordered = choice & 128};
    uf_order *order;
    uf_order_lane *lanes[2];
    if (uf_order_create(&config, &edges, &order) || uf_order_lane_open(order, &ctx, 1, &lanes[0]) ||
        uf_order_lane_open(order, &ctx, 2, &lanes[1]))
        abort();
    data++, size--;
    while (size > 0) {
        uint8_t tag = *data++;
        size--;
        uint32_t flow = 1 + (tag & 1);
        size_t take = tag & 2 ? UF_MESSAGE_BYTES : 4;
        unsigned char bytes[UF_MESSAGE_BYTES] = {0};
        memcpy(bytes, data, size < take ? size : take);
        uint32_t imm;
        memcpy(&imm, bytes, sizeof imm);
        bool alive = s.failed[3 - flow] == 0;
        int rc = tag & 2 ? uf_order_message(order, flow, bytes) : uf_order_imm(order, flow, tag >> 7, imm);
        if (rc < 0 && tag >> 7 < config.n_rails && s.failed[flow] == 0)
            abort();
        if (alive && s.failed[3 - flow])
            abort();
        data += size < take ? size : take;
        size -= size < take ? size : take;
        if (tag & 4)
            own_operation(order, lanes[tag & 1], tag ^ bytes[0]);
        if (tag & 8 && s.n)
            uf_order_sent(order, s.cookies[--s.n], UF_OK);
        if (tag & 16)
            uf_order_progress(order);
        if ((tag & 96) == 96)
            uf_order_drained(order, 1u << (tag >> 7));
    }
    char text[200];
    uf_order_describe(order, 1, text, sizeof text);
    uf_order_fail_rail(order, UF_ORDER_ALL_FLOWS, 0, NULL);
    uf_order_progress(order);
    uf_order_destroy(order);
    return 0;
}
