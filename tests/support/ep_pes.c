/* ep_pes.c - see ep_pes.h. */
#include "support/ep_pes.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct seat {
    ep_pe pe;
    uf_group *group;
    const char *fabric;
    uint64_t timeout_ns;
    void (*body)(ep_pe *pe);
} seat;

void ep_pe_fail(ep_pe *pe, const char *format, ...)
{
    va_list args;
    if (pe->failed++)
        return;
    va_start(args, format);
    vsnprintf(pe->why, sizeof pe->why, format, args);
    va_end(args);
}

int ep_pe_ok(ep_pe *pe, int rc, const char *call)
{
    if (rc)
        ep_pe_fail(pe, "%s: %s: %s", call, uf_error_name(rc), uf_error_message());
    return rc == UF_OK;
}

static void *sit(void *arg)
{
    seat *s = arg;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = s->pe.pe;
    o.n_pes = s->pe.n_pes;
    o.group = s->group;
    o.fabric = s->fabric;
    o.strict = 1;
    o.timeout_ns = s->timeout_ns;
    if (!ep_pe_ok(&s->pe, uf_world_create(&o, &s->pe.world), "uf_world_create"))
        return NULL;
    s->body(&s->pe);
    /* A world that has failed says so again when it ends. */
    int sound = uf_world_status(s->pe.world) == UF_OK, rc = uf_world_destroy(s->pe.world);
    if (sound && !s->pe.failed)
        ep_pe_ok(&s->pe, rc, "uf_world_destroy");
    return NULL;
}

int ep_pes_run(int n_pes, const char *fabric, uint64_t timeout_ns, void (*body)(ep_pe *pe), void *arg)
{
    seat *seats = calloc((size_t)n_pes, sizeof *seats);
    pthread_t *threads = calloc((size_t)n_pes, sizeof *threads);
    uf_group *group = NULL;
    if (!seats || !threads || uf_group_create(n_pes, &group)) {
        free(seats);
        free(threads);
        return -1;
    }
    /* Many heaps in one address space, which some sanitizers make small. No other thread runs yet. */
    setenv("UNFENCE_HEAP_MAX", "4G", 1);
    setenv("UNFENCE_HEAP_SIZE", "4M", 1);
    int failed = 0, started = 0;
    for (; started < n_pes; started++) {
        seats[started] = (seat){.pe = {.pe = started, .n_pes = n_pes, .arg = arg},
                                .group = group,
                                .fabric = fabric,
                                .timeout_ns = timeout_ns,
                                .body = body};
        if (pthread_create(&threads[started], NULL, sit, &seats[started]))
            break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        if (seats[i].pe.failed)
            fprintf(stderr, "PE %d of %d over %s: %s\n", i, n_pes, fabric, seats[i].pe.why);
        failed += seats[i].pe.failed > 0;
    }
    failed += n_pes - started;
    uf_group_destroy(group);
    free(seats);
    free(threads);
    return failed;
}
