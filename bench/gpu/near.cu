/* near.cu - what puts, signals and barriers between near peers cost, and how fast streams of them are.
 *
 * near [--json FILE] [--gpus N] [--only latency|bandwidth|ratio|knob|barrier|prove] [--prove MESSAGES] [--seconds S] [--limit S]
 * Two PEs on two GPUs that reach each other, or both on one. Everything that arrives is checked, word by word; a wrong word
 * ends the run with exit code 1. Targets of streams rotate over 128 MiB: one target written again and again reports more than a link
 * carries. What is compared runs in turn, in one process; a ratio is the median over rounds. `prove` is the evidence for
 * UFD_COMPLETED: a receiver that reads every word the moment its signal shows, and a control in which it must find wrong ones. */
#include "floors.cuh"
#include "report.cuh"
#include <chrono>

struct bench {
    rig r;
    report rep;
    uint64_t run, base; /* numbers that only grow: of runs, of flags and signals */
    cudaEvent_t begin, end;
    times *t, *t_host;
    uint64_t faults;
    double limit; /* seconds for all of it */
    std::chrono::steady_clock::time_point started;

    double left(void) const
    {
        return limit - std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    }
    int refused; /* launches that there was no room for */
};

static uint32_t bits_of(uint64_t n)
{
    uint32_t bits = 0;
    while (2ull << bits <= n)
        bits++;
    return bits;
}

static layout lay(bench *b, uint64_t bytes, uint64_t stride)
{
    layout l = {bytes, stride, ++b->run, bits_of(ROTATION / stride)};
    return l;
}

/* A row, unless the machine had no room for what was to be measured. */
static double add_row(bench *b, const char *kind, const char *policy, uint64_t bytes, uint32_t inflight, const char *metric,
                      const char *unit, const char *against, const std::vector<double> &samples)
{
    if (!b->r.refused)
        return report_add(&b->rep, kind, policy, bytes, inflight, metric, unit, against, samples);
    printf("%-15s %-22s %8llu B: not measured\n", kind, policy, (unsigned long long)bytes);
    b->refused += b->r.refused;
    b->r.refused = 0;
    return 0;
}

/* All kernels are over; a fault of any ends the benchmark. */
static void settle(bench *b, const char *what)
{
    rig_synchronize(&b->r);
    for (int pe = 0; pe < 2; pe++) {
        rig_faults f;
        rig_read(&b->r, pe, &f, b->r.pe[pe].faults, sizeof f);
        if (f.count == 0)
            continue;
        printf("WRONG: %s: PE %d counts %llu faults, first: check %llu (%llu, %llu)\n", what, pe, f.count, f.code, f.a, f.b);
        b->faults += f.count;
        RIG_CUDA(cudaMemset(b->r.pe[pe].faults, 0, sizeof f));
    }
}

static void check(bench *b, const layout &l, uint64_t messages, int from, bool signals, const char *what)
{
    if (b->r.refused)
        return;
    rig_start(&b->r, verify, 256, 256, 0, l, messages, from, signals);
    settle(b, what);
}

/* Milliseconds of the kernel that `start` launches for PE 0 on stream 0. */
template <class F> static double timed(bench *b, F start)
{
    float ms;
    RIG_CUDA(cudaSetDevice(b->r.pe[0].gpu));
    RIG_CUDA(cudaEventRecord(b->begin, b->r.pe[0].streams[0]));
    start();
    RIG_CUDA(cudaSetDevice(b->r.pe[0].gpu));
    RIG_CUDA(cudaEventRecord(b->end, b->r.pe[0].streams[0]));
    rig_synchronize(&b->r);
    RIG_CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
    return ms;
}

static const times *read_times(bench *b)
{
    RIG_CUDA(cudaSetDevice(b->r.pe[0].gpu));
    RIG_CUDA(cudaMemcpy(b->t_host, b->t, sizeof *b->t, cudaMemcpyDeviceToHost));
    return b->t_host;
}

