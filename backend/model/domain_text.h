// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/job_spec.h"

/// The training text of a job on disk. Touches files, keeps nothing; thread: any.
namespace bulkhead::model {

struct DomainText {
    std::string text;
    std::vector<std::string> leftOut;  ///< "PATH: empty" or "PATH: not text", files of folders only
    /// Of the files and folders read, the one changed last: the likely culprit when two readers of
    /// the same paths do not hold the same text.
    std::string newest;
    int64_t newestNs = 0;  ///< Unix time of that change
};

/// Every path of the domain, one text after the other. A folder stands for all regular files below
/// it in name order; those that are empty or not text (a zero byte in the first 8 KiB) are left
/// out. InvalidArgument naming domain, path and what to do: nothing there, unreadable, no text.
[[nodiscard]] absl::StatusOr<DomainText> readDomain(const DomainSpec& domain);

/// One file per domain in `folder` (made if it is not there) with exactly the bytes readDomain
/// gives, synced. The domains returned keep their names and point there. Unavailable or
/// ResourceExhausted naming the file; then nothing is left in the folder.
[[nodiscard]] absl::StatusOr<std::vector<DomainSpec>> copyDomains(
    const std::vector<DomainSpec>& domains, const std::filesystem::path& folder);

}  // namespace bulkhead::model
