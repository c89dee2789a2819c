/* test_bootstrap_frame.c - the codec of bootstrap frames: what goes in comes out, in any pieces, and nonsense is refused early. */
#include "base/error.h"
#include "bootstrap/frame.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_FRAMES 50

/* A stream of frames with payloads of many sizes; the number of bytes. */
static size_t stream_make(unsigned char **stream)
{
    size_t used = 0;
    *stream = malloc(N_FRAMES * (UF_FRAME_BYTES + 40 * N_FRAMES));
    for (uint32_t i = 0; i < N_FRAMES; i++) {
        uf_frame frame = {.version = UF_FRAME_VERSION,
                          .type = (uint16_t)(1 + i % 10),
                          .code = -(int32_t)i,
                          .pe = i * 3,
                          .world = 0x0123456789abcdefu * i,
                          .step = UINT32_MAX - i,
                          .length = (i * 37) % (40 * N_FRAMES)};
        uf_frame_encode(&frame, *stream + used);
        used += UF_FRAME_BYTES;
        memset(*stream + used, (int)i, frame.length);
        used += frame.length;
    }
    return used;
}

static void stream_check(uf_frame_reader *reader, uint32_t i)
{
    assert_int_equal(reader->frame.version, UF_FRAME_VERSION);
    assert_int_equal(reader->frame.type, 1 + i % 10);
    assert_int_equal(reader->frame.code, -(int32_t)i);
    assert_int_equal(reader->frame.pe, i * 3);
    assert_true(reader->frame.world == 0x0123456789abcdefu * i);
    assert_int_equal(reader->frame.step, UINT32_MAX - i);
    assert_int_equal(reader->frame.length, (i * 37) % (40 * N_FRAMES));
    for (uint32_t k = 0; k < reader->frame.length; k++)
        assert_int_equal(reader->payload[k], i);
    assert_int_equal(reader->payload[reader->frame.length], 0);
}

static void frames_survive_any_cut(void **state)
{
    (void)state;
    unsigned char *stream;
    size_t n = stream_make(&stream);
    for (size_t piece = 1; piece < 400; piece += piece < 40 ? 1 : 31) {
        uf_frame_reader reader;
        uint32_t seen = 0;
        uf_frame_reader_init(&reader, 40 * N_FRAMES);
        for (size_t at = 0; at < n;) {
            size_t give = n - at < piece ? n - at : piece, used;
            int rc;
            /* What was given is consumed as far as the end of a frame, and the rest is offered again. */
            while ((rc = uf_frame_read(&reader, stream + at, give, &used)) == 1) {
                stream_check(&reader, seen++);
                at += used;
                give -= used;
            }
            assert_int_equal(rc, 0);
            assert_int_equal(used, give);
            at += used;
        }
        assert_int_equal(seen, N_FRAMES);
        uf_frame_reader_free(&reader);
    }
    free(stream);
}

static void another_service_is_recognised_by_its_first_bytes(void **state)
{
    (void)state;
    uf_frame_reader reader;
    size_t used;
    uf_frame_reader_init(&reader, 100);
    assert_int_equal(uf_frame_read(&reader, "HTT", 3, &used), 0);
    assert_int_equal(uf_frame_read(&reader, "P/1.1", 5, &used), UF_EMISMATCH);
    assert_non_null(strstr(uf_error_message(), "another service"));
    uf_frame_reader_free(&reader);
}

static void a_length_above_the_limit_is_refused_before_its_bytes(void **state)
{
    (void)state;
    unsigned char bytes[UF_FRAME_BYTES];
    uf_frame_reader reader;
    uf_frame frame = {.version = UF_FRAME_VERSION, .type = UF_FRAME_GATHER, .length = 101};
    size_t used;
    uf_frame_encode(&frame, bytes);
    uf_frame_reader_init(&reader, 100);
    assert_int_equal(uf_frame_read(&reader, bytes, sizeof bytes, &used), UF_EMISMATCH);
    assert_non_null(strstr(uf_error_message(), "101"));
    uf_frame_reader_free(&reader);
}

