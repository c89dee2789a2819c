/* test_bootstrap_address.c - names and interfaces become the addresses to listen at and to try, in the right order. */
#include "base/error.h"
#include "bootstrap/address.h"
#include "bootstrap/transport.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void roots_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        int port, ports;
    } good[] = {
        {"localhost:1", "localhost", 1, 1},   {"10.0.0.1:65535", "10.0.0.1", 65535, 1}, {"[fd00::1]:7000", "fd00::1", 7000, 1},
        {"node7:20000+8", "node7", 20000, 8}, {"[::1]:65528+8", "::1", 65528, 8},
    };
    static const char *const bad[] = {
        "",          "host",         ":7000",    "host:",   "host:0",    "host:65536",   "host:-1", "host: 7",
        "host:7x",   "host:65530+8", "host:7+0", "host:7+", "host:7+65", "fd00::1:7000", "[]:7",    "host:99999999999999999999",
        "host:7+8+9"};
    uf_root root;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(uf_root_parse(good[i].text, &root), UF_OK);
        assert_string_equal(root.host, good[i].host);
        assert_int_equal(root.port, good[i].port);
        assert_int_equal(root.ports, good[i].ports);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (uf_root_parse(bad[i], &root) != UF_EINVAL)
            print_message("accepted: %s\n", bad[i]);
        assert_int_equal(uf_root_parse(bad[i], &root), UF_EINVAL);
        assert_non_null(strstr(uf_error_message(), bad[i]));
    }
}

static void parse(const char *text, uf_root *root)
{
    assert_int_equal(uf_root_parse(text, root), UF_OK);
}

static const char *text_of(const uf_address *address)
{
    static char text[UF_ADDRESS_TEXT];
    return uf_address_text(&address->socket, text);
}

static void a_loopback_root_listens_on_loopback_only(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("127.0.0.1:7000", &root);
    assert_int_equal(uf_address_listen(&root, "", &list), UF_OK);
    assert_int_equal(list.n, 1);
    assert_string_equal(text_of(&list.at[0]), "127.0.0.1:0");
    assert_true(list.root_is_here);
    uf_address_set_port(&list.at[0].socket, 7000);
    assert_string_equal(text_of(&list.at[0]), "127.0.0.1:7000");
    parse("[::1]:7000", &root);
    assert_int_equal(uf_address_listen(&root, "", &list), UF_OK);
    assert_string_equal(text_of(&list.at[0]), "[::1]:0");
}

static void another_hosts_address_listens_everywhere_and_is_noted(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("192.0.2.7:7000", &root); /* reserved for documentation: nobody's */
    assert_int_equal(uf_address_listen(&root, "", &list), UF_OK);
    assert_int_equal(list.n, 2);
    assert_string_equal(text_of(&list.at[0]), "[::]:0");
    assert_false(list.root_is_here);
}

static void the_same_host_is_tried_by_loopback_first(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("localhost:7000", &root);
    assert_int_equal(uf_address_connect(&root, "", &list), UF_OK);
    assert_true(list.root_is_here);
    assert_string_equal(text_of(&list.at[0]), "127.0.0.1:0");
    /* Each address once. */
    for (size_t i = 0; i < list.n; i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&list.at[i].socket, &list.at[k].socket, sizeof list.at[i].socket);
    parse("192.0.2.7:7000", &root);
    assert_int_equal(uf_address_connect(&root, "", &list), UF_OK);
    assert_false(list.root_is_here);
    assert_int_equal(list.n, 1);
    assert_string_equal(text_of(&list.at[0]), "192.0.2.7:0");
    assert_false(list.at[0].has_source);
}

static void an_interface_is_the_source_of_connections(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("192.0.2.7:7000", &root);
    assert_int_equal(uf_address_connect(&root, "lo", &list), UF_OK);
    assert_int_equal(list.n, 1);
    assert_true(list.at[0].has_source);
    char text[UF_ADDRESS_TEXT];
    assert_string_equal(uf_address_text(&list.at[0].source, text), "127.0.0.1:0");
    /* By its address as well; and PE 0 listens there. */
    assert_int_equal(uf_address_connect(&root, "127.0.0.1", &list), UF_OK);
    assert_true(list.at[0].has_source);
    assert_int_equal(uf_address_listen(&root, "lo", &list), UF_OK);
    for (size_t i = 0; i < list.n; i++)
        assert_true(!strcmp(text_of(&list.at[i]), "127.0.0.1:0") || !strcmp(text_of(&list.at[i]), "[::1]:0"));
}

static void an_unknown_interface_is_refused_with_those_there_are(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("192.0.2.7:7000", &root);
    assert_int_equal(uf_address_connect(&root, "eth77", &list), UF_EINVAL);
    assert_non_null(strstr(uf_error_message(), "eth77"));
    assert_non_null(strstr(uf_error_message(), "lo (127.0.0.1)"));
    assert_int_equal(uf_address_listen(&root, "eth77", &list), UF_EINVAL);
}

static void a_name_that_does_not_resolve_is_named(void **state)
{
    (void)state;
    uf_root root;
    uf_addresses list;
    parse("no such host:7000", &root); /* a space: no resolver is asked */
    assert_int_equal(uf_address_connect(&root, "", &list), UF_ESYSTEM);
    assert_non_null(strstr(uf_error_message(), "no such host"));
    /* PE 0 itself can do without its name. */
    assert_int_equal(uf_address_listen(&root, "", &list), UF_OK);
}

static void pes_are_listed_as_ranges_that_fit(void **state)
{
    (void)state;
    bool set[1000] = {false};
    char text[256];
    set[3] = true;
    assert_string_equal(uf_bootstrap_list_pes(set, 1000, text, sizeof text), "PE 3");
    set[5] = set[6] = set[7] = true;
    set[9] = set[10] = true;
    assert_string_equal(uf_bootstrap_list_pes(set, 1000, text, sizeof text), "PEs 3, 5-7, 9, 10");
    memset(set, 0, sizeof set);
    for (int i = 0; i < 1000; i += 2)
        set[i] = true;
    for (size_t bytes = 80; bytes < sizeof text; bytes++) {
        uf_bootstrap_list_pes(set, 1000, text, bytes);
        assert_true(strlen(text) < bytes);
        assert_non_null(strstr(text, " more"));
    }
    memset(set, 1, sizeof set);
    assert_string_equal(uf_bootstrap_list_pes(set, 1000, text, sizeof text), "PEs 0-999");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roots_are_parsed),
        cmocka_unit_test(a_loopback_root_listens_on_loopback_only),
        cmocka_unit_test(another_hosts_address_listens_everywhere_and_is_noted),
        cmocka_unit_test(the_same_host_is_tried_by_loopback_first),
        cmocka_unit_test(an_interface_is_the_source_of_connections),
        cmocka_unit_test(an_unknown_interface_is_refused_with_those_there_are),
        cmocka_unit_test(a_name_that_does_not_resolve_is_named),
        cmocka_unit_test(pes_are_listed_as_ranges_that_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
