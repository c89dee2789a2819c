/* mover.cuh - streams of puts with signals from one block, at the speed of the link, without a fence a message.
 *
 * Part of device.cuh. Each warp of the block is a mover: its first lane loads pieces of messages into stages of shared memory with bulk
 * copies and stores them to the peer with bulk copies, one group a piece, several in flight each way. A signal goes out `Lag` pieces
 * after its own, when the mover has seen its group complete (cp.async.bulk.wait_group; every `Every` pieces), in one of three ways:
 *
 *   UFD_UNSIGNALLED  none. When ufd_mover_block returns, all is complete: signal or fence then covers it.
 *   UFD_FENCED       formally sound, the default choice. wait_group makes the writes visible to the mover; fence.proxy.async brings them
 *                    into the generic proxy; an arrival at an mbarrier, one for each place of the ring of marks, tells the block's
 *                    signalling warp (arrivals release, its tests acquire), which makes one fence.acq_rel.sys for whatever is complete
 *                    (cumulative: it covers what the movers saw), and stores the signals. The knob: a fence as soon as `messages` wait
 *                    for one, or `ns` after the first of them. Fewer fences leave the movers undisturbed, and signals come later.
 *   UFD_COMPLETED    the mover itself stores the signal, relaxed, after wait_group. The argument: a write to a peer is visible to its
 *                    writer only once the L2 that is the home of the address, at the peer, has taken it and answered, since no nearer
 *                    cache holds it; every other observer reads from that same L2; so a store issued after the answer cannot be seen
 *                    before it. PTX does not say so: wait_group speaks of the executing thread only. Evidence instead of proof:
 *                    `near --prove` checks every word of 10^8 messages as soon as their signals show. UFD_FENCED remains for all others.
 *
 * Messages come from a function object, `bool next(warp, i, &row)`: the i-th message of that mover, false after the last. All lanes call
 * it, some twice, so it must give the same row each time. Messages whose addresses and size are multiples of 16 go by bulk copy, at
 * any size; others, and all below sm_90, by the warp's own loads and stores, after a pause until the earlier ones are complete and
 * with a release a message. A source written while the stream runs needs ufd_mover_source_ready by the thread that learnt of it. */
#ifndef UNFENCE_DEVICE_MOVER_CUH
#define UNFENCE_DEVICE_MOVER_CUH

#include "rma.cuh"

enum { UFD_UNSIGNALLED = 0, UFD_FENCED = 1, UFD_COMPLETED = 2 };

/* Warps that move, stages of each, bytes of a stage (a multiple of 128), pieces between a message and its signal, and pieces from one look
 * for completion to the next (which costs the mover some tens of nanoseconds and the SM its L1). Completion over NVLink takes about
 * 1.5 us: lag * piece / (a warp's share of the link) should be more. */
template <int Warps, int Stages, int StageBytes, int Lag, int Every = 1> struct ufd_mover_shape {
    static_assert(Warps >= 1 && Warps <= 31 && Stages >= 2 && StageBytes % 128 == 0, "not a mover");
    static_assert(Lag >= 0 && Lag <= 32 && Every >= 1 && Stages + Lag + Every <= 64,
                  "pieces under way must fit half of the marks");
    enum {
        warps = Warps,
        stages = Stages,
        stage_bytes = StageBytes,
        lag = Lag,
        every = Every,
        reading = Stages >= 8 ? Stages / 4 : 1, /* stores that may still read their stage when it is asked for again */
        ahead = Stages - reading,               /* loads in flight */
        marks = Stages + Lag + Every <= 16   ? 32
                : Stages + Lag + Every <= 32 ? 64
                                             : 128,
        half = marks / 2
    };
};

/* For a block of at least ufd_mover_threads threads. */
template <class Shape> constexpr __host__ __device__ uint32_t ufd_mover_threads(int mode)
{
    return 32u * (Shape::warps + (mode == UFD_FENCED ? 1 : 0));
}

/* A piece that waits in its stage. */
struct ufd_mover_piece {
    uint64_t to;
    uint64_t bytes;
};
/* The signal that follows a piece: address at the peer with the operation in bit 0, or 0 for none. */
struct ufd_mover_mark {
    uint64_t sig, value;
};

/* One mover's shared memory behind its stages. All 64-bit words but the marks and pieces are mbarriers. */
template <class Shape> struct ufd_mover_desk {
    ufd_mover_mark marks[Shape::marks];
    ufd_mover_piece pieces[Shape::stages];
    uint64_t full[Shape::stages]; /* the stage's load has arrived */
    uint64_t told[Shape::marks];  /* from the mover to the signalling warp: the mark's piece is complete */
    uint64_t free[2];             /* back: all signals of this half of the marks are out */
    uint64_t over;                /* from the mover: no more will be told */
    uint64_t pad;
};

