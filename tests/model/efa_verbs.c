/* efa_verbs.c - the driver for real EFA NICs against a libibverbs and a libefa that check each call as a driver would: what a host
 * lacks is named, what fails becomes a sentence and leaves nothing behind, and the fabric's work requests arrive. */
#include "base/clock.h"
#include "base/error.h"
#include "fabric/efa/efa.h"
#include "support/fake_host.h"
#include "support/fake_rdma_core.h"
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *new_folder, *old_folder;
static fake_rdma_core_control *fake;
static uf_settings settings;

static int open_device(const char *folder, const char *name, uf_efa_device **device)
{
    snprintf(settings.text[UF_SET_RDMA_CORE], sizeof settings.text[0], "%s", folder);
    const uf_efa_device_params params = {.settings = &settings, .name = name, .pe = 3, .n_pes = 4};
    return uf_efa_device_verbs.open(&params, device);
}

static void assert_refused(int rc, int code, const char *said)
{
    if (rc != code || !strstr(uf_error_message(), said))
        print_message("%d: %s\n", rc, uf_error_message());
    assert_int_equal(rc, code);
    assert_non_null(strstr(uf_error_message(), said));
    assert_non_null(strstr(uf_error_message(), "PE 3"));
}

static int set_up(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/libibverbs.so.1", new_folder);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* kept: the control block stays where it is */
    fake = handle ? dlsym(handle, "fake_rdma_core") : NULL;
    if (!fake)
        print_message("%s\n", dlerror());
    static const char *const nothing[] = {NULL};
    return fake ? uf_settings_load_from(nothing, &settings) : -1;
}

static int healthy(void **state)
{
    (void)state;
    assert_int_equal(fake->objects, 0);
    memset(fake, 0, sizeof *fake);
    return 0;
}

/* No driver would have refused a call, and nothing that was made is left. */
static int clean(void **state)
{
    (void)state;
    if (fake->refusals)
        print_message("refused: %s\n", fake->refusal);
    assert_int_equal(fake->refusals, 0);
    assert_int_equal(fake->objects, 0);
    return 0;
}

/* ---------------------------------------------------------------- what a host lacks */

static void a_host_without_the_libraries_is_told_what_to_install(void **state)
{
    (void)state;
    uf_efa_device *d;
    assert_refused(open_device("/nowhere", "", &d), UF_EUNSUPPORTED, "/nowhere/libibverbs.so.1");
    assert_refused(open_device("/nowhere", "", &d), UF_EUNSUPPORTED, "install rdma-core");
}

static void an_old_rdma_core_is_named_with_what_it_lacks(void **state)
{
    (void)state;
    uf_efa_device *d;
    assert_refused(open_device(old_folder, "", &d), UF_EUNSUPPORTED, "has no efadv_query_qp_wqs");
    assert_refused(open_device(old_folder, "", &d), UF_EUNSUPPORTED, "rdma-core 59 or newer");
}

static void devices_are_taken_by_name_and_in_the_order_of_the_list(void **state)
{
    (void)state;
    uf_efa_device *d;
    assert_int_equal(open_device(new_folder, "rdmap2s6,rdmap0s6", &d), UF_OK);
    assert_int_equal(d->n_nics, 2);
    assert_string_equal(d->nics[0].name, "rdmap2s6");
    assert_string_equal(d->nics[1].name, "rdmap0s6");
    assert_int_equal(d->nics[0].max_sq, 4096);
    assert_int_equal(d->nics[0].max_cq, 32768);
    assert_true(d->nics[0].can_write && d->nics[0].can_read && d->nics[0].can_unsolicited && d->nics[0].duplicates);
    assert_memory_not_equal(d->nics[0].gid, d->nics[1].gid, 16);
    d->ops->close(d);
    assert_int_equal(open_device(new_folder, "", &d), UF_OK); /* all of them, and not the one of another maker */
    assert_int_equal(d->n_nics, FAKE_NICS);
    d->ops->close(d);
}

