// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/file_system.h"

namespace bulkhead::interchange {

/// The manifest of the checkpoint that somebody means. `where` is a manifest.json, the folder of a
/// checkpoint, of a run, of several runs or of a daemon's state, or the id of a run in one of
/// `jobsFolders`; "latest" is the run that wrote last. Without `step` the newest. NotFound names
/// what was looked at and, for a step, those that are there.
[[nodiscard]] absl::StatusOr<std::string> findManifest(const FileSystem& files,
                                                       const std::string& where,
                                                       std::optional<uint64_t> step,
                                                       const std::vector<std::string>& jobsFolders);

}  // namespace bulkhead::interchange
