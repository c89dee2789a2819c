/* core_main.c - core_suite: the core's promises, on the fabric and with the kind of PEs that the command line names.
 *
 *   core_suite --fabric ofi:tcp --n 4 [--mode processes|threads] [--tests PART-OF-NAME]
 *   core_suite --mode threads --fabric shuffle:chaos    threads over the adversarial network: for sanitizers
 *   core_suite --mode threads --fabric efa:p5en         threads over the EFA model in real time
 *   core_suite --mode threads --fabric efa:model-p5en   threads that meet by the name alone
 *   core_suite --mode fibers [--fabric shuffle|efa] [--profile reorder] [--seed 17 --seeds 1]
 *   core_suite --mode pe          one PE of a job that somebody else started (`unfence run`, torchrun, netns.sh)
 * The suite knows nothing of this; a new fabric needs a --fabric name and nothing else. */
#include "multi/core_runner.h"
#include "multi/core_suite.h"
#include <arpa/inet.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PES = 64 };

static suite_place place_of(const runner_options *o)
{
    const char *progress = getenv("UNFENCE_PROGRESS");
    return (suite_place){.pe = -1,
                         .n = -1,
                         .fabric = o->fabric,
                         .seed = o->seed,
                         .small = o->small,
                         .long_run = o->long_run,
                         .rails_break = o->fabric && strstr(o->fabric, "-breaks"),
                         .inline_progress = progress && strcmp(progress, "inline") == 0};
}

static int finish(const char *what, const suite_result *r, int failed)
{
    printf("%s: %d tests ran, %d skipped, %d failed\n", what, r->ran, r->skipped, r->failed);
    return failed ? 1 : 0;
}

/* ---------------------------------------------------------------- threads */

typedef struct pe_thread {
    pthread_t thread;
    suite_place place;
    const runner_options *options;
    suite_result result;
    int rc;
} pe_thread;

static void *thread_main(void *arg)
{
    pe_thread *t = arg;
    t->rc = suite_run(&t->place, t->options->tests, t->options->verbose, &t->result);
    return NULL;
}

static int threads_once(const runner_options *o, uint64_t *severed)
{
    pe_thread pes[MAX_PES];
    uf_group *group = NULL;
    void *wires[RUNNER_WIRES] = {NULL};
    const char *profile = NULL;
    const runner_network *network = o->fabric ? runner_network_find(o->fabric, &profile) : NULL;
    int failed = 0, by_rail = 0;
    alarm(o->timeout); /* a hang ends with SIGALRM, which the harness reports */
    if (network && !profile)
        profile = o->profile ? o->profile : network->profiles[0];
    if (uf_group_create(o->n, &group) != UF_OK ||
        (network && runner_wires_open(network, profile, o->seed, o->n, true, wires) != UF_OK)) {
        fprintf(stderr, "core_suite: %s\n", uf_error_message());
        return 1;
    }
    for (int pe = 0; pe < o->n; pe++) {
        pes[pe] = (pe_thread){.place = place_of(o), .options = o};
        pes[pe].place.pe = pe;
        pes[pe].place.n = o->n;
        pes[pe].place.group = group;
        if (network) {
            pes[pe].place.fabric = NULL;
            pes[pe].place.fabric_ops = network->ops;
            pes[pe].place.rails_break = network->rails_break;
            pes[pe].place.fabric_arg = network->arg(wires[0]);
            pes[pe].place.more_fabric_args[0] = network->arg(wires[1]);
            pes[pe].place.more_fabric_args[1] = network->arg(wires[2]);
        }
        if (pthread_create(&pes[pe].thread, NULL, thread_main, &pes[pe])) {
            fprintf(stderr, "core_suite: no thread for PE %d\n", pe);
            return 1;
        }
    }
    for (int pe = 0; pe < o->n; pe++) {
        pthread_join(pes[pe].thread, NULL);
        failed += pes[pe].rc;
        by_rail += pes[pe].result.by_rail;
    }
    uf_group_destroy(group);
    uint64_t before = *severed;
    if (network)
        failed += runner_wires_close(network, wires, failed == 0 && by_rail == 0, severed);
    if (*severed > before)
        printf("threads: rails broke with %llu work requests under way, which ended %d tests\n",
               (unsigned long long)(*severed - before), by_rail);
    if (failed && network)
        fprintf(stderr,
                "        again: core_suite --mode threads --fabric %s:%s --seed %llu --n %d%s%s%s (threads: not exactly)\n",
                network->name, profile, (unsigned long long)o->seed, o->n, o->small ? " --small" : "",
                o->tests ? " --tests " : "", o->tests ? o->tests : "");
    return finish("threads", &pes[0].result, failed);
}

