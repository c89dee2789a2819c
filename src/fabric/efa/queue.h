/* queue.h - the rings of an EFA device, for CPU threads and CUDA threads alike: posting, receiving, completions.
 *
 * A queue is memory made elsewhere (the device's or the model's) and a small struct of counters in memory of ours. Positions
 * are 32-bit counts of entries since creation; they wrap. Hot paths: no lock, no allocation, no system call, no division.
 *
 * Posting by many threads: uf_efa_sq_reserve claims slots, uf_efa_sq_write fills them, uf_efa_sq_publish rings in order of
 * position, or leaves the ringing to a later one. Threads between reserve and publish wait for nothing but each other's
 * stores: room in the ring is found before a slot is taken, so nobody ever waits with an un-rung turn in hand. A thread that
 * is descheduled there delays those behind it: that is the price of one doorbell that only moves forward.
 * In a kernel one lane speaks for its warp: it reserves and publishes, all lanes write theirs and flush their own stores before.
 * The counters belong to threads of one processor, GPU or host: they alone are ordered by them.
 * A queue with one owner uses the _owned calls, which have no atomic read-modify-write at all. Do not mix the two. */
#ifndef UF_FABRIC_EFA_QUEUE_H
#define UF_FABRIC_EFA_QUEUE_H

#include "fabric/efa/wire.h"

/* ---- Send queue ---- */

typedef struct uf_efa_sq {
    uint64_t *ring;
    uint32_t *doorbell;
    const uf_efa_mmio *mmio; /* NULL: plain stores. Host only */
    uint32_t shift;          /* log2 of the depth */
    uint32_t words;          /* of an entry: 8 or 16 */
    uint32_t limit;          /* entries between posted and completed: the depth, or one less where the device says so */
    uint32_t max_batch;      /* entries between two doorbells, 1 or more */
    uint64_t padding[3];     /* what each poster writes, on lines of their own */
    uint32_t reserved;       /* next free position */
    uint32_t rung;           /* written by the holder of the turn: the last doorbell */
    uint64_t turn;           /* position whose poster may ring; UF_EFA_TURN_HELD while somebody does */
    uint64_t padding2[6];
    uint32_t completed; /* entries whose completion was seen, in any order: counts slots, not buffers */
} uf_efa_sq;

#define UF_EFA_TURN_HELD ((uint64_t)1 << 32)

/* An empty queue over a fresh ring of 2^shift entries. max_batch 0: the device sets none. */
UF_SHARED_FN void uf_efa_sq_init(uf_efa_sq *q, uint64_t *ring, uint32_t *doorbell, uint32_t shift, uint32_t words, uint32_t limit,
                                 uint32_t max_batch, const uf_efa_mmio *mmio)
{
    q->ring = ring;
    q->doorbell = doorbell;
    q->mmio = mmio;
    q->shift = shift;
    q->words = words;
    q->limit = limit;
    q->max_batch = max_batch == 0 || max_batch > limit ? limit : max_batch;
    q->reserved = 0;
    q->rung = 0;
    q->turn = 0;
    q->completed = 0;
}

/* `n` more entries are done: their slots are free. Any thread. */
UF_SHARED_FN void uf_efa_sq_complete(uf_efa_sq *q, uint32_t n)
{
    uf_add_release_here32(&q->completed, n); /* pairs with the acquire in _room: the slot was fetched before it is rewritten */
}

/* Entries that fit now. */
UF_SHARED_FN uint32_t uf_efa_sq_room(const uf_efa_sq *q)
{
    /* `completed` first: read later, it might count entries beyond an older `reserved`. */
    uint32_t completed = uf_load_acquire_here32(&q->completed); /* pairs with the release in uf_efa_sq_complete */
    uint32_t used = uf_load_relaxed32(&q->reserved) - completed;
    return used < q->limit ? q->limit - used : 0;
}

/* Claims `n` slots in a row (at most max_batch): 1, and the first position; or 0 and nothing has changed, the ring is full. A
 * compare and exchange, where an add would be cheaper under contention: an add cannot be taken back once others have reserved
 * behind it, and waiting for room with slots in hand is how posters deadlock. */
