// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/job_spec.h"

/// The training text of a job on disk. Touches files; thread: any.
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

/// Identifies the text that a job reads, for comparison by two readers. Domains are added in the
/// job's order.
class TextIdentity {
  public:
    void add(const std::string& domain, const DomainText& text);

    /// XXH3 over domain names and contents; independent of paths.
    uint64_t hash() const { return hash_; }
    /// The file or folder changed last, for whoever holds another text: "PATH (changed 2026-11-21
    /// 15:02:11 UTC)".
    std::string newest() const;

  private:
    uint64_t hash_ = 0;
    std::string newest_;
    int64_t newestNs_ = 0;
};

/// One file per domain in `folder` (made if it is not there) with exactly the bytes readDomain
/// gives, synced. The domains returned keep their names and point there. Unavailable or
/// ResourceExhausted naming the file; then nothing is left in the folder.
[[nodiscard]] absl::StatusOr<std::vector<DomainSpec>> copyDomains(
    const std::vector<DomainSpec>& domains, const std::filesystem::path& folder);

}  // namespace bulkhead::model
