/* tcp_conn.c - one connection of the TCP bootstrap: bytes in become frames, frames out wait in a short queue.
 * Nothing here blocks, and nothing here knows what a frame means: that is tcp_root.c and tcp_join.c. */
#include "bootstrap/tcp.h"
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

void uf_tcp_socket_prepare(int fd)
{
    /* A host that vanishes sends no FIN: after 10 s of silence it is asked, and given up about 20 s later. */
    int one = 1, idle = 10, interval = 5, count = 4;
    unsigned timeout_ms = 30000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

int uf_tcp_conn_open(uf_tcp *t, int fd, uf_tcp_role role, uint32_t limit, uf_tcp_conn **out)
{
    uf_tcp_conn *conn = calloc(1, sizeof *conn);
    if (!conn) {
        close(fd);
        return uf_fail(UF_ENOMEM, "no memory for a bootstrap connection");
    }
    conn->fd = fd;
    conn->role = role;
    conn->pe = -1;
    uf_frame_reader_init(&conn->reader, limit);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
    if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event)) {
        int error = errno;
        close(fd);
        free(conn);
        return uf_fail_errno(UF_ESYSTEM, error, "cannot watch a bootstrap connection");
    }
    *out = conn;
    return UF_OK;
}

static void queue_drop(uf_tcp *t, uf_tcp_conn *conn)
{
    if (conn->queued)
        t->unsent--;
    for (unsigned i = 0; i < conn->queued; i++)
        uf_tcp_message_release(conn->queue[i]);
    conn->queued = 0;
    conn->sent = 0;
}

void uf_tcp_conn_close(uf_tcp *t, uf_tcp_conn *conn)
{
    queue_drop(t, conn);
    close(conn->fd); /* leaves the epoll set by itself */
    conn->fd = -1;
    conn->next = t->closed;
    t->closed = conn;
}

void uf_tcp_conn_free_closed(uf_tcp *t)
{
    while (t->closed) {
        uf_tcp_conn *conn = t->closed;
        t->closed = conn->next;
        uf_frame_reader_free(&conn->reader);
        free(conn);
    }
}

uf_tcp_message *uf_tcp_message_new(uf_tcp *t, uf_frame_type type, int code, int pe, uint32_t step, const void *payload,
                                   size_t bytes)
{
    uf_tcp_message *message = malloc(sizeof *message + UF_FRAME_BYTES + bytes);
    if (!message)
        return NULL;
    uf_frame frame = {.version = UF_FRAME_VERSION,
                      .type = (uint16_t)type,
                      .code = code,
                      .pe = (uint32_t)pe,
                      .world = t->base.id,
                      .step = step,
                      .length = (uint32_t)bytes};
    message->references = 1;
    message->bytes = UF_FRAME_BYTES + bytes;
    uf_frame_encode(&frame, message->data);
    if (bytes && payload)
        memcpy(message->data + UF_FRAME_BYTES, payload, bytes);
    return message;
}

void uf_tcp_message_release(uf_tcp_message *message)
{
    if (--message->references == 0)
        free(message);
}

static void watch(uf_tcp *t, uf_tcp_conn *conn, bool write)
{
    if (conn->wants_write == write)
        return;
    struct epoll_event event = {.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = conn};
    if (!epoll_ctl(t->epoll, EPOLL_CTL_MOD, conn->fd, &event))
        conn->wants_write = write;
}

/* Sends what the socket takes. */
static void flush(uf_tcp *t, uf_tcp_conn *conn)
{
    while (conn->queued) {
        uf_tcp_message *message = conn->queue[0];
        ssize_t n = send(conn->fd, message->data + conn->sent, message->bytes - conn->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            queue_drop(t, conn); /* the end of the connection shows, with its cause, when it is read */
            break;
        }
        conn->sent += (size_t)n;
        if (conn->sent < message->bytes)
            continue;
        uf_tcp_message_release(message);
        conn->queued--;
        memmove(conn->queue, conn->queue + 1, conn->queued * sizeof conn->queue[0]);
        conn->sent = 0;
        if (!conn->queued)
            t->unsent--;
    }
    watch(t, conn, conn->queued > 0);
}

