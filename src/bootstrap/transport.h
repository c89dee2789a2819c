/* transport.h - what the two bootstraps (group.c in one process, tcp.c between processes) have in common.
 * Private to this room. */
#ifndef UF_BOOTSTRAP_TRANSPORT_H
#define UF_BOOTSTRAP_TRANSPORT_H

#include "base/error.h"
#include "bootstrap/bootstrap.h"

/* Bounds of one exchange: a PE's part and everybody's. Setup data is small; more than this is a caller's
 * mistake. */
#define UF_BOOTSTRAP_PART_MAX 0x04000000u
#define UF_BOOTSTRAP_ALL_MAX  0x40000000u
/* Longest sentence that travels to other PEs. */
#define UF_BOOTSTRAP_TEXT 768

typedef struct uf_bootstrap_ops {
    void (*destroy)(uf_bootstrap *b);
    int (*allgather)(uf_bootstrap *b, const void *mine, size_t bytes, void *all, uint64_t deadline);
    void (*abort)(uf_bootstrap *b, int code, const char *why);
    void (*leave)(uf_bootstrap *b);
    int (*poll)(uf_bootstrap *b, int *pe);
    int (*fd)(uf_bootstrap *b);
} uf_bootstrap_ops;

struct uf_bootstrap {
    const uf_bootstrap_ops *ops;
    const uf_driver *driver;
    int pe, n_pes;
    uint64_t timeout_ns;
    uint64_t id;
};

/* `group` is not NULL and has n_pes PEs. */
int uf_bootstrap_group_create(const uf_bootstrap_params *params, uf_bootstrap **out);
/* n_pes > 1 and `root` is not NULL. */
int uf_bootstrap_tcp_create(const uf_bootstrap_params *params, uf_bootstrap **out);

/* Writes the numbers whose flag is set, as "PEs 3, 5-7 and 12 more" or "PE 3", cut so that it fits. */
const char *uf_bootstrap_list_pes(const bool *set, int n, char *text, size_t bytes);
/* 64 bits that nobody else has. */
uint64_t uf_bootstrap_random(void);

static inline uint64_t uf_bootstrap_now(const uf_bootstrap *b)
{
    return b->driver->now(b->driver->arg);
}

#endif
