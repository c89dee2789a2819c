/* processes.h - runs a function in N forked processes and collects what each one returned and said. For the multi-process tests.
 *
 * Children never run cmocka: they report by the shared table, and the parent asserts. A child that does not end within the
 * limit is killed and counts as failed, so that no test leaves a process behind. */
#ifndef UF_TESTS_MULTI_PROCESSES_H
#define UF_TESTS_MULTI_PROCESSES_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESSES_MAX 128

typedef struct process_report {
    int code; /* set by the child: a UF_E* code or whatever the test likes */
    int pe;   /* whose news it was */
    uint64_t value;
    char text[1024]; /* the sentence */
    int status;      /* of waitpid, set by the parent */
} process_report;

typedef struct process_table {
    _Atomic int flags[8]; /* conditions that children wait for */
    char root[64];
    process_report report[PROCESSES_MAX];
} process_table;

/* Shared by the children that are started later. */
process_table *processes_table(void);
void processes_table_free(process_table *table);
/* A port of 127.0.0.1 that nobody else gets until it is closed: "127.0.0.1:port" in table->root. Returns the descriptor that keeps it. */
int processes_reserve(process_table *table);
/* Forks n children that run body(table, pe) and end with its value; waits for all. The number of those that did not exit with 0. */
int processes_run(process_table *table, int n, int (*body)(process_table *table, int pe));
/* Spins (yielding) until *flag is at least `value`; 0, or -1 after a generous limit. */
int processes_await(_Atomic int *flag, int value);

#endif
