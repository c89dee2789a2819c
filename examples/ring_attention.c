/* ring_attention.c - attention over a text that is split over PEs, forward and backward, whose keys and values go round a ring.
 *
 * Each PE has a ragged part of the text. Per layer it makes queries, keys and values of its tokens and meets everybody's keys and values as they
 * pass (ring_layer.c). In the end PE 0 computes everything alone, with all tokens at once and in float64 (attention.c), and compares the outputs of the
 * last layer and the gradient of a loss by the embeddings, each without what attention did not add to it: the relative error must be under 1e-2 with bf16 inputs, under 1e-5 with f32. */
#include "ring_attention.h"
#include "moe_text.h"
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    attention_shape shape;
    char **paths;
    int n_paths, tokens, slots, check, json;
    const char *trace;
} options;

typedef struct figures {
    uint64_t forward_ns, backward_ns, compute_ns, wait_ns, blocks, puts, bytes;
} figures;

typedef struct state {
    const options *o;
    attention_job job;
    moe_text text;
    float *x;        /* [layers + 1][tokens][width] */
    float *q, *outs; /* [layers][tokens][width] */
    float *log_sums; /* [layers][tokens][heads] */
    float *dx, *w, *scratch;
    float *results;         /* symmetric, all tokens: outputs, then gradients; PE 0's are read */
    timeline_event *events; /* symmetric */
    figures *all;           /* symmetric, [n_pes] */
    figures mine;
    double error[2];
} state;

static int fail(const char *what)
{
    fprintf(stderr, "ring-attention: %s\n", what);
    return -1;
}

static int lib(int rc)
{
    return rc ? fail(uf_error_message()) : 0;
}

/* ---------------------------------------------------------------- setting up */

static size_t width_of(const state *s)
{
    return (size_t)attention_width(&s->o->shape);
}

static void *take(int *rc, size_t n, size_t bytes)
{
    void *p = *rc ? NULL : calloc(n + 1, bytes);
    if (!p && !*rc)
        *rc = fail("no memory");
    return p;
}

/* Whose part of the text is which. */
static int split(state *s)
{
    attention_job *j = &s->job;
    int rc = moe_text_read(s->o->paths, s->o->n_paths, (size_t)s->o->tokens, &s->text) ? fail(s->text.why) : 0;
    j->tokens = take(&rc, (size_t)j->n_pes, sizeof *j->tokens);
    j->first = take(&rc, (size_t)j->n_pes, sizeof *j->first);
    for (int pe = 0; !rc && pe < j->n_pes; pe++) {
        j->first[pe] = moe_text_cut(s->text.bytes, s->text.n, pe, j->n_pes);
        j->tokens[pe] = moe_text_cut(s->text.bytes, s->text.n, pe + 1, j->n_pes) - j->first[pe];
        j->most = j->tokens[pe] > j->most ? j->tokens[pe] : j->most;
    }
    return rc;
}

static int take_own(state *s)
{
    attention_job *j = &s->job;
    size_t n = j->most, width = width_of(s), heads = (size_t)s->o->shape.heads, layers = (size_t)s->o->shape.layers;
    int rc = 0;
    s->x = take(&rc, (layers + 1) * n * width, sizeof *s->x);
    s->q = take(&rc, layers * n * width, sizeof *s->q);
    s->outs = take(&rc, layers * n * width, sizeof *s->outs);
    s->log_sums = take(&rc, layers * n * heads, sizeof *s->log_sums);
    s->dx = take(&rc, n * width, sizeof *s->dx);
    s->w = take(&rc, width * width, sizeof *s->w);
    s->scratch = take(&rc, n * width, sizeof *s->scratch);
    j->k = take(&rc, n * width, sizeof *j->k);
    j->v = take(&rc, n * width, sizeof *j->v);
    j->dk = take(&rc, n * width, sizeof *j->dk);
    j->dv = take(&rc, n * width, sizeof *j->dv);
    j->sum = take(&rc, 2 * n * width + 32, sizeof *j->sum);
    j->rows.n = j->tokens[j->me];
    j->rows.first = j->first[j->me];
    j->rows.most = take(&rc, n * heads, sizeof(float));
    j->rows.sum = take(&rc, n * heads, sizeof(float));
    j->rows.delta = take(&rc, n * heads, sizeof(float));
    j->rows.dq = take(&rc, n * width, sizeof(float));
    j->rows.dout = take(&rc, n * width, sizeof(float));
    j->rows.scores = take(&rc, n, sizeof(float));
    return rc;
}

