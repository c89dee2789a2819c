/* cq.c - takes completions from libfabric and says whose they are. Lean: entries are read into an array on the stack and
 * only the fields that a uf_cqe of their kind has are written.
 *
 * A remote write is told by its flags; any other completion has the context of a slot: a WR of ours or a receive. What belongs
 * to neither (an injected WR that failed, a peer's operation that broke off, bytes of a stray sender) has no owner to tell: it is
 * logged, and the flow it hurt is found by its deadline. */
#include "base/log.h"
#include "fabric/ofi/ofi.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define unlikely(x) __builtin_expect(!!(x), 0)

enum { STRAYS_LOGGED = 4 };

void uf_ofi_receive(uf_ofi *ofi, uf_ofi_rail *rail, uf_ofi_slot *slot)
{
    void *into = ofi->wire_bytes == sizeof slot->wire ? (void *)&slot->wire : (void *)slot->wire.message;
    if (unlikely(fi_recv(rail->ep, into, ofi->wire_bytes, rail->slots_desc, FI_ADDR_UNSPEC, &slot->context))) {
        slot->next = rail->unposted;
        rail->unposted = slot;
    }
}

/* Only what was set aside before this call: a receive that is refused again goes back to the list. */
static void __attribute__((noinline)) receive_again(uf_ofi *ofi, uf_ofi_rail *rail)
{
    uf_ofi_slot *slot = rail->unposted;
    rail->unposted = NULL;
    while (slot) {
        uf_ofi_slot *next = slot->next;
        uf_ofi_receive(ofi, rail, slot);
        slot = next;
    }
}

static void __attribute__((format(printf, 2, 3), cold)) stray(uf_ofi *ofi, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ofi->error, sizeof ofi->error, format, args);
    va_end(args);
    if (ofi->strays++ < STRAYS_LOGGED)
        uf_log(UF_LOG_WARN, ofi->pe, "%s%s", ofi->error, ofi->strays == STRAYS_LOGGED ? " (further ones are not logged)" : "");
}

/* The PE behind a completion whose provider names the sender; UINT32_MAX if it is none of ours. */
static uint32_t sender(const uf_ofi *ofi, const uf_ofi_rail *rail, fi_addr_t from)
{
    return from < ofi->n_pes ? rail->pe_of[from] : UINT32_MAX;
}

/* A peer's write with an immediate. Each translator returns the number of CQEs it wrote, 0 or 1. */
static int take_imm(uf_ofi *ofi, uf_ofi_rail *rail, const struct fi_cq_data_entry *entry, fi_addr_t from, uf_cqe *cqe)
{
    uint32_t peer = ofi->source == UF_OFI_SOURCE_DATA ? (uint32_t)(entry->data >> 32) : sender(ofi, rail, from);
    if (unlikely(peer >= ofi->n_pes)) {
        stray(ofi, "PE %d: a remote write with data 0x%llx came from no PE of this world and was dropped", ofi->pe,
              (unsigned long long)entry->data);
        return 0;
    }
    cqe->kind = UF_CQE_IMM;
    cqe->flags = 0;
    cqe->status = UF_OK;
    cqe->peer = peer;
    cqe->cookie = 0;
    cqe->imm = (uint32_t)entry->data;
    cqe->bytes = entry->len;
    return 1;
}

static int take_message(uf_ofi *ofi, uf_ofi_rail *rail, const struct fi_cq_data_entry *entry, fi_addr_t from, uf_cqe *cqe)
{
    uf_ofi_slot *slot = entry->op_context;
    bool header = ofi->wire_bytes == sizeof slot->wire;
    uint32_t peer = header ? slot->wire.pe : sender(ofi, rail, from);
    bool sound = entry->len == ofi->wire_bytes && peer < ofi->n_pes && (!header || slot->wire.mark == UF_OFI_WIRE_MARK);
    if (sound) {
        cqe->kind = UF_CQE_MESSAGE;
        cqe->flags = 0;
        cqe->status = UF_OK;
        cqe->peer = peer;
        cqe->cookie = 0;
        cqe->imm = 0;
        cqe->bytes = UF_MESSAGE_BYTES;
        memcpy(cqe->message, slot->wire.message, UF_MESSAGE_BYTES);
    } else {
        stray(ofi, "PE %d: a message of %zu bytes is none of this world's and was dropped", ofi->pe, entry->len);
    }
    uf_ofi_receive(ofi, rail, slot);
    return sound;
}

static int take_sent(uf_ofi_rail *rail, uf_ofi_slot *slot, uf_cqe *cqe)
{
    int told = slot->kind == UF_OFI_SLOT_SENT;
    cqe->kind = UF_CQE_SENT;
    cqe->flags = 0;
    cqe->rail = rail->index;
    cqe->status = UF_OK;
    cqe->peer = slot->peer;
    cqe->cookie = slot->cookie;
    cqe->imm = 0;
    cqe->bytes = 0;
    uf_ofi_slot_give(rail, slot);
    return told;
}

/* The flags come first: with a remote write shm (seen in 1.17) gives for context what an older command left in its ring. */
static int take(uf_ofi *ofi, uf_ofi_rail *rail, const struct fi_cq_data_entry *entry, fi_addr_t from, uf_cqe *cqe)
{
    if (entry->flags & FI_REMOTE_WRITE) {
        if (ofi->solicited) /* the write consumed a receive */
            uf_ofi_receive(ofi, rail, entry->op_context);
        return entry->flags & FI_REMOTE_CQ_DATA ? take_imm(ofi, rail, entry, from, cqe) : 0;
    }
    uf_ofi_slot *slot = entry->op_context;
    if (unlikely(!slot))
        return 0;
    return slot->kind == UF_OFI_SLOT_RECEIVE ? take_message(ofi, rail, entry, from, cqe) : take_sent(rail, slot, cqe);
}

