/* port.h - a fabric between a PE and the network: counts what passes and charges virtual CPU time for it.
 *
 * A uf_fabric like any other, so the library and the schemes of others run over it alike. Posting a work request and taking a completion cost
 * the same for everybody. It also tells which completions are of puts: the window of puts in flight is kept by them. */
#ifndef ORDERING_PORT_H
#define ORDERING_PORT_H

#include "fabric/fabric.h"

typedef struct ordering_costs {
    uint64_t post_ns, cqe_ns; /* of one work request, of one completion */
} ordering_costs;

enum { ORDERING_TURN = 8 }; /* completions, and puts, that a PE handles in one turn: its time is charged afterwards */

typedef struct ordering_port {
    uf_fabric base;
    uf_fabric *inner;
    void *place; /* of the model */
    ordering_costs costs;
    uint64_t spent;               /* virtual time of the present turn */
    uint64_t free_at;             /* when the PE's CPU is free again */
    uint64_t wrs, data_wrs;       /* posted; of these, with bytes */
    uint64_t sent, arrived;       /* completions */
    uint64_t data_sent;           /* of work requests with bytes */
    unsigned char is_data[65536]; /* in flight, by the low half of the cookie */
} ordering_port;

extern const struct uf_fabric_ops ordering_port_ops; /* open's params.arg: the port, with place and costs set */

/* Whether poll would find something. */
bool ordering_port_ready(const ordering_port *port);

#endif
