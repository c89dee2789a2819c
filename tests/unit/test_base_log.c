/* test_base_log.c - log lines are whole, single, gated by the level, and go where the caller wants them. */
#include "base/log.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct heard {
    int lines, level;
    char last[2 * UF_LOG_BYTES];
} heard;

static void listen(void *arg, int level, const char *line)
{
    heard *ear = arg;

    ear->lines++;
    ear->level = level;
    snprintf(ear->last, sizeof(ear->last), "%s", line);
}

static int restore(void **state)
{
    (void)state;
    uf_set_logger(NULL, NULL);
    uf_set_log_level(UF_LOG_WARN);
    return 0;
}

/* The first test of the program: the level is read at the first look. */
static void the_level_comes_from_the_environment(void **state)
{
    (void)state;
    assert_false(uf_log_enabled(UF_LOG_NONE));
    assert_true(uf_log_enabled(UF_LOG_INFO));
    assert_false(uf_log_enabled(UF_LOG_DEBUG));
}

static void lines_beyond_the_level_are_not_written(void **state)
{
    heard ear = {0};

    (void)state;
    uf_set_logger(listen, &ear);
    uf_set_log_level(UF_LOG_WARN);
    uf_log(UF_LOG_INFO, 0, "not wanted");
    uf_log(UF_LOG_DEBUG, 0, "not wanted");
    assert_int_equal(ear.lines, 0);
    uf_log(UF_LOG_WARN, 0, "wanted");
    uf_log(UF_LOG_ERROR, 0, "wanted");
    assert_int_equal(ear.lines, 2);
    uf_set_log_level(UF_LOG_NONE);
    uf_log(UF_LOG_ERROR, 0, "not wanted");
    assert_int_equal(ear.lines, 2);
}

static void a_level_out_of_range_is_the_nearest(void **state)
{
    (void)state;
    uf_set_log_level(99);
    assert_true(uf_log_enabled(UF_LOG_DEBUG));
    uf_set_log_level(-99);
    assert_false(uf_log_enabled(UF_LOG_ERROR));
}

static void a_line_names_the_pe_and_the_level(void **state)
{
    heard ear = {0};

    (void)state;
    uf_set_logger(listen, &ear);
    uf_log(UF_LOG_WARN, 2, "fell back to %s", "tcp");
    assert_string_equal(ear.last, "unfence: PE 2: warn: fell back to tcp");
    assert_int_equal(ear.level, UF_LOG_WARN);
    uf_log(UF_LOG_WARN, 2, "PE 2: fell back to tcp"); /* once */
    assert_string_equal(ear.last, "unfence: PE 2: warn: fell back to tcp");
    uf_log(UF_LOG_WARN, 2, "PE 21: fell back to tcp"); /* another's words */
    assert_string_equal(ear.last, "unfence: PE 2: warn: PE 21: fell back to tcp");
    uf_log(UF_LOG_ERROR, -1, "no PE yet");
    assert_string_equal(ear.last, "unfence: error: no PE yet");
}

static void a_line_stays_one_line_whatever_it_quotes(void **state)
{
    heard ear = {0};

    (void)state;
    uf_set_logger(listen, &ear);
    uf_log(UF_LOG_WARN, -1, "peer said \"%s\"", "a\nunfence: error: b\033[2J\r");
    assert_string_equal(ear.last, "unfence: warn: peer said \"a unfence: error: b [2J \"");
}

static void a_long_line_is_cut(void **state)
{
    char text[3 * UF_LOG_BYTES];
    heard ear = {0};

    (void)state;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    uf_set_logger(listen, &ear);
    uf_log(UF_LOG_WARN, -1, "%s", text);
    assert_int_equal(strlen(ear.last), UF_LOG_BYTES - 1);
}

static void without_a_sink_lines_go_to_standard_error(void **state)
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    char text[256] = "";

    (void)state;
    assert_non_null(file);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    uf_log(UF_LOG_WARN, 1, "one");
    uf_log(UF_LOG_WARN, 1, "two");
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_string_equal(text, "unfence: PE 1: warn: one\nunfence: PE 1: warn: two\n");
}

static void *log_much(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++)
        uf_log(UF_LOG_WARN, i, "line");
    return NULL;
}

static void a_replaced_sink_is_not_called_any_more(void **state)
{
    heard ears[8] = {0};
    pthread_t thread;

    (void)state;
    uf_set_logger(listen, &ears[0]);
    assert_int_equal(pthread_create(&thread, NULL, log_much, NULL), 0);
    for (int i = 1; i < 8; i++) {
        uf_set_logger(listen, &ears[i]);
        int lines = ears[i - 1].lines; /* a race, which the thread sanitizer would see, if a call could still be on its way */
        assert_true(lines >= 0 && lines <= 1000);
    }
    pthread_join(thread, NULL);
    int sum = 0;
    for (int i = 0; i < 8; i++)
        sum += ears[i].lines;
    assert_int_equal(sum, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_level_comes_from_the_environment, restore),
        cmocka_unit_test_teardown(lines_beyond_the_level_are_not_written, restore),
        cmocka_unit_test_teardown(a_level_out_of_range_is_the_nearest, restore),
        cmocka_unit_test_teardown(a_line_names_the_pe_and_the_level, restore),
        cmocka_unit_test_teardown(a_line_stays_one_line_whatever_it_quotes, restore),
        cmocka_unit_test_teardown(a_long_line_is_cut, restore),
        cmocka_unit_test_teardown(without_a_sink_lines_go_to_standard_error, restore),
        cmocka_unit_test_teardown(a_replaced_sink_is_not_called_any_more, restore),
    };
    setenv("UNFENCE_LOG", "INFO", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
