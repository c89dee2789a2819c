/* tool_json.c - the JSON that `unfence bench`, `unfence info` and `unfence doctor` write: its shape, and that nothing else is on standard output.
 *
 * Each benchmark runs with a handful of steps, on mapped memory and over tcp, so this is also the test that all of them work and find
 * their data right. Nothing is timed. The argument is the path of the command. */
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *tool;

/* Runs "unfence ARGUMENTS", parses what it wrote, and fails unless that is one JSON value and white space. */
static json_object *run(const char *arguments)
{
    char command[1024];
    size_t size = 0, room = 1u << 20;
    char *text = malloc(room);
    assert_non_null(text);
    snprintf(command, sizeof command, "'%s' %s", tool, arguments);
    print_message("$ unfence %s\n", arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size += fread(text, 1, room - 1, pipe);
    text[size] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);

    json_tokener *tokener = json_tokener_new();
    json_object *root = json_tokener_parse_ex(tokener, text, (int)size);
    assert_int_equal(json_tokener_get_error(tokener), json_tokener_success);
    size_t end = json_tokener_get_parse_end(tokener);
    assert_int_equal(strspn(text + end, " \n"), size - end);
    json_tokener_free(tokener);
    free(text);
    return root;
}

static json_object *field(json_object *object, const char *key, json_type type)
{
    json_object *value;
    if (!json_object_object_get_ex(object, key, &value))
        fail_msg("there is no \"%s\" in %s", key, json_object_to_json_string(object));
    if (json_object_get_type(value) != type)
        fail_msg("\"%s\" has the wrong type in %s", key, json_object_to_json_string(object));
    return value;
}

/* A number: 1 and 1.0 are both fine. */
static double number(json_object *object, const char *key)
{
    json_object *value;
    if (!json_object_object_get_ex(object, key, &value))
        fail_msg("there is no \"%s\" in %s", key, json_object_to_json_string(object));
    json_type type = json_object_get_type(value);
    assert_true(type == json_type_int || type == json_type_double);
    return json_object_get_double(value);
}

static const char *text_of(json_object *object, const char *key)
{
    return json_object_get_string(field(object, key, json_type_string));
}

static void check_row(json_object *row)
{
    static const char *const metrics[] = {"latency", "bandwidth", "rate", "ratio", "count"};
    const char *metric = text_of(row, "metric");
    bool known = false;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        known = known || strcmp(metric, metrics[i]) == 0;
    if (!known)
        fail_msg("unknown metric %s", metric);
    assert_true(*text_of(row, "bench") && *text_of(row, "fabric") && *text_of(row, "policy") && *text_of(row, "unit"));
    field(row, "bytes", json_type_int);
    int64_t inflight = json_object_get_int64(field(row, "inflight", json_type_int));
    assert_true(inflight == 1 || inflight * json_object_get_int64(field(row, "bytes", json_type_int)) <= 16 << 20);
    field(row, "peers", json_type_int);
    bool ratio = strcmp(metric, "ratio") == 0;
    if (ratio)
        assert_true(*text_of(row, "against"));
    assert_int_equal(json_object_object_length(row), ratio ? 15 : 14);
    assert_true(json_object_get_int64(field(row, "n", json_type_int)) > 0);
    assert_true(number(row, "min") <= number(row, "p50"));
    assert_true(number(row, "p50") <= number(row, "p99"));
    assert_true(number(row, "p99") <= number(row, "p999"));
    assert_true(number(row, "p999") <= number(row, "max"));
    if (strcmp(metric, "count") != 0)
        assert_true(number(row, "max") > 0 || json_object_get_int64(field(row, "bytes", json_type_int)) == 0);
}

/* Runs a benchmark and returns its rows' root, every row checked. */
static json_object *run_bench(const char *arguments)
{
    char line[512];
    snprintf(line, sizeof line, "bench %s --json", arguments);
    json_object *root = run(line);
    assert_int_equal(json_object_get_int(field(root, "version", json_type_int)), 1);
    assert_string_equal(text_of(root, "result"), strncmp(arguments, "ordering", 8) == 0 ? "model" : "measured");
    json_object *host = field(root, "host", json_type_object);
    assert_true(json_object_get_int(field(host, "cores", json_type_int)) > 0);
    json_object *rows = field(root, "rows", json_type_array);
    assert_true(json_object_array_length(rows) > 0);
    for (size_t i = 0; i < json_object_array_length(rows); i++)
        check_row(json_object_array_get_idx(rows, i));
    return root;
}

