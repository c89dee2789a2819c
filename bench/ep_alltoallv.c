/* ep_alltoallv.c - the rows that `unfence bench ep` dispatches and combines, moved by MPI_Alltoallv instead.
 *
 * A yardstick from outside, built only where MPI is. It gets what favours it: counts are known before, rows are packed before, nothing is
 * placed, added or described afterwards, and the own rows count as moved. Routing is that of the benchmark, number for number, so bytes are
 * the same. Run as: mpirun -n 4 ep-alltoallv [TOKENS HIDDEN TOP_K EXPERTS STEPS], beside unfence bench ep --fabric local --peers 3. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PES = 64, MOST_STEPS = 1000, MOST_TOP_K = 32 };

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* Rows of a PE's tokens to each PE, each token once per PE. */
static void count_rows(int pe, int n_pes, const int *shape, int *rows)
{
    int tokens = shape[0], top_k = shape[2], experts = shape[3];
    for (int token = 0; token < tokens; token++) {
        int lanes[MOST_TOP_K], seen[MOST_PES] = {0};
        for (int k = 0; k < top_k; k++) {
            int expert = (int)(mix(((uint64_t)pe << 32 | (uint64_t)token) * 64 + (uint64_t)k) % (uint64_t)experts);
            for (int earlier = 0; earlier < k; earlier++)
                if (lanes[earlier] == expert) {
                    expert = (expert + 1) % experts;
                    earlier = -1;
                }
            lanes[k] = expert;
            seen[expert / (experts / n_pes)] = 1;
        }
        for (int d = 0; d < n_pes; d++)
            rows[d] += seen[d];
    }
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(int me, int n_pes, const int *shape)
{
    int to[MOST_PES] = {0}, from[MOST_PES] = {0}, first_to[MOST_PES], first_from[MOST_PES], out = 0, in = 0, steps = shape[4];
    count_rows(me, n_pes, shape, to);
    MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
    for (int d = 0; d < n_pes; d++) {
        first_to[d] = out, out += to[d];
        first_from[d] = in, in += from[d];
    }
    size_t row = (size_t)shape[1] * 2;
    unsigned char *x = malloc(((size_t)out + 1) * row), *y = malloc(((size_t)in + 1) * row);
    double took[MOST_STEPS];
    if (!x || !y) {
        free(x);
        free(y);
        return -1;
    }
    memset(x, me + 1, (size_t)out * row);
    memset(y, 0, (size_t)in * row);
    MPI_Datatype rows;
    MPI_Type_contiguous((int)row, MPI_BYTE, &rows);
    MPI_Type_commit(&rows);
    for (int i = -2; i < steps; i++) { /* the first two warm up */
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Alltoallv(x, to, first_to, rows, y, from, first_from, rows, MPI_COMM_WORLD);
        MPI_Alltoallv(y, from, first_from, rows, x, to, first_to, rows, MPI_COMM_WORLD);
        double mine = MPI_Wtime() - start, latest = 0;
        MPI_Allreduce(&mine, &latest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        took[i < 0 ? 0 : i] = latest;
    }
    double moved = 2.0 * out * (double)row, all = 0;
    MPI_Reduce(&moved, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    qsort(took, (size_t)steps, sizeof *took, by_time);
    int sound = out == 0 || (x[0] == me + 1 && x[(size_t)out * row - 1] == me + 1);
    if (me == 0)
        printf("MPI_Alltoallv out and back: %.0f us, %.0f MB/s all PEs (median of %d)\n", took[steps / 2] * 1e6,
               all / took[steps / 2] / 1e6, steps);
    MPI_Type_free(&rows);
    free(x);
    free(y);
    return sound ? 0 : -1;
}

int main(int argc, char **argv)
{
    int shape[5] = {4096, 2048, 8, 128, 20}, me, n_pes;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n_pes);
    for (int i = 0; i < 5 && i + 1 < argc; i++)
        shape[i] = atoi(argv[i + 1]);
    int rc = -1;
    if (n_pes > MOST_PES || shape[0] < 0 || shape[1] < 1 || shape[2] < 1 || shape[2] > MOST_TOP_K || shape[3] < shape[2] ||
        shape[3] % n_pes || shape[4] < 1 || shape[4] > MOST_STEPS)
        fprintf(stderr, "ep-alltoallv: up to %d PEs, up to %d lanes and %d steps, experts a multiple of the PEs\n", MOST_PES,
                MOST_TOP_K, MOST_STEPS);
    else
        rc = measure(me, n_pes, shape);
    MPI_Finalize();
    return rc ? 1 : 0;
}