static void a_claimed_length_costs_no_memory_until_it_comes(void **state)
{
    (void)state;
    unsigned char bytes[UF_FRAME_BYTES];
    uf_frame_reader reader;
    uf_frame frame = {.version = UF_FRAME_VERSION, .type = UF_FRAME_RESULT, .length = 1u << 30};
    size_t used;
    uf_frame_encode(&frame, bytes);
    uf_frame_reader_init(&reader, 1u << 30);
    assert_int_equal(uf_frame_read(&reader, bytes, sizeof bytes, &used), 0);
    assert_int_equal(uf_frame_read(&reader, "0123456789", 10, &used), 0);
    assert_true(reader.capacity < 4096);
    uf_frame_reader_free(&reader);
}

static void a_hello_survives(void **state)
{
    (void)state;
    unsigned char bytes[UF_HELLO_BYTES];
    uf_hello in = {.job = 0xfedcba9876543210u,
                   .major = UF_VERSION_MAJOR,
                   .minor = UF_VERSION_MINOR,
                   .patch = UF_VERSION_PATCH,
                   .n_pes = 70000,
                   .pe = 69999,
                   .process = 11,
                   .attempt = UINT64_MAX,
                   .pid = 4711,
                   .host = "node003"};
    uf_hello out;
    uf_hello_encode(&in, bytes);
    assert_int_equal(uf_hello_decode(bytes, sizeof bytes, UF_FRAME_VERSION, &out), 1);
    assert_memory_equal(&in, &out, sizeof in);
    /* A host name without an end is given one. */
    memset(bytes + 48, 'x', UF_HELLO_HOST);
    assert_int_equal(uf_hello_decode(bytes, sizeof bytes, UF_FRAME_VERSION, &out), 1);
    assert_int_equal(strlen(out.host), UF_HELLO_HOST - 1);
}

static void what_all_versions_share_is_read_from_another_version(void **state)
{
    (void)state;
    unsigned char bytes[UF_HELLO_BYTES];
    uf_hello in = {.job = 5, .major = UF_VERSION_MAJOR + 1, .minor = 7, .patch = 1, .n_pes = 4, .pe = 3, .process = 9}, out;
    uf_hello_encode(&in, bytes);
    for (size_t length = UF_HELLO_FIXED; length <= sizeof bytes; length++) {
        assert_int_equal(uf_hello_decode(bytes, length, UF_FRAME_VERSION, &out), 0);
        assert_true(out.job == 5 && out.major == UF_VERSION_MAJOR + 1 && out.minor == 7 && out.n_pes == 4 && out.pe == 3 &&
                    out.process == 0);
    }
    /* The library is the same, the protocol is not. */
    in.major = UF_VERSION_MAJOR;
    in.minor = UF_VERSION_MINOR;
    in.patch = UF_VERSION_PATCH;
    uf_hello_encode(&in, bytes);
    assert_int_equal(uf_hello_decode(bytes, sizeof bytes, UF_FRAME_VERSION + 1, &out), 0);
    for (size_t length = 0; length < UF_HELLO_FIXED; length++)
        assert_int_equal(uf_hello_decode(bytes, length, UF_FRAME_VERSION, &out), -1);
    assert_int_equal(uf_hello_decode(bytes, UF_HELLO_BYTES - 1, UF_FRAME_VERSION, &out), -1);
}

static void the_bytes_of_a_header_are_fixed(void **state)
{
    (void)state;
    static const unsigned char golden[UF_FRAME_BYTES] = {'U', 'F', 'S', 'B', 1, 0, 5, 0, 0xff, 0xff, 0xff, 0xff, 4, 3, 2, 1,
                                                         8,   7,   6,   5,   4, 3, 2, 1, 0x78, 0x56, 0x34, 0x12, 0, 1, 0, 0};
    unsigned char bytes[UF_FRAME_BYTES];
    uf_frame frame = {.version = 1,
                      .type = UF_FRAME_GATHER,
                      .code = -1,
                      .pe = 0x01020304,
                      .world = 0x0102030405060708u,
                      .step = 0x12345678,
                      .length = 256};
    uf_frame_encode(&frame, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_survive_any_cut),
        cmocka_unit_test(another_service_is_recognised_by_its_first_bytes),
        cmocka_unit_test(a_length_above_the_limit_is_refused_before_its_bytes),
        cmocka_unit_test(a_claimed_length_costs_no_memory_until_it_comes),
        cmocka_unit_test(a_hello_survives),
        cmocka_unit_test(what_all_versions_share_is_read_from_another_version),
        cmocka_unit_test(the_bytes_of_a_header_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
