/* doctor_limits.c - what `unfence doctor` judges of the host itself: limits, memory, CPU quota, what the kernel allows. */
#include "doctor_checks.h"
#include "options.h"
#include "topo/sysfs.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHM_BYTES_PER_PE = 16 << 20 }; /* what libfabric's shm keeps in /dev/shm */

static doctor_state unknown(char *found, size_t bytes, const char *why)
{
    snprintf(found, bytes, "%s", why);
    return DOCTOR_UNKNOWN;
}

static doctor_state compare_bytes(uint64_t have, uint64_t need, char *found, size_t bytes)
{
    char a[24], b[24];
    if (have == UINT64_MAX)
        snprintf(found, bytes, "unlimited");
    else
        snprintf(found, bytes, "%s, needed %s", tool_format_bytes(have, a), tool_format_bytes(need, b));
    return have >= need ? DOCTOR_OK : DOCTOR_MISSING;
}

doctor_state doctor_check_memlock(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    (void)row;
    return facts->host.limits_known ? compare_bytes(facts->host.memlock, facts->heap, found, bytes)
                                    : unknown(found, bytes, "/proc/self/limits does not tell");
}

doctor_state doctor_check_open_files(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    uint64_t needed = 64 + 8 * facts->n_pes;
    (void)row;
    if (!facts->host.limits_known)
        return unknown(found, bytes, "/proc/self/limits does not tell");
    if (facts->host.open_files == UINT64_MAX)
        snprintf(found, bytes, "unlimited");
    else
        snprintf(found, bytes, "%" PRIu64 ", needed %" PRIu64, facts->host.open_files, needed);
    return facts->host.open_files >= needed ? DOCTOR_OK : DOCTOR_MISSING;
}

doctor_state doctor_check_shm(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    (void)row;
    return facts->host.shm_available == HOST_UNKNOWN
               ? unknown(found, bytes, "the free space of /dev/shm is unknown")
               : compare_bytes(facts->host.shm_available, facts->n_pes * SHM_BYTES_PER_PE, found, bytes);
}

doctor_state doctor_check_memory(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    (void)row;
    return facts->host.memory_available == HOST_UNKNOWN
               ? unknown(found, bytes, "/proc/meminfo does not tell")
               : compare_bytes(facts->host.memory_available, facts->n_pes * facts->heap, found, bytes);
}

/* A quota alone is no harm; standing still for the rest of a period is (case G1). */
doctor_state doctor_check_throttling(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    const host_facts *host = &facts->host;
    (void)row;
    if (host->throttled != HOST_UNKNOWN && host->throttled > 0) {
        snprintf(found, bytes, "the cgroup stood still in %" PRIu64 " of %" PRIu64 " periods", host->throttled, host->periods);
        return DOCTOR_MISSING;
    }
    if (!host->quota_known && host->throttled == HOST_UNKNOWN)
        return unknown(found, bytes, "the cgroup tells no quota");
    if (host->cpu_quota > 0)
        snprintf(found, bytes, "a quota of %.2f cores, %s", host->cpu_quota,
                 host->throttled == 0 ? "not used up yet" : "whether it was used up is unknown");
    else
        snprintf(found, bytes, "no quota");
    return DOCTOR_OK;
}

doctor_state doctor_check_attach(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    int scope = facts->host.ptrace_scope;
    (void)row;
    if (facts->attach > 0) {
        snprintf(found, bytes, "the system refuses it: %s", strerror(facts->attach));
        return DOCTOR_MISSING;
    }
    if (scope > 0) {
        snprintf(found, bytes, "ptrace_scope is %d: %s", scope, scope == 1 ? "only to children" : "only with privileges");
        return DOCTOR_MISSING;
    }
    if (facts->attach < 0)
        return unknown(found, bytes, "only the host itself can tell");
    snprintf(found, bytes, "works, %s", scope < 0 ? "no yama" : "ptrace_scope 0");
    return DOCTOR_OK;
}

doctor_state doctor_check_userfault(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    (void)row;
    if (facts->userfault < 0)
        return unknown(found, bytes, "only the host itself can tell");
    if (facts->userfault > 0)
        snprintf(found, bytes, "the system refuses it: %s", strerror(facts->userfault));
    else
        snprintf(found, bytes, "works");
    return facts->userfault ? DOCTOR_MISSING : DOCTOR_OK;
}

doctor_state doctor_check_huge_pages(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes)
{
    static const char *const enough[] = {"[always]", "[within_size]", "[advise]", "[force]"};
    char text[128];
    (void)row;
    if (!uf_topo_text(facts->root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text))
        return unknown(found, bytes, "no /sys/kernel/mm/transparent_hugepage/shmem_enabled");
    snprintf(found, bytes, "%s", text);
    for (size_t i = 0; i < sizeof enough / sizeof *enough; i++)
        if (strstr(text, enough[i]))
            return DOCTOR_OK;
    return DOCTOR_MISSING;
}
