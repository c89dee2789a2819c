/* ofi.c - opens and closes the libfabric fabric: builds the rails of what offers.c chose, states what they can do.
 *
 * Everything that may fail for a reason outside (no such provider, a full /dev/shm, too few descriptors) fails here, before the
 * first WR, with the reason and what would help. Nothing is set in the user's environment: no provider's default is known to do harm that
 * an attribute could not avert. Called by the engine's thread, one call at a time. */
#include "fabric/ofi/ofi.h"
#include "base/log.h"
#include "topo/topo.h"
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    STRING_ADDRESS_BYTES = 64, /* of FI_ADDR_STR: the same on all PEs, though pids differ in length */
    DEFAULT_DEPTH = 256,
    /* tcp and shm moved 3 GiB in one WR rightly, but shm copies a WR within one poll: this bounds how long. It is EFA's limit too. */
    ONE_MESSAGE_MAX = 1 << 30,
    SPARE_DESCRIPTORS = 32,
};

/* ---------------------------------------------------------------- errors */

int uf_ofi_code(int error)
{
    switch (error) {
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_EHOSTDOWN:
    case FI_ENETUNREACH:
    case FI_ETIMEDOUT:
    case FI_ECANCELED:
    case EPIPE:
    case ESRCH:
        return UF_EPEER;
    default:
        return UF_EFABRIC;
    }
}

/* Which limit of the process is behind an error, as a sentence's tail. */
static void limit_behind(int error, char *text, size_t bytes)
{
    struct rlimit limit;
    text[0] = 0;
    if ((error == EMFILE || error == ENFILE) && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, bytes, "; the open-file limit is %llu (raise it: ulimit -n)", (unsigned long long)limit.rlim_cur);
    else if ((error == ENOMEM || error == EAGAIN || error == EPERM) && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
             limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, bytes, "; %llu bytes of memory may be locked (raise it if the device pins memory: ulimit -l unlimited)",
                 (unsigned long long)limit.rlim_cur);
    else if (error == ENOSPC)
        snprintf(text, bytes, "; %s has %llu bytes free", UF_OFI_SHM_DIRECTORY,
                 (unsigned long long)uf_ofi_shm_free(UF_OFI_SHM_DIRECTORY));
}

