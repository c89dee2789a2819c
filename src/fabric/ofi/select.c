/* select.c - chooses among what fi_getinfo offers. Pure: looks at attributes and at its arguments, touches nothing.
 *
 * Here, and only here, stand the few facts about providers that fi_info does not carry: who names the sender of a remote
 * write, what EFA's completions mean, which interfaces lead nowhere. Each says why it is believed. */
#include "fabric/ofi/ofi.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---------------------------------------------------------------- providers */

/* What a name that users type stands for, best first; a provider is taken only under the very name that is tried, since libfabric answers to
 * "tcp" with tcp;ofi_rxm as well. Utility providers turn a core provider's connections or datagrams into the RDM endpoints we need.
 *
 * tcp is RDM by itself from libfabric 1.18 on; in 1.17 that code is called net. tcp;ofi_rxm comes last, for libraries that were built without
 * both: in 1.17 it ends a process with a signal when a peer dies (cuts_down_survivors, below), which net does not. */
static const struct {
    const char *name;
    const char *tried[3];
} layered[] = {
    {"tcp", {"tcp", "net", "tcp;ofi_rxm"}},
    {"verbs", {"verbs;ofi_rxm", "verbs", NULL}},
    {"udp", {"udp;ofi_rxd", "udp", NULL}},
    {"efa-direct", {"efa", NULL, NULL}}, /* a fabric of provider efa */
};

static int add_layers(const char *name, const char **names, int n, int max)
{
    for (size_t i = 0; i < sizeof layered / sizeof layered[0]; i++) {
        if (strcasecmp(name, layered[i].name))
            continue;
        for (int j = 0; j < 3 && layered[i].tried[j] && n < max; j++)
            names[n++] = layered[i].tried[j];
        return n;
    }
    if (n < max)
        names[n++] = name;
    return n;
}

/* shm is faster than tcp and comes last all the same, unless it is named: its spin locks lie in memory that peers share (seen in 1.17), and a
 * process killed while it holds one leaves every other spinning inside post or poll. Nothing here may hang for a dead peer. */
int uf_ofi_candidates(const char *name, bool one_host, const char **names, int max)
{
    if (name[0])
        return add_layers(name, names, 0, max);
    int n = add_layers("efa", names, 0, max);
    n = add_layers("tcp", names, n, max);
    return one_host ? add_layers("shm", names, n, max) : n;
}

/* ---------------------------------------------------------------- interfaces */

