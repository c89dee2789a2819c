/* nvshmem_all.cu - every function of compat/nvshmem.h and nvshmemx.h between PEs that share a GPU, or have one each.
 *
 * A crowd of processes for 2 and for 4 PEs. Each promise is kept by all PEs together; a PE counts what is wrong in words that only it has,
 * and PE 0 gathers them. Prints a line a promise and "N passed, N failed". */
#include "../../examples/nvshmem/start.h"
#include <cstring>

enum { N = 1000, WORDS = 64 };

struct tally {
    int passed, failed;
};
static tally *counts; /* shared by all processes */

struct rig {
    int me, n, right, left;
    uint64_t *words; /* symmetric, 0 at each promise's beginning */
    int *ints, *in;  /* symmetric, [N] and [8][N] */
    unsigned *faults;
};

__device__ void fault(const rig &r, bool wrong)
{
    if (wrong)
        atomicAdd(r.faults, 1u);
}

__device__ int pattern(int pe, int i, int salt)
{
    return pe * 100003 + i * 31 + salt * 7;
}

__device__ void fill(const rig &r, int salt)
{
    for (int i = threadIdx.x; i < N; i += blockDim.x)
        r.ints[i] = pattern(r.me, i, salt);
    __syncthreads();
}

__device__ void verify(const rig &r, const int *at, int pe, int salt)
{
    for (int i = threadIdx.x; i < N; i += blockDim.x)
        fault(r, ((const volatile int *)at)[i] != pattern(pe, i, salt));
    __syncthreads();
}

/* ---------------------------------------------------------------- kernels */

__global__ void who(rig r)
{
    fault(r, nvshmem_my_pe() != r.me || nvshmem_n_pes() != r.n);
    fault(r, nvshmem_ptr(r.words, r.me) != r.words || nvshmem_ptr(r.words, r.n) != NULL);
    for (int i = 0; i < r.n; i++)
        fault(r, nvshmem_ptr(r.words, i) == NULL);
    fault(r, nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) != r.me || nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE) != r.n);
    fault(r, nvshmem_team_my_pe(NVSHMEM_TEAM_INVALID) != -1 || nvshmem_team_n_pes(63) != -1);
}

__global__ void team_in_kernel(rig r, nvshmem_team_t team, int pe, int n)
{
    fault(r, nvshmem_team_my_pe(team) != pe || nvshmem_team_n_pes(team) != n);
    for (int i = 0; i < n; i++) {
        fault(r, nvshmem_team_translate_pe(team, i, NVSHMEM_TEAM_WORLD) != i * 2 + r.me % 2);
        fault(r, nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, i * 2 + r.me % 2, team) != i);
    }
    fault(r, nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, (r.me + 1) % r.n, team) != -1);
}

/* Each way to put, to the right, one slot each; then each way to get, from the left. */
__global__ void puts_and_gets(rig r)
{
    bool first = threadIdx.x == 0, warp = threadIdx.x < 32;
    size_t bytes = N * sizeof(int);
    fill(r, 1);
    if (first) {
        nvshmem_putmem(r.in, r.ints, bytes, r.right);
        nvshmem_int_put_nbi(r.in + N, r.ints, N, r.right);
        for (int i = 0; i < N; i++)
            nvshmem_int_p(r.in + 2 * N + i, r.ints[i], r.right);
    }
    if (warp) {
        nvshmemx_putmem_warp(r.in + 3 * N, r.ints, bytes, r.right);
        nvshmemx_int_put_nbi_warp(r.in + 4 * N, r.ints, N, r.right);
    }
    nvshmemx_putmem_nbi_block(r.in + 5 * N, r.ints, bytes, r.right);
    nvshmemx_int_put_block(r.in + 6 * N, r.ints, N, r.right);
    if (first)
        nvshmem_putmem_nbi(r.in + 7 * N, r.ints, bytes, r.right);
    nvshmemx_barrier_all_block();
    for (int slot = 0; slot < 8; slot++)
        verify(r, r.in + slot * N, r.left, 1);
    if (warp)
        nvshmemx_barrier_all_warp(); /* all have looked */
    __syncthreads();
    if (first) {
        nvshmem_getmem(r.in, r.ints, bytes, r.left);
        nvshmem_int_get_nbi(r.in + N, r.ints, N, r.left);
        for (int i = 0; i < N; i++)
            r.in[2 * N + i] = nvshmem_int_g(r.ints + i, r.left);
        nvshmem_quiet();
    }
    if (warp)
        nvshmemx_getmem_warp(r.in + 3 * N, r.ints, bytes, r.left);
    nvshmemx_getmem_nbi_block(r.in + 4 * N, r.ints, bytes, r.left);
    nvshmemx_int_get_block(r.in + 5 * N, r.ints, N, r.left);
    __syncthreads();
    for (int slot = 0; slot < 6; slot++)
        verify(r, r.in + slot * N, r.left, 1);
    if (first)
        nvshmem_barrier_all();
}

