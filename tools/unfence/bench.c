/* bench.c - `unfence bench`: which benchmarks there are, their options, and what happens with their rows. */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_case cases[] = {
    {.name = "put-signal",
     .text = "Measures puts with signals between PEs of this host: one-way latency (half a ping-pong; the receiver reads the\n"
             "payload), streaming with one quiet a window, and work requests a put. Compared in alternating slices of one run\n"
             "with uf_put_nbi (\"unsignalled\"), with memcpy between the same buffers, and with the bare network (\"floor\").\n\n"
             "Policies: unsignalled (uf_put_nbi), weak (signal ADD), strong, ordered (strong in a UF_ORDERED context), set\n"
             "(weak SET, which travels as a message of its own). More than one peer: the stream goes round them.",
     .options = "--sizes --window --fabric --policy --peers --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 1,
     .main = bench_put_signal_main},
    {.name = "atomic",
     .text = "Measures atomics of PE 0 on a word of PE 1: latency of a fetch-add, rate of adds with one quiet a window.",
     .options = "--window --fabric --peers --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 1,
     .main = bench_atomic_main},
    {.name = "barrier",
     .text = "Measures uf_barrier (which completes all operations first) and uf_sync (which does not) over all PEs.",
     .options = "--fabric --peers --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 1,
     .main = bench_barrier_main},
    {.name = "floor",
     .text = "Measures this machine without the library: a ping-pong of two cache lines between two cores, memcpy by one and by\n"
             "all processes at once (policies memcpy and memcpy-all), and bare libfabric's fi_writedata.",
     .options = "--sizes --window --fabric --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 1,
     .main = bench_floor_main},
    {.name = "ep",
     .text = "Measures MoE dispatch and combine between all PEs against every PE copying the same bytes at once (\"floor\").\n"
             "Routing is random but the same at every run.",
     .options = "--tokens --hidden --top-k --experts --dtype --fabric --peers --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 3,
     .main = bench_ep_main},
    {.name = "ring",
     .text =
         "Measures an all-gather between all PEs, as a ring (uf_ring: blocks go on from PE to PE) and by tiles (uf_tiles: "
         "straight to\n"
         "all, eight tiles a share), against the machine moving as many bytes (\"floor\"): every PE copying, or pairs of PEs\n"
         "streaming over bare libfabric. --sizes: bytes of a PE's block.",
     .options = "--sizes --fabric --peers --iterations --seconds --no-pin --json ",
     .per_fabric = true,
     .default_peers = 3,
     .main = bench_ring_main},
    {.name = "order",
     .text = "Measures the ordering protocol alone, both ends on one core with nothing between them: signals released a second,\n"
             "and bytes allocated meanwhile.",
     .options = "--iterations --seconds --no-pin --json ",
     .default_peers = 0,
     .main = bench_order_main},
};
#define N_CASES (sizeof cases / sizeof *cases)

static const char targets_text[] =
    "Measures what each line of the project's own speed targets needs, and prints line, measured, target, met or not.\n"
    "The exit code does not depend on it.";

static const char *const summaries[][2] = {
    {"put-signal", "latency, streams and work requests of puts with signals"},
    {"atomic", "fetch-add latency and add rate"},
    {"barrier", "barrier and sync of n PEs"},
    {"floor", "what this machine can do without the library"},
    {"ep", "MoE dispatch and combine"},
    {"ring", "all-gather as a ring and by tiles"},
    {"ring-model", "rotations of blocks on the EFA model, beside draining: model results"},
    {"order", "the ordering protocol alone"},
    {"ordering", "ordering schemes side by side on the EFA model: model results"},
    {"targets", "the project's speed targets, measured and judged"},
};
#define N_SUMMARIES (sizeof summaries / sizeof *summaries)

const bench_case *bench_case_find(const char *name)
{
    for (size_t i = 0; i < N_CASES; i++) {
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    }
    return NULL;
}

/* -------------------------------------------------------------- options */

static void add_name(tool_names *names, const char *name)
{
    snprintf(names->text[names->n++], sizeof names->text[0], "%s", name);
}

void bench_options_default(bench_options *options)
{
    *options = (bench_options){
        .sizes = {5, {8, 1024, 8192, 65536, 1048576}},
        .window = 64,
        .seconds = 0.5,
        .tokens = 4096,
        .hidden = 2048,
        .top_k = 8,
        .experts = 128,
        .dtype = "bf16",
    };
    add_name(&options->fabrics, "local");
#ifdef UNFENCE_WITH_OFI
    add_name(&options->fabrics, "ofi:tcp");
    add_name(&options->fabrics, "ofi:shm");
#endif
    add_name(&options->policies, "unsignalled");
    add_name(&options->policies, "weak");
}

static const char *const policies[] = {"unsignalled", "weak", "strong", "ordered", "set", NULL};

