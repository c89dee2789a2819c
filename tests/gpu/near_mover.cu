/* near_mover.cu - streams of puts by the mover, in each mode and several shapes: part of device_near. */
#include "near.cuh"

enum { SENDERS = 2, CHECKERS = 6, SLOT = 24576, SEED = 5, ALL_OUT = 511 };

/* Message i of a mover: most go by bulk copy, some do not, some are empty, some add. */
struct stream {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t *sigs;
    uint32_t first, per_mover;
    int pe;

    UFD_METHOD static uint64_t bytes_of(uint32_t id)
    {
        const uint32_t h = id * 2654435761u >> 8;
        const uint64_t sizes[8] = {16, 1024, 1008, 8192, 4096, 24000, 48, 2048};
        return id % 13 == 7 ? h % 700 : id % 29 == 11 ? 0 : sizes[h % 8];
    }
    UFD_METHOD static uint32_t skew_of(uint32_t id) /* bytes by which target and source are off a multiple of 16 */
    {
        return id % 17 == 3 ? 4 : id % 19 == 5 ? 1 : 0;
    }
    UFD_METHOD bool operator()(uint32_t warp, uint64_t i, ufd_row *row) const
    {
        uint32_t id = (first + warp) * per_mover + (uint32_t)i;
        if (i >= per_mover)
            return false;
        row->dst = dst + (uint64_t)id * SLOT + skew_of(id);
        row->src = src + id % 64 * 16 + skew_of(id) * 2;
        row->bytes = bytes_of(id);
        row->sig = sigs + id;
        row->value = id + SEED;
        row->pe = pe;
        row->op = id % 2 ? UF_SIGNAL_ADD : UF_SIGNAL_SET;
        row->flags = UF_WEAK;
        return true;
    }
};

/* The source is one pattern; message id shows it from a place of its own. */
static __device__ bool arrived(const uint8_t *dst, uint32_t id, int pe)
{
    const uint64_t from = id % 64 * 16 + stream::skew_of(id) * 2, bytes = stream::bytes_of(id);
    const uint8_t *at = dst + (uint64_t)id * SLOT + stream::skew_of(id);
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x)
        if (at[i] != near_byte(pe, 1, from + i))
            return false;
    return (threadIdx.x != 0 || at[bytes] == 0); /* nothing behind */
}

template <class Shape> constexpr __host__ __device__ uint32_t threads_of(int mode)
{
    return ufd_mover_threads<Shape>(mode) < 128 ? 128 : ufd_mover_threads<Shape>(mode);
}

/* Blocks 0 and 1 send to the right; the others check what comes from the left, each message as soon as its signal shows. */
template <class Shape, int Mode>
__global__ void __launch_bounds__(threads_of<Shape>(Mode)) moves(rig_gang g, uint32_t per_mover, uint32_t batch, uint64_t ns)
{
    extern __shared__ __align__(128) uint8_t stages[];
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w), right = (me + 1) % n, left = (me + n - 1) % n;
    const uint32_t messages = SENDERS * Shape::warps * per_mover;
    uint8_t *src = near_data(w, 0) + blockIdx.x * 65536, *dst = near_data(w, 2);
    uint64_t *sigs = (uint64_t *)near_data(w, 1);
    if (blockIdx.x < SENDERS) {
        stream next = {dst, src, sigs, blockIdx.x * Shape::warps, per_mover, right};
        near_fill(src, SLOT + 2048, me, 1);
        ufd_mover_knob knob = {batch, ns};
        int rc = ufd_mover_block<Shape, Mode>(c, stages, knob, next);
        NEAR_IS(g, rc == 0, 1, -rc, 0);
        ufd_signal_block(c, near_signal(w, ALL_OUT), UF_SIGNAL_ADD, 1, right, UF_STRONG);
        return;
    }
    if (Mode == UFD_UNSIGNALLED)
        NEAR_IS(g, ufd_wait_block(w, near_signal(w, ALL_OUT), UF_EQ, SENDERS, UFD_WORLD_TIMEOUT) == 0, 2, 0, 0);
    for (uint32_t id = blockIdx.x - SENDERS; id < messages; id += CHECKERS) {
        int rc = Mode == UFD_UNSIGNALLED ? 0 : ufd_wait_block(w, sigs + id, UF_EQ, id + SEED, UFD_WORLD_TIMEOUT);
        NEAR_IS(g, rc == 0, 3, id, sigs[id]);
        NEAR_IS(g, arrived(dst, id, left), 4, id, stream::bytes_of(id));
        if (__syncthreads_or(rc))
            return;
    }
}

