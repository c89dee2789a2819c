/* efa_model.c - work requests and packets a second that the EFA device model simulates, on one core.
 *
 * Two NICs; one posts writes with immediate through the real queue code, 128 of them in flight, both ends' completions are
 * polled. Once with the p5en profile and 64 bytes, once with chaos and 2 KiB (eight packets each). No timed assertion. */
#include "efa_model/model.h"
#include "fabric/efa/queue.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unfence/unfence.h>

enum { DEPTH = 128, CQ = 512, MEMORY = 4096 };

typedef struct end {
    uf_model_nic *nic;
    uf_model_cq *model_cq;
    uint64_t cq_memory[CQ * 4];
    uf_efa_cq cq;
    uf_efa_sq sq;
    uf_model_qp_info info;
    unsigned char memory[MEMORY];
    uf_model_mr mr;
    uint16_t ah;
} end;

static int open_end(end *e, uf_model *m)
{
    uf_model_cq_options cq = {.memory = e->cq_memory, .entries = CQ, .entry_bytes = 32, .consumed = &e->cq.consumed};
    uf_efa_cq_init(&e->cq, e->cq_memory, 9, 4);
    int rc = uf_model_nic_create(m, &e->nic);
    rc = rc ? rc : uf_model_cq_create(e->nic, &cq, &e->model_cq);
    uf_model_qp_options qp = {
        .sq_depth = DEPTH, .rq_depth = 2, .wqe_bytes = 64, .unsolicited = true, .send_cq = e->model_cq, .recv_cq = e->model_cq};
    rc = rc ? rc : uf_model_qp_create(e->nic, &qp, &e->info);
    rc = rc ? rc : uf_model_mr_register(e->nic, 0, e->memory, MEMORY, UF_MODEL_LOCAL | UF_MODEL_REMOTE_WRITE, &e->mr);
    if (!rc)
        uf_efa_sq_init(&e->sq, e->info.sq_ring, e->info.sq_doorbell, 7, 8, e->info.sq_limit, e->info.max_batch, &e->info.mmio);
    return rc;
}

static int measure(const char *profile, uint32_t bytes, uint64_t total)
{
    static end ends[2];
    uf_model_params p;
    uf_model *m = NULL;
    uint8_t gid[16];
    uf_efa_cqe c[64];
    uint64_t posted = 0, done = 0, arrived = 0;
    int rc = uf_model_profile(profile, &p);
    p.message_rate = 1000000000; /* the events count here, not the NIC */
    rc = rc ? rc : uf_model_create(&p, 1, &m);
    for (int i = 0; i < 2 && !rc; i++) {
        ends[i] = (end){0};
        rc = open_end(&ends[i], m);
    }
    for (int i = 0; i < 2 && !rc; i++) {
        uf_model_nic_gid(ends[!i].nic, gid);
        rc = uf_model_ah_create(ends[i].nic, gid, &ends[i].ah);
    }
    if (rc) {
        fprintf(stderr, "%s\n", uf_error_message());
        return 1;
    }
    uf_efa_to to = {.qpn = ends[1].info.qpn, .ah = ends[0].ah};
    uf_efa_sge local = {(uintptr_t)ends[0].memory, bytes, ends[0].mr.lkey};
    clock_t start = clock(); /* of this process, so that a busy machine does not count */
    while (done < total) {
        uf_efa_wqe e[16];
        uint32_t n = uf_efa_sq_room(&ends[0].sq);
        n = n < 16 ? n : 16;
        n = total - posted < n ? (uint32_t)(total - posted) : n;
        for (uint32_t i = 0; i < n; i++) {
            to.id = posted + i;
            uf_efa_encode_write_imm(&e[i], 8, &to, (uintptr_t)ends[1].memory, ends[1].mr.rkey, &local, (uint32_t)to.id);
        }
        if (n)
            posted += uf_efa_sq_post_owned(&ends[0].sq, e, n, 0);
        uf_model_run(m, uf_model_next(m) + 200);
        uint32_t sent = uf_efa_cq_poll(&ends[0].cq, c, 64);
        uf_efa_sq_complete(&ends[0].sq, sent);
        done += sent;
        arrived += uf_efa_cq_poll(&ends[1].cq, c, 64);
    }
    double took = (double)(clock() - start) * (1e9 / CLOCKS_PER_SEC);
    const uf_model_stats *s = uf_model_get_stats(m);
    int wrong = uf_model_traps(m) != 0 || arrived != total;
    printf("%-8s %5u bytes: %6.2f M WR/s, %6.2f M packets/s, %6.2f M events/s simulated, in CPU time%s\n", profile, bytes,
           (double)total * 1e3 / took, (double)s->packets * 1e3 / took, (double)s->events * 1e3 / took, wrong ? ", WRONG" : "");
    for (int i = 0; i < 2; i++)
        uf_model_qp_destroy(ends[i].nic, ends[i].info.qpn);
    for (int i = 0; i < 2; i++)
        uf_model_cq_destroy(ends[i].model_cq);
    uf_model_destroy(m);
    return wrong;
}

int main(int argc, char **argv)
{
    uint64_t total = argc > 1 ? strtoull(argv[1], NULL, 0) : 2000000;
    int wrong = measure("fifo", 64, total);
    wrong += measure("p5en", 64, total);
    wrong += measure("chaos", 2048, total / 8);
    return wrong != 0;
}
