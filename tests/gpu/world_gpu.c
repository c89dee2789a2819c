/* world_gpu.c - the promises of GPU memory in a world, through the public interface: heap, windows, host operations, what kernels are told, deaths.
 *
 * Runs on GPUs, and without one over tests/support/fake_cuda.c (UNFENCE_CUDA_LIBRARY): it needs no kernel and no nvcc. PEs are processes and
 * threads that share GPU 0, and one per GPU where there are more (crowd.h). The promises of streams and graphs are in world_gpu_streams.c. */
#include "world_gpu.h"
#include "crowd.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- promises: memory */

static bool gpu_memory_is_zero_when_first_handed_out(pe *p)
{
    static _Thread_local unsigned char got[1 << 20];
    void *ptr;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, 1 << 20, 0, &ptr));
    FINE(uf_get(p->ctx, got, ptr, sizeof got, p->me));
    for (size_t i = 0; i < sizeof got; i++)
        HOLD(got[i] == 0);
    HOLD((uintptr_t)ptr % 64 == 0);
    FINE(uf_free(p->world, ptr));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)3 << 20, 0, &ptr));
    HOLD((uintptr_t)ptr % (2 << 20) == 0);
    FINE(uf_free(p->world, ptr));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, 0, 0, &ptr));
    HOLD(ptr == NULL);
    return true;
}

static bool pointers_of_near_peers_are_given(pe *p)
{
    for (int i = 0; i < p->n; i++) {
        void *there = uf_ptr(p->world, p->mine + 100, i);
        HOLD(there != NULL);
        HOLD(i != p->me || there == p->mine + 100);
        HOLD(i == p->me || there != p->mine + 100);
    }
    HOLD(uf_ptr(p->world, p->mine + ((size_t)64 << 30), p->right) == NULL);
    return true;
}

static bool host_puts_reach_gpu_memory_of_peers(pe *p)
{
    static const size_t sizes[] = {1, 8, 13, 4096, 100000, (3 << 20) + 5};
    unsigned char *buffer = malloc(4 << 20);
    bool ok = buffer != NULL;
    for (unsigned s = 0; ok && s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        fill(buffer, n, p->me, s);
        ok = sync_all(p) &&
             (uf_put(p->ctx, p->in + s, buffer, n, p->right) == UF_OK || crowd_broken(p, __LINE__, "put of %zu", n)) &&
             sync_all(p) &&
             (uf_get(p->ctx, buffer, p->in + s, n, p->me) == UF_OK || crowd_broken(p, __LINE__, "get of %zu", n)) &&
             (is(buffer, n, p->left, s) || crowd_broken(p, __LINE__, "wrong bytes of %zu", n));
        /* And from GPU memory to GPU memory, to host memory, and back. */
        fill(buffer, n, p->me, s + 50);
        ok = ok && copy(p, p->mine, buffer, n) && sync_all(p) &&
             (uf_put_nbi(p->ctx, p->in, p->mine, n, p->right) == UF_OK || crowd_broken(p, __LINE__, "GPU put of %zu", n)) &&
             sync_all(p) &&
             (uf_get(p->ctx, buffer, p->in, n, p->right) == UF_OK || crowd_broken(p, __LINE__, "get from a peer of %zu", n)) &&
             (is(buffer, n, p->me, s + 50) || crowd_broken(p, __LINE__, "wrong bytes of %zu from GPU memory", n)) && sync_all(p);
    }
    free(buffer);
    return ok;
}

static bool gets_bring_gpu_memory_of_peers(pe *p)
{
    unsigned char buffer[5000];
    fill(buffer, sizeof buffer, p->me, 3);
    FINE(uf_put(p->ctx, p->mine, buffer, sizeof buffer, p->me));
    if (!sync_all(p))
        return false;
    FINE(uf_get(p->ctx, p->in, p->mine, sizeof buffer, p->left)); /* into GPU memory */
    memset(buffer, 0, sizeof buffer);
    FINE(uf_get_nbi(p->ctx, buffer, p->in, sizeof buffer, p->me));
    FINE(uf_quiet(p->ctx));
    HOLD(is(buffer, sizeof buffer, p->left, 3));
    return sync_all(p);
}

