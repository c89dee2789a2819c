/* command.cu - kernels issue through command queues, and the library's consumer on the host judges every command: each whole, once, in its
 * thread's order, with the payload that was written before it; values that come back, errors, timeouts, torn writers, wraps.
 *
 * Needs a GPU and no network. Prints one line a promise; the last line is "N passed, N failed". Built against the library's archive. */
#include "command_rig.cuh"

enum { SHIFT = 8, DEPTH = 1 << SHIFT, BLOCK_WORDS = 256 };

#define FIRST_32 (0xffffffffull - 1000)
#define FIRST_63 (UF_COMMAND_POSITION_MASK - 1000)
#define LONG_NS  20000000000ull
#define SHORT_NS 3000000ull

static uint64_t *words, *payload; /* pinned */
static int *codes;                /* what kernels returned */
static int passed, failed;

static void verdict(const char *name, bool holds, const char *detail)
{
    holds ? passed++ : failed++;
    printf("%s %s%s%s\n", holds ? "ok     " : "FAILED ", name, holds ? "" : ": ", holds ? "" : detail);
    fflush(stdout);
}

/* Waits for the kernel, which ends by its own timeouts. */
static bool finish(char *why, size_t bytes)
{
    cudaError_t e = cudaDeviceSynchronize();
    snprintf(why, bytes, "%s", e ? cudaGetErrorString(e) : "");
    if (e) {
        printf("FAILED  a kernel ended with: %s\n", why);
        exit(1);
    }
    return true;
}

/* ---------------------------------------------------------------- each thread its own commands */

/* The payload of it is ~name. */
__device__ static uf_command named(uint64_t *words_, const uint64_t *source, uint32_t me, uint32_t i)
{
    uint64_t name = (uint64_t)me << 32 | i;
    uf_command c = ufd_command_put_signal(words_ + 8, source, 8, words_ + 16, UF_SIGNAL_ADD, 1, (int)(me & 3), 0);
    c.operand = 1;
    c.compare = name;
    return c;
}

__device__ static uf_command fresh(uint64_t *words_, uint64_t *source, uint32_t me, uint32_t i)
{
    *source = ~((uint64_t)me << 32 | i);
    return named(words_, source, me, i);
}

/* Thread scope: every thread for itself. */
__global__ void threads_issue(ufd_queue q, uint64_t *words_, uint64_t *sources, uint32_t each, int *codes_)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    int rc = 0;
    for (uint32_t i = 0; i < each && !rc; i++) {
        uf_command c = fresh(words_, &sources[(uint64_t)me * each + i], me, i);
        uint64_t position;
        rc = ufd_queue_issue(&q, &c, 0, &position);
    }
    if (!rc)
        rc = ufd_queue_quiet(&q);
    codes_[me] = rc;
}

/* 32 commands in one go; in odd rounds only some lanes have one. */
__global__ void warps_issue(ufd_queue q, uint64_t *words_, uint64_t *sources, uint32_t each, int *codes_)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, sent = 0;
    int rc = 0;
    for (uint32_t round = 0; __any_sync(0xffffffffu, sent < each && !rc); round++) {
        bool mine = sent < each && (!(round & 1) || (threadIdx.x + round) % 3 == 0);
        uf_command c = {};
        if (mine)
            c = fresh(words_, &sources[(uint64_t)me * each + sent], me, sent);
        rc = ufd_queue_each_warp(&q, &c, mine, 0);
        sent += mine;
    }
    if (!rc)
        rc = ufd_queue_quiet_warp(&q);
    codes_[me] = rc;
}

/* Payloads that an earlier kernel wrote need no fence, alone or by warps. */
__global__ void writes_payloads(uint64_t *sources, uint32_t each)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t i = 0; i < each; i++)
        sources[(uint64_t)me * each + i] = ~((uint64_t)me << 32 | i);
}

