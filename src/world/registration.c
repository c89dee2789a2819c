/* registration.c - the table of kept registrations, and the life of those that are not kept.
 *
 * Kept entries never overlap: a new one that touches old ones covers them, too, and they retire. An entry under registration
 * is in the list of pending ones, so that a change of its memory meanwhile is noticed: it is then used once and not kept. Retired
 * entries are closed when their last holder is gone, by a later get or collect, outside the lock.
 * Everything that the monitor's callback touches is reached without allocation. */
#include "world/registration.h"
#include "base/error.h"
#include "world/monitor.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct uf_registration {
    uintptr_t start, end;
    struct uf_engine_mr *mr;
    uint32_t holders;
    bool changed; /* its memory changed while it was pending */
    uint64_t last_used;
    uf_registration *next; /* in pending or retired */
};

struct uf_registry {
    uf_registry_params params;
    uf_monitor *monitor; /* NULL: nothing is kept, and `lock` is used */
    const char *why;
    pthread_mutex_t lock;
    size_t page;
    uf_registration **kept; /* [max_kept], ordered by start, disjoint */
    uint32_t n_kept;
    uf_registration *pending, *retired;
    uint64_t clock;
    uf_registry_counters counters;
};

static void lock(uf_registry *r)
{
    if (r->monitor)
        uf_monitor_lock(r->monitor);
    else
        pthread_mutex_lock(&r->lock);
}

static void unlock(uf_registry *r)
{
    if (r->monitor)
        uf_monitor_unlock(r->monitor);
    else
        pthread_mutex_unlock(&r->lock);
}

