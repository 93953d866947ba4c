// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "backend/model/names.h"
#include "backend/planner/import/input.h"

namespace bulkhead::planner {

/// Files in memory, as a reader sees a folder.
inline Files memoryFiles(std::map<std::string, std::string, std::less<>> content) {
    Files files;
    for (const auto& [name, bytes] : content) files.names.push_back(name);
    files.read = [content =
                      std::move(content)](std::string_view name) -> absl::StatusOr<std::string> {
        const auto found = content.find(name);
        if (found == content.end()) return absl::NotFoundError(model::concat(name, ": not there"));
        return found->second;
    };
    return files;
}

/// An npy file of version 1 with the given header fields and data.
inline std::string npyFile(std::string_view descr, std::string_view shape, std::string_view data,
                           std::string_view fortran = "False") {
    std::string header = model::concat("{'descr': '", descr, "', 'fortran_order': ", fortran,
                                       ", 'shape': ", shape, ", }");
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string out("\x93NUMPY\x01\x00", 8);
    out += static_cast<char>(header.size() & 0xff);
    out += static_cast<char>(header.size() >> 8);
    return out + header + std::string(data);
}

/// Little-endian bytes of numbers.
template <class T>
std::string bytesOf(const std::vector<T>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

}  // namespace bulkhead::planner
