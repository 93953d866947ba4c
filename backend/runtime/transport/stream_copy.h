// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace bulkhead::runtime {

/// Size in bytes above which a result has left the caches before it is read.
constexpr size_t kStreamFrom = 1u << 20;

/// memcpy that writes past the caches: it saves fetching every line before overwriting it, and
/// leaves in the caches what is still of use there. For at least kStreamFrom bytes in all.
void streamCopy(std::byte* to, const std::byte* from, size_t size);

}  // namespace bulkhead::runtime
