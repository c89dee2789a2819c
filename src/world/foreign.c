/* foreign.c - see foreign.h. The order of attempts: the system, and once it has refused a peer, that peer's inbox for good.
 *
 * An owner serves its inbox in every wait of its own and in its tick, so a program that computes answers within a tick (and
 * then goes on answering while requests keep coming). An initiator that waits serves its own inbox meanwhile: two PEs that put
 * into each other's windows never wait for each other in a circle. */
#include "world/foreign.h"
#include "base/error.h"
#include "fabric/local/inbox.h"

enum {
    INBOX_SLOTS = 8,
    SERVE_AT_ONCE = 8,
    PAUSE_ROUNDS = 64,    /* looks that find nothing before a tick ends */
    TICKS_PER_REAP = 256, /* who died is known by other ways within a few of them */
};

static bool shares_a_host(const uf_local_identity *a, const uf_local_identity *b)
{
    return memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0 && (a->pid != b->pid || a->pid_namespace != b->pid_namespace);
}

/* A function of what all PEs know alike, so all decide the same. */
static bool needed(const uf_world *w)
{
    for (int a = 0; a < w->n_pes; a++)
        for (int b = a + 1; b < w->n_pes; b++)
            if (shares_a_host(&w->peers[a].identity, &w->peers[b].identity))
                return true;
    return false;
}

int uf_foreign_create(uf_world *w)
{
    void *memory;
    if (!needed(w))
        return UF_OK;
    int rc = uf_memory_alloc(w, "inbox", uf_local_inbox_bytes(INBOX_SLOTS), 64, &memory);
    if (!rc)
        w->inbox = uf_local_inbox_init(memory, INBOX_SLOTS);
    return rc;
}

/* ---------------------------------------------------------------- owner */

/* Only windows may be reached so: a heap is mapped, and nothing else is anybody's business. */
static int in_a_window(void *arg, uint32_t pe, uint64_t address, size_t bytes, uf_local_ask ask)
{
    uf_world *w = arg;
    (void)pe;
    (void)ask;
    const uf_region *r = uf_memory_find(w, (const void *)(uintptr_t)address, bytes);
    return r && r->heap_offset == SIZE_MAX && r->memory == UF_MEMORY_HOST ? UF_OK : UF_ERANGE;
}

static void apply(void *arg, uint64_t address, uf_local_atomic *a)
{
    (void)arg;
    a->old = uf_atomic_apply((void *)(uintptr_t)address, a->op, a->width, a->operand, a->compare);
}

int uf_foreign_serve(uf_world *w)
{
    if (!w->inbox)
        return 0;
    const uf_local_inbox_owner owner = {w, in_a_window, apply};
    return uf_local_inbox_serve(w->inbox, &owner, SERVE_AT_ONCE);
}

static bool lives(void *arg, uint32_t pe)
{
    const uf_world *w = arg;
    return pe < (uint32_t)w->n_pes && uf_local_alive(&w->peers[pe].identity);
}

void uf_foreign_tick(uf_world *w)
{
    if (!w->inbox)
        return;
    if (atomic_fetch_add_explicit(&w->inbox_ticks, 1, memory_order_relaxed) % TICKS_PER_REAP == TICKS_PER_REAP - 1)
        uf_local_inbox_reap(w->inbox, lives, w);
    if (uf_foreign_serve(w) == 0)
        return;
    for (uint32_t round = 0; round < PAUSE_ROUNDS; round++) {
        if (uf_foreign_serve(w) > 0)
            round = 0;
        w->driver->relax(w->driver->arg, round);
    }
}

/* ---------------------------------------------------------------- initiator */

static uf_local_inbox *inbox_of(uf_world *w, int pe)
{
    size_t offset = (size_t)((unsigned char *)w->inbox - w->range.base);
    return (uf_local_inbox *)(void *)(w->peers[pe].range.base + offset);
}

static int through_inbox(uf_world *w, int pe, uf_local_ask ask, uint64_t remote, void *local, size_t bytes)
{
    static const char *const names[] = {"get", "put", "signal or atomic"};
    uf_local_transfer t;
    uf_local_transfer_start(&t, inbox_of(w, pe), (uint32_t)w->pe, ask, remote, local, bytes);
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    int rc;
    for (uint32_t round = 0; (rc = uf_local_transfer_step(&t)) == UF_EAGAIN; round++) {
        rc = uf_world_wait_step(w, round, deadline);
        if (!rc)
            continue;
        size_t finished = t.finished;
        uf_local_transfer_abandon(&t);
        if (rc != UF_ETIMEDOUT)
            return rc;
        return uf_fail(
            rc,
            "PE %d: a %s of %zu bytes in a window of PE %d, a process of this host, has come to %zu bytes within %llu ms "
            "(UNFENCE_TIMEOUT): the PE makes no progress, and this system forbids copying without it "
            "(sysctl kernel.yama.ptrace_scope=0 allows it)",
            w->pe, names[ask], bytes, pe, finished, (unsigned long long)(w->timeout_ns / 1000000));
    }
    return rc;
}

static bool must_ask(const uf_world *w, int pe)
{
    return atomic_load_explicit(&w->peers[pe].no_attach, memory_order_relaxed);
}

/* After an attempt by the system: true if it refused and the owner can do it. */
static bool refused(uf_world *w, int pe, int rc)
{
    if (rc != UF_EUNSUPPORTED || !w->inbox)
        return false;
    atomic_store_explicit(&w->peers[pe].no_attach, true, memory_order_relaxed);
    return true;
}

int uf_foreign_put(uf_world *w, int pe, uint64_t remote, const void *local, size_t bytes)
{
    int rc = must_ask(w, pe) ? UF_EUNSUPPORTED : uf_local_copy_to(&w->peers[pe].identity, remote, local, bytes);
    return refused(w, pe, rc) ? through_inbox(w, pe, UF_LOCAL_ASK_WRITE, remote, (void *)(uintptr_t)local, bytes) : rc;
}

int uf_foreign_get(uf_world *w, int pe, uint64_t remote, void *local, size_t bytes)
{
    int rc = must_ask(w, pe) ? UF_EUNSUPPORTED : uf_local_copy_from(&w->peers[pe].identity, remote, local, bytes);
    return refused(w, pe, rc) ? through_inbox(w, pe, UF_LOCAL_ASK_READ, remote, local, bytes) : rc;
}

int uf_foreign_atomic(uf_world *w, int pe, uint64_t remote, uint8_t op, uint8_t width, uint64_t operand, uint64_t compare,
                      uint64_t *old)
{
    uf_local_atomic a = {.operand = operand, .compare = compare, .op = op, .width = width};
    if (!w->inbox)
        return uf_fail(UF_EINTERNAL, "PE %d: PE %d is another process of this host, but there is no inbox", w->pe, pe);
    int rc = through_inbox(w, pe, UF_LOCAL_ASK_ATOMIC, remote, &a, sizeof a);
    if (!rc)
        *old = a.old;
    return rc;
}
