/* host.h - facts about this machine that decide how fast, or whether, Unfence runs here. Reads /proc and /sys; changes nothing. */
#ifndef UNFENCE_TOOL_HOST_H
#define UNFENCE_TOOL_HOST_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#define HOST_UNKNOWN UINT64_MAX /* "not known" is a value of its own, never 0 */

typedef struct host_facts {
    char cpu[96], kernel[72], architecture[24];
    uint32_t cores_online, cores_allowed;
    uint64_t memory_bytes, memory_available;
    uint64_t shm_bytes, shm_available; /* /dev/shm */
    uint64_t memlock, open_files;      /* soft limits; UINT64_MAX: unlimited, or unknown: */
    bool limits_known;
    int ptrace_scope; /* yama's, -1: there is no yama here */
    double cpu_quota; /* cores that the cgroup allows, 0: no quota, or unknown: */
    bool quota_known;
    uint64_t periods, throttled; /* of the cgroup's quota since its start; HOST_UNKNOWN */
    double load;                 /* processes running, averaged over a minute */
} host_facts;

/* Below `root`, "" being this host; of another host's folder only what files tell. */
void host_read(const char *root, host_facts *facts);
/* "cross-memory attach is allowed ..." or why it is not: a sentence for people. */
const char *host_cma_sentence(const host_facts *facts);
/* The "host" object of the shared JSON: what a reader needs to judge the numbers. */
json_object *host_json(void);

#endif
