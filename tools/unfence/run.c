/* run.c - the command line of `unfence run`: options, where the program is, and the address at which the PEs will meet.
 *
 * The port is kept by this process as a socket that is bound and does not listen: the kernel then gives it to nobody else, and PE 0, which
 * asks for it by number, may listen there. Two jobs that start at the same moment cannot get the same one. */
#include "run.h"
#include "options.h"
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_PES 65536

#ifndef UNFENCE_EXAMPLES_DIR
#define UNFENCE_EXAMPLES_DIR "/usr/libexec/unfence"
#endif

static const char help[] =
    "usage: unfence run -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts N processes of PROGRAM on this host, the PEs of one world, and waits for them. PROGRAM is a path, or the name\n"
    "of one of the examples that come with Unfence, or a command that is found in PATH.\n"
    "\n"
    "  -n N           number of PEs; it may be much larger than the number of cores\n"
    "  --timeout S    end the job after S seconds (exit code 124)\n"
    "  --env K=V      set an environment variable for all PEs; may be repeated\n"
    "  --no-prefix    PE 0 writes as if it ran alone (progress bars and colours work); lines of the others keep their prefix\n"
    "  --bind         bind the PEs to cores: equal shares, or one core each in turn where there are more PEs than cores\n"
    "  --pe-log DIR   write the output of each PE, as it is, to DIR/pe-N.out and DIR/pe-N.err too\n"
    "  --grace S      seconds between asking PEs to end (SIGTERM) and killing them (SIGKILL); default 3\n"
    "  --help         this page\n"
    "\n"
    "Output of the PEs comes by whole lines, each with \"[PE] \" in front: standard output to standard output, standard\n"
    "error to standard error. A line that was overwritten with carriage returns is shown as it looked last. Standard\n"
    "input goes to PE 0.\n"
    "\n"
    "The first PE that fails ends the job: its number, its exit code or signal and its last message are written to\n"
    "standard error, and the others are ended. Ctrl-C and SIGTERM end all PEs and whatever they started; a second one\n"
    "kills them at once. If unfence itself is killed, the PEs die with it. No files are made.\n"
    "\n"
    "Each PE finds in its environment: UNFENCE_PE (its number, from 0), UNFENCE_N_PES, UNFENCE_ROOT (127.0.0.1:port, where\n"
    "the PEs meet) and UNFENCE_JOB (a random name: two jobs on one host never meet). All other settings of the library\n"
    "are inherited; unfence info lists them. IPATH_NO_BACKTRACE and HFI_NO_BACKTRACE are 1 if they were not set: libfabric\n"
    "may bring libraries that would turn a crash into an exit with 1.\n"
    "\n"
    "exit code: 0 if all PEs exited with 0; that of the first PE that failed, or 128 + its signal; 2 wrong command line;\n"
    "124 --timeout; 126 the program cannot be run; 127 it was not found; 130 after Ctrl-C, 143 after SIGTERM.\n"
    "\n"
    "examples:\n"
    "  unfence run -n 4 -- moe-layer --layers 2\n"
    "  unfence run -n 8 --env UNFENCE_FABRIC=ofi:tcp --timeout 60 -- ./my_program input.txt\n";

static int wrong(const char *format, const char *what)
{
    fprintf(stderr, "unfence run: ");
    fprintf(stderr, format, what);
    fprintf(stderr, " (unfence run --help says all)\n");
    return TOOL_EXIT_USAGE;
}

/* ---------------------------------------------------------------- options */

static const char *const option_names[] = {"-n",       "--timeout", "--env",  "--no-prefix", "--bind",
                                           "--pe-log", "--grace",   "--help", "-h"};
enum { OPT_N, OPT_TIMEOUT, OPT_ENV, OPT_NO_PREFIX, OPT_BIND, OPT_PE_LOG, OPT_GRACE, OPT_HELP, OPT_H, N_OPTIONS };

