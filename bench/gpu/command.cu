/* command.cu - command queues between kernels and host threads: how long a command takes to the progress thread and back, beside a bare flag
 * in the same run, and how many commands a second go through, by who issues them and who consumes.
 *
 * Consumers: `ring`, a loop that takes commands and checks their fields, which is the bus and the ring alone; and `engine`, the library's own,
 * with near commands, which adds its checks and one atomic on a host word each. Every command's fields are checked by either, and the sum of
 * all at the end; a wrong one makes the exit code 1. Medians; clocks are the SM's, scaled by the global timer over the same run. */
#include "command_rate.cuh"

/* ---------------------------------------------------------------- there and back */

struct flags {
    uint64_t to_host, padding[15], to_kernel, padding2[15], word, stop, padding3[14], written;
};

/* What is timed, in this order, each when everything before it is answered. */
enum { BARE, BARE_PAYLOAD, QUIET, PUT_QUIET, PUT_AND_QUIET, READY_QUIET, FETCH, FENCE_GPU, FENCE_HOST, ISSUE, WAYS };

__device__ static void flag_there_and_back(flags *f, uint64_t value)
{
    uf_store_relaxed64(&f->to_host, value);
    while (uf_load_relaxed64(&f->to_kernel) != value)
        ;
}

__device__ static int time_one(const ufd_queue *q, flags *f, uint64_t *source, int way, uint64_t i)
{
    uint64_t old, position;
    uf_command nop = {};
    int rc;
    switch (way) {
    case BARE:
        flag_there_and_back(f, 2 * i + 1);
        return 0;
    case BARE_PAYLOAD: /* the floor of a put: its bytes must be visible before anything tells of them */
        *source = i;
        uf_command_payload_fence();
        flag_there_and_back(f, 2 * i + 2);
        return 0;
    case QUIET:
        return ufd_queue_quiet(q);
    case PUT_QUIET:
        *source = i;
        rc = ufd_queue_put_signal(q, &f->word, source, 8, &f->word, UF_SIGNAL_ADD, 1, 0, 0);
        return rc ? rc : ufd_queue_quiet(q);
    case PUT_AND_QUIET:
        *source = i;
        return ufd_queue_put_signal_quiet(q, &f->word, source, 8, &f->word, UF_SIGNAL_ADD, 1, 0, 0);
    case READY_QUIET:
        rc = ufd_queue_put_signal_ready(q, &f->word, source, 8, &f->word, UF_SIGNAL_ADD, 1, 0, 0);
        return rc ? rc : ufd_queue_quiet(q);
    case FETCH:
        return ufd_queue_fetch(q, UF_ATOMIC_FETCH_ADD, 8, &f->word, 1, 0, &old, 0);
    case FENCE_GPU:
        *source = i;
        uf_command_payload_fence();
        return 0;
    case FENCE_HOST:
        uf_store_relaxed64(&f->written, i);
        uf_command_payload_fence();
        return 0;
    default:
        nop.op = UF_COMMAND_NOP;
        return ufd_queue_issue(q, &nop, 0, &position);
    }
}

__global__ void round_trips(ufd_queue q, flags *f, uint64_t *source, uint64_t *cycles, uint32_t n, double *ns_per_cycle,
                            int *code)
{
    uint64_t first_ns = uf_command_now();
    long long first = clock64();
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        for (int way = 0; way < WAYS && !rc; way++) {
            long long start = clock64();
            rc = time_one(&q, f, source, way, i);
            cycles[i * WAYS + way] = (uint64_t)(clock64() - start);
            uf_command_payload_fence(); /* what this one stored is not the next one's to wait for */
        }
        if (!rc)
            rc = ufd_queue_quiet(&q);
    }
    *ns_per_cycle = (double)(uf_command_now() - first_ns) / (double)(clock64() - first);
    *code = rc;
}

