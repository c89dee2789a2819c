/* Registrations of outside buffers: kept while they are true, never used after the memory they pin is another's. */
#include "base/error.h"
#include "world/registration.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a registrar that pins nothing but remembers: what was in the first byte of each page at registration is the "pinned page" */

struct uf_engine_mr {
    unsigned char *start;
    size_t bytes;
    uint64_t number;
};

typedef struct registrar {
    _Atomic uint64_t made, closed;
    _Atomic int fail_next; /* refuse that many registrations */
} registrar;

static size_t page;

static int fake_register(void *arg, void *ptr, size_t bytes, struct uf_engine_mr **mr)
{
    registrar *r = arg;
    if (atomic_load(&r->fail_next) > 0) {
        atomic_fetch_sub(&r->fail_next, 1);
        return uf_fail(UF_ENOMEM, "the fake registrar is full");
    }
    /* As a NIC would: refuses what is not mapped. */
    unsigned char vec[1024];
    uintptr_t from = (uintptr_t)ptr & ~(page - 1), to = ((uintptr_t)ptr + bytes + page - 1) & ~(page - 1);
    if ((to - from) / page > sizeof(vec) || mincore((void *)from, to - from, vec) != 0)
        return uf_fail(UF_EFABRIC, "not mapped");
    struct uf_engine_mr *made = malloc(sizeof(*made));
    *made = (struct uf_engine_mr){.start = ptr, .bytes = bytes, .number = atomic_fetch_add(&r->made, 1)};
    *mr = made;
    return UF_OK;
}

static void fake_close(void *arg, struct uf_engine_mr *mr)
{
    registrar *r = arg;
    atomic_fetch_add(&r->closed, 1);
    free(mr);
}

static uf_registry *make_registry(registrar *r, uint32_t max_kept)
{
    memset(r, 0, sizeof(*r));
    uf_registry_params params = {.arg = r, .mr_register = fake_register, .mr_close = fake_close, .max_kept = max_kept};
    uf_registry *registry;
    assert_int_equal(uf_registry_create(&params, &registry), UF_OK);
    return registry;
}

static void end_registry(uf_registry *registry, registrar *r)
{
    uf_registry_destroy(registry);
    assert_int_equal(atomic_load(&r->made), atomic_load(&r->closed));
}

/* Gets and gives back; the number of the registration used. */
static uint64_t use(uf_registry *registry, const void *ptr, size_t bytes)
{
    uf_registration *got;
    assert_int_equal(uf_registry_get(registry, ptr, bytes, &got), UF_OK);
    struct uf_engine_mr *mr = uf_registration_mr(got);
    assert_true(mr->start <= (const unsigned char *)ptr && mr->start + mr->bytes >= (const unsigned char *)ptr + bytes);
    uint64_t number = mr->number;
    uf_registry_put(registry, got);
    return number;
}

/* Where the kernel puts nothing by itself, so that a hole stays one until the test fills it: sanitizers map memory at any time. Within what
 * they let programs have. */
static unsigned char *next_place = (unsigned char *)0x550000000000;

static unsigned char *map_at(unsigned char *at, size_t n)
{
    unsigned char *p = mmap(at, n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    assert_ptr_equal(p, at);
    memset(p, 1, n * page);
    return p;
}

static unsigned char *map_pages(size_t n)
{
    unsigned char *at = next_place;
    next_place += (n + 16) * page;
    return map_at(at, n);
}

static bool skip_unless_kept(uf_registry *registry)
{
    const char *why;
    if (uf_registry_keeps(registry, &why))
        return false;
    printf("SKIPPED: registrations are %s\n", why);
    return true;
}

static void a_buffer_used_again_is_registered_once(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = map_pages(4);
    if (!skip_unless_kept(registry)) {
        uint64_t first = use(registry, p + 100, 3 * page);
        assert_int_equal(use(registry, p + 100, 3 * page), first);
        assert_int_equal(use(registry, p + 200, 1), first);
        assert_int_equal(use(registry, p, 4 * page), first);
        assert_int_equal(atomic_load(&r.made), 1);
    }
    munmap(p, 4 * page);
    end_registry(registry, &r);
}

typedef void (*changer)(unsigned char *p, size_t bytes);

static void change_by_munmap(unsigned char *p, size_t bytes)
{
    munmap(p, bytes);
    map_at(p, bytes / page);
}

static void change_by_mapping_over(unsigned char *p, size_t bytes)
{
    assert_ptr_equal(mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), p);
}

