/* modules.c - the device code of the process: each module has a state of its own, which is filled when the GPU is in use.
 *
 * Modules compiled ahead come as nodes of their static initializers, before main and in any order; those compiled at run time as handles of the
 * driver, in which the state is looked up by its name. The driver's library is the one the program has loaded already: nothing
 * here loads it. */
#include "private.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct loaded {
    void *module;
    struct loaded *next;
} loaded;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uf_nvshmem_module *compiled;
static loaded *at_run_time;

static int fill_compiled(const uf_nvshmem_module *m)
{
    if (m->abi != UFD_ABI || m->size != sizeof(uf_nvshmem_state))
        return uf_compat_fail(UF_EMISMATCH,
                              "device code was compiled with other NVSHMEM headers than this library's: compile it again");
    if (m->fill(&uf_compat_here.state))
        return uf_compat_fail(UF_ESYSTEM,
                              "the state of a module of device code could not be written: is it compiled for this GPU?");
    return UF_OK;
}

typedef int (*get_global)(unsigned long long *at, size_t *bytes, void *module, const char *name);
typedef int (*copy_to)(unsigned long long at, const void *from, size_t bytes);
typedef int (*synchronize)(void *stream);

static int fill_loaded(void *module)
{
    const char *name = getenv("UNFENCE_CUDA_LIBRARY");
    void *driver = dlopen(name && name[0] ? name : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver)
        return uf_compat_fail(UF_ESYSTEM, "a module is to be filled, but the program has not loaded the CUDA driver");
    get_global find = (get_global)(uintptr_t)dlsym(driver, "cuModuleGetGlobal_v2");
    copy_to copy = (copy_to)(uintptr_t)dlsym(driver, "cuMemcpyHtoD_v2");
    synchronize arrive = (synchronize)(uintptr_t)dlsym(driver, "cuStreamSynchronize"); /* the copy may return before */
    unsigned long long at = 0;
    size_t bytes = 0;
    int rc = UF_OK;
    if (!find || !copy || !arrive)
        rc = uf_compat_fail(UF_ESYSTEM, "the CUDA driver lacks cuModuleGetGlobal, cuMemcpyHtoD or cuStreamSynchronize");
    else if (find(&at, &bytes, module, "uf_nvshmem_here"))
        rc = uf_compat_fail(
            UF_EINVAL, "the module has no state of NVSHMEM's: compile it with nvshmem.h, for the GPU whose context is current");
    else if (bytes != sizeof(uf_nvshmem_state))
        rc = uf_compat_fail(UF_EMISMATCH,
                            "the module was compiled with other NVSHMEM headers than this library's: compile it again");
    else if (copy(at, &uf_compat_here.state, bytes) || arrive(NULL))
        rc = uf_compat_fail(UF_ESYSTEM, "the state of the module could not be written");
    dlclose(driver);
    return rc;
}

int uf_compat_fill_modules(void)
{
    int rc = UF_OK;
    if (!uf_compat_here.state.world)
        return UF_OK;
    pthread_mutex_lock(&lock);
    for (const uf_nvshmem_module *m = compiled; m && !rc; m = m->next)
        rc = fill_compiled(m);
    for (const loaded *m = at_run_time; m && !rc; m = m->next)
        rc = fill_loaded(m->module);
    pthread_mutex_unlock(&lock);
    return rc;
}

void uf_nvshmem_register(uf_nvshmem_module *module)
{
    pthread_mutex_lock(&lock);
    module->next = compiled;
    compiled = module;
    pthread_mutex_unlock(&lock);
    if (uf_compat_here.state.world) /* a library that the program opened later */
        uf_compat_ok("a module of device code", fill_compiled(module));
}

void uf_nvshmem_unregister(uf_nvshmem_module *module)
{
    pthread_mutex_lock(&lock);
    uf_nvshmem_module **at = &compiled;
    while (*at && *at != module)
        at = &(*at)->next;
    if (*at)
        *at = module->next;
    pthread_mutex_unlock(&lock);
}

int uf_module_init(void *module)
{
    int rc = uf_compat_here.state.world ? fill_loaded(module) : UF_OK;
    if (rc)
        return rc;
    loaded *node = malloc(sizeof *node);
    if (!node)
        return uf_compat_fail(UF_ENOMEM, "no memory to remember a module");
    node->module = module;
    pthread_mutex_lock(&lock);
    node->next = at_run_time;
    at_run_time = node;
    pthread_mutex_unlock(&lock);
    return UF_OK;
}

int uf_module_finish(void *module)
{
    pthread_mutex_lock(&lock);
    loaded **at = &at_run_time;
    while (*at && (*at)->module != module)
        at = &(*at)->next;
    loaded *node = *at;
    if (node)
        *at = node->next;
    pthread_mutex_unlock(&lock);
    free(node);
    return node ? UF_OK : uf_compat_fail(UF_EINVAL, "uf_module_finish was given a module that uf_module_init has not seen");
}

int nvshmemx_cumodule_init(CUmodule module)
{
    return uf_module_init(module);
}

int nvshmemx_cumodule_finalize(CUmodule module)
{
    return uf_module_finish(module);
}
