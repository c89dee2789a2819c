/* bench_ordering.c - `unfence bench ordering`: every ordering scheme of bench/ordering on the EFA model, over sizes, windows, peers and round trips.
 *
 * Virtual time only: the same options and seed give the same figures on every machine. All that it prints says that it is a model result. Each
 * point is judged against its own unsignalled run, of the same seed and window. */
#include "bench_ordering.h"
#include "bench.h"
#include "plot.h"
#include "progress.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "Compares ways to keep a signal behind its put, on a model of EFA devices in virtual time. A model result: no hardware is "
    "measured,\n"
    "ratios and counts carry over, microseconds do not. One PE puts to its peers in turn, each put signalled, so many puts in\n"
    "flight; payload is checked at each signal. share: throughput over that of puts without signals, same window and seed.\n"
    "Latency: from the start of a put until its signal is seen. WRs, CQEs, receiver work: of all PEs, a put.\n\n"
    "Policies: unsignalled; floor (a bare write with immediate); drain (all in flight completes before each signal); "
    "drain-batch\n"
    "(--batch puts to each peer, a drain, their signals); nic-fence (the NIC holds the signal: no EFA can); sender-wait (each\n"
    "signal after its own put's completion); reorder-window (16 sequences a peer, released in order); message-ack (a signal "
    "message\n"
    "and an acknowledgement each); hw-counter (a second queue whose arrivals the NIC counts); and ours through the library:\n"
    "counted (weak signals), ordered (strong signals, ordered context), strong (--batch puts, one strong signal).";

/* -------------------------------------------------------------- options */

static const char *const models[] = {"p5", "p5en", "p6-b200", "chaos", "fifo", NULL};

static tool_parsed parse(ordering_sweep *s, int argc, char **argv)
{
    const char *names[ORDERING_SCHEMES + 1] = {NULL};
    for (size_t i = 0; ordering_schemes[i]; i++)
        names[i] = ordering_schemes[i]->name;
    tool_names chosen = {1, {"p5en"}};
    const tool_option options[] = {
        {"--model", TOOL_NAMES, &chosen, "PROFILE", "p5, p5en, p6-b200, chaos or fifo (p5en)", 0, 0, models},
        {"--sizes", TOOL_NUMBERS, &s->sizes, "LIST", "bytes of a put, as 8K,1M or 2K..4M (2K,8K,16K,64K,1M)", 64, 1ull << 27,
         NULL},
        {"--inflight", TOOL_NUMBERS, &s->inflight, "LIST", "puts in flight, as 64 or 1..1024 (64)", 1, 1024, NULL},
        {"--peers", TOOL_NUMBERS, &s->peers, "LIST", "PEs that are put to (1)", 1, 64, NULL},
        {"--rtt", TOOL_TIMES, &s->rtt, "LIST", "round trip without payload (20us)", 1000, 1000000, NULL},
        {"--policy", TOOL_NAMES, &s->policies, "LIST", "some of those above (all)", 0, 0, names},
        {"--batch", TOOL_NUMBER, &s->batch, "N", "puts of a batch (16)", 1, 1024, NULL},
        {"--puts", TOOL_NUMBER, &s->puts, "N", "puts of a run, fewer of large ones (4096)", 16, 65536, NULL},
        {"--post-ns", TOOL_NUMBER, &s->post_ns, "N", "CPU time to post a work request (40)", 0, 100000, NULL},
        {"--cqe-ns", TOOL_NUMBER, &s->cqe_ns, "N", "CPU time to take a completion (40)", 0, 100000, NULL},
        {"--seed", TOOL_NUMBER, &s->seed, "N", "of the model (1)", 0, 0, NULL},
        {"--plot", TOOL_TEXT, &s->plot, "FILE", "write share against size as SVG there, and plot it on the terminal", 0, 0, NULL},
        {"--json", TOOL_FLAG, &s->json, NULL, "JSON on standard output instead of tables", 0, 0, NULL},
    };
    const tool_usage usage = {.command = "unfence bench ordering",
                              .synopsis = "[OPTIONS]",
                              .text = help_text,
                              .options = options,
                              .n_options = sizeof options / sizeof *options};
    tool_parsed parsed = tool_options_parse(&usage, argc, argv);
    for (size_t i = 0; models[i]; i++)
        if (strcmp(models[i], chosen.text[0]) == 0)
            s->model = models[i];
    return parsed;
}

static bool wanted(const ordering_sweep *s, const ordering_scheme *scheme)
{
    for (size_t i = 0; i < s->policies.n; i++)
        if (strcmp(s->policies.text[i], scheme->name) == 0)
            return true;
    return s->policies.n == 0;
}

/* -------------------------------------------------------------- the sweep */

typedef struct sweep_state {
    const ordering_sweep *sweep;
    progress bar;
    uint64_t done, total;
    ordering_rows rows;
    plot_panel *panels; /* one for each combination of all but sizes */
    size_t n_panels;
} sweep_state;

static void free_results(ordering_point *point)
{
    for (size_t i = 0; i < point->n; i++)
        free(point->results[i].latency);
}

/* All schemes of one point; the unsignalled always, since the others are shares of it. */
static int measure_point(sweep_state *s, ordering_point *point)
{
    char label[64];
    for (size_t i = 0; ordering_schemes[i]; i++) {
        const ordering_scheme *scheme = ordering_schemes[i];
        if (i > 0 && !wanted(s->sweep, scheme))
            continue;
        snprintf(label, sizeof label, "%s (%s)", scheme->name, ORDERING_LABEL);
        progress_show(&s->bar, s->done, s->total, label);
        int rc = ordering_measure(scheme, &point->options, &point->results[point->n]);
        if (rc != UF_OK) {
            progress_end(&s->bar);
            fprintf(stderr, "unfence bench ordering: %s: %s\n", uf_error_name(rc), uf_error_message());
            return TOOL_EXIT_FAILED;
        }
        point->schemes[point->n++] = scheme;
    }
    return TOOL_EXIT_OK;
}

