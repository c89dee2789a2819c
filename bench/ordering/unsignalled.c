/* unsignalled.c - what the schemes are compared with: puts that tell nobody, and a bare write with immediate, which tells its own arrival and
 * has neither flow control nor any word to update. */
#include "raw.h"

static int put_alone(ordering_run *r, uint64_t n)
{
    return ordering_raw_put(r, n, -1);
}

/* Nobody is told, but the sender's completion says that the bytes are there: they are looked at then. */
static int sent(ordering_run *r, uint32_t cookie)
{
    return ordering_saw(r, cookie >> 1);
}

static int arrived(ordering_run *r, uint32_t pe, const uf_cqe *cqe)
{
    (void)r, (void)pe, (void)cqe;
    return UF_OK;
}

static int put_with_immediate(ordering_run *r, uint64_t n)
{
    return ordering_raw_put(r, n, ordering_slot_of(r, n));
}

const ordering_scheme ordering_unsignalled = {
    .name = "unsignalled",
    .text = "puts without signals",
    .no_signals = true,
    .open = ordering_raw_open,
    .close = ordering_raw_close,
    .put = put_alone,
    .turn = ordering_raw_turn,
    .sent = sent,
    .arrived = arrived,
};

const ordering_scheme ordering_floor = {
    .name = "floor",
    .text = "a bare write with immediate",
    .open = ordering_raw_open,
    .close = ordering_raw_close,
    .put = put_with_immediate,
    .turn = ordering_raw_turn,
    .arrived = ordering_raw_saw_slot,
};
