/* tcp.h - what the five files of the TCP bootstrap share. Private to them.
 *
 *   tcp_conn.c  one connection: frames in, frames out, never blocking
 *   tcp_root.c  PE 0 while the world forms: listens, lets in, notices who goes
 *   tcp_exchange.c  PE 0 afterwards: collects parts, sends results, relays news
 *   tcp_join.c  the others: find PE 0, say hello, try again
 *   tcp.c       the functions of bootstrap.h over those
 * One lock guards everything. It is held for a pass over what is ready and never while waiting; whoever waits
 * does so in poll() on the epoll descriptor and on `wake`, which another thread's pass rings when it moved
 * something. */
#ifndef UF_BOOTSTRAP_TCP_H
#define UF_BOOTSTRAP_TCP_H

#include "base/clock.h"
#include "bootstrap/address.h"
#include "bootstrap/frame.h"
#include "bootstrap/transport.h"
#include <pthread.h>
#include <stdatomic.h>

/* Frames that may wait in one connection. The protocol has at most one of each kind outstanding, so more
 * means a peer that is stuck. */
#define UF_TCP_QUEUE 12
/* How long an answer of PE 0 about a step that ran out of time is awaited, and last bytes at the end. */
#define UF_TCP_GRACE_NS 2000000000u
/* A connection that does not say hello within this is somebody else's. */
#define UF_TCP_HELLO_NS 5000000000u

typedef struct uf_tcp uf_tcp;
typedef struct uf_tcp_conn uf_tcp_conn;

/* A frame on its way out, shared by all connections it goes to. */
typedef struct uf_tcp_message {
    uint32_t references;
    size_t bytes;
    unsigned char data[];
} uf_tcp_message;

typedef enum uf_tcp_role {
    UF_TCP_LISTENER, /* PE 0 */
    UF_TCP_STRANGER, /* PE 0: accepted, has not said hello */
    UF_TCP_PE,       /* PE 0: one of the others */
    UF_TCP_ROOT,     /* the others: PE 0 */
} uf_tcp_role;

struct uf_tcp_conn {
    uf_tcp_conn *next; /* in the list of strangers, or of those to be freed */
    uf_tcp_role role;
    int fd; /* -1 once closed */
    int pe;
    uint64_t deadline; /* of a stranger */
    bool wants_write;  /* epoll watches for space */
    uf_frame_reader reader;
    uf_tcp_message *queue[UF_TCP_QUEUE];
    unsigned queued;
    size_t sent; /* bytes of queue[0] that are out */
};

/* PE 0's record of a PE. */
typedef struct uf_tcp_pe {
    uf_tcp_conn *conn; /* NULL: not here */
    bool gone;         /* came and went before the world was complete */
    bool left;
    bool has_part;
    unsigned char *part;
    size_t part_bytes, part_capacity;
    uint64_t process, attempt;
    uint32_t pid;
    char host[UF_HELLO_HOST];
} uf_tcp_pe;

typedef enum uf_tcp_stage {
    UF_TCP_NOWHERE, /* no connection to PE 0 */
    UF_TCP_ASKED,   /* hello is sent */
    UF_TCP_HERE,    /* PE 0 knows us and waits for others; on PE 0: listening */
    UF_TCP_REFUSED, /* stage_code and stage_text say why */
    UF_TCP_FORMED,  /* all have come */
} uf_tcp_stage;

struct uf_tcp {
    uf_bootstrap base;
    pthread_mutex_t lock;
    int epoll, wake;
    bool waiting;        /* somebody waits in poll */
    uint64_t unsent;     /* connections with frames that are not out yet */
    uf_tcp_conn *closed; /* freed at the end of the pass: events of this pass may still point to them */
    unsigned char *scratch;
    char interface[256];
    uint64_t job;
    uf_root address;

    _Atomic int news;
    int news_pe;
    char news_text[UF_BOOTSTRAP_TEXT];
    int broken;
    char broken_text[UF_BOOTSTRAP_TEXT];

    uint32_t step;      /* exchanges begun by this PE */
    bool in_step, done; /* the caller waits; the result is there */
    int result;
    char result_text[UF_BOOTSTRAP_TEXT];
    void *all; /* the caller's, while in_step */
    size_t bytes;

    uf_tcp_stage stage;
    int stage_code;
    char stage_text[UF_BOOTSTRAP_TEXT];
    uf_tcp_conn *root; /* the others */
    bool root_left;