/* ---------------------------------------------------------------- latency */

/* `bits`: over how many places messages rotate: PING_HOT as buffers that are used again and again, more to see what cold memory costs. */
template <class S, int Kind>
static double ping_of(bench *b, const char *policy, uint64_t bytes, unsigned threads, uint32_t bits = PING_HOT)
{
    std::vector<double> us;
    if (Kind == PING_FLAGGED)
        for (int pe = 0; pe < 2; pe++)
            RIG_CUDA(cudaMemset(b->r.pe[pe].heap + AT_TARGET, 0, ROTATION));
    for (int round = 0; round < 4; round++) {
        const uint32_t n = 1900;
        layout l = lay(b, bytes, 65536);
        l.bits = bits;
        rig_start(&b->r, ping<S, Kind>, 1, threads, 0, l, n, b->base, b->t);
        settle(b, policy);
        b->base += n + 51;
        const times *t = read_times(b);
        for (uint32_t i = 0; i < n && round > 0; i++)
            us.push_back(t->each[i] * ((double)t->ns / (double)t->clocks) / 2000.0);
        for (int from = 0; from < 2 && (Kind == PING_PUT_SIGNAL || Kind == PING_READ); from++)
            check(b, l, n + 50 + (from == 0), from, false, policy);
    }
    return add_row(b, "gpu-latency", policy, bytes, 1, "latency", "us", "", us);
}

template <int Kind> static double word_of(bench *b, const char *policy, uint32_t bits)
{
    std::vector<double> us;
    if (Kind == WORD_FLAGGED)
        for (int pe = 0; pe < 2; pe++)
            RIG_CUDA(cudaMemset(b->r.pe[pe].heap + AT_TARGET, 0, ROTATION));
    for (int round = 0; round < 4; round++) {
        const uint32_t n = 1900;
        rig_start(&b->r, word_ping<Kind>, 1, 1, 0, (1u << bits) - 1, n, b->base, b->t);
        settle(b, policy);
        b->base += n + 51;
        const times *t = read_times(b);
        for (uint32_t i = 0; i < n && round > 0; i++)
            us.push_back(t->each[i] * ((double)t->ns / (double)t->clocks) / 2000.0);
    }
    return add_row(b, "gpu-latency", policy, Kind == WORD_FLAGGED ? 8 : 0, 1, "latency", "us", "", us);
}

/* One way, or the whole turn where both sides do the same at once. */
template <int Kind> static double bare_of(bench *b, const char *policy)
{
    std::vector<double> us;
    for (int round = 0; round < 6; round++) {
        const uint32_t n = 2000;
        rig_start(&b->r, bare_words<Kind>, 1, 1, 0, n, b->base, b->t);
        settle(b, policy);
        b->base += n + 50;
        const times *t = read_times(b);
        if (round > 0)
            us.push_back((double)t->ns / (double)t->n / (Kind == BARE_SYNC || Kind == BARE_BARRIER ? 1000.0 : 2000.0));
    }
    return add_row(b, "gpu-floor", policy, Kind == BARE_PUT || Kind == BARE_PAIR ? 8 : 0, 1, "latency", "us", "", us);
}

