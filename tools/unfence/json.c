/* json.c - the one JSON that all benchmarks share (report.h), made with json-c so that quoting is never ours to get wrong. */
#include "host.h"
#include "report.h"
#include <json-c/json.h>

#define REPORT_VERSION 1

const char *report_metric_name(report_metric metric)
{
    switch (metric) {
    case REPORT_LATENCY:
        return "latency";
    case REPORT_BANDWIDTH:
        return "bandwidth";
    case REPORT_RATE:
        return "rate";
    case REPORT_RATIO:
        return "ratio";
    case REPORT_COUNT:
        return "count";
    }
    return "?";
}

bool report_target_met(const report_target *target)
{
    if (!target->measured_here)
        return false;
    return target->at_most ? target->measured <= target->bound : target->measured >= target->bound;
}

static void add_text(json_object *object, const char *key, const char *value)
{
    json_object_object_add(object, key, json_object_new_string(value));
}

static void add_whole(json_object *object, const char *key, uint64_t value)
{
    json_object_object_add(object, key, json_object_new_int64((int64_t)value));
}

static void add_number(json_object *object, const char *key, double value)
{
    /* json-c prints doubles with 17 digits; six significant ones are all that a measurement has. */
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    json_object_object_add(object, key, json_object_new_double_s(value, text));
}

static json_object *row_json(const report_row *row)
{
    json_object *object = json_object_new_object();
    add_text(object, "bench", row->bench);
    add_text(object, "fabric", row->fabric);
    add_text(object, "policy", row->policy);
    add_whole(object, "bytes", row->bytes);
    add_whole(object, "inflight", row->inflight);
    add_whole(object, "peers", row->peers);
    add_text(object, "metric", report_metric_name(row->metric));
    add_text(object, "unit", row->unit);
    add_number(object, "p50", row->p50);
    add_number(object, "p99", row->p99);
    add_number(object, "p999", row->p999);
    add_number(object, "min", row->min);
    add_number(object, "max", row->max);
    add_whole(object, "n", row->n);
    if (row->metric == REPORT_RATIO)
        add_text(object, "against", row->against);
    return object;
}

static json_object *target_json(const report_target *target)
{
    json_object *object = json_object_new_object();
    add_text(object, "line", target->line);
    if (target->measured_here)
        add_number(object, "measured", target->measured);
    else
        json_object_object_add(object, "measured", NULL);
    add_text(object, "unit", target->unit);
    add_text(object, "bound", target->at_most ? "at most" : "at least");
    add_number(object, "target", target->bound);
    json_object_object_add(object, "met", json_object_new_boolean(report_target_met(target)));
    return object;
}

int report_json(FILE *out, const char *result, const report_row *rows, size_t n, const report_target *targets, size_t n_targets)
{
    json_object *root = json_object_new_object();
    if (!root)
        return -1;
    add_whole(root, "version", REPORT_VERSION);
    add_text(root, "result", result);
    json_object_object_add(root, "host", host_json());
    json_object *list = json_object_new_array();
    for (size_t i = 0; i < n; i++)
        json_object_array_add(list, row_json(&rows[i]));
    json_object_object_add(root, "rows", list);
    if (n_targets > 0) {
        json_object *judged = json_object_new_array();
        for (size_t i = 0; i < n_targets; i++)
            json_object_array_add(judged, target_json(&targets[i]));
        json_object_object_add(root, "targets", judged);
    }
    int rc = fprintf(out, "%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY)) < 0 ? -1 : 0;
    json_object_put(root);
    return fflush(out) != 0 ? -1 : rc;
}
