/* moe_report.c - see moe_report.h. Standard output gets the table or the JSON and nothing else; progress goes to standard error. */
#include "moe_report.h"
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- progress */

void moe_progress(const char *what, uint64_t done, uint64_t all)
{
    enum { WIDTH = 30 };
    static time_t last;
    if (isatty(2)) {
        char bar[WIDTH + 1];
        uint64_t full = all ? done * WIDTH / all : WIDTH;
        memset(bar, '.', WIDTH);
        memset(bar, '#', full);
        bar[WIDTH] = 0;
        fprintf(stderr, "\r%-10s [%s] %3u %%%s", what, bar, (unsigned)(all ? done * 100 / all : 100), done == all ? "\n" : "");
        fflush(stderr);
        return;
    }
    time_t now = time(NULL);
    if (done == all || now >= last + 3)
        fprintf(stderr, "%s: %u %% (batch layer %llu of %llu)\n", what, (unsigned)(all ? done * 100 / all : 100),
                (unsigned long long)done, (unsigned long long)all);
    if (done == all || now >= last + 3)
        last = now;
}

/* ---------------------------------------------------------------- verdicts */

static uint64_t total(const moe_job *job, const moe_run *run, size_t field)
{
    uint64_t sum = 0;
    for (int pe = 0; pe < job->n_pes; pe++) {
        uint64_t v;
        memcpy(&v, (const char *)&run->pes[pe] + field, sizeof v);
        sum += v;
    }
    return sum;
}

#define TOTAL(job, run, field) total(job, run, offsetof(moe_pe, field))

static int same_as_first(const moe_job *job, const moe_run *run)
{
    for (int pe = 0; pe < job->n_pes; pe++)
        if (run->pes[pe].digest != job->runs[0].pes[pe].digest)
            return 0;
    return 1;
}

int moe_job_sound(const moe_job *job)
{
    for (int r = 0; r < job->n_runs; r++)
        if (TOTAL(job, &job->runs[r], wrong) || !same_as_first(job, &job->runs[r]))
            return 0;
    return 1;
}

static double per_put(const moe_pe *p, uint64_t wrs)
{
    return p->signalled ? (double)wrs / (double)p->signalled : 0;
}

/* ---------------------------------------------------------------- table */

static void table_of(const moe_job *job, const moe_run *run)
{
    printf("\nover %s (%s), %.1f s\n", run->fabric, run->provider, run->seconds);
    printf("              rows            dispatch us       combine us     megabytes                      work requests a "
           "put\n");
    printf(" PE  tokens   sent received     p50     p99     p50     p99   local network   puts signals   data signal control "
           "fences\n");
    for (int pe = 0; pe < job->n_pes; pe++) {
        const moe_pe *p = &run->pes[pe];
        printf("%3d %7llu %6llu %8llu %7.0f %7.0f %7.0f %7.0f %7.1f %7.1f %6llu %7llu", pe, (unsigned long long)p->tokens,
               (unsigned long long)p->sent, (unsigned long long)p->received, p->dispatch_p50, p->dispatch_p99, p->combine_p50,
               p->combine_p99, (double)p->bytes_local / 1e6, (double)p->bytes_network / 1e6, (unsigned long long)p->puts,
               (unsigned long long)p->signals);
        if (p->signalled)
            printf(" %6.3f %6.3f %7.4f", per_put(p, p->data_wrs), per_put(p, p->signal_wrs), per_put(p, p->control_wrs));
        else
            printf("      -      -       -");
        printf(" %6llu\n", (unsigned long long)p->fences);
    }
    uint64_t checked = TOTAL(job, run, checked), wrong = TOTAL(job, run, wrong);
    if (checked)
        printf("check: %s: %llu of %llu numbers are bitwise those of the same layers in one process\n",
               wrong ? "FAILED" : "passed", (unsigned long long)(checked - wrong), (unsigned long long)checked);
    else if (job->check && !TOTAL(job, run, tokens))
        printf("check: nothing to compare: there was no text to route\n");
}

void moe_report_table(const moe_job *job)
{
    printf("MoE layer: %llu bytes of text from %d file%s over %d PE%s, %d layers, hidden %d, top %d of %d experts, %d tokens a "
           "batch and PE, %d batch%s%s\n",
           (unsigned long long)(job->n_runs ? TOTAL(job, &job->runs[0], tokens) : 0), job->text_files,
           job->text_files == 1 ? "" : "s", job->n_pes, job->n_pes == 1 ? "" : "s", job->layers, job->hidden, job->top_k,
           job->experts, job->tokens, job->batches, job->batches == 1 ? "" : "es",
           job->text_cut ? " (--batches 0 takes the whole text)" : "");
    for (int r = 0; r < job->n_runs; r++)
        table_of(job, &job->runs[r]);
    printf("\n");
    for (int r = 1; r < job->n_runs; r++)
        printf("%s and %s: %s\n", job->runs[0].asked, job->runs[r].asked,
               same_as_first(job, &job->runs[r]) ? "bitwise the same results" : "FAILED: the results differ");
    if (!job->check)
        printf("not checked against one process (--no-check)\n");
}

