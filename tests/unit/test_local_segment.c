/* Memory shared by PEs of one host: found, mapped at equal offsets, never short, never left behind. */
#include "base/error.h"
#include "fabric/local/local.h"
#include "fabric/local/memory.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

/* ---- a peer in another process: makes an identity and a segment, tells us, and lives until its pipe closes */

typedef struct peer_told {
    uf_local_identity identity;
    int fd;
    size_t bytes;
    unsigned char *base;
} peer_told;

typedef struct peer {
    pid_t pid;
    int hold; /* closing it ends the peer */
    peer_told told;
} peer;

enum { PEER_PLAIN, PEER_NOT_DUMPABLE, PEER_OTHER_USER };

static void peer_main(int kind, int tell, int wait)
{
    peer_told told;
    memset(&told, 0, sizeof(told));
    uf_local_range range;
    if (kind == PEER_OTHER_USER && (setgid(65534) || setuid(65534)))
        _exit(2);
    told.bytes = 4 * MIB;
    if (uf_local_identify(&told.identity) || uf_local_range_reserve(64 * MIB, 0, &range) ||
        uf_local_segment_create(&range, told.bytes, &told.fd))
        _exit(3);
    if (kind == PEER_NOT_DUMPABLE)
        prctl(PR_SET_DUMPABLE, 0);
    told.base = range.base;
    memcpy(range.base + 100, "from the peer", 14);
    if (write(tell, &told, sizeof(told)) != (ssize_t)sizeof(told))
        _exit(4);
    char end;
    while (read(wait, &end, 1) > 0)
        ;
    _exit(memcmp(range.base + 4 * MIB - 8, "from us", 8) == 0 ? 0 : 5);
}

static bool start_peer(int kind, peer *p)
{
    int tell[2], hold[2];
    assert_int_equal(pipe(tell), 0);
    assert_int_equal(pipe(hold), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        close(hold[1]);
        close(tell[0]);
        peer_main(kind, tell[1], hold[0]);
    }
    close(tell[1]);
    close(hold[0]);
    p->hold = hold[1];
    bool told = read(tell[0], &p->told, sizeof(p->told)) == (ssize_t)sizeof(p->told);
    close(tell[0]);
    return told;
}

static int end_peer(peer *p)
{
    int status;
    close(p->hold);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return status;
}

/* ---- promises */

static void a_peers_segment_is_mapped_at_the_same_offset(void **state)
{
    (void)state;
    peer p;
    uf_local_identity mine;
    uf_local_range range;
    const char *why;
    assert_int_equal(uf_local_identify(&mine), UF_OK);
    assert_true(start_peer(PEER_PLAIN, &p));
    assert_true(uf_local_reachable(&mine, &p.told.identity, &why));
    assert_false(uf_local_same_process(&p.told.identity));
    assert_true(uf_local_alive(&p.told.identity));
    assert_int_equal(uf_local_range_reserve(64 * MIB, 0, &range), UF_OK);
    assert_int_equal(uf_local_segment_map(&range, &p.told.identity, p.told.fd, p.told.bytes), UF_OK);
    assert_int_equal(range.used, p.told.bytes);
    assert_string_equal((char *)range.base + 100, "from the peer");
    memcpy(range.base + 4 * MIB - 8, "from us", 8);
    assert_int_equal(end_peer(&p), 0);
    /* The peer is gone, what we mapped of it is not: a late put harms nobody. */
    assert_false(uf_local_alive(&p.told.identity));
    assert_string_equal((char *)range.base + 100, "from the peer");
    assert_int_equal(uf_local_segment_map(&range, &p.told.identity, p.told.fd, p.told.bytes), UF_EPEER);
    uf_local_range_release(&range);
    uf_local_identity_close(&mine);
}

