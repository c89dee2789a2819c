/* paths.c - what carries operations to each peer, chosen at creation by all PEs from the same records.
 *
 * First everybody tells what must agree and where it is; then who can map whom; then, if anybody needs a network, one provider after
 * another is tried by all at once until all have it. No PE goes on with what another has given up. A path is fixed for the life of
 * the world (rule 14). */
#include "world/paths.h"
#include "base/error.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

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

int uf_paths_meet(uf_world *w)
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

/* One side may see the other's memory and not be seen (root and another user): a mapping is used only if both have it, since a
 * lane has one fabric and both ends must know which. */
static int agree_on_mappings(uf_world *w)
{
    size_t n = (size_t)w->n_pes;
    unsigned char *mine = calloc(n, 1), *all = calloc(n, n);
    int rc = mine && all ? UF_OK : uf_fail(UF_ENOMEM, "PE %d: no memory for the reach of %d PEs", w->pe, w->n_pes);
    for (size_t pe = 0; !rc && pe < n; pe++)
        mine[pe] = w->peers[pe].mapped;
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, mine, n, all, 0);
    for (size_t pe = 0; !rc && pe < n; pe++)
        if (w->peers[pe].mapped && !all[pe * n + (size_t)w->pe]) {
            w->peers[pe].mapped = false;
            w->peers[pe].reason = "it cannot map this PE's memory";
        }
    free(mine);
    free(all);
    return rc;
}

/* The records that PEs exchange after an attempt, so that all take the same next one. */
typedef struct attempt {
    int32_t rc;
    int32_t needs_network; /* some peer is not mapped */
    uint32_t n_rails;
    char why[240];
} attempt;

/* Counts the rails of the network that all have; 0 where there is none. */
static int gather_attempts(uf_world *w, int rc, bool needs, bool *all_ok, bool *any_needs, attempt *first_failure)
{
    uint32_t rails = !w->fabric ? 0 : w->fabric->caps.n_rails < UF_ORDER_MAX_RAILS ? w->fabric->caps.n_rails : UF_ORDER_MAX_RAILS;
    attempt mine = {rc, needs, rails, ""}, *all = calloc((size_t)w->n_pes, sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    if (rc)
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    int failed = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, 0);
    *all_ok = true;
    *any_needs = false;
    w->n_rails = mine.n_rails;
    for (int pe = 0; !failed && pe < w->n_pes; pe++) {
        *any_needs |= all[pe].needs_network != 0;
        w->n_rails = all[pe].n_rails < w->n_rails ? all[pe].n_rails : w->n_rails;
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
    uf_fabric_params params = {
        .settings = &w->settings,
        .pe = w->pe,
        .n_pes = w->n_pes,
        .provider = provider,
        .one_host = one_host(w),
        .arg = arg,
    };
    uf_engine_fabric_sizes(&params);
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
            "PE %d: there is no fabric '%s' in this build (UNFENCE_FABRIC=%s); known are auto, local, efa, efa:model and, where "
            "libfabric was found at build time, ofi and ofi:PROVIDER",
            w->pe, name, asked);
    int rc = try_provider(w, ops, provider, NULL, &done, &failure);
    if (rc || done)
        return rc;
    if (w->settings.number[UF_SET_STRICT] || !provider[0])
        return uf_fail(failure.rc, "%s%s", failure.why, provider[0] ? " (UNFENCE_STRICT: no other provider was tried)" : "");
    uf_log(UF_LOG_WARN, w->pe, "%s; falling back to the best provider there is (UNFENCE_STRICT=yes would refuse)", failure.why);
    snprintf(w->reason, sizeof w->reason, "fallen back: %.200s", failure.why);
    attempt second = {0};
    rc = try_provider(w, ops, "", NULL, &done, &second);
    /* The reason why what was asked for is not there helps more than why nothing else is. */
    return rc ? rc : done ? UF_OK : uf_fail(failure.rc, "%s (nor is there another: %.160s)", failure.why, second.why);
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

int uf_paths_choose(uf_world *w, const uf_world_options *o)
{
    judge_peers(w, o);
    int rc = agree_on_mappings(w);
    if (rc)
        return rc;
    bool needs = o->fabric_ops != NULL, all_ok;
    int first = -1;
    for (int pe = 0; pe < w->n_pes; pe++)
        if (!w->peers[pe].mapped && first < 0)
            first = pe;
    /* Asked for by name, a network is opened even by a single PE: what is asked for must be there or be refused. */
    needs |= first >= 0 || wants_network(w->settings.text[UF_SET_FABRIC]);
    attempt failure = {0};
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
    for (uint32_t rail = 0; !rc && rail < w->n_rails; rail++)
        rc = connect_rail(w, rail);
    return rc;
}

void uf_paths_log(uf_world *w)
{
    int mapped = 0;
    for (int pe = 0; pe < w->n_pes; pe++)
        mapped += w->peers[pe].mapped && pe != w->pe;
    if (!w->reason[0])
        snprintf(w->reason, sizeof w->reason, "%s",
                 w->settings.from_environment[UF_SET_FABRIC] || wants_network(w->settings.text[UF_SET_FABRIC])
                     ? "asked for"
                     : "the best there is");
    char rails[80] = "";
    if (w->n_rails > 1 || (w->fabric && w->fabric->caps.n_rails > 1))
        snprintf(rails, sizeof rails, ", %u of %u rails", w->n_rails, w->fabric->caps.n_rails);
    if (w->fabric)
        uf_log(UF_LOG_INFO, w->pe, "%d PEs: %d peers by local (memfd), %d by %s (%s, %s%s): %s", w->n_pes, mapped,
               w->n_pes - 1 - mapped, w->fabric->caps.fabric, w->fabric->caps.provider, w->fabric->caps.detail, rails, w->reason);
    else
        uf_log(UF_LOG_INFO, w->pe, "%d PEs: %d peers by local (memfd, mapped memory of one host): every peer can be mapped",
               w->n_pes, mapped);
}

/* Both ends of a flow count alike: the least that any PE can do, or a refusal where there is no least. */
int uf_paths_limits(uf_world *w, uf_engine_params *params, uf_engine_limits *least)
{
    uf_engine_limits *all = calloc((size_t)w->n_pes, sizeof *all);
    int rc = all ? uf_engine_limits_of(params, least)
                 : uf_fail(UF_ENOMEM, "PE %d: no memory for the records of %d PEs", w->pe, w->n_pes);
    if (!rc)
        rc = uf_bootstrap_allgather(w->bootstrap, least, sizeof *least, all, 0);
    for (int pe = 0; !rc && pe < w->n_pes; pe++) {
        least->credits = all[pe].credits < least->credits ? all[pe].credits : least->credits;
        least->messages = all[pe].messages < least->messages ? all[pe].messages : least->messages;
        least->immediates &= all[pe].immediates;
    }
    free(all);
    return rc;
}
