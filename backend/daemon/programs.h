// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace bulkhead::daemon {

inline std::string ourPath() {
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
    return error ? std::string("bulkheadd") : path.string();
}

/// A program installed or built in the same folder as this one.
inline std::string besideUs(const std::string& name) {
    return (std::filesystem::path(ourPath()).parent_path() / name).string();
}

}  // namespace bulkhead::daemon
