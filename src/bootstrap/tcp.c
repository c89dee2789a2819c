/* tcp.c - the TCP bootstrap behind bootstrap.h: a star around PE 0, one connection per PE for the life of the
 * world.
 *
 * PE 0 decides everything that needs one answer: whether a step was complete, who is late, which news came
 * first. So all PEs return the same. A PE whose time is up asks PE 0 (GIVE_UP) and takes the answer: the
 * result if all had come after all, else the names of the late. News travel whenever somebody calls
 * uf_bootstrap_poll, which the engine's tick and every wait loop do. Nobody blocks while the lock is held. */
#include "bootstrap/tcp.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Looks before a wait sleeps, and how long it sleeps between two looks. */
#define EAGER_ROUNDS 4
#define PAUSE_MS     2

bool uf_tcp_note_news(uf_tcp *t, int code, int pe, const char *text)
{
    if (atomic_load_explicit(&t->news, memory_order_relaxed))
        return false;
    t->news_pe = pe;
    snprintf(t->news_text, sizeof t->news_text, "%s", text);
    atomic_store_explicit(&t->news, code, memory_order_release);
    return true;
}

bool uf_tcp_note_broken(uf_tcp *t, int code, const char *text)
{
    if (t->broken)
        return false;
    snprintf(t->broken_text, sizeof t->broken_text, "%s", text);
    t->broken = code;
    return true;
}

static void ring(uf_tcp *t)
{
    uint64_t one = 1;
    if (t->waiting && write(t->wake, &one, sizeof one) < 0)
        t->waiting = true; /* the counter is full: it rings anyway */
}

void uf_tcp_pause(uf_tcp *t, uint32_t round, uint64_t deadline)
{
    const uf_driver *driver = t->base.driver;
    /* Always: the world's driver moves data in here, and others may need that to arrive at all. */
    driver->relax(driver->arg, round);
    if (!driver->threads)
        return;
    uint64_t now = driver->now(driver->arg);
    if (now >= deadline || round < EAGER_ROUNDS)
        return;
    /* The kernel wakes us when something comes, and `wake` when another thread took it. Short, for the data's sake. */
    struct pollfd fds[2] = {{.fd = t->epoll, .events = POLLIN}, {.fd = t->wake, .events = POLLIN}};
    if (poll(fds, 2, PAUSE_MS) > 0 && fds[1].revents) {
        uint64_t count;
        ssize_t n = read(t->wake, &count, sizeof count);
        (void)n; /* another waiter may have emptied it */
    }
}

bool uf_tcp_wait(uf_tcp *t, bool (*ready)(uf_tcp *t), uint64_t deadline)
{
    for (uint32_t round = 0;; round++) {
        pthread_mutex_lock(&t->lock);
        uf_tcp_pass(t);
        bool is_ready = ready(t);
        t->waiting = !is_ready;
        pthread_mutex_unlock(&t->lock);
        if (is_ready)
            return true;
        if (uf_bootstrap_now(&t->base) >= deadline)
            return false;
        uf_tcp_pause(t, round, deadline);
    }
}

static int news_code(uf_tcp *t)
{
    int news = atomic_load_explicit(&t->news, memory_order_acquire);
    return news ? uf_error_set(news, t->news_text) : UF_OK;
}

static int tcp_poll(uf_bootstrap *base, int *pe)
{
    uf_tcp *t = (uf_tcp *)base;
    /* Somebody who holds the lock is at it already. */
    if (!pthread_mutex_trylock(&t->lock)) {
        if (uf_tcp_pass(t))
            ring(t);
        pthread_mutex_unlock(&t->lock);
    }
    int rc = news_code(t);
    if (rc && pe)
        *pe = t->news_pe;
    return rc;
}

static int tcp_fd(uf_bootstrap *base)
{
    return ((uf_tcp *)base)->epoll;
}

/* With the lock held: the end of a step as this PE sees it, or 1 if it is still open. */
static int step_state(uf_tcp *t)
{
    /* The result first: a death after the end of a step does not undo the step. */
    if (t->done)
        return t->result ? uf_error_set(t->result, t->result_text) : UF_OK;
    int news = news_code(t);
    if (news)
        return news;
    return t->broken ? uf_error_set(t->broken, t->broken_text) : 1;
}