    uf_tcp_pe *pes; /* PE 0: everybody; pes[0] is itself */
    bool *missing;  /* PE 0: scratch for messages */
    uint32_t round; /* PE 0: the step being collected, from 1 */
    int n_here, n_parts, n_left;
    uf_tcp_conn *listeners[UF_ADDRESSES];
    size_t n_listeners;
    uf_tcp_conn *strangers;
    bool root_is_here;
};

#define UF_TCP_SCRATCH   65536
#define UF_TCP_ROOT_LEFT "PE 0 has left the world"

/* tcp_conn.c. All with the lock held. */
int uf_tcp_conn_open(uf_tcp *t, int fd, uf_tcp_role role, uint32_t limit, uf_tcp_conn **out); /* takes fd, also on failure */
void uf_tcp_conn_close(uf_tcp *t, uf_tcp_conn *conn);
void uf_tcp_conn_free_closed(uf_tcp *t);
/* Options every connection has: no delay, keep-alive that notices a vanished host. */
void uf_tcp_socket_prepare(int fd);
uf_tcp_message *uf_tcp_message_new(uf_tcp *t, uf_frame_type type, int code, int pe, uint32_t step, const void *payload,
                                   size_t bytes);
void uf_tcp_message_release(uf_tcp_message *message);
/* Queues and sends what goes at once. Broken connections show when they are read. */
void uf_tcp_conn_send(uf_tcp *t, uf_tcp_conn *conn, uf_tcp_message *message);
/* Makes a frame with a text (may be NULL) and sends it to one connection. */
void uf_tcp_conn_tell(uf_tcp *t, uf_tcp_conn *conn, uf_frame_type type, int code, int pe, uint32_t step, const char *text);
/* Handles all that is ready: the number of events. */
int uf_tcp_pass(uf_tcp *t);
/* True if every byte sent has been acknowledged by the other host. */
bool uf_tcp_conn_settled(const uf_tcp_conn *conn);

/* tcp.c */
/* Records the first news; true if this is it. */
bool uf_tcp_note_news(uf_tcp *t, int code, int pe, const char *text);
bool uf_tcp_note_broken(uf_tcp *t, int code, const char *text);
/* Without the lock: waits a while for something to move, at most until `deadline`. */
void uf_tcp_pause(uf_tcp *t, uint32_t round, uint64_t deadline);
/* Without the lock: passes until `ready` (called with the lock) says so, or the deadline: false. */
bool uf_tcp_wait(uf_tcp *t, bool (*ready)(uf_tcp *t), uint64_t deadline);

/* Engine time `ns` from now. */
static inline uint64_t uf_tcp_deadline(const uf_tcp *t, uint64_t ns)
{
    return uf_deadline(uf_bootstrap_now(&t->base), ns);
}

/* tcp_root.c: what happens on PE 0. */
int uf_tcp_root_create(uf_tcp *t, uint64_t deadline);
void uf_tcp_root_free(uf_tcp *t);
void uf_tcp_root_accept(uf_tcp *t, uf_tcp_conn *listener);
void uf_tcp_root_hello(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload);
/* Makes a frame with a text and sends it to all but `except`. */
void uf_tcp_root_tell(uf_tcp *t, uf_frame_type type, int code, int pe, uint32_t step, const char *text,
                      const uf_tcp_conn *except);
/* Time is up for the creation: the names of those who did not come, to all who did. */
void uf_tcp_root_form_late(uf_tcp *t);
/* tcp_exchange.c */
void uf_tcp_root_frame(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload);
void uf_tcp_root_lost(uf_tcp *t, uf_tcp_conn *conn, const char *why);
void uf_tcp_root_reap(uf_tcp *t);
int uf_tcp_root_enter(uf_tcp *t, const void *mine, size_t bytes);
void uf_tcp_root_give_up(uf_tcp *t);
/* To everybody who is there but `except` (may be NULL). Takes the message. */
void uf_tcp_root_broadcast(uf_tcp *t, uf_tcp_message *message, const uf_tcp_conn *except);

/* tcp_join.c: what happens on the others. */
int uf_tcp_join(uf_tcp *t, uint64_t deadline);
void uf_tcp_join_frame(uf_tcp *t, uf_tcp_conn *conn, const uf_frame *frame, const unsigned char *payload);
void uf_tcp_join_lost(uf_tcp *t, uf_tcp_conn *conn, const char *why);

#endif
