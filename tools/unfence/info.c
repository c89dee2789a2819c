/* info.c - `unfence info`: what this build and this machine have, what Unfence would use, and what would get in its way.
 *
 * Providers are found by opening them as a world would, so a line that says "usable" is the truth of now, and a refusal carries the
 * library's own sentence. Nothing is left open or behind. */
#include "info.h"
#include "base/error.h"
#include "engine/private.h"
#include "options.h"
#include "world/team.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is tried: each fabric with the providers of its own that this project knows by name ("": it has one). libfabric's others can be
 * asked for as well. */
static const struct {
    const char *fabric, *provider;
} tried[] = {{"ofi", "efa-direct"}, {"ofi", "efa"}, {"ofi", "verbs"}, {"ofi", "shm"}, {"ofi", "tcp"}, {"efa", ""}};

/* -------------------------------------------------------------- gathering */

#ifndef UNFENCE_BUILD_TYPE
#define UNFENCE_BUILD_TYPE "unknown"
#endif
#ifndef UNFENCE_BUILD_SANITIZE
#define UNFENCE_BUILD_SANITIZE ""
#endif

info_build info_build_facts(void)
{
    info_build build = {
        .version = uf_version(),
        .compiler = __VERSION__,
        .build_type = UNFENCE_BUILD_TYPE,
#if defined(__x86_64__)
        .architecture = "x86-64",
#elif defined(__aarch64__)
        .architecture = "aarch64",
#else
        .architecture = "other",
#endif
        .sanitizers = UNFENCE_BUILD_SANITIZE,
        .fabrics = "local",
    };
    size_t used = strlen(build.fabrics);
    for (const struct uf_fabric_ops *const *ops = uf_fabric_all(); *ops && used < sizeof build.fabrics; ops++)
        used += (size_t)snprintf(build.fabrics + used, sizeof build.fabrics - used, ", %s", (*ops)->name);
    return build;
}