int runner_threads(const runner_options *o)
{
    runner_options one = *o;
    int failed = 0;
    uint64_t severed = 0, runs = o->seeds ? o->seeds : 1;
    const char *profile;
    const runner_network *network = o->fabric ? runner_network_find(o->fabric, &profile) : NULL;
    for (uint64_t i = 0; i < runs && !failed; i++) {
        one.seed = o->seed + i;
        failed = threads_once(&one, &severed);
    }
    if (!failed && runs >= 20 && !o->tests && network && network->rails_break && !network->rails_profile && severed == 0) {
        fprintf(stderr, "FAILED  no rail broke in %llu runs\n", (unsigned long long)runs);
        failed = 1;
    }
    return failed;
}

/* ---------------------------------------------------------------- processes */

int runner_one_pe(const runner_options *o)
{
    suite_place place = place_of(o);
    suite_result result;
    int failed = suite_run(&place, o->tests, o->verbose, &result);
    const char *pe = getenv("UNFENCE_PE");
    return pe && atoi(pe) == 0 ? finish("processes", &result, failed) : failed;
}

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &length) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void become_pe(const runner_options *o, int pe, int port, uint64_t seed, char *const argv[])
{
    char text[64];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(text, sizeof text, "%d", pe);
    setenv("UNFENCE_PE", text, 1);
    snprintf(text, sizeof text, "%d", o->n);
    setenv("UNFENCE_N_PES", text, 1);
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    setenv("UNFENCE_ROOT", text, 1);
    snprintf(text, sizeof text, "core-suite-%d", (int)getppid());
    setenv("UNFENCE_JOB", text, 1);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    setenv("CORE_SUITE_SEED", text, 1);
    setenv("UNFENCE_SEED", text, 1); /* a model's */
    setenv("CORE_SUITE_ROLE", "pe", 1);
    execv("/proc/self/exe", argv);
    perror("core_suite: execv");
    _exit(127);
}

