/* agree.c - PEs compare what they were given before anything collective is done, so that all refuse or none.
 *
 * Symmetric memory is collective over the world: a PE that stopped alone would leave the others in an allocation. So what fails on one PE, or
 * differs between two, is told to all first, with its sentence. */
#include "base/error.h"
#include "ring/private.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct message {
    int64_t rc, n, values[UF_RING_TERMS];
    uint64_t extra;
    char why[192];
} message;

static int compare(const uf_world *w, const char *call, const message *all, const uf_ring_term *terms, size_t n)
{
    for (int pe = 0; pe < w->n_pes; pe++)
        if (all[pe].rc)
            return uf_fail((int)all[pe].rc, "PE %d: %.191s", pe, all[pe].why);
    for (int pe = 0; pe < w->n_pes; pe++)
        for (size_t i = 0; i < n; i++)
            if (all[pe].values[i] != terms[i].value)
                return uf_fail(UF_EMISMATCH, "%s: %s is %lld on PE %d and %lld on PE %d: it must be the same everywhere", call,
                               terms[i].field, (long long)all[pe].values[i], pe, (long long)terms[i].value, w->pe);
    return UF_OK;
}

int uf_ring_agree(uf_world *w, const char *call, int rc, const uf_ring_term *terms, size_t n, uint64_t extra, uint64_t *extras)
{
    message mine = {.rc = rc, .n = (int64_t)n, .extra = extra};
    if (rc)
        snprintf(mine.why, sizeof mine.why, "%s", uf_error_message());
    for (size_t i = 0; i < n; i++)
        mine.values[i] = terms[i].value;
    message *all = malloc((size_t)w->n_pes * sizeof *all);
    if (!all)
        return uf_fail(UF_ENOMEM, "%s: PE %d has no memory for the terms of %d PEs", call, w->pe, w->n_pes);
    pthread_mutex_lock(&w->setup);
    int exchanged = uf_bootstrap_allgather(w->bootstrap, &mine, sizeof mine, all, w->timeout_ns);
    pthread_mutex_unlock(&w->setup);
    if (exchanged)
        rc = exchanged;
    else if (rc)
        uf_error_set(rc, mine.why);
    else
        rc = compare(w, call, all, terms, n);
    for (int pe = 0; !rc && extras && pe < w->n_pes; pe++)
        extras[pe] = all[pe].extra;
    free(all);
    return rc;
}

uint64_t uf_ring_most(const uint64_t *values, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}
