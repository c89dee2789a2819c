/* private.h - what the files of src/ep share: the symmetric layout, the words, the handle and the steps of a call.
 *
 * options.c agrees on the options and divides memory, ep.c creates and ends, dispatch.c and combine.c are the two directions, expand.c makes
 * the received arrays, call.c the public calls as steps of a started operation, await.c the waits and their stories. The
 * protocol needs no fence and no reset; these are all its words, each written by one peer only, and each only ever added to:
 *   notes[4]  one per step modulo 4. The sender's counts and the description of its rows are here, AND its receive slot is free.
 *   ready     for repeats without an exchange of counts: "what you are about to overwrite here has been read".
 *   data[H]   one per receive slot: the sender's rows of the current dispatch are here (2 each; one message adds 2, two add 1 each).
 *   back[H]   one per receive slot: the sender's rows of a combine are here, counted alike; also of a sender that has none.
 *   refusal[H][2]  one per receive slot and parity of the calls on its handle, set, not added to: the sender refuses this combine or cached dispatch of
 *             its own, and why. Its strong `ready` or `back` comes behind. All PEs hear from all in these calls, so all refuse alike.
 *   notice    set: the sender was given a handle that it can't use, so that it can't take part in a call; or it heard so from another.
 * Why no write can hit what is still in use:
 *   - Notes of step n+4 lie where those of step n lay. At most two steps have unread notes at a PE, so its notes of step n+2 say that it has
 *     read all notes n. A PE sends notes n+4 after it has read everybody's n+2. So four places are enough, and a word of each.
 *   - Rows of a dispatch go to the receiver's slot after the receiver's notes of this step, sent when that slot was free.
 *   - Rows of a combine go to the source's slot after the source's notes of that dispatch, sent when that slot was free, so its earlier
 *     combines are over. A second combine of one dispatch, and a cached dispatch, wait for `ready`.
 *   - Gradients may be larger than the rows before them, so that a PE's rows lie where another's lay. Then everybody completes its puts before
 *     it gives leave. Leave is given to all and waited for from all.
 *   - No PE is two calls ahead on a handle, since each call on it hears from all: two words of refusal are enough. `ready` is strong after a first
 *     refusal, so that no later one overtakes it.
 *   - `ready` counts calls, which come in the same order everywhere: a word that has reached n says that n calls were made.
 *   - A network may place the same bytes once more until the sender's own completion. Each PE completes its earlier puts (uf_flush)
 *     before it sends notes, and nobody writes to a slot's new use before everybody's notes are there.
 * Calls are collective and come in the same order on all PEs of the team; one call at a time per uf_ep. */
#ifndef UF_EP_PRIVATE_H
#define UF_EP_PRIVATE_H

#include "ep/plan.h"
#include "unfence/ep.h"
#include "world/team.h"
#include <stdbool.h>

/* The head of a note; counts[n_pes] follow (and with lanes_back lanes[n_pes]), then (from note_head bytes on) tokens[n], experts[n][top_k] and weights[n][top_k] of the
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

/* What follows from the options. */
typedef struct uf_ep_sizes {
    int n_handles, n_local, alignment, most_owners;
    bool lanes_back;              /* a row per lane comes back, not one per PE */
    int most_parts;               /* rows that come back for a token, at most */
    int wire_scales;              /* per row, a checksum included */
    size_t row_bytes, back_bytes; /* a row of a dispatch, of a combine */
    size_t room_bytes;            /* the larger of both: gradients are dispatched as rows of combines */
    size_t lane_bytes, tag_bytes; /* of a row's weights; of its weights and checksums */
    int64_t most_rows;            /* received at most, padding included */
} uf_ep_sizes;

/* Offsets in the symmetric block; the same on all PEs. */
typedef struct uf_ep_layout {
    size_t note_head, note_bytes;
    size_t slots, slot_bytes;  /* after the notes: slots, each: */
    size_t scales, back, tags; /*   x at 0, then these */
    size_t total;
    size_t stage_rows, stage_scales, stage_tags, stage_back, stage_total; /* in ordinary memory, notes at 0 */
} uf_ep_layout;

