/* main.c - the command `unfence`: one table of commands, and the nearest name for a typing error. */
#include "bench.h"
#include "doctor.h"
#include "info.h"
#include "options.h"
#include "run.h"
#include "selftest.h"
#include "unfence/unfence.h"
#include <stdio.h>
#include <string.h>

static int version_command(int argc, char **argv);
static int help_command(int argc, char **argv);

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's own name */
} command;

static const command commands[] = {
    {"run", "start the PEs of a program on this host", run_command},
    {"info", "what is in this host, and what Unfence would use of it", info_command},
    {"doctor", "what each way to a peer needs, and what of it is missing here", doctor_command},
    {"bench", "measure latency, throughput and work requests", bench_command},
    {"selftest", "compare dispatch and combine with a model, bit by bit", selftest_command},
    {"version", "the version of the command and its library", version_command},
    {"help", "this page, or that of a command", help_command},
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void print_help(FILE *out)
{
    fprintf(out, "usage: unfence COMMAND [ARGUMENTS]\n\n"
                 "One-sided communication with signals on networks that promise no order.\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\nunfence COMMAND --help says all about one. The settings of the library are environment variables\n"
                 "UNFENCE_*; unfence info lists them with their values.\n");
}

static int unknown_command(const char *name)
{
    const char *known[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        known[i] = commands[i].name;
    const char *nearest = tool_nearest(name, known, N_COMMANDS);
    fprintf(stderr, "unfence: there is no command \"%s\"", name);
    if (nearest)
        fprintf(stderr, "; did you mean \"%s\"?", nearest);
    fprintf(stderr, " (unfence help lists all)\n");
    return TOOL_EXIT_USAGE;
}

static int version_command(int argc, char **argv)
{
    const tool_usage usage = {.command = "unfence version", .synopsis = "", .text = "Prints the version of the library."};
    switch (tool_options_parse(&usage, argc - 1, argv + 1)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    printf("unfence %s\n", uf_version());
    return TOOL_EXIT_OK;
}

static int help_command(int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-') {
        print_help(stdout);
        return TOOL_EXIT_OK;
    }
    const command *c = find_command(argv[1]);
    if (!c)
        return unknown_command(argv[1]);
    if (c->run == help_command) {
        print_help(stdout);
        return TOOL_EXIT_OK;
    }
    char help[] = "--help";
    char *arguments[] = {argv[1], help, NULL};
    return c->run(2, arguments);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TOOL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help_command(1, argv);
    if (strcmp(argv[1], "--version") == 0)
        return version_command(1, argv);
    const command *c = find_command(argv[1]);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(argv[1]);
}