/* How many rows have this policy, metric and (if not NULL) thing compared with. */
static int count_rows(json_object *root, const char *policy, const char *metric, const char *against)
{
    json_object *rows = field(root, "rows", json_type_array);
    int n = 0;
    for (size_t i = 0; i < json_object_array_length(rows); i++) {
        json_object *row = json_object_array_get_idx(rows, i);
        n += strcmp(text_of(row, "policy"), policy) == 0 && strcmp(text_of(row, "metric"), metric) == 0 &&
             (!against || strcmp(text_of(row, "against"), against) == 0);
    }
    return n;
}

static void floor_measures_lines_copies_and_the_bare_network(void **state)
{
    (void)state;
    json_object *root = run_bench("floor --fabric local --sizes 8,4K --iterations 3");
    assert_int_equal(count_rows(root, "cache-line", "latency", NULL), 1);
    assert_int_equal(count_rows(root, "memcpy-all", "bandwidth", NULL), 1);
    json_object_put(root);
#ifdef UNFENCE_WITH_OFI
    root = run_bench("floor --fabric ofi:tcp --sizes 8,1K --iterations 3 --window 8");
    assert_int_equal(count_rows(root, "writedata", "latency", NULL), 2);
    json_object_put(root);
    /* A window that is made smaller is so for the floor, too. */
    json_object_put(run_bench("floor --fabric local,ofi:tcp --sizes 4M --iterations 1"));
    json_object_put(run_bench("put-signal --fabric ofi:tcp --sizes 4M --iterations 1 --policy weak"));
#endif
}

static void put_signal_compares_every_policy_on_mapped_memory(void **state)
{
    (void)state;
    json_object *root = run_bench("put-signal --fabric local --sizes 0,8,1000 --iterations 3 --window 8 "
                                  "--policy unsignalled,weak,strong,ordered,set");
    assert_int_equal(count_rows(root, "weak", "ratio", "floor"), 1);
    assert_int_equal(count_rows(root, "weak", "ratio", "unsignalled"), 3);
    assert_int_equal(count_rows(root, "set", "latency", NULL), 3);
    assert_int_equal(count_rows(root, "unsignalled", "ratio", "memcpy"), 2);
    json_object_put(root);
    json_object_put(run_bench("put-signal --fabric local --sizes 64 --peers 2 --iterations 2 --window 8"));
}

static void put_signal_counts_work_requests_over_tcp(void **state)
{
    (void)state;
#ifdef UNFENCE_WITH_OFI
    json_object *root = run_bench("put-signal --fabric ofi:tcp --sizes 8,1K --iterations 3 --window 8 "
                                  "--policy unsignalled,weak,strong,ordered,set");
    assert_int_equal(count_rows(root, "weak", "ratio", "floor"), 4);
    assert_int_equal(count_rows(root, "weak", "count", NULL), 6);
    assert_int_equal(count_rows(root, "weak+quiet", "count", NULL), 6);
    json_object_put(root);
#else
    skip();
#endif
}

static void atomic_and_barrier_run_on_every_fabric(void **state)
{
    (void)state;
    json_object_put(run_bench("atomic --fabric local --iterations 5 --window 8"));
    json_object_put(run_bench("barrier --fabric local --peers 1,3 --iterations 20"));
#ifdef UNFENCE_WITH_OFI
    json_object_put(run_bench("atomic --fabric ofi:tcp --iterations 5 --window 8"));
    json_object_put(run_bench("barrier --fabric ofi:tcp --peers 1,2 --iterations 20"));
#endif
}

static void ep_compares_with_copies_by_all(void **state)
{
    (void)state;
    json_object *root = run_bench("ep --fabric local --tokens 16 --hidden 64 --experts 8 --top-k 2 --iterations 2");
    assert_int_equal(count_rows(root, "both", "ratio", "floor"), 1);
    json_object_put(root);
    json_object_put(
        run_bench("ep --fabric local --tokens 5 --hidden 8 --experts 6 --top-k 6 --peers 1 --dtype f32 --iterations 2"));
}

static void order_allocates_nothing_while_it_runs(void **state)
{
    (void)state;
    json_object *root = run_bench("order --iterations 3");
    json_object *rows = field(root, "rows", json_type_array);
    for (size_t i = 0; i < json_object_array_length(rows); i++) {
        json_object *row = json_object_array_get_idx(rows, i);
        if (strcmp(text_of(row, "unit"), "bytes allocated") == 0)
            assert_true(number(row, "p50") == 0);
    }
    json_object_put(root);
}

/* One value of a policy's row, by unit. */
static double value_of(json_object *root, const char *policy, const char *fabric, const char *unit)
{
    json_object *rows = field(root, "rows", json_type_array);
    for (size_t i = 0; i < json_object_array_length(rows); i++) {
        json_object *row = json_object_array_get_idx(rows, i);
        if (strcmp(text_of(row, "policy"), policy) == 0 && strcmp(text_of(row, "unit"), unit) == 0 &&
            strcmp(text_of(row, "fabric"), fabric) == 0)
            return number(row, "p50");
    }
    fail_msg("there is no row of %s in %s over %s", policy, unit, fabric);
    return 0;
}

