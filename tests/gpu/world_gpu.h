/* world_gpu.h - the promises of world_gpu_streams.c, for the list in world_gpu.c. */
#ifndef TESTS_GPU_WORLD_GPU_H
#define TESTS_GPU_WORLD_GPU_H

#include "crowd.h"

bool on_stream_signals_follow_their_bytes(pe *p);
bool streams_and_hosts_signal_each_other(pe *p);
bool barriers_on_streams_hold_until_all_have_come(pe *p);
bool a_captured_exchange_is_right_at_each_of_1000_replays(pe *p);
bool a_captured_barrier_is_right_at_each_replay(pe *p);
bool allocating_while_capturing_is_refused_and_said(pe *p);
bool an_abort_lets_streams_go_and_tells_kernels(pe *p);

#endif