UF_SHARED_FN int uf_efa_sq_reserve(uf_efa_sq *q, uint32_t n, uint32_t *position)
{
    if (n == 0 || n > q->max_batch)
        return 0;
    for (;;) {
        uint32_t completed = uf_load_acquire_here32(&q->completed); /* pairs with the release in uf_efa_sq_complete */
        uint32_t base = uf_load_relaxed32(&q->reserved);
        if (base - completed + n > q->limit)
            return 0;
        if (uf_compare_exchange_here32(&q->reserved, &base, base + n)) { /* the acquire above is all that a slot needs */
            *position = base;
            return 1;
        }
    }
}

UF_SHARED_FN void uf_efa_sq_store64(const uf_efa_sq *q, uint64_t *address, uint64_t value)
{
#if !defined(__CUDA_ARCH__)
    if (q->mmio) {
        q->mmio->store64(q->mmio->arg, address, value);
        return;
    }
#endif
    (void)q;
    uf_mmio_store64(address, value);
}

/* Fills the slot of a reserved position, in ascending 8-byte stores, with the phase of its lap: 0 on the first. */
UF_SHARED_FN void uf_efa_sq_write(const uf_efa_sq *q, uint32_t position, const uf_efa_wqe *e)
{
    uint32_t mask = ((uint32_t)1 << q->shift) - 1;
    uint64_t *slot = q->ring + (uint64_t)(position & mask) * q->words;
    uint64_t phase = position >> q->shift & 1;
    uf_efa_sq_store64(q, slot, e->w[0] | phase << UF_EFA_W0_PHASE_SHIFT);
    for (uint32_t i = 1; i < e->words; i++)
        uf_efa_sq_store64(q, slot + i, e->w[i]);
    for (uint32_t i = e->words; i < q->words; i++) /* a narrow entry in a wide ring */
        uf_efa_sq_store64(q, slot + i, 0);
}

/* This thread's entries before any doorbell: its own, or one that another thread rings after taking the turn from it. */
UF_SHARED_FN void uf_efa_sq_flush_stores(const uf_efa_sq *q)
{
#if !defined(__CUDA_ARCH__)
    if (q->mmio) {
        q->mmio->flush(q->mmio->arg);
        return;
    }
#endif
    (void)q;
    uf_mmio_flush();
}

/* Holder of the turn only, who then gives the turn on by a release. The register counts entries; the device uses its low 16 bits [I]. */
UF_SHARED_FN void uf_efa_sq_ring(uf_efa_sq *q, uint32_t position)
{
    uf_store_relaxed32(&q->rung, position);
#if defined(__CUDA_ARCH__)
    /* It comes before the doorbell of whoever has the turn next, since that one's is caused by ours: two stores to one place, ordered by the
     * turn's release. A fence at system scope here would hold the turn for a trip to the device and back. */
    uf_mmio_store32(q->doorbell, position);
#else
    if (q->mmio) {
        q->mmio->store32(q->mmio->arg, q->doorbell, position);
        return;
    }
    uf_mmio_store32(q->doorbell, position);
    uf_mmio_flush(); /* the same: on a CPU a release does not order stores to a device [C] */
#endif
}

/* Hands in `n` written entries from `position` on, in order of position. `more`: the doorbell may wait for a later publish
 * or uf_efa_sq_flush. What waits never exceeds max_batch: the part before is rung early. */
UF_SHARED_FN void uf_efa_sq_publish(uf_efa_sq *q, uint32_t position, uint32_t n, int more)
{
    uf_efa_sq_flush_stores(q);
    /* Looked at before it is taken: an exchange by everybody who waits would slow down the one who has it. */
    for (uint32_t spin = 0;; spin++) {
        uint64_t mine = position;
        if (uf_load_relaxed64(&q->turn) == mine && uf_compare_exchange_here64(&q->turn, &mine, position | UF_EFA_TURN_HELD))
            break;
        uf_shared_pause(spin);
    }
    /* The turn was acquired: pairs with the release below of the poster before us, whose entries our doorbell may cover. */
    if (position - uf_load_relaxed32(&q->rung) + n > q->max_batch)
        uf_efa_sq_ring(q, position);
    if (!more)
        uf_efa_sq_ring(q, position + n);
    uf_store_release_here64(&q->turn, (uint32_t)(position + n)); /* pairs with the exchange above in the poster after us */
}