static void change_by_discarding(unsigned char *p, size_t bytes)
{
    assert_int_equal(madvise(p, bytes, MADV_DONTNEED), 0);
}

static void change_by_moving(unsigned char *p, size_t bytes)
{
    unsigned char *there = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_equal(mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there), there);
    map_at(p, bytes / page);
    munmap(there, bytes);
}

static void stale_after(changer change, size_t from, size_t pages)
{
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = map_pages(8);
    for (int i = 0; i < 50; i++) {
        uint64_t before = use(registry, p, 8 * page);
        change(p + from * page, pages * page);
        uint64_t after = use(registry, p, 8 * page);
        assert_int_not_equal(before, after);
    }
    munmap(p, 8 * page);
    end_registry(registry, &r);
}

static void a_registration_is_never_used_after_its_memory_changed(void **state)
{
    (void)state;
    static const changer changers[] = {change_by_munmap, change_by_mapping_over, change_by_discarding, change_by_moving};
    for (size_t i = 0; i < sizeof(changers) / sizeof(changers[0]); i++) {
        stale_after(changers[i], 0, 8);
        stale_after(changers[i], 0, 1);
        stale_after(changers[i], 3, 2);
        stale_after(changers[i], 7, 1);
    }
}

/* ---- the hard one: threads that get each other's addresses from mmap while the unmapping call may still be under way */

typedef struct stress {
    uf_registry *registry;
    unsigned char *arena;
    _Atomic uint64_t tickets, failures;
} stress;

enum { ARENA_PAGES = 4, STRESS_ROUNDS = 400, STRESS_THREADS = 4 };

/* As fake_register, but notes the ticket written in the page: what a NIC would have pinned. */
static int pin_register(void *arg, void *ptr, size_t bytes, struct uf_engine_mr **mr)
{
    int rc = fake_register(arg, ptr, bytes, mr);
    if (rc == UF_OK)
        (*mr)->number = *(volatile uint64_t *)((uintptr_t)ptr & ~(page - 1));
    return rc;
}

/* Whoever unmaps a page of the arena gives it away: any thread may win it again by MAP_FIXED_NOREPLACE. */
static void *stress_main(void *arg)
{
    stress *s = arg;
    for (int round = 0; round < STRESS_ROUNDS; round++) {
        unsigned char *at = s->arena + (size_t)(round % ARENA_PAGES) * page;
        unsigned char *p = mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == MAP_FAILED)
            continue; /* somebody else's now */
        uint64_t ticket = atomic_fetch_add(&s->tickets, 1) + 1;
        *(volatile uint64_t *)p = ticket;
        for (int i = 0; i < 3; i++) {
            uf_registration *got;
            if (uf_registry_get(s->registry, p, page, &got) != UF_OK) {
                atomic_fetch_add(&s->failures, 1);
                continue;
            }
            if (uf_registration_mr(got)->number != ticket)
                atomic_fetch_add(&s->failures, 1);
            uf_registry_put(s->registry, got);
        }
        munmap(p, page);
    }
    return NULL;
}

static void memory_won_from_an_unmapping_thread_is_registered_anew(void **state)
{
    (void)state;
    registrar r;
    memset(&r, 0, sizeof(r));
    uf_registry_params params = {.arg = &r, .mr_register = pin_register, .mr_close = fake_close, .max_kept = 3};
    stress s;
    memset(&s, 0, sizeof(s));
    assert_int_equal(uf_registry_create(&params, &s.registry), UF_OK);
    s.arena = map_pages(ARENA_PAGES);
    munmap(s.arena, ARENA_PAGES * page);
    pthread_t threads[STRESS_THREADS];
    for (int i = 0; i < STRESS_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, stress_main, &s), 0);
    for (int i = 0; i < STRESS_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&s.failures), 0);
    assert_true(atomic_load(&s.tickets) > 0);
    end_registry(s.registry, &r);
}

