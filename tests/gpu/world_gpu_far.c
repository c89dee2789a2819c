/* world_gpu_far.c - what a world tells kernels of peers that are not near, and the queues behind it, without a GPU.
 *
 * Over tests/support/fake_cuda.c, with UNFENCE_FABRIC as the caller sets it and UNFENCE_GPU_WAY=queue. A CPU thread stands in the place of a
 * kernel: it reads ufd_world, contexts and rings out of GPU memory as the host wrote them there and issues commands by the very functions that
 * kernels use (engine/command.h), with its own copy of what producers share. What the device API adds to that is shown by world_far on GPUs. */
#include "engine/command.h" /* first: crowd.h has short names */

#include "crowd.h"
#include <stdlib.h>
#include <string.h>

enum { BYTES = 100000, ROUNDS = 20 };

/* A queue as a kernel has it. */
typedef struct producer {
    uf_command_ring ring;
    uf_command_local local;
    uint64_t claims[64];
} producer;

static _Thread_local ufd_world told;
static _Thread_local producer producers[UFD_MAX_QUEUES];
static _Thread_local unsigned char *out, *in, *back;
static _Thread_local uint64_t *words;

static bool read_producer(pe *p, uint32_t i)
{
    ufd_ctx context;
    producer *q = &producers[i];
    if (!copy(p, &context, told.ctxs + i, sizeof context))
        return false;
    HOLD(context.abi == UFD_ABI && context.size == sizeof context && context.queue);
    if (!copy(p, &q->ring, context.queue, sizeof q->ring) || !copy(p, &q->local, q->ring.local, sizeof q->local))
        return false;
    HOLD(q->ring.abi == UF_COMMAND_ABI && q->ring.size == sizeof q->ring && q->ring.n_results == 64);
    q->ring.local = &q->local;
    q->ring.claims = q->claims;
    return true;
}

static bool kernels_are_told_of_far_peers_and_queues(pe *p)
{
    const struct ufd_world *device;
    ufd_peer peers[MAX_PES];
    ufd_ctx contexts[UFD_MAX_QUEUES];
    void *memory[3];
    for (int i = 0; i < 3; i++)
        FINE(uf_malloc(p->world, BYTES, 0, &memory[i]));
    out = memory[0], in = memory[1], back = memory[2];
    FINE(uf_signal_alloc(p->world, 16, UF_SIGNAL_DEFAULT, &words));
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &told, device, sizeof told) || !copy(p, peers, told.peers, sizeof *peers * (size_t)p->n) ||
        !copy(p, contexts, told.ctxs, sizeof contexts))
        return false;
    for (int i = 0; i < p->n; i++)
        HOLD(peers[i].way == (i == p->me ? UFD_WAY_NEAR : UFD_WAY_QUEUE));
    HOLD(told.n_far == (uint32_t)p->n - 1 && told.n_queues == 4 && told.n_ctxs == UFD_MAX_QUEUES);
    HOLD((uint64_t)(uintptr_t)told.far_barrier - told.host_heap < told.host_heap_bytes);
    for (uint32_t i = 0; i < told.n_ctxs; i++)
        HOLD(contexts[i].queue == contexts[i % 4].queue && (i == 0 || i >= 4 || contexts[i].queue != contexts[i - 1].queue));
    for (uint32_t i = 0; i < told.n_queues; i++)
        if (!read_producer(p, i))
            return false;
    return sync_all(p);
}

static bool issue(pe *p, producer *q, const uf_command *c, uint64_t *position)
{
    HOLD(uf_command_reserve(&q->ring, 1, 0, position) == 0);
    uf_command_write(&q->ring, *position, c);
    return true;
}

static bool quiet(pe *p, producer *q)
{
    const uf_command c = {.op = UF_COMMAND_QUIET};
    uint64_t position = 0;
    if (!issue(p, q, &c, &position))
        return false;
    HOLD(uf_command_wait(&q->ring, &q->ring.report->remote, position, 0) == 0);
    return true;
}

static uf_command put_signal(const pe *p, uint64_t bytes, uint64_t round)
{
    return (uf_command){.op = UF_COMMAND_PUT_SIGNAL,
                        .atomic = UF_SIGNAL_SET,
                        .pe = (uint32_t)p->right,
                        .bytes = bytes,
                        .local = (uint64_t)(uintptr_t)out,
                        .remote = (uint64_t)(uintptr_t)in,
                        .word = (uint64_t)(uintptr_t)&words[0],
                        .operand = round};
}