/* Which option `word` is, with *value set to what follows '=' or sticks to "-n"; N_OPTIONS if it is none. */
static int option_find(const char *word, const char **value)
{
    *value = NULL;
    if (word[0] == '-' && word[1] == 'n' && word[2]) {
        *value = word + 2 + (word[2] == '=');
        return OPT_N;
    }
    size_t n = strcspn(word, "=");
    for (int i = 0; i < N_OPTIONS; i++) {
        if (strlen(option_names[i]) != n || strncmp(word, option_names[i], n) != 0)
            continue;
        if (word[n] == '=')
            *value = word + n + 1;
        return i;
    }
    return N_OPTIONS;
}

static int parse_seconds(const char *name, const char *text, double *seconds)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0) || value > 1e9) {
        fprintf(stderr, "unfence run: %s is \"%s\": a number of seconds is needed\n", name, text);
        return TOOL_EXIT_USAGE;
    }
    *seconds = value;
    return 0;
}

static int option_set(run_options *o, int option, const char *value, size_t *n_env)
{
    char *end;
    switch (option) {
    case OPT_N: {
        long n = strtol(value, &end, 10);
        if (end == value || *end || n < 1 || n > MAX_PES)
            return wrong("-n is \"%s\": a number of PEs from 1 to 65536 is needed", value);
        o->n = (int)n;
        return 0;
    }
    case OPT_TIMEOUT:
        return parse_seconds("--timeout", value, &o->timeout_s);
    case OPT_GRACE:
        return parse_seconds("--grace", value, &o->grace_s);
    case OPT_ENV: {
        static const char *const ours[] = {"UNFENCE_PE=", "UNFENCE_N_PES=", "UNFENCE_ROOT=", "UNFENCE_JOB="};
        if (value[0] == '=' || !strchr(value, '='))
            return wrong("--env \"%s\" is not of the form NAME=value", value);
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            if (strncmp(value, ours[i], strlen(ours[i])) == 0)
                return wrong("--env %s: this variable is set by unfence run itself", value);
        o->environment[(*n_env)++] = (char *)value;
        return 0;
    }
    case OPT_PE_LOG:
        o->pe_log = value;
        return 0;
    case OPT_NO_PREFIX:
        o->no_prefix = true;
        return 0;
    default:
        o->bind = true;
        return 0;
    }
}

/* 0, or an exit code plus 1 when there is nothing more to do. */
static int parse(int argc, char **argv, run_options *o)
{
    size_t n_env = 0;
    int i = 1;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char *value;
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        int option = option_find(argv[i], &value);
        if (option == OPT_HELP || option == OPT_H) {
            fputs(help, stdout);
            return 1;
        }
        if (option == N_OPTIONS) {
            const char *near = tool_nearest(argv[i], option_names, N_OPTIONS);
            fprintf(stderr, "unfence run: there is no option \"%s\"", argv[i]);
            fprintf(stderr, near ? "; did you mean \"%s\"?\n" : " (unfence run --help says all)\n", near);
            return TOOL_EXIT_USAGE + 1;
        }
        bool flag = option == OPT_NO_PREFIX || option == OPT_BIND;
        if (flag && value)
            return wrong("%s takes no value", option_names[option]) + 1;
        if (!flag && !value && i + 1 < argc)
            value = argv[++i];
        if (!flag && !value)
            return wrong("%s needs a value", option_names[option]) + 1;
        int rc = option_set(o, option, value, &n_env);
        if (rc)
            return rc + 1;
    }
    if (!o->n)
        return wrong("how many PEs? -n N is missing%s", "") + 1;
    if (i >= argc)
        return wrong("which program? it is missing%s", "") + 1;
    o->arguments = argv + i;
    return 0;
}

/* ---------------------------------------------------------------- the program */

static bool runnable(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISREG(s.st_mode) && !access(path, X_OK);
}