static void overlapping_ranges_become_one(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = map_pages(8);
    if (!skip_unless_kept(registry)) {
        use(registry, p, 3 * page);
        use(registry, p + 5 * page, 3 * page);
        uint64_t all = use(registry, p + 2 * page, 4 * page); /* touches both */
        assert_int_equal(use(registry, p, 8 * page), all);
        uf_registry_counters c;
        uf_registry_counters_get(registry, &c);
        assert_int_equal(c.kept, 1);
        assert_int_equal(c.hits, 1);
        assert_int_equal(c.registrations, 3);
    }
    munmap(p, 8 * page);
    end_registry(registry, &r);
}

static void a_held_registration_outlives_its_place_in_the_table(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = map_pages(2);
    uf_registration *held;
    assert_int_equal(uf_registry_get(registry, p, page, &held), UF_OK);
    uint64_t wider = use(registry, p, 2 * page); /* takes its place */
    uf_registry_collect(registry);
    assert_int_not_equal(wider, uf_registration_mr(held)->number); /* still readable: nobody closed it */
    uint64_t closed = atomic_load(&r.closed);
    uf_registry_put(registry, held);
    assert_int_equal(atomic_load(&r.closed), closed); /* giving back closes nothing by itself */
    uf_registry_collect(registry);
    assert_int_equal(atomic_load(&r.closed), closed + 1);
    munmap(p, 2 * page);
    end_registry(registry, &r);
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 2);
    unsigned char *p = map_pages(8);
    if (!skip_unless_kept(registry)) {
        uint64_t a = use(registry, p, 1), b = use(registry, p + 2 * page, 1);
        assert_int_equal(use(registry, p, 1), a); /* b is the older one now */
        use(registry, p + 4 * page, 1);
        assert_int_equal(use(registry, p, 1), a);
        assert_int_not_equal(use(registry, p + 2 * page, 1), b);
        uf_registry_counters c;
        uf_registry_counters_get(registry, &c);
        assert_int_equal(c.kept, 2);
        assert_int_equal(c.evicted, 2);
    }
    munmap(p, 8 * page);
    end_registry(registry, &r);
}

static void with_everything_held_the_bound_stands(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 2);
    unsigned char *p = map_pages(10);
    uf_registration *held[5];
    for (int i = 0; i < 5; i++)
        assert_int_equal(uf_registry_get(registry, p + (size_t)i * 2 * page, page, &held[i]), UF_OK);
    uf_registry_counters c;
    uf_registry_counters_get(registry, &c);
    assert_true(c.kept <= 2);
    for (int i = 0; i < 5; i++)
        uf_registry_put(registry, held[i]);
    munmap(p, 10 * page);
    end_registry(registry, &r);
}

static void a_full_registrar_gets_room_from_what_is_kept(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = map_pages(4);
    use(registry, p, page);
    if (!skip_unless_kept(registry)) {
        atomic_store(&r.fail_next, 2); /* the wide and the exact one */
        use(registry, p + 2 * page, page);
        assert_int_equal(atomic_load(&r.closed), 1);
        atomic_store(&r.fail_next, 3);
        uf_registration *got;
        assert_int_equal(uf_registry_get(registry, p, page, &got), UF_ENOMEM);
        assert_string_equal(uf_error_message(), "the fake registrar is full");
    }
    munmap(p, 4 * page);
    end_registry(registry, &r);
}

