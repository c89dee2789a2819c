/* tally.c - the slow half of tally.h: who becomes the owner, and everybody else. */
#include "base/tally.h"

_Thread_local char uf_thread_mark;

void uf_tally_add_shared(uf_tally *t, uf_counted what, uint64_t n)
{
    const void *nobody = NULL;
    if (atomic_compare_exchange_strong(&t->owner, &nobody, &uf_thread_mark))
        atomic_fetch_add_explicit(&t->own[what], n, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&t->shared[what], n, memory_order_relaxed);
}
