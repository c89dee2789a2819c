/* ring_model.c - the rotation itself: worlds in fibers over the model, the loop of each PE, and what it took. */
#include "ring_model.h"
#include "base/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_NS = 200, MOST_PES = 256 };
#define LIMIT_NS UINT64_C(4000000000)

typedef struct run {
    const ring_model_options *o;
    ring_model_result *result;
    uf_efa_model_place *place;
    uf_fibers *fibers;
    uf_group *group;
    double took_ns[MOST_PES]; /* virtual, by PE */
    int rc;
    char error[UF_ERROR_BYTES];
} run;

typedef struct actor {
    run *run;
    uint32_t pe;
} actor;

static uint64_t now(const run *r)
{
    const uf_driver *d = uf_fibers_driver(r->fibers);
    return d->now(d->arg);
}

/* ---------------------------------------------------------------- payload: one word for each origin, all over its blocks */

static uint64_t word_of(const run *r, uint32_t origin)
{
    return (r->o->seed << 16 | (origin + 1)) * 0x9e3779b97f4a7c15u;
}

static bool holds(const run *r, const void *block, uint32_t origin)
{
    const uint64_t *words = block;
    uint64_t n = r->o->bytes / sizeof *words, wrong = 0, wanted = word_of(r, origin);
    for (uint64_t i = 0; i < n; i += 8)
        wrong |= words[i] ^ wanted;
    return (wrong | (words[n - 1] ^ wanted)) == 0;
}

/* ---------------------------------------------------------------- one PE */

/* What each PE sends, in this order: in turn t block t for the first time, block t - 1 on its second hop, and so on. What comes is the same list of the
 * neighbour's, and goes on a turn later: so a PE holds a group's worth of blocks at most, and a ring whose slots are all taken cannot be. */
typedef struct entry {
    uint32_t hop;
    uint32_t from, next; /* entries: what is sent here came as `from` (hop > 0), and goes on as `next` (0: no further) */
} entry;

static entry *make_list(const ring_model_options *o, uint64_t *total)
{
    uint32_t hops = o->group - 1, n = 0;
    *total = (uint64_t)o->blocks * hops;
    entry *list = calloc(*total, sizeof *list);
    uint32_t *at = calloc(o->blocks, sizeof *at); /* a block's entry before */
    for (uint32_t turn = 0; list && at && turn < o->blocks + hops - 1; turn++)
        for (uint32_t hop = 0; hop < hops; hop++) {
            uint32_t block = turn - hop;
            if (hop > turn || block >= o->blocks)
                continue;
            list[n] = (entry){.hop = hop, .from = at[block]};
            if (hop > 0)
                list[at[block]].next = n;
            at[block] = n++;
        }
    free(at);
    return list;
}

typedef struct flow {
    const entry *list;
    const void *own, *held[UF_RING_SLOTS];
    uint64_t total, sent, received, released;
} flow;

static int wait_if(int rc)
{
    return rc == UF_EAGAIN ? UF_OK : rc;
}

static int try_start(const ring_model_way *way, ring_model_pe *p, flow *f)
{
    const entry *e = &f->list[f->sent];
    if (f->sent == f->total || (e->hop > 0 && e->from >= f->received))
        return UF_OK;
    int rc = way->start(p, e->hop ? f->held[e->from % p->o->slots] : f->own);
    f->sent += !rc;
    return wait_if(rc);
}

static int try_finish(run *r, const ring_model_way *way, ring_model_pe *p, flow *f)
{
    if (f->received == f->total || f->received - f->released == p->o->slots)
        return UF_OK;
    const void **held = &f->held[f->received % p->o->slots];
    int rc = way->finish(p, held);
    if (rc)
        return wait_if(rc);
    uint32_t group = r->o->group, base = (uint32_t)p->from / group * group;
    uint32_t origin = base + ((uint32_t)p->me + group - f->list[f->received].hop - 1) % group;
    if (!holds(r, *held, origin))
        return uf_fail(UF_EINTERNAL, "ring-model: block %llu of PE %d is wrong", (unsigned long long)f->received,
                       uf_world_pe(p->world));
    f->received++;
    return UF_OK;
}

static int try_release(const ring_model_way *way, ring_model_pe *p, flow *f)
{
    const entry *e = &f->list[f->released];
    if (f->released == f->received || (e->next && e->next >= f->sent))
        return UF_OK;
    int rc = way->release(p);
    f->released += !rc;
    return wait_if(rc);
}

