/* run_keeper.c - the process that ends the PEs' groups if the launcher cannot do so any more. It only reads numbers and sends one signal. */
#include "run_keeper.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOOD_BYE ((pid_t)0)

/* All descriptors but `fd`: a reader of our output must not wait for us, and nobody's files are kept open. */
static void close_others(int fd)
{
    if (fd > 0)
        close_range(0, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, ~0u, 0);
}

static void keeper_main(int fd)
{
    pid_t *groups = NULL;
    size_t n = 0, capacity = 0;
    sigset_t all;
    pid_t group;
    ssize_t got;
    setsid(); /* away from the terminal and from whoever signals the launcher's group */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    close_others(fd);
    /* Numbers are smaller than what a pipe writes in one piece. */
    while ((got = read(fd, &group, sizeof group)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof group)
            break;
        if (group == GOOD_BYE)
            _exit(0);
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            pid_t *grown = realloc(groups, capacity * sizeof *groups);
            if (!grown)
                break;
            groups = grown;
        }
        groups[n++] = group;
    }
    for (size_t i = 0; i < n; i++)
        kill(-groups[i], SIGKILL);
    _exit(0);
}

void run_keeper_start(run_keeper *keeper)
{
    int fds[2];
    *keeper = (run_keeper){.pid = -1, .fd = -1};
    if (pipe2(fds, O_CLOEXEC))
        return;
    keeper->pid = fork();
    if (keeper->pid == 0)
        keeper_main(fds[0]);
    close(fds[0]);
    if (keeper->pid < 0) {
        close(fds[1]);
        return;
    }
    keeper->fd = fds[1];
}

void run_keeper_add(run_keeper *keeper, pid_t group)
{
    if (keeper->fd >= 0 && write(keeper->fd, &group, sizeof group) != sizeof group) {
        close(keeper->fd); /* it is gone; the kernel still kills the PEs themselves */
        keeper->fd = -1;
    }
}

void run_keeper_end(run_keeper *keeper)
{
    run_keeper_add(keeper, GOOD_BYE);
    if (keeper->fd >= 0)
        close(keeper->fd);
    keeper->fd = -1;
    while (keeper->pid > 0 && waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    keeper->pid = -1;
}
