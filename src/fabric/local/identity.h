/* identity.h - within this room: reaching descriptors of a same-host process through /proc. */
#ifndef UF_FABRIC_LOCAL_IDENTITY_H
#define UF_FABRIC_LOCAL_IDENTITY_H

#include "fabric/local/local.h"

/* Names of our memfds: shown in /proc, in no file system. */
#define UF_LOCAL_PROBE_NAME   "unfence-probe"
#define UF_LOCAL_SEGMENT_NAME "unfence-heap"

/* Opens descriptor `peer_fd` of `peer`'s process, after making sure that the process is still the one that the identity tells of (by its
 * nonce) and that the descriptor is a memfd called `name`. *fd is the caller's to close. UF_EPEER: the process is gone. */
int uf_local_identity_open(const uf_local_identity *peer, int peer_fd, const char *name, int flags, int *fd);
/* The check alone: UF_OK, UF_EPEER, or UF_EUNSUPPORTED (the system does not let us look). */
int uf_local_identity_verify(const uf_local_identity *peer);

#endif
