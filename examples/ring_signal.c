/* ring_signal.c - a ring reduce-scatter in chunks, signalled in the two ways that are right on a network without order.
 *
 * The tempting way is wrong: one counter for all chunks, each weak put adding 1, and "the counter is 3, so chunks 0 to 2 are here".
 * Weak signals of different puts may become visible in any order, so a counter tells how many came, not which. Right are:
 *   weak    one signal word for each (source, slot): the source is the left neighbour, a slot is one chunk of one step;
 *   strong  one counter for all, as a strong signal is visible only after all earlier puts of its lane.
 * The network never waits in either. Start it with: unfence run -n 4 -- ring_signal [weak|strong] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unfence/unfence.h>

#define CHUNKS   8   /* of a block: that many puts to the neighbour in flight at once */
#define ELEMENTS 512 /* of a chunk */
#define ROUNDS   20
#define TIMEOUT  (20 * 1000000000ull)

typedef int64_t chunk[ELEMENTS];

typedef struct ring {
    uf_world *world;
    uf_ctx *ctx;
    int pe, n_pes;
    int strong;
    chunk *inbox;    /* symmetric: [(n_pes - 1) * CHUNKS] slots, written by the left neighbour */
    uint64_t *words; /* symmetric: one a slot; strong uses the first one only */
    chunk *blocks;   /* symmetric: [n_pes * CHUNKS], this PE's vector */
} ring;

static int64_t start_value(int pe, int index, int round)
{
    return (int64_t)pe * 1000 + index + round;
}

static int send_chunk(ring *r, int slot, const chunk *source)
{
    int right = (r->pe + 1) % r->n_pes;
    uint64_t *word = r->strong ? r->words : &r->words[slot];
    return uf_put_signal_nbi(r->ctx, r->inbox[slot], source, sizeof *source, word, UF_SIGNAL_ADD, 1, right,
                             r->strong ? UF_STRONG : UF_WEAK);
}

/* Slots are used once a round, in increasing order: so many signals make slot number `slot` arrived. Words only grow. */
static int wait_chunk(ring *r, int slot, int round)
{
    int slots = (r->n_pes - 1) * CHUNKS;
    if (r->strong)
        return uf_wait(r->world, r->words, UF_GE, (uint64_t)(round * slots + slot + 1), TIMEOUT);
    return uf_wait(r->world, &r->words[slot], UF_GE, (uint64_t)round + 1, TIMEOUT);
}

/* At step s a PE sends block (pe - s) on and adds what arrives to block (pe - s - 1), which it sends at the next step. */
static int reduce_scatter(ring *r, int round)
{
    for (int step = 0; step < r->n_pes - 1; step++) {
        int out = (r->pe - step + r->n_pes) % r->n_pes, in = (out - 1 + r->n_pes) % r->n_pes;
        for (int c = 0; c < CHUNKS; c++) {
            int rc = send_chunk(r, step * CHUNKS + c, (const chunk *)&r->blocks[out * CHUNKS + c]);
            if (rc != UF_OK)
                return rc;
        }
        for (int c = 0; c < CHUNKS; c++) {
            int rc = wait_chunk(r, step * CHUNKS + c, round);
            if (rc != UF_OK)
                return rc;
            for (int i = 0; i < ELEMENTS; i++)
                r->blocks[in * CHUNKS + c][i] += r->inbox[step * CHUNKS + c][i];
        }
    }
    return UF_OK;
}

/* Block (pe + 1) holds the sum over all PEs now. Returns how many elements are wrong. */
static int count_wrong(const ring *r, int round)
{
    int block = (r->pe + 1) % r->n_pes, wrong = 0;
    for (int c = 0; c < CHUNKS; c++) {
        for (int i = 0; i < ELEMENTS; i++) {
            int64_t sum = 0;
            for (int pe = 0; pe < r->n_pes; pe++)
                sum += start_value(pe, (block * CHUNKS + c) * ELEMENTS + i, round);
            wrong += r->blocks[block * CHUNKS + c][i] != sum;
        }
    }
    return wrong;
}

static int run(ring *r)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int c = 0; c < r->n_pes * CHUNKS; c++) {
            for (int i = 0; i < ELEMENTS; i++)
                r->blocks[c][i] = start_value(r->pe, c * ELEMENTS + i, round);
        }
        int rc = reduce_scatter(r, round);
        if (rc != UF_OK)
            return rc;
        int wrong = count_wrong(r, round);
        if (wrong > 0) {
            fprintf(stderr, "ring_signal: PE %d: %d wrong elements in round %d\n", r->pe, wrong, round);
            exit(1);
        }
        /* Sources may change and slots be written again only when everybody is through. */
        rc = uf_barrier(uf_team_world(r->world));
        if (rc != UF_OK)
            return rc;
    }
    return UF_OK;
}

static int run_variant(uf_world *world, int strong)
{
    ring r = {.world = world, .ctx = uf_ctx_default(world), .strong = strong};
    r.pe = uf_world_pe(world);
    r.n_pes = uf_world_n_pes(world);
    size_t slots = (size_t)r.n_pes * CHUNKS;
    int rc = uf_malloc(world, slots * sizeof(chunk), 0, (void **)&r.inbox);
    if (rc == UF_OK)
        rc = uf_malloc(world, slots * sizeof(chunk), 0, (void **)&r.blocks);
    if (rc == UF_OK)
        rc = uf_signal_alloc(world, slots, UF_SIGNAL_DEFAULT, &r.words);
    if (rc == UF_OK)
        rc = run(&r);
    if (rc == UF_OK && r.pe == 0)
        printf("%s: %d rounds of %d PEs, all sums right\n", strong ? "strong" : "weak", ROUNDS, r.n_pes);
    return rc;
}

int main(int argc, char **argv)
{
    uf_world *world;
    int weak = argc < 2 || strcmp(argv[1], "weak") == 0, strong = argc < 2 || strcmp(argv[1], "strong") == 0;
    if (!weak && !strong) {
        fprintf(stderr, "usage: ring_signal [weak|strong]\n");
        return 2;
    }
    int rc = uf_world_create(NULL, &world);
    if (rc == UF_OK && weak)
        rc = run_variant(world, 0);
    if (rc == UF_OK && strong)
        rc = run_variant(world, 1);
    if (rc != UF_OK) {
        fprintf(stderr, "ring_signal: %s\n", uf_error_message());
        return 1;
    }
    return uf_world_destroy(world) == UF_OK ? 0 : 1;
}