/* Where a handle stands. The order of calls is the same on all PEs, so is the state between two calls. */
typedef enum uf_ep_state {
    UF_EP_FREE = 0,
    UF_EP_COUNTS,        /* a dispatch: notes are sent, those of others not yet read */
    UF_EP_REFUSED,       /* a dispatch that some PE refused; its finish says so */
    UF_EP_LEAVE,         /* a cached dispatch: waits until it may overwrite */
    UF_EP_ROWS,          /* a dispatch: rows are sent, those of others awaited */
    UF_EP_OPEN,          /* nothing started */
    UF_EP_LEAVE_REFUSED, /* a cached dispatch that some PE refused before any row has moved; its finish says so */
    UF_EP_BACK_REFUSED,  /* a repeated combine likewise */
    UF_EP_BACK_LEAVE,    /* a repeated combine: waits until it may overwrite */
    UF_EP_BACK_ROWS,     /* a combine: rows are sent, those of others awaited */
} uf_ep_state;

enum { UF_EP_NOTES_KEPT = 4, UF_EP_MOST_COUNTING = 2, UF_EP_MOST_REFUSED = 8, UF_EP_MOST_PARTS = 32 };

struct uf_ep_handle {
    uf_ep *ep;
    int slot; /* -1: only carries a refusal to its finish */
    uf_ep_state state;
    uf_ep_fault fault; /* UF_EP_REFUSED: what, and whose */
    int fault_pe;
    uint64_t step;       /* of the dispatch */
    uint64_t calls;      /* cached dispatches and combines on it */
    uint64_t call;       /* the number of the last one among those of the uf_ep */
    uf_ep_fault own;     /* what this PE refuses of it */
    uint64_t repeats;    /* combines since the last (cached) dispatch */
    size_t row_bytes;    /* of the rows in the slots */
    bool resized;        /* a cached dispatch whose rows are larger or smaller: places of different PEs overlap */
    uint64_t combine_id; /* of the combine under way */
    uf_ep_send send;     /* the caller's, while started */
    uf_ep_back give;
    int n_tokens, n_got;             /* sent, received */
    int n_rows;                      /* received, in the order asked for */
    int32_t *counts, *lane_counts;   /* [n_pes][n_pes] rows, and with lanes_back lanes, from s to d */
    int32_t *peer_slot;              /* [n_pes] */
    int32_t *rows_to, *first_to;     /* [n_pes] my rows to d: prefix over d */
    int32_t *rows_from, *first_from; /* [n_pes + 1] */
    int32_t *row_at, *tag_at;        /* [n_pes] my first row in d's x; my first row in s's tags */
    /* Rows of a combine, which are those of the dispatch or, with lanes_back, one per lane. */
    int32_t *back_to, *back_first_to; /* [n_pes] what d sends me, and where it lies here */
    int32_t *back_from, *back_at;     /* [n_pes] what I send s, and where it lies there */
    int32_t *lanes_to;                /* [n_pes] with lanes_back: memory of back_to */
    /* Per token: its owners in order of reduction, and its place among my rows to each. */
    uint8_t *n_owners;                         /* [max_tokens] */
    int16_t *owner;                            /* [max_tokens][most_owners] */
    int32_t *place;                            /* [max_tokens][most_owners] */
    int32_t *experts, *lane_place, *lane_back; /* [max_tokens][top_k] */
    float *weights;                            /* [max_tokens][top_k] */
    /* Received: one per token first, then as the order asks. */
    int32_t *got_experts, *got_pe, *got_token, *got_lane, *expert_rows, *expert_first, *expert_aligned;
    float *got_weights;
    int32_t *token_rows, *row_pe, *row_token, *row_lane; /* expert-major */
    float *row_weights;
    unsigned char *x, *scales; /* where the caller finds them; own memory if own_x, own_scales */
    unsigned char *own_x, *own_scales;
};

