/* world_run.c - see world_run.h. */
#include "support/world_run.h"
#include "engine/driver.h"
#include "support/shuffle_fabric.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PES = 64 };

typedef struct runner {
    const world_run *run;
    void (*body)(world_pe *me);
    uf_group *group;
    const uf_driver *driver;
    uf_shuffle_wire *wire;
    int pe;
} runner;

static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
static char failure[2048];

static void note(int pe, const char *file, int line, const char *what)
{
    pthread_mutex_lock(&failure_lock);
    if (!failure[0])
        snprintf(failure, sizeof failure, "%s:%d: PE %d: %s (last error: %s)", file, line, pe, what, uf_error_message());
    pthread_mutex_unlock(&failure_lock);
}

bool world_run_failed(const world_pe *me, const char *file, int line, const char *what)
{
    note(me->pe, file, line, what);
    uf_world_abort(me->world, "a check of the test failed");
    return false;
}

static void run_pe(void *arg)
{
    const runner *r = arg;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = r->pe;
    o.n_pes = r->run->n_pes;
    o.group = r->group;
    o.timeout_ns = r->run->timeout_ns ? r->run->timeout_ns : 60000000000u;
    o.heap_bytes = r->run->heap_bytes ? r->run->heap_bytes : 8u << 20;
    o.driver = r->driver;
    if (r->wire) {
        o.fabric_ops = r->run->ops ? r->run->ops : &uf_shuffle_fabric;
        o.fabric_arg = r->wire;
    } else
        o.fabric = r->run->fabric;
    world_pe me = {.pe = r->pe, .n = r->run->n_pes, .run = r->run, .wire = r->wire, .arg = r->run->arg};
    if (uf_world_create(&o, &me.world) != UF_OK) {
        note(r->pe, __FILE__, __LINE__, "uf_world_create");
        return;
    }
    r->body(&me);
    uf_world_destroy(me.world);
}

static void *thread_main(void *arg)
{
    run_pe(arg);
    return NULL;
}

static void run_threads(runner *runners, int n)
{
    pthread_t threads[MAX_PES];
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &runners[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void run_fibers(runner *runners, int n, uint64_t seed)
{
    uf_fibers *fibers;
    assert_int_equal(uf_fibers_create(seed, 1000, &fibers), UF_OK);
    for (int i = 0; i < n; i++) {
        runners[i].driver = uf_fibers_driver(fibers);
        assert_int_equal(uf_fibers_add(fibers, run_pe, &runners[i]), UF_OK);
    }
    if (uf_fibers_run(fibers, UINT64_MAX) != UF_OK)
        note(-1, __FILE__, __LINE__, "uf_fibers_run");
    uf_fibers_destroy(fibers);
}

static uf_shuffle_wire *make_wire(const world_run *run)
{
    uf_shuffle_knobs knobs;
    uf_shuffle_wire *wire;
    assert_int_equal(uf_shuffle_profile(strchr(run->fabric, ':') + 1, run->seed, run->n_pes, &knobs), UF_OK);
    knobs.n_rails = run->n_rails ? run->n_rails : knobs.n_rails;
    assert_int_equal(uf_shuffle_create(&knobs, &wire), UF_OK);
    return wire;
}

void world_run_all(const world_run *run, void (*body)(world_pe *me))
{
    runner runners[MAX_PES];
    bool shuffle = strncmp(run->fabric, "shuffle:", 8) == 0;
    uf_group *group;
    failure[0] = '\0';
    assert_true(run->n_pes <= MAX_PES);
    assert_int_equal(uf_group_create(run->n_pes, &group), UF_OK);
    uf_shuffle_wire *wire = shuffle ? make_wire(run) : NULL;
    for (int i = 0; i < run->n_pes; i++)
        runners[i] = (runner){.run = run, .body = body, .group = group, .wire = wire, .pe = i};
    if (shuffle)
        run_fibers(runners, run->n_pes, run->seed);
    else
        run_threads(runners, run->n_pes);
    char broken[512] = "";
    if (wire && uf_shuffle_violations(wire, broken, sizeof broken))
        note(-1, __FILE__, __LINE__, broken);
    if (wire)
        uf_shuffle_destroy(wire);
    uf_group_destroy(group);
    if (failure[0])
        fail_msg("%s with %d PEs, UNFENCE_SEED=%llu: %s", run->fabric, run->n_pes, (unsigned long long)run->seed, failure);
}
