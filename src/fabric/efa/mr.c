/* mr.c - registrations: one of the device for each rail. Keys are the device's, remote addresses virtual ones. */
#include "fabric/efa/efa.h"
#include <stdlib.h>

int uf_efa_fabric_mr_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **out)
{
    uf_efa *efa = (uf_efa *)f;
    if (!ptr || !bytes)
        return uf_fail(UF_EINVAL, "PE %d: a registration needs a buffer (address %p, %zu bytes)", efa->pe, ptr, bytes);
    uf_mr *mr = calloc(1, sizeof *mr + efa->n_rails * sizeof mr->rail[0]);
    if (!mr)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to note a registration", efa->pe);
    mr->base = (uint64_t)(uintptr_t)ptr;
    mr->link = &efa->mrs;
    mr->next = efa->mrs;
    if (mr->next)
        mr->next->link = &mr->next;
    efa->mrs = mr;
    unsigned access = UF_EFA_ACCESS_LOCAL | (remote ? UF_EFA_ACCESS_REMOTE_READ | UF_EFA_ACCESS_REMOTE_WRITE : 0);
    for (uint32_t i = 0; i < efa->n_rails; i++) {
        int rc = efa->device->ops->mr_register(efa->device, i, ptr, bytes, access, &mr->rail[i].mr, &mr->rail[i].lkey,
                                               &mr->rail[i].rkey);
        if (rc) {
            uf_efa_fabric_mr_close(f, mr);
            return rc;
        }
        mr->n_rails = i + 1;
    }
    *out = mr;
    return UF_OK;
}

void uf_efa_fabric_mr_close(uf_fabric *f, uf_mr *mr)
{
    uf_efa *efa = (uf_efa *)f;
    if (!mr)
        return;
    *mr->link = mr->next;
    if (mr->next)
        mr->next->link = mr->link;
    for (uint32_t i = 0; i < mr->n_rails; i++)
        efa->device->ops->mr_close(efa->device, mr->rail[i].mr);
    free(mr);
}

void uf_efa_fabric_mr_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key)
{
    *key = (uf_fabric_key){.key = mr->rail[rail].rkey, .base = mr->base};
}

uint64_t uf_efa_fabric_mr_desc(const uf_mr *mr, uint32_t rail)
{
    return mr->rail[rail].lkey;
}
