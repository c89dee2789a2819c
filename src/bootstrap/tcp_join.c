/* tcp_join.c - the other PEs' side of the TCP bootstrap: find PE 0, say hello, be patient; then hear what it
 * says.
 *
 * At the start of a job PE 0 may not listen yet, be busy with thousands, or be reachable by one of many
 * addresses only. So every address and port is tried in turn, each attempt with a deadline of its own, in
 * rounds with growing pauses, until the time for creation is over; what was tried and how it failed is kept
 * for the error message. */
#include "base/log.h"
#include "bootstrap/tcp.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define ATTEMPT_FIRST_NS 1000000000u
#define ATTEMPT_MAX_NS   8000000000u
#define PAUSE_FIRST_NS   1000000u
#define PAUSE_MAX_NS     100000000u
/* Largest payload before the world is complete: refusals. */
#define FRAME_LIMIT_BEFORE 4096

/* The account of one round: "address (what happened), ...". */
typedef struct account {
    char text[512];
    size_t used;
} account;

static void note(account *tried, const char *where, const char *what)
{
    int n =
        snprintf(tried->text + tried->used, sizeof tried->text - tried->used, "%s%s (%s)", tried->used ? ", " : "", where, what);
    if (n > 0 && tried->used + (size_t)n < sizeof tried->text)
        tried->used += (size_t)n;
    else
        tried->text[tried->used] = 0;
}

/* ---------------------------------------------------------------- what PE 0 says */

void uf_tcp_join_lost(uf_tcp *t, uf_tcp_conn *conn, const char *why)
{
    char text[UF_BOOTSTRAP_TEXT];
    uf_tcp_conn_close(t, conn);
    t->root = NULL;
    if (t->stage != UF_TCP_FORMED) {
        t->stage = UF_TCP_NOWHERE;
        snprintf(t->stage_text, sizeof t->stage_text, "%s", why);
    } else if (!t->root_left) {
        snprintf(text, sizeof text, "PE 0 died: it did not leave the world, but its connection to PE %d ended (%s)", t->base.pe,
                 why);
        uf_tcp_note_news(t, UF_EPEER, 0, text);
    }
}

static void frame_before(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload)
{
    switch (frame->type) {
    case UF_FRAME_HERE:
        t->stage = UF_TCP_HERE;
        break;
    case UF_FRAME_WELCOME:
        t->base.id = frame->world;
        t->stage = UF_TCP_FORMED;
        conn->reader.limit = UF_BOOTSTRAP_ALL_MAX;
        break;
    case UF_FRAME_REFUSE:
        t->stage = UF_TCP_REFUSED;
        t->stage_code = frame->code < 0 ? frame->code : UF_EMISMATCH;
        snprintf(t->stage_text, sizeof t->stage_text, "%s", (const char *)payload);
        uf_tcp_conn_close(t, conn);
        t->root = NULL;
        break;
    default:
        uf_tcp_join_lost(t, conn, "PE 0 answered the hello with something else");
    }
}

static void frame_result(uf_tcp *t, const uf_frame *frame, const unsigned char *payload)
{
    if (!t->in_step || frame->step != t->step)
        return; /* of a step this PE gave up */
    t->done = true;
    t->result = frame->code;
    if (frame->code) {
        snprintf(t->result_text, sizeof t->result_text, "%s", (const char *)payload);
    } else if (frame->length != t->bytes * (size_t)t->base.n_pes) {
        t->result = UF_EINTERNAL;
        snprintf(t->result_text, sizeof t->result_text, "PE 0 sent %u bytes as the result of exchange %u, %zu were expected",
                 frame->length, frame->step, t->bytes * (size_t)t->base.n_pes);
    } else if (frame->length) {
        memcpy(t->all, payload, frame->length);
    }
}