/* directory/name, if that can be run. */
static bool in_directory(const char *directory, size_t n, const char *name, char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%.*s%s%s", (int)n, directory, n ? "/" : "./", name);
    return length > 0 && length < PATH_MAX && runnable(path);
}

/* Among the examples: beside the command in a build tree, or where they are installed. "moe-layer" may be the file moe_layer. */
static bool in_examples(const char *name, char path[PATH_MAX])
{
    static const char *const places[] = {"examples", "../examples", "../../examples", "../libexec/unfence"};
    char here[PATH_MAX], directory[PATH_MAX + 32], file[256];
    snprintf(file, sizeof file, "%s", name);
    for (char *c = file; *c; c++)
        *c = *c == '-' ? '_' : *c;
    ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    here[n > 0 ? n : 0] = 0;
    char *slash = strrchr(here, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        int length = snprintf(directory, sizeof directory, "%.*s/%s", (int)(slash - here), here, places[i]);
        if (in_directory(directory, (size_t)length, name, path) || in_directory(directory, (size_t)length, file, path))
            return true;
    }
    const char *installed = UNFENCE_EXAMPLES_DIR;
    return in_directory(installed, strlen(installed), name, path) || in_directory(installed, strlen(installed), file, path);
}

static bool in_path(const char *name, char path[PATH_MAX])
{
    const char *part = getenv("PATH");
    for (size_t n; part && *part; part += n + (part[n] == ':')) {
        n = strcspn(part, ":");
        if (in_directory(part, n, name, path))
            return true;
    }
    return false;
}

/* 0, or the exit code after it said what is wrong. */
static int find_program(const char *name, char path[PATH_MAX])
{
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        if (runnable(path))
            return 0;
        bool there = !access(path, F_OK);
        fprintf(stderr, "unfence run: cannot run %s: %s\n", name, there ? "it is not an executable file" : strerror(errno));
        return there ? 126 : 127;
    }
    if (in_examples(name, path) || in_path(name, path))
        return 0;
    fprintf(stderr, "unfence run: there is no program \"%s\" among the examples or in PATH", name);
    fprintf(stderr, runnable(name) ? "; did you mean ./%s?\n" : "\n", name);
    return 127;
}

/* ---------------------------------------------------------------- where and who */

/* Sets root and job; the descriptor that keeps the port, or -1 after it said why not. */
static int reserve_port(run_options *o)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint64_t random = 0;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(fd, (struct sockaddr *)&address, sizeof address) || getsockname(fd, (struct sockaddr *)&address, &length)) {
        fprintf(stderr, "unfence run: cannot get a port of 127.0.0.1 for the PEs to meet at: %s\n", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint64_t)time(NULL) << 32 ^ (uint64_t)getpid();
    snprintf(o->root, sizeof o->root, "127.0.0.1:%u", ntohs(address.sin_port));
    snprintf(o->job, sizeof o->job, "%016llx", (unsigned long long)random);
    return fd;
}

int run_command(int argc, char **argv)
{
    run_options o = {.grace_s = 3};
    char path[PATH_MAX];
    int port = -1, code = 1;
    o.environment = calloc((size_t)argc + 1, sizeof *o.environment);
    if (!o.environment) {
        fprintf(stderr, "unfence run: no memory\n");
        return TOOL_EXIT_FAILED;
    }
    int parsed = parse(argc, argv, &o);
    if (parsed) {
        code = parsed - 1;
        goto out;
    }
    code = find_program(o.arguments[0], path);
    if (code)
        goto out;
    o.path = path;
    code = TOOL_EXIT_FAILED;
    if (o.pe_log && mkdir(o.pe_log, 0777) && errno != EEXIST) {
        fprintf(stderr, "unfence run: cannot make the directory %s for the logs: %s\n", o.pe_log, strerror(errno));
        goto out;
    }
    port = reserve_port(&o);
    if (port < 0)
        goto out;
    fflush(NULL);
    code = run_job(&o);
    close(port);
out:
    free(o.environment);
    return code;
}
