/* world_device.cu - worlds of the library and kernels of the device API together: what a host opens, kernels use.
 *
 * PEs are processes and threads that share GPU 0, and one per GPU where there are more (crowd.h). Kernels put, signal, wait and meet across PEs
 * in memory that uf_malloc_on and uf_register gave; hosts, streams and kernels signal each other; heaps that grow are seen; what ends the
 * world ends kernels that wait. Every byte is checked by who waited for it. Prints a line a promise and "N passed, N failed". */
#include "world_device.h"
#include <cstdlib>
#include <cstring>

enum { ROUNDS = 20, THREADS = 128 };

/* ---------------------------------------------------------------- kernels */

__global__ void check_world(seat s)
{
    device_fault(s, ufd_check(s.world) != UF_OK);
    device_fault(s, ufd_ptr(s.world, s.mine, ufd_pe(s.world)) != s.mine);
    for (int i = 0; i < ufd_n_pes(s.world); i++)
        device_fault(s, ufd_ptr(s.world, s.words, i) == NULL || ufd_ptr(s.world, s.host_words, i) == NULL);
    device_fault(s, ufd_ptr(s.world, s.words, ufd_n_pes(s.world)) != NULL);
}

__device__ void fill_block(uint8_t *to, uint64_t bytes, int who, uint32_t salt)
{
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x)
        to[i] = device_pattern(who, i, salt);
    __syncthreads();
}

__device__ void verify_block(const seat &s, const uint8_t *at, uint64_t bytes, int who, uint32_t salt)
{
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x)
        device_fault(s, *(const volatile uint8_t *)(at + i) != device_pattern(who, i, salt));
    __syncthreads();
}

/* To the right with a signal, from the left, and word back that the slot is free. */
__global__ void ring(seat s, uint8_t *slot, uint64_t bytes)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        fill_block(s.mine, bytes, me, round);
        device_fault(s, ufd_put_signal_block(c, slot, s.mine, bytes, s.words, UF_SIGNAL_SET, round, s.right, UF_WEAK) != UF_OK);
        device_fault(s, ufd_wait_block(s.world, s.words, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
        verify_block(s, slot, bytes, s.left, round);
        device_fault(s, ufd_signal_block(c, s.words + 1, UF_SIGNAL_SET, round, s.left, UF_STRONG) != UF_OK);
        device_fault(s, ufd_wait_block(s.world, s.words + 1, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
    }
}

__global__ void meet(seat s)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world), n = ufd_n_pes(s.world);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (threadIdx.x == 0)
            for (int i = 0; i < n; i++)
                device_fault(s, ufd_put(c, s.words + 16 + me, &round, 8, i) != UF_OK);
        device_fault(s, ufd_barrier_block(s.world) != UF_OK);
        if (threadIdx.x < (unsigned)n)
            device_fault(s, ((const volatile uint64_t *)s.words)[16 + threadIdx.x] != round);
        device_fault(s, ufd_barrier_block(s.world) != UF_OK);
    }
}

__global__ void add_to_all(seat s)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    for (int i = 0; i < ufd_n_pes(s.world); i++)
        device_fault(s, ufd_signal(c, s.words + 30, UF_SIGNAL_ADD, 1 + (uint64_t)ufd_pe(s.world), i, UF_STRONG) != UF_OK);
}

/* What the left one's host has put, with its signal; then on to the right one's host, whose word is in host memory. */
__global__ void between_hosts(seat s, uint64_t bytes, uint32_t round)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    device_fault(s, ufd_wait_block(s.world, s.words + 2, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
    verify_block(s, s.in, bytes, s.left, round);
    fill_block(s.mine, bytes, ufd_pe(s.world), round + 1000);
    device_fault(s, ufd_put_signal_block(c, s.in + (1 << 20), s.mine, bytes, s.host_words + 8, UF_SIGNAL_SET, round, s.right,
                                         UF_WEAK) != UF_OK);
}

__global__ void hand_to_stream(seat s, uint64_t bytes, uint32_t round)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    fill_block(s.mine, bytes, ufd_pe(s.world), round);
    device_fault(s, ufd_put_signal_block(c, s.in, s.mine, bytes, s.words + 6, UF_SIGNAL_SET, 1, s.right, UF_WEAK) != UF_OK);
}

__global__ void verify(seat s, const uint8_t *at, uint64_t bytes, int who, uint32_t salt)
{
    verify_block(s, at, bytes, who, salt);
}

