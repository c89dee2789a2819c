/* offers.c - asks libfabric what is here and lets select.c choose among it; a refusal says why and what else there is.
 *
 * What we need of a provider is written down once, as hints; everything else is read from the answer. Nothing is opened and nothing kept:
 * the list of offers is the caller's to free. Looks at the host (name service, a socket that sends nothing) only to learn which of our
 * addresses leads to the rendezvous. */
#include "fabric/ofi/ofi.h"
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CANDIDATES_MAX = 8 };

/* ---------------------------------------------------------------- asking */

/* The newest interface that headers and library both know; 1.17 at least. */
static uint32_t api_version(void)
{
    uint32_t built = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), running = fi_version();
    return running < built ? running : built;
}

static struct fi_info *make_hints(const char *provider, uint64_t level, uint64_t more_modes)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    bool efa = provider && strncasecmp(provider, "efa", 3) == 0;
    hints->caps = FI_MSG | FI_RMA | (efa ? FI_SOURCE : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | more_modes;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    /* No thread of the provider's: it would take a core, and in 1.17 net's crashed beside FI_THREAD_DOMAIN. */
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->op_flags = level;
    /* shm would otherwise copy writes into the peer's memory within post, and report those that fail without their context. */
    if (provider && strcmp(provider, "shm") == 0)
        hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_RMA_WAW;
    if (provider && !(hints->fabric_attr->prov_name = strdup(provider))) {
        fi_freeinfo(hints);
        return NULL;
    }
    return hints;
}

static int get_info(const char *provider, uint64_t level, uint64_t more_modes, struct fi_info **list)
{
    struct fi_info *hints = make_hints(provider, level, more_modes);
    if (!hints)
        return -FI_ENOMEM;
    *list = NULL;
    int rc = fi_getinfo(api_version(), NULL, NULL, 0, hints, list);
    fi_freeinfo(hints);
    return rc;
}

/* What one provider offers. EFA without unsolicited receives takes a receive for each immediate (FI_RX_CQ_DATA). */
static int offers_of(const char *provider, struct fi_info **list)
{
    int rc = get_info(provider, 0, 0, list);
    if (rc && strncasecmp(provider, "efa", 3) == 0)
        rc = get_info(provider, 0, FI_RX_CQ_DATA, list);
    return rc;
}

/* The names of all providers here that could serve, for the error of one that cannot. */
static void list_available(char *text, size_t bytes)
{
    struct fi_info *list = NULL;
    text[0] = 0;
    if (get_info(NULL, 0, 0, &list))
        snprintf(text, bytes, "none");
    for (const struct fi_info *i = list; i; i = i->next) {
        const char *name = i->fabric_attr->prov_name;
        bool known = false;
        for (const struct fi_info *j = list; j != i && !known; j = j->next)
            known = strcmp(j->fabric_attr->prov_name, name) == 0;
        size_t used = strlen(text);
        if (!known && used + strlen(name) + 3 < bytes)
            snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", name);
    }
    fi_freeinfo(list);
}

/* Our address on the way to the rendezvous "host:port": what a datagram to it would carry. False if that is not known. */
static bool route_to(const char *root, struct sockaddr_storage *ours)
{
    char host[256];
    const char *colon = strrchr(root, ':');
    if (!colon || colon == root || (size_t)(colon - root) >= sizeof host)
        return false;
    size_t length = (size_t)(colon - root), skip = root[0] == '[' && root[length - 1] == ']';
    memcpy(host, root + skip, length - 2 * skip);
    host[length - 2 * skip] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found))
        return false;
    bool known = false;
    for (const struct addrinfo *a = found; a && !known; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t bytes = sizeof *ours;
        known = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)ours, &bytes) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    return known;
}

/* ---------------------------------------------------------------- choosing */

static int refuse(const uf_fabric_params *params, const char *why)
{
    char available[256];
    list_available(available, sizeof available);
    return uf_fail(UF_EUNSUPPORTED,
                   "PE %d: libfabric %u.%u has no endpoint of %s%s for this job%s; available here: %s; choose with "
                   "UNFENCE_FABRIC=ofi:PROVIDER",
                   params->pe, FI_MAJOR(fi_version()), FI_MINOR(fi_version()), params->provider[0] ? "provider " : "any provider",
                   params->provider, why, available);
}

/* Why none of the offers served, if that can be told. */
static void why_none(const uf_fabric_params *params, bool saw_shm, char *why, size_t bytes)
{
    const char *interface = params->settings->text[UF_SET_INTERFACE];
    why[0] = 0;
    if (saw_shm)
        snprintf(why, bytes, " (shm refuses if %s has not 16 MiB for each core free: %llu bytes are; enlarge it or use tcp)",
                 UF_OFI_SHM_DIRECTORY, (unsigned long long)uf_ofi_shm_free(UF_OFI_SHM_DIRECTORY));
    else if (interface[0])
        snprintf(why, bytes, " (UNFENCE_INTERFACE=%s names no interface or address that it can use)", interface);
    else if (!params->one_host)
        snprintf(why, bytes, " (PEs are on several hosts: loopback does not serve)");
}

int uf_ofi_choose(const uf_fabric_params *params, uf_ofi_choice *c)
{
    const char *names[CANDIDATES_MAX];
    struct sockaddr_storage ours;
    uf_ofi_wish wish = {
        .one_host = params->one_host,
        .efa_direct = strcasecmp(params->provider, "efa-direct") == 0,
        .efa_plain = strcasecmp(params->provider, "efa") == 0,
        .interfaces = params->n_rails > 1,
        .interface = params->settings->text[UF_SET_INTERFACE],
    };
    if (!params->one_host && route_to(params->settings->text[UF_SET_ROOT], &ours))
        wish.route = (const struct sockaddr *)&ours;
    if (strcasecmp(params->provider, "shm") == 0 && !params->one_host)
        return refuse(params, " (shm reaches PEs of the same host only, and some are elsewhere)");
    int n = uf_ofi_candidates(params->provider, params->one_host, names, CANDIDATES_MAX);
    bool shm_failed = false;
    uint32_t max_rails = params->n_rails && params->n_rails < UF_OFI_RAILS_MAX ? params->n_rails : UF_OFI_RAILS_MAX;
    for (int i = 0; i < n; i++) {
        wish.provider = names[i];
        int rc = offers_of(names[i], &c->list);
        c->n = rc ? 0 : uf_ofi_select(c->list, &wish, c->chosen, (int)max_rails);
        c->provider = names[i];
        if (c->n)
            return UF_OK;
        fi_freeinfo(c->list);
        c->list = NULL;
        shm_failed |= strcasecmp(names[i], "shm") == 0;
    }
    char why[512];
    why_none(params, shm_failed, why, sizeof why);
    return refuse(params, why);
}

bool uf_ofi_offers_placed(const char *provider)
{
    struct fi_info *list = NULL;
    bool offered = get_info(provider, FI_DELIVERY_COMPLETE, FI_RX_CQ_DATA, &list) == 0;
    fi_freeinfo(list);
    return offered;
}
