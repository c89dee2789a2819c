/* bench_put_signal.c - `unfence bench put-signal`: one-way latency, streaming, and work requests a put.
 *
 * For each size, two comparisons (bench.h: alternating slices):
 *   ping-pong  every policy and the floor, between PE 0 and 1. A step is one way: put with signal, wait, read the payload.
 *   stream     uf_put_nbi, every policy and the floor, from PE 0 to all peers in turn. A step is a window of puts and one quiet. The
 *              receivers sit in uf_wait for the end of the slice in all cases, so that signals cost what they cost and nothing else differs.
 * and a count of work requests a weak put, streamed without and with a quiet a window. Buffers rotate; every message is numbered. */
#include "bench_floor.h"
#include <stdlib.h>
#include <string.h>

#define PING_SLOTS   8
#define LANES_MAX    8
#define COUNT_PUTS   8192u
#define COUNT_NUMBER (1ull << 40) /* message numbers that no lane reaches */

typedef enum put_policy { POLICY_UNSIGNALLED, POLICY_WEAK, POLICY_STRONG, POLICY_ORDERED, POLICY_SET, POLICY_COUNT } put_policy;
static const char *const policy_names[] = {"unsignalled", "weak", "strong", "ordered", "set", NULL};

/* Everything the lanes of a run share. */
typedef struct bench_area {
    unsigned char *dst, *src; /* symmetric */
    uint64_t bytes, stride, window;
    uf_ctx *ctx, *ordered;
    bench_ofi_floor *ofi; /* NULL on local */
} bench_area;

/* One policy of one comparison. Numbers grow for the whole run, so a stale message is never taken for a new one. */
typedef struct put_lane {
    bench_area *area;
    put_policy policy;
    uint64_t *sig, *done; /* signal words: of the puts, and of the end of a slice */
    uint64_t number;      /* messages so far (of the sender; receivers follow) */
    uint64_t signals;     /* that this PE should have seen */
    uint64_t slice;
} put_lane;

/* -------------------------------------------------------------- one message */

static int send_put(bench_pe *b, put_lane *lane, uint64_t slot, uint64_t number, int pe)
{
    bench_area *area = lane->area;
    unsigned char *dst = area->dst + slot * area->stride, *src = area->src + slot * area->stride;
    int rc = UF_EINVAL;
    switch (lane->policy) {
    case POLICY_UNSIGNALLED:
        rc = uf_put_nbi(area->ctx, dst, src, area->bytes, pe);
        break;
    case POLICY_WEAK:
        rc = uf_put_signal_nbi(area->ctx, dst, src, area->bytes, lane->sig, UF_SIGNAL_ADD, 1, pe, UF_WEAK);
        break;
    case POLICY_STRONG:
        rc = uf_put_signal_nbi(area->ctx, dst, src, area->bytes, lane->sig, UF_SIGNAL_ADD, 1, pe, UF_STRONG);
        break;
    case POLICY_ORDERED:
        rc = uf_put_signal_nbi(area->ordered, dst, src, area->bytes, lane->sig, UF_SIGNAL_ADD, 1, pe, UF_STRONG);
        break;
    case POLICY_SET:
        rc = uf_put_signal_nbi(area->ctx, dst, src, area->bytes, lane->sig, UF_SIGNAL_SET, number, pe, UF_WEAK);
        break;
    case POLICY_COUNT:
        break;
    }
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "the put");
}

static uf_ctx *lane_ctx(const put_lane *lane)
{
    return lane->policy == POLICY_ORDERED ? lane->area->ordered : lane->area->ctx;
}

/* -------------------------------------------------------------- ping-pong */

static int ping(bench_pe *b, put_lane *lane, uint64_t number)
{
    bench_area *area = lane->area;
    uint64_t slot = number % PING_SLOTS;
    bench_stamp(area->src + slot * area->stride, area->bytes, number);
    if (send_put(b, lane, slot, number, 1 - b->pe) != 0)
        return -1;
    /* Sources may be reused only after a flush; answers have come for all of them, so this finds nothing to wait for. */
    if (slot == PING_SLOTS - 1) {
        int rc = uf_flush(lane_ctx(lane));
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_flush");
    }
    return 0;
}

