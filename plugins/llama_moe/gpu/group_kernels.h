// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/tiles.h"

/// Rows sorted by expert, and products of each expert's rows with its own matrix. How many rows an
/// expert has is known on the device alone, so that nobody waits for it.
namespace bulkhead::llama_moe::gpu {

/// A tile of results. What it fetches for each of its sums falls with its size, and the L2 gives
/// only so much; registers hold no larger one.
constexpr uint32_t kTileRows = 128, kTileColumns = 256;
constexpr uint32_t kDepth = kMostDepth;  ///< of what is multiplied at once
constexpr uint32_t kStages = 3;          ///< of operands on their way

/// Tiles that `size` rows or columns are cut into, and how many of them the tile at `at` has.
template <uint32_t kTile>
BULKHEAD_BOTH constexpr uint64_t tiles(uint64_t size) {
    return (size + kTile - 1) / kTile;
}
template <uint32_t kTile>
BULKHEAD_BODY uint32_t part(uint64_t at, uint64_t end) {
    return at >= end ? 0 : end - at < kTile ? static_cast<uint32_t>(end - at) : kTile;
}

/// Rows of group g are starts[g] to starts[g + 1].
struct RowGroups {
    const int32_t* starts;  ///< [count + 1]
    uint32_t count;
    uint64_t rows;  ///< at least starts[count]

    /// At least as many as the tiles of all groups.
    BULKHEAD_BOTH uint64_t rowTiles() const { return tiles<kTileRows>(rows) + count; }
    BULKHEAD_BODY uint64_t begin(uint32_t g) const { return static_cast<uint64_t>(starts[g]); }
    BULKHEAD_BODY uint64_t size(uint32_t g) const { return begin(g + 1) - begin(g); }

    struct Tile {
        uint32_t group;
        uint64_t row;
        uint32_t rows;  ///< 0: there is no such tile
    };
    BULKHEAD_BODY Tile tile(uint64_t index) const {
        for (uint32_t g = 0; g < count; ++g) {
            const uint64_t here = tiles<kTileRows>(size(g));
            if (index < here) {
                const uint64_t row = begin(g) + index * kTileRows;
                return {g, row, part<kTileRows>(row, begin(g + 1))};
            }
            index -= here;
        }
        return {0, 0, 0};
    }
};

/// A matrix's rows from one of them on, with which a tile of a product begins.
struct Rows {
    const Bf16* at;
    uint64_t stride;
};

/// The block's memory of a tile's product: stages of operands, and in their place the results.
struct GroupMemory {
    static constexpr uint32_t kOperandA = kTileRows * kDepth;  ///< elements
    static constexpr uint32_t kStage = kOperandA + kTileColumns * kDepth;
    static constexpr uint32_t kResults = kTileRows * wideStrideOf(kTileColumns) * sizeof(float);
    static constexpr uint32_t kOperands = kStages * kStage * sizeof(Bf16);
    static constexpr uint32_t kBytes = kResults > kOperands ? kResults : kOperands;
};

/// An operand of a tile's product, `size` of at most kSize, on its way into the block's memory:
/// stage by stage its columns, or its rows if they are what is summed over (kStanding). What does
/// not change from one stage to the next is computed once.
template <bool kStanding, uint32_t kSize, class Block>
class Feed {
  public:
    BULKHEAD_BODY Feed(const Block& block, const Rows& from, uint32_t size, uint64_t depth)
        : next_(from.at),
          stride_(from.stride),
          size_(size),
          left_(depth),
          byEight_(byEight(from.at, from.stride, kStanding ? size : kDepth)) {
        BULKHEAD_UNROLL
        for (uint32_t n = 0; n < kEach; ++n) {
            const uint32_t i = block.thread() + n * block.threads();
            if (i >= kRows * kEights) break;
            const uint32_t r = i / kEights, c = i % kEights * 8;
            // Behind `size` is what comes before it once more.
            const uint32_t row = kStanding || r < size ? r : size - 1;
            const uint32_t column = !kStanding || c < size ? c : size - 8;
            offsets_[n] = row * static_cast<uint32_t>(from.stride) + column;
        }
    }

