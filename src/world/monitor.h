/* monitor.h - sees memory of this process being unmapped, moved or discarded, before anybody can use what comes after it.
 *
 * Built on userfaultfd with the events UNMAP, REMOVE and REMAP and nothing else of it: ranges are registered in write-protect
 * mode and never protected, so no page fault is ever held up. The kernel promises two things, and creation tries both out once:
 *   - munmap, mremap and madvise(DONTNEED, FREE, REMOVE) of a watched range do not return to their caller before the
 *     event was read. Hence the monitor's own thread: whoever unmaps must not have to wait for somebody's next operation.
 *   - While such a call is under way and its event unread, UFFDIO_WRITEPROTECT says EAGAIN, from before the address can be mapped anew. So
 *     uf_monitor_sync, which reads events until that is over, closes the gap in which another thread already got the
 *     same addresses from mmap while the unmapping call still waits.
 * Only anonymous private memory is watched: files can lose pages with no event. Intercepting malloc and munmap by name was not
 * chosen: it misses what is linked statically, called directly or done by madvise. */
#ifndef UF_WORLD_MONITOR_H
#define UF_WORLD_MONITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uf_monitor uf_monitor;

/* Called for each range that changed, from the monitor's thread or from uf_monitor_sync, always inside `lock`. Must not allocate, free or
 * unmap. */
typedef void (*uf_monitor_changed)(void *arg, uintptr_t start, uintptr_t end);

/* NULL if this system has no sound monitor; *why is a static sentence either way. */
uf_monitor *uf_monitor_create(uf_monitor_changed changed, void *arg, const char **why);
void uf_monitor_destroy(uf_monitor *monitor);

/* The lock that events are handled under. Whoever holds it must not do what could unmap memory: no malloc, no free. */
void uf_monitor_lock(uf_monitor *monitor);
void uf_monitor_unlock(uf_monitor *monitor);

/* With the lock held: handles all events of changes whose memory could have been given out anew. False: it could not (a change kept being
 * under way); trust nothing kept then. */
bool uf_monitor_sync(uf_monitor *monitor);
/* Watches [start, end), page-aligned, from now on; again is harmless. False if it can't be watched (not mapped throughout, not anonymous and
 * private, somebody else's userfaultfd). Not to be called with the lock held. */
bool uf_monitor_watch(uf_monitor *monitor, uintptr_t start, uintptr_t end);

#endif