static void pes_of_one_process_map_each_other(void **state)
{
    (void)state;
    uf_local_identity a, b;
    uf_local_range own, other;
    const char *why;
    int fd1, fd2;
    assert_int_equal(uf_local_identify(&a), UF_OK);
    assert_int_equal(uf_local_identify(&b), UF_OK);
    assert_true(a.nonce != b.nonce);
    assert_true(uf_local_reachable(&a, &b, &why));
    assert_true(uf_local_same_process(&b));
    assert_int_equal(uf_local_range_reserve(64 * MIB, 0, &own), UF_OK);
    assert_int_equal(uf_local_range_reserve(64 * MIB, 0, &other), UF_OK);
    assert_int_equal(uf_local_segment_create(&own, 2 * MIB, &fd1), UF_OK);
    assert_int_equal(uf_local_segment_create(&own, 65536, &fd2), UF_OK);
    assert_int_equal(uf_local_segment_map(&other, &b, fd1, 2 * MIB), UF_OK);
    assert_int_equal(uf_local_segment_map(&other, &b, fd2, 65536), UF_OK);
    close(fd1);
    close(fd2);
    for (size_t at = 0; at < own.used; at += 4096)
        own.base[at] = (unsigned char)(at >> 12);
    assert_memory_equal(own.base, other.base, own.used);
    uf_local_range_release(&own);
    uf_local_range_release(&other);
    uf_local_identity_close(&a);
    assert_false(uf_local_alive(&a));
    assert_true(uf_local_alive(&b));
    uf_local_identity_close(&b);
}

static void a_range_is_aligned_as_its_offsets_are(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, 3 * MIB, 64 * MIB, (size_t)64 << 30};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uf_local_range r;
        assert_int_equal(uf_local_range_reserve(sizes[i], 0, &r), UF_OK);
        size_t align = 2 * MIB;
        while (align < sizes[i] && align < UF_LOCAL_RANGE_ALIGN)
            align *= 2;
        assert_int_equal((uintptr_t)r.base % align, 0);
        assert_true(r.max >= sizes[i]);
        assert_int_equal(r.used, 0);
        uf_local_range_release(&r);
        assert_null(r.base);
    }
}

static void too_much_is_refused_with_the_numbers(void **state)
{
    (void)state;
    uf_local_range r;
    int fd = -1;
    assert_int_equal(uf_local_range_reserve(SIZE_MAX, 0, &r), UF_EINVAL);
    assert_int_equal(uf_local_range_reserve((size_t)1 << 62, 0, &r), UF_ENOMEM);
    uf_local_memory left;
    uf_local_memory_available("", &left);
    assert_true(left.available < (uint64_t)1 << 60);
    size_t too_much = (left.available + 1024 * MIB) & ~(2 * MIB - 1);
    assert_int_equal(uf_local_range_reserve(2 * too_much, 0, &r), UF_OK);
    assert_int_equal(uf_local_segment_create(&r, 100, &fd), UF_EINVAL);
    assert_int_equal(uf_local_segment_create(&r, 4 * too_much, &fd), UF_ENOMEM);
    assert_non_null(strstr(uf_error_message(), "UNFENCE_HEAP_MAX"));
    /* More than the host has: the message has both numbers, nothing died, and the range is as before. */
    char number[32];
    snprintf(number, sizeof(number), "%zu", too_much);
    assert_int_equal(uf_local_segment_create(&r, too_much, &fd), UF_ENOMEM);
    assert_non_null(strstr(uf_error_message(), number));
    assert_non_null(strstr(uf_error_message(), "available are "));
    assert_int_equal(fd, -1);
    assert_int_equal(r.used, 0);
    assert_int_equal(uf_local_segment_create(&r, 2 * MIB, &fd), UF_OK);
    r.base[2 * MIB - 1] = 1;
    close(fd);
    uf_local_range_release(&r);
}