/* The number of the first kept entry that ends behind `at`; n_kept if there is none. */
static uint32_t first_behind(const uf_registry *r, uintptr_t at)
{
    uint32_t low = 0, high = r->n_kept;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->kept[middle]->end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void retire(uf_registry *r, uf_registration *e)
{
    e->next = r->retired;
    r->retired = e;
}

/* Takes `n` kept entries from number `at` on out of the table. */
static void drop_kept(uf_registry *r, uint32_t at, uint32_t n)
{
    if (n == 0)
        return;
    for (uint32_t i = at; i < at + n; i++)
        retire(r, r->kept[i]);
    memmove(&r->kept[at], &r->kept[at + n], (r->n_kept - at - n) * sizeof(r->kept[0]));
    r->n_kept -= n;
}

/* How many kept entries from number `at` on begin before `end`. */
static uint32_t count_before(const uf_registry *r, uint32_t at, uintptr_t end)
{
    uint32_t n = 0;
    while (at + n < r->n_kept && r->kept[at + n]->start < end)
        n++;
    return n;
}

/* The monitor's callback. Inside the lock; must not allocate or free. */
static void memory_changed(void *arg, uintptr_t start, uintptr_t end)
{
    uf_registry *r = arg;
    uint32_t at = first_behind(r, start), n = count_before(r, at, end);
    drop_kept(r, at, n);
    r->counters.invalidated += n;
    for (uf_registration *e = r->pending; e; e = e->next)
        if (e->start < end && start < e->end)
            e->changed = true;
}

int uf_registry_create(const uf_registry_params *params, uf_registry **registry)
{
    uf_registry *r = calloc(1, sizeof(*r));
    if (!r)
        return uf_fail(UF_ENOMEM, "no memory for the table of registrations (%zu bytes)", sizeof(*r));
    r->params = *params;
    r->page = (size_t)sysconf(_SC_PAGESIZE);
    r->why = "not kept: switched off";
    pthread_mutex_init(&r->lock, NULL);
    if (params->max_kept) {
        r->kept = calloc(params->max_kept, sizeof(r->kept[0]));
        if (!r->kept) {
            pthread_mutex_destroy(&r->lock);
            free(r);
            return uf_fail(UF_ENOMEM, "no memory for a table of %u registrations", params->max_kept);
        }
        r->monitor = uf_monitor_create(memory_changed, r, &r->why);
    }
    *registry = r;
    return UF_OK;
}

void uf_registry_destroy(uf_registry *r)
{
    if (!r)
        return;
    lock(r);
    drop_kept(r, 0, r->n_kept);
    /* What still is held belongs to operations of a world that failed: nobody will end them. */
    for (uf_registration *e = r->retired; e; e = e->next)
        e->holders = 0;
    unlock(r);
    uf_registry_collect(r);
    uf_monitor_destroy(r->monitor);
    pthread_mutex_destroy(&r->lock);
    free(r->kept);
    free(r);
}

bool uf_registry_keeps(const uf_registry *r, const char **why)
{
    *why = r->why;
    return r->monitor != NULL;
}

void uf_registry_collect(uf_registry *r)
{
    uf_registration *garbage = NULL;
    lock(r);
    for (uf_registration **at = &r->retired; *at;) {
        uf_registration *e = *at;
        if (e->holders) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = garbage;
        garbage = e;
    }
    unlock(r);
    while (garbage) {
        uf_registration *e = garbage;
        garbage = e->next;
        r->params.mr_close(r->params.arg, e->mr);
        free(e);
    }
}

/* Room for one more in the table: false if everything kept is held. */
static bool evict_one(uf_registry *r)
{
    uint32_t oldest = r->n_kept;
    for (uint32_t i = 0; i < r->n_kept; i++)
        if (!r->kept[i]->holders && (oldest == r->n_kept || r->kept[i]->last_used < r->kept[oldest]->last_used))
            oldest = i;
    if (oldest == r->n_kept)
        return false;
    drop_kept(r, oldest, 1);
    r->counters.evicted++;
    return true;
}

/* Drops everything kept that nobody holds: what the system refuses to register may fit then. True if there was any. */
static bool evict_all(uf_registry *r)
{
    bool any = false;
    lock(r);
    while (evict_one(r))
        any = true;
    unlock(r);
    if (any)
        uf_registry_collect(r);
    return any;
}

/* With the lock held and the monitor in step: a kept entry that covers [start, end), or NULL. */
static uf_registration *find(uf_registry *r, uintptr_t start, uintptr_t end)
{
    uint32_t i = first_behind(r, start);
    if (i == r->n_kept || r->kept[i]->start > start || r->kept[i]->end < end)
        return NULL;
    uf_registration *e = r->kept[i];
    e->holders++;
    e->last_used = ++r->clock;
    r->counters.hits++;
    return e;
}

/* Widens a new entry over the kept ones that it overlaps, and makes it known to the monitor's callback. */
static void begin(uf_registry *r, uf_registration *e)
{
    uint32_t at = first_behind(r, e->start), n = count_before(r, at, e->end);
    if (n) {
        if (r->kept[at]->start < e->start)
            e->start = r->kept[at]->start;
        if (r->kept[at + n - 1]->end > e->end)
            e->end = r->kept[at + n - 1]->end;
    }
    e->next = r->pending;
    r->pending = e;
}

static void end_pending(uf_registry *r, uf_registration *e)
{
    uf_registration **at = &r->pending;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
}

/* Puts a registered entry into the table if its memory is still what was registered and there is room. False: it was not kept. */
static bool keep(uf_registry *r, uf_registration *e)
{
    if (!uf_monitor_sync(r->monitor) || e->changed)
        return false;
    uint32_t i = first_behind(r, e->start);
    drop_kept(r, i, count_before(r, i, e->end));
    if (r->n_kept == r->params.max_kept && !evict_one(r))
        return false;
    i = first_behind(r, e->start);
    memmove(&r->kept[i + 1], &r->kept[i], (r->n_kept - i) * sizeof(r->kept[0]));
    r->kept[i] = e;
    r->n_kept++;
    return true;
}

static int register_range(uf_registry *r, uf_registration *e, uintptr_t start, uintptr_t end)
{
    return r->params.mr_register(r->params.arg, (void *)start, end - start, &e->mr);
}

/* Registers a new entry, wide enough to be found again if it may be kept, else (or if that fails, since what lies around may be gone) exactly
 * what the caller has. */
static int register_new(uf_registry *r, uf_registration *e, uintptr_t start, uintptr_t end)
{
    /* Only this thread changes a pending entry's bounds, so it may read them without the lock. */
    bool wide = r->monitor && uf_monitor_watch(r->monitor, e->start, e->end);
    int rc = wide ? register_range(r, e, e->start, e->end) : UF_EUNSUPPORTED;
    if (rc != UF_OK) {
        wide = false;
        rc = register_range(r, e, start, end);
    }
    if (rc != UF_OK && evict_all(r))
        rc = register_range(r, e, start, end);
    lock(r);
    end_pending(r, e);
    if (rc == UF_OK) {
        r->counters.registrations++;
        if (!wide || !keep(r, e))
            retire(r, e); /* it serves its one holder */
    }
    unlock(r);
    return rc;
}

/* A kept registration, or NULL. The common case: one lock, one system call, no allocation. */
static uf_registration *get_kept(uf_registry *r, uintptr_t start, uintptr_t end)
{
    if (!r->monitor)
        return NULL;
    lock(r);
    uf_registration *found = uf_monitor_sync(r->monitor) ? find(r, start, end) : NULL;
    unlock(r);
    return found;
}

int uf_registry_get(uf_registry *r, const void *ptr, size_t bytes, uf_registration **registration)
{
    uintptr_t start = (uintptr_t)ptr, end = start + bytes, mask = r->page - 1;
    if (bytes == 0 || end < start)
        return uf_fail(UF_EINVAL, "cannot register %zu bytes at %p", bytes, ptr);
    uf_registration *e = get_kept(r, start, end);
    if (e) {
        *registration = e;
        return UF_OK;
    }
    uf_registry_collect(r);
    e = calloc(1, sizeof(*e)); /* outside the lock: see monitor.h */
    if (!e)
        return uf_fail(UF_ENOMEM, "no memory for a registration's entry (%zu bytes)", sizeof(*e));
    *e = (uf_registration){.start = start & ~mask, .end = (end + mask) & ~mask, .holders = 1};
    lock(r);
    e->last_used = ++r->clock;
    begin(r, e);
    unlock(r);
    int rc = register_new(r, e, start, end);
    if (rc != UF_OK) {
        free(e);
        return rc;
    }
    *registration = e;
    return UF_OK;
}

struct uf_engine_mr *uf_registration_mr(const uf_registration *registration)
{
    return registration->mr;
}

void uf_registry_put(uf_registry *r, uf_registration *registration)
{
    lock(r);
    registration->holders--;
    unlock(r);
}

void uf_registry_counters_get(uf_registry *r, uf_registry_counters *counters)
{
    lock(r);
    r->counters.kept = r->n_kept;
    *counters = r->counters;
    unlock(r);
}
