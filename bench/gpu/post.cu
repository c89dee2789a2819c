/* post.cu - kernels post EFA work queue entries themselves: entries a second through the whole protocol, beside bare stores and beside a command
 * queue in the same run.
 *
 * A queue is what a device context would have: ring, doorbell and completions in pinned host memory, where the model of the device lives;
 * counters in GPU memory. Posters reserve, write, publish in order; one warp a queue polls completions with 32 lanes and frees slots.
 * The device is as many host threads as it takes: each checks phase, completeness, every field and each poster's order of every entry a doorbell
 * covers, then writes its completion. A wrong one makes the exit code 1. Bare stores are the same entries without any of that: what the
 * bus carries. */
#include "command_rate.cuh"
#include "fabric/efa/queue_warp.cuh"
#include "report.cuh"

enum { RING_SHIFT = 11, DEPTH = 1 << RING_SHIFT, MAX_QUEUES = 32, MAX_POSTERS = 32 * 8, LANES = 32, LOOKS = 8, REPEATS = 5 };

/* One queue as kernels see it. */
struct post_queue {
    uf_efa_sq sq;
    uf_efa_cq cq;
};

struct alignas(128) post_host {
    uint64_t *ring, *cq;
    uint32_t *bell;
    uint32_t next, faults;
    uint32_t seen[MAX_POSTERS]; /* entries of each poster */
};

struct post_shape {
    int blocks, warps, queues; /* warps that post, in each block; one more polls */
    uint32_t batch;            /* entries a doorbell */
    uint32_t each;             /* batches of a warp */
    uf_efa_stores stores;
};

__device__ static void encode(uf_efa_wqe *e, uint32_t poster, uint32_t i)
{
    uint64_t name = (uint64_t)poster << 32 | i;
    uf_efa_to to = {name, (uint32_t)name * 2654435761u, 1, 2, 0, 0};
    uf_efa_sge local = {~name, i, poster};
    uf_efa_encode_write_imm(e, UF_EFA_WQE_WORDS, &to, name, i, &local, i);
}

__device__ static void post_batches(uf_efa_sq *sq, uint32_t poster, post_shape s)
{
    uint32_t lane = threadIdx.x % LANES;
    for (uint32_t b = 0; b < s.each; b++) {
        uf_efa_wqe e = {};
        if (lane < s.batch)
            encode(&e, poster, b * s.batch + lane);
        for (uint32_t spin = 0; !uf_efa_sq_post_warp(sq, &e, s.batch, s.stores, 0); spin++)
            uf_shared_pause(spin);
    }
}

/* Every lane looks at some positions; what has come is a prefix of all. One release of slots for all of them: it costs more than the looks. */
__device__ static void poll(post_queue *q, uint32_t total, uint32_t *faults)
{
    uint32_t lane = threadIdx.x % LANES, taken = 0;
    while (taken < total) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < LOOKS && n == k * LANES;
             k++) { /* further on only behind a full look: each one is read over the bus */
            uf_efa_cqe c;
            uint32_t at = taken + k * LANES + lane;
            int here = uf_efa_cq_peek(&q->cq, at, &c);
            n += __popc(__ballot_sync(0xffffffff, here));
            if (here && (c.status != 0 || c.id != (at & 0xffff)))
                atomicAdd(faults, 1);
        }
        if (n && lane == 0) {
            uf_efa_cq_advance(&q->cq, n);
            uf_efa_sq_complete(&q->sq, n);
        }
        taken += n;
        __syncwarp();
    }
}

__global__ void post(post_queue *queues, post_shape s, uint32_t *faults)
{
    post_queue *q = &queues[blockIdx.x % s.queues];
    uint32_t warp = threadIdx.x / LANES;
    uint32_t sharers = s.blocks / s.queues * s.warps;
    if (warp < (uint32_t)s.warps)
        post_batches(&q->sq, blockIdx.x * s.warps + warp, s);
    else if (blockIdx.x < (uint32_t)s.queues) /* one block polls for all that share the queue */
        poll(q, sharers * s.batch * s.each, faults);
}