bool uf_ofi_is_container_interface(const char *name)
{
    static const char *const prefixes[] = {"docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc", "vnet"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static const struct sockaddr *ip_address(const struct fi_info *info)
{
    const struct sockaddr *a = info->src_addr;
    if (!a || (info->addr_format != FI_SOCKADDR && info->addr_format != FI_SOCKADDR_IN && info->addr_format != FI_SOCKADDR_IN6))
        return NULL;
    return a->sa_family == AF_INET || a->sa_family == AF_INET6 ? a : NULL;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_link_local(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 16) == 0xa9fe;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

static void print_address(const struct sockaddr *a, char *text, size_t bytes)
{
    text[0] = 0;
    if (a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, text, (socklen_t)bytes);
    else
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, text, (socklen_t)bytes);
}

static const char *domain_name(const struct fi_info *info)
{
    return info->domain_attr && info->domain_attr->name ? info->domain_attr->name : "";
}

void uf_ofi_describe(const struct fi_info *info, char *text, size_t bytes)
{
    const struct sockaddr *a = ip_address(info);
    char address[INET6_ADDRSTRLEN] = "";
    if (a)
        print_address(a, address, sizeof address);
    snprintf(text, bytes, "%s%s%s", domain_name(info), address[0] ? " " : "", address);
}

/* ---------------------------------------------------------------- the choice */

enum { UNFIT = -1 };

/* Which of a host's addresses: the larger the better. */
static int rate_interface(const struct sockaddr *a, const char *name, const uf_ofi_wish *wish)
{
    char text[INET6_ADDRSTRLEN];
    print_address(a, text, sizeof text);
    bool ipv4 = a->sa_family == AF_INET;
    if (wish->interface[0]) {
        if (strcmp(wish->interface, text) == 0)
            return 1000;
        return strcmp(wish->interface, name) == 0 && !(is_link_local(a) && !ipv4) ? 900 + ipv4 : UNFIT;
    }
    if (is_loopback(a))
        return wish->one_host ? 800 + ipv4 : UNFIT;
    if (is_link_local(a))
        return ipv4 ? 10 : UNFIT; /* an IPv6 link address means nothing without its link */
    int points = 100 + ipv4;
    if (wish->route && same_address(a, wish->route))
        points += 500;
    if (uf_ofi_is_container_interface(name))
        points -= 80; /* last, but better than nothing: inside a container it may be all there is */
    return points;
}

static bool is_efa(const struct fi_info *info)
{
    return strncasecmp(info->fabric_attr->prov_name, "efa", 3) == 0;
}

static bool is_efa_direct(const struct fi_info *info)
{
    return is_efa(info) && info->fabric_attr->name && strcasecmp(info->fabric_attr->name, "efa-direct") == 0;
}

static int rate(const struct fi_info *info, const uf_ofi_wish *wish)
{
    const uint64_t needed = FI_MSG | FI_RMA;
    if (!info->ep_attr || info->ep_attr->type != FI_EP_RDM || (info->caps & needed) != needed)
        return UNFIT;
    if (wish->provider && strcasecmp(info->fabric_attr->prov_name, wish->provider))
        return UNFIT;
    if (is_efa(info)) {
        bool direct = is_efa_direct(info);
        if ((wish->efa_direct && !direct) || (wish->efa_plain && direct))
            return UNFIT;
        return direct ? 200 : 100;
    }
    const struct sockaddr *a = ip_address(info);
    if (a)
        return rate_interface(a, domain_name(info), wish);
    return info->tx_attr->inject_size ? 100 : 90; /* shm offers itself twice, for GPU memory without inject */
}

enum { A_NETWORK = 100 }; /* what rate_interface gives to those that lead somewhere */

/* One address of each interface that is a network, the best one, by name, since rail i talks to rail i and hosts rate theirs differently. */
static int select_interfaces(struct fi_info *list, const uf_ofi_wish *wish, const struct fi_info *best, struct fi_info **chosen,
                             int max)
{
    int n = 0;
    for (struct fi_info *i = list; i; i = i->next) {
        const struct sockaddr *a = ip_address(i);
        int at = n, same = 1;
        if (!a || a->sa_family != ip_address(best)->sa_family || rate(i, wish) < A_NETWORK ||
            strcmp(i->fabric_attr->prov_name, best->fabric_attr->prov_name))
            continue;
        while (at > 0 && (same = strcmp(domain_name(chosen[at - 1]), domain_name(i))) > 0)
            at--;
        if (at > 0 && same == 0) {
            if (rate(i, wish) > rate(chosen[at - 1], wish))
                chosen[at - 1] = i;
            continue;
        }
        n += n < max;
        for (int j = n - 1; j > at; j--)
            chosen[j] = chosen[j - 1];
        if (at < n)
            chosen[at] = i;
    }
    return n;
}

/* Several NICs of one kind are rails: EFA, where a host has up to 32 of equal rank, and interfaces if that is wished. Elsewhere one. */
int uf_ofi_select(struct fi_info *list, const uf_ofi_wish *wish, struct fi_info **chosen, int max)
{
    struct fi_info *best = NULL;
    int top = UNFIT, n = 0;
    for (struct fi_info *i = list; i; i = i->next) {
        int points = rate(i, wish);
        if (points > top) {
            top = points;
            best = i;
        }
    }
    if (!best || max < 1)
        return 0;
    if (!is_efa(best)) {
        chosen[0] = best;
        return wish->interfaces && ip_address(best) && top >= A_NETWORK ? select_interfaces(list, wish, best, chosen, max) : 1;
    }
    for (struct fi_info *i = list; i && n < max; i = i->next) {
        bool known = rate(i, wish) != top;
        for (int j = 0; j < n && !known; j++)
            known = strcmp(domain_name(chosen[j]), domain_name(i)) == 0;
        if (!known)
            chosen[n++] = i;
    }
    return n;
}

/* ---------------------------------------------------------------- what fi_info does not say */

/* FI_SOURCE promises the sender of messages; for remote writes only EFA keeps that promise (its CQE carries the sender's queue and address
 * handle), rxm and verbs do not. With 8 bytes of CQ data nobody needs to be asked: the PE number travels with it. */
uf_ofi_source uf_ofi_choose_source(const struct fi_info *info)
{
    if (info->domain_attr->cq_data_size >= 8)
        return UF_OFI_SOURCE_DATA;
    if (info->domain_attr->cq_data_size >= 4 && (info->caps & FI_SOURCE) && is_efa(info))
        return UF_OFI_SOURCE_CQE;
    return UF_OFI_SOURCE_HEADER;
}

/* On efa-direct every level is the NIC's acknowledgement, which the target sends after its CQE. Over fabric efa the default is "transmitted",
 * and a software protocol may stand between. */
bool uf_ofi_default_level_placed(const struct fi_info *info)
{
    return (info->tx_attr->op_flags & (FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE)) || is_efa_direct(info);
}

/* In 1.17 rxm over tcp follows a NULL context when a connection ends while it holds something without one: an injected operation that waits
 * to be sent, or a write with CQ data that has come in part. 6 of 50 runs that killed a PE so ended a survivor, with nothing injected and
 * nothing large too, so there is no way round it. Who names that provider is told, and otherwise gets what any provider gets. */
bool uf_ofi_cuts_down_survivors(const struct fi_info *info)
{
    return strcasecmp(info->fabric_attr->prov_name, "tcp;ofi_rxm") == 0;
}

/* inject_size speaks of messages. It holds for writes as well, but on efa-direct, whose queues have no inline writes unless
 * they were made wide. */
size_t uf_ofi_inject_write_size(const struct fi_info *info)
{
    return is_efa_direct(info) ? 0 : info->tx_attr->inject_size;
}

/* The descriptor of net (1.17) stays readable for good once it was, though fi_trywait says that one may sleep: nobody ever does, each poll
 * costs a read() of it, and eight PEs on two cores take twice as long with it as with naps. The later tcp, which is the same code, starts a
 * thread for it that contends with ours for every call. */
static bool never_lets_sleep(const struct fi_info *info)
{
    return strcasecmp(info->fabric_attr->prov_name, "net") == 0 || strcasecmp(info->fabric_attr->prov_name, "tcp") == 0;
}

bool uf_ofi_wants_wait_fd(const struct fi_info *info, bool one_host, int n_pes, int cores)
{
    return !never_lets_sleep(info) && one_host && n_pes > cores;
}
