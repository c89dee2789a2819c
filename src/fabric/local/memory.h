/* memory.h - how much memory this host will still give us, asked before it is taken.
 *
 * A memfd is limited by the machine and by the memory cgroups around us, and the kernel's answer to asking for too much is
 * often the OOM killer and not an error. So a segment is created in steps, and before each step this room asks what is left. Reads
 * /proc and /sys below a root prefix ("" in real life, a made-up tree in tests); writes nothing, keeps nothing. */
#ifndef UF_FABRIC_LOCAL_MEMORY_H
#define UF_FABRIC_LOCAL_MEMORY_H

#include <stddef.h>
#include <stdint.h>

typedef struct uf_local_memory {
    uint64_t available; /* bytes; UINT64_MAX if nothing is known */
    char limit[96];     /* what sets that limit, for the message: "the host" or "memory cgroup /job" */
} uf_local_memory;

void uf_local_memory_available(const char *root, uf_local_memory *out);

#endif
