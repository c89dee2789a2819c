/* settings.c - reads the environment into a snapshot of values, by the table in settings.def.
 *
 * One pass over the environment; each known name is parsed by its type into a number or a word, and is
 * refused with a sentence that names the variable, the value and what is accepted. Parsing is exact: no
 * strtol (it accepts blanks and stops where it likes), no rounding, no silent clamp. What the user may write
 * is decided here alone. The set of names already warned about is the one piece of state, so that a program
 * with a hundred worlds warns once. */
#include "base/settings.h"

#include "base/error.h"
#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PREFIX        "UNFENCE_"
#define PREFIX_LENGTH (sizeof(PREFIX) - 1)

static const uf_setting_info table[UF_SETTING_COUNT] = {
#define UF_SETTING(name, type, def, min, max, accepts, doc) {PREFIX #name, type, def, min, max, accepts, doc},
#include "settings.def"
#undef UF_SETTING
};

const uf_setting_info *uf_setting_describe(uf_setting_id id)
{
    return &table[id];
}

/* ---- numbers */

/* The digits at *text as a number not above `limit`; advances *text past them. False if there are none or it
 * is too large. */
static bool take_digits(const char **text, uint64_t limit, uint64_t *value)
{
    const char *at = *text;
    uint64_t sum = 0;

    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (sum > (limit - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *text = at;
    *value = sum;
    return true;
}

/* The digits behind a decimal point as billionths; more than nine digits are refused, not rounded. */
static bool take_billionths(const char **text, uint64_t *value)
{
    const char *start = *text;

    if (!take_digits(text, 999999999, value) || *text - start > 9)
        return false;
    for (ptrdiff_t digits = *text - start; digits < 9; digits++)
        *value *= 10;
    return true;
}

static bool parse_bool(const char *text, int64_t *out)
{
    static const char *const words[2][4] = {{"0", "no", "off", "false"}, {"1", "yes", "on", "true"}};

    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 4; i++)
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value;
                return true;
            }
    return false;
}

static bool parse_int(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    uint64_t value;

    if (negative)
        text++;
    if (!take_digits(&text, INT64_MAX, &value) || *text)
        return false;
    *out = negative ? -(int64_t)value : (int64_t)value;
    return true;
}

static bool parse_bytes(const char *text, int64_t *out)
{
    static const char units[] = "KMGT";
    uint64_t value;
    unsigned shift = 0;

    if (!take_digits(&text, INT64_MAX, &value))
        return false;
    if (*text) {
        for (unsigned i = 0; units[i] && !shift; i++)
            if ((*text & ~0x20) == units[i])
                shift = 10 * (i + 1);
        if (!shift || text[1])
            return false;
    }
    if (value > (uint64_t)INT64_MAX >> shift)
        return false;
    *out = (int64_t)(value << shift);
    return true;
}

static bool parse_duration(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"", 1000000000}, {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {"m", 60000000000}};
    uint64_t whole, billionths = 0;

    if (!take_digits(&text, INT64_MAX, &whole))
        return false;
    if (*text == '.') {
        text++;
        if (!take_billionths(&text, &billionths))
            return false;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(text, units[i].name) != 0)
            continue;
        unsigned __int128 scaled = (unsigned __int128)billionths * units[i].ns;
        unsigned __int128 total = (unsigned __int128)whole * units[i].ns + scaled / 1000000000;
        if (scaled % 1000000000 || total > INT64_MAX) /* finer than a nanosecond, or beyond 292 years */
            return false;
        *out = (int64_t)total;
        return true;
    }
    return false;
}

/* ---- words */

/* The word of "a|b|c" that equals `text` in any case, copied to `out` as the table spells it. */
static bool parse_word(const char *words, const char *text, char *out)
{
    size_t length = strlen(text);

    for (const char *word = words; *word;) {
        size_t n = strcspn(word, "|");
        if (n == length && strncasecmp(word, text, n) == 0) {
            memcpy(out, word, n);
            out[n] = '\0';
            return true;
        }
        word += n + (word[n] == '|');
    }
    return false;
}

/* ---- what is accepted, for people */

