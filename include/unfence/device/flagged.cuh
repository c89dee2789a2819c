/* flagged.cuh - small puts whose payload carries its own flags: no fence, no second store, one trip.
 *
 * Part of device.cuh. A slot is ufd_flagged_bytes(n) of symmetric memory, 16-byte aligned, zero at first: units of 16 bytes, eight of payload
 * and eight of flag. A unit is written and read as one 128-bit access, which PTX does not tear, so whoever sees the flag has the
 * payload, and no order between units is needed. Bare 16-byte words take 0.61 us one way over NVLink; docs/gpu.md has what ours take;
 * the wire carries twice the payload, so above some KiB ufd_put_signal or the mover is the better choice.
 *
 * The flag is the message's sequence number: never 0, and larger for each message that a slot receives. Reuse: the next message may
 * be put into a slot only when its sender knows that the last one was taken: by any answer, even a weak signal, since what was read
 * with the old number cannot have been the new payload. A receiver that finds a larger number than it waits for says UF_EMISMATCH:
 * the rule was broken. A flagged put covers its own bytes only and orders nothing else. Slots are for near peers only: a NIC that
 * writes them promises no 128-bit access. */
#ifndef UNFENCE_DEVICE_FLAGGED_CUH
#define UNFENCE_DEVICE_FLAGGED_CUH

#include "copy.cuh"
#include "wait.cuh"

/* Of a slot for `bytes` of payload. */
UFD_FN uint64_t ufd_flagged_bytes(uint64_t bytes)
{
    return bytes <= 8 ? 16 : (bytes + 7) / 8 * 16;
}

/* What is not a whole aligned word is kept out of the way of what is. */
inline __device__ __noinline__ uint64_t ufd_flagged_pack_bytes(const void *src, uint64_t bytes)
{
    uint64_t word = 0;
    for (uint64_t i = 0; i < bytes && i < 8; i++)
        word |= (uint64_t)((const uint8_t *)src)[i] << (8 * i);
    return word;
}

inline __device__ __noinline__ void ufd_flagged_unpack_bytes(void *dst, uint64_t bytes, uint64_t word)
{
    for (uint64_t i = 0; i < bytes && i < 8; i++)
        ((uint8_t *)dst)[i] = (uint8_t)(word >> (8 * i));
}

/* Up to 8 bytes of payload as a word: from a register where the source is the caller's own variable. */
UFD_FN uint64_t ufd_flagged_pack(const void *src, uint64_t bytes)
{
    if (bytes >= 8 && (uint64_t)src % 8 == 0)
        return *(const uint64_t *)src;
    return ufd_flagged_pack_bytes(src, bytes);
}

UFD_FN void ufd_flagged_unpack(void *dst, uint64_t bytes, uint64_t word)
{
    if (bytes >= 8 && (uint64_t)dst % 8 == 0)
        *(uint64_t *)dst = word;
    else
        ufd_flagged_unpack_bytes(dst, bytes, word);
}

/* The payload of one unit, when its flag says that it is there. */
UFD_FN int ufd_flagged_await(const ufd_world *w, const uint8_t *unit, uint64_t sequence, ufd_patience *patience, uint64_t *word)
{
    for (;;) {
        uint64_t flag;
        ufd_ptx_load_pair(unit, word, &flag);
        if (flag == sequence)
            return UF_OK;
        int rc = flag > sequence ? UF_EMISMATCH : ufd_patience_turn(w, patience);
        if (rc)
            return ufd_fail(w, rc, UFD_IN_FLAGGED, -1, unit, flag, sequence);
    }
}

/* Puts `bytes` (any number and alignment) into `slot` of `pe` as message `sequence`. The source may be reused at once (in warp and block
 * scope after ufd_flush). bytes 0 still arrives. */
template <class S>
UFD_FN int ufd_put_flagged_in(const ufd_ctx &c, void *slot, const void *src, uint64_t bytes, uint64_t sequence, int pe)
{
    int64_t shift;
    int rc = ufd_check_target<S>(c, UFD_IN_FLAGGED, slot, ufd_flagged_bytes(bytes), 16, pe);
    if (rc || (rc = ufd_reach(c, slot, pe, &shift)))
        return rc;
    uint64_t units = ufd_flagged_bytes(bytes) / 16, to = (uint64_t)ufd_moved(slot, shift);
    S::sync();
    for (uint64_t i = S::rank(); i < units; i += S::size())
        ufd_ptx_store_pair((void *)(to + 16 * i), ufd_flagged_pack((const uint8_t *)src + 8 * i, bytes - 8 * i), sequence);
    return UF_OK;
}

/* Waits for message `sequence` in this PE's `slot` and copies its payload to `dst` (any memory, any alignment). Each thread of the
 * scope waits for its own units; all of dst is written when it returns UF_OK. */
template <class S>
UFD_FN int ufd_wait_flagged_in(const ufd_world *w, void *dst, const void *slot, uint64_t bytes, uint64_t sequence,
                               uint64_t timeout_ns)
{
    uint64_t units = ufd_flagged_bytes(bytes) / 16, word = 0;
    int rc = UF_OK;
    ufd_patience patience = ufd_patience_of(w, timeout_ns);
    for (uint64_t i = S::rank(); i < units && rc == UF_OK; i += S::size()) {
        rc = ufd_flagged_await(w, (const uint8_t *)slot + 16 * i, sequence, &patience, &word);
        if (rc == UF_OK)
            ufd_flagged_unpack((uint8_t *)dst + 8 * i, bytes - 8 * i, word);
    }
    return ufd_worst<S>(rc);
}

#endif