    BULKHEAD_BODY bool more() const { return left_ > 0; }
    /// The next stage; there must be more.
    BULKHEAD_BODY void fetch(Block& block, Bf16* to) {
        if (left_ >= kDepth && byEight_) {
            BULKHEAD_UNROLL
            for (uint32_t n = 0; n < kEach; ++n) {
                const uint32_t i = block.thread() + n * block.threads();
                if (i >= kRows * kEights) break;
                block.fetch(to + placeIn<kRows>(i / kEights, i % kEights * 8), next_ + offsets_[n]);
            }
        } else {
            const auto some = static_cast<uint32_t>(left_ < kDepth ? left_ : kDepth);
            fetchTile<kRows, kColumns, Lie::kPanels>(
                block, to, next_, stride_, kStanding ? some : size_, kStanding ? size_ : some);
        }
        next_ += kStanding ? kDepth * stride_ : kDepth;
        left_ -= left_ < kDepth ? left_ : kDepth;
    }

  private:
    static constexpr uint32_t kRows = kStanding ? kDepth : kSize;
    static constexpr uint32_t kColumns = kStanding ? kSize : kDepth;
    static constexpr uint32_t kEights = kColumns / 8;
    static constexpr uint32_t kEach =
        (kRows * kEights + Block::kLeastThreads - 1) / Block::kLeastThreads;

    const Bf16* next_;
    const uint64_t stride_;
    const uint32_t size_;
    uint64_t left_;
    const bool byEight_;
    uint32_t offsets_[kEach];
};

/// The block's memory becomes op(A)[m, depth] op(B)[depth, n] in float32, m at most kTileRows and n
/// at most kTileColumns. Begins and ends with a barrier.
template <bool kTurnA, bool kTurnB, class Block>
BULKHEAD_BODY const float* productOf(Block& block, const Rows& a, const Rows& b, uint32_t m,
                                     uint32_t n, uint64_t depth) {
    auto* operands = reinterpret_cast<Bf16*>(block.shared());
    Feed<kTurnA, kTileRows, Block> feedA(block, a, m, depth);
    Feed<!kTurnB, kTileColumns, Block> feedB(block, b, n, depth);
    const auto fetch = [&](uint32_t stage) {
        if (feedA.more()) {
            Bf16* to = operands + stage * GroupMemory::kStage;
            feedA.fetch(block, to);
            feedB.fetch(block, to + GroupMemory::kOperandA);
        }
        block.sent();
    };
    typename Block::template Sums<kTileRows, kTileColumns> sums;
    block.clear(sums);
    block.sync();  // nobody reads the results before
    for (uint32_t stage = 0; stage + 1 < kStages; ++stage) fetch(stage);
    uint32_t stage = 0;
    for (uint64_t at = 0; at < depth; at += kDepth) {
        block.template await<kStages - 2>();
        block.written();
        block.sync();  // all of this stage is there, and nobody is at the one before
        const Bf16* x = operands + stage * GroupMemory::kStage;
        const Bf16* y = x + GroupMemory::kOperandA;
        const uint64_t left = depth - at;
        block.template add<kTurnA, kTurnB>(
            sums, x, y, Extent{m, n, left < kDepth ? static_cast<uint32_t>(left) : kDepth});
        fetch((stage + kStages - 1) % kStages);
        block.added(sums);
        stage = (stage + 1) % kStages;
    }
    block.template await<0>();
    block.sync();
    auto* results = reinterpret_cast<float*>(block.shared());
    block.store(sums, results, wideStrideOf(kTileColumns));
    block.sync();
    return results;
}

/// to[rows of g][n] = from[rows of g][depth] op(weights of g)[depth, n], job by job: a tile each.
template <bool kTurned>
struct RowsProduct {
    const Bf16* from;
    const Bf16* weights;  ///< of the first group
    Bf16* to;
    RowGroups groups;
    uint64_t apart;  ///< one group's weights and the next's
    uint32_t n, depth;

