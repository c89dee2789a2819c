/* tcp_root.c - PE 0's side of the TCP bootstrap: lets the right processes in while the world forms, then
 * collects and relays.
 *
 * The listener exists only while a world forms. So the next world of the job can use the same address, no
 * table of worlds is kept anywhere, and a PE that comes is given to the one world that still lacks it. A PE
 * that comes too early finds nobody listening, or is asked to come again, and tries again with pauses.
 * Strangers (other jobs, other services) are sent away or dropped and never disturb those who belong here. */
#include "base/log.h"
#include "bootstrap/tcp.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Descriptors that the rest of the process is given room for. */
#define SPARE_DESCRIPTORS 32

void uf_tcp_root_broadcast(uf_tcp *t, uf_tcp_message *message, const uf_tcp_conn *except)
{
    if (!message)
        return; /* no memory: the others learn it from our connection's end */
    for (int i = 1; i < t->base.n_pes; i++)
        if (t->pes[i].conn && t->pes[i].conn != except && !t->pes[i].left)
            uf_tcp_conn_send(t, t->pes[i].conn, message);
    uf_tcp_message_release(message);
}

void uf_tcp_root_tell(uf_tcp *t, uf_frame_type type, int code, int pe, uint32_t step, const char *text, const uf_tcp_conn *except)
{
    uf_tcp_root_broadcast(t, uf_tcp_message_new(t, type, code, pe, step, text, strlen(text)), except);
}

/* The world cannot come to be; everybody who is here is told why. */
static void form_fail(uf_tcp *t, int code, const char *text)
{
    if (t->stage != UF_TCP_HERE)
        return;
    t->stage = UF_TCP_REFUSED;
    t->stage_code = code;
    snprintf(t->stage_text, sizeof t->stage_text, "%s", text);
    uf_tcp_root_tell(t, UF_FRAME_REFUSE, code, 0, 0, text, NULL);
}

/* Time is up: the names of those who did not come. */
void uf_tcp_root_form_late(uf_tcp *t)
{
    char pes[256], gone[256] = "", text[UF_BOOTSTRAP_TEXT];
    bool any_gone = false;
    for (int i = 1; i < t->base.n_pes; i++) {
        t->missing[i] = t->pes[i].gone && !t->pes[i].conn;
        any_gone = any_gone || t->missing[i];
    }
    if (any_gone)
        uf_bootstrap_list_pes(t->missing, t->base.n_pes, gone, sizeof gone);
    for (int i = 1; i < t->base.n_pes; i++)
        t->missing[i] = !t->pes[i].conn;
    snprintf(text, sizeof text,
             "%s of %d did not come in time (UNFENCE_BOOTSTRAP_TIMEOUT) to PE 0 at %.200s:%u%s%s%s%s: were all started?",
             uf_bootstrap_list_pes(t->missing, t->base.n_pes, pes, sizeof pes), t->base.n_pes, t->address.host, t->address.port,
             any_gone ? "; " : "", gone, any_gone ? " came and went" : "",
             t->root_is_here ? "" : "; note that this address is not one of PE 0's host");
    form_fail(t, UF_ETIMEDOUT, text);
}

/* ---------------------------------------------------------------- comings and goings */

static void stranger_remove(uf_tcp *t, const uf_tcp_conn *conn)
{
    uf_tcp_conn **link = &t->strangers;
    while (*link && *link != conn)
        link = &(*link)->next;
    if (*link)
        *link = conn->next;
}

void uf_tcp_root_lost(uf_tcp *t, uf_tcp_conn *conn, const char *why)
{
    char text[UF_BOOTSTRAP_TEXT];
    if (conn->role == UF_TCP_STRANGER) {
        stranger_remove(t, conn);
        uf_tcp_conn_close(t, conn);
        return;
    }
    uf_tcp_pe *p = &t->pes[conn->pe];
    int pe = conn->pe;
    snprintf(text, sizeof text,
             "PE %d (process %u on %s) died: it did not leave the world, but its connection to PE 0 ended (%s)", pe, p->pid,
             p->host, why);
    uf_tcp_conn_close(t, conn);
    p->conn = NULL;
    if (t->stage != UF_TCP_FORMED) {
        p->gone = true;
        t->n_here--;
    } else if (!p->left && uf_tcp_note_news(t, UF_EPEER, pe, text)) {
        uf_tcp_root_tell(t, UF_FRAME_NEWS, UF_EPEER, pe, 0, text, NULL);
    }
}

void uf_tcp_root_reap(uf_tcp *t)
{
    uint64_t now = uf_bootstrap_now(&t->base);
    for (uf_tcp_conn *conn = t->strangers, *next; conn; conn = next) {
        next = conn->next;
        if (conn->deadline <= now)
            uf_tcp_root_lost(t, conn, "it did not say hello");
    }
}

static void listeners_close(uf_tcp *t)
{
    for (size_t i = 0; i < t->n_listeners; i++)
        uf_tcp_conn_close(t, t->listeners[i]);
    t->n_listeners = 0;
    while (t->strangers)
        uf_tcp_root_lost(t, t->strangers, "the world is complete");
}