__global__ void ready_issue(ufd_queue q, uint64_t *words_, uint64_t *sources, uint32_t each, int *codes_)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    int rc = 0;
    for (uint32_t i = 0; i < each && !rc; i++) {
        uf_command c = named(words_, &sources[(uint64_t)me * each + i], me, i);
        uint64_t position;
        rc = i & 1 ? ufd_queue_issue_ready(&q, &c, 0, &position) : ufd_queue_each_warp_ready(&q, &c, true, 0);
    }
    int done = ufd_queue_quiet(&q);
    codes_[me] = rc ? rc : done;
}

static void judge_named(rig *r, const uf_command *c)
{
    uint32_t from = (uint32_t)(c->compare >> 32), i = (uint32_t)c->compare;
    if (from >= r->next.size()) {
        r->faults++;
        return;
    }
    r->faults += r->next[from] != i || __atomic_load_n((uint64_t *)c->local, __ATOMIC_RELAXED) != ~c->compare ||
                 c->pe != (from & 3) || c->bytes != 8;
    r->next[from] = i + 1;
}

typedef void (*issuer)(ufd_queue, uint64_t *, uint64_t *, uint32_t, int *);

static void every_command(const char *shape, issuer kernel, int blocks, int threads, uint32_t each, uint64_t first)
{
    uint32_t n = (uint32_t)(blocks * threads), wrong = 0, short_ = 0;
    char name[160], why[200];
    rig r;
    rig_open(&r, SHIFT, first, LONG_NS);
    r.judge = judge_named;
    r.next.assign(n, 0);
    words[16] = 0;
    memset(payload, 0, (size_t)n * each * 8);
    for (uint32_t i = 0; i < n; i++)
        codes[i] = 99;
    rig_start(&r);
    if (kernel == ready_issue)
        writes_payloads<<<blocks, threads>>>(payload, each);
    kernel<<<blocks, threads>>>(r.ring, words, payload, each, codes);
    finish(why, sizeof why);
    rig_stop(&r);
    for (uint32_t i = 0; i < n; i++) {
        wrong += codes[i] != 0;
        short_ += r.next[i] != each;
    }
    uf_command_counters c;
    uf_command_queue_counters(r.queue, &c);
    bool holds = !wrong && !short_ && !r.faults && words[16] == (uint64_t)n * each && uf_command_queue_status(r.queue) == 0;
    snprintf(why, sizeof why, "%u threads returned errors (first %d), %u short, %llu commands wrong, %llu of %llu counted, %s",
             wrong, codes[0], short_, (unsigned long long)r.faults, (unsigned long long)words[16], (unsigned long long)n * each,
             uf_command_queue_status(r.queue) ? uf_error_message() : "no error");
    snprintf(name, sizeof name, "%s: %d blocks of %d threads, %u commands each, from 0x%llx (%llu torn looks)", shape, blocks,
             threads, each, (unsigned long long)first, (unsigned long long)c.torn);
    verdict(name, holds, why);
    rig_close(&r);
}

/* ---------------------------------------------------------------- scopes whose payload everybody writes */

__global__ void blocks_issue(ufd_queue q, uint64_t *words_, uint64_t *sources, uint32_t each, int *codes_)
{
    uint64_t *mine = sources + (uint64_t)blockIdx.x * each * BLOCK_WORDS;
    int rc = 0;
    for (uint32_t i = 0; i < each && !rc; i++) {
        for (uint32_t k = threadIdx.x; k < BLOCK_WORDS; k += blockDim.x)
            mine[i * BLOCK_WORDS + k] = ((uint64_t)blockIdx.x << 32 | i) * BLOCK_WORDS + k;
        if (i & 1) { /* and wait: the word has been updated at least as often as this block was quiet */
            rc = ufd_queue_put_signal_quiet_block(&q, words_ + 8, mine + i * BLOCK_WORDS, BLOCK_WORDS * 8, words_ + 16,
                                                  UF_SIGNAL_ADD, 1, 0, 0);
            if (!rc && uf_load_relaxed64(words_ + 16) <= i)
                rc = 1;
        } else {
            rc = ufd_queue_put_signal_block(&q, words_ + 8, mine + i * BLOCK_WORDS, BLOCK_WORDS * 8, words_ + 16, UF_SIGNAL_ADD,
                                            1, 0, 0);
        }
    }
    int done = ufd_queue_quiet_block(&q);
    if (threadIdx.x == blockDim.x - 1) /* all return the same */
        codes_[blockIdx.x] = rc ? rc : done;
}

