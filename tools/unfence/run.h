/* run.h - `unfence run`: starts the PEs of a program on this host, joins their output, and ends them together.
 *
 *   run.c         the command line, the program's path, the job's address and name
 *   run_job.c     the processes: start, watch, end; one loop over poll, nothing is done in signal handlers
 *   run_keeper.c  ends what the PEs started if the launcher is killed
 *   run_output.c  their output: whole lines with the PE's number in front
 * It leaves nothing behind: no file anywhere, and no process, even if it is killed itself. */
#ifndef UNFENCE_TOOL_RUN_H
#define UNFENCE_TOOL_RUN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct run_options {
    int n;
    double timeout_s; /* 0: none */
    double grace_s;   /* between SIGTERM and SIGKILL */
    bool no_prefix, bind;
    const char *pe_log;     /* directory, or NULL */
    char **environment;     /* "NAME=value" of --env, NULL-terminated */
    const char *path;       /* of the program */
    char **arguments;       /* its argv, NULL-terminated */
    char root[64], job[32]; /* UNFENCE_ROOT and UNFENCE_JOB of all PEs */
} run_options;

/* argv[0] is the command's own name. Returns the exit code: 0, that of the first PE that failed (128 + signal), 2 for a wrong command line, 126
 * or 127 if the program cannot be started or found, 124 after --timeout, 130 or 143 after Ctrl-C or SIGTERM. */
int run_command(int argc, char **argv);

/* run_job.c: runs the job to its end. The same exit codes. */
int run_job(const run_options *options);

#endif