/* A signal says that its put is here: no fence, no barrier. */
__global__ void signalled_puts(rig r)
{
    bool first = threadIdx.x == 0, warp = threadIdx.x < 32;
    size_t bytes = N * sizeof(int);
    fill(r, 2);
    if (first)
        nvshmem_putmem_signal(r.in, r.ints, bytes, r.words, 5, NVSHMEM_SIGNAL_SET, r.right);
    if (first)
        nvshmem_int_put_signal_nbi(r.in + N, r.ints, N, r.words + 1, 1, NVSHMEM_SIGNAL_ADD, r.right);
    if (warp)
        nvshmemx_putmem_signal_nbi_warp(r.in + 2 * N, r.ints, bytes, r.words + 2, 7, NVSHMEM_SIGNAL_SET, r.right);
    if (warp)
        nvshmemx_int_put_signal_warp(r.in + 3 * N, r.ints, N, r.words + 3, 1, NVSHMEM_SIGNAL_ADD, r.right);
    nvshmemx_putmem_signal_block(r.in + 4 * N, r.ints, bytes, r.words + 4, 1, NVSHMEM_SIGNAL_ADD, r.right);
    nvshmemx_putmem_signal_nbi_block(r.in + 5 * N, r.ints, bytes, r.words + 5, 9, NVSHMEM_SIGNAL_SET, r.right);
    const uint64_t wanted[] = {5, 1, 7, 1, 1, 9};
    for (int slot = 0; slot < 6; slot++) {
        if (first)
            fault(r, nvshmem_signal_wait_until(r.words + slot, NVSHMEM_CMP_EQ, wanted[slot]) != wanted[slot]);
        __syncthreads();
        verify(r, r.in + slot * N, r.left, 2);
    }
    if (first) {
        nvshmem_int_put_nbi(r.in + 6 * N, r.ints, N, r.right);
        nvshmem_fence();
        nvshmemx_signal_op(r.words + 6, 1, NVSHMEM_SIGNAL_ADD, r.right);
        nvshmem_uint64_wait_until(r.words + 6, NVSHMEM_CMP_NE, 0);
        fault(r, nvshmem_signal_fetch(r.words + 6) != 1);
    }
    __syncthreads();
    verify(r, r.in + 6 * N, r.left, 2);
    nvshmemx_sync_all_block();
}

__global__ void set_words(rig r)
{
    for (int i = 0; i < 4; i++)
        nvshmem_uint64_p(r.words + i, (uint64_t)(10 + i), r.right);
    nvshmem_int_p(r.ints, -3, r.right);
    nvshmem_sync_all();
    nvshmem_barrier_all();
}

