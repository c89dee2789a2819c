/* test_command_codec.c - a command in its 64 bytes: golden bytes, every field's bound, and what a slot that is not whole looks like. */
#include "engine/command.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHIFT = 6 };

static const uf_command full = {
    .op = UF_COMMAND_PUT_SIGNAL,
    .atomic = UF_ATOMIC_ADD,
    .flags = UF_COMMAND_STRONG | UF_COMMAND_SETTLED,
    .pe = 0xabcdef,
    .result = 0x1234,
    .bytes = 0x0000123456789abc,
    .local = 0x00007fffdeadbeef,
    .remote = 0x00007f0011223344,
    .word = 0x00007f00aabbccd8,
    .operand = 0x8000000000000001,
    .compare = 0x7fffffffffffffff,
};

static int same(const uf_command *a, const uf_command *b)
{
    return a->op == b->op && a->atomic == b->atomic && a->flags == b->flags && a->pe == b->pe && a->result == b->result &&
           a->bytes == b->bytes && a->local == b->local && a->remote == b->remote && a->word == b->word &&
           a->operand == b->operand && a->compare == b->compare;
}

/* Bytes that kernels of this abi write and libraries of it read: a change here is a new UF_COMMAND_ABI. */
static void a_command_has_these_64_bytes(void **state)
{
    (void)state;
    static const unsigned char golden[64] = {
        0x12, 0xf3, 0xde, 0xbc, 0x4a, 0x23, 0x51, 0x80, /* op, atomic, flags, pe, result, operand's top bit, abi, lap */
        0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0x00, 0x80, /* bytes */
        0xef, 0xbe, 0xad, 0xde, 0xff, 0x7f, 0x00, 0x80, /* local */
        0x44, 0x33, 0x22, 0x11, 0x00, 0x7f, 0x00, 0x80, /* remote */
        0xd8, 0xcc, 0xbb, 0xaa, 0x00, 0x7f, 0x00, 0x80, /* word */
        0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, /* operand */
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* compare */
        0x05, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x80, /* position */
    };
    uint64_t words[UF_COMMAND_WORDS];
    uf_command_encode(&full, 0x100000005, SHIFT, words);
    assert_memory_equal(words, golden, sizeof golden);
    /* The next lap differs in the position and in the top bit of every word. */
    uint64_t next[UF_COMMAND_WORDS];
    uf_command_encode(&full, 0x100000005 + (1 << SHIFT), SHIFT, next);
    for (int i = 0; i < UF_COMMAND_WORDS; i++)
        assert_int_equal((next[i] ^ words[i]) >> 63, 1);
    assert_int_equal(next[7] & UF_COMMAND_POSITION_MASK, 0x100000045);
}