static void ordering_compares_every_scheme_on_the_model(void **state)
{
    static const char *const policies[] = {"drain",       "drain-batch", "nic-fence", "sender-wait", "reorder-window",
                                           "message-ack", "hw-counter",  "counted",   "ordered",     "strong"};
    const char *arguments = "ordering --model p5en --sizes 2K..8K --inflight 8,16 --peers 1,2 --rtt 10us,40us --puts 128";
    (void)state;
    json_object *root = run_bench(arguments), *again = run_bench(arguments);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        assert_int_equal(count_rows(root, policies[i], "ratio", "unsignalled"), 3 * 2 * 2 * 2);
        assert_int_equal(count_rows(root, policies[i], "latency", NULL), 3 * 2 * 2 * 2);
        assert_true(value_of(root, policies[i], "model:p5en/10us", "early signals") == 0);
    }
    assert_int_equal(count_rows(root, "drain-formula", "ratio", "unsignalled"), 3 * 2 * 2 * 2);
    assert_true(value_of(root, "counted", "model:p5en/40us", "data WRs/put") == 1);
    assert_true(value_of(root, "counted", "model:p5en/40us", "remote CQEs/put") == 1);
    assert_true(value_of(root, "drain", "model:p5en/40us", "drains") == 128);
    /* Virtual time: the same again, to the last digit. */
    assert_string_equal(json_object_to_json_string(field(root, "rows", json_type_array)),
                        json_object_to_json_string(field(again, "rows", json_type_array)));
    json_object_put(root);
    json_object_put(again);
}

/* The picture is a file of its own, and standard output still one JSON. */
static void ordering_writes_its_plot_beside_the_json(void **state)
{
    char path[] = "/tmp/unfence-plot-XXXXXX", line[256], text[256] = "";
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(line, sizeof line, "ordering --sizes 8K,16K --inflight 8 --puts 64 --policy drain,counted --plot %s", path);
    json_object_put(run_bench(line));
    FILE *f = fdopen(fd, "r");
    assert_non_null(f);
    bool svg = false, label = false, counted = false, end = false;
    while (fgets(text, sizeof text, f)) {
        svg = svg || strstr(text, "<svg ");
        label = label || strstr(text, "model result");
        counted = counted || strstr(text, ">counted<");
        end = strncmp(text, "</svg>", 6) == 0;
    }
    fclose(f);
    unlink(path);
    assert_true(svg && label && counted && end);
}

static void info_tells_settings_with_origin(void **state)
{
    (void)state;
    setenv("UNFENCE_WINDOW", "64", 1);
    json_object *root = run("info --n-pes 4 --json");
    unsetenv("UNFENCE_WINDOW");
    json_object *settings = field(root, "settings", json_type_array);
    bool seen = false;
    for (size_t i = 0; i < json_object_array_length(settings); i++) {
        json_object *setting = json_object_array_get_idx(settings, i);
        bool window = strcmp(text_of(setting, "name"), "UNFENCE_WINDOW") == 0;
        assert_string_equal(text_of(setting, "origin"), window ? "environment" : "default");
        if (window)
            assert_string_equal(text_of(setting, "value"), "64");
        seen = seen || window;
    }
    assert_true(seen);
    assert_int_equal(json_object_get_int(field(field(root, "memory", json_type_object), "n_pes", json_type_int)), 4);
    json_object *providers = field(root, "providers", json_type_array);
    int efa = 0;
    for (size_t i = 0; i < json_object_array_length(providers); i++) {
        json_object *provider = json_object_array_get_idx(providers, i);
        if (!json_object_get_boolean(field(provider, "usable", json_type_boolean)))
            assert_true(*text_of(provider, "refused"));
        /* A provider is libfabric's; the others are one thing each, and are listed once. */
        const char *fabric = text_of(provider, "fabric");
        assert_true((strcmp(fabric, "ofi") == 0) == (*text_of(provider, "provider") != 0));
        assert_non_null(strstr(text_of(field(root, "build", json_type_object), "fabrics"), fabric));
        efa += strcmp(fabric, "efa") == 0;
    }
    assert_int_equal(efa, 1);
    json_object_put(root);
}

