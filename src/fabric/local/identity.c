/* identity.c - do two PEs share a kernel, and can one map the other's memory?
 *
 * The same kernel is told by its boot_id, whatever the namespaces: containers of one host are one host. Reach is told by
 * trial: each PE keeps a tiny memfd with a random nonce, and a peer that opens it through /proc/<pid>/fd/<n> and reads the nonce can
 * open the heap the same way. The nonce also tells a live process from a later one that got its pid. Nothing here has a
 * name in a file system, and nothing is ever opened before its kind is known: opening a stranger's FIFO or terminal has effects. */
#include "fabric/local/identity.h"
#include "base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int read_file(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, bytes - 1);
    int error = errno;
    close(fd);
    if (n < 0)
        return -error;
    text[n] = '\0';
    return (int)n;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "01234567-89ab-..." as 16 bytes. */
static int read_boot_id(unsigned char id[16])
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char text[64];
    int n = read_file(path, text, sizeof(text)), digits = 0;
    if (n < 0)
        return uf_fail_errno(UF_ESYSTEM, -n, "reading %s failed: /proc is needed to find PEs of the same host", path);
    memset(id, 0, 16);
    for (const char *p = text; *p && digits < 32; p++) {
        int digit = hex_digit(*p);
        if (digit < 0)
            continue;
        id[digits / 2] = (unsigned char)(id[digits / 2] << 4 | digit);
        digits++;
    }
    if (digits != 32)
        return uf_fail(UF_ESYSTEM, "%s has %d hexadecimal digits, expected 32", path, digits);
    return UF_OK;
}

/* May a peer's process_vm_writev reach us? Yama's ptrace_scope says no to relatives from 1 on; a capable peer may all the same, and
 * peers are as capable as we are. The call itself may be filtered, which a copy within our own process shows. */
static int cma_expected(void)
{
    uint64_t from = 1, to = 0;
    struct iovec local = {&to, sizeof(to)}, remote = {&from, sizeof(from)};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != (ssize_t)sizeof(to))
        return 0;
    char text[4096];
    if (read_file("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text)) < 0 || text[0] == '0')
        return 1;
    if (text[0] == '3' || read_file("/proc/self/status", text, sizeof(text)) < 0)
        return 0;
    const char *cap = strstr(text, "CapEff:");
    const unsigned cap_sys_ptrace = 19;
    return cap && (strtoull(cap + 7, NULL, 16) >> cap_sys_ptrace & 1);
}

static int make_probe(uint64_t nonce, int *probe)
{
    int fd = memfd_create(UF_LOCAL_PROBE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return uf_fail_errno(UF_ESYSTEM, errno, "creating the probe memory of a PE (memfd_create) failed%s",
                             errno == EMFILE ? ", raise the limit of open files (ulimit -n)" : "");
    if (pwrite(fd, &nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
        int rc = uf_fail_errno(UF_ENOMEM, errno, "writing %zu bytes of probe memory failed", sizeof(nonce));
        close(fd);
        return rc;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    *probe = fd;
    return UF_OK;
}

int uf_local_identify(uf_local_identity *mine)
{
    uf_local_identity id;
    memset(&id, 0, sizeof(id));
    int rc = read_boot_id(id.boot_id);
    if (rc != UF_OK)
        return rc;
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) != 0)
        return uf_fail_errno(UF_ESYSTEM, errno, "looking at /proc/self/ns/pid failed");
    id.pid_namespace = st.st_ino;
    id.pid = (int32_t)getpid();
    id.uid = (uint32_t)geteuid();
    if (getrandom(&id.nonce, sizeof(id.nonce), 0) != (ssize_t)sizeof(id.nonce))
        return uf_fail_errno(UF_ESYSTEM, errno, "getting random bytes failed");
    id.cma = cma_expected();
    rc = make_probe(id.nonce, &id.probe_fd);
    if (rc == UF_OK)
        *mine = id;
    return rc;
}

void uf_local_identity_close(uf_local_identity *mine)
{
    if (mine->probe_fd >= 0)
        close(mine->probe_fd);
    mine->probe_fd = -1;
}

bool uf_local_same_process(const uf_local_identity *peer)
{
    struct stat st;
    return peer->pid == (int32_t)getpid() && stat("/proc/self/ns/pid", &st) == 0 && (uint64_t)st.st_ino == peer->pid_namespace;
}

/* 0, or a positive errno: ESTALE if there is something, but not what it should be. `pid` 0 is ourselves, by any pid namespace. */
static int open_memfd(int pid, int peer_fd, const char *name, int flags, int *fd)
{
    char path[64], target[64], expected[64];
    if (pid)
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, peer_fd);
    else
        snprintf(path, sizeof(path), "/proc/self/fd/%d", peer_fd);
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    if (n < 0)
        return errno;
    target[n] = '\0';
    snprintf(expected, sizeof(expected), "/memfd:%s (deleted)", name);
    if (strcmp(target, expected) != 0)
        return ESTALE;
    int opened = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0)
        return errno;
    *fd = opened;
    return 0;
}

