/* test_order_codec.c - what travels is what was meant, in the bits that docs/ordering.md gives it. */
#include "order_pair.h"

static void immediates_have_the_documented_bits(void **state)
{
    (void)state;
    assert_int_equal(uf_imm_add(1, 0xabcde, 0x1ff), 0x20000000u | 0xabcdeu << 9 | 0x1ff);
    assert_int_equal(uf_imm_sequence(1, 0xabc, 0x1234), 0x60000000u | 0xabcu << 17 | 0x1234u << 1);
    assert_int_equal(uf_imm_control(UF_CONTROL_RECEIPT, 1, 0x7654321), 0x80000000u | 3u << 28 | 1u << 27 | 0x7654321);
}

static void immediates_come_back_as_they_went(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t r = i * 2654435761u;
        uint32_t bit = r >> 31, index = r & UF_IMM_INDEX_MAX, operand = r >> 5 & UF_IMM_OPERAND_MAX;
        uint32_t lane = r >> 7 & (UF_ORDER_LANE_IDS - 1), type = r >> 3 & 3, value = r & UF_IMM_VALUE_MASK;
        uint32_t imm = uf_imm_add(bit, index, operand);
        assert_int_equal(uf_imm_kind(imm), UF_IMM_ADD);
        assert_true(uf_imm_bit(imm) == bit && uf_imm_index(imm) == index && uf_imm_operand(imm) == operand);
        imm = uf_imm_sequence(bit, lane, r);
        assert_int_equal(uf_imm_kind(imm), UF_IMM_SEQUENCE);
        assert_true(uf_imm_bit(imm) == bit && uf_imm_lane(imm) == lane && uf_imm_sequence_of(imm) == (uint16_t)r);
        assert_int_equal(uf_imm_spare(imm), 0);
        imm = uf_imm_control(type, bit, value);
        assert_int_equal(uf_imm_kind(imm), UF_IMM_CONTROL);
        assert_true(uf_imm_control_bit(imm) == bit && uf_imm_type(imm) == type && uf_imm_value(imm) == value);
    }
}

static void messages_are_little_endian_with_fixed_places(void **state)
{
    (void)state;
    uf_order_wire w = {.type = UF_MSG_ATOMIC | 1u << UF_MSG_BIT_SHIFT,
                       .op = UF_ATOMIC_COMPARE_SWAP | UF_MSG_WIDTH4,
                       .lane = 0x0102,
                       .seq = 0x0304,
                       .aux = 0x0506,
                       .address = 0x1122334455667788,
                       .operand = 0x99aabbccddeeff00,
                       .extra = 0x0123456789abcdef};
    const unsigned char golden[UF_MESSAGE_BYTES] = {0x82, 0x1b, 0x02, 0x01, 0x04, 0x03, 0x06, 0x05, 0x88, 0x77, 0x66,
                                                    0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb,
                                                    0xaa, 0x99, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
    unsigned char bytes[UF_MESSAGE_BYTES];
    uf_order_wire back;
    uf_wire_encode(&w, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    uf_wire_decode(bytes, &back);
    assert_memory_equal(&w, &back, sizeof w);
    assert_int_equal(uf_wire_type(&back), UF_MSG_ATOMIC);
    assert_int_equal(uf_wire_bit(&back), 1);
}

static void distances_wrap_with_their_field(void **state)
{
    (void)state;
    assert_int_equal(uf_field_distance(0xfffffffe, 3, 16), 5);
    assert_int_equal(uf_field_distance(0x7fffffe, 0x8000002, UF_IMM_VALUE_BITS), 4);
    assert_int_equal(uf_field_distance(5, 4, UF_IMM_VALUE_BITS), UF_IMM_VALUE_MASK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(immediates_have_the_documented_bits),
        cmocka_unit_test(immediates_come_back_as_they_went),
        cmocka_unit_test(messages_are_little_endian_with_fixed_places),
        cmocka_unit_test(distances_wrap_with_their_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
