/* inbox.c - slots in shared memory and the word that says whose turn each is.
 *
 *   FREE -claim-> FILLING -publish-> READY -owner-> SERVING -owner-> DONE -initiator-> FREE
 *   abandon: FILLING, READY, DONE -> FREE; SERVING -> ORPHAN -owner-> FREE        reap: the same for a dead initiator
 *
 * A word is {generation 32 | initiator 24 | state 8}: one compare-and-swap both moves the state and names the initiator, so there is no
 * moment at which a slot is taken by nobody. The generation grows with every claim, so a late compare never fits a later use. Everybody
 * who can write here is a PE of the world, yet what is read from shared memory is checked: an index or length out of range
 * must never become a wild copy in the owner. */
#include "fabric/local/inbox.h"
#include "base/error.h"
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

typedef enum slot_state {
    SLOT_FREE = 0,
    SLOT_FILLING = 1,
    SLOT_READY = 2,
    SLOT_SERVING = 3,
    SLOT_DONE = 4,
    SLOT_ORPHAN = 5, /* being served for nobody */
} slot_state;

typedef struct inbox_slot {
    _Alignas(64) _Atomic uint64_t word;
    uint64_t address;
    uint64_t offset; /* of the chunk in its transfer: the initiator's own note */
    uint32_t bytes;
    uint32_t ask; /* uf_local_ask */
    int32_t status;
    _Alignas(64) unsigned char data[UF_LOCAL_INBOX_CHUNK];
} inbox_slot;

struct uf_local_inbox {
    _Alignas(64) _Atomic uint64_t ready; /* a bit for each slot that may be READY: what the owner looks at */
    _Alignas(64) uint32_t n_slots;
    inbox_slot slots[];
};

_Static_assert(sizeof(inbox_slot) == 64 + UF_LOCAL_INBOX_CHUNK, "a slot is one line and its data");
_Static_assert(sizeof(struct uf_local_inbox) == 128, "the inbox begins with two lines");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "words shared by processes must be lock-free");

static slot_state state_of(uint64_t word)
{
    return (slot_state)(word & 0xff);
}

static uint32_t initiator_of(uint64_t word)
{
    return (uint32_t)(word >> 8) & 0xffffff;
}

static uint64_t with_state(uint64_t word, slot_state state)
{
    return (word & ~(uint64_t)0xff) | (uint64_t)state;
}

static uint32_t slots_of(const uf_local_inbox *inbox)
{
    return inbox->n_slots <= UF_LOCAL_INBOX_MAX_SLOTS ? inbox->n_slots : UF_LOCAL_INBOX_MAX_SLOTS;
}

/* Moves a slot on if it still is as `word` says. Release: what was written into the slot before is seen by whoever finds the new
 * state; acquire: what the other side wrote is seen by us. */
static bool move(inbox_slot *slot, uint64_t word, slot_state state)
{
    return atomic_compare_exchange_strong_explicit(&slot->word, &word, with_state(word, state), memory_order_acq_rel,
                                                   memory_order_acquire);
}

size_t uf_local_inbox_bytes(uint32_t slots)
{
    return sizeof(uf_local_inbox) + slots * sizeof(inbox_slot);
}

uf_local_inbox *uf_local_inbox_init(void *memory, uint32_t slots)
{
    uf_local_inbox *inbox = memory;
    assert(slots >= 1 && slots <= UF_LOCAL_INBOX_MAX_SLOTS && (uintptr_t)memory % 64 == 0);
    inbox->n_slots = slots;
    for (uint32_t i = 0; i < slots; i++)
        atomic_store_explicit(&inbox->slots[i].word, 0, memory_order_relaxed);
    atomic_store_explicit(&inbox->ready, 0, memory_order_release);
    return inbox;
}

/* ---------------------------------------------------------------- owner */

/* The part of a slot that says what is asked, read once: the initiator could change it behind the check. */
typedef struct question {
    uint64_t address;
    uint32_t bytes, ask;
} question;