/* ---------------------------------------------------------------- errors */

static const char *const verb_names[] = {"write", "write with immediate", "read", "message"};

/* A provider may hand back a context of its own with an error, so it is looked up before it is believed. */
static uf_ofi_slot *own_slot(const uf_ofi_rail *rail, void *context)
{
    uintptr_t at = (uintptr_t)context, first = (uintptr_t)rail->slots;
    if (at < first || at >= first + rail->n_slots * sizeof *rail->slots || (at - first) % sizeof *rail->slots)
        return NULL;
    return context;
}

static int take_error(uf_ofi *ofi, uf_ofi_rail *rail, uf_cqe *cqe)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t got = fi_cq_readerr(rail->cq, &entry, 0);
    if (got == -FI_EAGAIN || got == 0)
        return 0;
    if (got < 0)
        return uf_ofi_fail(UF_EFABRIC, (int)got, "PE %d: the completion queue of provider %s is broken", ofi->pe,
                           ofi->base.caps.provider);
    unsigned index = rail->index;
    char text[128] = "";
    const char *detail = fi_cq_strerror(rail->cq, entry.prov_errno, entry.err_data, text, sizeof text);
    uf_ofi_slot *slot = own_slot(rail, entry.op_context);
    if (!slot || slot->kind == UF_OFI_SLOT_RECEIVE) {
        if (slot)
            uf_ofi_receive(ofi, rail, slot);
        if (entry.err != FI_ECANCELED)
            stray(ofi, "PE %d: provider %s reports on rail %u for no work request of ours: %s (%s)", ofi->pe,
                  ofi->base.caps.provider, index, fi_strerror(entry.err), detail ? detail : "");
        return 0;
    }
    /* We cancel nothing ourselves: the provider does when it gives up a connection, and its detail is then an old errno. */
    bool cut = entry.err == FI_ECANCELED;
    snprintf(ofi->error, sizeof ofi->error, "PE %d: a %s to PE %u on rail %u failed: %s (%s: %s)", ofi->pe,
             verb_names[slot->verb & 3], slot->peer, index,
             cut ? "the connection ended, PE dead or memory not registered there" : fi_strerror(entry.err),
             ofi->base.caps.provider,
             cut      ? fi_strerror(entry.err)
             : detail ? detail
                      : "no detail");
    take_sent(rail, slot, cqe);
    cqe->status = uf_ofi_code(entry.err);
    return 1;
}

/* ---------------------------------------------------------------- poll */

static int __attribute__((noinline, cold)) poll_failed(uf_ofi *ofi, uf_ofi_rail *rail, uf_cqe *cqes, ssize_t rc)
{
    if (rc != -FI_EAVAIL)
        return uf_ofi_fail(UF_EFABRIC, (int)rc, "PE %d: the completion queue of provider %s cannot be read", ofi->pe,
                           ofi->base.caps.provider);
    cqes[0].rail = rail->index;
    return take_error(ofi, rail, &cqes[0]);
}

static int poll_rail(uf_ofi *ofi, uf_ofi_rail *rail, uf_cqe *cqes, int max)
{
    struct fi_cq_data_entry entries[UF_OFI_BATCH];
    fi_addr_t from[UF_OFI_BATCH];
    size_t wanted = max < UF_OFI_BATCH ? (size_t)max : UF_OFI_BATCH;
    bool named = ofi->source == UF_OFI_SOURCE_CQE;
    ssize_t got = named ? fi_cq_readfrom(rail->cq, entries, wanted, from) : fi_cq_read(rail->cq, entries, wanted);
    if (unlikely(rail->unposted != NULL))
        receive_again(ofi, rail);
    if (got <= 0)
        return got == -FI_EAGAIN || got == 0 ? 0 : poll_failed(ofi, rail, cqes, got);
    int n = 0;
    for (ssize_t i = 0; i < got; i++) {
        cqes[n].rail = rail->index;
        n += take(ofi, rail, &entries[i], named ? from[i] : FI_ADDR_NOTAVAIL, &cqes[n]);
    }
    return n;
}

int uf_ofi_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    uf_ofi *ofi = (uf_ofi *)f;
    int n = 0;
    for (uint32_t i = 0; i < ofi->n_rails && n < max; i++) {
        int got = poll_rail(ofi, &ofi->rails[i], cqes + n, max - n);
        if (unlikely(got < 0))
            return n > 0 ? n : got; /* what was taken goes up first; the error stays */
        n += got;
    }
    return n;
}

/* ---------------------------------------------------------------- sleeping */

int uf_ofi_wait_fd(uf_fabric *f)
{
    return ((uf_ofi *)f)->wait_fd;
}

/* The descriptor exists with one rail only (ofi.c), so one fi_trywait decides. */
int uf_ofi_arm(uf_fabric *f)
{
    uf_ofi *ofi = (uf_ofi *)f;
    if (ofi->wait_fd < 0 || ofi->rails[0].unposted)
        return UF_EAGAIN;
    struct fid *fids[] = {&ofi->rails[0].cq->fid};
    return fi_trywait(ofi->rails[0].fabric, fids, 1) == 0 ? UF_OK : UF_EAGAIN;
}
