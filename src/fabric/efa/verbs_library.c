/* verbs_library.c - loads libibverbs and libefa and finds every call of the list in verbs_library.h.
 *
 * All or nothing: a table with holes would have to be asked before each call. The two that older rdma-core lacks are the two that
 * give access to the queues, without which this fabric has no use for a device; the sentence says so. */
#include "fabric/efa/verbs_library.h"
#include "base/error.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int open_library(const char *folder, const char *file, int pe, void **handle)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", folder, folder[0] ? "/" : "", file);
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle)
        return UF_OK;
    const char *why = dlerror();
    return uf_fail(UF_EUNSUPPORTED,
                   "PE %d: EFA queues need %s, which cannot be loaded (%s): install rdma-core (Debian: libibverbs1 and "
                   "ibverbs-providers) or "
                   "the EFA installer; UNFENCE_FABRIC=ofi:tcp works without",
                   pe, path, why ? why : "no reason given");
}

static int find(void *handle, const char *library, const char *symbol, int pe, void **address)
{
    *address = dlsym(handle, symbol);
    if (*address)
        return UF_OK;
    return uf_fail(
        UF_EUNSUPPORTED,
        "PE %d: the %s of this host has no %s, through which EFA queues are reached: rdma-core 59 or newer (a current EFA "
        "installer) has it; UNFENCE_FABRIC=ofi:efa works with older ones",
        pe, library, symbol);
}

int uf_verbs_load(const char *folder, int pe, uf_verbs *v)
{
    memset(v, 0, sizeof *v);
    int rc = open_library(folder, "libibverbs.so.1", pe, &v->ibv_handle);
    if (!rc)
        rc = open_library(folder, "libefa.so.1", pe, &v->efadv_handle);
        /* The detour through void * is what POSIX says of dlsym. */
#define UF_VERBS_CALL(library, name, result, arguments)                                                                          \
    if (!rc)                                                                                                                     \
        rc = find(v->library##_handle, #library[0] == 'i' ? "libibverbs" : "libefa", #library "_" #name, pe,                     \
                  (void **)&v->library##_##name##_);
    UF_VERBS_CALLS(UF_VERBS_CALL)
#undef UF_VERBS_CALL
    if (rc)
        uf_verbs_unload(v);
    return rc;
}

void uf_verbs_unload(uf_verbs *v)
{
    if (v->efadv_handle)
        dlclose(v->efadv_handle);
    if (v->ibv_handle)
        dlclose(v->ibv_handle);
    memset(v, 0, sizeof *v);
}
