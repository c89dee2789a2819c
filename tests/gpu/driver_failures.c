/* driver_failures.c - each call of the CUDA driver fails once, at each place where it is made: a sentence, no leak, no hang.
 *
 * Two PEs, threads of this process, carry out one story with heap, windows, host operations, streams and kernels' view over the driver of
 * the tests, which is told to fail the n-th call of one function. Whoever is told of a failure must be told which call it was, by an error or a warning; what may
 * fail without anybody being told (a question about an ability) is listed. Afterwards nothing is left in the driver and no descriptor
 * is open. What a process does once, the start of the driver, fails in processes of its own. */
#include "support/fake_cuda.h"
#include "unfence/stream.h"
#include <cuda.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PES = 2, MOST_CALLS = 10, UNIT = 2 << 20, HANG_SECONDS = 100 };

/* ---------------------------------------------------------------- the driver of the tests */

/* clang-format off */
#define CALLS(X) \
    X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
    X(cuMemAlloc) X(cuMemFree) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) \
    X(cuMemUnmap) X(cuMemSetAccess) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)
/* clang-format on */
#define MEMBER(name) __typeof__(&name) name;
static struct {
    CALLS(MEMBER)
    __typeof__(&fake_cuda_fail) arm;
    __typeof__(&fake_cuda_pending) pending;
    __typeof__(&fake_cuda_live) live;
} cu;
#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

static void find(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        fail_msg("the driver of the tests has no %s", name);
    memcpy(slot, &symbol, sizeof symbol);
}

/* Warnings are telling, too. */
static char told[8192];
static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_line(void *arg, int level, const char *line)
{
    (void)arg;
    (void)level;
    pthread_mutex_lock(&told_lock);
    size_t n = strlen(told);
    snprintf(told + n, sizeof told - n, "%s\n", line);
    pthread_mutex_unlock(&told_lock);
}

static int load(void **state)
{
    (void)state;
    void *library = dlopen(FAKE_CUDA, RTLD_NOW);
    if (!library)
        return -1;
#define LOAD(name) find(library, TEXT(name), &cu.name);
    CALLS(LOAD)
    find(library, "fake_cuda_fail", &cu.arm);
    find(library, "fake_cuda_pending", &cu.pending);
    find(library, "fake_cuda_live", &cu.live);
    setenv("UNFENCE_CUDA_LIBRARY", FAKE_CUDA, 1);
    setenv("UNFENCE_CUDA_HEAP_SIZE", "2M", 1);
    setenv("UNFENCE_CUDA_HEAP_MAX", "64M", 1);
    setenv("UNFENCE_HEAP_SIZE", "4M", 1);
    setenv("UNFENCE_LOG", "warn", 1);
    uf_set_logger(keep_line, NULL);
    return 0;
}

/* ---------------------------------------------------------------- the story */

/* What the program has before the world uses it. */
typedef struct belongings {
    CUcontext context;
    CUstream stream;
    CUdeviceptr plain, vmm;
} belongings;

typedef struct teller {
    int pe, rc;
    const char *step;
    char why[1024];
    uf_group *group;
    const char *root; /* without a group */
    belongings has;
    int left; /* objects of the driver, where PEs are processes */
} teller;

static bool get_belongings(belongings *b, int device)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return !cu.cuDevicePrimaryCtxRetain(&b->context, device) && !cu.cuCtxPushCurrent(b->context) &&
           !cu.cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING) && !cu.cuMemAlloc(&b->plain, UNIT) &&
           !cu.cuMemAddressReserve(&b->vmm, UNIT, 0, 0, 0) && !cu.cuMemCreate(&handle, UNIT, &prop, 0) &&
           !cu.cuMemMap(b->vmm, UNIT, 0, handle, 0) && !cu.cuMemSetAccess(b->vmm, UNIT, &access, 1) && !cu.cuMemRelease(handle);
}

static void drop_belongings(belongings *b, int device)
{
    CUcontext gone;
    cu.cuMemUnmap(b->vmm, UNIT);
    cu.cuMemAddressFree(b->vmm, UNIT);
    cu.cuMemFree(b->plain);
    cu.cuStreamDestroy(b->stream);
    cu.cuCtxPopCurrent(&gone);
    cu.cuDevicePrimaryCtxRelease(device);
}

