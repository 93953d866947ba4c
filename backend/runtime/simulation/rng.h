// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/common/clock.h"

namespace bulkhead::simulation {

/// Mixes two words into one (SplitMix64's finaliser). Not cryptographic.
constexpr uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/// SplitMix64. Every link, process and disk has a stream of its own, so that a fault taken out of a
/// schedule leaves the chance of everybody else as it was: that is what makes a run minimisable.
class Rng {
  public:
    using result_type = uint64_t;
    explicit constexpr Rng(uint64_t seed) : state_(seed) {}

    static constexpr uint64_t min() { return 0; }
    static constexpr uint64_t max() { return ~uint64_t{0}; }
    constexpr uint64_t operator()() { return mix(state_ += 0x9e3779b97f4a7c15, 0); }

    /// [0, n), n > 0.
    constexpr uint64_t below(uint64_t n) { return (*this)() % n; }
    /// [0, 1).
    constexpr double unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
    constexpr bool chance(double p) { return p > 0 && unit() < p; }
    constexpr MonoNs between(double fromMs, double toMs) {
        return static_cast<MonoNs>((fromMs + (toMs - fromMs) * unit()) * kMillisecond);
    }

  private:
    uint64_t state_;
};

}  // namespace bulkhead::simulation
