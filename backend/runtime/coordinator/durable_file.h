// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace bulkhead::runtime {

/// Unavailable: "cannot WHAT PATH: the system's reason", from errno.
absl::Status systemError(const char* what, const std::string& path);

/// Replaces `path` by `content` so that after a crash either the old or the new content is there:
/// written beside it, synced, renamed, folder synced. Unavailable with the system's reason.
absl::Status writeDurably(const std::string& path, std::string_view content);

/// Makes the names in `dir` durable.
absl::Status syncDirectory(const std::string& dir);

/// Writes all of it to a descriptor, however many calls that takes.
absl::Status writeAll(int fd, std::string_view content, const std::string& path);

}  // namespace bulkhead::runtime
