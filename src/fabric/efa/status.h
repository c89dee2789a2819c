/* status.h - what the status byte of an EFA completion means, for programs and for people. A pure table; host only. */
#ifndef UF_FABRIC_EFA_STATUS_H
#define UF_FABRIC_EFA_STATUS_H

typedef enum uf_efa_status {
    UF_EFA_OK = 0,
    UF_EFA_FLUSHED = 1,
    UF_EFA_QP_ERROR = 2,
    UF_EFA_UNSUPPORTED_OP = 3,
    UF_EFA_INVALID_AH = 4,
    UF_EFA_INVALID_LKEY = 5,
    UF_EFA_LOCAL_LENGTH = 6,
    UF_EFA_REMOTE_ADDRESS = 7,
    UF_EFA_REMOTE_ABORT = 8,
    UF_EFA_REMOTE_QPN = 9,
    UF_EFA_REMOTE_RNR = 10,
    UF_EFA_REMOTE_LENGTH = 11,
    UF_EFA_REMOTE_STATUS = 12,
    UF_EFA_UNRESPONSIVE = 13,
    UF_EFA_UNKNOWN_PEER = 14,
    UF_EFA_UNREACHABLE = 15,
    UF_EFA_FEATURE_MISMATCH = 18,
} uf_efa_status;

/* The UF_E* code of a status; UF_EINTERNAL for one that no device defines. */
int uf_efa_status_code(unsigned status);
/* A short name, "invalid local key", and what to do about it, a full sentence. Never NULL. */
const char *uf_efa_status_name(unsigned status);
const char *uf_efa_status_remedy(unsigned status);

#endif
