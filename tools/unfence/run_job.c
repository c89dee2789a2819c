/* run_job.c - the processes of `unfence run`: started together, watched by one poll loop, ended together.
 *
 * What must never be left behind, and who sees to it:
 *   - PEs, when this process is killed: the kernel (PR_SET_PDEATHSIG); what they started: the keeper (run_keeper.c).
 *   - children of PEs: each PE leads a process group, which is killed as a whole while the PE, as a zombie, still holds its number;
 *     who left the group becomes our child (we are a subreaper) and is found there.
 * Signals come in through a descriptor, so there is no handler and nothing to be careful about in one. The first PE that fails ends
 * the job, and it alone is reported: what the others say about its death is a consequence. */
#include "run.h"
#include "run_keeper.h"
#include "run_output.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXITING_S     1.0  /* how long a process that is on its way out may take before another is blamed */
#define LAST_BYTES_MS 2000 /* how long the reader of our output may take for the last bytes */

typedef struct run_pe {
    pid_t pid;
    bool ended;       /* a zombie until the job is over, so that its number and group stay its own */
    int code, status; /* of siginfo: CLD_EXITED and its exit code, or a signal */
    run_source out, err;
} run_pe;

typedef struct run_state {
    const run_options *options;
    run_pe *pes;
    int started, ended;
    int exit_code;
    bool ending, killed;
    int signal_fd;
    pid_t first_failed; /* as the kernel tells the first of several deaths; 0: not known */
    run_keeper keeper;
    double deadline; /* of --timeout, or of the grace once the job is ending; 0: none */
    run_sink out, err;
    int keys_fd; /* write end of PE 0's standard input, if ours is a terminal; else -1 */
    char keys[4096];
    size_t keys_used;
    struct pollfd *polls;
    struct rlimit files; /* as the PEs shall have it */
    sigset_t mask;
} run_state;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A line of our own, in the order of the PEs' lines. */
static void say(run_state *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(run_state *s, const char *format, ...)
{
    char text[2 * RUN_LAST_BYTES + PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run_source own;
    run_source_init(&own, dup(STDERR_FILENO), -1, 0, false, &s->err);
    snprintf(own.prefix, sizeof own.prefix, "unfence: ");
    run_source_feed(&own, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    run_source_feed(&own, "\n", 1);
    run_source_close(&own);
}

/* ---------------------------------------------------------------- starting */

/* The cores of PE `pe`: an equal share of those we may use, or one in turn if there are more PEs than cores. */
static void bind_to_cores(int pe, int n)
{
    cpu_set_t allowed, mine;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    int cores = CPU_COUNT(&allowed), seen = 0;
    int first = n <= cores ? (int)((long)pe * cores / n) : pe % cores;
    int end = n <= cores ? (int)((long)(pe + 1) * cores / n) : first + 1;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed))
            continue;
        if (seen >= first && seen < end)
            CPU_SET(core, &mine);
        seen++;
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

typedef struct child_files {
    int in, out, err; /* -1: as ours */
    int status;       /* closes when the program runs; else gets errno */
} child_files;

/* libfabric may bring libraries (psm, psm2) that catch SIGSEGV and the like as they are loaded, print a trace of addresses and exit with 1:
 * a crash then has neither a core nor its signal's code. They keep out of it if these are set. */
static const char *const silenced[] = {"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"};

/* In the new process: never returns. */
static void child_main(const run_state *s, int pe, pid_t launcher, const child_files *files)
{
    const run_options *o = s->options;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(127); /* it died before the kernel knew that this matters to us */
    if ((files->in >= 0 && dup2(files->in, STDIN_FILENO) < 0) || (files->out >= 0 && dup2(files->out, STDOUT_FILENO) < 0) ||
        (files->err >= 0 && dup2(files->err, STDERR_FILENO) < 0))
        goto fail;
    if (o->bind)
        bind_to_cores(pe, o->n);
    for (size_t i = 0; i < sizeof silenced / sizeof *silenced; i++)
        setenv(silenced[i], "1", 0);
    for (char **e = o->environment; *e; e++)
        putenv(*e);
    set_number("UNFENCE_PE", pe);
    set_number("UNFENCE_N_PES", o->n);
    setenv("UNFENCE_ROOT", o->root, 1);
    setenv("UNFENCE_JOB", o->job, 1);
    setrlimit(RLIMIT_NOFILE, &s->files);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTIN, SIG_DFL);
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
    execv(o->path, o->arguments);
fail:;
    int error = errno;
    ssize_t n = write(files->status, &error, sizeof error);
    _exit(n == sizeof error ? 127 : 126);
}

static int open_log(run_state *s, int pe, const char *stream)
{
    char path[PATH_MAX];
    if (!s->options->pe_log)
        return -1;
    snprintf(path, sizeof path, "%s/pe-%d.%s", s->options->pe_log, pe, stream);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        say(s, "cannot write %s: %s", path, strerror(errno));
    return fd;
}

/* A pipe from the PE to us: its end in *theirs. */
static int source_open(run_state *s, run_source *source, int pe, const char *stream, run_sink *to, int *theirs)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return -1;
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    run_source_init(source, fds[0], open_log(s, pe, stream), pe, s->options->no_prefix && pe == 0, to);
    *theirs = fds[1];
    return 0;
}