static bool a_signal_in_gpu_memory_follows_its_bytes(pe *p)
{
    unsigned char buffer[3000];
    for (unsigned round = 1; round <= 50; round++) {
        fill(buffer, sizeof buffer, p->me, round);
        FINE(uf_put_signal(p->ctx, p->in, buffer, sizeof buffer, &p->words[0], UF_SIGNAL_SET, round, p->right, UF_WEAK));
        FINE(uf_wait(p->world, &p->words[0], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, buffer, p->in, sizeof buffer, p->me));
        HOLD(is(buffer, sizeof buffer, p->left, round));
        /* The slot is free again when the left one knows it. */
        FINE(uf_signal(p->ctx, &p->words[1], UF_SIGNAL_SET, round, p->left, UF_STRONG));
        FINE(uf_wait(p->world, &p->words[1], UF_EQ, round, 10ull * SECOND));
    }
    HOLD(uf_test(p->world, &p->words[0], UF_EQ, 50) == UF_OK && uf_test(p->world, &p->words[0], UF_GT, 50) == UF_EAGAIN);
    return sync_all(p);
}

static bool a_signal_in_host_memory_follows_its_gpu_bytes(pe *p)
{
    unsigned char buffer[3000];
    for (unsigned round = 1; round <= 50; round++) {
        fill(buffer, sizeof buffer, p->me, round + 7);
        FINE(uf_put_signal(p->ctx, p->in, buffer, sizeof buffer, &p->host_words[0], UF_SIGNAL_ADD, 1, p->right, UF_WEAK));
        FINE(uf_wait(p->world, &p->host_words[0], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, buffer, p->in, sizeof buffer, p->me));
        HOLD(is(buffer, sizeof buffer, p->left, round + 7));
        FINE(uf_signal(p->ctx, &p->host_words[1], UF_SIGNAL_ADD, 1, p->left, UF_WEAK));
        FINE(uf_wait(p->world, &p->host_words[1], UF_GE, round, 10ull * SECOND));
    }
    return sync_all(p);
}

static bool rows_of_a_batch_may_mix_host_and_gpu_memory(pe *p)
{
    unsigned char a[64], b[64];
    void *host;
    FINE(uf_malloc(p->world, 64, 0, &host));
    fill(a, sizeof a, p->me, 1);
    fill(b, sizeof b, p->me, 2);
    if (!copy(p, p->mine, b, sizeof b))
        return false;
    const uf_put_row rows[] = {{p->in, a, sizeof a, NULL, 0, p->right, 0, 0},
                               {host, p->mine, sizeof b, &p->host_words[2], 1, p->right, UF_SIGNAL_ADD, UF_STRONG}};
    size_t done = 0;
    FINE(uf_put_batch(p->ctx, rows, 2, &done));
    HOLD(done == 2);
    FINE(uf_wait(p->world, &p->host_words[2], UF_GE, 1, 10ull * SECOND));
    HOLD(is(host, sizeof b, p->left, 2));
    FINE(uf_get(p->ctx, a, p->in, sizeof a, p->me));
    HOLD(is(a, sizeof a, p->left, 1));
    FINE(uf_free(p->world, host));
    return true;
}

static bool the_gpu_heap_grows_and_reuses(pe *p)
{
    unsigned char buffer[512];
    void *first, *again;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)80 << 20, 0, &first)); /* more than UNFENCE_CUDA_HEAP_SIZE */
    fill(buffer, sizeof buffer, p->me, 11);
    FINE(uf_put(p->ctx, (unsigned char *)first + (70 << 20), buffer, sizeof buffer, p->right));
    if (!sync_all(p))
        return false;
    FINE(uf_get(p->ctx, buffer, (unsigned char *)first + (70 << 20), sizeof buffer, p->me));
    HOLD(is(buffer, sizeof buffer, p->left, 11));
    HOLD(uf_free(p->world, (unsigned char *)first + 64) == UF_EINVAL);
    FINE(uf_free(p->world, first));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)80 << 20, 0, &again));
    HOLD(first == again);
    FINE(uf_free(p->world, again));
    return true;
}

static bool more_gpu_memory_than_there_is_is_refused(pe *p)
{
    void *ptr;
    unsigned char byte = 1;
    int rc = uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)200 << 30, 0, &ptr);
    HOLD(rc == UF_ENOMEM);
    HOLD(strstr(uf_error_message(), "PE") || strstr(uf_error_message(), "GPU"));
    FINE(uf_put(p->ctx, p->in, &byte, 1, p->right)); /* nothing is lost */
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: windows */

