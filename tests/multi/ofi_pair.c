/* Two processes over the libfabric fabric: they exchange everything in both directions, and one outlives the other.
 *
 * usage: ofi_pair PROVIDER. Both processes of a round are children of the test, so that a crash or a hang (alarm) of the
 * survivor is a failed test and not its end. A killed peer is an error CQE that names it, or nothing: the deadlines
 * of the layers above tell the rest. With shm the peer ends itself between two calls: the provider's locks lie in shared memory, and
 * who is killed from outside while holding one takes them along (src/fabric/ofi/select.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fabric/ofi/ofi.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFER = 4 << 20, ROUNDS = 3000, HANG_SECONDS = 60 };

static const char *provider = "tcp";

typedef struct node {
    uf_fabric *f;
    int me, link; /* socket to the other one */
    unsigned char *memory;
    uf_mr *mr;
    uf_fabric_key theirs;
    uint32_t sent, imms, messages, errors;
    uint64_t imm_sum;
    uint32_t last_imm;
    bool misnamed; /* a CQE that names a PE that cannot be */
} node;

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static bool swap(node *n, const void *mine, void *theirs, size_t bytes)
{
    return write(n->link, mine, bytes) == (ssize_t)bytes && recv(n->link, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* The test framework catches signals in its own process: in a child they must kill. */
static void die_of_signals(void)
{
    const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
    alarm(HANG_SECONDS);
}

static bool node_open(node *n, int me, int link)
{
    die_of_signals();
    static uf_settings settings;
    const char *const none[] = {NULL};
    *n = (node){.me = me, .link = link};
    uf_fabric_params params = {
        .settings = &settings,
        .pe = me,
        .n_pes = 2,
        .provider = provider,
        .one_host = true,
        .tx_depth = 128,
        .receives = 64,
        .remote_cqes = 256,
    };
    unsigned char addresses[2][UF_FABRIC_ADDRESS_MAX] = {{0}};
    uf_fabric_key mine;
    if (uf_settings_load_from(none, &settings) || uf_fabric_ofi.open(&params, &n->f)) {
        fprintf(stderr, "open: %s\n", uf_error_message());
        return false;
    }
    n->memory = calloc(1, BUFFER);
    if (!n->memory || n->f->ops->address(n->f, 0, addresses[me]) || !swap(n, addresses[me], addresses[!me], sizeof addresses[0]))
        return false;
    for (uint32_t pe = 0; pe < 2; pe++)
        if (n->f->ops->connect(n->f, 0, pe, addresses[pe]))
            return false;
    if (n->f->ops->mr_register(n->f, n->memory, BUFFER, true, &n->mr))
        return false;
    n->f->ops->mr_key(n->mr, 0, &mine);
    return swap(n, &mine, &n->theirs, sizeof mine);
}

static void node_close(node *n)
{
    n->f->ops->mr_close(n->f, n->mr);
    n->f->ops->close(n->f);
    free(n->memory);
}

static int pump(node *n)
{
    uf_cqe cqes[32];
    int got = n->f->ops->poll(n->f, cqes, 32);
    for (int i = 0; i < got; i++) {
        const uf_cqe *cqe = &cqes[i];
        n->misnamed |= cqe->peer != (uint32_t)!n->me;
        if (cqe->status) {
            n->errors++;
            n->misnamed |= !strstr(n->f->ops->error(n->f), "to PE");
        }
        if (cqe->kind == UF_CQE_SENT) {
            n->sent++;
        } else if (cqe->kind == UF_CQE_IMM) {
            n->imms++;
            n->imm_sum += cqe->imm;
            n->last_imm = cqe->imm;
        } else {
            n->messages++;
        }
    }
    return got;
}

static uf_wr make_wr(node *n, uf_verb verb, size_t at, size_t bytes, uint32_t imm)
{
    return (uf_wr){
        .verb = (uint8_t)verb,
        .peer = (uint32_t)!n->me,
        .imm = imm,
        .bytes = verb == UF_VERB_SEND ? 0 : bytes,
        .local = (uint64_t)(uintptr_t)n->memory + at,
        .local_desc = n->f->ops->mr_desc(n->mr, 0),
        .remote = n->theirs.base + BUFFER / 2 + at,
        .remote_key = n->theirs.key,
    };
}

static bool post(node *n, const uf_wr *wr)
{
    int rc;
    while ((rc = n->f->ops->post(n->f, wr)) == UF_EAGAIN)
        if (pump(n) < 0)
            return false;
    return rc == UF_OK;
}

/* ---------------------------------------------------------------- both live */

/* Each in turn writes a block whose every byte is the round, with the round as immediate; the other checks it on arrival. */
static int exchange(int me, int link)
{
    node n;
    uint32_t seed = 11;
    if (!node_open(&n, me, link))
        return 1;
    uint32_t posted = 0, expected_messages = 0, expected_imms = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        size_t bytes = next_random(&seed) % (round % 16 ? 200 : 200000) + 1; /* the same on both */
        bool message = round % 5 == 0;
        if ((int)(round % 2) == me) {
            memset(n.memory, (int)round, bytes);
            uf_wr wr = make_wr(&n, UF_VERB_WRITE_IMM, 0, bytes, round);
            uf_wr word = make_wr(&n, UF_VERB_SEND, 0, 0, 0);
            if ((message && !post(&n, &word)) || !post(&n, &wr))
                return 2;
            posted += 1 + message;
            while (n.sent < posted) /* the source is used again */
                if (pump(&n) < 0)
                    return 3;
        } else {
            expected_messages += message;
            expected_imms++;
            while (n.imms < expected_imms) /* it may have come while we waited for our own completions */
                if (pump(&n) < 0)
                    return 4;
            const unsigned char *there = n.memory + BUFFER / 2;
            for (size_t i = 0; i < bytes; i++)
                if (there[i] != (unsigned char)round)
                    return 5;
            if (n.last_imm != round || n.imms != expected_imms)
                return 6;
        }
    }
    while (n.messages < expected_messages)
        if (pump(&n) < 0)
            return 7;
    char word[2] = "x";
    bool met = write(link, word, 1) == 1;
    while (met && recv(link, word, 1, MSG_DONTWAIT) != 1) /* the other may still need us */
        pump(&n);
    bool sound = met && !n.misnamed && n.errors == 0;
    node_close(&n);
    return sound ? 0 : 8;
}

/* ---------------------------------------------------------------- one dies */

/* Writes of all sizes, messages and reads, as many as go. */
static void flood(node *n, uint32_t *seed)
{
    uint32_t what = next_random(seed);
    size_t bytes = what % 7 == 0 ? 262144 : what % 7 == 1 ? 9000 : what % 600;
    uf_verb verb = what % 11 == 0 ? UF_VERB_SEND : what % 11 == 1 ? UF_VERB_READ : what % 2 ? UF_VERB_WRITE_IMM : UF_VERB_WRITE;
    uf_wr wr = make_wr(n, verb, next_random(seed) % 4096, bytes, 1);
    if (what % 3 == 0)
        wr.flags = UF_WR_PLACED;
    if (bytes <= n->f->caps.inline_bytes && what % 2)
        wr.flags = UF_WR_SILENT;
    int rc = n->f->ops->post(n->f, &wr);
    if (rc || what % 4 == 0)
        pump(n);
}

/* When the victim dies: in full traffic, or after a few polls, while connections are still being made. */
typedef enum moment { IN_TRAFFIC, CONNECTING } moment;

static int victim(int link, moment when)
{
    node n;
    uint32_t seed;
    if (!node_open(&n, 1, link) || recv(link, &seed, sizeof seed, MSG_WAITALL) != sizeof seed)
        return 1;
    uint32_t life = next_random(&seed) % (when == CONNECTING ? 40 : 4000);
    bool speaks = next_random(&seed) % 2;
    for (uint32_t i = 0;; i++) {
        if (when == CONNECTING && i == life)
            raise(SIGKILL);
        if (when == IN_TRAFFIC || speaks)
            flood(&n, &seed);
        else
            pump(&n);
        if (strcmp(provider, "shm") == 0 && i > life && n.imms > 10)
            raise(SIGKILL);
    }
}

static int survivor(int link, moment when, pid_t peer, uint32_t seed)
{
    node n;
    if (!node_open(&n, 0, link) || write(link, &seed, sizeof seed) != sizeof seed)
        return 1;
    uint32_t before = next_random(&seed) % 4000;
    bool kills = when == IN_TRAFFIC && strcmp(provider, "shm") != 0;
    /* Its socket closes with it: from then on it is dead for certain. */
    char word;
    for (uint32_t i = 0; recv(link, &word, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR); i++) {
        flood(&n, &seed);
        if (kills && n.imms >= 10 && i >= before) {
            kill(peer, SIGKILL);
            kills = false;
        }
    }
    for (int i = 0; i < (when == CONNECTING ? 1000 : 4000); i++) /* sockets try to connect at each */
        flood(&n, &seed);
    bool sound = !n.misnamed;
    node_close(&n);
    return sound ? 0 : 2;
}

/* ---------------------------------------------------------------- the test's side */

static int wait_for(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (WIFSIGNALED(status))
        return 1000 + WTERMSIG(status);
    return WEXITSTATUS(status);
}

static void two_processes_exchange_everything(void **state)
{
    (void)state;
    int link[2];
    pid_t children[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link), 0);
    for (int me = 0; me < 2; me++) {
        children[me] = fork();
        assert_true(children[me] >= 0);
        if (children[me] == 0) {
            close(link[!me]);
            _exit(exchange(me, link[me]));
        }
    }
    close(link[0]);
    close(link[1]);
    assert_int_equal(wait_for(children[0]), 0);
    assert_int_equal(wait_for(children[1]), 0);
}