static void warn(info_facts *facts, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void warn(info_facts *facts, const char *format, ...)
{
    va_list arguments;
    if (facts->n_warnings == INFO_WARNINGS)
        return;
    va_start(arguments, format);
    vsnprintf(facts->warnings[facts->n_warnings++], sizeof facts->warnings[0], format, arguments);
    va_end(arguments);
}

void info_probe(const uf_settings *settings, uint64_t n, const struct uf_fabric_ops *ops, const char *provider, info_provider *p)
{
    uf_fabric_params params = {.settings = settings, .n_pes = (int)n, .provider = provider, .one_host = true};
    uf_engine_fabric_sizes(&params);
    uf_fabric *fabric = NULL;
    memset(p, 0, sizeof *p);
    snprintf(p->fabric, sizeof p->fabric, "%s", ops->name);
    snprintf(p->provider, sizeof p->provider, "%s", provider);
    if (ops->open(&params, &fabric) != UF_OK) {
        snprintf(p->refused, sizeof p->refused, "%.*s", (int)sizeof p->refused - 1, uf_error_message());
        return;
    }
    p->usable = true;
    p->caps = fabric->caps;
    uf_engine_params engine = {.settings = settings, .n_pes = (int)n, .fabric = fabric};
    uf_order_config config;
    if (uf_engine_order_config(&engine, &config) == UF_OK)
        p->order_bytes = uf_order_bytes(&config);
    else
        snprintf(p->refused, sizeof p->refused, "%.*s", (int)sizeof p->refused - 1, uf_error_message());
    ops->close(fabric);
}

static void probe_all(info_facts *facts)
{
    for (size_t i = 0; i < sizeof tried / sizeof *tried && facts->n_providers < INFO_PROVIDERS; i++) {
        const struct uf_fabric_ops *ops = uf_fabric_find(tried[i].fabric);
        if (ops)
            info_probe(&facts->settings, facts->memory.n_pes, ops, tried[i].provider, &facts->providers[facts->n_providers++]);
    }
}

static void count_memory(info_facts *facts)
{
    info_memory *m = &facts->memory;
    m->heap = (uint64_t)facts->settings.number[UF_SET_HEAP_SIZE];
    m->signals = ((uint64_t)facts->settings.number[UF_SET_SIGNALS] + uf_teams_words((int)m->n_pes)) * 8;
    m->address_space = (uint64_t)facts->settings.number[UF_SET_HEAP_MAX] * m->n_pes;
}

static void find_trouble(info_facts *facts)
{
    const host_facts *h = &facts->host;
    uint64_t needed = facts->memory.n_pes * facts->memory.heap;
    if (h->cpu_quota > 0)
        warn(facts,
             "a cgroup quota allows %.2f cores of %" PRIu32 "; waiting PEs and progress threads use it up and then stand still",
             h->cpu_quota, h->cores_allowed);
    if (h->throttled != HOST_UNKNOWN && h->throttled > 0)
        warn(facts, "the cgroup was throttled in %" PRIu64 " of %" PRIu64 " periods: latencies have gaps; raise the CPU limit",
             h->throttled, h->periods);
    if (facts->memory.n_pes > h->cores_allowed)
        warn(facts, "%" PRIu64 " PEs on %" PRIu32 " cores: waits yield to each other and latencies grow", facts->memory.n_pes,
             h->cores_allowed);
    if (h->shm_available != HOST_UNKNOWN && h->shm_available < needed)
        warn(facts, "/dev/shm has %" PRIu64 " MiB free; the provider shm keeps 16 MiB a PE there", h->shm_available >> 20);
    if (h->memory_available != HOST_UNKNOWN && h->memory_available < needed)
        warn(facts, "%" PRIu64 " PEs set %" PRIu64 " MiB aside and %" PRIu64 " MiB are available: lower UNFENCE_HEAP_SIZE",
             facts->memory.n_pes, needed >> 20, h->memory_available >> 20);
    if (h->memlock != UINT64_MAX && h->memlock < facts->memory.heap)
        warn(facts,
             "RLIMIT_MEMLOCK is %" PRIu64
             " KiB, below the heap: a NIC that pins memory (efa, verbs) will refuse it; ulimit -l unlimited",
             h->memlock >> 10);
    if (h->open_files != UINT64_MAX && h->open_files < 64 + 8 * facts->memory.n_pes)
        warn(facts, "RLIMIT_NOFILE is %" PRIu64 ", few for %" PRIu64 " PEs: ulimit -n 4096", h->open_files, facts->memory.n_pes);
}

/* -------------------------------------------------------------- printing */

static const char *size_text(uint64_t bytes, char text[24])
{
    if (bytes == HOST_UNKNOWN)
        return "unknown";
    return tool_format_bytes(bytes, text);
}

static const char *limit_text(uint64_t value, bool bytes, char text[24])
{
    if (value == UINT64_MAX)
        return "unlimited";
    if (bytes)
        return tool_format_bytes(value, text);
    snprintf(text, 24, "%" PRIu64, value);
    return text;
}

static const char *depth_text(uint32_t depth, char text[24])
{
    if (depth == UINT32_MAX)
        return "held back by the network";
    snprintf(text, 24, "%" PRIu32, depth);
    return text;
}

static void print_build(void)
{
    info_build build = info_build_facts();
    printf("unfence %s\n  %-18s %s, %s%s%s\n  %-18s %s\n  %-18s %s\n", build.version, "build", build.build_type,
           build.architecture, *build.sanitizers ? ", sanitizers " : "", build.sanitizers, "compiler", build.compiler,
           "fabrics built in", build.fabrics);
}

static void print_host(const info_facts *facts)
{
    const host_facts *h = &facts->host;
    char a[24], b[24];
    printf("\nhost\n");
    printf("  %-18s %s, %s, Linux %s\n", "processor", h->cpu, h->architecture, h->kernel);
    printf("  %-18s %" PRIu32 " online, %" PRIu32 " for this process, load %.2f\n", "cores", h->cores_online, h->cores_allowed,
           h->load);
    if (h->cpu_quota > 0)
        printf("  %-18s %.2f cores", "cgroup quota", h->cpu_quota);
    else
        printf("  %-18s none", "cgroup quota");
    if (h->throttled != HOST_UNKNOWN)
        printf(", throttled %" PRIu64 " of %" PRIu64 " periods", h->throttled, h->periods);
    printf("\n  %-18s %s, %s available\n", "memory", size_text(h->memory_bytes, a), size_text(h->memory_available, b));
    printf("  %-18s %s, %s free\n", "/dev/shm", size_text(h->shm_bytes, a), size_text(h->shm_available, b));
    printf("  %-18s locked memory %s, open files %s\n", "limits", limit_text(h->memlock, true, a),
           limit_text(h->open_files, false, b));
    printf("  %-18s %s\n", "attach", host_cma_sentence(h));
}

/* As UNFENCE_FABRIC takes it: "ofi:tcp", "efa". */
static const char *asked_for(const info_provider *p, char text[64])
{
    snprintf(text, 64, "%s%s%s", p->fabric, *p->provider ? ":" : "", p->provider);
    return text;
}

static void print_usable(const info_provider *p)
{
    const uf_fabric_caps *c = &p->caps;
    char a[24], b[24], d[24], name[64];
    printf("  %s  usable: %s, %s, %" PRIu32 " rail%s\n", asked_for(p, name), c->provider, c->detail, c->n_rails,
           c->n_rails == 1 ? "" : "s");
    if (c->imm_bits >= 32)
        printf("    immediates       %" PRIu32 " bits, the sender is known: a weak signal travels in its put\n", c->imm_bits);
    else
        printf("    immediates       none that name their sender: every signal is a message of its own\n");
    printf("    completion       puts: %s; immediates: %s\n", c->write_placed ? "placed at the target" : "source reusable",
           c->imm_placed ? "placed at the target" : "source reusable, receipts tell the rest");
    printf("    message          at most %s, inline up to %" PRIu32 " B\n", tool_format_bytes(c->max_message, a),
           c->inline_bytes);
    printf("    depths           send %" PRIu32 ", completions %s, receives %s\n", c->tx_depth, depth_text(c->cq_depth, b),
           depth_text(c->max_receives, d));
    printf("    memory           %s registration of local buffers, remote addresses are %s%s\n", c->needs_desc ? "needs" : "no",
           c->virtual_address ? "virtual" : "offsets", c->duplicates ? "; a payload may be placed twice" : "");
    if (p->order_bytes == 0 && *p->refused)
        printf("    too small        %s\n", p->refused);
}

static void print_fabrics(const info_facts *facts)
{
    printf("\nfabrics\n  local  usable: mapped memory between the PEs of one host\n");
    for (size_t i = 0; i < facts->n_providers; i++) {
        const info_provider *p = &facts->providers[i];
        char name[64];
        if (p->usable)
            print_usable(p);
        else
            printf("  %s  refused: %s\n", asked_for(p, name), p->refused);
    }
}

static void print_memory(const info_facts *facts)
{
    const info_memory *m = &facts->memory;
    char a[24], b[24], name[64];
    printf("\nmemory of a world of %" PRIu64 " PE%s, each PE\n", m->n_pes, m->n_pes == 1 ? "" : "s");
    printf("  %-18s %s (UNFENCE_HEAP_SIZE), of it %s for signal words\n", "symmetric heap", tool_format_bytes(m->heap, a),
           tool_format_bytes(m->signals, b));
    printf("  %-18s %s (UNFENCE_HEAP_MAX for every PE), not memory\n", "address space", tool_format_bytes(m->address_space, a));
    for (size_t i = 0; i < facts->n_providers; i++) {
        const info_provider *p = &facts->providers[i];
        if (p->usable && p->order_bytes > 0)
            printf("  order, %-11s %s\n", asked_for(p, name), tool_format_bytes(p->order_bytes, a));
    }
}

static void print_settings(const info_facts *facts)
{
    printf("\nsettings\n");
    for (int id = 0; id < UF_SETTING_COUNT; id++) {
        const uf_setting_info *setting = uf_setting_describe((uf_setting_id)id);
        const char *value = facts->settings.text[id];
        printf("  %-26s %-12s %s\n", setting->name,
               *value          ? value
               : *setting->def ? setting->def
                               : "(empty)",
               facts->settings.from_environment[id] ? "environment" : "default");
    }
}

static void print_all(const info_facts *facts)
{
    print_build();
    print_host(facts);
    print_fabrics(facts);
    info_gpus_print(&facts->gpus);
    print_memory(facts);
    print_settings(facts);
    if (facts->n_warnings > 0)
        printf("\nwarnings\n");
    for (size_t i = 0; i < facts->n_warnings; i++)
        printf("  %s\n", facts->warnings[i]);
}

/* -------------------------------------------------------------- the command */

int info_command(int argc, char **argv)
{
    uint64_t n_pes = 2;
    bool json = false, topo = false;
    const char *root = "";
    const tool_option options[] = {
        {"--n-pes", TOOL_NUMBER, &n_pes, "N", "count the memory of a world of N PEs (2)", 1, 65536, NULL},
        {"--topo", TOOL_FLAG, &topo, NULL, "only NICs, GPUs, where they hang and which belong together", 0, 0, NULL},
        {"--root", TOOL_TEXT, &root, "DIR", "with --topo: of the host whose /sys and /proc were copied below DIR", 0, 0, NULL},
        {"--json", TOOL_FLAG, &json, NULL, "JSON on standard output", 0, 0, NULL},
    };
    const tool_usage usage = {
        .command = "unfence info",
        .synopsis = "[OPTIONS]",
        .text = "Prints the version, the fabrics and providers that can be used here with their limits (or why they are "
                "refused), the driver\n"
                "and GPUs, what the host offers, the settings in force with their origin, the memory that a world sets aside, "
                "and warnings.",
        .options = options,
        .n_options = sizeof options / sizeof *options};
    switch (tool_options_parse(&usage, argc - 1, argv + 1)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    if (topo)
        return info_topo(root, json);
    if (*root) {
        fprintf(stderr, "unfence info: --root goes with --topo\n");
        return TOOL_EXIT_USAGE;
    }
    info_facts *facts = calloc(1, sizeof *facts);
    if (!facts) {
        fprintf(stderr, "unfence info: no memory\n");
        return TOOL_EXIT_FAILED;
    }
    int rc = TOOL_EXIT_OK;
    facts->memory.n_pes = n_pes;
    if (uf_settings_load(&facts->settings) != UF_OK) {
        fprintf(stderr, "unfence info: %s\n", uf_error_message());
        rc = TOOL_EXIT_FAILED;
    } else {
        host_read("", &facts->host);
        probe_all(facts);
        info_gpus_find(&facts->settings, &facts->gpus);
        count_memory(facts);
        find_trouble(facts);
        if (json)
            rc = info_print_json(facts) == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
        else
            print_all(facts);
    }
    free(facts);
    return rc;
}
