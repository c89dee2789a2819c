/* efa_rig.h - two model NICs, a queue pair each, memory, and the real queue code between them and the test.
 *
 * End 0 usually sends, end 1 receives. Completions are taken from the CQs after every event, so their order and the time at
 * which each was seen are the model's. UNFENCE_SEED gives another seed to all; it is printed by a test that fails. */
#ifndef UF_TESTS_EFA_RIG_H
#define UF_TESTS_EFA_RIG_H

#include "efa_model/model.h"
#include "fabric/efa/queue.h"
#include "fabric/efa/status.h"
#include "unfence/unfence.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RIG_MEMORY = 1 << 16, RIG_CQ = 1024, RIG_SEEN = 8192, RIG_QKEY = 77 };

typedef struct rig_seen {
    uf_efa_cqe c;
    uint64_t at;
} rig_seen;

typedef struct rig_end {
    uf_model_nic *nic;
    uf_model_cq *model_cq;
    uf_model_counter *counter;
    uint64_t cq_memory[RIG_CQ * 4], successes, errors;
    uf_efa_cq cq;
    uf_model_qp_info info;
    uf_efa_sq sq;
    uf_efa_rq rq;
    _Alignas(128) unsigned char memory[RIG_MEMORY];
    uf_model_mr mr;
    uint16_t ah; /* of the other end */
    rig_seen sent[RIG_SEEN], received[RIG_SEEN];
    uint32_t n_sent, n_received;
} rig_end;

typedef struct rig {
    uf_model *model;
    rig_end end[2];
    void (*each_event)(struct rig *r); /* called after every event */
} rig;

typedef struct rig_options {
    uint32_t depth, wqe_bytes, rnr_retry, cq_entries; /* 0: 64, 64, 0, RIG_CQ */
    bool solicited, plain, deaf;                      /* deaf: end 1 has no address handle for end 0 */
    int counter;                                      /* 1 + which counter end 1 (end 0 for local ones) attaches */
} rig_options;

uint64_t rig_seed(void);
/* A sound profile for a test that changes one thing: "fifo" without rest, no tail, no loss. */
uf_model_params rig_quiet(void);
rig *rig_open(const uf_model_params *params, uint64_t seed, const rig_options *options);
void rig_close(rig *r);
/* Posts through the real queue code from end 0 to end 1; imm < 0: none. What must not fail is asserted. */
void rig_write(rig *r, uint64_t id, uint64_t from, uint64_t to, uint32_t bytes, int64_t imm);
void rig_read(rig *r, uint64_t id, uint64_t into, uint64_t from, uint32_t bytes);
void rig_send(rig *r, uint64_t id, uint64_t from, uint32_t bytes);
void rig_post(rig *r, const uf_efa_wqe *e);
uf_efa_to rig_to(const rig *r, uint64_t id);
/* Posts `n` receives of `bytes` at end 1, the i-th at memory offset i * bytes, named first + i. */
void rig_receives(rig *r, uint16_t first, uint32_t n, uint32_t bytes);
/* Until nothing is left to happen. */
void rig_run(rig *r);
void rig_collect(rig *r);
/* The status of the sender's completion of `id`; -1: none, -2: several. */
int rig_status(const rig *r, uint64_t id);
void rig_expect_no_traps(const rig *r);
/* Exactly one kind, at least once, and its sentence has the word. */
void rig_expect_trap(const rig *r, uf_model_trap_kind kind, const char *word);

#endif
