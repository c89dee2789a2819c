/* bench_ordering_table.c - what `unfence bench ordering` prints of a point: a table for people, rows for machines. */
#include "bench_ordering.h"
#include <stdlib.h>
#include <string.h>

double ordering_percentile(const ordering_result *result, double part)
{
    size_t rank = (size_t)(part * (double)result->n_latency + 0.999999);
    if (result->n_latency == 0)
        return 0;
    return result->latency[rank == 0 ? 0 : (rank > result->n_latency ? result->n_latency : rank) - 1];
}

double ordering_share(const ordering_point *point, size_t i)
{
    return point->results[0].rate > 0 ? point->results[i].rate / point->results[0].rate : 0;
}

static double a_put(const ordering_result *r, uint64_t count)
{
    return (double)count / (double)r->puts;
}

void ordering_point_name(const ordering_point *point, bool with_size, char *text, size_t bytes)
{
    const ordering_options *o = &point->options;
    char size[24];
    snprintf(text, bytes, "%s%s%u in flight, %u peer%s, round trip %.4g us", with_size ? tool_format_bytes(o->bytes, size) : "",
             with_size ? ", " : "", o->inflight, o->peers, o->peers > 1 ? "s" : "", (double)o->rtt_ns * 1e-3);
}

/* -------------------------------------------------------------- for people */

void ordering_table_head(FILE *out, const ordering_sweep *sweep)
{
    fprintf(
        out,
        "%s: EFA model, profile %s, seed %llu; a CPU takes %llu ns to post a work request and %llu ns for a completion, for all "
        "schemes alike.\nRatios and counts carry over to hardware, microseconds do not.\n",
        ORDERING_LABEL, sweep->model, (unsigned long long)sweep->seed, (unsigned long long)sweep->post_ns,
        (unsigned long long)sweep->cqe_ns);
}

void ordering_table_point(FILE *out, const ordering_point *point)
{
    char name[128];
    ordering_point_name(point, true, name, sizeof name);
    fprintf(out, "\n%s, %u puts (%s)\n", name, point->options.puts, ORDERING_LABEL);
    fprintf(out, "  %-15s %7s %8s   %9s %9s %9s   %6s %6s %6s %7s %8s  %s\n", "policy", "share", "GB/s", "p50 us", "p99 us",
            "p99.9 us", "WRs", "CQEs", "remote", "drains", "receiver", "");
    for (size_t i = 0; i < point->n; i++) {
        const ordering_result *r = &point->results[i];
        char early[48] = "";
        fprintf(out, "  %-15s %7.4f %8.3f   ", point->schemes[i]->name, ordering_share(point, i), r->rate * 1e-9);
        if (r->n_latency)
            fprintf(out, "%9.2f %9.2f %9.2f   ", ordering_percentile(r, 0.5) * 1e-3, ordering_percentile(r, 0.99) * 1e-3,
                    ordering_percentile(r, 0.999) * 1e-3);
        else
            fprintf(out, "%9s %9s %9s   ", "-", "-", "-");
        if (r->early)
            snprintf(early, sizeof early, "%llu SIGNALS BEFORE THEIR BYTES", (unsigned long long)r->early);
        else if (point->schemes[i]->one_by_one)
            snprintf(early, sizeof early, "by the formula %.4f",
                     ordering_drain_formula(r, point->options.bytes) / point->results[0].rate);
        fprintf(out, "%6.3f %6.3f %6.3f %7llu %8.3f  %s\n", a_put(r, r->wrs), a_put(r, r->cqes), a_put(r, r->remote_cqes),
                (unsigned long long)r->drains, a_put(r, r->receiver_work), early);
    }
}

/* -------------------------------------------------------------- for machines */

static report_row *new_row(ordering_rows *rows)
{
    if (rows->n == rows->room) {
        size_t room = rows->room ? rows->room * 2 : 256;
        report_row *more = realloc(rows->rows, room * sizeof *more);
        if (!more)
            return NULL;
        rows->rows = more;
        rows->room = room;
    }
    return &rows->rows[rows->n++];
}

static report_row base_row(const ordering_sweep *sweep, const ordering_point *point, const char *policy)
{
    const ordering_options *o = &point->options;
    report_row row = {.bytes = o->bytes, .inflight = o->inflight, .peers = o->peers, .n = o->puts};
    snprintf(row.bench, sizeof row.bench, "ordering");
    snprintf(row.fabric, sizeof row.fabric, "model:%s/%.4gus", sweep->model, (double)o->rtt_ns * 1e-3);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return row;
}

static int add_one(ordering_rows *rows, report_row row, report_metric metric, const char *unit, double value)
{
    report_row *to = new_row(rows);
    if (!to)
        return -1;
    row.metric = metric;
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    if (metric == REPORT_RATIO)
        snprintf(row.against, sizeof row.against, "unsignalled");
    row.p50 = row.p99 = row.p999 = row.min = row.max = value;
    *to = row;
    return 0;
}

static int add_latency(ordering_rows *rows, report_row row, const ordering_result *r)
{
    if (!r->n_latency)
        return 0;
    if (add_one(rows, row, REPORT_LATENCY, "us", 0) != 0)
        return -1;
    report_row *to = &rows->rows[rows->n - 1];
    to->p50 = ordering_percentile(r, 0.5) * 1e-3;
    to->p99 = ordering_percentile(r, 0.99) * 1e-3;
    to->p999 = ordering_percentile(r, 0.999) * 1e-3;
    to->min = r->latency[0] * 1e-3;
    to->max = r->latency[r->n_latency - 1] * 1e-3;
    to->n = r->n_latency;
    return 0;
}

int ordering_rows_add(ordering_rows *rows, const ordering_sweep *sweep, const ordering_point *point)
{
    int rc = 0;
    for (size_t i = 0; i < point->n && rc == 0; i++) {
        const ordering_result *r = &point->results[i];
        report_row row = base_row(sweep, point, point->schemes[i]->name);
        const struct {
            const char *unit;
            double value;
        } counts[] = {
            {"WRs/put", a_put(r, r->wrs)},       {"data WRs/put", a_put(r, r->data_wrs)},
            {"CQEs/put", a_put(r, r->cqes)},     {"remote CQEs/put", a_put(r, r->remote_cqes)},
            {"drains", (double)r->drains},       {"receiver work/put", a_put(r, r->receiver_work)},
            {"early signals", (double)r->early},
        };
        rc = add_one(rows, row, REPORT_BANDWIDTH, "MB/s", r->rate * 1e-6);
        rc = rc ? rc : add_one(rows, row, REPORT_RATIO, "x", ordering_share(point, i));
        rc = rc ? rc : add_latency(rows, row, r);
        for (size_t c = 0; c < sizeof counts / sizeof *counts && rc == 0; c++)
            rc = add_one(rows, row, REPORT_COUNT, counts[c].unit, counts[c].value);
        if (rc == 0 && point->schemes[i]->one_by_one)
            rc = add_one(rows, base_row(sweep, point, "drain-formula"), REPORT_RATIO, "x",
                         ordering_drain_formula(r, point->options.bytes) / point->results[0].rate);
    }
    return rc;
}