static bool window_carries(pe *p, unsigned char *buffer, size_t bytes)
{
    unsigned char host[4000], got[4000];
    uf_window *window;
    FINE(uf_register(p->world, buffer, bytes, &window));
    size_t at = bytes / 2 - sizeof host / 2; /* over the middle, where pieces meet */
    fill(host, sizeof host, p->me, 21);
    FINE(uf_put_signal(p->ctx, buffer + at, host, sizeof host, (uint64_t *)(void *)(buffer + bytes - 8), UF_SIGNAL_SET, 5,
                       p->right, 0));
    FINE(uf_wait(p->world, (uint64_t *)(void *)(buffer + bytes - 8), UF_EQ, 5, 10ull * SECOND));
    if (!copy(p, got, buffer + at, sizeof got))
        return false;
    HOLD(is(got, sizeof got, p->left, 21));
    FINE(uf_get(p->ctx, got, buffer + at, sizeof got, p->right));
    HOLD(is(got, sizeof got, p->me, 21));
    HOLD(uf_window_at(window, 8) == buffer + 8);
    HOLD(uf_ptr(p->world, buffer + 8, p->right) != NULL);
    FINE(uf_unregister(window));
    return true;
}

static bool windows_over_vmm_memory_of_two_mappings_work(pe *p)
{
    CUdeviceptr base;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handles[2];
    int device = p->crowd->device < 0 ? p->me : p->crowd->device;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cu.cuMemAddressReserve(&base, 6 * (size_t)UNIT, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        CUdeviceptr at = base + i * 2 * UNIT;
        DRIVER(cu.cuMemCreate(&handles[i], (i + 1) * 2 * UNIT, &prop, 0));
        DRIVER(cu.cuMemMap(at, (i + 1) * 2 * UNIT, 0, handles[i], 0));
        DRIVER(cu.cuMemSetAccess(at, (i + 1) * 2 * UNIT, &access, 1));
        DRIVER(cu.cuMemRelease(handles[i]));
    }
    /* From within the first mapping over the border into the second: the middle of the window is the border. */
    bool ok = window_carries(p, (unsigned char *)(uintptr_t)base + UNIT, 2 * (size_t)UNIT);
    DRIVER(cu.cuMemUnmap(base, 2 * (size_t)UNIT));
    DRIVER(cu.cuMemUnmap(base + 2 * (size_t)UNIT, 4 * (size_t)UNIT));
    DRIVER(cu.cuMemAddressFree(base, 6 * (size_t)UNIT));
    return ok;
}

static bool windows_over_cudamalloc_memory_work(pe *p)
{
    CUdeviceptr base;
    DRIVER(cu.cuMemAlloc(&base, 4 << 20));
    bool ok = window_carries(p, (unsigned char *)(uintptr_t)base + 4096, 1 << 20) &&
              window_carries(p, (unsigned char *)(uintptr_t)base + (2 << 20), 1 << 20);
    DRIVER(cu.cuMemFree(base));
    return ok;
}

