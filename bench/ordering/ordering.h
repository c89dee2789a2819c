/* ordering.h - ways to tell a peer that a put has arrived, side by side on the EFA model in virtual time.
 *
 * One sender puts to its peers in turn, each put followed by its signal, with so many puts in flight as the caller says. What differs
 * is only how the signal is kept behind its bytes: a scheme, which is one table of functions (ordering_scheme), most of them a page of code
 * over the fabric interface (raw.h), ours through the library (library.c). All of them run in the same loop (run.c), on the same model with
 * the same seed, pay the same virtual CPU time for each work request and completion (port.h), and have the payload of each put checked at
 * the moment at which its signal is seen.
 * Everything here is a model result: ratios and counts carry over to hardware, microseconds do not. No clock is read. */
#ifndef ORDERING_H
#define ORDERING_H

#include "fabric/efa/device_model.h"
#include "port.h"
#include "unfence/unfence.h"

typedef struct ordering_options {
    const char *profile;           /* of the model: "p5en" */
    const uf_model_params *params; /* instead of a profile's; NULL: none */
    uint64_t seed;
    uint64_t bytes;    /* of a put, at least 64 */
    uint32_t puts;     /* in all */
    uint32_t inflight; /* puts posted and not completed at the sender */
    uint32_t peers;
    uint32_t batch;  /* puts to a peer before one drain, or one strong signal */
    uint64_t rtt_ns; /* least latency and mean jitter, there and back, in the profile's proportion; 0: the profile's own */
    ordering_costs costs;
} ordering_options;

typedef struct ordering_result {
    double rate;     /* bytes a second that complete at the sender, in the middle three quarters of all puts */
    double *latency; /* nanoseconds from the start of a put until its signal was seen, sorted; NULL if it has no signals */
    uint64_t n_latency;
    uint64_t puts;
    uint64_t early;             /* signals seen before their bytes, or before others that they promise */
    uint64_t wrs, data_wrs;     /* posted by all PEs; of these, with bytes */
    uint64_t cqes, remote_cqes; /* taken by all PEs; of these, arrivals at the peers */
    uint64_t drains;            /* times the sender waited until nothing was in flight */
    uint64_t receiver_work;     /* completions handled, work requests posted and signals held back by the peers */
    uint64_t model_events;
    double bandwidth; /* of the sender's NIC, bytes a second */
    double rtt_ns;    /* as above, for the closed formula */
} ordering_result;

typedef struct ordering_run ordering_run;
typedef struct ordering_scheme ordering_scheme;

/* A scheme's functions get the run, and a PE where it matters: 0 is the sender. All return UF_OK or an error of the library's kind. */
struct ordering_scheme {
    const char *name, *text;
    bool no_signals; /* nothing is told: what the others are compared with */
    bool in_order;   /* a signal promises all earlier puts of its peer as well */
    bool fence;      /* of the model: can_fence */
    bool counters;   /* of the model: each peer has a second queue, whose arrivals a completion counter counts */
    bool one_by_one; /* of drain: each put has a drain of its own, whatever options.batch says */
    bool ordered;    /* of the library: a UF_ORDERED context, */
    bool every;      /* and each put has its own strong signal */
    size_t state_bytes;
    int (*open)(ordering_run *r);
    void (*close)(ordering_run *r);
    /* Starts put `n` and whatever its signal needs. UF_EAGAIN: not now; it is asked again after the sender's next completion. */
    int (*put)(ordering_run *r, uint64_t n);
    /* Takes some completions of a PE and does what they allow. */
    int (*turn)(ordering_run *r, uint32_t pe);
    /* Whether a turn would find something, beside completions; NULL: no. */
    bool (*ready)(const ordering_run *r, uint32_t pe);
    /* Called by raw.c's turn: an own completion; an immediate or message at any PE; after both, at the sender. NULL: not wanted. */
    int (*sent)(ordering_run *r, uint32_t cookie);
    int (*arrived)(ordering_run *r, uint32_t pe, const uf_cqe *cqe);
    int (*step)(ordering_run *r, uint32_t pe);
};