/* Events of a PE: at each hop of a layer forward a put, a signal, a wait and some computing, backward that twice. */
static size_t most_events(const state *s)
{
    return s->o->trace ? (size_t)s->o->shape.layers * 12 * (size_t)(s->job.n_pes + 1) : 0;
}

static int take_symmetric(state *s)
{
    attention_job *j = &s->job;
    size_t width = width_of(s), block = j->most * width, element = attention_element(&s->o->shape), pes = (size_t)j->n_pes;
    uf_ring_options kv = {.size = sizeof kv, .n_parts = 2, .n_slots = s->o->slots}, gradients = kv;
    kv.part_bytes[0] = kv.part_bytes[1] = block * element;
    gradients.part_bytes[0] = gradients.part_bytes[1] = block * sizeof(float);
    uf_team *all = uf_team_world(j->world);
    int rc = lib(uf_ring_create(all, &kv, &j->blocks));
    rc = rc ? rc : lib(uf_ring_create(all, &gradients, &j->gradients));
    rc = rc ? rc : lib(uf_malloc(j->world, 2 * (block * element + 64), 0, (void **)&j->own));
    rc = rc ? rc : lib(uf_malloc(j->world, 2 * s->text.n * width * sizeof(float) + 64, 0, (void **)&s->results));
    rc = rc ? rc : lib(uf_malloc(j->world, pes * most_events(s) * sizeof *s->events + 64, 0, (void **)&s->events));
    rc = rc ? rc : lib(uf_malloc(j->world, pes * sizeof *s->all, 0, (void **)&s->all));
    j->line.room = most_events(s);
    j->line.events = take(&rc, j->line.room, sizeof *j->line.events);
    return rc;
}

/* ---------------------------------------------------------------- the layers */

static float *layer_of(const state *s, float *all, int layer)
{
    return all + (size_t)layer * s->job.most * width_of(s);
}

/* Projects x of the layer by one matrix, and rounds to what travels. */
static void project(state *s, attention_matrix m, float *out)
{
    attention_job *j = &s->job;
    attention_weights(&s->o->shape, j->layer, m, s->w);
    attention_project(&s->o->shape, layer_of(s, s->x, j->layer), s->w, j->rows.n, out);
    attention_round(&s->o->shape, out, j->rows.n * width_of(s));
}

/* Keys and values of this PE, to where they are sent from, and where rows of the layer are kept. */
static void prepare(state *s, int layer, int queries)
{
    attention_job *j = &s->job;
    size_t elements = j->rows.n * width_of(s), bytes = ring_layer_bytes(j, j->me);
    j->layer = layer;
    j->rows.q = layer_of(s, s->q, layer);
    j->rows.out = layer_of(s, s->outs, layer);
    j->rows.log_sum = s->log_sums + (size_t)layer * j->most * (size_t)s->o->shape.heads;
    if (queries)
        project(s, ATTENTION_Q, j->rows.q);
    project(s, ATTENTION_K, s->scratch);
    attention_store(&s->o->shape, s->scratch, elements, j->own);
    project(s, ATTENTION_V, s->scratch);
    attention_store(&s->o->shape, s->scratch, elements, j->own + (bytes + 63) / 64 * 64);
}

