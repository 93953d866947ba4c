// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/reduction.h"

#include <algorithm>
#include <cstring>

namespace bulkhead::runtime {
namespace {

/// 8 KiB: the accumulator stays in the first-level cache while the sources pass by.
constexpr size_t kBlock = 2048;

void addTo(float* __restrict to, const float* __restrict from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

void addInto(float* __restrict to, const float* __restrict a, const float* __restrict b,
             size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

}  // namespace

void sumInOrder(std::span<const float* const> sources, float* out, size_t count) {
    if (sources.size() == 1) {
        if (count > 0) std::memcpy(out, sources[0], count * sizeof(float));
        return;
    }
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t n = std::min(kBlock, count - at);
        addInto(out + at, sources[0] + at, sources[1] + at, n);
        for (size_t s = 2; s < sources.size(); ++s) addTo(out + at, sources[s] + at, n);
    }
}

}  // namespace bulkhead::runtime