/* The fake's NICs in a host of two sockets with a GPU on each: NIC 1 and 2 near GPU 0, NIC 0, which the system lists first, near GPU 1. */
static void without_a_name_the_devices_near_the_gpu_are_taken(void **state)
{
    (void)state;
    static const struct {
        const char *path, *nic, *numa, *cpus;
    } at[] = {{"pci0000:10/0000:10:01.0/0000:11:00.0", "rdmap1s6", "0", "0-47"},
              {"pci0000:10/0000:10:01.0/0000:12:00.0", "rdmap2s6", "0", "0-47"},
              {"pci0000:10/0000:10:01.0/0000:13:00.0", NULL, "0", "0-47"},
              {"pci0000:80/0000:80:01.0/0000:81:00.0", "rdmap0s6", "1", "48-95"},
              {"pci0000:80/0000:80:01.0/0000:82:00.0", NULL, "1", "48-95"}};
    fake_host host;
    fake_host_create(&host);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        const char *nic = at[i].nic;
        fake_pci_add(&host, &(fake_pci){.path = at[i].path,
                                        .vendor = nic ? 0x1d0f : 0x10de,
                                        .device = nic ? 0xefa2 : 0x2335,
                                        .class = nic ? 0x020000 : 0x030200,
                                        .numa = at[i].numa,
                                        .cpus = at[i].cpus,
                                        .driver = nic ? "efa" : "nvidia"});
        if (nic)
            fake_verbs_add(&host, nic, at[i].path, "200 Gb/sec (4X HDR)", "4: ACTIVE");
    }
    static const char *const rails[][3] = {{"rdmap1s6", "rdmap2s6"}, {"rdmap0s6"}};
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    snprintf(settings.text[UF_SET_RDMA_CORE], sizeof settings.text[0], "%s", new_folder);
    for (int pe = 0; pe < 2; pe++) {
        uf_efa_device *d;
        uf_efa_device_params params = {.settings = &settings, .name = "", .pe = pe, .n_pes = 2, .root = host.root};
        setenv("LOCAL_RANK", pe ? "1" : "0", 1);
        assert_int_equal(uf_efa_device_verbs.open(&params, &d), UF_OK);
        assert_int_equal(d->n_nics, pe ? 1 : 2);
        for (uint32_t i = 0; i < d->n_nics; i++) {
            assert_string_equal(d->nics[i].name, rails[pe][i]);
            assert_int_equal(d->nics[i].rate_bytes, UINT64_C(25000000000));
        }
        d->ops->close(d);
        params.n_rails = 1;
        assert_int_equal(uf_efa_device_verbs.open(&params, &d), UF_OK);
        assert_int_equal(d->n_nics, 1);
        assert_string_equal(d->nics[0].name, rails[pe][0]);
        d->ops->close(d);
    }
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    fake_host_remove(&host);
}

static void a_name_that_is_no_efa_device_is_refused_with_those_there_are(void **state)
{
    (void)state;
    static const char *const names[] = {"mlx5_0", "rdmap9s6", "rdmap0s6,rdmap0s6", "rdmap0s6,", ",", "rdmap0s66"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uf_efa_device *d;
        assert_refused(open_device(new_folder, names[i], &d), UF_EUNSUPPORTED, "mlx5_0, rdmap0s6, rdmap1s6, rdmap2s6");
        assert_int_equal(fake->objects, 0);
    }
}

static void a_port_that_is_down_is_named(void **state)
{
    (void)state;
    uf_efa_device *d;
    fake->port_state = IBV_PORT_DOWN;
    assert_refused(open_device(new_folder, "rdmap1s6", &d), UF_EUNSUPPORTED, "rdmap1s6 is not active");
}

static void a_nic_that_cannot_write_says_so(void **state)
{
    (void)state;
    uf_efa_device *d;
    fake->caps_without = 8 | 16;
    assert_int_equal(open_device(new_folder, "rdmap0s6", &d), UF_OK);
    assert_false(d->nics[0].can_write || d->nics[0].can_unsolicited || d->nics[0].wide_write);
    assert_true(d->nics[0].can_read);
    d->ops->close(d);
}

/* ---------------------------------------------------------------- what fails */

