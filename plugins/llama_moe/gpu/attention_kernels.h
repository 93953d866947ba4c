// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/tiles.h"

/// Causal attention by tiles of queries and keys, so that no scores reach the device's memory:
/// after FlashAttention-2 (Dao 2023, arXiv 2307.08691). Lines are queries forward, and for the
/// queries' gradients, and keys for the keys' and values'; scores and probabilities never leave the
/// threads that hold them. On the way back they are computed twice, so that no sum is of several
/// blocks. Exponentials are powers of two.
namespace bulkhead::llama_moe::gpu {

constexpr uint32_t kTile = 64;  ///< of what the lines meet at once
constexpr uint32_t kPart = 32;  ///< of a tile that the way back computes scores for at once
constexpr uint32_t kLead = 2;   ///< tiles that a block has memory for: one is on its way

/// Queries and keys of all samples, cut into tiles of kLines rows, which lie in one chunk.
struct AttentionTiles {
    const Bf16* qkv;  ///< [sample][row][width], turned
    uint64_t samples, sequence, chunk;
    uint32_t heads, kvHeads, headDim;
    float scale;  ///< of scores, for powers of two: log2(e) / sqrt(headDim)

    struct Tile {
        uint64_t sample;
        uint32_t head;
        uint64_t chunkBegin, chunkEnd;  ///< rows of the sample
        uint64_t row;                   ///< the first of the tile
        uint32_t rows;                  ///< 0: behind the sample's end
    };

    BULKHEAD_BOTH uint64_t width() const { return uint64_t{heads + 2 * kvHeads} * headDim; }
    BULKHEAD_BOTH uint64_t chunks() const { return (sequence + chunk - 1) / chunk; }
    BULKHEAD_BOTH uint64_t tiles() const { return (chunk + kLines - 1) / kLines; }  ///< of a chunk
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
        tile.row = tile.chunkBegin + (lastFirst ? tiles() - 1 - order : order) * kLines;
        tile.rows = rowsFrom<kLines>(tile.row, tile.chunkEnd);
        return tile;
    }
    template <uint32_t kMost>
    BULKHEAD_BODY static uint32_t rowsFrom(uint64_t row, uint64_t end) {
        return row >= end ? 0 : end - row < kMost ? static_cast<uint32_t>(end - row) : kMost;
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
    /// A tile of keys from row `key` on that the queries `at` may see, and of values behind it.
    template <uint32_t kWidth, class Block>
    BULKHEAD_BODY void fetchKeys(Block& block, Bf16* to, const Tile& at, uint32_t kvHead,
                                 uint64_t key) const {
        const uint32_t count = rowsFrom<kTile>(key, at.row + at.rows);
        fetchTile<kTile, kWidth>(block, to, qkv + keyAt(at, kvHead, key), width(), count, headDim);
        fetchTile<kTile, kWidth>(block, to + kTile * strideOf(kWidth),
                                 qkv + valueAt(at, kvHead, key), width(), count, headDim);
    }
    /// By how many rows `a` lies behind `b`; they are of one chunk.
    BULKHEAD_BODY static int32_t apart(uint64_t a, uint64_t b) {
        return static_cast<int32_t>(static_cast<int64_t>(a - b));
    }
};

/// Elements of a block's memory that a tile of kRows rows of heads takes.
template <uint32_t kWidth, uint32_t kRows>
constexpr uint32_t kElements = kRows* strideOf(kWidth);

/// Fetches four numbers.
template <class Block>
BULKHEAD_BODY void fetchFour(Block& block, float* to, const float* from) {
    block.fetch(reinterpret_cast<Bf16*>(to), reinterpret_cast<const Bf16*>(from));
}

/// Calls meet(i) for each tile of 0 to `count` when fetch(i) has brought it: while one is met, the
/// next is on its way. Ends with a barrier.
template <class Block, class Fetch, class Meet>
BULKHEAD_BODY void inTurn(Block& block, uint64_t count, Fetch fetch, Meet meet) {
    fetch(0);
    block.sent();
    for (uint64_t i = 0; i < count; ++i) {
        if (i + 1 < count) fetch(i + 1);
        block.sent();
        block.template await<1>();
        block.sync();
        meet(i);
        block.sync();
    }
}

/// kWidth is the least of 32, 64 and 128 that a head fits in.
template <uint32_t kWidth>
struct AttentionForward {
    AttentionTiles in;
    Bf16* mixed;
    float* logSums;  ///< [sample][head][row]: log2 of the sum of a query's powers of two