/* Of shared memory, 128-byte aligned. */
template <class Shape> constexpr __host__ __device__ uint32_t ufd_mover_bytes(void)
{
    return (uint32_t)(Shape::warps * (Shape::stages * Shape::stage_bytes + (sizeof(ufd_mover_desk<Shape>) + 127) / 128 * 128));
}

struct ufd_mover_knob {
    uint32_t messages; /* UFD_FENCED: a fence when so many are complete; at least 1. Half a ring of a mover's marks never waits */
    uint64_t ns;       /* ... or so long after the first of them */
};

/* What a mover's first lane knows. Counts are of pieces, modulo 2^32. */
struct ufd_mover_state {
    uint64_t message;              /* the next to take */
    uint64_t to, from, left;       /* of the one being loaded */
    ufd_route route;               /* of the last one: streams seldom change their peer */
    ufd_mover_mark mark;           /* of the one being loaded */
    uint32_t loaded, stored, told; /* pieces loaded, stored, signalled (or handed to the signalling warp) */
    uint32_t load_stage, store_stage, store_parity;
    int rc;
    bool open, ended, plain; /* a message is being loaded; none is left; the next one cannot go by bulk copy */
};

/* After learning, by a wait, that a source has been written by ordinary stores, and before its message is given to a mover. */
UFD_FN void ufd_mover_source_ready(void)
{
    ufd_ptx_fence_async();
}

UFD_FN void ufd_mover_publish(const ufd_mover_mark &mark, bool ordered)
{
    if (mark.sig)
        ufd_signal_at((uint64_t *)(mark.sig & ~(uint64_t)1), (int)(mark.sig & 1), mark.value, ordered);
}

/* Row to addresses at its peer. */
template <int Mode, class S>
UFD_FN int ufd_mover_aim(const ufd_ctx &c, ufd_route *route, const ufd_row &row, uint64_t *to, ufd_mover_mark *mark)
{
    int64_t shift = 0;
    int rc = ufd_check_target<S>(c, UFD_IN_MOVER, row.bytes ? row.dst : row.sig, row.bytes, 1, row.pe);
    if (rc)
        return rc;
    if (row.pe != route->pe)
        *route = ufd_route_to(c, row.pe);
    if (row.bytes && (rc = ufd_reach_by(c, *route, row.dst, &shift)))
        return rc;
    *to = (uint64_t)row.dst + (uint64_t)shift;
    mark->sig = 0, mark->value = row.value;
    if (Mode == UFD_UNSIGNALLED || !row.sig)
        return UF_OK;
    if ((rc = ufd_check_target<S>(c, UFD_IN_MOVER, row.sig, 8, 8, row.pe)) || (rc = ufd_reach_by(c, *route, row.sig, &shift)))
        return rc;
    mark->sig = ((uint64_t)row.sig + (uint64_t)shift) | (row.op == UF_SIGNAL_ADD ? 1u : 0u);
    return UF_OK;
}

UFD_FN bool ufd_mover_by_bulk(const ufd_row &row)
{
    return UFD_HAS_BULK && row.bytes > 0 && (((uint64_t)row.dst | (uint64_t)row.src | row.bytes) % 16) == 0;
}

/* Before the first mark of a half of the ring is written again: its last signals are out. The pieces that the signalling warp waits
 * for have been told by then, since those under way fit the other half, and it lets no half that is told wait for more. */
template <class Shape, int Mode> UFD_FN void ufd_mover_room(const ufd_mover_state &m, ufd_mover_desk<Shape> *desk)
{
    bool waits = Mode == UFD_FENCED && m.loaded % Shape::half == 0;
    while (waits) /* not the first time: a fresh mbarrier's phase before the first is over */
        waits = !ufd_ptx_barrier_test(&desk->free[m.loaded / Shape::half % 2], (m.loaded / Shape::marks - 1) & 1);
}

/* Signals of all pieces below `upto`, which are complete, or a word to the signalling warp that they are. */
template <class Shape, int Mode>
UFD_FN void ufd_mover_tell(ufd_mover_state *m, ufd_mover_desk<Shape> *desk, uint32_t upto, bool ordered)
{
    if (Mode == UFD_FENCED)
        ufd_ptx_fence_async();
#pragma unroll 1
    for (; m->told != upto; m->told++)
        if (Mode == UFD_FENCED)
            ufd_ptx_barrier_arrive(&desk->told[m->told % Shape::marks]); /* to the test in ufd_mover_count */
        else
            ufd_mover_publish(desk->marks[m->told % Shape::marks], ordered);
}

