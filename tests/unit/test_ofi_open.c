/* Opening the libfabric fabric tells what is missing, in words, and changes nothing. Each case that bends a limit of the process runs
 * in a child of its own. */
#include "test_ofi.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_with(const char *provider, const char *interface, bool one_host, uf_fabric **f)
{
    uf_fabric_params params = test_params(provider, 0, 2);
    params.settings = test_settings(interface);
    params.one_host = one_host;
    return uf_fabric_ofi.open(&params, f);
}

static void an_unknown_provider_is_refused_with_those_that_are_here(void **state)
{
    (void)state;
    uf_fabric *f = NULL;
    assert_int_equal(open_with("nonesuch", "", true, &f), UF_EUNSUPPORTED);
    assert_null(f);
    assert_non_null(strstr(uf_error_message(), "nonesuch"));
    assert_non_null(strstr(uf_error_message(), "tcp"));
    assert_int_equal(open_with("efa", "", true, &f), UF_EUNSUPPORTED);
    assert_non_null(strstr(uf_error_message(), "available here: "));
}

static void shm_is_refused_where_peers_are_on_other_hosts(void **state)
{
    (void)state;
    uf_fabric *f = NULL;
    assert_int_equal(open_with("shm", "", false, &f), UF_EUNSUPPORTED);
    assert_non_null(strstr(uf_error_message(), "same host only"));
}

static void a_wrong_interface_is_named(void **state)
{
    (void)state;
    uf_fabric *f = NULL;
    assert_int_equal(open_with("tcp", "nosuch7", true, &f), UF_EUNSUPPORTED);
    assert_non_null(strstr(uf_error_message(), "UNFENCE_INTERFACE=nosuch7"));
}

static void one_host_opens_tcp_on_loopback_and_says_so(void **state)
{
    (void)state;
    uf_fabric *f = NULL;
    assert_int_equal(open_with("tcp", "", true, &f), UF_OK);
    assert_non_null(strstr(f->caps.detail, "127.0.0.1"));
    /* What was taken is named as it is, and why it is not what was asked for. */
    bool by_itself = strcmp(f->caps.provider, "tcp") == 0;
    assert_true(by_itself == (strstr(f->caps.detail, "as tcp has no RDM endpoint") == NULL));
    assert_string_not_equal(f->caps.provider, "tcp;ofi_rxm");
    assert_string_equal(f->caps.fabric, "ofi");
    assert_int_equal(f->caps.imm_bits, 32);
    assert_int_equal(f->caps.n_rails, 1);
    assert_true(f->caps.write_placed);
    assert_false(f->caps.imm_placed);
    assert_true(f->caps.max_message >= 1u << 20);
    assert_string_equal(f->caps.device, "lo");
    assert_true(f->caps.address_bytes > 0 && f->caps.address_bytes <= UF_FABRIC_ADDRESS_MAX);
    f->ops->close(f);
    assert_int_equal(open_with("TCP", "lo", true, &f), UF_OK);
    f->ops->close(f);
}

static void the_best_provider_of_one_host_is_found_without_a_name(void **state)
{
    (void)state;
    uf_fabric *f = NULL;
    assert_int_equal(open_with("", "", true, &f), UF_OK);
    assert_int_equal(f->caps.imm_bits, 32);
    f->ops->close(f);
}

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Regression: net says that it holds 256 receives, for which a job could have 42 PEs; it holds what it is given, and others say the truth. */
static void an_endpoint_holds_the_messages_of_a_hundred_pes(void **state)
{
    (void)state;
    const char *const providers[] = {"tcp", "tcp;ofi_rxm", "shm"};
    for (int p = 0; p < 3; p++) {
        uf_fabric_params params = test_params(providers[p], 0, 100);
        uf_fabric *f = NULL;
        params.receives = 100 * 40;
        if (uf_fabric_ofi.open(&params, &f))
            fail_msg("%s", uf_error_message());
        assert_in_range(f->caps.max_receives, 100 * 10, 100 * 40);
        f->ops->close(f);
    }
}