struct uf_ep {
    uf_world *world;
    uf_ctx *ctx;
    uf_ep_shape shape;
    uf_ep_options options;
    uf_ep_sizes sizes;
    uf_ep_layout layout;
    int me, n_network;
    int broken;                                               /* the first error after which the PEs may be out of step */
    uint64_t step, combines;                                  /* dispatches that exchanged notes; combines */
    uint64_t calls;                                           /* starts of all kinds, those of unusable handles included */
    uint64_t refused_calls;                                   /* bit i: this PE could not use the handle of call `calls` - i */
    uint64_t streak;                                          /* how many such calls came last, one after another */
    bool refuses;                                             /* this PE has refused something: `ready` is strong from now on */
    int *world_pe;                                            /* [n_pes] */
    int32_t *host;                                            /* [n_pes] UF_EP_ROUND_PER_HOST: a number per host */
    int32_t *everybody;                                       /* [n_pes] ones: whom all must hear from */
    unsigned char *base;                                      /* the symmetric block here */
    unsigned char **peer;                                     /* [n_pes] the same of a mapped peer, or NULL */
    unsigned char *stage;                                     /* for what cannot be sent from where it is, or NULL */
    bool stage_rows_used, stage_back_used;                    /* since the last flush */
    uint64_t *words;                                          /* see uf_ep_word */
    uint64_t *expected_ready, *expected_data, *expected_back; /* [n_pes], [n_handles][n_pes] twice */
    unsigned char **to;                                       /* [n_pes] scratch: where rows to d are written */
    int32_t *next_row;                                        /* [n_local] scratch */
    unsigned char *partial;                                   /* [most_parts] rows: sums of hosts */
    uf_ep_handle *handles;                                    /* [n_handles], then UF_EP_MOST_REFUSED that only carry refusals */
    uf_ep_handle *counting[UF_EP_MOST_COUNTING];              /* in order of their starts */
    int n_counting;
    uf_ep_stats stats;
};

typedef enum uf_ep_word_kind { UF_EP_NOTES = 0, UF_EP_READY = UF_EP_NOTES_KEPT, UF_EP_NOTICE, UF_EP_SLOTS } uf_ep_word_kind;

enum { UF_EP_SLOT_WORDS = 4 };

/* The kinds of words of a receive slot. */
static inline int uf_ep_data_kind(int slot)
{
    return UF_EP_SLOTS + UF_EP_SLOT_WORDS * slot;
}

static inline int uf_ep_back_kind(int slot)
{
    return UF_EP_SLOTS + UF_EP_SLOT_WORDS * slot + 1;
}

static inline int uf_ep_refusal_kind(int slot, uint64_t call_on_handle)
{
    return UF_EP_SLOTS + UF_EP_SLOT_WORDS * slot + 2 + (int)(call_on_handle & 1);
}

/* The word of peer `from` (team number). */
static inline uint64_t *uf_ep_word(const uf_ep *ep, int kind, int from)
{
    return ep->words + (size_t)kind * (size_t)ep->shape.n_pes + (size_t)from;
}

static inline size_t uf_ep_note_at(const uf_ep *ep, int place, int from)
{
    return ((size_t)place * (size_t)ep->shape.n_pes + (size_t)from) * ep->layout.note_bytes;
}

static inline size_t uf_ep_slot_at(const uf_ep *ep, int slot)
{
    return ep->layout.slots + (size_t)slot * ep->layout.slot_bytes;
}

/* Where the tag, weights and checksums of a sender are, given the rows of the senders before it: each has its own cache lines. */
static inline size_t uf_ep_tag_at(const uf_ep *ep, int slot, int from, int32_t rows_before)
{
    return uf_ep_slot_at(ep, slot) + ep->layout.tags + (size_t)from * 128 +
           ((size_t)rows_before * ep->sizes.tag_bytes + 63) / 64 * 64;
}

/* The bytes of the rows that a dispatch or its gradients carry, and of their scales. */
static inline size_t uf_ep_send_bytes(const uf_ep *ep, const uf_ep_handle *h)
{
    return h->send.gradients ? ep->sizes.back_bytes : ep->sizes.row_bytes;
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
    uint64_t number;     /* of the call, for the story */
} uf_ep_await;
/* UF_ETIMEDOUT names call, phase, late PEs and progress; other errors are the world's. `block` false: UF_EAGAIN if something is missing. */
int uf_ep_wait(uf_ep *ep, const uf_ep_await *await, bool block);

/* For rows that are sent without an exchange of notes: says to all that their place here is free, and what this PE refuses; then, whether all
 * have said so. */
int uf_ep_give_leave(uf_ep *ep, const uf_ep_handle *handle);
int uf_ep_wait_leave(uf_ep *ep, uf_ep_handle *handle, bool combine, bool block);

