/* driver.c - finding the CUDA driver: once a process, completely or not at all, and with a sentence that says why not.
 *
 * pthread_once makes it safe among threads and (in glibc) in a child that was forked in the middle. The library's name comes from the
 * first caller's settings. What fails here is remembered: a driver that is absent now will not be looked for at every call. */
#include "cuda/driver.h"
#include "base/error.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OLDEST = 12000 };

typedef CUresult(CUDAAPI *find_function)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

uf_cuda_driver uf_cuda;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local const char *wanted; /* library name, from uf_cuda_available to load */
static bool usable;
static pid_t owner; /* who initialised */
static char reason[640];

static const char *library_of(const uf_settings *settings)
{
    const char *name = settings->text[UF_SET_CUDA_LIBRARY];
    return name[0] ? name : "libcuda.so.1";
}

static const char *name_of(CUresult result)
{
    const char *name = NULL;
    return uf_cuda.cuGetErrorName && uf_cuda.cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown error";
}

static bool too_old(void *library, const char *what)
{
    int version = 0;
    void *symbol = dlsym(library, "cuDriverGetVersion");
    CUresult(CUDAAPI * get_version)(int *);
    memcpy(&get_version, &symbol, sizeof symbol); /* a pointer to data is no pointer to a function in ISO C */
    if (symbol)
        get_version(&version);
    snprintf(reason, sizeof reason,
             "the CUDA driver %s is too old: it supports CUDA %d.%d and has no %s; a driver for CUDA %d.%d or later is needed",
             wanted, version / 1000, version % 1000 / 10, what, OLDEST / 1000, OLDEST % 1000 / 10);
    return false;
}

static bool fill_table(void *library)
{
    find_function find;
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (!symbol)
        return too_old(library, "cuGetProcAddress_v2");
    memcpy(&find, &symbol, sizeof symbol);
#define UF_CUDA_FUNCTION(name, since)          {#name, since, &uf_cuda.name},
#define UF_CUDA_FUNCTION_AS(type, name, since) {#name, since, &uf_cuda.name},
    const struct {
        const char *name;
        int since;
        void *slot;
    } functions[] = {
#include "cuda/functions.def"
    };
#undef UF_CUDA_FUNCTION
#undef UF_CUDA_FUNCTION_AS
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        CUdriverProcAddressQueryResult status;
        symbol = NULL;
        if (find(functions[i].name, &symbol, functions[i].since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != CUDA_SUCCESS ||
            !symbol)
            return too_old(library, functions[i].name);
        memcpy(functions[i].slot, &symbol, sizeof symbol);
    }
    return true;
}

static bool initialise(void)
{
    int version = 0, n = 0;
    CUresult rc = uf_cuda.cuInit(0);
    if (rc == CUDA_SUCCESS)
        rc = uf_cuda.cuDriverGetVersion(&version);
    if (rc == CUDA_SUCCESS)
        rc = uf_cuda.cuDeviceGetCount(&n);
    owner = getpid();
    if (rc == CUDA_ERROR_NO_DEVICE || (rc == CUDA_SUCCESS && n == 0))
        snprintf(reason, sizeof reason,
                 "there is a CUDA driver (%s), but no GPU that this process may use (CUDA_VISIBLE_DEVICES?)", wanted);
    else if (rc != CUDA_SUCCESS)
        snprintf(reason, sizeof reason, "the CUDA driver %s does not start: %s (cuInit); does the kernel module fit the library?",
                 wanted, name_of(rc));
    else
        snprintf(reason, sizeof reason, "CUDA driver %s for CUDA %d.%d, %d GPU%s", wanted, version / 1000, version % 1000 / 10, n,
                 n == 1 ? "" : "s");
    return rc == CUDA_SUCCESS && n > 0;
}

static void load(void)
{
    void *library = dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "there is no CUDA driver here: %s", dlerror());
        return;
    }
    /* A driver that has been initialised keeps threads: it stays. */
    usable = fill_table(library) && initialise();
}

bool uf_cuda_available(const uf_settings *settings, const char **why)
{
    wanted = library_of(settings);
    pthread_once(&once, load);
    *why = reason;
    if (usable && owner != getpid()) {
        *why = "CUDA was initialised before this process was forked, and a child cannot use it: fork before the first use of a "
               "GPU, or "
               "start PEs as programs of their own";
        return false;
    }
    return usable;
}

bool uf_cuda_in_process(const uf_settings *settings)
{
    void *library = dlopen(library_of(settings), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

/* ---------------------------------------------------------------- failures */

static int code_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return UF_ENOMEM;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        return UF_EUNSUPPORTED;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
        return UF_EINVAL;
    default:
        return UF_ESYSTEM;
    }
}

static const char *remedy_of(CUresult result)
{
    if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        return "; a CUDA graph is being captured, and this is not allowed in it: do it before the capture begins";
    if (result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED)
        return "; was this process forked after CUDA was initialised, or is it at its end?";
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT)
        return "; a stream must live, and belong to the primary context of the GPU that the world uses";
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED || result == CUDA_ERROR_ECC_UNCORRECTABLE)
        return "; an earlier operation of this process broke its CUDA context, which cannot be mended";
    return "";
}

int uf_cuda_fail(CUresult result, const char *call, const char *format, ...)
{
    char what[512];
    const char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    uf_cuda.cuGetErrorString(result, &text);
    return uf_fail(code_of(result), "%s: %s said %s (%s)%s", what, call, name_of(result), text ? text : "no text",
                   remedy_of(result));
}