__global__ void waits_and_tests(rig r)
{
    int skip_first[4] = {1, 0, 0, 0}, skip_all[4] = {1, 1, 1, 1};
    uint64_t each[4] = {10, 11, 12, 13};
    size_t at[4];
    nvshmem_uint64_wait_until_all(r.words, 4, NULL, NVSHMEM_CMP_GE, 10);
    nvshmem_uint64_wait_until_all_vector(r.words, 4, NULL, NVSHMEM_CMP_EQ, each);
    fault(r, nvshmem_uint64_wait_until_any(r.words, 4, NULL, NVSHMEM_CMP_GT, 12) != 3);
    fault(r, nvshmem_uint64_wait_until_any(r.words, 4, skip_first, NVSHMEM_CMP_LE, 11) != 1);
    fault(r, nvshmem_uint64_wait_until_any(r.words, 4, skip_all, NVSHMEM_CMP_EQ, 99) != (size_t)-1);
    fault(r, nvshmem_uint64_wait_until_any_vector(r.words, 4, skip_first, NVSHMEM_CMP_EQ, each) != 1);
    fault(r, nvshmem_uint64_wait_until_some(r.words, 4, at, NULL, NVSHMEM_CMP_LT, 12) != 2 || at[0] != 0 || at[1] != 1);
    fault(r, nvshmem_uint64_wait_until_some_vector(r.words, 4, at, skip_first, NVSHMEM_CMP_EQ, each) != 3 || at[0] != 1);
    fault(r, !nvshmem_uint64_test(r.words, NVSHMEM_CMP_EQ, 10) || nvshmem_uint64_test(r.words, NVSHMEM_CMP_EQ, 11));
    fault(r, nvshmem_uint64_test_all(r.words, 4, NULL, NVSHMEM_CMP_GT, 10) != 0);
    fault(r, nvshmem_uint64_test_all(r.words, 4, skip_first, NVSHMEM_CMP_GT, 10) != 1);
    fault(r, nvshmem_uint64_test_all_vector(r.words, 4, NULL, NVSHMEM_CMP_EQ, each) != 1);
    fault(r, nvshmem_uint64_test_any(r.words, 4, NULL, NVSHMEM_CMP_EQ, 12) != 2);
    fault(r, nvshmem_uint64_test_any(r.words, 4, NULL, NVSHMEM_CMP_EQ, 99) != (size_t)-1);
    fault(r, nvshmem_uint64_test_some(r.words, 4, at, NULL, NVSHMEM_CMP_NE, 10) != 3 || at[2] != 3);
    fault(r, !nvshmem_int_test(r.ints, NVSHMEM_CMP_LT, 0)); /* signed */
    fault(r, nvshmem_uint_test((unsigned *)r.ints, NVSHMEM_CMP_LT, 5u));
    nvshmem_int_wait_until(r.ints, NVSHMEM_CMP_LE, -3);
}

/* All PEs on PE 0's words. */
__global__ void atomics(rig r)
{
    int *i = r.ints;
    unsigned long long *big = (unsigned long long *)r.words;
    for (int k = 0; k < 50; k++) {
        nvshmem_int_atomic_add(i, 3, 0);
        nvshmem_int_atomic_inc(i + 1, 0);
        nvshmem_ulonglong_atomic_add(big, 1ull << 33, 0);
        int was = nvshmem_int_atomic_fetch_add(i + 2, 1, 0);
        fault(r, was < 0 || was >= 100 * r.n);
        nvshmem_int_atomic_fetch_inc(i + 2, 0);
    }
    nvshmem_int_atomic_or(i + 3, 1 << r.me, 0);
    nvshmem_uint64_atomic_fetch_xor(r.words + 1, 1ull << (r.me + 40), 0);
    nvshmem_uint32_atomic_xor((uint32_t *)i + 4, 1u << r.me, 0);
    nvshmem_int_atomic_set(i + 8 + r.me, -r.me - 1, 0);
    fault(r, nvshmem_int_atomic_fetch(i + 8 + r.me, 0) != -r.me - 1);
    fault(r, nvshmem_int_atomic_swap(i + 8 + r.me, 77, 0) != -r.me - 1);
    fault(r, nvshmem_int_atomic_compare_swap(i + 8 + r.me, 76, 1, 0) != 77);
    fault(r, nvshmem_int_atomic_compare_swap(i + 8 + r.me, 77, 0xff, 0) != 77);
    nvshmem_int_atomic_and(i + 8 + r.me, 0x0f, 0);
    fault(r, nvshmem_int_atomic_fetch_and(i + 8 + r.me, 0x03, 0) != 0x0f);
    fault(r, nvshmem_int_atomic_fetch_or(i + 8 + r.me, 0x10, 0) != 0x03);
    nvshmem_float_atomic_set((float *)i + 16 + r.me, 1.5f, 0);
    fault(r, nvshmem_float_atomic_swap((float *)i + 16 + r.me, 2.5f, 0) != 1.5f);
    fault(r, nvshmem_float_atomic_fetch((float *)i + 16 + r.me, 0) != 2.5f);
    nvshmem_barrier_all();
    if (r.me == 0) {
        int everybody = (1 << r.n) - 1;
        fault(r, i[0] != 150 * r.n || i[1] != 50 * r.n || i[2] != 100 * r.n || i[3] != everybody || i[4] != everybody);
        fault(r, big[0] != (unsigned long long)(50 * r.n) << 33 || r.words[1] != (uint64_t)everybody << 40);
        for (int k = 0; k < r.n; k++)
            fault(r, i[8 + k] != 0x13);
    }
    nvshmem_barrier_all();
}

__global__ void fill_here(rig r, int salt)
{
    fill(r, salt);
}

__global__ void verify_here(rig r, int slots, int salt)
{
    for (int slot = 0; slot < slots; slot++)
        verify(r, r.in + slot * N, r.left, salt);
}

