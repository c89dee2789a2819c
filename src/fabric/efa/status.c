/* status.c - the table of completion statuses. The caller adds what it knows: operation, peer, rail. */
#include "fabric/efa/status.h"
#include "unfence/unfence.h"
#include <stddef.h>

static const struct entry {
    int code;
    const char *name, *remedy;
} table[] = {
    [UF_EFA_OK] = {UF_OK, "success", "Nothing is to be done."},
    [UF_EFA_FLUSHED] =
        {UF_EFABRIC, "flushed",
         "The queue was destroyed or had failed before the request ran; the first error of this queue is the cause."},
    [UF_EFA_QP_ERROR] = {UF_EINTERNAL, "malformed request",
                         "The device refused the entry or the doorbell: an error of this library, please report it."},
    [UF_EFA_UNSUPPORTED_OP] = {UF_EUNSUPPORTED, "operation not supported by this device",
                               "RDMA write needs EFA of the second generation (p5) or later; p4d only reads."},
    [UF_EFA_INVALID_AH] = {UF_EINTERNAL, "unknown address handle",
                           "The handle of this peer was destroyed, or belongs to another device or protection domain."},
    [UF_EFA_INVALID_LKEY] =
        {UF_EFABRIC, "invalid local key",
         "The local buffer is not, or no longer, registered in full: keep it registered until the operation is complete."},
    [UF_EFA_LOCAL_LENGTH] =
        {UF_EINVAL, "bad length",
         "Longer than the device allows (a send is one packet, an RDMA at most its max_rdma_size), or the two lengths differ."},
    [UF_EFA_REMOTE_ADDRESS] = {UF_EFABRIC, "remote address refused",
                               "The target has no registration with this key that covers the range and permits the access: check "
                               "that its window still exists."},
    [UF_EFA_REMOTE_ABORT] = {UF_EPEER, "connection reset by the target", "The target process ended or reset its device."},
    [UF_EFA_REMOTE_QPN] = {UF_EPEER, "no such queue at the target",
                           "The target closed its endpoint, or its queue is in error: look at the target's messages."},
    [UF_EFA_REMOTE_RNR] =
        {UF_EFABRIC, "target not ready to receive",
         "The target had no receive posted for too long: it makes no progress, or its receive queue is too short."},
    [UF_EFA_REMOTE_LENGTH] = {UF_EINTERNAL, "message longer than the target's receive",
                              "Both sides must agree on the message size: check that their versions are the same."},
    [UF_EFA_REMOTE_STATUS] = {UF_EFABRIC, "invalid response from the target",
                              "The target's device or firmware answered nonsense: replace the instance if it comes again."},
    [UF_EFA_UNRESPONSIVE] = {UF_EPEER, "target stopped answering",
                             "It answered before: its process, instance or network path has failed."},
    [UF_EFA_UNKNOWN_PEER] =
        {UF_EFABRIC, "the target does not know us",
         "The target has no address handle for this device: each side must connect the other before the first RDMA."},
    [UF_EFA_UNREACHABLE] =
        {UF_EPEER, "target never answered",
         "Check that the security group allows all traffic from itself, and that both instances are in one subnet."},
    [UF_EFA_FEATURE_MISMATCH] = {UF_EUNSUPPORTED, "the target's device lacks the operation",
                                 "Run on instances of one EFA generation."},
};

static const struct entry unknown = {UF_EINTERNAL, "unknown status",
                                     "The device is newer than this library: please report the number."};

static const struct entry *find(unsigned status)
{
    return status < sizeof(table) / sizeof(*table) && table[status].name ? &table[status] : &unknown;
}

int uf_efa_status_code(unsigned status)
{
    return find(status)->code;
}

const char *uf_efa_status_name(unsigned status)
{
    return find(status)->name;
}

const char *uf_efa_status_remedy(unsigned status)
{
    return find(status)->remedy;
}
