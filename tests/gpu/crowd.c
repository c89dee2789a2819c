/* crowd.c - see crowd.h. */
#include "crowd.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the driver */

crowd_driver cu;

#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

const char *crowd_library(void)
{
    const char *name = getenv("UNFENCE_CUDA_LIBRARY");
    return name && *name ? name : "libcuda.so.1";
}

/* The number of GPUs, or -1. */
int crowd_load_driver(void)
{
    int n = 0;
    void *lib = dlopen(crowd_library(), RTLD_NOW);
    if (!lib)
        return -1;
#define LOAD(name)                                                                                                               \
    {                                                                                                                            \
        void *symbol = dlsym(lib, TEXT(name));                                                                                   \
        if (!symbol)                                                                                                             \
            return -1;                                                                                                           \
        memcpy(&cu.name, &symbol, sizeof symbol);                                                                                \
    }
    FUNCTIONS(LOAD)
    return cu.cuInit(0) == CUDA_SUCCESS && cu.cuDeviceGetCount(&n) == CUDA_SUCCESS ? n : -1;
}

/* ---------------------------------------------------------------- PEs */

enum { NOWHERE = 0, SETTING_UP = 1, FIRST_PROMISE = 2, ENDING = MAX_PROMISES + FIRST_PROMISE };

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void at_step(table *t, int pe_number, int step)
{
    __atomic_store_n(&t->step[pe_number], (int64_t)step << 48 | milliseconds(), __ATOMIC_RELEASE);
}

bool crowd_broken(pe *p, int line, const char *format, ...)
{
    char what[200];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    if (p->now->state == 0) {
        p->now->state = -1;
        snprintf(p->now->why, sizeof p->now->why, "line %d: %s; last error: %.180s", line, what, uf_error_message());
    }
    uf_world_abort(p->world, "a promise was broken");
    return false;
}

/* ---------------------------------------------------------------- crowds */

typedef struct job {
    const crowd *crowd;
    const suite *suite;
    table *shared;
    uf_group *group;
    char root[64];
    int me;
} job;

/* Where the PEs of this process are, for whoever watches: asked by SIGUSR1, each tells by SIGUSR2. */
static pthread_t pe_threads[MAX_PES];
static int n_pe_threads;

static void tell_where(int number)
{
    void *frames[24];
    (void)number;
    static const char head[] = "-- a PE is here:\n";
    if (write(STDERR_FILENO, head, sizeof head - 1) > 0)
        backtrace_symbols_fd(frames, backtrace(frames, 24), STDERR_FILENO);
}

static void ask_all(int number)
{
    (void)number;
    int n = __atomic_load_n(&n_pe_threads, __ATOMIC_ACQUIRE);
    for (int i = 0; i < n && i < MAX_PES; i++)
        if (pe_threads[i])
            pthread_kill(pe_threads[i], SIGUSR2);
}

static void be_askable(void)
{
    void *frames[2];
    backtrace(frames, 2); /* loads what it needs before a handler does */
    struct sigaction ask = {.sa_handler = ask_all, .sa_flags = SA_RESTART},
                     tell = {.sa_handler = tell_where, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &ask, NULL);
    sigaction(SIGUSR2, &tell, NULL);
    int i = __atomic_fetch_add(&n_pe_threads, 1, __ATOMIC_ACQ_REL);
    if (i < MAX_PES)
        pe_threads[i] = pthread_self();
}

static bool set_up(pe *p, const job *j)
{
    be_askable();
    at_step(p->shared, p->me, SETTING_UP);
    uf_world_options o = UF_WORLD_OPTIONS;
    CUdevice device;
    int ordinal = p->crowd->device < 0 ? p->me : p->crowd->device;
    o.pe = p->me;
    o.n_pes = p->n;
    o.group = j->group;
    o.root = j->group ? NULL : j->root;
    o.timeout_ns = 15ull * SECOND;
    o.heap_bytes = 8 << 20;
    if (cu.cuDeviceGet(&device, ordinal) || cu.cuDevicePrimaryCtxRetain(&p->context, device) || cu.cuCtxPushCurrent(p->context) ||
        cu.cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING))
        return false;
    if (uf_world_create(&o, &p->world))
        return false;
    p->ctx = uf_ctx_default(p->world);
    void *mine, *in, *words;
    if (uf_signal_alloc(p->world, 16, UF_SIGNAL_DEFAULT, &p->host_words) ||
        uf_malloc_on(p->world, UF_MEMORY_CUDA, 4 << 20, 0, &mine) || uf_malloc_on(p->world, UF_MEMORY_CUDA, 4 << 20, 0, &in) ||
        uf_malloc_on(p->world, UF_MEMORY_CUDA, 64 * 8, 0, &words))
        return false;
    p->mine = mine;
    p->in = in;
    p->words = words;
    return true;
}

