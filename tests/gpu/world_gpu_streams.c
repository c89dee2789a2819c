/* world_gpu_streams.c - the promises of operations on streams: order, graphs that are replayed, barriers, captures, aborts. See world_gpu.c. */
#include "crowd.h"
#include "world_gpu.h"
#include <stdlib.h>
#include <string.h>

enum { SLOT = 256, REPLAYS = 1000, AHEAD = 8 };

/* ---------------------------------------------------------------- promises: streams */

bool on_stream_signals_follow_their_bytes(pe *p)
{
    unsigned char host[SLOT], got[SLOT];
    for (unsigned round = 1; round <= 200; round++) {
        fill(host, SLOT, p->me, round);
        DRIVER(cu.cuMemcpyAsync(address(p->mine), address(host), SLOT, p->stream));
        FINE(uf_put_signal_on_stream(p->ctx, p->in, p->mine, SLOT, &p->words[4], UF_SIGNAL_SET, round, p->right, UF_WEAK,
                                     p->stream));
        FINE(uf_wait_on_stream(p->world, &p->words[4], UF_GE, round, 0, p->stream));
        FINE(uf_get_on_stream(p->ctx, p->mine + SLOT, p->in, SLOT, p->me, p->stream));
        FINE(uf_fence_on_stream(p->ctx, p->stream));
        FINE(uf_signal_on_stream(p->ctx, &p->words[5], UF_SIGNAL_SET, round, p->left, UF_STRONG, p->stream));
        FINE(uf_wait_on_stream(p->world, &p->words[5], UF_EQ, round, 0, p->stream));
        FINE(uf_quiet_on_stream(p->ctx, p->stream));
        if (!copy(p, got, p->mine + SLOT, SLOT))
            return false;
        HOLD(is(got, SLOT, p->left, round));
    }
    return sync_all(p);
}

bool streams_and_hosts_signal_each_other(pe *p)
{
    unsigned char host[SLOT], got[SLOT];
    for (unsigned round = 1; round <= 50; round++) {
        /* The right one's host waits for what our stream has put; its host then lets our stream go on. */
        fill(host, SLOT, p->me, round + 3);
        if (!copy(p, p->mine, host, SLOT))
            return false;
        FINE(uf_put_signal_on_stream(p->ctx, p->in, p->mine, SLOT, &p->host_words[4], UF_SIGNAL_SET, round, p->right, 0,
                                     p->stream));
        FINE(uf_wait_on_stream(p->world, &p->host_words[5], UF_GE, round, 0, p->stream));
        FINE(uf_wait(p->world, &p->host_words[4], UF_GE, round, 10ull * SECOND));
        FINE(uf_get(p->ctx, got, p->in, SLOT, p->me));
        HOLD(is(got, SLOT, p->left, round + 3));
        FINE(uf_signal(p->ctx, &p->host_words[5], UF_SIGNAL_SET, round, p->left, 0));
        DRIVER(cu.cuStreamSynchronize(p->stream));
    }
    return sync_all(p);
}

bool barriers_on_streams_hold_until_all_have_come(pe *p)
{
    unsigned char *got = malloc((size_t)p->n * 8);
    bool ok = got != NULL;
    for (uint64_t round = 1; ok && round <= 50; round++) {
        for (int i = 0; ok && i < p->n; i++)
            ok = uf_signal_on_stream(p->ctx, &p->words[16 + p->me], UF_SIGNAL_SET, round, i, 0, p->stream) == UF_OK;
        ok = ok && uf_barrier_on_stream(uf_team_world(p->world), p->stream) == UF_OK;
        ok = ok && cu.cuMemcpyAsync(address(got), address(&p->words[16]), (size_t)p->n * 8, p->stream) == CUDA_SUCCESS &&
             uf_barrier_on_stream(uf_team_world(p->world), p->stream) == UF_OK &&
             cu.cuStreamSynchronize(p->stream) == CUDA_SUCCESS;
        for (int i = 0; ok && i < p->n; i++) {
            uint64_t word;
            memcpy(&word, got + 8 * i, 8);
            ok = word == round;
        }
    }
    free(got);
    return ok ? sync_all(p) : crowd_broken(p, __LINE__, "a barrier on a stream let somebody pass, or failed");
}