void uf_tcp_join_frame(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload)
{
    if (t->stage != UF_TCP_FORMED) {
        frame_before(t, conn, frame, payload);
        return;
    }
    if (frame->world != t->base.id) {
        uf_tcp_join_lost(t, conn, "it sent a frame of another world");
        return;
    }
    switch (frame->type) {
    case UF_FRAME_RESULT:
        frame_result(t, frame, payload);
        break;
    case UF_FRAME_NEWS:
        uf_tcp_note_news(t, frame->code < 0 ? frame->code : UF_EABORTED, (int)frame->pe, (const char *)payload);
        break;
    case UF_FRAME_BROKEN:
        uf_tcp_note_broken(t, frame->code < 0 ? frame->code : UF_ETIMEDOUT, (const char *)payload);
        break;
    case UF_FRAME_LEAVE:
        t->root_left = true;
        uf_tcp_note_broken(t, UF_EPEER, UF_TCP_ROOT_LEFT);
        break;
    default:
        uf_tcp_join_lost(t, conn, "it sent a frame of a type that does not exist");
    }
}

/* ---------------------------------------------------------------- finding PE 0 */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Connected, but to itself: with source and target port the same, a connection to a port of this host on
 * which nobody listens succeeds. It would even keep PE 0 from listening there. */
static bool is_self(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t a = sizeof here, b = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return !getsockname(fd, (struct sockaddr *)&here, &a) && !getpeername(fd, (struct sockaddr *)&there, &b) && a == b &&
           !memcmp(&here, &there, a);
}

/* Waits until the connection stands: 0, or an errno value. */
static int connect_wait(uf_tcp *t, int fd, uint64_t deadline)
{
    const uf_driver *driver = t->base.driver;
    for (uint32_t round = 0;; round++) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        uint64_t now = uf_bootstrap_now(&t->base);
        uint64_t left = deadline > now ? (deadline - now) / 1000000 + 1 : 0;
        if (poll(&p, 1, driver->threads ? (int)earlier(left, 100) : 0) > 0) {
            int error = 0;
            socklen_t n = sizeof error;
            return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) ? errno : error;
        }
        if (!left)
            return ETIMEDOUT;
        if (!driver->threads)
            driver->relax(driver->arg, round);
    }
}