static int forward(state *s)
{
    attention_job *j = &s->job;
    size_t elements = j->rows.n * width_of(s);
    int rc = 0;
    for (int layer = 0; !rc && layer < s->o->shape.layers; layer++) {
        float *x = layer_of(s, s->x, layer), *next = layer_of(s, s->x, layer + 1);
        prepare(s, layer, 1);
        rc = lib(ring_layer_forward(j));
        for (size_t i = 0; i < elements; i++)
            next[i] = x[i] + j->rows.out[i];
    }
    return rc;
}

static int backward(state *s)
{
    attention_job *j = &s->job;
    size_t elements = j->rows.n * width_of(s);
    int rc = 0;
    for (int layer = s->o->shape.layers - 1; !rc && layer >= 0; layer--) {
        prepare(s, layer, 0);
        memcpy(j->rows.dout, s->dx, elements * sizeof *s->dx);
        rc = lib(ring_layer_backward(j));
        const float *const gradients[] = {j->rows.dq, j->dk, j->dv};
        for (int m = 0; !rc && m < 3; m++) {
            attention_weights(&s->o->shape, layer, (attention_matrix)m, s->w);
            attention_project_back(&s->o->shape, gradients[m], s->w, j->rows.n, s->dx);
        }
    }
    return rc;
}

static int run(state *s)
{
    attention_job *j = &s->job;
    size_t width = width_of(s);
    for (size_t t = 0; t < j->rows.n; t++) {
        size_t at = j->rows.first + t;
        attention_embed(&s->o->shape, s->text.bytes[at], at, s->x + t * width);
        for (size_t i = 0; i < width; i++)
            s->dx[t * width + i] = attention_loss_weight(&s->o->shape, at, (int)i);
    }
    uint64_t began = timeline_now();
    int rc = forward(s);
    s->mine.forward_ns = timeline_now() - began;
    began = timeline_now();
    rc = rc ? rc : backward(s);
    s->mine.backward_ns = timeline_now() - began;
    return rc;
}

/* ---------------------------------------------------------------- the check and the report */

/* What attention added to the embeddings, and to the gradient: the rest would only make errors look small. */
static void leave_what_was_added(state *s)
{
    attention_job *j = &s->job;
    size_t width = width_of(s);
    float *out = layer_of(s, s->x, s->o->shape.layers);
    for (size_t i = 0; i < j->rows.n * width; i++) {
        out[i] -= s->x[i];
        s->dx[i] -= attention_loss_weight(&s->o->shape, j->rows.first + i / width, (int)(i % width));
    }
}

/* Brings outputs and gradients of all PEs to PE 0, events and figures as well. */
static int collect(state *s)
{
    attention_job *j = &s->job;
    uf_ctx *ctx = uf_ctx_default(j->world);
    size_t width = width_of(s), bytes = j->rows.n * width * sizeof(float), first = j->rows.first * width;
    leave_what_was_added(s);
    uf_ring_stats a = {.size = sizeof a}, b = {.size = sizeof b};
    int rc = lib(uf_ring_stats_get(j->blocks, &a));
    rc = rc ? rc : lib(uf_ring_stats_get(j->gradients, &b));
    s->mine.compute_ns = j->compute_ns, s->mine.wait_ns = j->wait_ns;
    s->mine.blocks = a.blocks_sent + b.blocks_sent, s->mine.puts = a.puts + b.puts, s->mine.bytes = a.bytes_sent + b.bytes_sent;
    rc = rc ? rc : lib(uf_put(ctx, s->results + first, layer_of(s, s->x, s->o->shape.layers), bytes, 0));
    rc = rc ? rc : lib(uf_put(ctx, s->results + s->text.n * width + first, s->dx, bytes, 0));
    rc = rc ? rc
            : lib(uf_put(ctx, s->events + (size_t)j->me * most_events(s), j->line.events, most_events(s) * sizeof *j->line.events,
                         0));
    rc = rc ? rc : lib(uf_put(ctx, &s->all[j->me], &s->mine, sizeof s->mine, 0));
    return rc ? rc : lib(uf_barrier(uf_team_world(j->world)));
}