static void latencies(bench *b)
{
    bare_of<BARE_RELAXED>(b, "bare word, polled relaxed");
    bare_of<BARE_TWICE>(b, "bare word, two loads under way");
    bare_of<BARE_ACQUIRE>(b, "bare word, polled with acquire");
    bare_of<BARE_PAIR>(b, "bare 16 bytes");
    bare_of<BARE_RELEASE>(b, "bare word, sent with release");
    bare_of<BARE_PUT>(b, "bare 8 bytes, then release");
    double signal = word_of<WORD_SIGNAL>(b, "signal", 0);
    report_judge(&b->rep, "signal alone, one way", signal, "us", 0.70, true);
    double flagged = word_of<WORD_FLAGGED>(b, "flagged+read", PING_HOT);
    report_judge(&b->rep, "flagged put 8 B, one way, payload read", flagged, "us", 0.80, true);
    word_of<WORD_FLAGGED>(b, "flagged+read, cold", 11);
    ping_of<ufd_thread, PING_FLAGGED>(b, "flagged+read, by memory", 8, 1);
    double put = ping_of<ufd_thread, PING_PUT_SIGNAL>(b, "put_signal", 8, 1);
    report_judge(&b->rep, "put_signal 8 B, one way", put, "us", 1.93, true);
    ping_of<ufd_thread, PING_READ>(b, "put_signal+read", 8, 1);
    ping_of<ufd_warp, PING_READ>(b, "put_signal+read/warp", 1024, 32);
    ping_of<ufd_warp, PING_FLAGGED>(b, "flagged+read/warp", 1024, 32);
    ping_of<ufd_block, PING_PUT_SIGNAL>(b, "put_signal/block", 8192, 512);
    double big = ping_of<ufd_block, PING_PUT_SIGNAL>(b, "put_signal/block", 65536, 1024);
    big = std::min(big, ping_of<ufd_block, PING_PUT_SIGNAL>(b, "put_signal/block of 512", 65536, 512));
    ping_of<ufd_block, PING_PUT_SIGNAL>(b, "put_signal/block, cold", 65536, 1024, 11);
    for (int store = 0; store < 2; store++) {
        rig_start(&b->r, fences, 1, 1, 0, 2000u, store != 0, b->t);
        settle(b, "fence");
        const times *t = read_times(b);
        add_row(b, "gpu-latency", store ? "store+fence" : "fence", 0, 1, "latency", "us", "",
                {(double)t->ns / 1000.0 / (double)t->n});
    }
    report_judge(&b->rep, "put_signal 64 KiB by one block, one way", big, "us", 3.54, true);
}

template <class S, class How> static double meeting(bench *b, const char *policy, unsigned threads)
{
    std::vector<double> us;
    for (int round = 0; round < 8; round++) {
        rig_start(&b->r, meetings<S, How>, 1, threads, 0, 1000u, b->t);
        settle(b, policy);
        const times *t = read_times(b);
        if (round > 0)
            us.push_back((double)t->ns / 1000.0 / (double)t->n);
    }
    return add_row(b, "gpu-barrier", policy, 0, 1, "latency", "us", "", us);
}

static void barriers(bench *b)
{
    bare_of<BARE_BARRIER>(b, "bare barrier: fence, word, acquire");
    bare_of<BARE_SYNC>(b, "bare sync: word, polled relaxed");
    double best = meeting<ufd_thread, ufd_completing>(b, "barrier/thread", 1);
    best = std::min(best, meeting<ufd_warp, ufd_completing>(b, "barrier/warp", 32));
    double block = meeting<ufd_block, ufd_completing>(b, "barrier/block", 256);
    double sync = meeting<ufd_thread, ufd_only_meeting>(b, "sync/thread", 1);
    meeting<ufd_warp, ufd_only_meeting>(b, "sync/warp", 32);
    meeting<ufd_block, ufd_only_meeting>(b, "sync/block", 256);
    report_judge(&b->rep, "barrier, thread or warp", best, "us", 1.5, true);
    report_judge(&b->rep, "barrier, block of 256", block, "us", 1.5, true);
    report_judge(&b->rep, "sync, thread", sync, "us", 1.0, true);
}

/* ---------------------------------------------------------------- streams */

/* One way of moving messages of one size. */
struct mover {
    const char *policy;
    void (*start)(bench *b, const layout &l, unsigned blocks, uint64_t messages, uint32_t batch, uint64_t ns, uint64_t *stamp,
                  bool both);
    uint32_t lanes; /* movers of a block */
    bool signals;
};

