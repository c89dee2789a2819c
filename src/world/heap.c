/* heap.c - first fit over one ordered table of blocks.
 *
 * The table covers every offset below `used` exactly once, in order, with free neighbours of one segment always joined. Allocation and
 * freeing are linear in the number of blocks, which is small change beside the barrier each collective allocation makes. First fit keeps small,
 * long-lived blocks low and is easy to reason about: the answer depends on nothing but the calls so far. */
#include "world/heap.h"
#include "base/error.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct heap_block {
    size_t start, bytes;
    uint32_t segment;
    bool taken;
} heap_block;

struct uf_heap {
    size_t max, used, allocated;
    size_t n_taken;
    heap_block *blocks;
    size_t n_blocks, room_blocks;
    size_t *segment_starts; /* [n_segments + 1], the last is `used` */
    size_t n_segments, room_segments;
};

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

/* `table` with room for `more` further entries of `size` bytes, perhaps elsewhere; NULL (and the table as it was) without memory. */
static void *with_room(void *table, size_t *room, size_t n, size_t more, size_t size)
{
    if (n + more <= *room)
        return table;
    size_t want = *room ? *room * 2 : 64;
    void *grown = realloc(table, want * size);
    if (grown)
        *room = want;
    else
        uf_fail(UF_ENOMEM, "no memory for the heap's table of %zu entries", want);
    return grown;
}

static int reserve_blocks(uf_heap *heap, size_t more)
{
    heap_block *blocks = with_room(heap->blocks, &heap->room_blocks, heap->n_blocks, more, sizeof(*blocks));
    if (!blocks)
        return UF_ENOMEM;
    heap->blocks = blocks;
    return UF_OK;
}

static int reserve_segments(uf_heap *heap, size_t more)
{
    size_t *starts = with_room(heap->segment_starts, &heap->room_segments, heap->n_segments, more, sizeof(*starts));
    if (!starts)
        return UF_ENOMEM;
    heap->segment_starts = starts;
    return UF_OK;
}

int uf_heap_create(size_t max, uf_heap **heap)
{
    uf_heap *h = calloc(1, sizeof(*h));
    if (!h)
        return uf_fail(UF_ENOMEM, "no memory for a heap's books (%zu bytes)", sizeof(*h));
    h->max = max;
    int rc = reserve_segments(h, 1);
    if (rc != UF_OK) {
        free(h);
        return rc;
    }
    h->segment_starts[0] = 0;
    *heap = h;
    return UF_OK;
}

void uf_heap_destroy(uf_heap *heap)
{
    if (!heap)
        return;
    free(heap->blocks);
    free(heap->segment_starts);
    free(heap);
}

int uf_heap_grow(uf_heap *heap, size_t bytes)
{
    if (bytes == 0 || bytes % UF_HEAP_LARGE)
        return uf_fail(UF_EINVAL, "the heap grows by multiples of %zu bytes, not by %zu", UF_HEAP_LARGE, bytes);
    if (bytes > heap->max - heap->used)
        return uf_fail(UF_ENOMEM,
                       "the symmetric heap needs %zu bytes more but only %zu of its %zu are left: raise UNFENCE_HEAP_MAX", bytes,
                       heap->max - heap->used, heap->max);
    int rc = reserve_blocks(heap, 1);
    if (rc == UF_OK)
        rc = reserve_segments(heap, 2);
    if (rc != UF_OK)
        return rc;
    heap->blocks[heap->n_blocks++] = (heap_block){.start = heap->used, .bytes = bytes, .segment = (uint32_t)heap->n_segments};
    heap->used += bytes;
    heap->segment_starts[++heap->n_segments] = heap->used;
    return UF_OK;
}

