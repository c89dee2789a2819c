/* options.c - the parser, the help page and the nearest name: see options.h. */
#include "options.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX 64

/* Levenshtein's distance with one row; words longer than WORD_MAX are not what anybody mistyped. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b), row[WORD_MAX + 1];
    if (na > WORD_MAX || nb > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t above = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[nb];
}

const char *tool_nearest(const char *word, const char *const *known, size_t n)
{
    const char *best = NULL;
    size_t length = strlen(word), best_distance = length / 2 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(word, known[i]);
        if (distance < best_distance || (length >= 3 && strncmp(word, known[i], length) == 0 && distance < 8 && !best)) {
            best_distance = distance < best_distance ? distance : best_distance;
            best = known[i];
        }
    }
    return best;
}

bool tool_parse_number(const char *text, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    unsigned shift = 0;
    switch (toupper((unsigned char)*end)) {
    case 'K':
        shift = 10;
        break;
    case 'M':
        shift = 20;
        break;
    case 'G':
        shift = 30;
        break;
    case '\0':
        break;
    default:
        return false;
    }
    if ((shift != 0 && end[1] != '\0') || number > (UINT64_MAX >> shift))
        return false;
    *value = (uint64_t)number << shift;
    return true;
}

bool tool_parse_time(const char *text, uint64_t *ns)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
    char *end;
    errno = 0;
    unsigned long long number = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    for (size_t i = 0; number && errno == 0 && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name) != 0 || number > UINT64_MAX / units[i].ns)
            continue;
        *ns = number * units[i].ns;
        return true;
    }
    return false;
}

const char *tool_format_bytes(uint64_t bytes, char text[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    bool whole = value < 1e6 && (double)(uint64_t)value == value;
    snprintf(text, 24, whole ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

/* -------------------------------------------------------------- help */

