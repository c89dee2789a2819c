/* mr.c - registrations: one libfabric region per rail, as the domain's mr_mode asks.
 *
 * Buffers that are only local are registered where the provider needs descriptors (FI_MR_LOCAL) and cost nothing elsewhere. Keys
 * are the provider's (FI_MR_PROV_KEY) or a counter of ours, never used twice in a fabric's life. */
#include "fabric/ofi/ofi.h"
#include <stdlib.h>

static void unlink_mr(uf_mr *mr)
{
    *mr->link = mr->next;
    if (mr->next)
        mr->next->link = mr->link;
}

int uf_ofi_mr_rail(uf_ofi *ofi, uint32_t index, void *ptr, size_t bytes, bool remote, struct fid_mr **mr)
{
    uf_ofi_rail *rail = &ofi->rails[index];
    const struct fi_domain_attr *attr = rail->info->domain_attr;
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | (remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    uint64_t key = attr->mr_mode & FI_MR_PROV_KEY ? 0 : ofi->next_key;
    struct fid_mr *made = NULL;
    int rc = fi_mr_reg(rail->domain, ptr, bytes, access, 0, key, 0, &made, NULL);
    if (rc)
        goto fail;
    if (attr->mr_mode & FI_MR_ENDPOINT) {
        rc = fi_mr_bind(made, &rail->ep->fid, 0);
        if (!rc)
            rc = fi_mr_enable(made);
        if (rc)
            goto fail;
    }
    if (remote && fi_mr_key(made) == FI_KEY_NOTAVAIL) {
        rc = -FI_EKEYREJECTED;
        goto fail;
    }
    *mr = made;
    return UF_OK;
fail:
    if (made)
        fi_close(&made->fid);
    return uf_ofi_fail(rc == -FI_ENOMEM ? UF_ENOMEM : UF_EFABRIC, rc,
                       "PE %d: %zu bytes at %p cannot be registered with provider %s on rail %u", ofi->pe, bytes, ptr,
                       ofi->base.caps.provider, index);
}

int uf_ofi_mr_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **out)
{
    uf_ofi *ofi = (uf_ofi *)f;
    if (!ptr || !bytes)
        return uf_fail(UF_EINVAL, "PE %d: a registration needs a buffer (address %p, %zu bytes)", ofi->pe, ptr, bytes);
    uf_mr *mr = calloc(1, sizeof *mr + ofi->n_rails * sizeof mr->mr[0]);
    if (!mr)
        return uf_fail(UF_ENOMEM, "PE %d: no memory to note a registration", ofi->pe);
    mr->n_rails = ofi->n_rails;
    mr->base = ofi->base.caps.virtual_address ? (uint64_t)(uintptr_t)ptr : 0;
    mr->link = &ofi->mrs;
    mr->next = ofi->mrs;
    if (mr->next)
        mr->next->link = &mr->next;
    ofi->mrs = mr;
    ofi->next_key++;
    for (uint32_t i = 0; i < ofi->n_rails && (remote || ofi->base.caps.needs_desc); i++) {
        int rc = uf_ofi_mr_rail(ofi, i, ptr, bytes, remote, &mr->mr[i]);
        if (rc) {
            uf_ofi_mr_close(f, mr);
            return rc;
        }
    }
    *out = mr;
    return UF_OK;
}

void uf_ofi_mr_close(uf_fabric *f, uf_mr *mr)
{
    (void)f;
    if (!mr)
        return;
    unlink_mr(mr);
    for (uint32_t i = 0; i < mr->n_rails; i++)
        if (mr->mr[i])
            fi_close(&mr->mr[i]->fid);
    free(mr);
}

void uf_ofi_mr_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key)
{
    key->base = mr->base;
    key->key = mr->mr[rail] ? fi_mr_key(mr->mr[rail]) : FI_KEY_NOTAVAIL;
}

uint64_t uf_ofi_mr_desc(const uf_mr *mr, uint32_t rail)
{
    return mr->mr[rail] ? (uint64_t)(uintptr_t)fi_mr_desc(mr->mr[rail]) : 0;
}