static void limits_of_the_process_are_named_and_raise_no_signal(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        uf_local_range r;
        int fd;
        struct rlimit size = {1 * MIB, 1 * MIB}, files = {3, 3}, space = {64 * MIB, 64 * MIB};
        if (uf_local_range_reserve(64 * MIB, 0, &r))
            _exit(1);
        setrlimit(RLIMIT_FSIZE, &size);
        if (uf_local_segment_create(&r, 2 * MIB, &fd) != UF_ENOMEM || !strstr(uf_error_message(), "ulimit -f"))
            _exit(2);
        for (fd = 3; fd < 64; fd++)
            close(fd);
        setrlimit(RLIMIT_NOFILE, &files);
        if (uf_local_segment_create(&r, 1 * MIB, &fd) != UF_ESYSTEM || !strstr(uf_error_message(), "ulimit -n"))
            _exit(3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        setrlimit(RLIMIT_AS, &space);
        if (uf_local_range_reserve((size_t)1 << 36, 0, &r) != UF_ENOMEM || !strstr(uf_error_message(), "67108864"))
            _exit(4);
#else
        (void)space;
#endif
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_segment_is_complete_and_keeps_its_size(void **state)
{
    (void)state;
    uf_local_range r;
    int fd;
    assert_int_equal(uf_local_range_reserve(64 * MIB, 0, &r), UF_OK);
    assert_int_equal(uf_local_segment_create(&r, 3 * MIB, &fd), UF_OK);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 3 * MIB);
    assert_true((size_t)st.st_blocks * 512 >= 3 * MIB); /* no page is still to be found */
    assert_true(ftruncate(fd, 4096) != 0);
    assert_true(ftruncate(fd, (off_t)(8 * MIB)) != 0);
    assert_int_equal(st.st_nlink, 0); /* no name anywhere */
    for (size_t i = 0; i < 3 * MIB; i += 511)
        assert_int_equal(r.base[i], 0);
    close(fd);
    uf_local_range_release(&r);
}

static void a_dropped_segment_leaves_its_place_to_the_next(void **state)
{
    (void)state;
    uf_local_range r;
    int fd;
    assert_int_equal(uf_local_range_reserve(4 * MIB, 0, &r), UF_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uf_local_segment_create(&r, 4 * MIB, &fd), UF_OK);
        close(fd);
        assert_int_equal(r.base[4 * MIB - 1], 0);
        memset(r.base, 1, 4 * MIB);
        uf_local_segment_drop(&r, 4 * MIB);
        assert_int_equal(r.used, 0);
        unsigned char vec;
        assert_int_equal(mincore(r.base, 4096, &vec), 0); /* still ours */
    }
    uf_local_range_release(&r);
}

