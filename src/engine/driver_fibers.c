/* driver_fibers.c - the deterministic driver: every PE is a fiber of one thread, in virtual time.
 *
 * A fiber runs until it calls relax (through any blocking call of the library); then the scheduler, which lives on the stack
 * of uf_fibers_run, picks the next one by a seeded random number. Time stands still but for one rule: when every fiber has
 * had a turn since the last tick, it advances by step_ns (or to the next event of what is attached). So a run is a pure function of the seed and of what the
 * fibers do, and a seed that fails can be run again under a debugger. The trace is a hash of all choices and ticks: two
 * runs with equal traces went the same way.
 * It must never read a clock or let a fiber run on two threads. The sanitizers are told of each switch, since they follow
 * stacks: without it AddressSanitizer reports overflows that are none and ThreadSanitizer loses all order. */
#undef _FORTIFY_SOURCE /* whose longjmp refuses another stack */
#include "base/error.h"
#include "engine/driver.h"
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBERS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FIBERS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FIBERS_TSAN 1
#endif
#endif

#if defined(FIBERS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(FIBERS_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

enum { ATTACHED_MAX = 4, JUMP_STEPS = 64 };
#define STACK_BYTES ((size_t)1 << 20) /* touched pages only cost memory; sanitizers need the room */

/* Where a stack stands that is not running. */
typedef struct stand {
    ucontext_t context; /* its beginning; under sanitizers always */
    jmp_buf here;
    bool left; /* `here` is set */
} stand;

typedef struct fiber {
    stand stand;
    void (*main)(void *arg);
    void *arg;
    unsigned char *mapping; /* guard page, then the stack */
    bool returned, had_turn;
    void *asan_fake_stack;
    void *tsan_fiber;
} fiber;

/* What shares the fibers' time (uf_fibers_attach). */
typedef struct attached {
    uint64_t (*next)(void *arg);
    bool (*run)(void *arg, uint64_t until);
    void *arg;
} attached;

struct uf_fibers {
    uf_driver driver;
    attached attached[ATTACHED_MAX];
    size_t n_attached;
    uint64_t now, step_ns;
    uint64_t random, trace;
    fiber **fibers;
    size_t n, waiting; /* waiting: fibers that have not returned and had no turn in this tick */
    fiber *current;    /* NULL: the scheduler runs */
    stand scheduler;
    void *scheduler_fake_stack;
    const void *scheduler_stack; /* as AddressSanitizer knows it, told at a fiber's first turn */
    size_t scheduler_stack_bytes;
    void *scheduler_tsan;
};

/* ---------------------------------------------------------------- choices */

