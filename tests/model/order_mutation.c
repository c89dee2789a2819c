/* order_mutation.c - each rule of the protocol matters: with it switched off, the harness finds that the guarantee is broken which the rule
 * is there for, not only that something hangs or another rule trips over it.
 *
 * Built with src/order compiled a second time, with -DUF_ORDER_MUTATIONS. order_mutation [--seeds N] bounds the seeds tried for each. */
#include "order_harness.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    uint32_t bit;
    const char *breaks; /* how the violation begins */
    const char *what;
} mutants[] = {
    {UF_MUTANT_1_OPERAND, "G2", "M1a an operand too large for the immediate is sent in it"},
    {UF_MUTANT_1_SET, "G4", "M1b a SET is applied on arrival"},
    {UF_MUTANT_2_RANGE, "G1", "M2a a weak signal does not wait for its range"},
    {UF_MUTANT_2_CURSOR, "G3", "M2b a strong signal does not wait for the cursor"},
    {UF_MUTANT_2_REFUSED, "G9", "M2c a refused post keeps its sequence"},
    {UF_MUTANT_2_TWICE, "G2", "M2d a sequence seen twice is not dropped"},
    {UF_MUTANT_4_HOME, "G3", "M4 weak adds leave by any rail"},
    {UF_MUTANT_5_WINDOW, "G10", "M5 the window is not looked at"},
    {UF_MUTANT_6_STRONG, "G3", "M6 a strong signal does not wait for what has no sequence"},
    {UF_MUTANT_7_FENCE, "G5", "M7a puts and atomics ignore fences"},
    {UF_MUTANT_7_BARE, "G5", "M7b a bare signal after a fence stays weak"},
    {UF_MUTANT_8_IMM, "G8", "M8a immediates cost no credit"},
    {UF_MUTANT_8_MESSAGE, "G8", "M8b messages cost no credit"},
    {UF_MUTANT_8_RETURN, "G9", "M8c credits never come back"},
    {UF_MUTANT_9_TOTAL, "G6", "M9a receipts compare totals over both bits"},
    {UF_MUTANT_9_ARRIVED, "G6", "M9b receipts count what arrived, not what is applied"},
    {UF_MUTANT_10_LOST, "G9", "M10a a refused post counts as done"},
    {UF_MUTANT_10_HOG, "G12", "M10b one flow may take the whole queue"},
    {UF_MUTANT_11_OVERLAP, "G1", "M11 a put may overlap a WR of ours without CQE"},
    {UF_MUTANT_13_OWNERS, "G3", "M13 two owners take sequences of one lane"},
    {UF_MUTANT_16_REPLAY, "G9", "M16a WRs of a broken rail are not sent again"},
    {UF_MUTANT_16_DOUBT, "G2", "M16b an add in doubt is sent again without asking"},
};

/* "G1" does not begin "G10:". */
static bool begins(const char *violation, const char *guarantee)
{
    size_t n = strlen(guarantee);
    return strncmp(violation, guarantee, n) == 0 && (violation[n] == ':' || violation[n] == ',');
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 2 && strcmp(argv[1], "--seeds") == 0 ? strtoull(argv[2], NULL, 0) : 4000;
    uint32_t named = 0;
    int survived = 0;
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        run_result result = {.violation = ""};
        uint64_t seed = 0;
        named |= mutants[i].bit;
        bool found = false;
        while (seed < seeds && !found) {
            run_options options = {.seed = seed, .n_ops = 200, .mutations = mutants[i].bit};
            run_seed(&options, &result);
            found = begins(result.violation, mutants[i].breaks);
            seed++;
        }
        printf("%s: %s after %llu seeds: %.90s\n", mutants[i].what, found ? "found" : "SURVIVED", (unsigned long long)seed,
               result.violation);
        survived += !found;
    }
    if (named != UF_MUTANT_END - 1u) {
        printf("mutations.h has mutations that are not tried here\n");
        return 1;
    }
    return survived != 0;
}