/* Everything that a rail needs, once; the first error. */
static int make_all(uf_efa_device *d)
{
    static unsigned char memory[4096];
    const uint32_t depth = 16;
    uf_efa_cq ring;
    uf_efa_qp qp;
    uf_efa_device_cq *cq;
    uf_efa_device_mr *mr;
    uint32_t lkey, rkey;
    uint16_t ah;
    int rc = d->ops->cq_create(d, 0, 64, &ring, &cq);
    if (rc)
        return rc;
    const uf_efa_qp_options o = {
        .sq_depth = depth, .rq_depth = depth, .wqe_bytes = 64, .qkey = 1, .rnr_retry = 7, .send_cq = cq, .recv_cq = cq};
    rc = d->ops->qp_create(d, 0, &o, &qp);
    if (!rc) {
        rc = d->ops->mr_register(d, 0, memory, sizeof memory, UF_EFA_ACCESS_REMOTE_WRITE, &mr, &lkey, &rkey);
        if (!rc) {
            rc = d->ops->ah_create(d, 0, d->nics[0].gid, &ah);
            if (!rc)
                d->ops->ah_destroy(d, 0, ah);
            d->ops->mr_close(d, mr);
        }
        d->ops->qp_destroy(d, 0, &qp);
    }
    d->ops->cq_destroy(d, cq);
    return rc;
}

static int open_and_make(void)
{
    uf_efa_device *d;
    int rc = open_device(new_folder, "rdmap0s6", &d);
    if (rc)
        return rc;
    rc = make_all(d);
    d->ops->close(d);
    return rc;
}

static void each_call_that_fails_is_a_sentence_and_leaves_nothing(void **state)
{
    (void)state;
    static const char *const calls[] = {"ibv_get_device_list", "ibv_open_device",    "ibv_query_device", "ibv_query_port",
                                        "ibv_query_gid",       "ibv_alloc_pd",       "efadv_create_cq",  "efadv_query_cq",
                                        "efadv_create_qp_ex",  "efadv_query_qp_wqs", "ibv_modify_qp",    "ibv_reg_mr",
                                        "ibv_create_ah",       "efadv_query_ah"};
    assert_int_equal(open_and_make(), UF_OK);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(fake->fail, sizeof fake->fail, "%s", calls[i]);
        fake->error = ENOMEM;
        int rc = open_and_make();
        if (rc == UF_OK)
            print_message("%s was never called\n", calls[i]);
        assert_int_not_equal(rc, UF_OK);
        assert_refused(rc, rc, "Cannot allocate memory");
        assert_int_equal(fake->objects, 0);
    }
    fake->fail[0] = 0;
    assert_int_equal(open_and_make(), UF_OK);
}

static void an_event_ends_the_nic_with_its_name(void **state)
{
    (void)state;
    uf_efa_device *d;
    assert_int_equal(open_device(new_folder, "rdmap1s6", &d), UF_OK);
    assert_int_equal(d->ops->failed(d, 0), UF_OK);
    assert_int_equal(fake->raise(1, IBV_EVENT_PORT_ACTIVE), 0); /* news, no failure */
    assert_int_equal(d->ops->failed(d, 0), UF_OK);
    assert_int_equal(fake->raise(1, IBV_EVENT_CQ_ERR), 0);
    assert_refused(d->ops->failed(d, 0), UF_EFABRIC, "rdmap1s6 of rail 0: a completion queue was overrun");
    assert_refused(d->ops->failed(d, 0), UF_EFABRIC, "overrun"); /* for good */
    d->ops->close(d);
}

/* ---------------------------------------------------------------- the fabric over it */

enum { PES = 2, WRS = 200, BYTES = 20000 };

typedef struct end {
    uf_fabric *f;
    unsigned char *memory; /* [2][BYTES]: what we send, what comes */
    uf_mr *mr;
    uf_fabric_key key;
    uint32_t sent, imms, messages;
} end;

static void open_end(end *e, int pe, const char *nic)
{
    const uf_fabric_params params = {
        .settings = &settings, .pe = pe, .n_pes = PES, .provider = nic, .tx_depth = 64, .receives = 64, .remote_cqes = 256};
    snprintf(settings.text[UF_SET_RDMA_CORE], sizeof settings.text[0], "%s", new_folder);
    assert_int_equal(uf_fabric_efa.open(&params, &e->f), UF_OK);
    e->memory = calloc(2, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        e->memory[i] = (unsigned char)(i * 7 + (size_t)pe);
    assert_int_equal(e->f->ops->mr_register(e->f, e->memory, 2 * BYTES, true, &e->mr), UF_OK);
    e->f->ops->mr_key(e->mr, 0, &e->key);
}

static void take(end *e, end *peer, int pe)
{
    uf_cqe cqes[16];
    int n = e->f->ops->poll(e->f, cqes, 16);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(cqes[i].status, UF_OK);
        if (cqes[i].kind == UF_CQE_SENT)
            e->sent++;
        else
            assert_int_equal(cqes[i].peer, 1 - pe);
        if (cqes[i].kind == UF_CQE_IMM) {
            assert_memory_equal(e->memory + BYTES, peer->memory, BYTES); /* all of it, before its completion */
            assert_int_equal(cqes[i].imm, e->imms);                      /* one at a time, so in order */
            memset(e->memory + BYTES, 0, BYTES);
            e->imms++;
        } else if (cqes[i].kind == UF_CQE_MESSAGE) {
            assert_int_equal(cqes[i].message[0], (unsigned char)e->messages);
            e->messages++;
        }
    }
}

