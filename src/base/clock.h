/* clock.h - time as nanoseconds of CLOCK_MONOTONIC. Only drivers and tools call it: the engine is told the time. */
#ifndef UF_BASE_CLOCK_H
#define UF_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t uf_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* `timeout` nanoseconds from `now`, UINT64_MAX for never (and for sums that would wrap). */
static inline uint64_t uf_deadline(uint64_t now, uint64_t timeout)
{
    return timeout > UINT64_MAX - now ? UINT64_MAX : now + timeout;
}

#endif