/* refuse.c: wrong arguments of a combine or a cached dispatch, and handles that can't be used. */
/* What is wrong with a handle for a new call on it, or UF_EP_FAULT_NONE. */
uf_ep_fault uf_ep_handle_find(const uf_ep *ep, const uf_ep_handle *handle);
/* This PE cannot take part in the call that it is asked to start: tells all, and returns the refusal. */
int uf_ep_refuse_call(uf_ep *ep, const uf_ep_fault *fault);
/* Counts a start that this PE takes part in. */
void uf_ep_count_call(uf_ep *ep);
/* Tells all that this PE refuses the call on the handle (handle->own), before the strong signal that they wait for. */
int uf_ep_refuse(uf_ep *ep, const uf_ep_handle *handle);
/* Once all have been heard: whether some PE refuses the call; *pe (team number) the first of them. */
bool uf_ep_refused(const uf_ep *ep, const uf_ep_handle *handle, int *pe, uf_ep_fault *fault);
/* In a wait: fails if a PE that is waited for cannot take part, and tells all. UF_OK: nothing of that kind. */
int uf_ep_check_notices(uf_ep *ep);

/* ADD `value` to my word of `kind` on team PE `pe`. */
int uf_ep_signal(uf_ep *ep, int kind, uint64_t value, int pe);
/* Puts `bytes` from `src` (staged, or the caller's) to `offset` of pe's symmetric block and adds `value` to my word. Network peers only. */
int uf_ep_put(uf_ep *ep, size_t offset, const void *src, size_t bytes, int kind, uint64_t value, int pe);
/* Completes my puts: no network places their bytes again, and what was staged or given for them may change. */
int uf_ep_complete(uf_ep *ep);
/* Makes a part of the staging memory free again; *used is set: the caller is about to fill it. */
int uf_ep_stage(uf_ep *ep, bool *used);
/* Tells the world's counters of one block that was copied to a mapped peer. */
void uf_ep_count_copy(uf_ep *ep, size_t bytes);
/* Counts bytes of rows to team PE `pe` by the path that they took. */
void uf_ep_count_path(uf_ep *ep, int pe, size_t bytes);
/* UF_OK, or why this uf_ep (and this handle of it, if not NULL) can't be used. */
int uf_ep_check(uf_ep *ep, const char *call, const uf_ep_handle *handle);
/* Notes that PEs may now be out of step; returns rc. */
int uf_ep_break(uf_ep *ep, int rc);

/* options.c. Agreement and confirmation are collective over the world; all PEs get the same answer. */
int uf_ep_agree(uf_world *w, const uf_ep_options *options, int n_pes);
int uf_ep_confirm(uf_world *w, int rc);
/* host[pe] of the team: equal for PEs of one host. Collective over the world. */
int uf_ep_find_hosts(uf_team *team, int node_size, int32_t *host);
void uf_ep_sizes_of(const uf_ep_options *options, int n_pes, uf_ep_sizes *sizes);
void uf_ep_lay_out(const uf_ep_options *options, int n_pes, uf_ep_layout *layout);

/* dispatch.c: the steps of a dispatch. */
void uf_ep_dispatch_plan(uf_ep *ep, uf_ep_handle *h);
int uf_ep_notes_send(uf_ep *ep, const uf_ep_handle *h, const uf_ep_fault *fault);
int uf_ep_notes_read(uf_ep *ep, uf_ep_handle *h, bool block);
int uf_ep_rows_send(uf_ep *ep, uf_ep_handle *h);
int uf_ep_rows_wait(uf_ep *ep, uf_ep_handle *h, bool block);

/* expand.c: what the caller sees of what came. */
int uf_ep_receive(uf_ep *ep, uf_ep_handle *h);
void uf_ep_received_fill(const uf_ep_handle *h, uf_ep_received *received);
/* The checksum of a row and its scales. */
uint64_t uf_ep_checksum(const void *row, size_t bytes, const void *scales, size_t n_scales);

/* combine.c: the steps of a combine. */
int uf_ep_back_send(uf_ep *ep, uf_ep_handle *h);
/* The same for a PE that refuses: no rows, but all hear of it. */
int uf_ep_back_refuse(uf_ep *ep, uf_ep_handle *h);
int uf_ep_back_wait(uf_ep *ep, uf_ep_handle *h, bool block);
int uf_ep_back_reduce(uf_ep *ep, const uf_ep_handle *h);

#endif
