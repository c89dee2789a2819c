/* test_bootstrap_tcp.c - the TCP bootstrap as the library uses it: a collective in one thread, the engine's tick in another. */
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define N_PES  4
#define SECOND 1000000000ull

static uf_settings settings; /* zero: no interface, no job */
static char root[64];

typedef struct pe {
    pthread_t main, tick;
    int number, code, whose;
    char text[512];
    uf_bootstrap *b;
    _Atomic int stop;
} pe;

static int reserve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    snprintf(root, sizeof root, "127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

/* What the progress thread does. */
static void *tick(void *arg)
{
    pe *me = arg;
    struct pollfd p = {.fd = uf_bootstrap_fd(me->b), .events = POLLIN};
    while (!atomic_load(&me->stop)) {
        uf_bootstrap_poll(me->b, NULL);
        poll(&p, 1, 1);
    }
    return NULL;
}

static int create(pe *me, uint64_t timeout_ns)
{
    uf_bootstrap_params params = {.settings = &settings,
                                  .driver = &uf_driver_threads,
                                  .pe = me->number,
                                  .n_pes = N_PES,
                                  .root = root,
                                  .job = "threads",
                                  .timeout_ns = timeout_ns};
    int rc = uf_bootstrap_create(&params, &me->b);
    if (!rc)
        rc = pthread_create(&me->tick, NULL, tick, me);
    return rc;
}

static void finish(pe *me)
{
    uf_bootstrap_leave(me->b);
    atomic_store(&me->stop, 1);
    pthread_join(me->tick, NULL);
    uf_bootstrap_destroy(me->b);
}

static void run(pe *pes, void *(*body)(void *arg))
{
    int fd = reserve();
    memset(pes, 0, N_PES * sizeof *pes);
    for (int i = 0; i < N_PES; i++) {
        pes[i].number = i;
        assert_int_equal(pthread_create(&pes[i].main, NULL, body, &pes[i]), 0);
    }
    for (int i = 0; i < N_PES; i++)
        pthread_join(pes[i].main, NULL);
    close(fd);
}

static void *exchanging(void *arg)
{
    pe *me = arg;
    uint64_t all[N_PES];
    int rc = create(me, 60 * SECOND);
    if (!rc) {
        for (uint64_t step = 0; step < 300 && !rc; step++) {
            uint64_t mine = step * 100 + (uint64_t)me->number;
            rc = uf_bootstrap_allgather(me->b, &mine, sizeof mine, all, 0);
            for (uint64_t i = 0; i < N_PES && !rc; i++)
                rc = all[i] != step * 100 + i;
        }
        finish(me);
    }
    me->code = rc;
    return NULL;
}

static void a_tick_beside_exchanges_does_no_harm(void **state)
{
    (void)state;
    pe pes[N_PES];
    run(pes, exchanging);
    for (int i = 0; i < N_PES; i++)
        assert_int_equal(pes[i].code, 0);
}

static void *aborting(void *arg)
{
    pe *me = arg;
    int rc = create(me, 60 * SECOND);
    if (!rc) {
        /* PE 1 is told while it waits, by nobody but its own tick. */
        if (me->number == 3)
            uf_bootstrap_abort(me->b, UF_EFABRIC, "cable pulled");
        rc = uf_bootstrap_barrier(me->b, 0);
        snprintf(me->text, sizeof me->text, "%s", uf_error_message());
        if (uf_bootstrap_poll(me->b, &me->whose) != rc)
            rc = UF_EINTERNAL;
        finish(me);
    }
    me->code = rc;
    return NULL;
}

static void an_abort_wakes_who_waits(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        pe pes[N_PES];
        run(pes, aborting);
        for (int i = 0; i < N_PES; i++) {
            assert_int_equal(pes[i].code, UF_EFABRIC);
            assert_int_equal(pes[i].whose, 3);
            assert_non_null(strstr(pes[i].text, "PE 3 ended the world: cable pulled"));
        }
    }
}

static void too_few_files_for_all_connections_are_named(void **state)
{
    (void)state;
    struct rlimit old, low;
    uf_bootstrap *b;
    int fd = reserve();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    uf_bootstrap_params params = {
        .settings = &settings, .driver = &uf_driver_threads, .pe = 0, .n_pes = 1000, .root = root, .timeout_ns = SECOND};
    int rc = uf_bootstrap_create(&params, &b);
    setrlimit(RLIMIT_NOFILE, &old);
    close(fd);
    assert_int_equal(rc, UF_ESYSTEM);
    assert_non_null(strstr(uf_error_message(), "64"));
    assert_non_null(strstr(uf_error_message(), "ulimit -n"));
}

static void a_port_that_is_taken_is_named(void **state)
{
    (void)state;
    uf_bootstrap *b;
    int fd = reserve();
    assert_int_equal(listen(fd, 1), 0);
    uf_bootstrap_params params = {
        .settings = &settings, .driver = &uf_driver_threads, .pe = 0, .n_pes = 2, .root = root, .timeout_ns = SECOND / 20};
    assert_int_equal(uf_bootstrap_create(&params, &b), UF_ESYSTEM);
    assert_non_null(strstr(uf_error_message(), "127.0.0.1"));
    assert_non_null(strstr(uf_error_message(), "in use"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tick_beside_exchanges_does_no_harm),
        cmocka_unit_test(an_abort_wakes_who_waits),
        cmocka_unit_test(too_few_files_for_all_connections_are_named),
        cmocka_unit_test(a_port_that_is_taken_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
