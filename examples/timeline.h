/* timeline.h - what each PE did when, as a file that Perfetto and chrome://tracing show.
 *
 * A PE is a process there, with four rows: compute, puts, signals, waits. A put's bar goes from its start to the moment at which the receiver saw its signal
 * (which the receiver tells; so clocks must be common: one host, or hosts in step), an arrow leads from put to signal. */
#ifndef TIMELINE_H
#define TIMELINE_H

#include <stddef.h>
#include <stdint.h>

typedef enum timeline_row { TIMELINE_COMPUTE = 0, TIMELINE_PUT = 1, TIMELINE_SIGNAL = 2, TIMELINE_WAIT = 3 } timeline_row;

typedef struct timeline_event {
    uint64_t start, end;     /* nanoseconds; of a put, the end of the call */
    int16_t row, layer, hop; /* of timeline_row */
    int16_t origin;          /* whose block */
    int16_t pass;            /* 0 forward, 1 backward, 2 sums of gradients */
    int16_t peer;            /* puts: to; signals: from */
    uint32_t bytes;
} timeline_event;

typedef struct timeline {
    timeline_event *events;
    size_t n, room; /* events that do not fit are not kept */
} timeline;

uint64_t timeline_now(void);
/* Adds an event from `start` to now. */
void timeline_add(timeline *t, timeline_row row, uint64_t start, timeline_event like);
/* Writes what all PEs kept: 0, or -1 and errno. */
int timeline_write(const char *path, const timeline *pes, int n_pes);

#endif