static void tear_down(pe *p)
{
    CUcontext gone;
    at_step(p->shared, p->me, ENDING);
    uf_world_destroy(p->world);
    if (p->stream)
        cu.cuStreamDestroy(p->stream);
    cu.cuCtxPopCurrent(&gone);
    CUdevice device;
    if (cu.cuDeviceGet(&device, p->crowd->device < 0 ? p->me : p->crowd->device) == CUDA_SUCCESS)
        cu.cuDevicePrimaryCtxRelease(device);
    at_step(p->shared, p->me, NOWHERE);
}

static void *run_pe(void *arg)
{
    const job *j = arg;
    pe p = {.crowd = j->crowd, .shared = j->shared, .me = j->me, .n = j->crowd->n};
    p.right = (p.me + 1) % p.n;
    p.left = (p.me + p.n - 1) % p.n;
    if (!set_up(&p, j)) {
        for (int i = 0; i < j->suite->n; i++) {
            j->shared->results[i][p.me].state = -1;
            snprintf(j->shared->results[i][p.me].why, sizeof j->shared->results[i][p.me].why, "setting up: %.300s",
                     uf_error_message());
        }
        if (p.world)
            uf_world_abort(p.world, "setting up failed");
        tear_down(&p);
        return NULL;
    }
    bool going = true;
    for (int i = 0; i < j->suite->n && going; i++) {
        p.now = &j->shared->results[i][p.me];
        at_step(p.shared, p.me, FIRST_PROMISE + i);
        going = j->suite->promises[i].keep(&p);
        if (going)
            p.now->state = 1;
        else if (p.now->state == 0) {
            p.now->state = -1;
            snprintf(p.now->why, sizeof p.now->why, "%.390s", uf_error_message());
        }
    }
    tear_down(&p);
    return NULL;
}

static int passed, failed;

void crowd_say(const char *crowd_name, const char *name, bool ok, const char *why)
{
    printf("%-4s %s: %s%s%s\n", ok ? "ok" : "FAIL", crowd_name, name, ok ? "" : ": ", ok ? "" : why);
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

/* A line for each promise; those that were not come to, for they follow a broken one, share a line. */
static void report(const crowd *c, const suite *s, const table *t)
{
    int missed = 0;
    for (int i = 0; i < s->n; i++) {
        const result *worst = NULL;
        for (int pe_number = 0; pe_number < c->n; pe_number++)
            if (t->results[i][pe_number].state != 1 && (!worst || !worst->why[0]))
                worst = &t->results[i][pe_number];
        if (!worst || worst->why[0])
            crowd_say(c->name, s->promises[i].name, !worst, worst ? worst->why : "");
        else if (missed++ == 0)
            crowd_say(c->name, s->promises[i].name, false, "not come to its end");
        else
            failed++;
    }
    if (missed > 1)
        printf("     %s: and %d more were not run\n", c->name, missed - 1);
    fflush(stdout);
}

static const char ending[] = "worlds_end_and_leave_nothing_in_the_driver";

/* The driver of the tests counts what is alive in it. */
static bool nothing_is_left(void)
{
    int (*alive)(void) = NULL;
    void *lib = dlopen(crowd_library(), RTLD_NOW | RTLD_NOLOAD), *symbol = lib ? dlsym(lib, "fake_cuda_live") : NULL;
    memcpy(&alive, &symbol, sizeof symbol);
    if (!alive || alive() == 0)
        return true;
    fprintf(stderr, "%d objects of the driver are left\n", alive());
    return false;
}

table *crowd_make_table(void)
{
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return t;
}

/* A free port; it stays bound, so that nobody else takes it, by a socket that does not listen. */
static int reserve_port(char root[64])
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &bytes)) {
        perror("bind");
        exit(1);
    }
    snprintf(root, 64, "127.0.0.1:%d", ntohs(a.sin_port));
    return fd;
}

