/* order_property.c - the guarantees of docs/ordering.md hold over many seeds, and the interesting states were all reached.
 *
 * order_property [--seeds N] [--first N] [--ops N] [--seed N]: --seed runs one with a trace. A failure prints its seed. */
#include "order_harness.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const seen_names[SEEN_KINDS] = {
    "window full",
    "wrap",
    "held strong",
    "held after a fence",
    "duplicate payload",
    "quiet racing newer signals",
    "credits exhausted",
    "message credits exhausted",
    "grant waited",
    "post refused",
    "answer waited",
    "overlapping put held",
    "rail broke",
    "WR replayed",
    "held at the receiver",
    "queue full",
    "peer stalled",
    "peer dead",
    "split put",
    "settled",
    "fetching atomic",
    "no immediates",
    "completion by receipt",
    "rail ended a flow",
    "lane closed and reopened",
};

static int run_one(uint64_t seed, uint32_t ops)
{
    run_options options = {.seed = seed, .n_ops = ops, .trace = true};
    run_result result;
    run_seed(&options, &result);
    printf("seed %llu: %u operations, %llu applied, %s\n", (unsigned long long)seed, result.n_ops,
           (unsigned long long)result.applied, result.violation[0] ? result.violation : "no violation");
    return result.violation[0] != 0;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 1000, first = 0;
    uint32_t ops = 200;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 0);
        if (strcmp(argv[i], "--seed") == 0)
            return run_one(value, ops);
        if (strcmp(argv[i], "--seeds") == 0)
            seeds = value;
        if (strcmp(argv[i], "--first") == 0)
            first = value;
        if (strcmp(argv[i], "--ops") == 0)
            ops = (uint32_t)value;
    }
    uint64_t reached[SEEN_KINDS] = {0}, operations = 0, applied = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        run_options options = {.seed = seed, .n_ops = ops};
        run_result result;
        run_seed(&options, &result);
        if (result.violation[0]) {
            fprintf(stderr, "seed %llu: %s\nrun again with: %s --seed %llu\n", (unsigned long long)seed, result.violation,
                    argv[0], (unsigned long long)seed);
            run_one(seed, ops);
            return 1;
        }
        for (uint32_t k = 0; k < SEEN_KINDS; k++)
            reached[k] += result.seen >> k & 1;
        operations += result.n_ops;
        applied += result.applied;
    }
    printf("%llu seeds, %llu operations, %llu signals and atomics applied\n", (unsigned long long)seeds,
           (unsigned long long)operations, (unsigned long long)applied);
    int missing = 0;
    for (uint32_t k = 0; k < SEEN_KINDS; k++) {
        bool enough = reached[k] * 100 >= seeds;
        printf("  %-28s %llu%s\n", seen_names[k], (unsigned long long)reached[k], enough ? "" : "  TOO SELDOM");
        missing += !enough && seeds >= 1000;
    }
    return missing != 0;
}
