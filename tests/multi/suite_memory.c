/* suite_memory.c - symmetric memory: the same offsets everywhere, aligned, zero, reused, growing; windows; mapped peers. */
#include "multi/core_suite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}

static bool all_zero(const unsigned char *p, size_t bytes)
{
    return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

static void blocks_are_aligned_and_zero(suite *s)
{
    const size_t sizes[] = {1, 8, 63, 64, 65, 1000, 4097, 100000}, aligns[] = {0, 8, 64, 128, 4096, 65536};
    void *p[8][6];
    for (size_t i = 0; i < 8; i++) {
        for (size_t a = 0; a < 6; a++) {
            if (!CHECK_OK(s, uf_malloc(s->world, sizes[i], aligns[a], &p[i][a])))
                return;
            CHECK(s, aligned(p[i][a], aligns[a] > 64 ? aligns[a] : 64));
            CHECK(s, all_zero(p[i][a], sizes[i]));
            memset(p[i][a], 0xab, sizes[i]);
        }
    }
    for (size_t i = 0; i < 8; i++) { /* and none overlaps another: each still holds what was written */
        for (size_t a = 0; a < 6; a++) {
            CHECK(s, ((unsigned char *)p[i][a])[0] == 0xab && ((unsigned char *)p[i][a])[sizes[i] - 1] == 0xab);
            CHECK_OK(s, uf_free(s->world, p[i][a]));
        }
    }
    void *none = s;
    CHECK_OK(s, uf_malloc(s->world, 0, 0, &none));
    CHECK(s, none == NULL);
    CHECK_OK(s, uf_free(s->world, NULL));
}

static void large_blocks_are_aligned_to_2_mib(suite *s)
{
    void *p = NULL;
    if (CHECK_OK(s, uf_malloc(s->world, (size_t)3 << 20, 0, &p))) {
        CHECK(s, aligned(p, (size_t)2 << 20));
        CHECK_OK(s, uf_free(s->world, p));
    }
}

static void memory_is_reused_and_neighbours_survive(suite *s)
{
    enum { BLOCKS = 24 };
    unsigned char *block[BLOCKS] = {0};
    size_t bytes[BLOCKS] = {0};
    size_t rounds = suite_scale(s, 200, 40);
    uint64_t state = suite_random_start(s, 0, 9); /* the same on all PEs: the calls are collective */
    for (size_t i = 0; i < rounds && !s->failed; i++) {
        size_t b = suite_random_next(&state, BLOCKS);
        if (block[b]) {
            VERIFY(s, block[b], bytes[b], b);
            CHECK_OK(s, uf_free(s->world, block[b]));
            block[b] = NULL;
        } else {
            void *p = NULL;
            bytes[b] = 1 + suite_random_next(&state, suite_scale(s, 500000, 9000));
            if (CHECK_OK(s, uf_malloc(s->world, bytes[b], 0, &p))) {
                block[b] = p;
                CHECK_OK(s, uf_sync(s->all));
                suite_fill(s->out, bytes[b], b);
                CHECK_OK(s, uf_put(s->ctx, block[b], s->out, bytes[b], s->right));
                suite_settle(s);
            }
        }
    }
    for (size_t b = 0; b < BLOCKS; b++) {
        if (block[b])
            VERIFY(s, block[b], bytes[b], b);
        CHECK_OK(s, uf_free(s->world, block[b]));
    }
}

static void heap_grows_beyond_its_first_segment(suite *s)
{
    void *p[3] = {0};
    size_t bytes = suite_scale(s, (size_t)30 << 20, (size_t)1500 << 10);
    for (size_t i = 0; i < 3; i++) {
        if (!CHECK_OK(s, uf_malloc(s->world, bytes, 0, &p[i])))
            return;
        suite_fill(s->out, 1000, i * 100 + (uint64_t)s->pe);
        CHECK_OK(s, uf_put_signal(s->ctx, (unsigned char *)p[i] + bytes - 1000, s->out, 1000, s->signals, UF_SIGNAL_ADD, 1,
                                  s->right, UF_STRONG));
        if (AWAIT(s, s->signals, i + 1))
            VERIFY(s, (unsigned char *)p[i] + bytes - 1000, 1000, i * 100 + (uint64_t)s->left);
        uint64_t *word = p[i];
        CHECK_OK(s, uf_signal(s->ctx, word, UF_SIGNAL_ADD, 6, s->right, UF_WEAK)); /* words of grown memory signal as well */
        AWAIT(s, word, 6);
        suite_settle(s);
    }
    for (size_t i = 0; i < 3; i++) {
        CHECK_OK(s, uf_free(s->world, p[i]));
    }
}

static void different_sizes_are_refused_on_every_pe(suite *s)
{
    void *p = s;
    CHECK_CODE(s, uf_malloc(s->world, s->pe == 0 ? 6400 : 12800, 0, &p), UF_EMISMATCH, "6400");
    CHECK_CODE(s, uf_malloc(s->world, s->pe == 0 ? 6400 : 12800, 0, &p), UF_EMISMATCH, "12800");
    CHECK(s, p == s);                              /* outputs are written only on success */
    CHECK_OK(s, uf_malloc(s->world, 6400, 0, &p)); /* and the next call finds everybody in step */
    CHECK_OK(s, uf_free(s->world, p));
}

static void more_memory_than_there_is_is_refused_with_numbers(suite *s)
{
    void *p = s;
    CHECK_CODE(s, uf_malloc(s->world, (size_t)1 << 50, 0, &p), UF_ENOMEM, "1125899906842624");
    CHECK(s, p == s);
    CHECK_OK(s, uf_malloc(s->world, 6400, 0, &p));
    CHECK_OK(s, uf_free(s->world, p));
}

static void window_over_own_buffers_works_like_the_heap(suite *s)
{
    size_t bytes = suite_scale(s, 200000, 6000), shift = (size_t)s->pe * 24; /* other addresses on every PE */
    unsigned char *mine = aligned_alloc(64, (bytes + 4096 + 63) / 64 * 64);
    uf_window *window = NULL;
    if (!CHECK(s, mine) || !CHECK_OK(s, uf_register(s->world, mine + shift, bytes, &window))) {
        free(mine);
        return;
    }
    memset(mine, 0, bytes + 4096);
    CHECK(s, uf_window_at(window, 0) == mine + shift);
    CHECK(s, uf_window_at(window, bytes) == mine + shift + bytes);
    CHECK(s, uf_window_at(window, bytes + 1) == NULL);
    suite_settle(s);
    unsigned char *at = uf_window_at(window, 64);
    suite_fill(s->out, bytes, (uint64_t)s->pe);
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, at, s->out, bytes - 64, &s->signals[0], UF_SIGNAL_ADD, 1, s->right, UF_WEAK));
    if (AWAIT(s, &s->signals[0], 1))
        VERIFY(s, at, bytes - 64, (uint64_t)s->left);
    CHECK_OK(s, uf_put_signal_nbi(s->ctx, at, s->out, 100, &s->signals[1], UF_SIGNAL_SET, 100, s->right, UF_STRONG));
    AWAIT(s, &s->signals[1], 100);
    suite_settle(s);
    memset(s->out, 0, bytes);
    CHECK_OK(s, uf_get(s->ctx, s->out, at, bytes - 64, s->right));
    VERIFY(s, s->out, bytes - 64, (uint64_t)s->pe);                     /* what we put there */
    CHECK_OK(s, uf_put_nbi(s->ctx, s->data, at, bytes - 64, s->right)); /* as a source */
    suite_settle(s);
    VERIFY(s, s->data, bytes - 64, (uint64_t)((s->left + s->n - 1) % s->n));
    CHECK_OK(s, uf_unregister(window));
    CHECK_CODE(s, uf_put(s->ctx, mine + shift, s->out, 8, s->right), UF_ERANGE, "dst");
    free(mine);
}