template <class Shape, int Mode> static void moves_in(near_run *n, const char *name, uint32_t batch, uint64_t ns)
{
    char promise[160];
    rig_reset(&n->r);
    rig_start(&n->r, moves<Shape, Mode>, SENDERS + CHECKERS, threads_of<Shape>(Mode), ufd_mover_bytes<Shape>(),
              n->quick ? 20u : (uint32_t)((NEAR_HEAP - NEAR_DATA - 2 * NEAR_AREA) / SLOT / SENDERS / Shape::warps), batch, ns);
    snprintf(promise, sizeof promise, "mover, %s, %d warps, %d stages of %d, lag %d every %d%s: whole before its signal, once",
             name, Shape::warps, Shape::stages, Shape::stage_bytes, Shape::lag, Shape::every,
             batch > 1 ? ", fences held back" : "");
    near_report(n, promise, 0);
}

template <class Shape> static void moves_of(near_run *n)
{
    moves_in<Shape, UFD_UNSIGNALLED>(n, "unsignalled", 1, 0);
    moves_in<Shape, UFD_FENCED>(n, "fenced", 1, 0);
    moves_in<Shape, UFD_FENCED>(n, "fenced", 1000, 20000);
    moves_in<Shape, UFD_COMPLETED>(n, "completed", 1, 0);
}

/* A table of rows to all PEs, this one too. */
template <int Mode> __global__ void __launch_bounds__(192) batches(rig_gang g, uint32_t n_rows)
{
    typedef ufd_mover_shape<4, 4, 2048, 3> shape;
    extern __shared__ __align__(128) uint8_t stages[];
    const ufd_world *w = rig_world(g);
    ufd_ctx c = ufd_ctx_block(w);
    int me = ufd_pe(w), n = ufd_n_pes(w);
    ufd_row *rows = (ufd_row *)near_data(w, 0);
    uint8_t *src = near_data(w, 1), *dst = near_data(w, 2);
    near_fill(src, 8192, me, 3);
    for (uint32_t i = ufd_block_rank(); i < n_rows; i += blockDim.x) {
        int to = (int)i % n;
        rows[i] = {dst + (uint64_t)(me * n_rows + i / n) * 4096,
                   src + i % 9 * 16,
                   i % 5 == 4 ? 77u : 1024u + i % 7 * 160u,
                   i % 3 ? near_signal(w, me) : (uint64_t *)0,
                   1,
                   to,
                   UF_SIGNAL_ADD,
                   UF_WEAK};
    }
    __syncthreads();
    ufd_mover_knob knob = {4, 1000};
    int rc = ufd_put_batch_block<shape, Mode>(c, stages, knob, rows, n_rows);
    NEAR_IS(g, rc == 0, 1, -rc, 0);
    NEAR_IS(g, ufd_barrier_block(w) == 0, 2, 0, 0);
    for (int from = 0; from < n; from++) {
        uint64_t signalled = 0;
        for (uint32_t i = (uint32_t)me; i < n_rows; i += n) {
            const uint8_t *at = dst + (uint64_t)(from * n_rows + i / n) * 4096;
            uint64_t bytes = i % 5 == 4 ? 77 : 1024 + i % 7 * 160;
            signalled += i % 3 != 0;
            for (uint64_t x = threadIdx.x; x < bytes; x += blockDim.x)
                NEAR_IS(g, at[x] == near_byte(from, 3, i % 9 * 16 + x), 3, i, x);
        }
        NEAR_IS(g, ufd_wait_block(w, near_signal(w, from), UF_EQ, Mode == UFD_UNSIGNALLED ? 0 : signalled, 1000000) == 0, 4, from,
                signalled);
    }
}

template <int Mode> static void batches_in(near_run *n, const char *name)
{
    char promise[120];
    rig_reset(&n->r);
    rig_start(&n->r, batches<Mode>, 1, 192, ufd_mover_bytes<ufd_mover_shape<4, 4, 2048, 3>>(), n->quick ? 30u : 700u);
    snprintf(promise, sizeof promise, "a batch of rows, %s: each where and as often as its row says, all complete on return",
             name);
    near_report(n, promise, 0);
}

void near_mover(near_run *n)
{
    moves_of<ufd_mover_shape<4, 4, 4096, 2>>(n);
    if (!n->quick) {
        moves_of<ufd_mover_shape<8, 9, 1024, 16>>(n);
        moves_of<ufd_mover_shape<16, 12, 1024, 8, 4>>(n);
        moves_of<ufd_mover_shape<1, 2, 8192, 0>>(n);
    }
    batches_in<UFD_UNSIGNALLED>(n, "unsignalled");
    batches_in<UFD_FENCED>(n, "fenced");
    batches_in<UFD_COMPLETED>(n, "completed");
}
