/* memory.c - where the model's own memory comes from, and how bytes get from one owner's memory to another's.
 *
 * Alone in a process it is malloc and memcpy. A shared model (uf_model_host) asks its host, which knows how processes reach each other. */
#include "efa_model/internal.h"
#include <stdlib.h>
#include <string.h>

void *uf_model_alloc(uf_model *m, size_t n, size_t bytes)
{
    if (n && bytes > SIZE_MAX / 2 / n)
        return NULL;
    bytes = (n * bytes + 127) / 128 * 128;
    bytes = bytes ? bytes : 128;
    if (m->host)
        return m->host->resize(m->host->arg, NULL, bytes);
    void *p = aligned_alloc(128, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void *uf_model_resize(uf_model *m, void *p, size_t bytes)
{
    return m->host ? m->host->resize(m->host->arg, p, bytes) : realloc(p, bytes);
}

void uf_model_release(uf_model *m, void *p)
{
    if (!m->host)
        free(p);
    else if (p)
        m->host->release(m->host->arg, p);
}

static bool is_here(const uf_model *m, span s)
{
    return !m->host || s.owner == 0 || s.owner == m->host->owner;
}

bool uf_model_copy(uf_model *m, span to, span from, size_t bytes)
{
    m->stats.copies++;
    if (is_here(m, to) && is_here(m, from)) {
        memmove(to.at, from.at, bytes);
        return true;
    }
    return m->host->copy(m->host->arg, to.owner, to.at, from.owner, from.at, bytes);
}

const unsigned char *uf_model_here(uf_model *m, span from, size_t bytes, unsigned char *room)
{
    if (is_here(m, from))
        return from.at;
    return uf_model_copy(m, (span){room, 0}, from, bytes) ? room : NULL;
}
