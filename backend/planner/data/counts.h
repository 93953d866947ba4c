// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bulkhead::planner {

/// Tokens per (layer, expert), layers x experts, row by row. A token counts once for each of its
/// top-k experts, so a row sums to tokens x top-k. Thread: a value.
class Counts {
  public:
    Counts() = default;
    Counts(uint32_t layers, uint32_t experts)
        : layers_(layers), experts_(experts), values_(size_t{layers} * experts) {}

    uint32_t layers() const { return layers_; }
    uint32_t experts() const { return experts_; }

    /// One layer's row, `experts()` long. `layer` < layers().
    std::span<const uint64_t> row(uint32_t layer) const {
        return {values_.data() + size_t{layer} * experts_, experts_};
    }
    std::span<uint64_t> row(uint32_t layer) {
        return {values_.data() + size_t{layer} * experts_, experts_};
    }
    uint64_t at(uint32_t layer, uint32_t expert) const { return row(layer)[expert]; }

    /// All rows, one after another.
    std::span<const uint64_t> values() const { return values_; }

    uint64_t total(uint32_t layer) const;
    uint64_t total() const;

    /// Adds another of the same shape.
    Counts& operator+=(const Counts& other);
    bool operator==(const Counts&) const = default;

  private:
    uint32_t layers_ = 0;
    uint32_t experts_ = 0;
    std::vector<uint64_t> values_;
};

}  // namespace bulkhead::planner
