/* settings.h - every environment variable of Unfence, in one table (settings.def).
 *
 * The table is read from the environment by uf_settings_load, which warns (through the log, once a process
 * and name) about UNFENCE_* names that are not in it, naming the nearest known one, and refuses values that
 * do not parse with the variable, the value and what is accepted. A variable set to nothing counts as not
 * set. Options given in code override the environment (the caller does that). docs/settings.md is generated
 * from the same table. */
#ifndef UF_BASE_SETTINGS_H
#define UF_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum uf_setting_type {
    UF_SETTING_STRING,   /* free text, or one of the table's words (any case; stored as the table spells it) */
    UF_SETTING_BOOL,     /* 0/1, no/yes, off/on, false/true; any case */
    UF_SETTING_INT,      /* decimal */
    UF_SETTING_BYTES,    /* integer with optional K, M, G, T (1024-based), any case */
    UF_SETTING_DURATION, /* integer or decimal with ns, us, ms, s (default s), m; stored in nanoseconds */
} uf_setting_type;

/* One identifier per variable: UF_SET_<NAME> for UNFENCE_<NAME>. */
typedef enum uf_setting_id {
#define UF_SETTING(name, type, def, min, max, accepts, doc) UF_SET_##name,
#include "settings.def"
#undef UF_SETTING
    UF_SETTING_COUNT
} uf_setting_id;

typedef struct uf_setting_info {
    const char *name; /* with the UNFENCE_ prefix */
    uf_setting_type type;
    const char *def; /* as a user would write it */
    int64_t min, max;
    const char *accepts; /* "": what type, min and max say. STRING: "a|b|c" are the words. INT: "power of two" */
    const char *doc;
} uf_setting_info;

/* Longest text of a value, including the terminating zero. */
#define UF_SETTING_TEXT 256

/* A loaded set of values: a snapshot, so that two worlds of one process may differ. */
typedef struct uf_settings {
    int64_t number[UF_SETTING_COUNT];             /* BOOL, INT, BYTES, DURATION; 0 for STRING */
    char text[UF_SETTING_COUNT][UF_SETTING_TEXT]; /* STRING: the value. Others: the value as it was written */
    bool from_environment[UF_SETTING_COUNT];
} uf_settings;

/* Never NULL for ids below UF_SETTING_COUNT. */
const uf_setting_info *uf_setting_describe(uf_setting_id id);
/* What the variable accepts, as words for a sentence: "an integer from 2 to 4096". */
void uf_setting_accepts(uf_setting_id id, char *out, size_t bytes);
/* 0, or UF_EINVAL with the variable, the value and what is accepted. Reads environ; any thread, but not while
 * another thread calls setenv. */
int uf_settings_load(uf_settings *out);
/* The same from an explicit NULL-terminated "NAME=value" array, without warnings: pure. */
int uf_settings_load_from(const char *const *environment, uf_settings *out);
/* The known name nearest to `name` (with or without UNFENCE_) by edit distance, or NULL if none is near
 * enough to suggest. */
const char *uf_settings_nearest(const char *name);

#endif