static int limit_of_a_step(void)
{
    const char *text = getenv("STEP_SECONDS");
    return 1000 * (text && atoi(text) > 0 ? atoi(text) : 20);
}

/* A child that ends with whoever watches it. */
static pid_t spawn(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    return pid;
}

static void tell_time(const crowd *c, int64_t begin)
{
    fprintf(stderr, "# %s: %.1f s\n", c->name, (double)(milliseconds() - begin) / 1e3);
}

/* The first PE that has been in one step for too long, or -1. */
static int find_stuck(const crowd *c, const table *t)
{
    for (int i = 0; i < c->n; i++) {
        int64_t at = __atomic_load_n(&t->step[i], __ATOMIC_ACQUIRE);
        int step = (int)(at >> 48);
        int64_t since = at & (((int64_t)1 << 48) - 1);
        if (step != NOWHERE && milliseconds() - since > limit_of_a_step())
            return i;
    }
    return -1;
}

static const char *name_of(const suite *s, int step)
{
    return step == SETTING_UP ? "setting up"
           : step == ENDING   ? "ending the world"
           : s                ? s->promises[step - FIRST_PROMISE].name
                              : "its promise";
}

static void name_stuck(const crowd *c, const suite *s, const table *t, const pid_t *pids, int n)
{
    for (int i = 0; i < c->n; i++) {
        int64_t at = __atomic_load_n(&t->step[i], __ATOMIC_ACQUIRE);
        int step = (int)(at >> 48);
        int64_t ms = milliseconds() - (at & (((int64_t)1 << 48) - 1));
        if (step != NOWHERE)
            fprintf(stderr, "HANG %s: PE %d has been in %s for %d ms\n", c->name, i, name_of(s, step), (int)ms);
    }
    fflush(stderr);
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGUSR1);
    const struct timespec moment = {1, 0};
    nanosleep(&moment, NULL);
}

/* Waits for children that carry the PEs of `c`; those that hang are named and all are killed. How many did not end well by themselves. */
static int collect(const crowd *c, const suite *s, const table *t, pid_t *pids, int n)
{
    int bad = 0, left = n;
    for (;;) {
        for (int i = 0, status; i < n; i++)
            if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
                pids[i] = 0;
                left--;
            }
        if (left == 0)
            return bad;
        if (find_stuck(c, t) >= 0)
            break;
        const struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
    }
    name_stuck(c, s, t, pids, n);
    for (int i = 0; i < n; i++)
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    return bad + left;
}

void crowd_run_processes(const crowd *c, const suite *s)
{
    job j = {.crowd = c, .suite = s, .shared = crowd_make_table()};
    int64_t begin = milliseconds();
    pid_t pids[MAX_PES];
    int port = reserve_port(j.root);
    for (j.me = 0; j.me < c->n; j.me++) {
        pids[j.me] = spawn();
        if (pids[j.me] == 0) {
            exit(crowd_load_driver() > 0 && !run_pe(&j) && nothing_is_left() ? 0 : 1);
        }
    }
    int bad = collect(c, s, j.shared, pids, c->n);
    close(port);
    tell_time(c, begin);
    report(c, s, j.shared);
    crowd_say(c->name, ending, bad == 0, "see above, or one was killed");
    munmap(j.shared, sizeof *j.shared);
}

static int threads_main(const crowd *c, const suite *s, table *shared)
{
    pthread_t threads[MAX_PES];
    job jobs[MAX_PES];
    uf_group *group;
    if (crowd_load_driver() < 1 || uf_group_create(c->n, &group))
        return 1;
    for (int i = 0; i < c->n; i++) {
        jobs[i] = (job){.crowd = c, .suite = s, .shared = shared, .group = group, .me = i};
        pthread_create(&threads[i], NULL, run_pe, &jobs[i]);
    }
    for (int i = 0; i < c->n; i++)
        pthread_join(threads[i], NULL);
    uf_group_destroy(group);
    return nothing_is_left() ? 0 : 2;
}

