/* bench_floor_ofi.c - bare libfabric between pairs of PEs of a run (0 and 1, 2 and 3, ...): what a put with a signal costs when there is no library above it.
 *
 * The cheapest honest scheme that libfabric has: one write with remote CQ data, so data and notice are one operation, injected
 * where it fits; the receiver counts completions and reads the payload. A stream asks for delivery-complete on the last
 * write of each window alone. Both sides poll their own queue as long as they wait. Nothing of src/fabric is used here, or the floor
 * would move with what it is the floor of. */
#include "bench_floor.h"
#include "engine/driver.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CQ_DEPTH   4096
#define CONTEXTS   2048 /* more than are ever in flight (--window is at most half): reused only after their completion */
#define SLOTS      8    /* of the ping-pong */
#define NAME_BYTES 256

struct bench_ofi_floor {
    bench_pe *b;
    struct fi_info *offers, *info; /* all that was offered, and which of it is used */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_mr *mr;
    unsigned char *area, *src; /* the first half is written by the peer, the second is what we send */
    uint64_t half, window, bytes, stride;
    fi_addr_t peer;
    uint64_t remote_base, remote_key;
    uint64_t issued, completed, arrived; /* writes of ours, their completions, the peer's notices */
    uint64_t pings, stream_number;
    struct fi_context2 contexts[CONTEXTS];
};

/* What each side tells the other through the shared mapping. */
typedef struct floor_address {
    uint64_t base, key, name_bytes;
    unsigned char name[NAME_BYTES];
} floor_address;
_Static_assert(sizeof(floor_address) <= BENCH_EXCHANGE, "an address must fit into the exchange area");

/* -------------------------------------------------------------- opening */

static struct fi_info *make_hints(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    /* No thread of the provider's: both sides poll all the time, and it would share their cores. */
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = strdup(provider);
    return hints;
}

/* The offers under this very name: libfabric answers to "tcp" with tcp;ofi_rxm as well. 1 if there are none. */
static int ask_for(bench_ofi_floor *f, const char *name, bool by_ip)
{
    struct fi_info *hints = make_hints(name);
    if (!hints || !hints->fabric_attr->prov_name) {
        fi_freeinfo(hints);
        return bench_fail(f->b, "no memory for libfabric's hints");
    }
    if (by_ip)
        hints->addr_format = FI_SOCKADDR_IN;
    int rc =
        fi_getinfo(FI_VERSION(1, 17), by_ip ? "127.0.0.1" : NULL, by_ip ? "0" : NULL, by_ip ? FI_SOURCE : 0, hints, &f->offers);
    fi_freeinfo(hints);
    if (rc != 0)
        f->offers = NULL;
    for (f->info = f->offers; f->info && strcasecmp(f->info->fabric_attr->prov_name, name) != 0;)
        f->info = f->info->next;
    if (f->info)
        return 0;
    fi_freeinfo(f->offers);
    f->offers = NULL;
    return 1;
}

/* What "tcp" stands for is the library's choice; where no world can be asked for it, the same choice is made here. */
static int find_provider(bench_ofi_floor *f, const char *provider)
{
    static const char *const sockets[] = {"tcp", "net", "tcp;ofi_rxm"};
    const size_t n = sizeof sockets / sizeof *sockets;
    size_t first = 0;
    while (first < n && strcasecmp(provider, sockets[first]) != 0)
        first++;
    int rc = ask_for(f, provider, first < n);
    for (size_t i = 1; rc == 1 && first == 0 && i < n; i++)
        rc = ask_for(f, sockets[i], true);
    return rc == 1 ? bench_fail(f->b, "libfabric has no provider %s here", provider) : rc;
}

static int failed_step(bench_ofi_floor *f, const char *step, int rc)
{
    return bench_fail(f->b, "the floor's %s: %s", step, fi_strerror(-rc));
}

static int open_endpoint(bench_ofi_floor *f)
{
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_DATA, .size = CQ_DEPTH};
    int rc;
    if ((rc = fi_fabric(f->info->fabric_attr, &f->fabric, NULL)) != 0)
        return failed_step(f, "fi_fabric", rc);
    if ((rc = fi_domain(f->fabric, f->info, &f->domain, NULL)) != 0)
        return failed_step(f, "fi_domain", rc);
    if ((rc = fi_endpoint(f->domain, f->info, &f->ep, NULL)) != 0)
        return failed_step(f, "fi_endpoint", rc);
    if ((rc = fi_av_open(f->domain, &av, &f->av, NULL)) != 0)
        return failed_step(f, "fi_av_open", rc);
    if ((rc = fi_cq_open(f->domain, &cq, &f->cq, NULL)) != 0)
        return failed_step(f, "fi_cq_open", rc);
    if ((rc = fi_ep_bind(f->ep, &f->av->fid, 0)) != 0 || (rc = fi_ep_bind(f->ep, &f->cq->fid, FI_TRANSMIT | FI_RECV)) != 0)
        return failed_step(f, "fi_ep_bind", rc);
    if ((rc = fi_enable(f->ep)) != 0)
        return failed_step(f, "fi_enable", rc);
    return 0;
}

