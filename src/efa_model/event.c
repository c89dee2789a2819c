/* event.c - virtual time: a heap of four children a node over preallocated events, and the one stream of random numbers.
 *
 * Events of one time happen in the order they were made. After warm-up nothing allocates: both arrays only grow. */
#include "efa_model/internal.h"
#include <stdlib.h>

static bool earlier(const heap_entry *a, const heap_entry *b)
{
    return a->at != b->at ? a->at < b->at : (int32_t)(a->sequence - b->sequence) < 0;
}

static bool grow(uf_model *m)
{
    uint32_t room = m->event_room ? m->event_room * 2 : 4096;
    model_event *events = realloc(m->events, (size_t)room * sizeof(*events));
    if (!events)
        return false;
    m->events = events;
    heap_entry *heap = realloc(m->heap, (size_t)room * sizeof(*heap));
    if (!heap)
        return false;
    m->heap = heap;
    m->event_room = room;
    return true;
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
    heap_entry entry = {.at = at < m->now ? m->now : at, .sequence = m->sequence++, .slot = slot};
    uint32_t i = m->n_heap++;
    while (i > 0 && earlier(&entry, &m->heap[(i - 1) / 4])) {
        m->heap[i] = m->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    m->heap[i] = entry;
    return true;
}

static void sink(uf_model *m, heap_entry entry)
{
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 4 * i + 1, last = child + 4 < m->n_heap ? child + 4 : m->n_heap, best = child;
        if (child >= m->n_heap)
            break;
        for (uint32_t c = child + 1; c < last; c++)
            best = earlier(&m->heap[c], &m->heap[best]) ? c : best;
        if (!earlier(&m->heap[best], &entry))
            break;
        m->heap[i] = m->heap[best];
        i = best;
    }
    m->heap[i] = entry;
}

bool uf_model_event_take(uf_model *m, uint64_t until, model_event *event)
{
    if (m->n_heap == 0 || m->heap[0].at > until)
        return false;
    uint32_t slot = m->heap[0].slot;
    m->now = m->heap[0].at;
    *event = m->events[slot];
    m->events[slot].message = m->free_event;
    m->free_event = slot;
    if (--m->n_heap)
        sink(m, m->heap[m->n_heap]);
    m->stats.events++;
    return true;
}

/* splitmix64: one addition of state, so a seed of any value is good. */
uint64_t uf_model_random(uf_model *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint64_t uf_model_random_below(uf_model *m, uint64_t n)
{
    return n ? (uint64_t)((unsigned __int128)uf_model_random(m) * n >> 64) : 0;
}

bool uf_model_chance(uf_model *m, uint32_t ppm)
{
    return ppm && (uf_model_random(m) >> 32) * 1000000 >> 32 < ppm;
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

uint64_t uf_model_jitter(uf_model *m)
{
    return m->p.jitter_ns ? m->exponential[uf_model_random(m) >> 54] : 0;
}