static bool vmm_memory_that_cannot_be_shared_is_refused_on_all(pe *p)
{
    CUdeviceptr base;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handle;
    uf_window *window = NULL;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = p->crowd->device < 0 ? p->me : p->crowd->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cu.cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    DRIVER(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    DRIVER(cu.cuMemMap(base, UNIT, 0, handle, 0));
    DRIVER(cu.cuMemSetAccess(base, UNIT, &access, 1));
    DRIVER(cu.cuMemRelease(handle));
    int rc = uf_register(p->world, (void *)(uintptr_t)base, UNIT, &window);
    if (p->crowd->threads) { /* within a process a handle needs no type */
        HOLD(rc == UF_OK);
        FINE(uf_unregister(window));
    } else {
        HOLD(rc == UF_EUNSUPPORTED);
        HOLD(strstr(uf_error_message(), "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
    }
    DRIVER(cu.cuMemUnmap(base, UNIT));
    DRIVER(cu.cuMemAddressFree(base, UNIT));
    return sync_all(p);
}

static bool windows_of_host_and_gpu_memory_do_not_mix(pe *p)
{
    static unsigned char host[MAX_PES][4096];
    uf_window *window = NULL;
    CUdeviceptr base;
    DRIVER(cu.cuMemAlloc(&base, 4096));
    int rc = uf_register(p->world, p->me == 0 ? (void *)(uintptr_t)base : host[p->me], 4096, &window);
    HOLD(rc == UF_EMISMATCH);
    HOLD(window == NULL);
    DRIVER(cu.cuMemFree(base));
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: refusals */

static bool what_the_host_cannot_do_is_refused(pe *p)
{
    uint64_t old = 0;
    unsigned char byte = 1;
    const uint64_t *list[] = {&p->words[3]};
    const uf_wait_list waits = {list, 1, NULL, UF_EQ, 0, NULL};
    HOLD(uf_signal(p->ctx, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0) == UF_EUNSUPPORTED);
    HOLD(strstr(uf_error_message(), "UF_SIGNAL_ADD"));
    HOLD(uf_put_signal(p->ctx, p->in, &byte, 1, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0) == UF_EUNSUPPORTED);
    HOLD(uf_atomic(p->ctx, UF_ATOMIC_FETCH_ADD, 8, &p->words[3], 1, 0, &old, p->right) == UF_EUNSUPPORTED);
    HOLD(uf_wait_all(p->world, &waits, 0) == UF_EUNSUPPORTED);
    HOLD(uf_signal(p->ctx, (uint64_t *)(void *)((unsigned char *)p->words + 4), UF_SIGNAL_SET, 1, p->right, 0) == UF_EINVAL);
    HOLD(strstr(uf_error_message(), "aligned"));
    HOLD(uf_put(p->ctx, p->in + ((size_t)80 << 30), &byte, 1, p->right) == UF_ERANGE);
    HOLD(uf_broadcast(uf_team_world(p->world), p->in, p->mine, 8, 0) == UF_EUNSUPPORTED);
    HOLD(uf_malloc_on(p->world, 7, 8, 0, (void **)&old) == UF_EINVAL);
    HOLD(uf_put_signal_on_stream(p->ctx, p->in, p->mine, 8, &p->words[3], UF_SIGNAL_ADD, 1, p->right, 0, p->stream) ==
         UF_EUNSUPPORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[3], UF_LT, 1, 0, p->stream) == UF_EUNSUPPORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[3], UF_EQ, 1, 8, p->stream) == UF_EINVAL);
    HOLD(uf_signal_on_stream(p->ctx, &p->words[3], UF_SIGNAL_SET, 1, p->n, 0, p->stream) == UF_ERANGE);
    HOLD(uf_put_on_stream(p->ctx, &byte, p->mine, 1, p->right, p->stream) == UF_ERANGE);
    HOLD(uf_wait(p->world, &p->words[3], UF_EQ, 77, 1000000) == UF_ETIMEDOUT);
    HOLD(strstr(uf_error_message(), "77"));
    return sync_all(p);
}

/* ---------------------------------------------------------------- promises: kernels' view */

static bool kernels_are_told_the_world(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    ufd_peer peers[MAX_PES];
    int32_t status;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w) || !copy(p, peers, w.peers, sizeof *peers * (size_t)p->n))
        return false;
    HOLD(w.abi == UFD_ABI && w.size == sizeof w && w.pe == p->me && w.n_pes == p->n);
    HOLD((uint64_t)(uintptr_t)p->mine >= w.heap && (uint64_t)(uintptr_t)(p->in + (4 << 20)) <= w.heap + w.heap_bytes);
    HOLD((uint64_t)(uintptr_t)p->host_words >= w.host_heap &&
         (uint64_t)(uintptr_t)p->host_words < w.host_heap + w.host_heap_bytes);
    for (int i = 0; i < p->n; i++) {
        HOLD(peers[i].way == UFD_WAY_NEAR);
        HOLD((uintptr_t)p->mine + (uint64_t)peers[i].shift == (uintptr_t)uf_ptr(p->world, p->mine, i));
        HOLD((uintptr_t)p->host_words + (uint64_t)peers[i].host_shift == (uintptr_t)uf_ptr(p->world, p->host_words, i));
    }
    HOLD(w.timeout_ns > 0 && w.barrier && w.scratch && w.error);
    HOLD(w.heap_span >= w.heap_bytes && (uint64_t)(uintptr_t)w.barrier - w.heap < w.heap_bytes);
    ufd_ctx contexts[64];
    HOLD(w.n_ctxs >= 1 && w.n_ctxs <= 64);
    if (!copy(p, contexts, w.ctxs, sizeof *contexts * w.n_ctxs))
        return false;
    for (uint32_t i = 0; i < w.n_ctxs; i++)
        HOLD(contexts[i].abi == UFD_ABI && contexts[i].size == sizeof *contexts && contexts[i].index == i &&
             contexts[i].world == device && contexts[i].peers == w.peers && contexts[i].heap == w.heap &&
             contexts[i].heap_span == w.heap_span);
    memcpy(&status, w.status, sizeof status);
    HOLD(status == 0);
    const struct ufd_world *again;
    FINE(uf_device_world(p->world, &again));
    HOLD(device == again);
    return true;
}

