/* host.c - see host.h. Every file may be missing (containers hide many); what is not found stays unknown. */
#include "host.h"
#include "unfence/unfence.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Copies the value of the first line "key : value" of a /proc file. */
static bool read_field(const char *path, const char *key, char *value, size_t bytes)
{
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) != 0 || !strchr(" \t:", line[length]))
            continue;
        char *at = line + length + strspn(line + length, " \t:");
        at[strcspn(at, "\n")] = '\0';
        snprintf(value, bytes, "%.*s", (int)bytes - 1, at);
        found = true;
    }
    fclose(file);
    return found;
}

static uint64_t read_number_field(const char *path, const char *key, uint64_t scale)
{
    char value[64];
    return read_field(path, key, value, sizeof value) ? strtoull(value, NULL, 10) * scale : HOST_UNKNOWN;
}

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

static void read_processor(host_facts *facts)
{
    struct utsname name;
    cpu_set_t allowed;
    if (uname(&name) == 0) {
        snprintf(facts->kernel, sizeof facts->kernel, "%.*s", (int)sizeof facts->kernel - 1, name.release);
        snprintf(facts->architecture, sizeof facts->architecture, "%.*s", (int)sizeof facts->architecture - 1, name.machine);
    }
    if (!read_field("/proc/cpuinfo", "model name", facts->cpu, sizeof facts->cpu))
        snprintf(facts->cpu, sizeof facts->cpu, "unknown");
    facts->cores_online = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&allowed);
    facts->cores_allowed =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : facts->cores_online;
}

static void read_memory(host_facts *facts)
{
    struct statvfs shm;
    struct rlimit limit;
    facts->memory_bytes = read_number_field("/proc/meminfo", "MemTotal", 1024);
    facts->memory_available = read_number_field("/proc/meminfo", "MemAvailable", 1024);
    facts->shm_bytes = facts->shm_available = HOST_UNKNOWN;
    if (statvfs("/dev/shm", &shm) == 0) {
        facts->shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
        facts->shm_available = (uint64_t)shm.f_bavail * shm.f_frsize;
    }
    facts->memlock = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? (uint64_t)limit.rlim_cur : HOST_UNKNOWN;
    facts->open_files = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (uint64_t)limit.rlim_cur : HOST_UNKNOWN;
}

/* Finds the directory of our cgroup for `controller` ("" for version 2) under its usual mount point. */
static bool cgroup_directory(const char *controller, char *path, size_t bytes)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = '\0';
        names++;
        if (*controller == '\0' ? *names != '\0' : strcmp(names, controller) != 0 && !strstr(names, "cpu,cpuacct"))
            continue;
        int length = snprintf(path, bytes, "/sys/fs/cgroup%s%s%s", *names ? "/" : "", names, strcmp(where, "/") ? where : "");
        found = length > 0 && (size_t)length < bytes;
    }
    fclose(file);
    return found;
}

/* A quota makes a spinning or a progress thread stop for whole periods, which looks like a slow network (case G1). */
static void read_quota(host_facts *facts)
{
    char directory[600], path[700], line[128];
    facts->periods = facts->throttled = HOST_UNKNOWN;
    if (cgroup_directory("", directory, sizeof directory)) {
        double quota, period;
        snprintf(path, sizeof path, "%s/cpu.max", directory);
        if (read_line(path, line, sizeof line) && sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0)
            facts->cpu_quota = quota / period;
        snprintf(path, sizeof path, "%s/cpu.stat", directory);
        facts->periods = read_number_field(path, "nr_periods", 1);
        facts->throttled = read_number_field(path, "nr_throttled", 1);
    }
    if (facts->periods != HOST_UNKNOWN || !cgroup_directory("cpu", directory, sizeof directory))
        return;
    char period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    bool quota_known = read_line(path, line, sizeof line) && atof(line) > 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (quota_known && read_line(path, period, sizeof period) && atof(period) > 0)
        facts->cpu_quota = atof(line) / atof(period);
    snprintf(path, sizeof path, "%s/cpu.stat", directory);
    facts->periods = read_number_field(path, "nr_periods", 1);
    facts->throttled = read_number_field(path, "nr_throttled", 1);
}

void host_read(host_facts *facts)
{
    char line[64];
    memset(facts, 0, sizeof *facts);
    read_processor(facts);
    read_memory(facts);
    read_quota(facts);
    facts->ptrace_scope = read_line("/proc/sys/kernel/yama/ptrace_scope", line, sizeof line) ? atoi(line) : -1;
    if (getloadavg(&facts->load, 1) != 1)
        facts->load = 0;
}

const char *host_cma_sentence(const host_facts *facts)
{
    switch (facts->ptrace_scope) {
    case -1:
        return "cross-memory attach between processes of one user is allowed (no yama)";
    case 0:
        return "cross-memory attach between processes of one user is allowed (ptrace_scope 0)";
    case 1:
        return "cross-memory attach only to children (ptrace_scope 1); PEs of one job then copy through the owner";
    default:
        return "cross-memory attach needs privileges (ptrace_scope above 1); PEs of one job then copy through the owner";
    }
}

json_object *host_json(void)
{
    host_facts facts;
    host_read(&facts);
    json_object *object = json_object_new_object();
    json_object_object_add(object, "unfence", json_object_new_string(uf_version()));
    json_object_object_add(object, "architecture", json_object_new_string(facts.architecture));
    json_object_object_add(object, "cpu", json_object_new_string(facts.cpu));
    json_object_object_add(object, "cores", json_object_new_int64(facts.cores_allowed));
    if (facts.memory_bytes != HOST_UNKNOWN)
        json_object_object_add(object, "memory_bytes", json_object_new_int64((int64_t)facts.memory_bytes));
    json_object_object_add(object, "kernel", json_object_new_string(facts.kernel));
    json_object_object_add(object, "load", json_object_new_double(facts.load));
    return object;
}
