/* core_suite.h - the promises of include/unfence/unfence.h as tests that every PE of a world runs together.
 *
 * A test is a function that all PEs call at once. It knows nothing of the fabric, the driver or how the PEs came to be: that is
 * the runner's part (core_main.c), so the same promises are checked on every network, in threads, in processes and in
 * virtual time. Checks note the first failure and end the world for everybody, so that no PE waits for one that has given
 * up; they do not return or jump. A test must finish what it starts and must not sleep or measure time to be right. */
#ifndef UF_TESTS_CORE_SUITE_H
#define UF_TESTS_CORE_SUITE_H

#include "engine/driver.h"
#include "unfence/unfence.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SUITE_SIGNALS = 256, /* indexed signal words of each test */
    SUITE_WORDS = 64,    /* plain 8-byte words of each test, in ordinary symmetric memory */
};

typedef struct suite_place {
    int pe, n;
    uf_group *group;         /* NULL: from the environment */
    const uf_driver *driver; /* NULL: threads */
    const struct uf_fabric_ops *fabric_ops;
    void *fabric_arg;
    void *more_fabric_args[2]; /* for worlds that tests create beside the suite's own */
    const char *fabric;        /* NULL: from the environment */
    uint64_t seed;             /* the same on all PEs */
    uint32_t max_window;       /* UNFENCE_WINDOW where it is small; 0: as large as any test wants */
    bool small;                /* virtual time, sanitizers: fewer and smaller operations */
    bool inline_progress;      /* nobody moves data while a PE computes */
    bool single_thread;        /* PEs are fibers: no test may start a thread or spin */
    bool seldom;               /* leave SUITE_SELDOM out */
    bool long_run;             /* also what takes gigabytes or minutes */
    bool rails_break;          /* a test may end by a rail that broke, if the library says so (rule 16) */
} suite_place;

typedef struct suite {
    suite_place place;
    int pe, n, left, right;
    uf_world *world;
    uf_ctx *ctx;
    uf_team *all;
    uint64_t random; /* this PE's own sequence, see suite_random */

    /* Zero on every PE when a test begins. */
    unsigned char *data; /* symmetric, `room` bytes */
    unsigned char *out;  /* ordinary memory, `room` bytes: sources and get targets */
    size_t room;
    uint64_t *signals; /* SUITE_SIGNALS indexed words */
    uint64_t *words;   /* SUITE_WORDS words without an index */

    bool failed, secondary; /* secondary: another PE's failure had ended the world before */
    bool by_rail;           /* failed, and a broken rail explains it */
    char message[600];
    uf_driver driver;  /* place.driver with progress in all of `open` */
    uf_driver own;     /* of `world`, whose waits make its progress themselves: with progress in the others */
    uf_world *open[3]; /* the suite's world and those that a test has open beside it */
} suite;

typedef struct suite_test {
    const char *name; /* the promise */
    void (*run)(suite *s);
    int min_pes;
    unsigned needs; /* SUITE_NEEDS_* */
} suite_test;

enum {
    SUITE_NEEDS_THREADS = 1,  /* starts threads, or computes while others communicate with it */
    SUITE_NEEDS_LONG = 2,     /* only in the long run */
    SUITE_NEEDS_PROGRESS = 4, /* a progress thread */
    SUITE_SELDOM = 8,         /* depends little on what the seed decides: only with some seeds */
};

/* Each file's tests, ended by a NULL name. */
extern const suite_test suite_signal_tests[], suite_order_tests[], suite_rma_tests[], suite_memory_tests[], suite_atomic_tests[],
    suite_wait_tests[], suite_context_tests[], suite_team_tests[], suite_collective_tests[], suite_world_tests[],
    suite_argument_tests[], suite_thread_tests[], suite_queue_tests[];

/* ---------------------------------------------------------------- running */

typedef struct suite_result {
    int ran, skipped, failed;
    int by_rail; /* ended by a rail that broke, which place.rails_break allows; not among the failed */
} suite_result;

/* Every PE calls it with its own place. Runs all tests whose name contains `pattern` (NULL: all); PE 0 prints a line each if
 * `verbose`, and every failing PE its own message. 0 if all passed. */
int suite_run(const suite_place *place, const char *pattern, bool verbose, suite_result *result);
void suite_list(void);
/* Options of the suite's own world; and of another one beside it, number 0 or 1 of those that live at once. */
uf_world_options suite_world_options(const suite *s);
uf_world_options suite_other_world_options(const suite *s, int number);
bool suite_open_other(suite *s, int number, uf_world **w);
int suite_close_other(suite *s, uf_world *w); /* uf_world_destroy */

/* ---------------------------------------------------------------- checks: true if it holds */

bool suite_check(suite *s, bool holds, const char *file, int line, const char *format, ...) __attribute__((format(printf, 5, 6)));
bool suite_check_ok(suite *s, int rc, const char *call, const char *file, int line);
bool suite_check_code(suite *s, int rc, int wanted, const char *word, const char *call, const char *file, int line);

#define CHECK(s, condition) suite_check(s, condition, __FILE__, __LINE__, "%s", #condition)
#define CHECK_OK(s, call)   suite_check_ok(s, call, #call, __FILE__, __LINE__)
/* `call` fails with `code` and its message contains `word`. */
#define CHECK_CODE(s, call, code, word) suite_check_code(s, call, code, word, #call, __FILE__, __LINE__)
#define CHECK_EQ(s, got, wanted)                                                                                                 \
    suite_check(s, (uint64_t)(got) == (uint64_t)(wanted), __FILE__, __LINE__, "%s is %llu, not %llu", #got,                      \
                (unsigned long long)(uint64_t)(got), (unsigned long long)(uint64_t)(wanted))

/* ---------------------------------------------------------------- helpers */

/* Bytes that depend on place and salt and are never 0. */
void suite_fill(void *at, size_t bytes, uint64_t salt);
/* They are there, byte for byte; else a failure that says where they are not. */
bool suite_verify(suite *s, const void *at, size_t bytes, uint64_t salt, const char *file, int line);
#define VERIFY(s, at, bytes, salt) suite_verify(s, at, bytes, salt, __FILE__, __LINE__)
/* A number below `below`: a function of seed, PE and how many were drawn. suite_random_of: of any PE, so that all can compute what one did. */
uint64_t suite_random(suite *s, uint64_t below);
uint64_t suite_random_start(const suite *s, int pe, uint64_t salt);
uint64_t suite_random_next(uint64_t *state, uint64_t below);
/* The sizes worth trying here; *n of them. */
const size_t *suite_sizes(const suite *s, size_t *n);
/* `full` normally, `small` in small runs. */
size_t suite_scale(const suite *s, size_t full, size_t small);
/* `wanted` as a context's window, or the largest that this world has set memory aside for. */
uint32_t suite_window(const suite *s, uint32_t wanted);
/* Waits for `sig` >= value from anybody, long enough for anything that works. */
bool suite_await(suite *s, const uint64_t *sig, uint64_t value, const char *file, int line);
#define AWAIT(s, sig, value) suite_await(s, sig, value, __FILE__, __LINE__)
/* Lets others have a turn, where PEs are fibers, and makes progress: for loops of a test's own. */
void suite_yield(suite *s);
/* Quiet and barrier: afterwards everybody may read what was put. */
void suite_settle(suite *s);
/* True if operations to `pe` go over a network and not through mapped memory. */
bool suite_networked(suite *s, int pe);

#endif