/* The window with that base as kernels would find it; false: they would not. */
static bool find_window(pe *p, const struct ufd_world *device, uint64_t base, ufd_window *found)
{
    static _Thread_local ufd_window all[64];
    ufd_world w;
    if (!copy(p, &w, device, sizeof w) || w.n_windows > 64 || !copy(p, all, w.windows, sizeof *all * w.n_windows))
        return false;
    for (uint32_t i = 0; i < w.n_windows; i++)
        if (all[i].bytes && all[i].base == base) {
            *found = all[i];
            return true;
        }
    return false;
}

static bool kernels_see_windows_come_and_go(pe *p)
{
    const struct ufd_world *device;
    ufd_window seen[3];
    int64_t shifts[MAX_PES];
    uf_window *windows[3];
    CUdeviceptr base;
    FINE(uf_device_world(p->world, &device));
    DRIVER(cu.cuMemAlloc(&base, 6 << 20));
    for (unsigned i = 0; i < 3; i++)
        FINE(uf_register(p->world, (void *)(uintptr_t)(base + i * 65536), 4096 * (i + 1), &windows[i]));
    for (unsigned i = 0; i < 3; i++) {
        unsigned char *at = (unsigned char *)(uintptr_t)(base + i * 65536);
        HOLD(find_window(p, device, (uint64_t)(uintptr_t)at, &seen[i]) && seen[i].bytes == 4096 * (i + 1));
        if (!copy(p, shifts, seen[i].shifts, sizeof *shifts * (size_t)p->n))
            return false;
        for (int other = 0; other < p->n; other++)
            HOLD((uintptr_t)at + (uint64_t)shifts[other] == (uintptr_t)uf_ptr(p->world, at, other));
    }
    FINE(uf_unregister(windows[1]));
    HOLD(!find_window(p, device, base + 65536, &seen[1]) && find_window(p, device, base + 2 * 65536, &seen[2]));
    FINE(uf_register(p->world, (void *)(uintptr_t)(base + 65536), 8192, &windows[1])); /* takes the place that is free */
    HOLD(find_window(p, device, base + 65536, &seen[1]) && seen[1].bytes == 8192);
    for (int i = 0; i < 3; i++)
        FINE(uf_unregister(windows[i]));
    HOLD(!find_window(p, device, base, &seen[0]));
    DRIVER(cu.cuMemFree(base));
    return sync_all(p);
}

/* The record as a kernel leaves it: the numbers are written by us here, by kernels in world_device.cu. */
static bool what_kernels_record_becomes_a_sentence(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w))
        return false;
    FINE(uf_device_error(p->world));
    const ufd_error late = {.abi = UFD_ABI,
                            .size = sizeof late,
                            .count = 3,
                            .ready = 1,
                            .code = UF_ETIMEDOUT,
                            .what = UFD_IN_WAIT,
                            .pe = -1,
                            .block = {4, 5, 6},
                            .thread = {32, 1, 0},
                            .address = w.heap + 0x140,
                            .given = 41,
                            .wanted = 42};
    if (!copy(p, w.error, &late, sizeof late))
        return false;
    HOLD(uf_device_error(p->world) == UF_ETIMEDOUT);
    const char *parts[] = {"a wait", "(4, 5, 6)", "(32, 1, 0)", "0x140", "41", "42", "2 more"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        HOLD(strstr(uf_error_message(), parts[i]));
    FINE(uf_device_error(p->world));
    HOLD(uf_device_error(NULL) == UF_EINVAL);
    return true;
}

static bool kernels_see_heaps_grow(pe *p)
{
    const struct ufd_world *device;
    ufd_world before, after;
    void *gpu, *host;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &before, device, sizeof before))
        return false;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, before.heap_bytes, 0, &gpu));
    FINE(uf_malloc(p->world, before.host_heap_bytes, 0, &host));
    if (!copy(p, &after, device, sizeof after))
        return false;
    HOLD(after.heap_bytes > before.heap_bytes && after.host_heap_bytes > before.host_heap_bytes);
    HOLD((uint64_t)(uintptr_t)gpu + before.heap_bytes <= after.heap + after.heap_bytes);
    HOLD((uint64_t)(uintptr_t)host + before.host_heap_bytes <= after.host_heap + after.host_heap_bytes);
    FINE(uf_free(p->world, host));
    FINE(uf_free(p->world, gpu));
    return true;
}