/* One chain of blocks; a PE has some side by side. */
typedef struct chain {
    ring_model_pe pe;
    flow flow;
} chain;

static bool is_over(const chain *c)
{
    return c->flow.released == c->flow.total && c->flow.sent == c->flow.total && !c->pe.draining;
}

static int turn(run *r, const ring_model_way *way, chain *c, bool *moved)
{
    flow *f = &c->flow;
    uint64_t before = f->sent + f->received + f->released;
    int rc = way->turn(&c->pe);
    rc = rc ? rc : try_finish(r, way, &c->pe, f);
    rc = rc ? rc : try_start(way, &c->pe, f);
    rc = rc ? rc : try_release(way, &c->pe, f);
    *moved = *moved || f->sent + f->received + f->released != before;
    return rc;
}

static int rotate(run *r, const ring_model_way *way, chain *chains)
{
    const uf_driver *driver = uf_fibers_driver(r->fibers);
    bool over = false;
    for (uint32_t idle = 0; !over;) {
        bool moved = false;
        over = true;
        for (uint32_t c = 0; c < r->o->chains; c++) {
            int rc = turn(r, way, &chains[c], &moved);
            if (rc)
                return rc;
            over = over && is_over(&chains[c]);
        }
        int rc = uf_progress(chains[0].pe.world);
        if (rc)
            return rc;
        idle = moved ? 0 : idle + 1;
        if (idle)
            driver->relax(driver->arg, idle);
    }
    return UF_OK;
}

static int make_groups(const run *r, ring_model_pe *p)
{
    int rc = UF_OK;
    for (uint32_t g = 0; !rc && g < r->o->pes / r->o->group; g++) {
        uf_team *team = NULL;
        rc = uf_team_split_strided(uf_team_world(p->world), (int)(g * r->o->group), 1, (int)r->o->group, &team);
        p->team = team ? team : p->team;
    }
    return rc;
}

static int open_chains(run *r, const ring_model_way *way, chain *chains, const ring_model_pe *like, const entry *list,
                       uint64_t total)
{
    uint64_t *own = NULL;
    int rc = uf_malloc(like->world, r->o->bytes, 0, (void **)&own);
    for (uint64_t i = 0; !rc && i < r->o->bytes / sizeof *own; i++)
        own[i] = word_of(r, (uint32_t)uf_world_pe(like->world));
    for (uint32_t c = 0; !rc && c < r->o->chains; c++) {
        chains[c] = (chain){.pe = *like, .flow = {.list = list, .total = total, .own = own}};
        rc = way->open(&chains[c].pe);
    }
    return rc;
}

static int measure(run *r, const ring_model_way *way, chain *chains, uf_world *w)
{
    uf_counters before = {.size = sizeof before}, after = before;
    int rc = uf_barrier(uf_team_world(w));
    rc = rc ? rc : uf_world_counters(w, &before);
    uint64_t began = now(r);
    rc = rc ? rc : rotate(r, way, chains);
    r->took_ns[uf_world_pe(w)] = (double)(now(r) - began);
    rc = rc ? rc : uf_world_counters(w, &after);
    r->result->data_wrs += after.data_wrs - before.data_wrs;
    r->result->signal_wrs += after.signal_wrs - before.signal_wrs;
    r->result->control_wrs += after.control_wrs - before.control_wrs;
    return rc ? rc : uf_barrier(uf_team_world(w));
}

static int act_in_world(run *r, ring_model_pe *p)
{
    const ring_model_way *way = r->o->drain ? &ring_model_drain : &ring_model_ring;
    int rc = make_groups(r, p), n = (int)r->o->group, base = uf_world_pe(p->world) / n * n;
    if (rc)
        return rc;
    p->me = uf_team_pe(p->team);
    p->to = base + (p->me + 1) % n;
    p->from = base + (p->me + n - 1) % n;
    bool nic_busy = false;
    p->nic_busy = &nic_busy;
    uint64_t total;
    entry *list = make_list(r->o, &total);
    chain *chains = calloc(r->o->chains, sizeof *chains);
    if (!list || !chains)
        rc = uf_fail(UF_ENOMEM, "ring-model: no memory for %llu blocks", (unsigned long long)total);
    rc = rc ? rc : open_chains(r, way, chains, p, list, total);
    rc = rc ? rc : measure(r, way, chains, p->world);
    for (uint32_t c = 0; !rc && c < r->o->chains; c++)
        way->close(&chains[c].pe);
    free(list);
    free(chains);
    return rc;
}