static void print_round_trips(const uint64_t *cycles, uint32_t n, double scale)
{
    static const char *const names[WAYS] = {"bare flag",
                                            "bare flag behind a payload in GPU memory",
                                            "quiet",
                                            "put with signal, quiet",
                                            "put with signal and quiet in one call",
                                            "put with signal of a ready payload, quiet",
                                            "fetching atomic",
                                            "alone: fence after a store to GPU memory",
                                            "alone: fence after a store to host memory",
                                            "alone: a command without payload issued"};
    printf("round trips of %u, kernel to host thread and back, ns:          p50      p90      p99   p50 beside bare\n", n);
    double bare = 0;
    for (int way = 0; way < WAYS; way++) {
        std::vector<uint64_t> v;
        for (uint32_t i = n / 10; i < n; i++)
            v.push_back(cycles[(uint64_t)i * WAYS + way]);
        std::sort(v.begin(), v.end());
        double p50 = (double)v[v.size() / 2] * scale;
        if (way == BARE)
            bare = p50;
        printf("  %-52s %8.0f %8.0f %8.0f %8.0f\n", names[way], p50, (double)v[v.size() * 9 / 10] * scale,
               (double)v[v.size() * 99 / 100] * scale, p50 - bare);
    }
}

static int measure_round_trips(uint32_t n)
{
    flags *f = rig_pinned<flags>(1);
    uint64_t *cycles = rig_pinned<uint64_t>((size_t)n * WAYS), *source;
    double *scale = rig_pinned<double>(1);
    int *code = rig_pinned<int>(1);
    RIG_CUDA(cudaMalloc((void **)&source, 64));
    rig r;
    rig_open(&r, SHIFT, 0, LONG_NS);
    rig_start(&r);
    std::thread echo([f] {
        while (!uf_load_relaxed64(&f->stop))
            uf_store_relaxed64(&f->to_kernel, uf_load_acquire64(&f->to_host));
    });
    round_trips<<<1, 1>>>(r.ring, f, source, cycles, n, scale, code);
    RIG_CUDA(cudaDeviceSynchronize());
    f->stop = 1;
    echo.join();
    int bad = *code != 0 || f->word != 4 * (uint64_t)n || r.judged != 4 * (uint64_t)n;
    print_round_trips(cycles, n, *scale);
    if (bad)
        printf("WRONG: code %d, word %llu\n", *code, (unsigned long long)f->word);
    rig_close(&r);
    return bad;
}

int main(int argc, char **argv)
{
    double scale = argc > 1 ? atof(argv[1]) : 1;
    int gpus = 0, wrong = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("no GPU here\n");
        return 77;
    }
    auto of = [scale](double n) { return std::max<uint64_t>(32, (uint64_t)(n * scale) / 32 * 32); };
    wrong += measure_round_trips((uint32_t)of(20000));
    printf("commands a second, checked:\n");
    for (consuming who : {BARE_RING, ENGINE_EACH}) {
        measure_rate("thread, a fence each", EACH_THREAD, 1, 1, of(200000), 1, who, &wrong);
        measure_rate("thread, payload ready", READY_THREAD, 1, 1, of(500000), 1, who, &wrong);
        measure_rate("thread, a fence in 32", RUNS_OF_32, 1, 1, of(2000000), 1, who, &wrong);
        measure_rate("warp, 32 in one go", EACH_WARP, 1, 32, of(100000), 1, who, &wrong);
        measure_rate("warps", EACH_WARP, 8, 32, of(20000), 1, who, &wrong);
        measure_rate("warps", EACH_WARP, 32, 32, of(6000), 1, who, &wrong);
        measure_rate("warps", EACH_WARP, 32, 256, of(800), 1, who, &wrong);
        measure_rate("threads, a fence each", EACH_THREAD, 8, 128, of(500), 1, who, &wrong);
        measure_rate("threads, a fence each", EACH_THREAD, 32, 256, of(64), 1, who, &wrong);
        measure_rate("warps, payload ready", READY_WARP, 8, 32, of(20000), 1, who, &wrong);
        for (int rings = 2; rings <= MAX_RINGS; rings *= 2)
            measure_rate("warps", EACH_WARP, 32, 32, of(20000), rings, who, &wrong);
    }
    return wrong != 0;
}