/* Standard input goes to PE 0: as it is, or, from a terminal, through us, since PE 0 is not in the terminal's process group. */
static int input_for(run_state *s, int pe)
{
    int fds[2];
    if (pe == 0 && isatty(STDIN_FILENO) && !pipe2(fds, O_CLOEXEC)) {
        s->keys_fd = fds[1];
        fcntl(s->keys_fd, F_SETFL, O_NONBLOCK);
        return fds[0];
    }
    if (pe == 0 && fcntl(STDIN_FILENO, F_GETFD) >= 0)
        return fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Starts one PE: 0, or the exit code after it said why not. */
static int start_pe(run_state *s, int pe)
{
    run_pe *p = &s->pes[pe];
    child_files files = {-1, -1, -1, -1};
    int status[2] = {-1, -1}, error = 0, code = 0;
    /* With --no-prefix and nobody else who wants it, PE 0 has the terminal itself: progress bars and colours work. */
    bool direct = s->options->no_prefix && pe == 0 && !s->options->pe_log;
    files.in = input_for(s, pe);
    if (files.in < 0 || pipe2(status, O_CLOEXEC) || (!direct && source_open(s, &p->out, pe, "out", &s->out, &files.out)) ||
        (!direct && source_open(s, &p->err, pe, "err", &s->err, &files.err))) {
        say(s, "cannot start PE %d of %d: %s; the limit of open files (ulimit -n) is %llu", pe, s->options->n, strerror(errno),
            (unsigned long long)s->files.rlim_max);
        code = 1;
        goto out;
    }
    files.status = status[1];
    pid_t launcher = getpid();
    p->pid = fork();
    if (p->pid == 0)
        child_main(s, pe, launcher, &files);
    if (p->pid < 0) {
        say(s, "cannot start PE %d of %d: %s; the limit of processes (ulimit -u, or the container's) is reached", pe,
            s->options->n, strerror(errno));
        code = 1;
        goto out;
    }
    setpgid(p->pid, p->pid); /* also here: we may want to signal the group before the child runs */
    s->started++;
    run_keeper_add(&s->keeper, p->pid);
    close(status[1]);
    status[1] = -1;
    if (read(status[0], &error, sizeof error) == sizeof error) {
        say(s, "cannot run %s: %s", s->options->path, strerror(error));
        code = 126;
    }
out:;
    int fds[] = {files.in, files.out, files.err, status[0], status[1]};
    close_all(fds, 5);
    return code;
}

/* ---------------------------------------------------------------- ending */

static void signal_all(run_state *s, int signal)
{
    for (int i = 0; i < s->started; i++)
        kill(-s->pes[i].pid, signal);
}

/* Asks all to end; by force when the grace is over. */
static void end_job(run_state *s, int code)
{
    if (s->ending)
        return;
    s->ending = true;
    s->exit_code = code;
    s->deadline = now_s() + s->options->grace_s;
    signal_all(s, SIGTERM);
    signal_all(s, SIGCONT); /* a stopped one would not hear it */
}

static void kill_job(run_state *s)
{
    s->killed = true;
    s->deadline = 0;
    signal_all(s, SIGKILL);
}

/* What is in the pipe now. Our own reader gets some time to make room for it. */
static void take_rest(run_source *source)
{
    struct pollfd p = {.fd = source->fd, .events = POLLIN};
    while (source->fd >= 0 && poll(&p, 1, 0) > 0 && run_source_read(source))
        if (run_sink_full(source->to))
            run_sink_drain(source->to, LAST_BYTES_MS);
}

static void report(run_state *s, int pe)
{
    run_pe *p = &s->pes[pe];
    char how[128];
    take_rest(&p->err); /* its last words may still be in the pipe */
    if (p->code == CLD_EXITED)
        snprintf(how, sizeof how, "exited with code %d", p->status);
    else
        snprintf(how, sizeof how, "was ended by signal %d (%s%s)", p->status, strsignal(p->status),
                 p->code == CLD_DUMPED ? ", core dumped" : "");
    const char *others = s->options->n > 1 ? ", so the others are ended" : "";
    if (p->err.last[0])
        say(s, "PE %d %s%s; its last message: %s", pe, how, others, p->err.last);
    else
        say(s, "PE %d %s%s", pe, how, others);
}

/* Who of two that failed is to blame: one that was killed or crashed rather than one that exited, which is more likely a
 * consequence; and then the one that the kernel told of first. */
static bool is_rather(const run_state *s, const run_pe *p, const run_pe *than)
{
    bool crashed = p->code != CLD_EXITED, than_crashed = than->code != CLD_EXITED;
    return crashed != than_crashed ? crashed : p->pid == s->first_failed;
}

/* Takes note of the PEs that have ended since the last look, without letting go of their numbers; *first is the one to blame, if any
 * failed. True if one failed. */
static bool scan_ends(run_state *s, int *first)
{
    bool failed = false;
    for (int i = 0; i < s->started; i++) {
        run_pe *p = &s->pes[i];
        siginfo_t info = {.si_pid = 0};
        if (p->ended || waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid != p->pid)
            continue;
        p->ended = true;
        s->ended++;
        p->code = info.si_code;
        p->status = info.si_status;
        if (p->code == CLD_EXITED && p->status == 0)
            continue;
        failed = true;
        if (*first < 0 || is_rather(s, p, &s->pes[*first]))
            *first = i;
    }
    return failed;
}

/* True if the process is on its way out: its connections may be closed already, though it has not ended yet. */
static bool is_exiting(pid_t pid)
{
    char path[64], text[512];
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *stat = fopen(path, "r");
    size_t n = stat ? fread(text, 1, sizeof text - 1, stat) : 0;
    if (stat)
        fclose(stat);
    text[n] = 0;
    /* The name, in parentheses, may contain anything; seven fields on are the kernel's flags, of which 4 is PF_EXITING. */
    const char *fields = strrchr(text, ')');
    return fields && sscanf(fields, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & 4);
}

/* A dying PE's peers hear of its death from its connections, which the kernel closes before the process has ended: they may exit, as a
 * consequence, before their cause does. So whoever is on his way out now is waited for before anybody is blamed. */
static void await_exiting(const run_state *s)
{
    double until = now_s() + EXITING_S;
    for (int i = 0; i < s->started; i++) {
        struct pollfd p = {.fd = -1, .events = POLLIN};
        double left = until - now_s();
        if (s->pes[i].ended || left <= 0 || !is_exiting(s->pes[i].pid))
            continue;
        p.fd = (int)syscall(SYS_pidfd_open, s->pes[i].pid, 0);
        if (p.fd < 0)
            continue;
        poll(&p, 1, (int)(left * 1000) + 1);
        close(p.fd);
    }
}

static void look_for_ends(run_state *s)
{
    int first = -1;
    /* Again after a failure: its cause may have ended, earlier, just after we had looked at it. */
    while (scan_ends(s, &first))
        if (!s->ending && s->pes[first].code == CLD_EXITED)
            await_exiting(s);
    if (first < 0 || s->ending)
        return;
    report(s, first);
    end_job(s, s->pes[first].code == CLD_EXITED ? s->pes[first].status : 128 + s->pes[first].status);
}

/* Processes that are our children though we did not start them: PEs' orphans that left their group. */
static void end_orphans(void)
{
    double until = now_s() + 2;
    while (now_s() < until) {
        FILE *children = fopen("/proc/thread-self/children", "r");
        int pid, n = 0;
        while (children && fscanf(children, "%d", &pid) == 1) {
            kill(pid, SIGKILL);
            n++;
        }
        if (children)
            fclose(children);
        if (!n)
            return;
        while (waitpid(-1, NULL, 0) < 0 && errno == EINTR)
            ;
    }
}

/* All PEs have ended: nothing of theirs may stay. */
static void clean_up(run_state *s)
{
    signal_all(s, SIGKILL);
    for (int i = 0; i < s->started; i++)
        waitpid(s->pes[i].pid, NULL, 0);
    run_keeper_end(&s->keeper); /* before the search for orphans: it is a child of ours, too */
    end_orphans();
    for (int i = 0; i < s->started; i++) {
        take_rest(&s->pes[i].out);
        take_rest(&s->pes[i].err);
    }
    run_sink_drain(&s->out, LAST_BYTES_MS);
    run_sink_drain(&s->err, LAST_BYTES_MS);
}

/* ---------------------------------------------------------------- the loop */

static void take_signals(run_state *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == sizeof info) {
        int signal = (int)info.ssi_signo;
        if (signal == SIGCHLD) {
            /* look_for_ends follows. Of several deaths one signal stays, that of the first: on a busy host all we learn of their order. */
            if (!s->first_failed && (info.ssi_code != CLD_EXITED || info.ssi_status))
                s->first_failed = (pid_t)info.ssi_pid;
            continue;
        }
        if (s->ending) {
            kill_job(s); /* asked twice */
            continue;
        }
        say(s, "%s: ending the job", signal == SIGINT ? "interrupted" : strsignal(signal));
        end_job(s, 128 + signal);
    }
}

