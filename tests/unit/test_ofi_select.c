/* Which provider, interface and NICs are chosen, on made-up offers of hosts that are not here; and what is left in /dev/shm. */
#include "test_ofi.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- made-up offers */

static struct fi_info *offer(struct fi_info *next, const char *provider, const char *fabric, const char *domain)
{
    struct fi_info *info = fi_allocinfo();
    assert_non_null(info);
    info->caps = FI_MSG | FI_RMA;
    info->ep_attr->type = FI_EP_RDM;
    info->fabric_attr->prov_name = strdup(provider);
    info->fabric_attr->name = strdup(fabric);
    info->domain_attr->name = strdup(domain);
    info->domain_attr->cq_data_size = 8;
    info->tx_attr->inject_size = 64;
    info->next = next;
    return info;
}

static struct fi_info *tcp_offer(struct fi_info *next, const char *interface, const char *address)
{
    struct fi_info *info = offer(next, "tcp;ofi_rxm", "net", interface);
    struct sockaddr_in6 *six = calloc(1, sizeof *six);
    assert_non_null(six);
    struct sockaddr_in *four = (struct sockaddr_in *)six;
    if (strchr(address, ':')) {
        six->sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, address, &six->sin6_addr), 1);
        info->addr_format = FI_SOCKADDR_IN6;
    } else {
        four->sin_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, address, &four->sin_addr), 1);
        info->addr_format = FI_SOCKADDR_IN;
    }
    info->src_addr = six;
    info->src_addrlen = sizeof *six;
    return info;
}

static const char *chosen_interface(struct fi_info *list, const uf_ofi_wish *wish)
{
    struct fi_info *chosen[4];
    int n = uf_ofi_select(list, wish, chosen, 4);
    assert_in_range(n, 0, 1);
    static char text[128];
    if (n == 0)
        return "none";
    uf_ofi_describe(chosen[0], text, sizeof text);
    return text;
}

static struct fi_info *container_host(void)
{
    struct fi_info *list = tcp_offer(NULL, "eth0", "fd00::7");
    list = tcp_offer(list, "eth0", "10.0.0.7");
    list = tcp_offer(list, "eth1", "10.1.0.7");
    list = tcp_offer(list, "lo", "127.0.0.1");
    list = tcp_offer(list, "eth0", "fe80::1");
    list = tcp_offer(list, "docker0", "172.17.0.1");
    list = tcp_offer(list, "br-5f1e", "172.18.0.1");
    return tcp_offer(list, "veth12ab", "169.254.3.3");
}

static void a_container_bridge_is_never_preferred_to_a_network(void **state)
{
    (void)state;
    struct fi_info *list = container_host();
    uf_ofi_wish wish = {.interface = ""};
    assert_memory_equal(chosen_interface(list, &wish), "eth", 3);
    fi_freeinfo(list);
    struct fi_info *only = tcp_offer(tcp_offer(NULL, "lo", "127.0.0.1"), "docker0", "172.17.0.1");
    assert_string_equal(chosen_interface(only, &wish), "docker0 172.17.0.1");
    fi_freeinfo(only);
    assert_true(uf_ofi_is_container_interface("veth0abc"));
    assert_true(uf_ofi_is_container_interface("virbr0"));
    assert_false(uf_ofi_is_container_interface("eth0"));
    assert_false(uf_ofi_is_container_interface("bridge-to-somewhere"));
}

static void one_host_uses_loopback_and_several_never_do(void **state)
{
    (void)state;
    struct fi_info *list = container_host();
    uf_ofi_wish wish = {.one_host = true, .interface = ""};
    assert_string_equal(chosen_interface(list, &wish), "lo 127.0.0.1");
    fi_freeinfo(list);
    struct fi_info *only = tcp_offer(NULL, "lo", "127.0.0.1");
    wish.one_host = false;
    assert_string_equal(chosen_interface(only, &wish), "none");
    fi_freeinfo(only);
}

static void the_way_to_the_rendezvous_decides_between_networks(void **state)
{
    (void)state;
    struct fi_info *list = container_host();
    struct sockaddr_in ours = {.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, "10.1.0.7", &ours.sin_addr), 1);
    uf_ofi_wish wish = {.interface = "", .route = (const struct sockaddr *)&ours};
    assert_string_equal(chosen_interface(list, &wish), "eth1 10.1.0.7");
    fi_freeinfo(list);
}

