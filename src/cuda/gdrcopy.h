/* gdrcopy.h - within this room: GPU memory as the CPU may load and store it, by GDRCopy, which is found at run time.
 *
 * GDRCopy is a kernel module with a library (libgdrapi) that maps pages of GPU memory into the process through the GPU's PCIe window. That
 * window is small on some GPUs, so only pages that hold signal words are pinned, each at its first word. The mapping is write-combined:
 * a store is followed by a fence that drains it. Not thread-safe: the writer holds its lock. It must never be used for payload. */
#ifndef UF_CUDA_GDRCOPY_H
#define UF_CUDA_GDRCOPY_H

#include "base/map.h"
#include "base/settings.h"
#include <stddef.h>
#include <stdint.h>

typedef struct uf_gdr_handle uf_gdr_handle; /* the library's own */
typedef struct uf_gdr_pin {
    unsigned long h;
} uf_gdr_pin;

typedef struct uf_gdr_functions {
#define UF_GDR_FUNCTION(result, name, arguments) result(*name) arguments;
#include "cuda/gdrcopy.def"
#undef UF_GDR_FUNCTION
} uf_gdr_functions;

typedef struct uf_gdr_page uf_gdr_page;

typedef struct uf_gdr {
    void *library;
    uf_gdr_functions call;
    uf_gdr_handle *handle;
    uf_map index; /* address of a page of GPU memory -> its place in pages */
    uf_gdr_page *pages;
    size_t n, room;
} uf_gdr;

/* UF_EUNSUPPORTED with the reason: no library, an old one, no kernel module. */
int uf_gdr_open(const uf_settings *settings, uf_gdr *gdr);
void uf_gdr_close(uf_gdr *gdr);
/* Where the CPU reaches the word; its page is pinned at the first call. */
int uf_gdr_map_word(uf_gdr *gdr, const uint64_t *word, uint64_t **at);
/* Lets go the pages that a range of GPU memory touches, before it is unmapped or freed. */
void uf_gdr_drop(uf_gdr *gdr, uint64_t base, size_t bytes);

#endif