static void outlive(moment when, uint32_t seeds)
{
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        int link[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link), 0);
        pid_t dying = fork();
        assert_true(dying >= 0);
        if (dying == 0) {
            close(link[0]);
            _exit(victim(link[1], when));
        }
        pid_t living = fork();
        assert_true(living >= 0);
        if (living == 0) {
            close(link[1]);
            _exit(survivor(link[0], when, dying, seed * 7919));
        }
        close(link[0]);
        close(link[1]);
        int result = wait_for(living);
        kill(dying, SIGKILL);
        int death = wait_for(dying);
        if (result || death != 1000 + SIGKILL)
            fail_msg("seed %u: the survivor ended with %d (1000 + signal), the victim with %d", seed, result, death);
    }
}

static void a_peer_killed_in_the_middle_neither_crashes_nor_hangs_the_other(void **state)
{
    (void)state;
    outlive(IN_TRAFFIC, 12);
}

static void a_peer_killed_while_it_connects_neither_crashes_nor_hangs_the_other(void **state)
{
    (void)state;
    outlive(CONNECTING, 24);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        provider = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_processes_exchange_everything),
        cmocka_unit_test(a_peer_killed_in_the_middle_neither_crashes_nor_hangs_the_other),
        cmocka_unit_test(a_peer_killed_while_it_connects_neither_crashes_nor_hangs_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