static void judge_blocks(rig *r, const uf_command *c)
{
    const uint64_t *at = (const uint64_t *)c->local;
    uint64_t first = __atomic_load_n(at, __ATOMIC_RELAXED);
    for (uint64_t k = 0; k < BLOCK_WORDS; k++)
        r->faults += __atomic_load_n(at + k, __ATOMIC_RELAXED) != first + k;
    uint64_t name = first / BLOCK_WORDS;
    if (name >> 32 >= r->next.size() || r->next[name >> 32]++ != (uint32_t)name)
        r->faults++;
}

static void a_block_speaks_for_its_threads(void)
{
    enum { BLOCKS = 16, EACH = 100 };
    char why[200];
    rig r;
    int wrong = 0;
    rig_open(&r, SHIFT, FIRST_32, LONG_NS);
    r.judge = judge_blocks;
    r.next.assign(BLOCKS, 0);
    words[16] = 0;
    memset(payload, 0xff, (size_t)BLOCKS * EACH * BLOCK_WORDS * 8);
    rig_start(&r);
    blocks_issue<<<BLOCKS, 192>>>(r.ring, words, payload, EACH, codes);
    finish(why, sizeof why);
    rig_stop(&r);
    for (int i = 0; i < BLOCKS; i++)
        wrong += codes[i] != 0;
    snprintf(why, sizeof why, "%d blocks failed, %llu words wrong, %llu commands", wrong, (unsigned long long)r.faults,
             (unsigned long long)words[16]);
    verdict("a block's command comes after what all its threads wrote", !wrong && !r.faults && words[16] == BLOCKS * EACH, why);
    rig_close(&r);
}

/* ---------------------------------------------------------------- values that come back */

__global__ void fetchers(ufd_queue q, uint64_t *word, uint64_t *olds, uint32_t each, int *codes_)
{
    uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
    int rc = 0;
    for (uint32_t i = 0; i < each && !rc; i++)
        rc = ufd_queue_fetch(&q, UF_ATOMIC_FETCH_ADD, 8, word, 1, 0, &olds[(uint64_t)me * each + i], 1);
    uint64_t old = 0;
    if (!rc)
        rc = ufd_queue_fetch_block(&q, UF_ATOMIC_FETCH, 8, word + 1, 0, 0, &old, 1);
    codes_[me] = rc ? rc : old == 77 ? 0 : 1;
}

static void every_fetch_gets_its_own_value(void)
{
    enum { BLOCKS = 8, THREADS = 64, EACH = 20, ALL = BLOCKS * THREADS * EACH };
    char why[200];
    rig r;
    int wrong = 0, twice = 0;
    rig_open(&r, SHIFT, FIRST_63, LONG_NS);
    words[24] = 0;
    words[25] = 77;
    rig_start(&r);
    fetchers<<<BLOCKS, THREADS>>>(r.ring, words + 24, payload, EACH, codes);
    finish(why, sizeof why);
    rig_stop(&r);
    std::vector<char> seen(ALL, 0);
    for (int i = 0; i < BLOCKS * THREADS; i++)
        wrong += codes[i] != 0;
    for (int i = 0; i < ALL; i++)
        if (payload[i] >= ALL || seen[payload[i]]++)
            twice++;
    snprintf(why, sizeof why, "%d threads failed (first code %d), %d values wrong", wrong, codes[0], twice);
    verdict("512 threads fetch 20 values each through 256 places: each value once", !wrong && !twice, why);
    rig_close(&r);
}

/* ---------------------------------------------------------------- what goes wrong */