__global__ void post_bare(post_queue *queues, post_shape s)
{
    post_queue *q = &queues[blockIdx.x % s.queues];
    uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (warp == (uint32_t)s.warps)
        return;
    for (uint32_t b = 0; b < s.each; b++) {
        uint32_t position = (warp * s.each + b) * LANES;
        uf_efa_wqe e;
        encode(&e, blockIdx.x * s.warps + warp, b * LANES + lane);
        if (s.stores == UF_EFA_STORES_COMBINED)
            uf_efa_warp_write_combined(&q->sq, position, LANES, &e, lane);
        else
            uf_efa_sq_write(&q->sq, position + lane, &e);
    }
}

/* What the device does with the entries that a doorbell covers. */
static void take(post_host *q, uint32_t upto)
{
    for (; q->next != upto; q->next++) {
        uint64_t *slot = &q->ring[(uint64_t)(q->next % DEPTH) * UF_EFA_WQE_WORDS], w[UF_EFA_WQE_WORDS];
        /* The bus has put both lines out of this core's cache. Past `upto` these are entries of the lap before: they are read again then. */
        __builtin_prefetch(&q->ring[(uint64_t)((q->next + 6) % DEPTH) * UF_EFA_WQE_WORDS]);
        __builtin_prefetch(&q->cq[(uint64_t)((q->next + 6) % DEPTH) * UF_EFA_CQE_WORDS], 1);
        for (int i = 0; i < UF_EFA_WQE_WORDS; i++)
            w[i] = uf_load_relaxed64(&slot[i]);
        uint32_t from = (uint32_t)(w[5] >> 32) % MAX_POSTERS, at = (uint32_t)w[5];
        q->faults += (w[0] >> UF_EFA_W0_PHASE_SHIFT & 1) != (q->next >> RING_SHIFT & 1) || at != q->seen[from]++ ||
                     w[7] != ~w[5] || (uint32_t)w[1] != at || w[2] != (uint32_t)((uint32_t)w[5] * 2654435761u) ||
                     w[4] != uf_efa_word(at, at) || w[6] != uf_efa_word(at, from) || (w[3] ^ w[5]) >> 16;
        uf_efa_cqe done = {};
        done.id = q->next & 0xffff;
        done.op = UF_EFA_OP_WRITE;
        done.phase = (q->next >> RING_SHIFT & 1) ^ 1;
        uint64_t c[UF_EFA_CQE_WORDS], *place = &q->cq[(uint64_t)(q->next % DEPTH) * UF_EFA_CQE_WORDS];
        uf_efa_encode_tx_cqe(c, &done);
        for (int i = 1; i < UF_EFA_CQE_WORDS; i++)
            uf_store_relaxed64(&place[i], c[i]);
        uf_store_release64(&place[0], c[0]);
    }
}

static void serve(post_host *queues, int first, int step, int n, uint32_t total, const std::atomic<bool> *stop)
{
    for (int left = 1; left && !stop->load(std::memory_order_relaxed);) {
        left = 0;
        for (int i = first; i < n; i += step) {
            uint32_t upto = uf_load_acquire32(queues[i].bell); /* pairs with the doorbell: entries below it are written */
            if (upto - queues[i].next > DEPTH)
                queues[i].faults++, upto = queues[i].next;
            take(&queues[i], upto);
            left += queues[i].next != total;
        }
    }
}

struct post_rig {
    post_queue *queues; /* GPU memory */
    post_host host[MAX_QUEUES];
    uint32_t *faults; /* of pollers */
};

