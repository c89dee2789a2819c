/* verbs_library.h - libibverbs and libefa, loaded when a real EFA device is opened, and our own words for what they exchange.
 *
 * Nothing links to them: a build serves hosts that have them, hosts that have old ones, and hosts that have none. The verbs
 * types come from the distribution's header, which is stable; of libefa's newer structures the header of Debian 12 knows nothing, so
 * they are declared here after the manual pages of rdma-core (efadv_query_qp_wqs, efadv_query_cq, efadv_create_qp_ex, efadv_query_device). libefa
 * takes each one's size and refuses bits it does not know, which is how an old library and a new struct find out about each other. */
#ifndef UF_FABRIC_EFA_VERBS_LIBRARY_H
#define UF_FABRIC_EFA_VERBS_LIBRARY_H

#include <infiniband/verbs.h>
#include <stdint.h>

/* ---- What libefa exchanges ---- */

enum {
    UF_EFADV_RDMA_READ = 1,
    UF_EFADV_RNR_RETRY = 2,
    UF_EFADV_RDMA_WRITE = 8,
    UF_EFADV_UNSOLICITED_WRITE_RECV = 16,
};

typedef struct uf_efadv_device {
    uint64_t comp_mask;
    uint32_t max_sq_wr, max_rq_wr;
    uint16_t max_sq_sge, max_rq_sge;
    uint16_t inline_buf_size;
    uint16_t inline_buf_size_ex; /* 0 from libraries that do not know wide entries */
    uint32_t device_caps;        /* UF_EFADV_* */
    uint32_t max_rdma_size;
} uf_efadv_device;

enum { UF_EFADV_SRD = 0 };
enum { UF_EFADV_QP_UNSOLICITED = 1, UF_EFADV_QP_INLINE_WRITE = 2 };

typedef struct uf_efadv_qp_init {
    uint64_t comp_mask;
    uint32_t driver_qp_type;
    uint16_t flags; /* UF_EFADV_QP_*: old libraries know these bytes as reserved and refuse any bit */
    uint8_t sl;
    uint8_t reserved;
} uf_efadv_qp_init;

typedef struct uf_efadv_wq {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
    uint32_t max_batch;
    uint16_t caps;
    uint8_t reserved[2];
} uf_efadv_wq;

enum { UF_EFADV_WQ_64_BIT_IDS = 1 }; /* in uf_efadv_wq.caps [I]: the value is not in the manual page */

typedef struct uf_efadv_cq_init {
    uint64_t comp_mask, wc_flags;
} uf_efadv_cq_init;

typedef struct uf_efadv_cq {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell; /* not in older libraries */
} uf_efadv_cq;

typedef struct uf_efadv_ah {
    uint64_t comp_mask;
    uint16_t ahn;
    uint8_t reserved[6];
} uf_efadv_ah;

/* ---- The calls ---- */

/* UF_VERBS_CALL(library, name, result, arguments): everything we call, and where it is found. Several are macros in verbs.h, so the
 * name of the symbol is made of its two parts. */
#define UF_IBV_CALLS(UF_VERBS_CALL)                                                                                              \
    UF_VERBS_CALL(ibv, get_device_list, struct ibv_device **, (int *))                                                           \
    UF_VERBS_CALL(ibv, free_device_list, void, (struct ibv_device **))                                                           \
    UF_VERBS_CALL(ibv, get_device_name, const char *, (struct ibv_device *))                                                     \
    UF_VERBS_CALL(ibv, open_device, struct ibv_context *, (struct ibv_device *))                                                 \
    UF_VERBS_CALL(ibv, close_device, int, (struct ibv_context *))                                                                \
    UF_VERBS_CALL(ibv, query_device, int, (struct ibv_context *, struct ibv_device_attr *))                                      \
    UF_VERBS_CALL(ibv, query_port, int, (struct ibv_context *, uint8_t, struct ibv_port_attr *))                                 \
    UF_VERBS_CALL(ibv, query_gid, int, (struct ibv_context *, uint8_t, int, union ibv_gid *))                                    \
    UF_VERBS_CALL(ibv, get_async_event, int, (struct ibv_context *, struct ibv_async_event *))                                   \
    UF_VERBS_CALL(ibv, ack_async_event, void, (struct ibv_async_event *))                                                        \
    UF_VERBS_CALL(ibv, alloc_pd, struct ibv_pd *, (struct ibv_context *))                                                        \
    UF_VERBS_CALL(ibv, dealloc_pd, int, (struct ibv_pd *))                                                                       \
    UF_VERBS_CALL(ibv, reg_mr, struct ibv_mr *, (struct ibv_pd *, void *, size_t, int))                                          \
    UF_VERBS_CALL(ibv, dereg_mr, int, (struct ibv_mr *))                                                                         \
    UF_VERBS_CALL(ibv, create_ah, struct ibv_ah *, (struct ibv_pd *, struct ibv_ah_attr *))                                      \
    UF_VERBS_CALL(ibv, destroy_ah, int, (struct ibv_ah *))                                                                       \
    UF_VERBS_CALL(ibv, destroy_cq, int, (struct ibv_cq *))                                                                       \
    UF_VERBS_CALL(ibv, modify_qp, int, (struct ibv_qp *, struct ibv_qp_attr *, int))                                             \
    UF_VERBS_CALL(ibv, destroy_qp, int, (struct ibv_qp *))
#define UF_EFADV_CALLS(UF_VERBS_CALL)                                                                                            \
    UF_VERBS_CALL(efadv, query_device, int, (struct ibv_context *, uf_efadv_device *, uint32_t))                                 \
    UF_VERBS_CALL(efadv, query_ah, int, (struct ibv_ah *, uf_efadv_ah *, uint32_t))                                              \
    UF_VERBS_CALL(efadv, create_cq, struct ibv_cq_ex *,                                                                          \
                  (struct ibv_context *, struct ibv_cq_init_attr_ex *, uf_efadv_cq_init *, uint32_t))                            \
    UF_VERBS_CALL(efadv, create_qp_ex, struct ibv_qp *,                                                                          \
                  (struct ibv_context *, struct ibv_qp_init_attr_ex *, uf_efadv_qp_init *, uint32_t))                            \
    UF_VERBS_CALL(efadv, query_qp_wqs, int, (struct ibv_qp *, uf_efadv_wq *, uf_efadv_wq *, uint32_t))                           \
    UF_VERBS_CALL(efadv, query_cq, int, (struct ibv_cq *, uf_efadv_cq *, uint32_t))

#define UF_VERBS_CALLS(UF_VERBS_CALL) UF_IBV_CALLS(UF_VERBS_CALL) UF_EFADV_CALLS(UF_VERBS_CALL)

typedef struct uf_verbs {
    void *ibv_handle, *efadv_handle;
#define UF_VERBS_CALL(library, name, result, arguments) result(*library##_##name##_) arguments;
    UF_VERBS_CALLS(UF_VERBS_CALL)
#undef UF_VERBS_CALL
} uf_verbs;

/* Loads both from `folder`, or from where the system looks if that is "" (UNFENCE_RDMA_CORE). UF_EUNSUPPORTED says which file or symbol is
 * missing, what brings it, and what works without it. May block for the file system. */
int uf_verbs_load(const char *folder, int pe, uf_verbs *verbs);
/* Nothing made by it is in use any more. */
void uf_verbs_unload(uf_verbs *verbs);

#endif