/* Between processes of one host whose windows cannot be mapped nobody can update such a word: then the refusal says what can. */
static void words_in_windows_signal_or_are_refused_with_a_remedy(suite *s)
{
    uint64_t *mine = aligned_alloc(64, 4096), old = 7;
    uf_window *window = NULL;
    if (!CHECK(s, mine) || !CHECK_OK(s, uf_register(s->world, mine, 4096, &window))) {
        free(mine);
        return;
    }
    memset(mine, 0, 4096);
    suite_settle(s);
    int rc = uf_put_signal_nbi(s->ctx, s->data, s->out, 1000, &mine[1], UF_SIGNAL_ADD, 3, s->right, UF_WEAK);
    if (rc == UF_EUNSUPPORTED) {
        CHECK_CODE(s, rc, UF_EUNSUPPORTED, "uf_signal_alloc");
        CHECK_CODE(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, &mine[2], 5, 0, &old, s->right), UF_EUNSUPPORTED,
                   "uf_signal_alloc");
        CHECK_EQ(s, old, 7);
    } else if (CHECK_OK(s, rc)) {
        AWAIT(s, &mine[1], 3);
        CHECK_OK(s, uf_signal(s->ctx, &mine[1], UF_SIGNAL_SET, 100, s->right, UF_STRONG));
        AWAIT(s, &mine[1], 100);
        CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_FETCH_ADD, 8, &mine[2], 5, 0, &old, s->right));
        CHECK_EQ(s, old, 0);
    }
    suite_settle(s);
    CHECK_OK(s, uf_unregister(window));
    free(mine);
}

