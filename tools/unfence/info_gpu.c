/* info_gpu.c - the part of `unfence info` about GPU memory: the driver, each GPU with what it can do, and which reach each other, and why.
 *
 * Asked as a world would ask (src/cuda), so the sentences are those of the library. Starts the driver, but opens no GPU. */
#include "base/error.h"
#include "info.h"
#include "options.h"
#include <stdio.h>
#include <string.h>

void info_gpus_find(const uf_settings *settings, info_gpus *g)
{
    const char *why = "";
    memset(g, 0, sizeof *g);
    g->usable = uf_cuda_available(settings, &why);
    snprintf(g->why, sizeof g->why, "%s", why);
    if (!g->usable)
        return;
    if (uf_cuda_count(&g->n) != UF_OK)
        g->n = 0;
    g->found = g->n;
    if (g->n > INFO_GPUS)
        g->n = INFO_GPUS;
    for (int i = 0; i < g->n; i++) {
        info_gpu *gpu = &g->gpus[i];
        gpu->known = uf_cuda_describe(i, &gpu->facts) == UF_OK;
        if (gpu->known)
            uf_cuda_writer_foresee(settings, &gpu->facts, gpu->signals, sizeof gpu->signals);
        else
            snprintf(gpu->refused, sizeof gpu->refused, "%.*s", (int)sizeof gpu->refused - 1, uf_error_message());
    }
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < g->n; j++)
            if (g->gpus[i].known && g->gpus[j].known)
                g->gpus[i].near[j] = uf_cuda_near(&g->gpus[i].facts, &g->gpus[j].facts, &g->gpus[i].near_why[j]);
}

/* What a GPU can do for us, and what follows where it cannot. */
typedef struct ability {
    const char *key, *yes, *no;
    size_t at;
} ability;
#define ABILITY(member, yes, no)                                                                                                 \
    {                                                                                                                            \
#member, yes, no, offsetof(uf_cuda_facts, member)                                                                        \
    }
static const ability abilities[] = {
    ABILITY(vmm, "symmetric memory", "no virtual memory management: no symmetric memory"),
    ABILITY(fd_handles, "shared with other processes", "no file descriptors of memory: shared among the PEs of a process only"),
    ABILITY(memory_ops, "64-bit waits and stores of streams", "no 64-bit stream operations: no signals and waits on streams"),
    ABILITY(host_address, "sees symmetric host memory", "does not see symmetric host memory: signal words in GPU memory only"),
    ABILITY(dmabuf, "dma-buf for NICs", "no dma-buf: NICs cannot register its memory that way"),
    ABILITY(rdma, "symmetric memory can be registered with NICs", "NICs cannot register its symmetric memory"),
};
enum { ABILITIES = sizeof abilities / sizeof *abilities };

static bool has(const uf_cuda_facts *f, const ability *a)
{
    return *((const uint8_t *)f + a->at) != 0;
}

/* What carries operations of kernels, hosts and streams to peers that are not near, by the kind of memory. Symmetric host memory is carried by
 * command queues; GPU memory itself would need one of the three ways that are named here with what is missing. */
static const char *far_host(const uf_cuda_facts *f)
{
    return f->host_address ? "command queues and the network" : "not reached: kernels do not see symmetric host memory";
}

static const char *far_gpu(const uf_cuda_facts *f)
{
    return f->dmabuf && f->rdma
               ? "refused: the GPU offers dma-buf, but no fabric here registers GPU memory (dmabuf, peermem), and nothing "
                 "stages it through host memory; use memory of the host heap"
               : "refused: NICs cannot register its memory (dmabuf, peermem), and nothing stages it through host "
                 "memory; use memory of the host heap";
}

static void print_gpu(const info_gpus *g, int i)
{
    const info_gpu *gpu = &g->gpus[i];
    char bytes[24];
    if (!gpu->known) {
        printf("  GPU %-14d refused: %s\n", i, gpu->refused);
        return;
    }
    printf("  GPU %-14d %s, %s, %s\n", i, gpu->facts.name, gpu->facts.bus, tool_format_bytes(gpu->facts.bytes, bytes));
    for (size_t a = 0; a < ABILITIES; a++)
        printf("    %-16s %s\n", a ? "" : "can", has(&gpu->facts, &abilities[a]) ? abilities[a].yes : abilities[a].no);
    printf("    %-16s %s\n", "signal words by", gpu->signals);
    printf("    %-16s near peers: mapped (near); others: %s\n", "host heap by", far_host(&gpu->facts));
    printf("    %-16s near peers: mapped (near); others: %s\n", "GPU memory by", far_gpu(&gpu->facts));
    for (int j = 0; j < g->n; j++)
        if (j != i && g->gpus[j].known)
            printf("    GPU %-12d %s: %s\n", j, gpu->near[j] ? "near" : "not near", gpu->near_why[j]);
}

void info_gpus_print(const info_gpus *g)
{
    printf("\nGPU memory\n  %-18s %s\n", g->usable ? "driver" : "none", g->why);
    for (int i = 0; i < g->n; i++)
        print_gpu(g, i);
    if (g->found > g->n)
        printf("  and %d more\n", g->found - g->n);
}

static json_object *gpu_object(const info_gpus *g, int i)
{
    const info_gpu *gpu = &g->gpus[i];
    json_object *object = json_object_new_object(), *near = json_object_new_array();
    json_object_object_add(object, "gpu", json_object_new_int(i));
    if (gpu->known) {
        json_object_object_add(object, "name", json_object_new_string(gpu->facts.name));
        json_object_object_add(object, "bus", json_object_new_string(gpu->facts.bus));
        json_object_object_add(object, "bytes", json_object_new_int64((int64_t)gpu->facts.bytes));
        json_object_object_add(object, "signals", json_object_new_string(gpu->signals));
    } else {
        json_object_object_add(object, "refused", json_object_new_string(gpu->refused));
    }
    for (size_t a = 0; gpu->known && a < ABILITIES; a++)
        json_object_object_add(object, abilities[a].key, json_object_new_boolean(has(&gpu->facts, &abilities[a])));
    if (gpu->known) {
        json_object_object_add(object, "far_host_memory", json_object_new_string(far_host(&gpu->facts)));
        json_object_object_add(object, "far_gpu_memory", json_object_new_string(far_gpu(&gpu->facts)));
    }
    for (int j = 0; gpu->known && j < g->n; j++) {
        if (j == i || !g->gpus[j].known)
            continue;
        json_object *other = json_object_new_object();
        json_object_object_add(other, "gpu", json_object_new_int(j));
        json_object_object_add(other, "near", json_object_new_boolean(gpu->near[j]));
        json_object_object_add(other, "why", json_object_new_string(gpu->near_why[j]));
        json_object_array_add(near, other);
    }
    json_object_object_add(object, "peers", near);
    return object;
}

json_object *info_gpus_json(const info_gpus *g)
{
    json_object *object = json_object_new_object(), *gpus = json_object_new_array();
    json_object_object_add(object, "usable", json_object_new_boolean(g->usable));
    json_object_object_add(object, "driver", json_object_new_string(g->why));
    for (int i = 0; i < g->n; i++)
        json_object_array_add(gpus, gpu_object(g, i));
    json_object_object_add(object, "gpus", gpus);
    return object;
}
