/* moe_layer.c - the project's main job: real text through an expert-parallel mixture-of-experts model, several layers deep, over each fabric in turn.
 *
 *   unfence run -n 4 -- moe-layer [options]        (alone it is a world of one PE)
 *
 * Each PE takes a share of the text, embeds its bytes, and for every layer: routes them, dispatches each token to the PEs that own its
 * experts, applies its own experts to what it received, and combines. Every layer is compared, bit for bit, with the same layer computed in
 * this one process. The whole job runs once over each fabric asked for, in a new world each time, and all runs must give the same
 * bits. Read run_layer first: it is what a user of uf_ep writes. */
#include "moe_model.h"
#include "moe_report.h"
#include "moe_text.h"
#include "unfence/ep.h"
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FABRICS = 8 };

typedef struct options {
    moe_shape shape;
    int tokens, batches, json, check, n_fabrics, n_paths;
    int experts_given; /* else their number follows the number of PEs */
    char fabrics[MAX_FABRICS][64];
    char **paths;
} options;

/* What outlives a world: the text, the model, and what the first run said. */
typedef struct state {
    options *o;
    int pe, n_pes;
    moe_text text;
    int have_text;
    moe_model *model;
    moe_job job;
} state;

/* One run of one PE. Arrays are for one batch. */
typedef struct run {
    state *s;
    uf_world *world;
    uf_ep *ep;
    uint16_t *x, *normal, *out, *alone, *y;
    int32_t *experts;
    float *weights;
    moe_scratch scratch;
    double *dispatch_us, *combine_us; /* [batches * layers] */
    int n_times;
    moe_pe mine;
} run;

/* ---------------------------------------------------------------- helpers */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Prints the library's sentence and returns -1. */
static int failed(const state *s, const char *what)
{
    fprintf(stderr, "moe-layer: PE %d: %s: %s\n", s->pe, what, uf_error_message());
    return -1;
}

/* A failure of this PE alone: tells the others, so that none waits for it. */
static int alone_failed(run *r, const char *why)
{
    fprintf(stderr, "moe-layer: PE %d: %s\n", r->s->pe, why);
    if (r->world)
        uf_world_abort(r->world, why);
    return -1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *values, int n, double p)
{
    if (n == 0)
        return 0;
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[(int)(p * (n - 1) + 0.5)];
}

/* ---------------------------------------------------------------- the layer */

/* Compares with the same layer in this process; the first difference is told. */
static int check_layer(run *r, int layer, int n)
{
    const moe_shape *shape = &r->s->o->shape;
    size_t hidden = (size_t)shape->hidden, all = (size_t)n * hidden;
    if (moe_model_layer_alone(r->s->model, layer, r->s->n_pes, r->normal, r->experts, r->weights, n, r->alone, &r->scratch))
        return alone_failed(r, "no memory to compute the layer alone");
    r->mine.checked += all;
    if (all == 0 || memcmp(r->out, r->alone, all * sizeof *r->out) == 0)
        return 0;
    for (size_t i = 0; i < all; i++) {
        if (r->out[i] != r->alone[i] && r->mine.wrong == 0)
            fprintf(stderr, "moe-layer: PE %d: layer %d, token %zu, element %zu is %04x, alone it is %04x\n", r->s->pe, layer,
                    i / hidden, i % hidden, r->out[i], r->alone[i]);
        r->mine.wrong += r->out[i] != r->alone[i];
    }
    return 0;
}

