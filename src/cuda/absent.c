/* absent.c - this room in a build without cuda.h: it says so, and is never asked for anything else.
 *
 * The callers ask uf_cuda_available before all else. The other functions exist so that the same world is linked; reached all the same, each
 * of them returns the same sentence. */
#include "base/error.h"
#include "cuda/gpu.h"
#include "cuda/writer.h"
#include "unfence/unfence.h"

static const char sentence[] = "this library was built without cuda.h, so without GPU memory (UNFENCE_WITH_CUDA)";

static int refuse(void)
{
    return uf_fail(UF_EUNSUPPORTED, "%s", sentence);
}

bool uf_cuda_available(const uf_settings *settings, const char **why)
{
    (void)settings;
    *why = sentence;
    return false;
}

bool uf_cuda_in_process(const uf_settings *settings)
{
    (void)settings;
    return false;
}

#define ABSENT(name, ...)                                                                                                        \
    int name(__VA_ARGS__)                                                                                                        \
    {                                                                                                                            \
        return refuse();                                                                                                         \
    }
#define ABSENT_VOID(name, ...)                                                                                                   \
    void name(__VA_ARGS__)                                                                                                       \
    {                                                                                                                            \
    }
#define ABSENT_BOOL(name, ...)                                                                                                   \
    bool name(__VA_ARGS__)                                                                                                       \
    {                                                                                                                            \
        return false;                                                                                                            \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
ABSENT(uf_cuda_count, int *n)
ABSENT(uf_cuda_describe, int ordinal, uf_cuda_facts *facts)
ABSENT(uf_cuda_choose, const uf_settings *settings, int local_rank, int *ordinal)
ABSENT(uf_cuda_open, int ordinal, uf_cuda_device **device)
ABSENT(uf_cuda_allow_peer, uf_cuda_device *device, const uf_cuda_facts *peer)
ABSENT(uf_cuda_range_reserve, uf_cuda_device *device, size_t max, uf_cuda_range *range)
ABSENT(uf_cuda_segment_create, uf_cuda_device *device, uf_cuda_range *range, size_t bytes, uf_cuda_share *share)
ABSENT(uf_cuda_segment_map, uf_cuda_device *device, uf_cuda_range *range, const uf_cuda_share *share, size_t bytes)
ABSENT(uf_cuda_alloc, uf_cuda_device *device, size_t bytes, void **ptr)
ABSENT(uf_cuda_host_alloc, uf_cuda_device *device, size_t bytes, void **ptr)
ABSENT(uf_cuda_host_register, uf_cuda_device *device, void *ptr, size_t bytes)
ABSENT(uf_cuda_classify, const void *ptr, uf_cuda_pointer *out)
ABSENT(uf_cuda_dmabuf, uf_cuda_device *device, const void *ptr, size_t bytes, int *fd)
ABSENT(uf_cuda_buffer_share, uf_cuda_device *device, const void *ptr, size_t bytes, bool others, uf_cuda_buffer *buffer,
       uf_cuda_piece **pieces)
ABSENT(uf_cuda_buffer_map, uf_cuda_device *device, const uf_cuda_buffer *buffer, const uf_cuda_share *shares, const size_t *bytes,
       uf_cuda_mapping *mapping)
ABSENT(uf_cuda_copy, uf_cuda_device *device, void *dst, const void *src, size_t bytes, uint64_t *word, uint64_t value)
ABSENT(uf_cuda_stream_put, uf_cuda_device *device, struct CUstream_st *stream, void *dst, const void *src, size_t bytes,
       const uf_cuda_op *ops, size_t n, uf_cuda_join join, const char *what)
ABSENT(uf_cuda_stream_ops, uf_cuda_device *device, struct CUstream_st *stream, const uf_cuda_op *ops, size_t n, uf_cuda_join join,
       const char *what)
ABSENT(uf_cuda_writer_open, uf_cuda_device *device, const uf_settings *settings, uint64_t *probe, uf_cuda_writer **writer)
ABSENT(uf_cuda_apply, uf_cuda_writer *writer, uf_cuda_where where, uint64_t *word, int op, uint64_t value,
       uf_cuda_payload payload, uint64_t *old)
ABSENT(uf_cuda_words_create, uf_cuda_writer *writer, const uint64_t *words, size_t n, uf_cuda_updater updater)
ABSENT(uf_cuda_word_claim, uf_cuda_writer *writer, const uint64_t *word, uf_cuda_updater updater)
ABSENT_VOID(uf_cuda_writer_close, uf_cuda_writer *writer)
ABSENT_VOID(uf_cuda_words_forget, uf_cuda_writer *writer, const void *base, size_t bytes)
ABSENT_VOID(uf_cuda_writer_foresee, const uf_settings *settings, const uf_cuda_facts *facts, char *text, size_t bytes)
ABSENT_VOID(uf_cuda_close, uf_cuda_device *device)
ABSENT_VOID(uf_cuda_range_release, uf_cuda_device *device, uf_cuda_range *range)
ABSENT_VOID(uf_cuda_segment_drop, uf_cuda_device *device, uf_cuda_range *range, size_t bytes)
ABSENT_VOID(uf_cuda_share_close, uf_cuda_share *share)
ABSENT_VOID(uf_cuda_free, uf_cuda_device *device, void *ptr)
ABSENT_VOID(uf_cuda_host_free, uf_cuda_device *device, void *ptr)
ABSENT_VOID(uf_cuda_host_unregister, uf_cuda_device *device, void *ptr)
ABSENT_VOID(uf_cuda_buffer_release, uf_cuda_piece *pieces, int n)
ABSENT_VOID(uf_cuda_buffer_unmap, uf_cuda_device *device, uf_cuda_mapping *mapping)
ABSENT_BOOL(uf_cuda_near, const uf_cuda_facts *mine, const uf_cuda_facts *peer, const char **why)
ABSENT_BOOL(uf_cuda_capturing, void)
ABSENT_BOOL(uf_cuda_is_gpu, const void *ptr)

const uf_cuda_facts *uf_cuda_facts_of(const uf_cuda_device *device)
{
    static const uf_cuda_facts none;
    (void)device;
    return &none;
}

const char *uf_cuda_writer_text(const uf_cuda_writer *writer)
{
    (void)writer;
    return sentence;
}

uf_cuda_way uf_cuda_writer_way(const uf_cuda_writer *writer)
{
    (void)writer;
    return UF_CUDA_BY_HOST;
}

const char *uf_cuda_way_name(uf_cuda_way way)
{
    (void)way;
    return "none";
}

const char *uf_cuda_way_flush(uf_cuda_way way)
{
    (void)way;
    return sentence;
}
