/* writer.c - see writer.h: the ways to store a signal word, the choice among them, and the classes of words.
 *
 * A way is a row of a table: how to try it and how to apply. The flush before a store is the same for all ways that touch GPU memory: what the
 * device says of the order in which it takes writes of NICs decides whether one is needed and whether the driver can do it. */
#include "cuda/writer.h"
#include "base/error.h"
#include "base/map.h"
#include "cuda/driver.h"
#include "cuda/gdrcopy.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum flush_need { FLUSH_NONE, FLUSH_BY_CALL, FLUSH_IMPOSSIBLE } flush_need;

struct uf_cuda_writer {
    uf_cuda_device *device;
    uf_cuda_facts facts; /* the device's */
    uf_cuda_way way;
    flush_need flush;
    uf_gdr gdr;
    pthread_mutex_t lock;
    uf_map classes; /* word -> uf_cuda_updater */
    char text[480];
};

/* ---------------------------------------------------------------- applying: GDRCopy */

static int try_gdrcopy(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe)
{
    uint64_t *at;
    int rc = uf_gdr_open(settings, &w->gdr);
    if (!rc && probe && (rc = uf_gdr_map_word(&w->gdr, probe, &at)))
        uf_gdr_close(&w->gdr);
    return rc;
}

static int apply_gdrcopy(uf_cuda_writer *w, uint64_t *word, int op, uint64_t value, uint64_t *old)
{
    uint64_t *at, before = 0;
    int rc = uf_gdr_map_word(&w->gdr, word, &at);
    if (rc)
        return rc;
    if (old || op == UF_SIGNAL_ADD) /* a load through the GPU's window takes a microsecond: only if it is asked for */
        before = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    __atomic_store_n(at, op == UF_SIGNAL_ADD ? before + value : value, __ATOMIC_RELEASE);
    __atomic_thread_fence(
        __ATOMIC_SEQ_CST); /* drains the write-combining buffer: the store is on its way now, not when it likes */
    if (old)
        *old = before;
    return UF_OK;
}

/* ---------------------------------------------------------------- applying: the device's own stream */

static int try_stream(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe)
{
    uint64_t seen;
    (void)settings;
    if (!w->facts.memory_ops)
        return uf_fail(UF_EUNSUPPORTED, "GPU %d (%s) or its driver has no 64-bit stream memory operations", w->facts.ordinal,
                       w->facts.name);
    return probe ? uf_cuda_copy(w->device, &seen, probe, sizeof seen, NULL, 0) : UF_OK;
}

static int apply_stream(uf_cuda_writer *w, uint64_t *word, int op, uint64_t value, uint64_t *old)
{
    uint64_t before = 0;
    if (old || op == UF_SIGNAL_ADD) {
        int rc = uf_cuda_copy(w->device, &before, word, sizeof before, NULL, 0);
        if (rc)
            return rc;
    }
    const uf_cuda_op store = {UF_CUDA_WRITE, word, op == UF_SIGNAL_ADD ? before + value : value};
    uf_cuda_scope scope;
    int rc = uf_cuda_enter(w->device, &scope);
    if (rc)
        return rc;
    rc = uf_cuda_stream_ops(w->device, w->device->stream, &store, 1, UF_CUDA_APART, "storing a signal word");
    uf_cuda_leave(&scope);
    if (!rc && old)
        *old = before;
    return rc;
}

/* ---------------------------------------------------------------- the ways */

static int try_counter(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe)
{
    (void)w;
    (void)settings;
    (void)probe;
    return uf_fail(UF_EUNSUPPORTED, "no NIC of this fabric counts arrivals into GPU memory by itself");
}

static int try_host(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe)
{
    (void)settings;
    (void)probe;
    return uf_fail(UF_EUNSUPPORTED, "the CPU cannot load and store memory of GPU %d", w->facts.ordinal);
}

static int apply_host(uf_cuda_writer *w, uint64_t *word, int op, uint64_t value, uint64_t *old)
{
    (void)w;
    uint64_t before = op == UF_SIGNAL_ADD ? __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL)
                                          : __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
    if (old)
        *old = before;
    return UF_OK;
}

