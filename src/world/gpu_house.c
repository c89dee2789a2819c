/* gpu_house.c - what the PEs of one process that use GPUs share: the knowledge of who is still there.
 *
 * PEs of one process have one CUDA context per GPU in common, and calls that give memory back (cuMemFree, cuMemHostUnregister, unmapping)
 * wait until everything in that context is done, keeping others from appending to it meanwhile. In a failed world a PE that ends would so wait
 * for the stream of another that still waits for a word, and keep that one's progress thread from letting it go: for ever. So in a failed
 * world nobody gives anything back before all PEs of the process have come to the end: their streams are done by then. The wait has the
 * world's timeout; after it the memory is left to the end of the process. In a sound world all have come through a barrier already. */
#include "world/gpu.h"
#include <stdlib.h>

struct uf_gpu_house {
    _Atomic int members; /* who have not given it back */
    _Atomic int staying; /* who have not come to the end */
};

uf_gpu_house *uf_gpu_house_create(int members)
{
    uf_gpu_house *h = calloc(1, sizeof *h);
    if (h) {
        atomic_init(&h->members, members);
        atomic_init(&h->staying, members);
    }
    return h;
}

/* Once for each PE. */
static void come_to_the_end(struct uf_gpu *g)
{
    if (!g->ending)
        atomic_fetch_sub(&g->house->staying, 1);
    g->ending = true;
}

void uf_gpu_house_leave(struct uf_gpu *g)
{
    uf_gpu_house *h = g->house;
    if (!h)
        return;
    come_to_the_end(g);
    g->house = NULL;
    if (atomic_fetch_sub(&h->members, 1) == 1)
        free(h);
}

bool uf_gpu_house_gather(uf_world *w, struct uf_gpu *g)
{
    uint64_t deadline = uf_world_deadline(w, w->timeout_ns);
    uf_gpu_tick(w);
    come_to_the_end(g);
    for (uint32_t round = 0; atomic_load(&g->house->staying) > 0; round++) {
        if (w->driver->now(w->driver->arg) >= deadline)
            return false;
        w->driver->relax(w->driver->arg, round);
        if (round % 1024 == 1023)
            uf_gpu_tick(w);
    }
    return true;
}
