/* stream.cu - what put-with-signal and wait on streams cost: one way, on the host, in graphs, and as bandwidth beside plain copies.
 *
 * stream [--json FILE] [--gpus 1|2]
 * Two PEs with a world: processes on two GPUs, or threads that share one and its context (the driver takes turns between processes of one
 * GPU, which would be what is measured). Beside them, in the same run, what bare calls of the driver and bare graphs cost the host. The sender's stream is held by a word of host memory until both have appended
 * everything, so that the time measured is the GPUs'; the time on the host is that of the calls while the stream is held. Nothing is a
 * kernel. What arrived is compared in full after each sample; a wrong byte fails the run. What is compared runs in turn. */
#include "gpu/crowd.h"
#include "report.cuh"
#include <chrono>
#include <cstdlib>
#include <vector>

enum { PAIRS = 100, GRAPH_PAIRS = 50, SAMPLES = 60, ROUNDS = 20, GATE = 9, WARM = 5, BUFFER = 4 << 20 };

/* Of each PE, also where PEs are threads. */
static thread_local struct {
    report rep;
    uint64_t gate, signals; /* numbers that only grow */
    std::vector<unsigned char> buffer;
    unsigned char *host;
} b;

static struct {
    const char *json, *fabric;
    int gpus;
} run;

static bool begun(pe *p)
{
    (void)p;
    b.buffer.resize(BUFFER);
    b.host = b.buffer.data();
    b.rep.gpus = run.gpus;
    b.rep.fabric = run.fabric;
    return true;
}

static double now_us(void)
{
    using namespace std::chrono;
    return (double)duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count() / 1e3;
}

static bool hold_stream(pe *p)
{
    b.gate++;
    if (p->me == 0)
        FINE(uf_wait_on_stream(p->world, &p->host_words[GATE], UF_GE, b.gate, 0, p->stream));
    return true;
}

/* All have appended; microseconds until our stream is done, on PE 0 from when it was let go. */
static bool let_go(pe *p, double *us)
{
    if (!sync_all(p))
        return false;
    double begin = now_us();
    if (p->me == 0)
        __atomic_store_n(&p->host_words[GATE], b.gate, __ATOMIC_RELEASE);
    DRIVER(cu.cuStreamSynchronize(p->stream));
    *us = now_us() - begin;
    return sync_all(p);
}

/* The payload of message i is 8 bytes that say which. */
static bool load_numbers(pe *p, uint64_t n, uint64_t base)
{
    uint64_t *numbers = (uint64_t *)b.host;
    for (uint64_t i = 0; i < n; i++)
        numbers[i] = base + i * 0x100000001ull + (uint64_t)p->me;
    return copy(p, p->mine, b.host, n * 8) && sync_all(p);
}

static bool numbers_arrived(pe *p, uint64_t n, uint64_t base)
{
    const uint64_t *numbers = (const uint64_t *)b.host;
    if (!copy(p, b.host, p->in, n * 8))
        return false;
    for (uint64_t i = 0; i < n; i++)
        HOLD(numbers[i] == base + i * 0x100000001ull + (uint64_t)p->right);
    return sync_all(p);
}

/* ---------------------------------------------------------------- one way, and what the calls cost */

/* By value the number is in host memory, the same that load_numbers has put into GPU memory for the copy. */
static bool send(pe *p, uint64_t i, uint64_t *word, uint64_t value, unsigned flags)
{
    const void *from = flags & UF_BY_VALUE ? b.host + 8 * i : p->mine + 8 * i;
    FINE(uf_put_signal_on_stream(p->ctx, p->in + 8 * i, from, 8, word, UF_SIGNAL_SET, value, p->right, flags, p->stream));
    return true;
}

static bool append_pairs(pe *p, std::vector<double> *host, unsigned flags)
{
    for (uint64_t i = 0; i < PAIRS; i++) {
        uint64_t value = b.signals + i + 1;
        double begin = now_us();
        if (p->me == 0 && !send(p, i, &p->words[0], value, flags))
            return false;
        FINE(uf_wait_on_stream(p->world, &p->words[p->me == 0 ? 1 : 0], UF_GE, value, 0, p->stream));
        if (p->me == 1 && !send(p, i, &p->words[1], value, flags))
            return false;
        host->push_back(now_us() - begin);
    }
    b.signals += PAIRS;
    return true;
}

/* One after the other: threads that share a context wait for each other inside the driver. */
static bool append_in_turn(pe *p, std::vector<double> *host, unsigned flags)
{
    for (int turn = 0; turn < p->n; turn++)
        if ((turn == p->me && !append_pairs(p, host, flags)) || !sync_all(p))
            return false;
    return true;
}