    BULKHEAD_BOTH uint64_t jobs() const { return groups.rowTiles() * tiles<kTileColumns>(n); }
    template <class Block>
    BULKHEAD_BODY void job(Block& block, uint64_t index) const {
        const RowGroups::Tile tile = groups.tile(index / tiles<kTileColumns>(n));
        if (tile.rows == 0) return;
        const uint64_t column = index % tiles<kTileColumns>(n) * kTileColumns;
        const uint32_t columns = part<kTileColumns>(column, n);
        const Bf16* w = weights + tile.group * apart;
        const float* results = productOf<false, kTurned>(
            block, Rows{from + tile.row * depth, depth},
            kTurned ? Rows{w + column * depth, depth} : Rows{w + column, n}, tile.rows, columns,
            depth);
        Bf16* out = to + tile.row * n + column;
        if (byEight(out, n, columns)) {
            for (uint32_t i = block.thread(); i < tile.rows * (kTileColumns / 8);
                 i += block.threads()) {
                const uint32_t r = i / (kTileColumns / 8), c = i % (kTileColumns / 8) * 8;
                if (c >= columns) continue;
                Several<Bf16, 8> eight;
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < 8; ++j)
                    eight.at[j] = narrow(results[r * wideStrideOf(kTileColumns) + c + j]);
                gpu::store(out + r * n + c, eight);
            }
            return;
        }
        for (uint32_t i = block.thread(); i < tile.rows * kTileColumns; i += block.threads()) {
            const uint32_t r = i / kTileColumns, c = i % kTileColumns;
            if (c < columns) out[r * n + c] = narrow(results[r * wideStrideOf(kTileColumns) + c]);
        }
    }
};

/// to of g[m, n] += from[rows of g][m]^T with[rows of g][n].
struct WeightsProduct {
    const Bf16* from;
    const Bf16* with;
    float* to;  ///< of the first group
    RowGroups groups;
    uint64_t apart;
    uint32_t m, n;

    BULKHEAD_BOTH uint64_t jobs() const {
        return groups.count * tiles<kTileRows>(m) * tiles<kTileColumns>(n);
    }
    template <class Block>
    BULKHEAD_BODY void job(Block& block, uint64_t index) const {
        const uint64_t across = tiles<kTileColumns>(n), down = tiles<kTileRows>(m);
        const uint64_t column = index % across * kTileColumns;
        const uint64_t line = index / across % down * kTileRows;
        const auto g = static_cast<uint32_t>(index / across / down);
        const uint64_t begin = groups.begin(g), rows = groups.size(g);
        if (rows == 0) return;
        const uint32_t lines = part<kTileRows>(line, m), columns = part<kTileColumns>(column, n);
        const float* results =
            productOf<true, false>(block, Rows{from + begin * m + line, m},
                                   Rows{with + begin * n + column, n}, lines, columns, rows);
        float* out = to + g * apart + line * n + column;
        if (n % 4 == 0)
            addTo<4>(block, out, results, lines, columns);
        else
            addTo<1>(block, out, results, lines, columns);
    }