#define STEP(call)                                                                                                               \
    do {                                                                                                                         \
        t->step = #call;                                                                                                         \
        if ((t->rc = (call)) != UF_OK)                                                                                           \
            return;                                                                                                              \
    } while (0)

static void use_windows(teller *t, uf_world *w)
{
    uf_window *plain, *vmm;
    unsigned char host[256] = {1};
    int other = 1 - t->pe;
    void *at_plain = (void *)(uintptr_t)t->has.plain, *at_vmm = (void *)(uintptr_t)t->has.vmm;
    STEP(uf_register(w, at_plain, 65536, &plain));
    STEP(uf_register(w, at_vmm, 65536, &vmm));
    STEP(uf_put(uf_ctx_default(w), at_plain, host, sizeof host, other));
    STEP(uf_put(uf_ctx_default(w), at_vmm, host, sizeof host, other));
    STEP(uf_unregister(vmm));
    STEP(uf_unregister(plain));
}

static void use_streams(teller *t, uf_world *w, unsigned char *memory, uint64_t *words)
{
    uf_ctx *ctx = uf_ctx_default(w);
    CUstream s = t->has.stream;
    int other = 1 - t->pe;
    STEP(uf_put_on_stream(ctx, memory, memory + 4096, 4096, other, s));
    STEP(uf_put_signal_on_stream(ctx, memory, memory + 4096, 4096, &words[2], UF_SIGNAL_SET, 1, other, 0, s));
    STEP(uf_wait_on_stream(w, &words[2], UF_EQ, 1, UF_CONSUME, s));
    STEP(uf_get_on_stream(ctx, memory + 8192, memory, 4096, other, s));
    STEP(uf_barrier_on_stream(uf_team_world(w), s));
}

static void tell(teller *t, uf_world *w)
{
    uf_ctx *ctx = uf_ctx_default(w);
    const struct ufd_world *device;
    unsigned char host[256] = {1};
    void *memory, *words, *more, *host_memory;
    int other = 1 - t->pe;
    STEP(uf_malloc_on(w, UF_MEMORY_CUDA, 65536, 0, &memory));
    STEP(uf_malloc_on(w, UF_MEMORY_CUDA, 64, 0, &words));
    STEP(uf_device_world(w, &device));
    STEP(uf_malloc(w, 8 << 20, 0, &host_memory)); /* the host heap grows */
    STEP(uf_put_signal(ctx, memory, host, sizeof host, words, UF_SIGNAL_SET, 1, other, 0));
    STEP(uf_wait(w, words, UF_EQ, 1, 5000000000ull));
    STEP(uf_get(ctx, host, memory, sizeof host, other));
    use_windows(t, w);
    if (!t->rc)
        use_streams(t, w, memory, words);
    if (t->rc)
        return;
    STEP(uf_malloc_on(w, UF_MEMORY_CUDA, 3 << 20, 0, &more)); /* the GPU heap grows */
    STEP(uf_device_error(w));
    t->step = "synchronizing the stream";
    t->rc = cu.cuStreamSynchronize(t->has.stream) == CUDA_SUCCESS ? UF_OK : UF_ESYSTEM;
    if (t->rc)
        snprintf(t->why, sizeof t->why, "cuStreamSynchronize of the test's own");
    else
        STEP(uf_free(w, more));
}

static void *run_pe(void *arg)
{
    teller *t = arg;
    uf_world *w = NULL;
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = t->pe;
    o.n_pes = PES;
    o.group = t->group;
    o.root = t->root;
    o.timeout_ns = 10000000000ull;
    if (cu.cuCtxPushCurrent(t->has.context)) {
        t->rc = UF_ESYSTEM; /* which the main thread has armed: ours was the first */
        snprintf(t->why, sizeof t->why, "cuCtxPushCurrent of the test's own");
    }
    int created = uf_world_create(&o, &w);
    if (!created && !t->rc)
        tell(t, w);
    if (t->rc && !t->why[0])
        snprintf(t->why, sizeof t->why, "%s", uf_error_message());
    if (!created) {
        if (t->rc)
            uf_world_abort(w, "a step failed");
        cu.cuStreamSynchronize(t->has.stream);
        uf_world_destroy(w);
    }
    CUcontext gone;
    cu.cuCtxPopCurrent(&gone);
    return NULL;
}

