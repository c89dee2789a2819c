/* signal_writers.c - the engine's ways into signal words of GPU memory: chosen by trying, named, flushed where needed, one updater per word.
 *
 * Over the driver of the tests and a GDRCopy of the tests (fake_gdrapi.c), which lie in one library. What a way has stored is read by a copy of the
 * driver's, so a store that went elsewhere is seen. */
#include "cuda/writer.h"
#include "support/fake_cuda.h"
#include "unfence/unfence.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uf_settings settings;
static uf_cuda_device *device;
static uint64_t *words; /* 128 KiB of GPU memory */
static __typeof__(&fake_cuda_calls) calls;
static __typeof__(&fake_cuda_live) live;

enum { BYTES = 2 << 20 };

static void find(const char *name, void *slot)
{
    void *library = dlopen(FAKE_CUDA, RTLD_NOW), *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol)
        fail_msg("the driver of the tests has no %s", name);
    memcpy(slot, &symbol, sizeof symbol);
}

static int set_up(void **state)
{
    const char *why;
    void *taken = NULL;
    (void)state;
    find("fake_cuda_calls", &calls);
    find("fake_cuda_live", &live);
    setenv("UNFENCE_CUDA_LIBRARY", FAKE_CUDA, 1);
    assert_int_equal(uf_settings_load(&settings), UF_OK);
    assert_true(uf_cuda_available(&settings, &why));
    assert_int_equal(uf_cuda_open(0, &device), UF_OK);
    assert_int_equal(uf_cuda_alloc(device, BYTES, &taken), UF_OK);
    words = taken;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    uf_cuda_free(device, words);
    uf_cuda_close(device);
    return live() != 0;
}

/* A writer with these settings; NULL: UNFENCE_CUDA_SIGNALS and the library as they are by default. */
static int open_writer(const char *way, const char *library, uf_cuda_writer **writer)
{
    snprintf(settings.text[UF_SET_CUDA_SIGNALS], UF_SETTING_TEXT, "%s", way ? way : "auto");
    snprintf(settings.text[UF_SET_GDRCOPY_LIBRARY], UF_SETTING_TEXT, "%s", library ? library : "libthere-is-none.so");
    return uf_cuda_writer_open(device, &settings, words, writer);
}

static uint64_t read_word(const uint64_t *word)
{
    uint64_t value = 0;
    assert_int_equal(uf_cuda_copy(device, &value, word, sizeof value, NULL, 0), UF_OK);
    return value;
}

static void zero(uint64_t *word)
{
    const uint64_t none = 0;
    assert_int_equal(uf_cuda_copy(device, word, &none, sizeof none, NULL, 0), UF_OK);
}

/* ---------------------------------------------------------------- promises */

static const struct {
    const char *way, *library;
    uf_cuda_way is;
} both[] = {{"stream", NULL, UF_CUDA_BY_STREAM}, {"gdrcopy", FAKE_CUDA, UF_CUDA_BY_GDRCOPY}};

static void every_way_sets_and_adds_and_tells_what_was_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        uf_cuda_writer *w;
        uint64_t old = 99;
        assert_int_equal(open_writer(both[i].way, both[i].library, &w), UF_OK);
        assert_int_equal(uf_cuda_writer_way(w), both[i].is);
        assert_string_equal(uf_cuda_writer_text(w), both[i].way);
        for (size_t at = 0; at < BYTES / 8; at += 4099) { /* on many pages */
            zero(&words[at]);
            assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, &words[at], UF_SIGNAL_SET, at + 7, UF_CUDA_PAYLOAD_DONE, NULL),
                             UF_OK);
            assert_int_equal(read_word(&words[at]), at + 7);
            assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, &words[at], UF_SIGNAL_ADD, 5, UF_CUDA_PAYLOAD_DONE, &old),
                             UF_OK);
            assert_int_equal(old, at + 7);
            assert_int_equal(read_word(&words[at]), at + 12);
        }
        uf_cuda_writer_close(w); /* the GDRCopy of the tests aborts if a page were still mapped */
    }
}

