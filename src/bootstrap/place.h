/* place.h - the parts of "where do I stand in my job" that are worth testing alone. Pure: text in, text out.
 */
#ifndef UF_BOOTSTRAP_PLACE_H
#define UF_BOOTSTRAP_PLACE_H

#include <stddef.h>
#include <stdint.h>

/* Ports that both sides try in order when the port is derived and not given: somebody else may sit on one of
 * them. */
#define UF_PLACE_PORTS 8

/* The first host of a Slurm node list such as "node[003-010,12],login1": "node003". The whole list is
 * checked. UF_EINVAL names the place where it stops making sense. */
int uf_place_first_host(const char *list, char *host, size_t bytes);
/* First of UF_PLACE_PORTS consecutive ports for a job, in 16384..30783: below the ports that Linux hands out
 * by itself (32768 up). The block never contains `avoid` (the port of torchrun's own store; 0: none). */
uint16_t uf_place_derived_port(const char *job, uint16_t avoid);

#endif
