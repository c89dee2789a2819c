/* options.h - command line options of every command, as a table that also prints the help.
 *
 * A command fills an array of tool_option with pointers to its own variables, which hold the defaults before the call.
 * One table gives the parser, the --help page and the nearest name for a typing error, so none of them can disagree.
 * Nothing here exits: the command returns what tool_options_parse says it should. */
#ifndef UNFENCE_TOOL_OPTIONS_H
#define UNFENCE_TOOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOOL_EXIT_OK = 0,
    TOOL_EXIT_FAILED = 1, /* the command could not do its work */
    TOOL_EXIT_USAGE = 2,  /* the command line was wrong */
};

#define TOOL_LIST_MAX 32

typedef struct tool_numbers {
    size_t n;
    uint64_t values[TOOL_LIST_MAX];
} tool_numbers;

typedef struct tool_names {
    size_t n;
    char text[TOOL_LIST_MAX][32];
} tool_names;

typedef enum tool_option_type {
    TOOL_FLAG,    /* bool, takes no value */
    TOOL_TEXT,    /* const char * */
    TOOL_NUMBER,  /* uint64_t with optional K, M, G (1024-based) */
    TOOL_SECONDS, /* double */
    TOOL_NUMBERS, /* tool_numbers: comma-separated TOOL_NUMBER, and A..B for A, 2A, 4A up to B */
    TOOL_TIMES,   /* tool_numbers of nanoseconds: comma-separated, with ns, us or ms */
    TOOL_NAMES,   /* tool_names: comma-separated words */
} tool_option_type;

typedef struct tool_option {
    const char *name; /* with its dashes, "--sizes" */
    tool_option_type type;
    void *value;          /* where it goes, of the type named above */
    const char *argument; /* what the help calls the value, "LIST"; NULL for flags */
    const char *doc;
    uint64_t min, max;          /* of numbers; both 0: no bound */
    const char *const *allowed; /* of names, NULL-terminated; NULL: any */
} tool_option;

typedef struct tool_usage {
    const char *command;  /* "unfence bench put-signal" */
    const char *synopsis; /* what follows the command, "[OPTIONS]" */
    const char *text;     /* what it does, some lines */
    const tool_option *options;
    size_t n_options;
} tool_usage;

typedef enum tool_parsed {
    TOOL_PARSED,       /* go on */
    TOOL_PARSED_HELP,  /* --help was printed to standard output: exit 0 */
    TOOL_PARSED_WRONG, /* the message is on standard error: exit 2 */
} tool_parsed;

/* Parses argv[0..argc), which starts after the command's own name. Takes "--name value" and "--name=value". */
tool_parsed tool_options_parse(const tool_usage *usage, int argc, char **argv);
void tool_help(const tool_usage *usage);

/* The word of known[0..n) nearest to `word`, or NULL if none is near enough to be meant. */
const char *tool_nearest(const char *word, const char *const *known, size_t n);
/* "8", "64K", "1M": false if it is not a number. */
bool tool_parse_number(const char *text, uint64_t *value);
/* "500ns", "20us", "1ms", in nanoseconds: false if it is no such time. */
bool tool_parse_time(const char *text, uint64_t *ns);
/* The reverse of tool_parse_number, for tables: "64 KiB". Returns `text`. */
const char *tool_format_bytes(uint64_t bytes, char text[24]);

#endif