/* ---------------------------------------------------------------- judgement */

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Questions: without an answer, less is possible, and that is all. */
static bool may_pass(const char *function)
{
    static const char *const questions[] = {"cuDeviceGetCount",
                                            "cuDeviceGet",
                                            "cuDeviceGetUuid",
                                            "cuDeviceGetAttribute",
                                            "cuDeviceCanAccessPeer",
                                            "cuCtxGetDevice",
                                            "cuCtxGetCurrent",
                                            "cuStreamIsCapturing",
                                            "cuCtxGetStreamPriorityRange",
                                            "cuStreamGetCaptureInfo",
                                            "cuPointerGetAttribute",
                                            "cuPointerGetAttributes",
                                            "cuMemRetainAllocationHandle",
                                            "cuIpcGetMemHandle",

                                            "cuCtxPushCurrent",
                                            "cuStreamSynchronize"};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        if (strcmp(questions[i], function) == 0)
            return true;
    return false;
}

static void judge(const char *function, int nth, const teller *t, int open_before)
{
    bool named = false, failed = false;
    for (int pe = 0; pe < PES; pe++) {
        failed |= t[pe].rc != UF_OK;
        named |= t[pe].rc != UF_OK && strstr(t[pe].why, function);
        if (t[pe].rc != UF_OK && !t[pe].why[0])
            fail_msg("call %d of %s: PE %d got %d from %s without a sentence", nth, function, pe, t[pe].rc, t[pe].step);
    }
    named |= strstr(told, function) != NULL;
    if (!failed && !named && !may_pass(function))
        fail_msg("call %d of %s failed and nobody was told", nth, function);
    if (failed && !named && !may_pass(function))
        fail_msg("call %d of %s: no sentence names it: PE 0 in %s: %s; PE 1 in %s: %s", nth, function, t[0].step, t[0].why,
                 t[1].step, t[1].why);
    /* A context that cannot be made current cannot be freed from either. */
    if (cu.live() != 0 && strcmp(function, "cuCtxPushCurrent") != 0)
        fail_msg("call %d of %s: %d objects of the driver are left; PE 0 in %s: %s; PE 1 in %s: %s", nth, function, cu.live(),
                 t[0].step, t[0].why, t[1].step, t[1].why);
    if (open_descriptors() != open_before)
        fail_msg("call %d of %s: %d descriptors are open, %d were", nth, function, open_descriptors(), open_before);
}

static int reserve_port(char *root, size_t bytes)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    snprintf(root, bytes, "127.0.0.1:%d", ntohs(a.sin_port));
    return fd;
}

/* True if the call was reached. */
static bool run_story(const char *function, int nth, int code)
{
    teller t[PES];
    pthread_t threads[PES];
    uf_group *group;
    int open_before = open_descriptors();
    memset(t, 0, sizeof t);
    told[0] = '\0';
    assert_int_equal(uf_group_create(PES, &group), UF_OK);
    for (int i = 0; i < PES; i++) {
        t[i].pe = i;
        t[i].group = group;
        t[i].step = "nothing";
        assert_true(get_belongings(&t[i].has, i));
    }
    cu.arm(function, nth, code);
    for (int i = 0; i < PES; i++)
        pthread_create(&threads[i], NULL, run_pe, &t[i]);
    for (int i = 0; i < PES; i++)
        pthread_join(threads[i], NULL);
    bool reached = cu.pending() == 0;
    cu.arm("", 0, 0);
    for (int i = PES - 1; i >= 0; i--)
        drop_belongings(&t[i].has, i);
    uf_group_destroy(group);
    if (reached && nth)
        judge(function, nth, t, open_before);
    for (int i = 0; i < PES; i++)
        if (!reached || !nth) /* the story itself must be right */
            if (t[i].rc)
                fail_msg("without a failure PE %d got %d from %s: %s", i, t[i].rc, t[i].step, t[i].why);
    return reached;
}

