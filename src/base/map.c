/* map.c - open addressing with linear probing and backward-shift removal.
 *
 * Invariant: every entry lies at or after its home slot, with no unused slot in between. Lookup stops at the
 * first unused slot because of it, and removal must restore it by moving later entries into the gap. Load
 * stays at three quarters or below, so there is always an unused slot to stop at. */
#include "base/map.h"

#include "base/error.h"

#include <stdlib.h>

#define LEAST_SLOTS 8

/* Mixes all bits into the low ones (the finaliser of splitmix64): keys are addresses and small numbers. */
static size_t home_of(const uf_map *map, uint64_t key)
{
    key ^= key >> 30;
    key *= 0xbf58476d1ce4e5b9u;
    key ^= key >> 27;
    key *= 0x94d049bb133111ebu;
    key ^= key >> 31;
    return (size_t)key & map->mask;
}

/* The slot of the key, or the unused slot where it would go. The map has slots. */
static size_t find(const uf_map *map, uint64_t key)
{
    size_t at = home_of(map, key);

    while (map->used[at] && map->slots[at].key != key)
        at = (at + 1) & map->mask;
    return at;
}

static int allocate(uf_map *map, size_t slots)
{
    map->slots = calloc(slots, sizeof(*map->slots));
    map->used = calloc(slots, sizeof(*map->used));
    if (!map->slots || !map->used) {
        free(map->slots);
        free(map->used);
        *map = (uf_map){0};
        return uf_fail(UF_ENOMEM, "no memory for a table of %zu slots (%zu bytes)", slots, slots * (sizeof(*map->slots) + 1));
    }
    map->mask = slots - 1;
    map->limit = slots / 4 * 3;
    return UF_OK;
}

/* The least power of two of slots that three quarters filled hold `entries`; 0 if there is none. */
static size_t slots_for(size_t entries)
{
    size_t slots = LEAST_SLOTS;

    while (slots && slots / 4 * 3 < entries)
        slots *= 2;
    return slots;
}

int uf_map_init(uf_map *map, size_t entries)
{
    size_t slots = slots_for(entries);

    *map = (uf_map){0};
    if (!entries)
        return UF_OK;
    if (!slots)
        return uf_fail(UF_ENOMEM, "a table of %zu entries is beyond the address space", entries);
    return allocate(map, slots);
}

int uf_map_init_fixed(uf_map *map, size_t entries)
{
    int rc = uf_map_init(map, entries);

    if (rc)
        return rc;
    map->limit = entries;
    map->fixed = true;
    return UF_OK;
}

void uf_map_free(uf_map *map)
{
    free(map->slots);
    free(map->used);
    *map = (uf_map){0};
}

static int grow(uf_map *map)
{
    uf_map larger = {0};
    uint64_t key, value;
    size_t cursor = 0;
    int rc;

    if (map->fixed)
        return uf_fail(UF_ENOMEM, "a table of fixed size is full with %zu entries", map->count);
    rc = allocate(&larger, map->slots ? (map->mask + 1) * 2 : LEAST_SLOTS);
    if (rc)
        return rc;
    while (uf_map_next(map, &cursor, &key, &value)) {
        size_t at = find(&larger, key);
        larger.slots[at] = (uf_map_slot){key, value};
        larger.used[at] = 1;
    }
    larger.count = map->count;
    uf_map_free(map);
    *map = larger;
    return UF_OK;
}

int uf_map_put(uf_map *map, uint64_t key, uint64_t value)
{
    size_t at;

    if (map->slots) {
        at = find(map, key);
        if (map->used[at]) {
            map->slots[at].value = value;
            return UF_OK;
        }
    }
    if (map->count >= map->limit) {
        int rc = grow(map);
        if (rc)
            return rc;
    }
    at = find(map, key);
    map->slots[at] = (uf_map_slot){key, value};
    map->used[at] = 1;
    map->count++;
    return UF_OK;
}

bool uf_map_get(const uf_map *map, uint64_t key, uint64_t *value)
{
    size_t at;

    if (!map->slots)
        return false;
    at = find(map, key);
    if (!map->used[at])
        return false;
    if (value)
        *value = map->slots[at].value;
    return true;
}

/* Moves entries back into the gap until an unused slot ends the run. An entry may move only if that does not
 * carry it in front of its home slot. */
static void close_gap(uf_map *map, size_t gap)
{
    for (size_t at = (gap + 1) & map->mask; map->used[at]; at = (at + 1) & map->mask) {
        size_t from_home = (at - home_of(map, map->slots[at].key)) & map->mask;
        size_t from_gap = (at - gap) & map->mask;
        if (from_home < from_gap)
            continue;
        map->slots[gap] = map->slots[at];
        gap = at;
    }
    map->used[gap] = 0;
}

bool uf_map_remove(uf_map *map, uint64_t key, uint64_t *value)
{
    size_t at;

    if (!map->slots)
        return false;
    at = find(map, key);
    if (!map->used[at])
        return false;
    if (value)
        *value = map->slots[at].value;
    close_gap(map, at);
    map->count--;
    return true;
}

bool uf_map_next(const uf_map *map, size_t *cursor, uint64_t *key, uint64_t *value)
{
    if (!map->slots)
        return false;
    for (; *cursor <= map->mask; ++*cursor) {
        if (!map->used[*cursor])
            continue;
        *key = map->slots[*cursor].key;
        *value = map->slots[*cursor].value;
        ++*cursor;
        return true;
    }
    return false;
}
