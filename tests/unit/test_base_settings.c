/* test_base_settings.c - what the environment says is taken exactly, or refused with variable, value and what is accepted; a
 * misspelt name is warned about once. */
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uf_settings settings;

static int load_one(const char *entry)
{
    const char *environment[] = {entry, NULL};

    memset(&settings, 0xee, sizeof(settings));
    return uf_settings_load_from(environment, &settings);
}

static void an_empty_environment_gives_the_defaults(void **state)
{
    const char *environment[] = {NULL};

    (void)state;
    assert_int_equal(uf_settings_load_from(environment, &settings), UF_OK);
    assert_string_equal(settings.text[UF_SET_FABRIC], "auto");
    assert_int_equal(settings.number[UF_SET_TIMEOUT], 60000000000);
    assert_int_equal(settings.number[UF_SET_HEAP_SIZE], 64 << 20);
    assert_int_equal(settings.number[UF_SET_PE], -1);
    for (int id = 0; id < UF_SETTING_COUNT; id++)
        assert_false(settings.from_environment[id]);
}

static void every_default_is_accepted_when_written_out(void **state)
{
    char entry[400];

    (void)state;
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const uf_setting_info *info = uf_setting_describe((uf_setting_id)id);
        snprintf(entry, sizeof(entry), "%s=%s", info->name, info->def);
        assert_int_equal(load_one(entry), UF_OK);
        assert_int_equal(settings.from_environment[id], *info->def != '\0');
        assert_string_equal(settings.text[id], info->def);
        assert_true(strlen(info->doc) > 10);
    }
}

static void a_variable_set_to_nothing_counts_as_not_set(void **state)
{
    (void)state;
    assert_int_equal(load_one("UNFENCE_TIMEOUT="), UF_OK);
    assert_int_equal(settings.number[UF_SET_TIMEOUT], 60000000000);
    assert_false(settings.from_environment[UF_SET_TIMEOUT]);
}

typedef struct accepted {
    const char *entry;
    uf_setting_id id;
    int64_t number;
} accepted;

