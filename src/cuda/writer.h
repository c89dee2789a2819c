/* writer.h - stores signal words that GPUs and streams wait for, on behalf of the engine: one interface, four ways.
 *
 * What arrives over the network is applied by the owner's engine, a CPU thread. A word in host memory it updates itself; a word in GPU memory it
 * may not touch, so a writer does it: through a mapping by GDRCopy, or by a memory operation on the device's own stream. The way is chosen
 * when the writer is opened, by trying, and has a name; why the others were not taken is told as well. Each says what it needs before the
 * store when the payload was written to GPU memory by a NIC, and does it (uf_cuda_apply): a CQE says only that the bytes were handed to PCIe.
 *
 * One updater class per word: near peers store to words in GPU memory by NVLink or PCIe, the engine by a writer, and no atomic covers both.
 * So who is first to update a word fixes its class, and the other kind is refused with a sentence; a mixed word is updated by the
 * engine alone, near peers asking it. Any thread may call; nothing here waits for a stream of the program. */
#ifndef UF_CUDA_WRITER_H
#define UF_CUDA_WRITER_H

#include "cuda/gpu.h"

typedef struct uf_cuda_writer uf_cuda_writer;

typedef enum uf_cuda_way {
    UF_CUDA_BY_COUNTER = 0, /* the NIC counts arrivals into the word: no store of ours; needs a NIC with such counters */
    UF_CUDA_BY_GDRCOPY,     /* the CPU stores through GDRCopy's mapping of the GPU memory */
    UF_CUDA_BY_STREAM,      /* a 64-bit store on the device's own stream, after the copies that were given to it */
    UF_CUDA_BY_HOST,        /* the word is in host memory that GPUs see: the CPU's own atomic instruction */
    UF_CUDA_WAYS
} uf_cuda_way;

/* "gdrcopy", and a static sentence that says what flush the way needs. */
const char *uf_cuda_way_name(uf_cuda_way way);
const char *uf_cuda_way_flush(uf_cuda_way way);

/* A writer of words in GPU memory of `device`. `probe` is a word of the memory it is for (GPU memory): the ways are tried on it, its value stays.
 * UNFENCE_CUDA_SIGNALS names one way or says auto. UF_EUNSUPPORTED with the reason of each way if none works. */
int uf_cuda_writer_open(uf_cuda_device *device, const uf_settings *settings, uint64_t *probe, uf_cuda_writer **writer);
void uf_cuda_writer_close(uf_cuda_writer *writer);
uf_cuda_way uf_cuda_writer_way(const uf_cuda_writer *writer);
/* "gdrcopy (NIC counters: ...)": the way taken and why those before it were not; lives as long as the writer. */
const char *uf_cuda_writer_text(const uf_cuda_writer *writer);

/* The same before any GPU is opened, as far as it can be told then: for `unfence info`. */
void uf_cuda_writer_foresee(const uf_settings *settings, const uf_cuda_facts *facts, char *text, size_t bytes);

typedef enum uf_cuda_payload {
    UF_CUDA_PAYLOAD_DONE = 0, /* none, or in host memory, or copied by a stream that has been waited for or is the device's own */
    UF_CUDA_PAYLOAD_BY_NIC    /* written to the GPU's memory by a NIC: flushed before the word is stored */
} uf_cuda_payload;

typedef enum uf_cuda_where { UF_CUDA_WORD_ON_GPU = 0, UF_CUDA_WORD_ON_HOST } uf_cuda_where;

/* What the engine does to a word: op is UF_SIGNAL_SET or UF_SIGNAL_ADD, the word is 8 bytes and aligned. The engine is the only updater of
 * words in GPU memory that it applies to (claimed for it here), so ADD is a load and a store there. *old (may be NULL) is what was there: then,
 * and for ADD, the stream's way waits for a copy of 8 bytes, and else nothing is waited for. */
int uf_cuda_apply(uf_cuda_writer *writer, uf_cuda_where where, uint64_t *word, int op, uint64_t value, uf_cuda_payload payload,
                  uint64_t *old);

/* Who updates a word in GPU memory. */
typedef enum uf_cuda_updater { UF_CUDA_BY_PEERS = 1, UF_CUDA_BY_ENGINE, UF_CUDA_MIXED } uf_cuda_updater;

/* Fixes the class of `n` words before anybody updates them: at their creation. UF_EINVAL: one has another class already. */
int uf_cuda_words_create(uf_cuda_writer *writer, const uint64_t *words, size_t n, uf_cuda_updater updater);
/* Forgets the classes of all words in a range, and what the writer has mapped of it, before its memory is freed. */
void uf_cuda_words_forget(uf_cuda_writer *writer, const void *base, size_t bytes);
/* An update by `updater` (peers or engine) is about to happen: the first of a word without a class fixes it. UF_EINVAL with a sentence if the
 * word belongs to the other; mixed words belong to the engine. */
int uf_cuda_word_claim(uf_cuda_writer *writer, const uint64_t *word, uf_cuda_updater updater);

#endif