/* Shifts a tape of n slots by one: through a copy, since the ranges overlap. */
static bool shift(pe *p, unsigned char *tape, unsigned char *spare, size_t slots)
{
    DRIVER(cu.cuMemcpyAsync(address(spare), address(tape + SLOT), (slots - 1) * SLOT, p->stream));
    DRIVER(cu.cuMemcpyAsync(address(tape), address(spare), (slots - 1) * SLOT, p->stream));
    return true;
}

/* PEs that are threads of one process share a context per GPU. What makes or uploads a graph there, or launches more than the driver has room
 * for, may wait for streams of the context, and those may wait for a PE that has come no further: so all make and upload their graphs
 * before any is launched, and nobody launches far ahead. */
static bool make_graph(pe *p, CUgraph graph, CUgraphExec *exec)
{
    DRIVER(cu.cuGraphInstantiateWithFlags(exec, graph, 0));
    DRIVER(cu.cuGraphUpload(*exec, p->stream));
    DRIVER(cu.cuStreamSynchronize(p->stream));
    return sync_all(p);
}

static bool launch_all(pe *p, CUgraphExec exec, int replays)
{
    for (int i = 0; i < replays; i++) {
        DRIVER(cu.cuGraphLaunch(exec, p->stream));
        if ((i + 1) % AHEAD == 0)
            DRIVER(cu.cuStreamSynchronize(p->stream));
    }
    DRIVER(cu.cuStreamSynchronize(p->stream));
    return true;
}

/* What each replay does: with the right one's credit, put the head of the tape with a signal of 1; take what the left one has put to the end of the
 * log; give the left one its credit. All waits consume, so every replay is alike. */
static bool append_step(pe *p, unsigned char *tape, unsigned char *log, unsigned char *spare)
{
    const uint64_t name = 1000 + (uint64_t)p->me;
    FINE(uf_wait_on_stream(p->world, &p->words[33], UF_EQ, 1, UF_CONSUME, p->stream));
    FINE(uf_put_signal_on_stream(p->ctx, p->in, tape, SLOT, &p->words[32], UF_SIGNAL_SET, 1, p->right, UF_WEAK, p->stream));
    FINE(uf_wait_on_stream(p->world, &p->words[32], UF_EQ, 1, UF_CONSUME, p->stream));
    FINE(uf_put_signal_on_stream(p->ctx, &p->words[34], &name, 8, &p->words[35], UF_SIGNAL_SET, 1, p->right, UF_BY_VALUE,
                                 p->stream));
    FINE(uf_wait_on_stream(p->world, &p->words[35], UF_EQ, 1, UF_CONSUME, p->stream));
    if (!shift(p, tape, spare, REPLAYS) || !shift(p, log, spare, REPLAYS))
        return false;
    FINE(uf_put_on_stream(p->ctx, log + (REPLAYS - 1) * SLOT, p->in, SLOT, p->me, p->stream));
    FINE(uf_signal_on_stream(p->ctx, &p->words[33], UF_SIGNAL_SET, 1, p->left, 0, p->stream));
    return true;
}

static bool replay(pe *p, unsigned char *tape, unsigned char *log, unsigned char *spare, unsigned char *host)
{
    CUgraph graph;
    CUgraphExec exec;
    for (unsigned i = 0; i < REPLAYS; i++)
        fill(host + (size_t)i * SLOT, SLOT, p->me, i + 100);
    if (!copy(p, tape, host, (size_t)REPLAYS * SLOT))
        return false;
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (!append_step(p, tape, log, spare))
        return false;
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    if (!make_graph(p, graph, &exec))
        return false;
    FINE(uf_signal(p->ctx, &p->words[33], UF_SIGNAL_SET, 1, p->left, 0)); /* the first credit */
    if (!launch_all(p, exec, REPLAYS) || !sync_all(p) || !copy(p, host, log, (size_t)REPLAYS * SLOT))
        return false;
    for (unsigned i = 0; i < REPLAYS; i++)
        HOLD(is(host + (size_t)i * SLOT, SLOT, p->left, i + 100));
    uint64_t name = 0;
    FINE(uf_get(p->ctx, &name, &p->words[34], 8, p->me));
    HOLD(name == 1000 + (uint64_t)p->left);
    DRIVER(cu.cuGraphExecDestroy(exec));
    DRIVER(cu.cuGraphDestroy(graph));
    return true;
}

