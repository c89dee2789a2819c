/* bench_ring_model.c - `unfence bench ring-model`: rotations of blocks on the EFA model (bench/ring), beside the same job with draining.
 *
 * Virtual time only: the same options and seed give the same figures on every machine. A row says which share of the wire's rate a policy reaches,
 * another what the signal of a put costs against the same put without one (bench/ordering). */
#include "bench.h"
#include "ordering.h"
#include "ring_model.h"
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "Rotations of blocks (ring attention) on a model of EFA devices in virtual time. A model result: no hardware is measured,\n"
    "ratios and counts carry over, microseconds do not. PEs are in groups; every PE's blocks go round its group, and are sent "
    "on\n"
    "as soon as they are there. \"wire\": the NIC's rate; a row has the median PE's share of it, and the slowest one's. "
    "Policies: ring "
    "(uf_ring);\n"
    "drain (everything in flight completes before each signal, as a proxy does); counted (one put with a weak signal after the\n"
    "other, against the same puts without).";

enum { MOST_ROWS = 128 };

typedef struct sweep {
    const char *model;
    tool_numbers sizes;
    uint64_t pes, group, chains, blocks, slots, seed;
    bool json;
    report_row rows[MOST_ROWS];
    size_t n;
} sweep;

static const char *const models[] = {"p5", "p5en", "p6-b200", "chaos", "fifo", NULL};

static tool_parsed parse(sweep *s, int argc, char **argv)
{
    tool_names chosen = {1, {"p5en"}};
    const tool_option options[] = {
        {"--model", TOOL_NAMES, &chosen, "PROFILE", "p5, p5en, p6-b200, chaos or fifo (p5en)", 0, 0, models},
        {"--sizes", TOOL_NUMBERS, &s->sizes, "LIST", "bytes of a block, as 256K,1M (1M)", 64, 1ull << 26, NULL},
        {"--pes", TOOL_NUMBER, &s->pes, "N", "PEs (64)", 2, 256, NULL},
        {"--group", TOOL_NUMBER, &s->group, "N", "PEs of a ring (8)", 2, 256, NULL},
        {"--chains", TOOL_NUMBER, &s->chains, "N", "rings side by side, as one for some heads (16)", 1, 64, NULL},
        {"--blocks", TOOL_NUMBER, &s->blocks, "N", "blocks of each PE in each chain (2)", 1, 1024, NULL},
        {"--slots", TOOL_NUMBER, &s->slots, "N", "slots of each chain; 0: as few as can be (0)", 0, UF_RING_SLOTS, NULL},
        {"--seed", TOOL_NUMBER, &s->seed, "N", "of the model (1)", 0, 0, NULL},
        {"--json", TOOL_FLAG, &s->json, NULL, "JSON on standard output instead of a table", 0, 0, NULL},
    };
    const tool_usage usage = {.command = "unfence bench ring-model",
                              .synopsis = "[OPTIONS]",
                              .text = help_text,
                              .options = options,
                              .n_options = sizeof options / sizeof *options};
    tool_parsed parsed = tool_options_parse(&usage, argc, argv);
    for (size_t i = 0; models[i]; i++)
        if (strcmp(models[i], chosen.text[0]) == 0)
            s->model = models[i];
    return parsed;
}

static void add_row(sweep *s, const char *policy, uint64_t bytes, report_metric metric, const char *unit, const char *against,
                    double figure)
{
    if (s->n == MOST_ROWS)
        return;
    report_row row = {.bytes = bytes,
                      .inflight = (uint32_t)(s->chains * s->blocks),
                      .peers = (uint32_t)s->group - 1,
                      .metric = metric,
                      .p50 = figure,
                      .p99 = figure,
                      .p999 = figure,
                      .min = figure,
                      .max = figure,
                      .n = 1};
    snprintf(row.bench, sizeof row.bench, "ring-model");
    snprintf(row.fabric, sizeof row.fabric, "efa:model-%s", s->model);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    snprintf(row.against, sizeof row.against, "%s", against);
    s->rows[s->n++] = row;
}