template <class Shape, int Mode>
static void start_moving(bench *b, const layout &l, unsigned blocks, uint64_t messages, uint32_t batch, uint64_t ns,
                         uint64_t *stamp, bool both)
{
    rig_start(&b->r, moving<Shape, Mode>, blocks, ufd_mover_threads<Shape>(Mode), ufd_mover_bytes<Shape>(), l,
              messages / blocks / Shape::warps, batch, ns, stamp, both);
}

template <int Mode>
static void start_putting(bench *b, const layout &l, unsigned blocks, uint64_t messages, uint32_t batch, uint64_t ns,
                          uint64_t *stamp, bool both)
{
    rig_start(&b->r, putting, blocks, 1024, 0, l, messages / blocks, Mode != UFD_UNSIGNALLED);
}

template <class Shape, int Mode> static mover moving_as(const char *policy)
{
    return {policy, start_moving<Shape, Mode>, Shape::warps, Mode != UFD_UNSIGNALLED};
}

/* GB/s of `total` bytes in messages, checked. */
static double rate_of(bench *b, const mover &m, uint64_t bytes, unsigned blocks, uint64_t total, uint32_t batch, uint64_t ns)
{
    layout l = lay(b, bytes, bytes);
    uint64_t messages = total / bytes;
    double ms = timed(b, [&] { m.start(b, l, blocks, messages, batch, ns, NULL, false); });
    check(b, l, messages, 0, m.signals, m.policy);
    return (double)total / ms / 1e6;
}

/* Bulk stores of what lies in shared memory. */
template <int Told> static double bare_stores_of(bench *b, const char *policy, uint32_t bytes, unsigned blocks, uint32_t warps)
{
    std::vector<double> rates;
    const uint32_t stages = 196608 / bytes / warps < 8 ? 196608 / bytes / warps : 8;
    const uint64_t total = blocks == 1 ? 256ull << 20 : 1024ull << 20;
    for (int round = 0; round < 4; round++) {
        uint64_t each = total / bytes / blocks / warps;
        double ms = timed(b, [&] {
            rig_start(&b->r, bare_stores<Told>, blocks, 32 * warps, (size_t)stages * warps * bytes, bytes, stages, each);
        });
        settle(b, policy);
        if (round > 0)
            rates.push_back((double)(each * bytes * blocks * warps) / ms / 1e6);
    }
    char name[64];
    snprintf(name, sizeof name, "%s/%u warps", policy, warps);
    return add_row(b, "gpu-floor", name, bytes, blocks, "bandwidth", "GB/s", "", rates);
}

static double bandwidth_of(bench *b, const mover &m, uint64_t bytes, unsigned blocks)
{
    std::vector<double> rates;
    for (int round = 0; round < 5; round++) {
        double rate = rate_of(b, m, bytes, blocks, blocks == 1 ? 256ull << 20 : 2048ull << 20, 1, 0);
        if (round > 0)
            rates.push_back(rate);
    }
    return add_row(b, "gpu-bandwidth", m.policy, bytes, blocks, "bandwidth", "GB/s", "", rates);
}

