/* world_far.cu - kernels and peers that are not near: the operations of the device API through command queues.
 *
 * As world_device, with UNFENCE_GPU_WAY=queue and UNFENCE_FABRIC as the caller sets it: mapped memory, ofi:tcp, or the EFA model, where all
 * arrives in any order. Source, target and words lie in the symmetric host heap; every byte is checked by who waited for it. With
 * UNFENCE_GPU_QUEUES=1 all blocks post to one queue. PEs share GPU 0. Prints a line a promise and "N passed, N failed". */
#include "world_device.h"
#include <cstdlib>
#include <cstring>

enum { ROUNDS = 12, WORDS = 64, HALF = 1 << 19, TICKET_BLOCKS = 8, TICKET_THREADS = 64, TICKETS = 3 };

/* Memory of the host heap, the same on all PEs; `s` is where kernels report. */
struct place {
    seat s;
    uint8_t *mine, *in, *back; /* 2 * HALF each */
    uint64_t *words;           /* [WORDS], of far peers and hosts alone */
    uint64_t *own;             /* [WORDS], that this GPU writes too */
};
static thread_local place here;

/* ---------------------------------------------------------------- kernels */

template <class S> __device__ void fill_in(uint8_t *to, uint64_t bytes, int who, uint32_t salt)
{
    for (uint64_t i = S::rank(); i < bytes; i += S::size())
        to[i] = device_pattern(who, i, salt);
    S::sync();
}

template <class S> __device__ void verify_in(const seat &s, const uint8_t *at, uint64_t bytes, int who, uint32_t salt)
{
    for (uint64_t i = S::rank(); i < bytes; i += S::size())
        device_fault(s, *(const volatile uint8_t *)(at + i) != device_pattern(who, i, salt));
    S::sync();
}

__global__ void check_ways(seat s)
{
    device_fault(s, ufd_check(s.world) != UF_OK || s.world->n_far != (uint32_t)ufd_n_pes(s.world) - 1);
    for (int i = 0; i < ufd_n_pes(s.world); i++)
        device_fault(s, (ufd_ptr(s.world, s.words, i) != NULL) != (i == ufd_pe(s.world)));
}

