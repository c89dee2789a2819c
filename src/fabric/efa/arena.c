/* arena.c - see arena.h.
 *
 * Blocks are of powers of two, from 128 bytes on, each with a line in front that says which; free ones of a size are a list. Pages are asked of
 * the file system before they are used: a full /dev/shm is an error at the time and no SIGBUS later. */
#include "fabric/efa/arena.h"
#include "base/error.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define DIRECTORY   "/dev/shm"
#define ARENA_MAGIC UINT64_C(0x6e65726161666531)
#define ARENA_BYTES ((size_t)1 << 32) /* of addresses */
#define ARENA_BASE  UINT64_C(0x200000000000)

enum { LINE = 128, CLASSES = 33, STEP = 1 << 20, BOUNCE = 4096 };

typedef struct header {
    uint64_t magic;
    uint64_t used, backed; /* bytes from the start */
    void *root;
    uint32_t members[UF_EFA_ARENA_MEMBERS]; /* process ids */
    void *free[CLASSES];
} header;

struct uf_efa_arena {
    header *h;
    int fd;
    uint32_t member;
    char path[128];
};

/* ---------------------------------------------------------------- blocks */

static uint32_t class_of(size_t bytes)
{
    uint32_t c = 7;
    while (((size_t)1 << c) < bytes)
        c++;
    return c;
}

static uint32_t *class_in(void *p)
{
    return (uint32_t *)(void *)((unsigned char *)p - LINE);
}

static void *take_new(uf_efa_arena *a, uint32_t c)
{
    header *h = a->h;
    size_t end = h->used + LINE + ((size_t)1 << c);
    if (end > ARENA_BYTES)
        return NULL;
    if (end > h->backed) {
        size_t upto = (end + STEP - 1) / STEP * STEP;
        if (posix_fallocate(a->fd, (off_t)h->backed, (off_t)(upto - h->backed)))
            return NULL;
        h->backed = upto;
    }
    unsigned char *p = (unsigned char *)h + h->used + LINE;
    h->used = end;
    *class_in(p) = c;
    return p;
}

static void *take(uf_efa_arena *a, size_t bytes)
{
    uint32_t c = class_of(bytes);
    if (c >= CLASSES - 1)
        return NULL;
    void *p = a->h->free[c];
    if (p)
        memcpy(&a->h->free[c], p, sizeof(void *));
    else
        p = take_new(a, c);
    return p ? memset(p, 0, (size_t)1 << c) : NULL;
}

void uf_efa_arena_release(void *arena, void *p)
{
    uf_efa_arena *a = arena;
    uint32_t c = *class_in(p);
    memcpy(p, &a->h->free[c], sizeof(void *));
    a->h->free[c] = p;
}

void *uf_efa_arena_resize(void *arena, void *p, size_t bytes)
{
    if (!p)
        return take(arena, bytes);
    size_t has = (size_t)1 << *class_in(p);
    if (bytes <= has)
        return p;
    void *more = take(arena, bytes);
    if (more) {
        memcpy(more, p, has);
        uf_efa_arena_release(arena, p);
    }
    return more;
}

/* ---------------------------------------------------------------- other processes' memory */

typedef ssize_t (*mover)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

static bool move(mover how, uint32_t process, void *here, void *there, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct iovec local = {(unsigned char *)here + done, bytes - done}, remote = {(unsigned char *)there + done, bytes - done};
        ssize_t n = how((pid_t)process, &local, 1, &remote, 1, 0);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

bool uf_efa_arena_copy(void *arena, uint32_t to_process, void *to, uint32_t from_process, const void *from, size_t bytes)
{
    (void)arena;
    uint32_t self = (uint32_t)getpid();
    bool to_here = to_process == 0 || to_process == self, from_here = from_process == 0 || from_process == self;
    void *source = (void *)(uintptr_t)from;
    if (from_here)
        return to_here ? memmove(to, from, bytes) != NULL : move(process_vm_writev, to_process, source, to, bytes);
    if (to_here)
        return move(process_vm_readv, from_process, to, source, bytes);
    unsigned char bounce[BOUNCE];
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < BOUNCE ? bytes - done : BOUNCE;
        if (!move(process_vm_readv, from_process, bounce, (unsigned char *)source + done, part) ||
            !move(process_vm_writev, to_process, bounce, (unsigned char *)to + done, part))
            return false;
        done += part;
    }
    return true;
}

int uf_efa_arena_reach(const uf_efa_arena *a, uint32_t process)
{
    uint64_t word = 0;
    if (process == 0 || process == (uint32_t)getpid())
        return UF_OK;
    if (move(process_vm_readv, process, &word, a->h, sizeof word) && word == ARENA_MAGIC)
        return UF_OK;
    return uf_fail_errno(UF_EUNSUPPORTED, errno,
                         "PE %u: the EFA model must copy from and to the memory of process %u, and the system does not let it "
                         "(cross-memory attach: kernel.yama.ptrace_scope must be 0, and the user the same)",
                         a->member, process);
}

/* ---------------------------------------------------------------- the file */

static bool lives(uint32_t process)
{
    return process && (kill((pid_t)process, 0) == 0 || errno == EPERM);
}