/* One layer for n tokens x: dispatch, experts, combine. */
static int run_layer(run *r, int layer, int n, int check)
{
    const moe_shape *shape = &r->s->o->shape;
    int local = shape->experts / r->s->n_pes;
    uf_ep_handle *handle = NULL;
    uf_ep_received got = {.size = sizeof got};
    moe_model_route(r->s->model, layer, r->x, n, r->normal, r->experts, r->weights);

    double start = seconds();
    if (uf_ep_dispatch(r->ep, r->normal, r->experts, r->weights, n, &handle, &got))
        return failed(r->s, "dispatch");
    r->dispatch_us[r->n_times] = (seconds() - start) * 1e6;

    if (moe_model_experts_apply(r->s->model, layer, r->s->pe * local, local, got.x, got.experts, got.weights, got.n_rows, r->y,
                                &r->scratch))
        return alone_failed(r, "no memory to apply the experts");

    start = seconds();
    if (uf_ep_combine(r->ep, r->y, NULL, handle, r->out, NULL))
        return failed(r->s, "combine");
    r->combine_us[r->n_times++] = (seconds() - start) * 1e6;
    uf_ep_handle_free(handle);

    int rc = check ? check_layer(r, layer, n) : 0;
    moe_model_add(r->x, r->out, (size_t)n * (size_t)shape->hidden);
    return rc;
}

static uint64_t digest(uint64_t sum, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ x[i]) * 0x100000001b3u;
    return sum;
}

/* All batches of this PE's share of the text. `check`: against one process. */
static int run_batches(run *r, int check)
{
    const state *s = r->s;
    const moe_shape *shape = &s->o->shape;
    size_t from = moe_text_cut(s->text.bytes, s->text.n, s->pe, s->n_pes),
           to = moe_text_cut(s->text.bytes, s->text.n, s->pe + 1, s->n_pes);
    r->mine.digest = 0xcbf29ce484222325u;
    for (int b = 0; b < s->job.batches; b++) {
        size_t left = to - from;
        int n = left < (size_t)s->o->tokens ? (int)left : s->o->tokens;
        if (n)
            moe_model_embed(s->model, s->text.bytes + from, n, from ? s->text.bytes[from - 1] : 0, r->x);
        for (int layer = 0; layer < shape->layers; layer++) {
            if (run_layer(r, layer, n, check))
                return -1;
            if (s->pe == 0)
                moe_progress(s->job.runs[s->job.n_runs].asked, (uint64_t)(b * shape->layers + layer + 1),
                             (uint64_t)s->job.batches * (uint64_t)shape->layers);
        }
        r->mine.digest = digest(r->mine.digest, r->x, (size_t)n * (size_t)shape->hidden);
        r->mine.tokens += (uint64_t)n;
        from += (size_t)n;
    }
    return 0;
}

/* ---------------------------------------------------------------- text and model, once */

typedef struct news {
    uint64_t bytes;
    int32_t files, failed;
    char why[256];
} news;

/* PE 0 reads, all get the bytes: other hosts need not have the files. */
static int share_text(run *r)
{
    state *s = r->s;
    uf_team *team = uf_team_world(r->world);
    news *tell = NULL, mine = {0};
    if (s->pe == 0) {
        size_t all = (size_t)s->o->batches * (size_t)s->o->tokens * (size_t)s->n_pes;
        size_t limit = s->o->batches == 0 ? SIZE_MAX : all ? all : 1;
        mine.failed = moe_text_read(s->o->paths, s->o->n_paths, limit, &s->text);
        mine.bytes = s->text.n, mine.files = s->text.files;
        memcpy(mine.why, s->text.why, sizeof mine.why);
        if (mine.failed)
            fprintf(stderr, "moe-layer: %s\n", mine.why);
    }
    if (uf_malloc(r->world, sizeof *tell, 0, (void **)&tell) || uf_broadcast(team, tell, &mine, sizeof mine, 0))
        return failed(s, "telling the size of the text");
    mine = *tell;
    if (uf_free(r->world, tell))
        return failed(s, "telling the size of the text");
    if (mine.failed)
        return -1;
    void *shared = NULL;
    if (mine.bytes && (uf_malloc(r->world, mine.bytes, 0, &shared) || uf_broadcast(team, shared, s->text.bytes, mine.bytes, 0)))
        return failed(s, "sharing the text");
    if (s->pe != 0) {
        s->text = (moe_text){.bytes = malloc(mine.bytes + 1), .n = mine.bytes, .files = mine.files};
        if (!s->text.bytes)
            return alone_failed(r, "no memory for the text");
        if (mine.bytes)
            memcpy(s->text.bytes, shared, mine.bytes);
    }
    return uf_free(r->world, shared) ? failed(s, "sharing the text") : 0;
}

