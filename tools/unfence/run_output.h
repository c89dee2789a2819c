/* run_output.h - the output of many processes on two streams: whole lines, each with its PE's number in front.
 *
 * A sink is where bytes go in the end; it never blocks the job: what does not fit now waits in memory, and whoever feeds it stops reading when
 * run_sink_full says so. A source is one stream of one PE, cut into lines. A line that was overwritten with carriage returns
 * (a progress bar) is shown as it looked last. */
#ifndef UNFENCE_TOOL_RUN_OUTPUT_H
#define UNFENCE_TOOL_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#define RUN_LAST_BYTES 512

typedef struct run_sink {
    int fd;
    char *data;
    size_t used, capacity;
    bool closed; /* nobody reads any more; what comes is dropped */
} run_sink;

void run_sink_free(run_sink *sink);
bool run_sink_full(const run_sink *sink);
/* Writes what can be written without blocking. */
void run_sink_flush(run_sink *sink);
/* The same until it is empty or nothing moved for `ms` milliseconds. */
void run_sink_drain(run_sink *sink, int ms);

typedef struct run_source {
    int fd;     /* read end, -1 once closed */
    int log_fd; /* of --pe-log, or -1 */
    bool raw;   /* bytes as they are: no lines, no prefix */
    run_sink *to;
    char prefix[16];
    char *line; /* the unfinished one */
    size_t used, capacity;
    char last[RUN_LAST_BYTES]; /* the last line that was not empty, for the message about a failure */
} run_source;

void run_source_init(run_source *source, int fd, int log_fd, int pe, bool raw, run_sink *to);
/* Takes bytes of the stream. */
void run_source_feed(run_source *source, const char *bytes, size_t n);
/* Reads what is there: false at the end of the stream, which is then closed and its last line written. */
bool run_source_read(run_source *source);
/* Ends the stream whatever is still open at its other end. */
void run_source_close(run_source *source);

#endif