static void the_users_interface_or_address_is_obeyed_or_nothing_is_chosen(void **state)
{
    (void)state;
    struct fi_info *list = container_host();
    uf_ofi_wish wish = {.one_host = true, .interface = "eth0"};
    assert_string_equal(chosen_interface(list, &wish), "eth0 10.0.0.7");
    wish.interface = "docker0";
    assert_string_equal(chosen_interface(list, &wish), "docker0 172.17.0.1");
    wish.interface = "fd00::7";
    assert_string_equal(chosen_interface(list, &wish), "eth0 fd00::7");
    wish.interface = "ib0";
    assert_string_equal(chosen_interface(list, &wish), "none");
    fi_freeinfo(list);
}

static void an_offer_that_lacks_what_is_needed_is_not_chosen(void **state)
{
    (void)state;
    uf_ofi_wish wish = {.one_host = true, .interface = ""};
    struct fi_info *list = tcp_offer(NULL, "lo", "127.0.0.1");
    list->ep_attr->type = FI_EP_MSG;
    assert_string_equal(chosen_interface(list, &wish), "none");
    list->ep_attr->type = FI_EP_RDM;
    list->caps = FI_MSG;
    assert_string_equal(chosen_interface(list, &wish), "none");
    fi_freeinfo(list);
    assert_string_equal(chosen_interface(NULL, &wish), "none");
}

/* ---------------------------------------------------------------- EFA */

static struct fi_info *efa_host(int nics)
{
    struct fi_info *list = NULL;
    char domain[32];
    for (int i = nics; i-- > 0;) {
        snprintf(domain, sizeof domain, "rdmap%ds6-rdm", i);
        list = offer(list, "efa", "efa", domain);
        list->domain_attr->cq_data_size = 4;
        list->caps |= FI_SOURCE;
        snprintf(domain, sizeof domain, "rdmap%ds6", i);
        list = offer(list, "efa", "efa-direct", domain);
        list->domain_attr->cq_data_size = 4;
        list->caps |= FI_SOURCE;
        list = offer(list, "efa", "efa-direct", domain); /* twice, as providers do for GPU memory */
    }
    return list;
}

/* By name and not by rank, the best address of each, and neither bridges nor loopback. */
static void interfaces_are_rails_if_that_is_wished(void **state)
{
    (void)state;
    struct fi_info *list = container_host();
    struct sockaddr_in route = {.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, "10.1.0.7", &route.sin_addr), 1);
    uf_ofi_wish wish = {.interface = "", .interfaces = true, .route = (const struct sockaddr *)&route};
    struct fi_info *chosen[UF_OFI_RAILS_MAX];
    assert_int_equal(uf_ofi_select(list, &wish, chosen, UF_OFI_RAILS_MAX), 2);
    char text[2][128];
    for (int i = 0; i < 2; i++)
        uf_ofi_describe(chosen[i], text[i], sizeof text[i]);
    assert_string_equal(text[0], "eth0 10.0.0.7");
    assert_string_equal(text[1], "eth1 10.1.0.7");
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 1), 1);
    assert_string_equal(chosen[0]->domain_attr->name, "eth0");
    wish.interface = "eth1";
    assert_int_equal(uf_ofi_select(list, &wish, chosen, UF_OFI_RAILS_MAX), 1);
    assert_string_equal(chosen[0]->domain_attr->name, "eth1");
    fi_freeinfo(list);
    struct fi_info *only = tcp_offer(tcp_offer(NULL, "lo", "127.0.0.1"), "docker0", "172.17.0.1");
    wish.interface = "";
    assert_int_equal(uf_ofi_select(only, &wish, chosen, UF_OFI_RAILS_MAX), 1);
    fi_freeinfo(only);
}

