/* shm.c - cares for what the shm provider keeps in /dev/shm.
 *
 * Each endpoint is a file "<pid>:<uid>:<n>" of 16 MiB (libfabric 1.17), removed when it is closed in order. A killed process leaves it;
 * leftovers fill the file system and, when a pid comes round again, make the next endpoint of that name fail with EBUSY. So
 * they are swept at open: files of exactly that name, of this user, that no process has open or mapped. The kernel answers
 * that last question itself, over all pid namespaces that share the directory: a read lease is granted only on a
 * file that nobody has open for writing. Where it does not know leases, a file stays while a process of its pid lives. */
#include "fabric/ofi/ofi.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Digits only, and not too many for a number: advances *at behind them. */
static bool number(const char **at, unsigned long *value)
{
    const char *from = *at;
    while (isdigit((unsigned char)**at))
        (*at)++;
    size_t length = (size_t)(*at - from);
    if (length == 0 || length > 10)
        return false;
    *value = strtoul(from, NULL, 10);
    return true;
}

/* "<pid>:<uid>:<n>" of this user and nothing else. */
static bool is_region_name(const char *name, unsigned long *pid)
{
    unsigned long uid, n;
    return number(&name, pid) && *name++ == ':' && number(&name, &uid) && *name++ == ':' && number(&name, &n) && *name == 0 &&
           uid == (unsigned long)getuid();
}

/* Should somebody open the file in the instant that the lease is held, the kernel tells the holder by signal: SIGURG, which is ignored
 * by default, and not SIGIO, which kills. */
static bool nobody_uses(int fd, unsigned long pid)
{
    if (fcntl(fd, F_SETSIG, SIGURG) < 0)
        return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
    if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0)
        return true; /* given back by close */
    if (errno == EAGAIN)
        return false;
    return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

static bool sweep_one(int directory, const char *name, unsigned long pid)
{
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    struct stat st;
    bool dead = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == getuid() && nobody_uses(fd, pid) &&
                unlinkat(directory, name, 0) == 0;
    close(fd);
    return dead;
}

int uf_ofi_shm_sweep(const char *directory)
{
    DIR *entries = opendir(directory);
    if (!entries)
        return 0;
    int swept = 0;
    struct dirent *entry;
    unsigned long pid;
    while ((entry = readdir(entries)))
        if (is_region_name(entry->d_name, &pid) && sweep_one(dirfd(entries), entry->d_name, pid))
            swept++;
    closedir(entries);
    return swept;
}

uint64_t uf_ofi_shm_free(const char *directory)
{
    struct statvfs st;
    return statvfs(directory, &st) == 0 ? (uint64_t)st.f_bavail * st.f_frsize : UINT64_MAX;
}

int uf_ofi_shm_reserve(const char *directory, const char *address)
{
    const char *name = strstr(address, "://");
    if (!name || strchr(name + 3, '/'))
        return UF_OK; /* a form that later versions may use: nothing known about it */
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name + 3);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return UF_OK;
    struct stat st;
    int rc = fstat(fd, &st) ? 0 : posix_fallocate(fd, 0, st.st_size);
    close(fd);
    if (rc != ENOSPC)
        return UF_OK;
    return uf_fail(
        UF_ENOMEM,
        "%s is full: an endpoint of libfabric's shm provider needs %lld bytes there and %llu are free; remove old files, "
        "enlarge it (mount -o remount,size=, docker --shm-size), or set UNFENCE_FABRIC=ofi:tcp",
        directory, (long long)st.st_size, (unsigned long long)uf_ofi_shm_free(directory));
}
