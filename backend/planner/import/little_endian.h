// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace bulkhead::planner {

static_assert(std::endian::native == std::endian::little, "files are read as this machine stores");

/// The number at `at`; the caller has checked that at + sizeof(T) <= bytes.size().
template <class T>
[[nodiscard]] T numberAt(std::string_view bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
}

}  // namespace bulkhead::planner
