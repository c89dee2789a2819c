/* test_ofi.h - two or more PEs of the libfabric fabric in one process and thread, for the tests of src/fabric/ofi.
 *
 * Every PE has one registered buffer. pump() polls a PE once and counts what came; post() posts and, on UF_EAGAIN, pumps all PEs until
 * the WR is taken. Deadlines only catch what hangs; nothing sleeps. */
#ifndef TEST_OFI_H
#define TEST_OFI_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fabric/ofi/ofi.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PES_MAX = 2, RAILS_TESTED_MAX = 2, COOKIES = 16384 };
#define DEADLINE_NS 60000000000ull

typedef struct pe {
    uf_fabric *f;
    unsigned char *memory;
    uf_mr *mr;
    uf_fabric_key key[RAILS_TESTED_MAX];
    uint32_t sent, imms, messages, errors;
    uf_cqe last; /* the last one that pump took, of any kind */
    uf_cqe last_imm, last_message;
    unsigned char cookie_seen[COOKIES];              /* how often */
    uint64_t imm_sum[PES_MAX], message_sum[PES_MAX]; /* by source */
} pe;

typedef struct pair {
    pe pes[PES_MAX];
    int n;
    size_t bytes;
} pair;

static inline const uf_settings *test_settings(const char *interface)
{
    static uf_settings settings;
    const char *const none[] = {NULL};
    assert_int_equal(uf_settings_load_from(none, &settings), UF_OK);
    snprintf(settings.text[UF_SET_INTERFACE], sizeof settings.text[0], "%s", interface);
    return &settings;
}

static inline uf_fabric_params test_params(const char *provider, int pe_number, int n_pes)
{
    return (uf_fabric_params){
        .settings = test_settings(""),
        .pe = pe_number,
        .n_pes = n_pes,
        .provider = provider,
        .one_host = true,
        .tx_depth = 256,
        .receives = 64,
        .remote_cqes = 512,
    };
}

static inline void pair_open(pair *p, const char *provider, const uf_ofi_tuning *tuning, int n, size_t bytes)
{
    memset(p, 0, sizeof *p);
    p->n = n;
    p->bytes = bytes;
    unsigned char addresses[PES_MAX][RAILS_TESTED_MAX][UF_FABRIC_ADDRESS_MAX];
    for (int i = 0; i < n; i++) {
        uf_fabric_params params = test_params(provider, i, n);
        if (uf_ofi_open_tuned(&params, tuning, &p->pes[i].f))
            fail_msg("open: %s", uf_error_message());
        for (uint32_t r = 0; r < p->pes[i].f->caps.n_rails; r++)
            assert_int_equal(p->pes[i].f->ops->address(p->pes[i].f, r, addresses[i][r]), UF_OK);
    }
    for (int i = 0; i < n; i++) {
        pe *me = &p->pes[i];
        me->memory = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
        assert_non_null(me->memory);
        memset(me->memory, 0, bytes);
        assert_int_equal(me->f->ops->mr_register(me->f, me->memory, bytes, true, &me->mr), UF_OK);
        for (uint32_t r = 0; r < me->f->caps.n_rails; r++) {
            me->f->ops->mr_key(me->mr, r, &me->key[r]);
            for (int j = 0; j < n; j++)
                assert_int_equal(me->f->ops->connect(me->f, r, (uint32_t)j, addresses[j][r]), UF_OK);
        }
    }
}

static inline void pair_close(pair *p)
{
    for (int i = 0; i < p->n; i++) {
        p->pes[i].f->ops->mr_close(p->pes[i].f, p->pes[i].mr);
        p->pes[i].f->ops->close(p->pes[i].f);
        free(p->pes[i].memory);
    }
}

static inline void count_cqe(pe *me, const uf_cqe *cqe)
{
    me->last = *cqe;
    if (cqe->status) {
        me->errors++;
        print_message("error CQE: %s\n", me->f->ops->error(me->f));
    }
    switch (cqe->kind) {
    case UF_CQE_SENT:
        me->sent++;
        me->cookie_seen[cqe->cookie % COOKIES]++;
        break;
    case UF_CQE_IMM:
        me->imms++;
        me->imm_sum[cqe->peer] += cqe->imm;
        me->last_imm = *cqe;
        break;
    default:
        me->messages++;
        me->message_sum[cqe->peer] += cqe->message[0];
        me->last_message = *cqe;
    }
}

static inline int pump(pe *me)
{
    uf_cqe cqes[16];
    int n = me->f->ops->poll(me->f, cqes, 16);
    if (n < 0)
        fail_msg("poll: %s", uf_error_message());
    for (int i = 0; i < n; i++)
        count_cqe(me, &cqes[i]);
    return n;
}

static inline void pump_all(pair *p)
{
    for (int i = 0; i < p->n; i++)
        pump(&p->pes[i]);
}

#define PUMP_UNTIL(p, condition)                                                                                                 \
    do {                                                                                                                         \
        uint64_t pump_start_ = uf_clock_ns();                                                                                    \
        while (!(condition)) {                                                                                                   \
            pump_all(p);                                                                                                         \
            if (uf_clock_ns() - pump_start_ > DEADLINE_NS)                                                                       \
                fail_msg("never: %s", #condition);                                                                               \
        }                                                                                                                        \
    } while (0)

static inline void post(pair *p, int from, const uf_wr *wr)
{
    pe *me = &p->pes[from];
    int rc;
    uint64_t start = uf_clock_ns();
    while ((rc = me->f->ops->post(me->f, wr)) == UF_EAGAIN) {
        pump_all(p);
        if (uf_clock_ns() - start > DEADLINE_NS)
            fail_msg("post waits for ever");
    }
    if (rc)
        fail_msg("post: %s", uf_error_message());
}

/* A one-sided WR from PE `from` to PE `to`, both offsets into the PEs' buffers. */
static inline uf_wr one_sided(pair *p, uf_verb verb, int from, int to, size_t local, size_t remote, size_t bytes)
{
    pe *me = &p->pes[from], *other = &p->pes[to];
    return (uf_wr){
        .verb = (uint8_t)verb,
        .peer = (uint32_t)to,
        .bytes = bytes,
        .local = (uint64_t)(uintptr_t)me->memory + local,
        .local_desc = me->f->ops->mr_desc(me->mr, 0),
        .remote = other->key[0].base + remote,
        .remote_key = other->key[0].key,
    };
}

static inline void fill(unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(i * 131 + seed + (i >> 8));
}

#endif
