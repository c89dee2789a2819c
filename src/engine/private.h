/* private.h - what the files of this room share. */
#ifndef UF_ENGINE_PRIVATE_H
#define UF_ENGINE_PRIVATE_H

#include "engine/engine.h"
#include "topo/topo.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>

struct uf_engine {
    _Alignas(64) _Atomic uint32_t locked; /* guards order, fabric and the fields below it */
    uf_order *order;                      /* NULL without a fabric */
    uf_fabric *fabric;
    uint32_t n_rails;
    uint64_t eagain;
    int broken;                               /* the error that ended the fabric */
    bool unsound;                             /* the fabric or a peer did what none does; told once */
    bool unrung;                              /* WRs were posted whose doorbell has not rung */
    struct uf_command_queue *queues;          /* a ring of them; the one that is served first next time */
    uint32_t next_queue;                      /* the next one's number */
    uf_engine_rail rails[UF_ORDER_MAX_RAILS]; /* counted */

    uf_engine_host host;
    const uf_driver *driver;
    int pe, n_pes;
    uint32_t local_pes;
    _Atomic uint32_t n_queues; /* read without the lock: is there anything to step for? */

    _Alignas(64) _Atomic uint64_t inline_steps; /* steps taken by callers: the thread keeps away while it grows */
    _Atomic bool stop;
    bool want_thread, thread_runs;
    bool want_near; /* the thread stays near its NIC (near.c) */
    int wake[2];    /* pipe that ends the thread's sleep */
    pthread_t thread;
};

void uf_engine_lock(uf_engine *e);
void uf_engine_unlock(uf_engine *e);
static inline bool uf_engine_has_queues(uf_engine *e)
{
    return atomic_load_explicit(&e->n_queues, memory_order_relaxed) != 0;
}

int uf_engine_thread_step(uf_engine *e);
bool uf_engine_thread_arm(uf_engine *e);
int uf_engine_thread_start(uf_engine *e);
void uf_engine_thread_stop(uf_engine *e);
/* The cores that the thread may use and that are near; false if there is nothing to gain, or not enough of it. Pure. */
bool uf_engine_near_cores(const uf_topo_cpus *nic, const cpu_set_t *allowed, uint32_t local_pes, cpu_set_t *near);
/* Keeps the calling thread on the cores near a NIC, found below `root`; true if it did (near.c). */
bool uf_engine_stay_near(const char *root, const char *device, uint32_t local_pes);
/* The protocol's sizes for a fabric: also for `unfence info`. */
int uf_engine_order_config(const uf_engine_params *p, uf_order_config *c);

#endif
