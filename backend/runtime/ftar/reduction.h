// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bulkhead::runtime {

/// The upper half of a float32.
using Bfloat16 = uint16_t;

/// out[i] = ((s0[i] + s1[i]) + s2[i]) + ... for i < count, sources in the given order (at least
/// one), each addition rounded to float32. `out` overlaps no source, or is one of them.
void sumInOrder(std::span<const float* const> sources, float* out, size_t count);

/// The same, every source and the sum rounded to bfloat16.
void sumRounded(std::span<const float* const> sources, float* out, size_t count);

/// The same out of sources that were rounded when they were sent.
void sumRounded(std::span<const Bfloat16* const> sources, float* out, size_t count);

/// To nearest, ties to even; NaN stays NaN; denormals are kept, as no instruction made for it does.
/// The two have the same length.
void toBfloat16(std::span<const float> from, std::span<Bfloat16> to);
void fromBfloat16(std::span<const Bfloat16> from, std::span<float> to);
/// In place: what comes out of toBfloat16 and back. `from` and `to` may be the same.
void roundToBfloat16(std::span<const float> from, std::span<float> to);

}  // namespace bulkhead::runtime