/* What a scheme may look at and count while it runs. */
struct ordering_run {
    const ordering_options *o;
    const ordering_scheme *scheme;
    ordering_result *result;
    void *state; /* state_bytes, zeroed */
    uf_efa_model_place *place;
    uf_model *model;
    uint64_t now;
    uint32_t n_pes, n_ports; /* ports beyond n_pes: second queues of the peers */
    ordering_port *ports;
    uint64_t *remote_writes; /* by port, if the scheme wants counters */
    struct ordering_raw *raw;
    struct ordering_library *library;
    unsigned char
        *arena; /* a chunk of `chunk` bytes for each PE: the sender's holds the source, a peer's one place for each put */
    size_t chunk;
    uint64_t salt;   /* of this run's payload: what an earlier run left is not taken for it */
    uint64_t issued; /* puts */
    uint64_t seen;
    uint64_t *issued_at, *done_at; /* by put; of completions at the sender, in their order */
    unsigned char *is_seen;
    double *latency; /* by put */
    bool refused;
};

/* The schemes, NULL-terminated. */
extern const ordering_scheme *const ordering_schemes[];
const ordering_scheme *ordering_scheme_find(const char *name);

/* Runs one scheme once. Anything wrong (a wrong argument, a trap of the model, a stall, which means a lost signal) is an error with its sentence;
 * early signals are counted, and are no error. The result's latency is the caller's to free. */
int ordering_measure(const ordering_scheme *scheme, const ordering_options *options, ordering_result *result);
/* Whether the point is within what one process can hold; a sentence for people if not. */
bool ordering_fits(const ordering_options *options, char *why, size_t bytes);
/* Puts enough for steady figures, and not more bytes than pay for them. */
uint32_t ordering_puts(uint64_t bytes, uint32_t inflight, uint32_t wanted);
/* What draining at each signal gives by arithmetic: bytes / (bytes / bandwidth + round trip), a second. */
double ordering_drain_formula(const ordering_result *result, uint64_t bytes);

/* ---- for schemes ---- */

static inline uint32_t ordering_peer_of(const ordering_run *r, uint64_t n)
{
    return 1 + (uint32_t)(n % r->o->peers);
}

/* Its place at the peer, and the number of its predecessors there. */
static inline uint32_t ordering_slot_of(const ordering_run *r, uint64_t n)
{
    return (uint32_t)(n / r->o->peers);
}

static inline uint64_t ordering_put_of(const ordering_run *r, uint32_t peer, uint32_t slot)
{
    return (uint64_t)slot * r->o->peers + peer - 1;
}

/* Puts of a peer among those issued. */
static inline uint32_t ordering_issued_to(const ordering_run *r, uint32_t peer)
{
    return (uint32_t)((r->issued + r->o->peers - peer) / r->o->peers);
}

/* Puts of a peer in all. */
static inline uint32_t ordering_puts_to(const ordering_run *r, uint32_t peer)
{
    return (uint32_t)((r->o->puts + r->o->peers - peer) / r->o->peers);
}

static inline unsigned char *ordering_place_of(const ordering_run *r, uint64_t n)
{
    return r->arena + ordering_peer_of(r, n) * r->chunk + ordering_slot_of(r, n) * r->o->bytes;
}

/* The signal of put `n` is seen: its payload is checked and its latency noted. */
int ordering_saw(ordering_run *r, uint64_t n);
/* PE `pe` did something that takes a CPU as long as handling a completion does. */
void ordering_worked(ordering_run *r, uint32_t pe);

/* library.c */
int ordering_library_open(ordering_run *r);
void ordering_library_close(ordering_run *r);
int ordering_library_turn(ordering_run *r, uint32_t pe);

#endif
