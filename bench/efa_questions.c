/* efa_questions.c - `unfence run -n 2 -- efa-questions [DEVICE]`: asks an EFA device what its documents do not say (efa_ask.h), a line
 * each with the answer and what follows from it. docs/first-efa-run.md says how to run it on two hosts and where the answers go.
 * DEVICE is what UNFENCE_FABRIC=efa:DEVICE names: nothing for the NIC near this PE, a name, model or model-PROFILE. */
#include "base/error.h"
#include "base/settings.h"
#include "efa_ask.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const struct uf_efa_device_ops *device_ops(const char *name)
{
    if (strncasecmp(name, "model", 5) == 0)
        return &uf_efa_device_model;
#if defined(UNFENCE_WITH_VERBS)
    return &uf_efa_device_verbs;
#else
    return NULL;
#endif
}

static int meet(const uf_settings *settings, uf_bootstrap_place *place, uf_bootstrap **bootstrap)
{
    int rc = uf_bootstrap_find_place(settings, (const char *const *)environ, place);
    if (!rc && place->n_pes != 2)
        rc = uf_fail(UF_EINVAL, "it takes two PEs, not %d: unfence run -n 2 -- efa-questions", place->n_pes);
    const uf_bootstrap_params b = {.settings = settings,
                                   .driver = &uf_driver_threads,
                                   .pe = place->pe,
                                   .n_pes = 2,
                                   .root = place->root,
                                   .timeout_ns = UINT64_C(120000000000),
                                   .job = place->job};
    return rc ? rc : uf_bootstrap_create(&b, bootstrap);
}

/* Whether both PEs are on one kernel, which the model must know. */
static int same_host(uf_bootstrap *bootstrap, bool *one)
{
    char mine[128] = "", all[2][128];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f) {
        if (!fgets(mine, sizeof mine, f))
            mine[0] = 0;
        fclose(f);
    }
    int rc = uf_bootstrap_allgather(bootstrap, mine, sizeof mine, all, 0);
    *one = !rc && mine[0] && memcmp(all[0], all[1], sizeof mine) == 0;
    return rc;
}

static void print(const efa_answer *answers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        printf("%-4s %s\n     changes: %s\n", answers[i].question, answers[i].text, answers[i].changes);
    printf("Q10  not asked: completion counters are not used by Unfence\n"
           "Q12  not asked: needs GPU memory for payload and completion queue; see docs/first-efa-run.md\n");
}

static int ask(const uf_settings *settings, const char *name, const uf_bootstrap_place *place, uf_bootstrap *bootstrap)
{
    const struct uf_efa_device_ops *ops = device_ops(name);
    uf_efa_device_params d = {.settings = settings, .name = name, .pe = place->pe, .n_pes = 2, .n_rails = 1};
    uf_efa_device *device = NULL;
    efa_answer answers[EFA_ANSWERS_MAX];
    uint32_t n = 0;
    int rc = ops ? same_host(bootstrap, &d.one_host)
                 : uf_fail(UF_EUNSUPPORTED, "this build was made without libibverbs-dev: only efa:model can be asked");
    if (!rc)
        rc = ops->open(&d, &device);
    if (rc)
        return rc;
    const efa_ask_params p = {.device = device,
                              .bootstrap = bootstrap,
                              .driver = &uf_driver_threads,
                              .pe = place->pe,
                              .patience_ns = UINT64_C(10000000000),
                              .rate_ns = 50000000,
                              .samples = 10000,
                              .rounds = 64,
                              .max_queues = 1024};
    rc = efa_ask(&p, answers, &n);
    if (place->pe == 0) {
        printf("%s, %s\n", device->nics[0].name, device->nics[0].detail);
        print(answers, n);
    }
    device->ops->close(device);
    return rc;
}

int main(int argc, char **argv)
{
    uf_settings settings;
    uf_bootstrap_place place;
    uf_bootstrap *bootstrap = NULL;
    int rc = uf_settings_load(&settings);
    if (!rc)
        rc = meet(&settings, &place, &bootstrap);
    if (!rc)
        rc = ask(&settings, argc > 1 ? argv[1] : "", &place, bootstrap);
    if (rc)
        fprintf(stderr, "efa-questions: %s\n", uf_error_message());
    if (bootstrap) {
        if (rc)
            uf_bootstrap_abort(bootstrap, rc, uf_error_message());
        uf_bootstrap_leave(bootstrap);
        uf_bootstrap_destroy(bootstrap);
    }
    return rc != 0;
}
