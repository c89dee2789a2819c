/* ofi.h - private header of the libfabric fabric: RDM endpoints of whatever provider is here (tcp, shm, efa, verbs).
 *
 * A fabric object is an array of rails; a rail is one domain with one endpoint, one address vector and one completion
 * queue. Every WR that wants a completion owns a slot from post to CQE: the provider's context lies in it, the cookie
 * too. Receives are slots as well. Nothing is assumed about a provider that fi_info can tell; the few facts that it
 * cannot tell are decided in select.c, each with its reason, and nowhere else.
 *
 * ofi.c opens and closes, offers.c asks and select.c chooses (pure), ep.c posts, cq.c polls, mr.c registers, shm.c cares for what the
 * shm provider keeps in /dev/shm. */
#ifndef UF_FABRIC_OFI_OFI_H
#define UF_FABRIC_OFI_OFI_H

#include "base/error.h"
#include "fabric/fabric.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/socket.h>

enum {
    UF_OFI_RAILS_MAX = 32,
    UF_OFI_BATCH = 32, /* completions taken from a CQ at once */
};

/* How a target learns who sent to it. */
typedef enum uf_ofi_source {
    UF_OFI_SOURCE_DATA,   /* PE number in bits 32-63 of the CQ data, and in front of each message */
    UF_OFI_SOURCE_CQE,    /* the provider names the sender with every completion, remote writes included */
    UF_OFI_SOURCE_HEADER, /* neither: no immediates; PE number in front of each message */
} uf_ofi_source;

/* A message on the wire where the provider does not name the sender. A stray connection is told by the mark. */
typedef struct uf_ofi_wire {
    uint32_t pe;
    uint32_t mark;
    unsigned char message[UF_MESSAGE_BYTES];
} uf_ofi_wire;
#define UF_OFI_WIRE_MARK 0x3157464eu
_Static_assert(sizeof(uf_ofi_wire) == UF_MESSAGE_BYTES + 8, "the wire message has no padding");

typedef enum uf_ofi_slot_kind {
    UF_OFI_SLOT_RECEIVE, /* a posted receive */
    UF_OFI_SLOT_SENT,    /* a WR in flight */
    UF_OFI_SLOT_SILENT,  /* a WR in flight that the provider could not inject: its success is not told */
} uf_ofi_slot_kind;

/* One operation that the provider holds. The context comes first: providers that ask for FI_CONTEXT2 write into it. */
typedef struct uf_ofi_slot {
    struct fi_context2 context;
    struct uf_ofi_slot *next; /* free, or receives that could not be posted yet */
    uint32_t peer;
    uint32_t cookie;
    uint8_t kind;
    uint8_t verb;
    uf_ofi_wire wire; /* a message, either way; also the copy of a silent write's source */
} uf_ofi_slot;

/* Where a write of 0 bytes goes: providers look its key up all the same, and tcp;ofi_rxm drops one with a wrong key without
 * a word. Each PE registers a few bytes for it and tells where they are with its address. */
typedef struct uf_ofi_nowhere {
    uint64_t at, key;
} uf_ofi_nowhere;

typedef struct uf_ofi_rail {
    uint16_t index;
    struct fi_info *info; /* one of uf_ofi.offers */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t *address_of;      /* by PE; FI_ADDR_NOTAVAIL until connected */
    uf_ofi_nowhere *nowhere_of; /* by PE */
    struct fid_mr *nowhere_mr;
    unsigned char nowhere[64];
    uint32_t *pe_of;    /* by fi_addr_t (FI_AV_TABLE counts from 0); UF_OFI_SOURCE_CQE only */
    uf_ofi_slot *slots; /* tx_depth for sending, then the receives */
    uint32_t n_slots;
    uf_ofi_slot *free;       /* of the first tx_depth */
    uf_ofi_slot *unposted;   /* receives that the provider refused with EAGAIN; tried again by poll */
    struct fid_mr *slots_mr; /* where local buffers must be registered */
    void *slots_desc;
} uf_ofi_rail;

typedef struct uf_ofi {
    uf_fabric base;
    int pe;
    uint32_t n_pes;
    uf_ofi_source source;
    bool solicited;       /* FI_RX_CQ_DATA: a write with CQ data consumes a receive */
    uint64_t data_prefix; /* what goes above the immediate into the CQ data */
    size_t inject_write;  /* largest write, and largest message, that the provider copies at once */
    size_t inject_send;
    size_t wire_bytes;     /* of a message: sizeof(uf_ofi_wire) or UF_MESSAGE_BYTES */
    uint64_t placed_flags; /* FI_DELIVERY_COMPLETE where the provider knows it */
    uint64_t next_key;
    struct uf_mr *mrs;      /* all that are registered: close frees what the caller left */
    struct fi_info *offers; /* what the rails were chosen from */
    uint32_t n_rails;
    uint32_t strays; /* errors and messages that belong to no WR of ours; the first are logged */
    int wait_fd;
    char error[UF_ERROR_BYTES];
    uf_ofi_rail rails[];
} uf_ofi;

struct uf_mr {
    struct uf_mr *next, **link;
    uint64_t base;
    uint32_t n_rails;
    struct fid_mr *mr[];
};

/* ---------------------------------------------------------------- select.c: pure choices */

