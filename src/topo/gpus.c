/* gpus.c - finds GPUs by PCI class and vendor: no CUDA, so it works before any driver and in a process that must not open one.
 *
 * A display adapter of a server's management chip has the same class: only vendors whose devices compute count. */
#include "base/error.h"
#include "topo/parse.h"
#include "topo/private.h"
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCI_DEVICES "/sys/bus/pci/devices"

enum { GPUS_MAX = 256 }; /* who shares NICs with whom is found by comparing all with all */

enum { VENDOR_NVIDIA = 0x10de };

/* Class codes without the programming interface. */
enum { CLASS_VGA = 0x0300, CLASS_3D = 0x0302, CLASS_DISPLAY = 0x0380, CLASS_ACCELERATOR = 0x1200 };

static const struct {
    uint32_t vendor, class;
} gpu_kinds[] = {
    {VENDOR_NVIDIA, CLASS_VGA}, {VENDOR_NVIDIA, CLASS_3D},
    {0x1002, CLASS_DISPLAY},    {0x1002, CLASS_ACCELERATOR}, /* AMD Instinct; its VGA class is graphics alone */
    {0x8086, CLASS_DISPLAY},                                 /* Intel Max; its VGA class is the processor's own graphics */
};

static bool is_gpu(const uf_topo_pci *pci)
{
    for (size_t i = 0; i < sizeof gpu_kinds / sizeof *gpu_kinds; i++)
        if (gpu_kinds[i].vendor == pci->vendor && gpu_kinds[i].class == pci->class >> 8)
            return true;
    return false;
}

/* NVIDIA's driver lists its GPUs with the number of their device files. Of those that a container was not given it hides the list's entry, or the
 * device file alone. */
static bool is_hidden(const char *root, const char *bus)
{
    char path[PATH_MAX], text[4096], file[64];
    int64_t minor;
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s", bus);
    if (!uf_topo_exists(root, "/proc/driver/nvidia/gpus"))
        return false;
    if (!uf_topo_exists(root, path))
        return true;
    if (!uf_topo_text_in(root, path, "information", text, sizeof text))
        return false;
    const char *at = strstr(text, "Device Minor:");
    if (!at)
        return false;
    at += strlen("Device Minor:");
    at += strspn(at, " \t");
    char number[16] = "";
    for (size_t i = 0; i < sizeof number - 1 && isdigit((unsigned char)at[i]); i++)
        number[i] = at[i];
    if (!uf_topo_parse_int(number, &minor))
        return false;
    snprintf(file, sizeof file, "/dev/nvidia%" PRId64, minor);
    return !uf_topo_exists(root, file);
}

static int add(uf_topo_reader *reader, const uf_topo_gpu *gpu)
{
    uf_topo *topo = reader->topo;
    if (topo->n_gpus == reader->gpu_room) {
        uint32_t room = reader->gpu_room ? 2 * reader->gpu_room : 8;
        void *grown = realloc(topo->gpus, room * sizeof *topo->gpus);
        if (!grown)
            return uf_fail(UF_ENOMEM, "no memory for %" PRIu32 " GPUs", room);
        topo->gpus = grown;
        reader->gpu_room = room;
    }
    topo->gpus[topo->n_gpus++] = *gpu;
    return UF_OK;
}

static int by_place(const void *a, const void *b)
{
    const uf_topo_gpu *x = a, *y = b;
    return uf_topo_compare_places(&x->place, &y->place);
}

int uf_topo_find_gpus(uf_topo_reader *reader)
{
    uf_topo *topo = reader->topo;
    char path[PATH_MAX];
    uint32_t hidden = 0;
    int rc = UF_OK;
    for (uint32_t i = 0; !rc && i < reader->n_pci; i++) {
        const uf_topo_pci *pci = &reader->pci[i];
        if (!is_gpu(pci))
            continue;
        if (topo->n_gpus == GPUS_MAX) {
            uf_topo_note(topo, "more than %d GPUs: the others were not looked at", GPUS_MAX);
            break;
        }
        uf_topo_gpu gpu = {.hidden = pci->vendor == VENDOR_NVIDIA && is_hidden(reader->root, pci->bus)};
        snprintf(path, sizeof path, PCI_DEVICES "/%s", pci->bus);
        uf_topo_read_place(reader->root, path, &gpu.place);
        strcpy(gpu.place.bus, pci->bus); /* known even if the link is broken */
        strcat(path, "/driver");
        uf_topo_link_name(reader->root, path, gpu.driver, sizeof gpu.driver);
        hidden += gpu.hidden;
        rc = add(reader, &gpu);
    }
    if (hidden)
        uf_topo_note(
            topo, "%" PRIu32 " of %" PRIu32 " GPUs were not given to this container; NICs are still shared with whoever has them",
            hidden, topo->n_gpus);
    if (!rc && topo->n_gpus)
        qsort(topo->gpus, topo->n_gpus, sizeof *topo->gpus, by_place);
    return rc;
}
