/* address.c - resolving PE 0's name and looking at this host's interfaces.
 *
 * All addresses of a name and both families are kept: a name that resolves first to an address nobody listens
 * on, a container bridge or a family that is switched off must cost one failed attempt and not the job. The
 * same host is reached over loopback, whatever the name resolves to. */
#include "bootstrap/address.h"
#include "base/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *text, const char *end, long max, long *out)
{
    char *stop;
    if (text[0] < '0' || text[0] > '9' || end - text > 6)
        return -1;
    *out = strtol(text, &stop, 10);
    return stop == end && *out >= 1 && *out <= max ? 0 : -1;
}

int uf_root_parse(const char *text, uf_root *root)
{
    uf_root parsed = {.ports = 1};
    long port = 0, ports = 1;
    const char *colon = strrchr(text, ':');
    if (!colon)
        return uf_fail(UF_EINVAL, "the root address \"%.100s\" has no port: host:port is needed", text);
    const char *plus = strchr(colon, '+'), *end = text + strlen(text);
    if (number(colon + 1, plus ? plus : end, 65535, &port) || (plus && number(plus + 1, end, 64, &ports)) ||
        port + ports - 1 > 65535)
        return uf_fail(UF_EINVAL, "the root address \"%.100s\" has a wrong port: host:port with a port from 1 to 65535 is needed",
                       text);
    const char *host = text;
    size_t n = (size_t)(colon - text);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (memchr(host, ':', n)) {
        return uf_fail(UF_EINVAL, "the root address \"%.100s\" is ambiguous: write an IPv6 address as [address]:port", text);
    }
    if (!n || n >= sizeof parsed.host)
        return uf_fail(UF_EINVAL, "the root address \"%.100s\" has %s: host:port is needed", text,
                       n ? "a host name that is too long" : "no host");
    memcpy(parsed.host, host, n);
    parsed.port = (uint16_t)port;
    parsed.ports = (uint16_t)ports;
    *root = parsed;
    return UF_OK;
}

void uf_address_set_port(struct sockaddr_storage *socket, uint16_t port)
{
    if (socket->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)socket)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)socket)->sin_port = htons(port);
}

const char *uf_address_text(const struct sockaddr_storage *socket, char text[UF_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (socket->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)socket;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(text, UF_ADDRESS_TEXT, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)socket;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(text, UF_ADDRESS_TEXT, "%s:%u", host, ntohs(v4->sin_port));
    }
    return text;
}

static socklen_t length_of(int family)
{
    return family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* The same host address, whatever the port. */
static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    if (a->sa_family == AF_INET6)
        return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr);
    return false;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static uf_address *add(uf_addresses *list, const struct sockaddr *socket)
{
    for (size_t i = 0; i < list->n; i++)
        if (same_host((const struct sockaddr *)&list->at[i].socket, socket))
            return NULL;
    if (list->n == UF_ADDRESSES)
        return NULL;
    uf_address *address = &list->at[list->n++];
    memset(address, 0, sizeof *address);
    address->length = length_of(socket->sa_family);
    memcpy(&address->socket, socket, address->length);
    return address;
}

static void add_text(uf_addresses *list, int family, const char *text)
{
    struct sockaddr_storage s = {.ss_family = (sa_family_t)family};
    void *into =
        family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&s)->sin6_addr : (void *)&((struct sockaddr_in *)&s)->sin_addr;
    if (inet_pton(family, text, into) == 1)
        add(list, (const struct sockaddr *)&s);
}

static int resolve(const char *host, struct addrinfo **found)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    int rc = getaddrinfo(host, NULL, &hints, found); /* a literal needs no resolver */
    if (!rc)
        return UF_OK;
    hints.ai_flags = 0;
    rc = getaddrinfo(host, NULL, &hints, found);
    if (!rc)
        return UF_OK;
    return uf_fail(UF_ESYSTEM, "the host name \"%.200s\" of PE 0 does not resolve: %s", host,
                   rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

/* An interface of this host that carries IP and is up. */
static bool usable(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET ||
            (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr)));
}

static bool is_here(const struct ifaddrs *all, const struct sockaddr *address)
{
    if (is_loopback(address))
        return true;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (usable(i) && same_host(i->ifa_addr, address))
            return true;
    return false;
}

