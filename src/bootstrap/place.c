/* place.c - reads from the environment which PE this is, of how many, and where PE 0 is. Pure: no network, no
 * clock, no getenv.
 *
 * Three launchers are understood, in this order: `unfence run` (or the same three variables set by hand),
 * torchrun, Slurm. A set that is begun must be complete: a half-set environment that silently became "one PE"
 * would cost its user hours, so the missing or wrong variable is named instead. Ports that no launcher gives
 * are derived from the job's own numbers, equally on all PEs, as a block "host:port+8" whose ports are tried
 * in order. */
#include "bootstrap/place.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_FIRST  16384
#define PORT_BLOCKS 1800
#define MAX_PES     1048576

static const char *find(const char *const *environment, const char *name)
{
    size_t n = strlen(name);
    for (; environment && *environment; environment++)
        if (!strncmp(*environment, name, n) && (*environment)[n] == '=')
            return (*environment)[n + 1] ? *environment + n + 1 : NULL; /* empty counts as unset */
    return NULL;
}

/* The value of `name` as a number in [min, max]; `because` says which variable made us ask. */
static int number(const char *const *environment, const char *name, const char *because, long min, long max, long *out)
{
    const char *text = find(environment, name);
    if (!text)
        return uf_fail(UF_EINVAL, "%s is set but %s is not: set both, or neither", because, name);
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || text[0] < '0' || text[0] > '9' || strlen(text) > 10 || value < min || value > max)
        return uf_fail(UF_EINVAL, "%s is \"%.64s\": a number from %ld to %ld is needed", name, text, min, max);
    *out = value;
    return UF_OK;
}

/* rank of count; `count_name` must exceed `rank_name`. */
static int rank_and_count(const char *const *environment, const char *rank_name, const char *count_name,
                          uf_bootstrap_place *place)
{
    long rank = 0, count = 1;
    int rc = number(environment, rank_name, count_name, 0, MAX_PES - 1, &rank);
    if (!rc)
        rc = number(environment, count_name, rank_name, 1, MAX_PES, &count);
    if (rc)
        return rc;
    if (rank >= count)
        return uf_fail(UF_EINVAL, "%s is %ld, but %s is %ld: ranks go from 0 to %ld", rank_name, rank, count_name, count,
                       count - 1);
    place->pe = (int)rank;
    place->n_pes = (int)count;
    return UF_OK;
}

static int root_text(const char *name, const char *host, unsigned port, unsigned ports, uf_bootstrap_place *place)
{
    bool bare6 = strchr(host, ':') && host[0] != '[';
    int n = snprintf(place->root, sizeof place->root, ports > 1 ? "%s%s%s:%u+%u" : "%s%s%s:%u", bare6 ? "[" : "", host,
                     bare6 ? "]" : "", port, ports);
    if (n < 0 || (size_t)n >= sizeof place->root)
        return uf_fail(UF_EINVAL, "%s is longer than a host name can be", name);
    return UF_OK;
}

uint16_t uf_place_derived_port(const char *job, uint16_t avoid)
{
    uint64_t h = uf_frame_hash(job, strlen(job), 0);
    unsigned block = (unsigned)((h ^ h >> 32) % PORT_BLOCKS);
    unsigned first = PORT_FIRST + block * UF_PLACE_PORTS;
    if (avoid >= first && avoid < first + UF_PLACE_PORTS)
        first = PORT_FIRST + (block + 1) % PORT_BLOCKS * UF_PLACE_PORTS;
    return (uint16_t)first;
}

static bool host_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Checks "003-010,12]" from `p`, past the bracket; the first number goes to *first, *length. NULL if it makes
 * no sense. */