/* Rings for everything published so far. Waits for a doorbell store of another thread at most. */
UF_SHARED_FN void uf_efa_sq_flush(uf_efa_sq *q)
{
    uint64_t turn = uf_load_acquire64(&q->turn);
    uint32_t target = (uint32_t)turn; /* positions below it were published before this call */
    for (uint32_t spin = 0; (int32_t)(uf_load_relaxed32(&q->rung) - target) < 0; spin++) {
        turn &= ~UF_EFA_TURN_HELD;
        if (uf_compare_exchange_here64(&q->turn, &turn, turn | UF_EFA_TURN_HELD)) {
            if (uf_load_relaxed32(&q->rung) != (uint32_t)turn)
                uf_efa_sq_ring(q, (uint32_t)turn);
            uf_store_release_here64(&q->turn, turn); /* pairs with the exchange in publish */
            return;
        }
        uf_shared_pause(spin);
    }
}

/* Posts up to `n` entries in batches of at most max_batch: the number posted. Fewer than n, 0 included: the ring was full,
 * nothing happened to the rest, and what earlier calls left un-rung was rung. Any number of threads. */
UF_SHARED_FN uint32_t uf_efa_sq_post(uf_efa_sq *q, const uf_efa_wqe *entries, uint32_t n, int more)
{
    uint32_t done = 0;
    while (done < n) {
        uint32_t part = n - done < q->max_batch ? n - done : q->max_batch, position;
        uint32_t room = uf_efa_sq_room(q);
        part = part < room ? part : room;
        if (part == 0 || !uf_efa_sq_reserve(q, part, &position)) {
            if (part > 1) /* somebody took some of the room meanwhile: they made progress, so may we */
                continue;
            uf_efa_sq_flush(q); /* a ring full of un-rung entries would never drain */
            return done;
        }
        for (uint32_t i = 0; i < part; i++)
            uf_efa_sq_write(q, position + i, &entries[done + i]);
        done += part;
        uf_efa_sq_publish(q, position, part, more);
    }
    return done;
}

/* The same for the queue's only poster. */
UF_SHARED_FN void uf_efa_sq_flush_owned(uf_efa_sq *q)
{
    if (q->rung != q->reserved) {
        uf_efa_sq_flush_stores(q);
        uf_efa_sq_ring(q, q->reserved);
    }
}

UF_SHARED_FN uint32_t uf_efa_sq_post_owned(uf_efa_sq *q, const uf_efa_wqe *entries, uint32_t n, int more)
{
    uint32_t room = uf_efa_sq_room(q), done = n < room ? n : room;
    for (uint32_t i = 0; i < done; i++) {
        if (q->reserved - q->rung == q->max_batch)
            uf_efa_sq_flush_owned(q);
        uf_efa_sq_write(q, q->reserved, &entries[i]);
        q->reserved++;
    }
    if (!more || done < n)
        uf_efa_sq_flush_owned(q);
    return done;
}

/* ---- Receive queue: one owner ---- */

typedef struct uf_efa_rq {
    uint64_t *ring; /* 2 words a descriptor, in host memory */
    uint32_t *doorbell;
    uint32_t shift;
    uint32_t posted;    /* descriptors */
    uint32_t completed; /* descriptors whose completion was seen */
} uf_efa_rq;

UF_SHARED_FN void uf_efa_rq_init(uf_efa_rq *q, uint64_t *ring, uint32_t *doorbell, uint32_t shift)
{
    q->ring = ring;
    q->doorbell = doorbell;
    q->shift = shift;
    q->posted = 0;
    q->completed = 0;
}

/* Posts a receive of one piece named `id`: 1; 0 if the queue is full or a field does not fit. Ring afterwards. */
UF_SHARED_FN int uf_efa_rq_post(uf_efa_rq *q, uint16_t id, const uf_efa_sge *sge)
{
    uint64_t w[2];
    if (q->posted - q->completed == (uint32_t)1 << q->shift || !uf_efa_encode_rx(w, id, sge, 1, 1))
        return 0;
    uint64_t *slot = q->ring + 2 * (uint64_t)(q->posted & (((uint32_t)1 << q->shift) - 1));
    uf_store_relaxed64(slot, w[0]);
    uf_store_relaxed64(slot + 1, w[1]);
    q->posted++;
    return 1;
}

