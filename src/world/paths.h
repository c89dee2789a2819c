/* paths.h - how a world finds out what carries operations to each peer (paths.c). All are collective. */
#ifndef UF_WORLD_PATHS_H
#define UF_WORLD_PATHS_H

#include "world/world.h"

/* Compares what must be the same on all PEs, and learns where each is. UF_EMISMATCH names what differs. */
int uf_paths_meet(uf_world *w);
/* Maps peers and opens and connects the network, as settings and options say. */
int uf_paths_choose(uf_world *w, const uf_world_options *o);
/* Both ends of a flow count alike: the least that any PE can do, or a refusal where there is no least. */
int uf_paths_limits(uf_world *w, uf_engine_params *params, uf_engine_limits *least);
/* The one line about it. */
void uf_paths_log(uf_world *w);

#endif