static void rig_prepare(post_rig *r, post_shape s)
{
    post_queue image[MAX_QUEUES];
    for (int i = 0; i < s.queues; i++) {
        post_host *h = &r->host[i];
        memset(h->ring, 0xa5, DEPTH * UF_EFA_WQE_WORDS * 8);
        memset(h->cq, 0, DEPTH * UF_EFA_CQE_WORDS * 8);
        memset(h->seen, 0, sizeof h->seen);
        *h->bell = h->next = h->faults = 0;
        uf_efa_sq_init(&image[i].sq, h->ring, h->bell, RING_SHIFT, UF_EFA_WQE_WORDS, DEPTH, s.batch, NULL);
        uf_efa_cq_init(&image[i].cq, h->cq, RING_SHIFT, UF_EFA_CQE_WORDS);
    }
    RIG_CUDA(cudaMemcpy(r->queues, image, sizeof(post_queue) * (size_t)s.queues, cudaMemcpyHostToDevice));
}

static double run_once(post_rig *r, post_shape s, int threads, int *wrong)
{
    rig_prepare(r, s);
    uint32_t total = (uint32_t)(s.blocks / s.queues * s.warps) * s.batch * s.each;
    std::atomic<bool> stop{false};
    std::vector<std::thread> device;
    for (int i = 0; i < threads && i < s.queues; i++)
        device.emplace_back(serve, r->host, i, std::min(threads, s.queues), s.queues, total, &stop);
    auto start = std::chrono::steady_clock::now();
    post<<<s.blocks, (s.warps + 1) * LANES>>>(r->queues, s, r->faults);
    cudaError_t e = cudaDeviceSynchronize();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    stop = e != cudaSuccess;
    uint32_t faults = 0;
    for (auto &t : device)
        t.join();
    for (int i = 0; i < s.queues; i++)
        faults += r->host[i].faults + (r->host[i].next != total);
    if (e != cudaSuccess || faults || *r->faults) {
        printf("WRONG: %s, %u entries and %u completions\n", cudaGetErrorString(e), faults, *r->faults);
        ++*wrong;
    }
    return (double)total * s.queues / seconds * 1e-6;
}

static double measure(report *out, post_rig *r, const char *policy, post_shape s, int threads, int *wrong)
{
    std::vector<double> rates;
    run_once(r, s, threads, wrong);
    for (int i = 0; i < REPEATS; i++)
        rates.push_back(run_once(r, s, threads, wrong));
    return report_add(out, "post", policy, 64, (uint32_t)s.blocks, "rate", "M/s", "", rates);
}

static double measure_bare(report *out, post_rig *r, const char *policy, post_shape s)
{
    std::vector<double> rates;
    for (int i = 0; i <= REPEATS; i++) {
        rig_prepare(r, s);
        auto start = std::chrono::steady_clock::now();
        post_bare<<<s.blocks, (s.warps + 1) * LANES>>>(r->queues, s);
        RIG_CUDA(cudaDeviceSynchronize());
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i)
            rates.push_back((double)s.blocks * s.warps * LANES * s.each / seconds * 1e-6);
    }
    return report_add(out, "post", policy, 64, (uint32_t)s.blocks, "rate", "M/s", "", rates);
}

/* Against command queues in three ways, since "a command queue" may mean each: one ring and its thread; eight rings of one endpoint, which one
 * thread serves; eight rings with a thread each. The best shape is a choice made after measuring, so the least of them is told, too. */
static void judge_commands(report *out, double best, double least, int *wrong)
{
    std::vector<double> one, shared, eight;
    for (int i = 0; i < REPEATS; i++) {
        one.push_back(measure_rate("warps", EACH_WARP, 8, 32, 20000, 1, ENGINE_EACH, wrong));
        shared.push_back(measure_rate("warps", EACH_WARP, 32, 32, 5000, 8, ENGINE_SHARED, wrong));
        eight.push_back(measure_rate("warps", EACH_WARP, 32, 32, 20000, 8, ENGINE_EACH, wrong));
    }
    double queue = report_add(out, "command", "1-ring", 64, 8, "rate", "M/s", "", one);
    double together = report_add(out, "command", "8-rings-1-thread", 64, 32, "rate", "M/s", "", shared);
    double queues = report_add(out, "command", "8-rings-8-threads", 64, 32, "rate", "M/s", "", eight);
    report_judge(out, "direct, 32 blocks, 32 entries a doorbell: best shape", best, "M/s", 100, false);
    report_judge(out, "... least of the shapes with a queue a block", least, "M/s", 100, false);
    report_judge(out, "best shape against one command queue and its thread", queue > 0 ? best / queue : 0, "x", 5, false);
    report_judge(out, "... least shape", queue > 0 ? least / queue : 0, "x", 5, false);
    report_judge(out, "best shape against 8 command queues of one thread", together > 0 ? best / together : 0, "x", 5, false);
    report_judge(out, "... least shape", together > 0 ? least / together : 0, "x", 5, false);
    report_judge(out, "best shape against 8 command queues, a thread each", queues > 0 ? best / queues : 0, "x", 5, false);
}

