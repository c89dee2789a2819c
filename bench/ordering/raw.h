/* raw.h - what schemes over the bare fabric share: endpoints of the sender and its peers, posting, and the turn that hands out completions. */
#ifndef ORDERING_RAW_H
#define ORDERING_RAW_H

#include "ordering.h"

int ordering_raw_open(ordering_run *r);
void ordering_raw_close(ordering_run *r);
int ordering_raw_turn(ordering_run *r, uint32_t pe);

/* Cookies: a put's and its signal's differ in the last bit. */
static inline uint32_t ordering_cookie(uint64_t n, bool signal)
{
    return (uint32_t)n << 1 | signal;
}

/* The payload of put `n` to its peer; with an immediate if `imm` is not negative. UF_EAGAIN: the queue is full. */
int ordering_raw_put(ordering_run *r, uint64_t n, int64_t imm);
/* A signal alone to `port`: a write of 0 bytes, with an immediate if `imm` is not negative. */
int ordering_raw_signal(ordering_run *r, uint64_t n, uint32_t port, int64_t imm);
/* A message of 32 bytes that begins with `value`. */
int ordering_raw_message(ordering_run *r, uint32_t from, uint32_t to, uint32_t cookie, uint64_t value);

/* Puts whose signals may go, oldest first: as many as there are puts. */
typedef struct ordering_list {
    uint64_t head, tail;
    uint32_t *puts;
} ordering_list;

int ordering_list_open(ordering_list *list, const ordering_run *r);
void ordering_list_close(ordering_list *list);

static inline void ordering_list_add(ordering_list *list, uint64_t n)
{
    list->puts[list->tail++] = (uint32_t)n;
}

/* Posts the signals of the list, each to its peer with its slot for immediate, until the queue is full. */
int ordering_list_signal(ordering_list *list, ordering_run *r);
/* An immediate of ordering_list_signal, or of any scheme that puts the slot there, at peer `pe`. */
int ordering_raw_saw_slot(ordering_run *r, uint32_t pe, const uf_cqe *cqe);

#endif
