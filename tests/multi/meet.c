/* meet.c - a program that finds its peers by its environment alone, as a user's program does. For run_launcher.c.
 *
 *   meet                   exchanges numbers and prints "met N as SOURCE"
 *   meet die PE [SIGNAL]   the same, but then PE kills itself (with SIGKILL) and the others must hear of it: exit code 9 if they do */
#include "base/error.h"
#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, uf_error_message());
    return 1;
}

static int meet(uf_bootstrap *b, const uf_bootstrap_place *place)
{
    int *all = calloc((size_t)place->n_pes, sizeof *all);
    if (uf_bootstrap_allgather(b, &place->pe, sizeof place->pe, all, 0))
        return failed("allgather");
    for (int i = 0; i < place->n_pes; i++)
        if (all[i] != i)
            return failed("wrong numbers");
    free(all);
    printf("met %d as %s\n", place->n_pes, place->source);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    static uf_settings settings;
    uf_bootstrap_place place;
    uf_bootstrap *b;
    if (uf_settings_load(&settings) || uf_bootstrap_find_place(&settings, (const char *const *)environ, &place))
        return failed("place");
    uf_bootstrap_params params = {.settings = &settings,
                                  .driver = &uf_driver_threads,
                                  .pe = place.pe,
                                  .n_pes = place.n_pes,
                                  .root = place.root,
                                  .job = place.job,
                                  .timeout_ns = (uint64_t)settings.number[UF_SET_BOOTSTRAP_TIMEOUT]};
    if (uf_bootstrap_create(&params, &b))
        return failed("create");
    int rc = meet(b, &place);
    if (!rc && argc >= 3 && !strcmp(argv[1], "die")) {
        if (place.pe == atoi(argv[2]))
            raise(argc > 3 ? atoi(argv[3]) : SIGKILL);
        rc = uf_bootstrap_barrier(b, 0) == UF_EPEER ? 9 : 1;
        fprintf(stderr, "%s\n", uf_error_message());
    }
    uf_bootstrap_leave(b);
    uf_bootstrap_destroy(b);
    return rc;
}
