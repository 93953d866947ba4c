// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/kernel.h"

/// Tiles of bfloat16 on their way from the device's memory into a block's own.
namespace bulkhead::llama_moe::gpu {

/// Rows of a tile of so many columns are so many elements apart: eight more than there are, so that
/// the rows of a product's operand begin in different banks.
BULKHEAD_BOTH constexpr uint32_t strideOf(uint32_t columns) {
    return columns + 8;
}
/// The same for sums in float32.
BULKHEAD_BOTH constexpr uint32_t wideStrideOf(uint32_t columns) {
    return columns + 4;
}

/// True if rows of `columns` elements can be copied by eight.
BULKHEAD_BODY inline bool byEight(const Bf16* from, uint64_t stride, uint32_t columns) {
    return columns % 8 == 0 && stride % 8 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
}

/// Layout of a tile in the block's memory: rows strideOf(columns) apart, or by placeIn().
enum class Lie { kPadded, kPanels };

/// to[r][c] = from[r * stride + c] where r < rows and c < columns, else zero, for all kRows rows
/// and kColumns columns of the tile: fetched, as kernel.h says, where rows go by eight.
template <uint32_t kRows, uint32_t kColumns, Lie kLie = Lie::kPadded, class Block>
BULKHEAD_BODY void fetchTile(Block& block, Bf16* to, const Bf16* from, uint64_t stride,
                             uint32_t rows, uint32_t columns) {
    constexpr uint32_t kEights = kColumns / 8;
    const bool vectors = byEight(from, stride, columns);
    for (uint32_t i = block.thread(); i < kRows * kEights; i += block.threads()) {
        const uint32_t r = i / kEights, c = i % kEights * 8;
        Bf16* here =
            to + (kLie == Lie::kPanels ? placeIn<kRows>(r, c) : r * strideOf(kColumns) + c);
        if (vectors && r < rows && c < columns) {
            block.fetch(here, from + r * stride + c);
            continue;
        }
        for (uint32_t j = 0; j < 8; ++j)
            here[j] = r < rows && c + j < columns ? from[r * stride + c + j] : Bf16{0};
    }
}

/// A barrier behind which all that the block's threads fetched is there.
template <class Block>
BULKHEAD_BODY void fetched(Block& block) {
    block.sent();
    block.template await<0>();
    block.sync();
}

}  // namespace bulkhead::llama_moe::gpu
