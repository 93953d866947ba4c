// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "backend/daemon/options.h"

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

/// The program of ranks that have none of their own.
inline std::string workerOf(const Options& options) {
    return options.worker.empty() ? besideUs("bulkhead-worker") : options.worker;
}

}  // namespace bulkhead::daemon
