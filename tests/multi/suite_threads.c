/* suite_threads.c - any thread may call, and no PE has to call for others to get on. */
#include "multi/core_suite.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4 };

typedef struct worker {
    suite *s;
    uf_ctx *ctx;
    int number;
    uint64_t rounds;
    int rc; /* checks are the main thread's: a worker notes its first error */
    char why[200];
} worker;

static void note(worker *w, int rc)
{
    if (rc != UF_OK && w->rc == UF_OK) {
        w->rc = rc;
        strncpy(w->why, uf_error_message(), sizeof w->why - 1);
    }
}

static void run_workers(suite *s, void *(*main)(void *), uf_ctx *const ctx[THREADS], uint64_t rounds)
{
    pthread_t thread[THREADS];
    worker workers[THREADS];
    int started = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.s = s, .ctx = ctx[i], .number = i, .rounds = rounds};
        if (!CHECK(s, pthread_create(&thread[i], NULL, main, &workers[i]) == 0))
            break;
        started++;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(thread[i], NULL);
        suite_check(s, workers[i].rc == UF_OK, __FILE__, __LINE__, "thread %d got %s: %s", i, uf_error_name(workers[i].rc),
                    workers[i].why);
    }
}

/* Everything a thread may start, on its own words and its own piece of memory. */
static void *post_everything(void *arg)
{
    worker *w = arg;
    suite *s = w->s;
    unsigned char *at = s->data + (size_t)w->number * 1000, source[200], got[100];
    suite_fill(source, sizeof source, (uint64_t)w->number);
    for (uint64_t i = 0; i < w->rounds && w->rc == UF_OK; i++) {
        uint64_t old;
        note(w, uf_put_signal_nbi(w->ctx, at, source, 100, &s->signals[w->number], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        note(w, uf_put_signal(w->ctx, at + 100, source, 200, &s->signals[w->number], UF_SIGNAL_ADD, 100000, s->right, UF_STRONG));
        note(w, uf_signal(w->ctx, &s->signals[THREADS], UF_SIGNAL_ADD, 1, s->right, i % 2 ? UF_STRONG : UF_WEAK));
        if (i % 16 == 0)
            note(w, uf_atomic(w->ctx, UF_ATOMIC_FETCH_ADD, 8, &s->words[w->number], 1, 0, &old, s->right));
        if (i % 16 == 1)
            note(w, uf_get(w->ctx, got, s->data + s->room - 100, 100, s->right));
        if (i % 32 == 2)
            note(w, uf_fence(w->ctx));
        if (i % 64 == 3)
            note(w, uf_quiet(w->ctx));
    }
    note(w, uf_quiet(w->ctx));
    return NULL;
}

static void verify_workers(suite *s, uint64_t rounds)
{
    suite_settle(s);
    for (int t = 0; t < THREADS; t++) {
        CHECK_EQ(s, uf_signal_fetch(&s->signals[t]), rounds * 100001);
        CHECK_EQ(s, uf_signal_fetch(&s->words[t]), (rounds + 15) / 16);
        VERIFY(s, s->data + (size_t)t * 1000, 100, (uint64_t)t);
        VERIFY(s, s->data + (size_t)t * 1000 + 100, 200, (uint64_t)t);
    }
    CHECK_EQ(s, uf_signal_fetch(&s->signals[THREADS]), rounds * THREADS);
}

static void threads_share_one_context(suite *s)
{
    uf_ctx *ctx[THREADS] = {s->ctx, s->ctx, s->ctx, s->ctx};
    uint64_t rounds = suite_scale(s, 400, 60);
    run_workers(s, post_everything, ctx, rounds);
    verify_workers(s, rounds);
}

static void threads_have_contexts_of_their_own(suite *s)
{
    uf_ctx *ctx[THREADS] = {0};
    uint64_t rounds = suite_scale(s, 400, 60);
    for (int i = 0; i < THREADS; i++) {
        uf_ctx_options options = {.size = sizeof options, .flags = i % 2 ? UF_ORDERED : 0, .window = suite_window(s, 16)};
        CHECK_OK(s, uf_ctx_create(s->world, &options, &ctx[i]));
    }
    if (!s->failed) {
        run_workers(s, post_everything, ctx, rounds);
        verify_workers(s, rounds);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_OK(s, uf_ctx_destroy(ctx[i]));
    }
}

static void *open_and_close_contexts(void *arg)
{
    worker *w = arg;
    for (uint64_t i = 0; i < w->rounds && w->rc == UF_OK; i++) {
        uf_ctx *ctx = NULL;
        note(w, uf_ctx_create(w->s->world, NULL, &ctx));
        if (ctx) {
            note(w, uf_signal(ctx, &w->s->signals[0], UF_SIGNAL_ADD, 1000, w->s->right, UF_WEAK));
            note(w, uf_ctx_destroy(ctx));
        }
    }
    return NULL;
}

static void threads_open_and_close_contexts(suite *s)
{
    uf_ctx *ctx[THREADS] = {0};
    uint64_t rounds = suite_scale(s, 60, 10);
    run_workers(s, open_and_close_contexts, ctx, rounds);
    suite_settle(s);
    CHECK_EQ(s, uf_signal_fetch(&s->signals[0]), rounds * THREADS * 1000);
}

/* Each thread waits for a word of its own while the others wait for theirs; one posts. */
static void *ping_pong(void *arg)
{
    worker *w = arg;
    suite *s = w->s;
    uf_world_options o = suite_world_options(s);
    for (uint64_t i = 1; i <= w->rounds && w->rc == UF_OK; i++) {
        note(w, uf_signal(w->ctx, &s->signals[w->number], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
        note(w, uf_wait(s->world, &s->signals[w->number], UF_GE, i, o.timeout_ns));
    }
    return NULL;
}

static void threads_wait_side_by_side(suite *s)
{
    uf_ctx *ctx[THREADS] = {s->ctx, s->ctx, s->ctx, s->ctx};
    run_workers(s, ping_pong, ctx, suite_scale(s, 300, 40));
}

/* PE 0 computes and calls nothing until the others have finished everything that they have with it, completion included. */
static void a_target_that_computes_delays_nothing(suite *s)
{
    size_t bytes = suite_scale(s, 1 << 20, 5000);
    uint64_t old = 77, *done = &s->signals[0];
    suite_fill(s->data + s->room / 2, bytes, 9);
    suite_settle(s);
    if (s->pe == 0) {
        struct timespec start, now;
        volatile double work = 1;
        clock_gettime(CLOCK_MONOTONIC, &start);
        now = start; /* the clock only ends a run that has failed already */
        while (uf_signal_fetch(done) < (uint64_t)s->n - 1 && now.tv_sec - start.tv_sec < 30) {
            for (int i = 0; i < 10000; i++) {
                work = work * 1.0000001 + 1e-9;
            }
            clock_gettime(CLOCK_MONOTONIC, &now);
        }
        CHECK_EQ(s, uf_signal_fetch(done), s->n - 1);
    } else {
        suite_fill(s->out, bytes, (uint64_t)s->pe);
        CHECK_OK(s, uf_put_nbi(s->ctx, s->data + (size_t)s->pe * bytes, s->out, bytes, 0));
        CHECK_OK(s, uf_quiet(s->ctx));
        CHECK_OK(s, uf_get(s->ctx, s->out, s->data + s->room / 2, bytes, 0));
        VERIFY(s, s->out, bytes, 9);
        CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, &s->words[s->pe], 5, 0, &old, 0));
        CHECK_EQ(s, old, 0);
        CHECK_OK(s, uf_signal(s->ctx, &s->words[20], UF_SIGNAL_ADD, 1000, 0, UF_STRONG));
        CHECK_OK(s, uf_quiet(s->ctx));
        CHECK_OK(s, uf_signal(s->ctx, done, UF_SIGNAL_ADD, 1, 0, UF_STRONG));
        CHECK_OK(s, uf_flush(s->ctx));
    }
    suite_settle(s);
    for (int pe = 1; s->pe == 0 && pe < s->n; pe++) {
        VERIFY(s, s->data + (size_t)pe * bytes, bytes, (uint64_t)pe);
    }
}

const suite_test suite_thread_tests[] = {
    {"threads_share_one_context", threads_share_one_context, 1, SUITE_NEEDS_THREADS},
    {"threads_have_contexts_of_their_own", threads_have_contexts_of_their_own, 1, SUITE_NEEDS_THREADS},
    {"threads_open_and_close_contexts", threads_open_and_close_contexts, 1, SUITE_NEEDS_THREADS},
    {"threads_wait_side_by_side", threads_wait_side_by_side, 1, SUITE_NEEDS_THREADS},
    {"a_target_that_computes_delays_nothing", a_target_that_computes_delays_nothing, 2,
     SUITE_NEEDS_THREADS | SUITE_NEEDS_PROGRESS},
    {NULL, NULL, 0, 0},
};