static bool step_over(uf_tcp *t)
{
    return t->done || t->broken || atomic_load_explicit(&t->news, memory_order_relaxed);
}

static bool all_sent(uf_tcp *t)
{
    return t->unsent == 0;
}

/* With the lock held: this PE's part is on its way. */
static int step_begin(uf_tcp *t, const void *mine, size_t bytes, void *all)
{
    int rc = step_state(t);
    if (rc < 0)
        return rc;
    t->step++;
    t->all = all;
    t->bytes = bytes;
    t->in_step = true;
    if (t->base.pe == 0)
        return uf_tcp_root_enter(t, mine, bytes);
    uf_tcp_message *part = uf_tcp_message_new(t, UF_FRAME_GATHER, 0, t->base.pe, t->step, mine, bytes);
    if (!part)
        return uf_fail(UF_ENOMEM, "no memory for %zu bytes of a bootstrap exchange on PE %d", bytes, t->base.pe);
    uf_tcp_conn_send(t, t->root, part);
    uf_tcp_message_release(part);
    return UF_OK;
}

/* Time is up: PE 0 ends the step for all, the others ask it to. */
static void step_give_up(uf_tcp *t)
{
    char text[256];
    pthread_mutex_lock(&t->lock);
    if (t->base.pe == 0)
        uf_tcp_root_give_up(t);
    else if (t->root)
        uf_tcp_conn_tell(t, t->root, UF_FRAME_GIVE_UP, 0, t->base.pe, t->step, NULL);
    pthread_mutex_unlock(&t->lock);
    if (uf_tcp_wait(t, step_over, uf_tcp_deadline(t, UF_TCP_GRACE_NS)))
        return;
    pthread_mutex_lock(&t->lock);
    if (!step_over(t)) {
        snprintf(text, sizeof text,
                 "PE 0 does not answer PE %d about exchange %u of the world: it is stopped, or its host or "
                 "network is",
                 t->base.pe, t->step);
        uf_tcp_note_broken(t, UF_ETIMEDOUT, text);
    }
    pthread_mutex_unlock(&t->lock);
}

static int tcp_allgather(uf_bootstrap *base, const void *mine, size_t bytes, void *all, uint64_t deadline)
{
    uf_tcp *t = (uf_tcp *)base;
    pthread_mutex_lock(&t->lock);
    t->done = false;
    int rc = step_begin(t, mine, bytes, all);
    pthread_mutex_unlock(&t->lock);
    if (!rc && !uf_tcp_wait(t, step_over, deadline))
        step_give_up(t);
    pthread_mutex_lock(&t->lock);
    if (!rc)
        rc = step_state(t);
    t->in_step = false;
    t->done = false;
    t->all = NULL;
    t->waiting = false;
    pthread_mutex_unlock(&t->lock);
    /* PE 0 hands the result over before it goes on to compute; a peer that does not take it is not waited for
     * long. */
    if (!rc && base->pe == 0)
        uf_tcp_wait(t, all_sent, uf_tcp_deadline(t, UF_TCP_GRACE_NS));
    return rc;
}

static void tcp_abort(uf_bootstrap *base, int code, const char *why)
{
    uf_tcp *t = (uf_tcp *)base;
    char text[UF_BOOTSTRAP_TEXT];
    snprintf(text, sizeof text, "PE %d ended the world: %s", base->pe, why);
    pthread_mutex_lock(&t->lock);
    if (uf_tcp_note_news(t, code, base->pe, text)) {
        if (base->pe == 0)
            uf_tcp_root_broadcast(t, uf_tcp_message_new(t, UF_FRAME_NEWS, code, 0, 0, text, strlen(text)), NULL);
        else if (t->root)
            uf_tcp_conn_tell(t, t->root, UF_FRAME_NEWS, code, base->pe, 0, text);
    }
    ring(t);
    pthread_mutex_unlock(&t->lock);
}

