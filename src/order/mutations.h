/* mutations.h - rules of docs/ordering.md that a test can switch off, to prove that the harness would notice.
 *
 * Only a second build of this room, made for tests/model with -DUF_ORDER_MUTATIONS, has the branches; in the library
 * uf_order_mutant is the constant false and they vanish. Each mutation is the mistake that its rule exists to prevent. */
#ifndef UF_ORDER_MUTATIONS_H
#define UF_ORDER_MUTATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* One bit each of uf_order_config.mutations. The number is the rule of section "Rules" that is broken. */
typedef enum uf_order_mutation {
    UF_MUTANT_1_OPERAND = 1u << 0,   /* an operand too large for the immediate is sent in it all the same */
    UF_MUTANT_1_SET = 1u << 1,       /* a SET without a sequence: applied on arrival, not by the cursor */
    UF_MUTANT_2_RANGE = 1u << 2,     /* a weak signal is applied before its range has arrived */
    UF_MUTANT_2_CURSOR = 1u << 3,    /* a strong signal is applied by its range, not by the cursor */
    UF_MUTANT_2_REFUSED = 1u << 4,   /* a refused post keeps the sequence that it took */
    UF_MUTANT_2_TWICE = 1u << 5,     /* a sequence seen twice is not dropped */
    UF_MUTANT_4_HOME = 1u << 6,      /* weak adds leave by any rail, not only by the home rail */
    UF_MUTANT_5_WINDOW = 1u << 7,    /* sequences are taken without looking at the window */
    UF_MUTANT_6_STRONG = 1u << 8,    /* a strong signal does not wait for what has no sequence */
    UF_MUTANT_7_FENCE = 1u << 9,     /* puts and atomics ignore fences */
    UF_MUTANT_7_BARE = 1u << 10,     /* a bare signal after a fence stays weak */
    UF_MUTANT_8_IMM = 1u << 11,      /* immediates are posted without credits */
    UF_MUTANT_8_MESSAGE = 1u << 12,  /* messages are posted without credits */
    UF_MUTANT_8_RETURN = 1u << 13,   /* credits never come back */
    UF_MUTANT_9_TOTAL = 1u << 14,    /* one total for both receipt bits: newer signals stand in for older ones */
    UF_MUTANT_9_ARRIVED = 1u << 15,  /* receipts count what arrived, not what is applied */
    UF_MUTANT_10_LOST = 1u << 16,    /* a refused post counts as done */
    UF_MUTANT_10_HOG = 1u << 17,     /* one flow may take every place of the shared queue */
    UF_MUTANT_11_OVERLAP = 1u << 18, /* a put may overlap one of our WRs without CQE */
    UF_MUTANT_13_OWNERS = 1u << 19,  /* held signals take sequences from a counter of their own */
    UF_MUTANT_16_REPLAY = 1u << 20,  /* WRs of a broken rail are not sent again */
    UF_MUTANT_16_DOUBT = 1u << 21,   /* an immediate in doubt is sent again without asking for the counts */
    UF_MUTANT_END = 1u << 22,
} uf_order_mutation;

#ifdef UF_ORDER_MUTATIONS
#define UF_ORDER_HAS_MUTATIONS 1
#else
#define UF_ORDER_HAS_MUTATIONS 0
#endif

#endif
