/* copy.c - copies into and out of a same-host peer's memory that is not mapped here (windows over a user's own buffer).
 *
 * Within a process that is memcpy; between processes cross-memory attach (process_vm_writev, process_vm_readv): one copy made by the
 * kernel, if the system allows it. A copy may stop short at any page, so it goes on where it stopped. The peer's identity is
 * checked first: a pid that changed hands must never have us write into a stranger. Permissions are never widened here
 * (no PR_SET_PTRACER): that is for the user to decide. */
#include "base/error.h"
#include "fabric/local/identity.h"
#include "fabric/local/local.h"
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

/* One call moves at most this much: the system's own limit is just below 2 GiB. */
#define UF_LOCAL_COPY_CHUNK ((size_t)256 << 20)

typedef ssize_t (*copy_call)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

static int copy_failed(const uf_local_identity *peer, uint64_t remote, size_t bytes, int error)
{
    switch (error) {
    case EPERM:
    case EACCES:
    case ENOSYS:
        return uf_fail_errno(UF_EUNSUPPORTED, error,
                             "copying to or from memory of process %d is forbidden on this host: allow it with "
                             "sysctl kernel.yama.ptrace_scope=0 (in a container, with the capability SYS_PTRACE)",
                             (int)peer->pid);
    case ESRCH:
        return uf_fail(UF_EPEER, "process %d of this host, a PE of this world, is gone", (int)peer->pid);
    case EFAULT:
        return uf_fail(UF_ERANGE,
                       "%zu bytes at 0x%llx are not mapped in process %d: was a window's buffer freed before uf_unregister?",
                       bytes, (unsigned long long)remote, (int)peer->pid);
    default:
        return uf_fail_errno(UF_ESYSTEM, error, "copying %zu bytes to or from process %d failed", bytes, (int)peer->pid);
    }
}

static int copy_all(copy_call call, const uf_local_identity *peer, uint64_t remote, unsigned char *local, size_t bytes)
{
    int rc = uf_local_identity_verify(peer);
    if (rc != UF_OK)
        return rc;
    while (bytes) {
        size_t chunk = bytes < UF_LOCAL_COPY_CHUNK ? bytes : UF_LOCAL_COPY_CHUNK;
        struct iovec here = {local, chunk}, there = {(void *)(uintptr_t)remote, chunk};
        ssize_t n = call(peer->pid, &here, 1, &there, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return copy_failed(peer, remote, bytes, n < 0 ? errno : EFAULT);
        local += n;
        remote += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return UF_OK;
}

int uf_local_copy_to(const uf_local_identity *peer, uint64_t remote, const void *src, size_t bytes)
{
    if (bytes == 0)
        return UF_OK;
    if (uf_local_same_process(peer)) {
        memmove((void *)(uintptr_t)remote, src, bytes);
        return UF_OK;
    }
    return copy_all(process_vm_writev, peer, remote, (unsigned char *)(uintptr_t)src, bytes);
}

int uf_local_copy_from(const uf_local_identity *peer, uint64_t remote, void *dst, size_t bytes)
{
    if (bytes == 0)
        return UF_OK;
    if (uf_local_same_process(peer)) {
        memmove(dst, (const void *)(uintptr_t)remote, bytes);
        return UF_OK;
    }
    return copy_all(process_vm_readv, peer, remote, dst, bytes);
}
