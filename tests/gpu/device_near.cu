/* device_near.cu - the device API between near peers, tested on whatever GPUs are here: one is enough.
 *
 * device_near [--quick] [--first-failure] [--gpus N] [--pes N] [--part rma|sync|mover|checked]
 * Prints one line a promise and "N passed, N failed". --quick: a small set on two PEs in one launch, for compute-sanitizer.
 * --first-failure: ends with it.
 * Kernels verify every byte right after the wait that allows it; what is wrong is counted by the kernel that sees it. */
#include "near.cuh"

void near_report(near_run *n, const char *promise, uint64_t host_faults)
{
    rig_synchronize(&n->r);
    rig_faults first = {};
    unsigned long long faults = host_faults + (unsigned long long)n->r.refused;
    n->r.refused = 0;
    int where = -1;
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        rig_faults f;
        rig_read(&n->r, pe, &f, n->r.pe[pe].faults, sizeof f);
        faults += f.count;
        if (f.count && where < 0)
            first = f, where = pe;
    }
    if (faults == 0) {
        n->passed++;
        printf("ok      %s\n", promise);
        return;
    }
    n->failed++;
    printf("FAILED  %s: %llu faults, %llu of them found by the host; first on PE %d: check %llu (%llu, %llu)\n", promise, faults,
           (unsigned long long)host_faults, where, first.code, first.a, first.b);
    for (int pe = 0; pe < n->r.n_pes; pe++) {
        ufd_error e;
        rig_read(&n->r, pe, &e, n->r.pe[pe].error, sizeof e);
        if (e.count)
            printf("        PE %d: %u failures, first code %d in %u, peer %d, block %u thread %u, address %llx, %llu, %llu\n", pe,
                   e.count, e.code, e.what, e.pe, e.block[0], e.thread[0],
                   (unsigned long long)(e.address - n->r.pe[pe].shape.heap), (unsigned long long)e.given,
                   (unsigned long long)e.wanted);
    }
    fflush(stdout);
    if (n->first_failure)
        throw near_over();
}

static int number(int argc, char **argv, const char *name, int otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return atoi(argv[i + 1]);
    return otherwise;
}

static const char *word(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return otherwise;
}

static void near_parts(near_run *n, const char *part)
{
    if (!strcmp(part, "all") || !strcmp(part, "rma"))
        near_rma(n);
    if (!strcmp(part, "all") || !strcmp(part, "sync"))
        near_sync(n);
    if (!strcmp(part, "all") || !strcmp(part, "mover"))
        near_mover(n);
    if (!strcmp(part, "all") || !strcmp(part, "checked"))
        near_checked(n);
}

int main(int argc, char **argv)
{
    static near_run n;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is ended from outside has told how far it came */
    const char *part = word(argc, argv, "--part", "all");
    for (int i = 1; i < argc; i++) {
        n.quick = n.quick || !strcmp(argv[i], "--quick");
        n.first_failure = n.first_failure || !strcmp(argv[i], "--first-failure");
    }
    int most_gpus = number(argc, argv, "--gpus", 8), pes = number(argc, argv, "--pes", n.quick ? 2 : 4);
    try {
        rig_open(&n.r, pes, most_gpus, NEAR_HEAP, n.quick);
        printf("# %d PEs on %d GPU%s%s\n", n.r.n_pes, n.r.n_gpus, n.r.n_gpus > 1 ? "s" : "", n.quick ? ", quick" : "");
        near_parts(&n, part);
    } catch (const near_over &) {
        printf("# ends with its first failure\n");
    } catch (const rig_failure &) {
        n.failed++;
    }
    printf("%d passed, %d failed\n", n.passed, n.failed);
    return n.failed != 0 || n.passed == 0;
}
