// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

/// Formulas over token counts of one layer's experts. Pure; any thread. Counts that sum to zero
/// give zero (one for balancedness), never a NaN.
namespace bulkhead::planner {

/// max / mean: 1 is even, `experts` is all on one. TensorRT-LLM's imbalance is this minus 1.
[[nodiscard]] double imbalance(std::span<const uint64_t> counts);

/// mean / max: 1 is even. What vLLM and SGLang call balancedness, there of ranks.
[[nodiscard]] double balancedness(std::span<const uint64_t> counts);

/// Returns the smallest number of experts that carry at least `share` of the tokens.
[[nodiscard]] uint32_t expertsFor(std::span<const uint64_t> counts, double share);

/// Cosine of the angle between two count vectors of equal length: 1 is the same popularity.
[[nodiscard]] double cosine(std::span<const uint64_t> a, std::span<const uint64_t> b);

/// Jensen-Shannon distance (Endres and Schindelin 2003) of two popularities, base 2: 0 is the same,
/// 1 is nothing in common.
[[nodiscard]] double jensenShannon(std::span<const uint64_t> a, std::span<const uint64_t> b);

/// Pearson's correlation over experts; 0 where either does not vary.
[[nodiscard]] double correlation(std::span<const uint64_t> a, std::span<const uint64_t> b);

}  // namespace bulkhead::planner
