/* world.c - the life of a world: find the others, make memory and contexts, end it all.
 *
 * Creation exchanges one record per PE after another over the bootstrap, and every decision is taken by all PEs from the same records, so that
 * none waits for something that another has given up. A world that fails to be created leaves nothing behind. The first
 * error of a living world ends it for every caller: see uf_world_fail. */
#include "world/world.h"
#include "base/error.h"
#include "base/log.h"
#include "world/foreign.h"
#include "world/gpu.h"
#include "world/paths.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

/* ---------------------------------------------------------------- soundness */

void uf_world_fail(uf_world *w, int code, const char *why)
{
    int nobody = 0;
    if (atomic_load(&w->closing) || !atomic_compare_exchange_strong(&w->claimed, &nobody, 1))
        return;
    snprintf(w->why, sizeof w->why, "%s", why);
    /* Pairs with the acquire load in uf_world_check: whoever sees the status sees the sentence. */
    atomic_store_explicit(&w->status, code, memory_order_release);
    int32_t *kernels = atomic_load_explicit(&w->gpu_status, memory_order_acquire);
    if (kernels)
        __atomic_store_n(kernels, code, __ATOMIC_RELEASE);
    uf_log(UF_LOG_ERROR, w->pe, "%s", why);
}

int uf_world_check(uf_world *w)
{
    int status = atomic_load_explicit(&w->status, memory_order_acquire);
    return status ? uf_error_set(status, w->why) : UF_OK;
}

int uf_world_first_cause(uf_world *w, int rc)
{
    int status = rc == UF_OK || rc == UF_EAGAIN ? UF_OK : uf_world_check(w);
    return status ? status : rc;
}

enum { WATCH_SECONDS = 5 };

/* The watchdog (rule 17). One of the threads that tick looks; a lane that is stuck is told of once, until none is. */
static void watch(uf_world *w)
{
    uint64_t now = w->driver->now(w->driver->arg), due = atomic_load_explicit(&w->next_watch, memory_order_relaxed);
    if (!w->fabric || now < due || !atomic_compare_exchange_strong(&w->next_watch, &due, now + WATCH_SECONDS * 1000000000ull))
        return;
    bool stuck = uf_engine_watch(w->engine) != UF_OK;
    if (!atomic_exchange(&w->stuck, stuck) && stuck)
        uf_log(UF_LOG_WARN, w->pe, "%s", uf_error_message());
}

/* News of aborts and deaths. */
static void hear(uf_world *w)
{
    int pe = -1;
    if (atomic_load(&w->closing))
        return;
    /* Also after a failure that the network told: PE 0 passes the news of deaths on to those who would not hear of them otherwise. */
    bool failed = atomic_load_explicit(&w->status, memory_order_relaxed) != 0;
    if (!failed)
        watch(w);
    int rc = uf_bootstrap_poll(w->bootstrap, &pe);
    if (rc == UF_OK || failed)
        return;
    char why[sizeof w->why];
    snprintf(why, sizeof why, "%s", uf_error_message());
    uf_world_fail(w, rc, why);
    if (rc == UF_EPEER && pe >= 0 && pe < w->n_pes && w->engine)
        uf_engine_fail_peer(w->engine, (uint32_t)pe, rc);
}

/* By the progress thread, or by waiting callers where there is none. What has just been heard lets streams go in the same tick. */
static void tick(void *arg, uint64_t now)
{
    (void)now;
    uf_world *w = arg;
    uf_memory_tick(w);
    uf_foreign_tick(w);
    hear(w);
    uf_gpu_tick(w);
}

#define DEATH_NEWS_NS 200000000ull

/* The network may hear of a PE's end before we have asked for its reason: an abort, or a death that the bootstrap tells in its own words. A process
 * that dies loses its registrations before its sockets, so that a refusal by the network may be all there is for some milliseconds. */
static void engine_failed(void *arg, uint32_t peer, int status)
{
    (void)peer;
    uf_world *w = arg;
    char why[sizeof w->why];
    int pe;
    snprintf(why, sizeof why, "%s", uf_error_message());
    int news = uf_bootstrap_poll(w->bootstrap, &pe);
    uint64_t end = w->driver->now(w->driver->arg) + DEATH_NEWS_NS;
    for (uint32_t round = 0; !news && status == UF_EFABRIC && w->driver->threads && w->driver->now(w->driver->arg) < end;
         round++) {
        w->driver->relax(w->driver->arg, round);
        news = uf_bootstrap_poll(w->bootstrap, &pe);
    }
    uf_world_fail(w, news ? news : status, news ? uf_error_message() : why);
}

