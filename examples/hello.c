/* hello.c - the smallest program, shown in README.md: PE 0 puts a word into PE 1's memory and raises a signal in the same call; PE 1 waits
 * for the signal, after which the word is there, on any network. Start it with: unfence run -n 2 -- hello */
#include <stdio.h>
#include <unfence/unfence.h>

int main(void)
{
    uf_world *world;
    char *inbox = NULL;       /* symmetric: the same offset on every PE */
    uint64_t *arrived = NULL; /* a signal word, zero at first */
    int rc = uf_world_create(NULL, &world);
    if (!rc)
        rc = uf_malloc(world, 64, 0, (void **)&inbox);
    if (!rc)
        rc = uf_signal_alloc(world, 1, UF_SIGNAL_DEFAULT, &arrived);
    if (!rc && uf_world_pe(world) == 0)
        rc = uf_put_signal(uf_ctx_default(world), inbox, "hello", 6, arrived, UF_SIGNAL_ADD, 1, 1, UF_WEAK);
    if (!rc && uf_world_pe(world) == 1 && !(rc = uf_wait(world, arrived, UF_GE, 1, 10000000000ull)))
        printf("PE 1 received \"%s\"\n", inbox);
    if (rc) {
        fprintf(stderr, "hello: %s\n", uf_error_message());
        return 1;
    }
    return uf_world_destroy(world) ? 1 : 0;
}