__global__ void look_at_sizes(seat s, uint64_t heap_bytes, uint64_t host_bytes, uint8_t *last)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    uint8_t value = (uint8_t)(ufd_pe(s.world) + 7);
    device_fault(s, s.world->heap_bytes < heap_bytes || s.world->host_heap_bytes < host_bytes);
    device_fault(s, ufd_put_signal(c, last, &value, 1, s.words + 12, UF_SIGNAL_SET, 1, s.right, UF_WEAK) != UF_OK);
    device_fault(s, ufd_wait(s.world, s.words + 12, UF_EQ, 1, UFD_WORLD_TIMEOUT) != UF_OK);
    device_fault(s, *(volatile uint8_t *)last != (uint8_t)(s.left + 7));
}

__global__ void wait_for(seat s, int word, uint64_t value, uint64_t timeout_ns)
{
    device_leave_code(s, ufd_wait(s.world, s.words + word, UF_EQ, value, timeout_ns));
}

/* ---------------------------------------------------------------- promises */

/* A kernel loaded while another waits would wait for that one. */
template <class K> static bool load(pe *p, K kernel)
{
    cudaFuncAttributes a;
    RUNTIME(cudaFuncGetAttributes(&a, kernel));
    return true;
}

static bool kernels_find_the_world_as_they_were_compiled(pe *p)
{
    seat s;
    RUNTIME(cudaFree(0));
    if (!load(p, check_world) || !load(p, ring) || !load(p, meet) || !load(p, add_to_all) || !load(p, between_hosts) ||
        !load(p, hand_to_stream) || !load(p, verify) || !load(p, look_at_sizes) || !load(p, wait_for) || !load_checked(p) ||
        !device_seat(p, &s) || !sync_all(p))
        return false;
    check_world<<<1, 1, 0, p->stream>>>(s);
    return device_no_faults(p) && sync_all(p);
}

static bool device_signals_follow_their_bytes(pe *p)
{
    seat s;
    if (!device_seat(p, &s))
        return false;
    static const uint64_t sizes[] = {1, 16, 1000, LARGE};
    for (uint64_t bytes : sizes) {
        RUNTIME(cudaMemsetAsync(p->words, 0, 2 * sizeof *p->words, p->stream));
        RUNTIME(cudaStreamSynchronize(p->stream));
        if (!sync_all(p))
            return false;
        ring<<<1, THREADS, 0, p->stream>>>(s, s.in, bytes);
        if (!device_no_faults(p) || !sync_all(p))
            return false;
    }
    return true;
}

static bool device_barriers_hold_until_all_have_come(pe *p)
{
    seat s;
    if (!device_seat(p, &s))
        return false;
    for (int launches = 0; launches < 3; launches++)
        meet<<<1, THREADS, 0, p->stream>>>(s);
    return device_no_faults(p) && sync_all(p);
}

static bool device_signals_of_all_pes_add_up(pe *p)
{
    seat s;
    uint64_t sum = 0;
    if (!device_seat(p, &s) || !sync_all(p))
        return false;
    add_to_all<<<1, 1, 0, p->stream>>>(s);
    if (!device_no_faults(p) || !sync_all(p) || !copy(p, &sum, p->words + 30, sizeof sum))
        return false;
    HOLD(sum == (uint64_t)p->n * (uint64_t)(p->n + 1) / 2);
    return sync_all(p);
}

static bool hosts_and_kernels_signal_each_other(pe *p)
{
    static thread_local unsigned char buffer[5000];
    seat s;
    if (!device_seat(p, &s))
        return false;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        between_hosts<<<1, THREADS, 0, p->stream>>>(s, sizeof buffer, round);
        fill(buffer, sizeof buffer, p->me, round);
        FINE(uf_put_signal(p->ctx, p->in, buffer, sizeof buffer, &p->words[2], UF_SIGNAL_SET, round, p->right, UF_WEAK));
        FINE(uf_wait(p->world, &p->host_words[8], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, buffer, p->in + (1 << 20), sizeof buffer, p->me));
        HOLD(is(buffer, sizeof buffer, p->left, round + 1000));
        if (!device_no_faults(p) || !sync_all(p))
            return false;
    }
    return true;
}

static bool streams_take_over_from_kernels(pe *p)
{
    seat s;
    if (!device_seat(p, &s) || !sync_all(p))
        return false;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        hand_to_stream<<<1, THREADS, 0, p->stream>>>(s, LARGE, round);
        FINE(uf_wait_on_stream(p->world, &p->words[6], UF_EQ, 1, UF_CONSUME, p->stream));
        FINE(uf_put_signal_on_stream(p->ctx, p->in + (1 << 20), p->in, LARGE, &p->words[7], UF_SIGNAL_SET, round, p->left, 0,
                                     p->stream));
        FINE(uf_wait_on_stream(p->world, &p->words[7], UF_GE, round, 0, p->stream)); /* our own bytes, from the right one */
        verify<<<1, THREADS, 0, p->stream>>>(s, p->in, LARGE, p->left, round);
        verify<<<1, THREADS, 0, p->stream>>>(s, p->in + (1 << 20), LARGE, p->me, round);
        FINE(uf_barrier_on_stream(uf_team_world(p->world), p->stream));
    }
    return device_no_faults(p) && sync_all(p);
}