static void what_is_not_a_peers_segment_is_never_mapped(void **state)
{
    (void)state;
    uf_local_identity mine;
    uf_local_range r;
    assert_int_equal(uf_local_identify(&mine), UF_OK);
    assert_int_equal(uf_local_range_reserve(64 * MIB, 0, &r), UF_OK);
    int fds[2], other = memfd_create("unfence-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(ftruncate(other, 4096), 0);
    assert_int_not_equal(uf_local_segment_map(&r, &mine, fds[0], 4096), UF_OK);
    assert_int_equal(uf_local_segment_map(&r, &mine, other, 4096), UF_EMISMATCH); /* not sealed: could shrink */
    assert_int_equal(uf_local_segment_map(&r, &mine, other, 8192), UF_EMISMATCH); /* another size */
    assert_int_not_equal(uf_local_segment_map(&r, &mine, mine.probe_fd, 4096), UF_OK);
    assert_int_not_equal(uf_local_segment_map(&r, &mine, 9999, 4096), UF_OK);
    assert_int_equal(r.used, 0);
    close(fds[0]);
    close(fds[1]);
    close(other);
    uf_local_range_release(&r);
    uf_local_identity_close(&mine);
}

static void a_peer_that_cannot_be_reached_is_told_with_the_reason(void **state)
{
    (void)state;
    uf_local_identity mine, other;
    const char *why;
    assert_int_equal(uf_local_identify(&mine), UF_OK);
    other = mine;
    other.boot_id[3] ^= 1;
    assert_false(uf_local_reachable(&mine, &other, &why));
    assert_string_equal(why, "another host");
    other = mine;
    other.pid_namespace++;
    other.nonce++;
    assert_false(uf_local_reachable(&mine, &other, &why));
    assert_non_null(strstr(why, "pid namespace"));
    assert_false(uf_local_alive(&other));
    other = mine;
    other.pid = 1;
    other.nonce++;
    assert_false(uf_local_reachable(&mine, &other, &why));
    uf_local_identity_close(&mine);
    uf_local_identity_close(&mine); /* twice is harmless */
}

/* Runs as another user, so that the system has something to forbid. */
static int look_as_nobody(const uf_local_identity *target, bool expected)
{
    pid_t child = fork();
    if (child == 0) {
        uf_local_identity mine;
        const char *why;
        if (setgid(65534) || setuid(65534) || uf_local_identify(&mine))
            _exit(2);
        bool reachable = uf_local_reachable(&mine, target, &why);
        _exit(reachable == expected && (reachable || strstr(why, "forbids")) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void another_users_memory_is_not_reached(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    peer p;
    assert_true(start_peer(PEER_PLAIN, &p));
    assert_int_equal(look_as_nobody(&p.told.identity, false), 0);
    end_peer(&p);
    assert_true(start_peer(PEER_OTHER_USER, &p));
    end_peer(&p);
}

static void a_zombie_is_not_alive(void **state)
{
    (void)state;
    peer p;
    assert_true(start_peer(PEER_PLAIN, &p));
    assert_true(uf_local_alive(&p.told.identity));
    kill(p.pid, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)p.pid, &info, WEXITED | WNOWAIT), 0); /* dead, not yet buried */
    assert_int_equal(kill(p.pid, 0), 0);
    assert_false(uf_local_alive(&p.told.identity));
    end_peer(&p);
}

static int count_shm(void)
{
    DIR *d = opendir("/dev/shm");
    int n = 0;
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, "unfence") != NULL;
    closedir(d);
    return n;
}

static void after_sigkill_nothing_of_ours_is_left(void **state)
{
    (void)state;
    int before = count_shm();
    peer p;
    assert_true(start_peer(PEER_PLAIN, &p));
    assert_int_equal(count_shm(), before);
    kill(p.pid, SIGKILL);
    end_peer(&p);
    assert_int_equal(count_shm(), before);
}

/* ---- what is available, from made-up trees */

static char root[64];

static void put_file(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void new_root(void)
{
    snprintf(root, sizeof(root), "%s/unfence-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(root));
}

static void drop_root(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void the_least_of_host_and_cgroups_is_available(void **state)
{
    (void)state;
    uf_local_memory m;
    new_root();
    uf_local_memory_available(root, &m);
    assert_true(m.available == UINT64_MAX); /* unknown is not 0 */
    put_file("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    2000 kB\nSwapFree:  1000 kB\n");
    uf_local_memory_available(root, &m);
    assert_int_equal(m.available, 3000 * 1024);
    assert_string_equal(m.limit, "the host");
    put_file("/proc/self/cgroup", "0::/a/b\n");
    put_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put_file("/sys/fs/cgroup/a/b/memory.current", "4096\n");
    uf_local_memory_available(root, &m);
    assert_int_equal(m.available, 3000 * 1024);
    put_file("/sys/fs/cgroup/a/memory.max", "1000000\n");
    put_file("/sys/fs/cgroup/a/memory.current", "600000\n");
    put_file("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100000\nactive_file 7\n");
    uf_local_memory_available(root, &m);
    assert_int_equal(m.available, 500000);
    assert_string_equal(m.limit, "memory cgroup /a");
    put_file("/sys/fs/cgroup/a/memory.current", "2000000\n");
    uf_local_memory_available(root, &m);
    assert_int_equal(m.available, 0);
    drop_root();
    /* The older hierarchy, in a container that does not see its own path. */
    new_root();
    put_file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/docker/1\n");
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
    put_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "2000\n");
    uf_local_memory_available(root, &m);
    assert_int_equal(m.available, 3000);
    assert_string_equal(m.limit, "memory cgroup /");
    drop_root();
    uf_local_memory_available("", &m);
    assert_true(m.available > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peers_segment_is_mapped_at_the_same_offset),
        cmocka_unit_test(pes_of_one_process_map_each_other),
        cmocka_unit_test(a_range_is_aligned_as_its_offsets_are),
        cmocka_unit_test(too_much_is_refused_with_the_numbers),
        cmocka_unit_test(limits_of_the_process_are_named_and_raise_no_signal),
        cmocka_unit_test(a_segment_is_complete_and_keeps_its_size),
        cmocka_unit_test(a_dropped_segment_leaves_its_place_to_the_next),
        cmocka_unit_test(what_is_not_a_peers_segment_is_never_mapped),
        cmocka_unit_test(a_peer_that_cannot_be_reached_is_told_with_the_reason),
        cmocka_unit_test(another_users_memory_is_not_reached),
        cmocka_unit_test(a_zombie_is_not_alive),
        cmocka_unit_test(after_sigkill_nothing_of_ours_is_left),
        cmocka_unit_test(the_least_of_host_and_cgroups_is_available),
    };
    return cmocka_run_group_tests_name("local segments", tests, NULL, NULL);
}