#if UFD_HAS_BULK

/* True if a piece can be loaded: the open message has one, or the next message is opened. */
template <class Shape, int Mode, class Next>
UFD_FN bool ufd_mover_take(const ufd_ctx &c, ufd_mover_state *m, uint32_t warp, Next &next)
{
    if (m->open || m->ended || m->plain)
        return m->open;
    ufd_row row;
    m->ended = !next(warp, m->message, &row);
    if (m->ended)
        return false;
    m->plain = !ufd_mover_by_bulk(row);
    if (m->plain)
        return false;
    m->rc = ufd_mover_aim<Mode, ufd_thread>(c, &m->route, row, &m->to, &m->mark);
    m->ended = m->rc != UF_OK;
    m->from = (uint64_t)row.src, m->left = row.bytes;
    m->open = !m->ended;
    m->message++;
    return m->open;
}

template <class Shape, int Mode> UFD_FN void ufd_mover_load(ufd_mover_state *m, ufd_mover_desk<Shape> *desk, uint8_t *stages)
{
    uint32_t s = m->load_stage, bytes = m->left < Shape::stage_bytes ? (uint32_t)m->left : (uint32_t)Shape::stage_bytes;
    ufd_mover_room<Shape, Mode>(*m, desk);
    ufd_ptx_barrier_expect(&desk->full[s], bytes);
    ufd_ptx_bulk_load(stages + s * Shape::stage_bytes, m->from, bytes, &desk->full[s]);
    desk->pieces[s].to = m->to, desk->pieces[s].bytes = bytes;
    m->to += bytes, m->from += bytes, m->left -= bytes;
    m->open = m->left > 0;
    if (Mode != UFD_UNSIGNALLED) {
        desk->marks[m->loaded % Shape::marks].sig = m->open ? 0 : m->mark.sig;
        desk->marks[m->loaded % Shape::marks].value = m->mark.value;
    }
    m->loaded++;
    m->load_stage = s + 1 == Shape::stages ? 0 : s + 1;
}

template <class Shape> UFD_FN void ufd_mover_store(ufd_mover_state *m, ufd_mover_desk<Shape> *desk, const uint8_t *stages)
{
    uint32_t s = m->store_stage;
    ufd_ptx_barrier_wait(&desk->full[s], m->store_parity);
    ufd_ptx_bulk_store(desk->pieces[s].to, stages + s * Shape::stage_bytes, (uint32_t)desk->pieces[s].bytes);
    ufd_ptx_bulk_commit();
    m->stored++;
    m->store_stage = s + 1 == Shape::stages ? 0 : s + 1;
    m->store_parity ^= s + 1 == Shape::stages;
}

/* By the first lane: everything up to the end or to a message that cannot go by bulk copy, and all of it complete. */
template <class Shape, int Mode, class Next>
UFD_FN void ufd_mover_stream(const ufd_ctx &c, ufd_mover_state *m, ufd_mover_desk<Shape> *desk, uint8_t *stages, uint32_t warp,
                             Next &next)
{
    uint32_t first = m->stored;
    while (m->loaded - m->stored < Shape::ahead && ufd_mover_take<Shape, Mode>(c, m, warp, next))
        ufd_mover_load<Shape, Mode>(m, desk, stages);
    while (m->stored != m->loaded) {
        ufd_mover_store(m, desk, stages);
        if (ufd_mover_take<Shape, Mode>(c, m, warp, next)) {
            ufd_ptx_bulk_read<Shape::reading>(); /* the stage that the next load takes is free */
            ufd_mover_load<Shape, Mode>(m, desk, stages);
        }
        if (Mode != UFD_UNSIGNALLED && m->stored - first > Shape::lag && m->stored % Shape::every == 0) {
            ufd_ptx_bulk_complete<Shape::lag>();
            ufd_mover_tell<Shape, Mode>(m, desk, m->stored - Shape::lag, false);
        }
    }
    ufd_ptx_bulk_complete<0>();
    ufd_ptx_fence_async(); /* so that a signal or fence by anyone after this call covers it */
    if (Mode != UFD_UNSIGNALLED)
        ufd_mover_tell<Shape, Mode>(m, desk, m->stored, false);
}

#endif

