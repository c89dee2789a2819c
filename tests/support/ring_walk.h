/* ring_walk.h - what a PE does to try rings and tiles: walks through rotations, streams, gathers and sums that a seed gives, and checks every byte.
 *
 * The same on all PEs but for the turns that each one takes in between, so it runs over any network, in threads, processes and virtual time. The
 * first thing that is wrong is noted with ep_pe_fail. */
#ifndef TESTS_SUPPORT_RING_WALK_H
#define TESTS_SUPPORT_RING_WALK_H

#include "support/ep_pes.h"
#include "unfence/ring.h"

/* Each returns true if all went well. */
int ring_walk_rotations(ep_pe *pe, uint64_t seed, int rounds); /* one ring, some slots, causal and other routes, one team order */
int ring_walk_streams(ep_pe *pe, uint64_t seed,
                      int blocks); /* both directions at once, without waiting where nothing is to be done */
int ring_walk_sums(ep_pe *pe, uint64_t seed, int rounds); /* values that travel all round, are added to and come home (case C7) */
int ring_walk_tiles(ep_pe *pe, uint64_t seed, int steps); /* gather and reduce-scatter by tiles, shares that differ */
/* All of them, in sizes fit for a property test. */
int ring_walk(ep_pe *pe, uint64_t seed);

#endif