static void keys_close(run_state *s)
{
    close(s->keys_fd);
    s->keys_fd = -1;
}

/* From the terminal to PE 0. A terminal that is not ours to read (a job in the background) ends its input. */
static void pass_keys(run_state *s, short in, short out)
{
    if (in && !s->keys_used) {
        ssize_t n = read(STDIN_FILENO, s->keys, sizeof s->keys);
        if (n <= 0) {
            keys_close(s);
            return;
        }
        s->keys_used = (size_t)n;
    }
    if (s->keys_used && (out || in)) {
        ssize_t n = write(s->keys_fd, s->keys, s->keys_used);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            keys_close(s);
            return;
        }
        if (n > 0) {
            s->keys_used -= (size_t)n;
            memmove(s->keys, s->keys + n, s->keys_used);
        }
    }
}

enum { AT_SIGNALS, AT_OUT, AT_ERR, AT_KEYS_IN, AT_KEYS_OUT, AT_PES };

/* Fills s->polls (a descriptor of -1 is passed over by poll) and waits. */
static void wait_for_something(run_state *s)
{
    struct pollfd *p = s->polls;
    bool keys = s->keys_fd >= 0;
    p[AT_SIGNALS] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    p[AT_OUT] = (struct pollfd){.fd = s->out.used ? s->out.fd : -1, .events = POLLOUT};
    p[AT_ERR] = (struct pollfd){.fd = s->err.used ? s->err.fd : -1, .events = POLLOUT};
    p[AT_KEYS_IN] = (struct pollfd){.fd = keys && !s->keys_used ? STDIN_FILENO : -1, .events = POLLIN};
    p[AT_KEYS_OUT] = (struct pollfd){.fd = keys && s->keys_used ? s->keys_fd : -1, .events = POLLOUT};
    for (int i = 0; i < s->started; i++) {
        p[AT_PES + 2 * i] = (struct pollfd){.fd = run_sink_full(&s->out) ? -1 : s->pes[i].out.fd, .events = POLLIN};
        p[AT_PES + 2 * i + 1] = (struct pollfd){.fd = run_sink_full(&s->err) ? -1 : s->pes[i].err.fd, .events = POLLIN};
    }
    int ms = -1;
    if (s->deadline > 0) {
        double left = s->deadline - now_s();
        ms = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1;
    }
    if (poll(p, (nfds_t)(AT_PES + 2 * s->started), ms) < 0)
        for (int i = 0; i < AT_PES + 2 * s->started; i++)
            p[i].revents = 0;
}

