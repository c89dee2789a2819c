/* command_rig.cuh - command queues between kernels and the library's own consumer, without a network and without the rest of a world.
 *
 * Slots and reports lie in pinned host memory, what producers share in GPU memory: as src/cuda places them. Engines have no fabric: every
 * command is near, its target a word in host memory, so that whatever comes out of a ring is seen by `resolve`, which hands it
 * to the test's judge. A consumer thread an engine makes steps until it is stopped. */
#ifndef UNFENCE_TESTS_GPU_COMMAND_RIG_CUH
#define UNFENCE_TESTS_GPU_COMMAND_RIG_CUH

#include "unfence/device_queue.cuh"
extern "C" {
#include "base/error.h"
#include "engine/queues.h"
}
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#define RIG_CUDA(call) rig_cuda((call), #call, __LINE__)

static inline void rig_cuda(cudaError_t e, const char *call, int line)
{
    if (e == cudaSuccess)
        return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorString(e));
    exit(2);
}

static inline void rig_ok(int rc, const char *what)
{
    if (rc == 0)
        return;
    printf("%s: %s\n", what, uf_error_message());
    exit(2);
}

template <class T> static T *rig_pinned(size_t n)
{
    void *p;
    RIG_CUDA(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    memset(p, 0, n * sizeof(T));
    return (T *)p;
}

static inline int rig_alloc(void *arg, uf_command_place place, const void *image, size_t bytes, void **host, void **device)
{
    (void)arg;
    if (place == UF_COMMAND_LOCAL) {
        *host = NULL;
        RIG_CUDA(cudaMalloc(device, bytes));
        RIG_CUDA(cudaMemcpy(*device, image, bytes, cudaMemcpyHostToDevice));
        return 0;
    }
    RIG_CUDA(cudaHostAlloc(host, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    memcpy(*host, image, bytes);
    RIG_CUDA(cudaHostGetDevicePointer(device, *host, 0));
    return 0;
}

static inline void rig_free(void *arg, uf_command_place place, void *host, void *device, size_t bytes)
{
    (void)arg, (void)bytes;
    RIG_CUDA(place == UF_COMMAND_LOCAL ? cudaFree(device) : cudaFreeHost(host));
}

/* One endpoint and its queue. Consumers side by side count in their own lines. */
struct alignas(128) rig {
    uf_engine *engine; /* its own, or that of the rig it was opened beside */
    bool beside;
    uf_order_ctx ctx;
    uf_command_queue *queue;
    ufd_queue ring; /* to be given to kernels by value */
    std::thread consumer;
    std::atomic<bool> stop;
    std::atomic<int> world; /* what `sound` says */
    void (*judge)(rig *r, const uf_command *c);
    std::vector<uint32_t> next; /* of each producer: the number of its next command */
    uint64_t faults, judged;
};

static inline int rig_resolve(void *arg, const uf_command *c, uf_command_way *way)
{
    rig *r = (rig *)arg;
    if (r->judge)
        r->judge(r, c);
    r->judged++;
    way->op.bytes = 0; /* the judge has read the source */
    way->word = (void *)c->word;
    return 0;
}

static inline uint64_t rig_apply(void *arg, void *word, uint32_t op, uint32_t width, uint64_t operand, uint64_t compare)
{
    (void)arg, (void)width, (void)compare;
    if (op == UF_ATOMIC_SET) {
        __atomic_store_n((uint64_t *)word, operand, __ATOMIC_RELEASE);
        return 0;
    }
    return __atomic_fetch_add((uint64_t *)word, operand, __ATOMIC_ACQ_REL);
}

static inline int rig_sound(void *arg)
{
    int world = ((rig *)arg)->world.load(std::memory_order_relaxed);
    return world ? uf_fail(world, "the world has ended") : 0;
}

static inline void rig_failed(void *arg, uint32_t peer, int status)
{
    (void)arg, (void)peer, (void)status;
}

static inline void rig_tick(void *arg, uint64_t now)
{
    (void)arg, (void)now;
}

static inline int rig_wait(void *arg, uint32_t round, uint64_t deadline)
{
    (void)arg, (void)round, (void)deadline;
    return 0;
}

static inline void rig_queue(rig *r, uint32_t shift, uint64_t first, uint64_t timeout_ns)
{
    r->ctx.fence_epoch = 0;
    r->judge = NULL;
    r->faults = r->judged = 0;
    r->stop = false;
    r->world = 0;
    uf_command_memory memory = {NULL, rig_alloc, rig_free, NULL};
    uf_command_edges edges = {r, rig_resolve, rig_apply, rig_sound};
    uf_command_params queue = {shift, 256, timeout_ns, first, &r->ctx, &memory, &edges};
    rig_ok(uf_command_queue_create(r->engine, &queue, &r->queue), "queue");
    r->ring = *uf_command_queue_ring(r->queue);
}

static inline void rig_open(rig *r, uint32_t shift, uint64_t first, uint64_t timeout_ns)
{
    static uf_settings settings;
    rig_ok(uf_settings_load(&settings), "settings");
    uf_engine_params params = {};
    params.settings = &settings;
    params.n_pes = 4;
    params.driver = &uf_driver_threads;
    params.host = {r, NULL, NULL, rig_failed, rig_tick, rig_wait};
    params.local_pes = 1;
    rig_ok(uf_engine_create(&params, &r->engine), "engine");
    r->beside = false;
    rig_queue(r, shift, first, timeout_ns);
}

/* One more queue of `owner`'s endpoint, served by the owner's consumer. To be closed before the owner. */
static inline void rig_open_beside(rig *r, const rig *owner, uint32_t shift, uint64_t first, uint64_t timeout_ns)
{
    r->engine = owner->engine;
    r->beside = true;
    rig_queue(r, shift, first, timeout_ns);
}

static inline void rig_start(rig *r)
{
    r->consumer = std::thread([r] {
        while (!r->stop.load(std::memory_order_relaxed))
            uf_engine_poll(r->engine);
    });
}

static inline void rig_stop(rig *r)
{
    if (!r->consumer.joinable())
        return;
    r->stop = true;
    r->consumer.join();
    r->stop = false;
}

static inline void rig_close(rig *r)
{
    rig_stop(r);
    uf_command_queue_destroy(r->queue);
    if (!r->beside)
        uf_engine_destroy(r->engine);
}

#endif
