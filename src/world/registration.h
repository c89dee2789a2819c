/* registration.h - registrations of memory that is not symmetric: the sources of puts and targets of gets, on networks that need one.
 *
 * A registration pins pages. Keeping it after the pages were unmapped and others mapped at the same address would send or receive the
 * wrong memory silently, so one is kept only where a monitor (monitor.h) sees every such change before the memory can be used again;
 * elsewhere each operation gets its own. The registering itself is a callback, so this file knows no network.
 * Any thread. No lock is held during callbacks, and none is ever held where memory might be unmapped. */
#ifndef UF_WORLD_REGISTRATION_H
#define UF_WORLD_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct uf_engine_mr; /* engine/engine.h */

typedef struct uf_registry uf_registry;         /* of one PE */
typedef struct uf_registration uf_registration; /* one range, held by whoever got it */

typedef struct uf_registry_params {
    void *arg;
    /* As uf_engine_mr_register for local use. May be called by several threads at once. */
    int (*mr_register)(void *arg, void *ptr, size_t bytes, struct uf_engine_mr **mr);
    void (*mr_close)(void *arg, struct uf_engine_mr *mr);
    uint32_t max_kept; /* registrations kept after use; 0: none */
} uf_registry_params;

/* UF_ENOMEM. Without a sound monitor on this system it works all the same, keeping nothing (uf_registry_keeps tells, and why). */
int uf_registry_create(const uf_registry_params *params, uf_registry **registry);
/* Everything must have been given back. */
void uf_registry_destroy(uf_registry *registry);
/* True if registrations are kept; *why is a static sentence either way. */
bool uf_registry_keeps(const uf_registry *registry, const char **why);

/* A registration that covers [ptr, ptr + bytes), to be given back when the operation is done. Errors are those of mr_register. The memory must stay
 * mapped until then. bytes > 0. */
int uf_registry_get(uf_registry *registry, const void *ptr, size_t bytes, uf_registration **registration);
struct uf_engine_mr *uf_registration_mr(const uf_registration *registration);
/* Gives it back. Never calls mr_close and never blocks, so it may be called from inside the engine; what is to be closed is closed by
 * the next get or collect. */
void uf_registry_put(uf_registry *registry, uf_registration *registration);
/* Closes what nobody holds and nobody will find again. Call now and then (the world's tick), never from inside the engine. */
void uf_registry_collect(uf_registry *registry);

typedef struct uf_registry_counters {
    uint64_t hits, registrations; /* gets answered by a kept one; calls of mr_register that succeeded */
    uint64_t invalidated;         /* kept ones dropped since memory changed */
    uint64_t evicted;             /* kept ones dropped for room */
    uint32_t kept;                /* now */
} uf_registry_counters;
void uf_registry_counters_get(uf_registry *registry, uf_registry_counters *counters);

#endif
