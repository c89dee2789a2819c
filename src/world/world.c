/* world.c - the life of a world: find the others, choose what carries operations, make memory and contexts, end it all.
 *
 * Creation exchanges one record per PE after another over the bootstrap, and every decision is taken by all PEs from the same records, so that
 * none waits for something that another has given up. A world that fails to be created leaves nothing behind. The first
 * error of a living world ends it for every caller: see uf_world_fail. */
#include "world/world.h"
#include "base/error.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include "world/foreign.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

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
    uf_log(UF_LOG_ERROR, w->pe, "%s", why);
}

int uf_world_check(uf_world *w)
{
    int status = atomic_load_explicit(&w->status, memory_order_acquire);
    return status ? uf_error_set(status, w->why) : UF_OK;
}

/* News of aborts and deaths. By the progress thread, or by waiting callers where there is none. */
static void tick(void *arg, uint64_t now)
{
    (void)now;
    uf_world *w = arg;
    int pe = -1;
    uf_memory_tick(w);
    uf_foreign_tick(w);
    if (atomic_load_explicit(&w->status, memory_order_relaxed) || atomic_load(&w->closing))
        return;
    int rc = uf_bootstrap_poll(w->bootstrap, &pe);
    if (rc == UF_OK)
        return;
    char why[sizeof w->why];
    snprintf(why, sizeof why, "%s", uf_error_message());
    uf_world_fail(w, rc, why);
    if (rc == UF_EPEER && pe >= 0 && pe < w->n_pes && w->engine)
        uf_engine_fail_peer(w->engine, (uint32_t)pe, rc);
}

/* The network may hear of a PE's end before we have asked for its reason: an abort, or a death that the bootstrap tells in its own words. */
static void engine_failed(void *arg, uint32_t peer, int status)
{
    (void)peer;
    uf_world *w = arg;
    char why[sizeof w->why];
    int pe;
    snprintf(why, sizeof why, "%s", uf_error_message());
    int news = uf_bootstrap_poll(w->bootstrap, &pe);
    uf_world_fail(w, news ? news : status, news ? uf_error_message() : why);
}

int uf_world_wait_step(uf_world *w, uint32_t round, uint64_t deadline)
{
    uf_foreign_serve(w);
    if (w->fabric && uf_engine_poll(w->engine) > 0)
        return round % 64 == 63 ? uf_world_check(w) : UF_OK;
    w->driver->relax(w->driver->arg, round);
    if (round % 64 != 63)
        return UF_OK;
    if (round % 1024 == 1023)
        tick(w, 0);
    int rc = uf_world_check(w);
    if (rc)
        return rc;
    return deadline != UINT64_MAX && w->driver->now(w->driver->arg) >= deadline ? UF_ETIMEDOUT : UF_OK;
}

/* What the bootstrap waits with: peers may need this PE's progress to arrive at all. */
static void relax_with_progress(void *arg, uint32_t round)
{
    uf_world *w = arg;
    uf_foreign_serve(w);
    if (w->engine && w->fabric && uf_engine_poll(w->engine) > 0)
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
    return UF_OK;
}

/* ---------------------------------------------------------------- who is where */

/* What each PE tells first: everything that must agree, and where it is. */
typedef struct hello {
    char version[16];
    char fabric[256];
    int64_t heap_size, heap_max, signals, node_size, strict, window;
    uf_local_identity identity;
} hello;

static int refuse_difference(const uf_world *w, int pe, const char *what, const char *theirs, const char *ours)
{
    return uf_fail(UF_EMISMATCH, "PE %d has %s %s, PE %d has %s: they must be the same on all PEs of a world", pe, what, theirs,
                   w->pe, ours);
}

static int compare_hello(const uf_world *w, int pe, const hello *a, const hello *b)
{
    if (strncmp(a->version, b->version, sizeof a->version))
        return refuse_difference(w, pe, "library version", a->version, b->version);
    if (strncmp(a->fabric, b->fabric, sizeof a->fabric))
        return refuse_difference(w, pe, "UNFENCE_FABRIC", a->fabric, b->fabric);
    const struct {
        const char *name;
        int64_t a, b;
    } numbers[] = {{"UNFENCE_HEAP_SIZE", a->heap_size, b->heap_size}, {"UNFENCE_HEAP_MAX", a->heap_max, b->heap_max},
                   {"UNFENCE_SIGNALS", a->signals, b->signals},       {"UNFENCE_NODE_SIZE", a->node_size, b->node_size},
                   {"UNFENCE_STRICT", a->strict, b->strict},          {"UNFENCE_WINDOW", a->window, b->window}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].a != numbers[i].b)
            return uf_fail(UF_EMISMATCH, "PE %d has %s=%lld, PE %d has %lld: it must be the same on all PEs of a world", pe,
                           numbers[i].name, (long long)numbers[i].a, w->pe, (long long)numbers[i].b);
    return UF_OK;
}