static void windows_come_and_go(suite *s)
{
    unsigned char *mine = malloc(4096);
    size_t rounds = suite_scale(s, 40, 8);
    for (size_t i = 0; mine && i < rounds && !s->failed; i++) {
        uf_window *window = NULL, *second = NULL;
        CHECK_OK(s, uf_register(s->world, mine, 2048, &window));
        CHECK_OK(s, uf_register(s->world, mine + 2048, 2048, &second));
        suite_fill(s->out, 2048, i);
        CHECK_OK(s, uf_put_nbi(s->ctx, mine + 1000, s->out, 1000, s->right));
        CHECK_OK(s, uf_put_nbi(s->ctx, mine + 3000, s->out, 1000, s->right));
        suite_settle(s);
        VERIFY(s, mine + 1000, 1000, i);
        VERIFY(s, mine + 3000, 1000, i);
        CHECK_OK(s, uf_unregister(i % 2 ? window : second));
        CHECK_OK(s, uf_unregister(i % 2 ? second : window));
    }
    free(mine);
}

static void windows_of_different_sizes_are_refused(suite *s)
{
    uf_window *window = NULL;
    CHECK_CODE(s, uf_register(s->world, s->out, s->pe == 0 ? 4000 : 5000, &window), UF_EMISMATCH, "4000");
    CHECK_OK(s, uf_register(s->world, s->out, 4000, &window));
    CHECK_OK(s, uf_unregister(window));
}

/* A pointer into two pieces of symmetric memory would name two places on a peer whose pieces lie differently. */
static void refuse_overlaps(suite *s, unsigned char *mine, unsigned char *elsewhere)
{
    uf_window *window = NULL, *second = NULL;
    if (!CHECK_OK(s, uf_register(s->world, mine + 4096, 4096, &window)))
        return;
    const struct {
        unsigned char *at;
        size_t bytes;
    } wrong[] = {{mine + 4096, 4096}, {mine, 4097}, {mine + 8191, 100}, {mine + 5000, 10}, {mine, 16384}, {s->data + 64, 64}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) /* on one PE is enough: all refuse */
        CHECK_CODE(s, uf_register(s->world, s->pe == s->n - 1 ? wrong[i].at : elsewhere, wrong[i].bytes, &second), UF_EINVAL,
                   "overlaps");
    if (CHECK_OK(s, uf_register(s->world, mine, 4096, &second))) /* beside it */
        CHECK_OK(s, uf_unregister(second));
    CHECK_OK(s, uf_unregister(window));
    if (CHECK_OK(s, uf_register(s->world, mine, 16384, &window))) /* nothing of it is left */
        CHECK_OK(s, uf_unregister(window));
}

/* A pointer into two pieces of symmetric memory would name two places on a peer whose pieces lie differently. */
static void windows_that_overlap_are_refused(suite *s)
{
    unsigned char *mine = malloc(16384), *elsewhere = malloc(4096);
    if (CHECK(s, mine && elsewhere))
        refuse_overlaps(s, mine, elsewhere);
    free(mine);
    free(elsewhere);
}