/* By the whole warp: message m->message, which is not for bulk copies. All earlier ones are complete. */
template <class Shape, int Mode>
UFD_FN int ufd_mover_plain(const ufd_ctx &c, ufd_mover_state *m, ufd_mover_desk<Shape> *desk, const ufd_row &row)
{
    uint64_t to;
    ufd_mover_mark mark;
    ufd_route route = ufd_route_to(c, row.pe);
    int rc = ufd_mover_aim<Mode, ufd_warp>(c, &route, row, &to, &mark);
    if (rc)
        return rc;
    ufd_copy<ufd_warp, ufd_cached>((void *)to, row.src, row.bytes);
    __syncwarp();
    if (ufd_warp::rank() == 0 && Mode != UFD_UNSIGNALLED) {
        ufd_mover_room<Shape, Mode>(*m, desk);
        desk->marks[m->loaded % Shape::marks] = mark;
        m->stored = ++m->loaded;
        ufd_mover_tell<Shape, Mode>(m, desk, m->stored, true);
    }
    return UF_OK;
}

/* One warp moves its messages. */
template <class Shape, int Mode, class Next>
UFD_FN int ufd_mover_run(const ufd_ctx &c, ufd_mover_desk<Shape> *desk, uint8_t *stages, uint32_t warp, Next &next)
{
    ufd_mover_state m = {};
    m.route.pe = -1;
    bool leader = ufd_warp::rank() == 0;
#if UFD_HAS_BULK
    if (leader)
        ufd_ptx_fence_async(); /* the block's ordinary stores to its sources, before bulk loads of them */
#endif
    int rc = UF_OK;
    for (;;) {
#if UFD_HAS_BULK
        if (leader)
            ufd_mover_stream<Shape, Mode>(c, &m, desk, stages, warp, next);
        __syncwarp();
        m.message = __shfl_sync(0xffffffffu, m.message, 0);
        m.rc = __shfl_sync(0xffffffffu, m.rc, 0);
        m.ended = __shfl_sync(0xffffffffu, (int)m.ended, 0);
#endif
        ufd_row row;
        if (m.ended || (rc = m.rc) != UF_OK || !next(warp, m.message, &row))
            break;
        if ((rc = ufd_mover_plain<Shape, Mode>(c, &m, desk, row)) != UF_OK)
            break;
        m.message++;
        m.plain = false;
    }
    if (leader && Mode == UFD_FENCED)
        ufd_ptx_barrier_arrive(&desk->over); /* after all that was told */
    return rc == UF_OK ? m.rc : rc;
}

template <class Shape> UFD_FN ufd_mover_desk<Shape> *ufd_mover_desk_of(void *shared, uint32_t warp)
{
    uint8_t *desks = (uint8_t *)shared + Shape::warps * Shape::stages * Shape::stage_bytes;
    return (ufd_mover_desk<Shape> *)(desks + warp * ((sizeof(ufd_mover_desk<Shape>) + 127) / 128 * 128));
}

/* Pieces of a mover that are complete, of which `done` are known. */
template <class Shape> UFD_FN uint32_t ufd_mover_count(ufd_mover_desk<Shape> *desk, uint32_t done)
{
    while (ufd_ptx_barrier_test(&desk->told[done % Shape::marks],
                                (done / Shape::marks) & 1)) /* acquires what ufd_mover_tell released */
        done++;
    return done;
}

/* The signals of a mover's pieces from `from` up to `upto`, and its marks back, a half at a time. */
template <class Shape> UFD_FN void ufd_mover_signal(ufd_mover_desk<Shape> *desk, uint32_t from, uint32_t upto)
{
    while (from != upto) {
        ufd_mover_publish(desk->marks[from % Shape::marks], false);
        if (++from % Shape::half == 0)
            ufd_ptx_barrier_arrive(&desk->free[(from / Shape::half - 1) % 2]); /* to the test in ufd_mover_room */
    }
}

/* By the signalling warp, lane i for mover i, until all have finished. */
template <class Shape> UFD_FN void ufd_mover_signal_all(void *shared, const ufd_mover_knob &knob)
{
    uint32_t lane = ufd_warp::rank(), told = 0, done = 0;
    bool mine = lane < Shape::warps, over = !mine;
    ufd_mover_desk<Shape> *desk = ufd_mover_desk_of<Shape>(shared, mine ? lane : 0);
    uint64_t since = 0;
    for (;;) {
        if (mine) {
            over = ufd_ptx_barrier_test(&desk->over, 0); /* before the count, so that the last count is whole */
            done = ufd_mover_count(desk, done);
        }
        uint32_t waiting = __reduce_add_sync(0xffffffffu, done - told);
        bool all_over = __all_sync(0xffffffffu, over);
        if (waiting == 0) {
            if (all_over)
                return;
            continue;
        }
        bool full = __any_sync(0xffffffffu, done / Shape::half != told / Shape::half); /* its mover may stand still for it */
        if (waiting < knob.messages && !full && !all_over) {
            uint64_t now = ufd_ptx_ns();
            since = since ? since : now;
            if (now - since < knob.ns)
                continue;
        }
        since = 0;
        ufd_ptx_fence();
        if (mine)
            ufd_mover_signal(desk, told, done);
        told = done;
    }
}

