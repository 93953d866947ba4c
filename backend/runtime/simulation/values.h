// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/common/types.h"
#include "backend/runtime/simulation/rng.h"

/// Arithmetic that stands in for training. A state is the hash of all that was applied to it; a
/// gradient is a sum over samples, so that whichever way samples are shared out the sum of all is
/// the same, and one sample lost, doubled or taken at another state is seen.
namespace bulkhead::simulation {

inline constexpr size_t kBuckets = 2;
/// One shard's gradient, or a sum of several, by bucket.
using Sum = std::array<uint64_t, kBuckets>;

inline uint64_t initialState(int32_t shard) {
    return mix(4711, static_cast<uint64_t>(shard));
}

inline void add(Sum& sum, const Sum& part) {
    for (size_t b = 0; b < kBuckets; ++b) sum[b] += part[b];
}

inline Sum difference(const Sum& a, const Sum& b) {
    Sum out;
    for (size_t i = 0; i < kBuckets; ++i) out[i] = a[i] - b[i];
    return out;
}

inline Sum gradientOf(uint64_t state, const std::vector<SampleRange>& ranges) {
    Sum sum{};
    for (const SampleRange& r : ranges)
        for (uint64_t sample = r.begin; sample < r.end; ++sample) {
            const uint64_t one = mix(mix(state, r.domain), sample);
            for (size_t b = 0; b < kBuckets; ++b) sum[b] += mix(one, b);
        }
    return sum;
}

/// The squared gradient norm in a shard's vote: finite unless the sum overflowed. Large enough that
/// some steps clip.
inline double squaresOf(const Sum& sum) {
    return static_cast<double>(mix(sum[0], sum[1]) % 16'000'000);
}

inline uint64_t applied(uint64_t state, const Sum& sum, const CommitRecord& r) {
    if (r.skip) return state;
    uint64_t s = state;
    for (uint64_t v : sum) s = mix(s, v);
    s = mix(s, (uint64_t{r.gradScaleBits} << 32) | r.learningRateBits);
    return mix(s, (uint64_t{r.biasCorrection1Bits} << 32) | r.biasCorrection2Bits);
}

/// One shard's gradient as a rank holds it.
inline constexpr size_t kFloatsEach = 3;  ///< per bucket
inline constexpr size_t kFloats = kBuckets * kFloatsEach;
inline constexpr size_t kGradientBytes = kFloats * sizeof(float);

/// A shard's state as its bytes, which say where experts lie.
struct StateBytes {
    uint64_t state = 0;
    uint64_t layout = 0;
};

/// A rank's report on its state while experts lie as in `layout`.
uint64_t moved(uint64_t state, uint64_t layout);

}  // namespace bulkhead::simulation
