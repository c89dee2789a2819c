/* host.c - see host.h. Every file may be missing (containers hide many); what is not found stays unknown. */
#include "host.h"
#include "topo/sysfs.h"
#include "unfence/unfence.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FILE_BYTES = 16384 };

/* The value of the first line "key : value" of a file of /proc. */
static bool read_field(const char *root, const char *path, const char *key, char *value, size_t bytes)
{
    char text[FILE_BYTES];
    size_t length = strlen(key);
    if (!uf_topo_text(root, path, text, sizeof text))
        return false;
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, key, length) != 0 || !strchr(" \t:", line[length]))
            continue;
        snprintf(value, bytes, "%.*s", (int)bytes - 1, line + length + strspn(line + length, " \t:"));
        return true;
    }
    return false;
}

static uint64_t read_number_field(const char *root, const char *path, const char *key, uint64_t scale)
{
    char value[64], *end;
    if (!read_field(root, path, key, value, sizeof value))
        return HOST_UNKNOWN;
    uint64_t number = strtoull(value, &end, 10);
    return end == value || number > HOST_UNKNOWN / scale ? HOST_UNKNOWN : number * scale;
}

static void read_processor(const char *root, host_facts *facts)
{
    struct utsname name;
    cpu_set_t allowed;
    if (!read_field(root, "/proc/cpuinfo", "model name", facts->cpu, sizeof facts->cpu))
        snprintf(facts->cpu, sizeof facts->cpu, "unknown");
    if (*root) { /* another host's folder: what the system says here is not about it */
        if (!uf_topo_text(root, "/proc/sys/kernel/osrelease", facts->kernel, sizeof facts->kernel))
            facts->kernel[0] = '\0';
        return;
    }
    if (uname(&name) == 0) {
        snprintf(facts->kernel, sizeof facts->kernel, "%.*s", (int)sizeof facts->kernel - 1, name.release);
        snprintf(facts->architecture, sizeof facts->architecture, "%.*s", (int)sizeof facts->architecture - 1, name.machine);
    }
    facts->cores_online = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&allowed);
    facts->cores_allowed =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : facts->cores_online;
    if (getloadavg(&facts->load, 1) != 1)
        facts->load = 0;
}

/* The soft limit of a line of /proc/self/limits; UINT64_MAX: unlimited. */
static bool read_limit(const char *root, const char *key, uint64_t *value)
{
    char text[128], *end;
    if (!read_field(root, "/proc/self/limits", key, text, sizeof text))
        return false;
    if (strncmp(text, "unlimited", 9) == 0) {
        *value = UINT64_MAX;
        return true;
    }
    uint64_t number = strtoull(text, &end, 10);
    if (end == text)
        return false;
    *value = number;
    return true;
}

static void read_memory(const char *root, host_facts *facts)
{
    struct statvfs shm;
    facts->memory_bytes = read_number_field(root, "/proc/meminfo", "MemTotal", 1024);
    facts->memory_available = read_number_field(root, "/proc/meminfo", "MemAvailable", 1024);
    facts->shm_bytes = facts->shm_available = HOST_UNKNOWN;
    if (!*root && statvfs("/dev/shm", &shm) == 0) {
        facts->shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
        facts->shm_available = (uint64_t)shm.f_bavail * shm.f_frsize;
    }
    facts->memlock = facts->open_files = UINT64_MAX;
    facts->limits_known =
        read_limit(root, "Max locked memory", &facts->memlock) && read_limit(root, "Max open files", &facts->open_files);
}

/* Finds the directory of our cgroup for `controller` ("" for version 2) under its usual mount point. */
static bool cgroup_directory(const char *root, const char *controller, char *path, size_t bytes)
{
    char text[FILE_BYTES];
    if (!uf_topo_text(root, "/proc/self/cgroup", text, sizeof text))
        return false;
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ':');
        char *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = '\0';
        names++;
        if (*controller == '\0' ? *names != '\0' : strcmp(names, controller) != 0 && !strstr(names, "cpu,cpuacct"))
            continue;
        int length = snprintf(path, bytes, "/sys/fs/cgroup%s%s%s", *names ? "/" : "", names, strcmp(where, "/") ? where : "");
        return length > 0 && (size_t)length < bytes;
    }
    return false;
}

/* A quota makes a spinning or a progress thread stop for whole periods, which looks like a slow network (case G1). */
static void read_quota(const char *root, host_facts *facts)
{
    char directory[600], path[700], line[128], period[64];
    facts->periods = facts->throttled = HOST_UNKNOWN;
    if (cgroup_directory(root, "", directory, sizeof directory)) {
        double quota, length;
        if (uf_topo_text_in(root, directory, "cpu.max", line, sizeof line)) {
            facts->quota_known = true;
            if (sscanf(line, "%lf %lf", &quota, &length) == 2 && length > 0)
                facts->cpu_quota = quota / length;
        }
        snprintf(path, sizeof path, "%s/cpu.stat", directory);
        facts->periods = read_number_field(root, path, "nr_periods", 1);
        facts->throttled = read_number_field(root, path, "nr_throttled", 1);
    }
    if (facts->periods != HOST_UNKNOWN || !cgroup_directory(root, "cpu", directory, sizeof directory))
        return;
    bool known = uf_topo_text_in(root, directory, "cpu.cfs_quota_us", line, sizeof line);
    facts->quota_known = facts->quota_known || known;
    if (known && atof(line) > 0 && uf_topo_text_in(root, directory, "cpu.cfs_period_us", period, sizeof period) &&
        atof(period) > 0)
        facts->cpu_quota = atof(line) / atof(period);
    snprintf(path, sizeof path, "%s/cpu.stat", directory);
    facts->periods = read_number_field(root, path, "nr_periods", 1);
    facts->throttled = read_number_field(root, path, "nr_throttled", 1);
}

void host_read(const char *root, host_facts *facts)
{
    char line[64];
    memset(facts, 0, sizeof *facts);
    read_processor(root, facts);
    read_memory(root, facts);
    read_quota(root, facts);
    facts->ptrace_scope = uf_topo_text(root, "/proc/sys/kernel/yama/ptrace_scope", line, sizeof line) ? atoi(line) : -1;
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
    host_read("", &facts);
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