static int32_t apply_atomic(inbox_slot *slot, uint32_t pe, const question *q, const uf_local_inbox_owner *owner)
{
    uf_local_atomic atomic;
    if (q->bytes != sizeof(atomic) || !owner->apply)
        return UF_EINTERNAL;
    memcpy(&atomic, slot->data, sizeof(atomic));
    if ((atomic.width != 4 && atomic.width != 8) || q->address % atomic.width)
        return UF_EINTERNAL;
    int rc = owner->check(owner->arg, pe, q->address, atomic.width, UF_LOCAL_ASK_ATOMIC);
    if (rc != UF_OK)
        return rc;
    owner->apply(owner->arg, q->address, &atomic);
    memcpy(slot->data, &atomic, sizeof(atomic));
    return UF_OK;
}

static int32_t answer(inbox_slot *slot, uint32_t pe, const uf_local_inbox_owner *owner)
{
    question q = {.address = *(volatile uint64_t *)&slot->address,
                  .bytes = *(volatile uint32_t *)&slot->bytes,
                  .ask = *(volatile uint32_t *)&slot->ask};
    if (q.bytes > UF_LOCAL_INBOX_CHUNK || q.ask > UF_LOCAL_ASK_ATOMIC)
        return UF_EINTERNAL;
    if (q.ask == UF_LOCAL_ASK_ATOMIC)
        return apply_atomic(slot, pe, &q, owner);
    int rc = owner->check(owner->arg, pe, q.address, q.bytes, (uf_local_ask)q.ask);
    if (rc != UF_OK)
        return rc;
    if (q.ask == UF_LOCAL_ASK_WRITE)
        memcpy((void *)(uintptr_t)q.address, slot->data, q.bytes);
    else
        memcpy(slot->data, (const void *)(uintptr_t)q.address, q.bytes);
    return UF_OK;
}

/* True if there was something to serve. */
static bool serve_slot(inbox_slot *slot, const uf_local_inbox_owner *owner)
{
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (state_of(word) != SLOT_READY || !move(slot, word, SLOT_SERVING))
        return false;
    slot->status = answer(slot, initiator_of(word), owner);
    uint64_t serving = with_state(word, SLOT_SERVING);
    if (!move(slot, serving, SLOT_DONE)) {
        /* Abandoned meanwhile: nobody but us knows of it now. */
        bool freed = move(slot, with_state(word, SLOT_ORPHAN), SLOT_FREE);
        assert(freed);
        (void)freed;
    }
    return true;
}

int uf_local_inbox_serve(uf_local_inbox *inbox, const uf_local_inbox_owner *owner, int max)
{
    int served = 0;
    if (atomic_load_explicit(&inbox->ready, memory_order_relaxed) == 0)
        return 0;
    uint64_t ready = atomic_exchange_explicit(&inbox->ready, 0, memory_order_acquire), left = 0;
    uint32_t n_slots = slots_of(inbox);
    for (uint32_t i = 0; i < n_slots; i++) {
        if (!(ready >> i & 1))
            continue;
        if (served >= max)
            left |= (uint64_t)1 << i;
        else
            served += serve_slot(&inbox->slots[i], owner);
    }
    if (left)
        atomic_fetch_or_explicit(&inbox->ready, left, memory_order_release);
    return served;
}

/* Takes a slot away from its initiator. False if it moved on meanwhile: look again. */
static bool take_back(inbox_slot *slot, uint64_t word)
{
    switch (state_of(word)) {
    case SLOT_FILLING:
    case SLOT_READY:
    case SLOT_DONE:
        return move(slot, word, SLOT_FREE);
    case SLOT_SERVING: /* a thread of the owner is at it and will free it */
        return move(slot, word, SLOT_ORPHAN);
    default: /* nobody's already */
        return true;
    }
}

int uf_local_inbox_reap(uf_local_inbox *inbox, bool (*alive)(void *arg, uint32_t pe), void *arg)
{
    int freed = 0;
    uint32_t n_slots = slots_of(inbox);
    for (uint32_t i = 0; i < n_slots; i++) {
        inbox_slot *slot = &inbox->slots[i];
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
        if (state_of(word) != SLOT_FREE && state_of(word) != SLOT_ORPHAN && !alive(arg, initiator_of(word)))
            freed += take_back(slot, word);
    }
    return freed;
}

/* ---------------------------------------------------------------- initiator */

void uf_local_transfer_start(uf_local_transfer *t, uf_local_inbox *inbox, uint32_t pe, uf_local_ask ask, uint64_t remote,
                             void *local, size_t bytes)
{
    assert(pe < 1u << 24);
    *t = (uf_local_transfer){
        .inbox = inbox, .pe = pe, .ask = ask, .status = UF_OK, .remote = remote, .local = local, .bytes = bytes};
}

