/* fake_gdrapi.c - GDRCopy over the CUDA driver of the tests: in the same library, so that UNFENCE_GDRCOPY_LIBRARY names that.
 *
 * A mapping is where that driver keeps the bytes of the GPU memory. It is strict: pages of 64 KiB, one pin for one map, nothing left when it is
 * closed (which aborts, since no caller could be told). FAKE_GDR_FAIL=open|pin|map makes that call fail. */
#include "support/fake_cuda.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { PAGE = 65536 };

struct gdr {
    int pins, maps;
};
typedef struct pin {
    unsigned long h;
} pin;

static int fails(const char *what)
{
    const char *asked = getenv("FAKE_GDR_FAIL");
    return asked && strcmp(asked, what) == 0;
}

EXPORT struct gdr *gdr_open(void)
{
    return fails("open") ? NULL : calloc(1, sizeof(struct gdr));
}

EXPORT int gdr_close(struct gdr *g)
{
    if (g->pins || g->maps)
        abort();
    free(g);
    return 0;
}

EXPORT int gdr_pin_buffer(struct gdr *g, unsigned long address, size_t bytes, uint64_t token, uint32_t space, pin *p)
{
    if (fails("pin") || address % PAGE || bytes % PAGE || token || space || !fake_cuda_bytes(address, bytes))
        return EINVAL;
    g->pins++;
    p->h = address;
    return 0;
}

EXPORT int gdr_unpin_buffer(struct gdr *g, pin p)
{
    (void)p;
    g->pins--;
    return 0;
}

EXPORT int gdr_map(struct gdr *g, pin p, void **at, size_t bytes)
{
    if (fails("map"))
        return EAGAIN;
    *at = fake_cuda_bytes(p.h, bytes);
    g->maps++;
    return 0;
}

EXPORT int gdr_unmap(struct gdr *g, pin p, void *at, size_t bytes)
{
    g->maps--;
    return at == fake_cuda_bytes(p.h, bytes) ? 0 : EINVAL;
}
