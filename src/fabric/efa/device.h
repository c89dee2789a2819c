/* device.h - the table of functions between the EFA fabric and a device: NICs of the model (device_model.c), or real ones through
 * libibverbs and efadv (device_verbs.c).
 *
 * A device is all NICs that one PE of one world uses, one a rail. It makes queues and hands them over as rings (queue.h); from then
 * on the fabric writes and reads them itself, and the device is asked only at set-up, at the end, and for the few things
 * that rings do not tell: whether it failed, and whether a caller may sleep. No type of the model or of verbs appears here.
 *
 * Rules for who writes a device. All functions are called by one thread at a time for one device, those of several devices at once.
 * None blocks for the network. Every failure is a sentence by uf_fail that names PE, NIC, cause and remedy; the results are set on
 * success only. The fabric destroys all that it made before it calls close: queue pairs first. */
#ifndef UF_FABRIC_EFA_DEVICE_H
#define UF_FABRIC_EFA_DEVICE_H

#include "base/settings.h"
#include "fabric/efa/queue.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct uf_efa_device uf_efa_device;
typedef struct uf_efa_device_cq uf_efa_device_cq; /* the maker's, opaque */
typedef struct uf_efa_device_mr uf_efa_device_mr;

enum { UF_EFA_NICS_MAX = 32 };

/* What one NIC is and can do: asked of it, never assumed. Queue sizes are entries, powers of two (a device's other limits are rounded
 * down to one). */
typedef struct uf_efa_nic {
    char name[32];       /* "rdmap79s0" */
    char detail[96];     /* for people: PCI address, firmware, or the model's profile and seed */
    uint8_t gid[16];     /* its address */
    uint64_t rate_bytes; /* a second, 0 if unknown */
    bool can_read, can_write;
    bool can_unsolicited; /* a write with immediate needs no posted receive, if the target's queue was made so */
    bool wide_ids;        /* 64-bit request ids: all bits come back in a send completion */
    bool wide_write;      /* RDMA writes with inline bytes, in queues of 128-byte entries */
    bool duplicates;      /* payload may be placed a second time before the sender's completion */
    uint32_t max_sq;      /* of 64-byte entries */
    uint32_t max_sq_wide; /* of 128-byte entries; 0: it has none */
    uint32_t max_rq, max_cq;
    uint32_t max_ahs;
    uint64_t max_rdma; /* bytes of a write or read */
    uint32_t mtu;      /* bytes of a send */
} uf_efa_nic;

typedef struct uf_efa_device_params {
    const uf_settings *settings;
    const char *name; /* what the user wrote after "efa:", "" for nothing: a NIC, a list of them, "model-chaos" */
    int pe, n_pes;
    bool one_host;    /* all PEs are on this host */
    uint32_t n_rails; /* that will be used at most; 0: as many as there are near */
    const char *root; /* of /sys, as src/topo takes it; NULL: this host's */
    void *arg;        /* uf_world_options.fabric_arg */
} uf_efa_device_params;

typedef struct uf_efa_qp_options {
    uint32_t sq_depth, rq_depth; /* entries, powers of two within the NIC's limits */
    uint32_t wqe_bytes;          /* 64 or 128 */
    uint32_t qkey;               /* below 2^31 */
    uint32_t rnr_retry;          /* 0 to 6; 7: for ever */
    bool unsolicited;            /* immediates of peers use no receive; only where can_unsolicited */
    uf_efa_device_cq *send_cq, *recv_cq;
} uf_efa_qp_options;

/* A queue pair that is ready to send and receive: the rings are initialised (uf_efa_sq_init with the limit and max_batch that the
 * device has, uf_efa_rq_init) and lie in device memory. The struct is the caller's and must not move until qp_destroy. */
typedef struct uf_efa_qp {
    uint16_t qpn;
    uf_efa_sq sq;
    uf_efa_rq rq;
    void *maker; /* the device's own */
} uf_efa_qp;

enum { UF_EFA_ACCESS_LOCAL = 1, UF_EFA_ACCESS_REMOTE_READ = 2, UF_EFA_ACCESS_REMOTE_WRITE = 4 };

struct uf_efa_device_ops {
    const char *name; /* "model", "verbs" */
    /* Finds the NICs that the name means, rail order, and opens them. UF_EUNSUPPORTED with what is missing here and its remedy (no
     * such device, library or kernel ability); UF_EINVAL if the name means nothing. */
    int (*open)(const uf_efa_device_params *params, uf_efa_device **device);
    void (*close)(uf_efa_device *device);

    /* A completion queue of at least `entries` entries (a power of two up to max_cq), whose ring *queue reads from now on. *queue must not move
     * before cq_destroy: who looks for overruns reads queue->consumed. */
    int (*cq_create)(uf_efa_device *device, uint32_t nic, uint32_t entries, uf_efa_cq *queue, uf_efa_device_cq **cq);
    /* No QP uses it any more. */
    void (*cq_destroy)(uf_efa_device *device, uf_efa_device_cq *cq);

    int (*qp_create)(uf_efa_device *device, uint32_t nic, const uf_efa_qp_options *options, uf_efa_qp *qp);
    /* Work in flight is flushed or dropped. The device may give the number to another queue at once. */
    void (*qp_destroy)(uf_efa_device *device, uint32_t nic, uf_efa_qp *qp);

    /* Registers memory with one NIC. `lkey` goes into our entries, `rkey` to peers. `access`: UF_EFA_ACCESS_*. */
    int (*mr_register)(uf_efa_device *device, uint32_t nic, void *ptr, size_t bytes, unsigned access, uf_efa_device_mr **mr,
                       uint32_t *lkey, uint32_t *rkey);
    void (*mr_close)(uf_efa_device *device, uf_efa_device_mr *mr);

    /* A handle for the NIC with this address: needed to reach it, and for its RDMA to be let in. Two calls for one address may give one
     * handle, which then is destroyed as often as it was created. */
    int (*ah_create)(uf_efa_device *device, uint32_t nic, const uint8_t gid[16], uint16_t *ah);
    void (*ah_destroy)(uf_efa_device *device, uint32_t nic, uint16_t ah);

    /* Lets the device move: called by the fabric at the start of each poll, cheap when there is nothing to do. NULL for one that moves by
     * itself, as hardware does, or whose time somebody else gives: in the model's deterministic mode the driver of the fibers, which
     * jumps to uf_model_next when all PEs wait. */
    void (*progress)(uf_efa_device *device);
    /* Nanoseconds of the time in which the device's packets travel: the model's own in its deterministic mode. */
    uint64_t (*now)(uf_efa_device *device);
    /* UF_OK while the NIC works; else the error that ended it (a fatal asynchronous event, removal), as a sentence. May make a system call:
     * the fabric asks now and then. */
    int (*failed)(uf_efa_device *device, uint32_t nic);

    /* A descriptor that becomes readable when a completion comes to any CQ, or -1. `arm` returns UF_OK if a caller may sleep on it now,
     * UF_EAGAIN if it must poll first. Both may be NULL. */
    int (*wait_fd)(uf_efa_device *device);
    int (*arm)(uf_efa_device *device);
};

/* The maker's struct begins with it. */
struct uf_efa_device {
    const struct uf_efa_device_ops *ops;
    uint64_t
        token; /* another one for each device ever opened: keys and generations are made of it. Random; the model's from its seed */
    uint32_t n_nics;
    uf_efa_nic nics[UF_EFA_NICS_MAX];
};

extern const struct uf_efa_device_ops uf_efa_device_model; /* names "model" and "model-PROFILE" */
extern const struct uf_efa_device_ops uf_efa_device_verbs; /* every other name */

#endif
