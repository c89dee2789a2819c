/* library.c - ours: what an application writes, with worlds of the library on the efa fabric over the model.
 *
 * Worlds are created and ended by fibers in virtual time, as their PEs wait for each other. In between nothing blocks: the run's loop gives each PE its
 * turn, the sender puts without waiting (UF_NOWAIT), everybody makes progress, and the peers look at their signal words.
 * Settings are the library's defaults, but for UNFENCE_QUEUE_DEPTH where the window asks for a deeper queue.
 *   counted  a weak ADD for each put, to a word of its own: travels in the put's immediate
 *   ordered  UF_ORDERED context, a strong signal for each put
 *   strong   plain puts, and one strong signal for `batch` of them */
#include "base/error.h"
#include "engine/driver.h"
#include "ordering.h"
#include "world/world.h"
#include <stdio.h>
#include <stdlib.h>

enum { STEP_NS = 500 };
#define LIMIT_NS UINT64_C(60000000000)

typedef struct pe_world {
    struct ordering_library *library;
    uint32_t pe;
    uf_world *world;
    uf_ctx *ctx;
    uf_window *window;
    uint64_t *words;
    uint32_t looked; /* all words before it are seen */
    uint32_t from;   /* strong: puts before it are seen */
    bool owed;       /* sender: this peer's strong signal found the queue full */
} pe_world;

struct ordering_library {
    ordering_run *run;
    uf_driver driver;
    uf_fibers *fibers; /* NULL: the run's loop has the PEs */
    uint64_t began;    /* the fibers' time counts from here */
    uf_group *group;
    uint32_t slots; /* words of each peer */
    int rc;         /* the first failure of a fiber */
    char error[UF_ERROR_BYTES];
    pe_world worlds[];
};

/* ---------------------------------------------------------------- time */

static uint64_t driver_now(void *library)
{
    return ((struct ordering_library *)library)->run->now;
}

static void driver_relax(void *library, uint32_t round)
{
    struct ordering_library *l = library;
    const uf_driver *fibers = uf_fibers_driver(l->fibers);
    fibers->relax(fibers->arg, round);
}

static uint64_t model_next(void *library)
{
    struct ordering_library *l = library;
    uint64_t next = uf_model_next(l->run->model);
    return next == UINT64_MAX ? next : next - l->began;
}

/* The library here looks at every tick: its own time is part of what is measured. */
static bool model_run(void *library, uint64_t until)
{
    struct ordering_library *l = library;
    l->run->now = l->began + until;
    uf_model_run(l->run->model, l->run->now);
    return true;
}

/* ---------------------------------------------------------------- open and close, a fiber each PE */

static int open_world(pe_world *w)
{
    struct ordering_library *l = w->library;
    ordering_run *r = l->run;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = (int)w->pe;
    o.n_pes = (int)r->n_pes;
    o.group = l->group;
    o.driver = &l->driver;
    o.fabric_ops = &ordering_port_ops;
    o.fabric_arg = &r->ports[w->pe];
    o.heap_bytes = 1 << 20;
    o.timeout_ns = LIMIT_NS;
    int rc = uf_world_create(&o, &w->world);
    rc = rc ? rc : uf_register(w->world, r->arena + w->pe * r->chunk, r->chunk, &w->window);
    rc = rc ? rc : uf_signal_alloc(w->world, l->slots, UF_SIGNAL_DEFAULT, &w->words);
    const uf_ctx_options options = {sizeof options, r->scheme->ordered ? UF_ORDERED : 0, 0};
    rc = rc ? rc : uf_ctx_create(w->world, &options, &w->ctx);
    return rc ? rc : uf_barrier(uf_team_world(w->world));
}

static void note(struct ordering_library *l, int rc)
{
    if (!rc || l->rc)
        return;
    l->rc = rc;
    snprintf(l->error, sizeof l->error, "%s", uf_error_message());
}

static void open_fiber(void *arg)
{
    pe_world *w = arg;
    note(w->library, open_world(w));
    if (w->library->rc && w->world)
        uf_world_abort(w->world, w->library->error);
}

static void close_fiber(void *arg)
{
    pe_world *w = arg;
    note(w->library, uf_world_destroy(w->world));
    w->world = NULL;
}

static int with_fibers(struct ordering_library *l, void (*body)(void *arg))
{
    int rc = uf_fibers_create(l->run->o->seed, STEP_NS, &l->fibers);
    if (rc)
        return rc;
    l->began = l->run->now;
    rc = uf_fibers_attach(l->fibers, model_next, model_run, l);
    for (uint32_t pe = 0; !rc && pe < l->run->n_pes; pe++)
        rc = uf_fibers_add(l->fibers, body, &l->worlds[pe]);
    rc = rc ? rc : uf_fibers_run(l->fibers, LIMIT_NS);
    uf_fibers_destroy(l->fibers);
    l->fibers = NULL;
    return rc ? rc : l->rc ? uf_error_set(l->rc, l->error) : UF_OK;
}

/* An application that wants so many puts in flight has a queue for them: a flow may hold four fifths of it. */
static void set_depth(const ordering_options *o)
{
    char text[16];
    uint32_t depth = 1024;
    while (depth < o->inflight * 2 && depth < 4096)
        depth *= 2;
    snprintf(text, sizeof text, "%u", depth);
    setenv("UNFENCE_QUEUE_DEPTH", text, 1);
}