static void each_efa_nic_is_one_rail_and_direct_comes_first(void **state)
{
    (void)state;
    struct fi_info *list = efa_host(4);
    struct fi_info *chosen[UF_OFI_RAILS_MAX];
    uf_ofi_wish wish = {.interface = ""};
    assert_int_equal(uf_ofi_select(list, &wish, chosen, UF_OFI_RAILS_MAX), 4);
    for (int i = 0; i < 4; i++) {
        char domain[32];
        snprintf(domain, sizeof domain, "rdmap%ds6", i);
        assert_string_equal(chosen[i]->domain_attr->name, domain);
    }
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 2), 2);
    wish.efa_plain = true;
    assert_int_equal(uf_ofi_select(list, &wish, chosen, UF_OFI_RAILS_MAX), 4);
    assert_string_equal(chosen[0]->fabric_attr->name, "efa");
    wish = (uf_ofi_wish){.interface = "", .efa_direct = true};
    assert_int_equal(uf_ofi_select(list, &wish, chosen, UF_OFI_RAILS_MAX), 4);
    assert_string_equal(chosen[0]->fabric_attr->name, "efa-direct");
    fi_freeinfo(list);
}

static void the_sender_is_known_by_data_by_cqe_or_by_header(void **state)
{
    (void)state;
    struct fi_info *info = offer(NULL, "tcp;ofi_rxm", "net", "lo");
    assert_int_equal(uf_ofi_choose_source(info), UF_OFI_SOURCE_DATA);
    info->domain_attr->cq_data_size = 4;
    info->caps |= FI_SOURCE;
    assert_int_equal(uf_ofi_choose_source(info), UF_OFI_SOURCE_HEADER);
    assert_false(uf_ofi_default_level_placed(info));
    assert_int_equal(uf_ofi_inject_write_size(info), 64);
    fi_freeinfo(info);
    info = offer(NULL, "efa", "efa-direct", "rdmap0s6");
    info->domain_attr->cq_data_size = 4;
    assert_int_equal(uf_ofi_choose_source(info), UF_OFI_SOURCE_HEADER);
    info->caps |= FI_SOURCE;
    assert_int_equal(uf_ofi_choose_source(info), UF_OFI_SOURCE_CQE);
    assert_true(uf_ofi_default_level_placed(info));
    assert_int_equal(uf_ofi_inject_write_size(info), 0);
    info->domain_attr->cq_data_size = 0;
    assert_int_equal(uf_ofi_choose_source(info), UF_OFI_SOURCE_HEADER);
    fi_freeinfo(info);
    info = offer(NULL, "shm", "shm", "shm");
    assert_int_equal(uf_ofi_inject_write_size(info), 64);
    assert_false(uf_ofi_default_level_placed(info));
    info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    assert_true(uf_ofi_default_level_placed(info));
    fi_freeinfo(info);
}

static void names_of_providers_are_taken_in_any_case_and_layered(void **state)
{
    (void)state;
    const char *names[8];
    assert_int_equal(uf_ofi_candidates("TCP", true, names, 8), 3);
    assert_string_equal(names[0], "tcp");
    assert_string_equal(names[1], "net");
    assert_string_equal(names[2], "tcp;ofi_rxm"); /* when there is nothing else */
    assert_int_equal(uf_ofi_candidates("TCP", true, names, 1), 1);
    assert_int_equal(uf_ofi_candidates("tcp;ofi_rxm", true, names, 8), 1);
    assert_string_equal(names[0], "tcp;ofi_rxm");
    assert_int_equal(uf_ofi_candidates("EFA-Direct", false, names, 8), 1);
    assert_string_equal(names[0], "efa");
    assert_int_equal(uf_ofi_candidates("sockets", false, names, 8), 1);
    int n = uf_ofi_candidates("", true, names, 8);
    assert_int_equal(n, 5);
    assert_string_equal(names[0], "efa");
    assert_string_equal(names[1], "tcp");
    assert_string_equal(names[4], "shm"); /* a peer that dies may take its locks along */
    n = uf_ofi_candidates("", false, names, 8);
    assert_int_equal(n, 4);
    assert_string_equal(names[1], "tcp");
}

/* libfabric answers to "tcp" with tcp;ofi_rxm where tcp alone has no RDM endpoint, and to "net" with net;ofi_rxm as well. */
static void a_provider_is_taken_under_its_own_name_only(void **state)
{
    (void)state;
    uf_ofi_wish wish = {.provider = "tcp", .one_host = true, .interface = ""};
    struct fi_info *chosen[4], *list = tcp_offer(NULL, "lo", "127.0.0.1");
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 4), 0);
    wish.provider = "TCP;ofi_RXM";
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 4), 1);
    free(list->fabric_attr->prov_name);
    list->fabric_attr->prov_name = strdup("tcp");
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 4), 0);
    wish.provider = "tcp";
    assert_int_equal(uf_ofi_select(list, &wish, chosen, 4), 1);
    fi_freeinfo(list);
}