/* Those of all options that `wanted` names. */
static size_t choose_options(bench_options *o, const char *wanted, tool_option *chosen)
{
    const tool_option all[] = {
        {"--sizes", TOOL_NUMBERS, &o->sizes, "LIST", "payload bytes, as 8,1K,64K,1M", 0, 1ull << 26, NULL},
        {"--window", TOOL_NUMBER, &o->window, "N", "operations in flight of a stream (64)", 1, 1024, NULL},
        {"--fabric", TOOL_NAMES, &o->fabrics, "LIST", "local, ofi:tcp, ofi:shm, ofi:efa, ...; default: those that are here", 0, 0,
         NULL},
        {"--policy", TOOL_NAMES, &o->policies, "LIST", "see above (unsignalled,weak)", 0, 0, policies},
        {"--peers", TOOL_NUMBERS, &o->peers, "LIST", "PEs of a run less one; a run for each number", 1, BENCH_MAX_PES - 1, NULL},
        {"--tokens", TOOL_NUMBER, &o->tokens, "N", "tokens of each PE (4096)", 1, 1u << 20, NULL},
        {"--hidden", TOOL_NUMBER, &o->hidden, "N", "elements of a token (2048)", 8, 1u << 20, NULL},
        {"--top-k", TOOL_NUMBER, &o->top_k, "N", "experts of a token (8)", 1, 32, NULL},
        {"--experts", TOOL_NUMBER, &o->experts, "N", "experts of all PEs (128)", 1, 2048, NULL},
        {"--dtype", TOOL_TEXT, &o->dtype, "TYPE", "bf16 or f32 (bf16)", 0, 0, NULL},
        {"--iterations", TOOL_NUMBER, &o->iterations, "N", "steps of each thing compared, instead of --seconds", 1, 1u << 30,
         NULL},
        {"--seconds", TOOL_SECONDS, &o->seconds, "S", "time for each thing compared (0.5)", 0, 0, NULL},
        {"--no-pin", TOOL_FLAG, &o->no_pin, NULL, "do not give each PE a core of its own", 0, 0, NULL},
        {"--json", TOOL_FLAG, &o->json, NULL, "JSON on standard output instead of a table", 0, 0, NULL},
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s ", all[i].name);
        if (strstr(wanted, name))
            chosen[n++] = all[i];
    }
    return n;
}

static bool was_given(int argc, char **argv, const char *option)
{
    size_t length = strlen(option);
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], option, length) == 0 && (argv[i][length] == '\0' || argv[i][length] == '='))
            return true;
    }
    return false;
}

/* -------------------------------------------------------------- the command */

static void bench_help(void)
{
    printf("usage: unfence bench BENCHMARK [OPTIONS]\n\n"
           "Measures on this host, starting its own PEs. Results are a table, or with --json one JSON of a fixed shape\n"
           "(docs/benchmarks.md), and nothing else on standard output.\n\nbenchmarks:\n");
    for (size_t i = 0; i < N_SUMMARIES; i++)
        printf("  %-12s %s\n", summaries[i][0], summaries[i][1]);
    printf("\nunfence bench BENCHMARK --help lists the options of one.\n");
}

static int unknown_benchmark(const char *name)
{
    const char *known[N_SUMMARIES];
    for (size_t i = 0; i < N_SUMMARIES; i++)
        known[i] = summaries[i][0];
    const char *nearest = tool_nearest(name, known, N_SUMMARIES);
    fprintf(stderr, "unfence bench: there is no benchmark \"%s\"", name);
    if (nearest)
        fprintf(stderr, "; did you mean \"%s\"?", nearest);
    fprintf(stderr, " (unfence bench --help lists all)\n");
    return TOOL_EXIT_USAGE;
}

static int run_case(const bench_case *c, const bench_options *options, bool fabrics_given)
{
    bench_results results = {0};
    int rc = bench_run(c, options, fabrics_given, &results);
    /* What was measured before a failure is printed all the same; the exit code tells that it is not all. */
    if (results.n > 0 || rc == TOOL_EXIT_OK) {
        if (!options->json)
            report_table(stdout, results.rows, results.n);
        else if (report_json(stdout, "measured", results.rows, results.n, NULL, 0) != 0)
            rc = TOOL_EXIT_FAILED;
    }
    free(results.rows);
    return rc;
}

int bench_command(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "unfence bench: which benchmark? (unfence bench --help lists all)\n");
        return TOOL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        bench_help();
        return TOOL_EXIT_OK;
    }
    if (strcmp(argv[1], "ordering") == 0)
        return bench_ordering(argc - 2, argv + 2);
    if (strcmp(argv[1], "ring-model") == 0)
        return bench_ring_model(argc - 2, argv + 2);
    bool targets = strcmp(argv[1], "targets") == 0;
    const bench_case *c = bench_case_find(argv[1]);
    if (!targets && !c)
        return unknown_benchmark(argv[1]);

    bench_options options;
    tool_option chosen[16];
    char command[48];
    bench_options_default(&options);
    snprintf(command, sizeof command, "unfence bench %s", argv[1]);
    tool_usage usage = {.command = command,
                        .synopsis = "[OPTIONS]",
                        .text = targets ? targets_text : c->text,
                        .options = chosen,
                        .n_options =
                            choose_options(&options, targets ? "--seconds --iterations --no-pin --json " : c->options, chosen)};
    switch (tool_options_parse(&usage, argc - 2, argv + 2)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    return targets ? bench_targets(&options) : run_case(c, &options, was_given(argc - 2, argv + 2, "--fabric"));
}