static bool one_way_with(pe *p, const char *what, const char *judged_way, const char *judged_host, unsigned flags)
{
    std::vector<double> ways, host, none;
    for (int sample = 0; sample < SAMPLES + WARM; sample++) {
        uint64_t base = (uint64_t)sample << 40 | (uint64_t)flags << 32;
        double us;
        if (!load_numbers(p, PAIRS, base) || !hold_stream(p) || !append_in_turn(p, sample < WARM ? &none : &host, flags) ||
            !let_go(p, &us) || !numbers_arrived(p, PAIRS, base))
            return false;
        if (sample >= WARM)
            ways.push_back(us / (2 * PAIRS));
    }
    if (p->me != 0)
        return true;
    double way = report_add(&b.rep, "stream", what, 8, 1, "one way", "us", "", ways);
    double calls = report_add(&b.rep, "stream", what, 8, 1, "host", "us", "", host);
    report_judge(&b.rep, judged_way, way, "us", 6.0, true);
    report_judge(&b.rep, judged_host, calls, "us", 4.0, true);
    return true;
}

static bool one_way(pe *p)
{
    return one_way_with(p, "put_signal + wait", "put_signal + wait on a stream, 8 B, one way",
                        "put_signal + wait on a stream, host time of both calls", 0);
}

static bool one_way_by_value(pe *p)
{
    return one_way_with(p, "put_signal by value + wait", "the same by value, one way",
                        "the same by value, host time of both calls", UF_BY_VALUE);
}

/* ---------------------------------------------------------------- replayed */

/* How the pairs of a graph are made: by copies or by value, and waits apart or chained. */
typedef struct shape {
    const char *name, *judged;
    unsigned put, wait;
} shape;

/* Signals count up within the graph and the last wait consumes, so that every replay is alike: it begins with words of 0. */
static bool capture(pe *p, CUgraphExec *exec, const shape *s)
{
    CUgraph graph;
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint64_t i = 0; i < GRAPH_PAIRS; i++) {
        unsigned wait = s->wait | (i + 1 == GRAPH_PAIRS ? (unsigned)UF_CONSUME : 0);
        if (p->me == 0 && !send(p, i, &p->words[2], i + 1, s->put))
            return false;
        FINE(uf_wait_on_stream(p->world, &p->words[p->me == 0 ? 3 : 2], UF_EQ, i + 1, wait, p->stream));
        if (p->me == 1 && !send(p, i, &p->words[3], i + 1, s->put))
            return false;
    }
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    DRIVER(cu.cuGraphInstantiateWithFlags(exec, graph, 0));
    DRIVER(cu.cuGraphUpload(*exec, p->stream));
    DRIVER(cu.cuStreamSynchronize(p->stream));
    DRIVER(cu.cuGraphDestroy(graph));
    return sync_all(p);
}

static bool launch_in_turn(pe *p, CUgraphExec exec, double *us)
{
    for (int turn = 0; turn < p->n; turn++) {
        double begin = now_us();
        if (turn == p->me) {
            DRIVER(cu.cuGraphLaunch(exec, p->stream));
            *us = now_us() - begin;
        }
        if (!sync_all(p))
            return false;
    }
    return true;
}

static bool replayed_with(pe *p, const shape *s)
{
    std::vector<double> ways, host;
    CUgraphExec exec;
    /* What goes by value is that of the capture, so all samples have the same numbers. */
    if (!load_numbers(p, GRAPH_PAIRS, 77) || !capture(p, &exec, s))
        return false;
    for (int sample = 0; sample < SAMPLES + WARM; sample++) {
        uint64_t base = s->put & UF_BY_VALUE ? 77 : (uint64_t)sample << 44;
        double us;
        DRIVER(cu.cuMemsetD8Async(address(p->in), 0, 8 * GRAPH_PAIRS, p->stream));
        DRIVER(cu.cuStreamSynchronize(p->stream));
        if (!load_numbers(p, GRAPH_PAIRS, base) || !hold_stream(p))
            return false;
        double launched = 0;
        if (!launch_in_turn(p, exec, &launched) || !let_go(p, &us) || !numbers_arrived(p, GRAPH_PAIRS, base))
            return false;
        if (sample < WARM)
            continue;
        ways.push_back(us / (2 * GRAPH_PAIRS));
        host.push_back(launched / GRAPH_PAIRS);
    }
    DRIVER(cu.cuGraphExecDestroy(exec));
    if (p->me != 0)
        return true;
    report_add(&b.rep, "stream", s->name, 8, 1, "one way", "us", "", ways);
    double launch = report_add(&b.rep, "stream", s->name, 8, 1, "host", "us", "", host);
    report_judge(&b.rep, s->judged, launch, "us", 1.5, true);
    return true;
}