/* ---------------------------------------------------------------- JSON */

static void add_count(struct json_object *o, const char *key, uint64_t v)
{
    json_object_object_add(o, key, json_object_new_int64((int64_t)v));
}

static void add_number(struct json_object *o, const char *key, double v)
{
    json_object_object_add(o, key, json_object_new_double(v));
}

static struct json_object *pe_json(int number, const moe_pe *p)
{
    struct json_object *o = json_object_new_object();
    add_count(o, "pe", (uint64_t)number);
    add_count(o, "tokens", p->tokens);
    add_count(o, "rows_sent", p->sent);
    add_count(o, "rows_received", p->received);
    add_count(o, "dispatches", p->dispatches);
    add_number(o, "dispatch_us_p50", p->dispatch_p50);
    add_number(o, "dispatch_us_p99", p->dispatch_p99);
    add_number(o, "combine_us_p50", p->combine_p50);
    add_number(o, "combine_us_p99", p->combine_p99);
    add_number(o, "waited_dispatch_ms", p->late_dispatch);
    add_number(o, "waited_combine_ms", p->late_combine);
    json_object_object_add(o, "latest_pe", p->late_pe < 0 ? NULL : json_object_new_int64(p->late_pe));
    add_count(o, "bytes_local", p->bytes_local);
    add_count(o, "bytes_network", p->bytes_network);
    add_count(o, "puts", p->puts);
    add_count(o, "signals", p->signals);
    add_count(o, "signalled_network_puts", p->signalled);
    add_count(o, "data_wrs", p->data_wrs);
    add_count(o, "signal_wrs", p->signal_wrs);
    add_count(o, "control_wrs", p->control_wrs);
    json_object_object_add(o, "data_wrs_per_signalled_put",
                           p->signalled ? json_object_new_double(per_put(p, p->data_wrs)) : NULL);
    json_object_object_add(o, "signal_wrs_per_signalled_put",
                           p->signalled ? json_object_new_double(per_put(p, p->signal_wrs)) : NULL);
    json_object_object_add(o, "control_wrs_per_signalled_put",
                           p->signalled ? json_object_new_double(per_put(p, p->control_wrs)) : NULL);
    add_count(o, "fences", p->fences);
    add_count(o, "eagain", p->eagain);
    add_count(o, "checked", p->checked);
    add_count(o, "wrong", p->wrong);
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)p->digest);
    json_object_object_add(o, "digest", json_object_new_string(digest));
    return o;
}

static struct json_object *run_json(const moe_job *job, const moe_run *run)
{
    struct json_object *o = json_object_new_object(), *pes = json_object_new_array();
    json_object_object_add(o, "asked", json_object_new_string(run->asked));
    json_object_object_add(o, "fabric", json_object_new_string(run->fabric));
    json_object_object_add(o, "provider", json_object_new_string(run->provider));
    add_number(o, "seconds", run->seconds);
    add_count(o, "checked", TOTAL(job, run, checked));
    add_count(o, "wrong", TOTAL(job, run, wrong));
    json_object_object_add(o, "same_as_first", json_object_new_boolean(same_as_first(job, run)));
    for (int pe = 0; pe < job->n_pes; pe++)
        json_object_array_add(pes, pe_json(pe, &run->pes[pe]));
    json_object_object_add(o, "pes", pes);
    return o;
}

int moe_report_json(const moe_job *job)
{
    json_c_set_serialization_double_format("%.3f", JSON_C_OPTION_GLOBAL);
    struct json_object *o = json_object_new_object(), *shape = json_object_new_object(), *runs = json_object_new_array();
    if (!o || !shape || !runs)
        return -1;
    const struct {
        const char *key;
        uint64_t v;
    } numbers[] = {{"n_pes", (uint64_t)job->n_pes},
                   {"layers", (uint64_t)job->layers},
                   {"hidden", (uint64_t)job->hidden},
                   {"inner", (uint64_t)job->inner},
                   {"experts", (uint64_t)job->experts},
                   {"top_k", (uint64_t)job->top_k},
                   {"tokens", (uint64_t)job->tokens},
                   {"batches", (uint64_t)job->batches},
                   {"seed", job->seed},
                   {"text_bytes", job->n_runs ? TOTAL(job, &job->runs[0], tokens) : 0},
                   {"text_files", (uint64_t)job->text_files}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_count(shape, numbers[i].key, numbers[i].v);
    json_object_object_add(o, "version", json_object_new_int(1));
    json_object_object_add(o, "program", json_object_new_string("moe-layer"));
    json_object_object_add(o, "passed", json_object_new_boolean(moe_job_sound(job)));
    json_object_object_add(o, "checked_against_one_process", json_object_new_boolean(job->check));
    json_object_object_add(o, "job", shape);
    for (int r = 0; r < job->n_runs; r++)
        json_object_array_add(runs, run_json(job, &job->runs[r]));
    json_object_object_add(o, "runs", runs);
    puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
    return 0;
}
