/* stream_calls.c - how many calls of the CUDA driver each operation on a stream makes, and what joins what in a captured graph.
 *
 * The host time of these operations is the driver's, so the number of its calls is what the library can answer for. One PE, its own neighbour, over the driver
 * of the tests, which counts. The graphs are carried out as well: what was stored is compared. */
#include "support/fake_cuda.h"
#include "unfence/stream.h"
#include <cuda.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* clang-format off */
#define CALLS(X) \
    X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuStreamCreate) \
    X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) \
    X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuMemcpyAsync)
/* clang-format on */
#define MEMBER(name) __typeof__(&name) name;
static struct {
    CALLS(MEMBER)
    __typeof__(&fake_cuda_calls) calls;
    __typeof__(&fake_cuda_live) live;
} cu;
#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

static uf_world *world;
static uf_group *group;
static uf_ctx *ctx;
static CUcontext context;
static CUstream stream;
static uint64_t *words, *host_words;
static unsigned char *memory;

static void find(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        fail_msg("the driver of the tests has no %s", name);
    memcpy(slot, &symbol, sizeof symbol);
}

static int set_up(void **state)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    void *taken = NULL, *more = NULL;
    (void)state;
    void *library = dlopen(FAKE_CUDA, RTLD_NOW);
    assert_non_null(library);