/* A connected socket in *fd, or an errno value. */
static int connect_one(uf_tcp *t, const uf_address *address, const struct sockaddr_storage *where, uint64_t deadline, int *fd)
{
    int s = socket(where->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return errno;
    int error = 0;
    uf_tcp_socket_prepare(s);
    if (address->has_source && bind(s, (const struct sockaddr *)&address->source, address->length))
        error = errno;
    if (!error && connect(s, (const struct sockaddr *)where, address->length))
        error = errno == EINPROGRESS ? connect_wait(t, s, deadline) : errno;
    if (!error && is_self(s))
        error = ECONNREFUSED;
    if (error)
        close(s);
    else
        *fd = s;
    return error;
}

static int say_hello(uf_tcp *t, uint64_t attempt)
{
    const unsigned char *random = (const unsigned char *)getauxval(AT_RANDOM); /* 16 bytes, made at exec */
    uf_hello hello = {.job = t->job,
                      .major = UF_VERSION_MAJOR,
                      .minor = UF_VERSION_MINOR,
                      .patch = UF_VERSION_PATCH,
                      .n_pes = (uint32_t)t->base.n_pes,
                      .pe = (uint32_t)t->base.pe,
                      .attempt = attempt,
                      .pid = (uint32_t)getpid()};
    hello.process = uf_frame_hash(random, random ? 16 : 0, hello.pid);
    gethostname(hello.host, sizeof hello.host - 1);
    unsigned char bytes[UF_HELLO_BYTES];
    uf_hello_encode(&hello, bytes);
    uf_tcp_message *message = uf_tcp_message_new(t, UF_FRAME_HELLO, 0, t->base.pe, 0, bytes, sizeof bytes);
    if (!message)
        return uf_fail(UF_ENOMEM, "no memory for a bootstrap frame");
    uf_tcp_conn_send(t, t->root, message);
    uf_tcp_message_release(message);
    return UF_OK;
}

static bool answered(uf_tcp *t)
{
    return t->stage != UF_TCP_ASKED;
}

static bool joined(uf_tcp *t)
{
    return t->stage != UF_TCP_HERE;
}

/* The others have their time. When ours is up, PE 0 is asked who is late. */
static void await_welcome(uf_tcp *t, uint64_t deadline)
{
    if (uf_tcp_wait(t, joined, deadline))
        return;
    pthread_mutex_lock(&t->lock);
    if (t->root)
        uf_tcp_conn_tell(t, t->root, UF_FRAME_GIVE_UP, 0, t->base.pe, 0, NULL);
    pthread_mutex_unlock(&t->lock);
    if (uf_tcp_wait(t, joined, uf_tcp_deadline(t, UF_TCP_GRACE_NS)))
        return;
    t->stage = UF_TCP_REFUSED;
    t->stage_code = UF_ETIMEDOUT;
    snprintf(t->stage_text, sizeof t->stage_text,
             "PE %d waited for the others, then PE 0 did not answer who is late: it is stopped, or its host "
             "or network is",
             t->base.pe);
}

/* Tries one address. Afterwards t->stage says what came of it; reasons to go on are noted. UF_OK unless
 * nothing can help. */
static int try_address(uf_tcp *t, const uf_address *address, uint16_t port, uint64_t attempt, uint64_t attempt_ns,
                       uint64_t deadline, account *tried)
{
    struct sockaddr_storage where = address->socket;
    char name[UF_ADDRESS_TEXT];
    int fd = -1;
    uf_address_set_port(&where, port);
    uf_address_text(&where, name);
    uint64_t until = earlier(deadline, uf_tcp_deadline(t, attempt_ns));
    int error = connect_one(t, address, &where, until, &fd);
    if (error) {
        note(tried, name, error == ETIMEDOUT ? "no answer" : strerror(error));
        return UF_OK;
    }
    int rc = uf_tcp_conn_open(t, fd, UF_TCP_ROOT, FRAME_LIMIT_BEFORE, &t->root);
    if (!rc) {
        t->stage = UF_TCP_ASKED;
        rc = say_hello(t, attempt);
    }
    if (rc)
        return rc;
    until = earlier(deadline, uf_tcp_deadline(t, attempt_ns));
    if (!uf_tcp_wait(t, answered, until)) {
        note(tried, name, "connected, but no answer to the hello");
        uf_tcp_conn_close(t, t->root);
        t->root = NULL;
        t->stage = UF_TCP_NOWHERE;
        return UF_OK;
    }
    if (t->stage == UF_TCP_HERE)
        await_welcome(t, deadline);
    if (t->stage == UF_TCP_REFUSED && t->stage_code != UF_EAGAIN)
        return uf_error_set(t->stage_code, t->stage_text);
    if (t->stage != UF_TCP_FORMED) {
        note(tried, name, t->stage_text);
        t->stage = UF_TCP_NOWHERE;
    }
    return UF_OK;
}

static bool never(uf_tcp *t)
{
    (void)t;
    return false;
}

int uf_tcp_join(uf_tcp *t, uint64_t deadline)
{
    uint64_t attempt = uf_bootstrap_random();
    uint64_t attempt_ns = ATTEMPT_FIRST_NS, pause_ns = PAUSE_FIRST_NS;
    uint64_t dice = attempt;
    account tried;
    for (;;) {
        uf_addresses list;
        tried = (account){.used = 0};
        int rc = uf_address_connect(&t->address, t->interface, &list);
        if (rc == UF_ESYSTEM)
            note(&tried, t->address.host, uf_error_message()); /* the name service may be late too */
        else if (rc)
            return rc;
        for (uint16_t port = 0; port < t->address.ports; port++) {
            for (size_t i = 0; i < list.n; i++) {
                rc = try_address(t, &list.at[i], (uint16_t)(t->address.port + port), attempt, attempt_ns, deadline, &tried);
                if (rc || t->stage == UF_TCP_FORMED)
                    return rc;
            }
        }
        if (uf_bootstrap_now(&t->base) >= deadline)
            break;
        /* Between half and the whole pause, so that thousands do not come back at the same moment. */
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        uf_tcp_wait(t, never, earlier(deadline, uf_tcp_deadline(t, pause_ns / 2 + (dice >> 33) % (pause_ns / 2))));
        pause_ns = earlier(pause_ns * 2, PAUSE_MAX_NS);
        attempt_ns = earlier(attempt_ns * 2, ATTEMPT_MAX_NS);
    }
    return uf_fail(UF_ETIMEDOUT,
                   "PE %d did not find PE 0 at %.200s within %llu ms; last tried: %s. Is PE 0 running, and "
                   "does a firewall let the port through?",
                   t->base.pe, t->address.host, (unsigned long long)(t->base.timeout_ns / 1000000), tried.text);
}
