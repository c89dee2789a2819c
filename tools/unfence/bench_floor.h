/* bench_floor.h - what the machine itself can do, to hold ours against: lanes without any of our library in them. */
#ifndef UNFENCE_TOOL_BENCH_FLOOR_H
#define UNFENCE_TOOL_BENCH_FLOOR_H

#include "bench.h"

/* Two-cache-line ping-pong between PE 0 and 1 in shared memory: a payload line, then a flag line, each written by one core and
 * read by the other. One step is one way. `arg` is a bench_line_floor, zeroed. */
typedef struct bench_line_floor {
    uint64_t round;
} bench_line_floor;
int bench_floor_line_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter);

/* memcpy of `bytes` over rotating slots. A step is `window` copies, `repeats` times over (0: once). Only PEs below `active` copy, all at once. */
typedef struct bench_copy_floor {
    unsigned char *dst, *src;
    uint64_t bytes, window, repeats, number;
    int active;
    bool stamped; /* write the message number first, as the lanes that it is compared with do */
} bench_copy_floor;
int bench_floor_copy_slice(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter);

/* Bare libfabric between PE 0 and 1, and streams between 2 and 3 and so on at the same time, of an even number of PEs: fi_writedata ping-pong, and
 * streaming with one delivery-complete a window. Objects of its own, none of
 * the library's. Opening returns 1 (and no error) where libfabric or the provider is not here. */
typedef struct bench_ofi_floor bench_ofi_floor;
int bench_floor_ofi_open(bench_pe *b, const char *provider, uint64_t max_bytes, uint64_t window, bench_ofi_floor **floor);
void bench_floor_ofi_close(bench_ofi_floor *floor);
/* Sets what the next slices move and how many of them are a step of a stream (at most those that it was opened with); both PEs. */
void bench_floor_ofi_size(bench_ofi_floor *floor, uint64_t bytes, uint64_t window);
int bench_floor_ofi_ping_pong(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter);
int bench_floor_ofi_stream(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter);

/* "tcp" of "ofi:tcp", NULL for fabrics that are not libfabric. */
const char *bench_ofi_provider(const char *fabric);

#endif
