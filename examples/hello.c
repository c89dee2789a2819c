/* hello.c - the smallest program: PE 0 puts a sentence into PE 1's memory and raises a signal in the same call; PE 1 waits for
 * the signal, after which the sentence is there, on any network. Start it with: unfence run -n 2 -- hello */
#include <stdio.h>
#include <string.h>
#include <unfence/unfence.h>

#define SECOND 1000000000ull

static int say(uf_world *world)
{
    char *inbox;       /* symmetric: the same offset on every PE */
    uint64_t *arrived; /* a signal word, symmetric too, zero at first */
    int rc = uf_malloc(world, 64, 0, (void **)&inbox);
    if (rc == UF_OK)
        rc = uf_signal_alloc(world, 1, UF_SIGNAL_DEFAULT, &arrived);
    if (rc != UF_OK)
        return rc;
    if (uf_world_pe(world) == 0 && uf_world_n_pes(world) > 1) {
        const char text[] = "hello from PE 0";
        return uf_put_signal(uf_ctx_default(world), inbox, text, sizeof text, arrived, UF_SIGNAL_ADD, 1, 1, UF_WEAK);
    }
    if (uf_world_pe(world) == 1) {
        rc = uf_wait(world, arrived, UF_GE, 1, 10 * SECOND);
        if (rc == UF_OK)
            printf("PE 1 received \"%s\"\n", inbox);
    }
    return rc;
}

int main(void)
{
    uf_world *world;
    int rc = uf_world_create(NULL, &world);
    if (rc == UF_OK)
        rc = say(world);
    if (rc != UF_OK) {
        fprintf(stderr, "hello: %s\n", uf_error_message());
        return 1;
    }
    return uf_world_destroy(world) == UF_OK ? 0 : 1;
}
