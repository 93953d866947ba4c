/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BULKHEAD_STATE_HASH_H_
#define BULKHEAD_STATE_HASH_H_

#ifndef XXH_STATIC_LINKING_ONLY
#define XXH_STATIC_LINKING_ONLY /* so that a state of XXH3 may be on the stack */
#endif
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The hash of a shard's state, for whoever has its bytes in host memory: the state is cut into
 * pieces of BULKHEAD_STATE_PIECE bytes, the last as short as it is, and the hash is XXH3-64 of the
 * pieces' XXH3-64s, little endian, in order; both without a seed.
 *
 * Pieces, because XXH3 goes through its input in order: a GPU would have to send the whole state to
 * the host at every step. So it hashes all pieces at once and sends one byte of 2,048. 16 KiB are
 * few enough for a state of 1 GiB to be work for the largest GPU (65,536 pieces), and so many that
 * a CPU hardly notices: 256 MiB took 18 to 23 ms by pieces and 17 to 22 in one run (busy machine).
 */
#define BULKHEAD_STATE_PIECE ((size_t)16384)

/** Returns the XXH3-64 of piece `index`, from 0. */
static inline uint64_t bulkhead_piece_hash(const void* state, size_t bytes, size_t index) {
    const size_t at = index * BULKHEAD_STATE_PIECE;
    const size_t left = bytes - at;
    return XXH3_64bits((const char*)state + at,
                       left < BULKHEAD_STATE_PIECE ? left : BULKHEAD_STATE_PIECE);
}

static inline uint64_t bulkhead_state_hash(const void* state, size_t bytes) {
    size_t index = 0;
    XXH3_state_t all;
    XXH3_INITSTATE(&all);
    (void)XXH3_64bits_reset(&all);
    for (; index * BULKHEAD_STATE_PIECE < bytes; ++index) {
        const uint64_t digest = bulkhead_piece_hash(state, bytes, index);
        (void)XXH3_64bits_update(&all, &digest, sizeof digest);
    }
    return XXH3_64bits_digest(&all);
}

#ifdef __cplusplus
}
#endif

#endif /* BULKHEAD_STATE_HASH_H_ */