__global__ void makes_a_mistake(ufd_queue q, uint64_t *words_, int *codes_)
{
    codes_[0] = ufd_queue_check(&q) ? 0 : 1;
    codes_[1] = ufd_queue_atomic(&q, 1, 8, words_ + 32, 1, 0);
    codes_[2] = ufd_queue_atomic(&q, 1, 8, words_ + 32, 1, 4); /* there is no PE 4 */
    codes_[3] = ufd_queue_atomic(&q, 1, 8, words_ + 32, 1, 0);
    codes_[4] = ufd_queue_quiet(&q);
    codes_[5] = ufd_queue_flush(&q);
    codes_[6] = ufd_queue_put(&q, words_, words_, 1ull << 48, 0); /* does not fit: nothing is issued */
}

static void an_error_ends_waits_and_loses_nothing(void)
{
    char why[200];
    rig r;
    rig_open(&r, SHIFT, 0, LONG_NS);
    words[32] = 0;
    rig_start(&r);
    makes_a_mistake<<<1, 1>>>(r.ring, words, codes);
    finish(why, sizeof why);
    rig_stop(&r);
    bool codes_right = !codes[0] && !codes[1] && !codes[2] && !codes[3] && codes[4] == UF_ERANGE && codes[5] == UF_ERANGE &&
                       codes[6] == UF_ERANGE;
    int rc = uf_command_queue_status(r.queue);
    bool sentence = rc == UF_ERANGE && strstr(uf_error_message(), "command 1:") && strstr(uf_error_message(), "no PE 4");
    snprintf(why, sizeof why, "codes %d %d %d, word %llu, %s", codes[4], codes[5], codes[6], (unsigned long long)words[32],
             uf_error_message());
    verdict("a wrong command is told with its position; waits return it; the others are done",
            codes_right && sentence && words[32] == 2, why);
    rig_close(&r);
}

__global__ void waits_for_ever(ufd_queue q, uint64_t *flag, int *codes_)
{
    uint64_t never = (q.local->reserved + 1000) & UF_COMMAND_POSITION_MASK;
    if (threadIdx.x == 0)
        uf_store_release64(flag, 1);
    codes_[threadIdx.x] = uf_command_wait(&q, threadIdx.x & 1 ? &q.report->local : &q.report->remote, never, 0);
}

static void the_end_of_the_world_ends_kernels(void)
{
    char why[200];
    rig r;
    int wrong = 0;
    rig_open(&r, SHIFT, 0, LONG_NS);
    words[40] = 0;
    rig_start(&r);
    waits_for_ever<<<1, 64>>>(r.ring, words + 40, codes);
    cudaStreamQuery(0);
    while (!uf_load_acquire64(words + 40))
        std::this_thread::yield();
    r.world = UF_EPEER;
    finish(why, sizeof why);
    rig_stop(&r);
    for (int i = 0; i < 64; i++)
        wrong += codes[i] != UF_EPEER;
    snprintf(why, sizeof why, "%d waits returned otherwise (first %d)", wrong, codes[0]);
    verdict("the end of the world ends every wait of a kernel with its reason", !wrong, why);
    rig_close(&r);
}

/* Nobody consumes. */
__global__ void fills_the_ring(ufd_queue q, int *codes_)
{
    int rc = 0;
    uint32_t n = 0;
    for (; n <= DEPTH && !rc; n += !rc)
        rc = ufd_queue_fence(&q);
    codes_[0] = rc;
    codes_[1] = (int)n;
    codes_[2] = uf_command_wait(&q, &q.report->remote, q.local->reserved, 0);
    uint64_t old;
    codes_[3] = ufd_queue_fetch(&q, 6, 8, q.slots, 1, 0, &old, 0);
    codes_[4] = (int)uf_command_distance(q.report->consumed, q.local->reserved);
}

static void no_wait_is_without_an_end(void)
{
    char why[200];
    rig r;
    rig_open(&r, SHIFT, FIRST_63, SHORT_NS);
    fills_the_ring<<<1, 1>>>(r.ring, codes);
    finish(why, sizeof why);
    bool holds = codes[0] == UF_ETIMEDOUT && codes[1] == DEPTH && codes[2] == UF_ETIMEDOUT && codes[3] == UF_ETIMEDOUT &&
                 codes[4] == DEPTH;
    snprintf(why, sizeof why, "codes %d, %d commands, %d, %d, reserved %d", codes[0], codes[1], codes[2], codes[3], codes[4]);
    verdict("with nobody consuming every wait times out, and a full ring gives no slot away", holds, why);
    rig_close(&r);
}

