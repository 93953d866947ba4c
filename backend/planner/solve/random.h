// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace bulkhead::planner {

/// A small generator whose numbers are the same with every library (SplitMix64). Thread: one.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    /// 0 .. bound - 1; bound >= 1 and at most 2^32.
    uint32_t below(uint64_t bound) { return static_cast<uint32_t>(((next() >> 32) * bound) >> 32); }
    /// In (0, 1].
    double unit() { return static_cast<double>((next() >> 11) + 1) * 0x1.0p-53; }

  private:
    uint64_t state_;
};

}  // namespace bulkhead::planner
