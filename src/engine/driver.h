/* driver.h - who gives the engine time and its turns.
 *
 * The engine is a step function and never reads a clock, starts a thread or sleeps by itself. Two drivers exist: threads in
 * real time (driver_threads.c, the default) and the deterministic one (driver_fibers.c): all PEs of a process are fibers of one
 * thread in virtual time, so that a seed reproduces a run exactly. */
#ifndef UF_ENGINE_DRIVER_H
#define UF_ENGINE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct uf_driver {
    void *arg;
    /* Nanoseconds of some monotonic clock. */
    uint64_t (*now)(void *arg);
    /* Called by a blocking call between two looks. `round` counts the looks that found nothing, from 0: a real-time driver
     * pauses, then yields; the deterministic one switches to another fiber and advances time when all wait. */
    void (*relax)(void *arg, uint32_t round);
    /* True: the engine may start a progress thread. False: progress happens in the callers' turns only. */
    bool threads;
} uf_driver;

/* The default driver: CLOCK_MONOTONIC; pause, then sched_yield. */
extern const uf_driver uf_driver_threads;

/* The deterministic driver. */
typedef struct uf_fibers uf_fibers;
/* `step_ns`: virtual time that passes when every fiber has had a turn without finishing. */
int uf_fibers_create(uint64_t seed, uint64_t step_ns, uf_fibers **fibers);
void uf_fibers_destroy(uf_fibers *fibers);
const uf_driver *uf_fibers_driver(uf_fibers *fibers);
/* Adds a fiber that will run main(arg). Before uf_fibers_run only. */
int uf_fibers_add(uf_fibers *fibers, void (*main)(void *arg), void *arg);
/* Something beside the fibers that has events in the same virtual time, such as a model of a network; at most 4, before uf_fibers_run.
 * `next` says when its next event is (UINT64_MAX: none), `run` makes all up to a time happen: whether a fiber could see any of it. When
 * every fiber has had its turn, time goes on by step_ns, or straight to the next event if that is later, and mostly further if nobody could
 * see what happened: but by 64 steps at most, so that deadlines are not jumped over by far. */
int uf_fibers_attach(uf_fibers *fibers, uint64_t (*next)(void *arg), bool (*run)(void *arg, uint64_t until), void *arg);
/* Runs until every fiber has returned: UF_OK; UF_ETIMEDOUT, naming those that have not, if virtual time passed `limit_ns`: what they
 * own is then lost. The order of turns follows the seed. */
int uf_fibers_run(uf_fibers *fibers, uint64_t limit_ns);
/* A hash of every choice and tick so far: two runs with the same trace went the same way. */
uint64_t uf_fibers_trace(const uf_fibers *fibers);
/* The fiber that is running, numbered as added; -1 outside of uf_fibers_run. */
int uf_fibers_current(const uf_fibers *fibers);

#endif
