// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::fuzz {

/// One reader, given bytes that somebody else wrote. Returns whether it read them; what matters is
/// that it returns.
struct Target {
    std::string_view name;
    bool (*run)(std::string_view bytes);
    std::vector<std::string> seeds;  ///< inputs that the reader accepts
};

/// Those of the program: each test of readers has its own.
[[nodiscard]] const std::vector<Target>& targets();

}  // namespace bulkhead::fuzz