static void check_deadline(run_state *s)
{
    if (s->deadline <= 0 || now_s() < s->deadline)
        return;
    if (s->ending) {
        kill_job(s);
        return;
    }
    say(s, "the job ran for %g seconds, as long as --timeout allows: ending it", s->options->timeout_s);
    end_job(s, 124);
}

static void loop(run_state *s)
{
    while (s->ended < s->started) {
        wait_for_something(s);
        for (int i = 0; i < s->started; i++) {
            if (s->polls[AT_PES + 2 * i].revents)
                run_source_read(&s->pes[i].out);
            if (s->polls[AT_PES + 2 * i + 1].revents)
                run_source_read(&s->pes[i].err);
        }
        if (s->keys_fd >= 0)
            pass_keys(s, s->polls[AT_KEYS_IN].revents, s->polls[AT_KEYS_OUT].revents);
        if (s->polls[AT_SIGNALS].revents)
            take_signals(s);
        look_for_ends(s);
        run_sink_flush(&s->out);
        run_sink_flush(&s->err);
        if (s->out.closed)
            end_job(s, 128 + SIGPIPE); /* `unfence run ... | head` has seen enough */
        check_deadline(s);
    }
}

/* ---------------------------------------------------------------- all of it */

/* Room for two pipes and more for each PE; the PEs get the limit that we found. */
static void raise_file_limit(run_state *s)
{
    struct rlimit all;
    if (getrlimit(RLIMIT_NOFILE, &s->files))
        return;
    all = s->files;
    all.rlim_cur = all.rlim_max;
    setrlimit(RLIMIT_NOFILE, &all);
}

