/* event.c - virtual time: a heap of four children a node over preallocated events, and the one stream of random numbers.
 *
 * Events of one time happen in the order they were made. After warm-up nothing allocates: both arrays only grow. */
#include "efa_model/internal.h"
#include <stdlib.h>

enum { SLOT_BITS = 24 }; /* of an event's place in the pool; its sequence lies above */

/* By time, then by the order of making: one comparison of 128 bits, without a branch to guess. */
static bool earlier(const heap_entry *a, const heap_entry *b)
{
    return ((unsigned __int128)a->at << 64 | a->order) < ((unsigned __int128)b->at << 64 | b->order);
}

static bool grow(uf_model *m)
{
    uint32_t room = m->event_room ? m->event_room * 2 : 4096;
    if (room > 1u << SLOT_BITS)
        return false;
    model_event *events = uf_model_resize(m, m->events, (size_t)room * sizeof(*events));
    if (!events)
        return false;
    m->events = events;
    heap_entry *heap = uf_model_resize(m, m->heap, (size_t)room * sizeof(*heap));
    if (!heap)
        return false;
    m->heap = heap;
    m->event_room = room;
    return true;
}

static void rise(uf_model *m, uint32_t i, heap_entry entry)
{
    while (i > 0 && earlier(&entry, &m->heap[(i - 1) / 4])) {
        m->heap[i] = m->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    m->heap[i] = entry;
}

bool uf_model_event_add(uf_model *m, uint64_t at, const model_event *event)
{
    uint32_t slot = m->free_event;
    if (slot != UF_MODEL_NONE) {
        m->free_event = m->events[slot].message;
    } else {
        if (m->n_events == m->event_room && !grow(m)) {
            m->stats.out_of_memory++;
            return false;
        }
        slot = m->n_events++;
    }
    m->events[slot] = *event;
    heap_entry entry = {.at = at < m->now ? m->now : at, .order = m->sequence++ << SLOT_BITS | slot};
    rise(m, m->n_heap++, entry);
    return true;
}

/* The hole at the top goes down to a leaf, and `entry`, which was a leaf and mostly is one again, rises from there. */
static void sink(uf_model *m, heap_entry entry)
{
    const heap_entry *h = m->heap;
    uint32_t i = 0, n = m->n_heap;
    for (uint32_t child = 1; child < n; child = 4 * i + 1) {
        uint32_t best = child;
        if (child + 4 <= n) {
            uint32_t left = earlier(&h[child + 1], &h[child]) ? child + 1 : child;
            uint32_t right = earlier(&h[child + 3], &h[child + 2]) ? child + 3 : child + 2;
            best = earlier(&h[right], &h[left]) ? right : left;
        } else {
            for (uint32_t c = child + 1; c < n; c++)
                best = earlier(&h[c], &h[best]) ? c : best;
        }
        m->heap[i] = h[best];
        i = best;
    }
    rise(m, i, entry);
}

bool uf_model_event_take(uf_model *m, uint64_t until, model_event *event)
{
    if (m->n_heap == 0 || m->heap[0].at > until)
        return false;
    uint32_t slot = m->heap[0].order & ((1u << SLOT_BITS) - 1);
    m->now = m->heap[0].at;
    *event = m->events[slot];
    m->events[slot].message = m->free_event;
    m->free_event = slot;
    if (--m->n_heap)
        sink(m, m->heap[m->n_heap]);
    m->stats.events++;
    return true;
}

/* -ln(x) for 0 < x <= 1, by arithmetic that is the same on every machine. */
static double minus_log(double x)
{
    double sum = 0, power, square, y;
    for (; x < 0.70710678; x *= 2)
        sum += 0.69314718055994531;
    y = (1 - x) / (1 + x);
    square = y * y;
    power = y;
    for (int i = 1; i < 16; i += 2, power *= square)
        sum += 2 * power / i;
    return sum;
}

void uf_model_exponential_fill(uf_model *m)
{
    for (int i = 0; i < 1024; i++)
        m->exponential[i] = (uint64_t)(minus_log((i + 0.5) / 1024) * (double)m->p.jitter_ns);
}