int uf_ofi_fail(int code, int rc, const char *format, ...)
{
    char what[512], limit[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    limit_behind(-rc, limit, sizeof limit);
    return uf_fail(code, "%s: %s%s", what, fi_strerror(-rc), limit);
}

/* ---------------------------------------------------------------- building */

/* A connection to each PE on each rail is a descriptor; running out of them later would be a silent wait. */
static int check_descriptors(const uf_fabric_params *params, const struct fi_info *info, uint32_t n_rails)
{
    struct rlimit limit;
    unsigned long long used = 0, needed = info->addr_format == FI_ADDR_STR ? 0 : (unsigned long long)params->n_pes;
    DIR *open_now = opendir("/proc/self/fd");
    if (!open_now && errno == EMFILE)
        return uf_ofi_fail(UF_ESYSTEM, -EMFILE, "PE %d: no descriptor is left", params->pe);
    if (!open_now || getrlimit(RLIMIT_NOFILE, &limit)) {
        if (open_now)
            closedir(open_now);
        return UF_OK;
    }
    while (readdir(open_now))
        used++;
    closedir(open_now);
    needed = needed * n_rails + SPARE_DESCRIPTORS;
    if (used + needed <= limit.rlim_cur)
        return UF_OK;
    return uf_fail(UF_ESYSTEM,
                   "PE %d: %s needs about %llu descriptors for %d PEs, %llu are in use and the open-file limit is %llu: raise it "
                   "(ulimit -n)",
                   params->pe, info->fabric_attr->prov_name, needed, params->n_pes, used, (unsigned long long)limit.rlim_cur);
}

static uint32_t least(size_t a, size_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* As the system calls the device, where the provider says it: of efa and verbs their verbs device, of tcp the interface. */
static const char *device_name(const struct fi_info *info)
{
    if (info->nic && info->nic->device_attr && info->nic->device_attr->name)
        return info->nic->device_attr->name;
    return info->domain_attr && info->domain_attr->name ? info->domain_attr->name : "";
}

/* Bytes a second of the NIC, 0 if nobody tells: the user's word goes first, then the provider's, then what the system says of the device. */
static uint64_t rate_of(const struct fi_info *info, const char *device, const uf_settings *settings)
{
    uint64_t set = (uint64_t)settings->number[UF_SET_NIC_RATE];
    uint64_t said = info->nic && info->nic->link_attr ? info->nic->link_attr->speed / 8 : 0;
    uf_topo_nic nic;
    if (said && !set)
        return said;
    if (uf_topo_read_nic("", device, set, &nic) && uf_topo_rate_known(nic.rate))
        return nic.rate.mbps * (1000000 / 8);
    return said;
}

static void read_attributes(uf_ofi *ofi, const uf_fabric_params *params, const uf_ofi_choice *c, const uf_ofi_tuning *tuning)
{
    const struct fi_info *info = c->chosen[0];
    uf_fabric_caps *caps = &ofi->base.caps;
    ofi->solicited = info->mode & FI_RX_CQ_DATA;
    ofi->source = tuning->headers_only ? UF_OFI_SOURCE_HEADER
                  : tuning->cqe_source ? UF_OFI_SOURCE_CQE
                                       : uf_ofi_choose_source(info);
    ofi->data_prefix = ofi->source == UF_OFI_SOURCE_DATA ? (uint64_t)params->pe << 32 : 0;
    ofi->wire_bytes = ofi->source == UF_OFI_SOURCE_CQE ? UF_MESSAGE_BYTES : sizeof(uf_ofi_wire);
    ofi->inject_send = tuning->no_inject ? 0 : info->tx_attr->inject_size;
    ofi->inject_write = tuning->no_inject ? 0 : uf_ofi_inject_write_size(info);

    snprintf(caps->fabric, sizeof caps->fabric, "ofi");
    snprintf(caps->provider, sizeof caps->provider, "%s", info->fabric_attr->prov_name);
    uf_ofi_describe(info, caps->detail, sizeof caps->detail);
    if (params->provider[0] && strcasecmp(params->provider, c->provider) && strcasecmp(params->provider, "efa-direct")) {
        size_t used = strlen(caps->detail);
        snprintf(caps->detail + used, sizeof caps->detail - used, ", as %s has no RDM endpoint in libfabric %u.%u",
                 params->provider, FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    }
    caps->n_rails = ofi->n_rails;
    caps->imm_bits = ofi->source == UF_OFI_SOURCE_HEADER ? 0 : 32;
    caps->imm_placed = uf_ofi_default_level_placed(info);
    caps->duplicates = strncasecmp(caps->provider, "efa", 3) == 0;
    caps->ordered_writes = info->tx_attr->msg_order & FI_ORDER_RMA_WAW;
    caps->needs_desc = info->domain_attr->mr_mode & FI_MR_LOCAL;
    caps->virtual_address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    caps->max_message = info->ep_attr->max_msg_size < ONE_MESSAGE_MAX ? info->ep_attr->max_msg_size : ONE_MESSAGE_MAX;
    caps->inline_bytes = least(ofi->inject_write > UF_MESSAGE_BYTES ? ofi->inject_write : UF_MESSAGE_BYTES, UINT32_MAX);
    caps->tx_depth = least(params->tx_depth ? params->tx_depth : DEFAULT_DEPTH, info->tx_attr->size);
    uint32_t receives = ofi->n_rails * (params->receives + (ofi->solicited ? params->remote_cqes : 0));
    caps->max_receives = receives ? receives : DEFAULT_DEPTH; /* at most: post_receives */
    caps->cq_depth = ofi->n_rails * (params->remote_cqes ? params->remote_cqes : DEFAULT_DEPTH);
    snprintf(caps->device, sizeof caps->device, "%s", device_name(info));
    caps->rate_bytes = rate_of(info, caps->device, params->settings);
}

/* A device may have fewer entries than wished for: halves the share of remote completions until it accepts. */
static int open_cq(uf_ofi *ofi, uf_ofi_rail *rail, bool wait)
{
    uf_fabric_caps *caps = &ofi->base.caps;
    int rc;
    for (;;) {
        struct fi_cq_attr attr = {
            .size = (size_t)caps->tx_depth + caps->max_receives + caps->cq_depth,
            .format = FI_CQ_FORMAT_DATA,
            .wait_obj = wait ? FI_WAIT_FD : FI_WAIT_NONE,
        };
        rc = fi_cq_open(rail->domain, &attr, &rail->cq, NULL);
        if (rc == 0)
            break;
        if (wait) { /* shm has no descriptor to wait on */
            wait = false;
        } else if (caps->cq_depth > 64) {
            caps->cq_depth /= 2;
        } else {
            return rc;
        }
    }
    if (wait && fi_control(&rail->cq->fid, FI_GETWAIT, &ofi->wait_fd))
        ofi->wait_fd = -1;
    return 0;
}

static int make_slots(uf_ofi *ofi, uint32_t index)
{
    uf_ofi_rail *rail = &ofi->rails[index];
    const uf_fabric_caps *caps = &ofi->base.caps;
    rail->n_slots = caps->tx_depth + caps->max_receives;
    size_t bytes = rail->n_slots * sizeof *rail->slots;
    rail->slots = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    rail->address_of = malloc(ofi->n_pes * sizeof *rail->address_of);
    rail->pe_of = malloc(ofi->n_pes * sizeof *rail->pe_of);
    rail->nowhere_of = calloc(ofi->n_pes, sizeof *rail->nowhere_of);
    if (!rail->slots || !rail->address_of || !rail->pe_of || !rail->nowhere_of)
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %u work requests and receives (%zu bytes)", ofi->pe, rail->n_slots,
                       bytes);
    memset(rail->slots, 0, bytes);
    for (uint32_t i = 0; i < ofi->n_pes; i++) {
        rail->address_of[i] = FI_ADDR_NOTAVAIL;
        rail->pe_of[i] = UINT32_MAX;
    }
    for (uint32_t i = caps->tx_depth; i-- > 0;)
        uf_ofi_slot_give(rail, &rail->slots[i]);
    ofi->next_key++;
    int rc = uf_ofi_mr_rail(ofi, index, rail->nowhere, sizeof rail->nowhere, true, &rail->nowhere_mr);
    if (rc || !caps->needs_desc)
        return rc;
    ofi->next_key++;
    rc = uf_ofi_mr_rail(ofi, index, rail->slots, bytes, false, &rail->slots_mr);
    if (rc == UF_OK)
        rail->slots_desc = fi_mr_desc(rail->slots_mr);
    return rc;
}

static int build_endpoint(uf_ofi *ofi, uf_ofi_rail *rail, bool wait, const char **step)
{
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = ofi->n_pes};
    int rc = fi_fabric(rail->info->fabric_attr, &rail->fabric, NULL);
    *step = "fabric";
    if (rc == 0) {
        *step = "domain";
        rc = fi_domain(rail->fabric, rail->info, &rail->domain, NULL);
    }
    if (rc == 0) {
        *step = "address vector";
        rc = fi_av_open(rail->domain, &av, &rail->av, NULL);
    }
    if (rc == 0) {
        *step = "completion queue";
        rc = open_cq(ofi, rail, wait);
    }
    if (rc == 0) {
        *step = "endpoint";
        rc = fi_endpoint(rail->domain, rail->info, &rail->ep, NULL);
    }
    if (rc == 0)
        rc = fi_ep_bind(rail->ep, &rail->av->fid, 0);
    if (rc == 0)
        rc = fi_ep_bind(rail->ep, &rail->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0) {
        *step = "enabled endpoint";
        rc = fi_enable(rail->ep);
    }
    return rc;
}

/* How many an endpoint holds is found by posting them: rx_attr->size says 256 for net (1.17), which takes as many as it is given, and with 256 a
 * job could have 42 PEs. */
static void post_receives(uf_ofi *ofi, uf_ofi_rail *rail)
{
    uf_fabric_caps *caps = &ofi->base.caps;
    uint32_t held = 0;
    for (uint32_t i = caps->tx_depth; i < rail->n_slots && !rail->unposted; i++, held++) {
        rail->slots[i].kind = UF_OFI_SLOT_RECEIVE;
        uf_ofi_receive(ofi, rail, &rail->slots[i]);
    }
    if (rail->unposted) {
        rail->unposted = NULL;
        held--;
    }
    caps->max_receives = held < caps->max_receives ? held : caps->max_receives;
}

static int build_rail(uf_ofi *ofi, uint32_t index, struct fi_info *info, bool wait)
{
    uf_ofi_rail *rail = &ofi->rails[index];
    rail->index = (uint16_t)index;
    rail->info = info;
    const char *step = "";
    int rc = build_endpoint(ofi, rail, wait, &step);
    if (rc)
        return uf_ofi_fail(rc == -FI_ENOMEM ? UF_ENOMEM : UF_EFABRIC, rc, "PE %d: provider %s on %s gave no %s", ofi->pe,
                           ofi->base.caps.provider, ofi->base.caps.detail, step);
    rc = make_slots(ofi, index);
    if (rc)
        return rc;
    post_receives(ofi, rail);
    return UF_OK;
}

/* The size of an address is the same on all PEs, since they are exchanged as one array. */
static int measure_address(uf_ofi *ofi)
{
    char name[UF_FABRIC_ADDRESS_MAX] = "";
    size_t bytes = sizeof name;
    int rc = fi_getname(&ofi->rails[0].ep->fid, name, &bytes);
    bool string = ofi->rails[0].info->addr_format == FI_ADDR_STR;
    if (rc || bytes > sizeof name - sizeof(uf_ofi_nowhere) || (string && bytes > STRING_ADDRESS_BYTES))
        return uf_ofi_fail(UF_EFABRIC, rc ? rc : -FI_ETOOSMALL, "PE %d: the address of the endpoint cannot be had", ofi->pe);
    ofi->base.caps.address_bytes = sizeof(uf_ofi_nowhere) + (string ? STRING_ADDRESS_BYTES : bytes);
    if (strcmp(ofi->base.caps.provider, "shm"))
        return UF_OK;
    snprintf(ofi->base.caps.detail, sizeof ofi->base.caps.detail, "%s", name);
    return uf_ofi_shm_reserve(UF_OFI_SHM_DIRECTORY, name);
}

/* ---------------------------------------------------------------- open, close, addresses */

static void close_rail(uf_ofi_rail *rail)
{
    if (rail->ep)
        fi_close(&rail->ep->fid);
    if (rail->slots_mr)
        fi_close(&rail->slots_mr->fid);
    if (rail->nowhere_mr)
        fi_close(&rail->nowhere_mr->fid);
    if (rail->cq)
        fi_close(&rail->cq->fid);
    if (rail->av)
        fi_close(&rail->av->fid);
    if (rail->domain)
        fi_close(&rail->domain->fid);
    if (rail->fabric)
        fi_close(&rail->fabric->fid);
    free(rail->slots);
    free(rail->address_of);
    free(rail->pe_of);
    free(rail->nowhere_of);
}

static void ofi_close(uf_fabric *f)
{
    uf_ofi *ofi = (uf_ofi *)f;
    while (ofi->mrs)
        uf_ofi_mr_close(f, ofi->mrs);
    for (uint32_t i = 0; i < ofi->n_rails; i++)
        close_rail(&ofi->rails[i]);
    fi_freeinfo(ofi->offers);
    free(ofi);
}

static int cores_here(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int build(uf_ofi *ofi, const uf_fabric_params *params, const uf_ofi_choice *c, const uf_ofi_tuning *tuning)
{
    read_attributes(ofi, params, c, tuning);
    ofi->placed_flags = uf_ofi_offers_placed(c->provider) ? FI_DELIVERY_COMPLETE : 0;
    ofi->base.caps.write_placed = ofi->placed_flags != 0 || ofi->base.caps.imm_placed;
    int rc = check_descriptors(params, c->chosen[0], ofi->n_rails);
    bool wait = ofi->n_rails == 1 &&
                (tuning->wait_fd || uf_ofi_wants_wait_fd(c->chosen[0], params->one_host, params->n_pes, cores_here()));
    for (uint32_t i = 0; i < ofi->n_rails && rc == UF_OK; i++)
        rc = build_rail(ofi, i, c->chosen[tuning->endpoints ? 0 : i], wait);
    return rc ? rc : measure_address(ofi);
}

static void warn_of_faults(const uf_ofi *ofi, const struct fi_info *info)
{
    if (uf_ofi_cuts_down_survivors(info))
        uf_log(UF_LOG_WARN, ofi->pe,
               "provider %s may end this process with a signal when a peer dies (seen in libfabric 1.17); UNFENCE_FABRIC=ofi:tcp "
               "takes "
               "one without that fault where there is one",
               ofi->base.caps.provider);
}

int uf_ofi_open_tuned(const uf_fabric_params *params, const uf_ofi_tuning *tuning, uf_fabric **out)
{
    if (fi_version() < FI_VERSION(1, 17))
        return uf_fail(UF_EUNSUPPORTED, "PE %d: libfabric %u.%u is older than 1.17, the oldest that serves", params->pe,
                       FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    int swept = uf_ofi_shm_sweep(UF_OFI_SHM_DIRECTORY);
    if (swept)
        uf_log(UF_LOG_INFO, params->pe, "removed %d files that dead processes had left in %s", swept, UF_OFI_SHM_DIRECTORY);
    uf_ofi_choice c = {0};
    int rc = uf_ofi_choose(params, &c);
    if (rc)
        return rc;
    uint32_t n_rails = tuning->endpoints ? tuning->endpoints : (uint32_t)c.n;
    uf_ofi *ofi = calloc(1, sizeof *ofi + n_rails * sizeof ofi->rails[0]);
    if (!ofi) {
        fi_freeinfo(c.list);
        return uf_fail(UF_ENOMEM, "PE %d: no memory for %u rails", params->pe, n_rails);
    }
    ofi->base.ops = &uf_fabric_ofi;
    ofi->pe = params->pe;
    ofi->n_pes = (uint32_t)params->n_pes;
    ofi->n_rails = n_rails;
    ofi->wait_fd = -1;
    ofi->offers = c.list;
    rc = build(ofi, params, &c, tuning);
    if (rc) {
        ofi_close(&ofi->base);
        return rc;
    }
    warn_of_faults(ofi, c.chosen[0]);
    *out = &ofi->base;
    return UF_OK;
}

static int ofi_open(const uf_fabric_params *params, uf_fabric **out)
{
    static const uf_ofi_tuning as_found;
    return uf_ofi_open_tuned(params, &as_found, out);
}

/* An address of ours: where writes of 0 bytes go, then libfabric's. */
static int ofi_address(uf_fabric *f, uint32_t rail, void *address)
{
    uf_ofi *ofi = (uf_ofi *)f;
    if (rail >= ofi->n_rails)
        return uf_fail(UF_ERANGE, "PE %d: there is no rail %u", ofi->pe, rail);
    memset(address, 0, f->caps.address_bytes);
    uf_ofi_rail *r = &ofi->rails[rail];
    uf_ofi_nowhere nowhere = {f->caps.virtual_address ? (uint64_t)(uintptr_t)r->nowhere : 0, fi_mr_key(r->nowhere_mr)};
    memcpy(address, &nowhere, sizeof nowhere);
    size_t bytes = f->caps.address_bytes - sizeof nowhere;
    int rc = fi_getname(&r->ep->fid, (unsigned char *)address + sizeof nowhere, &bytes);
    return rc ? uf_ofi_fail(UF_EFABRIC, rc, "PE %d: the address on rail %u cannot be had", ofi->pe, rail) : UF_OK;
}

static int ofi_connect(uf_fabric *f, uint32_t index, uint32_t peer, const void *address)
{
    uf_ofi *ofi = (uf_ofi *)f;
    if (index >= ofi->n_rails || peer >= ofi->n_pes)
        return uf_fail(UF_ERANGE, "PE %d: there is no PE %u on rail %u", ofi->pe, peer, index);
    uf_ofi_rail *rail = &ofi->rails[index];
    fi_addr_t made = FI_ADDR_NOTAVAIL;
    int rc = fi_av_insert(rail->av, (const unsigned char *)address + sizeof(uf_ofi_nowhere), 1, &made, 0, NULL);
    if (rc != 1)
        return uf_ofi_fail(UF_EPEER, rc < 0 ? rc : -FI_EADDRNOTAVAIL,
                           "PE %d: the address of PE %u on rail %u was refused by provider %s (it takes %zu endpoints)", ofi->pe,
                           peer, index, f->caps.provider, rail->info->domain_attr->ep_cnt);
    memcpy(&rail->nowhere_of[peer], address, sizeof rail->nowhere_of[peer]);
    rail->address_of[peer] = made;
    if (made < ofi->n_pes)
        rail->pe_of[made] = peer;
    return UF_OK;
}

static const char *ofi_error(uf_fabric *f)
{
    return ((uf_ofi *)f)->error;
}

const struct uf_fabric_ops uf_fabric_ofi = {
    .name = "ofi",
    .open = ofi_open,
    .close = ofi_close,
    .address = ofi_address,
    .connect = ofi_connect,
    .mr_register = uf_ofi_mr_register,
    .mr_close = uf_ofi_mr_close,
    .mr_key = uf_ofi_mr_key,
    .mr_desc = uf_ofi_mr_desc,
    .post = uf_ofi_post,
    .flush = NULL,
    .poll = uf_ofi_poll,
    .wait_fd = uf_ofi_wait_fd,
    .arm = uf_ofi_arm,
    .error = ofi_error,
};
