/* pass.c - see pass.h: datagrams of a fixed size with one descriptor each, between sockets that the system names.
 *
 * The names are abstract and chosen by the kernel (autobind), so two worlds never meet and nothing stays behind. A message of another size
 * or with another number of descriptors is a stranger's. */
#include "fabric/local/pass.h"
#include "base/error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct uf_local_pass {
    int socket;
    uf_local_pass_name name;
};

int uf_local_pass_create(uf_local_pass **pass)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof address;
    struct stat st;
    uf_local_pass *p = calloc(1, sizeof *p);
    if (!p)
        return uf_fail(UF_ENOMEM, "no memory for a socket that passes descriptors");
    p->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->socket < 0 || bind(p->socket, (const struct sockaddr *)&address, sizeof(sa_family_t)) ||
        getsockname(p->socket, (struct sockaddr *)&address, &bytes) || stat("/proc/self/ns/net", &st)) {
        int rc = uf_fail_errno(UF_ESYSTEM, errno, "making a local socket that passes descriptors failed%s",
                               errno == EMFILE ? ", raise the limit of open files (ulimit -n)" : "");
        uf_local_pass_destroy(p);
        return rc;
    }
    p->name.net_namespace = st.st_ino;
    p->name.bytes = bytes - (socklen_t)offsetof(struct sockaddr_un, sun_path);
    if (p->name.bytes > sizeof p->name.path) {
        int rc = uf_fail(UF_EINTERNAL, "the system gave a local socket a name of %u bytes", p->name.bytes);
        uf_local_pass_destroy(p);
        return rc;
    }
    memcpy(p->name.path, address.sun_path, p->name.bytes);
    *pass = p;
    return UF_OK;
}

void uf_local_pass_destroy(uf_local_pass *p)
{
    if (!p)
        return;
    if (p->socket >= 0)
        close(p->socket);
    free(p);
}

const uf_local_pass_name *uf_local_pass_name_of(const uf_local_pass *p)
{
    return &p->name;
}

typedef union control {
    struct cmsghdr header; /* for its alignment */
    char bytes[CMSG_SPACE(sizeof(int))];
} control;

int uf_local_pass_send(uf_local_pass *p, const uf_local_pass_name *to, const uf_local_passed *what, int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    control c;
    struct iovec data = {(void *)(uintptr_t)what, sizeof *what};
    if (to->bytes > sizeof to->path)
        return uf_fail(UF_EINTERNAL, "a local socket's name of %u bytes", to->bytes);
    memcpy(address.sun_path, to->path, to->bytes);
    memset(&c, 0, sizeof c);
    struct msghdr m = {.msg_name = &address,
                       .msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + to->bytes),
                       .msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = c.bytes,
                       .msg_controllen = sizeof c.bytes};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (sendmsg(p->socket, &m, MSG_NOSIGNAL) == (ssize_t)sizeof *what)
        return UF_OK;
    if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR || errno == ETOOMANYREFS)
        return UF_EAGAIN;
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EPIPE)
        return uf_fail_errno(UF_EPEER, errno, "the process that should be given a descriptor is gone");
    return uf_fail_errno(UF_ESYSTEM, errno, "passing a descriptor to another process failed");
}

/* Takes the descriptors out of a message: the one in *fd; more than that are closed. False unless there is exactly one. */
static bool take_fd(struct msghdr *m, int *fd)
{
    size_t n = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= h->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int got;
            memcpy(&got, CMSG_DATA(h) + at, sizeof got);
            if (n++ == 0)
                *fd = got;
            else
                close(got);
        }
    }
    if (n > 1)
        close(*fd);
    return n == 1;
}

int uf_local_pass_receive(uf_local_pass *p, uf_local_passed *what, int *fd)
{
    for (;;) {
        control c;
        uf_local_passed got;
        int descriptor = -1;
        struct iovec data = {&got, sizeof got};
        struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof c.bytes};
        ssize_t n = recvmsg(p->socket, &m, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? UF_EAGAIN : uf_fail_errno(UF_ESYSTEM, errno, "receiving a passed descriptor failed");
        bool one = take_fd(&m, &descriptor);
        if (one && n == (ssize_t)sizeof got && !(m.msg_flags & MSG_TRUNC)) {
            *what = got;
            *fd = descriptor;
            return UF_OK;
        }
        if (one)
            close(descriptor);
    }
}
