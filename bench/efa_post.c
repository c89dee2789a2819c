/* efa_post.c - work queue entries a second that CPU threads encode and post into an EFA send ring, 16 a doorbell.
 *
 * The ring is plain memory, so this is the cost of the code and not of a NIC's bus. Whoever posted also consumes, if nobody
 * does at that moment: it reads every word the doorbell covers, checks phase, name and fields, and frees the slots. So the
 * figures hold the check, and one or two cores suffice. No timed assertion; a wrong entry makes the exit code 1. */
#include "base/clock.h"
#include "fabric/efa/queue.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHIFT = 10, DEPTH = 1 << SHIFT, BATCH = 16, MAX_POSTERS = 2 };

typedef struct bench {
    uf_efa_sq q;
    uint64_t *ring;
    uint32_t doorbell, owned;
    uint64_t each;
    _Alignas(64) uint32_t consuming;
    uint32_t next;
    uint64_t faults;
    uint64_t sum[MAX_POSTERS];
} bench;

typedef struct poster {
    bench *b;
    uint32_t index;
    pthread_t thread;
} poster;

static void consume(bench *b)
{
    uint32_t idle = 0, upto = uf_load_acquire32(&b->doorbell), n = upto - b->next;
    if (n == 0 || !uf_compare_exchange32(&b->consuming, &idle, 1))
        return;
    upto = uf_load_acquire32(&b->doorbell); /* pairs with the doorbell store: the entries below it are written */
    n = upto - b->next;
    for (; b->next != upto; b->next++) {
        const uint64_t *w = b->ring + (b->next % DEPTH) * UF_EFA_WQE_WORDS;
        uint32_t from = (uint32_t)(w[3] >> 48) % MAX_POSTERS;
        b->faults += (w[0] >> UF_EFA_W0_PHASE_SHIFT & 1) != (b->next >> SHIFT & 1);
        b->faults += w[5] != b->sum[from] || w[7] != ~w[5] || (uint32_t)w[1] != (uint32_t)w[5] || w[4] >> 32 != w[2];
        b->faults += (w[6] & 0xffffffff) != (w[4] & 0xffffffff);
        b->sum[from] = w[5] + 1;
    }
    uf_efa_sq_complete(&b->q, n);
    uf_store_release32(&b->consuming, 0); /* pairs with the exchange above in the next consumer */
}

static void *post_all(void *arg)
{
    poster *p = arg;
    bench *b = p->b;
    uf_efa_to to = {.id = (uint64_t)p->index << 48, .qpn = 3, .ah = 5, .qkey = 77};
    uf_efa_sge local = {.bytes = 64, .lkey = 9};
    uf_efa_wqe e[BATCH];
    for (uint64_t sent = 0; sent < b->each;) {
        for (uint32_t i = 0; i < BATCH; i++) {
            local.addr = ~(sent + i);
            uf_efa_encode_write_imm(&e[i], UF_EFA_WQE_WORDS, &to, sent + i, 77, &local, (uint32_t)(sent + i));
        }
        for (uint32_t done = 0; done < BATCH;) {
            done += b->owned ? uf_efa_sq_post_owned(&b->q, e + done, BATCH - done, 0)
                             : uf_efa_sq_post(&b->q, e + done, BATCH - done, 0);
            consume(b);
        }
        sent += BATCH;
    }
    return NULL;
}

static uint64_t measure(const char *name, uint32_t n_posters, uint32_t owned, uint64_t total)
{
    static bench b;
    poster p[MAX_POSTERS];
    uint64_t *ring = aligned_alloc(64, DEPTH * UF_EFA_WQE_WORDS * 8);
    if (!ring)
        return 1;
    b = (bench){.ring = ring, .owned = owned, .each = total / n_posters / BATCH * BATCH};
    uf_efa_sq_init(&b.q, ring, &b.doorbell, SHIFT, UF_EFA_WQE_WORDS, DEPTH, BATCH, NULL);
    uint64_t start = uf_clock_ns();
    for (uint32_t i = 0; i < n_posters; i++) {
        p[i] = (poster){.b = &b, .index = i};
        if (i > 0 && pthread_create(&p[i].thread, NULL, post_all, &p[i]))
            return 1;
    }
    post_all(&p[0]);
    for (uint32_t i = 1; i < n_posters; i++)
        pthread_join(p[i].thread, NULL);
    consume(&b);
    uint64_t took = uf_clock_ns() - start, posted = b.each * n_posters;
    uint64_t wrong = b.faults + (b.next != (uint32_t)posted);
    printf("%-28s %7.1f M WQE/s  (%d at a doorbell, checked%s)\n", name, (double)posted * 1e3 / (double)took, BATCH,
           wrong ? ", WRONG" : "");
    free(ring);
    return wrong;
}

int main(int argc, char **argv)
{
    uint64_t total = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000000;
    uint64_t wrong = measure("one poster, own queue", 1, 1, total);
    wrong += measure("one poster, shared queue", 1, 0, total);
    wrong += measure("two posters, shared queue", 2, 0, total);
    return wrong != 0;
}