static void format_bytes(int64_t value, char *out, size_t bytes)
{
    static const char units[] = "\0KMGT";
    int unit = 0;

    while (unit < 4 && value && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    snprintf(out, bytes, "%lld%.1s", (long long)value, &units[unit]);
}

static void format_duration(int64_t value, char *out, size_t bytes)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    int unit = 0;

    while (unit < 3 && value && value % 1000 == 0) {
        value /= 1000;
        unit++;
    }
    snprintf(out, bytes, "%lld%s", (long long)value, units[unit]);
}

static void format_number(uf_setting_type type, int64_t value, char *out, size_t bytes)
{
    if (type == UF_SETTING_BYTES)
        format_bytes(value, out, bytes);
    else if (type == UF_SETTING_DURATION)
        format_duration(value, out, bytes);
    else
        snprintf(out, bytes, "%lld", (long long)value);
}

static const char *kind_of(const uf_setting_info *info)
{
    switch (info->type) {
    case UF_SETTING_BOOL:
        return "yes or no (also 1, 0, on, off, true, false)";
    case UF_SETTING_INT:
        return *info->accepts ? "a power of two" : "an integer";
    case UF_SETTING_BYTES:
        return "a size in bytes, with K, M, G or T for powers of 1024,";
    case UF_SETTING_DURATION:
        return "a duration with ns, us, ms, s or m (s if none is given)";
    case UF_SETTING_STRING:
        break;
    }
    return "text";
}

void uf_setting_accepts(uf_setting_id id, char *out, size_t bytes)
{
    const uf_setting_info *info = &table[id];
    char min[32], max[32];

    if (info->type == UF_SETTING_STRING) {
        if (*info->accepts)
            snprintf(out, bytes, "one of %s", info->accepts);
        else
            snprintf(out, bytes, "text of at most %d characters", UF_SETTING_TEXT - 1);
        return;
    }
    if (info->type == UF_SETTING_BOOL) {
        snprintf(out, bytes, "%s", kind_of(info));
        return;
    }
    format_number(info->type, info->min, min, sizeof(min));
    format_number(info->type, info->max, max, sizeof(max));
    if (info->max == INT64_MAX)
        snprintf(out, bytes, "%s of at least %s", kind_of(info), min);
    else
        snprintf(out, bytes, "%s from %s to %s", kind_of(info), min, max);
}

/* ---- one value */

static bool in_range(const uf_setting_info *info, int64_t value)
{
    bool power_of_two = value > 0 && (value & (value - 1)) == 0;

    if (info->type == UF_SETTING_INT && *info->accepts && !power_of_two)
        return false;
    return value >= info->min && value <= info->max;
}

/* Parses `text` (shorter than UF_SETTING_TEXT) into slot `id` of `out`. */
static bool parse_value(uf_setting_id id, const char *text, uf_settings *out)
{
    const uf_setting_info *info = &table[id];
    int64_t *number = &out->number[id];
    bool parsed = false;

    strcpy(out->text[id], text);
    switch (info->type) {
    case UF_SETTING_STRING:
        return !*info->accepts || parse_word(info->accepts, text, out->text[id]);
    case UF_SETTING_BOOL:
        return parse_bool(text, number);
    case UF_SETTING_INT:
        parsed = parse_int(text, number);
        break;
    case UF_SETTING_BYTES:
        parsed = parse_bytes(text, number);
        break;
    case UF_SETTING_DURATION:
        parsed = parse_duration(text, number);
        break;
    }
    return parsed && in_range(info, *number);
}

static int set_value(uf_setting_id id, const char *text, uf_settings *out)
{
    char accepted[160];

    if (strlen(text) < UF_SETTING_TEXT && parse_value(id, text, out))
        return UF_OK;
    uf_setting_accepts(id, accepted, sizeof(accepted));
    return uf_fail(UF_EINVAL, "%s=\"%.80s%s\" is not accepted; set it to %s, or unset it for the default (%s)", table[id].name,
                   text, strlen(text) > 80 ? "..." : "", accepted, *table[id].def ? table[id].def : "empty");
}

/* ---- the whole environment */

/* The value if `entry` is "NAME=value" with this name, else NULL. */
static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);

    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

static const char *find_value(const char *const *environment, const char *name)
{
    for (; *environment; environment++) {
        const char *value = value_of(*environment, name);
        if (value)
            return *value ? value : NULL;
    }
    return NULL;
}