static bool anybody_lives(const header *h)
{
    for (uint32_t i = 0; i < UF_EFA_ARENA_MEMBERS; i++)
        if (lives(h->members[i]))
            return true;
    return false;
}

static void prefix(char *text, size_t bytes)
{
    snprintf(text, bytes, "unfence-efa-%u-", (unsigned)getuid());
}

/* Removes the file of an arena whose members are all dead; with its lock held. */
static bool remove_if_dead(int fd, const char *path)
{
    struct stat s;
    header *h =
        fstat(fd, &s) == 0 && s.st_size >= (off_t)sizeof *h ? mmap(NULL, sizeof *h, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (h == MAP_FAILED)
        return false;
    bool dead = h->magic == ARENA_MAGIC && !anybody_lives(h);
    munmap(h, sizeof *h);
    return dead && unlink(path) == 0;
}

static void sweep(void)
{
    char ours[64], path[384];
    DIR *directory = opendir(DIRECTORY);
    prefix(ours, sizeof ours);
    for (struct dirent *e; directory && (e = readdir(directory));) {
        if (strncmp(e->d_name, ours, strlen(ours)))
            continue;
        snprintf(path, sizeof path, "%s/%s", DIRECTORY, e->d_name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            remove_if_dead(fd, path);
        if (fd >= 0)
            close(fd);
    }
    if (directory)
        closedir(directory);
}

/* The file, locked, and still the one of that name: who removes it holds its lock. */
static int open_locked(const char *path)
{
    for (int tries = 0; tries < 1000; tries++) {
        struct stat here, there;
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX) == 0 && fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino)
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

static int map(uf_efa_arena *a, uint32_t number)
{
    void *base = (void *)(uintptr_t)(ARENA_BASE + number * (uint64_t)ARENA_BYTES);
    struct stat s;
    if (fstat(a->fd, &s) || (s.st_size < STEP && posix_fallocate(a->fd, 0, STEP)))
        return uf_fail_errno(UF_ENOMEM, errno, "PE %u: no room in %s for the EFA model", a->member, DIRECTORY);
    void *at = mmap(base, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, a->fd, 0);
    if (at == MAP_FAILED || at != base) {
        int why = at == MAP_FAILED ? errno : EEXIST;
        if (at != MAP_FAILED)
            munmap(at, ARENA_BYTES);
        return why == EEXIST ? UF_EAGAIN : uf_fail_errno(UF_ENOMEM, why, "PE %u: no address space for the EFA model", a->member);
    }
    a->h = at;
    if (a->h->magic != ARENA_MAGIC) {
        *a->h = (header){.used = (sizeof(header) + LINE - 1) / LINE * LINE, .backed = STEP};
        a->h->magic = ARENA_MAGIC;
    }
    return UF_OK;
}

static int join(uf_efa_arena *a, uint32_t number, int (*make)(uf_efa_arena *arena, void *arg), void *arg)
{
    int rc = map(a, number);
    if (rc)
        return rc;
    if (lives(a->h->members[a->member]))
        return UF_EAGAIN;
    if (!a->h->root)
        rc = make(a, arg);
    if (!rc)
        a->h->members[a->member] = (uint32_t)getpid();
    return rc;
}

int uf_efa_arena_open(const char *job, uint32_t number, uint32_t member, int (*make)(uf_efa_arena *arena, void *arg), void *arg,
                      uf_efa_arena **out)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char ours[64];
    if (member >= UF_EFA_ARENA_MEMBERS)
        return uf_fail(UF_EUNSUPPORTED, "PE %u: the EFA model has place for %d PEs in processes of their own", member,
                       UF_EFA_ARENA_MEMBERS);
    uf_efa_arena *a = calloc(1, sizeof *a);
    if (!a)
        return uf_fail(UF_ENOMEM, "PE %u: no memory to note where the EFA model is", member);
    sweep();
    for (const char *c = job; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    prefix(ours, sizeof ours);
    snprintf(a->path, sizeof a->path, "%s/%s%016llx-%u", DIRECTORY, ours, (unsigned long long)hash, number);
    a->member = member;
    a->fd = open_locked(a->path);
    if (a->fd < 0) {
        int rc = uf_fail_errno(UF_ESYSTEM, errno, "PE %u: the EFA model's file %s cannot be opened", member, a->path);
        free(a);
        return rc;
    }
    int rc = join(a, number, make, arg);
    flock(a->fd, LOCK_UN);
    if (!rc) {
        *out = a;
        return UF_OK;
    }
    if (a->h)
        munmap(a->h, ARENA_BYTES);
    close(a->fd);
    free(a);
    return rc;
}

void uf_efa_arena_close(uf_efa_arena *a)
{
    if (flock(a->fd, LOCK_EX) == 0) {
        a->h->members[a->member] = 0;
        remove_if_dead(a->fd, a->path);
    }
    munmap(a->h, ARENA_BYTES);
    close(a->fd);
    free(a);
}

void uf_efa_arena_root_set(uf_efa_arena *a, void *root)
{
    a->h->root = root;
}

void *uf_efa_arena_root(const uf_efa_arena *a)
{
    return a->h->root;
}

uint32_t uf_efa_arena_process(const uf_efa_arena *a, uint32_t member)
{
    return member < UF_EFA_ARENA_MEMBERS ? a->h->members[member] : 0;
}
