/* ep.c - turns work requests into libfabric calls. The path of one put passes here once: no lock, no allocation, no
 * system call of ours, no retry. -FI_EAGAIN goes up as UF_EAGAIN and the slot back to the list, so that nothing
 * happened; what waits, waits in the engine.
 *
 * UF_WR_MORE is not passed on as FI_MORE: a provider may hold such a WR until one without the flag follows, and flush has nothing to
 * post that would release it. Nor would it gain anything here: net makes one system call a write with it and without it (64 writes of 8 B
 * in 110 us, of 1 KiB in 156 us either way), and shm does not look at it either. */
#include "fabric/ofi/ofi.h"
#include <string.h>

#define unlikely(x) __builtin_expect(!!(x), 0)

/* What a refused call means. */
static int refused(uf_ofi *ofi, const uf_wr *wr, ssize_t rc)
{
    if (rc == -FI_EAGAIN)
        return UF_EAGAIN;
    return uf_ofi_fail(uf_ofi_code((int)-rc), (int)rc,
                       "PE %d: a work request (verb %u, %llu bytes) to PE %u on rail %u was refused by provider %s", ofi->pe,
                       wr->verb, (unsigned long long)wr->bytes, wr->peer, wr->rail, ofi->base.caps.provider);
}

static int post_slot(uf_ofi *ofi, uf_ofi_rail *rail, uf_ofi_slot *slot, const uf_wr *wr, ssize_t rc)
{
    if (rc == 0)
        return UF_OK;
    uf_ofi_slot_give(rail, slot);
    return refused(ofi, wr, rc);
}

static inline uf_ofi_slot *take(uf_ofi_rail *rail, const uf_wr *wr, uf_ofi_slot_kind kind)
{
    uf_ofi_slot *slot = uf_ofi_slot_take(rail);
    if (!slot)
        return NULL;
    slot->peer = wr->peer;
    slot->cookie = wr->cookie;
    slot->kind = (uint8_t)kind;
    slot->verb = wr->verb;
    return slot;
}

/* A write at a completion level of its own. */
static ssize_t write_flags(uf_ofi_rail *rail, uf_ofi_slot *slot, const uf_wr *wr, uint64_t data, uint64_t flags)
{
    struct iovec from = {(void *)(uintptr_t)wr->local, wr->bytes};
    struct fi_rma_iov to = {wr->remote, wr->bytes, wr->remote_key};
    void *desc = (void *)(uintptr_t)wr->local_desc;
    struct fi_msg_rma message = {
        .msg_iov = &from,
        .desc = &desc,
        .iov_count = 1,
        .addr = rail->address_of[wr->peer],
        .rma_iov = &to,
        .rma_iov_count = 1,
        .context = &slot->context,
        .data = data,
    };
    return fi_writemsg(rail->ep, &message, flags);
}

/* Source copied when this returns, success not told. */
static int post_silent_write(uf_ofi *ofi, uf_ofi_rail *rail, const uf_wr *wr, bool imm, uint64_t data)
{
    const void *from = (const void *)(uintptr_t)wr->local;
    fi_addr_t to = rail->address_of[wr->peer];
    ssize_t rc;
    if (wr->bytes <= ofi->inject_write) {
        rc = imm ? fi_inject_writedata(rail->ep, from, wr->bytes, data, to, wr->remote, wr->remote_key)
                 : fi_inject_write(rail->ep, from, wr->bytes, to, wr->remote, wr->remote_key);
        return rc ? refused(ofi, wr, rc) : UF_OK;
    }
    if (wr->bytes > ofi->base.caps.inline_bytes)
        return uf_fail(UF_EINVAL, "PE %d: a silent write of %llu bytes to PE %u is larger than the %u that %s copies", ofi->pe,
                       (unsigned long long)wr->bytes, wr->peer, ofi->base.caps.inline_bytes, ofi->base.caps.provider);
    uf_ofi_slot *slot = take(rail, wr, UF_OFI_SLOT_SILENT);
    if (!slot)
        return UF_EAGAIN;
    if (wr->bytes)
        memcpy(&slot->wire, from, wr->bytes);
    rc = imm ? fi_writedata(rail->ep, &slot->wire, wr->bytes, rail->slots_desc, data, to, wr->remote, wr->remote_key,
                            &slot->context)
             : fi_write(rail->ep, &slot->wire, wr->bytes, rail->slots_desc, to, wr->remote, wr->remote_key, &slot->context);
    return post_slot(ofi, rail, slot, wr, rc);
}

/* A write at the level that the WR asks for. Nothing is placed by 0 bytes, and shm never completes such a
 * write at delivery level. */
static ssize_t start_write(uf_ofi *ofi, uf_ofi_rail *rail, uf_ofi_slot *slot, const uf_wr *wr, bool imm, uint64_t data)
{
    if ((wr->flags & UF_WR_PLACED) && ofi->placed_flags && wr->bytes)
        return write_flags(rail, slot, wr, data, FI_COMPLETION | ofi->placed_flags | (imm ? FI_REMOTE_CQ_DATA : 0));
    const void *from = (const void *)(uintptr_t)wr->local;
    void *desc = (void *)(uintptr_t)wr->local_desc;
    fi_addr_t to = rail->address_of[wr->peer];
    return imm ? fi_writedata(rail->ep, from, wr->bytes, desc, data, to, wr->remote, wr->remote_key, &slot->context)
               : fi_write(rail->ep, from, wr->bytes, desc, to, wr->remote, wr->remote_key, &slot->context);
}

