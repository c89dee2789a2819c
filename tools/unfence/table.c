/* table.c - the same rows as report.h's JSON, for people: one line a row, columns aligned, ratios named by what they are against. */
#include "options.h"
#include "report.h"
#include <inttypes.h>
#include <string.h>

/* Four significant digits whatever the size: 0.1050, 17.24, 1289, 34.12 M. */
static const char *short_number(double value, char text[24])
{
    double magnitude = value < 0 ? -value : value;
    if (magnitude >= 1e6) {
        snprintf(text, 24, "%.2f M", value / 1e6);
        return text;
    }
    int digits = magnitude >= 1000 ? 0 : magnitude >= 100 ? 1 : magnitude >= 10 ? 2 : magnitude >= 1 ? 3 : 4;
    snprintf(text, 24, "%.*f", digits, value);
    return text;
}

void report_table(FILE *out, const report_row *rows, size_t n)
{
    fprintf(out, "%-11s %-9s %-12s %9s %8s %5s  %-22s %11s %11s %11s  %s\n", "bench", "fabric", "policy", "bytes", "inflight",
            "peers", "what", "p50", "p99", "p99.9", "unit");
    for (size_t i = 0; i < n; i++) {
        const report_row *row = &rows[i];
        char what[48], bytes[24], p50[24], p99[24], p999[24];
        snprintf(what, sizeof what, "%s%s%s", report_metric_name(row->metric), row->metric == REPORT_RATIO ? " to " : "",
                 row->metric == REPORT_RATIO ? row->against : "");
        fprintf(out, "%-11s %-9s %-12s %9s %8" PRIu32 " %5" PRIu32 "  %-22s %11s %11s %11s  %s\n", row->bench, row->fabric,
                row->policy, tool_format_bytes(row->bytes, bytes), row->inflight, row->peers, what, short_number(row->p50, p50),
                short_number(row->p99, p99), short_number(row->p999, p999), row->unit);
    }
}

void report_target_table(FILE *out, const report_target *targets, size_t n)
{
    size_t width = 4;
    for (size_t i = 0; i < n; i++) {
        if (strlen(targets[i].line) > width)
            width = strlen(targets[i].line);
    }
    fprintf(out, "%-*s  %12s  %-18s %s\n", (int)width, "line", "measured", "target", "met");
    for (size_t i = 0; i < n; i++) {
        const report_target *target = &targets[i];
        char measured[24], bound[24], wanted[64];
        snprintf(wanted, sizeof wanted, "%s %s %s", target->at_most ? "<=" : ">=", short_number(target->bound, bound),
                 target->unit);
        fprintf(out, "%-*s  %12s  %-18s %s\n", (int)width, target->line,
                target->measured_here ? short_number(target->measured, measured) : "-", wanted,
                !target->measured_here      ? "not measured here"
                : report_target_met(target) ? "yes"
                                            : "NO");
    }
}
