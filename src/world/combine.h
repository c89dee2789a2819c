/* combine.h - the arithmetic of reduce: one array into another, element by element. Pure.
 *
 * Integers wrap; floats are what the machine's one operation gives, so the result depends on the order of calls and nothing else. */
#ifndef UF_WORLD_COMBINE_H
#define UF_WORLD_COMBINE_H

#include "unfence/unfence.h"

/* into[i] = into[i] op with[i]. Both aligned to the element. */
typedef void (*uf_combine)(void *into, const void *with, size_t n);

/* NULL if `type` or `op` is none, or the type has no such operation (bits of floating-point numbers). */
uf_combine uf_combine_find(uf_dtype type, uf_reduce_op op);
/* Bytes of an element; 0 if `type` is none. */
size_t uf_combine_element(uf_dtype type);

#endif
