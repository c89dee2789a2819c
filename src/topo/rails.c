/* rails.c - which NICs serve which GPU, and what each GPU can count on.
 *
 * The nearest NICs of a GPU are those at the least PCIe distance, of the best kind that is usable. GPUs with the same nearest NICs share them:
 * with at least as many NICs as GPUs each gets a part of its own, in order of PCI addresses; with fewer, several use the same one.
 * What a GPU can count on is its share of every NIC near it, whichever its rails are, and never more than its own link carries. Unknown
 * makes the sum unknown: half a bandwidth taken for the whole is worse than none. */
#include "base/error.h"
#include "topo/private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool uf_topo_nic_usable(const uf_topo_nic *nic)
{
    return !nic->virtual_function && nic->port != UF_TOPO_PORT_DOWN && (nic->kind == UF_TOPO_PLAIN || nic->verbs);
}

bool uf_topo_best_kind(const uf_topo *topo, uf_topo_nic_kind *kind)
{
    bool any = false;
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        if (!uf_topo_nic_usable(&topo->nics[i]) || (any && topo->nics[i].kind >= *kind))
            continue;
        *kind = topo->nics[i].kind;
        any = true;
    }
    return any;
}

uf_topo_rate uf_topo_host_rate(const uf_topo *topo, uint32_t *n_nics)
{
    uf_topo_rate sum = {UF_TOPO_FROM_NOTHING, 0};
    uf_topo_nic_kind kind = UF_TOPO_PLAIN;
    uint32_t n = 0, unknown = 0;
    bool any = uf_topo_best_kind(topo, &kind);
    for (uint32_t i = 0; any && i < topo->n_nics; i++) {
        const uf_topo_nic *nic = &topo->nics[i];
        if (nic->kind != kind || !uf_topo_nic_usable(nic))
            continue;
        n++;
        unknown += !uf_topo_rate_known(nic->rate);
        sum.mbps += nic->rate.mbps;
        sum.from = nic->rate.from > sum.from ? nic->rate.from : sum.from;
    }
    *n_nics = n;
    return unknown ? (uf_topo_rate){UF_TOPO_FROM_NOTHING, 0} : sum;
}

/* near[g * n_nics + i]: NIC i is one of the nearest of GPU g. */
static void find_nearest(uf_topo *topo, uf_topo_nic_kind kind, unsigned char *near)
{
    for (uint32_t g = 0; g < topo->n_gpus; g++) {
        uf_topo_gpu *gpu = &topo->gpus[g];
        uf_topo_distance least = UF_TOPO_DISTANCE_UNKNOWN;
        uint32_t deepest = 0;
        for (int pass = 0; pass < 2; pass++) { /* first how near the nearest are, then which */
            for (uint32_t i = 0; i < topo->n_nics; i++) {
                const uf_topo_nic *nic = &topo->nics[i];
                if (nic->kind != kind || !uf_topo_nic_usable(nic))
                    continue;
                uf_topo_distance distance = uf_topo_distance_between(topo, &gpu->place, &nic->place);
                uint32_t bridges = distance == UF_TOPO_SAME_SWITCH ? uf_topo_bridges_above(&gpu->place, &nic->place) : 0;
                if (pass == 1) {
                    bool is = distance == least && bridges == deepest;
                    near[(size_t)g * topo->n_nics + i] = is;
                    gpu->nearest_nics += is;
                } else if (distance < least || (distance == least && bridges > deepest)) {
                    least = distance;
                    deepest = bridges;
                }
            }
        }
        if (least == UF_TOPO_DISTANCE_UNKNOWN && gpu->nearest_nics > 1)
            uf_topo_note(topo, "nothing says which NICs are near GPU %s: all are taken to be; its rails may cross the host",
                         gpu->place.bus);
    }
}

static uf_topo_rate share(const uf_topo *topo, const unsigned char *near, const uint32_t *sharers, uint32_t g)
{
    uf_topo_rate sum = {UF_TOPO_FROM_NOTHING, 0};
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        const uf_topo_rate *rate = &topo->nics[i].rate;
        if (!near[(size_t)g * topo->n_nics + i])
            continue;
        if (!uf_topo_rate_known(*rate))
            return (uf_topo_rate){UF_TOPO_FROM_NOTHING, 0};
        sum.mbps += rate->mbps / sharers[i];
        sum.from = rate->from > sum.from ? rate->from : sum.from;
    }
    const uf_topo_rate *link = &topo->gpus[g].place.link;
    if (uf_topo_rate_known(sum) && uf_topo_rate_known(*link) && link->mbps < sum.mbps)
        sum.mbps = link->mbps;
    return sum;
}

/* The part of its nearest NICs that is this GPU's: the k-th of `sharing` GPUs takes the k-th part. */
static void cut_rails(uf_topo *topo, const unsigned char *near, uint32_t g)
{
    uf_topo_gpu *gpu = &topo->gpus[g];
    const unsigned char *mine = near + (size_t)g * topo->n_nics;
    uint32_t k = 0, n = gpu->nearest_nics, at = 0;
    gpu->first_rail = topo->n_rails;
    for (uint32_t other = 0; other < topo->n_gpus; other++) {
        bool same = memcmp(near + (size_t)other * topo->n_nics, mine, topo->n_nics) == 0;
        gpu->sharing += same;
        k += same && other < g;
    }
    if (!n)
        return;
    uint32_t first = (uint32_t)((uint64_t)k * n / gpu->sharing), end = (uint32_t)((uint64_t)(k + 1) * n / gpu->sharing);
    if (end == first)
        end = first + 1;
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        if (!mine[i])
            continue;
        if (at >= first && at < end)
            topo->rails[topo->n_rails++] = i;
        at++;
    }
    gpu->n_rails = topo->n_rails - gpu->first_rail;
}

int uf_topo_make_rails(uf_topo *topo)
{
    uf_topo_nic_kind kind = UF_TOPO_PLAIN;
    if (!topo->n_gpus || !uf_topo_best_kind(topo, &kind))
        return UF_OK;
    unsigned char *near = calloc(topo->n_gpus, topo->n_nics);
    uint32_t *sharers = calloc(topo->n_nics, sizeof *sharers);
    /* Parts of one shared set do not overlap, and a GPU whose part would be empty takes one: at most this many. */
    topo->rails = calloc((size_t)topo->n_gpus * topo->n_nics, sizeof *topo->rails);
    int rc =
        near && sharers && topo->rails
            ? UF_OK
            : uf_fail(UF_ENOMEM, "no memory for the rails of %" PRIu32 " GPUs and %" PRIu32 " NICs", topo->n_gpus, topo->n_nics);
    if (!rc) {
        find_nearest(topo, kind, near);
        for (uint32_t g = 0; g < topo->n_gpus; g++)
            for (uint32_t i = 0; i < topo->n_nics; i++)
                sharers[i] += near[(size_t)g * topo->n_nics + i];
        for (uint32_t g = 0; g < topo->n_gpus; g++) {
            cut_rails(topo, near, g);
            topo->gpus[g].rate = share(topo, near, sharers, g);
        }
    }
    free(near);
    free(sharers);
    return rc;
}