static void bandwidths(bench *b)
{
    const mover movers[] = {
        {"block put", start_putting<UFD_UNSIGNALLED>, 1, false},
        moving_as<ufd_mover_shape<8, 3, 8192, 4>, UFD_UNSIGNALLED>("mover/8x3x8K"),
        moving_as<ufd_mover_shape<4, 6, 8192, 4>, UFD_UNSIGNALLED>("mover/4x6x8K"),
        moving_as<ufd_mover_shape<2, 12, 8192, 4>, UFD_UNSIGNALLED>("mover/2x12x8K"),
        moving_as<ufd_mover_shape<16, 3, 4096, 4>, UFD_UNSIGNALLED>("mover/16x3x4K"),
        moving_as<ufd_mover_shape<12, 4, 4096, 4>, UFD_UNSIGNALLED>("mover/12x4x4K"),
        moving_as<ufd_mover_shape<24, 4, 2048, 4>, UFD_UNSIGNALLED>("mover/24x4x2K"),
    };
    for (uint32_t warps : {1u, 4u, 8u})
        for (uint32_t bytes : {4096u, 16384u})
            bare_stores_of<BARE_UNTOLD>(b, "bare bulk stores", bytes, 1, warps);
    double best[3] = {0, 0, 0};
    const unsigned blocks[3] = {1, 8, 32};
    for (int k = 0; k < 3; k++)
        for (uint64_t bytes : {65536ull, 1048576ull})
            for (const mover *m = movers; m < movers + sizeof movers / sizeof *movers; m++)
                if (bytes * blocks[k] * m->lanes * 2 <= ROTATION) /* a slot has one writer */
                    best[k] = std::max(best[k], bandwidth_of(b, *m, bytes, blocks[k]));
    report_judge(&b->rep, "bandwidth of one block", best[0], "GB/s", 47, false);
    report_judge(&b->rep, "bandwidth of 8 blocks", best[1], "GB/s", 345, false);
    report_judge(&b->rep, "bandwidth of 32 blocks", best[2], "GB/s", 369, false);
}

/* Signalled over unsignalled with 8 blocks, in turn. */
static double ratio_of(bench *b, const mover &without, const mover &with, uint64_t bytes, uint32_t batch, uint64_t ns,
                       const char *name)
{
    std::vector<double> ratios, rates, bases;
    for (int round = 0; round < 8; round++) {
        double base = rate_of(b, without, bytes, 8, 512ull << 20, 1, 0),
               rate = rate_of(b, with, bytes, 8, 512ull << 20, batch, ns);
        if (round == 0)
            continue;
        ratios.push_back(rate / base), rates.push_back(rate), bases.push_back(base);
    }
    if (b->r.refused)
        return add_row(b, "gpu-stream", name, bytes, 8, "ratio", "x", without.policy, ratios);
    add_row(b, "gpu-stream", without.policy, bytes, 8, "bandwidth", "GB/s", "", bases);
    add_row(b, "gpu-stream", name, bytes, 8, "bandwidth", "GB/s", "", rates);
    return add_row(b, "gpu-stream", name, bytes, 8, "ratio", "x", without.policy, ratios);
}

/* How long after it was taken a message of a stream tells the receiver, less nothing: issue to answer, both ways over the link. */
static double signal_latency(bench *b, const mover &m, uint64_t bytes, uint32_t batch, uint64_t ns, const char *name)
{
    const unsigned blocks = 8;
    uint64_t each = (256ull << 20) / bytes / blocks / m.lanes, *stamps, *came;
    layout l = lay(b, bytes, bytes);
    RIG_CUDA(cudaSetDevice(b->r.pe[0].gpu));
    RIG_CUDA(cudaMalloc((void **)&stamps, TIMES_MOST * 8));
    RIG_CUDA(cudaMalloc((void **)&came, TIMES_MOST * 8));
    b->r.stream = 1;
    rig_start(&b->r, echo, 1, 1, 0, l, (uint64_t)blocks * m.lanes, each, b->base, came);
    b->r.stream = 0;
    b->base += each;
    m.start(b, l, blocks, each * blocks * m.lanes, batch, ns, stamps, false);
    settle(b, name);
    std::vector<uint64_t> from(TIMES_MOST), to(TIMES_MOST);
    RIG_CUDA(cudaMemcpy(from.data(), stamps, TIMES_MOST * 8, cudaMemcpyDeviceToHost));
    RIG_CUDA(cudaMemcpy(to.data(), came, TIMES_MOST * 8, cudaMemcpyDeviceToHost));
    RIG_CUDA(cudaFree(stamps));
    RIG_CUDA(cudaFree(came));
    std::vector<double> us;
    for (uint64_t i = 2; i < each / 64 && i < TIMES_MOST; i++)
        us.push_back((double)(int64_t)(to[i] - from[i]) / 1000.0);
    return add_row(b, "gpu-stream", name, bytes, 8, "latency", "us", "", us);
}

