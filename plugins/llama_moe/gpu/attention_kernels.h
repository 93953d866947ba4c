// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/tiles.h"

/// Causal attention by tiles of queries and keys, so that no scores reach the device's memory:
/// after FlashAttention-2 (Dao 2023, arXiv 2307.08691), but in two passes over the keys forward, so
/// that probabilities are rounded once, as a softmax's, and in two kinds of jobs backward, so that
/// no sum is of several blocks.
namespace bulkhead::llama_moe::gpu {

constexpr uint32_t kTile = 64;  ///< queries, or keys, taken at once
constexpr uint32_t kItems = 4;  ///< in which a row of a tile of scores is taken

/// Queries and keys of all samples, cut into tiles. A tile lies in one chunk.
struct AttentionTiles {
    const Bf16* qkv;  ///< [sample][row][width], turned
    uint64_t samples, sequence, chunk;
    uint32_t heads, kvHeads, headDim;
    float scale;  ///< of scores

    struct Tile {
        uint64_t sample;
        uint32_t head;
        uint64_t chunkBegin, chunkEnd;  ///< rows of the sample
        uint64_t row;                   ///< the first of the tile
        uint32_t rows;                  ///< 0: behind the sample's end
    };

    BULKHEAD_BOTH uint64_t width() const { return uint64_t{heads + 2 * kvHeads} * headDim; }
    BULKHEAD_BOTH uint64_t chunks() const { return (sequence + chunk - 1) / chunk; }
    BULKHEAD_BOTH uint64_t tiles() const { return (chunk + kTile - 1) / kTile; }  ///< of a chunk
    BULKHEAD_BOTH uint64_t jobs(uint32_t ofHeads) const {
        return samples * ofHeads * chunks() * tiles();
    }
    /// The job's tile; a chunk's first tiles first, or its last.
    BULKHEAD_BODY Tile tile(uint64_t job, uint32_t ofHeads, bool lastFirst) const {
        const uint64_t each = samples * ofHeads * chunks();
        const uint64_t order = job / each, rest = job % each;
        Tile tile;
        tile.head = static_cast<uint32_t>(rest % ofHeads);
        tile.sample = rest / ofHeads % samples;
        tile.chunkBegin = rest / ofHeads / samples * chunk;
        tile.chunkEnd = tile.chunkBegin + chunk < sequence ? tile.chunkBegin + chunk : sequence;
        tile.row = tile.chunkBegin + (lastFirst ? tiles() - 1 - order : order) * kTile;
        tile.rows = rowsFrom(tile.row, tile.chunkEnd);
        return tile;
    }
    BULKHEAD_BODY static uint32_t rowsFrom(uint64_t row, uint64_t end) {
        return row >= end ? 0 : end - row < kTile ? static_cast<uint32_t>(end - row) : kTile;
    }
    BULKHEAD_BODY uint64_t queryAt(const Tile& at, uint32_t head, uint64_t row) const {
        return (at.sample * sequence + row) * width() + uint64_t{head} * headDim;
    }
    BULKHEAD_BODY uint64_t keyAt(const Tile& at, uint32_t kvHead, uint64_t row) const {
        return queryAt(at, heads + kvHead, row);
    }
    BULKHEAD_BODY uint64_t valueAt(const Tile& at, uint32_t kvHead, uint64_t row) const {
        return queryAt(at, heads + kvHeads + kvHead, row);
    }
    /// Rows of queries without keys and values.
    BULKHEAD_BODY uint64_t mixedAt(const Tile& at, uint32_t head, uint64_t row) const {
        return ((at.sample * sequence + row) * heads + head) * headDim;
    }
    BULKHEAD_BODY uint64_t logSumAt(const Tile& at, uint32_t head, uint64_t row) const {
        return (at.sample * heads + head) * sequence + row;
    }
    /// Counts the keys from `key` on that query `row` sees.
    BULKHEAD_BODY static uint32_t seen(uint64_t row, uint64_t key, uint32_t keys) {
        return row < key ? 0 : row - key + 1 < keys ? static_cast<uint32_t>(row - key + 1) : keys;
    }
};

/// c = x y^T, tiles of rows of `headDim` elements. Reads and writes the block's memory; the caller
/// puts a barrier before and behind it.
template <uint32_t kWidth, class Block>
BULKHEAD_BODY void scoresOf(Block& block, float* c, const Bf16* x, const Bf16* y, Extent extent) {
    typename Block::template Sums<kTile, kTile> sums;
    block.clear(sums);
    block.template add<false, true>(sums, x, strideOf(kWidth), y, strideOf(kWidth), extent);
    block.store(sums, c, wideStrideOf(kTile));
}

/// kWidth is the least of 32, 64 and 128 that a head fits in.
template <uint32_t kWidth>
struct AttentionForward {
    AttentionTiles in;
    Bf16* mixed;
    float* logSums;  ///< [sample][head][row]: of the exponentials of scores