/* Thread 0 of the first ring stops after three words until the host lets it go on; the second ring's thread needs nothing of it. */
__global__ void stops_in_the_middle(ufd_queue torn, ufd_queue other, uint64_t *words_, int *codes_)
{
    if (blockIdx.x == 0) {
        uint64_t position, image[UF_COMMAND_WORDS];
        uf_command c = ufd_command_atomic(1, 8, words_ + 48, 1, 0, 0);
        codes_[0] = uf_command_reserve(&torn, 1, 0, &position);
        uf_command_encode(&c, position, torn.shift, image);
        for (int i = 0; i < 3; i++)
            uf_store_relaxed64(uf_command_slot(&torn, position) + (i * 3) % 8, image[(i * 3) % 8]);
        uf_store_release64(words_ + 50, 1);
        uint64_t until = uf_command_now() + LONG_NS;
        while (uf_load_acquire64(words_ + 51) == 0 && uf_command_now() < until)
            ;
        uf_command_write(&torn, position, &c);
        codes_[0] = codes_[0] ? codes_[0] : ufd_queue_quiet(&torn);
    } else {
        while (uf_load_acquire64(words_ + 50) == 0)
            ;
        int rc = 0;
        for (int i = 0; i < 1000 && !rc; i++)
            rc = ufd_queue_atomic(&other, 1, 8, words_ + 49, 1, 0);
        codes_[1] = rc ? rc : ufd_queue_quiet(&other);
        uf_store_release64(words_ + 52, 1);
    }
}

static void a_torn_writer_holds_up_its_ring_alone(void)
{
    char why[200];
    rig a, b;
    rig_open(&a, SHIFT, FIRST_32, LONG_NS);
    rig_open(&b, SHIFT, 0, LONG_NS);
    memset(words + 48, 0, 64);
    rig_start(&a);
    rig_start(&b);
    stops_in_the_middle<<<2, 1>>>(a.ring, b.ring, words, codes);
    cudaStreamQuery(0);
    while (!uf_load_acquire64(words + 52))
        std::this_thread::yield();
    bool held = uf_load_acquire64(words + 48) == 0 && uf_load_acquire64(words + 49) == 1000;
    uf_store_release64(words + 51, 1);
    finish(why, sizeof why);
    snprintf(why, sizeof why, "held %d, codes %d %d, words %llu %llu", held, codes[0], codes[1], (unsigned long long)words[48],
             (unsigned long long)words[49]);
    verdict("a thread that stops inside a command holds up its own ring alone", held && !codes[0] && !codes[1] && words[48] == 1,
            why);
    rig_close(&a);
    rig_close(&b);
}

int main(void)
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("no GPU here: skipped\n0 passed, 0 failed\n");
        return 77;
    }
    words = rig_pinned<uint64_t>(64);
    payload = rig_pinned<uint64_t>((size_t)1 << 20);
    codes = rig_pinned<int>(16384);
    const uint64_t firsts[] = {0, FIRST_32, FIRST_63};
    for (uint64_t first : firsts) {
        every_command("one thread", threads_issue, 1, 1, 20000, first);
        every_command("one warp", warps_issue, 1, 32, 3000, first);
        every_command("warps", warps_issue, 8, 128, 300, first);
        every_command("warps", warps_issue, 32, 256, 60, first);
        every_command("each thread for itself", threads_issue, 8, 64, 100, first);
        every_command("each thread for itself", threads_issue, 32, 128, 10, first);
        every_command("payloads of an earlier kernel", ready_issue, 8, 64, 100, first);
    }
    a_block_speaks_for_its_threads();
    every_fetch_gets_its_own_value();
    an_error_ends_waits_and_loses_nothing();
    the_end_of_the_world_ends_kernels();
    no_wait_is_without_an_end();
    a_torn_writer_holds_up_its_ring_alone();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