#define LOAD(name) find(library, TEXT(name), &cu.name);
    CALLS(LOAD)
    find(library, "fake_cuda_calls", &cu.calls);
    find(library, "fake_cuda_live", &cu.live);
    setenv("UNFENCE_CUDA_LIBRARY", FAKE_CUDA, 1);
    setenv("UNFENCE_CUDA_HEAP_SIZE", "2M", 1);
    setenv("UNFENCE_CUDA_HEAP_MAX", "64M", 1);
    assert_int_equal(cu.cuInit(0), CUDA_SUCCESS);
    assert_int_equal(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
    assert_int_equal(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    o.pe = 0;
    o.n_pes = 1;
    assert_int_equal(uf_group_create(1, &group), UF_OK);
    o.group = group;
    assert_int_equal(uf_world_create(&o, &world), UF_OK);
    ctx = uf_ctx_default(world);
    if (uf_malloc_on(world, UF_MEMORY_CUDA, 65536, 0, &taken))
        fail_msg("%s", uf_error_message());
    assert_int_equal(uf_malloc_on(world, UF_MEMORY_CUDA, 4096, 0, &more), UF_OK);
    assert_int_equal(uf_signal_alloc(world, 8, UF_SIGNAL_DEFAULT, &host_words), UF_OK);
    memory = taken;
    words = more;
    return 0;
}

static int tear_down(void **state)
{
    CUcontext gone;
    (void)state;
    uf_world_destroy(world);
    uf_group_destroy(group);
    cu.cuStreamDestroy(stream);
    cu.cuCtxPopCurrent(&gone);
    cu.cuDevicePrimaryCtxRelease(0);
    return cu.live() != 0;
}

static void finish(void)
{
    assert_int_equal(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

static uint64_t read_word(const void *at)
{
    uint64_t value = 0;
    assert_int_equal(uf_get(ctx, &value, at, sizeof value, 0), UF_OK);
    return value;
}

/* What the calls since the last question were: copies, batches of memory operations, questions, and no other. */
static void expect_calls(const char *what, int copies, int batches, int questions)
{
    int c = cu.calls("cuMemcpyAsync"), b = cu.calls("cuStreamBatchMemOp"),
        q = cu.calls("cuCtxGetCurrent") + cu.calls("cuStreamGetCaptureInfo"), rest = cu.calls(NULL);
    if (c != copies || b != batches || q != questions || rest != 0)
        fail_msg("%s: %d copies, %d batches, %d questions and %d other calls; expected %d, %d, %d and none", what, c, b, q, rest,
                 copies, batches, questions);
}

/* ---------------------------------------------------------------- promises */

static void each_operation_makes_as_few_driver_calls_as_it_can(void **state)
{
    static const uint64_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;
    cu.calls(NULL);
    assert_int_equal(uf_put_on_stream(ctx, memory, memory + 4096, 64, 0, stream), UF_OK);
    expect_calls("a put", 1, 0, 1);
    assert_int_equal(uf_get_on_stream(ctx, memory, memory + 4096, 64, 0, stream), UF_OK);
    expect_calls("a get", 1, 0, 1);
    assert_int_equal(uf_put_signal_on_stream(ctx, memory, memory + 4096, 64, words, UF_SIGNAL_SET, 1, 0, 0, stream), UF_OK);
    expect_calls("a put with signal", 1, 1, 2);
    assert_int_equal(uf_put_signal_on_stream(ctx, memory, values, 64, words, UF_SIGNAL_SET, 1, 0, UF_BY_VALUE, stream), UF_OK);
    expect_calls("a put with signal by value", 0, 1, 2);
    assert_int_equal(uf_signal_on_stream(ctx, words, UF_SIGNAL_SET, 1, 0, 0, stream), UF_OK);
    expect_calls("a signal", 0, 1, 2);
    assert_int_equal(uf_wait_on_stream(world, words, UF_EQ, 1, 0, stream), UF_OK);
    expect_calls("a wait", 0, 1, 1);
    assert_int_equal(uf_wait_on_stream(world, words, UF_EQ, 1, UF_CONSUME, stream), UF_OK);
    expect_calls("a consuming wait", 0, 1, 1);
    assert_int_equal(uf_fence_on_stream(ctx, stream), UF_OK);
    assert_int_equal(uf_quiet_on_stream(ctx, stream), UF_OK);
    expect_calls("fence and quiet", 0, 0, 0);
    finish();
}

static void bytes_by_value_are_those_of_the_call(void **state)
{
    uint64_t values[8];
    (void)state;
    for (uint64_t n = 1; n <= 8; n++) {
        for (uint64_t i = 0; i < n; i++)
            values[i] = 100 * n + i;
        assert_int_equal(uf_put_signal_on_stream(ctx, memory, values, 8 * n, &words[1], UF_SIGNAL_SET, n, 0, UF_BY_VALUE, stream),
                         UF_OK);
        memset(values, 0, sizeof values); /* the stream may not have begun */
        finish();
        for (uint64_t i = 0; i < n; i++)
            assert_int_equal(read_word(memory + 8 * i), 100 * n + i);
        assert_int_equal(read_word(&words[1]), n);
    }
    /* ... and to the host heap. */
    values[0] = 77;
    assert_int_equal(
        uf_put_signal_on_stream(ctx, &host_words[0], values, 8, &host_words[1], UF_SIGNAL_SET, 5, 0, UF_BY_VALUE, stream), UF_OK);
    finish();
    assert_int_equal(host_words[0], 77);
    assert_int_equal(host_words[1], 5);
}

static void what_cannot_go_by_value_is_refused(void **state)
{
    static const uint64_t values[9];
    static const struct {
        size_t offset, bytes;
    } bad[] = {{0, 72}, {0, 12}, {4, 8}, {0, 1}};
    (void)state;
    cu.calls(NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(uf_put_signal_on_stream(ctx, memory + bad[i].offset, values, bad[i].bytes, words, UF_SIGNAL_SET, 1, 0,
                                                 UF_BY_VALUE, stream),
                         UF_EINVAL);
        assert_non_null(strstr(uf_error_message(), "UF_BY_VALUE"));
    }
    assert_int_equal(uf_put_signal_on_stream(ctx, memory, memory + 64, 8, words, UF_SIGNAL_SET, 1, 0, UF_BY_VALUE, stream),
                     UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "GPU memory"));
    expect_calls("what is refused", 0, 0, 0);
}

enum { REPLAYS = 20 };

/* A graph in which every wait finds what the pair before it has stored. */
static CUgraphExec capture_pairs(int pairs, unsigned chained)
{
    CUgraph graph;
    CUgraphExec exec;
    assert_int_equal(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    for (int i = 0; i < pairs; i++) {
        uint64_t value = (uint64_t)i + 1;
        assert_int_equal(
            uf_put_signal_on_stream(ctx, memory + 8 * i, &value, 8, &words[2], UF_SIGNAL_SET, 1, 0, UF_BY_VALUE, stream), UF_OK);
        assert_int_equal(uf_wait_on_stream(world, &words[2], UF_EQ, 1, UF_CONSUME | chained, stream), UF_OK);
    }
    assert_int_equal(cu.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    assert_int_equal(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
}

enum { PAIRS = 30 };

static void replay_pairs(CUgraphExec exec)
{
    const uint64_t zero = 0;
    for (int replay = 0; replay < REPLAYS; replay++) {
        assert_int_equal(cu.cuGraphLaunch(exec, stream), CUDA_SUCCESS);
        finish();
        assert_int_equal(read_word(&words[2]), 0);
        for (int i = 0; i < PAIRS; i++) {
            assert_int_equal(read_word(memory + 8 * i), i + 1);
            assert_int_equal(uf_put(ctx, memory + 8 * i, &zero, 8, 0), UF_OK);
        }
    }
    cu.cuGraphExecDestroy(exec);
}

static void stores_join_the_node_before_them_and_waits_begin_one(void **state)
{
    (void)state;
    cu.calls(NULL);
    CUgraphExec exec = capture_pairs(PAIRS, 0);
    /* The first put and each wait make a node; all other puts join the wait before them. */
    assert_int_equal(cu.calls("cuStreamBatchMemOp"), PAIRS + 1);
    assert_int_equal(cu.calls("cuGraphBatchMemOpNodeSetParams"), PAIRS - 1);
    replay_pairs(exec);
}

static void chained_waits_join_as_well(void **state)
{
    (void)state;
    cu.calls(NULL);
    CUgraphExec exec = capture_pairs(PAIRS, UF_CHAINED);
    assert_int_equal(cu.calls("cuStreamBatchMemOp"), 2); /* 120 operations, 64 in a node */
    replay_pairs(exec);
}

static void a_store_does_not_join_a_copy_or_a_full_node(void **state)
{
    enum { SIGNALS = 150 };
    CUgraph graph;
    (void)state;
    cu.calls(NULL);
    assert_int_equal(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    assert_int_equal(uf_put_on_stream(ctx, memory, memory + 64, 64, 0, stream), UF_OK);
    for (int i = 0; i < SIGNALS; i++)
        assert_int_equal(uf_signal_on_stream(ctx, &words[3], UF_SIGNAL_SET, (uint64_t)i, 0, 0, stream), UF_OK);
    assert_int_equal(cu.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cu.calls("cuStreamBatchMemOp"), 3); /* 64, 64 and 22 stores */
    cu.cuGraphDestroy(graph);
}

/* The legacy stream cannot be captured: what the driver says comes through, and nothing is half done. */
static void a_failing_driver_is_told_with_the_call(void **state)
{
    void (*arm)(const char *, int, int) = NULL;
    (void)state;
    find(dlopen(FAKE_CUDA, RTLD_NOW | RTLD_NOLOAD), "fake_cuda_fail", &arm);
    arm("cuStreamBatchMemOp", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(uf_wait_on_stream(world, words, UF_EQ, 1, 0, stream), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "uf_wait_on_stream"));
    assert_non_null(strstr(uf_error_message(), "captur"));
    arm("cuMemcpyAsync", 1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(uf_put_on_stream(ctx, memory, memory + 64, 64, 0, stream), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "captur"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_operation_makes_as_few_driver_calls_as_it_can),
        cmocka_unit_test(bytes_by_value_are_those_of_the_call),
        cmocka_unit_test(what_cannot_go_by_value_is_refused),
        cmocka_unit_test(stores_join_the_node_before_them_and_waits_begin_one),
        cmocka_unit_test(chained_waits_join_as_well),
        cmocka_unit_test(a_store_does_not_join_a_copy_or_a_full_node),
        cmocka_unit_test(a_failing_driver_is_told_with_the_call),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