static bool same_node(const uf_world *w, int pe)
{
    int64_t node = w->settings.number[UF_SET_NODE_SIZE];
    return node <= 0 || pe / node == w->pe / node;
}

static int meet(uf_world *w)
{
    hello mine = {.heap_size = w->settings.number[UF_SET_HEAP_SIZE],
                  .heap_max = w->settings.number[UF_SET_HEAP_MAX],
                  .signals = w->settings.number[UF_SET_SIGNALS],
                  .node_size = w->settings.number[UF_SET_NODE_SIZE],
                  .strict = w->settings.number[UF_SET_STRICT],
                  .window = w->settings.number[UF_SET_WINDOW],
                  .identity = w->identity};
    snprintf(mine.version, sizeof mine.version, "%s", uf_version());
    snprintf(mine.fabric, sizeof mine.fabric, "%s", w->settings.text[UF_SET_FABRIC]);
    hello *all = calloc((size_t)w->n_pes, sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    int rc = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, 0);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        rc = compare_hello(w, pe, &all[pe], &mine);
        w->peers[pe].identity = all[pe].identity;
    }
    free(all);
    return rc;
}

/* ---------------------------------------------------------------- what carries operations */

static bool wants_network(const char *fabric)
{
    return strcasecmp(fabric, "auto") != 0 && strcasecmp(fabric, "local") != 0 && fabric[0];
}

static void judge_peers(uf_world *w, const uf_world_options *o)
{
    bool network = o->fabric_ops || wants_network(w->settings.text[UF_SET_FABRIC]);
    for (int pe = 0; pe < w->n_pes; pe++) {
        uf_peer *p = &w->peers[pe];
        p->same_process = p->identity.pid == w->identity.pid && p->identity.pid_namespace == w->identity.pid_namespace &&
                          memcmp(p->identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id) == 0;
        p->reason = "itself";
        p->mapped = pe == w->pe;
        if (pe == w->pe)
            continue;
        if (network)
            p->reason = "the network was asked for";
        else if (!same_node(w, pe))
            p->reason = "another host by UNFENCE_NODE_SIZE";
        else
            p->mapped = uf_local_reachable(&w->identity, &p->identity, &p->reason);
    }
}

/* The records that PEs exchange after an attempt, so that all take the same next one. */
typedef struct attempt {
    int32_t rc;
    int32_t needs_network; /* some peer is not mapped */
    char why[240];
} attempt;

static int gather_attempts(uf_world *w, int rc, bool needs, bool *all_ok, bool *any_needs, attempt *first_failure)
{
    attempt mine = {rc, needs, ""}, *all = calloc((size_t)w->n_pes, sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    if (rc)
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    int failed = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, 0);
    *all_ok = true;
    *any_needs = false;
    for (int pe = 0; !failed && pe < w->n_pes; pe++) {
        *any_needs |= all[pe].needs_network != 0;
        if (all[pe].rc && *all_ok) {
            *all_ok = false;
            *first_failure = all[pe];
            first_failure->why[sizeof first_failure->why - 1] = 0;
        }
    }
    free(all);
    return failed;
}

static bool one_host(const uf_world *w)
{
    for (int pe = 0; pe < w->n_pes; pe++)
        if (!same_node(w, pe) || memcmp(w->peers[pe].identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id))
            return false;
    return true;
}

static int open_fabric(uf_world *w, const struct uf_fabric_ops *ops, const char *provider, void *arg)
{
    const int64_t *set = w->settings.number;
    uf_fabric_params params = {
        .settings = &w->settings,
        .pe = w->pe,
        .n_pes = w->n_pes,
        .provider = provider,
        .one_host = one_host(w),
        .tx_depth = (uint32_t)set[UF_SET_QUEUE_DEPTH],
        .receives = (uint32_t)((set[UF_SET_MESSAGES] + UF_ORDER_CONTROL_RESERVE) * w->n_pes),
        .remote_cqes = (uint32_t)((set[UF_SET_CREDITS] + UF_ORDER_CONTROL_RESERVE) * w->n_pes),
        .arg = arg,
    };
    return ops->open(&params, &w->fabric);
}