static const char *bracket(const char *p, const char **first, size_t *length)
{
    *first = p;
    for (bool outset = true;; outset = false) {
        const char *low = p;
        while (digit(*p))
            p++;
        size_t low_digits = (size_t)(p - low);
        if (!low_digits || low_digits > 9)
            return NULL;
        if (outset)
            *length = low_digits;
        if (*p == '-') {
            const char *high = ++p;
            while (digit(*p))
                p++;
            if (p == high || p - high > 9 || strtol(high, NULL, 10) < strtol(low, NULL, 10))
                return NULL;
        }
        if (*p == ']')
            return p + 1;
        if (*p++ != ',')
            return NULL;
    }
}

/* One host expression from `p` to a comma or the end; expands its first host if `host` is not NULL. */
static const char *expression(const char *p, char *host, size_t bytes)
{
    size_t n = 0;
    const char *from = p;
    while (*p && *p != ',') {
        const char *piece = p;
        size_t length = 1;
        if (*p == '[')
            p = bracket(p + 1, &piece, &length);
        else
            p = host_letter(*p) ? p + 1 : NULL;
        if (!p)
            return NULL;
        if (host) {
            if (n + length >= bytes)
                return NULL;
            memcpy(host + n, piece, length);
            n += length;
        }
    }
    if (p == from)
        return NULL;
    if (host)
        host[n] = 0;
    return p;
}

int uf_place_first_host(const char *list, char *host, size_t bytes)
{
    char first[256];
    const char *p = list;
    for (bool outset = true;; outset = false) {
        const char *next = expression(p, outset ? first : NULL, sizeof first);
        if (!next)
            return uf_fail(UF_EINVAL, "the node list \"%.100s\" makes no sense from \"%.40s\" on", list, p);
        p = next;
        if (!*p)
            break;
        p++;
    }
    if (strlen(first) >= bytes)
        return uf_fail(UF_EINVAL, "the first host of the node list \"%.100s\" is too long", list);
    memcpy(host, first, strlen(first) + 1);
    return UF_OK;
}

static int from_unfence(const uf_settings *settings, uf_bootstrap_place *place)
{
    bool pe_set = settings->from_environment[UF_SET_PE] && settings->number[UF_SET_PE] >= 0;
    bool n_set = settings->from_environment[UF_SET_N_PES] && settings->number[UF_SET_N_PES] >= 0;
    const char *root = settings->text[UF_SET_ROOT];
    if (!pe_set || !n_set)
        return uf_fail(UF_EINVAL,
                       "%s is set but %s is not: start the PEs with `unfence run`, or set UNFENCE_PE, UNFENCE_N_PES "
                       "and UNFENCE_ROOT on each",
                       pe_set  ? "UNFENCE_PE"
                       : n_set ? "UNFENCE_N_PES"
                               : "UNFENCE_ROOT",
                       pe_set ? "UNFENCE_N_PES" : "UNFENCE_PE");
    int64_t pe = settings->number[UF_SET_PE], n_pes = settings->number[UF_SET_N_PES];
    if (n_pes < 1 || pe >= n_pes)
        return uf_fail(UF_EINVAL, "UNFENCE_PE is %lld, but UNFENCE_N_PES is %lld: PEs go from 0 to UNFENCE_N_PES - 1",
                       (long long)pe, (long long)n_pes);
    if (n_pes > 1 && !root[0])
        return uf_fail(UF_EINVAL, "UNFENCE_N_PES is %lld but UNFENCE_ROOT is not set: give host:port of PE 0", (long long)n_pes);
    place->pe = (int)pe;
    place->n_pes = (int)n_pes;
    snprintf(place->root, sizeof place->root, "%s", root);
    place->source = "unfence run";
    return UF_OK;
}