/* ---------------------------------------------------------------- promises */

static void kernels_know_the_world(const rig &r)
{
    who<<<1, 1>>>(r);
}

static void kernels_put_and_get(const rig &r)
{
    puts_and_gets<<<1, 128>>>(r);
}

static void a_signal_covers_its_put(const rig &r)
{
    signalled_puts<<<1, 128>>>(r);
}

static void waits_and_tests_compare(const rig &r)
{
    set_words<<<1, 1>>>(r);
    waits_and_tests<<<1, 1>>>(r);
}

static void atomics_lose_nothing(const rig &r)
{
    atomics<<<1, 1>>>(r);
}

static void wrong(const rig &r, bool is)
{
    unsigned one = 1;
    if (is)
        CUDA_OK(cudaMemcpy(r.faults, &one, sizeof one, cudaMemcpyHostToDevice));
}

static void teams_are_known_to_hosts_and_kernels(const rig &r)
{
    nvshmem_team_t team = 99, mine = NVSHMEM_TEAM_INVALID;
    for (int parity = 0; parity < 2; parity++) {
        wrong(r, nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, parity, 2, r.n / 2, NULL, 0, &team) != 0);
        wrong(r, (team != NVSHMEM_TEAM_INVALID) != (r.me % 2 == parity));
        mine = team != NVSHMEM_TEAM_INVALID ? team : mine;
    }
    wrong(r, nvshmem_team_my_pe(mine) != r.me / 2 || nvshmem_team_n_pes(mine) != r.n / 2);
    wrong(r, nvshmem_team_translate_pe(mine, r.me / 2, NVSHMEM_TEAM_WORLD) != r.me || nvshmem_barrier(mine) ||
                 nvshmem_team_sync(mine));
    team_in_kernel<<<1, 1>>>(r, mine, r.me / 2, r.n / 2);
    wrong(r, nvshmem_barrier(40) == 0);
    CUDA_OK(cudaDeviceSynchronize());
    nvshmem_team_destroy(mine);
    wrong(r, nvshmem_team_my_pe(mine) != -1);
}

static void streams_put_signal_and_wait(const rig &r)
{
    cudaStream_t s;
    size_t bytes = N * sizeof(int);
    CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    fill_here<<<1, 128, 0, s>>>(r, 3);
    nvshmemx_putmem_on_stream(r.in, r.ints, bytes, r.right, s);
    nvshmemx_int_put_nbi_on_stream(r.in + N, r.ints, N, r.right, s);
    nvshmemx_signal_op_on_stream(r.words, 1, NVSHMEM_SIGNAL_SET, r.right, s);
    nvshmemx_putmem_signal_on_stream(r.in + 2 * N, r.ints, bytes, r.words + 1, 4, NVSHMEM_SIGNAL_SET, r.right, s);
    nvshmemx_putmem_signal_nbi_on_stream(r.in + 3 * N, r.ints, bytes, r.words + 2, 2, NVSHMEM_SIGNAL_ADD, r.right, s);
    nvshmemx_quiet_on_stream(s);
    nvshmemx_signal_wait_until_on_stream(r.words, NVSHMEM_CMP_EQ, 1, s);
    nvshmemx_signal_wait_until_on_stream(r.words + 1, NVSHMEM_CMP_GE, 4, s);
    nvshmemx_signal_wait_until_on_stream(r.words + 2, NVSHMEM_CMP_EQ, 2, s);
    nvshmemx_getmem_on_stream(r.in + 4 * N, r.ints, bytes, r.left, s);
    verify_here<<<1, 128, 0, s>>>(r, 5, 3);
    nvshmemx_barrier_all_on_stream(s);
    nvshmemx_sync_all_on_stream(s);
    CUDA_OK(cudaStreamSynchronize(s));
    CUDA_OK(cudaStreamDestroy(s));
}