/* The same with two processes, of which the first meets the failure: what passes descriptors and names. */
static void run_apart(const char *function, int nth, int code)
{
    teller *t = mmap(NULL, PES * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char root[64];
    pid_t pids[PES];
    assert_true(t != MAP_FAILED);
    int port = reserve_port(root, sizeof root);
    for (int i = 0; i < PES; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            t[i].pe = i;
            t[i].root = root;
            t[i].step = NULL;
            alarm(HANG_SECONDS);
            if (cu.cuInit(0) || !get_belongings(&t[i].has, i))
                _exit(1);
            if (i == 0)
                cu.arm(function, nth, code);
            run_pe(&t[i]);
            cu.arm("", 0, 0);
            drop_belongings(&t[i].has, i);
            t[i].left = cu.live();
            _exit(0);
        }
    }
    for (int i = 0; i < PES; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("call %d of %s: the process of PE %d ended with status 0x%x", nth, function, i, (unsigned)status);
    }
    close(port);
    for (int i = 0; i < PES; i++) {
        if (t[i].left)
            fail_msg("call %d of %s: %d objects of the driver are left in the process of PE %d", nth, function, t[i].left, i);
        if (!t[i].rc || !t[i].why[0])
            fail_msg("call %d of %s: PE %d was not told: %d, %s", nth, function, i, t[i].rc, t[i].why);
    }
    if (!strstr(t[0].why, function) || !strstr(t[1].why, function))
        fail_msg("call %d of %s: not named: PE 0: %s; PE 1: %s", nth, function, t[0].why, t[1].why);
    munmap(t, PES * sizeof *t);
}

static void what_processes_pass_each_other_fails_on_both_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *function;
        int first, last; /* earlier calls try out who is near, which is no failure */
    } cases[] = {{"cuMemExportToShareableHandle", 1, 2},
                 {"cuMemImportFromShareableHandle", 2, 3},
                 {"cuIpcGetMemHandle", 1, 1},
                 {"cuIpcOpenMemHandle", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int nth = cases[i].first; nth <= cases[i].last; nth++)
            run_apart(cases[i].function, nth, CUDA_ERROR_UNKNOWN);
}

static const char *const functions[] = {
#define UF_CUDA_FUNCTION(name, since)          #name,
#define UF_CUDA_FUNCTION_AS(type, name, since) #name,
#include "cuda/functions.def"
#undef UF_CUDA_FUNCTION
#undef UF_CUDA_FUNCTION_AS
};

static void every_failing_call_gives_a_sentence_and_leaks_nothing(void **state)
{
    (void)state;
    cu.cuInit(0);
    run_story("", 0, 0);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        for (int nth = 1; nth <= MOST_CALLS; nth++)
            if (!run_story(functions[i], nth, nth % 2 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY))
                break;
}

/* ---------------------------------------------------------------- the start of the driver */

static int start_without(const char *name, const char *value, const char *expected)
{
    uf_world *w;
    void *ptr;
    setenv(name, value, 1);
    if (uf_world_create(NULL, &w) != UF_OK)
        return 2;
    int rc = uf_malloc_on(w, UF_MEMORY_CUDA, 64, 0, &ptr);
    bool said = strstr(uf_error_message(), expected) != NULL;
    if (rc != UF_EUNSUPPORTED || !said)
        fprintf(stderr, "%s=%s: %d: %s\n", name, value, rc, uf_error_message());
    bool goes_on = uf_malloc(w, 64, 0, &ptr) == UF_OK;
    return rc == UF_EUNSUPPORTED && said && goes_on && uf_world_destroy(w) == UF_OK ? 0 : 1;
}

static void a_driver_that_does_not_start_is_said(void **state)
{
    (void)state;
    static const char *const cases[][3] = {{"FAKE_CUDA_FAIL", "cuInit:1:999", "does not start"},
                                           {"FAKE_CUDA_FAIL", "cuInit:1:100", "no GPU"},
                                           {"FAKE_CUDA_FAIL", "cuDriverGetVersion:1:999", "does not start"},
                                           {"FAKE_CUDA_FAIL", "cuDeviceGetCount:1:999", "does not start"},
                                           {"FAKE_CUDA_DEVICES", "0", "no GPU"},
                                           {"FAKE_CUDA_VERSION", "11050", "too old"},
                                           {"UNFENCE_CUDA_LIBRARY", "/nonexistent.so", "no CUDA driver"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(start_without(cases[i][0], cases[i][1], cases[i][2]));
        waitpid(pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("%s=%s is not refused with a sentence that says: %s", cases[i][0], cases[i][1], cases[i][2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_driver_that_does_not_start_is_said), /* first: its children must not inherit a driver that has started */
        cmocka_unit_test(what_processes_pass_each_other_fails_on_both_with_a_sentence), /* likewise */
        cmocka_unit_test(every_failing_call_gives_a_sentence_and_leaks_nothing),
    };
    alarm(HANG_SECONDS);
    return cmocka_run_group_tests(tests, load, NULL);
}