/* What tests force so that paths of providers that are not here run as well. Zero: as fi_info says. */
typedef struct uf_ofi_tuning {
    uint32_t endpoints; /* rails made of the one chosen fi_info, to exercise several */
    bool no_inject;     /* as if the provider could not inject */
    bool headers_only;  /* as if the CQ data were short and the sender unknown */
    bool cqe_source;    /* as if the CQ data were short and the sender known */
    bool wait_fd;       /* as if the host were crowded */
} uf_ofi_tuning;

typedef struct uf_ofi_wish {
    const char *provider; /* the offer's own name, any case; NULL: any */
    bool one_host;
    bool efa_direct, efa_plain; /* the user named one of the two EFA fabrics */
    bool interfaces;            /* several interfaces of sockets are rails, too: only if the user asks, as few hosts have two that
                                     lead to the same peers */
    const char *interface;      /* name or address; "": choose */
    const struct sockaddr *route; /* our address towards the rendezvous; NULL: unknown */
} uf_ofi_wish;

/* Providers to try for what the user named (any case; "" = the best here), in order, at most `max`; the number written. */
int uf_ofi_candidates(const char *name, bool one_host, const char **names, int max);
/* Chooses among fi_getinfo's results, one info per rail: the number, 0 if none is fit. */
int uf_ofi_select(struct fi_info *list, const uf_ofi_wish *wish, struct fi_info **chosen, int max);
/* True for names that container systems give to bridges and virtual pairs: they lead to no other host. */
bool uf_ofi_is_container_interface(const char *name);
uf_ofi_source uf_ofi_choose_source(const struct fi_info *info);
/* A TX completion at the endpoint's default level proves that the target's CQ has the immediate. */
bool uf_ofi_default_level_placed(const struct fi_info *info);
/* A CQ that can wake a sleeper costs tcp;ofi_rxm about 1 us a hop (an epoll set to keep, measured on 1.17), so it is asked for only where
 * more PEs than cores share the host: there who sleeps helps the others more than a microsecond does. Never where nobody would sleep. */
bool uf_ofi_wants_wait_fd(const struct fi_info *info, bool one_host, int n_pes, int cores);
/* A peer's death may end this process inside the provider. */
bool uf_ofi_cuts_down_survivors(const struct fi_info *info);
/* Largest write that may be injected; for messages that is tx_attr->inject_size. */
size_t uf_ofi_inject_write_size(const struct fi_info *info);
/* The printable address of a rail, for people. */
void uf_ofi_describe(const struct fi_info *info, char *text, size_t bytes);

/* ---------------------------------------------------------------- offers.c: what libfabric has */

typedef struct uf_ofi_choice {
    struct fi_info *list; /* owns what chosen points into; the caller frees it */
    struct fi_info *chosen[UF_OFI_RAILS_MAX];
    int n;
    const char *provider; /* the name under which it was found */
} uf_ofi_choice;

/* UF_EUNSUPPORTED with the reason and what is here instead. */
int uf_ofi_choose(const uf_fabric_params *params, uf_ofi_choice *c);
/* Whether the provider can tell that bytes are placed: it offers endpoints whose default is that. */
bool uf_ofi_offers_placed(const char *provider);

/* ---------------------------------------------------------------- the rest */

#define UF_OFI_SHM_DIRECTORY "/dev/shm"

extern const struct uf_fabric_ops uf_fabric_ofi;

int uf_ofi_open_tuned(const uf_fabric_params *params, const uf_ofi_tuning *tuning, uf_fabric **out);
/* uf_fail with libfabric's reason appended, and the limit that is behind it where one is known. `rc` is negative. */
int uf_ofi_fail(int code, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The UF_E* code of a positive libfabric error: UF_EPEER if the other side is gone, else UF_EFABRIC. */
int uf_ofi_code(int error);

int uf_ofi_post(uf_fabric *f, const uf_wr *wr);
int uf_ofi_poll(uf_fabric *f, uf_cqe *cqes, int max);
/* Posts a receive, or puts it aside until the next poll. */
void uf_ofi_receive(uf_ofi *ofi, uf_ofi_rail *rail, uf_ofi_slot *slot);
int uf_ofi_wait_fd(uf_fabric *f);
int uf_ofi_arm(uf_fabric *f);

int uf_ofi_mr_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr);
void uf_ofi_mr_close(uf_fabric *f, uf_mr *mr);
void uf_ofi_mr_key(const uf_mr *mr, uint32_t rail, uf_fabric_key *key);
uint64_t uf_ofi_mr_desc(const uf_mr *mr, uint32_t rail);
/* Registers `bytes` at `ptr` in one rail. */
int uf_ofi_mr_rail(uf_ofi *ofi, uint32_t rail, void *ptr, size_t bytes, bool remote, struct fid_mr **mr);

/* Unlinks what dead processes of this user left in `directory` (/dev/shm); the number of files. */
int uf_ofi_shm_sweep(const char *directory);
/* Backs the region of an endpoint ("fi_shm://pid:uid:n") with memory now: a full /dev/shm is an error here and no SIGBUS later. */
int uf_ofi_shm_reserve(const char *directory, const char *address);
/* Free bytes of the file system at `directory`; UINT64_MAX if unknown. */
uint64_t uf_ofi_shm_free(const char *directory);

static inline uf_ofi_slot *uf_ofi_slot_take(uf_ofi_rail *rail)
{
    uf_ofi_slot *slot = rail->free;
    if (slot)
        rail->free = slot->next;
    return slot;
}

static inline void uf_ofi_slot_give(uf_ofi_rail *rail, uf_ofi_slot *slot)
{
    slot->next = rail->free;
    rail->free = slot;
}

#endif