static double relative(const float *got, const double *wanted, size_t n)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - wanted[i];
        off += d * d;
        size += wanted[i] * wanted[i];
    }
    return size > 0 ? sqrt(off / size) : sqrt(off);
}

static double limit(const state *s)
{
    return s->o->shape.bf16 ? 1e-2 : 1e-5;
}

static int check(state *s)
{
    size_t all = s->text.n * width_of(s);
    double *wanted = malloc((2 * all + 1) * sizeof *wanted);
    int rc = wanted ? attention_reference(&s->o->shape, s->text.bytes, s->text.n, wanted, wanted + all) : -1;
    if (rc)
        fail("no memory for the reference");
    for (size_t i = 0; !rc && i < 2; i++)
        s->error[i] = relative(s->results + i * all, wanted + i * all, all);
    free(wanted);
    return rc;
}

static int sound(const state *s)
{
    return !s->o->check || (s->error[0] < limit(s) && s->error[1] < limit(s)); /* a NaN is not */
}

static int write_trace(state *s)
{
    int n = s->job.n_pes, rc = 0;
    timeline *pes = calloc((size_t)n, sizeof *pes);
    for (int pe = 0; pes && pe < n; pe++) {
        pes[pe] = (timeline){s->events + (size_t)pe * most_events(s), 0, most_events(s)};
        while (pes[pe].n < pes[pe].room && pes[pe].events[pes[pe].n].end)
            pes[pe].n++;
    }
    if (!pes || timeline_write(s->o->trace, pes, n))
        rc = fail("cannot write the timeline that --trace names");
    free(pes);
    return rc;
}

static void report_json(const state *s)
{
    const attention_shape *a = &s->o->shape;
    printf("{\"example\":\"ring-attention\",\"pes\":%d,\"tokens\":%zu,\"layers\":%d,\"heads\":%d,\"dim\":%d,\"dtype\":\"%s\","
           "\"causal\":%s,",
           s->job.n_pes, s->text.n, a->layers, a->heads, a->dim, a->bf16 ? "bf16" : "f32", a->causal ? "true" : "false");
    printf("\"checked\":%s,\"passed\":%s,\"limit\":%g,\"error\":{\"outputs\":%.3g,\"gradients\":%.3g},\"each\":[",
           s->o->check ? "true" : "false", sound(s) ? "true" : "false", limit(s), s->error[0], s->error[1]);
    for (int pe = 0; pe < s->job.n_pes; pe++) {
        const figures *f = &s->all[pe];
        printf("%s{\"pe\":%d,\"tokens\":%zu,\"forward_ns\":%llu,\"backward_ns\":%llu,\"compute_ns\":%llu,\"wait_ns\":%llu,"
               "\"blocks\":%llu,"
               "\"puts\":%llu,\"bytes\":%llu}",
               pe ? "," : "", pe, s->job.tokens[pe], (unsigned long long)f->forward_ns, (unsigned long long)f->backward_ns,
               (unsigned long long)f->compute_ns, (unsigned long long)f->wait_ns, (unsigned long long)f->blocks,
               (unsigned long long)f->puts, (unsigned long long)f->bytes);
    }
    puts("]}");
}