int run_job(const run_options *options)
{
    run_state s = {.options = options, .signal_fd = -1, .keys_fd = -1, .out.fd = STDOUT_FILENO, .err.fd = STDERR_FILENO};
    sigset_t watched;
    sigemptyset(&watched);
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&watched, signals[i]);
    sigprocmask(SIG_BLOCK, &watched, &s.mask);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTIN, SIG_IGN); /* reading a terminal that is not ours then fails instead of stopping us */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    raise_file_limit(&s);
    run_keeper_start(&s.keeper);
    s.signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    s.pes = calloc((size_t)options->n, sizeof *s.pes);
    s.polls = calloc((size_t)options->n * 2 + AT_PES, sizeof *s.polls);
    int code = 0;
    if (s.signal_fd < 0 || !s.pes || !s.polls) {
        say(&s, "cannot watch %d PEs: %s", options->n, strerror(errno));
        code = 1;
        goto out;
    }
    for (int i = 0; i < options->n; i++)
        s.pes[i].out.fd = s.pes[i].err.fd = -1;
    s.deadline = options->timeout_s > 0 ? now_s() + options->timeout_s : 0;
    for (int i = 0; i < options->n && !code; i++)
        code = start_pe(&s, i);
    if (code)
        end_job(&s, code);
    loop(&s);
    clean_up(&s);
    code = s.exit_code;
out:
    for (int i = 0; s.pes && i < options->n; i++) {
        run_source_close(&s.pes[i].out);
        run_source_close(&s.pes[i].err);
    }
    run_sink_drain(&s.err, LAST_BYTES_MS);
    run_keeper_end(&s.keeper);
    if (s.keys_fd >= 0)
        keys_close(&s);
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    run_sink_free(&s.out);
    run_sink_free(&s.err);
    free(s.pes);
    free(s.polls);
    sigprocmask(SIG_SETMASK, &s.mask, NULL);
    return code;
}
