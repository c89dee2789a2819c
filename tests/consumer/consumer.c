/* consumer.c - a user's first program: a world of one PE, a put with a signal to itself. Compiled as strict C11. */
#include <unfence/ep.h>
#include <unfence/unfence.h>

#include <stdio.h>
#include <string.h>

static int check(int rc, const char *what)
{
    if (rc == UF_OK)
        return 0;
    fprintf(stderr, "%s: %s: %s\n", what, uf_error_name(rc), uf_error_message());
    return 1;
}

int main(void)
{
    static const char text[] = "hello from the installed library";
    uf_world_options options = UF_WORLD_OPTIONS;
    uf_world *world;
    uint64_t *arrived;
    void *memory;

    options.pe = 0;
    options.n_pes = 1;
    if (check(uf_world_create(&options, &world), "uf_world_create") ||
        check(uf_malloc(world, sizeof(text), 0, &memory), "uf_malloc") ||
        check(uf_signal_alloc(world, 1, UF_SIGNAL_DEFAULT, &arrived), "uf_signal_alloc") ||
        check(uf_put_signal(uf_ctx_default(world), memory, text, sizeof(text), arrived, UF_SIGNAL_ADD, 1, 0, UF_WEAK),
              "uf_put_signal") ||
        check(uf_wait(world, arrived, UF_GE, 1, UF_FOREVER), "uf_wait"))
        return 1;
    if (strcmp(memory, text) != 0) {
        fprintf(stderr, "the bytes are not those that were put\n");
        return 1;
    }
    printf("unfence %s: %s\n", uf_version(), (const char *)memory);
    return check(uf_world_destroy(world), "uf_world_destroy");
}
