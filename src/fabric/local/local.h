/* local.h - memory that PEs of one host share: the heap as a memfd that each PE maps, and buffers that are not in it.
 *
 * Not behind fabric.h's post and poll: a put to a mapped peer is a copy and a release store by the caller itself (src/world/rma.c), with no
 * queue, no lock and nothing to complete. This room owns the segments, the mapping of peers', and the copies into memory
 * that cannot be mapped (windows over a user's own buffer). */
#ifndef UF_FABRIC_LOCAL_LOCAL_H
#define UF_FABRIC_LOCAL_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a PE tells the others at creation so that they can judge whether they share a kernel, and reach its memory. Exchanged as bytes. */
typedef struct uf_local_identity {
    unsigned char boot_id[16]; /* /proc/sys/kernel/random/boot_id: the same kernel, whatever the namespaces */
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid */
    int32_t pid;
    uint32_t uid;
    uint64_t nonce;   /* of this world's PE: also written at the start of its probe memfd */
    int32_t probe_fd; /* memfd with the nonce: who can map it and reads the nonce can map our heap */
    int32_t cma;      /* process_vm_writev from our host peers is expected to work (not decided by us alone) */
} uf_local_identity;

int uf_local_identify(uf_local_identity *mine);
void uf_local_identity_close(uf_local_identity *mine);
/* True if `peer` is of the same kernel and its memory can be mapped; *why is a sentence either way (static string). */
bool uf_local_reachable(const uf_local_identity *mine, const uf_local_identity *peer, const char **why);
/* True if both are of one process (PEs as threads). */
bool uf_local_same_process(const uf_local_identity *peer);
/* False only if `peer`'s process is surely gone: ended (also as a zombie), replaced by exec, or its pid is another's by now. */
bool uf_local_alive(const uf_local_identity *peer);

/* Largest alignment of a pointer that an equally aligned offset into a range of color 0 gives: it starts at a multiple of it, or of the
 * power of two that holds `max` where that is less (2 MiB at least). */
#define UF_LOCAL_RANGE_ALIGN ((size_t)1 << 30)

/* The same offset of several heaps should not be the same in the low bits of its addresses: AMD's cores since Zen guess the way of a line
 * in the first cache from a hash of address bits 12 to 27, and two lines of one set and hash put each other out. Who polls a word in
 * his heap and writes the same word of a peer's would lose a third of his latency. So heaps of peers begin a few steps of 2 MiB off. */
#define UF_LOCAL_COLORS 128

/* Address space for one PE's heap: `max` bytes reserved, segments appended at increasing offsets, each a memfd. */
typedef struct uf_local_range {
    unsigned char *base;
    size_t max, used;
} uf_local_range;
/* Color 0, for one's own heap, begins at a multiple of UF_LOCAL_RANGE_ALIGN (see there); color n begins n % UF_LOCAL_COLORS steps of 2 MiB
 * behind one. UF_ENOMEM with needed and allowed (RLIMIT_AS). */
int uf_local_range_reserve(size_t max, uint32_t color, uf_local_range *range);
void uf_local_range_release(uf_local_range *range);
/* Creates a segment of `bytes` (page multiple; 2 MiB multiples get huge pages) in our own range at `range->used`: memory is reserved now (fallocate), so that a full host fails
 * here, with needed and available bytes in the message, and never later by SIGBUS. *fd is the memfd, the caller's to close. */
int uf_local_segment_create(uf_local_range *range, size_t bytes, int *fd);
/* Takes back the last segment of `bytes`, as if it had never been appended. */
void uf_local_segment_drop(uf_local_range *range, size_t bytes);
/* Maps a peer's segment into our range for that peer, at its `used`. */
int uf_local_segment_map(uf_local_range *range, const uf_local_identity *peer, int peer_fd, size_t bytes);

/* Copies into or out of a same-host peer's memory that is not mapped: `remote` is an address of that process. The same process: memcpy; else
 * process_vm_writev / readv. UF_EUNSUPPORTED if the system forbids it (the caller then goes through the owner's engine, inbox.h). UF_EPEER if
 * the process is gone, UF_ERANGE if the memory is not mapped there. Blocks for the copy. After an error any part may have been copied. */
int uf_local_copy_to(const uf_local_identity *peer, uint64_t remote, const void *src, size_t bytes);
int uf_local_copy_from(const uf_local_identity *peer, uint64_t remote, void *dst, size_t bytes);

#endif