static void tcp_leave(uf_bootstrap *base)
{
    uf_tcp *t = (uf_tcp *)base;
    pthread_mutex_lock(&t->lock);
    if (base->pe == 0) {
        uf_tcp_root_broadcast(t, uf_tcp_message_new(t, UF_FRAME_LEAVE, 0, 0, 0, NULL, 0), NULL);
        /* Nothing is decided here any more: who leaves because of this must not be named as the cause. */
        uf_tcp_note_broken(t, UF_EPEER, UF_TCP_ROOT_LEFT);
    } else if (t->root) {
        uf_tcp_conn_tell(t, t->root, UF_FRAME_LEAVE, 0, base->pe, 0, NULL);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Every byte is at its host: closing with unread input sends a reset, which must not overtake a last word. */
static bool all_settled(uf_tcp *t)
{
    if (t->unsent)
        return false;
    if (t->root && !uf_tcp_conn_settled(t->root))
        return false;
    for (int i = 1; t->pes && i < t->base.n_pes; i++)
        if (t->pes[i].conn && !uf_tcp_conn_settled(t->pes[i].conn))
            return false;
    return true;
}

static void tcp_free(uf_tcp *t)
{
    if (t->root)
        uf_tcp_conn_close(t, t->root);
    uf_tcp_root_free(t);
    uf_tcp_conn_free_closed(t);
    if (t->epoll >= 0)
        close(t->epoll);
    if (t->wake >= 0)
        close(t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->scratch);
    free(t);
}

static void tcp_destroy(uf_bootstrap *base)
{
    uf_tcp *t = (uf_tcp *)base;
    uint64_t deadline = uf_tcp_deadline(t, UF_TCP_GRACE_NS / 2);
    /* An acknowledgement wakes nobody, so this looks every millisecond; on one host the first look suffices.
     */
    for (uint32_t round = 0;; round++) {
        pthread_mutex_lock(&t->lock);
        uf_tcp_pass(t);
        bool settled = all_settled(t);
        pthread_mutex_unlock(&t->lock);
        if (settled || uf_bootstrap_now(base) >= deadline)
            break;
        uf_tcp_pause(t, round, uf_tcp_deadline(t, 1000000));
    }
    tcp_free(t);
}

static const uf_bootstrap_ops tcp_ops = {
    .destroy = tcp_destroy,
    .allgather = tcp_allgather,
    .abort = tcp_abort,
    .leave = tcp_leave,
    .poll = tcp_poll,
    .fd = tcp_fd,
};

int uf_bootstrap_tcp_create(const uf_bootstrap_params *params, uf_bootstrap **out)
{
    uf_tcp *t = calloc(1, sizeof *t);
    if (!t)
        return uf_fail(UF_ENOMEM, "no memory for the bootstrap of PE %d", params->pe);
    t->base = (uf_bootstrap){
        .ops = &tcp_ops, .driver = params->driver, .pe = params->pe, .n_pes = params->n_pes, .timeout_ns = params->timeout_ns};
    pthread_mutex_init(&t->lock, NULL);
    const char *job = params->job && params->job[0] ? params->job : params->settings->text[UF_SET_JOB];
    t->job = uf_frame_hash(job, strlen(job), 0);
    snprintf(t->interface, sizeof t->interface, "%s", params->settings->text[UF_SET_INTERFACE]);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->scratch = malloc(UF_TCP_SCRATCH);
    int rc = UF_OK;
    if (t->epoll < 0 || t->wake < 0)
        rc = uf_fail_errno(UF_ESYSTEM, errno, "PE %d cannot make the descriptors of its bootstrap", params->pe);
    else if (!t->scratch)
        rc = uf_fail(UF_ENOMEM, "no memory for the bootstrap of PE %d", params->pe);
    if (!rc)
        rc = uf_root_parse(params->root, &t->address);
    if (!rc) {
        uint64_t deadline = uf_tcp_deadline(t, params->timeout_ns);
        rc = params->pe == 0 ? uf_tcp_root_create(t, deadline) : uf_tcp_join(t, deadline);
    }
    if (rc) {
        tcp_free(t);
        return rc;
    }
    *out = &t->base;
    return UF_OK;
}