bool a_captured_exchange_is_right_at_each_of_1000_replays(pe *p)
{
    void *tape, *log, *spare;
    unsigned char *host = malloc((size_t)REPLAYS * SLOT);
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &tape));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &log));
    FINE(uf_malloc_on(p->world, UF_MEMORY_CUDA, (size_t)REPLAYS * SLOT, 0, &spare));
    bool ok = host && sync_all(p) && replay(p, tape, log, spare, host) && sync_all(p);
    free(host);
    if (!ok)
        return false;
    FINE(uf_free(p->world, spare));
    FINE(uf_free(p->world, log));
    FINE(uf_free(p->world, tape));
    return true;
}

bool a_captured_barrier_is_right_at_each_replay(pe *p)
{
    CUgraph graph;
    CUgraphExec exec;
    if (!sync_all(p))
        return false;
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    FINE(uf_barrier_on_stream(uf_team_world(p->world), p->stream));
    FINE(uf_signal_on_stream(p->ctx, &p->words[40], UF_SIGNAL_SET, 1, p->right, 0, p->stream));
    FINE(uf_barrier_on_stream(uf_team_world(p->world), p->stream));
    /* The left one's signal is here now; without the barrier it would be waited for, so nothing here can wait for long. */
    FINE(uf_wait_on_stream(p->world, &p->words[40], UF_EQ, 1, UF_CONSUME, p->stream));
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    if (!make_graph(p, graph, &exec) || !launch_all(p, exec, 300) || !sync_all(p))
        return false;
    DRIVER(cu.cuGraphExecDestroy(exec));
    DRIVER(cu.cuGraphDestroy(graph));
    return sync_all(p);
}

bool allocating_while_capturing_is_refused_and_said(pe *p)
{
    CUstream blocking;
    CUgraph graph;
    void *ptr = NULL;
    uf_window *window = NULL;
    if (p->crowd->threads && p->crowd->device >= 0 && p->me > 0)
        return sync_all(p) && sync_all(p); /* all of them have one context: one thread is enough */
    if (!sync_all(p))
        return false;
    DRIVER(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DRIVER(cu.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    int malloced = uf_malloc_on(p->world, UF_MEMORY_CUDA, 4096, 0, &ptr);
    bool said = strstr(uf_error_message(), "captured") != NULL;
    int registered = uf_register(p->world, p->mine, 4096, &window);
    bool said_too = strstr(uf_error_message(), "captured") != NULL;
    DRIVER(cu.cuStreamEndCapture(blocking, &graph));
    DRIVER(cu.cuGraphDestroy(graph));
    DRIVER(cu.cuStreamDestroy(blocking));
    HOLD(malloced == UF_EINVAL && said);
    HOLD(registered == UF_EINVAL && said_too);
    return sync_all(p);
}

/* The last one: it ends the world. */
bool an_abort_lets_streams_go_and_tells_kernels(pe *p)
{
    const struct ufd_world *device;
    ufd_world w;
    FINE(uf_device_world(p->world, &device));
    if (!copy(p, &w, device, sizeof w))
        return false;
    FINE(uf_wait_on_stream(p->world, &p->words[50], UF_EQ, 1, UF_CONSUME, p->stream));
    FINE(uf_wait_on_stream(p->world, &p->host_words[6], UF_GE, 3, 0, p->stream));
    HOLD(cu.cuStreamQuery(p->stream) == CUDA_ERROR_NOT_READY);
    if (!sync_all(p))
        return false;
    if (p->me == 0)
        FINE(uf_world_abort(p->world, "for the test"));
    HOLD(cu.cuStreamSynchronize(p->stream) == CUDA_SUCCESS);
    HOLD(uf_world_status(p->world) == UF_EABORTED);
    HOLD(*(const volatile int32_t *)w.status == UF_EABORTED);
    HOLD(uf_wait(p->world, &p->words[51], UF_EQ, 9, 10ull * SECOND) == UF_EABORTED);
    HOLD(uf_wait_on_stream(p->world, &p->words[50], UF_EQ, 1, 0, p->stream) == UF_EABORTED);
    return true;
}