/* Tries one provider on all PEs; *done if all have it. */
static int try_provider(uf_world *w, const struct uf_fabric_ops *ops, const char *provider, void *arg, bool *done,
                        attempt *failure)
{
    bool needs;
    int rc = open_fabric(w, ops, provider, arg);
    rc = gather_attempts(w, rc, true, done, &needs, failure);
    if ((rc || !*done) && w->fabric) {
        w->fabric->ops->close(w->fabric);
        w->fabric = NULL;
    }
    return rc;
}

static int choose_network(uf_world *w, const uf_world_options *o)
{
    const char *asked = w->settings.text[UF_SET_FABRIC];
    bool done = false;
    attempt failure = {0};
    if (o->fabric_ops) {
        int rc = try_provider(w, o->fabric_ops, "", o->fabric_arg, &done, &failure);
        return rc ? rc : done ? UF_OK : uf_fail(failure.rc, "%s", failure.why);
    }
    char name[64];
    const char *colon = strchr(asked, ':'), *provider = colon ? colon + 1 : "";
    snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - asked) : (int)strlen(asked), asked);
    if (!wants_network(asked))
        strcpy(name, "ofi");
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    const struct uf_fabric_ops *ops = uf_fabric_find(name);
    if (!ops)
        return uf_fail(
            wants_network(asked) && strcmp(name, "ofi") ? UF_EINVAL : UF_EUNSUPPORTED,
            "PE %d: there is no fabric '%s' in this build (UNFENCE_FABRIC=%s); known are auto, local and, where libfabric was "
            "found at build time, ofi and ofi:PROVIDER",
            w->pe, name, asked);
    int rc = try_provider(w, ops, provider, NULL, &done, &failure);
    if (rc || done)
        return rc;
    if (w->settings.number[UF_SET_STRICT] || !provider[0])
        return uf_fail(failure.rc, "%s%s", failure.why, provider[0] ? " (UNFENCE_STRICT: no other provider was tried)" : "");
    uf_log(UF_LOG_WARN, w->pe, "%s; falling back to the best provider there is (UNFENCE_STRICT=yes would refuse)", failure.why);
    snprintf(w->reason, sizeof w->reason, "fallen back: %.200s", failure.why);
    rc = try_provider(w, ops, "", NULL, &done, &failure);
    return rc ? rc : done ? UF_OK : uf_fail(failure.rc, "%s", failure.why);
}

static int connect_rail(uf_world *w, uint32_t rail)
{
    size_t bytes = w->fabric->caps.address_bytes;
    unsigned char mine[UF_FABRIC_ADDRESS_MAX] = {0}, *all = malloc(bytes * (size_t)w->n_pes);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the addresses of %d PEs", w->pe, w->n_pes);
    int rc = w->fabric->ops->address(w->fabric, rail, mine);
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, mine, bytes, all, 0);
    for (int pe = 0; !rc && pe < w->n_pes; pe++)
        rc = w->fabric->ops->connect(w->fabric, rail, (uint32_t)pe, all + bytes * (size_t)pe);
    free(all);
    return rc;
}

static int choose_paths(uf_world *w, const uf_world_options *o)
{
    judge_peers(w, o);
    bool needs = o->fabric_ops != NULL, all_ok;
    int first = -1;
    for (int pe = 0; pe < w->n_pes; pe++)
        if (!w->peers[pe].mapped && first < 0)
            first = pe;
    /* Asked for by name, a network is opened even by a single PE: what is asked for must be there or be refused. */
    needs |= first >= 0 || wants_network(w->settings.text[UF_SET_FABRIC]);
    attempt failure = {0};
    int rc = UF_OK;
    if (first >= 0 && strcasecmp(w->settings.text[UF_SET_FABRIC], "local") == 0)
        rc = uf_fail(UF_EUNSUPPORTED, "UNFENCE_FABRIC=local, but PE %d cannot be reached through mapped memory: %s", first,
                     w->peers[first].reason);
    rc = gather_attempts(w, rc, needs, &all_ok, &needs, &failure);
    if (rc)
        return rc;
    if (!all_ok)
        return uf_fail(failure.rc, "%s", failure.why);
    if (!needs)
        return UF_OK;
    rc = choose_network(w, o);
    /* A world has one network or none: with NICs of different kinds on its hosts PEs could not talk. */
    for (uint32_t rail = 0; !rc && rail < w->fabric->caps.n_rails; rail++)
        rc = connect_rail(w, rail);
    return rc;
}

