/* address.h - names and interfaces turned into socket addresses: where PE 0 listens, where the others try.
 *
 * No connection is made here. Lists hold what may work, in the order to try it; whoever connects keeps the
 * account of what was tried, so that a failure can list it. Name resolution may block as long as the system's
 * resolver does; literal addresses never. */
#ifndef UF_BOOTSTRAP_ADDRESS_H
#define UF_BOOTSTRAP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define UF_ADDRESS_TEXT 64
#define UF_ADDRESSES    24

typedef struct uf_address {
    struct sockaddr_storage socket; /* the port is 0 until uf_address_set_port */
    socklen_t length;
    bool has_source; /* bind to `source` before connecting: UNFENCE_INTERFACE */
    struct sockaddr_storage source;
} uf_address;

typedef struct uf_addresses {
    uf_address at[UF_ADDRESSES];
    size_t n;
    bool root_is_here; /* one of the root's addresses belongs to this host */
} uf_addresses;

typedef struct uf_root {
    char host[256];
    uint16_t port;  /* first */
    uint16_t ports; /* how many to try, at least 1 */
} uf_root;

/* "host:port", "[v6]:port", either with "+n". Pure. UF_EINVAL quotes what is wrong. */
int uf_root_parse(const char *text, uf_root *root);
/* Where PE 0 should listen: only loopback if the host name means that; the addresses of `interface` and
 * loopback if one is named; else every interface. UF_EINVAL: no such interface; the message lists those that
 * exist. */
int uf_address_listen(const uf_root *root, const char *interface, uf_addresses *list);
/* Where the others should try: loopback first if the root is on this host, then every address of the name in
 * both families (only those that `interface` can reach from, if one is named). UF_ESYSTEM: the name does not
 * resolve (now). */
int uf_address_connect(const uf_root *root, const char *interface, uf_addresses *list);
void uf_address_set_port(struct sockaddr_storage *socket, uint16_t port);
/* "10.0.0.1:29500" or "[::1]:29500". */
const char *uf_address_text(const struct sockaddr_storage *socket, char text[UF_ADDRESS_TEXT]);

#endif