static void words_in_host_memory_are_the_cpus(void **state)
{
    uf_cuda_writer *w;
    uint64_t word = 3, old;
    (void)state;
    assert_int_equal(open_writer("stream", NULL, &w), UF_OK);
    calls(NULL);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_HOST, &word, UF_SIGNAL_ADD, 4, UF_CUDA_PAYLOAD_DONE, &old), UF_OK);
    assert_int_equal(word, 7);
    assert_int_equal(old, 3);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_HOST, &word, UF_SIGNAL_SET, 1, UF_CUDA_PAYLOAD_DONE, &old), UF_OK);
    assert_int_equal(word, 1);
    assert_int_equal(calls(NULL), 0);
    uf_cuda_writer_close(w);
}

static void the_first_way_that_works_is_taken_and_the_others_are_named(void **state)
{
    static const struct {
        const char *fail, *library, *expected, *reason;
    } cases[] = {{NULL, FAKE_CUDA, "gdrcopy", "counter: "},        {NULL, NULL, "stream", "gdrcopy: GDRCopy is not here"},
                 {NULL, "libc.so.6", "stream", "has no gdr_open"}, {"open", FAKE_CUDA, "stream", "gdrdrv"},
                 {"pin", FAKE_CUDA, "stream", "cannot pin"},       {"map", FAKE_CUDA, "stream", "cannot map"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uf_cuda_writer *w;
        setenv("FAKE_GDR_FAIL", cases[i].fail ? cases[i].fail : "", 1);
        assert_int_equal(open_writer(NULL, cases[i].library, &w), UF_OK);
        assert_string_equal(uf_cuda_way_name(uf_cuda_writer_way(w)), cases[i].expected);
        if (!strstr(uf_cuda_writer_text(w), cases[i].reason))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, uf_cuda_writer_text(w), cases[i].reason);
        uf_cuda_writer_close(w);
    }
    unsetenv("FAKE_GDR_FAIL");
}

static void a_way_that_is_asked_for_and_not_there_is_refused(void **state)
{
    static const char *const cases[] = {"counter", "gdrcopy", "host"};
    uf_cuda_writer *w;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_writer(cases[i], NULL, &w), UF_EUNSUPPORTED);
        assert_non_null(strstr(uf_error_message(), cases[i]));
    }
}

static void each_way_states_the_flush_it_needs(void **state)
{
    (void)state;
    for (int way = 0; way < UF_CUDA_WAYS; way++)
        assert_true(strlen(uf_cuda_way_flush((uf_cuda_way)way)) > 3);
}

static void what_nics_have_written_is_flushed_before_the_word(void **state)
{
    static const struct {
        const char *order, *flush;
        int rc, flushes;
    } cases[] = {{"0", "1", UF_OK, 1}, {"100", "1", UF_OK, 0}, {"200", "0", UF_OK, 0}, {"0", "0", UF_EUNSUPPORTED, 0}};
    (void)state;
    for (size_t way = 0; way < sizeof both / sizeof *both; way++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            uf_cuda_writer *w;
            setenv("FAKE_CUDA_NIC_ORDER", cases[i].order, 1);
            setenv("FAKE_CUDA_NIC_FLUSH", cases[i].flush, 1);
            assert_int_equal(open_writer(both[way].way, both[way].library, &w), UF_OK);
            zero(words);
            calls("cuFlushGPUDirectRDMAWrites");
            assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, words, UF_SIGNAL_SET, 9, UF_CUDA_PAYLOAD_BY_NIC, NULL),
                             cases[i].rc);
            assert_int_equal(calls("cuFlushGPUDirectRDMAWrites"), cases[i].flushes);
            assert_int_equal(read_word(words), cases[i].rc ? 0 : 9);
            assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, words, UF_SIGNAL_SET, 8, UF_CUDA_PAYLOAD_DONE, NULL), UF_OK);
            assert_int_equal(calls("cuFlushGPUDirectRDMAWrites"), 0);
            uf_cuda_writer_close(w);
        }
    unsetenv("FAKE_CUDA_NIC_ORDER");
    unsetenv("FAKE_CUDA_NIC_FLUSH");
}