static void only_tcp_over_rxm_is_known_to_end_survivors(void **state)
{
    (void)state;
    const char *const names[] = {"tcp;ofi_rxm", "tcp", "net", "net;ofi_rxm", "shm", "efa"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct fi_info *info = offer(NULL, names[i], "", "lo");
        assert_int_equal(uf_ofi_cuts_down_survivors(info), i == 0);
        fi_freeinfo(info);
    }
}

static void only_a_crowded_host_gets_a_descriptor_to_sleep_on(void **state)
{
    (void)state;
    struct fi_info *info = offer(NULL, "tcp;ofi_rxm", "net", "lo");
    assert_false(uf_ofi_wants_wait_fd(info, true, 2, 2));
    assert_true(uf_ofi_wants_wait_fd(info, true, 8, 2));
    assert_false(uf_ofi_wants_wait_fd(info, false, 8, 2));
    fi_freeinfo(info);
    const char *const by_thread[] = {"net", "tcp"};
    for (int i = 0; i < 2; i++) {
        info = offer(NULL, by_thread[i], "net", "lo");
        assert_false(uf_ofi_wants_wait_fd(info, true, 8, 2));
        fi_freeinfo(info);
    }
}

/* ---------------------------------------------------------------- leftovers in /dev/shm */

static void make_file(const char *directory, const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    close(fd);
}

static bool there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void only_regions_that_nobody_maps_are_swept(void **state)
{
    (void)state;
    char directory[] = "/dev/shm/unfence-test-XXXXXX";
    if (!mkdtemp(directory))
        skip();
    char dead[160], live[160], other[160], named[160], suffixed[160], name[64];
    unsigned uid = getuid();
    snprintf(name, sizeof name, "%d:%u:0", 4194304, uid); /* beyond any pid */
    make_file(directory, name, dead, sizeof dead);
    snprintf(name, sizeof name, "%d:%u:7", (int)getpid(), uid);
    make_file(directory, name, live, sizeof live);
    snprintf(name, sizeof name, "%d:%u:0", 4194304, uid + 1);
    make_file(directory, name, other, sizeof other);
    make_file(directory, "somebody's file", named, sizeof named);
    snprintf(name, sizeof name, "%d:%u:0_1", 4194304, uid);
    make_file(directory, name, suffixed, sizeof suffixed);
    int fd = open(live, O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    close(fd);
    assert_int_equal(uf_ofi_shm_sweep(directory), 1);
    assert_false(there(dead));
    assert_true(there(live) && there(other) && there(named) && there(suffixed));
    /* Unmapped, it is a leftover, though a process of that pid (this one) lives: a pid comes round again. */
    munmap(map, 4096);
    int swept = uf_ofi_shm_sweep(directory);
    assert_true(swept == 1 || there(live)); /* systems without leases go by the pid */
    unlink(live);
    unlink(other);
    unlink(named);
    unlink(suffixed);
    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(uf_ofi_shm_sweep("/nonexistent"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_container_bridge_is_never_preferred_to_a_network),
        cmocka_unit_test(one_host_uses_loopback_and_several_never_do),
        cmocka_unit_test(the_way_to_the_rendezvous_decides_between_networks),
        cmocka_unit_test(the_users_interface_or_address_is_obeyed_or_nothing_is_chosen),
        cmocka_unit_test(an_offer_that_lacks_what_is_needed_is_not_chosen),
        cmocka_unit_test(interfaces_are_rails_if_that_is_wished),
        cmocka_unit_test(each_efa_nic_is_one_rail_and_direct_comes_first),
        cmocka_unit_test(the_sender_is_known_by_data_by_cqe_or_by_header),
        cmocka_unit_test(names_of_providers_are_taken_in_any_case_and_layered),
        cmocka_unit_test(a_provider_is_taken_under_its_own_name_only),
        cmocka_unit_test(only_tcp_over_rxm_is_known_to_end_survivors),
        cmocka_unit_test(only_a_crowded_host_gets_a_descriptor_to_sleep_on),
        cmocka_unit_test(only_regions_that_nobody_maps_are_swept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