static const promise promises[] = {
    PROMISE(gpu_memory_is_zero_when_first_handed_out),
    PROMISE(pointers_of_near_peers_are_given),
    PROMISE(host_puts_reach_gpu_memory_of_peers),
    PROMISE(gets_bring_gpu_memory_of_peers),
    PROMISE(a_signal_in_gpu_memory_follows_its_bytes),
    PROMISE(a_signal_in_host_memory_follows_its_gpu_bytes),
    PROMISE(rows_of_a_batch_may_mix_host_and_gpu_memory),
    PROMISE(the_gpu_heap_grows_and_reuses),
    PROMISE(more_gpu_memory_than_there_is_is_refused),
    PROMISE(windows_over_vmm_memory_of_two_mappings_work),
    PROMISE(windows_over_cudamalloc_memory_work),
    PROMISE(vmm_memory_that_cannot_be_shared_is_refused_on_all),
    PROMISE(windows_of_host_and_gpu_memory_do_not_mix),
    PROMISE(what_the_host_cannot_do_is_refused),
    PROMISE(on_stream_signals_follow_their_bytes),
    PROMISE(streams_and_hosts_signal_each_other),
    PROMISE(barriers_on_streams_hold_until_all_have_come),
    PROMISE(a_captured_exchange_is_right_at_each_of_1000_replays),
    PROMISE(a_captured_barrier_is_right_at_each_replay),
    PROMISE(allocating_while_capturing_is_refused_and_said),
    PROMISE(kernels_are_told_the_world),
    PROMISE(kernels_see_windows_come_and_go),
    PROMISE(what_kernels_record_becomes_a_sentence),
    PROMISE(kernels_see_heaps_grow),
    PROMISE(an_abort_lets_streams_go_and_tells_kernels),
};
static const suite all_promises = {promises, sizeof promises / sizeof *promises};

/* ---------------------------------------------------------------- deaths, and machines without a driver */

/* PE 1 is killed while PE 0's stream and host wait for it. */
static bool survive(pe *p)
{
    FINE(uf_wait_on_stream(p->world, &p->words[0], UF_EQ, 1, UF_CONSUME, p->stream));
    crowd_waits_now(p);
    HOLD(uf_wait(p->world, &p->words[1], UF_EQ, 1, 15ull * SECOND) == UF_EPEER);
    HOLD(strstr(uf_error_message(), "PE 1") != NULL);
    DRIVER(cu.cuStreamSynchronize(p->stream));
    HOLD(uf_world_status(p->world) == UF_EPEER);
    return true;
}

static int ask_without_driver(table *t)
{
    uf_world *w;
    void *ptr = NULL;
    setenv("UNFENCE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    int created = uf_world_create(NULL, &w);
    if (created)
        return 1;
    int rc = uf_malloc_on(w, UF_MEMORY_CUDA, 4096, 0, &ptr);
    snprintf(t->results[0][0].why, sizeof t->results[0][0].why, "%d: %.300s", rc, uf_error_message());
    bool said = strstr(uf_error_message(), "no CUDA driver") && strstr(uf_error_message(), "/nonexistent/libcuda.so.1");
    t->results[0][0].state =
        rc == UF_EUNSUPPORTED && said && uf_malloc(w, 4096, 0, &ptr) == UF_OK && uf_world_destroy(w) == UF_OK;
    return 0;
}

static void run_without_driver(void)
{
    table *t = crowd_make_table();
    pid_t pid = fork();
    if (pid == 0)
        exit(ask_without_driver(t));
    waitpid(pid, NULL, 0);
    crowd_say("no driver", "the_same_library_works_and_says_so", t->results[0][0].state == 1, t->results[0][0].why);
    munmap(t, sizeof *t);
}

int main(void)
{
    int gpus = crowd_count_gpus();
    printf("%s: %d GPUs\n", crowd_library(), gpus);
    fflush(stdout); /* children would print it again */
    run_without_driver();
    if (gpus > 0) {
        crowd_run_all(gpus, &all_promises);
        crowd_run_death("2 processes, one killed", "a_killed_pe_ends_the_waits_of_hosts_and_streams", survive);
    }
    return crowd_finish(gpus);
}
