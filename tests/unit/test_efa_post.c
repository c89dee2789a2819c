/* Several threads post into one EFA send queue while a consumer checks as the device would: every entry complete and of its
 * lap's phase, each poster's entries in its order and none missing, doorbells forward and at most a batch apart. */
#include "fabric/efa/queue.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHIFT = 5, DEPTH = 1 << SHIFT, POSTERS = 4, EACH = 6000, MAX_BATCH = 7 };

typedef struct rig {
    uint64_t ring[DEPTH * UF_EFA_WQE_WORDS];
    uint32_t doorbell;
    uf_efa_sq q;
    uf_efa_mmio mmio;
    uint32_t bad; /* what the doorbell check found; one thread at a time has the turn */
    uint32_t last, next;
    uint32_t seen[POSTERS];
} rig;

static rig shared;

static void store_word(void *arg, uint64_t *address, uint64_t value)
{
    (void)arg;
    uf_mmio_store64(address, value);
}

static void flush(void *arg)
{
    (void)arg;
    uf_mmio_flush();
}

/* In the thread that holds the turn, so plain variables do: the thread sanitizer would tell if two held it. */
static void ring_bell(void *arg, uint32_t *address, uint32_t value)
{
    rig *r = arg;
    uint32_t n = value - r->last;
    if (n == 0 || n > MAX_BATCH)
        r->bad++;
    r->last = value;
    uf_mmio_store32(address, value);
}

typedef struct poster {
    pthread_t thread;
    uint32_t index;
} poster;

static void *post_all(void *arg)
{
    const poster *p = arg;
    uint64_t random = p->index + 1;
    for (uint32_t sent = 0; sent < EACH;) {
        uf_efa_wqe e[2 * MAX_BATCH];
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = 1 + (uint32_t)(random >> 33) % (2 * MAX_BATCH);
        n = n < EACH - sent ? n : EACH - sent;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t name = (uint64_t)p->index << 32 | (sent + i);
            uf_efa_to to = {.id = name, .qkey = (uint32_t)name * 2654435761u};
            uf_efa_sge local = {.addr = ~name, .bytes = sent + i, .lkey = p->index};
            uf_efa_encode_write_imm(&e[i], UF_EFA_WQE_WORDS, &to, name, sent + i, &local, sent + i);
        }
        uint32_t done = uf_efa_sq_post(&shared.q, e, n, (int)(random >> 60 & 1) && sent + n < EACH);
        sent += done;
        if (done < n)
            uf_shared_pause(100);
    }
    return NULL;
}

/* One look at the doorbell: checks and frees what it covers. The number of faults. */
static uint32_t consume(rig *r)
{
    uint32_t faults = 0, upto = uf_load_acquire32(&r->doorbell); /* pairs with the poster's doorbell store */
    if (upto - r->next > DEPTH)
        return 1;
    for (; r->next != upto; r->next++) {
        uint64_t w[UF_EFA_WQE_WORDS];
        for (uint32_t i = 0; i < UF_EFA_WQE_WORDS; i++) {
            uint64_t *word = &r->ring[(r->next % DEPTH) * UF_EFA_WQE_WORDS + i];
            w[i] = uf_load_relaxed64(word);
            uf_store_relaxed64(word, 0xa5a5a5a5a5a5a5a5); /* what is not written again shows */
        }
        uint64_t name = w[5];
        uint32_t from = (uint32_t)(name >> 32) % POSTERS, at = (uint32_t)name;
        faults += (w[0] >> UF_EFA_W0_PHASE_SHIFT & 1) != (r->next >> SHIFT & 1);
        faults += at != r->seen[from]++ || (w[0] & 0xffff) != (at & 0xffff) || (uint32_t)w[1] != at;
        faults += w[2] != (uint32_t)((uint32_t)name * 2654435761u) || w[3] != (name & ~(uint64_t)0xffff);
        faults += w[4] != uf_efa_word(at, at) || w[6] != uf_efa_word(at, from) || w[7] != ~name;
        uf_efa_sq_complete(&r->q, 1);
    }
    return faults;
}

static void many_posters_lose_tear_and_reorder_nothing(void **state)
{
    (void)state;
    poster posters[POSTERS];
    uint32_t faults = 0;
    memset(&shared, 0, sizeof(shared));
    shared.mmio = (uf_efa_mmio){store_word, flush, ring_bell, &shared};
    /* Starts close to the wrap of the positions, at the beginning of an even lap. */
    uf_efa_sq_init(&shared.q, shared.ring, &shared.doorbell, SHIFT, UF_EFA_WQE_WORDS, DEPTH - 1, MAX_BATCH, &shared.mmio);
    uint32_t first = (uint32_t) - (64 * DEPTH);
    shared.q.reserved = shared.q.rung = shared.q.completed = shared.doorbell = shared.last = shared.next = first;
    shared.q.turn = first;
    for (uint32_t i = 0; i < POSTERS; i++) {
        posters[i].index = i;
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    for (uint32_t idle = 0; shared.next != first + POSTERS * EACH && faults == 0;) {
        uint32_t before = shared.next;
        faults += consume(&shared);
        idle = shared.next == before ? idle + 1 : 0;
        uf_shared_pause(idle);
    }
    if (faults)
        uf_efa_sq_complete(&shared.q, UINT32_MAX / 2); /* lets the posters finish, so that the test can tell */
    for (uint32_t i = 0; i < POSTERS; i++)
        pthread_join(posters[i].thread, NULL);
    assert_int_equal(faults, 0);
    assert_int_equal(shared.bad, 0);
    for (uint32_t i = 0; i < POSTERS; i++)
        assert_int_equal(shared.seen[i], EACH);
}

/* The consumer is worth nothing if it does not see a poster that errs. */
static void consumer_sees_a_torn_entry(void **state)
{
    (void)state;
    uint32_t position = 0;
    memset(&shared, 0, sizeof(shared));
    memset(shared.ring, 0xa5, sizeof(shared.ring));
    uf_efa_sq_init(&shared.q, shared.ring, &shared.doorbell, SHIFT, UF_EFA_WQE_WORDS, DEPTH, 0, NULL);
    assert_true(uf_efa_sq_reserve(&shared.q, 1, &position));
    uf_efa_wqe e = {0};
    uf_efa_to to = {.id = 0};
    uf_efa_sge local = {.addr = ~(uint64_t)0};
    assert_true(uf_efa_encode_write_imm(&e, UF_EFA_WQE_WORDS, &to, 0, 0, &local, 0));
    uf_efa_sq_write(&shared.q, position, &e);
    shared.ring[6] = 0xa5a5a5a5a5a5a5a5; /* one word of eight was not written */
    uf_efa_sq_publish(&shared.q, position, 1, 0);
    assert_int_equal(consume(&shared), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_posters_lose_tear_and_reorder_nothing),
        cmocka_unit_test(consumer_sees_a_torn_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
