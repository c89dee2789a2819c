/* memory.c - what the host and our memory cgroups have left: the least of them all counts.
 *
 * Host: MemAvailable + SwapFree of /proc/meminfo. Cgroup: limit - usage + inactive page cache, for our group and every group above it (v2
 * from one hierarchy, v1 from the memory controller's). A file that is missing or unreadable limits nothing: an unknown is never 0. */
#include "fabric/local/memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UF_LOCAL_PATH_BYTES 1024

/* The file's text, cut to `bytes`; -1 if it can't be read. No stdio buffers: this runs when memory is short. */
static int read_text(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t have = 0;
    while (have + 1 < bytes) {
        ssize_t n = read(fd, text + have, bytes - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    close(fd);
    text[have] = '\0';
    return 0;
}

/* The number after `key` at the start of a line, times `unit`; `none` if there is no such line. */
static uint64_t number_after(const char *text, const char *key, uint64_t unit, uint64_t none)
{
    size_t length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0)
            return strtoull(line + length, NULL, 10) * unit;
    }
    return none;
}

static uint64_t number_of(const char *directory, const char *file, uint64_t none)
{
    char path[UF_LOCAL_PATH_BYTES], text[64];
    int n = snprintf(path, sizeof(path), "%s/%s", directory, file);
    if (n < 0 || (size_t)n >= sizeof(path) || read_text(path, text, sizeof(text)) != 0)
        return none;
    if (text[0] < '0' || text[0] > '9') /* "max" */
        return none;
    return strtoull(text, NULL, 10);
}

typedef struct cgroup_files {
    const char *limit, *usage, *inactive;
} cgroup_files;

/* Lowers `out` to what the group in `directory` has left. `name` is the group as the user knows it. */
static void limit_by_group(const char *directory, const char *name, const cgroup_files *files, uf_local_memory *out)
{
    uint64_t limit = number_of(directory, files->limit, UINT64_MAX);
    uint64_t usage = number_of(directory, files->usage, UINT64_MAX);
    if (limit == UINT64_MAX || usage == UINT64_MAX)
        return;
    char path[UF_LOCAL_PATH_BYTES], text[8192];
    int n = snprintf(path, sizeof(path), "%s/memory.stat", directory);
    uint64_t cache = 0;
    if (n > 0 && (size_t)n < sizeof(path) && read_text(path, text, sizeof(text)) == 0)
        cache = number_after(text, files->inactive, 1, 0);
    uint64_t used = usage > cache ? usage - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < out->available) {
        out->available = left;
        snprintf(out->limit, sizeof(out->limit), "memory cgroup %.80s", *name ? name : "/");
    }
}

/* Our group and every one above it. In a container our path may not exist below the mount, which then is our own group. */
static void limit_by_groups(const char *mount, const char *group, const cgroup_files *files, uf_local_memory *out)
{
    char name[512], directory[UF_LOCAL_PATH_BYTES];
    snprintf(name, sizeof(name), "%s", strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        int n = snprintf(directory, sizeof(directory), "%s%s", mount, name);
        if (n > 0 && (size_t)n < sizeof(directory))
            limit_by_group(directory, name, files, out);
        char *slash = strrchr(name, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* The path on the line of /proc/self/cgroup that has `marker` ("0::" or ":memory:"), zero-terminated in place; NULL if none. */
static char *group_of(char *text, const char *marker)
{
    char *at = strstr(text, marker);
    if (!at)
        return NULL;
    char *path = at + strlen(marker);
    path[strcspn(path, "\n")] = '\0';
    return path;
}

void uf_local_memory_available(const char *root, uf_local_memory *out)
{
    static const cgroup_files v2 = {"memory.max", "memory.current", "inactive_file "};
    static const cgroup_files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
    char path[UF_LOCAL_PATH_BYTES], text[8192], mount[UF_LOCAL_PATH_BYTES];

    out->available = UINT64_MAX;
    snprintf(out->limit, sizeof(out->limit), "the host");
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    if (read_text(path, text, sizeof(text)) == 0) {
        uint64_t free_bytes = number_after(text, "MemAvailable:", 1024, UINT64_MAX);
        if (free_bytes != UINT64_MAX)
            out->available = free_bytes + number_after(text, "SwapFree:", 1024, 0);
    }
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    if (read_text(path, text, sizeof(text)) != 0)
        return;
    char copy[sizeof(text)];
    memcpy(copy, text, sizeof(text));
    const char *group = group_of(copy, ":memory:");
    if (group) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/memory", root);
        limit_by_groups(mount, group, &v1, out);
    }
    group = group_of(text, "0::");
    if (group) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
        limit_by_groups(mount, group, &v2, out);
    }
}