int uf_settings_load_from(const char *const *environment, uf_settings *out)
{
    uf_settings loaded = {0};

    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const char *value = find_value(environment, table[id].name);
        int rc = set_value((uf_setting_id)id, value ? value : table[id].def, &loaded);
        if (rc)
            return rc;
        loaded.from_environment[id] = value != NULL;
    }
    *out = loaded;
    return UF_OK;
}

/* ---- unknown names */

#define NAME_MAX_LENGTH 63 /* longer names are like nothing in the table */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`, letter case aside.
 */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_LENGTH + 1], n = (int)strlen(b);
    int *before = rows[0], *last = rows[1], *row = rows[2];

    for (int j = 0; j <= n; j++)
        last[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            bool same = strncasecmp(&a[i - 1], &b[j - 1], 1) == 0;
            row[j] = least(least(last[j] + 1, row[j - 1] + 1), last[j - 1] + !same);
            if (i > 1 && j > 1 && strncasecmp(&a[i - 1], &b[j - 2], 1) == 0 && strncasecmp(&a[i - 2], &b[j - 1], 1) == 0)
                row[j] = least(row[j], before[j - 2] + 1);
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[n];
}

/* True if `words` (of A_B_C) stand side by side in `name`, whole, as HEAP_SIZE in SYMMETRIC_HEAP_SIZE. */
static bool has_words(const char *name, const char *words)
{
    size_t length = strlen(words);

    for (const char *at = name; *words && (at = strcasestr(at, words)) != NULL; at++)
        if ((at == name || at[-1] == '_') && (at[length] == '_' || !at[length]))
            return true;
    return false;
}

static const char *nearest_by_words(const char *name)
{
    const char *nearest = NULL;

    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const char *known = table[id].name + PREFIX_LENGTH;
        if (!has_words(name, known) && !has_words(known, name))
            continue;
        if (!nearest || strlen(known) > strlen(nearest) - PREFIX_LENGTH)
            nearest = table[id].name;
    }
    return nearest;
}

const char *uf_settings_nearest(const char *name)
{
    const char *nearest = NULL;
    int best;

    if (strncasecmp(name, PREFIX, PREFIX_LENGTH) == 0)
        name += PREFIX_LENGTH;
    if (strlen(name) > NAME_MAX_LENGTH)
        return NULL;
    /* A third of the letters may be wrong: beyond that a suggestion would mislead. */
    best = (int)strlen(name) / 3 + 1;
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        int distance = edit_distance(name, table[id].name + PREFIX_LENGTH);
        if (distance < best) {
            best = distance;
            nearest = table[id].name;
        }
    }
    return nearest ? nearest : nearest_by_words(name);
}

static bool is_known(const char *name)
{
    for (int id = 0; id < UF_SETTING_COUNT; id++)
        if (strcmp(name, table[id].name) == 0)
            return true;
    return false;
}

/* True the first time it is asked about `name` in this process. Who has had a warning for MOST names has been
 * told enough. */
static bool first_time(const char *name)
{
    enum { MOST = 32 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char seen[MOST][NAME_MAX_LENGTH + 1];
    static int n;
    bool is_new = true;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n && is_new; i++)
        is_new = strcmp(seen[i], name) != 0;
    if (is_new && n < MOST)
        strcpy(seen[n++], name);
    else
        is_new = false;
    pthread_mutex_unlock(&lock);
    return is_new;
}

static void warn_if_unknown(const char *entry)
{
    char name[NAME_MAX_LENGTH + 1];
    const char *nearest;

    if (strncasecmp(entry, PREFIX, PREFIX_LENGTH) != 0)
        return;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry, "="), entry);
    if (is_known(name) || !first_time(name))
        return;
    nearest = uf_settings_nearest(name);
    if (nearest)
        uf_log(UF_LOG_WARN, -1, "%s has no effect: there is no such variable. Did you mean %s?", name, nearest);
    else
        uf_log(UF_LOG_WARN, -1, "%s has no effect: there is no such variable. `unfence info` lists those there are", name);
}

int uf_settings_load(uf_settings *out)
{
    static const char *const nothing[] = {NULL};

    if (!environ) /* after clearenv() */
        return uf_settings_load_from(nothing, out);
    for (char **entry = environ; *entry; entry++)
        warn_if_unknown(*entry);
    return uf_settings_load_from((const char *const *)environ, out);
}
