/* fuzz_place.c - any node list, root address and job environment is read or refused with a sentence.
 *
 * The input is text. It is read as a Slurm node list, as a root address, and, a NAME=value a line, as the environment of a PE. What is accepted
 * must keep its promises: a host has a name, a PE lies below the number of PEs, a root can be parsed again. */
#include "base/error.h"
#include "base/settings.h"
#include "bootstrap/address.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/place.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ENTRIES 32

static void refused(int rc)
{
    if (rc != UF_EINVAL || !*uf_error_message())
        abort();
}

static void read_list(const char *text)
{
    char host[256];
    int rc = uf_place_first_host(text, host, sizeof host);
    if (rc)
        refused(rc);
    else if (!host[0] || strlen(host) > 255 || strpbrk(host, "[], "))
        abort();
}

static void read_root(const char *text)
{
    uf_root root;
    int rc = uf_root_parse(text, &root);
    if (rc)
        refused(rc);
    else if (!root.host[0] || !root.port || !root.ports || root.port + root.ports - 1 > 65535)
        abort();
}

static void read_environment(char *text)
{
    static uf_settings settings; /* none of our own variables: they are the settings' fuzzer's */
    static const char *const none[] = {NULL};
    const char *environment[MOST_ENTRIES + 1];
    uf_bootstrap_place place;
    size_t n = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && n < MOST_ENTRIES; line = strtok_r(NULL, "\n", &rest))
        environment[n++] = line;
    environment[n] = NULL;
    if (uf_settings_load_from(none, &settings))
        abort();
    int rc = uf_bootstrap_find_place(&settings, environment, &place);
    if (rc)
        refused(rc);
    else if (place.n_pes < 1 || place.pe < 0 || place.pe >= place.n_pes || (place.n_pes > 1 && !place.root[0]) ||
             !memchr(place.job, 0, sizeof place.job))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    read_list(text);
    read_root(text);
    read_environment(text);
    free(text);
    return 0;
}
