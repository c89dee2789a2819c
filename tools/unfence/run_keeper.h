/* run_keeper.h - a small process that outlives a killed launcher just long enough to end the PEs' process groups.
 *
 * The kernel kills the PEs when the launcher dies, but not what they started: a program behind a shell script would go on for ever. So the keeper
 * knows the groups, and when its pipe ends without a good-bye it kills them. It holds no stream of ours and hears no Ctrl-C. */
#ifndef UNFENCE_TOOL_RUN_KEEPER_H
#define UNFENCE_TOOL_RUN_KEEPER_H

#include <sys/types.h>

typedef struct run_keeper {
    pid_t pid;
    int fd; /* write end of its pipe; -1: there is none, and the job does without */
} run_keeper;

void run_keeper_start(run_keeper *keeper);
/* From now on the group is the keeper's care. */
void run_keeper_add(run_keeper *keeper, pid_t group);
/* All groups are gone: lets the keeper go, too. */
void run_keeper_end(run_keeper *keeper);

#endif