static int register_area(bench_ofi_floor *f, uint64_t max_bytes)
{
    uint64_t stride = (max_bytes + 63) & ~63ull, slots = f->window > SLOTS ? f->window : SLOTS;
    f->half = (stride * slots + 4095) & ~4095ull;
    f->area = aligned_alloc(4096, 2 * f->half);
    if (!f->area)
        return bench_fail(f->b, "no memory: %llu bytes for the floor's buffers", (unsigned long long)(2 * f->half));
    memset(f->area, 0, 2 * f->half);
    f->src = f->area + f->half;
    int rc = fi_mr_reg(f->domain, f->area, 2 * f->half, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                       77 + (uint64_t)f->b->pe, 0, &f->mr, NULL);
    return rc == 0 ? 0 : bench_fail(f->b, "the floor's fi_mr_reg: %s", fi_strerror(-rc));
}

static int meet(bench_ofi_floor *f)
{
    floor_address mine = {.key = fi_mr_key(f->mr)}, other;
    size_t bytes = sizeof mine.name;
    if (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        mine.base = (uintptr_t)f->area;
    int rc = fi_getname(&f->ep->fid, mine.name, &bytes);
    if (rc != 0)
        return bench_fail(f->b, "the floor's fi_getname: %s", fi_strerror(-rc));
    mine.name_bytes = bytes;
    memcpy(f->b->shared->exchange[f->b->pe], &mine, sizeof mine);
    if (bench_sync(f->b) != 0)
        return -1;
    memcpy(&other, f->b->shared->exchange[f->b->pe ^ 1], sizeof other);
    f->remote_base = other.base;
    f->remote_key = other.key;
    rc = fi_av_insert(f->av, other.name, 1, &f->peer, 0, NULL);
    if (rc != 1)
        return bench_fail(f->b, "the floor's fi_av_insert took no address");
    return bench_sync(f->b);
}

int bench_floor_ofi_open(bench_pe *b, const char *provider, uint64_t max_bytes, uint64_t window, bench_ofi_floor **floor)
{
    bench_ofi_floor *f = calloc(1, sizeof *f);
    if (!f)
        return bench_fail(b, "no memory for the floor");
    f->b = b;
    f->window = window;
    if (find_provider(f, provider) != 0 || open_endpoint(f) != 0 || register_area(f, max_bytes) != 0 || meet(f) != 0) {
        bench_floor_ofi_close(f);
        return -1;
    }
    bench_floor_ofi_size(f, max_bytes, window);
    *floor = f;
    return 0;
}

static void close_fid(fid_t fid)
{
    if (fid)
        fi_close(fid);
}

void bench_floor_ofi_close(bench_ofi_floor *f)
{
    if (!f)
        return;
    close_fid(f->ep ? &f->ep->fid : NULL);
    close_fid(f->mr ? &f->mr->fid : NULL);
    close_fid(f->cq ? &f->cq->fid : NULL);
    close_fid(f->av ? &f->av->fid : NULL);
    close_fid(f->domain ? &f->domain->fid : NULL);
    close_fid(f->fabric ? &f->fabric->fid : NULL);
    fi_freeinfo(f->offers);
    free(f->area);
    free(f);
}

void bench_floor_ofi_size(bench_ofi_floor *f, uint64_t bytes, uint64_t window)
{
    f->window = window;
    f->bytes = bytes;
    f->stride = (bytes + 63) & ~63ull;
    uint64_t slots = f->window > SLOTS ? f->window : SLOTS;
    for (uint64_t slot = 0; slot < slots; slot++)
        bench_pattern_fill(f->src + slot * f->stride, bytes, slot);
}

/* -------------------------------------------------------------- moving */

static int poll_queue(void *arg)
{
    bench_ofi_floor *f = arg;
    struct fi_cq_data_entry entries[16];
    ssize_t n = fi_cq_read(f->cq, entries, 16);
    if (n == -FI_EAGAIN)
        return 0;
    if (n < 0) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(f->cq, &error, 0);
        return bench_fail(f->b, "the floor's completion queue: %s", fi_strerror(error.err ? error.err : (int)-n));
    }
    for (ssize_t i = 0; i < n; i++) {
        if (entries[i].flags & FI_REMOTE_CQ_DATA)
            f->arrived++;
        else
            f->completed++;
    }
    return 0;
}

/* How a write completes here: an injected one not at all, the others at transmission or at delivery. */
typedef enum write_level { LEVEL_INJECT, LEVEL_SENT, LEVEL_DELIVERED } write_level;

static ssize_t write_delivered(bench_ofi_floor *f, void *src, uint64_t at, uint64_t number, void *context)
{
    void *desc = fi_mr_desc(f->mr);
    struct iovec local = {src, f->bytes};
    struct fi_rma_iov remote = {at, f->bytes, f->remote_key};
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = f->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = context,
                                 .data = number};
    return fi_writemsg(f->ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE);
}

