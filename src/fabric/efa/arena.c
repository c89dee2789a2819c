/* arena.c - see arena.h.
 *
 * Blocks are of powers of two, from 128 bytes on, each with a line in front that says which; free ones of a size are a list. Pages are asked of
 * the file system before they are used: a full /dev/shm is an error at the time and no SIGBUS later. */
#include "fabric/efa/arena.h"
#include "base/clock.h"
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
    uint64_t magic, mark;  /* the mark is another one for each arena */
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

/* Whether the file still has this name, which another may have got since. */
static bool is_named(int fd, const char *path)
{
    struct stat here, there;
    return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino;
}

/* Removes the file of an arena that was never finished or whose members are all dead; with its lock held. */
static bool remove_if_dead(int fd, const char *path)
{
    struct stat s;
    header *h =
        fstat(fd, &s) == 0 && s.st_size >= (off_t)sizeof *h ? mmap(NULL, sizeof *h, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    bool dead = h == MAP_FAILED || h->magic != ARENA_MAGIC || !anybody_lives(h); /* a short one was not filled by who made it */
    if (h != MAP_FAILED)
        munmap(h, sizeof *h);
    return dead && is_named(fd, path) && unlink(path) == 0;
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

/* The file, locked, and still the one of that name: who removes it holds its lock. `create`: O_CREAT, or 0. */
static int open_locked(const char *path, int create)
{
    for (int tries = 0; tries < 1000; tries++) {
        int fd = open(path, create | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX) == 0 && is_named(fd, path))
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

static bool used_by_this_process(const uf_efa_arena *a)
{
    bool any = false;
    for (uint32_t i = 0; i < UF_EFA_ARENA_MEMBERS; i++)
        any |= a->h->members[i] == (uint32_t)getpid();
    return any;
}

/* What is at that address is this very file, mapped by another member that is a thread of this process. */
static bool mapped_already(const uf_efa_arena *a, void *base)
{
    uint64_t file[2] = {0}, here[2] = {1};
    return pread(a->fd, file, sizeof file, offsetof(header, magic)) == sizeof file && file[0] == ARENA_MAGIC &&
           move(process_vm_readv, (uint32_t)getpid(), here, base, sizeof here) && memcmp(file, here, sizeof file) == 0;
}

/* With the file's lock held. One mapping serves all members that this process has; the last of them takes it away. */
static void unmap(const uf_efa_arena *a)
{
    if (a->h && !used_by_this_process(a))
        munmap(a->h, ARENA_BYTES);
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
        if (why == EEXIST && mapped_already(a, base)) {
            a->h = base;
            return UF_OK;
        }
        return why == EEXIST ? UF_EAGAIN : uf_fail_errno(UF_ENOMEM, why, "PE %u: no address space for the EFA model", a->member);
    }
    a->h = at;
    if (a->h->magic != ARENA_MAGIC) {
        *a->h = (header){.used = (sizeof(header) + LINE - 1) / LINE * LINE, .backed = STEP};
        a->h->mark = uf_clock_ns() << 20 ^ (uint64_t)getpid() << 4 ^ number;
        a->h->magic = ARENA_MAGIC;
    }
    return UF_OK;
}

/* How an arena is looked for. */
typedef struct search {
    const char *job;
    uint32_t member;
    int (*make)(uf_efa_arena *arena, void *arg);
    void *arg;
    int create; /* O_CREAT, or 0: only one that others have made */
} search;

static int join(uf_efa_arena *a, uint32_t number, const search *s)
{
    int rc = map(a, number);
    if (rc)
        return rc;
    if (lives(a->h->members[a->member]) || (!a->h->root && !s->create))
        return UF_EAGAIN;
    if (!a->h->root)
        rc = s->make(a, s->arg);
    if (!rc)
        a->h->members[a->member] = (uint32_t)getpid();
    return rc;
}

static void name_file(const char *job, const char *what, char *path, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char ours[64];
    for (const char *c = job; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    prefix(ours, sizeof ours);
    snprintf(path, bytes, "%s/%s%016llx-%s", DIRECTORY, ours, (unsigned long long)hash, what);
}

static int cannot_open(uint32_t member, const char *path)
{
    return uf_fail_errno(UF_ESYSTEM, errno, "PE %u: the EFA model's file %s cannot be opened", member, path);
}

static int open_one(const search *s, uint32_t number, uf_efa_arena **out)
{
    char digits[16];
    uf_efa_arena *a = calloc(1, sizeof *a);
    if (!a)
        return uf_fail(UF_ENOMEM, "PE %u: no memory to note where the EFA model is", s->member);
    snprintf(digits, sizeof digits, "%u", number);
    name_file(s->job, digits, a->path, sizeof a->path);
    a->member = s->member;
    a->fd = open_locked(a->path, s->create);
    if (a->fd < 0) {
        int rc = errno == ENOENT && !s->create ? UF_EAGAIN : cannot_open(s->member, a->path);
        free(a);
        return rc;
    }
    int rc = join(a, number, s);
    if (rc) {
        remove_if_dead(a->fd, a->path); /* what we made ourselves, if so */
        unmap(a);
    }
    flock(a->fd, LOCK_UN);
    if (!rc) {
        *out = a;
        return UF_OK;
    }
    close(a->fd);
    free(a);
    return rc;
}

static int check_member(uint32_t member)
{
    if (member < UF_EFA_ARENA_MEMBERS)
        return UF_OK;
    return uf_fail(UF_EUNSUPPORTED, "PE %u: the EFA model has place for %d PEs in shared memory", member, UF_EFA_ARENA_MEMBERS);
}

int uf_efa_arena_open(const char *job, uint32_t number, uint32_t member, int (*make)(uf_efa_arena *arena, void *arg), void *arg,
                      uf_efa_arena **out)
{
    const search s = {job, member, make, arg, O_CREAT};
    int rc = check_member(member);
    if (rc)
        return rc;
    sweep();
    return open_one(&s, number, out);
}

/* Those that others have made come first: of PEs in one process one may still be in the world before, and its addresses be taken for the
 * other, which goes to another number then. One search of a job at a time, or two PEs would each make one. */
int uf_efa_arena_find(const char *job, uint32_t numbers, uint32_t member, int (*make)(uf_efa_arena *arena, void *arg), void *arg,
                      uf_efa_arena **out)
{
    search s = {job, member, make, arg, 0};
    char path[128];
    int rc = check_member(member);
    if (rc)
        return rc;
    sweep();
    name_file(job, "search", path, sizeof path);
    int lock = open_locked(path, O_CREAT);
    if (lock < 0)
        return cannot_open(member, path);
    rc = UF_EAGAIN;
    for (uint32_t i = 0; rc == UF_EAGAIN && i < 2 * numbers; i++) {
        s.create = i < numbers ? 0 : O_CREAT;
        rc = open_one(&s, i % numbers, out);
    }
    unlink(path);
    close(lock);
    return rc;
}

void uf_efa_arena_hide(uf_efa_arena *a)
{
    if (flock(a->fd, LOCK_EX))
        return; /* the last to leave removes it then */
    if (is_named(a->fd, a->path))
        unlink(a->path);
    flock(a->fd, LOCK_UN);
}

void uf_efa_arena_close(uf_efa_arena *a)
{
    if (flock(a->fd, LOCK_EX) == 0) {
        a->h->members[a->member] = 0;
        remove_if_dead(a->fd, a->path);
        unmap(a);
        flock(a->fd, LOCK_UN); /* closing would not: a mapping that others still use keeps the file open */
    }
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
