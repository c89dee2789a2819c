/* test_base_error.c - a failing call leaves one sentence for its own thread, whole, whatever the arguments were. */
#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void a_failure_returns_its_code_and_keeps_its_sentence(void **state)
{
    (void)state;
    assert_int_equal(uf_fail(UF_ERANGE, "PE %d does not exist: the world has %d", 7, 4), UF_ERANGE);
    assert_string_equal(uf_error_message(), "PE 7 does not exist: the world has 4");
}

static void a_later_failure_replaces_the_sentence(void **state)
{
    (void)state;
    uf_fail(UF_EINVAL, "first, and a longer one");
    uf_fail(UF_EINVAL, "second");
    assert_string_equal(uf_error_message(), "second");
}

static void the_old_sentence_may_be_part_of_the_new_one(void **state)
{
    (void)state;
    uf_fail(UF_EFABRIC, "no such device");
    uf_fail(UF_EUNSUPPORTED, "ofi cannot start (%s)", uf_error_message());
    assert_string_equal(uf_error_message(), "ofi cannot start (no such device)");
    assert_int_equal(uf_error_set(UF_EPEER, uf_error_message()), UF_EPEER);
    assert_string_equal(uf_error_message(), "ofi cannot start (no such device)");
}

static void a_system_error_names_its_reason(void **state)
{
    (void)state;
    assert_int_equal(uf_fail_errno(UF_ESYSTEM, ENOSPC, "cannot reserve %d bytes", 12), UF_ESYSTEM);
    assert_string_equal(uf_error_message(), "cannot reserve 12 bytes: No space left on device");
}

static void a_sentence_too_long_is_cut_with_dots(void **state)
{
    char text[3 * UF_ERROR_BYTES];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    uf_fail(UF_EINVAL, "%s", text);
    assert_int_equal(strlen(uf_error_message()), UF_ERROR_BYTES - 1);
    assert_string_equal(uf_error_message() + UF_ERROR_BYTES - 5, "x...");
    uf_error_set(UF_EINVAL, text);
    assert_int_equal(strlen(uf_error_message()), UF_ERROR_BYTES - 1);
    assert_string_equal(uf_error_message() + UF_ERROR_BYTES - 5, "x...");

    text[UF_ERROR_BYTES - 1] = '\0'; /* just fits */
    uf_fail(UF_EINVAL, "%s", text);
    assert_string_equal(uf_error_message(), text);
}

static void a_cut_never_splits_a_character(void **state)
{
    char text[2 * UF_ERROR_BYTES] = "";

    (void)state;
    for (int shift = 0; shift < 3; shift++) {
        memset(text, 'x', (size_t)shift);
        text[shift] = '\0';
        while (strlen(text) < UF_ERROR_BYTES + 10)
            strcat(text, "\u20ac"); /* three bytes each */
        uf_fail(UF_EINVAL, "%s", text);
        size_t kept = strlen(uf_error_message()) - 3;
        assert_string_equal(uf_error_message() + kept, "...");
        assert_int_equal((kept - (size_t)shift) % 3, 0);
    }
}

static void *fail_elsewhere(void *arg)
{
    *(int *)arg = *uf_error_message(); /* a new thread has had no error */
    uf_fail(UF_EINVAL, "of the other thread");
    return NULL;
}

static void threads_do_not_see_each_others_sentences(void **state)
{
    pthread_t thread;
    int first = -1;

    (void)state;
    uf_fail(UF_EINVAL, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &first), 0);
    pthread_join(thread, NULL);
    assert_int_equal(first, 0);
    assert_string_equal(uf_error_message(), "of this thread");
}

static void every_code_has_its_name(void **state)
{
    (void)state;
    assert_string_equal(uf_error_name(UF_OK), "UF_OK");
    for (int code = UF_EMISMATCH; code <= UF_OK; code++) {
        assert_true(strncmp(uf_error_name(code), code ? "UF_E" : "UF_OK", 4) == 0);
        assert_string_not_equal(uf_error_name(code), "UF_E?");
        for (int other = UF_EMISMATCH; other < code; other++)
            assert_string_not_equal(uf_error_name(code), uf_error_name(other));
    }
    assert_string_equal(uf_error_name(UF_EMISMATCH - 1), "UF_E?");
    assert_string_equal(uf_error_name(1), "UF_E?");
}

static void the_version_is_the_headers(void **state)
{
    char text[32];

    (void)state;
    snprintf(text, sizeof(text), "%d.%d.%d", UF_VERSION_MAJOR, UF_VERSION_MINOR, UF_VERSION_PATCH);
    assert_string_equal(uf_version(), text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_returns_its_code_and_keeps_its_sentence),
        cmocka_unit_test(a_later_failure_replaces_the_sentence),
        cmocka_unit_test(the_old_sentence_may_be_part_of_the_new_one),
        cmocka_unit_test(a_system_error_names_its_reason),
        cmocka_unit_test(a_sentence_too_long_is_cut_with_dots),
        cmocka_unit_test(a_cut_never_splits_a_character),
        cmocka_unit_test(threads_do_not_see_each_others_sentences),
        cmocka_unit_test(every_code_has_its_name),
        cmocka_unit_test(the_version_is_the_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