static void form_complete(uf_tcp *t)
{
    t->stage = UF_TCP_FORMED;
    t->round = 1;
    uf_tcp_root_broadcast(t, uf_tcp_message_new(t, UF_FRAME_WELCOME, 0, 0, 0, NULL, 0), NULL);
}

void uf_tcp_root_accept(uf_tcp *t, uf_tcp_conn *listener)
{
    char text[256];
    while (t->stage == UF_TCP_HERE) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            snprintf(text, sizeof text,
                     "PE 0 cannot accept the connections of %d PEs: %s (raise the limit of open files: ulimit -n)",
                     t->base.n_pes - 1, strerror(errno));
            form_fail(t, UF_ESYSTEM, text);
        }
        if (fd < 0)
            return;
        uf_tcp_conn *conn;
        uf_tcp_socket_prepare(fd);
        if (uf_tcp_conn_open(t, fd, UF_TCP_STRANGER, 4 * UF_HELLO_BYTES, &conn))
            return;
        conn->deadline = uf_tcp_deadline(t, UF_TCP_HELLO_NS);
        conn->next = t->strangers;
        t->strangers = conn;
    }
}

static void send_away(uf_tcp *t, uf_tcp_conn *conn, int code, const char *text)
{
    uf_tcp_conn_tell(t, conn, UF_FRAME_REFUSE, code, 0, 0, text);
    uf_tcp_root_lost(t, conn, "it was sent away");
}

/* True if the connection of a PE is at its end, though the event has not been handled yet. */
static bool is_dead(const uf_tcp_conn *conn)
{
    char byte;
    ssize_t n = recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* What is wrong with a hello of our job: UF_EMISMATCH and the sentence, or UF_OK. */
static int hello_check(const uf_tcp *t, int decoded, const uf_frame *frame, const uf_hello *hello, char *text, size_t bytes)
{
    if (!decoded) {
        snprintf(text, bytes,
                 "PE %u runs Unfence %u.%u.%u (bootstrap protocol %u) and PE 0 runs %d.%d.%d (protocol %d): "
                 "install one version on all hosts",
                 hello->pe, hello->major, hello->minor, hello->patch, frame->version, UF_VERSION_MAJOR, UF_VERSION_MINOR,
                 UF_VERSION_PATCH, UF_FRAME_VERSION);
        return UF_EMISMATCH;
    }
    if (hello->n_pes != (uint32_t)t->base.n_pes) {
        snprintf(text, bytes,
                 "PE %u (process %u on %s) was started for %u PEs and PE 0 for %d: all must be given the "
                 "same number",
                 hello->pe, hello->pid, hello->host, hello->n_pes, t->base.n_pes);
        return UF_EMISMATCH;
    }
    if (hello->pe == 0 || hello->pe >= hello->n_pes) {
        snprintf(text, bytes, "process %u on %s says it is PE %u of %u: %s", hello->pid, hello->host, hello->pe, hello->n_pes,
                 hello->pe ? "there is no such PE" : "there is another PE 0 already");
        return UF_EMISMATCH;
    }
    return UF_OK;
}

void uf_tcp_root_hello(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload)
{
    uf_hello hello;
    char text[UF_BOOTSTRAP_TEXT];
    int decoded = frame->type == UF_FRAME_HELLO ? uf_hello_decode(payload, frame->length, frame->version, &hello) : -1;
    if (decoded < 0) {
        uf_tcp_root_lost(t, conn, "it said no hello");
        return;
    }
    if (t->stage != UF_TCP_HERE || hello.job != t->job) {
        send_away(t, conn, UF_EAGAIN, t->stage == UF_TCP_HERE ? "PE 0 of another job listens there" : "that world is complete");
        return;
    }
    int rc = hello_check(t, decoded, frame, &hello, text, sizeof text);
    uf_tcp_pe *p = rc ? NULL : &t->pes[hello.pe];
    if (p && p->conn && p->attempt != hello.attempt && !is_dead(p->conn)) {
        if (p->process == hello.process) {
            /* It creates its next world already, in another thread: this one is not its turn. */
            send_away(t, conn, UF_EAGAIN, "PE 0 is not creating that world yet");
            return;
        }
        rc = UF_EMISMATCH;
        snprintf(text, sizeof text, "there are two PEs %u: process %u on %s and process %u on %s", hello.pe, p->pid, p->host,
                 hello.pid, hello.host);
    }
    if (rc) {
        send_away(t, conn, rc, text);
        form_fail(t, rc, text);
        return;
    }
    if (p->conn)
        uf_tcp_root_lost(t, p->conn, "it connected again");
    stranger_remove(t, conn);
    conn->role = UF_TCP_PE;
    conn->pe = (int)hello.pe;
    conn->reader.limit = UF_BOOTSTRAP_PART_MAX;
    p->conn = conn;
    p->gone = false;
    p->process = hello.process;
    p->attempt = hello.attempt;
    p->pid = hello.pid;
    memcpy(p->host, hello.host, sizeof p->host);
    uf_tcp_conn_tell(t, conn, UF_FRAME_HERE, 0, conn->pe, 0, NULL);
    if (++t->n_here == t->base.n_pes - 1)
        form_complete(t);
}

/* ---------------------------------------------------------------- creation */

/* One listening socket: 0, or an errno value. */
static int listen_one(uf_tcp *t, const uf_address *address, uint16_t port)
{
    struct sockaddr_storage where = address->socket;
    uf_address_set_port(&where, port);
    int fd = socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int one = 1;
    bool any = where.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&where)->sin6_addr);
    int v6_only = !any; /* the wildcard takes both families */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (where.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
    if (bind(fd, (struct sockaddr *)&where, address->length) || listen(fd, 4096)) {
        int error = errno;
        close(fd);
        return error;
    }
    uf_tcp_conn *listener;
    if (uf_tcp_conn_open(t, fd, UF_TCP_LISTENER, 0, &listener))
        return ENOMEM;
    t->listeners[t->n_listeners++] = listener;
    return 0;
}

