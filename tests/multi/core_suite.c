/* core_suite.c - runs the suite's tests in a world and keeps the verdicts; helpers that all tests share.
 *
 * One world serves all tests as long as they pass. A failure ends that world for everybody (uf_world_abort carries the first
 * message to all PEs, PE 0 among them), and the next test gets a new one; PEs agree on the next test by exchanging numbers
 * through the new world, for one may have noticed the failure a test later than another. */
#include "multi/core_suite.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const suite_test *const all_tables[] = {
    suite_memory_tests,   suite_rma_tests,     suite_signal_tests, suite_order_tests,      suite_atomic_tests,
    suite_wait_tests,     suite_context_tests, suite_team_tests,   suite_collective_tests, suite_thread_tests,
    suite_argument_tests, suite_world_tests,   suite_queue_tests,
};

/* ---------------------------------------------------------------- checks */

/* What the library says when a break leaves it no other way (rule 16); any other end after a break is a failure. */
static bool ended_by_rail(const suite *s, const char *text)
{
    return s->place.rails_break && strstr(text, "rail ") &&
           strstr(text, "broke and only some of the signals in flight had arrived");
}

static void note_failure(suite *s, const char *file, int line, const char *text)
{
    const char *slash = strrchr(file, '/');
    if (s->failed)
        return;
    s->failed = true;
    s->secondary = s->world && uf_world_status(s->world) != UF_OK;
    s->by_rail = ended_by_rail(s, text) || (s->secondary && ended_by_rail(s, uf_error_message()));
    snprintf(s->message, sizeof s->message, "%s:%d: %s", slash ? slash + 1 : file, line, text);
    if (s->world) /* so that nobody waits for this PE's next signal */
        uf_world_abort(s->world, s->message);
}

bool suite_check(suite *s, bool holds, const char *file, int line, const char *format, ...)
{
    char text[400];
    va_list args;
    if (holds)
        return true;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note_failure(s, file, line, text);
    return false;
}

bool suite_check_ok(suite *s, int rc, const char *call, const char *file, int line)
{
    return rc == UF_OK || suite_check(s, false, file, line, "%s gives %s: %s", call, uf_error_name(rc), uf_error_message());
}

bool suite_check_code(suite *s, int rc, int wanted, const char *word, const char *call, const char *file, int line)
{
    if (rc != wanted)
        return suite_check(s, false, file, line, "%s gives %s and not %s: %s", call, uf_error_name(rc), uf_error_name(wanted),
                           rc == UF_OK ? "" : uf_error_message());
    return suite_check(s, strstr(uf_error_message(), word), file, line, "%s: the message does not name '%s': %s", call, word,
                       uf_error_message());
}

/* ---------------------------------------------------------------- helpers */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Eight bytes at a time: a suite that fills gigabytes slowly tests the filler. */
static uint64_t pattern(uint64_t word, uint64_t salt)
{
    return mix(word + salt * UINT64_C(0x9e3779b97f4a7c15)) | UINT64_C(0x0101010101010101);
}

void suite_fill(void *at, size_t bytes, uint64_t salt)
{
    unsigned char *p = at;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = pattern(i, salt);
        memcpy(p + i, &v, bytes - i < 8 ? bytes - i : 8);
    }
}

bool suite_verify(suite *s, const void *at, size_t bytes, uint64_t salt, const char *file, int line)
{
    const unsigned char *p = at;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = pattern(i, salt);
        size_t n = bytes - i < 8 ? bytes - i : 8;
        if (memcmp(p + i, &v, n) != 0)
            return suite_check(s, false, file, line, "PE %d: wrong data in bytes %zu to %zu of %zu (first is 0x%02x, not 0x%02x)",
                               s->pe, i, i + n, bytes, p[i], (unsigned)(v & 255));
    }
    return true;
}

uint64_t suite_random_start(const suite *s, int pe, uint64_t salt)
{
    return mix(s->place.seed * 1000003 + (uint64_t)pe * 7919 + salt);
}

uint64_t suite_random_next(uint64_t *state, uint64_t below)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*state) % below;
}

uint64_t suite_random(suite *s, uint64_t below)
{
    return suite_random_next(&s->random, below);
}

const size_t *suite_sizes(const suite *s, size_t *n)
{
    static const size_t full[] = {0, 1, 7, 8, 64, 4096, ((size_t)1 << 20) + 1, (size_t)8 << 20};
    static const size_t small[] = {0, 1, 7, 8, 64, 300, 4096, 20001};
    *n = 8;
    return s->place.small ? small : full;
}

size_t suite_scale(const suite *s, size_t full, size_t small)
{
    return s->place.small ? small : full;
}

uint32_t suite_window(const suite *s, uint32_t wanted)
{
    return s->place.max_window && wanted > s->place.max_window ? s->place.max_window : wanted;
}