/* To the right with a signal, from the left, and word back that the slot is free. Every other round does not wait for the source. */
template <class S> __global__ void ring(place f, uint64_t bytes)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        fill_in<S>(f.mine, bytes, me, round);
        int rc = round % 2 ? ufd_put_signal_in<S>(c, f.in, f.mine, bytes, f.words, UF_SIGNAL_SET, round, s.right, UF_WEAK)
                           : ufd_put_signal_nbi_in<S>(c, f.in, f.mine, bytes, f.words, UF_SIGNAL_SET, round, s.right, UF_WEAK);
        device_fault(s, rc != UF_OK);
        device_fault(s, ufd_wait_in<S>(s.world, f.words, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
        verify_in<S>(s, f.in, bytes, s.left, round);
        device_fault(s, ufd_signal_in<S>(c, f.words + 1, UF_SIGNAL_SET, round, s.left, UF_STRONG) != UF_OK);
        device_fault(s, ufd_wait_in<S>(s.world, f.words + 1, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
    }
}

/* Puts whose source is used again, a fence between puts and a signal, gets of what was put, quiet. */
template <class S> __global__ void moves(place f, uint64_t bytes)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        fill_in<S>(f.mine, bytes, me, round);
        device_fault(s, ufd_put_in<S>(c, f.in, f.mine, bytes, s.right) != UF_OK);
        fill_in<S>(f.mine, bytes, me, round + 500);
        device_fault(s, ufd_put_nbi_in<S>(c, f.in + HALF, f.mine, bytes, s.right) != UF_OK);
        device_fault(s, ufd_fence_in<S>(c) != UF_OK);
        device_fault(s, ufd_signal_in<S>(c, f.words + 2, UF_SIGNAL_SET, round, s.right, UF_WEAK) != UF_OK);
        device_fault(s, ufd_wait_in<S>(s.world, f.words + 2, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
        verify_in<S>(s, f.in, bytes, s.left, round);
        verify_in<S>(s, f.in + HALF, bytes, s.left, round + 500);
        device_fault(s, ufd_flush_in<S>(c) != UF_OK || ufd_quiet_in<S>(c) != UF_OK);
        device_fault(s, ufd_get_in<S>(c, f.back, f.in, bytes, s.right) != UF_OK);
        verify_in<S>(s, f.back, bytes, me, round);
        device_fault(s, ufd_get_nbi_in<S>(c, f.back + HALF, f.in + HALF, bytes, s.right) != UF_OK || ufd_quiet_in<S>(c) != UF_OK);
        verify_in<S>(s, f.back + HALF, bytes, me, round + 500);
        device_fault(s, ufd_signal_in<S>(c, f.words + 3, UF_SIGNAL_SET, round, s.left, UF_STRONG) != UF_OK);
        device_fault(s, ufd_wait_in<S>(s.world, f.words + 3, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
    }
}

/* One step on the right one's word, which nobody else changes; `had` is what must have been there (fetching forms). */
template <class S>
__device__ void step(const seat &s, const ufd_ctx &c, uint64_t *word, int op, int width, uint64_t operand, uint64_t compare,
                     uint64_t had)
{
    uint64_t old = had;
    device_fault(s, ufd_atomic_in<S>(c, op, width, word, operand, compare, &old, s.right) != UF_OK);
    device_fault(s, S::rank() == 0 && old != had);
    device_fault(s, op < UF_ATOMIC_FETCH && ufd_quiet_in<S>(c) != UF_OK);
}

template <class S> __global__ void atomics(place f, int at)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    for (int width = 4; width <= 8; width += 4) {
        uint64_t *word = f.words + at + width / 8;
        step<S>(s, c, word, UF_ATOMIC_SET, width, 12, 0, 0);
        step<S>(s, c, word, UF_ATOMIC_ADD, width, 5, 0, 0);
        step<S>(s, c, word, UF_ATOMIC_FETCH, width, 0, 0, 17);
        step<S>(s, c, word, UF_ATOMIC_FETCH_ADD, width, 3, 0, 17);
        step<S>(s, c, word, UF_ATOMIC_AND, width, 0x1c, 0, 0);
        step<S>(s, c, word, UF_ATOMIC_OR, width, 0x03, 0, 0);
        step<S>(s, c, word, UF_ATOMIC_XOR, width, 0x11, 0, 0);
        step<S>(s, c, word, UF_ATOMIC_FETCH_AND, width, 0x06, 0, 0x06);
        step<S>(s, c, word, UF_ATOMIC_FETCH_OR, width, 0x09, 0, 0x06);
        step<S>(s, c, word, UF_ATOMIC_FETCH_XOR, width, 0x01, 0, 0x0f);
        step<S>(s, c, word, UF_ATOMIC_SWAP, width, 100, 0, 0x0e);
        step<S>(s, c, word, UF_ATOMIC_COMPARE_SWAP, width, 7, 99, 100);
        step<S>(s, c, word, UF_ATOMIC_COMPARE_SWAP, width, 7, 100, 100);
        step<S>(s, c, word, UF_ATOMIC_FETCH, width, 0, 0, 7);
    }
}

/* All threads of all blocks draw from one word of PE 0; sum and sum of squares of what they got. */
__global__ void tickets(place f)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    uint64_t old = 0;
    for (int i = 0; i < TICKETS; i++) {
        device_fault(s, ufd_atomic_fetch_add64(c, f.words + 40, 1, &old, 0) != UF_OK);
        atomicAdd((unsigned long long *)(s.words + 50), (unsigned long long)old);
        atomicAdd((unsigned long long *)(s.words + 51), (unsigned long long)(old * old));
    }
}

__global__ void meet(place f)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world), n = ufd_n_pes(s.world);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (threadIdx.x == 0) {
            *(volatile uint64_t *)f.mine = round;
            for (int i = 0; i < n; i++)
                device_fault(s, ufd_put_nbi(c, f.own + 16 + me, f.mine, 8, i) != UF_OK);
        }
        device_fault(s, ufd_barrier_block(s.world) != UF_OK);
        if (threadIdx.x < (unsigned)n)
            device_fault(s, ((const volatile uint64_t *)f.own)[16 + threadIdx.x] != round);
        device_fault(s, ufd_barrier_block(s.world) != UF_OK);
        for (int i = 0; i < 3; i++)
            device_fault(s, ufd_sync_block(s.world) != UF_OK);
    }
}

/* From every block of every PE to all others, while their hosts do the same. */
__global__ void add_to_others(place f, uint32_t each)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    int me = ufd_pe(s.world);
    for (uint32_t i = 0; i < each; i++)
        for (int pe = 0; pe < ufd_n_pes(s.world); pe++)
            if (pe != me)
                device_fault(s, ufd_signal(c, f.words + 30, UF_SIGNAL_ADD, 1 + (uint64_t)me, pe, i % 2 ? UF_STRONG : UF_WEAK) !=
                                    UF_OK);
    device_fault(s, ufd_quiet(c) != UF_OK);
}