static int await_ping(bench_pe *b, put_lane *lane, uint64_t number)
{
    bench_area *area = lane->area;
    int rc = uf_wait(b->world, lane->sig, UF_GE, number, BENCH_WAIT_NS);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_wait");
    if (!bench_stamp_is(area->dst + (number % PING_SLOTS) * area->stride, area->bytes, number))
        return bench_fail(b, "ping-pong: signal %llu was visible before its payload", (unsigned long long)number);
    return 0;
}

static int ping_pong_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    put_lane *lane = arg;
    if (b->pe > 1)
        return 0;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t number = ++lane->number;
        if (b->pe == 0 && ping(b, lane, number) != 0)
            return -1;
        if (await_ping(b, lane, number) != 0)
            return -1;
        if (b->pe == 1 && ping(b, lane, number) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

static int ping_pong_verify(bench_pe *b, void *arg)
{
    put_lane *lane = arg;
    bench_area *area = lane->area;
    uint64_t slot = lane->number % PING_SLOTS;
    if (b->pe > 1)
        return 0;
    int rc = uf_quiet(lane_ctx(lane));
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_quiet");
    return bench_pattern_check(b, area->dst + slot * area->stride, area->bytes, slot, lane->number);
}

/* -------------------------------------------------------------- stream */

static int slot_peer(const bench_pe *b, uint64_t slot)
{
    return 1 + (int)(slot % (uint64_t)(b->n_pes - 1));
}

static int send_window(bench_pe *b, put_lane *lane)
{
    bench_area *area = lane->area;
    for (uint64_t slot = 0; slot < area->window; slot++) {
        uint64_t number = ++lane->number;
        bench_stamp(area->src + slot * area->stride, area->bytes, number);
        if (send_put(b, lane, slot, number, slot_peer(b, slot)) != 0)
            return -1;
    }
    int rc = uf_quiet(lane_ctx(lane));
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_quiet");
}

static int tell_end(bench_pe *b, put_lane *lane)
{
    for (int pe = 1; pe < b->n_pes; pe++) {
        int rc = uf_signal(lane->area->ctx, lane->done, UF_SIGNAL_SET, lane->slice, pe, UF_WEAK);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_signal");
    }
    return 0;
}

static int stream_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    put_lane *lane = arg;
    lane->slice++;
    if (b->pe != 0) {
        int rc = uf_wait(b->world, lane->done, UF_GE, lane->slice, BENCH_WAIT_NS);
        lane->number += iterations * lane->area->window;
        return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_wait for the end of a slice");
    }
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (send_window(b, lane) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return tell_end(b, lane);
}

/* The signals that should be here, as every window gives each peer the same slots. */
static uint64_t expected_signal(const bench_pe *b, const put_lane *lane)
{
    uint64_t windows = lane->number / lane->area->window, last = 0, each = 0;
    for (uint64_t slot = 0; slot < lane->area->window; slot++) {
        if (slot_peer(b, slot) == b->pe) {
            each++;
            last = lane->number - lane->area->window + slot + 1;
        }
    }
    if (lane->policy == POLICY_UNSIGNALLED || each == 0)
        return 0;
    return lane->policy == POLICY_SET ? last : windows * each;
}

static int stream_verify(bench_pe *b, void *arg)
{
    put_lane *lane = arg;
    bench_area *area = lane->area;
    if (b->pe == 0)
        return 0;
    uint64_t got = uf_signal_fetch(lane->sig), wanted = expected_signal(b, lane), turn = lane->slice % area->window;
    /* Weak SETs of different puts may become visible in any order: the last one need not be the largest. */
    if (got != wanted && lane->policy != POLICY_SET)
        return bench_fail(b, "%s: %llu signals arrived, %llu were sent and completed", policy_names[lane->policy],
                          (unsigned long long)got, (unsigned long long)wanted);
    for (uint64_t slot = 0; slot < area->window; slot++) {
        uint64_t number = lane->number - area->window + slot + 1;
        const unsigned char *dst = area->dst + slot * area->stride;
        if (slot_peer(b, slot) != b->pe)
            continue;
        /* Ends of every slot, the bulk of one in turn: all of it each time would take longer than what is measured. */
        if (lane->slice == 1 || slot == turn) {
            if (bench_pattern_check(b, dst, area->bytes, slot, number) != 0)
                return -1;
        } else if (!bench_stamp_is(dst, area->bytes, number)) {
            return bench_fail(b, "%s: slot %llu does not hold message %llu after quiet", policy_names[lane->policy],
                              (unsigned long long)slot, (unsigned long long)number);
        }
    }
    return 0;
}

/* -------------------------------------------------------------- rows */

static report_row make_row(const bench_pe *b, const bench_area *area, const char *policy, uint64_t inflight)
{
    report_row row = {.bytes = area->bytes, .inflight = (uint32_t)inflight, .peers = (uint32_t)b->n_pes - 1};
    snprintf(row.bench, sizeof row.bench, "put-signal");
    snprintf(row.fabric, sizeof row.fabric, "%s", b->fabric);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return row;
}

/* Samples are nanoseconds of a step; a row wants `scale` divided by them, or them divided by `scale`. */
static int add_figure(bench_pe *b, const bench_lane *lane, report_metric metric, const char *unit, double scale, report_row row)
{
    stats copy;
    if (stats_create(&copy, lane->samples.n > 0 ? lane->samples.n : 1) != 0)
        return bench_fail(b, "no memory for percentiles");
    for (size_t i = 0; i < lane->samples.n; i++) {
        double ns = lane->samples.values[i];
        stats_add(&copy, metric == REPORT_LATENCY ? ns / scale : ns > 0 ? scale / ns : 0);
    }
    row.metric = metric;
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    stats_summarize(&copy, &row);
    row.n = lane->samples.seen;
    stats_destroy(&copy);
    return bench_row_add(b, &row);
}

static int add_ratio(bench_pe *b, const bench_lane *lane, const bench_lane *against, uint64_t rounds, bool inverse,
                     report_row row)
{
    if (bench_ratio(lane, against, rounds, inverse, &row) != 0)
        return bench_fail(b, "no memory for ratios");
    row.metric = REPORT_RATIO;
    snprintf(row.unit, sizeof row.unit, "x");
    snprintf(row.against, sizeof row.against, "%s", against->name);
    return bench_row_add(b, &row);
}

/* -------------------------------------------------------------- the two comparisons */

typedef struct comparison {
    bench_lane lanes[LANES_MAX];
    put_lane puts[POLICY_COUNT];
    bench_line_floor line;
    bench_copy_floor copy;
    size_t n;
    const bench_lane *unsignalled, *floor; /* NULL if not there */
} comparison;

static bool policy_wanted(const bench_pe *b, put_policy p)
{
    for (size_t i = 0; i < b->options->policies.n; i++) {
        if (strcmp(b->options->policies.text[i], policy_names[p]) == 0)
            return true;
    }
    return false;
}

/* Every policy gets signal words of its own, collectively, in the same order everywhere. */
static int add_policies(bench_pe *b, bench_area *area, comparison *c, uint64_t *words, bool stream)
{
    for (put_policy p = 0; p < POLICY_COUNT; p++) {
        bool needed = policy_wanted(b, p) || (p == POLICY_UNSIGNALLED && stream);
        if (!needed || (p == POLICY_UNSIGNALLED && !stream))
            continue;
        put_lane *put = &c->puts[p];
        *put = (put_lane){.area = area, .policy = p, .sig = &words[2 * p], .done = &words[2 * p + 1]};
        bench_lane *lane = &c->lanes[c->n++];
        *lane = (bench_lane){.name = policy_names[p],
                             .slice = stream ? stream_slice : ping_pong_slice,
                             .verify = stream ? stream_verify : ping_pong_verify,
                             .divide = stream ? 1 : 2,
                             .arg = put};
        if (p == POLICY_UNSIGNALLED)
            c->unsignalled = lane;
    }
    (void)b;
    return 0;
}

static void add_floor_lane(comparison *c, bench_lane lane)
{
    c->lanes[c->n] = lane;
    c->floor = &c->lanes[c->n++];
}

static int ping_pong_rows(bench_pe *b, bench_area *area, comparison *c, uint64_t rounds)
{
    for (size_t i = 0; i < c->n; i++) {
        const bench_lane *lane = &c->lanes[i];
        report_row row = make_row(b, area, lane->name, 1);
        if (add_figure(b, lane, REPORT_LATENCY, "us", 1e3, row) != 0)
            return -1;
        if (c->floor && lane != c->floor && add_ratio(b, lane, c->floor, rounds, false, row) != 0)
            return -1;
    }
    return 0;
}

static int measure_ping_pong(bench_pe *b, bench_area *area, uint64_t *words)
{
    comparison c = {0};
    uint64_t rounds;
    if (add_policies(b, area, &c, words, false) != 0)
        return -1;
    if (area->ofi) {
        bench_floor_ofi_size(area->ofi, area->bytes, area->window);
        add_floor_lane(&c, (bench_lane){.name = "floor", .slice = bench_floor_ofi_ping_pong, .arg = area->ofi, .divide = 2});
    } else if (area->bytes > 0 && area->bytes <= 8 && strcmp(b->fabric, "local") == 0) {
        add_floor_lane(&c, (bench_lane){.name = "floor", .slice = bench_floor_line_slice, .arg = &c.line, .divide = 2});
    }
    int rc = bench_interleave(b, c.lanes, c.n, &rounds);
    if (rc == 0 && b->pe == 0)
        rc = ping_pong_rows(b, area, &c, rounds);
    bench_lanes_free(c.lanes, c.n);
    return rc;
}

static int stream_rows(bench_pe *b, bench_area *area, comparison *c, uint64_t rounds)
{
    for (size_t i = 0; i < c->n; i++) {
        const bench_lane *lane = &c->lanes[i];
        double puts = (double)area->window;
        report_row row = make_row(b, area, lane->name, area->window);
        if (add_figure(b, lane, REPORT_BANDWIDTH, "MB/s", puts * (double)area->bytes * 1e3, row) != 0 ||
            add_figure(b, lane, REPORT_RATE, "1/s", puts * 1e9, row) != 0)
            return -1;
        if (lane == c->floor)
            continue;
        if (lane != c->unsignalled && add_ratio(b, lane, c->unsignalled, rounds, true, row) != 0)
            return -1;
        if (c->floor && add_ratio(b, lane, c->floor, rounds, true, row) != 0)
            return -1;
    }
    return 0;
}

static int measure_stream(bench_pe *b, bench_area *area, uint64_t *words)
{
    comparison c = {0};
    uint64_t rounds;
    if (add_policies(b, area, &c, words, true) != 0)
        return -1;
    unsigned char *mapped = b->pe == 0 ? uf_ptr(b->world, area->dst, 1) : NULL;
    if (area->ofi) {
        add_floor_lane(&c, (bench_lane){.name = "floor", .slice = bench_floor_ofi_stream, .arg = area->ofi});
    } else if (strcmp(b->fabric, "local") == 0 && b->n_pes == 2 && area->bytes > 0) {
        /* The same buffers, through the same mapping. PE 1 has nothing to do in it. */
        c.copy = (bench_copy_floor){
            .dst = mapped, .src = area->src, .bytes = area->bytes, .window = area->window, .active = 1, .stamped = true};
        add_floor_lane(&c, (bench_lane){.name = "memcpy", .slice = bench_floor_copy_slice, .arg = &c.copy});
        if (b->pe == 0 && !mapped)
            return bench_fail(b, "uf_ptr gives no mapping of PE 1 although the fabric is local");
    }
    int rc = bench_interleave(b, c.lanes, c.n, &rounds);
    if (rc == 0 && b->pe == 0)
        rc = stream_rows(b, area, &c, rounds);
    bench_lanes_free(c.lanes, c.n);
    return rc;
}

/* -------------------------------------------------------------- counts */

static int share_counters(bench_pe *b, uf_counters all[2])
{
    uf_counters mine = {.size = sizeof mine};
    _Static_assert(sizeof mine <= BENCH_EXCHANGE, "counters must fit into the exchange area");
    int rc = uf_world_counters(b->world, &mine);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_world_counters");
    memcpy(b->shared->exchange[b->pe], &mine, sizeof mine);
    if (bench_sync(b) != 0)
        return -1;
    for (int pe = 0; pe < 2; pe++)
        memcpy(&all[pe], b->shared->exchange[pe], sizeof all[pe]);
    return bench_sync(b);
}

/* Sends `puts` weak puts; both PEs return when PE 1 has seen the signals of all of them. */
static int stream_counted(bench_pe *b, put_lane *lane, uint64_t puts, bool quiet)
{
    int rc;
    for (uint64_t i = 0; b->pe == 0 && i < puts; i++) {
        if (send_put(b, lane, i % lane->area->window, i, 1) != 0)
            return -1;
        if (quiet && (i + 1) % lane->area->window == 0 && (rc = uf_quiet(lane->area->ctx)) != UF_OK)
            return bench_fail_library(b, rc, "uf_quiet");
    }
    lane->signals += puts;
    if (b->pe == 1 && (rc = uf_wait(b->world, lane->sig, UF_GE, lane->signals, BENCH_WAIT_NS)) != UF_OK)
        return bench_fail_library(b, rc, "uf_wait");
    return bench_sync(b);
}

static int add_count(bench_pe *b, const bench_area *area, const char *policy, const char *unit, uint64_t wrs, uint64_t puts)
{
    report_row row = make_row(b, area, policy, area->window);
    double each = (double)wrs / (double)puts;
    row.metric = REPORT_COUNT;
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    row.p50 = row.p99 = row.p999 = row.min = row.max = each;
    row.n = puts;
    return bench_row_add(b, &row);
}

static int count_once(bench_pe *b, put_lane *lane, bool quiet)
{
    bench_area *area = lane->area;
    uint64_t puts = b->options->iterations > 0 ? b->options->iterations * area->window : COUNT_PUTS;
    puts = (puts + area->window - 1) / area->window * area->window;
    uf_counters before[2], after[2];
    if (bench_sync(b) != 0 || share_counters(b, before) != 0 || stream_counted(b, lane, puts, quiet) != 0 ||
        share_counters(b, after) != 0)
        return -1;
    int rc = uf_quiet(area->ctx);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_quiet");
    uint64_t data = 0, signals = 0, control = 0;
    for (int pe = 0; pe < 2; pe++) {
        data += after[pe].data_wrs - before[pe].data_wrs;
        signals += after[pe].signal_wrs - before[pe].signal_wrs;
        control += after[pe].control_wrs - before[pe].control_wrs;
    }
    for (uint64_t slot = 0; b->pe == 1 && slot < area->window; slot++) {
        if (bench_pattern_check(b, area->dst + slot * area->stride, area->bytes, slot, COUNT_NUMBER + slot) != 0)
            return -1;
    }
    const char *policy = quiet ? "weak+quiet" : "weak";
    return add_count(b, area, policy, "data WRs/put", data, puts) != 0 ||
                   add_count(b, area, policy, "signal WRs/put", signals, puts) != 0 ||
                   add_count(b, area, policy, "control WRs/put", control, puts) != 0
               ? -1
               : bench_sync(b);
}

static int measure_counts(bench_pe *b, bench_area *area, uint64_t *words)
{
    put_lane lane = {.area = area, .policy = POLICY_WEAK, .sig = &words[2 * POLICY_WEAK]};
    /* Sources stay as they are here, since without a quiet there is no time at which they may be changed. */
    for (uint64_t slot = 0; slot < area->window; slot++)
        bench_stamp(area->src + slot * area->stride, area->bytes, COUNT_NUMBER + slot);
    return count_once(b, &lane, false) != 0 ? -1 : count_once(b, &lane, true);
}

/* -------------------------------------------------------------- the run */

static int set_size(bench_pe *b, bench_area *area, uint64_t bytes)
{
    area->bytes = bytes;
    area->stride = (bytes + 63) & ~63ull;
    area->stride = area->stride == 0 ? 64 : area->stride;
    area->window = bench_window(b->options, bytes);
    uint64_t slots = area->window > PING_SLOTS ? area->window : PING_SLOTS;
    for (uint64_t slot = 0; slot < slots; slot++)
        bench_pattern_fill(area->src + slot * area->stride, bytes, slot);
    return bench_sync(b);
}

static int measure_size(bench_pe *b, bench_area *area, uint64_t bytes)
{
    uint64_t *words[3];
    bool network = area->ofi != NULL;
    for (size_t i = 0; i < 3; i++) {
        int rc = uf_signal_alloc(b->world, (size_t)POLICY_COUNT * 2, UF_SIGNAL_MIXED, &words[i]);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_signal_alloc");
    }
    if (set_size(b, area, bytes) != 0 || measure_ping_pong(b, area, words[0]) != 0 || measure_stream(b, area, words[1]) != 0 ||
        (network && measure_counts(b, area, words[2]) != 0))
        return -1;
    for (size_t i = 0; i < 3; i++) {
        int rc = uf_signal_free(b->world, words[i]);
        if (rc != UF_OK)
            return bench_fail_library(b, rc, "uf_signal_free");
    }
    return 0;
}

static uint64_t area_bytes(const bench_options *options)
{
    uint64_t most = 0;
    for (size_t i = 0; i < options->sizes.n; i++) {
        uint64_t stride = (options->sizes.values[i] + 64) & ~63ull;
        uint64_t window = bench_window(options, options->sizes.values[i]), slots = window > PING_SLOTS ? window : PING_SLOTS;
        most = slots * stride > most ? slots * stride : most;
    }
    return most;
}

static int open_area(bench_pe *b, bench_area *area)
{
    uint64_t bytes = area_bytes(b->options);
    uf_path_info path = {.size = sizeof path};
    uf_ctx_options ordered = {.size = sizeof ordered, .flags = UF_ORDERED};
    if (bench_world_open(b, 2 * bytes + (8u << 20)) != 0)
        return -1;
    int rc = uf_malloc(b->world, bytes, 64, (void **)&area->dst);
    if (rc == UF_OK)
        rc = uf_malloc(b->world, bytes, 64, (void **)&area->src);
    if (rc == UF_OK)
        rc = uf_ctx_create(b->world, NULL, &area->ctx);
    if (rc == UF_OK)
        rc = uf_ctx_create(b->world, &ordered, &area->ordered);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "setting up the buffers and contexts");
    if (!bench_ofi_provider(b->fabric) || b->n_pes != 2)
        return 0;
    rc = uf_world_path(b->world, 1 - b->pe, &path); /* the floor is of the provider that the library took */
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "asking for the path");
    uint64_t largest = 0;
    for (size_t i = 0; i < b->options->sizes.n; i++)
        largest = b->options->sizes.values[i] > largest ? b->options->sizes.values[i] : largest;
    return bench_floor_ofi_open(b, path.provider, largest, b->options->window, &area->ofi);
}

int bench_put_signal_main(bench_pe *b)
{
    bench_area area = {0};
    if (b->n_pes < 2)
        return bench_fail(b, "put-signal needs at least one peer");
    if (b->pe == 0)
        atomic_store(&b->shared->total, b->options->sizes.n * 2 * 1000);
    int rc = open_area(b, &area);
    for (size_t i = 0; rc == 0 && i < b->options->sizes.n; i++)
        rc = measure_size(b, &area, b->options->sizes.values[i]);
    bench_floor_ofi_close(area.ofi);
    return rc;
}
