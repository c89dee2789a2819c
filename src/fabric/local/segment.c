/* segment.c - symmetric memory of one host: anonymous files (memfd) mapped at fixed offsets of reserved address ranges.
 *
 * One range per PE, each PE's segments appended at the same offsets, so that translating a symmetric address to a peer's mapping is
 * one subtraction and one addition. A segment has no name in any file system, so nothing of it outlives its last user, however that
 * ends. All its memory is taken at creation and its size is sealed, so no later access can raise SIGBUS. */
#include "base/error.h"
#include "fabric/local/identity.h"
#include "fabric/local/local.h"
#include "fabric/local/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define UF_LOCAL_HUGE ((size_t)2 << 20)
/* Memory is taken in steps of this size, each after a look at what is left: several PEs may be at it at once. */
#define UF_LOCAL_STEP ((size_t)64 << 20)
/* Left to the rest of the host. */
#define UF_LOCAL_MARGIN ((uint64_t)32 << 20)
#define UF_LOCAL_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t range_align(size_t max)
{
    size_t align = UF_LOCAL_HUGE;
    while (align < max && align < UF_LOCAL_RANGE_ALIGN)
        align <<= 1;
    return align;
}

int uf_local_range_reserve(size_t max, uint32_t color, uf_local_range *range)
{
    size_t page = page_bytes(), align = range_align(max), shift = color % UF_LOCAL_COLORS * UF_LOCAL_HUGE;
    if (max == 0 || max > SIZE_MAX / 2)
        return uf_fail(UF_EINVAL, "cannot reserve %zu bytes of address space for a heap: give 1 byte to 2^62", max);
    size_t whole = ((max + page - 1) & ~(page - 1)) + align + shift;
    unsigned char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        int error = errno;
        struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
        getrlimit(RLIMIT_AS, &limit);
        if (limit.rlim_cur != RLIM_INFINITY)
            return uf_fail_errno(UF_ENOMEM, error,
                                 "reserving %zu bytes of address space for a PE's heap failed, the limit of the process is %llu: "
                                 "raise it (ulimit -v) or lower UNFENCE_HEAP_MAX",
                                 whole, (unsigned long long)limit.rlim_cur);
        return uf_fail_errno(UF_ENOMEM, error,
                             "reserving %zu bytes of address space for a PE's heap failed, no limit is set (ulimit -v): "
                             "lower UNFENCE_HEAP_MAX",
                             whole);
    }
    /* Cut the reservation to its aligned middle, so that aligned offsets are aligned pointers. */
    unsigned char *base = (unsigned char *)(((uintptr_t)at + align - 1) & ~(uintptr_t)(align - 1)) + shift;
    size_t keep = whole - align - shift, before = (size_t)(base - at), after = whole - keep - before;
    if (before)
        munmap(at, before);
    if (after)
        munmap(base + keep, after);
    range->base = base;
    range->max = keep;
    range->used = 0;
    return UF_OK;
}

void uf_local_range_release(uf_local_range *range)
{
    if (range->base)
        munmap(range->base, range->max);
    memset(range, 0, sizeof(*range));
}