UF_SHARED_FN void uf_efa_rq_ring(uf_efa_rq *q)
{
    uf_mmio_flush(); /* descriptors before the doorbell: pairs with the device's read of the register before its fetch */
    uf_mmio_store32(q->doorbell, q->posted & 0xffff);
}

/* ---- Completion queue ---- */

typedef struct uf_efa_cq {
    const uint64_t *ring; /* zeroed before the device got it */
    uint32_t shift;
    uint32_t words;    /* of an entry: 4, or 2 */
    uint32_t consumed; /* next position; the owner's. A model reads it to find overruns: hardware has no such protection */
} uf_efa_cq;

UF_SHARED_FN void uf_efa_cq_init(uf_efa_cq *q, const uint64_t *ring, uint32_t shift, uint32_t words)
{
    q->ring = ring;
    q->shift = shift;
    q->words = words;
    q->consumed = 0;
}

/* Looks at one position, at or after `consumed` and less than the depth beyond it: 1 and the entry if the device has
 * written it. Many lanes may look at many positions at once (consumed + lane); arrivals fill positions in order, so those
 * that have come are a prefix. */
UF_SHARED_FN int uf_efa_cq_peek(const uf_efa_cq *q, uint32_t position, uf_efa_cqe *c)
{
    const uint64_t *slot = q->ring + (uint64_t)(position & (((uint32_t)1 << q->shift) - 1)) * q->words;
    uint64_t w[UF_EFA_CQE_WORDS], fresh = (position >> q->shift & 1) ^ 1;
    w[0] = uf_load_acquire64(slot); /* the phase is in it: pairs with the device's last store of the entry */
    if ((w[0] >> UF_EFA_CQE_PHASE_SHIFT & 1) != fresh)
        return 0;
    for (uint32_t i = 1; i < q->words; i++)
        w[i] = uf_load_relaxed64(slot + i);
    uf_efa_decode_cqe(c, w, q->words == UF_EFA_CQE_WORDS);
    return 1;
}

/* The owner, or the lane that speaks for all, gives `n` positions back after their entries were read. */
UF_SHARED_FN void uf_efa_cq_advance(uf_efa_cq *q, uint32_t n)
{
    uf_store_release32(&q->consumed, q->consumed + n);
}

/* One owner: takes up to `max` entries, oldest first. */
UF_SHARED_FN uint32_t uf_efa_cq_poll(uf_efa_cq *q, uf_efa_cqe *entries, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && uf_efa_cq_peek(q, q->consumed + n, &entries[n]))
        n++;
    if (n)
        uf_efa_cq_advance(q, n);
    return n;
}

/* ---- Request ids: whose completion is it? ---- */

/* Queue numbers are used again, and completions of the queue that had the number before may still lie in the CQ. So an id is
 * a slot of the owner's table in its low bits and the queue's generation above: up to bit 15, or 63 where ids are wide. */
typedef struct uf_efa_ids {
    uint32_t bits;       /* of a slot, at most 16 */
    uint64_t generation; /* already shifted and masked */
    uint64_t mask;       /* of the generation */
} uf_efa_ids;

UF_SHARED_FN void uf_efa_ids_init(uf_efa_ids *ids, uint32_t slot_bits, uint64_t generation, int wide)
{
    uint64_t low = ((uint64_t)1 << slot_bits) - 1;
    ids->bits = slot_bits;
    ids->mask = (wide ? ~(uint64_t)0 : 0xffff) & ~low;
    ids->generation = generation << slot_bits & ids->mask;
}

UF_SHARED_FN uint64_t uf_efa_id(const uf_efa_ids *ids, uint32_t slot)
{
    return ids->generation | slot;
}

/* 1 and the slot, or 0: a stale completion, to be dropped (its slot of the ring belonged to the dead queue, too). */
UF_SHARED_FN int uf_efa_id_slot(const uf_efa_ids *ids, uint64_t id, uint32_t *slot)
{
    if ((id & ids->mask) != ids->generation)
        return 0;
    *slot = (uint32_t)(id & (((uint64_t)1 << ids->bits) - 1));
    return 1;
}

#endif