int ordering_library_open(ordering_run *r)
{
    struct ordering_library *l = calloc(1, sizeof *l + r->n_pes * sizeof l->worlds[0]);
    if (!l)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u worlds", r->n_pes);
    r->library = l;
    l->run = r;
    l->driver = (uf_driver){l, driver_now, driver_relax, false};
    l->slots = ordering_puts_to(r, 1);
    for (uint32_t pe = 0; pe < r->n_pes; pe++)
        l->worlds[pe] = (pe_world){.library = l, .pe = pe};
    int rc = uf_group_create((int)r->n_pes, &l->group);
    if (rc)
        return rc;
    const char *depth = getenv("UNFENCE_QUEUE_DEPTH");
    if (!depth)
        set_depth(r->o);
    rc = with_fibers(l, open_fiber);
    if (!depth)
        unsetenv("UNFENCE_QUEUE_DEPTH");
    return rc;
}

static void count_held(const ordering_run *r)
{
    for (uint32_t pe = 1; pe < r->n_pes; pe++) {
        uf_order_counters counters;
        uint64_t eagain;
        uf_engine_counters(r->library->worlds[pe].world->engine, &counters, &eagain);
        r->result->receiver_work += counters.held_receiver;
    }
}

void ordering_library_close(ordering_run *r)
{
    struct ordering_library *l = r->library;
    if (!l)
        return;
    bool all = true;
    for (uint32_t pe = 0; pe < r->n_pes; pe++)
        all = all && l->worlds[pe].world;
    if (all) {
        count_held(r);
        (void)with_fibers(l, close_fiber);
    }
    uf_group_destroy(l->group);
    free(l);
    r->library = NULL;
}

/* ---------------------------------------------------------------- the sender */

static pe_world *sender_of(const ordering_run *r)
{
    return &r->library->worlds[0];
}

static void *place_at(const ordering_run *r, uint64_t n)
{
    return uf_window_at(sender_of(r)->window, ordering_slot_of(r, n) * r->o->bytes);
}

static int put_signal(ordering_run *r, uint64_t n)
{
    pe_world *w = sender_of(r);
    return uf_put_signal_nbi(w->ctx, place_at(r, n), r->arena, r->o->bytes, &w->words[ordering_slot_of(r, n)], UF_SIGNAL_ADD, 1,
                             (int)ordering_peer_of(r, n), UF_NOWAIT | (r->scheme->every ? UF_STRONG : UF_WEAK));
}

static bool ends_batch(const ordering_run *r, uint64_t n)
{
    uint32_t slot = ordering_slot_of(r, n);
    return slot % r->o->batch == r->o->batch - 1 || slot + 1 == ordering_puts_to(r, ordering_peer_of(r, n));
}

/* Puts, and after the last of a batch one signal for all of them. A put whose signal finds no room is not started. */
static int put_strong(ordering_run *r, uint64_t n)
{
    pe_world *w = sender_of(r);
    uint32_t peer = ordering_peer_of(r, n);
    bool *owed = &r->library->worlds[peer].owed;
    int rc = *owed ? UF_OK : uf_put_nbi(w->ctx, place_at(r, n), r->arena, r->o->bytes, (int)peer);
    if (rc || !ends_batch(r, n))
        return rc;
    rc = uf_signal(w->ctx, &w->words[ordering_slot_of(r, n)], UF_SIGNAL_ADD, 1, (int)peer, UF_STRONG | UF_NOWAIT);
    *owed = rc == UF_EAGAIN;
    return rc;
}

/* ---------------------------------------------------------------- the peers */

/* The word of put `slot` was raised: what it tells. */
static int raised(ordering_run *r, pe_world *w, uint32_t slot)
{
    if (uf_signal_fetch(&w->words[slot]) != 1)
        return uf_fail(UF_EINTERNAL, "ordering: word %u of PE %u is %llu, and one signal was sent to it", slot, w->pe,
                       (unsigned long long)uf_signal_fetch(&w->words[slot]));
    if (r->scheme->every || !r->scheme->in_order)
        return ordering_saw(r, ordering_put_of(r, w->pe, slot));
    int rc = UF_OK;
    while (!rc && w->from <= slot)
        rc = ordering_saw(r, ordering_put_of(r, w->pe, w->from++));
    return rc;
}

static int look(ordering_run *r, pe_world *w)
{
    uint32_t end = ordering_issued_to(r, w->pe);
    int rc = UF_OK;
    for (uint32_t slot = w->looked; slot < end && !rc; slot++)
        if (uf_signal_fetch(&w->words[slot]) && !r->is_seen[ordering_put_of(r, w->pe, slot)])
            rc = raised(r, w, slot);
    while (w->looked < end && r->is_seen[ordering_put_of(r, w->pe, w->looked)])
        w->looked++;
    return rc;
}

int ordering_library_turn(ordering_run *r, uint32_t pe)
{
    pe_world *w = &r->library->worlds[pe];
    uint64_t arrived = r->ports[pe].arrived;
    int rc = uf_progress(w->world);
    return rc || pe == 0 || arrived == r->ports[pe].arrived ? rc : look(r, w);
}

const ordering_scheme ordering_counted = {
    .name = "counted",
    .text = "ours: uf_put_signal_nbi, weak",
    .open = ordering_library_open,
    .close = ordering_library_close,
    .put = put_signal,
    .turn = ordering_library_turn,
};

const ordering_scheme ordering_ordered = {
    .name = "ordered",
    .text = "ours: uf_put_signal_nbi, strong, in an ordered context",
    .in_order = true,
    .ordered = true,
    .every = true,
    .open = ordering_library_open,
    .close = ordering_library_close,
    .put = put_signal,
    .turn = ordering_library_turn,
};

const ordering_scheme ordering_strong = {
    .name = "strong",
    .text = "ours: a batch of uf_put_nbi to each peer and one strong uf_signal",
    .in_order = true,
    .open = ordering_library_open,
    .close = ordering_library_close,
    .put = put_strong,
    .turn = ordering_library_turn,
};