    static constexpr uint32_t kKeys = kElements<kWidth, kTile>;
    static constexpr uint32_t kQueries = kElements<kWidth, kLines>;
    static constexpr uint32_t kShared = (kQueries + kLead * 2 * kKeys) * sizeof(Bf16);
    static constexpr uint32_t kBlocksAtOnce = kWidth > 64 ? 1 : 2;

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
        auto* queries = reinterpret_cast<Bf16*>(block.shared());
        Bf16* const keys = queries + kQueries;
        const uint32_t kvHead = at.head / (in.heads / in.kvHeads);
        const uint64_t end = at.row + at.rows;

        fetchTile<kLines, kWidth>(block, queries, in.qkv + in.queryAt(at, at.head, at.row),
                                  in.width(), at.rows, in.headDim);
        fetched(block);
        typename Block::template Operand<kWidth> q;
        block.take(q, queries, strideOf(kWidth));

        typename Block::template Lines<kWidth> sums;
        typename Block::OfLines most, all;
        block.clear(sums);
        block.eachSlot([&](uint32_t slot) {
            most.at[slot] = -INFINITY;
            all.at[slot] = 0;
        });
        const auto fetch = [&](uint64_t i) {
            in.template fetchKeys<kWidth>(block, keys + i % kLead * 2 * kKeys, at, kvHead,
                                          at.chunkBegin + i * kTile);
        };
        inTurn(block, (end - at.chunkBegin + kTile - 1) / kTile, fetch, [&](uint64_t i) {
            const uint64_t key = at.chunkBegin + i * kTile;
            if (key >= at.row + block.lineEnd()) return;  // none of this thread's lines sees it
            const Bf16* k = keys + i % kLead * 2 * kKeys;
            typename Block::template Lines<kTile> scores;
            block.clear(scores);
            block.template add<true>(scores, q, k, strideOf(kWidth));
            typename Block::OfLines largest = most;
            const int32_t ahead = AttentionTiles::apart(at.row, key);
            // A tile that all of this thread's lines see whole needs no mask.
            if (ahead + static_cast<int32_t>(block.lineBegin()) < static_cast<int32_t>(kTile) - 1)
                block.eachPair(scores, [&](uint32_t slot, uint32_t column, float& x, float& y) {
                    const int32_t last = ahead + static_cast<int32_t>(block.lineOf(slot));
                    if (static_cast<int32_t>(column) > last) x = -INFINITY;
                    if (static_cast<int32_t>(column) >= last) y = -INFINITY;
                });
            block.eachPair(scores, [&](uint32_t slot, uint32_t, float& x, float& y) {
                largest.at[slot] = larger(largest.at[slot], larger(x, y));
            });
            block.overLines(largest, [](float a, float b) { return larger(a, b); });
            typename Block::OfLines less;
            block.eachSlot([&](uint32_t slot) {
                less.at[slot] = powerOfTwo((most.at[slot] - largest.at[slot]) * in.scale);
                all.at[slot] *= less.at[slot];
                most.at[slot] = largest.at[slot];
            });
            block.eachPair(scores, [&](uint32_t slot, uint32_t, float& x, float& y) {
                const float from = most.at[slot] * in.scale;
                x = powerOfTwo(x * in.scale - from);
                y = powerOfTwo(y * in.scale - from);
                all.at[slot] += x + y;
            });
            block.eachPair(sums, [&](uint32_t slot, uint32_t, float& x, float& y) {
                x *= less.at[slot];
                y *= less.at[slot];
            });
            typename Block::template Operand<kTile> p;
            block.round(p, scores);
            block.template add<false>(sums, p, k + kKeys, strideOf(kWidth));
        });

        block.overLines(all, [](float a, float b) { return a + b; });
        block.eachSlot([&](uint32_t slot) {
            const uint32_t line = block.lineOf(slot);
            if (line < at.rows)
                logSums[in.logSumAt(at, at.head, at.row + line)] =
                    most.at[slot] * in.scale + log2f(all.at[slot]);
        });
        block.eachPair(sums, [&](uint32_t slot, uint32_t column, float& x, float& y) {
            const uint32_t line = block.lineOf(slot);
            if (line >= at.rows || column >= in.headDim) return;
            const float share = 1.0f / all.at[slot];
            gpu::store(mixed + in.mixedAt(at, at.head, at.row + line) + column,
                       Several<Bf16, 2>{{narrow(x * share), narrow(y * share)}});
        });
    }
    BULKHEAD_BODY static float larger(float a, float b) { return a < b ? b : a; }
};