bool suite_await(suite *s, const uint64_t *sig, uint64_t value, const char *file, int line)
{
    uf_world_options o = suite_world_options(s);
    int rc = uf_wait(s->world, sig, UF_GE, value, o.timeout_ns);
    return suite_check(s, rc == UF_OK, file, line, "wait for %llu gives %s: %s", (unsigned long long)value, uf_error_name(rc),
                       rc == UF_OK ? "" : uf_error_message());
}

void suite_yield(suite *s)
{
    (void)uf_wait(s->world, &s->words[SUITE_WORDS - 1], UF_NE, 0, 1000); /* no test writes that word: it times out */
}

void suite_settle(suite *s)
{
    CHECK_OK(s, uf_barrier(s->all));
}

bool suite_networked(suite *s, int pe)
{
    uf_path_info info = {.size = sizeof info};
    return CHECK_OK(s, uf_world_path(s->world, pe, &info)) && strcmp(info.fabric, "local") != 0 &&
           strcmp(info.fabric, "self") != 0;
}

/* ---------------------------------------------------------------- worlds and the arena of a test */

uf_world_options suite_world_options(const suite *s)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    if (s->place.group) {
        o.pe = s->place.pe;
        o.n_pes = s->place.n;
        o.group = s->place.group;
    }
    o.fabric = s->place.fabric;
    o.driver = s->place.driver ? &s->driver : NULL;
    o.fabric_ops = s->place.fabric_ops;
    o.fabric_arg = s->place.fabric_arg;
    o.heap_bytes = s->place.small ? (uint64_t)2 << 20 : (uint64_t)48 << 20;
    o.timeout_ns = s->place.single_thread ? 300000000u : UINT64_C(60000000000); /* virtual time runs fast */
    return o;
}

uf_world_options suite_other_world_options(const suite *s, int number)
{
    uf_world_options o = suite_world_options(s);
    o.fabric_arg = s->place.more_fabric_args[number];
    o.heap_bytes = (uint64_t)2 << 20;
    return o;
}

/* Without progress threads a PE that waits in one world must still serve its peers in the others. */
static void relax_from(suite *s, size_t first, uint32_t round)
{
    for (size_t i = first; i < sizeof s->open / sizeof s->open[0]; i++) {
        if (s->open[i])
            uf_progress(s->open[i]);
    }
    s->place.driver->relax(s->place.driver->arg, round);
}

static void relax_with_progress(void *arg, uint32_t round)
{
    relax_from(arg, 0, round);
}

static void relax_with_others(void *arg, uint32_t round)
{
    relax_from(arg, 1, round);
}

static uint64_t now_of_place(void *arg)
{
    const suite *s = arg;
    return s->place.driver->now(s->place.driver->arg);
}

bool suite_open_other(suite *s, int number, uf_world **w)
{
    uf_world_options o = suite_other_world_options(s, number);
    *w = NULL;
    if (!CHECK_OK(s, uf_world_create(&o, w)))
        return false;
    s->open[number + 1] = *w;
    return CHECK_EQ(s, uf_world_pe(*w), s->pe) && CHECK_EQ(s, uf_world_n_pes(*w), s->n);
}

int suite_close_other(suite *s, uf_world *w)
{
    for (size_t i = 0; i < sizeof s->open / sizeof s->open[0]; i++) {
        if (s->open[i] == w)
            s->open[i] = NULL;
    }
    return uf_world_destroy(w);
}

static int open_world(suite *s)
{
    if (s->place.driver)
        s->driver = (uf_driver){s, now_of_place, relax_with_progress, s->place.driver->threads};
    s->own = (uf_driver){s, now_of_place, relax_with_others, s->driver.threads};
    uf_world_options o = suite_world_options(s);
    o.driver = s->place.driver ? &s->own : NULL;
    int rc = uf_world_create(&o, &s->world);
    if (rc != UF_OK)
        return rc;
    s->open[0] = s->world;
    s->pe = uf_world_pe(s->world);
    s->n = uf_world_n_pes(s->world);
    s->left = (s->pe + s->n - 1) % s->n;
    s->right = (s->pe + 1) % s->n;
    s->ctx = uf_ctx_default(s->world);
    s->all = uf_team_world(s->world);
    s->room = suite_scale(s, (size_t)20 << 20, (size_t)192 << 10);
    void *p = NULL, *words = NULL;
    if ((rc = uf_malloc(s->world, s->room, 0, &p)) || (rc = uf_malloc(s->world, SUITE_WORDS * 8, 0, &words)) ||
        (rc = uf_signal_alloc(s->world, SUITE_SIGNALS, UF_SIGNAL_DEFAULT, &s->signals)))
        return rc;
    s->data = p;
    s->words = words;
    return s->out ? UF_OK : (s->out = malloc(s->room)) ? UF_OK : UF_ENOMEM;
}

static void close_world(suite *s)
{
    s->open[0] = NULL;
    uf_world_destroy(s->world); /* after a failure it says so, and frees everything all the same */
    s->world = NULL;
}

