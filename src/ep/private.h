/* private.h - what the files of this room share: the state of an uf_ep, where everything lies in symmetric memory, and the waits.
 *
 * ep.c creates and ends it, dispatch.c and combine.c are the two directions, await.c the waits and their stories. The protocol needs
 * no fence and no reset; these are all its words, each written by one peer only, and each only ever added to:
 *   notes[2]  one per step parity. The sender's counts and the description of its rows are here, AND its receive slot for this step is free.
 *   data      the sender's rows of the current dispatch are here.
 *   ready     for repeats without an exchange of counts: "what you are about to overwrite here has been read".
 *   back[H]   one per receive slot: the sender's rows of a combine are here (2 for each combine; one message adds 2, two add 1 each).
 * Why no write can hit what is still in use:
 *   - Notes of step n+2 lie where those of step n lay. A PE sends them after its step n+1, which needed everybody's notes n+1, which each PE
 *     sends after its own step n, having read all notes n. So two parities are enough, and a word of each.
 *   - Rows of a dispatch go to the receiver's slot after the receiver's notes of this step, sent when that slot was free.
 *   - Rows of a combine go to the source's slot after the source's notes of that dispatch, sent when that slot was free, so its earlier
 *     combines are over. A second combine of one dispatch, and a cached dispatch, wait for `ready`.
 *   - A network may place the same bytes once more until the sender's own completion. Each PE completes its earlier puts (uf_flush)
 *     before it sends notes, and nobody writes to a slot's new use before everybody's notes are there.
 * Calls are collective and come in the same order on all PEs of the team; one call at a time per uf_ep. */
#ifndef UF_EP_PRIVATE_H
#define UF_EP_PRIVATE_H

#include "ep/plan.h"
#include "unfence/ep.h"
#include "world/team.h"
#include <stdbool.h>

/* The head of a note; counts[n_pes] follow, then (from note_head bytes on) tokens[n], experts[n][top_k] and weights[n][top_k] of the
 * n rows that go to the reader. */
typedef struct uf_ep_note {
    uint64_t step;
    uf_ep_fault fault;
    int32_t slot; /* where the sender receives this step */
    int32_t reserved[9];
} uf_ep_note;
_Static_assert(sizeof(uf_ep_note) == 64, "a note's head is one cache line");

/* Goes before the weights that a PE sends back in a combine, in one message with them: whether they came at all is its choice. */
typedef struct uf_ep_tag {
    uint64_t weights_of; /* the combine whose weights follow; any other number: none came */
    uint64_t reserved[7];
} uf_ep_tag;
_Static_assert(sizeof(uf_ep_tag) == 64, "a tag is one cache line");

/* Offsets in the symmetric block; the same on all PEs. */
typedef struct uf_ep_layout {
    size_t row_bytes, note_head, note_bytes, lane_bytes; /* lane_bytes: of a row's weights */
    size_t notes;                                        /* [2][n_pes] notes */
    size_t slots, slot_bytes;                            /* [n_handles] slots, each: */
    size_t back, tags;                                   /*   x at 0, then the rows of combines, then tags and weights */
    size_t total;
    size_t stage_notes, stage_rows, stage_weights, stage_total; /* in ordinary memory, only with network peers */
} uf_ep_layout;

struct uf_ep_handle {
    uf_ep *ep;
    int slot;
    bool open;
    uint64_t combines; /* since the last (cached) dispatch */
    int n_tokens, n_rows;
    int32_t *counts;                 /* [n_pes][n_pes] rows from s to d */
    int32_t *peer_slot;              /* [n_pes] */
    int32_t *rows_to, *first_to;     /* [n_pes] my rows to d, and where those of d come back: prefix over d */
    int32_t *rows_from, *first_from; /* [n_pes] */
    int32_t *row_at, *back_at;       /* [n_pes] my first row in d's x; my first row in s's space for combines */
    /* Per token: its owners in order of reduction, and its place among my rows to each. */
    uint8_t *n_owners;             /* [max_tokens] */
    int16_t *owner;                /* [max_tokens][most_owners] */
    int32_t *place;                /* [max_tokens][most_owners] */
    int32_t *experts, *lane_place; /* [max_tokens][top_k] */
    float *weights;                /* [max_tokens][top_k] */
    /* Received. */
    int32_t *got_experts, *got_pe, *got_token, *expert_rows;
    float *got_weights;
};

