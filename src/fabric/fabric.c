/* fabric.c - the table of networks compiled in. A new fabric is a folder, an option of the build, and a line
 * here. */
#include "fabric/fabric.h"

#include <strings.h>

#ifdef UNFENCE_WITH_OFI
extern const struct uf_fabric_ops uf_fabric_ofi;
#endif
extern const struct uf_fabric_ops uf_fabric_efa;

/* In order of preference; the NULL at the end also keeps the table from being empty. */
static const struct uf_fabric_ops *const fabrics[] = {
#ifdef UNFENCE_WITH_OFI
    &uf_fabric_ofi,
#endif
    &uf_fabric_efa,
    NULL,
};

const struct uf_fabric_ops *uf_fabric_find(const char *name)
{
    for (const struct uf_fabric_ops *const *fabric = fabrics; *fabric; fabric++)
        if (strcasecmp((*fabric)->name, name) == 0)
            return *fabric;
    return NULL;
}

const struct uf_fabric_ops *const *uf_fabric_all(void)
{
    return fabrics;
}
