/* monitor.c - userfaultfd as a messenger of unmapping, with a thread that keeps unmappers from waiting. See monitor.h for why it is sound.
 *
 * The thread and every caller of uf_monitor_sync read events and handle them inside one lock, so "read" always means "handled" to
 * whoever holds it. The thread allocates nothing, ever: it would wait for itself. */
#include "world/monitor.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* Turns given to a call that changes memory and has not yet told us what. */
enum { UF_MONITOR_TURNS = 4096, UF_MONITOR_TRIAL_MS = 2000 };

struct uf_monitor {
    uf_monitor_changed changed;
    void *arg;
    pthread_mutex_t lock;
    pthread_t thread;
    int uffd, stop;
    void *probe; /* a watched page of our own: where sync asks whether a change is under way */
    size_t page;
};

static bool watch_range(int uffd, uintptr_t start, uintptr_t end)
{
    struct uffdio_register r = {.range = {.start = start, .len = end - start}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(uffd, UFFDIO_REGISTER, &r) == 0;
}

/* Asks the kernel whether a watched range is changing and its event is not yet read. */
static bool change_under_way(const uf_monitor *m)
{
    struct uffdio_writeprotect w = {.range = {.start = (uintptr_t)m->probe, .len = m->page}, .mode = 0};
    return ioctl(m->uffd, UFFDIO_WRITEPROTECT, &w) != 0;
}

static void handle(const uf_monitor *m, const struct uffd_msg *event)
{
    switch (event->event) {
    case UFFD_EVENT_UNMAP:
    case UFFD_EVENT_REMOVE:
        m->changed(m->arg, event->arg.remove.start, event->arg.remove.end);
        break;
    case UFFD_EVENT_REMAP:
        m->changed(m->arg, event->arg.remap.from, event->arg.remap.from + event->arg.remap.len);
        break;
    default: /* nothing else was asked for; what we do not understand ends all trust in what is kept */
        m->changed(m->arg, 0, UINTPTR_MAX);
        break;
    }
}

/* With the lock held: everything that can be read now. */
static void drain(const uf_monitor *m)
{
    struct uffd_msg events[16];
    ssize_t n;
    while ((n = read(m->uffd, events, sizeof(events))) > 0)
        for (size_t i = 0; i < (size_t)n / sizeof(events[0]); i++)
            handle(m, &events[i]);
}

/* Until the descriptor is closed unmappers of watched memory wait for us, so it is closed here and not by whoever joins this thread: the
 * join itself may unmap stacks of ended threads, and they may be watched. */
static void *end_watch(uf_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    close(m->uffd);
    m->uffd = -1;
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static void *monitor_main(void *arg)
{
    uf_monitor *m = arg;
    struct pollfd fds[2] = {{.fd = m->uffd, .events = POLLIN}, {.fd = m->stop, .events = POLLIN}};
    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return end_watch(m);
        if (fds[1].revents)
            return end_watch(m);
        pthread_mutex_lock(&m->lock);
        drain(m);
        pthread_mutex_unlock(&m->lock);
    }
}

typedef struct trial {
    void *page;
    size_t bytes;
} trial;

static void *trial_main(void *arg)
{
    const trial *t = arg;
    munmap(t->page, t->bytes);
    return NULL;
}

/* Starts a thread that handles no signals of the program's. */
static bool start_thread(pthread_t *thread, void *(*start)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, start, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

/* Does this kernel keep both promises? Another thread unmaps a watched page: the event must come while the call is under way, and until
 * it is read the kernel must say so. Whatever happens the thread ends, at the latest when the caller closes uffd. */
static bool keeps_promises(const uf_monitor *m, trial *t, pthread_t *thread, bool *started)
{
    t->bytes = m->page;
    t->page = mmap(NULL, m->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->page == MAP_FAILED)
        return false;
    uintptr_t start = (uintptr_t)t->page;
    if (!watch_range(m->uffd, start, start + m->page) || change_under_way(m)) {
        munmap(t->page, m->page);
        return false;
    }
    *started = start_thread(thread, trial_main, t);
    if (!*started)
        return false;
    struct pollfd fd = {.fd = m->uffd, .events = POLLIN};
    struct uffd_msg event;
    if (poll(&fd, 1, UF_MONITOR_TRIAL_MS) != 1 || !change_under_way(m) || errno != EAGAIN)
        return false;
    if (read(m->uffd, &event, sizeof(event)) != (ssize_t)sizeof(event) || event.event != UFFD_EVENT_UNMAP)
        return false;
    return event.arg.remove.start <= start && event.arg.remove.end >= start + m->page;
}

static const char *open_uffd(uf_monitor *m)
{
    m->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (m->uffd < 0)
        return "not kept: this system does not let us use userfaultfd, so unmapped memory would go unseen";
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP |
                                         UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    if (ioctl(m->uffd, UFFDIO_API, &api) != 0)
        return "not kept: this kernel's userfaultfd has no events of unmapping";
    m->probe = mmap(NULL, m->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (m->probe == MAP_FAILED)
        return "not kept: no memory for the monitor";
    uintptr_t probe = (uintptr_t)m->probe;
    if (!watch_range(m->uffd, probe, probe + m->page))
        return "not kept: this kernel's userfaultfd cannot watch memory without holding up its page faults";
    return NULL;
}

uf_monitor *uf_monitor_create(uf_monitor_changed changed, void *arg, const char **why)
{
    uf_monitor *m = calloc(1, sizeof(*m));
    *why = "not kept: no memory for the monitor";
    if (!m)
        return NULL;
    *m = (uf_monitor){.changed = changed, .arg = arg, .uffd = -1, .stop = -1, .probe = MAP_FAILED};
    m->page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&m->lock, NULL);
    trial t;
    pthread_t trial_thread;
    bool started = false, sound = false;
    const char *fault = open_uffd(m);
    if (!fault) {
        sound = keeps_promises(m, &t, &trial_thread, &started);
        fault = "not kept: this kernel's userfaultfd does not tell of unmapping before it is over";
    }
    if (sound) {
        m->stop = eventfd(0, EFD_CLOEXEC);
        fault = "not kept: no thread or descriptor for the monitor";
        sound = m->stop >= 0 && start_thread(&m->thread, monitor_main, m);
    }
    if (!sound && m->uffd >= 0) {
        close(m->uffd); /* lets whoever waits for us go on */
        m->uffd = -1;
    }
    if (started)
        pthread_join(trial_thread, NULL);
    if (sound) {
        *why = "kept while userfaultfd tells of unmapping";
        return m;
    }
    *why = fault;
    if (m->stop >= 0)
        close(m->stop);
    if (m->probe != MAP_FAILED)
        munmap(m->probe, m->page);
    pthread_mutex_destroy(&m->lock);
    free(m);
    return NULL;
}

void uf_monitor_destroy(uf_monitor *m)
{
    if (!m)
        return;
    uint64_t one = 1;
    while (write(m->stop, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    pthread_join(m->thread, NULL);
    close(m->stop);
    munmap(m->probe, m->page);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void uf_monitor_lock(uf_monitor *m)
{
    pthread_mutex_lock(&m->lock);
}

void uf_monitor_unlock(uf_monitor *m)
{
    pthread_mutex_unlock(&m->lock);
}

bool uf_monitor_sync(uf_monitor *m)
{
    for (int turn = 0; turn < UF_MONITOR_TURNS; turn++) {
        if (!change_under_way(m))
            return true;
        if (errno != EAGAIN)
            return false;
        drain(m);
        if (turn > 16)
            sched_yield();
    }
    return false;
}

/* True if `line` of /proc/self/maps is anonymous private memory; its bounds in any case. */
static bool anonymous_private(const char *line, uintptr_t *start, uintptr_t *end)
{
    unsigned long from, to, inode = 1;
    char mode[8];
    if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, mode, &inode) != 4) {
        *start = *end = 0;
        return false;
    }
    *start = from;
    *end = to;
    return inode == 0 && mode[3] == 'p';
}

/* True if every page of [start, end) is anonymous private memory. No stdio: its buffers are malloc's. */
static bool all_anonymous(uintptr_t start, uintptr_t end)
{
    char text[4096];
    size_t have = 0;
    uintptr_t covered = start;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool good = true;
    while (good && covered < end) {
        ssize_t n = read(fd, text + have, sizeof(text) - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = '\0';
        char *line = text, *next;
        while (good && covered < end && (next = strchr(line, '\n')) != NULL) {
            uintptr_t from, to;
            bool anonymous = anonymous_private(line, &from, &to);
            if (from <= covered && covered < to) {
                good = anonymous;
                covered = to;
            }
            line = next + 1;
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
        if (have == sizeof(text) - 1)
            have = 0; /* a line longer than any of the kernel's: skip it, its range stays uncovered */
    }
    close(fd);
    return good && covered >= end;
}

bool uf_monitor_watch(uf_monitor *m, uintptr_t start, uintptr_t end)
{
    return watch_range(m->uffd, start, end) && all_anonymous(start, end);
}