static void hosts_put_signal_and_wait(const rig &r)
{
    int from[N], to[N];
    for (int i = 0; i < N; i++)
        from[i] = r.me * 100003 + i * 31 + 4 * 7;
    nvshmem_putmem(r.in, from, sizeof from, r.right);
    nvshmem_int_put_nbi(r.in + N, from, N, r.right);
    nvshmem_quiet();
    nvshmem_putmem_signal(r.in + 2 * N, from, sizeof from, r.words, 3, NVSHMEM_SIGNAL_SET, r.right);
    nvshmem_fence();
    nvshmemx_signal_op(r.words + 1, 8, NVSHMEM_SIGNAL_SET, r.right);
    wrong(r, nvshmem_signal_wait_until(r.words, NVSHMEM_CMP_GE, 3) != 3);
    wrong(r, nvshmem_signal_wait_until(r.words + 1, NVSHMEM_CMP_EQ, 8) != 8 || nvshmem_signal_fetch(r.words + 1) != 8);
    nvshmem_getmem(to, r.in + 2 * N, sizeof to, r.right);
    wrong(r, memcmp(to, from, sizeof to) != 0 || nvshmem_int_g(r.in + 5, r.right) != from[5]);
    nvshmem_barrier_all();
    verify_here<<<1, 128>>>(r, 3, 4);
    wrong(r, nvshmem_my_pe() != r.me || nvshmem_n_pes() != r.n || nvshmem_ptr(r.in, r.me) != r.in);
    wrong(r, nvshmemx_init_status() != NVSHMEM_STATUS_IS_INITIALIZED);
}

static void memory_is_aligned_and_clear(const rig &r)
{
    char *one = (char *)nvshmem_align(4096, 5000), *two = (char *)nvshmem_malloc(0), first[256], zeros[256] = {0};
    wrong(r, !one || (uintptr_t)one % 4096 != 0 || two != NULL);
    CUDA_OK(cudaMemset(one, 0xee, 5000));
    CUDA_OK(cudaDeviceSynchronize());
    nvshmem_free(one);
    char *clear = (char *)nvshmem_calloc(50, 100);
    CUDA_OK(cudaMemcpy(first, clear, sizeof first, cudaMemcpyDeviceToHost));
    wrong(r, memcmp(first, zeros, sizeof zeros) != 0);
    nvshmem_free(clear);
}

static const struct {
    const char *name;
    void (*keep)(const rig &r);
} promises[] = {
    {"kernels know the world", kernels_know_the_world},
    {"kernels put and get in each scope", kernels_put_and_get},
    {"a signal covers its put", a_signal_covers_its_put},
    {"waits and tests compare", waits_and_tests_compare},
    {"atomics lose nothing", atomics_lose_nothing},
    {"teams are known to hosts and kernels", teams_are_known_to_hosts_and_kernels},
    {"streams put, signal and wait", streams_put_signal_and_wait},
    {"hosts put, signal and wait", hosts_put_signal_and_wait},
    {"memory is aligned and clear", memory_is_aligned_and_clear},
};

static int body(void)
{
    rig r = {};
    r.me = nvshmem_my_pe(), r.n = nvshmem_n_pes();
    r.right = (r.me + 1) % r.n, r.left = (r.me + r.n - 1) % r.n;
    r.words = (uint64_t *)nvshmem_malloc(WORDS * sizeof(uint64_t));
    r.ints = (int *)nvshmem_malloc(9 * N * sizeof(int));
    r.faults = (unsigned *)nvshmem_malloc(sizeof *r.faults);
    r.in = r.ints + N;
    for (const auto &p : promises) {
        unsigned faults = 0, sum = 0;
        CUDA_OK(cudaMemset(r.words, 0, WORDS * sizeof(uint64_t)));
        CUDA_OK(cudaMemset(r.ints, 0, 9 * N * sizeof(int)));
        CUDA_OK(cudaMemset(r.faults, 0, sizeof faults));
        CUDA_OK(cudaDeviceSynchronize());
        nvshmem_barrier_all();
        p.keep(r);
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaDeviceSynchronize());
        nvshmem_barrier_all();
        for (int pe = 0; pe < r.n && r.me == 0; pe++) {
            nvshmem_getmem(&faults, r.faults, sizeof faults, pe);
            sum += faults;
        }
        if (r.me == 0) {
            printf("%s  %d PEs: %s\n", sum ? "FAILED" : "ok    ", r.n, p.name);
            fflush(stdout);
            sum ? counts->failed++ : counts->passed++;
        }
        nvshmem_barrier_all();
    }
    nvshmem_free(r.faults);
    nvshmem_free(r.ints);
    nvshmem_free(r.words);
    return 0;
}

int main()
{
    counts = (tally *)mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        return 1;
    for (int n = 2; n <= 4; n += 2) {
        if (run_pes(n, body)) {
            printf("FAILED  %d PEs: a PE did not end well\n", n);
            counts->failed++;
        }
    }
    printf("%d passed, %d failed\n", counts->passed, counts->failed);
    return counts->failed != 0;
}
