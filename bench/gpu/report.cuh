/* report.cuh - rows of measurements: collected, printed as a table, written in the JSON that all benchmarks of the project share.
 *
 * The JSON's shape is docs/benchmarks.md's: {"version", "host", "rows", "targets"}; a row has the same fields whoever measured. Written by
 * hand here: this program is built where nvcc is and links nothing else. Texts are our own and need no escapes. */
#ifndef UNFENCE_BENCH_GPU_REPORT_CUH
#define UNFENCE_BENCH_GPU_REPORT_CUH

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

struct report_row {
    std::string bench, fabric, policy;
    uint64_t bytes;
    uint32_t inflight; /* blocks that send */
    std::string metric, unit, against;
    double p50, p99, p999, min, max;
    uint64_t n;
};

struct report_target {
    std::string line, unit;
    double measured, bound;
    bool at_most, here;
};

struct report {
    std::string fabric, gpu, driver;
    int gpus;
    std::vector<report_row> rows;
    std::vector<report_target> targets;
};

static inline double report_at(const std::vector<double> &sorted, double part)
{
    size_t i = (size_t)(part * (double)sorted.size());
    return sorted[i < sorted.size() ? i : sorted.size() - 1];
}

/* Adds a row of `samples` and prints it. Returns the median. */
static inline double report_add(report *r, const char *bench, const char *policy, uint64_t bytes, uint32_t inflight,
                                const char *metric, const char *unit, const char *against, std::vector<double> samples)
{
    if (samples.empty())
        return 0;
    std::sort(samples.begin(), samples.end());
    report_row row = {bench,
                      r->fabric,
                      policy,
                      bytes,
                      inflight,
                      metric,
                      unit,
                      against,
                      report_at(samples, 0.5),
                      report_at(samples, 0.99),
                      report_at(samples, 0.999),
                      samples.front(),
                      samples.back(),
                      samples.size()};
    printf("%-15s %-22s %8llu B %4u  %-9s %10.3f %-5s  min %10.3f  p99 %10.3f  n %zu%s%s\n", bench, policy,
           (unsigned long long)bytes, inflight, metric, row.p50, unit, row.min, row.p99, samples.size(),
           *against ? "  against " : "", against);
    fflush(stdout);
    r->rows.push_back(row);
    return row.p50;
}

static inline void report_judge(report *r, const char *line, double measured, const char *unit, double bound, bool at_most)
{
    r->targets.push_back({line, unit, measured, bound, at_most, measured > 0});
}

static inline bool report_met(const report_target &t)
{
    return t.here && (t.at_most ? t.measured <= t.bound : t.measured >= t.bound);
}

static inline void report_targets(const report *r)
{
    printf("\n%-62s %10s %10s\n", "target", "measured", "bound");
    for (const report_target &t : r->targets)
        printf("%-62s %10.3f %s %8.3f %-5s %s\n", t.line.c_str(), t.measured, t.at_most ? "<=" : ">=", t.bound, t.unit.c_str(),
               report_met(t) ? "met" : "MISSED");
}

static inline void report_host(const report *r, FILE *out)
{
    struct utsname u;
    uname(&u);
    double load = 0;
    if (getloadavg(&load, 1) != 1)
        load = 0;
    fprintf(out,
            "{\"version\": 1,\n \"host\": {\"architecture\": \"%s\", \"cores\": %ld, \"memory_bytes\": %lld, \"kernel\": \"%s\", "
            "\"load\": %.2f, "
            "\"gpu\": \"%s\", \"gpus\": %d, \"driver\": \"%s\"},\n \"rows\": [",
            u.machine, sysconf(_SC_NPROCESSORS_ONLN), (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), u.release, load,
            r->gpu.c_str(), r->gpus, r->driver.c_str());
}

static inline bool report_json(const report *r, const char *path)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return false;
    report_host(r, out);
    const char *comma = "";
    for (const report_row &w : r->rows) {
        fprintf(
            out,
            "%s\n  {\"bench\": \"%s\", \"fabric\": \"%s\", \"policy\": \"%s\", \"bytes\": %llu, \"inflight\": %u, \"peers\": 1, "
            "\"metric\": \"%s\", \"unit\": \"%s\", \"p50\": %.6g, \"p99\": %.6g, \"p999\": %.6g, \"min\": %.6g, \"max\": %.6g, "
            "\"n\": %llu",
            comma, w.bench.c_str(), w.fabric.c_str(), w.policy.c_str(), (unsigned long long)w.bytes, w.inflight, w.metric.c_str(),
            w.unit.c_str(), w.p50, w.p99, w.p999, w.min, w.max, (unsigned long long)w.n);
        if (!w.against.empty())
            fprintf(out, ", \"against\": \"%s\"", w.against.c_str());
        fputs("}", out);
        comma = ",";
    }
    fputs("],\n \"targets\": [", out);
    comma = "";
    for (const report_target &t : r->targets) {
        fprintf(
            out,
            "%s\n  {\"line\": \"%s\", \"measured\": %.6g, \"unit\": \"%s\", \"bound\": \"%s\", \"target\": %.6g, \"met\": %s}",
            comma, t.line.c_str(), t.measured, t.unit.c_str(), t.at_most ? "at most" : "at least", t.bound,
            report_met(t) ? "true" : "false");
        comma = ",";
    }
    fputs("]}\n", out);
    return fclose(out) == 0;
}

#endif
