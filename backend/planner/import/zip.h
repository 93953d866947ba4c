// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace bulkhead::planner {

/// Entries of a zip archive (PKWARE APPNOTE 6.3; certain) by name, pointing into `bytes`.
/// Only what torch.save writes: entries stored, not compressed nor encrypted, sizes from the
/// central directory, checksums right. Refused, naming file and entry: zip64 sizes, entries that
/// lie outside the file or share a name, more than 100,000 entries. Thread: any.
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string_view, std::less<>>> openZip(
    std::string_view bytes, std::string_view file);

}  // namespace bulkhead::planner