/// Inputs and outputs of both kinds of gradients.
struct AttentionBack {
    AttentionTiles in;
    const Bf16* mixed;
    const Bf16* dMixed;
    const float* logSums;
    float* along;  ///< [sample][head][row]: of mixed * dMixed, by the queries' kernel
    Bf16* dQkv;
    const float* cosine;  ///< [row][headDim / 2]; null: nothing was turned
    const float* sine;

    BULKHEAD_BODY uint64_t stride() const { return uint64_t{in.heads} * in.headDim; }

    /// Sums of the tile's rows times `factor`, turned back if they were turned, to dQkv from `to`
    /// on, by way of the block's memory.
    template <uint32_t kWidth, class Block>
    BULKHEAD_BODY void put(Block& block, const typename Block::template Lines<kWidth>& sums,
                           const AttentionTiles::Tile& at, uint64_t to, float factor,
                           bool turned) const {
        auto* wide = reinterpret_cast<float*>(block.shared());
        block.store(sums, wide, wideStrideOf(kWidth));
        block.sync();
        const uint32_t half = in.headDim / 2;
        const bool plain = !turned || cosine == nullptr;
        for (uint32_t i = block.thread(); i < at.rows * half; i += block.threads()) {
            const uint32_t r = i / half, pair = i % half;
            const float* line = wide + r * wideStrideOf(kWidth) + pair;
            const float a = line[0] * factor, b = line[half] * factor;
            const uint64_t angle = (at.row + r) * half + pair;
            const float c = plain ? 1.0f : cosine[angle], s = plain ? 0.0f : sine[angle];
            Bf16* out = dQkv + to + r * in.width() + pair;
            out[0] = narrow(a * c + b * s);
            out[half] = narrow(b * c - a * s);
        }
        block.sync();
    }
    /// The scale of scores for powers of e: 1 / sqrt(headDim).
    BULKHEAD_BODY float plainScale() const { return in.scale * 0.693147180559945f; }
};

/// The gradient of the queries before they were turned, and what a row's gradient is along its
/// result.
template <uint32_t kWidth>
struct AttentionBackQueries {
    AttentionBack back;

    static constexpr uint32_t kKeys = kElements<kWidth, kTile>;
    static constexpr uint32_t kQueries = kElements<kWidth, kLines>;
    static constexpr uint32_t kShared =
        (2 * kQueries + kLead * 2 * kKeys) * sizeof(Bf16) + kLines * sizeof(float);
    static constexpr uint32_t kBlocksAtOnce = kWidth > 64 ? 1 : 2;
    static_assert(kLines * wideStrideOf(kWidth) * sizeof(float) <= 2 * kQueries * sizeof(Bf16),
                  "sums take the place of queries");

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const AttentionTiles& in = back.in;
        for (uint64_t job = block.block(); job < in.jobs(in.heads); job += block.blocks()) {
            const AttentionTiles::Tile at = in.tile(job, in.heads, true);
            if (at.rows > 0) one(block, at);
        }
    }

  private:
    template <class Block>
    BULKHEAD_BODY void one(Block& block, const AttentionTiles::Tile& at) const {
        const AttentionTiles& in = back.in;
        auto* queries = reinterpret_cast<Bf16*>(block.shared());
        Bf16* const ups = queries + kQueries;
        Bf16* const keys = ups + kQueries;
        auto* alongs = reinterpret_cast<float*>(keys + kLead * 2 * kKeys);
        const uint32_t kvHead = at.head / (in.heads / in.kvHeads);
        const uint64_t end = at.row + at.rows;

        const Bf16* up = back.dMixed + in.mixedAt(at, at.head, at.row);
        fetchTile<kLines, kWidth>(block, queries, in.qkv + in.queryAt(at, at.head, at.row),
                                  in.width(), at.rows, in.headDim);
        fetchTile<kLines, kWidth>(block, ups, up, back.stride(), at.rows, in.headDim);
        fetched(block);
        for (uint32_t r = block.thread(); r < kLines; r += block.threads()) {
            float sum = 0;
            const Bf16* line = back.mixed + in.mixedAt(at, at.head, at.row + r);
            if (r < at.rows)
                for (uint32_t c = 0; c < in.headDim; ++c)
                    sum += widen(line[c]) * widen(ups[r * strideOf(kWidth) + c]);
            alongs[r] = sum;
            if (r < at.rows) back.along[in.logSumAt(at, at.head, at.row + r)] = sum;
        }
        block.sync();
        typename Block::OfLines along, logs;
        block.eachSlot([&](uint32_t slot) {
            const uint32_t line = block.lineOf(slot);
            along.at[slot] = alongs[line];
            logs.at[slot] =
                line < at.rows ? back.logSums[in.logSumAt(at, at.head, at.row + line)] : 0.0f;
        });

        typename Block::template Lines<kWidth> dQ;
        block.clear(dQ);
        const auto fetch = [&](uint64_t i) {
            in.template fetchKeys<kWidth>(block, keys + i % kLead * 2 * kKeys, at, kvHead,
                                          at.chunkBegin + i * kTile);
        };
        inTurn(block, (end - at.chunkBegin + kTile - 1) / kTile, fetch, [&](uint64_t i) {
            for (uint32_t part = 0; part < kTile; part += kPart) {
                const uint64_t key = at.chunkBegin + i * kTile + part;
                if (key >= at.row + block.lineEnd()) return;
                const Bf16* k = keys + i % kLead * 2 * kKeys + part * strideOf(kWidth);
                typename Block::template Lines<kPart> p, dS;
                block.clear(p);
                block.clear(dS);
                block.template add<true, kWidth>(p, queries, strideOf(kWidth), k, strideOf(kWidth));
                block.template add<true, kWidth>(dS, ups, strideOf(kWidth), k + kKeys,
                                                 strideOf(kWidth));
                const int32_t ahead = AttentionTiles::apart(at.row, key);
                block.eachPair(p, [&](uint32_t slot, uint32_t column, float& x, float& y) {
                    const int32_t last = ahead + static_cast<int32_t>(block.lineOf(slot));
                    x = powerOfTwo(x * in.scale - logs.at[slot]);
                    y = powerOfTwo(y * in.scale - logs.at[slot]);
                    if (static_cast<int32_t>(column) > last) x = 0;
                    if (static_cast<int32_t>(column) >= last) y = 0;
                });
                block.eachBoth(dS, p, [&](uint32_t slot, uint32_t, float& d, float weight) {
                    d = weight * (d - along.at[slot]);
                });
                typename Block::template Operand<kPart> rounded;
                block.round(rounded, dS);
                block.template add<false>(dQ, rounded, k, strideOf(kWidth));
            }
        });
        back.template put<kWidth>(block, dQ, at, in.queryAt(at, at.head, at.row), back.plainScale(),
                                  true);
    }
};