/* A mover's mbarriers, by its warp: `full` of the stages, and those to and from the signalling warp. */
template <class Shape, int Mode> UFD_FN void ufd_mover_desk_open(ufd_mover_desk<Shape> *desk)
{
    uint32_t lane = ufd_warp::rank();
    for (uint32_t i = lane; i < Shape::stages; i += 32)
        ufd_ptx_barrier_init(&desk->full[i]);
    for (uint32_t i = lane; i < Shape::marks && Mode == UFD_FENCED; i += 32)
        ufd_ptx_barrier_init(&desk->told[i]);
    if (lane < 2)
        ufd_ptx_barrier_init(&desk->free[lane]);
    if (lane == 2)
        ufd_ptx_barrier_init(&desk->over);
#if UFD_HAS_BULK
    ufd_ptx_barriers_ready();
#endif
}

template <class Shape, int Mode> UFD_FN void ufd_mover_desk_close(ufd_mover_desk<Shape> *desk)
{
    uint32_t lane = ufd_warp::rank();
    for (uint32_t i = lane; i < Shape::stages; i += 32)
        ufd_ptx_barrier_end(&desk->full[i]);
    for (uint32_t i = lane; i < Shape::marks && Mode == UFD_FENCED; i += 32)
        ufd_ptx_barrier_end(&desk->told[i]);
    if (lane < 2)
        ufd_ptx_barrier_end(&desk->free[lane]);
    if (lane == 2)
        ufd_ptx_barrier_end(&desk->over);
}

/* Moves all messages of the block's movers. Called by all threads of the block, at least ufd_mover_threads<Shape>(Mode); `shared` is
 * ufd_mover_bytes<Shape>() of shared memory, 128-byte aligned, free again when it returns. Then all signals are out and the sources
 * may be reused. The first error of a mover ends that mover: UF_EUNSUPPORTED, UF_ERANGE, UF_EINVAL. A kernel that calls it
 * names its block's size in __launch_bounds__: what it takes in registers does not fit blocks of any size. */
template <class Shape, int Mode, class Next>
UFD_FN int ufd_mover_block(const ufd_ctx &c, void *shared, const ufd_mover_knob &knob, Next next)
{
    uint32_t warp = ufd_block_rank() / 32;
    int rc = UF_OK;
    bool moves = warp < Shape::warps;
    ufd_mover_desk<Shape> *desk = ufd_mover_desk_of<Shape>(shared, moves ? warp : 0);
    if (moves)
        ufd_mover_desk_open<Shape, Mode>(desk);
    __syncthreads();
    if (moves)
        rc = ufd_mover_run<Shape, Mode>(c, desk, (uint8_t *)shared + warp * Shape::stages * Shape::stage_bytes, warp, next);
    else if (Mode == UFD_FENCED && warp == Shape::warps)
        ufd_mover_signal_all<Shape>(shared, knob);
    __syncthreads(); /* nobody uses an mbarrier any more */
    if (moves)
        ufd_mover_desk_close<Shape, Mode>(desk);
    return ufd_worst<ufd_block>(rc);
}

/* A table of rows shared out over the movers of a grid, in turn: the message source of ufd_put_batch_block. */
struct ufd_mover_rows {
    const ufd_row *rows;
    uint64_t n;
    uint32_t first, step; /* this block's first mover, and movers in all */
    UFD_METHOD bool operator()(uint32_t warp, uint64_t i, ufd_row *row) const
    {
        uint64_t at = first + warp + i * step;
        if (at >= n)
            return false;
        *row = rows[at];
        return true;
    }
};

/* Many puts, as uf_put_batch, by all blocks of a one-dimensional grid together. */
template <class Shape, int Mode>
UFD_FN int ufd_put_batch_block(const ufd_ctx &c, void *shared, const ufd_mover_knob &knob, const ufd_row *rows, uint64_t n)
{
    ufd_mover_rows next = {rows, n, blockIdx.x * Shape::warps, gridDim.x * Shape::warps};
    return ufd_mover_block<Shape, Mode>(c, shared, knob, next);
}

#endif