/* The three ways in one shape; `lag` in the name, since it is what one turns. */
template <class Shape> static void ratios_of(bench *b, uint64_t bytes, double *completed, double *fenced)
{
    const mover none = moving_as<Shape, UFD_UNSIGNALLED>("unsignalled"), by_fence = moving_as<Shape, UFD_FENCED>("fenced");
    const mover by_completion = moving_as<Shape, UFD_COMPLETED>("completed");
    char name[64];
    snprintf(name, sizeof name, "completed/%dx%d lag %d every %d", Shape::warps, Shape::stages, Shape::lag, Shape::every);
    *completed = std::max(*completed, ratio_of(b, none, by_completion, bytes, 1, 0, name));
    signal_latency(b, by_completion, bytes, 1, 0, name);
    for (uint32_t batch : {1u, 32u, 256u}) {
        snprintf(name, sizeof name, "fenced/%dx%d lag %d every %d by %u", Shape::warps, Shape::stages, Shape::lag, Shape::every,
                 batch);
        *fenced = std::max(*fenced, ratio_of(b, none, by_fence, bytes, batch, 100000, name));
        signal_latency(b, by_fence, bytes, batch, 100000, name);
    }
}

static void ratios(bench *b)
{
    double completed[3] = {0, 0, 0}, fenced[3] = {0, 0, 0};
    const mover put = {"block put", start_putting<UFD_UNSIGNALLED>, 1, false},
                released = {"block put_signal", start_putting<UFD_COMPLETED>, 1, true};
    ratio_of(b, put, released, 1024, 1, 0, "block put_signal");
    ratio_of(b, put, released, 8192, 1, 0, "block put_signal");
    for (uint32_t warps : {8u, 16u}) {
        bare_stores_of<BARE_UNTOLD>(b, "bare bulk stores", 1024, 8, warps);
        bare_stores_of<BARE_AWAITED>(b, "bare bulk stores, awaited", 1024, 8, warps);
        bare_stores_of<BARE_TOLD>(b, "bare bulk stores, told", 1024, 8, warps);
    }
    ratios_of<ufd_mover_shape<8, 16, 1024, 8>>(b, 1024, &completed[0], &fenced[0]);
    ratios_of<ufd_mover_shape<8, 16, 1024, 8, 4>>(b, 1024, &completed[0], &fenced[0]);
    ratios_of<ufd_mover_shape<16, 12, 1024, 8>>(b, 1024, &completed[0], &fenced[0]);
    ratios_of<ufd_mover_shape<16, 12, 1024, 8, 4>>(b, 1024, &completed[0], &fenced[0]);
    ratios_of<ufd_mover_shape<8, 6, 4096, 6>>(b, 4096, &completed[1], &fenced[1]);
    ratios_of<ufd_mover_shape<8, 6, 4096, 4, 2>>(b, 4096, &completed[1], &fenced[1]);
    ratios_of<ufd_mover_shape<8, 3, 8192, 2>>(b, 8192, &completed[2], &fenced[2]);
    report_judge(&b->rep, "completed over unsignalled, 1 KiB, 8 blocks", completed[0], "x", 0.75, false);
    report_judge(&b->rep, "completed over unsignalled, 8 KiB, 8 blocks", completed[2], "x", 0.95, false);
    report_judge(&b->rep, "fenced over unsignalled, 1 KiB, 8 blocks", fenced[0], "x", 0.50, false);
    report_judge(&b->rep, "fenced over unsignalled, 8 KiB, 8 blocks", fenced[2], "x", 0.80, false);
}

/* ---------------------------------------------------------------- the proof */