static void plot_point(plot_panel *panel, const ordering_point *point)
{
    size_t at = panel->n_points;
    if (at == PLOT_POINTS)
        return;
    panel->sizes[at] = point->options.bytes;
    panel->n_points++;
    panel->n_lines = point->n;
    for (size_t i = 0; i < point->n && i < PLOT_LINES; i++) {
        panel->names[i] = point->schemes[i]->name;
        panel->values[i][at] = ordering_share(point, i);
    }
    ordering_point_name(point, false, panel->title, sizeof panel->title);
}

static int run_point(sweep_state *s, uint64_t bytes, plot_panel *panel, const ordering_options *like)
{
    ordering_point point = {.options = *like};
    char why[256];
    point.options.bytes = bytes;
    point.options.puts = ordering_puts(bytes, like->inflight, (uint32_t)s->sweep->puts);
    s->done++;
    if (!ordering_fits(&point.options, why, sizeof why)) {
        progress_end(&s->bar);
        fprintf(stderr, "unfence bench ordering: left out: %s\n", why);
        return TOOL_EXIT_OK;
    }
    int rc = measure_point(s, &point);
    if (rc == TOOL_EXIT_OK) {
        plot_point(panel, &point);
        progress_end(&s->bar);
        if (!s->sweep->json)
            ordering_table_point(stdout, &point);
        else if (ordering_rows_add(&s->rows, s->sweep, &point) != 0)
            rc = TOOL_EXIT_FAILED;
    }
    free_results(&point);
    return rc;
}

/* One panel: all sizes. */
static int run_panel(sweep_state *s, const ordering_options *like)
{
    plot_panel *panel = &s->panels[s->n_panels];
    int rc = TOOL_EXIT_OK;
    for (size_t i = 0; i < s->sweep->sizes.n && rc == TOOL_EXIT_OK; i++)
        rc = run_point(s, s->sweep->sizes.values[i], panel, like);
    s->n_panels += panel->n_points > 0;
    return rc;
}

static int run_sweep(sweep_state *s)
{
    const ordering_sweep *w = s->sweep;
    int rc = TOOL_EXIT_OK;
    for (size_t r = 0; r < w->rtt.n; r++)
        for (size_t p = 0; p < w->peers.n; p++)
            for (size_t f = 0; f < w->inflight.n && rc == TOOL_EXIT_OK; f++) {
                const ordering_options like = {.profile = w->model,
                                               .seed = w->seed,
                                               .inflight = (uint32_t)w->inflight.values[f],
                                               .peers = (uint32_t)w->peers.values[p],
                                               .batch = (uint32_t)w->batch,
                                               .rtt_ns = w->rtt.values[r],
                                               .costs = {w->post_ns, w->cqe_ns}};
                rc = run_panel(s, &like);
            }
    progress_end(&s->bar);
    return rc;
}

static int write_plot(const sweep_state *s)
{
    char title[128];
    snprintf(title, sizeof title, "Ordering schemes on the EFA model, profile %s: %s", s->sweep->model, ORDERING_LABEL);
    const plot drawn = {.title = title,
                        .label = ORDERING_LABEL,
                        .x = "size of a put",
                        .y = "share of unsignalled throughput",
                        .n_panels = s->n_panels,
                        .panels = s->panels};
    FILE *out = fopen(s->sweep->plot, "w");
    int rc = out ? plot_svg(out, &drawn) : -1;
    if (out && fclose(out) != 0)
        rc = -1;
    if (rc != 0) {
        fprintf(stderr, "unfence bench ordering: cannot write %s\n", s->sweep->plot);
        return TOOL_EXIT_FAILED;
    }
    if (!s->sweep->json)
        plot_terminal(stdout, &drawn);
    return TOOL_EXIT_OK;
}

int bench_ordering(int argc, char **argv)
{
    ordering_sweep sweep = {.model = "p5en",
                            .sizes = {5, {2048, 8192, 16384, 65536, 1048576}},
                            .inflight = {1, {64}},
                            .peers = {1, {1}},
                            .rtt = {1, {20000}},
                            .puts = 4096,
                            .batch = 16,
                            .seed = 1,
                            .post_ns = 40,
                            .cqe_ns = 40};
    switch (parse(&sweep, argc, argv)) {
    case TOOL_PARSED_HELP:
        return TOOL_EXIT_OK;
    case TOOL_PARSED_WRONG:
        return TOOL_EXIT_USAGE;
    case TOOL_PARSED:
        break;
    }
    size_t panels = sweep.rtt.n * sweep.peers.n * sweep.inflight.n;
    sweep_state s = {.sweep = &sweep, .total = panels * sweep.sizes.n, .panels = calloc(panels, sizeof *s.panels)};
    if (!s.panels)
        return TOOL_EXIT_FAILED;
    if (!sweep.json)
        ordering_table_head(stdout, &sweep);
    progress_start(&s.bar);
    int rc = run_sweep(&s);
    /* What was simulated before a failure is printed all the same; the exit code tells that it is not all. */
    if (sweep.json && (s.rows.n || rc == TOOL_EXIT_OK) && report_json(stdout, "model", s.rows.rows, s.rows.n, NULL, 0) != 0)
        rc = TOOL_EXIT_FAILED;
    if (sweep.plot && s.n_panels && write_plot(&s) != TOOL_EXIT_OK)
        rc = TOOL_EXIT_FAILED;
    free(s.rows.rows);
    free(s.panels);
    return rc;
}