/* Everything that does not change from run to run. */
static int prepare(run *r)
{
    state *s = r->s;
    const moe_shape *shape = &s->o->shape;
    if (s->have_text)
        return 0;
    if (share_text(r))
        return -1;
    s->have_text = 1;
    size_t longest = 0, tokens = s->o->tokens ? (size_t)s->o->tokens : 1;
    for (int pe = 0; pe < s->n_pes && s->o->tokens; pe++) {
        size_t share =
            moe_text_cut(s->text.bytes, s->text.n, pe + 1, s->n_pes) - moe_text_cut(s->text.bytes, s->text.n, pe, s->n_pes);
        longest = share > longest ? share : longest;
    }
    /* No text still makes one batch of no tokens, which the library must carry as well. */
    s->job.batches = longest ? (int)((longest + tokens - 1) / tokens) : 1;
    /* Shares are ragged, so the longest may run over the even one by a line; what is beyond the batches asked for is left out. */
    if (s->o->batches && s->job.batches > s->o->batches)
        s->job.batches = s->o->batches;
    s->job.text_files = s->text.files;
    s->job.text_cut = s->o->batches && s->text.n >= (size_t)s->o->batches * (size_t)s->o->tokens * (size_t)s->n_pes;
    int local = shape->experts / s->n_pes;
    s->model = moe_model_create(shape);
    if (!s->model || moe_model_experts(s->model, s->o->check ? 0 : s->pe * local, s->o->check ? shape->experts : local))
        return alone_failed(r, "no memory for the model");
    return 0;
}

/* ---------------------------------------------------------------- one run */

static int make_room(run *r)
{
    const moe_shape *shape = &r->s->o->shape;
    size_t tokens = (size_t)r->s->o->tokens + 1, hidden = (size_t)shape->hidden, k = (size_t)shape->top_k;
    size_t times = (size_t)r->s->job.batches * (size_t)shape->layers;
    r->x = malloc(tokens * hidden * sizeof *r->x);
    r->normal = malloc(tokens * hidden * sizeof *r->normal);
    r->out = malloc(tokens * hidden * sizeof *r->out);
    r->alone = malloc(tokens * hidden * sizeof *r->alone);
    r->y = malloc(tokens * hidden * sizeof *r->y * (size_t)r->s->n_pes);
    r->experts = malloc(tokens * k * sizeof *r->experts);
    r->weights = malloc(tokens * k * sizeof *r->weights);
    r->dispatch_us = malloc(times * sizeof *r->dispatch_us);
    r->combine_us = malloc(times * sizeof *r->combine_us);
    if (!r->x || !r->normal || !r->out || !r->alone || !r->y || !r->experts || !r->weights || !r->dispatch_us || !r->combine_us)
        return alone_failed(r, "no memory for a batch");
    return 0;
}

static void give_room_back(run *r)
{
    void *all[] = {r->x, r->normal, r->out, r->alone, r->y, r->experts, r->weights, r->dispatch_us, r->combine_us};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    moe_scratch_free(&r->scratch);
}

/* What was asked for must be what carries the bytes to every other PE. That a provider asked for by name is the one taken, or what that name
 * stands for here, is the library's promise (strict): "ofi:tcp" is provider net with libfabric 1.17. */
static int check_paths(run *r, moe_run *report)
{
    const char *asked = report->asked, *colon = strchr(asked, ':');
    size_t name = colon ? (size_t)(colon - asked) : strlen(asked);
    uf_path_info path = {.size = sizeof path};
    for (int pe = 0; pe < r->s->n_pes; pe++) {
        if (pe == r->s->pe && r->s->n_pes > 1)
            continue;
        if (uf_world_path(r->world, pe, &path))
            return failed(r->s, "uf_world_path");
        snprintf(report->fabric, sizeof report->fabric, "%s", path.fabric);
        snprintf(report->provider, sizeof report->provider, "%s", path.provider);
        int as_asked =
            !strcmp(asked, "auto") || r->s->n_pes == 1 || (strlen(path.fabric) == name && !strncmp(path.fabric, asked, name));
        if (as_asked)
            continue;
        char why[256];
        snprintf(why, sizeof why, "%s was asked for, but PE %d is reached over %s (%s)", asked, pe, path.fabric, path.provider);
        return alone_failed(r, why);
    }
    return 0;
}

