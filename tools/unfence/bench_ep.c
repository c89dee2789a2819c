/* bench_ep.c - `unfence bench ep`: dispatch and combine of MoE tokens against all processes copying the same bytes at once.
 *
 * The routing is random but fixed (a hash of PE and token). A step is one dispatch and one combine of what came, unchanged, by all PEs. The
 * floor is a memcpy of as many bytes as this PE's rows have, out and back, by every PE at the same time: what the memory of the host gives
 * when nothing has to be found, packed, signalled or reduced. Checked: rows are their tokens', and a token comes back as
 * (number of its PEs) x itself, which is exact in both types as the values are small. */
#include "bench_floor.h"
#include "unfence/ep.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

typedef struct ep_run {
    uf_ep *ep;
    uf_ep_type type;
    int tokens, hidden, top_k, experts;
    size_t element, row_bytes;
    unsigned char *x, *out;
    int32_t *routing;
    int *owners;   /* distinct PEs of each token */
    uint64_t rows; /* that this PE sends, own ones included */
    stats dispatch, combine;
} ep_run;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* -------------------------------------------------------------- values */

/* Small integers: exact in bf16, and so are their sums over a few PEs. */
static float value_of(int pe, int token, int position)
{
    return (float)(mix((uint64_t)pe << 40 ^ (uint64_t)token << 16 ^ (uint64_t)position) % 7) + 1;
}

static void store_value(const ep_run *run, unsigned char *at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t high = (uint16_t)(bits >> 16);
    if (run->type == UF_EP_F32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &high, sizeof high);
}

