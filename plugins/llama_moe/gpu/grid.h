// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

/// The number of blocks for a task: a function of sizes alone, since the order of sums follows it.
namespace bulkhead::llama_moe {

constexpr size_t kBlockThreads = 256;  ///< of a GPU's block
constexpr size_t kParts = 1024;        ///< in which what all rows add to is summed
constexpr size_t kMostBlocks = 4096;

/// A block takes one row at a time.
inline size_t blocksOfRows(size_t rows) {
    return std::min(rows, kMostBlocks);
}
/// A thread takes one element.
inline size_t blocksOfThreads(size_t count) {
    return std::min((count + kBlockThreads - 1) / kBlockThreads, kMostBlocks);
}
/// A thread takes one element at a time, and some four in all while blocks last.
inline size_t blocksOfElements(size_t count) {
    return std::min((count + 4 * kBlockThreads - 1) / (4 * kBlockThreads), kMostBlocks);
}

}  // namespace bulkhead::llama_moe