void uf_tcp_conn_send(uf_tcp *t, uf_tcp_conn *conn, uf_tcp_message *message)
{
    if (conn->fd < 0)
        return;
    if (conn->queued == UF_TCP_QUEUE) {
        shutdown(conn->fd, SHUT_RDWR); /* stuck: the next pass sees its end */
        queue_drop(t, conn);
        return;
    }
    if (!conn->queued)
        t->unsent++;
    message->references++;
    conn->queue[conn->queued++] = message;
    flush(t, conn);
}

void uf_tcp_conn_tell(uf_tcp *t, uf_tcp_conn *conn, uf_frame_type type, int code, int pe, uint32_t step, const char *text)
{
    uf_tcp_message *message = uf_tcp_message_new(t, type, code, pe, step, text, text ? strlen(text) : 0);
    if (!message)
        return; /* the other side then learns it from the connection's end */
    uf_tcp_conn_send(t, conn, message);
    uf_tcp_message_release(message);
}

bool uf_tcp_conn_settled(const uf_tcp_conn *conn)
{
    int unacknowledged = 0;
    return conn->fd < 0 || ioctl(conn->fd, SIOCOUTQ, &unacknowledged) || unacknowledged == 0;
}

static void dispatch(uf_tcp *t, uf_tcp_conn *conn)
{
    const uf_frame *frame = &conn->reader.frame;
    switch (conn->role) {
    case UF_TCP_STRANGER:
        uf_tcp_root_hello(t, conn, frame, conn->reader.payload);
        break;
    case UF_TCP_PE:
        uf_tcp_root_frame(t, conn, frame, conn->reader.payload);
        break;
    case UF_TCP_ROOT:
        uf_tcp_join_frame(t, conn, frame, conn->reader.payload);
        break;
    case UF_TCP_LISTENER:
        break;
    }
}

static void lost(uf_tcp *t, uf_tcp_conn *conn, const char *why)
{
    if (conn->role == UF_TCP_ROOT)
        uf_tcp_join_lost(t, conn, why);
    else
        uf_tcp_root_lost(t, conn, why);
}

/* Bytes to frames to their meaning. The connection may be closed by what a frame means. */
static void feed(uf_tcp *t, uf_tcp_conn *conn, const unsigned char *bytes, size_t n)
{
    while (conn->fd >= 0) {
        size_t used;
        int rc = uf_frame_read(&conn->reader, bytes, n, &used);
        if (rc < 0) {
            lost(t, conn, uf_error_message());
            return;
        }
        bytes += used;
        n -= used;
        if (!rc)
            return;
        dispatch(t, conn);
    }
}

static void receive(uf_tcp *t, uf_tcp_conn *conn)
{
    while (conn->fd >= 0) {
        ssize_t n = recv(conn->fd, t->scratch, UF_TCP_SCRATCH, MSG_DONTWAIT);
        if (n > 0) {
            feed(t, conn, t->scratch, (size_t)n);
            if ((size_t)n < UF_TCP_SCRATCH)
                return; /* level-triggered: what comes next is reported again */
        } else if (n == 0) {
            lost(t, conn, "it closed the connection");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            lost(t, conn, strerror(errno));
        }
    }
}

int uf_tcp_pass(uf_tcp *t)
{
    struct epoll_event events[64];
    int total = 0, n;
    /* Bounded, so that a flood cannot keep the lock. */
    for (int batch = 0; batch < 64; batch++) {
        n = epoll_wait(t->epoll, events, 64, 0);
        for (int i = 0; i < n; i++) {
            uf_tcp_conn *conn = events[i].data.ptr;
            if (conn->fd < 0)
                continue;
            if (conn->role == UF_TCP_LISTENER) {
                uf_tcp_root_accept(t, conn);
                continue;
            }
            if (events[i].events & EPOLLOUT)
                flush(t, conn);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(t, conn);
        }
        total += n > 0 ? n : 0;
        /* Only now: an event of the same batch may have pointed to a connection closed by an earlier one. */
        uf_tcp_conn_free_closed(t);
        if (n < 64)
            break;
    }
    if (t->strangers)
        uf_tcp_root_reap(t);
    return total;
}