static int from_torchrun(const char *const *environment, uf_bootstrap_place *place)
{
    const char *started = find(environment, "RANK") ? "RANK" : find(environment, "WORLD_SIZE") ? "WORLD_SIZE" : NULL;
    if (!started) {
        const char *alone = find(environment, "MASTER_ADDR") ? "MASTER_ADDR" : "MASTER_PORT";
        return uf_fail(UF_EINVAL, "%s is set but RANK is not: start with torchrun or `unfence run`, or unset it", alone);
    }
    int rc = rank_and_count(environment, "RANK", "WORLD_SIZE", place);
    if (rc)
        return rc;
    long local_rank = 0, port = 0;
    if (find(environment, "LOCAL_RANK")) {
        rc = number(environment, "LOCAL_RANK", "RANK", 0, place->pe, &local_rank);
        if (rc)
            return rc;
    }
    const char *host = find(environment, "MASTER_ADDR");
    if (!host && (place->n_pes > 1 || find(environment, "MASTER_PORT")))
        return uf_fail(UF_EINVAL, "RANK is set but MASTER_ADDR is not: set both, or neither");
    place->source = "torchrun";
    if (!host)
        return UF_OK;
    rc = number(environment, "MASTER_PORT", "MASTER_ADDR", 1, 65535, &port);
    if (rc)
        return rc;
    /* torchrun's own store listens on MASTER_PORT of the same host, so ours must be another, known to all. A
     * restart is a new job. */
    const char *run = find(environment, "TORCHELASTIC_RUN_ID");
    const char *restart = find(environment, "TORCHELASTIC_RESTART_COUNT");
    snprintf(place->job, sizeof place->job, "torchrun %.60s %ld %.60s %.10s", host, port, run ? run : "",
             restart ? restart : "0");
    return root_text("MASTER_ADDR", host, uf_place_derived_port(place->job, (uint16_t)port), UF_PLACE_PORTS, place);
}

static int from_slurm(const char *const *environment, uf_bootstrap_place *place)
{
    int rc = rank_and_count(environment, "SLURM_PROCID", "SLURM_NTASKS", place);
    if (rc)
        return rc;
    place->source = "Slurm";
    if (place->n_pes == 1)
        return UF_OK;
    const char *job = find(environment, "SLURM_JOB_ID"), *step = find(environment, "SLURM_STEP_ID");
    const char *name = find(environment, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = find(environment, name);
    if (!job)
        return uf_fail(UF_EINVAL, "SLURM_PROCID is set but SLURM_JOB_ID is not: start the PEs with srun or `unfence run`");
    if (!step)
        return uf_fail(UF_EINVAL,
                       "SLURM_PROCID is set but SLURM_STEP_ID is not, so this is the batch script and not a "
                       "step of %d PEs: "
                       "start the PEs with srun or `unfence run`",
                       place->n_pes);
    if (!list)
        return uf_fail(UF_EINVAL, "SLURM_PROCID is set but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is");
    char host[256];
    rc = uf_place_first_host(list, host, sizeof host);
    if (rc)
        return rc;
    snprintf(place->job, sizeof place->job, "slurm %.60s %.60s", job, step);
    return root_text(name, host, uf_place_derived_port(place->job, 0), UF_PLACE_PORTS, place);
}

int uf_bootstrap_find_place(const uf_settings *settings, const char *const *environment, uf_bootstrap_place *place)
{
    uf_bootstrap_place found = {.pe = 0, .n_pes = 1, .source = "none"};
    int rc = UF_OK;
    if (settings->from_environment[UF_SET_PE] || settings->from_environment[UF_SET_N_PES] || settings->text[UF_SET_ROOT][0]) {
        rc = from_unfence(settings, &found);
    } else if (find(environment, "RANK")) {
        rc = from_torchrun(environment, &found);
    } else if (find(environment, "SLURM_PROCID")) {
        /* Before a torchrun set without RANK: batch scripts export WORLD_SIZE and MASTER_ADDR for all and
         * leave the rank to Slurm. */
        rc = from_slurm(environment, &found);
    } else if (find(environment, "WORLD_SIZE") || find(environment, "MASTER_ADDR") || find(environment, "MASTER_PORT")) {
        rc = from_torchrun(environment, &found);
    }
    if (rc)
        return rc;
    if (settings->text[UF_SET_JOB][0])
        snprintf(found.job, sizeof found.job, "%s", settings->text[UF_SET_JOB]);
    *place = found;
    return UF_OK;
}
