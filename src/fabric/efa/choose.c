/* choose.c - the rails of a PE: the devices that hang where its GPU hangs, else where its cores are, else its part of all.
 *
 * A GPU's devices are its own (src/topo cuts sets that several GPUs share), so PEs with a GPU each never meet on one NIC while there are enough.
 * Devices near a set of cores are shared by the PEs of these cores: each begins with another one, as far as the local rank tells.
 * Rail i of every PE talks to rail i, whatever NIC that is: EFA has no wiring by number, so it only matters that all PEs have as
 * many, and the world takes the least number. Order is that of PCI addresses, which is the same on all hosts of a type. */
#include "fabric/efa/choose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the place in the host */

static const char *value_of(const char *const *environment, const char *name)
{
    size_t n = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
            return *environment + n + 1;
    return NULL;
}

/* A whole number below 2^20 at `text`, ended by a zero or a comma. */
static bool number_at(const char *text, uint32_t *value)
{
    char *end;
    unsigned long v = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 1u << 20;
    if (v >= 1u << 20 || (*end && *end != ','))
        return false;
    *value = (uint32_t)v;
    return true;
}

/* The rank's entry of CUDA_VISIBLE_DEVICES; without it the GPU with the rank's number. Names that are not numbers say nothing. */
static uint32_t gpu_of(const char *visible, uint32_t rank)
{
    uint32_t entries = 1, gpu;
    if (!visible)
        return rank;
    for (const char *c = visible; *c; c++)
        entries += *c == ',';
    for (uint32_t skip = rank % entries; skip; skip--)
        visible = strchr(visible, ',') + 1;
    return number_at(visible, &gpu) ? gpu : UF_TOPO_UNKNOWN;
}

void uf_efa_local_read(const char *const *environment, int pe, int n_pes, bool one_host, uf_efa_local *local)
{
    static const struct {
        const char *rank, *size;
    } launchers[] = {
        {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    };
    local->rank = local->size = 0;
    local->gpu = UF_TOPO_UNKNOWN;
    bool known = false;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers && !known; i++) {
        known = number_at(value_of(environment, launchers[i].rank), &local->rank);
        if (known && !number_at(value_of(environment, launchers[i].size), &local->size))
            local->size = 0;
    }
    if (!known && one_host) {
        known = true;
        local->rank = (uint32_t)pe;
        local->size = (uint32_t)n_pes;
    }
    if (known)
        local->gpu = gpu_of(value_of(environment, "CUDA_VISIBLE_DEVICES"), local->rank);
    if (local->rank >= local->size)
        local->size = 0;
}

/* ---------------------------------------------------------------- the choice */

static int place_of(const char *const *names, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return (int)i;
    return -1;
}

static const uf_topo_gpu *gpu_numbered(const uf_topo *topo, uint32_t number)
{
    for (uint32_t i = 0; i < topo->n_gpus; i++)
        if (!topo->gpus[i].hidden && number-- == 0)
            return &topo->gpus[i];
    return NULL;
}

static bool near_gpu(const uf_topo *topo, const char *const *names, uint32_t n, const uf_efa_local *local, uf_efa_choice *c)
{
    const uf_topo_gpu *gpu = local->gpu == UF_TOPO_UNKNOWN ? NULL : gpu_numbered(topo, local->gpu);
    for (uint32_t i = 0; gpu && i < gpu->n_rails && c->n < UF_EFA_NICS_MAX; i++) {
        int place = place_of(names, n, uf_topo_rail(topo, gpu, i)->name);
        if (place >= 0)
            c->nic[c->n++] = (uint32_t)place;
    }
    snprintf(c->why, sizeof c->why, "nearest to GPU %u", local->gpu);
    return c->n > 0;
}

static bool shares_a_core(const uf_topo_cpus *a, const uf_topo_cpus *b)
{
    for (uint32_t i = 0; i < UF_TOPO_CPUS / 64; i++)
        if (a->bits[i] & b->bits[i])
            return true;
    return false;
}

/* In the topology's order, which is that of PCI addresses; what it does not know comes last. */
static void sort(const uf_topo *topo, const char *const *names, uint32_t n, uint32_t *order)
{
    uint32_t at = 0, known;
    for (uint32_t i = 0; i < topo->n_nics; i++) {
        int place = place_of(names, n, topo->nics[i].name);
        if (place >= 0 && at < n)
            order[at++] = (uint32_t)place;
    }
    known = at;
    for (uint32_t i = 0; i < n; i++) {
        bool is = false;
        for (uint32_t k = 0; k < known; k++)
            is |= order[k] == i;
        if (!is && at < n)
            order[at++] = i;
    }
}

/* Only where it tells something: some devices are near the cores and some are not. */
static bool near_cores(const uf_topo *topo, const char *const *names, uint32_t n, const uf_efa_local *local, uf_efa_choice *c)
{
    uint32_t far = 0;
    for (uint32_t i = 0; i < topo->n_nics && local->cpus.count; i++) {
        const uf_topo_nic *nic = &topo->nics[i];
        int place = place_of(names, n, nic->name);
        if (place < 0)
            continue;
        if (nic->place.cpus.count && shares_a_core(&nic->place.cpus, &local->cpus) && c->n < UF_EFA_NICS_MAX)
            c->nic[c->n++] = (uint32_t)place;
        else
            far++;
    }
    snprintf(c->why, sizeof c->why, "near the cores that this PE may use");
    return c->n > 0 && far > 0;
}

static void part_of_all(const uf_topo *topo, const char *const *names, uint32_t n, const uf_efa_local *local, uf_efa_choice *c)
{
    uint32_t order[UF_EFA_NICS_MAX], first = 0, end = n;
    sort(topo, names, n, order);
    if (local->size) {
        first = (uint32_t)((uint64_t)local->rank * n / local->size);
        end = (uint32_t)((uint64_t)(local->rank + 1) * n / local->size);
        end = end > first ? end : first + 1;
        snprintf(c->why, sizeof c->why, "part %u of %u of all, as nothing tells which are near", local->rank + 1, local->size);
    } else {
        snprintf(c->why, sizeof c->why, "all, as neither a GPU, nor cores, nor a local rank tells which are near");
    }
    for (c->n = 0; first < end; first++)
        c->nic[c->n++] = order[first];
}

void uf_efa_choose(const uf_topo *topo, const char *const *names, uint32_t n, uint32_t n_rails, const uf_efa_local *local,
                   uf_efa_choice *choice)
{
    bool own = true;
    n = n < UF_EFA_NICS_MAX ? n : UF_EFA_NICS_MAX;
    *choice = (uf_efa_choice){0};
    if (!near_gpu(topo, names, n, local, choice)) {
        *choice = (uf_efa_choice){0};
        own = !near_cores(topo, names, n, local, choice);
        if (own)
            part_of_all(topo, names, n, local, choice);
    }
    if (n_rails == 0 || n_rails >= choice->n)
        return;
    const uf_efa_choice all = *choice;
    choice->n = n_rails;
    for (uint32_t i = 0; i < n_rails; i++)
        choice->nic[i] = all.nic[own ? i : (local->rank * n_rails + i) % all.n];
}
