/* route.c - a rotation as numbers: whose block is where after a hop, and which hops somebody needs.
 *
 * Pure functions of the route, so sender and receiver of a hop come to the same answer without telling each other. */
#include "unfence/ring.h"

static int wrap(int pe, int n)
{
    pe %= n;
    return pe < 0 ? pe + n : pe;
}

static int step_of(const uf_ring_route *r)
{
    return r->direction == UF_RING_FORWARD ? 1 : -1;
}

int uf_ring_origin(const uf_ring_route *r, int pe, int hop)
{
    return wrap(pe - step_of(r) * (hop % r->n_pes), r->n_pes);
}

int uf_ring_sends(const uf_ring_route *r, int pe, int hop)
{
    if (hop < 0 || hop >= r->hops)
        return 0;
    int origin = uf_ring_origin(r, pe, hop);
    for (int next = hop + 1; next <= r->hops; next++)
        if (!r->needs || r->needs(r->arg, wrap(origin + step_of(r) * (next % r->n_pes), r->n_pes), origin))
            return 1;
    return 0;
}

int uf_ring_receives(const uf_ring_route *r, int pe, int hop)
{
    return hop > 0 && uf_ring_sends(r, wrap(pe - step_of(r), r->n_pes), hop - 1);
}