/* From every block its own piece and word of the right one's. */
__global__ void crowd_of_blocks(place f, uint64_t bytes)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    uint64_t at = blockIdx.x * bytes;
    uint64_t *word = f.own + 32 + blockIdx.x;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        fill_in<ufd_block>(f.mine + at, bytes, ufd_pe(s.world), round + blockIdx.x);
        device_fault(
            s, ufd_put_signal_nbi_block(c, f.in + at, f.mine + at, bytes, word, UF_SIGNAL_SET, round, s.right, UF_WEAK) != UF_OK);
        device_fault(s, ufd_wait_block(s.world, word, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
        verify_in<ufd_block>(s, f.in + at, bytes, s.left, round + blockIdx.x);
        device_fault(s, ufd_signal_block(c, word - 16, UF_SIGNAL_SET, round, s.left, UF_STRONG) != UF_OK);
        device_fault(s, ufd_wait_block(s.world, word - 16, UF_GE, round, UFD_WORLD_TIMEOUT) != UF_OK);
    }
}

__global__ void refused(place f)
{
    __shared__ uint64_t shared;
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    uint64_t own = 0;
    const int no = UF_EUNSUPPORTED;
    device_fault(s, ufd_put(c, s.in, f.mine, 8, s.right) != no || ufd_put_nbi(c, f.in, s.mine, 8, s.right) != no);
    device_fault(s, ufd_put(c, f.in, &shared, 8, s.right) != no || ufd_put(c, f.in, &own, 8, s.right) != no);
    device_fault(s, ufd_get(c, s.mine, f.in, 8, s.right) != no || ufd_signal(c, s.words, UF_SIGNAL_SET, 1, s.right, 0) != no);
    device_fault(s, ufd_put_signal(c, f.in, f.mine, 8, s.words, UF_SIGNAL_SET, 1, s.right, 0) != no);
    device_fault(s, ufd_atomic_add64(c, s.words, 1, s.right) != no || ufd_put_flagged(c, f.in, f.mine, 8, 1, s.right) != no);
    device_fault(s, ufd_quiet(c) != UF_OK); /* nothing has come to the host */
}

__global__ void stray(place f, uint8_t *nowhere)
{
    ufd_ctx c = ufd_ctx_block(f.s.world);
    ufd_put_nbi(c, nowhere, f.mine, 8, f.s.right);
    device_leave_code(f.s, ufd_quiet(c));
}

__global__ void to_the_end(place f, uint8_t *last)
{
    const seat s = f.s;
    ufd_ctx c = ufd_ctx_block(s.world);
    *(volatile uint8_t *)f.mine = (uint8_t)(ufd_pe(s.world) + 7);
    device_fault(s, ufd_put_signal(c, last, f.mine, 1, f.words + 12, UF_SIGNAL_SET, 1, s.right, UF_WEAK) != UF_OK);
    device_fault(s, ufd_wait(s.world, f.words + 12, UF_EQ, 1, UFD_WORLD_TIMEOUT) != UF_OK);
    device_fault(s, *(volatile uint8_t *)last != (uint8_t)(s.left + 7));
}

/* Ends with an error alone; each block by its own context, and the last one says with which. */
__global__ void for_ever(place f)
{
    ufd_ctx c = ufd_ctx_block(f.s.world);
    int rc = UF_OK;
    while (rc == UF_OK && (rc = ufd_put(c, f.in, f.mine, 64, f.s.right)) == UF_OK)
        rc = ufd_quiet(c);
    if (blockIdx.x == gridDim.x - 1)
        device_leave_code(f.s, rc);
}

/* ---------------------------------------------------------------- promises */

template <class K> static bool load(pe *p, K kernel)
{
    cudaFuncAttributes a;
    RUNTIME(cudaFuncGetAttributes(&a, kernel));
    return true;
}

template <class S> static bool load_scope(pe *p)
{
    return load(p, ring<S>) && load(p, moves<S>) && load(p, atomics<S>);
}

static bool take_place(pe *p)
{
    void *mine, *in, *back;
    RUNTIME(cudaFree(0));
    FINE(uf_malloc(p->world, 2 * HALF, 0, &mine));
    FINE(uf_malloc(p->world, 2 * HALF, 0, &in));
    FINE(uf_malloc(p->world, 2 * HALF, 0, &back));
    here.mine = (uint8_t *)mine, here.in = (uint8_t *)in, here.back = (uint8_t *)back;
    FINE(uf_signal_alloc(p->world, WORDS, UF_SIGNAL_DEFAULT, &here.words));
    FINE(uf_signal_alloc(p->world, WORDS, UF_SIGNAL_DEFAULT, &here.own));
    return device_seat(p, &here.s) && sync_all(p);
}