static void numbers_are_read_in_their_units(void **state)
{
    static const accepted table[] = {
        {"UNFENCE_TIMEOUT=2", UF_SET_TIMEOUT, 2000000000},
        {"UNFENCE_TIMEOUT=1.5ms", UF_SET_TIMEOUT, 1500000},
        {"UNFENCE_TIMEOUT=2000000ns", UF_SET_TIMEOUT, 2000000},
        {"UNFENCE_TIMEOUT=2000US", UF_SET_TIMEOUT, 2000000},
        {"UNFENCE_TIMEOUT=0.25m", UF_SET_TIMEOUT, 15000000000},
        {"UNFENCE_TIMEOUT=1.000000001s", UF_SET_TIMEOUT, 1000000001},
        {"UNFENCE_TIMEOUT=9223372036.854775807", UF_SET_TIMEOUT, INT64_MAX},
        {"UNFENCE_HEAP_SIZE=1048576", UF_SET_HEAP_SIZE, 1048576},
        {"UNFENCE_HEAP_SIZE=1024k", UF_SET_HEAP_SIZE, 1048576},
        {"UNFENCE_HEAP_SIZE=3G", UF_SET_HEAP_SIZE, (int64_t)3 << 30},
        {"UNFENCE_HEAP_MAX=8191T", UF_SET_HEAP_MAX, (int64_t)8191 << 40},
        {"UNFENCE_WINDOW=2", UF_SET_WINDOW, 2},
        {"UNFENCE_WINDOW=32768", UF_SET_WINDOW, 32768},
        {"UNFENCE_SEED=9223372036854775807", UF_SET_SEED, INT64_MAX},
        {"UNFENCE_PE=0", UF_SET_PE, 0},
        {"UNFENCE_STRICT=Yes", UF_SET_STRICT, 1},
        {"UNFENCE_STRICT=1", UF_SET_STRICT, 1},
        {"UNFENCE_STRICT=ON", UF_SET_STRICT, 1},
        {"UNFENCE_STRICT=true", UF_SET_STRICT, 1},
        {"UNFENCE_STRICT=False", UF_SET_STRICT, 0},
        {"UNFENCE_STRICT=off", UF_SET_STRICT, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (load_one(table[i].entry) != UF_OK)
            fail_msg("%s: %s", table[i].entry, uf_error_message());
        assert_int_equal(settings.number[table[i].id], table[i].number);
        assert_true(settings.from_environment[table[i].id]);
        assert_string_equal(settings.text[table[i].id], strchr(table[i].entry, '=') + 1);
    }
}

static void words_are_taken_in_any_case_and_kept_as_the_table_spells_them(void **state)
{
    (void)state;
    assert_int_equal(load_one("UNFENCE_LOG=DeBuG"), UF_OK);
    assert_string_equal(settings.text[UF_SET_LOG], "debug");
    assert_int_equal(load_one("UNFENCE_PROGRESS=INLINE"), UF_OK);
    assert_string_equal(settings.text[UF_SET_PROGRESS], "inline");
    assert_int_equal(load_one("UNFENCE_FABRIC=ofi:TCP"), UF_OK); /* free text stays as it is */
    assert_string_equal(settings.text[UF_SET_FABRIC], "ofi:TCP");
}

/* The value, and what the sentence must say besides it. */
static void what_is_not_accepted_is_refused_with_what_is(void **state)
{
    static const char *const table[][2] = {
        {"UNFENCE_TIMEOUT=soon", "a duration"},
        {"UNFENCE_TIMEOUT=-1", "of at least 1ms"},
        {"UNFENCE_TIMEOUT=10us", "of at least 1ms"},
        {"UNFENCE_TIMEOUT=1h", "ns, us, ms, s or m"},
        {"UNFENCE_TIMEOUT=1.", "a duration"},
        {"UNFENCE_TIMEOUT=.5", "a duration"},
        {"UNFENCE_TIMEOUT= 5", "a duration"},
        {"UNFENCE_TIMEOUT=5 s", "a duration"},
        {"UNFENCE_TIMEOUT=1.0000000001s", "a duration"},
        {"UNFENCE_TIMEOUT=1000000.5ns", "a duration"},
        {"UNFENCE_TIMEOUT=9223372036.854775808", "a duration"},
        {"UNFENCE_TIMEOUT=99999999999999999999", "a duration"},
        {"UNFENCE_HEAP_SIZE=64MB", "K, M, G or T"},
        {"UNFENCE_HEAP_SIZE=1.5G", "a size in bytes"},
        {"UNFENCE_HEAP_SIZE=512K", "of at least 1M"},
        {"UNFENCE_HEAP_MAX=8388608T", "a size in bytes"},
        {"UNFENCE_WINDOW=3", "a power of two from 2 to 32768"},
        {"UNFENCE_WINDOW=65536", "a power of two from 2 to 32768"},
        {"UNFENCE_WINDOW=0", "a power of two from 2 to 32768"},
        {"UNFENCE_QUEUE_DEPTH=0x40", "an integer from 16 to 32768"},
        {"UNFENCE_QUEUE_DEPTH=+64", "an integer"},
        {"UNFENCE_PE=-2", "an integer from -1"},
        {"UNFENCE_PE=-", "an integer"},
        {"UNFENCE_SEED=9223372036854775808", "an integer of at least 0"},
        {"UNFENCE_STRICT=maybe", "yes or no"},
        {"UNFENCE_LOG=loud", "none|error|warn|info|debug"},
        {"UNFENCE_LOG=war", "none|error|warn|info|debug"},
        {"UNFENCE_LOG=warn|info", "none|error|warn|info|debug"},
        {"UNFENCE_PROGRESS=no", "thread|inline"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char variable[64], value[64];
        assert_int_equal(sscanf(table[i][0], "%63[^=]=%63[^\n]", variable, value), 2);
        if (load_one(table[i][0]) != UF_EINVAL)
            fail_msg("%s was accepted", table[i][0]);
        if (!strstr(uf_error_message(), variable) || !strstr(uf_error_message(), value) ||
            !strstr(uf_error_message(), table[i][1]))
            fail_msg("%s: the sentence was: %s", table[i][0], uf_error_message());
    }
}

static void a_refused_environment_leaves_the_output_alone(void **state)
{
    uf_settings before;

    (void)state;
    memset(&before, 0xee, sizeof(before));
    assert_int_equal(load_one("UNFENCE_WINDOW=3"), UF_EINVAL);
    assert_memory_equal(&settings, &before, sizeof(before));
}

static void text_of_any_length_is_kept_whole_or_refused(void **state)
{
    char entry[1000] = "UNFENCE_JOB=";
    size_t name = strlen(entry);

    (void)state;
    for (size_t length = 200; length < 400; length++) {
        memset(entry + name, 'j', length);
        entry[name + length] = '\0';
        if (length < UF_SETTING_TEXT) {
            assert_int_equal(load_one(entry), UF_OK);
            assert_string_equal(settings.text[UF_SET_JOB], entry + name);
        } else {
            assert_int_equal(load_one(entry), UF_EINVAL);
            assert_non_null(strstr(uf_error_message(), "at most 255 characters"));
        }
    }
}

static void only_whole_names_count(void **state)
{
    (void)state;
    assert_int_equal(load_one("UNFENCE_TIMEOUTS=soon"), UF_OK);
    assert_int_equal(load_one("UNFENCE_TIMEOUT"), UF_OK);
    assert_int_equal(load_one("XUNFENCE_TIMEOUT=soon"), UF_OK);
    assert_int_equal(load_one("unfence_timeout=soon"), UF_OK);
    assert_int_equal(settings.number[UF_SET_TIMEOUT], 60000000000);
}

static void the_nearest_name_is_the_one_that_was_meant(void **state)
{
    static const char *const table[][2] = {
        {"UNFENCE_TIMOUT", "UNFENCE_TIMEOUT"},
        {"UNFENCE_TIEMOUT", "UNFENCE_TIMEOUT"},
        {"UNFENCE_HEAPSIZE", "UNFENCE_HEAP_SIZE"},
        {"UNFENCE_SYMMETRIC_HEAP_SIZE", "UNFENCE_HEAP_SIZE"},
        {"UNFENCE_LOG_LEVEL", "UNFENCE_LOG"},
        {"UNFENCE_BOOTSTRAP", "UNFENCE_BOOTSTRAP_TIMEOUT"},
        {"UNFENCE_BLOGGER", NULL},
        {"UNFENCE_LOGS", "UNFENCE_LOG"},
        {"UNFENCE_FABRICS", "UNFENCE_FABRIC"},
        {"unfence_strict", "UNFENCE_STRICT"},
        {"BOOTSTRAP_TIME_OUT", "UNFENCE_BOOTSTRAP_TIMEOUT"},
        {"UNFENCE_BANANA", NULL},
        {"UNFENCE_", NULL},
        {"", NULL},
    };
    char longest[3000];

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *nearest = uf_settings_nearest(table[i][0]);
        if (table[i][1])
            assert_string_equal(nearest ? nearest : "(none)", table[i][1]);
        else if (nearest)
            fail_msg("%s suggests %s", table[i][0], nearest);
    }
    memset(longest, 'A', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_null(uf_settings_nearest(longest));
}

typedef struct heard {
    int lines;
    char text[4096];
} heard;

static void listen(void *arg, int level, const char *line)
{
    heard *ear = arg;

    assert_int_equal(level, UF_LOG_WARN);
    ear->lines++;
    strncat(ear->text, line, sizeof(ear->text) - strlen(ear->text) - 2);
    strcat(ear->text, "\n");
}

/* C26: a variable that does not exist was set for months without effect. */
static void a_name_that_does_not_exist_is_warned_about_once(void **state)
{
    heard ear = {0};

    (void)state;
    uf_set_logger(listen, &ear);
    setenv("UNFENCE_TIMOUT", "5", 1);
    setenv("UNFENCE_BANANA", "yellow", 1);
    setenv("UNFENCE_STRICT", "no", 1);
    for (int world = 0; world < 3; world++)
        assert_int_equal(uf_settings_load(&settings), UF_OK);
    uf_set_logger(NULL, NULL);
    unsetenv("UNFENCE_TIMOUT");
    unsetenv("UNFENCE_BANANA");
    unsetenv("UNFENCE_STRICT");
    assert_int_equal(ear.lines, 2);
    assert_non_null(strstr(ear.text, "UNFENCE_TIMOUT has no effect: there is no such variable. Did you mean UNFENCE_TIMEOUT?"));
    assert_non_null(strstr(ear.text, "UNFENCE_BANANA has no effect"));
    assert_null(strstr(ear.text, "UNFENCE_STRICT"));
}

static void a_process_without_an_environment_gets_the_defaults(void **state)
{
    char **saved = environ;

    (void)state;
    environ = NULL;
    int rc = uf_settings_load(&settings);
    environ = saved;
    assert_int_equal(rc, UF_OK);
    assert_string_equal(settings.text[UF_SET_LOG], "warn");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_environment_gives_the_defaults),
        cmocka_unit_test(every_default_is_accepted_when_written_out),
        cmocka_unit_test(a_variable_set_to_nothing_counts_as_not_set),
        cmocka_unit_test(numbers_are_read_in_their_units),
        cmocka_unit_test(words_are_taken_in_any_case_and_kept_as_the_table_spells_them),
        cmocka_unit_test(what_is_not_accepted_is_refused_with_what_is),
        cmocka_unit_test(a_refused_environment_leaves_the_output_alone),
        cmocka_unit_test(text_of_any_length_is_kept_whole_or_refused),
        cmocka_unit_test(only_whole_names_count),
        cmocka_unit_test(the_nearest_name_is_the_one_that_was_meant),
        cmocka_unit_test(a_name_that_does_not_exist_is_warned_about_once),
        cmocka_unit_test(a_process_without_an_environment_gets_the_defaults),
    };
    /* The program's own environment must not decide. */
    for (int id = 0; id < UF_SETTING_COUNT; id++)
        unsetenv(uf_setting_describe((uf_setting_id)id)->name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