/* The number of the block that holds `offset`, which is below `used`. */
static size_t block_at(const uf_heap *heap, size_t offset)
{
    size_t low = 0, high = heap->n_blocks;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (heap->blocks[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void insert_block(uf_heap *heap, size_t at, heap_block block)
{
    memmove(&heap->blocks[at + 1], &heap->blocks[at], (heap->n_blocks - at) * sizeof(block));
    heap->blocks[at] = block;
    heap->n_blocks++;
}

static void remove_block(uf_heap *heap, size_t at)
{
    heap->n_blocks--;
    memmove(&heap->blocks[at], &heap->blocks[at + 1], (heap->n_blocks - at) * sizeof(heap_block));
}

/* Takes [start, start + bytes) out of free block `at`, leaving up to two free pieces. There is room in the table. */
static void take(uf_heap *heap, size_t at, size_t start, size_t bytes)
{
    heap_block whole = heap->blocks[at];
    size_t before = start - whole.start, after = whole.bytes - before - bytes;
    heap->blocks[at] = (heap_block){.start = start, .bytes = bytes, .segment = whole.segment, .taken = true};
    if (after)
        insert_block(heap, at + 1, (heap_block){.start = start + bytes, .bytes = after, .segment = whole.segment});
    if (before)
        insert_block(heap, at, (heap_block){.start = whole.start, .bytes = before, .segment = whole.segment});
    heap->allocated += bytes;
    heap->n_taken++;
}

static int no_room(const uf_heap *heap, size_t bytes, size_t align, size_t *growth)
{
    /* A new segment starts at `used`, which may have to be skipped up to the alignment. */
    size_t skip = round_up(heap->used, align) - heap->used, left = heap->max - heap->used;
    left -= left % UF_HEAP_LARGE;
    if (bytes > left || skip > left - bytes)
        return uf_fail(UF_ENOMEM,
                       "the symmetric heap has no room for %zu bytes: %zu of its %zu are allocated and it may grow by %zu: raise "
                       "UNFENCE_HEAP_MAX",
                       bytes, heap->allocated, heap->max, left);
    *growth = round_up(skip + bytes, UF_HEAP_LARGE);
    return UF_EAGAIN;
}

int uf_heap_alloc(uf_heap *heap, size_t bytes, size_t align, size_t *offset, size_t *growth)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return uf_fail(UF_EINVAL, "cannot allocate %zu bytes of symmetric memory", bytes);
    if (align > UF_HEAP_ALIGN_MAX || (align & (align - 1)))
        return uf_fail(UF_EINVAL, "alignment %zu of symmetric memory is not a power of two up to %zu", align, UF_HEAP_ALIGN_MAX);
    size_t least = bytes >= UF_HEAP_LARGE ? UF_HEAP_LARGE : UF_HEAP_ALIGN;
    if (align < least)
        align = least;
    bytes = round_up(bytes, UF_HEAP_ALIGN);
    int rc = reserve_blocks(heap, 2);
    if (rc != UF_OK)
        return rc;
    for (size_t i = 0; i < heap->n_blocks; i++) {
        const heap_block *b = &heap->blocks[i];
        size_t start = round_up(b->start, align), skip = start - b->start;
        if (b->taken || skip > b->bytes || bytes > b->bytes - skip)
            continue;
        take(heap, i, start, bytes);
        *offset = start;
        return UF_OK;
    }
    return no_room(heap, bytes, align, growth);
}

int uf_heap_free(uf_heap *heap, size_t offset)
{
    size_t i = heap->n_blocks ? block_at(heap, offset) : 0;
    if (offset >= heap->used || !heap->blocks[i].taken || heap->blocks[i].start != offset)
        return uf_fail(UF_EINVAL,
                       "offset %zu is not the start of an allocated block of the symmetric heap (%zu bytes): freed twice?",
                       offset, heap->used);
    heap_block *b = &heap->blocks[i];
    b->taken = false;
    heap->allocated -= b->bytes;
    heap->n_taken--;
    if (i + 1 < heap->n_blocks && !b[1].taken && b[1].segment == b->segment) {
        b->bytes += b[1].bytes;
        remove_block(heap, i + 1);
    }
    if (i > 0 && !b[-1].taken && b[-1].segment == b->segment) {
        b[-1].bytes += b->bytes;
        remove_block(heap, i);
    }
    return UF_OK;
}

bool uf_heap_block(const uf_heap *heap, size_t offset, size_t *start, size_t *bytes)
{
    if (offset >= heap->used)
        return false;
    const heap_block *b = &heap->blocks[block_at(heap, offset)];
    if (!b->taken)
        return false;
    *start = b->start;
    *bytes = b->bytes;
    return true;
}

bool uf_heap_segment(const uf_heap *heap, size_t offset, size_t *index, size_t *start, size_t *bytes)
{
    if (offset >= heap->used)
        return false;
    size_t i = heap->blocks[block_at(heap, offset)].segment;
    *index = i;
    *start = heap->segment_starts[i];
    *bytes = heap->segment_starts[i + 1] - heap->segment_starts[i];
    return true;
}

size_t uf_heap_used(const uf_heap *heap)
{
    return heap->used;
}

size_t uf_heap_allocated(const uf_heap *heap)
{
    return heap->allocated;
}

size_t uf_heap_n_blocks(const uf_heap *heap)
{
    return heap->n_taken;
}
