// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::planner {

/// Files as a reader sees them: by name, relative to where the recording lies. Tests and fuzzing
/// give files in memory; importRecording() gives a folder.
struct Files {
    /// The bytes of a file; errors as readAtMost's.
    std::function<absl::StatusOr<std::string>(std::string_view name)> read;
    /// Names there are, sorted.
    std::vector<std::string> names;
    /// Bytes of a file before it is read, 0 where nobody can tell; may be left out.
    std::function<uint64_t(std::string_view name)> size;
};

/// The files directly in a folder. `most` is the largest file that is read, in bytes.
[[nodiscard]] Files filesOf(const std::filesystem::path& folder, uint64_t most);

/// InvalidArgument unless `name` stays inside the folder (no leading '/', no ".."). `from` is the
/// file that names it.
[[nodiscard]] absl::Status checkInside(std::string_view name, std::string_view from);

/// Ids as they are in a file to ids as Routing holds them. InvalidArgument "WHERE: expert 70,
/// expected 0 to 63" for the first that is outside; `where(i)` tells the place of ids[i].
[[nodiscard]] absl::Status narrowIds(std::span<const int64_t> ids, uint32_t experts,
                                     std::vector<uint16_t>& out,
                                     const std::function<std::string(size_t)>& where);

}  // namespace bulkhead::planner