void tool_help(const tool_usage *usage)
{
    printf("usage: %s%s%s\n\n%s\n\noptions:\n", usage->command, *usage->synopsis ? " " : "", usage->synopsis, usage->text);
    for (size_t i = 0; i < usage->n_options; i++) {
        const tool_option *option = &usage->options[i];
        char left[48];
        snprintf(left, sizeof left, "%s%s%s", option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        printf("  %-24s %s\n", left, option->doc);
    }
    printf("  %-24s %s\n", "--help", "this page");
}

/* -------------------------------------------------------------- parsing */

static tool_parsed wrong_value(const tool_usage *usage, const tool_option *option, const char *value, const char *why)
{
    fprintf(stderr, "%s: %s %s: %s\n", usage->command, option->name, value, why);
    return TOOL_PARSED_WRONG;
}

static tool_parsed out_of_bounds(const tool_usage *usage, const tool_option *option, const char *value)
{
    char why[96];
    snprintf(why, sizeof why, "must be from %" PRIu64 " to %" PRIu64, option->min, option->max);
    return wrong_value(usage, option, value, why);
}

static bool within(const tool_option *option, uint64_t number)
{
    return (option->min == 0 && option->max == 0) || (number >= option->min && number <= option->max);
}

static tool_parsed allowed_name(const tool_usage *usage, const tool_option *option, const char *name)
{
    size_t n = 0;
    if (!option->allowed)
        return TOOL_PARSED;
    for (; option->allowed[n]; n++) {
        if (strcmp(option->allowed[n], name) == 0)
            return TOOL_PARSED;
    }
    const char *nearest = tool_nearest(name, option->allowed, n);
    fprintf(stderr, "%s: %s: no such name as \"%s\"", usage->command, option->name, name);
    if (nearest)
        fprintf(stderr, "; did you mean \"%s\"?", nearest);
    for (size_t i = 0; !nearest && i < n; i++)
        fprintf(stderr, "%s%s", i == 0 ? "; known are " : ", ", option->allowed[i]);
    fprintf(stderr, "\n");
    return TOOL_PARSED_WRONG;
}

static tool_parsed too_long(const tool_usage *usage, const tool_option *option, const char *value)
{
    return wrong_value(usage, option, value, "too long a list or entry");
}

/* "A..B": A, 2A, 4A ... up to B. */
static tool_parsed set_range(const tool_usage *usage, const tool_option *option, const char *item, const char *dots)
{
    tool_numbers *list = option->value;
    uint64_t from, to;
    char first[64];
    snprintf(first, sizeof first, "%.*s", (int)(dots - item), item);
    if (!tool_parse_number(first, &from) || !tool_parse_number(dots + 2, &to) || from == 0 || from > to)
        return wrong_value(usage, option, item, "not a range (2K..4M), which doubles from its first number to its last");
    if (!within(option, from) || !within(option, to))
        return out_of_bounds(usage, option, item);
    for (uint64_t number = from; number <= to; number *= 2) {
        if (list->n == TOOL_LIST_MAX)
            return too_long(usage, option, item);
        list->values[list->n++] = number;
    }
    return TOOL_PARSED;
}

static tool_parsed set_time(const tool_usage *usage, const tool_option *option, const char *item)
{
    tool_numbers *list = option->value;
    uint64_t ns;
    if (!tool_parse_time(item, &ns))
        return wrong_value(usage, option, item, "not a time (500ns, 20us, 1ms)");
    if (!within(option, ns))
        return out_of_bounds(usage, option, item);
    list->values[list->n++] = ns;
    return TOOL_PARSED;
}

static tool_parsed set_list_item(const tool_usage *usage, const tool_option *option, const char *item)
{
    const char *dots = strstr(item, "..");
    if (option->type == TOOL_TIMES)
        return set_time(usage, option, item);
    if (option->type == TOOL_NUMBERS && dots)
        return set_range(usage, option, item, dots);
    if (option->type == TOOL_NUMBERS) {
        tool_numbers *list = option->value;
        uint64_t number;
        if (!tool_parse_number(item, &number))
            return wrong_value(usage, option, item, "not a number (8, 64K, 1M)");
        if (!within(option, number))
            return out_of_bounds(usage, option, item);
        list->values[list->n++] = number;
        return TOOL_PARSED;
    }
    tool_names *list = option->value;
    if (strlen(item) >= sizeof list->text[0])
        return wrong_value(usage, option, item, "too long");
    snprintf(list->text[list->n++], sizeof list->text[0], "%s", item);
    return allowed_name(usage, option, item);
}

static tool_parsed set_list(const tool_usage *usage, const tool_option *option, const char *value)
{
    /* Both list types start with their length: what was the default is replaced, not extended. */
    size_t *n = option->value;
    *n = 0;
    const char *at = value;
    for (;;) {
        char item[64];
        size_t length = strcspn(at, ",");
        if (length == 0)
            return wrong_value(usage, option, value, "an empty entry in a comma-separated list");
        if (length >= sizeof item || *n == TOOL_LIST_MAX)
            return too_long(usage, option, value);
        memcpy(item, at, length);
        item[length] = '\0';
        tool_parsed parsed = set_list_item(usage, option, item);
        if (parsed != TOOL_PARSED)
            return parsed;
        at += length;
        if (*at == '\0')
            return TOOL_PARSED;
        at++;
    }
}

static tool_parsed set_value(const tool_usage *usage, const tool_option *option, const char *value)
{
    uint64_t number;
    char *end;
    switch (option->type) {
    case TOOL_FLAG:
        *(bool *)option->value = true;
        return TOOL_PARSED;
    case TOOL_TEXT:
        *(const char **)option->value = value;
        return TOOL_PARSED;
    case TOOL_NUMBER:
        if (!tool_parse_number(value, &number))
            return wrong_value(usage, option, value, "not a number (8, 64K, 1M)");
        if (!within(option, number))
            return out_of_bounds(usage, option, value);
        *(uint64_t *)option->value = number;
        return TOOL_PARSED;
    case TOOL_SECONDS: {
        double seconds = strtod(value, &end);
        if (end == value || *end != '\0' || !(seconds > 0 && seconds <= 3600))
            return wrong_value(usage, option, value, "not a number of seconds above 0 and up to 3600");
        *(double *)option->value = seconds;
        return TOOL_PARSED;
    }
    case TOOL_NUMBERS:
    case TOOL_TIMES:
    case TOOL_NAMES:
        return set_list(usage, option, value);
    }
    return TOOL_PARSED_WRONG;
}

static tool_parsed unknown_option(const tool_usage *usage, const char *given, size_t length)
{
    char name[WORD_MAX];
    const char *known[64];
    size_t n = 0;
    snprintf(name, sizeof name, "%.*s", (int)length, given);
    for (size_t i = 0; i < usage->n_options && n < 63; i++)
        known[n++] = usage->options[i].name;
    known[n++] = "--help";
    const char *nearest = tool_nearest(name, known, n);
    if (name[0] == '-')
        fprintf(stderr, "%s: there is no option %s", usage->command, name);
    else
        fprintf(stderr, "%s: unexpected argument \"%s\"", usage->command, name);
    if (nearest && name[0] == '-')
        fprintf(stderr, "; did you mean %s?", nearest);
    fprintf(stderr, " (%s --help lists all)\n", usage->command);
    return TOOL_PARSED_WRONG;
}

static const tool_option *find_option(const tool_usage *usage, const char *name, size_t length)
{
    for (size_t i = 0; i < usage->n_options; i++) {
        if (strlen(usage->options[i].name) == length && strncmp(usage->options[i].name, name, length) == 0)
            return &usage->options[i];
    }
    return NULL;
}

static bool wants_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

tool_parsed tool_options_parse(const tool_usage *usage, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (wants_help(argv[i])) {
            tool_help(usage);
            return TOOL_PARSED_HELP;
        }
    }
    for (int i = 0; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        const char *value = argv[i][length] == '=' ? argv[i] + length + 1 : NULL;
        const tool_option *option = find_option(usage, argv[i], length);
        if (!option)
            return unknown_option(usage, argv[i], length);
        if (option->type == TOOL_FLAG && value)
            return wrong_value(usage, option, value, "this option takes no value");
        if (option->type != TOOL_FLAG && !value) {
            if (i + 1 == argc)
                return wrong_value(usage, option, "", "a value is missing");
            value = argv[++i];
        }
        tool_parsed parsed = set_value(usage, option, value);
        if (parsed != TOOL_PARSED)
            return parsed;
    }
    return TOOL_PARSED;
}
