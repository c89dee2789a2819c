/* frame.h - the bytes that PEs exchange while they find each other: a pure codec, no sockets.
 *
 * Every frame is a header of UF_FRAME_BYTES and a payload: magic, codec version, type, error code, the PE it
 * is about, the world's id, the step and the payload's length, all little-endian. The reader takes bytes in
 * any pieces, from strangers too: it never trusts a length (payload memory grows with the bytes that really
 * came, up to `limit`) and never reads past what it was given. The header and the first UF_HELLO_FIXED bytes
 * of a hello never change between versions, so that two versions can still refuse each other with both
 * numbers. */
#ifndef UF_BOOTSTRAP_FRAME_H
#define UF_BOOTSTRAP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UF_FRAME_MAGIC   0x42534655u /* "UFSB" */
#define UF_FRAME_VERSION 1
#define UF_FRAME_BYTES   32
#define UF_HELLO_FIXED   24
#define UF_HELLO_BYTES   112
#define UF_HELLO_HOST    64

typedef enum uf_frame_type {
    UF_FRAME_HELLO = 1,   /* PE -> root: who I am (uf_hello) */
    UF_FRAME_HERE = 2,    /* root -> PE: you are at the right place, wait for the others */
    UF_FRAME_WELCOME = 3, /* root -> PE: all have come; `world` is the id of all later frames */
    UF_FRAME_REFUSE = 4,  /* root -> PE: `code` and a sentence; UF_EAGAIN means come again later */
    UF_FRAME_GATHER = 5,  /* PE -> root: my part of collective `step` */
    UF_FRAME_RESULT = 6,  /* root -> PE: all parts of `step`, or `code` and a sentence */
    UF_FRAME_NEWS = 7,    /* both ways: the world ended with `code` because of `pe`; a sentence */
    UF_FRAME_LEAVE = 8,   /* both ways: I go in order */
    UF_FRAME_GIVE_UP = 9, /* PE -> root: my time for `step` is over; the answer is RESULT or BROKEN */
    UF_FRAME_BROKEN = 10, /* root -> PE: no collective works any more; `code` and a sentence */
} uf_frame_type;

typedef struct uf_frame {
    uint16_t version, type;
    int32_t code;
    uint32_t pe;
    uint64_t world;
    uint32_t step;
    uint32_t length; /* of the payload */
} uf_frame;

typedef struct uf_hello {
    uint64_t job; /* uf_frame_hash of the job's name: other jobs are sent away */
    uint16_t major, minor, patch;
    uint32_t n_pes, pe;
    uint64_t process; /* differs between processes, equal for all worlds of one */
    uint64_t attempt; /* differs between creations, equal for all connection attempts of one */
    uint32_t pid;
    char host[UF_HELLO_HOST];
} uf_hello;

void uf_frame_encode(const uf_frame *frame, unsigned char bytes[UF_FRAME_BYTES]);
void uf_hello_encode(const uf_hello *hello, unsigned char bytes[UF_HELLO_BYTES]);
/* Reads what every version has (job, version) from `length` bytes and, if the version is ours, the rest: 1.
 * 0: the sender is of another version, only the fixed part is set. -1: too short. */
int uf_hello_decode(const void *bytes, size_t length, uint16_t frame_version, uf_hello *hello);
/* FNV-1a, 64 bits: names of jobs to numbers. */
uint64_t uf_frame_hash(const void *bytes, size_t n, uint64_t seed);

typedef struct uf_frame_reader {
    uint32_t limit; /* largest payload accepted; may be changed between frames */
    uint32_t got;   /* bytes of the current frame so far, header included */
    unsigned char header[UF_FRAME_BYTES];
    uf_frame frame;         /* valid when uf_frame_read returned 1 */
    unsigned char *payload; /* frame.length bytes, then a zero; valid until the next uf_frame_read */
    size_t capacity;
} uf_frame_reader;

void uf_frame_reader_init(uf_frame_reader *reader, uint32_t limit);
void uf_frame_reader_free(uf_frame_reader *reader);
/* Consumes *used of the `n` bytes. 1: a frame is complete (call again for the rest). 0: needs more. Else
 * UF_EMISMATCH (not our protocol, or a length above the limit) or UF_ENOMEM, with the sentence; the stream is
 * then unusable. */
int uf_frame_read(uf_frame_reader *reader, const void *bytes, size_t n, size_t *used);

#endif