    static constexpr uint32_t kOperand = kTile * strideOf(kWidth) * sizeof(Bf16);
    static constexpr uint32_t kScores = kTile * wideStrideOf(kTile) * sizeof(float);
    static constexpr uint32_t kRounded = kTile * strideOf(kTile) * sizeof(Bf16);
    static constexpr uint32_t kStatistics = kTile * kItems * sizeof(float);
    static constexpr uint32_t kShared =
        3 * kOperand + kScores + kRounded + 2 * kStatistics + kTile * sizeof(float);
    static_assert(kTile * wideStrideOf(kWidth) * sizeof(float) <= 2 * kOperand,
                  "sums take the place of keys and values");

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t job = block.block(); job < in.jobs(in.heads); job += block.blocks()) {
            const AttentionTiles::Tile at = in.tile(job, in.heads, true);
            if (at.rows > 0) mix(block, at);
        }
    }

  private:
    template <class Block>
    BULKHEAD_BODY void mix(Block& block, const AttentionTiles::Tile& at) const {
        char* memory = block.shared();
        auto* q = reinterpret_cast<Bf16*>(memory);
        auto* k = reinterpret_cast<Bf16*>(memory + kOperand);
        auto* v = reinterpret_cast<Bf16*>(memory + 2 * kOperand);
        auto* scores = reinterpret_cast<float*>(memory + 3 * kOperand);
        auto* p = reinterpret_cast<Bf16*>(memory + 3 * kOperand + kScores);
        auto* most = reinterpret_cast<float*>(memory + 3 * kOperand + kScores + kRounded);
        float* sum = most + kTile * kItems;
        float* logs = sum + kTile * kItems;
        const uint32_t kvHead = at.head / (in.heads / in.kvHeads);
        const uint64_t end = at.row + at.rows;

        fetchTile<kTile, kWidth>(block, q, in.qkv + in.queryAt(at, at.head, at.row), in.width(),
                                 at.rows, in.headDim);
        for (uint32_t i = block.thread(); i < kTile * kItems; i += block.threads()) {
            most[i] = -INFINITY;
            sum[i] = 0;
        }
        for (uint64_t key = at.chunkBegin; key < end; key += kTile) {
            const uint32_t keys = AttentionTiles::rowsFrom(key, end);
            fetchTile<kTile, kWidth>(block, k, in.qkv + in.keyAt(at, kvHead, key), in.width(), keys,
                                     in.headDim);
            fetched(block);
            scoresOf<kWidth>(block, scores, q, k, {at.rows, keys, in.headDim});
            block.sync();
            for (uint32_t i = block.thread(); i < at.rows * kItems; i += block.threads())
                take(scores + i / kItems * wideStrideOf(kTile), i % kItems,
                     AttentionTiles::seen(at.row + i / kItems, key, keys), most + i, sum + i);
        }
        block.sync();
        for (uint32_t r = block.thread(); r < at.rows; r += block.threads()) {
            logs[r] = logOf(most + r * kItems, sum + r * kItems);
            logSums[in.logSumAt(at, at.head, at.row + r)] = logs[r];
        }

        typename Block::template Sums<kTile, kWidth> sums;
        block.clear(sums);
        for (uint64_t key = at.chunkBegin; key < end; key += kTile) {
            const uint32_t keys = AttentionTiles::rowsFrom(key, end);
            fetchTile<kTile, kWidth>(block, k, in.qkv + in.keyAt(at, kvHead, key), in.width(), keys,
                                     in.headDim);
            fetchTile<kTile, kWidth>(block, v, in.qkv + in.valueAt(at, kvHead, key), in.width(),
                                     keys, in.headDim);
            fetched(block);
            scoresOf<kWidth>(block, scores, q, k, {at.rows, keys, in.headDim});
            block.sync();
            for (uint32_t i = block.thread(); i < kTile * kItems; i += block.threads()) {
                const uint32_t r = i / kItems;
                const uint32_t seen = r < at.rows ? AttentionTiles::seen(at.row + r, key, keys) : 0;
                for (uint32_t c = i % kItems * 2; c < kTile; c += kItems * 2)
                    for (uint32_t j = c; j < c + 2; ++j)
                        p[r * strideOf(kTile) + j] = narrow(
                            j < seen
                                ? expf(scores[r * wideStrideOf(kTile) + j] * in.scale - logs[r])
                                : 0.0f);
            }
            block.sync();
            block.template add<false, false>(sums, p, strideOf(kTile), v, strideOf(kWidth),
                                             Extent{at.rows, in.headDim, keys});
            block.sync();
        }

        auto* wide = reinterpret_cast<float*>(k);
        block.store(sums, wide, wideStrideOf(kWidth));
        block.sync();
        for (uint32_t i = block.thread(); i < at.rows * in.headDim; i += block.threads()) {
            const uint32_t r = i / in.headDim, c = i % in.headDim;
            mixed[in.mixedAt(at, at.head, at.row + r) + c] =
                narrow(wide[r * wideStrideOf(kWidth) + c]);
        }
        block.sync();
    }

    /// Every fourth of a row's scores into their largest so far and the sum of exponentials.
    BULKHEAD_BODY void take(const float* line, uint32_t first, uint32_t seen, float* most,
                            float* sum) const {
        if (first >= seen) return;
        float largest = *most;
        for (uint32_t c = first; c < seen; c += kItems) {
            const float score = line[c] * in.scale;
            largest = largest < score ? score : largest;
        }
        float all = *sum * expf(*most - largest);
        for (uint32_t c = first; c < seen; c += kItems) all += expf(line[c] * in.scale - largest);
        *most = largest;
        *sum = all;
    }
    BULKHEAD_BODY static float logOf(const float* most, const float* sum) {
        float largest = most[0];
        for (uint32_t i = 1; i < kItems; ++i) largest = largest < most[i] ? most[i] : largest;
        float all = 0;
        for (uint32_t i = 0; i < kItems; ++i) all += sum[i] * expf(most[i] - largest);
        return largest + logf(all);
    }
};

