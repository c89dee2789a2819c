/* fuzz_frame.c - any bytes that come to the rendezvous port are frames or are refused, the same however the network cuts them.
 *
 * The first byte says how the rest is cut into pieces. The stream is read twice, whole and in pieces: both must see the same frames and end the same
 * way, no payload may exceed the limit, and every hello must decode to something with an end. */
#include "base/error.h"
#include "bootstrap/frame.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT 2000

typedef struct seen {
    uint64_t digest;
    unsigned frames;
    int end;
} seen;

static void look(const uf_frame_reader *reader, seen *s)
{
    const uf_frame *f = &reader->frame;
    uf_hello hello;
    if (f->length > LIMIT || reader->payload[f->length] != 0)
        abort();
    if (uf_hello_decode(reader->payload, f->length, f->version, &hello) > 0 && !memchr(hello.host, 0, sizeof hello.host))
        abort();
    unsigned char header[UF_FRAME_BYTES];
    uf_frame_encode(f, header);
    if (memcmp(header, reader->header, sizeof header) != 0)
        abort();
    s->digest = uf_frame_hash(header, sizeof header, s->digest);
    s->digest = uf_frame_hash(reader->payload, f->length, s->digest);
    s->frames++;
}

static seen read_all(const uint8_t *data, size_t size, size_t piece)
{
    seen s = {0};
    uf_frame_reader reader;
    uf_frame_reader_init(&reader, LIMIT);
    for (size_t at = 0; at < size && s.end == 0;) {
        size_t give = size - at < piece ? size - at : piece, used;
        /* Exactly that much memory, so that a look beyond it is seen. */
        uint8_t *copy = malloc(give);
        memcpy(copy, data + at, give);
        int rc = uf_frame_read(&reader, copy, give, &used);
        free(copy);
        if (used > give || (rc == 0 && used != give))
            abort();
        if (rc == 1)
            look(&reader, &s);
        if (rc < 0 && !*uf_error_message())
            abort();
        s.end = rc < 0 ? rc : 0;
        at += used;
    }
    uf_frame_reader_free(&reader);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t piece = 1 + data[0] % 97;
    seen whole = read_all(data + 1, size - 1, size), cut = read_all(data + 1, size - 1, piece);
    if (whole.digest != cut.digest || whole.frames != cut.frames || whole.end != cut.end)
        abort();
    return 0;
}