static float load_value(const ep_run *run, const unsigned char *at)
{
    float value;
    uint16_t high;
    if (run->type == UF_EP_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&high, at, sizeof high);
    uint32_t bits = (uint32_t)high << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* -------------------------------------------------------------- setting up */

static void route(ep_run *run, int pe, int n_pes)
{
    int per_pe = run->experts / n_pes;
    for (int token = 0; token < run->tokens; token++) {
        int32_t *lanes = run->routing + (size_t)token * (size_t)run->top_k;
        uint64_t seen_pes[BENCH_MAX_PES] = {0};
        for (int k = 0; k < run->top_k; k++) {
            uint64_t random = mix(((uint64_t)pe << 32 | (uint64_t)token) * 64 + (uint64_t)k);
            int32_t expert = (int32_t)(random % (uint64_t)run->experts);
            for (int earlier = 0; earlier < k; earlier++) {
                if (lanes[earlier] == expert) {
                    expert = (expert + 1) % run->experts;
                    earlier = -1;
                }
            }
            lanes[k] = expert;
            seen_pes[expert / per_pe] = 1;
        }
        for (int owner = 0; owner < n_pes; owner++)
            run->owners[token] += (int)seen_pes[owner];
        run->rows += (uint64_t)run->owners[token];
    }
}

static int allocate(bench_pe *b, ep_run *run)
{
    size_t bytes = (size_t)run->tokens * run->row_bytes;
    run->x = malloc(bytes ? bytes : 1);
    run->out = malloc(bytes ? bytes : 1);
    run->routing = malloc(((size_t)run->tokens * (size_t)run->top_k + 1) * sizeof *run->routing);
    run->owners = calloc((size_t)run->tokens + 1, sizeof *run->owners);
    if (!run->x || !run->out || !run->routing || !run->owners || stats_create(&run->dispatch, 1u << 14) != 0 ||
        stats_create(&run->combine, 1u << 14) != 0)
        return bench_fail(b, "no memory for %d tokens of %zu bytes", run->tokens, run->row_bytes);
    for (int token = 0; token < run->tokens; token++) {
        for (int i = 0; i < run->hidden; i++)
            store_value(run, run->x + (size_t)token * run->row_bytes + (size_t)i * run->element, value_of(b->pe, token, i));
    }
    route(run, b->pe, b->n_pes);
    return 0;
}

static void release(ep_run *run)
{
    free(run->x);
    free(run->out);
    free(run->routing);
    free(run->owners);
    stats_destroy(&run->dispatch);
    stats_destroy(&run->combine);
}

static int read_options(bench_pe *b, ep_run *run)
{
    const bench_options *o = b->options;
    run->type = strcasecmp(o->dtype, "f32") == 0 ? UF_EP_F32 : UF_EP_BF16;
    if (run->type == UF_EP_BF16 && strcasecmp(o->dtype, "bf16") != 0)
        return bench_fail(b, "--dtype %s: bf16 and f32 can be combined", o->dtype);
    run->element = run->type == UF_EP_F32 ? 4 : 2;
    run->tokens = (int)o->tokens;
    run->hidden = (int)o->hidden;
    run->top_k = (int)o->top_k;
    run->experts = (int)o->experts;
    run->row_bytes = (size_t)run->hidden * run->element;
    if (run->experts % b->n_pes != 0 || run->top_k > run->experts)
        return bench_fail(b, "--experts %d must be a multiple of the %d PEs and at least --top-k %d", run->experts, b->n_pes,
                          run->top_k);
    return 0;
}

static int open_ep(bench_pe *b, ep_run *run)
{
    uf_ep_options options = {.size = sizeof options,
                             .type = run->type,
                             .hidden = (size_t)run->hidden,
                             .n_experts = run->experts,
                             .top_k = run->top_k,
                             .max_tokens = run->tokens,
                             .max_handles = 1};
    if (bench_world_open(b, uf_ep_bytes(&options, b->n_pes) + (16u << 20)) != 0)
        return -1;
    int rc = uf_ep_create(uf_team_world(b->world), &options, &run->ep);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_ep_create");
}

/* -------------------------------------------------------------- a step, and its check */

static int check_received(bench_pe *b, const ep_run *run, const uf_ep_received *received)
{
    for (int row = 0; row < received->n_rows; row++) {
        const unsigned char *x = (const unsigned char *)received->x + (size_t)row * run->row_bytes;
        int at = row % run->hidden, pe = received->source_pe[row], token = received->source_token[row];
        if (load_value(run, x + (size_t)at * run->element) != value_of(pe, token, at))
            return bench_fail(b, "row %d does not hold token %d of PE %d at element %d", row, token, pe, at);
    }
    return 0;
}

static int check_combined(bench_pe *b, void *arg)
{
    const ep_run *run = arg;
    for (int token = 0; token < run->tokens; token++) {
        int at = (token * 31) % run->hidden;
        const unsigned char *out = run->out + (size_t)token * run->row_bytes + (size_t)at * run->element;
        float wanted = (float)run->owners[token] * value_of(b->pe, token, at);
        if (load_value(run, out) != wanted)
            return bench_fail(b, "token %d came back with %g at element %d, %g is right", token, (double)load_value(run, out), at,
                              (double)wanted);
    }
    return 0;
}

static int ep_step(bench_pe *b, ep_run *run, bool check, uint64_t *dispatched)
{
    uf_ep_handle *handle;
    uf_ep_received received = {.size = sizeof received};
    int rc = uf_ep_dispatch(run->ep, run->x, run->routing, NULL, run->tokens, &handle, &received);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_ep_dispatch");
    *dispatched = uf_clock_ns();
    if (check && check_received(b, run, &received) != 0)
        return -1;
    rc = uf_ep_combine(run->ep, received.x, NULL, handle, run->out, NULL);
    if (rc != UF_OK)
        return bench_fail_library(b, rc, "uf_ep_combine");
    rc = uf_ep_handle_free(handle);
    return rc == UF_OK ? 0 : bench_fail_library(b, rc, "uf_ep_handle_free");
}

static int ep_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    ep_run *run = arg;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t start = uf_clock_ns(), dispatched = start;
        /* Received rows are looked at in the slices whose time is not compared. */
        if (ep_step(b, run, meter->samples != NULL, &dispatched) != 0)
            return -1;
        if (meter->samples && meter->measures) {
            stats_add(&run->dispatch, (double)(dispatched - start) / 1e3);
            stats_add(&run->combine, (double)(uf_clock_ns() - dispatched) / 1e3);
        }
        if (bench_sync(b) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return 0;
}

/* -------------------------------------------------------------- rows */

static report_row make_row(const bench_pe *b, const ep_run *run, const char *policy)
{
    report_row row = {.bytes = run->rows * run->row_bytes, .inflight = 1, .peers = (uint32_t)b->n_pes - 1};
    snprintf(row.bench, sizeof row.bench, "ep");
    snprintf(row.fabric, sizeof row.fabric, "%s", b->fabric);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return row;
}

static int add_latency(bench_pe *b, const ep_run *run, const char *policy, stats *samples)
{
    report_row row = make_row(b, run, policy);
    row.metric = REPORT_LATENCY;
    snprintf(row.unit, sizeof row.unit, "us");
    stats_summarize(samples, &row);
    return bench_row_add(b, &row);
}

static int add_rows(bench_pe *b, ep_run *run, bench_lane *lanes, uint64_t rounds)
{
    double bytes = 0;
    for (int pe = 0; pe < b->n_pes; pe++)
        bytes += b->shared->each[pe].figure;
    if (add_latency(b, run, "dispatch", &run->dispatch) != 0 || add_latency(b, run, "combine", &run->combine) != 0)
        return -1;
    for (size_t i = 0; i < 2; i++) {
        report_row row = make_row(b, run, lanes[i].name);
        row.metric = REPORT_BANDWIDTH;
        snprintf(row.unit, sizeof row.unit, "MB/s all PEs");
        stats *samples = &lanes[i].samples;
        for (size_t k = 0; k < samples->n; k++)
            samples->values[k] = bytes * 1e3 / samples->values[k];
        stats_summarize(samples, &row);
        if (bench_row_add(b, &row) != 0)
            return -1;
    }
    report_row row = make_row(b, run, lanes[0].name);
    row.metric = REPORT_RATIO;
    snprintf(row.unit, sizeof row.unit, "x");
    snprintf(row.against, sizeof row.against, "floor");
    if (bench_ratio(&lanes[0], &lanes[1], rounds, true, &row) != 0)
        return bench_fail(b, "no memory for ratios");
    return bench_row_add(b, &row);
}

static int measure(bench_pe *b, ep_run *run)
{
    /* Out and back: twice this PE's rows. */
    uint64_t bytes = 2 * run->rows * run->row_bytes, rounds;
    size_t area_bytes = ((size_t)(run->rows * run->row_bytes) + 4095) & ~(size_t)4095;
    int rc = -1;
    b->shared->each[b->pe].figure = (double)bytes;
    unsigned char *area = mmap(NULL, 2 * area_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area_bytes == 0 || area == MAP_FAILED)
        return bench_fail(b, "no memory: %zu bytes for the floor (are there tokens?)", 2 * area_bytes);
    memset(area, 1, 2 * area_bytes);
    bench_copy_floor copy = {
        .dst = area, .src = area + area_bytes, .bytes = run->row_bytes, .window = run->rows, .active = b->n_pes, .repeats = 2};
    bench_lane lanes[] = {{.name = "both", .slice = ep_slice, .verify = check_combined, .arg = run},
                          {.name = "floor", .slice = bench_floor_copy_slice, .arg = &copy}};
    if (bench_interleave(b, lanes, 2, &rounds) == 0)
        rc = b->pe == 0 ? add_rows(b, run, lanes, rounds) : 0;
    bench_lanes_free(lanes, 2);
    munmap(area, 2 * area_bytes);
    return rc;
}

int bench_ep_main(bench_pe *b)
{
    ep_run run = {0};
    if (b->pe == 0)
        atomic_store(&b->shared->total, 1000);
    int rc = read_options(b, &run);
    if (rc == 0)
        rc = allocate(b, &run);
    if (rc == 0)
        rc = open_ep(b, &run);
    if (rc == 0)
        rc = measure(b, &run);
    if (rc == 0 && uf_ep_destroy(run.ep) != UF_OK)
        rc = bench_fail_library(b, UF_EINTERNAL, "uf_ep_destroy");
    release(&run);
    return rc;
}