int uf_world_wait_step(uf_world *w, uint32_t round, uint64_t deadline)
{
    uf_foreign_serve(w);
    if (!uf_world_steps(w) || uf_engine_poll(w->engine) <= 0)
        w->driver->relax(w->driver->arg, round);
    /* Also while something comes with every poll: it need not be what this wait is for. */
    if (round % 64 != 63)
        return UF_OK;
    if (round % 1024 == 1023)
        tick(w, 0);
    int rc = uf_world_check(w);
    if (rc)
        return rc;
    return deadline != UINT64_MAX && w->driver->now(w->driver->arg) >= deadline ? UF_ETIMEDOUT : UF_OK;
}

/* Edge of the engine: what its callers wait with for room. */
static int engine_wait(void *arg, uint32_t round, uint64_t deadline)
{
    return uf_world_wait_step(arg, round, deadline);
}

/* What the bootstrap waits with: peers may need this PE's progress to arrive at all. */
static void relax_with_progress(void *arg, uint32_t round)
{
    uf_world *w = arg;
    uf_foreign_serve(w);
    if (w->engine && uf_world_steps(w) && uf_engine_poll(w->engine) > 0)
        return;
    w->driver->relax(w->driver->arg, round);
}

static uint64_t setup_now(void *arg)
{
    uf_world *w = arg;
    return w->driver->now(w->driver->arg);
}

/* ---------------------------------------------------------------- options */

static int apply_options(uf_world *w, const uf_world_options *o)
{
    int rc = uf_settings_load(&w->settings);
    if (rc)
        return rc;
    if (o->size < sizeof *o)
        return uf_fail(UF_EINVAL,
                       "uf_world_create: options.size is %zu, but this library's uf_world_options has %zu bytes: start from "
                       "UF_WORLD_OPTIONS and build against the same version",
                       o->size, sizeof *o);
    if (o->fabric) {
        if (strlen(o->fabric) >= sizeof w->settings.text[0])
            return uf_fail(UF_EINVAL, "uf_world_create: options.fabric is longer than %zu characters",
                           sizeof w->settings.text[0] - 1);
        strcpy(w->settings.text[UF_SET_FABRIC], o->fabric);
    }
    if (o->strict >= 0)
        w->settings.number[UF_SET_STRICT] = o->strict != 0;
    if (o->heap_bytes)
        w->settings.number[UF_SET_HEAP_SIZE] = (int64_t)o->heap_bytes;
    w->timeout_ns = o->timeout_ns ? o->timeout_ns : (uint64_t)w->settings.number[UF_SET_TIMEOUT];
    w->driver = o->driver ? o->driver : &uf_driver_threads;
    w->setup_driver = (uf_driver){w, setup_now, relax_with_progress, w->driver->threads};
    return UF_OK;
}

static int find_place(uf_world *w, const uf_world_options *o, uf_bootstrap_place *place)
{
    memset(place, 0, sizeof *place);
    place->source = "options";
    place->pe = o->pe;
    place->n_pes = o->n_pes;
    if (o->group) {
        if (o->pe < 0)
            return uf_fail(UF_EINVAL, "uf_world_create: options.group is given, so options.pe must say which PE of it this is");
        return UF_OK;
    }
    if (o->pe < 0 || o->n_pes < 0) {
        int rc = uf_bootstrap_find_place(&w->settings, (const char *const *)environ, place);
        if (rc)
            return rc;
    }
    if (o->root)
        snprintf(place->root, sizeof place->root, "%s", o->root);
    /* Fabrics look there for the way to the other hosts, whoever said where it is. */
    snprintf(w->settings.text[UF_SET_ROOT], sizeof w->settings.text[0], "%s", place->root);
    return UF_OK;
}

/* ---------------------------------------------------------------- create and destroy */

static void free_contexts(uf_ctx *ctx)
{
    while (ctx) {
        uf_ctx *next = ctx->next;
        uf_ctx_free(ctx);
        ctx = next;
    }
}

static void free_world(uf_world *w)
{
    uf_teams_destroy(w);
    /* The engine's thread stops before anything that it uses goes. */
    if (w->engine) {
        uf_engine_stop(w->engine);
        uf_queues_stop(w);
    }
    uf_memory_destroy(w);
    free_contexts(w->contexts);
    free_contexts(w->abandoned);
    uf_engine_destroy(w->engine);
    uf_queues_free(w);
    if (w->fabric)
        w->fabric->ops->close(w->fabric);
    /* The bootstrap still waits for acknowledgements, and its waits make progress where there is an engine (relax_with_progress). */
    w->engine = NULL;
    w->fabric = NULL;
    uf_bootstrap_destroy(w->bootstrap);
    uf_local_identity_close(&w->identity);
    uf_requests_free(w);
    pthread_mutex_destroy(&w->setup);
    pthread_mutex_destroy(&w->contexts_lock);
    free(w->peers);
    free(w);
}

