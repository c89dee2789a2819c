/* instance.c - what EC2 instance types are sold with, and where that differs from what was found.
 *
 * The table is a second witness and no more: a driver may be old (every EFA driver before rates were reported says 100 Gb/s), a host may be
 * started with fewer NICs than it could have, a container may hide some, and the table may be wrong. So it fills in what nobody else tells,
 * and each contradiction is a note with both numbers and a remedy. Rows up to trn2 follow published descriptions that several
 * sources agree on; the g6 and g6e rows are from the vendor's list of instance types alone, whose figure is the instance's limit and may
 * be less than its NIC's. */
#include "topo/private.h"
#include <inttypes.h>
#include <string.h>
#include <strings.h>

static const uf_topo_instance instances[] = {
    /* type            GPUs NICs Gb/s generation */
    {"p4d.24xlarge", 8, 4, 100, 1},
    {"p4de.24xlarge", 8, 4, 100, 1},
    {"p5.4xlarge", 1, 1, 100, 2},
    {"p5.48xlarge", 8, 32, 100, 2},
    {"p5e.48xlarge", 8, 32, 100, 2},
    {"p5en.48xlarge", 8, 16, 200, 3},
    {"p6-b200.48xlarge", 8, 8, 400, 4},
    {"p6-b300.48xlarge", 8, 16, 400, 4},
    {"p6e-gb200.36xlarge", 4, 4, 400, 4},
    {"trn1.32xlarge", 0, 8, 100, UF_TOPO_UNKNOWN},
    {"trn1n.32xlarge", 0, 16, 100, 2},
    {"trn2.48xlarge", 0, 16, 200, 3},
    {"g6.8xlarge", 1, 1, 25, UF_TOPO_UNKNOWN},
    {"g6.12xlarge", 4, 1, 40, UF_TOPO_UNKNOWN},
    {"g6.16xlarge", 1, 1, 25, UF_TOPO_UNKNOWN},
    {"g6.24xlarge", 4, 1, 50, UF_TOPO_UNKNOWN},
    {"g6.48xlarge", 8, 1, 100, UF_TOPO_UNKNOWN},
    {"g6e.8xlarge", 1, 1, 25, UF_TOPO_UNKNOWN},
    {"g6e.12xlarge", 4, 1, 100, UF_TOPO_UNKNOWN},
    {"g6e.16xlarge", 1, 1, 35, UF_TOPO_UNKNOWN},
    {"g6e.24xlarge", 4, 2, 100, UF_TOPO_UNKNOWN},
    {"g6e.48xlarge", 8, 4, 100, UF_TOPO_UNKNOWN},
};

const uf_topo_instance *uf_topo_instance_find(const char *product)
{
    for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
        if (strcasecmp(instances[i].type, product) == 0)
            return &instances[i];
    return NULL;
}

static void check_nics(uf_topo *topo, const uf_topo_instance *type)
{
    const uf_topo_nic *slow = NULL, *other = NULL;
    uint32_t n = 0, n_slow = 0, n_other = 0;
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        const uf_topo_nic *nic = &topo->nics[i];
        if (nic->kind != UF_TOPO_EFA || nic->virtual_function)
            continue;
        n++;
        if (nic->rate.from == UF_TOPO_FROM_SYSTEM && nic->rate.mbps != (uint64_t)type->nic_gbps * 1000) {
            slow = slow ? slow : nic;
            n_slow++;
        }
        if (type->generation != UF_TOPO_UNKNOWN && nic->generation != UF_TOPO_UNKNOWN && nic->generation != type->generation) {
            other = other ? other : nic;
            n_other++;
        }
    }
    if (n != type->n_nics)
        uf_topo_note(topo,
                     "%s has %" PRIu32 " EFA NICs, %" PRIu32
                     " are visible here: attach the others when the instance is started, or give "
                     "them to this container",
                     type->type, type->n_nics, n);
    if (slow)
        uf_topo_note(topo,
                     "%" PRIu32 " of %" PRIu32 " EFA NICs: the driver says %.6g Gb/s (%s), %s has %" PRIu32
                     " Gb/s NICs%s; set UNFENCE_NIC_RATE to what is right",
                     n_slow, n, (double)slow->rate.mbps / 1000, slow->name, type->type, type->nic_gbps,
                     slow->rate.mbps == 100000 ? ", and an old driver says 100 for every NIC: update it" : "");
    if (other)
        uf_topo_note(topo,
                     "%" PRIu32 " of %" PRIu32 " EFA NICs are of generation %" PRIu32 " (%s, device 0x%04" PRIx32
                     "), %s should have %" PRIu32 ": is the product name of this host right?",
                     n_other, n, other->generation, other->name, other->place.device, type->type, type->generation);
}

void uf_topo_check_instance(uf_topo *topo)
{
    const uf_topo_instance *type = topo->instance;
    if (!type)
        return;
    check_nics(topo, type);
    if (topo->n_gpus != type->n_gpus)
        uf_topo_note(topo, "%s has %" PRIu32 " GPUs, %" PRIu32 " are visible here: rates per GPU count the visible ones alone",
                     type->type, type->n_gpus, topo->n_gpus);
}
