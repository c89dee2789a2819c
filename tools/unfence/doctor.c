/* doctor.c - `unfence doctor`: every prerequisite of every path, as ok, missing or unknown, with the remedy and what is lost without it.
 *
 * Three groups: what the fabrics asked for need (a missing one there is the exit code), what makes them better, and the rest. */
#include "doctor.h"
#include "base/error.h"
#include "options.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FOUND_BYTES = 600 };

typedef struct verdict {
    doctor_state state;
    char found[FOUND_BYTES];
} verdict;

typedef enum group { NEEDED, HELPS, OTHER } group;

static group group_of(const doctor_row *row, uint32_t wanted)
{
    return row->needed & wanted ? NEEDED : row->helps & wanted ? HELPS : OTHER;
}

static uint32_t count_missing(const verdict *verdicts, uint32_t wanted)
{
    uint32_t n = 0;
    for (size_t i = 0; i < doctor_n_rows; i++)
        n += group_of(&doctor_rows[i], wanted) == NEEDED && verdicts[i].state == DOCTOR_MISSING;
    return n;
}

/* ---------------------------------------------------------------- what is asked for */

/* "auto" is what a world would try first on this host. */
static uint32_t automatic_network(const uf_topo *topo)
{
    for (uint32_t i = 0; i < topo->n_nics; i++)
        if (topo->nics[i].kind == UF_TOPO_EFA)
            return DOCTOR_OFI_EFA;
    return DOCTOR_TCP;
}

static uint32_t bits_of(const char *name, const uf_topo *topo)
{
    if (!*name || strcasecmp(name, "auto") == 0)
        return DOCTOR_LOCAL | automatic_network(topo);
    if (strcasecmp(name, "ofi") == 0)
        return automatic_network(topo);
    for (const doctor_path *path = doctor_paths; path->name; path++)
        if (strcasecmp(path->name, name) == 0)
            return path->bit;
    return 0;
}

static const char *path_names(uint32_t bits, char *text, size_t bytes)
{
    size_t length = 0;
    text[0] = '\0';
    for (const doctor_path *path = doctor_paths; path->name; path++)
        if (path->bit & bits && length < bytes)
            length += (size_t)snprintf(text + length, bytes - length, "%s%s", length ? ", " : "", path->name);
    return text;
}

/* ---------------------------------------------------------------- printing */

static void print_row(const doctor_row *row, const verdict *v, group in)
{
    char names[160];
    printf("  %-8s %-38s %s\n", v->state == DOCTOR_MISSING ? "MISSING" : doctor_state_name(v->state), row->what, v->found);
    if (v->state == DOCTOR_OK)
        return;
    if (in == OTHER)
        printf("  %8s %s: %s\n", "", row->needed ? "needed by" : "helps",
               path_names(row->needed ? row->needed : row->helps, names, sizeof names));
    printf("  %8s without it: %s\n  %8s remedy: %s\n", "", row->lost, "", row->remedy);
}

static void print_all(const verdict *verdicts, uint32_t wanted)
{
    static const char *const titles[] = {"needed", "not needed, but better with", "for other paths"};
    char names[160];
    printf("paths asked for: %s\n", path_names(wanted, names, sizeof names));
    for (group in = NEEDED; in <= OTHER; in++) {
        printf("\n%s\n", titles[in]);
        for (size_t i = 0; i < doctor_n_rows; i++)
            if (group_of(&doctor_rows[i], wanted) == in)
                print_row(&doctor_rows[i], &verdicts[i], in);
    }
    uint32_t missing = count_missing(verdicts, wanted);
    if (missing)
        printf("\n%" PRIu32 " of what is needed %s missing\n", missing, missing == 1 ? "is" : "are");
    else
        printf("\nnothing that is needed is known to be missing\n");
}

static json_object *names_array(uint32_t bits)
{
    json_object *array = json_object_new_array();
    for (const doctor_path *path = doctor_paths; path->name; path++)
        if (path->bit & bits)
            json_object_array_add(array, json_object_new_string(path->name));
    return array;
}

static json_object *row_object(const doctor_row *row, const verdict *v, uint32_t wanted)
{
    static const char *const importance[] = {"needed", "helps", "other"};
    const struct {
        const char *key, *value;
    } texts[] = {{"id", row->id},
                 {"what", row->what},
                 {"state", doctor_state_name(v->state)},
                 {"found", v->found},
                 {"importance", importance[group_of(row, wanted)]},
                 {"remedy", row->remedy},
                 {"lost", row->lost}};
    json_object *object = json_object_new_object();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_object_object_add(object, texts[i].key, json_object_new_string(texts[i].value));
    json_object_object_add(object, "needed_by", names_array(row->needed));
    json_object_object_add(object, "helps", names_array(row->helps));
    return object;
}