/// The gradient of qkv before it was turned. Scores are computed again, once for the keys' and
/// values' gradients, each the sum of one block over the queries that see them, and once for the
/// queries'.
template <uint32_t kWidth>
struct AttentionBackward {
    AttentionTiles in;
    const Bf16* mixed;
    const Bf16* dMixed;
    const float* logSums;
    Bf16* dQkv;
    const float* cosine;  ///< [row][headDim / 2]; null: nothing was turned
    const float* sine;

    static constexpr uint32_t kOperand = kTile * strideOf(kWidth) * sizeof(Bf16);
    static constexpr uint32_t kScores = kTile * wideStrideOf(kTile) * sizeof(float);
    static constexpr uint32_t kRounded = kTile * strideOf(kTile) * sizeof(Bf16);
    static constexpr uint32_t kShared = 4 * kOperand + 2 * kScores + 2 * kRounded +
                                        kTile * kItems * sizeof(float) + kTile * sizeof(float);
    static_assert(kTile * wideStrideOf(kWidth) * sizeof(float) <= 2 * kScores,
                  "sums take the place of scores");

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t ofKeys = in.jobs(in.kvHeads), all = ofKeys + in.jobs(in.heads);
        for (uint64_t job = block.block(); job < all; job += block.blocks()) {
            const bool keys = job < ofKeys;
            const AttentionTiles::Tile at =
                keys ? in.tile(job, in.kvHeads, false) : in.tile(job - ofKeys, in.heads, true);
            if (at.rows == 0) continue;
            if (keys)
                backToKeys(block, at);
            else
                backToQueries(block, at);
        }
    }

  private:
    /// A block's memory.
    struct Memory {
        Bf16 *q, *up, *k, *v;
        float *scores, *dp;
        Bf16 *p, *ds;
        float* along;  ///< [row][item]: of mixed * dMixed
        float* logs;
        BULKHEAD_BODY explicit Memory(char* at)
            : q(reinterpret_cast<Bf16*>(at)),
              up(reinterpret_cast<Bf16*>(at + kOperand)),
              k(reinterpret_cast<Bf16*>(at + 2 * kOperand)),
              v(reinterpret_cast<Bf16*>(at + 3 * kOperand)),
              scores(reinterpret_cast<float*>(at + 4 * kOperand)),
              dp(reinterpret_cast<float*>(at + 4 * kOperand + kScores)),
              p(reinterpret_cast<Bf16*>(at + 4 * kOperand + 2 * kScores)),
              ds(reinterpret_cast<Bf16*>(at + 4 * kOperand + 2 * kScores + kRounded)),
              along(reinterpret_cast<float*>(at + 4 * kOperand + 2 * kScores + 2 * kRounded)),
              logs(along + kTile * kItems) {}
    };

    template <class Block>
    BULKHEAD_BODY void backToKeys(Block& block, const AttentionTiles::Tile& at) const {
        const Memory m(block.shared());
        const uint32_t shared = in.heads / in.kvHeads;  // heads of these keys
        loadKeys(block, m, at, at.head, at.row, at.rows);
        typename Block::template Sums<kTile, kWidth> dK, dV;
        block.clear(dK);
        block.clear(dV);
        for (uint32_t head = at.head * shared; head < (at.head + 1) * shared; ++head)
            for (uint64_t row = at.row; row < at.chunkEnd; row += kTile) {
                const uint32_t rows = AttentionTiles::rowsFrom(row, at.chunkEnd);
                loadQueries(block, m, at, head, row, rows);
                fetched(block);
                back<true>(block, m, row, rows, at.row, at.rows);
                const Extent extent{at.rows, in.headDim, rows};
                block.template add<true, false>(dV, m.p, strideOf(kTile), m.up, strideOf(kWidth),
                                                extent);
                block.template add<true, false>(dK, m.ds, strideOf(kTile), m.q, strideOf(kWidth),
                                                extent);
                block.sync();
            }
        put(block, m, dK, at, in.keyAt(at, at.head, at.row), in.scale, true);
        put(block, m, dV, at, in.valueAt(at, at.head, at.row), 1, false);
    }

    template <class Block>
    BULKHEAD_BODY void backToQueries(Block& block, const AttentionTiles::Tile& at) const {
        const Memory m(block.shared());
        const uint32_t kvHead = at.head / (in.heads / in.kvHeads);
        const uint64_t end = at.row + at.rows;
        loadQueries(block, m, at, at.head, at.row, at.rows);
        typename Block::template Sums<kTile, kWidth> dQ;
        block.clear(dQ);
        for (uint64_t key = at.chunkBegin; key < end; key += kTile) {
            const uint32_t keys = AttentionTiles::rowsFrom(key, end);
            loadKeys(block, m, at, kvHead, key, keys);
            fetched(block);
            back<false>(block, m, at.row, at.rows, key, keys);
            block.template add<false, false>(dQ, m.ds, strideOf(kTile), m.k, strideOf(kWidth),
                                             Extent{at.rows, in.headDim, keys});
            block.sync();
        }
        put(block, m, dQ, at, in.queryAt(at, at.head, at.row), in.scale, true);
    }

    template <class Block>
    BULKHEAD_BODY void loadKeys(Block& block, const Memory& m, const AttentionTiles::Tile& at,
                                uint32_t kvHead, uint64_t key, uint32_t keys) const {
        fetchTile<kTile, kWidth>(block, m.k, in.qkv + in.keyAt(at, kvHead, key), in.width(), keys,
                                 in.headDim);
        fetchTile<kTile, kWidth>(block, m.v, in.qkv + in.valueAt(at, kvHead, key), in.width(), keys,
                                 in.headDim);
    }

    /// And what belongs to each of the rows.
    template <class Block>
    BULKHEAD_BODY void loadQueries(Block& block, const Memory& m, const AttentionTiles::Tile& at,
                                   uint32_t head, uint64_t row, uint32_t rows) const {
        const uint64_t stride = uint64_t{in.heads} * in.headDim;
        fetchTile<kTile, kWidth>(block, m.q, in.qkv + in.queryAt(at, head, row), in.width(), rows,
                                 in.headDim);
        fetchTile<kTile, kWidth>(block, m.up, dMixed + in.mixedAt(at, head, row), stride, rows,
                                 in.headDim);
        for (uint32_t i = block.thread(); i < rows * kItems; i += block.threads()) {
            const uint64_t line = in.mixedAt(at, head, row + i / kItems);
            float sum = 0;
            for (uint32_t c = i % kItems; c < in.headDim; c += kItems)
                sum += widen(mixed[line + c]) * widen(dMixed[line + c]);
            m.along[i] = sum;
        }
        for (uint32_t r = block.thread(); r < rows; r += block.threads())
            m.logs[r] = logSums[in.logSumAt(at, head, row + r)];
    }

    /// The gradient of the scores of one tile, in `ds`, and with kKeepP probabilities, in `p`; both
    /// are zero where a query may not see. Begins behind a barrier and ends with one.
    template <bool kKeepP, class Block>
    BULKHEAD_BODY void back(Block& block, const Memory& m, uint64_t row, uint32_t rows,
                            uint64_t key, uint32_t keys) const {
        const Extent extent{rows, keys, in.headDim};
        scoresOf<kWidth>(block, m.scores, m.q, m.k, extent);
        scoresOf<kWidth>(block, m.dp, m.up, m.v, extent);
        block.sync();
        for (uint32_t i = block.thread(); i < kTile * kItems; i += block.threads()) {
            const uint32_t r = i / kItems;
            const uint32_t seen = r < rows ? AttentionTiles::seen(row + r, key, keys) : 0;
            float along = 0;
            for (uint32_t item = 0; item < kItems && seen > 0; ++item)
                along += m.along[r * kItems + item];
            for (uint32_t c = i % kItems * 2; c < kTile; c += kItems * 2)
                for (uint32_t j = c; j < c + 2; ++j) {
                    float p = 0, ds = 0;
                    if (j < seen) {
                        p = expf(m.scores[r * wideStrideOf(kTile) + j] * in.scale - m.logs[r]);
                        ds = p * (m.dp[r * wideStrideOf(kTile) + j] - along);
                    }
                    if (kKeepP) m.p[r * strideOf(kTile) + j] = narrow(p);
                    m.ds[r * strideOf(kTile) + j] = narrow(ds);
                }
        }
        block.sync();
    }

    /// Sums of the tile's rows times `scale`, turned back if they were turned, to dQkv from `to`
    /// on.
    template <class Block, class Sums>
    BULKHEAD_BODY void put(Block& block, const Memory& m, const Sums& sums,
                           const AttentionTiles::Tile& at, uint64_t to, float scale,
                           bool turned) const {
        block.store(sums, m.scores, wideStrideOf(kWidth));
        block.sync();
        const uint32_t half = in.headDim / 2;
        const bool plain = !turned || cosine == nullptr;
        for (uint32_t i = block.thread(); i < at.rows * half; i += block.threads()) {
            const uint32_t r = i / half, pair = i % half;
            const float* line = m.scores + r * wideStrideOf(kWidth) + pair;
            const float a = line[0] * scale, b = line[half] * scale;
            const uint64_t angle = (at.row + r) * half + pair;
            const float c = plain ? 1.0f : cosine[angle], s = plain ? 0.0f : sine[angle];
            Bf16* out = dQkv + to + r * in.width() + pair;
            out[0] = narrow(a * c + b * s);
            out[half] = narrow(b * c - a * s);
        }
        block.sync();
    }
};

using AttentionForward32 = AttentionForward<32>;
using AttentionForward64 = AttentionForward<64>;
using AttentionForward128 = AttentionForward<128>;
using AttentionBackward32 = AttentionBackward<32>;
using AttentionBackward64 = AttentionBackward<64>;
using AttentionBackward128 = AttentionBackward<128>;

}  // namespace bulkhead::llama_moe::gpu