static void memory_that_cannot_be_watched_is_registered_each_time(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    static const char constant[] = "memory of a file";
    assert_int_not_equal(use(registry, constant, sizeof(constant)), use(registry, constant, sizeof(constant)));
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)page), 0);
    unsigned char *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_int_not_equal(use(registry, shared, page), use(registry, shared, page));
    munmap(shared, page);
    close(fd);
    end_registry(registry, &r);
    registry = make_registry(&r, 0);
    unsigned char *p = map_pages(1);
    assert_int_not_equal(use(registry, p, page), use(registry, p, page));
    uf_registry_collect(registry);
    assert_int_equal(atomic_load(&r.closed), 2); /* used once and closed */
    munmap(p, page);
    end_registry(registry, &r);
}

static void watched_memory_works_as_ever(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    unsigned char *p = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use(registry, p, 4 * page);
    /* Pages never touched, faulted by us and by the kernel. */
    p[0] = 7;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "hello", 5), 5);
    assert_int_equal(read(fds[0], p + 2 * page, 5), 5);
    assert_memory_equal(p + 2 * page, "hello", 5);
    close(fds[0]);
    close(fds[1]);
    /* A child that unmaps its copy waits for nobody. */
    pid_t child = fork();
    if (child == 0) {
        p[0] = 9;
        munmap(p, 4 * page);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(p[0], 7);
    end_registry(registry, &r);
    munmap(p, 4 * page); /* and after the registry is gone */
}

/* Operations that a failed world never ends hold what they use until then. */
static void what_is_still_held_ends_with_the_registry(void **state)
{
    (void)state;
    for (uint32_t kept = 0; kept <= 8; kept += 8) {
        registrar r;
        uf_registry *registry = make_registry(&r, kept);
        static unsigned char buffers[3][8192];
        uf_registration *e;
        for (int i = 0; i < 3; i++)
            assert_int_equal(uf_registry_get(registry, buffers[i], sizeof buffers[i], &e), UF_OK);
        end_registry(registry, &r);
    }
}

static void *register_own_stack(void *arg)
{
    uf_registration *e;
    unsigned char stack[3 << 12];
    memset(stack, 1, sizeof stack);
    if (uf_registry_get(arg, stack, sizeof stack, &e) == UF_OK)
        uf_registry_put(arg, e);
    return NULL;
}

/* Stacks of ended threads stay in a cache of the C library, and the end of the monitor's own thread may unmap some of them: watched
 * memory that goes when nobody reads of it any more. A hang is the failure. */
static void ending_frees_watched_stacks_without_waiting(void **state)
{
    (void)state;
    enum { THREADS = 12 };
    registrar r;
    uf_registry *registry = make_registry(&r, 64);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, register_own_stack, registry), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    end_registry(registry, &r);
}

static void wrong_ranges_are_refused(void **state)
{
    (void)state;
    registrar r;
    uf_registry *registry = make_registry(&r, 8);
    uf_registration *got;
    assert_int_equal(uf_registry_get(registry, &r, 0, &got), UF_EINVAL);
    assert_int_equal(uf_registry_get(registry, &r, SIZE_MAX, &got), UF_EINVAL);
    unsigned char *p = map_pages(1);
    munmap(p, page);
    assert_int_equal(uf_registry_get(registry, p, page, &got), UF_EFABRIC);
    end_registry(registry, &r);
    uf_registry_destroy(NULL);
}

int main(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_used_again_is_registered_once),
        cmocka_unit_test(a_registration_is_never_used_after_its_memory_changed),
        cmocka_unit_test(memory_won_from_an_unmapping_thread_is_registered_anew),
        cmocka_unit_test(overlapping_ranges_become_one),
        cmocka_unit_test(a_held_registration_outlives_its_place_in_the_table),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(with_everything_held_the_bound_stands),
        cmocka_unit_test(a_full_registrar_gets_room_from_what_is_kept),
        cmocka_unit_test(memory_that_cannot_be_watched_is_registered_each_time),
        cmocka_unit_test(watched_memory_works_as_ever),
        cmocka_unit_test(what_is_still_held_ends_with_the_registry),
        cmocka_unit_test(ending_frees_watched_stacks_without_waiting),
        cmocka_unit_test(wrong_ranges_are_refused),
    };
    return cmocka_run_group_tests_name("registration", tests, NULL, NULL);
}
