/* allgather_gemm.c - a layer whose weight is spread over the PEs (as FSDP does): y = x W^T while tiles of W are still arriving.
 *
 * W has `rows` rows (outputs) of `inner` numbers; each PE keeps a ragged share of the rows and has inputs x of its own. Forward: an all-gather by tiles
 * (uf_tiles); each tile gives some columns of y as soon as it is here, own tiles first. Backward: the gradient of W, dy^T x, is summed over the PEs by a
 * reduce-scatter by tiles, each PE getting the rows that it keeps. Checked bit for bit: y against the same products after a whole all-gather,
 * the gradient against a sum in the same order of what each PE's inputs give. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unfence/ring.h>

typedef struct options {
    int rows, inner, tokens, tile, layers, ahead, json;
} options;

typedef struct job {
    options o;
    uf_world *world;
    uf_tiles *gather, *reduce;
    int me, n_pes;
    float *x, *y, *wanted, *share, *gradient, *sum, *part; /* share: this PE's rows of W */
    float *whole;                                          /* symmetric: all of W, by plain puts */
    uint64_t fused_ns, apart_ns, gather_ns, backward_ns;
} job;

static int lib(int rc)
{
    if (rc)
        fprintf(stderr, "allgather-gemm: %s\n", uf_error_message());
    return rc;
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static float number(uint64_t a, uint64_t b)
{
    uint64_t v = (a * 0x9e3779b97f4a7c15u ^ b) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return (float)((int64_t)(v >> 40) - (1 << 23)) / (1 << 23);
}

/* Rows that PE `pe` keeps: even shares, the first ones a row more. */
static int first_row(const job *j, int pe)
{
    int even = j->o.rows / j->n_pes, more = j->o.rows % j->n_pes;
    return pe * even + (pe < more ? pe : more);
}

static void fill_x(const job *j, int pe, int layer, float *x)
{
    for (int i = 0; i < j->o.tokens * j->o.inner; i++)
        x[i] = number(((uint64_t)layer << 8 | 1) + (uint64_t)pe * 65536, (uint64_t)i);
}

static void fill_share(const job *j, int layer)
{
    size_t first = (size_t)first_row(j, j->me) * (size_t)j->o.inner, end = (size_t)first_row(j, j->me + 1) * (size_t)j->o.inner;
    for (size_t i = first; i < end; i++)
        j->share[i - first] = number((uint64_t)layer << 8 | 2, i);
}

/* Columns [first, first + n) of y from n rows of W. The one product of this program: whoever calls it, an element's sum has the same order. */
static void multiply(const job *j, const float *w, int first, int n, float *y)
{
    for (int t = 0; t < j->o.tokens; t++)
        for (int r = 0; r < n; r++) {
            const float *x = j->x + (size_t)t * (size_t)j->o.inner, *row = w + (size_t)r * (size_t)j->o.inner;
            float sum = 0;
            for (int i = 0; i < j->o.inner; i++)
                sum += x[i] * row[i];
            y[(size_t)t * (size_t)j->o.rows + (size_t)(first + r)] = sum;
        }
}

/* ---------------------------------------------------------------- forward */

/* One all-gather and one product, tile by tile. */
static int fused(job *j)
{
    int rc = lib(uf_tiles_start(j->gather, j->share));
    for (int turn = 0; !rc && turn < j->n_pes; turn++) {
        int pe = (j->me + turn) % j->n_pes;
        for (int tile = 0; !rc && tile < uf_tiles_count(j->gather, pe); tile++) {
            const void *w = NULL;
            size_t bytes = 0;
            rc = lib(uf_tiles_wait(j->gather, pe, tile, &w, &bytes));
            if (!rc)
                multiply(j, w, first_row(j, pe) + tile * j->o.tile, (int)(bytes / sizeof(float) / (size_t)j->o.inner), j->y);
            rc = rc ? rc : lib(uf_tiles_push(j->gather));
        }
    }
    return rc ? rc : lib(uf_tiles_finish(j->gather));
}

/* The same, one after the other: everybody's rows by puts and a barrier, then the product. */
static int apart(job *j)
{
    size_t row = (size_t)j->o.inner * sizeof(float), first = (size_t)first_row(j, j->me);
    size_t bytes = ((size_t)first_row(j, j->me + 1) - first) * row;
    uint64_t began = now();
    int rc = UF_OK;
    for (int turn = 0; !rc && turn < j->n_pes; turn++)
        rc = lib(uf_put_nbi(uf_ctx_default(j->world), j->whole + first * (size_t)j->o.inner, j->share, bytes,
                            (j->me + turn) % j->n_pes));
    rc = rc ? rc : lib(uf_barrier(uf_team_world(j->world)));
    j->gather_ns += now() - began;
    if (!rc)
        multiply(j, j->whole, 0, j->o.rows, j->wanted);
    j->apart_ns += now() - began;
    return rc ? rc : lib(uf_barrier(uf_team_world(j->world)));
}

/* ---------------------------------------------------------------- backward */

/* Rows [first, first + n) of dy^T x, with y for dy. */
static void gradient_rows(const job *j, const float *x, const float *dy, int first, int n, float *out)
{
    memset(out, 0, (size_t)n * (size_t)j->o.inner * sizeof *out);
    for (int t = 0; t < j->o.tokens; t++)
        for (int r = 0; r < n; r++) {
            float d = dy[(size_t)t * (size_t)j->o.rows + (size_t)(first + r)];
            for (int i = 0; i < j->o.inner; i++)
                out[(size_t)r * (size_t)j->o.inner + (size_t)i] += d * x[(size_t)t * (size_t)j->o.inner + (size_t)i];
        }
}

/* Compares the sum of a tile with what all PEs' inputs give, added in the order of PEs. */
static int tile_is_right(job *j, int layer, int tile, int rows)
{
    size_t n = (size_t)rows * (size_t)j->o.inner;
    int first = first_row(j, j->me) + tile * j->o.tile;
    float *x = malloc(((size_t)j->o.tokens * (size_t)j->o.inner + 1) * sizeof *x), *mine = j->x, *sum = j->part + n;
    memset(sum, 0, n * sizeof *sum);
    for (int pe = 0; x && pe < j->n_pes; pe++) {
        fill_x(j, pe, layer, x);
        j->x = x;
        multiply(j, j->whole, 0, j->o.rows, j->wanted);
        gradient_rows(j, x, j->wanted, first, rows, j->part);
        for (size_t i = 0; i < n; i++)
            sum[i] += j->part[i];
    }
    j->x = mine;
    free(x);
    return x && memcmp(sum, j->sum, n * sizeof *sum) == 0;
}

static int backward(job *j, int layer, int *wrong)
{
    gradient_rows(j, j->x, j->y, 0, j->o.rows, j->gradient);
    uint64_t began = now();
    int rc = lib(uf_tiles_start(j->reduce, j->gradient));
    j->backward_ns += now() - began;
    for (int tile = 0; !rc && tile < uf_tiles_count(j->reduce, j->me); tile++) {
        size_t bytes = 0;
        began = now();
        rc = lib(uf_tiles_sum(j->reduce, tile, UF_TILES_F32, j->sum));
        rc = rc ? rc : lib(uf_tiles_wait(j->reduce, j->me, tile, NULL, &bytes));
        j->backward_ns += now() - began;
        if (!rc)
            *wrong += !tile_is_right(j, layer, tile, (int)(bytes / sizeof(float) / (size_t)j->o.inner));
    }
    began = now();
    rc = rc ? rc : lib(uf_tiles_finish(j->reduce));
    j->backward_ns += now() - began;
    return rc;
}

static int run(job *j, int *wrong)
{
    int rc = UF_OK;
    for (int layer = 0; !rc && layer < j->o.layers; layer++) {
        fill_x(j, j->me, layer, j->x);
        fill_share(j, layer);
        rc = lib(uf_sync(uf_team_world(j->world))); /* nobody looks at the whole weight of the layer before any more */
        rc = rc ? rc : apart(j);
        uint64_t began = now();
        rc = rc ? rc : fused(j);
        j->fused_ns += now() - began;
        *wrong += !rc && memcmp(j->y, j->wanted, (size_t)j->o.tokens * (size_t)j->o.rows * sizeof *j->y) != 0;
        rc = rc ? rc : backward(j, layer, wrong);
    }
    return rc;
}

/* ---------------------------------------------------------------- setting up, report, command line */

static int set_up(job *j)
{
    const options *o = &j->o;
    size_t all = (size_t)o->rows * (size_t)o->inner, tokens = (size_t)o->tokens, tile = (size_t)o->tile * (size_t)o->inner;
    float **each[] = {&j->x, &j->y, &j->wanted, &j->share, &j->gradient, &j->sum, &j->part};
    size_t sizes[] = {tokens * (size_t)o->inner, tokens * (size_t)o->rows, tokens * (size_t)o->rows, all, all, tile, 2 * tile};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (!(*each[i] = malloc((sizes[i] + 1) * sizeof(float)))) {
            fputs("allgather-gemm: no memory\n", stderr);
            return UF_ENOMEM;
        }
    size_t rows = (size_t)(first_row(j, j->me + 1) - first_row(j, j->me));
    uf_tiles_options t = {.size = sizeof t,
                          .bytes = rows * (size_t)o->inner * sizeof(float),
                          .tile_bytes = tile * sizeof(float),
                          .ahead = o->ahead};
    int rc = lib(uf_malloc(j->world, all * sizeof(float), 0, (void **)&j->whole));
    rc = rc ? rc : lib(uf_tiles_create(uf_team_world(j->world), &t, &j->gather));
    t.kind = UF_TILES_REDUCE_SCATTER;
    return rc ? rc : lib(uf_tiles_create(uf_team_world(j->world), &t, &j->reduce));
}

/* Adds up what was wrong anywhere; PE 0 reports. */
static int report(job *j, int wrong)
{
    int32_t *sum = NULL, mine = wrong;
    int rc = lib(uf_malloc(j->world, sizeof *sum, 0, (void **)&sum));
    rc = rc ? rc : lib(uf_reduce(uf_team_world(j->world), sum, &mine, 1, UF_INT32, UF_SUM));
    if (rc || j->me != 0)
        return rc;
    double ms[] = {(double)j->fused_ns / 1e6, (double)j->apart_ns / 1e6, (double)j->gather_ns / 1e6,
                   (double)j->backward_ns / 1e6};
    printf(
        j->o.json
            ? "{\"example\":\"allgather-gemm\",\"pes\":%d,\"rows\":%d,\"inner\":%d,\"tokens\":%d,\"layers\":%d,\"fused_ms\":%.3f,"
              "\"apart_ms\":%.3f,\"gather_ms\":%.3f,\"reduce_scatter_ms\":%.3f,\"wrong\":%d}\n"
            : "all-gather and GEMM over %d PEs: W %d x %d, %d tokens, %d layers\n"
              "  by tiles, product beside the gather: %.1f ms; one after the other: %.1f ms, of which the gather %.1f ms\n"
              "  gradients, reduce-scatter by tiles: %.1f ms\n  bitwise differences: %d\n",
        j->n_pes, j->o.rows, j->o.inner, j->o.tokens, j->o.layers, ms[0], ms[1], ms[2], ms[3], *sum);
    return *sum ? -1 : UF_OK;
}

static const char usage[] =
    "usage: unfence run -n PES -- allgather-gemm [options]\n"
    "A layer whose weight is spread over the PEs: products run while tiles of the weight arrive, gradients are summed by tiles.\n"
    "  --rows N      rows of the weight, outputs (601)\n"
    "  --inner N     numbers of a row (256)\n"
    "  --tokens N    inputs of each PE (32)\n"
    "  --tile N      rows of a tile (16)\n"
    "  --layers N    weights, one after the other (3)\n"
    "  --ahead N     tiles sent by one call at most; 0: all (0)\n"
    "  --json        prints one JSON object\n"
    "Exit code: 0 if all was right to the bit, 1 if not or a call failed, 2 for a wrong command line.\n";

/* 0, 2 for a wrong command line, 3 if help was asked for. */
static int parse(int argc, char **argv, options *o)
{
    enum { JSON = 1, HELP, NUMBERS };
    static const struct option known[] = {
        {"json", 0, 0, JSON},          {"help", 0, 0, HELP},          {"rows", 1, 0, NUMBERS},
        {"inner", 1, 0, NUMBERS + 1},  {"tokens", 1, 0, NUMBERS + 2}, {"tile", 1, 0, NUMBERS + 3},
        {"layers", 1, 0, NUMBERS + 4}, {"ahead", 1, 0, NUMBERS + 5},  {0, 0, 0, 0}};
    const struct {
        const char *name;
        int least, *to;
    } limits[] = {{"rows", 0, &o->rows}, {"inner", 1, &o->inner},   {"tokens", 0, &o->tokens},
                  {"tile", 1, &o->tile}, {"layers", 1, &o->layers}, {"ahead", 0, &o->ahead}};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == '?' || c == HELP)
            return c == HELP ? 3 : 2;
        o->json |= c == JSON;
        if (c < NUMBERS)
            continue;
        char *end;
        long v = strtol(optarg, &end, 10);
        if (!*optarg || *end || v < limits[c - NUMBERS].least || v > 1 << 20) {
            fprintf(stderr, "allgather-gemm: --%s %s: a whole number from %d to %d is needed\n", limits[c - NUMBERS].name, optarg,
                    limits[c - NUMBERS].least, 1 << 20);
            return 2;
        }
        *limits[c - NUMBERS].to = (int)v;
    }
    return 0;
}

int main(int argc, char **argv)
{
    job j = {.o = {601, 256, 32, 16, 3, 0, 0}};
    int wrong = 0, rc = parse(argc, argv, &j.o);
    const char *pe = getenv("UNFENCE_PE");
    if (rc == 3 && (!pe || !strcmp(pe, "0")))
        fputs(usage, stdout);
    if (rc)
        return rc == 3 ? 0 : rc;
    rc = lib(uf_world_create(NULL, &j.world));
    j.me = uf_world_pe(j.world);
    j.n_pes = uf_world_n_pes(j.world);
    rc = rc ? rc : set_up(&j);
    rc = rc ? rc : run(&j, &wrong);
    if (rc && j.world) /* the others wait for this PE */
        uf_world_abort(j.world, "a PE of allgather-gemm gave up");
    rc = rc ? rc : report(&j, wrong);
    int ended[] = {uf_tiles_destroy(j.reduce), uf_tiles_destroy(j.gather), uf_world_destroy(j.world)};
    for (size_t i = 0; i < sizeof ended / sizeof *ended; i++)
        rc = rc ? rc : lib(ended[i]);
    void *all[] = {j.x, j.y, j.wanted, j.share, j.gradient, j.sum, j.part};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return rc ? 1 : 0;
}