/* The counters of this run of the job, and everybody's to all. */
static int gather(run *r, const uf_counters *before, moe_run *report)
{
    uf_counters now = {.size = sizeof now};
    uf_ep_stats stats = {.size = sizeof stats};
    moe_pe *m = &r->mine, *all = NULL;
    if (uf_world_counters(r->world, &now) || uf_ep_stats_get(r->ep, &stats))
        return failed(r->s, "reading the counters");
    m->sent = stats.tokens_sent, m->received = stats.tokens_received, m->dispatches = stats.dispatches;
    m->late_dispatch = (double)stats.late_ns[0] * 1e-6, m->late_combine = (double)stats.late_ns[1] * 1e-6;
    m->late_pe = stats.late_pe[1] >= 0 ? stats.late_pe[1] : stats.late_pe[0];
    m->bytes_local = now.bytes_local - before->bytes_local, m->bytes_network = now.bytes_network - before->bytes_network;
    m->puts = now.puts - before->puts, m->signals = now.signals - before->signals;
    m->data_wrs = now.data_wrs - before->data_wrs, m->signal_wrs = now.signal_wrs - before->signal_wrs;
    m->control_wrs = now.control_wrs - before->control_wrs;
    m->fences = now.fences - before->fences, m->eagain = now.eagain - before->eagain;
    m->signalled = m->bytes_network ? m->puts : 0; /* a run uses one fabric, and every put of dispatch and combine has a signal */
    m->dispatch_p50 = percentile(r->dispatch_us, r->n_times, 0.5), m->dispatch_p99 = percentile(r->dispatch_us, r->n_times, 0.99);
    m->combine_p50 = percentile(r->combine_us, r->n_times, 0.5), m->combine_p99 = percentile(r->combine_us, r->n_times, 0.99);
    if (uf_malloc(r->world, sizeof *all * (size_t)r->s->n_pes, 0, (void **)&all) ||
        uf_allgather(uf_team_world(r->world), all, m, sizeof *m))
        return failed(r->s, "gathering the results");
    report->pes = malloc(sizeof *all * (size_t)r->s->n_pes);
    if (!report->pes)
        return alone_failed(r, "no memory for the results");
    memcpy(report->pes, all, sizeof *all * (size_t)r->s->n_pes);
    return uf_free(r->world, all) ? failed(r->s, "gathering the results") : 0;
}

static int run_world(run *r, moe_run *report, int check)
{
    const options *o = r->s->o;
    uf_counters before = {.size = sizeof before};
    if (check_paths(r, report) || prepare(r) || make_room(r))
        return -1;
    uf_ep_options eo = {.size = sizeof eo,
                        .type = UF_EP_BF16,
                        .hidden = (size_t)o->shape.hidden,
                        .n_experts = o->shape.experts,
                        .top_k = o->shape.top_k,
                        .max_tokens = o->tokens,
                        .max_handles = 1};
    if (uf_ep_create(uf_team_world(r->world), &eo, &r->ep))
        return failed(r->s, "uf_ep_create");
    if (uf_world_counters(r->world, &before))
        return failed(r->s, "reading the counters");
    double start = seconds();
    if (run_batches(r, check))
        return -1;
    report->seconds = seconds() - start;
    return gather(r, &before, report) || uf_ep_destroy(r->ep) ? -1 : 0;
}

/* Each PE owns as many experts as any other, so any number of PEs needs a number of experts that it divides. */
static void fit_experts(state *s)
{
    moe_shape *shape = &s->o->shape;
    if (!s->o->experts_given)
        shape->experts = (shape->experts + s->n_pes - 1) / s->n_pes * s->n_pes;
    s->job.experts = shape->experts;
}