static void post(end *from, end *to, uint8_t verb, int peer, uint32_t i)
{
    uf_wr wr = {.verb = verb, .peer = (uint32_t)peer, .cookie = i, .imm = i, .bytes = BYTES, .local = (uintptr_t)from->memory};
    wr.local_desc = from->f->ops->mr_desc(from->mr, 0);
    wr.remote = to->key.base + BYTES;
    wr.remote_key = to->key.key;
    memset(wr.message, (int)i, sizeof wr.message);
    assert_int_equal(from->f->ops->post(from->f, &wr), UF_OK);
}

static void work_requests_arrive_over_the_driver(void **state)
{
    (void)state;
    end ends[PES] = {0};
    uf_efa_address addresses[PES];
    open_end(&ends[0], 0, "rdmap0s6");
    open_end(&ends[1], 1, "rdmap1s6");
    for (int pe = 0; pe < PES; pe++)
        assert_int_equal(ends[pe].f->ops->address(ends[pe].f, 0, &addresses[pe]), UF_OK);
    for (int pe = 0; pe < PES; pe++)
        for (uint32_t peer = 0; peer < PES; peer++)
            assert_int_equal(ends[pe].f->ops->connect(ends[pe].f, 0, peer, &addresses[peer]), UF_OK);
    uint64_t limit = uf_clock_ns() + UINT64_C(60000000000);
    for (uint32_t i = 0; i < WRS; i++) {
        for (int pe = 0; pe < PES; pe++) {
            post(&ends[pe], &ends[1 - pe], UF_VERB_WRITE_IMM, 1 - pe, i);
            post(&ends[pe], &ends[1 - pe], UF_VERB_SEND, 1 - pe, i);
        }
        while (ends[0].sent < 2 * (i + 1) || ends[1].sent < 2 * (i + 1) || ends[0].imms <= i || ends[1].imms <= i ||
               ends[0].messages <= i || ends[1].messages <= i) {
            take(&ends[0], &ends[1], 0);
            take(&ends[1], &ends[0], 1);
            assert_true(uf_clock_ns() < limit);
        }
    }
    for (int pe = 0; pe < PES; pe++) {
        ends[pe].f->ops->mr_close(ends[pe].f, ends[pe].mr);
        ends[pe].f->ops->close(ends[pe].f);
        free(ends[pe].memory);
    }
}

#define ON_A_SOUND_HOST(test) cmocka_unit_test_setup_teardown(test, healthy, clean)

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s NEW OLD - folders with the two libraries\n", argv[0]);
        return 2;
    }
    new_folder = argv[1];
    old_folder = argv[2];
    const struct CMUnitTest tests[] = {
        ON_A_SOUND_HOST(a_host_without_the_libraries_is_told_what_to_install),
        ON_A_SOUND_HOST(an_old_rdma_core_is_named_with_what_it_lacks),
        ON_A_SOUND_HOST(devices_are_taken_by_name_and_in_the_order_of_the_list),
        ON_A_SOUND_HOST(without_a_name_the_devices_near_the_gpu_are_taken),
        ON_A_SOUND_HOST(a_name_that_is_no_efa_device_is_refused_with_those_there_are),
        ON_A_SOUND_HOST(a_port_that_is_down_is_named),
        ON_A_SOUND_HOST(a_nic_that_cannot_write_says_so),
        ON_A_SOUND_HOST(each_call_that_fails_is_a_sentence_and_leaves_nothing),
        ON_A_SOUND_HOST(an_event_ends_the_nic_with_its_name),
        ON_A_SOUND_HOST(work_requests_arrive_over_the_driver),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
