// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/runtime/collectives/group.h"

namespace bulkhead::runtime {

/// A bfloat16 as its bits.
struct Bf16 {
    uint16_t bits = 0;
};

inline float toFloat(Bf16 x) {
    return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

/// To nearest, ties to even; a NaN stays a NaN.
inline Bf16 toBf16(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// to[i] = from[0][i] + from[1][i] + ... in that order, for i < count, at least one source.
/// Floating types are accumulated in float, or in double when either type is kF64; integers wrap
/// and need equal types. `to` may be one of the sources if the types are equal. False when the pair
/// of types is not served.
bool reduceElements(void* to, ElementType toType, std::span<const void* const> from,
                    ElementType fromType, size_t count);

}  // namespace bulkhead::runtime