/* Puts reserved address space back where a mapping was. */
static void unmap_to_reserved(unsigned char *at, size_t bytes)
{
    mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static int check_room(const uf_local_range *range, size_t bytes)
{
    if (bytes == 0 || bytes % page_bytes())
        return uf_fail(UF_EINVAL, "a segment of %zu bytes: give a positive multiple of the page size, %zu", bytes, page_bytes());
    if (bytes > range->max - range->used)
        return uf_fail(UF_ENOMEM,
                       "the symmetric heap needs %zu bytes more but only %zu of its %zu are left: raise UNFENCE_HEAP_MAX", bytes,
                       range->max - range->used, range->max);
    return UF_OK;
}

static int no_memory(size_t bytes, size_t done, const uf_local_memory *left, int error)
{
    /* What we gave back by failing is available again to whoever asks for less. */
    unsigned long long available = left->available == UINT64_MAX ? 0 : (unsigned long long)(left->available + done);
    if (left->available == UINT64_MAX)
        return uf_fail_errno(UF_ENOMEM, error, "a heap segment needs %zu bytes of memory, got %zu: lower UNFENCE_HEAP_SIZE",
                             bytes, done);
    return uf_fail(
        UF_ENOMEM,
        "a heap segment needs %zu bytes of memory, available are %llu (limited by %s)%s%s: lower UNFENCE_HEAP_SIZE, run "
        "fewer PEs here or free memory",
        bytes, available, left->limit, error ? "; the system said: " : "", error ? strerror(error) : "");
}

/* True if this system backs shared memory by huge pages where it is advised to. */
static bool huge_pages(void)
{
    char text[128];
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return strchr(text, '[') && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

/* Makes every page of the segment exist, by fallocate, which zeroes a page only at its first use and so takes a third of the time; before
 * it through the mapping where there are huge pages to be had, since only a page fault there gives them. Neither can raise
 * SIGBUS. */
static int take_memory(int fd, unsigned char *at, size_t bytes)
{
    uf_local_memory left;
    uf_local_memory_available("", &left);
    if (left.available != UINT64_MAX && left.available < (uint64_t)bytes + UF_LOCAL_MARGIN)
        return no_memory(bytes, 0, &left, 0);
    bool huge = bytes % UF_LOCAL_HUGE == 0 && huge_pages();
    for (size_t done = 0; done < bytes;) {
        size_t step = bytes - done < UF_LOCAL_STEP ? bytes - done : UF_LOCAL_STEP;
        uf_local_memory_available("", &left);
        if (left.available != UINT64_MAX && left.available < step + UF_LOCAL_MARGIN)
            return no_memory(bytes, done, &left, 0);
        if (huge && madvise(at + done, step, MADV_POPULATE_WRITE) != 0 && errno != EINVAL && errno != EINTR)
            return no_memory(bytes, done, &left, errno);
        int rc;
        do {
            rc = fallocate(fd, 0, (off_t)done, (off_t)step);
        } while (rc != 0 && errno == EINTR);
        if (rc != 0)
            return no_memory(bytes, done, &left, errno);
        done += step;
    }
    return UF_OK;
}

static int map_at_end(uf_local_range *range, int fd, size_t bytes)
{
    unsigned char *at = range->base + range->used;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        unmap_to_reserved(at, bytes);
        return uf_fail_errno(UF_ENOMEM, error, "mapping a heap segment of %zu bytes failed", bytes);
    }
    /* Advice only: fewer TLB misses, and far fewer page faults at the first use of a peer's heap. */
    if (bytes % UF_LOCAL_HUGE == 0)
        madvise(at, bytes, MADV_HUGEPAGE);
    return UF_OK;
}

int uf_local_segment_create(uf_local_range *range, size_t bytes, int *fd)
{
    int rc = check_room(range, bytes);
    if (rc != UF_OK)
        return rc;
    struct rlimit limit;
    /* Asked first: exceeding it would raise SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return uf_fail(UF_ENOMEM,
                       "a heap segment needs %zu bytes, the file size limit of the process is %llu: raise it (ulimit -f)", bytes,
                       (unsigned long long)limit.rlim_cur);
    int segment = memfd_create(UF_LOCAL_SEGMENT_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment < 0)
        return uf_fail_errno(UF_ESYSTEM, errno, "creating a heap segment (memfd_create) failed%s",
                             errno == EMFILE ? ", raise the limit of open files (ulimit -n)" : "");
    if (ftruncate(segment, (off_t)bytes) != 0) {
        rc = uf_fail_errno(UF_ENOMEM, errno, "sizing a heap segment to %zu bytes failed", bytes);
        goto close_segment;
    }
    rc = map_at_end(range, segment, bytes);
    if (rc != UF_OK)
        goto close_segment;
    rc = take_memory(segment, range->base + range->used, bytes);
    if (rc != UF_OK)
        goto unmap;
    if (fcntl(segment, F_ADD_SEALS, UF_LOCAL_SEALS) != 0) {
        rc = uf_fail_errno(UF_ESYSTEM, errno, "sealing a heap segment failed");
        goto unmap;
    }
    range->used += bytes;
    *fd = segment;
    return UF_OK;

unmap:
    unmap_to_reserved(range->base + range->used, bytes);
close_segment:
    close(segment);
    return rc;
}

void uf_local_segment_drop(uf_local_range *range, size_t bytes)
{
    range->used -= bytes;
    unmap_to_reserved(range->base + range->used, bytes);
}

/* Refuses anything but a sealed memfd of the right size: a wrong descriptor must never become a mapping that can shrink. */
static int check_segment(int fd, size_t bytes, const uf_local_identity *peer)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return uf_fail_errno(UF_ESYSTEM, errno, "looking at a heap segment of process %d failed", (int)peer->pid);
    if (st.st_size != (off_t)bytes)
        return uf_fail(UF_EMISMATCH, "a heap segment of process %d has %lld bytes, expected %zu", (int)peer->pid,
                       (long long)st.st_size, bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & UF_LOCAL_SEALS) != UF_LOCAL_SEALS)
        return uf_fail(UF_EMISMATCH, "descriptor of process %d given as a heap segment is not a sealed segment", (int)peer->pid);
    return UF_OK;
}

int uf_local_segment_map(uf_local_range *range, const uf_local_identity *peer, int peer_fd, size_t bytes)
{
    int rc = check_room(range, bytes);
    if (rc != UF_OK)
        return rc;
    int fd;
    rc = uf_local_identity_open(peer, peer_fd, UF_LOCAL_SEGMENT_NAME, O_RDWR, &fd);
    if (rc != UF_OK)
        return rc;
    rc = check_segment(fd, bytes, peer);
    if (rc == UF_OK)
        rc = map_at_end(range, fd, bytes);
    if (rc == UF_OK)
        range->used += bytes;
    close(fd);
    return rc;
}