static bool replayed(pe *p)
{
    static const shape shapes[] = {
        {"graph of 50 pairs", "replay in a graph, host time per pair", 0, 0},
        {"graph of 50 pairs by value", "replay by value in a graph, host time per pair", UF_BY_VALUE, 0},
        {"graph of 50 pairs by value, chained", "replay by value, chained, host time per pair", UF_BY_VALUE, UF_CHAINED}};
    for (const shape &s : shapes)
        if (!replayed_with(p, &s))
            return false;
    return true;
}

/* ---------------------------------------------------------------- what the driver's own calls cost the host */

static CUstreamBatchMemOpParams memory_operation(CUstreamBatchMemOpType type, uint64_t *word, uint64_t value)
{
    CUstreamBatchMemOpParams o;
    memset(&o, 0, sizeof o);
    o.writeValue.operation = type; /* the members of a wait lie at the same places */
    o.writeValue.address = address(word);
    o.writeValue.value64 = value;
    return o;
}

enum { BARE_COPY, BARE_STORE, BARE_STORES_2, BARE_STORES_9, BARE_WAIT, BARE_THIRD, BARE_CHAIN, BARE_KINDS };
static const char *const bare_names[BARE_KINDS] = {"cuMemcpyAsync",
                                                   "cuStreamBatchMemOp, 1 store",
                                                   "cuStreamBatchMemOp, 2 stores",
                                                   "cuStreamBatchMemOp, 9 stores",
                                                   "cuStreamBatchMemOp, 1 wait",
                                                   "cuStreamBatchMemOp, wait and 2 stores",
                                                   "cuStreamBatchMemOp, 21 times that"};

/* The waits hold already: for a word that is not less than 0. */
static CUresult bare_call(pe *p, int kind)
{
    static const unsigned counts[BARE_KINDS] = {0, 1, 2, 9, 1, 3, 63};
    CUstreamBatchMemOpParams ops[63];
    if (kind == BARE_COPY)
        return cu.cuMemcpyAsync(address(p->in), address(p->mine), 8, p->stream);
    for (unsigned i = 0; i < counts[kind]; i++) {
        bool wait = kind >= BARE_WAIT && i % 3 == 0;
        ops[i] =
            memory_operation(wait ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_64, &p->words[8 + i % 8], 0);
    }
    return cu.cuStreamBatchMemOp(p->stream, counts[kind], ops, 0);
}