static int failed(void)
{
    fprintf(stderr, "unfence bench ring-model: %s\n", uf_error_message());
    return TOOL_EXIT_FAILED;
}

static int rotations(sweep *s, uint64_t bytes)
{
    for (int drain = 0; drain < 2; drain++) {
        ring_model_options o = {.profile = s->model,
                                .seed = s->seed,
                                .bytes = bytes,
                                .pes = (uint32_t)s->pes,
                                .group = (uint32_t)s->group,
                                .chains = (uint32_t)s->chains,
                                .blocks = (uint32_t)s->blocks,
                                .slots = (uint32_t)s->slots,
                                .drain = drain};
        ring_model_result r;
        if (o.slots == 0)
            o.slots = ring_model_slots(&o);
        if (ring_model_run(&o, &r))
            return failed();
        const char *policy = drain ? "drain" : "ring";
        add_row(s, policy, bytes, REPORT_RATIO, "x", "wire", r.share);
        if (s->n) /* the slowest PE's */
            s->rows[s->n - 1].min = r.least;
        add_row(s, policy, bytes, REPORT_COUNT, "WRs/block", "",
                (double)(r.data_wrs + r.signal_wrs + r.control_wrs) / (double)r.blocks);
    }
    return TOOL_EXIT_OK;
}

static int signals(sweep *s, uint64_t bytes)
{
    double rates[2];
    for (int i = 0; i < 2; i++) {
        const ordering_options o = {.profile = s->model,
                                    .seed = s->seed,
                                    .bytes = bytes,
                                    .puts = ordering_puts(bytes, 8, 4096),
                                    .inflight = 8,
                                    .peers = 1,
                                    .batch = 1,
                                    .costs = {40, 40}};
        ordering_result r;
        if (ordering_measure(ordering_scheme_find(i ? "counted" : "unsignalled"), &o, &r))
            return failed();
        rates[i] = r.rate;
        free(r.latency);
    }
    add_row(s, "counted", bytes, REPORT_RATIO, "x", "unsignalled", rates[1] / rates[0]);
    return TOOL_EXIT_OK;
}

/* The heaps of all PEs lie in this process. */
static void size_heaps(const sweep *s)
{
    uint64_t most = 0;
    char text[32];
    for (size_t i = 0; i < s->sizes.n; i++)
        most = s->sizes.values[i] > most ? s->sizes.values[i] : most;
    snprintf(text, sizeof text, "%llu", (unsigned long long)(most * (s->chains * UF_RING_SLOTS + 2) + (64u << 20)));
    setenv("UNFENCE_HEAP_MAX", text, 0);
}

int bench_ring_model(int argc, char **argv)
{
    sweep s = {.model = "p5en", .sizes = {1, {1 << 20}}, .pes = 64, .group = 8, .chains = 16, .blocks = 2, .seed = 1};
    switch (parse(&s, argc, argv)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    int rc = TOOL_EXIT_OK;
    size_heaps(&s);
    if (!s.json)
        printf("%llu PEs in rings of %llu, %llu chains of %llu blocks a PE, model %s: model result\n", (unsigned long long)s.pes,
               (unsigned long long)s.group, (unsigned long long)s.chains, (unsigned long long)s.blocks, s.model);
    for (size_t i = 0; rc == TOOL_EXIT_OK && i < s.sizes.n; i++) {
        rc = rotations(&s, s.sizes.values[i]);
        rc = rc == TOOL_EXIT_OK ? signals(&s, s.sizes.values[i]) : rc;
    }
    if (s.json && report_json(stdout, "model", s.rows, s.n, NULL, 0) != 0)
        rc = TOOL_EXIT_FAILED;
    if (!s.json)
        report_table(stdout, s.rows, s.n);
    return rc;
}
