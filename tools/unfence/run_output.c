/* run_output.c - lines of many PEs become one stream. No process is known here; memory that fails costs output, never the job. */
#include "run_output.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINK_FULL  (1u << 20) /* bytes that wait for a slow reader before the PEs must wait too */
#define LINE_MAX_B (1u << 20) /* a longer line is cut in two */
#define WRITE_MAX  4096       /* a pipe that poll calls writable takes that much without blocking */

static bool reserve(char **data, size_t *capacity, size_t wanted)
{
    if (wanted <= *capacity)
        return true;
    size_t size = *capacity ? *capacity : 256;
    while (size < wanted)
        size *= 2;
    char *grown = realloc(*data, size);
    if (!grown)
        return false;
    *data = grown;
    *capacity = size;
    return true;
}

/* ---------------------------------------------------------------- sinks */

static void sink_put(run_sink *sink, const char *bytes, size_t n)
{
    if (sink->closed || !n || !reserve(&sink->data, &sink->capacity, sink->used + n))
        return;
    memcpy(sink->data + sink->used, bytes, n);
    sink->used += n;
}

void run_sink_free(run_sink *sink)
{
    free(sink->data);
    *sink = (run_sink){.fd = -1};
}

bool run_sink_full(const run_sink *sink)
{
    return sink->used >= SINK_FULL;
}

void run_sink_flush(run_sink *sink)
{
    size_t sent = 0;
    while (sent < sink->used) {
        struct pollfd p = {.fd = sink->fd, .events = POLLOUT};
        if (poll(&p, 1, 0) <= 0)
            break;
        size_t left = sink->used - sent;
        ssize_t n = write(sink->fd, sink->data + sent, left < WRITE_MAX ? left : WRITE_MAX);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            sink->closed = true;
            sent = sink->used;
            break;
        }
        sent += (size_t)n;
    }
    sink->used -= sent;
    if (sent && sink->used)
        memmove(sink->data, sink->data + sent, sink->used);
}

void run_sink_drain(run_sink *sink, int ms)
{
    struct pollfd p = {.fd = sink->fd, .events = POLLOUT};
    while (sink->used && poll(&p, 1, ms) > 0)
        run_sink_flush(sink);
}

/* ---------------------------------------------------------------- sources */

void run_source_init(run_source *source, int fd, int log_fd, int pe, bool raw, run_sink *to)
{
    *source = (run_source){.fd = fd, .log_fd = log_fd, .raw = raw, .to = to};
    if (!raw)
        snprintf(source->prefix, sizeof source->prefix, "[%d] ", pe);
}

/* What a terminal would show of line[0..n): the part after the last carriage return that something follows. */
static const char *visible(const char *line, size_t *n)
{
    while (*n && line[*n - 1] == '\r')
        --*n;
    const char *back = memrchr(line, '\r', *n);
    if (!back)
        return line;
    *n -= (size_t)(back + 1 - line);
    return back + 1;
}

static void keep_last(run_source *source, const char *text, size_t n)
{
    size_t blank = 0;
    while (blank < n && (text[blank] == ' ' || text[blank] == '\t'))
        blank++;
    if (blank == n)
        return;
    n = n < sizeof source->last - 1 ? n : sizeof source->last - 1;
    memcpy(source->last, text, n);
    source->last[n] = 0;
}

static void line_end(run_source *source)
{
    size_t n = source->used;
    const char *text = n ? visible(source->line, &n) : "";
    keep_last(source, text, n);
    if (!source->raw) {
        sink_put(source->to, source->prefix, strlen(source->prefix));
        sink_put(source->to, text, n);
        sink_put(source->to, "\n", 1);
    }
    source->used = 0;
}

static void line_add(run_source *source, const char *bytes, size_t n)
{
    while (n) {
        size_t take = LINE_MAX_B - source->used < n ? LINE_MAX_B - source->used : n;
        if (!reserve(&source->line, &source->capacity, source->used + take))
            return;
        memcpy(source->line + source->used, bytes, take);
        source->used += take;
        bytes += take;
        n -= take;
        /* A progress bar that never ends its line must not fill the memory: only what shows is kept. */
        if (source->used == LINE_MAX_B) {
            size_t shown = source->used;
            const char *text = visible(source->line, &shown);
            if (shown == source->used || shown > LINE_MAX_B / 2) {
                line_end(source);
            } else {
                memmove(source->line, text, shown);
                source->used = shown;
            }
        }
    }
}

static void log_write(run_source *source, const char *bytes, size_t n)
{
    while (source->log_fd >= 0 && n) {
        ssize_t done = write(source->log_fd, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fprintf(stderr, "unfence: the log of a PE ends here: %s\n", strerror(errno));
            close(source->log_fd);
            source->log_fd = -1;
            return;
        }
        bytes += done;
        n -= (size_t)done;
    }
}

void run_source_feed(run_source *source, const char *bytes, size_t n)
{
    log_write(source, bytes, n);
    if (source->raw)
        sink_put(source->to, bytes, n);
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        line_add(source, bytes, part);
        if (!end)
            return;
        line_end(source);
        bytes = end + 1;
        n -= part + 1;
    }
}

void run_source_close(run_source *source)
{
    if (source->fd < 0)
        return;
    if (source->used)
        line_end(source); /* an unfinished line gets its end, so that the next one begins where lines begin */
    close(source->fd);
    if (source->log_fd >= 0)
        close(source->log_fd);
    free(source->line);
    source->line = NULL;
    source->used = source->capacity = 0;
    source->fd = source->log_fd = -1;
}

bool run_source_read(run_source *source)
{
    char bytes[16384];
    while (source->fd >= 0) {
        ssize_t n = read(source->fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            break;
        run_source_feed(source, bytes, (size_t)n);
        if ((size_t)n < sizeof bytes || run_sink_full(source->to))
            return true;
    }
    run_source_close(source);
    return false;
}