/* A field set to its largest value, and what says that one more does not fit. */
static void every_field_has_its_bound(void **state)
{
    (void)state;
    struct {
        size_t offset, width;
        uint64_t largest;
        int misfit;
    } fields[] = {
        {offsetof(uf_command, op), 4, UF_COMMAND_OPS - 1, UF_COMMAND_BAD_OP},
        {offsetof(uf_command, atomic), 4, 15, UF_COMMAND_BAD_ATOMIC},
        {offsetof(uf_command, flags), 4, UF_COMMAND_FLAGS, UF_COMMAND_BAD_FLAGS},
        {offsetof(uf_command, pe), 4, 0xffffff, UF_COMMAND_BAD_PE},
        {offsetof(uf_command, result), 4, 0xffff, UF_COMMAND_BAD_RESULT},
        {offsetof(uf_command, bytes), 8, 0xffffffffffff, UF_COMMAND_BAD_BYTES},
        {offsetof(uf_command, local), 8, INT64_MAX, UF_COMMAND_BAD_LOCAL},
        {offsetof(uf_command, remote), 8, INT64_MAX, UF_COMMAND_BAD_REMOTE},
        {offsetof(uf_command, word), 8, INT64_MAX, UF_COMMAND_BAD_WORD},
        {offsetof(uf_command, operand), 8, UINT64_MAX, 0},
        {offsetof(uf_command, compare), 8, UINT64_MAX, 0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int base = 0; base < 2; base++) {
            uf_command c = {0}, back;
            uint64_t words[UF_COMMAND_WORDS];
            if (base)
                c = full;
            memcpy((char *)&c + fields[i].offset, &fields[i].largest, fields[i].width);
            assert_int_equal(uf_command_misfit(&c), 0);
            uf_command_encode(&c, 77, SHIFT, words);
            assert_int_equal(uf_command_decode(words, 77, &back), 0);
            assert_true(same(&c, &back));
            uint64_t more = fields[i].largest + 1;
            memcpy((char *)&c + fields[i].offset, &more, fields[i].width);
            assert_int_equal(uf_command_misfit(&c), fields[i].misfit);
        }
}

static uint64_t draw(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void any_command_comes_back_as_it_was(void **state)
{
    (void)state;
    uint64_t s = 0x9e3779b97f4a7c15;
    for (int i = 0; i < 100000; i++) {
        uf_command c = {(uint32_t)(draw(&s) % UF_COMMAND_OPS),
                        draw(&s) & 15,
                        draw(&s) & UF_COMMAND_FLAGS,
                        draw(&s) & 0xffffff,
                        draw(&s) & 0xffff,
                        draw(&s) >> 16,
                        draw(&s) >> 1,
                        draw(&s) >> 1,
                        draw(&s) >> 1,
                        draw(&s),
                        draw(&s)},
                   back;
        uint64_t words[UF_COMMAND_WORDS], position = draw(&s) & UF_COMMAND_POSITION_MASK;
        uint32_t shift = UF_COMMAND_MIN_SHIFT + (uint32_t)(draw(&s) % 15);
        assert_int_equal(uf_command_misfit(&c), 0);
        uf_command_encode(&c, position, shift, words);
        assert_int_equal(uf_command_decode(words, position, &back), 0);
        assert_true(same(&c, &back));
    }
}

static void what_no_producer_of_this_version_writes_is_refused(void **state)
{
    (void)state;
    uf_command c;
    uint64_t words[UF_COMMAND_WORDS];
    uf_command_encode(&full, 9, SHIFT, words);
    assert_int_equal(uf_command_decode(words, 9 + (2 << SHIFT), &c), UF_COMMAND_BAD_POSITION); /* two laps: the same parity */
    words[0] ^= (uint64_t)1 << UF_COMMAND_ABI_SHIFT;
    assert_int_equal(uf_command_decode(words, 9, &c), UF_COMMAND_BAD_ABI);
    for (int bit = UF_COMMAND_USED_BITS; bit < 63; bit++) {
        uf_command_encode(&full, 9, SHIFT, words);
        words[0] |= (uint64_t)1 << bit;
        assert_int_equal(uf_command_decode(words, 9, &c), UF_COMMAND_BAD_SPARE);
    }
    for (uint64_t op = UF_COMMAND_OPS; op < 16; op++) {
        uf_command_encode(&full, 9, SHIFT, words);
        words[0] = (words[0] & ~(uint64_t)15) | op;
        assert_int_equal(uf_command_decode(words, 9, &c), UF_COMMAND_BAD_OP);
    }
    uf_command_encode(&full, 9, SHIFT, words);
    words[1] |= (uint64_t)1 << UF_COMMAND_BYTES_BITS;
    assert_int_equal(uf_command_decode(words, 9, &c), UF_COMMAND_BAD_BYTES);
}

/* Every subset of the eight words that has arrived, on top of the lap before: only the whole set is a command. */
static void a_slot_is_whole_when_all_its_words_have_arrived(void **state)
{
    (void)state;
    static const uint64_t starts[] = {0, 1u << SHIFT, 0xffffffff, UF_COMMAND_POSITION_MASK, UF_COMMAND_POSITION_MASK - 63};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        uint64_t position = starts[s], before = (position - (1u << SHIFT)) & UF_COMMAND_POSITION_MASK;
        uint64_t slots[UF_COMMAND_WORDS << SHIFT], old[UF_COMMAND_WORDS], now[UF_COMMAND_WORDS], seen[UF_COMMAND_WORDS];
        uint64_t *slot = slots + (position & ((1 << SHIFT) - 1)) * UF_COMMAND_WORDS;
        uf_command_encode(&full, before, SHIFT, old);
        uf_command_encode(&full, position, SHIFT, now);
        for (unsigned set = 0; set < 256; set++) {
            for (int i = 0; i < UF_COMMAND_WORDS; i++)
                slot[i] = set >> i & 1 ? now[i] : old[i];
            assert_int_equal(uf_command_peek(slots, SHIFT, position, seen), set == 255);
        }
        assert_memory_equal(seen, now, sizeof now);
    }
}

static void positions_compare_across_their_wrap(void **state)
{
    (void)state;
    static const uint64_t at[] = {0, 5, 0xffffffff, UF_COMMAND_POSITION_MASK};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        assert_false(uf_command_passed(at[i], at[i]));
        assert_true(uf_command_passed((at[i] + 1) & UF_COMMAND_POSITION_MASK, at[i]));
        assert_true(uf_command_passed((at[i] + 1000) & UF_COMMAND_POSITION_MASK, at[i]));
        assert_false(uf_command_passed((at[i] - 1000) & UF_COMMAND_POSITION_MASK, at[i]));
        assert_int_equal(uf_command_distance(at[i], (at[i] + 9) & UF_COMMAND_POSITION_MASK), 9);
        assert_true(uf_command_tag(at[i]) & 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_has_these_64_bytes),
        cmocka_unit_test(every_field_has_its_bound),
        cmocka_unit_test(any_command_comes_back_as_it_was),
        cmocka_unit_test(what_no_producer_of_this_version_writes_is_refused),
        cmocka_unit_test(a_slot_is_whole_when_all_its_words_have_arrived),
        cmocka_unit_test(positions_compare_across_their_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