static void ptr_gives_mapped_memory_or_null(suite *s)
{
    CHECK(s, uf_ptr(s->world, s->words, s->pe) == s->words);
    uint64_t *theirs = uf_ptr(s->world, &s->words[s->pe], s->right);
    CHECK(s, uf_ptr(s->world, s->out, s->right) == NULL); /* not symmetric */
    CHECK(s, uf_ptr(s->world, s->words, s->n) == NULL);
    CHECK(s, uf_ptr(s->world, s->words, -1) == NULL);
    if (theirs)
        __atomic_store_n(theirs, 1000 + (uint64_t)s->pe, __ATOMIC_RELEASE);
    else
        CHECK_OK(s, uf_atomic(s->ctx, UF_ATOMIC_SET, 8, &s->words[s->pe], 1000 + (uint64_t)s->pe, 0, NULL, s->right));
    suite_settle(s);
    CHECK_EQ(s, uf_signal_fetch(&s->words[s->left]), 1000 + s->left);
}

static void signal_words_are_zero_and_given_back(suite *s)
{
    for (size_t i = 0; i < 6 && !s->failed; i++) {
        uint64_t *first = NULL, *second = NULL;
        size_t n = i % 2 ? 1 : 1000;
        CHECK_OK(s, uf_signal_alloc(s->world, n, i % 2 ? UF_SIGNAL_MIXED : UF_SIGNAL_DEFAULT, &first));
        CHECK_OK(s, uf_signal_alloc(s->world, 7, UF_SIGNAL_DEFAULT, &second));
        if (s->failed)
            return;
        CHECK(s, aligned(first, 8) && all_zero((unsigned char *)first, n * 8) && all_zero((unsigned char *)second, 56));
        suite_settle(s);
        CHECK_OK(s, uf_signal(s->ctx, &first[n - 1], UF_SIGNAL_ADD, 300, s->right, UF_WEAK));
        CHECK_OK(s, uf_signal(s->ctx, &second[6], UF_SIGNAL_SET, 1, s->right, UF_WEAK));
        AWAIT(s, &first[n - 1], 300);
        AWAIT(s, &second[6], 1);
        CHECK_OK(s, uf_signal_free(s->world, first));
        CHECK_OK(s, uf_signal_free(s->world, second));
    }
    uint64_t *too_many = NULL;
    CHECK_CODE(s, uf_signal_alloc(s->world, (size_t)1 << 30, UF_SIGNAL_DEFAULT, &too_many), UF_ENOMEM, "1073741824");
}

const suite_test suite_memory_tests[] = {
    {"blocks_are_aligned_and_zero", blocks_are_aligned_and_zero, 1, SUITE_SELDOM},
    {"large_blocks_are_aligned_to_2_mib", large_blocks_are_aligned_to_2_mib, 1, SUITE_SELDOM},
    {"memory_is_reused_and_neighbours_survive", memory_is_reused_and_neighbours_survive, 1, SUITE_SELDOM},
    {"heap_grows_beyond_its_first_segment", heap_grows_beyond_its_first_segment, 1, SUITE_SELDOM},
    {"different_sizes_are_refused_on_every_pe", different_sizes_are_refused_on_every_pe, 2, SUITE_SELDOM},
    {"more_memory_than_there_is_is_refused_with_numbers", more_memory_than_there_is_is_refused_with_numbers, 1, SUITE_SELDOM},
    {"window_over_own_buffers_works_like_the_heap", window_over_own_buffers_works_like_the_heap, 1, SUITE_SELDOM},
    {"words_in_windows_signal_or_are_refused_with_a_remedy", words_in_windows_signal_or_are_refused_with_a_remedy, 1,
     SUITE_SELDOM},
    {"windows_come_and_go", windows_come_and_go, 1, SUITE_SELDOM},
    {"windows_of_different_sizes_are_refused", windows_of_different_sizes_are_refused, 2, SUITE_SELDOM},
    {"windows_that_overlap_are_refused", windows_that_overlap_are_refused, 1, SUITE_SELDOM},
    {"ptr_gives_mapped_memory_or_null", ptr_gives_mapped_memory_or_null, 1, SUITE_SELDOM},
    {"signal_words_are_zero_and_given_back", signal_words_are_zero_and_given_back, 1, SUITE_SELDOM},
    {NULL, NULL, 0, 0},
};