  private:
    /// Reads many before it writes any: each is far away.
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void addTo(Block& block, float* out, const float* results, uint32_t lines,
                             uint32_t columns) const {
        constexpr uint32_t kMany = 4, kAcross = kTileColumns / kWide;
        for (uint32_t first = block.thread(); first < lines * kAcross;
             first += kMany * block.threads()) {
            Several<float, kWide> before[kMany];
            BULKHEAD_UNROLL
            for (uint32_t j = 0; j < kMany; ++j) {
                const uint32_t i = first + j * block.threads();
                const uint32_t r = i / kAcross, c = i % kAcross * kWide;
                if (r < lines && c < columns) before[j] = load<kWide>(out + r * n + c);
            }
            BULKHEAD_UNROLL
            for (uint32_t j = 0; j < kMany; ++j) {
                const uint32_t i = first + j * block.threads();
                const uint32_t r = i / kAcross, c = i % kAcross * kWide;
                if (r >= lines || c >= columns) continue;
                const float* more = results + r * wideStrideOf(kTileColumns) + c;
                BULKHEAD_UNROLL
                for (uint32_t w = 0; w < kWide; ++w) before[j].at[w] += more[w];
                gpu::store(out + r * n + c, before[j]);
            }
        }
    }
};

struct MultiplyGroups {
    RowsProduct<false> product;

    static constexpr uint32_t kShared = GroupMemory::kBytes, kBlocksAtOnce = 1;
    BULKHEAD_BOTH uint64_t jobs() const { return product.jobs(); }
    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t job = block.block(); job < jobs(); job += block.blocks())
            product.job(block, job);
    }
};

/// Both gradients of such a product, which need nothing of each other.
struct MultiplyGroupsBack {
    RowsProduct<true> rows;
    WeightsProduct weights;

    static constexpr uint32_t kShared = GroupMemory::kBytes, kBlocksAtOnce = 1;
    BULKHEAD_BOTH uint64_t jobs() const { return rows.jobs() + weights.jobs(); }
    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t job = block.block(); job < jobs(); job += block.blocks()) {
            if (job < weights.jobs())
                weights.job(block, job);
            else
                rows.job(block, job - weights.jobs());
        }
    }
};

/// Counts, for each stretch of choices, those for each expert; a block a stretch.
struct CountChoices {
    const int32_t* chosen;
    int32_t* counts;  ///< [stretch][expert]
    uint64_t choices, stretch;
    uint32_t experts;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t begin = block.block() * stretch;
        const uint64_t end = begin + stretch < choices ? begin + stretch : choices;
        for (uint32_t e = block.thread(); e < experts; e += block.threads()) {
            int32_t count = 0;
            for (uint64_t a = begin; a < end; ++a)
                count += chosen[a] == static_cast<int32_t>(e) ? 1 : 0;
            counts[uint64_t{block.block()} * experts + e] = count;
        }
    }
};

constexpr uint32_t kMostExperts = 4096;

/// The place of each choice among all, sorted by expert and, of one, in their order.
struct PlaceChoices {
    const int32_t* chosen;
    const int32_t* counts;
    int32_t* place;
    int32_t* starts;  ///< [experts + 1]
    uint64_t choices, stretch;
    uint32_t experts;  ///< at most kMostExperts

    static constexpr uint32_t kShared = kMostExperts * sizeof(int32_t);

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        auto* all = reinterpret_cast<int32_t*>(block.shared());
        for (uint32_t e = block.thread(); e < experts; e += block.threads()) {
            all[e] = 0;
            for (uint32_t s = 0; s < block.blocks(); ++s)
                all[e] += counts[uint64_t{s} * experts + e];
        }
        block.sync();
        const uint64_t begin = block.block() * stretch;
        const uint64_t end = begin + stretch < choices ? begin + stretch : choices;
        for (uint32_t e = block.thread(); e < experts; e += block.threads()) {
            int32_t at = 0;
            for (uint32_t before = 0; before < e; ++before) at += all[before];
            if (block.block() == 0) starts[e] = at;
            if (block.block() == 0 && e + 1 == experts) starts[experts] = at + all[e];
            for (uint32_t s = 0; s < block.block(); ++s) at += counts[uint64_t{s} * experts + e];
            for (uint64_t a = begin; a < end; ++a)
                if (chosen[a] == static_cast<int32_t>(e)) place[a] = at++;
        }
        block.sync();
    }
};

}  // namespace bulkhead::llama_moe::gpu
