/* Copies into a same-host peer's private memory: by the kernel where it lets us, by the owner where not. */
#include "base/error.h"
#include "fabric/local/inbox.h"
#include "fabric/local/local.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void fill(unsigned char *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)((i * 131 + seed * 7) >> (i % 5));
}

/* ---- cross-memory attach */

typedef struct told {
    uf_local_identity identity;
    unsigned char *buffer;
    size_t bytes;
} told;

/* A child with a buffer of its own, filled with pattern 1, whose last page is missing. It checks for pattern 2 at its end. */
static pid_t start_owner(bool as_nobody, told *t, int *hold_fd)
{
    int tell[2], hold[2];
    assert_int_equal(pipe(tell), 0);
    assert_int_equal(pipe(hold), 0);
    pid_t child = fork();
    if (child == 0) {
        close(hold[1]);
        if (as_nobody && (setgid(65534) || setuid(65534)))
            _exit(2);
        memset(t, 0, sizeof(*t));
        t->bytes = 3 * MIB;
        t->buffer = mmap(NULL, t->bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(t->buffer + t->bytes, 4096);
        fill(t->buffer, t->bytes, 1);
        if (uf_local_identify(&t->identity) || write(tell[1], t, sizeof(*t)) != (ssize_t)sizeof(*t))
            _exit(3);
        char end;
        while (read(hold[0], &end, 1) > 0)
            ;
        unsigned char *expected = malloc(t->bytes);
        fill(expected, t->bytes, 2);
        _exit(memcmp(expected, t->buffer, t->bytes) == 0 ? 0 : 1);
    }
    close(tell[1]);
    close(hold[0]);
    assert_int_equal(read(tell[0], t, sizeof(*t)), sizeof(*t));
    close(tell[0]);
    *hold_fd = hold[1];
    return child;
}

static int end_owner(pid_t child, int hold_fd)
{
    int status;
    close(hold_fd);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_peers_private_memory_is_read_and_written(void **state)
{
    (void)state;
    told t;
    int hold;
    pid_t child = start_owner(false, &t, &hold);
    uint64_t remote = (uint64_t)(uintptr_t)t.buffer;
    unsigned char *mine = malloc(t.bytes), *expected = malloc(t.bytes);
    fill(expected, t.bytes, 1);
    int rc = uf_local_copy_from(&t.identity, remote, mine, t.bytes);
    if (rc == UF_EUNSUPPORTED) {
        print_message("SKIPPED: %s\n", uf_error_message());
        assert_non_null(strstr(uf_error_message(), "ptrace_scope"));
        end_owner(child, hold);
        free(mine);
        free(expected);
        return;
    }
    assert_int_equal(rc, UF_OK);
    assert_memory_equal(mine, expected, t.bytes);
    assert_int_equal(uf_local_copy_from(&t.identity, remote + 7, mine, 1), UF_OK);
    assert_int_equal(mine[0], expected[7]);
    assert_int_equal(uf_local_copy_from(&t.identity, 0, mine, 0), UF_OK);
    fill(mine, t.bytes, 2);
    assert_int_equal(uf_local_copy_to(&t.identity, remote, mine, t.bytes), UF_OK);
    /* Runs into the hole: refused with the address, not silently short. */
    assert_int_equal(uf_local_copy_from(&t.identity, remote + t.bytes - 10, mine, 20), UF_ERANGE);
    assert_non_null(strstr(uf_error_message(), "not mapped"));
    assert_int_equal(uf_local_copy_to(&t.identity, remote + t.bytes, mine, 20), UF_ERANGE);
    assert_int_equal(end_owner(child, hold), 0);
    assert_int_equal(uf_local_copy_to(&t.identity, remote, mine, 20), UF_EPEER);
    free(mine);
    free(expected);
}

static void a_pid_that_is_another_process_by_now_is_never_written_to(void **state)
{
    (void)state;
    told t;
    int hold;
    pid_t child = start_owner(false, &t, &hold);
    uf_local_identity earlier = t.identity;
    earlier.nonce++; /* as if the pid had been another's */
    unsigned char byte = 0xff;
    assert_int_equal(uf_local_copy_to(&earlier, (uint64_t)(uintptr_t)t.buffer, &byte, 1), UF_EPEER);
    kill(child, SIGKILL);
    end_owner(child, hold);
}

static void what_the_system_forbids_is_told_with_the_remedy(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    told t;
    int hold, status;
    pid_t owner = start_owner(false, &t, &hold), child = fork();
    if (child == 0) {
        unsigned char byte = 0;
        if (setgid(65534) || setuid(65534))
            _exit(2);
        _exit(uf_local_copy_to(&t.identity, (uint64_t)(uintptr_t)t.buffer, &byte, 1) == UF_EUNSUPPORTED ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    kill(owner, SIGKILL);
    end_owner(owner, hold);
}

static void within_a_process_it_is_a_copy(void **state)
{
    (void)state;
    uf_local_identity mine;
    assert_int_equal(uf_local_identify(&mine), UF_OK);
    char a[8] = "abcdefg", b[8] = "";
    assert_int_equal(uf_local_copy_to(&mine, (uint64_t)(uintptr_t)b, a, 8), UF_OK);
    assert_string_equal(b, "abcdefg");
    a[0] = 'x';
    assert_int_equal(uf_local_copy_from(&mine, (uint64_t)(uintptr_t)a, b, 8), UF_OK);
    assert_string_equal(b, "xbcdefg");
    uf_local_identity_close(&mine);
}

/* ---- the inbox */

typedef struct window {
    unsigned char *base;
    size_t bytes;
    _Atomic int asked;
} window;

static int check_window(void *arg, uint32_t pe, uint64_t address, size_t bytes, uf_local_ask ask)
{
    window *w = arg;
    (void)pe;
    (void)ask;
    atomic_fetch_add(&w->asked, 1);
    uint64_t base = (uint64_t)(uintptr_t)w->base;
    return address >= base && bytes <= w->bytes && address - base <= w->bytes - bytes ? UF_OK : UF_ERANGE;
}

static void add_to(void *arg, uint64_t address, uf_local_atomic *a)
{
    (void)arg;
    a->old = a->width == 4 ? __atomic_fetch_add((uint32_t *)(uintptr_t)address, (uint32_t)a->operand, __ATOMIC_ACQ_REL)
                           : __atomic_fetch_add((uint64_t *)(uintptr_t)address, a->operand, __ATOMIC_ACQ_REL);
}

static int serve(uf_local_inbox *inbox, window *w, int max)
{
    const uf_local_inbox_owner owner = {w, check_window, add_to};
    return uf_local_inbox_serve(inbox, &owner, max);
}

static uf_local_inbox *make_inbox(uint32_t slots)
{
    void *memory = mmap(NULL, uf_local_inbox_bytes(slots), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return uf_local_inbox_init(memory, slots);
}

static void free_inbox(uf_local_inbox *inbox, uint32_t slots)
{
    munmap(inbox, uf_local_inbox_bytes(slots));
}

static window make_window(size_t bytes)
{
    window w = {.base = malloc(bytes), .bytes = bytes};
    return w;
}

static int finish(uf_local_transfer *t, uf_local_inbox *inbox, window *w)
{
    int rc;
    while ((rc = uf_local_transfer_step(t)) == UF_EAGAIN)
        serve(inbox, w, 3);
    return rc;
}

static void the_owner_copies_for_a_peer_at_every_size(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 65535, 65536, 65537, 1 * MIB, 5 * MIB + 3};
    uf_local_inbox *inbox = make_inbox(4);
    window w = make_window(6 * MIB);
    unsigned char *source = malloc(6 * MIB), *back = malloc(6 * MIB);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uf_local_transfer t;
        fill(source, sizes[i], i + 3);
        memset(w.base, 0xee, w.bytes);
        uint64_t remote = (uint64_t)(uintptr_t)w.base + 5;
        uf_local_transfer_start(&t, inbox, 1, UF_LOCAL_ASK_WRITE, remote, source, sizes[i]);
        assert_int_equal(finish(&t, inbox, &w), UF_OK);
        assert_memory_equal(w.base + 5, source, sizes[i]);
        assert_int_equal(w.base[4], 0xee);
        assert_int_equal(w.base[5 + sizes[i]], 0xee);
        uf_local_transfer_start(&t, inbox, 1, UF_LOCAL_ASK_READ, remote, back, sizes[i]);
        assert_int_equal(finish(&t, inbox, &w), UF_OK);
        assert_memory_equal(back, source, sizes[i]);
    }
    free(source);
    free(back);
    free(w.base);
    free_inbox(inbox, 4);
}

static void the_owner_refuses_what_is_not_its_window(void **state)
{
    (void)state;
    uf_local_inbox *inbox = make_inbox(2);
    window w = make_window(200000);
    memset(w.base, 1, w.bytes);
    unsigned char *source = calloc(1, 300000);
    uf_local_transfer t;
    uf_local_transfer_start(&t, inbox, 7, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base - 1, source, 10);
    assert_int_equal(finish(&t, inbox, &w), UF_ERANGE);
    assert_non_null(strstr(uf_error_message(), "window"));
    uf_local_transfer_start(&t, inbox, 7, UF_LOCAL_ASK_READ, UINT64_MAX - 5, source,
                            300000); /* also past the end of all addresses */
    assert_int_equal(finish(&t, inbox, &w), UF_ERANGE);
    uf_local_transfer_start(&t, inbox, 7, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base, source, 300000); /* begins well */
    assert_int_equal(finish(&t, inbox, &w), UF_ERANGE);
    /* All slots are free again: two transfers of one slot each start at once. */
    uf_local_transfer a, b;
    uf_local_transfer_start(&a, inbox, 1, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base, source, 8);
    uf_local_transfer_start(&b, inbox, 2, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base + 8, source, 8);
    assert_int_equal(uf_local_transfer_step(&a), UF_EAGAIN);
    assert_int_equal(uf_local_transfer_step(&b), UF_EAGAIN);
    assert_int_equal(serve(inbox, &w, 8), 2);
    assert_int_equal(uf_local_transfer_step(&a), UF_OK);
    assert_int_equal(uf_local_transfer_step(&b), UF_OK);
    free(source);
    free(w.base);
    free_inbox(inbox, 2);
}

static void the_owner_applies_atomics_for_a_peer(void **state)
{
    (void)state;
    uf_local_inbox *inbox = make_inbox(2);
    window w = make_window(64);
    memset(w.base, 0, w.bytes);
    uint64_t remote = (uint64_t)(uintptr_t)w.base + 8;
    for (uint64_t i = 0; i < 10; i++) {
        uf_local_atomic a = {.operand = 3, .op = 1, .width = i % 2 ? 4 : 8};
        uf_local_transfer t;
        uf_local_transfer_start(&t, inbox, 1, UF_LOCAL_ASK_ATOMIC, remote, &a, sizeof(a));
        assert_int_equal(finish(&t, inbox, &w), UF_OK);
        assert_int_equal(a.old, 3 * i);
    }
    uf_local_atomic outside = {.operand = 1, .op = 1, .width = 8};
    uf_local_transfer t;
    uf_local_transfer_start(&t, inbox, 1, UF_LOCAL_ASK_ATOMIC, remote + 56, &outside, sizeof(outside));
    assert_int_equal(finish(&t, inbox, &w), UF_ERANGE);
    uf_local_transfer_start(&t, inbox, 1, UF_LOCAL_ASK_ATOMIC, remote + 1, &outside, sizeof(outside));
    assert_int_equal(finish(&t, inbox, &w), UF_EINTERNAL); /* not aligned: what no correct peer asks */
    free(w.base);
    free_inbox(inbox, 2);
}

typedef struct writer {
    uf_local_inbox *inbox;
    window *w;
    uint32_t pe;
    uint64_t seed;
    int failures;
} writer;

enum { WRITERS = 4, TRANSFERS = 60, PIECE = 300000 };

/* Writes pieces of random size into its own part of the window and reads them back; every second writer now and then gives up half way (what
 * it had published may then still land, so only the others compare). */
static void *writer_main(void *arg)
{
    writer *me = arg;
    unsigned char *source = malloc(PIECE), *back = malloc(PIECE);
    uint64_t base = (uint64_t)(uintptr_t)me->w->base + (uint64_t)me->pe * PIECE;
    for (int i = 0; i < TRANSFERS; i++) {
        size_t bytes = next_random(&me->seed) % PIECE;
        uf_local_transfer t;
        fill(source, bytes, me->seed);
        uf_local_transfer_start(&t, me->inbox, me->pe, UF_LOCAL_ASK_WRITE, base, source, bytes);
        if (me->pe % 2 && next_random(&me->seed) % 4 == 0) {
            for (uint64_t steps = next_random(&me->seed) % 20; steps; steps--)
                if (uf_local_transfer_step(&t) != UF_EAGAIN)
                    break;
            uf_local_transfer_abandon(&t);
            continue;
        }
        while (uf_local_transfer_step(&t) == UF_EAGAIN)
            sched_yield();
        uf_local_transfer_start(&t, me->inbox, me->pe, UF_LOCAL_ASK_READ, base, back, bytes);
        while (uf_local_transfer_step(&t) == UF_EAGAIN)
            sched_yield();
        if (t.status != UF_OK || (me->pe % 2 == 0 && memcmp(source, back, bytes) != 0))
            me->failures++;
    }
    free(source);
    free(back);
    return NULL;
}

static _Atomic bool stop_owner;

typedef struct owner {
    uf_local_inbox *inbox;
    window *w;
} owner;

static void *owner_main(void *arg)
{
    owner *o = arg;
    while (!atomic_load(&stop_owner))
        if (!serve(o->inbox, o->w, 2))
            sched_yield();
    return NULL;
}

static bool everybody_is_dead(void *arg, uint32_t pe)
{
    (void)arg;
    (void)pe;
    return false;
}

static bool everybody_lives(void *arg, uint32_t pe)
{
    (void)arg;
    (void)pe;
    return true;
}

static void many_writers_and_two_servers_lose_no_slot(void **state)
{
    (void)state;
    uf_local_inbox *inbox = make_inbox(3);
    window w = make_window((size_t)PIECE * WRITERS);
    writer writers[WRITERS];
    pthread_t threads[WRITERS], owners[2];
    owner o = {inbox, &w};
    atomic_store(&stop_owner, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&owners[i], NULL, owner_main, &o), 0);
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (writer){.inbox = inbox, .w = &w, .pe = i, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, writer_main, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(writers[i].failures, 0);
    }
    atomic_store(&stop_owner, true);
    pthread_join(owners[0], NULL);
    pthread_join(owners[1], NULL);
    /* Nothing is left behind, abandoned or not. */
    assert_int_equal(uf_local_inbox_reap(inbox, everybody_is_dead, NULL), 0);
    free(w.base);
    free_inbox(inbox, 3);
}

/* A child that takes every slot, at whatever stage, and is killed there. */
static void die_with_slots(uf_local_inbox *inbox, window *w, int served)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        uf_local_transfer t;
        static unsigned char source[10 * UF_LOCAL_INBOX_CHUNK];
        uf_local_transfer_start(&t, inbox, 9, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w->base, source, sizeof(source));
        uf_local_transfer_step(&t);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    char x;
    assert_int_equal(read(ready[0], &x, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(serve(inbox, w, served), served);
}

static void slots_of_a_dead_writer_are_given_back(void **state)
{
    (void)state;
    uf_local_inbox *inbox = make_inbox(4);
    window w = make_window(10 * UF_LOCAL_INBOX_CHUNK);
    unsigned char source[100];
    fill(source, sizeof(source), 5);
    for (int served = 0; served <= 4; served++) {
        die_with_slots(inbox, &w, served);
        uf_local_transfer t;
        uf_local_transfer_start(&t, inbox, 2, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base, source, sizeof(source));
        assert_int_equal(uf_local_transfer_step(&t), UF_EAGAIN);
        assert_true(t.held == 0); /* no slot for us yet */
        assert_int_equal(uf_local_inbox_reap(inbox, everybody_lives, NULL), 0);
        assert_int_equal(uf_local_inbox_reap(inbox, everybody_is_dead, NULL), 4);
        assert_int_equal(finish(&t, inbox, &w), UF_OK);
        assert_memory_equal(w.base, source, sizeof(source));
    }
    free(w.base);
    free_inbox(inbox, 4);
}

static void an_abandoned_transfer_frees_its_slots_in_every_state(void **state)
{
    (void)state;
    uf_local_inbox *inbox = make_inbox(4);
    window w = make_window(10 * UF_LOCAL_INBOX_CHUNK);
    unsigned char *source = calloc(10, UF_LOCAL_INBOX_CHUNK);
    for (int served = 0; served <= 4; served++) {
        uf_local_transfer t;
        uf_local_transfer_start(&t, inbox, 2, UF_LOCAL_ASK_WRITE, (uint64_t)(uintptr_t)w.base, source, 10 * UF_LOCAL_INBOX_CHUNK);
        assert_int_equal(uf_local_transfer_step(&t), UF_EAGAIN);
        assert_int_equal(serve(inbox, &w, served), served);
        uf_local_transfer_abandon(&t);
        assert_int_equal(serve(inbox, &w, 8), 0);
        assert_int_equal(uf_local_inbox_reap(inbox, everybody_is_dead, NULL), 0);
    }
    free(source);
    free(w.base);
    free_inbox(inbox, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peers_private_memory_is_read_and_written),
        cmocka_unit_test(a_pid_that_is_another_process_by_now_is_never_written_to),
        cmocka_unit_test(what_the_system_forbids_is_told_with_the_remedy),
        cmocka_unit_test(within_a_process_it_is_a_copy),
        cmocka_unit_test(the_owner_copies_for_a_peer_at_every_size),
        cmocka_unit_test(the_owner_refuses_what_is_not_its_window),
        cmocka_unit_test(the_owner_applies_atomics_for_a_peer),
        cmocka_unit_test(many_writers_and_two_servers_lose_no_slot),
        cmocka_unit_test(slots_of_a_dead_writer_are_given_back),
        cmocka_unit_test(an_abandoned_transfer_frees_its_slots_in_every_state),
    };
    return cmocka_run_group_tests_name("local copies", tests, NULL, NULL);
}