int main(int argc, char **argv)
{
    const char *json = argc > 2 && !strcmp(argv[1], "--json") ? argv[2] : NULL;
    int gpus = 0, wrong = 0, cores = (int)sysconf(_SC_NPROCESSORS_ONLN), threads = std::max(1, std::min(cores, (int)MAX_QUEUES));
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("no GPU here\n");
        return 77;
    }
    cudaDeviceProp p;
    RIG_CUDA(cudaGetDeviceProperties(&p, 0));
    report out;
    out.fabric = "efa-direct";
    out.gpu = p.name;
    out.gpus = gpus;
    static post_rig r;
    RIG_CUDA(cudaMalloc((void **)&r.queues, sizeof(post_queue) * MAX_QUEUES));
    r.faults = rig_pinned<uint32_t>(1);
    for (post_host &h : r.host) {
        h.ring = rig_pinned<uint64_t>(DEPTH * UF_EFA_WQE_WORDS);
        h.cq = rig_pinned<uint64_t>(DEPTH * UF_EFA_CQE_WORDS);
        h.bell = rig_pinned<uint32_t>(32);
    }
    double bare = measure_bare(&out, &r, "bare-combined", {32, 4, 32, 32, 20000, UF_EFA_STORES_COMBINED});
    measure_bare(&out, &r, "bare-apart", {32, 4, 32, 32, 10000, UF_EFA_STORES_APART});
    static const struct {
        const char *policy;
        post_shape shape;
    } rows[] = {
        {"1-queue", {32, 1, 1, 32, 2000, UF_EFA_STORES_COMBINED}},
        {"8-queues", {32, 1, 8, 32, 10000, UF_EFA_STORES_COMBINED}},
        {"32-queues-1-warp", {32, 1, 32, 32, 20000, UF_EFA_STORES_COMBINED}},
        {"32-queues-2-warps", {32, 2, 32, 32, 20000, UF_EFA_STORES_COMBINED}},
        {"32-queues-4-warps", {32, 4, 32, 32, 10000, UF_EFA_STORES_COMBINED}},
        {"32-queues-8-warps", {32, 8, 32, 32, 5000, UF_EFA_STORES_COMBINED}},
        {"32-queues-8-a-bell", {32, 4, 32, 8, 10000, UF_EFA_STORES_COMBINED}},
        {"32-queues-1-a-bell", {32, 4, 32, 1, 10000, UF_EFA_STORES_COMBINED}},
        {"32-queues-apart", {32, 2, 32, 32, 10000, UF_EFA_STORES_APART}},
    };
    double best = 0, least = 0;
    for (const auto &row : rows) {
        double rate = measure(&out, &r, row.policy, row.shape, threads, &wrong);
        if (row.shape.batch != 32 || row.shape.queues != 32 || row.shape.stores != UF_EFA_STORES_COMBINED)
            continue; /* not what the target speaks of */
        best = std::max(best, rate);
        least = least > 0 ? std::min(least, rate) : rate;
    }
    judge_commands(&out, best, least, &wrong);
    report_targets(&out);
    printf("%d host threads are the device; direct posting of bare stores %.2f\n", threads, bare > 0 ? best / bare : 0);
    if (json && !report_json(&out, json))
        wrong++;
    return wrong != 0;
}