static bool signals_follow_their_bytes_through_each_queue(pe *p)
{
    static const uint64_t sizes[] = {1, 8, 3000, BYTES};
    uint64_t position = 0;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        producer *q = &producers[round % told.n_queues];
        uint64_t bytes = sizes[round / 4 % 4];
        fill(out, bytes, p->me, round);
        const uf_command c = put_signal(p, bytes, round);
        if (!issue(p, q, &c, &position))
            return false;
        FINE(uf_wait(p->world, &words[0], UF_GE, round, 10ull * SECOND));
        HOLD(is(in, bytes, p->left, round));
        const uf_command get = {.op = UF_COMMAND_GET,
                                .pe = (uint32_t)p->right,
                                .bytes = bytes,
                                .local = (uint64_t)(uintptr_t)back,
                                .remote = (uint64_t)(uintptr_t)in};
        if (!quiet(p, q) || !issue(p, q, &get, &position) || !quiet(p, q))
            return false;
        HOLD(is(back, bytes, p->me, round));
        if (!sync_all(p))
            return false;
    }
    return true;
}

static bool fetched_values_come_back(pe *p)
{
    producer *q = &producers[1];
    for (uint64_t i = 0; i < 100; i++) {
        uf_command c = {.op = UF_COMMAND_ATOMIC,
                        .atomic = UF_ATOMIC_FETCH_ADD,
                        .pe = (uint32_t)p->right,
                        .word = (uint64_t)(uintptr_t)&words[4],
                        .operand = 3};
        uint64_t position = 0, old = 0;
        HOLD(uf_command_claim(&q->ring, (uint32_t)i, &c.result));
        if (!issue(p, q, &c, &position))
            return false;
        HOLD(uf_command_fetch_wait(&q->ring, c.result, position, 0, &old) == 0);
        HOLD(old == 3 * i);
    }
    return sync_all(p);
}

/* As ufd_meet_far does it, with no quiet between. */
static bool barrier_words_never_go_back(pe *p)
{
    uint64_t position = 0;
    for (uint64_t round = 1; round <= 100; round++) {
        for (int i = 0; i < p->n; i++) {
            const uf_command c = {.op = UF_COMMAND_SIGNAL,
                                  .atomic = UF_SIGNAL_SET,
                                  .flags = UF_COMMAND_STRONG,
                                  .pe = (uint32_t)i,
                                  .word = (uint64_t)(uintptr_t)&told.far_barrier[p->me],
                                  .operand = round};
            if (i != p->me && !issue(p, &producers[0], &c, &position))
                return false;
        }
        for (int i = 0; i < p->n; i++)
            if (i != p->me) {
                FINE(uf_wait(p->world, &told.far_barrier[i], UF_GE, round, 10ull * SECOND));
                HOLD(told.far_barrier[i] <= round + 1);
            }
    }
    return sync_all(p);
}

static bool gpu_memory_in_a_command_is_told(pe *p)
{
    uf_command c = put_signal(p, 64, 1001);
    uint64_t position = 0;
    FINE(uf_device_error(p->world));
    c.local = (uint64_t)(uintptr_t)p->mine;
    if (!issue(p, &producers[3], &c, &position))
        return false;
    const uf_command last = {.op = UF_COMMAND_QUIET};
    if (!issue(p, &producers[3], &last, &position))
        return false;
    HOLD(uf_command_wait(&producers[3].ring, &producers[3].ring.report->remote, position, 0) == UF_EUNSUPPORTED);
    HOLD(uf_device_error(p->world) == UF_EUNSUPPORTED);
    HOLD(strstr(uf_error_message(), "GPU memory") && strstr(uf_error_message(), "command queue"));
    HOLD(words[0] == ROUNDS);
    return sync_all(p);
}

static const promise promises[] = {
    PROMISE(kernels_are_told_of_far_peers_and_queues),
    PROMISE(signals_follow_their_bytes_through_each_queue),
    PROMISE(fetched_values_come_back),
    PROMISE(barrier_words_never_go_back),
    PROMISE(gpu_memory_in_a_command_is_told),
};

int main(void)
{
    static const suite all = {promises, sizeof promises / sizeof *promises};
    setenv("UNFENCE_GPU_WAY", "queue", 1);
    int gpus = crowd_count_gpus();
    printf("%s: %d GPUs\n", crowd_library(), gpus);
    fflush(stdout);
    if (gpus > 0)
        crowd_run_all(gpus, &all);
    return crowd_finish(gpus);
}
