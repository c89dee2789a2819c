/* thread.c - the progress thread: moves data while the program computes, and keeps away while the program communicates.
 *
 * It runs one step after another while steps find something, a short spin longer, and then sleeps: on the fabric's descriptor
 * where there is one, else for 50 us. While callers take steps themselves it only looks in every millisecond, so that a
 * ping-pong between two PEs is not disturbed. Kernels can't wake it and call nothing: with command queues it spins longer, never
 * sleeps for long, and leaves nothing to callers. Every millisecond or so it ticks the world (news of deaths), which also is all it does in a
 * world without a network. It never holds the lock while it sleeps. */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/private.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum {
    TICK_NS = 1000000,
    SHORT_SLEEP_NS = 50000,
    LONG_SLEEP_NS = 1000000,
    NO_NETWORK_SLEEP_NS = 10000000, /* only news of deaths to look for */
    SPINS_ALONE = 2000,             /* looks without finding anything, when every PE has a core */
    SPINS_CROWDED = 4,
    /* With command queues: how long it looks on after it found something. Between two commands of a kernel lies what it computes. */
    QUEUE_SPIN_NS = 20000000,
    QUEUE_SPIN_CROWDED_NS = 100000,
};

static uint32_t spin_limit(const uf_engine *e)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    /* A second core per PE is needed for a thread that spins beside the program. */
    return (uint32_t)cores >= 2 * e->local_pes ? SPINS_ALONE : SPINS_CROWDED;
}

/* Sleeps until a descriptor is ready, uf_engine_thread_stop calls, or `ns` pass. fd -1: none. */
static void sleep_on(uf_engine *e, int fd, long ns)
{
    struct pollfd fds[2] = {{e->wake[0], POLLIN, 0}, {fd, POLLIN, 0}};
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    ppoll(fds, fd >= 0 ? 2 : 1, &t, NULL);
}

static void rest(uf_engine *e, bool callers_work)
{
    bool queues = uf_engine_has_queues(e);
    if (!queues && (!e->fabric || callers_work)) {
        sleep_on(e, -1, e->fabric ? LONG_SLEEP_NS : NO_NETWORK_SLEEP_NS);
        return;
    }
    int fd = !queues && e->fabric->ops->wait_fd ? e->fabric->ops->wait_fd(e->fabric) : -1;
    if (fd >= 0 && uf_engine_thread_arm(e))
        sleep_on(e, fd, LONG_SLEEP_NS);
    else
        sleep_on(e, -1, SHORT_SLEEP_NS);
}

/* How long the thread has found nothing. */
typedef struct idleness {
    uint32_t limit, looks;
    uint64_t since;
} idleness;

/* True: look again at once. */
static bool look_on(uf_engine *e, idleness *idle, uint64_t now)
{
    if (!uf_engine_has_queues(e))
        return e->fabric && ++idle->looks < idle->limit;
    bool crowded = idle->limit == SPINS_CROWDED;
    if (crowded)
        sched_yield();
    return now - idle->since < (crowded ? QUEUE_SPIN_CROWDED_NS : QUEUE_SPIN_NS);
}

static void *thread_main(void *arg)
{
    uf_engine *e = arg;
    idleness idle = {.limit = spin_limit(e)};
    uint64_t next_tick = 0, seen = 0;
    if (e->want_near && e->fabric && uf_engine_stay_near("", e->fabric->caps.device, e->local_pes))
        uf_log(UF_LOG_INFO, e->pe, "the progress thread stays on the cores near %s (UNFENCE_PIN_PROGRESS=no lets it go)",
               e->fabric->caps.device);
    while (!atomic_load_explicit(&e->stop, memory_order_acquire)) {
        uint64_t now = e->driver->now(e->driver->arg);
        if (now >= next_tick) {
            e->host.tick(e->host.arg, now);
            next_tick = now + TICK_NS;
        }
        uint64_t steps = atomic_load_explicit(&e->inline_steps, memory_order_relaxed);
        bool queues = uf_engine_has_queues(e), callers_work = !queues && steps != seen;
        seen = steps;
        int n = !(e->fabric || queues) || callers_work ? 0 : uf_engine_thread_step(e);
        if (n != 0) {
            idle.looks = 0;
            idle.since = now;
            if (n < 0) /* somebody holds the lock: it will make the step */
                sched_yield();
            continue;
        }
        if (!callers_work && look_on(e, &idle, now))
            continue;
        idle.looks = 0;
        rest(e, callers_work);
    }
    return NULL;
}

int uf_engine_thread_start(uf_engine *e)
{
    if (pipe2(e->wake, O_CLOEXEC | O_NONBLOCK))
        return uf_fail_errno(UF_ESYSTEM, errno,
                             "PE %d: no descriptors for the progress thread; raise the open-file limit (ulimit -n)", e->pe);
    /* The program's signals are the program's: the thread takes none. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&e->thread, NULL, thread_main, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        close(e->wake[0]);
        close(e->wake[1]);
        return uf_fail_errno(UF_ESYSTEM, rc, "PE %d: the progress thread could not start", e->pe);
    }
    e->thread_runs = true;
    return UF_OK;
}

void uf_engine_thread_stop(uf_engine *e)
{
    if (!e->thread_runs)
        return;
    atomic_store_explicit(&e->stop, true, memory_order_release);
    ssize_t ignored = write(e->wake[1], "x", 1); /* a full pipe wakes it just as well */
    (void)ignored;
    pthread_join(e->thread, NULL);
    close(e->wake[0]);
    close(e->wake[1]);
    e->thread_runs = false;
}
