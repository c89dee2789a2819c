/* doctor_facts.c - what only a running process can know: the libfabric it is linked with, providers tried, what the kernel lets it do. */
#include "base/clock.h"
#include "doctor.h"
#include "info.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef UNFENCE_WITH_OFI
#include <rdma/fabric.h>
#endif

#define TRIAL_NS 10000000000ull /* for a provider to open; they take milliseconds */

static const char *const provider_names[DOCTOR_PROVIDERS] = {"tcp", "shm", "efa", "efa-direct", "verbs"};

/* What the child says, whole or not at all: less than a pipe takes at once. */
typedef struct trial {
    bool usable;
    char why[400];
} trial;
_Static_assert(sizeof(trial) < 4096, "one write to a pipe");

static void try_in_child(const uf_settings *settings, uint64_t n_pes, const char *provider, int fd)
{
    static info_provider p;
    trial said = {0};
    info_probe(settings, n_pes, uf_fabric_find("ofi"), provider, &p);
    said.usable = p.usable;
    if (p.usable)
        snprintf(said.why, sizeof said.why, "%s, %s", p.caps.provider, p.caps.detail);
    else
        memcpy(said.why, p.refused, sizeof said.why);
    _exit(write(fd, &said, sizeof said) == sizeof said ? 0 : 1);
}

/* True if the child said something before the time was up. */
static bool hear(int fd, trial *said)
{
    uint64_t end = uf_clock_ns() + TRIAL_NS;
    for (uint64_t now = uf_clock_ns(); now < end; now = uf_clock_ns()) {
        struct pollfd wait = {fd, POLLIN, 0};
        int n = poll(&wait, 1, (int)((end - now) / 1000000) + 1);
        if (n > 0)
            return read(fd, said, sizeof *said) == sizeof *said;
        if (n < 0 && errno != EINTR)
            return false;
    }
    return false;
}

static void try_provider(const uf_settings *settings, uint64_t n_pes, doctor_provider *provider)
{
    int pipe_ends[2], status;
    trial said = {0};
    if (pipe2(pipe_ends, O_CLOEXEC)) {
        snprintf(provider->why, sizeof provider->why, "not tried: %s", strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0)
        try_in_child(settings, n_pes, provider->name, pipe_ends[1]);
    close(pipe_ends[1]);
    bool heard = child > 0 && hear(pipe_ends[0], &said);
    close(pipe_ends[0]);
    if (child < 0) {
        snprintf(provider->why, sizeof provider->why, "not tried: %s", strerror(errno));
        return;
    }
    kill(child, SIGKILL); /* it has said what it had to say, or never will */
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (heard) {
        provider->state = said.usable ? DOCTOR_OK : DOCTOR_MISSING;
        snprintf(provider->why, sizeof provider->why, "%.*s", (int)sizeof said.why - 1, said.why);
    } else {
        snprintf(provider->why, sizeof provider->why, "opening it crashed or did not end within %llu s",
                 TRIAL_NS / 1000000000ull);
    }
}

/* A seccomp profile that forbids it forbids it for the caller itself too. */
static int try_attach(void)
{
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : errno;
}

static int try_userfault(void)
{
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

void doctor_gather(doctor_facts *facts, const uf_settings *settings)
{
    host_read(facts->root, &facts->host);
    facts->heap = (uint64_t)settings->number[UF_SET_HEAP_SIZE];
    facts->attach = facts->userfault = -1;
    for (size_t i = 0; i < DOCTOR_PROVIDERS; i++)
        facts->providers[i] =
            (doctor_provider){.name = provider_names[i], .state = DOCTOR_UNKNOWN, .why = "only the host itself can tell"};
#ifdef UNFENCE_WITH_OFI
    facts->built_with_ofi = true;
#endif
    if (*facts->root)
        return;
    facts->attach = try_attach();
    facts->userfault = try_userfault();
#ifdef UNFENCE_WITH_OFI
    facts->libfabric_known = true;
    facts->libfabric[0] = FI_MAJOR(fi_version());
    facts->libfabric[1] = FI_MINOR(fi_version());
#endif
    for (size_t i = 0; i < DOCTOR_PROVIDERS; i++) {
        doctor_provider *provider = &facts->providers[i];
        if (facts->built_with_ofi) {
            try_provider(settings, facts->n_pes, provider);
        } else {
            provider->state = DOCTOR_MISSING;
            snprintf(provider->why, sizeof provider->why, "this build of Unfence is without libfabric");
        }
    }
}
