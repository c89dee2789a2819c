/* heap.h - which part of the symmetric heap is whose: an allocator of offsets, nothing else.
 *
 * Pure arithmetic: it never touches the memory it hands out, and keeps its books outside of it, so that a peer's wild write cannot break
 * them. The same calls give the same answers on every PE: that is what makes the memory symmetric. One caller at a time
 * (the world's setup lock). The space [0, max) grows by segments, appended; a block never crosses from one segment into the
 * next, since each has a registration of its own. */
#ifndef UF_WORLD_HEAP_H
#define UF_WORLD_HEAP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct uf_heap uf_heap;

#define UF_HEAP_ALIGN     ((size_t)64)      /* least alignment, and unit of sizes */
#define UF_HEAP_LARGE     ((size_t)2 << 20) /* blocks of this size and more are aligned to it; unit of segments */
#define UF_HEAP_ALIGN_MAX ((size_t)1 << 30)

/* `max`: offsets stay below it. UF_ENOMEM. */
int uf_heap_create(size_t max, uf_heap **heap);
void uf_heap_destroy(uf_heap *heap);

/* Appends a segment of `bytes` (a multiple of UF_HEAP_LARGE) at offset uf_heap_used(). UF_ENOMEM beyond max, with the numbers. */
int uf_heap_grow(uf_heap *heap, size_t bytes);
/* Takes `bytes` (not 0), lowest fitting offset first. `align`: a power of two up to UF_HEAP_ALIGN_MAX; 0 and less than the least mean the
 * least. UF_EINVAL. UF_EAGAIN: no room; after uf_heap_grow by *growth or more the same call succeeds. UF_ENOMEM: not even growth
 * up to max would help, with the numbers. */
int uf_heap_alloc(uf_heap *heap, size_t bytes, size_t align, size_t *offset, size_t *growth);
/* Gives a block back. UF_EINVAL if `offset` is not the start of one. */
int uf_heap_free(uf_heap *heap, size_t offset);

/* The block that holds `offset`: false if it is free or beyond the end. `bytes` is the size asked for, rounded up to UF_HEAP_ALIGN. */
bool uf_heap_block(const uf_heap *heap, size_t offset, size_t *start, size_t *bytes);
/* The segment that holds `offset`: its number, start and size; false beyond the end. */
bool uf_heap_segment(const uf_heap *heap, size_t offset, size_t *index, size_t *start, size_t *bytes);

size_t uf_heap_used(const uf_heap *heap);      /* sum of all segments */
size_t uf_heap_allocated(const uf_heap *heap); /* sum of all blocks taken */
size_t uf_heap_n_blocks(const uf_heap *heap);  /* taken */

#endif