static bool kernels_are_told_who_is_far(pe *p)
{
    if (!take_place(p) || !load(p, check_ways) || !load_scope<ufd_thread>(p) || !load_scope<ufd_warp>(p) ||
        !load_scope<ufd_block>(p) || !load(p, tickets) || !load(p, meet) || !load(p, add_to_others) ||
        !load(p, crowd_of_blocks) || !load(p, refused) || !load(p, stray) || !load(p, to_the_end) || !load(p, for_ever) ||
        !sync_all(p))
        return false;
    check_ways<<<1, 1, 0, p->stream>>>(here.s);
    return device_no_faults(p) && sync_all(p);
}

static bool clear_words(pe *p)
{
    if (!sync_all(p))
        return false;
    memset(here.words, 0, WORDS * sizeof *here.words);
    memset(here.own, 0, WORDS * sizeof *here.own);
    return sync_all(p);
}

template <class S> static bool scope_keeps(pe *p, unsigned threads, uint64_t largest)
{
    const uint64_t sizes[] = {1, 16, 1000, largest};
    for (uint64_t bytes : sizes) {
        if (!clear_words(p))
            return false;
        ring<S><<<1, threads, 0, p->stream>>>(here, bytes);
        moves<S><<<1, threads, 0, p->stream>>>(here, bytes);
        if (!device_no_faults(p))
            return false;
    }
    if (!clear_words(p))
        return false;
    atomics<S><<<1, threads, 0, p->stream>>>(here, 8);
    return device_no_faults(p) && sync_all(p);
}

static bool threads_put_get_signal_and_change_words_of_far_peers(pe *p)
{
    return scope_keeps<ufd_thread>(p, 1, 1500);
}

static bool warps_put_get_signal_and_change_words_of_far_peers(pe *p)
{
    return scope_keeps<ufd_warp>(p, 32, 9999);
}

static bool blocks_put_get_signal_and_change_words_of_far_peers(pe *p)
{
    return scope_keeps<ufd_block>(p, 128, LARGE);
}

static bool large_puts_keep_one_signal(pe *p)
{
    if (!clear_words(p))
        return false;
    ring<ufd_block><<<1, 128, 0, p->stream>>>(here, 2 * HALF);
    return device_no_faults(p) && sync_all(p);
}

static bool many_blocks_share_queues(pe *p)
{
    if (!clear_words(p))
        return false;
    crowd_of_blocks<<<16, 64, 0, p->stream>>>(here, 3000);
    return device_no_faults(p) && sync_all(p);
}

static bool tickets_are_drawn_once(pe *p)
{
    uint64_t got[2], n = (uint64_t)(p->n - 1) * TICKET_BLOCKS * TICKET_THREADS * TICKETS;
    RUNTIME(cudaMemsetAsync(p->words + 50, 0, 16, p->stream));
    if (!clear_words(p))
        return false;
    if (p->me != 0)
        tickets<<<TICKET_BLOCKS, TICKET_THREADS, 0, p->stream>>>(here);
    if (!device_no_faults(p) || !copy(p, got, p->words + 50, sizeof got))
        return false;
    for (int i = 0; i < 2; i++)
        FINE(uf_atomic(p->ctx, UF_ATOMIC_ADD, 8, here.words + 42 + i, got[i], 0, NULL, 0));
    FINE(uf_quiet(p->ctx));
    if (!sync_all(p))
        return false;
    HOLD(p->me != 0 || (here.words[42] == n * (n - 1) / 2 && here.words[43] == (n - 1) * n * (2 * n - 1) / 6));
    return sync_all(p);
}

static bool barriers_hold_until_far_peers_have_come(pe *p)
{
    if (!clear_words(p))
        return false;
    for (int launches = 0; launches < 2; launches++)
        meet<<<1, 64, 0, p->stream>>>(here);
    return device_no_faults(p) && sync_all(p);
}

static bool additions_of_kernels_and_hosts_all_count(pe *p)
{
    enum { BLOCKS = 8, EACH = 10, HOST = 50 };
    if (!clear_words(p))
        return false;
    add_to_others<<<BLOCKS, 1, 0, p->stream>>>(here, EACH);
    for (int i = 0; i < HOST; i++)
        for (int pe = 0; pe < p->n; pe++)
            FINE(uf_signal(p->ctx, here.words + 30, UF_SIGNAL_ADD, 1000, pe, i % 2 ? UF_STRONG : UF_WEAK));
    uint64_t others = (uint64_t)p->n * (uint64_t)(p->n + 1) / 2 - 1 - (uint64_t)p->me;
    FINE(uf_wait(p->world, here.words + 30, UF_GE, others * BLOCKS * EACH + 1000ull * HOST * (uint64_t)p->n, 10ull * SECOND));
    if (!device_no_faults(p) || !sync_all(p))
        return false;
    HOLD(here.words[30] == others * BLOCKS * EACH + 1000ull * HOST * (uint64_t)p->n);
    return sync_all(p);
}