static bool bare_graph(pe *p, const char *what, int nodes, int first, int second)
{
    std::vector<double> host;
    CUgraph graph;
    CUgraphExec exec;
    DRIVER(cu.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < nodes; i++) {
        DRIVER(bare_call(p, first));
        if (second >= 0)
            DRIVER(bare_call(p, second));
    }
    DRIVER(cu.cuStreamEndCapture(p->stream, &graph));
    DRIVER(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    DRIVER(cu.cuGraphUpload(exec, p->stream));
    for (int sample = 0; sample < SAMPLES + WARM; sample++) {
        DRIVER(cu.cuStreamSynchronize(p->stream));
        double begin = now_us();
        DRIVER(cu.cuGraphLaunch(exec, p->stream));
        if (sample >= WARM)
            host.push_back((now_us() - begin) / GRAPH_PAIRS);
    }
    DRIVER(cu.cuStreamSynchronize(p->stream));
    DRIVER(cu.cuGraphExecDestroy(exec));
    DRIVER(cu.cuGraphDestroy(graph));
    report_add(&b.rep, "stream", what, 8, 1, "host", "us", "", host);
    return true;
}

static bool calls(pe *p)
{
    if (p->me != 0)
        return sync_all(p);
    for (int kind = 0; kind < BARE_KINDS; kind++) {
        std::vector<double> host;
        for (int i = 0; i < 40 * PAIRS; i++) {
            double begin = now_us();
            DRIVER(bare_call(p, kind));
            if (i >= PAIRS)
                host.push_back(now_us() - begin);
            if (i % PAIRS == 0)
                DRIVER(cu.cuStreamSynchronize(p->stream));
        }
        report_add(&b.rep, "driver", bare_names[kind], 8, 1, "host", "us", "", host);
    }
    return bare_graph(p, "bare graph of 50: copy, batch of 2", GRAPH_PAIRS, BARE_COPY, BARE_STORES_2) &&
           bare_graph(p, "bare graph of 50: wait and 2 stores", GRAPH_PAIRS, BARE_THIRD, -1) &&
           bare_graph(p, "bare graph of 50 in 3 batches", 3, BARE_CHAIN, -1) && sync_all(p);
}

/* ---------------------------------------------------------------- bandwidth */

static bool load_pattern(pe *p, unsigned salt)
{
    if (p->me == 0)
        fill(b.host, BUFFER, 0, salt);
    else
        memset(b.host, 0, BUFFER);
    return copy(p, p->me == 0 ? p->mine : p->in, b.host, BUFFER) && sync_all(p);
}

static bool pattern_arrived(pe *p, unsigned salt)
{
    if (p->me == 1) {
        if (!copy(p, b.host, p->in, BUFFER))
            return false;
        HOLD(is(b.host, BUFFER, 0, salt));
    }
    return sync_all(p);
}

/* GB/s of one batch. */
static bool batch(pe *p, uint64_t bytes, uint64_t messages, bool plain, double *rate)
{
    unsigned char *there = (unsigned char *)uf_ptr(p->world, p->in, 1);
    double us;
    HOLD(there != NULL);
    if (!hold_stream(p))
        return false;
    for (uint64_t i = 0; p->me == 0 && i < messages; i++) {
        uint64_t at = i * bytes % BUFFER;
        if (plain)
            DRIVER(cu.cuMemcpyAsync(address(there + at), address(p->mine + at), bytes, p->stream));
        else
            FINE(uf_put_signal_on_stream(p->ctx, p->in + at, p->mine + at, bytes, &p->words[4], UF_SIGNAL_SET, ++b.signals, 1,
                                         UF_WEAK, p->stream));
    }
    if (!let_go(p, &us))
        return false;
    *rate = (double)(bytes * messages) / us / 1e3;
    return true;
}

static bool bandwidth_of(pe *p, uint64_t bytes, uint64_t messages)
{
    std::vector<double> rates[2], ratios;
    for (unsigned round = 0; round < ROUNDS + WARM; round++) {
        double rate[2];
        for (unsigned plain = 0; plain < 2; plain++)
            if (!load_pattern(p, 2 * round + plain) || !batch(p, bytes, messages, plain, &rate[plain]) ||
                !pattern_arrived(p, 2 * round + plain))
                return false;
        if (round < WARM)
            continue;
        rates[0].push_back(rate[0]);
        rates[1].push_back(rate[1]);
        ratios.push_back(rate[0] / rate[1]);
    }
    if (p->me != 0)
        return true;
    report_add(&b.rep, "stream", "put_signal", bytes, 1, "bandwidth", "GB/s", "", rates[0]);
    report_add(&b.rep, "stream", "cuMemcpyAsync", bytes, 1, "bandwidth", "GB/s", "", rates[1]);
    report_add(&b.rep, "stream", "put_signal", bytes, 1, "ratio", "x", "cuMemcpyAsync", ratios);
    return true;
}

static bool bandwidth(pe *p)
{
    return bandwidth_of(p, 65536, 256) && bandwidth_of(p, BUFFER, 64);
}

/* ---------------------------------------------------------------- the run */

static bool written(pe *p)
{
    char name[64] = "", version[32];
    CUdevice device;
    int number = 0;
    if (p->me != 0)
        return true;
    DRIVER(cu.cuDeviceGet(&device, 0));
    DRIVER(cu.cuDeviceGetName(name, sizeof name, device));
    DRIVER(cu.cuDriverGetVersion(&number));
    snprintf(version, sizeof version, "CUDA %d.%d", number / 1000, number % 1000 / 10);
    b.rep.gpu = name;
    b.rep.driver = version;
    report_targets(&b.rep);
    fflush(stdout);
    HOLD(!run.json || report_json(&b.rep, run.json));
    return true;
}

static const promise steps[] = {PROMISE(begun),    PROMISE(calls),     PROMISE(one_way), PROMISE(one_way_by_value),
                                PROMISE(replayed), PROMISE(bandwidth), PROMISE(written)};

static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return NULL;
}

int main(int argc, char **argv)
{
    static const suite all = {steps, sizeof steps / sizeof *steps};
    int found = crowd_count_gpus();
    const char *most = option(argc, argv, "--gpus");
    run.json = option(argc, argv, "--json");
    if (found < 1) {
        printf("no GPU here\n");
        return 77;
    }
    bool two = found > 1 && !(most && atoi(most) == 1);
    run.gpus = two ? 2 : 1;
    run.fabric = two ? "local (2 GPUs)" : "local (1 GPU)";
    const crowd pair = {two ? "two GPUs" : "threads on one GPU", 2, two ? -1 : 0, !two};
    if (two)
        crowd_run_processes(&pair, &all);
    else
        crowd_run_threads(&pair, &all);
    return crowd_finish(found);
}