/* splitmix64: every seed, 0 and neighbours included, gives an unrelated sequence. */
static uint64_t next_random(uf_fibers *f)
{
    uint64_t z = f->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void trace_add(uf_fibers *f, uint64_t value)
{
    f->trace = (f->trace ^ value) * UINT64_C(0x100000001b3);
    f->trace ^= f->trace >> 29;
}

/* ---------------------------------------------------------------- time */

int uf_fibers_attach(uf_fibers *f, uint64_t (*next)(void *arg), bool (*run)(void *arg, uint64_t until), void *arg)
{
    if (f->n_attached == ATTACHED_MAX) {
        return uf_fail(UF_EINVAL, "uf_fibers_attach: %d things share this driver's time already", ATTACHED_MAX);
    }
    f->attached[f->n_attached++] = (attached){next, run, arg};
    return UF_OK;
}

static uint64_t next_event(const uf_fibers *f)
{
    uint64_t event = UINT64_MAX;
    for (size_t i = 0; i < f->n_attached; i++) {
        uint64_t next = f->attached[i].next(f->attached[i].arg);
        event = next < event ? next : event;
    }
    return event;
}

/* Most events of a network are invisible to those who poll, and a turn of everybody costs a hundred times as much as an event. But
 * one in four is stopped at, so that what the fibers do of their own accord still falls between any two of them. */
static void advance(uf_fibers *f)
{
    uint64_t most = f->now + JUMP_STEPS * f->step_ns;
    for (;;) {
        uint64_t event = next_event(f), step = f->now + f->step_ns;
        bool seen = event == UINT64_MAX;
        f->now = seen || event < step ? step : event < most ? event : most;
        for (size_t i = 0; i < f->n_attached; i++) {
            seen |= f->attached[i].run(f->attached[i].arg, f->now);
        }
        if (seen || f->now >= most || next_random(f) % 4 == 0) {
            return;
        }
    }
}

/* ---------------------------------------------------------------- switching */

/* Leaves one stack for another; returns when somebody comes back. swapcontext alone would do, but makes a system call for the signal
 * mask each time, which was half of a run's time. Sanitizers know swapcontext, and take such a jump for an unwinding. */
static void __attribute__((noinline)) hop(stand *from, stand *to)
{
#if defined(FIBERS_ASAN) || defined(FIBERS_TSAN)
    swapcontext(&from->context, &to->context);
#else
    if (_setjmp(from->here))
        return;
    from->left = true;
    if (to->left)
        _longjmp(to->here, 1);
    setcontext(&to->context);
#endif
}

static void switch_to_fiber(uf_fibers *f, fiber *to)
{
    f->current = to;
#if defined(FIBERS_ASAN)
    __sanitizer_start_switch_fiber(&f->scheduler_fake_stack, to->mapping + (size_t)sysconf(_SC_PAGESIZE), STACK_BYTES);
#endif
#if defined(FIBERS_TSAN)
    __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
    hop(&f->scheduler, &to->stand);
#if defined(FIBERS_ASAN)
    __sanitizer_finish_switch_fiber(f->scheduler_fake_stack, NULL, NULL);
#endif
    f->current = NULL;
}

static void enter_fiber(uf_fibers *f, fiber *self)
{
#if defined(FIBERS_ASAN)
    __sanitizer_finish_switch_fiber(self->asan_fake_stack, &f->scheduler_stack, &f->scheduler_stack_bytes);
#else
    (void)f;
    (void)self;
#endif
}

/* `last`: the fiber will not run again. */
static void leave_fiber(uf_fibers *f, fiber *self, bool last)
{
#if defined(FIBERS_ASAN)
    __sanitizer_start_switch_fiber(last ? NULL : &self->asan_fake_stack, f->scheduler_stack, f->scheduler_stack_bytes);
#endif
#if defined(FIBERS_TSAN)
    __tsan_switch_to_fiber(f->scheduler_tsan, 0);
#endif
    (void)last;
    hop(&self->stand, &f->scheduler);
    enter_fiber(f, self);
}

/* makecontext passes ints only, so the pointer comes in two halves. */
static void fiber_start(unsigned high, unsigned low)
{
    uf_fibers *f = (uf_fibers *)(uintptr_t)((uint64_t)high << 32 | low);
    fiber *self = f->current;
    enter_fiber(f, self);
    self->main(self->arg);
    self->returned = true;
    leave_fiber(f, self, true);
}

/* ---------------------------------------------------------------- the driver's table */

static uint64_t fibers_now(void *arg)
{
    return ((uf_fibers *)arg)->now;
}

static void fibers_relax(void *arg, uint32_t round)
{
    uf_fibers *f = arg;
    (void)round;
    if (f->current) {
        leave_fiber(f, f->current, false);
    } else {
        advance(f); /* called outside of any fiber: nobody else could have a turn */
    }
}

const uf_driver *uf_fibers_driver(uf_fibers *fibers)
{
    return &fibers->driver;
}

uint64_t uf_fibers_trace(const uf_fibers *fibers)
{
    return fibers->trace;
}

int uf_fibers_current(const uf_fibers *fibers)
{
    for (size_t i = 0; i < fibers->n; i++) {
        if (fibers->fibers[i] == fibers->current) {
            return (int)i;
        }
    }
    return -1;
}

/* ---------------------------------------------------------------- life */

int uf_fibers_create(uint64_t seed, uint64_t step_ns, uf_fibers **out)
{
    if (!out || step_ns == 0) {
        return uf_fail(UF_EINVAL, "uf_fibers_create: step_ns must not be 0: virtual time would stand still for ever");
    }
    uf_fibers *f = calloc(1, sizeof *f);
    if (!f) {
        return uf_fail(UF_ENOMEM, "deterministic driver: no memory for %zu bytes", sizeof *f);
    }
    f->driver = (uf_driver){f, fibers_now, fibers_relax, false};
    f->step_ns = step_ns;
    f->random = seed;
    f->trace = UINT64_C(0xcbf29ce484222325);
    *out = f;
    return UF_OK;
}

static void fiber_free(fiber *one)
{
    if (!one) {
        return;
    }
#if defined(FIBERS_TSAN)
    if (one->tsan_fiber) {
        __tsan_destroy_fiber(one->tsan_fiber);
    }
#endif
    if (one->mapping) {
#if defined(FIBERS_ASAN)
        /* A fiber that never returned leaves its frames' red zones behind for whoever maps these addresses next. */
        __asan_unpoison_memory_region(one->mapping + (size_t)sysconf(_SC_PAGESIZE), STACK_BYTES);
#endif
        munmap(one->mapping, STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE));
    }
    free(one);
}

void uf_fibers_destroy(uf_fibers *f)
{
    if (!f) {
        return;
    }
    for (size_t i = 0; i < f->n; i++) {
        fiber_free(f->fibers[i]);
    }
    free(f->fibers);
    free(f);
}

