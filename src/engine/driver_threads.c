/* driver_threads.c - the default driver: real time, and threads that the system schedules.
 *
 * What a waiting thread does between two looks decides two things that pull against each other: how soon it sees what it
 * waits for, and how much of the machine it takes from those who would bring it. So a wait goes through three stages:
 *   1. pause: the answer of a peer that runs on a core of its own comes within microseconds;
 *   2. yield now and then: on a free core that costs next to nothing, on a shared one it lets the others run;
 *   3. nap: after a long wait, and much sooner where yields show that the core is shared (8 PEs on 2 cores).
 * It keeps no state: the round number says how long the wait has lasted, and the time one yield took says whether somebody
 * else wanted the core. It must never be the reason that a ping-pong between two free cores is late. */
#include "base/clock.h"
#include "engine/driver.h"
#include <sched.h>
#include <stddef.h>
#include <time.h>

enum {
    ROUNDS_PER_YIELD = 32,    /* about 2 us of pauses and looks */
    ROUNDS_SHARED_NAP = 1024, /* with yields of SHARED_YIELD_NS or more in between: at least 150 us */
    ROUNDS_NAP = 20000,       /* milliseconds of looks that found nothing */
    SHARED_YIELD_NS = 5000,   /* a yield that nobody uses returns in well under a microsecond */
    NAP_LEAST_NS = 5000,
    NAP_MOST_NS = 50000,
};

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static uint64_t threads_now(void *arg)
{
    (void)arg;
    return uf_clock_ns();
}

/* True if another thread ran meanwhile. */
static int yield_core(void)
{
    uint64_t before = uf_clock_ns();
    sched_yield();
    return uf_clock_ns() - before >= SHARED_YIELD_NS;
}

/* Grows with the rounds past `from`, so that what comes soon after is still seen soon. */
static void nap(uint32_t rounds_past)
{
    uint64_t ns = NAP_LEAST_NS + (uint64_t)rounds_past * 100;
    struct timespec t = {0, (long)(ns < NAP_MOST_NS ? ns : NAP_MOST_NS)};
    nanosleep(&t, NULL); /* a signal may cut it short: the caller looks again in any case */
}

static void threads_relax(void *arg, uint32_t round)
{
    (void)arg;
    if (round >= ROUNDS_NAP) {
        nap(round - ROUNDS_NAP);
        return;
    }
    if (round % ROUNDS_PER_YIELD != ROUNDS_PER_YIELD - 1) {
        pause_core();
        return;
    }
    if (yield_core() && round >= ROUNDS_SHARED_NAP) {
        nap(round - ROUNDS_SHARED_NAP);
    }
}

const uf_driver uf_driver_threads = {NULL, threads_now, threads_relax, true};