static bool gpu_memory_is_refused_with_a_sentence(pe *p)
{
    refused<<<1, 1, 0, p->stream>>>(here);
    if (!device_no_faults(p))
        return false;
    HOLD(uf_device_error(p->world) == UF_EUNSUPPORTED);
    HOLD(strstr(uf_error_message(), "command queue") && strstr(uf_error_message(), "block (0, 0, 0)"));
    FINE(uf_device_error(p->world));
    return sync_all(p);
}

static bool what_the_host_heap_has_grown_by_is_used(pe *p)
{
    ufd_world before;
    void *grown;
    if (!clear_words(p) || !copy(p, &before, here.s.world, sizeof before))
        return false;
    FINE(uf_malloc(p->world, before.host_heap_bytes, 0, &grown));
    if (!sync_all(p))
        return false;
    to_the_end<<<1, 1, 0, p->stream>>>(here, (uint8_t *)grown + before.host_heap_bytes - 1);
    return device_no_faults(p) && sync_all(p);
}

/* From here on a queue has an error. */
static bool a_command_that_leads_nowhere_is_told_by_host_and_kernel(pe *p)
{
    int code;
    stray<<<1, 1, 0, p->stream>>>(here, here.in + ((size_t)32 << 30));
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_ERANGE);
    uf_device_error(p->world); /* the kernel's own record */
    HOLD(uf_device_error(p->world) == UF_ERANGE && strstr(uf_error_message(), "command queue"));
    return sync_all(p);
}

static bool an_abort_ends_kernels_that_use_queues(pe *p)
{
    const char *queues = getenv("UNFENCE_GPU_QUEUES");
    bool shared = queues && atoi(queues) == 1; /* with the queue that has an error already */
    int code;
    for_ever<<<2, 1, 0, p->stream>>>(here);
    HOLD(shared || cu.cuStreamQuery(p->stream) == CUDA_ERROR_NOT_READY);
    if (!sync_all(p))
        return false;
    if (p->me == 0)
        FINE(uf_world_abort(p->world, "for the test"));
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_EABORTED || (shared && code == UF_ERANGE));
    return true;
}

static bool survive(pe *p)
{
    int code;
    here.in = (uint8_t *)p->host_words, here.mine = here.in + 64;
    if (!device_seat(p, &here.s) || !load(p, for_ever))
        return false;
    for_ever<<<1, 1, 0, p->stream>>>(here);
    crowd_waits_now(p);
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_EPEER);
    HOLD(uf_world_status(p->world) == UF_EPEER && strstr(uf_error_message(), "PE 1"));
    return true;
}

static const promise promises[] = {
    PROMISE(kernels_are_told_who_is_far),
    PROMISE(threads_put_get_signal_and_change_words_of_far_peers),
    PROMISE(warps_put_get_signal_and_change_words_of_far_peers),
    PROMISE(blocks_put_get_signal_and_change_words_of_far_peers),
    PROMISE(large_puts_keep_one_signal),
    PROMISE(many_blocks_share_queues),
    PROMISE(tickets_are_drawn_once),
    PROMISE(barriers_hold_until_far_peers_have_come),
    PROMISE(additions_of_kernels_and_hosts_all_count),
    PROMISE(gpu_memory_is_refused_with_a_sentence),
    PROMISE(what_the_host_heap_has_grown_by_is_used),
    PROMISE(a_command_that_leads_nowhere_is_told_by_host_and_kernel),
    PROMISE(an_abort_ends_kernels_that_use_queues),
};

int main(void)
{
    static const suite all = {promises, sizeof promises / sizeof *promises};
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("UNFENCE_GPU_WAY", "queue", 1);
    int gpus = crowd_count_gpus();
    printf("%s: %d GPUs\n", crowd_library(), gpus);
    fflush(stdout);
    if (gpus > 0) {
        crowd_run_all(gpus, &all);
        const char *fabric = getenv("UNFENCE_FABRIC");
        /* The EFA model ends with a process that dies while it moves it: no news of a peer then. */
        if (!fabric || strncmp(fabric, "efa:model", 9) != 0)
            crowd_run_death("2 processes, one killed", "a_killed_pe_ends_kernels_that_use_queues", survive);
    }
    return crowd_finish(gpus);
}