/* In a process of its own: the parent stays free of CUDA. */
void crowd_run_threads(const crowd *c, const suite *s)
{
    table *shared = crowd_make_table();
    int64_t begin = milliseconds();
    pid_t pid = spawn();
    if (pid == 0)
        exit(threads_main(c, s, shared));
    int bad = collect(c, s, shared, &pid, 1);
    tell_time(c, begin);
    report(c, s, shared);
    crowd_say(c->name, ending, bad == 0, "see above, or it was killed");
    munmap(shared, sizeof *shared);
}

/* ---------------------------------------------------------------- deaths */

void crowd_waits_now(pe *p)
{
    __atomic_store_n(&p->shared->flag[1], 1, __ATOMIC_RELEASE);
}

static int die_or_survive(const job *j, bool (*survive)(pe *p))
{
    pe p = {.crowd = j->crowd, .shared = j->shared, .me = j->me, .n = 2, .right = 1 - j->me, .left = 1 - j->me};
    p.now = &j->shared->results[0][j->me];
    if (crowd_load_driver() < 1 || !set_up(&p, j) || uf_barrier(uf_team_world(p.world)))
        return 1;
    at_step(p.shared, p.me, FIRST_PROMISE);
    if (p.me == 1) {
        __atomic_store_n(&j->shared->flag[0], 1, __ATOMIC_RELEASE);
        pause();
    }
    if (survive(&p))
        p.now->state = 1;
    tear_down(&p);
    return 0;
}

void crowd_run_death(const char *crowd_name, const char *name, bool (*survive)(pe *p))
{
    const crowd two = {crowd_name, 2, 0, false};
    job j = {.crowd = &two, .shared = crowd_make_table()};
    pid_t pids[2];
    int port = reserve_port(j.root);
    setenv("UNFENCE_CUDA_DEVICE", "0", 1);
    for (j.me = 0; j.me < 2; j.me++) {
        pids[j.me] = spawn();
        if (pids[j.me] == 0)
            exit(die_or_survive(&j, survive));
    }
    for (int i = 0; i < 600 && !(__atomic_load_n(&j.shared->flag[0], __ATOMIC_ACQUIRE) &&
                                 __atomic_load_n(&j.shared->flag[1], __ATOMIC_ACQUIRE));
         i++) {
        const struct timespec moment = {0, 50000000};
        nanosleep(&moment, NULL);
    }
    kill(pids[1], SIGKILL);
    at_step(j.shared, 1, NOWHERE);
    collect(&two, NULL, j.shared, pids, 2);
    close(port);
    const result *r = &j.shared->results[0][0];
    crowd_say(crowd_name, name, r->state == 1, r->why[0] ? r->why : "did not come to its end");
    munmap(j.shared, sizeof *j.shared);
}

/* ---------------------------------------------------------------- all of them */

int crowd_count_gpus(void)
{
    table *t = crowd_make_table();
    pid_t pid = fork();
    if (pid == 0) {
        t->flag[0] = crowd_load_driver();
        exit(0);
    }
    waitpid(pid, NULL, 0);
    int n = t->flag[0];
    munmap(t, sizeof *t);
    return n;
}

/* The EFA model connects processes; PEs of one process would have to be handed a common one. */
static bool threads_can_meet(void)
{
    const char *fabric = getenv("UNFENCE_FABRIC");
    return !fabric || strncmp(fabric, "efa:model", 9) != 0;
}

void crowd_run_all(int gpus, const suite *s)
{
    const crowd shared[] = {{"2 processes on GPU 0", 2, 0, false},
                            {"4 processes on GPU 0", 4, 0, false},
                            {"2 threads on GPU 0", 2, 0, true},
                            {"4 threads on GPU 0", 4, 0, true}};
    setenv("UNFENCE_CUDA_DEVICE", "0", 1);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        if (shared[i].threads && threads_can_meet())
            crowd_run_threads(&shared[i], s);
        else if (!shared[i].threads)
            crowd_run_processes(&shared[i], s);
    }
    unsetenv("UNFENCE_CUDA_DEVICE"); /* auto: that of the current context */
    int each = gpus < MAX_PES ? gpus : MAX_PES;
    const crowd processes = {"processes, a GPU each", each, -1, false}, threads = {"threads, a GPU each", each, -1, true};
    if (gpus > 1) {
        crowd_run_processes(&processes, s);
        if (threads_can_meet())
            crowd_run_threads(&threads, s);
    }
}

int crowd_finish(int gpus)
{
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : gpus > 0 ? 0 : 77;
}
