/* map.h - a hash table from 64-bit numbers to 64-bit numbers: open addressing in one array, any key and value
 * allowed.
 *
 * Grows by doubling when it is three quarters full, unless it was made with uf_map_init_fixed, which sets all
 * memory aside at once and then never allocates: for paths that may not. Removal closes the gap, so lookups
 * never slow down with age. Not thread-safe. A zeroed uf_map is an empty one that grows. */
#ifndef UF_BASE_MAP_H
#define UF_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct uf_map_slot {
    uint64_t key, value;
} uf_map_slot;

typedef struct uf_map {
    uf_map_slot *slots; /* a power of two of them, `mask` + 1 */
    unsigned char *used;
    size_t mask, count;
    size_t limit; /* most entries before it must grow */
    bool fixed;
} uf_map;

/* Room for `entries` without allocating again; 0 is allowed. UF_ENOMEM. */
int uf_map_init(uf_map *map, size_t entries);
/* Room for exactly `entries`: uf_map_put then says UF_ENOMEM instead of growing. UF_ENOMEM. */
int uf_map_init_fixed(uf_map *map, size_t entries);
/* Frees the memory; the map is then empty and grows. */
void uf_map_free(uf_map *map);

/* Adds the pair or replaces the value of the key. UF_ENOMEM: nothing changed. */
int uf_map_put(uf_map *map, uint64_t key, uint64_t value);
/* True if the key is there; its value is then in *value (which may be NULL). */
bool uf_map_get(const uf_map *map, uint64_t key, uint64_t *value);
/* The same, and takes it out. */
bool uf_map_remove(uf_map *map, uint64_t key, uint64_t *value);
/* Walks all pairs in no order: start with *cursor 0; false at the end. The map must not change meanwhile. */
bool uf_map_next(const uf_map *map, size_t *cursor, uint64_t *key, uint64_t *value);

static inline size_t uf_map_count(const uf_map *map)
{
    return map->count;
}

#endif