/* Cores that the PEs of this host share. One that is pinned to a single core is taken to have it for itself. */
static uint32_t cores_here(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    long online = n == 1 ? sysconf(_SC_NPROCESSORS_ONLN) : n;
    return online > 0 ? (uint32_t)online : 1;
}

static int start_engine(uf_world *w)
{
    uint32_t local = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        local += memcmp(w->peers[pe].identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id) == 0;
    /* A near peer with a core of its own answers within a few hundred looks; where cores are shared they only keep it from running. */
    w->first_looks = w->fabric || cores_here() < local ? 1 : 4096;
    w->looks = w->fabric ? 1 : 256;
    uf_engine_params params = {
        .settings = &w->settings,
        .pe = w->pe,
        .n_pes = w->n_pes,
        .fabric = w->fabric,
        .n_rails = w->n_rails,
        .driver = w->driver,
        .host = {w, uf_signal_apply, uf_request_done, engine_failed, tick, engine_wait},
        .local_pes = local,
    };
    uf_engine_limits agreed;
    int rc = w->fabric ? uf_paths_limits(w, &params, &agreed) : UF_OK;
    params.agreed = w->fabric ? &agreed : NULL;
    return rc ? rc : uf_engine_create(&params, &w->engine);
}

static int fill_world(uf_world *w, const uf_world_options *o)
{
    uf_bootstrap_place place;
    int rc = find_place(w, o, &place);
    if (rc)
        return rc;
    uf_bootstrap_params params = {&w->settings,
                                  &w->setup_driver,
                                  place.pe,
                                  place.n_pes,
                                  o->group,
                                  place.root,
                                  (uint64_t)w->settings.number[UF_SET_BOOTSTRAP_TIMEOUT],
                                  place.job[0] ? place.job : NULL};
    if (o->group) {
        rc = uf_group_n_pes(o->group);
        if (place.n_pes >= 0 && place.n_pes != rc)
            return uf_fail(UF_EINVAL, "uf_world_create: options.n_pes is %d, but the group was made for %d", place.n_pes, rc);
        params.n_pes = rc;
    }
    if (params.pe < 0 || params.pe >= params.n_pes)
        return uf_fail(UF_EINVAL, "uf_world_create: PE number %d is outside of a world of %d PEs", params.pe, params.n_pes);
    w->pe = params.pe;
    w->n_pes = params.n_pes;
    w->peers = calloc((size_t)w->n_pes, sizeof *w->peers);
    if (!w->peers)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %d peers", w->pe, w->n_pes);
    if ((rc = uf_local_identify(&w->identity)) || (rc = uf_bootstrap_create(&params, &w->bootstrap)) || (rc = uf_paths_meet(w)) ||
        (rc = uf_paths_choose(w, o)) || (rc = start_engine(w)) || (rc = uf_memory_create(w)) || (rc = uf_foreign_create(w)) ||
        (rc = uf_ctx_create_locked(w, NULL, &w->default_ctx)) || (rc = uf_teams_create(w)))
        return rc;
    uf_paths_log(w);
    return uf_bootstrap_barrier(w->bootstrap, 0);
}

int uf_world_create(const uf_world_options *options, uf_world **world)
{
    if (!world)
        return uf_fail(UF_EINVAL, "uf_world_create: argument world is NULL");
    const uf_world_options defaults = UF_WORLD_OPTIONS;
    uf_world *w = calloc(1, sizeof *w);
    if (!w)
        return uf_fail(UF_ENOMEM, "uf_world_create: no memory");
    w->pe = -1;
    w->identity.probe_fd = -1;
    pthread_mutex_init(&w->setup, NULL);
    pthread_mutex_init(&w->contexts_lock, NULL);
    int rc = apply_options(w, options ? options : &defaults);
    if (!rc)
        rc = fill_world(w, options ? options : &defaults);
    if (!rc)
        rc = uf_engine_start(w->engine);
    if (rc) {
        char why[UF_ERROR_BYTES];
        snprintf(why, sizeof why, "%s", uf_error_message());
        if (w->bootstrap)
            uf_bootstrap_abort(w->bootstrap, rc, why);
        atomic_store(&w->closing, true);
        free_world(w);
        return uf_error_set(rc, why);
    }
    *world = w;
    return UF_OK;
}