/* The whole job over one fabric, in a world of its own. */
static int run_fabric(state *s, const char *fabric, int check)
{
    moe_run *report = &s->job.runs[s->job.n_runs];
    run r = {.s = s};
    uf_world_options wo = UF_WORLD_OPTIONS;
    wo.fabric = fabric;
    wo.strict = 1;
    snprintf(report->asked, sizeof report->asked, "%s", fabric);
    if (uf_world_create(&wo, &r.world))
        return failed(s, fabric);
    s->pe = uf_world_pe(r.world);
    s->n_pes = s->job.n_pes = uf_world_n_pes(r.world);
    fit_experts(s);
    int rc = run_world(&r, report, check), sound = rc == 0;
    give_room_back(&r);
    if (uf_world_destroy(r.world) && sound)
        rc = failed(s, "uf_world_destroy");
    s->job.n_runs += rc == 0;
    return rc;
}

/* ---------------------------------------------------------------- command line */

static const char usage[] =
    "usage: unfence run -n PES -- moe-layer [options] [PATH...]\n"
    "Routes text through a mixture-of-experts model whose experts are spread over the PEs, and checks every number.\n"
    "  --text PATH       a file, or a folder of *.md, *.txt and *.rst files; may be repeated (the project's documentation)\n"
    "  --layers N        layers of the model (4)\n"
    "  --hidden N        width of a token, a multiple of 8 (512)\n"
    "  --inner N         width inside an expert (64)\n"
    "  --experts N       experts of a layer, a multiple of the PEs (32, or the next one)\n"
    "  --top-k N         experts of a token (4)\n"
    "  --tokens N        tokens a batch and PE, at most (1024)\n"
    "  --batches N       batches, at most; 0: the whole text (4)\n"
    "  --seed N          of the model's numbers (1)\n"
    "  --fabrics LIST    runs the job over each of these (local,ofi:tcp)\n"
    "  --json            prints one JSON object instead of the table\n"
    "  --no-check        do not compute the layers in one process as well\n"
    "Exit code: 0 if everything was right, 1 if a check or a call failed or a fabric is not there, 2 for a wrong command line.\n";

/* Complains of the command line; returns the exit code for that. */
static int say(const char *format, const char *what)
{
    fprintf(stderr, format, what);
    return 2;
}

/* Once is enough of PEs that all parse the same command line. */
static int help(void)
{
    const char *pe = getenv("UNFENCE_PE");
    if (!pe || !strcmp(pe, "0"))
        fputs(usage, stdout);
    return 3;
}

static int number(const char *name, const char *text, long long least, long long most, long long *value)
{
    char *end;
    *value = strtoll(text, &end, 10);
    if (*text && !*end && *value >= least && *value <= most)
        return 0;
    char why[160];
    snprintf(why, sizeof why, "--%s %s: a whole number from %lld to %lld is needed", name, text, least, most);
    return say("moe-layer: %s\n", why);
}

static int add_fabrics(options *o, const char *list)
{
    o->n_fabrics = 0;
    while (*list) {
        size_t n = strcspn(list, ",");
        if (n == 0 || n >= sizeof o->fabrics[0] || o->n_fabrics == MAX_FABRICS)
            return say("moe-layer: --fabrics: at most 8 names, separated by commas, not %s\n", list);
        memcpy(o->fabrics[o->n_fabrics], list, n);
        o->fabrics[o->n_fabrics++][n] = 0;
        list += n + (list[n] == ',');
    }
    return o->n_fabrics ? 0 : say("moe-layer: --fabrics needs a name%s\n", "");
}

enum { TEXT = 1, FABRICS, JSON, NO_CHECK, HELP, NUMBERS };

