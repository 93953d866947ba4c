// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

/// Real routing that the project does not ship: $BULKHEAD_DATA or ../shared/data beside the
/// sources.
inline std::optional<std::filesystem::path> sharedData(const char* below) {
    const char* given = std::getenv("BULKHEAD_DATA");
    const std::filesystem::path root =
        given != nullptr && *given != '\0'
            ? std::filesystem::path(given)
            : std::filesystem::path(BULKHEAD_SOURCE) / "../shared/data";
    if (!std::filesystem::exists(root / below)) return std::nullopt;
    return root / below;
}

#define BULKHEAD_SHARED_DATA(name, below) \
    const auto name = sharedData(below);  \
    if (!name) GTEST_SKIP() << "../shared/data/" << (below) << " is not here; nothing was checked"