static int post_write(uf_ofi *ofi, uf_ofi_rail *rail, const uf_wr *wr, bool imm)
{
    uf_wr aimed;
    if (wr->bytes == 0) {
        aimed = *wr;
        aimed.remote = rail->nowhere_of[wr->peer].at;
        aimed.remote_key = rail->nowhere_of[wr->peer].key;
        aimed.local = (uint64_t)(uintptr_t)rail->slots;
        aimed.local_desc = (uint64_t)(uintptr_t)rail->slots_desc;
        wr = &aimed;
    }
    uint64_t data = ofi->data_prefix | wr->imm;
    if (wr->flags & UF_WR_SILENT)
        return post_silent_write(ofi, rail, wr, imm, data);
    uf_ofi_slot *slot = take(rail, wr, UF_OFI_SLOT_SENT);
    if (!slot)
        return UF_EAGAIN;
    return post_slot(ofi, rail, slot, wr, start_write(ofi, rail, slot, wr, imm, data));
}

static int post_read(uf_ofi *ofi, uf_ofi_rail *rail, const uf_wr *wr)
{
    uf_ofi_slot *slot = take(rail, wr, UF_OFI_SLOT_SENT);
    if (!slot)
        return UF_EAGAIN;
    ssize_t rc = fi_read(rail->ep, (void *)(uintptr_t)wr->local, wr->bytes, (void *)(uintptr_t)wr->local_desc,
                         rail->address_of[wr->peer], wr->remote, wr->remote_key, &slot->context);
    return post_slot(ofi, rail, slot, wr, rc);
}

/* Returns where the wire form begins: at the header, or at the bytes alone where the CQE names the sender. */
static void *fill_wire(const uf_ofi *ofi, uf_ofi_wire *wire, const uf_wr *wr)
{
    wire->pe = (uint32_t)ofi->pe;
    wire->mark = UF_OFI_WIRE_MARK;
    memcpy(wire->message, wr->message, UF_MESSAGE_BYTES);
    return ofi->wire_bytes == sizeof *wire ? (void *)wire : (void *)wire->message;
}

/* UF_WR_PLACED says nothing here: that a message arrived is told by the peer's protocol. */
static int post_send(uf_ofi *ofi, uf_ofi_rail *rail, const uf_wr *wr)
{
    bool silent = wr->flags & UF_WR_SILENT;
    if (silent && ofi->wire_bytes <= ofi->inject_send) {
        uf_ofi_wire wire;
        void *from = fill_wire(ofi, &wire, wr);
        ssize_t rc = fi_inject(rail->ep, from, ofi->wire_bytes, rail->address_of[wr->peer]);
        return rc ? refused(ofi, wr, rc) : UF_OK;
    }
    uf_ofi_slot *slot = take(rail, wr, silent ? UF_OFI_SLOT_SILENT : UF_OFI_SLOT_SENT);
    if (!slot)
        return UF_EAGAIN;
    void *from = fill_wire(ofi, &slot->wire, wr);
    ssize_t rc = fi_send(rail->ep, from, ofi->wire_bytes, rail->slots_desc, rail->address_of[wr->peer], &slot->context);
    return post_slot(ofi, rail, slot, wr, rc);
}

/* The cold half of post's argument check: which of them is wrong. */
static int bad_wr(uf_ofi *ofi, const uf_wr *wr)
{
    if (wr->rail >= ofi->n_rails)
        return uf_fail(UF_ERANGE, "PE %d: a work request names rail %u, but there are %u", ofi->pe, wr->rail, ofi->n_rails);
    if (wr->peer >= ofi->n_pes)
        return uf_fail(UF_ERANGE, "PE %d: a work request names PE %u, but there are %u", ofi->pe, wr->peer, ofi->n_pes);
    if (ofi->rails[wr->rail].address_of[wr->peer] == FI_ADDR_NOTAVAIL)
        return uf_fail(UF_EINVAL, "PE %d: a work request to PE %u came before it was connected on rail %u", ofi->pe, wr->peer,
                       wr->rail);
    return uf_fail(UF_EINVAL, "PE %d: a work request of %llu bytes to PE %u is larger than the %llu of %s", ofi->pe,
                   (unsigned long long)wr->bytes, wr->peer, (unsigned long long)ofi->base.caps.max_message,
                   ofi->base.caps.provider);
}

int uf_ofi_post(uf_fabric *f, const uf_wr *wr)
{
    uf_ofi *ofi = (uf_ofi *)f;
    if (unlikely(wr->rail >= ofi->n_rails || wr->peer >= ofi->n_pes))
        return bad_wr(ofi, wr);
    uf_ofi_rail *rail = &ofi->rails[wr->rail];
    if (unlikely(rail->address_of[wr->peer] == FI_ADDR_NOTAVAIL || wr->bytes > ofi->base.caps.max_message))
        return bad_wr(ofi, wr);
    switch ((uf_verb)wr->verb) {
    case UF_VERB_WRITE:
        return post_write(ofi, rail, wr, false);
    case UF_VERB_WRITE_IMM:
        if (unlikely(ofi->source == UF_OFI_SOURCE_HEADER))
            return uf_fail(UF_EUNSUPPORTED, "PE %d: provider %s does not tell who sent an immediate", ofi->pe,
                           ofi->base.caps.provider);
        return post_write(ofi, rail, wr, true);
    case UF_VERB_READ:
        return post_read(ofi, rail, wr);
    case UF_VERB_SEND:
        return post_send(ofi, rail, wr);
    }
    return uf_fail(UF_EINVAL, "PE %d: a work request to PE %u has the unknown verb %u", ofi->pe, wr->peer, wr->verb);
}