static int print_json(const verdict *verdicts, uint32_t wanted)
{
    json_object *root = json_object_new_object(), *checks = json_object_new_array();
    for (size_t i = 0; i < doctor_n_rows; i++)
        json_object_array_add(checks, row_object(&doctor_rows[i], &verdicts[i], wanted));
    json_object_object_add(root, "version", json_object_new_int(1));
    json_object_object_add(root, "paths", names_array(wanted));
    json_object_object_add(root, "missing", json_object_new_int64(count_missing(verdicts, wanted)));
    json_object_object_add(root, "checks", checks);
    int rc = printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY)) < 0 ? -1 : 0;
    json_object_put(root);
    return fflush(stdout) != 0 ? -1 : rc;
}

/* ---------------------------------------------------------------- the command */

typedef struct arguments {
    tool_names fabrics;
    uint64_t n_pes;
    const char *root;
    bool json;
} arguments;

static tool_parsed parse(int argc, char **argv, arguments *a)
{
    const char *allowed[16] = {"auto", "ofi"};
    for (size_t i = 0; doctor_paths[i].name; i++)
        allowed[2 + i] = doctor_paths[i].name;
    const tool_option options[] = {
        {"--fabric", TOOL_NAMES, &a->fabrics, "LIST", "what must work (UNFENCE_FABRIC): auto, local, ofi:tcp, efa, gpu, ...", 0,
         0, allowed},
        {"--n-pes", TOOL_NUMBER, &a->n_pes, "N", "PEs on this host, for limits that grow with them (2)", 1, 65536, NULL},
        {"--root", TOOL_TEXT, &a->root, "DIR", "look at the host whose /sys, /proc, /dev and /usr/lib were copied below DIR", 0,
         0, NULL},
        {"--json", TOOL_FLAG, &a->json, NULL, "JSON on standard output", 0, 0, NULL},
    };
    const tool_usage usage = {
        .command = "unfence doctor",
        .synopsis = "[OPTIONS]",
        .text = "Lists the prerequisites of every path as ok, missing or unknown, each with its remedy and with what is lost\n"
                "without it. Changes nothing and needs no privileges. Exit code 3: something that the fabrics asked for need\n"
                "is missing.\n"
                "Fabrics: local, ofi:tcp, ofi:shm, ofi:efa, ofi:efa-direct, ofi:verbs, efa (its queues without libfabric),\n"
                "gpu (GPU memory), gpu-posts (kernels that post).",
        .options = options,
        .n_options = sizeof options / sizeof *options};
    return tool_options_parse(&usage, argc - 1, argv + 1);
}

static int find_wanted(const arguments *a, const uf_settings *settings, const uf_topo *topo, uint32_t *wanted)
{
    *wanted = 0;
    for (size_t i = 0; i < a->fabrics.n; i++)
        *wanted |= bits_of(a->fabrics.text[i], topo);
    if (!a->fabrics.n)
        *wanted = bits_of(settings->text[UF_SET_FABRIC], topo);
    if (*wanted)
        return TOOL_EXIT_OK;
    fprintf(stderr, "unfence doctor: nothing is known about what UNFENCE_FABRIC=%s needs; name a fabric with --fabric\n",
            settings->text[UF_SET_FABRIC]);
    return TOOL_EXIT_USAGE;
}

int doctor_command(int argc, char **argv)
{
    static uf_settings settings;
    arguments a = {.n_pes = 2, .root = ""};
    uf_topo *topo = NULL;
    uint32_t wanted;
    switch (parse(argc, argv, &a)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    verdict *verdicts = calloc(doctor_n_rows, sizeof *verdicts);
    if (!verdicts || uf_settings_load(&settings) != UF_OK ||
        uf_topo_read(a.root, (uint64_t)settings.number[UF_SET_NIC_RATE], &topo) != UF_OK) {
        fprintf(stderr, "unfence doctor: %s\n", verdicts ? uf_error_message() : "no memory");
        free(verdicts);
        return TOOL_EXIT_FAILED;
    }
    int rc = find_wanted(&a, &settings, topo, &wanted);
    if (rc == TOOL_EXIT_OK) {
        doctor_facts facts = {.root = a.root, .topo = topo, .n_pes = a.n_pes};
        doctor_gather(&facts, &settings);
        for (size_t i = 0; i < doctor_n_rows; i++)
            verdicts[i].state = doctor_rows[i].check(&facts, &doctor_rows[i], verdicts[i].found, sizeof verdicts[i].found);
        if (!a.json)
            print_all(verdicts, wanted);
        else if (print_json(verdicts, wanted) != 0)
            rc = TOOL_EXIT_FAILED;
        if (rc == TOOL_EXIT_OK && count_missing(verdicts, wanted))
            rc = DOCTOR_EXIT_MISSING;
    }
    uf_topo_free(topo);
    free(verdicts);
    return rc;
}