/* In the order in which they are tried for words in GPU memory. */
static const struct {
    const char *name, *flush;
    int (*try)(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe);
    int (*apply)(uf_cuda_writer *w, uint64_t *word, int op, uint64_t value, uint64_t *old);
} ways[UF_CUDA_WAYS] = {
    [UF_CUDA_BY_COUNTER] = {"counter", "none: the NIC counts behind the bytes, on the same path into the GPU", try_counter, NULL},
    [UF_CUDA_BY_GDRCOPY] = {"gdrcopy", "the NIC's writes into the GPU before the store, then the store out of the CPU",
                            try_gdrcopy, apply_gdrcopy},
    [UF_CUDA_BY_STREAM] = {"stream",
                           "the NIC's writes into the GPU before the store; the stream orders copies given to it before",
                           try_stream, apply_stream},
    [UF_CUDA_BY_HOST] = {"host", "the NIC's writes into the GPU before the store, if the payload is there; none for host memory",
                         try_host, apply_host},
};

const char *uf_cuda_way_name(uf_cuda_way way)
{
    return ways[way].name;
}

const char *uf_cuda_way_flush(uf_cuda_way way)
{
    return ways[way].flush;
}

/* ---------------------------------------------------------------- flushes */

static int attribute(const uf_cuda_device *d, CUdevice_attribute name)
{
    int value = 0;
    return uf_cuda.cuDeviceGetAttribute(&value, name, d->device) == CUDA_SUCCESS ? value : 0;
}