static void log_paths(uf_world *w)
{
    int mapped = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        mapped += w->peers[pe].mapped && pe != w->pe;
    if (!w->reason[0])
        snprintf(w->reason, sizeof w->reason, "%s",
                 w->settings.from_environment[UF_SET_FABRIC] || wants_network(w->settings.text[UF_SET_FABRIC])
                     ? "asked for"
                     : "the best there is");
    if (w->fabric)
        uf_log(UF_LOG_INFO, w->pe, "%d PEs: %d peers by local (memfd), %d by %s (%s, %s): %s", w->n_pes, mapped,
               w->n_pes - 1 - mapped, w->fabric->caps.fabric, w->fabric->caps.provider, w->fabric->caps.detail, w->reason);
    else
        uf_log(UF_LOG_INFO, w->pe, "%d PEs: %d peers by local (memfd, mapped memory of one host): every peer can be mapped",
               w->n_pes, mapped);
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
    uf_memory_destroy(w);
    free_contexts(w->contexts);
    free_contexts(w->abandoned);
    uf_engine_destroy(w->engine);
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

/* Both ends of a flow count alike: the least that any PE can do, or a refusal where there is no least. */
static int agree_on_limits(uf_world *w, uf_engine_params *params, uf_engine_limits *least)
{
    uf_engine_limits *all = calloc((size_t)w->n_pes, sizeof *all);
    int rc = all ? uf_engine_limits_of(params, least)
                 : uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, least, sizeof *least, all, 0);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        if (all[pe].rails != least->rails)
            rc = uf_fail(UF_EMISMATCH, "PE %d has %u rails, PE %d has %u: rail i talks to rail i, so all hosts need as many NICs",
                         pe, all[pe].rails, w->pe, least->rails);
        least->credits = all[pe].credits < least->credits ? all[pe].credits : least->credits;
        least->messages = all[pe].messages < least->messages ? all[pe].messages : least->messages;
        least->immediates &= all[pe].immediates;
    }
    free(all);
    return rc;
}

static int start_engine(uf_world *w)
{
    uint32_t local = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        local += memcmp(w->peers[pe].identity.boot_id, w->identity.boot_id, sizeof w->identity.boot_id) == 0;
    uf_engine_params params = {
        .settings = &w->settings,
        .pe = w->pe,
        .n_pes = w->n_pes,
        .fabric = w->fabric,
        .driver = w->driver,
        .host = {w, uf_signal_apply, uf_request_done, engine_failed, tick},
        .local_pes = local,
    };
    uf_engine_limits agreed;
    int rc = w->fabric ? agree_on_limits(w, &params, &agreed) : UF_OK;
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
    if ((rc = uf_local_identify(&w->identity)) || (rc = uf_bootstrap_create(&params, &w->bootstrap)) || (rc = meet(w)) ||
        (rc = choose_paths(w, o)) || (rc = start_engine(w)) || (rc = uf_memory_create(w)) || (rc = uf_foreign_create(w)) ||
        (rc = uf_ctx_create_locked(w, NULL, &w->default_ctx)) || (rc = uf_teams_create(w)))
        return rc;
    log_paths(w);
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
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
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
    return w->pe;
}

int uf_world_n_pes(const uf_world *w)
{
    return w->n_pes;
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
    c->puts += atomic_load_explicit(&ctx->puts, memory_order_relaxed);
    c->gets += atomic_load_explicit(&ctx->gets, memory_order_relaxed);
    c->signals += atomic_load_explicit(&ctx->signals, memory_order_relaxed);
    c->atomics += atomic_load_explicit(&ctx->atomics, memory_order_relaxed);
    c->bytes_local += atomic_load_explicit(&ctx->bytes_local, memory_order_relaxed);
    c->bytes_network += atomic_load_explicit(&ctx->bytes_network, memory_order_relaxed);
    c->fences += atomic_load_explicit(&ctx->fences, memory_order_relaxed);
    c->quiets += atomic_load_explicit(&ctx->quiets, memory_order_relaxed);
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
