/* bootstrap.c - checks arguments, picks the implementation, hands on. No state of its own.
 *
 * A world of one PE needs nobody: it runs on a private group of one, so that no port is opened for it. */
#include "base/clock.h"
#include "bootstrap/transport.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t uf_bootstrap_random(void)
{
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) == sizeof value)
        return value;
    /* Early at boot there may be no entropy yet; the clock and the process are then different enough. */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec << 30 ^ (uint64_t)t.tv_nsec) * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid() << 40;
}

const char *uf_bootstrap_list_pes(const bool *set, int n, char *text, size_t bytes)
{
    size_t used = 0;
    int total = 0, named = 0;
    for (int i = 0; i < n; i++)
        total += set[i];
    used += (size_t)snprintf(text, bytes, total == 1 ? "PE" : "PEs");
    for (int i = 0; i < n; i++) {
        if (!set[i])
            continue;
        int first = i;
        while (i + 1 < n && set[i + 1])
            i++;
        /* Room for the longest range and for " and N more". */
        if (used + 56 > bytes) {
            snprintf(text + used, bytes - used, " and %d more", total - named);
            break;
        }
        const char *comma = named ? ", " : " ";
        if (first == i)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", comma, first);
        else
            used += (size_t)snprintf(text + used, bytes - used, "%s%d%s%d", comma, first, i == first + 1 ? ", " : "-", i);
        named += i - first + 1;
    }
    return text;
}

int uf_bootstrap_create(const uf_bootstrap_params *params, uf_bootstrap **bootstrap)
{
    if (params->n_pes < 1 || params->pe < 0 || params->pe >= params->n_pes)
        return uf_fail(UF_EINVAL, "PE %d of %d does not exist: PEs go from 0 to n_pes - 1", params->pe, params->n_pes);
    if (params->group)
        return uf_bootstrap_group_create(params, bootstrap);
    if (params->n_pes > 1) {
        if (!params->root || !params->root[0])
            return uf_fail(UF_EINVAL,
                           "PE %d of %d does not know where PE 0 is: start the PEs with `unfence run`, "
                           "torchrun or srun, "
                           "or give host:port as the root option or UNFENCE_ROOT",
                           params->pe, params->n_pes);
        return uf_bootstrap_tcp_create(params, bootstrap);
    }
    uf_bootstrap_params alone = *params;
    int rc = uf_group_create(1, &alone.group);
    if (rc)
        return rc;
    rc = uf_bootstrap_group_create(&alone, bootstrap);
    uf_group_destroy(alone.group); /* its sessions keep it as long as they need it */
    return rc;
}

void uf_bootstrap_destroy(uf_bootstrap *bootstrap)
{
    if (bootstrap)
        bootstrap->ops->destroy(bootstrap);
}

int uf_bootstrap_allgather(uf_bootstrap *b, const void *mine, size_t bytes, void *all, uint64_t timeout_ns)
{
    if (bytes > UF_BOOTSTRAP_PART_MAX || bytes * (size_t)b->n_pes > UF_BOOTSTRAP_ALL_MAX)
        return uf_fail(UF_EINVAL,
                       "%zu bytes from each of %d PEs are too many for the bootstrap exchange: at most %u "
                       "from one, %u in all",
                       bytes, b->n_pes, UF_BOOTSTRAP_PART_MAX, UF_BOOTSTRAP_ALL_MAX);
    uint64_t timeout = timeout_ns ? timeout_ns : b->timeout_ns;
    return b->ops->allgather(b, mine, bytes, all, uf_deadline(uf_bootstrap_now(b), timeout));
}

int uf_bootstrap_barrier(uf_bootstrap *b, uint64_t timeout_ns)
{
    return uf_bootstrap_allgather(b, NULL, 0, NULL, timeout_ns);
}

void uf_bootstrap_abort(uf_bootstrap *b, int code, const char *why)
{
    b->ops->abort(b, code < 0 ? code : UF_EABORTED, why && why[0] ? why : "no reason was given");
}

void uf_bootstrap_leave(uf_bootstrap *b)
{
    b->ops->leave(b);
}

int uf_bootstrap_poll(uf_bootstrap *b, int *pe)
{
    return b->ops->poll(b, pe);
}

int uf_bootstrap_fd(uf_bootstrap *b)
{
    return b->ops->fd(b);
}

uint64_t uf_bootstrap_id(const uf_bootstrap *b)
{
    return b->id;
}
