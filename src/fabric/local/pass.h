/* pass.h - handing open descriptors to PEs in other processes of this host.
 *
 * A heap's memfd can be opened anew through /proc; descriptors of GPU memory can't, and taking them out of a process (pidfd_getfd) is what
 * the usual ptrace restrictions forbid between siblings. So they travel as messages over local sockets, which needs no permission
 * beyond being in the same network namespace. Sockets have no name in any file system. What comes is checked against
 * the sender's nonce, so a stranger's message is dropped, and its descriptors are closed. Nothing here blocks. */
#ifndef UF_FABRIC_LOCAL_PASS_H
#define UF_FABRIC_LOCAL_PASS_H

#include "fabric/local/local.h"

typedef struct uf_local_pass uf_local_pass;

/* Where a PE receives; exchanged as bytes. */
typedef struct uf_local_pass_name {
    uint64_t net_namespace; /* inode of /proc/self/ns/net: names mean something only inside it */
    uint32_t bytes;
    char path[28];
} uf_local_pass_name;

int uf_local_pass_create(uf_local_pass **pass);
void uf_local_pass_destroy(uf_local_pass *pass);
const uf_local_pass_name *uf_local_pass_name_of(const uf_local_pass *pass);

/* What travels with one descriptor; `value` is the sender's to fill. */
typedef struct uf_local_passed {
    uint64_t nonce; /* of the sender's identity */
    uint64_t step;  /* which exchange it belongs to */
    uint64_t value;
    uint32_t pe, index;
} uf_local_passed;
/* UF_EAGAIN: the receiver's queue is full, try again. UF_EPEER: nobody receives there any more. */
int uf_local_pass_send(uf_local_pass *pass, const uf_local_pass_name *to, const uf_local_passed *what, int fd);
/* UF_EAGAIN: nothing is here. *fd is the caller's to close. */
int uf_local_pass_receive(uf_local_pass *pass, uf_local_passed *what, int *fd);

#endif