static void report_table(const state *s)
{
    const attention_shape *a = &s->o->shape;
    uf_path_info path = {.size = sizeof path};
    const char *fabric = s->job.n_pes > 1 && !uf_world_path(s->job.world, 1, &path) ? path.fabric : "nothing";
    printf("ring attention of %zu tokens from %d file%s over %d PEs, %s to PE 1: %d layers of %d heads of %d, %s, %s\n",
           s->text.n, s->text.files, s->text.files == 1 ? "" : "s", s->job.n_pes, fabric, a->layers, a->heads, a->dim,
           a->bf16 ? "bf16" : "f32", a->causal ? "causal" : "every token sees all");
    printf("  PE  tokens  forward ms  backward ms  computing ms  waiting ms  blocks sent  puts     MiB\n");
    for (int pe = 0; pe < s->job.n_pes; pe++) {
        const figures *f = &s->all[pe];
        printf("%4d %7zu %11.1f %12.1f %13.1f %11.1f %12llu %5llu %7.2f\n", pe, s->job.tokens[pe], (double)f->forward_ns / 1e6,
               (double)f->backward_ns / 1e6, (double)f->compute_ns / 1e6, (double)f->wait_ns / 1e6, (unsigned long long)f->blocks,
               (unsigned long long)f->puts, (double)f->bytes / (1 << 20));
    }
    if (s->o->trace)
        printf("timeline: %s (ui.perfetto.dev or chrome://tracing shows it)\n", s->o->trace);
    if (!s->o->check)
        puts("not checked");
    else
        printf("check against one PE in float64: relative error of outputs %.2g, of gradients %.2g, under %g is right: %s\n",
               s->error[0], s->error[1], limit(s), sound(s) ? "passed" : "FAILED");
}

static int judge(state *s)
{
    int rc = s->o->check ? check(s) : 0;
    if (!rc && s->o->trace)
        rc = write_trace(s);
    if (rc)
        return rc;
    if (s->o->json)
        report_json(s);
    else
        report_table(s);
    return sound(s) ? 0 : -1;
}

/* ---------------------------------------------------------------- command line */

static const char usage[] =
    "usage: unfence run -n PES -- ring-attention [options] [PATH...]\n"
    "Attention, forward and backward, over a text that is split over the PEs: keys and values go round a ring while they are\n"
    "computed on. Checked against one PE in float64.\n"
    "  --text PATH       a file, or a folder of *.md, *.txt and *.rst files; may be repeated (the project's documentation)\n"
    "  --tokens N        bytes of text, at most (768)\n"
    "  --layers N        layers (3)\n"
    "  --heads N         heads (4)\n"
    "  --dim N           width of a head (32)\n"
    "  --slots N         blocks that may be under way to a PE (2)\n"
    "  --dtype TYPE      bf16 or f32: queries, keys and values; sums are f32 (bf16)\n"
    "  --no-causal       every token sees all others, and not only those before it\n"
    "  --seed N          of the model's numbers (1)\n"
    "  --trace FILE      writes a timeline of all PEs there, as Perfetto and chrome://tracing read it\n"
    "  --json            prints one JSON object instead of the table\n"
    "  --no-check        does not compute everything on one PE as well\n"
    "UNFENCE_FABRIC=ofi:tcp and others choose the network. Exit code: 0 if everything was right, 1 if a check or a call failed, "
    "2 for\n"
    "a wrong command line.\n";

static int number(const char *name, const char *text, int least, int most, int *value)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*text && !*end && v >= least && v <= most) {
        *value = (int)v;
        return 0;
    }
    fprintf(stderr, "ring-attention: --%s %s: a whole number from %d to %d is needed\n", name, text, least, most);
    return 2;
}

