/* near.c - keeps the progress thread on the cores near its NIC, where that can only help.
 *
 * A thread that polls a NIC from the other socket pays for each completion with a trip across. But a pinned thread also cannot get out of the
 * way, so it is left alone unless all is known and there is room: the NIC's cores are known, the process may use some of them, every PE of
 * this host has two cores of what it may use (the rule of thread.c for spinning), and the near ones are enough for a thread of each
 * PE. It is a set of cores, never one: where on them the thread runs stays the system's business. */
#include "engine/private.h"
#include "topo/topo.h"
#include <pthread.h>
#include <sched.h>

bool uf_engine_near_cores(const uf_topo_cpus *nic, const cpu_set_t *allowed, uint32_t local_pes, cpu_set_t *near)
{
    CPU_ZERO(near);
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && uf_topo_cpus_has(nic, cpu))
            CPU_SET(cpu, near);
    uint32_t n = (uint32_t)CPU_COUNT(near), all = (uint32_t)CPU_COUNT(allowed), pes = local_pes ? local_pes : 1;
    return n >= pes && n < all && all >= 2 * pes;
}

bool uf_engine_stay_near(const char *root, const char *device, uint32_t local_pes)
{
    uf_topo_nic nic;
    cpu_set_t allowed, near;
    /* More cores than a cpu_set_t has room for: the mask cannot be read, and all stays as it is. */
    if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0)
        return false;
    if ((uint32_t)CPU_COUNT(&allowed) < 2 * local_pes) /* crowded: known without looking at the NIC */
        return false;
    if (!uf_topo_read_nic(root, device, 0, &nic) || !uf_engine_near_cores(&nic.place.cpus, &allowed, local_pes, &near))
        return false;
    return pthread_setaffinity_np(pthread_self(), sizeof near, &near) == 0;
}
