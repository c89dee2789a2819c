/* command_rate.cuh - commands a second through command queues, by who issues them and who consumes: for the benchmark of command queues, and
 * for that of direct posting, which is compared with it.
 *
 * Consumers: `ring`, a loop that takes commands and checks their fields, which is the bus and the ring alone; `engine`, the library's own,
 * with near commands, which adds its checks and one atomic on a host word each, a thread a ring; and `shared`, the same with one thread for all
 * rings, as one endpoint serves its queues. Every command's fields are checked by each, and the sum of all at the end. */
#ifndef UNFENCE_BENCH_GPU_COMMAND_RATE_CUH
#define UNFENCE_BENCH_GPU_COMMAND_RATE_CUH

#include "gpu/command_rig.cuh"
#include <algorithm>
#include <chrono>

enum { SHIFT = 12, MAX_RINGS = 8 };

#define LONG_NS 20000000000ull

struct rings {
    ufd_queue ring[MAX_RINGS];
};

enum consuming { BARE_RING, ENGINE_EACH, ENGINE_SHARED };
enum issuing { EACH_THREAD, RUNS_OF_32, EACH_WARP, READY_THREAD, READY_WARP };

__device__ static uf_command numbered(uint64_t *word, uint64_t name)
{
    uf_command c = ufd_command_atomic(1, 8, word, name, ~name, (int)(name & 3));
    c.compare = ~name;
    return c;
}

__global__ void issue(rings all, int n_rings, issuing how, uint64_t *words, uint64_t each, int *code)
{
    const ufd_queue *q = &all.ring[blockIdx.x % n_rings];
    uint64_t me = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, *word = words + blockIdx.x % n_rings * 16;
    int rc = 0;
    if (how == EACH_WARP || how == READY_WARP) {
        for (uint64_t i = 0; i < each && !rc; i++) {
            uf_command c = numbered(word, me * each + i);
            rc = how == EACH_WARP ? ufd_queue_each_warp(q, &c, true, 0) : ufd_queue_each_warp_ready(q, &c, true, 0);
        }
    } else if (how == EACH_THREAD || how == READY_THREAD) {
        for (uint64_t i = 0; i < each && !rc; i++) {
            uf_command c = numbered(word, me * each + i);
            uint64_t position;
            rc = how == EACH_THREAD ? ufd_queue_issue(q, &c, 0, &position) : ufd_queue_issue_ready(q, &c, 0, &position);
        }
    } else {
        for (uint64_t i = 0; i < each && !rc; i += 32) {
            uint64_t position;
            rc = uf_command_reserve(q, 32, 0, &position);
            uf_command_payload_fence();
            for (uint64_t k = 0; k < 32 && !rc; k++) {
                uf_command c = numbered(word, me * each + i + k);
                uf_command_write(q, (position + k) & UF_COMMAND_POSITION_MASK, &c);
            }
        }
    }
    if (rc)
        *code = rc;
}

static void judge(rig *r, const uf_command *c)
{
    r->faults += c->compare != ~c->operand || c->pe != (c->operand & 3);
}

/* The ring alone: what any consumer has to do. */
static void consume(rig *r, uint64_t n, uint64_t *sum)
{
    uint64_t words[UF_COMMAND_WORDS], at = 0, all = 0;
    uf_command c;
    uf_command_report *report = const_cast<uf_command_report *>(r->ring.report);
    while (at < n) {
        uint64_t first = at;
        while (at < n && at - first < 64 && uf_command_peek(r->ring.slots, r->ring.shift, at, words)) {
            if (uf_command_decode(words, at, &c))
                r->faults++;
            judge(r, &c);
            all += c.operand;
            at++;
        }
        if (at != first)
            uf_store_release64(&report->consumed, at);
    }
    *sum = all;
}

static void open_rings(rig *r, rings *all, int n_rings, consuming who)
{
    for (int i = 0; i < n_rings; i++) {
        if (who == ENGINE_SHARED && i > 0)
            rig_open_beside(&r[i], &r[0], SHIFT, 0, LONG_NS);
        else
            rig_open(&r[i], SHIFT, 0, LONG_NS);
        r[i].judge = judge;
        all->ring[i] = r[i].ring;
    }
}

static void start_rings(rig *r, int n_rings, consuming who, uint64_t each, uint64_t *sums, std::vector<std::thread> *loops)
{
    for (int i = 0; i < n_rings; i++) {
        if (who == BARE_RING)
            loops->emplace_back(consume, &r[i], each, &sums[i]);
        else if (!r[i].beside)
            rig_start(&r[i]);
    }
}

/* Stops consumers and closes rings: what was wrong. */
static uint64_t close_rings(rig *r, int n_rings)
{
    uint64_t faults = 0;
    for (int i = 0; i < n_rings; i++)
        rig_stop(&r[i]);
    for (int i = n_rings; i-- > 0;) { /* the owner of a shared engine last */
        faults += r[i].faults + (uf_command_queue_status(r[i].queue) != 0);
        rig_close(&r[i]);
    }
    return faults;
}

/* Prints a line and adds what was wrong to *faults_found; millions of commands a second. */
static double measure_rate(const char *shape, issuing how, int blocks, int threads, uint64_t each, int n_rings, consuming who,
                           int *faults_found)
{
    static const char *const names[] = {"ring", "engine", "shared"};
    rig r[MAX_RINGS];
    rings all;
    uint64_t *words = rig_pinned<uint64_t>(16 * MAX_RINGS), sums[MAX_RINGS] = {}, n = (uint64_t)blocks * threads * each, sum = 0;
    int *code = rig_pinned<int>(1);
    open_rings(r, &all, n_rings, who);
    std::vector<std::thread> consumers;
    start_rings(r, n_rings, who, n / n_rings, sums, &consumers);
    auto start = std::chrono::steady_clock::now();
    issue<<<blocks, threads>>>(all, n_rings, how, words, each, code);
    cudaError_t e = cudaDeviceSynchronize();
    uint64_t consumed = 0;
    for (uint64_t last = n; who != BARE_RING && e == cudaSuccess && consumed != last;) {
        consumed = 0;
        for (int i = 0; i < n_rings; i++)
            consumed += uf_load_acquire64(&r[i].ring.report->consumed) & UF_COMMAND_POSITION_MASK;
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(30))
            break;
    }
    for (auto &c : consumers)
        c.join();
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    uint64_t faults = close_rings(r, n_rings);
    for (int i = 0; i < n_rings; i++)
        sum += who == BARE_RING ? sums[i] : words[16 * i];
    bool wrong = e != cudaSuccess || *code || faults || sum != n * (n - 1) / 2;
    printf("  %-24s %3d x %-4d %2d ring%s %-7s %8.2f M/s%s\n", shape, blocks, threads, n_rings, n_rings > 1 ? "s" : " ",
           names[who], (double)n / s * 1e-6, wrong ? "  WRONG" : "");
    if (wrong)
        printf("    %s, code %d, %llu faults, sum %llu\n", cudaGetErrorString(e), *code, (unsigned long long)faults,
               (unsigned long long)sum);
    fflush(stdout);
    cudaFreeHost(words);
    cudaFreeHost(code);
    *faults_found += wrong;
    return (double)n / s * 1e-6;
}

#endif
