/* foreign.h - windows over another process's own buffer on this host: memory that is near but not mapped here.
 *
 * The system copies (cross-memory attach) where it lets us; where not, the owner does, through its inbox in the heap. Both block until
 * the bytes are in place, so nothing is left for a fence or quiet to do. */
#ifndef UF_WORLD_FOREIGN_H
#define UF_WORLD_FOREIGN_H

#include "world/world.h"

/* Sets this PE's inbox up if any two PEs are processes of one host. Collective, after memory and before anybody may put. */
int uf_foreign_create(uf_world *w);
/* Copies `bytes` between `local` and address `remote` of PE `pe`'s process. `local` is only read by a put. */
int uf_foreign_put(uf_world *w, int pe, uint64_t remote, const void *local, size_t bytes);
int uf_foreign_get(uf_world *w, int pe, uint64_t remote, void *local, size_t bytes);
/* Updates a word there, which no other processor can do atomically: the owner does. `*old` is what it was. */
int uf_foreign_atomic(uf_world *w, int pe, uint64_t remote, uint8_t op, uint8_t width, uint64_t operand, uint64_t compare,
                      uint64_t *old);
/* Makes the copies that others have asked for. One load if there are none. Any thread. */
int uf_foreign_serve(uf_world *w);
/* The same until there is a pause, and looks after what dead PEs have left. For the tick. */
void uf_foreign_tick(uf_world *w);

#endif