static void act(void *arg)
{
    actor *a = arg;
    run *r = a->run;
    ring_model_pe p = {.o = r->o};
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = (int)a->pe, o.n_pes = (int)r->o->pes, o.group = r->group, o.driver = uf_fibers_driver(r->fibers);
    o.fabric_ops = &uf_fabric_efa, o.fabric_arg = r->place, o.timeout_ns = LIMIT_NS;
    o.heap_bytes = (r->o->slots * r->o->chains + 1) * r->o->bytes + (1 << 20);
    int rc = uf_world_create(&o, &p.world);
    rc = rc ? rc : act_in_world(r, &p);
    if (rc && !r->rc) {
        r->rc = rc;
        snprintf(r->error, sizeof r->error, "%s", uf_error_message());
    }
    if (rc && p.world)
        uf_world_abort(p.world, r->error);
    uf_world_destroy(p.world);
}

/* ---------------------------------------------------------------- all of them */

uint32_t ring_model_slots(const ring_model_options *o)
{
    return (o->blocks < o->group - 1 ? o->blocks : o->group - 1) + 2;
}

static int check(const ring_model_options *o)
{
    if (o->group < 2 || o->pes < o->group || o->pes % o->group || o->pes > MOST_PES)
        return uf_fail(UF_EINVAL,
                       "ring-model: %u PEs in groups of %u: a group has 2 or more, and there are whole groups of at most %d PEs",
                       o->pes, o->group, MOST_PES);
    if (o->bytes < 64 || o->bytes % 64 || o->blocks == 0 || o->chains == 0)
        return uf_fail(UF_EINVAL, "ring-model: blocks of a multiple of 64 bytes, one or more of each PE and chain, are needed");
    if (o->slots < ring_model_slots(o) || o->slots > UF_RING_SLOTS)
        return uf_fail(UF_EINVAL, "ring-model: %u slots: %u to %d are needed", o->slots, ring_model_slots(o), UF_RING_SLOTS);
    return UF_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int play(run *r, actor *actors)
{
    uf_model_params params;
    int rc = uf_model_profile(r->o->profile, &params);
    if (r->o->no_tails)
        params.tail_ppm = params.drop_ppm = 0;
    const uf_efa_model_place_options place = {.params = &params, .seed = r->o->seed, .n_pes = r->o->pes};
    rc = rc ? rc : uf_efa_model_place_create(&place, &r->place);
    rc = rc ? rc : uf_fibers_create(r->o->seed, STEP_NS, &r->fibers);
    rc = rc ? rc : uf_fibers_attach(r->fibers, uf_efa_model_place_next, uf_efa_model_place_run, r->place);
    rc = rc ? rc : uf_group_create((int)r->o->pes, &r->group);
    for (uint32_t pe = 0; !rc && pe < r->o->pes; pe++) {
        actors[pe] = (actor){r, pe};
        rc = uf_fibers_add(r->fibers, act, &actors[pe]);
    }
    rc = rc ? rc : uf_fibers_run(r->fibers, LIMIT_NS);
    if (!rc && r->rc)
        rc = uf_error_set(r->rc, r->error);
    const uf_model *model = rc ? NULL : uf_efa_model_place_model(r->place);
    if (model && uf_model_traps(model))
        rc = uf_fail(UF_EINTERNAL, "ring-model: the model trapped: %s", uf_model_trap(model, 0));
    r->result->blocks = (uint64_t)r->o->pes * r->o->blocks * r->o->chains * (r->o->group - 1);
    double bytes = (double)r->o->blocks * r->o->chains * (r->o->group - 1) * (double)r->o->bytes,
           wire_ns = bytes * 8 / (double)params.gbps;
    qsort(r->took_ns, r->o->pes, sizeof *r->took_ns, by_value);
    r->result->share = wire_ns / r->took_ns[r->o->pes / 2];
    r->result->least = wire_ns / r->took_ns[r->o->pes - 1];
    return rc;
}

int ring_model_run(const ring_model_options *o, ring_model_result *result)
{
    int rc = check(o);
    if (rc)
        return rc;
    *result = (ring_model_result){0};
    run r = {.o = o, .result = result};
    actor *actors = calloc(o->pes, sizeof *actors);
    rc = actors ? play(&r, actors) : uf_fail(UF_ENOMEM, "ring-model: no memory for %u PEs", o->pes);
    if (r.fibers)
        uf_fibers_destroy(r.fibers);
    if (r.group)
        uf_group_destroy(r.group);
    uf_efa_model_place_destroy(r.place);
    free(actors);
    return rc;
}