/* Claims a free slot: its number, or -1. Each PE starts its search elsewhere, so they seldom meet. */
static int claim(uf_local_transfer *t)
{
    uint32_t n = slots_of(t->inbox);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (t->pe + k) % n;
        inbox_slot *slot = &t->inbox->slots[i];
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
        if (state_of(word) != SLOT_FREE)
            continue;
        uint64_t mine = (((word >> 32) + 1) << 32) | (uint64_t)t->pe << 8 | SLOT_FILLING;
        if (atomic_compare_exchange_strong_explicit(&slot->word, &word, mine, memory_order_acquire, memory_order_relaxed))
            return (int)i;
    }
    return -1;
}

static void fill_and_publish(uf_local_transfer *t, int i)
{
    inbox_slot *slot = &t->inbox->slots[i];
    size_t left = t->bytes - t->started;
    slot->bytes = left < UF_LOCAL_INBOX_CHUNK ? (uint32_t)left : UF_LOCAL_INBOX_CHUNK;
    slot->address = t->remote + t->started;
    slot->offset = t->started;
    slot->ask = (uint32_t)t->ask;
    if (t->ask != UF_LOCAL_ASK_READ)
        memcpy(slot->data, t->local + t->started, slot->bytes);
    t->started += slot->bytes;
    t->held |= (uint64_t)1 << i;
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    move(slot, word, SLOT_READY);
    /* After the state: the owner that takes the bit finds the slot ready. */
    atomic_fetch_or_explicit(&t->inbox->ready, (uint64_t)1 << i, memory_order_release);
}

/* Takes the answer if it is there. */
static void take_answer(uf_local_transfer *t, int i)
{
    inbox_slot *slot = &t->inbox->slots[i];
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (state_of(word) != SLOT_DONE)
        return;
    uint64_t offset = slot->offset;
    uint32_t bytes = slot->bytes;
    int32_t status = slot->status;
    if (bytes > UF_LOCAL_INBOX_CHUNK || bytes > t->bytes || offset > t->bytes - bytes)
        status = UF_EINTERNAL;
    if (status != UF_OK && t->status == UF_OK)
        t->status = status;
    if (status == UF_OK && t->ask != UF_LOCAL_ASK_WRITE)
        memcpy(t->local + offset, slot->data, bytes);
    t->finished += bytes;
    t->held &= ~((uint64_t)1 << i);
    move(slot, word, SLOT_FREE);
}

static const char *ask_name(uf_local_ask ask)
{
    return ask == UF_LOCAL_ASK_READ ? "get" : ask == UF_LOCAL_ASK_WRITE ? "put" : "signal or atomic";
}

static int refused(const uf_local_transfer *t)
{
    if (t->status == UF_EINTERNAL)
        return uf_fail(UF_EINTERNAL,
                       "a slot of a same-host inbox was overwritten during a %s of %zu bytes: some PE writes outside of its "
                       "buffers",
                       ask_name(t->ask), t->bytes);
    return uf_fail(t->status, "the owner of %zu bytes at 0x%llx on this host refused a %s: not inside a window of its own",
                   t->bytes, (unsigned long long)t->remote, ask_name(t->ask));
}

int uf_local_transfer_step(uf_local_transfer *t)
{
    for (uint64_t held = t->held; held; held &= held - 1)
        take_answer(t, __builtin_ctzll(held));
    if (t->status != UF_OK) {
        if (t->held)
            return UF_EAGAIN;
        return refused(t);
    }
    while (t->started < t->bytes) {
        int i = claim(t);
        if (i < 0)
            break;
        fill_and_publish(t, i);
    }
    return t->finished == t->bytes ? UF_OK : UF_EAGAIN;
}

void uf_local_transfer_abandon(uf_local_transfer *t)
{
    for (uint64_t held = t->held; held; held &= held - 1) {
        inbox_slot *slot = &t->inbox->slots[__builtin_ctzll(held)];
        /* The owner may move it on under our hands twice at most: to SERVING, then to DONE. */
        for (int turn = 0; turn < 3; turn++)
            if (take_back(slot, atomic_load_explicit(&slot->word, memory_order_acquire)))
                break;
    }
    t->held = 0;
}