/* 0 if the peer's process is the one the identity tells of, else a positive errno (ESTALE: it is another by now). */
static int check_nonce(const uf_local_identity *peer, int pid)
{
    int fd = -1;
    int error = open_memfd(pid, peer->probe_fd, UF_LOCAL_PROBE_NAME, O_RDONLY, &fd);
    if (error)
        return error;
    uint64_t nonce = 0;
    ssize_t n = pread(fd, &nonce, sizeof(nonce), 0);
    close(fd);
    return n == (ssize_t)sizeof(nonce) && nonce == peer->nonce ? 0 : ESTALE;
}

static bool means_gone(int error)
{
    return error == ENOENT || error == ESRCH || error == ESTALE;
}

static int open_failed(const uf_local_identity *peer, int error)
{
    if (means_gone(error))
        return uf_fail(UF_EPEER, "process %d of this host, a PE of this world, is gone", (int)peer->pid);
    if (error == EACCES || error == EPERM)
        return uf_fail_errno(
            UF_EUNSUPPORTED, error,
            "process %d of this host (user %u) does not let us open its memory: run the PEs of a host as one user and "
            "leave them dumpable, or set UNFENCE_FABRIC=ofi",
            (int)peer->pid, (unsigned)peer->uid);
    return uf_fail_errno(UF_ESYSTEM, error, "opening memory of process %d of this host failed%s", (int)peer->pid,
                         error == EMFILE ? ", raise the limit of open files (ulimit -n)" : "");
}

int uf_local_identity_verify(const uf_local_identity *peer)
{
    int error = check_nonce(peer, uf_local_same_process(peer) ? 0 : peer->pid);
    return error ? open_failed(peer, error) : UF_OK;
}

int uf_local_identity_open(const uf_local_identity *peer, int peer_fd, const char *name, int flags, int *fd)
{
    int pid = uf_local_same_process(peer) ? 0 : peer->pid, opened = -1;
    int error = open_memfd(pid, peer_fd, name, flags, &opened);
    if (error)
        return open_failed(peer, error);
    /* Checked after opening: had the pid changed hands before, the nonce would show it. */
    error = check_nonce(peer, pid);
    if (error) {
        close(opened);
        return open_failed(peer, error);
    }
    *fd = opened;
    return UF_OK;
}

bool uf_local_alive(const uf_local_identity *peer)
{
    return !means_gone(check_nonce(peer, uf_local_same_process(peer) ? 0 : peer->pid));
}

bool uf_local_reachable(const uf_local_identity *mine, const uf_local_identity *peer, const char **why)
{
    if (memcmp(mine->boot_id, peer->boot_id, sizeof(mine->boot_id)) != 0) {
        *why = "another host";
        return false;
    }
    if (mine->pid_namespace == peer->pid_namespace && mine->pid == peer->pid) {
        *why = "the same process";
        return true;
    }
    int error = check_nonce(peer, peer->pid);
    if (!error) {
        *why = "the same host, memory can be mapped";
        return true;
    }
    if (mine->pid_namespace != peer->pid_namespace)
        *why = "the same host, but in another pid namespace: its memory cannot be found; share the namespace (docker --pid) to "
               "map it";
    else if (error == EACCES || error == EPERM)
        *why = "the same host, but the system forbids opening its memory: another user, or a process that is not dumpable";
    else if (error == EMFILE || error == ENFILE)
        *why = "the same host, but no descriptor is left to open its memory: raise the limit of open files (ulimit -n)";
    else
        *why = "the same host, but its process cannot be found under /proc (ended, or hidden from us)";
    return false;
}
