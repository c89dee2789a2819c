/* bench_run.c - forks the PEs of a run, one process each on a core of its own where there are enough, and collects their rows.
 *
 * The parent never creates a world, so nothing of the library is inherited by fork but its code. A PE that dies ends the run
 * with its number; no process outlives the command. */
#include "bench.h"
#include "progress.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS (1000000000ull) /* after the first failure, until the other PEs are killed */

typedef struct bench_job {
    const bench_case *benchmark;
    const bench_options *options;
    const char *fabric;
    int n_pes;
    pid_t pids[BENCH_MAX_PES];
    char root[32];
    bench_shared *shared;
} bench_job;

/* A loopback port that is free now. Somebody else may take it before PE 0 listens; the run then fails with that reason. */
static int choose_root(char root[32])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address);
    if (rc == 0)
        rc = getsockname(fd, (struct sockaddr *)&address, &bytes);
    close(fd);
    if (rc == 0)
        snprintf(root, 32, "127.0.0.1:%u", ntohs(address.sin_port));
    return rc;
}

/* PE i gets the i-th core this process may use, if there is one for each. Threads that the library starts inherit it. */
static bool pin(int pe, int n_pes, bool wanted)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < n_pes)
        return false;
    int seen = 0;
    for (int cpu = 0; wanted && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || seen++ != pe)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        break;
    }
    return true;
}

static int pe_main(const bench_job *job, int pe)
{
    bench_pe b = {.pe = pe, .n_pes = job->n_pes, .fabric = job->fabric, .options = job->options, .shared = job->shared};
    memcpy(b.root, job->root, sizeof b.root);
    b.alone = pin(pe, job->n_pes, !job->options->no_pin);
    int rc = job->benchmark->main(&b);
    /* After a failure the others may never come: the world is left to the end of the process. */
    if (rc == 0 && b.world) {
        int destroyed = uf_world_destroy(b.world);
        if (destroyed != UF_OK)
            rc = bench_fail_library(&b, destroyed, "uf_world_destroy");
    }
    return rc == 0 ? 0 : 1;
}

static int start_pes(bench_job *job)
{
    fflush(NULL);
    pid_t parent = getpid();
    for (int pe = 0; pe < job->n_pes; pe++) {
        job->pids[pe] = fork();
        if (job->pids[pe] < 0)
            return -1;
        if (job->pids[pe] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            _exit(pe_main(job, pe));
        }
    }
    return 0;
}

static void note_end(bench_job *job, int pe, int status)
{
    int none = 0;
    job->pids[pe] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (!atomic_compare_exchange_strong(&job->shared->failed, &none, pe + 1))
        return;
    if (WIFSIGNALED(status))
        snprintf(job->shared->error, BENCH_ERROR, "PE %d died of signal %d (%s)", pe, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(job->shared->error, BENCH_ERROR, "PE %d ended without a reason", pe);
}

/* Collects PEs that have ended; returns how many still run. */
static int reap(bench_job *job)
{
    int running = 0;
    for (int pe = 0; pe < job->n_pes; pe++) {
        int status;
        if (job->pids[pe] <= 0)
            continue;
        if (waitpid(job->pids[pe], &status, WNOHANG) == job->pids[pe])
            note_end(job, pe, status);
        else
            running++;
    }
    return running;
}

static void kill_pes(bench_job *job)
{
    for (int pe = 0; pe < job->n_pes; pe++) {
        if (job->pids[pe] > 0)
            kill(job->pids[pe], SIGKILL);
    }
}

static void watch_pes(bench_job *job)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000000};
    uint64_t failed_at = 0;
    char label[96];
    progress bar;
    progress_start(&bar);
    snprintf(label, sizeof label, "%s %s, %d PEs", job->benchmark->name, job->fabric, job->n_pes);
    while (reap(job) > 0) {
        progress_show(&bar, atomic_load(&job->shared->done), atomic_load(&job->shared->total), label);
        if (atomic_load(&job->shared->failed) != 0) {
            failed_at = failed_at == 0 ? uf_clock_ns() : failed_at;
            if (uf_clock_ns() - failed_at > GRACE_NS)
                kill_pes(job);
        }
        nanosleep(&pause, NULL);
    }
    progress_end(&bar);
}

static int keep_rows(const bench_job *job, bench_results *results)
{
    size_t wanted = results->n + job->shared->n_rows;
    if (wanted > results->capacity) {
        report_row *rows = realloc(results->rows, wanted * 2 * sizeof *rows);
        if (!rows)
            return -1;
        results->rows = rows;
        results->capacity = wanted * 2;
    }
    if (job->shared->n_rows > 0)
        memcpy(results->rows + results->n, job->shared->rows, job->shared->n_rows * sizeof *results->rows);
    results->n = wanted;
    return 0;
}

static int run_job(bench_job *job, bool skip_missing, bench_results *results)
{
    int rc = TOOL_EXIT_FAILED;
    const char *name = job->benchmark->name;
    job->shared = mmap(NULL, sizeof *job->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job->shared == MAP_FAILED) {
        fprintf(stderr, "unfence bench: no memory to share between PEs: %s\n", strerror(errno));
        return rc;
    }
    if (choose_root(job->root) != 0) {
        fprintf(stderr, "unfence bench: no free port on 127.0.0.1: %s\n", strerror(errno));
        goto out;
    }
    if (start_pes(job) != 0) {
        fprintf(stderr, "unfence bench: cannot start %d processes: %s\n", job->n_pes, strerror(errno));
        kill_pes(job);
        reap(job);
        goto out;
    }
    watch_pes(job);
    if (atomic_load(&job->shared->failed) == 0) {
        rc = keep_rows(job, results) == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
    } else if (skip_missing && job->shared->code == UF_EUNSUPPORTED) {
        fprintf(stderr, "unfence bench %s: skipped on %s: %s\n", name, job->fabric, job->shared->error);
        rc = TOOL_EXIT_OK;
    } else {
        fprintf(stderr, "unfence bench %s on %s: %s\n", name, job->fabric, job->shared->error);
    }
out:
    munmap(job->shared, sizeof *job->shared);
    return rc;
}

int bench_run(const bench_case *c, const bench_options *options, bool fabrics_given, bench_results *results)
{
    tool_numbers peers = options->peers;
    size_t n_fabrics = c->per_fabric ? options->fabrics.n : 1;
    if (peers.n == 0) {
        peers.n = 1;
        peers.values[0] = c->default_peers;
    }
    for (size_t f = 0; f < n_fabrics; f++) {
        for (size_t p = 0; p < peers.n; p++) {
            bench_job job = {.benchmark = c,
                             .options = options,
                             .fabric = c->per_fabric ? options->fabrics.text[f] : "host",
                             .n_pes = (int)peers.values[p] + 1};
            int rc = run_job(&job, !fabrics_given, results);
            if (rc != TOOL_EXIT_OK)
                return rc;
        }
    }
    return TOOL_EXIT_OK;
}