/* As on a crowded host. Regression: net gives a descriptor that never lets anybody sleep, and eight PEs on two cores stood nearly still. */
static void a_descriptor_that_is_always_ready_is_not_taken(void **state)
{
    (void)state;
    uf_fabric_params params = test_params("tcp", 0, 64);
    uf_fabric *f = NULL;
    if (uf_fabric_ofi.open(&params, &f))
        fail_msg("%s", uf_error_message());
    assert_int_equal(f->ops->wait_fd(f), -1);
    assert_int_equal(f->ops->arm(f), UF_EAGAIN);
    f->ops->close(f);
}

static void opening_and_closing_leaks_no_descriptor(void **state)
{
    (void)state;
    const char *providers[] = {"tcp", "shm"};
    for (int p = 0; p < 2; p++) {
        int before = 0;
        for (int i = 0; i < 12; i++) {
            uf_fabric *f = NULL;
            assert_int_equal(open_with(providers[p], "", true, &f), UF_OK);
            f->ops->close(f);
            if (i == 1)
                before = descriptors(); /* the library keeps a few of its own from the first use */
        }
        assert_int_equal(descriptors(), before);
    }
}

/* Runs `body` in a child; its exit code, or 200 for a death by signal. */
static int in_child(int (*body)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

enum { RIGHT = 0, WRONG_CODE = 1, WRONG_WORDS = 2, NOT_POSSIBLE = 77 };

static int judge(int rc, int code, const char *word1, const char *word2)
{
    if (rc != code)
        fprintf(stderr, "code %d: %s\n", rc, uf_error_message());
    if (rc != code)
        return WRONG_CODE;
    bool said = strstr(uf_error_message(), word1) && strstr(uf_error_message(), word2);
    if (!said)
        fprintf(stderr, "%s\n", uf_error_message());
    return said ? RIGHT : WRONG_WORDS;
}

static int with_few_descriptors(void)
{
    struct rlimit limit = {24, 24};
    if (setrlimit(RLIMIT_NOFILE, &limit))
        return NOT_POSSIBLE;
    uf_fabric *f = NULL;
    return judge(open_with("tcp", "", true, &f), UF_ESYSTEM, "open-file limit is 24", "ulimit -n");
}

static void a_low_open_file_limit_is_named(void **state)
{
    (void)state;
    int result = in_child(with_few_descriptors);
    if (result == NOT_POSSIBLE)
        skip();
    assert_int_equal(result, RIGHT);
}

/* Providers here lock nothing, so what a NIC's would say is said for it: the sentence that follows is ours. */
static int with_little_locked_memory(void)
{
    struct rlimit limit = {65536, 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &limit))
        return NOT_POSSIBLE;
    int wrong = judge(uf_ofi_fail(UF_ENOMEM, -FI_ENOMEM, "PE 0: 1048576 bytes cannot be registered"), UF_ENOMEM, "1048576 bytes",
                      "65536 bytes of memory may be locked");
    wrong |= judge(uf_ofi_fail(UF_EFABRIC, -FI_EPERM, "PE 0: no endpoint"), UF_EFABRIC, "Operation not permitted", "ulimit -l");
    return wrong | judge(uf_ofi_fail(UF_EFABRIC, -FI_ENODEV, "PE 0: no endpoint"), UF_EFABRIC, "No such device", "");
}

static void a_low_memlock_limit_is_named_with_the_remedy(void **state)
{
    (void)state;
    int result = in_child(with_little_locked_memory);
    if (result == NOT_POSSIBLE)
        skip();
    assert_int_equal(result, RIGHT);
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

/* A /dev/shm of our own, of `size`: needs root or user namespaces. */
static bool small_shm(const char *size)
{
    char map[64], options[64];
    unsigned uid = getuid();
    if (unshare(CLONE_NEWNS)) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
            return false;
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        if (!write_file("/proc/self/uid_map", map))
            return false;
    }
    snprintf(options, sizeof options, "size=%s", size);
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0;
}

