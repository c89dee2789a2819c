/* tally.h - counters of operations that cost next to nothing on the path of a put and are exact all the same.
 *
 * A locked addition waits until every earlier store of the core has reached its cache line, which would put the journey of a put's
 * payload into the time of the call. So the first thread that counts becomes the owner and adds with plain loads and stores of
 * its own row; other threads add with atomic instructions to a second row. Readers sum both. */
#ifndef UF_BASE_TALLY_H
#define UF_BASE_TALLY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef enum uf_counted {
    UF_PUTS,
    UF_GETS,
    UF_SIGNALS,
    UF_ATOMICS,
    UF_BYTES_LOCAL,
    UF_BYTES_NETWORK,
    UF_FENCES,
    UF_QUIETS,
    UF_COUNTED,
} uf_counted;

typedef struct uf_tally {
    _Atomic(const void *) owner; /* the mark of the thread whose row is `own` */
    _Atomic uint64_t own[UF_COUNTED];
    _Atomic uint64_t shared[UF_COUNTED];
} uf_tally;

/* Its address names the thread: while a thread lives no other has the same, and an heir of the address is the only writer again. */
extern _Thread_local char uf_thread_mark __attribute__((tls_model("initial-exec"), visibility("hidden")));

void uf_tally_add_shared(uf_tally *t, uf_counted what, uint64_t n);

static inline void uf_tally_add(uf_tally *t, uf_counted what, uint64_t n)
{
    if (__builtin_expect(atomic_load_explicit(&t->owner, memory_order_relaxed) != &uf_thread_mark, 0)) {
        uf_tally_add_shared(t, what, n);
        return;
    }
    uint64_t now = atomic_load_explicit(&t->own[what], memory_order_relaxed);
    atomic_store_explicit(&t->own[what], now + n, memory_order_relaxed);
}

static inline uint64_t uf_tally_sum(const uf_tally *t, uf_counted what)
{
    return atomic_load_explicit(&t->own[what], memory_order_relaxed) +
           atomic_load_explicit(&t->shared[what], memory_order_relaxed);
}

#endif
