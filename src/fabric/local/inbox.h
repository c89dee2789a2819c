/* inbox.h - copies into and out of a same-host peer's private memory where cross-memory attach is forbidden: the owner makes them.
 *
 * An inbox is a set of slots of 64 KiB in memory that all PEs of the host have mapped (a piece of the owner's heap). An initiator claims a free
 * slot, fills it (for a write), and publishes it; the owner's engine step checks the address, copies, and marks the slot done; the
 * initiator takes the answer and frees it. No order between slots is kept or needed. Nobody waits for anybody: the initiator's transfer
 * is a step function, and a slot is held back only by its own initiator. A slot's word names its initiator from the claim on, so
 * the slots of one that died, at whatever instruction, are found and freed (uf_local_inbox_reap). */
#ifndef UF_FABRIC_LOCAL_INBOX_H
#define UF_FABRIC_LOCAL_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uf_local_inbox uf_local_inbox;

enum {
    UF_LOCAL_INBOX_CHUNK = 65536,
    UF_LOCAL_INBOX_MAX_SLOTS = 64,
};

/* Bytes of shared memory, 64-byte aligned, for `slots` of them (1..64). */
size_t uf_local_inbox_bytes(uint32_t slots);
/* Owner, before any peer uses it. Returns the memory as an inbox. */
uf_local_inbox *uf_local_inbox_init(void *memory, uint32_t slots);

/* What is asked of the owner. */
typedef enum uf_local_ask {
    UF_LOCAL_ASK_READ = 0,
    UF_LOCAL_ASK_WRITE = 1,
    UF_LOCAL_ASK_ATOMIC = 2,
} uf_local_ask;

/* An atomic on a word of the owner's: `old` comes back. Operations and widths are the caller's own numbers, 4 or 8 bytes. */
typedef struct uf_local_atomic {
    uint64_t operand, compare, old;
    uint8_t op, width;
} uf_local_atomic;

/* ---------------------------------------------------------------- owner */

typedef struct uf_local_inbox_owner {
    void *arg;
    /* May `pe` do this to [address, address + bytes) of this process? UF_OK or the code to answer. Called for every chunk. */
    int (*check)(void *arg, uint32_t pe, uint64_t address, size_t bytes, uf_local_ask ask);
    /* Applies an atomic to an aligned word that `check` has let pass; writes `old`. NULL: atomics are refused. */
    void (*apply)(void *arg, uint64_t address, uf_local_atomic *atomic);
} uf_local_inbox_owner;
/* Serves what is published, at most `max` slots: their number. Any number of threads of the owner. One load if there is nothing. */
int uf_local_inbox_serve(uf_local_inbox *inbox, const uf_local_inbox_owner *owner, int max);
/* Frees slots of initiators that are no more: the number freed. `alive` is asked once per slot in use. Owner; now and then. */
int uf_local_inbox_reap(uf_local_inbox *inbox, bool (*alive)(void *arg, uint32_t pe), void *arg);

/* ---------------------------------------------------------------- initiator */

/* One write into or read from a peer's memory of any size, or an atomic: plain data, one thread at a time. */
typedef struct uf_local_transfer {
    uf_local_inbox *inbox;
    uint32_t pe; /* ours */
    uf_local_ask ask;
    int status;
    uint64_t remote;
    unsigned char *local;
    size_t bytes, started, finished;
    uint64_t held; /* slots that are ours, a bit each */
} uf_local_transfer;

/* `local` is only read by a write; for an atomic it is a uf_local_atomic with its size. pe below 2^24. */
void uf_local_transfer_start(uf_local_transfer *transfer, uf_local_inbox *inbox, uint32_t pe, uf_local_ask ask, uint64_t remote,
                             void *local, size_t bytes);
/* UF_OK: done, the bytes are in place. UF_EAGAIN: call again, and make progress for our own inbox meanwhile, or two PEs may wait for each
 * other. Else the owner's refusal: UF_ERANGE and so on, with a sentence; part may have been copied. Never blocks. */
int uf_local_transfer_step(uf_local_transfer *transfer);
/* Gives up: frees the slots, or leaves them to the owner where it is at work on them. `local` is not touched after it. */
void uf_local_transfer_abandon(uf_local_transfer *transfer);

#endif