static bool kernels_reach_windows(pe *p)
{
    seat s;
    CUdeviceptr base;
    uf_window *window;
    DRIVER(cu.cuMemAlloc(&base, 1 << 20));
    FINE(uf_register(p->world, (void *)(uintptr_t)base, 1 << 20, &window));
    RUNTIME(cudaMemsetAsync(p->words, 0, 2 * sizeof *p->words, p->stream));
    if (!device_seat(p, &s) || !device_no_faults(p) || !sync_all(p))
        return false;
    ring<<<1, THREADS, 0, p->stream>>>(s, (uint8_t *)(uintptr_t)base + 4096, LARGE);
    if (!device_no_faults(p) || !sync_all(p))
        return false;
    FINE(uf_unregister(window));
    DRIVER(cu.cuMemFree(base));
    return sync_all(p);
}

static bool kernels_use_what_the_heaps_have_grown_by(pe *p)
{
    seat s;
    ufd_world before;
    void *gpu, *host;
    if (!device_seat(p, &s) || !copy(p, &before, s.world, sizeof before))
        return false;
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, before.heap_bytes, 0, &gpu));
    FINE(uf_malloc(p->world, before.host_heap_bytes, 0, &host));
    if (!sync_all(p))
        return false;
    look_at_sizes<<<1, 1, 0, p->stream>>>(s, 2 * before.heap_bytes, 2 * before.host_heap_bytes,
                                          (uint8_t *)gpu + before.heap_bytes - 1);
    if (!device_no_faults(p) || !sync_all(p))
        return false;
    FINE(uf_free(p->world, host));
    FINE(uf_free(p->world, gpu));
    return true;
}

static bool a_wait_that_gives_up_is_named(pe *p)
{
    seat s;
    int code;
    if (!device_seat(p, &s))
        return false;
    wait_for<<<1, 1, 0, p->stream>>>(s, 40, 77, 20000000);
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_ETIMEDOUT);
    HOLD(uf_device_error(p->world) == UF_ETIMEDOUT);
    HOLD(strstr(uf_error_message(), "a wait") && strstr(uf_error_message(), "77"));
    FINE(uf_device_error(p->world));
    return sync_all(p);
}

/* The last one: it ends the world. */
static bool an_abort_ends_kernels_that_wait(pe *p)
{
    seat s;
    int code;
    if (!device_seat(p, &s))
        return false;
    wait_for<<<1, 1, 0, p->stream>>>(s, 41, 1, UF_FOREVER);
    HOLD(cu.cuStreamQuery(p->stream) == CUDA_ERROR_NOT_READY);
    if (!sync_all(p))
        return false;
    if (p->me == 0)
        FINE(uf_world_abort(p->world, "for the test"));
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_EABORTED);
    return true;
}

static bool survive(pe *p)
{
    seat s;
    int code;
    if (!device_seat(p, &s) || !load(p, wait_for))
        return false;
    wait_for<<<1, 1, 0, p->stream>>>(s, 0, 1, UF_FOREVER);
    HOLD(cu.cuStreamQuery(p->stream) == CUDA_ERROR_NOT_READY);
    crowd_waits_now(p);
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_EPEER);
    HOLD(uf_world_status(p->world) == UF_EPEER && strstr(uf_error_message(), "PE 1"));
    return true;
}

static const promise promises[] = {
    PROMISE(kernels_find_the_world_as_they_were_compiled),
    PROMISE(device_signals_follow_their_bytes),
    PROMISE(device_barriers_hold_until_all_have_come),
    PROMISE(device_signals_of_all_pes_add_up),
    PROMISE(hosts_and_kernels_signal_each_other),
    PROMISE(streams_take_over_from_kernels),
    PROMISE(kernels_reach_windows),
    PROMISE(kernels_use_what_the_heaps_have_grown_by),
    PROMISE(a_wait_that_gives_up_is_named),
    PROMISE(a_checked_kernel_s_error_becomes_a_sentence),
    PROMISE(an_abort_ends_kernels_that_wait),
};

int main(void)
{
    static const suite all = {promises, sizeof promises / sizeof *promises};
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    int gpus = crowd_count_gpus();
    printf("%s: %d GPUs\n", crowd_library(), gpus);
    fflush(stdout);
    if (gpus > 0) {
        crowd_run_all(gpus, &all);
        crowd_run_death("2 processes, one killed", "a_killed_pe_ends_kernels_that_wait", survive);
    }
    return crowd_finish(gpus);
}