static flush_need find_flush(const uf_cuda_device *d)
{
    if (attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        return FLUSH_NONE;
    int options = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
    return options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST ? FLUSH_BY_CALL : FLUSH_IMPOSSIBLE;
}

static int flush(const uf_cuda_writer *w)
{
    uf_cuda_scope scope;
    if (w->flush == FLUSH_NONE)
        return UF_OK;
    if (w->flush == FLUSH_IMPOSSIBLE)
        return uf_fail(
            UF_EUNSUPPORTED,
            "GPU %d (%s) neither orders the writes of NICs nor lets the CPU flush them, so a signal could overtake its "
            "payload; receive into host memory",
            w->facts.ordinal, w->facts.name);
    int rc = uf_cuda_enter(w->device, &scope);
    if (rc)
        return rc;
    CUresult result = uf_cuda.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    uf_cuda_leave(&scope);
    return result == CUDA_SUCCESS ? UF_OK
                                  : uf_cuda_fail(result, "cuFlushGPUDirectRDMAWrites",
                                                 "flushing what NICs have written to GPU %d failed", w->facts.ordinal);
}

/* ---------------------------------------------------------------- classes of words */

static const char *updater_text(uint64_t updater)
{
    static const char *const texts[] = {[UF_CUDA_BY_PEERS] = "near peers (kernels and streams)",
                                        [UF_CUDA_BY_ENGINE] = "the owner's engine (peers over the network)",
                                        [UF_CUDA_MIXED] = "the owner's engine for all (a mixed word)"};
    return texts[updater];
}

/* With the lock. */
static int create_one(uf_cuda_writer *w, const uint64_t *word, uf_cuda_updater updater)
{
    uint64_t has, key = (uint64_t)(uintptr_t)word;
    if (!uf_map_get(&w->classes, key, &has))
        return uf_map_put(&w->classes, key, updater);
    return has == updater
               ? UF_OK
               : uf_fail(UF_EINVAL,
                         "the signal word at %p is updated by %s already and cannot be one that %s update too: no atomic "
                         "in GPU memory covers both; use another word",
                         (const void *)word, updater_text(has), updater_text(updater));
}

int uf_cuda_words_create(uf_cuda_writer *w, const uint64_t *words, size_t n, uf_cuda_updater updater)
{
    int rc = UF_OK;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < n && !rc; i++)
        rc = create_one(w, &words[i], updater);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* With the lock: some word of the range that has a class; false: there is none. */
static bool find_classed(const uf_cuda_writer *w, uint64_t base, size_t bytes, uint64_t *word)
{
    size_t cursor = 0;
    uint64_t updater;
    while (uf_map_next(&w->classes, &cursor, word, &updater))
        if (*word - base < bytes)
            return true;
    return false;
}

void uf_cuda_words_forget(uf_cuda_writer *w, const void *base, size_t bytes)
{
    uint64_t word;
    pthread_mutex_lock(&w->lock);
    while (find_classed(w, (uint64_t)(uintptr_t)base, bytes, &word))
        uf_map_remove(&w->classes, word, NULL);
    uf_gdr_drop(&w->gdr, (uint64_t)(uintptr_t)base, bytes);
    pthread_mutex_unlock(&w->lock);
}

/* With the lock. */
static int claim(uf_cuda_writer *w, const uint64_t *word, uf_cuda_updater updater)
{
    uint64_t has;
    if (updater == UF_CUDA_BY_ENGINE && uf_map_get(&w->classes, (uint64_t)(uintptr_t)word, &has) && has == UF_CUDA_MIXED)
        return UF_OK;
    return create_one(w, word, updater);
}

int uf_cuda_word_claim(uf_cuda_writer *w, const uint64_t *word, uf_cuda_updater updater)
{
    pthread_mutex_lock(&w->lock);
    int rc = claim(w, word, updater);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* ---------------------------------------------------------------- applying */

int uf_cuda_apply(uf_cuda_writer *w, uf_cuda_where where, uint64_t *word, int op, uint64_t value, uf_cuda_payload payload,
                  uint64_t *old)
{
    if ((uintptr_t)word & 7)
        return uf_fail(UF_EINVAL, "the signal word at %p is not aligned to 8 bytes", (void *)word);
    if (op != UF_SIGNAL_SET && op != UF_SIGNAL_ADD)
        return uf_fail(UF_EINVAL, "operation %d on a signal word is neither UF_SIGNAL_SET nor UF_SIGNAL_ADD", op);
    bool on_gpu = where == UF_CUDA_WORD_ON_GPU;
    uf_cuda_way way = on_gpu ? w->way : UF_CUDA_BY_HOST;
    pthread_mutex_lock(&w->lock);
    int rc = on_gpu ? claim(w, word, UF_CUDA_BY_ENGINE) : UF_OK;
    if (!rc && payload == UF_CUDA_PAYLOAD_BY_NIC)
        rc = flush(w);
    if (!rc)
        rc = ways[way].apply(w, word, op, value, old);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* ---------------------------------------------------------------- choosing */

/* Tries the ways that are asked for, in their order, on `probe`, or (NULL) only what can be tried without the GPU. */
static int choose(uf_cuda_writer *w, const uf_settings *settings, uint64_t *probe)
{
    char refused[sizeof w->text - 32] = "";
    const char *asked = settings->text[UF_SET_CUDA_SIGNALS];
    bool any = strcmp(asked, "auto") == 0;
    size_t at = 0;
    for (int way = 0; way < UF_CUDA_WAYS; way++) {
        if (!any && strcmp(asked, ways[way].name) != 0)
            continue;
        if (ways[way].try(w, settings, probe) == UF_OK) {
            w->way = (uf_cuda_way)way;
            snprintf(w->text, sizeof w->text, refused[0] ? "%s (%s)" : "%s", ways[way].name, refused);
            return UF_OK;
        }
        int n = snprintf(refused + at, sizeof refused - at, "%s%s: %.130s", at ? "; " : "", ways[way].name, uf_error_message());
        at = at + (size_t)n < sizeof refused ? at + (size_t)n : sizeof refused - 1;
    }
    return uf_fail(UF_EUNSUPPORTED, "no way to store signal words in memory of GPU %d (UNFENCE_CUDA_SIGNALS=%s): %s",
                   w->facts.ordinal, asked, refused);
}

int uf_cuda_writer_open(uf_cuda_device *device, const uf_settings *settings, uint64_t *probe, uf_cuda_writer **writer)
{
    uf_cuda_writer *w = calloc(1, sizeof *w);
    if (!w)
        return uf_fail(UF_ENOMEM, "no memory for the writer of signal words of GPU %d", device->facts.ordinal);
    w->device = device;
    w->facts = device->facts;
    int rc = choose(w, settings, probe);
    if (rc) {
        free(w);
        return rc;
    }
    w->flush = find_flush(device);
    pthread_mutex_init(&w->lock, NULL);
    *writer = w;
    return UF_OK;
}

void uf_cuda_writer_foresee(const uf_settings *settings, const uf_cuda_facts *facts, char *text, size_t bytes)
{
    uf_cuda_writer w;
    memset(&w, 0, sizeof w);
    w.facts = *facts;
    int rc = choose(&w, settings, NULL);
    snprintf(text, bytes, "%s", rc ? uf_error_message() : w.text);
    uf_gdr_close(&w.gdr);
}

void uf_cuda_writer_close(uf_cuda_writer *w)
{
    if (!w)
        return;
    uf_gdr_close(&w->gdr);
    uf_map_free(&w->classes);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

uf_cuda_way uf_cuda_writer_way(const uf_cuda_writer *w)
{
    return w->way;
}

const char *uf_cuda_writer_text(const uf_cuda_writer *w)
{
    return w->text;
}