/// The gradients of the keys before they were turned, and of the values: sums over the queries that
/// see them, of all heads that share them.
template <uint32_t kWidth>
struct AttentionBackKeys {
    AttentionBack back;

    static constexpr uint32_t kQueries = kElements<kWidth, kTile>;
    static constexpr uint32_t kKeys = kElements<kWidth, kLines>;
    static constexpr uint32_t kHeld = kWidth > 64 ? 16 : kWidth;  ///< in registers, of a line
    static constexpr uint32_t kNumbers = kLead * 2 * kTile;
    static constexpr uint32_t kShared =
        (2 * kKeys + kLead * 2 * kQueries) * sizeof(Bf16) + kNumbers * sizeof(float);
    static constexpr uint32_t kBlocksAtOnce = 1;
    static_assert(kLines * wideStrideOf(kWidth) * sizeof(float) <= 2 * kKeys * sizeof(Bf16),
                  "sums take the place of keys");

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const AttentionTiles& in = back.in;
        for (uint64_t job = block.block(); job < in.jobs(in.kvHeads); job += block.blocks()) {
            const AttentionTiles::Tile at = in.tile(job, in.kvHeads, false);
            if (at.rows > 0) one(block, at);
        }
    }

  private:
    template <class Block>
    BULKHEAD_BODY void one(Block& block, const AttentionTiles::Tile& at) const {
        const AttentionTiles& in = back.in;
        auto* keys = reinterpret_cast<Bf16*>(block.shared());
        Bf16* const values = keys + kKeys;
        Bf16* const tiles = values + kKeys;
        auto* numbers = reinterpret_cast<float*>(tiles + kLead * 2 * kQueries);
        const uint32_t shared = in.heads / in.kvHeads;  // heads of these keys
        const uint64_t tilesOfHead = (at.chunkEnd - at.row + kTile - 1) / kTile;

        fetchTile<kLines, kWidth>(block, keys, in.qkv + in.keyAt(at, at.head, at.row), in.width(),
                                  at.rows, in.headDim);
        fetchTile<kLines, kWidth>(block, values, in.qkv + in.valueAt(at, at.head, at.row),
                                  in.width(), at.rows, in.headDim);
        fetched(block);
        typename Block::template Operand<kHeld> k, v;
        block.take(k, keys, strideOf(kWidth));
        block.take(v, values, strideOf(kWidth));
        typename Block::template Lines<kWidth> dK, dV;
        block.clear(dK);
        block.clear(dV);
        const auto fetch = [&](uint64_t i) {
            const auto head = static_cast<uint32_t>(at.head * shared + i / tilesOfHead);
            const uint64_t row = at.row + i % tilesOfHead * kTile;
            const uint32_t count = AttentionTiles::rowsFrom<kTile>(row, at.chunkEnd);
            Bf16* q = tiles + i % kLead * 2 * kQueries;
            fetchTile<kTile, kWidth>(block, q, in.qkv + in.queryAt(at, head, row), in.width(),
                                     count, in.headDim);
            fetchTile<kTile, kWidth>(block, q + kQueries, back.dMixed + in.mixedAt(at, head, row),
                                     back.stride(), count, in.headDim);
            float* of = numbers + i % kLead * 2 * kTile;
            const uint64_t from = in.logSumAt(at, head, row);
            if (count == kTile && from % 4 == 0) {
                for (uint32_t r = block.thread() * 4; r < kTile; r += block.threads() * 4) {
                    fetchFour(block, of + r, back.logSums + from + r);
                    fetchFour(block, of + kTile + r, back.along + from + r);
                }
                return;
            }
            for (uint32_t r = block.thread(); r < kTile; r += block.threads()) {
                of[r] = r < count ? back.logSums[from + r] : INFINITY;  // its powers are zero
                of[kTile + r] = r < count ? back.along[from + r] : 0.0f;
            }
        };
        inTurn(block, shared * tilesOfHead, fetch, [&](uint64_t i) {
            const float* of = numbers + i % kLead * 2 * kTile;
            for (uint32_t part = 0; part < kTile; part += kPart) {
                const uint64_t row = at.row + i % tilesOfHead * kTile + part;
                if (row + kPart <= at.row + block.lineBegin()) continue;  // sees none of these keys
                const Bf16* q = tiles + i % kLead * 2 * kQueries + part * strideOf(kWidth);
                typename Block::template Lines<kPart> p, dS;
                block.clear(p);
                block.clear(dS);
                if constexpr (kHeld == kWidth) {
                    block.template add<true>(p, k, q, strideOf(kWidth));
                    block.template add<true>(dS, v, q + kQueries, strideOf(kWidth));
                } else {
                    block.template add<true, kWidth>(p, keys, strideOf(kWidth), q,
                                                     strideOf(kWidth));
                    block.template add<true, kWidth>(dS, values, strideOf(kWidth), q + kQueries,
                                                     strideOf(kWidth));
                }
                const int32_t ahead = AttentionTiles::apart(at.row, row);
                block.eachPair(p, [&](uint32_t slot, uint32_t column, float& x, float& y) {
                    const int32_t first = ahead + static_cast<int32_t>(block.lineOf(slot));
                    const auto logs = load<2>(of + part + column);
                    x = powerOfTwo(x * in.scale - logs.at[0]);
                    y = powerOfTwo(y * in.scale - logs.at[1]);
                    if (static_cast<int32_t>(column) < first) x = 0;
                    if (static_cast<int32_t>(column) + 1 < first) y = 0;
                });
                typename Block::template Operand<kPart> rounded;
                block.round(rounded, p);
                block.template add<false>(dV, rounded, q + kQueries, strideOf(kWidth));
                block.eachBoth(dS, p, [&](uint32_t, uint32_t column, float& d, float weight) {
                    d = weight * (d - of[kTile + part + column]);
                });
                block.round(rounded, dS);
                block.template add<false>(dK, rounded, q, strideOf(kWidth));
            }
        });
        back.template put<kWidth>(block, dK, at, in.keyAt(at, at.head, at.row), back.plainScale(),
                                  true);
        back.template put<kWidth>(block, dV, at, in.valueAt(at, at.head, at.row), 1, false);
    }
};

using AttentionForward32 = AttentionForward<32>;
using AttentionForward64 = AttentionForward<64>;
using AttentionForward128 = AttentionForward<128>;
using AttentionBackQueries32 = AttentionBackQueries<32>;
using AttentionBackQueries64 = AttentionBackQueries<64>;
using AttentionBackQueries128 = AttentionBackQueries<128>;
using AttentionBackKeys32 = AttentionBackKeys<32>;
using AttentionBackKeys64 = AttentionBackKeys<64>;
using AttentionBackKeys128 = AttentionBackKeys<128>;

}  // namespace bulkhead::llama_moe::gpu
