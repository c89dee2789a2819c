/* processes.c - forks, waits, and never leaves a child behind. */
#include "multi/processes.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 60

process_table *processes_table(void)
{
    process_table *table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        abort();
    return table;
}

void processes_table_free(process_table *table)
{
    munmap(table, sizeof *table);
}

int processes_reserve(process_table *table)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || getsockname(fd, (struct sockaddr *)&address, &length))
        abort();
    snprintf(table->root, sizeof table->root, "127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

static time_t seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

int processes_await(_Atomic int *flag, int value)
{
    for (time_t end = seconds() + LIMIT_S; atomic_load(flag) < value; sched_yield())
        if (seconds() >= end)
            return -1;
    return 0;
}

int processes_run(process_table *table, int n, int (*body)(process_table *table, int pe))
{
    pid_t children[PROCESSES_MAX];
    int failed = 0;
    fflush(NULL);
    for (int pe = 0; pe < n; pe++) {
        children[pe] = fork();
        if (children[pe] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(body(table, pe));
        }
        if (children[pe] < 0)
            abort();
    }
    time_t end = seconds() + LIMIT_S;
    for (int pe = 0; pe < n; pe++) {
        int fd = (int)syscall(SYS_pidfd_open, children[pe], 0);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        time_t left = end - seconds();
        if (poll(&p, 1, left > 0 ? (int)left * 1000 : 0) != 1) {
            fprintf(stderr, "PE %d did not end\n", pe);
            kill(children[pe], SIGKILL);
        }
        waitpid(children[pe], &table->report[pe].status, 0);
        close(fd);
        failed += table->report[pe].status != 0;
    }
    return failed;
}