static bool is_wildcard6(const uf_address *address)
{
    return address->socket.ss_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->socket)->sin6_addr);
}

/* Listens on the first port on which all of our addresses are free: 0, or an errno value. Addresses of
 * families that this host lacks are passed over as long as one works. */
static int listen_all(uf_tcp *t, const uf_addresses *list)
{
    int error = EADDRNOTAVAIL;
    for (uint16_t port = 0; port < t->address.ports; port++) {
        for (size_t i = 0; i < list->n; i++) {
            if (i && t->n_listeners && is_wildcard6(&list->at[0]))
                break; /* "::" took both families; "0.0.0.0" is only for hosts without the other one */
            int failed = listen_one(t, &list->at[i], (uint16_t)(t->address.port + port));
            error = failed ? failed : error;
            if (failed == EADDRINUSE) {
                listeners_close(t);
                break;
            }
        }
        if (t->n_listeners)
            return 0;
    }
    return error;
}

static bool nothing(uf_tcp *t)
{
    (void)t;
    return false;
}

static int listen_retry(uf_tcp *t, uint64_t deadline)
{
    uf_addresses list;
    int rc = uf_address_listen(&t->address, t->interface, &list);
    if (rc)
        return rc;
    t->root_is_here = list.root_is_here;
    /* Taken ports become free: another world of this process forms there, or a connection of an earlier one
     * is just closing. */
    for (uint64_t pause = 1000000;; pause = pause < 50000000 ? pause * 2 : pause) {
        int error = listen_all(t, &list);
        if (!error)
            return UF_OK;
        if (uf_bootstrap_now(&t->base) >= deadline)
            return uf_fail(UF_ESYSTEM, "PE 0 cannot listen at %s, port%s %u to %u: %s; choose another port", t->address.host,
                           t->address.ports > 1 ? "s" : "", t->address.port, t->address.port + t->address.ports - 1,
                           strerror(error));
        uint64_t until = uf_tcp_deadline(t, pause);
        uf_tcp_wait(t, nothing, until < deadline ? until : deadline);
    }
}

static bool form_over(uf_tcp *t)
{
    return t->stage != UF_TCP_HERE;
}

static bool told(uf_tcp *t)
{
    return t->unsent == 0;
}

int uf_tcp_root_create(uf_tcp *t, uint64_t deadline)
{
    struct rlimit files;
    int n = t->base.n_pes;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < (rlim_t)n + SPARE_DESCRIPTORS)
        return uf_fail(UF_ESYSTEM,
                       "PE 0 needs a connection to each of %d PEs, but this process may open only %llu "
                       "files: raise the limit (ulimit -n %d)",
                       n, (unsigned long long)files.rlim_cur, n + SPARE_DESCRIPTORS);
    t->pes = calloc((size_t)n, sizeof *t->pes);
    t->missing = calloc((size_t)n, sizeof *t->missing);
    if (!t->pes || !t->missing)
        return uf_fail(UF_ENOMEM, "no memory for the bootstrap of %d PEs", n);
    t->base.id = uf_bootstrap_random();
    t->stage = UF_TCP_HERE;
    int rc = listen_retry(t, deadline);
    if (rc)
        return rc;
    if (!uf_tcp_wait(t, form_over, deadline)) {
        pthread_mutex_lock(&t->lock);
        uf_tcp_root_form_late(t);
        pthread_mutex_unlock(&t->lock);
    }
    uf_tcp_wait(t, told, uf_tcp_deadline(t, UF_TCP_GRACE_NS));
    pthread_mutex_lock(&t->lock);
    listeners_close(t);
    uf_tcp_conn_free_closed(t);
    rc = t->stage == UF_TCP_FORMED ? UF_OK : uf_error_set(t->stage_code, t->stage_text);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void uf_tcp_root_free(uf_tcp *t)
{
    listeners_close(t);
    for (int i = 0; t->pes && i < t->base.n_pes; i++) {
        if (t->pes[i].conn)
            uf_tcp_conn_close(t, t->pes[i].conn);
        free(t->pes[i].part);
    }
    free(t->pes);
    free(t->missing);
}