/* The page below the stack stays without access, so that an overflow stops at once instead of spoiling a neighbour. */
static int map_stack(fiber *one)
{
    size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, guard + STACK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return uf_fail_errno(UF_ENOMEM, errno, "deterministic driver: no address space for a stack of %zu bytes", STACK_BYTES);
    }
    one->mapping = p;
    if (mprotect(one->mapping + guard, STACK_BYTES, PROT_READ | PROT_WRITE)) {
        return uf_fail_errno(UF_ENOMEM, errno, "deterministic driver: no memory for a stack of %zu bytes", STACK_BYTES);
    }
    return UF_OK;
}

/* On its own, since getcontext may return twice as far as the compiler knows. */
static int prepare_context(uf_fibers *f, fiber *one)
{
    if (getcontext(&one->stand.context)) {
        return uf_fail_errno(UF_ESYSTEM, errno, "deterministic driver: getcontext failed");
    }
    uint64_t self = (uint64_t)(uintptr_t)f;
    one->stand.context.uc_stack.ss_sp = one->mapping + (size_t)sysconf(_SC_PAGESIZE);
    one->stand.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&one->stand.context, (void (*)(void))fiber_start, 2, (unsigned)(self >> 32), (unsigned)self);
#if defined(FIBERS_ASAN)
    /* It would clear its shadow of the whole stack, by system calls, at each switch. It is told of switches, and swapcontext
     * has no use for the size. */
    one->stand.context.uc_stack.ss_size = 0;
#endif
    return UF_OK;
}

int uf_fibers_add(uf_fibers *f, void (*main)(void *arg), void *arg)
{
    if (f->current) {
        return uf_fail(UF_EINVAL, "uf_fibers_add: called from a fiber; fibers are added before uf_fibers_run only");
    }
    fiber **more = realloc(f->fibers, (f->n + 1) * sizeof *more);
    if (!more) {
        return uf_fail(UF_ENOMEM, "deterministic driver: no memory for fiber %zu", f->n);
    }
    f->fibers = more;
    fiber *one = calloc(1, sizeof *one);
    if (!one) {
        return uf_fail(UF_ENOMEM, "deterministic driver: no memory for fiber %zu", f->n);
    }
    int rc = map_stack(one);
    if (rc == UF_OK) {
        rc = prepare_context(f, one);
    }
    if (rc != UF_OK) {
        fiber_free(one);
        return rc;
    }
    one->main = main;
    one->arg = arg;
#if defined(FIBERS_TSAN)
    one->tsan_fiber = __tsan_create_fiber(0);
#endif
    f->fibers[f->n++] = one;
    return UF_OK;
}

/* ---------------------------------------------------------------- the scheduler */

/* Opens a tick: everybody still running owes one turn. Returns how many that are. */
static size_t open_tick(uf_fibers *f)
{
    f->waiting = 0;
    for (size_t i = 0; i < f->n; i++) {
        f->fibers[i]->had_turn = f->fibers[i]->returned;
        f->waiting += !f->fibers[i]->returned;
    }
    return f->waiting;
}

/* Any fiber that has not returned may be next, now and then also one that had its turn: so one may run far ahead of another, as PEs do.
 * Not always any: waiting for the last one's luck was half of all turns. */
static size_t choose(uf_fibers *f)
{
    bool again = next_random(f) % 4 == 0;
    size_t open = 0, index = 0;
    for (size_t i = 0; i < f->n; i++) {
        open += again ? !f->fibers[i]->returned : !f->fibers[i]->had_turn;
    }
    // cppcheck-suppress zerodiv ; only called while somebody owes a turn
    size_t pick = (size_t)(next_random(f) % open);
    for (;; index++) {
        bool may = again ? !f->fibers[index]->returned : !f->fibers[index]->had_turn;
        if (may && pick-- == 0) {
            return index;
        }
    }
}

static int limit_passed(uf_fibers *f, uint64_t limit_ns)
{
    char names[256];
    size_t used = 0;
    names[0] = 0;
    for (size_t i = 0; i < f->n && used < sizeof names - 12; i++) {
        if (!f->fibers[i]->returned) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %zu", i);
        }
    }
    return uf_fail(UF_ETIMEDOUT, "deterministic driver: virtual time passed %llu ns and these fibers have not returned:%s",
                   (unsigned long long)limit_ns, names);
}

int uf_fibers_run(uf_fibers *f, uint64_t limit_ns)
{
#if defined(FIBERS_TSAN)
    f->scheduler_tsan = __tsan_get_current_fiber();
#endif
    while (open_tick(f) > 0) {
        while (f->waiting > 0) {
            size_t index = choose(f);
            fiber *next = f->fibers[index];
            trace_add(f, index);
            switch_to_fiber(f, next);
            if (!next->had_turn) {
                next->had_turn = true;
                f->waiting--;
            }
        }
        advance(f);
        trace_add(f, f->now);
        if (f->now > limit_ns && open_tick(f) > 0) {
            return limit_passed(f, limit_ns);
        }
    }
    return UF_OK;
}