int uf_world_destroy(uf_world *w)
{
    if (!w)
        return UF_OK;
    int rc = uf_world_check(w);
    /* Who leaves a world that failed leaves others waiting for what it will not do any more, and they may not have met the
     * cause themselves: not everybody talks to the PE that died. */
    if (rc)
        uf_bootstrap_abort(w->bootstrap, rc, uf_error_message());
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    if (!rc && uf_gpu_of(w))
        rc = uf_gpu_far_end(uf_gpu_of(w));
    for (uf_ctx *ctx = w->contexts; ctx && !rc; ctx = ctx->next)
        rc = uf_ctx_complete(ctx, -1, true, deadline);
    /* First all are quiet, then nobody minds connections that end, then all have stopped looking at them. */
    if (!rc)
        rc = uf_bootstrap_barrier(w->bootstrap, w->timeout_ns);
    char why[UF_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", rc ? uf_error_message() : "");
    atomic_store(&w->closing, true);
    if (!rc) {
        rc = uf_bootstrap_barrier(w->bootstrap, w->timeout_ns);
        if (rc)
            snprintf(why, sizeof why, "%s", uf_error_message());
    }
    uf_bootstrap_leave(w->bootstrap);
    free_world(w);
    return rc ? uf_error_set(rc, why) : UF_OK;
}

/* ---------------------------------------------------------------- questions */

int uf_world_pe(const uf_world *w)
{
    return w ? w->pe : -1;
}

int uf_world_n_pes(const uf_world *w)
{
    return w ? w->n_pes : 0;
}

int uf_world_status(uf_world *w)
{
    if (!w)
        return uf_fail(UF_EINVAL, "uf_world_status: argument world is NULL");
    tick(w, 0);
    return uf_world_check(w);
}

int uf_world_abort(uf_world *w, const char *why)
{
    if (!w)
        return uf_fail(UF_EINVAL, "uf_world_abort: argument world is NULL");
    char text[900];
    snprintf(text, sizeof text, "PE %d aborted the world: %s", w->pe, why ? why : "no reason given");
    uf_world_fail(w, UF_EABORTED, text);
    uf_bootstrap_abort(w->bootstrap, UF_EABORTED, text);
    return UF_OK;
}

int uf_world_path(uf_world *w, int pe, uf_path_info *info)
{
    if (!w || !info || info->size < sizeof *info)
        return uf_fail(UF_EINVAL, "uf_world_path: argument %s",
                       !w      ? "world is NULL"
                       : !info ? "info is NULL"
                               : "info.size is too small");
    if (!uf_world_check_pe(w, pe))
        return uf_fail(UF_ERANGE, "uf_world_path: there is no PE %d in a world of %d PEs", pe, w->n_pes);
    const uf_peer *p = &w->peers[pe];
    info->fabric = p->mapped ? "local" : w->fabric->caps.fabric;
    info->provider = p->mapped ? "memfd" : w->fabric->caps.provider;
    info->reason = p->mapped ? p->reason : w->reason;
    info->same_host = memcmp(p->identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id) == 0;
    return UF_OK;
}

static void add_context(uf_counters *c, uf_ctx *ctx)
{
    c->puts += uf_tally_sum(&ctx->tally, UF_PUTS);
    c->gets += uf_tally_sum(&ctx->tally, UF_GETS);
    c->signals += uf_tally_sum(&ctx->tally, UF_SIGNALS);
    c->atomics += uf_tally_sum(&ctx->tally, UF_ATOMICS);
    c->bytes_local += uf_tally_sum(&ctx->tally, UF_BYTES_LOCAL);
    c->bytes_network += uf_tally_sum(&ctx->tally, UF_BYTES_NETWORK);
    c->fences += uf_tally_sum(&ctx->tally, UF_FENCES);
    c->quiets += uf_tally_sum(&ctx->tally, UF_QUIETS);
}

void uf_ctx_retire(uf_ctx *ctx)
{
    add_context(&ctx->world->retired, ctx);
}

int uf_world_counters(uf_world *w, uf_counters *counters)
{
    if (!w || !counters || counters->size < sizeof *counters)
        return uf_fail(UF_EINVAL, "uf_world_counters: argument %s",
                       !w          ? "world is NULL"
                       : !counters ? "counters is NULL"
                                   : "counters.size is too small");
    uf_order_counters order;
    uint64_t eagain;
    uf_engine_counters(w->engine, &order, &eagain);
    pthread_mutex_lock(&w->contexts_lock);
    uf_counters c = w->retired;
    for (uf_ctx *ctx = w->contexts; ctx; ctx = ctx->next)
        add_context(&c, ctx);
    uf_queues_count(w, &c);
    uf_memory_counters(w, &c.registrations, &c.registration_hits);
    pthread_mutex_unlock(&w->contexts_lock);
    c.size = sizeof c;
    c.data_wrs = order.data_wrs;
    c.signal_wrs = order.message_wrs;
    c.control_wrs = order.control_wrs;
    c.signals_held = order.held_strong;
    c.fences = order.held_fence; /* those that made something wait; a fence with nothing before it costs nothing */
    c.eagain = eagain;
    c.signals_applied = atomic_load_explicit(&w->signals_applied, memory_order_relaxed);
    *counters = c;
    return UF_OK;
}
