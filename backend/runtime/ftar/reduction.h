// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace bulkhead::runtime {

/// out[i] = ((s0[i] + s1[i]) + s2[i]) + ... for i < count, sources in the given order (at least
/// one), each addition rounded to float. `out` overlaps no source.
void sumInOrder(std::span<const float* const> sources, float* out, size_t count);

}  // namespace bulkhead::runtime
