/* launcher_main.c - `unfence run` alone, without the rest of the command: what run_launcher.c tests. */
#include "run.h"

int main(int argc, char **argv)
{
    return run_command(argc, argv);
}