static bool ended_well(int pe, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "FAILED  PE %d was ended by signal %d (%s)\n", pe, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Reaps the PEs until the deadline; then kills those that are left, by their own ids. */
static int reap(pid_t pids[], int n, unsigned timeout)
{
    int failed = 0, left = n;
    struct timespec pause = {0, 5000000};
    for (uint64_t looks = 0; left > 0; looks++) {
        bool late = looks * 5 > (uint64_t)timeout * 1000;
        for (int pe = 0; pe < n; pe++) {
            int status;
            if (pids[pe] == 0)
                continue;
            if (late) {
                fprintf(stderr, "FAILED  PE %d had not ended after %u s and is killed\n", pe, timeout);
                kill(pids[pe], SIGKILL);
            }
            if (waitpid(pids[pe], &status, late ? 0 : WNOHANG) == pids[pe]) {
                failed += !ended_well(pe, status);
                pids[pe] = 0;
                left--;
            }
        }
        nanosleep(&pause, NULL);
    }
    return failed;
}

static int processes_once(const runner_options *o, uint64_t seed, char *const argv[])
{
    pid_t pids[MAX_PES] = {0};
    int port = free_port(), started = 0;
    fflush(stdout);
    while (started < o->n) {
        pid_t pid = fork();
        if (pid == 0)
            become_pe(o, started, port, seed, argv);
        if (pid < 0)
            break;
        pids[started++] = pid;
    }
    int failed = reap(pids, started, o->timeout);
    if (started < o->n)
        fprintf(stderr, "core_suite: fork failed after %d PEs\n", started);
    return failed || started < o->n ? 1 : 0;
}

int runner_processes(const runner_options *o, char *const argv[])
{
    int failed = 0;
    for (uint64_t i = 0; i < (o->seeds ? o->seeds : 1) && !failed; i++) {
        failed = processes_once(o, o->seed + i, argv);
        if (failed)
            fprintf(stderr, "        the seed was %llu\n", (unsigned long long)(o->seed + i));
    }
    return failed;
}

/* ---------------------------------------------------------------- command line */

static void usage(void)
{
    puts("core_suite [--mode processes|threads|fibers|pe] [--fabric NAME] [--n PES] [--tests PART] [--seed N] [--seeds N]\n"
         "           [--profile NAME] [--again] [--timeout SECONDS] [--small] [--long] [--quiet] [--list]");
}

static int parse(int argc, char *argv[], runner_options *o)
{
    enum { LIST = 1, SMALL, LONG, QUIET, SEEDS, TIMEOUT, AGAIN };
    static const struct option options[] = {
        {"mode", 1, NULL, 'm'},    {"fabric", 1, NULL, 'f'},      {"n", 1, NULL, 'n'},
        {"tests", 1, NULL, 't'},   {"seed", 1, NULL, 's'},        {"seeds", 1, NULL, SEEDS},
        {"profile", 1, NULL, 'p'}, {"small", 0, NULL, SMALL},     {"long", 0, NULL, LONG},
        {"quiet", 0, NULL, QUIET}, {"timeout", 1, NULL, TIMEOUT}, {"list", 0, NULL, LIST},
        {"help", 0, NULL, 'h'},    {"again", 0, NULL, AGAIN},     {NULL, 0, NULL, 0},
    };
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'm':
            o->mode = optarg;
            break;
        case 'f':
            o->fabric = optarg;
            break;
        case 'n':
            o->n = atoi(optarg);
            break;
        case 't':
            o->tests = optarg;
            break;
        case 's':
            o->seed = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            o->profile = optarg;
            break;
        case SEEDS:
            o->seeds = strtoull(optarg, NULL, 10);
            break;
        case TIMEOUT:
            o->timeout = (unsigned)atoi(optarg);
            break;
        case SMALL:
            o->small = true;
            break;
        case LONG:
            o->long_run = true;
            break;
        case AGAIN:
            o->again = true;
            break;
        case QUIET:
            o->verbose = false;
            break;
        case LIST:
            suite_list();
            exit(0);
        default:
            usage();
            exit(c == 'h' ? 0 : 2);
        }
    }
    return optind == argc && o->n >= 0 && o->n <= MAX_PES;
}

int main(int argc, char *argv[])
{
    runner_options o = {.mode = "processes", .seed = 1, .timeout = 300, .verbose = true};
    if (!parse(argc, argv, &o)) {
        usage();
        return 2;
    }
    if (!getenv("UNFENCE_LOG"))
        uf_set_log_level(UF_LOG_NONE); /* tests provoke errors on purpose; what fails is reported anyway */
    if (getenv("CORE_SUITE_ROLE"))
        o.mode = "pe";
    if (getenv("CORE_SUITE_SEED"))
        o.seed = strtoull(getenv("CORE_SUITE_SEED"), NULL, 10);
    if (strcmp(o.mode, "fibers") == 0)
        return runner_fibers(&o);
    o.n = o.n ? o.n : 2;
    if (strcmp(o.mode, "threads") == 0)
        return runner_threads(&o);
    if (strcmp(o.mode, "pe") == 0)
        return runner_one_pe(&o);
    if (strcmp(o.mode, "processes") == 0)
        return runner_processes(&o, argv);
    usage();
    return 2;
}