static int parse(int argc, char **argv, options *o)
{
    static const struct option known[] = {{"text", 1, 0, TEXT},           {"fabrics", 1, 0, FABRICS},
                                          {"json", 0, 0, JSON},           {"no-check", 0, 0, NO_CHECK},
                                          {"help", 0, 0, HELP},           {"layers", 1, 0, NUMBERS},
                                          {"hidden", 1, 0, NUMBERS + 1},  {"inner", 1, 0, NUMBERS + 2},
                                          {"experts", 1, 0, NUMBERS + 3}, {"top-k", 1, 0, NUMBERS + 4},
                                          {"tokens", 1, 0, NUMBERS + 5},  {"batches", 1, 0, NUMBERS + 6},
                                          {"seed", 1, 0, NUMBERS + 7},    {0, 0, 0, 0}};
    static const struct {
        const char *name;
        long long least, most;
    } limits[] = {{"layers", 1, 1000}, {"hidden", 8, 65536},   {"inner", 1, 65536},     {"experts", 1, 2048},
                  {"top-k", 1, 32},    {"tokens", 0, 1000000}, {"batches", 0, 1000000}, {"seed", 0, LLONG_MAX}};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        long long v = 0;
        if (c == TEXT)
            o->paths[o->n_paths++] = optarg;
        else if (c == FABRICS && add_fabrics(o, optarg))
            return 2;
        else if (c == HELP)
            return help();
        else if (c == '?' || (c >= NUMBERS &&
                              number(limits[c - NUMBERS].name, optarg, limits[c - NUMBERS].least, limits[c - NUMBERS].most, &v)))
            return 2;
        o->json |= c == JSON;
        o->check &= c != NO_CHECK;
        o->experts_given |= c == NUMBERS + 3;
        int *to[] = {&o->shape.layers, &o->shape.hidden, &o->shape.inner, &o->shape.experts,
                     &o->shape.top_k,  &o->tokens,       &o->batches};
        if (c >= NUMBERS && c < NUMBERS + 7)
            *to[c - NUMBERS] = (int)v;
        if (c == NUMBERS + 7)
            o->shape.seed = (uint64_t)v;
    }
    while (optind < argc)
        o->paths[o->n_paths++] = argv[optind++];
    if (o->shape.hidden % 8)
        return say("moe-layer: --hidden must be a multiple of 8: a row is a multiple of 16 bytes%s\n", "");
    if (o->shape.top_k > o->shape.experts)
        return say("moe-layer: --top-k is larger than --experts%s\n", "");
    return 0;
}

int main(int argc, char **argv)
{
    options o = {.shape = {4, 512, 64, 32, 4, 1},
                 .tokens = 1024,
                 .batches = 4,
                 .check = 1,
                 .n_fabrics = 2,
                 .fabrics = {"local", "ofi:tcp"}};
    o.paths = calloc((size_t)argc + 1, sizeof *o.paths);
    moe_run runs[MAX_FABRICS] = {{{0}, {0}, {0}, 0, NULL}};
    if (!o.paths)
        return 1;
    int rc = parse(argc, argv, &o);
    if (rc) {
        free(o.paths);
        return rc == 3 ? 0 : 2;
    }
    state s = {.o = &o};
    s.job = (moe_job){.layers = o.shape.layers,
                      .hidden = o.shape.hidden,
                      .inner = o.shape.inner,
                      .experts = o.shape.experts,
                      .top_k = o.shape.top_k,
                      .tokens = o.tokens,
                      .check = o.check,
                      .seed = o.shape.seed,
                      .runs = runs};
    /* The first run is checked against one process; the others must then give the bits of the first. */
    for (int f = 0; !rc && f < o.n_fabrics; f++)
        rc = run_fabric(&s, o.fabrics[f], o.check && f == 0);
    /* All PEs know the verdict; PE 0 alone fails for it, so that a launcher lets it finish its report. */
    if (!rc && s.pe == 0) {
        rc = o.json ? moe_report_json(&s.job) : (moe_report_table(&s.job), 0);
        if (!moe_job_sound(&s.job))
            rc = -1;
    }
    for (int f = 0; f < MAX_FABRICS; f++)
        free(runs[f].pes);
    moe_model_destroy(s.model);
    moe_text_free(&s.text);
    free(o.paths);
    return rc ? 1 : 0;
}
