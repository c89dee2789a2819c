/* selftest.c - `unfence selftest ep`: does dispatch and combine here do what the contract says, to the bit?
 *
 * For a new network, host or compiler: the table has a line per fabric, preset and number of tokens, with how many configurations
 * passed; the first difference is told with PE, row and column. */
#include "selftest.h"
#include "options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const selftest_preset presets[] = {
    {"tiny", 128, 16, 2},         {"dsv3", 7168, 256, 8},         {"dsv3-decode", 7168, 256, 8}, {"qwen3-30b", 2048, 128, 8},
    {"qwen3-235b", 4096, 128, 8}, {"gpt-oss-120b", 2880, 128, 4}, {"kimi-k2", 7168, 384, 8},     {"kimi-k3", 3584, 896, 16},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

static const selftest_preset *find_preset(const char *name)
{
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

static int run_all(selftest_plan *plan, const tool_names *fabrics, const tool_names *names, const tool_numbers *tokens, int top_k)
{
    uint64_t passed = 0, failed = 0;
    printf("%-16s %-13s %7s %8s %8s\n", "fabric", "preset", "tokens", "passed", "failed");
    for (size_t f = 0; f < fabrics->n; f++)
        for (size_t p = 0; p < names->n; p++)
            for (size_t t = 0; t < tokens->n; t++) {
                selftest_preset preset = *find_preset(names->text[p]);
                selftest_result result = {0};
                preset.top_k = top_k ? top_k : preset.top_k;
                plan->fabric = fabrics->text[f];
                selftest_ep_run(plan, &preset, (int)tokens->values[t], &result);
                printf("%-16s %-13s %7d %8llu %8llu\n", plan->fabric, preset.name, (int)tokens->values[t],
                       (unsigned long long)result.passed, (unsigned long long)result.failed);
                if (result.failed)
                    printf("  %s\n", result.first);
                fflush(stdout);
                passed += result.passed;
                failed += result.failed;
            }
    printf("%llu configurations passed, %llu failed (%d PEs, seed %llu)\n", (unsigned long long)passed,
           (unsigned long long)failed, plan->n_pes, (unsigned long long)plan->seed);
    return failed ? TOOL_EXIT_FAILED : TOOL_EXIT_OK;
}

int selftest_command(int argc, char **argv)
{
    static const char *allowed[N_PRESETS + 1];
    for (int i = 0; i < N_PRESETS; i++)
        allowed[i] = presets[i].name;
    uint64_t n_pes = 4, seed = 1, top_k = 0;
    bool quick = false;
    tool_names fabrics = {.n = 1, .text = {"local"}}, names = {.n = 1, .text = {"tiny"}};
    tool_numbers tokens = {.n = 9, .values = {0, 1, 2, 7, 32, 128, 129, 1024, 4096}};
    const tool_option options[] = {
        {"--fabric", TOOL_NAMES, &fabrics, "LIST", "fabrics: local, ofi:tcp, efa:model-p5en, efa:model-chaos, ... (local)", 0, 0,
         NULL},
        {"--preset", TOOL_NAMES, &names, "LIST", "shapes of models that people run (tiny)", 0, 0, allowed},
        {"--tokens", TOOL_NUMBERS, &tokens, "LIST", "tokens of PE 0; each further PE has one less (0,1,2,7,32,128,129,1024,4096)",
         0, 1 << 20, NULL},
        {"--top-k", TOOL_NUMBER, &top_k, "N", "lanes of a token instead of the preset's", 1, 16, NULL},
        {"--n-pes", TOOL_NUMBER, &n_pes, "N", "PEs, threads of this process (4)", 1, SELFTEST_MAX_PES, NULL},
        {"--quick", TOOL_FLAG, &quick, NULL, "each configuration with one number of rounding levels instead of three", 0, 0,
         NULL},
        {"--seed", TOOL_NUMBER, &seed, "N", "of the input (1)", 0, 0, NULL},
    };
    const tool_usage usage = {.command = "unfence selftest",
                              .synopsis = "ep [OPTIONS]",
                              .text = "Dispatches and combines MoE tokens in 144 configurations with one, two and three levels "
                                      "of rounding, and compares every\n"
                                      "byte with a model that is as simple as it can be. Experts are rounded up to a multiple of "
                                      "the PEs. A large preset with\n"
                                      "4096 tokens takes gigabytes and minutes: the model is slow.",
                              .options = options,
                              .n_options = sizeof options / sizeof *options};
    bool named = argc > 1 && strcmp(argv[1], "ep") == 0;
    switch (tool_options_parse(&usage, argc - 1 - named, argv + 1 + named)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    if (!named) {
        fprintf(stderr, "unfence selftest: of what? ep is known\n");
        return TOOL_EXIT_USAGE;
    }
    /* Many heaps in one address space. */
    setenv("UNFENCE_HEAP_MAX", "16G", 0);
    setenv("UNFENCE_SIGNALS", "4096", 0);
    selftest_plan plan = {.n_pes = (int)n_pes, .quick = quick, .seed = seed};
    return run_all(&plan, &fabrics, &names, &tokens, (int)top_k);
}