static void a_word_has_one_kind_of_updater(void **state)
{
    uf_cuda_writer *w;
    (void)state;
    assert_int_equal(open_writer("stream", NULL, &w), UF_OK);
    /* Who comes first. */
    assert_int_equal(uf_cuda_word_claim(w, &words[1], UF_CUDA_BY_PEERS), UF_OK);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, &words[1], UF_SIGNAL_SET, 1, UF_CUDA_PAYLOAD_DONE, NULL), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "near peers"));
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, &words[2], UF_SIGNAL_SET, 1, UF_CUDA_PAYLOAD_DONE, NULL), UF_OK);
    assert_int_equal(uf_cuda_word_claim(w, &words[2], UF_CUDA_BY_PEERS), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "engine"));
    /* Fixed at creation; mixed is the engine's. */
    assert_int_equal(uf_cuda_words_create(w, &words[8], 4, UF_CUDA_MIXED), UF_OK);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, &words[11], UF_SIGNAL_ADD, 1, UF_CUDA_PAYLOAD_DONE, NULL), UF_OK);
    assert_int_equal(uf_cuda_word_claim(w, &words[11], UF_CUDA_BY_PEERS), UF_EINVAL);
    assert_int_equal(uf_cuda_words_create(w, &words[10], 4, UF_CUDA_BY_PEERS), UF_EINVAL);
    /* Memory that is used again has no past. */
    uf_cuda_words_forget(w, &words[1], 16);
    assert_int_equal(uf_cuda_word_claim(w, &words[1], UF_CUDA_BY_ENGINE), UF_OK);
    assert_int_equal(uf_cuda_word_claim(w, &words[2], UF_CUDA_BY_PEERS), UF_OK);
    assert_int_equal(uf_cuda_word_claim(w, &words[11], UF_CUDA_BY_PEERS), UF_EINVAL);
    uf_cuda_writer_close(w);
}

static void what_is_no_word_or_operation_is_refused(void **state)
{
    uf_cuda_writer *w;
    (void)state;
    assert_int_equal(open_writer("stream", NULL, &w), UF_OK);
    uint64_t *crooked = (uint64_t *)(void *)((unsigned char *)words + 4);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, crooked, UF_SIGNAL_SET, 1, UF_CUDA_PAYLOAD_DONE, NULL), UF_EINVAL);
    assert_int_equal(uf_cuda_apply(w, UF_CUDA_WORD_ON_GPU, words, 77, 1, UF_CUDA_PAYLOAD_DONE, NULL), UF_EINVAL);
    uf_cuda_writer_close(w);
}

static void what_is_foreseen_is_what_is_taken(void **state)
{
    char text[400];
    (void)state;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        uf_cuda_writer *w;
        assert_int_equal(open_writer(NULL, both[i].library, &w), UF_OK);
        uf_cuda_writer_foresee(&settings, uf_cuda_facts_of(device), text, sizeof text);
        assert_string_equal(text, uf_cuda_writer_text(w));
        uf_cuda_writer_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_sets_and_adds_and_tells_what_was_there),
        cmocka_unit_test(words_in_host_memory_are_the_cpus),
        cmocka_unit_test(the_first_way_that_works_is_taken_and_the_others_are_named),
        cmocka_unit_test(a_way_that_is_asked_for_and_not_there_is_refused),
        cmocka_unit_test(each_way_states_the_flush_it_needs),
        cmocka_unit_test(what_nics_have_written_is_flushed_before_the_word),
        cmocka_unit_test(a_word_has_one_kind_of_updater),
        cmocka_unit_test(what_is_no_word_or_operation_is_refused),
        cmocka_unit_test(what_is_foreseen_is_what_is_taken),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
