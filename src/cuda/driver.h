/* driver.h - within this room: the CUDA driver as a table of functions, found at run time.
 *
 * The library links nothing of CUDA. libcuda is opened at the first need, its functions are asked for one by one in the form that this
 * build knows (functions.def), and the table is complete or unusable as a whole: no caller looks for holes in it. The table is
 * written once a process and read-only afterwards. A child of fork cannot use what its parent has initialised: it is refused. */
#ifndef UF_CUDA_DRIVER_H
#define UF_CUDA_DRIVER_H

#include "cuda/gpu.h"
#include <cuda.h>

/* The form of 11.3: without the edges of 12.3. */
typedef CUresult(CUDAAPI *uf_cuda_get_capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
                                                    const CUgraphNode **, size_t *);

typedef struct uf_cuda_driver {
#define UF_CUDA_FUNCTION(name, since)          __typeof__(&name) name;
#define UF_CUDA_FUNCTION_AS(type, name, since) type name;
#include "cuda/functions.def"
#undef UF_CUDA_FUNCTION
#undef UF_CUDA_FUNCTION_AS
} uf_cuda_driver;

/* Valid after uf_cuda_available has said true. */
extern uf_cuda_driver uf_cuda;

/* Makes the sentence "<what>: cuMemCreate said CUDA_ERROR_OUT_OF_MEMORY (out of memory)" and returns the UF_E* code that fits. */
int uf_cuda_fail(CUresult result, const char *call, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* One PE's use of a GPU: its primary context, and a stream of our own that no stream of the program waits for. */
struct uf_cuda_device {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    uf_cuda_facts facts;
};

/* What the heap's memory is made of on a GPU. */
CUmemAllocationProp uf_cuda_heap_memory(const uf_cuda_facts *f, CUdevice device);

/* Between enter and leave the thread's current context is the device's, and a capture under way elsewhere is not disturbed by what we do. */
typedef struct uf_cuda_scope {
    CUstreamCaptureMode mode;
} uf_cuda_scope;
int uf_cuda_enter(const uf_cuda_device *d, uf_cuda_scope *scope);
void uf_cuda_leave(const uf_cuda_scope *scope);
/* Inside a scope: waits until everything given to the device's own stream is done. */
int uf_cuda_drain(const uf_cuda_device *d, const char *what);

#endif
