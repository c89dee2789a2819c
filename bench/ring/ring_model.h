/* ring_model.h - a rotation of blocks on the EFA model in virtual time: which share of the wire it reaches, ours and by draining.
 *
 * Every PE has some blocks of its own, which go round its group of PEs; each PE sends on what it receives as soon as it is there and the neighbour has
 * a slot, as an exchange does whose computing is hidden. What differs between policies is how a block is told of (ways.c):
 *   ring   uf_ring: a put with a weak signal
 *   drain  put; everything in flight of the NIC completes; then the signal. What a proxy does that knows no other order than a quiet NIC
 * Model results: ratios and counts carry over to hardware, microseconds do not. No CPU time is charged to either. */
#ifndef RING_MODEL_H
#define RING_MODEL_H

#include "engine/driver.h"
#include "fabric/efa/device_model.h"
#include "unfence/ring.h"
#include <stdbool.h>

typedef struct ring_model_options {
    const char *profile; /* of the model: "p5en" */
    uint64_t seed, bytes;
    uint32_t pes, group; /* pes: a multiple of group; a group's hops are group - 1 */
    uint32_t chains;     /* rings side by side, such as one for some of the heads: a block that is late holds up its own alone */
    uint32_t blocks;     /* of each PE, in each chain */
    uint32_t slots;      /* of each chain */
    bool drain;
    bool no_tails; /* the model without packets that are late by far */
} ring_model_options;

typedef struct ring_model_result {
    double share,
        least; /* the time that a PE's bytes take on the wire by themselves, over the time it took: median and least of the PEs */
    uint64_t blocks, data_wrs, signal_wrs, control_wrs; /* of all PEs */
} ring_model_result;

/* The least slots with which no ring can fill up: for the blocks that a PE may hold, the one that comes, and the one that makes it go on. */
uint32_t ring_model_slots(const ring_model_options *options);
/* Anything wrong, a wrong byte included, is an error with its sentence. */
int ring_model_run(const ring_model_options *options, ring_model_result *result);

/* ---- between ring_model.c and ways.c: one PE's means to move blocks. All but open and close return UF_EAGAIN where they would wait. */
typedef struct ring_model_pe {
    const ring_model_options *o;
    uf_world *world;
    uf_team *team;
    int me, to, from; /* to, from: of the world */
    uf_ring *ring;
    /* drain: slots and words of its own. */
    uf_ctx *ctx, *credits;
    unsigned char *slots;
    uint64_t *words; /* [slots] arrivals, then one of credits */
    uint64_t sent, received, released;
    bool draining;  /* a block is under way whose signal is not */
    bool *nic_busy; /* of all chains of a PE */
} ring_model_pe;

typedef struct ring_model_way {
    const char *name;
    int (*open)(ring_model_pe *p);
    void (*close)(ring_model_pe *p);
    int (*start)(ring_model_pe *p, const void *block);
    int (*finish)(ring_model_pe *p, const void **block);
    int (*release)(ring_model_pe *p);
    int (*turn)(ring_model_pe *p); /* what else is to be done */
} ring_model_way;

extern const ring_model_way ring_model_ring, ring_model_drain;

#endif
