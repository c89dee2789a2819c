/* frame.c - encoding and decoding of bootstrap frames. Pure: no sockets, no clock. Fuzzed by
 * tests/fuzz/fuzz_frame.c.
 *
 * Bytes come from whoever connects to our port, so nothing here believes what it reads: a length only bounds
 * how much is taken, memory follows the bytes that arrived, and texts are always terminated. */
#include "bootstrap/frame.h"
#include "base/error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(UF_HELLO_BYTES == 48 + UF_HELLO_HOST, "layout of a hello");

static void put16(unsigned char *p, uint16_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}

static void put32(unsigned char *p, uint32_t v)
{
    put16(p, (uint16_t)v);
    put16(p + 2, (uint16_t)(v >> 16));
}

static void put64(unsigned char *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint16_t get16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const unsigned char *p)
{
    return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const unsigned char *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

void uf_frame_encode(const uf_frame *frame, unsigned char bytes[UF_FRAME_BYTES])
{
    put32(bytes, UF_FRAME_MAGIC);
    put16(bytes + 4, frame->version);
    put16(bytes + 6, frame->type);
    put32(bytes + 8, (uint32_t)frame->code);
    put32(bytes + 12, frame->pe);
    put64(bytes + 16, frame->world);
    put32(bytes + 24, frame->step);
    put32(bytes + 28, frame->length);
}

static void frame_decode(const unsigned char bytes[UF_FRAME_BYTES], uf_frame *frame)
{
    frame->version = get16(bytes + 4);
    frame->type = get16(bytes + 6);
    frame->code = (int32_t)get32(bytes + 8);
    frame->pe = get32(bytes + 12);
    frame->world = get64(bytes + 16);
    frame->step = get32(bytes + 24);
    frame->length = get32(bytes + 28);
}

void uf_hello_encode(const uf_hello *hello, unsigned char bytes[UF_HELLO_BYTES])
{
    memset(bytes, 0, UF_HELLO_BYTES);
    put64(bytes, hello->job);
    put16(bytes + 8, hello->major);
    put16(bytes + 10, hello->minor);
    put16(bytes + 12, hello->patch);
    /* 14..15 are spare; the fixed part ends with the two numbers. */
    put32(bytes + 16, hello->n_pes);
    put32(bytes + 20, hello->pe);
    put64(bytes + 24, hello->process);
    put64(bytes + 32, hello->attempt);
    put32(bytes + 40, hello->pid);
    memcpy(bytes + 48, hello->host, strnlen(hello->host, UF_HELLO_HOST - 1));
}

int uf_hello_decode(const void *bytes, size_t length, uint16_t frame_version, uf_hello *hello)
{
    const unsigned char *p = bytes;
    memset(hello, 0, sizeof *hello);
    if (length < UF_HELLO_FIXED)
        return -1;
    hello->job = get64(p);
    hello->major = get16(p + 8);
    hello->minor = get16(p + 10);
    hello->patch = get16(p + 12);
    hello->n_pes = get32(p + 16);
    hello->pe = get32(p + 20);
    if (frame_version != UF_FRAME_VERSION || hello->major != UF_VERSION_MAJOR || hello->minor != UF_VERSION_MINOR ||
        hello->patch != UF_VERSION_PATCH)
        return 0;
    if (length < UF_HELLO_BYTES)
        return -1;
    hello->process = get64(p + 24);
    hello->attempt = get64(p + 32);
    hello->pid = get32(p + 40);
    memcpy(hello->host, p + 48, UF_HELLO_HOST - 1);
    return 1;
}

uint64_t uf_frame_hash(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

void uf_frame_reader_init(uf_frame_reader *reader, uint32_t limit)
{
    memset(reader, 0, sizeof *reader);
    reader->limit = limit;
}

void uf_frame_reader_free(uf_frame_reader *reader)
{
    free(reader->payload);
    memset(reader, 0, sizeof *reader);
}

/* Space for `wanted` payload bytes and the zero behind them. Doubles, so that a frame costs few moves. */
static int payload_reserve(uf_frame_reader *reader, size_t wanted)
{
    if (wanted + 1 <= reader->capacity)
        return UF_OK;
    size_t capacity = reader->capacity ? reader->capacity : 256;
    while (capacity < wanted + 1)
        capacity *= 2;
    unsigned char *grown = realloc(reader->payload, capacity);
    if (!grown)
        return uf_fail(UF_ENOMEM, "no memory for %zu bytes of a bootstrap frame", capacity);
    reader->payload = grown;
    reader->capacity = capacity;
    return UF_OK;
}

/* The magic is checked as soon as four bytes are there: other services are recognised at once. */
static int header_take(uf_frame_reader *reader, const unsigned char *bytes, size_t n, size_t *used)
{
    size_t missing = UF_FRAME_BYTES - reader->got;
    size_t take = n < missing ? n : missing;
    if (take)
        memcpy(reader->header + reader->got, bytes, take);
    reader->got += (uint32_t)take;
    *used = take;
    if (reader->got >= 4 && get32(reader->header) != UF_FRAME_MAGIC)
        return uf_fail(UF_EMISMATCH,
                       "what came is not Unfence's bootstrap protocol (first bytes %02x %02x %02x %02x): "
                       "another service uses this port",
                       reader->header[0], reader->header[1], reader->header[2], reader->header[3]);
    if (reader->got < UF_FRAME_BYTES)
        return UF_OK;
    frame_decode(reader->header, &reader->frame);
    if (reader->frame.length > reader->limit)
        return uf_fail(UF_EMISMATCH, "a bootstrap frame of type %u claims %u bytes, at most %u are accepted here",
                       reader->frame.type, reader->frame.length, reader->limit);
    return payload_reserve(reader, 0);
}

int uf_frame_read(uf_frame_reader *reader, const void *bytes, size_t n, size_t *used)
{
    const unsigned char *p = bytes;
    size_t taken = 0;
    *used = 0;
    /* The frame handed out last time is done with. */
    if (reader->got >= UF_FRAME_BYTES && reader->got - UF_FRAME_BYTES == reader->frame.length)
        reader->got = 0;
    if (reader->got < UF_FRAME_BYTES) {
        int rc = header_take(reader, p, n, &taken);
        *used = taken;
        if (rc || reader->got < UF_FRAME_BYTES)
            return rc;
    }
    size_t have = reader->got - UF_FRAME_BYTES;
    size_t missing = reader->frame.length - have;
    size_t take = n - taken < missing ? n - taken : missing;
    int rc = payload_reserve(reader, have + take);
    if (rc)
        return rc;
    if (take)
        memcpy(reader->payload + have, p + taken, take);
    reader->got += (uint32_t)take;
    *used = taken + take;
    reader->payload[have + take] = 0;
    return take == missing;
}