/* The addresses of the interface called `name`, or the one address that `name` is. */
static int of_interface(const struct ifaddrs *all, const char *name, uf_addresses *list)
{
    char known[512] = "";
    size_t used = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char text[UF_ADDRESS_TEXT];
        if (!usable(i))
            continue;
        getnameinfo(i->ifa_addr, length_of(i->ifa_addr->sa_family), text, sizeof text, NULL, 0, NI_NUMERICHOST);
        if (!strcmp(i->ifa_name, name) || !strcmp(text, name))
            add(list, i->ifa_addr);
        int n = snprintf(known + used, sizeof known - used, "%s%s (%s)", used ? ", " : "", i->ifa_name, text);
        used = n > 0 && used + (size_t)n < sizeof known ? used + (size_t)n : used;
    }
    if (list->n)
        return UF_OK;
    return uf_fail(UF_EINVAL,
                   "UNFENCE_INTERFACE is \"%.64s\", but this host has no such interface or address that is "
                   "up. It has: %s",
                   name, known[0] ? known : "none");
}

int uf_address_listen(const uf_root *root, const char *interface, uf_addresses *list)
{
    struct addrinfo *found = NULL;
    struct ifaddrs *all = NULL;
    bool only_loopback = false;
    int rc = UF_OK;
    memset(list, 0, sizeof *list);
    if (getifaddrs(&all))
        return uf_fail_errno(UF_ESYSTEM, errno, "cannot list this host's network interfaces");
    /* A name that does not resolve here may still be right for the others (it is theirs to use), so that is
     * no error. */
    if (!resolve(root->host, &found)) {
        only_loopback = true;
        for (const struct addrinfo *a = found; a; a = a->ai_next) {
            only_loopback = only_loopback && is_loopback(a->ai_addr);
            list->root_is_here = list->root_is_here || is_here(all, a->ai_addr);
        }
    }
    if (only_loopback) {
        for (const struct addrinfo *a = found; a; a = a->ai_next)
            add(list, a->ai_addr);
    } else if (interface[0]) {
        rc = of_interface(all, interface, list);
        if (!rc) {
            add_text(list, AF_INET, "127.0.0.1");
            add_text(list, AF_INET6, "::1");
        }
    } else {
        add_text(list, AF_INET6, "::"); /* both families where the system allows */
        add_text(list, AF_INET, "0.0.0.0");
    }
    if (found)
        freeaddrinfo(found);
    freeifaddrs(all);
    return rc;
}

/* Adds `socket`, to be reached from an address of `from` in the same family; left out if there is none. */
static void add_from(uf_addresses *list, const struct sockaddr *socket, const uf_addresses *from)
{
    if (!from->n || is_loopback(socket)) {
        add(list, socket);
        return;
    }
    for (size_t i = 0; i < from->n; i++) {
        if (from->at[i].socket.ss_family != socket->sa_family)
            continue;
        uf_address *address = add(list, socket);
        if (address) {
            address->has_source = true;
            address->source = from->at[i].socket;
        }
        return;
    }
}

int uf_address_connect(const uf_root *root, const char *interface, uf_addresses *list)
{
    struct addrinfo *found = NULL;
    struct ifaddrs *all = NULL;
    uf_addresses from = {.n = 0};
    memset(list, 0, sizeof *list);
    if (getifaddrs(&all))
        return uf_fail_errno(UF_ESYSTEM, errno, "cannot list this host's network interfaces");
    int rc = interface[0] ? of_interface(all, interface, &from) : UF_OK;
    if (!rc)
        rc = resolve(root->host, &found);
    if (rc)
        goto out;
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        list->root_is_here = list->root_is_here || is_here(all, a->ai_addr);
    if (list->root_is_here) {
        add_text(list, AF_INET, "127.0.0.1");
        add_text(list, AF_INET6, "::1");
    }
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        add_from(list, a->ai_addr, &from);
    if (!list->n)
        rc = uf_fail(UF_EINVAL, "UNFENCE_INTERFACE \"%.64s\" has no address of the family of PE 0's host \"%.200s\"", interface,
                     root->host);
out:
    if (found)
        freeaddrinfo(found);
    freeifaddrs(all);
    return rc;
}
