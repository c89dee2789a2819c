/* A PE killed between dispatch and combine ends every other PE's combine with its number: real processes, found over TCP. */
#include "unfence/ep.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *fabric = "local";

enum { PES = 4, VICTIM = 2, HIDDEN = 8, SEEN = 10, OTHER = 20 };

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port = -1;
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&a, n) && !getsockname(fd, (struct sockaddr *)&a, &n))
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static int complain(int pe, const char *call, int rc)
{
    fprintf(stderr, "PE %d: %s: %s: %s\n", pe, call, uf_error_name(rc), uf_error_message());
    return OTHER;
}

static _Atomic int *told; /* survivors who were, in memory that all share */

/* A survivor that leaves is news too, which a busy neighbour may hear before the death: nobody leaves before all have been told. One that
 * failed is not waited for beyond half a minute. */
static void leave_together(void)
{
    atomic_fetch_add(told, 1);
    for (int looks = 0; atomic_load(told) < PES - 1 && looks < 30000; looks++)
        usleep(1000);
}

/* Returns SEEN if combine fails as it must. */
static int be_pe(int pe, const char *root)
{
    uf_world_options o = UF_WORLD_OPTIONS;
    o.pe = pe, o.n_pes = PES, o.root = root, o.fabric = fabric, o.strict = 1, o.timeout_ns = 30000000000u;
    uf_world *world = NULL;
    int rc = uf_world_create(&o, &world);
    if (rc)
        return complain(pe, "uf_world_create", rc);
    uf_ep_options eo = {.size = sizeof eo,
                        .type = UF_EP_BF16,
                        .hidden = HIDDEN,
                        .n_experts = PES,
                        .top_k = PES,
                        .max_tokens = 1,
                        .max_handles = 0};
    uf_ep *ep = NULL;
    uf_ep_handle *h = NULL;
    uf_ep_received r = {.size = sizeof r};
    const int32_t experts[PES] = {0, 1, 2, 3};
    uint16_t x[HIDDEN] = {0}, y[PES * HIDDEN] = {0}, out[HIDDEN];
    if ((rc = uf_ep_create(uf_team_world(world), &eo, &ep)) || (rc = uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r)))
        return complain(pe, "dispatch", rc);
    /* Every PE has its rows when the victim goes. It may leave the sync before others do, who then hear of its death there. */
    rc = uf_sync(uf_team_world(world));
    if (rc && (rc != UF_EPEER || !strstr(uf_error_message(), "PE 2")))
        return complain(pe, "uf_sync", rc);
    if (pe == VICTIM)
        raise(SIGKILL);
    rc = uf_ep_combine(ep, y, NULL, h, out, NULL);
    if (rc != UF_EPEER || !strstr(uf_error_message(), "PE 2"))
        return complain(pe, "combine should name PE 2 with UF_EPEER", rc);
    rc = uf_ep_dispatch(ep, x, experts, NULL, 1, &h, &r);
    if (rc != UF_EPEER || !strstr(uf_error_message(), "PE 2"))
        return complain(pe, "a later dispatch should say the same", rc);
    leave_together();
    uf_ep_destroy(ep);
    uf_world_destroy(world);
    return SEEN;
}

static void a_killed_pe_ends_the_others_with_its_number(void **state)
{
    (void)state;
    char root[32];
    pid_t children[PES];
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(told, MAP_FAILED);
    snprintf(root, sizeof root, "127.0.0.1:%d", free_port());
    fflush(NULL);
    for (int pe = 0; pe < PES; pe++) {
        children[pe] = fork();
        assert_true(children[pe] >= 0);
        if (children[pe] == 0)
            _exit(be_pe(pe, root));
    }
    int seen = 0;
    for (int pe = 0; pe < PES; pe++) {
        int status;
        assert_int_equal(waitpid(children[pe], &status, 0), children[pe]);
        if (pe == VICTIM)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            seen += WIFEXITED(status) && WEXITSTATUS(status) == SEEN;
    }
    assert_int_equal(seen, PES - 1);
    munmap(told, sizeof *told);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fabric = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_killed_pe_ends_the_others_with_its_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