static void clear_arena(suite *s)
{
    memset(s->data, 0, s->room);
    memset(s->out, 0, s->room);
    memset(s->signals, 0, SUITE_SIGNALS * 8);
    memset(s->words, 0, SUITE_WORDS * 8);
    suite_settle(s);
}

/* ---------------------------------------------------------------- the run */

static const suite_test *test_at(size_t index)
{
    for (size_t t = 0; t < sizeof all_tables / sizeof all_tables[0]; t++) {
        for (const suite_test *test = all_tables[t]; test->name; test++) {
            if (index-- == 0)
                return test;
        }
    }
    return NULL;
}

void suite_list(void)
{
    const suite_test *test;
    for (size_t i = 0; (test = test_at(i)); i++) {
        printf("%s%s\n", test->name, test->needs & SUITE_NEEDS_LONG ? " (long)" : "");
    }
}

static bool wanted(const suite_test *test, const char *pattern)
{
    return !pattern || strstr(test->name, pattern);
}

static const char *reason_to_skip(const suite *s, const suite_test *test)
{
    if (s->n < test->min_pes)
        return "too few PEs";
    if ((test->needs & SUITE_NEEDS_LONG) && !s->place.long_run)
        return "only in the long run";
    if ((test->needs & SUITE_NEEDS_THREADS) && s->place.single_thread)
        return "needs threads";
    if ((test->needs & SUITE_NEEDS_PROGRESS) && (s->place.inline_progress || s->place.single_thread))
        return "needs a progress thread";
    if ((test->needs & SUITE_SELDOM) && s->place.seldom)
        return "not with every seed";
    return NULL;
}

/* Runs one test; false if it failed here or, as far as this PE knows, elsewhere. */
static bool run_one(suite *s, const suite_test *test)
{
    s->failed = s->secondary = s->by_rail = false;
    s->message[0] = 0;
    s->random = suite_random_start(s, s->pe, 0);
    clear_arena(s);
    if (!s->failed)
        test->run(s);
    if (!s->failed)
        suite_settle(s);
    return !s->failed;
}

/* After a failure: a new world, and the next test that nobody has begun. */
static int reopen(suite *s, uint64_t *next)
{
    close_world(s);
    int rc = open_world(s);
    if (rc != UF_OK)
        return rc;
    uint64_t *of_all = (uint64_t *)(void *)s->data;
    rc = uf_allgather(s->all, of_all, next, sizeof *next);
    for (int pe = 0; rc == UF_OK && pe < s->n; pe++) {
        *next = of_all[pe] > *next ? of_all[pe] : *next;
    }
    return rc;
}

static double seconds_since(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

static void report(const suite *s, const suite_test *test, bool passed, const struct timespec *start, bool verbose)
{
    if (passed && verbose && s->pe == 0) {
        printf("ok      %-58s %6.2f s\n", test->name, seconds_since(start));
    } else if (!passed && !s->by_rail && (s->pe == 0 || !s->secondary)) {
        fprintf(stderr, "FAILED  %s on PE %d of %d, seed %llu: %s\n", test->name, s->pe, s->n, (unsigned long long)s->place.seed,
                s->message);
    }
    fflush(stdout);
}

int suite_run(const suite_place *place, const char *pattern_of_names, bool verbose, suite_result *result)
{
    suite s = {.place = *place};
    const suite_test *test;
    *result = (suite_result){0};
    int rc = open_world(&s);
    for (uint64_t i = 0; rc == UF_OK && (test = test_at(i)); i++) {
        if (!wanted(test, pattern_of_names))
            continue;
        const char *skip = reason_to_skip(&s, test);
        if (skip) {
            result->skipped++;
            if (verbose && s.pe == 0)
                printf("skipped %-58s %s\n", test->name, skip);
            continue;
        }
        struct timespec start;
        clock_gettime(CLOCK_MONOTONIC, &start);
        bool passed = run_one(&s, test);
        result->ran++;
        report(&s, test, passed, &start, verbose);
        if (!passed) {
            result->by_rail += s.by_rail;
            result->failed += !s.by_rail;
            uint64_t next = i + 1;
            rc = reopen(&s, &next);
            i = next - 1;
        }
    }
    if (rc == UF_OK && s.world) {
        s.open[0] = NULL;
        rc = uf_world_destroy(s.world);
        s.world = NULL;
    }
    if (rc != UF_OK && ended_by_rail(&s, uf_error_message())) {
        result->by_rail++;
        close_world(&s);
        rc = UF_OK;
    }
    if (rc != UF_OK) {
        fprintf(stderr, "FAILED  the suite's world on PE %d, seed %llu: %s: %s\n", place->group ? place->pe : s.pe,
                (unsigned long long)place->seed, uf_error_name(rc), uf_error_message());
        close_world(&s);
    }
    free(s.out);
    return rc == UF_OK && result->failed == 0 ? 0 : 1;
}