/* Rounds of a sender and its checker until `messages` are checked or `seconds` are over; both PEs send where `both`. */
static tally prove(bench *b, const mover &m, uint64_t bytes, uint64_t messages, double seconds, bool both, const char *name)
{
    const unsigned blocks = 8;
    enum { CHECKERS = 64 }; /* with the senders' they fit one GPU: a block that cannot start would be waited for in vain */
    uint64_t lanes = blocks * m.lanes, per_round = (ROTATION / bytes) / lanes * lanes;
    tally *sums[2], total = {};
    for (int pe = 0; pe < 2; pe++) {
        RIG_CUDA(cudaSetDevice(b->r.pe[pe].gpu));
        sums[pe] = rig_device<tally>(1);
    }
    auto start = std::chrono::steady_clock::now();
    double took = 0;
    for (uint64_t done = 0; done < messages && took < seconds && b->faults == 0; done += per_round * (both ? 2 : 1)) {
        layout l = lay(b, bytes, bytes);
        b->r.stream = 1;
        rig_start(&b->r, checking, CHECKERS, 1024, 0, l, lanes, per_round / lanes, both, sums[0], sums[1]);
        b->r.stream = 0;
        m.start(b, l, blocks, per_round, 1, 0, NULL, both);
        settle(b, name);
        took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    for (int pe = 0; pe < 2; pe++) {
        tally t;
        rig_read(&b->r, pe, &t, sums[pe], sizeof t);
        total.messages += t.messages, total.wrong_words += t.wrong_words;
        total.wrong_messages += t.wrong_messages, total.waited += t.waited;
    }
    for (tally *s : sums)
        RIG_CUDA(cudaFree(s));
    add_row(b, "gpu-prove", name, bytes, blocks, "count", "checked messages", "", {(double)total.messages});
    add_row(b, "gpu-prove", name, bytes, blocks, "count", "wrong words", "", {(double)total.wrong_words});
    printf("prove  %s, %llu B%s: %llu messages checked in %.1f s, %.1f %% of them awaited by their checker, %llu wrong words in "
           "%llu messages\n",
           name, (unsigned long long)bytes, both ? ", both ways at once" : "", total.messages, took,
           100.0 * (double)total.waited / (double)(total.messages ? total.messages : 1), total.wrong_words, total.wrong_messages);
    return total;
}

static void start_hasty(bench *b, const layout &l, unsigned blocks, uint64_t messages, uint32_t batch, uint64_t ns,
                        uint64_t *stamp, bool both)
{
    rig_start(&b->r, hasty, blocks, 256, 8 * (l.bytes <= 2048 ? HASTY : 2) * (size_t)l.bytes, l, messages / blocks / 8);
}

static void proofs(bench *b, uint64_t messages, double seconds)
{
    const mover early = {"control", start_hasty, 8, true};
    const mover small = moving_as<ufd_mover_shape<8, 16, 1024, 8>, UFD_COMPLETED>("completed");
    const mover busy = moving_as<ufd_mover_shape<16, 12, 1024, 8, 4>, UFD_COMPLETED>("completed, 16 warps");
    const mover middle = moving_as<ufd_mover_shape<8, 6, 4096, 6>, UFD_COMPLETED>("completed");
    const mover large = moving_as<ufd_mover_shape<8, 3, 8192, 2>, UFD_COMPLETED>("completed");
    tally control = prove(b, early, 1024, 8000000, seconds / 8, false, "control: signal before completion");
    tally control8 = prove(b, early, 8192, 300000, seconds / 8, false, "control: signal before completion");
    uint64_t wrong = 0, checked = 0;
    for (int both = 0; both < 2; both++) {
        tally t = prove(b, small, 1024, messages / 4, seconds / 6, both != 0, "completed");
        tally s = prove(b, busy, 1024, messages / 4, seconds / 6, both != 0, "completed, 16 warps");
        tally u = prove(b, middle, 4096, messages / 50, seconds / 12, both != 0, "completed");
        tally v = prove(b, large, 8192, messages / 50, seconds / 12, both != 0, "completed");
        wrong += t.wrong_words + s.wrong_words + u.wrong_words + v.wrong_words;
        checked += t.messages + s.messages + u.messages + v.messages;
    }
    printf("prove  in all: %llu messages, %llu wrong words; the control shows %llu + %llu\n", (unsigned long long)checked,
           (unsigned long long)wrong, control.wrong_words, control8.wrong_words);
    b->faults += wrong != 0;
    report_judge(&b->rep, "messages checked with completion, 10^6", (double)checked / 1e6, "10^6", 100, false);
    report_judge(&b->rep, "wrong words that the control shows, 1 KiB", (double)control.wrong_words, "words", 1, false);
    report_judge(&b->rep, "wrong words that the control shows, 8 KiB", (double)control8.wrong_words, "words", 1, false);
}

/* ---------------------------------------------------------------- the program */

static const char *word(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return otherwise;
}

static void open_bench(bench *b, int most_gpus)
{
    rig_open(&b->r, 2, most_gpus < 2 ? most_gpus : 2, HEAP, false);
    cudaDeviceProp p;
    int driver = 0;
    RIG_CUDA(cudaGetDeviceProperties(&p, 0));
    RIG_CUDA(cudaDriverGetVersion(&driver));
    b->rep.gpu = p.name, b->rep.gpus = b->r.n_gpus,
    b->rep.driver = "CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 100 / 10);
    b->rep.fabric = b->r.n_gpus > 1 ? "peer-gpu" : "same-gpu";
    RIG_CUDA(cudaSetDevice(b->r.pe[0].gpu));
    RIG_CUDA(cudaEventCreate(&b->begin));
    RIG_CUDA(cudaEventCreate(&b->end));
    b->t = rig_device<times>(1);
    b->t_host = new times;
    rig_start(&b->r, fill, 512, 512, 0);
    rig_synchronize(&b->r);
    printf("# %s, %d of them, two PEs: %s\n", p.name, b->r.n_gpus, b->rep.fabric.c_str());
}

/* A part, if it is wanted and time is left. What fails in it does not keep the others from being tried, nor what was found from being told. */
template <class F> static void part(bench *b, const std::string &only, const char *name, F measure)
{
    if (only != "all" && only != name)
        return;
    if (b->left() <= 0) {
        printf("# no time is left for %s\n", name);
        b->faults++;
        return;
    }
    try {
        measure();
    } catch (const rig_failure &) {
        printf("FAILED  %s\n", name);
        b->faults++;
    }
    printf("# %s: %.1f s are left\n", name, b->left());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static bench b;
    const std::string only = word(argc, argv, "--only", "all"), json = word(argc, argv, "--json", "");
    const uint64_t messages = strtoull(word(argc, argv, "--prove", "100000000"), NULL, 0);
    const double seconds = atof(word(argc, argv, "--seconds", "60"));
    b.limit = atof(word(argc, argv, "--limit", "390"));
    b.started = std::chrono::steady_clock::now();
    setvbuf(stdout, NULL, _IOLBF, 0);
    try {
        open_bench(&b, atoi(word(argc, argv, "--gpus", "2")));
    } catch (const rig_failure &) {
        return 2;
    }
    part(&b, only, "latency", [&] { latencies(&b); });
    part(&b, only, "barrier", [&] { barriers(&b); });
    part(&b, only, "bandwidth", [&] { bandwidths(&b); });
    part(&b, only, "ratio", [&] { ratios(&b); });
    part(&b, only, "prove", [&] { proofs(&b, messages, std::min(seconds, b.left() / 1.5)); });
    report_targets(&b.rep);
    if (!json.empty() && !report_json(&b.rep, json.c_str()))
        b.faults++;
    return b.faults != 0 || b.refused != 0;
}