/* 0, 2 for a wrong command line, 3 if help was asked for. */
static int parse(int argc, char **argv, options *o)
{
    enum { TEXT = 1, DTYPE, NO_CAUSAL, TRACE, JSON, NO_CHECK, HELP, NUMBERS };
    static const struct option known[] = {{"text", 1, 0, TEXT},           {"dtype", 1, 0, DTYPE},
                                          {"no-causal", 0, 0, NO_CAUSAL}, {"trace", 1, 0, TRACE},
                                          {"json", 0, 0, JSON},           {"no-check", 0, 0, NO_CHECK},
                                          {"help", 0, 0, HELP},           {"tokens", 1, 0, NUMBERS},
                                          {"layers", 1, 0, NUMBERS + 1},  {"heads", 1, 0, NUMBERS + 2},
                                          {"dim", 1, 0, NUMBERS + 3},     {"slots", 1, 0, NUMBERS + 4},
                                          {"seed", 1, 0, NUMBERS + 5},    {0, 0, 0, 0}};
    int seed = 1, c, rc = 0;
    const struct {
        const char *name;
        int least, most, *to;
    } limits[] = {{"tokens", 0, 1 << 20, &o->tokens}, {"layers", 1, 1000, &o->shape.layers},  {"heads", 1, 64, &o->shape.heads},
                  {"dim", 1, 512, &o->shape.dim},     {"slots", 2, UF_RING_SLOTS, &o->slots}, {"seed", 0, INT_MAX, &seed}};
    while (!rc && (c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == TEXT)
            o->paths[o->n_paths++] = optarg;
        else if (c == TRACE)
            o->trace = optarg;
        else if (c == DTYPE && strcmp(optarg, "bf16") && strcmp(optarg, "f32"))
            rc = fprintf(stderr, "ring-attention: --dtype %s: bf16 or f32 is needed\n", optarg) ? 2 : 2;
        else if (c == DTYPE)
            o->shape.bf16 = !strcmp(optarg, "bf16");
        else if (c >= NUMBERS)
            rc = number(limits[c - NUMBERS].name, optarg, limits[c - NUMBERS].least, limits[c - NUMBERS].most,
                        limits[c - NUMBERS].to);
        rc = c == '?' ? 2 : c == HELP ? 3 : rc;
        o->shape.causal &= c != NO_CAUSAL;
        o->json |= c == JSON;
        o->check &= c != NO_CHECK;
    }
    while (optind < argc)
        o->paths[o->n_paths++] = argv[optind++];
    o->shape.seed = (uint64_t)seed;
    return rc;
}

/* Ordinary memory; symmetric memory dies with the world. */
static void release(state *s)
{
    attention_job *j = &s->job;
    void *all[] = {j->tokens,    j->first,    s->x,          s->q,       s->outs,      s->log_sums,    s->dx,
                   s->w,         s->scratch,  j->k,          j->v,       j->dk,        j->dv,          j->sum,
                   j->rows.most, j->rows.sum, j->rows.delta, j->rows.dq, j->rows.dout, j->rows.scores, j->line.events};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    moe_text_free(&s->text);
}

int main(int argc, char **argv)
{
    options o = {.shape = {4, 32, 3, 1, 1, 1}, .tokens = 768, .slots = 2, .check = 1};
    o.paths = calloc((size_t)argc + 1, sizeof *o.paths);
    int rc = o.paths ? parse(argc, argv, &o) : 1;
    const char *pe = getenv("UNFENCE_PE");
    if (rc == 3 && (!pe || !strcmp(pe, "0")))
        fputs(usage, stdout);
    if (rc) {
        free(o.paths);
        return rc == 3 ? 0 : rc;
    }
    state s = {.o = &o, .job = {.shape = o.shape}};
    attention_job *j = &s.job;
    rc = lib(uf_world_create(NULL, &j->world));
    j->me = uf_world_pe(j->world);
    j->n_pes = uf_world_n_pes(j->world);
    rc = rc ? rc : split(&s);
    rc = rc ? rc : take_own(&s);
    rc = rc ? rc : take_symmetric(&s);
    rc = rc ? rc : run(&s);
    rc = rc ? rc : collect(&s);
    if (rc && j->world) /* the others wait for this PE */
        uf_world_abort(j->world, "a PE of ring-attention gave up");
    int verdict = !rc && j->me == 0 ? judge(&s) : 0;
    int rings[2] = {uf_ring_destroy(j->blocks), uf_ring_destroy(j->gradients)};
    rc = rc ? rc : verdict ? verdict : lib(rings[0] ? rings[0] : rings[1]);
    int ended = uf_world_destroy(j->world);
    rc = rc ? rc : lib(ended);
    release(&s);
    free(o.paths);
    return rc ? 1 : 0;
}