struct uf_ep {
    uf_world *world;
    uf_ctx *ctx;
    uf_ep_shape shape;
    uf_ep_type type;
    uf_ep_layout layout;
    int me, n_handles, n_local, most_owners, n_network;
    int broken;                                               /* the first error after which the PEs may be out of step */
    uint64_t step, combines;                                  /* dispatches that exchanged notes; combines */
    int *world_pe;                                            /* [n_pes] */
    unsigned char *base;                                      /* the symmetric block here */
    unsigned char **peer;                                     /* [n_pes] the same of a mapped peer, or NULL */
    unsigned char *stage;                                     /* for what goes over a network, or NULL */
    uint64_t *words;                                          /* see uf_ep_word */
    uint64_t *expected_data, *expected_ready, *expected_back; /* [n_pes], [n_pes], [n_handles][n_pes] */
    unsigned char **to;                                       /* [n_pes] scratch: where rows to d are written */
    uf_ep_handle *handles;                                    /* [n_handles] */
    uf_ep_stats stats;
};

typedef enum uf_ep_word_kind { UF_EP_NOTES = 0, UF_EP_DATA = 2, UF_EP_READY = 3, UF_EP_BACK = 4 } uf_ep_word_kind;

/* The word of peer `from` (team number): kinds are UF_EP_NOTES + parity, UF_EP_DATA, UF_EP_READY, UF_EP_BACK + slot. */
static inline uint64_t *uf_ep_word(const uf_ep *ep, int kind, int from)
{
    return ep->words + (size_t)kind * (size_t)ep->shape.n_pes + (size_t)from;
}

static inline size_t uf_ep_note_at(const uf_ep *ep, int parity, int from)
{
    return ep->layout.notes + ((size_t)parity * (size_t)ep->shape.n_pes + (size_t)from) * ep->layout.note_bytes;
}

static inline size_t uf_ep_slot_at(const uf_ep *ep, int slot)
{
    return ep->layout.slots + (size_t)slot * ep->layout.slot_bytes;
}

/* Where the tag and the weights of a sender are, given the rows of the senders before it: each has its own cache lines. */
static inline size_t uf_ep_tag_at(const uf_ep *ep, int slot, int from, int32_t rows_before)
{
    return uf_ep_slot_at(ep, slot) + ep->layout.tags + (size_t)from * 128 +
           ((size_t)rows_before * ep->layout.lane_bytes + 63) / 64 * 64;
}

/* A note's arrays of n rows. */
static inline int32_t *uf_ep_note_counts(unsigned char *note)
{
    return (int32_t *)(void *)(note + sizeof(uf_ep_note));
}

static inline int32_t *uf_ep_note_tokens(const uf_ep *ep, unsigned char *note)
{
    return (int32_t *)(void *)(note + ep->layout.note_head);
}

static inline int32_t *uf_ep_note_experts(const uf_ep *ep, unsigned char *note, int32_t n)
{
    return uf_ep_note_tokens(ep, note) + n;
}

static inline float *uf_ep_note_weights(const uf_ep *ep, unsigned char *note, int32_t n)
{
    return (float *)(void *)(uf_ep_note_experts(ep, note, n) + (size_t)n * (size_t)ep->shape.top_k);
}

/* The bytes of a note with n rows. */
static inline size_t uf_ep_note_size(const uf_ep *ep, int32_t n)
{
    return ep->layout.note_head + (size_t)n * (4 + 8 * (size_t)ep->shape.top_k);
}

/* One word per source, waited for until each is at least what is expected. */
typedef struct uf_ep_await {
    const char *call, *what;  /* "dispatch", "rows" */
    int kind;                 /* of the words */
    const uint64_t *expected; /* [n_pes]; NULL: `value` for all */
    uint64_t value;
    const int32_t *rows; /* [n_pes] sources with 0 rows are not waited for; NULL: all others are */
    int stats;           /* 0 dispatch, 1 combine */
} uf_ep_await;
/* UF_ETIMEDOUT names call, phase, late PEs and progress; other errors are the world's. */
int uf_ep_wait(uf_ep *ep, const uf_ep_await *await);

/* Before rows are sent without an exchange of notes: tells those who will send to me that their place here is free, and waits to
 * hear it from those I will send to. */
int uf_ep_wait_ready(uf_ep *ep, uf_ep_handle *handle, bool combine);

/* ADD `value` to my word of `kind` on team PE `pe`. */
int uf_ep_signal(uf_ep *ep, int kind, uint64_t value, int pe);
/* Puts `bytes` from `src` (staged, or the caller's) to `offset` of pe's symmetric block and adds `value` to my word. Network peers only. */
int uf_ep_put(uf_ep *ep, size_t offset, const void *src, size_t bytes, int kind, uint64_t value, int pe);
/* Tells the world's counters of one block that was copied to a mapped peer. */
void uf_ep_count_copy(uf_ep *ep, size_t bytes);
/* UF_OK, or why this uf_ep (and this handle of it, if not NULL) can't be used. */
int uf_ep_check(uf_ep *ep, const char *call, const uf_ep_handle *handle);
/* Notes that PEs may now be out of step; returns rc. */
int uf_ep_break(uf_ep *ep, int rc);
void uf_ep_fill_received(const uf_ep_handle *handle, uf_ep_received *received);

#endif
