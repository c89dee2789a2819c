/* bench_common.c - what lanes share: the barrier outside of the library, errors, payload patterns, and the world of a run. */
#include "bench.h"
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STUCK_NS       (120 * 1000000000ull) /* a run that waits this long for one of its PEs will never end */
#define WORLD_TIMEOUT  (30 * 1000000000ull)
#define SPINS_ALONE    20000u
#define SPINS_TOGETHER 100u

/* -------------------------------------------------------------- failure */

static void store_failure(bench_pe *b, int code, const char *text)
{
    int none = 0;
    /* The first failure is the cause; those of other PEs only follow from it (case O1). */
    if (!atomic_compare_exchange_strong(&b->shared->failed, &none, b->pe + 1))
        return;
    b->shared->code = code;
    snprintf(b->shared->error, sizeof b->shared->error, "PE %d: %s", b->pe, text);
}

int bench_fail(bench_pe *b, const char *format, ...)
{
    char text[BENCH_ERROR - 64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    store_failure(b, 0, text);
    return -1;
}

int bench_fail_library(bench_pe *b, int code, const char *what)
{
    char text[BENCH_ERROR - 64];
    snprintf(text, sizeof text, "%s: %s: %.800s", what, uf_error_name(code), uf_error_message());
    store_failure(b, code, text);
    return -1;
}

/* -------------------------------------------------------------- waiting */

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int bench_relax(bench_pe *b, uint64_t round, uint64_t start)
{
    if (round < (b->alone ? SPINS_ALONE : SPINS_TOGETHER)) {
        pause_cpu();
        return 0;
    }
    if (atomic_load_explicit(&b->shared->failed, memory_order_relaxed) != 0)
        return -1;
    sched_yield();
    if ((round & 1023) == 0 && uf_clock_ns() - start > STUCK_NS)
        return bench_fail(b, "waited 120 s for another PE of the run");
    return 0;
}

int bench_sync_polling(bench_pe *b, int (*progress)(void *arg), void *arg)
{
    bench_shared *s = b->shared;
    uint32_t generation = atomic_load(&s->generation);
    if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)b->n_pes) {
        atomic_store(&s->arrived, 0);
        atomic_store(&s->generation, generation + 1);
        return atomic_load(&s->failed) != 0 ? -1 : 0;
    }
    uint64_t start = uf_clock_ns();
    for (uint64_t round = 0; atomic_load_explicit(&s->generation, memory_order_acquire) == generation; round++) {
        if (progress && progress(arg) != 0)
            return -1;
        if (bench_relax(b, round, start) != 0)
            return -1;
    }
    return 0;
}

int bench_sync(bench_pe *b)
{
    return bench_sync_polling(b, NULL, NULL);
}

/* -------------------------------------------------------------- the world of a run */

int bench_world_open(bench_pe *b, uint64_t heap_bytes)
{
    uf_world_options options = UF_WORLD_OPTIONS;
    options.pe = b->pe;
    options.n_pes = b->n_pes;
    options.root = b->root;
    options.fabric = b->fabric;
    options.strict = 1; /* numbers of another fabric under this one's name would be worse than none */
    options.heap_bytes = heap_bytes < (64u << 20) ? 64u << 20 : heap_bytes;
    options.timeout_ns = WORLD_TIMEOUT;
    int rc = uf_world_create(&options, &b->world);
    return rc != UF_OK ? bench_fail_library(b, rc, "uf_world_create") : 0;
}

int bench_row_add(bench_pe *b, const report_row *row)
{
    if (b->pe != 0)
        return 0;
    if (b->shared->n_rows == BENCH_MAX_ROWS)
        return bench_fail(b, "more than %d rows in one run; ask for fewer sizes or policies", BENCH_MAX_ROWS);
    b->shared->rows[b->shared->n_rows++] = *row;
    return 0;
}

/* -------------------------------------------------------------- payload */

static inline unsigned char pattern_byte(uint64_t slot, uint64_t at)
{
    return (unsigned char)(at * 31 + (at >> 8) * 7 + slot * 13 + 5);
}

void bench_pattern_fill(void *buffer, uint64_t bytes, uint64_t slot)
{
    unsigned char *p = buffer;
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = pattern_byte(slot, i);
}

void bench_stamp(void *buffer, uint64_t bytes, uint64_t number)
{
    memcpy(buffer, &number, bytes < sizeof number ? bytes : sizeof number);
    if (bytes >= 2 * sizeof number)
        memcpy((unsigned char *)buffer + bytes - sizeof number, &number, sizeof number);
}

bool bench_stamp_is(const void *buffer, uint64_t bytes, uint64_t number)
{
    /* The whole-word cases first and apart: the compiler turns them into one compare, which the 8-byte ping-pong needs. */
    if (bytes >= 2 * sizeof number && memcmp((const unsigned char *)buffer + bytes - sizeof number, &number, sizeof number) != 0)
        return false;
    if (bytes >= sizeof number)
        return memcmp(buffer, &number, sizeof number) == 0;
    return memcmp(buffer, &number, bytes) == 0;
}

int bench_pattern_check(bench_pe *b, const void *buffer, uint64_t bytes, uint64_t slot, uint64_t number)
{
    const unsigned char *p = buffer;
    if (!bench_stamp_is(buffer, bytes, number))
        return bench_fail(b, "wrong data: slot %llu of %llu bytes does not carry message number %llu at both ends",
                          (unsigned long long)slot, (unsigned long long)bytes, (unsigned long long)number);
    uint64_t end = bytes >= 16 ? bytes - 8 : 0;
    for (uint64_t i = 8; i < end; i++) {
        if (p[i] != pattern_byte(slot, i))
            return bench_fail(b, "wrong data: slot %llu of %llu bytes has 0x%02x at offset %llu, 0x%02x was sent",
                              (unsigned long long)slot, (unsigned long long)bytes, p[i], (unsigned long long)i,
                              pattern_byte(slot, i));
    }
    return 0;
}

uint64_t bench_window(const bench_options *options, uint64_t bytes)
{
    uint64_t stride = bytes ? (bytes + 63) & ~63ull : 64;
    if (stride > BENCH_WINDOW_BYTES)
        return 1;
    uint64_t fits = BENCH_WINDOW_BYTES / stride;
    return fits < options->window ? fits : options->window;
}