static ssize_t write_once(bench_ofi_floor *f, void *src, uint64_t at, uint64_t number, write_level level)
{
    void *context = &f->contexts[f->issued % CONTEXTS];
    switch (level) {
    case LEVEL_INJECT:
        return fi_inject_writedata(f->ep, src, f->bytes, number, f->peer, at, f->remote_key);
    case LEVEL_SENT:
        return fi_writedata(f->ep, src, f->bytes, fi_mr_desc(f->mr), number, f->peer, at, f->remote_key, context);
    case LEVEL_DELIVERED:
        break;
    }
    return write_delivered(f, src, at, number, context);
}

static int write_slot(bench_ofi_floor *f, uint64_t slot, uint64_t number, write_level level)
{
    unsigned char *src = f->src + slot * f->stride;
    bench_stamp(src, f->bytes, number);
    for (;;) {
        ssize_t rc = write_once(f, src, f->remote_base + slot * f->stride, number & 0xffffffffu, level);
        if (rc == 0)
            break;
        if (rc != -FI_EAGAIN)
            return bench_fail(f->b, "the floor's write: %s", fi_strerror((int)-rc));
        if (poll_queue(f) != 0)
            return -1;
    }
    f->issued += level != LEVEL_INJECT;
    return 0;
}

/* Polls until *counter has reached `wanted`. Between two looks it does what a wait of the library does, so that on a busy machine the
 * ratio tells of the library and not of two ways to share a core. */
static int poll_until(bench_ofi_floor *f, const uint64_t *counter, uint64_t wanted, uint64_t start)
{
    for (uint32_t round = 0; *counter < wanted; round++) {
        if (poll_queue(f) != 0)
            return -1;
        if (*counter >= wanted)
            break;
        uf_driver_threads.relax(NULL, round);
        if (round % 1024 == 1023 && bench_relax(f->b, round + 1, start) != 0)
            return -1;
    }
    return 0;
}

/* Ends a slice: own writes are complete, and both sides poll until the other is through, since its last acknowledgement needs us. */
static int settle(bench_ofi_floor *f)
{
    if (poll_until(f, &f->completed, f->issued, uf_clock_ns()) != 0)
        return -1;
    return bench_sync_polling(f->b, poll_queue, f);
}

static int await_ping(bench_ofi_floor *f, uint64_t arrived, uint64_t number, uint64_t start)
{
    if (poll_until(f, &f->arrived, arrived, start) != 0)
        return -1;
    if (!bench_stamp_is(f->area + (number % SLOTS) * f->stride, f->bytes, number))
        return bench_fail(f->b, "the floor's ping-pong: notice %llu came before its payload", (unsigned long long)number);
    return 0;
}

int bench_floor_ofi_ping_pong(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_ofi_floor *f = arg;
    write_level level = f->bytes <= f->info->tx_attr->inject_size ? LEVEL_INJECT : LEVEL_SENT;
    uint64_t start = uf_clock_ns(), arrived = f->arrived;
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t number = ++f->pings;
        if (b->pe == 0 && write_slot(f, number % SLOTS, number, level) != 0)
            return -1;
        if (await_ping(f, ++arrived, number, start) != 0)
            return -1;
        if (b->pe == 1 && write_slot(f, number % SLOTS, number, level) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return settle(f);
}

static int send_window(bench_ofi_floor *f)
{
    for (uint64_t slot = 0; slot < f->window; slot++) {
        write_level level = slot + 1 == f->window ? LEVEL_DELIVERED : LEVEL_SENT;
        if (write_slot(f, slot, ++f->stream_number, level) != 0)
            return -1;
    }
    return poll_until(f, &f->completed, f->issued, uf_clock_ns());
}

static int receive_windows(bench_ofi_floor *f, uint64_t windows)
{
    if (poll_until(f, &f->arrived, f->arrived + windows * f->window, uf_clock_ns()) != 0)
        return -1;
    f->stream_number += windows * f->window;
    for (uint64_t slot = 0; slot < f->window; slot++) {
        uint64_t number = f->stream_number - f->window + slot + 1;
        if (!bench_stamp_is(f->area + slot * f->stride, f->bytes, number))
            return bench_fail(f->b, "the floor's stream: slot %llu does not hold message %llu", (unsigned long long)slot,
                              (unsigned long long)number);
    }
    return 0;
}

int bench_floor_ofi_stream(bench_pe *b, void *arg, uint64_t iterations, bench_meter *meter)
{
    bench_ofi_floor *f = arg;
    if (b->pe & 1)
        return receive_windows(f, iterations) != 0 ? -1 : settle(f);
    bench_meter_start(meter);
    for (uint64_t i = 0; i < iterations; i++) {
        if (send_window(f) != 0)
            return -1;
        bench_meter_step(meter);
    }
    return settle(f);
}
