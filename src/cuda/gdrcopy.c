/* gdrcopy.c - libgdrapi: opened by name, asked for the functions of gdrcopy.def, used to map single pages of GPU memory.
 *
 * Nothing of it is known when the library is built, and nothing of it is asked for unless a writer tries this way. Pages stay pinned until
 * they are dropped, which is before the memory under them is unmapped. */
#include "cuda/gdrcopy.h"
#include "base/error.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 65536 }; /* GPU memory is pinned in these */

struct uf_gdr_page {
    uint64_t address;
    uf_gdr_pin pin;
    void *at;
};

static const char *library_of(const uf_settings *settings)
{
    const char *name = settings->text[UF_SET_GDRCOPY_LIBRARY];
    return name[0] ? name : "libgdrapi.so.2";
}

static int fill_table(uf_gdr *g, const char *name)
{
#define UF_GDR_FUNCTION(result, function, arguments) {#function, &g->call.function},
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
#include "cuda/gdrcopy.def"
    };
#undef UF_GDR_FUNCTION
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(g->library, functions[i].name);
        if (!symbol)
            return uf_fail(UF_EUNSUPPORTED, "%s has no %s: GDRCopy 2.0 or later is needed", name, functions[i].name);
        memcpy(functions[i].slot, &symbol, sizeof symbol);
    }
    return UF_OK;
}

int uf_gdr_open(const uf_settings *settings, uf_gdr *g)
{
    const char *name = library_of(settings);
    memset(g, 0, sizeof *g);
    g->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return uf_fail(UF_EUNSUPPORTED, "GDRCopy is not here: %s", dlerror());
    int rc = fill_table(g, name);
    if (!rc && !(g->handle = g->call.gdr_open()))
        rc = uf_fail(UF_EUNSUPPORTED, "%s does not open: is its kernel module (gdrdrv) loaded, and /dev/gdrdrv permitted?", name);
    if (rc)
        uf_gdr_close(g);
    return rc;
}

/* The last page takes the place of the one that goes. */
static void drop_page(uf_gdr *g, size_t place)
{
    uf_gdr_page gone = g->pages[place];
    uf_map_remove(&g->index, gone.address, NULL);
    if (place != --g->n) {
        g->pages[place] = g->pages[g->n];
        uf_map_put(&g->index, g->pages[place].address, place); /* the key is there: it needs no memory */
    }
    g->call.gdr_unmap(g->handle, gone.pin, gone.at, PAGE);
    g->call.gdr_unpin_buffer(g->handle, gone.pin);
}

void uf_gdr_drop(uf_gdr *g, uint64_t base, size_t bytes)
{
    for (size_t i = g->n; i > 0; i--)
        if (g->pages[i - 1].address < base + bytes && g->pages[i - 1].address + PAGE > base)
            drop_page(g, i - 1);
}

void uf_gdr_close(uf_gdr *g)
{
    while (g->n)
        drop_page(g, g->n - 1);
    if (g->handle)
        g->call.gdr_close(g->handle);
    if (g->library)
        dlclose(g->library);
    uf_map_free(&g->index);
    free(g->pages);
    memset(g, 0, sizeof *g);
}

static int make_room(uf_gdr *g)
{
    if (g->n < g->room)
        return UF_OK;
    size_t room = g->room ? 2 * g->room : 16;
    uf_gdr_page *longer = realloc(g->pages, room * sizeof *longer);
    if (!longer)
        return uf_fail(UF_ENOMEM, "no memory for the records of %zu mapped pages of GPU memory", room);
    g->pages = longer;
    g->room = room;
    return UF_OK;
}

static int pin(uf_gdr *g, uint64_t page)
{
    uf_gdr_page p = {page, {0}, NULL};
    int rc = make_room(g), error;
    if (rc)
        return rc;
    if ((error = g->call.gdr_pin_buffer(g->handle, (unsigned long)page, PAGE, 0, 0, &p.pin)))
        return uf_fail_errno(UF_EUNSUPPORTED, error, "GDRCopy cannot pin GPU memory at 0x%llx", (unsigned long long)page);
    if ((error = g->call.gdr_map(g->handle, p.pin, &p.at, PAGE))) {
        rc = uf_fail_errno(UF_EUNSUPPORTED, error, "GDRCopy cannot map GPU memory at 0x%llx", (unsigned long long)page);
        goto unpin;
    }
    if ((rc = uf_map_put(&g->index, page, g->n)))
        goto unmap;
    g->pages[g->n++] = p;
    return UF_OK;
unmap:
    g->call.gdr_unmap(g->handle, p.pin, p.at, PAGE);
unpin:
    g->call.gdr_unpin_buffer(g->handle, p.pin);
    return rc;
}

int uf_gdr_map_word(uf_gdr *g, const uint64_t *word, uint64_t **at)
{
    uint64_t address = (uint64_t)(uintptr_t)word, page = address & ~(uint64_t)(PAGE - 1), place;
    if (!uf_map_get(&g->index, page, &place)) {
        int rc = pin(g, page);
        if (rc)
            return rc;
        place = g->n - 1;
    }
    *at = (uint64_t *)(void *)((unsigned char *)g->pages[place].at + (address - page));
    return UF_OK;
}
