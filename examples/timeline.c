/* timeline.c - see timeline.h. */
#include "timeline.h"
#include <stdio.h>
#include <time.h>

static const char *const rows[] = {"compute", "puts", "signals", "waits"};
static const char *const passes[] = {"forward", "backward", "gradients"};

uint64_t timeline_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void timeline_add(timeline *t, timeline_row row, uint64_t start, timeline_event like)
{
    like.row = (int16_t)row;
    like.start = start;
    like.end = timeline_now();
    if (t->n < t->room)
        t->events[t->n++] = like;
}

/* The signal that tells of a put: at its receiver, of the same layer, pass and hop. */
static const timeline_event *signal_of(const timeline *pes, int from, const timeline_event *put)
{
    const timeline *to = &pes[put->peer];
    for (size_t i = 0; i < to->n; i++) {
        const timeline_event *e = &to->events[i];
        if (e->row == TIMELINE_SIGNAL && e->peer == from && e->layer == put->layer && e->pass == put->pass &&
            e->hop == put->hop + 1)
            return e;
    }
    return NULL;
}

static void write_event(FILE *f, const timeline *pes, int pe, const timeline_event *e, uint64_t zero, size_t *id)
{
    const timeline_event *seen = e->row == TIMELINE_PUT ? signal_of(pes, pe, e) : NULL;
    uint64_t end = seen && seen->start > e->end ? seen->start : e->end;
    double at = (double)(e->start - zero) / 1e3, length = (double)(end - e->start) / 1e3;
    fprintf(f,
            ",\n{\"name\":\"%s %s %d/%d\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{"
            "\"layer\":%d,\"hop\":%d,\"block of PE\":%d,\"peer\":%d,\"bytes\":%u}}",
            rows[e->row], passes[e->pass], e->layer, e->hop, rows[e->row], pe, e->row, at, length, e->layer, e->hop, e->origin,
            e->peer, e->bytes);
    if (!seen)
        return;
    fprintf(f,
            ",\n{\"name\":\"signal\",\"cat\":\"flow\",\"ph\":\"s\",\"id\":%zu,\"pid\":%d,\"tid\":%d,\"ts\":%.3f}"
            ",\n{\"name\":\"signal\",\"cat\":\"flow\",\"ph\":\"f\",\"bp\":\"e\",\"id\":%zu,\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
            *id, pe, TIMELINE_PUT, at, *id, e->peer, TIMELINE_SIGNAL, (double)(seen->start - zero) / 1e3);
    ++*id;
}

int timeline_write(const char *path, const timeline *pes, int n_pes)
{
    FILE *f = fopen(path, "w");
    uint64_t zero = UINT64_MAX;
    size_t id = 1;
    if (!f)
        return -1;
    for (int pe = 0; pe < n_pes; pe++)
        for (size_t i = 0; i < pes[pe].n; i++)
            zero = pes[pe].events[i].start < zero ? pes[pe].events[i].start : zero;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"name\":\"ring "
          "attention\",\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":0,\"ts\":0}",
          f);
    for (int pe = 0; pe < n_pes; pe++) {
        fprintf(f, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"PE %d\"}}", pe, pe);
        for (int row = 0; row < 4; row++)
            fprintf(f, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", pe, row,
                    rows[row]);
        for (size_t i = 0; i < pes[pe].n; i++)
            write_event(f, pes, pe, &pes[pe].events[i], zero, &id);
    }
    fputs("\n]}\n", f);
    int wrong = ferror(f);
    return fclose(f) || wrong ? -1 : 0;
}