static int with_a_full_shm(void)
{
    if (!small_shm("8m"))
        return NOT_POSSIBLE;
    uf_fabric *f = NULL;
    return judge(open_with("shm", "", true, &f), UF_EUNSUPPORTED, "/dev/shm has not 16 MiB", "enlarge it");
}

/* Enough for the provider's own look at it and not for the second region. */
static int with_room_for_one(void)
{
    char megabytes[32];
    snprintf(megabytes, sizeof megabytes, "%ldm", 16 * sysconf(_SC_NPROCESSORS_ONLN) + 2);
    if (!small_shm(megabytes))
        return NOT_POSSIBLE;
    uf_fabric *f[64] = {NULL};
    int n = 0, rc = UF_OK;
    while (n < 64 && rc == UF_OK)
        rc = open_with("shm", "", true, &f[n++]);
    return rc == UF_OK ? NOT_POSSIBLE : judge(rc, rc == UF_ENOMEM ? UF_ENOMEM : UF_EUNSUPPORTED, "/dev/shm", "free");
}

static void a_full_dev_shm_is_an_error_with_its_free_bytes_and_never_a_signal(void **state)
{
    (void)state;
    int result = in_child(with_a_full_shm);
    if (result == NOT_POSSIBLE)
        skip();
    assert_int_equal(result, RIGHT);
    result = in_child(with_room_for_one);
    assert_true(result == RIGHT || result == NOT_POSSIBLE);
}

static int dies_with_an_endpoint(void)
{
    uf_fabric *f = NULL;
    return open_with("shm", "", true, &f) ? 1 : 0; /* _exit without close: as good as SIGKILL */
}

static int regions_of_ours(void)
{
    int n = 0;
    DIR *d = opendir("/dev/shm");
    if (!d)
        return 0;
    char mark[32];
    snprintf(mark, sizeof mark, ":%u:", (unsigned)getuid());
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] >= '0' && e->d_name[0] <= '9' && strstr(e->d_name, mark) != NULL;
    closedir(d);
    return n;
}

static int leaves_and_sweeps(void)
{
    if (!small_shm("512m"))
        return NOT_POSSIBLE;
    for (int i = 0; i < 3; i++)
        if (in_child(dies_with_an_endpoint))
            return WRONG_CODE;
    if (regions_of_ours() == 0)
        return NOT_POSSIBLE; /* a provider that leaves nothing */
    uf_fabric *f = NULL;
    if (open_with("shm", "", true, &f) || regions_of_ours() != 1)
        return WRONG_WORDS;
    f->ops->close(f);
    return regions_of_ours() == 0 ? RIGHT : WRONG_WORDS;
}

static void what_killed_processes_left_is_swept_at_the_next_open(void **state)
{
    (void)state;
    int result = in_child(leaves_and_sweeps);
    if (result == NOT_POSSIBLE)
        skip();
    assert_int_equal(result, RIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first those that fork, while the process holds nothing of libfabric */
        cmocka_unit_test(a_low_open_file_limit_is_named),
        cmocka_unit_test(a_low_memlock_limit_is_named_with_the_remedy),
        cmocka_unit_test(a_full_dev_shm_is_an_error_with_its_free_bytes_and_never_a_signal),
        cmocka_unit_test(what_killed_processes_left_is_swept_at_the_next_open),
        cmocka_unit_test(an_unknown_provider_is_refused_with_those_that_are_here),
        cmocka_unit_test(shm_is_refused_where_peers_are_on_other_hosts),
        cmocka_unit_test(a_wrong_interface_is_named),
        cmocka_unit_test(one_host_opens_tcp_on_loopback_and_says_so),
        cmocka_unit_test(the_best_provider_of_one_host_is_found_without_a_name),
        cmocka_unit_test(an_endpoint_holds_the_messages_of_a_hundred_pes),
        cmocka_unit_test(a_descriptor_that_is_always_ready_is_not_taken),
        cmocka_unit_test(opening_and_closing_leaks_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