/* Over the driver of the tests where there is one; always without a driver. */
static void info_tells_gpus_or_why_there_are_none(void **state)
{
    (void)state;
    setenv("UNFENCE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    json_object *root = run("info --json"), *memory = field(root, "gpu_memory", json_type_object);
    assert_false(json_object_get_boolean(field(memory, "usable", json_type_boolean)));
    assert_true(*text_of(memory, "driver"));
    assert_int_equal(json_object_array_length(field(memory, "gpus", json_type_array)), 0);
    json_object_put(root);
#ifdef FAKE_CUDA
    setenv("UNFENCE_CUDA_LIBRARY", FAKE_CUDA, 1);
    for (int peers = 0; peers < 2; peers++) {
        setenv("FAKE_CUDA_PEERS", peers ? "1" : "0", 1);
        root = run("info --json");
        memory = field(root, "gpu_memory", json_type_object);
        assert_true(json_object_get_boolean(field(memory, "usable", json_type_boolean)));
        json_object *gpus = field(memory, "gpus", json_type_array);
        assert_int_equal(json_object_array_length(gpus), 2);
        json_object *second = json_object_array_get_idx(gpus, 1);
        assert_string_equal(text_of(second, "name"), "Fake GPU 1");
        assert_true(json_object_get_boolean(field(second, "vmm", json_type_boolean)));
        json_object *near = json_object_array_get_idx(field(second, "peers", json_type_array), 0);
        assert_int_equal(json_object_get_boolean(field(near, "near", json_type_boolean)), peers);
        assert_non_null(strstr(text_of(near, "why"), "peer access"));
        json_object_put(root);
    }
#endif
    unsetenv("UNFENCE_CUDA_LIBRARY");
}

/* Null where it is not known, and a number above 0 where it is. */
static void check_rate(json_object *object)
{
    json_object *value;
    assert_true(json_object_object_get_ex(object, "rate_mbps", &value));
    bool known = strcmp(text_of(object, "rate_from"), "unknown") != 0;
    assert_int_equal(json_object_get_type(value), known ? json_type_int : json_type_null);
    assert_true(!known || json_object_get_int64(value) > 0);
}

static void topology_has_a_shape_and_no_rate_of_0(void **state)
{
    (void)state;
    json_object *root = run("info --topo --json");
    assert_int_equal(json_object_get_int(field(root, "version", json_type_int)), 1);
    json_object *topo = field(root, "topo", json_type_object);
    json_object *nics = field(topo, "nics", json_type_array);
    field(topo, "gpus", json_type_array);
    field(topo, "notes", json_type_array);
    check_rate(topo);
    for (size_t i = 0; i < json_object_array_length(nics); i++) {
        json_object *nic = json_object_array_get_idx(nics, i);
        assert_true(*text_of(nic, "name") && *text_of(nic, "kind") && *text_of(nic, "port"));
        check_rate(nic);
    }
    json_object_put(root);
}

static void doctor_tells_each_check_with_its_remedy(void **state)
{
    (void)state;
    json_object *root = run("doctor --fabric local --json");
    assert_int_equal(json_object_get_int(field(root, "missing", json_type_int)), 0);
    assert_int_equal(json_object_array_length(field(root, "paths", json_type_array)), 1);
    json_object *checks = field(root, "checks", json_type_array);
    assert_true(json_object_array_length(checks) > 20);
    for (size_t i = 0; i < json_object_array_length(checks); i++) {
        json_object *check = json_object_array_get_idx(checks, i);
        const char *answer = text_of(check, "state"), *importance = text_of(check, "importance");
        assert_true(strcmp(answer, "ok") == 0 || strcmp(answer, "missing") == 0 || strcmp(answer, "unknown") == 0);
        assert_true(strcmp(importance, "needed") == 0 || strcmp(importance, "helps") == 0 || strcmp(importance, "other") == 0);
        assert_true(*text_of(check, "id") && *text_of(check, "what") && *text_of(check, "found") && *text_of(check, "remedy") &&
                    *text_of(check, "lost"));
        field(check, "needed_by", json_type_array);
        field(check, "helps", json_type_array);
    }
    json_object_put(root);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: tool_json PATH_OF_UNFENCE\n");
        return 2;
    }
    tool = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floor_measures_lines_copies_and_the_bare_network),
        cmocka_unit_test(put_signal_compares_every_policy_on_mapped_memory),
        cmocka_unit_test(put_signal_counts_work_requests_over_tcp),
        cmocka_unit_test(atomic_and_barrier_run_on_every_fabric),
        cmocka_unit_test(ep_compares_with_copies_by_all),
        cmocka_unit_test(order_allocates_nothing_while_it_runs),
        cmocka_unit_test(ordering_compares_every_scheme_on_the_model),
        cmocka_unit_test(ordering_writes_its_plot_beside_the_json),
        cmocka_unit_test(info_tells_settings_with_origin),
        cmocka_unit_test(info_tells_gpus_or_why_there_are_none),
        cmocka_unit_test(topology_has_a_shape_and_no_rate_of_0),
        cmocka_unit_test(doctor_tells_each_check_with_its_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
